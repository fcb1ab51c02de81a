/* Agent sessions on the nano model: the client sends each turn back as JSON, and what was cached for it must still fit. */
#include "base/json.h"
#include "client/answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define NANO DI_SOURCE_DIR "/models/nano"
#define BAR "\xEF\xBD\x9C"
#define DSML BAR "DSML" BAR
#define MAX_IDS 512

static di_engine *open_nano(int64_t turns)
{
    di_engine_config c;
    di_engine *e;
    di_error err;
    di_engine_config_init(&c, sizeof c);
    c.model = NANO;
    c.context = 8192;
    c.max_batch = 2;
    c.cache_blocks = 400;
    c.threads = 1;
    c.turn_memory = turns;
    if (di_engine_open(&c, &e, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

struct ids {
    int32_t v[MAX_IDS];
    size_t n;
};

static void add(const di_engine *e, struct ids *ids, const char *text, size_t bytes, int control)
{
    size_t n;
    assert_int_equal(di_engine_encode(e, text, bytes, control, ids->v + ids->n, MAX_IDS - ids->n, &n, NULL), DI_OK);
    ids->n += n;
    assert_true(ids->n <= MAX_IDS);
}

/* As no tokenizer would cut it: byte by byte (ASCII). What a model samples need not be canonical. */
static void add_odd(const di_engine *e, struct ids *ids, const char *text)
{
    for (const char *p = text; *p; p++)
        add(e, ids, p, 1, 0);
}

static void add_control(const di_engine *e, struct ids *ids, const char *spelling)
{
    add(e, ids, spelling, strlen(spelling), 1);
}

/* A turn that reasons, says something and calls a tool: markup with other spacing than the renderer's, odd tokens. */
static void script_call(const di_engine *e, struct ids *ids, int turn, bool whole)
{
    char text[64];
    add_odd(e, ids, "Let me look it up. ");
    add_control(e, ids, "</think>");
    snprintf(text, sizeof text, "Step %d.", turn);
    add_odd(e, ids, text);
    add_odd(e, ids, "\n\n\n<");
    add_control(e, ids, DSML);
    add_odd(e, ids, "calls>\n<");
    add_control(e, ids, DSML);
    add_odd(e, ids, "invoke name=\"look_up\">\n<");
    add_control(e, ids, DSML);
    snprintf(text, sizeof text, "parameter name=\"n\" string=\"false\"> %d ", turn);
    add_odd(e, ids, text);
    if (whole) {
        add_odd(e, ids, "</");
        add_control(e, ids, DSML);
        add_odd(e, ids, "parameter>\n<");
        add_control(e, ids, DSML);
        add_odd(e, ids, "parameter name=\"word\" string=\"true\">a \"b\"</");
        add_control(e, ids, DSML);
        add_odd(e, ids, "parameter>\n</");
        add_control(e, ids, DSML);
        add_odd(e, ids, "invoke>\n</");
        add_control(e, ids, DSML);
        add_odd(e, ids, "calls>");
    }
    add_control(e, ids, "<" BAR "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">");
}

static struct di_answer ask(di_engine *e, const char *json, const struct ids *forced, uint64_t tenant)
{
    struct di_answer a = {0};
    di_submission s;
    di_error err;
    di_submission_init(&s, sizeof s);
    s.json = json;
    s.json_bytes = strlen(json);
    s.forced = forced->v;
    s.n_forced = forced->n;
    s.tenant = tenant;
    if (di_engine_submit(e, &s, NULL, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_int_equal(di_engine_run(e, NULL), DI_OK);
    for (const di_output *o; (o = di_engine_poll(e, 0)); di_output_free(e, o))
        assert_true(di_answer_add(&a, o));
    return a;
}

static const char tools[] =
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look_up\", \"parameters\": {\"type\": \"object\"}}}]";

static void write_request(struct di_buf *b, const struct di_buf *history)
{
    di_buf_clear(b);
    di_buf_addf(b, "{%s, \"max_tokens\": 300, \"messages\": [{\"role\": \"user\", \"content\": \"Go on for thirty steps.\"}%s]}", tools,
                history->p ? history->p : "");
}

/* The client's view of a call: other key order, other spacing, no reasoning. */
static void write_call_turn(struct di_buf *history, const struct di_answer *a, const char *content, int n)
{
    di_buf_addf(history,
                ", {\"role\": \"assistant\", \"content\": \"%s\", \"tool_calls\": [{\"id\": \"%s\", \"type\": \"function\", "
                "\"function\": {\"name\": \"look_up\", \"arguments\": \"{\\\"word\\\":\\\"a \\\\\\\"b\\\\\\\"\\\",\\\"n\\\":%d}\"}}]}, "
                "{\"role\": \"tool\", \"tool_call_id\": \"%s\", \"content\": \"found %d\"}",
                content, a->calls[0].id.p, n, a->calls[0].id.p, n);
}

/* Tokens that the client did not have to pay again must be all but the newest message. `turns` 0: how it is without the memory. */
static void session(int64_t turns, int n, bool expect_all)
{
    di_engine *e = open_nano(turns);
    struct di_buf history = {0}, request = {0};
    int64_t known = 0;
    int whole = 0;
    for (int turn = 0; turn < n; turn++) {
        struct ids script = {0};
        char content[32];
        write_request(&request, &history);
        script_call(e, &script, turn, true);
        struct di_answer a = ask(e, request.p, &script, 0);
        assert_int_equal(a.reason, DI_REASON_TOOL_CALLS);
        assert_int_equal(a.completion_tokens, script.n);
        snprintf(content, sizeof content, "Step %d.", turn);
        assert_string_equal(a.content.p, content);
        whole += a.cached_tokens >= known;
        if (expect_all && a.cached_tokens < known)
            fail_msg("turn %d: %lld of a prompt of %lld tokens are cached, %lld were known", turn, (long long)a.cached_tokens,
                     (long long)a.prompt_tokens, (long long)known);
        known = a.prompt_tokens + a.completion_tokens - 1; /* the end id was sampled, not computed */
        write_call_turn(&history, &a, content, turn);
        di_answer_fini(&a);
    }
    if (!expect_all)
        assert_true(whole < n / 2); /* the test can fail */
    di_buf_fini(&history);
    di_buf_fini(&request);
    di_engine_close(e);
}

static void report_A26_thirty_turns_keep_their_prefix(void **state)
{
    (void)state;
#ifdef DI_TEST_QUICK
    session(100, 6, true);
#else
    session(100, 30, true);
    session(0, 6, false);
#endif
}

/* Whether the second request of a conversation finds all that the first one left, after `change` (NULL: none) of its history. */
static bool replayed(di_engine *e, uint64_t first_tenant, uint64_t tenant, bool whole, const char *content, int n, const char *fields)
{
    static int fresh; /* conversations that share nothing */
    struct ids script = {0}, end = {0};
    struct di_buf request = {0}, history = {0};
    fresh++;
    script_call(e, &script, 7, whole);
    add_odd(e, &end, "ok");
    di_buf_addf(&request, "{%s, \"max_tokens\": 300, \"messages\": [{\"role\": \"user\", \"content\": \"Conversation %d.\"}]}", tools,
                fresh);
    struct di_answer a = ask(e, request.p, &script, first_tenant);
    if (whole)
        write_call_turn(&history, &a, content, n);
    else
        di_buf_addf(&history,
                    ", {\"role\": \"assistant\", \"content\": \"Step 7.\", \"tool_calls\": [{\"id\": \"%s\", \"type\": \"function\", "
                    "\"function\": {\"name\": \"look_up\", \"arguments\": \"{\\\"n\\\":  7 \"}}]}, {\"role\": \"tool\", "
                    "\"tool_call_id\": \"%s\", \"content\": \"the arguments are no JSON\"}",
                    a.calls[0].id.p, a.calls[0].id.p);
    di_buf_clear(&request);
    di_buf_addf(&request, "{%s%s, \"max_tokens\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"Conversation %d.\"}%s]}", tools,
                fields, fresh, history.p);
    struct di_answer b = ask(e, request.p, &end, tenant);
    bool all = b.cached_tokens >= a.prompt_tokens + a.completion_tokens - 1;
    if (tenant != first_tenant)
        assert_int_equal(b.cached_tokens, 0);
    di_answer_fini(&a);
    di_answer_fini(&b);
    di_buf_fini(&request);
    di_buf_fini(&history);
    return all;
}

static void test_what_counts_as_unchanged(void **state)
{
    (void)state;
    di_engine *e = open_nano(100);
    assert_true(replayed(e, 0, 0, true, "Step 7.", 7, ""));
    assert_false(replayed(e, 0, 0, true, "Step 7", 7, ""));                                   /* content */
    assert_false(replayed(e, 0, 0, true, "Step 7.", 8, ""));                                  /* arguments */
    assert_false(replayed(e, 0, 0, true, "Step 7.", 7, ", \"reasoning_history\": \"drop\"")); /* no earlier reasoning is shown */
    assert_false(replayed(e, 0, 0, true, "Step 7.", 7, ", \"thinking\": {\"type\": \"disabled\"}"));
    assert_true(replayed(e, 5, 5, true, "Step 7.", 7, ""));
    di_engine_stats stats;
    assert_int_equal(di_engine_get_stats(e, &stats, sizeof stats, NULL), DI_OK);
    assert_int_equal(stats.turns_replayed, 2);
    assert_int_equal(stats.turns_changed, 4);
    assert_true(stats.turn_bytes > 0);
    di_engine_close(e);
}

static void test_tenants_do_not_meet(void **state)
{
    (void)state;
    di_engine *e = open_nano(100);
    assert_false(replayed(e, 1, 2, true, "Step 7.", 7, ""));
    di_engine_close(e);
}

/* The model broke off inside a call; the client reports that, and the turn is not computed again. */
static void report_26_malformed_call_costs_nothing(void **state)
{
    (void)state;
    di_engine *e = open_nano(100);
    assert_true(replayed(e, 0, 0, false, "", 0, ""));
    di_engine_close(e);
}

/* A final answer without calls, in a session that keeps its reasoning, sampled in odd tokens. */
static void report_83_final_answer_is_reused(void **state)
{
    (void)state;
    for (int64_t turns = 0; turns < 2; turns++) {
        di_engine *e = open_nano(turns);
        struct ids script = {0}, end = {0};
        struct di_buf request = {0};
        const char *first = "{\"role\": \"user\", \"content\": \"Sum up.\"}";
        add_odd(e, &script, "All is said. ");
        add_control(e, &script, "</think>");
        add_odd(e, &script, "It is done.");
        add_control(e, &script, "<" BAR "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">");
        add_odd(e, &end, "ok");
        di_buf_addf(&request, "{%s, \"max_tokens\": 60, \"messages\": [%s]}", tools, first);
        struct di_answer a = ask(e, request.p, &script, 0);
        assert_string_equal(a.content.p, "It is done.");
        assert_string_equal(a.reasoning.p, "All is said. ");
        di_buf_clear(&request);
        di_buf_addf(
            &request,
            "{%s, \"max_tokens\": 2, \"messages\": [%s, {\"role\": \"assistant\", \"content\": \"It is done.\"}, {\"role\": \"user\", "
            "\"content\": \"Thanks.\"}]}",
            tools, first);
        struct di_answer b = ask(e, request.p, &end, 0);
        assert_int_equal(b.cached_tokens >= a.prompt_tokens + a.completion_tokens - 1, turns);
        di_answer_fini(&a);
        di_answer_fini(&b);
        di_buf_fini(&request);
        di_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_A26_thirty_turns_keep_their_prefix),
        cmocka_unit_test(test_what_counts_as_unchanged),
        cmocka_unit_test(test_tenants_do_not_meet),
        cmocka_unit_test(report_26_malformed_call_costs_nothing),
        cmocka_unit_test(report_83_final_answer_is_reused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
