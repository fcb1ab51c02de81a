/* Answers on the way out: the JSON line of `generate`, the plain form, totals, and warnings about what was not understood. */
#ifndef DI_CLI_ANSWER_H
#define DI_CLI_ANSWER_H

#include "text/message.h"
#include "text/tokenizer.h"

#include "base/json.h"

/* One answer, gathered from the engine's records. Zero-initialise and set `engine`. */
struct di_answer {
    di_engine *engine; /* borrowed */
    struct di_message message;
    struct di_ids ids;
    struct di_buf logprobs[2]; /* entries of the content and of the reasoning, separated by commas */
    struct di_buf stop;        /* the stop string that ended it */
    bool done, has_logprobs, has_stop, unconstrained, approximate;
    di_end_reason reason;
    int64_t prompt_tokens, cached_tokens, reasoning_tokens, skipped_rows;
    di_error err; /* DI_OK, or why it failed */
};
/* A di_submission's on_output; `user` is the struct di_answer. */
int di_answer_take(void *user, const di_output *out);
void di_answer_fini(struct di_answer *a);

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
