/* wgmma: d[64 x N] += a[64 x 16] b[16 x N], bf16 in, fp32 out, by one warpgroup. a in registers, laid out as for mma.sync (warp w has rows
 * 16w..16w+15); b in shared memory through a descriptor; d[4j..4j+3] of a thread: (g, 8j+2t), (g, 8j+2t+1), (g+8, 8j+2t), (g+8, 8j+2t+1). */
#ifndef DI_BACKEND_CUDA_WGMMA_CUH
#define DI_BACKEND_CUDA_WGMMA_CUH

#include "backend/cuda/ptx.cuh"

namespace di
{

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define DI_HAS_WGMMA 1
#endif

__device__ __forceinline__ void wgmma_fence(void)
{
#ifdef DI_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit(void)
{
#ifdef DI_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int PENDING> __device__ __forceinline__ void wgmma_wait(void)
{
#ifdef DI_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}
/* k-major without swizzle: pieces of 8 columns x 16 bytes, 128 bytes each; `k_step` bytes from one piece to the next along k, `n_step` along n. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t addr, uint32_t k_step, uint32_t n_step)
{
    return (uint64_t)(addr >> 4 & 0x3FFF) | (uint64_t)(k_step >> 4) << 16 | (uint64_t)(n_step >> 4) << 32;
}

#ifdef DI_HAS_WGMMA

template <int N> struct wgmma;
template <> struct wgmma<8> {
    static __device__ __forceinline__ void run(float (&d)[4], const uint32_t a[4], uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};
template <> struct wgmma<16> {
    static __device__ __forceinline__ void run(float (&d)[8], const uint32_t a[4], uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};
template <> struct wgmma<32> {
    static __device__ __forceinline__ void run(float (&d)[16], const uint32_t a[4], uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                       "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};
template <> struct wgmma<64> {
    static __device__ __forceinline__ void run(float (&d)[32], const uint32_t a[4], uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                       "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                       "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),
                       "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

#else

/* Processors without the instruction: the same by mma.sync, whose sums have the same bits (bench/cuda/mma_order.cu). */
template <int N> struct wgmma {
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t a[4], uint64_t b)
    {
        uint32_t lane = threadIdx.x % 32, k_step = (uint32_t)(b >> 16 & 0x3FFF) << 4, n_step = (uint32_t)(b >> 32 & 0x3FFF) << 4;
        uint32_t at = ((uint32_t)(b & 0x3FFF) << 4) + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            uint32_t b0, b1;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(b0) : "r"(at + j * n_step));
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(b1) : "r"(at + j * n_step + k_step));
            mma_bf16(d + 4 * j, a, b0, b1);
        }
    }
};

#endif

} // namespace di

#endif
