/* not run under TSan: no threads */
/* Number formats and block quantisers: exhaustive over codes, brute force over all bf16 values for the facts of spec/model.md §4.1. */
#include "checkpoint/formats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>

#include <cmocka.h>

static const float unit[8] = {1, -0.3f, 0.01f, 0.7f, -0.055f, 0.2f, 0, -0.9f};

static void e4m3_codes(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        int e = c >> 3 & 15, m = c & 7;
        double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        if ((c & 0x7F) == 0x7F) {
            assert_true(isnan(di_e4m3_value[c]));
            continue;
        }
        assert_true(di_e4m3_value[c] == (c & 0x80 ? -v : v));
        assert_int_equal(!!signbit(di_e4m3_value[c]), c >> 7);
        assert_int_equal(di_e4m3_encode(di_e4m3_value[c]), c);
    }
    assert_int_equal(di_e4m3_encode(1e30f), 0x7E);
    assert_int_equal(di_e4m3_encode(-INFINITY), 0xFE);
}

/* Nearest by search, ties to the even code, for every float whose low 12 bits are zero or one off a tie. */
static void e4m3_nearest(void **state)
{
    (void)state;
    for (uint32_t hi = 0; hi < 0x43F00000 >> 12; hi++)
        for (uint32_t low = 0; low < 3; low++) {
            float x = di_f32_from_bits(hi << 12 | (low == 2 ? 0xFFF : low));
            if (x > 448)
                continue;
            uint8_t c = di_e4m3_encode(x);
            double here = fabs((double)di_e4m3_value[c] - x);
            double below = c ? fabs((double)di_e4m3_value[c - 1] - x) : INFINITY;
            double above = c < 0x7E ? fabs((double)di_e4m3_value[c + 1] - x) : INFINITY;
            if (!(here <= below && here <= above && (!(c & 1) || (here < below && here < above))))
                fail_msg("e4m3(%a) = %02x", x, c);
            if (di_e4m3_encode(-x) != (c | 0x80))
                fail_msg("e4m3(-%a) = %02x", x, di_e4m3_encode(-x));
        }
}

static void e2m1_codes(void **state)
{
    (void)state;
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int c = 0; c < 16; c++) {
        assert_true(di_e2m1_value[c] == (c & 8 ? -v[c & 7] : v[c & 7]));
        assert_int_equal(!!signbit(di_e2m1_value[c]), c >> 3);
        assert_int_equal(di_e2m1_encode(di_e2m1_value[c]), c);
    }
    for (uint32_t u = 0; u < 0x7F80; u++) {
        float x = di_bf16_to_f32((uint16_t)u);
        int best = 0;
        for (int c = 1; c < 8; c++)
            if (fabs((double)v[c] - x) < fabs((double)v[best] - x) || (fabs((double)v[c] - x) == fabs((double)v[best] - x) && !(c & 1)))
                best = c;
        assert_int_equal(di_e2m1_encode(x), x > 6 ? 7 : best);
        assert_int_equal(di_e2m1_encode(-x), 8 | (x > 6 ? 7 : best));
    }
}

static void e8m0_and_bf16(void **state)
{
    (void)state;
    for (int b = 0; b < 255; b++)
        assert_true(di_e8m0_value((uint8_t)b) == ldexp(1, b - 127));
    assert_true(isnan(di_e8m0_value(255)));
    for (uint32_t h = 0; h < 65536; h++) {
        float f = di_bf16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(di_round_bf16(f)));
        else
            assert_int_equal(di_f32_to_bf16(f), h);
    }
    assert_int_equal(di_f32_to_bf16(di_f32_from_bits(0x3F808000)), 0x3F80); /* tie to even */
    assert_int_equal(di_f32_to_bf16(di_f32_from_bits(0x3F818000)), 0x3F82);
    assert_int_equal(di_f32_to_bf16(di_f32_from_bits(0x3F808001)), 0x3F81);
    assert_int_equal(di_f32_to_bf16(3.4e38f), 0x7F80);
    assert_true(isnan(di_round_bf16(di_f32_from_bits(0x7F800001))));
}

static void unit_vector(void **state)
{
    (void)state;
    float x[32] = {0}, y[32];
    memcpy(x, unit, sizeof unit);
    uint8_t row[33];
    static const uint8_t q8[8] = {0x78, 0xEA, 0x42, 0x73, 0xD6, 0x65, 0x00, 0xF6};
    static const float v8[8] = {1, -0.3125f, 0.009765625f, 0.6875f, -0.0546875f, 0.203125f, 0, -0.875f};
    di_q8_pack(x, 32, row);
    di_q8_unpack(row, 32, y);
    assert_memory_equal(row, q8, 8);
    assert_int_equal(row[32], 119);
    assert_memory_equal(y, v8, sizeof v8);

    static const uint8_t q4e[4] = {0xA6, 0x50, 0x28, 0xE0};
    static const float v4e[8] = {1, -0.25f, 0, 0.75f, -0.0f, 0.25f, 0, -1};
    di_q4e_pack(x, 32, row);
    di_q4e_unpack(row, 32, y);
    assert_memory_equal(row, q4e, 4);
    assert_int_equal(row[16], 125);
    assert_memory_equal(y, v4e, sizeof v4e);

    static const uint8_t q4s[4] = {0xB7, 0x60, 0x29, 0xF0};
    static const float v4s[8] = {1.03125f, -0.2578125f, 0, 0.6875f, -0.0859375f, 0.171875f, 0, -1.03125f};
    di_q4s_pack(x, 16, row);
    di_q4s_unpack(row, 16, y);
    assert_memory_equal(row, q4s, 4);
    assert_int_equal(row[8], 0x23);
    assert_memory_equal(y, v4s, sizeof v4s);
}

static void edges(void **state)
{
    (void)state;
    float x[32] = {0}, y[32];
    uint8_t codes[32], scale;
    di_q8_block(x, codes, &scale);
    assert_int_equal(scale, 127 - 22);
    di_q4e_block(x, codes, &scale);
    assert_int_equal(scale, 127 - 126);
    di_q4s_block(x, codes, &scale);
    assert_int_equal(scale, 1); /* 2^-9 */
    x[3] = 1e30f;
    x[4] = -1.5e38f;
    di_q4s_block(x, codes, &scale);
    assert_int_equal(scale, 0x7E);
    assert_int_equal(codes[1], 0x70);
    assert_int_equal(codes[2], 0x0F);
    di_q8_round(x, 32, y);
    di_q4e_round(x, 32, y);
    assert_true(isfinite(y[3]) && isfinite(y[4]));
    assert_int_equal(di_p2c(1.0f), 0);
    assert_int_equal(di_p2c(nextafterf(1.0f, 2)), 1);
    assert_int_equal(di_p2c(nextafterf(1.0f, 0)), 0);
    assert_int_equal(di_p2c(0x1p-126f), -126);
}

static void row_layout(void **state)
{
    (void)state;
    float x[64], y[64], one[64];
    uint8_t row[66];
    for (int i = 0; i < 64; i++)
        x[i] = (float)((i * 37 % 64) - 31) * (i < 32 ? 1.0f : 0.01f);
    di_q8_pack(x, 64, row);
    di_q8_unpack(row, 64, y);
    di_q8_round(x, 64, one);
    assert_memory_equal(y, one, sizeof y);
    assert_true(row[64] != row[65]);
    di_q4e_pack(x, 64, row);
    di_q4e_unpack(row, 64, y);
    di_q4e_round(x, 64, one);
    assert_memory_equal(y, one, sizeof y);
    di_q4s_pack(x, 64, row);
    di_q4s_unpack(row, 64, y);
    for (int i = 0; i < 64; i++)
        assert_true(fabsf(y[i] - x[i]) <= (i < 32 ? 31.0f : 0.31f) / 5);
    memcpy(one, x, sizeof x); /* in place */
    di_q8_round(one, 64, one);
    di_q8_round(x, 64, y);
    assert_memory_equal(y, one, sizeof y);
}

/* p2c(amax * fl32(1/d)) is the exact ceil(log2(amax/d)) for every bf16 amax; E4M3(amax/6) = E4M3(amax * fl32(1/6)). */
static void scales_are_exact(void **state)
{
    (void)state;
    for (uint32_t h = 1; h < 0x7F80; h++) {
        float a = di_bf16_to_f32((uint16_t)h);
        if (a >= 1e-4f && a < 1e6f) {
            int e = di_p2c(a * (1.0f / 448.0f));
            assert_true(a <= ldexp(448, e) && a > ldexp(448, e - 1));
        }
        if (a >= 1e-30f && a < 1e6f) {
            int e = di_p2c(a * (1.0f / 6.0f));
            assert_true(a <= ldexp(6, e) && a > ldexp(6, e - 1));
        }
        if (a < 2688)
            assert_int_equal(di_e4m3_encode(a / 6.0f), di_e4m3_encode(a * (1.0f / 6.0f)));
    }
}

typedef void (*round_fn)(const float *x, size_t n, float *y);

static void q4s_round(const float *x, size_t n, float *y)
{
    uint8_t row[64];
    di_q4s_pack(x, n, row);
    di_q4s_unpack(row, n, y);
}

/* For blocks led by every bf16 amax in [low, high) and filled with every bf16 value down to 2^-12 of it: the outputs are bf16 values, and a
 * second pass changes nothing. Returns the range of amax where it does. */
static void second_pass(round_fn round, float low, float high, size_t block, float *first, float *last)
{
    float x[32], y[32], z[32];
    *first = *last = 0;
    for (uint32_t h = 1; h < 0x7F80; h++) {
        x[0] = di_bf16_to_f32((uint16_t)h);
        if (x[0] < low || x[0] >= high)
            continue;
        bool changed = false;
        for (uint32_t k = 0; k < 12 * 128;) {
            for (size_t i = 1; i < block; i++, k++)
                x[i] = h > k ? di_bf16_to_f32((uint16_t)((h - k) | (k & 1 ? 0x8000 : 0))) : 0;
            round(x, block, y);
            round(y, block, z);
            for (size_t i = 0; i < block; i++) {
                if (y[i] != di_round_bf16(y[i]))
                    fail_msg("%a is no bf16 value", y[i]);
                changed = changed || y[i] != z[i];
            }
        }
        if (changed) {
            *first = *first == 0 ? x[0] : *first;
            *last = x[0];
        }
    }
}

static void idempotence(void **state)
{
    (void)state;
    float first, last;
    second_pass(di_q8_round, 1e-4f, 1e6f, 32, &first, &last);
    assert_true(first == 0);
    second_pass(di_q4e_round, 1e-30f, 1e6f, 32, &first, &last);
    assert_true(first == 0);
    second_pass(q4s_round, 1e-5f, 2688, 16, &first, &last);
    assert_true(first == 0.017578125f && last == 0.01953125f);
}

/* x/s and x*fl32(1/s) give different codes only for scales of mantissa 1.875 at exact ties, and then the reciprocal goes one up. */
static void division_and_reciprocal(void **state)
{
    (void)state;
    size_t differ = 0;
    for (int c = 1; c < 0x7F; c++) {
        float s = di_e4m3_value[c], r = 1.0f / s;
        for (uint32_t h = 0; h < 0x7F80; h++) {
            float x = di_bf16_to_f32((uint16_t)h);
            uint8_t a = di_e2m1_encode(x / s), b = di_e2m1_encode(x * r);
            if (a == b)
                continue;
            differ++;
            double q = (double)x / s;
            if ((c & 7) != 7 || c < 8 || !(q == 1.25 || q == 2.5 || q == 5) || b != a + 1 || (a & 1))
                fail_msg("s %a x %a: %d by division, %d by reciprocal", s, x, a, b);
        }
    }
    assert_true(differ > 0);
    float x[16] = {11.25f, 1.25f * 1.875f, 2.5f * 1.875f, 5 * 1.875f, -5 * 1.875f, -1.25f * 1.875f};
    uint8_t codes[8], scale;
    di_q4s_block(x, codes, &scale);
    assert_true(di_e4m3_value[scale] == 1.875f);
    assert_memory_equal(codes, ((uint8_t[8]){0x27, 0x64, 0xAE}), 8); /* we divide */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_codes),  cmocka_unit_test(e4m3_nearest),
        cmocka_unit_test(e2m1_codes),  cmocka_unit_test(e8m0_and_bf16),
        cmocka_unit_test(unit_vector), cmocka_unit_test(edges),
        cmocka_unit_test(row_layout),  cmocka_unit_test(scales_are_exact),
        cmocka_unit_test(idempotence), cmocka_unit_test(division_and_reciprocal),
    };
    return cmocka_run_group_tests_name("formats", tests, NULL, NULL);
}
