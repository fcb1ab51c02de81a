#include "server/http_parse.h"

#include <arpa/inet.h>
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

/* The path of the target, and of the absolute form, which proxies get, what stands for the host. */
static int64_t parse_target(struct di_http_head *h, struct di_str *authority, const char **why)
{
    struct di_str path = h->target;
    if (di_str_find(path, DI_STR("#"), 0) != SIZE_MAX)
        return refuse(400, why, "the target of the request has a fragment");
    if (path.n > 7 && strncasecmp(path.p, "http://", 7) == 0) {
        size_t slash = di_str_find(path, DI_STR("/"), 7), end = slash == SIZE_MAX ? path.n : slash;
        *authority = (struct di_str){path.p + 7, end - 7};
        path = slash == SIZE_MAX ? DI_STR("/") : (struct di_str){path.p + slash, path.n - slash};
    } else if (path.p[0] != '/' && !(di_str_eqc(path, "*") && di_str_eqc(h->method, "OPTIONS"))) {
        return refuse(400, why, "the target of the request does not begin with /");
    }
    size_t mark = di_str_find(path, DI_STR("?"), 0);
    h->path = (struct di_str){path.p, mark == SIZE_MAX ? path.n : mark};
    h->query = mark == SIZE_MAX ? (struct di_str){0} : (struct di_str){path.p + mark + 1, path.n - mark - 1};
    return 0;
}

/* ---- hosts */

static bool parse_length(struct di_str s, uint64_t *out)
{
    if (!all(s, is_digit) || s.n > 18)
        return false;
    *out = 0;
    for (size_t i = 0; i < s.n; i++)
        *out = *out * 10 + (uint64_t)(s.p[i] - '0');
    return true;
}

static bool is_name(unsigned char c)
{
    return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_';
}

static bool is_address(int family, struct di_str s)
{
    char text[INET6_ADDRSTRLEN], address[16];
    if (s.n >= sizeof text)
        return false;
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    return inet_pton(family, text, address) == 1;
}

/* a.b.c with a dot at the end or not; where the last word is a number, all of it is an IPv4 address. */
static bool is_host_name(struct di_str s)
{
    struct di_str word = {0};
    for (size_t at = 0, end; at < s.n; at = end + 1) {
        end = di_str_find(s, DI_STR("."), at);
        end = end == SIZE_MAX ? s.n : end;
        word = (struct di_str){s.p + at, end - at};
        if (!all(word, is_name))
            return false;
    }
    return s.n > 0 && s.n <= 254 && (!all(word, is_digit) || is_address(AF_INET, s));
}

/* host or host:port, nothing else that may stand in a URL: names, IPv4, [IPv6]. *port stays what it is without one. */
static bool parse_host(struct di_str s, struct di_str *host, uint64_t *port)
{
    size_t close = s.n && s.p[0] == '[' ? di_str_find(s, DI_STR("]"), 0) : SIZE_MAX;
    size_t colon = di_str_find(s, DI_STR(":"), close == SIZE_MAX ? 0 : close);
    *host = (struct di_str){s.p, colon == SIZE_MAX ? s.n : colon};
    if (colon != SIZE_MAX && (!parse_length((struct di_str){s.p + colon + 1, s.n - colon - 1}, port) || *port == 0 || *port > 65535))
        return false;
    if (close != SIZE_MAX)
        return close + 1 == host->n && is_address(AF_INET6, (struct di_str){s.p + 1, close - 1});
    return is_host_name(*host);
}

static bool same_host(struct di_str a, struct di_str b)
{
    return a.n == b.n && strncasecmp(a.p, b.p, a.n) == 0;
}

/* Host, and what an absolute target says of it. */
static int64_t check_host(struct di_http_head *h, struct di_str authority, const char **why)
{
    struct di_str value = di_http_header(h, "host"), there;
    uint64_t port = 80, there_port = 80;
    if (value.n && !parse_host(value, &h->host, &port))
        return refuse(400, why, "Host is not HOST or HOST:PORT");
    if (!authority.p)
        return 0;
    if (!parse_host(authority, &there, &there_port) || !same_host(there, h->host) || port != there_port)
        return refuse(400, why, "the target of the request has another host than Host");
    return 0;
}

/* ---- lines */

/* METHOD SP target SP HTTP/1.x */
static int64_t parse_line(struct di_str line, struct di_http_head *h, struct di_str *authority, const char **why)
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
    return parse_target(h, authority, why);
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

/* What it says once would be read by one program from the first, by another from the last of them. */
static bool stands_once(struct di_http_head *h)
{
    static const char *const names[] = {"host",          "expect",    "content-type", "content-encoding",
                                        "authorization", "x-api-key", "origin",       "anthropic-version"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int times = 0;
        for (size_t k = 0; k < h->n_headers; k++)
            times += di_http_same_word(h->headers[k].name, names[i]);
        if (times > 1)
            return false;
    }
    return true;
}

/* The headers that say where the body ends, and what becomes of the connection. */
static int64_t frame(struct di_http_head *h, const char **why)
{
    bool host = false;
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
            host = true;
        }
    }
    if (h->chunked && h->has_length)
        return refuse(400, why, "the request has both Content-Length and Transfer-Encoding");
    if (!host && h->minor > 0)
        return refuse(400, why, "the request needs one Host header");
    if (!stands_once(h))
        return refuse(400, why, "a header that has one value stands twice");
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
    struct di_str authority = {0};
    for (size_t at = 0; at < end && r == 0;) {
        size_t stop = di_str_find(in, DI_STR("\r\n"), at);
        struct di_str line = {in.p + at, stop - at};
        r = at == 0 ? parse_line(line, out, &authority, why) : parse_header(line, out, why);
        at = stop + 2;
    }
    if (end == 0)
        return refuse(400, why, "this is no HTTP request");
    if (r == 0 && out->target.n > DI_HTTP_MAX_TARGET)
        return refuse(414, why, "the target of the request is longer than 8192 bytes");
    if (r == 0)
        r = frame(out, why);
    if (r == 0)
        r = check_host(out, authority, why);
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
