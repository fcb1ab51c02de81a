/* Connections: accepting, reading requests, time limits, closing. */
#define _GNU_SOURCE /* accept4 */
#include "server/http_impl.h"

#include "base/assert.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS 50
#define SWEEP_TICKS 5               /* time limits are looked at every so many ticks */
#define PIPELINE ((size_t)64 << 10) /* input that may wait while a request is answered */
#define SHORT_HEAD ((size_t)4000)   /* an unfinished head has so much for itself */
#define UNSENT (128 << 10)          /* bytes that the kernel keeps for a slow reader */
#define LINGER_MS 2000              /* see DI_HTTP_LINGERING */
#define LINGER_BYTES ((uint64_t)8 << 20)
#define BODY_STEP ((uint64_t)64 << 10)  /* progress of a body that starts its time limit anew */
#define MORE_OUTPUT ((size_t)256 << 10) /* pipelined requests are answered while less output waits */

static void on_event(evutil_socket_t fd, short what, void *arg);
static void settle(struct di_http *h);
static bool hold_head(struct di_http_conn *c, size_t bytes);

/* ---------------------------------------------------------------- the life of a connection */

void di_http_touch(struct di_http_conn *c)
{
    if (c->dirty)
        return;
    c->dirty = true;
    c->next_dirty = c->http->dirty;
    c->http->dirty = c;
}

/* From which states one is entered, as bits. */
#define FROM(state) (1u << DI_HTTP_##state)
static const unsigned entered_from[] = {
    [DI_HTTP_IDLE] = FROM(IDLE) | FROM(HEAD) | FROM(BODY) | FROM(PENDING), /* IDLE: the handshake is done; others: answered */
    [DI_HTTP_HEAD] = FROM(IDLE),
    [DI_HTTP_BODY] = FROM(HEAD),
    [DI_HTTP_PENDING] = FROM(BODY),
    [DI_HTTP_FLUSHING] = FROM(HEAD) | FROM(BODY) | FROM(PENDING),
    [DI_HTTP_LINGERING] = FROM(FLUSHING),
    [DI_HTTP_DEAD] = ~0u,
};

static void enter(struct di_http_conn *c, enum di_http_state state)
{
    DI_ASSERT(entered_from[state] >> c->state & 1u);
    c->state = state;
    c->since_ns = di_clock_ns();
    di_http_touch(c);
}

/* What the connection waits for. Without reading, EV_CLOSED still tells at once that the peer is gone. */
static bool listen_for(struct di_http_conn *c, short events)
{
    if (events == c->events)
        return true;
    event_del(c->event);
    c->events = events;
    return event_assign(c->event, c->http->base, c->fd, events | EV_PERSIST, on_event, c) == 0 && event_add(c->event, NULL) == 0;
}

static struct di_http_conn *conn_create(struct di_http *h, int fd, bool tls)
{
    struct di_http_conn *c = di_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    *c = (struct di_http_conn){.http = h, .fd = fd, .handshake = tls, .events = EV_READ};
    c->since_ns = di_clock_ns();
    c->event = event_new(h->base, fd, EV_READ | EV_PERSIST, on_event, c);
    c->ssl = tls ? di_http_tls_open(h, fd) : NULL;
    if (!c->event || (tls && !c->ssl) || event_add(c->event, NULL) != 0) {
        if (c->event)
            event_free(c->event);
        SSL_free(c->ssl);
        di_free(c);
        return NULL;
    }
    c->next = h->conns;
    if (c->next)
        c->next->prev = c;
    h->conns = c;
    h->counters.open++;
    return c;
}

static void request_destroy(struct di_http_conn *c)
{
    struct di_http_request *r = c->request;
    if (!r)
        return;
    c->http->on.on_done(c->http->on.ctx, r);
    DI_ASSERT(r->delivered || c->http->counters.reading >= r->body.n);
    if (!r->delivered)
        c->http->counters.reading -= r->body.n;
    di_buf_fini(&r->body);
    di_buf_fini(&r->raw);
    di_free(r);
    c->request = NULL;
}

static void conn_destroy(struct di_http_conn *c)
{
    struct di_http *h = c->http;
    hold_head(c, 0);
    request_destroy(c);
    event_free(c->event);
    SSL_free(c->ssl);
    close(c->fd);
    di_buf_fini(&c->in);
    di_buf_fini(&c->out);
    *(c->prev ? &c->prev->next : &h->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    DI_ASSERT(!c->dirty && h->counters.open > 0 && h->held_heads >= c->held_head);
    h->counters.open--;
    di_free(c);
}

/* Nothing more can be said to the peer. */
static void gone(struct di_http_conn *c, const char *why)
{
    struct di_http *h = c->http;
    struct di_http_request *r = c->request;
    if (c->state == DI_HTTP_DEAD)
        return;
    if (r && c->state == DI_HTTP_PENDING && !r->answered) {
        h->counters.disconnects++;
        h->on.on_gone(h->on.ctx, r, why);
    }
    request_destroy(c);
    enter(c, DI_HTTP_DEAD);
}

void di_http_abort(struct di_http_request *r)
{
    r->answered = true;
    enter(r->conn, DI_HTTP_DEAD);
}

/* ---------------------------------------------------------------- requests */

static void refuse_connection(struct di_http_conn *c, int status, const char *why)
{
    struct di_buf body = {0};
    struct di_http_request *r = c->request;
    r->close_after = true;
    struct di_str extra = c->http->on.on_refused(c->http->on.ctx, r, status, why, &body);
    di_http_reply(r, status, "application/json", extra, di_buf_str(&body));
    di_buf_fini(&body);
}

static size_t waiting_in(const struct di_http_conn *c)
{
    return c->in.n - c->in_at;
}

static struct di_str input(const struct di_http_conn *c)
{
    return (struct di_str){c->in.p + c->in_at, waiting_in(c)};
}

static void consume(struct di_http_conn *c, size_t n)
{
    c->in_at += n;
    if (c->in_at < c->in.n)
        return;
    c->in_at = 0;
    di_buf_clear(&c->in);
}

/* Count what an unfinished head holds. False: all of them hold too much. */
static bool hold_head(struct di_http_conn *c, size_t bytes)
{
    struct di_http *h = c->http;
    size_t held = bytes > SHORT_HEAD ? bytes : 0, others = h->held_heads - c->held_head;
    if (held && others + held > h->limits.heads)
        return false;
    h->held_heads = others + held;
    c->held_head = held;
    return true;
}

/* The head is complete, or refused: before, a connection holds its bytes alone. False: it is gone. */
static bool make_request(struct di_http_conn *c)
{
    hold_head(c, 0);
    c->request = di_calloc(1, sizeof *c->request);
    if (!c->request) {
        gone(c, "out of memory");
        return false;
    }
    c->request->conn = c;
    c->request->began_ns = c->since_ns;
    return true;
}

/* The request keeps the buffer that its head points into; what came behind it begins a new one. */
static void take_head(struct di_http_conn *c, size_t n)
{
    struct di_http_request *r = c->request;
    struct di_str rest = {c->in.p + c->in_at + n, waiting_in(c) - n};
    r->raw = c->in;
    c->in = (struct di_buf){0};
    c->in_at = c->seen = 0;
    di_buf_addv(&c->in, rest);
}

static void deliver_request(struct di_http_conn *c)
{
    struct di_http *h = c->http;
    h->counters.reading -= c->request->body.n;
    c->request->delivered = true;
    enter(c, DI_HTTP_PENDING);
    h->on.on_request(h->on.ctx, c->request);
}

static void begin_body(struct di_http_conn *c)
{
    struct di_http *h = c->http;
    struct di_http_request *r = c->request;
    r->head_only = di_str_eqc(r->head.method, "HEAD");
    r->close_after = r->head.chunked || r->head.length > 0; /* an answer before the body leaves it unread */
    h->on.on_head(h->on.ctx, r);
    if (r->answered)
        return;
    r->close_after = false;
    if (r->head.length > h->limits.body) {
        refuse_connection(c, 413, "the body is larger than this server accepts");
        return;
    }
    if (r->head.expects_continue && (r->head.chunked || r->head.length > 0) && waiting_in(c) == 0)
        di_buf_adds(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    if (r->head.length && !di_buf_reserve(&r->body, r->head.length < BODY_STEP ? r->head.length : BODY_STEP))
        refuse_connection(c, 503, "out of memory for the body");
}

/* Returns false when more input is needed. */
static bool read_head(struct di_http_conn *c)
{
    const char *why = NULL;
    struct di_http *h = c->http;
    while (waiting_in(c) >= 2 && c->state == DI_HTTP_IDLE && memcmp(input(c).p, "\r\n", 2) == 0)
        consume(c, 2); /* RFC 9112 §2.2: empty lines before a request */
    if (waiting_in(c) == 0 || (waiting_in(c) == 1 && c->state == DI_HTTP_IDLE && *input(c).p == '\r'))
        return false;
    if (c->state == DI_HTTP_IDLE)
        enter(c, DI_HTTP_HEAD);
    h->head = (struct di_http_head){0};
    int64_t n = di_http_parse_head(input(c), h->limits.head, &c->seen, &h->head, &why);
    if (n == 0 && hold_head(c, waiting_in(c)))
        return false;
    if (n == 0) {
        n = -503;
        why = "too many long heads at once";
    }
    if (!make_request(c))
        return false;
    if (n < 0) {
        c->request->head.path = h->head.path; /* lies in the input; tells what the client speaks */
        refuse_connection(c, (int)-n, why);
        c->request->head.path = (struct di_str){0};
        return true;
    }
    c->request->head = h->head;
    take_head(c, (size_t)n);
    enter(c, DI_HTTP_BODY);
    begin_body(c);
    return true;
}

/* Append to the body. False: it was refused. */
static bool add_body(struct di_http_conn *c, struct di_str data)
{
    struct di_http *h = c->http;
    struct di_http_request *r = c->request;
    if (r->body.n + data.n > h->limits.body) {
        refuse_connection(c, 413, "the body is larger than this server accepts");
        return false;
    }
    if (!h->on.on_body(h->on.ctx, r, data.n)) {
        refuse_connection(c, 503, "too many large bodies at once");
        return false;
    }
    if (r->body_bytes / BODY_STEP != (r->body_bytes + data.n) / BODY_STEP)
        c->since_ns = di_clock_ns();
    di_buf_addv(&r->body, data);
    if (r->body.failed) {
        refuse_connection(c, 503, "out of memory for the body");
        return false;
    }
    h->counters.reading += data.n;
    r->body_bytes += data.n;
    return true;
}

static bool read_body(struct di_http_conn *c)
{
    struct di_http_request *r = c->request;
    const char *why = NULL;
    if (!r->head.chunked) {
        uint64_t left = r->head.length - r->body_bytes;
        struct di_str in = input(c), data = {in.p, in.n < left ? in.n : (size_t)left};
        if (data.n && !add_body(c, data))
            return true;
        consume(c, data.n);
        if (r->body_bytes < r->head.length)
            return false;
        deliver_request(c);
        return true;
    }
    while (!r->chunked.done && waiting_in(c) > 0) {
        struct di_str data;
        int64_t n = di_http_chunked_next(&r->chunked, input(c), &data, &why);
        if (n < 0) {
            refuse_connection(c, (int)-n, why);
            return true;
        }
        if (data.n && !add_body(c, data))
            return true;
        consume(c, (size_t)n);
    }
    if (r->chunked.done)
        deliver_request(c);
    return r->chunked.done;
}

/* The response is complete: what comes next on this connection? */
static void next_request(struct di_http_conn *c)
{
    bool close_after = c->request->close_after;
    request_destroy(c);
    if (waiting_in(c) == 0)
        di_buf_fini(&c->in); /* an idle connection keeps no buffers */
    if (close_after || c->saw_end)
        enter(c, DI_HTTP_FLUSHING);
    else if (c->http->draining && waiting_in(c) == 0)
        enter(c, DI_HTTP_FLUSHING);
    else
        enter(c, DI_HTTP_IDLE);
}

static void process(struct di_http_conn *c)
{
    for (bool more = true; more;) {
        if (c->request && c->request->answered && c->state != DI_HTTP_DEAD)
            next_request(c);
        if (c->out.n - c->out_at > MORE_OUTPUT)
            return;
        more = (c->state == DI_HTTP_IDLE || c->state == DI_HTTP_HEAD) ? read_head(c) : c->state == DI_HTTP_BODY ? read_body(c) : false;
    }
}

/* ---------------------------------------------------------------- input and output */

static void stream_ended(struct di_http_conn *c)
{
    c->saw_end = true;
    if (c->state != DI_HTTP_FLUSHING)
        gone(c, "the client closed the connection");
}

static ssize_t conn_read(struct di_http_conn *c)
{
    char *to = c->http->scratch;
    if (c->ssl)
        return di_http_tls_read(c, to, DI_HTTP_READ);
    ssize_t n = recv(c->fd, to, DI_HTTP_READ, 0);
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? -1 : -2;
}

/* Does it want input now? Beyond PIPELINE a client that is being answered has to wait. */
static bool wants_input(const struct di_http_conn *c)
{
    return c->state == DI_HTTP_LINGERING || (c->state < DI_HTTP_FLUSHING && !c->saw_end && waiting_in(c) < PIPELINE);
}

static void read_some(struct di_http_conn *c)
{
    do {
        ssize_t n = conn_read(c);
        if (n == -1)
            return;
        if (n <= 0) {
            if (n == 0)
                stream_ended(c);
            else
                gone(c, "the connection broke");
            return;
        }
        c->http->counters.bytes_in += (uint64_t)n;
        if (c->state == DI_HTTP_LINGERING) {
            c->in_at += (size_t)n; /* read over, counted */
            if (c->in_at > LINGER_BYTES)
                enter(c, DI_HTTP_DEAD);
            return;
        }
        di_buf_add(&c->in, c->http->scratch, (size_t)n);
        if (c->in.failed) {
            gone(c, "out of memory");
            return;
        }
        process(c);
    } while (c->ssl && SSL_pending(c->ssl) > 0 && wants_input(c));
}

static void write_some(struct di_http_conn *c)
{
    while (c->out_at < c->out.n) {
        const char *p = c->out.p + c->out_at;
        size_t left = c->out.n - c->out_at;
        ssize_t n = c->ssl ? di_http_tls_write(c, p, left) : send(c->fd, p, left, MSG_NOSIGNAL);
        if (n < 0 && (c->ssl ? n == -1 : errno == EAGAIN || errno == EINTR)) {
            c->wants_write = true;
            break;
        }
        if (n < 0) {
            gone(c, "the connection broke");
            return;
        }
        c->out_at += (size_t)n;
        c->http->counters.bytes_out += (uint64_t)n;
        c->stalled_ns = 0;
    }
    if (c->out_at == c->out.n) {
        c->out_at = 0;
        c->stalled_ns = 0;
        if (c->out.cap > DI_HTTP_READ || c->state != DI_HTTP_PENDING)
            di_buf_fini(&c->out);
        else
            di_buf_clear(&c->out);
    } else if (c->out_at > c->out.n / 2) {
        memmove(c->out.p, c->out.p + c->out_at, c->out.n - c->out_at);
        c->out.n -= c->out_at;
        c->out_at = 0;
    }
    if (c->stalled_ns == 0 && c->out.n)
        c->stalled_ns = di_clock_ns();
}

/* The last byte is out. */
static void begin_linger(struct di_http_conn *c)
{
    if (c->saw_end) {
        enter(c, DI_HTTP_DEAD);
        return;
    }
    if (c->ssl)
        SSL_shutdown(c->ssl);
    shutdown(c->fd, SHUT_WR);
    di_buf_fini(&c->in);
    c->in_at = 0;
    enter(c, DI_HTTP_LINGERING);
}

/* Bring a connection into the state in which it can wait for its next event. */
static void look(struct di_http_conn *c)
{
    if (c->handshake || c->state == DI_HTTP_DEAD)
        return;
    process(c);
    if (c->state == DI_HTTP_DEAD)
        return;
    if (c->out.failed) {
        gone(c, "out of memory");
        return;
    }
    write_some(c);
    if (c->state == DI_HTTP_DEAD)
        return;
    if (c->out.n == 0 && (c->request || waiting_in(c)))
        process(c); /* pipelined requests that waited for room */
    struct di_http *h = c->http;
    if (c->state == DI_HTTP_PENDING && !c->request->answered && c->out.n - c->out_at > h->limits.output) {
        h->counters.slow_readers++;
        gone(c, "the client reads too slowly");
        return;
    }
    if (c->state == DI_HTTP_FLUSHING && c->out.n == 0)
        begin_linger(c);
}

/* After each event: write what was collected, free what died. */
static void settle(struct di_http *h)
{
    if (h->settling)
        return;
    h->settling = true;
    while (h->dirty) {
        struct di_http_conn *c = h->dirty;
        h->dirty = c->next_dirty;
        c->dirty = false;
        look(c);
        if (c->state == DI_HTTP_DEAD) {
            if (!c->dirty) /* else it comes again */
                conn_destroy(c);
            continue;
        }
        int input = wants_input(c) ? EV_READ : c->saw_end ? 0 : EV_CLOSED;
        if (!listen_for(c, (short)(input | (c->wants_write || c->out.n ? EV_WRITE : 0))))
            gone(c, "the system refuses to watch the connection");
    }
    h->settling = false;
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct di_http_conn *c = arg;
    (void)fd;
    di_http_touch(c);
    c->wants_write = false;
    if (c->handshake) {
        int r = di_http_tls_handshake(c);
        if (r == -2)
            enter(c, DI_HTTP_DEAD);
        c->handshake = r == -1;
        if (r == 1)
            enter(c, DI_HTTP_IDLE);
    }
    if (!c->handshake && c->state != DI_HTTP_DEAD) {
        if (what & EV_CLOSED && !(what & EV_READ))
            stream_ended(c);
        else if (what & EV_READ)
            read_some(c);
        else if (c->ssl) /* TLS may have waited for the socket to become writable before it could read */
            read_some(c);
    }
    settle(c->http);
}

void di_http_flush(struct di_http *h)
{
    settle(h);
}

/* ---------------------------------------------------------------- accepting */

static void name_peer(const struct sockaddr_storage *a, char *out, size_t n)
{
    char host[INET6_ADDRSTRLEN];
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    if (a->ss_family == AF_INET && inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host))
        snprintf(out, n, "%s:%u", host, ntohs(v4->sin_port));
    else if (a->ss_family == AF_INET6 && inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host))
        snprintf(out, n, "[%s]:%u", host, ntohs(v6->sin6_port));
    else
        snprintf(out, n, "unix");
}

static void turn_away(int fd)
{
    static const char body[] = "{\"error\": {\"message\": \"this server has as many connections as it accepts\", "
                               "\"type\": \"service_unavailable\", \"param\": null, \"code\": null}}";
    char text[512];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
                     "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                     sizeof body - 1, body);
    ssize_t sent = send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* it goes either way */
    close(fd);
}

/* All of it fails on Unix sockets, which need none. */
static void tune(const struct di_http *h, int fd)
{
    int one = 1, unsent = UNSENT, idle = 30, between = 10, probes = 3;
    unsigned unanswered = (unsigned)h->limits.write_ms + 5000; /* after our own time limit, which is counted */
    /* A peer that vanished without a word is noticed: when it acknowledges nothing, or by probes while nothing is sent. */
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

static void pause_listening(struct di_http *h, bool pause)
{
    h->paused = pause;
    for (size_t i = 0; i < h->n_listeners; i++) {
        if (pause)
            event_del(h->listeners[i].event);
        else
            event_add(h->listeners[i].event, NULL);
    }
}

static void on_accept(evutil_socket_t listening, short what, void *arg)
{
    struct di_http_listener *l = arg;
    struct di_http *h = l->http;
    (void)what;
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage a = {0};
        socklen_t n = sizeof a;
        int fd = accept4(listening, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            di_log(h->log, DI_LOG_WARN, "cannot accept connections: %s", strerror(errno));
            pause_listening(h, true);
        }
        if (fd < 0)
            return;
        if (h->counters.open >= h->limits.connections) {
            h->counters.refused++;
            turn_away(fd);
            continue;
        }
        tune(h, fd);
        struct di_http_conn *c = conn_create(h, fd, l->tls);
        if (!c) {
            close(fd);
            return;
        }
        name_peer(&a, c->peer, sizeof c->peer);
        h->counters.accepted++;
    }
}

di_status di_http_listen(struct di_http *h, int fd, bool tls, di_error *err)
{
    di_status status = DI_OK;
    struct di_http_listener *l = &h->listeners[h->n_listeners];
    CHECK(h->n_listeners < DI_HTTP_MAX_LISTENERS, err, DI_ERR_LIMIT, "listen", "more than %d listening sockets", DI_HTTP_MAX_LISTENERS);
    CHECK(evutil_make_socket_nonblocking(fd) == 0 && listen(fd, 1024) == 0, err, DI_ERR_IO, "listen", "%s", strerror(errno));
    *l = (struct di_http_listener){.http = h, .fd = fd, .tls = tls};
    l->event = event_new(h->base, fd, EV_READ | EV_PERSIST, on_accept, l);
    CHECK(l->event && event_add(l->event, NULL) == 0, err, DI_ERR_MEMORY, "listen", "out of memory");
    h->n_listeners++;
out:
    if (status != DI_OK && l->event) {
        event_free(l->event);
        l->event = NULL;
    }
    return status;
}

/* ---------------------------------------------------------------- time */

/* Is it too slow in what it does? */
static void check_time(struct di_http_conn *c, int64_t now)
{
    struct di_http *h = c->http;
    const struct di_http_limits *l = &h->limits;
    int64_t ms = (now - c->since_ns) / 1000000;
    bool late = c->handshake                    ? ms > l->head_ms
                : c->state == DI_HTTP_HEAD      ? ms > l->head_ms
                : c->state == DI_HTTP_BODY      ? ms > l->body_ms
                : c->state == DI_HTTP_IDLE      ? ms > l->idle_ms
                : c->state == DI_HTTP_LINGERING ? ms > LINGER_MS
                                                : false;
    if (c->stalled_ns && (now - c->stalled_ns) / 1000000 > l->write_ms) {
        h->counters.slow_readers++;
        gone(c, "the client reads too slowly");
    } else if (late && (c->state == DI_HTTP_HEAD || c->state == DI_HTTP_BODY)) {
        h->counters.timeouts++;
        if (c->request || make_request(c))
            refuse_connection(c, 408, "the request did not come in time");
    } else if (late) {
        h->counters.timeouts += c->handshake;
        enter(c, DI_HTTP_DEAD);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct di_http *h = arg;
    (void)fd, (void)what;
    int64_t now = di_clock_ns();
    if (++h->ticks % SWEEP_TICKS == 0) {
        for (struct di_http_conn *c = h->conns; c; c = c->next)
            check_time(c, now);
        if (h->paused)
            pause_listening(h, false);
    }
    h->on.on_tick(h->on.ctx, now);
    settle(h);
}

/* ---------------------------------------------------------------- the transport as a whole */

di_status di_http_create(struct event_base *base, const struct di_http_limits *limits, const struct di_http_events *events,
                         const struct di_log *log, struct di_http **out, di_error *err)
{
    di_status status = DI_OK;
    struct timeval tick = {.tv_usec = TICK_MS * 1000};
    struct di_http *h = di_calloc(1, sizeof *h);
    CHECK(h, err, DI_ERR_MEMORY, "", "out of memory");
    *h = (struct di_http){.base = base, .limits = *limits, .on = *events, .log = log, .scratch = di_malloc(DI_HTTP_READ)};
    h->timer = event_new(base, -1, EV_PERSIST, on_timer, h);
    CHECK(h->scratch && h->timer && event_add(h->timer, &tick) == 0, err, DI_ERR_MEMORY, "", "out of memory");
out:
    if (status != DI_OK) {
        di_http_destroy(h);
        h = NULL;
    }
    *out = h;
    return status;
}

static void stop_listening(struct di_http *h)
{
    for (size_t i = 0; i < h->n_listeners; i++) {
        event_free(h->listeners[i].event);
        close(h->listeners[i].fd);
    }
    h->n_listeners = 0;
}

void di_http_drain(struct di_http *h)
{
    stop_listening(h);
    h->draining = true;
    for (struct di_http_conn *c = h->conns; c; c = c->next)
        if (c->state == DI_HTTP_IDLE)
            enter(c, DI_HTTP_DEAD);
    settle(h);
}

void di_http_destroy(struct di_http *h)
{
    if (!h)
        return;
    stop_listening(h);
    for (struct di_http_conn *c = h->conns; c; c = c->next)
        gone(c, "the server stops");
    settle(h);
    if (h->timer)
        event_free(h->timer);
    SSL_CTX_free(h->tls);
    di_free(h->scratch);
    di_free(h);
}

const struct di_http_counters *di_http_counters(const struct di_http *h)
{
    return &h->counters;
}
