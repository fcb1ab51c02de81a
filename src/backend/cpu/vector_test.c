/* Every fast op of rows, of every usable instruction set, against the reference, over edge shapes; and bit for bit against itself: any number
 * of threads, whole chunks against single rows, one instruction set against the other. vector_cache_test.c: the ops on cached rows. */
#include "testing/vector_fixture.h"

/* ---------------------------------------------------------------- dense rows */

/* Any exponent from 2^-40 to 2^20, and zeros. */
static void fill_wide(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rnd() % 8 ? di_round_bf16(ldexpf(uniform(), (int)(rnd() % 60) - 40)) : 0;
}

static const int widths[] = {32, 64, 96, 128, 512, 5120};
static const int counts[] = {1, 2, 3, 7, 9, 64, 77};

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
                float, u, NOTHING, 4 * n,
                {
                    float *y = alloc(4 * n);
                    be->ops->hc_norm(be, &(struct di_op_hc_norm){
                                             .m = m, .streams = s, .d = d, .eps = 1e-20f, .x = x, .pre = post, .w = w, .y = y, .u = u});
                    di_free_aligned(y);
                },
                same("hc_norm: what is collapsed", ref, u, 4 * n));
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

/* The heads of the draft. A row's bits are its own: alone they are the same. */
static void test_heads(void **state)
{
    static const int shapes_of[][3] = {{16, 64, 70}, {48, 96, 1000}, {256, 512, 333}}; /* rank, d, vocab */
    (void)state;
    open_backends(&small);
    for (size_t s = 0; s < COUNT(shapes_of); s++)
        for (int m = 1; m <= 13; m += 4) {
            int rank = shapes_of[s][0], d = shapes_of[s][1], vocab = shapes_of[s][2];
            size_t n = (size_t)(m * vocab), r = (size_t)(m * rank);
            uint8_t *embed = bf16_weights((size_t)(vocab * rank), 1), *head = bf16_weights((size_t)(vocab * rank), 1),
                    *w = bf16_weights((size_t)(d + rank), 1);
            float *logits = alloc(4 * n), *h = alloc(4 * (size_t)(m * d)), *e = alloc(4 * r), z[13], one[1],
                  *row = alloc(4 * (size_t)vocab);
            int32_t ids[13];
            fill(logits, n, 10);
            fill_bf16(h, (size_t)(m * d), 2);
            for (int i = 0; i < m; i++)
                ids[i] = i == 3 ? -1 : i == 4 ? vocab : (int32_t)(rnd() % (unsigned)vocab);
            FOR_ALL(
                float, y, logits, 4 * n,
                be->ops->markov(be,
                                &(struct di_op_markov){
                                    .m = m, .vocab = vocab, .rank = rank, .ids = ids, .embed = embed, .head = head, .e = e, .logits = y}),
                {
                    near_f32("markov", ref, y, n, 1e-5f, 1e-4f);
                    for (int i = 0; i < m; i++) {
                        memcpy(row, logits + i * vocab, 4 * (size_t)vocab);
                        be->ops->markov(be, &(struct di_op_markov){.m = 1,
                                                                   .vocab = vocab,
                                                                   .rank = rank,
                                                                   .ids = ids + i,
                                                                   .embed = embed,
                                                                   .head = head,
                                                                   .e = e + i * rank,
                                                                   .logits = row});
                        same("markov of a row alone", y + i * vocab, row, 4 * (size_t)vocab);
                    }
                });
            for (int i = 0; i < m; i++) {
                float sum = 0;
                for (int c = 0; c < rank; c++)
                    sum += fabsf(e[i * rank + c]);
                assert_int_equal(sum == 0, ids[i] < 0 || ids[i] >= vocab);
            }
            FOR_ALL(float, y, z, 4 * (size_t)m,
                    be->ops->confidence(be, &(struct di_op_confidence){.m = m, .d = d, .rank = rank, .h = h, .e = e, .w = w, .z = y}), {
                        near_f32("confidence", ref, y, (size_t)m, 1e-4f, 1e-3f);
                        be->ops->confidence(
                            be, &(struct di_op_confidence){
                                    .m = 1, .d = d, .rank = rank, .h = h + (m - 1) * d, .e = e + (m - 1) * rank, .w = w, .z = one});
                        same("confidence of a row alone", y + m - 1, one, sizeof one);
                    });
            di_free_aligned(embed);
            di_free_aligned(head);
            di_free_aligned(w);
            di_free_aligned(logits);
            di_free_aligned(h);
            di_free_aligned(e);
            di_free_aligned(row);
        }
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
        ops->raw_commit(be, &(struct di_op_raw_commit){.rows = &rows, .kv = &kv, .d = 512});
        ops->key_store(be, &(struct di_op_key_store){.d = 128, .half = 32, .rows = &rows, .kv = &kv});
        ops->comp_store(be, &(struct di_op_comp_store){.d = 512, .half = 32, .rows = &rows, .kv = &kv});
        ops->gather(be, &(struct di_op_gather){.width = 64});
        ops->scale(be, &(struct di_op_scale){0});
        ops->markov(be, &(struct di_op_markov){.vocab = 64, .rank = 48});
        ops->confidence(be, &(struct di_op_confidence){.d = 64, .rank = 48});
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
        cmocka_unit_test(test_norm_and_embed), cmocka_unit_test(test_quant8), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_streams),        cmocka_unit_test(test_hc_mix), cmocka_unit_test(test_sigmoid_and_sinkhorn),
        cmocka_unit_test(test_engram),         cmocka_unit_test(test_heads),  cmocka_unit_test(test_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
