#include "checkpoint/plan.h"

#include <stdarg.h>
#include <stdio.h>

/* Does a back end that wants its own layout copy this part? The others are always read where the file is mapped. */
static bool is_repacked(enum di_part part)
{
    static const bool repacked[DI_PART_COUNT] = {
        [DI_PART_HEAD] = true,          [DI_PART_ATTENTION] = true, [DI_PART_COMPRESSOR] = true,    [DI_PART_INDEXER_KEY] = true,
        [DI_PART_INDEXER_QUERY] = true, [DI_PART_ROUTER] = true,    [DI_PART_SHARED_EXPERT] = true, [DI_PART_ROUTED_EXPERTS] = true,
        [DI_PART_ENGRAM_PROJ] = true,   [DI_PART_DRAFT] = true,     [DI_PART_VISION] = true,
    };
    return repacked[part];
}

struct planner {
    struct di_plan *plan;
    bool overflow;
};

static struct di_plan_region *add(struct planner *p, enum di_plan_kind kind, enum di_plan_place place, const char *name, uint64_t count,
                                  uint64_t unit_bytes)
{
    struct di_plan *plan = p->plan;
    struct di_plan_region *r = &plan->region[plan->n++]; /* parts, KV sources and 8 more */
    uint64_t elsewhere = 0, *total = place == DI_PLACE_MAPPED ? &plan->mapped : place == DI_PLACE_ALLOCATED ? &plan->allocated : &elsewhere;
    *r = (struct di_plan_region){.kind = kind, .place = place, .count = count, .unit_bytes = unit_bytes};
    snprintf(r->name, sizeof r->name, "%s", name);
    if (unit_bytes == DI_PLAN_UNKNOWN) {
        r->bytes = DI_PLAN_UNKNOWN;
        plan->unknown++;
    } else if (!di_mul(count, unit_bytes, &r->bytes) || !di_add(*total, r->bytes, total) || *total > INT64_MAX) {
        p->overflow = true;
    }
    return r;
}

static void note(struct di_plan_region *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct di_plan_region *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->note, sizeof r->note, fmt, ap);
    va_end(ap);
}

static void plan_weights(struct planner *p, const struct di_config *c, const struct di_plan_params *params)
{
    struct di_part_sums sums;
    uint64_t copied = 0;
    di_part_sums(c, params->draft, params->vision, &sums);
    for (int i = 0; i < DI_PART_COUNT; i++) {
        const struct di_part_sum *s = &sums.part[i];
        if (s->tensors == 0)
            continue;
        bool unused = (i == DI_PART_DRAFT && !params->load_draft) || (i == DI_PART_VISION && !params->load_vision);
        bool copy = !unused && is_repacked((enum di_part)i) && params->packed_bytes != 0;
        struct di_plan_region *r = add(p, DI_PLAN_WEIGHTS,
                                       unused ? DI_PLACE_UNUSED
                                       : copy ? DI_PLACE_COPIED
                                              : DI_PLACE_MAPPED,
                                       di_part_name((enum di_part)i), 1, s->bytes);
        note(r, "%llu tensor%s", (unsigned long long)s->tensors, s->tensors == 1 ? "" : "s");
        copied += copy ? s->bytes : 0;
    }
    if (copied == 0)
        return;
    bool known = params->packed_bytes != DI_PLAN_UNKNOWN;
    struct di_plan_region *r = add(p, DI_PLAN_WEIGHTS, DI_PLACE_ALLOCATED, "repacked weights", 1, known ? params->packed_bytes : copied);
    note(r, known ? "in the back end's layout" : "in the back end's layout; an estimate: the size in the file");
}

/* G, shared by all requests: spec §6, packed rows. */
static void plan_cache(struct planner *p, const struct di_config *c, const struct di_plan_params *params)
{
    const uint64_t comp = (uint64_t)(c->head_dim / 2 + c->head_dim / 16), key = (uint64_t)(c->index_head_dim / 2 + c->index_head_dim / 32);
    const uint64_t pages = (uint64_t)((params->context + DI_PLAN_BLOCK_TOKENS - 1) / DI_PLAN_BLOCK_TOKENS),
                   blocks = pages * (uint64_t)params->batch;
    for (int i = 0; i < c->n_kv_sources; i++) {
        int l = c->kv_source_layer_ids[i], rows = DI_PLAN_BLOCK_TOKENS / c->compress_ratios[l];
        char name[40];
        snprintf(name, sizeof name, "KV of layer %d", l);
        struct di_plan_region *r = add(p, DI_PLAN_CACHE, DI_PLACE_ALLOCATED, name, blocks, (uint64_t)rows * (comp + key));
        note(r, "%d rows of %llu + %llu B in a block of %d tokens", rows, (unsigned long long)comp, (unsigned long long)key,
             DI_PLAN_BLOCK_TOKENS);
        p->plan->block_bytes += r->unit_bytes;
    }
    note(add(p, DI_PLAN_CACHE, DI_PLACE_ALLOCATED, "page tables", (uint64_t)params->batch, 2 * pages * 4),
         "4 B a block, for each request, on the host and on the device");
    note(add(p, DI_PLAN_CACHE, DI_PLACE_ALLOCATED, "free list", 1, blocks * 4), "4 B a block");
}

/* S, for each request. */
static void plan_state(struct planner *p, const struct di_config *c, const struct di_plan_params *params)
{
    const uint64_t layers = (uint64_t)(c->num_hidden_layers + c->num_nextn_predict_layers),
                   row = (uint64_t)(c->head_dim + c->head_dim / 32);
    uint64_t tails = 0;
    for (int i = 0; i < c->n_kv_sources; i++)
        tails += c->compress_ratios[c->kv_source_layer_ids[i]] == 2;
    struct di_plan_region *r =
        add(p, DI_PLAN_STATE, DI_PLACE_ALLOCATED, "window rings", (uint64_t)params->batch, layers * DI_PLAN_RING_ROWS * row);
    note(r, "%llu layers of %d rows of %llu B", (unsigned long long)layers, DI_PLAN_RING_ROWS, (unsigned long long)row);
    p->plan->bytes_per_sequence += r->unit_bytes;
    r = add(p, DI_PLAN_STATE, DI_PLACE_ALLOCATED, "open groups", (uint64_t)params->batch,
            tails * DI_PLAN_TAIL_ROWS * 2 * (uint64_t)c->head_dim * 4);
    note(r, "%llu ratio-2 sources of %d rows of kv and gate in fp32", (unsigned long long)tails, DI_PLAN_TAIL_ROWS);
    p->plan->bytes_per_sequence += r->unit_bytes;
    r = add(p, DI_PLAN_STATE, DI_PLACE_ALLOCATED, "token ids", (uint64_t)params->batch, (uint64_t)params->context * 4);
    note(r, "4 B a token; the n-grams of the engram look back into them");
    p->plan->bytes_per_sequence += r->unit_bytes;
}

di_status di_plan_make(const struct di_config *c, const struct di_plan_params *params, struct di_plan *out, di_error *err)
{
    struct planner p = {.plan = out};
    *out = (struct di_plan){0};
    if (params->context < 1 || params->context > c->max_position_embeddings)
        return di_fail(err, DI_ERR_INVALID, "", "a context of %lld tokens was asked for; this model has 1 to %lld",
                       (long long)params->context, (long long)c->max_position_embeddings);
    if (params->batch < 1 || params->batch > 1000000)
        return di_fail(err, DI_ERR_INVALID, "", "a batch of %lld was asked for; 1 to 1000000 are possible", (long long)params->batch);
    plan_weights(&p, c, params);
    plan_cache(&p, c, params);
    plan_state(&p, c, params);
    note(add(&p, DI_PLAN_SCRATCH, DI_PLACE_ALLOCATED, "activations", 1, params->activation_bytes), "one step of the model");
    note(add(&p, DI_PLAN_SCRATCH, DI_PLACE_ALLOCATED, "scratch", 1, params->scratch_bytes), "of the back end");
    if (p.overflow)
        return di_fail(err, DI_ERR_LIMIT, "", "the memory for a context of %lld and a batch of %lld passes 2^63 bytes",
                       (long long)params->context, (long long)params->batch);
    return DI_OK;
}
