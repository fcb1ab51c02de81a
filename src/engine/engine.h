/* Token level of the engine: requests share the steps of one model. Each step is a list of rows: one for every request that decodes, and the next
 * rows of prompts that are not done, up to a row budget. What a request computes depends on itself only (backend.h), so its tokens
 * are the same whatever runs beside it.
 *
 * One thread owns an engine and makes all calls; callbacks come from inside di_engine_step. */
#ifndef DI_ENGINE_ENGINE_H
#define DI_ENGINE_ENGINE_H

#include "cache/kv_store.h"
#include "engine/sampler.h"
#include "model/model.h"

struct di_engine_config {
    int max_batch;      /* requests that run at the same time, 1..1024 */
    int prefill_chunk;  /* prompt rows a step, at least 1 */
    int64_t context;    /* tokens of one request, prompt and answer; 0 = the model's limit, at most 65,536 */
    const uint64_t *banned; /* bit set of ids that are never sampled (spec/encoding.md §1.6), or NULL; borrowed */
};

enum di_end { DI_END_STOP, DI_END_LENGTH, DI_END_CANCELLED, DI_END_ERROR };

struct di_request {
    const int32_t *prompt; /* copied at submit */
    int64_t n_prompt, max_tokens;
    struct di_sampling_params sampling; /* its lists are copied; end_ids end the answer (the id itself is reported) */
    uint32_t sample;                    /* which of several samples with the same seed, 0 for the first */
    bool ignore_end;                    /* end_ids do not end the answer */
    /* A token was sampled. Returning false ends the request with DI_END_STOP after this token (a stop string was found). */
    bool (*on_token)(void *ctx, const struct di_sample *token);
    /* The request is over and its memory gone; called exactly once. `err` is set with DI_END_ERROR. */
    void (*on_end)(void *ctx, enum di_end end, const di_error *err);
    void *ctx;
};

struct di_engine_stats {
    uint64_t steps, prompt_rows, decode_rows, finished, cancelled, failed;
    int running, waiting;
};

struct di_engine;

/* Bytes beside the model: cache (G and S) and the engine's own arrays. */
uint64_t di_engine_bytes(const struct di_config *c, struct di_numerics numerics, const struct di_engine_config *config);
/* Rows that the model must allow in one step. */
int di_engine_max_rows(const struct di_engine_config *config);
/* The context that `config` means for this model. */
int64_t di_engine_context(const struct di_config *c, const struct di_engine_config *config);

/* The model is borrowed; its max_rows and max_context must be at least those of di_engine_max_rows and di_engine_context. */
di_status di_engine_create(struct di_model *model, const struct di_engine_config *config, struct di_engine **out, di_error *err);
void di_engine_destroy(struct di_engine *e); /* running requests end as cancelled */

/* Queue a request. Refused at once, with the reason: an empty prompt, ids outside the vocabulary, prompt + max_tokens beyond the context,
 * sampling parameters out of range. *id may be NULL. */
di_status di_engine_submit(struct di_engine *e, const struct di_request *r, int64_t *id, di_error *err);
/* End a request at the next step. False if it is not (or no longer) known. */
bool di_engine_cancel(struct di_engine *e, int64_t id);
/* Admit, compute one step, sample, report. *busy is false when nothing is running or waiting. An error of one request ends that request; an
 * error returned here is the model's and ends all. */
di_status di_engine_step(struct di_engine *e, bool *busy, di_error *err);
struct di_engine_stats di_engine_stats(const struct di_engine *e);

#endif
