/* not run under TSan: no threads */
/* Accounting of drafts, test A7 of spec/dspark.md §11. */
#include "engine/draft_counts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed = 1;
static uint32_t rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

static void count(struct di_draft_counts *c, int drafted, int accepted)
{
    di_draft_counts_step(c, drafted);
    for (int k = 0; k < accepted; k++)
        di_draft_counts_accept(c, k);
}

/* Random traces: every ratio from the tokens that were emitted. */
static void A7_identities(void **state)
{
    (void)state;
    for (int trace = 0; trace < 200; trace++) {
        struct di_draft_counts c = {0};
        uint64_t steps = rnd() % 50, rows = 0, tokens = 0, places = 0;
        for (uint64_t i = 0; i < steps; i++) {
            int drafted = (int)(rnd() % (DI_MAX_DRAFTS + 1)), accepted = (int)(rnd() % (unsigned)(drafted + 1));
            count(&c, drafted, accepted);
            rows += 1 + (uint64_t)drafted;
            tokens += 1 + (uint64_t)accepted;
        }
        struct di_draft_rates r = di_draft_rates_of(&c);
        for (int k = 0; k < DI_MAX_DRAFTS; k++) {
            assert_true(c.accepted_at[k] <= c.drafted_at[k] && near(r.accepted_at[k] * (double)c.drafted_at[k], (double)c.accepted_at[k]));
            assert_true(k == 0 || (c.accepted_at[k] <= c.accepted_at[k - 1] && c.drafted_at[k] <= c.drafted_at[k - 1]));
            places += c.accepted_at[k];
        }
        assert_int_equal(places, c.accepted);
        assert_int_equal(rows, c.drafted + c.steps);
        assert_int_equal(tokens, c.accepted + c.steps);
        assert_true(near(r.tau, 1 + r.accept_rate * r.mean_verified));
        assert_true(steps == 0 ? r.tau == 1 && r.verify_rate == 0 : near(r.tau * (double)steps, (double)tokens));
        assert_true(near(r.verify_rate * (double)rows, (double)tokens));
    }
}

/* Three drafts a step, of which 75 % are accepted: 3.25 tokens. */
static void A7_three_drafts(void **state)
{
    (void)state;
    struct di_draft_counts c = {0};
    static const int accepted[] = {3, 3, 3, 0};
    for (int i = 0; i < 4; i++)
        count(&c, 3, accepted[i]);
    struct di_draft_rates r = di_draft_rates_of(&c);
    assert_true(near(r.accept_rate, 0.75) && near(r.tau, 3.25) && near(r.mean_verified, 3));
    assert_true(near(r.verify_rate, 13.0 / 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(A7_identities), cmocka_unit_test(A7_three_drafts)};
    return cmocka_run_group_tests_name("draft counts", tests, NULL, NULL);
}
