/* Inside of the service: what server.c (the loop), routes.c (which request is whose), call.c (requests in the engine), access_log.c and
 * metrics_page.c share. All of it belongs to the loop's thread unless it says otherwise. */
#ifndef DI_SERVER_SERVER_IMPL_H
#define DI_SERVER_SERVER_IMPL_H

#include "base/clock.h"
#include "base/threads.h"
#include "server/auth.h"
#include "server/engine_queue.h"
#include "server/log_sink.h"
#include "server/protocol.h"
#include "server/server.h"
#include "server/tenant.h"

#include <pthread.h>
#include <stdatomic.h>

struct di_call;

struct di_route_row {
    const char *path;
    bool more;                         /* the path goes on: an id follows */
    const char *verb;                  /* GET also answers HEAD */
    bool open;                         /* needs no key */
    void (*answer)(struct di_call *c); /* at once; or NULL: */
    enum di_route route;               /* an exchange */
    bool generates;
    const char *end; /* behind the id, or NULL */
};

/* One submission of a call. */
struct di_sub {
    struct di_call *call;
    size_t index;
    di_request_id id;
    bool finished;
    atomic_bool lost; /* its last record could not be copied: memory ran out (engine's thread) */
};

enum di_call_state {
    DI_CALL_HERE,      /* no exchange: answered by the loop */
    DI_CALL_PREPARING, /* a preparing thread has the exchange */
    DI_CALL_RUNNING    /* the loop has it; over when the engine has finished all of `subs` */
};

/* Every HTTP request has one, from its head until connection and engine are both through with it. */
struct di_call {
    struct di_job job; /* first: the preparing threads' list has these */
    struct di_server *server;
    struct di_call *next, *prev;  /* all calls */
    struct di_http_request *http; /* NULL: answered or gone */
    const struct di_route_row *row;
    struct di_auth_key *key; /* held; or NULL */
    struct di_tenant *tenant;
    bool admitted; /* counts among the key's requests */
    enum di_dialect dialect;
    char id[72];    /* X-Request-Id */
    char trace[56]; /* traceparent, or "" */
    /* exchanges */
    enum di_call_state state;
    size_t places;                      /* that it has; under the preparers' lock */
    struct di_buf body, path_id, query; /* body: the preparing thread's to read, the loop's to free */
    size_t received, held, kept;        /* bytes of it in the server's places; what the engine keeps of it (set by the preparing thread) */
    struct di_exchange *x;
    bool refused; /* by create or submit; `error` says why */
    struct di_http_error error;
    struct di_sub *subs;
    size_t n_subs, n_unfinished;                                  /* n_subs: submitted */
    atomic_bool gone;                                             /* nobody wants it any more: submit nothing further */
    struct di_buf early;                                          /* records that came before it was prepared */
    struct di_buf whole;                                          /* of a body that goes out at the end */
    int64_t sent_ns;                                              /* the latest output, or since when it waits */
    enum { DI_CALL_UNSEEN, DI_CALL_STREAMS, DI_CALL_WHOLE } form; /* what its body asks for, once somebody had to know before it was read */
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    bool cancelled;
    const char *model; /* as it is served, or NULL */
};

/* Threads that read bodies and tokenize, so that a large one delays no stream; nor another request: large ones wait for the first thread,
 * and the second takes small ones alone. Tenants take turns. `lock` also guards who has how many places in the queue. */
#define DI_PREPARERS 2
struct di_preparers {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct di_turns large, small;
    struct di_places places;
    size_t n_begun;  /* threads that know their number */
    bool stop, trim; /* trim: give freed memory back to the system, when there is nothing else to do */
    pthread_t threads[DI_PREPARERS];
    size_t n_threads;
};

#define DI_N_STATUS_CLASSES 6
#define DI_N_ANSWER_EDGES 6 /* 1, 2, 4, ... 32 */
struct di_server_counters {
    uint64_t by_class[DI_N_STATUS_CLASSES]; /* responses by status / 100; 0: no response */
    uint64_t limited;                       /* 429 */
    uint64_t gone;                          /* clients that left before the end */
    uint64_t comments;
    uint64_t answers[DI_N_ANSWER_EDGES + 1]; /* requests by the answers that they ask for; the last: more */
    uint64_t n_answers;
};

struct di_server {
    struct di_server_config config;
    struct di_log log;
    struct event_base *base;
    struct di_http *http;
    struct event *on_signal, *on_queue, *on_stop;
    int signal_fd, stop_fd;
    struct di_engine_queue *queue;
    struct di_preparers preparers;
    struct di_keys *keys;
    struct di_tenant everybody;            /* without keys */
    struct di_log_sink *messages, *access; /* or NULL; access: maybe the same */
    char address[128];
    pthread_t thread;
    bool has_thread, owns_socket_file;
    bool reachable;       /* a socket can be reached from other machines */
    atomic_bool attached; /* set by attach after what follows */
    struct di_exchange_setup setup;
    di_engine *engine;
    struct di_buf plan; /* as JSON; once it is attached */
    int64_t context;
    int max_batch;
    /* the loop's */
    struct di_call *calls;
    size_t n_calls;
    struct di_places received, held; /* bytes of bodies that come; of the calls' bodies, later of what the engine keeps of them */
    size_t freed_bytes;              /* about, of requests, since memory was last given back to the system */
    int64_t trim_ns;                 /* when that is to be done again, 0 = not soon */
    bool draining, failed_drain;
    int64_t drain_ns; /* when it began */
    int64_t quiet_ns; /* no request was left since; while draining */
    int64_t began_ns;
    int64_t step_ns; /* when the engine was last seen at a step, or without requests */
    di_engine_stats stats;
    double tokens_per_second; /* of answers, over the last second or more */
    int64_t rate_ns;          /* when it was computed, from how many */
    uint64_t rate_tokens;
    struct di_server_counters counters;
    atomic_bool lost; /* a di_sub is `lost` */
    struct di_buf scratch, extra;
};

/* routes.c: the events of the transport */
void di_server_on_head(void *ctx, struct di_http_request *r);
bool di_server_on_body(void *ctx, struct di_http_request *r, size_t n);
void di_server_on_request(void *ctx, struct di_http_request *r);
void di_server_on_gone(void *ctx, struct di_http_request *r, const char *why);
struct di_str di_server_on_refused(void *ctx, struct di_http_request *r, int status, const char *why, struct di_buf *body);
void di_server_on_done(void *ctx, struct di_http_request *r);
/* Answer with an error in the call's dialect. retry_after: seconds, 0 = none. */
void di_call_reply_error(struct di_call *c, const struct di_http_error *e, int retry_after);
/* Header lines that every response has; in server->extra until the next call. */
struct di_str di_call_headers(struct di_call *c, bool stream);
/* Look at the engine's counters: steps advance, or there is nothing to do. */
void di_server_watch(struct di_server *s, int64_t now_ns);
/* Ready, and steps advance. */
bool di_server_healthy(const struct di_server *s);

/* Answers that are computed, or wait for it. */
size_t di_server_answers(struct di_server *s);

/* call.c */
/* Would n more answers be let into the queue? */
bool di_call_fits(struct di_call *c, size_t n);
/* Change the places that it has in the queue to n. False: it stays as it was. */
bool di_call_take_places(struct di_call *c, size_t n);
struct di_call *di_call_create(struct di_server *s, struct di_http_request *r);
/* Let a preparing thread give freed memory back to the system, if that can be much. */
void di_server_trim(struct di_server *s, int64_t now_ns);
/* The body is there: let a preparing thread make an exchange of it. */
void di_call_prepare(struct di_call *c);
/* The connection is through with it. */
void di_call_http_done(struct di_call *c);
/* Ask the engine to end what it does for this call. */
void di_call_cancel(struct di_call *c);
/* End it with an error; what the engine does is cancelled. */
void di_call_fail(struct di_call *c, int status, const char *message);
void di_calls_on_queue(struct di_server *s);
void di_calls_on_tick(struct di_server *s, int64_t now_ns);
void di_calls_destroy(struct di_server *s); /* the engine is closed */
di_status di_preparers_start(struct di_server *s, di_error *err);
void di_preparers_stop(struct di_server *s);

/* access_log.c */
void di_access_log(struct di_server *s, const struct di_http_request *r, const struct di_call *c);
/* A di_log function: one line, text or JSON. ctx is the server. */
void di_server_message(void *ctx, enum di_log_level level, const char *text);

/* metrics_page.c: GET /metrics, and GET /api/status for the web page */
void di_metrics_write(struct di_server *s, struct di_buf *out);
void di_status_write(struct di_server *s, struct di_buf *out);

/* notify.c: sd_notify(3); path NULL or a failure does nothing. */
void di_notify(const char *path, const char *state);

/* page.c, generated from src/server/page */
struct di_page_file {
    const char *path, *type, *etag; /* "/app.js"; etag with its quotes */
    const unsigned char *bytes;
    size_t n;
};
extern const struct di_page_file di_page_files[];
extern const size_t di_page_n_files;

#endif
