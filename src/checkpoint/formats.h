/* Number formats of the checkpoint and the cache, and the three block quantisers (spec/model.md §3.5, §4.1). Bit-exact, portable C: this is
 * the definition that every fast path is compared with. */
#ifndef DI_CHECKPOINT_FORMATS_H
#define DI_CHECKPOINT_FORMATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float di_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t di_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float di_bf16_to_f32(uint16_t h)
{
    return di_f32_from_bits((uint32_t)h << 16);
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t di_f32_to_bf16(float f)
{
    uint32_t u = di_f32_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
/* B(x): the bf16 value nearest to x, as fp32. */
static inline float di_round_bf16(float f)
{
    return di_bf16_to_f32(di_f32_to_bf16(f));
}

extern const float di_e4m3_value[256]; /* E4M3 "fn": 0x7F and 0xFF are NaN */
extern const float di_e2m1_value[16];
/* 2^(b-127); b = 0 is the fp32 subnormal 2^-127; b = 255 is NaN. */
float di_e8m0_value(uint8_t b);
/* Nearest even, saturating at 448; x must not be NaN. */
uint8_t di_e4m3_encode(float x);
/* Nearest, ties to the even code, saturating at 6. */
uint8_t di_e2m1_encode(float x);
/* ceil(log2 v) in the bit form of spec §4.1, for v > 0. */
int di_p2c(float v);

/* Quantise one block. Q8: 32 values -> 32 codes and one E8M0 byte. Q4e: 32 values -> 16 bytes (even element in the low nibble) and
 * one E8M0 byte. Q4s: 16 values -> 8 bytes and one E4M3 byte. Inputs are finite. */
void di_q8_block(const float x[32], uint8_t codes[32], uint8_t *scale);
void di_q4e_block(const float x[32], uint8_t codes[16], uint8_t *scale);
void di_q4s_block(const float x[16], uint8_t codes[8], uint8_t *scale);

/* Rows of n values (n a multiple of the block). Packed row = all codes, then all scales: Q8 n + n/32 bytes (528 for 512), Q4s n/2 + n/16
 * (288 for 512), Q4e n/2 + n/32 (68 for 128). */
void di_q8_pack(const float *x, size_t n, uint8_t *row);
void di_q8_unpack(const uint8_t *row, size_t n, float *x);
void di_q4e_pack(const float *x, size_t n, uint8_t *row);
void di_q4e_unpack(const uint8_t *row, size_t n, float *x);
void di_q4s_pack(const float *x, size_t n, uint8_t *row);
void di_q4s_unpack(const uint8_t *row, size_t n, float *x);

/* Replace x by its quantised values. y may be x. */
void di_q8_round(const float *x, size_t n, float *y);
void di_q4e_round(const float *x, size_t n, float *y);

#endif
