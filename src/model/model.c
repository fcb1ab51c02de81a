/* Opening a checkpoint with a back end. Where its tensors go: bind.c. */
#include "model/bind.h"
#include "model/draft.h"

#include <stdio.h>

static struct di_backend_params backend_params(const struct di_config *c, const struct di_model_params *p)
{
    return (struct di_backend_params){
        .config = c, .numerics = p->numerics, .max_rows = p->max_rows, .max_context = p->max_context, .threads = p->threads, .isa = p->isa};
}

static di_status create_backend(const struct di_model_params *params, const struct di_backend_params *p, struct di_backend **out,
                                di_error *err)
{
    return params->backend ? params->backend(p, out, err) : di_backend_cpu_create(p, out, err);
}

di_status di_model_plan(const struct di_config *c, const struct di_model_params *params, di_memory_plan *plan, di_error *err)
{
    struct di_backend_params bp = backend_params(c, params);
    struct di_backend *be;
    di_status status = create_backend(params, &bp, &be, err);
    if (status != DI_OK)
        return status;
    plan->context = params->max_context;
    plan->max_rows = params->max_rows;
    snprintf(plan->arithmetic, sizeof plan->arithmetic, "%s", be->bits);
    di_bind_plan(c, be, params->drafts, plan);
    di_checkpoint_plan(c, plan);
    di_memory_region r = {.group = DI_GROUP_WEIGHTS,
                          .place = DI_PLACE_HOST,
                          .name = "token map",
                          .count = c->n_engram ? (uint64_t)c->vocab_size : 0,
                          .unit_bytes = sizeof(int32_t)};
    di_plan_add(plan, &r, "compressed ids, for the engrams");
    r = (di_memory_region){.group = DI_GROUP_ACTIVATIONS,
                           .name = "activations",
                           .count = 1,
                           .unit_bytes = di_forward_bytes(be, params->max_rows, params->drafts)};
    di_plan_add(plan, &r, "of a step of %d rows", params->max_rows);
    r = (di_memory_region){.group = DI_GROUP_ACTIVATIONS,
                           .place = DI_PLACE_HOST,
                           .name = "rows",
                           .count = 1,
                           .unit_bytes = di_step_rows_bytes(c, params->max_rows)};
    di_plan_add(plan, &r, "integers of a step, on their way");
    r = (di_memory_region){.group = DI_GROUP_SCRATCH, .name = "scratch", .count = 1, .unit_bytes = be->scratch_bytes};
    di_plan_add(plan, &r, "of the back end");
    be->ops->destroy(be);
    return status;
}

/* ---------------------------------------------------------------- loading */

static di_status load_weights(struct di_model *m, di_error *err)
{
    struct di_weight_sums sums;
    di_bind_sums(m->c, m->be, m->params.drafts, &sums);
    m->weight_bytes = sums.region_bytes;
    m->weights = m->be->ops->alloc(m->be, DI_MEMORY_WEIGHTS, m->weight_bytes);
    if (!m->weights)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for %zu bytes of weights", m->weight_bytes);
    return di_bind_load(m, &sums, err);
}

static di_status load_engram_tables(struct di_model *m, const int32_t *map, di_error *err)
{
    const struct di_config *c = m->c;
    di_status status = DI_OK;
    if (c->n_engram == 0)
        return DI_OK;
    CHECK(map, err, DI_ERR_INVALID, "token_map", "this model has engram layers and needs the compressed token map of its tokenizer");
    m->token_map = di_arena_alloc(&m->arena, (size_t)c->vocab_size * sizeof *map);
    CHECK(m->token_map, err, DI_ERR_MEMORY, "", "out of memory for the token map");
    for (int i = 0; i < c->vocab_size; i++) {
        CHECK(map[i] >= 0 && map[i] < c->engram_compressed_vocab_size, err, DI_ERR_FORMAT, "token_map",
              "token %d maps to %d, outside the compressed vocabulary of %d", i, map[i], c->engram_compressed_vocab_size);
        m->token_map[i] = map[i];
    }
    TRY(di_engram_init(c, &m->engram, err));
out:
    return status;
}

di_status di_model_open(const char *dir, const struct di_model_params *params, struct di_model **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_model *m = di_calloc(1, sizeof *m);
    CHECK(m, err, DI_ERR_MEMORY, "", "out of memory for the model");
    m->params = *params;
    di_arena_init(&m->arena);
    TRY(di_checkpoint_open(dir, &m->ck, err));
    m->c = &m->ck.config;
    CHECK(params->max_rows > 0 && params->max_context > 0 && params->max_context <= m->c->max_position_embeddings, err, DI_ERR_INVALID,
          "context", "the context must be between 1 and the model's %lld tokens", (long long)m->c->max_position_embeddings);
    if (params->drafts)
        TRY(di_draft_check(&m->ck, err));
    struct di_backend_params bp = backend_params(m->c, params);
    TRY(create_backend(params, &bp, &m->be, err));
    TRY(di_checkpoint_digest(&m->ck, DI_DIGEST_WHOLE, m->digest, err));
    TRY(load_engram_tables(m, params->token_map, err));
    TRY(load_weights(m, err));
    size_t activation_bytes = di_forward_bytes(m->be, params->max_rows, params->drafts);
    m->activations = di_device_alloc(m->be, activation_bytes);
    m->row_staging = di_staging_alloc(m->be, di_step_rows_bytes(m->c, params->max_rows));
    CHECK(m->activations && m->row_staging, err, DI_ERR_MEMORY, "", "out of memory for %zu bytes of activations", activation_bytes);
    TRY(di_checkpoint_check(&m->ck, err)); /* all of it was read while it was the same */
    *out = m;
    m = NULL;
out:
    di_model_close(m);
    return status;
}

void di_model_close(struct di_model *m)
{
    if (!m)
        return;
    if (m->be) {
        m->be->ops->release(m->be, DI_MEMORY_WEIGHTS, m->weights);
        di_device_free(m->be, m->activations);
        di_staging_free(m->be, m->row_staging);
        m->be->ops->destroy(m->be);
    }
    di_checkpoint_close(&m->ck);
    di_arena_fini(&m->arena);
    di_free(m);
}
