/* A site of the hyper-connections: 4 streams of 5120 channels, 20 Sinkhorn iterations. */
#include "lab.h"

#include "backend/cuda/kernels.h"

#include <algorithm>
#include <cmath>

static const int S = 4, D = 5120, MIX = 24, ITERS = 20;
static const float EPS = 1e-6f, NORM_EPS = 1e-20f;

struct parameters {
    std::vector<float> fn, base, scale;
    std::vector<uint16_t> norm;
};
struct result {
    std::vector<double> x, y, pre, post, comb;
};

/* One row in fp64, with the roundings to bf16 of spec/model.md §4.3. */
static result reference(const parameters &p, const uint16_t *x, const uint16_t *o, const float *post, const float *comb, const float *pre)
{
    result r;
    r.x.resize(S * D), r.y.resize(D), r.pre.resize(S), r.post.resize(S), r.comb.resize(S * S);
    double squares = 0, v_squares = 0;
    std::vector<double> mix(MIX), v(D);
    for (int k = 0; k < S; k++)
        for (int c = 0; c < D; c++) {
            double sum = (double)post[k] * lab_f32(o[c]);
            for (int j = 0; j < S; j++)
                sum += (double)comb[j * S + k] * lab_f32(x[j * D + c]);
            r.x[k * D + c] = lab_round_bf16((float)sum);
            squares += r.x[k * D + c] * r.x[k * D + c];
        }
    double rms = 1 / std::sqrt(squares / (S * D) + NORM_EPS);
    for (int i = 0; i < MIX; i++) {
        for (int c = 0; c < S * D; c++)
            mix[i] += (double)p.fn[(size_t)i * S * D + c] * r.x[c];
        mix[i] *= rms;
    }
    for (int s = 0; s < S; s++) {
        r.pre[s] = 1 / (1 + std::exp(-(mix[s] * p.scale[0] + p.base[s]))) + EPS;
        r.post[s] = 2 / (1 + std::exp(-(mix[S + s] * p.scale[1] + p.base[S + s])));
    }
    double(*z)[S] = (double(*)[S])r.comb.data();
    for (int j = 0; j < S; j++) {
        double sum = 0;
        for (int k = 0; k < S; k++)
            sum += z[j][k] = std::exp(mix[2 * S + j * S + k] * p.scale[2] + p.base[2 * S + j * S + k]);
        for (int k = 0; k < S; k++)
            z[j][k] = z[j][k] / sum + EPS;
    }
    for (int it = 0; it < 2 * ITERS; it++) /* columns at odd steps, rows at even ones but the first */
        for (int a = 0; a < S && it > 0; a++) {
            double sum = EPS;
            for (int b = 0; b < S; b++)
                sum += it % 2 ? z[b][a] : z[a][b];
            for (int b = 0; b < S; b++)
                (it % 2 ? z[b][a] : z[a][b]) /= sum;
        }
    for (int c = 0; c < D; c++) {
        double sum = 0;
        for (int s = 0; s < S; s++)
            sum += (double)pre[s] * r.x[s * D + c];
        v[c] = lab_round_bf16((float)sum);
        v_squares += v[c] * v[c];
    }
    rms = 1 / std::sqrt(v_squares / D + NORM_EPS);
    std::vector<float> y(D);
    for (int c = 0; c < D; c++)
        y[c] = lab_round_bf16((float)(v[c] * rms * lab_f32(p.norm[c])));
    di_q8_round(y.data(), D, y.data());
    std::copy(y.begin(), y.end(), r.y.begin());
    return r;
}

void lab_hc_site(void)
{
    const int MAX = 4096, COPIES = 64;
    lab_rng rng = {31};
    parameters p;
    p.fn.resize((size_t)MIX * S * D), p.base.resize(MIX), p.scale = {0.5f, 0.7f, 0.9f};
    for (auto &v : p.fn)
        v = 0.02f * rng.normal();
    for (auto &v : p.base)
        v = 0.3f * rng.normal();
    p.norm = lab_activations(1, D, false, rng);
    std::vector<float> all;
    for (int c = 0; c < COPIES; c++)
        all.insert(all.end(), p.fn.begin(), p.fn.end());
    float *fn = lab_upload(all), *base = lab_upload(p.base), *scale = lab_upload(p.scale);
    uint16_t *norm = lab_upload(p.norm);
    int rows = lab_small ? 9 : MAX;
    std::vector<uint16_t> x = lab_activations(rows, S * D, false, rng), o = lab_activations(rows, D, false, rng);
    std::vector<float> post(rows * S), comb(rows * S * S), pre(rows * S);
    for (auto *v : {&post, &comb, &pre})
        for (auto &f : *v)
            f = (float)rng.uniform();
    for (int i = 0; i < rows * S; i++) { /* columns of comb add up to 1 and post is small, so that x stays in range over many launches */
        float *column = &comb[i / S * S * S + i % S], sum = column[0] + column[S] + column[2 * S] + column[3 * S];
        for (int j = 0; j < S; j++)
            column[j * S] /= sum;
        post[i] *= 0.05f;
    }
    uint16_t *dx = lab_alloc<uint16_t>(x.size()), *dox = lab_upload(o), *y = lab_alloc<uint16_t>((size_t)rows * D);
    float *dpost = lab_upload(post), *dcomb = lab_upload(comb), *dpre = lab_upload(pre);
    float *pre2 = lab_alloc<float>(rows * S), *post2 = lab_alloc<float>(rows * S), *comb2 = lab_alloc<float>(rows * S * S);
    float *partial = lab_alloc<float>(di_cuda_hc_partial_bytes(rows, D) / 4);
    uint32_t *counters = lab_alloc<uint32_t>(2 * rows);
    LAB_CHECK(cudaMemset(counters, 0, 8 * rows));
    std::vector<uint16_t> first_y;
    std::vector<float> first_comb;
    for (int m : {1, 2, 4, 9, 16, 64, 256, 4096}) {
        if (m > rows || (lab_once && m != 64))
            continue;
        auto args = [&](int i) {
            struct di_cuda_hc_site a = {
                m,    D,     ITERS, 1, EPS,  NORM_EPS, dx,    dox,     dpost,   dcomb, dpre, fn + (size_t)(i % COPIES) * MIX * S * D,
                base, scale, norm,  y, pre2, post2,    comb2, partial, counters};
            return a;
        };
        bool bits = true;
        std::vector<uint16_t> gx, gy;
        std::vector<float> gpre, gpost, gcomb;
        for (int again = 0; again < 2; again++) {
            LAB_CHECK(cudaMemcpy(dx, x.data(), (size_t)m * S * D * 2, cudaMemcpyHostToDevice));
            lab_poison(y, (size_t)m * D * 2), lab_poison(pre2, m * S * 4), lab_poison(post2, m * S * 4), lab_poison(comb2, m * S * S * 4);
            struct di_cuda_hc_site a = args(0);
            LAB_CHECK(di_cuda_hc_site(&a, 0));
            LAB_CHECK(cudaDeviceSynchronize());
            auto ny = lab_download(y, (size_t)m * D);
            auto nc = lab_download(comb2, m * S * S);
            bits = bits && (again == 0 || (gy == ny && gcomb == nc));
            gy = ny, gcomb = nc, gx = lab_download(dx, (size_t)m * S * D), gpre = lab_download(pre2, m * S),
            gpost = lab_download(post2, m * S);
        }
        if (lab_once)
            return;
        if (m == 1)
            first_y = gy, first_comb = gcomb;
        bits = bits && std::equal(first_y.begin(), first_y.end(), gy.begin()) &&
               std::equal(first_comb.begin(), first_comb.end(), gcomb.begin());
        lab_expect(bits, "hc_site: bits differ at m %d", m);
        lab_norm ny, nx, nw;
        std::vector<int> sample = {0, m / 2, m - 1};
        for (int row : sample) {
            result r = reference(p, &x[(size_t)row * S * D], &o[(size_t)row * D], &post[row * S], &comb[row * S * S], &pre[row * S]);
            for (int c = 0; c < D; c++)
                ny.add(lab_f32(gy[(size_t)row * D + c]), r.y[c]);
            for (int c = 0; c < S * D; c++)
                nx.add(lab_f32(gx[(size_t)row * S * D + c]), r.x[c]);
            for (int s = 0; s < S; s++)
                nw.add(gpre[row * S + s], r.pre[s]), nw.add(gpost[row * S + s], r.post[s]);
            for (int s = 0; s < S * S; s++)
                nw.add(gcomb[row * S * S + s], r.comb[s]);
        }
        lab_expect(ny.value() < 3e-3 && nx.value() < 1e-3 && nw.value() < 2e-5, "hc_site m %d: errors y %g, x %g, weights %g", m,
                   ny.value(), nx.value(), nw.value());
        if (lab_small || m == 2 || m == 9)
            continue;
        double us[2];
        for (double &t : us) /* x is changed in place and runs away: timed all the same, as no path depends on values */
            t = lab_time(
                [&](int i, cudaStream_t s) {
                    struct di_cuda_hc_site a = args(i);
                    LAB_CHECK(di_cuda_hc_site(&a, s));
                },
                COPIES, 10);
        char name[64], note[64];
        snprintf(name, sizeof name, "m=%d", m);
        snprintf(note, sizeof note, "weights %.0e", nw.value());
        lab_report({"hc_site", name, 4.0 * MIX * S * D + 20.0 * m * D, 2.0 * MIX * S * D * m, us[0], us[1], 0, 0, ny.value(), bits, note});
    }
    for (void *q : {(void *)fn, (void *)base, (void *)scale, (void *)norm, (void *)dx, (void *)dox, (void *)y, (void *)dpost, (void *)dcomb,
                    (void *)dpre, (void *)pre2, (void *)post2, (void *)comb2, (void *)partial, (void *)counters})
        cudaFree(q);
}
