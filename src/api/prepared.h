/* A request that was read (di_prepared of deepinfer.h): its fields, its prompt and its settings in the engine's form. What its answers have
 * in common is here once; it is never changed after it was made, so any thread reads it. */
#ifndef DI_API_PREPARED_H
#define DI_API_PREPARED_H

#include "api/follower.h"
#include "engine/core.h"
#include "text/chat.h"
#include "text/turn_memory.h"

#include <stdatomic.h>

struct di_prepared {
    atomic_int holders;
    struct di_prepared *base; /* held: whose chat and lists these are; NULL: its own */
    const struct di_text_model *text;
    struct di_chat *chat;  /* settled */
    struct di_ids prompt;  /* empty if it comes later */
    struct di_form form;   /* held */
    struct di_ids trigger; /* behind which the form begins; none: behind the reasoning */
    int32_t bound_id;
    struct di_forms *forms;
    struct di_follower_crew *crew;
    int64_t max_tokens; /* asked for, INT64_MIN = by the rules of spec/encoding.md §4.2 */
    struct di_sampling_params sampling;
    int32_t *end_ids;       /* of `sampling`, with its list of biases behind it */
    uint64_t tenant, space; /* space: what its cache_salt sets apart */
    int32_t n_samples;
    bool takes_prompts;            /* it has none, di_prepared_with_prompt adds one */
    struct di_turn_memory *memory; /* NULL: its answers are not remembered */
    uint64_t memory_tenant;
    size_t turn_at; /* in the prompt: behind its last <｜Assistant｜> */
    uint8_t turn_prefix[32];
};

/* Where a prompt is not the request's own: one of these, or neither. */
struct di_given_prompt {
    struct di_str text; /* p != NULL: control spellings count, BOS is added unless it begins with it */
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
};

/* Where requests are read. All borrowed. */
struct di_prepare_setup {
    const struct di_text_model *text;
    struct di_chat_options options;        /* with the sampling that the request does not say */
    di_request_defaults defaults;          /* and what neither says */
    const di_request_overrides *overrides; /* NULL: none */
    struct di_given_prompt prompt;         /* in place of JSON */
    bool strict;                           /* fields that mean nothing are refused */
    int32_t n_samples;                     /* answers that the caller makes of it; a request that says another number is refused */
    uint64_t tenant;
    const di_form_options *form; /* NULL: as the request says */
    struct di_forms *forms;      /* outlive the requests, as does the crew */
    struct di_follower_crew *crew;
    struct di_turn_memory *memory; /* earlier turns are recalled from it, these go into it; NULL = none. It must outlive the requests */
};
/* Read a request of a dialect as JSON text; empty text: nothing is said. DI_PROTOCOL_COMPLETION takes `prompt` (text) or
 * `prompt_token_ids` where none is given. Refused by name, until they exist: images. A form of the answer is compiled
 * here. *out has one holder. */
di_status di_prepared_create(const struct di_prepare_setup *setup, enum di_protocol protocol, struct di_str json, struct di_prepared **out,
                             di_error *err);
/* Bytes that it holds, without those of the one whose fields it has. */
size_t di_prepared_held(const struct di_prepared *p);
/* The same request with this prompt; max_tokens 0: as it says. DI_ERR_INVALID unless `of` takes prompts. */
di_status di_prepared_with_prompt(struct di_prepared *of, const struct di_given_prompt *prompt, int64_t max_tokens, int32_t n_samples,
                                  struct di_prepared **out, di_error *err);
/* A branch of its answers, whose prompt is not known yet, with other sampling. */
di_status di_prepared_branch(struct di_prepared *of, const di_sampling_options *sampling, struct di_prepared **out, di_error *err);
struct di_prepared *di_prepared_hold(struct di_prepared *p); /* one holder more; returns p */
void di_prepared_put(struct di_prepared *p);                 /* NULL is allowed */

#endif
