/* Byte strings with a length: views that borrow, and a growable buffer. Text is UTF-8 and may contain U+0000. */
#ifndef DI_BASE_STR_H
#define DI_BASE_STR_H

#include "base/mem.h"

#include <string.h>

/* A view of n bytes; the memory belongs to somebody else. p may be NULL when n is 0. */
struct di_str {
    const char *p;
    size_t n;
};
#define DI_STR(lit) ((struct di_str){(lit), sizeof(lit) - 1})

static inline struct di_str di_str_c(const char *s)
{
    return (struct di_str){s, s ? strlen(s) : 0};
}
static inline bool di_str_eq(struct di_str a, struct di_str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
static inline bool di_str_eqc(struct di_str a, const char *s)
{
    return di_str_eq(a, di_str_c(s));
}
bool di_str_starts(struct di_str s, struct di_str prefix);
bool di_str_ends(struct di_str s, struct di_str suffix);
/* Offset of the first occurrence of a non-empty needle at or after `from`, or SIZE_MAX. */
size_t di_str_find(struct di_str s, struct di_str needle, size_t from);

/* Growable bytes. Zero-initialise or di_buf_init. A failed growth sets `failed` and drops the write, so that a long chain of
 * appends is checked once at its end with di_buf_ok. The content always has a 0 byte behind it once something was appended. */
struct di_buf {
    char *p;
    size_t n, cap;
    bool failed;
};
void di_buf_init(struct di_buf *b);
void di_buf_fini(struct di_buf *b);
void di_buf_clear(struct di_buf *b); /* keeps the memory */
bool di_buf_reserve(struct di_buf *b, size_t more);
void di_buf_add(struct di_buf *b, const void *bytes, size_t n);
void di_buf_addc(struct di_buf *b, char c);
void di_buf_adds(struct di_buf *b, const char *s);
void di_buf_addv(struct di_buf *b, struct di_str s);
void di_buf_addf(struct di_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline struct di_str di_buf_str(const struct di_buf *b)
{
    return (struct di_str){b->p, b->n};
}
/* DI_OK, or DI_ERR_MEMORY with the sentence filled in. */
di_status di_buf_ok(const struct di_buf *b, di_error *err);

#endif
