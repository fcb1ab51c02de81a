/* The bicubic filter of the reference processor, in its integers (spec/vision.md §5): one axis at a time, 8 bits in, 8 bits out, weights of
 * 22 bits. The portable form in resample.c is the reference; the others give the same bytes. */
#ifndef DI_VISION_RESAMPLE_H
#define DI_VISION_RESAMPLE_H

#include "base/error.h"

#include <stdbool.h>

#define DI_WEIGHT_BITS 22

/* What the fast forms read of four taps: 16 bytes. */
enum di_tap_form {
    DI_TAPS_PLAIN,  /* four weights, int32 */
    DI_TAPS_PAIRS,  /* int16: low 12 bits of weights 0 1, the rest of 0 1, low of 2 3, rest of 2 3 */
    DI_TAPS_DIGITS, /* int8: the high digits of weights 0 1 2 3, their middle ones, their low ones, zeros; balanced, base 256 */
};

/* One axis: which source positions make up each output position. Output i is made of the 4 * groups positions from first[i] on; those that
 * the filter does not reach have weight 0. Positions from `in` on have weight 0, too, and may be named when in < 4 * groups. */
struct di_axis {
    int64_t in, out, groups;
    int32_t *first; /* [out] */
    int32_t *taps;  /* [out][groups][4], in the form of `form` */
    enum di_tap_form form;
};

struct di_resampler {
    const char *name;
    enum di_tap_form form;
    /* A row of axis->in pixels of 3 bytes to axis->out pixels. 16 bytes behind the source are read; exactly 3 * out bytes are written. */
    void (*across)(const struct di_axis *axis, const uint8_t *from, uint8_t *to);
    /* Output row i of n bytes out of rows of `stride` bytes, of which there are axis->in. */
    void (*down)(const struct di_axis *axis, int64_t i, const uint8_t *from, int64_t stride, uint8_t *to, int64_t n);
};
extern const struct di_resampler di_resample_ref, di_resample_avx2, di_resample_avx512;

/* Can this processor run it? */
bool di_resampler_runs(const struct di_resampler *r);
/* The fastest that this processor can run. */
const struct di_resampler *di_resampler_best(void);

/* Weights for in -> out positions (both >= 1, in up to 65,535). Zeroed again by di_axis_close. DI_ERR_MEMORY. */
di_status di_axis_open(int64_t in, int64_t out, enum di_tap_form form, struct di_axis *axis, di_error *err);
void di_axis_close(struct di_axis *axis);

#endif
