#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct di_bench_buffer di_bench_alloc(size_t bytes)
{
    struct di_bench_buffer b = {mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), bytes};
    if (b.p == MAP_FAILED)
        return (struct di_bench_buffer){NULL, 0};
    (void)madvise(b.p, bytes, MADV_HUGEPAGE);
    memset(b.p, 0, bytes);
    return b;
}

void di_bench_free(struct di_bench_buffer *b)
{
    if (b->p)
        munmap(b->p, b->bytes);
    b->p = NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double di_bench_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double di_bench_seconds(const struct di_pool *pool)
{
    return di_bench_clock(di_pool_threads(pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
}

double di_bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

/* ---------------------------------------------------------------- reading */

typedef uint64_t vec __attribute__((vector_size(32), aligned(32)));

#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void
read_part(void *ctx, int thread, int n_threads)
{
    const struct di_bench_buffer *b = ctx;
    di_range r = di_split((int64_t)b->bytes, 4096, thread, n_threads);
    vec sum[8] = {{0}};
    int64_t quarter = (r.end - r.begin) / 4 & ~(int64_t)255; /* four streams are a little faster than one */
    for (int64_t at = 0; at < quarter; at += 256)
        for (const uint8_t *p = b->p + r.begin + at, *end = p + 4 * quarter; p < end; p += quarter) {
            for (int i = 0; i < 4; i++)
                __builtin_prefetch(p + 2048 + 64 * i);
            for (int i = 0; i < 8; i++)
                sum[i] ^= *(const vec *)(p + 32 * i);
        }
    for (int i = 1; i < 8; i++)
        sum[0] ^= sum[i];
    __asm__ volatile("" ::"m"(sum));
}

double di_bench_read(struct di_pool *pool, const struct di_bench_buffer *b)
{
    double start = di_bench_seconds(pool);
    di_pool_run(pool, read_part, (void *)(uintptr_t)b);
    return di_bench_seconds(pool) - start;
}

/* ---------------------------------------------------------------- multiplying */

#define PEAK_LOOPS 400000

#if defined(__x86_64__)
#define TEN(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9)
#define LOW_REGISTERS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12"
#define FMA256(r) "vfmadd231ps %%ymm12, %%ymm12, %%ymm" #r "\n\t"
#define FMA512(r) "vfmadd231ps %%zmm12, %%zmm12, %%zmm" #r "\n\t"
#define DP512(r) "vdpbf16ps %%zmm12, %%zmm12, %%zmm" #r "\n\t"
#define DEFINE_PEAK(name, zero, ops)                                                                             \
    static void name(void *ctx, int thread, int n_threads)                                                       \
    {                                                                                                            \
        (void)ctx, (void)thread, (void)n_threads;                                                                \
        long n = PEAK_LOOPS;                                                                                     \
        __asm__ volatile(zero "1:\n\t" ops "dec %0\n\tjnz 1b\n\tvzeroupper\n\t" : "+r"(n)::LOW_REGISTERS, "cc"); \
    }
DEFINE_PEAK(peak_avx2, "vxorps %%xmm12, %%xmm12, %%xmm12\n\t", TEN(FMA256) FMA256(10) FMA256(11))
DEFINE_PEAK(peak_avx512, "vxorps %%xmm12, %%xmm12, %%xmm12\n\t", TEN(FMA512) FMA512(10) FMA512(11))
DEFINE_PEAK(peak_bf16, "vxorps %%xmm12, %%xmm12, %%xmm12\n\t", TEN(DP512) DP512(10) DP512(11))

/* 6 accumulators, 1 A and 1 B tile, all zero. */
static void peak_amx(void *ctx, int thread, int n_threads)
{
    static const uint8_t config[64] = {1,  [16] = 64, 0,  64, 0,         64, 0,  64, 0,  64, 0,  64, 0,
                                       64, 0,         64, 0,  [48] = 16, 16, 16, 16, 16, 16, 16, 16};
    (void)ctx, (void)thread, (void)n_threads;
    long n = PEAK_LOOPS / 8;
#define TDP(r) ".byte 0xc4, 0xe2, 0x42, 0x5c, " r "\n\t" /* tdpbf16ps tmmR, tmm6, tmm7 */
    __asm__ volatile(
        ".byte 0xc4, 0xe2, 0x78, 0x49, 0x01\n\t" /* ldtilecfg (%%rcx) */
        ".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0, 0xc4, 0xe2, 0x7b, 0x49, 0xc8, 0xc4, 0xe2, 0x7b, 0x49, 0xd0, 0xc4, 0xe2, 0x7b, 0x49, "
        "0xd8, 0xc4, 0xe2, 0x7b, 0x49, 0xe0, 0xc4, 0xe2, 0x7b, 0x49, 0xe8, 0xc4, 0xe2, 0x7b, 0x49, 0xf0, 0xc4, 0xe2, 0x7b, 0x49, "
        "0xf8\n\t" /* tilezero tmm0..7 */
        "1:\n\t" TDP("0xc6") TDP("0xce") TDP("0xd6") TDP("0xde") TDP("0xe6")
            TDP("0xee") "dec %0\n\tjnz 1b\n\t"
                        ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0\n\t" /* tilerelease */
        : "+r"(n)
        : "c"(config)
        : "cc", "memory");
}

static const struct {
    const char *isa;
    di_pool_fn fn;
    double ops; /* per thread */
} peaks[] = {{"avx2", peak_avx2, PEAK_LOOPS * 12.0 * 16},
             {"avx512", peak_avx512, PEAK_LOOPS * 12.0 * 32},
             {"avx512bf16", peak_bf16, PEAK_LOOPS * 12.0 * 64},
             {"amx", peak_amx, PEAK_LOOPS / 8 * 6.0 * 16 * 16 * 64}};
#endif

double di_bench_peak(struct di_pool *pool, const char *isa)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (strcmp(isa, peaks[i].isa) == 0) {
            double start = di_bench_seconds(pool);
            di_pool_run(pool, peaks[i].fn, NULL);
            return peaks[i].ops * di_pool_threads(pool) / (di_bench_seconds(pool) - start);
        }
#else
    (void)pool, (void)isa;
#endif
    return 0;
}
