/* Run a model over the ids of a golden-vector folder and keep what the forward pass shows. */
#ifndef DI_TESTING_GOLDEN_H
#define DI_TESTING_GOLDEN_H

#include "cache/kv_store.h"
#include "model/model.h"

struct di_golden {
    char dir[256];
    struct di_safetensors vectors;
    const int32_t *ids, *rows;
    int n_ids, n_rows;
};
di_status di_golden_open(const char *model_dir, const char *vector_dir, struct di_golden *g, di_error *err);
void di_golden_close(struct di_golden *g);
/* Field "MODE.name" as fp32 or int32 data; NULL if absent. */
const struct di_tensor *di_golden_field(const struct di_golden *g, const char *mode, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct di_golden_run {
    const char *mode, *isa;
    int threads, chunk;    /* chunk rows a step */
    int decode_from;       /* from this position on one row a step; n_ids = never */
    struct di_trace trace; /* at NULL: none. With a scores_ld it gets scores, of device memory like all that it is shown */
    float *features;       /* NULL or [n_ids, taps * hidden] */
};
/* Prefill (and decode) all ids in one slot; logits of every row into logits [n_ids, vocab]. The model and the store stay open in *m and *s
 * for a look at the caches; close them. */
di_status di_golden_run(const struct di_golden *g, const struct di_golden_run *run, float *logits, struct di_model **m,
                        struct di_kv_store **s, di_error *err);

#endif
