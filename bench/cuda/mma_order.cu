/* Does the order in which a tensor-core instruction adds its 16 products show in the bits? Compared over chains of K = 640 with values of very
 * different size: mma.sync in natural k order; with k permuted inside each 16; inside each 8; the two halves of 8 swapped; and wgmma in natural
 * order. If all agree, a decode kernel on mma.sync and a prefill kernel on wgmma give the same bits. */
#include "lab.h"

#include "backend/cuda/ptx.cuh"

static const int K = 640, CASES = 4;

__constant__ int permutations[CASES][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                            {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15},
                                            {6, 7, 2, 3, 0, 1, 4, 5, 14, 15, 8, 9, 12, 13, 10, 11},
                                            {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}};

__device__ uint32_t pair_at(const uint16_t *row, int k0, int k1)
{
    return (uint32_t)row[k0] | (uint32_t)row[k1] << 16;
}

/* a [64, K], b [8, K] bf16; out [CASES + 1][64][8]; one warpgroup per problem */
__global__ void products(const uint16_t *a, const uint16_t *b, float *out)
{
    __shared__ __align__(128) uint16_t tile[2][8][8]; /* two core matrices: 8 columns x 8 k */
    a += (size_t)blockIdx.x * 64 * K;
    b += (size_t)blockIdx.x * 8 * K;
    out += (size_t)blockIdx.x * (CASES + 1) * 512;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint16_t *top = a + (warp * 16 + g) * K, *bottom = top + 8 * K, *col = b + g * K;
    float d[4];
    for (int c = 0; c <= CASES; c++) {
        d[0] = d[1] = d[2] = d[3] = 0;
        for (int k = 0; k < K; k += 16) {
            const int *p = permutations[c % CASES];
            int k0 = k + p[2 * t], k1 = k + p[2 * t + 1], k2 = k + p[2 * t + 8], k3 = k + p[2 * t + 9];
            uint32_t r[4] = {pair_at(top, k0, k1), pair_at(bottom, k0, k1), pair_at(top, k2, k3), pair_at(bottom, k2, k3)};
            if (c < CASES) {
                di::mma_bf16(d, r, pair_at(col, k0, k1), pair_at(col, k2, k3));
                continue;
            }
            __syncthreads();
            if (threadIdx.x < 128)
                tile[threadIdx.x / 64][threadIdx.x / 8 % 8][threadIdx.x % 8] =
                    b[threadIdx.x / 8 % 8 * K + k + threadIdx.x / 64 * 8 + threadIdx.x % 8];
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            uint64_t desc = (uint64_t)(di::smem_addr(tile) >> 4 & 0x3FFF) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0;\n"
                         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1, 0;}\n"
                         "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                         : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(desc)
                         : "memory");
        }
        float *o = out + c * 512 + (warp * 16 + g) * 8 + 2 * t;
        o[0] = d[0], o[1] = d[1], o[64] = d[2], o[65] = d[3];
    }
}

void lab_mma_order(void)
{
    const char *names[CASES + 1] = {"natural", "permuted in 16", "permuted in 8", "halves swapped", "wgmma"};
    const int problems = 256;
    lab_rng rng = {7};
    std::vector<uint16_t> a((size_t)problems * 64 * K), b((size_t)problems * 8 * K);
    for (auto *v : {&a, &b})
        for (auto &h : *v) {
            float f = ldexpf(rng.normal(), (int)(rng.next() % 13) - 6);
            uint32_t u;
            memcpy(&u, &f, 4);
            h = (uint16_t)(u >> 16);
        }
    uint16_t *da = lab_upload(a), *db = lab_upload(b);
    float *out = lab_alloc<float>((size_t)problems * (CASES + 1) * 512);
    lab_poison(out, (size_t)problems * (CASES + 1) * 512 * 4);
    products<<<problems, 128>>>(da, db, out);
    LAB_CHECK(cudaDeviceSynchronize());
    auto host = lab_download(out, (size_t)problems * (CASES + 1) * 512);
    lab_norm norm;
    for (int p = 0; p < 8; p++)
        for (int r = 0; r < 64; r++)
            for (int n = 0; n < 8; n++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    sum += (double)lab_f32(a[(size_t)(p * 64 + r) * K + k]) * lab_f32(b[(size_t)(p * 8 + n) * K + k]);
                norm.add(host[(size_t)p * (CASES + 1) * 512 + r * 8 + n], sum);
            }
    printf("mma_order: error of the natural order %.1e;", norm.value());
    lab_expect(norm.value() < 1e-5, "mma_order: error %g", norm.value());
    for (int c = 1; c <= CASES; c++) {
        int differ = 0;
        for (int p = 0; p < problems; p++)
            for (int i = 0; i < 512; i++)
                differ += memcmp(&host[(size_t)(p * (CASES + 1) + c) * 512 + i], &host[(size_t)p * (CASES + 1) * 512 + i], 4) != 0;
        printf(" %s: %d of %d differ;", names[c], differ, problems * 512);
    }
    printf("\n");
    cudaFree(da), cudaFree(db), cudaFree(out);
}
