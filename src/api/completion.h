/* One answer to a request (prepared.h): the sampled ids become a message (reasoning, content, tool calls). */
#ifndef DI_API_COMPLETION_H
#define DI_API_COMPLETION_H

#include "api/prepared.h"
#include "text/message.h"

struct di_completion {
    struct di_prepared *prepared; /* held: what it shares with the other answers to its request */
    const struct di_chat *chat;   /* of it, as is */
    const struct di_text_model *text;
    struct di_ids prompt; /* of it; a branch's own */
    int64_t max_tokens;
    struct di_follower *follower; /* until the engine has it; NULL: no form */
    size_t begins_at;             /* of the prompt's tokens, those in front of the answer: a branch's prompt has some of the answer */
    struct di_cap cap;            /* of the reasoning */
    struct di_ids ids;            /* sampled, the end id included */
    int64_t reasoning_tokens, cached_tokens;
    struct di_request_facts facts; /* set when it is done; before, as of one that came nowhere */
    struct di_message message;
    di_end_reason end;
    bool begun, muted; /* muted: events are not passed on */
    bool enough;       /* the one call that was asked for is there */
    di_error err;      /* with DI_REASON_ERROR, or if the text could not be parsed */

    /* Set by the owner before submit, if at all. */
    struct di_request schedule;                              /* id, priority, tenant, deadline, sample and forced tokens of this are used */
    di_parse_emit *emit;                                     /* streaming: every event as it comes, or NULL */
    void (*on_begin)(void *arg);                             /* it was given a place for the first time: cached_tokens is known; or NULL */
    void (*on_sample)(void *arg, const struct di_sample *s); /* every token, before the events it causes; or NULL */
    void (*on_done)(void *arg);                              /* last call: it is done; or NULL */
    void *emit_arg;
    struct di_parser *parser;
    struct di_turn_memory *memory; /* NULL: this turn is not remembered */
};

/* `c` is all zero; whatever comes of it, di_completion_fini frees what it has. `branch`: the prompt comes later, by di_completion_branch.
 * DI_ERR_LIMIT if prompt and requested tokens do not fit into `context`. */
di_status di_completion_init(struct di_completion *c, struct di_prepared *p, int64_t context, bool branch, di_error *err);
void di_completion_fini(struct di_completion *c);
/* Go on from the first `at` tokens of a live answer (0: all so far), which become the prompt: c was initialised with `branch` from the same
 * request, or from a di_prepared_branch of it. `left`: it has as many tokens as `from` had left there, else as its own fields say. Events
 * tell what is new; `message` is the whole. DI_ERR_INVALID: there are not so many tokens, or what they say has ended already by c's stop
 * strings. */
di_status di_completion_branch(struct di_completion *c, const struct di_completion *from, int64_t at, bool left, int64_t context,
                               di_error *err);
/* Would the engine take it? Any thread (di_core_check). */
di_status di_completion_check(const struct di_completion *c, const struct di_core *e, di_error *err);
/* Hand it to the engine; it must live until on_done. */
di_status di_completion_submit(struct di_completion *c, struct di_core *e, di_error *err);
/* Does the request ask for a form that is not enforced? Its output then says "constrained": false. */
bool di_completion_unconstrained(const struct di_completion *c);

#endif
