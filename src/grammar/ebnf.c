/* The dialects of EBNF that llama.cpp (GBNF) and xgrammar read: rules `name ::= ...`, strings, classes of characters, groups, repetition. */
#include "grammar/cfg.h"
#include "base/utf8.h"

#include <stdio.h>

struct reader {
    struct di_grammar *g;
    struct di_str s;
    size_t at;
    unsigned line, depth;
    di_error *err;
};

static di_status fail(const struct reader *r, di_status code, const char *what)
{
    char where[32];
    snprintf(where, sizeof where, "line %u", r->line);
    return di_fail(r->err, code, where, "the grammar has %s", what);
}

static int peek(const struct reader *r)
{
    return r->at < r->s.n ? (unsigned char)r->s.p[r->at] : -1;
}

/* White space and comments. */
static void space(struct reader *r)
{
    for (int c; (c = peek(r)) == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '#';) {
        if (c == '#') {
            while (r->at < r->s.n && peek(r) != '\n')
                r->at++;
            continue;
        }
        r->line += c == '\n';
        r->at++;
    }
}

static bool skip(struct reader *r, const char *what)
{
    size_t n = strlen(what);
    if (r->s.n - r->at < n || memcmp(r->s.p + r->at, what, n) != 0)
        return false;
    r->at += n;
    return true;
}

static bool name_char(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.';
}

static struct di_str read_name(struct reader *r)
{
    size_t start = r->at;
    while (name_char(peek(r)))
        r->at++;
    return (struct di_str){r->s.p + start, r->at - start};
}

/* Does a rule begin here (a name and ::=)? */
static bool at_rule(struct reader *r)
{
    size_t back = r->at;
    unsigned line = r->line;
    bool yes = read_name(r).n > 0;
    space(r);
    yes = yes && skip(r, "::=");
    r->at = back;
    r->line = line;
    return yes;
}

static di_status read_hex(struct reader *r, unsigned digits, uint32_t *cp)
{
    *cp = 0;
    for (unsigned i = 0; i < digits; i++) {
        int c = peek(r), d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0)
            return fail(r, DI_ERR_INVALID, "an escape with too few hexadecimal digits");
        *cp = *cp * 16 + (uint32_t)d;
        r->at++;
    }
    return *cp <= 0x10FFFF ? DI_OK : fail(r, DI_ERR_INVALID, "an escape beyond U+10FFFF");
}

static di_status read_char(struct reader *r, uint32_t *cp)
{
    static const char from[] = "nrt\\\"[]-^'/0fvba", to[] = "\n\r\t\\\"[]-^'/\0\f\v\b\a";
    if (peek(r) != '\\') {
        size_t n = r->at < r->s.n ? di_utf8_decode(r->s.p + r->at, r->s.n - r->at, cp, NULL) : 0;
        r->at += n;
        r->line += n == 1 && *cp == '\n';
        return n ? DI_OK : fail(r, DI_ERR_INVALID, "bytes that are no UTF-8, or an unexpected end");
    }
    r->at++;
    int c = peek(r);
    const char *known = c > 0 ? strchr(from, c) : NULL;
    r->at++;
    if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, cp);
    if (!known)
        return fail(r, DI_ERR_INVALID, "an unknown escape");
    *cp = (unsigned char)to[known - from];
    return DI_OK;
}

static di_status read_string(struct reader *r, rx_id *out)
{
    struct di_buf text = {0};
    di_status status = DI_OK;
    while (peek(r) != '"') {
        char bytes[4];
        uint32_t cp;
        TRY(read_char(r, &cp));
        if (cp >= 0xD800 && cp < 0xE000) {
            status = fail(r, DI_ERR_INVALID, "half of a surrogate pair");
            goto out;
        }
        di_buf_add(&text, bytes, di_utf8_encode(cp, bytes));
    }
    r->at++;
    r->g->rx.depth = 0;
    TRY(di_buf_ok(&text, r->err));
    *out = rx_literal(&r->g->rx, di_buf_str(&text));
out:
    di_buf_fini(&text);
    return status;
}

static di_status read_class(struct reader *r, rx_id *out)
{
    uint32_t pairs[2 * 512], inverted[2 * 513];
    size_t n = 0, m = 0;
    bool invert = skip(r, "^");
    di_status status = DI_OK;
    while (peek(r) != ']') {
        if (n == 512)
            return fail(r, DI_ERR_LIMIT, "a class of more than 512 ranges");
        TRY(read_char(r, &pairs[2 * n]));
        pairs[2 * n + 1] = pairs[2 * n];
        if (peek(r) == '-' && r->at + 1 < r->s.n && r->s.p[r->at + 1] != ']') {
            r->at++;
            TRY(read_char(r, &pairs[2 * n + 1]));
            if (pairs[2 * n + 1] < pairs[2 * n])
                return fail(r, DI_ERR_INVALID, "a range whose end is before its beginning");
        }
        n++;
    }
    r->at++;
    if (!invert) {
        *out = rx_ranges(&r->g->rx, pairs, n);
        return DI_OK;
    }
    for (uint32_t next = 0; next <= 0x10FFFF;) { /* what lies between the ranges, from low to high */
        uint32_t first = 0x110000, last = 0;
        for (size_t i = 0; i < n; i++) {
            if (pairs[2 * i] <= next && pairs[2 * i + 1] >= next && pairs[2 * i + 1] >= last)
                last = pairs[2 * i + 1] + 1;
            if (pairs[2 * i] > next && pairs[2 * i] < first)
                first = pairs[2 * i];
        }
        if (last > next) {
            next = last;
            continue;
        }
        inverted[2 * m] = next;
        inverted[2 * m++ + 1] = first - 1;
        next = first;
    }
    *out = rx_ranges(&r->g->rx, inverted, m);
out:
    return status;
}

static di_status read_either(struct reader *r, struct cfg_part **out);

static di_status read_counts(struct reader *r, uint32_t *min, uint32_t *max)
{
    uint32_t n[2] = {0, RX_MANY};
    int i = 0;
    for (bool any = false; peek(r) != '}'; r->at++) {
        int c = peek(r);
        if (c == ' ')
            continue;
        if (c == ',' && i == 0) {
            i = 1;
            any = false;
        } else if (c >= '0' && c <= '9' && (!any || n[i] <= 100000)) {
            n[i] = (any ? n[i] * 10 : 0) + (uint32_t)(c - '0');
            any = true;
        } else {
            return fail(r, DI_ERR_INVALID, "a repetition that is not {n}, {n,} or {n,m} with small numbers");
        }
    }
    r->at++;
    *min = n[0];
    *max = i ? n[1] : n[0];
    return *max >= *min ? DI_OK : fail(r, DI_ERR_INVALID, "a repetition whose limits are the wrong way round");
}

static di_status read_item(struct reader *r, struct cfg_part **out)
{
    struct di_grammar *g = r->g;
    rx_id rx = RX_NONE;
    di_status status = DI_OK;
    if (skip(r, "\"")) {
        TRY(read_string(r, &rx));
        *out = cfg_rx(g, rx);
    } else if (skip(r, "[")) {
        TRY(read_class(r, &rx));
        *out = cfg_rx(g, rx);
    } else if (skip(r, ".")) {
        *out = cfg_rx(g, g->rx.any_char);
    } else if (skip(r, "(")) {
        space(r);
        if (peek(r) == '=' || peek(r) == '!')
            return fail(r, DI_ERR_UNSUPPORTED, "a lookahead");
        TRY(read_either(r, out));
        if (!skip(r, ")"))
            return fail(r, DI_ERR_INVALID, "a group without an end");
    } else if (name_char(peek(r))) {
        struct di_str name = read_name(r);
        if (peek(r) == '(')
            return fail(r, DI_ERR_UNSUPPORTED, "a macro (TagDispatch and the like)");
        uint32_t rule = cfg_rule_named(g, name, r->line);
        *out = cfg_part(g, CFG_RULE, NULL, 0);
        if (*out)
            (*out)->rule = rule;
    } else {
        return fail(r, DI_ERR_INVALID, "something where a string, class, rule or group was expected");
    }
    for (;;) { /* repetition stands right behind */
        uint32_t min = 0, max = RX_MANY;
        if (skip(r, "*"))
            ;
        else if (skip(r, "+"))
            min = 1;
        else if (skip(r, "?"))
            max = 1;
        else if (skip(r, "{"))
            TRY(read_counts(r, &min, &max));
        else
            break;
        *out = cfg_repeat(g, *out, min, max);
    }
    if (!*out)
        return fail(r, DI_ERR_MEMORY, "no memory left");
out:
    return status;
}

static di_status read_sequence(struct reader *r, struct cfg_part **out)
{
    struct cfg_list list = {0};
    struct cfg_part *p = NULL;
    di_status status = DI_OK;
    for (space(r); r->at < r->s.n && peek(r) != '|' && peek(r) != ')' && !at_rule(r); space(r)) {
        TRY(read_item(r, &p));
        if (!cfg_append(r->g, &list, p)) {
            status = fail(r, DI_ERR_MEMORY, "no memory left");
            goto out;
        }
    }
    *out = list.n ? cfg_part(r->g, CFG_SEQUENCE, list.parts, list.n) : cfg_rx(r->g, RX_EMPTY);
out:
    di_free(list.parts);
    return status;
}

static di_status read_either(struct reader *r, struct cfg_part **out)
{
    struct cfg_list list = {0};
    struct cfg_part *p = NULL;
    di_status status = DI_OK;
    if (++r->depth > 200)
        return fail(r, DI_ERR_LIMIT, "more than 200 groups inside each other");
    do {
        TRY(read_sequence(r, &p));
        if (!cfg_append(r->g, &list, p)) {
            status = fail(r, DI_ERR_MEMORY, "no memory left");
            goto out;
        }
    } while (skip(r, "|"));
    *out = cfg_part(r->g, CFG_EITHER, list.parts, list.n);
    r->depth--;
out:
    di_free(list.parts);
    return status;
}

di_status ebnf_read(struct di_grammar *g, struct di_str text, di_error *err)
{
    struct reader r = {.g = g, .s = text, .line = 1, .err = err};
    struct cfg_part *body = NULL;
    di_status status = DI_OK;
    for (space(&r); r.at < text.n; space(&r)) {
        unsigned line = r.line;
        if (!at_rule(&r))
            return fail(&r, DI_ERR_INVALID, "something where a rule (name ::= ...) was expected");
        struct di_str name = read_name(&r);
        space(&r);
        skip(&r, "::=");
        uint32_t rule = cfg_rule_named(g, name, line);
        TRY(read_either(&r, &body));
        TRY(gr_health(g, err));
        if (g->cfg->rules[rule].body)
            return fail(&r, DI_ERR_INVALID, "a rule that is defined twice");
        g->cfg->rules[rule].body = body;
        g->cfg->rules[rule].line = line;
    }
    g->cfg->root = cfg_rule_named(g, DI_STR("root"), 0);
out:
    return status;
}
