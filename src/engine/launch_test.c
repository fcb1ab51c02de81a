/* also run on the hostile device, seeds 2 5 8 19 */
/* What a launch may hold beside one row a request: several rows from a cursor, of which those stay whose guesses came true, more rows than
 * a tile of logits has, and masks that arrive while it computes. On the null model, which knows what follows each prefix and sees every
 * cached row that is not the request's. */
#include "base/clock.h"
#include "base/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "engine/pipeline.h"
#include "testing/null_fixture.h"

#define CONTEXT 512
#define MOST 40
static int32_t room[MOST][CONTEXT];

/* ---------------------------------------------------------------- guesses */

/* Answers are the same however many guesses a step verifies, and take fewer steps. */
static void test_guesses(void **state)
{
    uint64_t steps[DI_MAX_DRAFTS + 1];
    (void)state;
    for (int drafts = 0; drafts <= DI_MAX_DRAFTS; drafts++) {
        struct di_core_config config = {.max_batch = 4, .prefill_chunk = 40, .states = 8, .drafts = drafts};
        struct di_watch w[6];
        struct fixture f;
        fixture_open(&f, CONTEXT, &config);
        for (int i = 0; i < 6; i++) {
            w[i] = watch(room[i], 1 + 37 * i, 150 + i, (uint32_t)i + 1);
            send(&f, &w[i]);
        }
        run(&f);
        for (int i = 0; i < 6; i++) {
            right(&w[i]);
            assert_int_equal(w[i].n_got, 150 + i);
        }
        struct di_core_stats s = di_core_stats(f.core);
        steps[drafts] = s.steps;
        assert_int_equal(s.generated_tokens, 6 * 150 + 15);
        assert_true(drafts ? s.decode_rows > s.generated_tokens : s.decode_rows == s.generated_tokens - 6);
        fixture_close(&f);
    }
    for (int drafts = 1; drafts <= DI_MAX_DRAFTS; drafts++)
        assert_true(steps[drafts] < steps[0]);
    assert_true(steps[DI_MAX_DRAFTS] < steps[0] / 2);
}

/* Penalties count the tokens before each row. */
static void test_penalties(void **state)
{
    int32_t want[100];
    (void)state;
    for (int drafts = 0; drafts <= DI_MAX_DRAFTS; drafts++) {
        struct di_core_config config = {.max_batch = 2, .prefill_chunk = 40, .drafts = drafts};
        struct fixture f;
        fixture_open(&f, CONTEXT, &config);
        struct di_watch w = watch(room[0], 20, 100, 1), other = watch(room[1], 20, 100, 2);
        w.frequency_penalty = 2;
        send(&f, &w);
        send(&f, &other);
        run(&f);
        right(&other);
        if (drafts == 0)
            memcpy(want, room[0] + 20, sizeof want);
        assert_memory_equal(want, room[0] + 20, sizeof want);
        fixture_close(&f);
    }
}

/* An answer that ends within the tokens of one result: nothing behind is told, and who goes on from there finds it cached. */
static void test_end_among_guesses(void **state)
{
    struct di_core_config config = {.max_batch = 2, .prefill_chunk = 64, .states = 16, .drafts = DI_MAX_DRAFTS};
    (void)state;
    for (int n = 1; n <= 24; n++)
        for (int how = 0; how < 2; how++) {
            struct fixture f;
            fixture_open(&f, CONTEXT, &config);
            struct di_watch w = watch(room[0], 70, how ? n : 100, 5);
            w.stop_after = how ? 0 : n;
            ask(&f, &w);
            assert_int_equal(w.n_got, n);
            struct di_watch next = watch(room[0], 70 + n, 40, 0);
            ask(&f, &next);
            assert_int_equal(next.cached, 70 + n - 1); /* all but the row of the last token, which nobody needed */
            fixture_close(&f);
        }
}

/* Rows of guesses have pages of their own behind the last position. */
static void test_slack(void **state)
{
    struct di_core_config config = {.max_batch = 1, .prefill_chunk = 64, .cache_blocks = 2, .no_reuse = true};
    (void)state;
    for (int drafts = 0; drafts <= DI_MAX_DRAFTS; drafts++) {
        struct fixture f;
        int slack = drafts ? 2 * (drafts + 1) : 0;
        config.drafts = drafts;
        fixture_open(&f, CONTEXT, &config);
        struct di_watch fits = watch(room[0], 100, 128 - 100 - slack, 1), more = watch(room[1], 100, 128 - 100 - slack + 1, 1);
        ask(&f, &fits);
        assert_int_equal(di_watch_submit(&more, f.core, NULL), DI_ERR_LIMIT);
        fixture_close(&f);
    }
    struct di_core *e;
    struct di_null_model m;
    config.drafts = DI_MAX_DRAFTS + 1;
    assert_int_equal(di_null_model_init(&m, FIXTURE_VOCAB, FIXTURE_WINDOW, CONTEXT, NULL), DI_OK);
    assert_int_equal(di_null_core(&m, &config, &e, NULL), DI_ERR_INVALID);
    di_null_model_fini(&m);
}

/* More rows are sampled than a tile has. */
static void test_tiles(void **state)
{
    (void)state;
    for (int drafts = 0; drafts < 4; drafts += 3) {
        struct di_core_config config = {.max_batch = MOST, .prefill_chunk = 100, .no_reuse = true, .drafts = drafts};
        struct di_watch w[MOST];
        struct fixture f;
        assert_true(MOST > DI_LOGIT_ROWS);
        fixture_open(&f, CONTEXT, &config);
        for (int i = 0; i < MOST; i++) {
            w[i] = watch(room[i], 1 + i, 60, (uint32_t)i + 1);
            send(&f, &w[i]);
        }
        run(&f);
        for (int i = 0; i < MOST; i++)
            right(&w[i]);
        fixture_close(&f);
    }
}

/* ---------------------------------------------------------------- masks */

/* Ids that may follow an id: the sum of both is no multiple of 3. On a thread of its own, late on purpose. */
struct provider {
    struct di_mask_source source;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const int32_t *tokens;
    int64_t at;
    int n;
    bool asked, ready, ending; /* asked: by start, until the masks are ready */
    int delay_us;
    int fail_at, asks;               /* the ask that fails; 0 = none */
    int late, most, early, released; /* early: asks behind the release */
    uint64_t sets[DI_MAX_DRAFTS + 1];
};

static bool may_follow(int32_t before, int32_t id)
{
    return (before + id) % 3 != 0;
}

static void *provide(void *arg)
{
    struct provider *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->ending) {
        if (!p->asked) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        if (p->delay_us > 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000L * p->delay_us}, NULL);
        for (int i = 0; i < p->n; i++) {
            p->sets[i] = 0;
            for (int32_t id = 0; id < FIXTURE_VOCAB; id++)
                p->sets[i] |= (uint64_t)may_follow(p->tokens[p->at + i - 1], id) << id;
        }
        pthread_mutex_lock(&p->lock);
        p->asked = false;
        p->ready = true;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void start(void *ctx, const int32_t *tokens, int64_t at, int n)
{
    struct provider *p = ctx;
    pthread_mutex_lock(&p->lock);
    while (p->asked) /* of a launch that failed */
        pthread_cond_wait(&p->changed, &p->lock);
    p->early += p->released > 0;
    p->tokens = tokens;
    p->at = at;
    p->n = n;
    p->asked = true;
    p->ready = false;
    p->asks++;
    p->most = n > p->most ? n : p->most;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static di_status wait_for(void *ctx, int n, const uint64_t **allowed, di_error *err)
{
    struct provider *p = ctx;
    pthread_mutex_lock(&p->lock);
    p->late += !p->ready;
    p->early += p->released > 0;
    while (!p->ready)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < n; i++)
        allowed[i] = &p->sets[i];
    return p->asks == p->fail_at ? di_fail(err, DI_ERR_INVALID, "grammar", "nothing may follow") : DI_OK;
}

static void release(void *ctx)
{
    struct provider *p = ctx;
    p->released++;
}

static void provider_open(struct provider *p, int delay_us)
{
    *p = (struct provider){.source = {start, wait_for, release, p}, .delay_us = delay_us};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    assert_int_equal(di_thread_create(&p->thread, provide, p), 0);
}

static void provider_close(struct provider *p)
{
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    assert_int_equal(p->released, 1);
    assert_int_equal(p->early, 0);
}

#define MASKED 3
#define OTHERS 3
#define ANSWER 60

/* Requests with masks between others without, on one engine. */
static void run_masked(const struct di_core_config *config, int delay_us, struct provider *p, int32_t answers[MASKED][ANSWER])
{
    struct di_watch w[MASKED + OTHERS];
    struct fixture f;
    fixture_open(&f, CONTEXT, config);
    for (int i = 0; i < MASKED + OTHERS; i++) {
        w[i] = watch(room[i], 3 + 20 * i, ANSWER, (uint32_t)i + 1);
        w[i].priority = i < MASKED; /* they give way, and start again */
        if (i < MASKED) {
            provider_open(&p[i], delay_us);
            w[i].masks = &p[i].source;
            send(&f, &w[i]);
        }
    }
    for (int i = 0; i < 12; i++)
        step(&f);
    for (int i = MASKED; i < MASKED + OTHERS; i++)
        send(&f, &w[i]);
    run(&f);
    for (int i = 0; i < MASKED; i++) {
        const int32_t *answer = w[i].tokens + w[i].n_prompt;
        assert_true(w[i].over && !w[i].twice);
        assert_int_equal(w[i].n_got, ANSWER);
        for (int k = 0; k < ANSWER; k++)
            assert_true(may_follow(answer[k - 1], answer[k]));
        memcpy(answers[i], answer, sizeof answers[i]);
    }
    for (int i = MASKED; i < MASKED + OTHERS; i++)
        right(&w[i]);
    fixture_close(&f);
}

static void test_masks(void **state)
{
    static int32_t want[MASKED][ANSWER], got[MASKED][ANSWER];
    struct provider p[MASKED];
    int late = 0;
    (void)state;
    for (int k = 0; k < 12; k++) {
        struct di_core_config config = {
            .max_batch = k % 3 ? 2 : 6, .prefill_chunk = 50, .states = 8, .drafts = k < 6 ? 0 : DI_MAX_DRAFTS, .no_reuse = k == 4};
        run_masked(&config, k % 2 ? 300 : 0, p, k ? got : want);
        if (k)
            assert_memory_equal(want, got, sizeof want);
        for (int i = 0; i < MASKED; i++) {
            assert_true(k < 6 ? p[i].most == 1 : p[i].most > 1);
            late += p[i].late;
            provider_close(&p[i]);
        }
    }
    assert_true(late > 50);
}

/* No mask, no token: the request ends with the provider's error, others go on. */
static void test_masks_that_fail(void **state)
{
    (void)state;
    for (int at = 1; at <= 9; at += 4) {
        struct di_core_config config = {.max_batch = 2, .prefill_chunk = 50, .states = 4, .drafts = at == 9 ? 3 : 0};
        struct provider p;
        struct fixture f;
        fixture_open(&f, CONTEXT, &config);
        provider_open(&p, 0);
        p.fail_at = at;
        struct di_watch w = watch(room[0], 60, 80, 1), other = watch(room[1], 8, 80, 2);
        w.masks = &p.source;
        send(&f, &w);
        send(&f, &other);
        run(&f);
        right(&other);
        assert_true(w.over && w.end == DI_REASON_ERROR);
        assert_string_equal(w.err.message, "nothing may follow");
        assert_true(config.drafts ? w.n_got >= at - 1 : w.n_got == at - 1);
        fixture_close(&f);
        provider_close(&p);
    }
}

/* Who ends in whatever way is released once, and not before the launch that asks for it is done. A refused request keeps its source. */
static void test_masks_are_released(void **state)
{
    (void)state;
    for (int after = 0; after < 8; after++) {
        struct di_core_config config = {.max_batch = 1, .prefill_chunk = 50, .states = 4};
        struct provider p[2];
        struct fixture f;
        struct di_watch w[2];
        fixture_open(&f, CONTEXT, &config);
        for (int i = 0; i < 2; i++) {
            provider_open(&p[i], 100);
            w[i] = watch(room[i], 60, 80, 1 + (uint32_t)i);
            w[i].masks = &p[i].source;
            w[i].max_tokens = CONTEXT;
            assert_int_not_equal(di_watch_submit(&w[i], f.core, NULL), DI_OK);
            assert_int_equal(p[i].released, 0);
            w[i].max_tokens = 80;
            send(&f, &w[i]);
        }
        for (int i = 0; i < after; i++)
            step(&f);
        di_core_cancel(f.core, w[0].id);
        if (after % 2)
            run(&f);
        di_core_flush(f.core, NULL);
        if (after % 2) {
            fixture_close(&f);
        } else {
            di_core_destroy(f.core);
            di_null_model_fini(&f.model);
        }
        for (int i = 0; i < 2; i++)
            provider_close(&p[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guesses),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_end_among_guesses),
        cmocka_unit_test(test_slack),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_masks_that_fail),
        cmocka_unit_test(test_masks_are_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
