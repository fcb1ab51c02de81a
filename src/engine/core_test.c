/* also run on the hostile device, seeds 1 2 3 4 5 6 7 8 */
/* The engine against a simple model: a back end that costs nothing, whose next token is a function of the request's own tokens, and which
 * keeps a mark for every position in the request's pages. Random arrivals, priorities, cancels, stops and pool pressure; whatever happens,
 * each request's tokens are those of the function, each ends once, and all accounts return to zero. */
#define DI_ON_DEVICE /* its model is the device */
#include "base/clock.h"
#include "engine/core.h"
#include "testing/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define VOCAB 50
#define END_ID 7
#define CONTEXT 512

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

/* The null model: token behind a prefix. */
static int32_t next_token(const int32_t *tokens, int64_t n)
{
    uint64_t h = 1469598103934665603u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)tokens[i]) * 1099511628211u;
    return (int32_t)((h >> 20) % VOCAB);
}

static void next_logits(const int32_t *tokens, int64_t n, float *logits)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -(float)((i * 31 + tokens[n - 1]) % 17);
    logits[next_token(tokens, n)] = 5;
}

struct null_model {
    size_t block_bytes;
    _Atomic bool fail;     /* set while the worker runs */
    _Atomic int fail_once; /* at this call, counted down to 1; then it is -1 and chunks are counted */
    _Atomic int chunks_after;
    long wrong_marks;
};

/* The mark of a position stands in its key row: the hash of the whole prefix. */
static uint64_t *mark_of(const struct di_kv *kv, int slot, int32_t pos)
{
    return (uint64_t *)(void *)di_kv_key_row(kv, slot, 0, pos);
}

static di_status null_compute(void *ctx, const struct di_step *step, di_error *err)
{
    struct null_model *m = ctx;
    if (m->fail)
        return di_fail(err, DI_ERR_INTERNAL, "null", "told to fail");
    if (m->fail_once < 0)
        m->chunks_after += step->n_chunks;
    if (m->fail_once > 0 && --m->fail_once == 0) {
        m->fail_once = -1;
        return di_fail(err, DI_ERR_INTERNAL, "null", "told to fail once");
    }
    for (int k = 0; k < step->n_chunks; k++) {
        const struct di_chunk *c = &step->chunks[k];
        const int32_t *tokens = step->tokens[k];
        uint64_t h = c->pos0 ? *mark_of(&step->kv, c->slot, c->pos0 - 1) : 1;
        for (int32_t p = c->pos0; p < c->pos0 + c->n; p++) {
            h = h * 31 + (uint64_t)tokens[p] + 1;
            *mark_of(&step->kv, c->slot, p) = h;
        }
        uint64_t check = 1;
        for (int32_t p = 0; p < c->pos0 + c->n; p++) {
            check = check * 31 + (uint64_t)tokens[p] + 1;
            m->wrong_marks += *mark_of(&step->kv, c->slot, p) != check;
        }
    }
    return DI_OK;
}

static void null_head(void *ctx, const struct di_step *step, int first, int n, float *logits)
{
    (void)ctx;
    for (int i = first, k = 0; i < first + n; i++, logits += VOCAB) {
        while (step->logit_rows[i] >= step->chunks[k].row0 + step->chunks[k].n)
            k++;
        next_logits(step->tokens[k], step->chunks[k].pos0 + step->logit_rows[i] - step->chunks[k].row0 + 1, logits);
    }
}

static struct di_core *create_with(struct null_model *m, int batch, int chunk, int blocks, int states, enum di_prefill_order order)
{
    struct di_core *e;
    struct di_stepper n = {.vocab = VOCAB,
                           .context = CONTEXT,
                           .compute = null_compute,
                           .head = null_head,
                           .ctx = m,
                           .window = 3,
                           .layers = 2,
                           .numerics = "null"};
    n.layout = (struct di_kv_layout){.block_bytes = 64 * sizeof(uint64_t),
                                     .ring_bytes = DI_RING_ROWS * 8,
                                     .raw_bytes = 64,
                                     .n_sources = 1,
                                     .ratio = {1},
                                     .key_row_bytes = sizeof(uint64_t),
                                     .ring_layers = 1,
                                     .window_row_bytes = 8};
    struct di_core_config config = {
        .max_batch = batch, .prefill_chunk = chunk, .cache_blocks = blocks, .states = states, .prefill_order = order};
    assert_int_equal(di_test_core(&n, &config, &e, NULL), DI_OK);
    return e;
}

static struct di_core *create(struct null_model *m, int batch, int chunk, int blocks)
{
    return create_with(m, batch, chunk, blocks, 4, DI_PREFILL_SHORTEST);
}

/* ---------------------------------------------------------------- one request under watch */

struct watch {
    int32_t prompt[CONTEXT], got[CONTEXT];
    int n_prompt, n_got, max_tokens, stop_after; /* stop_after: on_token refuses at this count; 0 = never */
    int64_t id, after;
    int32_t save_at[2];
    size_t n_save_at;
    bool submitted, over, cancelled, penalised;
    di_end_reason end;
};

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct watch *w = ctx;
    assert_false(w->over);
    w->got[w->n_got++] = s->id;
    return w->n_got != w->stop_after;
}

static void on_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct watch *w = ctx;
    (void)err;
    assert_false(w->over);
    w->over = true;
    w->end = end;
}

static const int32_t end_ids[] = {END_ID};

static void submit(struct di_core *e, struct watch *w, int priority, uint64_t tenant)
{
    struct di_request r = {.prompt = w->prompt,
                           .n_prompt = w->n_prompt,
                           .max_tokens = w->max_tokens,
                           .sampling = di_sampling_params_default(),
                           .priority = priority,
                           .tenant = tenant,
                           .after = w->after,
                           .save_at = w->save_at,
                           .n_save_at = w->n_save_at,
                           .on_token = on_token,
                           .on_end = on_end,
                           .ctx = w};
    r.sampling.temperature = 0;
    r.sampling.end_ids = end_ids;
    r.sampling.n_end_ids = 1;
    r.sampling.presence_penalty = w->penalised ? 0.5 : 0;
    assert_int_equal(di_core_submit(e, &r, &w->id, NULL), DI_OK);
    w->submitted = true;
}

static void make(struct watch *w)
{
    memset(w, 0, sizeof *w);
    w->n_prompt = 1 + (int)(rng() % 200);
    w->max_tokens = 1 + (int)(rng() % 60);
    w->stop_after = rng() % 5 ? 0 : 1 + (int)(rng() % 20);
    w->penalised = rng() % 4 == 0;
    uint64_t family = rng() % 6, x = family; /* many share a prefix with others, of any length */
    int shared = family < 4 ? (int)(rng() % 200) : 0;
    for (int i = 0; i < w->n_prompt; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        w->prompt[i] = (int32_t)((i < shared ? (uint32_t)(x >> 33) : rng()) % VOCAB);
    }
}

/* What came out must be a prefix of the function's continuation, complete unless it was cancelled. The winning logit leads by 5, more than
 * the penalty takes. */
static void check(const struct watch *w)
{
    int32_t all[2 * CONTEXT];
    di_end_reason want = DI_REASON_LENGTH;
    int n = 0;
    memcpy(all, w->prompt, (size_t)w->n_prompt * sizeof *all);
    while (n < w->max_tokens) {
        all[w->n_prompt + n] = next_token(all, w->n_prompt + n);
        n++;
        if (n == w->stop_after || all[w->n_prompt + n - 1] == END_ID) {
            want = DI_REASON_STOP;
            break;
        }
    }
    assert_true(w->over);
    assert_memory_equal(w->got, all + w->n_prompt, (size_t)w->n_got * sizeof *all);
    if (w->cancelled && w->end == DI_REASON_CANCELLED) {
        assert_true(w->n_got <= n);
        return;
    }
    assert_int_equal(w->n_got, n);
    assert_int_equal(w->end, want);
}

static void check_empty(struct di_core *e, const struct null_model *m)
{
    struct di_core_stats s = di_core_stats(e);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.free_blocks, s.blocks);
    assert_int_equal(m->wrong_marks, 0);
    if (di_core_check_accounts(e))
        fail_msg("%s", di_core_check_accounts(e));
}

/* ---------------------------------------------------------------- tests */

/* Some follow an earlier one: with its prompt, its prompt and what it has said so far, or a prompt of their own. Some keep states. */
static void make_follow(struct watch *w, const struct watch *p)
{
    w->after = p->id;
    if (rng() % 4) {
        int said = rng() % 2 ? p->n_got : 0;
        memcpy(w->prompt, p->prompt, sizeof w->prompt);
        memcpy(w->prompt + p->n_prompt, p->got, (size_t)said * sizeof *w->prompt);
        w->n_prompt = p->n_prompt + said;
    }
    if (w->n_prompt > 2 && rng() % 2) {
        w->n_save_at = 2;
        w->save_at[0] = 1 + (int32_t)(rng() % (uint32_t)(w->n_prompt - 1));
        w->save_at[1] = w->save_at[0] + 1 + (int32_t)(rng() % (uint32_t)(w->n_prompt - w->save_at[0]));
    }
}

static uint64_t cached, looked_up;

static void run_random(uint64_t seed, int batch, int chunk, int blocks, int requests)
{
    struct null_model m = {0};
    struct di_core *e = create_with(&m, batch, chunk, blocks, (int)(seed % 5), seed % 3 ? DI_PREFILL_SHORTEST : DI_PREFILL_ARRIVAL);
    struct watch *w = calloc((size_t)requests, sizeof *w);
    int sent = 0;
    bool busy = true;
    rng_state = seed;
    while (busy || sent < requests) {
        while (sent < requests && rng() % 3) {
            make(&w[sent]);
            if (sent > 0 && rng() % 3 == 0)
                make_follow(&w[sent], &w[(uint32_t)sent - 1 - rng() % (uint32_t)(sent > 4 ? 4 : sent)]);
            if (w[sent].n_prompt + w[sent].max_tokens > (blocks * 64 < CONTEXT ? blocks * 64 : CONTEXT)) {
                w[sent].n_prompt = 5;
                w[sent].n_save_at = 0;
            }
            submit(e, &w[sent], (int)(rng() % 3), rng() % 4);
            sent++;
        }
        if (rng() % 4 == 0 && sent > 0) {
            struct watch *victim = &w[(int)(rng() % (uint32_t)sent)];
            bool known = di_core_cancel(e, victim->id);
            assert_true(!known || !victim->over);
            victim->cancelled = victim->cancelled || known;
        }
        if (rng() % 50 == 0)
            assert_int_equal(di_core_flush(e, NULL), DI_OK);
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    }
    for (int i = 0; i < requests; i++)
        check(&w[i]);
    check_empty(e, &m);
    cached += di_core_stats(e).cached_tokens;
    looked_up += di_core_stats(e).lookup_tokens;
    di_core_destroy(e);
    free(w);
}

static void test_random_life(void **state)
{
    (void)state;
    const int rounds = DI_TEST_SHORT ? 10 : 60, requests = DI_TEST_SHORT ? 60 : 150;
    for (int i = 0; i < rounds; i++)
        run_random((uint64_t)i + 1, 1 + i % 9, 1 + i * 7 % 100, 5 + i % 20, requests);
    printf("%.1f %% of %llu prompt tokens were reused\n", 100.0 * (double)cached / (double)looked_up, (unsigned long long)looked_up);
    assert_true(cached > looked_up / 50);
}

/* A better priority takes a place at once; the one that gave way goes on later with the same tokens. */
static void test_preemption_resumes_exactly(void **state)
{
    (void)state;
    struct null_model m = {0};
    struct di_core *e = create(&m, 1, 16, 8);
    struct watch slow, urgent;
    bool busy = true;
    rng_state = 99;
    do
        make(&slow);
    while (next_token(slow.prompt, slow.n_prompt) == END_ID);
    slow.max_tokens = 60;
    slow.stop_after = 0;
    make(&urgent);
    urgent.stop_after = 0;
    submit(e, &slow, 5, 0);
    while (slow.n_got < 3 && !slow.over)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_false(slow.over);
    submit(e, &urgent, 0, 0);
    while (!urgent.over)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_false(slow.over);
    while (busy)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_int_equal(di_core_stats(e).preempted, 1);
    check(&slow);
    check(&urgent);
    check_empty(e, &m);
    di_core_destroy(e);
}

/* Siblings wait for one prefill and compute one row each; one that waits for nobody overtakes them. */
static void test_siblings_share_one_prefill(void **state)
{
    (void)state;
    struct null_model m = {0};
    struct di_core *e = create(&m, 8, 16, 60);
    static struct watch w[5];
    bool busy = true;
    rng_state = 21;
    make(&w[0]);
    w[0].n_prompt = 200;
    for (int i = 0; i < 5; i++) {
        if (i == 4)
            make(&w[i]);
        else
            w[i] = w[0];
        w[i].stop_after = 0;
        w[i].max_tokens = 30;
        w[i].after = i > 0 && i < 4 ? w[0].id : 0;
        submit(e, &w[i], 0, 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_int_equal(di_core_stats(e).running, 2);
    assert_int_equal(di_core_stats(e).waiting, 3);
    while (busy)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    for (int i = 0; i < 5; i++)
        check(&w[i]);
    assert_int_equal(di_core_stats(e).prompt_rows, 200 + w[4].n_prompt + 3);
    check_empty(e, &m);
    di_core_destroy(e);
}

/* Whoever waits for another one takes nobody's place; when that one is cancelled it waits no longer. */
static void test_followers_of_a_cancelled_leader(void **state)
{
    (void)state;
    struct null_model m = {0};
    struct di_core *e = create(&m, 8, 4, 60);
    static struct watch w[4];
    bool busy = true;
    rng_state = 27;
    do
        make(&w[3]);
    while (next_token(w[3].prompt, w[3].n_prompt) == END_ID || w[3].n_prompt > 60);
    w[3].max_tokens = 200;
    w[3].stop_after = 0;
    submit(e, &w[3], 1, 0);
    while (!w[3].n_got)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    make(&w[0]);
    w[0].n_prompt = 200;
    w[0].stop_after = 0;
    for (int i = 0; i < 3; i++) {
        w[i] = w[0];
        w[i].after = i ? w[0].id : 0;
        submit(e, &w[i], i ? -1 : 1, 0);
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_int_equal(di_core_stats(e).waiting, 2);
    w[0].cancelled = di_core_cancel(e, w[0].id);
    assert_true(w[0].cancelled);
    while (busy)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    for (int i = 0; i < 4; i++)
        check(&w[i]);
    assert_int_equal(di_core_stats(e).preempted, 0);
    check_empty(e, &m);
    di_core_destroy(e);
}

/* A request is followed from where it is: one row of what both have in common is computed again, wherever the leader stands. */
static void test_branches_compute_one_row(void **state)
{
    (void)state;
    for (int when = 0; when < 60; when += 3) {
        struct null_model m = {0};
        struct di_core *e = create(&m, 2, 16, 30);
        static struct watch w, b;
        bool busy = true;
        rng_state = 77;
        do
            make(&w);
        while (next_token(w.prompt, w.n_prompt) == END_ID);
        w.n_prompt = 200;
        w.max_tokens = 60;
        w.stop_after = 0;
        submit(e, &w, 0, 0);
        for (int i = 0; i < when && !w.over; i++)
            assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        memset(&b, 0, sizeof b);
        memcpy(b.prompt, w.prompt, sizeof b.prompt);
        memcpy(b.prompt + w.n_prompt, w.got, sizeof(int32_t) * (size_t)w.n_got);
        b.n_prompt = w.n_prompt + w.n_got;
        b.max_tokens = 10;
        b.after = w.id;
        submit(e, &b, 0, 0);
        while (busy)
            assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        check(&w);
        check(&b);
        assert_int_equal(di_core_stats(e).prompt_rows, 200 + 1);
        check_empty(e, &m);
        di_core_destroy(e);
    }
}

/* A state that the caller asked for serves a prompt that goes on from there; without it the rings would have to be rebuilt. */
static void test_state_at_chosen_positions(void **state)
{
    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        struct null_model m = {0};
        struct di_core *e = create(&m, 2, 64, 30);
        static struct watch w, other;
        bool busy = true;
        rng_state = 31;
        make(&w);
        w.n_prompt = 200;
        w.n_save_at = (size_t)asked;
        w.save_at[0] = 70;
        submit(e, &w, 0, 0);
        while (busy)
            assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        uint64_t rows = di_core_stats(e).prompt_rows;
        make(&other);
        other.n_prompt = 100;
        memcpy(other.prompt, w.prompt, 70 * sizeof *w.prompt);
        other.prompt[70] = (w.prompt[70] + 1) % VOCAB;
        submit(e, &other, 0, 0);
        busy = true;
        while (busy)
            assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        assert_int_equal(di_core_stats(e).prompt_rows - rows, asked ? 30 : 30 + 5);
        check(&other);
        check_empty(e, &m);
        di_core_destroy(e);
    }
}

static void test_deadline(void **state)
{
    (void)state;
    struct null_model m = {0};
    struct di_core *e = create(&m, 1, 64, 8);
    struct watch w;
    bool busy = true;
    rng_state = 8;
    make(&w);
    struct di_request r = {.prompt = w.prompt,
                           .n_prompt = w.n_prompt,
                           .max_tokens = 10,
                           .sampling = di_sampling_params_default(),
                           .on_end = on_end,
                           .ctx = &w,
                           .deadline_ns = di_clock_ns() - 1};
    assert_int_equal(di_core_submit(e, &r, NULL, NULL), DI_OK);
    while (busy)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_true(w.over && w.end == DI_REASON_DEADLINE);
    check_empty(e, &m);
    di_core_destroy(e);
}

static void test_failing_model_ends_all(void **state)
{
    (void)state;
    struct null_model m = {0};
    struct di_core *e = create(&m, 2, 64, 40);
    struct watch w[5];
    bool busy = true;
    di_error err = {0};
    rng_state = 9;
    for (int i = 0; i < 5; i++) {
        make(&w[i]);
        submit(e, &w[i], 0, 0);
    }
    assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    m.fail = true;
    while (busy)
        di_core_step(e, &busy, &err);
    assert_int_equal(err.code, DI_ERR_INTERNAL);
    for (int i = 0; i < 5; i++)
        assert_true(w[i].over);
    struct di_core_stats s = di_core_stats(e);
    assert_int_equal(s.free_blocks, s.blocks);
    assert_true(s.failing);
    m.fail = false;
    make(&w[0]);
    submit(e, &w[0], 0, 0);
    for (busy = true; busy;)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
    assert_true(w[0].over && !di_core_stats(e).failing);
    di_core_destroy(e);
}

/* The step that was launched behind the failed one computes nothing for its requests, and ends nobody who came later. */
static void test_after_a_failed_step(void **state)
{
    (void)state;
    for (int call = 1; call <= 6; call++) {
        struct null_model m = {.fail_once = call};
        struct di_core *e = create(&m, 2, 64, 40);
        struct watch w[3];
        bool busy = true;
        di_status status = DI_OK;
        rng_state = 11;
        for (int i = 0; i < 3; i++) {
            make(&w[i]);
            w[i].n_prompt = 3;
            w[i].max_tokens = 20;
            w[i].n_save_at = 0;
            w[i].stop_after = 0;
            if (i < 2)
                submit(e, &w[i], 0, 0);
        }
        while (busy && status == DI_OK)
            status = di_core_step(e, &busy, NULL);
        assert_int_equal(status, DI_ERR_INTERNAL);
        assert_true(w[0].over && w[1].over && di_core_stats(e).failing);
        assert_int_equal(di_core_flush(e, NULL), DI_OK);
        assert_true(di_core_stats(e).failing);
        assert_int_equal(m.chunks_after, 0);
        submit(e, &w[2], 0, 0);
        for (busy = true; busy;)
            assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
        assert_true(w[2].over && w[2].end != DI_REASON_ERROR && !di_core_stats(e).failing);
        di_core_destroy(e);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct null_model m = {0};
    struct di_core *e = create(&m, 2, 64, 3);
    di_error err = {0};
    int32_t ids[CONTEXT] = {0};
    struct di_request r = {.prompt = ids, .n_prompt = 0, .max_tokens = 1, .sampling = di_sampling_params_default()};
    assert_int_equal(di_core_submit(e, &r, NULL, &err), DI_ERR_INVALID);
    r.n_prompt = 150;
    r.max_tokens = 100;
    assert_int_equal(di_core_submit(e, &r, NULL, &err), DI_ERR_LIMIT);
    assert_non_null(strstr(err.message, "4 cache blocks, the pool has 3"));
    r.max_tokens = 1;
    ids[17] = VOCAB;
    assert_int_equal(di_core_submit(e, &r, NULL, &err), DI_ERR_INVALID);
    assert_non_null(strstr(err.message, "position 17"));
    ids[17] = 0;
    static const int32_t places[][2] = {{0, 5}, {5, 5}, {9, 4}, {5, 151}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        r.save_at = places[i];
        r.n_save_at = 2;
        assert_int_equal(di_core_submit(e, &r, NULL, &err), DI_ERR_INVALID);
        assert_string_equal(err.where, "save_at");
    }
    r.n_save_at = 0;
    r.sampling.top_p = -1;
    assert_int_equal(di_core_submit(e, &r, NULL, &err), DI_ERR_INVALID);
    r.sampling.top_p = 1;
    check_empty(e, &m);
    int64_t id; /* the caller's numbers rise, from whichever on; who gives none gets the next */
    for (int64_t given = 0; given <= 20; given += given ? 5 : 10) {
        r.id = given;
        assert_int_equal(di_core_submit(e, &r, &id, &err), DI_OK);
        assert_int_equal(id, given ? given : 1);
        assert_int_equal(di_core_submit(e, &r, NULL, &err), given ? DI_ERR_INVALID : DI_OK);
    }
    assert_false(di_core_cancel(e, 14));
    assert_true(di_core_cancel(e, 15) && di_core_cancel(e, 20) && di_core_cancel(e, 2));
    di_core_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_life),
        cmocka_unit_test(test_preemption_resumes_exactly),
        cmocka_unit_test(test_siblings_share_one_prefill),
        cmocka_unit_test(test_followers_of_a_cancelled_leader),
        cmocka_unit_test(test_branches_compute_one_row),
        cmocka_unit_test(test_state_at_chosen_positions),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_failing_model_ends_all),
        cmocka_unit_test(test_after_a_failed_step),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
