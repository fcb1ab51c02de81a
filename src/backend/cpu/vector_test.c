/* Every fast non-matrix op of every usable instruction set against the reference, over edge shapes; and bit for bit against itself: any
 * number of threads, whole chunks against single rows, one instruction set against the other. */
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
/* Any exponent from 2^-40 to 2^20, and zeros. */
static void fill_wide(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rnd() % 8 ? di_round_bf16(ldexpf(uniform(), (int)(rnd() % 60) - 40)) : 0;
}
/* Small integers: their squares add up exactly in any order, so two norms of them are equal to the last bit. */
static void fill_integers(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(rnd() % 33) - 16);
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
static uint8_t *bf16_weights(size_t n, float size)
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
static void near_f32(const char *what, const float *ref, const float *got, size_t n, float relative, float absolute)
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

/* ---------------------------------------------------------------- dense rows */

static const int widths[] = {32, 64, 96, 128, 512, 5120};
static const int counts[] = {1, 2, 3, 7, 9, 64, 77};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void test_norm_and_embed(void **state)
{
    (void)state;
    open_backends(&small);
    for (size_t k = STRIDE - 1; k < COUNT(widths); k += STRIDE)
        for (size_t c = 0; c < COUNT(counts); c++) {
            int d = widths[k], m = counts[c];
            size_t n = (size_t)m * (size_t)d;
            float *x = alloc(4 * n);
            uint8_t *w = bf16_weights((size_t)d * 64, 1);
            fill_bf16(x, n, c % 2 ? 1e-12f : 8);
            FOR_ALL(float, y, NOTHING, 4 * n,
                    be->ops->rmsnorm(be, &(struct di_op_rmsnorm){.m = m, .d = d, .eps = 1e-20f, .x = x, .w = w, .y = y}),
                    near_bf16("rmsnorm", ref, y, n, 1, 0));
            FOR_ALL(float, y, x, 4 * n,
                    be->ops->rmsnorm(be, &(struct di_op_rmsnorm){.m = m, .d = d, .eps = 1e-20f, .x = y, .w = w, .y = y}),
                    near_bf16("in place", ref, y, n, 1, 0));
            int32_t ids[MAX_ROWS];
            for (int i = 0; i < m; i++)
                ids[i] = rnd() % 8 ? (int32_t)(rnd() % 64) : -1;
            float pre[MAX_ROWS * 4];
            FOR_ALL(float, y, NOTHING, 16 * n,
                    be->ops->embed(be, &(struct di_op_embed){.m = m, .streams = 4, .d = d, .ids = ids, .table = w, .x = y, .pre = pre}),
                    same("embed", ref, y, 16 * n));
            for (int i = 0; i < 4 * m; i++)
                assert_true(pre[i] == (i % 4 == 0));
            FOR_ALL(float, y, x, 4 * n, be->ops->scale(be, &(struct di_op_scale){(int64_t)n - 5, 0.3f, y}), same("scale", ref, y, 4 * n));
            di_free_aligned(x);
            di_free_aligned(w);
        }
    close_backends();
}

static void test_quant8(void **state)
{
    (void)state;
    open_backends(&small);
    for (int round = 0; round < 40; round++) {
        int m = counts[round % 7], k = 32 * (1 + round);
        size_t n = (size_t)m * (size_t)k;
        float *x = alloc(4 * n);
        round % 2 ? fill_wide(x, n) : fill(x, n, 500);
        if (round == 1)
            memset(x, 0, 4 * n);
        FOR_ALL(float, y, NOTHING, 4 * n, be->ops->quant8(be, &(struct di_op_quant8){m, k, x, y}), same("quant8", ref, y, 4 * n));
        FOR_ALL(float, y, x, 4 * n, be->ops->quant8(be, &(struct di_op_quant8){m, k, y, y}), same("quant8 in place", ref, y, 4 * n));
        di_free_aligned(x);
    }
    close_backends();
}

static void test_rope(void **state)
{
    (void)state;
    open_backends(&small);
    static const int shapes[][3] = {{1, 32, 16}, {2, 64, 32}, {64, 512, 32}, {4, 128, 16}, {3, 96, 8}};
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (int inverse = 0; inverse < 2; inverse++) {
            int heads = shapes[s][0], d = shapes[s][1], half = shapes[s][2], m = 13;
            size_t n = (size_t)(m * heads * d), a = (size_t)(m * half);
            float *x = alloc(4 * n), *cosine = alloc(4 * a), *sine = alloc(4 * a);
            fill_bf16(x, n, 3);
            fill(cosine, a, 1);
            fill(sine, a, 1);
            FOR_ALL(
                float, y, x, 4 * n,
                be->ops->rope(be,
                              &(struct di_op_rope){
                                  .m = m, .heads = heads, .d = d, .half = half, .inverse = inverse, .x = y, .cos = cosine, .sin = sine}),
                same("rope", ref, y, 4 * n));
            if (d <= 128)
                FOR_ALL(
                    float, y, x, 4 * n,
                    be->ops->index_query(
                        be, &(struct di_op_index_query){.m = m, .heads = heads, .d = d, .half = half, .q = y, .cos = cosine, .sin = sine}),
                    same("index_query", ref, y, 4 * n));
            di_free_aligned(x);
            di_free_aligned(cosine);
            di_free_aligned(sine);
        }
    close_backends();
}

static void test_streams(void **state)
{
    (void)state;
    open_backends(&small);
    for (size_t k = STRIDE - 1; k < COUNT(widths); k += STRIDE)
        for (size_t c = 0; c < COUNT(counts); c++) {
            int d = widths[k], m = counts[c], s = c == 2 ? 3 : c == 3 ? 8 : 4;
            if (d == 5120 && m > 64)
                continue;
            size_t n = (size_t)(m * d), rows = (size_t)m;
            float *x = alloc(4 * n * 8), *o = alloc(4 * n), *post = alloc(4 * rows * 8), *comb = alloc(4 * rows * 64);
            uint8_t *w = bf16_weights((size_t)d, 1);
            fill_bf16(x, n * 8, 4);
            fill_bf16(o, n, 4);
            fill(post, rows * 8, 2);
            fill(comb, rows * 64, 1);
            FOR_ALL(
                float, y, x, 4 * n * 8,
                be->ops->hc_expand(be, &(struct di_op_hc_expand){.m = m, .streams = s, .d = d, .x = y, .post = post, .comb = comb, .o = o}),
                same("hc_expand", ref, y, 4 * n * 8));
            FOR_ALL(float, y, NOTHING, 4 * n,
                    be->ops->hc_norm(
                        be, &(struct di_op_hc_norm){.m = m, .streams = s, .d = d, .eps = 1e-20f, .x = x, .pre = post, .w = w, .y = y}),
                    near_bf16("hc_norm", ref, y, n, 1, 0));
            FOR_ALL(
                float, y, NOTHING, 12 * n,
                be->ops->hc_mean(be, &(struct di_op_hc_mean){.m = m, .streams = s, .d = d, .x = x, .y = y + d, .ld = 3 * d, .to = NULL}),
                same("hc_mean", ref, y, 12 * n));
            int32_t back[MAX_ROWS]; /* the rows in reverse, some of them nowhere */
            for (int i = 0; i < m; i++)
                back[i] = i % 5 == 3 ? -1 : m - 1 - i;
            FOR_ALL(float, y, NOTHING, 4 * n,
                    be->ops->hc_mean(be, &(struct di_op_hc_mean){.m = m, .streams = s, .d = d, .x = x, .y = y, .ld = d, .to = back}),
                    same("hc_mean to places", ref, y, 4 * n));
            FOR_ALL(float, y, NOTHING, 4 * n, be->ops->gather(be, &(struct di_op_gather){.n = m, .width = d, .rows = back, .x = x, .y = y}),
                    {
                        for (int i = 0; i < m * d; i++)
                            assert_true(y[i] == (back[i / d] < 0 ? 0 : x[back[i / d] * d + i % d]));
                    });
            di_free_aligned(x);
            di_free_aligned(o);
            di_free_aligned(post);
            di_free_aligned(comb);
            di_free_aligned(w);
        }
    close_backends();
}

#define MIX_RESULTS 24 /* pre, post, comb of a row */
static void mix(struct di_backend *be, int m, int d, const float *x, const float *fn, const float *base, float eps, float *out)
{
    static const float scale[3] = {0.5f, 0.7f, 0.9f};
    be->ops->hc_mix(be, &(struct di_op_hc_mix){.m = m,
                                               .streams = 4,
                                               .d = d,
                                               .iters = 20,
                                               .eps = eps,
                                               .norm_eps = 1e-20f,
                                               .x = x,
                                               .fn = fn,
                                               .base = base,
                                               .scale = scale,
                                               .pre = out,
                                               .post = out + 4 * m,
                                               .comb = out + 8 * m});
}

static void test_hc_mix(void **state)
{
    (void)state;
    open_backends(&small);
    for (size_t k = STRIDE - 1; k < COUNT(widths); k += STRIDE)
        for (size_t c = 0; c < COUNT(counts); c++) {
            int d = widths[k], m = counts[c];
            size_t width = 4 * (size_t)d, bytes = 4 * MIX_RESULTS * (size_t)m;
            float *x = alloc(4 * width * (size_t)m), *fn = alloc(4 * 24 * width), base[24], one[MIX_RESULTS];
            fill_bf16(x, width * (size_t)m, 2);
            fill(fn, 24 * width, 1.0f / sqrtf((float)width));
            fill(base, 24, 1);
            FOR_ALL(float, y, NOTHING, bytes, mix(be, m, d, x, fn, base, 1e-6f, y), {
                near_f32("hc_mix", ref, y, MIX_RESULTS * (size_t)m, 0, 2e-6f);
                for (int i = 0; i < m; i++) { /* alone: the same bits */
                    mix(be, 1, d, x + (size_t)i * width, fn, base, 1e-6f, one);
                    same("hc_mix pre", y + 4 * i, one, 16);
                    same("hc_mix post", y + 4 * m + 4 * i, one + 4, 16);
                    same("hc_mix comb", y + 8 * m + 16 * i, one + 8, 64);
                }
            });
            di_free_aligned(x);
            di_free_aligned(fn);
        }
    close_backends();
}

/* With weights 0 and no epsilon, pre is sigmoid(base): e^x seen through 1 / (1 + e^-x), which adds at most 2 ulp. Then the check vector
 * of spec §5.2. */
static void test_sigmoid_and_sinkhorn(void **state)
{
    (void)state;
    open_backends(&small);
    float x[128], *fn = alloc(4 * 24 * 128), base[24] = {0}, out[MIX_RESULTS];
    fill_bf16(x, 128, 1);
    memset(fn, 0, 4 * 24 * 128);
    for (int b = 1; b < n_backends; b += 3) {
        struct di_backend *be = backends[b];
        for (int i = -87000; i < 90000; i += 4 * STRIDE) {
            for (int s = 0; s < 4; s++)
                base[s] = (float)(i + s) * 1e-3f;
            mix(be, 1, 32, x, fn, base, 0, out);
            for (int s = 0; s < 4; s++) {
                double want = 1 / (1 + exp(-(double)base[s]));
                if (fabs(out[s] - want) > want * 4 * 0x1p-24)
                    fail_msg("sigmoid(%.9g) = %.9g instead of %.9g", base[s], out[s], want);
            }
        }
        base[0] = 200, base[1] = -200, base[2] = NAN, base[3] = -89;
        mix(be, 1, 32, x, fn, base, 0, out);
        assert_true(out[0] == 1 && out[1] == 0 && isnan(out[2]) && out[3] < 1e-38f);

        static const float pre[4] = {0.2994339f, 0.3893618f, 0.3543447f, 0.4501670f},
                           row0[4] = {0.2249784f, 0.2932059f, 0.2568364f, 0.2249783f};
        for (int i = 0; i < 128; i++)
            x[i] = 1;
        for (int i = 0; i < 24; i++) {
            base[i] = 0.05f * (float)(7 * i % 11 - 5);
            for (int j = 0; j < 128; j++)
                fn[i * 128 + j] = (0.1f * (float)i - 1.2f) / 128;
        }
        mix(be, 1, 32, x, fn, base, 1e-6f, out);
        near_f32("pre", pre, out, 4, 0, 1e-6f);
        near_f32("comb", row0, out + 8, 4, 0, 1e-6f);
        memset(fn, 0, 4 * 24 * 128);
    }
    di_free_aligned(fn);
    close_backends();
}

static void test_engram(void **state)
{
    (void)state;
    open_backends(&small);
    static const int shapes[][2] = {{3, 32}, {24, 256}, {6, 64}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        int cols = shapes[s][0], hd = shapes[s][1], m = 11;
        size_t n = (size_t)(m * cols * hd), table_bytes = 1000 * (size_t)hd;
        uint8_t *table = alloc(table_bytes), *scale = alloc(table_bytes / 32);
        int64_t *idx = alloc(8 * (size_t)(m * cols));
        for (size_t i = 0; i < table_bytes; i++)
            table[i] = (uint8_t)((rnd() & 0x7F) == 0x7F ? 0 : rnd()), table[i] = (table[i] & 0x7F) == 0x7F ? 1 : table[i];
        for (size_t i = 0; i < table_bytes / 32; i++)
            scale[i] = (uint8_t)(i % 9 ? 100 + rnd() % 50 : rnd() % 240);
        for (int i = 0; i < m * cols; i++)
            idx[i] = rnd() % 8 ? (int64_t)(rnd() % 1000) : -1;
        FOR_ALL(float, y, NOTHING, 4 * n,
                be->ops->engram_gather(
                    be, &(struct di_op_engram_gather){.m = m, .cols = cols, .hd = hd, .idx = idx, .table = table, .scale = scale, .e = y}),
                same("engram_gather", ref, y, 4 * n));
        di_free_aligned(table);
        di_free_aligned(scale);
        di_free_aligned(idx);
    }
    for (size_t k = STRIDE - 1; k < COUNT(widths); k += STRIDE) {
        int d = widths[k], m = 9;
        size_t n = (size_t)(m * d);
        float *x = alloc(16 * n), *kv = alloc(20 * n), *qk = alloc(16 * (size_t)d);
        uint8_t kind[9] = {[1] = DI_ROW_IMAGE, [5] = DI_ROW_PADDING};
        fill_bf16(x, 4 * n, 2);
        fill_bf16(kv, 5 * n, 2);
        fill(qk, 4 * (size_t)d, 1);
        memset(x, 0, 16 * (size_t)d);
        FOR_ALL(
            float, y, x, 16 * n,
            be->ops->engram_gate(be,
                                 &(struct di_op_engram_gate){
                                     .m = m, .streams = 4, .d = d, .eps = 1e-20f, .x = y, .kv = kv, .qk = qk, .kind = k % 2 ? kind : NULL}),
            near_bf16("engram_gate", ref, y, 4 * n, 1, 1e-6f));
        di_free_aligned(x);
        di_free_aligned(kv);
        di_free_aligned(qk);
    }
    close_backends();
}

/* ---------------------------------------------------------------- cached state */

#define SLOTS 3
struct world {
    struct di_kv kv;
    int32_t *page_store;
    size_t blocks_bytes, state_bytes;
};

static void fill_bytes(uint8_t *p, size_t n, unsigned least, unsigned range)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(least + rnd() % range);
}

/* Rings, tails, and the compressed rows and keys of `context` tokens of every slot, in shuffled blocks: any codes, scales of moderate size;
 * keys of about 2^key_exponent. */
static void world_create(struct world *w, const struct di_kv_layout *l, int context, int key_exponent)
{
    int per_slot = (context + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS, n = per_slot * SLOTS;
    size_t d = (size_t)l->d, di = (size_t)l->di;
    w->page_store = alloc(4 * (size_t)n);
    for (int i = 0; i < n; i++)
        w->page_store[i] = (int32_t)((int64_t)i * 7919 % n); /* a permutation: 7919 is a prime that does not divide n */
    assert_true(n % 7919 != 0);
    w->blocks_bytes = (size_t)n * l->block_bytes;
    w->state_bytes = SLOTS * di_kv_state_bytes(l);
    w->kv = (struct di_kv){.layout = l,
                           .blocks = alloc(w->blocks_bytes),
                           .state = alloc(w->state_bytes),
                           .state_stride = di_kv_state_bytes(l),
                           .pages = w->page_store,
                           .pages_per_slot = per_slot};
    float x[512];
    for (int s = 0; s < SLOTS; s++) {
        fill(di_kv_tail_row(&w->kv, s, 0, 0), l->tail_bytes / 4, 2);
        for (int layer = 0; layer < l->ring_layers; layer++)
            for (int p = 0; p < DI_RING_ROWS; p++) {
                fill_bf16(x, d, 2);
                di_q8_pack(x, d, di_kv_window_row(&w->kv, s, layer, p));
            }
        for (int src = 0; src < l->n_sources; src++)
            for (int j = 0; j < per_slot * DI_BLOCK_TOKENS / l->ratio[src]; j++) {
                uint8_t *comp = di_kv_comp_row(&w->kv, s, src, j), *key = di_kv_key_row(&w->kv, s, src, j);
                fill_bytes(comp, d / 2, 0, 256);
                fill_bytes(comp + d / 2, d / 16, 1, 0x38); /* E4M3 up to 1, subnormals too */
                fill_bytes(key, di / 2, 0, 256);
                fill_bytes(key + di / 2, di / 32, (unsigned)(124 + key_exponent), 4);
            }
    }
}
static void world_destroy(struct world *w)
{
    di_free_aligned(w->kv.state);
    di_free_aligned(w->kv.blocks);
    di_free_aligned(w->page_store);
}

struct step {
    struct di_chunk chunks[SLOTS];
    int32_t pos[MAX_ROWS], chunk[MAX_ROWS], closed[MAX_ROWS];
    struct di_rows rows;
    int n_closed;
};
/* One chunk for each slot: pos0 and n; pos0 -1: n rows of padding. Rows that close a group at the given ratio are listed, and nothing now
 * and then. */
static void step_make(struct step *t, const int (*chunk)[2], int n_chunks, int ratio)
{
    *t = (struct step){.rows = {.n_chunks = n_chunks, .chunks = t->chunks, .pos = t->pos, .chunk = t->chunk}};
    for (int c = 0; c < n_chunks; c++) {
        bool padding = chunk[c][0] < 0;
        t->chunks[c] = (struct di_chunk){padding ? -1 : c, t->rows.m, chunk[c][1], padding ? 0 : chunk[c][0]};
        for (int i = 0; i < chunk[c][1]; i++) {
            int row = t->rows.m++;
            t->pos[row] = t->chunks[c].pos0 + i;
            t->chunk[row] = c;
            if (padding || (t->pos[row] + 1) % ratio == 0)
                t->closed[t->n_closed++] = padding ? -1 : row;
        }
    }
    assert_true(t->rows.m <= MAX_ROWS);
}
/* Row `row` of a step as a step of its own. */
static void step_single(struct step *one, const struct step *t, int row)
{
    int slot = t->chunks[t->chunk[row]].slot;
    const int chunk[SLOTS][2] = {{0, 0}};
    step_make(one, chunk, 1, 1);
    one->rows.m = 1;
    one->chunks[0] = (struct di_chunk){slot, 0, 1, t->pos[row]};
    one->pos[0] = t->pos[row];
    one->chunk[0] = 0;
}

static const int steps[][SLOTS][2] = {{{0, 1}, {1, 1}, {2, 3}},          {{0, 20}, {127, 3}, {128, 2}}, {{7, 30}, {144, 5}, {300, 31}},
                                      {{1001, 2}, {143, 1}, {2047, 40}}, {{-1, 1}, {130, 5}, {-1, 9}},  {{600, 3}, {-1, 2}, {1500, 11}}};

static void test_stores(void **state)
{
    (void)state;
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (size_t t = STRIDE - 1; t < COUNT(steps); t += STRIDE)
            for (int src = 0; src < 2; src++) {
                open_backends(shapes[s]);
                struct world w;
                struct step step;
                const struct di_kv_layout *l = &backends[0]->layout;
                int d = l->d, di = l->di, half = d / 4 > 32 ? 32 : d / 8 * 2, m;
                world_create(&w, l, 2176, 0);
                step_make(&step, steps[t], SLOTS, l->ratio[src]);
                m = step.rows.m;
                size_t n = (size_t)(m * d), a = (size_t)(m * half);
                float *x = alloc(4 * n), *gate = alloc(4 * n), *cosine = alloc(4 * a), *sine = alloc(4 * a);
                uint8_t *wt = bf16_weights((size_t)d, 1);
                fill(cosine, a, 1);
                fill(sine, a, 1);
                fill_integers(x, n);
                size_t row_bytes = (size_t)m * l->window_row_bytes;
                FOR_ALL(uint8_t, y, NOTHING, row_bytes,
                        be->ops->window_store(
                            be,
                            &(struct di_op_window_store){
                                .m = m, .d = d, .half = half, .eps = 1e-20f, .kv = x, .w = wt, .cos = cosine, .sin = sine, .rows = y}),
                        same("window_store", ref, y, row_bytes));
                FOR_ALL(
                    uint8_t, y, w.kv.blocks, w.blocks_bytes,
                    {
                        struct di_kv kv = w.kv;
                        kv.blocks = y;
                        be->ops->key_store(be, &(struct di_op_key_store){.n_closed = step.n_closed,
                                                                         .d = di,
                                                                         .half = half < di / 2 ? half : di / 2,
                                                                         .closed = step.closed,
                                                                         .rows = &step.rows,
                                                                         .kv = &kv,
                                                                         .src = src,
                                                                         .eps = 1e-20f,
                                                                         .k = x,
                                                                         .w = wt,
                                                                         .cos = cosine,
                                                                         .sin = sine});
                        be->ops->comp_store(be, &(struct di_op_comp_store){.n_closed = step.n_closed,
                                                                           .d = d,
                                                                           .half = half,
                                                                           .closed = step.closed,
                                                                           .rows = &step.rows,
                                                                           .kv = &kv,
                                                                           .src = src,
                                                                           .latent = x,
                                                                           .cos = cosine,
                                                                           .sin = sine});
                    },
                    same("key_store and comp_store", ref, y, w.blocks_bytes));
                fill(x, n, 3);
                fill(gate, n, t % 2 ? 3 : 90);
                FOR_ALL(float, y, NOTHING, 4 * n,
                        be->ops->compress(be, &(struct di_op_compress){.n_closed = step.n_closed,
                                                                       .closed = step.closed,
                                                                       .rows = &step.rows,
                                                                       .kv = &w.kv,
                                                                       .src = src,
                                                                       .d = d,
                                                                       .eps = 1e-20f,
                                                                       .kv_act = x,
                                                                       .kv_f32 = x,
                                                                       .gate = gate,
                                                                       .w = wt,
                                                                       .latent = y}),
                        near_bf16("compress", ref, y, (size_t)(step.n_closed * d), 2, 0));
                di_free_aligned(x);
                di_free_aligned(gate);
                di_free_aligned(cosine);
                di_free_aligned(sine);
                di_free_aligned(wt);
                world_destroy(&w);
                close_backends();
            }
}

/* Ascending random subset of [0, n) with at most k members. */
static int32_t subset(int32_t n, int32_t k, int32_t *out)
{
    int32_t count = 0;
    for (int32_t j = 0; j < n && count < k; j++)
        if ((int32_t)(rnd() % (uint32_t)n) < k)
            out[count++] = j;
    return count;
}

static void attend_rows_alone(const struct di_op_attention *whole, const struct step *step, const struct world *w, const float *o);

static void test_attention(void **state)
{
    (void)state;
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (size_t t = STRIDE - 1; t < COUNT(steps); t += STRIDE)
            for (int src = -1; src < 2; src++) {
                open_backends(shapes[s]);
                struct world w;
                struct step step;
                const struct di_kv_layout *l = &backends[0]->layout;
                int d = l->d, heads = config.num_attention_heads, topk = config.index_topk, m;
                world_create(&w, l, 2176, 0);
                step_make(&step, steps[t], SLOTS, 1);
                m = s == 3 ? 3 + (int)t : step.rows.m; /* at full size a few rows tell enough */
                size_t n = (size_t)(m * heads * d);
                float *q = alloc(4 * n), *x = alloc(4 * (size_t)d), sink[64];
                uint8_t *rows = alloc((size_t)step.rows.m * l->window_row_bytes);
                int32_t sel[MAX_ROWS * 512], sel_n[MAX_ROWS], floor[MAX_ROWS];
                fill_bf16(q, n, t == 2 ? 40 : 4); /* 40: a few keys take all the weight */
                fill(sink, 64, 5);
                for (int i = 0; i < step.rows.m; i++) {
                    fill_bf16(x, (size_t)d, 2);
                    di_q8_pack(x, (size_t)d, rows + (size_t)i * l->window_row_bytes);
                    int32_t visible = (step.pos[i] + 1) / (src < 0 ? 1 : l->ratio[src]); /* of padding: a list that nobody may read */
                    sel_n[i] = visible <= topk ? visible : 0;
                    for (int32_t j = 0; j < sel_n[i]; j++)
                        sel[i * topk + j] = j;
                    if (visible > topk)
                        sel_n[i] = i % 5 ? subset(visible, topk, sel + i * topk) : 0;
                    int32_t back = (int32_t)(rnd() % 40); /* keys that bounded replay leaves */
                    floor[i] = step.pos[i] > back ? step.pos[i] - back : 0;
                }
                step.rows.window_floor = s != 3 && t == 1 ? floor : NULL;
                step.rows.m = m;
                struct di_op_attention op = {.m = m,
                                             .heads = heads,
                                             .d = d,
                                             .window = config.sliding_window,
                                             .layer = 1,
                                             .src = src,
                                             .scale = 1.0f / sqrtf((float)d),
                                             .rows = &step.rows,
                                             .kv = &w.kv,
                                             .window_new = rows,
                                             .sel = sel,
                                             .sel_n = sel_n,
                                             .sel_ld = topk,
                                             .q = q,
                                             .sink = sink,
                                             .o = NULL};
                FOR_ALL(
                    float, y, NOTHING, 4 * n,
                    {
                        op.o = y;
                        be->ops->attention(be, &op);
                    },
                    {
                        near_bf16("attention", ref, y, n, 1, 1e-5f);
                        attend_rows_alone(&op, &step, &w, y);
                    });
                di_free_aligned(q);
                di_free_aligned(x);
                di_free_aligned(rows);
                world_destroy(&w);
                close_backends();
            }
}

/* Row by row, each written to the ring before the next: the same bits as in one chunk. The rings are put back afterwards. */
static void attend_rows_alone(const struct di_op_attention *whole, const struct step *step, const struct world *w, const float *o)
{
    struct di_backend *be = backends[n_backends - 1];
    const struct di_kv_layout *l = w->kv.layout;
    size_t n = (size_t)(whole->heads * whole->d);
    uint8_t *keep = alloc(w->state_bytes);
    float *y = alloc(4 * n);
    memcpy(keep, w->kv.state, w->state_bytes);
    for (int i = 0; i < whole->m; i++) {
        struct step one;
        struct di_op_attention op = *whole;
        step_single(&one, step, i);
        one.rows.window_floor = whole->rows->window_floor ? whole->rows->window_floor + i : NULL;
        op.m = 1;
        op.rows = &one.rows;
        op.window_new += (size_t)i * l->window_row_bytes;
        op.sel += i * op.sel_ld;
        op.sel_n += i;
        op.q = (const float *)op.q + (size_t)i * n;
        op.o = y;
        be->ops->attention(be, &op);
        same("a row alone", o + (size_t)i * n, y, 4 * n);
        be->ops->window_commit(be, &(struct di_op_window_commit){&one.rows, &w->kv, op.layer, op.window_new});
    }
    memcpy(w->kv.state, keep, w->state_bytes);
    di_free_aligned(keep);
    di_free_aligned(y);
}

/* ---------------------------------------------------------------- selection */

/* The plainest top-k: repeatedly the first of the largest. score < -1e29 is not allowed. */
static int32_t plain_topk(const float *score, int32_t n, int32_t k, int32_t *out)
{
    bool *taken = alloc((size_t)n + 1);
    memset(taken, 0, (size_t)n + 1);
    int32_t count = 0;
    for (; count < k; count++) {
        int32_t best = -1;
        for (int32_t j = 0; j < n; j++)
            if (!taken[j] && score[j] > -1e29f && (best < 0 || score[j] > score[best]))
                best = j;
        if (best < 0)
            break;
        taken[best] = true;
    }
    count = 0;
    for (int32_t j = 0; j < n; j++)
        if (taken[j])
            out[count++] = j;
    di_free_aligned(taken);
    return count;
}

static void same_list(const char *what, const int32_t *want, int32_t n, const int32_t *got, int32_t got_n)
{
    if (n != got_n)
        fail_msg("%s: %d entries instead of %d", what, got_n, n);
    same(what, want, got, 4 * (size_t)n);
}

struct lists {
    int32_t sel[MAX_ROWS * 512], sel_n[MAX_ROWS], cand[MAX_ROWS * 64], cand_n[MAX_ROWS];
};

/* The lists that follow from the op's own scores. */
static void check_lists(const struct di_op_index_select *op, const struct lists *l)
{
    int32_t want[512];
    for (int i = 0; i < op->m; i++) {
        int32_t n = di_slot_of_row(op->rows, i) < 0 ? 0 : (op->rows->pos[i] + 1) / op->kv->layout->ratio[op->src];
        int32_t size = op->cand_block_size, blocks = (n + size - 1) / size;
        const float *score = op->scores + i * op->scores_ld;
        same_list("selection", want, plain_topk(score, n, op->topk, want), l->sel + i * op->topk, l->sel_n[i]);
        if (op->mode != DI_CAND_PRODUCE)
            continue;
        float *top = alloc(4 * (size_t)blocks);
        for (int32_t b = 0; b < blocks; b++) {
            top[b] = -1e30f;
            for (int32_t j = b * size; j < n && j < (b + 1) * size; j++)
                top[b] = fmaxf(top[b], score[j]);
        }
        if (blocks)
            top[blocks - 1] = INFINITY;
        same_list("candidates", want, plain_topk(top, blocks, op->cand_blocks, want), l->cand + i * op->cand_blocks, l->cand_n[i]);
        di_free_aligned(top);
    }
}

/* Without scores and row by row, on the back end with the most threads: the same lists. */
static void select_again(const struct di_op_index_select *op, const struct step *step, const struct lists *want)
{
    struct di_backend *be = backends[n_backends - 1];
    struct lists *l = alloc(sizeof *l);
    *l = *want;
    struct di_op_index_select o = *op;
    o.scores = NULL, o.sel = l->sel, o.sel_n = l->sel_n, o.cand = l->cand, o.cand_n = l->cand_n;
    memset(l->sel_n, 0x5A, sizeof l->sel_n);
    be->ops->index_select(be, &o);
    for (int i = 0; i < op->m; i++)
        same_list("without scores", want->sel + i * op->topk, want->sel_n[i], l->sel + i * op->topk, l->sel_n[i]);
    for (int i = 0; i < op->m; i++) {
        struct step one;
        struct di_op_index_select r = *op;
        step_single(&one, step, i);
        r.m = 1, r.rows = &one.rows, r.scores = NULL, r.sel = l->sel, r.sel_n = l->sel_n;
        r.cand = l->cand + i * op->cand_blocks, r.cand_n = l->cand_n + i;
        r.q = (const float *)op->q + (size_t)i * (size_t)(op->heads * op->d), r.w = (const float *)op->w + i * op->heads;
        be->ops->index_select(be, &r);
        same_list("a row alone", want->sel + i * op->topk, want->sel_n[i], l->sel, *l->sel_n);
        if (op->mode == DI_CAND_PRODUCE)
            same_list("its candidates", want->cand + i * op->cand_blocks, want->cand_n[i], r.cand, *r.cand_n);
    }
    di_free_aligned(l);
}

static void select_case(const struct shape *s, size_t t, int src, enum di_candidates mode, bool ties)
{
    struct world w;
    struct step step;
    const struct di_kv_layout *l = &backends[0]->layout;
    int d = l->di, heads = s->index_heads, half = d / 4, ld = 2200;
    world_create(&w, l, 2176, ties ? 0 : 2);
    if (ties) /* most keys are zero, all of their scores equal */
        for (int slot = 0; slot < SLOTS; slot++)
            for (int j = 0; j < 2176 / l->ratio[src]; j++)
                if (rnd() % 4)
                    memset(di_kv_key_row(&w.kv, slot, src, j), 0, (size_t)d / 2);
    step_make(&step, steps[t], SLOTS, l->ratio[src]);
    int m = step.rows.m;
    size_t n = (size_t)(m * heads * d), bytes = 4 * (size_t)m * (size_t)ld;
    float *q = alloc(4 * n), *wt = alloc(4 * (size_t)(m * heads)), *angle = alloc(4 * (size_t)(m * half));
    fill_bf16(q, n, 2);
    fill(angle, (size_t)(m * half), 1);
    backends[0]->ops->index_query(
        backends[0], &(struct di_op_index_query){.m = m, .heads = heads, .d = d, .half = half, .q = q, .cos = angle, .sin = angle});
    fill_bf16(wt, (size_t)(m * heads), 1);
    for (int i = 0; ties && i < m * heads; i++)
        wt[i] = i / heads % 2 ? -fabsf(wt[i]) : wt[i]; /* all negative: the zeros win */
    struct lists *lists = alloc(sizeof *lists);
    for (int i = 0; i < m && mode == DI_CAND_FILTER; i++) {
        int32_t visible = di_slot_of_row(&step.rows, i) < 0 ? 0 : (step.pos[i] + 1) / l->ratio[src];
        int32_t blocks = (visible + s->cand_size - 1) / s->cand_size;
        lists->cand_n[i] = blocks ? subset(blocks, i % 3 ? s->cand_blocks : 3, lists->cand + i * s->cand_blocks) : 0;
    }
    struct di_op_index_select op = {.m = m,
                                    .heads = heads,
                                    .d = d,
                                    .topk = s->topk,
                                    .src = src,
                                    .rows = &step.rows,
                                    .kv = &w.kv,
                                    .q = q,
                                    .w = wt,
                                    .sel = lists->sel,
                                    .sel_n = lists->sel_n,
                                    .mode = mode,
                                    .cand_blocks = s->cand_blocks,
                                    .cand_block_size = s->cand_size,
                                    .cand = lists->cand,
                                    .cand_n = lists->cand_n,
                                    .scores = NULL,
                                    .scores_ld = ld};
    FOR_ALL(
        float, y, NOTHING, bytes,
        {
            op.scores = y;
            be->ops->index_select(be, &op);
        },
        {
            near_f32("index scores", ref, y, (size_t)m * (size_t)ld, 1e-4f, 1e-5f * (float)heads);
            check_lists(&op, lists);
            select_again(&op, &step, lists);
        });
    di_free_aligned(q);
    di_free_aligned(wt);
    di_free_aligned(angle);
    di_free_aligned(lists);
    world_destroy(&w);
}

static void test_index_select(void **state)
{
    (void)state;
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        open_backends(shapes[s]);
        for (size_t t = STRIDE - 1; t < COUNT(steps); t += STRIDE)
            for (int i = 0; i < 12; i++)
                select_case(shapes[s], t, i & 1, (enum di_candidates)(i / 2 % 3), i >= 6);
        close_backends();
    }
}

/* A long context through the part of every thread: scores rise and fall, so that lists fill and shrink many times. */
static void test_long_select(void **state)
{
    (void)state;
    struct shape s = full;
    s.context = 40960;
    open_backends(&s);
    struct world w;
    const struct di_kv_layout *l = &backends[0]->layout;
    int d = s.index_dim, heads = s.index_heads, n = 40000, src = 1;
    world_create(&w, l, 40960, 0);
    float x[128], *q = alloc(4 * (size_t)(heads * d)), *wt = alloc(4 * (size_t)heads), *first = NULL;
    for (int j = 0; j < n; j++) { /* rising, then falling, in steps that are shared by neighbours */
        for (int c = 0; c < d; c++)
            x[c] = (float)(j < n / 2 ? j / 3 : (n - j) / 3) * 0x1p-14f * (c == 5 ? 1.0f : 0.25f);
        di_q4e_pack(x, (size_t)d, di_kv_key_row(&w.kv, 0, src, j));
    }
    for (int i = 0; i < heads * d; i++)
        q[i] = 1;
    for (int h = 0; h < heads; h++)
        wt[h] = 0.5f;
    struct step step;
    const int chunk[1][2] = {{n - 1, 1}};
    step_make(&step, chunk, 1, 1);
    for (int b = 1; b < n_backends; b++) {
        struct lists *lists = alloc(sizeof *lists);
        float *scores = alloc(4 * (size_t)n);
        struct di_op_index_select op = {.m = 1,
                                        .heads = heads,
                                        .d = d,
                                        .topk = s.topk,
                                        .src = src,
                                        .rows = &step.rows,
                                        .kv = &w.kv,
                                        .q = q,
                                        .w = wt,
                                        .sel = lists->sel,
                                        .sel_n = lists->sel_n,
                                        .mode = DI_CAND_PRODUCE,
                                        .cand_blocks = s.cand_blocks,
                                        .cand_block_size = s.cand_size,
                                        .cand = lists->cand,
                                        .cand_n = lists->cand_n,
                                        .scores = scores,
                                        .scores_ld = n};
        backends[b]->ops->index_select(backends[b], &op);
        check_lists(&op, lists);
        if (!first)
            first = scores;
        else
            same("long scores", first, scores, 4 * (size_t)n);
        if (first != scores)
            di_free_aligned(scores);
        di_free_aligned(lists);
    }
    di_free_aligned(first);
    di_free_aligned(q);
    di_free_aligned(wt);
    world_destroy(&w);
    close_backends();
}

/* A step without rows: no op looks at anything. */
static void test_no_rows(void **state)
{
    (void)state;
    open_backends(&full);
    struct di_rows rows = {0};
    struct di_kv kv = {.layout = &backends[0]->layout};
    for (int b = 0; b < n_backends; b++) {
        struct di_backend *be = backends[b];
        const struct di_ops *ops = be->ops;
        struct di_weight w = {.type = DI_W_BF16, .n = 64, .k = 64, .groups = 1};
        struct di_expert expert = {w, w, w};
        ops->embed(be, &(struct di_op_embed){.streams = 4, .d = 64});
        ops->rmsnorm(be, &(struct di_op_rmsnorm){.d = 64});
        ops->hc_mix(be, &(struct di_op_hc_mix){.streams = 4, .d = 64, .iters = 20});
        ops->hc_norm(be, &(struct di_op_hc_norm){.streams = 4, .d = 64});
        ops->hc_expand(be, &(struct di_op_hc_expand){.streams = 4, .d = 64});
        ops->hc_mean(be, &(struct di_op_hc_mean){.streams = 4, .d = 64, .ld = 64});
        ops->quant8(be, &(struct di_op_quant8){.k = 64});
        ops->linear(be, &(struct di_op_linear){.w = &w});
        ops->rope_angles(be, &(struct di_op_rope_angles){.half = 32});
        ops->rope(be, &(struct di_op_rope){.heads = 64, .d = 512, .half = 32});
        ops->window_store(be, &(struct di_op_window_store){.d = 512, .half = 32});
        ops->window_commit(be, &(struct di_op_window_commit){.rows = &rows, .kv = &kv});
        ops->compress(be, &(struct di_op_compress){.rows = &rows, .kv = &kv, .d = 512});
        ops->tail_commit(be, &(struct di_op_tail_commit){.rows = &rows, .kv = &kv, .d = 512});
        ops->key_store(be, &(struct di_op_key_store){.d = 128, .half = 32, .rows = &rows, .kv = &kv});
        ops->comp_store(be, &(struct di_op_comp_store){.d = 512, .half = 32, .rows = &rows, .kv = &kv});
        ops->gather(be, &(struct di_op_gather){.width = 64});
        ops->scale(be, &(struct di_op_scale){0});
        ops->index_query(be, &(struct di_op_index_query){.heads = 32, .d = 128, .half = 32});
        ops->index_select(be,
                          &(struct di_op_index_select){.heads = 32, .d = 128, .topk = 512, .rows = &rows, .kv = &kv, .cand_blocks = 64});
        ops->attention(be, &(struct di_op_attention){.heads = 64, .d = 512, .window = 128, .rows = &rows, .kv = &kv, .sel_ld = 512});
        ops->router(be, &(struct di_op_router){.d = 64, .experts = 64, .k = 2, .w = &w});
        ops->moe(be, &(struct di_op_moe){.d = 64, .f = 64, .k = 2, .experts = &expert, .shared = &expert});
        ops->engram_gather(be, &(struct di_op_engram_gather){.cols = 24, .hd = 256});
        ops->engram_gate(be, &(struct di_op_engram_gate){.streams = 4, .d = 64});
        ops->sample(be, &(struct di_op_sample){0});
    }
    close_backends();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_and_embed), cmocka_unit_test(test_quant8),      cmocka_unit_test(test_rope),
        cmocka_unit_test(test_streams),        cmocka_unit_test(test_hc_mix),      cmocka_unit_test(test_sigmoid_and_sinkhorn),
        cmocka_unit_test(test_engram),         cmocka_unit_test(test_stores),      cmocka_unit_test(test_attention),
        cmocka_unit_test(test_index_select),   cmocka_unit_test(test_long_select), cmocka_unit_test(test_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
