/* Driver of the matrix kernels: packing, linear layers, the router. The experts are in linear_moe.c. */
#include "backend/cpu/linear.h"

#include <math.h>
#include <string.h>

const struct di_kernel *di_kernel_of(enum di_cpu_isa isa)
{
#if defined(__x86_64__)
    static const struct di_kernel *const kernels[DI_ISA_COUNT] = {[DI_ISA_AVX2] = &di_kernel_avx2,
                                                                  [DI_ISA_AVX512] = &di_kernel_avx512,
                                                                  [DI_ISA_AVX512BF16] = &di_kernel_avx512bf16,
                                                                  [DI_ISA_AMX] = &di_kernel_amx};
    return kernels[isa];
#else
    (void)isa;
    return NULL;
#endif
}

/* ---------------------------------------------------------------- scratch and threads */

static struct di_linear_scratch carve_linear(struct di_carver *c, const struct di_kernel *kern, size_t k)
{
    struct di_linear_scratch s;
    for (int i = 0; i < 2; i++)
        s.c[i] = di_carve(c, DI_TILE_ROWS * DI_UNIT, sizeof *s.c[i]);
    s.panel = di_carve(c, DI_PANEL_BYTES, 1);
    s.x = di_carve(c, (size_t)kern->tile_rows * k, kern->row_bytes);
    return s;
}

static float *carve_logits(struct di_carver *c, int m, int experts)
{
    return di_carve(c, (size_t)m * (size_t)experts, sizeof(float));
}

void di_cpu_linear_scratch(const struct di_backend_params *p, enum di_cpu_isa isa, struct di_cpu_scratch *s)
{
    struct di_carver tiles = {0}, logits = {0}, moe = {0};
    carve_linear(&tiles, di_kernel_of(isa), (size_t)di_cpu_longest_k(p->config));
    carve_logits(&logits, p->max_rows, p->config->n_routed_experts);
    di_linear_moe_count(p, &moe);
    di_cpu_need(&s->per_thread, &tiles);
    di_cpu_need(&s->shared, &logits);
    di_cpu_need(&s->shared, &moe);
}

struct di_linear_scratch di_linear_scratch_of(struct di_cpu *cpu, int thread, int k)
{
    struct di_carver c = di_cpu_per_thread(cpu, thread);
    return carve_linear(&c, di_kernel_of(cpu->isa), (size_t)k);
}

#define WORTH_WAKING 1000000 /* multiply-adds that one core does while another wakes and returns: some 10 us */

void di_linear_run(struct di_cpu *cpu, int64_t work, di_pool_fn fn, void *ctx)
{
    if (cpu->threads == 1 || work < WORTH_WAKING)
        fn(ctx, 0, 1);
    else
        di_pool_run(cpu->pool, fn, ctx);
}

/* ---------------------------------------------------------------- packing */

static size_t weight_bytes(const struct di_backend *be, const struct di_weight *w)
{
    const struct di_kernel *kern = di_kernel_of(((const struct di_cpu *)be)->isa);
    return (size_t)w->groups * (size_t)di_units_per_group(w) * di_unit_bytes(kern, w->type, w->k);
}

struct pack_job {
    const struct di_kernel *kern;
    const struct di_weight *w;
    uint8_t *dst;
};

static void pack_part(void *ctx, int thread, int n_threads)
{
    struct pack_job *j = ctx;
    di_range r = di_split((int64_t)j->w->groups * di_units_per_group(j->w), 1, thread, n_threads);
    for (int64_t u = r.begin; u < r.end; u++)
        di_unit_pack(j->kern, j->w, (int)u, j->dst + (size_t)u * di_unit_bytes(j->kern, j->w->type, j->w->k));
}

static void weight_pack(struct di_backend *be, struct di_weight *w, void *dst)
{
    struct di_cpu *cpu = di_cpu_of(be);
    struct pack_job j = {di_kernel_of(cpu->isa), w, dst};
    di_linear_run(cpu, (int64_t)w->n * w->k, pack_part, &j);
    w->packed = dst;
}

/* ---------------------------------------------------------------- linear */

struct linear_job {
    struct di_cpu *cpu;
    const struct di_kernel *kern;
    const struct di_op_linear *d;
    int row_blocks, block_rows, units; /* units of one group */
};

/* Rows [row0, row0 + rows) times units [first, last) of one group. */
static void linear_block(const struct linear_job *j, const struct di_linear_scratch *s, int row0, int rows, int group, int first, int last)
{
    const struct di_weight *w = j->d->w;
    size_t ldx = (size_t)w->groups * (size_t)w->k, unit_bytes = di_unit_bytes(j->kern, w->type, w->k);
    int per_group = w->n / w->groups;
    const float *x[DI_TILE_ROWS];
    float *y[DI_TILE_ROWS];
    for (int r = 0; r < rows; r++) {
        x[r] = (const float *)j->d->x + (size_t)(row0 + r) * ldx + (size_t)group * (size_t)w->k;
        y[r] = (float *)j->d->y + (size_t)(row0 + r) * (size_t)w->n + (size_t)group * (size_t)per_group + (size_t)first * DI_UNIT;
    }
    j->kern->pack_x(x, rows, w->k, s->x);
    struct di_tile t = {.type = w->type, .rows = rows, .k = w->k, .x = s->x, .panel = s->panel, .c = s->c[0]};
    t.unit = (const uint8_t *)w->packed + ((size_t)group * (size_t)j->units + (size_t)first) * unit_bytes;
    for (int u = first; u < last; u++, t.unit += unit_bytes) {
        int cols = per_group - u * DI_UNIT < DI_UNIT ? per_group - u * DI_UNIT : DI_UNIT;
        j->kern->tile(&t);
        j->kern->store(&(struct di_tile_store){.rows = rows, .cols = cols, .c = t.c, .y = y, .raw = j->d->out_f32});
        for (int r = 0; r < rows; r++)
            y[r] += cols;
    }
}

/* The work is the list of (row block, group, unit); a thread takes a contiguous part. */
static void linear_part(void *ctx, int thread, int n_threads)
{
    const struct linear_job *j = ctx;
    struct di_linear_scratch s = di_linear_scratch_of(j->cpu, thread, j->d->w->k);
    int groups = j->d->w->groups;
    if (j->kern->enter)
        j->kern->enter();
    di_range r = di_split((int64_t)j->row_blocks * groups * j->units, 1, thread, n_threads);
    while (r.begin < r.end) {
        int first = (int)(r.begin % j->units), group = (int)(r.begin / j->units % groups), block = (int)(r.begin / j->units / groups);
        int count = r.end - r.begin < j->units - first ? (int)(r.end - r.begin) : j->units - first;
        int row0 = block * j->block_rows, rows = j->d->m - row0 < j->block_rows ? j->d->m - row0 : j->block_rows;
        linear_block(j, &s, row0, rows, group, first, first + count);
        r.begin += count;
    }
    if (j->kern->leave)
        j->kern->leave();
}

static void linear_op(struct di_backend *be, const struct di_op_linear *d)
{
    struct di_cpu *cpu = di_cpu_of(be);
    if (d->m <= 0)
        return;
    struct linear_job j = {cpu, di_kernel_of(cpu->isa), d, .units = di_units_per_group(d->w)};
    j.block_rows = j.kern->tile_rows;
    j.row_blocks = (d->m + j.block_rows - 1) / j.block_rows;
    di_linear_run(cpu, (int64_t)d->w->n * d->w->k * d->m, linear_part, &j);
}

/* ---------------------------------------------------------------- router */

#define ROUTER_SCORE_COST 200 /* of one score, its exponential, logarithm, root and place, in multiply-adds */

struct router_job {
    const struct di_op_router *d;
    float *logits; /* [m, experts] */
};

static float router_score(float l)
{
    return sqrtf(l > 20.0f ? l : log1pf(expf(l)));
}

/* The k best of s + bias, ids ascending; of equals the lower id. */
static void router_row(const struct di_op_router *d, float *s, const float *bias, int32_t *ids, float *weights)
{
    float best[DI_MAX_EXPERTS_PER_TOK], sum = 0; /* in falling order, ids beside them */
    for (int e = 0, n = 0; e < d->experts; e++) {
        s[e] = router_score(s[e]);
        float v = s[e] + bias[e];
        if (n == d->k && !(v > best[n - 1]))
            continue;
        int at = n < d->k ? n++ : n - 1;
        for (; at > 0 && v > best[at - 1]; at--) {
            best[at] = best[at - 1];
            ids[at] = ids[at - 1];
        }
        best[at] = v;
        ids[at] = e;
    }
    for (int i = 1; i < d->k; i++)
        for (int a = i; a > 0 && ids[a - 1] > ids[a]; a--) {
            int32_t swap = ids[a];
            ids[a] = ids[a - 1];
            ids[a - 1] = swap;
        }
    for (int i = 0; i < d->k; i++)
        sum += s[ids[i]];
    for (int i = 0; i < d->k; i++)
        weights[i] = s[ids[i]] / (sum + 1e-20f) * d->scale;
}

static void router_padding(const struct di_op_router *d, int64_t row)
{
    for (int64_t i = row * d->k; i < (row + 1) * d->k; i++) {
        d->ids[i] = -1;
        d->weights[i] = 0;
    }
}

static void router_part(void *ctx, int thread, int n_threads)
{
    const struct router_job *j = ctx;
    const struct di_op_router *d = j->d;
    di_range r = di_split(d->m, 1, thread, n_threads);
    for (int64_t i = r.begin; i < r.end; i++) {
        enum di_row_kind kind = d->kind ? d->kind[i] : DI_ROW_TEXT;
        if (kind == DI_ROW_PADDING)
            router_padding(d, i);
        else
            router_row(d, j->logits + i * d->experts, kind == DI_ROW_IMAGE ? d->bias_vl : d->bias, d->ids + i * d->k,
                       d->weights + i * d->k);
    }
}

static void router_op(struct di_backend *be, const struct di_op_router *d)
{
    struct di_cpu *cpu = di_cpu_of(be);
    struct di_carver c = di_cpu_shared(cpu);
    struct router_job j = {d, carve_logits(&c, d->m, d->experts)};
    linear_op(be, &(struct di_op_linear){.m = d->m, .w = d->w, .x = d->x, .y = j.logits, .out_f32 = true});
    di_linear_run(cpu, (int64_t)d->m * d->experts * ROUTER_SCORE_COST, router_part, &j);
}

void di_cpu_linear_ops(struct di_ops *ops, enum di_cpu_isa isa)
{
    if (!di_kernel_of(isa))
        return;
    ops->weight_bytes = weight_bytes;
    ops->weight_pack = weight_pack;
    ops->linear = linear_op;
    ops->router = router_op;
    ops->moe = di_linear_moe;
}
