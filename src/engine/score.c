#include "engine/score.h"

di_status di_score_run(struct di_model *m, struct di_kv_store *s, const struct di_score *a, di_error *err)
{
    di_status status = DI_OK;
    size_t feature_bytes = (size_t)(m->c->n_dspark_targets * m->c->hidden_size) * m->be->ops->act_bytes;
    int32_t *wanted = di_calloc((size_t)a->chunk, sizeof *wanted);
    CHECK(wanted, err, DI_ERR_MEMORY, "", "out of memory for %d rows", a->chunk);
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
                               .logits = a->logits,
                               .trace = a->trace};
        if (a->features)
            step.features = (float *)(void *)((char *)a->features + (size_t)at * feature_bytes);
        CHECK(di_kv_reserve(s, 0, at + n), err, DI_ERR_LIMIT, "", "the cache has no room for %lld tokens", (long long)(at + n));
        TRY(di_model_step(m, &step, err));
        if (count > 0)
            TRY(a->rows(a->ctx, at + n - count, count, a->logits, err));
    }
out:
    di_free(wanted);
    return status;
}
