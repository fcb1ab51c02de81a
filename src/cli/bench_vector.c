/* The ops that read caches and the hyper-connection mix, at the shapes of the full-size model. Floor: bytes at the measured read
 * bandwidth or operations at the measured fp32 multiply rate, whichever takes longer. */
#define DI_ON_DEVICE /* of the CPU */
#include "backend/backend.h"
#include "base/mem.h"
#include "cli/bench.h"

#include <stdio.h>
#include <string.h>

#define PROBE_BYTES ((size_t)256 << 20)
#define MAX_M 64
#define MAX_CONTEXT 131072
#define HEADS 64
#define HEAD_DIM 512
#define KEYS 640 /* 128 window rows, 512 selected */
#define INDEX_HEADS 32
#define INDEX_DIM 128
#define HIDDEN 5120
#define MIX_WEIGHTS ((size_t)24 * 4 * HIDDEN)
#define MIX_COPIES 320 /* 630 MB of distinct weights, more than any L3 cache */

struct bench {
    const struct di_bench_options *o;
    struct di_backend *be;
    struct di_pool *pool;
    struct di_bench_buffer probe, x, y, weights, blocks, ring, lists;
    int32_t pages[MAX_CONTEXT / DI_BLOCK_TOKENS];
    struct di_kv kv;
    int32_t cand_n[MAX_M];
    uint32_t random;
};

static uint32_t rnd(struct bench *b)
{
    return b->random = b->random * 1664525 + 1013904223;
}

/* ---------------------------------------------------------------- steps: one chunk of m rows at the end of a context */

struct step {
    int m, context;
    struct di_chunk chunk;
    int32_t pos[MAX_M], of[MAX_M], count[MAX_M];
    struct di_rows rows;
};

static void step_make(struct step *s, int m, int context)
{
    *s = (struct step){.m = m, .context = context, .chunk = {0, 0, m, context - m}};
    for (int i = 0; i < m; i++)
        s->pos[i] = context - m + i;
    s->rows = (struct di_rows){.m = m, .n_chunks = 1, .chunks = &s->chunk, .pos = s->pos, .chunk = s->of};
}

static void mix_pass(struct bench *b, struct step *s, int turn)
{
    static const float base[24], scale[3] = {1, 1, 1};
    float *out = (float *)b->y.p, *fn = (float *)b->weights.p + (size_t)(turn % MIX_COPIES) * MIX_WEIGHTS;
    b->be->ops->hc_mix(b->be, &(struct di_op_hc_mix){.m = s->m,
                                                     .streams = 4,
                                                     .d = HIDDEN,
                                                     .iters = 20,
                                                     .eps = 1e-6f,
                                                     .norm_eps = 1e-20f,
                                                     .x = b->x.p,
                                                     .fn = fn,
                                                     .base = base,
                                                     .scale = scale,
                                                     .pre = out,
                                                     .post = out + 4 * MAX_M,
                                                     .comb = out + 8 * MAX_M});
}

static void attention_pass(struct bench *b, struct step *s, int turn)
{
    static const float sink[HEADS];
    (void)turn;
    int32_t *sel = (int32_t *)b->lists.p;
    for (int i = 0; i < s->m; i++) {
        s->count[i] = KEYS - 128;
        int32_t stride = (s->context - s->m) / s->count[i], at = (int32_t)(rnd(b) >> 8) % stride;
        for (int k = 0; k < s->count[i]; k++)
            sel[i * s->count[i] + k] = at + k * stride;
    }
    b->be->ops->attention(b->be, &(struct di_op_attention){.m = s->m,
                                                           .heads = HEADS,
                                                           .d = HEAD_DIM,
                                                           .window = 128,
                                                           .layer = 0,
                                                           .src = 0,
                                                           .scale = 0.0442f,
                                                           .rows = &s->rows,
                                                           .kv = &b->kv,
                                                           .window_new = b->ring.p,
                                                           .sel = sel,
                                                           .sel_n = s->count,
                                                           .sel_ld = KEYS - 128,
                                                           .q = b->x.p,
                                                           .sink = sink,
                                                           .o = b->y.p});
}

static void select_with(struct bench *b, struct step *s, enum di_candidates mode)
{
    int32_t *sel = (int32_t *)b->lists.p, *cand = sel + MAX_M * 512;
    b->be->ops->index_select(b->be, &(struct di_op_index_select){.m = s->m,
                                                                 .heads = INDEX_HEADS,
                                                                 .d = INDEX_DIM,
                                                                 .topk = 512,
                                                                 .src = 0,
                                                                 .rows = &s->rows,
                                                                 .kv = &b->kv,
                                                                 .q = b->x.p,
                                                                 .w = (float *)b->x.p + INDEX_HEADS * INDEX_DIM * MAX_M,
                                                                 .sel = sel,
                                                                 .sel_n = s->count,
                                                                 .mode = mode,
                                                                 .cand_blocks = 2048,
                                                                 .cand_block_size = 8,
                                                                 .cand = cand,
                                                                 .cand_n = b->cand_n,
                                                                 .scores = NULL,
                                                                 .scores_ld = 0});
}
static void select_pass(struct bench *b, struct step *s, int turn)
{
    (void)turn;
    select_with(b, s, DI_CAND_PRODUCE);
}
static void filter_pass(struct bench *b, struct step *s, int turn) /* candidates spread over the context */
{
    (void)turn;
    int32_t *cand = (int32_t *)b->lists.p + MAX_M * 512;
    for (int i = 0; i < s->m; i++)
        for (int k = b->cand_n[i] = 0; k < 2048; k++)
            if ((k + 1) * (s->context / 2048) <= (s->context - s->m) / 8 * 8)
                cand[i * 2048 + b->cand_n[i]++] = k * (s->context / 8 / 2048);
    select_with(b, s, DI_CAND_FILTER);
}

/* ---------------------------------------------------------------- table */

/* Operations are counted as fp32 multiply-adds of the peak loop: an 8-bit product costs a quarter with VNNI, about half without. */
struct kernel {
    const char *name;
    void (*pass)(struct bench *b, struct step *s, int turn);
    double bytes_row, bytes_once, ops_row;
    int context[3];
};

static void measure_op(struct bench *b, const struct kernel *k, int m, int context)
{
    double time[DI_BENCH_ROUNDS], share[DI_BENCH_ROUNDS], bw[DI_BENCH_ROUNDS], peak[DI_BENCH_ROUNDS];
    struct step s;
    int rounds = (int)b->o->rounds, turn = 0;
    const char *isa = strcmp(b->be->ops->name, "avx2") == 0 ? "avx2" : "avx512";
    double scale = k->context[0] ? k->ops_row < 0 ? context : 1 : 1; /* negative: per key of the context */
    if (k->pass == filter_pass)
        scale = 16384;
    double ops = (k->ops_row < 0 ? -k->ops_row : k->ops_row) * scale * m;
    double bytes = (k->ops_row < 0 ? k->bytes_once * scale : k->bytes_once) + k->bytes_row * m;
    if (k->ops_row < 0 && strcmp(isa, "avx2") == 0)
        ops *= 2;
    step_make(&s, m, context);
    int repeat = 1 + (int)(2e8 / (ops + 40 * bytes));
    k->pass(b, &s, turn++);
    for (int i = 0; i < rounds; i++) {
        bw[i] = (double)b->probe.bytes / di_bench_read(b->pool, &b->probe);
        peak[i] = di_bench_peak(b->pool, isa);
        double start = di_bench_seconds(b->pool);
        for (int r = 0; r < repeat; r++)
            k->pass(b, &s, turn++);
        time[i] = (di_bench_seconds(b->pool) - start) / repeat;
        peak[i] = (peak[i] + di_bench_peak(b->pool, isa)) / 2;
        double read = bytes / bw[i], multiply = ops / peak[i];
        share[i] = (read > multiply ? read : multiply) / time[i];
    }
    double t = di_bench_median(time, rounds), f = di_bench_median(share, rounds);
    printf("| %-22s | %4d | %7d | %9.4f | %9.4f | %5.1f | %7.1f | %7.1f | %7.1f | %7.1f |\n", k->name, m, context, f * t * 1e3, t * 1e3,
           f * 100, bytes / t * 1e-9, di_bench_median(bw, rounds) * 1e-9, ops / t * 1e-9, di_bench_median(peak, rounds) * 1e-9);
    fflush(stdout);
}

static const struct kernel kernels[] = {
    {"hc_mix", mix_pass, 4.0 * HIDDEN * 4, 4.0 * MIX_WEIGHTS, 2.0 * MIX_WEIGHTS, {0, 0, 0}},
    {"attention", attention_pass, 128 * 528.0 + 512 * 288.0 + 8.0 * HEADS *HEAD_DIM, 0, 4.0 * HEADS *HEAD_DIM *KEYS, {4096, 32768, 131072}},
    {"index_select", select_pass, 4.0 * INDEX_HEADS *INDEX_DIM, 68, -2.0 * INDEX_HEADS *INDEX_DIM / 4, {4096, 32768, 131072}},
    {"index_select filtered", filter_pass, 4.0 * INDEX_HEADS *INDEX_DIM, 68, -2.0 * INDEX_HEADS *INDEX_DIM / 4, {0, 32768, 131072}},
};

static void fill_floats(struct bench *b)
{
    for (size_t i = 0; i < b->weights.bytes / 4; i++)
        ((float *)b->weights.p)[i] = (float)((int)(rnd(b) >> 24) - 128) * 1e-4f;
    for (size_t i = 0; i < b->x.bytes / 4; i++)
        ((float *)b->x.p)[i] = (float)((int)(rnd(b) >> 30) - 1) * 0.5f; /* valid Q4e values too */
    for (size_t i = 0; i < b->ring.bytes; i++)
        b->ring.p[i] = i % 528 < 512 ? (uint8_t)(rnd(b) >> 24) & 0xBF : 120;
    for (size_t i = 0; i < b->blocks.bytes; i++)
        b->blocks.p[i] = (uint8_t)(rnd(b) >> 24);
    for (int32_t j = 0; j < MAX_CONTEXT; j++) {
        b->pages[j / DI_BLOCK_TOKENS] = (j / DI_BLOCK_TOKENS * 37 + 11) % (MAX_CONTEXT / DI_BLOCK_TOKENS);
        memset(di_kv_comp_row(&b->kv, 0, 0, j) + HEAD_DIM / 2, 0x30, HEAD_DIM / 16);
        memset(di_kv_key_row(&b->kv, 0, 0, j) + INDEX_DIM / 2, 126, INDEX_DIM / 32);
    }
}

static const struct di_config config = {.hidden_size = HIDDEN,
                                        .moe_intermediate_size = 32,
                                        .num_hidden_layers = 1,
                                        .num_attention_heads = HEADS,
                                        .head_dim = HEAD_DIM,
                                        .qk_rope_head_dim = 64,
                                        .q_lora_rank = 32,
                                        .o_lora_rank = 32,
                                        .o_groups = 8,
                                        .n_routed_experts = 8,
                                        .num_experts_per_tok = 2,
                                        .sliding_window = 128,
                                        .index_n_heads = INDEX_HEADS,
                                        .index_head_dim = INDEX_DIM,
                                        .index_topk = 512,
                                        .candidate_topk_blocks = 2048,
                                        .candidate_block_size = 8,
                                        .hc_mult = 4,
                                        .n_kv_sources = 1,
                                        .compress_ratios = {1},
                                        .vocab_size = 64};

di_status di_bench_vector(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    static const int rows[] = {1, 16, 64};
    struct bench *b = di_calloc(1, sizeof *b);
    struct di_backend_params params = {
        .config = &config, .max_rows = MAX_M, .max_context = MAX_CONTEXT, .threads = (int)o->threads, .isa = o->isa};
    CHECK(b, err, DI_ERR_MEMORY, "bench", "out of memory");
    b->o = o;
    CHECK(di_numerics_by_name("bf16", &params.numerics), err, DI_ERR_INTERNAL, "bench", "no bf16 numerics");
    TRY(di_backend_cpu_create(&params, &b->be, err));
    TRY(di_pool_create(o->threads ? (int)o->threads : di_cpu_count(), &b->pool, err));
    b->probe = di_bench_alloc(PROBE_BYTES);
    b->x = di_bench_alloc(sizeof(float) * MAX_M * HEADS * HEAD_DIM);
    b->y = di_bench_alloc(sizeof(float) * MAX_M * HEADS * HEAD_DIM);
    b->weights = di_bench_alloc(sizeof(float) * MIX_WEIGHTS * MIX_COPIES);
    b->blocks = di_bench_alloc(b->be->layout.block_bytes * (MAX_CONTEXT / DI_BLOCK_TOKENS));
    b->ring = di_bench_alloc(b->be->layout.ring_bytes > 528 * DI_RING_ROWS ? b->be->layout.ring_bytes : 528 * DI_RING_ROWS);
    b->lists = di_bench_alloc(sizeof(int32_t) * MAX_M * (512 + 2048));
    CHECK(b->probe.p && b->x.p && b->y.p && b->weights.p && b->blocks.p && b->ring.p && b->lists.p, err, DI_ERR_MEMORY, "bench",
          "out of memory");
    b->kv = (struct di_kv){.layout = &b->be->layout, .blocks = b->blocks.p, .state = b->ring.p, .pages = b->pages};
    fill_floats(b);
    printf("instruction set %s, %d threads\n\n| %-22s | %4s | %7s | %9s | %9s | %5s | %7s | %7s | %7s | %7s "
           "|\n|---|---|---|---|---|---|---|---|---|---|\n",
           b->be->ops->name, di_pool_threads(b->pool), "op", "rows", "context", "floor ms", "ms", "%", "GB/s", "of", "Gop/s", "of");
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        for (size_t i = 0; i < 3 && (!o->filter || strstr(kernels[k].name, o->filter)); i++)
            for (int c = 0; c < 3; c++)
                if (kernels[k].context[c] || (c == 0 && !kernels[k].context[1]))
                    measure_op(b, &kernels[k], rows[i], kernels[k].context[c] ? kernels[k].context[c] : 4096);
out:
    if (b) {
        struct di_bench_buffer *all[] = {&b->probe, &b->x, &b->y, &b->weights, &b->blocks, &b->ring, &b->lists};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            di_bench_free(all[i]);
        di_pool_destroy(b->pool);
        if (b->be)
            b->be->ops->destroy(b->be);
    }
    di_free(b);
    return status;
}
