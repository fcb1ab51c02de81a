/* also run on the hostile device, seed 11 */
/* Answers are the same, bit for bit, however many drafts a step verifies (spec/dspark.md §11, E1 and E2): the trained model, whose drafts
 * come true, and a random one, whose drafts do not. */
#define DI_ON_DEVICE /* reads what was computed */
#include "engine/core.h"
#include "testing/device.h"
#include "testing/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define REQUESTS 10
#define ANSWER 40

struct answer {
    struct di_sample sample[ANSWER];
    struct di_request_facts facts;
    int n;
    di_end_reason end;
};

static bool take_token(void *ctx, const struct di_sample *s)
{
    struct answer *a = ctx;
    a->sample[a->n++] = *s;
    return true;
}

static void take_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct answer *a = ctx;
    (void)err;
    a->end = end;
}

static struct di_model *open_model(const char *config, struct di_golden *g)
{
    char vectors[256], model[256];
    di_error err = {0};
    struct di_model *m;
    bool nano = strcmp(config, "nano_text") == 0;
    snprintf(vectors, sizeof vectors, DI_SOURCE_DIR "/tests/data/vectors/%s", config);
    snprintf(model, sizeof model, DI_SOURCE_DIR "/models/nano");
    if (di_golden_open(nano ? model : vectors, vectors, g, &err) != DI_OK)
        fail_msg("%s: %s (%s)", config, err.message, err.where);
    const struct di_tensor *map = di_golden_field(g, NULL, "engram_token_map");
    struct di_model_params p = {.backend = di_test_backend,
                                .max_rows = 150,
                                .max_context = 400,
                                .threads = 1,
                                .drafts = true,
                                .token_map = map ? (const int32_t *)(const void *)map->data : NULL};
    assert_true(di_numerics_by_name("bf16", &p.numerics));
    if (di_model_open(g->dir, &p, &m, &err) != DI_OK)
        fail_msg("%s (%s)", err.message, err.where);
    return m;
}

/* Request r of a mixture: greedy and drawn, with reports, penalties (which have no drafts), ends, forced tokens, bounded replay, beginnings
 * that are cached. */
static void submit(struct di_core *e, const struct di_golden *g, int r, bool bounded, struct answer *a)
{
    static const int lengths[REQUESTS] = {1, 2, 64, 65, 130, 200, 300, 200, 31, 270};
    const int32_t forced[] = {-1, g->ids[3], -1, -1, g->ids[5], g->ids[6], -1};
    const int32_t end_ids[] = {g->ids[17], g->ids[40]};
    struct di_request q = {.prompt = g->ids + (r % 3 == 2 ? 20 : 0),
                           .n_prompt = lengths[r],
                           .max_tokens = ANSWER - r,
                           .sampling = di_sampling_params_default(),
                           .priority = r % 2,
                           .on_token = take_token,
                           .on_end = take_end,
                           .facts = &a->facts,
                           .ctx = a};
    q.sampling.temperature = r % 2 ? 1.0 : 0.0;
    q.sampling.top_p = r % 4 == 3 ? 0.9 : 1;
    q.sampling.seed = 100 + r;
    q.sampling.logprobs = true;
    q.sampling.top_logprobs = r % 3;
    q.sampling.repetition_penalty = r == 4 ? 1.2 : 1;
    if (r == 5 || r == 8) {
        q.sampling.end_ids = end_ids;
        q.sampling.n_end_ids = 2;
        q.sampling.min_tokens = 3;
    }
    if (r == 2) {
        q.forced = forced;
        q.n_forced = sizeof forced / sizeof *forced;
    }
    if (r == 6 && bounded)
        q.replay = DI_REPLAY_BOUNDED;
    *a = (struct answer){0};
    assert_int_equal(di_core_submit(e, &q, NULL, NULL), DI_OK);
}

struct setup {
    int drafts, batch, chunk, blocks, states;
};

/* All of them, some while others run. */
static struct di_core_stats run(struct di_model *m, const struct di_golden *g, const struct setup *u, struct answer *answers)
{
    struct di_core *e;
    di_error err = {0};
    bool busy = true, bounded = di_replay_rollback(m->c) > 0;
    struct di_core_config config = {.max_batch = u->batch,
                                    .prefill_chunk = u->chunk,
                                    .context = 400,
                                    .cache_blocks = u->blocks,
                                    .states = u->states,
                                    .no_reuse = u->states == 0,
                                    .drafts = u->drafts};
    if (di_core_create(m, &config, &e, &err) != DI_OK)
        fail_msg("%s (%s)", err.message, err.where);
    for (int r = 0; busy || r < REQUESTS;) {
        for (int k = 0; k < 2 && r < REQUESTS; k++, r++)
            submit(e, g, r, bounded, &answers[r]);
        if (di_core_step(e, &busy, &err) != DI_OK)
            fail_msg("%s (%s)", err.message, err.where);
    }
    struct di_core_stats s = di_core_stats(e);
    assert_int_equal(s.free_blocks, s.blocks);
    assert_null(di_core_check_accounts(e));
    di_core_destroy(e);
    return s;
}

static bool same_sample(const struct di_sample *a, const struct di_sample *b)
{
    bool same = a->id == b->id && memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 && a->n_top == b->n_top;
    for (size_t i = 0; same && i < a->n_top; i++)
        same = a->top[i].id == b->top[i].id && memcmp(&a->top[i].logprob, &b->top[i].logprob, sizeof(float)) == 0;
    return same;
}

static void compare(const struct answer *want, const struct answer *got, const char *what, const struct setup *u)
{
    for (int r = 0; r < REQUESTS; r++) {
        if (want[r].n != got[r].n || want[r].end != got[r].end)
            fail_msg("%s, %d drafts: request %d has %d tokens, not %d", what, u->drafts, r, got[r].n, want[r].n);
        for (int i = 0; i < want[r].n; i++)
            if (!same_sample(&want[r].sample[i], &got[r].sample[i]))
                fail_msg("%s, %d drafts: token %d of request %d is %d, not %d", what, u->drafts, i, r, got[r].sample[i].id,
                         want[r].sample[i].id);
        const struct di_draft_counts *c = &got[r].facts.drafts;
        assert_true(c->accepted <= c->drafted && c->drafted <= (uint64_t)u->drafts * c->steps);
        assert_true(r != 4 || c->drafted == 0);
    }
}

static void check_model(const char *config, size_t first, double least, double most)
{
    static const struct setup plain = {0, 4, 64, 0, 0};
    static const struct setup setups[] = {{1, 4, 64, 0, 0},  {2, 3, 17, 0, 6}, {3, 10, 100, 0, 0},
                                          {4, 2, 64, 11, 4}, {5, 1, 7, 0, 0},  {5, 4, 64, 16, 8}};
    struct di_golden g;
    struct di_model *m = open_model(config, &g);
    static struct answer want[REQUESTS], got[REQUESTS];
    struct di_core_stats s = run(m, &g, &plain, want);
    assert_true(s.drafts.drafted == 0 && s.drafts.steps > 0);
    for (size_t i = DI_TEST_SHORT ? 4 + first : first; i < sizeof setups / sizeof *setups; i += 2) {
        s = run(m, &g, &setups[i], got);
        struct di_draft_rates r = di_draft_rates_of(&s.drafts);
        printf("%s, %d drafts, %d at a time: tau %.2f, %.0f %% of %llu accepted (%.2f %.2f %.2f %.2f %.2f), %llu steps, %llu preempted\n",
               config, setups[i].drafts, setups[i].batch, r.tau, 100 * r.accept_rate, (unsigned long long)s.drafts.drafted,
               r.accepted_at[0], r.accepted_at[1], r.accepted_at[2], r.accepted_at[3], r.accepted_at[4], (unsigned long long)s.steps,
               (unsigned long long)s.preempted);
        compare(want, got, config, &setups[i]);
        assert_true(setups[i].drafts < 5 || (r.tau >= least && r.tau <= most));
    }
    di_model_close(m);
    di_golden_close(&g);
}

static void test_E1_E2_drafts_come_true(void **state)
{
    (void)state;
    check_model("nano_text", 1, 1.5, 6);
}

static void test_E1_E2_drafts_do_not(void **state)
{
    (void)state;
    check_model("tiny_a", 0, 1, 1.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_E1_E2_drafts_come_true), cmocka_unit_test(test_E1_E2_drafts_do_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
