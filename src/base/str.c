#define _GNU_SOURCE /* memmem */
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>

bool di_str_starts(struct di_str s, struct di_str prefix)
{
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

bool di_str_ends(struct di_str s, struct di_str suffix)
{
    return s.n >= suffix.n && (suffix.n == 0 || memcmp(s.p + s.n - suffix.n, suffix.p, suffix.n) == 0);
}

size_t di_str_find(struct di_str s, struct di_str needle, size_t from)
{
    if (from >= s.n || needle.n == 0)
        return SIZE_MAX;
    const char *hit = memmem(s.p + from, s.n - from, needle.p, needle.n);
    return hit ? (size_t)(hit - s.p) : SIZE_MAX;
}

void di_buf_init(struct di_buf *b)
{
    *b = (struct di_buf){0};
}

void di_buf_fini(struct di_buf *b)
{
    di_free(b->p);
    *b = (struct di_buf){0};
}

void di_buf_clear(struct di_buf *b)
{
    b->n = 0;
    b->failed = false;
    if (b->p)
        b->p[0] = 0;
}

bool di_buf_reserve(struct di_buf *b, size_t more)
{
    size_t need;
    if (b->failed || !di_add(b->n, more, &need) || !di_add(need, 1, &need)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need) {
        if (cap > SIZE_MAX / 2) {
            cap = need;
            break;
        }
        cap *= 2;
    }
    char *p = di_realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void di_buf_add(struct di_buf *b, const void *bytes, size_t n)
{
    if (!di_buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = 0;
}

void di_buf_addc(struct di_buf *b, char c)
{
    di_buf_add(b, &c, 1);
}

void di_buf_adds(struct di_buf *b, const char *s)
{
    di_buf_add(b, s, strlen(s));
}

void di_buf_addv(struct di_buf *b, struct di_str s)
{
    di_buf_add(b, s.p, s.n);
}

void di_buf_addf(struct di_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !di_buf_reserve(b, (size_t)n)) {
        b->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

di_status di_buf_ok(const struct di_buf *b, di_error *err)
{
    return b->failed ? di_fail(err, DI_ERR_MEMORY, "", "out of memory while building a text of %zu bytes", b->n) : DI_OK;
}
