#define DI_ON_DEVICE /* looks at what was computed */
#include "testing/golden.h"

#include "engine/score.h"
#include "testing/device.h"

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

struct sink {
    float *logits;
    size_t vocab;
};

static di_status keep_rows(void *ctx, int64_t pos, int rows, const float *logits, di_error *err)
{
    struct sink *k = ctx;
    (void)err;
    memcpy(k->logits + (size_t)pos * k->vocab, logits, (size_t)rows * k->vocab * sizeof *logits);
    return DI_OK;
}

di_status di_golden_run(const struct di_golden *g, const struct di_golden_run *run, float *logits, struct di_model **m,
                        struct di_kv_store **s, di_error *err)
{
    di_status status = DI_OK;
    struct di_trace trace = run->trace;
    float *scores = NULL, *features = NULL;
    struct di_model_params p = {
        .backend = di_test_backend, .max_rows = run->chunk, .max_context = g->n_ids, .threads = run->threads, .isa = run->isa};
    const struct di_tensor *map = di_golden_field(g, NULL, "engram_token_map");
    p.token_map = map ? (const int32_t *)(const void *)map->data : NULL;
    *m = NULL;
    *s = NULL;
    CHECK(numerics_of(run->mode, &p.numerics), err, DI_ERR_INVALID, "mode", "unknown mode %s", run->mode);
    TRY(di_model_open(g->dir, &p, m, err));
    TRY(di_kv_store_create((*m)->be, &(*m)->be->layout, 1, di_kv_blocks_for(g->n_ids), g->n_ids, s, err));
    struct di_backend *be = (*m)->be;
    struct sink sink = {.vocab = (size_t)(*m)->c->vocab_size};
    sink.logits = logits;
    struct di_score score = {.ids = g->ids,
                             .n = g->n_ids,
                             .chunk = run->chunk,
                             .decode_from = run->decode_from,
                             .rows = keep_rows,
                             .ctx = &sink,
                             .trace = run->trace.at ? &trace : NULL};
    size_t feature_bytes = (size_t)g->n_ids * (size_t)((*m)->c->n_dspark_targets * (*m)->c->hidden_size) * sizeof(float);
    if (trace.scores_ld)
        trace.scores = scores = di_device_alloc(be, (size_t)run->chunk * (size_t)trace.scores_ld * sizeof *scores);
    if (run->features)
        score.features = features = di_device_alloc(be, feature_bytes);
    TRY(di_score_run(*m, *s, &score, err));
    if (features)
        memcpy(run->features, di_hostile_view(features), feature_bytes);
out:
    if (*m) {
        di_device_free((*m)->be, scores);
        di_device_free((*m)->be, features);
    }
    return status;
}
