/* How every kernel is launched: it may begin before its predecessor has ended (grid_wait in ptx.cuh). */
#ifndef DI_BACKEND_CUDA_LAUNCH_CUH
#define DI_BACKEND_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

namespace di
{

/* Multiprocessors of the current device; 0 if there is none. */
inline int multiprocessors(void)
{
    static int count = 0; /* devices of one machine are alike */
    int device;
    if (count == 0 &&
        (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess))
        count = 0;
    return count;
}

template <class... Args, class... Values>
cudaError_t launch_kernel(void (*kernel)(Args...), dim3 blocks, int threads, size_t shared, cudaStream_t stream, const Values &...values)
{
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = 1;
    if (shared > 48 * 1024) {
        cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (err != cudaSuccess)
            return err;
    }
    return cudaLaunchKernelEx(&config, kernel, Args(values)...);
}

} // namespace di

#endif
