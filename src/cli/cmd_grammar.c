/* deepinfer grammar: what a schema, expression or grammar allows. */
#include "cli/commands.h"
#include "cli/io.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/utf8.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#include <time.h>

#define TEXT_LIMIT ((size_t)64 << 20)
#define SAMPLE_LIMIT 20000 /* bytes after which a sample goes the shortest way, at the latest */

struct options {
    const char *action, *kind, *file, *model, *order, *whitespace;
    struct di_str_list text;
    bool jsonl, strict, time;
    int64_t count, seed, length;
};

#define FIELD(name) offsetof(struct options, name)
static const struct di_option table[] = {
    {.name = "action",
     .type = DI_OPT_CHOICE,
     .offset = FIELD(action),
     .def = "check",
     .choices = "check|match|sample|mask",
     .metavar = "WORD",
     .help = "check: does it compile, and what cannot be enforced where. match: which texts match. sample: random texts that match. mask: "
             "tokens "
             "that may follow a text. The word may stand first, without the flag."},
    {.name = "kind",
     .type = DI_OPT_CHOICE,
     .offset = FIELD(kind),
     .def = "json",
     .choices = "json|regex|gbnf|ebnf|lark|choice|structural",
     .metavar = "NAME",
     .help = "What the grammar is."},
    {.name = "file", .type = DI_OPT_STRING, .offset = FIELD(file), .metavar = "FILE", .help = "The grammar; default standard input."},
    {.name = "text",
     .type = DI_OPT_LIST,
     .offset = FIELD(text),
     .metavar = "TEXT",
     .help = "match: a text, may be given several times. mask: the text so far."},
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = FIELD(model),
     .metavar = "DIR",
     .help = "mask, --time: model directory, or a tokenizer.json."},
    {.name = "order",
     .type = DI_OPT_CHOICE,
     .offset = FIELD(order),
     .def = "any",
     .choices = "any|declared",
     .help = "Order of an object's members: any, or as the schema declares them."},
    {.name = "whitespace",
     .type = DI_OPT_CHOICE,
     .offset = FIELD(whitespace),
     .def = "free",
     .choices = "free|compact",
     .help = "White space between the tokens of JSON: any, or none."},
    {.name = "strict",
     .type = DI_OPT_BOOL,
     .offset = FIELD(strict),
     .def = "false",
     .help = "The rules of hosted services: objects are closed, and every property is required."},
    {.name = "jsonl",
     .type = DI_OPT_BOOL,
     .offset = FIELD(jsonl),
     .def = "false",
     .help = "One object per line instead of flags: {\"id\", \"kind\", \"grammar\", \"texts\"?, \"order\"?, \"whitespace\"?, \"count\"?, "
             "\"seed\"?}."},
    {.name = "count",
     .type = DI_OPT_INT,
     .offset = FIELD(count),
     .def = "1",
     .min = 1,
     .max = 1000000,
     .metavar = "N",
     .help = "sample: how many."},
    {.name = "seed", .type = DI_OPT_INT, .offset = FIELD(seed), .def = "0", .metavar = "N", .help = "sample: of the random numbers."},
    {.name = "length",
     .type = DI_OPT_INT,
     .offset = FIELD(length),
     .def = "200",
     .min = 0,
     .max = SAMPLE_LIMIT,
     .metavar = "N",
     .help = "sample: bytes after which a text is brought to its end."},
    {.name = "time",
     .type = DI_OPT_BOOL,
     .offset = FIELD(time),
     .def = "false",
     .help = "match: also compute the mask before each token of each text that matches, and tell the nanoseconds."},
};

struct job {
    const struct options *opt;
    struct di_tokenizer *tokenizer;
    struct di_vocabulary *vocabulary;
    uint32_t *mask;
    struct di_buf out, text;
    di_error *err;
};

/* One piece of work: a grammar and what is asked about it. Strings are borrowed. */
struct task {
    enum di_grammar_kind kind;
    struct di_str grammar;
    struct di_grammar_options options;
    const struct di_str *texts;
    size_t n_texts;
    int64_t count;
    uint64_t seed;
};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static di_status load_vocabulary(struct job *j)
{
    di_status status = DI_OK;
    struct di_str *tokens = NULL;
    CHECK(j->opt->model, j->err, DI_ERR_INVALID, "--model", "a tokenizer is needed for masks");
    TRY(di_tokenizer_load(j->opt->model, &j->tokenizer, j->err));
    size_t n = (size_t)di_tokenizer_size(j->tokenizer);
    tokens = di_calloc(n + 1, sizeof *tokens);
    j->mask = di_calloc(di_mask_words(n) + 1, sizeof *j->mask);
    CHECK(tokens && j->mask, j->err, DI_ERR_MEMORY, "", "out of memory for a vocabulary");
    for (size_t i = 0; i < n; i++)
        if (!di_tokenizer_is_added(j->tokenizer, (int32_t)i))
            tokens[i] = di_tokenizer_token_bytes(j->tokenizer, (int32_t)i);
    TRY(di_vocabulary_create(tokens, n, &j->vocabulary, j->err));
out:
    di_free(tokens);
    return status;
}

/* ---- match ---- */

/* Token by token with masks. */
static di_status measure_masks(struct job *j, struct di_grammar *g, struct di_str text, int64_t compiled, bool *first, struct di_buf *times)
{
    struct di_matcher *m = NULL;
    struct di_ids ids = {0};
    di_status status = DI_OK;
    TRY(di_tokenizer_encode(j->tokenizer, text, DI_TOKENIZER_PLAIN, &ids, j->err));
    int64_t start = now();
    TRY(di_matcher_create(g, j->vocabulary, &m, j->err));
    for (size_t i = 0; i < ids.n; i++) {
        if (i)
            start = now();
        TRY(di_matcher_mask(m, j->mask, j->err));
        int64_t took = now() - start;
        if (*first)
            di_buf_addf(&j->out, ", \"first_mask_ns\": %lld", (long long)(took + compiled));
        *first = false;
        di_buf_addf(times, "%s%lld", times->n ? ", " : "", (long long)took);
        uint32_t id = (uint32_t)ids.v[i];
        CHECK(j->mask[id / 32] >> id % 32 & 1, j->err, DI_ERR_INTERNAL, "",
              "the mask before token %zu does not allow id %u, which the text has", i, id);
        TRY(di_matcher_accept_token(m, (int32_t)id, j->err));
    }
out:
    di_matcher_destroy(m);
    di_ids_fini(&ids);
    return status;
}

static di_status match(struct job *j, struct di_grammar *g, const struct task *t, int64_t compiled)
{
    struct di_matcher *m = NULL;
    struct di_buf accepted = {0}, times = {0};
    bool first = true;
    di_status status = DI_OK;
    for (size_t i = 0; i < t->n_texts; i++) {
        di_error inner = {0};
        TRY(di_matcher_create(g, NULL, &m, j->err));
        status = di_matcher_accept_bytes(m, t->texts[i], &inner);
        CHECK(status == DI_OK || status == DI_ERR_INVALID, j->err, status, "", "%s", inner.message);
        bool yes = status == DI_OK && di_matcher_is_accepting(m);
        status = DI_OK;
        di_buf_addf(&accepted, "%s%s", i ? ", " : "", yes ? "true" : "false");
        di_matcher_destroy(m);
        m = NULL;
        if (yes && j->opt->time)
            TRY(measure_masks(j, g, t->texts[i], compiled, &first, &times));
    }
    di_buf_addf(&j->out, ", \"accepted\": [%s]", accepted.n ? accepted.p : "");
    if (j->opt->time)
        di_buf_addf(&j->out, ", \"compile_ns\": %lld, \"mask_ns\": [%s]", (long long)compiled, times.n ? times.p : "");
out:
    di_matcher_destroy(m);
    di_buf_fini(&accepted);
    di_buf_fini(&times);
    return status;
}

/* ---- sample ---- */

/* A random number below n. */
static uint32_t draw(uint64_t seed, uint64_t *at, uint32_t n)
{
    struct di_philox r = di_philox(seed, (struct di_philox){{(uint32_t)(*at)++, 0, 0, 0}});
    return (uint32_t)((uint64_t)r.w[0] * n >> 32);
}

static bool allowed(struct di_matcher *m, unsigned byte)
{
    char c = (char)byte;
    if (di_matcher_accept_bytes(m, (struct di_str){&c, 1}, NULL) != DI_OK)
        return false;
    di_matcher_rollback(m, 1);
    return true;
}

/* One of the bytes that may come, or 256: a few are tried at random, what people write before control characters and escapes; then all. */
static unsigned any_byte(struct di_matcher *m, uint64_t seed, uint64_t *at)
{
    uint8_t found[256];
    size_t n = 0;
    for (int i = 0; i < 24; i++) {
        unsigned b = draw(seed, at, 30) ? 0x20 + draw(seed, at, 0x5F) : draw(seed, at, 256);
        if ((b != ' ' && b != '\\') || !draw(seed, at, 10))
            if (allowed(m, b))
                return b;
    }
    for (unsigned b = 0; b < 256; b++)
        if (allowed(m, b))
            found[n++] = (uint8_t)b;
    return n ? found[draw(seed, at, (uint32_t)n)] : 256;
}

/* The byte that leads to the end soonest, as far as the grammar can tell, or 256. */
static unsigned closing_byte(struct di_matcher *m, uint64_t seed, uint64_t *at)
{
    size_t best = SIZE_MAX;
    unsigned nearest = 256;
    for (unsigned b = 0x21; b < 0x7F; b++) {
        char c = (char)b;
        if (b == '\\' || di_matcher_accept_bytes(m, (struct di_str){&c, 1}, NULL) != DI_OK)
            continue;
        size_t d = di_matcher_distance(m);
        di_matcher_rollback(m, 1);
        if (d < best || (d == best && d != SIZE_MAX && draw(seed, at, 2))) {
            best = d;
            nearest = b;
        }
    }
    return draw(seed, at, 50) ? nearest : 256;
}

/* A text of the grammar, byte by byte. */
static di_status sample(struct job *j, struct di_grammar *g, uint64_t seed, struct di_buf *text)
{
    struct di_matcher *m = NULL;
    uint64_t at = 0;
    di_status status = DI_OK;
    TRY(di_matcher_create(g, NULL, &m, j->err));
    for (;;) {
        bool end = di_matcher_is_accepting(m), closing = text->n >= (size_t)j->opt->length;
        if (end && (closing || draw(seed, &at, 8) == 0))
            break;
        CHECK(text->n < 4 * SAMPLE_LIMIT, j->err, DI_ERR_LIMIT, "", "no way to the end of a sample was found");
        unsigned byte = closing ? closing_byte(m, seed, &at) : 256;
        byte = byte == 256 ? any_byte(m, seed, &at) : byte;
        if (byte == 256) {
            CHECK(end, j->err, DI_ERR_INTERNAL, "", "no continuation behind: %.300s", text->n ? text->p : "");
            break;
        }
        char c = (char)byte;
        TRY(di_matcher_accept_bytes(m, (struct di_str){&c, 1}, j->err));
        di_buf_addc(text, c);
    }
out:
    di_matcher_destroy(m);
    return status;
}

static di_status sample_all(struct job *j, struct di_grammar *g, const struct task *t)
{
    di_status status = DI_OK;
    di_buf_adds(&j->out, ", \"samples\": [");
    for (int64_t i = 0; i < t->count; i++) {
        di_buf_clear(&j->text);
        TRY(sample(j, g, t->seed * 1000003 + (uint64_t)i, &j->text));
        if (i)
            di_buf_adds(&j->out, ", ");
        struct di_buf whole = {0};
        di_utf8_add_lossy(&whole, di_buf_str(&j->text));
        di_json_write_string(&j->out, di_buf_str(&whole));
        di_buf_fini(&whole);
    }
    di_buf_addc(&j->out, ']');
out:
    return status;
}

/* ---- mask ---- */

static di_status show_mask(struct job *j, struct di_grammar *g, const struct task *t)
{
    struct di_matcher *m = NULL;
    di_status status = DI_OK;
    size_t n = 0;
    TRY(di_matcher_create(g, j->vocabulary, &m, j->err));
    if (t->n_texts)
        TRY(di_matcher_accept_bytes(m, t->texts[0], j->err));
    TRY(di_matcher_mask(m, j->mask, j->err));
    di_buf_addf(&j->out, ", \"accepting\": %s, \"ids\": [", di_matcher_is_accepting(m) ? "true" : "false");
    for (size_t i = 0; i < di_vocabulary_size(j->vocabulary); i++)
        if (j->mask[i / 32] >> i % 32 & 1)
            di_buf_addf(&j->out, n++ ? ", %zu" : "%zu", i);
    di_buf_addc(&j->out, ']');
out:
    di_matcher_destroy(m);
    return status;
}

/* ---- records ---- */

static di_status work(struct job *j, const struct di_json *id, const struct task *t)
{
    struct di_grammar *g = NULL;
    di_status status = DI_OK;
    di_error inner = {0};
    int64_t start = now();
    di_status compiled = di_grammar_compile(t->kind, t->grammar, &t->options, &g, &inner);
    int64_t took = now() - start;
    di_buf_addc(&j->out, '{');
    if (id) {
        di_buf_adds(&j->out, "\"id\": ");
        di_json_write_spaced(&j->out, id);
        di_buf_adds(&j->out, ", ");
    }
    if (compiled != DI_OK) {
        di_buf_addf(&j->out, "\"compiled\": false, \"error\": {\"code\": \"%s\", \"path\": ", di_status_name(compiled));
        di_json_write_string(&j->out, di_str_c(inner.where));
        di_buf_adds(&j->out, ", \"message\": ");
        di_json_write_string(&j->out, di_str_c(inner.message));
        di_buf_adds(&j->out, "}}");
        return DI_OK;
    }
    di_buf_adds(&j->out, "\"compiled\": true");
    switch (j->opt->action[1]) {
    case 'a':
        status = j->opt->action[0] == 's'              ? sample_all(j, g, t)
                 : strcmp(j->opt->action, "mask") == 0 ? show_mask(j, g, t)
                                                       : match(j, g, t, took);
        break;
    default: break;
    }
    di_buf_addc(&j->out, '}');
    di_grammar_unref(g);
    return status;
}

static di_status expect_string(struct job *j, const struct di_json *v, const char *field)
{
    return di_json_is(v, DI_JSON_STRING) ? DI_OK
                                         : di_fail(j->err, DI_ERR_INVALID, field, "a string was expected, not %s", di_json_type_name(v));
}

static di_status read_task(struct job *j, const struct di_json *record, struct task *t, struct di_buf *grammar)
{
    const struct di_json *kind = di_json_get(record, "kind"), *text = di_json_get(record, "grammar"), *order = di_json_get(record, "order"),
                         *space = di_json_get(record, "whitespace"), *strict = di_json_get(record, "strict");
    di_status status = DI_OK;
    CHECK(di_json_is(record, DI_JSON_OBJECT), j->err, DI_ERR_INVALID, "", "an object was expected, not %s", di_json_type_name(record));
    TRY(expect_string(j, kind, "kind"));
    CHECK(di_grammar_kind_named(kind->text, &t->kind), j->err, DI_ERR_INVALID, "kind", "no kind of grammar has this name");
    CHECK(text, j->err, DI_ERR_INVALID, "grammar", "a grammar was expected");
    if (text->type == DI_JSON_STRING && t->kind != DI_GRAMMAR_CHOICE)
        di_buf_addv(grammar, text->text);
    else
        di_json_write_compact(grammar, text);
    TRY(di_buf_ok(grammar, j->err));
    t->grammar = di_buf_str(grammar);
    if (order)
        TRY(expect_string(j, order, "order"));
    if (space)
        TRY(expect_string(j, space, "whitespace"));
    t->options.declared = order ? di_str_eqc(order->text, "declared") : strcmp(j->opt->order, "declared") == 0;
    t->options.compact = space ? di_str_eqc(space->text, "compact") : strcmp(j->opt->whitespace, "compact") == 0;
    t->options.strict = strict ? strict->boolean : j->opt->strict;
    int64_t seed = j->opt->seed;
    t->count = j->opt->count;
    di_json_int(di_json_get(record, "count"), &t->count);
    di_json_int(di_json_get(record, "seed"), &seed);
    t->seed = (uint64_t)seed;
out:
    return status;
}

static di_status run_record(void *ctx, const struct di_json *record)
{
    struct job *j = ctx;
    struct task t = {0};
    struct di_buf grammar = {0};
    struct di_str *texts = NULL;
    const struct di_json *list = di_json_get(record, "texts");
    di_status status = DI_OK;
    TRY(read_task(j, record, &t, &grammar));
    CHECK(!list || list->type == DI_JSON_ARRAY, j->err, DI_ERR_INVALID, "texts", "a list was expected");
    texts = di_malloc(((list ? list->count : 0) + 1) * sizeof *texts);
    CHECK(texts, j->err, DI_ERR_MEMORY, "", "out of memory for texts");
    for (const struct di_json *v = list ? list->child : NULL; v; v = v->next) {
        TRY(expect_string(j, v, "texts"));
        texts[t.n_texts++] = v->text;
    }
    t.texts = texts;
    TRY(work(j, di_json_get(record, "id"), &t));
    TRY(di_buf_ok(&j->out, j->err));
out:
    di_free(texts);
    di_buf_fini(&grammar);
    return status;
}

static di_status run_flags(struct job *j)
{
    const struct options *o = j->opt;
    struct task t = {.count = o->count, .seed = (uint64_t)o->seed};
    struct di_buf grammar = {0};
    struct di_str *texts = NULL;
    di_status status = DI_OK;
    t.options = (struct di_grammar_options){
        .declared = strcmp(o->order, "declared") == 0, .compact = strcmp(o->whitespace, "compact") == 0, .strict = o->strict};
    di_grammar_kind_named(di_str_c(o->kind), &t.kind);
    TRY(o->file ? di_file_read(o->file, TEXT_LIMIT, &grammar, j->err) : di_read_stdin(TEXT_LIMIT, &grammar, j->err));
    t.grammar = di_buf_str(&grammar);
    texts = di_malloc((o->text.count + 1) * sizeof *texts);
    CHECK(texts, j->err, DI_ERR_MEMORY, "", "out of memory for texts");
    for (size_t i = 0; i < o->text.count; i++)
        texts[t.n_texts++] = di_str_c(o->text.items[i]);
    t.texts = texts;
    TRY(work(j, NULL, &t));
    TRY(di_buf_ok(&j->out, j->err));
    TRY(di_write_line(stdout, di_buf_str(&j->out), j->err));
out:
    di_free(texts);
    di_buf_fini(&grammar);
    return status;
}

static int run_grammar(const void *options)
{
    const struct options *o = options;
    di_error err = {0};
    struct job j = {.opt = o, .err = &err};
    bool failed = false;
    di_status status = DI_OK;
    if (o->time || strcmp(o->action, "mask") == 0)
        TRY(load_vocabulary(&j));
    TRY(o->jsonl ? di_run_jsonl(&(struct di_jsonl){run_record, &j, &j.out, &err}, &failed) : run_flags(&j));
out:
    di_buf_fini(&j.out);
    di_buf_fini(&j.text);
    di_free(j.mask);
    di_vocabulary_destroy(j.vocabulary);
    di_tokenizer_destroy(j.tokenizer);
    if (status != DI_OK)
        return di_cli_fail("grammar", &err);
    return failed ? DI_EXIT_SOME_FAILED : DI_EXIT_OK;
}

const struct di_command di_cmd_grammar = {
    .name = "grammar",
    .summary = "what a schema, expression or grammar allows",
    .usage = "check|match|sample|mask [--kind NAME] [--file FILE] [--text TEXT]... [--jsonl]",
    .word = "action",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_grammar,
};
