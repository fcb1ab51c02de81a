/* Lines about requests, and the server's messages: text for people, or JSON objects. */
#include "base/json.h"
#include "base/utf8.h"
#include "server/server_impl.h"

#include <stdio.h>
#include <time.h>

#define MAX_PATH ((size_t)256)

static void add_time(struct di_buf *b)
{
    struct timespec t;
    struct tm tm;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    if (strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm) > 0)
        di_buf_addf(b, "%s.%03dZ", text, (int)(t.tv_nsec / 1000000));
}

/* Whatever bytes the system or an operator gave (names of files and models, messages about them), a line is valid JSON. */
static void add_string(struct di_buf *b, struct di_str text)
{
    struct di_buf whole = {0};
    di_utf8_add_lossy(&whole, text);
    di_json_write_string(b, di_buf_str(&whole));
    b->failed |= whole.failed;
    di_buf_fini(&whole);
}

/* ,"name":"value" unless it is empty */
static void add_member(struct di_buf *b, const char *name, struct di_str value)
{
    if (value.n == 0)
        return;
    di_buf_addf(b, ",\"%s\":", name);
    add_string(b, value);
}

static void add_word(struct di_buf *b, const char *name, const char *value)
{
    if (value[0])
        di_buf_addf(b, " %s=%s", name, value);
}

static void write_out(struct di_log_sink *sink, struct di_buf *b)
{
    di_buf_addc(b, '\n');
    if (!b->failed)
        di_log_sink_add(sink, di_buf_str(b));
    di_buf_fini(b);
}

void di_access_log(struct di_server *s, const struct di_http_request *r, const struct di_call *c)
{
    struct di_buf b = {0};
    if (!s->access)
        return;
    double ms = (double)(di_clock_ns() - r->began_ns) * 1e-6;
    bool running = c && c->state == DI_CALL_RUNNING;         /* before that, a preparing thread counts its submissions */
    int status = r->answered && r->status ? r->status : 499; /* the client left: nginx's number for it */
    struct di_str method = r->head.method.n ? r->head.method : DI_STR("-"), path = r->head.path.n ? r->head.path : DI_STR("-");
    path.n = path.n < MAX_PATH ? path.n : MAX_PATH; /* a parsed head's method and path are ASCII without blanks */
    const char *tenant = c ? c->tenant->name : "", *id = c ? c->id : "", *trace = c ? c->trace : "", *model = c && c->model ? c->model : "";
    if (s->config.json_log) {
        di_buf_adds(&b, "{\"time\":\"");
        add_time(&b);
        di_buf_adds(&b, "\",\"event\":\"request\"");
        add_member(&b, "peer", di_str_c(di_http_peer(r)));
        add_member(&b, "method", method);
        add_member(&b, "path", path);
        di_buf_addf(&b, ",\"status\":%d,\"ms\":%.1f,\"bytes_in\":%llu,\"bytes_out\":%llu", status, ms, (unsigned long long)r->body_bytes,
                    (unsigned long long)r->sent_bytes);
        add_member(&b, "tenant", di_str_c(tenant));
        add_member(&b, "request_id", di_str_c(id));
        add_member(&b, "traceparent", di_str_c(trace));
        add_member(&b, "model", di_str_c(model));
        if (running && c->n_subs)
            di_buf_addf(&b, ",\"prompt_tokens\":%lld,\"cached_tokens\":%lld,\"completion_tokens\":%lld", (long long)c->prompt_tokens,
                        (long long)c->cached_tokens, (long long)c->completion_tokens);
        di_buf_addc(&b, '}');
    } else {
        add_time(&b);
        di_buf_addf(&b, " %s ", di_http_peer(r));
        di_buf_addv(&b, method);
        di_buf_addc(&b, ' ');
        di_buf_addv(&b, path);
        di_buf_addf(&b, " %d %.1fms in=%llu out=%llu", status, ms, (unsigned long long)r->body_bytes, (unsigned long long)r->sent_bytes);
        add_word(&b, "tenant", tenant);
        add_word(&b, "id", id);
        add_word(&b, "trace", trace);
        if (running && c->n_subs)
            di_buf_addf(&b, " prompt=%lld cached=%lld completion=%lld", (long long)c->prompt_tokens, (long long)c->cached_tokens,
                        (long long)c->completion_tokens);
    }
    write_out(s->access, &b);
}

void di_server_message(void *ctx, enum di_log_level level, const char *text)
{
    struct di_server *s = ctx;
    struct di_buf b = {0};
    if (!s->messages)
        return;
    if (s->config.json_log) {
        di_buf_adds(&b, "{\"time\":\"");
        add_time(&b);
        di_buf_addf(&b, "\",\"event\":\"%s\",\"message\":", di_log_level_name(level));
        add_string(&b, di_str_c(text));
        di_buf_addc(&b, '}');
    } else {
        di_buf_addf(&b, "%s: %s", di_log_level_name(level), text);
    }
    write_out(s->messages, &b);
}
