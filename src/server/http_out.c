/* Responses: heads, bodies, chunks; collected in the connection and written once per event. */
#include "server/http_impl.h"

#include <stdio.h>

static const struct {
    int status;
    const char *reason;
} reasons[] = {
    {200, "OK"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
    {529, "Overloaded"},
};

/* "Not Found" for 404; never NULL. */
static const char *reason_of(int status)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}

/* No body follows these, so no length is said either (RFC 9110 §8.6). */
static bool bodiless(int status)
{
    return status == 204 || status == 304;
}

static void add_date(struct di_buf *b)
{
    char text[48];
    struct tm tm;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    if (strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm) > 0)
        di_buf_adds(b, text);
}

static void add_head(struct di_http_request *r, int status, const char *type, struct di_str extra)
{
    struct di_buf *b = &r->conn->out;
    bool keep = r->head.keep_alive && !r->close_after && !r->conn->http->draining;
    r->started = true;
    r->status = status;
    r->close_after = !keep;
    di_buf_addf(b, "HTTP/1.1 %d %s\r\n", status, reason_of(status));
    add_date(b);
    if (type)
        di_buf_addf(b, "Content-Type: %s\r\n", type);
    di_buf_addv(b, extra);
    di_buf_adds(b, !keep ? "Connection: close\r\n" : r->head.minor == 0 ? "Connection: keep-alive\r\n" : "");
}

void di_http_reply(struct di_http_request *r, int status, const char *type, struct di_str extra, struct di_str body)
{
    struct di_buf *b = &r->conn->out;
    if (r->started)
        return;
    add_head(r, status, type, extra);
    if (bodiless(status))
        di_buf_adds(b, "\r\n");
    else
        di_buf_addf(b, "Content-Length: %zu\r\n\r\n", body.n);
    if (!bodiless(status) && !r->head_only) {
        di_buf_addv(b, body);
        r->sent_bytes += body.n;
    }
    r->answered = true;
    di_http_touch(r->conn);
}

void di_http_start(struct di_http_request *r, int status, const char *type, struct di_str extra)
{
    if (r->started)
        return;
    r->chunked_out = r->head.minor > 0;
    if (!r->chunked_out)
        r->close_after = true;
    add_head(r, status, type, extra);
    di_buf_adds(&r->conn->out, r->chunked_out ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    di_http_touch(r->conn);
}

void di_http_send(struct di_http_request *r, struct di_str bytes)
{
    struct di_buf *b = &r->conn->out;
    if (!r->started || r->answered || bytes.n == 0 || r->head_only)
        return;
    if (r->chunked_out) {
        char size[24];
        int n = snprintf(size, sizeof size, "%zx\r\n", bytes.n);
        di_buf_add(b, size, (size_t)n);
    }
    di_buf_addv(b, bytes);
    if (r->chunked_out)
        di_buf_add(b, "\r\n", 2);
    r->sent_bytes += bytes.n;
    di_http_touch(r->conn);
}

void di_http_end(struct di_http_request *r)
{
    if (!r->started || r->answered)
        return;
    if (r->chunked_out && !r->head_only)
        di_buf_adds(&r->conn->out, "0\r\n\r\n");
    r->answered = true;
    di_http_touch(r->conn);
}

void di_http_close_after(struct di_http_request *r)
{
    r->close_after = true;
}

const char *di_http_peer(const struct di_http_request *r)
{
    return r->conn->peer;
}
