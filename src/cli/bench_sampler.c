/* The sampler at the full vocabulary. Floor: the logits read once at the measured bandwidth, then one exponential a token for what needs all
 * probabilities (28 multiplications and additions of doubles, at the measured rate of the multiply loop). */
#include "backend/backend.h"
#include "base/mem.h"
#include "base/philox.h"
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define VOCAB 129280
#define ROWS 64 /* distinct rows, 33 MB: more than a last-level cache lends one program */
#define PROBE_BYTES ((size_t)256 << 20)
#define EXP_OPS 28

struct bench {
    const struct di_bench_options *o;
    struct di_backend *be;
    struct di_pool *pool;
    struct di_bench_buffer probe, logits;
    struct di_sample_task tasks[ROWS];
    struct di_sample_result results[ROWS];
    uint64_t mask[VOCAB / 64];
    int next;
};

/* ---------------------------------------------------------------- rows */

/* "normal": N(0, 2), a law without any structure. "model": as a trained model's rows look: a wide bulk far below a few hundred candidates. */
static void fill_logits(struct bench *b, bool model)
{
    uint64_t n = 0;
    for (size_t i = 0; i < (size_t)ROWS * VOCAB; i += 2, n++) {
        struct di_philox r = di_philox(1, (struct di_philox){{(uint32_t)n, 0, 0, 0}});
        double size = sqrt(-2 * log((r.w[0] + 0.5) * 0x1p-32)), angle = 6.283185307179586 * r.w[1] * 0x1p-32;
        for (size_t k = 0; k < 2; k++) {
            double normal = size * (k ? sin(angle) : cos(angle));
            bool candidate = model && r.w[2 + k] < 0x1p32 * 0.002;
            ((float *)b->logits.p)[i + k] = (float)(candidate ? 14 + 2.5 * normal : 2 * normal);
        }
    }
}

struct shape {
    const char *name;
    double temperature, top_p, min_p;
    int64_t top_k, top_logprobs;
    bool logprobs, masked, needs_all; /* needs_all: an exponential of every token */
};
static const struct shape shapes[] = {
    {"greedy", 0, 1, 0, -1, 0, false, false, false},
    {"greedy, logprobs 20", 0, 1, 0, -1, 20, true, false, true},
    {"T=1", 1, 1, 0, -1, 0, false, false, true},
    {"T=0.7", 0.7, 1, 0, -1, 0, false, false, true},
    {"T=1, min-p .05", 1, 1, 0.05, -1, 0, false, false, true},
    {"top-p .95", 1, 0.95, 0, -1, 0, false, false, true},
    {"T=0.7, top-p .95", 0.7, 0.95, 0, -1, 0, false, false, true},
    {"top-k 50", 1, 1, 0, 50, 0, false, false, false},
    {"top-k 50, top-p .95", 1, 0.95, 0, 50, 0, false, false, false},
    {"top-k 5000, top-p .95", 1, 0.95, 0, 5000, 0, false, false, false},
    {"top-p .95, half masked", 1, 0.95, 0, -1, 0, false, true, true},
};

/* Seconds of `turns` steps of m rows. */
static double run_steps(struct bench *b, const struct shape *s, int m, int turns)
{
    struct di_sampling_params p = di_sampling_params_default();
    p.temperature = s->temperature, p.top_p = s->top_p, p.min_p = s->min_p, p.top_k = s->top_k;
    p.logprobs = s->logprobs, p.top_logprobs = s->top_logprobs;
    double start = di_bench_seconds(b->pool);
    for (int t = 0; t < turns; t++) {
        for (int i = 0; i < m; i++)
            b->tasks[i] = (struct di_sample_task){.row = {.logits = (float *)b->logits.p + (size_t)(b->next++ % ROWS) * VOCAB,
                                                          .params = &p,
                                                          .allowed = s->masked ? b->mask : NULL,
                                                          .position = (uint64_t)b->next},
                                                  .key = 1,
                                                  .forced = -1};
        b->be->ops->sample(b->be, &(struct di_op_sample){.m = m, .tasks = b->tasks, .results = b->results});
    }
    return (di_bench_seconds(b->pool) - start) / turns;
}

/* ---------------------------------------------------------------- table */

static void measure_law(struct bench *b, const char *law, const struct shape *s, int m)
{
    double time[DI_BENCH_ROUNDS], share[DI_BENCH_ROUNDS], bw[DI_BENCH_ROUNDS];
    int rounds = (int)b->o->rounds, turns = 1 + 200 / m;
    const char *isa = strcmp(b->be->ops->name, "avx2") == 0 ? "avx2" : "avx512";
    if (strcmp(b->be->ops->name, "ref") == 0)
        turns = 1 + 10 / m;
    run_steps(b, s, m, 1);
    for (int i = 0; i < rounds; i++) {
        bw[i] = (double)b->probe.bytes / di_bench_read(b->pool, &b->probe);
        double lanes =
            2 * di_bench_peak(b->pool, isa) / 4; /* multiplications or additions of doubles a second: half the lanes, not fused */
        time[i] = run_steps(b, s, m, turns);
        share[i] = (m * VOCAB * 4.0 / bw[i] + (s->needs_all ? m * (double)VOCAB * EXP_OPS / lanes : 0)) / time[i];
    }
    double t = di_bench_median(time, rounds), f = di_bench_median(share, rounds);
    printf("| %-6s | %-22s | %3d | %9.1f | %9.1f | %9.1f | %5.1f | %7.1f |\n", law, s->name, m, f * t * 1e6, t * 1e6, t * 1e6 / m, f * 100,
           di_bench_median(bw, rounds) * 1e-9);
    fflush(stdout);
}

static const struct di_config config = {.hidden_size = 64,
                                        .moe_intermediate_size = 32,
                                        .num_hidden_layers = 1,
                                        .num_attention_heads = 2,
                                        .head_dim = 64,
                                        .q_lora_rank = 32,
                                        .o_lora_rank = 32,
                                        .o_groups = 1,
                                        .n_routed_experts = 8,
                                        .num_experts_per_tok = 2,
                                        .sliding_window = 16,
                                        .index_n_heads = 2,
                                        .index_head_dim = 32,
                                        .index_topk = 16,
                                        .candidate_topk_blocks = 8,
                                        .candidate_block_size = 4,
                                        .hc_mult = 4,
                                        .n_kv_sources = 1,
                                        .compress_ratios = {1},
                                        .vocab_size = VOCAB};

di_status di_bench_sampler(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    static const char *const laws[] = {"normal", "model"};
    struct bench *b = di_calloc(1, sizeof *b);
    struct di_backend_params params = {.config = &config, .max_rows = 1, .max_context = 64, .threads = (int)o->threads, .isa = o->isa};
    CHECK(b, err, DI_ERR_MEMORY, "bench", "out of memory");
    b->o = o;
    CHECK(di_numerics_by_name("bf16", &params.numerics), err, DI_ERR_INTERNAL, "bench", "no bf16 numerics");
    TRY(di_backend_cpu_create(&params, &b->be, err));
    TRY(di_pool_create(o->threads ? (int)o->threads : di_cpu_count(), &b->pool, err));
    b->probe = di_bench_alloc(PROBE_BYTES);
    b->logits = di_bench_alloc(sizeof(float) * ROWS * VOCAB);
    CHECK(b->probe.p && b->logits.p, err, DI_ERR_MEMORY, "bench", "out of memory");
    memset(b->mask, 0x55, sizeof b->mask);
    printf("instruction set %s, %d threads, %d ids\n\n| law    | row                    |   m |  floor us | step   us | a row  us |     %% "
           "| GB/s "
           "   |\n|---|---|---:|---:|---:|---:|---:|---:|\n",
           b->be->ops->name, di_pool_threads(b->pool), VOCAB);
    for (size_t l = 0; l < 2; l++) {
        fill_logits(b, l == 1);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int m = 1; m <= 16; m += 15)
                if (!o->filter || strstr(shapes[i].name, o->filter))
                    measure_law(b, laws[l], &shapes[i], m);
    }
out:
    if (b) {
        if (b->be)
            b->be->ops->destroy(b->be);
        di_pool_destroy(b->pool);
        di_bench_free(&b->probe);
        di_bench_free(&b->logits);
        di_free(b);
    }
    return status;
}
