/* also run on the hostile device, seed 22 */
/* Bounded replay (engine/replay.h, spec/model.md §8): what it saves changes no bit of what it keeps, and exact requests never see it. */
#define DI_ON_DEVICE /* reads what was computed */
#include "engine/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "testing/tiny_fixture.h"

#define MOST 330
#define ANSWER 10
#define TOP 8

static int cases; /* set by main */

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static void random_ids(int32_t *ids, int n, int vocab)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(rng() % (uint32_t)vocab);
}

/* ---------------------------------------------------------------- the forward pass */

/* Two requests share steps: slot 0 has a tail, slot 1 is its company. */
struct pass {
    int32_t ids[2][MOST + ANSWER];
    int n[2]; /* prompts; ANSWER rows follow one at a time */
    int32_t tail;
    bool mask;
    int chunk;              /* rows of slot 0 in a step */
    int company;            /* rows of slot 1 in a step, 0 = it stays away */
    struct di_kv_store *kv; /* out, like the logits of slot 0's rows from the tail on */
    float *logits;
};

/* The next rows of a slot. Those of slot 0 want logits from the tail on: their numbers are appended to `wanted`. */
static int add_chunk(const struct pass *p, struct di_chunk *c, int slot, int row0, int at, int32_t *wanted, int *n_wanted)
{
    int rows = slot ? p->company : p->chunk;
    rows = at >= p->n[slot] ? 1 : rows < p->n[slot] - at ? rows : p->n[slot] - at;
    *c = (struct di_chunk){slot, row0, rows, at};
    for (int i = 0; i < rows; i++)
        if (slot == 0 && at + i >= p->tail)
            wanted[(*n_wanted)++] = row0 + i;
    return rows;
}

static void run_pass(struct di_model *m, struct pass *p)
{
    static int32_t wanted[1024];
    size_t vocab = (size_t)m->c->vocab_size;
    int at[2] = {0}, total = p->n[0] + ANSWER;
    di_error err = {0};
    assert_int_equal(di_kv_store_create(m->be, &m->be->layout, 2, 12, 400, &p->kv, NULL), DI_OK);
    assert_true(di_kv_reserve(p->kv, 0, total) && di_kv_reserve(p->kv, 1, p->n[1] + ANSWER));
    di_kv_send_pages(p->kv);
    memset(di_hostile_view(p->kv->states), 0xFF, 2 * di_kv_state_bytes(&p->kv->layout)); /* a row that was never written is not a number */
    p->logits = di_device_alloc(m->be, (size_t)(total + 1) * vocab * sizeof(float));
    for (int done = 0; at[0] < total;) {
        struct di_chunk chunks[2];
        const int32_t *tokens[2] = {p->ids[0], p->ids[1]};
        struct di_replay replay[2] = {{.tail = p->tail, .mask = p->mask}, {0}};
        int n_chunks = 1, n_wanted = 0;
        int rows = add_chunk(p, &chunks[0], 0, 0, at[0], wanted, &n_wanted), kept = n_wanted;
        at[0] += rows;
        if (p->company && at[1] < p->n[1] + ANSWER) {
            at[1] += add_chunk(p, &chunks[1], 1, rows, at[1], wanted, &n_wanted);
            n_chunks = 2;
        }
        struct di_step step = {.n_chunks = n_chunks,
                               .chunks = chunks,
                               .tokens = tokens,
                               .replay = replay,
                               .kv = di_kv_view(p->kv),
                               .n_logits = kept,
                               .logit_rows = wanted,
                               .logits = p->logits + (size_t)done * vocab};
        if (di_model_step(m, &step, &err) != DI_OK)
            fail_msg("%s", err.message);
        done += kept;
    }
}

static void end_pass(struct pass *p)
{
    di_device_free(p->kv->be, p->logits);
    di_kv_store_destroy(p->kv);
}

/* Every group that slot 0 has closed. */
static bool same_groups(const struct pass *a, const struct pass *b)
{
    struct di_kv x = di_test_view_kv(a->kv), y = di_test_view_kv(b->kv);
    for (int s = 0; s < x.layout->n_sources; s++)
        for (int32_t j = 0; j < (a->n[0] + ANSWER) / x.layout->ratio[s]; j++)
            if (memcmp(di_kv_comp_row(&x, 0, s, j), di_kv_comp_row(&y, 0, s, j), x.layout->comp_row_bytes) != 0 ||
                memcmp(di_kv_key_row(&x, 0, s, j), di_kv_key_row(&y, 0, s, j), x.layout->key_row_bytes) != 0)
                return false;
    return true;
}

static void compare(struct di_model *m, const struct pass *want, struct pass got, const char *what)
{
    run_pass(m, &got);
    size_t rows = (size_t)(got.n[0] + ANSWER - got.tail);
    if (memcmp(di_hostile_view(want->logits), di_hostile_view(got.logits), rows * (size_t)m->c->vocab_size * sizeof(float)) != 0 ||
        !same_groups(want, &got))
        fail_msg("a prompt of %d, tail from %d, %d rows a step, company of %d: %s gives other bits", got.n[0], got.tail, got.chunk,
                 got.company, what);
    end_pass(&got);
}

/* Lengths, tails and chunks lie around the edges of windows, blocks, chunks, groups and rings. */
static void random_pass(const struct di_model *m, struct pass *p)
{
    int w = m->c->sliding_window, least = w + m->c->dspark_block_size + 1;
    const int edges[] = {w, least, least + 1, least + 6, 63, 64, 65, 127, 128, 129, 143, 144, 145, 200, 255, 256, 257, MOST};
    const int chunks[] = {1, 2, 7, 63, 64, 65, w - 1, w, w + 1, least, 150, MOST};
    const int n_edges = sizeof edges / sizeof *edges, n_chunks = sizeof chunks / sizeof *chunks;
    *p = (struct pass){.n = {edges[rng() % (uint32_t)n_edges] + (int)(rng() % 3) - 1, 1 + (int)(rng() % 200)},
                       .chunk = chunks[rng() % (uint32_t)n_chunks],
                       .company = rng() % 3 ? 1 + (int)(rng() % 90) : 0};
    p->n[0] = p->n[0] > MOST ? MOST : p->n[0];
    if (p->chunk + p->company > m->params.max_rows)
        p->company = 0;
    int keep = rng() % 2 ? least + (int)(rng() % 20) : edges[rng() % (uint32_t)n_edges];
    keep = keep < least ? least : keep;
    p->tail = p->n[0] > keep ? p->n[0] - keep : 0;
    random_ids(p->ids[0], p->n[0] + ANSWER, m->c->vocab_size);
    random_ids(p->ids[1], p->n[1] + ANSWER, m->c->vocab_size);
}

static void check_passes(const char *config, const char *isa, int n)
{
    struct di_model *m = open_tiny(config, isa);
    rng_state = 17;
    for (int i = 0; i < n; i++) {
        static struct pass mask, other, exact;
        random_pass(m, &mask);
        mask.mask = true;
        run_pass(m, &mask);
        other = mask;
        other.mask = false;
        compare(m, &mask, other, "leaving rows out");
        other.chunk = 1 + (int)(rng() % 100);
        other.company = rng() % 2 ? 1 + (int)(rng() % 60) : 0;
        compare(m, &mask, other, "leaving rows out in other chunks and company");
        exact = mask;
        exact.tail = 0;
        run_pass(m, &exact);
        assert_true(same_groups(&mask, &exact)); /* engine/replay.h: G of the prompt and behind it is exact */
        end_pass(&exact);
        end_pass(&mask);
    }
    di_model_close(m);
}

/* Figure 15-17 of docs/reports.md. */
static void figure_15_17_compact_equals_mask_bit_for_bit(void **state)
{
    (void)state;
    check_passes("tiny_d", "ref", cases / 5 + 1); /* slow */
    check_passes("tiny_d", NULL, cases);
    check_passes("tiny_a", NULL, cases);
    check_passes("tiny_c", NULL, cases);
}

static void count_rows(void *ctx, const struct di_trace_point *p)
{
    int *rows = ctx;
    if (strcmp(p->name, "streams") == 0)
        rows[p->layer] += p->rows;
}

/* The work is really saved: rows of each layer. */
static void rows_before_the_tail_stop_at_the_boundary(void **state)
{
    (void)state;
    struct di_model *m = open_tiny("tiny_d", NULL);
    static struct pass p;
    int rows[2][16] = {{0}};
    assert_int_equal(di_tail_layer(m->c), 5);
    for (int mask = 0; mask < 2; mask++) {
        p = (struct pass){.n = {300, 1}, .tail = 260, .mask = mask, .chunk = 64};
        struct di_chunk c = {0, 0, 300, 0};
        const int32_t *tokens = p.ids[0];
        struct di_trace trace = {.at = count_rows, .ctx = rows[mask]};
        struct di_replay replay = {.tail = p.tail, .mask = p.mask};
        assert_int_equal(di_kv_store_create(m->be, &m->be->layout, 1, 5, 400, &p.kv, NULL), DI_OK);
        assert_true(di_kv_reserve(p.kv, 0, 300));
        di_kv_send_pages(p.kv);
        struct di_step step = {.n_chunks = 1, .chunks = &c, .tokens = &tokens, .replay = &replay, .kv = di_kv_view(p.kv), .trace = &trace};
        assert_int_equal(di_model_step(m, &step, NULL), DI_OK);
        int32_t early = 259;
        float logits[1];
        step.n_logits = 1;
        step.logit_rows = &early;
        step.logits = logits;
        assert_int_equal(di_model_step(m, &step, NULL), DI_ERR_INVALID);
        di_kv_store_destroy(p.kv);
        for (int l = 0; l < m->c->num_hidden_layers; l++)
            assert_int_equal(rows[mask][l], l < 5 || mask ? 300 : 40);
    }
    di_model_close(m);
}

/* ---------------------------------------------------------------- the engine */

struct request {
    int32_t prompt[MOST];
    int n_prompt, max_tokens, priority;
    enum di_replay_mode replay;
    int64_t seed, id;
    double temperature;
};
struct answer {
    int n;
    bool over;
    di_end_reason end;
    struct di_sample sample[ANSWER];
    struct di_request_facts facts;
};

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct answer *a = ctx;
    a->sample[a->n++] = *s;
    return true;
}
static void on_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct answer *a = ctx;
    (void)err;
    a->over = true;
    a->end = end;
}

static di_status submit(struct di_core *e, struct request *r, struct answer *a, di_error *err)
{
    *a = (struct answer){0};
    struct di_request q = {.prompt = r->prompt,
                           .n_prompt = r->n_prompt,
                           .max_tokens = r->max_tokens,
                           .sampling = di_sampling_params_default(),
                           .priority = r->priority,
                           .replay = r->replay,
                           .facts = &a->facts,
                           .on_token = on_token,
                           .on_end = on_end,
                           .ctx = a};
    q.sampling.temperature = r->temperature;
    q.sampling.seed = r->seed;
    q.sampling.logprobs = true;
    q.sampling.top_logprobs = TOP;
    return di_core_submit(e, &q, &r->id, err);
}

static void run(struct di_core *e)
{
    for (bool busy = true; busy;)
        assert_int_equal(di_core_step(e, &busy, NULL), DI_OK);
}

static bool same_answer(const struct answer *a, const struct answer *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) {
        const struct di_sample *x = &a->sample[i], *y = &b->sample[i];
        same = x->id == y->id && memcmp(&x->logprob, &y->logprob, sizeof x->logprob) == 0;
        for (size_t k = 0; same && k < TOP; k++)
            same = x->top[k].id == y->top[k].id && memcmp(&x->top[k].logprob, &y->top[k].logprob, sizeof(float)) == 0;
    }
    return same;
}

/* Prompts of a family agree up to a random place. */
static void make(struct request *r, int vocab)
{
    static const int edges[] = {1, 43, 44, 45, 46, 63, 64, 65, 127, 128, 129, 192, 256, 257, 300};
    uint64_t family = rng() % 3, x = family + 77;
    int n = rng() % 2 ? edges[rng() % 15] : 40 + (int)(rng() % 261), shared = rng() % 8 ? (int)(rng() % 301) : 0;
    *r = (struct request){.n_prompt = n,
                          .max_tokens = 1 + (int)(rng() % ANSWER),
                          .priority = (int)(rng() % 2),
                          .replay = rng() % 2 ? DI_REPLAY_BOUNDED : DI_REPLAY_EXACT,
                          .seed = rng() % 3,
                          .temperature = rng() % 2 ? 1.0 : 0.0};
    for (int i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        r->prompt[i] = (int32_t)((i < shared ? (uint32_t)(x >> 33) : rng()) % (uint32_t)vocab);
    }
}

static struct di_core *open_core(struct di_model *m, struct di_core_config c)
{
    struct di_core *e;
    c.context = 400;
    assert_int_equal(di_core_create(m, &c, &e, NULL), DI_OK);
    return e;
}

static void check_alone(struct di_core *cold, struct request r, enum di_replay_mode mode, const struct answer *got, const char *what)
{
    static struct answer alone;
    r.replay = mode;
    assert_int_equal(submit(cold, &r, &alone, NULL), DI_OK);
    run(cold);
    if (got->end == DI_REASON_CANCELLED)
        alone.n = alone.n < got->n ? alone.n : got->n;
    if (!same_answer(&alone, got))
        fail_msg("prompt of %d tokens, %lld reused: %s", r.n_prompt, (long long)got->facts.cached, what);
}

/* Without reuse everybody has the bits of a solo run, bounded ones those of the mask too. */
static void test_company_changes_nothing(void **state)
{
    (void)state;
    struct di_model *m = open_tiny("tiny_d", NULL);
    struct di_core *busy = open_core(m, (struct di_core_config){.max_batch = 6, .prefill_chunk = 50, .no_reuse = true});
    struct di_core *cold = open_core(m, (struct di_core_config){.max_batch = 1, .prefill_chunk = 330, .no_reuse = true});
    struct request *r = calloc((size_t)cases, sizeof *r);
    struct answer *a = calloc((size_t)cases, sizeof *a);
    rng_state = 4;
    for (int i = 0; i < cases; i++) {
        make(&r[i], m->c->vocab_size);
        assert_int_equal(submit(busy, &r[i], &a[i], NULL), DI_OK);
    }
    run(busy);
    int64_t skipped = 0;
    for (int i = 0; i < cases; i++) {
        check_alone(cold, r[i], r[i].replay, &a[i], "other bits than alone");
        if (r[i].replay == DI_REPLAY_BOUNDED)
            check_alone(cold, r[i], DI_REPLAY_MASK, &a[i], "other bits than when everything is computed");
        if (r[i].n_prompt <= 44)
            check_alone(cold, r[i], DI_REPLAY_EXACT, &a[i], "a prompt no longer than the tail is exact");
        skipped += a[i].facts.skipped;
        assert_int_equal(a[i].facts.skipped, r[i].replay == DI_REPLAY_BOUNDED && r[i].n_prompt > 44 ? r[i].n_prompt - 44 : 0);
        assert_int_equal(a[i].facts.bounded, a[i].facts.skipped > 0);
    }
    assert_true(skipped > 0);
    assert_int_equal(di_core_stats(busy).skipped_rows >= (uint64_t)skipped, true); /* more after preemptions */
    di_core_destroy(busy);
    di_core_destroy(cold);
    di_model_close(m);
    free(r);
    free(a);
}

/* Exact requests among bounded ones, on one cache, with evictions, cancels and preemption: never a bit of what is approximate. */
static void exact_beside_bounded(const char *config, int states, int blocks, uint64_t seed)
{
    struct di_model *m = open_tiny(config, NULL);
    struct di_core *warm =
        open_core(m, (struct di_core_config){.max_batch = 3, .prefill_chunk = 70, .cache_blocks = blocks, .states = states});
    struct di_core *cold = open_core(m, (struct di_core_config){.max_batch = 1, .prefill_chunk = 330, .no_reuse = true});
    int n = 4 * cases, exact_reused = 0, bounded_reused = 0;
    struct request *r = calloc((size_t)n, sizeof *r);
    struct answer *a = calloc((size_t)n, sizeof *a);
    bool busy = true;
    rng_state = seed;
    for (int sent = 0; busy || sent < n;) {
        while (sent < n && di_core_stats(warm).waiting < 4) {
            make(&r[sent], m->c->vocab_size);
            assert_int_equal(submit(warm, &r[sent], &a[sent], NULL), DI_OK);
            sent++;
        }
        if (rng() % 40 == 0)
            di_core_cancel(warm, r[rng() % (uint32_t)sent].id);
        assert_int_equal(di_core_step(warm, &busy, NULL), DI_OK);
    }
    struct di_core_stats s = di_core_stats(warm);
    assert_int_equal(s.free_blocks, s.blocks);
    if (di_core_check_accounts(warm))
        fail_msg("%s", di_core_check_accounts(warm));
    for (int i = 0; i < n; i++) {
        *(r[i].replay == DI_REPLAY_EXACT ? &exact_reused : &bounded_reused) += a[i].facts.cached > 0;
        if (r[i].replay == DI_REPLAY_EXACT || !a[i].facts.bounded)
            check_alone(cold, r[i], DI_REPLAY_EXACT, &a[i], "an exact request got something approximate");
        assert_false(r[i].replay == DI_REPLAY_EXACT && a[i].facts.bounded);
    }
    printf("%s: %d requests, %d snapshots, %d blocks: %d exact and %d bounded ones reused something, %llu met bounded blocks\n", config, n,
           states, blocks, exact_reused, bounded_reused, (unsigned long long)s.miss[DI_MISS_REASON_BOUNDED]);
    assert_true(bounded_reused > 0 && s.bounded > 0);
    di_core_destroy(warm);
    di_core_destroy(cold);
    di_model_close(m);
    free(r);
    free(a);
}

static void test_exact_requests_see_nothing_bounded(void **state)
{
    (void)state;
    exact_beside_bounded("tiny_d", 8, 24, 1);
    exact_beside_bounded("tiny_d", 2, 12, 2);
    exact_beside_bounded("tiny_d", 0, 40, 3);
    exact_beside_bounded("tiny_c", 8, 24, 4);
}

static void ask(struct di_core *e, struct request *r, enum di_replay_mode mode, struct answer *a)
{
    r->replay = mode;
    assert_int_equal(submit(e, r, a, NULL), DI_OK);
    run(e);
}

/* What a bounded request leaves behind: exact blocks and a marked snapshot if it began at the beginning, marked blocks after a bounded hit.
 * */
static void test_what_is_marked(void **state)
{
    (void)state;
    static struct request r, longer;
    static struct answer a, exact, again;
    struct di_model *m = open_tiny("tiny_d", NULL);
    struct di_core *e = open_core(m, (struct di_core_config){.max_batch = 1, .prefill_chunk = 70, .states = 8});
    rng_state = 9;
    r = (struct request){.n_prompt = 200, .max_tokens = 4};
    random_ids(r.prompt, MOST, m->c->vocab_size);
    ask(e, &r, DI_REPLAY_BOUNDED, &a);
    assert_true(a.facts.bounded);
    assert_int_equal(a.facts.skipped, 200 - 44);
    ask(e, &r, DI_REPLAY_EXACT, &exact); /* the snapshot is not for it; G is found, but there is no state and too little for exact replay */
    assert_int_equal(exact.facts.cached, 0);
    assert_int_equal(exact.facts.miss, DI_MISS_REASON_NONE);
    ask(e, &r, DI_REPLAY_EXACT, &again); /* it has replaced the snapshot */
    assert_int_equal(again.facts.cached, 199);
    assert_true(same_answer(&exact, &again));
    ask(e, &r, DI_REPLAY_BOUNDED, &again); /* an exact snapshot serves everybody, and makes the answer exact */
    assert_int_equal(again.facts.cached, 199);
    assert_false(again.facts.bounded);
    assert_true(same_answer(&exact, &again));
    di_core_destroy(e);

    e = open_core(m, (struct di_core_config){.max_batch = 1, .prefill_chunk = 70}); /* no snapshots: bounded replay of the encoder half */
    ask(e, &r, DI_REPLAY_EXACT, &exact);
    longer = r;
    longer.n_prompt = 300;
    ask(e, &longer, DI_REPLAY_BOUNDED, &a);
    assert_int_equal(a.facts.cached, 192 - 32); /* three blocks, and the window before their end once more */
    assert_true(a.facts.bounded);
    assert_int_equal(a.facts.skipped, 300 - 44 - 160);
    ask(e, &longer, DI_REPLAY_EXACT, &again);
    assert_int_equal(again.facts.miss, DI_MISS_REASON_BOUNDED);
    assert_int_equal(again.facts.miss_at, 192);
    di_core_destroy(e);
    di_model_close(m);
}

/* A state inside the prompt that a caller asks for would lack the decoder half's rings: it is not kept (di_reuse_start.right_from), unless
 * it lies a window behind the tail. */
static void test_states_before_the_tail_are_not_kept(void **state)
{
    (void)state;
    static const int32_t places[] = {100, 256 + 30, 256 + 31, 290};
    static struct request r;
    static struct answer a;
    struct di_model *m = open_tiny("tiny_d", NULL);
    uint64_t saved[2];
    rng_state = 10;
    r = (struct request){.n_prompt = 300, .max_tokens = 1};
    random_ids(r.prompt, MOST, m->c->vocab_size);
    for (int bounded = 0; bounded < 2; bounded++) {
        struct di_core *e = open_core(m, (struct di_core_config){.max_batch = 1, .prefill_chunk = 70, .states = 8});
        struct di_request q = {.prompt = r.prompt,
                               .n_prompt = 300,
                               .max_tokens = 1,
                               .sampling = di_sampling_params_default(),
                               .save_at = places,
                               .n_save_at = 4,
                               .replay = bounded ? DI_REPLAY_BOUNDED : DI_REPLAY_EXACT};
        assert_int_equal(di_core_submit(e, &q, NULL, NULL), DI_OK);
        run(e);
        saved[bounded] = di_core_stats(e).states_saved;
        struct request s = r; /* goes on behind the first place */
        s.n_prompt = 110;
        s.prompt[105]++;
        ask(e, &s, bounded ? DI_REPLAY_BOUNDED : DI_REPLAY_EXACT, &a);
        assert_int_equal(a.facts.cached, bounded ? 110 - 44 : 100);
        di_core_destroy(e);
    }
    assert_int_equal(saved[0], 5);
    assert_int_equal(saved[1], 3); /* 287, 290 and the end */
    di_model_close(m);
}

/* ---------------------------------------------------------------- the public interface */

static char *long_text(void)
{
    static char text[4001];
    FILE *f = fopen(DI_SOURCE_DIR "/docs/design.md", "r");
    assert_non_null(f);
    assert_int_equal(fread(text, 1, 4000, f), 4000);
    fclose(f);
    for (char *p = text; *p; p++)
        *p = *p & 0x80 ? '?' : *p;
    return text;
}

static di_output finished(di_engine *e, const char *replay, const int32_t *forced, di_error *err)
{
    di_output last = {0};
    di_submission s;
    di_sampling_options o;
    di_sampling_options_init(&o, sizeof o);
    o.max_tokens = 2;
    di_submission_init(&s, sizeof s);
    s.text = long_text();
    s.text_bytes = strlen(s.text);
    s.sampling = &o;
    s.replay = replay;
    s.forced = forced;
    s.n_forced = forced != NULL;
    last.token = (int32_t)di_engine_submit(e, &s, NULL, err);
    if (last.token != DI_OK)
        return last;
    assert_int_equal(di_engine_run(e, err), DI_OK);
    for (const di_output *out; (out = di_engine_poll(e, 0)); di_output_free(e, out))
        last = *out;
    return last;
}

static void test_public_interface(void **state)
{
    (void)state;
    di_engine_config c;
    di_engine *e;
    di_engine_stats stats;
    di_error err;
    const int32_t forced[] = {5};
    di_engine_config_init(&c, sizeof c);
    c.model = DI_SOURCE_DIR "/models/nano";
    c.context = 4096;
    c.max_batch = 1;
    c.threads = 1;
    c.replay = "approximately";
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "replay");
    c.replay = "bounded";
    c.replay_rows = 133;
    assert_int_equal(di_engine_open(&c, &e, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "replay_rows");
    c.replay_rows = 0;
    assert_int_equal(di_engine_open(&c, &e, &err), DI_OK);
    di_output out = finished(e, NULL, NULL, &err);
    assert_int_equal(out.kind, DI_OUTPUT_FINISHED);
    assert_true(out.approximate && out.prompt_tokens > 1000);
    assert_int_equal(out.skipped_rows, out.prompt_tokens - 140);
    assert_int_equal(di_engine_get_stats(e, &stats, sizeof stats, &err), DI_OK);
    assert_int_equal(stats.bounded_starts, 1);
    assert_int_equal(stats.skipped_rows, out.skipped_rows);
    out = finished(e, "exact", NULL, &err);
    assert_true(out.kind == DI_OUTPUT_FINISHED && !out.approximate && out.skipped_rows == 0);
    assert_int_equal(finished(e, NULL, forced, &err).token, DI_ERR_UNSUPPORTED);
    assert_int_equal(finished(e, "sometimes", NULL, &err).token, DI_ERR_INVALID);
    assert_int_equal(finished(e, "exact", forced, &err).kind, DI_OUTPUT_FINISHED);
    di_engine_close(e);
}

/* ---------------------------------------------------------------- limits */

static void test_refusals(void **state)
{
    (void)state;
    struct di_core *e;
    di_error err;
    static struct request r = {.n_prompt = 100, .max_tokens = 1, .replay = DI_REPLAY_BOUNDED};
    static struct answer a;
    struct di_model *m = open_tiny("tiny_d", NULL);
    struct di_core_config c = {.max_batch = 1, .prefill_chunk = 70, .context = 400, .no_reuse = true, .replay_rows = 37};
    assert_int_equal(di_core_create(m, &c, &e, &err), DI_ERR_INVALID); /* window 32, drafts of 5 and the token behind them */
    assert_string_equal(err.where, "replay_rows");
    c.replay_rows = 38;
    c.replay = DI_REPLAY_BOUNDED;
    assert_int_equal(di_core_create(m, &c, &e, &err), DI_OK);
    int32_t forced[1] = {1};
    struct di_request q = {
        .prompt = r.prompt, .n_prompt = 100, .max_tokens = 1, .sampling = di_sampling_params_default(), .forced = forced, .n_forced = 1};
    assert_int_equal(di_core_submit(e, &q, NULL, &err), DI_ERR_UNSUPPORTED);
    assert_string_equal(err.where, "replay");
    q.replay = DI_REPLAY_EXACT;
    assert_int_equal(di_core_submit(e, &q, NULL, &err), DI_OK);
    r.replay = DI_REPLAY_DEFAULT;
    assert_int_equal(submit(e, &r, &a, &err), DI_OK);
    run(e);
    assert_int_equal(a.facts.skipped, 62);
    di_core_destroy(e);
    di_model_close(m);

    m = open_tiny("tiny_b", NULL); /* its only KV source has ratio 2 */
    assert_int_equal(di_tail_layer(m->c), -1);
    assert_int_equal(di_core_create(m, &c, &e, &err), DI_ERR_UNSUPPORTED);
    c = (struct di_core_config){.max_batch = 1, .prefill_chunk = 70, .context = 400};
    assert_int_equal(di_core_create(m, &c, &e, &err), DI_OK);
    r.replay = DI_REPLAY_BOUNDED;
    assert_int_equal(submit(e, &r, &a, &err), DI_ERR_UNSUPPORTED);
    di_core_destroy(e);
    di_model_close(m);
}

static void test_steps_allocate_nothing(void **state)
{
    (void)state;
    static struct request r;
    static struct answer a;
    struct di_model *m = open_tiny("tiny_d", NULL);
    struct di_core *e = open_core(m, (struct di_core_config){.max_batch = 2, .prefill_chunk = 20, .states = 4});
    r = (struct request){.n_prompt = 300, .max_tokens = 5, .replay = DI_REPLAY_BOUNDED};
    random_ids(r.prompt, MOST, m->c->vocab_size);
    assert_int_equal(submit(e, &r, &a, NULL), DI_OK);
    uint64_t before = di_mem_calls();
    run(e);
    assert_int_equal(di_mem_calls(), before);
    assert_int_equal(a.n, 5);
    di_core_destroy(e);
    di_model_close(m);
}

/* An argument sets the number of cases: the long form. */
int main(int argc, char **argv)
{
    cases = argc > 1 ? atoi(argv[1]) : di_test_seed() ? 3 : DI_TEST_SHORT ? 6 : 25;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figure_15_17_compact_equals_mask_bit_for_bit),
        cmocka_unit_test(rows_before_the_tail_stop_at_the_boundary),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_exact_requests_see_nothing_bounded),
        cmocka_unit_test(test_what_is_marked),
        cmocka_unit_test(test_states_before_the_tail_are_not_kept),
        cmocka_unit_test(test_public_interface),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
