/* not run under TSan: no threads */
#include "cache/hit_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct di_hit_plan plan(int64_t n, int64_t hit, int64_t resume, bool bounded)
{
    int64_t tail = bounded && n > 140 ? n - 140 : 0;
    return di_hit_plan(&(struct di_hit){.n = n, .hit = hit, .resume = resume, .window = 128, .layers = 40, .tail = tail});
}

static void released_sizes(void **state)
{
    (void)state;
    assert_int_equal(di_replay_rows(128, 40), 5081); /* spec/model.md §8.1 */
    struct di_hit_plan p = plan(6000, 5082, 0, false);
    assert_int_equal(p.how, DI_RESUME_REPLAY);
    assert_int_equal(p.start, 1);
    assert_int_equal(p.window_floor, 1);
    assert_int_equal(p.write_from, 5082);
    assert_int_equal(p.replayed, 5081);
    p = plan(6000, 5080, 0, false);
    assert_int_equal(p.how, DI_RESUME_COLD);
    assert_int_equal(p.start, 0);
    assert_int_equal(p.write_from, 5080); /* its G is shared all the same */
}

static void fewest_rows_win(void **state)
{
    (void)state;
    struct di_hit_plan p = plan(20000, 19000, 13920, false);
    assert_int_equal(p.how, DI_RESUME_STATE); /* 13,920 against 13,919 of replay */
    assert_int_equal(p.start, 13920);
    assert_int_equal(p.window_floor, 0);
    assert_int_equal(p.write_from, 19000);
    assert_int_equal(plan(20000, 19000, 13919, false).how, DI_RESUME_STATE);
    assert_int_equal(plan(20000, 19000, 13918, false).how, DI_RESUME_REPLAY);
    assert_int_equal(plan(20000, 19000, 13918, true).how, DI_RESUME_BOUNDED);
    assert_int_equal(plan(20000, 19000, 13918, true).start, 19000 - 128);
    assert_int_equal(plan(20000, 19000, 18872, true).how, DI_RESUME_STATE);
    assert_int_equal(plan(100, 99, 99, false).how, DI_RESUME_STATE);
    assert_int_equal(plan(200, 128, 0, true).how, DI_RESUME_COLD); /* spec/model.md §8.1 step 1 */
    p = plan(100, 98, 99, false);                                  /* an odd end: the last half group is in the snapshot's raw rows */
    assert_int_equal(p.write_from, 99);
    assert_int_equal(p.replayed, 0);
}

/* The tail (spec/model.md §8.3) is computed whole, by replayed rows if the suffix is short; what begins behind it has no tail. */
static void the_tail_is_computed(void **state)
{
    (void)state;
    struct di_hit_plan p = plan(20000, 19998, 0, true);
    assert_int_equal(p.how, DI_RESUME_BOUNDED);
    assert_int_equal(p.start, 20000 - 140);
    assert_int_equal(p.window_floor, 20000 - 140);
    assert_int_equal(p.tail, 20000 - 140);
    assert_int_equal(p.write_from, 19998);
    p = plan(20000, 19900, 0, true);
    assert_int_equal(p.start, 19900 - 128);
    assert_int_equal(p.tail, 20000 - 140);
    p = plan(20000, 19998, 19999, true);
    assert_int_equal(p.how, DI_RESUME_STATE);
    assert_int_equal(p.tail, 0);
    p = plan(20000, 19860, 19860, true);
    assert_int_equal(p.how, DI_RESUME_STATE);
    assert_int_equal(p.tail, 19860);
    assert_int_equal(plan(20000, 0, 0, true).tail, 19860);
    assert_int_equal(plan(20000, 0, 0, false).tail, 0);
    p = plan(140, 139, 0, true); /* no longer than the tail: exact */
    assert_int_equal(p.how, DI_RESUME_COLD);
    assert_int_equal(p.tail, 0);
}

/* Rows that are right after replay from `start`, by the dependencies of the network: a layer's output at p is right if its inputs at p -
 * window + 1 .. p are. Says whether all rings are right in the window before `hit`. */
static bool rings_right(int window, int layers, int64_t hit, int64_t start)
{
    bool right[200];
    for (int64_t p = 0; p < hit; p++)
        right[p] = p >= start;
    for (int l = 0; l < layers; l++) {
        for (int64_t p = hit - (window - 1); p < hit; p++)
            if (p < 0 || !right[p])
                return false;
        for (int64_t p = hit - 1; p >= 0; p--)
            for (int64_t q = p - window + 1; q < p; q++)
                right[p] = right[p] && (q < 0 || right[q]);
    }
    return true;
}

static void replay_makes_every_ring_right(void **state)
{
    (void)state;
    for (int window = 2; window <= 9; window++)
        for (int layers = 1; layers <= 5; layers++) {
            int64_t rows = di_replay_rows(window, layers), hit = rows + 20;
            assert_true(rings_right(window, layers, hit, hit - rows));
            assert_false(rings_right(window, layers, hit, hit - rows + 2)); /* the specification's figure has one row to spare */
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_sizes),
        cmocka_unit_test(fewest_rows_win),
        cmocka_unit_test(the_tail_is_computed),
        cmocka_unit_test(replay_makes_every_ring_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
