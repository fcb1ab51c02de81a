/* A back end that costs next to nothing but keeps cached state of every kind (G of ratio 1 and 2, window rings, raw rings) and
 * computes its tokens from that state alone, as the network does. Every cached row carries the hash of the prefix that it stands for; a row
 * of a layer is right only if the window of the layer below was. So a wrong page, a ring that was not restored or a replay that is too
 * short changes the token, and is counted. The token behind a prefix is one of the prefix's own tokens, read from the cache at a place that
 * the hash says: what belongs to somebody else shows as a token that the prompt never had. */
#ifndef DI_TESTING_NULL_MODEL_H
#define DI_TESTING_NULL_MODEL_H

#include "engine/core.h"

#define DI_NULL_LAYERS 2
#define DI_NULL_END 7 /* one of 32 prefixes is followed by it */

struct di_null_model {
    int vocab, window; /* window at most 128 */
    int64_t context;
    _Atomic bool fail;  /* every step fails from now on */
    _Atomic long wrong; /* rows read that were not those of the request */
    /* Called before a step is computed, if not NULL. */
    void (*before)(void *ctx, const struct di_step *step);
    void *before_ctx;
    uint64_t *hash, *ring; /* of the chunk at hand */
};
/* `context` tokens of a request at most. The caller frees what it holds with fini, after the core is destroyed. */
di_status di_null_model_init(struct di_null_model *m, int vocab, int window, int64_t context, di_error *err);
void di_null_model_fini(struct di_null_model *m);
/* An engine over it. With drafts it guesses: often right, sometimes wrong, sometimes less than it might. */
di_status di_null_core(struct di_null_model *m, const struct di_core_config *config, struct di_core **out, di_error *err);

/* One request under watch. Fields up to `masks` are the caller's, the rest is what happened. */
struct di_watch {
    int32_t *tokens; /* prompt, and room for the answer behind it */
    int n_prompt, max_tokens;
    int stop_after; /* on_token refuses at this count; 0 = never */
    int priority;
    uint64_t tenant;
    int64_t seed, deadline_ns, after;
    int32_t save_at[2];
    size_t n_save_at;
    double temperature, frequency_penalty;
    bool ignore_end;
    const struct di_mask_source *masks;

    int64_t id, cached; /* cached: at the latest start */
    int n_got, starts;
    int progress;     /* tokens since the latest start */
    bool stood_still; /* it was started again without a token in between */
    bool over, twice; /* twice: something came after the end */
    di_end_reason end;
    di_error err;
};
di_status di_watch_submit(struct di_watch *w, struct di_core *e, di_error *err);
/* NULL if the greedy request has what the model says (a part of it if it was cancelled or late), else a sentence. */
const char *di_watch_wrong(const struct di_watch *w);
/* NULL if the engine has nothing left: no request, no held block, no contradiction, nothing read that was wrong. */
const char *di_null_left(const struct di_core *e, const struct di_null_model *m);

#endif
