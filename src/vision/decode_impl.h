/* The decoders of the formats, for decode.c: as di_picture_decode, but rows as they are stored, without the turn of EXIF. */
#ifndef DI_VISION_DECODE_IMPL_H
#define DI_VISION_DECODE_IMPL_H

#include "vision/decode.h"

struct di_decode_job {
    const uint8_t *bytes;
    size_t n;
    const struct di_picture *picture;
    const struct di_picture_rules *rules;
    int max_scans;
    const struct di_row_sink *sink;
};
typedef di_status di_decode_fn(const struct di_decode_job *job, di_error *err);
di_decode_fn di_decode_jpeg, di_decode_png, di_decode_gif, di_decode_webp;

/* Bytes for `rows` rows of `row_bytes` and the padding behind the last; NULL without memory. di_free. */
uint8_t *di_rows_alloc(int64_t rows, int64_t row_bytes);

#endif
