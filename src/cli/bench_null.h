/* A stepper without a model, for what the engine itself costs: a few bytes for each row of its caches, logits of the caller's. */
#ifndef DI_CLI_BENCH_NULL_H
#define DI_CLI_BENCH_NULL_H

#include "engine/core.h"

static inline di_status di_bench_compute_nothing(void *ctx, const struct di_step *step, di_error *err)
{
    (void)ctx, (void)step, (void)err;
    return DI_OK;
}

/* `head` fills the logits. */
static inline struct di_stepper di_bench_null_stepper(int vocab, int64_t context,
                                                      void (*head)(void *ctx, const struct di_step *step, int first, int n, float *logits))
{
    return (struct di_stepper){.vocab = vocab,
                               .context = context,
                               .compute = di_bench_compute_nothing,
                               .head = head,
                               .window = 128,
                               .layers = 2,
                               .numerics = "null",
                               .layout = {.block_bytes = DI_BLOCK_TOKENS * 8,
                                          .ring_bytes = DI_RING_ROWS * 8,
                                          .raw_bytes = 64,
                                          .n_sources = 1,
                                          .ratio = {1},
                                          .key_row_bytes = 8,
                                          .ring_layers = 1,
                                          .window_row_bytes = 8}};
}

#endif
