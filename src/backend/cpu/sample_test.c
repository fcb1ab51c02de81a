/* The sampler of every instruction set against the plain one of sample/sampler.c: the same tokens and the same bits of log-probabilities,
 * over vocabularies, laws, ties, masks and edits; whole steps on any number of threads. */
#include "backend/backend.h"
#include "base/mem.h"
#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef DI_TEST_QUICK
#define CASES 300
#define LARGE_CASES 6
#else
#define CASES 6000
#define LARGE_CASES 120
#endif
#define MAX_VOCAB 129280
#define ROWS 9

static uint64_t draws;

static uint32_t word(void)
{
    uint64_t n = draws++;
    return di_philox(7, (struct di_philox){{(uint32_t)n, (uint32_t)(n >> 32), 0, 0}}).w[0];
}

static double unit(void)
{
    return (word() + 0.5) * 0x1p-32;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit()));
}

/* ---- rows ---- */

enum { NORMAL, FLAT, PEAKED, FEW_VALUES, EQUAL, TIES, HUGE, TINY_STEPS, RISING, SIGNED_ZEROS, KINDS };

static void fill_logits(float *x, int n, uint32_t kind)
{
    float width = (float)(unit() * 8);
    for (int i = 0; i < n; i++)
        switch (kind) {
        case NORMAL: x[i] = normal() * width; break;
        case FLAT: x[i] = normal() * 0.01f; break;
        case PEAKED: x[i] = normal() * 2 + (word() % 97 == 0 ? 12 : 0); break;
        case FEW_VALUES: x[i] = (float)(word() % 5); break;
        case EQUAL: x[i] = 3.5f; break;
        case TIES: x[i] = roundf(normal() * 4) / 4; break;
        case HUGE: x[i] = (word() % 2 ? 1 : -1) * FLT_MAX * (float)unit(); break;
        case TINY_STEPS: x[i] = 100000 + 0.0078125f * (float)(word() % 1000); break;
        case RISING: x[i] = (float)i * 0.01f; break;
        default: x[i] = word() % 2 ? 0.0f : -0.0f;
        }
    if (kind == PEAKED)
        x[word() % (uint32_t)n] = 30;
}

struct request {
    struct di_sampling_params params;
    struct di_logit_bias bias[4];
    int32_t end_ids[2];
    struct di_token_counts *counts;
};

static double one_of(const double *values, size_t n)
{
    return values[word() % n];
}
#define ONE_OF(...) one_of((const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

static void fill_request(struct request *r, int vocab)
{
    struct di_sampling_params p = di_sampling_params_default();
    p.temperature = ONE_OF(0, 1, 1, 1, 0.7, 0.3, 2, 0.0001, unit() * 2);
    p.top_p = ONE_OF(1, 1, 0.95, 0.5, 1e-9, 0.999999, unit());
    p.top_k = (int64_t)ONE_OF(-1, -1, 1, 2, 50, 1000, (double)vocab, (double)vocab - 1, 1 + word() % (uint32_t)vocab);
    p.min_p = ONE_OF(0, 0, 0, 0.05, 1, unit());
    p.logprobs = word() % 2;
    p.top_logprobs = p.logprobs ? word() % (DI_MAX_TOP_LOGPROBS + 1) : 0;
    if (word() % 4 == 0) {
        p.n_bias = 1 + word() % 4;
        for (size_t i = 0; i < p.n_bias; i++)
            r->bias[i] = (struct di_logit_bias){(int32_t)(word() % (uint32_t)vocab), (float)(unit() * 200 - 100)};
        p.bias = r->bias;
    }
    if (word() % 4 == 0) {
        p.min_tokens = 5;
        p.n_end_ids = 2;
        for (size_t i = 0; i < 2; i++)
            r->end_ids[i] = (int32_t)(word() % (uint32_t)vocab);
        p.end_ids = r->end_ids;
    }
    r->counts = NULL;
    if (word() % 4 == 0) {
        p.repetition_penalty = ONE_OF(1.3, 0.001, 1000);
        p.presence_penalty = unit();
        p.frequency_penalty = unit();
        assert_int_equal(di_token_counts_create((size_t)vocab, &r->counts, NULL), DI_OK);
        for (int i = 0; i < 20; i++)
            (i % 2 ? di_token_counts_add : di_token_counts_add_prompt)(r->counts, (int32_t)(word() % (uint32_t)vocab));
    }
    r->params = p;
}

static void fill_mask(uint64_t *bits, int vocab, uint32_t kind)
{
    for (int w = 0; w * 64 < vocab; w++) {
        uint64_t random = (uint64_t)word() << 32 | word();
        bits[w] = kind == 0 ? random : kind == 1 ? random & (random >> 7) & (random << 9) : word() % 50 == 0 ? 1 : 0;
    }
}

/* ---- comparison ---- */

static void check_same(const struct di_sample_result *want, const struct di_sample_result *got, const char *what, const char *isa, int n)
{
    if (want->status != got->status)
        fail_msg("case %d, %s, %s: status %d, expected %d", n, what, isa, (int)got->status, (int)want->status);
    if (want->status != DI_OK) {
        assert_string_equal(want->err.message, got->err.message);
        assert_string_equal(want->err.where, got->err.where);
        return;
    }
    if (want->sample.id != got->sample.id)
        fail_msg("case %d, %s, %s: token %d, expected %d", n, what, isa, (int)got->sample.id, (int)want->sample.id);
    assert_memory_equal(&want->sample.logprob, &got->sample.logprob, sizeof(float));
    assert_int_equal(want->sample.n_top, got->sample.n_top);
    assert_memory_equal(want->sample.top, got->sample.top, want->sample.n_top * sizeof *want->sample.top);
}

static struct di_config config;

static struct di_backend *open_backend(const char *isa, int threads, int vocab)
{
    memset(&config, 0, sizeof config);
    config.hidden_size = config.head_dim = 64, config.num_attention_heads = config.index_n_heads = 2, config.index_head_dim = 32;
    config.index_topk = 16, config.candidate_topk_blocks = 8, config.candidate_block_size = 4, config.sliding_window = 16,
    config.hc_mult = 4;
    config.num_hidden_layers = config.n_kv_sources = 1, config.compress_ratios[0] = 1;
    config.moe_intermediate_size = config.q_lora_rank = config.o_lora_rank = 32, config.o_groups = 1, config.n_routed_experts = 4;
    config.num_experts_per_tok = 2, config.vocab_size = vocab;
    struct di_backend_params p = {.config = &config, .max_rows = 1, .max_context = 64, .threads = threads, .isa = isa};
    struct di_backend *be;
    assert_true(di_numerics_by_name("bf16", &p.numerics));
    return di_backend_cpu_create(&p, &be, NULL) == DI_OK ? be : NULL; /* not on this processor */
}

/* Random rows of one vocabulary, a step of ROWS at a time. */
static void compare_vocabulary(int vocab, int cases)
{
    static const char *const isas[] = {"avx2", "avx512"};
    struct di_backend *ref = open_backend("ref", 1, vocab);
    float *logits = malloc(ROWS * (size_t)vocab * sizeof *logits);
    size_t words = (size_t)vocab / 64 + 1;
    uint64_t *masks = malloc(2 * ROWS * words * sizeof *masks);
    assert_true(ref && logits && masks);
    for (int n = 0; n < cases; n += ROWS) {
        struct di_sample_task tasks[ROWS];
        struct request requests[ROWS];
        static struct di_sample_result want[ROWS], got[ROWS];
        char what[ROWS][200];
        memset(want, 0x33, sizeof want);
        for (int i = 0; i < ROWS; i++) {
            uint32_t kind = word() % KINDS;
            fill_logits(logits + (size_t)i * (size_t)vocab, vocab, kind);
            fill_request(&requests[i], vocab);
            const struct di_sampling_params *p = &requests[i].params;
            snprintf(what[i], sizeof what[i], "%d ids, kind %u, T %g, top_k %lld, top_p %g, min_p %g", vocab, kind, p->temperature,
                     (long long)p->top_k, p->top_p, p->min_p);
            uint64_t *banned = masks + 2 * (size_t)i * words, *allowed = banned + words;
            fill_mask(banned, vocab, 2);
            fill_mask(allowed, vocab, word() % 3);
            if (word() % 50 == 0)
                logits[(size_t)i * (size_t)vocab + word() % (uint32_t)vocab] = word() % 2 ? NAN : INFINITY;
            tasks[i] = (struct di_sample_task){.row = {.logits = logits + (size_t)i * (size_t)vocab,
                                                       .params = p,
                                                       .counts = requests[i].counts,
                                                       .banned = word() % 2 ? banned : NULL,
                                                       .allowed = word() % 4 == 0 ? allowed : NULL,
                                                       .n_generated = word() % 8,
                                                       .position = word()},
                                               .key = (uint64_t)word() << 32 | word(),
                                               .forced = word() % 8 ? -1 : (int32_t)(word() % (uint32_t)vocab)};
        }
        ref->ops->sample(ref, &(struct di_op_sample){.m = ROWS, .tasks = tasks, .results = want});
        for (size_t k = 0; k < sizeof isas / sizeof *isas; k++)
            for (int threads = 1; threads <= 2; threads++) {
                struct di_backend *be = open_backend(isas[k], threads, vocab);
                if (!be)
                    continue;
                memset(got, 0x55, sizeof got);
                be->ops->sample(be, &(struct di_op_sample){.m = ROWS, .tasks = tasks, .results = got});
                for (int i = 0; i < ROWS; i++)
                    check_same(&want[i], &got[i], what[i], isas[k], n + i);
                be->ops->destroy(be);
            }
        for (int i = 0; i < ROWS; i++)
            di_token_counts_destroy(requests[i].counts);
    }
    free(logits);
    free(masks);
    ref->ops->destroy(ref);
}

static void test_small_vocabularies(void **state)
{
    (void)state;
    static const int sizes[] = {2, 15, 16, 17, 31, 33, 64, 100, 257, 1000, 4099};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        compare_vocabulary(sizes[i], CASES / 11);
}

static void test_the_full_vocabulary(void **state)
{
    (void)state;
    compare_vocabulary(MAX_VOCAB, LARGE_CASES);
}

/* The token with the largest noise of some positions wins from as far below as that noise allows, and not from further. */
static void test_largest_noise(void **state)
{
    (void)state;
    static const char *const isas[] = {"ref", "avx2", "avx512"};
    static float logits[MAX_VOCAB];
    struct di_noise noise = {.key = 5, .stream = DI_STREAM_TARGET}, best = noise;
    struct di_sampling_params p = di_sampling_params_default();
    double largest = 0;
    int32_t id = 0;
    for (noise.position = 0; noise.position < 100; noise.position++)
        for (int32_t i = 1; i < MAX_VOCAB; i++) {
            double u = di_noise_uniform(&noise, (uint32_t)i);
            if (u > largest) {
                largest = u;
                id = i;
                best = noise;
            }
        }
    double gap = di_noise_gumbel(&best, (uint32_t)id) - di_noise_gumbel(&best, 0);
    assert_true(gap > 14);
    for (int side = 0; side < 2; side++)
        for (size_t k = 0; k < sizeof isas / sizeof *isas; k++) {
            struct di_backend *be = open_backend(isas[k], 1, MAX_VOCAB);
            static struct di_sample_result result;
            if (!be)
                continue;
            for (int i = 0; i < MAX_VOCAB; i++)
                logits[i] = -1000;
            logits[0] = 0;
            logits[id] = (float)(side ? -gap - 1e-4 : -gap + 1e-4);
            struct di_sample_task task = {
                .row = {.logits = logits, .params = &p, .position = best.position}, .key = best.key, .forced = -1};
            be->ops->sample(be, &(struct di_op_sample){.m = 1, .tasks = &task, .results = &result});
            assert_int_equal(result.sample.id, side ? 0 : id);
            be->ops->destroy(be);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_vocabularies),
        cmocka_unit_test(test_the_full_vocabulary),
        cmocka_unit_test(test_largest_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
