#define _GNU_SOURCE /* sched_getaffinity */
#include "base/threads.h"

#include "base/clock.h"
#include "base/machine.h"
#include "base/mem.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Longer than the gaps between the ops of a forward pass, much shorter than what a sleeping neighbour would notice. */
#define SPIN_NS 50000

/* Three counters drive everything. Each is waited for by "differs from what I saw": spin first, then sleep on one common condition
 * variable. They stand on separate cache lines, because each is written by other threads than the rest. */
struct di_pool {
    _Alignas(64) _Atomic uint32_t started; /* runs begun */
    di_pool_fn fn;                         /* of the present run; NULL asks the threads to end */
    void *ctx;
    _Alignas(64) _Atomic uint32_t finished; /* runs completed by all created threads */
    _Alignas(64) _Atomic uint32_t running;  /* created threads that have not returned from fn */
    _Alignas(64) _Atomic uint32_t phase;    /* barriers passed */
    _Alignas(64) _Atomic uint32_t arrived;  /* threads that stand at the present barrier */
    _Alignas(64) _Atomic uint32_t sleepers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_threads;
    int64_t spin_ns; /* 0 when there are fewer processors than threads: whoever spins then keeps another from working */
    struct worker {
        struct di_pool *pool;
        pthread_t handle;
        int thread;
    } workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Return once *word differs from `old`. Whoever sleeps has first announced itself in `sleepers` and then looked at the word again, and
 * publish() writes the word before it looks at `sleepers`; all four are sequentially consistent, so one of the two sees the other. */
static void wait_change(struct di_pool *pool, _Atomic uint32_t *word, uint32_t old)
{
    int64_t until = 0;
    for (unsigned k = 1; k == 1 || pool->spin_ns > 0; k++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        relax();
        if (k % 64 == 0) {
            int64_t now = di_clock_ns();
            if (until == 0)
                until = now + pool->spin_ns;
            else if (now >= until)
                break;
        }
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(word) == old)
        pthread_cond_wait(&pool->changed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

/* Step a counter and wake whoever sleeps. */
static void step_counter(struct di_pool *pool, _Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct di_pool *pool = w->pool;
    for (uint32_t seen = 0;; seen++) {
        wait_change(pool, &pool->started, seen);
        if (!pool->fn)
            return NULL;
        pool->fn(pool->ctx, w->thread, pool->n_threads);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1)
            step_counter(pool, &pool->finished);
    }
}

static void start_job(struct di_pool *pool, di_pool_fn fn, void *ctx)
{
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->running, (uint32_t)pool->n_threads - 1, memory_order_relaxed);
    step_counter(pool, &pool->started);
}

void di_pool_run(struct di_pool *pool, di_pool_fn fn, void *ctx)
{
    if (pool->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    uint32_t before = atomic_load_explicit(&pool->finished, memory_order_relaxed);
    start_job(pool, fn, ctx);
    fn(ctx, 0, pool->n_threads);
    wait_change(pool, &pool->finished, before);
}

void di_pool_barrier(struct di_pool *pool)
{
    if (pool->n_threads == 1)
        return;
    uint32_t phase = atomic_load_explicit(&pool->phase, memory_order_relaxed); /* cannot move before this thread arrives */
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)pool->n_threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        step_counter(pool, &pool->phase);
    } else {
        wait_change(pool, &pool->phase, phase);
    }
}

int di_pool_threads(const struct di_pool *pool)
{
    return pool->n_threads;
}

/* Threads 1..n_created exist. */
static void stop_threads(struct di_pool *pool, int n_created)
{
    if (n_created > 0)
        start_job(pool, NULL, NULL);
    for (int t = 1; t <= n_created; t++)
        pthread_join(pool->workers[t].handle, NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    di_free_aligned(pool);
}

int di_thread_create(pthread_t *thread, void *(*fn)(void *arg), void *arg)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t mask, before;
    sigfillset(&mask);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&mask, faults[i]);
    pthread_sigmask(SIG_SETMASK, &mask, &before);
    int failure = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

di_status di_pool_create(int n_threads, struct di_pool **out, di_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > DI_POOL_MAX_THREADS)
        return di_fail(err, DI_ERR_INVALID, "", "the number of threads must be between 1 and %d, not %d", DI_POOL_MAX_THREADS, n_threads);
    size_t bytes = sizeof(struct di_pool) + (size_t)n_threads * sizeof(struct worker);
    struct di_pool *pool = di_malloc_aligned(bytes);
    if (!pool)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory while creating %d threads", n_threads);
    memset(pool, 0, bytes);
    pool->n_threads = n_threads;
    pool->spin_ns = n_threads <= di_cpu_count() ? SPIN_NS : 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    int created = 0, failure = 0;
    for (int t = 1; t < n_threads && !failure; t++) {
        pool->workers[t].pool = pool;
        pool->workers[t].thread = t;
        failure = di_thread_create(&pool->workers[t].handle, worker_main, &pool->workers[t]);
        created += !failure;
    }
    if (failure) {
        stop_threads(pool, created);
        return di_fail(err, DI_ERR_LIMIT, "", "only %d of %d threads could be created: %s", created + 1, n_threads, strerror(failure));
    }
    *out = pool;
    return DI_OK;
}

void di_pool_destroy(struct di_pool *pool)
{
    if (pool)
        stop_threads(pool, pool->n_threads - 1);
}

int di_cpu_count(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : online;
    long granted = di_machine_quota("");
    n = n < granted ? n : granted;
    return n > 0 ? (int)n : 1;
}
