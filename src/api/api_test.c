/* The public API on the nano model: one engine for all tests but those of opening. */
#include "base/mem.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define NANO DI_SOURCE_DIR "/models/nano"
#define MAX_TOKENS 64
static const char question[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0}";

static di_engine *engine;

static void sleep_ms(long ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

static di_engine_config nano_config(void)
{
    di_engine_config c;
    di_engine_config_init(&c, sizeof c);
    c.model = NANO;
    c.context = 512;
    c.max_batch = 4;
    c.cache_blocks = 16;
    c.threads = 1;
    return c;
}

static int open_engine(void **state)
{
    di_engine_config c = nano_config();
    di_error err;
    (void)state;
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

static di_sampling_options greedy(int64_t max_tokens)
{
    di_sampling_options o;
    di_sampling_options_init(&o, sizeof o);
    o.temperature = 0;
    o.max_tokens = max_tokens;
    o.ignore_eos = 1;
    return o;
}

static di_submission text_request(const char *text, const di_sampling_options *o)
{
    di_submission s;
    di_submission_init(&s, sizeof s);
    s.text = text;
    s.text_bytes = strlen(text);
    s.sampling = o;
    return s;
}

static di_request_id submit(const di_submission *s)
{
    di_error err = {0};
    di_request_id id = 0;
    if (di_engine_submit(engine, s, &id, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_true(id > 0);
    return id;
}

/* What came of a request. */
struct answer {
    di_request_id id;
    int32_t tokens[MAX_TOKENS];
    float logprobs[MAX_TOKENS];
    int n, finished;
    char text[4096], reasoning[4096];
    di_end_reason reason;
    di_status error;
    int32_t stop_index;
    int64_t completion_tokens;
};

static void take(struct answer *a, const di_output *o)
{
    assert_false(a->finished);
    a->id = o->request;
    if (o->kind == DI_OUTPUT_TOKEN) {
        assert_int_equal(o->index, a->n);
        assert_true(a->n < MAX_TOKENS);
        a->logprobs[a->n] = o->logprob;
        a->tokens[a->n++] = o->token;
    } else if (o->kind == DI_OUTPUT_TEXT || o->kind == DI_OUTPUT_REASONING) {
        char *to = o->kind == DI_OUTPUT_TEXT ? a->text : a->reasoning;
        assert_int_equal(strlen(o->text), o->text_bytes);
        strncat(to, o->text, sizeof a->text - strlen(to) - 1);
    } else if (o->kind == DI_OUTPUT_FINISHED) {
        a->finished = 1;
        a->reason = o->reason;
        a->error = o->error ? o->error->code : DI_OK;
        a->stop_index = o->stop_index;
        a->completion_tokens = o->completion_tokens;
        assert_int_equal(o->token, a->n ? a->tokens[a->n - 1] : -1);
    }
}

static void drain(struct answer *a)
{
    for (const di_output *o; (o = di_engine_poll(engine, 0)) != NULL; di_output_free(engine, o))
        take(a, o);
}

static struct answer run_one(const di_submission *s)
{
    struct answer a = {0};
    di_request_id id = submit(s);
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    drain(&a);
    assert_true(a.finished);
    assert_int_equal(a.id, id);
    assert_int_equal(a.completion_tokens, a.n);
    return a;
}

static void assert_all_returned(void)
{
    di_engine_stats s;
    assert_int_equal(di_engine_flush(engine, NULL), DI_OK);
    assert_int_equal(di_engine_get_stats(engine, &s, sizeof s, NULL), DI_OK);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.unread, 0);
    assert_int_equal(s.blocks, 16);
    assert_int_equal(s.free_blocks, 16);
}

static int collect(void *user, const di_output *o)
{
    take(user, o);
    return 1;
}

/* ---------------------------------------------------------------- tests */

static void test_info_plan_and_text(void **state)
{
    di_engine_config c = nano_config();
    di_memory_plan plan;
    di_model_info info;
    int32_t ids[16];
    char text[64];
    size_t n, bytes;
    (void)state;
    assert_int_equal(di_engine_plan(&c, &plan, sizeof plan, NULL), DI_OK);
    assert_int_equal(plan.context, 512);
    assert_int_equal(plan.total, plan.weights_packed + plan.weights_mapped + plan.cache + plan.activations + plan.scratch);
    assert_true(plan.cache > 0 && plan.weights_packed > 0);
    assert_int_equal(di_engine_info(engine, &info, sizeof info, NULL), DI_OK);
    assert_string_equal(info.name, "nano");
    assert_int_equal(info.context, 512);
    assert_int_equal(info.cache_blocks, 16);
    assert_int_equal(di_engine_encode(engine, "The capital", 11, 0, ids, 16, &n, NULL), DI_OK);
    assert_true(n > 1 && n <= 11);
    assert_int_equal(di_engine_decode(engine, ids, n, text, sizeof text, &bytes, NULL), DI_OK);
    assert_int_equal(bytes, 11);
    assert_memory_equal(text, "The capital", 11);
    size_t again;
    int32_t first[1];
    assert_int_equal(di_engine_encode(engine, "The capital", 11, 0, first, 1, &again, NULL), DI_OK);
    assert_int_equal(again, n);
    assert_int_equal(first[0], ids[0]);
    assert_int_equal(di_engine_encode(engine, "\xff", 1, 0, ids, 16, &n, NULL), DI_ERR_INVALID);
    ids[0] = info.vocab_size;
    assert_int_equal(di_engine_decode(engine, ids, 1, text, sizeof text, &bytes, NULL), DI_ERR_INVALID);
}

/* Text, the ids of the same text, a callback, polling: the same answer; its pieces of text are the text of its tokens. */
static void test_ways_to_ask(void **state)
{
    di_sampling_options o = greedy(24);
    di_submission s = text_request("The capital of France", &o);
    struct answer polled = run_one(&s), called = {0};
    char text[1024];
    int32_t ids[32];
    size_t n;
    (void)state;
    assert_int_equal(polled.n, 24);
    assert_int_equal(polled.reason, DI_REASON_LENGTH);
    assert_true(isnan(polled.logprobs[0]));

    s.on_output = collect;
    s.user = &called;
    submit(&s);
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    assert_true(called.finished);
    assert_null(di_engine_poll(engine, 0));
    assert_int_equal(called.n, 24);
    assert_memory_equal(called.tokens, polled.tokens, sizeof(int32_t) * 24);
    assert_string_equal(called.text, polled.text);

    di_model_info info;
    assert_int_equal(di_engine_info(engine, &info, sizeof info, NULL), DI_OK);
    ids[0] = info.bos_id;
    assert_int_equal(di_engine_encode(engine, s.text, s.text_bytes, 1, ids + 1, 31, &n, NULL), DI_OK);
    di_submission by_ids;
    di_submission_init(&by_ids, sizeof by_ids);
    by_ids.ids = ids;
    by_ids.n_ids = n + 1;
    by_ids.sampling = &o;
    struct answer a = run_one(&by_ids);
    assert_memory_equal(a.tokens, polled.tokens, sizeof(int32_t) * 24);

    o.max_tokens = 5;
    o.ignore_eos = 0;
    a = run_one(&by_ids);
    assert_int_equal(di_engine_decode(engine, a.tokens, (size_t)a.n, text, sizeof text - 1, &n, NULL), DI_OK);
    text[n] = 0;
    assert_string_equal(text, a.text);
    assert_true(a.n == 5 && n > 5);
}

static void test_chat(void **state)
{
    di_submission s;
    (void)state;
    di_submission_init(&s, sizeof s);
    s.json = question;
    s.json_bytes = strlen(question);
    struct answer a = run_one(&s);
    assert_string_equal(a.text, "The capital of France is Paris.");
    assert_non_null(strstr(a.reasoning, "capital of France"));
    assert_int_equal(a.reason, DI_REASON_STOP);
    s.protocol = "completion";
    di_error err;
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "prompt");
}

/* The reasoning is cut at the budget, the answer goes on behind it; a budget that is not used up changes nothing. */
static void test_reasoning_budget(void **state)
{
    char json[300];
    di_submission s;
    (void)state;
    di_submission_init(&s, sizeof s);
    s.json = question;
    s.json_bytes = strlen(question);
    struct answer whole = run_one(&s);
    int n_reasoning = 0; /* up to the end of the reasoning */
    int32_t end;
    size_t n;
    assert_int_equal(di_engine_encode(engine, "</think>", 8, 1, &end, 1, &n, NULL), DI_OK);
    while (whole.tokens[n_reasoning] != end)
        n_reasoning++;
    assert_true(n_reasoning > 4 && n == 1);
    for (int budget = 0; budget <= n_reasoning + 2; budget++) {
        snprintf(json, sizeof json, "%.*s, \"thinking_token_budget\": %d}", (int)strlen(question) - 1, question, budget);
        s.json = json;
        s.json_bytes = strlen(json);
        struct answer a = run_one(&s);
        int cut = budget < n_reasoning ? budget : n_reasoning;
        assert_memory_equal(a.tokens, whole.tokens, (size_t)cut * sizeof *a.tokens);
        assert_int_equal(a.tokens[cut], end);
        if (cut == n_reasoning) {
            assert_int_equal(a.n, whole.n);
            assert_memory_equal(a.tokens, whole.tokens, (size_t)a.n * sizeof *a.tokens);
        }
    }
}

static void test_stop_string_and_bias(void **state)
{
    static const char *const stops[] = {"no such text", "France"};
    di_sampling_options o = greedy(40);
    di_submission s = text_request("The capital of France is Paris. The capital of", &o);
    struct answer free_running = run_one(&s);
    di_bias bias = {free_running.tokens[0], -100};
    (void)state;
    o.bias = &bias;
    o.n_bias = 1;
    struct answer other = run_one(&s);
    assert_int_not_equal(other.tokens[0], free_running.tokens[0]);
    o.n_bias = 0;
    o.stop_ids = &free_running.tokens[3];
    o.n_stop_ids = 1;
    o.ignore_eos = 0;
    struct answer stopped = run_one(&s);
    assert_int_equal(stopped.reason, DI_REASON_STOP);
    assert_true(stopped.n <= 4);
    assert_int_equal(stopped.stop_index, -1);

    di_submission chat;
    di_submission_init(&chat, sizeof chat);
    char json[300];
    snprintf(json, sizeof json, "%.*s, \"stop\": [\"no such text\", \"Paris\"]}", (int)strlen(question) - 1, question);
    chat.json = json;
    chat.json_bytes = strlen(json);
    struct answer a = run_one(&chat);
    assert_string_equal(a.text, "The capital of France is ");
    assert_int_equal(a.stop_index, 1);
    o.stop = stops;
    o.n_stop = 17;
    assert_int_equal(di_engine_submit(engine, &s, NULL, NULL), DI_ERR_INVALID);
}

/* Forcing what greedy would say gives its log-probabilities; forcing something else changes what follows; -1 is free. */
static void test_forced_tokens(void **state)
{
    di_sampling_options o = greedy(12);
    o.logprobs = 1;
    di_submission s = text_request("The capital of France", &o);
    struct answer sampled = run_one(&s), again, changed;
    int32_t other[3] = {-1, sampled.tokens[1] == 300 ? 301 : 300, -1};
    (void)state;
    s.forced = sampled.tokens;
    s.n_forced = 12;
    o.temperature = 2; /* nothing is left to chance */
    again = run_one(&s);
    assert_memory_equal(again.tokens, sampled.tokens, sizeof(int32_t) * 12);
    assert_memory_equal(again.logprobs, sampled.logprobs, sizeof(float) * 12);
    o.temperature = 0;
    s.forced = other;
    s.n_forced = 3;
    changed = run_one(&s);
    assert_int_equal(changed.tokens[0], sampled.tokens[0]);
    assert_int_equal(changed.tokens[1], other[1]);
    assert_true(changed.logprobs[1] < sampled.logprobs[1]);
    assert_int_equal(changed.n, 12);
    other[2] = 1 << 30;
    di_error err;
    assert_int_equal(di_engine_submit(engine, &s, NULL, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "forced");
}

struct bad {
    const char *where;
    di_status status;
    void (*spoil)(di_submission *s, di_sampling_options *o);
};
static const int32_t huge_ids[] = {5, 1 << 20};
static void spoil_temperature(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->temperature = 3;
}
static void spoil_nan(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->top_p = (double)NAN;
}
static void spoil_max(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->max_tokens = -5;
}
static void spoil_top(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->top_logprobs = 3;
}
static void spoil_length(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->max_tokens = 4000;
}
static void spoil_two(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->json = question;
}
static void spoil_none(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->text = NULL;
}
static void spoil_utf8(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->text = "\xc3";
    s->text_bytes = 1;
}
static void spoil_ids(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->text = NULL;
    s->ids = huge_ids;
    s->n_ids = 2;
}
static void spoil_no_ids(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->text = NULL;
    s->ids = huge_ids;
    s->n_ids = 0;
}
static void spoil_size(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->size = 8;
}
static void spoil_sampling_size(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->size = 0;
}
static void spoil_deadline(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->deadline_ms = -1;
}
static void spoil_forced(di_submission *s, di_sampling_options *o)
{
    (void)o;
    s->n_forced = 1;
}
static void spoil_stop(di_submission *s, di_sampling_options *o)
{
    (void)s;
    o->n_stop = 1;
}

static void test_bad_requests(void **state)
{
    static const struct bad table[] = {
        {"temperature", DI_ERR_INVALID, spoil_temperature},
        {"top_p", DI_ERR_INVALID, spoil_nan},
        {"max_tokens", DI_ERR_INVALID, spoil_max},
        {"top_logprobs", DI_ERR_INVALID, spoil_top},
        {"prompt", DI_ERR_LIMIT, spoil_length},
        {"di_submission", DI_ERR_INVALID, spoil_two},
        {"di_submission", DI_ERR_INVALID, spoil_none},
        {"prompt", DI_ERR_INVALID, spoil_utf8},
        {"prompt", DI_ERR_INVALID, spoil_ids},
        {"prompt", DI_ERR_INVALID, spoil_no_ids},
        {"di_submission", DI_ERR_INVALID, spoil_size},
        {"di_sampling_options", DI_ERR_INVALID, spoil_sampling_size},
        {"deadline_ms", DI_ERR_INVALID, spoil_deadline},
        {"forced", DI_ERR_INVALID, spoil_forced},
        {"stop", DI_ERR_INVALID, spoil_stop},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        di_sampling_options o = greedy(4);
        di_submission s = text_request("x", &o);
        di_error err = {0};
        di_request_id id = 77;
        table[i].spoil(&s, &o);
        di_status status = di_engine_submit(engine, &s, &id, &err);
        if (status != table[i].status || strcmp(err.where, table[i].where) != 0)
            fail_msg("case %zu: %s at \"%s\": %s", i, di_status_name(status), err.where, err.message);
        assert_true(strlen(err.message) > 5);
        assert_int_equal(id, 0);
    }
    assert_all_returned();
}

static void test_bad_handles_and_sizes(void **state)
{
    di_engine_config c = nano_config();
    di_engine *e = (di_engine *)(void *)&c;
    di_error err;
    struct {
        di_engine_config config;
        uint64_t newer;
    } later = {c, 0};
    int busy = 1;
    size_t n;
    (void)state;
    assert_int_equal(di_engine_open(NULL, &e, &err), DI_ERR_INVALID);
    assert_null(e);
    assert_int_equal(di_engine_open(&c, NULL, &err), DI_ERR_INVALID);
    assert_int_equal(di_engine_step(NULL, &busy, NULL), DI_ERR_INVALID);
    assert_int_equal(busy, 0);
    assert_int_equal(di_engine_run(NULL, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_flush(NULL, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_start(NULL, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_submit(NULL, NULL, NULL, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_submit(engine, NULL, NULL, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_encode(NULL, "", 0, 0, NULL, 0, &n, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_encode(engine, NULL, 5, 0, NULL, 0, &n, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_decode(engine, NULL, 5, NULL, 0, &n, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_info(NULL, NULL, 0, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_get_stats(NULL, NULL, 0, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_cancel(NULL, 1), 0);
    assert_int_equal(di_engine_cancel(engine, 1 << 30), 0);
    assert_null(di_engine_poll(NULL, 0));
    di_engine_stop(NULL);
    di_output_free(engine, NULL);
    di_output_free(NULL, NULL);
    di_engine_close(NULL);

    di_memory_plan plan;
    later.config.size = sizeof later;
    assert_int_equal(di_engine_plan(&later.config, &plan, sizeof plan, NULL), DI_OK);
    later.newer = 1;
    assert_int_equal(di_engine_plan(&later.config, &plan, sizeof plan, NULL), DI_ERR_UNSUPPORTED);
    c.size = sizeof c - 1;
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
    const struct {
        const char *where;
        int32_t *field, value;
    } ranges[] = {{"state_slots", &c.state_slots, -1},
                  {"threads", &c.threads, -1},
                  {"max_batch", &c.max_batch, 0},
                  {"prefill_chunk", &c.prefill_chunk, 0},
                  {"cache_blocks", &c.cache_blocks, -1}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        c = nano_config();
        *ranges[i].field = ranges[i].value;
        assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
        assert_string_equal(err.where, ranges[i].where);
    }
    c = nano_config();
    c.numerics = "f64";
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
    c = nano_config();
    c.prefill_order = "longest";
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "prefill_order");
    c = nano_config();
    c.model = NANO "/nothing-here";
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_NOT_FOUND);
    c = nano_config();
    c.context = 1 << 30;
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "context");
}

/* Without a number the snapshots of state have a quarter of the bytes of the blocks, and at least 64 are there. Nano's: 13,568 B a block,
 * 227,508 B a snapshot. More than 4,096 are allowed. */
static void test_snapshots_follow_from_the_cache(void **state)
{
    static const struct {
        int32_t blocks, slots;
    } cases[] = {{100, 64}, {4290, 64}, {4370, 65}, {100000, 1490}, {1000000, 14909}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_engine_config c = nano_config();
        di_memory_plan by_default, given;
        c.cache_blocks = cases[i].blocks;
        assert_int_equal(di_engine_plan(&c, &by_default, sizeof by_default, NULL), DI_OK);
        c.state_slots = cases[i].slots;
        assert_int_equal(di_engine_plan(&c, &given, sizeof given, NULL), DI_OK);
        assert_int_equal(by_default.cache, given.cache);
    }
}

/* ---------------------------------------------------------------- cancels, callbacks, deadlines */

static void test_cancel_queued_and_running(void **state)
{
    di_sampling_options o = greedy(60);
    di_submission s = text_request("Once upon a time", &o);
    struct answer a[6] = {{0}};
    di_request_id ids[6];
    (void)state;
    s.on_output = collect;
    for (int i = 0; i < 6; i++) {
        s.user = &a[i];
        ids[i] = submit(&s);
    }
    assert_int_equal(di_engine_cancel(engine, ids[0]), 1); /* not seen by the core yet */
    for (int i = 0; i < 8; i++)
        assert_int_equal(di_engine_step(engine, NULL, NULL), DI_OK);
    assert_int_equal(di_engine_cancel(engine, ids[1]), 1); /* running */
    assert_int_equal(di_engine_cancel(engine, ids[1]), 1); /* twice is once */
    assert_int_equal(di_engine_cancel(engine, ids[5]), 1); /* waits: four run at most */
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    for (int i = 0; i < 6; i++) {
        bool cancelled = i == 0 || i == 1 || i == 5;
        assert_true(a[i].finished);
        assert_int_equal(a[i].reason, cancelled ? DI_REASON_CANCELLED : DI_REASON_LENGTH);
        assert_int_equal(a[i].n == 60, !cancelled);
        assert_int_equal(di_engine_cancel(engine, ids[i]), 0);
    }
    assert_true(a[1].n > 0 && a[0].n == 0 && a[5].n == 0);
    assert_memory_equal(a[1].tokens, a[2].tokens, sizeof(int32_t) * (size_t)a[1].n);
    assert_all_returned();
}

struct impatient {
    struct answer answer;
    int wants;
    di_status inner;
};

/* Wants few tokens; tries what a callback must not do. */
static int two_tokens(void *user, const di_output *o)
{
    struct impatient *p = user;
    di_error err;
    take(&p->answer, o);
    p->inner = di_engine_step(engine, NULL, &err);
    return p->answer.n < p->wants;
}

static void test_callback_ends_it(void **state)
{
    di_sampling_options o = greedy(60);
    di_submission s = text_request("Once upon a time", &o);
    struct impatient p = {.wants = 2};
    (void)state;
    s.on_output = two_tokens;
    s.user = &p;
    submit(&s);
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    assert_int_equal(p.inner, DI_ERR_INVALID);
    assert_true(p.answer.finished);
    assert_int_equal(p.answer.reason, DI_REASON_CANCELLED);
    assert_int_equal(p.answer.n, 2);
    assert_all_returned();
}

static void test_deadline(void **state)
{
    di_sampling_options o = greedy(60);
    di_submission s = text_request("Once upon a time", &o);
    struct answer a = {0};
    (void)state;
    s.deadline_ms = 1;
    submit(&s);
    sleep_ms(3);
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    drain(&a);
    assert_int_equal(a.reason, DI_REASON_DEADLINE);
    assert_all_returned();
}

/* Closing with requests in every state: each callback hears the end, unread records are freed (the address sanitizer looks). */
static void test_close_in_the_middle(void **state)
{
    di_engine_config c = nano_config();
    di_sampling_options o = greedy(30);
    di_submission s = text_request("Once upon a time", &o);
    struct answer a[7] = {{0}};
    di_engine *e;
    (void)state;
    assert_int_equal(di_engine_open(&c, &e, NULL), DI_OK);
    for (int i = 0; i < 7; i++) {
        s.on_output = i == 3 ? NULL : collect;
        s.user = &a[i];
        assert_int_equal(di_engine_submit(e, &s, NULL, NULL), DI_OK);
        for (int k = 0; i == 5 && k < 4; k++)
            assert_int_equal(di_engine_step(e, NULL, NULL), DI_OK);
    }
    di_engine_cancel(e, 2);
    di_engine_close(e);
    for (int i = 0; i < 7; i++)
        if (i != 3)
            assert_int_equal(a[i].reason, DI_REASON_CANCELLED);
}

struct again {
    di_engine *engine;
    int submitted, refused, ended;
};

static int submit_again(void *user, const di_output *o)
{
    struct again *a = user;
    di_submission s = text_request("Once more", NULL);
    s.on_output = submit_again;
    s.user = a;
    if (o->kind != DI_OUTPUT_FINISHED)
        return 1;
    a->ended++;
    di_status status = di_engine_submit(a->engine, &s, NULL, NULL);
    assert_true(status == DI_OK || status == DI_ERR_CANCELLED);
    *(status == DI_OK ? &a->submitted : &a->refused) += 1;
    return 1;
}

/* What a callback submits while the engine is closed is refused: whatever is taken has an end. */
static void test_close_takes_nothing_more(void **state)
{
    di_engine_config c = nano_config();
    struct again a = {.submitted = 3};
    di_submission s = text_request("Once upon a time", NULL);
    (void)state;
    s.on_output = submit_again;
    s.user = &a;
    assert_int_equal(di_engine_open(&c, &a.engine, NULL), DI_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(di_engine_submit(a.engine, &s, NULL, NULL), DI_OK);
        assert_int_equal(di_engine_step(a.engine, NULL, NULL), DI_OK);
    }
    assert_int_equal(di_engine_submit(a.engine, &s, NULL, NULL), DI_OK); /* still on its way */
    a.submitted++;
    di_engine_close(a.engine);
    assert_int_equal(a.submitted, a.ended);
    assert_int_equal(a.refused, 4);
}

/* Wherever an allocation fails: a sentence at submit, or a FINISHED record with the reason; nothing leaks, and the engine goes on. */
static void test_out_of_memory(void **state)
{
    di_sampling_options o = greedy(8);
    di_submission s = text_request("The capital of France", &o);
    di_status status = DI_ERR_MEMORY;
    int failed = 0;
    (void)state;
    for (uint64_t n = 0; status != DI_OK; n++) {
        di_mem_fail_after(n);
        status = di_engine_submit(engine, &s, NULL, NULL);
        di_mem_fail_after(UINT64_MAX);
        assert_true(status == DI_OK || status == DI_ERR_MEMORY);
        assert_true(n < 1000);
    }
    for (uint64_t n = 0; n < 30; n++) {
        struct answer a = {0};
        di_mem_fail_after(n);
        di_engine_run(engine, NULL);
        di_mem_fail_after(UINT64_MAX);
        assert_int_equal(di_engine_run(engine, NULL), DI_OK);
        for (const di_output *out; (out = di_engine_poll(engine, 0)) != NULL; di_output_free(engine, out)) {
            assert_false(a.finished);
            a.finished = out->kind == DI_OUTPUT_FINISHED;
            a.reason = out->reason;
            if (out->reason == DI_REASON_ERROR)
                assert_int_equal(out->error->code, DI_ERR_MEMORY);
        }
        assert_true(a.finished);
        assert_true(a.reason == DI_REASON_ERROR || a.reason == DI_REASON_LENGTH);
        failed += a.reason == DI_REASON_ERROR;
        submit(&s);
    }
    assert_true(failed > 0);
    struct answer last = {0};
    assert_int_equal(di_engine_run(engine, NULL), DI_OK);
    drain(&last);
    assert_int_equal(last.n, 8);
    assert_all_returned();

    di_engine_config c = nano_config();
    di_engine *e = engine;
    status = DI_ERR_MEMORY;
    for (uint64_t n = 0; status != DI_OK; n += 1 + n / 2) {
        di_mem_fail_after(n);
        status = di_engine_open(&c, &e, NULL);
        di_mem_fail_after(UINT64_MAX);
        assert_int_equal(status == DI_OK, e != NULL);
    }
    di_engine_close(e);
}

/* ---------------------------------------------------------------- threads */

#define CLIENTS 3
#define ROUNDS 4

struct client {
    struct answer answer[ROUNDS];
    bool cancelled[ROUNDS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int finished;
};

static int collect_locked(void *user, const di_output *o)
{
    struct client *c = user;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < ROUNDS; i++)
        if (c->answer[i].id == o->request || c->answer[i].id == 0) {
            take(&c->answer[i], o);
            break;
        }
    if (o->kind == DI_OUTPUT_FINISHED) {
        c->finished++;
        pthread_cond_signal(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return 1;
}

/* Submit one after the other, cancel every second one at once, wait for each end. */
static void *client(void *arg)
{
    struct client *c = arg;
    di_sampling_options o = greedy(10);
    di_submission s = text_request("The capital of France", &o);
    s.on_output = collect_locked;
    s.user = c;
    for (int i = 0; i < ROUNDS; i++) {
        di_engine_stats stats;
        di_request_id id = submit(&s);
        if (i % 2)
            c->cancelled[i] = di_engine_cancel(engine, id);
        di_engine_get_stats(engine, &stats, sizeof stats, NULL);
        pthread_mutex_lock(&c->lock);
        while (c->finished <= i)
            pthread_cond_wait(&c->changed, &c->lock);
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

static void check_clients(struct client *clients, const struct answer *alone)
{
    for (int k = 0; k < CLIENTS; k++)
        for (int i = 0; i < ROUNDS; i++) {
            const struct answer *a = &clients[k].answer[i];
            assert_true(a->finished);
            assert_memory_equal(a->tokens, alone->tokens, sizeof(int32_t) * (size_t)a->n);
            assert_true(a->n == 10 || (clients[k].cancelled[i] && a->reason == DI_REASON_CANCELLED));
        }
}

static void run_clients(struct client *clients, pthread_t *threads)
{
    for (int k = 0; k < CLIENTS; k++) {
        pthread_mutex_init(&clients[k].lock, NULL);
        pthread_cond_init(&clients[k].changed, NULL);
        assert_int_equal(pthread_create(&threads[k], NULL, client, &clients[k]), 0);
    }
}

static void test_threads_with_own_driver(void **state)
{
    static struct client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    di_sampling_options o = greedy(10);
    di_submission s = text_request("The capital of France", &o);
    struct answer alone = run_one(&s), polled = {0};
    (void)state;
    assert_int_equal(di_engine_start(engine, NULL), DI_OK);
    assert_int_equal(di_engine_start(engine, NULL), DI_ERR_INVALID);
    assert_int_equal(di_engine_step(engine, NULL, NULL), DI_ERR_INVALID);
    run_clients(clients, threads);
    submit(&s); /* this thread polls meanwhile */
    while (!polled.finished) {
        const di_output *out = di_engine_poll(engine, -1);
        assert_non_null(out);
        take(&polled, out);
        di_output_free(engine, out);
    }
    for (int k = 0; k < CLIENTS; k++)
        pthread_join(threads[k], NULL);
    assert_null(di_engine_poll(engine, 1)); /* the time is over */
    di_engine_stop(engine);
    di_engine_stop(engine);
    assert_memory_equal(polled.tokens, alone.tokens, sizeof(int32_t) * 10);
    check_clients(clients, &alone);
    assert_all_returned();
}

static _Atomic bool clients_done;
static void *stepper(void *arg)
{
    (void)arg;
    while (!clients_done) {
        di_status status = di_engine_step(engine, NULL, NULL);
        if (status != DI_OK)
            return (void *)1;
    }
    return NULL;
}

static void test_threads_with_the_callers_driver(void **state)
{
    static struct client clients[CLIENTS];
    pthread_t threads[CLIENTS], driver;
    di_sampling_options o = greedy(10);
    di_submission s = text_request("The capital of France", &o);
    struct answer alone = run_one(&s);
    void *failed;
    (void)state;
    clients_done = false;
    assert_int_equal(pthread_create(&driver, NULL, stepper, NULL), 0);
    run_clients(clients, threads);
    for (int k = 0; k < CLIENTS; k++)
        pthread_join(threads[k], NULL);
    clients_done = true;
    pthread_join(driver, &failed);
    assert_null(failed);
    check_clients(clients, &alone);
    assert_all_returned();
}

static _Atomic bool woken;
static void *wait_long(void *arg)
{
    (void)arg;
    const di_output *got = di_engine_poll(engine, 20000);
    woken = true;
    return (void *)(uintptr_t)got;
}

static void test_stop_wakes_polls(void **state)
{
    pthread_t waiting;
    void *got = engine;
    (void)state;
    time_t begin = time(NULL);
    woken = false;
    assert_int_equal(pthread_create(&waiting, NULL, wait_long, NULL), 0);
    while (!woken) { /* the first stop may come before the poll waits */
        assert_int_equal(di_engine_start(engine, NULL), DI_OK);
        sleep_ms(20);
        di_engine_stop(engine);
    }
    pthread_join(waiting, &got);
    assert_null(got);
    assert_true(time(NULL) - begin < 19);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info_plan_and_text),
        cmocka_unit_test(test_ways_to_ask),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_reasoning_budget),
        cmocka_unit_test(test_stop_string_and_bias),
        cmocka_unit_test(test_forced_tokens),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_bad_handles_and_sizes),
        cmocka_unit_test(test_snapshots_follow_from_the_cache),
        cmocka_unit_test(test_cancel_queued_and_running),
        cmocka_unit_test(test_callback_ends_it),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_close_in_the_middle),
        cmocka_unit_test(test_close_takes_nothing_more),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_threads_with_own_driver),
        cmocka_unit_test(test_threads_with_the_callers_driver),
        cmocka_unit_test(test_stop_wakes_polls),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
