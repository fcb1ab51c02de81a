/* Fixed pool of threads for computing: fork and join within a few microseconds, a fixed split of work, a barrier between stages.
 * One thread (the engine's) owns a pool and makes all calls to it; only di_pool_barrier is called from inside a running function. */
#ifndef DI_BASE_THREADS_H
#define DI_BASE_THREADS_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>

/* A thread that takes no signals, which belong to the program's own threads: one that is waiting for input must be the one that is
 * interrupted. What a thread does to itself (SIGBUS of a mapping, SIGSEGV, ...) reaches it. 0 or an errno, as pthread_create. */
int di_thread_create(pthread_t *thread, void *(*fn)(void *arg), void *arg);

struct di_pool;

#define DI_POOL_MAX_THREADS 1024

/* thread is 0..n_threads-1; 0 is the caller of di_pool_run. */
typedef void (*di_pool_fn)(void *ctx, int thread, int n_threads);

/* n_threads counts the calling thread: 1 creates none. Threads wait for work by spinning for some tens of microseconds and then sleep, so
 * an idle pool costs nothing. DI_ERR_INVALID outside 1..DI_POOL_MAX_THREADS; DI_ERR_LIMIT if the system grants fewer threads; then none is
 * left behind. */
di_status di_pool_create(int n_threads, struct di_pool **out, di_error *err);
void di_pool_destroy(struct di_pool *pool); /* NULL is allowed. Not while a function runs. */
int di_pool_threads(const struct di_pool *pool);

/* Call fn(ctx, t, n_threads) once for every t, each on its own thread, and return when all have returned. What the caller wrote before is
 * visible to fn, what fn wrote is visible to the caller afterwards. Not from inside fn. */
void di_pool_run(struct di_pool *pool, di_pool_fn fn, void *ctx);
/* Inside fn: wait until all threads of the run stand here. Every thread must call it equally often. */
void di_pool_barrier(struct di_pool *pool);

/* Processors that this process may use: those of its affinity, and no more than its control groups grant time of. At least 1. */
int di_cpu_count(void);

typedef struct di_range {
    int64_t begin, end; /* [begin, end), may be empty */
} di_range;

/* Part `thread` of [0, n) cut into n_threads contiguous parts; every cut is a multiple of `grain` (>= 1), parts differ by at most one
 * grain, earlier ones are the larger. Depends on its arguments only. */
static inline di_range di_split(int64_t n, int64_t grain, int thread, int n_threads)
{
    int64_t units = n / grain + (n % grain != 0), each = units / n_threads, extra = units % n_threads;
    int64_t first = thread * each + (thread < extra ? thread : extra);
    int64_t last = first + each + (thread < extra);
    /* units * grain may pass n (and, near 2^63, the range) only in the last unit. */
    return (di_range){first >= units ? n : first * grain, last >= units ? n : last * grain};
}

#endif
