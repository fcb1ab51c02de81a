/* Answers on the way out: the JSON line of `generate`, the plain form, totals, and warnings about what was not understood. */
#ifndef DI_CLI_ANSWER_H
#define DI_CLI_ANSWER_H

#include "base/json.h"
#include "client/answer.h"

/* Append the output line of a finished answer (design: command-line contract), without newline. */
void di_answer_write(struct di_buf *b, const struct di_json *id, const struct di_answer *a, const char *fingerprint);
/* Append what a person reads: reasoning in <think> lines, content, calls as name(arguments). Ends with a newline. */
void di_answer_write_text(struct di_buf *b, const struct di_answer *a);

/* Names that were warned about already. Zero-initialise. */
struct di_str_set {
    char **names;
    size_t n;
};
void di_str_set_fini(struct di_str_set *s);
/* Tell on stderr, once for each name and at most 20 in all, which top-level fields of a request mean nothing here, or nothing beside a raw
 * prompt. */
void di_answer_warn(struct di_str_set *warned, const struct di_json *request, bool raw, int64_t line);

#endif
