/* Dense FP8 weights in decode: the shapes of one layer, 1 to 64 rows. */
#include "lab.h"

#include "backend/cuda/kernels.h"

#include <algorithm>
#include <cmath>

struct shape {
    const char *name;
    int n, k, groups;
};
static const shape shapes[] = {{"qkv_a", 1792, 5120, 1},   {"q_b", 32768, 1280, 1},   {"q_b_idx", 36864, 1280, 1},
                               {"wo_a", 8192, 4096, 8},    {"wo_b", 5120, 8192, 1},   {"shared13", 4608, 5120, 1},
                               {"shared2", 5120, 2304, 1}, {"engram", 25600, 6144, 1}};

static void check(const shape &s, const uint8_t *data, const uint8_t *scale, const std::vector<uint16_t> &x, int m,
                  const std::vector<float> &out, lab_norm &norm)
{
    const int SAMPLES = 256;
    std::vector<double> want((size_t)SAMPLES * m);
    std::vector<int> rows(SAMPLES);
    std::vector<uint8_t> all = lab_download(data, (size_t)s.n * s.k), scales = lab_download(scale, (size_t)(s.n / 32) * (s.k / 32));
    lab_rng rng = {99};
    for (auto &r : rows)
        r = (int)(rng.next() % (uint64_t)s.n);
    rows[0] = 0, rows[1] = s.n - 1;
    lab_parallel(SAMPLES, [&](int i) {
        int r = rows[i], group = r / (s.n / s.groups);
        std::vector<double> w(s.k);
        for (int k = 0; k < s.k; k++)
            w[k] = (double)di_e4m3_value[all[(size_t)r * s.k + k]] * di_e8m0_value(scales[(size_t)(r / 32) * (s.k / 32) + k / 32]);
        for (int row = 0; row < m; row++) {
            double sum = 0;
            const uint16_t *xr = &x[((size_t)row * s.groups + group) * s.k];
            for (int k = 0; k < s.k; k++)
                sum += w[k] * lab_f32(xr[k]);
            want[(size_t)i * m + row] = sum;
        }
    });
    for (int i = 0; i < SAMPLES; i++)
        for (int row = 0; row < m; row++)
            norm.add(out[(size_t)row * s.n + rows[i]], want[(size_t)i * m + row]);
}

static void run_shape(const shape &s, bool timed)
{
    struct di_cuda_dense_shape cs = {s.n, s.k, s.groups};
    size_t bytes = di_cuda_dense_bytes(&cs), codes = (size_t)s.n * s.k, scales = codes / 1024;
    int copies = timed ? (int)(300000000 / bytes) + 1 : 1;
    uint8_t *data = lab_alloc<uint8_t>(codes), *scale = lab_alloc<uint8_t>(scales), *packed = lab_alloc<uint8_t>(bytes * copies);
    uint32_t *bad = lab_alloc<uint32_t>(1), *counters = lab_alloc<uint32_t>(di_cuda_dense_counters(&cs));
    LAB_CHECK(cudaMemset(bad, 0, 4));
    LAB_CHECK(cudaMemset(counters, 0, 4 * di_cuda_dense_counters(&cs)));
    for (int c = copies - 1; c >= 0; c--) { /* copy 0 last: `data` is what the checks compare with */
        lab_random_e4m3(data, codes, 100 + c);
        lab_random_range(scale, scales, 113, 120, 200 + c);
        struct di_cuda_dense_pack p = {cs, data, scale, packed + c * bytes, bad};
        LAB_CHECK(di_cuda_dense_pack(&p, 0));
    }
    LAB_CHECK(cudaDeviceSynchronize());
    lab_expect(lab_download(bad, 1)[0] == 0, "dense_decode %s: scales refused", s.name);
    float *partial = lab_alloc<float>(di_cuda_dense_partial_bytes(&cs) / 4 + 1), *y = lab_alloc<float>((size_t)64 * s.n);
    lab_rng rng = {(uint64_t)s.n * 31 + s.k};
    std::vector<uint16_t> x = lab_activations(64, s.k * s.groups, true, rng);
    uint16_t *dx = lab_upload(x);
    std::vector<float> row0;
    void *panels = lab_alloc<uint8_t>(di_cuda_panel_bytes(&cs, 64));
    auto make_panels = [&](int m, int row) { /* Q8 of Q8 values changes nothing, so both ways must give the same */
                                             struct di_cuda_panel p = {cs, m, row % 2, dx + (size_t)row * s.k * s.groups, panels};
                                             lab_poison(panels, di_cuda_panel_bytes(&cs, 64));
                                             LAB_CHECK(di_cuda_panel(&p, 0));
    };
    auto once = [&](int m, int row, bool f32) {
        struct di_cuda_dense_decode a = {cs, m, panels, packed, partial, counters, f32, y};
        make_panels(m, row);
        lab_poison(y, (size_t)64 * s.n * 4), lab_poison(partial, di_cuda_dense_partial_bytes(&cs));
        LAB_CHECK(di_cuda_dense_decode(&a, 0));
        LAB_CHECK(cudaDeviceSynchronize());
    };
    for (int m : {1, 2, 4, 8, 13, 16, 32, 64}) {
        if (lab_once && m != 16)
            continue;
        size_t n = (size_t)m * s.n;
        once(m, 0, true);
        std::vector<float> out = lab_download(y, n);
        once(m, 0, true);
        bool bits = memcmp(out.data(), lab_download(y, n).data(), n * 4) == 0;
        once(m, 0, false);
        std::vector<uint16_t> rounded = lab_download((uint16_t *)y, n);
        for (size_t i = 0; i < n; i++)
            bits = bits && rounded[i] == di_f32_to_bf16(out[i]);
        if (m == 1)
            row0 = out;
        bits = bits && memcmp(row0.data(), out.data(), (size_t)s.n * 4) == 0;
        once(1, m - 1, true);
        bits = bits && memcmp(lab_download(y, s.n).data(), &out[n - s.n], (size_t)s.n * 4) == 0;
        lab_expect(bits, "dense_decode %s: bits differ at m %d", s.name, m);
        lab_norm norm;
        check(s, data, scale, x, m, out, norm);
        lab_expect(norm.value() < 2e-6, "dense_decode %s: error %g at m %d", s.name, norm.value(), m);
        if (m == 2 || m == 13 || !timed)
            continue;
        make_panels(m, 0);
        LAB_CHECK(cudaDeviceSynchronize());
        double us[2];
        for (double &t : us)
            t = lab_time(
                [&](int i, cudaStream_t st) {
                    struct di_cuda_dense_decode a = {cs, m, panels, packed + (i % copies) * bytes, partial, counters, 0, y};
                    LAB_CHECK(di_cuda_dense_decode(&a, st));
                },
                std::max(8, copies), 15);
        char name[64];
        snprintf(name, sizeof name, "%s %dx%d m=%d", s.name, s.n, s.k, m);
        lab_report({"dense_decode", name, (double)bytes + 2.0 * m * s.k * s.groups + 2.0 * m * s.n, 2.0 * m * s.n * s.k, us[0], us[1], 0, 0,
                    norm.value(), bits, ""});
    }
    for (void *p :
         {(void *)data, (void *)scale, (void *)packed, (void *)bad, (void *)counters, (void *)partial, (void *)y, (void *)dx, panels})
        cudaFree(p);
}

void lab_dense_decode(void)
{
    const shape small[] = {{"small", 96, 160, 1}, {"small", 32, 32, 1}, {"small", 256, 288, 4}, {"small", 4096, 1536, 1}};
    if (!lab_once)
        for (const shape &s : small)
            run_shape(s, false);
    if (lab_small)
        return;
    for (const shape &s : shapes)
        if (!lab_once || s.n == 32768)
            run_shape(s, true);
}
