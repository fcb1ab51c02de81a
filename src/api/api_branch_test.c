/* The public API on the nano model: branches of live requests, several answers over one prefill, states at chosen positions, limits of
 * output. */
#include "base/error.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <math.h>

#include <cmocka.h>

#define NANO DI_SOURCE_DIR "/models/nano"
#define BLOCKS 40
#define STORY \
    "Once upon a time there was a little girl who lived in a village near the forest. One day her mother said to her that she should "
static const char question[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0.8}";

#ifdef DI_TEST_QUICK
#define STRIDE 3
#else
#define STRIDE 1
#endif

static di_engine *engine;

static int open_engine(void **state)
{
    di_engine_config c;
    di_error err;
    (void)state;
    di_engine_config_init(&c, sizeof c);
    c.model = NANO;
    c.context = 512;
    c.max_batch = 4;
    c.prefill_chunk = 32;
    c.cache_blocks = BLOCKS;
    c.threads = 1;
    c.max_unread = 150;
    if (di_engine_open(&c, &engine, &err) == DI_OK)
        return 0;
    fprintf(stderr, "%s: %s\n", err.where, err.message);
    return -1;
}

static int close_engine(void **state)
{
    (void)state;
    di_engine_close(engine);
    return 0;
}

/* ---------------------------------------------------------------- requests */

struct answer {
    int32_t tokens[512];
    float logprobs[512];
    int n, finished;
    char text[4096], reasoning[4096], stop[32];
    di_end_reason reason;
    di_error error;
    int64_t prompt_tokens, cached_tokens;
    int quit_after; /* tokens after which the callback wants no more, 0 = never */
};

static int take(void *user, const di_output *o)
{
    struct answer *a = user;
    assert_false(a->finished);
    if (o->kind == DI_OUTPUT_TOKEN) {
        a->logprobs[a->n] = o->logprob;
        a->tokens[a->n++] = o->token;
    } else if (o->kind == DI_OUTPUT_TEXT)
        strncat(a->text, o->text, sizeof a->text - strlen(a->text) - 1);
    else if (o->kind == DI_OUTPUT_REASONING)
        strncat(a->reasoning, o->text, sizeof a->reasoning - strlen(a->reasoning) - 1);
    else if (o->kind == DI_OUTPUT_FINISHED) {
        a->finished = 1;
        a->reason = o->reason;
        a->prompt_tokens = o->prompt_tokens;
        a->cached_tokens = o->cached_tokens;
        snprintf(a->stop, sizeof a->stop, "%s", o->text);
        if (o->error)
            a->error = *o->error;
    }
    return a->n != a->quit_after || !a->n;
}

static di_sampling_options sampling(double temperature, int64_t max_tokens)
{
    di_sampling_options o;
    di_sampling_options_init(&o, sizeof o);
    o.temperature = temperature;
    o.max_tokens = max_tokens;
    o.ignore_eos = 1;
    o.seed = 7;
    return o;
}

static di_submission request(const char *text, const di_sampling_options *o, struct answer *a)
{
    di_submission s;
    di_submission_init(&s, sizeof s);
    if (a)
        memset(a, 0, sizeof *a);
    s.text = text;
    s.text_bytes = text ? strlen(text) : 0;
    s.sampling = o;
    s.on_output = take;
    s.user = a;
    return s;
}

static di_request_id submit(const di_submission *s)
{
    di_error err = {0};
    di_request_id id = 0;
    if (di_engine_submit(engine, s, &id, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    return id;
}

static di_request_id fork_of(di_request_id parent, const di_submission *s)
{
    di_error err = {0};
    di_request_id id = 0;
    if (di_engine_fork(engine, parent, s, &id, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_true(id > parent);
    return id;
}

static void steps(int n)
{
    while (n-- > 0)
        assert_int_equal(di_engine_step(engine, NULL, NULL), DI_OK);
}

static di_engine_stats stats(void)
{
    di_engine_stats s;
    assert_int_equal(di_engine_get_stats(engine, &s, sizeof s, NULL), DI_OK);
    return s;
}

static void run(void)
{
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    assert_int_equal(di_engine_flush(engine, NULL), DI_OK);
    di_engine_stats s = stats();
    assert_int_equal(s.running + s.waiting, 0);
    assert_int_equal(s.free_blocks, BLOCKS);
}

/* ---------------------------------------------------------------- branches */

/* With the parent's sampling a branch says what the parent goes on to say, wherever it leaves; one token is computed again. */
static void test_branch_continues_as_the_parent(void **state)
{
    di_sampling_options o = sampling(1, 60);
    (void)state;
    for (int when = 1; when < 70; when += 7 * STRIDE) {
        struct answer parent, branch;
        char prompt[400];
        snprintf(prompt, sizeof prompt, "%d. " STORY, when); /* nobody has computed it before */
        di_submission s = request(prompt, &o, &parent), f = request(NULL, NULL, &branch);
        di_request_id id = submit(&s);
        steps(when);
        if (parent.finished)
            break;
        uint64_t rows = stats().prompt_rows;
        int said = parent.n;
        size_t text = strlen(parent.text);
        fork_of(id, &f);
        run();
        assert_int_equal(branch.reason, DI_REASON_LENGTH);
        assert_int_equal(branch.n, 60 - said);
        assert_memory_equal(branch.tokens, parent.tokens + said, sizeof(int32_t) * (size_t)branch.n);
        assert_string_equal(branch.text, parent.text + text);
        assert_int_equal(branch.prompt_tokens, parent.prompt_tokens + said);
        assert_int_equal(branch.cached_tokens, branch.prompt_tokens - 1);
        if (said)
            assert_int_equal(stats().prompt_rows - rows, 1);
    }
}

/* A branch of a chat answer goes on inside its reasoning and comes to the answer by itself. */
static void test_branch_of_a_chat(void **state)
{
    (void)state;
    for (int after = 2; after < 60; after += 9 * STRIDE) {
        struct answer parent, branch;
        di_submission s = request(NULL, NULL, &parent), f = request(NULL, NULL, &branch);
        s.json = question;
        s.json_bytes = strlen(question);
        di_request_id id = submit(&s);
        while (parent.n < after && !parent.finished)
            steps(1);
        if (parent.finished)
            break;
        size_t reasoning = strlen(parent.reasoning), text = strlen(parent.text);
        fork_of(id, &f);
        run();
        assert_int_equal(parent.reason, DI_REASON_STOP);
        assert_int_equal(branch.reason, DI_REASON_STOP);
        assert_string_equal(branch.reasoning, parent.reasoning + reasoning);
        assert_string_equal(branch.text, parent.text + text);
    }
}

/* Own sampling, own limit, own stop string; at a chosen place; of a branch; other samples differ. */
static void test_branch_of_its_own(void **state)
{
    static const char *const stops[] = {"e", "q"};
    di_sampling_options o = sampling(1, 60), own = sampling(0, 9), stopping = sampling(1, 50);
    struct answer parent, greedy, early, second, stopped, of_branch, alone;
    di_submission s = request(STORY, &o, &parent), f = request(NULL, &own, &greedy), g = request(NULL, NULL, &early);
    di_submission h = request(NULL, NULL, &second), k = request(NULL, &stopping, &stopped), m = request(NULL, NULL, &of_branch);
    (void)state;
    stopping.stop = stops;
    stopping.n_stop = 2;
    di_request_id id = submit(&s);
    while (parent.n < 20)
        steps(1);
    int said = parent.n;
    di_request_id branch = fork_of(id, &f);
    g.fork_at = 10; /* inside the prompt */
    fork_of(id, &g);
    h.sample = 1;
    h.n_samples = 2;
    fork_of(id, &h);
    k.fork_at = 0;
    run();
    assert_int_equal(greedy.n, 9);
    assert_int_equal(early.prompt_tokens, 10);
    assert_int_equal(early.n, 60);
    assert_memory_not_equal(second.tokens, parent.tokens + said, sizeof(int32_t) * (size_t)second.n);

    int32_t ids[512];
    size_t n; /* the same ids as a prompt of their own give the same answer */
    assert_int_equal(di_engine_prompt(engine, &s, ids, 512, &n, NULL), DI_OK);
    memcpy(ids + n, parent.tokens, sizeof(int32_t) * (size_t)said);
    di_submission a = request(NULL, &own, &alone);
    a.ids = ids;
    a.n_ids = n + (size_t)said;
    submit(&a);
    run();
    assert_memory_equal(alone.tokens, greedy.tokens, sizeof(int32_t) * 9);

    id = submit(&s);
    memset(&parent, 0, sizeof parent);
    assert_int_equal(di_engine_fork(engine, branch, &f, NULL, NULL), DI_ERR_NOT_FOUND);
    own.max_tokens = 40;
    memset(&greedy, 0, sizeof greedy);
    branch = fork_of(id, &f); /* in the same inbox as its parent, and a branch of the branch */
    fork_of(branch, &m);
    run();
    assert_int_equal(of_branch.n, 40);
    assert_memory_equal(of_branch.tokens, greedy.tokens, sizeof(int32_t) * 40);

    memset(&parent, 0, sizeof parent);
    id = submit(&s);
    steps(5);
    fork_of(id, &k);
    run();
    assert_int_equal(stopped.reason, stopped.error.code ? DI_REASON_ERROR : DI_REASON_STOP);
    assert_string_equal(stopped.error.code ? "e" : stopped.stop, "e");
}

/* A branch is its parent's tenant's; what it says itself about sampling is all that counts, defaults of the parent's do not. */
static void test_branch_inherits_its_tenant_not_defaults(void **state)
{
    di_sampling_options own = sampling(0, 0);
    di_request_defaults d;
    struct answer parent, branch;
    di_submission s = request(NULL, NULL, &parent), f = request(NULL, &own, &branch);
    (void)state;
    di_request_defaults_init(&d, sizeof d);
    d.max_tokens = 12;
    d.temperature = 0;
    s.json = "{\"prompt\": \"Tenants. " STORY "\", \"ignore_eos\": true}";
    s.json_bytes = strlen(s.json);
    s.protocol = "completion";
    s.defaults = &d;
    s.tenant = 5;
    f.tenant = 6;
    di_request_id id = submit(&s);
    while (parent.n < 5)
        steps(1);
    fork_of(id, &f);
    run();
    assert_int_equal(parent.n, 12);
    assert_int_equal(branch.cached_tokens, branch.prompt_tokens - 1);
    assert_int_equal(branch.n, 512 - branch.prompt_tokens);
}

static void test_bad_branches(void **state)
{
    di_sampling_options o = sampling(0, 60), bad = sampling(3, 5), big = sampling(0, 500);
    struct answer parent, branch[3];
    di_submission s = request(STORY, &o, &parent), f = request("x", NULL, &branch[0]);
    di_error err;
    (void)state;
    di_request_id id = submit(&s), none = 5;
    assert_int_equal(di_engine_fork(engine, id, &f, &none, &err), DI_ERR_INVALID);
    assert_int_equal(none, 0);
    f = request(NULL, &bad, &branch[0]);
    assert_int_equal(di_engine_fork(engine, id, &f, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "temperature");
    f.sampling = NULL;
    f.fork_at = -1;
    assert_int_equal(di_engine_fork(engine, id, &f, NULL, &err), DI_ERR_INVALID);
    assert_int_equal(di_engine_fork(engine, 1 << 30, &f, NULL, &err), DI_ERR_INVALID);
    f.fork_at = 0;
    assert_int_equal(di_engine_fork(engine, 1 << 30, &f, NULL, &err), DI_ERR_NOT_FOUND);
    assert_int_equal(di_engine_fork(engine, 0, &f, NULL, &err), DI_ERR_NOT_FOUND);
    assert_int_equal(di_engine_fork(NULL, id, &f, NULL, &err), DI_ERR_INVALID);
    assert_int_equal(di_engine_submit(engine, &f, NULL, &err), DI_ERR_INVALID); /* no prompt */
    /* What only the driver can tell. */
    f.fork_at = 400;
    fork_of(id, &f);
    f = request(NULL, &big, &branch[1]);
    fork_of(id, &f);
    steps(20);
    assert_int_equal(di_engine_cancel(engine, id), 1);
    f = request(NULL, NULL, &branch[2]);
    fork_of(id, &f); /* the cancel may be seen first, or not */
    run();
    assert_int_equal(branch[0].error.code, DI_ERR_INVALID);
    assert_string_equal(branch[0].error.where, "fork_at");
    assert_int_equal(branch[1].error.code, DI_ERR_LIMIT);
    assert_true(branch[2].finished);
}

/* Wherever an allocation fails: a sentence at once or in the last record, nothing leaks, parent and engine go on. */
static void test_branches_without_memory(void **state)
{
    di_sampling_options o = sampling(0, 40), own = sampling(1, 5);
    struct answer parent, branch[60];
    di_status status = DI_ERR_MEMORY;
    int n = 0, failed = 0;
    (void)state;
    di_submission s = request(STORY, &o, &parent);
    di_request_id id = submit(&s);
    steps(10);
    for (; status != DI_OK; n++) {
        di_submission f = request(NULL, &own, &branch[0]);
        di_mem_fail_after((uint64_t)n);
        status = di_engine_fork(engine, id, &f, NULL, NULL);
        di_mem_fail_after(UINT64_MAX);
        assert_true(status == DI_OK || status == DI_ERR_MEMORY);
        assert_true(n < 200);
    }
    assert_true(n > 5);
    for (n = 1; n < 12; n++) {
        di_submission f = request(NULL, &own, &branch[n]);
        fork_of(id, &f);
        di_mem_fail_after((uint64_t)n - 1);
        di_engine_step(engine, NULL, NULL);
        di_mem_fail_after(UINT64_MAX);
    }
    run();
    assert_int_equal(parent.n, 40);
    for (n = 0; n < 12; n++) {
        failed += branch[n].error.code == DI_ERR_MEMORY;
        assert_true(branch[n].n == 5 || branch[n].error.code == DI_ERR_MEMORY);
    }
    assert_true(failed > 0 && failed < 12);
}

static _Atomic int forks;

/* Forks itself from its own callback, on the driving thread. */
static int fork_at_ten(void *user, const di_output *out)
{
    struct answer *a = user;
    if (out->kind == DI_OUTPUT_TOKEN && out->index == 9) {
        di_submission f = request(NULL, NULL, a + 1);
        forks += di_engine_fork(engine, out->request, &f, NULL, NULL) == DI_OK;
    }
    if (out->kind == DI_OUTPUT_FINISHED)
        forks += 100;
    return take(user, out);
}

static void test_branch_from_a_callback(void **state)
{
    di_sampling_options o = sampling(1, 30);
    static struct answer a[2];
    di_submission s = request(STORY, &o, &a[0]);
    (void)state;
    forks = 0;
    s.on_output = fork_at_ten;
    assert_int_equal(di_engine_start(engine, NULL), DI_OK);
    submit(&s);
    while (forks < 100)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    di_engine_stop(engine);
    run();
    assert_int_equal(forks, 101);
    assert_int_equal(a[1].n, 20);
    assert_memory_equal(a[1].tokens, a[0].tokens + 10, sizeof(int32_t) * 20);
}

/* ---------------------------------------------------------------- siblings, states */

static void test_samples_over_one_prefill(void **state)
{
    di_sampling_options o = sampling(1, 30);
    struct answer a[4], alone;
    di_request_id first = 0;
    (void)state;
    uint64_t rows = stats().prompt_rows;
    for (int i = 0; i < 4; i++) {
        di_submission s = request("Siblings. " STORY, &o, &a[i]);
        s.sample = i;
        s.n_samples = 4;
        s.after = first;
        di_request_id id = submit(&s);
        first = first ? first : id;
    }
    run();
    assert_int_equal(stats().prompt_rows - rows, a[0].prompt_tokens + 3);
    for (int i = 0; i < 4; i++) {
        di_submission s = request("Siblings. " STORY, &o, &alone);
        s.sample = i;
        s.n_samples = 4;
        submit(&s);
        run();
        assert_memory_equal(alone.tokens, a[i].tokens, sizeof(int32_t) * 30);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(a[k].tokens, a[i].tokens, sizeof(int32_t) * 30);
        assert_int_equal(a[i].cached_tokens, i ? a[i].prompt_tokens - 1 : a[0].cached_tokens);
    }
    di_submission s = request("x", &o, &alone);
    di_error err;
    s.after = 1 << 30;
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "after");
    s.after = 0;
    s.sample = 1;
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "sample");
    s.sample = 0;
    s.text = NULL;
    s.sampling = NULL;
    s.json = "{\"prompt\": \"x\", \"max_tokens\": 3, \"n\": 2}";
    s.json_bytes = strlen(s.json);
    s.protocol = "completion";
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_UNSUPPORTED);
    s.n_samples = 2;
    submit(&s);
    run();
    assert_int_equal(alone.n, 3);
}

static di_prepared *prepare(const di_submission *s)
{
    di_prepared *p;
    di_error err = {0};
    if (di_engine_prepare(engine, s, &p, &err) != DI_OK)
        fail_msg("%s %s", err.where, err.message);
    return p;
}

static di_submission json_request(const char *json, const char *protocol, struct answer *a)
{
    di_submission s = request(NULL, NULL, a);
    s.json = json;
    s.json_bytes = strlen(json);
    s.protocol = protocol;
    return s;
}

static void refused(const di_submission *s, const char *where)
{
    di_error err = {0};
    assert_int_equal(di_engine_submit(engine, s, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, where);
}

/* What was read, rendered and tokenized once serves several answers: the same ones as without. */
static void test_samples_share_one_prompt(void **state)
{
    static char json[40000];
    struct answer a[3], alone[3];
    di_request_id first = 0;
    uint64_t calls[4];
    size_t n_prompt;
    (void)state;
    size_t n = (size_t)snprintf(json, sizeof json, "{\"max_tokens\": 3, \"temperature\": 1, \"n\": 3, \"messages\": [");
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(json + n, sizeof json - n, "%s{\"role\": \"user\", \"content\": \"\\u0041 message.\"}", i ? "," : "");
    snprintf(json + n, sizeof json - n, "]}");
    di_submission s = json_request(json, NULL, NULL);
    s.n_samples = 3;
    calls[3] = di_mem_calls();
    di_prepared *p = prepare(&s);
    calls[3] = di_mem_calls() - calls[3];
    assert_true(di_prepared_prompt(p, &n_prompt)[0] == 0 && n_prompt > 300);
    for (int i = 0; i < 3; i++) {
        s = request(NULL, NULL, &a[i]);
        s.prepared = p;
        s.sample = i;
        s.n_samples = 3;
        s.after = first;
        calls[i] = di_mem_calls();
        di_request_id id = submit(&s);
        calls[i] = di_mem_calls() - calls[i];
        first = first ? first : id;
    }
    s.tenant = 1;
    refused(&s, "tenant");
    s.tenant = 0;
    s.n_samples = 4;
    refused(&s, "n_samples");
    s.n_samples = 3;
    s.protocol = "chat";
    refused(&s, "prepared");
    s.protocol = NULL;
    s.text = "another prompt";
    s.text_bytes = 7;
    refused(&s, "prepared");
    di_prepared_free(p); /* its answers keep it */
    run();
    for (int i = 0; i < 3; i++) {
        s = json_request(json, "chat", &alone[i]);
        s.sample = i;
        s.n_samples = 3;
        submit(&s);
    }
    run();
    for (int i = 0; i < 3; i++) {
        assert_true(calls[i] < 40 && calls[i] * 4 < calls[3]);
        assert_int_equal(a[i].prompt_tokens, n_prompt);
        assert_memory_equal(a[i].tokens, alone[i].tokens, sizeof(int32_t) * 3);
    }
    assert_memory_not_equal(a[1].tokens, a[0].tokens, sizeof(int32_t) * 3);
}

/* The fields of a request for several prompts: each answer is that of the request with its prompt. */
static void test_prompts_of_one_request(void **state)
{
    static const char fields[] = "{\"prompt\": 5, \"n\": 9, \"best_of\": [], \"echo\": true, \"suffix\": 1, \"max_tokens\": 0, \"stop\": 3,"
                                 "\"temperature\": 0, \"logprobs\": false, \"top_logprobs\": 2}";
    static const int32_t ids[] = {0, 300, 301};
    struct answer text, by_ids = {0}, whole;
    di_request_overrides o;
    di_request_defaults d;
    di_error err;
    (void)state;
    di_request_overrides_init(&o, sizeof o);
    di_request_defaults_init(&d, sizeof d);
    di_submission s = json_request(fields, "completion", NULL);
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_INVALID);
    o.prompts = o.no_stop = o.logprobs = o.ignore_eos = 1;
    o.max_tokens = -1;
    s.overrides = &o;
    di_prepared *p = prepare(&s);
    s = request(NULL, NULL, &text);
    s.prepared = p;
    refused(&s, "prepared"); /* no prompt */
    s.overrides = &o;
    o.max_tokens = 6;
    s.text = STORY;
    s.text_bytes = strlen(STORY);
    submit(&s);
    s.text = NULL;
    s.ids = ids;
    s.n_ids = 3;
    s.user = &by_ids;
    submit(&s);
    di_prepared_free(p);
    s = json_request("{\"prompt_token_ids\": [0, 300, 301], \"max_tokens\": 6, \"temperature\": 0, \"ignore_eos\": true, \"logprobs\": 0}",
                     "completion", &whole);
    submit(&s);
    run();
    assert_int_equal(whole.n, 6);
    assert_int_equal(by_ids.n, 6);
    assert_memory_equal(by_ids.tokens, whole.tokens, sizeof(int32_t) * 6);
    assert_memory_equal(by_ids.logprobs, whole.logprobs, sizeof(float) * 6);
    assert_true(!isnan(by_ids.logprobs[0]));
    assert_memory_not_equal(by_ids.tokens, text.tokens, sizeof(int32_t) * 6);
    s.overrides = &o; /* said in place of the request, in one call */
    o.prompts = 0;
    o.max_tokens = 2;
    memset(&whole, 0, sizeof whole);
    submit(&s);
    run();
    assert_int_equal(whole.n, 2);
    o.max_tokens = INT64_C(1) << 31;
    refused(&s, "max_tokens");
    o.max_tokens = 2;
    o.prompts = 1; /* then the prompt comes with what was prepared */
    s.ids = ids;
    s.n_ids = 3;
    refused(&s, "di_submission");
    o.prompts = 0;
    s = json_request("{\"messages\": []}", NULL, &whole);
    s.overrides = &o;
    refused(&s, "overrides");
    d.max_tokens = INT64_C(1) << 31;
    s.overrides = NULL;
    s.defaults = &d;
    refused(&s, "max_tokens");
    uint64_t before = stats().refused;
    assert_int_equal(di_engine_prepare(engine, &s, &p, &err), DI_ERR_INVALID);
    assert_int_equal(stats().refused, before + 1);
}

/* What stands in place of the request stands in place of the caller's usual settings, too. */
static void test_overrides_beside_sampling(void **state)
{
    static const char *const stop[] = {"e", "a", " "};
    static const int32_t ids[] = {0, 300, 301};
    di_sampling_options usual = sampling(0, 2);
    struct answer a;
    di_request_overrides o;
    (void)state;
    di_request_overrides_init(&o, sizeof o);
    usual.stop = stop;
    usual.n_stop = 3;
    o.prompts = o.no_stop = 1;
    o.max_tokens = -1;
    di_submission s = json_request("{}", "completion", NULL);
    s.sampling = &usual;
    s.overrides = &o;
    di_prepared *p = prepare(&s);
    s = request(NULL, NULL, &a);
    s.prepared = p;
    s.ids = ids;
    s.n_ids = 3;
    o.max_tokens = 20;
    s.overrides = &o;
    submit(&s);
    run();
    assert_int_equal(a.reason, DI_REASON_LENGTH);
    assert_int_equal(a.n, 20);
    a = (struct answer){0};
    o.max_tokens = 0; /* as the request says, which says nothing */
    submit(&s);
    run();
    assert_true(a.n > 20);
    di_prepared_free(p);
}

static void test_sums_in_errors_stay_in_range(void **state)
{
    di_error err;
    (void)state;
    di_fail_context(&err, "prompt", 512, 5, INT64_MAX);
    assert_non_null(strstr(err.message, "you requested 9223372036854775807 tokens (5 in"));
}

static size_t prompt_of(const di_submission *s, int32_t *ids, size_t most)
{
    size_t n;
    assert_int_equal(di_engine_prompt(engine, s, ids, most, &n, NULL), DI_OK);
    assert_true(n <= most);
    return n;
}

/* A conversation that the caller has kept takes the place of the request's input. */
static void test_input_of_responses(void **state)
{
    static const char list[] = "[{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"user\", \"content\": \"two\"}]";
    int32_t want[64], got[64];
    di_request_overrides o;
    di_error err;
    size_t n;
    (void)state;
    di_request_overrides_init(&o, sizeof o);
    o.input = list;
    o.input_bytes = strlen(list);
    di_submission s = json_request("{\"input\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"user\", \"content\": \"two\"}]}",
                                   "responses", NULL);
    size_t n_want = prompt_of(&s, want, 64);
    s = json_request("{\"previous_response_id\": \"r\", \"input\": \"two\"}", "responses", NULL);
    assert_int_equal(di_engine_prompt(engine, &s, NULL, 0, &n, &err), DI_ERR_INVALID); /* there is no store */
    s.overrides = &o;
    assert_int_equal(prompt_of(&s, got, 64), n_want);
    assert_memory_equal(want, got, n_want * sizeof *want);
    o.input_bytes--;
    assert_int_equal(di_engine_prompt(engine, &s, NULL, 0, &n, &err), DI_ERR_FORMAT);
}

/* Beside JSON the struct says what the request does not. */
static void test_sampling_beside_json(void **state)
{
    di_sampling_options o = sampling(0, 5);
    struct answer a, b, c;
    (void)state;
    o.logprobs = 1;
    di_submission s = json_request("{\"prompt\": \""
                                   "The capital of France"
                                   "\", \"max_tokens\": 3}",
                                   "completion", &a);
    s.sampling = &o;
    submit(&s);
    s = request("The capital of France", &o, &b);
    submit(&s);
    s = json_request("{\"prompt\": \""
                     "The capital of France"
                     "\", \"logprobs\": false}",
                     "completion", &c);
    s.sampling = &o;
    submit(&s);
    run();
    assert_int_equal(a.n, 3);
    assert_int_equal(b.n, 5);
    assert_int_equal(c.n, 5);
    assert_memory_equal(a.tokens, b.tokens, sizeof(int32_t) * 3);
    assert_memory_equal(c.tokens, b.tokens, sizeof(int32_t) * 5);
    assert_memory_equal(a.logprobs, b.logprobs, sizeof(float) * 3);
    assert_true(isnan(c.logprobs[0]) && !isnan(b.logprobs[0]));
    o.top_logprobs = 3; /* the request switches them off, in a chat as well */
    s = json_request("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"logprobs\": false}", "chat", &c);
    s.sampling = &o;
    submit(&s);
    run();
    assert_true(c.n == 5 && isnan(c.logprobs[0]));
    s = json_request("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"logprobs\": false, \"top_logprobs\": 1}", "chat", &c);
    s.sampling = &o;
    refused(&s, "top_logprobs");
    o.temperature = 5;
    s.sampling = &o;
    refused(&s, "temperature");
    s = json_request("{\"prompt\": \"x\", \"max_tokens\": 1, \"tools\": [], \"mx_tokens\": 2}", "completion", &a);
    submit(&s);
    run();
    s.strict = 1;
    refused(&s, "tools");
    s.protocol = "chat";
    refused(&s, "prompt");
}

static void test_states_where_the_caller_asks(void **state)
{
    static const int32_t places[] = {20, 45}, wrong[] = {20, 1000};
    di_sampling_options o = sampling(0, 4);
    struct answer a;
    int32_t ids[64];
    di_error err;
    (void)state;
    for (int i = 0; i < 64; i++)
        ids[i] = 300 + i;
    di_submission s = request(NULL, &o, &a);
    s.ids = ids;
    s.n_ids = 64;
    s.save_at = wrong;
    s.n_save_at = 2;
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "save_at");
    s.save_at = places;
    submit(&s);
    run();
    for (int i = 0; i < 2; i++) {
        ids[places[i]] = 100; /* another prompt, from there on */
        s = request(NULL, &o, &a);
        s.ids = ids;
        s.n_ids = 64;
        submit(&s);
        run();
        assert_int_equal(a.cached_tokens, places[i]);
        ids[places[i]] = 300 + places[i];
    }
}

/* ---------------------------------------------------------------- limits */

/* A request whose records nobody reads ends by itself, and reading later gives what was kept and the reason. */
static void test_unread_output_is_bounded(void **state)
{
    di_sampling_options o = sampling(0, 300);
    struct answer reader, never;
    di_submission s = request(STORY, &o, &never);
    int n = 0;
    (void)state;
    s.on_output = NULL;
    submit(&s);
    run();
    assert_int_equal(stats().unread, 150 + 1);
    for (const di_output *out; (out = di_engine_poll(engine, 0)) != NULL; di_output_free(engine, out), n++)
        take(&never, out);
    assert_int_equal(n, 151);
    assert_int_equal(never.reason, DI_REASON_ERROR);
    assert_int_equal(never.error.code, DI_ERR_LIMIT);
    assert_string_equal(never.error.where, "max_unread");

    memset(&reader, 0, sizeof reader); /* whoever reads meanwhile has no limit */
    submit(&s);
    for (int busy = 1; busy;) {
        assert_int_equal(di_engine_step(engine, &busy, NULL), DI_OK);
        for (const di_output *out; (out = di_engine_poll(engine, 0)) != NULL; di_output_free(engine, out))
            take(&reader, out);
    }
    assert_int_equal(reader.n, 300);
    assert_int_equal(reader.reason, DI_REASON_LENGTH);
}

/* Callbacks that do nothing with the records, and callbacks that want no more: nothing stays behind. */
static void test_callbacks_that_throw_away_results_do_not_leak(void **state)
{
    di_sampling_options o = sampling(1, 40);
    struct answer a[8];
    (void)state;
    uint64_t calls = 0;
    for (int round = 0; round < 4; round++) {
        if (round == 3)
            calls = di_mem_calls();
        for (int i = 0; i < 8; i++) {
            di_submission s = request(STORY, &o, &a[i]);
            a[i].quit_after = i % 2 ? 1 + i : 0;
            submit(&s);
        }
        run();
        for (int i = 0; i < 8; i++)
            assert_int_equal(a[i].reason, i % 2 ? DI_REASON_CANCELLED : DI_REASON_LENGTH);
        assert_int_equal(stats().unread, 0);
    }
    assert_true(di_mem_calls() - calls < 8 * 60); /* of submissions; records of 300 tokens would be many more */
}

static void test_impossible_requests_are_refused_with_the_reason(void **state)
{
    di_engine_config c;
    di_engine *small;
    di_sampling_options o = sampling(0, 300);
    struct answer a;
    di_submission s = request("x", &o, &a);
    di_error err;
    (void)state;
    di_engine_config_init(&c, sizeof c);
    c.model = NANO;
    c.context = 512;
    c.max_batch = 2;
    c.cache_blocks = 3;
    c.threads = 1;
    assert_int_equal(di_engine_open(&c, &small, NULL), DI_OK);
    assert_int_equal(di_engine_submit(small, &s, NULL, &err), DI_ERR_LIMIT);
    assert_string_equal(err.message,
                        "This model's maximum context length is 192 tokens. However, you requested 302 tokens (2 in the messages, "
                        "300 in the completion).");
    di_model_info info; /* what one request can have is what the pool has */
    assert_int_equal(di_engine_info(small, &info, sizeof info, NULL), DI_OK);
    assert_int_equal(info.context, 192);
    assert_int_equal(info.cache_blocks, 3);
    o.max_tokens = 20; /* and nobody is blocked */
    assert_int_equal(di_engine_submit(small, &s, NULL, &err), DI_OK);
    assert_int_equal(di_engine_run(small, NULL), DI_OK);
    assert_int_equal(a.n, 20);
    di_engine_close(small);
}

/* Stop ids that leave no token to sample: the request's mistake, and it says in which field. */
static void test_all_ids_banned_is_the_request_s_error(void **state)
{
    static char json[40000] = "{\"prompt\": \"x\", \"max_tokens\": 3, \"min_tokens\": 1, \"stop_token_ids\": [0";
    struct answer a;
    di_model_info info;
    (void)state;
    assert_int_equal(di_engine_info(engine, &info, sizeof info, NULL), DI_OK);
    size_t n = strlen(json);
    for (int id = 1; id < info.vocab_size; id++)
        n += (size_t)snprintf(json + n, sizeof json - n, ",%d", id);
    snprintf(json + n, sizeof json - n, "]}");
    di_submission s = request(NULL, NULL, &a);
    s.json = json;
    s.json_bytes = strlen(json);
    s.protocol = "completion";
    submit(&s);
    run();
    assert_int_equal(a.reason, DI_REASON_ERROR);
    assert_int_equal(a.error.code, DI_ERR_INVALID);
    assert_string_equal(a.error.where, "min_tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_branch_continues_as_the_parent),
        cmocka_unit_test(test_branch_of_a_chat),
        cmocka_unit_test(test_branch_of_its_own),
        cmocka_unit_test(test_branch_inherits_its_tenant_not_defaults),
        cmocka_unit_test(test_bad_branches),
        cmocka_unit_test(test_branches_without_memory),
        cmocka_unit_test(test_branch_from_a_callback),
        cmocka_unit_test(test_samples_over_one_prefill),
        cmocka_unit_test(test_samples_share_one_prompt),
        cmocka_unit_test(test_prompts_of_one_request),
        cmocka_unit_test(test_overrides_beside_sampling),
        cmocka_unit_test(test_sums_in_errors_stay_in_range),
        cmocka_unit_test(test_input_of_responses),
        cmocka_unit_test(test_sampling_beside_json),
        cmocka_unit_test(test_states_where_the_caller_asks),
        cmocka_unit_test(test_unread_output_is_bounded),
        cmocka_unit_test(test_callbacks_that_throw_away_results_do_not_leak),
        cmocka_unit_test(test_impossible_requests_are_refused_with_the_reason),
        cmocka_unit_test(test_all_ids_banned_is_the_request_s_error),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
