/* The syntax of ECMA-262 expressions, read straight into the algebra of rx.h.
 *
 * Anchors are characters: a text t is matched as ⊢t⊣ with two bytes that UTF-8 never has. An expression P that may be found anywhere is
 * (⊢ text)? P (text ⊣)?, one for the whole text ⊢? P ⊣?, where ^ is ⊢ and $ is ⊣. Then ⊢ is taken away by a derivative, ⊣ by its mirror
 * image (`without_end`), and where either is left it stood in the middle of a text, which never matches. */
#include "grammar/rx.h"
#include "base/utf8.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#define BEGIN 0xFE
#define END 0xFF
#define MAX_GROUPS 200
#define MAX_REPEAT 100000
#define MOST_RANGES 1000000 /* of all classes together: each takes a microsecond */

struct reader {
    struct rx_pool *p;
    struct di_str s;
    size_t at;
    unsigned syntax, depth;
    di_error *err;
};

struct class
{
    uint32_t *pairs;
    size_t n, cap;
    bool failed;
};

static void class_add(struct class *c, uint32_t first, uint32_t last)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 16;
        uint32_t *bigger = di_realloc(c->pairs, cap * 2 * sizeof *bigger);
        if (!bigger) {
            c->failed = true;
            return;
        }
        c->pairs = bigger;
        c->cap = cap;
    }
    c->pairs[2 * c->n] = first;
    c->pairs[2 * c->n++ + 1] = last;
}

static int by_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void class_invert(struct class *c)
{
    struct class out = {.failed = c->failed};
    uint32_t next = 0;
    if (c->n)
        qsort(c->pairs, c->n, 2 * sizeof *c->pairs, by_first);
    for (size_t i = 0; i < c->n; i++) {
        if (c->pairs[2 * i] > next)
            class_add(&out, next, c->pairs[2 * i] - 1);
        if (c->pairs[2 * i + 1] >= next)
            next = c->pairs[2 * i + 1] + 1;
    }
    if (next <= 0x10FFFF)
        class_add(&out, next, 0x10FFFF);
    di_free(c->pairs);
    *c = out;
}

/* The other cases of ASCII letters, and of others by their simple mappings. */
static void class_fold(struct class *c)
{
    size_t n = c->n;
    for (size_t i = 0; i < n; i++)
        for (uint32_t ch = c->pairs[2 * i]; ch <= c->pairs[2 * i + 1] && ch < 0x3000; ch++) {
            uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)ch), upper = (uint32_t)utf8proc_toupper((utf8proc_int32_t)ch);
            if (lower != ch)
                class_add(c, lower, lower);
            if (upper != ch)
                class_add(c, upper, upper);
        }
}

static di_status fail(struct reader *r, di_status code, size_t at, const char *what)
{
    char where[32];
    snprintf(where, sizeof where, "byte %zu", at);
    return di_fail(r->err, code, where, "the expression has %s", what);
}

static bool more(const struct reader *r)
{
    return r->at < r->s.n;
}

static int peek(const struct reader *r)
{
    return more(r) ? (unsigned char)r->s.p[r->at] : -1;
}

static bool skip(struct reader *r, const char *what)
{
    size_t n = strlen(what);
    if (r->s.n - r->at < n || memcmp(r->s.p + r->at, what, n) != 0)
        return false;
    r->at += n;
    return true;
}

static di_status next_char(struct reader *r, uint32_t *cp)
{
    size_t n = di_utf8_decode(r->s.p + r->at, r->s.n - r->at, cp, NULL);
    if (!n)
        return fail(r, DI_ERR_INVALID, r->at, "bytes that are no UTF-8");
    r->at += n;
    return DI_OK;
}

/* ---- escapes and classes ---- */

static const uint32_t digits[] = {'0', '9'}, words[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'},
                      spaces[] = {9,      13,     32,     32,     0xA0,   0xA0,   0x1680, 0x1680, 0x2000, 0x200A,
                                  0x2028, 0x2029, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF};
static const struct {
    char letter;
    const uint32_t *pairs;
    size_t n;
} shorthand[] = {{'d', digits, 1}, {'w', words, 4}, {'s', spaces, 10}};

static const struct {
    const char *name, *long_name;
    uint32_t categories; /* bits by utf8proc_category_t */
} categories[] = {
#define BIT(x) (1u << UTF8PROC_CATEGORY_##x)
    {"Lu", "Uppercase_Letter", BIT(LU)},
    {"Ll", "Lowercase_Letter", BIT(LL)},
    {"Lt", "Titlecase_Letter", BIT(LT)},
    {"LC", "Cased_Letter", BIT(LU) | BIT(LL) | BIT(LT)},
    {"Lm", "Modifier_Letter", BIT(LM)},
    {"Lo", "Other_Letter", BIT(LO)},
    {"L", "Letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"Mn", "Nonspacing_Mark", BIT(MN)},
    {"Mc", "Spacing_Mark", BIT(MC)},
    {"Me", "Enclosing_Mark", BIT(ME)},
    {"M", "Mark", BIT(MN) | BIT(MC) | BIT(ME)},
    {"Nd", "Decimal_Number", BIT(ND)},
    {"Nl", "Letter_Number", BIT(NL)},
    {"No", "Other_Number", BIT(NO)},
    {"N", "Number", BIT(ND) | BIT(NL) | BIT(NO)},
    {"Pc", "Connector_Punctuation", BIT(PC)},
    {"Pd", "Dash_Punctuation", BIT(PD)},
    {"Ps", "Open_Punctuation", BIT(PS)},
    {"Pe", "Close_Punctuation", BIT(PE)},
    {"Pi", "Initial_Punctuation", BIT(PI)},
    {"Pf", "Final_Punctuation", BIT(PF)},
    {"Po", "Other_Punctuation", BIT(PO)},
    {"P", "Punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"Sm", "Math_Symbol", BIT(SM)},
    {"Sc", "Currency_Symbol", BIT(SC)},
    {"Sk", "Modifier_Symbol", BIT(SK)},
    {"So", "Other_Symbol", BIT(SO)},
    {"S", "Symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
    {"Zs", "Space_Separator", BIT(ZS)},
    {"Zl", "Line_Separator", BIT(ZL)},
    {"Zp", "Paragraph_Separator", BIT(ZP)},
    {"Z", "Separator", BIT(ZS) | BIT(ZL) | BIT(ZP)},
    {"Cc", "Control", BIT(CC)},
    {"Cf", "Format", BIT(CF)},
    {"Co", "Private_Use", BIT(CO)},
    {"C", "Other", BIT(CC) | BIT(CF) | BIT(CO) | BIT(CN)},
    {"Cn", "Unassigned", BIT(CN)},
#undef BIT
};

/* Runs of code points of one category, in order; found once, as looking at all code points takes milliseconds. */
static struct {
    uint32_t first;
    uint8_t category;
} runs[8192]; /* Unicode 16 has about 4,000 */
static size_t n_runs;
static pthread_once_t runs_made = PTHREAD_ONCE_INIT;

static void make_runs(void)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        uint8_t category = (uint8_t)utf8proc_category((utf8proc_int32_t)cp);
        if ((!n_runs || runs[n_runs - 1].category != category) && n_runs < sizeof runs / sizeof *runs) {
            runs[n_runs].first = cp;
            runs[n_runs++].category = category;
        }
    }
}

/* Behind \p: {Name}, {gc=Name} or {General_Category=Name}; also Any and ASCII. */
static di_status read_category(struct reader *r, struct class *out)
{
    size_t start = r->at, end;
    if (!skip(r, "{") || (end = di_str_find(r->s, DI_STR("}"), r->at)) == SIZE_MAX)
        return fail(r, DI_ERR_INVALID, start, "\\p without a name in braces");
    struct di_str name = {r->s.p + r->at, end - r->at};
    r->at = end + 1;
    size_t eq = di_str_find(name, DI_STR("="), 0);
    if (eq != SIZE_MAX) {
        struct di_str key = {name.p, eq};
        if (!di_str_eqc(key, "gc") && !di_str_eqc(key, "General_Category"))
            return fail(r, DI_ERR_UNSUPPORTED, start, "a class of characters that is not a general category");
        name = (struct di_str){name.p + eq + 1, name.n - eq - 1};
    }
    if (di_str_eqc(name, "Any") || di_str_eqc(name, "ASCII")) {
        class_add(out, 0, name.n == 3 ? 0x10FFFF : 0x7F);
        return DI_OK;
    }
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        if (!di_str_eqc(name, categories[i].name) && !di_str_eqc(name, categories[i].long_name))
            continue;
        pthread_once(&runs_made, make_runs);
        for (size_t k = 0; k < n_runs; k++)
            if (categories[i].categories >> runs[k].category & 1)
                class_add(out, runs[k].first, k + 1 < n_runs ? runs[k + 1].first - 1 : 0x10FFFF);
        return DI_OK;
    }
    return fail(r, DI_ERR_UNSUPPORTED, start, "a class of characters that is not a general category");
}

static bool read_hex(struct reader *r, unsigned n, uint32_t *out)
{
    uint32_t v = 0;
    if (r->s.n - r->at < n)
        return false;
    for (unsigned i = 0; i < n; i++) {
        int c = (unsigned char)r->s.p[r->at + i], d = c >= '0' && c <= '9'                 ? c - '0'
                                                      : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                                                           : -1;
        if (d < 0)
            return false;
        v = v * 16 + (uint32_t)d;
    }
    r->at += n;
    *out = v;
    return true;
}

/* Behind a backslash: a character (*cp) or a class (then *cp is UINT32_MAX). */
static di_status read_escape(struct reader *r, bool in_class, struct class *out, uint32_t *cp)
{
    size_t start = r->at - 1;
    uint32_t low;
    if (!more(r))
        return fail(r, DI_ERR_INVALID, start, "a backslash at its end");
    int c = peek(r);
    *cp = UINT32_MAX;
    for (size_t i = 0; i < sizeof shorthand / sizeof *shorthand; i++)
        if ((c | 32) == shorthand[i].letter) {
            struct class one = {0};
            r->at++;
            for (size_t k = 0; k < shorthand[i].n; k++)
                class_add(&one, shorthand[i].pairs[2 * k], shorthand[i].pairs[2 * k + 1]);
            if (c < 'a')
                class_invert(&one);
            for (size_t k = 0; k < one.n; k++)
                class_add(out, one.pairs[2 * k], one.pairs[2 * k + 1]);
            di_free(one.pairs);
            return DI_OK;
        }
    if (c == 'p' || c == 'P') {
        struct class one = {0};
        r->at++;
        di_status status = read_category(r, &one);
        if (c == 'P' && status == DI_OK)
            class_invert(&one);
        for (size_t k = 0; k < one.n && status == DI_OK; k++)
            class_add(out, one.pairs[2 * k], one.pairs[2 * k + 1]);
        di_free(one.pairs);
        return status;
    }
    if (c == 'b' && in_class) {
        r->at++;
        *cp = 8;
        return DI_OK;
    }
    if (c == 'b' || c == 'B')
        return fail(r, DI_ERR_UNSUPPORTED, start, "a word boundary (\\b)");
    if ((c >= '1' && c <= '9') || c == 'k')
        return fail(r, DI_ERR_UNSUPPORTED, start, "a backreference");
    static const char from[] = "tnvfr0", to[] = "\t\n\v\f\r";
    const char *known = strchr(from, c);
    if (known && c) {
        r->at++;
        *cp = (unsigned char)to[known - from];
        return DI_OK;
    }
    if (c == 'c' && r->at + 1 < r->s.n && ((r->s.p[r->at + 1] | 32) >= 'a' && (r->s.p[r->at + 1] | 32) <= 'z')) {
        *cp = (uint32_t)r->s.p[r->at + 1] & 31;
        r->at += 2;
        return DI_OK;
    }
    if (c == 'x' || c == 'u') {
        size_t back = ++r->at;
        if (c == 'u' && skip(r, "{")) {
            uint32_t v = 0, digit;
            while (v <= 0x10FFFF && read_hex(r, 1, &digit))
                v = v * 16 + digit;
            if (v > 0x10FFFF || !skip(r, "}"))
                return fail(r, DI_ERR_INVALID, start, "\\u{ without a character");
            *cp = v;
            return DI_OK;
        }
        if (!read_hex(r, c == 'x' ? 2 : 4, cp)) { /* then it is the letter itself */
            r->at = back;
            *cp = (uint32_t)c;
            return DI_OK;
        }
        back = r->at;
        if (*cp >= 0xD800 && *cp < 0xDC00 && skip(r, "\\u") && read_hex(r, 4, &low) && low >= 0xDC00 && low < 0xE000)
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        else
            r->at = back;
        return DI_OK;
    }
    if (c == 'A' || c == 'Z') /* anchors of other dialects; in ECMA-262 letters, which nobody means */
        return fail(r, DI_ERR_UNSUPPORTED, start, "\\A or \\Z; ^ and $ are meant");
    return next_char(r, cp);
}

/* Behind [. */
static di_status read_class(struct reader *r, struct class *out)
{
    size_t start = r->at - 1;
    bool invert = skip(r, "^");
    di_status status = DI_OK;
    for (;;) {
        uint32_t first, last;
        CHECK(more(r), r->err, DI_ERR_INVALID, "", "the expression has a class without an end (byte %zu)", start);
        if (skip(r, "]"))
            break;
        if (skip(r, "\\"))
            TRY(read_escape(r, true, out, &first));
        else
            TRY(next_char(r, &first));
        if (first == UINT32_MAX)
            continue; /* a class in the class; a dash behind it is a dash */
        if (peek(r) == '-' && r->at + 1 < r->s.n && r->s.p[r->at + 1] != ']') {
            size_t back = r->at++;
            if (skip(r, "\\"))
                TRY(read_escape(r, true, out, &last));
            else
                TRY(next_char(r, &last));
            if (last == UINT32_MAX) { /* "a-\d": three things */
                class_add(out, first, first);
                class_add(out, '-', '-');
                continue;
            }
            if (last < first) {
                status = fail(r, DI_ERR_INVALID, back, "a range whose end is before its beginning");
                goto out;
            }
            class_add(out, first, last);
            continue;
        }
        class_add(out, first, first);
    }
    if (r->syntax & RX_IGNORE_CASE)
        class_fold(out);
    if (invert)
        class_invert(out);
out:
    return status;
}

static rx_id class_expression(struct reader *r, struct class *c)
{
    r->p->ranges += c->n;
    if (r->p->ranges > MOST_RANGES)
        r->p->over_limit = true;
    rx_id id = rx_failed(r->p) ? RX_NONE : rx_ranges(r->p, c->pairs, c->n);
    if (c->failed)
        r->p->out_of_memory = true;
    di_free(c->pairs);
    return id;
}

/* ---- expressions ---- */

/* A growing list of expressions; most are short. */
struct parts {
    rx_id few[64], *v;
    size_t n, cap;
};

static void parts_init(struct parts *p)
{
    p->v = p->few;
    p->n = 0;
    p->cap = sizeof p->few / sizeof *p->few;
}

static void parts_fini(struct parts *p)
{
    if (p->v != p->few)
        di_free(p->v);
}

static di_status parts_add(struct reader *r, struct parts *p, rx_id id)
{
    if (p->n == p->cap) {
        rx_id *bigger = di_malloc(p->cap * 2 * sizeof *bigger);
        if (!bigger)
            return di_fail(r->err, DI_ERR_MEMORY, "", "out of memory for an expression");
        memcpy(bigger, p->v, p->n * sizeof *p->v);
        parts_fini(p);
        p->v = bigger;
        p->cap *= 2;
    }
    p->v[p->n++] = id;
    return DI_OK;
}

static di_status read_any(struct reader *r, rx_id *out);

static di_status read_atom(struct reader *r, rx_id *out)
{
    struct class c = {0};
    size_t start = r->at;
    uint32_t cp;
    di_status status = DI_OK;
    if (skip(r, "^")) {
        *out = rx_byte(r->p, BEGIN);
    } else if (skip(r, "$")) {
        *out = rx_byte(r->p, END);
    } else if (skip(r, "(")) {
        unsigned syntax = r->syntax;
        if (skip(r, "?")) {
            bool off = false;
            if (skip(r, "=") || skip(r, "!"))
                return fail(r, DI_ERR_UNSUPPORTED, start, "a lookahead");
            if (skip(r, "<=") || skip(r, "<!"))
                return fail(r, DI_ERR_UNSUPPORTED, start, "a lookbehind");
            if (skip(r, "<") || skip(r, "P<")) {
                while (more(r) && peek(r) != '>')
                    r->at++;
                if (!skip(r, ">"))
                    return fail(r, DI_ERR_INVALID, start, "a group whose name has no end");
            } else {
                while (more(r) && peek(r) != ':' && peek(r) != ')') {
                    int flag = peek(r);
                    r->at++;
                    unsigned bit = flag == 'i' ? RX_IGNORE_CASE : flag == 's' ? RX_DOT_ALL : 0;
                    if (flag == '-')
                        off = true;
                    else if (!bit)
                        return fail(r, DI_ERR_UNSUPPORTED, start, "a kind of group that is not known here");
                    r->syntax = off ? r->syntax & ~bit : r->syntax | bit;
                }
                if (skip(r, ")")) { /* for what follows in this group */
                    *out = RX_EMPTY;
                    return DI_OK;
                }
                if (!skip(r, ":"))
                    return fail(r, DI_ERR_INVALID, start, "a group without an end");
            }
        }
        TRY(read_any(r, out));
        r->syntax = syntax;
        if (!skip(r, ")"))
            return fail(r, DI_ERR_INVALID, start, "a group without an end");
    } else if (skip(r, "[")) {
        status = read_class(r, &c);
        rx_id id = class_expression(r, &c);
        *out = id;
    } else if (skip(r, ".")) {
        static const uint32_t breaks[] = {10, 10, 13, 13, 0x2028, 0x2029};
        for (size_t i = 0; i < 3; i++)
            class_add(&c, breaks[2 * i], breaks[2 * i + 1]);
        class_invert(&c);
        rx_id id = class_expression(r, &c);
        *out = r->syntax & RX_DOT_ALL ? r->p->any_char : id;
    } else if (peek(r) == '*' || peek(r) == '+' || peek(r) == '?') {
        return fail(r, DI_ERR_INVALID, start, "a repetition of nothing");
    } else {
        if (skip(r, "\\"))
            status = read_escape(r, false, &c, &cp);
        else
            status = next_char(r, &cp);
        if (status == DI_OK && cp != UINT32_MAX)
            class_add(&c, cp, cp);
        if (r->syntax & RX_IGNORE_CASE)
            class_fold(&c);
        *out = class_expression(r, &c);
    }
out:
    return status;
}

/* {n}, {n,} or {n,m}; anything else after a brace is text. */
static bool read_counts(struct reader *r, uint32_t *min, uint32_t *max)
{
    size_t back = r->at;
    uint32_t n[2] = {0, 0};
    bool have[2] = {false, false}, comma = false;
    if (!skip(r, "{"))
        return false;
    for (; more(r) && peek(r) != '}'; r->at++) {
        int c = peek(r);
        if (c == ',' && !comma && have[0]) {
            comma = true;
        } else if (c >= '0' && c <= '9') {
            have[comma] = true;
            n[comma] = n[comma] > MAX_REPEAT ? n[comma] : n[comma] * 10 + (uint32_t)(c - '0');
        } else {
            break;
        }
    }
    if (!have[0] || !skip(r, "}")) {
        r->at = back;
        return false;
    }
    *min = n[0];
    *max = !comma ? n[0] : have[1] ? n[1] : RX_MANY;
    return true;
}

static di_status read_repeated(struct reader *r, rx_id *out)
{
    size_t start = r->at;
    uint32_t min, max;
    di_status status = read_atom(r, out);
    if (status != DI_OK)
        return status;
    for (int times = 0;; times++) {
        size_t at = r->at;
        if (skip(r, "*"))
            min = 0, max = RX_MANY;
        else if (skip(r, "+"))
            min = 1, max = RX_MANY;
        else if (skip(r, "?"))
            min = 0, max = 1;
        else if (!read_counts(r, &min, &max))
            return DI_OK;
        if (times)
            return fail(r, DI_ERR_INVALID, at, "a repetition of a repetition");
        if (max != RX_MANY && max < min)
            return fail(r, DI_ERR_INVALID, at, "a repetition whose limits are the wrong way round");
        if (min > MAX_REPEAT || (max != RX_MANY && max > MAX_REPEAT))
            return fail(r, DI_ERR_LIMIT, start, "a repetition of more than 100,000 times");
        *out = rx_rep(r->p, *out, min, max);
        skip(r, "?"); /* lazy: the same texts */
    }
}

static di_status read_sequence(struct reader *r, rx_id *out)
{
    struct parts parts;
    di_status status = DI_OK;
    rx_id part;
    parts_init(&parts);
    while (more(r) && peek(r) != '|' && peek(r) != ')') {
        TRY(read_repeated(r, &part));
        TRY(parts_add(r, &parts, part));
    }
    *out = RX_EMPTY;
    while (parts.n > 0)
        *out = rx_cat(r->p, parts.v[--parts.n], *out);
out:
    parts_fini(&parts);
    return status;
}

static di_status read_any(struct reader *r, rx_id *out)
{
    struct parts parts;
    di_status status = DI_OK;
    rx_id part;
    parts_init(&parts);
    if (++r->depth > MAX_GROUPS)
        return fail(r, DI_ERR_LIMIT, r->at, "more than 200 groups inside each other");
    do {
        TRY(read_sequence(r, &part));
        TRY(parts_add(r, &parts, part));
    } while (skip(r, "|"));
    *out = parts.n == 1 ? part : rx_any_of(r->p, parts.v, parts.n); /* all at once: a list for every prefix would be quadratic */
    r->depth--;
out:
    parts_fini(&parts);
    return status;
}

/* ---- anchors ---- */

/* One of what `part` makes of the members of an OR node. */
static rx_id each_of(struct rx_pool *p, const struct rx_node *n, rx_id (*part)(struct rx_pool *p, rx_id a))
{
    rx_id *list = di_malloc(n->b * sizeof *list), out = RX_NONE;
    if (!list) {
        p->out_of_memory = true;
        return RX_NONE;
    }
    for (uint32_t i = 0; i < n->b; i++)
        list[i] = part(p, p->lists[n->a + i]);
    out = rx_any_of(p, list, n->b);
    di_free(list);
    return out;
}

/* a without the two sentinels: what matches inside a text. */
static rx_id inside(struct rx_pool *p, rx_id a)
{
    struct rx_node n = p->nodes[a];
    rx_id out = RX_NONE;
    struct byte_set s;
    if (rx_failed(p) || ++p->depth > 2000) {
        p->over_limit = true;
        return RX_NONE;
    }
    switch (n.op) {
    case OP_BYTES:
        s = p->sets[n.a];
        s.w[3] &= ~((uint64_t)3 << 62);
        out = rx_set(p, &s);
        break;
    case OP_CAT: {
        rx_id left = inside(p, n.a);
        out = left == RX_NONE ? RX_NONE : rx_cat(p, left, inside(p, n.b));
        break;
    }
    case OP_REP: out = rx_rep(p, inside(p, n.a), n.min, n.max); break;
    case OP_OR: out = each_of(p, &n, inside); break;
    default: out = a;
    }
    p->depth--;
    return out;
}

/* { t : t END matches a }, without sentinels in t. */
static rx_id without_end(struct rx_pool *p, rx_id a)
{
    struct rx_node n = p->nodes[a];
    rx_id out = RX_NONE;
    if (rx_failed(p) || ++p->depth > 2000) {
        p->over_limit = true;
        return RX_NONE;
    }
    switch (n.op) {
    case OP_BYTES: out = set_has(p->sets + n.a, END) ? RX_EMPTY : RX_NONE; break;
    case OP_CAT:
        out = rx_cat(p, inside(p, n.a), without_end(p, n.b));
        if (p->nodes[n.b].nullable)
            out = rx_or(p, out, without_end(p, n.a));
        break;
    case OP_REP: {
        rx_id before = rx_rep(p, inside(p, n.a), p->nodes[n.a].nullable || !n.min ? 0 : n.min - 1, n.max == RX_MANY ? RX_MANY : n.max - 1);
        out = rx_cat(p, before, without_end(p, n.a));
        break;
    }
    case OP_OR: out = each_of(p, &n, without_end); break;
    default: break;
    }
    p->depth--;
    return out;
}

di_status rx_parse(struct rx_pool *p, struct di_str text, unsigned syntax, rx_id *out, di_error *err)
{
    struct reader r = {.p = p, .s = text, .syntax = syntax, .err = err};
    rx_id id;
    p->depth = 0;
    di_status status = read_any(&r, &id);
    if (status == DI_OK && more(&r))
        status = fail(&r, DI_ERR_INVALID, r.at, "a closing parenthesis without an opening one");
    if (status != DI_OK)
        return status;
    rx_id begin = rx_byte(p, BEGIN), end = rx_byte(p, END), text_or_not = syntax & RX_SEARCH ? p->any_text : RX_EMPTY;
    id = rx_cat(p, rx_rep(p, rx_cat(p, begin, text_or_not), 0, 1), rx_cat(p, id, rx_rep(p, rx_cat(p, text_or_not, end), 0, 1)));
    p->depth = 0;
    id = rx_derive(p, id, BEGIN);
    p->depth = 0;
    *out = without_end(p, id);
    if (p->out_of_memory)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for an expression");
    return p->over_limit
               ? di_fail(err, DI_ERR_LIMIT, "", "the expression needs more than the limit of regex_nodes (or is nested too deeply)")
               : DI_OK;
}
