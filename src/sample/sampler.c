#include "sample/sampler.h"

#include "sample/counts.h"
#include "sample/row.h"

#include <float.h>
#include <math.h>

/* The support without min-p: keys above `key`, and those equal to it up to the id `last`. */
struct cut {
    uint32_t key;
    int32_t last;
};

struct di_law {
    size_t vocab;
    float *x; /* processed logits; -INFINITY = banned */
    uint64_t *weight;
    bool weighed, has_cut, greedy;
    float max;
    int32_t first;
    size_t n_allowed;
    double temperature;
    struct cut cut;
    uint64_t min_weight; /* min-p */
    uint64_t mass;       /* of the support; 0 = not summed yet */
    uint64_t histogram[2048];
};

/* ---- noise ---- */

static struct di_philox noise_block(const struct di_noise *n, uint32_t block)
{
    return di_philox(n->key, (struct di_philox){{(uint32_t)n->position, (uint32_t)n->stream << 24 | (block & 0xFFFFFFu), n->anchor, 0}});
}

uint64_t di_sample_key(uint64_t seed, uint32_t index)
{
    if (index == 0)
        return seed;
    struct di_philox r = di_philox(seed, (struct di_philox){{index, (uint32_t)DI_STREAM_SEED << 24, 0, 0}});
    return (uint64_t)r.w[1] << 32 | r.w[0];
}

double di_noise_uniform(const struct di_noise *n, uint32_t id)
{
    return di_uniform_of(noise_block(n, id / 4).w[id % 4]);
}

double di_noise_gumbel(const struct di_noise *n, uint32_t id)
{
    return di_gumbel_of(noise_block(n, id / 4).w[id % 4]);
}

/* ---- loading a row ---- */

struct di_law *di_law_carve(struct di_carver *c, size_t vocab)
{
    struct di_law *law = di_carve(c, 1, sizeof *law);
    float *x = di_carve(c, vocab, sizeof *x);
    uint64_t *weight = di_carve(c, vocab, sizeof *weight);
    if (law)
        *law = (struct di_law){.vocab = vocab, .x = x, .weight = weight};
    return law;
}

di_status di_law_create(size_t vocab, struct di_law **out, di_error *err)
{
    *out = NULL;
    if (vocab == 0 || vocab > (size_t)1 << 24)
        return di_fail(err, DI_ERR_LIMIT, "", "a vocabulary of %zu ids can't be sampled from", vocab);
    struct di_carver c = {0};
    di_law_carve(&c, vocab);
    c = (struct di_carver){.base = di_malloc_aligned(c.used)};
    if (!c.base)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for sampling from %zu ids", vocab);
    *out = di_law_carve(&c, vocab);
    return DI_OK;
}

void di_law_destroy(struct di_law *law)
{
    di_free_aligned(law);
}

di_status di_row_check_finite(const float *logits, size_t n, di_error *err)
{
    size_t i = 0;
    while (i < n && isfinite(logits[i]))
        i++;
    if (i == n)
        return DI_OK;
    return di_fail(err, DI_ERR_INTERNAL, "", "the model computed %s as the logit of id %zu",
                   isnan(logits[i]) ? "NaN" : "an infinite number", i);
}

/* Rounded to float; too large becomes the largest, -0 becomes 0, because equal logits must have equal keys. */
static float to_logit(double x)
{
    return (x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : (float)x) + 0.0f;
}

static void penalise(float *x, const struct di_token_counts *c, const struct di_sampling_params *p)
{
    for (size_t i = 0; i < c->n_touched; i++) {
        int32_t id = c->touched[i];
        uint32_t count = c->word[id] & DI_COUNT_MASK;
        if (count == 0 && !(c->word[id] & DI_COUNT_IN_PROMPT)) /* a draft that was taken back */
            continue;
        double v = x[id];
        v = v > 0 ? v / p->repetition_penalty : v * p->repetition_penalty;
        if (count)
            v = v - p->presence_penalty - p->frequency_penalty * (double)count;
        x[id] = to_logit(v);
    }
}

/* Is an end id banned because the answer is still too short? */
static bool is_early(const struct di_row *row)
{
    return row->n_generated < (uint64_t)row->params->min_tokens;
}

bool di_row_is_edited(const struct di_row *row)
{
    const struct di_sampling_params *p = row->params;
    return p->n_bias > 0 || (row->counts && di_sampling_needs_counts(p)) || is_early(row);
}

void di_row_edit(const struct di_row *row, float *x)
{
    const struct di_sampling_params *p = row->params;
    for (size_t i = 0; i < p->n_bias; i++)
        x[p->bias[i].id] = to_logit((double)x[p->bias[i].id] + (double)p->bias[i].value);
    if (row->counts && di_sampling_needs_counts(p))
        penalise(x, row->counts, p);
    for (size_t i = 0; is_early(row) && i < p->n_end_ids; i++)
        x[p->end_ids[i]] = -INFINITY;
}

di_status di_row_fail_empty(const struct di_row *row, di_error *err)
{
    bool early = !row->allowed && is_early(row);
    return di_fail(err, DI_ERR_INVALID, early ? "min_tokens" : "allowed_token_ids", "no token may stand at position %llu: %s",
                   (unsigned long long)row->position,
                   early ? "nothing is left beside the end id and the stop_token_ids" : "bans and masks exclude all of them");
}

static void forbid(struct di_law *law, const struct di_row *row)
{
    for (size_t w = 0; (row->banned || row->allowed) && w * 64 < law->vocab; w++) {
        uint64_t off = ~di_row_mask(row, w);
        size_t left = law->vocab - w * 64;
        if (left < 64)
            off &= ((uint64_t)1 << left) - 1;
        for (; off; off &= off - 1)
            law->x[w * 64 + (size_t)__builtin_ctzll(off)] = -INFINITY;
    }
}

static void find_first(struct di_law *law)
{
    law->max = -INFINITY;
    law->first = -1;
    law->n_allowed = 0;
    for (size_t i = 0; i < law->vocab; i++) {
        law->n_allowed += law->x[i] > -INFINITY;
        if (law->x[i] > law->max) {
            law->max = law->x[i];
            law->first = (int32_t)i;
        }
    }
}

/* ---- truncation ---- */

/* Unsigned numbers in the order of the floats; no -0 and no NaN gets here. */
static uint32_t order_key(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

static double log_weight(const struct di_law *law, size_t i)
{
    return ((double)law->x[i] - (double)law->max) / law->temperature;
}

static void weigh(struct di_law *law)
{
    for (size_t i = 0; i < law->vocab; i++)
        law->weight[i] = di_weight_of(log_weight(law, i));
    law->weighed = true;
}

static bool in_cut(const struct di_law *law, size_t i)
{
    if (!law->has_cut)
        return law->x[i] > -INFINITY;
    uint32_t key = order_key(law->x[i]);
    return key > law->cut.key || (key == law->cut.key && (int32_t)i <= law->cut.last);
}

static bool in_support(const struct di_law *law, size_t i)
{
    return in_cut(law, i) && (law->min_weight == 0 || law->weight[i] >= law->min_weight);
}

/* Shortest prefix of the order in which `need` tokens stand (by_weight: whose weights add up to `need`). At least that much must exist.
 * Radix select: the bucket of the upper bits that contains the boundary, then of the next bits; then ids in rising order. */
static struct cut find_cut(struct di_law *law, bool by_weight, uint64_t need)
{
    static const struct {
        unsigned shift, bits;
    } levels[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t prefix = 0, known = 0;
    for (size_t l = 0; l < 3; l++) {
        uint32_t last = ((uint32_t)1 << levels[l].bits) - 1;
        memset(law->histogram, 0, sizeof law->histogram);
        for (size_t i = 0; i < law->vocab; i++) {
            uint32_t key = order_key(law->x[i]);
            if ((key & known) == prefix && law->x[i] > -INFINITY)
                law->histogram[key >> levels[l].shift & last] += by_weight ? law->weight[i] : 1;
        }
        uint32_t b = last;
        for (; b > 0 && law->histogram[b] < need; b--)
            need -= law->histogram[b];
        prefix |= b << levels[l].shift;
        known |= last << levels[l].shift;
    }
    struct cut cut = {prefix, -1};
    for (size_t i = 0; i < law->vocab && need; i++) {
        if (order_key(law->x[i]) != prefix)
            continue;
        uint64_t m = by_weight ? law->weight[i] : 1;
        need = m < need ? need - m : 0;
        cut.last = (int32_t)i;
    }
    return cut;
}

static uint64_t sum_support(const struct di_law *law)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < law->vocab; i++)
        if (in_support(law, i))
            sum += law->weight[i];
    return sum;
}

static void cut_support(struct di_law *law, const struct di_sampling_params *p)
{
    if (p->top_k > 0 && (uint64_t)p->top_k < law->n_allowed) {
        law->cut = find_cut(law, false, (uint64_t)p->top_k);
        law->has_cut = true;
    }
    if (p->top_p < 1.0 || p->min_p > 0.0)
        weigh(law);
    if (p->top_p < 1.0) {
        /* the boundary lies inside the top-k prefix, because no more than its own weight is asked for */
        law->cut = find_cut(law, true, di_share_of(p->top_p, sum_support(law)));
        law->has_cut = true;
    }
    if (p->min_p > 0.0)
        law->min_weight = di_share_of(p->min_p, DI_WEIGHT_ONE);
}

di_status di_law_load(struct di_law *law, const struct di_row *row, di_error *err)
{
    const struct di_sampling_params *p = row->params;
    di_status status = di_row_check_finite(row->logits, law->vocab, err);
    if (status != DI_OK)
        return status;
    for (size_t i = 0; i < law->vocab; i++)
        law->x[i] = row->logits[i] + 0.0f; /* -0 becomes 0 */
    di_row_edit(row, law->x);
    forbid(law, row);
    find_first(law);
    if (law->n_allowed == 0)
        return di_row_fail_empty(row, err);
    law->greedy = di_sampling_is_greedy(p);
    law->temperature = law->greedy ? 1.0 : p->temperature;
    law->weighed = law->has_cut = false;
    law->min_weight = law->mass = 0;
    if (!law->greedy)
        cut_support(law, p);
    return DI_OK;
}

/* ---- using the law ---- */

int32_t di_law_argmax(const struct di_law *law)
{
    return law->first;
}

bool di_law_has(const struct di_law *law, int32_t id)
{
    if (id < 0 || (size_t)id >= law->vocab)
        return false;
    return law->greedy ? id == law->first : in_support(law, (size_t)id);
}

double di_law_probability(struct di_law *law, int32_t id)
{
    if (!di_law_has(law, id))
        return 0.0;
    if (law->greedy)
        return 1.0;
    if (!law->weighed)
        weigh(law);
    if (law->mass == 0)
        law->mass = sum_support(law); /* at least the weight of the first token */
    return (double)law->weight[id] / (double)law->mass;
}

/* Can't the token beat `best`? It wins only if -log(u) < e^gap with gap = its log-weight - best. As -log(u) > 1 - u > v / 2^32 for
 * v = 2^32 - 1 - word, the place of the highest bit of v decides almost always, without a logarithm. */
static bool hopeless(uint32_t word, double gap)
{
    uint32_t v = ~word;
    return v && (double)(31 - __builtin_clz(v) - 32) * DI_LN2 >= gap;
}

int32_t di_law_draw(const struct di_law *law, const struct di_noise *noise)
{
    if (law->greedy)
        return law->first;
    double best = di_noise_gumbel(noise, (uint32_t)law->first);
    int32_t winner = law->first;
    for (size_t base = 0; base < law->vocab; base += 4) {
        size_t end = base + 4 < law->vocab ? base + 4 : law->vocab;
        double limit = (double)law->max + (best - DI_LARGEST_GUMBEL) * law->temperature;
        bool any = false;
        for (size_t i = base; i < end; i++)
            any = any || (double)law->x[i] >= limit;
        if (!any)
            continue;
        struct di_philox words = noise_block(noise, (uint32_t)(base / 4));
        for (size_t i = base; i < end; i++) {
            double y = log_weight(law, i);
            if (hopeless(words.w[i - base], y - best) || !in_support(law, i))
                continue;
            double value = y + di_gumbel_of(words.w[i - base]);
            if (value > best || (value == best && (int32_t)i < winner)) {
                best = value;
                winner = (int32_t)i;
            }
        }
    }
    return winner;
}

/* ---- one token ---- */

di_status di_row_logprobs(const float *logits, size_t vocab, int32_t id, size_t n_top, struct di_sample *out, di_error *err)
{
    di_status status = DI_OK;
    out->id = id;
    out->n_top = 0;
    CHECK(n_top <= DI_MAX_TOP_LOGPROBS && id >= 0 && (size_t)id < vocab, err, DI_ERR_INVALID, "logprobs",
          "id %d and %zu alternatives of %zu ids were asked for", (int)id, n_top, vocab);
    TRY(di_row_check_finite(logits, vocab, err));
    float max = logits[0];
    for (size_t i = 1; i < vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    uint64_t sum = 0; /* integers, so that the order of summation doesn't matter; off by at most vocab * 2^-39 */
    for (size_t i = 0; i < vocab; i++) {
        sum += di_weight_of((double)logits[i] - (double)max);
        di_sample_keep_top(out, n_top, (int32_t)i, logits[i]);
    }
    double log_sum = (double)max + di_portable_log((double)sum) - DI_WEIGHT_BITS * DI_LN2;
    out->logprob = (float)((double)logits[id] - log_sum);
    for (size_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
out:
    return status;
}

/* A token without its log-probability. */
static di_status bare_sample(int32_t id, struct di_sample *out)
{
    out->id = id;
    out->logprob = NAN;
    out->n_top = 0;
    return DI_OK;
}

di_status di_sample_row(struct di_law *law, const struct di_row *row, uint64_t key, struct di_sample *out, di_error *err)
{
    struct di_noise noise = {.key = key, .position = row->position, .stream = DI_STREAM_TARGET};
    di_status status = di_law_load(law, row, err);
    if (status != DI_OK)
        return status;
    int32_t id = di_law_draw(law, &noise);
    return row->params->logprobs ? di_row_logprobs(row->logits, law->vocab, id, (size_t)row->params->top_logprobs, out, err)
                                 : bare_sample(id, out);
}

void di_sample_task_run(struct di_law *law, const struct di_sample_task *task, struct di_sample_result *result)
{
    const struct di_row *row = &task->row;
    if (task->forced < 0)
        result->status = di_sample_row(law, row, task->key, &result->sample, &result->err);
    else if (row->params->logprobs)
        result->status =
            di_row_logprobs(row->logits, law->vocab, task->forced, (size_t)row->params->top_logprobs, &result->sample, &result->err);
    else
        result->status = bare_sample(task->forced, &result->sample);
}
