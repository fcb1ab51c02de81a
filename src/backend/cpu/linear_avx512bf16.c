/* AVX-512 with BF16: vdpbf16ps on pairs. The instruction takes subnormal inputs and results as zero; codes without their scale are never
 * subnormal, so only activations (and BF16 weights) below 2^-117 or so are lost. */
#include "backend/cpu/linear_table.h"

#include <immintrin.h>

#define LANES 16
#define STEP 2
#define MAX_ROWS 12
#define GROUPS(X) X(12) X(8) X(6) X(4) X(3) X(2) X(1)
typedef __m512 V;
#define v_zero() _mm512_setzero_ps()
#define v_load(p) _mm512_load_ps(p)
#define v_store(p, v) _mm512_store_ps(p, v)
#define v_bcast(p) _mm512_set1_ps(*(p))
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_acc(a, w, x) _mm512_dpbf16_ps(a, (__m512bh)(w), (__m512bh)(x))

static inline V scale_rows(const uint8_t *p)
{
    __m512i b = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(b, _mm512_set1_epi32(0x400000))); /* byte 0 is the subnormal 2^-127 */
}
static inline V scale_tile(uint8_t b)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(b ? b << 23 : 0x400000));
}

static inline __attribute__((always_inline)) void decode(enum di_wtype type, const uint8_t *p, V *out)
{
    if (type == DI_W_FP4_ROW32) {
        const __m512i table = _mm512_load_si512(di_e2m1_bf16);
        DI_UNROLL
        for (int o = 0; o < 2; o++) { /* nibbles 2o and 2o + 4 below, 2o + 1 and 2o + 5 above */
            __m512i v = _mm512_loadu_si512(p + o);
            out[2 * o] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(v, table));
            out[2 * o + 1] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_srli_epi32(v, 4), table));
        }
    } else if (type == DI_W_FP8_TILE32) {
        __m512i pairs[2];
        di_e4m3_to_bf16_pairs(_mm512_load_si512(p), pairs);
        out[0] = _mm512_castsi512_ps(pairs[0]);
        out[1] = _mm512_castsi512_ps(pairs[1]);
    } else {
        out[0] = _mm512_load_ps((const float *)p);
    }
}

#include "backend/cpu/linear_block.inc"

DEFINE_KERNEL(di_kernel_avx512bf16);
