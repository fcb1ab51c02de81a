/* What a client can be told while its body waits to be read: is it a stream, something now and then, and that it was refused after all. */
#include "base/json.h"
#include "server/protocol.h"

struct scan {
    const char *p, *end;
};

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

/* From behind the opening quote to behind the closing one. The text between, as written. */
static struct di_str skip_string(struct scan *s)
{
    const char *begin = s->p;
    while (s->p < s->end) {
        const char *quote = memchr(s->p, '"', (size_t)(s->end - s->p)), *back = quote;
        s->p = quote ? quote + 1 : s->end;
        while (back && back > begin && back[-1] == '\\')
            back--;
        if (quote && (quote - back) % 2 == 0)
            return (struct di_str){begin, (size_t)(quote - begin)};
    }
    return (struct di_str){begin, (size_t)(s->end - begin)};
}

/* Behind the comma or brace that ends a member's value. False: the object is over. */
static bool skip_value(struct scan *s)
{
    size_t depth = 0;
    while (s->p < s->end) {
        char c = *s->p++;
        if (c == '"')
            skip_string(s);
        else if (c == '{' || c == '[')
            depth++;
        else if (depth && (c == '}' || c == ']'))
            depth--;
        else if (!depth && (c == ',' || c == '}'))
            return c == ',';
    }
    return false;
}

bool di_body_streams(struct di_str body)
{
    struct scan s = {body.p, body.p + body.n};
    bool stream = false;
    skip_space(&s);
    if (s.p == s.end || *s.p++ != '{')
        return false;
    do {
        skip_space(&s);
        if (s.p == s.end || *s.p++ != '"')
            return false;
        bool ours = di_str_eqc(skip_string(&s), "stream");
        skip_space(&s);
        if (s.p == s.end || *s.p++ != ':')
            return false;
        skip_space(&s);
        if (ours) /* the last one counts */
            stream = di_str_starts((struct di_str){s.p, (size_t)(s.end - s.p)}, DI_STR("true"));
    } while (skip_value(&s));
    return stream;
}

const char *di_stream_content_type(bool stream)
{
    return stream ? "text/event-stream" : "application/json";
}

struct di_str di_keep_alive(bool stream)
{
    return stream ? DI_STR(": keep-alive\n\n") : DI_STR("\n");
}

void di_exchange_refuse(enum di_route route, bool stream, const struct di_http_error *error, struct di_str request_id, struct di_buf *out)
{
    enum di_dialect dialect = di_route_dialect(route);
    if (stream && route == DI_ROUTE_RESPONSES) {
        di_buf_adds(out, "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":0,\"response\":{\"id\":");
        di_json_write_string(out, request_id);
        di_buf_adds(out, ",\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":");
        di_json_write_string(out, di_str_c(error->code ? error->code : error->type));
        di_buf_adds(out, ",\"message\":");
        di_json_write_string(out, di_str_c(error->message));
        di_buf_adds(out, "},\"incomplete_details\":null,\"output\":[],\"usage\":null}}\n\n");
        return;
    }
    if (stream)
        di_buf_adds(out, dialect == DI_DIALECT_ANTHROPIC ? "event: error\ndata: " : "data: ");
    di_http_error_write(dialect, error, request_id, out);
    if (stream)
        di_buf_adds(out, dialect == DI_DIALECT_ANTHROPIC ? "\n\n" : "\n\ndata: [DONE]\n\n");
}
