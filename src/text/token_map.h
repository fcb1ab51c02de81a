/* The engram token map: token ids that differ only in case, marks, width or space share a compressed id (spec/model.md §5.9). */
#ifndef DI_TEXT_TOKEN_MAP_H
#define DI_TEXT_TOKEN_MAP_H

#include "text/tokenizer.h"

/* Fill map[0..n) for the ids below n, which must all exist in the tokenizer, in order of first occurrence; *distinct = number of
 * different values. The caller compares it with the configuration (99,092 for V4.1-Flash): another count changes every hash.
 * DI_ERR_INVALID: an id is missing; DI_ERR_MEMORY. */
di_status di_token_map_build(const struct di_tokenizer *t, int32_t *map, int32_t n, int32_t *distinct, di_error *err);

/* Append the key of one token; equal keys share a compressed id. For tests and inspection. */
di_status di_token_map_key(const struct di_tokenizer *t, int32_t id, struct di_buf *out, di_error *err);

#endif
