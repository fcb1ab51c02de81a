#include "base/toml.h"

#include "base/utf8.h"

#include <stdio.h>

struct reader {
    const char *s;
    size_t n, i, line;
    const char *name;
    struct di_arena *arena;
    di_error *err;
};

static const char *place(struct reader *r, size_t line)
{
    char tail[32];
    int n = snprintf(tail, sizeof tail, ":%zu", line);
    size_t len = strlen(r->name);
    char *p = di_arena_alloc(r->arena, len + (size_t)n + 1);
    if (!p)
        return r->name;
    memcpy(p, r->name, len);
    memcpy(p + len, tail, (size_t)n + 1);
    return p;
}

static di_status bad(struct reader *r, const char *what)
{
    return di_fail(r->err, DI_ERR_FORMAT, place(r, r->line), "%s", what);
}

static di_status no_memory(struct reader *r)
{
    return di_fail(r->err, DI_ERR_MEMORY, r->name, "out of memory while reading the file");
}

static int peek(const struct reader *r)
{
    return r->i < r->n ? (unsigned char)r->s[r->i] : -1;
}

static bool take(struct reader *r, char c)
{
    if (peek(r) != (unsigned char)c)
        return false;
    r->i++;
    return true;
}

static void skip_blanks(struct reader *r)
{
    while (peek(r) == ' ' || peek(r) == '\t')
        r->i++;
}

/* At the end of a line (or file) after blanks and a comment? Steps over it. */
static bool skip_line_end(struct reader *r)
{
    skip_blanks(r);
    if (peek(r) == '#')
        while (r->i < r->n && peek(r) != '\n')
            r->i++;
    if (peek(r) == '\r' && r->i + 1 < r->n && r->s[r->i + 1] == '\n')
        r->i++;
    if (r->i >= r->n)
        return true;
    if (!take(r, '\n'))
        return false;
    r->line++;
    return true;
}

static bool is_bare(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static di_status read_bare(struct reader *r, const char **out, const char *expected)
{
    size_t start = r->i;
    while (is_bare(peek(r)))
        r->i++;
    if (r->i == start)
        return bad(r, expected);
    *out = di_arena_strndup(r->arena, r->s + start, r->i - start);
    return *out ? DI_OK : no_memory(r);
}

/* The hexadecimal digits of \uXXXX or \UXXXXXXXX. */
static di_status read_code_point(struct reader *r, int digits, char **o)
{
    uint32_t cp = 0;
    for (int k = 0; k < digits; k++) {
        int c = peek(r);
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return bad(r, "\\u needs 4 and \\U needs 8 hexadecimal digits");
        cp = cp << 4 | (uint32_t)d;
        r->i++;
    }
    if (cp == 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        return bad(r, "an escape in a string names no character that may stand there");
    *o += di_utf8_encode(cp, *o);
    return DI_OK;
}

static di_status read_string(struct reader *r, const char **out)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    char quote = r->s[r->i++];
    size_t start = r->i, end = start;
    while (end < r->n && r->s[end] != quote && r->s[end] != '\n')
        end += r->s[end] == '\\' && quote == '"' && end + 1 < r->n && r->s[end + 1] != '\n' ? 2 : 1;
    if (end >= r->n || r->s[end] != quote)
        return bad(r, "a string without its closing quote on the same line");
    char *buf = di_arena_alloc(r->arena, end - start + 1), *o = buf; /* no escape is shorter than what it stands for */
    if (!buf)
        return no_memory(r);
    while (r->i < end) {
        char c = r->s[r->i++];
        if (c == 0)
            return bad(r, "a string with a zero byte");
        if (c != '\\' || quote == '\'') {
            *o++ = c;
            continue;
        }
        c = r->s[r->i++];
        const char *hit = c ? strchr(from, c) : NULL;
        if (hit) {
            *o++ = to[hit - from];
        } else if (c == 'u' || c == 'U') {
            di_status status = read_code_point(r, c == 'u' ? 4 : 8, &o);
            if (status != DI_OK)
                return status;
        } else {
            return bad(r, "unknown escape in a string (a 'single-quoted' string keeps backslashes as they are)");
        }
    }
    *o = 0;
    r->i = end + 1;
    if (peek(r) == quote)
        return bad(r, "something follows a string (multi-line strings are not supported)");
    *out = buf;
    return DI_OK;
}

static di_status read_scalar(struct reader *r, struct di_toml_value *v)
{
    v->quoted = peek(r) == '"' || peek(r) == '\'';
    if (v->quoted)
        return read_string(r, &v->text);
    size_t start = r->i;
    while (is_bare(peek(r)) || peek(r) == '+' || peek(r) == '.')
        r->i++;
    if (r->i == start)
        return bad(r, "a value was expected: true, false, a number, a quoted string or an [array]");
    v->text = di_arena_strndup(r->arena, r->s + start, r->i - start);
    return v->text ? DI_OK : no_memory(r);
}

static di_status read_array(struct reader *r, struct di_toml_item *item)
{
    struct di_toml_value *values = NULL;
    size_t count = 0, cap = 0;
    r->i++;
    for (;;) {
        while (r->i < r->n && skip_line_end(r))
            ;
        if (r->i >= r->n)
            return bad(r, "the file ends inside an array");
        if (take(r, ']'))
            break;
        if (count == cap) {
            cap = cap ? cap * 2 : 8;
            struct di_toml_value *more = di_arena_alloc(r->arena, cap * sizeof *more);
            if (!more)
                return no_memory(r);
            if (count)
                memcpy(more, values, count * sizeof *more);
            values = more;
        }
        di_status status = read_scalar(r, &values[count]);
        if (status != DI_OK)
            return status;
        count++;
        while (r->i < r->n && skip_line_end(r))
            ;
        if (!take(r, ',') && peek(r) != ']')
            return bad(r, "',' or ']' was expected in an array");
    }
    item->values = values;
    item->count = count;
    item->is_array = true;
    return DI_OK;
}

static di_status read_item(struct reader *r, const char *section, di_toml_fn fn, void *ctx)
{
    struct di_toml_item item = {.section = section, .where = place(r, r->line), .count = 1};
    struct di_toml_value single;
    di_status status;
    TRY(read_bare(r, &item.key, "`name = value` or `[section]` was expected"));
    skip_blanks(r);
    if (!take(r, '='))
        return bad(r, "'=' was expected after a name");
    skip_blanks(r);
    if (peek(r) == '[') {
        TRY(read_array(r, &item));
    } else {
        TRY(read_scalar(r, &single));
        item.values = &single;
    }
    if (!skip_line_end(r))
        return bad(r, "something follows the value on the same line");
    status = fn(ctx, &item, r->err);
    if (status != DI_OK)
        di_error_at(r->err, item.where);
out:
    return status;
}

static di_status read_section(struct reader *r, const char **section)
{
    r->i++;
    skip_blanks(r);
    di_status status = read_bare(r, section, "a plain section name was expected after '['");
    if (status != DI_OK)
        return status;
    skip_blanks(r);
    if (!take(r, ']'))
        return bad(r, "']' was expected after a section name");
    return skip_line_end(r) ? DI_OK : bad(r, "something follows the section on the same line");
}

di_status di_toml_each(struct di_str text, const char *name, struct di_arena *arena, di_toml_fn fn, void *ctx, di_error *err)
{
    struct reader r = {.s = text.p, .n = text.n, .line = 1, .name = name, .arena = arena, .err = err};
    const char *section = "";
    di_status status = DI_OK;
    size_t at;
    if (!di_utf8_valid(text, &at)) {
        for (size_t k = 0; k < at; k++)
            r.line += text.p[k] == '\n';
        return bad(&r, "the text is not valid UTF-8");
    }
    if (di_str_starts(text, DI_STR("\xEF\xBB\xBF")))
        r.i = 3;
    while (status == DI_OK && r.i < r.n) {
        if (skip_line_end(&r))
            continue;
        status = peek(&r) == '[' ? read_section(&r, &section) : read_item(&r, section, fn, ctx);
    }
    return status;
}
