/* also run on the hostile device, seeds 9 10 */
/* Who starts next: fairness between tenants, priorities in a small pool, states that nobody can keep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "testing/null_fixture.h"

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
    right(&urgent);
    for (int i = 0; i < 8; i++)
        right(&small[i]);
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
    right(&equal);
    right(&worse);
    right(&urgent);
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

/* A model during whose `at`-th step the client of request `id` goes away. */
struct leaving {
    struct fixture f;
    int64_t id;
    int at, steps, rows;
};

static void count_and_leave(void *ctx, const struct di_step *step)
{
    struct leaving *l = ctx;
    for (int k = 0; k < step->n_chunks; k++)
        l->rows += step->chunks[k].n;
    if (++l->steps == l->at)
        di_core_drop(l->f.core, l->id);
}

/* From the moment on at which somebody is known to leave, launches that are not begun compute nothing for it. What it has computed is
 * whole: who comes again goes on there. */
static void test_who_leaves_costs_no_more_rows(void **state)
{
    static int32_t room[2][CONTEXT];
    struct leaving l;
    (void)state;
    for (int at = 1; at <= 6; at++) { /* the prompt has four steps */
        l = (struct leaving){.id = 1, .at = at};
        struct di_core_config config = {.max_batch = 2, .prefill_chunk = 96, .states = 4};
        assert_int_equal(di_null_model_init(&l.f.model, FIXTURE_VOCAB, FIXTURE_WINDOW, CONTEXT, NULL), DI_OK);
        l.f.model.before = count_and_leave;
        l.f.model.before_ctx = &l;
        assert_int_equal(di_null_core(&l.f.model, &config, &l.f.core, NULL), DI_OK);
        struct di_watch w = watch(room[0], 300, 20, 1), other = watch(room[1], 5, 30, 2);
        send(&l.f, &w);
        for (int i = 0; i < 12; i++) /* the engine's thread hears of it late */
            step(&l.f);
        di_core_flush(l.f.core, NULL);
        int rows = at < 4 ? 96 * at : 300 + at - 4;
        assert_int_equal(l.rows, rows);
        assert_false(w.over);
        assert_true(di_core_cancel(l.f.core, w.id));
        ask(&l.f, &other);
        assert_true(w.over && w.end == DI_REASON_CANCELLED);
        int cached = rows < 300 ? rows : 299;
        w = watch(room[0], 300, 20, 1);
        ask(&l.f, &w);
        assert_in_range(w.cached, cached - 1, cached);
        fixture_close(&l.f);
    }
}

/* ---------------------------------------------------------------- the order, against a plain function */

/* What the order is decided by, kept the plain way. */
struct asking {
    struct crowd *crowd;
    int priority;
    uint64_t tenant;
    int64_t n_prompt, since;
    bool waits, over;
};

#define CROWD 400
#define CROWD_TENANTS 100 /* more than any small table has */

struct crowd {
    struct fixture f;
    enum di_prefill_order order;
    int chunk, n;
    int64_t service, served[CROWD_TENANTS], n_waiting[CROWD_TENANTS];
    struct asking of[CROWD];
};

static int64_t plain_rank(const struct asking *a)
{
    return a->crowd->order == DI_PREFILL_ARRIVAL ? 0 : 10 * a->n_prompt + a->since;
}

/* Has `a` to start before b, who came later? Equals may start in either order between tenants, within one the earlier goes first. */
static bool plain_before(const struct asking *a, const struct asking *b)
{
    const int64_t *served = a->crowd->served;
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->tenant != b->tenant)
        return served[a->tenant] < served[b->tenant];
    return plain_rank(a) != plain_rank(b) ? plain_rank(a) < plain_rank(b) : a < b;
}

static void check_start(void *ctx, int64_t cached)
{
    struct asking *me = ctx;
    struct crowd *c = me->crowd;
    int64_t *served = &c->served[me->tenant];
    int blocks = di_core_stats(c->f.core).free_blocks + di_kv_blocks_for(me->n_prompt + 1);
    (void)cached;
    assert_true(me->waits);
    for (int i = 0; i < c->n; i++) {
        const struct asking *other = &c->of[i];
        if (other != me && other->waits && di_kv_blocks_for(other->n_prompt + 1) <= blocks)
            assert_false(plain_before(other, me));
    }
    me->waits = false;
    c->n_waiting[me->tenant]--;
    c->service = *served > c->service ? *served : c->service;
    *served += me->n_prompt + 1;
}

static void check_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct asking *me = ctx;
    (void)end, (void)err;
    me->crowd->n_waiting[me->tenant] -= me->waits;
    me->waits = false;
    me->over = true;
}

static void crowd_submit(struct crowd *c, uint32_t random)
{
    static int32_t room[CONTEXT];
    struct asking *a = &c->of[c->n++];
    *a = (struct asking){.crowd = c,
                         .priority = random % 5 == 0 ? (int)(random / 5 % 3) - 1 : 0,
                         .tenant = random / 16 % 3 ? random / 64 % 4 : random / 64 % CROWD_TENANTS,
                         .n_prompt = 1 + random / 4096 % (random % 7 ? 60 : 900),
                         .since = (int64_t)di_core_stats(c->f.core).steps * c->chunk,
                         .waits = true};
    fill(room, (int)a->n_prompt, random);
    if (c->n_waiting[a->tenant]++ == 0 && c->served[a->tenant] < c->service)
        c->served[a->tenant] = c->service;
    struct di_request r = {.prompt = room,
                           .n_prompt = a->n_prompt,
                           .max_tokens = 1, /* so nobody gives way */
                           .sampling = di_sampling_params_default(),
                           .priority = a->priority,
                           .tenant = a->tenant,
                           .on_start = check_start,
                           .on_end = check_end,
                           .ctx = a};
    int64_t id;
    assert_int_equal(di_core_submit(c->f.core, &r, &id, NULL), DI_OK);
    assert_int_equal(id, c->n);
}

static void test_the_order_is_the_plain_one(void **state)
{
    static struct crowd c;
    (void)state;
    for (uint32_t round = 0; round < 12; round++) {
        uint32_t random = round + 1;
        c = (struct crowd){.order = round % 2 ? DI_PREFILL_ARRIVAL : DI_PREFILL_SHORTEST, .chunk = 32 << round % 3};
        struct di_core_config config = {.max_batch = 1 + (int)round % 5,
                                        .prefill_chunk = c.chunk,
                                        .cache_blocks = 16 + (int)(round % 4) * 8,
                                        .no_reuse = true,
                                        .prefill_order = c.order};
        fixture_open(&c.f, CONTEXT, &config);
        for (bool busy = true; busy || c.n < CROWD;) {
            for (int k = 0; k < 4 && c.n < CROWD; k++) {
                random = random * 1664525 + 1013904223;
                if (random >> 24 < (c.n < CROWD / 2 ? 200 : 60))
                    crowd_submit(&c, random >> 4);
            }
            if (random >> 28 == 0)
                di_core_cancel(c.f.core, 1 + (int64_t)(random >> 8) % c.n);
            busy = step(&c.f);
        }
        for (int i = 0; i < c.n; i++)
            assert_true(c.of[i].over);
        fixture_close(&c.f);
    }
}

/* ---------------------------------------------------------------- the rows of a step */

/* A short prompt has all rows of the steps from its start on, though a long one is under way; in order of arrival they take turns. */
static void test_a_short_prompt_overtakes(void **state)
{
    static int32_t room[2][CONTEXT];
    (void)state;
    for (int order = 0; order < 2; order++) {
        struct fixture f;
        open_core(&f, (struct di_core_config){.max_batch = 4, .prefill_chunk = 50, .prefill_order = (enum di_prefill_order)order});
        struct di_watch big = watch(room[0], 900, 2, 1), small = watch(room[1], 100, 2, 2);
        send(&f, &big);
        step(&f);
        step(&f);
        send(&f, &small);
        for (int i = 0; i < 3; i++)
            step(&f);
        assert_int_equal(small.n_got, order == DI_PREFILL_SHORTEST ? 1 : 0);
        run(&f);
        right(&big);
        right(&small);
        fixture_close(&f);
    }
}

/* One tenant's stream of short prompts leaves another one's long prompt its half of the rows. */
static void test_tenants_share_the_rows(void **state)
{
    static int32_t room[201][CONTEXT];
    static struct di_watch small[200];
    struct fixture f;
    int sent = 0;
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 4, .prefill_chunk = 32});
    struct di_watch big = watch(room[200], 960, 1, 1);
    big.tenant = 1;
    send(&f, &big);
    for (int steps = 0; !big.over; steps++) {
        assert_true(steps < 70); /* 30 of its own */
        for (int alive = 0; sent < 200 && alive < 3; sent += alive < 3) {
            alive = 0;
            for (int i = 0; i < sent; i++)
                alive += !small[i].over;
            if (alive < 3) {
                small[sent] = watch(room[sent], 32, 1, (uint32_t)sent + 2);
                send(&f, &small[sent]);
            }
        }
        step(&f);
    }
    assert_true(sent > 20);
    run(&f);
    fixture_close(&f);
}

/* A prompt of 65,536 tokens under an endless stream of short ones that alone would fill every step: it starts, and it ends. With one place
 * it waits for its start, with several for its rows. */
static void test_nobody_starves(void **state)
{
    enum { LONG = 65536, SHORT = 256, ALIVE = 6 };
    static int32_t room[LONG + 64], rooms[ALIVE][SHORT + 8];
    (void)state;
    for (int batch = 1; batch <= 4; batch += 3) {
        struct fixture f;
        struct di_watch big, small[ALIVE];
        uint64_t steps = 0, ended = 0;
        uint32_t seed = 1;
        fixture_open(&f, LONG + 64, &(struct di_core_config){.max_batch = batch, .prefill_chunk = SHORT, .no_reuse = true});
        for (int i = 0; i < ALIVE; i++) {
            small[i] = watch(rooms[i], SHORT, 1, ++seed);
            send(&f, &small[i]);
        }
        big = watch(room, LONG, 2, 1);
        send(&f, &big);
        while (!big.over) {
            steps = di_core_stats(f.core).steps;
            assert_true(steps < 10 * LONG / SHORT + 2 * LONG / SHORT); /* a tenth of the rows that passed by, and its own */
            for (int i = 0; i < ALIVE; i++)
                if (small[i].over) {
                    ended++;
                    small[i] = watch(rooms[i], SHORT, 1, ++seed);
                    send(&f, &small[i]);
                }
            step(&f);
        }
        assert_true(ended > steps / 2); /* the stream was one */
        assert_int_equal(big.n_got, 2);
        run(&f);
        fixture_close(&f);
    }
}

/* ---------------------------------------------------------------- a long queue */

static bool count_token(void *ctx, const struct di_sample *s)
{
    (void)s;
    ++*(int64_t *)ctx;
    return true;
}

/* With a hundred thousand waiting, a step in which nothing changes looks at a few places of the queue; one in which some end, start, come and
 * are cancelled at some hundreds. Priorities, tenants and deadlines differ. */
static void test_a_long_queue_costs_little(void **state)
{
    enum { WAITING = 100000, BATCH = 16, STEPS = 200 };
    static int32_t room[16];
    struct fixture f;
    int64_t tokens = 0, id = 0, last = 0;
    (void)state;
    fill(room, 16, 1);
    fixture_open(&f, CONTEXT, &(struct di_core_config){.max_batch = BATCH, .prefill_chunk = 256, .no_reuse = true});
    struct di_request r = {.prompt = room,
                           .n_prompt = 16,
                           .max_tokens = 500,
                           .ignore_end = true,
                           .priority = -1,
                           .sampling = di_sampling_params_default(),
                           .on_token = count_token,
                           .ctx = &tokens};
    for (int i = 0; i < BATCH + WAITING; i++) {
        if (i >= BATCH) {
            r.n_prompt = 1 + i % 16;
            r.max_tokens = 1 + i % 7;
            r.priority = i % 3;
            r.tenant = (uint64_t)(i % 200);
            r.deadline_ns = INT64_MAX - i;
        }
        assert_int_equal(di_core_submit(f.core, &r, &id, NULL), DI_OK);
    }
    last = id;
    for (int i = 0; i < 4; i++)
        step(&f);
    uint64_t before = di_core_stats(f.core).queue_visits;
    for (int i = 0; i < STEPS; i++)
        step(&f);
    uint64_t still = (di_core_stats(f.core).queue_visits - before) / STEPS;
    for (int i = 1; i <= BATCH; i++)
        di_core_cancel(f.core, i);
    step(&f);
    step(&f);
    before = di_core_stats(f.core).queue_visits;
    for (int i = 0; i < STEPS; i++) {
        assert_true(di_core_cancel(f.core, last - 10 * i));
        assert_int_equal(di_core_submit(f.core, &r, &id, NULL), DI_OK);
        step(&f);
    }
    uint64_t moving = (di_core_stats(f.core).queue_visits - before) / STEPS;
    printf("%d waiting: %d places are looked at in a step, %d when requests come and go\n", WAITING, (int)still, (int)moving);
    assert_true(di_core_stats(f.core).waiting > WAITING - STEPS * BATCH && tokens > STEPS * BATCH);
    assert_true(still < 100);
    assert_true(moving < 3000);
    for (int64_t i = 1; i <= id; i++)
        di_core_cancel(f.core, i);
    run(&f);
    fixture_close(&f);
}

/* Waiting requests share the prompt of their owner; who finds no memory when its turn comes ends as an error, and the others go on. */
static void test_no_memory_at_the_start(void **state)
{
    struct fixture f;
    static int32_t room[3][CONTEXT];
    struct di_watch w[3];
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 1, .prefill_chunk = 64});
    for (int i = 0; i < 3; i++) {
        w[i] = watch(room[i], 61, 3, (uint32_t)i + 1);
        w[i].frequency_penalty = i == 1 ? 0.5 : 0;
    }
    send(&f, &w[0]);
    for (uint64_t n = 0; n < 2; n++) { /* its tokens, then its counts */
        send(&f, &w[1]);
        send(&f, &w[2]);
        step(&f);
        assert_false(w[1].over);
        while (!w[1].over) {
            bool free = di_core_stats(f.core).running == 0;
            if (free)
                di_mem_fail_after(n);
            step(&f);
            di_mem_fail_after(UINT64_MAX);
        }
        assert_int_equal(w[1].end, DI_REASON_ERROR);
        assert_int_equal(w[1].err.code, DI_ERR_MEMORY);
        assert_int_equal(w[1].starts, 0);
        run(&f);
        if (w[2].end != DI_REASON_ERROR) /* it was next in the same step */
            right(&w[2]);
        if (n == 0)
            right(&w[0]);
        send(&f, &w[0]);
    }
    run(&f);
    fixture_close(&f);
}

/* Many more prompts begin alike than are looked at when one of them starts: those whose turn comes wait for it, too. */
static void test_a_crowd_waits_for_its_beginning(void **state)
{
    enum { MANY = 100, COMMON = 512, CHUNK = 64 };
    struct fixture f;
    static int32_t room[MANY][CONTEXT];
    static struct di_watch w[MANY];
    (void)state;
    open_core(&f, (struct di_core_config){.max_batch = 8, .prefill_chunk = CHUNK});
    for (int i = 0; i < MANY; i++) {
        fill(room[i], COMMON, 1);
        fill(room[i] + COMMON, 10, (uint32_t)i + 2);
        w[i] = watch(room[i], COMMON + 10, 2, 0);
        send(&f, &w[i]);
    }
    for (int i = 0; i < COMMON / CHUNK; i++) {
        step(&f);
        assert_int_equal(di_core_stats(f.core).running, 1);
    }
    run(&f);
    assert_true(di_core_stats(f.core).prompt_rows <= COMMON + MANY * 20); /* not that of each */
    for (int i = 0; i < MANY; i++)
        right(&w[i]);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_tenants_gather_no_credit),
        cmocka_unit_test(test_the_urgent_one_gets_its_blocks),
        cmocka_unit_test(test_no_preemption_in_vain),
        cmocka_unit_test(test_positions_to_save_without_reuse),
        cmocka_unit_test(test_who_leaves_costs_no_more_rows),
        cmocka_unit_test(test_the_order_is_the_plain_one),
        cmocka_unit_test(test_a_short_prompt_overtakes),
        cmocka_unit_test(test_tenants_share_the_rows),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_a_long_queue_costs_little),
        cmocka_unit_test(test_no_memory_at_the_start),
        cmocka_unit_test(test_a_crowd_waits_for_its_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
