/* AVX2 with FMA and F16C: fp32 products. FP8 becomes 2^-8 of its value as fp16 (a shift; F16C takes subnormals exactly) and passes through
 * the stack, because widening from memory is cheaper than from a register. */
#include "backend/cpu/linear_table.h"

#include <immintrin.h>

#define LANES 8
#define STEP 1
#define MAX_ROWS 6
#define GROUPS(X) X(6) X(4) X(3) X(2) X(1)
typedef __m256 V;
#define v_zero() _mm256_setzero_ps()
#define v_load(p) _mm256_load_ps(p)
#define v_store(p, v) _mm256_store_ps(p, v)
#define v_bcast(p) _mm256_broadcast_ss(p)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_acc(a, w, x) _mm256_fmadd_ps(w, x, a)

static inline V scale_rows(const uint8_t *p)
{
    __m256i b = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(b, _mm256_set1_epi32(0x400000))); /* byte 0 is the subnormal 2^-127 */
}
static inline V scale_tile(uint8_t b) /* FP8: decode() gives 2^-8 of the value; scales above 2^119 would overflow */
{
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_set1_epi32(b ? b << 23 : 0x400000)), _mm256_set1_ps(256));
}

#define IN_MEMORY(a) __asm__("" : "+m"(a)) /* the compiler would replace the way through memory by shuffles */

static inline __attribute__((always_inline)) void decode(enum di_wtype type, const uint8_t *p, V *out)
{
    if (type == DI_W_FP4_ROW32) {
        /* The two bytes of the bf16 by table, put together and below zeros by interleaving: 2 shuffles for 8 weights. */
        const __m256i hi = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, 0, -65, -65, -65, -64, -64, -64, -64));
        const __m256i lo = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
        const __m256i mask = _mm256_set1_epi8(15), zero = _mm256_setzero_si256(), v = _mm256_load_si256((const __m256i *)p);
        DI_UNROLL
        for (int i = 0; i < 2; i++, out += 4) {
            __m256i code = _mm256_and_si256(i ? _mm256_srli_epi16(v, 4) : v, mask);
            __m256i h = _mm256_shuffle_epi8(hi, code), l = _mm256_shuffle_epi8(lo, code);
            __m256i k01 = _mm256_unpacklo_epi8(l, h), k23 = _mm256_unpackhi_epi8(l, h);
            out[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, k01));
            out[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, k01));
            out[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, k23));
            out[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, k23));
        }
    } else if (type == DI_W_FP8_TILE32) {
        _Alignas(32) uint8_t wide[64];
        DI_UNROLL
        for (int i = 0; i < 2; i++) { /* sign-extended, the sign stands in bits 15..7; shifted by 7 all but bit 14 is in place */
            __m256i v = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(p + 16 * i))), 7);
            _mm256_store_si256((__m256i *)(wide + 32 * i), _mm256_and_si256(v, _mm256_set1_epi16((short)0xBFFF)));
        }
        IN_MEMORY(wide);
        DI_UNROLL
        for (int i = 0; i < 4; i++)
            out[i] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(wide + 16 * i)));
    } else {
        DI_UNROLL
        for (int i = 0; i < 2; i++)
            out[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(p + 16 * i))), 16));
    }
}

#include "backend/cpu/linear_block.inc"

DEFINE_KERNEL(di_kernel_avx2);
