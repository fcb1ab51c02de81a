/* Inside of an exchange (protocol.h): what its dialects share.
 *
 * Every record of a submission first goes into its di_answer, which holds the whole answer; then a streaming dialect says what is new,
 * and a whole one writes its body from the answers at the end. Both read the same fields, so the stream adds up to the body. */
#ifndef DI_SERVER_PROTOCOL_IMPL_H
#define DI_SERVER_PROTOCOL_IMPL_H

#include "base/json.h"
#include "client/answer.h"
#include "server/protocol.h"

/* A prompt beside the body. */
struct di_exchange_prompt {
    struct di_buf text; /* unless there are ids */
    int32_t *ids;       /* [n_ids], or NULL */
    size_t n_ids;
    int64_t max_tokens; /* of the answers to it, 0 = as the body says */
};

struct di_usage {
    int64_t prompt, cached, completion, reasoning, drafted, accepted;
};

struct di_exchange;

struct di_dialect_ops {
    const char *id_prefix;
    /* Fields of the request; sets the submissions. The only one that sees x->json. */
    di_status (*read)(struct di_exchange *x, di_error *err);
    /* What takes time for prompt number k, before the engine prepares it. Or NULL. */
    di_status (*prepare)(struct di_exchange *x, size_t k, di_error *err);
    void (*free)(struct di_exchange *x); /* or NULL */
    /* Every record, in both forms, after the answer has it; one that has this keeps log-probabilities in its own way. Or NULL. False:
     * memory ran out. */
    bool (*each)(struct di_exchange *x, struct di_answer *a, const di_output *o);
    /* Streaming. Every record but FINISHED; the end of one answer; of all. */
    void (*record)(struct di_exchange *x, struct di_answer *a, const di_output *o, struct di_buf *out);
    void (*answer_end)(struct di_exchange *x, struct di_answer *a, struct di_buf *out);
    void (*end)(struct di_exchange *x, struct di_buf *out);
    void (*error_event)(struct di_exchange *x, const struct di_http_error *e, struct di_buf *out);
    /* Is this error told by events although nothing has been sent yet? NULL: never. */
    bool (*tells_by_event)(const struct di_http_error *e);
    /* Else: the body. */
    void (*body)(struct di_exchange *x, struct di_buf *out);
};
extern const struct di_dialect_ops di_chat_ops, di_completions_ops, di_messages_ops, di_responses_ops;

struct di_exchange {
    const struct di_exchange_setup *setup;
    struct di_exchange_request request;
    const struct di_dialect_ops *ops; /* NULL: nothing to submit, `reply` is the body */
    struct di_arena arena;
    struct di_arena tree; /* what is not needed once `read` has returned */
    struct di_json *json; /* the body, an object, in `tree`: what is wanted later is kept elsewhere */
    size_t kept;          /* bytes of the request that the dialect keeps until its end, beside `arena` and what follows here */
    const char *protocol; /* of the submissions */
    char *model;
    char id[64];
    bool stream, logprobs;
    int32_t priority;
    int64_t *stop_ids; /* [n_stop_ids] stop_token_ids */
    size_t n_stop_ids;
    di_request_defaults defaults;
    di_request_overrides overrides;     /* what the submissions say in place of the body */
    di_request_overrides of_prompt;     /* and with a prompt beside it */
    struct di_buf input;                /* of them, if it is not empty */
    struct di_exchange_prompt *prompts; /* [n_prompts]; NULL: the body has the prompt */
    di_prepared *fields, **prepared;    /* made of all that; prepared: [n_prompts] */
    struct di_forced {                  /* [as many] or NULL: a prompt whose tokens behind the first are the beginning of the answer */
        int32_t *ids;                   /* [n] until release */
        size_t n;
        int32_t first;
    } * forced;
    struct di_answer *answers;
    size_t n_answers, n_samples, n_prompts; /* n_answers: samples of all prompts */
    size_t n_finished;
    bool failed, done;
    int status;
    struct di_http_error error; /* of a submission that failed before the body was written */
    struct di_buf reply;
    /* Of single dialects. */
    bool include_usage, continuous_usage, hide_reasoning;
    void *own; /* their struct, in the arena */
};

/* ---- reading; absent, null and of another type are the same: the engine checks types when it gets the request ---- */
const struct di_json *di_field(const struct di_json *object, const char *key);
bool di_field_true(const struct di_json *object, const char *key);
struct di_str di_field_string(const struct di_json *object, const char *key);
int64_t di_field_int(const struct di_json *object, const char *key, int64_t otherwise);
/* One that the engine does not get: DI_ERR_INVALID if it is neither absent nor a boolean. */
di_status di_field_switch(const struct di_json *object, const char *key, bool otherwise, bool *out, di_error *err);
/* Make room for `prompts` x `samples` answers. */
di_status di_exchange_make_answers(struct di_exchange *x, size_t prompts, size_t samples, di_error *err);

/* ---- writing ---- */
void di_write_key(struct di_buf *b, const char *key); /* ,"key": */
void di_write_string(struct di_buf *b, const char *key, struct di_str value);
void di_write_int(struct di_buf *b, const char *key, int64_t value);
/* The member of the request as it was sent, or `otherwise`. */
void di_write_echo(struct di_buf *b, const char *key, const struct di_json *value, const char *otherwise);
/* The usage of all answers: a prompt counts once, however many samples it has. */
struct di_usage di_exchange_usage(const struct di_exchange *x);
/* {"prompt_tokens", ...} of OpenAI's chat and completions. */
void di_write_usage(struct di_buf *b, struct di_usage u);
/* {"id", "object", ..., "choices":[ of chat and completions. */
void di_write_openai_head(struct di_buf *b, const struct di_exchange *x, const char *object);
/* The usage of a chunk, if it has one; `finish`: it has a finish_reason. */
void di_write_chunk_usage(struct di_buf *b, const struct di_exchange *x, bool finish);
/* The chunk with the usage, if asked for, and [DONE]. */
void di_write_openai_end(struct di_buf *b, const struct di_exchange *x, const char *object);
/* "stop", "length", "tool_calls", ... (spec/encoding.md §3.9). */
const char *di_chat_finish(const struct di_answer *a);
/* ,"stop_reason": the stop string, the id of a stop_token_ids entry that ended the answer, or null. */
void di_write_stop_reason(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a);
/* Did the call come to its end? */
bool di_call_closed(const struct di_answer_call *c);
/* The arguments as an object; of a call that was cut off the members that were closed. */
void di_write_arguments(struct di_buf *b, const struct di_answer_call *c);
/* The free text of a custom tool's arguments, {"input": "..."}, as a JSON string, also if it was cut off; arguments of another form as they
 * are. */
void di_write_custom_input(struct di_buf *b, const struct di_answer_call *c);
/* Of chat and completions: the error and the end of the stream. */
void di_openai_error_event(struct di_exchange *x, const struct di_http_error *e, struct di_buf *out);
/* Ids of a text, nothing put in front; control spellings count. *ids is the caller's to free, whatever comes of it. */
di_status di_exchange_encode(const struct di_exchange *x, struct di_str text, int32_t **ids, size_t *n, di_error *err);
/* models, tokenize, count_tokens, ...: fills x->reply. */
di_status di_exchange_reply(struct di_exchange *x, di_error *err);
/* The one of the setup's names that stands for this one, or NULL. */
const char *di_model_served(const struct di_exchange_setup *setup, struct di_str name);
/* Of Responses, with a store: append the items of the conversation so far, those of the request included, separated by commas; if the
 * request names a response or items that are stored, they are also x->input. Without a store it does nothing. */
di_status di_stored_conversation(struct di_exchange *x, struct di_buf *items, di_error *err);
/* The input of a stored response as a list: fills x->reply. */
di_status di_stored_input_items(struct di_exchange *x, di_error *err);

#endif
