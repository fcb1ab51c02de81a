#include "base/threads.h"

#include "base/clock.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#define MAX 8

struct sums {
    struct di_pool *pool;
    const int *in;
    int64_t n;
    int64_t part[MAX]; /* plain memory: the pool must order it */
    int calls[MAX];
    int64_t total[MAX];
};

static void add_part(void *ctx, int thread, int n_threads)
{
    struct sums *s = ctx;
    di_range r = di_split(s->n, 16, thread, n_threads);
    int64_t sum = 0;
    for (int64_t i = r.begin; i < r.end; i++)
        sum += s->in[i];
    s->part[thread] = sum;
    s->calls[thread]++;
    di_pool_barrier(s->pool);
    sum = 0;
    for (int t = 0; t < n_threads; t++)
        sum += s->part[t];
    s->total[thread] = sum;
    di_pool_barrier(s->pool);
    s->part[thread] = -1; /* would spoil a sum of a thread that is not yet past the barrier */
}

static void test_every_run_is_complete(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, MAX};
    static int in[1000];
    for (int i = 0; i < 1000; i++)
        in[i] = i * 7 % 1001;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct sums s = {.in = in};
        int n = counts[c], runs = n > 2 ? 200 : 4000;
        assert_int_equal(di_pool_create(n, &s.pool, NULL), DI_OK);
        assert_int_equal(di_pool_threads(s.pool), n);
        for (int k = 0; k < runs; k++) {
            int64_t want = 0;
            s.n = k % 1000;
            in[k % 1000] = k;
            for (int64_t i = 0; i < s.n; i++)
                want += in[i];
            di_pool_run(s.pool, add_part, &s);
            for (int t = 0; t < n; t++) {
                assert_int_equal(s.total[t], want);
                assert_int_equal(s.calls[t], k + 1);
            }
        }
        di_pool_destroy(s.pool);
    }
}

/* Pauses longer than the spinning: threads fall asleep between runs and inside barriers. */
static void lag(void *ctx, int thread, int n_threads)
{
    struct sums *s = ctx;
    if (thread == s->n % n_threads)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    add_part(ctx, thread, n_threads);
}

static void test_sleeping_threads_wake(void **state)
{
    (void)state;
    int in[64] = {1, 2, 3};
    struct sums s = {.in = in};
    assert_int_equal(di_pool_create(3, &s.pool, NULL), DI_OK);
    for (int k = 0; k < 200; k++) {
        s.n = 10 + k % 40;
        if (k % 2)
            nanosleep(&(struct timespec){.tv_nsec = 150000}, NULL);
        di_pool_run(s.pool, lag, &s);
        assert_int_equal(s.total[0], 6);
        assert_int_equal(s.total[2], 6);
    }
    di_pool_destroy(s.pool);
}

static void test_idle_pool_burns_nothing(void **state)
{
    (void)state;
    struct di_pool *pool;
    struct timespec a, b;
    assert_int_equal(di_pool_create(4, &pool, NULL), DI_OK);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    assert_true(used < 0.02); /* three spinning threads would use 0.1 s and more */
    di_pool_destroy(pool);
}

static void nothing(void *ctx, int thread, int n_threads)
{
    (void)ctx;
    (void)thread;
    (void)n_threads;
}

static void test_latency_is_printed(void **state)
{
    (void)state;
    struct di_pool *pool;
    int64_t best = INT64_MAX;
    assert_int_equal(di_pool_create(2, &pool, NULL), DI_OK);
    uint64_t calls = di_mem_calls();
    for (int k = 0; k < 50; k++) {
        int64_t start = di_clock_ns();
        for (int i = 0; i < 100; i++)
            di_pool_run(pool, nothing, NULL);
        int64_t took = (di_clock_ns() - start) / 100;
        best = took < best ? took : best;
    }
    assert_int_equal(di_mem_calls(), calls);
    print_message("fork-join with 2 threads: best %lld ns\n", (long long)best);
    di_pool_destroy(pool);
}

static void test_split(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 7, 8, 9, 63, 64, 65, 1000, 129280, INT64_MAX - 1, INT64_MAX};
    static const int64_t grains[] = {1, 8, 64, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
            for (int n = 1; n < 40; n++) {
                int64_t at = 0, shortest = INT64_MAX, longest = 0;
                for (int t = 0; t < n; t++) {
                    di_range r = di_split(sizes[i], grains[g], t, n);
                    assert_int_equal(r.begin, at);
                    assert_true(r.end >= r.begin);
                    assert_true(r.begin % grains[g] == 0 || r.begin == sizes[i]);
                    int64_t units = (r.end - r.begin) / grains[g] + ((r.end - r.begin) % grains[g] != 0);
                    shortest = units < shortest ? units : shortest;
                    longest = units > longest ? units : longest;
                    at = r.end;
                }
                assert_int_equal(at, sizes[i]);
                assert_true(longest - shortest <= 1);
            }
        }
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct di_pool *pool;
    di_error err = {0};
    assert_int_equal(di_pool_create(0, &pool, &err), DI_ERR_INVALID);
    assert_int_equal(di_pool_create(DI_POOL_MAX_THREADS + 1, &pool, &err), DI_ERR_INVALID);
    assert_null(pool);
    assert_true(di_cpu_count() >= 1);
    di_pool_destroy(NULL);
    di_mem_fail_after(0);
    assert_int_equal(di_pool_create(2, &pool, &err), DI_ERR_MEMORY);
    di_mem_fail_after(UINT64_MAX);
#ifndef SANITIZED /* they reserve terabytes of addresses themselves */
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    small = old;
    small.rlim_cur = (rlim_t)256 << 20; /* stacks of 8 MB: some threads can be made, not 500 */
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    di_status status = di_pool_create(500, &pool, &err);
    setrlimit(RLIMIT_AS, &old);
    assert_int_equal(status, DI_ERR_LIMIT);
    assert_null(pool);
    assert_non_null(strstr(err.message, "of 500 threads could be created"));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_run_is_complete),
        cmocka_unit_test(test_sleeping_threads_wake),
        cmocka_unit_test(test_idle_pool_burns_nothing),
        cmocka_unit_test(test_latency_is_printed),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
