/* The CUDA kernels, as C calls; the sampler has its own header, sample.h. Each launcher enqueues on the stream and returns a cudaError_t as int
 * (0 = enqueued); it allocates nothing and waits for nothing. Pointers are device memory unless said otherwise. act = bf16 that carries the
 * rounded values of spec/model.md §4.3.
 *
 * Bits. Every output has one order of summation that depends on the shape of its weight alone. A weight's K is cut into slices (below); the
 * tensor core adds a slice 16 k at a time in ascending order from zero, slices are added in ascending order in fp32. */
#ifndef DI_BACKEND_CUDA_KERNELS_H
#define DI_BACKEND_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t */

/* ---- routed experts, few rows each (moe_decode.cu)
 *
 * y[i*k + j] = B(w2 . Q8(B(h))), h = silu(min(g, limit)) * clamp(u) * weights[i, j], g = B(w1 . x[i]), u = B(w3 . x[i]) of expert ids[i, j].
 * di_cuda_moe_combine adds the k slots in slot order and the shared expert last. */
struct di_cuda_moe_shape {
    int d, f, experts; /* d, f multiples of 32, experts <= 512 */
};
/* Bytes of the packed w1+w3 and w2 of one expert (multiples of 16). */
size_t di_cuda_moe_bytes13(const struct di_cuda_moe_shape *s);
size_t di_cuda_moe_bytes2(const struct di_cuda_moe_shape *s);
/* From checkpoint bytes to packed bytes, one expert. *bad (device) is set to 1 if a block scale cannot be packed (above 2). */
struct di_cuda_moe_pack {
    struct di_cuda_moe_shape shape;
    const uint8_t *w1, *s1, *w3, *s3, *w2, *s2; /* codes [n, k/2], scales [n, k/32] */
    uint8_t *packed13, *packed2;
    uint32_t *bad;
};
int di_cuda_moe_pack(const struct di_cuda_moe_pack *a, struct CUstream_st *stream);

#define DI_CUDA_MOE_MAX_SLOTS 2048 /* m * k of one launch */
struct di_cuda_moe_decode {
    struct di_cuda_moe_shape shape;
    int m, k;
    float limit;
    const void *x;                     /* act [m, d], already Q8 values */
    const int32_t *ids;                /* [m, k] */
    const float *weights;              /* [m, k] */
    const uint8_t *packed13, *packed2; /* experts one after another */
    void *h;                           /* scratch act [m*k, f] */
    uint32_t *counters;                /* scratch [DI_CUDA_MOE_COUNTERS], zero before the first launch; every launch leaves zeros */
    void *y;                           /* act [m*k, d] */
};
#define DI_CUDA_MOE_COUNTERS 1024
int di_cuda_moe_decode(const struct di_cuda_moe_decode *a, struct CUstream_st *stream);

struct di_cuda_moe_combine {
    int m, k, d;
    const void *slots;  /* act [m, k, d] */
    const void *shared; /* act [m, d], or NULL */
    void *y;            /* act [m, d] */
};
int di_cuda_moe_combine(const struct di_cuda_moe_combine *a, struct CUstream_st *stream);

/* ---- dense FP8 weights, up to 64 rows (dense_decode.cu)
 *
 * y[i, n] = sum_k x[i, k] w[n, k]; with groups > 1 output rows [g*n/groups, ...) read input columns [g*k, (g+1)*k). */
struct di_cuda_dense_shape {
    int n, k, groups; /* k and n/groups multiples of 32 */
};
/* Bytes of the packed form, of the partial sums and the number of counters of a launch. Partial sums and counters may be shared by launches of
 * one stream; counters are zero before the first launch and every launch leaves zeros. */
size_t di_cuda_dense_bytes(const struct di_cuda_dense_shape *s);
size_t di_cuda_dense_partial_bytes(const struct di_cuda_dense_shape *s);
int di_cuda_dense_counters(const struct di_cuda_dense_shape *s);
/* x in the form that di_cuda_dense_decode reads, for the same shape and m. */
struct di_cuda_panel {
    struct di_cuda_dense_shape shape;
    int m;         /* 1..64 */
    int q8;        /* round x by Q8 on the way */
    const void *x; /* act [m, groups*k] */
    void *panels;
};
size_t di_cuda_panel_bytes(const struct di_cuda_dense_shape *s, int m);
int di_cuda_panel(const struct di_cuda_panel *a, struct CUstream_st *stream);
struct di_cuda_dense_pack {
    struct di_cuda_dense_shape shape;
    const uint8_t *data, *scale; /* e4m3 [n, k], e8m0 [n/32, k/32] */
    uint8_t *packed;
    uint32_t *bad; /* set to 1 if a scale cannot be packed (above 2^7) */
};
int di_cuda_dense_pack(const struct di_cuda_dense_pack *a, struct CUstream_st *stream);
struct di_cuda_dense_decode {
    struct di_cuda_dense_shape shape;
    int m;         /* 1..64 */
    const void *x; /* panels of m rows (di_cuda_panel) */
    const uint8_t *packed;
    float *partial;
    uint32_t *counters;
    int out_f32; /* y is float [m, n], unrounded; else act, B */
    void *y;
};
int di_cuda_dense_decode(const struct di_cuda_dense_decode *a, struct CUstream_st *stream);

/* ---- hyper-connections, 4 streams: one site (hc_site.cu)
 *
 * x[k] = B(post_in[k] o + sum_j comb_in[j, k] x[j]) unless o is NULL; pre, post, comb = mixing weights of the new x (spec/model.md §5.2);
 * y = B(rmsnorm(B(sum_s pre_in[s] x[s])) * norm), rounded by Q8 if q8. Outputs must not alias inputs, except that x is changed in place. */
struct di_cuda_hc_site {
    int m, d, iters, q8; /* d a multiple of 128 */
    float eps, norm_eps;
    void *x;                                 /* act [m, 4, d] */
    const void *o;                           /* act [m, d], or NULL */
    const float *post_in, *comb_in, *pre_in; /* [m, 4], [m, 4, 4] (row = source), [m, 4] */
    const float *fn, *base, *scale;          /* [24, 4d], [24], [3] */
    const void *norm;                        /* bf16 [d] */
    void *y;                                 /* act [m, d] */
    float *pre, *post, *comb;                /* [m, 4], [m, 4], [m, 4, 4] */
    float *partial;                          /* scratch of di_cuda_hc_partial_bytes */
    uint32_t *counters;                      /* scratch [m], zero before the first launch, then left alone; of one d */
};
size_t di_cuda_hc_partial_bytes(int m, int d);
int di_cuda_hc_site(const struct di_cuda_hc_site *a, struct CUstream_st *stream);

/* ---- core attention, 64 heads of 512 channels, packed cache (attention.cu)
 *
 * o = softmax with sink over the window rows max(window_floor, pos - window + 1) .. pos and the selected compressed rows (spec/model.md §5.5), B. */
struct di_cuda_attention_row {
    int32_t pos, window_floor;
    int32_t chunk_pos, chunk_row; /* positions from chunk_pos on lie in window_new, from row chunk_row on */
    const uint8_t *ring;          /* window rows of the request and layer; position p at row p % ring_rows */
    const int32_t *pages;         /* of the request */
};
struct di_cuda_attention {
    int m, window, ring_rows;
    float scale;
    const struct di_cuda_attention_row *rows; /* device [m] */
    const void *q;                            /* act [m, 64, 512] */
    const uint8_t *window_new;                /* packed rows of this step, 528 bytes each */
    const uint8_t *blocks;                    /* pool; key j of a source: block pages[j / per_block], row j % per_block of 288 bytes */
    size_t block_bytes, comp_offset;
    int per_block;
    const int32_t *sel, *sel_n; /* [m, sel_ld], [m]; NULL = window only */
    int sel_ld;
    const float *sink; /* [64] */
    void *o;           /* act [m, 64, 512] */
};
int di_cuda_attention(const struct di_cuda_attention *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
