/* Logits of given tokens: prefill in chunks and, from a chosen position on, one row at a time. For `logits`, `perplexity` and tests. */
#ifndef DI_ENGINE_SCORE_H
#define DI_ENGINE_SCORE_H

#include "cache/kv_store.h"
#include "model/model.h"

struct di_score {
    const int32_t *ids; /* [n], positions 0.. */
    int64_t n;
    int chunk;           /* rows a step, 1..max_rows of the model */
    int64_t decode_from; /* rows from this position on go one at a time; n or more = never */
    bool last_only;      /* logits of the last row only */
    /* Logits of rows [pos, pos + rows), some of a step at a time, valid during the call. A failure ends the run. */
    di_status (*rows)(void *ctx, int64_t pos, int rows, const float *logits, di_error *err);
    void *ctx;
    const struct di_trace *trace; /* or NULL */
    float DI_DEVICE *features;    /* or NULL: act [n, taps * hidden_size] */
};
/* Append what a run allocates beside its store. */
void di_score_plan(const struct di_config *c, di_memory_plan *plan);
/* Uses slot 0 of the store from position 0 on and leaves its state there. */
di_status di_score_run(struct di_model *m, struct di_kv_store *s, const struct di_score *a, di_error *err);

#endif
