/* The sampler: 100,000 random rows against the plain form, equal bits in any company, timings. */
#include "lab.h"

#include "backend/cuda/sample.h"

#include <algorithm>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstring>

extern "C" {
#include "sample/counts.h"
#include "sample/sampler.h"
}

namespace
{

const int VOCAB = 129280, ROWS = 256, TABLE = 1 << 20;
std::vector<float> normals;

enum { NORMAL, NARROW, FLAT, PEAKED, FEW_VALUES, EQUAL, TIES, VAST, TINY_STEPS, RISING, SIGNED_ZEROS, LIKE_A_MODEL, KINDS };
const char *const kind_names[] = {"normal", "narrow", "flat",       "peaked", "few values",   "equal",
                                  "ties",   "vast",   "tiny steps", "rising", "signed zeros", "like a model"};

void fill_logits(float *x, int n, int kind, lab_rng &rng)
{
    float width = (float)(rng.uniform() * 8);
    uint64_t at = rng.next();
    for (int i = 0; i < n; i++) {
        float z = normals[(at + (uint64_t)i * 7) % TABLE];
        switch (kind) {
        case NORMAL: x[i] = z * width; break;
        case NARROW: x[i] = z * 0.3f; break;
        case FLAT: x[i] = z * 0.01f; break;
        case PEAKED: x[i] = z * 2 + (rng.next() % 97 == 0 ? 12 : 0); break;
        case FEW_VALUES: x[i] = (float)(rng.next() % 5); break;
        case EQUAL: x[i] = 3.5f; break;
        case TIES: x[i] = roundf(z * 4) / 4; break;
        case VAST: x[i] = (rng.next() % 2 ? 1 : -1) * FLT_MAX * (float)rng.uniform(); break;
        case TINY_STEPS: x[i] = 100000 + 0.0078125f * (float)(rng.next() % 1000); break;
        case RISING: x[i] = (float)i * 0.01f; break;
        case SIGNED_ZEROS: x[i] = rng.next() % 2 ? 0.0f : -0.0f; break;
        default: x[i] = z * 2.5f + 3 + (rng.next() % 5000 == 0 ? 9 + z : 0);
        }
    }
    if (kind == PEAKED)
        x[rng.next() % (uint64_t)n] = 30;
}

struct request {
    struct di_sampling_params params;
    struct di_logit_bias bias[6];
    int32_t end_ids[2];
    struct di_token_counts *counts = nullptr;
    std::vector<uint64_t> banned, allowed;
    struct di_sample_task task;
    int kind;
};

double one_of(lab_rng &rng, std::initializer_list<double> v)
{
    return v.begin()[rng.next() % v.size()];
}

void fill_mask(std::vector<uint64_t> &bits, int vocab, int kind, lab_rng &rng)
{
    bits.assign((size_t)vocab / 64 + 1, 0);
    for (auto &b : bits)
        b = kind == 0 ? rng.next() : kind == 1 ? rng.next() & rng.next() & rng.next() : rng.next() % 50 == 0 ? 1 : 0;
}

void fill_request(request &r, float *logits, int vocab, lab_rng &rng)
{
    auto word = [&] { return rng.next(); };
    r.kind = (int)(word() % KINDS);
    fill_logits(logits, vocab, r.kind, rng);
    struct di_sampling_params p = di_sampling_params_default();
    p.temperature = one_of(rng, {0, 1, 1, 1, 0.7, 0.3, 2, 0.0001, rng.uniform() * 2});
    p.top_p = one_of(rng, {1, 1, 0.95, 0.95, 0.5, 1e-9, 0.999999, rng.uniform()});
    p.top_k = (int64_t)one_of(rng, {-1, -1, -1, 1, 2, 50, 1000, (double)vocab, (double)vocab - 1, 1 + (double)(word() % (uint64_t)vocab)});
    p.min_p = one_of(rng, {0, 0, 0, 0.05, 1, rng.uniform()});
    p.logprobs = word() % 2;
    p.top_logprobs = p.logprobs ? (int64_t)(word() % (DI_MAX_TOP_LOGPROBS + 1)) : 0;
    if (word() % 4 == 0) {
        p.n_bias = 1 + word() % 6;
        for (size_t i = 0; i < p.n_bias; i++)
            r.bias[i] = {i && word() % 4 == 0 ? r.bias[0].id : (int32_t)(word() % (uint64_t)vocab), (float)(rng.uniform() * 200 - 100)};
        p.bias = r.bias;
    }
    if (word() % 4 == 0) {
        p.min_tokens = 5;
        p.n_end_ids = 2;
        for (auto &e : r.end_ids)
            e = (int32_t)(word() % (uint64_t)vocab);
        p.end_ids = r.end_ids;
    }
    di_token_counts_destroy(r.counts);
    r.counts = nullptr;
    if (word() % 4 == 0) {
        p.repetition_penalty = one_of(rng, {1.3, 0.001, 1000});
        p.presence_penalty = rng.uniform();
        p.frequency_penalty = rng.uniform();
        if (di_token_counts_create((size_t)vocab, &r.counts, NULL) != DI_OK)
            exit(1);
        for (int i = 0; i < 20; i++)
            (i % 2 ? di_token_counts_add : di_token_counts_add_prompt)(r.counts, (int32_t)(word() % (uint64_t)vocab));
    }
    r.params = p;
    fill_mask(r.banned, vocab, 2, rng);
    fill_mask(r.allowed, vocab, (int)(word() % 3), rng);
    if (word() % 50 == 0)
        logits[word() % (uint64_t)vocab] = word() % 2 ? NAN : INFINITY;
    struct di_sample_task t = {};
    t.row.logits = logits;
    t.row.params = &r.params;
    t.row.counts = r.counts;
    t.row.banned = word() % 2 ? r.banned.data() : NULL;
    t.row.allowed = word() % 4 == 0 ? r.allowed.data() : NULL;
    t.row.n_generated = word() % 8;
    t.row.position = word() & 0xFFFFFFFF;
    t.key = word();
    t.forced = word() % 8 ? -1 : (int32_t)(word() % (uint64_t)vocab);
    r.task = t;
}

/* Device memory of a step. */
struct device {
    float *logits, *edited;
    uint64_t *masks;
    struct di_cuda_sample_edit *edits;
    struct di_cuda_sample_row *rows;
    struct di_cuda_sample_result *results;
    int32_t *ids;
    void *scratch;
    size_t words;
};
const int EDITS = 64;

device open_device(int vocab)
{
    device d;
    d.words = (size_t)vocab / 64 + 1;
    d.logits = lab_alloc<float>((size_t)ROWS * vocab), d.edited = lab_alloc<float>((size_t)ROWS * vocab);
    d.masks = lab_alloc<uint64_t>(2 * ROWS * d.words), d.edits = lab_alloc<di_cuda_sample_edit>(ROWS * EDITS);
    d.rows = lab_alloc<di_cuda_sample_row>(ROWS), d.results = lab_alloc<di_cuda_sample_result>(ROWS), d.ids = lab_alloc<int32_t>(ROWS);
    size_t bytes = di_cuda_sample_scratch_bytes(ROWS, vocab);
    d.scratch = lab_alloc<uint8_t>(bytes);
    LAB_CHECK(cudaMemset(d.scratch, 0, bytes));
    return d;
}
void close_device(device &d)
{
    for (void *p : {(void *)d.logits, (void *)d.edited, (void *)d.masks, (void *)d.edits, (void *)d.rows, (void *)d.results, (void *)d.ids,
                    d.scratch})
        LAB_CHECK(cudaFree(p));
}

/* What a back end does with a task: the row as the device wants it. */
di_cuda_sample_row make_row(const device &d, const struct di_sample_task &t, int i, int vocab, di_cuda_sample_edit *edits)
{
    const struct di_sampling_params *p = t.row.params;
    di_cuda_sample_row r = {};
    r.logits = d.logits + (size_t)i * vocab;
    r.banned = t.row.banned ? d.masks + 2 * i * d.words : NULL;
    r.allowed = t.row.allowed ? d.masks + (2 * i + 1) * d.words : NULL;
    int n = 0;
    for (size_t k = 0; k < p->n_bias; k++)
        edits[n].id = p->bias[k].id, edits[n++].bias = p->bias[k].value;
    r.n_bias = n;
    if (t.row.counts && di_sampling_needs_counts(p))
        for (size_t k = 0; k < t.row.counts->n_touched; k++) {
            int32_t id = t.row.counts->touched[k];
            uint32_t w = t.row.counts->word[id];
            if ((w & DI_COUNT_MASK) || (w & DI_COUNT_IN_PROMPT))
                edits[n].id = id, edits[n++].count = w & DI_COUNT_MASK;
        }
    r.n_counts = n - r.n_bias;
    if (t.row.n_generated < (uint64_t)p->min_tokens)
        for (size_t k = 0; k < p->n_end_ids; k++)
            edits[n++].id = p->end_ids[k];
    r.n_end = n - r.n_bias - r.n_counts;
    r.edits = d.edits + i * EDITS;
    r.edited = n ? d.edited + (size_t)i * vocab : NULL;
    r.repetition = p->repetition_penalty, r.presence = p->presence_penalty, r.frequency = p->frequency_penalty;
    r.temperature = p->temperature, r.top_p = p->top_p, r.min_p = p->min_p, r.top_k = p->top_k;
    r.key = t.key, r.position = (uint32_t)t.row.position, r.forced = t.forced;
    r.n_top = (int32_t)p->top_logprobs, r.logprobs = p->logprobs;
    return r;
}

void run_rows(const device &d, int first, int m, int vocab, uint32_t phases, cudaStream_t s)
{
    struct di_cuda_sample a = {m, vocab, phases, d.rows + first, d.results + first, d.ids + first, d.scratch};
    LAB_CHECK(di_cuda_sample(&a, s));
}
std::vector<di_cuda_sample_result> results_of(const device &d, int first, int m, int vocab, uint32_t phases)
{
    lab_poison(d.results, ROWS * sizeof *d.results);
    run_rows(d, first, m, vocab, phases, 0);
    LAB_CHECK(cudaDeviceSynchronize());
    return lab_download(d.results + first, m);
}
bool same_result(const di_cuda_sample_result &a, const di_cuda_sample_result &b)
{
    return a.status == b.status && (a.status || (a.id == b.id && memcmp(&a.logprob, &b.logprob, 4) == 0 && a.n_top == b.n_top &&
                                                 memcmp(a.top, b.top, sizeof *a.top * (size_t)a.n_top) == 0));
}

/* "" or what differs. */
std::string compare(const struct di_sample_result &want, const di_cuda_sample_result &got)
{
    char text[200] = "";
    int status = want.status == DI_OK             ? DI_CUDA_SAMPLE_OK
                 : want.status == DI_ERR_INTERNAL ? DI_CUDA_SAMPLE_NOT_FINITE
                                                  : DI_CUDA_SAMPLE_ALL_BANNED;
    if (got.status != status)
        snprintf(text, sizeof text, "status %d, expected %d", got.status, status);
    else if (status == DI_CUDA_SAMPLE_OK) {
        bool top = want.sample.n_top == (size_t)got.n_top;
        for (size_t k = 0; top && k < want.sample.n_top; k++)
            top = want.sample.top[k].id == got.top[k].id && memcmp(&want.sample.top[k].logprob, &got.top[k].logprob, 4) == 0;
        if (want.sample.id != got.id)
            snprintf(text, sizeof text, "id %d, expected %d", got.id, want.sample.id);
        else if (!(std::isnan(want.sample.logprob) && std::isnan(got.logprob)) && want.sample.logprob != got.logprob)
            snprintf(text, sizeof text, "log-probability %.9g, expected %.9g", got.logprob, want.sample.logprob);
        else if (!top)
            snprintf(text, sizeof text, "alternatives differ, %d of %zu; first %d %.9g, expected %d %.9g", got.n_top, want.sample.n_top,
                     got.top[0].id, got.top[0].logprob, want.sample.top[0].id, want.sample.top[0].logprob);
    }
    return text;
}

std::chrono::steady_clock::time_point begin;
int checked;
double seconds(void)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/* Bounded in time: a slow machine checks fewer. */
void check_rows(int vocab, int count, uint64_t seed)
{
    device d = open_device(vocab);
    float *logits;
    LAB_CHECK(cudaMallocHost(&logits, (size_t)ROWS * vocab * sizeof(float)));
    std::vector<request> requests(ROWS);
    int wrong = 0, bits = 0;
    for (int done = 0; done < count && seconds() < 60; done += ROWS, seed++) {
        int m = std::min(ROWS, count - done);
        checked += m;
        std::vector<di_cuda_sample_row> rows(ROWS);
        std::vector<di_cuda_sample_edit> edits(ROWS * EDITS);
        std::vector<uint64_t> masks(2 * ROWS * d.words);
        lab_parallel(m, [&](int i) {
            lab_rng rng = {seed * 1000003 + (uint64_t)i * 7919};
            fill_request(requests[i], logits + (size_t)i * vocab, vocab, rng);
            rows[i] = make_row(d, requests[i].task, i, vocab, &edits[i * EDITS]);
            std::copy(requests[i].banned.begin(), requests[i].banned.end(), masks.begin() + 2 * i * d.words);
            std::copy(requests[i].allowed.begin(), requests[i].allowed.end(), masks.begin() + (2 * i + 1) * d.words);
        });
        LAB_CHECK(cudaMemcpyAsync(d.logits, logits, (size_t)m * vocab * sizeof(float), cudaMemcpyHostToDevice));
        LAB_CHECK(cudaMemcpy(d.masks, masks.data(), masks.size() * 8, cudaMemcpyHostToDevice));
        LAB_CHECK(cudaMemcpy(d.edits, edits.data(), edits.size() * sizeof edits[0], cudaMemcpyHostToDevice));
        LAB_CHECK(cudaMemcpy(d.rows, rows.data(), rows.size() * sizeof rows[0], cudaMemcpyHostToDevice));
        uint32_t phases = DI_CUDA_SAMPLE_EDITS | DI_CUDA_SAMPLE_SECOND;
        std::vector<di_cuda_sample_result> got = results_of(d, 0, m, vocab, phases);
        if (done == 0)
            for (int n : {1, 2, 16, m})
                for (int first = 0; first < m; first += std::max(n, m / 8)) {
                    int k = std::min(n, m - first);
                    std::vector<di_cuda_sample_result> part = results_of(d, first, k, vocab, phases);
                    for (int i = 0; i < k; i++)
                        bits += !same_result(part[i], got[first + i]);
                }
        std::vector<std::string> differs(m);
        lab_parallel(m, [&](int i) {
            struct di_law *law;
            struct di_sample_result want;
            if (di_law_create((size_t)vocab, &law, NULL) != DI_OK)
                exit(1);
            di_sample_task_run(law, &requests[i].task, &want);
            di_law_destroy(law);
            differs[i] = compare(want, got[i]);
        });
        for (int i = 0; i < m; i++)
            if (!differs[i].empty() && wrong++ < 8) {
                const di_cuda_sample_row &r = rows[i];
                lab_expect(false,
                           "sampler: %d ids, %s, T %g, top_k %lld, top_p %g, min_p %g, logprobs %d top %d, edits %d %d %d, masks %d %d, "
                           "forced %d: %s",
                           vocab, kind_names[requests[i].kind], r.temperature, (long long)r.top_k, r.top_p, r.min_p, r.logprobs, r.n_top,
                           r.n_bias, r.n_counts, r.n_end, r.banned != NULL, r.allowed != NULL, r.forced, differs[i].c_str());
            }
    }
    lab_expect(wrong == 0, "sampler: %d of %d rows of %d ids differ from the plain form", wrong, count, vocab);
    lab_expect(bits == 0, "sampler: %d rows of %d ids differ in other company", bits, vocab);
    for (auto &r : requests)
        di_token_counts_destroy(r.counts);
    cudaFreeHost(logits);
    close_device(d);
}

/* ---- timings */

__global__ void fill_normal(float *x, size_t n, float width, uint64_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (seed + i) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        float u = ((float)(uint32_t)z + 0.5f) * 0x1p-32f, v = (float)(uint32_t)(z >> 32) * 0x1p-32f;
        x[i] = width * sqrtf(-2 * logf(u)) * cospif(2 * v);
    }
}

void time_rows(void)
{
    struct way {
        const char *name;
        float width;
        double t, top_p, min_p;
        int64_t top_k;
        int logprobs, n_top;
    };
    const way ways[] = {{"greedy", 2, 0, 1, 0, -1, 0, 0},
                        {"T 1", 2, 1, 1, 0, -1, 0, 0},
                        {"T 1, top-p .95", 2, 1, 0.95, 0, -1, 0, 0},
                        {"T .7, top-p .95", 2, 0.7, 0.95, 0, -1, 0, 0},
                        {"T 1, top-k 50", 2, 1, 1, 0, 50, 0, 0},
                        {"T 1, top-k 50, top-p .95", 2, 1, .95, 0, 50, 0, 0},
                        {"T 1, min-p .05", 2, 1, 1, 0.05, -1, 0, 0},
                        {"T 1, logprob", 2, 1, 1, 0, -1, 1, 0},
                        {"T 1, logprob, top 20", 2, 1, 1, 0, -1, 1, 20},
                        {"greedy, logprob, top 20", 2, 0, 1, 0, -1, 1, 20},
                        {"T 1, top-p .95, width 4", 4, 1, 0.95, 0, -1, 0, 0},
                        {"T 1, all within .05", 0.01f, 1, 1, 0, -1, 0, 0},
                        {"T 1, top-p .95, whole row", 0.01f, 1, 0.95, 0, -1, 0, 0}};
    device d = open_device(VOCAB);
    const int SETS = 4;
    float *logits = lab_alloc<float>((size_t)SETS * ROWS * VOCAB);
    auto *rows = lab_alloc<di_cuda_sample_row>(SETS * ROWS);
    float width = 0;
    for (const way &w : ways) {
        if (lab_once && &w != ways + 1 && &w != ways + 2 && &w != ways + 4 && &w != ways + 8)
            continue;
        if (w.width != width) {
            fill_normal<<<2048, 256>>>(logits, (size_t)SETS * ROWS * VOCAB, w.width, 11);
            width = w.width;
        }
        std::vector<di_cuda_sample_row> host(SETS * ROWS);
        for (int i = 0; i < SETS * ROWS; i++) {
            di_cuda_sample_row r = {};
            r.logits = logits + (size_t)i * VOCAB;
            r.repetition = 1, r.temperature = w.t, r.top_p = w.top_p, r.min_p = w.min_p, r.top_k = w.top_k;
            r.key = 1234567 + i, r.position = (uint32_t)i, r.forced = -1, r.n_top = w.n_top, r.logprobs = w.logprobs;
            host[i] = r;
        }
        uint32_t phases = di_cuda_sample_phases(&host[0]);
        LAB_CHECK(cudaMemcpy(rows, host.data(), host.size() * sizeof host[0], cudaMemcpyHostToDevice));
        for (int m : {1, 16, 64, 256}) {
            if (lab_once && m != 256)
                continue;
            int sets = SETS * ROWS / m, launches = std::min(sets, m == 256 ? SETS : 64);
            auto launch = [&](int i, cudaStream_t s) {
                struct di_cuda_sample a = {m, VOCAB, phases, rows + (size_t)(i % launches) * m, d.results, d.ids, d.scratch};
                LAB_CHECK(di_cuda_sample(&a, s));
            };
            if (lab_once) {
                launch(0, 0);
                LAB_CHECK(cudaDeviceSynchronize());
                continue;
            }
            double us[2];
            for (double &t : us)
                t = lab_time(launch, launches, 20);
            char name[80];
            snprintf(name, sizeof name, "%s m=%d", w.name, m);
            lab_report({"sampler", name, 4.0 * m * VOCAB, 0, us[0], us[1], 0, 0, 0, true, ""});
        }
    }
    cudaFree(logits);
    cudaFree(rows);
    close_device(d);
}

} // namespace

void lab_sampler(void)
{
    normals.resize(TABLE);
    lab_rng rng = {5};
    for (auto &z : normals)
        z = rng.normal();
    begin = std::chrono::steady_clock::now();
    if (lab_small) {
        for (int vocab : {1, 100, 8200, 20001})
            check_rows(vocab, 256, 1000 * (uint64_t)vocab);
    } else if (!lab_once) {
        for (int vocab : {1, 2, 5, 15, 31, 64, 100, 257, 1000, 4099, 8191, 8192, 8196, 20000, 32768, 60001})
            check_rows(vocab, vocab > 10000 ? 2560 : 4096, 1000 * (uint64_t)vocab);
        check_rows(DI_CUDA_SAMPLE_MAX_VOCAB, 256, 3);
        check_rows(VOCAB, 40192, 77);
    }
    printf("sampler: %d rows against the plain form in %.1f s\n", checked, seconds());
    fflush(stdout);
    if (!lab_small)
        time_rows();
}
