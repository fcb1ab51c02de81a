#include "base/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* Allowed range of the second byte for each lead byte (Unicode table 3-7); later bytes are 80..BF. */
static size_t second_byte_range(unsigned char lead, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    if (lead < 0xE0)
        return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0)
            *lo = 0xA0;
        if (lead == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (lead == 0xF0)
        *lo = 0x90;
    if (lead == 0xF4)
        *hi = 0x8F;
    return 4;
}

/* Number of bytes at s that agree with one character: `*need` when complete, fewer when the input ends or a byte is wrong.
 * 0 for a byte that starts nothing. */
static size_t match_character(const char *s, size_t n, size_t *need)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *need = 1;
        return 1;
    }
    unsigned char lo, hi;
    *need = second_byte_range(u[0], &lo, &hi);
    if (*need == 0)
        return 0;
    size_t i = 1;
    for (; i < *need && i < n; i++, lo = 0x80, hi = 0xBF)
        if (u[i] < lo || u[i] > hi)
            break;
    return i;
}

size_t di_utf8_decode(const char *s, size_t n, uint32_t *cp, size_t *bad)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t need, got = match_character(s, n, &need);
    if (got == 0 || got < need) {
        *cp = 0xFFFD;
        if (bad)
            *bad = got ? got : 1;
        return 0;
    }
    switch (need) {
    case 1: *cp = u[0]; break;
    case 2: *cp = (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F); break;
    case 3: *cp = (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3F); break;
    default: *cp = (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | (uint32_t)(u[2] & 0x3F) << 6 | (u[3] & 0x3F);
    }
    return need;
}

size_t di_utf8_encode(uint32_t cp, char *out)
{
    unsigned char *o = (unsigned char *)out;
    if (cp < 0x80) {
        o[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        o[0] = (unsigned char)(0xC0 | cp >> 6);
        o[1] = (unsigned char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        o[0] = (unsigned char)(0xE0 | cp >> 12);
        o[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
        o[2] = (unsigned char)(0x80 | (cp & 0x3F));
        return 3;
    }
    o[0] = (unsigned char)(0xF0 | cp >> 18);
    o[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3F));
    o[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
    o[3] = (unsigned char)(0x80 | (cp & 0x3F));
    return 4;
}

bool di_utf8_valid(struct di_str s, size_t *at)
{
    for (size_t i = 0; i < s.n;) {
        /* eight ASCII bytes at a time */
        uint64_t w;
        if (s.n - i >= 8 && (memcpy(&w, s.p + i, 8), (w & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        size_t need, got = match_character(s.p + i, s.n - i, &need);
        if (got == 0 || got < need) {
            if (at)
                *at = i;
            return false;
        }
        i += need;
    }
    return true;
}

size_t di_utf8_tail(struct di_str s)
{
    for (size_t k = 1; k <= 3 && k <= s.n; k++) {
        size_t need, got = match_character(s.p + s.n - k, k, &need);
        if (got == k && got < need)
            return k;
    }
    return 0;
}

size_t di_utf8_cut(struct di_str s, size_t most)
{
    return s.n <= most ? s.n : most - di_utf8_tail((struct di_str){s.p, most});
}

size_t di_utf8_count(struct di_str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

void di_utf8_add_lossy(struct di_buf *b, struct di_str s)
{
    size_t run = 0; /* start of the pending well-formed run */
    for (size_t i = 0; i < s.n;) {
        size_t need, got = match_character(s.p + i, s.n - i, &need);
        if (got && got == need) {
            i += need;
            continue;
        }
        di_buf_add(b, s.p + run, i - run);
        di_buf_adds(b, REPLACEMENT);
        i += got ? got : 1;
        run = i;
    }
    if (s.n > run)
        di_buf_add(b, s.p + run, s.n - run);
}

void di_utf8_stream_push(struct di_utf8_stream *st, struct di_str bytes, struct di_buf *out)
{
    size_t i = 0;
    while (st->n && i < bytes.n) { /* finish the character that was begun */
        size_t need, got;
        st->tail[st->n++] = bytes.p[i++];
        got = match_character(st->tail, st->n, &need);
        if (got == st->n && got < need)
            continue;
        if (got == need) {
            di_buf_add(out, st->tail, need);
        } else { /* the new byte does not continue it: replace the old part, read the byte again */
            di_buf_adds(out, REPLACEMENT);
            i--;
        }
        st->n = 0;
    }
    struct di_str rest = {bytes.p + i, bytes.n - i};
    size_t tail = rest.n ? di_utf8_tail(rest) : 0;
    di_utf8_add_lossy(out, (struct di_str){rest.p, rest.n - tail});
    if (tail) {
        memcpy(st->tail, rest.p + rest.n - tail, tail);
        st->n = (unsigned char)tail;
    }
}

void di_utf8_stream_end(struct di_utf8_stream *st, struct di_buf *out)
{
    if (st->n)
        di_buf_adds(out, REPLACEMENT);
    st->n = 0;
}
