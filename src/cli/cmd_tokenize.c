/* deepinfer tokenize: text to token ids and back. */
#include "cli/commands.h"
#include "cli/io.h"
#include "text/tokenizer.h"

#include <time.h>

#define STDIN_LIMIT ((size_t)1 << 30)

struct options {
    const char *model;
    bool decode, jsonl, added;
    int64_t time;
};

static const struct di_option table[] = {
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, model),
     .metavar = "DIR",
     .required = true,
     .help = "Model directory, or a tokenizer.json."},
    {.name = "decode",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, decode),
     .def = "false",
     .help = "Token ids (a JSON list, or numbers separated by commas or white space) to text."},
    {.name = "jsonl",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, jsonl),
     .def = "false",
     .help = "One object per line: {\"text\", \"added\"?} gives {\"ids\"}, {\"ids\"} gives {\"text\"}."},
    {.name = "added",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, added),
     .def = "true",
     .help = "Recognise the spellings of control tokens in text. --no-added: they are ordinary text."},
    {.name = "time",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, time),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .metavar = "N",
     .help = "Encode stdin N times and print {\"bytes\", \"ids\", \"seconds\"} of the fastest run, in CPU time."},
};

/* What every piece of work needs; `out` and `ids` are reused. */
struct job {
    const struct di_tokenizer *tokenizer;
    const struct options *opt;
    struct di_ids ids;
    struct di_buf out, text;
    di_error *err;
};

static void add_ids(struct di_buf *b, const struct di_ids *ids)
{
    di_buf_addc(b, '[');
    for (size_t i = 0; i < ids->n; i++)
        di_buf_addf(b, i ? ", %d" : "%d", (int)ids->v[i]);
    di_buf_addc(b, ']');
}

static di_status encode(struct job *j, struct di_str text, bool added)
{
    j->ids.n = 0;
    return di_tokenizer_encode(j->tokenizer, text, added ? DI_TOKENIZER_ADDED : DI_TOKENIZER_PLAIN, &j->ids, j->err);
}

static di_status push_id(struct job *j, int64_t id)
{
    if (id < 0 || id > INT32_MAX)
        return di_fail(j->err, DI_ERR_INVALID, "", "%lld is no token id", (long long)id);
    if (!di_ids_reserve(&j->ids, 1))
        return di_fail(j->err, DI_ERR_MEMORY, "", "out of memory for token ids");
    j->ids.v[j->ids.n++] = (int32_t)id;
    return DI_OK;
}

/* The list of a record to j->text. */
static di_status decode_list(struct job *j, const struct di_json *list)
{
    di_status status = DI_OK;
    int64_t id;
    j->ids.n = 0;
    CHECK(di_json_is(list, DI_JSON_ARRAY), j->err, DI_ERR_INVALID, "ids", "a list was expected, not %s", di_json_type_name(list));
    for (const struct di_json *v = list->child; v; v = v->next) {
        CHECK(di_json_int(v, &id), j->err, DI_ERR_INVALID, "ids", "whole numbers were expected");
        TRY(push_id(j, id));
    }
    di_buf_clear(&j->text);
    TRY(di_tokenizer_decode(j->tokenizer, j->ids.v, j->ids.n, &j->text, j->err));
out:
    return status;
}

/* Numbers separated by anything that JSON lists and people put between them. */
static di_status decode_text(struct job *j, struct di_str s)
{
    di_status status = DI_OK;
    j->ids.n = 0;
    for (size_t i = 0; i < s.n;) {
        if (s.p[i] && strchr("[], \t\r\n", s.p[i])) {
            i++;
            continue;
        }
        int64_t id = 0;
        size_t start = i;
        for (; i < s.n && s.p[i] >= '0' && s.p[i] <= '9' && id <= INT32_MAX; i++)
            id = id * 10 + (s.p[i] - '0');
        CHECK(i > start, j->err, DI_ERR_INVALID, "standard input", "byte %zu is not part of a list of token ids", i);
        TRY(push_id(j, id));
    }
    TRY(di_tokenizer_decode(j->tokenizer, j->ids.v, j->ids.n, &j->text, j->err));
out:
    return status;
}

/* ---- records ---- */

static di_status run_record(void *ctx, const struct di_json *record)
{
    struct job *j = ctx;
    const struct di_json *text = di_json_get(record, "text"), *ids = di_json_get(record, "ids"), *added = di_json_get(record, "added");
    di_status status = DI_OK;
    CHECK(di_json_is(record, DI_JSON_OBJECT), j->err, DI_ERR_INVALID, "", "an object was expected, not %s", di_json_type_name(record));
    CHECK(!text != !ids, j->err, DI_ERR_INVALID, "", "either \"text\" or \"ids\" was expected");
    CHECK(!added || added->type == DI_JSON_BOOL, j->err, DI_ERR_INVALID, "added", "true or false was expected");
    if (ids) {
        TRY(decode_list(j, ids));
        di_buf_adds(&j->out, "{\"text\": ");
        di_json_write_string(&j->out, di_buf_str(&j->text));
    } else {
        CHECK(text->type == DI_JSON_STRING, j->err, DI_ERR_INVALID, "text", "a string was expected, not %s", di_json_type_name(text));
        TRY(encode(j, text->text, added ? added->boolean : j->opt->added));
        di_buf_adds(&j->out, "{\"ids\": ");
        add_ids(&j->out, &j->ids);
    }
    di_buf_addc(&j->out, '}');
    TRY(di_buf_ok(&j->out, j->err));
out:
    return status;
}

/* ---- all of stdin ---- */

static di_status measure_speed(struct job *j, struct di_str text)
{
    clock_t best = 0;
    for (int64_t i = 0; i < j->opt->time; i++) {
        clock_t start = clock(); /* of the process, so that other work on the machine counts little */
        di_status status = encode(j, text, j->opt->added);
        if (status != DI_OK)
            return status;
        clock_t took = clock() - start;
        best = i == 0 || took < best ? took : best;
    }
    di_buf_addf(&j->out, "{\"bytes\": %zu, \"ids\": %zu, \"seconds\": %.6f}", text.n, j->ids.n, (double)best / CLOCKS_PER_SEC);
    return DI_OK;
}

static di_status run_whole(struct job *j)
{
    di_status status = DI_OK;
    struct di_buf in = {0};
    TRY(di_read_stdin(STDIN_LIMIT, &in, j->err));
    if (j->opt->decode) {
        TRY(decode_text(j, di_buf_str(&in)));
        TRY(di_write_text(stdout, di_buf_str(&j->text), j->err));
        goto out;
    }
    if (j->opt->time) {
        TRY(measure_speed(j, di_buf_str(&in)));
    } else {
        TRY(encode(j, di_buf_str(&in), j->opt->added));
        add_ids(&j->out, &j->ids);
    }
    TRY(di_buf_ok(&j->out, j->err));
    TRY(di_write_line(stdout, di_buf_str(&j->out), j->err));
out:
    di_buf_fini(&in);
    return status;
}

static int run_tokenize(const void *options)
{
    const struct options *opt = options;
    struct di_tokenizer *tokenizer = NULL;
    bool failed = false;
    di_status status = DI_OK;
    di_error err = {0};
    struct job j = {.opt = opt, .err = &err};
    CHECK(opt->jsonl + (opt->time > 0) + opt->decode < 2, &err, DI_ERR_INVALID, "", "--jsonl, --time and --decode exclude each other");
    TRY(di_tokenizer_load(opt->model, &tokenizer, &err));
    j.tokenizer = tokenizer;
    TRY(opt->jsonl ? di_run_jsonl(&(struct di_jsonl){run_record, &j, &j.out, &err}, &failed) : run_whole(&j));
out:
    di_ids_fini(&j.ids);
    di_buf_fini(&j.out);
    di_buf_fini(&j.text);
    di_tokenizer_destroy(tokenizer);
    if (status != DI_OK)
        return di_cli_fail("tokenize", &err);
    return failed ? DI_EXIT_SOME_FAILED : DI_EXIT_OK;
}

const struct di_command di_cmd_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids and back",
    .usage = "--model DIR [--decode | --jsonl] [--no-added] < INPUT",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_tokenize,
};
