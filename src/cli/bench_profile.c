#define DI_ON_DEVICE /* of the CPU */
#include "cli/bench_profile.h"

#include "base/mem.h"
#include "cli/bench.h"

#include <stdio.h>
#include <string.h>

struct cost {
    double bytes, flops;
};

/* ---------------------------------------------------------------- what a call cannot do without */

static struct cost weight_cost(const struct di_profile *p, const struct di_backend *be, const struct di_weight *w, int rows)
{
    double cells = (double)w->n * w->k;
    size_t packed = p->inner->weight_bytes(be, w);
    double bytes = packed ? (double)packed
                          : cells * (w->type == DI_W_BF16         ? 2
                                     : w->type == DI_W_FP8_TILE32 ? 1 + 1.0 / 1024
                                                                  : 0.5 + 1.0 / 32);
    return (struct cost){rows ? bytes : 0, 2 * cells * rows};
}

static void add_expert(const struct di_profile *p, const struct di_backend *be, const struct di_expert *e, int rows, struct cost *sum)
{
    const struct di_weight *w[] = {&e->w1, &e->w3, &e->w2};
    for (int i = 0; i < 3; i++) {
        struct cost c = weight_cost(p, be, w[i], rows);
        sum->bytes += c.bytes;
        sum->flops += c.flops;
    }
}

static struct cost cost_moe(const struct di_profile *p, const struct di_backend *be, const struct di_op_moe *d)
{
    struct cost sum = {0, 0};
    int experts = be->params.config->n_routed_experts;
    add_expert(p, be, d->shared, d->m, &sum);
    for (int e = 0; e < experts; e++) {
        int rows = 0;
        for (int i = 0; i < d->m * d->k; i++)
            rows += d->ids[i] == e;
        if (rows)
            add_expert(p, be, &d->experts[e], rows, &sum);
    }
    return sum;
}

static struct cost cost_linear(const struct di_profile *p, const struct di_backend *be, const struct di_op_linear *d)
{
    return weight_cost(p, be, d->w, d->m);
}

static struct cost cost_router(const struct di_profile *p, const struct di_backend *be, const struct di_op_router *d)
{
    return weight_cost(p, be, d->w, d->m);
}

static struct cost cost_hc_mix(const struct di_profile *p, const struct di_backend *be, const struct di_op_hc_mix *d)
{
    double cells = (double)(2 + d->streams) * d->streams * d->streams * d->d;
    (void)p, (void)be;
    return (struct cost){4 * cells, 2 * cells * d->m};
}

/* Rows of one chunk share their keys as far as both see them: each key counts once a chunk. */
static struct cost cost_attention(const struct di_profile *p, const struct di_backend *be, const struct di_op_attention *d)
{
    const struct di_kv_layout *l = &be->layout;
    struct cost c = {0, 0};
    (void)p;
    for (int k = 0; k < d->rows->n_chunks; k++) {
        const struct di_chunk *chunk = &d->rows->chunks[k];
        int last = chunk->pos0 + chunk->n, old = chunk->pos0 < d->window - 1 ? chunk->pos0 : d->window - 1;
        double selected = 0, visible = d->src < 0 ? 0 : (double)(last / l->ratio[d->src]);
        for (int i = chunk->row0; i < chunk->row0 + chunk->n; i++) {
            int pos = d->rows->pos[i], window = pos + 1 < d->window ? pos + 1 : d->window, sel = d->src < 0 ? 0 : d->sel_n[i];
            selected += sel;
            c.flops += 4.0 * d->heads * d->d * (window + sel);
        }
        c.bytes += (double)(old + chunk->n) * (double)l->window_row_bytes;
        c.bytes += (selected < visible ? selected : visible) * (double)l->comp_row_bytes;
    }
    return c;
}

static struct cost cost_index_select(const struct di_profile *p, const struct di_backend *be, const struct di_op_index_select *d)
{
    const struct di_kv_layout *l = &be->layout;
    struct cost c = {0, 0};
    double pool = (double)d->cand_blocks * d->cand_block_size;
    (void)p;
    for (int k = 0; k < d->rows->n_chunks; k++) {
        const struct di_chunk *chunk = &d->rows->chunks[k];
        double most = 0;
        for (int i = 0; i < chunk->n; i++) {
            double keys = (double)((chunk->pos0 + i + 1) / l->ratio[d->src]);
            if (keys <= d->topk) /* all are chosen, none needs a score */
                continue;
            if (d->mode == DI_CAND_FILTER && keys > pool)
                keys = pool;
            most = keys > most ? keys : most;
            c.flops += 2.0 * d->heads * d->d * keys;
        }
        c.bytes += most * (double)l->key_row_bytes;
    }
    return c;
}

static struct cost cost_embed(const struct di_profile *p, const struct di_backend *be, const struct di_op_embed *d)
{
    (void)p, (void)be;
    return (struct cost){2.0 * d->d * d->m, 0};
}

static struct cost cost_engram_gather(const struct di_profile *p, const struct di_backend *be, const struct di_op_engram_gather *d)
{
    (void)p, (void)be;
    return (struct cost){(double)d->m * d->cols * (d->hd + d->hd / 32), 0};
}

/* ---------------------------------------------------------------- entries */

static void name_linear(char *name, size_t size, const struct di_op_linear *d)
{
    static const char *const types[] = {"bf16", "fp8", "fp4"};
    if (d->w->groups > 1)
        snprintf(name, size, "linear %s %dx(%dx%d)", types[d->w->type], d->w->groups, d->w->n / d->w->groups, d->w->k);
    else
        snprintf(name, size, "linear %s %dx%d", types[d->w->type], d->w->n, d->w->k);
}

static void note(struct di_profile *p, const char *name, double seconds, struct cost c)
{
    int i = 0;
    while (i < p->n && strcmp(p->entry[i].name, name) != 0)
        i++;
    if (i == DI_PROFILE_ENTRIES)
        return;
    struct di_profile_entry *e = &p->entry[i];
    if (i == p->n) {
        p->n++;
        *e = (struct di_profile_entry){.calls = 0};
        snprintf(e->name, sizeof e->name, "%s", name);
    }
    e->seconds += seconds;
    if (p->laps > 0)
        return;
    e->calls++;
    e->bytes += c.bytes;
    e->flops += c.flops;
}

/* ---------------------------------------------------------------- the table */

#define TIMED(op, name_, cost_)                                               \
    static void timed_##op(struct di_backend *be, const struct di_op_##op *d) \
    {                                                                         \
        struct di_profile *p = (struct di_profile *)(uintptr_t)be->ops;       \
        double start = di_bench_clock(p->clock);                              \
        p->inner->op(be, d);                                                  \
        double seconds = di_bench_clock(p->clock) - start;                    \
        char name[48];                                                        \
        name_;                                                                \
        note(p, name, seconds, cost_);                                        \
    }
#define PLAIN(op) TIMED(op, snprintf(name, sizeof name, "%s", #op), ((struct cost){0, 0}))
#define COSTED(op) TIMED(op, snprintf(name, sizeof name, "%s", #op), cost_##op(p, be, d))

#define PLAIN_OPS(X) \
    X(rmsnorm)       \
    X(hc_norm)       \
    X(hc_expand)     \
    X(hc_mean)       \
    X(quant8)        \
    X(rope_angles)   \
    X(rope)          \
    X(window_store)  \
    X(window_commit) \
    X(compress) X(raw_commit) X(key_store) X(comp_store) X(gather) X(scale) X(index_query) X(engram_gate) X(markov) X(confidence)
#define COSTED_OPS(X) X(embed) X(hc_mix) X(index_select) X(attention) X(router) X(moe) X(engram_gather)

PLAIN_OPS(PLAIN)
COSTED_OPS(COSTED)
TIMED(linear, name_linear(name, sizeof name, d), cost_linear(p, be, d))

void di_profile_attach(struct di_profile *p, struct di_backend *be, clockid_t clock)
{
    p->n = p->laps = 0;
    p->clock = clock;
    p->inner = be->ops;
    p->ops = *be->ops;
#define SET(op) p->ops.op = timed_##op;
    PLAIN_OPS(SET)
    COSTED_OPS(SET)
    p->ops.linear = timed_linear;
    be->ops = &p->ops;
}

void di_profile_lap(struct di_profile *p)
{
    for (int i = 0; i < p->n; i++) {
        struct di_profile_entry *e = &p->entry[i];
        e->least = p->laps == 0 || e->seconds < e->least ? e->seconds : e->least;
        e->seconds = 0;
    }
    p->laps++;
}

void di_profile_detach(struct di_profile *p, struct di_backend *be)
{
    be->ops = p->inner;
}
