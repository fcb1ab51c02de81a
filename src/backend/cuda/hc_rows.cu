/* A hyper-connection site (hc_rows.h).
 *
 * Floor: per row 4*d*2 bytes read and written, d*2 read, d*2 written (102 KB at d = 5120); fn as bf16 parts 24*4*d*6 bytes (2.9 MB). 16 rows 1.1 us,
 * 4096 rows 98 us at 4.3 TB/s.
 *
 * A block has a slice of 64 columns of all streams and its part of fn in shared memory; a warp has 16 rows by 32 columns. A lane's rows and
 * columns are those of the tensor core's operand (rows lane/4 and lane/4 + 8, columns 8*(lane%4) ...), so that what it computes for the new
 * streams is multiplied by fn as it is. Products of bf16 parts are exact, sums fp32.
 *
 * Up to 16 rows: one launch; the blocks wait for each other's sums (all of them run at once: 80 blocks), then each normalises what it still has
 * in registers and the first m compute a row's coefficients each. More rows: a second launch does that. */
#include "backend/cuda/formats.cuh"
#include "backend/cuda/hc_rows.h"
#include "backend/cuda/launch.cuh"

namespace
{

using namespace di;

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 64, kOutputs = 24, kFewRows = 16;
constexpr int kSteps = 8;                       /* of 16 k: 4 streams, 2 each */
constexpr int kHalfWords = kSteps * 3 * 3 * 32; /* uint2 of 32 columns: steps, parts, tiles of 8 outputs, lanes */
constexpr int kSliceBytes = 2 * kHalfWords * 8;

struct job {
    struct di_cuda_hc_rows a;
    int slices;
    float *mix;     /* [m][slices][24] */
    float *xx, *uu; /* [m][slices]: squares of the streams, of the collapsed row */
    /* The same for few rows: each number with the number of the launch beside it, so that whoever reads it knows that it is there. */
    uint32_t *launches;
    uint2 *few_mix, *few_xx, *few_uu; /* [16][slices] */
};

__host__ __device__ inline size_t padded(size_t n)
{
    return (n + 255) & ~(size_t)255;
}
size_t place_scratch(void *memory, int m, int d, job *j)
{
    char *base = (char *)memory;
    size_t n = (size_t)m * (size_t)(d / kColumns), few = (size_t)kFewRows * (size_t)(d / kColumns), at = 0;
    auto take = [&](size_t bytes) {
        char *p = base + at;
        at += padded(bytes);
        return p;
    };
    j->launches = (uint32_t *)take(sizeof(uint32_t));
    j->few_mix = (uint2 *)take(few * kOutputs * sizeof(uint2));
    j->few_xx = (uint2 *)take(few * sizeof(uint2));
    j->few_uu = (uint2 *)take(few * sizeof(uint2));
    j->mix = (float *)take(n * kOutputs * sizeof(float));
    j->xx = (float *)take(n * sizeof(float));
    j->uu = (float *)take(n * sizeof(float));
    return at;
}

__global__ void pack_kernel(int d, const float *fn, uint2 *packed)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)(d / kColumns) * 2 * kHalfWords)
        return;
    int lane = (int)(i % 32), tile = (int)(i / 32 % 3), part = (int)(i / 96 % 3), step = (int)(i / 288 % kSteps);
    int c = (int)(i / kHalfWords) * 32 + 8 * (lane % 4) + step % 2 * 4;
    const float *row = fn + (size_t)(tile * 8 + lane / 4) * 4 * (size_t)d + (size_t)(step / 2) * (size_t)d + c;
    uint32_t h[4];
    for (int k = 0; k < 4; k++) {
        float v = row[k], hi = round_bf16(v), mid = round_bf16(v - hi), low = round_bf16(v - hi - mid);
        h[k] = __float_as_uint(part == 0 ? hi : part == 1 ? mid : low) >> 16;
    }
    packed[i] = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
}

__device__ __forceinline__ uint64_t policy_evict_last(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint32_t pack_pair(float lo, float hi)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&p;
}

/* 8 columns of one row: the new streams, the collapsed row, sums of their squares. */
struct row_part {
    uint4 x[4], u;
    float xx, uu;
};
__device__ __forceinline__ uint32_t &word(uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

struct coefficients {
    float4 post, pre, comb[4]; /* comb: by source */
};
__device__ __forceinline__ float at4(const float4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ void compute_row(row_part &p, uint4 o, const coefficients &c, bool expands)
{
    p.xx = p.uu = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w[4] = {word(p.x[0], i), word(p.x[1], i), word(p.x[2], i), word(p.x[3], i)};
        if (expands) {
            float o0 = bf16_low(word(o, i)), o1 = bf16_high(word(o, i)), in0[4], in1[4];
#pragma unroll
            for (int s = 0; s < 4; s++)
                in0[s] = bf16_low(w[s]), in1[s] = bf16_high(w[s]);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float a = at4(c.post, k) * o0, b = at4(c.post, k) * o1;
#pragma unroll
                for (int s = 0; s < 4; s++)
                    a = fmaf(at4(c.comb[s], k), in0[s], a), b = fmaf(at4(c.comb[s], k), in1[s], b);
                w[k] = pack_pair(a, b);
            }
        }
        float u0 = 0, u1 = 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            float a = bf16_low(w[s]), b = bf16_high(w[s]);
            word(p.x[s], i) = w[s];
            p.xx = fmaf(a, a, p.xx), p.xx = fmaf(b, b, p.xx);
            u0 = fmaf(at4(c.pre, s), a, u0), u1 = fmaf(at4(c.pre, s), b, u1);
        }
        uint32_t u = pack_pair(u0, u1);
        word(p.u, i) = u;
        p.uu = fmaf(bf16_low(u), bf16_low(u), p.uu), p.uu = fmaf(bf16_high(u), bf16_high(u), p.uu);
    }
}

__device__ __forceinline__ void load_row(const job &j, int row, int column, row_part &p, uint4 &o, coefficients &c)
{
    const struct di_cuda_hc_rows &a = j.a;
    const uint16_t *x = (const uint16_t *)a.x + (size_t)row * 4 * (size_t)a.d + column;
#pragma unroll
    for (int s = 0; s < 4; s++)
        p.x[s] = __ldcg((const uint4 *)(x + (size_t)s * (size_t)a.d));
    if (a.o) {
        o = __ldcg((const uint4 *)((const uint16_t *)a.o + (size_t)row * (size_t)a.d + column));
        c.post = __ldcg((const float4 *)a.post_in + row);
#pragma unroll
        for (int s = 0; s < 4; s++)
            c.comb[s] = __ldcg((const float4 *)a.comb_in + row * 4 + s);
    }
    c.pre = a.y ? __ldcg((const float4 *)a.pre_in + row) : make_float4(0, 0, 0, 0);
}

struct tile_sums { /* what the second half of the columns adds, in shared memory */
    float acc[12][32], xx[2][32], uu[2][32];
};

/* 16 rows by 32 columns. Leaves the collapsed rows in u. */
template <bool kFew>
__device__ __forceinline__ void do_tile(const job &j, const uint2 *fn, int slice, int half, int row0, int named, uint32_t launch,
                                        tile_sums &sums, uint4 u[2])
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, column = slice * kColumns + half * 32 + 8 * t;
    row_part p[2];
    uint4 o[2];
    coefficients c[2];
    bool valid[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + g + 8 * r;
        valid[r] = row < j.a.m;
        load_row(j, valid[r] ? row : j.a.m - 1, column, p[r], o[r], c[r]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        compute_row(p[r], o[r], c[r], j.a.o != nullptr);
        u[r] = p[r].u;
        if (valid[r] && j.a.o) {
            uint16_t *x = (uint16_t *)j.a.x + (size_t)(row0 + g + 8 * r) * 4 * (size_t)j.a.d + column;
#pragma unroll
            for (int s = 0; s < 4; s++)
                *(uint4 *)(x + (size_t)s * (size_t)j.a.d) = p[r].x[s];
        }
        p[r].xx += __shfl_xor_sync(~0u, p[r].xx, 1), p[r].uu += __shfl_xor_sync(~0u, p[r].uu, 1);
        p[r].xx += __shfl_xor_sync(~0u, p[r].xx, 2), p[r].uu += __shfl_xor_sync(~0u, p[r].uu, 2);
    }
    float acc[3][4] = {};
    if (j.a.packed) {
#pragma unroll
        for (int step = 0; step < kSteps; step++) {
            int s = step / 2, i = step % 2 * 2;
            uint32_t a[4] = {word(p[0].x[s], i), word(p[1].x[s], i), word(p[0].x[s], i + 1), word(p[1].x[s], i + 1)};
#pragma unroll
            for (int part = 0; part < 3; part++)
#pragma unroll
                for (int n = 0; n < 3; n++) {
                    uint2 b = fn[half * kHalfWords + ((step * 3 + part) * 3 + n) * 32 + lane];
                    mma_bf16(acc[n], a, b.x, b.y);
                }
        }
    }
    if (half == 1) {
#pragma unroll
        for (int i = 0; i < 12; i++)
            sums.acc[i][lane] = acc[i / 4][i % 4];
#pragma unroll
        for (int r = 0; r < 2; r++)
            sums.xx[r][lane] = p[r].xx, sums.uu[r][lane] = p[r].uu;
    }
    named_barrier(named, 64);
    if (half == 0) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!valid[r])
                continue;
            size_t at = (size_t)(row0 + g + 8 * r) * j.slices + slice;
#pragma unroll
            for (int n = 0; n < 3 && j.a.packed; n++) {
                float a = acc[n][2 * r] + sums.acc[n * 4 + 2 * r][lane], b = acc[n][2 * r + 1] + sums.acc[n * 4 + 2 * r + 1][lane];
                size_t to = at * kOutputs + n * 8 + 2 * t;
                if (kFew)
                    __stcg((uint4 *)(j.few_mix + to), make_uint4(__float_as_uint(a), launch, __float_as_uint(b), launch));
                else
                    *(float2 *)(j.mix + to) = make_float2(a, b);
            }
            float xx = p[r].xx + sums.xx[r][lane], uu = p[r].uu + sums.uu[r][lane];
            if (kFew && t == 0)
                __stcg(j.few_xx + at, make_uint2(__float_as_uint(xx), launch)),
                    __stcg(j.few_uu + at, make_uint2(__float_as_uint(uu), launch));
            else if (t == 0)
                j.xx[at] = xx, j.uu[at] = uu;
        }
    }
}

/* A number that another block wrote: plain, or in this launch. */
__device__ __forceinline__ uint2 load_stamped(const uint2 *p)
{
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
constexpr int kAtOnce = 10; /* numbers on their way at a time */
/* n numbers that other blocks wrote, `step` apart, added in order: plain ones, or those stamped with this launch, once they are there. */
template <bool kFew> __device__ __forceinline__ float add_sums(const void *numbers, size_t first, int n, int step, uint32_t launch)
{
    float sum = 0;
    for (int i0 = 0; i0 < n; i0 += kAtOnce) {
        float v[kAtOnce] = {};
        if (kFew) {
            uint2 got[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; k++)
                got[k] = i0 + k < n ? load_stamped((const uint2 *)numbers + first + (size_t)(i0 + k) * step) : make_uint2(0, launch);
#pragma unroll
            for (int k = 0; k < kAtOnce; k++) {
                while (got[k].y != launch)
                    got[k] = load_stamped((const uint2 *)numbers + first + (size_t)(i0 + k) * step);
                v[k] = __uint_as_float(got[k].x);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kAtOnce; k++)
                if (i0 + k < n)
                    v[k] = __ldcg((const float *)numbers + first + (size_t)(i0 + k) * step);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; k++)
            sum += v[k];
    }
    return sum;
}

/* Sum over the slices of a row, by four neighbouring lanes; the same in each of them. */
template <bool kFew> __device__ __forceinline__ float sum_slices(const void *numbers, int row, int slices, uint32_t launch)
{
    int q = threadIdx.x % 4;
    float sum = add_sums<kFew>(numbers, (size_t)row * slices + q, (slices - q + 3) / 4, 4, launch);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}
__device__ __forceinline__ float scale_of(float squares, int n, float eps)
{
    return rsqrtf(squares / (float)n + eps);
}
__device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* Steps 6-8 of spec §5.2 by one thread: z by source. */
__device__ void sinkhorn(float z[4][4], int iters, float eps)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float top = fmaxf(fmaxf(z[j][0], z[j][1]), fmaxf(z[j][2], z[j][3]));
#pragma unroll
        for (int k = 0; k < 4; k++)
            z[j][k] = __expf(z[j][k] - top);
        float r = __fdividef(1.0f, (z[j][0] + z[j][1]) + (z[j][2] + z[j][3]));
#pragma unroll
        for (int k = 0; k < 4; k++)
            z[j][k] = fmaf(z[j][k], r, eps);
    }
    for (int it = 0; it < iters; it++) {
        if (it > 0)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float r = __fdividef(1.0f, (z[j][0] + z[j][1]) + (z[j][2] + z[j][3]) + eps);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    z[j][k] *= r;
            }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float r = __fdividef(1.0f, (z[0][k] + z[1][k]) + (z[2][k] + z[3][k]) + eps);
#pragma unroll
            for (int j = 0; j < 4; j++)
                z[j][k] *= r;
        }
    }
}

struct mix_space {
    float part[kWarps][kOutputs], mix[kOutputs], xx;
};
/* The coefficients of a row, by a block: its sums, then (warp 0, once all are there) the rest. */
template <bool kFew> __device__ __forceinline__ void mix_sums(const job &j, mix_space &s, int row, uint32_t launch)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = (j.slices + kWarps - 1) / kWarps, first = warp * each;
    int n = max(0, min(j.slices - first, each));
    if (lane < kOutputs)
        s.part[warp][lane] = add_sums<kFew>(kFew ? (const void *)j.few_mix : (const void *)j.mix,
                                            ((size_t)row * j.slices + first) * kOutputs + lane, n, kOutputs, launch);
    if (warp == 0) {
        float xx = sum_slices<kFew>(kFew ? (const void *)j.few_xx : (const void *)j.xx, row, j.slices, launch);
        if (lane == 0)
            s.xx = xx;
    }
}
__device__ void mix_row(const job &j, mix_space &s, int row)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        float r = scale_of(s.xx, 4 * j.a.d, j.a.norm_eps), sum = 0;
        if (lane < kOutputs) {
#pragma unroll
            for (int w = 0; w < kWarps; w++)
                sum += s.part[w][lane];
            int kind = lane < 4 ? 0 : lane < 8 ? 1 : 2;
            float value = fmaf(r * sum, __ldg(j.a.scale + kind), __ldg(j.a.base + lane));
            if (kind == 0)
                j.a.pre[(size_t)row * 4 + lane] = sigmoid(value) + j.a.eps;
            else if (kind == 1)
                j.a.post[(size_t)row * 4 + lane - 4] = 2.0f * sigmoid(value);
            s.mix[lane] = value;
        }
        __syncwarp();
        if (lane == 0) {
            float z[4][4];
#pragma unroll
            for (int i = 0; i < 16; i++)
                z[i / 4][i % 4] = s.mix[8 + i];
            sinkhorn(z, j.a.iters, j.a.eps);
#pragma unroll
            for (int i = 0; i < 4; i++)
                ((float4 *)j.a.comb)[(size_t)row * 4 + i] = make_float4(z[i][0], z[i][1], z[i][2], z[i][3]);
        }
    }
}

/* y of 8 columns. */
__device__ __forceinline__ uint4 normalise(uint4 u, float r, uint4 w)
{
    uint4 y;
#pragma unroll
    for (int i = 0; i < 4; i++)
        word(y, i) = pack_pair(bf16_low(word(u, i)) * r * bf16_low(word(w, i)), bf16_high(word(u, i)) * r * bf16_high(word(w, i)));
    return y;
}

struct few_space {
    uint2 fn[2 * kHalfWords];
    tile_sums sums[kWarps / 2];
    mix_space mix;
    float scale[kFewRows];
    uint64_t bar;
};

/* Asks for the slice's part of fn, which is constant, and waits for what is not. */
__device__ __forceinline__ void begin_site(const job &j, int slice, uint2 *fn, uint64_t *bar, uint64_t policy)
{
    if (threadIdx.x == 0) {
        mbar_init(smem_addr(bar), 1);
        mbar_init_fence();
        if (j.a.packed) {
            mbar_arrive_expect(smem_addr(bar), kSliceBytes);
            bulk_load(smem_addr(fn), (const char *)j.a.packed + (size_t)slice * kSliceBytes, kSliceBytes, smem_addr(bar), policy);
        }
    }
    __syncthreads();
    grid_wait();
    grid_launch_next();
}

/* Up to 16 rows: a block has them all, of one slice. */
__global__ void __launch_bounds__(kThreads, 2) few_kernel(const __grid_constant__ job j)
{
    extern __shared__ __align__(128) char shared[];
    few_space &s = *(few_space *)shared;
    int slice = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, group = warp / 2, row0 = group * 16;
    int column = slice * kColumns + half * 32 + 8 * (lane % 4);
    uint4 w = j.a.y ? __ldg((const uint4 *)(j.a.w + 2 * column)) : make_uint4(0, 0, 0, 0), u[2];
    begin_site(j, slice, s.fn, &s.bar, policy_evict_first());
    uint32_t launch = __ldcg(j.launches) + 1;
    if (j.a.packed)
        mbar_wait(smem_addr(&s.bar), 0);
    if (row0 < j.a.m)
        do_tile<true>(j, s.fn, slice, half, row0, 1 + group, launch, s.sums[group], u);
    if (j.a.packed && slice < j.a.m)
        mix_sums<true>(j, s.mix, slice, launch);
    if (j.a.y && warp * 8 < j.a.m) {
        int row = min((int)threadIdx.x / 4, j.a.m - 1);
        float r = scale_of(sum_slices<true>(j.few_uu, row, j.slices, launch), j.a.d, j.a.norm_eps);
        if (threadIdx.x % 4 == 0 && (int)threadIdx.x / 4 < j.a.m)
            s.scale[row] = r;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + lane / 4 + 8 * r;
        if (j.a.y && row < j.a.m)
            *(uint4 *)((uint16_t *)j.a.y + (size_t)row * (size_t)j.a.d + column) = normalise(u[r], s.scale[row], w);
    }
    for (int row = slice; j.a.packed && row < j.a.m; row += j.slices) {
        mix_row(j, s.mix, row);
        if (row + j.slices < j.a.m) {
            __syncthreads();
            mix_sums<true>(j, s.mix, row + j.slices, launch);
            __syncthreads();
        }
    }
    if (slice == 0 && threadIdx.x == 0) /* it has seen the numbers of all blocks: none will read this any more */
        *j.launches = launch;
}

/* More rows: `rows` of one slice a block. */
struct many_space {
    uint2 fn[2 * kHalfWords];
    tile_sums sums[kWarps / 2];
    uint64_t bar;
};
struct many_job {
    job j;
    int rows;
};
__global__ void __launch_bounds__(kThreads, 2) many_kernel(const __grid_constant__ many_job m)
{
    extern __shared__ __align__(128) char shared[];
    many_space &s = *(many_space *)shared;
    const job &j = m.j;
    int slice = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, group = warp / 2;
    int column = slice * kColumns + half * 32 + 8 * (lane % 4), first = blockIdx.y * m.rows, last = min(j.a.m, first + m.rows);
    begin_site(j, slice, s.fn, &s.bar, policy_evict_last());
    if (j.a.packed)
        mbar_wait(smem_addr(&s.bar), 0);
    for (int row0 = first + group * 16; row0 < last; row0 += kWarps / 2 * 16) {
        uint4 u[2];
        do_tile<false>(j, s.fn, slice, half, row0, 1 + group, 0, s.sums[group], u);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + lane / 4 + 8 * r;
            if (row < j.a.m && j.a.y)
                *(uint4 *)((uint16_t *)j.a.y + (size_t)row * (size_t)j.a.d + column) = u[r];
        }
        named_barrier(1 + group, 64); /* the sums have been read */
    }
}

/* The second launch: a row a block. */
__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ job j)
{
    __shared__ mix_space space;
    int row = blockIdx.x;
    grid_wait();
    grid_launch_next();
    if (j.a.y) {
        float r = scale_of(sum_slices<false>(j.uu, row, j.slices, 0), j.a.d, j.a.norm_eps);
        uint4 *y = (uint4 *)((uint16_t *)j.a.y + (size_t)row * (size_t)j.a.d);
        for (int i = threadIdx.x; i < j.a.d / 8; i += kThreads)
            y[i] = normalise(__ldcg(y + i), r, __ldg((const uint4 *)j.a.w + i));
    }
    if (j.a.packed) {
        mix_sums<false>(j, space, row, 0);
        __syncthreads();
        mix_row(j, space, row);
    }
}

} // namespace

extern "C" size_t di_cuda_hc_bytes(int d)
{
    return (size_t)(d / kColumns) * kSliceBytes;
}

extern "C" int di_cuda_hc_pack(int d, const float *fn, void *packed, struct CUstream_st *stream)
{
    size_t n = (size_t)(d / kColumns) * 2 * kHalfWords;
    if (d < kColumns || d % kColumns || d > DI_CUDA_HC_MAX_D)
        return cudaErrorInvalidValue;
    pack_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(d, fn, (uint2 *)packed);
    return cudaGetLastError();
}

extern "C" size_t di_cuda_hc_scratch_bytes(int max_rows, int d)
{
    job j;
    return place_scratch(nullptr, max_rows, d, &j);
}

extern "C" int di_cuda_hc_rows(const struct di_cuda_hc_rows *a, struct CUstream_st *stream)
{
    if (a->m < 1 || a->d < kColumns || a->d % kColumns || a->d > DI_CUDA_HC_MAX_D)
        return cudaErrorInvalidValue;
    many_job m = {{*a, a->d / kColumns}, 0};
    place_scratch(a->scratch, a->m, a->d, &m.j);
    if (a->m <= kFewRows && m.j.slices <= multiprocessors() && (a->y || a->packed))
        return launch_kernel(few_kernel, dim3((unsigned)m.j.slices), kThreads, sizeof(few_space), stream, m.j);
    int groups = (a->m + 63) / 64, blocks = 8 * multiprocessors() / m.j.slices; /* about 4 rounds of blocks */
    m.rows = 64 * (blocks > 0 ? (groups + blocks - 1) / blocks : groups);
    dim3 grid((unsigned)m.j.slices, (unsigned)((a->m + m.rows - 1) / m.rows));
    cudaError_t err = launch_kernel(many_kernel, grid, kThreads, sizeof(many_space), stream, m);
    if (err == cudaSuccess && (a->y || a->packed))
        err = launch_kernel(finish_kernel, dim3((unsigned)a->m), kThreads, 0, stream, m.j);
    return err;
}
