/* Protocols against the official library's event streams (tests/data/text/recipe_outputs.jsonl), against themselves (a stream adds up to the whole
 * answer), and what is refused. */
#include "server/protocol.h"

#include "base/file.h"
#include "base/json.h"
#include "base/philox.h"
#include "server/response_store.h"
#include "text/parser.h"

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
    const struct di_json *v[4096];
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

struct play {
    struct di_exchange *x;
    struct di_buf *out;
    size_t calls;
    const char *suffix; /* of call ids */
};

static void on_event(void *arg, const struct di_parse_event *e)
{
    static const di_output_kind kinds[] = {[DI_EVENT_REASONING] = DI_OUTPUT_REASONING,
                                           [DI_EVENT_CONTENT] = DI_OUTPUT_TEXT,
                                           [DI_EVENT_CALL] = DI_OUTPUT_CALL,
                                           [DI_EVENT_ARGUMENTS] = DI_OUTPUT_ARGUMENTS};
    static const di_end_reason reasons[] = {[DI_FINISH_STOP] = DI_REASON_STOP,
                                            [DI_FINISH_LENGTH] = DI_REASON_LENGTH,
                                            [DI_FINISH_TOOL_CALLS] = DI_REASON_TOOL_CALLS,
                                            [DI_FINISH_STOP_STRING] = DI_REASON_STOP};
    struct play *p = arg;
    char id[32];
    di_output o = {.kind = kinds[e->kind], .index = e->index, .text = e->text.p, .text_bytes = e->text.n, .call_space = ""};
    if (e->kind == DI_EVENT_CALL) {
        snprintf(id, sizeof id, "call_%02zu%s", p->calls++, p->suffix);
        o.call_id = id;
    }
    if (e->kind == DI_EVENT_DONE)
        o = (di_output){.kind = DI_OUTPUT_FINISHED,
                        .reason = reasons[e->finish],
                        .stop_index = e->finish == DI_FINISH_STOP_STRING ? (int)e->stop_index : -1,
                        .text = "\n\n", /* the only stop string that is met there */
                        .text_bytes = e->finish == DI_FINISH_STOP_STRING ? 2 : 0};
    push(p->x, 0, &o, p->out);
}

static void feed_case(const struct di_json *r, struct play *p)
{
    struct di_str stops[DI_PARSE_MAX_STOP];
    const struct di_json *pieces = di_json_get(r, "pieces"), *segments = di_json_get(r, "segments");
    struct di_parser_settings s = {.tools_declared = di_json_get(r, "tools_declared")->boolean,
                                   .json_mode = di_json_get(r, "json_mode")->boolean,
                                   .spelling = pieces != NULL,
                                   .stop = stops};
    enum di_finish fin;
    struct di_parser *parser;
    assert_true(di_parse_start_from_name(di_json_get(r, "start")->text, &s.start));
    assert_true(di_finish_from_name(di_json_get(r, "backend_finish")->text, &fin));
    for (const struct di_json *v = di_json_get(r, "stop")->child; v; v = v->next)
        stops[s.n_stop++] = v->text;
    assert_int_equal(di_parser_create(&s, on_event, p, &parser, NULL), DI_OK);
    for (const struct di_json *v = pieces ? pieces->child : NULL; v; v = v->next)
        di_parser_feed(parser, v->text, DI_PARSE_TEXT, NULL);
    for (const struct di_json *v = segments ? segments->child : NULL; v; v = v->next) {
        int64_t control;
        assert_true(di_json_int(di_json_at(v, 0), &control));
        di_parser_feed(parser, di_json_at(v, 1)->text, control ? DI_PARSE_CONTROL : DI_PARSE_TEXT, NULL);
    }
    assert_int_equal(di_parser_finish(parser, fin, NULL), DI_OK);
    di_parser_destroy(parser);
}

static struct di_json *mutable_get(const struct di_json *v, const char *key)
{
    return (struct di_json *)di_json_get(v, key);
}

/* Our event in the recorded form: its embedded response is cut down. */
static void cut_response(struct di_json *event, struct di_arena *arena)
{
    struct di_json *response = mutable_get(event, "response");
    if (!response) {
        struct di_json *name = mutable_get(event, "name"); /* the newer SDKs want it there, the recordings do not have it */
        if (name && di_str_eqc(text_of(event, "type"), "response.function_call_arguments.done"))
            name->key = DI_STR("sequence_number");
        return;
    }
    struct di_json *status = mutable_get(response, "status"), *why = mutable_get(response, "incomplete_details"),
                   *output = mutable_get(response, "output");
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

static void check_case(const struct di_json *r, const char *protocol, enum di_route route)
{
    const struct di_json *want = di_json_get(di_json_get(r, "stream"), protocol);
    static struct events events;
    struct script ours = {0}, theirs = {0};
    struct di_buf out = {0}, all = {0};
    bool thinking = di_str_starts(di_json_get(r, "start")->text, DI_STR("reasoning")), chat = route == DI_ROUTE_CHAT;
    if (!want)
        return;
    di_json_write_compact(&all, want);
    bool empty_thinking = di_str_find(di_buf_str(&all), DI_STR("_ET\""), 0) != SIZE_MAX;
    /* A prefix inside the content: the recordings are of thinking requests. */
    thinking = thinking || di_str_eqc(di_json_get(r, "start")->text, "content_continued");
    struct play p = {open_exchange(route, "{\"model\":\"DeepSeek-V4.1-Flash\",\"request_id\":\"1\",\"stream\":true}"), &out, 0,
                     empty_thinking ? "_ET" : ""};
    enum di_parse_start start;
    static const di_answer_start starts[] = {[DI_START_REASONING] = DI_STARTS_REASONING,
                                             [DI_START_CONTENT] = DI_STARTS_CONTENT,
                                             [DI_START_TOOL_BLOCK] = DI_STARTS_TOOL_CALLS,
                                             [DI_START_REASONING_CONTINUED] = DI_STARTS_REASONING_CONTINUED,
                                             [DI_START_CONTENT_CONTINUED] = DI_STARTS_CONTENT_CONTINUED};
    assert_true(di_parse_start_from_name(di_json_get(r, "start")->text, &start));
    push(p.x, 0, &(di_output){.kind = DI_OUTPUT_STARTED, .start = starts[start], .thinking = thinking}, &out);
    feed_case(r, &p);
    assert_true(di_exchange_finished(p.x));
    replace_all(&out, "msg_1\"", "resp_1\"");
    read_events(di_buf_str(&out), &events);
    assert_int_equal(events.done, chat);
    for (size_t i = 0; i < events.n; i++) {
        struct di_json *v = (struct di_json *)events.v[i];
        if (chat) {
            struct di_json *choice = (struct di_json *)di_json_at(di_json_get(v, "choices"), 0);
            struct di_json *delta = mutable_get(choice, "delta"), *finish = mutable_get(choice, "finish_reason");
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
        fail_msg("%.*s %s\nours:\n%s\ntheirs:\n%s\n", (int)di_json_get(r, "id")->text.n, di_json_get(r, "id")->text.p, protocol, ours.lines.p,
                 theirs.lines.p);
    di_exchange_destroy(p.x);
    di_arena_fini(&events.arena);
    di_buf_fini(&ours.lines);
    di_buf_fini(&ours.shape);
    di_buf_fini(&ours.text);
    di_buf_fini(&theirs.lines);
    di_buf_fini(&theirs.shape);
    di_buf_fini(&theirs.text);
    di_buf_fini(&out);
    di_buf_fini(&all);
}

static void test_recorded_streams(void **state)
{
    (void)state;
    struct di_buf file = {0};
    size_t n = 0;
    assert_int_equal(di_file_read(DI_SOURCE_DIR "/tests/data/text/recipe_outputs.jsonl", (size_t)64 << 20, &file, NULL), DI_OK);
    for (const char *p = file.p, *end; (end = strchr(p, '\n')); p = end + 1) {
        struct di_arena arena;
        struct di_json *r;
        di_arena_init(&arena);
        assert_int_equal(di_json_parse((struct di_str){p, (size_t)(end - p)}, NULL, &arena, &r, NULL), DI_OK);
        bool filtered = di_str_eqc(di_json_get(r, "backend_finish")->text, "content_filter"); /* nothing filters here */
        if (di_json_get(r, "stream") && !filtered) {
            check_case(r, "chat", DI_ROUTE_CHAT);
            check_case(r, "messages", DI_ROUTE_MESSAGES);
            check_case(r, "responses", DI_ROUTE_RESPONSES);
            n++;
        }
        di_arena_fini(&arena);
    }
    assert_int_equal(n, 37);
    di_buf_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
