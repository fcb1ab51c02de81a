/* From logits to tokens, by the law of src/sample/sampler.h: the token and its log-probability are those of the CPU's sampler, to the last bit.
 *
 * Floor: bytes = vocab * 4 a row: 517 KB, 0.12 us at 4.3 TB/s (256 rows: 31 us); operations: none worth counting without truncation. With top-p every
 * logit needs an exponential in double precision: about 40 instructions, 5 M a row, 80 us for 256 rows on the H200's 64 lanes.
 *
 * One block a row, logits read two or more times (the second time from the L2). Weights are integers and the draw is a maximum, so the order of
 * neither matters. Exact numbers in double precision are computed for the few tokens that can still win: a bound in single precision with
 * room for its error throws out the others. Selection: four radix passes over 8 bits of the order of logits; the histogram has a column
 * for each lane, so that a warp's additions never meet, and 40-bit weights are added as two halves of 20 bits. */
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#include <math.h>

namespace
{

using namespace di;

constexpr int kThreads = 1024, kBuckets = 256, kWeightBits = 39;
constexpr double kLn2 = 0.69314718055994530942, kLn2Hi = 0x1.62e42fee00000p-1, kLn2Lo = 0x1.a39ef35793c76p-33; /* base/portable_math.h */
constexpr double kLogSmallest = -27.04, kLargestGumbel = 22.9;                                                 /* sample/row.h */

/* ---- arithmetic of base/portable_math.h, sample/row.h and base/philox.h; the intrinsics keep the compiler from fusing */

__device__ double portable_exp(double x)
{
    const double inverse_factorial[] = {1.0 / 6227020800.0,
                                        1.0 / 479001600.0,
                                        1.0 / 39916800.0,
                                        1.0 / 3628800.0,
                                        1.0 / 362880.0,
                                        1.0 / 40320.0,
                                        1.0 / 5040.0,
                                        1.0 / 720.0,
                                        1.0 / 120.0,
                                        1.0 / 24.0,
                                        1.0 / 6.0,
                                        0.5,
                                        1.0,
                                        1.0};
    int k = (int)__dadd_rn(__dmul_rn(x, 1.0 / kLn2), x < 0 ? -0.5 : 0.5);
    double r = __dsub_rn(__dsub_rn(x, __dmul_rn((double)k, kLn2Hi)), __dmul_rn((double)k, kLn2Lo)), sum = 0.0;
#pragma unroll
    for (int i = 0; i < 14; i++)
        sum = __dadd_rn(__dmul_rn(sum, r), inverse_factorial[i]);
    return __dmul_rn(sum, __longlong_as_double((long long)(1023 + k) << 52));
}
__device__ double portable_log(double x)
{
    const double odd[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
    uint64_t bits = (uint64_t)__double_as_longlong(x);
    int e = (int)(bits >> 52) - 1023;
    double m = __longlong_as_double((long long)((bits & 0xFFFFFFFFFFFFFull) | (uint64_t)1023 << 52));
    if (m > 1.41421356) {
        m = __dmul_rn(m, 0.5);
        e++;
    }
    double f = __dsub_rn(m, 1.0), s = __ddiv_rn(f, __dadd_rn(m, 1.0)), z = __dmul_rn(s, s), sum = 0.0;
#pragma unroll
    for (int i = 0; i < 11; i++)
        sum = __dadd_rn(__dmul_rn(sum, z), odd[i]);
    double inner = __dsub_rn(__dmul_rn(s, f), __dmul_rn(__dmul_rn(__dmul_rn(2.0, s), z), sum));
    return __dadd_rn(__dmul_rn((double)e, kLn2Hi), __dadd_rn(__dsub_rn(f, inner), __dmul_rn((double)e, kLn2Lo)));
}
__device__ uint64_t weight_of(double log_w)
{
    return log_w < kLogSmallest ? 0 : (uint64_t)__dmul_rn(portable_exp(log_w), (double)((uint64_t)1 << kWeightBits));
}
__device__ double gumbel_of(uint32_t word)
{
    return -portable_log(-portable_log(__dmul_rn(__dadd_rn((double)word, 0.5), 0x1p-32)));
}
/* share in (0, 1] of an integer, rounded up, at least 1. */
__device__ uint64_t share_of(double share, uint64_t total)
{
    uint64_t s = (uint64_t)__dmul_rn(share, 0x1p53), hi = __umul64hi(s, total), lo = s * total, rounded = lo + (((uint64_t)1 << 53) - 1);
    hi += rounded < lo;
    uint64_t r = hi << 11 | rounded >> 53;
    return r ? r : 1;
}
__device__ __forceinline__ uint4 philox(uint64_t key, uint4 c)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t hi0 = __umulhi(0xD2511F53u, c.x), lo0 = 0xD2511F53u * c.x, hi1 = __umulhi(0xCD9E8D57u, c.z), lo1 = 0xCD9E8D57u * c.z;
        c = make_uint4(hi1 ^ c.y ^ k0, lo1, hi0 ^ c.w ^ k1, lo0);
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return c;
}
__device__ __forceinline__ uint4 noise_block(const struct di_cuda_sample_row &p, uint32_t block)
{
    return philox(p.key, make_uint4((uint32_t)p.position, block & 0xFFFFFFu, 0, 0)); /* stream 0: the target's */
}
/* Unsigned numbers in the order of the floats. */
__device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* ---- a row */

struct row {
    const float *logits;
    const uint32_t *allowed, *banned;
    int vocab;
    float max;
    int first;
    double temperature;
    bool has_cut;
    uint32_t cut_key;
    int cut_last;
    uint64_t min_weight;

    __device__ __forceinline__ float at(int i) const
    {
        float x = logits[i] + 0.0f; /* -0 becomes 0 */
        bool out = (allowed && !(allowed[i / 32] >> i % 32 & 1)) || (banned && (banned[i / 32] >> i % 32 & 1));
        return out ? -INFINITY : x;
    }
    /* Four neighbours from i on, i a multiple of 4; -INFINITY behind the end. */
    __device__ __forceinline__ void at4(int i, float (&x)[4]) const
    {
        if (vocab % 4 == 0 && !allowed && !banned) {
            float4 v = *(const float4 *)(logits + i);
            x[0] = v.x + 0.0f, x[1] = v.y + 0.0f, x[2] = v.z + 0.0f, x[3] = v.w + 0.0f;
        } else {
#pragma unroll
            for (int q = 0; q < 4; q++)
                x[q] = i + q < vocab ? at(i + q) : -INFINITY;
        }
    }
    __device__ __forceinline__ double log_weight(float x) const
    {
        double y = __dsub_rn((double)x, (double)max);
        return temperature == 1.0 ? y : __ddiv_rn(y, temperature);
    }
    __device__ __forceinline__ bool in_cut(float x, int i) const
    {
        uint32_t key = order_key(x);
        return has_cut ? key > cut_key || (key == cut_key && i <= cut_last) : x > -INFINITY;
    }
};

struct shared {
    uint32_t lo[kBuckets][32], hi[kBuckets][32];
    uint64_t sums[kBuckets], wide[32];
    uint32_t bucket, failed;
    int count;
    uint64_t need, here; /* what is needed of a bucket, what it has */
};

template <class F> __device__ uint64_t reduce(shared &sh, uint64_t v, F f)
{
    for (int o = 16; o > 0; o /= 2)
        v = f(v, __shfl_xor_sync(~0u, v, o));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        sh.wide[threadIdx.x / 32] = v;
    __syncthreads();
    v = sh.wide[threadIdx.x % 32];
    for (int o = 16; o > 0; o /= 2)
        v = f(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
struct add {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a + b;
    }
};
struct larger {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a > b ? a : b;
    }
};

/* The shortest prefix of the order in which `need` tokens of the present cut stand (by weight: whose weights reach share_of(share, all of it)). */
__device__ void find_cut(row &r, shared &sh, bool by_weight, uint64_t need, double share)
{
    uint32_t prefix = 0, known = 0;
    int lane = (int)threadIdx.x % 32;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < kBuckets * 32; i += kThreads)
            sh.lo[i / 32][i % 32] = sh.hi[i / 32][i % 32] = 0;
        __syncthreads();
#pragma unroll 2
        for (int i = (int)threadIdx.x * 4; i < r.vocab; i += kThreads * 4) {
            float x[4];
            r.at4(i, x);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                uint32_t key = order_key(x[q]);
                if ((key & known) != prefix || !(x[q] > -INFINITY) || (by_weight && !r.in_cut(x[q], i + q)))
                    continue;
                uint64_t w = by_weight ? weight_of(r.log_weight(x[q])) : 1;
                if (w)
                    atomicAdd(&sh.lo[key >> shift & 255][lane], (uint32_t)(w & 0xFFFFF));
                if (w >> 20)
                    atomicAdd(&sh.hi[key >> shift & 255][lane], (uint32_t)(w >> 20));
            }
        }
        __syncthreads();
        for (int b = (int)threadIdx.x / 32; b < kBuckets; b += kThreads / 32) {
            uint64_t v = ((uint64_t)sh.hi[b][lane] << 20) + sh.lo[b][lane];
            for (int o = 16; o > 0; o /= 2)
                v += __shfl_xor_sync(~0u, v, o);
            if (lane == 0)
                sh.sums[b] = v;
        }
        __syncthreads();
        if (shift == 24 && by_weight)
            need = share_of(share, reduce(sh, threadIdx.x < kBuckets ? sh.sums[threadIdx.x] : 0, add()));
        if (threadIdx.x < 32) { /* from the highest bucket down; a lane has eight of them */
            uint64_t own = 0, before;
            for (int q = 0; q < 8; q++)
                own += sh.sums[kBuckets - 1 - lane * 8 - q];
            before = own;
            for (int o = 1; o < 32; o *= 2) {
                uint64_t other = __shfl_up_sync(~0u, before, o);
                before += lane >= o ? other : 0;
            }
            if (before >= need && before - own < need) {
                uint64_t rest = need - (before - own);
                int b = kBuckets - 1 - lane * 8;
                for (; sh.sums[b] < rest; b--)
                    rest -= sh.sums[b];
                sh.bucket = (uint32_t)b, sh.need = rest, sh.here = sh.sums[b];
            }
        }
        __syncthreads();
        need = sh.need;
        prefix |= sh.bucket << shift;
        known |= 255u << shift;
        __syncthreads();
    }
    /* Tokens with exactly this key, by rising id: all have one weight, so a number of them is needed. */
    float x = __uint_as_float(prefix & 0x80000000u ? prefix & 0x7FFFFFFFu : ~prefix);
    uint64_t w = by_weight ? weight_of(r.log_weight(x)) : 1, left = (need + w - 1) / w;
    int last = left * w < sh.here ? -1 : r.has_cut && r.cut_key == prefix ? r.cut_last : r.vocab; /* all of them, most often the only one */
    if (last >= 0)
        left = 0;
    for (int base = 0; base < r.vocab && left > 0; base += kThreads) {
        int i = base + (int)threadIdx.x;
        float v = i < r.vocab ? r.at(i) : -INFINITY;
        bool here = v > -INFINITY && order_key(v) == prefix;
        unsigned mask = __ballot_sync(~0u, here);
        uint64_t before = 0, all = 0;
        if (lane == 0)
            sh.wide[threadIdx.x / 32] = (uint64_t)__popc(mask);
        __syncthreads();
        for (int q = 0; q < kThreads / 32; q++) {
            before += q < (int)threadIdx.x / 32 ? sh.wide[q] : 0;
            all += sh.wide[q];
        }
        before += __popc(mask & ((1u << lane) - 1));
        if (threadIdx.x == 0)
            sh.count = -1;
        __syncthreads();
        if (here && before < left)
            atomicMax(&sh.count, i);
        __syncthreads();
        last = sh.count >= 0 ? sh.count : last;
        left = all < left ? left - all : 0;
        __syncthreads();
    }
    r.cut_key = prefix, r.cut_last = last, r.has_cut = true;
}

/* argmax of log-weight + Gumbel noise over the support, equal values to the lower id. */
__device__ int draw(const row &r, const struct di_cuda_sample_row &p, shared &sh)
{
    uint4 w0 = noise_block(p, (uint32_t)r.first / 4);
    const uint32_t first_words[4] = {w0.x, w0.y, w0.z, w0.w};
    double best = gumbel_of(first_words[r.first % 4]);
    int winner = r.first;
    float by = (float)(1.0 / r.temperature);
    for (int block = (int)threadIdx.x; block * 4 < r.vocab; block += kThreads) {
        float x[4], top = -INFINITY;
        r.at4(block * 4, x);
#pragma unroll
        for (int q = 0; q < 4; q++)
            top = fmaxf(top, x[q]);
        /* y + 22.9 < best: no noise can help. 0.01 and a thousandth of y are room for the errors of single precision. */
        float best_f = (float)best, gap = (top - r.max) * by;
        if (!(gap * 0.999f + (float)kLargestGumbel + 0.01f >= best_f))
            continue;
        uint4 words = noise_block(p, (uint32_t)block);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint32_t v = ~word[q];
            float near = (x[q] - r.max) * by * 0.999f + 0.01f - best_f;
            /* -log(u) > v / 2^32: it wins only if that is below e^(y - best); the place of v's highest bit decides almost always */
            if (x[q] == -INFINITY || (v && (float)(31 - __clz((int)v) - 32) * 0.6931471f >= near))
                continue;
            int i = block * 4 + q;
            double y = r.log_weight(x[q]);
            if (!r.in_cut(x[q], i) || (r.min_weight && weight_of(y) < r.min_weight))
                continue;
            double value = __dadd_rn(y, gumbel_of(word[q]));
            if (value > best || (value == best && i < winner))
                best = value, winner = i, best_f = (float)best;
        }
    }
    /* doubles in order, then the lower id among equals */
    uint64_t bits = (uint64_t)__double_as_longlong(best), key = bits >> 63 ? ~bits : bits | 1ull << 63;
    uint64_t top = reduce(sh, key, larger());
    return (int)(0x7FFFFFFF - reduce(sh, key == top ? (uint64_t)(0x7FFFFFFF - winner) : 0, larger()));
}

__global__ void __launch_bounds__(kThreads) sample(const struct di_cuda_sample g)
{
    extern __shared__ __align__(16) char smem[];
    shared &sh = *(shared *)smem;
    grid_launch_next();
    grid_wait();
    const struct di_cuda_sample_row p = g.rows[blockIdx.x];
    row r = {g.logits + (size_t)blockIdx.x * g.vocab, p.allowed, p.banned, g.vocab, 0, 0, 1.0, false, 0, 0, 0};
    uint64_t best = 0, n = 0;
    bool bad = false;
    float top = -INFINITY;
    int first = 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x * 4; i < g.vocab; i += kThreads * 4) {
        float x[4];
        r.at4(i, x);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            bad = bad || !(fabsf(x[q]) < INFINITY); /* also what is masked: looked at below */
            n += x[q] > -INFINITY;
            if (x[q] > top)
                top = x[q], first = i + q;
        }
    }
    if (p.allowed || p.banned || g.vocab % 4) {
        bad = false;
        for (int i = (int)threadIdx.x; i < g.vocab; i += kThreads)
            bad = bad || !isfinite(r.logits[i]);
    }
    best = (uint64_t)order_key(top) << 32 | (uint32_t)~first;
    best = reduce(sh, best, larger());
    n = reduce(sh, n, add());
    if (__syncthreads_or(bad) || n == 0) {
        if (threadIdx.x == 0)
            g.ids[blockIdx.x] = n == 0 && !bad ? DI_CUDA_SAMPLE_EMPTY : DI_CUDA_SAMPLE_NOT_FINITE;
        return;
    }
    r.first = (int)~(uint32_t)best;
    r.max = r.at(r.first);
    int id = r.first;
    if (p.temperature >= 1e-5) {
        r.temperature = p.temperature;
        if (p.top_k > 0 && (uint64_t)p.top_k < n)
            find_cut(r, sh, false, (uint64_t)p.top_k, 0);
        if (p.top_p < 1.0)
            find_cut(r, sh, true, 0, p.top_p);
        if (p.min_p > 0.0)
            r.min_weight = share_of(p.min_p, (uint64_t)1 << kWeightBits);
        id = draw(r, p, sh);
    }
    if (threadIdx.x == 0)
        g.ids[blockIdx.x] = id;
    if (!g.logprobs || !p.logprob)
        return;
    /* the model's own distribution: logits as they came, temperature 1 */
    float raw = -INFINITY;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < g.vocab; i += kThreads)
        raw = fmaxf(raw, r.logits[i]);
    uint32_t key = (uint32_t)reduce(sh, order_key(raw), larger());
    double max = (double)__uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
    uint64_t sum = 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < g.vocab; i += kThreads)
        sum += weight_of(__dsub_rn((double)r.logits[i], max));
    sum = reduce(sh, sum, add());
    if (threadIdx.x == 0) {
        double log_sum = __dsub_rn(__dadd_rn(max, portable_log((double)sum)), __dmul_rn((double)kWeightBits, kLn2));
        g.logprobs[blockIdx.x] = (float)__dsub_rn((double)r.logits[id], log_sum);
    }
}

} // namespace

extern "C" int di_cuda_sample(const struct di_cuda_sample *a, struct CUstream_st *stream)
{
    if (a->m < 1 || a->vocab < 1 || a->vocab > 1 << 24)
        return cudaErrorInvalidValue;
    return launch_kernel(sample, dim3((unsigned)a->m), kThreads, sizeof(shared), stream, *a);
}
