/* Matrix ops of every instruction set that this processor runs, against double precision and the reference; and bit equality of a row at
 * any row count and thread count. */
#include "backend/cpu/ref.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define MAX_M 260
#define D 320 /* hidden size of the expert tests */
#define F 96
#define EXPERTS 24
#define TOP_K 4

static uint64_t rng_state = 1;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) ^ (uint32_t)(rng_state >> 11);
}
static float uniform(void) /* in (-1, 1), bf16 */
{
    return di_round_bf16(((float)(rng() & 0xFFFFFF) + 0.5f) * 0x1p-23f - 1.0f);
}

static struct di_config config = {.hidden_size = 8192,
                                  .q_lora_rank = 32,
                                  .moe_intermediate_size = F,
                                  .head_dim = 128,
                                  .num_attention_heads = 4,
                                  .o_groups = 2,
                                  .o_lora_rank = 32,
                                  .n_routed_experts = EXPERTS,
                                  .num_experts_per_tok = TOP_K};

static void cpu_init(struct di_cpu *cpu, enum di_cpu_isa isa, int threads)
{
    *cpu = (struct di_cpu){.isa = isa, .threads = threads, .ops = di_cpu_ref_ops};
    cpu->be = (struct di_backend){.ops = &cpu->ops, .params = {.config = &config, .max_rows = MAX_M}};
    assert_true(di_numerics_by_name("bf16", &cpu->be.params.numerics));
    if (isa != DI_ISA_REF)
        di_cpu_linear_ops(&cpu->ops, isa);
    struct di_cpu_scratch s = {0, 0};
    if (isa == DI_ISA_REF)
        di_cpu_ref_scratch(&cpu->be.params, &s);
    else
        di_cpu_linear_scratch(&cpu->be.params, isa, &s);
    cpu->shared_bytes = s.shared;
    cpu->per_thread_bytes = s.per_thread;
    cpu->shared = di_malloc_aligned(s.shared);
    cpu->per_thread = di_malloc_aligned(cpu->per_thread_bytes * (size_t)threads);
    assert_non_null(cpu->shared);
    assert_non_null(cpu->per_thread);
    memset(cpu->shared, 0xFF, s.shared); /* NaN: scratch must not be read before it is written */
    memset(cpu->per_thread, 0xFF, cpu->per_thread_bytes * (size_t)threads);
    assert_int_equal(di_pool_create(threads, &cpu->pool, NULL), DI_OK);
}
static void cpu_fini(struct di_cpu *cpu)
{
    di_pool_destroy(cpu->pool);
    di_free_aligned(cpu->shared);
    di_free_aligned(cpu->per_thread);
}

/* ---------------------------------------------------------------- weights */

enum scales { NEAR, WIDE, ONE_TINY };

static uint8_t scale_byte(enum scales how)
{
    switch (how) {
    case NEAR: return (uint8_t)(118 + rng() % 8);
    case WIDE: return (uint8_t)(60 + rng() % 120);
    case ONE_TINY: return (uint8_t)(rng() % 2 ? 127 : 0);
    }
    return 127;
}

/* Random weight; all code values but NaN occur, minus zero and subnormals often. */
static struct di_weight make_weight(enum di_wtype type, int n, int k, int groups, enum scales how)
{
    struct di_weight w = {.type = type, .n = n, .k = k, .groups = groups};
    size_t count = (size_t)n * (size_t)k;
    size_t bytes = type == DI_W_BF16 ? 2 * count : type == DI_W_FP8_TILE32 ? count : count / 2;
    size_t scales = type == DI_W_BF16 ? 0 : type == DI_W_FP8_TILE32 ? count / 1024 : count / 32;
    uint8_t *data = malloc(bytes), *scale = malloc(scales + 1);
    assert_non_null(data);
    assert_non_null(scale);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(rng() % 8 ? rng() : rng() & 0x87);
    for (size_t i = 0; i < bytes && type == DI_W_FP8_TILE32; i++)
        data[i] = (data[i] & 0x7F) == 0x7F ? 0 : data[i];
    for (size_t i = 0; i < count && type == DI_W_BF16; i++) {
        uint16_t h = di_f32_to_bf16(uniform());
        memcpy(data + 2 * i, &h, 2);
    }
    for (size_t i = 0; i < scales; i++)
        scale[i] = scale_byte(how);
    w.data = data;
    w.scale = scale;
    return w;
}
static void free_weight(struct di_weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scale);
}
static void *pack(struct di_cpu *cpu, struct di_weight *w)
{
    size_t bytes = cpu->ops.weight_bytes(&cpu->be, w);
    void *p = di_malloc_aligned(bytes);
    assert_non_null(p);
    memset(p, 0xFF, bytes);
    cpu->ops.weight_pack(&cpu->be, w, p);
    assert_ptr_equal(w->packed, p);
    return p;
}

/* ---------------------------------------------------------------- linear */

/* |y - exact| <= 1e-5 * sum |x w| for every output (plus what lies below fp32). */
static void check_linear(const struct di_weight *w, int m, const float *x, const float *y, const char *what)
{
    int per_group = w->n / w->groups;
    float *row = malloc((size_t)w->k * sizeof *row);
    for (int n = 0; n < w->n; n++) {
        ref_weight_row(w, n, row);
        for (int i = 0; i < m; i++) {
            const float *xi = x + ((size_t)i * (size_t)w->groups + (size_t)(n / per_group)) * (size_t)w->k;
            double sum = 0, sum_abs = 0;
            for (int k = 0; k < w->k; k++) {
                double p = (double)row[k] * xi[k];
                sum += p;
                sum_abs += fabs(p);
            }
            double error = fabs(y[(size_t)i * (size_t)w->n + (size_t)n] - sum);
            if (!(error <= 1e-5 * sum_abs + 0x1p-140))
                fail_msg("%s type %d n %d k %d groups %d: row %d output %d is %.9g, not %.9g", what, w->type, w->n, w->k, w->groups, i, n,
                         y[(size_t)i * (size_t)w->n + (size_t)n], sum);
        }
    }
    free(row);
}

static void check_same(const float *a, const float *b, size_t n, const char *what, int m)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) != 0)
            fail_msg("%s: value %zu of %d rows is %.9g, with other rows or threads %.9g", what, i, m, b[i], a[i]);
}

static const int row_counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 33, 64, 96, 97, 128, 129, 200, 257, MAX_M};

static void linear_shape(struct di_cpu *one, struct di_cpu *many, struct di_weight w)
{
    size_t kx = (size_t)w.groups * (size_t)w.k, n = (size_t)w.n;
    const char *isa = di_cpu_isa_name(one->isa);
    float *x = malloc(MAX_M * kx * sizeof *x), *all = malloc(MAX_M * n * sizeof *all), *y = malloc((MAX_M * n + 1) * sizeof *y);
    for (size_t i = 0; i < MAX_M * kx; i++)
        x[i] = rng() % 16 ? uniform() : 0.0f;
    for (size_t i = 0; i < MAX_M * n; i++)
        all[i] = NAN;
    void *packed = pack(one, &w);
    one->ops.linear(&one->be, &(struct di_op_linear){.m = MAX_M, .w = &w, .x = x, .y = all, .out_f32 = true});
    check_linear(&w, MAX_M, x, all, isa);
    for (size_t c = 0; c < sizeof row_counts / sizeof *row_counts; c++) {
        int m = row_counts[c], from = (int)(rng() % (uint32_t)(MAX_M - m + 1));
        struct di_cpu *cpu = c % 2 ? many : one;
        y[(size_t)m * n] = 12345.0f;
        cpu->ops.linear(&cpu->be, &(struct di_op_linear){.m = m, .w = &w, .x = x + (size_t)from * kx, .y = y, .out_f32 = true});
        check_same(all + (size_t)from * n, y, (size_t)m * n, isa, m);
        assert_true(y[(size_t)m * n] == 12345.0f);
    }
    many->ops.linear(&many->be, &(struct di_op_linear){.m = MAX_M, .w = &w, .x = x, .y = y});
    for (size_t i = 0; i < MAX_M * n; i++)
        assert_true(y[i] == di_round_bf16(all[i]));
    di_free_aligned(packed);
    free_weight(&w);
    free(x);
    free(all);
    free(y);
}

static void test_linear(void **state)
{
    static const struct {
        enum di_wtype type;
        int n, k, groups;
    } shapes[] = {
        {DI_W_BF16, 1, 32, 1},           {DI_W_BF16, 17, 96, 1},         {DI_W_BF16, 24, 256, 1},      {DI_W_BF16, 100, 320, 1},
        {DI_W_BF16, 32, 5120, 1},        {DI_W_FP4_ROW32, 1, 32, 1},     {DI_W_FP4_ROW32, 33, 96, 1},  {DI_W_FP4_ROW32, 80, 256, 1},
        {DI_W_FP4_ROW32, 64, 2304, 1},   {DI_W_FP8_TILE32, 32, 32, 1},   {DI_W_FP8_TILE32, 96, 96, 1}, {DI_W_FP8_TILE32, 128, 256, 2},
        {DI_W_FP8_TILE32, 64, 512, 1},   {DI_W_FP8_TILE32, 64, 8192, 1}, {DI_W_BF16, 96, 64, 4},       {DI_W_FP8_TILE32, 256, 128, 8},
        {DI_W_FP8_TILE32, 672, 2304, 1},
    };
    enum di_cpu_isa isa = *(enum di_cpu_isa *)*state;
    struct di_cpu one, many;
    cpu_init(&one, isa, 1);
    cpu_init(&many, isa, 3);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (enum scales how = NEAR; how <= (shapes[i].type == DI_W_BF16 ? NEAR : ONE_TINY); how++)
            linear_shape(&one, &many, make_weight(shapes[i].type, shapes[i].n, shapes[i].k, shapes[i].groups, how));
    cpu_fini(&one);
    cpu_fini(&many);
}

/* Every code at every place of a block, and every scale: one non-zero activation at a time shows the exact product. */
static void test_codes(void **state)
{
    enum di_cpu_isa isa = *(enum di_cpu_isa *)*state;
    struct di_cpu cpu;
    cpu_init(&cpu, isa, 1);
    for (int fp4 = 0; fp4 < 2; fp4++) {
        uint8_t data[256 * 64], scale[256 * 2];
        float x[64 * 64] = {0}, y[64 * 256], row[64];
        struct di_weight w = {.type = fp4 ? DI_W_FP4_ROW32 : DI_W_FP8_TILE32, .n = 256, .k = 64, .groups = 1, .data = data, .scale = scale};
        for (int n = 0; n < 256; n++)
            for (int k = 0; k < 64; k++) /* code n + k at output n */
                data[n * 64 + k] = (uint8_t)(((n + k) & 0x7F) == 0x7F && !fp4 ? 0 : n + k);
        for (int i = 0; i < 512; i++) /* one scale per row (FP4) or tile, never 255 (NaN), bf16 products in range */
            scale[i] = (uint8_t)(fp4 ? 2 + i / 2 % 240 : 20 + 13 * (i / 2 % 16));
        for (int i = 0; i < 64; i++)
            x[i * 64 + i] = 1;
        void *packed = pack(&cpu, &w);
        cpu.ops.linear(&cpu.be, &(struct di_op_linear){.m = 64, .w = &w, .x = x, .y = y, .out_f32 = true});
        for (int n = 0; n < 256; n++) {
            ref_weight_row(&w, n, row);
            for (int k = 0; k < 64; k++)
                if (y[k * 256 + n] != row[k])
                    fail_msg("%s fp4 %d output %d k %d: %.9g, not %.9g", di_cpu_isa_name(isa), fp4, n, k, y[k * 256 + n], row[k]);
        }
        di_free_aligned(packed);
    }
    cpu_fini(&cpu);
}

/* ---------------------------------------------------------------- experts and router */

struct experts {
    struct di_expert e[EXPERTS], shared;
    float x[MAX_M * D], weights[MAX_M * TOP_K];
    int32_t ids[MAX_M * TOP_K];
};

static struct di_weight *weight_of(struct experts *s, int i)
{
    struct di_expert *e = i / 3 < EXPERTS ? &s->e[i / 3] : &s->shared;
    return i % 3 == 0 ? &e->w1 : i % 3 == 1 ? &e->w3 : &e->w2;
}

static struct experts *make_experts(void)
{
    struct experts *s = malloc(sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < 3 * (EXPERTS + 1); i++)
        *weight_of(s, i) = make_weight(i / 3 < EXPERTS ? DI_W_FP4_ROW32 : DI_W_FP8_TILE32, i % 3 == 2 ? D : F, i % 3 == 2 ? F : D, 1, NEAR);
    for (int i = 0; i < MAX_M * D; i++)
        s->x[i] = uniform() * 8;
    di_q8_round(s->x, MAX_M * D, s->x);
    for (int i = 0; i < MAX_M; i++) {
        int id = (int)(rng() % 4) - 1; /* some experts get most rows, some none */
        for (int t = 0; t < TOP_K; t++) {
            id += 1 + (int)(rng() % (i % 3 == 0 ? 4u : 2u));
            s->ids[i * TOP_K + t] = id;
            s->weights[i * TOP_K + t] = fabsf(uniform());
        }
        for (int t = 0; t < TOP_K && i % 7 == 6; t++) /* choices of no expert: some of a row, or all */
            s->ids[i * TOP_K + t] = t <= i % TOP_K ? -1 : s->ids[i * TOP_K + t];
    }
    return s;
}

static void test_moe(void **state)
{
    enum di_cpu_isa isa = *(enum di_cpu_isa *)*state;
    struct di_cpu one, many, ref;
    struct experts *s = make_experts();
    float *want = malloc(MAX_M * D * sizeof *want), *all = malloc(MAX_M * D * sizeof *all), *y = malloc(MAX_M * D * sizeof *y);
    void *packed[3 * (EXPERTS + 1)];
    cpu_init(&one, isa, 1);
    cpu_init(&many, isa, 3);
    cpu_init(&ref, DI_ISA_REF, 1);
    for (int i = 0; i < 3 * (EXPERTS + 1); i++)
        packed[i] = pack(&one, weight_of(s, i));
    struct di_op_moe op = {.m = MAX_M,
                           .d = D,
                           .f = F,
                           .k = TOP_K,
                           .limit = 10,
                           .x = s->x,
                           .ids = s->ids,
                           .weights = s->weights,
                           .experts = s->e,
                           .shared = &s->shared,
                           .y = want};
    ref_moe(&ref.be, &op);
    op.y = all;
    one.ops.moe(&one.be, &op);
    /* A value of g, u or h that rounds to the other side moves one Q8 code by at most 2^-4 of itself. */
    double top = 0, worst = 0;
    int moved = 0;
    for (int i = 0; i < MAX_M * D; i++) {
        top = fmax(top, fabs(want[i]));
        worst = fmax(worst, fabs(want[i] - all[i]));
        moved += want[i] != all[i];
    }
    if (!(worst <= 0.02 * top) || moved > MAX_M * D / 2)
        fail_msg("%s: experts differ from the reference by %g of %g, in %d values", di_cpu_isa_name(isa), worst, top, moved);
    for (size_t c = 0; c < sizeof row_counts / sizeof *row_counts; c++) {
        int m = row_counts[c], from = (int)(rng() % (uint32_t)(MAX_M - m + 1));
        struct di_cpu *cpu = c % 2 ? &many : &one;
        op = (struct di_op_moe){.m = m,
                                .d = D,
                                .f = F,
                                .k = TOP_K,
                                .limit = 10,
                                .x = s->x + from * D,
                                .ids = s->ids + from * TOP_K,
                                .weights = s->weights + from * TOP_K,
                                .experts = s->e,
                                .shared = &s->shared,
                                .y = y};
        cpu->ops.moe(&cpu->be, &op);
        check_same(all + from * D, y, (size_t)m * D, "experts", m);
    }
    for (int i = 0; i < 3 * (EXPERTS + 1); i++) {
        di_free_aligned(packed[i]);
        free_weight(weight_of(s, i));
    }
    cpu_fini(&one);
    cpu_fini(&many);
    cpu_fini(&ref);
    free(s);
    free(want);
    free(all);
    free(y);
}

static void test_router(void **state)
{
    enum di_cpu_isa isa = *(enum di_cpu_isa *)*state;
    struct di_cpu cpu, ref;
    cpu_init(&cpu, isa, 2);
    cpu_init(&ref, DI_ISA_REF, 1);
    struct di_weight w = make_weight(DI_W_BF16, EXPERTS, D, 1, NEAR);
    /* Experts 5 and 6, and 10 and 11, are equal: ties. */
    memcpy((void *)(uintptr_t)(w.data + 6 * D * 2), w.data + 5 * D * 2, D * 2);
    memcpy((void *)(uintptr_t)(w.data + 11 * D * 2), w.data + 10 * D * 2, D * 2);
    void *packed = pack(&cpu, &w);
    static float x[MAX_M * D];
    float bias[EXPERTS], bias_vl[EXPERTS], weights[2][MAX_M * TOP_K];
    int32_t ids[2][MAX_M * TOP_K];
    uint8_t kind[MAX_M];
    for (int i = 0; i < MAX_M * D; i++)
        x[i] = uniform();
    for (int e = 0; e < EXPERTS; e++) {
        bias[e] = e % 2 ? 0.125f : 0;
        bias_vl[e] = e > 20 ? 9.0f : 0;
    }
    bias[6] = bias[5];
    bias[11] = bias[10];
    for (int i = 0; i < MAX_M; i++)
        kind[i] = i % 5 == 0 ? DI_ROW_IMAGE : i % 7 == 0 ? DI_ROW_PADDING : DI_ROW_TEXT;
    struct di_op_router op = {.m = MAX_M,
                              .d = D,
                              .experts = EXPERTS,
                              .k = TOP_K,
                              .scale = 1.5f,
                              .x = x,
                              .w = &w,
                              .bias = bias,
                              .bias_vl = bias_vl,
                              .kind = kind,
                              .ids = ids[0],
                              .weights = weights[0]};
    ref_router(&ref.be, &op);
    op.ids = ids[1];
    op.weights = weights[1];
    cpu.ops.router(&cpu.be, &op);
    for (int i = 0; i < MAX_M * TOP_K; i++) {
        assert_int_equal(ids[0][i], ids[1][i]);
        assert_true(fabsf(weights[0][i] - weights[1][i]) <= 1e-5f * weights[0][i]);
    }
    for (int i = 0; i < MAX_M * TOP_K; i++)
        assert_int_equal(ids[0][i] < 0, kind[i / TOP_K] == DI_ROW_PADDING);
    op.kind = NULL;
    op.m = 1;
    cpu.ops.router(&cpu.be, &op);
    ref_router(&ref.be, &op);
    di_free_aligned(packed);
    free_weight(&w);
    cpu_fini(&cpu);
    cpu_fini(&ref);
}

static void test_isa_names(void **state)
{
    (void)state;
    enum di_cpu_isa isa;
    assert_true(di_cpu_isa_by_name("avx512bf16", &isa) && isa == DI_ISA_AVX512BF16);
    assert_false(di_cpu_isa_by_name("AVX", &isa));
    assert_true(di_cpu_isa_usable(DI_ISA_REF));
    assert_true(di_cpu_isa_by_name(di_cpu_isa_best(), &isa) && di_cpu_isa_usable(isa));
    assert_non_null(strstr(di_cpu_isa_list(), di_cpu_isa_best()));
}

int main(void)
{
    static enum di_cpu_isa isa[] = {DI_ISA_AVX2, DI_ISA_AVX512, DI_ISA_AVX512BF16, DI_ISA_AMX};
    static const struct {
        const char *name;
        CMUnitTestFunction fn;
    } cases[] = {{"codes", test_codes}, {"linear", test_linear}, {"moe", test_moe}, {"router", test_router}};
    struct CMUnitTest tests[1 + 4 * 4] = {cmocka_unit_test(test_isa_names)};
    char names[16][32];
    size_t n = 1;
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 4 && di_cpu_isa_usable(isa[i]); c++, n++) {
            snprintf(names[n - 1], sizeof names[0], "%s %s", di_cpu_isa_name(isa[i]), cases[c].name);
            tests[n] = (struct CMUnitTest){names[n - 1], cases[c].fn, NULL, NULL, &isa[i]};
        }
    return _cmocka_run_group_tests("linear", tests, n, NULL, NULL);
}
