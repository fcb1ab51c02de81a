/* Matrix kernels at the shapes of the full-size model (spec/model.md §5.10), weights from memory: a row of the table rotates through so
 * many copies of its weight that none is left in a cache. Each measurement is taken between two measurements of the read bandwidth (or of
 * the multiply rate), so that a neighbour's load hits both. */
#include "backend/backend.h"
#include "base/mem.h"
#include "cli/bench.h"

#include <stdio.h>
#include <string.h>

#define SET_BYTES ((size_t)640 << 20) /* of distinct weights, more than any L3 cache */
#define MAX_M 512
#define EXPERTS 32
#define ACTIVE 6
#define HIDDEN 5120
#define WIDTH 2304

static const struct shape {
    const char *name;
    enum di_wtype type;
    int n, k, groups, gemm; /* gemm: also measured with many rows */
} shapes[] = {
    {"experts w1+w3", DI_W_FP4_ROW32, 4608, 5120, 1, 1}, {"experts w2", DI_W_FP4_ROW32, 5120, 2304, 1, 1},
    {"wq_b", DI_W_FP8_TILE32, 32768, 1280, 1, 1},        {"wq_a+wkv", DI_W_FP8_TILE32, 1792, 5120, 1, 0},
    {"wo_a", DI_W_FP8_TILE32, 8192, 4096, 8, 1},         {"wo_b", DI_W_FP8_TILE32, 5120, 8192, 1, 1},
    {"engram wkv", DI_W_FP8_TILE32, 25600, 6144, 1, 0},  {"head slice", DI_W_BF16, 16384, 5120, 1, 0},
};
static const int gemm_rows[] = {64, 128, 512};

struct bench {
    const struct di_bench_options *o;
    struct di_backend *be;
    struct di_pool *pool;         /* of the machine's own measurements */
    struct di_bench_buffer probe; /* read for the bandwidth */
    struct di_bench_buffer x, y, weights;
    uint8_t *raw, *raw_scale; /* random checkpoint bytes of the largest weight */
};

static size_t raw_bytes(enum di_wtype type, int n, int k)
{
    size_t count = (size_t)n * (size_t)k;
    return type == DI_W_BF16 ? 2 * count : type == DI_W_FP8_TILE32 ? count : count / 2;
}

static void fill_floats(struct bench *b, size_t bytes)
{
    uint32_t s = 1;
    for (size_t i = 0; i < bytes; i++) {
        s = s * 1664525 + 1013904223;
        b->raw[i] = (uint8_t)(s >> 24) & 0xBF; /* no NaN */
        b->raw_scale[i / 32] = (uint8_t)(120 + (s >> 8) % 4);
    }
    float *x = (float *)b->x.p;
    for (size_t i = 0; i < b->x.bytes / sizeof *x; i++)
        x[i] = (float)((int)(i * 2654435761u >> 24) - 128) / 128;
}

/* ---------------------------------------------------------------- one row of the table */

struct row {
    const char *name;
    int m;
    double bytes, ops; /* of one pass */
    void (*pass)(struct bench *b, void *ctx);
    void *ctx;
};

static double seconds_of(struct bench *b, const struct row *r)
{
    double start = di_bench_seconds(b->pool);
    r->pass(b, r->ctx);
    return di_bench_seconds(b->pool) - start;
}

static void measure_shape(struct bench *b, const struct row *r)
{
    double share[DI_BENCH_ROUNDS], time[DI_BENCH_ROUNDS], bandwidth[DI_BENCH_ROUNDS], peak[DI_BENCH_ROUNDS];
    int rounds = (int)b->o->rounds;
    seconds_of(b, r);
    double before = (double)b->probe.bytes / di_bench_read(b->pool, &b->probe), peak_before = di_bench_peak(b->pool, b->be->ops->name);
    for (int i = 0; i < rounds; i++) {
        time[i] = seconds_of(b, r);
        double after = (double)b->probe.bytes / di_bench_read(b->pool, &b->probe), peak_after = di_bench_peak(b->pool, b->be->ops->name);
        bandwidth[i] = (before + after) / 2;
        peak[i] = (peak_before + peak_after) / 2;
        double read = r->bytes / bandwidth[i], multiply = r->ops / peak[i], floor = read > multiply ? read : multiply;
        share[i] = floor / time[i];
        before = after;
        peak_before = peak_after;
    }
    double t = di_bench_median(time, rounds), s = di_bench_median(share, rounds);
    double bw = di_bench_median(bandwidth, rounds), pk = di_bench_median(peak, rounds);
    printf("| %-30s | %4d | %9.3f | %9.3f | %5.1f | %7.1f | %7.1f | %7.1f | %7.1f |\n", r->name, r->m, s * t * 1e3, t * 1e3, s * 100,
           r->bytes / t * 1e-9, bw * 1e-9, r->ops / t * 1e-9, pk * 1e-9);
    fflush(stdout);
}

/* ---------------------------------------------------------------- linear */

struct linear_set {
    struct di_weight w;
    size_t stride;
    int copies, m;
};

static void linear_pass(struct bench *b, void *ctx)
{
    struct linear_set *s = ctx;
    for (int i = 0; i < s->copies; i++) {
        s->w.packed = b->weights.p + (size_t)i * s->stride;
        b->be->ops->linear(b->be, &(struct di_op_linear){.m = s->m, .w = &s->w, .x = b->x.p, .y = b->y.p});
    }
}

static void linear_rows(struct bench *b, const struct shape *sh, bool gemm)
{
    static const char *const types[] = {"bf16", "fp8", "fp4"};
    char name[64];
    struct linear_set s = {.w = {.type = sh->type, .n = sh->n, .k = sh->k, .groups = sh->groups, .data = b->raw, .scale = b->raw_scale}};
    snprintf(name, sizeof name, "%s %s %dx%d", sh->name, types[sh->type], sh->n, sh->k);
    if (b->o->filter && !strstr(name, b->o->filter))
        return;
    size_t bytes = b->be->ops->weight_bytes(b->be, &s.w);
    for (size_t i = 1; i < raw_bytes(sh->type, sh->n, sh->k) && sh->type == DI_W_BF16; i += 2)
        b->raw[i] = (b->raw[i] & 0x81) | 0x3C; /* 2^-7 to 1: numbers below fp32's range would take another path in the processor */
    s.stride = (bytes + 4095) & ~(size_t)4095;
    b->be->ops->weight_pack(b->be, &s.w, b->weights.p);
    int copies = (int)(b->weights.bytes / s.stride);
    for (int i = 1; i < copies; i++)
        memcpy(b->weights.p + (size_t)i * s.stride, b->weights.p, bytes);
    for (size_t i = 0; i < (gemm ? sizeof gemm_rows / sizeof *gemm_rows : 2); i++) {
        s.m = gemm ? gemm_rows[i] : i ? 4 : 1;
        s.copies = gemm ? 1 : copies;
        measure_shape(b, &(struct row){name, s.m, (double)bytes * s.copies, 2.0 * sh->n * sh->k * s.m * s.copies, linear_pass, &s});
    }
}

/* ---------------------------------------------------------------- experts */

struct moe_set {
    struct di_expert e[EXPERTS], shared;
    int m, unique;
    int32_t ids[MAX_M * ACTIVE];
    float weights[MAX_M * ACTIVE];
    int turn;
};

/* A step takes the experts behind those of the step before; 5 steps with one row read all 32 but two. */
static void moe_step(struct bench *b, struct moe_set *s)
{
    int seen[EXPERTS] = {0};
    s->unique = 0;
    for (int i = 0; i < s->m; i++) {
        int32_t *ids = s->ids + i * ACTIVE;
        for (int t = 0; t < ACTIVE; t++) {
            int id = (s->turn * ACTIVE + i * 7 + t * (i % 5 + 1)) % EXPERTS, at = t;
            for (int u = 0; u < t; u++)
                if (ids[u] == id) {
                    id = (id + 1) % EXPERTS;
                    u = -1;
                }
            for (; at > 0 && ids[at - 1] > id; at--)
                ids[at] = ids[at - 1];
            ids[at] = id;
            s->unique += !seen[id]++;
        }
    }
    s->turn++;
    b->be->ops->moe(b->be, &(struct di_op_moe){.m = s->m,
                                               .d = HIDDEN,
                                               .f = WIDTH,
                                               .k = ACTIVE,
                                               .limit = 10,
                                               .x = b->x.p,
                                               .ids = s->ids,
                                               .weights = s->weights,
                                               .experts = s->e,
                                               .shared = &s->shared,
                                               .y = b->y.p});
}

static void moe_pass(struct bench *b, void *ctx)
{
    for (int i = 0; i < 5; i++)
        moe_step(b, ctx);
}

static size_t pack_expert(struct bench *b, struct di_expert *e, enum di_wtype type, uint8_t *dst)
{
    struct di_weight *w[3] = {&e->w1, &e->w3, &e->w2};
    size_t used = 0;
    for (int i = 0; i < 3; i++) {
        *w[i] = (struct di_weight){
            .type = type, .n = i < 2 ? WIDTH : HIDDEN, .k = i < 2 ? HIDDEN : WIDTH, .groups = 1, .data = b->raw, .scale = b->raw_scale};
        b->be->ops->weight_pack(b->be, w[i], dst + used);
        used += b->be->ops->weight_bytes(b->be, w[i]);
    }
    return used;
}

static di_status moe_rows(struct bench *b, di_error *err)
{
    static const int rows[] = {1, 4, 128, 512};
    di_status status = DI_OK;
    if (b->o->filter && !strstr("experts of one layer", b->o->filter))
        return DI_OK;
    struct moe_set *s = di_calloc(1, sizeof *s);
    CHECK(s, err, DI_ERR_MEMORY, "bench", "out of memory");
    size_t one = 0, used = pack_expert(b, &s->shared, DI_W_FP8_TILE32, b->weights.p), shared = used;
    for (int e = 0; e < EXPERTS; e++)
        used += one = pack_expert(b, &s->e[e], DI_W_FP4_ROW32, b->weights.p + used);
    for (int i = 0; i < MAX_M * ACTIVE; i++)
        s->weights[i] = 0.25f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        s->m = rows[i];
        moe_step(b, s);
        double params = 3.0 * HIDDEN * WIDTH;
        measure_shape(b, &(struct row){"experts of one layer (6 of 32)", s->m, 5.0 * ((double)one * s->unique + (double)shared),
                                       5 * 2 * params * (ACTIVE + 1) * s->m, moe_pass, s});
    }
out:
    di_free(s);
    return status;
}

/* ---------------------------------------------------------------- the suite */

static const struct di_config config = {.hidden_size = HIDDEN,
                                        .moe_intermediate_size = WIDTH,
                                        .num_hidden_layers = 1,
                                        .num_attention_heads = 64,
                                        .head_dim = 512,
                                        .qk_rope_head_dim = 64,
                                        .q_lora_rank = 1280,
                                        .o_lora_rank = 1024,
                                        .o_groups = 8,
                                        .n_routed_experts = EXPERTS,
                                        .num_experts_per_tok = ACTIVE,
                                        .sliding_window = 128,
                                        .index_n_heads = 32,
                                        .index_head_dim = 128,
                                        .index_topk = 512,
                                        .hc_mult = 4,
                                        .n_engram = 1,
                                        .engram_max_ngram_size = 4,
                                        .engram_n_heads = 8,
                                        .engram_head_dim = 256,
                                        .vocab_size = 129280,
                                        .n_dspark_targets = 3};

static void print_head(struct bench *b)
{
    double one = 0, all = 0;
    for (int i = 0; i < 3; i++) {
        double v = (double)b->probe.bytes / di_bench_read(b->pool, &b->probe);
        all = v > all ? v : all;
    }
    struct di_pool *single;
    if (di_pool_create(1, &single, NULL) == DI_OK) {
        for (int i = 0; i < 3; i++) {
            double v = (double)b->probe.bytes / di_bench_read(single, &b->probe);
            one = v > one ? v : one;
        }
        di_pool_destroy(single);
    }
    printf("instruction set %s, %d threads; usable here: %s\n", b->be->ops->name, di_pool_threads(b->pool), di_cpu_isa_list());
    printf("reading from memory: %.1f GB/s with 1 thread, %.1f GB/s with %d\nmultiply peak, GFLOP/s:", one * 1e-9, all * 1e-9,
           di_pool_threads(b->pool));
    static const char *const sets[] = {"avx2", "avx512", "avx512bf16", "amx"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (strstr(di_cpu_isa_list(), sets[i])) {
            di_bench_peak(b->pool, sets[i]);
            printf(" %s %.0f", sets[i], di_bench_peak(b->pool, sets[i]) * 1e-9);
        }
    printf("\n\n| %-30s | %4s | %9s | %9s | %5s | %7s | %7s | %7s | %7s |\n", "kernel", "rows", "floor ms", "ms", "%", "GB/s", "of",
           "GFLOP/s", "of");
    printf("|---|---|---|---|---|---|---|---|---|\n");
}

di_status di_bench_kernels(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    struct bench b = {.o = o};
    size_t largest = 0;
    struct di_backend_params params = {
        .config = &config, .max_rows = MAX_M, .max_context = 1024, .threads = (int)o->threads, .isa = o->isa};
    CHECK(di_numerics_by_name("bf16", &params.numerics), err, DI_ERR_INTERNAL, "bench", "no bf16 numerics");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        size_t n = raw_bytes(shapes[i].type, shapes[i].n, shapes[i].k);
        largest = n > largest ? n : largest;
    }
    TRY(di_backend_cpu_create(&params, &b.be, err));
    TRY(di_pool_create(o->threads ? (int)o->threads : di_cpu_count(), &b.pool, err));
    b.raw = di_malloc(largest);
    b.raw_scale = di_malloc(largest / 32 + 1);
    b.probe = di_bench_alloc(SET_BYTES);
    b.weights = di_bench_alloc(SET_BYTES + SET_BYTES / 8);
    b.x = di_bench_alloc((size_t)MAX_M * 32768 * sizeof(float));
    b.y = di_bench_alloc((size_t)MAX_M * 32768 * sizeof(float));
    CHECK(b.raw && b.raw_scale && b.probe.p && b.weights.p && b.x.p && b.y.p, err, DI_ERR_MEMORY, "bench", "out of memory");
    fill_floats(&b, largest);
    print_head(&b);
    for (int gemm = 0; gemm < 2; gemm++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (!gemm || shapes[i].gemm)
                linear_rows(&b, &shapes[i], gemm);
    TRY(moe_rows(&b, err));
out:
    di_bench_free(&b.probe);
    di_bench_free(&b.weights);
    di_bench_free(&b.x);
    di_bench_free(&b.y);
    di_free(b.raw);
    di_free(b.raw_scale);
    di_pool_destroy(b.pool);
    if (b.be)
        b.be->ops->destroy(b.be);
    return status;
}
