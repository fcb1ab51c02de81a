/* The service: an engine behind HTTP. di_server_create binds its sockets and answers from then on (503 until an engine is attached); the
 * event loop is a thread of its own.
 *
 *     di_server_create, di_engine_open, di_engine_start, di_server_attach, di_server_wait, di_engine_close, di_server_destroy
 *
 * Threads: create, attach, wait and destroy by one thread. The loop runs on the server's thread, request bodies are read and tokenized by
 * two more, the engine computes on its own. Signals: create blocks SIGTERM, SIGINT and SIGHUP in the calling thread (threads started later
 * inherit that) and the loop takes them: TERM and INT drain, a second one calls `quit`, HUP reads keys and certificate again. */
#ifndef DI_SERVER_SERVER_H
#define DI_SERVER_SERVER_H

#include "base/log.h"
#include "base/str.h"
#include "server/http.h"

struct di_server;

struct di_server_config {    /* strings are borrowed until destroy */
    const char *host;        /* address or name; of a name all addresses */
    int port;                /* 0: any free one; -1: no TCP socket */
    const char *unix_socket; /* path, or NULL. A socket that nobody listens on is replaced */
    unsigned unix_mode;      /* of its file */
    const int *fds;          /* [n_fds] sockets that are listening or bound already, instead of all these; owned */
    size_t n_fds;
    const char *tls_cert, *tls_key; /* both or none; for TCP sockets */
    const char *api_keys;           /* file (auth.h), or NULL: everybody may ask */
    const char *cors_origin;        /* "*", an origin, or NULL: no CORS headers */
    const char *const *hosts;       /* [n_hosts] further names by which this machine may be asked (--allowed-host) */
    size_t n_hosts;
    const char *access_log; /* file, "-" for stderr, or NULL */
    bool json_log;          /* access log and messages as JSON lines */
    FILE *messages;         /* where messages go, or NULL; by its descriptor */
    struct di_http_limits limits;
    size_t received, held;             /* bytes of bodies that come, of those of requests under way; more are refused with 503 */
    int max_waiting;                   /* requests beyond those that run; more are refused with 429 */
    int64_t request_ms;                /* deadline of a request, 0 = none */
    int64_t drain_ms;                  /* what is under way at a drain may take so long */
    int64_t comment_ms;                /* a stream that has sent nothing for so long sends a comment */
    int64_t stall_ms;                  /* work, but no step for so long: unhealthy */
    bool blank_lines;                  /* the same for responses that are no streams, as line feeds */
    const char *notify;                /* socket of the service manager (sd_notify), or NULL */
    void (*quit)(void *ctx, bool cut); /* a second TERM or INT (cut: requests are), or one while loading. Does not return */
    void *quit_ctx;
};

/* DI_ERR_INVALID, _IO (an address that is taken, a file), _FORMAT (keys). */
di_status di_server_create(const struct di_server_config *config, struct di_server **out, di_error *err);
/* "http://127.0.0.1:8000"; the first of them. Lives as long as the server. */
const char *di_server_address(const struct di_server *s);

struct di_serve_model {
    di_engine *engine;        /* driving itself; borrowed until di_server_wait returns */
    const char *const *names; /* [n_names] the first is the model's own */
    size_t n_names;
    bool reject_unknown_models, usage_on_finish, reasoning_twin;
    bool fixed_seeds;           /* a request without a seed gets the engine's, not one of its own */
    size_t store_bytes;         /* of remembered responses, 0 = none are */
    const di_memory_plan *plan; /* shown by the web page; or NULL. Copied */
};
/* From now on requests are answered. */
di_status di_server_attach(struct di_server *s, const struct di_serve_model *model, di_error *err);
/* Until the server has drained. Requests that are left are cancelled; the engine must be closed before destroy. */
void di_server_wait(struct di_server *s);
/* Also stops one that was never attached. */
void di_server_destroy(struct di_server *s);

#endif
