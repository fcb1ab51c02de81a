/* Weights are three balanced digits of base 256, so that four taps are one dot product of bytes; sums of each digit wrap, their
 * combination does not. */
#include "vision/resample.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

static __m512i four_loads(const void *a, const void *b, const void *c, const void *d)
{
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b), 1);
    __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(c)), _mm_loadu_si128(d), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

static __m512i round_sums(const __m512i digit[3])
{
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(digit[0], 16), _mm512_add_epi32(_mm512_slli_epi32(digit[1], 8), digit[2]));
    return _mm512_srai_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(1 << (DI_WEIGHT_BITS - 1))), DI_WEIGHT_BITS);
}

/* Output pixels i .. i + 3, or fewer at the end of the row: 4 bytes of each in `out`. */
static inline void four_pixels(const struct di_axis *axis, const uint8_t *from, int64_t i, uint8_t out[16])
{
    const __m512i by_colour = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1));
    const uint8_t *p[4];
    const int32_t *w[4];
    __m512i sums[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int k = 0; k < 4; k++) {
        int64_t at = i + k < axis->out ? i + k : axis->out - 1;
        p[k] = from + 3 * (int64_t)axis->first[at];
        w[k] = axis->taps + at * axis->groups * 4;
    }
    for (int64_t g = 0; g < axis->groups; g++) {
        __m512i pixels = four_loads(p[0] + 12 * g, p[1] + 12 * g, p[2] + 12 * g, p[3] + 12 * g);
        __m512i taps = four_loads(w[0] + 4 * g, w[1] + 4 * g, w[2] + 4 * g, w[3] + 4 * g);
        pixels = _mm512_shuffle_epi8(pixels, by_colour);
        sums[0] = _mm512_dpbusd_epi32(sums[0], pixels, _mm512_shuffle_epi32(taps, 0x00));
        sums[1] = _mm512_dpbusd_epi32(sums[1], pixels, _mm512_shuffle_epi32(taps, 0x55));
        sums[2] = _mm512_dpbusd_epi32(sums[2], pixels, _mm512_shuffle_epi32(taps, 0xaa));
    }
    __m512i values = _mm512_max_epi32(round_sums(sums), _mm512_setzero_si512());
    _mm_storeu_si128((void *)out, _mm512_cvtusepi32_epi8(values));
}

static void across_avx512(const struct di_axis *axis, const uint8_t *from, uint8_t *to)
{
    int64_t i = 0;
    uint8_t out[16];
    for (; i + 4 < axis->out; i += 4) { /* four bytes are written for each pixel; the next one corrects the fourth */
        four_pixels(axis, from, i, out);
        for (int k = 0; k < 4; k++)
            memcpy(to + 3 * (i + k), out + 4 * k, 4);
    }
    four_pixels(axis, from, i, out);
    for (int k = 0; i + k < axis->out; k++)
        memcpy(to + 3 * (i + k), out + 4 * k, 3);
}

/* 64 bytes of an output row, or those of `mask`. */
static inline void down_64(const struct di_axis *axis, int64_t i, const uint8_t *from, int64_t stride, uint8_t *to, __mmask64 mask)
{
    const int32_t *taps = axis->taps + i * axis->groups * 4;
    int64_t last = axis->in - 1;
    __m512i sums[4][3], rows[4];
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < 3; d++)
            sums[k][d] = _mm512_setzero_si512();
    for (int64_t g = 0; g < axis->groups; g++, taps += 4) {
        for (int k = 0; k < 4; k++) {
            int64_t row = axis->first[i] + 4 * g + k;
            rows[k] = _mm512_maskz_loadu_epi8(mask, from + (row < last ? row : last) * stride);
        }
        __m512i ab[2] = {_mm512_unpacklo_epi8(rows[0], rows[1]), _mm512_unpackhi_epi8(rows[0], rows[1])};
        __m512i cd[2] = {_mm512_unpacklo_epi8(rows[2], rows[3]), _mm512_unpackhi_epi8(rows[2], rows[3])};
        __m512i weights[3] = {_mm512_set1_epi32(taps[0]), _mm512_set1_epi32(taps[1]), _mm512_set1_epi32(taps[2])};
        for (int k = 0; k < 4; k++) {
            __m512i pixels = k % 2 ? _mm512_unpackhi_epi16(ab[k / 2], cd[k / 2]) : _mm512_unpacklo_epi16(ab[k / 2], cd[k / 2]);
            for (int d = 0; d < 3; d++)
                sums[k][d] = _mm512_dpbusd_epi32(sums[k][d], pixels, weights[d]);
        }
    }
    __m512i front = _mm512_packs_epi32(round_sums(sums[0]), round_sums(sums[1]));
    __m512i back = _mm512_packs_epi32(round_sums(sums[2]), round_sums(sums[3]));
    _mm512_mask_storeu_epi8(to, mask, _mm512_packus_epi16(front, back));
}

static void down_avx512(const struct di_axis *axis, int64_t i, const uint8_t *from, int64_t stride, uint8_t *to, int64_t n)
{
    int64_t x = 0;
    for (; x + 64 <= n; x += 64)
        down_64(axis, i, from + x, stride, to + x, ~(__mmask64)0);
    if (x < n)
        down_64(axis, i, from + x, stride, to + x, _cvtu64_mask64(~0ull >> (64 - (n - x))));
}

const struct di_resampler di_resample_avx512 = {.name = "avx512", .form = DI_TAPS_DIGITS, .across = across_avx512, .down = down_avx512};

#else
const struct di_resampler di_resample_avx512 = {.name = "avx512", .form = DI_TAPS_DIGITS};
#endif
