/* not run under TSan: no threads */
#include "server/http_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static int64_t parse(const char *text, struct di_http_head *head)
{
    const char *why = NULL;
    size_t seen = 0;
    int64_t r = di_http_parse_head(di_str_c(text), 1000, &seen, head, &why);
    if (r < 0)
        assert_non_null(why);
    return r;
}

static void accepted(void **state)
{
    static struct di_http_head h;
    const char *text = "POST http://X:80/a%20b?c=d HTTP/1.1\r\nHost: x\r\nCONTENT-length: \t12 \r\nX: \xff y\r\n\r\nrest";
    (void)state;
    assert_int_equal(parse(text, &h), strlen(text) - 4);
    assert_true(di_str_eqc(h.method, "POST") && di_str_eqc(h.path, "/a%20b") && di_str_eqc(h.query, "c=d"));
    assert_true(h.keep_alive && h.has_length && !h.chunked && h.length == 12 && h.minor == 1 && h.n_headers == 3);
    assert_true(di_str_eqc(di_http_header(&h, "x"), "\xff y"));
    assert_null(di_http_header(&h, "y").p);
    assert_true(parse("GET / HTTP/1.0\r\n\r\n", &h) > 0 && !h.keep_alive);
    assert_true(parse("GET / HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\n", &h) > 0 && h.keep_alive);
    assert_true(parse("GET / HTTP/1.1\r\nHost: x\r\nConnection: x ,\tCLOSE\r\n\r\n", &h) > 0 && !h.keep_alive);
    assert_true(parse("OPTIONS * HTTP/1.9\r\nHost: x\r\n\r\n", &h) > 0 && h.minor == 1 && di_str_eqc(h.path, "*"));
    assert_true(parse("GET http://x HTTP/1.1\r\nHost: x\r\n\r\n", &h) > 0 && di_str_eqc(h.path, "/"));
    assert_true(parse("GET / HTTP/1.1\r\nHost:\r\n\r\n", &h) > 0 && h.host.n == 0);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: x\r\n\r", &h), 0);
    assert_int_equal(parse("", &h), 0);
}

/* What Host may be, and what is taken from it. */
static void hosts(void **state)
{
    static const struct {
        const char *value, *host; /* NULL: refused */
    } cases[] = {
        {"localhost", "localhost"},
        {"Example.COM:8000", "Example.COM"},
        {"a_b-1.internal.", "a_b-1.internal."},
        {"127.0.0.1:1", "127.0.0.1"},
        {"[::1]", "[::1]"},
        {"[2001:db8::1]:65535", "[2001:db8::1]"},
        {"1.example", "1.example"},
        {"[::1].evil.example", NULL},
        {"[::1", NULL},
        {"[]", NULL},
        {"[127.0.0.1]", NULL},
        {"[::1%25lo]", NULL},
        {"[::1]x:80", NULL},
        {"::1", NULL},
        {"a:b", NULL},
        {"a:", NULL},
        {"a:0", NULL},
        {"a:65536", NULL},
        {"a:80:80", NULL},
        {":80", NULL},
        {"a b", NULL},
        {"a,b", NULL},
        {"a/b", NULL},
        {"u@a", NULL},
        {"a?b", NULL},
        {"a#b", NULL},
        {"%61", NULL},
        {"a\xff", NULL},
        {".", NULL},
        {".a", NULL},
        {"a..b", NULL},
        {"127.1", NULL},
        {"127.0.0.1.1", NULL},
        {"evil.127", NULL},
        {"http://a", NULL},
    };
    static struct di_http_head h;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int minor = 0; minor < 2; minor++) {
            char text[160];
            snprintf(text, sizeof text, "GET / HTTP/1.%d\r\nHost: %s\r\n\r\n", minor, cases[i].value);
            int64_t r = parse(text, &h);
            if (cases[i].host ? r <= 0 || !di_str_eqc(h.host, cases[i].host) : r != -400)
                fail_msg("Host: %s gave %lld", cases[i].value, (long long)r);
        }
    }
    char name[300] = {0}, text[400];
    for (size_t n = 250; n < 258; n++) {
        memset(name, 'a', n);
        snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name);
        assert_int_equal(parse(text, &h) > 0, n <= 254);
    }
}

static void refused(void **state)
{
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {400, "GET  / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET / HTTP/1.1 \r\nHost: x\r\n\r\n"},
        {400, "GET / http/1.1\r\nHost: x\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\nHost: x\r\n\r\n"},
        {400, "GET a HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "G(T / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET /\x80 HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, " GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "\x16\x03\x01"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA : y\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nA: y\rz\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\n A: y\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1,1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {501, "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {417, "GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n"},
        {400, "GET http://h?/metrics HTTP/1.1\r\nHost: h\r\n\r\n"},
        {400, "GET http://h#/metrics HTTP/1.1\r\nHost: h\r\n\r\n"},
        {400, "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n"},
        {400, "GET http:///metrics HTTP/1.1\r\nHost: h\r\n\r\n"},
        {400, "GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n"},
        {400, "GET http://h/ HTTP/1.1\r\nHost: i\r\n\r\n"},
        {400, "GET http://h/ HTTP/1.1\r\nHost:\r\n\r\n"},
        {400, "GET http://h/ HTTP/1.0\r\n\r\n"},
        {400, "GET http://h:81/ HTTP/1.1\r\nHost: h\r\n\r\n"},
        {400, "GET http://h/ HTTP/1.1\r\nHost: h:8000\r\n\r\n"},
        {400, "GET * HTTP/1.1\r\nHost: x\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Type: a/b\r\ncontent-type: a/b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: a\r\nX-Api-Key: b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n\r\n"},
    };
    static struct di_http_head h;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t r = parse(cases[i].text, &h);
        if (r != -cases[i].status)
            fail_msg("%s gave %lld", cases[i].text, (long long)r);
    }
}

static void limits(void **state)
{
    static struct di_http_head h;
    struct di_buf b = {0};
    (void)state;
    di_buf_adds(&b, "GET / HTTP/1.1\r\nHost: x\r\nA: ");
    while (b.n < 996)
        di_buf_addc(&b, 'a');
    di_buf_adds(&b, "\r\n\r\n");
    assert_int_equal(parse(b.p, &h), 1000);
    b.n -= 4;
    di_buf_adds(&b, "a\r\n\r\n");
    assert_int_equal(parse(b.p, &h), -431);
    b.n -= 4;
    b.p[b.n] = 0;
    assert_int_equal(parse(b.p, &h), 0); /* 997 bytes */
    di_buf_adds(&b, "aaaa");
    assert_int_equal(parse(b.p, &h), -431);
    di_buf_clear(&b);
    di_buf_adds(&b, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < DI_HTTP_MAX_HEADERS; i++)
        di_buf_adds(&b, "A: \r\n");
    di_buf_adds(&b, "\r\n");
    assert_int_equal(parse(b.p, &h), -431);
    di_buf_fini(&b);
}

/* Bytes of the body, -1 unfinished, or minus a status; fed in pieces. */
static int64_t chunked(const char *text, size_t step, struct di_buf *body)
{
    struct di_http_chunked c = {0};
    const char *why;
    size_t at = 0, n = strlen(text);
    di_buf_clear(body);
    while (at < n && !c.done) {
        struct di_str data, in = {text + at, n - at < step ? n - at : step};
        int64_t r = di_http_chunked_next(&c, in, &data, &why);
        if (r < 0)
            return r;
        di_buf_addv(body, data);
        at += (size_t)r;
    }
    return c.done ? (int64_t)body->n : -1;
}

static void chunks(void **state)
{
    struct di_buf b = {0};
    (void)state;
    for (size_t step = 1; step < 40; step++) {
        assert_int_equal(chunked("5\r\nhello\r\n00A ;x=\"y\"\r\n0123456789\r\n0\r\nA: b\r\nC: d\r\n\r\nnext", step, &b), 15);
        assert_true(di_str_eqc(di_buf_str(&b), "hello0123456789"));
        assert_int_equal(chunked("0\r\n\r\n", step, &b), 0);
        assert_int_equal(chunked("5\r\nhello\r\n0\r\n\r", step, &b), -1);
        assert_int_equal(chunked("5\r\nhelloxx", step, &b), -400);
        assert_int_equal(chunked("5\nhello", step, &b), -400);
        assert_int_equal(chunked("\r\n", step, &b), -400);
        assert_int_equal(chunked("-1\r\n", step, &b), -400);
        assert_int_equal(chunked("g\r\n", step, &b), -400);
        assert_int_equal(chunked("ffffffffffffffffffff\r\n", step, &b), -400);
        assert_int_equal(chunked("0\r\nA\n\r\n", step, &b), -400);
    }
    di_buf_fini(&b);
}

static void unescaping(void **state)
{
    struct di_buf b = {0};
    (void)state;
    assert_true(di_http_unescape(DI_STR("a%2Fb%c3%BC+"), &b) && di_str_eqc(di_buf_str(&b), "a/b\xc3\xbc+"));
    assert_false(di_http_unescape(DI_STR("%"), &b) || di_http_unescape(DI_STR("%a"), &b) || di_http_unescape(DI_STR("%zz"), &b));
    assert_false(di_http_unescape(DI_STR("%00"), &b));
    di_buf_clear(&b);
    assert_true(di_http_unescape(DI_STR("%41"), &b) && di_str_eqc(di_buf_str(&b), "A"));
    di_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted), cmocka_unit_test(hosts),  cmocka_unit_test(refused),
        cmocka_unit_test(limits),   cmocka_unit_test(chunks), cmocka_unit_test(unescaping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
