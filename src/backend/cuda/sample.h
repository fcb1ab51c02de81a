/* The sampler on the device: the law of sample/sampler.h, to the last bit, over rows of fp32 logits that stay where they are. Launchers enqueue on
 * the stream, allocate nothing, wait for nothing, and return a cudaError_t as int (0 = enqueued). All pointers are device memory. */
#ifndef DI_BACKEND_CUDA_SAMPLE_H
#define DI_BACKEND_CUDA_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t */

#define DI_CUDA_SAMPLE_MAX_VOCAB 262143
#define DI_CUDA_SAMPLE_MAX_TOP 20

/* One change of a logit. Lists are in the order of struct di_sampling_params and di_token_counts. */
struct di_cuda_sample_edit {
    int32_t id;
    union {
        float bias;
        uint32_t count; /* of a penalised id that occurs: times in the output; 0 = in the prompt only */
    };
};

struct di_cuda_sample_row {
    const float *logits;              /* [vocab], not changed */
    float *edited;                    /* [vocab] of its own for the edited copy, or NULL: no edits */
    const uint64_t *banned, *allowed; /* as in struct di_row, or NULL */
    const struct di_cuda_sample_edit *edits;
    int32_t n_bias, n_counts, n_end; /* biases first, then one entry for each penalised id, then the ids that min_tokens bans now */
    double repetition, presence, frequency;
    double temperature, top_p, min_p; /* temperature below 1e-5: greedy */
    int64_t top_k;
    uint64_t key;
    uint32_t position;
    int32_t forced; /* >= 0: this token, whatever the logits say */
    int32_t n_top;  /* 0..20 */
    int32_t logprobs;
};

enum { DI_CUDA_SAMPLE_OK, DI_CUDA_SAMPLE_NOT_FINITE, DI_CUDA_SAMPLE_ALL_BANNED };
struct di_cuda_sample_result {
    int32_t status, id;
    int32_t bad_id; /* NOT_FINITE: the first such logit */
    float bad;      /* and its value */
    float logprob;  /* NaN unless asked for */
    int32_t n_top;
    struct {
        int32_t id;
        float logprob;
    } top[DI_CUDA_SAMPLE_MAX_TOP];
};

/* What the rows of a launch need beside the first pass; a superset costs the time of empty kernels only. */
enum {
    DI_CUDA_SAMPLE_EDITS = 1,  /* a row has `edited` */
    DI_CUDA_SAMPLE_SECOND = 2, /* a row reports log-probabilities or draws with top_k, top_p or min_p */
};
uint32_t di_cuda_sample_phases(const struct di_cuda_sample_row *row); /* of one row, in host memory */

struct di_cuda_sample {
    int m, vocab;
    uint32_t phases;
    const struct di_cuda_sample_row *rows; /* [m] */
    struct di_cuda_sample_result *results; /* [m] */
    int32_t *ids;                          /* [m] the tokens once more, -1 for a failed row; or NULL */
    void *scratch;                         /* di_cuda_sample_scratch_bytes */
};
size_t di_cuda_sample_scratch_bytes(int max_rows, int vocab);
int di_cuda_sample(const struct di_cuda_sample *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
