/* Protocols: one HTTP exchange of a dialect, from the bytes of its request to the bytes of its response (spec/encoding.md §4).
 *
 * Pure of transport: nothing here knows sockets, threads or clocks. The transport gives the body, hands the exchange's submissions to the
 * engine, passes every output record back and sends what comes out:
 *
 *     di_exchange_create        read and check the body; on failure an error to send with di_http_error_write
 *     di_exchange_prepare       for each prompt: let the engine read it
 *     di_exchange_submission    for each i: fill a di_submission; the transport adds on_output, user, deadline and calls di_engine_submit
 *     di_exchange_submitted     for each i: its request id
 *     di_exchange_release       when all are submitted
 *     (any refusal so far: di_exchange_fail with started = false, and the other submissions are cancelled)
 *     di_exchange_begin         the head may be sent now: 200, content type, and these bytes (maybe none)
 *     di_exchange_output        for every record of submission i, in its order: append what to send next (maybe nothing)
 *     di_exchange_finished      after the last byte; until then di_keep_alive while nothing else comes
 *
 * Routes without submissions (models, tokenize, ...) give everything in begin and are finished then.
 *
 * Threads. An exchange belongs to one thread at a time; different exchanges are independent. The setup is shared and only read; the store
 * has its own lock. Exchange calls read the engine through deepinfer.h from the calling thread (tokenizing a long prompt takes
 * milliseconds). */
#ifndef DI_SERVER_PROTOCOL_H
#define DI_SERVER_PROTOCOL_H

#include "base/str.h"

/* ---- errors ---- */

enum di_dialect { DI_DIALECT_OPENAI, DI_DIALECT_ANTHROPIC };

/* What an HTTP error response says (§4.8). Write it with di_http_error_set, which fills type and code from the status. */
struct di_http_error {
    int status;        /* 400, 401, 404, 405, 413, 415, 429, 500, 501, 503, 505 */
    const char *type;  /* OpenAI's; static. Anthropic's follows from the status */
    const char *code;  /* static, or NULL */
    char param[160];   /* path of the field, or "" */
    char message[640]; /* one sentence */
};
/* type and code: the usual ones of the status, `code` overrides if it is not NULL. */
void di_http_error_set(struct di_http_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The HTTP form of an error of the engine or of this room: INVALID, FORMAT, UNSUPPORTED, LIMIT are 400 (a prompt that is too long:
 * code context_length_exceeded), NOT_FOUND 404, MEMORY 503, CANCELLED 503, the rest 500. */
void di_http_error_from(struct di_http_error *e, const di_error *err);
/* Append the JSON body of an error response. `request_id` may be empty (Anthropic's shape has it). */
void di_http_error_write(enum di_dialect dialect, const struct di_http_error *e, struct di_str request_id, struct di_buf *out);

/* ---- routes ---- */

enum di_route {
    DI_ROUTE_CHAT,            /* POST /v1/chat/completions */
    DI_ROUTE_COMPLETIONS,     /* POST /v1/completions */
    DI_ROUTE_MESSAGES,        /* POST /v1/messages */
    DI_ROUTE_COUNT_TOKENS,    /* POST /v1/messages/count_tokens */
    DI_ROUTE_RESPONSES,       /* POST /v1/responses */
    DI_ROUTE_RESPONSE_GET,    /* GET /v1/responses/{id}; 404 unless a store exists */
    DI_ROUTE_RESPONSE_DELETE, /* DELETE /v1/responses/{id} */
    DI_ROUTE_RESPONSE_ITEMS,  /* GET /v1/responses/{id}/input_items */
    DI_ROUTE_RESPONSE_TOKENS, /* POST /v1/responses/input_tokens */
    DI_ROUTE_MODELS,          /* GET /v1/models */
    DI_ROUTE_MODEL,           /* GET /v1/models/{id} */
    DI_ROUTE_TOKENIZE,        /* POST /tokenize */
    DI_ROUTE_TOKENIZER_INFO,  /* GET /tokenizer_info */
    DI_ROUTE_DETOKENIZE       /* POST /detokenize */
};
/* The shape of a route's errors. */
enum di_dialect di_route_dialect(enum di_route route);

/* ---- setup ---- */

struct di_response_store; /* response_store.h */

struct di_exchange_setup {
    di_engine *engine; /* borrowed, like all pointers here */
    const char *const
        *names; /* [n_names] the first is the model's own, the others are aliases; one that ends in '*' stands for all that begin so */
    size_t n_names;
    int64_t created;                 /* seconds since 1970, of the models that are listed */
    bool fixed_seeds;                /* a request without a seed gets the engine's; else one by `random` */
    bool reject_unknown_models;      /* else any name is answered and echoed (§4.1) */
    bool usage_on_finish;            /* streamed chat usage the DeepSeek way: on the chunk with finish_reason, always (§4.3) */
    bool reasoning_twin;             /* also emit `reasoning` beside `reasoning_content` */
    size_t max_reply;                /* bytes of what /tokenize and /detokenize answer; 0 = any number */
    int max_submissions;             /* prompts x n of one request; 0 = 128 */
    struct di_response_store *store; /* NULL: previous_response_id is refused */
    /* `n` unguessable bytes; NULL = getrandom(2). A test injects its own. False: the exchange is refused with 500. */
    bool (*random)(void *ctx, void *bytes, size_t n);
    void *random_ctx;
};

struct di_exchange_request {
    enum di_route route;
    struct di_str body;       /* borrowed until di_exchange_release or destroy */
    struct di_str id;         /* {id} of the path, decoded; else empty */
    struct di_str query;      /* of the target, still %-encoded; borrowed until the exchange is created */
    struct di_str request_id; /* of the transport, for Anthropic's errors; may be empty; borrowed until destroy */
    uint64_t tenant;          /* of the API key; 0 without keys */
    int64_t now;              /* seconds since 1970 */
};

/* ---- an exchange ---- */

struct di_exchange;

/* Read and check the request; nothing is submitted yet. On error *out is NULL and *error says what to send: di_http_error_write with the
 * route's dialect. *out is destroyed by the caller, after the engine has delivered the FINISHED record of every submission. */
di_status di_exchange_create(const struct di_exchange_setup *setup, const struct di_exchange_request *request, struct di_exchange **out,
                             struct di_http_error *error);
void di_exchange_destroy(struct di_exchange *x); /* NULL is allowed */

bool di_exchange_streams(const struct di_exchange *x);             /* events as they come; else one body at the end */
const char *di_exchange_content_type(const struct di_exchange *x); /* of a 200 response; errors before it are application/json */
/* Which of the setup's names was asked for (so it outlives the exchange), NULL if none of them was: what the client wrote is not for logs. */
const char *di_exchange_model(const struct di_exchange *x);
/* Of the response; "" for routes without one. Lives until destroy. */
const char *di_exchange_id(const struct di_exchange *x);

size_t di_exchange_submissions(const struct di_exchange *x);
size_t di_exchange_prompts(const struct di_exchange *x);
/* Initialise *s with the request as it was read from the body, for di_engine_prepare or di_engine_prompt. It lives until release. */
void di_exchange_describe(struct di_exchange *x, di_submission *s);
/* Where prompts stand beside the body: with prompt number k, to be prepared with the fields of the request. Until the next call. */
void di_exchange_describe_prompt(struct di_exchange *x, size_t k, di_submission *s);
/* Read, render and tokenize prompt number k, once for all its submissions. Errors as of di_engine_prepare. */
di_status di_exchange_prepare(struct di_exchange *x, size_t k, di_error *err);
/* Initialise *s with what to submit as number i: everything but on_output, user and deadline_ms, which the transport may set. What it
 * points to lives until destroy. Submission i may refer to earlier ones, so call di_exchange_submitted for those first. */
void di_exchange_submission(const struct di_exchange *x, size_t i, di_submission *s);
void di_exchange_submitted(struct di_exchange *x, size_t i, di_request_id id);
/* All submissions are made, or none is wanted any more: free what only they needed, and refer to the body no longer. Returns the bytes of
 * the request that are kept until its end, here and in the engine. */
size_t di_exchange_release(struct di_exchange *x);

/* All submissions were accepted: append the first bytes. DI_ERR_MEMORY, as in output: use di_exchange_fail. */
di_status di_exchange_begin(struct di_exchange *x, struct di_buf *out, di_error *err);
/* A record of submission i. Append the bytes to send next. Records after the exchange is finished are ignored. A failed request has
 * written its error (before the first byte of a whole body: di_exchange_status says what to send). */
di_status di_exchange_output(struct di_exchange *x, size_t i, const di_output *output, struct di_buf *out, di_error *err);
bool di_exchange_finished(const struct di_exchange *x);
/* HTTP status of the response: 200, or that of the error if the whole body is one. Final once finished. */
int di_exchange_status(const struct di_exchange *x);

/* End the exchange with an error. `started`: the response's head has been sent, so a stream gets an error event and its end; else `out`
 * is the whole body for di_exchange_status, which is 200 where a dialect tells this error by events. The exchange is finished. Does
 * nothing if it was already. */
void di_exchange_fail(struct di_exchange *x, const struct di_http_error *error, bool started, struct di_buf *out);

/* ---- what a client can be told before there is an exchange ---- */

/* Does a body ask for a stream: an object whose member "stream" is true? Reads it fast and without memory, and does not check it. */
bool di_body_streams(struct di_str body);
const char *di_stream_content_type(bool stream);
/* Bytes to send while waiting: a comment of the event stream, or a line feed before a JSON body (§4.9). Static. */
struct di_str di_keep_alive(bool stream);
/* The end of a response that has begun with such bytes and gets no exchange: an error event of the route, or the JSON body. */
void di_exchange_refuse(enum di_route route, bool stream, const struct di_http_error *error, struct di_str request_id, struct di_buf *out);

#endif
