#include "engine/score.h"

#include "engine/pipeline.h"

void di_score_plan(const struct di_config *c, di_memory_plan *plan)
{
    di_memory_region r = {
        .group = DI_GROUP_CACHE, .name = "logits", .count = DI_LOGIT_ROWS, .unit_bytes = (uint64_t)c->vocab_size * sizeof(float)};
    di_plan_add(plan, &r, "rows of the vocabulary that are computed together");
    r.place = DI_PLACE_HOST;
    r.name = "logits of the host";
    di_plan_add(plan, &r, "on their way");
}

di_status di_score_run(struct di_model *m, struct di_kv_store *s, const struct di_score *a, di_error *err)
{
    di_status status = DI_OK;
    struct di_backend *be = m->be;
    size_t feature_bytes = (size_t)(m->c->n_dspark_targets * m->c->hidden_size) * be->ops->act_bytes,
           row_bytes = (size_t)m->c->vocab_size * sizeof(float);
    int32_t *wanted = di_calloc((size_t)a->chunk, sizeof *wanted);
    float DI_DEVICE *logits = di_device_alloc(be, DI_LOGIT_ROWS * row_bytes);
    float *seen = di_staging_alloc(be, DI_LOGIT_ROWS * row_bytes);
    CHECK(wanted && logits && seen, err, DI_ERR_MEMORY, "", "out of memory for %d rows", a->chunk);
    for (int64_t at = 0, n; at < a->n; at += n) {
        int64_t end = at < a->decode_from && a->decode_from < a->n ? a->decode_from : a->n;
        n = at < a->decode_from ? a->chunk : 1;
        n = n > end - at ? end - at : n;
        int count = !a->last_only ? (int)n : at + n == a->n ? 1 : 0;
        for (int i = 0; i < count; i++)
            wanted[i] = (int32_t)n - count + i;
        struct di_chunk chunk = {0, 0, (int)n, (int32_t)at};
        struct di_step step = {.n_chunks = 1,
                               .chunks = &chunk,
                               .tokens = &a->ids,
                               .kv = di_kv_view(s),
                               .n_logits = count,
                               .logit_rows = wanted,
                               .trace = a->trace};
        if (a->features)
            step.features = (float DI_DEVICE *)(void DI_DEVICE *)((char DI_DEVICE *)a->features + (size_t)at * feature_bytes);
        CHECK(di_kv_reserve(s, 0, at + n), err, DI_ERR_LIMIT, "", "the cache has no room for %lld tokens", (long long)(at + n));
        di_kv_send_pages(s);
        TRY(di_model_launch(m, &step, err));
        for (int i = 0, rows; i < count; i += rows) {
            rows = count - i < DI_LOGIT_ROWS ? count - i : DI_LOGIT_ROWS;
            di_model_head(m, i, rows, logits);
            be->ops->copy(be, &(struct di_op_copy){1, &(struct di_copy_span){seen, logits, (size_t)rows * row_bytes}});
            TRY(di_model_finish(m, err));
            TRY(a->rows(a->ctx, at + n - count + i, rows, seen, err));
        }
        if (count == 0)
            TRY(di_model_finish(m, err));
    }
out:
    di_device_free(be, logits);
    di_staging_free(be, seen);
    di_free(wanted);
    return status;
}
