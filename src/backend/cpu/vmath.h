/* Elementary functions on sixteen lanes: the same bits on AVX2 and AVX-512. */
#ifndef DI_BACKEND_CPU_VMATH_H
#define DI_BACKEND_CPU_VMATH_H

#include "backend/cpu/vec.h"

/* e^x within 2 ulp; below -87.33 (result under 2^-126) exactly 0, above 88.72 infinity; NaN stays NaN.
 * x = n ln2 + r with |r| <= ln2/2; e^r by its Taylor polynomial of degree 7 (remainder 2^-27); 2^n in two factors: n = 128 works. */
VEC_INLINE vf vf_exp(vf x)
{
    const vf least = vf_set1(-87.33654f), most = vf_set1(88.72284f);
    vf y = vf_min(most, vf_max(least, x)); /* the second operand is returned for NaN */
    vf n = vf_round(vf_mul(y, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-0.693145752f), y); /* ln2 in two parts; n times the first is exact */
    r = vf_fma(n, vf_set1(-1.42860677e-6f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1));
    p = vf_fma(p, r, vf_set1(1));
    vi k = vf_to_i32(n), half = vi_sra(k, 1);
    vi bias = vi_set1(127);
    p = vf_mul(p, vi_as_f32(vi_sll(vi_add(half, bias), 23)));
    p = vf_mul(p, vi_as_f32(vi_sll(vi_add(vi_sub(k, half), bias), 23)));
    p = vf_select(vf_gt(least, x), vf_zero(), p);
    return vf_select(vf_gt(x, most), vf_set1(__builtin_inff()), p);
}

/* 1 / (1 + e^-x) */
VEC_INLINE vf vf_sigmoid(vf x)
{
    vf one = vf_set1(1);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
}

#endif
