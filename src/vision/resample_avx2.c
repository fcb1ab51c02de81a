/* Weights are cut into 12 low bits and the rest, so that two taps are one multiplication of 16-bit pairs; sums of both parts wrap, their
 * combination does not. */
#include "vision/resample.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

static __m256i two_loads(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
}

static __m256i round_sums(__m256i low, __m256i high)
{
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, 12), low);
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (DI_WEIGHT_BITS - 1))), DI_WEIGHT_BITS);
}

/* Output pixels i and k, one in each half of a register: their bytes in the first 4 of each half. */
static inline __m256i two_pixels(const struct di_axis *axis, const uint8_t *from, int64_t i, int64_t k)
{
    const __m256i first_pair = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /**/
                                                0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const __m256i second_pair = _mm256_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1, /**/
                                                 6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const uint8_t *p = from + 3 * (int64_t)axis->first[i], *q = from + 3 * (int64_t)axis->first[k];
    const int32_t *v = axis->taps + i * axis->groups * 4, *w = axis->taps + k * axis->groups * 4;
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int64_t g = 0; g < axis->groups; g++) {
        __m256i pixels = two_loads(p + 12 * g, q + 12 * g), taps = two_loads(v + 4 * g, w + 4 * g);
        __m256i a = _mm256_shuffle_epi8(pixels, first_pair), b = _mm256_shuffle_epi8(pixels, second_pair);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(a, _mm256_shuffle_epi32(taps, 0x00)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(a, _mm256_shuffle_epi32(taps, 0x55)));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(b, _mm256_shuffle_epi32(taps, 0xaa)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(b, _mm256_shuffle_epi32(taps, 0xff)));
    }
    __m256i sums = round_sums(low, high);
    sums = _mm256_packs_epi32(sums, sums);
    return _mm256_packus_epi16(sums, sums);
}

static void across_avx2(const struct di_axis *axis, const uint8_t *from, uint8_t *to)
{
    int64_t i = 0;
    uint32_t last[2];
    for (; i + 2 < axis->out; i += 2) { /* four bytes are written for each pixel; the next one corrects the fourth */
        __m256i two = two_pixels(axis, from, i, i + 1);
        uint32_t a = (uint32_t)_mm256_extract_epi32(two, 0), b = (uint32_t)_mm256_extract_epi32(two, 4);
        memcpy(to + 3 * i, &a, 4);
        memcpy(to + 3 * i + 3, &b, 4);
    }
    int64_t rest = axis->out - i; /* 1 or 2 */
    __m256i two = two_pixels(axis, from, i, i + rest - 1);
    last[0] = (uint32_t)_mm256_extract_epi32(two, 0);
    last[1] = (uint32_t)_mm256_extract_epi32(two, 4);
    for (int64_t k = 0; k < rest; k++)
        memcpy(to + 3 * (i + k), last + k, 3);
}

/* 32 bytes of an output row. */
static inline void down_32(const struct di_axis *axis, int64_t i, const uint8_t *from, int64_t stride, uint8_t *to)
{
    const int32_t *taps = axis->taps + i * axis->groups * 4;
    const __m256i zero = _mm256_setzero_si256();
    __m256i low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
    for (int64_t pair = 0; pair < 2 * axis->groups; pair++) {
        int64_t row = axis->first[i] + 2 * pair, last = axis->in - 1;
        __m256i a = _mm256_loadu_si256((const void *)(from + (row < last ? row : last) * stride));
        __m256i b = _mm256_loadu_si256((const void *)(from + (row + 1 < last ? row + 1 : last) * stride));
        __m256i ab[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
        __m256i w_low = _mm256_set1_epi32(taps[2 * pair]), w_high = _mm256_set1_epi32(taps[2 * pair + 1]);
        for (int k = 0; k < 4; k++) {
            __m256i pixels = k % 2 ? _mm256_unpackhi_epi8(ab[k / 2], zero) : _mm256_unpacklo_epi8(ab[k / 2], zero);
            low[k] = _mm256_add_epi32(low[k], _mm256_madd_epi16(pixels, w_low));
            high[k] = _mm256_add_epi32(high[k], _mm256_madd_epi16(pixels, w_high));
        }
    }
    __m256i front = _mm256_packs_epi32(round_sums(low[0], high[0]), round_sums(low[1], high[1]));
    __m256i back = _mm256_packs_epi32(round_sums(low[2], high[2]), round_sums(low[3], high[3]));
    _mm256_storeu_si256((void *)to, _mm256_packus_epi16(front, back));
}

/* Rows shorter than a register go through one that is wide enough. */
static void down_avx2(const struct di_axis *axis, int64_t i, const uint8_t *from, int64_t stride, uint8_t *to, int64_t n)
{
    for (int64_t x = 0; x + 32 <= n; x += 32)
        down_32(axis, i, from + x, stride, to + x);
    if (n % 32 && n > 32) {
        down_32(axis, i, from + n - 32, stride, to + n - 32);
    } else if (n < 32) {
        uint8_t row[32];
        down_32(axis, i, from, stride, row);
        memcpy(to, row, (size_t)n);
    }
}

const struct di_resampler di_resample_avx2 = {.name = "avx2", .form = DI_TAPS_PAIRS, .across = across_avx2, .down = down_avx2};

#else
const struct di_resampler di_resample_avx2 = {.name = "avx2", .form = DI_TAPS_PAIRS};
#endif
