/* Where the masks of a request come from: bit sets of the ids that may follow what it has so far. They are computed beside the model, by
 * somebody else's threads; the worker of the pipeline asks for them between the model's part of a launch and the sampler, which waits there
 * for those that are late. */
#ifndef DI_ENGINE_MASKS_H
#define DI_ENGINE_MASKS_H

#include "deepinfer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `start` and `wait` are called on the worker's thread, in pairs: `start` before the model computes, `wait` afterwards, unless the launch
 * fails in between. A request that gives way and starts again asks for the same positions again or for later ones. */
struct di_mask_source {
    /* The tokens in front of position `at` are decided. Those at `at` .. at + n - 2 are guesses: the masks of the n tokens at `at` .. at + n
     * - 1 will be asked for, the i-th as if the i guesses before it came true. The ids may be read until `wait` returns. Waits
     * only if the launch before failed, for what it still reads. */
    void (*start)(void *ctx, const int32_t *tokens, int64_t at, int n);
    /* Fills allowed[n] (sample/sampler.h): bit sets that stay as they are until the next `start`, or NULL: whatever may follow. Waits for
     * what is not ready. Not DI_OK: the request ends with this error, no token follows. */
    di_status (*wait)(void *ctx, int n, const uint64_t **allowed, di_error *err);
    /* Nobody asks any more, the request is gone. Once, from the engine's thread. */
    void (*release)(void *ctx);
    void *ctx;
};

#endif
