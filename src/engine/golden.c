#include "engine/golden.h"

#include <stdarg.h>
#include <stdio.h>

di_status di_golden_open(const char *model_dir, const char *vector_dir, struct di_golden *g, di_error *err)
{
    char path[300];
    di_status status = DI_OK;
    memset(g, 0, sizeof *g);
    snprintf(g->dir, sizeof g->dir, "%s", model_dir);
    snprintf(path, sizeof path, "%s/vectors.safetensors", vector_dir);
    TRY(di_safetensors_open(path, &g->vectors, err));
    const struct di_tensor *ids = di_safetensors_find(&g->vectors, "ids"), *rows = di_safetensors_find(&g->vectors, "rows");
    CHECK(ids && rows && ids->dtype == DI_DT_I32 && rows->dtype == DI_DT_I32, err, DI_ERR_FORMAT, path, "no ids or rows");
    g->ids = (const int32_t *)(const void *)ids->data;
    g->rows = (const int32_t *)(const void *)rows->data;
    g->n_ids = (int)ids->shape[0];
    g->n_rows = (int)rows->shape[0];
out:
    return status;
}

void di_golden_close(struct di_golden *g)
{
    di_safetensors_close(&g->vectors);
}

const struct di_tensor *di_golden_field(const struct di_golden *g, const char *mode, const char *fmt, ...)
{
    char name[128];
    va_list ap;
    int n = mode ? snprintf(name, sizeof name, "%s.", mode) : 0;
    va_start(ap, fmt);
    vsnprintf(name + n, sizeof name - (size_t)n, fmt, ap);
    va_end(ap);
    return di_safetensors_find(&g->vectors, name);
}

/* Field names of the vectors and names of --numerics differ. */
static bool numerics_of(const char *mode, struct di_numerics *out)
{
    static const char *const names[][2] = {{"f32_nocache_quant", "f32-noquant"}, {"bf16_wo_a_q8", "bf16-woa8"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(mode, names[i][0]) == 0)
            mode = names[i][1];
    return di_numerics_by_name(mode, out);
}

static di_status run_steps(const struct di_golden *g, const struct di_golden_run *run, struct di_model *m, struct di_kv_store *s, float *logits,
                           di_error *err)
{
    int32_t all[4096];
    size_t vocab = (size_t)m->c->vocab_size, feature_bytes = (size_t)(m->c->n_dspark_targets * m->c->hidden_size) * m->be->ops->act_bytes;
    for (int at = 0; at < g->n_ids;) {
        int limit = at < run->decode_from ? run->decode_from : g->n_ids;
        int n = at < run->decode_from ? run->chunk : 1;
        n = n > limit - at ? limit - at : n;
        for (int i = 0; i < n; i++)
            all[i] = i;
        struct di_chunk chunk = {0, 0, n, at};
        struct di_step step = {.n_chunks = 1, .chunks = &chunk, .tokens = &g->ids, .kv = di_kv_view(s), .n_logits = n, .logit_rows = all,
                               .logits = logits + (size_t)at * vocab, .trace = run->trace};
        if (run->features)
            step.features = (float *)(void *)((char *)run->features + (size_t)at * feature_bytes);
        if (!di_kv_reserve(s, 0, at + n))
            return di_fail(err, DI_ERR_INTERNAL, "", "the pool is too small");
        di_status status = di_model_step(m, &step, err);
        if (status != DI_OK)
            return status;
        at += n;
    }
    return DI_OK;
}

di_status di_golden_run(const struct di_golden *g, const struct di_golden_run *run, float *logits, struct di_model **m, struct di_kv_store **s,
                        di_error *err)
{
    di_status status = DI_OK;
    struct di_model_params p = {.max_rows = run->chunk, .max_context = g->n_ids, .threads = run->threads, .isa = run->isa};
    const struct di_tensor *map = di_golden_field(g, NULL, "engram_token_map");
    p.token_map = map ? (const int32_t *)(const void *)map->data : NULL;
    *m = NULL;
    *s = NULL;
    CHECK(numerics_of(run->mode, &p.numerics), err, DI_ERR_INVALID, "mode", "unknown mode %s", run->mode);
    TRY(di_model_open(g->dir, &p, m, err));
    TRY(di_kv_store_create(&(*m)->be->layout, 1, di_kv_blocks_for(g->n_ids), g->n_ids, s, err));
    TRY(run_steps(g, run, *m, *s, logits, err));
out:
    return status;
}
