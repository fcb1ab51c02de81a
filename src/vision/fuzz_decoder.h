/* What the fuzzers of the decoders share: a file of one format through header and decoder, with limits that keep a run short. */
#ifndef DI_VISION_FUZZ_DECODER_H
#define DI_VISION_FUZZ_DECODER_H

#include "vision/decode.h"

struct di_fuzz_rows {
    const struct di_picture *picture;
    int64_t rows;
    uint64_t sum;
};

static inline di_status di_fuzz_take_row(void *ctx, const uint8_t *rgb, di_error *err)
{
    struct di_fuzz_rows *r = ctx;
    (void)err;
    for (int64_t i = 0; i < 3 * r->picture->width + DI_ROW_PAD; i++)
        r->sum += rgb[i];
    r->rows++;
    return DI_OK;
}

/* An error has a sentence, and a picture all its rows. */
static inline int di_fuzz_decoder(enum di_picture_format format, const uint8_t *data, size_t size)
{
    struct di_picture_limits limits = di_picture_limits_default;
    struct di_picture picture;
    struct di_fuzz_rows rows = {.picture = &picture};
    struct di_row_sink sink = {di_fuzz_take_row, &rows};
    struct di_str bytes = {(const char *)data, size};
    struct di_picture_rules rules = {.apply_exif = size & 1, .grey16_high = size & 2};
    di_error err = {0};
    limits.pixels = 200000;
    limits.scans = 10;
    di_status status = di_picture_read(bytes, &rules, &limits, &picture, &err);
    if (status == DI_OK && picture.format != format)
        return 0;
    if (status == DI_OK)
        status = di_picture_decode(bytes, &picture, &rules, limits.scans, &sink, &err);
    if (status == DI_OK ? rows.rows != picture.height : err.message[0] == 0)
        __builtin_trap();
    return 0;
}

#endif
