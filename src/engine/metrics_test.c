/* also run on the hostile device, seed 15 */
/* Histograms, the accounts of a life at random, and the rows of prompts that share a beginning. */
#include "base/clock.h"
#include "testing/null_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define VOCAB 60
#define CONTEXT 600
#define MOST 150

static uint32_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 1664525 + 1013904223;
    return rng_state >> 8;
}

/* ---------------------------------------------------------------- histograms */

static void test_buckets(void **state)
{
    static struct di_metrics m;
    di_histogram h;
    (void)state;
    for (int k = 0; k < DI_HISTOGRAMS; k++) {
        assert_true(di_metrics_get(&m, (di_histogram_id)k, &h));
        double per_unit = strstr(h.name, "_seconds") ? 1e9 : 1;
        int n = h.n_edges;
        assert_true(n > 10 && n <= DI_HISTOGRAM_EDGES_MAX && h.help[0] && h.count == 0);
        for (int i = 0; i < n; i++) {
            int64_t edge = (int64_t)(h.edges[i] * per_unit + 0.5);
            assert_true(i == 0 || h.edges[i] > h.edges[i - 1]);
            di_metrics_add(&m, (di_histogram_id)k, edge);     /* an edge belongs to the values below it */
            di_metrics_add(&m, (di_histogram_id)k, edge + 1); /* twice in the last bucket: nothing is above it */
        }
        di_metrics_add(&m, (di_histogram_id)k, -5);
        assert_true(di_metrics_get(&m, (di_histogram_id)k, &h));
        assert_int_equal(h.count, 2 * n + 1);
        assert_int_equal(h.buckets[0], 2); /* its edge and the negative one */
        for (int i = 1; i < n; i++)
            assert_true(h.buckets[i] == 2 || h.edges[i] - h.edges[i - 1] < 1.5 / per_unit);
        assert_int_equal(h.buckets[n], 1);
    }
    assert_false(di_metrics_get(&m, (di_histogram_id)DI_HISTOGRAMS, &h));
    assert_false(di_metrics_get(&m, (di_histogram_id)-1, &h));
}

static void test_names_differ(void **state)
{
    static struct di_metrics m;
    di_histogram a, b;
    (void)state;
    for (int i = 0; i < DI_HISTOGRAMS; i++)
        for (int k = 0; k < i; k++) {
            assert_true(di_metrics_get(&m, (di_histogram_id)i, &a) && di_metrics_get(&m, (di_histogram_id)k, &b));
            assert_string_not_equal(a.name, b.name);
            assert_string_not_equal(a.help, b.help);
        }
}

static bool near(double a, double b)
{
    return a > b - 1e-9 && a < b + 1e-9;
}

static void test_sum_and_quantiles(void **state)
{
    static struct di_metrics m;
    di_histogram h;
    (void)state;
    assert_true(di_metrics_get(&m, DI_HISTOGRAM_QUEUE_TIME, &h));
    assert_true(di_histogram_quantile(&h, 0.5) == 0);
    for (int i = 0; i < 10; i++)
        di_metrics_add(&m, DI_HISTOGRAM_QUEUE_TIME, 1200000); /* between 1 and 1.5 ms */
    for (int i = 0; i < 10; i++)
        di_metrics_add(&m, DI_HISTOGRAM_QUEUE_TIME, 2000000); /* between 1.5 and 2.5 ms */
    assert_true(di_metrics_get(&m, DI_HISTOGRAM_QUEUE_TIME, &h));
    assert_true(near(h.sum, 0.032));
    assert_true(near(di_histogram_quantile(&h, 0.25), 0.00125));
    assert_true(near(di_histogram_quantile(&h, 0.5), 0.0015));
    assert_true(near(di_histogram_quantile(&h, 0.9), 0.0023));
    assert_true(near(di_histogram_quantile(&h, 1), 0.0025));
    assert_true(di_histogram_quantile(&h, 0) <= 0.0015);
    assert_true(di_histogram_quantile(&h, 1.5) == 0 && di_histogram_quantile(NULL, 0.5) == 0);
    for (int i = 0; i < 100; i++)
        di_metrics_add(&m, DI_HISTOGRAM_QUEUE_TIME, INT64_C(10000000000000)); /* above all edges */
    assert_true(di_metrics_get(&m, DI_HISTOGRAM_QUEUE_TIME, &h));
    assert_true(di_histogram_quantile(&h, 0.9) == h.edges[h.n_edges - 1]);
}

/* ---------------------------------------------------------------- a life at random */

struct person {
    int32_t prompt[CONTEXT];
    int n_tokens;
    bool over;
    di_end_reason end;
    struct di_request_facts facts;
};

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct person *p = ctx;
    (void)s;
    return ++p->n_tokens != 9;
}

static void on_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct person *p = ctx;
    (void)err;
    p->over = true;
    p->end = end;
}

/* A prompt that begins like all others of its family. */
static struct di_request make(struct person *p, int n, int max_tokens)
{
    uint32_t family = rng() % 3;
    int shared = (int)(rng() % 150);
    for (int i = 0; i < n; i++)
        p->prompt[i] = (int32_t)((i < shared ? family * 7 + (uint32_t)i * 5 : rng()) % VOCAB);
    struct di_request r = {.prompt = p->prompt,
                           .n_prompt = n,
                           .max_tokens = max_tokens,
                           .sampling = di_sampling_params_default(),
                           .priority = (int)(rng() % 3),
                           .tenant = rng() % 2,
                           .facts = &p->facts,
                           .on_token = on_token,
                           .on_end = on_end,
                           .ctx = p};
    r.sampling.temperature = 0;
    return r;
}

struct sums {
    uint64_t requests, started, with_token, tokens, prompt, whole, whole_tokens, whole_cached, whole_prompt, whole_max;
};

static void check_facts(const struct person *p, const struct di_request *r, struct sums *s)
{
    const struct di_request_facts *f = &p->facts;
    bool whole = p->end == DI_REASON_STOP || p->end == DI_REASON_LENGTH;
    assert_true(p->over && f->total_ns >= 0);
    assert_int_equal(f->first_token_ns >= 0, p->n_tokens > 0);
    assert_true(f->first_token_ns < 0 || (f->queue_ns >= 0 && f->queue_ns <= f->first_token_ns && f->first_token_ns <= f->total_ns));
    assert_true(f->queue_ns >= 0 || (f->cached == 0 && f->miss == DI_MISS_REASON_NONE));
    assert_int_equal(f->miss_at >= 0, f->miss != DI_MISS_REASON_NONE);
    assert_true(f->cached < r->n_prompt && (f->miss_at < 0 || f->cached <= f->miss_at));
    s->requests++;
    s->started += f->queue_ns >= 0;
    s->with_token += p->n_tokens > 0;
    s->tokens += (uint64_t)p->n_tokens;
    s->prompt += p->n_tokens > 0 ? (uint64_t)r->n_prompt : 0;
    s->whole += whole;
    s->whole_tokens += whole ? (uint64_t)p->n_tokens : 0;
    s->whole_cached += whole ? (uint64_t)f->cached : 0;
    s->whole_prompt += whole ? (uint64_t)r->n_prompt : 0;
    s->whole_max += whole ? (uint64_t)r->max_tokens : 0;
}

static void expect(const struct di_core *e, di_histogram_id which, uint64_t count, uint64_t sum)
{
    const struct di_counts *c = &di_core_metrics(e)->of[which];
    uint64_t in_buckets = 0;
    for (int i = 0; i <= DI_HISTOGRAM_EDGES_MAX; i++)
        in_buckets += c->buckets[i];
    assert_int_equal(in_buckets, count);
    assert_int_equal(c->count, count);
    if (sum != UINT64_MAX)
        assert_int_equal(c->sum, sum);
}

static void check_sums(const struct di_core *e, const struct sums *s)
{
    struct di_core_stats c = di_core_stats(e);
    expect(e, DI_HISTOGRAM_QUEUE_TIME, s->started, UINT64_MAX);
    expect(e, DI_HISTOGRAM_FIRST_TOKEN_TIME, s->with_token, UINT64_MAX);
    expect(e, DI_HISTOGRAM_INTER_TOKEN_TIME, s->tokens - s->with_token, UINT64_MAX);
    expect(e, DI_HISTOGRAM_TOTAL_TIME, s->whole, UINT64_MAX);
    expect(e, DI_HISTOGRAM_GENERATION_TOKENS, s->whole, s->whole_tokens);
    expect(e, DI_HISTOGRAM_CACHED_TOKENS, s->whole, s->whole_cached);
    expect(e, DI_HISTOGRAM_PROMPT_TOKENS, s->whole, s->whole_prompt);
    expect(e, DI_HISTOGRAM_MAX_TOKENS, s->whole, s->whole_max);
    expect(e, DI_HISTOGRAM_DIVERGED_AT, c.miss[DI_MISS_REASON_DIVERGED], UINT64_MAX);
    expect(e, DI_HISTOGRAM_STEP_ROWS, c.steps, c.prompt_rows + c.decode_rows);
    expect(e, DI_HISTOGRAM_STEP_TIME, c.steps, c.compute_ns);
    expect(e, DI_HISTOGRAM_STEP_GAP_TIME, di_core_metrics(e)->of[DI_HISTOGRAM_STEP_GAP_TIME].count, c.gap_ns);
    assert_int_equal(c.generated_tokens, s->tokens);
    assert_int_equal(c.prompt_tokens, s->prompt);
    assert_int_equal(c.finished, s->whole);
    assert_int_equal(c.finished + c.cancelled, s->requests);
    assert_true(c.running == 0 && c.waiting == 0 && c.held_slots == 0);
}

static void live(uint32_t seed, int batch, int blocks)
{
    static struct person people[MOST];
    static struct di_request asked[MOST];
    struct di_null_model model;
    struct di_core *e;
    struct di_core_config config = {.max_batch = batch, .prefill_chunk = 40, .cache_blocks = blocks, .states = 6};
    struct sums sums = {0};
    int64_t ids[MOST];
    bool busy = true;
    int sent = 0;
    rng_state = seed;
    assert_int_equal(di_null_model_init(&model, VOCAB, 20, CONTEXT, NULL), DI_OK);
    assert_int_equal(di_null_core(&model, &config, &e, NULL), DI_OK);
    while (busy || sent < MOST) {
        for (; sent < MOST && rng() % 3; sent++) {
            people[sent] = (struct person){0};
            asked[sent] = make(&people[sent], 1 + (int)(rng() % 200), 1 + (int)(rng() % 40));
            assert_int_equal(di_core_submit(e, &asked[sent], &ids[sent], NULL), DI_OK);
        }
        if (sent && rng() % 6 == 0)
            di_core_cancel(e, ids[rng() % (uint32_t)sent]);
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    }
    assert_int_equal(di_core_flush(e, NULL), DI_OK);
    for (int i = 0; i < MOST; i++)
        check_facts(&people[i], &asked[i], &sums);
    check_sums(e, &sums);
    di_core_destroy(e);
    di_null_model_fini(&model);
}

static void test_accounts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 12; i++)
        live(i + 1, 1 + (int)i % 7, 5 + (int)i * 3);
}

/* ---------------------------------------------------------------- prompts that share a beginning */

#define SHARERS 20

struct sharing {
    struct di_null_model model;
    struct di_core *e;
    int32_t room[SHARERS][CONTEXT];
    struct di_watch w[SHARERS];
};

static void sharing_open(struct sharing *t, int batch, int blocks)
{
    struct di_core_config config = {.max_batch = batch, .prefill_chunk = 48, .cache_blocks = blocks, .states = 8};
    assert_int_equal(di_null_model_init(&t->model, VOCAB, 20, CONTEXT, NULL), DI_OK);
    assert_int_equal(di_null_core(&t->model, &config, &t->e, NULL), DI_OK);
}

static void ask(struct sharing *t, int i, int common, int n, int max_tokens)
{
    t->w[i] = (struct di_watch){.tokens = t->room[i], .n_prompt = n, .max_tokens = max_tokens, .ignore_end = true};
    for (int k = 0; k < n; k++) /* what follows the common beginning differs in its first token */
        t->room[i][k] = k < common ? k * 7 % 50 : (k == common ? i : k * 3 + i) % VOCAB;
}

static void run(struct sharing *t)
{
    bool busy = true;
    for (int i = 0; busy; i++) {
        assert_true(i < 10000);
        assert_int_equal(di_core_step(t->e, &busy, NULL), DI_OK);
    }
}

static void sharing_close(struct sharing *t)
{
    const char *left = di_null_left(t->e, &t->model);
    if (left)
        fail_msg("%s", left);
    di_core_destroy(t->e);
    di_null_model_fini(&t->model);
}

/* All at once, more than there are places: every common row is computed once, all others once for each prompt. */
static void test_shared_rows_are_computed_once(void **state)
{
    static struct sharing t;
    static const int commons[] = {0, 50, 64, 150, 200, 256, 299, 360};
    (void)state;
    for (size_t k = 0; k < sizeof commons / sizeof *commons; k++) {
        int common = commons[k], n = 400;
        sharing_open(&t, 6, 80);
        for (int i = 0; i < SHARERS; i++) {
            ask(&t, i, common, n, 1);
            assert_int_equal(di_watch_submit(&t.w[i], t.e, NULL), DI_OK);
        }
        run(&t);
        struct di_core_stats s = di_core_stats(t.e);
        uint64_t saved = common < DI_BLOCK_TOKENS ? 0 : (SHARERS - 1) * (uint64_t)common;
        assert_int_equal(s.prompt_rows + s.cached_tokens, SHARERS * n);
        if (common >= DI_BLOCK_TOKENS || common == 0)
            assert_int_equal(s.cached_tokens, saved);
        assert_int_equal(s.decode_rows, 0);
        for (int i = 0; i < SHARERS; i++)
            assert_null(di_watch_wrong(&t.w[i]));
        sharing_close(&t);
    }
}

/* The one that others wait for is cancelled: they go on, and one of them takes its place. */
static void test_cancelled_leader(void **state)
{
    static struct sharing t;
    bool busy;
    (void)state;
    sharing_open(&t, 4, 60);
    for (int i = 0; i < 4; i++) {
        ask(&t, i, 300, 400, 1);
        assert_int_equal(di_watch_submit(&t.w[i], t.e, NULL), DI_OK);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(di_core_step(t.e, &busy, NULL), DI_OK);
    assert_int_equal(di_core_stats(t.e).running, 1);
    assert_true(di_core_cancel(t.e, t.w[0].id));
    run(&t);
    struct di_core_stats s = di_core_stats(t.e);
    for (int i = 1; i < 4; i++)
        assert_true(t.w[i].over && t.w[i].n_got == 1 && !di_watch_wrong(&t.w[i]));
    assert_true(s.prompt_rows < 300 + 3 * 100 + 4 * 48);
    sharing_close(&t);
}

/* A better priority does not wait for a worse one, and nobody for one that gave way. */
static void test_no_waiting_for_the_worse(void **state)
{
    static struct sharing t;
    bool busy;
    (void)state;
    sharing_open(&t, 2, 60);
    for (int i = 0; i < 2; i++)
        ask(&t, i, 300, 400, 1);
    t.w[0].priority = 1;
    assert_int_equal(di_watch_submit(&t.w[0], t.e, NULL), DI_OK);
    assert_int_equal(di_core_step(t.e, &busy, NULL), DI_OK);
    assert_int_equal(di_watch_submit(&t.w[1], t.e, NULL), DI_OK);
    assert_int_equal(di_core_step(t.e, &busy, NULL), DI_OK);
    assert_int_equal(di_core_stats(t.e).running, 2);
    run(&t);
    sharing_close(&t);

    sharing_open(&t, 2, 60);
    for (int i = 0; i < 2; i++) {
        ask(&t, i, 300, 400, 1);
        t.w[i].tenant = (uint64_t)i; /* another tenant: nothing is shared, nobody waits */
        assert_int_equal(di_watch_submit(&t.w[i], t.e, NULL), DI_OK);
    }
    assert_int_equal(di_core_step(t.e, &busy, NULL), DI_OK);
    assert_int_equal(di_core_stats(t.e).running, 2);
    run(&t);
    assert_int_equal(di_core_stats(t.e).cached_tokens, 0);
    sharing_close(&t);
}

/* Counting included; the requests pass several ends of blocks, which are entered into the index. */
static void test_steady_steps_allocate_nothing(void **state)
{
    static struct sharing t;
    bool busy;
    (void)state;
    sharing_open(&t, 8, 80);
    for (int i = 0; i < 8; i++) {
        ask(&t, i, 0, 20, 300);
        assert_int_equal(di_watch_submit(&t.w[i], t.e, NULL), DI_OK);
    }
    for (int i = 0; i < 10; i++)
        assert_int_equal(di_core_step(t.e, &busy, NULL), DI_OK);
    uint64_t before = di_mem_calls(), tokens = di_core_stats(t.e).generated_tokens;
    for (int i = 0; i < 250; i++)
        assert_int_equal(di_core_step(t.e, &busy, NULL), DI_OK);
    assert_int_equal(di_mem_calls(), before);
    assert_int_equal(di_core_stats(t.e).generated_tokens, tokens + 8 * 250);
    run(&t);
    sharing_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_names_differ),
        cmocka_unit_test(test_sum_and_quantiles),
        cmocka_unit_test(test_accounts),
        cmocka_unit_test(test_shared_rows_are_computed_once),
        cmocka_unit_test(test_cancelled_leader),
        cmocka_unit_test(test_no_waiting_for_the_worse),
        cmocka_unit_test(test_steady_steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
