/* Pieces of JSON that several dialects write. */
#include "server/protocol_impl.h"

void di_write_key(struct di_buf *b, const char *key)
{
    di_buf_addc(b, ',');
    di_buf_addc(b, '"');
    di_buf_adds(b, key);
    di_buf_adds(b, "\":");
}

void di_write_string(struct di_buf *b, const char *key, struct di_str value)
{
    di_write_key(b, key);
    di_json_write_string(b, value);
}

void di_write_int(struct di_buf *b, const char *key, int64_t value)
{
    di_write_key(b, key);
    di_buf_addf(b, "%lld", (long long)value);
}

void di_write_echo(struct di_buf *b, const char *key, const struct di_json *value, const char *otherwise)
{
    di_write_key(b, key);
    if (value)
        di_json_write_compact(b, value);
    else
        di_buf_adds(b, otherwise);
}

struct di_usage di_exchange_usage(const struct di_exchange *x)
{
    struct di_usage u = {0};
    for (size_t i = 0; i < x->n_answers; i++) {
        const struct di_answer *a = &x->answers[i];
        if (i % x->n_samples == 0) {
            u.prompt += a->prompt_tokens;
            u.cached += a->cached_tokens;
        }
        u.completion += a->completion_tokens;
        u.reasoning += a->n_reasoning;
        u.drafted += a->drafted_tokens;
        u.accepted += a->accepted_tokens;
    }
    return u;
}

void di_write_usage(struct di_buf *b, struct di_usage u)
{
    di_buf_addf(
        b,
        "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
        "\"completion_tokens_details\":{\"reasoning_tokens\":%lld,\"drafted_tokens\":%lld,\"accepted_tokens\":%lld},"
        "\"prompt_cache_hit_tokens\":%lld,\"prompt_cache_miss_tokens\":%lld}",
        (long long)u.prompt, (long long)u.completion, (long long)(u.prompt + u.completion), (long long)u.cached, (long long)u.reasoning,
        (long long)u.drafted, (long long)u.accepted, (long long)u.cached, (long long)(u.prompt - u.cached));
}

const char *di_chat_finish(const struct di_answer *a)
{
    switch (a->reason) {
    case DI_REASON_LENGTH: return "length";
    case DI_REASON_TOOL_CALLS: return "tool_calls";
    case DI_REASON_CANCELLED:
    case DI_REASON_DEADLINE:
    case DI_REASON_ERROR: return "insufficient_system_resource";
    default: return "stop";
    }
}

void di_write_stop_reason(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a)
{
    di_write_key(b, "stop_reason");
    if (a->stop_index >= 0) {
        di_json_write_string(b, di_buf_str(&a->stop));
        return;
    }
    bool ended = a->reason == DI_REASON_STOP || a->reason == DI_REASON_TOOL_CALLS;
    for (size_t i = 0; ended && i < x->n_stop_ids; i++)
        if (x->stop_ids[i] == a->last_token) {
            di_buf_addf(b, "%lld", (long long)a->last_token);
            return;
        }
    di_buf_adds(b, "null");
}

/* Is text + end a JSON object? */
static struct di_json *as_object(struct di_str text, const char *end, struct di_buf *room, struct di_arena *arena)
{
    struct di_json *v;
    di_buf_clear(room);
    di_buf_addv(room, text);
    di_buf_adds(room, end);
    return di_json_parse(di_buf_str(room), NULL, arena, &v, NULL) == DI_OK && v->type == DI_JSON_OBJECT ? v : NULL;
}

/* Bytes of an unfinished object up to which its members were closed: behind its last value if nothing can follow in it, else before the last
 * comma between members; 0: none was. */
static void closed_members(struct di_str s, size_t closed[static 2])
{
    bool string = false, value = false;
    int depth = 0;
    closed[0] = closed[1] = 0;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (string) {
            i += c == '\\';
            string = c != '"';
        } else if (c == '"') {
            string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (depth == 1 && c == ':') {
            value = true;
        } else if (depth == 1 && c == ',') {
            value = false;
            closed[1] = i;
        }
    }
    if (depth == 1 && value && !string && !(s.p[s.n - 1] >= '0' && s.p[s.n - 1] <= '9')) /* a number may go on */
        closed[0] = s.n;
}

bool di_call_closed(const struct di_answer_call *c)
{
    struct di_arena arena;
    struct di_buf room = {0};
    di_arena_init(&arena);
    bool closed = as_object(di_buf_str(&c->arguments), "", &room, &arena);
    di_arena_fini(&arena);
    di_buf_fini(&room);
    return closed;
}

void di_write_arguments(struct di_buf *b, const struct di_answer_call *c)
{
    struct di_arena arena;
    struct di_buf room = {0};
    struct di_str raw = di_buf_str(&c->arguments);
    size_t closed[2];
    di_arena_init(&arena);
    bool is = as_object(raw, "", &room, &arena);
    if (!is)
        closed_members(raw, closed);
    for (int i = 0; i < 2 && !is; i++)
        is = closed[i] && as_object((struct di_str){raw.p, closed[i]}, "}", &room, &arena);
    di_buf_addv(b, is ? di_buf_str(&room) : DI_STR("{}"));
    b->failed = b->failed || room.failed;
    di_arena_fini(&arena);
    di_buf_fini(&room);
}

void di_write_custom_input(struct di_buf *b, const struct di_answer_call *c)
{
    struct di_arena arena;
    struct di_buf room = {0};
    struct di_str raw = di_buf_str(&c->arguments);
    di_arena_init(&arena);
    const struct di_json *v = as_object(raw, "", &room, &arena);
    if (!v)
        v = as_object(raw, "\"}", &room, &arena); /* cut off inside the text */
    const struct di_json *input = di_json_get(v, "input");
    di_json_write_string(b, di_json_is(input, DI_JSON_STRING) ? input->text : raw.n ? raw : DI_STR(""));
    b->failed = b->failed || room.failed;
    di_arena_fini(&arena);
    di_buf_fini(&room);
}

void di_write_openai_head(struct di_buf *b, const struct di_exchange *x, const char *object)
{
    di_buf_adds(b, "{\"id\":");
    di_json_write_string(b, di_str_c(x->id));
    di_buf_addf(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)x->request.now);
    di_json_write_string(b, di_str_c(x->model));
    di_buf_adds(b, ",\"system_fingerprint\":\"deepinfer-" DI_VERSION_STRING "\",\"choices\":[");
}

void di_write_chunk_usage(struct di_buf *b, const struct di_exchange *x, bool finish)
{
    bool all = x->n_finished == x->n_answers;
    if (x->continuous_usage || (x->setup->usage_on_finish && finish && all)) {
        di_write_key(b, "usage");
        di_write_usage(b, di_exchange_usage(x));
    } else if (x->include_usage) {
        di_buf_adds(b, ",\"usage\":null");
    }
}

/* OpenAI's way: one more chunk with the usage and no choice. */
void di_write_openai_end(struct di_buf *b, const struct di_exchange *x, const char *object)
{
    if (x->include_usage && !x->setup->usage_on_finish) {
        di_buf_adds(b, "data: ");
        di_write_openai_head(b, x, object);
        di_buf_adds(b, "],\"usage\":");
        di_write_usage(b, di_exchange_usage(x));
        di_buf_adds(b, "}\n\n");
    }
    di_buf_adds(b, "data: [DONE]\n\n");
}
