/* Answers on the way out: the JSON line of `generate`, the plain form, totals, and warnings about what was not understood. */
#ifndef DI_CLI_ANSWER_H
#define DI_CLI_ANSWER_H

#include "engine/completion.h"

/* Append the output line of a finished answer (design: command-line contract), without newline. */
void di_answer_write(struct di_buf *b, const struct di_json *id, const struct di_completion *c);
/* Append what a person reads: reasoning in <think> lines, content, calls as name(arguments). Ends with a newline. */
void di_answer_write_text(struct di_buf *b, const struct di_completion *c);

struct di_answer_totals {
    uint64_t prompt_tokens, completion_tokens;
};
void di_answer_count(struct di_answer_totals *t, const struct di_completion *c);
/* Tokens sampled so far: of finished answers and of those at work. */
uint64_t di_answer_live_tokens(const struct di_answer_totals *t, const struct di_core *e);

/* Append the engine's counters as one JSON object. */
void di_answer_write_stats(struct di_buf *b, const struct di_core_stats *s);

/* Names that were warned about already. Zero-initialise. */
struct di_str_set {
    char **names;
    size_t n;
};
void di_str_set_fini(struct di_str_set *s);
/* Tell on stderr, once for each name and at most 20 in all, which top-level fields of a request mean nothing here. */
void di_answer_warn_unknown(struct di_str_set *warned, const struct di_json *request, int64_t line, bool quiet);

#endif
