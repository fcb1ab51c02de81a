/* The draft (spec/dspark.md §2): a small network of few layers, its stages, that guesses the next tokens of a request from what the backbone
 * knows of it. While a model is open with drafts, each step leaves the draft's context in window rings of its own behind the backbone's, so
 * that whatever carries the rings of a request (slots, snapshots, branches) carries it, too. */
#ifndef DI_MODEL_DRAFT_H
#define DI_MODEL_DRAFT_H

#include "model/model.h"

/* Where a request stands: the rows of its context are computed up to `at` - 1, the token at position `at`, the anchor, is decided. */
struct di_draft_block {
    int slot;
    int32_t at, token;
    int32_t floor; /* positions before it have no context: what bounded replay left out (0: all have) */
};

/* Blocks of any number of requests that are drafted together: block_size tokens each (dspark_block_size, always all of them: rows of a block
 * see each other). Draft k of a block, at position `at` + 1 + k, is number [k][block] of these arrays: [block_size][n]. */
struct di_draft {
    int n; /* at most max_rows / block_size */
    const struct di_draft_block *blocks;
    struct di_kv kv;
    const struct di_sample_task *tasks; /* what the sampler does with its logits, which are filled in */
    struct di_sample_result *results;   /* staging */
    float *confidence;                  /* staging: the logit of "it is the token that the backbone decides"; NULL: nobody asks */
    float DI_DEVICE *logits;            /* NULL, or [block_size][n][vocab_size]: a copy of those that were sampled */
    const struct di_trace *trace;       /* layers count on behind the backbone's */
};
/* Enqueues the drafts of all blocks. Descriptors are read during the call; the rest stays until a fence behind it. What is cached does not
 * change. DI_ERR_INVALID, with nothing enqueued: too many blocks, a token outside the vocabulary, a block without a slot. */
di_status di_draft_launch(struct di_model *m, const struct di_draft *d, di_error *err);

/* Has this checkpoint a draft that can be loaded? Else the first reason, by name. */
di_status di_draft_check(const struct di_checkpoint *ck, di_error *err);

#endif
