/* exp and log with the same bits on every machine: additions, multiplications and divisions of doubles only, in a fixed order, no fused
 * multiply-add. A library's functions differ between versions and processors by a last bit, which could change a sampled token.
 * Error below 2 ulp in the ranges stated (measured in portable_math_test.c). */
#ifndef DI_BASE_PORTABLE_MATH_H
#define DI_BASE_PORTABLE_MATH_H

#include <stdint.h>
#include <string.h>

#define DI_LN2 0.69314718055994530942
#define DI_LN2_HI 0x1.62e42fee00000p-1 /* the first 32 bits: products with exponents are exact */
#define DI_LN2_LO 0x1.a39ef35793c76p-33

/* 1/13! to 1/0!: of the Taylor series of exp, in the order of Horner's scheme. Every form of exp here uses these, so that all have the same bits. */
#define DI_EXP_TERMS 14
static const double di_exp_term[DI_EXP_TERMS] = {1.0 / 6227020800.0,
                                                 1.0 / 479001600.0,
                                                 1.0 / 39916800.0,
                                                 1.0 / 3628800.0,
                                                 1.0 / 362880.0,
                                                 1.0 / 40320.0,
                                                 1.0 / 5040.0,
                                                 1.0 / 720.0,
                                                 1.0 / 120.0,
                                                 1.0 / 24.0,
                                                 1.0 / 6.0,
                                                 0.5,
                                                 1.0,
                                                 1.0};

/* x in [-700, 700]. */
static inline double di_portable_exp(double x)
{
    /* x = k*ln2 + r, |r| <= 0.35; Taylor: r^14/14! < 5e-18 */
    int k = (int)(x * (1.0 / DI_LN2) + (x < 0 ? -0.5 : 0.5));
    double r = (x - (double)k * DI_LN2_HI) - (double)k * DI_LN2_LO, sum = 0.0;
    for (int i = 0; i < DI_EXP_TERMS; i++)
        sum = sum * r + di_exp_term[i];
    uint64_t bits = (uint64_t)(1023 + k) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* x positive and normal. */
static inline double di_portable_log(double x)
{
    /* x = 2^e * m, m in [0.7, 1.42); log m = 2 atanh(s), s = (m-1)/(m+1), s^2 < 0.0295; the term left out is below 1e-17 */
    static const double odd[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.41421356) {
        m *= 0.5;
        e++;
    }
    double f = m - 1.0, s = f / (m + 1.0), z = s * s, sum = 0.0;
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++)
        sum = sum * z + odd[i];
    /* 2s is f - s*f, and f is exact: keeps the digits when m is near 1 */
    return (double)e * DI_LN2_HI + (f - (s * f - 2.0 * s * z * sum) + (double)e * DI_LN2_LO);
}

#endif
