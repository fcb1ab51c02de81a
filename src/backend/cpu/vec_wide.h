/* Eight doubles or eight 64-bit integers, the same on AVX2 and AVX-512, as vec.h has sixteen 32-bit lanes. `half` 0 and 1 are the lanes 0..7
 * and 8..15 of a vector or mask of sixteen. */
#ifndef DI_BACKEND_CPU_VEC_WIDE_H
#define DI_BACKEND_CPU_VEC_WIDE_H

#include "backend/cpu/vec.h"

/* clang-format off */
#ifdef __AVX512F__

typedef __m512d vd;
typedef __m512i vq;

VEC_INLINE vd vd_set1(double x) { return _mm512_set1_pd(x); }
VEC_INLINE vd vd_add(vd a, vd b) { return _mm512_add_pd(a, b); }
VEC_INLINE vd vd_sub(vd a, vd b) { return _mm512_sub_pd(a, b); }
VEC_INLINE vd vd_mul(vd a, vd b) { return _mm512_mul_pd(a, b); }
VEC_INLINE vd vd_div(vd a, vd b) { return _mm512_div_pd(a, b); }
VEC_INLINE vd vd_max(vd a, vd b) { return _mm512_max_pd(a, b); }
VEC_INLINE vd vd_trunc(vd a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
VEC_INLINE vd vd_from_f32(vf v, int half) { return _mm512_cvtps_pd(half ? vf_high8(v) : vf_low8(v)); }
VEC_INLINE vq vd_bits(vd v) { return _mm512_castpd_si512(v); }
VEC_INLINE vd vq_as_f64(vq v) { return _mm512_castsi512_pd(v); }
VEC_INLINE vq vq_load(const uint64_t *p) { return _mm512_loadu_si512(p); }
VEC_INLINE void vq_store(uint64_t *p, vq v) { _mm512_storeu_si512(p, v); }
VEC_INLINE vq vq_set1(uint64_t x) { return _mm512_set1_epi64((int64_t)x); }
VEC_INLINE vq vq_add(vq a, vq b) { return _mm512_add_epi64(a, b); }
VEC_INLINE vq vq_or(vq a, vq b) { return _mm512_or_si512(a, b); }
VEC_INLINE vq vq_and(vq a, vq b) { return _mm512_and_si512(a, b); }
VEC_INLINE vq vq_xor3(vq a, vq b, vq c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
/* Products of the low halves. */
VEC_INLINE vq vq_mul32(vq a, vq b) { return _mm512_mul_epu32(a, b); }
#define vq_sll(a, n) _mm512_slli_epi64(a, n)
#define vq_srl(a, n) _mm512_srli_epi64(a, n)
/* sum + (a where the lane of the mask is set) */
VEC_INLINE vq vq_add_where(vq sum, vm m, int half, vq a) { return _mm512_mask_add_epi64(sum, (__mmask8)(half ? m >> 8 : m), sum, a); }
VEC_INLINE vq vq_pack(vm m, int half, vq a) { return _mm512_maskz_compress_epi64((__mmask8)(half ? m >> 8 : m), a); }
/* Lane l stands for block vq_block_order[l]; a holds words 0 and 1 of every block, b words 2 and 3. Then zip_lo is all words of the blocks
 * 0..3 in order, zip_hi those of 4..7. */
VEC_INLINE vq vq_block_order(void) { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
VEC_INLINE vi vq_zip_lo(vq a, vq b) { return _mm512_unpacklo_epi64(a, b); }
VEC_INLINE vi vq_zip_hi(vq a, vq b) { return _mm512_unpackhi_epi64(a, b); }

#else

typedef struct {
    __m256d lo, hi;
} vd;
typedef vi vq;

#define VD2(op, a, b) ((vd){op((a).lo, (b).lo), op((a).hi, (b).hi)})
VEC_INLINE vd vd_set1(double x) { return (vd){_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
VEC_INLINE vd vd_add(vd a, vd b) { return VD2(_mm256_add_pd, a, b); }
VEC_INLINE vd vd_sub(vd a, vd b) { return VD2(_mm256_sub_pd, a, b); }
VEC_INLINE vd vd_mul(vd a, vd b) { return VD2(_mm256_mul_pd, a, b); }
VEC_INLINE vd vd_div(vd a, vd b) { return VD2(_mm256_div_pd, a, b); }
VEC_INLINE vd vd_max(vd a, vd b) { return VD2(_mm256_max_pd, a, b); }
VEC_INLINE vd vd_trunc(vd a) { return VN(vd, _mm256_round_pd, a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
VEC_INLINE vd vd_from_f32(vf v, int half)
{
    __m256 h = half ? v.hi : v.lo;
    return (vd){_mm256_cvtps_pd(_mm256_castps256_ps128(h)), _mm256_cvtps_pd(_mm256_extractf128_ps(h, 1))};
}
VEC_INLINE vq vd_bits(vd v) { return (vq){_mm256_castpd_si256(v.lo), _mm256_castpd_si256(v.hi)}; }
VEC_INLINE vd vq_as_f64(vq v) { return (vd){_mm256_castsi256_pd(v.lo), _mm256_castsi256_pd(v.hi)}; }
VEC_INLINE vq vq_load(const uint64_t *p) { return vi_load(p); }
VEC_INLINE void vq_store(uint64_t *p, vq v) { vi_store(p, v); }
VEC_INLINE vq vq_set1(uint64_t x) { return (vq){_mm256_set1_epi64x((int64_t)x), _mm256_set1_epi64x((int64_t)x)}; }
VEC_INLINE vq vq_add(vq a, vq b) { return VI2(_mm256_add_epi64, a, b); }
VEC_INLINE vq vq_or(vq a, vq b) { return vi_or(a, b); }
VEC_INLINE vq vq_and(vq a, vq b) { return vi_and(a, b); }
VEC_INLINE vq vq_xor3(vq a, vq b, vq c) { return vi_xor(vi_xor(a, b), c); }
VEC_INLINE vq vq_mul32(vq a, vq b) { return VI2(_mm256_mul_epu32, a, b); }
#define vq_sll(a, n) VN(vq, _mm256_slli_epi64, a, n)
#define vq_srl(a, n) VN(vq, _mm256_srli_epi64, a, n)
VEC_INLINE vq vq_mask(vm m, int half)
{
    __m256i h = half ? m.hi : m.lo;
    return (vq){_mm256_cvtepi32_epi64(_mm256_castsi256_si128(h)), _mm256_cvtepi32_epi64(_mm256_extracti128_si256(h, 1))};
}
VEC_INLINE vq vq_add_where(vq sum, vm m, int half, vq a) { return vq_add(sum, vq_and(vq_mask(m, half), a)); }
VEC_INLINE vq vq_pack(vm m, int half, vq a)
{
    uint64_t from[8], to[8];
    uint32_t bits = vm_bits(m) >> 8 * half & 255;
    vq_store(from, a);
    for (int n = 0; bits; bits &= bits - 1)
        to[n++] = from[__builtin_ctz(bits)];
    return vq_load(to);
}
VEC_INLINE vq vq_block_order(void) { return (vq){_mm256_setr_epi64x(0, 2, 1, 3), _mm256_setr_epi64x(4, 6, 5, 7)}; }
VEC_INLINE vi vq_zip_lo(vq a, vq b) /* blocks 0 1 of either half */
{
    return (vi){_mm256_unpacklo_epi64(a.lo, b.lo), _mm256_unpackhi_epi64(a.lo, b.lo)};
}
VEC_INLINE vi vq_zip_hi(vq a, vq b) { return (vi){_mm256_unpacklo_epi64(a.hi, b.hi), _mm256_unpackhi_epi64(a.hi, b.hi)}; }

#endif
/* clang-format on */

VEC_INLINE uint64_t vq_sum(vq v)
{
    uint64_t lane[8], sum = 0;
    vq_store(lane, v);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

#endif
