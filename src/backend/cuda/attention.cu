/* Core attention of one query row a block: 64 heads of 512 channels over the window rows (528 bytes, Q8) and the selected compressed rows (288 bytes,
 * Q4s) of its request, which are read as they lie in the cache. K = V.
 *
 * Floor: bytes = n_window * 528 + n_selected * 288 + 64*512*2 (q) + the same (o): 346 KB a row at 128 + 512 keys; operations 4 * 64 * 512 * keys: 84 M a
 * row, 0.11 us of the whole chip at 790 TFLOP/s: 13.6 us for 128 rows. The tensor cores decide.
 *
 * Tiles of 64 keys: window rows from the oldest on, then selected ones in the list's order. The next tile's packed rows are on their
 * way while one is computed. A tile is decoded to bf16 in shared memory (exactly); 8 warps
 * make the scores (16 heads x 32 keys each), 4 threads a head the running maximum and the probabilities (bf16 for the product, fp32 for their
 * sum), then each warp adds 64 channels of all heads. The order of everything depends on the row's keys alone. */
#include "backend/cuda/formats.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

using namespace di;

constexpr int kHeads = 64, kD = 512, kKeys = 64, kThreads = 256;
constexpr int kRow = kD * 2 + 16, kScoreRow = (kKeys + 4) * 4,
              kProbRow = kKeys * 2 + 16; /* bytes of a row in shared memory: no bank twice */
constexpr int kQ = 0, kK = kQ + kHeads * kRow, kS = kK + kKeys * kRow, kP = kS + kHeads * kScoreRow, kFactor = kP + kHeads * kProbRow,
              kRaw = kFactor + kHeads * 4, kRawRow = 528, kPointers = kRaw + kKeys * kRawRow, kMaxKeys = 1024,
              kSmem = kPointers + kMaxKeys * 8;

__device__ __forceinline__ void ldmatrix4(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix4_transposed(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

constexpr uint32_t kUnit8 = 0x7B807B80u, kUnit4 = 0x7E807E80u; /* 2^120, 2^126, twice: what makes a shifted code its value (formats.cuh) */

/* 16 e4m3 codes times 2^(scale - 127). */
__device__ __forceinline__ void decode_window(uint4 codes, uint32_t scale, uint32_t out[8])
{
    const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t by = scale ? scale_pair(scale) : 0x00400040u;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t p = __byte_perm(w[i], 0, h ? 0x3424 : 0x1404); /* two codes in the upper bytes of two halves */
            out[2 * i + h] = mul_bf16x2(mul_bf16x2((p >> 4) & 0x07F007F0u, kUnit8 ^ (p & 0x80008000u)), by);
        }
}
/* 16 e2m1 codes (8 bytes) times an e4m3 scale. */
__device__ __forceinline__ void decode_selected(uint2 codes, uint32_t scale, uint32_t out[8])
{
    uint32_t by = mul_bf16x2((scale & 0x7F) * 0x00100010u, kUnit8); /* scales are positive */
    const uint32_t w[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int b = 0; b < 4; b++) {
            uint32_t byte = w[i] >> 8 * b & 255;
            uint32_t magnitude = (byte & 7) << 6 | (byte & 0x70) << 18, sign = (byte & 8) << 12 | (byte & 0x80) << 24;
            out[4 * i + b] = mul_bf16x2(mul_bf16x2(magnitude, kUnit4 ^ sign), by);
        }
}

/* Where the row's keys lie: window rows first, the number of which is n_window. */
__device__ __forceinline__ void find_keys(const struct di_cuda_attention &a, const struct di_cuda_attention_row &r, int row, int n_window,
                                          int n_all, const uint8_t **out)
{
    for (int i = (int)threadIdx.x; i < n_all; i += kThreads) {
        if (i < n_window) {
            int pos = r.pos - n_window + 1 + i;
            out[i] = pos >= r.chunk_pos ? a.window_new + (size_t)(r.chunk_row + pos - r.chunk_pos) * 528
                                        : r.ring + (size_t)(pos % a.ring_rows) * 528;
        } else {
            int j = a.sel[(size_t)row * a.sel_ld + i - n_window];
            out[i] = a.blocks + (size_t)r.pages[j / a.per_block] * a.block_bytes + a.comp_offset + (size_t)(j % a.per_block) * 288;
        }
    }
}

/* The packed rows of a tile on their way into shared memory; 4 threads a key. */
__device__ __forceinline__ void fetch_tile(int first, int n_window, int n_all, char *smem)
{
    int key = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4, i = first + key;
    if (i < n_all) {
        const uint8_t *src = ((const uint8_t **)(smem + kPointers))[i];
        uint32_t dst = smem_addr(smem + kRaw + key * kRawRow);
        for (int c = part; c < (i < n_window ? 33 : 18); c += 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst + c * 16), "l"(src + c * 16) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The fetched rows to bf16; zeros behind the end. */
__device__ __forceinline__ void decode_tile(int first, int n_window, int n_all, char *smem)
{
    int key = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4, i = first + key;
    const uint8_t *src = (const uint8_t *)smem + kRaw + key * kRawRow;
#pragma unroll 2
    for (int step = 0; step < 8; step++) { /* 16 channels at a time, neighbours in neighbouring threads */
        int c = (step * 4 + part) * 16;
        uint32_t out[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (i < n_window)
            decode_window(*(const uint4 *)(src + c), src[kD + c / 32], out);
        else if (i < n_all)
            decode_selected(*(const uint2 *)(src + c / 2), src[kD / 2 + c / 16], out);
        uint4 *at = (uint4 *)(smem + kK + key * kRow + c * 2);
        at[0] = make_uint4(out[0], out[1], out[2], out[3]);
        at[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

/* Scores of the tile: warp w has 16 heads (w%4) and 32 keys (w/4). */
__device__ __forceinline__ void make_scores(uint32_t smem, char *s, float scale, int warp, int lane)
{
    float c[4][4] = {};
    uint32_t q = smem + kQ + (warp % 4 * 16 + lane % 16) * kRow + lane / 16 * 16;
    uint32_t k = smem + kK + (warp / 4 * 32 + lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 16;
#pragma unroll 4
    for (int i = 0; i < kD / 16; i++) {
        uint32_t a[4], b[4];
        ldmatrix4(a, q + i * 32);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            ldmatrix4(b, k + n * 16 * kRow + i * 32);
            mma_bf16(c[2 * n], a, b[0], b[1]);
            mma_bf16(c[2 * n + 1], a, b[2], b[3]);
        }
    }
    float *out = (float *)(s + (warp % 4 * 16 + lane / 4) * kScoreRow) + warp / 4 * 32 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        *(float2 *)(out + n * 8) = make_float2(c[n][0] * scale, c[n][1] * scale);
        *(float2 *)(out + n * 8 + 8 * (kScoreRow / 4)) = make_float2(c[n][2] * scale, c[n][3] * scale);
    }
}

/* Probabilities of the tile, relative to the new maximum; thread t has head t/4 and every fourth group of 4 keys. */
__device__ __forceinline__ void make_probabilities(char *smem, int valid, float *top, float *sum)
{
    int head = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
    float v[16], most = *top, own = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 f = *(const float4 *)(smem + kS + head * kScoreRow + (i * 4 + part) * 16);
        v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        if ((i / 4 * 4 + part) * 4 + i % 4 < valid)
            most = fmaxf(most, v[i]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
    for (int i = 0; i < 16; i++) {
        v[i] = (i / 4 * 4 + part) * 4 + i % 4 < valid ? __expf(v[i] - most) : 0;
        own += v[i];
    }
    own += __shfl_xor_sync(~0u, own, 1);
    own += __shfl_xor_sync(~0u, own, 2);
    float factor = __expf(*top - most);
    *sum = *sum * factor + own;
    *top = most;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 lo = __floats2bfloat162_rn(v[4 * i], v[4 * i + 1]), hi = __floats2bfloat162_rn(v[4 * i + 2], v[4 * i + 3]);
        *(uint2 *)(smem + kP + head * kProbRow + (i * 4 + part) * 8) = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
    }
    if (part == 0)
        *(float *)(smem + kFactor + head * 4) = factor;
}

/* o = o * factor + p . v for the warp's 64 channels: o[4 tiles of 16 heads][8 of 8 channels]. */
__device__ __forceinline__ void add_values(uint32_t smem, const char *factors, float (&o)[4][8][4], int warp, int lane)
{
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float top = *(const float *)(factors + (m * 16 + lane / 4) * 4), bottom = *(const float *)(factors + (m * 16 + 8 + lane / 4) * 4);
#pragma unroll
        for (int n = 0; n < 8; n++)
            o[m][n][0] *= top, o[m][n][1] *= top, o[m][n][2] *= bottom, o[m][n][3] *= bottom;
    }
    uint32_t p = smem + kP + lane % 16 * kProbRow + lane / 16 * 16;
    uint32_t v = smem + kK + (lane / 8 % 2 * 8 + lane % 8) * kRow + (warp * 64 + lane / 16 * 8) * 2;
#pragma unroll
    for (int i = 0; i < kKeys / 16; i++) {
        uint32_t a[4][4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            ldmatrix4(a[m], p + m * 16 * kProbRow + i * 32);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            ldmatrix4_transposed(b, v + i * 16 * kRow + n * 32);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                mma_bf16(o[m][2 * n], a[m], b[0], b[1]);
                mma_bf16(o[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

__global__ void __launch_bounds__(kThreads, 1) attention(const struct di_cuda_attention a)
{
    extern __shared__ __align__(128) char smem[];
    uint32_t base = smem_addr(smem);
    int row = (int)blockIdx.x, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, head = (int)threadIdx.x / 4;
    grid_launch_next();
    grid_wait();
    const struct di_cuda_attention_row r = a.rows[row];
    int n_window = min(r.pos - r.window_floor + 1, a.window), n_all = n_window + (a.sel ? a.sel_n[row] : 0);
    const uint4 *q = (const uint4 *)a.q + (size_t)row * (kHeads * kD / 8);
    for (int i = (int)threadIdx.x; i < kHeads * kD / 8; i += kThreads)
        *(uint4 *)(smem + kQ + i / (kD / 8) * kRow + i % (kD / 8) * 16) = __ldg(q + i);
    find_keys(a, r, row, n_window, n_all, (const uint8_t **)(smem + kPointers));
    __syncthreads();
    fetch_tile(0, n_window, n_all, smem);
    float o[4][8][4] = {}, top = -1e30f, sum = 0;
    for (int first = 0; first < n_all; first += kKeys) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        decode_tile(first, n_window, n_all, smem);
        __syncthreads();
        fetch_tile(first + kKeys, n_window, n_all, smem); /* while this tile is computed */
        make_scores(base, smem + kS, a.scale, warp, lane);
        __syncthreads();
        make_probabilities(smem, n_all - first, &top, &sum);
        __syncthreads();
        add_values(base, smem + kFactor, o, warp, lane);
        __syncthreads();
    }
    if (threadIdx.x % 4 == 0)
        *(float *)(smem + kFactor + head * 4) = 1.0f / (sum + __expf(a.sink[head] - top));
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int h = m * 16 + half * 8 + lane / 4;
            float by = *(const float *)(smem + kFactor + h * 4);
            __nv_bfloat162 *out = (__nv_bfloat162 *)((uint16_t *)a.o + ((size_t)row * kHeads + h) * kD + warp * 64 + lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < 8; n++)
                out[n * 4] = __floats2bfloat162_rn(o[m][n][2 * half] * by, o[m][n][2 * half + 1] * by);
        }
}

} // namespace

extern "C" int di_cuda_attention(const struct di_cuda_attention *a, struct CUstream_st *stream)
{
    if (a->m < 1 || a->window + (a->sel ? a->sel_ld : 0) > kMaxKeys)
        return cudaErrorInvalidValue;
    return launch_kernel(attention, dim3((unsigned)a->m), kThreads, kSmem, stream, *a);
}
