/* What the measurements of the kernel lab share: random device data, timing by graph replay, results, host threads for references. */
#ifndef DI_BENCH_CUDA_LAB_H
#define DI_BENCH_CUDA_LAB_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

extern "C" {
#include "checkpoint/formats.h"
}

#define LAB_CHECK(call)                                                                                              \
    do {                                                                                                             \
        int lab_err = (int)(call);                                                                                   \
        if (lab_err != 0) {                                                                                          \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString((cudaError_t)lab_err)); \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

/* Ceilings of this run; the floor of a kernel is max(bytes / copy, operations / bf16). */
struct lab_ceilings {
    double copy;  /* bytes/s, read + written, of a large device copy */
    double read;  /* bytes/s of a kernel that only reads */
    double write; /* bytes/s of a memset */
    double bf16;  /* operations/s of an 8192^3 product through cuBLAS, given on the command line */
};
extern struct lab_ceilings lab_ceilings;
extern bool lab_once;  /* no timing: a launch of one middle size only */
extern bool lab_small; /* no timing: checks of small shapes only */

struct lab_result {
    std::string kernel, shape;
    double bytes, operations; /* the least that must be moved and done */
    double us, us_again;      /* medians of two series of replays */
    double floor_us, percent;
    double error; /* ||out - ref|| / ||ref|| of this run, or -1 */
    bool bits;    /* rows equal in any company, repeats equal */
    std::string note;
};
void lab_report(lab_result r); /* floor and percent are filled in, a line is printed */
void lab_write_json(const char *path);
int lab_failures(void); /* checks that failed so far */
void lab_expect(bool ok, const char *format, ...);

/* Deterministic random data on the device. */
void lab_random_bytes(void *p, size_t n, uint64_t seed);
void lab_random_range(uint8_t *p, size_t n, int lo, int hi, uint64_t seed); /* bytes lo..hi */
void lab_random_e4m3(uint8_t *p, size_t n, uint64_t seed);                  /* no NaN codes */
void lab_poison(void *p, size_t n);                                         /* NaN as fp32 and as bf16 */
template <class T> T *lab_alloc(size_t n)
{
    void *p;
    LAB_CHECK(cudaMalloc(&p, n * sizeof(T)));
    return (T *)p;
}
template <class T> std::vector<T> lab_download(const T *p, size_t n)
{
    std::vector<T> v(n);
    LAB_CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}
template <class T> T *lab_upload(const std::vector<T> &v)
{
    T *p = lab_alloc<T>(v.size());
    LAB_CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* Host random numbers. */
struct lab_rng {
    uint64_t s;
    uint64_t next(void);
    double uniform(void); /* [0, 1) */
    float normal(void);
};
/* Rows of normal values as bf16; q8: rounded by Q8 first. */
std::vector<uint16_t> lab_activations(int m, int k, bool q8, lab_rng &rng);
inline float lab_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline float lab_round_bf16(float x)
{
    return di_round_bf16(x);
}

/* Median microseconds of one launch: a graph of `launches` calls (index 0..launches-1: rotate the data by it), replayed. */
double lab_time(const std::function<void(int, cudaStream_t)> &launch, int launches, int replays = 30);
/* f(i) for 0 <= i < n on all processors. */
void lab_parallel(int n, const std::function<void(int)> &f);
/* ||a - b|| / ||b||; NaN anywhere gives NaN. */
struct lab_norm {
    double diff = 0, ref = 0;
    void add(double out, double want)
    {
        diff += (out - want) * (out - want);
        ref += want * want;
    }
    double value(void) const;
};

void lab_mma_order(void);
void lab_moe_decode(void);
void lab_dense_decode(void);
void lab_hc_site(void);
void lab_hc_rows(void);
void lab_sampler(void);
void lab_attention(void);

#endif
