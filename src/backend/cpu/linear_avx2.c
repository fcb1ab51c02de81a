/* AVX2 with FMA and F16C: fp32 products. FP4 becomes twice its value as a signed byte, FP8 becomes 2^-8 of its value as fp16 (a shift; F16C
 * takes subnormals exactly); both pass through the stack because widening from memory is cheaper than from a register. */
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

static inline V scale_rows(const uint8_t *p) /* FP4: decode() gives twice the value */
{
    __m256i b = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 23);
    b = _mm256_max_epi32(b, _mm256_set1_epi32(0x400000)); /* byte 0 is the subnormal 2^-127 */
    return _mm256_mul_ps(_mm256_castsi256_ps(b), _mm256_set1_ps(0.5f));
}
static inline V scale_tile(uint8_t b) /* FP8: decode() gives 2^-8 of the value; scales above 2^119 would overflow */
{
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_set1_epi32(b ? b << 23 : 0x400000)), _mm256_set1_ps(256));
}

static inline __attribute__((always_inline)) void decode(enum di_wtype type, const uint8_t *p, V *out)
{
    _Alignas(32) uint8_t wide[64];
    if (type == DI_W_FP4_ROW32) {
        const __m256i table = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2,
                                               -3, -4, -6, -8, -12);
        const __m256i mask = _mm256_set1_epi8(15);
        __m256i v = _mm256_load_si256((const __m256i *)p);
        _mm256_store_si256((__m256i *)wide, _mm256_shuffle_epi8(table, _mm256_and_si256(v, mask)));
        _mm256_store_si256((__m256i *)(wide + 32), _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), mask)));
        DI_UNROLL
        for (int i = 0; i < 8; i++)
            out[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(wide + 8 * i))));
    } else if (type == DI_W_FP8_TILE32) {
        DI_UNROLL
        for (int i = 0; i < 2; i++) { /* sign-extended, the sign stands in bits 15..7; shifted by 7 all but bit 14 is in place */
            __m256i v = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(p + 16 * i))), 7);
            _mm256_store_si256((__m256i *)(wide + 32 * i), _mm256_and_si256(v, _mm256_set1_epi16((short)0xBFFF)));
        }
        DI_UNROLL
        for (int i = 0; i < 4; i++)
            out[i] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(wide + 16 * i)));
    } else {
        DI_UNROLL
        for (int i = 0; i < 2; i++)
            out[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(p + 16 * i))), 16));
    }
}

#include "backend/cpu/linear_block.h"

DEFINE_KERNEL(di_kernel_avx2);
