/* Lark, as llguidance and the custom tools of hosted services read it: rules in small letters, terminals in capitals, strings, expressions between
 * slashes, %ignore, %import common.NAME, %json {schema}. Where Lark lets its lexer choose one terminal, the longest, every way to read the text
 * counts here. What is ignored may stand in front of the text and behind every string, expression and terminal of a rule. */
#include "grammar/cfg.h"
#include "base/utf8.h"

#include <stdio.h>

struct reader {
    struct di_grammar *g;
    struct di_str s;
    size_t at;
    unsigned line, depth;
    bool in_terminal;
    rx_id ignored;           /* RX_NONE: nothing */
    struct cfg_part *ignore; /* any number of ignored pieces, shared by all who need it; filled at the end */
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

static bool skip(struct reader *r, const char *what)
{
    size_t n = strlen(what);
    if (r->s.n - r->at < n || memcmp(r->s.p + r->at, what, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* Spaces and comments; over line breaks only if `lines`. */
static void space(struct reader *r, bool lines)
{
    for (;;) {
        int c = peek(r);
        if (c == ' ' || c == '\t' || c == '\r') {
            r->at++;
        } else if (c == '\n' && lines) {
            r->at++;
            r->line++;
        } else if (c == '#' || (c == '/' && r->at + 1 < r->s.n && r->s.p[r->at + 1] == '/')) {
            while (r->at < r->s.n && peek(r) != '\n')
                r->at++;
        } else {
            return;
        }
    }
}

static bool letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static struct di_str read_name(struct reader *r)
{
    size_t start = r->at;
    if (letter(peek(r)))
        while (letter(peek(r)) || (peek(r) >= '0' && peek(r) <= '9') || (peek(r) == '-' && r->at > start))
            r->at++;
    return (struct di_str){r->s.p + start, r->at - start};
}

/* Terminals are written in capitals, behind underscores. */
static bool is_terminal(struct di_str name)
{
    size_t i = 0;
    while (i < name.n && name.p[i] == '_')
        i++;
    return i < name.n && name.p[i] >= 'A' && name.p[i] <= 'Z';
}

/* Does the next line go on with an alternative? Then up to it. */
static bool next_alternative(struct reader *r)
{
    size_t back = r->at;
    unsigned line = r->line;
    space(r, true);
    if (peek(r) == '|')
        return true;
    r->at = back;
    r->line = line;
    return false;
}

/* A part that reads something, and what is ignored behind it. */
static struct cfg_part *with_ignored(struct reader *r, struct cfg_part *p)
{
    struct cfg_part *both[2] = {p, r->ignore};
    return r->in_terminal || !p ? p : cfg_part(r->g, CFG_SEQUENCE, both, 2);
}

/* A quoted string behind its quotation mark, as bytes. */
static di_status read_quoted(struct reader *r, struct di_buf *text)
{
    static const char from[] = "ntrfvb0\\\"'/", to[] = "\n\t\r\f\v\b\0\\\"'/";
    while (peek(r) != '"') {
        int c = peek(r);
        if (c < 0 || c == '\n')
            return fail(r, DI_ERR_INVALID, "a string without an end");
        r->at++;
        if (c != '\\') {
            di_buf_addc(text, (char)c);
            continue;
        }
        c = peek(r);
        r->at++;
        if (c == 'x' || c == 'u') {
            struct di_buf json = {0};
            struct di_arena arena;
            struct di_json *v;
            size_t n = c == 'x' ? 2 : 4;
            di_arena_init(&arena);
            di_buf_adds(&json, c == 'x' ? "\"\\u00" : "\"\\u");
            di_buf_add(&json, r->s.p + r->at, r->s.n - r->at < n ? r->s.n - r->at : n);
            di_buf_addc(&json, '"');
            bool good = di_buf_ok(&json, NULL) == DI_OK && di_json_parse(di_buf_str(&json), NULL, &arena, &v, NULL) == DI_OK;
            if (good)
                di_buf_addv(text, v->text);
            r->at += n;
            di_arena_fini(&arena);
            di_buf_fini(&json);
            if (!good)
                return fail(r, DI_ERR_INVALID, "an escape that is no character");
            continue;
        }
        const char *known = c > 0 ? strchr(from, c) : NULL;
        if (!known)
            return fail(r, DI_ERR_INVALID, "an unknown escape");
        di_buf_addc(text, to[known - from]);
    }
    r->at++;
    return di_buf_ok(text, r->err);
}

static di_status read_string(struct reader *r, struct cfg_part **out)
{
    struct di_buf text = {0}, last = {0};
    struct di_grammar *g = r->g;
    di_status status = DI_OK;
    rx_id rx = RX_NONE;
    TRY(read_quoted(r, &text));
    g->rx.depth = 0;
    if (skip(r, "i") && !letter(peek(r))) {
        struct di_buf quoted = {0};
        for (size_t i = 0; i < text.n; i++) { /* as an expression, whose letters are of both cases */
            if (text.p[i] && strchr("\\^$.|?*+()[]{}/", text.p[i]))
                di_buf_addc(&quoted, '\\');
            di_buf_addc(&quoted, text.p[i]);
        }
        status = di_buf_ok(&quoted, r->err);
        if (status == DI_OK)
            status = rx_parse(&g->rx, di_buf_str(&quoted), RX_IGNORE_CASE, &rx, r->err);
        di_buf_fini(&quoted);
        if (status != DI_OK)
            goto out;
    } else if (skip(r, "..")) {
        uint32_t pair[2];
        space(r, false);
        if (!skip(r, "\""))
            return di_buf_fini(&text), fail(r, DI_ERR_INVALID, "a range without an end");
        TRY(read_quoted(r, &last));
        if (!text.n || !last.n || di_utf8_decode(text.p, text.n, &pair[0], NULL) != text.n ||
            di_utf8_decode(last.p, last.n, &pair[1], NULL) != last.n || pair[1] < pair[0]) {
            status = fail(r, DI_ERR_INVALID, "a range that is not one character, then one that does not come before it");
            goto out;
        }
        rx = rx_ranges(&g->rx, pair, 1);
    } else {
        rx = rx_literal(&g->rx, di_buf_str(&text));
    }
    *out = with_ignored(r, cfg_rx(g, rx));
out:
    di_buf_fini(&text);
    di_buf_fini(&last);
    return status;
}

static di_status read_expression(struct reader *r, struct cfg_part **out)
{
    size_t start = r->at;
    unsigned syntax = 0;
    rx_id rx = RX_NONE;
    di_error inner = {0};
    bool in_class = false;
    for (;; r->at++) {
        int c = peek(r);
        if (c < 0 || c == '\n')
            return fail(r, DI_ERR_INVALID, "an expression without an end");
        if (c == '\\')
            r->at++;
        else if (c == '[')
            in_class = true;
        else if (c == ']')
            in_class = false;
        else if (c == '/' && !in_class)
            break;
    }
    struct di_str text = {r->s.p + start, r->at - start};
    r->at++;
    for (int c; (c = peek(r)) == 'i' || c == 'm' || c == 's' || c == 'u' || c == 'l' || c == 'x'; r->at++) {
        if (c == 'x' || c == 'l' || c == 'm')
            return fail(r, DI_ERR_UNSUPPORTED, "an expression with one of the flags l, m, x");
        syntax |= c == 'i' ? RX_IGNORE_CASE : c == 's' ? RX_DOT_ALL : 0;
    }
    di_status status = rx_parse(&r->g->rx, text, syntax, &rx, &inner);
    if (status != DI_OK) {
        char where[32];
        snprintf(where, sizeof where, "line %u", r->line);
        return di_fail(r->err, status, where, "%s (%s)", inner.message, inner.where);
    }
    *out = with_ignored(r, cfg_rx(r->g, rx));
    return DI_OK;
}

static di_status read_either(struct reader *r, struct cfg_part **out);

/* One JSON value at r->at: its end is where brackets outside strings are closed. */
static di_status read_json(struct reader *r, struct cfg_part **out)
{
    size_t start, depth = 0;
    bool quoted = false;
    struct di_json *schema;
    space(r, true);
    start = r->at;
    do {
        int c = peek(r);
        if (c < 0)
            return fail(r, DI_ERR_INVALID, "a schema without an end");
        r->line += c == '\n';
        if (quoted && c == '\\')
            r->at++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted)
            depth += (c == '{' || c == '[') - (size_t)(c == '}' || c == ']');
        r->at++;
    } while (depth || quoted);
    di_status status = di_json_parse((struct di_str){r->s.p + start, r->at - start}, NULL, &r->g->arena, &schema, r->err);
    if (status != DI_OK)
        return status;
    struct cfg_part *p = cfg_part(r->g, CFG_JSON, NULL, 0);
    if (p)
        p->schema = schema;
    *out = with_ignored(r, p);
    return DI_OK;
}

static di_status read_item(struct reader *r, struct cfg_part **out)
{
    struct di_grammar *g = r->g;
    di_status status = DI_OK;
    bool maybe = false;
    if (skip(r, "\"")) {
        TRY(read_string(r, out));
    } else if (skip(r, "/")) {
        TRY(read_expression(r, out));
    } else if (skip(r, "(") || (maybe = skip(r, "["))) {
        TRY(read_either(r, out));
        space(r, true);
        if (!skip(r, maybe ? "]" : ")"))
            return fail(r, DI_ERR_INVALID, "a group without an end");
    } else if (skip(r, "%json")) {
        TRY(read_json(r, out));
    } else if (letter(peek(r))) {
        struct di_str name = read_name(r);
        uint32_t rule = cfg_rule_named(g, name, r->line);
        *out = cfg_part(g, CFG_RULE, NULL, 0);
        if (*out)
            (*out)->rule = rule;
        if (is_terminal(name))
            *out = with_ignored(r, *out);
        else if (r->in_terminal)
            return fail(r, DI_ERR_INVALID, "a terminal that uses a rule");
    } else if (peek(r) == '<') {
        return fail(r, DI_ERR_UNSUPPORTED, "a special token (<name>)");
    } else {
        return fail(r, DI_ERR_INVALID, "something where a string, expression, name or group was expected");
    }
    uint32_t min = 0, max = RX_MANY;
    bool repeated = true;
    if (maybe || skip(r, "?"))
        max = 1;
    else if (skip(r, "*"))
        ;
    else if (skip(r, "+"))
        min = 1;
    else if (skip(r, "~") || skip(r, "{")) {
        bool brace = r->s.p[r->at - 1] == '{';
        uint32_t n[2] = {0, 0};
        int i = 0;
        bool any[2] = {false, false};
        for (space(r, false); r->at < r->s.n; r->at++) {
            int c = peek(r);
            if (c >= '0' && c <= '9' && n[i] <= 100000) {
                n[i] = n[i] * 10 + (uint32_t)(c - '0');
                any[i] = true;
            } else if (i == 0 && brace && c == ',') {
                i = 1;
            } else if (i == 0 && !brace && skip(r, "..")) {
                i = 1;
                r->at--;
            } else {
                break;
            }
        }
        if ((!any[0] && !brace) || (brace && !skip(r, "}")) || (i && any[1] && n[1] < n[0]))
            return fail(r, DI_ERR_INVALID, "a repetition that is not ~n, ~n..m, {n}, {n,} or {n,m}");
        min = n[0];
        max = !i ? n[0] : any[1] ? n[1] : RX_MANY;
    } else
        repeated = false;
    if (repeated) {
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
    for (;;) {
        space(r, r->depth > 1); /* inside a group lines may break */
        int c = peek(r);
        if (c < 0 || c == '\n' || c == '|' || c == ')' || c == ']')
            break;
        if (skip(r, "->")) { /* a name for the tree, which nobody builds */
            space(r, false);
            read_name(r);
            continue;
        }
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
    if (++r->depth > 100)
        return fail(r, DI_ERR_LIMIT, "more than 100 groups inside each other");
    do {
        TRY(read_sequence(r, &p));
        if (!cfg_append(r->g, &list, p)) {
            status = fail(r, DI_ERR_MEMORY, "no memory left");
            goto out;
        }
    } while (next_alternative(r) && skip(r, "|"));
    *out = cfg_part(r->g, CFG_EITHER, list.parts, list.n);
    r->depth--;
out:
    di_free(list.parts);
    return status;
}

/* ---- statements ---- */

static const struct {
    const char *name, *expression;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+(?:[eE][+-]?[0-9]+)?|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:[eE][+-]?[0-9]+)?|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[_A-Za-z][_A-Za-z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

static di_status define(struct reader *r, struct di_str name, struct cfg_part *body)
{
    uint32_t rule = cfg_rule_named(r->g, name, r->line);
    di_status status = gr_health(r->g, r->err);
    if (status != DI_OK)
        return status;
    if (r->g->cfg->rules[rule].body)
        return fail(r, DI_ERR_INVALID, "a rule that is defined twice");
    r->g->cfg->rules[rule].body = body;
    r->g->cfg->rules[rule].line = r->line;
    return DI_OK;
}

static di_status import_one(struct reader *r, struct di_str name, struct di_str as)
{
    rx_id rx = RX_NONE;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (di_str_eqc(name, common[i].name)) {
            di_status status = rx_parse(&r->g->rx, di_str_c(common[i].expression), 0, &rx, r->err);
            return status == DI_OK ? define(r, as, cfg_rx(r->g, rx)) : status;
        }
    return fail(r, DI_ERR_UNSUPPORTED, "an import that is not in `common`");
}

static di_status read_import(struct reader *r)
{
    di_status status = DI_OK;
    space(r, false);
    if (!skip(r, "common"))
        return fail(r, DI_ERR_UNSUPPORTED, "an import of something other than `common`");
    space(r, false);
    if (skip(r, "(")) {
        do {
            space(r, true);
            struct di_str name = read_name(r);
            TRY(import_one(r, name, name));
            space(r, true);
        } while (skip(r, ","));
        return skip(r, ")") ? DI_OK : fail(r, DI_ERR_INVALID, "a list of imports without an end");
    }
    if (!skip(r, "."))
        return fail(r, DI_ERR_INVALID, "an import without a name");
    struct di_str name = read_name(r), as = name;
    space(r, false);
    if (skip(r, "->")) {
        space(r, false);
        as = read_name(r);
    }
    return import_one(r, name, as);
out:
    return status;
}

static di_status read_ignore(struct reader *r, struct cfg_part **any)
{
    struct cfg_part *p = NULL, *both[2];
    di_status status = DI_OK;
    space(r, false);
    r->in_terminal = true;
    r->depth = 0;
    TRY(read_either(r, &p));
    r->in_terminal = false;
    both[0] = *any;
    both[1] = p;
    *any = *any ? cfg_part(r->g, CFG_EITHER, both, 2) : p;
out:
    return status;
}

static di_status read_rule(struct reader *r)
{
    struct cfg_part *body = NULL;
    di_status status = DI_OK;
    while (peek(r) == '?' || peek(r) == '!')
        r->at++;
    struct di_str name = read_name(r);
    if (!name.n)
        return fail(r, DI_ERR_INVALID, "something where a rule or a terminal was expected");
    if (skip(r, "."))
        while ((peek(r) >= '0' && peek(r) <= '9') || peek(r) == '-')
            r->at++; /* a priority chooses between trees, never between texts */
    if (peek(r) == '[' || peek(r) == '{')
        return fail(r, DI_ERR_UNSUPPORTED, "a rule with attributes or parameters");
    space(r, false);
    if (!skip(r, ":"))
        return fail(r, DI_ERR_INVALID, "a name without a colon behind it");
    r->in_terminal = is_terminal(name);
    r->depth = 0;
    TRY(read_either(r, &body));
    r->in_terminal = false;
    space(r, false);
    if (peek(r) >= 0 && peek(r) != '\n')
        return fail(r, DI_ERR_INVALID, "something behind the end of a rule");
    return define(r, name, body);
out:
    return status;
}

di_status lark_read(struct di_grammar *g, struct di_str text, di_error *err)
{
    struct reader r = {.g = g, .s = text, .line = 1, .err = err};
    struct cfg_part *ignored = NULL, *start[2];
    di_status status = DI_OK;
    r.ignore = cfg_part(g, CFG_REPEAT, &(struct cfg_part *){NULL}, 1);
    if (!r.ignore)
        return gr_health(g, err);
    for (space(&r, true); r.at < text.n; space(&r, true)) {
        if (skip(&r, "%import"))
            TRY(read_import(&r));
        else if (skip(&r, "%ignore"))
            TRY(read_ignore(&r, &ignored));
        else if (skip(&r, "%llguidance")) /* options of its engine, in braces */
            while (peek(&r) >= 0 && peek(&r) != '\n')
                r.at++;
        else if (peek(&r) == '%')
            return fail(&r, DI_ERR_UNSUPPORTED, "a statement other than %import, %ignore and %json");
        else
            TRY(read_rule(&r));
    }
    r.ignore->parts[0] = ignored ? ignored : cfg_rx(g, RX_EMPTY);
    r.ignore->max = ignored ? RX_MANY : 0;
    start[0] = r.ignore;
    start[1] = cfg_part(g, CFG_RULE, NULL, 0);
    TRY(gr_health(g, err));
    start[1]->rule = cfg_rule_named(g, DI_STR("start"), 0);
    TRY(define(&r, DI_STR(" whole"), cfg_part(g, CFG_SEQUENCE, start, 2)));
    g->cfg->root = cfg_rule_named(g, DI_STR(" whole"), 0);
out:
    return status;
}
