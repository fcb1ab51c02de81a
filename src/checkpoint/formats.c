#include "checkpoint/formats.h"

#include <math.h>

/* (8 + m) * u for m = 0..7: one exponent of E4M3; `s` is + or -. */
#define OCTAVE(s, u) s 8 * u, s 9 * u, s 10 * u, s 11 * u, s 12 * u, s 13 * u, s 14 * u, s 15 * u
#define E4M3_HALF(s)                                                                                                                    \
    s 0 * 0x1p-9f, s 1 * 0x1p-9f, s 2 * 0x1p-9f, s 3 * 0x1p-9f, s 4 * 0x1p-9f, s 5 * 0x1p-9f, s 6 * 0x1p-9f, s 7 * 0x1p-9f,             \
        OCTAVE(s, 0x1p-9f), OCTAVE(s, 0x1p-8f), OCTAVE(s, 0x1p-7f), OCTAVE(s, 0x1p-6f), OCTAVE(s, 0x1p-5f), OCTAVE(s, 0x1p-4f),         \
        OCTAVE(s, 0x1p-3f), OCTAVE(s, 0x1p-2f), OCTAVE(s, 0x1p-1f), OCTAVE(s, 1.0f), OCTAVE(s, 2.0f), OCTAVE(s, 4.0f), OCTAVE(s, 8.0f), \
        OCTAVE(s, 16.0f), s 8 * 32.0f, s 9 * 32.0f, s 10 * 32.0f, s 11 * 32.0f, s 12 * 32.0f, s 13 * 32.0f, s 14 * 32.0f, NAN

const float di_e4m3_value[256] = {E4M3_HALF(+), E4M3_HALF(-1.0f *)};
const float di_e2m1_value[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

float di_e8m0_value(uint8_t b)
{
    if (b == 0)
        return 0x1p-127f;
    return b == 255 ? NAN : di_f32_from_bits((uint32_t)b << 23);
}

uint8_t di_e4m3_encode(float x)
{
    uint32_t u = di_f32_bits(x), sign = u >> 24 & 0x80;
    float a = di_f32_from_bits(u & 0x7FFFFFFF);
    if (a > 448)
        return (uint8_t)(sign | 0x7E);
    if (a < 0x1p-6f) /* in the sum one unit in the last place is 2^-9, the subnormal step; a carry gives the code of 2^-6 */
        return (uint8_t)(sign | (di_f32_bits(a + 0x1p14f) - di_f32_bits(0x1p14f)));
    u = di_f32_bits(a);
    u = (u + 0x7FFFF + (u >> 20 & 1)) >> 20;
    return (uint8_t)(sign | (u - ((127 - 7) << 3)));
}

uint8_t di_e2m1_encode(float x)
{
    uint32_t u = di_f32_bits(x), sign = u >> 28 & 8;
    float a = di_f32_from_bits(u & 0x7FFFFFFF);
    return (uint8_t)(sign | (uint32_t)((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f)));
}

int di_p2c(float v)
{
    uint32_t u = di_f32_bits(v);
    return (int)(u >> 23 & 255) - 127 + ((u & 0x7FFFFF) != 0);
}

static float block_amax(const float *x, size_t n, float floor)
{
    float m = floor;
    for (size_t i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static float power_of_two(int e) /* -126 <= e <= 127 */
{
    return di_f32_from_bits((uint32_t)(e + 127) << 23);
}

/* The scales of Q8 and Q4e are powers of two between 2^-126 and 2^126, so the product with the reciprocal is the division. */
void di_q8_block(const float x[32], uint8_t codes[32], uint8_t *scale)
{
    int e = di_p2c(block_amax(x, 32, 1e-4f) * (1.0f / 448.0f));
    float inverse = power_of_two(-e);
    for (int i = 0; i < 32; i++)
        codes[i] = di_e4m3_encode(clamp(x[i] * inverse, 448));
    *scale = (uint8_t)(e + 127);
}

void di_q4e_block(const float x[32], uint8_t codes[16], uint8_t *scale)
{
    int e = di_p2c(block_amax(x, 32, 6 * 0x1p-126f) * (1.0f / 6.0f));
    float inverse = power_of_two(-e);
    for (int i = 0; i < 16; i++)
        codes[i] = (uint8_t)(di_e2m1_encode(clamp(x[2 * i] * inverse, 6)) | di_e2m1_encode(clamp(x[2 * i + 1] * inverse, 6)) << 4);
    *scale = (uint8_t)(e + 127);
}

/* Division, not multiplication by the reciprocal: the two differ in ties when the scale's mantissa is 1.875 (spec §4.1). */
void di_q4s_block(const float x[16], uint8_t codes[8], uint8_t *scale)
{
    *scale = di_e4m3_encode(block_amax(x, 16, 6 * 0x1p-9f) / 6.0f);
    float s = di_e4m3_value[*scale];
    for (int i = 0; i < 8; i++)
        codes[i] = (uint8_t)(di_e2m1_encode(clamp(x[2 * i] / s, 6)) | di_e2m1_encode(clamp(x[2 * i + 1] / s, 6)) << 4);
}

void di_q8_pack(const float *x, size_t n, uint8_t *row)
{
    for (size_t b = 0; b < n / 32; b++)
        di_q8_block(x + 32 * b, row + 32 * b, row + n + b);
}

void di_q8_unpack(const uint8_t *row, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = di_e4m3_value[row[i]] * di_e8m0_value(row[n + i / 32]);
}

void di_q4e_pack(const float *x, size_t n, uint8_t *row)
{
    for (size_t b = 0; b < n / 32; b++)
        di_q4e_block(x + 32 * b, row + 16 * b, row + n / 2 + b);
}

void di_q4e_unpack(const uint8_t *row, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = di_e2m1_value[row[i / 2] >> (i & 1 ? 4 : 0) & 15] * di_e8m0_value(row[n / 2 + i / 32]);
}

void di_q4s_pack(const float *x, size_t n, uint8_t *row)
{
    for (size_t b = 0; b < n / 16; b++)
        di_q4s_block(x + 16 * b, row + 8 * b, row + n / 2 + b);
}

void di_q4s_unpack(const uint8_t *row, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = di_e2m1_value[row[i / 2] >> (i & 1 ? 4 : 0) & 15] * di_e4m3_value[row[n / 2 + i / 16]];
}

void di_q8_round(const float *x, size_t n, float *y)
{
    uint8_t row[33];
    for (size_t i = 0; i < n; i += 32) {
        di_q8_block(x + i, row, row + 32);
        di_q8_unpack(row, 32, y + i);
    }
}

void di_q4e_round(const float *x, size_t n, float *y)
{
    uint8_t row[17];
    for (size_t i = 0; i < n; i += 32) {
        di_q4e_block(x + i, row, row + 16);
        di_q4e_unpack(row, 32, y + i);
    }
}
