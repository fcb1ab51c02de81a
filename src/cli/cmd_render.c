/* deepinfer render: what a chat request becomes (spec/encoding.md §2). */
#include "base/file.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "text/chat.h"

struct options {
    const char *model, *protocol, *history;
    bool jsonl, thinking, strict, hosted, ranges;
    int64_t context;
};

static const struct di_option table[] = {
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, model),
     .metavar = "DIR",
     .help = "Model directory. Without it the prompt is text only, without \"token_ids\"."},
    {.name = "jsonl",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, jsonl),
     .def = "false",
     .help = "One object per line: {\"protocol\": \"chat\" | \"responses\" | \"messages\", \"request\": {...}}. One result per line."},
    {.name = "protocol",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct options, protocol),
     .def = "chat",
     .choices = "chat|responses|messages",
     .help = "Dialect of the request on stdin, and of lines that don't say."},
    {.name = "thinking",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, thinking),
     .def = "true",
     .help = "Think when the request does not say."},
    {.name = "reasoning-history",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct options, history),
     .def = "auto",
     .choices = "auto|keep|drop",
     .help = "Earlier reasoning: all of it if tools are shown (auto), all that was sent, or none."},
    {.name = "strict-history",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, strict),
     .def = "true",
     .help = "Each tool call must be followed by exactly one result."},
    {.name = "hosted-sampling",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, hosted),
     .def = "false",
     .help = "Temperature and top_p as the hosted service changes them."},
    {.name = "context",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, context),
     .def = "1048576",
     .min = 1,
     .max = 1e12,
     .metavar = "N",
     .help = "Tokens of the model's context, for \"max_tokens\" of the result."},
    {.name = "ranges",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, ranges),
     .def = "false",
     .help = "Add \"control_ranges\": start and end of every control id, in code points of the prompt."},
};

struct job {
    const struct options *opt;
    struct di_chat_options chat;
    struct di_tokenizer *tokenizer;
    struct di_control_ids controls;
    struct di_ids ids;
    struct di_buf out;
    di_error *err;
};

/* image_token_id of config.json, -1 if there is no such file or field. */
static di_status read_image_id(const char *dir, int32_t *id, di_error *err)
{
    struct di_buf path = {0}, text = {0};
    struct di_arena arena;
    struct di_json *config;
    int64_t value;
    di_status status = DI_OK;
    *id = -1;
    di_arena_init(&arena);
    di_buf_addf(&path, "%s/config.json", dir);
    TRY(di_buf_ok(&path, err));
    status = di_file_read(path.p, (size_t)16 << 20, &text, err);
    if (status != DI_OK) { /* a bare tokenizer is fine */
        status = status == DI_ERR_NOT_FOUND || status == DI_ERR_IO ? DI_OK : status;
        goto out;
    }
    TRY(di_json_parse(di_buf_str(&text), NULL, &arena, &config, err));
    if (di_json_int(di_json_get(config, "image_token_id"), &value) && value >= 0 && value <= INT32_MAX)
        *id = (int32_t)value;
out:
    di_arena_fini(&arena);
    di_buf_fini(&text);
    di_buf_fini(&path);
    return status;
}

static void add_bool(struct di_buf *b, const char *key, bool value)
{
    di_buf_addf(b, ", \"%s\": %s", key, value ? "true" : "false");
}

static void add_ranges(struct di_buf *b, const struct di_prompt *p)
{
    size_t at = 0, points = 0;
    di_buf_adds(b, ", \"control_ranges\": [");
    for (size_t i = 0; i < p->n_marks; i++) {
        struct di_str s = di_control_spelling(p->marks[i].control);
        size_t ends[2] = {p->marks[i].at, p->marks[i].at + s.n}, shown[2];
        for (int k = 0; k < 2; k++) {
            points += di_utf8_count((struct di_str){p->text.p + at, ends[k] - at});
            at = ends[k];
            shown[k] = points;
        }
        di_buf_addf(b, "%s[%zu, %zu]", i ? ", " : "", shown[0], shown[1]);
    }
    di_buf_addc(b, ']');
}

/* Data URLs are cut: they are long, and who asks knows them. */
static void add_images(struct di_buf *b, const struct di_chat *c)
{
    struct di_buf url = {0};
    for (size_t i = 0; i < c->n_images; i++) {
        const struct di_chat_image *image = c->images[i];
        di_buf_clear(&url);
        di_chat_image_write(&url, image);
        if (image->data.p && url.n > 22)
            url.n = 22;
        di_buf_adds(b, i ? ", " : ", \"images\": [");
        di_json_write_string(b, di_buf_str(&url));
    }
    if (c->n_images)
        di_buf_addc(b, ']');
    b->failed = b->failed || url.failed;
    di_buf_fini(&url);
}

static di_status add_result(struct job *j, const struct di_chat *c)
{
    static const char *const starts[] = {"reasoning", "content", "tool_block", "reasoning_continued", "content_continued"};
    struct di_buf *b = &j->out;
    int64_t max_tokens;
    di_status status = DI_OK;
    j->ids.n = 0;
    di_buf_adds(b, "{\"prompt\": ");
    di_json_write_string(b, di_buf_str(&c->prompt.text));
    if (j->tokenizer) {
        TRY(di_prompt_encode(&c->prompt, j->tokenizer, &j->controls, NULL, &j->ids, j->err));
        di_buf_adds(b, ", \"token_ids\": [");
        for (size_t i = 0; i < j->ids.n; i++)
            di_buf_addf(b, i ? ", %d" : "%d", (int)j->ids.v[i]);
        di_buf_addc(b, ']');
    }
    if (j->opt->ranges)
        add_ranges(b, &c->prompt);
    add_images(b, c);
    TRY(di_chat_max_tokens(c, c->sampling.max_tokens, (int64_t)j->ids.n, j->opt->context, &max_tokens, j->err));
    di_buf_adds(b, ", \"sampling\": {\"temperature\": ");
    di_json_write_double(b, c->temperature);
    di_buf_adds(b, ", \"top_p\": ");
    di_json_write_double(b, c->top_p);
    bool free_text = c->constraint.kind == DI_CONSTRAIN_NONE;
    di_buf_addf(b, ", \"max_tokens\": %lld, \"constraint\": %s%s%s}", (long long)max_tokens, free_text ? "" : "\"",
                free_text ? "null" : di_constraint_name(c->constraint.kind), free_text ? "" : "\"");
    di_buf_addf(b, ", \"parser\": {\"start\": \"%s\"", starts[c->start]);
    add_bool(b, "tools_declared", c->tools_declared);
    add_bool(b, "json_mode", c->json_mode);
    di_buf_adds(b, "}}");
    TRY(di_buf_ok(b, j->err));
out:
    return status;
}

static di_status render(struct job *j, enum di_protocol protocol, const struct di_json *request)
{
    struct di_chat *chat = NULL;
    di_status status = di_chat_create(protocol, request, &j->chat, &chat, j->err);
    if (status == DI_OK)
        status = add_result(j, chat);
    di_chat_destroy(chat);
    return status;
}

/* {"protocol", "request"} of a line. */
static di_status run_record(void *ctx, const struct di_json *v)
{
    struct job *j = ctx;
    enum di_protocol protocol = DI_PROTOCOL_CHAT;
    const struct di_json *request = di_json_get(v, "request"), *name = di_json_get(v, "protocol");
    di_protocol_from_name(di_str_c(j->opt->protocol), &protocol);
    if (!request)
        return di_fail(j->err, DI_ERR_INVALID, "", "an object with \"request\" was expected");
    if (name && (name->type != DI_JSON_STRING || !di_protocol_from_name(name->text, &protocol)))
        return di_fail(j->err, DI_ERR_INVALID, "protocol", "chat, responses or messages was expected");
    return render(j, protocol, request);
}

/* A request alone. */
static di_status run_text(struct job *j, struct di_str text)
{
    struct di_arena arena;
    struct di_json *v;
    enum di_protocol protocol = DI_PROTOCOL_CHAT;
    di_arena_init(&arena);
    di_protocol_from_name(di_str_c(j->opt->protocol), &protocol);
    di_status status = di_json_parse(text, NULL, &arena, &v, j->err);
    if (status == DI_OK)
        status = render(j, protocol, v);
    di_arena_fini(&arena);
    return status;
}

static di_status run_stdin(struct job *j)
{
    struct di_buf text = {0};
    di_status status = di_read_stdin(DI_LINE_LIMIT, &text, j->err);
    if (status == DI_OK)
        status = run_text(j, di_buf_str(&text));
    if (status == DI_OK)
        status = di_write_line(stdout, di_buf_str(&j->out), j->err);
    di_buf_fini(&text);
    return status;
}

static int run_render(const void *options)
{
    const struct options *opt = options;
    di_error err = {0};
    struct job j = {.opt = opt, .chat = di_chat_options_default, .err = &err};
    bool failed = false;
    int32_t image_id;
    di_status status = DI_OK;
    j.chat.thinking = opt->thinking;
    j.chat.strict_history = opt->strict;
    j.chat.hosted_sampling = opt->hosted;
    j.chat.reasoning_history = opt->history[0] == 'k' ? DI_REASONING_KEEP : opt->history[0] == 'd' ? DI_REASONING_DROP : DI_REASONING_AUTO;
    if (opt->model) {
        TRY(di_tokenizer_load(opt->model, &j.tokenizer, &err));
        TRY(read_image_id(opt->model, &image_id, &err));
        TRY(di_control_ids_find(j.tokenizer, image_id, &j.controls, &err));
    }
    status = opt->jsonl ? di_run_jsonl(&(struct di_jsonl){run_record, &j, &j.out, &err}, &failed) : run_stdin(&j);
out:
    di_tokenizer_destroy(j.tokenizer);
    di_ids_fini(&j.ids);
    di_buf_fini(&j.out);
    if (status != DI_OK)
        return di_cli_fail("render", &err);
    return failed ? DI_EXIT_SOME_FAILED : DI_EXIT_OK;
}

const struct di_command di_cmd_render = {
    .name = "render",
    .summary = "show the prompt that a chat request becomes",
    .usage = "[--model DIR] [--jsonl] [options] < REQUEST",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_render,
};
