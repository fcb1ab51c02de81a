/* The text side of a model directory: tokenizer, control ids, the engram token map, and the ids that are never sampled. Read-only after
 * loading. */
#ifndef DI_API_TEXT_MODEL_H
#define DI_API_TEXT_MODEL_H

#include "checkpoint/config.h"
#include "text/prompt.h"

struct di_text_model {
    struct di_tokenizer *tokenizer;
    struct di_control_ids controls;
    int32_t *token_map; /* [vocab_size], NULL without engram */
    uint64_t *banned;   /* bit set over the vocabulary (spec/encoding.md §1.6) */
};

/* DI_ERR_FORMAT if tokenizer and config do not belong together (another number of ids or of compressed ids). */
di_status di_text_model_load(const char *dir, const struct di_config *c, struct di_text_model *out, di_error *err);
void di_text_model_fini(struct di_text_model *t);

#endif
