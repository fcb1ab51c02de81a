/* Tokenizer: a Hugging Face tokenizer.json with byte-level BPE and the DeepSeek pre-tokenizer (spec/encoding.md §1).
 *
 * A tokenizer is immutable after loading: any number of threads may use one at the same time. */
#ifndef DI_TEXT_TOKENIZER_H
#define DI_TEXT_TOKENIZER_H

#include "text/bpe.h"

struct di_tokenizer;

/* Load a tokenizer.json; `path` is the file or the model directory that contains it. Caller destroys *out.
 * DI_ERR_NOT_FOUND, DI_ERR_IO; DI_ERR_FORMAT: broken or contradictory file; DI_ERR_UNSUPPORTED: another kind of tokenizer (its
 * normaliser, pre-tokenizer, decoder, model or added-token flags would need rules that are not here); DI_ERR_LIMIT: 64 MB, 2^20 ids. */
di_status di_tokenizer_load(const char *path, struct di_tokenizer **out, di_error *err);
/* The same from the text of the file, which may be freed afterwards. */
di_status di_tokenizer_from_json(struct di_str json, struct di_tokenizer **out, di_error *err);
void di_tokenizer_destroy(struct di_tokenizer *t); /* may be NULL */

/* Largest id + 1. Ids below may be missing (holes): they have no bytes. */
int32_t di_tokenizer_size(const struct di_tokenizer *t);
/* Number of added tokens: the control set (spec/encoding.md §1.2). */
int32_t di_tokenizer_n_added(const struct di_tokenizer *t);
/* Does the id exist? */
bool di_tokenizer_has(const struct di_tokenizer *t, int32_t id);
/* Is it an added token? False for an id out of range. */
bool di_tokenizer_is_added(const struct di_tokenizer *t, int32_t id);
/* Id of the added token spelled so, or -1. */
int32_t di_tokenizer_find_added(const struct di_tokenizer *t, struct di_str spelling);
/* Raw bytes of a token; of an added one, its spelling. Empty for an id that does not exist. Borrowed from the tokenizer. They may begin or
 * end inside a character: join before decoding, or use struct di_utf8_stream (base/utf8.h). */
struct di_str di_tokenizer_token_bytes(const struct di_tokenizer *t, int32_t id);

enum di_tokenizer_flags {
    DI_TOKENIZER_PLAIN = 0, /* everything is text: no input can produce an added token */
    DI_TOKENIZER_ADDED = 1  /* spellings of added tokens become their ids */
};

/* Append the ids of `text` to *out. Nothing is put in front or behind (no BOS). DI_ERR_INVALID: not well-formed UTF-8 (`where` gives the
 * byte); DI_ERR_MEMORY; DI_ERR_LIMIT: a single piece of 4 GB. After an error *out has its old content. */
di_status di_tokenizer_encode(const struct di_tokenizer *t, struct di_str text, unsigned flags, struct di_ids *out, di_error *err);

/* Append the text of the ids, ill-formed sequences replaced by U+FFFD. DI_ERR_INVALID for an id that does not exist. */
di_status di_tokenizer_decode(const struct di_tokenizer *t, const int32_t *ids, size_t n, struct di_buf *out, di_error *err);

/* Append a byte as the character that stands for it in tokenizer.json (spec/encoding.md §1.3). */
void di_tokenizer_add_byte_char(struct di_buf *out, unsigned char byte);

#endif
