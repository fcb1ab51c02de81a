/* Who starts next: fairness between tenants, priorities in a small pool, states that nobody can keep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/null_fixture.h"

#define CONTEXT 1024

static void open_core(struct fixture *f, struct di_core_config config)
{
    config.states = 4;
    fixture_open(f, CONTEXT, &config);
}

/* A tenant that asked for nothing while another one worked takes turns with it afterwards: it has no right to all that it did not use. */
static void test_idle_tenants_gather_no_credit(void **state)
{
    struct fixture f;
    static int32_t room[40][CONTEXT];
    struct di_watch w[40];
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 1, .prefill_chunk = 64});
    for (int i = 0; i < 21; i++) {
        w[i] = watch(room[i], 60, 3, (uint32_t)i + 1);
        w[i].tenant = i == 0 ? 2 : 1;
        send(&f, &w[i]);
    }
    run(&f);
    for (int i = 0; i < 20; i++) {
        w[i] = watch(room[i], 60, 3, (uint32_t)i + 100);
        w[i].tenant = i < 10 ? 2 : 1;
        send(&f, &w[i]);
    }
    while (!w[9].over) {
        int done[2] = {0};
        step(&f);
        for (int i = 0; i < 20; i++)
            done[i / 10] += w[i].over;
        assert_in_range(done[0] - done[1] + 2, 0, 4);
    }
    run(&f);
    fixture_close(&f);
}

/* Of many small requests as many give way as an urgent large one needs, once, and none of them starts again before it. */
static void test_the_urgent_one_gets_its_blocks(void **state)
{
    struct fixture f;
    static int32_t room[9][CONTEXT];
    struct di_watch small[8], urgent;
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 8, .prefill_chunk = 256, .cache_blocks = 8});
    for (int i = 0; i < 8; i++) {
        small[i] = watch(room[i], 10, 50, (uint32_t)i + 1);
        small[i].priority = 5;
        send(&f, &small[i]);
    }
    for (int i = 0; i < 5; i++)
        step(&f);
    urgent = watch(room[8], 300, 20, 99); /* 5 blocks */
    send(&f, &urgent);
    for (int steps = 0; urgent.starts == 0; steps++) {
        assert_true(steps < 20);
        step(&f);
    }
    assert_in_range(di_core_stats(f.core).preempted, 5, 6);
    run(&f);
    right(&f, &urgent);
    for (int i = 0; i < 8; i++)
        right(&f, &small[i]);
    fixture_close(&f);
}

/* Nobody gives way for one that would not fit even then. */
static void test_no_preemption_in_vain(void **state)
{
    struct fixture f;
    static int32_t room[4][CONTEXT];
    struct di_watch equal, worse, urgent;
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 4, .prefill_chunk = 256, .cache_blocks = 8});
    equal = watch(room[0], 200, 100, 1); /* 5 blocks */
    worse = watch(room[1], 10, 50, 2);
    urgent = watch(room[2], 300, 20, 3);
    worse.priority = 5;
    send(&f, &equal);
    send(&f, &worse);
    for (int i = 0; i < 5; i++)
        step(&f);
    send(&f, &urgent);
    run(&f);
    assert_int_equal(di_core_stats(f.core).preempted, 0);
    right(&f, &equal);
    right(&f, &worse);
    right(&f, &urgent);
    fixture_close(&f);
}

/* Without reuse nothing is kept, and nothing pauses for it. */
static void test_positions_to_save_without_reuse(void **state)
{
    struct fixture f;
    static int32_t room[CONTEXT];
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 1, .prefill_chunk = 64, .no_reuse = true});
    struct di_watch w = watch(room, 150, 3, 1);
    w.save_at[0] = 1;
    w.save_at[1] = 49;
    w.n_save_at = 2;
    ask(&f, &w);
    fixture_close(&f);
}

/* A model during whose `at`-th step the client of request `name` goes away. */
struct leaving {
    struct fixture f;
    uint64_t name;
    int at, steps, rows;
};

static di_status compute_and_leave(void *ctx, const struct di_step *step, di_error *err)
{
    struct leaving *l = ctx;
    for (int k = 0; k < step->n_chunks; k++)
        l->rows += step->chunks[k].n;
    if (++l->steps == l->at)
        di_core_drop(l->f.core, l->name);
    return di_null_compute(&l->f.model, step, err);
}

/* From the moment on at which somebody is known to leave, launches that are not begun compute nothing for it. What it has computed is
 * whole: who comes again goes on there. */
static void test_who_leaves_costs_no_more_rows(void **state)
{
    static int32_t room[2][CONTEXT];
    struct leaving l;
    (void)state;
    for (int at = 1; at <= 6; at++) { /* the prompt has four steps */
        l = (struct leaving){.name = 7, .at = at};
        struct di_core_config config = {.max_batch = 2, .prefill_chunk = 96, .states = 4};
        assert_int_equal(di_null_model_init(&l.f.model, FIXTURE_VOCAB, FIXTURE_WINDOW, CONTEXT, NULL), DI_OK);
        assert_int_equal(di_null_core(&l.f.model, compute_and_leave, &l, &config, &l.f.core, NULL), DI_OK);
        struct di_watch w = watch(room[0], 300, 20, 1), other = watch(room[1], 5, 30, 2);
        w.name = 7;
        send(&l.f, &w);
        for (int i = 0; i < 12; i++) /* the engine's thread hears of it late */
            step(&l.f);
        di_core_flush(l.f.core, NULL);
        int rows = at < 4 ? 96 * at : 300 + at - 4;
        assert_int_equal(l.rows, rows);
        assert_false(w.over);
        assert_true(di_core_cancel(l.f.core, w.id));
        ask(&l.f, &other);
        assert_true(w.over && w.end == DI_END_CANCELLED);
        int cached = rows < 300 ? rows : 299;
        w = watch(room[0], 300, 20, 1);
        ask(&l.f, &w);
        assert_in_range(w.cached, cached - 1, cached);
        fixture_close(&l.f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_tenants_gather_no_credit), cmocka_unit_test(test_the_urgent_one_gets_its_blocks),
        cmocka_unit_test(test_no_preemption_in_vain),         cmocka_unit_test(test_positions_to_save_without_reuse),
        cmocka_unit_test(test_who_leaves_costs_no_more_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
