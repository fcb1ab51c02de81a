/* Heads and chunked bodies from any bytes: nothing is read outside, what is accepted lies within the input, and how the input is cut makes
 * no difference. */
#include "server/http_parse.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>

#define LIMIT ((size_t)4096)

static void check_within(struct di_str whole, struct di_str part)
{
    assert(part.n == 0 || (part.p >= whole.p && part.p + part.n <= whole.p + whole.n));
}

static int64_t parse_in_pieces(struct di_str in, size_t step, struct di_http_head *head)
{
    const char *why;
    size_t seen = 0;
    for (size_t n = 0;; n += step) {
        int64_t r = di_http_parse_head((struct di_str){in.p, n < in.n ? n : in.n}, LIMIT, &seen, head, &why);
        if (r || n >= in.n)
            return r;
    }
}

static void fuzz_head(struct di_str in, size_t step)
{
    static struct di_http_head a, b;
    int64_t whole = parse_in_pieces(in, in.n ? in.n : 1, &a), pieces = parse_in_pieces(in, step, &b);
    assert((whole > 0) == (pieces > 0) && (whole <= 0 || whole == pieces));
    if (whole <= 0)
        return;
    check_within(in, a.method);
    if (!di_str_eqc(a.path, "/")) /* which may be ours: http://host has none */
        check_within(in, a.path);
    check_within(in, a.query);
    check_within(in, a.host);
    assert(a.host.n == 0 || di_str_find(di_http_header(&a, "host"), a.host, 0) == 0);
    for (size_t i = 0; i < a.host.n; i++) /* brackets and colons of IPv6 only */
        assert(isalnum((unsigned char)a.host.p[i]) || strchr(a.host.p[0] == '[' ? "[]:." : "-_.", a.host.p[i]));
    assert(a.path.n > 0 && (size_t)whole <= in.n && !(a.chunked && a.has_length));
    for (size_t i = 0; i < a.n_headers; i++) {
        check_within(in, a.headers[i].name);
        check_within(in, a.headers[i].value);
        assert(a.headers[i].name.n > 0 && !memchr(a.headers[i].name.p, ':', a.headers[i].name.n));
        assert(!a.headers[i].value.n || !memchr(a.headers[i].value.p, '\n', a.headers[i].value.n));
    }
    struct di_buf path = {0};
    if (di_http_unescape(a.path, &path))
        assert(path.n <= a.path.n && (!path.n || !memchr(path.p, 0, path.n)));
    di_buf_fini(&path);
}

/* The body, or a status below 0. *used: bytes of the input up to its end. */
static int64_t read_chunked(struct di_str in, size_t step, struct di_buf *body, size_t *used)
{
    struct di_http_chunked c = {0};
    const char *why;
    size_t at = 0, have = 0;
    while (!c.done) {
        if (at == have) {
            if (have == in.n)
                break;
            have = in.n - have < step ? in.n : have + step;
        }
        struct di_str data;
        int64_t n = di_http_chunked_next(&c, (struct di_str){in.p + at, have - at}, &data, &why);
        if (n < 0)
            return n;
        assert((size_t)n <= have - at && (n > 0 || c.done));
        check_within((struct di_str){in.p + at, (size_t)n}, data);
        di_buf_addv(body, data);
        at += (size_t)n;
    }
    *used = at;
    return c.done;
}

static void fuzz_chunked(struct di_str in, size_t step)
{
    struct di_buf a = {0}, b = {0};
    size_t used_a = 0, used_b = 0;
    int64_t whole = read_chunked(in, in.n ? in.n : 1, &a, &used_a), pieces = read_chunked(in, step, &b, &used_b);
    assert(whole == pieces && used_a == used_b && di_str_eq(di_buf_str(&a), di_buf_str(&b)));
    di_buf_fini(&a);
    di_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    size_t step = 1 + data[1] % 32;
    char *copy = malloc(n - 2 ? n - 2 : 1); /* of its exact size, so that reading behind it is seen */
    if (!copy)
        return 0;
    memcpy(copy, data + 2, n - 2);
    struct di_str in = {copy, n - 2};
    if (data[0] & 1)
        fuzz_head(in, step);
    else
        fuzz_chunked(in, step);
    free(copy);
    return 0;
}
