/* Which request is whose: routes, keys, limits, and the answers that the loop gives itself. */
#include "server/server_impl.h"

#include <openssl/rand.h>
#include <stdio.h>

static void answer_health(struct di_call *c);
static void answer_version(struct di_call *c);
static void answer_load(struct di_call *c);
static void answer_metrics(struct di_call *c);
static void answer_status(struct di_call *c);
static void answer_page(struct di_call *c);

#define EXCHANGE(verb, path, route)                        \
    {                                                      \
        path, false, verb, false, NULL, route, false, NULL \
    }
#define OF_ID(verb, path, end, route)                    \
    {                                                    \
        path, true, verb, false, NULL, route, false, end \
    }
#define GENERATE(path, route)                               \
    {                                                       \
        path, false, "POST", false, NULL, route, true, NULL \
    }
#define HERE(path, open, fn)                         \
    {                                                \
        path, false, "GET", open, fn, 0, false, NULL \
    }

/* spec/encoding.md §4.1. DeepSeek's base URL has no /v1. */
static const struct di_route_row rows[] = {
    GENERATE("/v1/chat/completions", DI_ROUTE_CHAT),
    GENERATE("/chat/completions", DI_ROUTE_CHAT),
    GENERATE("/beta/chat/completions", DI_ROUTE_CHAT),
    GENERATE("/v1/completions", DI_ROUTE_COMPLETIONS),
    GENERATE("/completions", DI_ROUTE_COMPLETIONS),
    GENERATE("/beta/completions", DI_ROUTE_COMPLETIONS),
    GENERATE("/v1/messages", DI_ROUTE_MESSAGES),
    GENERATE("/anthropic/v1/messages", DI_ROUTE_MESSAGES),
    GENERATE("/v1/responses", DI_ROUTE_RESPONSES),
    GENERATE("/responses", DI_ROUTE_RESPONSES),
    EXCHANGE("POST", "/v1/messages/count_tokens", DI_ROUTE_COUNT_TOKENS),
    EXCHANGE("POST", "/anthropic/v1/messages/count_tokens", DI_ROUTE_COUNT_TOKENS),
    EXCHANGE("POST", "/v1/responses/input_tokens", DI_ROUTE_RESPONSE_TOKENS),
    EXCHANGE("POST", "/responses/input_tokens", DI_ROUTE_RESPONSE_TOKENS),
    EXCHANGE("GET", "/v1/models", DI_ROUTE_MODELS),
    EXCHANGE("GET", "/models", DI_ROUTE_MODELS),
    EXCHANGE("GET", "/beta/models", DI_ROUTE_MODELS),
    EXCHANGE("GET", "/anthropic/v1/models", DI_ROUTE_MODELS),
    EXCHANGE("POST", "/tokenize", DI_ROUTE_TOKENIZE),
    EXCHANGE("POST", "/detokenize", DI_ROUTE_DETOKENIZE),
    EXCHANGE("GET", "/tokenizer_info", DI_ROUTE_TOKENIZER_INFO),
    OF_ID("GET", "/v1/models/", NULL, DI_ROUTE_MODEL),
    OF_ID("GET", "/models/", NULL, DI_ROUTE_MODEL),
    OF_ID("GET", "/beta/models/", NULL, DI_ROUTE_MODEL),
    OF_ID("GET", "/anthropic/v1/models/", NULL, DI_ROUTE_MODEL),
    OF_ID("GET", "/v1/responses/", "/input_items", DI_ROUTE_RESPONSE_ITEMS),
    OF_ID("GET", "/v1/responses/", NULL, DI_ROUTE_RESPONSE_GET),
    OF_ID("DELETE", "/v1/responses/", NULL, DI_ROUTE_RESPONSE_DELETE),
    HERE("/health", true, answer_health),
    HERE("/health_generate", true, answer_health),
    HERE("/ping", true, answer_health),
    HERE("/version", false, answer_version),
    HERE("/load", false, answer_load),
    HERE("/metrics", false, answer_metrics),
    HERE("/api/status", false, answer_status),
};
#define N_ROWS (sizeof rows / sizeof *rows)

/* ---------------------------------------------------------------- answers */

struct di_str di_call_headers(struct di_call *c, bool stream)
{
    struct di_server *s = c->server;
    struct di_buf *b = &s->extra;
    di_buf_clear(b);
    di_buf_addf(b, "X-Request-Id: %s\r\n", c->id);
    if (c->dialect == DI_DIALECT_ANTHROPIC)
        di_buf_addf(b, "Request-Id: %s\r\n", c->id);
    if (stream)
        di_buf_adds(b, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (s->config.cors_origin)
        di_buf_addf(b, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After\r\n%s",
                    s->config.cors_origin, strcmp(s->config.cors_origin, "*") == 0 ? "" : "Vary: Origin\r\n");
    return di_buf_str(b);
}

static bool is_at(const struct di_route_row *row, struct di_str path)
{
    struct di_str from = di_str_c(row->path), end = di_str_c(row->end);
    if (!row->more)
        return di_str_eq(path, from);
    return path.n > from.n + end.n && di_str_starts(path, from) && di_str_ends(path, end);
}

static struct di_str errors_headers(struct di_call *c, int status, int retry_after)
{
    struct di_buf *b = &c->server->extra;
    di_call_headers(c, false);
    if (retry_after)
        di_buf_addf(b, "Retry-After: %d\r\n", retry_after);
    if (status == 401)
        di_buf_adds(b, "WWW-Authenticate: Bearer\r\n");
    if (status == 405) {
        const char *before = "";
        di_buf_adds(b, "Allow: OPTIONS");
        for (size_t i = 0; i < N_ROWS; i++)
            if (is_at(&rows[i], c->http->head.path) && strcmp(rows[i].verb, before) != 0) {
                before = rows[i].verb;
                di_buf_addf(b, ", %s%s", before, strcmp(before, "GET") == 0 ? ", HEAD" : "");
            }
        di_buf_adds(b, "\r\n");
    }
    return di_buf_str(b);
}

void di_call_reply_error(struct di_call *c, const struct di_http_error *e, int retry_after)
{
    struct di_buf *body = &c->server->scratch;
    di_buf_clear(body);
    di_http_error_write(c->dialect, e, di_str_c(c->id), body);
    di_http_reply(c->http, e->status, "application/json", errors_headers(c, e->status, retry_after), di_buf_str(body));
}

static void refuse_call(struct di_call *c, int status, const char *code, int retry_after, const char *message)
{
    struct di_http_error e;
    di_http_error_set(&e, status, code, NULL, "%s", message);
    di_call_reply_error(c, &e, retry_after);
}

static void reply_text(struct di_call *c, const char *type, struct di_str body)
{
    di_http_reply(c->http, 200, type, di_call_headers(c, false), body);
}

bool di_server_healthy(const struct di_server *s)
{
    int64_t quiet = di_clock_ns() - s->step_ns;
    return atomic_load(&s->attached) && !s->draining && !s->stats.failing &&
           (s->config.stall_ms == 0 || quiet < s->config.stall_ms * 1000000);
}

static void answer_health(struct di_call *c)
{
    const struct di_server *s = c->server;
    if (di_server_healthy(s))
        reply_text(c, NULL, (struct di_str){0});
    else
        refuse_call(c, 503, NULL, 1,
                    !atomic_load(&s->attached) ? "the model is being loaded"
                    : s->draining              ? "the server is stopping"
                    : s->stats.failing         ? "the model failed in the latest step; the answers to requests and the log say why"
                                               : "requests wait, but the model makes no steps");
}

static void answer_version(struct di_call *c)
{
    reply_text(c, "application/json", DI_STR("{\"version\": \"" DI_VERSION_STRING "\"}"));
}

static void answer_load(struct di_call *c)
{
    struct di_server *s = c->server;
    char text[160];
    di_server_watch(s, di_clock_ns());
    snprintf(text, sizeof text, "{\"server_load\": %zu, \"running\": %d, \"waiting\": %d, \"connections\": %zu}", di_server_answers(s),
             s->stats.running, s->stats.waiting, di_http_counters(s->http)->open);
    reply_text(c, "application/json", di_str_c(text));
}

static void answer_metrics(struct di_call *c)
{
    struct di_buf *b = &c->server->scratch;
    di_buf_clear(b);
    di_server_watch(c->server, di_clock_ns());
    di_metrics_write(c->server, b);
    reply_text(c, "text/plain; version=0.0.4; charset=utf-8", di_buf_str(b));
}

static void answer_status(struct di_call *c)
{
    struct di_buf *b = &c->server->scratch;
    di_buf_clear(b);
    di_server_watch(c->server, di_clock_ns());
    di_status_write(c->server, b);
    reply_text(c, "application/json", di_buf_str(b));
}

/* ---------------------------------------------------------------- the web page */

static const struct di_page_file *find_page(struct di_str path)
{
    if (di_str_eqc(path, "/"))
        path = DI_STR("/index.html");
    for (size_t i = 0; i < di_page_n_files; i++)
        if (di_str_eqc(path, di_page_files[i].path))
            return &di_page_files[i];
    return NULL;
}

static const struct di_route_row page_row = HERE("", true, answer_page);

static void answer_page(struct di_call *c)
{
    const struct di_page_file *f = find_page(c->http->head.path);
    struct di_str known = di_http_header(&c->http->head, "if-none-match");
    di_call_headers(c, false);
    di_buf_addf(&c->server->extra,
                "ETag: %s\r\nCache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
                "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
                f->etag);
    bool same = known.n && di_str_find(known, di_str_c(f->etag), 0) != SIZE_MAX;
    struct di_str body = {(const char *)f->bytes, f->n};
    di_http_reply(c->http, same ? 304 : 200, same ? NULL : f->type, di_buf_str(&c->server->extra), same ? (struct di_str){0} : body);
}

/* ---------------------------------------------------------------- who may ask */

static bool is_verb(struct di_str method, const char *verb)
{
    return di_str_eqc(method, verb) || (strcmp(verb, "GET") == 0 && di_str_eqc(method, "HEAD"));
}

/* The row, or NULL with *status 404 or 405. */
static const struct di_route_row *find_row(const struct di_http_head *h, int *status)
{
    *status = 404;
    for (size_t i = 0; i < N_ROWS; i++) {
        bool here = is_at(&rows[i], h->path);
        if (here && is_verb(h->method, rows[i].verb))
            return &rows[i];
        if (here)
            *status = 405;
    }
    if (find_page(h->path)) {
        *status = 405;
        return is_verb(h->method, "GET") ? &page_row : NULL;
    }
    return NULL;
}

static enum di_dialect dialect_of(const struct di_http_head *h, const struct di_route_row *row)
{
    bool shared = !row || row->answer || row->route == DI_ROUTE_MODELS || row->route == DI_ROUTE_MODEL;
    if (!shared)
        return di_route_dialect(row->route);
    bool anthropic = di_str_starts(h->path, DI_STR("/v1/messages")) || di_str_starts(h->path, DI_STR("/anthropic/")) ||
                     di_http_header(h, "anthropic-version").n;
    return anthropic ? DI_DIALECT_ANTHROPIC : DI_DIALECT_OPENAI;
}

static bool is_id(struct di_str s, size_t max)
{
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z') ||
              (s.p[i] && strchr("-_.", s.p[i]))))
            return false;
    return s.n > 0 && s.n <= max;
}

/* The client's ids, if they are well-formed; else one of our own. */
static void take_ids(struct di_call *c)
{
    struct di_str id = di_http_header(&c->http->head, "x-request-id"), trace = di_http_header(&c->http->head, "traceparent");
    unsigned char bytes[12];
    if (is_id(id, sizeof c->id - 1)) {
        memcpy(c->id, id.p, id.n);
    } else if (RAND_bytes(bytes, sizeof bytes) == 1) {
        memcpy(c->id, "req_", 4);
        for (size_t i = 0; i < sizeof bytes; i++)
            snprintf(c->id + 4 + 2 * i, 3, "%02x", bytes[i]);
    }
    if (trace.n == 55 && is_id(trace, 55) && trace.p[2] == '-' && trace.p[35] == '-' && trace.p[52] == '-')
        memcpy(c->trace, trace.p, trace.n);
}

/* Authorization: Bearer KEY, or x-api-key: KEY as Anthropic's clients send it. False: both, and not the same. */
static bool presented_key(const struct di_http_head *h, struct di_str *key)
{
    struct di_str bearer = di_http_header(h, "authorization");
    *key = di_http_header(h, "x-api-key");
    if (bearer.n <= 7 || !di_http_same_word((struct di_str){bearer.p, 7}, "bearer "))
        return true;
    size_t i = 7;
    while (bearer.p[i] == ' ')
        i++;
    bearer = (struct di_str){bearer.p + i, bearer.n - i};
    bool one = key->n == 0 || di_str_eq(*key, bearer);
    *key = bearer;
    return one;
}

/* Only JSON: a page of another site can make a browser send forms and plain text here without asking, but not this. */
static bool is_json_type(struct di_str type)
{
    size_t n = di_str_find(type, DI_STR(";"), 0);
    struct di_str word = {type.p, n == SIZE_MAX ? type.n : n};
    while (word.n && (word.p[word.n - 1] == ' ' || word.p[word.n - 1] == '\t'))
        word.n--;
    return di_http_same_word(word, "application/json") || (word.n > 17 && di_http_same_word((struct di_str){word.p, 12}, "application/") &&
                                                           di_http_same_word((struct di_str){word.p + word.n - 5, 5}, "+json"));
}

/* What the head says is wrong with it? True: it may go on. */
static bool check_head(struct di_call *c)
{
    struct di_server *s = c->server;
    const struct di_http_head *h = &c->http->head;
    struct di_str type = di_http_header(h, "content-type"), coding = di_http_header(h, "content-encoding");
    if (di_str_eqc(h->method, "POST") && !is_json_type(type) && (type.n || di_http_header(h, "origin").n)) {
        refuse_call(c, 415, NULL, 0, "the body must be JSON: Content-Type: application/json");
        return false;
    }
    if (coding.n && !di_http_same_word(coding, "identity")) {
        refuse_call(c, 415, NULL, 0, "the body must be sent as it is: no Content-Encoding");
        return false;
    }
    if (!atomic_load(&s->attached) || s->draining) {
        refuse_call(c, 503, NULL, s->draining ? 5 : 2, s->draining ? "the server is stopping" : "the model is being loaded");
        return false;
    }
    return true;
}

static bool limit(struct di_call *c, int retry_after, const char *why)
{
    c->server->counters.limited++;
    refuse_call(c, 429, NULL, retry_after, why);
    return false;
}

/* Queue, rate and concurrency. `take`: the body is there, so it counts from now on; before, who would be refused anyway need not send it.
 * True: it may go on. */
static bool admit(struct di_call *c, bool take)
{
    const char *why = NULL;
    if (c->row->generates && !(take ? di_call_take_places(c, 1) : di_call_fits(c, 1)))
        return limit(c, 1, "the queue is full");
    int wait = !c->key ? 0 : take ? di_key_admit(c->key, di_clock_ns(), &why) : di_key_check(c->key, di_clock_ns(), &why);
    c->admitted = take && c->key && !wait;
    return wait ? limit(c, wait, why) : true;
}

static void answer_preflight(struct di_call *c)
{
    di_call_headers(c, false);
    if (c->server->config.cors_origin)
        di_buf_adds(&c->server->extra, "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
                                       "Access-Control-Allow-Headers: *, Authorization, Content-Type, X-Api-Key\r\n"
                                       "Access-Control-Max-Age: 600\r\n");
    di_http_reply(c->http, 204, NULL, di_buf_str(&c->server->extra), (struct di_str){0});
}

static bool is_loopback(struct di_str host)
{
    static const char *const names[] = {"localhost", "[::1]"};
    struct di_str sub = DI_STR(".localhost");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (di_http_same_word(host, names[i]))
            return true;
    if (host.n > sub.n && di_http_same_word((struct di_str){host.p + host.n - sub.n, sub.n}, sub.p))
        return true;
    for (size_t i = 0; i < host.n; i++)
        if (host.p[i] != '.' && (host.p[i] < '0' || host.p[i] > '9'))
            return false;
    return di_str_starts(host, DI_STR("127."));
}

/* Who is open to everybody on this machine is not open to web pages: a page can let its own name point here (DNS rebinding), but the
 * browser then sends that name. */
static bool is_host_allowed(const struct di_server *s, const struct di_http_request *r)
{
    struct di_str host = r->head.host;
    if (s->keys || !host.n || s->reachable || strcmp(di_http_peer(r), "unix") == 0)
        return true;
    for (size_t i = 0; i < s->config.n_hosts; i++)
        if (strcmp(s->config.hosts[i], "*") == 0 || di_http_same_word(host, s->config.hosts[i]))
            return true;
    return is_loopback(host);
}

void di_server_on_head(void *ctx, struct di_http_request *r)
{
    struct di_server *s = ctx;
    int status;
    struct di_call *c = di_call_create(s, r);
    if (!c) {
        di_http_reply(r, 503, NULL, (struct di_str){0}, (struct di_str){0});
        return;
    }
    take_ids(c);
    c->row = find_row(&r->head, &status);
    c->dialect = dialect_of(&r->head, c->row);
    if (!is_host_allowed(s, r)) {
        refuse_call(c, 403, NULL, 0, "this server is for its own machine and does not know that Host; --allowed-host names further ones");
        return;
    }
    if (di_str_eqc(r->head.method, "OPTIONS")) {
        answer_preflight(c);
        return;
    }
    if (!c->row) {
        refuse_call(c, status, NULL, 0, status == 404 ? "there is nothing at this path" : "this path does not take this method");
        return;
    }
    if (s->keys && !c->row->open) {
        struct di_str presented;
        if (!presented_key(&r->head, &presented)) {
            refuse_call(c, 400, NULL, 0, "Authorization and x-api-key have different keys");
            return;
        }
        c->key = di_keys_find(s->keys, presented);
        if (!c->key) {
            refuse_call(c, 401, NULL, 0, "the API key is missing or wrong");
            return;
        }
        di_key_hold(c->key);
        c->tenant = c->key->tenant;
    }
    if (!c->row->answer && check_head(c))
        admit(c, false);
}

bool di_server_on_body(void *ctx, struct di_http_request *r, size_t n)
{
    struct di_server *s = ctx;
    struct di_call *c = r->user;
    if (!di_places_change(&s->received, c->tenant, c->received, c->received + n))
        return false;
    c->received += n;
    return true;
}

static void give_back_received(struct di_call *c)
{
    di_places_set(&c->server->received, c->tenant, c->received, 0);
    c->received = 0;
}

void di_server_on_request(void *ctx, struct di_http_request *r)
{
    struct di_call *c = r->user;
    (void)ctx;
    give_back_received(c);
    if (c->row->answer) {
        c->row->answer(c);
        return;
    }
    if (c->row->more) {
        struct di_str path = r->head.path;
        size_t n = strlen(c->row->path), end = c->row->end ? strlen(c->row->end) : 0;
        if (!di_http_unescape((struct di_str){path.p + n, path.n - n - end}, &c->path_id)) {
            refuse_call(c, 404, NULL, 0, "the id in the path is no text");
            return;
        }
        di_buf_addv(&c->query, r->head.query);
    }
    if (!di_places_fit(&c->server->held, c->tenant, r->body.n)) {
        refuse_call(c, 503, NULL, 1, "too many large requests are under way");
        return;
    }
    if (admit(c, true))
        di_call_prepare(c);
}

void di_server_on_gone(void *ctx, struct di_http_request *r, const char *why)
{
    struct di_server *s = ctx;
    struct di_call *c = r->user;
    (void)why;
    s->counters.gone++;
    if (c)
        di_call_cancel(c);
}

struct di_str di_server_on_refused(void *ctx, struct di_http_request *r, int status, const char *why, struct di_buf *body)
{
    struct di_call *c = r->user;
    const struct di_server *s = ctx;
    struct di_http_error e;
    if (status == 413)
        di_http_error_set(&e, status, NULL, NULL, "the body is larger than the %zu bytes that --max-body allows", s->config.limits.body);
    else
        di_http_error_set(&e, status, NULL, NULL, "%s", why);
    di_http_error_write(c ? c->dialect : dialect_of(&r->head, NULL), &e, di_str_c(c ? c->id : ""), body);
    return c ? errors_headers(c, status, status == 503 ? 1 : 0) : (struct di_str){0};
}

void di_server_on_done(void *ctx, struct di_http_request *r)
{
    struct di_server *s = ctx;
    struct di_call *c = r->user;
    int class = r->status / 100;
    s->counters.by_class[class < DI_N_STATUS_CLASSES ? class : 0]++;
    di_access_log(s, r, c);
    r->user = NULL;
    if (!c)
        return;
    give_back_received(c);
    di_call_http_done(c);
}
