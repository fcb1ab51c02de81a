/* also run on the hostile device, seed 20 */
/* usage: equality_test [all]: by default half of the sizes of chunks, other ones for each model, mode and instruction set.
 * Equality of bits: the same logits whatever the chunks, the threads, and the company of other requests (backend.h: a row depends on
 * itself). */
#define DI_ON_DEVICE /* reads what was computed */
#include "engine/pipeline.h"
#include "engine/core.h"
#include "testing/device.h"
#include "testing/golden.h"
#include "engine/score.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static bool all_sizes;
static const char *const isas[] = {"ref", "avx2", "avx512", "avx512bf16", "amx"};
static const char *const configs[] = {"tiny_d", "tiny_a", "tiny_b",
                                      "tiny_c"}; /* the short form has the first alone, and fewer modes and hits */

static void open_vectors(const char *name, struct di_golden *g)
{
    char dir[256];
    di_error err = {0};
    snprintf(dir, sizeof dir, DI_SOURCE_DIR "/tests/data/vectors/%s", name);
    if (di_golden_open(dir, dir, g, &err) != DI_OK)
        fail_msg("%s: %s (%s)", name, err.message, err.where);
}

static struct di_model *open_tiny(struct di_golden *g, const char *isa)
{
    struct di_model *m;
    di_error err = {0};
    const struct di_tensor *map = di_golden_field(g, NULL, "engram_token_map");
    struct di_model_params p = {.backend = di_test_backend,
                                .max_rows = 300,
                                .max_context = 400,
                                .threads = 2,
                                .isa = isa,
                                .token_map = (const int32_t *)(const void *)map->data};
    assert_true(di_numerics_by_name("bf16", &p.numerics));
    if (di_model_open(g->dir, &p, &m, &err) != DI_OK)
        fail_msg("%s (%s)", err.message, err.where);
    return m;
}

static float *logits_of(const struct di_golden *g, struct di_golden_run run, size_t *count)
{
    struct di_model *m;
    struct di_kv_store *s;
    di_error err = {0};
    size_t vocab = (size_t)di_golden_field(g, run.mode, "logits")->shape[1];
    *count = (size_t)g->n_ids * vocab;
    float *logits = calloc(*count, sizeof *logits);
    if (di_golden_run(g, &run, logits, &m, &s, &err) != DI_OK)
        fail_msg("%s: %s (%s)", run.mode, err.message, err.where);
    di_kv_store_destroy(s);
    di_model_close(m);
    return logits;
}

static void compare_run(const struct di_golden *g, const float *whole, size_t count, struct di_golden_run run, const char *config)
{
    size_t n;
    float *part = logits_of(g, run, &n);
    for (size_t i = 0; i < count; i++)
        if (memcmp(&whole[i], &part[i], sizeof(float)) != 0)
            fail_msg("%s %s %s: chunk %d, decode from %d, %d threads: row %zu differs from the whole prompt", config, run.mode, run.isa,
                     run.chunk, run.decode_from, run.threads, i / (count / (size_t)g->n_ids));
    free(part);
}

static void check_mode(const struct di_golden *g, const char *config, const char *mode, const char *isa)
{
    static const int chunks[] = {1, 7, 64, 129};
    static size_t turn;
    size_t count;
    turn++;
    float *whole =
        logits_of(g, (struct di_golden_run){.mode = mode, .isa = isa, .threads = 2, .chunk = g->n_ids, .decode_from = g->n_ids}, &count);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
        if (all_sizes || (turn + i / 2) % 2)
            compare_run(
                g, whole, count,
                (struct di_golden_run){.mode = mode, .isa = isa, .threads = 1 + (int)i % 2, .chunk = chunks[i], .decode_from = g->n_ids},
                config);
    compare_run(g, whole, count, (struct di_golden_run){.mode = mode, .isa = isa, .threads = 2, .chunk = 33, .decode_from = g->n_ids / 2},
                config);
    compare_run(g, whole, count, (struct di_golden_run){.mode = mode, .isa = isa, .threads = 1, .chunk = g->n_ids, .decode_from = g->n_ids},
                config);
    free(whole);
}

/* decode_from 1 is chunk 1 of the first position and one row at a time: covered by chunk 1 as the steps are the same. */
static void test_chunks_and_threads(void **state)
{
    (void)state;
    static const char *const ref_modes[] = {"f32_nocache_quant", "f32", "f32r", "bf16", "bf16_wo_a_q8"};
    for (size_t c = 0; c < (DI_TEST_SHORT ? 1 : sizeof configs / sizeof *configs); c++) {
        struct di_golden g;
        open_vectors(configs[c], &g);
        for (size_t i = 0; i < sizeof ref_modes / sizeof *ref_modes; i += DI_TEST_SHORT ? 3 : 1)
            check_mode(&g, configs[c], ref_modes[i], "ref");
        for (size_t k = 1; k < sizeof isas / sizeof *isas; k++)
            for (size_t i = 3; i < (DI_TEST_SHORT ? 4 : 5) && di_test_isa(isas[k]); i++)
                check_mode(&g, configs[c], ref_modes[i], isas[k]);
        di_golden_close(&g);
    }
}

/* ---------------------------------------------------------------- exact replay */

static di_status ignore_rows(void *ctx, int64_t pos, int rows, const float *logits, di_error *err)
{
    (void)ctx, (void)pos, (void)rows, (void)logits, (void)err;
    return DI_OK;
}

/* Rows [from, to) of slot 1 into logits of device memory (NULL: thrown away). */
static void run_rows(struct di_model *m, struct di_kv_store *s, const struct di_golden *g, int from, int to, struct di_replay replay,
                     float *logits)
{
    static int32_t all[4096];
    di_error err = {0};
    struct di_chunk c = {1, 0, to - from, from};
    for (int i = 0; i < to - from; i++)
        all[i] = i;
    di_kv_send_pages(s);
    struct di_step step = {.n_chunks = 1,
                           .chunks = &c,
                           .tokens = &g->ids,
                           .kv = di_kv_view(s),
                           .replay = &replay,
                           .n_logits = logits ? to - from : 0,
                           .logit_rows = all,
                           .logits = logits};
    assert_int_equal(di_model_step(m, &step, &err), DI_OK);
}

/* Slot 0 computes everything. Slot 1 shares its blocks up to `hit`, runs the window and (layers - 1) windows before it again with the rings
 * of nobody, and goes on: the logits behind the hit are the same bits (spec/model.md §8.1, exact alternative). */
static void check_replay(const struct di_golden *g, const char *isa, int hit)
{
    struct di_golden_run run = {.mode = "bf16", .isa = isa, .threads = 2, .chunk = g->n_ids, .decode_from = g->n_ids};
    size_t vocab = (size_t)di_golden_field(g, run.mode, "logits")->shape[1];
    float *cold = calloc((size_t)g->n_ids * vocab, sizeof *cold);
    struct di_model *m;
    struct di_kv_store *s, *two;
    di_error err = {0};
    assert_int_equal(di_golden_run(g, &run, cold, &m, &s, &err), DI_OK);
    di_kv_store_destroy(s);
    float *warm = di_device_alloc(m->be, (size_t)g->n_ids * vocab * sizeof *warm);
    assert_int_equal(di_kv_store_create(m->be, &m->be->layout, 2, 2 * di_kv_blocks_for(g->n_ids), g->n_ids, &two, &err), DI_OK);
    struct di_score score = {.ids = g->ids, .n = g->n_ids, .chunk = g->n_ids, .decode_from = g->n_ids, .rows = ignore_rows};
    assert_int_equal(di_score_run(m, two, &score, &err), DI_OK);
    assert_true(di_kv_reserve(two, 1, g->n_ids));
    for (int p = 0; p < hit / 64; p++) /* whole blocks shared, the partial one copied */
        two->lease[1].pages[p] = two->lease[0].pages[p];
    if (hit % 64)
        di_kv_copy_block(two, two->lease[0].pages[hit / 64], two->lease[1].pages[hit / 64], hit % 64);
    uint8_t *states = di_hostile_view(two->states);
    memset(states + di_kv_state_bytes(&two->layout), 0xFF, di_kv_state_bytes(&two->layout));
    int reach = m->c->sliding_window + (m->c->num_hidden_layers - 1) * (m->c->sliding_window - 1), from = hit > reach ? hit - reach : 0;
    struct di_replay replay = {.floor = from, .write_from = hit};
    for (int at = from; at < hit; at += 50)
        run_rows(m, two, g, at, at + 50 < hit ? at + 50 : hit, replay, NULL);
    run_rows(m, two, g, hit, g->n_ids, replay, warm);
    if (memcmp(di_hostile_view(warm), cold + (size_t)hit * vocab, (size_t)(g->n_ids - hit) * vocab * sizeof *warm) != 0)
        fail_msg("%s: a hit of %d tokens, replayed from %d, gives other logits", isa, hit, from);
    di_kv_store_destroy(two);
    di_device_free(m->be, warm);
    di_model_close(m);
    free(cold);
}

static void test_exact_replay(void **state)
{
    (void)state;
    static const int hits[] = {1, 2, 63, 64, 65, 200, 255, 256, 300, 331};
    struct di_golden g;
    open_vectors("tiny_d", &g); /* window 32: the reach is shorter than the prompt */
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i += DI_TEST_SHORT ? 4 : 1) {
        if (!DI_TEST_SHORT)
            check_replay(&g, "ref", hits[i]);
        if (strcmp(di_cpu_isa_best(), "ref") != 0)
            check_replay(&g, di_cpu_isa_best(), hits[i]);
    }
    di_golden_close(&g);
}

/* ---------------------------------------------------------------- padding */

/* The prompt in steps of 40 rows, alone and between rows of padding; then a step of nothing else. */
static void pad_steps(struct di_model *m, struct di_kv_store *s, const struct di_golden *g, const int pad[2], float *logits)
{
    int32_t rows[40];
    di_error err = {0};
    size_t vocab = (size_t)m->c->vocab_size;
    assert_true(di_kv_reserve(s, 0, g->n_ids));
    di_kv_send_pages(s);
    for (int at = 0, n; at < g->n_ids; at += n) {
        n = g->n_ids - at < 40 ? g->n_ids - at : 40;
        struct di_chunk chunks[3] = {{-1, 0, pad[0], 0}, {0, pad[0], n, at}, {-1, pad[0] + n, pad[1], 7}};
        const int32_t *tokens[3] = {NULL, g->ids, NULL};
        int first = pad[0] == 0, count = 3 - first - (pad[1] == 0);
        for (int i = 0; i < n; i++)
            rows[i] = pad[0] + i;
        struct di_step step = {.n_chunks = count,
                               .chunks = chunks + first,
                               .tokens = tokens + first,
                               .kv = di_kv_view(s),
                               .n_logits = n,
                               .logit_rows = rows,
                               .logits = logits + (size_t)at * vocab};
        if (di_model_step(m, &step, &err) != DI_OK)
            fail_msg("%s", err.message);
    }
    struct di_chunk nobody = {-1, 0, 3, 0};
    struct di_step step = {.n_chunks = 1, .chunks = &nobody, .tokens = &g->ids, .kv = di_kv_view(s)};
    assert_int_equal(di_model_step(m, &step, &err), DI_OK);
    step.n_chunks = 0;
    assert_int_equal(di_model_step(m, &step, &err), DI_OK);
}

static void test_padding(void **state)
{
    (void)state;
    static const int pads[][2] = {{0, 0}, {1, 0}, {0, 24}, {9, 3}};
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
        struct di_golden g;
        if (!di_test_isa(isas[k]))
            continue;
        open_vectors("tiny_d", &g);
        struct di_model *m = open_tiny(&g, isas[k]);
        size_t bytes = (size_t)g.n_ids * (size_t)m->c->vocab_size * sizeof(float);
        float *want = di_device_alloc(m->be, bytes), *got = di_device_alloc(m->be, bytes);
        for (size_t i = 0; i < sizeof pads / sizeof *pads; i++) {
            struct di_kv_store *s;
            assert_int_equal(di_kv_store_create(m->be, &m->be->layout, 1, di_kv_blocks_for(g.n_ids), g.n_ids, &s, NULL), DI_OK);
            memset(di_hostile_view(got), 0xFF, bytes);
            pad_steps(m, s, &g, pads[i], i ? got : want);
            if (i > 0 && memcmp(di_hostile_view(want), di_hostile_view(got), bytes) != 0)
                fail_msg("%s: %d and %d rows of padding change a bit", isas[k], pads[i][0], pads[i][1]);
            di_kv_store_destroy(s);
        }
        di_device_free(m->be, want);
        di_device_free(m->be, got);
        di_model_close(m);
        di_golden_close(&g);
    }
}

/* ---------------------------------------------------------------- company */

struct answer {
    int32_t ids[64];
    float logprobs[64];
    int n;
    di_end_reason end;
    bool over;
};

static bool take_token(void *ctx, const struct di_sample *s)
{
    struct answer *a = ctx;
    a->logprobs[a->n] = s->logprob;
    a->ids[a->n++] = s->id;
    return true;
}

static void take_end(void *ctx, di_end_reason end, const di_error *err)
{
    struct answer *a = ctx;
    (void)err;
    assert_false(a->over);
    a->over = true;
    a->end = end;
}

#define REQUESTS 12
struct plan {
    int32_t prompt[REQUESTS][300];
    int n_prompt[REQUESTS], max_tokens[REQUESTS];
    double temperature[REQUESTS];
};

static void make_plan(struct plan *p, int vocab)
{
    static const int lengths[REQUESTS] = {1, 2, 3, 63, 64, 65, 127, 128, 129, 130, 200, 299};
    uint64_t x = 12345;
    for (int r = 0; r < REQUESTS; r++) {
        p->n_prompt[r] = lengths[r];
        p->max_tokens[r] = 5 + 7 * r % 41;
        p->temperature[r] = r % 3 ? 1.0 : 0.0;
        for (int i = 0; i < lengths[r]; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            p->prompt[r][i] = (int32_t)((x >> 33) % (uint64_t)vocab);
        }
    }
}

static void submit(struct di_core *e, const struct plan *p, int r, struct answer *answer)
{
    struct di_request q = {.prompt = p->prompt[r],
                           .n_prompt = p->n_prompt[r],
                           .max_tokens = p->max_tokens[r],
                           .sampling = di_sampling_params_default(),
                           .on_token = take_token,
                           .on_end = take_end,
                           .ctx = answer};
    q.sampling.temperature = p->temperature[r];
    q.sampling.seed = r;
    q.sampling.logprobs = true;
    q.sampling.repetition_penalty = r % 2 ? 1.1 : 1.0;
    *answer = (struct answer){0};
    assert_int_equal(di_core_submit(e, &q, NULL, NULL), DI_OK);
}

static void run_to_end(struct di_core *e)
{
    di_error err = {0};
    bool busy = true;
    while (busy)
        assert_int_equal(di_core_step(e, &busy, &err), DI_OK);
    struct di_core_stats s = di_core_stats(e);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    di_core_destroy(e);
}

static void run_plan(struct di_model *m, const struct plan *p, int batch, int chunk, int only, struct answer *answers)
{
    struct di_core *e;
    struct di_core_config config = {.max_batch = batch, .prefill_chunk = chunk, .context = 400};
    assert_int_equal(di_core_create(m, &config, &e, NULL), DI_OK);
    for (int r = 0; r < REQUESTS; r++)
        if (only < 0 || only == r)
            submit(e, p, r, &answers[r]);
    run_to_end(e);
}

static bool same_answer(const struct answer *a, const struct answer *b)
{
    return a->over && b->over && a->end == b->end && a->n == b->n && memcmp(a->ids, b->ids, sizeof a->ids) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0;
}

/* More rows than head and sampler take at a time: the three shortest requests, again and again. */
static void check_crowd(struct di_model *m, const struct plan *p, const struct answer *alone, const char *isa)
{
    enum { CROWD = DI_LOGIT_ROWS + 9 };
    struct di_core *e;
    struct di_core_config config = {.max_batch = CROWD, .prefill_chunk = 200, .context = 100};
    struct answer got[CROWD];
    assert_int_equal(di_core_create(m, &config, &e, NULL), DI_OK);
    for (int i = 0; i < CROWD; i++)
        submit(e, p, i % 3, &got[i]);
    run_to_end(e);
    for (int i = 0; i < CROWD; i++)
        if (!same_answer(&got[i], &alone[i % 3]))
            fail_msg("%s: request %d of a crowd differs from its solo run", isa, i);
}

static void test_company(void **state)
{
    (void)state;
    static const struct {
        int batch, chunk;
    } mixes[] = {{1, 256}, {2, 17}, {5, 64}, {12, 1}, {12, 200}};
    static struct plan p;
    static struct answer alone[REQUESTS], got[REQUESTS];
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
        struct di_golden g;
        if (!di_test_isa(isas[k]))
            continue;
        open_vectors("tiny_a", &g);
        struct di_model *m = open_tiny(&g, isas[k]);
        char bits[DI_BITS_NAME] = "bf16/cpu-";
        assert_string_equal(m->be->bits, strcat(bits, isas[k])); /* in the keys of what it caches */
        make_plan(&p, m->c->vocab_size);
        for (int r = 0; r < REQUESTS; r++) {
            run_plan(m, &p, 1, 300 - 1, r, got);
            alone[r] = got[r];
            assert_int_equal(alone[r].n, p.max_tokens[r]);
        }
        for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
            run_plan(m, &p, mixes[i].batch, mixes[i].chunk, -1, got);
            for (int r = 0; r < REQUESTS; r++)
                if (!same_answer(&got[r], &alone[r]) || got[r].end != DI_REASON_LENGTH)
                    fail_msg("%s: request %d differs from its solo run at batch %d, chunk %d", isas[k], r, mixes[i].batch, mixes[i].chunk);
        }
        check_crowd(m, &p, alone, isas[k]);
        di_model_close(m);
        di_golden_close(&g);
    }
}

/* ---------------------------------------------------------------- steady decoding allocates nothing */

static void test_decode_allocates_nothing(void **state)
{
    (void)state;
    struct di_golden g;
    struct di_core *e;
    di_error err = {0};
    bool busy;
    open_vectors("tiny_a", &g);
    struct di_model *m = open_tiny(&g, NULL);
    struct di_core_config config = {.max_batch = 4, .prefill_chunk = 64, .context = 400};
    assert_int_equal(di_core_create(m, &config, &e, &err), DI_OK);
    for (int r = 0; r < 4; r++) {
        struct di_request q = {.prompt = g.ids, .n_prompt = 10 + r, .max_tokens = 100, .sampling = di_sampling_params_default()};
        q.sampling.frequency_penalty = 0.1;
        assert_int_equal(di_core_submit(e, &q, NULL, &err), DI_OK);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(di_core_step(e, &busy, &err), DI_OK);
    uint64_t before = di_mem_calls();
    for (int i = 0; i < 80; i++)
        assert_int_equal(di_core_step(e, &busy, &err), DI_OK);
    assert_true(busy);
    assert_int_equal(di_mem_calls(), before);
    di_core_destroy(e);
    di_model_close(m);
    di_golden_close(&g);
}

int main(int argc, char **argv)
{
    all_sizes = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_and_threads),
        cmocka_unit_test(test_exact_replay),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_decode_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
