#include "server/http_parse.h"

#include <strings.h>

/* tchar of RFC 9110 §5.6.2 */
static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool all(struct di_str s, bool (*is)(unsigned char))
{
    for (size_t i = 0; i < s.n; i++)
        if (!is((unsigned char)s.p[i]))
            return false;
    return s.n > 0;
}

static bool is_target(unsigned char c)
{
    return c > ' ' && c < 0x7f;
}

static bool is_value(unsigned char c)
{
    return c == '\t' || (c >= ' ' && c != 0x7f);
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static int hex(unsigned char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static struct di_str trim(struct di_str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
        s.p++, s.n--;
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

bool di_http_same_word(struct di_str a, const char *b)
{
    return a.n == strlen(b) && strncasecmp(a.p ? a.p : "", b, a.n) == 0;
}

struct di_str di_http_header(const struct di_http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (di_http_same_word(h->headers[i].name, name))
            return h->headers[i].value;
    return (struct di_str){0};
}

bool di_http_unescape(struct di_str in, struct di_buf *out)
{
    for (size_t i = 0; i < in.n; i++) {
        int c = (unsigned char)in.p[i];
        if (c == '%') {
            int high = i + 2 < in.n ? hex((unsigned char)in.p[i + 1]) : -1, low = i + 2 < in.n ? hex((unsigned char)in.p[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c == 0)
            return false;
        di_buf_addc(out, (char)c);
    }
    return true;
}

/* ---------------------------------------------------------------- heads */

static int64_t refuse(int status, const char **why, const char *sentence)
{
    *why = sentence;
    return -status;
}

/* METHOD SP target SP HTTP/1.x */
static int64_t parse_line(struct di_str line, struct di_http_head *h, const char **why)
{
    size_t a = di_str_find(line, DI_STR(" "), 0);
    size_t b = a == SIZE_MAX ? SIZE_MAX : di_str_find(line, DI_STR(" "), a + 1);
    if (b == SIZE_MAX)
        return refuse(400, why, "the request line is not METHOD TARGET HTTP/1.1");
    struct di_str version = {line.p + b + 1, line.n - b - 1};
    h->method = (struct di_str){line.p, a};
    h->target = (struct di_str){line.p + a + 1, b - a - 1};
    if (!all(h->method, is_token) || !all(h->target, is_target))
        return refuse(400, why, "the request line is not METHOD TARGET HTTP/1.1");
    if (version.n != 8 || memcmp(version.p, "HTTP/", 5) != 0 || !is_digit((unsigned char)version.p[5]) || version.p[6] != '.' ||
        !is_digit((unsigned char)version.p[7]))
        return refuse(400, why, "the request line is not METHOD TARGET HTTP/1.1");
    if (version.p[5] != '1')
        return refuse(505, why, "this server speaks HTTP/1.1 and 1.0");
    h->minor = version.p[7] > '0';
    h->keep_alive = h->minor > 0;
    struct di_str path = h->target;
    if (path.n > 7 && strncasecmp(path.p, "http://", 7) == 0) { /* absolute form, as proxies get it */
        size_t slash = di_str_find(path, DI_STR("/"), 7);
        path = slash == SIZE_MAX ? DI_STR("/") : (struct di_str){path.p + slash, path.n - slash};
    } else if (path.p[0] != '/' && !di_str_eqc(path, "*")) {
        return refuse(400, why, "the target of the request does not begin with /");
    }
    size_t mark = di_str_find(path, DI_STR("?"), 0);
    h->path = (struct di_str){path.p, mark == SIZE_MAX ? path.n : mark};
    h->query = mark == SIZE_MAX ? (struct di_str){0} : (struct di_str){path.p + mark + 1, path.n - mark - 1};
    return 0;
}

static int64_t parse_header(struct di_str line, struct di_http_head *h, const char **why)
{
    size_t colon = di_str_find(line, DI_STR(":"), 0);
    if (line.p[0] == ' ' || line.p[0] == '\t')
        return refuse(400, why, "a header continues over several lines");
    struct di_str name = {line.p, colon == SIZE_MAX ? 0 : colon};
    if (!all(name, is_token))
        return refuse(400, why, "a header is not NAME: VALUE");
    struct di_str value = trim((struct di_str){line.p + colon + 1, line.n - colon - 1});
    if (value.n && !all(value, is_value))
        return refuse(400, why, "a header's value has a control character");
    if (h->n_headers == DI_HTTP_MAX_HEADERS)
        return refuse(431, why, "the request has more than 100 headers");
    h->headers[h->n_headers++] = (struct di_http_header){name, value};
    return 0;
}

static bool parse_length(struct di_str s, uint64_t *out)
{
    if (!all(s, is_digit) || s.n > 18)
        return false;
    *out = 0;
    for (size_t i = 0; i < s.n; i++)
        *out = *out * 10 + (uint64_t)(s.p[i] - '0');
    return true;
}

/* Words of Connection. */
static void connection_words(struct di_str list, struct di_http_head *h)
{
    while (list.n) {
        size_t comma = di_str_find(list, DI_STR(","), 0);
        size_t n = comma == SIZE_MAX ? list.n : comma;
        struct di_str word = trim((struct di_str){list.p, n});
        if (di_http_same_word(word, "close"))
            h->keep_alive = false;
        else if (di_http_same_word(word, "keep-alive") && h->minor == 0)
            h->keep_alive = true;
        n += comma != SIZE_MAX;
        list = (struct di_str){list.p + n, list.n - n};
    }
}

/* The headers that say where the body ends, and what becomes of the connection. */
static int64_t frame(struct di_http_head *h, const char **why)
{
    int hosts = 0;
    for (size_t i = 0; i < h->n_headers; i++) {
        struct di_str name = h->headers[i].name, value = h->headers[i].value;
        if (di_http_same_word(name, "content-length")) {
            if (h->has_length || !parse_length(value, &h->length))
                return refuse(400, why, "Content-Length is not one number");
            h->has_length = true;
        } else if (di_http_same_word(name, "transfer-encoding")) {
            if (h->chunked || h->minor == 0)
                return refuse(400, why, "Transfer-Encoding stands twice or in HTTP/1.0");
            if (!di_http_same_word(value, "chunked"))
                return refuse(501, why, "the only transfer coding that is known is chunked");
            h->chunked = true;
        } else if (di_http_same_word(name, "connection")) {
            connection_words(value, h);
        } else if (di_http_same_word(name, "expect")) {
            if (!di_http_same_word(value, "100-continue"))
                return refuse(417, why, "the only expectation that is known is 100-continue");
            h->expects_continue = h->minor > 0;
        } else if (di_http_same_word(name, "host")) {
            hosts++;
        }
    }
    if (h->chunked && h->has_length)
        return refuse(400, why, "the request has both Content-Length and Transfer-Encoding");
    if (hosts > 1 || (hosts == 0 && h->minor > 0))
        return refuse(400, why, "the request needs one Host header");
    return 0;
}

/* A head that is not complete may already be impossible. */
static int64_t incomplete(struct di_str in, size_t limit, const char **why)
{
    if (in.n && !is_token((unsigned char)in.p[0]))
        return refuse(400, why, "this is no HTTP request");
    if (in.n > DI_HTTP_MAX_TARGET + 64 && di_str_find((struct di_str){in.p, DI_HTTP_MAX_TARGET + 64}, DI_STR("\r\n"), 0) == SIZE_MAX)
        return refuse(414, why, "the target of the request is longer than 8192 bytes");
    if (in.n > limit)
        return refuse(431, why, "the head of the request is too long");
    return 0;
}

int64_t di_http_parse_head(struct di_str in, size_t limit, size_t *seen, struct di_http_head *out, const char **why)
{
    size_t end = di_str_find(in, DI_STR("\r\n\r\n"), *seen);
    if (end == SIZE_MAX || end + 4 > limit) {
        *seen = in.n > 3 ? in.n - 3 : 0;
        int64_t r = incomplete(in, limit, why);
        return r ? r : end == SIZE_MAX ? 0 : refuse(431, why, "the head of the request is too long");
    }
    memset(out, 0, offsetof(struct di_http_head, headers));
    out->n_headers = 0;
    int64_t r = 0;
    for (size_t at = 0; at < end && r == 0;) {
        size_t stop = di_str_find(in, DI_STR("\r\n"), at);
        struct di_str line = {in.p + at, stop - at};
        r = at == 0 ? parse_line(line, out, why) : parse_header(line, out, why);
        at = stop + 2;
    }
    if (end == 0)
        return refuse(400, why, "this is no HTTP request");
    if (r == 0 && out->target.n > DI_HTTP_MAX_TARGET)
        return refuse(414, why, "the target of the request is longer than 8192 bytes");
    if (r == 0)
        r = frame(out, why);
    return r ? r : (int64_t)end + 4;
}

/* ---------------------------------------------------------------- chunked bodies */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF };
#define MAX_CHUNK_LINE 256
#define MAX_TRAILER 8192

/* One byte of what is not data. 0, or minus a status. */
static int64_t chunk_byte(struct di_http_chunked *c, unsigned char b, const char **why)
{
    const char *bad = "the chunked body is malformed";
    switch (c->state) {
    case SIZE:
    case EXTENSION:
        if (b == '\r' && c->line > 0) {
            c->state = SIZE_LF;
        } else if (c->state == SIZE && hex(b) >= 0 && c->left < (uint64_t)1 << 56) {
            c->left = c->left * 16 + (uint64_t)hex(b);
        } else if (c->line == 0 || !is_value(b) || (c->state == SIZE && b != ';' && b != ' ' && b != '\t')) {
            return refuse(400, why, bad);
        } else {
            c->state = EXTENSION;
        }
        return ++c->line > MAX_CHUNK_LINE ? refuse(400, why, bad) : 0;
    case SIZE_LF:
        c->state = c->left ? DATA : TRAILER;
        c->line = 0;
        return b == '\n' ? 0 : refuse(400, why, bad);
    case DATA_CR: c->state = DATA_LF; return b == '\r' ? 0 : refuse(400, why, bad);
    case DATA_LF: c->state = SIZE; return b == '\n' ? 0 : refuse(400, why, bad);
    case TRAILER: /* trailers are read over */
        if (b == '\r')
            c->state = TRAILER_LF;
        else if (!is_value(b))
            return refuse(400, why, bad);
        else
            c->line++;
        return ++c->trailer > MAX_TRAILER ? refuse(431, why, "the trailers are too long") : 0;
    default:
        c->done = c->line == 0;
        c->line = 0;
        c->state = TRAILER;
        return b == '\n' ? 0 : refuse(400, why, bad);
    }
}

int64_t di_http_chunked_next(struct di_http_chunked *c, struct di_str in, struct di_str *data, const char **why)
{
    size_t at = 0;
    *data = (struct di_str){0};
    for (; at < in.n && !c->done; at++) {
        if (c->state == DATA) {
            size_t n = in.n - at < c->left ? in.n - at : (size_t)c->left;
            *data = (struct di_str){in.p + at, n};
            c->left -= n;
            if (c->left == 0)
                c->state = DATA_CR;
            return (int64_t)(at + n);
        }
        int64_t r = chunk_byte(c, (unsigned char)in.p[at], why);
        if (r)
            return r;
    }
    return (int64_t)at;
}
