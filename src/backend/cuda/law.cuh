/* Arithmetic of sample/row.h on the device: the same bits. Operations are named one by one, so that none is fused where the plain form has two. */
#ifndef DI_BACKEND_CUDA_LAW_CUH
#define DI_BACKEND_CUDA_LAW_CUH

#include <cstdint>
#include <cuda_runtime.h>

namespace di
{

constexpr double kLn2 = 0.69314718055994530942, kLn2Hi = 0x1.62e42fee00000p-1, kLn2Lo = 0x1.a39ef35793c76p-33;
constexpr int kWeightBits = 39;
constexpr double kLogSmallest = -27.04;
constexpr float kLargestGumbel = 22.9f;

__device__ inline double portable_exp(double x)
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
    for (double f : inverse_factorial)
        sum = __dadd_rn(__dmul_rn(sum, r), f);
    return __dmul_rn(sum, __longlong_as_double((long long)(1023 + k) << 52));
}

__device__ inline double portable_log(double x)
{
    const double odd[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
    long long bits = __double_as_longlong(x);
    int e = (int)(bits >> 52) - 1023;
    double m = __longlong_as_double((bits & 0xFFFFFFFFFFFFFll) | 1023ll << 52);
    if (m > 1.41421356) {
        m = __dmul_rn(m, 0.5);
        e++;
    }
    double f = __dsub_rn(m, 1.0), s = __ddiv_rn(f, __dadd_rn(m, 1.0)), z = __dmul_rn(s, s), sum = 0.0;
#pragma unroll
    for (double o : odd)
        sum = __dadd_rn(__dmul_rn(sum, z), o);
    double tail = __dsub_rn(__dmul_rn(s, f), __dmul_rn(__dmul_rn(__dmul_rn(2.0, s), z), sum));
    return __dadd_rn(__dmul_rn((double)e, kLn2Hi), __dadd_rn(__dsub_rn(f, tail), __dmul_rn((double)e, kLn2Lo)));
}

/* A law: weights floor(2^39 exp((x - max) / t)). */
struct law {
    double max, t;
    double t_inverse, low_factor, high_factor; /* 1 -+ what the fast weight may be off by */
    float low;                                 /* logits below weigh nothing, and as much as this one */
    bool unit;                                 /* t = 1 */
    bool coarse;                               /* logits so large that there is none with log-weight -27.1 to -60: `low` is of no use */
};
__device__ inline law make_law(float max, double t)
{
    law l = {(double)max, t, 1.0 / t, 0, 0, 0, t == 1.0, false};
    double off = l.unit ? 0x1p-48 : 0x1p-46;
    l.low_factor = 1 - off, l.high_factor = 1 + off;
    l.low = __double2float_ru(l.max - 28.0 * t);
    double lowest = ((double)l.low - l.max) / t;
    l.coarse = !(lowest > -60.0 && lowest < -27.1);
    return l;
}
__device__ inline double log_weight(const law &l, float x)
{
    double d = __dsub_rn((double)x, l.max);
    return l.unit ? d : __ddiv_rn(d, l.t);
}
/* A call, not a piece of its caller: rare, and long. */
__device__ __noinline__ unsigned long long weight_exact(float x, double max, double t)
{
    double log_w = __ddiv_rn(__dsub_rn((double)x, max), t);
    return log_w < kLogSmallest ? 0 : (unsigned long long)__dmul_rn(portable_exp(log_w), 0x1p39);
}
/* The same number with half the operations: an exponential that is off by less than `off` (relative), unless an integer lies within reach: then
 * *doubt is not 0. Its polynomial is near 2^-51.4, the plain form's rounding is below 2^-50, that of a quotient by a product below 2^-46.6.
 * As the bits of a double: kWeightBias has to be subtracted. Not for a coarse law. */
constexpr unsigned long long kWeightBias = 0x4330000000000000ull; /* 2^52 */
static __constant__ double kExp[] = {0x1.28a2d82af3af9p-22,
                                     0x1.72fb136ded28cp-19,
                                     0x1.a019a653dc198p-16,
                                     0x1.a01978a4d102cp-13,
                                     0x1.6c16c17f4ac62p-10,
                                     0x1.1111112de12e5p-7,
                                     0x1.5555555552095p-5,
                                     0x1.555555554b708p-3,
                                     0x1.0000000000005p-1,
                                     0x1.000000000001ep+0,
                                     1.0,
                                     1.0 / kLn2,
                                     -kLn2Hi,
                                     -kLn2Lo};
template <bool kUnit> __device__ __forceinline__ unsigned long long weight_fast(const law &l, float x, uint32_t *doubt)
{
    const double magic = 0x1.8p52;
    double y = (double)fmaxf(x, l.low) - l.max;
    if (!kUnit)
        y *= l.t_inverse;
    double shifted = __fma_rn(y, kExp[11], magic), k = __dsub_rn(shifted, magic);
    double r = __fma_rn(k, kExp[13], __fma_rn(k, kExp[12], y)), p = kExp[0];
#pragma unroll
    for (int i = 1; i < 11; i++)
        p = __fma_rn(p, r, kExp[i]);
    double e = __hiloint2double(__double2hiint(p) + ((__double2loint(shifted) + kWeightBits) << 20), __double2loint(p));
    double low = __fma_rd(e, l.low_factor, 0x1p52), high = __fma_rd(e, l.high_factor, 0x1p52);
    *doubt = (uint32_t)(__double2loint(low) ^ __double2loint(high));
    return (unsigned long long)__double_as_longlong(low);
}
__device__ __forceinline__ unsigned long long weight_of(const law &l, float x)
{
    uint32_t doubt = 1;
    unsigned long long w = 0;
    if (!l.coarse)
        w = (l.unit ? weight_fast<true>(l, x, &doubt) : weight_fast<false>(l, x, &doubt)) - kWeightBias;
    return doubt ? weight_exact(x, l.max, l.t) : w;
}

__device__ inline unsigned long long share_of(double share, unsigned long long total)
{
    unsigned long long s = (unsigned long long)__dmul_rn(share, 0x1p53);
    unsigned long long low = s * total, high = __umul64hi(s, total), sum = low + ((1ull << 53) - 1);
    high += sum < low;
    unsigned long long r = high << 11 | sum >> 53;
    return r ? r : 1;
}

/* ---- noise */

/* One instruction; written in C it becomes two. */
__device__ __forceinline__ void wide_product(uint32_t a, uint32_t b, uint32_t *low, uint32_t *high)
{
    uint64_t p;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b));
    asm("mov.b64 {%0, %1}, %2;" : "=r"(*low), "=r"(*high) : "l"(p));
}

__device__ __forceinline__ void philox(uint32_t k0, uint32_t k1, uint32_t position, uint32_t block, uint32_t w[4])
{
    uint32_t c0 = position, c1 = block, c2 = 0, c3 = 0; /* stream TARGET, anchor 0 */
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t a_low, a_high, b_low, b_high;
        wide_product(0xD2511F53u, c0, &a_low, &a_high);
        wide_product(0xCD9E8D57u, c2, &b_low, &b_high);
        c0 = b_high ^ c1 ^ k0, c2 = a_high ^ c3 ^ k1;
        c1 = b_low, c3 = a_low;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}
__device__ inline uint32_t noise_word(uint64_t key, uint32_t position, int id)
{
    uint32_t w[4];
    philox((uint32_t)key, (uint32_t)(key >> 32), position, (uint32_t)id / 4, w);
    return (id & 2) ? ((id & 1) ? w[3] : w[2]) : ((id & 1) ? w[1] : w[0]);
}
__device__ __noinline__ double gumbel_exact(uint32_t word)
{
    return -portable_log(-portable_log(__dmul_rn(__dadd_rn((double)word, 0.5), 0x1p-32)));
}
__device__ __forceinline__ float log2_near(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Off by less than 3e-4. */
__device__ __forceinline__ float gumbel_near(uint32_t word)
{
    float u = __fmaf_rn(__uint2float_rn(word), 0x1p-32f, 0x1p-33f), q = __fmaf_rn(__uint2float_rn(~word), 0x1p-32f, 0x1p-33f);
    float e = q < 0.002f ? q * (1.0f + q * (0.5f + q * 0.3333333f)) : -0.69314718f * log2_near(u);
    return -0.69314718f * log2_near(e);
}
constexpr float kNear = 1e-3f; /* what is further below the best than this cannot win */

/* Unsigned numbers in the order of floats; -0 and 0 are one. */
__device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t b = __float_as_uint(x + 0.0f);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
__device__ __forceinline__ float order_value(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

} // namespace di

#endif
