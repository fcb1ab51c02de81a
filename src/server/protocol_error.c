/* Errors in the shape of each dialect (spec/encoding.md §4.8). */
#include "server/protocol.h"

#include "base/json.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

static const struct status_names {
    int status;
    const char *openai, *code, *anthropic;
} names[] = {
    {400, "invalid_request_error", NULL, "invalid_request_error"},
    {401, "authentication_error", "invalid_api_key", "authentication_error"},
    {403, "permission_error", NULL, "permission_error"},
    {404, "not_found_error", NULL, "not_found_error"},
    {405, "invalid_request_error", "method_not_allowed", "invalid_request_error"},
    {413, "invalid_request_error", "request_too_large", "request_too_large"},
    {415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"},
    {429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
    {501, "invalid_request_error", NULL, "invalid_request_error"}, /* what the client sent is in a form that is not known here */
    {505, "invalid_request_error", NULL, "invalid_request_error"},
    {503, "service_unavailable", "service_unavailable", "overloaded_error"},
    {500, "internal_error", "server_error", "api_error"},
};
#define N_NAMES (sizeof names / sizeof *names)

/* Of a status that is not in the table: what its hundred means. */
static const struct status_names *names_of(int status)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (names[i].status == status)
            return &names[i];
    return status < 500 ? &names[0] : &names[N_NAMES - 1];
}

/* Copy of s that ends between characters; what is none (a path can hold any bytes) becomes question marks. */
static void copy_text(char *to, size_t room, const char *s)
{
    size_t n = strlen(s), bad;
    if (n >= room) {
        n = room - 1;
        n -= di_utf8_tail((struct di_str){s, n});
    }
    memcpy(to, s, n);
    to[n] = 0;
    while (!di_utf8_valid((struct di_str){to, n}, &bad))
        to[bad] = '?';
}

void di_http_error_set(struct di_http_error *e, int status, const char *code, const char *param, const char *fmt, ...)
{
    char text[sizeof e->message + 4];
    va_list args;
    const struct status_names *n = names_of(status);
    *e = (struct di_http_error){.status = status, .type = n->openai, .code = code ? code : n->code};
    copy_text(e->param, sizeof e->param, param ? param : "");
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    copy_text(e->message, sizeof e->message, text);
}

void di_http_error_from(struct di_http_error *e, const di_error *err)
{
    static const int statuses[] = {
        [DI_ERR_INVALID] = 400, [DI_ERR_FORMAT] = 400, [DI_ERR_UNSUPPORTED] = 400, [DI_ERR_NOT_FOUND] = 404, [DI_ERR_LIMIT] = 400,
        [DI_ERR_MEMORY] = 503,  [DI_ERR_IO] = 500,     [DI_ERR_CANCELLED] = 503,   [DI_ERR_INTERNAL] = 500};
    size_t i = (size_t)err->code;
    int status = i < sizeof statuses / sizeof *statuses && statuses[i] ? statuses[i] : 500;
    bool too_long =
        err->code == DI_ERR_LIMIT && (strstr(err->message, "maximum context length") || strstr(err->message, "prompt is too long"));
    bool no_model = err->code == DI_ERR_NOT_FOUND && strcmp(err->where, "model") == 0;
    bool a_field = status < 500 && strncmp(err->where, "byte ", 5) != 0; /* and not a place in the text (base/json.h) */
    const char *code = too_long                          ? "context_length_exceeded"
                       : no_model                        ? "model_not_found"
                       : err->code == DI_ERR_UNSUPPORTED ? "unsupported"
                                                         : NULL;
    bool bare = !err->where[0] || too_long; /* clients compare that sentence from its beginning */
    di_http_error_set(e, status, code, a_field ? err->where : "", "%s%s%s", bare ? "" : err->where, bare ? "" : ": ", err->message);
}

static void add_member(struct di_buf *b, const char *key, const char *value)
{
    di_buf_addf(b, ",\"%s\":", key);
    if (value && value[0])
        di_json_write_string(b, di_str_c(value));
    else
        di_buf_adds(b, "null");
}

void di_http_error_write(enum di_dialect dialect, const struct di_http_error *e, struct di_str request_id, struct di_buf *out)
{
    bool anthropic = dialect == DI_DIALECT_ANTHROPIC;
    di_buf_adds(out, anthropic ? "{\"type\":\"error\",\"error\":{\"type\":" : "{\"error\":{\"message\":");
    di_json_write_string(out, di_str_c(anthropic ? names_of(e->status)->anthropic : e->message));
    if (anthropic) {
        add_member(out, "message", e->message);
        di_buf_adds(out, "},\"request_id\":");
        if (request_id.n)
            di_json_write_string(out, request_id);
        else
            di_buf_adds(out, "null");
        di_buf_addc(out, '}');
        return;
    }
    add_member(out, "type", e->type);
    add_member(out, "param", e->param);
    add_member(out, "code", e->code);
    di_buf_adds(out, "}}");
}
