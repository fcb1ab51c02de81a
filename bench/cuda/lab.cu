/* The kernel lab: measures the ceilings, runs the named kernels' checks and timings, writes JSON.
 * usage: lab [--bf16 TFLOP/s] [--copy GB/s] [--json FILE] [--once | --small] [KERNEL ...]
 * --once: one launch of one size, for a profiler; --small: only the checks of small shapes, for compute-sanitizer */
#include "lab.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstring>
#include <thread>

struct lab_ceilings lab_ceilings;
bool lab_once, lab_small;
static std::vector<lab_result> results;
static int failures;

void lab_expect(bool ok, const char *format, ...)
{
    if (ok)
        return;
    failures++;
    va_list ap;
    va_start(ap, format);
    printf("FAILED: ");
    vprintf(format, ap);
    printf("\n");
    va_end(ap);
}

int lab_failures(void)
{
    return failures;
}

void lab_report(lab_result r)
{
    r.floor_us = 1e6 * std::max(r.bytes / lab_ceilings.copy, r.operations / lab_ceilings.bf16);
    r.percent = 100 * r.floor_us / r.us;
    printf("%-14s %-34s %9.2f us (%9.2f) floor %9.2f  %5.1f %%  %6.0f GB/s  %6.1f TFLOP/s  err %.1e %s %s\n", r.kernel.c_str(),
           r.shape.c_str(), r.us, r.us_again, r.floor_us, r.percent, r.bytes / r.us * 1e-3, r.operations / r.us * 1e-6, r.error,
           r.bits ? "bits ok" : "BITS DIFFER", r.note.c_str());
    fflush(stdout);
    results.push_back(r);
}

void lab_write_json(const char *path)
{
    FILE *f = fopen(path, "w");
    cudaDeviceProp p;
    LAB_CHECK(cudaGetDeviceProperties(&p, 0));
    fprintf(f,
            "{\"device\": \"%s\", \"multiprocessors\": %d, \"copy_gb_s\": %.1f, \"read_gb_s\": %.1f, \"bf16_tflops\": %.1f, \"failures\": "
            "%d,\n \"results\": [\n",
            p.name, p.multiProcessorCount, lab_ceilings.copy * 1e-9, lab_ceilings.read * 1e-9, lab_ceilings.bf16 * 1e-12, failures);
    for (size_t i = 0; i < results.size(); i++) {
        const lab_result &r = results[i];
        fprintf(f,
                "  {\"kernel\": \"%s\", \"shape\": \"%s\", \"bytes\": %.0f, \"operations\": %.0f, \"us\": %.3f, \"us_again\": %.3f, "
                "\"floor_us\": %.3f, "
                "\"percent_of_floor\": %.2f, \"error\": %.3e, \"bits\": %s, \"note\": \"%s\"}%s\n",
                r.kernel.c_str(), r.shape.c_str(), r.bytes, r.operations, r.us, r.us_again, r.floor_us, r.percent, r.error,
                r.bits ? "true" : "false", r.note.c_str(), i + 1 < results.size() ? "," : "");
    }
    fprintf(f, " ]}\n");
    fclose(f);
}

/* ---- random data */

__host__ __device__ static inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

enum { FILL_BYTES, FILL_RANGE, FILL_E4M3, FILL_POISON };

__global__ void fill(uint8_t *p, size_t n, int kind, int lo, int hi, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i * 8 < n; i += step) {
        uint64_t r = mix(seed * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull);
        for (size_t b = 0; b < 8 && i * 8 + b < n; b++) {
            int v = (int)(r >> 8 * b & 255);
            if (kind == FILL_RANGE)
                v = lo + v % (hi - lo + 1);
            if (kind == FILL_E4M3 && (v & 127) == 127)
                v ^= 64;
            p[i * 8 + b] = kind == FILL_POISON ? 0xFF : (uint8_t)v;
        }
    }
}

static void run_fill(void *p, size_t n, int kind, int lo, int hi, uint64_t seed)
{
    fill<<<2048, 256>>>((uint8_t *)p, n, kind, lo, hi, seed);
    LAB_CHECK(cudaGetLastError());
}
void lab_random_bytes(void *p, size_t n, uint64_t seed)
{
    run_fill(p, n, FILL_BYTES, 0, 0, seed);
}
void lab_random_range(uint8_t *p, size_t n, int lo, int hi, uint64_t seed)
{
    run_fill(p, n, FILL_RANGE, lo, hi, seed);
}
void lab_random_e4m3(uint8_t *p, size_t n, uint64_t seed)
{
    run_fill(p, n, FILL_E4M3, 0, 0, seed);
}
void lab_poison(void *p, size_t n)
{
    run_fill(p, n, FILL_POISON, 0, 0, 0);
}

uint64_t lab_rng::next(void)
{
    return mix(s += 0x9E3779B97F4A7C15ull);
}
double lab_rng::uniform(void)
{
    return (double)(next() >> 11) * 0x1p-53;
}
float lab_rng::normal(void)
{
    return (float)(std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform()));
}

std::vector<uint16_t> lab_activations(int m, int k, bool q8, lab_rng &rng)
{
    std::vector<float> x((size_t)m * k);
    for (auto &v : x)
        v = di_round_bf16(rng.normal());
    if (q8)
        di_q8_round(x.data(), x.size(), x.data());
    std::vector<uint16_t> out(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        out[i] = (uint16_t)(u >> 16);
    }
    return out;
}

/* ---- timing, threads, norms */

double lab_time(const std::function<void(int, cudaStream_t)> &launch, int launches, int replays)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    LAB_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    LAB_CHECK(cudaEventCreate(&begin));
    LAB_CHECK(cudaEventCreate(&end));
    launch(0, stream);
    LAB_CHECK(cudaStreamSynchronize(stream));
    LAB_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++)
        launch(i, stream);
    LAB_CHECK(cudaStreamEndCapture(stream, &graph));
    LAB_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> ms;
    for (int i = 0; i < replays + 3; i++) {
        LAB_CHECK(cudaEventRecord(begin, stream));
        LAB_CHECK(cudaGraphLaunch(exec, stream));
        LAB_CHECK(cudaEventRecord(end, stream));
        LAB_CHECK(cudaEventSynchronize(end));
        float t;
        LAB_CHECK(cudaEventElapsedTime(&t, begin, end));
        if (i >= 3)
            ms.push_back(t);
    }
    LAB_CHECK(cudaGetLastError());
    std::sort(ms.begin(), ms.end());
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaStreamDestroy(stream);
    return 1e3 * ms[ms.size() / 2] / launches;
}

void lab_parallel(int n, const std::function<void(int)> &f)
{
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); t++)
        threads.emplace_back([&] {
            for (int i; (i = next++) < n;)
                f(i);
        });
    for (auto &t : threads)
        t.join();
}

double lab_norm::value(void) const
{
    return std::sqrt(diff) / std::sqrt(ref);
}

/* ---- ceilings */

__global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t x = 0;
    size_t step = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
        x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (x == 0x12345678)
        *out = x;
}

__global__ void copy_all(const uint4 *p, uint4 *q, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
        __stcs(q + i, a), __stcs(q + i + step, b), __stcs(q + i + 2 * step, c), __stcs(q + i + 3 * step, d);
    }
}

static void measure_ceilings(void)
{
    size_t n = (size_t)4 << 30;
    uint8_t *a = lab_alloc<uint8_t>(n), *b = lab_alloc<uint8_t>(n);
    lab_random_bytes(a, n, 1);
    double us = lab_time([&](int, cudaStream_t s) { LAB_CHECK(cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, s)); }, 1, 10);
    double copy = 2.0 * (double)n / us * 1e6;
    us = lab_time([&](int, cudaStream_t s) { copy_all<<<132 * 16, 512, 0, s>>>((const uint4 *)a, (uint4 *)b, n / 16); }, 1, 10);
    lab_ceilings.copy = std::max(lab_ceilings.copy, std::max(copy, 2.0 * (double)n / us * 1e6));
    printf("copy: runtime %.0f GB/s, kernel %.0f GB/s\n", copy * 1e-9, 2e-3 * (double)n / us);
    us = lab_time([&](int, cudaStream_t s) { read_all<<<132 * 8, 512, 0, s>>>((const uint4 *)a, n / 16, (uint32_t *)b); }, 1, 10);
    lab_ceilings.read = (double)n / us * 1e6;
    us = lab_time([&](int, cudaStream_t s) { LAB_CHECK(cudaMemsetAsync(b, 1, n, s)); }, 1, 10);
    lab_ceilings.write = (double)n / us * 1e6;
    cudaFree(a);
    cudaFree(b);
    printf("ceilings: copy %.0f GB/s (read + write), read only %.0f, write only %.0f, bf16 %.0f TFLOP/s\n", lab_ceilings.copy * 1e-9,
           lab_ceilings.read * 1e-9, lab_ceilings.write * 1e-9, lab_ceilings.bf16 * 1e-12);
}

int main(int argc, char **argv)
{
    const char *json = nullptr;
    std::vector<std::string> names;
    lab_ceilings.bf16 = 790e12, lab_ceilings.copy = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bf16") && i + 1 < argc)
            lab_ceilings.bf16 = 1e12 * atof(argv[++i]);
        else if (!strcmp(argv[i], "--copy") && i + 1 < argc)
            lab_ceilings.copy = 1e9 * atof(argv[++i]);
        else if (!strcmp(argv[i], "--json") && i + 1 < argc)
            json = argv[++i];
        else if (!strcmp(argv[i], "--once"))
            lab_once = true;
        else if (!strcmp(argv[i], "--small"))
            lab_small = true;
        else
            names.push_back(argv[i]);
    }
    const struct {
        const char *name;
        void (*run)(void);
    } kernels[] = {{"mma_order", lab_mma_order}, {"moe_decode", lab_moe_decode}, {"dense_decode", lab_dense_decode},
                   {"hc_site", lab_hc_site},     {"attention", lab_attention},   {"sampler", lab_sampler},
                   {"hc_rows", lab_hc_rows}};
    if (!lab_once && !lab_small)
        measure_ceilings();
    for (auto &k : kernels)
        if (names.empty() || std::find(names.begin(), names.end(), k.name) != names.end())
            k.run();
    if (json)
        lab_write_json(json);
    printf("%zu results, %d checks failed\n", results.size(), failures);
    return failures != 0;
}
