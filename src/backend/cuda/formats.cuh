/* Number formats in registers (spec/model.md §3.5, §4.1): weights to bf16, exactly; Q8 of activations. */
#ifndef DI_BACKEND_CUDA_FORMATS_CUH
#define DI_BACKEND_CUDA_FORMATS_CUH

#include "backend/cuda/ptx.cuh"

namespace di
{

__device__ __forceinline__ float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}
/* B: round to bf16, ties to even. */
__device__ __forceinline__ float round_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* A packed word holds 8 e2m1 codes of one weight row: four pairs, the even k in the low half of a bf16 pair, the odd one in the high half. A code
 * becomes bf16 by putting its sign into bit 15 and its magnitude (3 bits) into bits 8..6: that is the value times 2^-126 (e2m1's subnormal is
 * bf16's). One multiplication by 2^126 * scale, which is exact, gives the weight. `scale`: that factor, twice.
 * The 16 bits of each half cannot be cut into four such patterns that differ by shifts (the polynomial 1 + x + x^2 + x^9 does not tile); three of
 * them can, with rotations of the whole word, and the left-over bits 0, 1, 3, 4 are put in place by one multiplication. 8 instructions
 * for 8 codes, then 4 multiplications. */
__device__ __forceinline__ void decode_fp4(uint32_t w, uint32_t scale, uint32_t out[4])
{
    const uint32_t mask = 0x81C081C0u;
    out[0] = mul_bf16x2(w & mask, scale);
    out[1] = mul_bf16x2(__funnelshift_r(w, w, 3) & mask, scale);
    out[2] = mul_bf16x2(__funnelshift_r(w, w, 6) & mask, scale);
    out[3] = mul_bf16x2(((w & 0x001B001Bu) * 0x1084u) & mask, scale);
}
/* The reverse: the bits of a code (4 bits) of pair p, even or odd k. */
__host__ __device__ inline uint32_t place_fp4(uint32_t code, int p, int odd)
{
    uint32_t sign = code >> 3, magnitude = code & 7, own = odd ? 16 : 0, other = 16 - own;
    if (p == 0)
        return (sign << 15 | magnitude << 6) << own;
    if (p < 3)
        return magnitude << (6 + 3 * p + own) | sign << (3 * p - 1 + other);
    return (magnitude >> 2 << 1 | (magnitude >> 1 & 1) | (magnitude & 1) << 4 | sign << 3) << own;
}

/* A packed word holds 4 e4m3 codes of one weight row: bytes 1, 3 are the first pair, bytes 0, 2 the second one. As bf16 with the magnitude in
 * bits 10..4 a code is its value times 2^-120. `scale`: 2^120 * block scale, twice. */
__device__ __forceinline__ void decode_fp8(uint32_t w, uint32_t scale, uint32_t *first, uint32_t *second)
{
    const uint32_t magnitude = 0x07F007F0u, sign = 0x80008000u;
    *first = mul_bf16x2((w >> 4) & magnitude, scale ^ (w & sign));
    *second = mul_bf16x2((w << 4) & magnitude, scale ^ ((w << 8) & sign));
}

/* Stored scale bytes are the exponent field of the bf16 factor: e8m0 byte b means 2^(b-127). Largest b that can be packed: 128 (fp4), 134
 * (fp8). */
#define DI_FP4_SCALE_BIAS 126
#define DI_FP8_SCALE_BIAS 120
__device__ __forceinline__ uint32_t scale_pair(uint32_t byte)
{
    return byte * 0x00800080u;
}

/* ceil(log2 v) by the bits of v > 0 (spec §4.1 p2c). */
__device__ __forceinline__ int ceil_log2(float v)
{
    uint32_t u = __float_as_uint(v);
    return (int)(u >> 23 & 255) - 127 + ((u & 0x7FFFFF) != 0);
}
/* Q8 scale of a block whose largest magnitude is amax, as an exponent. */
__device__ __forceinline__ int q8_exponent(float amax)
{
    return ceil_log2(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
}
/* Two values through Q8 with scale 2^e: what the codes stand for, as a bf16 pair (exact). */
__device__ __forceinline__ uint32_t q8_round_pair(float lo, float hi, int e)
{
    float inverse = __uint_as_float((uint32_t)(127 - e) << 23), s = __uint_as_float((uint32_t)(127 + e) << 23);
    uint16_t codes;
    uint32_t halves;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(hi * inverse), "f"(lo * inverse));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    float flo, fhi;
    asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(flo), "=f"(fhi) : "r"(halves));
    return (__float_as_uint(fhi * s) & 0xFFFF0000u) | __float_as_uint(flo * s) >> 16;
}

/* Q8 of 8 neighbouring bf16 values each of 4 neighbouring lanes (`quad`: their mask), which have one block of 32. */
__device__ __forceinline__ uint4 q8_round_row(uint4 v, unsigned quad)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w};
    float amax = 0;
    for (int q = 0; q < 4; q++)
        amax = fmaxf(amax, fmaxf(fabsf(bf16_low(w[q])), fabsf(bf16_high(w[q]))));
    amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 2));
    int e = q8_exponent(amax);
    for (int q = 0; q < 4; q++)
        w[q] = q8_round_pair(bf16_low(w[q]), bf16_high(w[q]), e);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

} // namespace di

#endif
