/* The sampler: equal ids and log-probabilities on the CPU and here, over all parameters; rows of 129,280 logits. */
#include "lab.h"

#include "backend/cuda/kernels.h"

extern "C" {
#include "sample/sampler.h"
}

#include <algorithm>
#include <cmath>

static const int VOCAB = 129280;

/* Kinds of rows: normal logits of some spread, few different values (ties), a peak. */
static void make_logits(float *x, int vocab, lab_rng &rng)
{
    int kind = (int)(rng.next() % 4);
    float spread = (float)(0.5 + 5 * rng.uniform());
    for (int i = 0; i < vocab; i++) {
        float v = spread * rng.normal();
        x[i] = kind == 0 ? std::round(v) : v;
    }
    if (kind == 1)
        x[rng.next() % (uint64_t)vocab] += 20;
}

static void compare(int rows, int vocab, uint64_t seed, int *wrong_ids, int *wrong_logprobs)
{
    lab_rng rng = {seed};
    std::vector<float> logits((size_t)rows * vocab);
    std::vector<di_cuda_sample_row> params(rows);
    size_t words = ((size_t)vocab + 63) / 64;
    std::vector<uint64_t> allowed(words), banned(words);
    for (size_t i = 0; i < words; i++)
        allowed[i] = rng.next() & rng.next(), banned[i] = rng.next() & rng.next() & rng.next();
    uint64_t *da = lab_upload(allowed), *db = lab_upload(banned);
    const double temperatures[] = {0, 1, 1, 0.7, 1.6, 0.05}, shares[] = {1, 1, 0.95, 0.5, 0.999}, mins[] = {0, 0, 0.02, 0.2};
    const int64_t ks[] = {0, 0, 50, 1, 700};
    for (int r = 0; r < rows; r++) {
        make_logits(&logits[(size_t)r * vocab], vocab, rng);
        di_cuda_sample_row &p = params[r];
        p.key = rng.next(), p.position = rng.next() % 1000000;
        p.temperature = temperatures[rng.next() % 6], p.top_p = shares[rng.next() % 5], p.min_p = mins[rng.next() % 4],
        p.top_k = ks[rng.next() % 5];
        p.allowed = rng.next() % 4 == 0 ? (const uint32_t *)da : nullptr, p.banned = rng.next() % 3 == 0 ? (const uint32_t *)db : nullptr;
        p.logprob = rng.next() % 2;
    }
    float *dl = lab_upload(logits), *dp = lab_alloc<float>(rows);
    di_cuda_sample_row *dr = lab_upload(params);
    int32_t *ids = lab_alloc<int32_t>(rows);
    lab_poison(ids, rows * 4), lab_poison(dp, rows * 4);
    struct di_cuda_sample a = {rows, vocab, dl, dr, ids, dp};
    LAB_CHECK(di_cuda_sample(&a, 0));
    LAB_CHECK(cudaDeviceSynchronize());
    auto got = lab_download(ids, rows);
    auto logprobs = lab_download(dp, rows);
    std::vector<int> id_bad(rows), p_bad(rows);
    const int BATCH = 64;
    lab_parallel((rows + BATCH - 1) / BATCH, [&](int b) {
        struct di_law *law;
        di_error err;
        if (di_law_create((size_t)vocab, &law, &err) != DI_OK)
            exit(1);
        for (int r = b * BATCH; r < rows && r < (b + 1) * BATCH; r++) {
            di_sampling_params sp = di_sampling_params_default();
            sp.temperature = params[r].temperature, sp.top_p = params[r].top_p, sp.min_p = params[r].min_p, sp.top_k = params[r].top_k;
            sp.logprobs = params[r].logprob;
            struct di_row row = {};
            row.logits = &logits[(size_t)r * vocab], row.params = &sp, row.position = params[r].position;
            row.allowed = params[r].allowed ? allowed.data() : nullptr, row.banned = params[r].banned ? banned.data() : nullptr;
            struct di_sample out = {};
            di_status status = di_sample_row(law, &row, params[r].key, &out, &err);
            id_bad[r] = status != DI_OK ? got[r] >= 0 : got[r] != out.id;
            p_bad[r] = status == DI_OK && sp.logprobs && memcmp(&out.logprob, &logprobs[r], 4) != 0;
        }
        di_law_destroy(law);
    });
    for (int r = 0; r < rows; r++)
        *wrong_ids += id_bad[r], *wrong_logprobs += p_bad[r];
    for (void *p : {(void *)da, (void *)db, (void *)dl, (void *)dp, (void *)dr, (void *)ids})
        cudaFree(p);
}

void lab_sampler(void)
{
    int ids = 0, logprobs = 0;
    if (lab_small) {
        compare(200, 1003, 1, &ids, &logprobs);
        lab_expect(ids == 0 && logprobs == 0, "sampler: %d ids and %d log-probabilities of 200 rows differ", ids, logprobs);
        return;
    }
    if (!lab_once) {
        for (int i = 0; i < 10; i++)
            compare(10000, i % 2 ? 1003 : 512, 50 + i, &ids, &logprobs);
        for (int i = 0; i < 4; i++)
            compare(256, VOCAB, 90 + i, &ids, &logprobs);
        printf("sampler: 101024 rows against the CPU: %d ids and %d log-probabilities differ\n", ids, logprobs);
        lab_expect(ids == 0 && logprobs == 0, "sampler: %d ids and %d log-probabilities differ", ids, logprobs);
    }
    const int MAX = 256;
    lab_rng rng = {77};
    std::vector<float> x((size_t)MAX * VOCAB);
    for (auto &v : x)
        v = 2.5f * rng.normal();
    float *dx = lab_upload(x), *dp = lab_alloc<float>(MAX);
    int32_t *out = lab_alloc<int32_t>(MAX);
    const struct {
        const char *name;
        double temperature, top_p;
        int64_t top_k;
        int logprob;
    } cases[] = {{"greedy", 0, 1, 0, 0},           {"T=1", 1, 1, 0, 0},           {"T=0.7", 0.7, 1, 0, 0},
                 {"T=1 top-p .95", 1, 0.95, 0, 0}, {"T=1 top-k 50", 1, 1, 50, 0}, {"T=1 logprob", 1, 1, 0, 1}};
    for (auto &c : cases)
        for (int m : {1, 16, 64, 256}) {
            if (lab_once && m != 64)
                continue;
            std::vector<di_cuda_sample_row> rows(m);
            for (int i = 0; i < m; i++)
                rows[i] = {rng.next(), (uint64_t)i, c.temperature, c.top_p, 0, c.top_k, nullptr, nullptr, c.logprob};
            di_cuda_sample_row *dr = lab_upload(rows);
            int sets = MAX / m;
            auto run = [&](int i, cudaStream_t s) { /* other rows each time: 132 MB in all */
                                                    struct di_cuda_sample a = {m, VOCAB, dx + (size_t)(i % sets) * m * VOCAB, dr, out, dp};
                                                    LAB_CHECK(di_cuda_sample(&a, s));
            };
            if (lab_once) {
                run(0, 0), run(0, 0);
                LAB_CHECK(cudaDeviceSynchronize());
                return;
            }
            double us[2];
            for (double &t : us)
                t = lab_time(run, std::max(8, std::min(sets, 64)), 6);
            char name[64];
            snprintf(name, sizeof name, "%s m=%d", c.name, m);
            lab_report({"sampler", name, 4.0 * VOCAB * m, 0, us[0], us[1], 0, 0, -1, ids == 0, ""});
            cudaFree(dr);
        }
    cudaFree(dx), cudaFree(dp), cudaFree(out);
}
