/* not run under TSan: no threads */
/* The transport alone, over loopback: what a service sees of requests, however they are cut and whenever memory runs out. */
#include "server/http.h"

#include <arpa/inet.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A service that answers with the length of the body: at once, or in two pieces. It counts what it sees. */
struct service {
    struct event_base *base;
    struct di_http *http;
    int port;
    int heads, requests, gone, refused, done;
    struct di_http_request *held; /* GET /hold waits for the test */
};

static void on_head(void *ctx, struct di_http_request *r)
{
    struct service *s = ctx;
    s->heads++;
    r->user = s;
    if (di_str_eqc(r->head.path, "/early"))
        di_http_reply(r, 401, NULL, (struct di_str){0}, DI_STR("no"));
}

static bool on_body(void *ctx, struct di_http_request *r, size_t n)
{
    (void)ctx;
    return r->body.n + n <= 1000000;
}

static void on_request(void *ctx, struct di_http_request *r)
{
    struct service *s = ctx;
    struct di_buf b = {0};
    s->requests++;
    if (di_str_eqc(r->head.path, "/hold")) {
        s->held = r;
        return;
    }
    di_buf_addf(&b, "%zu", r->body.n);
    if (di_str_eqc(r->head.path, "/pieces")) {
        di_http_start(r, 200, "text/plain", (struct di_str){0});
        di_http_send(r, di_buf_str(&b));
        di_http_send(r, DI_STR("!"));
        di_http_end(r);
    } else {
        di_http_reply(r, 200, "text/plain", (struct di_str){0}, di_buf_str(&b));
    }
    di_buf_fini(&b);
}

static void on_gone(void *ctx, struct di_http_request *r, const char *why)
{
    struct service *s = ctx;
    assert_non_null(why);
    s->gone++;
    if (s->held == r)
        s->held = NULL;
}

static struct di_str on_refused(void *ctx, struct di_http_request *r, int status, const char *why, struct di_buf *body)
{
    struct service *s = ctx;
    (void)r;
    s->refused++;
    di_buf_addf(body, "%d %s", status, why);
    return (struct di_str){0};
}

static void on_done(void *ctx, struct di_http_request *r)
{
    struct service *s = ctx;
    s->done++;
    if (s->held == r)
        s->held = NULL;
}

static void on_tick(void *ctx, int64_t now_ns)
{
    (void)ctx, (void)now_ns;
}

static const struct di_http_limits limits = {.head = 4096,
                                             .heads = 1 << 20,
                                             .body = 100000,
                                             .output = 100000,
                                             .connections = 100,
                                             .head_ms = 2000,
                                             .body_ms = 2000,
                                             .idle_ms = 2000,
                                             .write_ms = 2000};

static int bound_socket(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* Not with failing memory: false if there is none. */
static bool open_service(struct service *s)
{
    struct di_http_events events = {.on_head = on_head,
                                    .on_body = on_body,
                                    .on_request = on_request,
                                    .on_gone = on_gone,
                                    .on_refused = on_refused,
                                    .on_done = on_done,
                                    .on_tick = on_tick,
                                    .ctx = s};
    di_error err;
    *s = (struct service){.base = event_base_new()};
    assert_non_null(s->base);
    if (di_http_create(s->base, &limits, &events, NULL, &s->http, &err) != DI_OK)
        return false;
    int fd = bound_socket(&s->port);
    if (di_http_listen(s->http, fd, false, &err) == DI_OK)
        return true;
    close(fd);
    return false;
}

static void close_service(struct service *s)
{
    di_http_destroy(s->http);
    event_base_free(s->base);
    assert_null(s->held);
}

static int dial(const struct service *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

/* Even loopback takes its time now and then. */
static void turn(struct service *s, int times)
{
    for (int i = 0; i < times; i++) {
        event_base_loop(s->base, EVLOOP_NONBLOCK);
        if (i > 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

#define WHILE_NOT(s, condition)                       \
    for (int i_ = 0; i_ < 2000 && !(condition); i_++) \
    turn(s, 2)

/* Send a text in pieces of `step` bytes, let the server work in between, and collect what it says until it closes or has nothing more to
 * say. */
static void talk(struct service *s, struct di_str text, size_t step, struct di_buf *answer)
{
    char piece[4096];
    int fd = dial(s), quiet = 0;
    bool refused = false; /* it has closed */
    for (size_t at = 0; at < text.n && !refused; at += step) {
        refused = send(fd, text.p + at, text.n - at < step ? text.n - at : step, MSG_NOSIGNAL) < 0;
        turn(s, 1);
    }
    di_buf_clear(answer);
    while (quiet < 100) {
        turn(s, 2);
        ssize_t n = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n == 0)
            break;
        if (n > 0)
            di_buf_add(answer, piece, (size_t)n);
        quiet = n > 0 ? 0 : quiet + 1;
    }
    close(fd);
    WHILE_NOT(s, di_http_counters(s->http)->open == 0);
}

static int count(const struct di_buf *b, const char *what)
{
    int n = 0;
    for (size_t at = 0; (at = di_str_find(di_buf_str(b), di_str_c(what), at)) != SIZE_MAX; at++)
        n++;
    return n;
}

static const char conversation[] =
    "\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    "POST /pieces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x\r\ndefg\r\n0\r\nA: b\r\n\r\n"
    "HEAD /c HTTP/1.1\r\nHost: x\r\n\r\n"
    "POST /pieces HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi";

static void cut_anywhere(void **state)
{
    struct service s;
    struct di_buf b = {0};
    (void)state;
    assert_true(open_service(&s));
    for (size_t step = 1; step < sizeof conversation; step += step < 20 ? 1 : 37) {
        s.requests = s.done = 0;
        talk(&s, DI_STR(conversation), step, &b);
        assert_int_equal(s.requests, 5);
        assert_int_equal(s.done, 5);
        assert_int_equal(count(&b, "HTTP/1.1 200 OK"), 5);
        assert_int_equal(count(&b, "\r\n\r\n5HTTP"), 1);
        assert_int_equal(count(&b, "1\r\n7\r\n1\r\n!\r\n0\r\n\r\n"), 1);
        assert_true(b.n > 2 && memcmp(b.p + b.n - 2, "2!", 2) == 0); /* without chunks, until the end */
    }
    assert_int_equal(di_http_counters(s.http)->open, 0);
    assert_int_equal(di_http_counters(s.http)->reading, 0);
    close_service(&s);
    di_buf_fini(&b);
}

static void gone_while_pending(void **state)
{
    static const char hold[] = "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n";
    struct service s;
    (void)state;
    assert_true(open_service(&s));
    for (size_t extra = 0; extra < 3; extra++) { /* nothing behind the request, something, more than the server wants to hold */
        static char more[200000];
        int fd = dial(&s);
        assert_int_equal(send(fd, hold, sizeof hold - 1, MSG_NOSIGNAL), sizeof hold - 1);
        memset(more, 'x', sizeof more);
        for (size_t sent = 0; extra == 2 && sent < sizeof more;) {
            ssize_t n = send(fd, more + sent, sizeof more - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            turn(&s, 3);
            if (n < 0)
                break;
            sent += (size_t)n;
        }
        if (extra == 1)
            assert_int_equal(send(fd, "GET", 3, MSG_NOSIGNAL), 3);
        WHILE_NOT(&s, s.held);
        turn(&s, 5);
        assert_non_null(s.held);
        assert_int_equal(s.gone, extra);
        close(fd);
        WHILE_NOT(&s, !s.held);
        assert_int_equal(s.gone, extra + 1);
        assert_null(s.held);
    }
    int fd = dial(&s);
    assert_int_equal(send(fd, hold, sizeof hold - 1, MSG_NOSIGNAL), sizeof hold - 1);
    WHILE_NOT(&s, s.held);
    di_http_abort(s.held);
    di_http_flush(s.http);
    assert_null(s.held);
    assert_int_equal(s.gone, 3);
    close(fd);
    fd = dial(&s);
    assert_int_equal(send(fd, hold, sizeof hold - 1, MSG_NOSIGNAL), sizeof hold - 1);
    WHILE_NOT(&s, s.held);
    assert_non_null(s.held);
    close_service(&s); /* tells it, too */
    close(fd);
}

static void early_answer(void **state)
{
    struct service s;
    struct di_buf b = {0};
    (void)state;
    assert_true(open_service(&s));
    talk(&s, DI_STR("POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"), 1000, &b);
    assert_int_equal(count(&b, "HTTP/1.1 401"), 1);
    assert_int_equal(count(&b, "Connection: close"), 1);
    talk(&s, DI_STR("GET /early HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n"), 1000, &b);
    assert_int_equal(count(&b, "HTTP/1.1 401"), 1);
    assert_int_equal(count(&b, "HTTP/1.1 200"), 1);
    talk(&s, DI_STR("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n"), 1000, &b);
    assert_int_equal(count(&b, "HTTP/1.1 413"), 1);
    assert_int_equal(s.refused, 1);
    close_service(&s);
    di_buf_fini(&b);
}

/* The n-th allocation fails, for every n: the client gets an answer or a closed connection, nothing is leaked, and the next client is
 * served. */
static void memory_runs_out(void **state)
{
    struct service s;
    struct di_buf b = {0};
    (void)state;
    di_buf_reserve(&b, 65536);
    for (uint64_t n = 0; n < 200; n++) {
        di_mem_fail_after(n);
        bool opened = open_service(&s);
        if (opened)
            talk(&s, DI_STR(conversation), 50, &b);
        di_mem_fail_after(UINT64_MAX);
        if (opened) {
            s.requests = 0;
            talk(&s, DI_STR(conversation), 50, &b);
            assert_int_equal(s.requests, 5);
            assert_int_equal(di_http_counters(s.http)->open, 0);
            assert_int_equal(di_http_counters(s.http)->reading, 0);
        }
        close_service(&s);
    }
    di_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_anywhere), cmocka_unit_test(gone_while_pending), cmocka_unit_test(early_answer),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
