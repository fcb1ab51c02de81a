/* What the records of a request add up to (di_output of deepinfer.h). The one place where they are gathered: by the service, the commands
 * and tests. */
#ifndef DI_CLIENT_ANSWER_H
#define DI_CLIENT_ANSWER_H

#include "base/str.h"

struct di_answer_call {
    struct di_buf name, arguments, id; /* name: without its namespace */
    struct di_buf space;
    bool custom;
};

/* Tokens of one kind as the entries of a logprobs list, separated by commas, and how many. */
struct di_logprob_list {
    struct di_buf entries;
    size_t n;
};

enum { DI_ANSWER_IDS = 1, DI_ANSWER_LOGPROBS = 2, DI_ANSWER_REASONING_LOGPROBS = 4 };

/* Zero-initialise and set `engine` and `keep`. All text is owned by the struct. */
struct di_answer {
    const di_engine *engine; /* borrowed; whose tokens the log-probabilities spell, NULL: none are spelled */
    unsigned keep;           /* of the token records, beside what is counted */
    int state;               /* the owner's */

    di_request_id request;
    di_answer_start start;
    bool thinking, finished;
    struct di_buf reasoning, content;
    struct di_answer_call *calls;
    size_t n_calls, cap_calls;
    int32_t *ids; /* [n_ids] */
    size_t n_ids, cap_ids;
    struct di_logprob_list content_tokens, reasoning_tokens;
    double logprob_sum; /* of all tokens that have one */
    int64_t prompt_tokens, cached_tokens, completion_tokens, n_reasoning;
    /* Once it is finished. */
    struct di_buf stop; /* the string that ended it, if stop_index >= 0 */
    int stop_index;
    int32_t last_token;
    di_end_reason reason;
    bool unconstrained, approximate;
    int64_t skipped_rows, drafted_tokens, accepted_tokens;
    di_error err; /* DI_OK, or why it failed */
};
/* False: memory ran out, the answer is not whole. */
bool di_answer_add(struct di_answer *a, const di_output *o);
/* A di_submission's on_output; `user` is the struct di_answer. */
int di_answer_take(void *user, const di_output *o);
void di_answer_fini(struct di_answer *a); /* all zero again */

/* ---- tokens as JSON ---- */

/* The bytes of a token as a JSON string; those that are no whole characters as \xNN (spec/encoding.md §1.5). */
void di_write_token(struct di_buf *b, const di_engine *engine, int32_t id, struct di_str *bytes, char room[static 256]);
/* A log-probability; what has no chance at all is -9999. */
void di_write_chance(struct di_buf *b, float logprob);
/* An entry {"token", "logprob", "bytes", "top_logprobs"} of a token. */
void di_write_logprob(struct di_buf *b, const di_engine *engine, const di_output *o);

#endif
