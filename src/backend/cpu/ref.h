/* Shared pieces of the reference ops. Sums run in double and are rounded to fp32 once: the reference is the oracle, so it should be nearer
 * to the exact value than anything it judges (spec/model.md §4.2 class K leaves the summation free). */
#ifndef DI_BACKEND_CPU_REF_H
#define DI_BACKEND_CPU_REF_H

#include "backend/cpu/cpu.h"
#include "checkpoint/formats.h"

#include <math.h>

/* B: round to bf16 if the numerics say so. */
static inline float ref_b(const struct di_backend *be, float x)
{
    return be->params.numerics.bf16 ? di_round_bf16(x) : x;
}
static inline float ref_bf16_at(const uint8_t *p, size_t i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return di_bf16_to_f32(h);
}
static inline float ref_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* y[n] = B(x[n] * rsqrt(mean(x^2) + eps) * w[n]); y may be x. */
void ref_rmsnorm_row(const struct di_backend *be, const float *x, int n, float eps, const uint8_t *w, float *y);
/* Rotate the last 2*half of d channels by the given angles, B. */
void ref_rope_row(const struct di_backend *be, float *x, int d, int half, const float *cos, const float *sin, bool inverse);
/* Row n of a weight as fp32 [k]. */
void ref_weight_row(const struct di_weight *w, int n, float *out);
/* y[i*ldy + n] = x[i*ldx + ..] . w[n], fp32, for m rows; uses the first ref_matmul_floats(k) of the instance's scratch. */
struct ref_matmul {
    int m;
    const struct di_weight *w;
    const float *x;
    size_t ldx;
    float *y;
    size_t ldy;
};
void ref_matmul(struct di_backend *be, const struct ref_matmul *a);
#define REF_COLUMNS 64 /* rows of x that are multiplied together: independent sums, which the compiler can vectorise */
static inline size_t ref_matmul_floats(size_t k)
{
    return k * (1 + REF_COLUMNS); /* a row of w, and x transposed */
}

void ref_embed(struct di_backend *be, const struct di_op_embed *d);
void ref_rmsnorm(struct di_backend *be, const struct di_op_rmsnorm *d);
void ref_hc_mix(struct di_backend *be, const struct di_op_hc_mix *d);
void ref_hc_norm(struct di_backend *be, const struct di_op_hc_norm *d);
void ref_hc_expand(struct di_backend *be, const struct di_op_hc_expand *d);
void ref_hc_mean(struct di_backend *be, const struct di_op_hc_mean *d);
void ref_quant8(struct di_backend *be, const struct di_op_quant8 *d);
void ref_linear(struct di_backend *be, const struct di_op_linear *d);
void ref_rope_angles(struct di_backend *be, const struct di_op_rope_angles *d);
void ref_rope(struct di_backend *be, const struct di_op_rope *d);
void ref_window_store(struct di_backend *be, const struct di_op_window_store *d);
void ref_window_commit(struct di_backend *be, const struct di_op_window_commit *d);
void ref_compress(struct di_backend *be, const struct di_op_compress *d);
void ref_raw_commit(struct di_backend *be, const struct di_op_raw_commit *d);
void ref_key_store(struct di_backend *be, const struct di_op_key_store *d);
void ref_comp_store(struct di_backend *be, const struct di_op_comp_store *d);
void ref_gather(struct di_backend *be, const struct di_op_gather *d);
void ref_scale(struct di_backend *be, const struct di_op_scale *d);
void ref_index_query(struct di_backend *be, const struct di_op_index_query *d);
void ref_index_select(struct di_backend *be, const struct di_op_index_select *d);
void ref_attention(struct di_backend *be, const struct di_op_attention *d);
void ref_router(struct di_backend *be, const struct di_op_router *d);
void ref_moe(struct di_backend *be, const struct di_op_moe *d);
void ref_engram_gather(struct di_backend *be, const struct di_op_engram_gather *d);
void ref_engram_gate(struct di_backend *be, const struct di_op_engram_gate *d);
void ref_markov(struct di_backend *be, const struct di_op_markov *d);
void ref_confidence(struct di_backend *be, const struct di_op_confidence *d);

#endif
