/* What tests of the non-matrix ops share: random data, the back ends under test, comparisons. Included by backend/cpu/vector_test.c and
 * vector_cache_test.c. */
#ifndef DI_TESTING_VECTOR_FIXTURE_H
#define DI_TESTING_VECTOR_FIXTURE_H

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "checkpoint/formats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka needs the four above */
#include <cmocka.h>

#ifdef DI_TEST_QUICK /* instrumented: every second case */
#define STRIDE 2
#else
#define STRIDE 1
#endif

/* ---------------------------------------------------------------- random data */

static uint64_t seed = 1;
static uint32_t rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static float uniform(void) /* [-1, 1) */
{
    return (float)(int32_t)(rnd() << 1) * 0x1p-31f;
}
static void fill(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++)
        x[i] = uniform() * size;
}
static void fill_bf16(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++)
        x[i] = di_round_bf16(uniform() * size);
}
static void *alloc(size_t bytes)
{
    void *p = di_malloc_aligned(bytes ? bytes : 64);
    assert_non_null(p);
    memset(p, 0x5A, bytes);
    return p;
}
static void *alloc_from(const void *init, size_t bytes)
{
    void *p = alloc(bytes);
    return init ? memcpy(p, init, bytes) : p;
}
static inline uint8_t *bf16_weights(size_t n, float size)
{
    uint8_t *w = alloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        uint16_t h = di_f32_to_bf16(uniform() * size + 1);
        memcpy(w + 2 * i, &h, 2);
    }
    return w;
}

/* ---------------------------------------------------------------- back ends under test; [0] is the reference */

#define MAX_ROWS 96
static struct di_config config;
static struct di_backend *backends[16];
static int n_backends;

struct shape {
    int d, heads, head_dim, index_heads, index_dim, topk, cand_blocks, cand_size, window, context;
};
static const struct shape small = {64, 2, 64, 2, 32, 16, 8, 4, 16, 4096}, nano = {256, 4, 128, 4, 64, 64, 32, 8, 128, 4096},
                          odd = {96, 1, 96, 1, 96, 24, 16, 8, 40, 4096}, full = {512, 64, 512, 32, 128, 512, 64, 8, 128, 8192};

static void open_backends(const struct shape *s)
{
    static const char *const isas[] = {"ref", "avx2", "avx512"};
    memset(&config, 0, sizeof config);
    config.hidden_size = s->d, config.num_attention_heads = s->heads, config.head_dim = s->head_dim, config.index_n_heads = s->index_heads;
    config.index_head_dim = s->index_dim, config.index_topk = s->topk, config.candidate_topk_blocks = s->cand_blocks;
    config.candidate_block_size = s->cand_size, config.sliding_window = s->window, config.hc_mult = 4;
    config.num_hidden_layers = 2, config.n_kv_sources = 2, config.kv_source_layer_ids[1] = 1;
    config.compress_ratios[0] = 2, config.compress_ratios[1] = 1;
    config.moe_intermediate_size = config.q_lora_rank = config.o_lora_rank = 32, config.o_groups = 1, config.n_routed_experts = 4;
    config.num_experts_per_tok = 2, config.vocab_size = 64;
    struct di_backend_params p = {.config = &config, .max_rows = MAX_ROWS, .max_context = s->context};
    assert_true(di_numerics_by_name("bf16", &p.numerics));
    n_backends = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (int threads = 1; threads <= 3; threads++) {
            enum di_cpu_isa isa;
            di_error err;
            assert_true(di_cpu_isa_by_name(isas[i], &isa));
            if (!di_cpu_isa_usable(isa) || (i == 0 && threads > 1))
                continue;
            p.isa = isas[i], p.threads = threads;
            if (di_backend_cpu_create(&p, &backends[n_backends++], &err) != DI_OK)
                fail_msg("%s", err.message);
        }
}
static void close_backends(void)
{
    for (int i = 0; i < n_backends; i++)
        backends[i]->ops->destroy(backends[i]);
}

/* bf16 units in the last place between two bf16 values */
static int64_t ulps(float a, float b)
{
    int32_t x = (int32_t)di_f32_bits(a) >> 16, y = (int32_t)di_f32_bits(b) >> 16;
    x = x < 0 ? -(x & 0x7FFF) : x;
    y = y < 0 ? -(y & 0x7FFF) : y;
    return llabs((int64_t)x - y);
}
static void near_bf16(const char *what, const float *ref, const float *got, size_t n, int most, float slack)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(ref[i] - got[i]) <= slack) && ulps(ref[i], got[i]) > most)
            fail_msg("%s: value %zu is %.9g instead of %.9g", what, i, got[i], ref[i]);
}
static inline void near_f32(const char *what, const float *ref, const float *got, size_t n, float relative, float absolute)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(ref[i] - got[i]) <= relative * fabsf(ref[i]) + absolute))
            fail_msg("%s: value %zu is %.9g instead of %.9g", what, i, got[i], ref[i]);
}
static void same(const char *what, const void *ref, const void *got, size_t bytes)
{
    const uint8_t *a = ref, *b = got;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu is %02x instead of %02x", what, i, bytes, b[i], a[i]);
}

/* Run `call` on every back end with a fresh `out` (a copy of `init`, or junk): fast ones must agree with each other bit for bit; `check`
 * compares the first of them with the reference. */
#define FOR_ALL(type, out, init, bytes, call, check) \
    do {                                             \
        type *first_ = NULL, *ref = NULL;            \
        for (int b_ = 0; b_ < n_backends; b_++) {    \
            struct di_backend *be = backends[b_];    \
            type *out = alloc_from(init, bytes);     \
            call;                                    \
            if (b_ == 0) {                           \
                ref = out;                           \
            } else if (b_ == 1) {                    \
                first_ = out;                        \
                check;                               \
            } else {                                 \
                same(#call, first_, out, bytes);     \
                di_free_aligned(out);                \
            }                                        \
        }                                            \
        di_free_aligned(ref);                        \
        di_free_aligned(first_);                     \
    } while (0)
#define NOTHING NULL
#define COUNT(list) (sizeof(list) / sizeof *(list))

#endif
