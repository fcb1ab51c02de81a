/* What happens to the sums of a tile: plain C that every linear_<isa>.c compiles for itself, so that the compiler vectorises it. No
 * contraction is allowed (CMakeLists.txt), hence the results do not depend on the vector width. */
#ifndef DI_BACKEND_CPU_LINEAR_EPILOGUE_H
#define DI_BACKEND_CPU_LINEAR_EPILOGUE_H

#include "backend/cpu/linear.h"
#include "checkpoint/formats.h"

/* B for numbers that are not NaN. */
static inline float epilogue_b(float x)
{
    uint32_t u = di_f32_bits(x);
    return di_f32_from_bits((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000);
}

static void epilogue_store(const struct di_tile_store *s)
{
    for (int r = 0; r < s->rows; r++) {
        const float *c = s->c + r * DI_UNIT;
        float *y = s->y[r];
        if (s->raw)
            memcpy(y, c, (size_t)s->cols * sizeof *y);
        else
            for (int n = 0; n < s->cols; n++)
                y[n] = epilogue_b(c[n]);
    }
}

static void epilogue_add(const struct di_tile_add *s)
{
    for (int r = 0; r < s->rows; r++) {
        const float *c = s->c + r * DI_UNIT;
        float *y = s->y[r];
        if (s->last)
            for (int n = 0; n < s->cols; n++)
                y[n] = epilogue_b(y[n] + epilogue_b(c[n]));
        else
            for (int n = 0; n < s->cols; n++)
                y[n] += epilogue_b(c[n]);
    }
}

/* e^x for |x| <= 88, error below 1 ulp + the fma's: x = n ln 2 + r with |r| <= 0.35, a polynomial in r, then the exponent field. */
static inline float epilogue_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, which then stands in the low mantissa bits */
    float shifted = __builtin_fmaf(x, 0x1.715476p0f, magic), n = shifted - magic;
    float r = __builtin_fmaf(n, -0x1.62e4p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6a98dap-10f;
    p = __builtin_fmaf(p, r, 0x1.1272cap-7f);
    p = __builtin_fmaf(p, r, 0x1.555a20p-5f);
    p = __builtin_fmaf(p, r, 0x1.5554dcp-3f);
    p = __builtin_fmaf(p, r, 0x1.fffffep-2f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return di_f32_from_bits(di_f32_bits(p) + (di_f32_bits(shifted) << 23));
}

/* Q8 values of 32 numbers (spec/model.md §4.1): the same bits as di_q8_block. */
static inline void epilogue_q8(float *h)
{
    int32_t most =
        (int32_t)di_f32_bits(1e-4f); /* magnitudes compare like their bits; compilers vectorise this maximum, not that of floats */
    for (int i = 0; i < 32; i++) {
        int32_t a = (int32_t)(di_f32_bits(h[i]) & INT32_MAX);
        most = a > most ? a : most;
    }
    uint32_t e = di_f32_bits(di_f32_from_bits((uint32_t)most) * (1.0f / 448.0f));
    e = (e >> 23) + ((e & 0x7FFFFF) != 0); /* biased, between 1 and 253 */
    float scale = di_f32_from_bits(e << 23), inverse = di_f32_from_bits((254 - e) << 23);
    for (int i = 0; i < 32; i++) {
        float x = h[i] * inverse;
        x = x > 448 ? 448 : x < -448 ? -448 : x;
        uint32_t u = di_f32_bits(x), sign = u & 0x80000000;
        float a = di_f32_from_bits(u ^ sign);
        float low = (a + 0x1p14f) - 0x1p14f; /* below 2^-6 the grid is 2^-9 */
        u = di_f32_bits(a);
        float high = di_f32_from_bits((u + 0x7FFFF + (u >> 20 & 1)) & 0xFFF00000);
        h[i] = di_f32_from_bits(di_f32_bits((a < 0x1p-6f ? low : high) * scale) | sign);
    }
}

static void epilogue_swiglu(const struct di_tile_swiglu *s)
{
    for (int r = 0; r < s->rows; r++) {
        const float *g = s->g + r * DI_UNIT, *u = s->u + r * DI_UNIT;
        float *h = s->h[r], weight = s->weight ? s->weight[r] : 1.0f, limit = s->limit;
        for (int i = 0; i < DI_UNIT; i++) {
            float gate = epilogue_b(g[i]), up = epilogue_b(u[i]);
            gate = gate < limit ? gate : limit;
            up = up < limit ? up : limit;
            up = up > -limit ? up : -limit;
            float t = -gate < 88.0f ? -gate : 88.0f; /* a smaller sigmoid is lost in the rounding of h anyway */
            t = t > -88.0f ? t : -88.0f;
            h[i] = epilogue_b(weight * (gate * (1.0f / (1.0f + epilogue_exp(t))) * up));
        }
        if (s->q8)
            epilogue_q8(h);
    }
}

#endif
