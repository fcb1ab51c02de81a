#include "base/json.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct parser {
    const char *s;
    size_t n, i, depth, max_depth, values, max_values;
    bool refuse_duplicates;
    struct di_arena *arena;
    di_error *err;
};

static di_status bad(struct parser *p, const char *what)
{
    char where[40];
    snprintf(where, sizeof where, "byte %zu", p->i);
    return di_fail(p->err, DI_ERR_FORMAT, where, "not valid JSON: %s", what);
}

static di_status no_memory(struct parser *p)
{
    return di_fail(p->err, DI_ERR_MEMORY, "", "out of memory while reading JSON of %zu bytes", p->n);
}

static void skip_space(struct parser *p)
{
    while (p->i < p->n && (p->s[p->i] == ' ' || p->s[p->i] == '\t' || p->s[p->i] == '\n' || p->s[p->i] == '\r'))
        p->i++;
}

static bool digit(struct parser *p)
{
    return p->i < p->n && p->s[p->i] >= '0' && p->s[p->i] <= '9';
}

static di_status parse_number(struct parser *p, struct di_json *v)
{
    size_t start = p->i;
    if (p->s[p->i] == '-')
        p->i++;
    if (!digit(p))
        return bad(p, "a digit was expected");
    if (p->s[p->i] == '0')
        p->i++;
    else
        while (digit(p))
            p->i++;
    if (p->i < p->n && p->s[p->i] == '.') {
        p->i++;
        if (!digit(p))
            return bad(p, "a digit was expected after the decimal point");
        while (digit(p))
            p->i++;
    }
    if (p->i < p->n && (p->s[p->i] == 'e' || p->s[p->i] == 'E')) {
        p->i++;
        if (p->i < p->n && (p->s[p->i] == '+' || p->s[p->i] == '-'))
            p->i++;
        if (!digit(p))
            return bad(p, "a digit was expected in the exponent");
        while (digit(p))
            p->i++;
    }
    v->type = DI_JSON_NUMBER;
    v->text = (struct di_str){p->s + start, p->i - start};
    return DI_OK;
}

static bool hex4(struct parser *p, uint32_t *out)
{
    if (p->n - p->i < 4)
        return false;
    uint32_t x = 0;
    for (int k = 0; k < 4; k++) {
        char c = p->s[p->i + (size_t)k];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16)
            return false;
        x = x << 4 | d;
    }
    p->i += 4;
    *out = x;
    return true;
}

/* The escape after a backslash at p->i; appends its bytes at *o. */
static di_status parse_escape(struct parser *p, char **o)
{
    static const char plain[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    if (p->i >= p->n)
        return bad(p, "the text ends inside a string");
    char c = p->s[p->i++];
    const char *hit = c ? strchr(plain, c) : NULL;
    if (hit) {
        *(*o)++ = value[hit - plain];
        return DI_OK;
    }
    uint32_t cp, low;
    if (c != 'u' || !hex4(p, &cp)) {
        p->i--;
        return bad(p, "unknown escape in a string");
    }
    if (cp >= 0xDC00 && cp <= 0xDFFF)
        return bad(p, "a lone surrogate escape in a string");
    if (cp >= 0xD800 && cp <= 0xDBFF) {
        if (p->n - p->i < 6 || p->s[p->i] != '\\' || p->s[p->i + 1] != 'u')
            return bad(p, "a lone surrogate escape in a string");
        p->i += 2;
        if (!hex4(p, &low) || low < 0xDC00 || low > 0xDFFF)
            return bad(p, "a lone surrogate escape in a string");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    *o += di_utf8_encode(cp, *o);
    return DI_OK;
}

/* p->i is behind the opening quote. The whole text was checked as UTF-8 before. */
static di_status parse_string(struct parser *p, struct di_str *out)
{
    size_t start = p->i, escapes = 0;
    for (;; p->i++) {
        if (p->i >= p->n)
            return bad(p, "the text ends inside a string");
        unsigned char c = (unsigned char)p->s[p->i];
        if (c == '"')
            break;
        if (c < 0x20)
            return bad(p, "a control character inside a string");
        if (c == '\\') {
            escapes++;
            p->i++;
        }
    }
    size_t end = p->i;
    if (escapes == 0) {
        *out = (struct di_str){p->s + start, end - start};
        p->i = end + 1;
        return DI_OK;
    }
    char *buf = di_arena_alloc(p->arena, end - start), *o = buf; /* decoded text is never longer */
    if (!buf)
        return no_memory(p);
    for (p->i = start; p->i < end;) {
        const char *stop = memchr(p->s + p->i, '\\', end - p->i);
        size_t run = stop ? (size_t)(stop - (p->s + p->i)) : end - p->i;
        memcpy(o, p->s + p->i, run);
        o += run;
        p->i += run;
        if (stop) {
            p->i++;
            di_status status = parse_escape(p, &o);
            if (status != DI_OK)
                return status;
        }
    }
    *out = (struct di_str){buf, (size_t)(o - buf)};
    p->i = end + 1;
    return DI_OK;
}

static uint64_t hash_key(struct di_str s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Give the value of a later member to the first one with that key and unlink the later one. Called once per object, with a
 * table of at least twice the member count, so that an object of n members costs O(n) unless somebody works at collisions;
 * a probe limit then refuses the document. */
static di_status merge_duplicates(struct parser *p, struct di_json *obj)
{
    size_t cap = 16;
    while (cap < obj->count * 2)
        cap *= 2;
    struct di_json **table = di_calloc(cap, sizeof *table);
    if (!table)
        return no_memory(p);
    di_status status = DI_OK;
    struct di_json **link = &obj->child;
    while (*link && status == DI_OK) {
        struct di_json *m = *link;
        size_t h = (size_t)hash_key(m->key) & (cap - 1), probes = 0;
        while (table[h] && !di_str_eq(table[h]->key, m->key) && probes++ < 1000)
            h = (h + 1) & (cap - 1);
        if (probes >= 1000) {
            status = bad(p, "an object with too many colliding keys");
        } else if (!table[h]) {
            table[h] = m;
            link = &m->next;
        } else if (p->refuse_duplicates) {
            status = di_fail(p->err, DI_ERR_FORMAT, "", "the key \"%.*s\" occurs twice in one object", (int)(m->key.n > 60 ? 60 : m->key.n),
                             m->key.p);
        } else {
            struct di_json *first = table[h], *first_next = first->next;
            struct di_str key = first->key;
            *link = m->next;
            if (first_next == m)
                first_next = m->next;
            *first = *m;
            first->key = key;
            first->next = first_next;
            obj->count--;
        }
    }
    di_free(table);
    return status;
}

static di_status parse_value(struct parser *p, struct di_json *v);

static di_status parse_container(struct parser *p, struct di_json *v, bool object)
{
    char close = object ? '}' : ']';
    di_status status = DI_OK;
    struct di_json **link = &v->child;
    v->type = object ? DI_JSON_OBJECT : DI_JSON_ARRAY;
    if (++p->depth > p->max_depth)
        return di_fail(p->err, DI_ERR_LIMIT, "", "JSON is nested deeper than %zu levels", p->max_depth);
    p->i++;
    skip_space(p);
    if (p->i < p->n && p->s[p->i] == close) {
        p->i++;
        p->depth--;
        return DI_OK;
    }
    for (;;) {
        if (++p->values > p->max_values)
            return di_fail(p->err, DI_ERR_LIMIT, "", "JSON has more than %zu values", p->max_values);
        struct di_json *m = di_arena_alloc(p->arena, sizeof *m);
        if (!m)
            return no_memory(p);
        memset(m, 0, sizeof *m);
        if (object) {
            if (p->i >= p->n || p->s[p->i] != '"')
                return bad(p, "a quoted key was expected");
            p->i++;
            TRY(parse_string(p, &m->key));
            skip_space(p);
            if (p->i >= p->n || p->s[p->i] != ':')
                return bad(p, "':' was expected after a key");
            p->i++;
        }
        TRY(parse_value(p, m));
        *link = m;
        link = &m->next;
        v->count++;
        skip_space(p);
        if (p->i < p->n && p->s[p->i] == ',') {
            p->i++;
            skip_space(p);
            continue;
        }
        if (p->i < p->n && p->s[p->i] == close) {
            p->i++;
            break;
        }
        return bad(p, object ? "',' or '}' was expected" : "',' or ']' was expected");
    }
    p->depth--;
    if (object && v->count > 1)
        TRY(merge_duplicates(p, v));
out:
    return status;
}

static di_status parse_value(struct parser *p, struct di_json *v)
{
    static const struct {
        const char *word;
        enum di_json_type type;
        bool boolean;
    } words[] = {{"null", DI_JSON_NULL, false}, {"true", DI_JSON_BOOL, true}, {"false", DI_JSON_BOOL, false}};
    skip_space(p);
    if (p->i >= p->n)
        return bad(p, "the text ends where a value was expected");
    char c = p->s[p->i];
    if (c == '{' || c == '[')
        return parse_container(p, v, c == '{');
    if (c == '"') {
        p->i++;
        v->type = DI_JSON_STRING;
        return parse_string(p, &v->text);
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return parse_number(p, v);
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        size_t len = strlen(words[k].word);
        if (p->n - p->i >= len && memcmp(p->s + p->i, words[k].word, len) == 0) {
            p->i += len;
            v->type = words[k].type;
            v->boolean = words[k].boolean;
            return DI_OK;
        }
    }
    return bad(p, "a value was expected");
}

di_status di_json_parse(struct di_str text, const struct di_json_limits *limits, struct di_arena *arena, struct di_json **out,
                        di_error *err)
{
    struct parser p = {.s = text.p, .n = text.n, .arena = arena, .err = err, .max_depth = 128, .max_values = SIZE_MAX};
    if (limits && limits->max_depth)
        p.max_depth = limits->max_depth;
    if (limits && limits->max_values)
        p.max_values = limits->max_values;
    if (limits)
        p.refuse_duplicates = limits->refuse_duplicates;
    size_t at;
    *out = NULL;
    if (!di_utf8_valid(text, &at)) {
        p.i = at;
        return bad(&p, "the text is not valid UTF-8");
    }
    if (di_str_starts(text, DI_STR("\xEF\xBB\xBF")))
        p.i = 3;
    struct di_json *root = di_arena_alloc(arena, sizeof *root);
    if (!root)
        return no_memory(&p);
    memset(root, 0, sizeof *root);
    di_status status = parse_value(&p, root);
    if (status != DI_OK)
        return status;
    skip_space(&p);
    if (p.i != p.n)
        return bad(&p, "something follows the value");
    *out = root;
    return DI_OK;
}

const struct di_json *di_json_get(const struct di_json *v, const char *key)
{
    if (!di_json_is(v, DI_JSON_OBJECT))
        return NULL;
    for (const struct di_json *m = v->child; m; m = m->next)
        if (di_str_eqc(m->key, key))
            return m;
    return NULL;
}

const struct di_json *di_json_at(const struct di_json *v, size_t i)
{
    if (!di_json_is(v, DI_JSON_ARRAY))
        return NULL;
    const struct di_json *m = v->child;
    while (m && i--)
        m = m->next;
    return m;
}

/* strtod and strtoll need a terminated string; literals are short except for hostile ones. */
static char *literal(const struct di_json *v, char *small, size_t cap)
{
    char *s = v->text.n < cap ? small : di_malloc(v->text.n + 1);
    if (s) {
        memcpy(s, v->text.p, v->text.n);
        s[v->text.n] = 0;
    }
    return s;
}

bool di_json_int(const struct di_json *v, int64_t *out)
{
    if (!di_json_is(v, DI_JSON_NUMBER) || v->text.n > 20)
        return false;
    char s[24];
    memcpy(s, v->text.p, v->text.n);
    s[v->text.n] = 0;
    if (s[strcspn(s, ".eE")])
        return false;
    errno = 0;
    long long x = strtoll(s, NULL, 10);
    if (errno)
        return false;
    *out = x;
    return true;
}

bool di_json_double(const struct di_json *v, double *out)
{
    if (!di_json_is(v, DI_JSON_NUMBER))
        return false;
    char small[64], *s = literal(v, small, sizeof small);
    if (!s)
        return false;
    *out = strtod(s, NULL);
    if (s != small)
        di_free(s);
    return isfinite(*out);
}

/* A literal's value as 0.ddd x 10^point: its significant digits begin and end with one that is not 0. */
struct decimal {
    const char *at, *end; /* the digits, perhaps with a '.' among them; empty for 0 */
    bool negative;
    int64_t point;
};

/* False if the exponent has more digits than anybody computes with. */
static bool read_decimal(struct di_str text, struct decimal *d)
{
    const char *p = text.p, *end = text.p + text.n, *mantissa_end = p;
    int64_t exponent = 0, before = 0; /* digits before the '.', less the zeros in front */
    bool dot = false;
    *d = (struct decimal){.negative = p < end && *p == '-'};
    for (p += d->negative; p < end && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            dot = true;
            continue;
        }
        if (*p != '0' && !d->at)
            d->at = p;
        if (*p != '0')
            mantissa_end = p + 1;
        before += !dot && d->at;
        before -= dot && !d->at;
    }
    if (!d->at) {
        d->negative = false;
        return true;
    }
    d->end = mantissa_end;
    if (p < end) {
        bool down = *++p == '-';
        for (p += *p == '-' || *p == '+'; p < end; p++) {
            if (exponent > INT64_MAX / 100)
                return false;
            exponent = 10 * exponent + (*p - '0');
        }
        exponent = down ? -exponent : exponent;
    }
    d->point = before + exponent;
    return true;
}

/* Of any length, 1e2 = 100.0, -0 = 0. */
static bool same_number(struct di_str a, struct di_str b)
{
    struct decimal x, y;
    if (di_str_eq(a, b))
        return true;
    if (!read_decimal(a, &x) || !read_decimal(b, &y) || x.negative != y.negative || x.point != y.point)
        return false;
    for (;; x.at++, y.at++) {
        x.at += x.at < x.end && *x.at == '.';
        y.at += y.at < y.end && *y.at == '.';
        if (x.at == x.end || y.at == y.end)
            return x.at == x.end && y.at == y.end;
        if (*x.at != *y.at)
            return false;
    }
}

bool di_json_same(const struct di_json *a, const struct di_json *b)
{
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case DI_JSON_NULL: return true;
    case DI_JSON_BOOL: return a->boolean == b->boolean;
    case DI_JSON_NUMBER: return same_number(a->text, b->text);
    case DI_JSON_STRING: return di_str_eq(a->text, b->text);
    default: break;
    }
    if (a->count != b->count)
        return false;
    const struct di_json *w = b->child;
    for (const struct di_json *v = a->child; v; v = v->next, w = w->next) {
        const struct di_json *other = w;
        if (a->type == DI_JSON_OBJECT && !di_str_eq(v->key, w->key)) /* keys are unique in a parsed object */
            for (other = b->child; other && !di_str_eq(other->key, v->key); other = other->next)
                ;
        if (!other || !di_json_same(v, other))
            return false;
    }
    return true;
}

const char *di_json_type_name(const struct di_json *v)
{
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    return v ? names[v->type] : "nothing";
}

void di_json_write_string(struct di_buf *b, struct di_str s)
{
    static const char hex[] = "0123456789abcdef";
    size_t run = 0;
    di_buf_addc(b, '"');
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (i > run)
            di_buf_add(b, s.p + run, i - run);
        run = i + 1;
        char esc[6] = {'\\', (char)c, '0', '0', hex[c >> 4], hex[c & 15]};
        static const char from[] = "\b\f\n\r\t", to[] = "bfnrt";
        const char *hit = c ? strchr(from, c) : NULL;
        if (hit)
            esc[1] = to[hit - from];
        else if (c < 0x20)
            esc[1] = 'u';
        di_buf_add(b, esc, esc[1] == 'u' ? 6 : 2);
    }
    if (s.n > run)
        di_buf_add(b, s.p + run, s.n - run);
    di_buf_addc(b, '"');
}

/* Python's repr: the shortest digits that read back as x; exponent form below 1e-4 and from 1e16. */
void di_json_write_double(struct di_buf *b, double x)
{
    if (!isfinite(x)) {
        di_buf_adds(b, "null");
        return;
    }
    char s[40];
    int digits = 1;
    for (; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*e", digits - 1, x);
        if (strtod(s, NULL) == x)
            break;
    }
    int exp10 = atoi(strchr(s, 'e') + 1);
    if (exp10 >= -4 && exp10 < 16) {
        int decimals = digits - 1 - exp10;
        snprintf(s, sizeof s, "%.*f", decimals > 0 ? decimals : 1, x);
        di_buf_adds(b, s);
        return;
    }
    di_buf_adds(b, s); /* printf's exponent has a sign and at least two digits, as Python's */
}

static void write_number(struct di_buf *b, const struct di_json *v)
{
    bool integer = true;
    for (size_t i = 0; i < v->text.n; i++)
        integer = integer && v->text.p[i] != '.' && v->text.p[i] != 'e' && v->text.p[i] != 'E';
    double x;
    if (integer && di_str_eqc(v->text, "-0"))
        di_buf_adds(b, "0"); /* Python reads the integer -0 as 0 */
    else if (integer || !di_json_double(v, &x))
        di_buf_addv(b, v->text);
    else
        di_json_write_double(b, x);
}

static void write_value(struct di_buf *b, const struct di_json *v, bool spaced)
{
    switch (v->type) {
    case DI_JSON_NULL: di_buf_adds(b, "null"); return;
    case DI_JSON_BOOL: di_buf_adds(b, v->boolean ? "true" : "false"); return;
    case DI_JSON_STRING: di_json_write_string(b, v->text); return;
    case DI_JSON_NUMBER:
        if (spaced)
            write_number(b, v);
        else
            di_buf_addv(b, v->text);
        return;
    case DI_JSON_ARRAY:
    case DI_JSON_OBJECT: break;
    }
    bool object = v->type == DI_JSON_OBJECT;
    di_buf_addc(b, object ? '{' : '[');
    for (const struct di_json *m = v->child; m; m = m->next) {
        if (object) {
            di_json_write_string(b, m->key);
            di_buf_adds(b, spaced ? ": " : ":");
        }
        write_value(b, m, spaced);
        if (m->next)
            di_buf_adds(b, spaced ? ", " : ",");
    }
    di_buf_addc(b, object ? '}' : ']');
}

void di_json_write_spaced(struct di_buf *b, const struct di_json *v)
{
    write_value(b, v, true);
}

void di_json_write_compact(struct di_buf *b, const struct di_json *v)
{
    write_value(b, v, false);
}
