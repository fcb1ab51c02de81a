/* The last kernel of sample.cu: a row a block. */
#ifndef DI_BACKEND_CUDA_SAMPLE_FINISH_CUH
#define DI_BACKEND_CUDA_SAMPLE_FINISH_CUH

#include "backend/cuda/sample_row.cuh"

namespace
{

struct finish_space {
    select_space select;
    float x[kList];
    int id[kList];
    float near[kList];
    u64 weight[kList];
    double values[32];
    int ids[32];
    float warps[32];
    u64 sums[32];
    entry top[DI_CUDA_SAMPLE_MAX_TOP];
    int n_top;
};

struct cut {
    float x;
    int last;
    __device__ __forceinline__ bool has(float v, int id) const
    {
        return v > x || (v == x && id <= last);
    }
};

/* Tokens equal to x that are kept: the `count` lowest ids. Returns the last one, or INT_MAX for all. */
__device__ int last_equal(finish_space &s, const source &src, float x, u64 count)
{
    u64 rest, all = 0;
    for (int i = threadIdx.x; i < src.n; i += kFinishThreads)
        all += src.get(i) == x;
    if (block_sum<kFinishThreads>(all, s.sums) == count)
        return INT_MAX;
    uint32_t key = block_select<kFinishThreads>(s.select, src.n, count, 0x80000000u, ~0u, &rest, [&](int i, uint32_t *k) -> u64 {
        *k = ~(uint32_t)src.id(i);
        return src.get(i) == x;
    });
    return (int)~key;
}

/* The cut of a row, false: the list does not hold it. */
__device__ bool find_cut(finish_space &s, const state &st, const di_cuda_sample_row &r, const law &l, const source &src, bool whole,
                         cut *out)
{
    bool bins = !whole && (st.flags & WEIGH_BINS);
    auto weight = [&](int i) { return whole ? weight_of(l, src.get(i)) : s.weight[i]; };
    float low = whole ? -FLT_MAX : st.list_low, high = bins ? fminf(st.keep, st.max) : st.max;
    cut c = {-FLT_MAX, INT_MAX};
    u64 rest;
    if (r.top_k > 0 && r.top_k < st.n_allowed) {
        uint32_t key = block_select<kFinishThreads>(s.select, src.n, (u64)r.top_k, order_key(low), order_key(high), &rest,
                                                    [&](int i, uint32_t *k) -> u64 {
                                                        float x = src.get(i);
                                                        *k = order_key(x);
                                                        return x > -INFINITY;
                                                    });
        c.x = order_value(key);
        c.last = last_equal(s, src, c.x, rest);
    }
    if (r.top_p < 1) {
        u64 mass = 0, above = bins ? st.above : 0;
        auto counts = [&](int i) {
            float x = src.get(i);
            return x >= low && c.has(x, src.id(i)) && (!bins || x < st.keep);
        };
        for (int i = threadIdx.x; i < src.n; i += kFinishThreads)
            if (counts(i))
                mass += weight(i);
        mass = block_sum<kFinishThreads>(mass, s.sums);
        u64 need = share_of(r.top_p, bins ? st.total : mass);
        if (need <= above || need > above + mass)
            return false;
        uint32_t key = block_select<kFinishThreads>(s.select, src.n, need - above, order_key(low), order_key(high), &rest,
                                                    [&](int i, uint32_t *k) -> u64 {
                                                        *k = order_key(src.get(i));
                                                        return counts(i) ? weight(i) : 0;
                                                    });
        c.x = order_value(key);
        u64 each = weight_of(l, c.x);
        c.last = last_equal(s, src, c.x, (rest + each - 1) / each);
    }
    *out = c;
    return true;
}

/* The token of a row whose law is cut, or -1: its list is no use. */
__device__ int finish_draw(finish_space &s, const job &j, const state &st, const di_cuda_sample_row &r, int row, bool whole)
{
    law l = make_law(st.max, r.temperature);
    source src = {&r, r.edited ? r.edited : r.logits, NULL, j.a.vocab};
    if (!whole) {
        if (st.n_list > kList)
            return -1;
        src = {&r, s.x, s.id, (int)st.n_list};
        for (int i = threadIdx.x; i < src.n; i += kFinishThreads) {
            float2 e = __ldcg((const float2 *)(j.s.list + (size_t)row * kList + i));
            s.x[i] = e.x + 0.0f, s.id[i] = __float_as_int(e.y);
            s.weight[i] = r.top_p < 1 || r.min_p > 0 ? weight_of(l, e.x) : 0;
        }
        __syncthreads();
    }
    cut c;
    if (!find_cut(s, st, r, l, src, whole, &c))
        return -1;
    u64 min_weight = r.min_p > 0 ? share_of(r.min_p, 1ull << kWeightBits) : 0;
    float per_nat = (float)(1.0 / r.temperature), best_near = st.first_noise;
    float limit = fmaxf(st.max + (best_near - kLargestGumbel - 0.1f) * (float)r.temperature, -FLT_MAX);
    /* near enough, or -INFINITY: not in the support, or without a chance */
    auto near = [&](int i) {
        float x = src.get(i);
        if (x < limit || !c.has(x, src.id(i)) || (min_weight && (whole ? weight_of(l, x) : s.weight[i]) < min_weight))
            return -INFINITY;
        return (x - st.max) * per_nat + gumbel_near(noise_word(r.key, r.position, src.id(i)));
    };
    for (int i = threadIdx.x; i < src.n; i += kFinishThreads) {
        float v = near(i);
        best_near = fmaxf(best_near, v);
        if (!whole)
            s.near[i] = v; /* the same thread will look */
    }
    float from = block_max<kFinishThreads>(best_near, s.warps) - kNear;
    double best = -INFINITY;
    int id = INT_MAX;
    auto try_id = [&](float x, int candidate) {
        double v = exact_value(r, l, x, candidate);
        if (is_better(v, candidate, best, id))
            best = v, id = candidate;
    };
    for (int i = threadIdx.x; i < src.n; i += kFinishThreads)
        if ((whole ? near(i) : s.near[i]) >= from)
            try_id(src.get(i), src.id(i));
    bool lost = false;
    if (!whole)
        for (int i = threadIdx.x; i < j.pieces * kCandidates; i += kFinishThreads) {
            int candidate = __ldcg(&j.s.pieces[(size_t)row * j.pieces + i / kCandidates].candidate[i % kCandidates]);
            lost |= candidate == -2;
            if (candidate >= 0)
                try_id(row_value(r, candidate), candidate);
        }
    id = block_best<kFinishThreads>(best, id, s.values, s.ids);
    return __syncthreads_or(lost) ? -1 : id;
}

/* The first tokens of the raw row, in order, to s.top. */
__device__ void finish_top(finish_space &s, const job &j, const state &st, const di_cuda_sample_row &r, int row, int n)
{
    di_cuda_sample_row plain = r;
    plain.allowed = plain.banned = NULL;
    source src = {&plain, r.logits, NULL, j.a.vocab};
    cut c = {-FLT_MAX, INT_MAX};
    __syncthreads();
    if (threadIdx.x == 0)
        s.n_top = 0;
    __syncthreads();
    if (st.n_report <= kReport) {
        src = {&plain, s.x, s.id, (int)st.n_report};
        for (int i = threadIdx.x; i < src.n; i += kFinishThreads) {
            float2 raw = __ldcg((const float2 *)(j.s.report + (size_t)row * kReport + i));
            s.x[i] = raw.x + 0.0f, s.id[i] = __float_as_int(raw.y);
        }
        __syncthreads();
    } else {
        u64 rest;
        uint32_t key =
            block_select<kFinishThreads>(s.select, src.n, (u64)n, 0, order_key(st.raw_max), &rest, [&](int i, uint32_t *k) -> u64 {
                *k = order_key(src.get(i));
                return 1;
            });
        c.x = order_value(key);
        c.last = last_equal(s, src, c.x, rest);
        for (int i = threadIdx.x; i < src.n; i += kFinishThreads)
            if (c.has(src.get(i), i)) {
                int at = atomicAdd(&s.n_top, 1);
                s.x[at] = src.get(i), s.id[at] = i;
            }
        __syncthreads();
        src = {&plain, s.x, s.id, n};
    }
    for (int i = threadIdx.x; i < src.n; i += kFinishThreads) {
        float x = s.x[i];
        int id = s.id[i], rank = 0;
        for (int o = 0; o < src.n; o++)
            rank += s.x[o] > x || (s.x[o] == x && s.id[o] < id);
        if (rank < n)
            s.top[rank] = {x, id};
    }
    __syncthreads();
}

__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ job j)
{
    extern __shared__ __align__(16) char shared[];
    finish_space &s = *(finish_space *)shared;
    grid_wait();
    int row = blockIdx.x;
    const di_cuda_sample_row &r = j.a.rows[row];
    const state st = j.s.states[row];
    grid_launch_next();
    if (!(st.flags & FINISH) || st.status != DI_CUDA_SAMPLE_OK)
        return;
    int id = st.id;
    if (st.flags & (WEIGH_LAW | WHOLE_ROW)) {
        id = st.flags & WHOLE_ROW ? -1 : finish_draw(s, j, st, r, row, false);
        if (id < 0)
            id = finish_draw(s, j, st, r, row, true);
    }
    int n = 0;
    if (r.logprobs && r.n_top > 0) {
        n = min(r.n_top, j.a.vocab);
        finish_top(s, j, st, r, row, n);
    }
    if (threadIdx.x == 0) {
        state done = st;
        done.id = id;
        write_result(j, row, done);
    }
    __syncthreads();
    if (!r.logprobs || (int)threadIdx.x > n)
        return;
    double log_sum = __dsub_rn(__dadd_rn((double)st.raw_max, portable_log((double)st.raw_sum)), kWeightBits * kLn2);
    di_cuda_sample_result *out = j.a.results + row;
    int i = (int)threadIdx.x - 1;
    double x = i < 0 ? (double)r.logits[id] : (double)s.top[i].x;
    float value = (float)__dsub_rn(x, log_sum);
    if (i < 0)
        out->logprob = value, out->n_top = n;
    else
        out->top[i].id = s.top[i].id, out->top[i].logprob = value;
}

} // namespace

#endif
