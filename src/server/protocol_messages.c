/* Anthropic's Messages: a stream of content blocks, or the message that they add up to (spec/encoding.md §4.6). */
#include "server/protocol_impl.h"

enum block { NONE, THINKING, TEXT, TOOL_USE };

struct own {
    enum block open;
    int index; /* of the open block, or of the next one */
    bool pinged;
    int64_t max_tokens;
};

static di_status read_messages(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    struct own *own = x->own = di_arena_alloc(&x->arena, sizeof *own);
    CHECK(own, err, DI_ERR_MEMORY, "", "out of memory for a request");
    *own = (struct own){.open = NONE, .max_tokens = di_field_int(x->json, "max_tokens", INT64_MAX)};
    TRY(di_exchange_make_answers(x, 1, 1, err));
out:
    return status;
}

static void write_usage(struct di_buf *b, const struct di_exchange *x)
{
    struct di_usage u = di_exchange_usage(x);
    di_buf_addf(b,
                "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,\"output_tokens\":%lld,"
                "\"output_tokens_details\":{\"thinking_tokens\":%lld},\"service_tier\":\"standard\"}",
                (long long)(u.prompt - u.cached), (long long)u.cached, (long long)u.completion, (long long)u.reasoning);
}

/* Did the context end it, and not the number that was asked for? */
static bool is_context_full(const struct di_exchange *x, const struct di_answer *a)
{
    const struct own *own = x->own;
    di_model_info info;
    return x->setup->engine && di_engine_info(x->setup->engine, &info, sizeof info, NULL) == DI_OK &&
           a->prompt_tokens + a->completion_tokens >= info.context && a->completion_tokens < own->max_tokens;
}

/* Does a thinking block stand first, maybe an empty one? Not before a text that goes on. */
static bool has_thinking_block(const struct di_answer *a)
{
    return a->thinking && a->start != DI_STARTS_CONTENT_CONTINUED;
}

static const char *stop_reason(const struct di_exchange *x, const struct di_answer *a)
{
    switch (a->reason) {
    case DI_REASON_LENGTH: return is_context_full(x, a) ? "model_context_window_exceeded" : "max_tokens";
    case DI_REASON_TOOL_CALLS: return "tool_use";
    default: return a->stop_index >= 0 ? "stop_sequence" : "end_turn";
    }
}

static void write_stop(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a)
{
    di_buf_addf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(x, a));
    if (a->stop_index >= 0)
        di_json_write_string(b, di_buf_str(&a->stop));
    else
        di_buf_adds(b, "null");
}

static void write_head(struct di_buf *b, const struct di_exchange *x)
{
    di_buf_adds(b, "{\"id\":");
    di_json_write_string(b, di_str_c(x->id));
    di_buf_adds(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    di_json_write_string(b, di_str_c(x->model));
    di_buf_adds(b, ",\"content\":[");
}

/* ---------------------------------------------------------------- streaming */

static void open_event(struct di_buf *b, const char *type)
{
    di_buf_addf(b, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void close_event(struct di_buf *b)
{
    di_buf_adds(b, "}\n\n");
}

static void delta(struct di_exchange *x, const char *type, const char *key, struct di_str text, struct di_buf *out)
{
    const struct own *own = x->own;
    open_event(out, "content_block_delta");
    di_buf_addf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", own->index, type, key);
    di_json_write_string(out, text);
    di_buf_addc(out, '}');
    close_event(out);
}

static void close_block(struct di_exchange *x, struct di_buf *out)
{
    struct own *own = x->own;
    if (own->open == NONE)
        return;
    if (own->open == THINKING) /* clients send it back; nothing here reads it */
        delta(x, "signature_delta", "signature", di_str_c(x->id), out);
    open_event(out, "content_block_stop");
    di_write_int(out, "index", own->index);
    close_event(out);
    own->open = NONE;
    own->index++;
}

static void open_block(struct di_exchange *x, enum block kind, const struct di_answer_call *call, struct di_buf *out)
{
    struct own *own = x->own;
    close_block(x, out);
    own->open = kind;
    open_event(out, "content_block_start");
    di_write_int(out, "index", own->index);
    di_write_key(out, "content_block");
    if (kind == TOOL_USE) {
        di_buf_adds(out, "{\"type\":\"tool_use\"");
        di_write_string(out, "id", di_buf_str(&call->id));
        di_write_string(out, "name", di_buf_str(&call->name));
        di_buf_adds(out, ",\"input\":{}}");
    } else {
        di_buf_adds(out,
                    kind == TEXT ? "{\"type\":\"text\",\"text\":\"\"}" : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    }
    close_event(out);
    if (!own->pinged) {
        open_event(out, "ping");
        close_event(out);
    }
    own->pinged = true;
}

static void message_start(struct di_exchange *x, const struct di_answer *a, struct di_buf *out)
{
    open_event(out, "message_start");
    di_write_key(out, "message");
    write_head(out, x);
    di_buf_adds(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(out, x);
    di_buf_addc(out, '}');
    close_event(out);
    if (has_thinking_block(a))
        open_block(x, THINKING, NULL, out);
}

static void text(struct di_exchange *x, enum block kind, struct di_str s, struct di_buf *out)
{
    const struct own *own = x->own;
    if (own->open != kind)
        open_block(x, kind, NULL, out);
    delta(x, kind == TEXT ? "text_delta" : "thinking_delta", kind == TEXT ? "text" : "thinking", s, out);
}

static void write_messages_record(struct di_exchange *x, struct di_answer *a, const di_output *o, struct di_buf *out)
{
    struct di_str s = {o->text, o->text_bytes};
    switch (o->kind) {
    case DI_OUTPUT_STARTED: message_start(x, a, out); break;
    case DI_OUTPUT_REASONING: text(x, THINKING, s, out); break;
    case DI_OUTPUT_TEXT: text(x, TEXT, s, out); break;
    case DI_OUTPUT_RECOVERED: text(x, TEXT, di_buf_str(&a->content), out); break;
    case DI_OUTPUT_CALL: open_block(x, TOOL_USE, &a->calls[a->n_calls - 1], out); break;
    case DI_OUTPUT_ARGUMENTS:
        if (a->n_calls)
            delta(x, "input_json_delta", "partial_json", s, out);
        break;
    default: break;
    }
}

static void end_messages_answer(struct di_exchange *x, struct di_answer *a, struct di_buf *out)
{
    close_block(x, out);
    open_event(out, "message_delta");
    di_buf_adds(out, ",\"delta\":{");
    write_stop(out, x, a);
    di_buf_adds(out, "},\"usage\":");
    write_usage(out, x);
    close_event(out);
}

static void end_messages(struct di_exchange *x, struct di_buf *out)
{
    (void)x;
    open_event(out, "message_stop");
    close_event(out);
}

static void error_event(struct di_exchange *x, const struct di_http_error *e, struct di_buf *out)
{
    di_buf_adds(out, "event: error\ndata: ");
    di_http_error_write(DI_DIALECT_ANTHROPIC, e, x->request.request_id, out);
    di_buf_adds(out, "\n\n");
}

/* ---------------------------------------------------------------- body */

static void write_messages_body(struct di_exchange *x, struct di_buf *out)
{
    const struct di_answer *a = &x->answers[0];
    const char *comma = "";
    write_head(out, x);
    if (has_thinking_block(a)) {
        di_buf_adds(out, "{\"type\":\"thinking\"");
        di_write_string(out, "thinking", di_buf_str(&a->reasoning));
        di_write_string(out, "signature", di_str_c(x->id));
        di_buf_addc(out, '}');
        comma = ",";
    }
    if (a->content.n) {
        di_buf_addf(out, "%s{\"type\":\"text\"", comma);
        di_write_string(out, "text", di_buf_str(&a->content));
        di_buf_addc(out, '}');
        comma = ",";
    }
    for (size_t i = 0; i < a->n_calls; i++) {
        di_buf_addf(out, "%s{\"type\":\"tool_use\"", comma);
        di_write_string(out, "id", di_buf_str(&a->calls[i].id));
        di_write_string(out, "name", di_buf_str(&a->calls[i].name));
        di_write_key(out, "input");
        di_write_arguments(out, &a->calls[i]);
        di_buf_addc(out, '}');
        comma = ",";
    }
    di_buf_adds(out, "],");
    write_stop(out, x, a);
    di_buf_adds(out, ",\"usage\":");
    write_usage(out, x);
    di_buf_addc(out, '}');
}

const struct di_dialect_ops di_messages_ops = {
    .id_prefix = "msg_",
    .read = read_messages,
    .record = write_messages_record,
    .answer_end = end_messages_answer,
    .end = end_messages,
    .error_event = error_event,
    .body = write_messages_body,
};
