/* Figures of spec/deepinfer.md §15 that concern scheduling, each a test of its number. Those about drafts, images, masks and experts come with
 * these parts. */
#include "engine/null_model.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define VOCAB 60
#define CONTEXT 1024
#define MOST_STEPS 5000

static struct di_null_model model;

static int set_up(void **state)
{
    (void)state;
    return di_null_model_init(&model, VOCAB, 20, CONTEXT, NULL) == DI_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    di_null_model_fini(&model);
    return 0;
}

static struct di_core *open_core(int batch, int chunk, int blocks)
{
    struct di_core_config config = {.max_batch = batch, .prefill_chunk = chunk, .cache_blocks = blocks, .states = 4};
    struct di_core *e;
    assert_int_equal(di_null_core(&model, NULL, NULL, &config, &e, NULL), DI_OK);
    return e;
}

static void close_core(struct di_core *e)
{
    assert_int_equal(di_core_flush(e, NULL), DI_OK);
    const char *left = di_null_left(e, &model);
    if (left)
        fail_msg("%s", left);
    di_core_destroy(e);
}

/* A request with room for its tokens. Ends by length only. */
static void make(struct di_watch *w, int32_t *room, int n_prompt, int max_tokens, uint32_t seed)
{
    *w = (struct di_watch){.tokens = room, .n_prompt = n_prompt, .max_tokens = max_tokens, .ignore_end = true};
    for (int i = 0; i < n_prompt; i++) {
        seed = seed * 1664525 + 1013904223;
        room[i] = (int32_t)(8 + (seed >> 16) % (VOCAB - 8));
    }
}

static void send(struct di_core *e, struct di_watch *w)
{
    di_error err = {0};
    if (di_watch_submit(w, e, &err) != DI_OK)
        fail_msg("%s", err.message);
}

static bool step(struct di_core *e)
{
    bool busy;
    assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    return busy;
}

static int run(struct di_core *e)
{
    int steps = 1;
    while (step(e) && steps < MOST_STEPS)
        steps++;
    assert_true(steps < MOST_STEPS);
    return steps;
}

static void right(const struct di_watch *w)
{
    const char *wrong = di_watch_wrong(w, &model);
    if (wrong)
        fail_msg("prompt of %d tokens, %d reused, %d sampled: %s", w->n_prompt, (int)w->cached, w->n_got, wrong);
}

/* Prompt rows in the very next step: of an engine that never worked, that stood idle for many steps, that decodes for another one. */
static void figure_15_1_prefill_in_the_next_step(void **state)
{
    struct di_core *e = open_core(4, 64, 40);
    static int32_t room[3][CONTEXT];
    struct di_watch w[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        make(&w[i], room[i], 20, 30, (uint32_t)i + 1);
        uint64_t before = di_core_stats(e).prompt_rows;
        send(e, &w[i]);
        step(e);
        assert_int_equal(di_core_stats(e).prompt_rows, before + 20);
        if (i == 0) {
            run(e);
            for (int k = 0; k < 100; k++)
                assert_false(step(e));
        } else {
            step(e);
            step(e);
            assert_true(w[i].n_got > 0 && !w[i].over);
        }
    }
    run(e);
    for (int i = 0; i < 3; i++)
        right(&w[i]);
    close_core(e);
}

/* Every slot and every block can be used after what happened. */
static void whole_again(struct di_core *e, int batch, int blocks)
{
    static int32_t room[8][CONTEXT];
    struct di_watch w[8], all;
    for (int i = 0; i < batch; i++) {
        make(&w[i], room[i], 10, 3, 1000 + (uint32_t)i);
        send(e, &w[i]);
    }
    step(e);
    assert_int_equal(di_core_stats(e).running, batch);
    run(e);
    for (int i = 0; i < batch; i++)
        right(&w[i]);
    make(&all, room[0], blocks * 64 - 2, 2, 77);
    send(e, &all);
    run(e);
    right(&all);
}

/* Abort after any number of steps: queued behind another, in the prompt, decoding, finishing, preempted. Where it hits is the sum over k. */
static void abort_after(int k, bool behind, bool preempted, int *states_met)
{
    struct di_core *e = open_core(preempted || behind ? 1 : 3, 16, 8);
    static int32_t room[3][CONTEXT];
    struct di_watch w, before, urgent;
    make(&w, room[0], 70, 12, 5);
    make(&before, room[1], 40, 4, 6);
    make(&urgent, room[2], 30, 4, 7);
    w.priority = 5;
    urgent.priority = preempted ? 0 : 5;
    if (behind)
        send(e, &before);
    send(e, &w);
    for (int i = 0; i < k; i++) {
        if (i == 8)
            send(e, &urgent);
        step(e);
    }
    bool known = di_core_cancel(e, w.id);
    assert_int_equal(known, !w.over);
    states_met[0] += known && w.starts == 0;
    states_met[1] += known && w.starts > 0 && w.n_got == 0;
    states_met[2] += known && w.n_got > 0 && w.n_got < w.max_tokens;
    states_met[3] += !known;
    run(e);
    assert_true(w.over && (!known || w.end == DI_END_CANCELLED));
    right(&w);
    whole_again(e, preempted || behind ? 1 : 3, 8);
    close_core(e);
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

/* A pool for two and three sequences: nobody gives way, nobody who started stands still. A lone one that needs the whole pool simply runs. */
static void figure_15_3_no_preemption_without_need(void **state)
{
    struct di_core *e = open_core(4, 64, 6);
    static int32_t room[4][CONTEXT];
    struct di_watch w[3], lone;
    (void)state;
    for (int i = 0; i < 3; i++) {
        make(&w[i], room[i], 60, 130, (uint32_t)i + 10); /* 3 blocks */
        send(e, &w[i]);
    }
    for (int steps = 0; !w[0].over || !w[1].over; steps++) {
        int got[2] = {w[0].n_got, w[1].n_got};
        step(e);
        for (int i = 0; i < 2 && steps > 2; i++)
            assert_true(w[i].over || w[i].n_got == got[i] + 1);
        assert_true(steps < 140);
    }
    run(e);
    make(&lone, room[3], 6 * 64 - 270, 270, 20);
    send(e, &lone);
    assert_true(run(e) < 280);
    assert_int_equal(di_core_stats(e).preempted, 0);
    for (int i = 0; i < 3; i++)
        right(&w[i]);
    right(&lone);
    close_core(e);
}

/* And where somebody has to give way: an urgent one comes whenever a victim was started again and has nothing yet. Each start yields a token at
 * least (di_watch_wrong looks at stood_still). */
static void figure_15_3_a_victim_makes_progress_first(void **state)
{
    struct di_core *e = open_core(2, 16, 12);
    static int32_t room[60][CONTEXT];
    static struct di_watch victim[2], urgent[58];
    int sent = 0, starts = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        make(&victim[i], room[i], 100, 60, (uint32_t)i + 30);
        victim[i].priority = 9;
        send(e, &victim[i]);
    }
    for (int i = 0; i < MOST_STEPS && step(e); i++)
        for (; starts < victim[0].starts + victim[1].starts && sent < 58; starts++) {
            make(&urgent[sent], room[2 + sent], 20, 1 + sent % 3, (uint32_t)sent + 50);
            send(e, &urgent[sent++]);
        }
    for (int i = 0; i < 2; i++)
        right(&victim[i]);
    for (int i = 0; i < sent; i++)
        right(&urgent[i]);
    assert_true(starts > 12);
    assert_true(di_core_stats(e).preempted >= (uint64_t)starts - 2); /* the last token may be on its way when somebody gives way */
    close_core(e);
}

/* One that does not fit now does not hold up those behind it, and is not passed over for ever. (Images that are not ready do not exist yet.) */
static void figure_15_5_others_overtake(void **state)
{
    struct di_core *e = open_core(3, 64, 8);
    static int32_t room[302][CONTEXT];
    static struct di_watch small[300], first, big;
    int sent = 0;
    (void)state;
    make(&first, room[300], 100, 60, 1);
    send(e, &first);
    step(e);
    make(&big, room[301], 480, 30, 2);
    send(e, &big);
    for (; !big.over && sent < 300; sent++) {
        make(&small[sent], room[sent], 30, 3, (uint32_t)sent + 3);
        send(e, &small[sent]);
        step(e);
        if (sent == 10) /* while the first still runs */
            assert_true(!first.over && small[0].over && big.starts == 0);
    }
    assert_true(big.over);
    run(e);
    right(&first);
    right(&big);
    for (int i = 0; i < sent; i++)
        right(&small[i]);
    close_core(e);
}

/* An id that does not exist is an error that names its place, and nothing is queued. */
static void figure_15_6_invalid_id_is_an_error_with_position(void **state)
{
    static const struct {
        int at;
        int32_t id;
    } cases[] = {{0, VOCAB}, {17, -1}, {99, INT32_MAX}, {50, INT32_MIN}};
    struct di_core *e = open_core(2, 64, 8);
    static int32_t room[CONTEXT];
    struct di_watch w;
    (void)state;
    for (int i = 0; i < 4; i++) {
        di_error err = {0};
        char where[32];
        make(&w, room, 100, 4, 1);
        room[cases[i].at] = cases[i].id;
        assert_int_equal(di_watch_submit(&w, e, &err), DI_ERR_INVALID);
        snprintf(where, sizeof where, "position %d ", cases[i].at);
        assert_non_null(strstr(err.message, where));
        assert_int_equal(di_core_stats(e).waiting, 0);
        assert_false(w.over); /* the caller has the error; no callback besides */
    }
    make(&w, room, 100, 4, 1);
    send(e, &w);
    run(e);
    right(&w);
    close_core(e);
}

/* Work of the engine's thread at 16 and 256 requests with a model that costs nothing; the figure is 100 us, here only a bound that no noise
 * of a shared machine reaches (bench/results has the measurement). */
static void figure_15_7_work_of_the_engines_thread(void **state)
{
    static int32_t room[256][CONTEXT];
    static struct di_watch w[256];
    (void)state;
    for (int batch = 16; batch <= 256; batch *= 16) {
        struct di_core *e = open_core(batch, 256, 0);
        uint64_t best = UINT64_MAX;
        for (int i = 0; i < batch; i++) {
            make(&w[i], room[i], 3, 400, (uint32_t)i);
            send(e, &w[i]);
        }
        for (int i = 0; i < 20; i++)
            step(e);
        for (int part = 0; part < 8; part++) {
            uint64_t before = di_core_stats(e).host_ns;
            for (int i = 0; i < 20; i++)
                step(e);
            uint64_t ns = (di_core_stats(e).host_ns - before) / 20;
            best = ns < best ? ns : best;
        }
        printf("%d requests: %.1f us a step\n", batch, (double)best / 1e3);
#ifndef DI_TEST_QUICK
        assert_true(best < 1000 * 1000);
#endif
        for (int i = 0; i < batch; i++)
            di_core_cancel(e, w[i].id);
        run(e);
        close_core(e);
    }
}

/* The same request alone, then with others of better priority that take its place whenever it gained `every` tokens. */
static void preempted_like_alone(struct di_watch *w, int every, int least)
{
    static int32_t room[40][CONTEXT];
    static struct di_watch urgent[40];
    int32_t alone[CONTEXT];
    int n, sent = 0;
    struct di_core *e = open_core(1, 32, 12);
    send(e, w);
    run(e);
    n = w->n_got;
    memcpy(alone, w->tokens + w->n_prompt, (size_t)n * sizeof *alone);
    send(e, w);
    for (int i = 0; i < MOST_STEPS && step(e); i++)
        if (w->progress == every && sent < 40 && (sent == 0 || urgent[sent - 1].over)) {
            make(&urgent[sent], room[sent], 65, 2, (uint32_t)(sent + every));
            urgent[sent].priority = -1;
            send(e, &urgent[sent++]);
        }
    assert_true(w->over && w->starts > least && !w->stood_still);
    assert_int_equal(w->n_got, n);
    assert_memory_equal(alone, w->tokens + w->n_prompt, (size_t)n * sizeof *alone);
    close_core(e);
}

/* Hot sampling: every token is a draw. (Draft settings come with drafts.) */
static void figure_15_10_same_seed_same_text_under_preemption(void **state)
{
    static int32_t room[CONTEXT], first[40];
    struct di_watch w;
    (void)state;
    for (int64_t seed = 1; seed < 6; seed++) {
        make(&w, room, 50, 40, 3);
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
        make(&w, room, 3, 60, 4);
        w.frequency_penalty = penalty;
        preempted_like_alone(&w, 5, 3);
        if (penalty == 0) {
            right(&w);
            memcpy(plain, room + 3, sizeof plain);
        }
    }
    assert_memory_not_equal(plain, room + 3, sizeof plain);
}

/* A computation that waits until it is let go, 5 seconds at most. */
struct gate {
    _Atomic int begun, open;
    _Atomic bool tired;
};

static di_status gated_compute(void *ctx, const struct di_step *s, di_error *err)
{
    struct gate *g = ctx;
    int number = ++g->begun;
    for (int ms = 0; g->open < number && !g->tired; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (ms > 5000)
            g->tired = true;
    }
    return di_null_compute(&model, s, err);
}

/* Chunk n + 1 of a prompt is scheduled while chunk n computes: the call that launches a prompt step returns before the step is done. */
static void figure_15_15_prefill_steps_overlap(void **state)
{
    struct di_core_config config = {.max_batch = 2, .prefill_chunk = 16, .cache_blocks = 8, .states = 4};
    static int32_t room[CONTEXT];
    struct gate gate = {0};
    struct di_core *e;
    struct di_watch w;
    (void)state;
    assert_int_equal(di_null_core(&model, gated_compute, &gate, &config, &e, NULL), DI_OK);
    make(&w, room, 160, 10, 1);
    send(e, &w);
    for (int n = 1; n <= 10; n++) { /* returns with launch n held, n - 1 done */
        gate.open = n - 1;
        step(e);
        assert_false(gate.tired);
        assert_int_equal(di_core_stats(e).prompt_rows, 16 * n);
        assert_int_equal(w.n_got, 0);
    }
    gate.open = INT32_MAX;
    run(e);
    right(&w);
    close_core(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figure_15_1_prefill_in_the_next_step),
        cmocka_unit_test(figure_15_2_abort_in_every_state),
        cmocka_unit_test(figure_15_3_no_preemption_without_need),
        cmocka_unit_test(figure_15_3_a_victim_makes_progress_first),
        cmocka_unit_test(figure_15_5_others_overtake),
        cmocka_unit_test(figure_15_6_invalid_id_is_an_error_with_position),
        cmocka_unit_test(figure_15_7_work_of_the_engines_thread),
        cmocka_unit_test(figure_15_10_same_seed_same_text_under_preemption),
        cmocka_unit_test(figure_15_13_a_preempted_request_resumes),
        cmocka_unit_test(figure_15_15_prefill_steps_overlap),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
