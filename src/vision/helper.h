/* Helper processes that decode pictures (spec/vision.md §16): decoders parse hostile bytes in C, so they run where they can do nothing: no
 * network, no files, bounded memory, time and system calls. A helper that crashes, is killed, stops or takes too long costs its one
 * picture, and is replaced. */
#ifndef DI_VISION_HELPER_H
#define DI_VISION_HELPER_H

#include "base/log.h"
#include "vision/render.h"

struct di_helper_params {
    const char
        *program; /* path of the deepinfer program, run as `deepinfer image-worker`. NULL: pictures are decoded in the calling process;
                           * whoever sends one then needs only a defect of a decoder to do there what he likes */
    int helpers;  /* at most so many pictures at once, each with its own process; 2 */
    int64_t cpu_seconds;      /* processor time of one picture; 5 */
    int64_t wall_ms;          /* time of one picture by the clock; 10,000. Both do not hold in the calling process */
    size_t address_bytes;     /* of a helper, beyond what it has at start and the limit of decode_bytes; 128 MiB */
    const struct di_log *log; /* borrowed; a warning if the system cannot confine helpers */
};
extern const struct di_helper_params di_helper_params_default;

struct di_helpers;

/* Nothing is started before the first picture. `program` is copied. DI_ERR_INVALID, DI_ERR_MEMORY. */
di_status di_helpers_open(const struct di_helper_params *params, struct di_helpers **out, di_error *err);
/* Ends all helpers. Not while a picture is under way. NULL is allowed. */
void di_helpers_close(struct di_helpers *h);

/* As di_render, in the next free helper; waits for one. Any thread. All orders of a pool have the same limits, by which helpers are
 * started. Further errors: DI_ERR_INVALID (the helper crashed over the picture), DI_ERR_LIMIT (it took too long), DI_ERR_IO (no helper can
 * be started). */
di_status di_helpers_render(struct di_helpers *h, struct di_str bytes, const struct di_render_order *order, uint8_t *canvas,
                            uint32_t *pixel_crc, di_error *err);

struct di_helper_counts {
    int64_t pictures; /* rendered or refused by a helper */
    int64_t started;  /* processes */
    int64_t lost;     /* that ended, were ended or did not answer while they had a picture */
    int64_t running;  /* now */
};
void di_helpers_counts(struct di_helpers *h, struct di_helper_counts *out);
/* Process ids of those that run now, for tests and operators; up to `capacity`; returns how many there are. */
int di_helpers_pids(struct di_helpers *h, int64_t *pids, int capacity);

/* What `deepinfer image-worker` does: confine itself, greet, serve orders on descriptor DI_HELPER_FD until the other end closes. Returns
 * the exit status. `address_bytes`: as above, with decode_bytes. One thread, nothing else in the process. */
int di_helper_serve(size_t address_bytes);

#endif
