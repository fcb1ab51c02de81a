/* The suites of `deepinfer bench`. A suite prints a table: floor, measured, percent of floor. */
#ifndef DI_CLI_BENCH_H
#define DI_CLI_BENCH_H

#include "base/options.h"
#include "base/threads.h"

#include <time.h>

#define DI_BENCH_ROUNDS 1000 /* most */

struct di_bench_options {
    const char *suite, *isa, *filter, *model, *json, *trace; /* isa NULL: the best; filter: only rows whose name contains it */
    int64_t threads, rounds, batch, context, prefill_chunk;
    bool profile;
    struct di_str_list images;
};

/* What the machine can do, measured by src/cli/bench_machine.c on all threads of a pool. */
struct di_bench_buffer {
    uint8_t *p;
    size_t bytes;
};
/* Zeroed and touched memory in huge pages where the system grants them; p NULL when exhausted. */
struct di_bench_buffer di_bench_alloc(size_t bytes);
void di_bench_free(struct di_bench_buffer *b);
/* Seconds of a clock of the system, such as CLOCK_THREAD_CPUTIME_ID. */
double di_bench_clock(clockid_t clock);
/* Seconds of a clock: with one thread the processor time of the caller, which other programs on the machine disturb less. */
double di_bench_seconds(const struct di_pool *pool);
/* Seconds to read the buffer once. */
double di_bench_read(struct di_pool *pool, const struct di_bench_buffer *b);
/* Multiply-adds counted as 2 operations, per second, of the instruction that an instruction set of the CPU back end multiplies with. */
double di_bench_peak(struct di_pool *pool, const char *isa);

double di_bench_median(double *v, int n); /* sorts v */

di_status di_bench_kernels(const struct di_bench_options *o, di_error *err);
di_status di_bench_vector(const struct di_bench_options *o, di_error *err);
di_status di_bench_sampler(const struct di_bench_options *o, di_error *err);
di_status di_bench_model(const struct di_bench_options *o, di_error *err);
di_status di_bench_cache(const struct di_bench_options *o, di_error *err);
di_status di_bench_order(const struct di_bench_options *o, di_error *err);
di_status di_bench_vision(const struct di_bench_options *o, di_error *err);
di_status di_bench_engine(const struct di_bench_options *o, di_error *err);

#endif
