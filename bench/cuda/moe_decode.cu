/* Routed FP4 experts in decode: 384 experts of full size, uniform, Zipf and one-hot routing. */
#include "lab.h"

#include "backend/cuda/kernels.h"

#include <algorithm>
#include <cmath>
#include <set>

static const int D = 5120, F = 2304, E = 384, TOPK = 6;
static const float LIMIT = 10;

struct experts { /* checkpoint bytes on the device, and packed */
    uint8_t *w1, *s1, *w3, *s3, *w2, *s2, *packed13, *packed2;
};
static const size_t CODES = (size_t)D * F / 2, SCALES = (size_t)D * F / 32;

static std::vector<int32_t> route(int m, int experts, int k, const char *kind, lab_rng &rng)
{
    std::vector<int32_t> ids;
    std::vector<double> cumulative(experts);
    for (int e = 0; e < experts; e++)
        cumulative[e] = (e ? cumulative[e - 1] : 0) + (kind[0] == 'z' ? 1.0 / (e + 1) : 1.0);
    for (int i = 0; i < m; i++) {
        std::set<int32_t> row;
        if (kind[0] == 'h')
            row.insert(17 % experts);
        while ((int)row.size() < k)
            row.insert((int32_t)(std::lower_bound(cumulative.begin(), cumulative.end(), rng.uniform() * cumulative[experts - 1]) -
                                 cumulative.begin()));
        ids.insert(ids.end(), row.begin(), row.end());
    }
    return ids;
}

static double fp4_dot(const uint8_t *codes, const uint8_t *scales, const float *x, int k)
{
    double sum = 0;
    for (int b = 0; b < k / 32; b++) {
        double part = 0;
        for (int i = 0; i < 32; i += 2) {
            uint8_t byte = codes[b * 16 + i / 2];
            part += (double)di_e2m1_value[byte & 15] * x[b * 32 + i] + (double)di_e2m1_value[byte >> 4] * x[b * 32 + i + 1];
        }
        sum += part * di_e8m0_value(scales[b]);
    }
    return sum;
}

/* One slot in fp64 with the roundings of spec/model.md §5.8. w: host bytes of the expert, in the order w1 s1 w3 s3 w2 s2. */
static void reference(int D, int F, const std::vector<uint8_t> *w, const float *x, float weight, float *y)
{
    std::vector<float> h(F);
    lab_parallel(F, [&](int f) {
        float g = lab_round_bf16((float)fp4_dot(&w[0][(size_t)f * D / 2], &w[1][(size_t)f * D / 32], x, D));
        float u = lab_round_bf16((float)fp4_dot(&w[2][(size_t)f * D / 2], &w[3][(size_t)f * D / 32], x, D));
        g = std::fmin(g, LIMIT), u = std::fmin(std::fmax(u, -LIMIT), LIMIT);
        h[f] = lab_round_bf16(weight * (g / (1 + std::exp(-g)) * u));
    });
    di_q8_round(h.data(), F, h.data());
    lab_parallel(D,
                 [&](int c) { y[c] = lab_round_bf16((float)fp4_dot(&w[4][(size_t)c * F / 2], &w[5][(size_t)c * F / 32], h.data(), F)); });
}

static std::vector<uint8_t> download(const uint8_t *p, size_t n)
{
    return lab_download(p, n);
}

/* Shapes that full size does not have: few experts, few units, odd numbers of rows; every slot compared. */
static void check_small(int d, int f, int n_experts, int k)
{
    struct di_cuda_moe_shape shape = {d, f, n_experts};
    size_t codes = (size_t)d * f / 2, scales = codes / 16, b13 = di_cuda_moe_bytes13(&shape), b2 = di_cuda_moe_bytes2(&shape);
    uint8_t *c = lab_alloc<uint8_t>(3 * codes * n_experts), *s = lab_alloc<uint8_t>(3 * scales * n_experts);
    uint8_t *p13 = lab_alloc<uint8_t>(b13 * n_experts), *p2 = lab_alloc<uint8_t>(b2 * n_experts);
    uint32_t *bad = lab_alloc<uint32_t>(1), *counters = lab_alloc<uint32_t>(DI_CUDA_MOE_COUNTERS);
    lab_random_bytes(c, 3 * codes * n_experts, 5), lab_random_range(s, 3 * scales * n_experts, 119, 124, 6);
    LAB_CHECK(cudaMemset(bad, 0, 4));
    LAB_CHECK(cudaMemset(counters, 0, 4 * DI_CUDA_MOE_COUNTERS));
    for (int e = 0; e < n_experts; e++) {
        const uint8_t *ce = c + 3 * codes * e, *se = s + 3 * scales * e;
        struct di_cuda_moe_pack p = {shape,         ce,          se, ce + codes, se + scales, ce + 2 * codes, se + 2 * scales,
                                     p13 + e * b13, p2 + e * b2, bad};
        LAB_CHECK(di_cuda_moe_pack(&p, 0));
    }
    auto hc = lab_download(c, 3 * codes * n_experts), hs = lab_download(s, 3 * scales * n_experts);
    lab_rng rng = {(uint64_t)d * 7 + f};
    std::vector<uint16_t> x = lab_activations(64, d, true, rng);
    uint16_t *dx = lab_upload(x), *y = lab_alloc<uint16_t>((size_t)64 * k * d), *h = lab_alloc<uint16_t>((size_t)64 * k * f);
    for (int m : {1, 3, 9, 33, 64}) {
        auto ids = route(m, n_experts, k, "uniform", rng);
        std::vector<float> w(ids.size());
        for (auto &v : w)
            v = (float)(0.05 + 0.4 * rng.uniform());
        int32_t *dids = lab_upload(ids);
        float *dw = lab_upload(w);
        struct di_cuda_moe_decode a = {shape, m, k, LIMIT, dx, dids, dw, p13, p2, h, counters, y};
        lab_poison(y, (size_t)m * k * d * 2), lab_poison(h, (size_t)m * k * f * 2);
        LAB_CHECK(di_cuda_moe_decode(&a, 0));
        LAB_CHECK(cudaDeviceSynchronize());
        auto out = lab_download(y, (size_t)m * k * d);
        lab_norm norm;
        for (int slot = 0; slot < m * k; slot++) {
            std::vector<uint8_t> b[6];
            for (int q = 0; q < 3; q++) {
                size_t at = (size_t)ids[slot] * 3 + q;
                b[2 * q].assign(hc.begin() + at * codes, hc.begin() + (at + 1) * codes);
                b[2 * q + 1].assign(hs.begin() + at * scales, hs.begin() + (at + 1) * scales);
            }
            std::vector<float> in(d), ref(d);
            for (int i = 0; i < d; i++)
                in[i] = lab_f32(x[(size_t)(slot / k) * d + i]);
            reference(d, f, b, in.data(), w[slot], ref.data());
            for (int i = 0; i < d; i++)
                norm.add(lab_f32(out[(size_t)slot * d + i]), ref[i]);
        }
        lab_expect(norm.value() < 2e-3, "moe_decode %dx%d, %d experts, m %d: error %g", d, f, n_experts, m, norm.value());
        cudaFree(dids), cudaFree(dw);
    }
    lab_expect(lab_download(bad, 1)[0] == 0, "moe_decode %dx%d: scales refused", d, f);
    for (void *p : {(void *)c, (void *)s, (void *)p13, (void *)p2, (void *)bad, (void *)counters, (void *)dx, (void *)y, (void *)h})
        cudaFree(p);
}

void lab_moe_decode(void)
{
    if (!lab_once) {
        check_small(256, 96, 16, 3);
        check_small(32, 32, 2, 1);
        check_small(640, 1280, 5, 2);
    }
    if (lab_small)
        return;
    struct di_cuda_moe_shape shape = {D, F, E};
    size_t b13 = di_cuda_moe_bytes13(&shape), b2 = di_cuda_moe_bytes2(&shape);
    experts x;
    for (uint8_t **p : {&x.w1, &x.w3, &x.w2})
        *p = lab_alloc<uint8_t>(CODES * E), lab_random_bytes(*p, CODES * E, 11 + (p - &x.w1));
    for (uint8_t **p : {&x.s1, &x.s3, &x.s2})
        *p = lab_alloc<uint8_t>(SCALES * E), lab_random_range(*p, SCALES * E, 116, 121, 21 + (p - &x.w1));
    x.packed13 = lab_alloc<uint8_t>(b13 * E), x.packed2 = lab_alloc<uint8_t>(b2 * E);
    uint32_t *bad = lab_alloc<uint32_t>(1), *counters = lab_alloc<uint32_t>(DI_CUDA_MOE_COUNTERS);
    LAB_CHECK(cudaMemset(bad, 0, 4));
    LAB_CHECK(cudaMemset(counters, 0, 4 * DI_CUDA_MOE_COUNTERS));
    lab_expect(b13 == 2 * (CODES + SCALES) && b2 == CODES + SCALES, "moe_decode: packed size %zu + %zu", b13, b2);
    for (int e = 0; e < E; e++) {
        struct di_cuda_moe_pack p = {shape,
                                     x.w1 + e * CODES,
                                     x.s1 + e * SCALES,
                                     x.w3 + e * CODES,
                                     x.s3 + e * SCALES,
                                     x.w2 + e * CODES,
                                     x.s2 + e * SCALES,
                                     x.packed13 + e * b13,
                                     x.packed2 + e * b2,
                                     bad};
        LAB_CHECK(di_cuda_moe_pack(&p, 0));
    }
    LAB_CHECK(cudaDeviceSynchronize());
    lab_expect(lab_download(bad, 1)[0] == 0, "moe_decode: scales refused");

    const int MAX = 256, SETS = 8;
    lab_rng rng = {(uint64_t)2026};
    std::vector<uint16_t> act = lab_activations(MAX, D, true, rng);
    uint16_t *dx = lab_upload(act), *y = lab_alloc<uint16_t>((size_t)MAX * TOPK * D), *h = lab_alloc<uint16_t>((size_t)MAX * TOPK * F);
    std::vector<uint16_t> row0; /* slots of row 0 alone */
    std::vector<int32_t> first_ids;
    std::vector<float> first_weights(TOPK);
    for (const char *kind : {"uniform", "zipf", "hot"})
        for (int m : {1, 2, 4, 16, 64, 128, 256}) {
            if ((kind[0] != 'u' && m != 64 && m != 256) || (lab_once && (kind[0] != 'u' || m != 64)))
                continue;
            std::vector<int32_t *> ids;
            std::vector<float *> weights;
            std::vector<int32_t> host_ids;
            std::vector<float> host_weights;
            double unique = 0;
            for (int s = 0; s < SETS; s++) {
                auto v = route(m, E, TOPK, kind, rng);
                std::vector<float> w(v.size());
                for (auto &f : w)
                    f = (float)(0.05 + 0.4 * rng.uniform());
                if (s == 0 && kind[0] == 'u') { /* the same row 0 in every company */
                    if (m == 1)
                        first_ids = v, first_weights = w;
                    std::copy(first_ids.begin(), first_ids.end(), v.begin());
                    std::copy(first_weights.begin(), first_weights.end(), w.begin());
                }
                if (s == 0)
                    host_ids = v, host_weights = w;
                unique += (double)std::set<int32_t>(v.begin(), v.end()).size() / SETS;
                ids.push_back(lab_upload(v)), weights.push_back(lab_upload(w));
            }
            auto args = [&](int s) {
                struct di_cuda_moe_decode a = {shape, m, TOPK, LIMIT, dx, ids[s], weights[s], x.packed13, x.packed2, h, counters, y};
                return a;
            };
            size_t n = (size_t)m * TOPK * D;
            std::vector<uint16_t> out[2];
            for (auto &o : out) {
                lab_poison(y, n * 2), lab_poison(h, (size_t)m * TOPK * F * 2);
                struct di_cuda_moe_decode a = args(0);
                LAB_CHECK(di_cuda_moe_decode(&a, 0));
                LAB_CHECK(cudaDeviceSynchronize());
                o = lab_download(y, n);
            }
            if (lab_once)
                return;
            bool bits = out[0] == out[1];
            if (kind[0] == 'u') {
                if (m == 1)
                    row0 = out[0];
                bits = bits && std::equal(row0.begin(), row0.end(), out[0].begin());
            }
            lab_expect(bits, "moe_decode: bits differ at m %d %s", m, kind);
            lab_norm norm;
            int poisoned = 0;
            for (auto v : out[0])
                poisoned += (v & 0x7F80) == 0x7F80;
            lab_expect(poisoned == 0, "moe_decode: %d values not written at m %d %s", poisoned, m, kind);
            for (int c = 0; c < 2; c++) { /* two slots of each case against the reference */
                size_t slot = c == 0 ? (size_t)(m / 2) * TOPK + 3 : (size_t)m * TOPK - 1;
                size_t e = (size_t)host_ids[slot];
                std::vector<uint8_t> w[6] = {download(x.w1 + e * CODES, CODES), download(x.s1 + e * SCALES, SCALES),
                                             download(x.w3 + e * CODES, CODES), download(x.s3 + e * SCALES, SCALES),
                                             download(x.w2 + e * CODES, CODES), download(x.s2 + e * SCALES, SCALES)};
                std::vector<float> in(D), ref(D);
                for (int k = 0; k < D; k++)
                    in[k] = lab_f32(act[slot / TOPK * D + k]);
                reference(D, F, w, in.data(), host_weights[slot], ref.data());
                for (int k = 0; k < D; k++)
                    norm.add(lab_f32(out[0][slot * D + k]), ref[k]);
            }
            lab_expect(norm.value() < 2e-3, "moe_decode: error %g at m %d %s", norm.value(), m, kind);
            double us[2];
            for (double &t : us)
                t = lab_time(
                    [&](int i, cudaStream_t s) {
                        struct di_cuda_moe_decode a = args(i % SETS);
                        LAB_CHECK(di_cuda_moe_decode(&a, s));
                    },
                    SETS, m <= 16 ? 30 : 12);
            char name[64];
            snprintf(name, sizeof name, "%s m=%d experts=%.1f", kind, m, unique);
            double bytes = unique * (double)(b13 + b2) + (double)m * D * 2 + (double)m * TOPK * D * 2;
            lab_report({"moe_decode", name, bytes, 6.0 * D * F * m * TOPK, us[0], us[1], 0, 0, norm.value(), bits, ""});
            for (auto p : ids)
                cudaFree(p);
            for (auto p : weights)
                cudaFree(p);
        }
    struct di_cuda_moe_combine c = {256, TOPK, D, y, dx, h};
    double us = lab_time([&](int, cudaStream_t s) { LAB_CHECK(di_cuda_moe_combine(&c, s)); }, 8, 20);
    lab_report({"moe_combine", "m=256", 256.0 * D * 2 * (TOPK + 2), 256.0 * D * (TOPK + 1), us, us, 0, 0, -1, true, "cached"});
    for (void *p : {(void *)x.w1, (void *)x.s1, (void *)x.w3, (void *)x.s3, (void *)x.w2, (void *)x.s2, (void *)x.packed13,
                    (void *)x.packed2, (void *)bad, (void *)counters, (void *)dx, (void *)y, (void *)h})
        cudaFree(p);
}
