/* not run under TSan: no threads */
/* Protocols against the official library's event streams (tests/data/server/recipe_streams.jsonl), against themselves (a stream adds up
 * to the whole answer), and what is refused. */
#include "server/protocol.h"

#include "base/file.h"
#include "base/json.h"
#include "server/response_store.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static bool counting(void *ctx, void *bytes, size_t n)
{
    unsigned char *at = ctx;
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)bytes)[i] = (*at)++;
    return true;
}

static const char *const names[] = {"DeepSeek-V4.1-Flash", "deepseek-chat", "claude-*"};
static unsigned char counter;
static const struct di_exchange_setup plain = {
    .names = names, .n_names = 3, .created = 1700000000, .random = counting, .random_ctx = &counter};

static struct di_exchange *open_with(const struct di_exchange_setup *setup, enum di_route route, const char *body)
{
    struct di_exchange *x;
    struct di_http_error e;
    struct di_exchange_request r = {.route = route, .body = di_str_c(body), .request_id = DI_STR("req_1"), .now = 1790000000};
    if (di_exchange_create(setup, &r, &x, &e) != DI_OK)
        fail_msg("%s: %d %s", body, e.status, e.message);
    return x;
}

static struct di_exchange *open_exchange(enum di_route route, const char *body)
{
    return open_with(&plain, route, body);
}

static void push(struct di_exchange *x, size_t i, const di_output *o, struct di_buf *out)
{
    di_output r = *o;
    if (!r.text)
        r.text = "";
    if (r.kind != DI_OUTPUT_FINISHED)
        r.stop_index = -1;
    assert_int_equal(di_exchange_output(x, i, &r, out, NULL), DI_OK);
}

/* ---------------------------------------------------------------- streams in a normal form */

static int compare_keys(const void *a, const void *b)
{
    const struct di_json *x = *(const struct di_json *const *)a, *y = *(const struct di_json *const *)b;
    size_t n = x->key.n < y->key.n ? x->key.n : y->key.n;
    int c = memcmp(x->key.p, y->key.p, n);
    return c ? c : (x->key.n > y->key.n) - (x->key.n < y->key.n);
}

/* A text that deltas add up to: `leaf` in a normal form is shown as *. */
struct normal {
    struct di_str leaf;
    bool zero; /* numbers: usage depends on how tokens were counted */
};

static void write_normal(struct di_buf *b, const struct di_json *v, struct normal how)
{
    const struct di_json *members[64];
    size_t n = 0;
    if (v->type == DI_JSON_STRING && v->text.p == how.leaf.p && v->text.n) {
        di_buf_adds(b, "*");
    } else if (v->type == DI_JSON_NUMBER && how.zero) {
        di_buf_adds(b, "0");
    } else if (v->type == DI_JSON_ARRAY) {
        di_buf_addc(b, '[');
        for (const struct di_json *m = v->child; m; m = m->next) {
            write_normal(b, m, how);
            di_buf_addc(b, ' ');
        }
        di_buf_addc(b, ']');
    } else if (v->type == DI_JSON_OBJECT) {
        for (const struct di_json *m = v->child; m; m = m->next) {
            assert_true(n < 64);
            if (!di_str_eqc(m->key, "sequence_number"))
                members[n++] = m;
        }
        qsort(members, n, sizeof *members, compare_keys);
        di_buf_addc(b, '{');
        for (size_t i = 0; i < n; i++) {
            struct normal inner = {how.leaf, how.zero || di_str_eqc(members[i]->key, "usage")};
            di_buf_addv(b, members[i]->key);
            di_buf_addc(b, ':');
            write_normal(b, members[i], inner);
            di_buf_addc(b, ' ');
        }
        di_buf_addc(b, '}');
    } else {
        di_json_write_compact(b, v);
    }
}

/* Lines of a stream; neighbouring deltas of one kind are one line. */
struct script {
    struct di_buf lines, shape, text;
};

static void flush_line(struct script *s)
{
    di_buf_addv(&s->lines, di_buf_str(&s->shape));
    if (s->text.n) {
        di_buf_adds(&s->lines, " = ");
        di_json_write_string(&s->lines, di_buf_str(&s->text));
    }
    if (s->shape.n)
        di_buf_addc(&s->lines, '\n');
    di_buf_clear(&s->shape);
    di_buf_clear(&s->text);
}

static void add_line(struct script *s, const struct di_json *event, struct di_str leaf)
{
    struct di_buf shape = {0};
    write_normal(&shape, event, (struct normal){leaf, false});
    if (leaf.n == 0 || !di_str_eq(di_buf_str(&shape), di_buf_str(&s->shape)))
        flush_line(s);
    di_buf_clear(&s->shape);
    di_buf_addv(&s->shape, di_buf_str(&shape));
    di_buf_addv(&s->text, leaf);
    di_buf_fini(&shape);
}

static struct di_str text_of(const struct di_json *v, const char *key)
{
    const struct di_json *m = di_json_get(v, key);
    return di_json_is(m, DI_JSON_STRING) ? m->text : (struct di_str){0};
}

static struct di_str chat_leaf(const struct di_json *delta)
{
    const struct di_json *call = di_json_at(di_json_get(delta, "tool_calls"), 0);
    struct di_str s = text_of(delta, "content");
    if (call)
        return text_of(di_json_get(call, "function"), "arguments");
    return s.n ? s : text_of(delta, "reasoning_content");
}

static struct di_str event_leaf(const struct di_json *event)
{
    static const char *const keys[] = {"text", "thinking", "partial_json"};
    const struct di_json *delta = di_json_get(event, "delta");
    struct di_str s = {0};
    if (di_json_is(delta, DI_JSON_STRING))
        return delta->text;
    for (size_t i = 0; i < 3 && !s.n; i++)
        s = text_of(delta, keys[i]);
    return s;
}

/* The events of an SSE text, `event:` lines checked against the types; "[DONE]" is the last line of chat. */
struct events {
    struct di_arena arena;
    struct di_json *v[4096];
    size_t n;
    bool done;
};

static void read_events(struct di_str sse, struct events *e)
{
    struct di_str event = {0};
    di_arena_init(&e->arena);
    e->n = 0;
    e->done = false;
    for (size_t i = 0; i < sse.n;) {
        const char *end = memchr(sse.p + i, '\n', sse.n - i);
        assert_non_null(end);
        struct di_str line = {sse.p + i, (size_t)(end - sse.p) - i};
        i += line.n + 1;
        if (di_str_starts(line, DI_STR("event: "))) {
            event = (struct di_str){line.p + 7, line.n - 7};
        } else if (di_str_starts(line, DI_STR("data: "))) {
            struct di_json *v;
            struct di_str data = {line.p + 6, line.n - 6};
            assert_false(e->done);
            if (di_str_eqc(data, "[DONE]")) {
                e->done = true;
                continue;
            }
            if (di_json_parse(data, NULL, &e->arena, &v, NULL) != DI_OK)
                fail_msg("no JSON: %.*s", (int)data.n, data.p);
            if (event.n)
                assert_true(di_str_eq(text_of(v, "type"), event));
            assert_true(e->n < 4096);
            e->v[e->n++] = v;
        } else {
            assert_int_equal(line.n, 0);
        }
    }
}

/* ---------------------------------------------------------------- the official library's streams */

/* The records of one case; the engine's own calls are named call_NN. */
static void push_case(const struct di_json *r, struct di_exchange *x, const char *suffix, struct di_buf *out)
{
    static const struct {
        const char *name;
        di_output_kind kind;
    } kinds[] = {
        {"reasoning", DI_OUTPUT_REASONING}, {"content", DI_OUTPUT_TEXT}, {"call", DI_OUTPUT_CALL}, {"arguments", DI_OUTPUT_ARGUMENTS}};
    static const struct {
        const char *name;
        di_end_reason reason;
    } ends[] = {{"stop", DI_REASON_STOP}, {"length", DI_REASON_LENGTH}, {"tool_calls", DI_REASON_TOOL_CALLS}};
    const struct di_json *stop = di_json_get(r, "stop");
    int calls = 0;
    for (const struct di_json *v = di_json_get(r, "records")->child; v; v = v->next) {
        struct di_str text = di_json_at(v, 1)->text;
        char id[32];
        di_output o = {.text = text.p, .text_bytes = text.n, .call_space = "", .call_id = id};
        for (size_t k = 0; k < 4; k++)
            if (di_str_eqc(di_json_at(v, 0)->text, kinds[k].name))
                o.kind = kinds[k].kind;
        calls += o.kind == DI_OUTPUT_CALL;
        o.index = calls - 1;
        snprintf(id, sizeof id, "call_%02d%s", calls - 1, suffix);
        push(x, 0, &o, out);
    }
    bool stopped = di_json_is(stop, DI_JSON_STRING);
    di_output end = {
        .kind = DI_OUTPUT_FINISHED, .stop_index = stopped ? 0 : -1, .text = stop->text.p, .text_bytes = stopped ? stop->text.n : 0};
    for (size_t k = 0; k < 3; k++)
        if (di_str_eqc(di_json_get(r, "finish")->text, ends[k].name))
            end.reason = ends[k].reason;
    push(x, 0, &end, out);
}

/* The member itself, to be changed. */
static struct di_json *member(struct di_json *v, const char *key)
{
    struct di_json *m = v->child;
    while (m && !di_str_eqc(m->key, key))
        m = m->next;
    return m;
}

/* Our event in the recorded form: its embedded response is cut down. */
static void cut_response(struct di_json *event, struct di_arena *arena)
{
    struct di_json *response = member(event, "response");
    if (!response)
        return;
    struct di_json *status = member(response, "status"), *why = member(response, "incomplete_details"),
                   *output = member(response, "output");
    char count[16];
    snprintf(count, sizeof count, "%zu", output->count);
    output->type = DI_JSON_NUMBER;
    output->key = DI_STR("output_items");
    output->text = (struct di_str){di_arena_strndup(arena, count, strlen(count)), strlen(count)};
    status->next = why;
    why->next = output;
    output->next = NULL;
    response->child = status;
}

static void replace_all(struct di_buf *b, const char *from, const char *to)
{
    struct di_buf out = {0};
    for (size_t i = 0; i < b->n;) {
        bool here = b->n - i >= strlen(from) && memcmp(b->p + i, from, strlen(from)) == 0;
        if (here)
            di_buf_adds(&out, to);
        else
            di_buf_addc(&out, b->p[i]);
        i += here ? strlen(from) : 1;
    }
    di_buf_fini(b);
    *b = out;
}

/* How many streams were compared: 1, or 0 if the record has none of this protocol. */
static int check_case(const struct di_json *r, const char *protocol, enum di_route route)
{
    const struct di_json *want = di_json_get(di_json_get(r, "stream"), protocol);
    static struct events events;
    struct script ours = {0}, theirs = {0};
    struct di_buf out = {0}, all = {0};
    bool thinking = di_str_starts(di_json_get(r, "start")->text, DI_STR("reasoning")), chat = route == DI_ROUTE_CHAT;
    if (!want)
        return 0;
    di_json_write_compact(&all, want);
    bool empty_thinking = di_str_find(di_buf_str(&all), DI_STR("_ET\""), 0) != SIZE_MAX;
    /* A prefix inside the content: the recordings are of thinking requests. */
    thinking = thinking || di_str_eqc(di_json_get(r, "start")->text, "content_continued");
    struct di_exchange *x = open_exchange(route, "{\"model\":\"DeepSeek-V4.1-Flash\",\"request_id\":\"1\",\"stream\":true}");
    static const struct {
        const char *name;
        di_answer_start start;
    } starts[] = {{"reasoning", DI_STARTS_REASONING},
                  {"content", DI_STARTS_CONTENT},
                  {"tool_block", DI_STARTS_TOOL_CALLS},
                  {"reasoning_continued", DI_STARTS_REASONING_CONTINUED},
                  {"content_continued", DI_STARTS_CONTENT_CONTINUED}};
    size_t start = 0;
    while (!di_str_eqc(di_json_get(r, "start")->text, starts[start].name))
        start++;
    bool again =
        route == DI_ROUTE_MESSAGES && starts[start].start == DI_STARTS_CONTENT_CONTINUED; /* the library knows no such answer here */
    push(x, 0, &(di_output){.kind = DI_OUTPUT_STARTED, .start = again ? DI_STARTS_REASONING : starts[start].start, .thinking = thinking},
         &out);
    push_case(r, x, empty_thinking ? "_ET" : "", &out);
    assert_true(di_exchange_finished(x));
    replace_all(&out, "msg_1\"", "resp_1\"");
    if (di_str_eqc(di_json_get(r, "finish")->text, "tool_calls")) /* the library calls an item completed whose call was not closed */
        replace_all(&out, "\"status\":\"incomplete\"", "\"status\":\"completed\"");
    replace_all(&out, "\"output_tokens_details\":{\"thinking_tokens\":0},", ""); /* newer than the recordings */
    read_events(di_buf_str(&out), &events);
    assert_int_equal(events.done, chat);
    for (size_t i = 0; i < events.n; i++) {
        struct di_json *v = events.v[i];
        if (chat) {
            struct di_json *choice = member(v, "choices")->child;
            struct di_json *delta = member(choice, "delta"), *finish = member(choice, "finish_reason");
            finish->next = NULL;
            delta->next = finish->type == DI_JSON_NULL ? NULL : finish;
            choice->child = delta;
            add_line(&ours, choice, chat_leaf(delta));
        } else {
            int64_t sequence = (int64_t)i;
            if (route == DI_ROUTE_RESPONSES)
                assert_true(di_json_int(di_json_get(v, "sequence_number"), &sequence));
            assert_int_equal(sequence, i);
            cut_response(v, &events.arena);
            add_line(&ours, v, event_leaf(v));
        }
    }
    for (const struct di_json *v = want->child; v; v = v->next)
        add_line(&theirs, v, chat ? chat_leaf(di_json_get(v, "delta")) : event_leaf(v));
    flush_line(&ours);
    flush_line(&theirs);
    if (!di_str_eq(di_buf_str(&ours.lines), di_buf_str(&theirs.lines)))
        fail_msg("%.*s %s\nours:\n%s\ntheirs:\n%s\n", (int)di_json_get(r, "id")->text.n, di_json_get(r, "id")->text.p, protocol,
                 ours.lines.p, theirs.lines.p);
    di_exchange_destroy(x);
    di_arena_fini(&events.arena);
    di_buf_fini(&ours.lines);
    di_buf_fini(&ours.shape);
    di_buf_fini(&ours.text);
    di_buf_fini(&theirs.lines);
    di_buf_fini(&theirs.shape);
    di_buf_fini(&theirs.text);
    di_buf_fini(&out);
    di_buf_fini(&all);
    return 1;
}

/* The whole body of an answer with one call. */
static void answer_with_call(enum di_route route, const char *request, const di_output *call, const char *arguments, const di_output *end,
                             struct di_buf *out)
{
    struct di_exchange *x = open_exchange(route, request);
    di_buf_clear(out);
    push(x, 0, &(di_output){.kind = DI_OUTPUT_STARTED}, out);
    push(x, 0, call, out);
    push(x, 0, &(di_output){.kind = DI_OUTPUT_ARGUMENTS, .text = arguments, .text_bytes = strlen(arguments)}, out);
    push(x, 0, end, out);
    assert_true(di_exchange_finished(x));
    di_exchange_destroy(x);
}

static void has(const struct di_buf *b, const char *what)
{
    if (di_str_find(di_buf_str(b), di_str_c(what), 0) == SIZE_MAX)
        fail_msg("%s is not in %s", what, b->p);
}

/* What a call that the end cut off says of itself: the members that were closed, and no call that was made. */
static void test_cut_calls(void **state)
{
    static const struct {
        const char *arguments, *input;
    } cases[] = {
        {"", "{}"},
        {"{\"", "{}"},
        {"{\"a\": ", "{}"},
        {"{\"a\": \"x", "{}"},
        {"{\"a\": \"}", "{}"},
        {"{\"a\": \"x\"", "{\"a\": \"x\"}"},
        {"{\"a\": \"x, \\\"y\", \"b", "{\"a\": \"x, \\\"y\"}"},
        {"{\"a\": [1, 2], \"b\": {\"c\": [3", "{\"a\": [1, 2]}"},
        {"{\"a\": [1, {}]", "{\"a\": [1, {}]}"},
        {"{\"a\": tru", "{}"},
        {"{\"a\": 12, \"b\": 34", "{\"a\": 12}"},
        {"{\"a\": 12, \"b\": 34}", "{\"a\": 12, \"b\": 34}"},
    };
    const di_output call = {.kind = DI_OUTPUT_CALL, .text = "f", .text_bytes = 1, .call_space = "", .call_id = "call_00"};
    const di_output custom = {.kind = DI_OUTPUT_CALL, .text = "f", .text_bytes = 1, .call_space = "", .call_id = "c", .call_custom = 1};
    const di_output stop = {.kind = DI_OUTPUT_FINISHED, .reason = DI_REASON_STOP, .token = 7, .stop_index = -1};
    const di_output made = {.kind = DI_OUTPUT_FINISHED, .reason = DI_REASON_TOOL_CALLS, .token = 7, .stop_index = -1};
    struct di_buf out = {0};
    char want[200];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        answer_with_call(DI_ROUTE_MESSAGES, "{}", &call, cases[i].arguments, &stop, &out);
        snprintf(want, sizeof want, "\"input\":%s}],\"stop_reason\":\"end_turn\"", cases[i].input);
        has(&out, want);
        answer_with_call(DI_ROUTE_RESPONSES, "{\"request_id\":\"1\"}", &call, cases[i].arguments, &stop, &out);
        has(&out, i + 1 < sizeof cases / sizeof *cases ? "\"id\":\"fc_resp_1_0\",\"status\":\"incomplete\""
                                                       : "\"id\":\"fc_resp_1_0\",\"status\":\"completed\"");
    }
    answer_with_call(DI_ROUTE_CHAT, "{\"stop_token_ids\":[6,7]}", &call, "{\"a\"", &stop, &out);
    has(&out, "\"finish_reason\":\"stop\",\"stop_reason\":7");
    answer_with_call(DI_ROUTE_CHAT, "{\"stop_token_ids\":[6,7]}", &call, "{}", &made, &out);
    has(&out, "\"finish_reason\":\"tool_calls\",\"stop_reason\":7");
    answer_with_call(DI_ROUTE_CHAT, "{}", &custom, "{\"input\": \"a\\n\\\"b", &stop, &out);
    has(&out, "\"input\":\"a\\n\\\"b\"");
    di_buf_fini(&out);
}

static void test_recorded_streams(void **state)
{
    (void)state;
    struct di_buf file = {0};
    int compared = 0;
    assert_int_equal(di_file_read(DI_SOURCE_DIR "/tests/data/server/recipe_streams.jsonl", (size_t)64 << 20, &file, NULL), DI_OK);
    for (const char *p = file.p, *end; (end = strchr(p, '\n')); p = end + 1) {
        struct di_arena arena;
        struct di_json *r;
        di_arena_init(&arena);
        assert_int_equal(di_json_parse((struct di_str){p, (size_t)(end - p)}, NULL, &arena, &r, NULL), DI_OK);
        compared += check_case(r, "chat", DI_ROUTE_CHAT) + check_case(r, "messages", DI_ROUTE_MESSAGES);
        compared += check_case(r, "responses", DI_ROUTE_RESPONSES);
        di_arena_fini(&arena);
    }
    assert_int_equal(compared, 97);
    di_buf_fini(&file);
}

/* ---------------------------------------------------------------- submissions */

static void same_text(const struct di_buf *b, const char *want)
{
    assert_string_equal(b->p ? b->p : "", want);
}

static void test_submissions(void **state)
{
    (void)state;
    struct di_exchange_request r = {.route = DI_ROUTE_CHAT, .body = DI_STR("{\"n\": 3, \"priority\": 2}"), .tenant = 9};
    struct di_exchange *x;
    struct di_http_error e;
    di_submission s;
    assert_int_equal(di_exchange_create(&plain, &r, &x, &e), DI_OK);
    assert_int_equal(di_exchange_submissions(x), 3);
    for (int i = 0; i < 3; i++) {
        di_exchange_submission(x, (size_t)i, &s);
        assert_int_equal(s.tenant, 9);
        assert_int_equal(s.priority, 2);
        assert_int_equal(s.sample, i);
        assert_int_equal(s.n_samples, 3);
        assert_int_equal(s.after, i ? 41 : 0);
        assert_true(s.report_start);
        di_exchange_submitted(x, (size_t)i, 41 + i);
    }
    di_exchange_describe(x, &s);
    assert_string_equal(s.protocol, "chat");
    assert_ptr_equal(s.json, r.body.p); /* as it is */
    assert_int_equal(s.json_bytes, r.body.n);
    assert_int_equal(s.tenant, 9);
    assert_int_equal(s.n_samples, 3);
    assert_true(s.defaults && s.defaults->seed > 0);
    di_exchange_destroy(x);
    struct di_exchange_setup fixed = plain;
    fixed.fixed_seeds = true;
    r.body = DI_STR("{\"priority\": -2}");
    for (r.tenant = 0; r.tenant < 2; r.tenant++) { /* with keys nobody pushes others back */
        assert_int_equal(di_exchange_create(&plain, &r, &x, &e), DI_OK);
        di_exchange_submission(x, 0, &s);
        assert_int_equal(s.priority, r.tenant ? 0 : -2);
        di_exchange_destroy(x);
    }
    x = open_with(&fixed, DI_ROUTE_MESSAGES, "{}");
    di_exchange_describe(x, &s);
    assert_null(s.defaults);
    di_exchange_destroy(x);
}

static void test_prompts_of_completions(void **state)
{
    (void)state;
    static const struct {
        const char *request, *texts[2];
        int32_t ids[2][2];
        size_t n_ids[2], n;
        bool logprobs;
    } cases[] = {
        {"{\"prompt\":\"a\",\"top_k\":1,\"n\":2}", .texts = {"a"}, .n = 2},
        {"{\"prompt\":[\"a\",\"\\u0062\"],\"echo\":true}", .texts = {"a", "b"}, .n = 2},
        {"{\"prompt\":[5,6],\"best_of\":3}", .ids = {{5, 6}}, .n_ids = {2}, .n = 3, .logprobs = true},
        {"{\"prompt\":[[5],[6,7]]}", .ids = {{5}, {6, 7}}, .n_ids = {1, 2}, .n = 2},
        {"{\"prompt\":\"def f(\",\"suffix\":\")\"}", .texts = {"<｜fim▁begin｜>def f(<｜fim▁hole｜>)<｜fim▁end｜>"}, .n = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_exchange *x = open_exchange(DI_ROUTE_COMPLETIONS, cases[i].request);
        di_submission s;
        assert_int_equal(di_exchange_submissions(x), cases[i].n);
        di_exchange_describe(x, &s);
        assert_string_equal(s.protocol, "completion");
        assert_string_equal(s.json, cases[i].request);
        assert_true(!s.text && !s.ids && s.overrides->prompts == 1);
        assert_int_equal(s.overrides->logprobs, cases[i].logprobs);
        for (size_t k = 0; k < 2 && (cases[i].texts[k] || cases[i].n_ids[k]); k++) {
            di_exchange_describe_prompt(x, k, &s);
            assert_int_equal(s.n_ids, cases[i].n_ids[k]);
            assert_int_equal(s.ids == NULL, cases[i].texts[k] != NULL);
            if (s.ids)
                assert_memory_equal(s.ids, cases[i].ids[k], s.n_ids * sizeof *s.ids);
            else
                assert_string_equal(s.text, cases[i].texts[k]);
        }
        di_exchange_destroy(x);
    }
}

static void test_ids(void **state)
{
    (void)state;
    static const struct {
        enum di_route route;
        const char *prefix;
    } cases[] = {{DI_ROUTE_CHAT, "chatcmpl-"}, {DI_ROUTE_COMPLETIONS, "cmpl-"}, {DI_ROUTE_MESSAGES, "msg_"}, {DI_ROUTE_RESPONSES, "resp_"}};
    struct di_exchange_setup real = plain;
    real.random = NULL;
    for (size_t i = 0; i < 4; i++) {
        struct di_exchange *a = open_with(&real, cases[i].route, "{\"prompt\":\"x\"}"),
                           *b = open_with(&real, cases[i].route, "{\"prompt\":\"x\",\"request_id\":\"a \\\"b\"}"),
                           *c = open_with(&real, cases[i].route, "{\"prompt\":\"x\",\"request_id\":\"A-1_.z\",\"model\":\"gpt\"}");
        char named[64];
        snprintf(named, sizeof named, "%sA-1_.z", cases[i].prefix);
        assert_int_equal(strlen(di_exchange_id(a)), strlen(cases[i].prefix) + 32);
        assert_memory_equal(di_exchange_id(a), cases[i].prefix, strlen(cases[i].prefix));
        assert_string_not_equal(di_exchange_id(a), di_exchange_id(b)); /* an id that needs quoting is not taken */
        assert_int_equal(strlen(di_exchange_id(b)), strlen(di_exchange_id(a)));
        assert_string_equal(di_exchange_id(c), named);
        assert_string_equal(di_exchange_model(a), "DeepSeek-V4.1-Flash");
        assert_null(di_exchange_model(c));
        di_exchange_destroy(a);
        di_exchange_destroy(b);
        di_exchange_destroy(c);
    }
}

/* ---------------------------------------------------------------- errors */

static void test_refused_at_once(void **state)
{
    static const struct {
        enum di_route route;
        const char *body;
        int status;
        const char *code, *param, *part;
    } cases[] = {
        {DI_ROUTE_CHAT, "", 400, NULL, NULL, "byte"},
        {DI_ROUTE_CHAT, "[]", 400, NULL, "", "must be a JSON object, not array"},
        {DI_ROUTE_CHAT, "{\"model\":\"gpt-5\"}", 404, "model_not_found", "model", "\"gpt-5\" does not exist"},
        {DI_ROUTE_MODEL, "", 404, NULL, "model", "does not exist"},
        {DI_ROUTE_RESPONSE_GET, "", 404, NULL, "id", "no response with this id"},
        {DI_ROUTE_RESPONSE_DELETE, "", 404, NULL, "id", "no response with this id"},
        {DI_ROUTE_COMPLETIONS, "{}", 400, NULL, "prompt", "is missing"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":[]}", 400, NULL, "prompt", "not empty"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":5}", 400, NULL, "prompt", "must be a string"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", 400, NULL, "prompt", "entry 1 is none"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",5]}", 400, NULL, "prompt", "number"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"prompt_token_ids\":[1]}", 400, NULL, "prompt", "not both"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":[1],\"suffix\":\"a\"}", 400, NULL, "suffix", "is text"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"suffix\":1}", 400, NULL, "suffix", "must be a string"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"suffix\":\"b\",\"echo\":true}", 400, NULL, "echo", "suffix"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"n\":0}", 400, NULL, "n", "1 to 128"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"n\":1.5}", 400, NULL, "n", "1 to 128"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"n\":3,\"best_of\":2}", 400, NULL, "best_of", "at least n"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"best_of\":2,\"stream\":true}", 400, NULL, "best_of", "stream"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"stream_options\":{}}", 400, NULL, "stream_options", "stream"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":100}", 400, NULL, "n", "more than the 128"},
        {DI_ROUTE_TOKENIZE, "{}", 400, NULL, "prompt", "must be a string"},
        {DI_ROUTE_DETOKENIZE, "{\"tokens\":\"x\"}", 400, NULL, "tokens", "list"},
        {DI_ROUTE_DETOKENIZE, "{\"tokens\":[-1]}", 400, NULL, "tokens", "entry 0"},
    };
    struct di_exchange_setup strict = plain;
    strict.reject_unknown_models = true;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_exchange *x;
        struct di_http_error e;
        struct di_exchange_request r = {.route = cases[i].route, .body = di_str_c(cases[i].body), .id = DI_STR("nothing")};
        if (di_exchange_create(&strict, &r, &x, &e) == DI_OK)
            fail_msg("accepted: %s", cases[i].body);
        assert_null(x);
        assert_int_equal(e.status, cases[i].status);
        if (!strstr(e.message, cases[i].part))
            fail_msg("%s: %s", cases[i].body, e.message);
        if (cases[i].param)
            assert_string_equal(e.param, cases[i].param);
        if (cases[i].code)
            assert_string_equal(e.code, cases[i].code);
    }
}

static void test_shapes_of_errors(void **state)
{
    (void)state;
    struct di_http_error e;
    struct di_buf b = {0};
    di_http_error_set(&e, 429, NULL, NULL, "Too \"many\" requests");
    di_http_error_write(DI_DIALECT_OPENAI, &e, DI_STR("req_1"), &b);
    same_text(&b, "{\"error\":{\"message\":\"Too \\\"many\\\" "
                  "requests\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}");
    di_buf_clear(&b);
    di_http_error_write(DI_DIALECT_ANTHROPIC, &e, DI_STR("req_1"), &b);
    same_text(&b, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"Too \\\"many\\\" "
                  "requests\"},\"request_id\":\"req_1\"}");
    static const struct {
        int status;
        const char *type, *anthropic;
    } kinds[] = {{400, "invalid_request_error", "invalid_request_error"},
                 {401, "authentication_error", "authentication_error"},
                 {404, "not_found_error", "not_found_error"},
                 {413, "invalid_request_error", "request_too_large"},
                 {418, "invalid_request_error", "invalid_request_error"},
                 {500, "internal_error", "api_error"},
                 {503, "service_unavailable", "overloaded_error"},
                 {599, "internal_error", "api_error"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char part[64];
        di_http_error_set(&e, kinds[i].status, NULL, NULL, "x");
        assert_string_equal(e.type, kinds[i].type);
        di_buf_clear(&b);
        di_http_error_write(DI_DIALECT_ANTHROPIC, &e, (struct di_str){0}, &b);
        snprintf(part, sizeof part, "{\"type\":\"%s\"", kinds[i].anthropic);
        assert_non_null(strstr(b.p, part));
    }
    di_buf_fini(&b);
}

static void test_errors_of_the_engine(void **state)
{
    (void)state;
    struct di_http_error e;
    struct di_buf b = {0};
    static const struct {
        di_error err;
        int status;
        const char *code, *message;
    } from[] = {
        {{DI_ERR_INVALID, "must be a string", "stop"}, 400, "", "stop: must be a string"},
        {{DI_ERR_LIMIT, "This model's maximum context length is 9 tokens.", "messages"}, 400, "context_length_exceeded", "This model's"},
        {{DI_ERR_LIMIT, "prompt is too long: 10 tokens > 9 maximum", "messages"}, 400, "context_length_exceeded", "prompt is too long"},
        {{DI_ERR_LIMIT, "too many", ""}, 400, "", "too many"},
        {{DI_ERR_UNSUPPORTED, "no", "bad_words"}, 400, "unsupported", "bad_words: no"},
        {{DI_ERR_NOT_FOUND, "no", ""}, 404, "", "no"},
        {{DI_ERR_MEMORY, "out", ""}, 503, "service_unavailable", "out"},
        {{DI_ERR_INTERNAL, "oh", "x"}, 500, "server_error", "x: oh"},
        {{(di_status)77, "oh", ""}, 500, "server_error", "oh"}};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        di_http_error_from(&e, &from[i].err);
        assert_int_equal(e.status, from[i].status);
        assert_string_equal(e.code ? e.code : "", from[i].code);
        assert_true(strstr(e.message, from[i].message) == e.message);
    }
    di_buf_clear(&b);
    di_http_error_set(&e, 404, NULL, "\xFF", "no \"%s\"", "\xE2\x82 \xC3\xA9"); /* of a path, which may hold any bytes */
    di_http_error_write(DI_DIALECT_OPENAI, &e, (struct di_str){0}, &b);
    same_text(&b, "{\"error\":{\"message\":\"no \\\"?? \xC3\xA9\\\"\",\"type\":\"not_found_error\",\"param\":\"?\",\"code\":null}}");
    di_error cut = {.code = DI_ERR_INVALID};
    memset(cut.where, 'w', sizeof cut.where - 1);
    for (size_t i = 0; i + 3 < sizeof cut.message; i += 2)
        memcpy(cut.message + i, "\xC3\xA9", 2);
    di_http_error_from(&e, &cut);
    di_buf_clear(&b);
    di_http_error_write(DI_DIALECT_OPENAI, &e, (struct di_str){0}, &b);
    struct di_arena arena;
    struct di_json *v;
    di_arena_init(&arena);
    assert_int_equal(di_json_parse(di_buf_str(&b), NULL, &arena, &v, NULL), DI_OK); /* cut between characters */
    di_arena_fini(&arena);
    di_buf_fini(&b);
}

static const struct {
    enum di_route route;
    const char *body, *after; /* what a stream's error looks like */
} generating[] = {
    {DI_ROUTE_CHAT, "{\"stream\":true}",
     "data: {\"error\":{\"message\":\"x: broken\",\"type\":\"internal_error\",\"param\":null,\"code\":\"server_error\"}}\n\ndata: "
     "[DONE]\n\n"},
    {DI_ROUTE_COMPLETIONS, "{\"stream\":true,\"prompt\":\"x\"}",
     "data: {\"error\":{\"message\":\"x: broken\",\"type\":\"internal_error\",\"param\":null,\"code\":\"server_error\"}}\n\ndata: "
     "[DONE]\n\n"},
    {DI_ROUTE_MESSAGES, "{\"stream\":true}",
     "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x: broken\"},\"request_id\":\"req_1\"}\n\n"},
    {DI_ROUTE_RESPONSES, "{\"stream\":true}", "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":"},
};

/* Whatever ends it, a stream says so, and nothing comes behind. */
static void report_34_a_failure_ends_the_stream(void **state)
{
    static const di_error broken = {DI_ERR_INTERNAL, "broken", "x"};
    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (int when = 0; when < 3; when++) {
            struct di_exchange *x = open_exchange(generating[i].route, generating[i].body);
            struct di_buf out = {0};
            if (when > 0)
                push(x, 0, &(di_output){.kind = DI_OUTPUT_STARTED, .thinking = 1}, &out);
            if (when > 1)
                push(x, 0, &(di_output){.kind = DI_OUTPUT_TEXT, .text = "half", .text_bytes = 4}, &out);
            size_t before = out.n;
            push(x, 0, &(di_output){.kind = DI_OUTPUT_FINISHED, .reason = DI_REASON_ERROR, .error = &broken}, &out);
            assert_true(di_exchange_finished(x));
            assert_int_equal(di_exchange_status(x), 200);
            const char *told = strstr(out.p + before, generating[i].after); /* behind the events that begin a stream */
            if (!told || (when > 0 && told != out.p + before))
                fail_msg("%s", out.p + before);
            before = out.n;
            push(x, 0, &(di_output){.kind = DI_OUTPUT_TEXT, .text = "late", .text_bytes = 4}, &out);
            struct di_http_error e;
            di_http_error_set(&e, 500, NULL, NULL, "twice");
            di_exchange_fail(x, &e, true, &out);
            assert_int_equal(out.n, before);
            di_buf_fini(&out);
            di_exchange_destroy(x);
        }
}

/* Without a stream, and before its first byte, an error is a response of its own. */
static void test_errors_before_the_first_byte(void **state)
{
    static const di_error broken = {DI_ERR_INTERNAL, "broken", "x"};
    static const struct {
        di_output end;
        int status;
    } ends[] = {{{.reason = DI_REASON_ERROR, .error = &broken}, 500},
                {{.reason = DI_REASON_ERROR}, 500},
                {{.reason = DI_REASON_CANCELLED}, 503},
                {{.reason = DI_REASON_DEADLINE}, 503}};
    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 4; k++) {
            struct di_exchange *x = open_exchange(generating[i].route, "{\"prompt\":\"x\"}");
            struct di_buf out = {0};
            di_output end = ends[k].end;
            end.kind = DI_OUTPUT_FINISHED;
            assert_string_equal(di_exchange_content_type(x), "application/json");
            push(x, 0, &(di_output){.kind = DI_OUTPUT_STARTED}, &out);
            assert_int_equal(out.n, 0);
            push(x, 0, &end, &out);
            assert_true(di_exchange_finished(x));
            assert_int_equal(di_exchange_status(x), ends[k].status);
            assert_true(strstr(out.p, generating[i].route == DI_ROUTE_MESSAGES ? "{\"type\":\"error\"" : "{\"error\"") == out.p);
            di_buf_fini(&out);
            di_exchange_destroy(x);
        }
    struct di_exchange *x = open_exchange(DI_ROUTE_CHAT, "{\"stream\":true}");
    struct di_buf out = {0};
    struct di_http_error e;
    di_http_error_set(&e, 400, NULL, "stop", "stop: no");
    di_exchange_fail(x, &e, false, &out);
    assert_int_equal(di_exchange_status(x), 400);
    same_text(&out, "{\"error\":{\"message\":\"stop: no\",\"type\":\"invalid_request_error\",\"param\":\"stop\",\"code\":null}}");
    di_buf_fini(&out);
    di_exchange_destroy(x);
}

/* A streaming agent is told by events that its prompt is too long; others, and everything else, by the status. */
static void test_failure_in_the_stream(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool stream = i & 1, too_long = i & 2;
        struct di_exchange *x = open_exchange(DI_ROUTE_RESPONSES, stream ? "{\"input\":\"x\",\"stream\":true}" : "{\"input\":\"x\"}");
        struct di_buf out = {0};
        struct di_http_error e;
        di_http_error_set(&e, 400, too_long ? "context_length_exceeded" : NULL, "input", "no");
        di_exchange_fail(x, &e, false, &out);
        bool events = stream && too_long;
        assert_int_equal(di_exchange_status(x), events ? 200 : 400);
        const char *first = strstr(out.p, "event: response.created\n"), *last = strstr(out.p, "event: response.failed\n");
        assert_true(events ? first == out.p && last : !first && !last);
        assert_non_null(
            strstr(out.p, events ? "\"error\":{\"code\":\"context_length_exceeded\",\"message\":\"no\"}" : "\"message\":\"no\""));
        di_buf_fini(&out);
        di_exchange_destroy(x);
    }
}

/* ---------------------------------------------------------------- small routes, the store */

static void test_models(void **state)
{
    (void)state;
    struct di_exchange *x = open_exchange(DI_ROUTE_MODELS, "");
    struct di_buf out = {0};
    assert_int_equal(di_exchange_submissions(x), 0);
    assert_int_equal(di_exchange_begin(x, &out, NULL), DI_OK);
    assert_true(di_exchange_finished(x));
    assert_non_null(strstr(out.p, "\"id\":\"DeepSeek-V4.1-Flash\""));
    assert_non_null(strstr(out.p, "\"created_at\":\"2023-11-14T22:13:20Z\""));
    assert_null(strstr(out.p, "*"));
    di_exchange_destroy(x);
    struct di_exchange_request r = {.route = DI_ROUTE_MODEL, .id = DI_STR("claude-sonnet")};
    struct di_http_error e;
    di_buf_clear(&out);
    assert_int_equal(di_exchange_create(&plain, &r, &x, &e), DI_OK);
    assert_int_equal(di_exchange_begin(x, &out, NULL), DI_OK);
    assert_non_null(strstr(out.p, "\"id\":\"claude-sonnet\""));
    di_buf_fini(&out);
    di_exchange_destroy(x);
}

static void answer_with(struct di_exchange *x, const char *text)
{
    struct di_buf out = {0};
    push(x, 0, &(di_output){.kind = DI_OUTPUT_STARTED}, &out);
    push(x, 0, &(di_output){.kind = DI_OUTPUT_TEXT, .text = text, .text_bytes = strlen(text)}, &out);
    push(x, 0, &(di_output){.kind = DI_OUTPUT_FINISHED, .reason = DI_REASON_STOP, .stop_index = -1}, &out);
    assert_true(di_exchange_finished(x));
    di_buf_fini(&out);
}

static void test_conversations_are_continued(void **state)
{
    (void)state;
    struct di_exchange_setup kept = plain;
    struct di_http_error e;
    assert_int_equal(di_response_store_create(2, 1 << 20, &kept.store, NULL), DI_OK);
    struct di_exchange *x = open_with(&kept, DI_ROUTE_RESPONSES, "{\"input\":\"one\",\"request_id\":\"1\"}"), *y;
    answer_with(x, "two");
    di_exchange_destroy(x);
    x = open_with(&kept, DI_ROUTE_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":\"three\"}],\"previous_response_id\":\"resp_1\"}");
    di_submission s;
    di_exchange_describe(x, &s);
    struct di_buf input = {0};
    di_buf_add(&input, s.overrides->input, s.overrides->input_bytes);
    same_text(&input,
              "[{\"role\":\"user\",\"content\":\"one\"},{\"type\":\"message\",\"id\":\"msg_resp_1_0\",\"status\":\"completed\",\"role\":"
              "\"assistant\",\"phase\":\"final_answer\",\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],"
              "\"text\":\"two\"}]},{\"role\":\"user\",\"content\":\"three\"}]");
    di_buf_fini(&input);
    di_exchange_destroy(x);
    struct di_exchange_request other = {
        .route = DI_ROUTE_RESPONSES, .body = DI_STR("{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}"), .tenant = 5};
    assert_int_equal(di_exchange_create(&kept, &other, &y, &e), DI_ERR_NOT_FOUND);
    assert_int_equal(e.status, 404);
    x = open_with(&kept, DI_ROUTE_RESPONSES, "{\"input\":\"x\",\"store\":false,\"request_id\":\"2\"}");
    answer_with(x, "not kept");
    di_exchange_destroy(x);
    struct di_buf body = {0};
    assert_false(di_response_store_get(kept.store, 0, DI_STR("resp_2"), NULL, &body));
    for (int i = 0; i < 2; i++) { /* the bound: the oldest goes, use makes young */
        char id[8], text[64];
        snprintf(id, sizeof id, "%d", 10 + i);
        snprintf(text, sizeof text, "{\"input\":\"x\",\"request_id\":\"%s\"}", id);
        assert_int_equal(di_response_store_get(kept.store, 0, DI_STR("resp_1"), NULL, NULL), true);
        x = open_with(&kept, DI_ROUTE_RESPONSES, text);
        answer_with(x, "y");
        di_exchange_destroy(x);
    }
    assert_true(di_response_store_get(kept.store, 0, DI_STR("resp_1"), NULL, &body));
    assert_false(di_response_store_get(kept.store, 0, DI_STR("resp_10"), NULL, NULL));
    assert_true(di_response_store_get(kept.store, 0, DI_STR("resp_11"), NULL, NULL));
    assert_false(di_response_store_delete(kept.store, 5, DI_STR("resp_11")));
    assert_true(di_response_store_delete(kept.store, 0, DI_STR("resp_11")));
    assert_false(di_response_store_delete(kept.store, 0, DI_STR("resp_11")));
    di_buf_fini(&body);
    di_response_store_destroy(kept.store);
}

/* ---------------------------------------------------------------- memory */

/* A whole exchange into *out. False: something said that memory ran out. */
static bool run_all(const struct di_exchange_setup *setup, enum di_route route, const char *body, struct di_buf *out)
{
    static const di_alternative top[] = {{5, -1}, {6, -2}};
    static const di_output records[] = {
        {.kind = DI_OUTPUT_STARTED, .thinking = 1, .text = ""},
        {.kind = DI_OUTPUT_TOKEN, .phase = DI_PHASE_OF_REASONING, .logprob = -1, .text = "", .alternatives = top, .n_alternatives = 2},
        {.kind = DI_OUTPUT_REASONING, .text = "why", .text_bytes = 3},
        {.kind = DI_OUTPUT_TOKEN, .logprob = -2, .text = "", .alternatives = top, .n_alternatives = 2},
        {.kind = DI_OUTPUT_TOKEN, .logprob = -3, .text = "", .alternatives = top, .n_alternatives = 1},
        {.kind = DI_OUTPUT_TEXT, .text = "what", .text_bytes = 4},
        {.kind = DI_OUTPUT_CALL, .text = "a::f", .text_bytes = 4, .call_id = "call_00_x", .call_space = "a"},
        {.kind = DI_OUTPUT_ARGUMENTS, .text = "{}", .text_bytes = 2},
        {.kind = DI_OUTPUT_CALL, .text = "g", .text_bytes = 1, .call_id = "call_01_x", .call_space = "", .call_custom = 1},
        {.kind = DI_OUTPUT_ARGUMENTS, .text = "{\"input\": \"x\"}", .text_bytes = 14},
        {.kind = DI_OUTPUT_FINISHED, .text = "stop", .text_bytes = 4, .reason = DI_REASON_STOP},
    };
    struct di_exchange *x;
    struct di_http_error e;
    struct di_exchange_request r = {.route = route, .body = di_str_c(body), .now = 1};
    bool ok = true;
    if (di_exchange_create(setup, &r, &x, &e) != DI_OK) {
        assert_int_equal(e.status, 503);
        return false;
    }
    ok = di_exchange_begin(x, out, NULL) == DI_OK;
    for (size_t k = 0; ok && k < sizeof records / sizeof *records; k++)
        for (size_t i = 0; ok && i < di_exchange_submissions(x); i++)
            ok = di_exchange_output(x, i, &records[k], out, NULL) == DI_OK;
    di_exchange_destroy(x);
    return ok;
}

/* Whichever allocation fails: the exchange says so, or nothing is missing. */
static void test_every_allocation_can_fail(void **state)
{
    static const struct {
        enum di_route route;
        const char *body;
    } cases[] = {
        {DI_ROUTE_CHAT, "{\"n\":2,\"logprobs\":true,\"request_id\":\"1\"}"},
        {DI_ROUTE_CHAT, "{\"logprobs\":true,\"request_id\":\"1\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"suffix\":\"c\",\"logprobs\":2,\"request_id\":\"1\"}"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2,\"request_id\":\"1\",\"stream\":true}"},
        {DI_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true,\"request_id\":\"1\",\"best_of\":3}"},
        {DI_ROUTE_MESSAGES, "{\"request_id\":\"1\"}"},
        {DI_ROUTE_MESSAGES, "{\"request_id\":\"1\",\"stream\":true}"},
        {DI_ROUTE_RESPONSES, "{\"input\":\"x\",\"request_id\":\"1\",\"top_logprobs\":1,\"previous_response_id\":\"resp_0\"}"},
        {DI_ROUTE_RESPONSES, "{\"input\":\"x\",\"request_id\":\"1\",\"top_logprobs\":1,\"stream\":true}"},
        {DI_ROUTE_MODELS, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_buf want = {0};
        bool ok = false;
        for (uint64_t n = UINT64_MAX; !ok || n == UINT64_MAX; n = n == UINT64_MAX ? 0 : n + 1) {
            struct di_exchange_setup setup = plain;
            struct di_buf out = {0};
            assert_int_equal(di_response_store_create(4, 1 << 20, &setup.store, NULL), DI_OK);
            di_response_store_put(setup.store, 0, DI_STR("resp_0"), DI_STR("{\"role\":\"user\",\"content\":\"w\"}"), DI_STR("{}"));
            di_mem_fail_after(n);
            ok = run_all(&setup, cases[i].route, cases[i].body, n == UINT64_MAX ? &want : &out);
            di_mem_fail_after(UINT64_MAX);
            if (ok && n != UINT64_MAX && !di_str_eq(di_buf_str(&out), di_buf_str(&want)))
                fail_msg("case %zu: allocation %llu failed, and nobody said so:\n%s\n%s", i, (unsigned long long)n, want.p, out.p);
            di_buf_fini(&out);
            di_response_store_destroy(setup.store);
            assert_true(n == UINT64_MAX || n < 100000);
        }
        di_buf_fini(&want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_streams),
        cmocka_unit_test(test_cut_calls),
        cmocka_unit_test(test_submissions),
        cmocka_unit_test(test_prompts_of_completions),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_refused_at_once),
        cmocka_unit_test(test_shapes_of_errors),
        cmocka_unit_test(test_errors_of_the_engine),
        cmocka_unit_test(report_34_a_failure_ends_the_stream),
        cmocka_unit_test(test_errors_before_the_first_byte),
        cmocka_unit_test(test_failure_in_the_stream),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_conversations_are_continued),
        cmocka_unit_test(test_every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
