#include "base/options.h"

#include "base/assert.h"
#include "base/file.h"
#include "base/json.h"
#include "base/toml.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CONFIG_LIMIT ((size_t)1 << 20)
#define HELP_WIDTH 100
#define HELP_COLUMN 28
#define MAX_OPTIONS 128 /* of one command, those of included tables and the common ones among them */

/* Every subcommand has these. They are no fields of its struct. */
static const struct di_option common[] = {
    {.name = "config",
     .type = DI_OPT_STRING,
     .metavar = "FILE",
     .help = "Read options from this file: `name = value` lines, [subcommand] sections. Flags win."},
    {.name = "print-config", .type = DI_OPT_BOOL, .help = "Print the effective options in the format of --config and stop."},
    {.name = "help", .type = DI_OPT_BOOL, .help = "Print this text and stop."},
};
#define N_COMMON (sizeof common / sizeof *common)

enum source { FROM_DEFAULT, FROM_FILE, FROM_SECTION, FROM_FLAG };

/* The options of a command: its own, tables and presets resolved, then the common ones. */
struct option_list {
    const struct di_command *cmd;
    size_t n_own, n;
    struct di_option at[MAX_OPTIONS];
};

struct loader {
    const struct option_list *options;
    const struct di_args *args;
    struct di_arena *arena;
    char *out;
    unsigned char *source; /* enum source of each option's value */
    di_error *err;
};

static size_t find_option(const struct option_list *l, struct di_str name)
{
    for (size_t i = 0; i < l->n_own; i++)
        if (di_str_eqc(name, l->at[i].name))
            return i;
    return SIZE_MAX;
}

static void add_options(struct option_list *l, const struct di_option *rows, size_t n, size_t offset)
{
    for (const struct di_option *o = rows; o < rows + n; o++) {
        if (o->type == DI_OPT_TABLE) {
            add_options(l, o->table->rows, o->table->n, offset + o->offset);
        } else if (o->type == DI_OPT_PRESET) {
            size_t i = find_option(l, di_str_c(o->name));
            DI_ASSERT(i < l->n_own);
            l->at[i].def = o->def;
        } else {
            DI_ASSERT(l->n_own < MAX_OPTIONS);
            l->at[l->n_own] = *o;
            l->at[l->n_own++].offset += offset;
        }
    }
}

static void list_options(const struct di_command *cmd, struct option_list *l)
{
    l->cmd = cmd;
    l->n_own = 0;
    add_options(l, cmd->options, cmd->n_options, 0);
    l->n = l->n_own + N_COMMON;
    DI_ASSERT(l->n <= MAX_OPTIONS);
    memcpy(l->at + l->n_own, common, sizeof common);
}

/* Optimal string alignment distance (insert, delete, replace, swap of neighbours); words of 64 bytes and more are far from everything. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), d[3][64];
    if (n >= 64 || m >= 64)
        return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return d[n % 3][m];
}

const char *di_nearest(const char *word, const char *const *candidates, size_t n)
{
    size_t len = strlen(word), best = len / 3 + 1; /* a third of the letters may be wrong, in short words one */
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, candidates[i]);
        if (d <= best && d < len && (d < best || !found)) {
            best = d;
            found = candidates[i];
        }
    }
    return found;
}

/* `prefix` is "--" for flags and "" in a file. */
static di_status unknown(const struct loader *ld, const struct option_list *l, const char *prefix, struct di_str name)
{
    char word[64];
    const char *names[MAX_OPTIONS], *near = NULL;
    for (size_t i = 0; i < l->n; i++)
        names[i] = l->at[i].name;
    snprintf(word, sizeof word, "%.*s", (int)(name.n > 63 ? 63 : name.n), name.p);
    near = di_nearest(word, names, l->n);
    const char *kind = *prefix ? "there is no flag" : "there is no option";
    if (near)
        return di_fail(ld->err, DI_ERR_INVALID, "", "%s %s%s of `%s`; did you mean %s%s?", kind, prefix, word, l->cmd->name, prefix, near);
    return di_fail(ld->err, DI_ERR_INVALID, "", "%s %s%s of `%s`", kind, prefix, word, l->cmd->name);
}

static bool has_range(const struct di_option *o)
{
    return o->min != 0 || o->max != 0;
}

/* " between 0 and 2", " of at least 1" or "". Limits beyond 1e15 stand for none, or for the largest whole number. */
static void range_text(const struct di_option *o, char *s, size_t cap)
{
    s[0] = 0;
    if (!has_range(o))
        return;
    if (o->max > 1e15 && o->type == DI_OPT_INT)
        snprintf(s, cap, " of at least %.15g and at most %lld", o->min, (long long)INT64_MAX);
    else if (o->max > 1e15)
        snprintf(s, cap, " of at least %.15g", o->min);
    else if (o->min < -1e15)
        snprintf(s, cap, " of at most %.15g", o->max);
    else
        snprintf(s, cap, " between %.15g and %.15g", o->min, o->max);
}

static bool parse_int(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || digits[strspn(digits, "0123456789")])
        return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0 && *out != INT64_MIN; /* that one means "absent" */
}

/* Decimal only: strtod alone would also read hexadecimal, "nan" and "infinity". */
static bool parse_double(const char *text, double *out)
{
    char *end;
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return false;
    *out = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*out);
}

static bool in_choices(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *c = choices; *c;) {
        size_t len = strcspn(c, "|");
        if (len == n && memcmp(c, word, n) == 0)
            return true;
        c += len + (c[len] == '|');
    }
    return false;
}

static di_status add_to_list(const struct loader *ld, struct di_str_list *list, const char *text)
{
    size_t n = list->count;
    if ((n & (n - 1)) == 0) { /* full whenever the count is a power of two, or 0 */
        const char **more = di_arena_alloc(ld->arena, (n ? 2 * n : 1) * sizeof *more);
        if (!more)
            return di_fail(ld->err, DI_ERR_MEMORY, "", "out of memory while reading options");
        if (n)
            memcpy(more, list->items, n * sizeof *more);
        list->items = more;
    }
    list->items[list->count++] = text;
    return DI_OK;
}

/* Check `text` and store it at `field`. `prefix` as in unknown(). */
static di_status set_value(const struct loader *ld, const struct di_option *o, void *field, const char *text, const char *prefix)
{
    char range[80];
    range_text(o, range, sizeof range);
    switch (o->type) {
    case DI_OPT_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return di_fail(ld->err, DI_ERR_INVALID, "", "%s%s must be true or false, not \"%.60s\"", prefix, o->name, text);
        *(bool *)field = text[0] == 't';
        return DI_OK;
    case DI_OPT_INT: {
        int64_t x;
        if (!parse_int(text, &x) || (has_range(o) && ((double)x < o->min || (double)x > o->max)))
            return di_fail(ld->err, DI_ERR_INVALID, "", "%s%s must be a whole number%s, not \"%.60s\"", prefix, o->name, range, text);
        *(int64_t *)field = x;
        return DI_OK;
    }
    case DI_OPT_DOUBLE: {
        double x;
        if (!parse_double(text, &x) || (has_range(o) && (x < o->min || x > o->max)))
            return di_fail(ld->err, DI_ERR_INVALID, "", "%s%s must be a number%s, not \"%.60s\"", prefix, o->name, range, text);
        *(double *)field = x;
        return DI_OK;
    }
    case DI_OPT_CHOICE:
        if (!in_choices(o->choices, text))
            return di_fail(ld->err, DI_ERR_INVALID, "", "%s%s must be one of %s, not \"%.60s\"", prefix, o->name, o->choices, text);
        *(const char **)field = text;
        return DI_OK;
    case DI_OPT_STRING: *(const char **)field = text; return DI_OK;
    case DI_OPT_LIST: return add_to_list(ld, field, text);
    case DI_OPT_TABLE:
    case DI_OPT_PRESET: break;
    }
    return di_fail(ld->err, DI_ERR_INTERNAL, "", "option %s has an unknown type", o->name);
}

static di_status set_defaults(const struct loader *ld)
{
    memset(ld->out, 0, ld->options->cmd->options_size);
    for (size_t i = 0; i < ld->options->n_own; i++) {
        const struct di_option *o = &ld->options->at[i];
        void *field = ld->out + o->offset;
        if (o->type == DI_OPT_INT)
            *(int64_t *)field = INT64_MIN;
        if (o->type == DI_OPT_DOUBLE)
            *(double *)field = (double)NAN;
        di_status status = o->def ? set_value(ld, o, field, o->def, "--") : DI_OK;
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* The first value of a new source replaces what a weaker source collected. */
static void begin_list(const struct loader *ld, size_t i, enum source source)
{
    if (ld->options->at[i].type == DI_OPT_LIST && ld->source[i] != source)
        *(struct di_str_list *)(ld->out + ld->options->at[i].offset) = (struct di_str_list){0};
    ld->source[i] = (unsigned char)source;
}

/* ---- configuration file ---- */

/* The command that an item addresses: by its section or, above the sections, ours if it has the name, else any that has it. */
static bool has_item(const struct option_list *l, const struct di_toml_item *item)
{
    return item->section[0] ? strcmp(item->section, l->cmd->name) == 0 : find_option(l, di_str_c(item->key)) != SIZE_MAX;
}

static di_status find_addressee(const struct loader *ld, const struct di_toml_item *item, struct option_list *out)
{
    const char *names[64];
    size_t n = 0;
    *out = *ld->options;
    if (has_item(out, item))
        return DI_OK;
    for (size_t i = 0; i < ld->args->n_commands && n < 64; i++) {
        list_options(ld->args->commands[i], out);
        names[n++] = out->cmd->name;
        if (has_item(out, item))
            return DI_OK;
    }
    if (!item->section[0] || ld->args->n_commands == 0)
        return item->section[0] ? di_fail(ld->err, DI_ERR_INVALID, "", "there is no section [%.60s]", item->section)
                                : unknown(ld, ld->options, "", di_str_c(item->key));
    const char *near = di_nearest(item->section, names, n);
    return di_fail(ld->err, DI_ERR_INVALID, "", near ? "there is no section [%.60s]; did you mean [%s]?" : "there is no section [%.60s]",
                   item->section, near);
}

static di_status from_file(void *ctx, const struct di_toml_item *item, di_error *err)
{
    const struct loader *ld = ctx;
    struct option_list whose;
    di_status status;
    TRY(find_addressee(ld, item, &whose));
    size_t i = find_option(&whose, di_str_c(item->key));
    if (i == SIZE_MAX)
        return unknown(ld, &whose, "", di_str_c(item->key));
    const struct di_option *o = &whose.at[i];
    bool text = o->type == DI_OPT_STRING || o->type == DI_OPT_CHOICE || o->type == DI_OPT_LIST;
    CHECK(!item->is_array || o->type == DI_OPT_LIST, err, DI_ERR_INVALID, "", "%s takes one value, not an array", o->name);
    for (size_t k = 0; k < item->count; k++)
        CHECK(item->values[k].quoted == text, err, DI_ERR_INVALID, "", "%s needs %s", o->name,
              text ? "a \"quoted\" value" : "a value without quotes");
    if (whose.cmd != ld->options->cmd)
        return DI_OK;
    enum source source = item->section[0] ? FROM_SECTION : FROM_FILE;
    CHECK(ld->source[i] != source, err, DI_ERR_INVALID, "", "%s is given twice", o->name);
    begin_list(ld, i, source);
    for (size_t k = 0; k < item->count; k++)
        TRY(set_value(ld, o, ld->out + o->offset, item->values[k].text, ""));
out:
    return status;
}

static di_status read_file(struct loader *ld, const char *path)
{
    struct di_buf text = {0};
    di_status status;
    TRY(di_file_read(path, CONFIG_LIMIT, &text, ld->err));
    TRY(di_toml_each(di_buf_str(&text), path, ld->arena, from_file, ld, ld->err));
out:
    di_buf_fini(&text);
    return status;
}

/* ---- flags ---- */

struct flag {
    size_t index; /* in the list */
    const struct di_option *option;
    const char *value;
};

static bool known_flag(const struct option_list *l, const char *word)
{
    struct di_str name = {word + 2, strcspn(word + 2, "=")};
    for (size_t i = 0; i < l->n; i++)
        if (di_str_eqc(name, l->at[i].name))
            return true;
    return false;
}

static di_status find_flag(const struct loader *ld, struct di_str name, struct flag *f, bool *negated)
{
    const struct option_list *l = ld->options;
    struct di_str bare = name;
    *negated = false;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < l->n; i++) {
            const struct di_option *o = &l->at[i];
            if (di_str_eqc(bare, o->name) && (pass == 0 || (i < l->n_own && o->type == DI_OPT_BOOL))) {
                f->index = i;
                f->option = o;
                *negated = pass == 1;
                return DI_OK;
            }
        }
        if (!di_str_starts(name, DI_STR("no-")))
            break;
        bare = (struct di_str){name.p + 3, name.n - 3};
    }
    return unknown(ld, l, "--", name);
}

/* Read the flag at args[*i] with its value and step over both. */
static di_status next_flag(const struct loader *ld, int *i, struct flag *f)
{
    const char *word = ld->args->argv[(*i)++];
    bool negated;
    di_status status;
    const char *positional = ld->options->cmd->word;
    if (*i == 1 && positional && word[0] != '-') {
        f->value = word;
        return find_flag(ld, di_str_c(positional), f, &negated);
    }
    if (strcmp(word, "-h") == 0)
        word = "--help";
    CHECK(word[0] == '-' && word[1] == '-' && word[2], ld->err, DI_ERR_INVALID, "", "\"%.60s\" stands where a flag (--name) was expected",
          word);
    const char *equals = strchr(word, '=');
    struct di_str name = {word + 2, equals ? (size_t)(equals - word) - 2 : strlen(word + 2)};
    TRY(find_flag(ld, name, f, &negated));
    f->value = equals ? equals + 1 : NULL;
    if (f->option->type == DI_OPT_BOOL) {
        CHECK(!equals || (!negated && f->index < ld->options->n_own), ld->err, DI_ERR_INVALID, "", "--%.*s takes no value", (int)name.n,
              name.p);
        if (!equals)
            f->value = negated ? "false" : "true";
    } else if (!equals) {
        const char *next = *i < ld->args->argc ? ld->args->argv[*i] : NULL;
        CHECK(next, ld->err, DI_ERR_INVALID, "", "--%s needs a value", f->option->name);
        CHECK(next[0] != '-' || next[1] != '-' || !known_flag(ld->options, next), ld->err, DI_ERR_INVALID, "",
              "--%s needs a value, but the flag %.60s follows (write --%s=%.60s if that is the value)", f->option->name, next,
              f->option->name, next);
        f->value = next;
        (*i)++;
    }
out:
    return status;
}

static bool is_common(const struct loader *ld, const struct flag *f, const char *name)
{
    return f->index >= ld->options->n_own && strcmp(f->option->name, name) == 0;
}

/* First pass: do all flags exist, is there a file, is something special asked for? */
static di_status scan_flags(const struct loader *ld, const char **config, char *special)
{
    struct flag f = {0};
    for (int i = 0; i < ld->args->argc;) {
        di_status status = next_flag(ld, &i, &f);
        if (status != DI_OK)
            return status;
        if (is_common(ld, &f, "config"))
            *config = f.value;
        if (is_common(ld, &f, "print-config"))
            *special = 'p';
        if (is_common(ld, &f, "help")) {
            *special = 'h';
            return DI_OK;
        }
    }
    return DI_OK;
}

static di_status apply_flags(const struct loader *ld)
{
    struct flag f = {0};
    for (int i = 0; i < ld->args->argc;) {
        di_status status = next_flag(ld, &i, &f);
        if (status != DI_OK)
            return status;
        if (f.index >= ld->options->n_own)
            continue;
        begin_list(ld, f.index, FROM_FLAG);
        status = set_value(ld, f.option, ld->out + f.option->offset, f.value, "--");
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

di_status di_options_parse(const struct di_command *cmd, const struct di_args *args, struct di_arena *arena, void *out, char *special,
                           di_error *err)
{
    struct option_list options;
    struct loader ld = {.options = &options, .args = args, .arena = arena, .out = out, .err = err};
    const char *config = NULL;
    di_status status;
    *special = 0;
    list_options(cmd, &options);
    ld.source = di_arena_alloc(arena, options.n_own + 1);
    CHECK(ld.source, err, DI_ERR_MEMORY, "", "out of memory while reading options");
    memset(ld.source, FROM_DEFAULT, options.n_own + 1);
    TRY(set_defaults(&ld));
    TRY(scan_flags(&ld, &config, special));
    if (*special == 'h')
        goto out;
    if (config)
        TRY(read_file(&ld, config));
    TRY(apply_flags(&ld));
    for (size_t i = 0; i < options.n_own && !*special; i++) {
        const struct di_option *o = &options.at[i];
        CHECK(!o->required || ld.source[i] != FROM_DEFAULT, err, DI_ERR_INVALID, "", "--%s %s is required", o->name,
              o->metavar ? o->metavar : "VALUE");
    }
out:
    return status;
}

/* ---- printing ---- */

/* Append words of `text` from column `at`, wrapped at HELP_WIDTH and indented by `indent`; returns the column reached. */
static size_t wrap(struct di_buf *b, const char *text, size_t at, size_t indent)
{
    bool first = true;
    for (const char *p = text; *p;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, " "), width = di_utf8_count((struct di_str){p, n});
        if (!first && at + 1 + width > HELP_WIDTH) {
            di_buf_addf(b, "\n%*s", (int)indent, "");
            at = indent;
        } else if (!first) {
            di_buf_addc(b, ' ');
            at++;
        }
        di_buf_add(b, p, n);
        at += width;
        first = false;
        p += n;
    }
    return at;
}

static const char *metavar_of(const struct di_option *o)
{
    static const char *const by_type[] = {
        [DI_OPT_INT] = "N", [DI_OPT_DOUBLE] = "X", [DI_OPT_STRING] = "TEXT", [DI_OPT_LIST] = "TEXT", [DI_OPT_CHOICE] = "WORD",
    };
    return o->metavar ? o->metavar : o->type == DI_OPT_CHOICE ? o->choices : by_type[o->type];
}

static void help_option(struct di_buf *b, const struct di_option *o)
{
    struct di_buf text = {0};
    char range[80];
    size_t start = b->n;
    if (o->type == DI_OPT_BOOL)
        di_buf_addf(b, o->def && strcmp(o->def, "true") == 0 ? "  --[no-]%s" : "  --%s", o->name);
    else
        di_buf_addf(b, "  --%s %s", o->name, metavar_of(o));
    size_t label = b->n - start;
    if (label + 2 > HELP_COLUMN)
        di_buf_addf(b, "\n%*s", HELP_COLUMN, "");
    else
        di_buf_addf(b, "%*s", (int)(HELP_COLUMN - label), "");

    range_text(o, range, sizeof range);
    di_buf_adds(&text, o->help ? o->help : "");
    if (o->type == DI_OPT_CHOICE && o->metavar)
        di_buf_addf(&text, " One of %s.", o->choices);
    if (range[0])
        di_buf_addf(&text, " A%s number%s.", o->type == DI_OPT_INT ? " whole" : "", range);
    if (o->type == DI_OPT_LIST)
        di_buf_adds(&text, " May be given several times.");
    if (o->required)
        di_buf_adds(&text, " Required.");
    if (o->def && strcmp(o->def, "false") != 0)
        di_buf_addf(&text, " Default: %s.", o->def);
    if (text.n)
        wrap(b, text.p, HELP_COLUMN, HELP_COLUMN);
    di_buf_addc(b, '\n');
    b->failed = b->failed || text.failed;
    di_buf_fini(&text);
}

void di_options_help(struct di_buf *b, const struct di_command *cmd)
{
    struct di_buf usage = {0};
    struct option_list options;
    list_options(cmd, &options);
    di_buf_addf(&usage, "Usage: deepinfer %s %s", cmd->name, cmd->usage ? cmd->usage : "[options]");
    if (!usage.failed)
        wrap(b, usage.p, 0, 7);
    b->failed = b->failed || usage.failed;
    di_buf_fini(&usage);
    di_buf_adds(b, "\n\n");
    wrap(b, cmd->summary, 0, 0);
    di_buf_adds(b, "\n\nOptions:\n");
    for (size_t i = 0; i < options.n; i++)
        help_option(b, &options.at[i]);
}

static void print_list(struct di_buf *b, const struct di_str_list *list)
{
    di_buf_addc(b, '[');
    for (size_t k = 0; k < list->count; k++) {
        di_buf_adds(b, k ? ", " : "");
        di_json_write_string(b, di_str_c(list->items[k])); /* JSON's escapes are TOML's */
    }
    di_buf_addc(b, ']');
}

void di_options_print(struct di_buf *b, const struct di_command *cmd, const void *values)
{
    struct option_list options;
    list_options(cmd, &options);
    di_buf_addf(b, "[%s]\n", cmd->name);
    for (size_t i = 0; i < options.n_own; i++) {
        const struct di_option *o = &options.at[i];
        const void *field = (const char *)values + o->offset;
        bool absent = (o->type == DI_OPT_INT && *(const int64_t *)field == INT64_MIN) ||
                      (o->type == DI_OPT_DOUBLE && isnan(*(const double *)field)) ||
                      ((o->type == DI_OPT_STRING || o->type == DI_OPT_CHOICE) && !*(const char *const *)field);
        if (absent) {
            di_buf_addf(b, "# %s =\n", o->name);
            continue;
        }
        di_buf_addf(b, "%s = ", o->name);
        switch (o->type) {
        case DI_OPT_BOOL: di_buf_adds(b, *(const bool *)field ? "true" : "false"); break;
        case DI_OPT_INT: di_buf_addf(b, "%lld", (long long)*(const int64_t *)field); break;
        case DI_OPT_DOUBLE: di_json_write_double(b, *(const double *)field); break;
        case DI_OPT_CHOICE:
        case DI_OPT_STRING: di_json_write_string(b, di_str_c(*(const char *const *)field)); break;
        case DI_OPT_LIST: print_list(b, field); break;
        case DI_OPT_TABLE:
        case DI_OPT_PRESET: break;
        }
        di_buf_addc(b, '\n');
    }
}
