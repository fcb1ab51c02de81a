/* The public API on the nano model: answers that have a form, and what may happen to them meanwhile. */
#include "base/error.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define NANO DI_SOURCE_DIR "/models/nano"
#define OBJECT                                                                                                                       \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"people\":{\"type\":\"integer\"}},\"required\":[\"city\"," \
    "\"people\"],\"additionalProperties\":false}"

static di_engine *engine;

static di_engine *open_nano(int max_batch)
{
    di_engine_config c;
    di_engine *e;
    di_error err;
    di_engine_config_init(&c, sizeof c);
    c.model = NANO;
    c.context = 512;
    c.max_batch = max_batch;
    c.prefill_chunk = 32;
    c.threads = 1;
    if (di_engine_open(&c, &e, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

static int open_engine(void **state)
{
    (void)state;
    engine = open_nano(4);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    di_engine_close(engine);
    return 0;
}

struct answer {
    int32_t tokens[512];
    int n, finished, unconstrained;
    char text[4096];
    di_end_reason reason;
    di_error error;
};

static int take(void *user, const di_output *o)
{
    struct answer *a = user;
    if (o->kind == DI_OUTPUT_TOKEN) {
        a->tokens[a->n++] = o->token;
    } else if (o->kind == DI_OUTPUT_TEXT) {
        strncat(a->text, o->text, sizeof a->text - strlen(a->text) - 1);
    } else if (o->kind == DI_OUTPUT_FINISHED) {
        a->finished = 1;
        a->reason = o->reason;
        a->unconstrained = o->unconstrained;
        if (o->error)
            a->error = *o->error;
    }
    return 1;
}

struct ask {
    di_sampling_options sampling;
    di_form_options form;
    di_submission s;
};

/* A prompt whose answer has a form; the struct stays where it is. */
static void ask(struct ask *q, const char *prompt, const char *kind, const char *text, struct answer *a)
{
    memset(a, 0, sizeof *a);
    di_sampling_options_init(&q->sampling, sizeof q->sampling);
    q->sampling.max_tokens = 60;
    q->sampling.seed = 5;
    di_form_options_init(&q->form, sizeof q->form);
    q->form.kind = kind;
    q->form.text = text;
    q->form.text_bytes = strlen(text);
    di_submission_init(&q->s, sizeof q->s);
    q->s.text = prompt;
    q->s.text_bytes = strlen(prompt);
    q->s.sampling = &q->sampling;
    q->s.form = &q->form;
    q->s.on_output = take;
    q->s.user = a;
}

static di_request_id submit(const struct ask *q)
{
    di_error err = {0};
    di_request_id id = 0;
    if (di_engine_submit(engine, &q->s, &id, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    return id;
}

static void steps(int n)
{
    while (n-- > 0)
        assert_int_equal(di_engine_step(engine, NULL, NULL), DI_OK);
}

static void run(void)
{
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    assert_int_equal(di_engine_flush(engine, NULL), DI_OK);
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, sizeof(int32_t) * (size_t)a->n);
    assert_string_equal(a->text, b->text);
}

static void test_branches(void **state)
{
    (void)state;
    for (int when = 1; when < 40; when += 6) {
        struct answer parent, branch;
        struct ask q;
        di_submission f;
        char prompt[64];
        snprintf(prompt, sizeof prompt, "%d cities and their people.", when);
        ask(&q, prompt, "json", OBJECT, &parent);
        di_request_id id = submit(&q);
        steps(when);
        if (parent.finished)
            break;
        int said = parent.n;
        size_t text = strlen(parent.text);
        memset(&branch, 0, sizeof branch);
        di_submission_init(&f, sizeof f);
        f.on_output = take;
        f.user = &branch;
        assert_int_equal(di_engine_fork(engine, id, &f, NULL, NULL), DI_OK);
        run();
        assert_int_equal(parent.reason, DI_REASON_STOP);
        assert_int_equal(branch.reason, DI_REASON_STOP);
        assert_int_equal(branch.n, parent.n - said);
        assert_memory_equal(branch.tokens, parent.tokens + said, sizeof(int32_t) * (size_t)branch.n);
        assert_string_equal(branch.text, parent.text + text);
    }
}

/* A branch with a seed and a limit of its own. */
static void fork_with(di_request_id id, int max_tokens, struct answer *branch)
{
    di_submission f;
    di_sampling_options own;
    di_sampling_options_init(&own, sizeof own);
    own.seed = 99;
    own.max_tokens = max_tokens;
    di_submission_init(&f, sizeof f);
    f.sampling = &own;
    f.on_output = take;
    f.user = branch;
    assert_int_equal(di_engine_fork(engine, id, &f, NULL, NULL), DI_OK);
}

/* With other sampling the branch says something else, of the same form. */
static void test_branch_of_its_own(void **state)
{
    struct answer parent, branch = {0};
    struct ask q;
    (void)state;
    ask(&q, "Letters: ", "regex", "[a-z]{12}[0-9]{6}!", &parent);
    di_request_id id = submit(&q);
    while (parent.n < 4)
        steps(1);
    size_t text = strlen(parent.text);
    fork_with(id, 60, &branch);
    run();
    assert_int_equal(strlen(parent.text), 19);
    assert_int_equal(strlen(branch.text) + text, 19);
    assert_int_equal(branch.text[strlen(branch.text) - 1], '!');
}

/* A branch that may take fewer tokens comes to its end in good time, though the answer so far would have had to go there before. */
static void test_branch_with_few_tokens(void **state)
{
    (void)state;
    for (int few = 6; few <= 24; few += 6) {
        struct answer parent, branch = {0};
        struct ask q;
        ask(&q, "A city and its people.", "json", OBJECT, &parent);
        di_request_id id = submit(&q);
        while (parent.n < 9)
            steps(1);
        fork_with(id, few, &branch);
        run();
        assert_int_equal(branch.error.code, DI_OK);
        assert_int_equal(branch.finished, 1);
        assert_true(branch.n <= few);
    }
}

/* A better priority takes the only place; who gave way starts again and says the same. */
static void test_preemption(void **state)
{
    struct answer alone, given_way, better;
    struct ask a, b;
    di_engine *other = engine;
    (void)state;
    engine = open_nano(1);
    ask(&a, "A city and its people.", "json", OBJECT, &alone);
    submit(&a);
    run();
    ask(&a, "A city and its people.", "json", OBJECT, &given_way);
    a.s.priority = 1;
    submit(&a);
    while (given_way.n < 5)
        steps(1);
    ask(&b, "Another city.", "json", OBJECT, &better);
    submit(&b);
    run();
    di_engine_stats s;
    assert_int_equal(di_engine_get_stats(engine, &s, sizeof s, NULL), DI_OK);
    assert_true(s.preempted > 0);
    assert_int_equal(better.reason, DI_REASON_STOP);
    assert_same(&alone, &given_way);
    di_engine_close(engine);
    engine = other;
}

static void test_cached_prompts(void **state)
{
    struct answer first, second;
    struct ask q;
    (void)state;
    ask(&q, "A prompt that is computed once and found again later on.", "json", OBJECT, &first);
    submit(&q);
    run();
    ask(&q, "A prompt that is computed once and found again later on.", "json", OBJECT, &second);
    submit(&q);
    run();
    assert_same(&first, &second);
    assert_false(first.unconstrained);
}

/* Whatever allocation fails, nobody gets an answer without the form. */
static void test_no_memory(void **state)
{
    struct answer a;
    struct ask q;
    int refused = 0, failed = 0;
    (void)state;
    for (int n = 0; n < 60; n++) {
        ask(&q, "Letters: ", "regex", "[a-z]{3}[0-9]{2}", &a);
        di_mem_fail_after((uint64_t)n);
        di_status status = di_engine_submit(engine, &q.s, NULL, NULL);
        di_mem_fail_after(UINT64_MAX);
        assert_true(status == DI_OK || status == DI_ERR_MEMORY);
        refused += status != DI_OK;
        if (status != DI_OK)
            continue;
        di_mem_fail_after((uint64_t)n % 7);
        di_engine_step(engine, NULL, NULL);
        di_mem_fail_after(UINT64_MAX);
        run();
        failed += a.reason == DI_REASON_ERROR;
        assert_true(a.reason == DI_REASON_ERROR ? a.error.code == DI_ERR_MEMORY : strlen(a.text) == 5);
    }
    assert_true(refused > 5);
    assert_true(failed < 60 - refused);
}

/* More forms than are kept, each of them more than once, while others use them. */
static void test_many_forms(void **state)
{
    static struct answer answers[150];
    static struct ask asks[150];
    char text[150][32];
    (void)state;
    for (int i = 0; i < 150; i++) {
        snprintf(text[i], sizeof text[i], "x%dy?z", i % 75);
        ask(&asks[i], "Say x", "regex", text[i], &answers[i]);
        submit(&asks[i]);
        if (i % 50 == 49)
            steps(5);
    }
    run();
    for (int i = 0; i < 150; i++) {
        char want[32], other[32];
        snprintf(want, sizeof want, "x%dz", i % 75);
        snprintf(other, sizeof other, "x%dyz", i % 75);
        assert_true(strcmp(answers[i].text, want) == 0 || strcmp(answers[i].text, other) == 0);
    }
}

/* The form begins behind its trigger, which is free to come; behind the bound id it has to. */
static void test_triggers(void **state)
{
    struct answer plain, a;
    struct ask q;
    int32_t ids[3];
    (void)state;
    ask(&q, "The sun", "regex", "[0-9]{3}", &plain);
    q.s.form = NULL;
    q.sampling.temperature = 0;
    q.sampling.max_tokens = 30;
    submit(&q);
    run();
    memcpy(ids, plain.tokens + 6, 2 * sizeof *ids);
    ask(&q, "The sun", "regex", "[0-9]{3}", &a);
    q.sampling.temperature = 0;
    q.form.trigger_ids = ids;
    q.form.n_trigger_ids = 2;
    submit(&q);
    run();
    assert_memory_equal(a.tokens, plain.tokens, 8 * sizeof *a.tokens);
    assert_int_equal(a.reason, DI_REASON_STOP);
    assert_int_equal(strspn(a.text + strlen(a.text) - 3, "0123456789"), 3);
    ids[1] = 300;
    ids[2] = 301;
    ask(&q, "The sun", "regex", "[0-9]{3}", &a);
    q.sampling.temperature = 0;
    q.form.trigger_ids = ids;
    q.form.n_trigger_ids = 3;
    q.form.bound_id = ids[0];
    submit(&q);
    run();
    assert_memory_equal(a.tokens, plain.tokens, 7 * sizeof *a.tokens);
    assert_int_equal(a.tokens[7], 300);
    assert_int_equal(a.tokens[8], 301);
    assert_int_equal(strspn(a.text + strlen(a.text) - 3, "0123456789"), 3);
}

static void refused(const struct ask *q, di_status status, const char *where)
{
    di_error err = {0};
    assert_int_equal(di_engine_submit(engine, &q->s, NULL, &err), status);
    assert_string_equal(err.where, where);
}

static void test_refusals(void **state)
{
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_regex\":\"a\"}";
    struct answer a;
    struct ask q;
    (void)state;
    ask(&q, "x", "poem", "", &a);
    refused(&q, DI_ERR_INVALID, "form.kind");
    ask(&q, "x", "regex", "(", &a);
    refused(&q, DI_ERR_INVALID, "form");
    ask(&q, "x", "regex", "(?=a)b", &a);
    refused(&q, DI_ERR_UNSUPPORTED, "form");
    ask(&q, "x", "regex", "\xFF", &a);
    refused(&q, DI_ERR_INVALID, "form.text");
    ask(&q, "x", "regex", "a", &a);
    q.form.bound_id = 5;
    refused(&q, DI_ERR_INVALID, "form.bound_id");
    ask(&q, "x", "regex", "a", &a);
    q.s.text = NULL;
    q.s.json = chat;
    q.s.json_bytes = strlen(chat);
    refused(&q, DI_ERR_INVALID, "form");
}

/* Answers with a form that are waiting, running and cancelled when the engine is closed. */
static void test_closing(void **state)
{
    static struct answer answers[6];
    struct ask q;
    di_engine *other = engine;
    (void)state;
    engine = open_nano(2);
    for (int i = 0; i < 6; i++) {
        ask(&q, "A city and its people.", "json", OBJECT, &answers[i]);
        q.sampling.seed = i;
        di_request_id id = submit(&q);
        if (i == 3) {
            steps(4);
            di_engine_cancel(engine, id);
        }
    }
    steps(3);
    di_engine_close(engine);
    engine = other;
    for (int i = 0; i < 6; i++)
        assert_true(answers[i].finished);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_branches),   cmocka_unit_test(test_branch_of_its_own), cmocka_unit_test(test_branch_with_few_tokens),
        cmocka_unit_test(test_preemption), cmocka_unit_test(test_cached_prompts),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_many_forms), cmocka_unit_test(test_triggers),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_closing),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
