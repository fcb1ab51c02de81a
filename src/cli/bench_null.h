/* An engine without a model, for what the engine itself costs: a few bytes for each row of its caches, steps of the caller's. */
#ifndef DI_CLI_BENCH_NULL_H
#define DI_CLI_BENCH_NULL_H

#include "engine/core.h"

static inline struct di_core_null di_bench_null_core(int vocab, int64_t context,
                                                     di_status (*compute)(void *ctx, const struct di_step *step, di_error *err))
{
    return (struct di_core_null){.vocab = vocab,
                                 .context = context,
                                 .compute = compute,
                                 .window = 128,
                                 .layers = 2,
                                 .numerics = "null",
                                 .layout = {.block_bytes = DI_BLOCK_TOKENS * 8,
                                            .ring_bytes = DI_RING_ROWS * 8,
                                            .tail_bytes = 64,
                                            .n_sources = 1,
                                            .ratio = {1},
                                            .key_row_bytes = 8,
                                            .ring_layers = 1,
                                            .window_row_bytes = 8}};
}

#endif
