/* Inside of the transport: shared by http.c (connections), http_out.c (responses) and http_tls.c. */
#ifndef DI_SERVER_HTTP_IMPL_H
#define DI_SERVER_HTTP_IMPL_H

#include "base/clock.h"
#include "server/http.h"

#include <event2/event.h>
#include <openssl/ssl.h>

#define DI_HTTP_READ ((size_t)64 << 10) /* of one read */

enum di_http_state {
    DI_HTTP_IDLE,      /* between requests: nothing of the next one has come */
    DI_HTTP_HEAD,      /* part of a head is here */
    DI_HTTP_BODY,      /* part of a body */
    DI_HTTP_PENDING,   /* the service has the request */
    DI_HTTP_FLUSHING,  /* the last bytes go out, then it closes */
    DI_HTTP_LINGERING, /* we said all; what the peer still sends is read over, so that it sees our answer instead of a reset */
    DI_HTTP_DEAD       /* freed at the end of the event */
};

struct di_http_conn {
    struct di_http *http;
    struct di_http_conn *next, *prev; /* all connections */
    struct di_http_conn *next_dirty;  /* to be written and looked at */
    bool dirty, reading, wants_write; /* reading: the read event is on */
    bool saw_end;                     /* the peer has closed its side */
    bool handshake;                   /* TLS: not done */
    enum di_http_state state;
    int fd;
    SSL *ssl;
    struct event *event;
    short events;
    struct di_buf in, out;
    size_t in_at, out_at, seen; /* consumed; sent; see di_http_parse_head */
    size_t held_head;           /* bytes of the head so far that count in http->held_heads */
    int64_t since_ns;           /* of the state, or of progress in it: what the time limits count from */
    int64_t stalled_ns;         /* since when output waits and the peer takes nothing; 0 = none waits */
    struct di_http_request *request;
    char peer[64];
};

struct di_http_listener {
    struct di_http *http;
    struct event *event;
    int fd;
    bool tls;
};

struct di_http {
    struct event_base *base;
    struct di_http_limits limits;
    struct di_http_events on;
    const struct di_log *log;
    struct di_http_conn *conns, *dirty;
    struct di_http_listener listeners[DI_HTTP_MAX_LISTENERS];
    size_t n_listeners;
    struct event *timer;
    SSL_CTX *tls;
    unsigned ticks;
    bool draining, paused, settling; /* paused: out of file descriptors, accepting goes on at the next tick */
    struct di_http_counters counters;
    char *scratch; /* [DI_HTTP_READ] */
    size_t held_heads;
    struct di_http_head head; /* of the connection at which one looks: a request has its own when it is complete */
};

/* Bytes, 0 = end of stream, -1 = nothing now, -2 = broken. */
ssize_t di_http_tls_read(struct di_http_conn *c, void *to, size_t n);
ssize_t di_http_tls_write(struct di_http_conn *c, const void *from, size_t n);
/* 1 = done, -1 = not yet, -2 = failed. */
int di_http_tls_handshake(struct di_http_conn *c);
SSL *di_http_tls_open(struct di_http *h, int fd);

/* Look at the connection when the present event is over. */
void di_http_touch(struct di_http_conn *c);

#endif
