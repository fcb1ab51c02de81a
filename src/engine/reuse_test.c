/* also run on the hostile device, seed 7 */
/* No wrong reuse: requests that share prefixes in a small pool, with evictions, cancels, preemption and tenants, give the same tokens and
 * the same log-probabilities as each one alone with an empty cache (src/cache/prefix.h promises; spec/model.md §8.1 exact). */
#include "engine/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "testing/tiny_fixture.h"

#define MOST 320
#define ANSWER 12
#define TOP 8

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

struct request {
    int32_t prompt[MOST];
    int n_prompt, max_tokens, priority;
    uint64_t tenant;
    int64_t seed, id, cached;
    double temperature;
};
struct answer {
    int n;
    bool over;
    di_end_reason end;
    struct di_sample sample[ANSWER];
    struct request *request;
};

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct answer *a = ctx;
    a->sample[a->n++] = *s;
    return true;
}
static void on_start(void *ctx, int64_t cached)
{
    struct answer *a = ctx;
    a->request->cached = cached;
}
static void on_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct answer *a = ctx;
    (void)err;
    a->over = true;
    a->end = end;
}

/* Lengths lie around the edges of blocks, rings, groups and chunks; prompts of a family agree up to a random place. */
static void make(struct request *r, int vocab)
{
    static const int edges[] = {1, 2, 63, 64, 65, 127, 128, 129, 143, 144, 145, 192, 249, 250, 256, 300};
    uint64_t family = rng() % 4, x = family + 77;
    int n = rng() % 2 ? edges[rng() % 16] : 1 + (int)(rng() % 300), shared = rng() % 8 ? (int)(rng() % 301) : 0;
    *r = (struct request){.n_prompt = n,
                          .max_tokens = 1 + (int)(rng() % ANSWER),
                          .priority = (int)(rng() % 2),
                          .tenant = rng() % 5 == 0,
                          .seed = rng() % 3,
                          .temperature = rng() % 2 ? 1.0 : 0.0};
    for (int i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        r->prompt[i] = (int32_t)((i < shared ? (uint32_t)(x >> 33) : rng()) % (uint32_t)vocab);
    }
}

/* Somebody's prompt again, but for its last few tokens: snapshots are resumed before their end, and taken again soon after. */
static void resend(struct request *r, const struct request *old)
{
    int cut = (int)(rng() % 4);
    r->n_prompt = old->n_prompt > cut ? old->n_prompt - cut : 1;
    r->tenant = old->tenant;
    memcpy(r->prompt, old->prompt, sizeof r->prompt);
    if (rng() % 2)
        r->prompt[r->n_prompt - 1] = (r->prompt[r->n_prompt - 1] + 1) % 50;
}

static void submit(struct di_core *e, struct request *r, struct answer *a)
{
    *a = (struct answer){.request = r};
    struct di_request q = {.prompt = r->prompt,
                           .n_prompt = r->n_prompt,
                           .max_tokens = r->max_tokens,
                           .sampling = di_sampling_params_default(),
                           .priority = r->priority,
                           .tenant = r->tenant,
                           .on_start = on_start,
                           .on_token = on_token,
                           .on_end = on_end,
                           .ctx = a};
    q.sampling.temperature = r->temperature;
    q.sampling.seed = r->seed;
    q.sampling.logprobs = true;
    q.sampling.top_logprobs = TOP;
    assert_int_equal(di_core_submit(e, &q, &r->id, NULL), DI_OK);
}

static bool same_sample(const struct di_sample *a, const struct di_sample *b)
{
    bool same = a->id == b->id && memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 && a->n_top == b->n_top;
    for (size_t i = 0; same && i < a->n_top; i++)
        same = a->top[i].id == b->top[i].id && memcmp(&a->top[i].logprob, &b->top[i].logprob, sizeof(float)) == 0;
    return same;
}

static void check_alone(struct di_core *cold, struct request *r, const struct answer *got)
{
    struct answer alone;
    bool busy = true;
    int64_t cached = r->cached;
    submit(cold, r, &alone);
    while (busy)
        assert_int_equal(di_core_step(cold, &busy, NULL), DI_OK);
    r->cached = cached;
    if (got->end != DI_REASON_CANCELLED)
        assert_int_equal(got->n, alone.n);
    for (int i = 0; i < got->n; i++)
        if (!same_sample(&got->sample[i], &alone.sample[i]))
            fail_msg("prompt of %d tokens, %lld reused: token %d is %d alone, %d with reuse", r->n_prompt, (long long)cached, i,
                     alone.sample[i].id, got->sample[i].id);
}

static void run_cases(const char *config, int cases, int states, int blocks, uint64_t seed, int drafts)
{
    struct di_model *m = open_tiny_with(config, NULL, drafts > 0);
    struct di_core *warm, *cold;
    struct di_core_config wc = {
        .max_batch = 3, .prefill_chunk = 70, .context = 400, .cache_blocks = blocks, .states = states, .drafts = drafts};
    struct di_core_config cc = {.max_batch = 1, .prefill_chunk = 319, .context = 400, .no_reuse = true};
    struct request *r = calloc((size_t)cases, sizeof *r);
    struct answer *a = calloc((size_t)cases, sizeof *a);
    bool busy = true;
    rng_state = seed;
    assert_int_equal(di_core_create(m, &wc, &warm, NULL), DI_OK);
    assert_int_equal(di_core_create(m, &cc, &cold, NULL), DI_OK);
    for (int sent = 0; busy || sent < cases;) {
        while (sent < cases && di_core_stats(warm).waiting < 4) {
            make(&r[sent], m->c->vocab_size);
            if (sent > 6 && rng() % 3 == 0)
                resend(&r[sent], &r[sent - 1 - (int)(rng() % 6)]);
            submit(warm, &r[sent], &a[sent]);
            sent++;
        }
        if (rng() % 40 == 0)
            di_core_cancel(warm, r[rng() % (uint32_t)sent].id);
        assert_int_equal(di_core_step(warm, &busy, NULL), DI_OK);
    }
    struct di_core_stats s = di_core_stats(warm);
    assert_int_equal(s.free_blocks, s.blocks);
    if (di_core_check_accounts(warm))
        fail_msg("%s", di_core_check_accounts(warm));
    for (int i = 0; i < cases; i++)
        check_alone(cold, &r[i], &a[i]);
    printf("%s: %d requests, %d snapshots, %d blocks: %.1f %% of the prompt tokens reused, %llu preempted, %llu blocks evicted, %llu "
           "states restored\n",
           config, cases, states, blocks, 100.0 * (double)s.cached_tokens / (double)s.lookup_tokens, (unsigned long long)s.preempted,
           (unsigned long long)s.evicted, (unsigned long long)s.states_restored);
    assert_true(states == 0 || s.cached_tokens > 0); /* replay alone pays for long hits only */
    di_core_destroy(warm);
    di_core_destroy(cold);
    di_model_close(m);
    free(r);
    free(a);
}

static int cases; /* set by main */

static void test_no_wrong_reuse(void **state)
{
    (void)state;
    run_cases("tiny_d", cases, 8, 24, 1, 0);
    run_cases("tiny_d", cases, 2, 12, 2, 0);
    run_cases("tiny_d", cases, 0, 40, 3, 0); /* rings are rebuilt by exact replay */
    run_cases("tiny_a", cases, 8, 30, 4, 0);
    run_cases("tiny_d", cases / 4, 8, 36, 5, DI_MAX_DRAFTS);
}

/* Report 75, A3: a repeated prompt, also in another slot; A5: short prompts are found too; the whole prompt but its last token is reused.
 * */
static void test_repeat_loses_one_token(void **state)
{
    (void)state;
    struct di_model *m = open_tiny("tiny_a", NULL);
    struct di_core *e;
    struct di_core_config c = {.max_batch = 2, .prefill_chunk = 64, .context = 400, .states = 16};
    assert_int_equal(di_core_create(m, &c, &e, NULL), DI_OK);
    rng_state = 5;
    for (int n = 3; n < 300; n += 37) {
        struct request r[2];
        struct answer a[2];
        bool busy = true;
        make(&r[0], m->c->vocab_size);
        r[0].n_prompt = n;
        for (int i = 0; i < n; i++)
            r[0].prompt[i] = (int32_t)(rng() % (uint32_t)m->c->vocab_size);
        r[1] = r[0];
        for (int k = 0; k < 2; k++) {
            submit(e, &r[k], &a[k]);
            for (busy = true; busy;)
                assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        }
        assert_int_equal(r[0].cached, 0);
        assert_int_equal(r[1].cached, n - 1);
        assert_int_equal(a[0].n, a[1].n);
        for (int i = 0; i < a[0].n; i++)
            assert_true(same_sample(&a[0].sample[i], &a[1].sample[i]));
    }
    di_core_destroy(e);
    di_model_close(m);
}

/* A17, 51 to 53: the same prompt of another tenant finds nothing. */
static void test_tenants_share_nothing(void **state)
{
    (void)state;
    struct di_model *m = open_tiny("tiny_a", NULL);
    struct di_core *e;
    struct di_core_config c = {.max_batch = 2, .prefill_chunk = 64, .context = 400, .states = 4};
    struct request r[2];
    struct answer a;
    bool busy;
    assert_int_equal(di_core_create(m, &c, &e, NULL), DI_OK);
    rng_state = 6;
    make(&r[0], m->c->vocab_size);
    r[0].n_prompt = 200;
    r[0].tenant = 1;
    r[1] = r[0];
    r[1].tenant = 2;
    for (int k = 0; k < 2; k++) {
        submit(e, &r[k], &a);
        for (busy = true; busy;)
            assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        assert_int_equal(r[k].cached, 0);
    }
    di_core_destroy(e);
    di_model_close(m);
}

/* An argument sets the number of requests of each run: the long form. */
int main(int argc, char **argv)
{
    cases = argc > 1 ? atoi(argv[1]) : DI_TEST_SHORT ? 40 : 200;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_wrong_reuse),
        cmocka_unit_test(test_repeat_loses_one_token),
        cmocka_unit_test(test_tenants_share_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
