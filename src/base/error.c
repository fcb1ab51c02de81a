#include "base/error.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const status_names[] = {
    [DI_OK] = "ok",
    [DI_ERR_INVALID] = "invalid",
    [DI_ERR_FORMAT] = "format",
    [DI_ERR_UNSUPPORTED] = "unsupported",
    [DI_ERR_NOT_FOUND] = "not_found",
    [DI_ERR_LIMIT] = "limit",
    [DI_ERR_MEMORY] = "memory",
    [DI_ERR_IO] = "io",
    [DI_ERR_CANCELLED] = "cancelled",
    [DI_ERR_INTERNAL] = "internal",
};

const char *di_status_name(di_status status)
{
    size_t i = (size_t)status;
    return i < sizeof status_names / sizeof *status_names ? status_names[i] : "unknown";
}

const char *di_version(void)
{
    return DI_VERSION_STRING;
}

/* Drop a character that snprintf cut in the middle. */
static void cut_at_character(char *s, size_t cap)
{
    size_t n = strlen(s);
    if (n + 1 == cap)
        s[n - di_utf8_tail((struct di_str){s, n})] = 0;
}

di_status di_fail(di_error *err, di_status code, const char *where, const char *fmt, ...)
{
    if (!err)
        return code;
    err->code = code;
    snprintf(err->where, sizeof err->where, "%s", where ? where : "");
    cut_at_character(err->where, sizeof err->where);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    cut_at_character(err->message, sizeof err->message);
    return code;
}

di_status di_fail_context(di_error *err, const char *where, int64_t context, int64_t prompt, int64_t answer)
{
    int64_t asked;
    if (__builtin_add_overflow(prompt, answer, &asked))
        asked = INT64_MAX;
    return di_fail(
        err, DI_ERR_LIMIT, where,
        "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld in the messages, %lld in the "
        "completion).",
        (long long)context, (long long)asked, (long long)prompt, (long long)answer);
}

void di_error_at(di_error *err, const char *where)
{
    if (!err || err->where[0] || !where)
        return;
    snprintf(err->where, sizeof err->where, "%s", where);
    cut_at_character(err->where, sizeof err->where);
}
