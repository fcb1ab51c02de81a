/* Ordered sets against a sorted array. */
#include "base/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MOST 300

struct thing {
    struct di_order_node at;
    int64_t major, minor;
    int32_t size;
};

static uint64_t rng_state;
static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* The plain form: an array in order. */
struct plain {
    struct thing *v[MOST];
    int n;
};

static bool before(int64_t a_major, int64_t a_minor, const struct thing *b)
{
    return a_major != b->major ? a_major < b->major : a_minor < b->minor;
}

static void plain_add(struct plain *p, struct thing *t)
{
    int i = p->n++;
    for (; i > 0 && before(t->major, t->minor, p->v[i - 1]); i--)
        p->v[i] = p->v[i - 1];
    p->v[i] = t;
}

static void plain_remove(struct plain *p, const struct thing *t)
{
    int i = 0;
    while (p->v[i] != t)
        i++;
    for (p->n--; i < p->n; i++)
        p->v[i] = p->v[i + 1];
}

static void compare(struct di_order *o, const struct plain *p)
{
    int64_t major = rng(12), minor = rng(6);
    int32_t most = (int32_t)rng(40), least = INT32_MAX;
    const struct thing *from = NULL, *within = NULL, *t = di_order_first(o);
    assert_int_equal(o->n, p->n);
    for (int i = 0; i < p->n; i++) {
        assert_ptr_equal(t, p->v[i]);
        t = di_order_next(o, &t->at);
        from = !from && !before(p->v[i]->major, p->v[i]->minor, &(struct thing){.major = major, .minor = minor}) ? p->v[i] : from;
        within = !within && p->v[i]->size <= most ? p->v[i] : within;
        least = p->v[i]->size < least ? p->v[i]->size : least;
    }
    assert_null(t);
    assert_ptr_equal(di_order_from(o, major, minor), from);
    assert_ptr_equal(di_order_within(o, most), within);
    assert_int_equal(di_order_least(o), least);
    const char *wrong = di_order_check(o, NULL, NULL);
    if (wrong)
        fail_msg("%s", wrong);
}

static void test_like_a_sorted_array(void **state)
{
    static struct thing things[MOST];
    (void)state;
    for (uint32_t round = 1; round <= 20; round++) {
        struct di_order o = {0};
        struct plain p = {.n = 0};
        rng_state = round;
        for (int i = 0; i < 1500; i++) {
            struct thing *t = &things[rng(MOST / (1 + round % 3))];
            if (!t->at.in) {
                t->major = rng(12);
                t->minor = rng(6);
                t->size = (int32_t)rng(40);
                di_order_add(&o, &t->at, t, t->major, t->minor, t->size);
                plain_add(&p, t);
            } else if (rng(3) == 0) {
                t->size = (int32_t)rng(40);
                di_order_resize(&o, &t->at, t->size);
            } else {
                di_order_remove(&o, &t->at);
                di_order_remove(&o, &t->at);
                plain_remove(&p, t);
            }
            if (i % 7 == 0)
                compare(&o, &p);
        }
        while (p.n)
            di_order_remove(&o, &p.v[--p.n]->at);
        compare(&o, &p);
    }
}

/* Rising, falling, equal keys: an operation looks at some tens of a hundred thousand nodes. */
static void test_logarithmic(void **state)
{
    enum { N = 100000 };
    static struct thing things[N];
    (void)state;
    for (int shape = 0; shape < 3; shape++) {
        struct di_order o = {0};
        memset(things, 0, sizeof things);
        for (int64_t i = 0; i < N; i++)
            di_order_add(&o, &things[i].at, &things[i], shape == 0 ? i : shape == 1 ? -i : 0, 0, 1 + (int32_t)(i % 100));
        assert_true(o.visited < 80 * (uint64_t)N);
        o.visited = 0;
        for (int64_t i = 0; i < 1000; i++) {
            assert_non_null(di_order_from(&o, -N, 0));
            assert_non_null(di_order_within(&o, 1));
            assert_null(di_order_within(&o, 0));
            di_order_resize(&o, &things[i * 99].at, 7);
            di_order_remove(&o, &things[i * 99].at);
        }
        assert_true(o.visited < 200 * UINT64_C(1000));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_like_a_sorted_array), cmocka_unit_test(test_logarithmic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
