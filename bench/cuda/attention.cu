/* Core attention in decode: 64 heads, 128 window rows and 512 selected compressed rows of a context of 16,384 keys a request. */
#include "lab.h"

#include "backend/cuda/kernels.h"

#include <algorithm>
#include <cmath>
#include <set>

static const int HEADS = 64, D = 512, WINDOW = 128, RING = 144, TOPK = 512, PER_BLOCK = 32, BLOCKS = 16384, PAGES = 512;
static const float SCALE = 0.04419417382f;

/* Random compressed rows: any codes, scales (e4m3) from 0.125 to 0.34. */
__global__ void fill_rows(uint8_t *p, size_t rows, uint64_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * 288; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        p[i] = i % 288 < 256 ? (uint8_t)(z >> 40) : (uint8_t)(0x20 + (z >> 40) % 12);
    }
}

struct data {
    std::vector<uint8_t> rings, fresh; /* [m][RING][528], [m][528] */
    std::vector<int32_t> pages, sel, sel_n, pos;
    std::vector<uint16_t> q;
    std::vector<float> sink;
};

static void reference(const data &x, const uint8_t *pool, int row, bool with_sel, std::vector<double> &o)
{
    std::vector<std::vector<float>> keys;
    int n_window = std::min(x.pos[row] + 1, WINDOW);
    for (int i = 0; i < n_window; i++) {
        int p = x.pos[row] - n_window + 1 + i;
        const uint8_t *src = p == x.pos[row] ? &x.fresh[(size_t)row * 528] : &x.rings[((size_t)row * RING + p % RING) * 528];
        keys.emplace_back(D);
        di_q8_unpack(src, D, keys.back().data());
    }
    for (int i = 0; with_sel && i < x.sel_n[row]; i++) {
        int j = x.sel[(size_t)row * TOPK + i];
        std::vector<uint8_t> packed =
            lab_download(pool + ((size_t)x.pages[(size_t)row * PAGES + j / PER_BLOCK] * PER_BLOCK + j % PER_BLOCK) * 288, 288);
        keys.emplace_back(D);
        di_q4s_unpack(packed.data(), D, keys.back().data());
    }
    o.assign(HEADS * D, 0);
    lab_parallel(HEADS, [&](int h) {
        std::vector<double> p(keys.size());
        double top = -1e30, den;
        for (size_t j = 0; j < keys.size(); j++) {
            double sum = 0;
            for (int c = 0; c < D; c++)
                sum += (double)lab_f32(x.q[((size_t)row * HEADS + h) * D + c]) * keys[j][c];
            p[j] = sum * SCALE;
            top = std::max(top, p[j]);
        }
        den = std::exp(x.sink[h] - top);
        for (auto &v : p)
            den += v = std::exp(v - top);
        for (size_t j = 0; j < keys.size(); j++)
            for (int c = 0; c < D; c++)
                o[h * D + c] += p[j] / den * keys[j][c];
    });
}

static void random_rows(std::vector<uint8_t> &out, size_t rows, uint64_t seed)
{
    out.resize(rows * 528);
    lab_parallel((int)((rows + 255) / 256), [&](int b) {
        lab_rng rng = {seed + (uint64_t)b * 7919};
        std::vector<float> v(D);
        for (size_t r = (size_t)b * 256; r < rows && r < (size_t)(b + 1) * 256; r++) {
            for (auto &f : v)
                f = lab_round_bf16(rng.normal());
            di_q8_pack(v.data(), D, &out[r * 528]);
        }
    });
}

void lab_attention(void)
{
    const int max = lab_small ? 5 : 256;
    data x;
    lab_rng rng = {404};
    uint8_t *pool = lab_alloc<uint8_t>((size_t)BLOCKS * PER_BLOCK * 288);
    fill_rows<<<2048, 256>>>(pool, (size_t)BLOCKS * PER_BLOCK, 3);
    LAB_CHECK(cudaDeviceSynchronize());
    random_rows(x.rings, (size_t)max * RING, 1), random_rows(x.fresh, max, 2);
    x.q = lab_activations(max, HEADS * D, false, rng);
    for (int h = 0; h < HEADS; h++)
        x.sink.push_back(rng.normal());
    for (int r = 0; r < max; r++) {
        x.pos.push_back(r % 5 == 1 ? 77 : 20000 + (int)(rng.next() % 1000));
        x.sel_n.push_back(r % 7 == 3 ? 300 : TOPK);
        std::set<int32_t> s;
        while ((int)s.size() < TOPK)
            s.insert((int32_t)(rng.next() % (PAGES * PER_BLOCK)));
        x.sel.insert(x.sel.end(), s.begin(), s.end());
        for (int p = 0; p < PAGES; p++)
            x.pages.push_back((int32_t)(rng.next() % BLOCKS));
    }
    uint8_t *rings = lab_upload(x.rings), *fresh = lab_upload(x.fresh);
    int32_t *pages = lab_upload(x.pages), *sel = lab_upload(x.sel), *sel_n = lab_upload(x.sel_n);
    uint16_t *q = lab_upload(x.q), *o = lab_alloc<uint16_t>((size_t)max * HEADS * D);
    float *sink = lab_upload(x.sink);
    std::vector<di_cuda_attention_row> rows(max);
    for (int r = 0; r < max; r++)
        rows[r] = {x.pos[r], 0, x.pos[r], r, rings + (size_t)r * RING * 528, pages + (size_t)r * PAGES};
    di_cuda_attention_row *drows = lab_upload(rows);
    for (bool with_sel : {true, false}) {
        std::vector<uint16_t> first;
        for (int m : {1, 2, 5, 16, 64, 128, 256}) {
            if (m > max || (lab_once && m != 128))
                continue;
            auto args = [&](int row0) {
                struct di_cuda_attention a = {m,
                                              WINDOW,
                                              RING,
                                              SCALE,
                                              drows + row0,
                                              q + (size_t)row0 * HEADS * D,
                                              fresh,
                                              pool,
                                              (size_t)PER_BLOCK * 288,
                                              0,
                                              PER_BLOCK,
                                              with_sel ? sel + (size_t)row0 * TOPK : nullptr,
                                              sel_n + row0,
                                              TOPK,
                                              sink,
                                              o};
                return a;
            };
            size_t n = (size_t)m * HEADS * D;
            std::vector<uint16_t> out[2];
            for (auto &v : out) {
                lab_poison(o, n * 2);
                struct di_cuda_attention a = args(0);
                LAB_CHECK(di_cuda_attention(&a, 0));
                LAB_CHECK(cudaDeviceSynchronize());
                v = lab_download(o, n);
            }
            if (lab_once)
                return;
            if (m == 1)
                first = out[0];
            bool bits = out[0] == out[1] && std::equal(first.begin(), first.end(), out[0].begin());
            lab_expect(bits, "attention: bits differ at m %d", m);
            lab_norm norm;
            for (int row : {0, m / 2, m - 1}) {
                std::vector<double> want;
                reference(x, pool, row, with_sel, want);
                for (int i = 0; i < HEADS * D; i++)
                    norm.add(lab_f32(out[0][(size_t)row * HEADS * D + i]), want[i]);
            }
            lab_expect(norm.value() < 4e-3, "attention: error %g at m %d", norm.value(), m);
            if (lab_small || m == 2 || m == 5)
                continue;
            int sets = std::max(1, std::min(8, max / m));
            double us[2], keys = 0, bytes = 0;
            for (int r = 0; r < m; r++) {
                int w = std::min(x.pos[r] + 1, WINDOW), s = with_sel ? x.sel_n[r] : 0;
                keys += w + s, bytes += w * 528.0 + s * 288.0 + 4.0 * HEADS * D;
            }
            for (double &t : us)
                t = lab_time(
                    [&](int i, cudaStream_t s) {
                        struct di_cuda_attention a = args(i % sets * m);
                        LAB_CHECK(di_cuda_attention(&a, s));
                    },
                    8, 15);
            char name[64];
            snprintf(name, sizeof name, "%s m=%d", with_sel ? "128+512" : "128", m);
            lab_report({"attention", name, bytes, 4.0 * HEADS * D * keys, us[0], us[1], 0, 0, norm.value(), bits, ""});
        }
    }
    for (void *p : {(void *)pool, (void *)rings, (void *)fresh, (void *)pages, (void *)sel, (void *)sel_n, (void *)q, (void *)o,
                    (void *)sink, (void *)drows})
        cudaFree(p);
}
