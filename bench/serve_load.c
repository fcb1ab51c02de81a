/* Load for an HTTP server of chat completions, on one thread. usage: serve_load PORT MODE N [TOKENS]
 *
 *   streams N TOKENS   N streams at once; latency of each token from its text "t=NANOSECONDS;" (serve_null)
 *   idle N             N connections that have had one answer and stay open until stdin ends
 *   churn N TOKENS     N requests, 200 at a time, streamed and not, half of them broken off at a random moment
 *
 * Prints a JSON object. */
#include "base/clock.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_SAMPLES ((size_t)20 << 20)
#define AT_ONCE 200

struct conn {
    int fd;
    struct di_buf in; /* what is not looked at yet */
    bool over;        /* the answer is complete */
    int64_t leave_ns; /* churn: break off then, 0 = stay */
};

static struct {
    int port, epoll;
    const char *mode;
    size_t n, tokens;
    struct conn *conns;
    int64_t *latency; /* [n_latency] ns */
    size_t n_latency, chunks, complete, broken_off, failed;
    uint64_t random;
} g;

static uint64_t draw(uint64_t n)
{
    g.random = g.random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (g.random >> 33) % n;
}

static int open_conn(struct conn *c, const char *request, size_t bytes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)g.port)};
    struct linger hard = {1, 0};
    int one = 1;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    di_buf_clear(&c->in);
    c->over = false;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a) != 0) {
        fprintf(stderr, "connect: %s\n", strerror(errno));
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard); /* leaves no port in TIME_WAIT */
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    return epoll_ctl(g.epoll, EPOLL_CTL_ADD, c->fd, &e) == 0 && send(c->fd, request, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void add_request(struct di_buf *b, bool stream, size_t tokens)
{
    char body[256];
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"Say hello.\"}],\"ignore_eos\":true,\"max_tokens\":%zu,\"stream\":%s}",
                     tokens, stream ? "true" : "false");
    di_buf_clear(b);
    di_buf_addf(b,
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                n, body);
}

/* Times in what has come; a text that is cut stays for the next piece. */
static void take_times(struct conn *c)
{
    struct di_str s = di_buf_str(&c->in);
    int64_t now = di_clock_ns();
    size_t at = 0, hit;
    while ((hit = di_str_find(s, DI_STR("t="), at)) != SIZE_MAX) {
        size_t end = di_str_find(s, DI_STR(";"), hit);
        if (end == SIZE_MAX)
            break;
        if (s.p[hit + 2] >= '0' && s.p[hit + 2] <= '9' && g.n_latency < MAX_SAMPLES) {
            g.latency[g.n_latency++] = now - atoll(s.p + hit + 2);
            g.chunks++;
        }
        at = end;
    }
    size_t keep = s.n - at < 64 ? s.n - at : 64;
    if (hit != SIZE_MAX && s.n - hit > keep)
        keep = s.n - hit;
    memmove(c->in.p, s.p + s.n - keep, keep);
    c->in.n = keep;
    c->in.p[keep] = 0;
}

/* The end of an answer: of a chunked one, or a whole body. */
static bool is_complete(const struct conn *c)
{
    struct di_str s = di_buf_str(&c->in);
    if (s.n >= 5 && memcmp(s.p + s.n - 5, "0\r\n\r\n", 5) == 0)
        return true;
    size_t length = di_str_find(s, DI_STR("Content-Length: "), 0), body = di_str_find(s, DI_STR("\r\n\r\n"), 0);
    return length != SIZE_MAX && body != SIZE_MAX && s.n >= body + 4 + (size_t)atoll(s.p + length + 16);
}

static void read_conn(struct conn *c)
{
    char piece[65536];
    ssize_t n = recv(c->fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        g.failed++;
        c->over = true;
        epoll_ctl(g.epoll, EPOLL_CTL_DEL, c->fd, NULL);
        return;
    }
    di_buf_add(&c->in, piece, (size_t)n);
    c->over = is_complete(c);
    g.complete += c->over;
    if (g.latency)
        take_times(c);
}

static void wait_for(int ms)
{
    struct epoll_event events[256];
    int n = epoll_wait(g.epoll, events, 256, ms);
    for (int i = 0; i < n; i++)
        if (!((struct conn *)events[i].data.ptr)->over)
            read_conn(events[i].data.ptr);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double quantile_ms(double share)
{
    return g.n_latency ? (double)g.latency[(size_t)(share * (double)(g.n_latency - 1))] * 1e-6 : 0;
}

static void run_streams(void)
{
    struct di_buf request = {0};
    g.latency = di_malloc(MAX_SAMPLES * sizeof *g.latency);
    add_request(&request, true, g.tokens);
    int64_t start = di_clock_ns();
    for (size_t i = 0; i < g.n; i++) {
        open_conn(&g.conns[i], request.p, request.n);
        wait_for(0);
    }
    while (g.complete + g.failed < g.n)
        wait_for(1000);
    double seconds = (double)(di_clock_ns() - start) * 1e-9;
    qsort(g.latency, g.n_latency, sizeof *g.latency, compare);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("{\"streams\": %zu, \"failed\": %zu, \"chunks\": %zu, \"seconds\": %.2f, \"chunks_per_second\": %.0f, \"latency_ms\": {\"p50\": "
           "%.3f, "
           "\"p90\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f}, \"client_cpu_s\": %.2f}\n",
           g.n, g.failed, g.chunks, seconds, (double)g.chunks / seconds, quantile_ms(0.5), quantile_ms(0.9), quantile_ms(0.99),
           quantile_ms(0.999), quantile_ms(1),
           (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6);
    di_buf_fini(&request);
}

static void run_idle(void)
{
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (size_t i = 0; i < g.n; i++) {
        open_conn(&g.conns[i], request, sizeof request - 1);
        wait_for(0);
    }
    while (g.complete + g.failed < g.n)
        wait_for(1000);
    printf("{\"idle\": %zu, \"failed\": %zu}\n", g.complete, g.failed);
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

static void begin_churn(struct conn *c, struct di_buf *request)
{
    add_request(request, draw(2), 1 + draw(g.tokens));
    bool leaves = draw(2);
    c->leave_ns = leaves ? di_clock_ns() + (int64_t)draw(40000000) : 0;
    size_t bytes = leaves && draw(10) == 0 ? draw(request->n) : request->n; /* some break off within the request */
    if (!open_conn(c, request->p, bytes))
        g.failed++;
}

static void run_churn(void)
{
    struct di_buf request = {0};
    size_t begun = 0, ended = 0;
    int64_t start = di_clock_ns();
    for (; begun < g.n && begun < AT_ONCE; begun++)
        begin_churn(&g.conns[begun], &request);
    while (ended < g.n) {
        wait_for(1);
        int64_t now = di_clock_ns();
        for (size_t i = 0; i < AT_ONCE && i < g.n; i++) {
            struct conn *c = &g.conns[i];
            bool leaves = c->fd >= 0 && !c->over && c->leave_ns && now > c->leave_ns;
            if (c->fd < 0 || (!c->over && !leaves))
                continue;
            g.broken_off += leaves;
            close(c->fd);
            c->fd = -1;
            ended++;
            if (begun < g.n) {
                begin_churn(c, &request);
                begun++;
            }
        }
    }
    printf("{\"requests\": %zu, \"complete\": %zu, \"broken_off\": %zu, \"failed\": %zu, \"seconds\": %.1f}\n", ended, g.complete,
           g.broken_off, g.failed, (double)(di_clock_ns() - start) * 1e-9);
    di_buf_fini(&request);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: serve_load PORT streams|idle|churn N [TOKENS]\n");
        return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    g.port = atoi(argv[1]);
    g.mode = argv[2];
    g.n = (size_t)atoll(argv[3]);
    g.tokens = argc > 4 ? (size_t)atoll(argv[4]) : 500;
    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    g.random = 1;
    g.conns = di_calloc(g.n > AT_ONCE ? g.n : AT_ONCE, sizeof *g.conns);
    if (strcmp(g.mode, "streams") == 0)
        run_streams();
    else if (strcmp(g.mode, "idle") == 0)
        run_idle();
    else
        run_churn();
    return g.failed > 0;
}
