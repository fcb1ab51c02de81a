/* Chat completions: chunks and body (spec/encoding.md §4.3). */
#include "server/protocol_impl.h"

static di_status read_chat(struct di_exchange *x, di_error *err)
{
    const struct di_json *options = di_field(x->json, "stream_options"), *hide = di_field(x->json, "include_reasoning");
    int64_t n = di_field_int(x->json, "n", 1);
    x->include_usage = di_field_true(options, "include_usage");
    x->continuous_usage = di_field_true(options, "continuous_usage_stats");
    x->hide_reasoning = di_json_is(hide, DI_JSON_BOOL) && !hide->boolean;
    x->logprobs = di_field_true(x->json, "logprobs");
    bool many = n > 1 && n <= 128; /* else the engine says what is wrong with it */
    return di_exchange_make_answers(x, 1, many ? (size_t)n : 1, err);
}

/* ---------------------------------------------------------------- streaming */

/* A log-probability list of the answer, which is empty afterwards. */
static void write_tokens(struct di_buf *b, struct di_logprob_list *l)
{
    di_buf_addc(b, '[');
    di_buf_addv(b, di_buf_str(&l->entries));
    di_buf_addc(b, ']');
    di_buf_clear(&l->entries);
    l->n = 0;
}

static void write_logprobs(struct di_buf *b, const struct di_exchange *x, struct di_answer *a)
{
    di_write_key(b, "logprobs");
    if (!x->logprobs || (x->stream && !a->content_tokens.n && !a->reasoning_tokens.n)) {
        di_buf_adds(b, "null");
        return;
    }
    di_buf_adds(b, "{\"content\":");
    write_tokens(b, &a->content_tokens);
    if (a->thinking && !x->hide_reasoning) {
        di_write_key(b, "reasoning_content");
        write_tokens(b, &a->reasoning_tokens);
    }
    di_buf_addc(b, '}');
}

/* A chunk up to its delta's brace. */
static void open_chunk(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a)
{
    di_buf_adds(b, "data: ");
    di_write_openai_head(b, x, "chat.completion.chunk");
    di_buf_addf(b, "{\"index\":%zu,\"delta\":{", (size_t)(a - x->answers));
}

static void close_chunk(struct di_buf *b, struct di_exchange *x, struct di_answer *a, bool last)
{
    di_buf_addc(b, '}');
    write_logprobs(b, x, a);
    di_write_key(b, "finish_reason");
    if (last) {
        di_buf_addf(b, "\"%s\"", di_chat_finish(a));
        di_write_stop_reason(b, x, a);
    } else {
        di_buf_adds(b, "null");
    }
    di_buf_adds(b, "}]");
    di_write_chunk_usage(b, x, last);
    di_buf_adds(b, "}\n\n");
}

static bool shows_reasoning(const struct di_exchange *x, const struct di_answer *a)
{
    return a->thinking && !x->hide_reasoning;
}

static void write_reasoning(struct di_buf *b, const struct di_exchange *x, struct di_str text)
{
    di_write_string(b, "reasoning_content", text);
    if (x->setup->reasoning_twin)
        di_write_string(b, "reasoning", text);
}

static void first_chunk(struct di_exchange *x, struct di_answer *a, struct di_buf *out)
{
    bool inside = shows_reasoning(x, a) && a->start != DI_STARTS_CONTENT_CONTINUED;
    open_chunk(out, x, a);
    di_buf_adds(out, inside ? "\"role\":\"assistant\",\"content\":null" : "\"role\":\"assistant\",\"content\":\"\"");
    if (inside)
        write_reasoning(out, x, DI_STR(""));
    else if (shows_reasoning(x, a))
        di_buf_adds(out, ",\"reasoning_content\":null");
    close_chunk(out, x, a, false);
}

static void content_chunk(struct di_exchange *x, struct di_answer *a, struct di_str text, bool last, struct di_buf *out)
{
    open_chunk(out, x, a);
    di_buf_adds(out, "\"content\":");
    di_json_write_string(out, text);
    if (shows_reasoning(x, a))
        di_buf_adds(out, ",\"reasoning_content\":null");
    close_chunk(out, x, a, last);
}

/* A custom tool's text is known when its call is over: call number n - 1. */
static void custom_chunk(struct di_exchange *x, struct di_answer *a, size_t n, struct di_buf *out)
{
    if (n == 0 || !a->calls[n - 1].custom)
        return;
    open_chunk(out, x, a);
    di_buf_addf(out, "\"tool_calls\":[{\"index\":%zu,\"custom\":{\"input\":", n - 1);
    di_write_custom_input(out, &a->calls[n - 1]);
    di_buf_adds(out, "}}]");
    close_chunk(out, x, a, false);
}

static void call_chunk(struct di_exchange *x, struct di_answer *a, struct di_buf *out)
{
    const struct di_answer_call *c = &a->calls[a->n_calls - 1];
    open_chunk(out, x, a);
    di_buf_addf(out, "\"tool_calls\":[{\"index\":%zu,\"id\":", a->n_calls - 1);
    di_json_write_string(out, di_buf_str(&c->id));
    di_buf_adds(out, c->custom ? ",\"type\":\"custom\",\"custom\":{\"name\":" : ",\"type\":\"function\",\"function\":{\"name\":");
    di_json_write_string(out, di_buf_str(&c->name));
    di_buf_adds(out, c->custom ? ",\"input\":\"\"}}]" : ",\"arguments\":\"\"}}]");
    close_chunk(out, x, a, false);
}

static void arguments_chunk(struct di_exchange *x, struct di_answer *a, struct di_str text, struct di_buf *out)
{
    if (!a->n_calls || a->calls[a->n_calls - 1].custom)
        return;
    open_chunk(out, x, a);
    di_buf_addf(out, "\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", a->n_calls - 1);
    di_json_write_string(out, text);
    di_buf_adds(out, "}}]");
    close_chunk(out, x, a, false);
}

static void write_chat_record(struct di_exchange *x, struct di_answer *a, const di_output *o, struct di_buf *out)
{
    struct di_str text = {o->text, o->text_bytes};
    switch (o->kind) {
    case DI_OUTPUT_STARTED: first_chunk(x, a, out); break;
    case DI_OUTPUT_REASONING:
        if (x->hide_reasoning)
            break;
        open_chunk(out, x, a);
        di_buf_adds(out, "\"content\":null");
        write_reasoning(out, x, text);
        close_chunk(out, x, a, false);
        break;
    case DI_OUTPUT_TEXT: content_chunk(x, a, text, false, out); break;
    case DI_OUTPUT_RECOVERED: content_chunk(x, a, di_buf_str(&a->content), false, out); break;
    case DI_OUTPUT_CALL:
        custom_chunk(x, a, a->n_calls - 1, out);
        call_chunk(x, a, out);
        break;
    case DI_OUTPUT_ARGUMENTS: arguments_chunk(x, a, text, out); break;
    default: break; /* tokens wait for the text that they complete */
    }
}

static void end_chat_answer(struct di_exchange *x, struct di_answer *a, struct di_buf *out)
{
    custom_chunk(x, a, a->n_calls, out);
    content_chunk(x, a, DI_STR(""), true, out);
}

static void end_chat(struct di_exchange *x, struct di_buf *out)
{
    di_write_openai_end(out, x, "chat.completion.chunk");
}

void di_openai_error_event(struct di_exchange *x, const struct di_http_error *e, struct di_buf *out)
{
    di_buf_adds(out, "data: ");
    di_http_error_write(DI_DIALECT_OPENAI, e, x->request.request_id, out);
    di_buf_adds(out, "\n\ndata: [DONE]\n\n");
}

/* ---------------------------------------------------------------- body */

static void write_calls(struct di_buf *b, const struct di_answer *a)
{
    di_buf_adds(b, ",\"tool_calls\":[");
    for (size_t i = 0; i < a->n_calls; i++) {
        const struct di_answer_call *c = &a->calls[i];
        di_buf_adds(b, i ? ",{\"id\":" : "{\"id\":");
        di_json_write_string(b, di_buf_str(&c->id));
        di_buf_adds(b, c->custom ? ",\"type\":\"custom\",\"custom\":{\"name\":" : ",\"type\":\"function\",\"function\":{\"name\":");
        di_json_write_string(b, di_buf_str(&c->name));
        di_write_key(b, c->custom ? "input" : "arguments");
        if (c->custom)
            di_write_custom_input(b, c);
        else
            di_json_write_string(b, di_buf_str(&c->arguments));
        di_buf_adds(b, "}}");
    }
    di_buf_addc(b, ']');
}

static void write_choice(struct di_buf *b, struct di_exchange *x, struct di_answer *a)
{
    di_buf_addf(b, "{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", (size_t)(a - x->answers));
    di_json_write_string(b, di_buf_str(&a->content));
    if (shows_reasoning(x, a) && a->start == DI_STARTS_CONTENT_CONTINUED)
        di_buf_adds(b, ",\"reasoning_content\":null");
    else if (shows_reasoning(x, a))
        write_reasoning(b, x, di_buf_str(&a->reasoning));
    if (a->n_calls)
        write_calls(b, a);
    di_buf_addc(b, '}');
    write_logprobs(b, x, a);
    di_buf_addf(b, ",\"finish_reason\":\"%s\"", di_chat_finish(a));
    di_write_stop_reason(b, x, a);
    di_buf_addc(b, '}');
}

static void write_chat_body(struct di_exchange *x, struct di_buf *out)
{
    di_write_openai_head(out, x, "chat.completion");
    for (size_t i = 0; i < x->n_answers; i++) {
        if (i)
            di_buf_addc(out, ',');
        write_choice(out, x, &x->answers[i]);
    }
    di_buf_adds(out, "],\"usage\":");
    di_write_usage(out, di_exchange_usage(x));
    di_buf_addc(out, '}');
}

const struct di_dialect_ops di_chat_ops = {
    .id_prefix = "chatcmpl-",
    .read = read_chat,
    .record = write_chat_record,
    .answer_end = end_chat_answer,
    .end = end_chat,
    .error_event = di_openai_error_event,
    .body = write_chat_body,
};
