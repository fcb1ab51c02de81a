/* deepinfer parse: what a model wrote to a message object or to deltas (spec/encoding.md §3). */
#include "cli/commands.h"
#include "cli/io.h"
#include "text/message.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <unistd.h>

struct options {
    const char *model, *start, *finish;
    bool stream, jsonl, tools, json_mode, hide_control, include_stop;
    struct di_str_list stop;
};

static const struct di_option table[] = {
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, model),
     .metavar = "DIR",
     .help = "Model directory, or a tokenizer.json. Needed for lines with \"token_ids\"."},
    {.name = "stream",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, stream),
     .def = "false",
     .help = "Print deltas, one object per line, as soon as they are certain. With --jsonl: {\"deltas\": [...]} per line."},
    {.name = "jsonl",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, jsonl),
     .def = "false",
     .help = "One object per line: {\"text\" | \"pieces\" | \"segments\" | \"token_ids\"} and \"start\", \"tools_declared\", \"stop\", "
             "\"json_mode\", "
             "\"backend_finish\", \"hide_control\", \"include_stop\"; the options below are the defaults."},
    {.name = "start",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct options, start),
     .def = "reasoning",
     .choices = "reasoning|content|tool_block|reasoning_continued|content_continued",
     .help = "Where the prompt ended."},
    {.name = "tools",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, tools),
     .def = "true",
     .help = "Tools were declared. --no-tools: the markup of calls is text."},
    {.name = "stop", .type = DI_OPT_LIST, .offset = offsetof(struct options, stop), .metavar = "STR", .help = "A stop string; up to 16."},
    {.name = "json-mode",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, json_mode),
     .def = "false",
     .help = "Pass only the JSON of the content."},
    {.name = "hide-control",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, hide_control),
     .def = "false",
     .help = "Control ids that are no markup where they stand vanish instead of being spelled out."},
    {.name = "include-stop",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, include_stop),
     .def = "false",
     .help = "Keep the matched stop string in the content."},
    {.name = "finish",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct options, finish),
     .def = "stop",
     .choices = "stop|length|content_filter|abort|error",
     .help = "How the model's generation ended."},
};

struct job {
    const struct options *opt;
    struct di_tokenizer *tokenizer; /* loaded when a line first needs it */
    struct di_buf out;
    di_error *err;
};

/* ---- settings ---- */

struct settings {
    struct di_parser_settings parser;
    struct di_str stops[DI_PARSE_MAX_STOP];
    enum di_finish finish;
};

static di_status settings_of_options(const struct options *opt, struct settings *s, di_error *err)
{
    *s = (struct settings){.parser = {.tools_declared = opt->tools,
                                      .json_mode = opt->json_mode,
                                      .hide_control = opt->hide_control,
                                      .include_stop = opt->include_stop}};
    di_parse_start_from_name(di_str_c(opt->start), &s->parser.start);
    di_finish_from_name(di_str_c(opt->finish), &s->finish);
    if (opt->stop.count > DI_PARSE_MAX_STOP)
        return di_fail(err, DI_ERR_INVALID, "--stop", "%zu stop strings were given, the limit is %d", opt->stop.count, DI_PARSE_MAX_STOP);
    for (size_t i = 0; i < opt->stop.count; i++)
        s->stops[i] = di_str_c(opt->stop.items[i]);
    s->parser.n_stop = opt->stop.count;
    s->parser.stop = s->stops;
    return DI_OK;
}

static di_status read_bool(const struct di_json *record, const char *key, bool *out, di_error *err)
{
    const struct di_json *v = di_json_get(record, key);
    if (!v)
        return DI_OK;
    if (v->type != DI_JSON_BOOL)
        return di_fail(err, DI_ERR_INVALID, key, "true or false was expected, not %s", di_json_type_name(v));
    *out = v->boolean;
    return DI_OK;
}

static di_status read_stops(const struct di_json *v, struct settings *s, di_error *err)
{
    di_status status = DI_OK;
    CHECK(v->type == DI_JSON_ARRAY, err, DI_ERR_INVALID, "stop", "a list was expected, not %s", di_json_type_name(v));
    CHECK(v->count <= DI_PARSE_MAX_STOP, err, DI_ERR_INVALID, "stop", "%zu stop strings were given, the limit is %d", v->count,
          DI_PARSE_MAX_STOP);
    s->parser.n_stop = 0;
    for (const struct di_json *t = v->child; t; t = t->next) {
        CHECK(t->type == DI_JSON_STRING, err, DI_ERR_INVALID, "stop", "strings were expected, not %s", di_json_type_name(t));
        s->stops[s->parser.n_stop++] = t->text;
    }
out:
    return status;
}

/* Override the options with the fields of a line. */
static di_status settings_of_record(const struct di_json *r, struct settings *s, di_error *err)
{
    di_status status = DI_OK;
    const struct di_json *start = di_json_get(r, "start"), *finish = di_json_get(r, "backend_finish"), *stop = di_json_get(r, "stop");
    CHECK(!start || (start->type == DI_JSON_STRING && di_parse_start_from_name(start->text, &s->parser.start)), err, DI_ERR_INVALID,
          "start", "one of reasoning, content, tool_block, reasoning_continued, content_continued was expected");
    CHECK(!finish || (finish->type == DI_JSON_STRING && di_finish_from_name(finish->text, &s->finish)), err, DI_ERR_INVALID,
          "backend_finish", "one of stop, length, content_filter, abort, error was expected");
    TRY(read_bool(r, "tools_declared", &s->parser.tools_declared, err));
    TRY(read_bool(r, "json_mode", &s->parser.json_mode, err));
    TRY(read_bool(r, "hide_control", &s->parser.hide_control, err));
    TRY(read_bool(r, "include_stop", &s->parser.include_stop, err));
    if (stop && stop->type != DI_JSON_NULL)
        TRY(read_stops(stop, s, err));
out:
    return status;
}

/* ---- one line ---- */

static di_status feed_strings(struct di_parser *p, const struct di_json *pieces, di_error *err)
{
    di_status status = DI_OK;
    CHECK(pieces->type == DI_JSON_ARRAY, err, DI_ERR_INVALID, "pieces", "a list was expected, not %s", di_json_type_name(pieces));
    for (const struct di_json *v = pieces->child; v; v = v->next) {
        CHECK(v->type == DI_JSON_STRING, err, DI_ERR_INVALID, "pieces", "strings were expected, not %s", di_json_type_name(v));
        TRY(di_parser_feed(p, v->text, DI_PARSE_TEXT, err));
    }
out:
    return status;
}

static di_status feed_segments(struct di_parser *p, const struct di_json *segments, di_error *err)
{
    di_status status = DI_OK;
    CHECK(segments->type == DI_JSON_ARRAY, err, DI_ERR_INVALID, "segments", "a list was expected, not %s", di_json_type_name(segments));
    for (const struct di_json *v = segments->child; v; v = v->next) {
        const struct di_json *text = di_json_at(v, 1);
        int64_t control;
        CHECK(di_json_int(di_json_at(v, 0), &control) && di_json_is(text, DI_JSON_STRING), err, DI_ERR_INVALID, "segments",
              "pairs of 0 or 1 and a string were expected");
        TRY(di_parser_feed(p, text->text, control ? DI_PARSE_CONTROL : DI_PARSE_TEXT, err));
    }
out:
    return status;
}

/* Ids, or lists of ids as they came. */
static di_status feed_ids(struct di_parser *p, struct job *j, const struct di_json *ids)
{
    di_status status = DI_OK;
    CHECK(ids->type == DI_JSON_ARRAY, j->err, DI_ERR_INVALID, "token_ids", "a list was expected, not %s", di_json_type_name(ids));
    CHECK(j->opt->model, j->err, DI_ERR_INVALID, "token_ids", "ids need --model for their text");
    if (!j->tokenizer)
        TRY(di_tokenizer_load(j->opt->model, &j->tokenizer, j->err));
    for (const struct di_json *v = ids->child; v; v = v->next) {
        for (const struct di_json *w = v->type == DI_JSON_ARRAY ? v->child : v; w; w = w == v ? NULL : w->next) {
            int64_t id;
            CHECK(di_json_int(w, &id) && id >= 0 && id <= INT32_MAX, j->err, DI_ERR_INVALID, "token_ids", "token ids were expected");
            TRY(di_parser_feed_id(p, j->tokenizer, (int32_t)id, j->err));
        }
    }
out:
    return status;
}

static void add_delta(void *arg, const struct di_parse_event *event)
{
    struct di_buf *b = arg;
    if (b->n && b->p[b->n - 1] == '}')
        di_buf_adds(b, ", ");
    di_event_write_json(b, event);
}

static di_status run_record(void *ctx, const struct di_json *r)
{
    struct job *j = ctx;
    static const char *const forms[] = {"text", "pieces", "segments", "token_ids"};
    di_status status = DI_OK;
    struct settings s;
    struct di_parser *p = NULL;
    struct di_message m = {0};
    const struct di_json *input = NULL;
    size_t form = 0, given = 0;
    CHECK(di_json_is(r, DI_JSON_OBJECT), j->err, DI_ERR_INVALID, "", "an object was expected, not %s", di_json_type_name(r));
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct di_json *v = di_json_get(r, forms[i]);
        if (v && (!input || i == 3)) { /* ids beside their spelling: the ids count */
            input = v;
            form = i;
        }
        given += v != NULL;
    }
    CHECK(given == 1 || (given == 2 && form == 3), j->err, DI_ERR_INVALID, "",
          "one of \"text\", \"pieces\", \"segments\", \"token_ids\" was expected");
    TRY(settings_of_options(j->opt, &s, j->err));
    TRY(settings_of_record(r, &s, j->err));
    s.parser.spelling = form < 2;
    if (j->opt->stream) {
        di_buf_adds(&j->out, "{\"deltas\": [");
        TRY(di_parser_create(&s.parser, add_delta, &j->out, &p, j->err));
    } else {
        TRY(di_parser_create(&s.parser, di_message_add, &m, &p, j->err));
    }
    if (form == 0) {
        CHECK(input->type == DI_JSON_STRING, j->err, DI_ERR_INVALID, "text", "a string was expected, not %s", di_json_type_name(input));
        TRY(di_parser_feed(p, input->text, DI_PARSE_TEXT, j->err));
    } else {
        TRY(form == 1 ? feed_strings(p, input, j->err) : form == 2 ? feed_segments(p, input, j->err) : feed_ids(p, j, input));
    }
    TRY(di_parser_finish(p, s.finish, j->err));
    TRY(di_message_ok(&m, j->err));
    if (j->opt->stream)
        di_buf_adds(&j->out, "]}");
    else
        di_message_write_json(&j->out, &m);
    TRY(di_buf_ok(&j->out, j->err));
out:
    di_parser_destroy(p);
    di_message_fini(&m);
    return status;
}

/* ---- all of stdin as text ---- */

struct live {
    struct di_buf line;
    di_status status;
    di_error *err;
};

static void print_delta(void *arg, const struct di_parse_event *event)
{
    struct live *l = arg;
    di_buf_clear(&l->line);
    di_event_write_json(&l->line, event);
    if (l->status == DI_OK)
        l->status = di_buf_ok(&l->line, l->err);
    if (l->status == DI_OK)
        l->status = di_write_line(stdout, di_buf_str(&l->line), l->err);
}

static di_status run_text(struct job *j)
{
    di_status status = DI_OK;
    struct settings s;
    struct di_parser *p = NULL;
    struct di_message m = {0};
    struct live l = {.err = j->err};
    char chunk[4096];
    TRY(settings_of_options(j->opt, &s, j->err));
    s.parser.spelling = true;
    TRY(di_parser_create(&s.parser, j->opt->stream ? print_delta : di_message_add, j->opt->stream ? (void *)&l : &m, &p, j->err));
    for (;;) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        CHECK(n >= 0, j->err, DI_ERR_IO, "standard input", "reading failed: %s", strerror(errno));
        if (n == 0)
            break;
        TRY(di_parser_feed(p, (struct di_str){chunk, (size_t)n}, DI_PARSE_TEXT, j->err));
        TRY(l.status);
    }
    TRY(di_parser_finish(p, s.finish, j->err));
    TRY(l.status);
    TRY(di_message_ok(&m, j->err));
    if (!j->opt->stream) {
        di_message_write_json(&j->out, &m);
        TRY(di_buf_ok(&j->out, j->err));
        TRY(di_write_line(stdout, di_buf_str(&j->out), j->err));
    }
out:
    di_parser_destroy(p);
    di_message_fini(&m);
    di_buf_fini(&l.line);
    return status;
}

static int run_parse(const void *options)
{
    bool failed = false;
    di_error err = {0};
    struct job j = {.opt = options, .err = &err};
    di_status status = j.opt->jsonl ? di_run_jsonl(&(struct di_jsonl){run_record, &j, &j.out, &err}, &failed) : run_text(&j);
    di_buf_fini(&j.out);
    di_tokenizer_destroy(j.tokenizer);
    if (status != DI_OK)
        return di_cli_fail("parse", &err);
    return failed ? DI_EXIT_SOME_FAILED : DI_EXIT_OK;
}

const struct di_command di_cmd_parse = {
    .name = "parse",
    .summary = "what a model wrote to reasoning, content and tool calls",
    .usage = "--model DIR [--stream] [--jsonl] < INPUT",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_parse,
};
