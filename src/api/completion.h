/* Text level of the engine: a request becomes ids and settings, and the sampled ids become a message (reasoning, content, tool calls). */
#ifndef DI_API_COMPLETION_H
#define DI_API_COMPLETION_H

#include "engine/core.h"
#include "api/text_model.h"
#include "base/entropy.h"
#include "text/chat.h"
#include "text/message.h"
#include "text/turn_memory.h"

/* What a request does not say. */
struct di_completion_defaults {
    double temperature, top_p, min_p;
    int64_t top_k, seed, max_tokens; /* max_tokens INT64_MIN: by the rules of spec/encoding.md §4.2 */
    const int32_t *prompt_ids;       /* [n_prompt_ids] of a COMPLETION request without prompt and prompt_token_ids; NULL = none */
    size_t n_prompt_ids;
};
struct di_completion_defaults di_completion_defaults(void);

/* One answer, from request to message. */
struct di_completion {
    struct di_completion_source *source; /* what it shares with the other answers to its request: chat, prompt, end_ids. One holder */
    struct di_chat *chat;                /* settled */
    const struct di_text_model *text;
    struct di_ids prompt; /* of the source; a branch's own */
    int64_t max_tokens;
    struct di_sampling_params sampling;
    int32_t *end_ids; /* with the sampler's bias list behind it */

    struct di_cap cap; /* of the reasoning */
    struct di_ids ids; /* sampled, the end id included */
    int64_t reasoning_tokens, cached_tokens;
    struct di_request_facts facts; /* set when it is done; before, as of one that came nowhere */
    struct di_message message;
    enum di_end end;
    bool begun, done, muted; /* muted: events are not passed on */
    bool enough;             /* the one call that was asked for is there */
    di_error err;            /* with DI_END_ERROR, or if the text could not be parsed */

    /* Set by the owner before submit, if at all. */
    struct di_request schedule;                              /* priority, tenant, deadline, sample and forced tokens of this are used */
    di_parse_emit *emit;                                     /* streaming: every event as it comes, or NULL */
    void (*on_begin)(void *arg);                             /* it was given a place for the first time: cached_tokens is known; or NULL */
    void (*on_sample)(void *arg, const struct di_sample *s); /* every token, before the events it causes; or NULL */
    void (*on_done)(void *arg);                              /* last call, `done` is set; or NULL */
    void *emit_arg;
    struct di_parser *parser;
    di_entropy_source *random;
    void *random_ctx;
    struct di_turn_memory *memory; /* NULL: this turn is not remembered */
    uint64_t memory_tenant, space; /* space: what its cache_salt sets apart */
    size_t turn_at;                /* in the prompt: behind its last <｜Assistant｜> */
    uint8_t turn_prefix[32];
};

/* Where requests are converted. All borrowed. */
struct di_completion_setup {
    const struct di_text_model *text;
    const struct di_chat_options *options; /* NULL: the defaults of the chat encoding */
    struct di_completion_defaults defaults;
    int64_t context;           /* tokens of one request */
    int64_t n;                 /* answers that the caller makes of it; a request that says another number is refused. 0 = 1 */
    bool branch;               /* the prompt comes later, by di_completion_branch */
    di_entropy_source *random; /* for ids of calls; NULL: di_entropy */
    void *random_ctx;
    struct di_turn_memory
        *memory; /* earlier turns are replayed from it, this one goes into it; NULL = none. It must outlive the completion */
    uint64_t memory_tenant;
};
/* Convert a request of a dialect: `request` (not used afterwards) as for di_chat_create; DI_PROTOCOL_COMPLETION takes `prompt` (text:
 * control spellings count, BOS is added unless it begins with it) or `prompt_token_ids`. Refused by name, until they exist: images, and
 * constraints that exist only as a mask (regex, grammar, choice). *out is destroyed by the caller. */
di_status di_completion_create(const struct di_completion_setup *setup, enum di_protocol protocol, const struct di_json *request,
                               struct di_completion **out, di_error *err);
/* One more answer to the request of `first`, which is no branch and stays what it is (any of its answers will do, also while it runs):
 * they share what was read, rendered and tokenized. */
di_status di_completion_sample(const struct di_completion *first, struct di_completion **out, di_error *err);
void di_completion_destroy(struct di_completion *c);
/* Go on from the first `at` tokens of a live answer (0: all so far), which become the prompt: c was created with setup.branch from the same
 * request, perhaps with other sampling fields. `left`: it has as many tokens as `from` had left there, else as its own fields say. Events
 * tell what is new; `message` is the whole. DI_ERR_INVALID: there are not so many tokens, or what they say has ended already by c's stop
 * strings. */
di_status di_completion_branch(struct di_completion *c, const struct di_completion *from, int64_t at, bool left, int64_t context,
                               di_error *err);
/* Would the engine take it? Any thread (di_core_check). */
di_status di_completion_check(const struct di_completion *c, const struct di_core *e, di_error *err);
/* Hand it to the engine; it must live until `done`. */
di_status di_completion_submit(struct di_completion *c, struct di_core *e, int64_t *id, di_error *err);
/* Does the request ask for a format that nothing enforces yet? Its output then says "constrained": false. */
bool di_completion_unconstrained(const struct di_completion *c);

#endif
