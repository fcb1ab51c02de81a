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
/* y[i*ldy + n] = x[i*ldx + ..] . w[n], fp32, for m rows; uses the first pieces of the instance's shared scratch (ref_matmul_carve). */
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

/* Scratch. Where an op multiplies matrices meanwhile, their pieces come first. */
struct ref_matmul_work {
    float *row; /* [k] of w */
    float *xt;  /* [k][REF_COLUMNS] x transposed */
};
static inline struct ref_matmul_work ref_matmul_carve(struct di_carver *c, int k)
{
    struct ref_matmul_work w = {.row = di_carve(c, (size_t)k, sizeof *w.row)};
    w.xt = di_carve(c, (size_t)k * REF_COLUMNS, sizeof *w.xt);
    return w;
}
static inline float *ref_router_carve(struct di_carver *c, int m, int d, int experts)
{
    ref_matmul_carve(c, d);
    return di_carve(c, (size_t)m * (size_t)experts, sizeof(float));
}
struct ref_moe_work {
    float *xs, *ys, *g, *u; /* rows of one expert: input and output [m][d], gate and up [m][f] */
    float *weight;          /* [m] */
    int32_t *row;           /* [m] */
};
static inline struct ref_moe_work ref_moe_carve(struct di_carver *c, int m, int d, int f)
{
    const size_t rows = (size_t)m;
    struct ref_moe_work w;
    ref_matmul_carve(c, d > f ? d : f);
    w.xs = di_carve(c, rows * (size_t)d, sizeof *w.xs);
    w.ys = di_carve(c, rows * (size_t)d, sizeof *w.ys);
    w.g = di_carve(c, rows * (size_t)f, sizeof *w.g);
    w.u = di_carve(c, rows * (size_t)f, sizeof *w.u);
    w.weight = di_carve(c, rows, sizeof *w.weight);
    w.row = di_carve(c, rows, sizeof *w.row);
    return w;
}
struct ref_ranked {
    float score;
    int32_t index;
};
struct ref_index_work {
    float *score, *block;      /* [groups] scores, maxima of blocks */
    float *key;                /* [d] */
    struct ref_ranked *ranked; /* [groups] */
};
static inline struct ref_index_work ref_index_carve(struct di_carver *c, int64_t groups, int d)
{
    struct ref_index_work w = {.score = di_carve(c, (size_t)groups, sizeof *w.score)};
    w.block = di_carve(c, (size_t)groups, sizeof *w.block);
    w.key = di_carve(c, (size_t)d, sizeof *w.key);
    w.ranked = di_carve(c, (size_t)groups, sizeof *w.ranked);
    return w;
}
struct ref_attention_work {
    float *keys; /* [most][d] */
    float *p;    /* [most] */
};
static inline struct ref_attention_work ref_attention_carve(struct di_carver *c, int most, int d)
{
    struct ref_attention_work w = {.keys = di_carve(c, (size_t)most * (size_t)d, sizeof *w.keys)};
    w.p = di_carve(c, (size_t)most, sizeof *w.p);
    return w;
}
/* One row of a cache before it is packed. */
static inline float *ref_row_carve(struct di_carver *c, int d)
{
    return di_carve(c, (size_t)d, sizeof(float));
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
