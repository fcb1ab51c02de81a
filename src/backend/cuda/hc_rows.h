/* One site of the hyper-connections (spec/model.md §5.2), fused: the streams take up what the sub-layer before left, the next sub-layer's input is
 * collapsed from them and normalised, and the mixing coefficients for later are computed. Four streams. Launchers enqueue on the stream, allocate
 * nothing, and return a cudaError_t as int (0 = enqueued). Pointers are device memory; act = bf16.
 *
 * Beside hc_site (kernels.h): another order of sums, so a back end uses one of the two for all its rows. This one is faster from 64 rows on (4 times
 * at 4096) and slower by 1 to 3 us up to 16; it does not round y by Q8.
 *
 * Bits. Columns are cut into slices of 64; sums over a slice run in one fixed order, slices are added in a fixed order, at every m. */
#ifndef DI_BACKEND_CUDA_HC_ROWS_H
#define DI_BACKEND_CUDA_HC_ROWS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t */

#define DI_CUDA_HC_MAX_D 16384 /* d: a multiple of 64 */

/* fn [24, 4*d] fp32 as three bf16 parts, which add up to it, in the order in which the kernel reads them. 16-byte aligned. */
size_t di_cuda_hc_bytes(int d);
int di_cuda_hc_pack(int d, const float *fn, void *packed, struct CUstream_st *stream);

struct di_cuda_hc_rows {
    int m, d, iters;
    float eps, norm_eps; /* of the mixing; of both norms */
    void *x;             /* act [m, 4, d], in place if `o` is given */
    /* x[k] = B(post[k]*o + sum_j comb[j,k] x[j]) first, unless o is NULL */
    const void *o;                  /* act [m, d] */
    const float *post_in, *comb_in; /* [m, 4], [m, 4, 4] (row = source) */
    /* y = B(rmsnorm(B(sum_s pre[s] x[s])) * w), unless y is NULL */
    const float *pre_in; /* [m, 4] */
    const uint8_t *w;    /* bf16 [d] */
    void *y;             /* act [m, d] */
    /* the coefficients, unless packed is NULL; none of these may be an input of the same site */
    const void *packed;
    const float *base, *scale; /* [24], [3] */
    float *pre, *post, *comb;  /* [m, 4], [m, 4], [m, 4, 4] */
    void *scratch;             /* di_cuda_hc_scratch_bytes, zeroed once before the first launch */
};
size_t di_cuda_hc_scratch_bytes(int max_rows, int d);
int di_cuda_hc_rows(const struct di_cuda_hc_rows *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
