/* OpenAI's Responses: a stream of items, or the response that holds them (spec/encoding.md §4.5). */
#include "server/protocol_impl.h"
#include "server/response_store.h"

enum item { NONE, REASONING, MESSAGE, CALL };
enum call { FUNCTION, CUSTOM, SEARCH };

struct own {
    enum item open;
    int index;   /* of the open item, or of the next one */
    size_t call; /* the open call */
    long long sequence;
    bool store, searches;                 /* searches: see declares_search */
    struct di_buf input;                  /* items of the conversation so far, with a store */
    struct di_buf settings;               /* what the response repeats of the request */
    struct di_buf pending, fresh, tokens; /* log-probabilities: of text that is held back, of the last piece, of the message */
};

/* ---------------------------------------------------------------- request */

static bool includes(const struct di_json *list, const char *what)
{
    for (const struct di_json *v = di_json_is(list, DI_JSON_ARRAY) ? list->child : NULL; v; v = v->next)
        if (di_json_is(v, DI_JSON_STRING) && di_str_eqc(v->text, what))
            return true;
    return false;
}

/* Was a search of tools declared, which the client runs? Then its call is an item of its own kind. */
static bool declares_search(const struct di_json *tools)
{
    for (const struct di_json *t = di_json_is(tools, DI_JSON_ARRAY) ? tools->child : NULL; t; t = t->next)
        if (di_str_eqc(di_field_string(t, "type"), "tool_search"))
            return true;
    return false;
}

/* The members of the request that the response repeats. */
static void write_settings(struct di_buf *b, const struct di_exchange *x)
{
    static const struct {
        const char *key, *otherwise;
    } echoed[] = {{"background", "false"},
                  {"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"max_tool_calls", "null"},
                  {"metadata", "{}"},
                  {"parallel_tool_calls", "true"},
                  {"previous_response_id", "null"},
                  {"prompt_cache_key", "null"},
                  {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"safety_identifier", "null"},
                  {"temperature", "1.0"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_logprobs", "0"},
                  {"top_p", "1.0"},
                  {"truncation", "\"disabled\""},
                  {"user", "null"}};
    const struct own *own = x->own;
    for (size_t i = 0; i < sizeof echoed / sizeof *echoed; i++)
        di_write_echo(b, echoed[i].key, di_field(x->json, echoed[i].key), echoed[i].otherwise);
    di_buf_addf(b, ",\"service_tier\":\"default\",\"store\":%s", own->store ? "true" : "false");
}

static di_status read_responses(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    struct own *own = x->own = di_arena_alloc(&x->arena, sizeof *own);
    CHECK(own, err, DI_ERR_MEMORY, "", "out of memory for a request");
    *own = (struct own){.open = NONE};
    bool asked = includes(di_field(x->json, "include"), "message.output_text.logprobs");
    x->logprobs = asked || di_field(x->json, "top_logprobs");
    x->overrides.logprobs = asked;
    TRY(di_exchange_make_answers(x, 1, 1, err));
    const struct di_json *store = di_field(x->json, "store");
    own->store = x->setup->store && !(di_json_is(store, DI_JSON_BOOL) && !store->boolean);
    own->searches = declares_search(di_field(x->json, "tools"));
    write_settings(&own->settings, x);
    TRY(di_buf_ok(&own->settings, err));
    TRY(di_stored_conversation(x, &own->input, err));
    x->kept = own->settings.cap + own->input.cap;
out:
    return status;
}

static void free_responses(struct di_exchange *x)
{
    struct own *own = x->own;
    if (!own)
        return;
    di_buf_fini(&own->input);
    di_buf_fini(&own->settings);
    di_buf_fini(&own->pending);
    di_buf_fini(&own->fresh);
    di_buf_fini(&own->tokens);
}

/* ---------------------------------------------------------------- items */

static enum call kind_of(const struct di_exchange *x, const struct di_answer_call *c)
{
    const struct own *own = x->own;
    if (c->custom)
        return CUSTOM;
    bool search = c->space.n == 0 && di_str_eqc(di_buf_str(&c->name), "tool_search") && own->searches;
    return search ? SEARCH : FUNCTION;
}

static void open_item(struct di_buf *b, const struct di_exchange *x, const char *type, const char *prefix, int index, const char *status)
{
    di_buf_addf(b, "{\"type\":\"%s\",\"id\":\"%s_%s_%d\",\"status\":\"%s\"", type, prefix, x->id, index, status);
}

/* `whole`: with what the item holds, else as it is when it begins. */
static void write_reasoning(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a, int index, const char *status,
                            bool whole)
{
    open_item(b, x, "reasoning", "rs", index, status);
    di_write_key(b, "content");
    if (whole) {
        di_buf_adds(b, "[{\"type\":\"reasoning_text\"");
        di_write_string(b, "text", di_buf_str(&a->reasoning));
        di_buf_adds(b, "}]");
    } else {
        di_buf_adds(b, "[]");
    }
    di_buf_addf(b, ",\"summary\":[],\"encrypted_content\":\"%s-%d\"}", x->id, index);
}

static void write_text_part(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a, bool whole)
{
    const struct own *own = x->own;
    di_buf_adds(b, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
    if (whole)
        di_buf_addv(b, di_buf_str(&own->tokens));
    di_buf_addc(b, ']');
    di_write_string(b, "text", whole ? di_buf_str(&a->content) : DI_STR(""));
    di_buf_addc(b, '}');
}

static void write_message(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a, int index, const char *status,
                          bool whole)
{
    open_item(b, x, "message", "msg", index, status);
    di_buf_addf(b, ",\"role\":\"assistant\",\"phase\":\"%s\",\"content\":[", whole && a->n_calls ? "commentary" : "final_answer");
    if (whole)
        write_text_part(b, x, a, true);
    di_buf_adds(b, "]}");
}

static void write_call(struct di_buf *b, const struct di_exchange *x, const struct di_answer_call *c, int index, const char *status,
                       bool whole)
{
    static const char *const types[] = {"function_call", "custom_tool_call", "tool_search_call"};
    static const char *const prefixes[] = {"fc", "ctc", "tsc"};
    static const char *const keys[] = {"arguments", "input", "arguments"};
    enum call kind = kind_of(x, c);
    open_item(b, x, types[kind], prefixes[kind], index, status);
    di_write_string(b, "call_id", di_buf_str(&c->id));
    if (kind == SEARCH)
        di_buf_adds(b, ",\"execution\":\"client\"");
    else
        di_write_string(b, "name", di_buf_str(&c->name));
    if (c->space.n)
        di_write_string(b, "namespace", di_buf_str(&c->space));
    di_write_key(b, keys[kind]);
    if (!whole)
        di_buf_adds(b, kind == SEARCH ? "{}" : "\"\"");
    else if (kind == SEARCH)
        di_write_arguments(b, c);
    else if (kind == CUSTOM)
        di_write_custom_input(b, c);
    else
        di_json_write_string(b, di_buf_str(&c->arguments));
    di_buf_addc(b, '}');
}

static bool incomplete(const struct di_answer *a)
{
    return a->reason == DI_REASON_LENGTH;
}

/* The status of the last item. A model can end in the middle of a call. */
static const char *last_status(const struct di_answer *a)
{
    return incomplete(a) || (a->n_calls && !di_call_closed(&a->calls[a->n_calls - 1])) ? "incomplete" : "completed";
}

/* Reasoning, message, calls: what the parser gives comes in this order. Only the last item can be cut off. */
static void write_items(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a)
{
    int n = (a->reasoning.n > 0) + (a->content.n > 0) + (int)a->n_calls, i = 0;
    const char *last = last_status(a);
    if (a->reasoning.n) {
        write_reasoning(b, x, a, i, i + 1 == n ? last : "completed", true);
        i++;
    }
    if (a->content.n) {
        di_buf_adds(b, i ? "," : "");
        write_message(b, x, a, i, i + 1 == n ? last : "completed", true);
        i++;
    }
    for (size_t k = 0; k < a->n_calls; k++, i++) {
        di_buf_adds(b, i ? "," : "");
        write_call(b, x, &a->calls[k], i, i + 1 == n ? last : "completed", true);
    }
}

/* ---------------------------------------------------------------- the response object */

static void write_usage(struct di_buf *b, const struct di_exchange *x)
{
    struct di_usage u = di_exchange_usage(x);
    di_buf_addf(
        b,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":0},"
        "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld,\"drafted_tokens\":%lld,\"accepted_tokens\":%lld},"
        "\"total_tokens\":%lld}",
        (long long)u.prompt, (long long)u.cached, (long long)u.completion, (long long)u.reasoning, (long long)u.drafted,
        (long long)u.accepted, (long long)(u.prompt + u.completion));
}

enum state { IN_PROGRESS, ENDED, FAILED };

static void write_response(struct di_buf *b, const struct di_exchange *x, enum state state, const struct di_http_error *error)
{
    const struct own *own = x->own;
    const struct di_answer *a = &x->answers[0];
    const char *status = state == IN_PROGRESS ? "in_progress" : state == FAILED ? "failed" : incomplete(a) ? "incomplete" : "completed";
    di_buf_adds(b, "{\"id\":");
    di_json_write_string(b, di_str_c(x->id));
    di_buf_addf(b, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":", (long long)x->request.now, status);
    if (error) {
        di_buf_adds(b, "{\"code\":");
        di_json_write_string(b, di_str_c(error->status >= 500 ? "server_error" : error->code ? error->code : "invalid_prompt"));
        di_write_string(b, "message", di_str_c(error->message));
        di_buf_addc(b, '}');
    } else {
        di_buf_adds(b, "null");
    }
    di_buf_adds(b, state == ENDED && incomplete(a) ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                                                   : ",\"incomplete_details\":null");
    di_write_string(b, "model", di_str_c(x->model));
    di_buf_adds(b, ",\"output\":[");
    if (state == ENDED)
        write_items(b, x, a);
    di_buf_addc(b, ']');
    di_buf_addv(b, di_buf_str(&own->settings));
    if (state == ENDED)
        write_usage(b, x);
    else
        di_buf_adds(b, ",\"usage\":null");
    di_buf_addc(b, '}');
}

/* Both forms end here. */
static void keep(const struct di_exchange *x)
{
    struct own *own = x->own;
    struct di_buf object = {0};
    if (!own->store)
        return;
    write_response(&object, x, ENDED, NULL);
    if (own->input.n)
        di_buf_addc(&own->input, ',');
    size_t before = own->input.n;
    write_items(&own->input, x, &x->answers[0]);
    if (own->input.n == before && before) /* an empty answer */
        own->input.n--;
    if (!object.failed && !own->input.failed)
        di_response_store_put(x->setup->store, x->request.tenant, di_str_c(x->id), di_buf_str(&own->input), di_buf_str(&object));
    di_buf_fini(&object);
}

/* ---------------------------------------------------------------- streaming */

static void open_event(struct di_exchange *x, const char *type, struct di_buf *out)
{
    struct own *own = x->own;
    di_buf_addf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type, type, own->sequence++);
}

static void close_event(struct di_buf *out)
{
    di_buf_adds(out, "}\n\n");
}

static void response_event(struct di_exchange *x, const char *type, enum state state, const struct di_http_error *error, struct di_buf *out)
{
    open_event(x, type, out);
    di_write_key(out, "response");
    write_response(out, x, state, error);
    close_event(out);
}

static void place(struct di_buf *out, const struct di_exchange *x, const char *prefix, bool part)
{
    const struct own *own = x->own;
    di_buf_addf(out, ",\"item_id\":\"%s_%s_%d\",\"output_index\":%d%s", prefix, x->id, own->index, own->index,
                part ? ",\"content_index\":0" : "");
}

static const char *const part_prefix[] = {[REASONING] = "rs", [MESSAGE] = "msg"};

static void write_part(struct di_buf *out, const struct di_exchange *x, const struct di_answer *a, enum item kind, bool whole)
{
    di_write_key(out, "part");
    if (kind == MESSAGE) {
        write_text_part(out, x, a, whole);
    } else {
        di_buf_adds(out, "{\"type\":\"reasoning_text\"");
        di_write_string(out, "text", whole ? di_buf_str(&a->reasoning) : DI_STR(""));
        di_buf_addc(out, '}');
    }
}

static void item_event(struct di_exchange *x, const struct di_answer *a, const char *type, const char *status, bool whole,
                       struct di_buf *out)
{
    const struct own *own = x->own;
    open_event(x, type, out);
    di_write_int(out, "output_index", own->index);
    di_write_key(out, "item");
    if (own->open == REASONING)
        write_reasoning(out, x, a, own->index, status, whole);
    else if (own->open == MESSAGE)
        write_message(out, x, a, own->index, status, whole);
    else
        write_call(out, x, &a->calls[own->call], own->index, status, whole);
    close_event(out);
}

static void part_done(struct di_exchange *x, const struct di_answer *a, struct di_buf *out)
{
    struct own *own = x->own;
    bool message = own->open == MESSAGE;
    open_event(x, message ? "response.output_text.done" : "response.reasoning_text.done", out);
    place(out, x, part_prefix[own->open], true);
    di_write_string(out, "text", di_buf_str(message ? &a->content : &a->reasoning));
    if (message) {
        di_buf_adds(out, ",\"logprobs\":[");
        di_buf_addv(out, di_buf_str(&own->tokens));
        di_buf_addc(out, ']');
    }
    close_event(out);
    open_event(x, "response.content_part.done", out);
    place(out, x, part_prefix[own->open], true);
    write_part(out, x, a, own->open, true);
    close_event(out);
}

static void call_done(struct di_exchange *x, const struct di_answer_call *c, struct di_buf *out)
{
    enum call kind = kind_of(x, c);
    if (kind == FUNCTION) {
        open_event(x, "response.function_call_arguments.done", out);
        place(out, x, "fc", false);
        di_write_string(out, "arguments", di_buf_str(&c->arguments));
        close_event(out);
    } else if (kind == CUSTOM) { /* its text is known when its call is over */
        for (int done = 0; done < 2; done++) {
            open_event(x, done ? "response.custom_tool_call_input.done" : "response.custom_tool_call_input.delta", out);
            place(out, x, "ctc", false);
            di_write_key(out, done ? "input" : "delta");
            di_write_custom_input(out, c);
            close_event(out);
        }
    }
}

static void close_item(struct di_exchange *x, struct di_answer *a, const char *status, struct di_buf *out)
{
    struct own *own = x->own;
    if (own->open == NONE)
        return;
    if (own->open == CALL)
        call_done(x, &a->calls[own->call], out);
    else
        part_done(x, a, out);
    item_event(x, a, "response.output_item.done", status, true, out);
    own->open = NONE;
    own->index++;
}

static void begin_item(struct di_exchange *x, struct di_answer *a, enum item kind, struct di_buf *out)
{
    struct own *own = x->own;
    close_item(x, a, "completed", out);
    own->open = kind;
    own->call = a->n_calls ? a->n_calls - 1 : 0;
    item_event(x, a, "response.output_item.added", "in_progress", false, out);
    if (kind == CALL)
        return;
    open_event(x, "response.content_part.added", out);
    place(out, x, part_prefix[kind], true);
    write_part(out, x, a, kind, false);
    close_event(out);
}

static void text_delta(struct di_exchange *x, struct di_answer *a, enum item kind, struct di_str text, struct di_buf *out)
{
    struct own *own = x->own;
    if (own->open != kind)
        begin_item(x, a, kind, out);
    open_event(x, kind == MESSAGE ? "response.output_text.delta" : "response.reasoning_text.delta", out);
    place(out, x, part_prefix[kind], true);
    di_write_string(out, "delta", text);
    if (kind == MESSAGE) {
        di_buf_adds(out, ",\"logprobs\":[");
        di_buf_addv(out, di_buf_str(&own->fresh));
        di_buf_addc(out, ']');
    }
    close_event(out);
}

static void begin(struct di_exchange *x, struct di_buf *out)
{
    response_event(x, "response.created", IN_PROGRESS, NULL, out);
    response_event(x, "response.in_progress", IN_PROGRESS, NULL, out);
}

static void write_responses_record(struct di_exchange *x, struct di_answer *a, const di_output *o, struct di_buf *out)
{
    struct di_str text = {o->text, o->text_bytes};
    switch (o->kind) {
    case DI_OUTPUT_STARTED: begin(x, out); break;
    case DI_OUTPUT_REASONING: text_delta(x, a, REASONING, text, out); break;
    case DI_OUTPUT_TEXT: text_delta(x, a, MESSAGE, text, out); break;
    case DI_OUTPUT_CALL: begin_item(x, a, CALL, out); break;
    case DI_OUTPUT_ARGUMENTS:
        if (!a->n_calls || kind_of(x, &a->calls[a->n_calls - 1]) != FUNCTION)
            break;
        open_event(x, "response.function_call_arguments.delta", out);
        place(out, x, "fc", false);
        di_write_string(out, "delta", text);
        close_event(out);
        break;
    default: break;
    }
}

static void end_responses_answer(struct di_exchange *x, struct di_answer *a, struct di_buf *out)
{
    close_item(x, a, last_status(a), out);
}

static void end_responses(struct di_exchange *x, struct di_buf *out)
{
    response_event(x, incomplete(&x->answers[0]) ? "response.incomplete" : "response.completed", ENDED, NULL, out);
    keep(x);
}

static void error_event(struct di_exchange *x, const struct di_http_error *e, struct di_buf *out)
{
    const struct own *own = x->own;
    if (own->sequence == 0)
        begin(x, out);
    response_event(x, "response.failed", FAILED, e, out);
}

/* An agent shortens its conversation when it is told in the stream; a refused request it repeats for ever. */
static bool tells_by_event(const struct di_http_error *e)
{
    return e->code && strcmp(e->code, "context_length_exceeded") == 0;
}

/* ---------------------------------------------------------------- log-probabilities, body */

/* Only tokens of the message's text count, not its end id nor markup. */
static bool add_responses_record(struct di_exchange *x, struct di_answer *a, const di_output *o)
{
    struct own *own = x->own;
    (void)a;
    if (!x->logprobs)
        return true;
    if (o->kind == DI_OUTPUT_TOKEN && o->phase == DI_PHASE_OF_CONTENT) {
        di_buf_adds(&own->pending, own->pending.n ? "," : "");
        di_write_logprob(&own->pending, x->setup->engine, o);
    } else if (o->kind == DI_OUTPUT_TEXT) {
        di_buf_clear(&own->fresh);
        di_buf_addv(&own->fresh, di_buf_str(&own->pending));
        di_buf_adds(&own->tokens, own->tokens.n && own->pending.n ? "," : "");
        di_buf_addv(&own->tokens, di_buf_str(&own->pending));
        di_buf_clear(&own->pending);
    }
    return !own->pending.failed && !own->fresh.failed && !own->tokens.failed;
}

static void write_responses_body(struct di_exchange *x, struct di_buf *out)
{
    write_response(out, x, ENDED, NULL);
    keep(x);
}

const struct di_dialect_ops di_responses_ops = {
    .id_prefix = "resp_",
    .read = read_responses,
    .free = free_responses,
    .each = add_responses_record,
    .record = write_responses_record,
    .answer_end = end_responses_answer,
    .end = end_responses,
    .error_event = error_event,
    .tells_by_event = tells_by_event,
    .body = write_responses_body,
};
