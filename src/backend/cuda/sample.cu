/* Tokens of rows of logits (sample.h).
 *
 * Floor: a row of V logits is read once, V*4 bytes: 256 rows of 129,280 are 132 MB, 31 us at 4.3 TB/s. A row that is cut (top-k, top-p, min-p) or
 * reports log-probabilities needs its largest logit first and is read twice. Integer weights cost 18 fp64 operations a logit (34 us), a Philox
 * block 20 wide products for 4 ids (20 us); both run beside the reading.
 *
 *  scan    pieces of 8192 logits, a block each. Largest logit, and while they are at hand: the draw if nothing is cut (noise against the piece's own
 *          largest logit; ids whose exact value could be the largest are handed on), the mass by distance from the largest (top-p), largest
 *          logits of groups of 64 (top-k, alternatives to report).
 *  join    a block a row puts the pieces together: either the token, or a window of logits in which the cut must lie.
 *  weigh   pieces again. Exact sums of weights of all, and of what is above the window; ids in the window go to a list; the draw over what is
 *          above.
 *  finish  a block a row. The cut in the list, the draw over the list, log-probabilities. If the list ran over or the cut isn't in it, the
 *          same code runs over the whole row: slow, rare, and the same numbers.
 *
 * Sums are of integers and lists are searched by (logit, id), so that no order of blocks or threads matters. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sample_finish.cuh"

namespace
{

/* ---- scan */

struct scan_space {
    float4 x[kPiece / 4];
    uint32_t mass[kBins];
    float warps[32];
    int first, n_allowed, bad, noise; /* noise: as a signed key, of one of the largest */
};
struct join_space {
    select_space select;
    double values[32];
    int ids[32];
    float warps[32];
};

__device__ __forceinline__ int bin_of(float x, float bins)
{
    return __float_as_int(fmaxf(__fmaf_rn(x, bins, kBinMagic), 8388608.0f)) - 0x4B400000;
}

/* The smallest logit of a bin. */
__device__ float bin_edge(int bin, float bins)
{
    float x = ((float)bin - 0.5f) / bins;
    while (bin_of(x, bins) >= bin)
        x = nextafterf(x, -INFINITY);
    while (bin_of(x, bins) < bin)
        x = nextafterf(x, INFINITY);
    return x;
}

/* Mass by distance from the largest logit of the piece, in 2^-19 of its weight: at most 2^13 of them. */
__device__ void scan_mass(scan_space &s, float max, float per_nat, int top)
{
    float bins = per_nat * kBinsPerNat, scale = per_nat * 1.44269504f;
#pragma unroll 1
    for (int j = 0; j < kVecs; j++) {
        float4 v = s.x[j * kThreads + threadIdx.x];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float x = at4(v, c);
            uint32_t w = __float_as_uint(__fmaf_rn(exp2_near((x - max) * scale), 524287.0f, 8388608.0f)) & 0x7FFFFF;
            int b = top - bin_of(x, bins);
            if (b < kBins && w)
                atomicAdd(&s.mass[b], w);
        }
    }
}

/* Largest logits of the threads of all pieces: k of them reach what this returns, so k tokens do. 20 bits are near enough. */
__device__ float group_bound(select_space &s, const float *groups, int n, u64 k)
{
    u64 rest;
    if (k > (u64)n)
        return -FLT_MAX;
    uint32_t low = block_select<kJoinThreads>(s, n, k, 0, 0xFFFFF, &rest,
                                              [&](int i, uint32_t *key) -> u64 {
                                                  *key = order_key(__ldcg(groups + i)) >> 12;
                                                  return 1;
                                              })
                   << 12;
    return low < order_key(-FLT_MAX) ? -FLT_MAX : order_value(low);
}

/* The window of bins in which the top-p cut lies, by approximate masses. */
__device__ void join_mass(const job &j, double *warps, state &st, const di_cuda_sample_row &r, int row)
{
    const piece *pieces = j.s.pieces + (size_t)row * j.pieces;
    float bins = (float)(1.0 / r.temperature) * kBinsPerNat;
    __shared__ int window[2];
    int top = bin_of(st.max, bins);
    constexpr int kMaxPieces = (DI_CUDA_SAMPLE_MAX_VOCAB + kPiece) / kPiece;
    __shared__ double scale[kMaxPieces];
    __shared__ int shift[kMaxPieces];
    if (threadIdx.x < j.pieces) {
        float max = __ldcg(&pieces[threadIdx.x].max);
        bool any = max > -INFINITY;
        scale[threadIdx.x] = any ? (double)exp2_near((float)(((double)max - (double)st.max) / r.temperature) * 1.44269504f) : 0;
        shift[threadIdx.x] = any ? top - __ldcg(j.s.mass_top + (size_t)row * j.pieces + threadIdx.x) : kNoBin;
    }
    __syncthreads();
    double own[2] = {0, 0}, off = 0;
#pragma unroll 4
    for (int p = 0; p < j.pieces; p++) {
        off += scale[p] * 0.55 * kPiece;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int b = threadIdx.x * 2 + k - shift[p];
            if (b >= 0 && b < kBins)
                own[k] += scale[p] * (double)__ldcg(j.s.mass + ((size_t)row * j.pieces + p) * kBins + b);
        }
    }
    double sum = own[0] + own[1], before = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        double o = __shfl_up_sync(~0u, before, d);
        if (threadIdx.x % 32 >= d)
            before += o;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31)
        warps[threadIdx.x / 32] = before;
    __syncthreads();
    before -= sum;
    double total = 0;
    for (int w = 0; w < kJoinThreads / 32; w++) {
        if (w < (int)threadIdx.x / 32)
            before += warps[w];
        total += warps[w];
    }
    if (threadIdx.x == 0)
        window[0] = window[1] = kNoBin;
    __syncthreads();
    double target = r.top_p * total;
    off += 2e-5 * total;
    for (int k = 0; k < 2; k++) {
        double next = before + own[k];
        int b = threadIdx.x * 2 + k;
        if (next >= target - off && before < target - off)
            window[0] = b;
        if (next >= target + off && before < target + off)
            window[1] = b;
        before = next;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int from = target - off <= 0 ? 0 : window[0];
        if (from == kNoBin)
            st.flags |= WHOLE_ROW;
        st.keep = from == 0 ? INFINITY : bin_edge(top - from + 1, bins);
        st.list_low = window[1] == kNoBin ? -FLT_MAX : bin_edge(top - window[1], bins);
    }
}

/* What the pieces of a row say, together; by a warp. */
__device__ void join_pieces(const job &j, state &st, const di_cuda_sample_row &r, const piece *pieces)
{
    float max = -INFINITY, raw = -INFINITY;
    int first = INT_MAX, n = 0, bad = INT_MAX;
    for (int p = threadIdx.x; p < j.pieces; p += 32) {
        const piece *q = pieces + p;
        if (__ldcg(&q->max) > max)
            max = __ldcg(&q->max), first = __ldcg(&q->first);
        raw = fmaxf(raw, __ldcg(&q->raw_max));
        n += __ldcg(&q->n_allowed);
        bad = min(bad, __ldcg(&q->bad));
    }
    float all = warp_max(max);
    first = __reduce_min_sync(~0u, max == all ? first : INT_MAX);
    n = __reduce_add_sync(~0u, n), bad = __reduce_min_sync(~0u, bad);
    raw = warp_max(raw);
    if (threadIdx.x == 0) {
        st.max = all, st.raw_max = raw, st.first = first, st.n_allowed = n, st.bad = bad;
        st.status = bad != INT_MAX ? DI_CUDA_SAMPLE_NOT_FINITE : r.forced < 0 && n == 0 ? DI_CUDA_SAMPLE_ALL_BANNED : DI_CUDA_SAMPLE_OK;
        st.id = r.forced >= 0 ? r.forced : first;
        st.flags = 0;
        st.n_list = st.n_report = 0;
        st.total = st.above = st.raw_sum = 0;
    }
}

/* The draw over all ids of a row: where a warp had more near values than it can hand on. Rare. */
__device__ __noinline__ int draw_all(const job &j, join_space &s, const state &st, const di_cuda_sample_row &r)
{
    law l = make_law(st.max, r.temperature);
    source src = {&r, r.edited ? r.edited : r.logits, NULL, j.a.vocab};
    float per_nat = (float)(1.0 / r.temperature), best_near = -INFINITY;
    auto near = [&](int i) { return (src.get(i) - st.max) * per_nat + gumbel_near(noise_word(r.key, r.position, i)); };
    for (int i = threadIdx.x; i < src.n; i += kJoinThreads)
        best_near = fmaxf(best_near, near(i));
    float from = block_max<kJoinThreads>(best_near, s.warps) - kNear;
    double best = -INFINITY;
    int id = INT_MAX;
    for (int i = threadIdx.x; i < src.n; i += kJoinThreads) {
        if (near(i) < from)
            continue;
        double v = exact_value(r, l, src.get(i), i);
        if (is_better(v, i, best, id))
            best = v, id = i;
    }
    return block_best<kJoinThreads>(best, id, s.values, s.ids);
}

/* Ids that the scan's draw handed on to a thread, with their logits. */
constexpr int kOwn = ((DI_CUDA_SAMPLE_MAX_VOCAB + kPiece) / kPiece * kCandidates + kJoinThreads - 1) / kJoinThreads;
struct handed_on {
    int id[kOwn];
    float x[kOwn];
};
__device__ void join_draw(const job &j, join_space &s, state &st, const di_cuda_sample_row &r, const handed_on &own)
{
    law l = make_law(st.max, r.temperature);
    double best = -INFINITY;
    int id = INT_MAX;
    bool lost = false;
#pragma unroll
    for (int k = 0; k < kOwn; k++) {
        lost |= own.id[k] == -2;
        if (own.id[k] < 0)
            continue;
        double v = exact_value(r, l, own.x[k], own.id[k]);
        if (is_better(v, own.id[k], best, id))
            best = v, id = own.id[k];
    }
    id = block_best<kJoinThreads>(best, id, s.values, s.ids);
    if (__syncthreads_or(lost))
        id = draw_all(j, s, st, r);
    if (threadIdx.x == 0)
        st.id = id;
}

/* How a row is cut, by one thread. */
__device__ void choose_way(state &st, const di_cuda_sample_row &r, bool cut_k)
{
    st.flags |= FINISH;
    st.first_noise = first_noise(r, st.first);
    st.min_low = st.min_high = -INFINITY;
    if (r.min_p > 0) { /* weight >= share * 2^39, but for what rounding may do */
        double at = log((double)share_of(r.min_p, 1ull << kWeightBits)) - kWeightBits * kLn2, w = exp(-at) * 0x1p-38 + 1e-9;
        st.min_low = __double2float_rd((double)st.max + (at - w) * r.temperature);
        st.min_high = __double2float_ru((double)st.max + (at + w) * r.temperature);
    }
    bool short_list = r.top_k > 0 && !cut_k && st.n_allowed <= kList; /* as with a grammar's mask */
    st.list_low = -FLT_MAX, st.keep = INFINITY;
    if (cut_k ? r.top_k > kMaxGroupK : r.top_k > 0 && r.top_p < 1 && !short_list)
        st.flags |= WHOLE_ROW;
    else if (cut_k || short_list)
        st.flags |= WEIGH_ABOVE;
    else if (r.top_p < 1)
        st.flags |= WEIGH_BINS | (fmaxf(fabsf(st.max), 1.0f) * kBinsPerNat / r.temperature > 2e6 ? WHOLE_ROW : 0);
    else
        st.flags |= WEIGH_DRAW, st.keep = -FLT_MAX, st.list_low = fmaxf(st.min_low, -FLT_MAX);
}

/* Puts the pieces of a row together. */
__device__ void join_row(const job &j, join_space &s, state &st, const di_cuda_sample_row &r, int row)
{
    const piece *pieces = j.s.pieces + (size_t)row * j.pieces;
    handed_on own;
#pragma unroll
    for (int k = 0; k < kOwn; k++) { /* asked for before they are needed */
        int i = threadIdx.x + k * kJoinThreads;
        own.id[k] =
            i < j.pieces * kCandidates && r.forced < 0 && !may_cut(r) ? __ldcg(&pieces[i / kCandidates].candidate[i % kCandidates]) : -1;
        own.x[k] = own.id[k] >= 0 ? row_value(r, own.id[k]) : 0;
    }
    if (threadIdx.x < 32)
        join_pieces(j, st, r, pieces);
    __syncthreads();
    if (st.status != DI_CUDA_SAMPLE_OK)
        return;
    bool draws = r.forced < 0 && !is_greedy(r), cut_k = r.top_k > 0 && r.top_k < st.n_allowed;
    int n_groups = j.pieces * kThreads;
    if (draws && !may_cut(r)) {
        join_draw(j, s, st, r, own);
    } else if (draws) {
        if (threadIdx.x == 0)
            choose_way(st, r, cut_k);
        __syncthreads();
        if (cut_k && !(st.flags & WHOLE_ROW)) {
            float low = group_bound(s.select, j.s.groups + (size_t)row * n_groups, n_groups, (u64)r.top_k);
            if (threadIdx.x == 0)
                st.list_low = low;
        } else if ((st.flags & WEIGH_BINS) && !(st.flags & WHOLE_ROW)) {
            join_mass(j, s.values, st, r, row);
        }
    }
    if (r.logprobs) {
        bool edited = r.edited || r.banned || r.allowed;
        if (threadIdx.x == 0)
            st.flags |= WEIGH_RAW | FINISH | (!edited && r.temperature == 1.0 ? SAME_LAW : 0);
        if (r.n_top > 0) {
            float low = group_bound(s.select, j.s.raw_groups + (size_t)row * n_groups, n_groups, (u64)min(r.n_top, j.a.vocab));
            if (threadIdx.x == 0)
                st.report_low = low;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && (st.flags & WHOLE_ROW))
        st.flags &= ~(uint32_t)WEIGH_LAW;
}

/* Finite? And the largest of a thread's logits, and how many there are. */
struct thread_view {
    float max;
    int n, bad;
};
__device__ __forceinline__ thread_view view_piece(const float4 *x, int vocab, int piece, bool raw)
{
    thread_view v = {-INFINITY, 0, INT_MAX};
    float poison = 0;
    bool inside = id_of(piece, kVecs - 1) + 4 <= vocab;
    if (raw && inside) {
#pragma unroll
        for (int j = 0; j < kVecs; j++) {
            float4 f = x[j * kThreads + threadIdx.x];
            v.max = fmaxf(v.max, largest(f));
            poison = __fmaf_rn(f.x, 0.0f, poison), poison = __fmaf_rn(f.y, 0.0f, poison);
            poison = __fmaf_rn(f.z, 0.0f, poison), poison = __fmaf_rn(f.w, 0.0f, poison);
        }
        v.n = 4 * kVecs;
        if (poison == 0)
            return v;
    }
    v = {-INFINITY, 0, INT_MAX};
#pragma unroll 1
    for (int j = kVecs - 1; j >= 0; j--) {
        float4 f = x[j * kThreads + threadIdx.x];
        v.max = fmaxf(v.max, largest(f));
        for (int c = 3; c >= 0; c--) {
            v.n += at4(f, c) > -INFINITY;
            if (raw && id_of(piece, j) + c < vocab && !isfinite(at4(f, c)))
                v.bad = id_of(piece, j) + c;
        }
    }
    return v;
}

__global__ void __launch_bounds__(kThreads, 6) scan_kernel(const __grid_constant__ job j)
{
    extern __shared__ __align__(16) char shared[];
    scan_space &s = *(scan_space *)shared;
    grid_wait();
    int row = blockIdx.y, p = blockIdx.x, vocab = j.a.vocab;
    const di_cuda_sample_row &r = j.a.rows[row];
    size_t slot = (size_t)row * j.pieces + p;
    piece *out = j.s.pieces + slot;
    bool draws = r.forced < 0 && !is_greedy(r), cuts = may_cut(r), edited = r.forced < 0 && r.edited,
         masked = r.forced < 0 && (r.banned || r.allowed);
    grid_launch_next();
    if (r.forced >= 0 && !r.logprobs)
        return;
    load_piece(r.logits, vocab, p, s.x);
    if (threadIdx.x == 0)
        s.first = INT_MAX, s.n_allowed = 0, s.bad = INT_MAX, s.noise = INT_MIN;
    if (draws && r.top_p < 1)
        for (int i = threadIdx.x; i < kBins; i += kThreads)
            s.mass[i] = 0;
    thread_view view = view_piece(s.x, vocab, p, true);
    if (r.logprobs && r.n_top > 0)
        j.s.raw_groups[slot * kThreads + threadIdx.x] = view.max;
    int bad = view.bad;
    float max = block_max<kThreads>(view.max, s.warps), raw_max = max; /* a barrier for the numbers above, too */
    if (bad != INT_MAX)
        atomicMin(&s.bad, bad);
    if (edited || masked) {
        if (edited)
            load_piece(r.edited, vocab, p, s.x);
        if (masked)
            mask_piece(r, vocab, p, s.x);
        view = view_piece(s.x, vocab, p, false);
        max = block_max<kThreads>(view.max, s.warps);
    }
    if (r.top_k > 0)
        j.s.groups[slot * kThreads + threadIdx.x] = view.max;
    if (view.max == max && max > -INFINITY) {
        int first = INT_MAX;
#pragma unroll 1
        for (int k = kVecs - 1; k >= 0; k--) {
            float4 x = s.x[k * kThreads + threadIdx.x];
            for (int c = 3; c >= 0; c--)
                first = at4(x, c) == max ? id_of(p, k) + c : first;
        }
        atomicMin(&s.first, first);
        if (draws && !cuts)
            atomicMax(&s.noise, signed_key(gumbel_near(noise_word(r.key, r.position, first)) - kNear));
    }
    int allowed = __reduce_add_sync(~0u, view.n);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&s.n_allowed, allowed);
    __syncthreads();
    float per_nat = (float)(1.0 / r.temperature);
    if (draws && !cuts && max > -INFINITY && s.bad == INT_MAX) {
        draw_law l = {max, (float)r.temperature, per_nat, (uint32_t)r.key, (uint32_t)(r.key >> 32), r.position};
        float bound = signed_value(s.noise);
        draw_hand_on(draw_piece(s.x, vocab, p, l, bound), bound, out->candidate);
    } else {
        draw_nothing(out->candidate);
    }
    if (draws && r.top_p < 1 && r.top_k <= 0 && max > -INFINITY) {
        int top = bin_of(max, per_nat * kBinsPerNat);
        scan_mass(s, max, per_nat, top);
        __syncthreads();
        for (int i = threadIdx.x; i < kBins; i += kThreads)
            j.s.mass[slot * kBins + i] = s.mass[i];
        if (threadIdx.x == 0)
            j.s.mass_top[slot] = top;
    }
    if (threadIdx.x == 0)
        out->max = max, out->raw_max = raw_max, out->first = s.first, out->n_allowed = s.n_allowed, out->bad = s.bad;
}

__global__ void __launch_bounds__(kJoinThreads) join_kernel(const __grid_constant__ job j)
{
    __shared__ join_space s;
    __shared__ state st;
    grid_wait();
    int row = blockIdx.x;
    const di_cuda_sample_row &r = j.a.rows[row];
    grid_launch_next();
    if (r.forced >= 0 && !r.logprobs) {
        if (threadIdx.x == 0)
            st.flags = 0, st.status = DI_CUDA_SAMPLE_OK, st.id = r.forced;
    } else {
        join_row(j, s, st, r, row);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        j.s.states[row] = st;
        if (!(st.flags & FINISH))
            write_result(j, row, st);
    }
}

/* ---- weigh */

struct weigh_space {
    float4 x[kPiece / 4];
    u64 sums[32];
};

/* A place in a list for every lane that has something; past the end nothing is stored, the count says so. */
__device__ __forceinline__ void append(bool has, float x, int id, entry *list, int room, uint32_t *count)
{
    uint32_t lanes = __ballot_sync(~0u, has), at = 0;
    if (lanes == 0)
        return;
    int leader = __ffs(lanes) - 1;
    if ((int)(threadIdx.x % 32) == leader)
        at = atomicAdd(count, __popc(lanes));
    at = __shfl_sync(~0u, at, leader) + __popc(lanes & ((1u << threadIdx.x % 32) - 1));
    if (has && at < (uint32_t)room)
        list[at] = {x, id};
}

struct weigh_sums {
    u64 all, above;
};
/* Sums of the weights of the thread's logits: all, and those from `keep` on. */
template <bool kUnit, bool kAbove> __device__ __forceinline__ weigh_sums weigh_piece(const float4 *x, const law &l, float keep)
{
    weigh_sums sum = {0, 0};
    uint32_t n_above = 0;
#pragma unroll 1
    for (int j = 0; j < kVecs; j++) {
        float4 v = x[j * kThreads + threadIdx.x];
        u64 w[4];
        uint32_t doubt[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            w[c] = weight_fast<kUnit>(l, at4(v, c), &doubt[c]);
        if (__any_sync(~0u, doubt[0] | doubt[1] | doubt[2] | doubt[3])) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (doubt[c])
                    w[c] = weight_exact(at4(v, c), l.max, l.t) + kWeightBias;
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum.all += w[c];
            if (kAbove && at4(v, c) >= keep)
                sum.above += w[c], n_above++;
        }
    }
    return {sum.all - 4 * kVecs * kWeightBias, sum.above - n_above * kWeightBias};
}
__device__ weigh_sums weigh_coarse(const float4 *x, const law &l, float keep)
{
    weigh_sums sum = {0, 0};
    for (int i = threadIdx.x * 4; i < kPiece; i += i % 4 == 3 ? kThreads * 4 - 3 : 1) {
        float v = at4(x[i / 4], i % 4);
        u64 w = v > -INFINITY ? weight_exact(v, l.max, l.t) : 0;
        sum.all += w;
        sum.above += v >= keep ? w : 0;
    }
    return sum;
}
template <bool kAbove> __device__ weigh_sums weigh_any(const float4 *x, const law &l, float keep)
{
    if (l.coarse)
        return weigh_coarse(x, l, keep);
    return l.unit ? weigh_piece<true, kAbove>(x, l, keep) : weigh_piece<false, kAbove>(x, l, keep);
}

/* The piece's part of what log-probabilities need. */
__device__ void weigh_raw(const job &j, weigh_space &s, state &st, const di_cuda_sample_row &r, int row, int p, bool summed)
{
    if (!summed) {
        u64 all = block_sum<kThreads>(weigh_any<false>(s.x, make_law(st.raw_max, 1.0), 0).all, s.sums);
        if (threadIdx.x == 0)
            atomicAdd(&st.raw_sum, all);
    }
    float low = st.report_low;
#pragma unroll 1
    for (int k = 0; r.n_top > 0 && k < kVecs; k++) {
        float4 x = s.x[k * kThreads + threadIdx.x];
        if (!__any_sync(~0u, largest(x) >= low))
            continue;
        for (int c = 0; c < 4; c++)
            append(at4(x, c) >= low, at4(x, c), id_of(p, k) + c, j.s.report + (size_t)row * kReport, kReport, &st.n_report);
    }
}

/* Puts what has to be looked at exactly on the row's list, and leaves only what is kept for certain. Is there any of that? */
__device__ __forceinline__ bool list_piece(float4 *x, state &st, entry *list, int p)
{
    /* kept: from `keep` and `min_high` on; listed: from `low` on, unless it is kept, or lies between and is surely excluded by min_p */
    float keep = st.keep, low = st.list_low, kept = fmaxf(keep, st.min_high), sure = fmaxf(low, st.min_low);
    auto listed = [&](float v) { return v >= low && v < kept && (v < keep || v >= sure); };
    bool any = false;
    int n = 0;
#pragma unroll 2
    for (int k = 0; k < kVecs; k++) {
        float4 v = x[k * kThreads + threadIdx.x];
        any |= largest(v) >= kept;
        n += listed(v.x), n += listed(v.y), n += listed(v.z), n += listed(v.w);
    }
    int at = n, first = 0;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int o = __shfl_up_sync(~0u, at, d);
        at += threadIdx.x % 32 >= d ? o : 0;
    }
    if (threadIdx.x % 32 == 31 && at > 0)
        first = (int)atomicAdd(&st.n_list, (uint32_t)at);
    at += __shfl_sync(~0u, first, 31) - n;
#pragma unroll 2
    for (int k = 0; k < kVecs; k++) {
        float4 v = x[k * kThreads + threadIdx.x];
        if (n > 0) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (listed(at4(v, c))) {
                    if (at < kList)
                        list[at] = {at4(v, c), id_of(p, k) + c};
                    at++;
                }
        }
        v.x = v.x >= kept ? v.x : -INFINITY, v.y = v.y >= kept ? v.y : -INFINITY;
        v.z = v.z >= kept ? v.z : -INFINITY, v.w = v.w >= kept ? v.w : -INFINITY;
        x[k * kThreads + threadIdx.x] = v;
    }
    return __syncthreads_or(any);
}

__global__ void __launch_bounds__(kThreads, 6) weigh_kernel(const __grid_constant__ job j)
{
    extern __shared__ __align__(16) char shared[];
    weigh_space &s = *(weigh_space *)shared;
    grid_wait();
    int row = j.a.m - 1 - (int)blockIdx.y, p = blockIdx.x, vocab = j.a.vocab; /* the rows read last may still be in the cache */
    const di_cuda_sample_row &r = j.a.rows[row];
    state &st = j.s.states[row];
    uint32_t flags = __ldcg(&st.flags);
    piece *out = j.s.pieces + (size_t)row * j.pieces + p;
    grid_launch_next();
    if (__ldcg(&st.status) != DI_CUDA_SAMPLE_OK || !(flags & (WEIGH_RAW | WEIGH_LAW)))
        return;
    load_piece(r.logits, vocab, p, s.x);
    bool same = (flags & SAME_LAW) && (flags & WEIGH_BINS);
    if (flags & WEIGH_RAW)
        weigh_raw(j, s, st, r, row, p, same);
    if (!(flags & WEIGH_LAW))
        return;
    if (r.edited)
        load_piece(r.edited, vocab, p, s.x);
    if (r.banned || r.allowed)
        mask_piece(r, vocab, p, s.x);
    if (flags & WEIGH_BINS) {
        weigh_sums sum = weigh_any<true>(s.x, make_law(st.max, r.temperature), st.keep);
        u64 all = block_sum<kThreads>(sum.all, s.sums), above = block_sum<kThreads>(sum.above, s.sums);
        if (threadIdx.x == 0) {
            atomicAdd(&st.total, all);
            atomicAdd(&st.above, above);
            if (same)
                atomicAdd(&st.raw_sum, all);
        }
    }
    if (!list_piece(s.x, st, j.s.list + (size_t)row * kList, p)) {
        draw_nothing(out->candidate);
        return;
    }
    draw_law l = {st.max, (float)r.temperature, (float)(1.0 / r.temperature), (uint32_t)r.key, (uint32_t)(r.key >> 32), r.position};
    float bound = st.first_noise;
    draw_hand_on(draw_piece(s.x, vocab, p, l, bound), bound, out->candidate);
}

/* ---- edits, as di_row_edit does them */

__device__ float to_logit(double x)
{
    return (x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : __double2float_rn(x)) + 0.0f;
}

__global__ void __launch_bounds__(1024) edit_kernel(const __grid_constant__ job j)
{
    grid_wait();
    const di_cuda_sample_row &r = j.a.rows[blockIdx.x];
    float *x = r.edited;
    if (!x || r.forced >= 0)
        return;
    for (int i = threadIdx.x; i < j.a.vocab; i += 1024)
        x[i] = __ldcg(r.logits + i) + 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < r.n_bias; i += 1024) { /* the first of equal ids does all of them, in order */
        int id = r.edits[i].id;
        bool first = true;
        for (int k = 0; k < i && first; k++)
            first = r.edits[k].id != id;
        if (!first)
            continue;
        float v = x[id];
        for (int k = i; k < r.n_bias; k++)
            if (r.edits[k].id == id)
                v = to_logit(__dadd_rn((double)v, (double)r.edits[k].bias));
        x[id] = v;
    }
    __syncthreads();
    for (int i = r.n_bias + threadIdx.x; i < r.n_bias + r.n_counts; i += 1024) {
        int id = r.edits[i].id;
        uint32_t count = r.edits[i].count;
        double v = x[id];
        v = v > 0 ? __ddiv_rn(v, r.repetition) : __dmul_rn(v, r.repetition);
        if (count)
            v = __dsub_rn(__dsub_rn(v, r.presence), __dmul_rn(r.frequency, (double)count));
        x[id] = to_logit(v);
    }
    __syncthreads();
    for (int i = r.n_bias + r.n_counts + threadIdx.x; i < r.n_bias + r.n_counts + r.n_end; i += 1024)
        x[r.edits[i].id] = -INFINITY;
}

} // namespace

extern "C" uint32_t di_cuda_sample_phases(const struct di_cuda_sample_row *r)
{
    bool draws = r->forced < 0 && !is_greedy(*r);
    return (r->edited ? DI_CUDA_SAMPLE_EDITS : 0u) | (r->logprobs || (draws && may_cut(*r)) ? DI_CUDA_SAMPLE_SECOND : 0u);
}

extern "C" size_t di_cuda_sample_scratch_bytes(int max_rows, int vocab)
{
    scratch s;
    return place_scratch(NULL, max_rows, vocab, &s);
}

extern "C" int di_cuda_sample(const struct di_cuda_sample *a, struct CUstream_st *stream)
{
    if (a->m < 1 || a->vocab < 1 || a->vocab > DI_CUDA_SAMPLE_MAX_VOCAB)
        return cudaErrorInvalidValue;
    job j = {*a, {}, (a->vocab + kPiece - 1) / kPiece};
    place_scratch(a->scratch, a->m, a->vocab, &j.s);
    cudaError_t err = cudaSuccess;
    if (a->phases & DI_CUDA_SAMPLE_EDITS)
        err = launch_kernel(edit_kernel, dim3((unsigned)a->m), 1024, 0, stream, j);
    dim3 grid((unsigned)j.pieces, (unsigned)a->m);
    if (err == cudaSuccess)
        err = launch_kernel(scan_kernel, grid, kThreads, sizeof(scan_space), stream, j);
    if (err == cudaSuccess)
        err = launch_kernel(join_kernel, dim3((unsigned)a->m), kJoinThreads, 0, stream, j);
    if (err == cudaSuccess && (a->phases & DI_CUDA_SAMPLE_SECOND))
        err = launch_kernel(weigh_kernel, grid, kThreads, sizeof(weigh_space), stream, j);
    if (err == cudaSuccess && (a->phases & DI_CUDA_SAMPLE_SECOND))
        err = launch_kernel(finish_kernel, dim3((unsigned)a->m), kFinishThreads, sizeof(finish_space), stream, j);
    return err;
}
