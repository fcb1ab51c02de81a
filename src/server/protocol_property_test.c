/* not run under TSan: no threads */
/* "The stream adds up to the whole answer": random records through both forms of every dialect. And that no order of records, valid or
 * not, makes bytes that are no events. */
#include "server/protocol.h"

#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed, drawn;

static uint32_t draw(uint32_t below)
{
    uint64_t x = (seed + ++drawn) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((x ^ x >> 31) >> 33) % below;
}

static bool zeros(void *ctx, void *bytes, size_t n)
{
    (void)ctx;
    memset(bytes, 0, n);
    return true;
}

static const char *const names[] = {"m"};
static const struct di_exchange_setup setup = {.names = names, .n_names = 1, .random = zeros};

/* ---------------------------------------------------------------- random answers */

#define MAX_RECORDS 400
struct answer {
    di_output v[MAX_RECORDS];
    di_alternative top[MAX_RECORDS][2];
    size_t n, next;
};

static const char *const pieces[] = {"a",    " b ",         "\n\n",   "\"quoted\"", "\\",       "\xE2\x80\xA8", "\xF0\x9F\x98\x80",
                                     "\x01", "data: x\n\n", "[DONE]", "é",          "</think>", "{\"a\":"};
#define N_PIECES (sizeof pieces / sizeof *pieces)
static const char *const arguments[] = {"{\"city\": \"Paris\"}", "{}", "{\"a\": [1, 2.50, {\"b\": null}]}", "{\"input\": \"*** x\\n\"}"};

static di_output *add(struct answer *a, di_output_kind kind, const char *text)
{
    assert_true(a->n < MAX_RECORDS);
    di_output *o = &a->v[a->n++];
    *o = (di_output){.kind = kind, .text = text, .text_bytes = strlen(text), .logprob = NAN, .stop_index = -1, .call_space = ""};
    return o;
}

static void add_tokens(struct answer *a, di_answer_phase phase)
{
    for (uint32_t i = draw(3); i > 0; i--) {
        di_alternative *top = a->top[a->n];
        di_output *o = add(a, DI_OUTPUT_TOKEN, "");
        o->token = (int32_t)draw(1000);
        o->phase = phase;
        o->logprob = -(float)draw(1000) / 64;
        top[0] = (di_alternative){o->token, o->logprob};
        top[1] = (di_alternative){(int32_t)draw(1000), -INFINITY};
        o->alternatives = top;
        o->n_alternatives = draw(3);
    }
}

static void add_text(struct answer *a, di_output_kind kind, di_answer_phase phase)
{
    for (uint32_t i = draw(6); i > 0; i--) {
        add_tokens(a, phase);
        add(a, kind, pieces[draw(N_PIECES)]);
    }
}

static void add_call(struct answer *a, int index)
{
    static const char *const ids[] = {"call_00_x", "call_01_ET_y", "call_02_z"};
    static const char *const tools[] = {"get_weather", "files::read", "now"};
    uint32_t which = draw(3);
    const char *text = arguments[draw(4)];
    di_output *o = add(a, DI_OUTPUT_CALL, tools[which]);
    o->index = index;
    o->call_id = ids[index];
    o->call_space = which == 1 ? "files" : "";
    o->call_custom = draw(4) == 0;
    for (size_t n = strlen(text), i = 0; i < n;) {
        size_t piece = 1 + draw((uint32_t)(n - i));
        add_tokens(a, DI_PHASE_OF_TOOL_CALLS);
        o = add(a, DI_OUTPUT_ARGUMENTS, text + i);
        o->text_bytes = piece;
        o->index = index;
        i += piece;
    }
}

static void make_answer(struct answer *a, bool raw)
{
    static const di_end_reason reasons[] = {DI_REASON_STOP, DI_REASON_STOP, DI_REASON_LENGTH};
    memset(a, 0, sizeof *a);
    di_output *o = add(a, DI_OUTPUT_STARTED, "");
    o->thinking = !raw && draw(2);
    o->start = raw ? DI_STARTS_CONTENT_CONTINUED : o->thinking ? DI_STARTS_REASONING : DI_STARTS_CONTENT;
    if (o->thinking && draw(8) == 0)
        o->start = DI_STARTS_CONTENT_CONTINUED;
    o->prompt_tokens = 20;
    o->cached_tokens = draw(20);
    int64_t cached = o->cached_tokens;
    if (o->start == DI_STARTS_REASONING)
        add_text(a, DI_OUTPUT_REASONING, DI_PHASE_OF_REASONING);
    add_text(a, DI_OUTPUT_TEXT, DI_PHASE_OF_CONTENT);
    int calls = raw ? 0 : (int)draw(4);
    for (int i = 0; i < calls; i++)
        add_call(a, i);
    add_tokens(a, calls ? DI_PHASE_OF_TOOL_CALLS : DI_PHASE_OF_CONTENT);
    int64_t tokens = 0, reasoning = 0;
    for (size_t i = 0; i < a->n; i++) {
        tokens += a->v[i].kind == DI_OUTPUT_TOKEN;
        reasoning += a->v[i].kind == DI_OUTPUT_TOKEN && a->v[i].phase == DI_PHASE_OF_REASONING;
    }
    o = add(a, DI_OUTPUT_FINISHED, "");
    o->reason = calls && draw(4) ? DI_REASON_TOOL_CALLS : reasons[draw(3)];
    if (o->reason == DI_REASON_STOP && draw(2)) {
        o->stop_index = 0;
        o->text = "\"STOP\"";
        o->text_bytes = 6;
    }
    o->prompt_tokens = 20;
    o->cached_tokens = cached;
    o->completion_tokens = tokens;
    o->reasoning_tokens = reasoning;
}

/* All records of all answers, in a random order between answers. */
static void play(enum di_route route, const char *body, struct answer *answers, struct di_buf *out)
{
    struct di_exchange *x;
    struct di_http_error e;
    struct di_exchange_request r = {.route = route, .body = di_str_c(body), .now = 1790000000};
    if (di_exchange_create(&setup, &r, &x, &e) != DI_OK)
        fail_msg("%s: %s", body, e.message);
    size_t n = di_exchange_submissions(x);
    size_t kept = di_exchange_release(x);                               /* nothing below needs the request */
    if (kept < (route == DI_ROUTE_RESPONSES ? r.body.n : 0) + sizeof r) /* Responses repeats what it was asked */
        fail_msg("%zu bytes are said to be kept of a request of %zu", kept, r.body.n);
    assert_int_equal(di_exchange_begin(x, out, NULL), DI_OK);
    for (size_t i = 0; i < n; i++)
        answers[i].next = 0;
    for (size_t left = n; left;) {
        size_t i = draw((uint32_t)n);
        if (answers[i].next == answers[i].n)
            continue;
        assert_false(di_exchange_finished(x));
        assert_int_equal(di_exchange_output(x, i, &answers[i].v[answers[i].next++], out, NULL), DI_OK);
        left -= answers[i].next == answers[i].n;
    }
    assert_true(di_exchange_finished(x));
    assert_int_equal(di_exchange_status(x), 200);
    di_exchange_destroy(x);
}

/* ---------------------------------------------------------------- what a client has at the end */

#define MAX_CALLS 8
struct view {
    struct di_buf reasoning, content, tokens, reasoning_tokens, end;
    struct di_buf lists[4]; /* of completions' logprobs */
    struct {
        struct di_buf head, text;
    } calls[MAX_CALLS];
    size_t n_calls;
};

static void add_string(struct di_buf *b, const struct di_json *v)
{
    if (di_json_is(v, DI_JSON_STRING))
        di_buf_addv(b, v->text);
}

static void add_list(struct di_buf *b, const struct di_json *list)
{
    for (const struct di_json *v = list ? list->child : NULL; v; v = v->next) {
        di_json_write_compact(b, v);
        di_buf_addc(b, '\n');
    }
}

/* A call's text is added, everything else about it set once. */
static void see_call(struct view *w, size_t i, const struct di_json *call)
{
    static const char *const once[] = {"id", "type", "name"};
    assert_true(i < MAX_CALLS && i <= w->n_calls);
    w->n_calls = i == w->n_calls ? i + 1 : w->n_calls;
    const struct di_json *body = di_json_get(call, "function") ? di_json_get(call, "function") : di_json_get(call, "custom");
    for (size_t k = 0; k < 3; k++) {
        add_string(&w->calls[i].head, di_json_get(k < 2 ? call : body, once[k]));
        di_buf_addc(&w->calls[i].head, di_json_get(k < 2 ? call : body, once[k]) ? ' ' : '-');
    }
    add_string(&w->calls[i].text, di_json_get(body, "arguments"));
    add_string(&w->calls[i].text, di_json_get(body, "input"));
}

/* A choice of chat or completions; `part`: its message or delta. */
static void see_choice(struct view *w, const struct di_json *choice, const struct di_json *part)
{
    static const char *const lists[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    const struct di_json *logprobs = di_json_get(choice, "logprobs"), *calls = di_json_get(part, "tool_calls");
    int64_t index = 0;
    add_string(&w->content, di_json_get(part, "content"));
    add_string(&w->content, di_json_get(part, "text"));
    add_string(&w->reasoning, di_json_get(part, "reasoning_content"));
    for (const struct di_json *c = calls ? calls->child : NULL; c; c = c->next) {
        if (di_json_get(c, "index"))
            assert_true(di_json_int(di_json_get(c, "index"), &index));
        see_call(w, (size_t)index, c);
        index++;
    }
    add_list(&w->tokens, di_json_get(logprobs, "content"));
    add_list(&w->reasoning_tokens, di_json_get(logprobs, "reasoning_content"));
    for (size_t i = 0; i < 4; i++)
        add_list(&w->lists[i], di_json_get(logprobs, lists[i]));
    if (di_json_is(di_json_get(choice, "finish_reason"), DI_JSON_STRING)) {
        di_json_write_compact(&w->end, di_json_get(choice, "finish_reason"));
        di_json_write_compact(&w->end, di_json_get(choice, "stop_reason"));
    }
}

static void same(const struct di_buf *a, const struct di_buf *b, const char *what)
{
    if (!di_str_eq(di_buf_str(a), di_buf_str(b)))
        fail_msg("seed %llu: %s\nwhole:  %s\nstream: %s", (unsigned long long)seed, what, a->p, b->p);
}

static void compare(const struct view *a, const struct view *b)
{
    same(&a->reasoning, &b->reasoning, "reasoning");
    same(&a->content, &b->content, "content");
    same(&a->tokens, &b->tokens, "tokens");
    same(&a->reasoning_tokens, &b->reasoning_tokens, "tokens of the reasoning");
    same(&a->end, &b->end, "end");
    for (size_t i = 0; i < 4; i++)
        same(&a->lists[i], &b->lists[i], "lists of log-probabilities");
    assert_int_equal(a->n_calls, b->n_calls);
    for (size_t i = 0; i < a->n_calls; i++)
        same(&a->calls[i].text, &b->calls[i].text, "a call");
}

static void view_fini(struct view *w)
{
    di_buf_fini(&w->reasoning);
    di_buf_fini(&w->content);
    di_buf_fini(&w->tokens);
    di_buf_fini(&w->reasoning_tokens);
    di_buf_fini(&w->end);
    for (size_t i = 0; i < 4; i++)
        di_buf_fini(&w->lists[i]);
    for (size_t i = 0; i < MAX_CALLS; i++) {
        di_buf_fini(&w->calls[i].head);
        di_buf_fini(&w->calls[i].text);
    }
}

/* The next event of a stream: *data is its JSON, NULL for [DONE]. False at the end; anything else fails. */
static bool next_event(struct di_str *sse, struct di_arena *arena, struct di_json **data)
{
    struct di_str line;
    *data = NULL;
    if (sse->n == 0)
        return false;
    size_t end = di_str_find(*sse, DI_STR("\n\n"), 0);
    assert_int_not_equal(end, SIZE_MAX);
    line = (struct di_str){sse->p, end};
    sse->p += end + 2;
    sse->n -= end + 2;
    if (di_str_starts(line, DI_STR("event: "))) {
        size_t name = di_str_find(line, DI_STR("\n"), 0);
        assert_int_not_equal(name, SIZE_MAX);
        line.p += name + 1;
        line.n -= name + 1;
    }
    assert_true(di_str_starts(line, DI_STR("data: ")) && di_str_find(line, DI_STR("\n"), 0) == SIZE_MAX);
    line.p += 6;
    line.n -= 6;
    if (!di_str_eqc(line, "[DONE]"))
        assert_int_equal(di_json_parse(line, NULL, arena, data, NULL), DI_OK);
    return true;
}

static struct di_json *parse(const struct di_buf *b, struct di_arena *arena)
{
    struct di_json *v;
    if (di_json_parse(di_buf_str(b), NULL, arena, &v, NULL) != DI_OK)
        fail_msg("no JSON: %s", b->p);
    return v;
}

/* ---------------------------------------------------------------- chat and completions */

#define MAX_ANSWERS 4
static struct answer answers[MAX_ANSWERS];

static void check_openai(enum di_route route, size_t n, const char *fields)
{
    struct di_buf whole = {0}, stream = {0}, usage = {0};
    struct view a[MAX_ANSWERS] = {0}, b[MAX_ANSWERS] = {0};
    struct di_arena arena;
    struct di_json *v;
    char body[300];
    bool chat = route == DI_ROUTE_CHAT, done = false;
    di_arena_init(&arena);
    for (size_t i = 0; i < n; i++)
        make_answer(&answers[i], !chat);
    snprintf(body, sizeof body, "{\"n\":%zu%s}", n, fields);
    play(route, body, answers, &whole);
    snprintf(body, sizeof body, "{\"n\":%zu,\"stream\":true,\"stream_options\":{\"include_usage\":true}%s}", n, fields);
    play(route, body, answers, &stream);
    v = parse(&whole, &arena);
    size_t i = 0;
    for (const struct di_json *c = di_json_get(v, "choices")->child; c; c = c->next, i++)
        see_choice(&a[i], c, chat ? di_json_get(c, "message") : c);
    assert_int_equal(i, n);
    int64_t prompt, cached, total, completion = 0;
    for (size_t k = 0; k < n; k++)
        completion += answers[k].v[answers[k].n - 1].completion_tokens;
    assert_true(di_json_int(di_json_get(di_json_get(v, "usage"), "prompt_tokens"), &prompt) && prompt == 20); /* once for all samples */
    assert_true(di_json_int(di_json_get(di_json_get(v, "usage"), "prompt_cache_hit_tokens"), &cached) &&
                cached == answers[0].v[0].cached_tokens);
    assert_true(di_json_int(di_json_get(di_json_get(v, "usage"), "total_tokens"), &total) && total == 20 + completion);
    struct di_buf whole_usage = {0};
    di_json_write_compact(&whole_usage, di_json_get(v, "usage"));
    for (struct di_str sse = di_buf_str(&stream); next_event(&sse, &arena, &v);) {
        assert_false(done);
        done = v == NULL;
        const struct di_json *c = v ? di_json_at(di_json_get(v, "choices"), 0) : NULL;
        int64_t index = 0;
        if (v && di_json_is(di_json_get(v, "usage"), DI_JSON_OBJECT))
            di_json_write_compact(&usage, di_json_get(v, "usage"));
        if (!c)
            continue;
        assert_int_equal(usage.n, 0); /* it is on the last chunk */
        assert_true(di_json_int(di_json_get(c, "index"), &index) && (size_t)index < n);
        assert_int_equal(b[index].end.n, 0); /* nothing after the finish_reason */
        see_choice(&b[index], c, chat ? di_json_get(c, "delta") : c);
    }
    assert_true(done);
    same(&whole_usage, &usage, "usage");
    for (i = 0; i < n; i++) {
        compare(&a[i], &b[i]);
        view_fini(&a[i]);
        view_fini(&b[i]);
    }
    di_buf_fini(&whole);
    di_buf_fini(&stream);
    di_buf_fini(&usage);
    di_buf_fini(&whole_usage);
    di_arena_fini(&arena);
}

/* ---------------------------------------------------------------- messages and responses */

static void see_block(struct view *w, const struct di_json *block)
{
    const struct di_json *type = di_json_get(block, "type"), *input = di_json_get(block, "input");
    add_string(&w->reasoning, di_json_get(block, "thinking"));
    add_string(&w->content, di_json_get(block, "text"));
    if (di_str_eqc(type->text, "tool_use")) {
        assert_true(w->n_calls < MAX_CALLS);
        add_string(&w->tokens, di_json_get(block, "id"));
        add_string(&w->tokens, di_json_get(block, "name"));
        if (input->count)
            di_json_write_compact(&w->calls[w->n_calls].text, input);
        w->n_calls++;
    }
}

static void see_end(struct view *w, const struct di_json *v, const struct di_json *usage)
{
    di_json_write_compact(&w->end, di_json_get(v, "stop_reason"));
    di_json_write_compact(&w->end, di_json_get(v, "stop_sequence"));
    di_json_write_compact(&w->end, usage);
}

/* Arguments as they came, without white space: a body holds them as a value. */
static void tidy(struct di_buf *b, struct di_arena *arena)
{
    struct di_json *v;
    struct di_buf out = {0};
    if (b->n == 0)
        return;
    v = parse(b, arena);
    if (v->count)
        di_json_write_compact(&out, v);
    di_buf_fini(b);
    *b = out;
}

static void check_messages(void)
{
    struct di_buf whole = {0}, stream = {0};
    struct view a = {0}, b = {0};
    struct di_arena arena;
    struct di_json *v;
    int64_t index;
    size_t n_blocks = 0;
    bool open = false, stopped = false;
    di_arena_init(&arena);
    make_answer(&answers[0], false);
    play(DI_ROUTE_MESSAGES, "{}", answers, &whole);
    play(DI_ROUTE_MESSAGES, "{\"stream\":true}", answers, &stream);
    v = parse(&whole, &arena);
    for (const struct di_json *c = di_json_get(v, "content")->child; c; c = c->next)
        see_block(&a, c);
    see_end(&a, v, di_json_get(v, "usage"));
    for (struct di_str sse = di_buf_str(&stream); next_event(&sse, &arena, &v);) {
        struct di_str type = di_json_get(v, "type")->text;
        const struct di_json *delta = di_json_get(v, "delta");
        assert_false(stopped);
        if (di_json_get(v, "index"))
            assert_true(di_json_int(di_json_get(v, "index"), &index));
        if (di_str_eqc(type, "content_block_start")) {
            assert_true(!open && (size_t)index == n_blocks++);
            open = true;
            see_block(&b, di_json_get(v, "content_block"));
        } else if (di_str_eqc(type, "content_block_delta")) {
            assert_true(open && (size_t)index == n_blocks - 1);
            add_string(&b.reasoning, di_json_get(delta, "thinking"));
            add_string(&b.content, di_json_get(delta, "text"));
            if (b.n_calls)
                add_string(&b.calls[b.n_calls - 1].text, di_json_get(delta, "partial_json"));
        } else if (di_str_eqc(type, "content_block_stop")) {
            assert_true(open && (size_t)index == n_blocks - 1);
            open = false;
        } else if (di_str_eqc(type, "message_delta")) {
            see_end(&b, delta, di_json_get(v, "usage"));
        }
        stopped = di_str_eqc(type, "message_stop");
    }
    assert_true(stopped && !open);
    for (size_t i = 0; i < b.n_calls; i++)
        tidy(&b.calls[i].text, &arena);
    compare(&a, &b);
    view_fini(&a);
    view_fini(&b);
    di_buf_fini(&whole);
    di_buf_fini(&stream);
    di_arena_fini(&arena);
}

static void check_responses(void)
{
    struct di_buf whole = {0}, stream = {0}, last = {0}, deltas = {0}, items = {0}, text = {0};
    struct di_arena arena;
    struct di_json *v, *body;
    int64_t sequence = 0, n;
    char long_text[9000] = "", request[9100];
    di_arena_init(&arena);
    make_answer(&answers[0], false);
    memset(long_text, 'x', sizeof long_text - 1);
    snprintf(request, sizeof request, "{\"top_logprobs\":1,\"instructions\":\"%s\"}", long_text);
    play(DI_ROUTE_RESPONSES, request, answers, &whole);
    snprintf(request, sizeof request, "{\"top_logprobs\":1,\"stream\":true,\"instructions\":\"%s\"}", long_text);
    play(DI_ROUTE_RESPONSES, request, answers, &stream);
    for (struct di_str sse = di_buf_str(&stream); next_event(&sse, &arena, &v); sequence++) {
        const struct di_json *delta = di_json_get(v, "delta"), *item = di_json_get(v, "item");
        assert_true(di_json_int(di_json_get(v, "sequence_number"), &n) && n == sequence);
        if (delta)
            di_buf_addv(&deltas, delta->text);
        if (di_str_eqc(di_json_get(v, "type")->text, "response.output_item.done")) {
            const struct di_json *content = di_json_get(item, "content");
            add_string(&items, di_json_get(content ? di_json_at(content, 0) : item, content ? "text" : "arguments"));
            add_string(&items, di_json_get(item, "input"));
        }
        if (di_json_get(v, "response")) {
            di_buf_clear(&last);
            di_json_write_compact(&last, di_json_get(v, "response"));
        }
    }
    body = parse(&whole, &arena);
    di_json_write_compact(&text, body);
    same(&text, &last, "the response");
    di_buf_fini(&text);
    same(&items, &deltas, "deltas");
    di_buf_fini(&whole);
    di_buf_fini(&stream);
    di_buf_fini(&last);
    di_buf_fini(&deltas);
    di_buf_fini(&items);
    di_arena_fini(&arena);
}

#ifdef DI_TEST_QUICK
#define ROUNDS 200
#else
#define ROUNDS 3000
#endif

static void test_streams_add_up(void **state)
{
    (void)state;
    for (seed = 1; seed <= ROUNDS; seed++) {
        drawn = 0;
        check_openai(DI_ROUTE_CHAT, 1 + draw(MAX_ANSWERS), draw(2) ? ",\"logprobs\":true" : draw(2) ? ",\"include_reasoning\":false" : "");
        check_openai(DI_ROUTE_COMPLETIONS, 1 + draw(MAX_ANSWERS),
                     draw(2) ? ",\"prompt\":\"Once \\\"upon\\\"\",\"echo\":true" : ",\"prompt\":\"x\",\"logprobs\":2");
        check_messages();
        check_responses();
    }
}

/* A record that could not come still makes events, or nothing. */
static void test_any_order_makes_events(void **state)
{
    static const enum di_route routes[] = {DI_ROUTE_CHAT, DI_ROUTE_COMPLETIONS, DI_ROUTE_MESSAGES, DI_ROUTE_RESPONSES};
    (void)state;
    for (seed = 1; seed <= ROUNDS; seed++) {
        struct di_exchange *x;
        struct di_http_error e;
        struct di_buf out = {0};
        struct di_arena arena;
        struct di_json *v;
        drawn = 1000;
        struct di_exchange_request r = {.route = routes[draw(4)], .body = DI_STR("{\"stream\":true,\"prompt\":\"x\",\"logprobs\":true}")};
        assert_int_equal(di_exchange_create(&setup, &r, &x, &e), DI_OK);
        make_answer(&answers[0], false);
        for (size_t i = 0; i < answers[0].n; i++)
            assert_int_equal(di_exchange_output(x, 0, &answers[0].v[draw((uint32_t)answers[0].n)], &out, NULL), DI_OK);
        if (!di_exchange_finished(x)) {
            di_http_error_set(&e, 500, NULL, NULL, "over");
            di_exchange_fail(x, &e, true, &out);
        }
        assert_true(di_exchange_finished(x));
        di_arena_init(&arena);
        for (struct di_str sse = di_buf_str(&out); next_event(&sse, &arena, &v);)
            ;
        di_arena_fini(&arena);
        di_buf_fini(&out);
        di_exchange_destroy(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_add_up),
        cmocka_unit_test(test_any_order_makes_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
