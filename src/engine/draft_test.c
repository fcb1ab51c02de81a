/* also run on the hostile device, seed 6 */
/* The draft against the golden vectors (tests/data/vectors/README.md has the tolerances), and equality of its bits: whatever stands beside
 * a block, however its context came, on any number of threads. */
#define DI_ON_DEVICE /* reads what was computed */
#include "model/draft.h"
#include "testing/device.h"
#include "testing/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SLOTS 9 /* more blocks than heads are computed of together */
#define WIDTH DI_MAX_DRAFTS

static const char *const isas[] = {"ref", "avx2", "avx512", "avx512bf16", "amx"};

/* ---------------------------------------------------------------- a model with drafts, and slots for it */

struct world {
    struct di_golden g;
    struct di_model *m;
    struct di_kv_store *s;
    struct di_sample_result *results;
    float *confidence, *logits; /* logits: on the device */
};

struct setup {
    const char *config, *numerics, *isa;
    int threads;
};

static void world_open(struct world *w, const struct setup *u)
{
    char vectors[256], model[256];
    di_error err = {0};
    bool nano = strcmp(u->config, "nano_text") == 0;
    snprintf(vectors, sizeof vectors, DI_SOURCE_DIR "/tests/data/vectors/%s", u->config);
    snprintf(model, sizeof model, DI_SOURCE_DIR "/models/nano");
    if (di_golden_open(nano ? model : vectors, vectors, &w->g, &err) != DI_OK)
        fail_msg("%s: %s (%s)", u->config, err.message, err.where);
    const struct di_tensor *map = di_golden_field(&w->g, NULL, "engram_token_map");
    struct di_model_params p = {.backend = di_test_backend,
                                .max_rows = w->g.n_ids,
                                .max_context = w->g.n_ids + 2 * WIDTH,
                                .threads = u->threads,
                                .isa = u->isa,
                                .drafts = true,
                                .token_map = map ? (const int32_t *)(const void *)map->data : NULL};
    assert_true(di_numerics_by_name(u->numerics, &p.numerics));
    if (di_model_open(w->g.dir, &p, &w->m, &err) != DI_OK)
        fail_msg("%s: %s (%s)", u->config, err.message, err.where);
    int blocks = di_kv_blocks_for(p.max_context);
    assert_int_equal(di_kv_store_create(w->m->be, &w->m->be->layout, SLOTS, SLOTS * blocks, p.max_context, &w->s, &err), DI_OK);
    for (int i = 0; i < SLOTS; i++)
        assert_true(di_kv_reserve(w->s, i, p.max_context));
    di_kv_send_pages(w->s);
    w->results = di_staging_alloc(w->m->be, SLOTS * WIDTH * sizeof *w->results);
    w->confidence = di_staging_alloc(w->m->be, SLOTS * WIDTH * sizeof *w->confidence);
    w->logits = di_device_alloc(w->m->be, SLOTS * WIDTH * (size_t)w->m->c->vocab_size * sizeof *w->logits);
    assert_true(w->results && w->confidence && w->logits);
}

static void world_close(struct world *w)
{
    di_staging_free(w->m->be, w->results);
    di_staging_free(w->m->be, w->confidence);
    di_device_free(w->m->be, w->logits);
    di_kv_store_destroy(w->s);
    di_model_close(w->m);
    di_golden_close(&w->g);
}

/* Rows [from, to) of a slot, in steps of at most `chunk`; tokens by absolute position. */
static void compute(struct world *w, int slot, const int32_t *tokens, int from, int to, int chunk, struct di_replay replay)
{
    di_error err = {0};
    for (int at = from, n; at < to; at += n) {
        n = to - at < chunk ? to - at : chunk;
        struct di_chunk c = {slot, 0, n, at};
        struct di_step step = {.n_chunks = 1, .chunks = &c, .tokens = &tokens, .kv = di_kv_view(w->s), .replay = &replay};
        if (di_model_step(w->m, &step, &err) != DI_OK)
            fail_msg("%s (%s)", err.message, err.where);
    }
}

/* What was drafted of one block. */
struct drafts {
    int32_t ids[WIDTH];
    float confidence[WIDTH];
    float *logits; /* [WIDTH][vocab] */
};

static void draft(struct world *w, int n, const struct di_draft_block *blocks, double temperature, struct drafts *out)
{
    struct di_sampling_params params = di_sampling_params_default();
    struct di_sample_task tasks[SLOTS * WIDTH];
    di_error err = {0};
    size_t vocab = (size_t)w->m->c->vocab_size;
    params.temperature = temperature;
    for (int k = 0; k < WIDTH; k++)
        for (int i = 0; i < n; i++)
            tasks[k * n + i] = (struct di_sample_task){.row = {.params = &params, .position = (uint64_t)(blocks[i].at + 1 + k)},
                                                       .key = di_sample_key((uint64_t)blocks[i].at, 0),
                                                       .forced = -1};
    struct di_draft d = {.n = n,
                         .blocks = blocks,
                         .kv = di_kv_view(w->s),
                         .tasks = tasks,
                         .results = w->results,
                         .confidence = w->confidence,
                         .logits = w->logits};
    if (di_draft_launch(w->m, &d, &err) != DI_OK || di_backend_finish(w->m->be, &err) != DI_OK)
        fail_msg("%s (%s)", err.message, err.where);
    const float *logits = di_hostile_view(w->logits);
    for (int i = 0; i < n; i++) {
        out[i].logits = malloc(WIDTH * vocab * sizeof *logits);
        for (int k = 0; k < WIDTH; k++) {
            size_t at = (size_t)(k * n + i);
            assert_int_equal(w->results[at].status, DI_OK);
            out[i].ids[k] = w->results[at].sample.id;
            out[i].confidence[k] = w->confidence[at];
            memcpy(out[i].logits + (size_t)k * vocab, logits + at * vocab, vocab * sizeof *logits);
        }
    }
}

static void drop(struct drafts *d, int n)
{
    for (int i = 0; i < n; i++)
        free(d[i].logits);
}

/* ---------------------------------------------------------------- golden vectors */

static const float *floats(const struct di_tensor *t)
{
    return (const float *)(const void *)t->data;
}
static const int32_t *ints(const struct di_tensor *t)
{
    return (const int32_t *)(const void *)t->data;
}

static float lead(const float *row, int n, int32_t of)
{
    float second = -INFINITY;
    for (int v = 0; v < n; v++)
        second = v != of && row[v] > second ? row[v] : second;
    return row[of] - second;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

struct mode {
    const char *field, *numerics;
    float lead; /* tokens are equal up to the first with a smaller one */
};

/* Of |differences| of logits, and of confidences: median and largest, as of the backbone's logits. tiny_d in bf16 is left a little more, as
 * in golden_test.c. */
struct demand {
    float median, largest;
};
static struct demand demand_of(const char *mode, const char *config)
{
    bool nano = strcmp(config, "nano_text") == 0;
    if (strcmp(mode, "f32_nocache_quant") == 0)
        return (struct demand){1e-4f, 1e-4f};
    if (strcmp(mode, "f32") == 0)
        return (struct demand){nano ? 0.06f : strcmp(config, "tiny_a") == 0 ? 1e-2f : 1e-3f, INFINITY};
    return (struct demand){nano ? 1.0f : strcmp(config, "tiny_d") == 0 ? 0.5f : 0.35f, INFINITY};
}

struct differences {
    float confidence[64], logits[16];
    int n_confidence, n_logits, n_blocks, n_equal;
};

static float median(float *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void check_block(const struct world *w, const struct mode *mode, int anchor, int n_anchors, const struct drafts *d, const char *what,
                        struct differences *out)
{
    int vocab = w->m->c->vocab_size, same = 0;
    const int32_t *tokens = ints(di_golden_field(&w->g, mode->field, "draft_tokens")) + anchor * WIDTH;
    const float *confidence = floats(di_golden_field(&w->g, mode->field, "draft_confidence")) + anchor * WIDTH;
    const float *logits = floats(di_golden_field(&w->g, mode->field, "draft_logits"));
    while (same < WIDTH && d->ids[same] == tokens[same])
        same++;
    if (same < WIDTH && lead(d->logits + same * vocab, vocab, d->ids[same]) >= mode->lead)
        fail_msg("%s: draft %d of anchor %d is %d, not %d, with a lead of %g", what, same, anchor, d->ids[same], tokens[same],
                 (double)lead(d->logits + same * vocab, vocab, d->ids[same]));
    out->n_blocks++;
    out->n_equal += same == WIDTH;
    for (int k = 0; k < WIDTH && k <= same; k++) /* the confidence of a draft follows from those before it */
        out->confidence[out->n_confidence++] = fabsf(d->confidence[k] - confidence[k]);
    for (int k = 0; anchor >= n_anchors - 2 && k < WIDTH && k <= same; k++) {
        const float *have = d->logits + k * vocab, *want = logits + ((anchor - n_anchors + 2) * WIDTH + k) * vocab;
        float worst = 0;
        for (int v = 0; v < vocab; v++)
            worst = fmaxf(worst, fabsf(have[v] - want[v]));
        out->logits[out->n_logits++] = worst;
    }
}

static void check_golden(const char *config, const struct mode *mode, const char *isa)
{
    struct world w;
    struct differences x = {.n_blocks = 0};
    char what[64];
    world_open(&w, &(struct setup){config, mode->numerics, isa, 2});
    const struct di_tensor *context = di_golden_field(&w.g, NULL, "draft_context"), *anchor = di_golden_field(&w.g, NULL, "draft_anchor");
    int n = (int)context->shape[0], at = 0;
    snprintf(what, sizeof what, "%s %s %s", config, mode->field, isa);
    for (int a = 0; a < n; at = ints(context)[a++]) {
        struct drafts d;
        struct di_draft_block b = {.slot = 3, .at = ints(context)[a], .token = ints(anchor)[a]};
        compute(&w, 3, w.g.ids, at, b.at, w.g.n_ids, (struct di_replay){0});
        draft(&w, 1, &b, 0, &d);
        check_block(&w, mode, a, n, &d, what, &x);
        drop(&d, 1);
    }
    float confidence = median(x.confidence, x.n_confidence), logits = median(x.logits, x.n_logits);
    printf("%-30s drafts equal in %d of %d blocks; confidence: median %.2g, largest %.2g; logits: median %.2g, largest %.2g\n", what,
           x.n_equal, x.n_blocks, (double)confidence, (double)x.confidence[x.n_confidence - 1], (double)logits,
           (double)x.logits[x.n_logits - 1]);
    struct demand need = demand_of(mode->field, config);
    assert_true(confidence <= need.median && logits <= need.median);
    assert_true(x.confidence[x.n_confidence - 1] <= need.largest && x.logits[x.n_logits - 1] <= need.largest);
    world_close(&w);
}

static const char *const configs[] = {"tiny_d", "tiny_a", "tiny_b", "tiny_c", "nano_text"};

/* nano in f32 takes long in the reference, and says less than without quantisers: `draft_test nano` runs it, too. */
static bool whole;

static void test_golden(void **state)
{
    static const struct mode modes[] = {{"f32_nocache_quant", "f32-noquant", 0}, {"f32", "f32", 0.1f}, {"bf16", "bf16", 1.0f}};
    (void)state;
    for (size_t c = 0; c < (DI_TEST_SHORT ? 1 : sizeof configs / sizeof *configs); c++)
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
            for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
                bool bf16 = strcmp(modes[i].numerics, "bf16") == 0; /* the others are the reference's */
                bool left_out = k == 0 && i > 0 && strcmp(configs[c], "nano_text") == 0 && !whole;
                if (!left_out && (bf16 ? di_test_isa(isas[k]) : k == 0 && !di_test_seed()))
                    check_golden(configs[c], &modes[i], isas[k]);
            }
}

/* ---------------------------------------------------------------- equality of bits */

static void same_drafts(const struct world *w, const struct drafts *a, const struct drafts *b, const char *what, int block)
{
    size_t bytes = WIDTH * (size_t)w->m->c->vocab_size * sizeof(float);
    if (memcmp(a->ids, b->ids, sizeof a->ids) != 0 || memcmp(a->confidence, b->confidence, sizeof a->confidence) != 0 ||
        memcmp(a->logits, b->logits, bytes) != 0)
        fail_msg("%s: block %d has other bits", what, block);
}

/* Where slot i stands. */
static struct di_draft_block block_of(const struct world *w, int i)
{
    static const int at[SLOTS] = {1, 2, 31, 32, 33, 64, 150, 200, 300};
    return (struct di_draft_block){.slot = i, .at = at[i], .token = w->g.ids[at[i]]};
}

static void check_company(const char *config, const char *isa)
{
    struct di_draft_block blocks[SLOTS];
    struct drafts alone[SLOTS], together[SLOTS];
    struct world w;
    world_open(&w, &(struct setup){config, "bf16", isa, 1});
    for (int i = 0; i < SLOTS; i++) {
        struct di_draft_block b = block_of(&w, i);
        compute(&w, i, w.g.ids, 0, b.at, b.at, (struct di_replay){0});
        draft(&w, 1, &b, i % 2, &alone[i]);
    }
    world_close(&w);
    world_open(&w, &(struct setup){config, "bf16", isa, 3});
    for (int i = 0; i < SLOTS; i++) {
        int32_t wrong[512];
        struct di_draft_block b = blocks[SLOTS - 1 - i] = block_of(&w, i);
        memcpy(wrong, w.g.ids, sizeof *wrong * (size_t)b.at);
        for (int k = 0; k <= WIDTH; k++)
            wrong[b.at + k] = 7 + k;
        compute(&w, i, w.g.ids, 0, b.at, 7, (struct di_replay){0});
        compute(&w, i, wrong, b.at, b.at + WIDTH + 1, 7, (struct di_replay){0}); /* rows of guesses that did not stay */
    }
    for (int odd = 0; odd < 2; odd++) {
        draft(&w, SLOTS, blocks, odd, together);
        for (int i = odd; i < SLOTS; i += 2)
            same_drafts(&w, &alone[i], &together[SLOTS - 1 - i], isa, i);
        drop(together, SLOTS);
    }
    drop(alone, SLOTS);
    world_close(&w);
}

static void test_company(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof isas / sizeof *isas; k++)
        for (size_t c = 0; c < (DI_TEST_SHORT || k == 0 ? 1 : 2) && di_test_isa(isas[k]); c++)
            check_company(configs[c], isas[k]);
}

/* What bounded replay leaves out is no context: whatever the rings had there does not count, and rows that were computed for nothing do not
 * either. */
static void test_floor(void **state)
{
    enum { TAIL = 150, AT = 170 };
    struct drafts d[2];
    struct world w;
    (void)state;
    world_open(&w, &(struct setup){"tiny_a", "bf16", NULL, 2});
    assert_true(di_tail_layer(w.m->c) >= 0);
    for (int mask = 0; mask < 2; mask++) {
        struct di_draft_block b = {.slot = mask, .at = AT, .token = w.g.ids[AT], .floor = TAIL};
        size_t bytes = w.s->layout.ring_bytes;
        memset((uint8_t *)di_hostile_view(w.s->states) + (size_t)mask * di_kv_state_bytes(&w.s->layout), 0x7F, bytes);
        compute(&w, mask, w.g.ids, 0, AT, mask ? 9 : AT, (struct di_replay){.tail = TAIL, .mask = mask});
        draft(&w, 1, &b, 0, &d[mask]);
    }
    same_drafts(&w, &d[0], &d[1], "tail", 0);
    for (int k = 0; k < WIDTH; k++)
        assert_true(isfinite(d[0].confidence[k]));
    drop(d, 2);
    world_close(&w);
}

/* A number of the config that a draft cannot be loaded with. */
static void refuse(const struct di_checkpoint *from, size_t field, int value, const char *sentence)
{
    struct di_checkpoint ck = *from;
    di_error err = {0};
    assert_int_equal(di_draft_check(&ck, &err), DI_OK);
    memcpy((char *)&ck.config + field, &value, sizeof value);
    assert_int_equal(di_draft_check(&ck, &err), DI_ERR_UNSUPPORTED);
    if (!strstr(err.message, sentence))
        fail_msg("\"%s\" lacks \"%s\"", err.message, sentence);
}

/* What is wrong is refused before anything is called. */
static void test_refusals(void **state)
{
    struct world w;
    di_error err = {0};
    (void)state;
    world_open(&w, &(struct setup){"tiny_d", "bf16", NULL, 1});
    struct di_draft_block b[] = {
        {.slot = 0, .at = 5, .token = -1}, {.slot = 0, .at = 5, .token = w.m->c->vocab_size}, {.slot = -1, .at = 5}, {.slot = 0, .at = -1}};
    struct di_draft d = {.n = 1, .kv = di_kv_view(w.s), .results = w.results, .confidence = w.confidence};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) {
        d.blocks = &b[i];
        assert_int_equal(di_draft_launch(w.m, &d, &err), DI_ERR_INVALID);
    }
    d.n = w.m->params.max_rows / WIDTH + 1;
    assert_int_equal(di_draft_launch(w.m, &d, &err), DI_ERR_INVALID);
    refuse(&w.m->ck, offsetof(struct di_config, num_nextn_predict_layers), 0, "config.json describes no draft");
    refuse(&w.m->ck, offsetof(struct di_config, dspark_block_size), 7, "dspark_block_size is 7");
    refuse(&w.m->ck, offsetof(struct di_config, dspark_markov_rank), 40, "dspark_markov_rank is 40");
    refuse(&w.m->ck, offsetof(struct di_config, compress_ratios) + (size_t)(w.m->c->num_hidden_layers + 1) * sizeof(int), 2,
           "compress_ratios of stage 1");
    struct di_checkpoint ck = w.m->ck;
    (void)di_fail(&ck.draft_fault, DI_ERR_FORMAT, "there", "what is wrong");
    assert_int_equal(di_draft_check(&ck, &err), DI_ERR_FORMAT);
    assert_string_equal(err.message, "what is wrong");
    world_close(&w);
}

int main(int argc, char **argv)
{
    whole = argc > 1 && strcmp(argv[1], "nano") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
