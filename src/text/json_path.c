#include "text/json_path.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

/* Paths are as deep as the document, which the JSON reader bounds. */
void di_path_write(struct di_buf *b, const struct di_path *at)
{
    if (!at)
        return;
    di_path_write(b, at->up);
    if (!at->key.p) {
        di_buf_addf(b, "[%zu]", at->index);
        return;
    }
    if (b->n)
        di_buf_addc(b, '.');
    di_buf_addv(b, at->key);
}

int di_path_shown(struct di_str s)
{
    return (int)di_utf8_cut(s, 60);
}

di_status di_path_fail(di_error *err, const struct di_path *at, const char *fmt, ...)
{
    char what[400];
    struct di_buf where = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    di_path_write(&where, at);
    di_status status = di_fail(err, DI_ERR_INVALID, where.n ? where.p : "", "%s%s", where.n ? "" : "the request ", what);
    di_buf_fini(&where);
    return status;
}
