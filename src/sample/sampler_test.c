/* not run under TSan: no threads */
#include "sample/sampler.h"

#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_VOCAB 1000

static uint64_t draws;

static uint32_t word(void)
{
    uint64_t n = draws++;
    return di_philox(42, (struct di_philox){{(uint32_t)n, (uint32_t)(n >> 32), 0, 0}}).w[0];
}

static double unit(void)
{
    return (word() + 0.5) * 0x1p-32;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit()));
}

static struct di_law *new_law(size_t vocab)
{
    struct di_law *law;
    assert_int_equal(di_law_create(vocab, &law, NULL), DI_OK);
    return law;
}

static void load(struct di_law *law, const float *logits, const struct di_sampling_params *p)
{
    struct di_row row = {.logits = logits, .params = p};
    di_error err = {0};
    if (di_law_load(law, &row, &err) != DI_OK)
        fail_msg("%s", err.message);
}

/* ---- a plain model: sort everything, long doubles ---- */

struct plain {
    size_t n;
    long double p[MAX_VOCAB]; /* probabilities after truncation */
    bool doubtful;            /* a cumulated sum came so close to a threshold that rounding could decide */
};

static const float *sort_by;

static int by_order(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    if (sort_by[i] != sort_by[j])
        return sort_by[i] > sort_by[j] ? -1 : 1;
    return i - j;
}

static void plain_law(struct plain *m, const float *x, size_t n, const struct di_sampling_params *p)
{
    int order[MAX_VOCAB];
    long double w[MAX_VOCAB], sum = 0, seen = 0;
    *m = (struct plain){.n = n};
    for (size_t i = 0; i < n; i++)
        order[i] = (int)i;
    sort_by = x;
    qsort(order, n, sizeof *order, by_order);
    size_t keep = p->top_k > 0 && (size_t)p->top_k < n ? (size_t)p->top_k : n;
    for (size_t i = 0; i < keep; i++)
        sum += w[i] = expl(((long double)x[order[i]] - (long double)x[order[0]]) / (long double)p->temperature);
    size_t kept = 0;
    for (; kept < keep && (p->top_p == 1.0 || seen < p->top_p * sum || kept == 0); kept++) {
        seen += w[kept];
        m->doubtful |= p->top_p < 1.0 && fabsl(seen / sum - p->top_p) < 1e-7L;
    }
    sum = 0;
    for (size_t i = 0; i < kept; i++) {
        m->doubtful |= p->min_p > 0 && fabsl(w[i] - p->min_p) < 1e-9L && w[i] != p->min_p;
        w[i] = w[i] >= p->min_p ? w[i] : 0;
        sum += w[i];
    }
    for (size_t i = 0; i < kept; i++)
        m->p[order[i]] = w[i] / sum;
}

/* Normal logits, logits with many ties, few distinct ones, one far ahead. */
static void random_logits(float *x, size_t n)
{
    uint32_t kind = word() % 4;
    for (size_t i = 0; i < n; i++) {
        x[i] = normal() * 3;
        if (kind == 1)
            x[i] = roundf(x[i]) / 2;
        if (kind == 2)
            x[i] = (float)(word() % 3);
    }
    if (kind == 3)
        x[word() % n] = 30;
}

static struct di_sampling_params random_params(void)
{
    struct di_sampling_params p = di_sampling_params_default();
    static const double temperatures[] = {0.3, 0.7, 1.0, 1.0, 2.0};
    p.temperature = temperatures[word() % 5];
    if (word() % 2)
        p.top_k = 1 + word() % 40;
    if (word() % 2)
        p.top_p = unit();
    if (word() % 3 == 0)
        p.min_p = unit() * unit();
    return p;
}

static void test_support_and_probabilities(void **state)
{
    (void)state;
    size_t doubtful = 0, rounds = 4000;
    for (size_t round = 0; round < rounds; round++) {
        size_t n = 1 + word() % MAX_VOCAB;
        float x[MAX_VOCAB];
        random_logits(x, n);
        struct di_sampling_params p = random_params();
        struct plain m;
        plain_law(&m, x, n, &p);
        doubtful += m.doubtful;
        if (m.doubtful)
            continue;
        struct di_law *law = new_law(n);
        load(law, x, &p);
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            double got = di_law_probability(law, (int32_t)i);
            if (di_law_has(law, (int32_t)i) != (m.p[i] > 0))
                fail_msg("support of token %zu (k %d, p %g, min %g)", i, (int)p.top_k, p.top_p, p.min_p);
            assert_true(fabsl(got - m.p[i]) < 1e-9L);
            sum += got;
        }
        assert_true(fabs(sum - 1) < 1e-12);
        di_law_destroy(law);
    }
    assert_true(doubtful < rounds / 100);
}

/* Ties at a boundary: the lowest ids stay; k counts exactly; limits that keep one token; limits that keep all. */
static void test_edges_of_truncation(void **state)
{
    (void)state;
    float x[70];
    for (size_t i = 0; i < 70; i++)
        x[i] = i % 7 == 3 ? 2.0f : i % 7 == 5 ? 1.0f : -(float)i;
    struct di_law *law = new_law(70);
    struct di_sampling_params p = di_sampling_params_default();
    p.top_k = 4;
    load(law, x, &p);
    for (int32_t i = 0; i < 70; i++)
        assert_int_equal(di_law_has(law, i), i == 3 || i == 10 || i == 17 || i == 24);
    assert_true(di_law_probability(law, 10) == 0.25);
    p.top_k = 12; /* ten of 2.0, then two of the ten with 1.0 */
    load(law, x, &p);
    assert_true(di_law_has(law, 66) && di_law_has(law, 5) && di_law_has(law, 12) && !di_law_has(law, 19));
    p = di_sampling_params_default();
    p.top_p = 1e-300;
    load(law, x, &p);
    assert_true(di_law_probability(law, 3) == 1.0 && !di_law_has(law, 10));
    p.top_k = 8;
    p.top_p = 0.5; /* of the renormalised eight equal ones: exactly four */
    load(law, x, &p);
    assert_true(di_law_has(law, 24) && !di_law_has(law, 31));
    p.top_p = nextafter(0.5, 1);
    load(law, x, &p);
    assert_true(di_law_has(law, 31) && !di_law_has(law, 38));
    p = di_sampling_params_default();
    p.min_p = 1.0;
    load(law, x, &p);
    assert_true(di_law_has(law, 66) && !di_law_has(law, 5) && di_law_probability(law, 66) == 0.1);
    p = di_sampling_params_default();
    p.top_k = 70;
    p.top_p = nextafter(1, 0);
    load(law, x, &p);
    assert_true(di_law_has(law, 5) && di_law_has(law, 0));
    p.top_k = 1;
    for (uint64_t position = 0; position < 100; position++) {
        load(law, x, &p);
        assert_int_equal(di_law_draw(law, &(struct di_noise){.key = 5, .position = position}), 3);
    }
    float zeros[3] = {-0.0f, 0.0f, -0.0f}; /* equal */
    p = di_sampling_params_default();
    p.top_k = 2;
    struct di_law *small = new_law(3);
    load(small, zeros, &p);
    assert_true(di_law_has(small, 0) && di_law_has(small, 1) && !di_law_has(small, 2));
    p.temperature = 0;
    load(small, zeros, &p);
    assert_int_equal(di_law_draw(small, &(struct di_noise){.key = 1}), 0);
    di_law_destroy(small);
    di_law_destroy(law);
}

/* ---- the draw ---- */

static void test_draw_is_the_plain_argmax(void **state)
{
    (void)state;
    for (size_t round = 0; round < 3000; round++) {
        size_t n = 1 + word() % MAX_VOCAB;
        float x[MAX_VOCAB];
        random_logits(x, n);
        struct di_sampling_params p = random_params();
        struct di_law *law = new_law(n);
        load(law, x, &p);
        struct di_noise noise = {.key = word(), .position = word(), .anchor = word() % 3, .stream = (enum di_stream)(word() % 3)};
        long double best = -INFINITY;
        int32_t want = -1;
        size_t start = word() % n; /* in any order */
        for (size_t k = 0; k < n; k++) {
            int32_t i = (int32_t)((start + k) % n);
            long double u =
                ((long double)di_philox(noise.key, (struct di_philox){{(uint32_t)noise.position,
                                                                       (uint32_t)noise.stream << 24 | (uint32_t)i / 4, noise.anchor, 0}})
                     .w[i % 4] +
                 0.5L) *
                0x1p-32L;
            long double value = (long double)x[i] / p.temperature - logl(-logl(u));
            if (di_law_has(law, i) && (value > best || (value == best && i < want))) {
                best = value;
                want = i;
            }
        }
        assert_int_equal(di_law_draw(law, &noise), want);
        di_law_destroy(law);
    }
}

/* The largest noise there is: a word of ones, found by trying. The token behind it wins from 22.9 below. */
static void test_largest_noise(void **state)
{
    (void)state;
    struct di_noise noise = {.key = 1, .position = 2806061650, .stream = DI_STREAM_TARGET};
    float x[6] = {-50, 0, -50, -50, -50, 0}; /* the leader stands in another block of four */
    float ahead = (float)(22.86 - di_noise_gumbel(&noise, 5));
    struct di_sampling_params p = di_sampling_params_default();
    struct di_law *law = new_law(6);
    assert_true(di_noise_uniform(&noise, 1) == 1 - 0x1p-33);
    assert_true(di_noise_uniform(&noise, 0) == (0x4f558f3d + 0.5) * 0x1p-32);
    assert_true(di_noise_gumbel(&noise, 1) < 22.9);
    x[5] = ahead;
    load(law, x, &p);
    assert_int_equal(di_law_draw(law, &noise), 1);
    x[5] = ahead + 0.1f;
    load(law, x, &p);
    assert_int_equal(di_law_draw(law, &noise), 5);
    di_law_destroy(law);
}

/* Chi-square of `n_draws` tokens against the plain model; cells with less than 10 expected tokens are joined. Too large with probability
 * 1e-6 (Wilson and Hilferty's approximation). */
static void check_fit(const float *x, size_t n, const struct di_sampling_params *p, size_t n_draws, uint64_t key)
{
    struct plain m;
    plain_law(&m, x, n, p);
    assert_false(m.doubtful);
    struct di_law *law = new_law(n);
    size_t *count = calloc(n, sizeof *count);
    load(law, x, p);
    for (size_t i = 0; i < n_draws; i++)
        count[di_law_draw(law, &(struct di_noise){.key = key, .position = i})]++;
    double chi2 = 0, rest_want = 0, rest_got = 0, cells = 0;
    for (size_t i = 0; i < n; i++) {
        double want = (double)m.p[i] * (double)n_draws;
        assert_true(m.p[i] > 0 || count[i] == 0);
        if (want < 10) {
            rest_want += want;
            rest_got += (double)count[i];
            continue;
        }
        chi2 += (want - (double)count[i]) * (want - (double)count[i]) / want;
        cells++;
    }
    if (rest_want >= 10) {
        chi2 += (rest_want - rest_got) * (rest_want - rest_got) / rest_want;
        cells++;
    }
    double f = cells - 1, limit = f > 0 ? f * pow(1 - 2 / (9 * f) + 4.75 * sqrt(2 / (9 * f)), 3) : 1e-9;
    if (chi2 > limit)
        fail_msg("chi-square %.1f with %.0f degrees of freedom (limit %.1f)", chi2, f, limit);
    free(count);
    di_law_destroy(law);
}

static void test_goodness_of_fit(void **state)
{
    (void)state;
    static const struct {
        double temperature, top_p, min_p;
        int64_t top_k;
    } sets[] = {{1, 1, 0, -1}, {0.3, 1, 0, -1}, {2, 1, 0, 0}, {1, 0.8, 0, -1}, {1, 1, 0.1, -1}, {1, 1, 0, 5}, {0.7, 0.9, 0.02, 20}};
    float x[200];
    for (size_t i = 0; i < 200; i++)
        x[i] = normal() * 2;
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        struct di_sampling_params p = di_sampling_params_default();
        p.temperature = sets[s].temperature;
        p.top_p = sets[s].top_p;
        p.min_p = sets[s].min_p;
        p.top_k = sets[s].top_k;
        check_fit(x, 200, &p, 200000, 1000 + s);
    }
    struct di_sampling_params p = di_sampling_params_default();
    float three[3] = {logf(0.1f), logf(0.6f), logf(0.3f)};
    check_fit(three, 3, &p, 1000000, 9);
    float skewed[2] = {0, -9}; /* a tail of 1.2e-4 */
    check_fit(skewed, 2, &p, 1000000, 10);
}

/* The same bits from every compiler, processor and back end: a digest of tokens drawn from a fixed row. */
static void test_draws_are_stable(void **state)
{
    (void)state;
    float x[777];
    for (size_t i = 0; i < 777; i++)
        x[i] = (float)((int32_t)di_philox(3, (struct di_philox){{(uint32_t)i, 0, 0, 0}}).w[0] >> 8) * 0x1p-20f;
    struct di_sampling_params p = di_sampling_params_default();
    struct di_law *law = new_law(777);
    uint64_t digest = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        p.temperature = i % 3 ? 1.0 : 0.6;
        p.top_p = i % 5 ? 1.0 : 0.9;
        p.top_k = i % 7 ? -1 : 50;
        p.min_p = i % 11 ? 0 : 0.03;
        struct di_row row = {.logits = x, .params = &p, .position = i};
        struct di_sample a, b;
        assert_int_equal(di_sample_row(law, &row, 12345, &a, NULL), DI_OK);
        assert_int_equal(di_sample_row(law, &row, 12345, &b, NULL), DI_OK);
        assert_int_equal(a.id, b.id);
        digest = digest * 0x100000001B3u + (uint64_t)a.id;
    }
    assert_int_equal(digest, UINT64_C(0x70a1117f61229c5e));
    di_law_destroy(law);
}

static void test_streams_are_apart(void **state)
{
    (void)state;
    struct di_noise a = {.key = 1, .position = 2, .stream = DI_STREAM_TARGET}, b = a, c = a, d = a;
    b.stream = DI_STREAM_DRAFT;
    c.position = 3;
    d.anchor = 1;
    double sum[3] = {0}, n = 20000;
    for (uint32_t i = 0; i < 20000; i++) {
        double u = di_noise_uniform(&a, i) - 0.5;
        assert_true(u > -0.5 && u < 0.5);
        assert_true(di_noise_gumbel(&a, i) == -log(-log(u + 0.5)) || fabs(di_noise_gumbel(&a, i) + log(-log(u + 0.5))) < 1e-12);
        sum[0] += u * (di_noise_uniform(&b, i) - 0.5);
        sum[1] += u * (di_noise_uniform(&c, i) - 0.5);
        sum[2] += u * (di_noise_uniform(&d, i) - 0.5);
    }
    for (int k = 0; k < 3; k++)
        assert_true(fabs(sum[k]) / n * 12 < 5 / sqrt(n)); /* correlation within five sigmas */
    assert_true(di_sample_key(77, 0) == 77);
    assert_true(di_sample_key(77, 1) != di_sample_key(77, 2) && di_sample_key(77, 1) != di_sample_key(78, 1));
}

/* ---- bias, penalties, bans ---- */

static void test_penalties(void **state)
{
    (void)state;
    enum { N = 300 };
    struct di_token_counts *c;
    assert_int_equal(di_token_counts_create(N, &c, NULL), DI_OK);
    struct di_law *law = new_law(N);
    for (int round = 0; round < 300; round++) {
        float x[N];
        double want[N];
        int count[N] = {0}, prompt[N] = {0};
        random_logits(x, N);
        di_token_counts_reset(c);
        for (int k = 0; k < 100; k++) {
            int32_t id = (int32_t)(word() % 40) * 7;
            switch (word() % 4) {
            case 0: di_token_counts_add_prompt(c, id), prompt[id] = 1; break;
            case 1:
            case 2: di_token_counts_add(c, id), count[id]++; break;
            default:
                if (count[id])
                    di_token_counts_remove(c, id), count[id]--;
            }
        }
        di_token_counts_add(c, -1);
        di_token_counts_add(c, N);
        struct di_logit_bias bias[3] = {{5, 3.5f}, {7, -20}, {7, 1}};
        struct di_sampling_params p = di_sampling_params_default();
        p.repetition_penalty = 0.5 + unit() * 1.5;
        p.presence_penalty = unit() * 4 - 2;
        p.frequency_penalty = unit() * 4 - 2;
        p.bias = bias;
        p.n_bias = 3;
        for (int i = 0; i < N; i++) {
            want[i] = x[i] + (i == 5 ? 3.5 : i == 7 ? -19 : 0);
            if (count[i] || prompt[i])
                want[i] = want[i] > 0 ? want[i] / p.repetition_penalty : want[i] * p.repetition_penalty;
            want[i] -= count[i] ? p.presence_penalty + count[i] * p.frequency_penalty : 0;
        }
        double sum = 0, max = -1e9;
        for (int i = 0; i < N; i++)
            max = fmax(max, want[i]);
        for (int i = 0; i < N; i++)
            sum += exp(want[i] - max);
        struct di_row row = {.logits = x, .params = &p, .counts = c};
        assert_int_equal(di_law_load(law, &row, NULL), DI_OK);
        for (int i = 0; i < N; i++)
            assert_true(fabs(di_law_probability(law, i) - exp(want[i] - max) / sum) < 1e-5);
    }
    di_law_destroy(law);
    di_token_counts_destroy(c);
}

static void test_bans_and_masks(void **state)
{
    (void)state;
    enum { N = 130 };
    float x[N];
    uint64_t banned[3], allowed[3], all[3] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct di_law *law = new_law(N);
    struct di_sampling_params p = di_sampling_params_default();
    int32_t ends[2] = {1, 64};
    p.end_ids = ends;
    p.n_end_ids = 2;
    p.min_tokens = 3;
    for (int round = 0; round < 500; round++) {
        random_logits(x, N);
        for (int w = 0; w < 3; w++) {
            banned[w] = (uint64_t)word() << 32 | word();
            allowed[w] = (uint64_t)word() << 32 | word();
        }
        p.temperature = round % 2;
        struct di_row row = {.logits = x,
                             .params = &p,
                             .banned = banned,
                             .allowed = allowed,
                             .n_generated = (uint64_t)round % 5,
                             .position = (uint64_t)round};
        struct di_sample s;
        assert_int_equal(di_sample_row(law, &row, 3, &s, NULL), DI_OK);
        for (int32_t i = 0; i < N; i++) {
            bool may = (allowed[i / 64] >> i % 64 & 1) && !(banned[i / 64] >> i % 64 & 1);
            may = may && !((i == 1 || i == 64) && row.n_generated < 3);
            if (p.temperature > 0)
                assert_int_equal(di_law_has(law, i), may);
            assert_true(may || s.id != i);
        }
    }
    di_error err = {0};
    struct di_row row = {.logits = x, .params = &p, .banned = all, .position = 99};
    struct di_sample s;
    assert_int_equal(di_sample_row(law, &row, 3, &s, &err), DI_ERR_INVALID);
    assert_non_null(strstr(err.message, "position 99"));
    memset(allowed, 0, sizeof allowed);
    allowed[2] = ~(uint64_t)3; /* only bits behind the vocabulary */
    row = (struct di_row){.logits = x, .params = &p, .allowed = allowed};
    assert_int_equal(di_sample_row(law, &row, 3, &s, &err), DI_ERR_INVALID);
    assert_string_equal(err.where, "allowed_token_ids");
    allowed[2] |= 2; /* all but one */
    p.top_k = 5;
    p.top_p = 0.5;
    p.min_p = 0.5;
    row.n_generated = 10;
    assert_int_equal(di_sample_row(law, &row, 3, &s, &err), DI_OK);
    assert_int_equal(s.id, 129);
    di_law_destroy(law);
}

static void test_bad_logits(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    struct di_law *law = new_law(50);
    struct di_sampling_params p = di_sampling_params_default();
    for (size_t b = 0; b < 4; b++)
        for (size_t at = 0; at < 50; at += 7) {
            float x[50] = {0};
            x[at] = bad[b];
            struct di_row row = {.logits = x, .params = &p};
            struct di_sample s;
            di_error err = {0};
            assert_int_equal(di_sample_row(law, &row, 1, &s, &err), DI_ERR_INTERNAL);
            assert_true(err.message[0] != 0);
            assert_int_equal(di_row_logprobs(x, 50, 3, 2, &s, &err), DI_ERR_INTERNAL);
        }
    /* the largest finite numbers, whatever is done to them */
    float x[50];
    for (size_t i = 0; i < 50; i++)
        x[i] = i % 2 ? FLT_MAX : -FLT_MAX;
    struct di_token_counts *c;
    assert_int_equal(di_token_counts_create(50, &c, NULL), DI_OK);
    for (int32_t i = 0; i < 50; i++)
        di_token_counts_add(c, i);
    struct di_logit_bias bias = {3, 100};
    p.bias = &bias;
    p.n_bias = 1;
    p.repetition_penalty = 1e-300;
    p.temperature = 1e-5;
    p.top_p = 0.9;
    p.min_p = 0.1;
    struct di_row row = {.logits = x, .params = &p, .counts = c};
    struct di_sample s;
    int32_t largest = 0;
    for (row.position = 0; row.position < 50; row.position++) {
        assert_int_equal(di_sample_row(law, &row, 1, &s, NULL), DI_OK);
        assert_int_equal(s.id % 2, 1);
        largest = s.id > largest ? s.id : largest;
    }
    assert_true(largest > 1);
    /* a penalty that rounds to -0 makes a tie with 0 */
    for (size_t i = 0; i < 50; i++)
        x[i] = i ? -1 : -1e-40f;
    x[7] = 0;
    di_token_counts_remove(c, 7);
    p = di_sampling_params_default();
    p.repetition_penalty = 1e-10;
    p.top_k = 1;
    row.position = 0;
    assert_int_equal(di_law_load(law, &row, NULL), DI_OK);
    assert_true(di_law_argmax(law) == 0 && di_law_has(law, 0) && !di_law_has(law, 7));
    di_token_counts_destroy(c);
    di_law_destroy(law);
}

static void test_parameters_are_checked(void **state)
{
    (void)state;
    const struct di_sampling_params ok = di_sampling_params_default();
    struct di_logit_bias bias[] = {{3, 1}, {10, 1}, {2, 101}, {2, NAN}, {-1, 0}};
    int32_t ids[] = {0, 10, -1};
    struct {
        struct di_sampling_params p;
        const char *field;
    } cases[40];
    size_t n = 0;
#define BAD(member, value)           \
    do {                             \
        cases[n].p = ok;             \
        cases[n].p.member = (value); \
        cases[n++].field = #member;  \
    } while (0)
    BAD(temperature, NAN);
    BAD(temperature, -0.1);
    BAD(temperature, 2.1);
    BAD(temperature, INFINITY);
    BAD(top_p, 0);
    BAD(top_p, 1.1);
    BAD(top_p, NAN);
    BAD(min_p, -1);
    BAD(min_p, 1.01);
    BAD(min_p, NAN);
    BAD(top_k, -2);
    BAD(repetition_penalty, 0);
    BAD(repetition_penalty, -1);
    BAD(repetition_penalty, INFINITY);
    BAD(repetition_penalty, NAN);
    BAD(presence_penalty, -2.1);
    BAD(frequency_penalty, 2.1);
    BAD(frequency_penalty, NAN);
    BAD(min_tokens, -1);
    BAD(top_logprobs, 21);
    BAD(top_logprobs, 3); /* without logprobs */
    for (size_t i = 1; i < 5; i++) {
        cases[n].p = ok;
        cases[n].p.bias = &bias[i];
        cases[n].p.n_bias = 1;
        cases[n++].field = "logit_bias";
    }
    for (size_t i = 1; i < 3; i++) {
        cases[n].p = ok;
        cases[n].p.end_ids = &ids[i];
        cases[n].p.n_end_ids = 1;
        cases[n++].field = "stop_token_ids";
    }
    for (size_t i = 0; i < n; i++) {
        di_error err = {0};
        if (di_sampling_params_check(&cases[i].p, 10, &err) != DI_ERR_INVALID || strcmp(err.where, cases[i].field) != 0)
            fail_msg("case %zu: %s: %s", i, err.where, err.message);
    }
    struct di_sampling_params p = ok;
    p.bias = bias;
    p.n_bias = 1;
    p.end_ids = ids;
    p.n_end_ids = 1;
    p.top_logprobs = 20;
    p.logprobs = true;
    p.temperature = 0;
    assert_int_equal(di_sampling_params_check(&p, 10, NULL), DI_OK);
    assert_int_equal(di_sampling_params_check(&ok, 1, NULL), DI_OK);
}

/* ---- log-probabilities ---- */

static void test_logprobs(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        size_t n = 1 + word() % MAX_VOCAB, n_top = word() % (DI_MAX_TOP_LOGPROBS + 1);
        float x[MAX_VOCAB];
        int order[MAX_VOCAB];
        random_logits(x, n);
        long double sum = 0;
        for (size_t i = 0; i < n; i++) {
            order[i] = (int)i;
            sum += expl((long double)x[i]);
        }
        sort_by = x;
        qsort(order, n, sizeof *order, by_order);
        struct di_sample s;
        int32_t id = (int32_t)(word() % n);
        assert_int_equal(di_row_logprobs(x, n, id, n_top, &s, NULL), DI_OK);
        assert_int_equal(s.id, id);
        assert_true(fabsl((long double)s.logprob - ((long double)x[id] - logl(sum))) < 4e-6L);
        assert_int_equal(s.n_top, n_top < n ? n_top : n);
        for (size_t i = 0; i < s.n_top; i++) {
            assert_int_equal(s.top[i].id, order[i]);
            assert_true(fabsl((long double)s.top[i].logprob - ((long double)x[order[i]] - logl(sum))) < 4e-6L);
        }
    }
    float x[4] = {0, 0, 0, 0};
    struct di_sample s;
    assert_int_equal(di_row_logprobs(x, 4, 4, 0, &s, NULL), DI_ERR_INVALID);
    assert_int_equal(di_row_logprobs(x, 4, 0, DI_MAX_TOP_LOGPROBS + 1, &s, NULL), DI_ERR_INVALID);
    /* of the model's own law: the processed one would be a point mass */
    struct di_sampling_params p = di_sampling_params_default();
    struct di_law *law = new_law(4);
    p.temperature = 0;
    p.logprobs = true;
    p.top_logprobs = 2;
    struct di_row row = {.logits = x, .params = &p};
    uint64_t calls = di_mem_calls();
    assert_int_equal(di_sample_row(law, &row, 0, &s, NULL), DI_OK);
    assert_int_equal(di_mem_calls(), calls); /* sampling allocates nothing */
    assert_true(s.id == 0 && fabsf(s.logprob - logf(0.25f)) < 1e-6f && s.n_top == 2 && s.top[1].id == 1);
    p.logprobs = false;
    assert_int_equal(di_sample_row(law, &row, 0, &s, NULL), DI_OK);
    assert_true(isnan(s.logprob) && s.n_top == 0);
    di_law_destroy(law);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_support_and_probabilities),
        cmocka_unit_test(test_edges_of_truncation),
        cmocka_unit_test(test_draw_is_the_plain_argmax),
        cmocka_unit_test(test_largest_noise),
        cmocka_unit_test(test_goodness_of_fit),
        cmocka_unit_test(test_draws_are_stable),
        cmocka_unit_test(test_streams_are_apart),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_bans_and_masks),
        cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_parameters_are_checked),
        cmocka_unit_test(test_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
