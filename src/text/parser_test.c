/* not run under TSan: no threads */
#include "text/message.h"

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* One completion: stretches of bytes, as they came. */
struct piece {
    enum di_parse_bytes kind;
    struct di_str text;
};
struct completion {
    struct piece *pieces;
    size_t n, bytes;
};

struct expected {
    const struct di_json *message;
    const char *name;
    bool json_mode;
};

static void feed(struct di_parser *p, const char *s, size_t n, enum di_parse_bytes kind)
{
    assert_int_equal(di_parser_feed(p, (struct di_str){s, n}, kind, NULL), DI_OK);
}

/* Feed all pieces, each cut at absolute offset `cut` (if it lies inside) and then every `step` bytes (0: uncut). */
static void run(const struct di_parser_settings *s, const struct completion *c, size_t cut, size_t step, enum di_finish fin,
                di_parse_emit *emit, void *arg)
{
    struct di_parser *p;
    assert_int_equal(di_parser_create(s, emit, arg, &p, NULL), DI_OK);
    for (size_t i = 0, at = 0; i < c->n; at += c->pieces[i++].text.n) {
        struct di_str t = c->pieces[i].text;
        for (size_t k = 0; k < t.n;) {
            size_t n = step && step < t.n - k ? step : t.n - k;
            if (at + k < cut && cut < at + k + n)
                n = cut - at - k;
            feed(p, t.p + k, n, c->pieces[i].kind);
            k += n;
        }
    }
    assert_int_equal(di_parser_finish(p, fin, NULL), DI_OK);
    di_parser_destroy(p);
}

static struct di_str trim_spaces(struct di_str s)
{
    for (; s.n && s.p[0] == ' '; s.p++)
        s.n--;
    while (s.n && s.p[s.n - 1] == ' ')
        s.n--;
    return s;
}

static void same_text(const char *name, const char *what, struct di_str got, struct di_str want)
{
    if (!di_str_eq(got, want))
        fail_msg("%s: %s is\n%.*s\ninstead of\n%.*s", name, what, (int)got.n, got.p ? got.p : "", (int)want.n, want.p ? want.p : "");
}

/* The vectors' finish is the official library's, which says tool_calls also if the last call was not closed. */
static struct di_str finish_of(const struct di_json *message)
{
    const struct di_json *calls = di_json_get(message, "tool_calls");
    struct di_str finish = di_json_get(message, "finish_reason")->text;
    struct di_arena arena;
    struct di_json *v;
    di_arena_init(&arena);
    if (calls->count && di_str_eqc(finish, "tool_calls") &&
        di_json_parse(di_json_get(di_json_at(calls, calls->count - 1), "arguments")->text, NULL, &arena, &v, NULL) != DI_OK)
        finish = DI_STR("stop");
    di_arena_fini(&arena);
    return finish;
}

static void check(const struct expected *e, const struct di_message *m)
{
    const struct di_json *x = e->message, *calls = di_json_get(x, "tool_calls");
    struct di_str content = di_buf_str(&m->content), want = di_json_get(x, "content")->text;
    same_text(e->name, "reasoning", di_buf_str(&m->reasoning), di_json_get(x, "reasoning_content")->text);
    if (e->json_mode) { /* the vectors hold one space per chunk of skipped text */
        content = trim_spaces(content);
        want = trim_spaces(want);
    }
    same_text(e->name, "content", content, want);
    assert_int_equal(m->n_calls, calls->count);
    for (size_t i = 0; i < m->n_calls; i++) {
        same_text(e->name, "name", di_buf_str(&m->calls[i].name), di_json_get(di_json_at(calls, i), "name")->text);
        same_text(e->name, "arguments", di_buf_str(&m->calls[i].arguments), di_json_get(di_json_at(calls, i), "arguments")->text);
    }
    same_text(e->name, "finish", di_str_c(di_finish_name(m->finish)), finish_of(x));
}

static void run_and_check(const struct di_parser_settings *s, const struct completion *c, size_t cut, size_t step, enum di_finish fin,
                          const struct expected *e)
{
    struct di_message m = {0};
    run(s, c, cut, step, fin, di_message_add, &m);
    assert_int_equal(di_message_ok(&m, NULL), DI_OK);
    assert_true(m.done);
    check(e, &m);
    di_message_fini(&m);
}

/* As given, in one piece per kind, every two-way split, one to three bytes at a time. */
static void all_ways(const struct di_parser_settings *s, const struct completion *c, enum di_finish fin, const struct expected *e)
{
    for (size_t cut = 0; cut <= c->bytes; cut++)
        run_and_check(s, c, cut, 0, fin, e);
    for (size_t step = 1; step <= 3; step++)
        run_and_check(s, c, 0, step, fin, e);
}

static void settings_of(const struct di_json *r, struct di_parser_settings *s, struct di_str *stops, enum di_finish *fin)
{
    const struct di_json *json_mode = di_json_get(r, "json_mode");
    *s = (struct di_parser_settings){.tools_declared = di_json_get(r, "tools_declared")->boolean, .stop = stops};
    s->json_mode = json_mode && json_mode->boolean;
    assert_true(di_parse_start_from_name(di_json_get(r, "start")->text, &s->start));
    assert_true(di_finish_from_name(di_json_get(r, "backend_finish")->text, fin));
    for (const struct di_json *v = di_json_get(r, "stop")->child; v; v = v->next)
        stops[s->n_stop++] = v->text;
}

static void add_piece(struct completion *c, struct di_arena *a, enum di_parse_bytes kind, struct di_str text)
{
    if ((c->n & (c->n + 1)) == 0) { /* 0, 1, 3, 7, ...: full */
        struct piece *bigger = di_arena_alloc(a, (c->n * 2 + 1) * sizeof *bigger);
        assert_non_null(bigger);
        if (c->n)
            memcpy(bigger, c->pieces, c->n * sizeof *bigger);
        c->pieces = bigger;
    }
    c->pieces[c->n++] = (struct piece){kind, text};
    c->bytes += text.n;
}

/* Text with the two markup ids spelled out → the stretches that ids would give. */
static struct completion split_controls(struct di_arena *a, struct di_str text)
{
    static const char *const marks[] = {"</think>", "\xEF\xBD\x9C"
                                                    "DSML\xEF\xBD\x9C"};
    struct completion c = {0};
    for (size_t i = 0; i < text.n;) {
        size_t best = SIZE_MAX, n = 0;
        for (size_t k = 0; k < 2; k++) {
            size_t at = di_str_find(text, di_str_c(marks[k]), i);
            if (at < best) {
                best = at;
                n = strlen(marks[k]);
            }
        }
        size_t end = best == SIZE_MAX ? text.n : best;
        add_piece(&c, a, DI_PARSE_TEXT, (struct di_str){text.p + i, end - i});
        if (n)
            add_piece(&c, a, DI_PARSE_CONTROL, (struct di_str){text.p + end, n});
        i = end + n;
    }
    return c;
}

static void load(const char *path, struct di_buf *b)
{
    di_error err = {0};
    if (di_file_read(path, 1 << 24, b, &err) != DI_OK)
        fail_msg("%s", err.message);
}

static void test_hand_written_cases(void **state)
{
    (void)state;
    struct di_buf file = {0};
    load(DI_SOURCE_DIR "/tests/data/text/parse_cases.json", &file);
    struct di_arena a;
    struct di_json *root;
    di_arena_init(&a);
    assert_int_equal(di_json_parse(di_buf_str(&file), NULL, &a, &root, NULL), DI_OK);
    const struct di_json *cases = di_json_get(root, "cases");
    assert_int_equal(cases->count, 44);
    for (const struct di_json *r = cases->child; r; r = r->next) {
        struct di_str stops[DI_PARSE_MAX_STOP];
        struct di_parser_settings s;
        enum di_finish fin;
        settings_of(r, &s, stops, &fin);
        struct expected e = {di_json_get(r, "expect"), di_json_get(r, "name")->text.p, false};
        struct di_str text = di_json_get(r, "completion")->text;
        struct completion spelled = {0}, ids = split_controls(&a, text);
        add_piece(&spelled, &a, DI_PARSE_TEXT, text);
        s.spelling = true;
        all_ways(&s, &spelled, fin, &e);
        s.spelling = false;
        all_ways(&s, &ids, fin, &e);
    }
    di_arena_fini(&a);
    di_buf_fini(&file);
}

/* ---- events ---- */

/* Pieces of the same kind joined, as [kind, text] pairs in the layout of the vectors. */
struct events {
    struct di_buf kind, text, out;
    bool done;
};

static void end_event(struct events *e)
{
    if (e->kind.n) {
        di_buf_adds(&e->out, e->out.n ? ",[" : "[");
        di_json_write_string(&e->out, di_buf_str(&e->kind));
        di_buf_addc(&e->out, ',');
        di_json_write_string(&e->out, di_buf_str(&e->text));
        di_buf_addc(&e->out, ']');
    }
    di_buf_clear(&e->kind);
    di_buf_clear(&e->text);
}

static void join_event(void *arg, const struct di_parse_event *ev)
{
    struct events *e = arg;
    char kind[40];
    assert_false(e->done);
    e->done = ev->kind == DI_EVENT_DONE;
    if (e->done) {
        end_event(e);
        return;
    }
    static const char *const names[] = {"reasoning", "content", "call", "arguments"};
    assert_true(ev->kind <= DI_EVENT_ARGUMENTS);
    snprintf(kind, sizeof kind, ev->kind >= DI_EVENT_CALL ? "%s %u" : "%s", names[ev->kind], (unsigned)ev->index);
    if (ev->kind == DI_EVENT_CALL || !di_str_eqc(di_buf_str(&e->kind), kind)) {
        end_event(e);
        di_buf_adds(&e->kind, kind);
    }
    assert_true(ev->kind == DI_EVENT_CALL || ev->text.n > 0);
    assert_true(di_utf8_valid(ev->text, NULL));
    di_buf_addv(&e->text, ev->text);
}

static void check_stream(const struct di_parser_settings *s, const struct completion *c, enum di_finish fin, const struct di_json *want,
                         const char *name)
{
    struct di_buf w = {0};
    di_json_write_compact(&w, want);
    for (size_t step = 0; step < 3; step++) {
        struct events e = {0};
        run(s, c, 0, step, fin, join_event, &e);
        assert_true(e.done);
        struct di_str got = di_buf_str(&e.out), inner = {w.p + 1, w.n - 2};
        same_text(name, "the stream", got, inner);
        di_buf_fini(&e.kind);
        di_buf_fini(&e.text);
        di_buf_fini(&e.out);
    }
    di_buf_fini(&w);
}

static void drawn_case(struct di_str line, size_t *streams)
{
    struct di_arena a;
    struct di_json *r;
    di_arena_init(&a);
    assert_int_equal(di_json_parse(line, NULL, &a, &r, NULL), DI_OK);
    struct di_str stops[DI_PARSE_MAX_STOP];
    struct di_parser_settings s;
    enum di_finish fin;
    settings_of(r, &s, stops, &fin);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)di_json_get(r, "id")->text.n, di_json_get(r, "id")->text.p);
    struct expected e = {di_json_get(r, "expect"), name, s.json_mode};
    struct completion c = {0};
    const struct di_json *pieces = di_json_get(r, "pieces"), *segments = di_json_get(r, "segments");
    s.spelling = pieces != NULL;
    for (const struct di_json *v = pieces ? pieces->child : NULL; v; v = v->next)
        add_piece(&c, &a, DI_PARSE_TEXT, v->text);
    for (const struct di_json *v = segments ? segments->child : NULL; v; v = v->next) {
        int64_t control;
        assert_true(di_json_int(di_json_at(v, 0), &control));
        add_piece(&c, &a, control ? DI_PARSE_CONTROL : DI_PARSE_TEXT, di_json_at(v, 1)->text);
    }
    all_ways(&s, &c, fin, &e);
    if (di_json_get(r, "stream")) {
        check_stream(&s, &c, fin, di_json_get(r, "stream"), name);
        ++*streams;
    }
    di_arena_fini(&a);
}

static void test_drawn_cases(void **state)
{
    (void)state;
    struct di_buf file = {0};
    load(DI_SOURCE_DIR "/tests/data/text/recipe_outputs.jsonl", &file);
    size_t n = 0, streams = 0;
    for (const char *p = file.p, *end; (end = strchr(p, '\n')); p = end + 1, n++)
        drawn_case((struct di_str){p, (size_t)(end - p)}, &streams);
    assert_int_equal(n, 400);
    assert_int_equal(streams, 43);
    di_buf_fini(&file);
}

/* ---- rules that the vectors leave open ---- */

struct small {
    struct di_parser_settings s;
    struct piece pieces[6];
    enum di_finish fin;
    const char *json;
};
#define D          \
    "\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C"
#define TEXT(t)              \
    {                        \
        DI_PARSE_TEXT,       \
        {                    \
            t, sizeof(t) - 1 \
        }                    \
    }
#define CONTROL(t)           \
    {                        \
        DI_PARSE_CONTROL,    \
        {                    \
            t, sizeof(t) - 1 \
        }                    \
    }
#define MSG(r, c, calls, f) "{\"reasoning_content\": " r ", \"content\": " c ", \"tool_calls\": [" calls "], \"finish_reason\": " f "}"

static const struct di_str two_stops[] = {{"ab", 2}, {"b", 1}};

static const struct di_str overlapping = {"aab", 3}, name_stop = {"name=", 5};

static bool never(void *arg, struct di_str name)
{
    (void)arg;
    (void)name;
    return false;
}

static bool only_f(void *arg, struct di_str name)
{
    (void)arg;
    return di_str_eqc(name, "f");
}

#define OPEN TEXT("<"), CONTROL(D)

static const struct small smalls[] = {
    /* half a tag is never shown: a stray closing tag, one without tools, one inside a value */
    {{.start = DI_STARTS_CONTENT, .hide_control = true, .tools_declared = true},
     {TEXT("\na</"), CONTROL(D), TEXT(" parameter>b")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"a</" D " parameter>b\"", "", "\"stop\"")},
    {{.start = DI_STARTS_REASONING, .hide_control = true},
     {OPEN, TEXT(" calls>"), CONTROL("</think>"), TEXT("\n</"), CONTROL("</dsml:")},
     DI_FINISH_STOP,
     MSG("\"<" D " calls>\"", "\"</</dsml:\"", "", "\"stop\"")},
    {{.start = DI_STARTS_TOOL_CALLS, .hide_control = true, .tools_declared = true},
     {TEXT("invoke name=\"f\">parameter name=\"a\" string=\"true\"><"), CONTROL(D), TEXT("x</"), CONTROL(D), TEXT("p></"), CONTROL(D)},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"<" D "x\\\"}\"}", "\"tool_calls\"")},
    /* a call of a tool that was not offered is text, whole, and so is what follows; stop strings see it */
    {{.start = DI_STARTS_CONTENT, .hide_control = true, .tools_declared = true, .offered = only_f},
     {TEXT("a\n\n<"), CONTROL(D), TEXT(" calls><"), CONTROL(D), TEXT(" invoke name=\"g\">b"), CONTROL("<think>")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"a\\n\\n<" D " calls><" D " invoke name=\\\"g\\\">b\"", "", "\"stop\"")},
    {{.start = DI_STARTS_REASONING, .hide_control = true, .tools_declared = true, .offered = only_f, .stop = &name_stop, .n_stop = 1},
     {TEXT("w\n<"), CONTROL(D), TEXT("invoke name=\"g\">b")},
     DI_FINISH_STOP,
     MSG("\"w\"", "\"\\n<" D "invoke \"", "", "\"stop\"")},
    /* or nothing: if a call is demanded, in JSON mode, behind another call */
    {{.start = DI_STARTS_TOOL_CALLS, .tools_declared = true, .offered = only_f, .refuse_not_offered = true},
     {TEXT("invoke name=\"g\">invoke name=\"f\">")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "", "\"stop\"")},
    {{.start = DI_STARTS_CONTENT, .tools_declared = true, .offered = only_f, .json_mode = true},
     {OPEN, TEXT("invoke name=\"g\">{}")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "", "\"stop\"")},
    {{.start = DI_STARTS_CONTENT, .tools_declared = true, .offered = only_f},
     {OPEN, TEXT("invoke name=\"f\"></"), CONTROL(D), TEXT("x>invoke name=\"g\">invoke name=\"f\">")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "{\"name\": \"f\", \"arguments\": \"{}\"}", "\"tool_calls\"")},
    /* a control id that is no markup: text, or nothing */
    {{.start = DI_STARTS_REASONING},
     {CONTROL("<think>"), TEXT("\na"), CONTROL("<think>"), CONTROL("</think>"), TEXT("<think>b")},
     DI_FINISH_STOP,
     MSG("\"<think>\\na<think>\"", "\"<think>b\"", "", "\"stop\"")},
    {{.start = DI_STARTS_REASONING, .hide_control = true},
     {CONTROL("<think>"), TEXT("\na"), CONTROL("<think>"), CONTROL("</think>"), TEXT("<think>b")},
     DI_FINISH_STOP,
     MSG("\"a\"", "\"<think>b\"", "", "\"stop\"")},
    /* spelled markup is text when ids are known */
    {{.start = DI_STARTS_REASONING, .tools_declared = true},
     {TEXT("a</think><" D " calls>")},
     DI_FINISH_STOP,
     MSG("\"a</think><" D " calls>\"", "\"\"", "", "\"stop\"")},
    /* the bracket and the attribute must be ordinary bytes */
    {{.start = DI_STARTS_CONTENT, .tools_declared = true},
     {CONTROL("<"), CONTROL(D), TEXT("x")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"<" D "x\"", "", "\"stop\"")},
    {{.start = DI_STARTS_TOOL_CALLS},
     {CONTROL("invoke name=\""), TEXT("invoke name=\"f\"")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "{\"name\": \"f\", \"arguments\": \"\"}", "\"stop\"")},
    /* half a character at the end of a channel, and one that two stretches share */
    {{.start = DI_STARTS_REASONING},
     {TEXT("a\xE4\xBD"), CONTROL("</think>"), TEXT("b\xE4"), TEXT("\xBD\xA0\xE4")},
     DI_FINISH_STOP,
     MSG("\"a\xEF\xBF\xBD\"", "\"b\xE4\xBD\xA0\xEF\xBF\xBD\"", "", "\"stop\"")},
    /* a stray end of reasoning ends the dropping of newlines, hidden or not */
    {{.start = DI_STARTS_CONTENT, .hide_control = true},
     {TEXT("\n"), CONTROL("</think>"), TEXT("\nx")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\\nx\"", "", "\"stop\"")},
    /* matches that begin inside a broken match */
    {{.start = DI_STARTS_CONTENT, .stop = &overlapping, .n_stop = 1},
     {TEXT("xaaab!")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"xa\"", "", "\"stop\"")},
    {{.start = DI_STARTS_CONTENT, .json_mode = true}, {TEXT("````json\n5")}, DI_FINISH_STOP, MSG("\"\"", "\"5\"", "", "\"stop\"")},
    /* two stop strings that end at the same byte: the first given wins; kept on request */
    {{.start = DI_STARTS_CONTENT, .stop = two_stops, .n_stop = 2}, {TEXT("xab!")}, DI_FINISH_LENGTH, MSG("\"\"", "\"x\"", "", "\"stop\"")},
    {{.start = DI_STARTS_CONTENT, .stop = two_stops, .n_stop = 2, .include_stop = true},
     {TEXT("xab!")},
     DI_FINISH_LENGTH,
     MSG("\"\"", "\"xab\"", "", "\"stop\"")},
    /* recovery of an answer whose reasoning was never closed; not when it was cut */
    {{.start = DI_STARTS_REASONING, .recover_unclosed_reasoning = true},
     {TEXT("Hi</thi")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"Hi</thi\"", "", "\"stop\"")},
    {{.start = DI_STARTS_REASONING, .recover_unclosed_reasoning = true},
     {TEXT("Hi")},
     DI_FINISH_LENGTH,
     MSG("\"Hi\"", "\"\"", "", "\"length\"")},
    /* keys are escaped; a raw value that the end cut off goes out as it is */
    {{.start = DI_STARTS_TOOL_CALLS, .spelling = true},
     {TEXT("invoke name=\"f\">parameter name=\"a\\\n\" string=\"false\">tru")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\\\\\\\\\\n\\\": tru\"}", "\"stop\"")},
    /* values that only look like JSON become strings */
    {{.start = DI_STARTS_TOOL_CALLS, .spelling = true},
     {TEXT("invoke name=\"f\">parameter name=\"a\" false\">NaN</" D ">")},
     DI_FINISH_LENGTH,
     MSG("\"\"", "\"\"", "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"NaN\\\"\"}", "\"length\"")},
    {{.start = DI_STARTS_TOOL_CALLS, .spelling = true},
     {TEXT("invoke name=\"f\">parameter name=\"a\" false\">\xEF\xBB\xBF"
           "1</" D ">")},
     DI_FINISH_LENGTH,
     MSG("\"\"", "\"\"",
         "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\xEF\xBB\xBF"
         "1\\\"\"}",
         "\"length\"")},
    /* a call that is too long loses the rest of its text, not its end */
    {{.start = DI_STARTS_TOOL_CALLS, .spelling = true, .max_call_bytes = 6},
     {TEXT("invoke name=\"f\">parameter name=\"a\" true\">0123456789</" D "></" D ">")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"\"", "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"0123\\\"}\"}", "\"tool_calls\"")},
    /* JSON mode sends nothing for what it skips */
    {{.start = DI_STARTS_CONTENT, .json_mode = true},
     {TEXT("Sure: {\"a\": 1}\n```\nand [2]")},
     DI_FINISH_STOP,
     MSG("\"\"", "\"{\\\"a\\\": 1}\"", "", "\"stop\"")},
};

static void test_small_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof smalls / sizeof *smalls; i++) {
        const struct small *c = &smalls[i];
        struct piece pieces[6];
        struct completion all = {.pieces = pieces};
        memcpy(pieces, c->pieces, sizeof pieces);
        for (; all.n < 6 && c->pieces[all.n].text.p; all.n++)
            all.bytes += c->pieces[all.n].text.n;
        for (size_t cut = 0; cut <= all.bytes; cut++) {
            struct di_message m = {0};
            struct di_buf b = {0};
            run(&c->s, &all, cut, cut & 1, c->fin, di_message_add, &m);
            di_message_write_json(&b, &m);
            if (strcmp(b.p, c->json) != 0)
                fail_msg("case %zu, cut %zu:\n%s\ninstead of\n%s", i, cut, b.p, c->json);
            di_message_fini(&m);
            di_buf_fini(&b);
        }
    }
}

/* Where a call is demanded, an answer that begins with that of another tool is refused; behind a call that is one it is left out. */
static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool demanded, refused;
    } cases[] = {
        {"<" D "invoke name=\"g\"></" D "x>", true, true},
        {"<" D "invoke name=\"g\"></" D "x>", false, false},
        {"<" D "invoke name=\"f\"></" D "x>", true, false},
        {"<" D "invoke name=\"f\"></" D "x>invoke name=\"g\">", true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_parser_settings s = {.start = DI_STARTS_CONTENT,
                                       .tools_declared = true,
                                       .spelling = true,
                                       .offered = only_f,
                                       .refuse_not_offered = cases[i].demanded};
        struct di_message m = {0};
        struct di_parser *p;
        assert_int_equal(di_parser_create(&s, di_message_add, &m, &p, NULL), DI_OK);
        feed(p, cases[i].text, strlen(cases[i].text), DI_PARSE_TEXT);
        assert_int_equal(di_parser_refused(p), cases[i].refused);
        di_parser_destroy(p);
        di_message_fini(&m);
    }
}

static void test_settings_are_checked(void **state)
{
    (void)state;
    struct di_str stops[DI_PARSE_MAX_STOP + 1];
    for (size_t i = 0; i <= DI_PARSE_MAX_STOP; i++)
        stops[i] = DI_STR("x");
    struct di_parser_settings s = {.stop = stops, .n_stop = DI_PARSE_MAX_STOP + 1};
    struct di_parser *p;
    struct di_message m = {0};
    assert_int_equal(di_parser_create(&s, di_message_add, &m, &p, NULL), DI_ERR_INVALID);
    s.n_stop = 2;
    stops[1].n = 0;
    assert_int_equal(di_parser_create(&s, di_message_add, &m, &p, NULL), DI_ERR_INVALID);
    s.n_stop = 1;
    s.start = DI_STARTS_CONTENT;
    assert_int_equal(di_parser_create(&s, di_message_add, &m, &p, NULL), DI_OK);
    assert_int_equal(di_parser_phase(p), DI_PHASE_OF_CONTENT);
    feed(p, "ax", 2, DI_PARSE_TEXT);
    assert_true(di_parser_stopped(p));
    assert_int_equal(di_parser_phase(p), DI_PHASE_OF_CONTENT);
    assert_int_equal(di_parser_finish(p, DI_FINISH_STOP, NULL), DI_OK);
    assert_int_equal(m.stop_index, 0);
    assert_int_equal(di_parser_finish(p, DI_FINISH_STOP, NULL), DI_ERR_INVALID);
    assert_int_equal(di_parser_feed(p, DI_STR("x"), DI_PARSE_TEXT, NULL), DI_ERR_INVALID);
    di_parser_destroy(p);
    di_message_fini(&m);
}

/* A megabyte of newlines is held as a number; the parser's own memory doesn't grow. */
static void drop_event(void *arg, const struct di_parse_event *ev)
{
    *(size_t *)arg += ev->text.n;
}

static void test_holding_back_is_bounded(void **state)
{
    (void)state;
    struct di_parser_settings s = {.start = DI_STARTS_CONTENT, .tools_declared = true, .spelling = true};
    struct di_parser *p;
    size_t got = 0;
    assert_int_equal(di_parser_create(&s, drop_event, &got, &p, NULL), DI_OK);
    feed(p, "a", 1, DI_PARSE_TEXT);
    uint64_t calls = di_mem_calls();
    for (int i = 0; i < 1000000; i++)
        feed(p, "\n", 1, DI_PARSE_TEXT);
    assert_int_equal(di_mem_calls(), calls);
    assert_int_equal(got, 1);
    feed(p, "b", 1, DI_PARSE_TEXT);
    assert_int_equal(got, 1000002);
    feed(p, "\n\n\n<" D, 4 + sizeof D - 1, DI_PARSE_TEXT);
    assert_int_equal(di_parser_finish(p, DI_FINISH_STOP, NULL), DI_OK);
    assert_int_equal(got, 1000002);
    di_parser_destroy(p);
}

/* Collects without allocating, so that every failure is the parser's own. */
struct fixed {
    char s[500];
    size_t n;
};
#define LONG \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789" /* more than a first buffer */

static void add_fixed(void *arg, const struct di_parse_event *ev)
{
    struct fixed *f = arg;
    if (ev->text.n == 0)
        return;
    assert_true(f->n + ev->text.n < sizeof f->s);
    memcpy(f->s + f->n, ev->text.p, ev->text.n);
    f->n += ev->text.n;
}

static void test_out_of_memory_is_an_error(void **state)
{
    (void)state;
    struct di_str stop = DI_STR("zz");
    struct di_parser_settings s = {.start = DI_STARTS_TOOL_CALLS, .spelling = true, .stop = &stop, .n_stop = 1};
    struct di_str text =
        DI_STR("invoke name=\"f\">parameter name=\"a\" false\">[1]</" D ">parameter name=\"b\" true\">" LONG LONG "\"</" D "></" D ">");
    for (uint64_t n = 0;; n++) {
        struct fixed got = {0};
        struct di_parser *p;
        di_mem_fail_after(n);
        di_status st = di_parser_create(&s, add_fixed, &got, &p, NULL);
        if (st == DI_OK) {
            st = di_parser_feed(p, text, DI_PARSE_TEXT, NULL);
            di_mem_fail_after(UINT64_MAX);
            di_status end = di_parser_finish(p, DI_FINISH_STOP, NULL);
            if (st != DI_OK)
                assert_int_equal(end, DI_ERR_MEMORY); /* final, although there is memory again */
            di_parser_destroy(p);
        }
        di_mem_fail_after(UINT64_MAX);
        if (st == DI_OK) {
            assert_string_equal(got.s, "f{\"a\": [1], \"b\": \"" LONG LONG "\\\"\"}");
            assert_true(n > 8);
            return;
        }
        assert_int_equal(st, DI_ERR_MEMORY);
    }
}

/* ---- random streams ---- */

static uint64_t next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

static const char *const controls[] = {"</think>", D, D, "<think>", "<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "<\xEF\xBD\x9CSystem\xEF\xBD\x9C>"};
static const char *const ordinary[] = {"<",
                                       "</",
                                       "\n",
                                       "\n\n",
                                       " calls>",
                                       "tool_calls>",
                                       " invoke name=\"",
                                       "\">",
                                       "f",
                                       " parameter name=\"k\" string=\"true\">",
                                       " parameter name=\"k\" string=\"false\">",
                                       "{\"a\": [1, 2]}",
                                       "```json\n",
                                       "\n```",
                                       "END",
                                       "E",
                                       "\xE4",
                                       "\xBD\xA0",
                                       "\xF0\x9F",
                                       "\x80",
                                       "\xFF",
                                       "\\",
                                       "\"",
                                       " parameter>",
                                       " invoke>",
                                       "text ",
                                       "[",
                                       "1",
                                       "\x01"};

/* Every event is valid UTF-8, no hidden control id shows but the one that is half a tag, whole equals bytewise. */
static void test_random_streams(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252u;
    struct di_arena a;
    di_arena_init(&a);
    struct di_str stops[] = {DI_STR("END"), DI_STR("\n\n\n")};
    for (int round = 0; round < 20000; round++) {
        struct completion c = {0};
        for (size_t n = next(&x) % 40; n; n--) {
            bool ctrl = next(&x) % 4 == 0;
            const char *t = ctrl ? controls[next(&x) % 6] : ordinary[next(&x) % (sizeof ordinary / sizeof *ordinary)];
            add_piece(&c, &a, ctrl ? DI_PARSE_CONTROL : DI_PARSE_TEXT, di_str_c(t));
        }
        struct di_parser_settings s = {.start = (di_answer_start)(next(&x) % 5),
                                       .tools_declared = next(&x) % 4 != 0,
                                       .json_mode = next(&x) % 4 == 0,
                                       .hide_control = true,
                                       .offered = next(&x) % 2 ? never : NULL,
                                       .refuse_not_offered = next(&x) % 2,
                                       .stop = stops,
                                       .n_stop = next(&x) % 3};
        struct events e[2] = {0};
        for (size_t k = 0; k < 2; k++)
            run(&s, &c, 0, k, DI_FINISH_STOP, join_event, &e[k]);
        struct di_str whole = di_buf_str(&e[0].out);
        assert_true(di_str_eq(whole, di_buf_str(&e[1].out)));
        for (size_t k = 0; k < 6; k++)
            assert_true(di_str_eqc(di_str_c(controls[k]), D) || di_str_find(whole, di_str_c(controls[k]), 0) == SIZE_MAX);
        for (size_t k = 0; k < 2; k++) {
            di_buf_fini(&e[k].kind);
            di_buf_fini(&e[k].text);
            di_buf_fini(&e[k].out);
        }
        if (round % 256 == 0) {
            di_arena_fini(&a);
            di_arena_init(&a);
        }
    }
    di_arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hand_written_cases),
        cmocka_unit_test(test_drawn_cases),
        cmocka_unit_test(test_small_cases),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_settings_are_checked),
        cmocka_unit_test(test_holding_back_is_bounded),
        cmocka_unit_test(test_out_of_memory_is_an_error),
        cmocka_unit_test(test_random_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
