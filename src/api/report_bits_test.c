/* Failures that were reported of other engines, each a test of its number (docs/reports.md), on the nano model through the public
 * interface: what a request gets beside others or from the cache has the bits of a cold run on its own. */
#include "deepinfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NANO DI_SOURCE_DIR "/models/nano"
#define MAX_TOKENS 48
#define MAX_PROMPT 400
#ifdef DI_TEST_QUICK
#define PROMPTS 16 /* instrumented code takes its time */
#define LESS 4
#else
#define PROMPTS 200
#define LESS 1
#endif

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static di_engine *open_engine_in(const char *prefill_order, int max_batch, int cache_blocks, bool no_reuse)
{
    di_engine_config c;
    di_engine *e;
    di_error err = {0};
    di_engine_config_init(&c, sizeof c);
    c.model = NANO;
    c.context = 512;
    c.max_batch = max_batch;
    c.prefill_chunk = 48;
    c.cache_blocks = cache_blocks;
    c.no_reuse = no_reuse;
    c.threads = 1;
    c.prefill_order = prefill_order;
    if (di_engine_open(&c, &e, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

static di_engine *open_engine(int max_batch, int cache_blocks, bool no_reuse)
{
    return open_engine_in(NULL, max_batch, cache_blocks, no_reuse);
}

static void close_engine(di_engine *e)
{
    di_engine_stats s;
    assert_int_equal(di_engine_flush(e, NULL), DI_OK);
    assert_int_equal(di_engine_get_stats(e, &s, sizeof s, NULL), DI_OK);
    assert_int_equal(s.running + s.waiting, 0);
    assert_int_equal(s.free_blocks, s.blocks);
    di_engine_close(e);
}

/* ---------------------------------------------------------------- one request */

struct question {
    int32_t ids[MAX_PROMPT], forced[MAX_TOKENS];
    int n, n_forced, max_tokens;
    double temperature;
    int64_t seed;
    uint64_t tenant;
    bool may_end; /* end ids end it */
};
struct answer {
    di_request_id id;
    int32_t tokens[MAX_TOKENS];
    float logprobs[MAX_TOKENS];
    int n;
    bool finished, wrong; /* wrong: a record that is not of this request, or out of order */
    char text[1024];
    di_end_reason reason;
    int64_t cached;
};

static int hear(void *user, const di_output *o)
{
    struct answer *a = user;
    a->wrong = a->wrong || a->finished || o->request != a->id || (o->kind == DI_OUTPUT_TOKEN && o->index != a->n);
    if (o->kind == DI_OUTPUT_TOKEN && a->n < MAX_TOKENS) {
        a->logprobs[a->n] = o->logprob;
        a->tokens[a->n++] = o->token;
    } else if (o->kind == DI_OUTPUT_TEXT) {
        strncat(a->text, o->text, sizeof a->text - strlen(a->text) - 1);
    } else if (o->kind == DI_OUTPUT_FINISHED) {
        a->finished = true;
        a->reason = o->reason;
        a->cached = o->cached_tokens;
    }
    return 1;
}

/* Through a callback, or with records that wait to be polled. */
static void submit(di_engine *e, const struct question *q, struct answer *a, bool polled)
{
    di_sampling_options o;
    di_submission s;
    di_error err = {0};
    di_sampling_options_init(&o, sizeof o);
    di_submission_init(&s, sizeof s);
    o.temperature = q->temperature;
    o.seed = q->seed;
    o.max_tokens = q->max_tokens;
    o.ignore_eos = !q->may_end;
    o.logprobs = 1;
    s.ids = q->ids;
    s.n_ids = (size_t)q->n;
    s.forced = q->n_forced ? q->forced : NULL;
    s.n_forced = (size_t)q->n_forced;
    s.tenant = q->tenant;
    s.sampling = &o;
    s.on_output = polled ? NULL : hear;
    s.user = a;
    *a = (struct answer){0};
    if (di_engine_submit(e, &s, &a->id, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static void run(di_engine *e)
{
    assert_int_equal(di_engine_run(e, NULL), DI_OK);
    for (const di_output *o; (o = di_engine_poll(e, 0)) != NULL; di_output_free(e, o))
        hear(o->user, o);
}

static struct answer ask(di_engine *e, const struct question *q)
{
    struct answer a;
    submit(e, q, &a, false);
    run(e);
    return a;
}

static void same(const struct answer *a, const struct answer *b)
{
    assert_true(a->finished && b->finished && !a->wrong && !b->wrong);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, sizeof(int32_t) * (size_t)a->n);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof(float) * (size_t)a->n);
    assert_int_equal(a->reason, b->reason);
}

/* A prompt of n words of a text about nothing, and greedy. */
static struct question question(int n, int max_tokens, uint64_t seed)
{
    struct question q = {.n = n, .max_tokens = max_tokens};
    rng_state = seed * 7919 + 1;
    for (int i = 0; i < n; i++)
        q.ids[i] = (int32_t)(200 + rng() % 4000);
    return q;
}

/* ---------------------------------------------------------------- company */

/* 24 answers that are nothing but their request's own nonce (forced), 8 at a time, polled and called back, some cancelled: each one hears
 * its own nonce or the beginning of it. */
static void report_53_answers_reach_who_asked(void **state)
{
    static struct question q[24];
    static struct answer a[24];
    char nonce[24][64];
    di_engine *e = open_engine(8, 0, false);
    (void)state;
    for (int round = 0; round < (LESS > 1 ? 1 : 3); round++) {
        for (int i = 0; i < 24; i++) {
            size_t n;
            q[i] = question(5 + i, 0, (uint64_t)i % 3);
            snprintf(nonce[i], sizeof nonce[i], "Nonce %d of %d: %08x%08x", i, round, rng(), rng());
            assert_int_equal(di_engine_encode(e, nonce[i], strlen(nonce[i]), 0, q[i].forced, MAX_TOKENS, &n, NULL), DI_OK);
            q[i].n_forced = q[i].max_tokens = (int)n;
            submit(e, &q[i], &a[i], i % 2);
        }
        for (int i = 0; i < 40; i++) {
            assert_int_equal(di_engine_step(e, NULL, NULL), DI_OK);
            if (i % 8 == round)
                di_engine_cancel(e, a[(i * 5 + round) % 24].id);
        }
        run(e);
        for (int i = 0; i < 24; i++) {
            assert_true(a[i].finished && !a[i].wrong);
            assert_memory_equal(a[i].tokens, q[i].forced, sizeof(int32_t) * (size_t)a[i].n);
            if (a[i].reason == DI_REASON_CANCELLED)
                assert_memory_equal(a[i].text, nonce[i], strlen(a[i].text));
            else
                assert_string_equal(a[i].text, nonce[i]);
        }
    }
    close_engine(e);
}

/* 8 times the same at the same time: all have the bits of one alone. There are no graphs. */
static void report_56_identical_requests_at_once(void **state)
{
    static struct answer a[8];
    struct question q = question(90, 24 / LESS, 56);
    di_engine *cold = open_engine(1, 0, true), *e = open_engine(8, 0, false);
    struct answer alone = ask(cold, &q);
    (void)state;
    for (int round = 0; round < 2; round++) { /* cold, and from the cache */
        for (int i = 0; i < 8; i++)
            submit(e, &q, &a[i], i % 2);
        run(e);
        for (int i = 0; i < 8; i++)
            same(&a[i], &alone);
    }
    close_engine(cold);
    close_engine(e);
}

/* 1, 2, 3, 4 and 8 at a time, hot, with the same seeds. */
static void report_57_any_number_at_a_time(void **state)
{
    static const int numbers[] = {1, 2, 3, 4, 8};
    static struct question q[8];
    static struct answer first[8], a[8];
    (void)state;
    for (int reuse = 0; reuse < 2; reuse++) { /* the first run, one at a time and cold, is what all are compared with */
        di_engine *e = open_engine(8, 0, !reuse);
        for (int k = 0; k < 5; k++)
            for (int from = 0; from < 8; from += numbers[k]) {
                for (int i = from; i < from + numbers[k] && i < 8; i++) {
                    q[i] = question(20 + 13 * i, 20 / LESS, 57);
                    q[i].temperature = 1;
                    q[i].seed = i;
                    submit(e, &q[i], &a[i], false);
                }
                run(e);
                for (int i = from; i < from + numbers[k] && i < 8; i++) {
                    if (k == 0 && !reuse)
                        first[i] = a[i];
                    same(&a[i], &first[i]);
                }
            }
        close_engine(e);
    }
}

/* As many as there are places, one fewer, one more; prompts that fill the row budget of the step to the last row. */
static void report_58_batches_at_the_limit(void **state)
{
    static const int numbers[] = {8, 7, 9};
    static struct question q[9];
    static struct answer alone[9], a[9];
    di_engine *e = open_engine(8, 0, true);
    (void)state;
    for (int i = 0; i < 9; i++) {
        q[i] = question(i == 8 ? 200 : 48, 12, (uint64_t)i + 580);
        alone[i] = ask(e, &q[i]);
        assert_int_equal(alone[i].n, 12);
    }
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < numbers[k]; i++)
            submit(e, &q[8 - i], &a[8 - i], false);
        run(e);
        for (int i = 0; i < numbers[k]; i++)
            same(&a[8 - i], &alone[8 - i]);
    }
    close_engine(e);
}

/* Prompts of many lengths, which share beginnings, in both orders of computing them: the same bits. */
static void the_order_of_prompts_changes_no_bits(void **state)
{
    enum { N = 24 / LESS };
    static struct question q[N];
    static struct answer a[2][N];
    (void)state;
    for (int order = 0; order < 2; order++) {
        di_engine *e = open_engine_in(order ? "arrival" : "shortest", 4, 30, false);
        for (int i = 0; i < N; i++) {
            q[i] = question(20 + i * 37 % 280, 6, (uint64_t)i % 5 + 900);
            q[i].temperature = i % 2;
            submit(e, &q[i], &a[order][i], false);
            if (i % 3 == 0)
                assert_int_equal(di_engine_step(e, NULL, NULL), DI_OK);
        }
        run(e);
        close_engine(e);
    }
    for (int i = 0; i < N; i++)
        same(&a[0][i], &a[1][i]);
}

/* ---------------------------------------------------------------- cache */

/* A hit must bring the window's rows with it: prompts around its 128 rows, cold, then repeated, then with another end. */
static void report_75_hit_and_cold_are_equal(void **state)
{
    static const int lengths[] = {2, 3, 64, 65, 127, 128, 129, 130, 143, 145, 256, 300};
    di_engine *cold = open_engine(1, 0, true), *e = open_engine(2, 0, false);
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i += LESS) {
        struct question q = question(lengths[i], 10, (uint64_t)lengths[i]);
        for (int change = 0; change < (LESS > 1 ? 1 : 3); change++) {
            struct question turn = question(150, 2, 7500 + i);
            struct answer want = ask(cold, &q), first = ask(e, &q);
            ask(e, &turn); /* the slot's rings are of another one now */
            struct answer hit = ask(e, &q);
            same(&first, &want);
            same(&hit, &want);
            assert_int_equal(hit.n, 10);
            assert_int_equal(hit.cached, lengths[i] - 1);
            q.ids[lengths[i] - 1] = 300 + change;
        }
    }
    close_engine(cold);
    close_engine(e);
}

/* The first time in slot 0, the second time beside another request that sits there and has turned its rings over. */
static void report_A3_a_repeat_in_another_slot(void **state)
{
    di_engine *cold = open_engine(1, 0, true), *e = open_engine(2, 0, false);
    struct question long_one = question(20, MAX_TOKENS, 33);
    (void)state;
    for (int n = 100; n < 320; n += 73 * LESS) {
        struct question q = question(n, 10, (uint64_t)n);
        struct answer want = ask(cold, &q), first = ask(e, &q), other, hit;
        same(&first, &want);
        long_one.n = 300 - n / 2;
        submit(e, &long_one, &other, false);
        for (int i = 0; i < 12; i++)
            assert_int_equal(di_engine_step(e, NULL, NULL), DI_OK);
        assert_true(other.n > 0 && !other.finished);
        submit(e, &q, &hit, false);
        run(e);
        same(&hit, &want);
        assert_int_equal(hit.cached, n - 1);
        assert_int_equal(other.n, MAX_TOKENS);
    }
    close_engine(cold);
    close_engine(e);
}

/* What a client says is not what parts the caches, and does not join them: the same salt and name from two tenants. */
static void report_A17_a_clients_salt_does_not_join_tenants(void **state)
{
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France? Think, then answer with "
                               "one word.\"}], \"temperature\": 0, \"max_tokens\": 8, \"cache_salt\": \"s\", \"user\": \"u\"}";
    static const uint64_t tenants[] = {1, 1, 2, 2, 1};
    static const bool hits[] = {false, true, false, true, true};
    di_engine *e = open_engine(2, 0, false);
    struct answer a[5];
    (void)state;
    for (int i = 0; i < 5; i++) {
        di_submission s;
        di_submission_init(&s, sizeof s);
        s.json = json;
        s.json_bytes = sizeof json - 1;
        s.tenant = tenants[i];
        s.on_output = hear;
        s.user = &a[i];
        a[i] = (struct answer){0};
        assert_int_equal(di_engine_submit(e, &s, &a[i].id, NULL), DI_OK);
        run(e);
        assert_true(hits[i] ? a[i].cached > 20 : a[i].cached == 0);
        assert_memory_equal(a[i].tokens, a[0].tokens, sizeof(int32_t) * 8);
    }
    close_engine(e);
}

/* Natural ends, a pool that holds a tenth of it: first in company, then again, with what is still there. The lengths are those of cold
 * runs. */
static void report_A4_answers_keep_their_length(void **state)
{
    static const char *const texts[] = {"What is the capital of France?", "Count from 7 to 12.", "Tell me a story about a dog.",
                                        "What is 7 + 5?", "Repeat after me: %d apples"};
    static struct question q[PROMPTS];
    static struct answer want[PROMPTS], a[PROMPTS];
    di_engine *cold = open_engine(8, 0, true), *e = open_engine(8, 24, false);
    long lengths[3] = {0};
    int64_t cached = 0;
    (void)state;
    for (int i = 0; i < PROMPTS; i++) {
        char text[256];
        size_t n;
        snprintf(text, sizeof text, "<｜User｜>My number is %d. I like %d. %s<｜Assistant｜></think>", i % 20, i % 3, texts[i % 5]);
        assert_int_equal(di_engine_encode(e, text, strlen(text), 1, q[i].ids, MAX_PROMPT, &n, NULL), DI_OK);
        q[i].n = (int)n;
        q[i].max_tokens = 32;
        q[i].may_end = true;
        submit(cold, &q[i], &want[i], false);
    }
    run(cold);
    for (int pass = 1; pass < 3; pass++) {
        for (int i = 0; i < PROMPTS; i++)
            submit(e, &q[i], &a[i], i % 2);
        run(e);
        lengths[0] = 0;
        for (int i = 0; i < PROMPTS; i++) {
            same(&a[i], &want[i]);
            lengths[pass] += a[i].n;
            lengths[0] += want[i].n;
            cached += a[i].cached;
        }
        assert_int_equal(lengths[pass], lengths[0]);
    }
    assert_true(cached > PROMPTS);
    close_engine(cold);
    close_engine(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_53_answers_reach_who_asked),
        cmocka_unit_test(report_56_identical_requests_at_once),
        cmocka_unit_test(report_57_any_number_at_a_time),
        cmocka_unit_test(the_order_of_prompts_changes_no_bits),
        cmocka_unit_test(report_58_batches_at_the_limit),
        cmocka_unit_test(report_75_hit_and_cold_are_equal),
        cmocka_unit_test(report_A3_a_repeat_in_another_slot),
        cmocka_unit_test(report_A4_answers_keep_their_length),
        cmocka_unit_test(report_A17_a_clients_salt_does_not_join_tenants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
