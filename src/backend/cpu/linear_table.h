/* Tables of linear_<isa>.c, and the FP8 look-up that the AVX-512 sets share. */
#ifndef DI_BACKEND_CPU_LINEAR_TABLE_H
#define DI_BACKEND_CPU_LINEAR_TABLE_H

#include "backend/cpu/linear.h"

/* E2M1 by code. Minus zero becomes zero: it adds nothing to a sum, and the AMX decoder wants one zero only. */
static const _Alignas(64) float di_e2m1_value16[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
/* The same as bf16, twice: vpermw looks at 5 bits, of which only 4 are the code. */
#define DI_E2M1_HALF 0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0
static const _Alignas(64) uint16_t di_e2m1_bf16[32] = {DI_E2M1_HALF, DI_E2M1_HALF};

/* High and low byte of bf16(e4m3(c)), c = 0..127: exponent e > 0 has bf16 bits (e + 120) << 7 | m << 4; the subnormals m * 2^-9 are listed.
 * */
#define DI_HI(e) (e + 120) >> 1
#define DI_HI8(e) DI_HI(e), DI_HI(e), DI_HI(e), DI_HI(e), DI_HI(e), DI_HI(e), DI_HI(e), DI_HI(e)
#define DI_LO8(e)                                                                                                                   \
    (e & 1) << 7, (e & 1) << 7 | 16, (e & 1) << 7 | 32, (e & 1) << 7 | 48, (e & 1) << 7 | 64, (e & 1) << 7 | 80, (e & 1) << 7 | 96, \
        (e & 1) << 7 | 112
static const _Alignas(64) uint8_t di_e4m3_hi[128] = {
    0,          0x3B,       0x3B,      0x3B,      0x3C,      0x3C,      0x3C,      0x3C,       DI_HI8(1),  DI_HI8(2),
    DI_HI8(3),  DI_HI8(4),  DI_HI8(5), DI_HI8(6), DI_HI8(7), DI_HI8(8), DI_HI8(9), DI_HI8(10), DI_HI8(11), DI_HI8(12),
    DI_HI8(13), DI_HI8(14), 67,        67,        67,        67,        67,        67,         67,         0x7F};
static const _Alignas(64) uint8_t di_e4m3_lo[128] = {
    0,          0x00,       0x80,      0xC0,      0x00,      0x20,      0x40,      0x60,       DI_LO8(1),  DI_LO8(2),
    DI_LO8(3),  DI_LO8(4),  DI_LO8(5), DI_LO8(6), DI_LO8(7), DI_LO8(8), DI_LO8(9), DI_LO8(10), DI_LO8(11), DI_LO8(12),
    DI_LO8(13), DI_LO8(14), 128,       144,       160,       176,       192,       208,        224,        0xC0};

#ifdef __AVX512VBMI__
#include <immintrin.h>

/* 64 codes (linear.h) -> bf16 pairs of k 0,1 and k 2,3, unsigned or with the sign of the code. */
static inline void di_e4m3_to_bf16_pairs(__m512i codes, __m512i out[2])
{
    __m512i hi = _mm512_permutex2var_epi8(_mm512_load_si512(di_e4m3_hi), codes, _mm512_load_si512(di_e4m3_hi + 64));
    __m512i lo = _mm512_permutex2var_epi8(_mm512_load_si512(di_e4m3_lo), codes, _mm512_load_si512(di_e4m3_lo + 64));
    hi = _mm512_ternarylogic_epi32(hi, codes, _mm512_set1_epi8((char)0x80), 0xF8); /* hi | (codes & 0x80) */
    out[0] = _mm512_unpacklo_epi8(lo, hi);
    out[1] = _mm512_unpackhi_epi8(lo, hi);
}
#endif

#endif
