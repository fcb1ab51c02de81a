/* also run on the hostile device, seed 13 */
/* Figures 15-1 to 15-17 of docs/reports.md that concern scheduling, each a test of its number. Those about drafts, images, masks and
 * experts come with these parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "testing/null_fixture.h"

#define CONTEXT 1024

static void open_core(struct fixture *f, int batch, int chunk, int blocks)
{
    struct di_core_config config = {.max_batch = batch, .prefill_chunk = chunk, .cache_blocks = blocks, .states = 4};
    fixture_open(f, CONTEXT, &config);
}

/* Prompt rows in the very next step: of an engine that never worked, that stood idle for many steps, that decodes for another one. */
static void figure_15_1_prefill_in_the_next_step(void **state)
{
    struct fixture f;
    static int32_t room[3][CONTEXT];
    struct di_watch w[3];
    (void)state;
    open_core(&f, 4, 64, 40);
    for (int i = 0; i < 3; i++) {
        w[i] = watch(room[i], 20, 30, (uint32_t)i + 1);
        uint64_t before = di_core_stats(f.core).prompt_rows;
        send(&f, &w[i]);
        step(&f);
        assert_int_equal(di_core_stats(f.core).prompt_rows, before + 20);
        if (i == 0) {
            run(&f);
            for (int k = 0; k < 100; k++)
                assert_false(step(&f));
        } else {
            step(&f);
            step(&f);
            assert_true(w[i].n_got > 0 && !w[i].over);
        }
    }
    run(&f);
    for (int i = 0; i < 3; i++)
        right(&w[i]);
    fixture_close(&f);
}

/* Every slot and every block can be used after what happened. */
static void whole_again(struct fixture *f, int batch, int blocks)
{
    static int32_t room[8][CONTEXT];
    struct di_watch w[8], all;
    for (int i = 0; i < batch; i++) {
        w[i] = watch(room[i], 10, 3, 1000 + (uint32_t)i);
        send(f, &w[i]);
    }
    step(f);
    assert_int_equal(di_core_stats(f->core).running, batch);
    run(f);
    for (int i = 0; i < batch; i++)
        right(&w[i]);
    all = watch(room[0], blocks * 64 - 2, 2, 77);
    send(f, &all);
    run(f);
    right(&all);
}

/* Abort after any number of steps: queued behind another, in the prompt, decoding, finishing, preempted. Where it hits is the sum over k.
 * */
static void abort_after(int k, bool behind, bool preempted, int *states_met)
{
    struct fixture f;
    static int32_t room[3][CONTEXT];
    struct di_watch w, before, urgent;
    open_core(&f, preempted || behind ? 1 : 3, 16, 8);
    w = watch(room[0], 70, 12, 5);
    before = watch(room[1], 40, 4, 6);
    urgent = watch(room[2], 30, 4, 7);
    w.priority = 5;
    urgent.priority = preempted ? 0 : 5;
    if (behind)
        send(&f, &before);
    send(&f, &w);
    for (int i = 0; i < k; i++) {
        if (i == 8)
            send(&f, &urgent);
        step(&f);
    }
    bool known = di_core_cancel(f.core, w.id);
    assert_int_equal(known, !w.over);
    states_met[0] += known && w.starts == 0;
    states_met[1] += known && w.starts > 0 && w.n_got == 0;
    states_met[2] += known && w.n_got > 0 && w.n_got < w.max_tokens;
    states_met[3] += !known;
    run(&f);
    assert_true(w.over && (!known || w.end == DI_REASON_CANCELLED));
    right(&w);
    assert_null(di_null_left(f.core, &f.model)); /* before others use the same places */
    whole_again(&f, preempted || behind ? 1 : 3, 8);
    fixture_close(&f);
}

static void figure_15_2_abort_in_every_state(void **state)
{
    int met[4] = {0};
    (void)state;
    for (int k = 0; k < 40; k++)
        for (int kind = 0; kind < 3; kind++)
            abort_after(k, kind == 1, kind == 2, met);
    for (int i = 0; i < 4; i++)
        assert_true(met[i] > 3);
}

/* A pool for two and three sequences: nobody gives way, nobody who started stands still. A lone one that needs the whole pool simply runs.
 * */
static void figure_15_3_no_preemption_without_need(void **state)
{
    struct fixture f;
    static int32_t room[4][CONTEXT];
    struct di_watch w[3], lone;
    (void)state;
    open_core(&f, 4, 64, 6);
    for (int i = 0; i < 3; i++) {
        w[i] = watch(room[i], 60, 130, (uint32_t)i + 10); /* 3 blocks */
        send(&f, &w[i]);
    }
    for (int steps = 0; !w[0].over || !w[1].over; steps++) {
        int got[2] = {w[0].n_got, w[1].n_got};
        step(&f);
        for (int i = 0; i < 2 && steps > 2; i++)
            assert_true(w[i].over || w[i].n_got == got[i] + 1);
        assert_true(steps < 140);
    }
    run(&f);
    lone = watch(room[3], 6 * 64 - 270, 270, 20);
    send(&f, &lone);
    assert_true(run(&f) < 280);
    assert_int_equal(di_core_stats(f.core).preempted, 0);
    for (int i = 0; i < 3; i++)
        right(&w[i]);
    right(&lone);
    fixture_close(&f);
}

/* And where somebody has to give way: an urgent one comes whenever a victim was started again and has nothing yet. Each start yields a
 * token at least (di_watch_wrong looks at stood_still). */
static void figure_15_3_a_victim_makes_progress_first(void **state)
{
    struct fixture f;
    static int32_t room[60][CONTEXT];
    static struct di_watch victim[2], urgent[58];
    int sent = 0, starts = 0;
    (void)state;
    open_core(&f, 2, 16, 12);
    for (int i = 0; i < 2; i++) {
        victim[i] = watch(room[i], 100, 60, (uint32_t)i + 30);
        victim[i].priority = 9;
        send(&f, &victim[i]);
    }
    for (int i = 0; i < MOST_STEPS && step(&f); i++)
        for (; starts < victim[0].starts + victim[1].starts && sent < 58; starts++) {
            urgent[sent] = watch(room[2 + sent], 20, 1 + sent % 3, (uint32_t)sent + 50);
            send(&f, &urgent[sent++]);
        }
    for (int i = 0; i < 2; i++)
        right(&victim[i]);
    for (int i = 0; i < sent; i++)
        right(&urgent[i]);
    assert_true(starts > 12);
    assert_true(di_core_stats(f.core).preempted >= (uint64_t)starts - 2); /* the last token may be on its way when somebody gives way */
    fixture_close(&f);
}

/* One that does not fit now does not hold up those behind it, and is not passed over for ever. (Images that are not ready do not exist
 * yet.) */
static void figure_15_5_others_overtake(void **state)
{
    struct fixture f;
    static int32_t room[302][CONTEXT];
    static struct di_watch small[300], first, big;
    int sent = 0;
    (void)state;
    open_core(&f, 8, 64, 16);
    first = watch(room[300], 100, 60, 1);
    send(&f, &first);
    step(&f);
    big = watch(room[301], 960, 30, 2);
    send(&f, &big);
    for (; !big.over && sent < 300; sent++) {
        small[sent] = watch(room[sent], 30, 3 + sent % 4, (uint32_t)sent + 3);
        send(&f, &small[sent]);
        step(&f);
        if (sent == 10) /* while the first still runs */
            assert_true(!first.over && small[0].over && big.starts == 0);
    }
    assert_true(big.over);
    run(&f);
    right(&first);
    right(&big);
    for (int i = 0; i < sent; i++)
        right(&small[i]);
    fixture_close(&f);
}

/* In order of arrival prompts take turns at the rows of a step: a long one does not hold up a short one, whichever slot it has, nor does a
 * stream of short ones it. (Shortest first: core_admission_test.c.) */
static void figure_15_5_prompts_take_turns(void **state)
{
    struct fixture f;
    static int32_t room[202][CONTEXT];
    static struct di_watch small[200], big;
    (void)state;
    for (int late = 0; late < 2; late++) {
        int sent = 0, at_once = 0;
        fixture_open(&f, CONTEXT,
                     &(struct di_core_config){.max_batch = 3, .prefill_chunk = 16, .states = 4, .prefill_order = DI_PREFILL_ARRIVAL});
        for (; sent < 2 * late; sent++) { /* these take the slots before the long one */
            small[sent] = watch(room[sent], 32, 1, (uint32_t)sent + 3);
            send(&f, &small[sent]);
        }
        big = watch(room[201], 640, 1, 2); /* 40 steps of its own */
        send(&f, &big);
        for (int steps = 0; !big.over; steps++) {
            assert_true(steps < 40 * 3 + 10);
            while (sent < 200 && at_once < 2) {
                small[sent] = watch(room[sent], 32, 1, (uint32_t)sent + 3);
                send(&f, &small[sent++]);
                at_once++;
            }
            step(&f);
            at_once = 0;
            for (int i = 0; i < sent; i++)
                at_once += !small[i].over;
        }
        assert_true(sent > 20); /* they had their share */
        run(&f);
        right(&big);
        for (int i = 0; i < sent; i++)
            right(&small[i]);
        fixture_close(&f);
    }
}

/* An id that does not exist is an error that names its place, and nothing is queued. */
static void figure_15_6_invalid_id_is_an_error_with_position(void **state)
{
    static const struct {
        int at;
        int32_t id;
    } cases[] = {{0, FIXTURE_VOCAB}, {17, -1}, {99, INT32_MAX}, {50, INT32_MIN}};
    struct fixture f;
    static int32_t room[CONTEXT];
    struct di_watch w;
    (void)state;
    open_core(&f, 2, 64, 8);
    for (int i = 0; i < 4; i++) {
        di_error err = {0};
        char where[32];
        w = watch(room, 100, 4, 1);
        room[cases[i].at] = cases[i].id;
        assert_int_equal(di_watch_submit(&w, f.core, &err), DI_ERR_INVALID);
        snprintf(where, sizeof where, "position %d ", cases[i].at);
        assert_non_null(strstr(err.message, where));
        assert_int_equal(di_core_stats(f.core).waiting, 0);
        assert_false(w.over); /* the caller has the error; no callback besides */
    }
    w = watch(room, 100, 4, 1);
    send(&f, &w);
    run(&f);
    right(&w);
    fixture_close(&f);
}

/* Work of the engine's thread at 16 and 256 requests with a model that costs nothing; the figure is 100 us, here only a bound that no noise
 * of a shared machine reaches (bench/results has the measurement). */
static void figure_15_7_work_of_the_engines_thread(void **state)
{
    static int32_t room[256][CONTEXT];
    static struct di_watch w[256];
    (void)state;
    for (int batch = 16; batch <= 256; batch *= 16) {
        struct fixture f;
        uint64_t best = UINT64_MAX;
        open_core(&f, batch, 256, 0);
        for (int i = 0; i < batch; i++) {
            w[i] = watch(room[i], 3, 400, (uint32_t)i + 1);
            send(&f, &w[i]);
        }
        for (int i = 0; i < 20; i++)
            step(&f);
        for (int part = 0; part < 8; part++) {
            uint64_t before = di_core_stats(f.core).host_ns;
            for (int i = 0; i < 20; i++)
                step(&f);
            uint64_t ns = (di_core_stats(f.core).host_ns - before) / 20;
            best = ns < best ? ns : best;
        }
        printf("%d requests: %.1f us a step\n", batch, (double)best / 1e3);
#ifndef DI_TEST_QUICK
        assert_true(best < 1000 * 1000);
#endif
        for (int i = 0; i < batch; i++)
            di_core_cancel(f.core, w[i].id);
        run(&f);
        fixture_close(&f);
    }
}

/* The same request alone, then with others of better priority that take its place whenever it gained `every` tokens. */
static void preempted_like_alone(struct di_watch *w, int every, int least)
{
    static int32_t room[40][CONTEXT];
    static struct di_watch urgent[40];
    int32_t alone[CONTEXT];
    int n, sent = 0;
    struct fixture f;
    open_core(&f, 1, 32, 12);
    send(&f, w);
    run(&f);
    n = w->n_got;
    memcpy(alone, w->tokens + w->n_prompt, (size_t)n * sizeof *alone);
    send(&f, w);
    for (int i = 0; i < MOST_STEPS && step(&f); i++)
        if (w->progress == every && sent < 40 && (sent == 0 || urgent[sent - 1].over)) {
            urgent[sent] = watch(room[sent], 65, 2, (uint32_t)(sent + every));
            urgent[sent].priority = -1;
            send(&f, &urgent[sent++]);
        }
    assert_true(w->over && w->starts > least && !w->stood_still);
    assert_int_equal(w->n_got, n);
    assert_memory_equal(alone, w->tokens + w->n_prompt, (size_t)n * sizeof *alone);
    fixture_close(&f);
}

/* Hot sampling: every token is a draw. (Draft settings come with drafts.) */
static void figure_15_10_same_seed_same_text_under_preemption(void **state)
{
    static int32_t room[CONTEXT], first[40];
    struct di_watch w;
    (void)state;
    for (int64_t seed = 1; seed < 6; seed++) {
        w = watch(room, 50, 40, 3);
        w.temperature = 2;
        w.seed = seed;
        preempted_like_alone(&w, 2 + (int)seed, 2);
        if (seed == 1)
            memcpy(first, room + 50, sizeof first);
        else
            assert_memory_not_equal(first, room + 50, sizeof first); /* the seed does matter */
    }
}

/* What a request has gathered while it ran, here the counts of its penalties, is there again when it goes on. (Grammars come with
 * structured outputs.) */
static void figure_15_13_a_preempted_request_resumes(void **state)
{
    static int32_t room[CONTEXT], plain[60];
    struct di_watch w;
    (void)state;
    for (int penalty = 0; penalty <= 2; penalty += 2) {
        w = watch(room, 3, 60, 4);
        w.frequency_penalty = penalty;
        preempted_like_alone(&w, 5, 3);
        if (penalty == 0)
            memcpy(plain, room + 3, sizeof plain);
    }
    assert_memory_not_equal(plain, room + 3, sizeof plain);
}

/* A computation that waits until it is let go, 5 seconds at most. */
struct gate {
    _Atomic int begun, open;
    _Atomic bool tired;
};

static void wait_at_gate(void *ctx, const struct di_step *s)
{
    struct gate *g = ctx;
    (void)s;
    int number = ++g->begun;
    for (int ms = 0; g->open < number && !g->tired; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (ms > 5000)
            g->tired = true;
    }
}

/* Chunk n + 1 of a prompt is scheduled while chunk n computes: the call that launches a prompt step returns before the step is done. */
static void figure_15_15_prefill_steps_overlap(void **state)
{
    struct di_core_config config = {.max_batch = 2, .prefill_chunk = 16, .cache_blocks = 8, .states = 4};
    static int32_t room[CONTEXT];
    struct fixture f;
    struct gate gate = {0};
    struct di_watch w;
    (void)state;
    assert_int_equal(di_null_model_init(&f.model, FIXTURE_VOCAB, FIXTURE_WINDOW, CONTEXT, NULL), DI_OK);
    f.model.before = wait_at_gate;
    f.model.before_ctx = &gate;
    assert_int_equal(di_null_core(&f.model, &config, &f.core, NULL), DI_OK);
    w = watch(room, 160, 10, 1);
    send(&f, &w);
    for (int n = 1; n <= 10; n++) { /* returns with launch n held, n - 1 done */
        gate.open = n - 1;
        step(&f);
        assert_false(gate.tired);
        assert_int_equal(di_core_stats(f.core).prompt_rows, 16 * n);
        assert_int_equal(w.n_got, 0);
    }
    gate.open = INT32_MAX;
    run(&f);
    right(&w);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figure_15_1_prefill_in_the_next_step),
        cmocka_unit_test(figure_15_2_abort_in_every_state),
        cmocka_unit_test(figure_15_3_no_preemption_without_need),
        cmocka_unit_test(figure_15_3_a_victim_makes_progress_first),
        cmocka_unit_test(figure_15_5_others_overtake),
        cmocka_unit_test(figure_15_5_prompts_take_turns),
        cmocka_unit_test(figure_15_6_invalid_id_is_an_error_with_position),
        cmocka_unit_test(figure_15_7_work_of_the_engines_thread),
        cmocka_unit_test(figure_15_10_same_seed_same_text_under_preemption),
        cmocka_unit_test(figure_15_13_a_preempted_request_resumes),
        cmocka_unit_test(figure_15_15_prefill_steps_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
