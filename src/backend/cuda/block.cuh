/* Sums, maxima and selection by all threads of a block. */
#ifndef DI_BACKEND_CUDA_BLOCK_CUH
#define DI_BACKEND_CUDA_BLOCK_CUH

#include "backend/cuda/law.cuh"

namespace di
{

typedef unsigned long long u64;

__device__ __forceinline__ int signed_key(float x)
{
    int b = __float_as_int(x + 0.0f);
    return b ^ (b >> 31 & 0x7FFFFFFF);
}
__device__ __forceinline__ float signed_value(int k)
{
    return __int_as_float(k ^ (k >> 31 & 0x7FFFFFFF));
}
__device__ __forceinline__ float warp_max(float x)
{
    return signed_value(__reduce_max_sync(~0u, signed_key(x)));
}
template <int T> __device__ float block_max(float x, float *space)
{
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        space[threadIdx.x / 32] = x;
    __syncthreads();
    x = space[threadIdx.x % (T / 32)];
    return warp_max(x);
}
__device__ __forceinline__ u64 warp_sum(u64 x)
{
#pragma unroll
    for (int d = 16; d; d /= 2)
        x += __shfl_xor_sync(~0u, x, d);
    return x;
}
template <int T> __device__ u64 block_sum(u64 x, u64 *space)
{
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        space[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < T / 32 ? space[threadIdx.x % 32] : 0);
}
__device__ __forceinline__ bool is_better(double v, int id, double w, int other)
{
    return v > w || (v == w && id < other);
}
/* The id with the largest value, of equal ones the lowest. */
template <int T> __device__ int block_best(double v, int id, double *values, int *ids)
{
    auto fold = [&] {
#pragma unroll
        for (int d = 16; d; d /= 2) {
            double w = __shfl_xor_sync(~0u, v, d);
            int other = __shfl_xor_sync(~0u, id, d);
            if (is_better(w, other, v, id))
                v = w, id = other;
        }
    };
    fold();
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        values[threadIdx.x / 32] = v, ids[threadIdx.x / 32] = id;
    __syncthreads();
    v = values[threadIdx.x % (T / 32)], id = ids[threadIdx.x % (T / 32)];
    fold();
    return id;
}

/* ---- selection: where the shortest prefix ends, in falling order of keys, whose weights add up to `need` (1 <= need <= all). get(i, &key) is the
 * weight of element i, 0 = none; weights up to 2^39, at most 2^18 elements. *rest: what the elements with that key must add. */
constexpr int kSelectBins = 1024;
struct select_space {
    uint32_t limb[3][kSelectBins];
    u64 warps[32];
    u64 need;
    uint32_t bin;
};
template <int T, class Get>
__device__ uint32_t block_select(select_space &s, int n, u64 need, uint32_t low, uint32_t high, u64 *rest, const Get &get)
{
    constexpr int kOwn = kSelectBins / T;
    while (low < high) {
        int bits = 32 - __clz(high - low), shift = bits > 10 ? bits - 10 : 0;
        __syncthreads();
        for (int i = threadIdx.x; i < 3 * kSelectBins; i += T)
            (&s.limb[0][0])[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += T) {
            uint32_t key;
            u64 w = get(i, &key);
            if (w == 0 || key < low || key > high)
                continue;
            uint32_t b = kSelectBins - 1 - ((key - low) >> shift),
                     part[3] = {(uint32_t)w & 0x3FFF, (uint32_t)(w >> 14) & 0x3FFF, (uint32_t)(w >> 28)};
            for (int l = 0; l < 3; l++)
                if (part[l])
                    atomicAdd(&s.limb[l][b], part[l]);
        }
        __syncthreads();
        u64 own[kOwn], sum = 0;
        for (int k = 0; k < kOwn; k++) {
            int b = threadIdx.x * kOwn + k;
            own[k] = (u64)s.limb[0][b] + ((u64)s.limb[1][b] << 14) + ((u64)s.limb[2][b] << 28);
            sum += own[k];
        }
        u64 before = sum;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            u64 o = __shfl_up_sync(~0u, before, d);
            if (threadIdx.x % 32 >= d)
                before += o;
        }
        if (threadIdx.x % 32 == 31)
            s.warps[threadIdx.x / 32] = before;
        __syncthreads();
        before -= sum;
        for (int w = 0; w < (int)threadIdx.x / 32; w++)
            before += s.warps[w];
        for (int k = 0; k < kOwn; k++) {
            if (need > before && need <= before + own[k])
                s.bin = kSelectBins - 1 - (threadIdx.x * kOwn + k), s.need = need - before;
            before += own[k];
        }
        __syncthreads();
        need = s.need;
        low += s.bin << shift;
        uint32_t last = low + ((1u << shift) - 1);
        high = last < high ? last : high;
    }
    *rest = need;
    return low;
}

} // namespace di

#endif
