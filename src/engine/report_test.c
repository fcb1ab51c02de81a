/* also run on the hostile device, seed 12 */
/* Failures that were reported of other engines, each a test of its number (docs/reports.md), on the null model: its tokens come from the
 * cached state alone, so that a wrong row changes them. What needs a trained model is in report_bits_test.c and tests/test_reports.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "testing/null_fixture.h"
#include "cache/hit_plan.h"

#define CONTEXT 1024
#define REPLAY ((int)di_replay_rows(FIXTURE_WINDOW, DI_NULL_LAYERS)) /* rows */

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static void open_core(struct fixture *f, int batch, int chunk, int blocks, int states)
{
    struct di_core_config config = {.max_batch = batch, .prefill_chunk = chunk, .cache_blocks = blocks, .states = states};
    fixture_open(f, CONTEXT, &config);
}

/* ---------------------------------------------------------------- conversations */

/* A conversation: its text so far, whose turn is asked in `w`. Every one begins with its own marker. */
struct talk {
    int32_t text[CONTEXT];
    int n, turns;
    struct di_watch w;
};

static void talk_begin(struct talk *t, uint32_t marker)
{
    t->turns = 0;
    t->n = 40 + (int)(marker % 90);
    fill(t->text, t->n, marker);
}

static void talk_ask(struct fixture *f, struct talk *t, int max_tokens)
{
    t->w = watch(t->text, t->n, max_tokens, 0);
    t->w.ignore_end = false;
    send(f, &t->w);
}

/* The answer belongs to the text now, but for its first `hidden` tokens; something new is said. */
static void talk_go_on(struct talk *t, int hidden, int said)
{
    if (hidden > t->w.n_got)
        hidden = t->w.n_got;
    memmove(t->text + t->n, t->text + t->n + hidden, (size_t)(t->w.n_got - hidden) * sizeof *t->text);
    t->n += t->w.n_got - hidden;
    fill(t->text + t->n, said, (uint32_t)(t->n * 131 + t->text[0] * 17 + ++t->turns));
    t->n += said;
}

/* Many conversations in a pool and snapshots that hold a few: what is restored is always of the same conversation. */
static void report_51_restored_state_is_of_the_same_conversation(void **state)
{
    struct fixture f;
    static struct talk t[12];
    (void)state;
    open_core(&f, 3, 48, 24, 5);
    rng_state = 51;
    for (uint32_t i = 0; i < 12; i++)
        talk_begin(&t[i], i + 1);
    for (int round = 0; round < 250; round++) {
        struct talk *now[3];
        for (int k = 0; k < 3; k++) {
            do
                now[k] = &t[rng() % (round % 2 ? 4 : 12)]; /* some come back soon */
            while ((k > 0 && now[k] == now[0]) || (k > 1 && now[k] == now[1]));
            if (now[k]->n > 400)
                talk_begin(now[k], rng());
            talk_ask(&f, now[k], 12);
        }
        run(&f);
        for (int k = 0; k < 3; k++) {
            right(&now[k]->w);
            talk_go_on(now[k], 0, 1 + (int)(rng() % 40));
        }
    }
    struct di_core_stats s = di_core_stats(f.core);
    assert_true(s.states_restored > 100);
    assert_true(s.evicted > 500);
    fixture_close(&f);
}

/* A donor is given up after any number of steps of its prompt; one that shares a part of it is not touched by what was left half done, and
 * what was done completely serves it. (Prompts with images do not exist yet.) */
static void report_54_nothing_of_an_aborted_prompt_leaks(void **state)
{
    static int32_t donor_room[CONTEXT], victim_room[CONTEXT];
    int served = 0;
    (void)state;
    for (int shared = 30; shared <= 330; shared += 60)
        for (int steps = 1; steps < 24; steps++) {
            struct fixture f;
            open_core(&f, 2, 16, 20, steps % 3);
            struct di_watch donor = watch(donor_room, 320, 8, 1), victim = watch(victim_room, 320, 8, 2);
            memcpy(victim_room, donor_room, (size_t)(shared < 320 ? shared : 320) * sizeof *victim_room);
            send(&f, &donor);
            for (int i = 0; i < steps; i++)
                step(&f);
            di_core_cancel(f.core, donor.id);
            if (steps % 2)
                run(&f); /* else the victim starts while the donor leaves */
            ask(&f, &victim);
            right(&donor);
            int common = 16 * (steps - 2) < shared ? 16 * (steps - 2) : shared; /* the last step or two were under way */
            int hit = common / 64 * 64 - REPLAY;
            assert_true(victim.cached <= shared);
            if (steps % 2)
                assert_true(victim.cached >= hit);
            served += victim.cached > 0;
            fixture_close(&f);
        }
    assert_true(served > 30);
}

/* Texts that agree in the first half of a block only (what a source of ratio 2 keeps of it is as long as half a block): the rest is never
 * shared. The keys themselves: block_key_test.c. */
static void report_55_second_half_of_a_block_counts(void **state)
{
    struct fixture f;
    static int32_t a_room[CONTEXT], b_room[CONTEXT];
    (void)state;
    open_core(&f, 1, 64, 40, 4);
    for (int at = 64; at < 192; at++) {
        struct di_watch a = watch(a_room, 230, 6, (uint32_t)at), b;
        ask(&f, &a);
        memcpy(b_room, a_room, 230 * sizeof *b_room);
        b_room[at] = b_room[at] == 8 ? 9 : 8;
        b = watch(b_room, 230, 6, 0);
        ask(&f, &b);
        assert_true(b.cached <= at);
        assert_true(b.cached >= at / 64 * 64 - REPLAY);
    }
    fixture_close(&f);
}

/* Full batches for a long time: the last one finds as much room as the first. soak_test.c is the long form. */
static void report_59_steady_batches_lose_no_slot_and_no_block(void **state)
{
    static int32_t room[8][CONTEXT];
    struct fixture f;
    (void)state;
    open_core(&f, 8, 64, 8 * 4, 6);
    rng_state = 59;
    for (int round = 0; round < 300; round++) {
        struct di_watch w[8];
        for (int i = 0; i < 8; i++) {
            /* those of one round begin differently: nobody waits for another's beginning */
            w[i] = watch(room[i], 1 + (int)(rng() % 200), 1 + (int)(rng() % 56), rng() % 25 * 8 + (uint32_t)i + 1);
            w[i].stop_after = (int)(rng() % 40);
            send(&f, &w[i]);
        }
        step(&f);
        assert_int_equal(di_core_stats(f.core).running, 8);
        assert_int_equal(di_core_stats(f.core).waiting, 0);
        run(&f);
        for (int i = 0; i < 8; i++)
            right(&w[i]);
        const char *left = di_null_left(f.core, &f.model);
        if (left)
            fail_msg("round %d: %s", round, left);
    }
    fixture_close(&f);
}

/* ---------------------------------------------------------------- what is found again */

/* An append-only journal: every turn finds all that the turn before has computed, and what is said to be found is not computed again. */
static void report_77_reuse_grows_with_an_append_only_text(void **state)
{
    struct fixture f;
    static struct talk t;
    int before = 0;
    (void)state;
    open_core(&f, 1, 64, 20, 2);
    talk_begin(&t, 77);
    for (int turn = 0; turn < 40; turn++) {
        uint64_t rows = di_core_stats(f.core).prompt_rows;
        talk_ask(&f, &t, 9);
        run(&f);
        right(&t.w);
        assert_int_equal(t.w.cached, before);
        assert_int_equal(di_core_stats(f.core).prompt_rows - rows, t.n - before);
        before = t.n + t.w.n_got - 1; /* the last token was never computed */
        talk_go_on(&t, 0, 7);
    }
    fixture_close(&f);
}

/* A prefix that all share is found by all but the first; where nothing can be found, the counters say how often and why. */
static void report_78_no_silent_zero(void **state)
{
    static int32_t room[CONTEXT];
    struct fixture f;
    struct di_core_stats s;
    (void)state;
    open_core(&f, 2, 64, 60, 8);
    for (uint32_t i = 0; i < 10; i++) {
        struct di_watch w = watch(room, 400, 4, i + 1);
        fill(room, 320, 99);
        ask(&f, &w);
        if (i > 0)
            assert_true(w.cached >= 320 - REPLAY);
    }
    s = di_core_stats(f.core);
    assert_int_equal(s.lookups, 10);
    assert_int_equal(s.lookup_tokens, 4000);
    assert_int_equal(s.miss[DI_MISS_REASON_NEVER_SEEN], 1);
    assert_int_equal(s.miss[DI_MISS_REASON_DIVERGED], 9);
    for (uint32_t i = 0; i < 10; i++) { /* a tenant each: the alarm */
        struct di_watch w = watch(room, 400, 4, i + 1);
        fill(room, 320, 99);
        w.tenant = i + 1;
        ask(&f, &w);
        assert_int_equal(w.cached, 0);
    }
    assert_int_equal(di_core_stats(f.core).cached_tokens, s.cached_tokens);
    assert_int_equal(di_core_stats(f.core).miss[DI_MISS_REASON_NEVER_SEEN], 11);
    fixture_close(&f);
}

/* An agent's loop with two snapshots: whether the next turn repeats the reasoning or leaves it out, the snapshot that serves it is there;
 * the end id stands once in the text. Drafts do not exist yet. */
static void report_81_final_state_does_not_evict_the_useful_one(void **state)
{
    (void)state;
    for (int hidden = 0; hidden <= 8; hidden += 8) {
        struct fixture f;
        static struct talk t;
        int useful = 0;
        open_core(&f, 1, 64, 20, 2);
        talk_begin(&t, 81);
        for (int turn = 0; turn < 25; turn++) {
            talk_ask(&f, &t, 20);
            run(&f);
            right(&t.w);
            assert_true(t.w.cached >= useful);
            useful = hidden ? t.n : t.n + t.w.n_got - 1;
            talk_go_on(&t, hidden, 11);
        }
        fixture_close(&f);
    }
}

/* The next turn comes the moment the last token is heard, while a launch that names the old one may be under way: it finds the answer too,
 * whether an end id, the length or a callback ended it. (Ids as they were sampled; what another rendering does to them:
 * tests/test_reports.py.) */
static void report_83_a_follow_up_at_once_finds_the_answer(void **state)
{
    struct fixture f;
    static struct talk t;
    int before = 0, ends[2] = {0};
    (void)state;
    open_core(&f, 2, 64, 20, 4);
    talk_begin(&t, 83);
    for (int turn = 0; turn < 45; turn++) {
        t.w = watch(t.text, t.n, 12, 0);
        t.w.ignore_end = false;
        t.w.stop_after = turn % 3 == 1 ? 5 : 0;
        send(&f, &t.w);
        for (int i = 0; i < 200 && !t.w.over; i++)
            step(&f);
        right(&t.w);
        assert_int_equal(t.w.cached, before);
        ends[t.w.end == DI_REASON_STOP]++;
        before = t.n + t.w.n_got - 1;
        talk_go_on(&t, 0, 5);
    }
    assert_true(ends[0] > 5 && ends[1] > 5);
    run(&f);
    fixture_close(&f);
}

/* Two sessions of 50 blocks that grow in turns, or both at a time. */
static void two_sessions(int blocks, bool together)
{
    static int32_t room[2][4096];
    struct di_core_config config = {.max_batch = 2, .prefill_chunk = 512, .cache_blocks = blocks, .states = 4};
    struct fixture f;
    int before[2] = {0, 0}, n[2] = {3200, 3200};
    fixture_open(&f, 4096, &config);
    fill(room[0], 3200, 1);
    fill(room[1], 3200, 2);
    for (int turn = 0; turn < 12; turn++) {
        struct di_watch w[2];
        for (int s = 0; s < 2; s++) {
            w[s] = watch(room[s], n[s], 6, 0);
            send(&f, &w[s]);
            if (!together)
                run(&f);
        }
        run(&f);
        for (int s = 0; s < 2; s++) {
            right(&w[s]);
            assert_int_equal(w[s].cached, before[s]);
            before[s] = n[s] + w[s].n_got - 1;
            fill(room[s] + n[s] + w[s].n_got, 14, (uint32_t)(turn * 2 + s + 10));
            n[s] += w[s].n_got + 14;
        }
    }
    assert_int_equal(di_core_stats(f.core).evicted, 0);
    fixture_close(&f);
}

/* The index alone: prefix_test.c. */
static void report_86_two_sessions_that_fit_lose_nothing(void **state)
{
    (void)state;
    two_sessions(2 * 54 + 1, false); /* a running one holds its copy of a block and the one it copies from */
    two_sessions(2 * 54 + 2, true);
}

static void report_A2_interleaved_sessions_in_a_big_pool(void **state)
{
    (void)state;
    two_sessions(880, false);
    two_sessions(880, true);
}

/* Two prompts of 50 blocks, sent again in turns: from the second time on all but the last token is found. */
static void report_A1_alternating_prompts_hit_whole(void **state)
{
    static int32_t room[3210];
    struct di_core_config config = {.max_batch = 2, .prefill_chunk = 512, .cache_blocks = 832, .states = 4};
    struct fixture f;
    (void)state;
    fixture_open(&f, 4096, &config);
    for (int turn = 0; turn < 12; turn++)
        for (uint32_t s = 1; s <= 2; s++) {
            struct di_watch w = watch(room, 3200, 4, s);
            ask(&f, &w);
            assert_int_equal(w.cached, turn ? 3199 : 0);
        }
    fixture_close(&f);
}

/* ---------------------------------------------------------------- right at every hit */

/* The first time in slot 0; then that slot is somebody else's for the whole time. With snapshots and with replay. */
static void report_A3_a_repeat_in_another_slot(void **state)
{
    static int32_t room[2][CONTEXT];
    (void)state;
    for (int states = 0; states <= 4; states += 4)
        for (int n = 50; n < 300; n += 13) {
            struct fixture f;
            open_core(&f, 2, 64, 40, states);
            struct di_watch w = watch(room[0], n, 10, (uint32_t)n), other = watch(room[1], 30, 300, 7);
            ask(&f, &w);
            int32_t cold[10];
            memcpy(cold, room[0] + n, sizeof cold);
            send(&f, &other);
            for (int i = 0; i < 160; i++) /* its rings went round */
                step(&f);
            send(&f, &w);
            while (!w.over)
                step(&f);
            assert_false(other.over);
            assert_memory_equal(cold, room[0] + n, sizeof cold);
            int full = (n + 9) / 64 * 64, found = full < n - 1 ? full : n - 1; /* without states only full blocks are kept */
            assert_int_equal(w.cached, states ? n - 1 : found / 2 * 2 > REPLAY ? found / 2 * 2 - REPLAY : 0);
            right(&w);
            run(&f);
            right(&other);
            fixture_close(&f);
        }
}

/* 200 prompts, their answers cold, repeated, and after the cache was turned over: the same tokens, so the same lengths. Of the tiers only
 * memory exists yet; the same with a real network: report_bits_test.c. */
static void report_A4_answers_keep_their_length(void **state)
{
    static int32_t room[CONTEXT], answer[200][40];
    static int length[200];
    struct fixture f;
    uint64_t reused = 0;
    (void)state;
    open_core(&f, 1, 64, 30, 6);
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < 200; i++) {
            int which = pass == 1 ? i / 4 * 4 + i * 7 % 4 : i; /* while it is still there; after it was evicted */
            struct di_watch w = watch(room, 60 + which, 40, (uint32_t)which + 1);
            w.ignore_end = false;
            ask(&f, &w);
            if (pass == 0 && i % 4 == 3)
                ask(&f, &w);
            reused += (uint64_t)w.cached;
            if (pass == 0) {
                length[i] = w.n_got;
                memcpy(answer[i], room + w.n_prompt, sizeof answer[i]);
            }
            assert_int_equal(w.n_got, length[which]);
            assert_memory_equal(answer[which], room + w.n_prompt, (size_t)w.n_got * sizeof *room);
        }
    assert_true(reused > 2000);
    assert_true(di_core_stats(f.core).evicted > 500);
    fixture_close(&f);
}

/* Short prompts and long ones: a repetition finds all but the last token (the index alone: prefix_test.c). */
static void report_A5_prompts_of_65_to_4096_tokens(void **state)
{
    static int32_t room[4100];
    struct di_core_config config = {.max_batch = 1, .prefill_chunk = 512, .cache_blocks = 200, .states = 4};
    struct fixture f;
    (void)state;
    fixture_open(&f, 4100, &config);
    for (int n = 65; n <= 4096; n = n < 300 ? n + 1 : n == 4096 ? 4097 : n + 173 > 4096 ? 4096 : n + 173) {
        struct di_watch w = watch(room, n, 2, (uint32_t)n);
        ask(&f, &w);
        assert_int_equal(w.cached, 0);
        ask(&f, &w);
        assert_int_equal(w.cached, n - 1);
    }
    fixture_close(&f);
}

/* Where a text can be resumed is where something was kept of it: for every length that a later prompt shares, it starts at the best of the
 * states at the end of the prompt and of the answer and of what replay gives. Speculation is off: it does not exist yet. */
static void written_is_readable(int n, int max_tokens, int states)
{
    static int32_t room[CONTEXT], probe_room[CONTEXT];
    for (int shared = 1; shared < n + max_tokens; shared++) {
        struct fixture f;
        open_core(&f, 1, 64, 20, states);
        struct di_watch w = watch(room, n, max_tokens, (uint32_t)(n + max_tokens)), probe = watch(probe_room, shared + 3, 2, 5);
        ask(&f, &w);
        memcpy(probe_room, room, (size_t)shared * sizeof *room);
        for (int i = shared; i < shared + 3; i++)
            probe_room[i] = room[i] == 8 ? 9 : 8;
        int end = n + max_tokens - 1, found = shared < end ? shared : end; /* of the last token there is nothing */
        int best = states ? found : found / 64 * 64;                       /* without states the partly filled last block is not entered */
        best = best / 2 * 2 - REPLAY;
        if (states > 0 && found >= n && best < n)
            best = n;
        if (states > 1 && found >= end)
            best = end;
        ask(&f, &probe);
        if (probe.cached < best || probe.cached > found)
            fail_msg("%d prompt tokens, %d of the answer, %d states: of %d shared ones %d are reused, not %d", n, max_tokens, states,
                     shared, (int)probe.cached, best);
        fixture_close(&f);
    }
}

static void report_A7_what_is_written_can_be_read(void **state)
{
    (void)state;
    written_is_readable(100, 40, 2);
    written_is_readable(128, 64, 2);
    written_is_readable(63, 3, 2);
    written_is_readable(150, 20, 0);
}

/* Every length of a hit, from a snapshot or by replay, gives what a cold run gives. */
static void report_A9_every_hit_length_is_exact(void **state)
{
    static int32_t room[CONTEXT];
    (void)state;
    for (int states = 0; states <= 6; states += 3) {
        struct fixture f;
        uint64_t before;
        open_core(&f, 2, 50, 60, states);
        struct di_watch w = watch(room, 300, 10, 9);
        ask(&f, &w);
        before = di_core_stats(f.core).cached_tokens;
        for (int hit = 1; hit < 300; hit++) {
            w = watch(room, hit + 5, 6, 9);
            fill(room + hit, 5, (uint32_t)hit + 1000);
            ask(&f, &w);
            assert_true(w.cached <= hit + 1); /* a filled token may happen to be the old one */
        }
        assert_true(di_core_stats(f.core).cached_tokens - before > 300 * 50);
        fixture_close(&f);
    }
}

/* A snapshot that was taken soon after another one was restored, or after a replay, lacks the oldest of its rows: it serves no row that
 * reads them. Between the steps the slot's rings are somebody else's. */
static void report_A9_a_snapshot_serves_what_it_holds(void **state)
{
    static int32_t room[CONTEXT], other_room[CONTEXT];
    static const int changes[] = {0, 2, 1, 3, 2, 4, 3, 5, 0, 1};
    (void)state;
    for (int n = 60; n < 200; n += 7) {
        struct fixture f;
        open_core(&f, 1, 64, 40, 8);
        for (int k = 0; k < 10; k++) { /* each differs from all before in its last token or two */
            struct di_watch w = watch(room, n - changes[k], 1 + k % 3, (uint32_t)n), other = watch(other_room, 150, 20, (uint32_t)(n + k));
            room[w.n_prompt - 1] = 8 + k;
            if (k > 3 && n > 100) {
                w.n_save_at = 2;
                w.save_at[0] = n / 2;
                w.save_at[1] = n - 9;
            }
            ask(&f, &w);
            ask(&f, &other);
        }
        fixture_close(&f);
    }
}

/* ---------------------------------------------------------------- tenants */

/* Every tenant has tokens that nobody else has, in prompts of the same shape, in a pool that holds few of them: none ever appears
 * elsewhere. The host tier does not exist yet. */
static void report_A12_canaries_stay_with_their_tenant(void **state)
{
    static int32_t room[300][400];
    static struct di_watch w[300];
    struct fixture f;
    bool busy = true;
    (void)state;
    open_core(&f, 4, 40, 16, 5);
    rng_state = 12;
    for (int sent = 0; busy || sent < 300;) {
        if (sent < 300 && di_core_stats(f.core).waiting < 4) {
            int tenant = (int)(rng() % 4), base = 8 + 13 * tenant;
            w[sent] = watch(room[sent], 30 + (int)(rng() % 200), 30, rng() % 6 + 1);
            w[sent].tenant = (uint64_t)tenant;
            for (int i = 0; i < w[sent].n_prompt; i++)
                room[sent][i] = base + room[sent][i] % 13;
            send(&f, &w[sent++]);
        }
        if (rng() % 8 == 0)
            di_core_cancel(f.core, w[rng() % (uint32_t)sent].id);
        busy = step(&f);
    }
    for (int i = 0; i < 300; i++) {
        int base = 8 + 13 * (int)w[i].tenant;
        for (int k = 0; k < w[i].n_got; k++) {
            int32_t token = room[i][w[i].n_prompt + k];
            assert_true(token == DI_NULL_END || (token >= base && token < base + 13));
        }
        right(&w[i]);
    }
    assert_true(di_core_stats(f.core).cached_tokens > 2000);
    fixture_close(&f);
}

/* The same prompt: its own tenant computes one row of it, another one all of them, in as many steps as if nobody had ever sent it. */
static void report_A17_other_tenant_pays_the_whole_prompt(void **state)
{
    static int32_t room[CONTEXT];
    static const uint64_t tenants[] = {5, 5, 6, 6};
    static const int64_t rows[] = {300, 1, 300, 1};
    struct fixture f;
    int steps[4];
    (void)state;
    open_core(&f, 2, 32, 40, 8);
    for (int i = 0; i < 4; i++) {
        uint64_t before = di_core_stats(f.core).prompt_rows;
        struct di_watch w = watch(room, 300, 3, 17);
        w.tenant = tenants[i];
        send(&f, &w);
        steps[i] = run(&f);
        right(&w);
        assert_int_equal(di_core_stats(f.core).prompt_rows - before, rows[i]);
    }
    assert_int_equal(steps[0], steps[2]);
    assert_true(steps[1] < steps[0]);
    assert_int_equal(di_core_stats(f.core).miss[DI_MISS_REASON_NEVER_SEEN], 2);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_51_restored_state_is_of_the_same_conversation),
        cmocka_unit_test(report_54_nothing_of_an_aborted_prompt_leaks),
        cmocka_unit_test(report_55_second_half_of_a_block_counts),
        cmocka_unit_test(report_59_steady_batches_lose_no_slot_and_no_block),
        cmocka_unit_test(report_77_reuse_grows_with_an_append_only_text),
        cmocka_unit_test(report_78_no_silent_zero),
        cmocka_unit_test(report_81_final_state_does_not_evict_the_useful_one),
        cmocka_unit_test(report_83_a_follow_up_at_once_finds_the_answer),
        cmocka_unit_test(report_86_two_sessions_that_fit_lose_nothing),
        cmocka_unit_test(report_A1_alternating_prompts_hit_whole),
        cmocka_unit_test(report_A2_interleaved_sessions_in_a_big_pool),
        cmocka_unit_test(report_A3_a_repeat_in_another_slot),
        cmocka_unit_test(report_A4_answers_keep_their_length),
        cmocka_unit_test(report_A5_prompts_of_65_to_4096_tokens),
        cmocka_unit_test(report_A7_what_is_written_can_be_read),
        cmocka_unit_test(report_A9_every_hit_length_is_exact),
        cmocka_unit_test(report_A9_a_snapshot_serves_what_it_holds),
        cmocka_unit_test(report_A12_canaries_stay_with_their_tenant),
        cmocka_unit_test(report_A17_other_tenant_pays_the_whole_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
