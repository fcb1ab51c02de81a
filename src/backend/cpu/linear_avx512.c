/* AVX-512 with VBMI: fp32 products. FP4 is looked up straight to fp32; FP8 goes through bf16, whose two bytes are looked up. */
#include "backend/cpu/linear_table.h"

#include <immintrin.h>

#define LANES 16
#define STEP 1
#define MAX_ROWS 12
#define GROUPS(X) X(12) X(8) X(6) X(4) X(3) X(2) X(1)
typedef __m512 V;
#define v_zero() _mm512_setzero_ps()
#define v_load(p) _mm512_load_ps(p)
#define v_store(p, v) _mm512_store_ps(p, v)
#define v_bcast(p) _mm512_set1_ps(*(p))
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_acc(a, w, x) _mm512_fmadd_ps(w, x, a)

static inline V scale_rows(const uint8_t *p)
{
    __m512i b = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(b, _mm512_set1_epi32(0x400000))); /* byte 0 is the subnormal 2^-127 */
}
static inline V scale_tile(uint8_t b)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(b ? b << 23 : 0x400000));
}

/* Low and high halves of bf16 pairs as fp32. */
static inline void split_pairs(__m512i pairs, V *out)
{
    out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    out[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000)));
}

static inline __attribute__((always_inline)) void decode(enum di_wtype type, const uint8_t *p, V *out)
{
    if (type == DI_W_FP4_ROW32) {
        /* vpermps looks at 4 bits only; loading o bytes further on replaces a shift by 8*o (ports that the loop leaves idle). */
        const V table = _mm512_load_ps(di_e2m1_value16);
        static const int first_k[4] = {0, 4, 1, 5};
        DI_UNROLL
        for (int o = 0; o < 4; o++) {
            __m512i v = _mm512_loadu_si512(p + o);
            out[first_k[o]] = _mm512_permutexvar_ps(v, table);
            out[first_k[o] + 2] = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table);
        }
    } else if (type == DI_W_FP8_TILE32) {
        __m512i pairs[2];
        di_e4m3_to_bf16_pairs(_mm512_load_si512(p), pairs);
        split_pairs(pairs[0], out);
        split_pairs(pairs[1], out + 2);
    } else {
        split_pairs(_mm512_load_si512(p), out);
    }
}

#include "backend/cpu/linear_block.inc"

DEFINE_KERNEL(di_kernel_avx512);
