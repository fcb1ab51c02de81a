/* Sixteen fp32 or int32 lanes, the same on AVX2 (two registers) and AVX-512 (one): code written once against these functions gives the same
 * bits on both. Only for files compiled for one of the two sets. Loads and stores need no alignment. */
#ifndef DI_BACKEND_CPU_VEC_H
#define DI_BACKEND_CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VEC_INLINE static inline __attribute__((always_inline))

/* clang-format off */
#ifdef __AVX512F__

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

VEC_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VEC_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
VEC_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
VEC_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VEC_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VEC_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VEC_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VEC_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VEC_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VEC_INLINE vm vf_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
VEC_INLINE vm vf_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
VEC_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
VEC_INLINE vf vf_round(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VEC_INLINE vi vf_bits(vf v) { return _mm512_castps_si512(v); }
VEC_INLINE vf vi_as_f32(vi v) { return _mm512_castsi512_ps(v); }
VEC_INLINE vi vf_to_i32(vf v) { return _mm512_cvtps_epi32(v); }
VEC_INLINE vf vi_to_f32(vi v) { return _mm512_cvtepi32_ps(v); }
VEC_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
VEC_INLINE void vi_store(void *p, vi v) { _mm512_storeu_si512(p, v); }
VEC_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
VEC_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
VEC_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
VEC_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
VEC_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
VEC_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
#define vi_sll(a, n) _mm512_slli_epi32(a, n)
#define vi_srl(a, n) _mm512_srli_epi32(a, n)
#define vi_sra(a, n) _mm512_srai_epi32(a, n)
VEC_INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
VEC_INLINE vi vi_select(vm m, vi a, vi b) { return _mm512_mask_blend_epi32(m, b, a); }
VEC_INLINE uint32_t vm_bits(vm m) { return m; }
VEC_INLINE vm vm_from_bits(uint32_t bits) { return (vm)bits; }
VEC_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
/* The chosen lanes move to the front; what is behind them means nothing. */
VEC_INLINE vf vf_pack(vm m, vf v) { return _mm512_maskz_compress_ps(m, v); }
/* Low byte of every lane. */
VEC_INLINE void vi_store_u8(uint8_t *p, vi v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v)); }

VEC_INLINE __m256 vf_low8(vf v) { return _mm512_castps512_ps256(v); }
VEC_INLINE __m256 vf_high8(vf v) { return _mm512_extractf32x8_ps(v, 1); }
VEC_INLINE vf vf_bf16(const uint8_t *p)
{
    return vi_as_f32(vi_sll(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
VEC_INLINE vf vf_f16(__m256i h) { return _mm512_cvtph_ps(h); }
/* Sixteen E2M1 codes, element 0 in the lowest nibble of p[0]. */
VEC_INLINE vf vf_e2m1(const uint8_t *p)
{
    const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512 value = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m512i words = _mm512_permutexvar_epi32(half, _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)p)));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), value);
}
/* p[0] p[0] p[1] p[1] ... p[7] p[7] */
VEC_INLINE vf vf_load_pairs(const float *p)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
VEC_INLINE vf vf_swap_pairs(vf v) { return _mm512_permute_ps(v, 0xB1); }
/* As a 4 x 4 matrix: column k in every column, row j in every row. */
#define vf_column(v, k) _mm512_permute_ps(v, (k) * 0x55)
#define vf_row(v, j) _mm512_shuffle_f32x4(v, v, (j) * 0x55)
/* Four rows of 16 bytes; their transposition as 4 x 4 words within each quarter. */
VEC_INLINE vi vi_load_rows(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)b), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)c), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)d), 3);
}
VEC_INLINE vi vi_zip_lo32(vi a, vi b) { return _mm512_unpacklo_epi32(a, b); }
VEC_INLINE vi vi_zip_hi32(vi a, vi b) { return _mm512_unpackhi_epi32(a, b); }
VEC_INLINE vi vi_zip_lo64(vi a, vi b) { return _mm512_unpacklo_epi64(a, b); }
VEC_INLINE vi vi_zip_hi64(vi a, vi b) { return _mm512_unpackhi_epi64(a, b); }
/* Byte table of 16 entries; indices below 16. */
VEC_INLINE vi vi_lookup(__m128i table, vi index) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index); }
/* Sum of up to 8 steps of four products u8 * s8 per lane, on top of `start`; |sum| must stay below 2^15. */
VEC_INLINE vi vi_dot_begin(int32_t start) { return vi_set1(start); }
/* Not the intrinsic: gcc 12 surrounds it with moves and spills. */
VEC_INLINE vi vi_dot_step(vi sum, vi u8, vi s8)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u8), "v"(s8));
    return sum;
}
VEC_INLINE vi vi_dot_end(vi sum, int32_t start)
{
    (void)start;
    return sum;
}

#else

typedef struct {
    __m256 lo, hi;
} vf;
typedef struct {
    __m256i lo, hi;
} vi;
typedef vi vm; /* all ones or all zeros in a lane */

#define VF1(op, a) ((vf){op((a).lo), op((a).hi)})
#define VF2(op, a, b) ((vf){op((a).lo, (b).lo), op((a).hi, (b).hi)})
#define VI1(op, a) ((vi){op((a).lo), op((a).hi)})
#define VI2(op, a, b) ((vi){op((a).lo, (b).lo), op((a).hi, (b).hi)})
#define VN(type, op, a, n) ((type){op((a).lo, n), op((a).hi, n)})

VEC_INLINE vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VEC_INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
VEC_INLINE vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VEC_INLINE vf vf_add(vf a, vf b) { return VF2(_mm256_add_ps, a, b); }
VEC_INLINE vf vf_sub(vf a, vf b) { return VF2(_mm256_sub_ps, a, b); }
VEC_INLINE vf vf_mul(vf a, vf b) { return VF2(_mm256_mul_ps, a, b); }
VEC_INLINE vf vf_div(vf a, vf b) { return VF2(_mm256_div_ps, a, b); }
VEC_INLINE vf vf_max(vf a, vf b) { return VF2(_mm256_max_ps, a, b); }
VEC_INLINE vf vf_min(vf a, vf b) { return VF2(_mm256_min_ps, a, b); }
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
VEC_INLINE vm vf_gt(vf a, vf b)
{
    return (vm){_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)), _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
VEC_INLINE vm vf_ge(vf a, vf b)
{
    return (vm){_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ)), _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ))};
}
VEC_INLINE vf vf_select(vm m, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)), _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}
VEC_INLINE vf vf_round(vf v) { return VN(vf, _mm256_round_ps, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VEC_INLINE vi vf_bits(vf v) { return (vi){_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)}; }
VEC_INLINE vf vi_as_f32(vi v) { return VF1(_mm256_castsi256_ps, v); }
VEC_INLINE vi vf_to_i32(vf v) { return VI1(_mm256_cvtps_epi32, v); }
VEC_INLINE vf vi_to_f32(vi v) { return VF1(_mm256_cvtepi32_ps, v); }
VEC_INLINE vi vi_load(const void *p) { return (vi){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)}; }
VEC_INLINE void vi_store(void *p, vi v)
{
    _mm256_storeu_si256(p, v.lo);
    _mm256_storeu_si256((__m256i *)p + 1, v.hi);
}
VEC_INLINE vi vi_set1(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
VEC_INLINE vi vi_add(vi a, vi b) { return VI2(_mm256_add_epi32, a, b); }
VEC_INLINE vi vi_sub(vi a, vi b) { return VI2(_mm256_sub_epi32, a, b); }
VEC_INLINE vi vi_and(vi a, vi b) { return VI2(_mm256_and_si256, a, b); }
VEC_INLINE vi vi_or(vi a, vi b) { return VI2(_mm256_or_si256, a, b); }
VEC_INLINE vi vi_xor(vi a, vi b) { return VI2(_mm256_xor_si256, a, b); }
#define vi_sll(a, n) VN(vi, _mm256_slli_epi32, a, n)
#define vi_srl(a, n) VN(vi, _mm256_srli_epi32, a, n)
#define vi_sra(a, n) VN(vi, _mm256_srai_epi32, a, n)
VEC_INLINE vm vi_gt(vi a, vi b) { return VI2(_mm256_cmpgt_epi32, a, b); }
VEC_INLINE vi vi_select(vm m, vi a, vi b) { return (vi){_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)}; }
VEC_INLINE uint32_t vm_bits(vm m)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.lo)) | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.hi)) << 8;
}
VEC_INLINE vm vm_from_bits(uint32_t bits)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i lo = _mm256_set1_epi32((int32_t)bits), hi = _mm256_srli_epi32(lo, 8);
    return (vm){_mm256_cmpeq_epi32(_mm256_and_si256(lo, bit), bit), _mm256_cmpeq_epi32(_mm256_and_si256(hi, bit), bit)};
}
VEC_INLINE vm vm_and(vm a, vm b) { return vi_and(a, b); }
VEC_INLINE void vi_store_u8(uint8_t *p, vi v)
{
    const __m256i low = _mm256_set1_epi32(255);
    __m256i words = _mm256_packus_epi32(_mm256_and_si256(v.lo, low), _mm256_and_si256(v.hi, low));
    words = _mm256_permute4x64_epi64(words, 0xD8);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

VEC_INLINE vf vf_pack(vm m, vf v)
{
    float from[16], to[16];
    uint32_t bits = vm_bits(m);
    vf_store(from, v);
    for (int n = 0; bits; bits &= bits - 1)
        to[n++] = from[__builtin_ctz(bits)];
    return vf_load(to);
}
VEC_INLINE __m256 vf_low8(vf v) { return v.lo; }
VEC_INLINE __m256 vf_high8(vf v) { return v.hi; }
VEC_INLINE vf vf_bf16(const uint8_t *p)
{
    vi v = {_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1))};
    return vi_as_f32(vi_sll(v, 16));
}
VEC_INLINE vf vf_f16(__m256i h)
{
    return (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
VEC_INLINE __m256 vec_e2m1_8(const uint8_t *p)
{
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), sign = _mm256_set1_epi32(INT32_MIN);
    const __m256 value = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    int32_t word;
    memcpy(&word, p, 4);
    __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
    __m256i minus = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(value, code), _mm256_castsi256_ps(minus));
}
VEC_INLINE vf vf_e2m1(const uint8_t *p) { return (vf){vec_e2m1_8(p), vec_e2m1_8(p + 4)}; }
VEC_INLINE vf vf_load_pairs(const float *p)
{
    __m256 v = _mm256_loadu_ps(p), even = _mm256_unpacklo_ps(v, v), odd = _mm256_unpackhi_ps(v, v);
    return (vf){_mm256_permute2f128_ps(even, odd, 0x20), _mm256_permute2f128_ps(even, odd, 0x31)};
}
VEC_INLINE vf vf_swap_pairs(vf v) { return VN(vf, _mm256_permute_ps, v, 0xB1); }
#define vf_column(v, k) VN(vf, _mm256_permute_ps, v, (k) * 0x55)
VEC_INLINE vf vf_row(vf v, int j)
{
    __m256 half = j < 2 ? v.lo : v.hi;
    __m256 row = j % 2 ? _mm256_permute2f128_ps(half, half, 0x11) : _mm256_permute2f128_ps(half, half, 0x00);
    return (vf){row, row};
}
VEC_INLINE __m256i vec_load_two(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)), _mm_loadu_si128((const __m128i *)b), 1);
}
VEC_INLINE vi vi_load_rows(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    return (vi){vec_load_two(a, b), vec_load_two(c, d)};
}
VEC_INLINE vi vi_zip_lo32(vi a, vi b) { return VI2(_mm256_unpacklo_epi32, a, b); }
VEC_INLINE vi vi_zip_hi32(vi a, vi b) { return VI2(_mm256_unpackhi_epi32, a, b); }
VEC_INLINE vi vi_zip_lo64(vi a, vi b) { return VI2(_mm256_unpacklo_epi64, a, b); }
VEC_INLINE vi vi_zip_hi64(vi a, vi b) { return VI2(_mm256_unpackhi_epi64, a, b); }
VEC_INLINE vi vi_lookup(__m128i table, vi index)
{
    __m256i t = _mm256_broadcastsi128_si256(table);
    return (vi){_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
}
VEC_INLINE vi vi_dot_begin(int32_t start)
{
    (void)start;
    return vi_set1(0);
}
VEC_INLINE vi vi_dot_step(vi sum, vi u8, vi s8) /* two int16 sums a lane */
{
    vi p = VI2(_mm256_maddubs_epi16, u8, s8);
    return VI2(_mm256_add_epi16, sum, p);
}
VEC_INLINE vi vi_dot_end(vi sum, int32_t start)
{
    vi ones = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    return vi_add(VI2(_mm256_madd_epi16, sum, ones), vi_set1(start));
}

#endif

VEC_INLINE vf vf_zero(void) { return vf_set1(0); }
VEC_INLINE vi vf_sign(vf v) { return vi_and(vf_bits(v), vi_set1(INT32_MIN)); }
VEC_INLINE vf vf_abs(vf v) { return vi_as_f32(vi_and(vf_bits(v), vi_set1(INT32_MAX))); }

/* clang-format on */

/* Fixed trees: lane l with l + 8, then + 4, + 2, + 1. */
VEC_INLINE float vf_sum(vf v)
{
    __m256 a = _mm256_add_ps(vf_low8(v), vf_high8(v));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
VEC_INLINE float vf_largest(vf v)
{
    __m256 a = _mm256_max_ps(vf_low8(v), vf_high8(v));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* B (spec/model.md §4.3): nearest even bf16. NaNs that the processor makes have an empty lower half and stay NaN. */
VEC_INLINE vf vf_round_bf16(vf v)
{
    vi u = vf_bits(v), odd = vi_and(vi_srl(u, 16), vi_set1(1));
    return vi_as_f32(vi_and(vi_add(u, vi_add(odd, vi_set1(0x7FFF))), vi_set1((int32_t)0xFFFF0000)));
}

/* Sixteen E4M3 codes. Seen as fp16 their exponent is 8 too small, and subnormals stay right. The two NaN codes give +-480: no cache row or
 * weight may contain them. */
VEC_INLINE vf vf_e4m3(const uint8_t *p)
{
    __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return vf_mul(vf_f16(_mm256_and_si256(h, _mm256_set1_epi16((int16_t)0xBFFF))), vf_set1(256));
}

/* Thirty-two of them. */
VEC_INLINE void vf_e4m3_two(const uint8_t *p, vf out[2])
{
#ifdef __AVX512F__
    __m512i h = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)), 7);
    h = _mm512_and_si512(h, _mm512_set1_epi16((int16_t)0xBFFF));
    out[0] = vf_mul(vf_f16(_mm512_castsi512_si256(h)), vf_set1(256));
    out[1] = vf_mul(vf_f16(_mm512_extracti64x4_epi64(h, 1)), vf_set1(256));
#else
    out[0] = vf_e4m3(p);
    out[1] = vf_e4m3(p + 16);
#endif
}

#endif
