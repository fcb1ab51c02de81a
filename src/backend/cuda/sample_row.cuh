/* Rows of logits on the device: how they are cut into pieces, what is known of them between the kernels of sample.cu, the draw over a piece. */
#ifndef DI_BACKEND_CUDA_SAMPLE_ROW_CUH
#define DI_BACKEND_CUDA_SAMPLE_ROW_CUH

#include "backend/cuda/block.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sample.h"

#include <cfloat>
#include <climits>

namespace
{

using namespace di;

constexpr int kThreads = 128, kVecs = 16, kPiece = kThreads * kVecs * 4, kWarps = kThreads / 32;
constexpr int kBins = 512, kCandidates = 2 * kWarps, kList = 4096, kReport = 512, kMaxGroupK = 1024, kJoinThreads = 256,
              kFinishThreads = 512;
constexpr float kBinsPerNat = 16.0f, kBinMagic = 12582912.0f; /* 1.5 * 2^23 */
constexpr int kNoBin = 1 << 28;

struct piece { /* what a block of the scan says */
    float max, raw_max;
    int first, n_allowed, bad;  /* bad: first id whose logit is not finite, or INT_MAX */
    int candidate[kCandidates]; /* two of each warp; -1: none, -2: a warp had more */
};

enum {
    WEIGH_RAW = 1,
    WEIGH_BINS = 2,
    WEIGH_ABOVE = 4,
    WEIGH_DRAW = 8,
    WHOLE_ROW = 16,
    FINISH = 32,
    SAME_LAW = 64,
    WEIGH_LAW = WEIGH_BINS | WEIGH_ABOVE | WEIGH_DRAW
};

struct state { /* of a row */
    uint32_t flags;
    int status, id, bad;
    float max, raw_max;
    int first, n_allowed;
    float first_noise;       /* gumbel of `first`, rounded down */
    float keep, list_low;    /* the cut lies in list_low <= x < keep */
    float min_low, min_high; /* min-p: kept from high on, listed from low on */
    float report_low;
    uint32_t n_list, n_report;
    u64 total, above, raw_sum;
};
struct entry {
    float x;
    int id;
};

struct scratch {
    state *states;
    piece *pieces;              /* [m][n] */
    float *groups, *raw_groups; /* [m][n][kThreads] */
    uint32_t *mass;             /* [m][n][kBins] */
    int *mass_top;              /* [m][n] */
    entry *list, *report;       /* [m][kList], [m][kReport] */
};
struct job {
    struct di_cuda_sample a;
    scratch s;
    int pieces;
};

__host__ __device__ inline size_t padded(size_t n)
{
    return (n + 255) & ~(size_t)255;
}
size_t place_scratch(void *memory, int m, int vocab, scratch *s)
{
    size_t rows = (size_t)m, n = rows * (((size_t)vocab + kPiece - 1) / kPiece), at = 0;
    char *base = (char *)memory;
    auto take = [&](size_t bytes) {
        char *p = base + at;
        at += padded(bytes);
        return p;
    };
    s->states = (state *)take(rows * sizeof(state));
    s->pieces = (piece *)take(n * sizeof(piece));
    s->groups = (float *)take(n * kThreads * sizeof(float));
    s->raw_groups = (float *)take(n * kThreads * sizeof(float));
    s->mass = (uint32_t *)take(n * kBins * sizeof(uint32_t));
    s->mass_top = (int *)take(n * sizeof(int));
    s->list = (entry *)take(rows * kList * sizeof(entry));
    s->report = (entry *)take(rows * kReport * sizeof(entry));
    return at;
}

__host__ __device__ inline bool is_greedy(const di_cuda_sample_row &r)
{
    return r.temperature < 1e-5;
}
__host__ __device__ inline bool may_cut(const di_cuda_sample_row &r)
{
    return r.top_k > 0 || r.top_p < 1 || r.min_p > 0;
}

/* ---- reading a piece: a thread's 8 vectors, to its own places of shared memory */

__device__ __forceinline__ int id_of(int piece, int j)
{
    return piece * kPiece + (j * kThreads + (int)threadIdx.x) * 4;
}

/* Beyond the row there is -INFINITY. Every thread reads what it alone will use. */
__device__ __forceinline__ void load_piece(const float *row, int vocab, int piece, float4 *x)
{
    bool aligned = ((size_t)row & 15) == 0;
#pragma unroll
    for (int j = 0; j < kVecs; j++) {
        int id = id_of(piece, j);
        float4 *to = x + j * kThreads + threadIdx.x;
        if (aligned && id + 4 <= vocab) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(to)), "l"(row + id) : "memory");
        } else {
            float t[4];
            for (int c = 0; c < 4; c++)
                t[c] = id + c < vocab ? __ldcg(row + id + c) : -INFINITY;
            *to = make_float4(t[0], t[1], t[2], t[3]);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ __forceinline__ void mask_piece(const di_cuda_sample_row &r, int vocab, int piece, float4 *x)
{
#pragma unroll 2
    for (int j = 0; j < kVecs; j++) {
        int id = id_of(piece, j);
        if (id >= vocab)
            continue;
        uint64_t bits = (r.allowed ? __ldg(r.allowed + id / 64) : ~0ull) & ~(r.banned ? __ldg(r.banned + id / 64) : 0ull);
        uint32_t own = (uint32_t)(bits >> (id & 63));
        float4 v = x[j * kThreads + threadIdx.x];
        v.x = own & 1 ? v.x : -INFINITY, v.y = own & 2 ? v.y : -INFINITY, v.z = own & 4 ? v.z : -INFINITY, v.w = own & 8 ? v.w : -INFINITY;
        x[j * kThreads + threadIdx.x] = v;
    }
}
__device__ __forceinline__ float largest(float4 v)
{
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
}
__device__ __forceinline__ float at4(const float4 &v, int c)
{
    return c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w;
}

/* ---- the draw over a piece in shared memory: log-weight + noise, near enough to sort out almost all ids */

struct near_best {
    float score[3]; /* of the lane, falling; the third is only remembered to have been */
    int id[2];
};
struct draw_law {
    float reference, t, per_nat; /* log-weight = (x - reference) * per_nat */
    uint32_t k0, k1, position;
};

__device__ __forceinline__ void draw_try(near_best &b, float score, int id)
{
    if (score > b.score[0]) {
        b.score[2] = b.score[1], b.score[1] = b.score[0], b.id[1] = b.id[0];
        b.score[0] = score, b.id[0] = id;
    } else if (score > b.score[1]) {
        b.score[2] = b.score[1], b.score[1] = score, b.id[1] = id;
    } else if (score > b.score[2]) {
        b.score[2] = score;
    }
}

/* `bound`: something reaches it; logits of -INFINITY take no part. Every id whose true value may be the largest is among a lane's two, or its
 * third is close to the best. */
__device__ __forceinline__ near_best draw_piece(const float4 *x, int vocab, int piece, const draw_law &l, float bound)
{
    near_best best = {{-INFINITY, -INFINITY, -INFINITY}, {-1, -1}};
    float limit = l.reference + (bound - kLargestGumbel - 0.1f) * l.t, offset = bound * 1.44269504f, scale = l.per_nat * 1.44269504f;
#pragma unroll 1
    for (int j = 0; j < kVecs; j += 2) {
        float4 v[2] = {x[j * kThreads + threadIdx.x], x[(j + 1) * kThreads + threadIdx.x]};
        if (!__any_sync(~0u, fmaxf(largest(v[0]), largest(v[1])) >= limit))
            continue;
        uint32_t w[8], bits = 0;
        philox(l.k0, l.k1, l.position, (uint32_t)id_of(piece, j) / 4, w);
        philox(l.k0, l.k1, l.position, (uint32_t)id_of(piece, j + 1) / 4, w + 4);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            /* it wins only if -log(u) < e^gap, gap = log-weight - best, and -log(u) > 1 - u > v / 2^32, v = ~word */
            float xe = at4(v[e / 4], e % 4), chance = exp2_near(__fmaf_rn(xe - l.reference, scale, -offset));
            float v_part = __uint_as_float(~w[e] >> 9 | 0x3F800000);
            if (v_part <= __fmaf_rn(chance, 1.0001f, 1.0000005f))
                bits |= 1u << e;
        }
        if (!__any_sync(~0u, bits))
            continue;
        while (__any_sync(~0u, bits)) {
            int e = __ffs(bits) - 1;
            float xe = -INFINITY;
            uint32_t we = 0;
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (e == k)
                    xe = at4(v[k / 4], k % 4), we = w[k];
            if (bits)
                draw_try(best, (xe - l.reference) * l.per_nat + gumbel_near(we), id_of(piece, j + e / 4) + e % 4);
            bits &= bits - 1;
        }
        float now = warp_max(best.score[0]) - kNear;
        if (now > bound) {
            bound = now;
            limit = l.reference + (bound - kLargestGumbel - 0.1f) * l.t, offset = bound * 1.44269504f;
        }
    }
    return best;
}

/* The ids of a warp that may have the largest value of the row. */
__device__ __forceinline__ void draw_hand_on(const near_best &b, float bound, int *out)
{
    float from = fmaxf(warp_max(b.score[0]) - kNear, bound);
    bool first = b.score[0] >= from && b.id[0] >= 0, second = b.score[1] >= from && b.id[1] >= 0,
         third = b.score[2] >= from && b.score[2] > -INFINITY;
    uint32_t lanes = __ballot_sync(~0u, first), more = __ballot_sync(~0u, second);
    int ids[2] = {-1, -1};
    if (lanes) {
        int a = __ffs(lanes) - 1;
        ids[0] = __shfl_sync(~0u, b.id[0], a);
        uint32_t others = lanes & (lanes - 1);
        if (others)
            ids[1] = __shfl_sync(~0u, b.id[0], __ffs(others) - 1);
        else if (more)
            ids[1] = __shfl_sync(~0u, b.id[1], __ffs(more) - 1);
        if (__popc(lanes) + __popc(more) > 2 || __any_sync(~0u, third))
            ids[1] = -2;
    }
    if (threadIdx.x % 32 < 2)
        out[threadIdx.x / 32 * 2 + threadIdx.x % 32] = ids[threadIdx.x % 32];
}
__device__ __forceinline__ void draw_nothing(int *out)
{
    if (threadIdx.x < kCandidates)
        out[threadIdx.x] = -1;
}

__device__ __forceinline__ float row_value(const di_cuda_sample_row &r, int id)
{
    return __ldcg((r.edited ? r.edited : r.logits) + id) + 0.0f;
}
__device__ float first_noise(const di_cuda_sample_row &r, int first)
{
    return (float)gumbel_exact(noise_word(r.key, r.position, first)) - kNear;
}
__device__ double exact_value(const di_cuda_sample_row &r, const law &l, float x, int id)
{
    return __dadd_rn(log_weight(l, x), gumbel_exact(noise_word(r.key, r.position, id)));
}

/* Logits of a row after edits and masks, or of its list. */
struct source {
    const di_cuda_sample_row *row;
    const float *x;
    const int *ids; /* NULL: every id of the row */
    int n;
    __device__ __forceinline__ int id(int i) const
    {
        return ids ? ids[i] : i;
    }
    __device__ __forceinline__ float get(int i) const
    {
        if (ids)
            return x[i];
        uint64_t bits = (row->allowed ? row->allowed[i / 64] : ~0ull) & ~(row->banned ? row->banned[i / 64] : 0ull);
        return bits >> i % 64 & 1 ? x[i] + 0.0f : -INFINITY;
    }
};
__device__ void write_result(const job &j, int row, const state &st)
{
    di_cuda_sample_result *out = j.a.results + row;
    bool ok = st.status == DI_CUDA_SAMPLE_OK;
    out->status = st.status, out->id = ok ? st.id : -1;
    out->bad_id = st.status == DI_CUDA_SAMPLE_NOT_FINITE ? st.bad : -1;
    out->bad = st.status == DI_CUDA_SAMPLE_NOT_FINITE ? j.a.rows[row].logits[st.bad] : 0;
    out->logprob = NAN, out->n_top = 0;
    if (j.a.ids)
        j.a.ids[row] = ok ? st.id : -1;
}

} // namespace

#endif
