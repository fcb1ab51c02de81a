/* What computes steps for an engine: a model, or in tests and benchmarks something that costs less. */
#ifndef DI_ENGINE_STEPPER_H
#define DI_ENGINE_STEPPER_H

#include "model/model.h"

/* The next tokens of a request are to be guessed: those behind the one at position `at`, which is decided, while its row is not computed. */
struct di_guess {
    int slot;
    int32_t *tokens; /* by absolute position: guesses go to at + 1 and behind */
    int64_t at;
    int most, n;                               /* guesses that are wanted at most; those that were made, 0 so far */
    int32_t floor;                             /* what lies before was not computed in all layers (bounded replay) */
    struct di_sample_task task[DI_MAX_DRAFTS]; /* how the tokens at at + 1 and behind will be drawn; without logits */
};

/* Shapes, which are known before; then calls, which come from one thread at a time, the worker of a pipeline. A step and what it names stay
 * as they are until the launch is done. */
struct di_stepper {
    struct di_backend *be; /* whose memory, copies and sampler are used; NULL: ordinary memory and the plain sampler (tests) */
    struct di_kv_layout layout;
    int vocab, window, layers;
    int rollback; /* of di_replay_rules; 0: no bounded replay */
    int64_t context;
    const char *numerics; /* di_backend.bits, for the prefix keys */
    uint8_t model_digest[DI_DIGEST_BYTES];
    /* Enqueues a step up to what the head needs of the rows in logit_rows; `logits` is NULL. */
    di_status (*compute)(void *ctx, const struct di_step *step, di_error *err);
    /* Enqueues the logits [n][vocab] of the wanted rows first .. first + n - 1 of the step that was computed last. */
    void (*head)(void *ctx, const struct di_step *step, int first, int n, float DI_DEVICE *logits);
    /* Everything is done: did it compute what it should? NULL: yes. */
    di_status (*check)(void *ctx, di_error *err);
    /* Guesses for n requests, between two steps. NULL: none. */
    void (*guess)(void *ctx, const struct di_kv *kv, int n, struct di_guess *guesses);
    void *ctx, *guess_ctx; /* of the calls; of guess */
};

#endif
