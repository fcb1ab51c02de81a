/* HTTP transport: listening sockets, connections, TLS, limits and time limits, on one event loop. Knows nothing of routes or models.
 *
 * Why not evhttp: it has no deadline for a whole head or body (a byte now and then keeps a connection for ever), does not notice a peer
 * that goes away while its response is pending, bounds no output, and writes errors as HTML.
 *
 * A connection carries one request at a time. Its life as the service sees it:
 *     on_head      the head is complete: reply at once (the body is not read then), or return and get
 *     on_body      for each piece of the body, then
 *     on_request   the body is complete too
 *     di_http_reply, or di_http_start, di_http_send..., di_http_end: now or from any later event
 *     on_gone      instead, if the peer goes away, is too slow, or the server closes: the request must not be used any more
 * Requests that come while another is answered wait in the connection (pipelining).
 *
 * Threads: everything here runs on the thread of the event loop. Nothing is sent before the present event is over: output is collected and
 * written once. Functions may be called from callbacks; a connection is freed only between events. */
#ifndef DI_SERVER_HTTP_H
#define DI_SERVER_HTTP_H

#include "base/log.h"
#include "server/http_parse.h"

struct event_base;
struct di_http;
struct di_http_conn;

/* A request under way; valid from on_head until it is answered or gone. */
struct di_http_request {
    struct di_http_head head;
    struct di_buf body; /* complete in on_request. The service may take it (and zero this one) */
    struct di_http_conn *conn;
    void *user;             /* the service's, NULL at first */
    bool started, answered; /* the head was sent; the response is complete */
    int status;             /* of the response, 0 before */
    int64_t began_ns;       /* the first byte of the head came */
    uint64_t body_bytes, sent_bytes;
    /* private */
    struct di_buf raw; /* the head's bytes */
    struct di_http_chunked chunked;
    bool chunked_out, close_after, head_only, delivered;
};

struct di_http_limits {
    size_t head;        /* bytes of a head */
    size_t heads;       /* bytes of all heads that are not complete, of each those beyond 4,000 */
    size_t body;        /* bytes of a body */
    size_t output;      /* bytes of a response that wait for a slow reader */
    size_t connections; /* further ones get 503 */
    int head_ms;        /* from its first byte to the whole head; also TLS handshakes */
    int body_ms;        /* without progress of 64 KiB, from head to whole body */
    int idle_ms;        /* between requests */
    int write_ms;       /* output waits and the peer takes nothing */
};

struct di_http_events {
    void (*on_head)(void *ctx, struct di_http_request *r);
    /* n bytes more of the body have come: may they be kept? Else the request is refused with 503. What r->body has counts until on_request
     * or on_done. */
    bool (*on_body)(void *ctx, struct di_http_request *r, size_t n);
    void (*on_request)(void *ctx, struct di_http_request *r);
    void (*on_gone)(void *ctx, struct di_http_request *r, const char *why);
    /* A request that the transport refuses (400, 413, 431, ...): fill `body` with what to send, return
     * further header lines as for di_http_reply. Of a head that is refused r->head has at most the path. */
    struct di_str (*on_refused)(void *ctx, struct di_http_request *r, int status, const char *why, struct di_buf *body);
    /* The response was handed over; last moment to look at r. Also after on_gone. */
    void (*on_done)(void *ctx, struct di_http_request *r);
    void (*on_tick)(void *ctx, int64_t now_ns); /* about every 50 ms */
    void *ctx;
};

struct di_http_counters {
    uint64_t accepted, refused; /* connections; refused: beyond the limit */
    uint64_t bytes_in, bytes_out;
    uint64_t timeouts, slow_readers, disconnects; /* head, body, handshake too slow; readers dropped; peers gone with a response pending */
    size_t open, reading;                         /* connections now; bytes of bodies being read */
};

di_status di_http_create(struct event_base *base, const struct di_http_limits *limits, const struct di_http_events *events,
                         const struct di_log *log, struct di_http **out, di_error *err);
/* Closes everything; on_gone is called for requests under way. */
void di_http_destroy(struct di_http *h);

#define DI_HTTP_MAX_LISTENERS 8
/* Listen on a socket that is bound already; it is owned then. tls: connections speak TLS (di_http_use_tls comes first). */
di_status di_http_listen(struct di_http *h, int fd, bool tls, di_error *err);
/* Read a certificate chain and key (PEM). Again at any time: later connections use the new ones; on an error the old ones stay. */
di_status di_http_use_tls(struct di_http *h, const char *cert, const char *key, di_error *err);
/* Close the listening sockets and idle connections; others close after their present response. */
void di_http_drain(struct di_http *h);
const struct di_http_counters *di_http_counters(const struct di_http *h);

/* A whole response. `extra`: further header lines, each with \r\n, or empty. type NULL: no body type. */
void di_http_reply(struct di_http_request *r, int status, const char *type, struct di_str extra, struct di_str body);
/* A response in pieces: chunked, or until the end of the connection for HTTP/1.0. */
void di_http_start(struct di_http_request *r, int status, const char *type, struct di_str extra);
void di_http_send(struct di_http_request *r, struct di_str bytes);
void di_http_end(struct di_http_request *r);
/* Close the connection after this response. */
void di_http_close_after(struct di_http_request *r);
/* Break the connection off: what was started cannot be ended properly. on_gone is not called. */
void di_http_abort(struct di_http_request *r);
/* Write what events outside the transport produced. Call at the end of each of them. */
void di_http_flush(struct di_http *h);
/* "192.0.2.1:1234", "[::1]:80" or "unix". Lives as long as the connection. */
const char *di_http_peer(const struct di_http_request *r);

#endif
