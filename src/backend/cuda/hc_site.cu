/* One site of the hyper-connections in one kernel: expand the sub-layer before it, mix, Sinkhorn, collapse with the lagged weights, RMSNorm (Q8).
 *
 * Floor: bytes = 24*4*d*4 (fn, once) + m * d*2 * (4 + 1 + 4 + 1); operations 2*24*4*d * m. d 5120: 1.97 MB + 102 KB a row: 0.5 us at m = 1, 2.0 us at
 * m = 64, both far below what the launch and two trips through the L2 take.
 *
 * The d channels are cut into slices of 128, each with its 4 streams: a block has one slice and 8 or 32 rows, a warp 1 or 4, a lane 4 channels. Sums
 * over a slice: per lane in ascending order of streams and channels, then a butterfly over lanes. They go to global memory; when all slices
 * of a row are there, every block adds up what it needs, in a fixed order, to normalise its own channels; one block of them also makes
 * the row's mixing weights. Blocks of a row wait for each other, so they must get to run together: blocks are numbered row by row, and
 * multiprocessors take them in that order. */
#include "backend/cuda/formats.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

using namespace di;

constexpr int kS = 4, kMix = (2 + kS) * kS, kChannels = 128, kWarps = 8, kThreads = kWarps * 32;
constexpr int kSums = kMix + 2; /* the mixes, sum of x^2, sum of v^2 */

struct args {
    struct di_cuda_hc_site a;
    int slices;
};

__device__ __forceinline__ void load4(const void *p, float out[4])
{
    uint2 v = *(const uint2 *)p;
    out[0] = bf16_low(v.x), out[1] = bf16_high(v.x), out[2] = bf16_low(v.y), out[3] = bf16_high(v.y);
}
__device__ __forceinline__ uint2 pack4(const float v[4])
{
    __nv_bfloat162 lo = __floats2bfloat162_rn(v[0], v[1]), hi = __floats2bfloat162_rn(v[2], v[3]);
    return make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
}
__device__ __forceinline__ float add_lanes(float v)
{
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}
__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Lane l gets the sum over all lanes of value l: 31 shuffles for 32 sums. Lanes are paired 16, 8, 4, 2, 1 apart, whatever the value's place. */
template <int APART> __device__ __forceinline__ void scatter_step(float (&v)[32], int lane)
{
#pragma unroll
    for (int k = 0; k < APART; k++) {
        float keep = lane & APART ? v[k + APART] : v[k], give = lane & APART ? v[k] : v[k + APART];
        v[k] = keep + __shfl_xor_sync(~0u, give, APART);
    }
}
__device__ __forceinline__ float add_scattered(float (&v)[32], int lane)
{
    scatter_step<16>(v, lane);
    scatter_step<8>(v, lane);
    scatter_step<4>(v, lane);
    scatter_step<2>(v, lane);
    scatter_step<1>(v, lane);
    return v[0];
}

/* Steps 6-8 of spec/model.md §5.2 on z [source][destination]. */
__device__ void sinkhorn(float z[kS][kS], int iters, float eps)
{
#pragma unroll
    for (int j = 0; j < kS; j++) {
        float top = fmaxf(fmaxf(z[j][0], z[j][1]), fmaxf(z[j][2], z[j][3])), sum = 0;
#pragma unroll
        for (int k = 0; k < kS; k++)
            sum += z[j][k] = expf(z[j][k] - top);
#pragma unroll
        for (int k = 0; k < kS; k++)
            z[j][k] = z[j][k] / sum + eps;
    }
    for (int it = 0; it < iters; it++) {
        if (it > 0) {
#pragma unroll
            for (int j = 0; j < kS; j++) {
                float by = inverse((z[j][0] + z[j][1]) + (z[j][2] + z[j][3]) + eps);
#pragma unroll
                for (int k = 0; k < kS; k++)
                    z[j][k] *= by;
            }
        }
#pragma unroll
        for (int k = 0; k < kS; k++) {
            float by = inverse((z[0][k] + z[1][k]) + (z[2][k] + z[3][k]) + eps);
#pragma unroll
            for (int j = 0; j < kS; j++)
                z[j][k] *= by;
        }
    }
}

/* Lane i's sum over all slices. */
__device__ __forceinline__ float add_slices(const args &g, const float *partial, int lane)
{
    float sum = 0;
    for (int s0 = 0; s0 < g.slices; s0 += 40) { /* 40 at full size: all loads before the first addition */
        float v[40];
#pragma unroll
        for (int s = 0; s < 40; s++)
            v[s] = s0 + s < g.slices && lane < kSums ? __ldcg(partial + (s0 + s) * 32 + lane) : 0;
#pragma unroll
        for (int s = 0; s < 40; s++)
            sum += v[s];
    }
    return sum;
}

/* The row's mixing weights from lane i's sum i; one warp. */
__device__ void make_weights(const args &g, int row, float sum, int lane)
{
    const struct di_cuda_hc_site &a = g.a;
    float r = rsqrtf(__shfl_sync(~0u, sum, kMix) / (float)(kS * a.d) + a.norm_eps), mix = r * sum;
    if (lane < kS)
        a.pre[(size_t)row * kS + lane] = sigmoid(mix * a.scale[0] + a.base[lane]) + a.eps;
    else if (lane < 2 * kS)
        a.post[(size_t)row * kS + lane - kS] = 2.0f * sigmoid(mix * a.scale[1] + a.base[lane]);
    else if (lane < kMix)
        mix = mix * a.scale[2] + a.base[lane];
    float z[kS][kS];
#pragma unroll
    for (int i = 0; i < kS * kS; i++)
        z[i / kS][i % kS] = __shfl_sync(~0u, mix, 2 * kS + i);
    sinkhorn(z, a.iters, a.eps);
#pragma unroll
    for (int i = 0; i < kS * kS; i++)
        if (lane == i)
            a.comb[(size_t)row * kS * kS + i] = z[i / kS][i % kS];
}

/* in = the new x of a lane's channels, written back as well. */
__device__ __forceinline__ void expand(const struct di_cuda_hc_site &a, int row, int channel, uint16_t *x, float (&in)[kS][4], int lane)
{
    float o[4], out[kS][4], comb = lane < kS * kS ? a.comb_in[(size_t)row * kS * kS + lane] : 0;
    float post = lane < kS ? a.post_in[(size_t)row * kS + lane] : 0;
    load4((const uint16_t *)a.o + (size_t)row * a.d + channel, o);
#pragma unroll
    for (int k = 0; k < kS; k++) {
        float p = __shfl_sync(~0u, post, k);
#pragma unroll
        for (int c = 0; c < 4; c++)
            out[k][c] = p * o[c];
#pragma unroll
        for (int s = 0; s < kS; s++) {
            float w = __shfl_sync(~0u, comb, s * kS + k);
#pragma unroll
            for (int c = 0; c < 4; c++)
                out[k][c] += w * in[s][c];
        }
        *(uint2 *)(x + (size_t)k * a.d) = pack4(out[k]);
    }
#pragma unroll
    for (int k = 0; k < kS; k++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            in[k][c] = round_bf16(out[k][c]);
}

/* y of a lane's channels from v. */
__device__ __forceinline__ void normalise(const struct di_cuda_hc_site &a, int row, int channel, float r, const float (&v)[4])
{
    float w[4];
    load4((const uint16_t *)a.norm + channel, w);
#pragma unroll
    for (int c = 0; c < 4; c++)
        w[c] = v[c] * r * w[c];
    uint2 y = pack4(w);
    if (a.q8) { /* 8 lanes have a block of 32 */
        float top = fmaxf(fmaxf(fabsf(bf16_low(y.x)), fabsf(bf16_high(y.x))), fmaxf(fabsf(bf16_low(y.y)), fabsf(bf16_high(y.y))));
#pragma unroll
        for (int o = 1; o < 8; o *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
        int e = q8_exponent(top);
        y = make_uint2(q8_round_pair(bf16_low(y.x), bf16_high(y.x), e), q8_round_pair(bf16_low(y.y), bf16_high(y.y), e));
    }
    *(uint2 *)((uint16_t *)a.y + (size_t)row * a.d + channel) = y;
}

/* R rows a warp. */
template <int R> __global__ void __launch_bounds__(kThreads) hc_site(const args g)
{
    extern __shared__ __align__(128) char smem[];
    float(&fn)[kMix][kS][kChannels] = *(float(*)[kMix][kS][kChannels])smem;
    const struct di_cuda_hc_site &a = g.a;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, slice = (int)blockIdx.x % g.slices;
    int row0 = ((int)blockIdx.x / g.slices * kWarps + warp) * R, channel = slice * kChannels + lane * 4;
    uint32_t bar = smem_addr(smem + sizeof fn);
    if (threadIdx.x == 0) {
        grid_launch_next();
        mbar_init(bar, 1);
        mbar_init_fence();
        mbar_arrive_expect(bar, sizeof fn);
    }
    __syncthreads();
    if (threadIdx.x < kMix * kS) /* fn is constant: before the predecessor has ended */
        bulk_load(smem_addr(fn) + threadIdx.x * (kChannels * 4), a.fn + ((size_t)threadIdx.x * a.d + slice * kChannels), kChannels * 4, bar,
                  policy_normal());
    grid_wait();
    if (row0 >= a.m) { /* a warp without rows; nobody waits for the block */
        mbar_wait(bar, 0);
        return;
    }
    float in[R][kS][4], v[R][4], squares[R][2];
#pragma unroll
    for (int r = 0; r < R; r++) { /* rows behind the last one repeat it and store nothing */
        int row = min(row0 + r, a.m - 1);
#pragma unroll
        for (int s = 0; s < kS; s++)
            load4((const uint16_t *)a.x + ((size_t)row * kS + s) * a.d + channel, in[r][s]);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        int row = min(row0 + r, a.m - 1);
        if (a.o && row0 + r < a.m)
            expand(a, row, channel, (uint16_t *)a.x + (size_t)row * kS * a.d + channel, in[r], lane);
        float pre = lane < kS ? a.pre_in[(size_t)row * kS + lane] : 0;
        squares[r][0] = squares[r][1] = v[r][0] = v[r][1] = v[r][2] = v[r][3] = 0;
#pragma unroll
        for (int s = 0; s < kS; s++) {
            float p = __shfl_sync(~0u, pre, s);
#pragma unroll
            for (int c = 0; c < 4; c++)
                squares[r][0] += in[r][s][c] * in[r][s][c], v[r][c] += p * in[r][s][c];
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            v[r][c] = round_bf16(v[r][c]), squares[r][1] += v[r][c] * v[r][c];
    }
    mbar_wait(bar, 0);
    constexpr int kAtOnce = 32 / R; /* sums of a row that are added up together */
#pragma unroll
    for (int i0 = 0; i0 < 32; i0 += kAtOnce) {
        float sums[32];
#pragma unroll
        for (int q = 0; q < kAtOnce; q++) {
            int i = i0 + q;
#pragma unroll
            for (int r = 0; r < R; r++)
                sums[r * kAtOnce + q] = i == kMix ? squares[r][0] : i == kMix + 1 ? squares[r][1] : 0;
#pragma unroll
            for (int s = 0; s < kS && i < kMix; s++) {
                float4 f = *(const float4 *)&fn[i][s][lane * 4];
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float &dot = sums[r * kAtOnce + q];
                    dot += f.x * in[r][s][0], dot += f.y * in[r][s][1], dot += f.z * in[r][s][2], dot += f.w * in[r][s][3];
                }
            }
        }
        float sum = add_scattered(sums, lane);
        int row = row0 + lane / kAtOnce, i = i0 + lane % kAtOnce;
        if (i < kSums && row < a.m)
            __stcg(a.partial + ((size_t)row * g.slices + slice) * 32 + i, sum);
    }
    __syncwarp();
    if (lane < R &&
        row0 + lane < a.m) { /* every launch adds a power of two to a row's counter: nothing has to be reset, and it may overflow */
        uint32_t all = 1;
        while (all < (uint32_t)g.slices)
            all *= 2;
        uint32_t *counter = a.counters + row0 + lane;
        uint32_t old = add_acq_rel(counter, slice == 0 ? all - (uint32_t)g.slices + 1 : 1); /* carries what the warp wrote */
        uint32_t target = (old & ~(all - 1)) + all;
        while ((int32_t)(load_acquire(counter) - target) < 0)
            ;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < R; r++) {
        int row = row0 + r;
        if (row >= a.m)
            break;
        const float *partial = a.partial + (size_t)row * g.slices * 32;
        float total = 0, sum = 0;
        for (int s = lane; s < g.slices; s += 32)
            total += __ldcg(partial + s * 32 + kMix + 1);
        if (slice == row % g.slices)
            sum = add_slices(g, partial, lane);
        normalise(a, row, channel, rsqrtf(add_lanes(total) / (float)a.d + a.norm_eps), v[r]);
        if (slice == row % g.slices)
            make_weights(g, row, sum, lane);
    }
}

} // namespace

extern "C" size_t di_cuda_hc_partial_bytes(int m, int d)
{
    return (size_t)m * (size_t)(d / kChannels) * 32 * 4;
}

extern "C" int di_cuda_hc_site(const struct di_cuda_hc_site *a, struct CUstream_st *stream)
{
    if (a->m < 1 || a->d % kChannels || a->iters < 1)
        return cudaErrorInvalidValue;
    args g = {*a, a->d / kChannels};
    int rows = a->m <= 32 ? 1 : 4, blocks = g.slices * ((a->m + kWarps * rows - 1) / (kWarps * rows));
    return launch_kernel(rows == 1 ? hc_site<1> : hc_site<4>, dim3((unsigned)blocks), kThreads, kMix * kS * kChannels * 4 + 16, stream, g);
}
