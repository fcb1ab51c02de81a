#include "server/tenant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void one_tenant(void **state)
{
    struct di_tenant t = {0};
    struct di_places p = {.limit = 10};
    (void)state;
    assert_true(di_places_change(&p, &t, 0, 10));
    assert_false(di_places_change(&p, &t, 0, 1));
    assert_true(di_places_change(&p, &t, 10, 4));
    assert_false(di_places_change(&p, &t, 1, 8)); /* the one that had 1 stays as it is */
    assert_int_equal(p.used, 4);
    assert_true(di_places_change(&p, &t, 4, 0));
    assert_int_equal(p.tenants, 0);
    assert_true(di_places_change(&p, &t, 0, 128)); /* larger than all places: alone */
    assert_false(di_places_fit(&p, &t, 1));
    assert_true(di_places_change(&p, &t, 128, 0));
    assert_int_equal(p.used, 0);
}

/* Who floods fills the queue; others get their share all the same, and then it is his turn to wait. */
static void many_tenants(void **state)
{
    struct di_tenant a = {0}, b = {0}, c = {0};
    struct di_places p = {.limit = 60};
    (void)state;
    while (di_places_change(&p, &a, 0, 1))
        ;
    assert_int_equal(a.places[DI_PLACES_ANSWERS], 60);
    while (di_places_change(&p, &b, 0, 1))
        ;
    assert_int_equal(b.places[DI_PLACES_ANSWERS], 30);
    assert_true(di_places_change(&p, &c, 0, 16)); /* the first, whatever its answers */
    while (di_places_change(&p, &c, 0, 1))
        ;
    assert_int_equal(c.places[DI_PLACES_ANSWERS], 20);
    for (int i = 0; i < 41; i++) { /* he comes in again when he has less than his share, too */
        assert_false(di_places_fit(&p, &a, 1));
        assert_true(di_places_change(&p, &a, 1, 0));
    }
    assert_true(di_places_fit(&p, &a, 1));
    assert_int_equal(p.tenants, 3);
    assert_int_equal(p.used, 19 + 30 + 20);
}

/* Each kind is counted by itself, also what nobody asked for. */
static void kinds(void **state)
{
    struct di_tenant a = {0}, b = {0};
    struct di_places answers = {.limit = 10}, bytes = {.limit = 1000, .kind = DI_PLACES_HELD};
    (void)state;
    assert_true(di_places_change(&answers, &a, 0, 10));
    assert_true(di_places_change(&bytes, &a, 0, 700));
    di_places_set(&bytes, &a, 700, 1200);
    assert_false(di_places_fit(&bytes, &a, 1));
    assert_true(di_places_change(&bytes, &b, 0, 300));
    assert_true(di_places_change(&bytes, &b, 300, 500));
    assert_false(di_places_change(&bytes, &b, 0, 1));
    di_places_set(&bytes, &a, 1200, 0);
    di_places_set(&bytes, &b, 500, 0);
    assert_true(bytes.used == 0 && bytes.tenants == 0 && a.places[DI_PLACES_HELD] == 0 && a.places[DI_PLACES_ANSWERS] == 10);
}

static void turns(void **state)
{
    struct di_tenant a = {0}, b = {0};
    struct di_job jobs[8];
    struct di_turns t, other;
    (void)state;
    di_turns_init(&t, 0);
    di_turns_init(&other, 1);
    assert_null(di_turns_next(&t));
    for (int i = 0; i < 5; i++)
        di_turns_add(&t, &a, &jobs[i]);
    di_turns_add(&t, &b, &jobs[5]);
    di_turns_add(&other, &a, &jobs[7]);
    assert_ptr_equal(di_turns_next(&t), &jobs[0]);
    assert_ptr_equal(di_turns_next(&t), &jobs[5]); /* b does not wait for all of a's */
    assert_ptr_equal(di_turns_next(&t), &jobs[1]);
    di_turns_add(&t, &b, &jobs[6]);
    assert_ptr_equal(di_turns_next(&t), &jobs[2]);
    assert_ptr_equal(di_turns_next(&t), &jobs[6]);
    assert_ptr_equal(di_turns_next(&t), &jobs[3]);
    assert_ptr_equal(di_turns_next(&t), &jobs[4]);
    assert_null(di_turns_next(&t));
    assert_ptr_equal(di_turns_next(&other), &jobs[7]);
    di_turns_add(&t, &a, &jobs[0]);
    assert_ptr_equal(di_turns_next(&t), &jobs[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_tenant), cmocka_unit_test(many_tenants), cmocka_unit_test(kinds),
                                       cmocka_unit_test(turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
