/* The sampler over whole rows: the tokens and log-probabilities of sample/sampler.c, to the last bit, in a few passes of vectors. Included by
 * vector_avx2.c and vector_avx512.c.
 *
 * Bytes and operations of a row of V logits: V * 4 bytes are read once; every pass behind that stays in the caches. A weight is an exponential
 * in double (28 multiplications and additions, unfused as in portable_math.h); a block of Philox words (4 ids) 20 multiplications of 32 bits.
 *
 *  - greedy: one pass.
 *  - the draw: ids whose noise cannot lift them above the best so far are sorted out 32 at a time, most by their logit, the others by their
 *    word; only the rest is computed as the plain form does.
 *  - top-k and top-p: the token at which the prefix ends is found by narrowing a list: a sample of it gives pivots, sums of weights say
 *    between which of them the end lies, and only those in between are kept. Sums are integers, so no order matters. */
#ifndef DI_BACKEND_CPU_VECTOR_SAMPLE_H
#define DI_BACKEND_CPU_VECTOR_SAMPLE_H

#include "backend/cpu/vec_wide.h"
#include "backend/cpu/vector.h"
#include "sample/row.h"

#include <float.h>
#include <math.h>

/* The support without min-p: logits above `x`, and those equal to it up to the id `last`. */
struct sample_cut {
    float x;
    int32_t last;
};

struct sample_row {
    struct sample_work work; /* x ends in one vector of -INFINITY */
    int n;                   /* vocabulary */
    int64_t n_allowed;
    float raw_max, max; /* of the logits as they came; of what the masks leave */
    int32_t first;
    double temperature;
    struct sample_cut cut; /* {-FLT_MAX, INT32_MAX}: everything that is allowed */
    uint64_t min_weight;
};

/* ---------------------------------------------------------------- the row */

/* Sixteen logits from i on; beyond n there is -INFINITY. */
VEC_INLINE vf sample_load(const float *x, int i, int n)
{
    if (i + 16 <= n)
        return vf_load(x + i);
    float part[16];
    for (int l = 0; l < 16; l++)
        part[l] = i + l < n ? x[i + l] : -INFINITY;
    return vf_load(part);
}

/* work.x = src, and what the masks exclude -INFINITY. False: a value of src is NaN or infinite. */
static bool sample_copy(struct sample_row *s, const float *src, const struct di_row *masks)
{
    vf best = vf_set1(-INFINITY), raw = best, poison = vf_zero();
    const vf none = best;
    s->n_allowed = 0;
    for (int i = 0; i < s->n; i += 16) {
        uint32_t inside = i + 16 <= s->n ? 0xFFFF : (1u << (s->n - i)) - 1;
        uint32_t bits = masks ? inside & (uint32_t)(di_row_mask(masks, (size_t)i / 64) >> i % 64) : inside;
        vf v = sample_load(src, i, s->n);
        raw = vf_max(raw, v);
        poison = vf_fma(vf_select(vm_from_bits(inside), v, vf_zero()), vf_zero(), poison); /* NaN if not finite */
        v = vf_select(vm_from_bits(bits), v, none);
        best = vf_max(best, v);
        s->n_allowed += __builtin_popcount(vm_bits(vf_gt(v, none)));
        vf_store(s->work.x + i, v);
    }
    for (int i = s->n; i < s->n + 32; i++)
        s->work.x[i] = -INFINITY;
    s->max = vf_largest(best);
    s->raw_max = vf_largest(raw);
    return vf_sum(poison) == 0;
}

/* The `count`-th id, from 1 on, whose logit is x. It must exist. */
static int32_t sample_find(const struct sample_row *s, float x, uint64_t count)
{
    vf wanted = vf_set1(x);
    for (int i = 0; i < s->n; i += 16) {
        vf v = vf_load(s->work.x + i);
        uint32_t bits = vm_bits(vm_and(vf_ge(v, wanted), vf_ge(wanted, v)));
        uint64_t here = (uint64_t)__builtin_popcount(bits);
        if (here < count) {
            count -= here;
            continue;
        }
        while (--count)
            bits &= bits - 1;
        return i + __builtin_ctz(bits);
    }
    return -1;
}

/* ---------------------------------------------------------------- weights */

/* di_weight_of of 4 x 8 log-weights: four chains at a time keep the multipliers busy. */
VEC_INLINE void sample_weights(const vd log_w[4], vq w[4])
{
    vd k[4], r[4], sum[4];
    for (int i = 0; i < 4; i++) {
        vd x = vd_max(log_w[i], vd_set1(-28.0)); /* weighs 0; -INFINITY must not reach the exponent */
        k[i] = vd_trunc(vd_add(vd_mul(x, vd_set1(1.0 / DI_LN2)), vd_set1(-0.5)));
        r[i] = vd_sub(vd_sub(x, vd_mul(k[i], vd_set1(DI_LN2_HI))), vd_mul(k[i], vd_set1(DI_LN2_LO)));
        sum[i] = vd_set1(di_exp_term[0]);
    }
    for (int t = 1; t < DI_EXP_TERMS; t++)
        for (int i = 0; i < 4; i++)
            sum[i] = vd_add(vd_mul(sum[i], r[i]), vd_set1(di_exp_term[t]));
    for (int i = 0; i < 4; i++) {
        vd scale = vq_as_f64(vq_sll(vd_bits(vd_add(k[i], vd_set1(0x1p52 + 1023))), 52)); /* 2^k: the sum's low bits are 1023 + k */
        vd whole = vd_trunc(vd_mul(vd_mul(sum[i], scale), vd_set1((double)DI_WEIGHT_ONE)));
        w[i] = vq_and(vd_bits(vd_add(whole, vd_set1(0x1p52))), vq_set1(((uint64_t)1 << 52) - 1));
    }
}

/* Weights of two vectors of logits. */
VEC_INLINE void sample_weights_of(const vf v[2], vd max, vd temperature, bool divide, vq w[4])
{
    vd log_w[4];
    for (int i = 0; i < 4; i++) {
        log_w[i] = vd_sub(vd_from_f32(v[i / 2], i % 2), max);
        if (divide)
            log_w[i] = vd_div(log_w[i], temperature);
    }
    sample_weights(log_w, w);
}

/* Weights of list[0, n), whose vectors are full. */
static void sample_weigh(struct sample_row *s, int n)
{
    for (int i = 0; i < n; i += 32) {
        vf v[2] = {vf_load(s->work.list + i), vf_load(s->work.list + i + 16)};
        vq w[4];
        sample_weights_of(v, vd_set1((double)s->max), vd_set1(s->temperature), s->temperature != 1.0, w);
        for (int k = 0; k < 4; k++)
            vq_store(s->work.weight + i + 8 * k, w[k]);
    }
}

/* sum[j]: weights of the x[0, n) above edge[j]; sum[SAMPLE_EDGES]: of all. */
#define SAMPLE_EDGES 6
static void sample_mass(const struct sample_row *s, const float *x, int n, const float edge[SAMPLE_EDGES], uint64_t sum[SAMPLE_EDGES + 1])
{
    vq wide[SAMPLE_EDGES + 1];
    bool divide = s->temperature != 1.0;
    for (int j = 0; j <= SAMPLE_EDGES; j++)
        wide[j] = vq_set1(0);
    for (int i = 0; i < n; i += 32) {
        vf v[2] = {vf_load(x + i), vf_load(x + i + 16)};
        vq w[4];
        sample_weights_of(v, vd_set1((double)s->max), vd_set1(s->temperature), divide, w);
        for (int h = 0; h < 2; h++) {
            wide[SAMPLE_EDGES] = vq_add(wide[SAMPLE_EDGES], vq_add(w[2 * h], w[2 * h + 1]));
            for (int j = 0; j < SAMPLE_EDGES; j++) {
                vm m = vf_gt(v[h], vf_set1(edge[j]));
                wide[j] = vq_add_where(vq_add_where(wide[j], m, 0, w[2 * h]), m, 1, w[2 * h + 1]);
            }
        }
    }
    for (int j = 0; j <= SAMPLE_EDGES; j++)
        sum[j] = vq_sum(wide[j]);
}

/* ---------------------------------------------------------------- lists */

static int sample_pad(float *list, int n)
{
    for (int i = n; i < n + 32; i++)
        list[i] = -INFINITY;
    return n;
}

/* list = those of x[0, n) in (low, high]; x may be the list. Vectors of x are full. */
static int sample_gather(struct sample_row *s, const float *x, int n, float low, float high)
{
    int kept = 0;
    for (int i = 0; i < n; i += 16) {
        vf v = vf_load(x + i);
        vm m = vm_and(vf_gt(v, vf_set1(low)), vf_ge(vf_set1(high), v));
        uint32_t bits = vm_bits(m);
        if (!bits)
            continue;
        vf_store(s->work.list + kept, vf_pack(m, v));
        kept += __builtin_popcount(bits);
    }
    return sample_pad(s->work.list, kept);
}

/* Of list[0, n) keep those in (low, high], with their weights if they count. */
static int sample_keep(struct sample_row *s, int n, bool weighted, float low, float high)
{
    float *list = s->work.list;
    uint64_t *weight = s->work.weight;
    int kept = 0;
    if (!weighted)
        return sample_gather(s, list, n, low, high);
    for (int i = 0; i < n; i += 16) {
        vf v = vf_load(list + i);
        vm m = vm_and(vf_gt(v, vf_set1(low)), vf_ge(vf_set1(high), v));
        uint32_t bits = vm_bits(m);
        if (!bits)
            continue;
        vq a = vq_load(weight + i), b = vq_load(weight + i + 8);
        vf_store(list + kept, vf_pack(m, v));
        vq_store(weight + kept, vq_pack(m, 0, a));
        vq_store(weight + kept + __builtin_popcount(bits & 255), vq_pack(m, 1, b));
        kept += __builtin_popcount(bits);
    }
    return sample_pad(list, kept);
}

/* ---------------------------------------------------------------- the end of a prefix */

/* Weights (or numbers) of what lies above three pivots a >= c >= b, and above or at c. */
struct sample_sums {
    uint64_t above_a, above_c, from_c, above_b;
};

static struct sample_sums sample_sum(const struct sample_row *s, int n, bool weighted, float a, float c, float b)
{
    vf pivot[4] = {vf_set1(a), vf_set1(c), vf_set1(c), vf_set1(b)};
    uint64_t sum[4] = {0, 0, 0, 0};
    vq wide[4] = {vq_set1(0), vq_set1(0), vq_set1(0), vq_set1(0)};
    for (int i = 0; i < n; i += 16) {
        vf v = vf_load(s->work.list + i);
        vm m[4] = {vf_gt(v, pivot[0]), vf_gt(v, pivot[1]), vf_ge(v, pivot[2]), vf_gt(v, pivot[3])};
        if (!weighted) {
            for (int k = 0; k < 4; k++)
                sum[k] += (uint64_t)__builtin_popcount(vm_bits(m[k]));
            continue;
        }
        for (int half = 0; half < 2; half++) {
            vq w = vq_load(s->work.weight + i + 8 * half);
            for (int k = 0; k < 4; k++)
                wide[k] = vq_add_where(wide[k], m[k], half, w);
        }
    }
    for (int k = 0; k < 4 && weighted; k++)
        sum[k] = vq_sum(wide[k]);
    return (struct sample_sums){sum[0], sum[1], sum[2], sum[3]};
}

#define SAMPLE_PIVOTS 64 /* of them the pivots are chosen */

/* Pivots from a sample of list[0, n): c where the share need / mass of the sample ends, a and b around it. `blind`: the last guess failed,
 * take quarters. */
static void sample_pivots(const struct sample_row *s, int n, bool weighted, uint64_t need, uint64_t mass, bool blind, float pivot[3])
{
    float x[SAMPLE_PIVOTS];
    double w[SAMPLE_PIVOTS], sum = 0;
    int m = n < SAMPLE_PIVOTS ? n : SAMPLE_PIVOTS;
    for (int i = 0; i < m; i++) {
        int from = (int)((int64_t)i * n / m), at = i;
        double weight = weighted ? (double)s->work.weight[from] : 1.0;
        for (; at > 0 && x[at - 1] < s->work.list[from]; at--) {
            x[at] = x[at - 1];
            w[at] = w[at - 1];
        }
        x[at] = s->work.list[from];
        w[at] = weight;
        sum += weight;
    }
    int c = m / 2, reach = m / 4;
    if (!blind) {
        double wanted = sum * ((double)need / (double)mass), seen = 0;
        for (c = 0; c < m - 1 && (seen += w[c]) < wanted; c++)
            ;
        reach = 5;
    }
    pivot[0] = x[c > reach ? c - reach : 0];
    pivot[1] = x[c];
    pivot[2] = x[c + reach < m ? c + reach : m - 1];
}

/* The logit at which the shortest prefix of list[0, n) ends whose weights (or number) add up to `need`, 1 <= need <= mass, the sum of all.
 * Destroys the list. *rest: what the tokens equal to it must add. */
static float sample_select(struct sample_row *s, int n, bool weighted, uint64_t need, uint64_t mass, uint64_t *rest)
{
    for (bool blind = false;;) {
        float p[3], low, high;
        sample_pivots(s, n, weighted, need, mass, blind, p);
        struct sample_sums sum = sample_sum(s, n, weighted, p[0], p[1], p[2]);
        float below_c = nextafterf(p[1], -INFINITY);
        if (need > sum.above_c && need <= sum.from_c) {
            *rest = need - sum.above_c;
            return p[1];
        }
        blind = false;
        if (need <= sum.above_a) {
            low = p[0], high = INFINITY, mass = sum.above_a, blind = true;
        } else if (need <= sum.above_c) {
            low = p[1], high = p[0], mass = sum.above_c - sum.above_a, need -= sum.above_a;
        } else if (need <= sum.above_b) {
            low = p[2], high = below_c, mass = sum.above_b - sum.from_c, need -= sum.from_c;
        } else {
            bool apart = p[2] < p[1];
            uint64_t gone = apart ? sum.above_b : sum.from_c;
            low = -INFINITY, high = apart ? p[2] : below_c, mass -= gone, need -= gone, blind = true;
        }
        n = sample_keep(s, n, weighted, low, high);
    }
}

/* x[0 .. n) of a row in falling order, at most `most` of `spots` that are spread over it. Returns n. */
static int sample_spots(const float *x, int n, int spots, float *top, int most)
{
    int kept = 0, m = n < spots ? n : spots;
    for (int i = 0; i < m; i++) {
        float v = x[(int64_t)i * n / m];
        if (kept == most && v <= top[most - 1])
            continue;
        int at = kept < most ? kept++ : most - 1;
        for (; at > 0 && v > top[at - 1]; at--)
            top[at] = top[at - 1];
        top[at] = v;
    }
    return kept;
}

static void sample_top_k(struct sample_row *s, int64_t k)
{
    enum { SPOTS = 512, MOST = 64 };
    float top[MOST];
    uint64_t rest;
    int n = 0, want = (int)(k < s->n ? 2 * k * SPOTS / s->n + 4 : MOST); /* so many of the spots are above what twice k tokens reach */
    if (want < MOST && s->n > 8 * SPOTS && sample_spots(s->work.x, s->n, SPOTS, top, want) == want)
        n = sample_gather(s, s->work.x, s->n, nextafterf(top[want - 1], -INFINITY), INFINITY);
    if (n < k)
        n = sample_gather(s, s->work.x, s->n, -INFINITY, INFINITY);
    float x = sample_select(s, n, false, (uint64_t)k, (uint64_t)n, &rest);
    s->cut = (struct sample_cut){x, sample_find(s, x, rest)};
}

/* list = the top-k tokens: all above the cut and those equal to it up to its last id. */
static int sample_top_list(struct sample_row *s)
{
    int n = sample_gather(s, s->work.x, s->n, s->cut.x, INFINITY);
    for (int i = 0; i <= s->cut.last; i++)
        if (s->work.x[i] == s->cut.x)
            s->work.list[n++] = s->cut.x;
    return sample_pad(s->work.list, n);
}

/* Where the end of a top-p prefix may be looked for: some distances from the largest logit, and quantiles. Falling. Returns the median. */
static double sample_edges(const struct sample_row *s, const float *x, int n, float edge[SAMPLE_EDGES])
{
    enum { SPOTS = 64 };
    float spots[SPOTS];
    int m = sample_spots(x, n, SPOTS, spots, SPOTS), used = 0;
    const double candidates[SAMPLE_EDGES] = {(double)s->max - 2 * s->temperature,
                                             (double)s->max - 4 * s->temperature,
                                             (double)s->max - 7 * s->temperature,
                                             (double)spots[m / 8],
                                             (double)spots[m / 3],
                                             (double)spots[m * 2 / 3]};
    for (int i = 0; i < SAMPLE_EDGES; i++) {
        float v = candidates[i] > -FLT_MAX ? (float)candidates[i] : -FLT_MAX;
        int at = used++;
        for (; at > 0 && v > edge[at - 1]; at--)
            edge[at] = edge[at - 1];
        edge[at] = v;
    }
    return (double)spots[m / 2];
}

static void sample_top_p(struct sample_row *s, double p)
{
    bool all = s->cut.last == INT32_MAX;
    int n = all ? s->n : sample_top_list(s), j = 0;
    const float *x = all ? s->work.x : s->work.list;
    float edge[SAMPLE_EDGES];
    uint64_t sum[SAMPLE_EDGES + 1], rest;
    double smallest = (double)s->max + (DI_LOG_SMALLEST - 0.01) * s->temperature; /* what is below weighs nothing */
    if (sample_edges(s, x, n, edge) < smallest) {                                 /* most of them */
        n = sample_gather(s, x, n, nextafterf((float)smallest, -INFINITY), INFINITY);
        x = s->work.list;
    }
    sample_mass(s, x, n, edge, sum);
    uint64_t need = di_share_of(p, sum[SAMPLE_EDGES]);
    while (sum[j] < need) /* the last one is the sum of all */
        j++;
    uint64_t above = j > 0 ? sum[j - 1] : 0;
    n = sample_gather(s, x, n, j < SAMPLE_EDGES ? edge[j] : -INFINITY, j > 0 ? edge[j - 1] : INFINITY);
    sample_weigh(s, n);
    float end = sample_select(s, n, true, need - above, sum[j] - above, &rest);
    uint64_t each = di_weight_of(((double)end - (double)s->max) / s->temperature);
    s->cut = (struct sample_cut){end, sample_find(s, end, (rest + each - 1) / each)};
}

/* ---------------------------------------------------------------- the draw */

static struct di_philox sample_key_schedule(uint64_t key, int round)
{
    uint32_t n = (uint32_t)round;
    return (struct di_philox){{(uint32_t)key + n * 0x9E3779B9u, (uint32_t)(key >> 32) + n * 0xBB67AE85u, 0, 0}};
}

/* Words of the ids 4 * block .. 4 * block + 31 of a noise. */
VEC_INLINE void sample_words(const vq keys[20], const struct di_noise *noise, uint32_t block, vi words[2])
{
    const vq m0 = vq_set1(0xD2511F53u), m1 = vq_set1(0xCD9E8D57u);
    vq c0 = vq_set1((uint32_t)noise->position), c2 = vq_set1(noise->anchor), c3 = vq_set1(0);
    vq c1 = vq_add(vq_set1((uint32_t)noise->stream << 24 | block), vq_block_order());
    for (int round = 0; round < 10; round++) {
        vq a = vq_mul32(c0, m0), b = vq_mul32(c2, m1);
        c0 = vq_xor3(vq_srl(b, 32), c1, keys[2 * round]); /* the upper halves mean nothing */
        c2 = vq_xor3(vq_srl(a, 32), c3, keys[2 * round + 1]);
        c1 = b;
        c3 = a;
    }
    const vq low = vq_set1(0xFFFFFFFF);
    vq first = vq_or(vq_and(c0, low), vq_sll(c1, 32)), second = vq_or(vq_and(c2, low), vq_sll(c3, 32));
    words[0] = vq_zip_lo(first, second);
    words[1] = vq_zip_hi(first, second);
}

/* Best value so far, and what follows from it for others. */
struct sample_best {
    double value;
    int32_t id;
    float limit;  /* logits below cannot win, whatever their noise */
    float offset; /* of the test of words, below */
};

static void sample_improve(const struct sample_row *s, struct sample_best *b, double value, int32_t id)
{
    double limit = (double)s->max + (value - DI_LARGEST_GUMBEL) * s->temperature;
    float low = limit > -FLT_MAX ? nextafterf((float)limit, -INFINITY) : -FLT_MAX;
    *b = (struct sample_best){value, id, low > s->cut.x ? low : s->cut.x, (float)(32 + 126.002 - value / DI_LN2)};
}

static bool sample_has(const struct sample_row *s, int32_t id, double log_w)
{
    float x = s->work.x[id];
    bool in = x > s->cut.x || (x == s->cut.x && id <= s->cut.last);
    return in && (s->min_weight == 0 || di_weight_of(log_w) >= s->min_weight);
}

/* The plain form for the ids from `base` on whose bits are set. */
static void sample_try(const struct sample_row *s, struct sample_best *b, int32_t base, uint32_t bits, vi words)
{
    uint32_t word[16];
    vi_store(word, words);
    for (; bits; bits &= bits - 1) {
        int l = __builtin_ctz(bits);
        double log_w = ((double)s->work.x[base + l] - (double)s->max) / s->temperature;
        if (!sample_has(s, base + l, log_w))
            continue;
        double value = log_w + di_gumbel_of(word[l]);
        if (value > b->value || (value == b->value && base + l < b->id))
            sample_improve(s, b, value, base + l);
    }
}

/* A token wins only if -log(u) < e^gap, gap = its log-weight - best, and -log(u) > 1 - u > v / 2^32 with v = 2^32 - 1 - word. Seen as an
 * integer the float v / 2 is 2^23 (127 + e + m) for v = 2^(e+1) (1 + m), and e + m <= log2 of it: so it has no chance unless that
 * integer / 2^23 < gap / ln 2 + 32 + 126. Floats are near enough with 0.002 more. */
static int32_t sample_draw(const struct sample_row *s, const struct di_noise *noise)
{
    struct sample_best best;
    vq keys[20];
    for (int r = 0; r < 10; r++) {
        struct di_philox k = sample_key_schedule(noise->key, r);
        keys[2 * r] = vq_set1(k.w[0]);
        keys[2 * r + 1] = vq_set1(k.w[1]);
    }
    sample_improve(s, &best, di_noise_gumbel(noise, (uint32_t)s->first), s->first);
    const vf max = vf_set1(s->max), per_nat = vf_set1((float)(1.0 / (s->temperature * DI_LN2))), unit = vf_set1(0x1p-23f);
    for (int i = 0; i < s->n; i += 32) {
        vf x[2] = {vf_load(s->work.x + i), vf_load(s->work.x + i + 16)}, limit = vf_set1(best.limit);
        if (!(vm_bits(vf_ge(x[0], limit)) | vm_bits(vf_ge(x[1], limit))))
            continue;
        vi words[2];
        sample_words(keys, noise, (uint32_t)i / 4, words);
        for (int h = 0; h < 2; h++) {
            vi v = vi_srl(vi_xor(words[h], vi_set1(-1)), 1);
            vf chance = vf_fma(vf_sub(x[h], max), per_nat, vf_set1(best.offset));
            vm m = vm_and(vf_ge(x[h], vf_set1(best.limit)), vf_gt(chance, vf_mul(vi_to_f32(vf_bits(vi_to_f32(v))), unit)));
            uint32_t bits = vm_bits(m);
            if (bits)
                sample_try(s, &best, i + 16 * h, bits, words[h]);
        }
    }
    return best.id;
}

/* ---------------------------------------------------------------- log-probabilities */

/* di_row_logprobs for finite logits, whose largest is known. */
static void sample_logprobs(const struct sample_row *s, const float *logits, int32_t id, size_t n_top, struct di_sample *out)
{
    int n = s->n;
    double max = (double)s->raw_max;
    vf bar = vf_set1(-INFINITY);
    vq sum[2] = {vq_set1(0), vq_set1(0)}, w[4];
    out->id = id;
    out->n_top = 0;
    for (int i = 0; i < n; i += 32) {
        vf v[2] = {sample_load(logits, i, n), sample_load(logits, i + 16, n)};
        sample_weights_of(v, vd_set1(max), vd_set1(1), false, w);
        sum[0] = vq_add(sum[0], vq_add(w[0], w[1]));
        sum[1] = vq_add(sum[1], vq_add(w[2], w[3]));
        uint32_t bits = n_top ? vm_bits(vf_gt(v[0], bar)) | vm_bits(vf_gt(v[1], bar)) << 16 : 0;
        if (!bits)
            continue;
        for (; bits; bits &= bits - 1)
            di_sample_keep_top(out, n_top, i + __builtin_ctz(bits), logits[i + __builtin_ctz(bits)]);
        if (out->n_top == n_top)
            bar = vf_set1(out->top[n_top - 1].logprob);
    }
    double log_sum = max + di_portable_log((double)vq_sum(vq_add(sum[0], sum[1]))) - DI_WEIGHT_BITS * DI_LN2;
    out->logprob = (float)((double)logits[id] - log_sum);
    for (size_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
}

/* ---------------------------------------------------------------- the op */

/* The token of a row. */
static di_status sample_token(struct sample_row *s, const struct di_sample_task *t, int32_t *id, di_error *err)
{
    const struct di_row *row = &t->row;
    const struct di_sampling_params *p = row->params;
    bool edited = di_row_is_edited(row), masked = row->banned || row->allowed;
    if (!sample_copy(s, row->logits, edited || !masked ? NULL : row))
        return di_row_check_finite(row->logits, (size_t)s->n, err);
    if (edited) {
        float raw_max = s->raw_max;
        di_row_edit(row, s->work.x);
        sample_copy(s, s->work.x, masked ? row : NULL);
        s->raw_max = raw_max;
    }
    if (s->n_allowed == 0)
        return di_row_fail_empty(row, err);
    *id = s->first = sample_find(s, s->max, 1);
    if (di_sampling_is_greedy(p))
        return DI_OK;
    s->temperature = p->temperature;
    s->cut = (struct sample_cut){-FLT_MAX, INT32_MAX};
    s->min_weight = p->min_p > 0 ? di_share_of(p->min_p, DI_WEIGHT_ONE) : 0;
    if (p->top_k > 0 && p->top_k < s->n_allowed)
        sample_top_k(s, p->top_k);
    if (p->top_p < 1.0)
        sample_top_p(s, p->top_p);
    struct di_noise noise = {.key = t->key, .position = row->position, .stream = DI_STREAM_TARGET};
    *id = sample_draw(s, &noise);
    return DI_OK;
}

static void sample_one(struct sample_row *s, const struct di_sample_task *t, struct di_sample_result *r)
{
    const struct di_row *row = &t->row;
    int32_t id = t->forced;
    r->status = DI_OK;
    if (id < 0)
        r->status = sample_token(s, t, &id, &r->err);
    else if (row->params->logprobs && !sample_copy(s, row->logits, NULL))
        r->status = di_row_check_finite(row->logits, (size_t)s->n, &r->err);
    r->sample.id = id;
    r->sample.logprob = NAN;
    r->sample.n_top = 0;
    if (r->status == DI_OK && row->params->logprobs)
        sample_logprobs(s, row->logits, id, (size_t)row->params->top_logprobs, &r->sample);
}

static void sample_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct di_op_sample *d = desc;
    struct vec_arena a = vec_thread(cpu, thread);
    int n = cpu->be.params.config->vocab_size;
    struct sample_row s = {.work = sample_take(&a, (size_t)n), .n = n};
    for (int64_t i = rows.begin; i < rows.end; i++)
        sample_one(&s, &d->tasks[i], &d->results[i]);
}

static void vec_sample(struct di_backend *be, const struct di_op_sample *d)
{
    vec_rows(be, d->m, 4 * (int64_t)be->params.config->vocab_size, sample_rows, d);
}

#endif
