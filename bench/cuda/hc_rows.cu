/* A hyper-connection site against its definition in double, equal bits at every m, timings. */
#include "lab.h"

#include "backend/cuda/hc_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace
{

const int S = 4, OUT = 24, ITERS = 20;
const float EPS = 1e-6f, NORM_EPS = 1e-6f;

struct host {
    int m, d;
    std::vector<uint16_t> x, o, w;
    std::vector<float> post, comb, pre, fn, base, scale;
};

host make_host(int m, int d, uint64_t seed)
{
    host h;
    lab_rng rng = {seed};
    h.m = m, h.d = d;
    h.x = lab_activations(m * S, d, false, rng), h.o = lab_activations(m, d, false, rng), h.w = lab_activations(1, d, false, rng);
    auto fill = [&](std::vector<float> &v, size_t n, float lo, float width) {
        v.resize(n);
        for (auto &f : v)
            f = lo + width * (float)rng.uniform();
    };
    fill(h.post, (size_t)m * S, 0, 2), fill(h.comb, (size_t)m * S * S, 0, .5f), fill(h.pre, (size_t)m * S, 0, 1);
    fill(h.base, OUT, -2, 4), fill(h.scale, 3, .5f, 1);
    h.fn.resize((size_t)OUT * S * d);
    for (auto &f : h.fn)
        f = rng.normal() * 0.02f;
    return h;
}

struct wanted {
    std::vector<double> x, y, pre, post, comb;
};

wanted reference(const host &h, const std::vector<uint16_t> &x_out, const std::vector<int> &rows)
{
    wanted r;
    size_t n = rows.size(), d = (size_t)h.d;
    r.x.resize(n * S * d), r.y.resize(n * d), r.pre.resize(n * S), r.post.resize(n * S), r.comb.resize(n * S * S);
    lab_parallel((int)n, [&](int i) {
        size_t row = (size_t)rows[i];
        std::vector<double> x(S * d), u(d);
        double xx = 0, uu = 0;
        for (size_t k = 0; k < S; k++)
            for (size_t c = 0; c < d; c++) {
                double sum = (double)h.post[row * S + k] * lab_f32(h.o[row * d + c]);
                for (size_t j = 0; j < S; j++)
                    sum += (double)h.comb[(row * S + j) * S + k] * lab_f32(h.x[(row * S + j) * d + c]);
                r.x[((size_t)i * S + k) * d + c] = lab_round_bf16((float)sum);
                x[k * d + c] = lab_f32(x_out[(row * S + k) * d + c]); /* the device's own rounding from here on */
                xx += x[k * d + c] * x[k * d + c];
            }
        for (size_t c = 0; c < d; c++) {
            double sum = 0;
            for (size_t k = 0; k < S; k++)
                sum += h.pre[row * S + k] * x[k * d + c];
            u[c] = lab_round_bf16((float)sum), uu += u[c] * u[c];
        }
        for (size_t c = 0; c < d; c++)
            r.y[(size_t)i * d + c] = lab_round_bf16((float)(u[c] / std::sqrt(uu / (double)d + NORM_EPS) * lab_f32(h.w[c])));
        double mix[OUT], z[S][S];
        for (size_t o = 0; o < OUT; o++) {
            double sum = 0;
            for (size_t k = 0; k < S * d; k++)
                sum += (double)h.fn[o * S * d + k] * x[k];
            mix[o] = sum / std::sqrt(xx / (double)(S * d) + NORM_EPS) * h.scale[o < S ? 0 : o < 2 * S ? 1 : 2] + h.base[o];
        }
        for (size_t k = 0; k < S; k++) {
            r.pre[(size_t)i * S + k] = 1 / (1 + std::exp(-mix[k])) + EPS;
            r.post[(size_t)i * S + k] = 2 / (1 + std::exp(-mix[S + k]));
        }
        for (size_t j = 0; j < S; j++) {
            double sum = 0, top = -1e300;
            for (size_t k = 0; k < S; k++)
                top = std::max(top, mix[2 * S + j * S + k]);
            for (size_t k = 0; k < S; k++)
                sum += z[j][k] = std::exp(mix[2 * S + j * S + k] - top);
            for (size_t k = 0; k < S; k++)
                z[j][k] = z[j][k] / sum + EPS;
        }
        for (int it = 0; it < ITERS; it++) {
            for (size_t j = 0; j < S && it > 0; j++) {
                double sum = EPS;
                for (size_t k = 0; k < S; k++)
                    sum += z[j][k];
                for (size_t k = 0; k < S; k++)
                    z[j][k] /= sum;
            }
            for (size_t k = 0; k < S; k++) {
                double sum = EPS;
                for (size_t j = 0; j < S; j++)
                    sum += z[j][k];
                for (size_t j = 0; j < S; j++)
                    z[j][k] /= sum;
            }
        }
        for (size_t k = 0; k < S * S; k++)
            r.comb[(size_t)i * S * S + k] = z[k / S][k % S];
    });
    return r;
}

struct device {
    int d;
    uint16_t *x, *o, *w, *y;
    float *post_in, *comb_in, *pre_in, *base, *scale, *pre, *post, *comb;
    void *packed, *scratch;
};
device open_device(const host &h, int copies)
{
    device v;
    v.d = h.d;
    v.x = lab_alloc<uint16_t>((size_t)copies * h.x.size()), v.o = lab_alloc<uint16_t>((size_t)copies * h.o.size()), v.w = lab_upload(h.w);
    v.y = lab_alloc<uint16_t>((size_t)copies * h.o.size());
    v.post_in = lab_upload(h.post), v.comb_in = lab_upload(h.comb), v.pre_in = lab_upload(h.pre), v.base = lab_upload(h.base),
    v.scale = lab_upload(h.scale);
    v.pre = lab_alloc<float>(h.pre.size()), v.post = lab_alloc<float>(h.pre.size()), v.comb = lab_alloc<float>(h.comb.size());
    size_t bytes = di_cuda_hc_bytes(h.d), scratch = di_cuda_hc_scratch_bytes(h.m, h.d);
    v.packed = lab_alloc<uint8_t>(bytes * copies), v.scratch = lab_alloc<uint8_t>(scratch);
    LAB_CHECK(cudaMemset(v.scratch, 0, scratch));
    float *fn = lab_upload(h.fn);
    for (int c = 0; c < copies; c++) {
        LAB_CHECK(di_cuda_hc_pack(h.d, fn, (uint8_t *)v.packed + c * bytes, 0));
        LAB_CHECK(cudaMemcpy(v.x + c * h.x.size(), h.x.data(), h.x.size() * 2, cudaMemcpyHostToDevice));
        LAB_CHECK(cudaMemcpy(v.o + c * h.o.size(), h.o.data(), h.o.size() * 2, cudaMemcpyHostToDevice));
    }
    LAB_CHECK(cudaDeviceSynchronize());
    cudaFree(fn);
    return v;
}
void close_device(device &v)
{
    for (void *p : {(void *)v.x, (void *)v.o, (void *)v.w, (void *)v.y, (void *)v.post_in, (void *)v.comb_in, (void *)v.pre_in,
                    (void *)v.base, (void *)v.scale, (void *)v.pre, (void *)v.post, (void *)v.comb, v.packed, v.scratch})
        cudaFree(p);
}
struct di_cuda_hc_rows make_site(const device &v, int first, int m, size_t copy, int rows)
{
    size_t f = (size_t)first, d = (size_t)v.d, at = copy * (size_t)rows;
    return {m,
            v.d,
            ITERS,
            EPS,
            NORM_EPS,
            v.x + (at + f) * S * d,
            v.o + (at + f) * d,
            v.post_in + f * S,
            v.comb_in + f * S * S,
            v.pre_in + f * S,
            (const uint8_t *)v.w,
            v.y + (at + f) * d,
            (uint8_t *)v.packed + copy * di_cuda_hc_bytes(v.d),
            v.base,
            v.scale,
            v.pre + f * S,
            v.post + f * S,
            v.comb + f * S * S,
            v.scratch};
}

struct output {
    std::vector<uint16_t> x, y;
    std::vector<float> pre, post, comb;
};
output run_once(const device &v, const host &h, int first, int m)
{
    size_t n = (size_t)m, f = (size_t)first, d = (size_t)h.d;
    LAB_CHECK(cudaMemcpy(v.x, h.x.data(), h.x.size() * 2, cudaMemcpyHostToDevice));
    lab_poison(v.y, (size_t)h.m * d * 2), lab_poison(v.pre, h.pre.size() * 4), lab_poison(v.post, h.pre.size() * 4),
        lab_poison(v.comb, h.comb.size() * 4);
    size_t kept = di_cuda_hc_scratch_bytes(1, h.d); /* what must stay as it is */
    lab_poison((char *)v.scratch + kept, di_cuda_hc_scratch_bytes(h.m, h.d) - kept);
    struct di_cuda_hc_rows a = make_site(v, first, m, 0, h.m);
    LAB_CHECK(di_cuda_hc_rows(&a, 0));
    LAB_CHECK(cudaDeviceSynchronize());
    return {lab_download(v.x + f * S * d, n * S * d), lab_download(v.y + f * d, n * d), lab_download(v.pre + f * S, n * S),
            lab_download(v.post + f * S, n * S), lab_download(v.comb + f * S * S, n * S * S)};
}
bool same_rows(const output &a, size_t i, const output &b, size_t j, size_t n, size_t d)
{
    return !memcmp(&a.x[i * S * d], &b.x[j * S * d], n * S * d * 2) && !memcmp(&a.y[i * d], &b.y[j * d], n * d * 2) &&
           !memcmp(&a.pre[i * S], &b.pre[j * S], n * S * 4) && !memcmp(&a.post[i * S], &b.post[j * S], n * S * 4) &&
           !memcmp(&a.comb[i * S * S], &b.comb[j * S * S], n * S * S * 4);
}

double check(int m, int d, uint64_t seed, bool *bits)
{
    host h = make_host(m, d, seed);
    device v = open_device(h, 1);
    output all = run_once(v, h, 0, m);
    *bits = same_rows(all, 0, run_once(v, h, 0, m), 0, (size_t)m, (size_t)d);
    for (int n : {1, 2, 16, 17, 64, 65, 256})
        for (int first : {0, m / 2, m - n})
            if (first >= 0 && first + n <= m)
                *bits = *bits && same_rows(all, (size_t)first, run_once(v, h, first, n), 0, (size_t)n, (size_t)d);
    std::vector<int> rows;
    for (int i = 0; i < std::min(m, 64); i++)
        rows.push_back((int)((int64_t)i * m / std::min(m, 64)));
    rows.back() = m - 1;
    wanted r = reference(h, all.x, rows);
    lab_norm x, y, coefficients;
    for (size_t i = 0; i < rows.size(); i++) {
        size_t row = (size_t)rows[i], dd = (size_t)d;
        for (size_t c = 0; c < S * dd; c++)
            x.add(lab_f32(all.x[row * S * dd + c]), r.x[i * S * dd + c]);
        for (size_t c = 0; c < dd; c++)
            y.add(lab_f32(all.y[row * dd + c]), r.y[i * dd + c]);
        for (size_t c = 0; c < S; c++)
            coefficients.add(all.pre[row * S + c], r.pre[i * S + c]), coefficients.add(all.post[row * S + c], r.post[i * S + c]);
        for (size_t c = 0; c < S * S; c++)
            coefficients.add(all.comb[row * S * S + c], r.comb[i * S * S + c]);
    }
    lab_expect(x.value() < 3e-5 && y.value() < 3e-4 && coefficients.value() < 2e-6,
               "hc_rows m=%d d=%d: errors streams %g, y %g, coefficients %g", m, d, x.value(), y.value(), coefficients.value());
    lab_expect(*bits, "hc_rows m=%d d=%d: bits differ", m, d);
    close_device(v);
    return coefficients.value();
}

} // namespace

void lab_hc_rows(void)
{
    bool bits;
    if (!lab_once)
        for (int d : {64, 128, 448, 1024})
            for (int m : {1, 3, 40, 70, 300})
                check(m, d, (uint64_t)(m * 10000 + d), &bits);
    for (int m : {1, 4, 16, 64, 65, 256, 4096, 16384}) {
        if (lab_small)
            return;
        if (lab_once && m != 16 && m != 64 && m != 4096)
            continue;
        const int d = 5120;
        double error = lab_once ? 0 : check(std::min(m, 1000), d, (uint64_t)m, &bits), us[2];
        double bytes = (double)di_cuda_hc_bytes(d) + (double)m * (2 * S * d * 2 + d * 2 + d * 2);
        int copies = (int)std::max(2.0, std::min(64.0, 260e6 / bytes));
        host h = make_host(std::min(m, 256), d, 1);
        h.m = m, h.x.resize((size_t)m * S * d), h.o.resize((size_t)m * d), h.post.resize((size_t)m * S), h.comb.resize((size_t)m * S * S),
        h.pre.resize((size_t)m * S);
        for (size_t i = 256 * S * (size_t)d; i < h.x.size(); i++)
            h.x[i] = h.x[i - 256 * S * d];
        for (size_t i = 256 * (size_t)d; i < h.o.size(); i++)
            h.o[i] = h.o[i - 256 * d];
        for (size_t i = 256 * S; i < h.pre.size(); i++)
            h.post[i] = h.post[i - 256 * S], h.pre[i] = h.pre[i - 256 * S];
        for (size_t i = 256 * S * S; i < h.comb.size(); i++)
            h.comb[i] = h.comb[i - 256 * S * S];
        device v = open_device(h, copies);
        if (lab_once) {
            struct di_cuda_hc_rows a = make_site(v, 0, m, 0, m);
            LAB_CHECK(di_cuda_hc_rows(&a, 0));
            LAB_CHECK(cudaDeviceSynchronize());
            continue;
        }
        for (double &t : us)
            t = lab_time(
                [&](int i, cudaStream_t s) {
                    struct di_cuda_hc_rows a = make_site(v, 0, m, (size_t)(i % copies), m);
                    LAB_CHECK(di_cuda_hc_rows(&a, s));
                },
                std::max(8, copies), 15);
        char name[64];
        snprintf(name, sizeof name, "site m=%d", m);
        lab_report({"hc_rows", name, bytes, 2.0 * m * OUT * S * d, us[0], us[1], 0, 0, error, bits, ""});
        close_device(v);
    }
}
