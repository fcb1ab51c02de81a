/* Dense FP8 weights for up to 64 rows: y = x . w^T with weights streamed once and dequantised in registers.
 *
 * Floor: bytes = n*k * (1 + 1/512) + m*k*2 + m*n*2; operations = 2*m*n*k. q_b (32768 x 1280) 42.0 MB, 9.8 us at 4.3 TB/s; wo_a 33.6 MB; wo_b
 * 42.0 MB; w1+w3 of the shared expert 23.6 MB; engram 157 MB; wq_a+wkv 9.2 MB. Below M = 64 the bytes decide.
 *
 * Packed weights. K is cut into parts of at most 1280, a part into 4 slices. A tile is 64 rows; an atom is a tile by a part. Slices are summed
 * apart and added ((s0 + s1) + s2) + s3, parts in ascending order. A stage of the stream is one contiguous piece: for each slice and each 16 rows the
 * codes of two blocks of 32 k, then the scales. A lane's 16 bytes of a block are its fragments: words (row g, first 16 k), (row g+8, first
 * 16 k), (row g, second), (row g+8, second), each k = 2t, 2t+1, 2t+8, 2t+9.
 *
 * Input. x is read in panels, which di_cuda_panel writes: [k/64][rows/8][8 pieces along k][8 rows][8 k], rows padded to 8, 16, 32 or 64: the form
 * in which wgmma reads shared memory, so that the copy engine brings it there.
 *
 * Blocks: one warp copies weights into a ring of stages (before the predecessor in the stream has ended: they are constant), one copies x; 2
 * warpgroups of 2 slices each decode and multiply (wgmma, weights as the register operand), 4 warps store. Two blocks
 * fit on a multiprocessor up to 16 rows, so that one kernel's end overlaps with the next one's beginning. Atoms are dealt out in contiguous shares,
 * part by part (and group by group), so that a block's columns of x stay in shared memory. With several parts, partial sums go to
 * global memory; when a block has done its atoms it adds up its share of the outputs as soon as their parts are there. */
#include "backend/cuda/formats.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/wgmma.cuh"

namespace
{

using namespace di;

constexpr int kSlices = 4, kEpilogue = 128;
constexpr int kSub = 2, kTile = 64, kMaxStages = 12;
constexpr int kMaxPart = 1280, kPartStep = kSlices * kSub * 32, kMaxSteps = kMaxPart / kPartStep;
constexpr int kStageBytes = 16 * kSub * 512 + 16;
constexpr int kSmem = 227 * 1024 - 256; /* of a multiprocessor; the rest is static */

struct plan {
    int parts, part_k, stages; /* of an atom */
    int tiles, group_tiles;    /* all, of a group */
};

/* A function of the shape alone: the number of parts fixes the order of summation. 132 multiprocessors are what it is balanced for. */
__host__ __device__ inline plan make_plan(const struct di_cuda_dense_shape &s)
{
    plan p;
    int steps = (s.k + kPartStep - 1) / kPartStep, best = 0;
    double best_cost = 0;
    p.group_tiles = (s.n / s.groups + kTile - 1) / kTile;
    p.tiles = p.group_tiles * s.groups;
    for (int parts = 1; parts <= steps; parts++) {
        int part_steps = (steps + parts - 1) / parts;
        if (part_steps * kPartStep > kMaxPart || (steps % parts && parts < steps))
            continue;
        int atoms = p.tiles * parts;
        double cost = (atoms + 131) / 132 * 132.0 / atoms + 0.05 * parts;
        if (best == 0 || cost < best_cost)
            best = parts, best_cost = cost;
    }
    p.parts = best;
    p.part_k = (steps + best - 1) / best * kPartStep;
    p.stages = p.part_k / kPartStep;
    return p;
}

struct job {
    struct di_cuda_dense_decode a;
    plan p;
    int x, red, bars, ring, n_stages; /* places in shared memory */
    int red_shift;                    /* 1 << red_shift buffers of sums */
};

__device__ __forceinline__ void my_share(int n, int *first, int *last)
{
    *first = (int)((long long)n * blockIdx.x / gridDim.x);
    *last = (int)((long long)n * (blockIdx.x + 1) / gridDim.x);
}

/* Atoms in order: group, part, tile of the group. */
struct atom {
    int group, part, tile;
};
__device__ __forceinline__ atom find_atom(const plan &p, int i)
{
    int block = i / p.group_tiles;
    return {block / p.parts, block % p.parts, block / p.parts * p.group_tiles + i % p.group_tiles};
}

__device__ void produce(const job &j, uint32_t ring, uint32_t full, uint32_t empty)
{
    uint64_t policy = policy_evict_first();
    int slot = 0, first, last;
    uint32_t parity = 1;
    my_share(j.p.tiles * j.p.parts, &first, &last);
    const uint8_t *src = j.a.packed + (size_t)first * j.p.stages * kStageBytes;
    for (int n = (last - first) * j.p.stages; n > 0; n--, src += kStageBytes) {
        mbar_wait(empty + slot * 8, parity);
        mbar_arrive_expect(full + slot * 8, kStageBytes);
        bulk_load(ring + slot * kStageBytes, src, kStageBytes, full + slot * 8, policy);
        if (++slot == j.n_stages)
            slot = 0, parity ^= 1;
    }
}

/* The columns of x of each block of atoms (group and part), step by step: 4 slices of 64 k. One warp. Every block begins elsewhere: what all of
 * them read at once would come from the same few places of the L2. */
template <int N> __device__ void produce_x(const job &j, uint32_t x, uint32_t full, uint32_t empty, int lane)
{
    int first, last, chunks = j.p.stages * kSlices;
    uint32_t parity = 1;
    my_share(j.p.tiles * j.p.parts, &first, &last);
    grid_wait();
    for (int block = first / j.p.group_tiles; first < last && block <= (last - 1) / j.p.group_tiles; block++, parity ^= 1) {
        const char *src = (const char *)j.a.x + (size_t)block * chunks * (N * 128); /* blocks are numbered as their panels are */
        mbar_wait(empty, parity);
        if (lane < j.p.stages)
            mbar_arrive_expect(full + 8 * lane, kSlices * N * 128);
        __syncwarp();
        if (lane < chunks) {
            int c = (lane + (int)blockIdx.x) % chunks, slice = c / j.p.stages, step = c % j.p.stages;
            bulk_load(x + (step * kSlices + slice) * (N * 128), src + c * (N * 128), N * 128, full + 8 * step, policy_normal());
        }
    }
}

/* bf16 fragments of 64 rows x 32 k. */
__device__ __forceinline__ void decode_block(uint4 w, uint32_t scale, uint32_t a[8])
{
    decode_fp8(w.x, scale, &a[0], &a[2]);
    decode_fp8(w.y, scale, &a[1], &a[3]);
    decode_fp8(w.z, scale, &a[4], &a[6]);
    decode_fp8(w.w, scale, &a[5], &a[7]);
}

/* Sums of 64 outputs and 8 rows (block r) to y. bf16: lanes of neighbouring g exchange, so that each stores two neighbouring outputs of one row. */
__device__ __forceinline__ void store_block(const job &j, int tile, int r, const float *sum, int thread)
{
    int g = thread % 32 / 4, t = thread % 4, row = r * 8 + 2 * t;
    size_t n = (size_t)j.a.shape.n, column = (size_t)tile * kTile + thread / 32 * 16 + g;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        size_t c = column + half * 8;
        if (j.a.out_f32) {
            for (int q = 0; q < 2; q++)
                if (row + q < j.a.m && c < n)
                    ((float *)j.a.y)[(size_t)(row + q) * n + c] = sum[2 * half + q];
        } else {
            float give = g % 2 ? sum[2 * half] : sum[2 * half + 1], mine = g % 2 ? sum[2 * half + 1] : sum[2 * half];
            float other = __shfl_xor_sync(~0u, give, 4);
            __nv_bfloat162 pair = g % 2 ? __floats2bfloat162_rn(other, mine) : __floats2bfloat162_rn(mine, other);
            if (row + g % 2 < j.a.m && c < n)
                *(__nv_bfloat162 *)((uint16_t *)j.a.y + (size_t)(row + g % 2) * n + (c - g % 2)) = pair;
        }
    }
}

/* Barriers of the sums' way: hop g from warpgroup g to the next one or to the epilogue, hop 4 back; one for each buffer, which atoms use in
 * turn. */
constexpr int kHops = 5, kHopBack = 4;
__device__ __forceinline__ uint32_t hop_bar(uint32_t hop, int s, int buffer)
{
    return hop + 8 * (2 * s + buffer);
}

struct bars {
    uint32_t full, empty, x_full, x_empty, hop;
};

template <int N, int GROUPS> __device__ void consume(const job &j, char *smem, const bars &bar)
{
    constexpr int kOwn = kSlices / GROUPS; /* slices of a warpgroup */
    int thread = (int)threadIdx.x, group = thread / 128, lane = thread % 32, current = -1, first, last;
    uint32_t parity = 0, full = bar.full, last_full = bar.full + 8 * (j.n_stages - 1), offset = 0, x_parity = 1;
    const char *codes = smem + j.ring + (group * kOwn * 4 + thread / 32 % 4) * (kSub * 512) + lane * 16;
    const char *scales = smem + j.ring + 16 * kSub * 512 + group * kOwn * 4 + thread / 32 % 4 / 2;
    uint64_t x = wgmma_descriptor(smem_addr(smem + j.x) + group * kOwn * (N * 128), 128, 1024);
    my_share(j.p.tiles * j.p.parts, &first, &last);
    for (int n = 0; first + n < last; n++) {
        bool fresh = (first + n) / j.p.group_tiles != current;
        if (fresh) {
            if (current >= 0 && lane == 0)
                mbar_arrive(bar.x_empty);
            current = (first + n) / j.p.group_tiles;
            x_parity ^= 1;
        }
        float acc[kOwn][N / 2];
#pragma unroll
        for (int r = 0; r < kOwn * N / 2; r++)
            acc[r / (N / 2)][r % (N / 2)] = 0;
        uint64_t b = x;
        for (int s = 0; s < j.p.stages; s++) {
            uint32_t a[2][8];
            if (fresh)
                mbar_wait(bar.x_full + 8 * s, x_parity);
            mbar_wait(full, parity);
#pragma unroll
            for (int i = 0; i < kOwn * kSub; i++) {
                int own = i % kOwn, sub = i / kOwn;
                uint4 w = *(const uint4 *)(codes + offset + own * (4 * kSub * 512) + sub * 512);
                uint32_t scale = scale_pair(*(const uint8_t *)(scales + offset + own * 4 + sub * 2));
                wgmma_wait<1>(); /* the products that read a[i % 2] are done */
                decode_block(w, scale, a[i % 2]);
                wgmma_fence();
                wgmma<N>::run(acc[own], a[i % 2], b + (own * (N * 128) + sub * 512) / 16);
                wgmma<N>::run(acc[own], a[i % 2] + 4, b + (own * (N * 128) + sub * 512 + 256) / 16);
                wgmma_commit();
            }
            b += kSlices * (N * 128) / 16;
            if (lane == 0)
                mbar_arrive(full + 8 * kMaxStages);
            if (full == last_full)
                full = bar.full, offset = 0, parity ^= 1;
            else
                full += 8, offset += kStageBytes;
        }
        wgmma_wait<0>();
        int buffer = n & j.red_shift, phase = n >> j.red_shift & 1;
        float4 *red = (float4 *)(smem + j.red) + buffer * (N / 8 * 128) + thread % 128;
        mbar_wait(hop_bar(bar.hop, group == 0 ? kHopBack : group - 1, buffer), group == 0 ? phase ^ 1 : phase);
#pragma unroll
        for (int r = 0; r < N / 8; r++) {
            const float4 before = red[r * 128];
            float v[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
            for (int q = 0; q < 4; q++) {
                v[q] = group == 0 ? acc[0][4 * r + q] : v[q] + acc[0][4 * r + q];
#pragma unroll
                for (int own = 1; own < kOwn; own++)
                    v[q] += acc[own][4 * r + q];
            }
            red[r * 128] = make_float4(v[0], v[1], v[2], v[3]);
        }
        mbar_arrive(hop_bar(bar.hop, group, buffer));
    }
}

/* Sums of one atom into global memory: [tile][rows/8][part][thread] */
__device__ __forceinline__ float4 *partial_at(const job &j, int tile, int block, int blocks, int part)
{
    return (float4 *)j.a.partial + (((size_t)tile * blocks + block) * j.p.parts + part) * 128;
}

template <int N, int GROUPS> __device__ void finish(const job &j, char *smem, const bars &bar)
{
    int thread = (int)threadIdx.x - GROUPS * 128, first, last;
    my_share(j.p.tiles * j.p.parts, &first, &last);
    grid_wait();
    for (int n = 0; first + n < last; n++) {
        int buffer = n & j.red_shift;
        const float4 *red = (const float4 *)(smem + j.red) + buffer * (N / 8 * 128) + thread;
        float sum[N / 2];
        atom at = find_atom(j.p, first + n);
        mbar_wait(hop_bar(bar.hop, GROUPS - 1, buffer), n >> j.red_shift & 1);
#pragma unroll
        for (int r = 0; r < N / 8; r++) {
            float4 v = red[r * 128];
            sum[4 * r] = v.x, sum[4 * r + 1] = v.y, sum[4 * r + 2] = v.z, sum[4 * r + 3] = v.w;
        }
        mbar_arrive(hop_bar(bar.hop, kHopBack, buffer));
        if (j.p.parts == 1) {
#pragma unroll
            for (int r = 0; r < N / 8; r++)
                store_block(j, at.tile, r, sum + 4 * r, thread);
            continue;
        }
#pragma unroll
        for (int r = 0; r < N / 8; r++)
            __stcg(partial_at(j, at.tile, r, N / 8, at.part) + thread,
                   make_float4(sum[4 * r], sum[4 * r + 1], sum[4 * r + 2], sum[4 * r + 3]));
        named_barrier(8, kEpilogue);
        if (thread == 0)
            add_release(&j.a.counters[at.tile], 1); /* carries what all threads of the barrier wrote */
    }
}

/* The block's share of the outputs, when all parts are there: each of its warpgroups, `reducers` in number, takes 64 outputs x 8 rows at a time. */
template <int N> __device__ void add_parts(const job &j, int reducers, int group, int thread)
{
    int first, last, parts = j.p.parts;
    my_share(j.p.tiles * (N / 8), &first, &last);
    for (int i = first + group; i < last; i += reducers) {
        int tile = i / (N / 8), r = i % (N / 8);
        if (thread == 0)
            while (load_acquire(&j.a.counters[tile]) < (uint32_t)parts)
                ;
        named_barrier(1 + group, 128);
        float sum[4];
        const float4 *p = partial_at(j, tile, r, N / 8, 0) + thread;
#pragma unroll 8
        for (int part = 0; part < parts; part++) {
            float4 v = __ldcg(p + part * 128);
            sum[0] = part == 0 ? v.x : sum[0] + v.x;
            sum[1] = part == 0 ? v.y : sum[1] + v.y;
            sum[2] = part == 0 ? v.z : sum[2] + v.z;
            sum[3] = part == 0 ? v.w : sum[3] + v.w;
        }
        store_block(j, tile, r, sum, thread);
        if (thread == 0 && atomicAdd(&j.a.counters[j.p.tiles + tile], 1) == N / 8 - 1) /* nobody looks at this tile any more */
            j.a.counters[tile] = j.a.counters[j.p.tiles + tile] = 0;
    }
}

template <int N, int GROUPS, int BLOCKS> __global__ void __launch_bounds__(GROUPS * 128 + kEpilogue + 64, BLOCKS) dense_decode(const job j)
{
    extern __shared__ __align__(128) char smem[];
    const int consumers = GROUPS * 128, thread = (int)threadIdx.x;
    uint32_t base = smem_addr(smem);
    bars bar;
    bar.full = base + j.bars, bar.empty = bar.full + 8 * kMaxStages, bar.x_full = bar.empty + 8 * kMaxStages;
    bar.x_empty = bar.x_full + 8 * kMaxSteps, bar.hop = bar.x_empty + 8;
    if (thread == 0) {
        grid_launch_next();
        for (int i = 0; i < j.n_stages; i++) {
            mbar_init(bar.full + i * 8, 1);
            mbar_init(bar.empty + i * 8, consumers / 32);
        }
        for (int i = 0; i < kMaxSteps; i++)
            mbar_init(bar.x_full + i * 8, 1);
        mbar_init(bar.x_empty, consumers / 32);
        for (int i = 0; i < 2 * kHops; i++)
            mbar_init(bar.hop + i * 8, 128);
        mbar_init_fence();
    }
    __syncthreads();
    if (thread < consumers) /* first: a warpgroup begins at a multiple of four warps */
        consume<N, GROUPS>(j, smem, bar);
    else if (thread < consumers + kEpilogue)
        finish<N, GROUPS>(j, smem, bar);
    else if (thread == consumers + kEpilogue)
        produce(j, base + j.ring, bar.full, bar.empty);
    else if (thread >= consumers + kEpilogue + 32)
        produce_x<N>(j, base + j.x, bar.x_full, bar.x_empty, thread % 32);
    if (j.p.parts > 1 && thread < consumers + kEpilogue) {
        grid_wait();
        add_parts<N>(j, GROUPS + 1, thread / 128, thread % 128);
    }
}

/* x [m, groups*k] to panels: 4 neighbouring threads have 32 k of a row. */
__global__ void write_panels(struct di_cuda_panel a, int all_k, int rows)
{
    grid_launch_next();
    grid_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    int chunks = all_k / 8, c = (int)(i % chunks) * 8, row = (int)(i / chunks % rows), group = (int)(i / chunks / rows);
    if (group >= a.shape.groups)
        return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < a.m && c < a.shape.k)
        v = __ldg((const uint4 *)((const uint16_t *)a.x + ((size_t)row * a.shape.groups + group) * a.shape.k + c));
    if (a.q8)
        v = q8_round_row(v, 0xFu << (threadIdx.x & 28));
    char *chunk = (char *)a.panels + ((size_t)group * all_k + c) / 64 * (rows * 128);
    *(uint4 *)(chunk + row / 8 * 1024 + c % 64 / 8 * 128 + row % 8 * 16) = v;
}

/* One thread per (atom, block of 32 k of a slice, warp, lane). */
__global__ void pack_dense(struct di_cuda_dense_pack a)
{
    plan p = make_plan(a.shape);
    int subs = p.part_k / kSlices / 32;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, all = (size_t)p.tiles * p.parts * subs * 512;
    if (i >= all)
        return;
    int lane = (int)(i % 32), warp = (int)(i / 32 % 16), sub = (int)(i / 512 % subs), index = (int)(i / 512 / subs), g = lane / 4,
        t = lane % 4;
    atom at = find_atom(p, index);
    int k0 = at.part * p.part_k + (warp / 4 * subs + sub) * 32, group_n = a.shape.n / a.shape.groups;
    int row0 = at.tile % p.group_tiles * kTile + warp % 4 * 16 + g; /* of the group */
    uint32_t words[4];
    for (int w = 0; w < 4; w++) {
        int row = row0 + w % 2 * 8, k = k0 + w / 2 * 16 + 2 * t;
        words[w] = 0;
        if (row < group_n && k0 < a.shape.k) {
            const uint8_t *src = a.data + ((size_t)at.group * group_n + row) * a.shape.k + k;
            words[w] = (uint32_t)src[0] << 8 | (uint32_t)src[1] << 24 | (uint32_t)src[8] | (uint32_t)src[9] << 16;
        }
    }
    uint8_t *stage = a.packed + ((size_t)index * p.stages + sub / kSub) * kStageBytes;
    *(uint4 *)(stage + warp * (kSub * 512) + sub % kSub * 512 + lane * 16) = make_uint4(words[0], words[1], words[2], words[3]);
    if (lane == 0 && warp % 2 == 0) {
        int scale = 1;
        if (row0 < group_n && k0 < a.shape.k) {
            scale = a.scale[((size_t)at.group * group_n + row0) / 32 * (a.shape.k / 32) + k0 / 32] + DI_FP8_SCALE_BIAS;
            if (scale > 254)
                *a.bad = 1;
        }
        stage[16 * kSub * 512 + warp / 4 * 4 + sub % kSub * 2 + warp % 4 / 2] = (uint8_t)min(scale, 254);
    }
}

template <int N, int GROUPS, int BLOCKS> cudaError_t launch(job &j, cudaStream_t stream)
{
    j.x = 0;
    j.red = j.x + N * j.p.part_k * 2;
    j.red_shift = N < 64;
    j.bars = j.red + (N * kTile * 4 << j.red_shift);
    j.ring = (j.bars + 8 * (2 * kMaxStages + kMaxSteps + 1 + 2 * kHops) + 127) / 128 * 128;
    j.n_stages = (kSmem / BLOCKS - 1024 * (BLOCKS - 1) - j.ring) / kStageBytes;
    if (j.n_stages > kMaxStages)
        j.n_stages = kMaxStages;
    if (j.n_stages < 2)
        return cudaErrorInvalidValue;
    return launch_kernel(dense_decode<N, GROUPS, BLOCKS>, dim3(multiprocessors() * BLOCKS), GROUPS * 128 + kEpilogue + 64,
                         j.ring + j.n_stages * kStageBytes, stream, j);
}

int padded_rows(int m)
{
    return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
}

bool shape_ok(const struct di_cuda_dense_shape *s)
{
    return s->groups > 0 && s->n % s->groups == 0 && s->n / s->groups % 32 == 0 && s->k % 32 == 0 && s->k > 0;
}

} // namespace

extern "C" size_t di_cuda_dense_bytes(const struct di_cuda_dense_shape *s)
{
    plan p = make_plan(*s);
    return (size_t)p.tiles * p.parts * p.stages * kStageBytes;
}

extern "C" size_t di_cuda_dense_partial_bytes(const struct di_cuda_dense_shape *s)
{
    plan p = make_plan(*s);
    return p.parts > 1 ? (size_t)p.tiles * p.parts * kTile * 64 * 4 : 0;
}

extern "C" int di_cuda_dense_counters(const struct di_cuda_dense_shape *s)
{
    return 2 * make_plan(*s).tiles;
}

extern "C" int di_cuda_dense_pack(const struct di_cuda_dense_pack *a, struct CUstream_st *stream)
{
    if (!shape_ok(&a->shape))
        return cudaErrorInvalidValue;
    plan p = make_plan(a->shape);
    size_t all = (size_t)p.tiles * p.parts * (p.part_k / kSlices / 32) * 512;
    pack_dense<<<(unsigned)((all + 255) / 256), 256, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" int di_cuda_dense_decode(const struct di_cuda_dense_decode *a, struct CUstream_st *stream)
{
    job j;
    if (!shape_ok(&a->shape) || a->m < 1 || a->m > 64)
        return cudaErrorInvalidValue;
    j.a = *a;
    j.p = make_plan(a->shape);
    switch (padded_rows(a->m)) {
    case 8: return launch<8, 2, 2>(j, stream);
    case 16: return launch<16, 2, 2>(j, stream);
    case 32: return launch<32, 2, 1>(j, stream);
    default: return launch<64, 2, 1>(j, stream);
    }
}

extern "C" size_t di_cuda_panel_bytes(const struct di_cuda_dense_shape *s, int m)
{
    plan p = make_plan(*s);
    return (size_t)s->groups * p.parts * p.part_k * padded_rows(m) * 2;
}

extern "C" int di_cuda_panel(const struct di_cuda_panel *a, struct CUstream_st *stream)
{
    if (!shape_ok(&a->shape) || a->m < 1 || a->m > 64)
        return cudaErrorInvalidValue;
    plan p = make_plan(a->shape);
    int rows = padded_rows(a->m), all_k = p.parts * p.part_k;
    size_t n = (size_t)a->shape.groups * rows * all_k / 8;
    return launch_kernel(write_panels, dim3((unsigned)((n + 255) / 256)), 256, 0, stream, *a, all_k, rows);
}
