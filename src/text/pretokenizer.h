/* The pre-tokenizer of the DeepSeek tokenizers: cuts text into the pieces inside which BPE merges (spec/encoding.md §1.4). */
#ifndef DI_TEXT_PRETOKENIZER_H
#define DI_TEXT_PRETOKENIZER_H

#include <stddef.h>

/* Bytes of the first piece of s[0..n), n > 0, which must be well-formed UTF-8. A piece depends only on the text from its start on, so
 * calling this again behind each piece yields all of them. Linear in the length of the piece (and of a whitespace run behind it). */
size_t di_pretoken_length(const char *s, size_t n);

/* The three split expressions of tokenizer.json that the function above implements. */
extern const char *const di_pretoken_regex[3];

#endif
