/* Routed FP4 experts for few rows each: one persistent kernel for gate, up, SwiGLU and down.
 *
 * Floor, per layer: bytes = touched experts * 3*d*f * 17/32 (18.80 MB each at d 5120, f 2304), read once; operations = 6*d*f per slot, far
 * below. At 4.3 TB/s: 26.2 us for 6 experts, 1.65 ms for 377.
 *
 * Packed weights. A unit is 32 weight rows by all of K: 2 tiles of 16 rows. K is cut into 8 slices. Warp w of 16 owns tile w%2 of slice w/2
 * and adds it up alone; the slices are added in ascending order. A stage of the stream is one contiguous piece that holds, for each of the
 * 16 warps, the next SUB blocks of 32 k: codes [SUB][lane][row g, row g+8] as words, then scales [SUB][row] as bytes. A word's
 * pairs are k = 4t, 4t+2, 16+4t, 16+4t+2 of the block (t = lane%4, g = lane/4): each lane reads what its fragment needs and nothing else.
 * A tile of w1+w3 has 8 rows of w1, then the same 8 rows of w3, so that gate and up meet in one thread.
 *
 * One block per multiprocessor: one warp issues bulk copies into a ring of stages and never waits for anything but a free stage; 16 warps decode
 * and multiply; 4 warps add slices and write. Work = groups of up to 8 rows of an expert; all gate/up units, then all down units, each
 * dealt out in contiguous shares, so a block changes its rows (kept in shared memory) a few times only. Down units wait until their group's
 * h is complete (counted in global memory); their weights are already in the ring by then. */
#include "backend/cuda/formats.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

using namespace di;

constexpr int kTiles = 2, kSlices = 8, kWarps = kTiles * kSlices, kConsumers = kWarps * 32, kEpilogue = 128;
constexpr int kThreads = 32 + kConsumers + kEpilogue;
constexpr int kRows = 8;                       /* of a group */
constexpr int kSubBytes = 256 + 16;            /* of one warp and 32 k: codes, scales */
constexpr int kRedBytes = kWarps * 32 * 4 * 4; /* partial sums of one unit */
constexpr int kMaxExperts = 512, kMaxGroups = 960, kMaxStages = 12;
static_assert(kMaxExperts * 4 <= kRedBytes, "the table of experts lies there at first");
constexpr int kSmem = 226 * 1024; /* of 227 KiB: the rest is static */

/* What both passes over K have in common. */
struct plan {
    int subs, stages;     /* 32-k blocks of a slice; stages of a unit */
    int units;            /* of an expert */
    uint32_t stage_bytes; /* of a stage */
    size_t expert_bytes;
};

/* Blocks of a stage: 10 of 20 and 9 of 9 at full size. Each number is an instance of the kernel, so other sizes make do with 1. */
__host__ __device__ inline int subs_per_stage(int subs)
{
    return subs % 10 == 0 ? 10 : subs % 9 == 0 ? 9 : 1;
}
__host__ __device__ inline plan make_plan(int k, int n)
{
    plan p;
    p.subs = (k / 32 + kSlices - 1) / kSlices;
    int per_stage = subs_per_stage(p.subs);
    p.stages = p.subs / per_stage;
    p.units = n / (16 * kTiles);
    p.stage_bytes = (uint32_t)(kWarps * kSubBytes * per_stage);
    p.expert_bytes = (size_t)p.units * (size_t)p.stages * p.stage_bytes;
    return p;
}

struct layout { /* of shared memory, bytes */
    int x, x_stride, red, groups, rows, bars, ring, n_stages;
};
__host__ __device__ inline layout make_layout(int d, int f, int slots, uint32_t stage_bytes)
{
    layout l;
    plan a = make_plan(d, 2 * f), b = make_plan(f, d);
    int k = (a.subs > b.subs ? a.subs : b.subs) * kSlices * 32;
    l.x = 0;
    l.x_stride = k * 2 + (k % 64 == 0 ? 64 : 0); /* neighbouring rows lie 64 bytes apart modulo 128: conflict-free fragments */
    l.red = l.x + kRows * l.x_stride;
    l.groups = l.red + kRedBytes;
    l.rows = l.groups + kMaxGroups * 4;
    l.bars = (l.rows + slots * 2 + 15) / 16 * 16;
    l.ring = (l.bars + 256 + 127) / 128 * 128;
    l.n_stages = (kSmem - l.ring) / (int)stage_bytes;
    if (l.n_stages > kMaxStages)
        l.n_stages = kMaxStages;
    return l;
}

struct job { /* kernel parameters */
    struct di_cuda_moe_decode a;
    plan p[2];
    layout l;
    uint32_t stage_bytes; /* of a ring slot */
};

/* A group: expert, first position in the row list, number of rows. */
__device__ __forceinline__ uint32_t pack_group(int expert, int row0, int n)
{
    return (uint32_t)expert << 16 | (uint32_t)row0 << 4 | (uint32_t)n;
}

/* Group the slots by expert, experts and the rows of one ascending. Every block does it for itself and finds the same. Returns the number
 * of groups. */
__device__ int build_groups(const job &j, char *smem, int *total)
{
    uint32_t *groups = (uint32_t *)(smem + j.l.groups);
    uint16_t *rows = (uint16_t *)(smem + j.l.rows);
    int *cursor = (int *)(smem + j.l.red); /* free until the first unit is done */
    int slots = j.a.m * j.a.k, experts = j.a.shape.experts, lane = (int)threadIdx.x;
    if (slots <= 32 && j.a.m <= kRows) { /* one warp and no table of experts; no expert has more rows than a group */
        if (lane < 32) {
            int id = lane < slots ? j.a.ids[lane] : 0x7FFF;
            unsigned peers = __match_any_sync(~0u, id), below = (1u << lane) - 1;
            bool leader = (peers & below) == 0 && lane < slots;
            int row = 0, group = 0;
            for (int o = 0; o < slots; o++) {
                int other = __shfl_sync(~0u, id, o);
                row += other < id || (other == id && o < lane);
                int other_leads = __shfl_sync(~0u, (int)leader, o);
                group += other < id && other_leads;
            }
            if (lane < slots)
                rows[row] = (uint16_t)lane;
            if (leader)
                groups[group] = pack_group(id, row, __popc(peers));
            unsigned leaders = __ballot_sync(~0u, leader);
            if (lane == 0)
                *total = __popc(leaders);
        }
        __syncthreads();
        return *total;
    }
    for (int e = threadIdx.x; e < experts; e += kThreads)
        cursor[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < slots; i += kThreads)
        atomicAdd(&cursor[j.a.ids[i]], 1);
    __syncthreads();
    if (lane < 32) {
        int per_lane = (experts + 31) / 32, first = lane * per_lane, last = min(first + per_lane, experts);
        int sum = 0; /* groups in the low half, rows in the high half */
        for (int e = first; e < last; e++)
            sum += (cursor[e] + kRows - 1) / kRows + (cursor[e] << 16);
        int before = sum;
        for (int o = 1; o < 32; o *= 2) {
            int other = __shfl_up_sync(~0u, before, o);
            before += lane >= o ? other : 0;
        }
        if (lane == 31)
            *total = before & 0xFFFF;
        before -= sum;
        int g = before & 0xFFFF, row = before >> 16;
        for (int e = first; e < last; e++) {
            int n = cursor[e];
            cursor[e] = row;
            for (; n > 0; n -= kRows) {
                groups[g++] = pack_group(e, row, min(n, kRows));
                row += min(n, kRows);
            }
        }
        __syncwarp();
        for (int i = lane; i < (slots + 31) / 32 * 32; i += 32) {
            int id = i < slots ? j.a.ids[i] : -1;
            unsigned peers = __match_any_sync(~0u, id);
            int rank = __popc(peers & ((1u << lane) - 1)), start = id >= 0 ? cursor[id] : 0;
            __syncwarp();
            if (id >= 0) {
                rows[start + rank] = (uint16_t)i;
                if (rank == 0)
                    cursor[id] = start + __popc(peers);
            }
            __syncwarp();
        }
    }
    __syncthreads();
    return *total;
}

/* Units of a pass before those of a block, in contiguous shares. Shares of the first pass differ by one unit at most; those of the second make
 * the bytes of both even, so that a block with one unit more of the first is not the last one to end. */
__device__ __forceinline__ int share_begin(const job &j, int n_groups, int pass, int block)
{
    int n0 = n_groups * j.p[0].units, n1 = n_groups * j.p[1].units, blocks = (int)gridDim.x;
    int begin0 = n0 / blocks * block + min(n0 % blocks, block);
    if (pass == 0)
        return begin0;
    if (n0 < 2 * blocks)
        return (int)((long long)n1 * block / blocks);
    long long b0 = j.p[0].stages * (long long)j.p[0].stage_bytes, b1 = j.p[1].stages * (long long)j.p[1].stage_bytes;
    return (int)max(0ll, min((long long)n1, ((n0 * b0 + n1 * b1) * block / blocks - begin0 * b0) / b1));
}

/* This block's units of a pass, one after another. One row alone is every group's row, so nothing has to be fetched when the group changes; then
 * all blocks work on the same groups at the same time in the first pass, and the first groups are complete long before the second pass wants them. */
struct walk {
    int left; /* units to go */
    int group, part, step;
};
__device__ __forceinline__ walk begin_walk(const job &j, int n_groups, int pass)
{
    int first = share_begin(j, n_groups, pass, (int)blockIdx.x), units = j.p[pass].units;
    walk w;
    w.left = share_begin(j, n_groups, pass, (int)blockIdx.x + 1) - first;
    w.step = 1;
    if (pass == 0 && j.a.m == 1)
        first = (int)blockIdx.x, w.step = (int)gridDim.x;
    w.group = first / units;
    w.part = first % units;
    return w;
}
__device__ __forceinline__ void advance(walk &w, int units)
{
    w.left--;
    w.part += w.step;
    while (w.part >= units)
        w.group++, w.part -= units;
}

__device__ void produce(const job &j, int n_groups, const uint32_t *groups, uint32_t ring, uint32_t full, uint32_t empty)
{
    uint64_t policy = policy_evict_first();
    int slot = 0;
    uint32_t parity = 1; /* the first round finds every slot free */
    for (int pass = 0; pass < 2; pass++) {
        const plan &p = j.p[pass];
        const uint8_t *packed = pass == 0 ? j.a.packed13 : j.a.packed2;
        for (walk u = begin_walk(j, n_groups, pass); u.left > 0; advance(u, p.units)) {
            const uint8_t *src =
                packed + (size_t)(groups[u.group] >> 16) * p.expert_bytes + (size_t)u.part * (uint32_t)p.stages * p.stage_bytes;
            for (int s = 0; s < p.stages; s++, src += p.stage_bytes) {
                mbar_wait(empty + slot * 8, parity);
                mbar_arrive_expect(full + slot * 8, p.stage_bytes);
                bulk_load(ring + slot * j.stage_bytes, src, p.stage_bytes, full + slot * 8, policy);
                if (++slot == j.l.n_stages)
                    slot = 0, parity ^= 1;
            }
        }
    }
}

/* x[n] of shared memory: within a block of 32 k, 16 bytes at 16t hold k = 4t..4t+3, 16+4t..16+4t+3. */
__device__ __forceinline__ void store_permuted(char *row, int k, uint2 lo, uint2 hi)
{
    /* k..k+7 with k%8 == 0: two runs of 4 */
    int t = k % 16 / 4;
    char *at = row + k / 32 * 64 + t * 16 + k % 32 / 16 * 8;
    *(uint2 *)at = lo;
    *(uint2 *)(at + 16) = hi;
}

/* The rows of a group into shared memory: inputs, or Q8 of h. Rows beyond them are zero: products with zeros take less power, and the card is at its
 * limit of power when it streams weights through this kernel. `dirty`: rows that may be other than zero. */
__device__ void fill_rows(const job &j, int pass, uint32_t group, int dirty, char *smem, int thread)
{
    const uint16_t *rows = (const uint16_t *)(smem + j.l.rows);
    int row0 = (int)(group >> 4 & 0xFFF), n = (int)(group & 15), k = pass == 0 ? j.a.shape.d : j.a.shape.f;
    int padded = j.p[pass].subs * kSlices * 32, all = max(n, dirty);
    for (int i = thread; i < all * padded / 8; i += kConsumers) {
        int r = i / (padded / 8), c = i % (padded / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < n && c < k) {
            if (pass == 0)
                v = __ldg((const uint4 *)((const uint16_t *)j.a.x + (size_t)(rows[row0 + r] / j.a.k) * k + c));
            else
                v = __ldcg((const uint4 *)((const uint16_t *)j.a.h + (size_t)(row0 + r) * k + c));
        }
        if (pass == 1)
            v = q8_round_row(v, 0xFu << (thread & 28)); /* counts are multiples of 4: neighbours are here together */
        store_permuted(smem + j.l.x + r * j.l.x_stride, c, make_uint2(v.x, v.y), make_uint2(v.z, v.w));
    }
}

template <int SUB> __device__ __forceinline__ void multiply_stage(float acc[4], const char *codes, const char *scales, const char *x)
{
#pragma unroll
    for (int s = 0; s < SUB; s++) {
        uint2 w = *(const uint2 *)(codes + s * 256);
        uint4 b = *(const uint4 *)(x + s * 64);
        uint32_t top[4], bottom[4];
        decode_fp4(w.x, scale_pair(*(const uint8_t *)(scales + s * 16)), top);
        decode_fp4(w.y, scale_pair(*(const uint8_t *)(scales + s * 16 + 8)), bottom);
        uint32_t a0[4] = {top[0], bottom[0], top[1], bottom[1]}, a1[4] = {top[2], bottom[2], top[3], bottom[3]};
        mma_bf16(acc, a0, b.x, b.y);
        mma_bf16(acc, a1, b.z, b.w);
    }
}

struct ring_state {
    uint32_t bar, offset; /* of the slot: its `full` barrier, its place in the ring */
    uint32_t parity, red_parity;
    int dirty; /* rows of x that may be other than zero */
};

template <int SUB>
__device__ void consume(const job &j, int pass, int n_groups, char *smem, uint32_t full, uint32_t red_full, uint32_t red_empty,
                        ring_state &st)
{
    const plan &p = j.p[pass];
    const uint32_t *groups = (const uint32_t *)(smem + j.l.groups);
    int thread = (int)threadIdx.x - 32, warp = thread / 32, lane = thread % 32, current = -1, stages = p.stages;
    const char *codes = smem + j.l.ring + warp * (kSubBytes * SUB) + lane * 8;
    const char *scales = codes - lane * 8 + 256 * SUB + lane / 4;
    const char *x = smem + j.l.x + lane / 4 * j.l.x_stride + warp / kTiles * p.subs * 64 + lane % 4 * 16;
    float4 *red = (float4 *)(smem + j.l.red) + thread;
    uint32_t last_bar = full + 8 * (j.l.n_stages - 1), stage_bytes = j.stage_bytes;
    for (walk u = begin_walk(j, n_groups, pass); u.left > 0; advance(u, p.units)) {
        bool same_rows = current >= 0 && pass == 0 && j.a.m == 1;
        if (u.group != current && !same_rows) {
            current = u.group;
            if (pass == 1 && thread == 0)
                while (load_acquire(&j.a.counters[current]) < (uint32_t)j.p[0].units)
                    ;
            named_barrier(1, kConsumers);
            fill_rows(j, pass, groups[current], st.dirty, smem, thread);
            st.dirty = (int)(groups[current] & 15);
            named_barrier(1, kConsumers);
        }
        float acc[4] = {0, 0, 0, 0};
        const char *at = x;
        for (int s = stages; s > 0; s--, at += SUB * 64) {
            mbar_wait(st.bar, st.parity);
            multiply_stage<SUB>(acc, codes + st.offset, scales + st.offset, at);
            __syncwarp();
            if (lane == 0)
                mbar_arrive(st.bar + 8 * kMaxStages);
            if (st.bar == last_bar)
                st.bar = full, st.offset = 0, st.parity ^= 1;
            else
                st.bar += 8, st.offset += stage_bytes;
        }
        mbar_wait(red_empty, st.red_parity ^ 1);
        *red = make_float4(acc[0], acc[1], acc[2], acc[3]);
        mbar_arrive(red_full); /* every thread: racecheck does not see that one lane speaks for its warp */
        st.red_parity ^= 1;
    }
}

/* Thread e of the epilogue owns 2 of the 4 sums of one lane's fragment: `first` and `second` are their places in it. */
__device__ __forceinline__ void add_slices(const float *red, int tile, int lane, int first, int second, float out[2])
{
    out[0] = out[1] = 0;
#pragma unroll
    for (int s = 0; s < kSlices; s++) {
        const float *p = red + ((s * kTiles + tile) * 32 + lane) * 4;
        out[0] = s == 0 ? p[first] : out[0] + p[first];
        out[1] = s == 0 ? p[second] : out[1] + p[second];
    }
}

__device__ void finish(const job &j, int n_groups, char *smem, uint32_t red_full, uint32_t red_empty)
{
    const uint32_t *groups = (const uint32_t *)(smem + j.l.groups);
    const uint16_t *rows = (const uint16_t *)(smem + j.l.rows);
    int e = (int)threadIdx.x - 32 - kConsumers, tile = e / 64, lane = e % 64 / 2, half = e % 2;
    uint32_t parity = 0;
    for (int pass = 0; pass < 2; pass++) {
        const plan &p = j.p[pass];
        for (walk u = begin_walk(j, n_groups, pass); u.left > 0; advance(u, p.units), parity ^= 1) {
            int group = u.group, part = u.part;
            int row0 = (int)(groups[group] >> 4 & 0xFFF), n = (int)(groups[group] & 15);
            float v[2];
            mbar_wait(red_full, parity);
            const float *red = (const float *)(smem + j.l.red);
            if (pass == 0)
                add_slices(red, tile, lane, half, 2 + half, v); /* gate and up of (f, row) */
            else
                add_slices(red, tile, lane, 2 * half, 2 * half + 1, v); /* one channel of two rows */
            mbar_arrive(red_empty);
            if (pass == 0) {
                int row = lane % 4 * 2 + half, channel = (part * kTiles + tile) * 8 + lane / 4;
                if (row < n) {
                    float gate = fminf(round_bf16(v[0]), j.a.limit), up = fminf(fmaxf(round_bf16(v[1]), -j.a.limit), j.a.limit);
                    float h = j.a.weights[rows[row0 + row]] * (gate * (1.0f / (1.0f + expf(-gate))) * up);
                    ((__nv_bfloat16 *)j.a.h)[(size_t)(row0 + row) * j.a.shape.f + channel] = __float2bfloat16_rn(h);
                }
                named_barrier(2, kEpilogue); /* and the release below carries what all threads of the barrier wrote */
                if (e == 0)
                    add_release(&j.a.counters[group], 1);
            } else {
                int channel = (part * kTiles + tile) * 16 + half * 8 + lane / 4;
                for (int c = 0; c < 2; c++)
                    if (lane % 4 * 2 + c < n)
                        ((__nv_bfloat16 *)j.a.y)[(size_t)rows[row0 + lane % 4 * 2 + c] * j.a.shape.d + channel] = __float2bfloat16_rn(v[c]);
            }
        }
    }
}

template <int SUB1, int SUB2> __global__ void __launch_bounds__(kThreads, 1) moe_decode(const job j)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ int total, is_last;
    uint32_t base = smem_addr(smem), full = base + j.l.bars, empty = full + 8 * kMaxStages, red_full = empty + 8 * kMaxStages,
             red_empty = red_full + 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < j.l.n_stages; i++) {
            mbar_init(full + i * 8, 1);
            mbar_init(empty + i * 8, kWarps);
        }
        mbar_init(red_full, kConsumers);
        mbar_init(red_empty, kEpilogue);
        mbar_init_fence();
    }
    grid_launch_next();
    for (int i = threadIdx.x; i < kRows * j.l.x_stride / 16; i += kThreads)
        *(uint4 *)(smem + j.l.x + i * 16) = make_uint4(0, 0, 0, 0);
    grid_wait();
    int n_groups = build_groups(j, smem, &total);
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            produce(j, n_groups, (const uint32_t *)(smem + j.l.groups), base + j.l.ring, full, empty);
    } else if (threadIdx.x < 32 + kConsumers) {
        ring_state st = {full, 0, 0, 0, 0};
        consume<SUB1>(j, 0, n_groups, smem, full, red_full, red_empty, st);
        consume<SUB2>(j, 1, n_groups, smem, full, red_full, red_empty, st);
    } else {
        finish(j, n_groups, smem, red_full, red_empty);
    }
    /* The last block to end leaves the counters as it found them. */
    __syncthreads();
    uint32_t *ended = &j.a.counters[DI_CUDA_MOE_COUNTERS - 1];
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(ended, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last) {
        for (int g = threadIdx.x; g < n_groups; g += kThreads)
            j.a.counters[g] = 0;
        if (threadIdx.x == 0)
            *ended = 0;
    }
}

/* One thread per (unit, slice block, tile, lane): the lane's two words, and every fourth lane the two scales. */
__global__ void pack_experts(struct di_cuda_moe_pack a, int pass)
{
    int k = pass == 0 ? a.shape.d : a.shape.f, n = pass == 0 ? 2 * a.shape.f : a.shape.d;
    plan p = make_plan(k, n);
    int per_stage = p.subs / p.stages;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, all = (size_t)p.units * p.subs * kWarps * 32;
    if (i >= all)
        return;
    int lane = (int)(i % 32), warp = (int)(i / 32 % kWarps), sub = (int)(i / 32 / kWarps % p.subs), unit = (int)(i / 32 / kWarps / p.subs);
    int block = warp / kTiles * p.subs + sub, g = lane / 4, t = lane % 4;
    uint32_t words[2] = {0, 0};
    uint8_t scales[2] = {1, 1};
    for (int half = 0; half < 2 && block * 32 < k; half++) {
        int row = (unit * kTiles + warp % kTiles) * 16 + half * 8 + g;
        const uint8_t *codes = a.w2, *scale = a.s2;
        if (pass == 0) {
            row = (unit * kTiles + warp % kTiles) * 8 + g;
            codes = half == 0 ? a.w1 : a.w3;
            scale = half == 0 ? a.s1 : a.s3;
        }
        for (int pair = 0; pair < 4; pair++) {
            int kk = block * 32 + pair / 2 * 16 + 4 * t + pair % 2 * 2;
            uint32_t byte = codes[((size_t)row * k + kk) / 2];
            words[half] |= place_fp4(byte & 15, pair, 0) | place_fp4(byte >> 4, pair, 1);
        }
        int s = scale[(size_t)row * (k / 32) + block] + DI_FP4_SCALE_BIAS;
        if (s > 254)
            *a.bad = 1;
        scales[half] = (uint8_t)min(s, 254);
    }
    uint8_t *stage = (pass == 0 ? a.packed13 : a.packed2) + ((size_t)unit * p.stages + sub / per_stage) * p.stage_bytes;
    uint8_t *piece = stage + warp * kSubBytes * per_stage;
    *(uint2 *)(piece + sub % per_stage * 256 + lane * 8) = make_uint2(words[0], words[1]);
    if (t == 0) {
        piece[per_stage * 256 + sub % per_stage * 16 + g] = scales[0];
        piece[per_stage * 256 + sub % per_stage * 16 + 8 + g] = scales[1];
    }
}

__global__ void combine(struct di_cuda_moe_combine a)
{
    grid_launch_next();
    grid_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)a.m * a.d / 8)
        return;
    size_t row = i / (a.d / 8), c = i % (a.d / 8);
    float sum[8] = {0};
    for (int s = 0; s <= a.k; s++) {
        if (s == a.k && a.shared == nullptr)
            break;
        const uint4 *p = s < a.k ? (const uint4 *)a.slots + (row * a.k + s) * (a.d / 8) + c : (const uint4 *)a.shared + row * (a.d / 8) + c;
        uint4 v = __ldg(p);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        for (int q = 0; q < 4; q++) {
            sum[2 * q] += bf16_low(w[q]);
            sum[2 * q + 1] += bf16_high(w[q]);
        }
    }
    __nv_bfloat162 out[4];
    for (int q = 0; q < 4; q++)
        out[q] = __floats2bfloat162_rn(sum[2 * q], sum[2 * q + 1]);
    ((uint4 *)a.y)[i] = *(uint4 *)out;
}

} // namespace

extern "C" size_t di_cuda_moe_bytes13(const struct di_cuda_moe_shape *s)
{
    return make_plan(s->d, 2 * s->f).expert_bytes;
}

extern "C" size_t di_cuda_moe_bytes2(const struct di_cuda_moe_shape *s)
{
    return make_plan(s->f, s->d).expert_bytes;
}

extern "C" int di_cuda_moe_pack(const struct di_cuda_moe_pack *a, struct CUstream_st *stream)
{
    for (int pass = 0; pass < 2; pass++) {
        plan p = pass == 0 ? make_plan(a->shape.d, 2 * a->shape.f) : make_plan(a->shape.f, a->shape.d);
        size_t all = (size_t)p.units * p.subs * kWarps * 32;
        pack_experts<<<(unsigned)((all + 255) / 256), 256, 0, stream>>>(*a, pass);
    }
    return cudaGetLastError();
}

extern "C" int di_cuda_moe_decode(const struct di_cuda_moe_decode *a, struct CUstream_st *stream)
{
    const struct di_cuda_moe_shape *s = &a->shape;
    if (a->m * a->k > DI_CUDA_MOE_MAX_SLOTS || s->experts > kMaxExperts || s->d % 32 || s->f % 32)
        return cudaErrorInvalidValue;
    job j;
    j.a = *a;
    j.p[0] = make_plan(s->d, 2 * s->f);
    j.p[1] = make_plan(s->f, s->d);
    j.stage_bytes = j.p[0].stage_bytes > j.p[1].stage_bytes ? j.p[0].stage_bytes : j.p[1].stage_bytes;
    j.l = make_layout(s->d, s->f, a->m * a->k, j.stage_bytes);
    int sub1 = j.p[0].subs / j.p[0].stages, sub2 = j.p[1].subs / j.p[1].stages;
    static void (*const kernels[3][3])(job) = {{moe_decode<10, 10>, moe_decode<10, 9>, moe_decode<10, 1>},
                                               {moe_decode<9, 10>, moe_decode<9, 9>, moe_decode<9, 1>},
                                               {moe_decode<1, 10>, moe_decode<1, 9>, moe_decode<1, 1>}};
    int i1 = sub1 == 10 ? 0 : sub1 == 9 ? 1 : 2, i2 = sub2 == 10 ? 0 : sub2 == 9 ? 1 : 2;
    return launch_kernel(kernels[i1][i2], dim3(multiprocessors()), kThreads, j.l.ring + j.l.n_stages * j.stage_bytes, stream, j);
}

extern "C" int di_cuda_moe_combine(const struct di_cuda_moe_combine *a, struct CUstream_st *stream)
{
    size_t n = (size_t)a->m * a->d / 8;
    return launch_kernel(combine, dim3((unsigned)((n + 255) / 256)), 256, 0, stream, *a);
}
