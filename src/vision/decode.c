#include "vision/decode.h"

#include "vision/decode_impl.h"

static di_decode_fn *const decoders[DI_PICTURE_FORMATS] = {
    [DI_PICTURE_JPEG] = di_decode_jpeg,
    [DI_PICTURE_PNG] = di_decode_png,
    [DI_PICTURE_GIF] = di_decode_gif,
    [DI_PICTURE_WEBP] = di_decode_webp,
};

uint8_t *di_rows_alloc(int64_t rows, int64_t row_bytes)
{
    size_t bytes;
    if (!di_mul((size_t)rows, (size_t)row_bytes, &bytes) || !di_add(bytes, DI_ROW_PAD, &bytes))
        return NULL;
    return di_calloc(1, bytes);
}

/* ---------------------------------------------------------------- EXIF */

/* A turned picture is collected whole and read in another order. */
struct turn {
    const struct di_picture *picture;
    uint8_t *pixels; /* [stored_height][stored_width][3] */
    int64_t row;
};

static di_status collect_row(void *ctx, const uint8_t *rgb, di_error *err)
{
    (void)err;
    struct turn *t = ctx;
    size_t bytes = (size_t)t->picture->stored_width * 3;
    memcpy(t->pixels + (size_t)t->row++ * bytes, rgb, bytes);
    return DI_OK;
}

/* How the stored place moves per step right and down in the turned picture, and where it starts. */
struct walk {
    int64_t start_x, start_y, right_x, right_y, down_x, down_y;
};

static struct walk walk_of(const struct di_picture *p)
{
    int64_t last_x = p->stored_width - 1, last_y = p->stored_height - 1;
    const struct walk walks[9] = {
        [1] = {0, 0, 1, 0, 0, 1}, [2] = {last_x, 0, -1, 0, 0, 1}, [3] = {last_x, last_y, -1, 0, 0, -1}, [4] = {0, last_y, 1, 0, 0, -1},
        [5] = {0, 0, 0, 1, 1, 0}, [6] = {0, last_y, 0, -1, 1, 0}, [7] = {last_x, last_y, 0, -1, -1, 0}, [8] = {last_x, 0, 0, 1, -1, 0},
    };
    return walks[p->orientation];
}

static di_status emit_turned(const struct turn *t, const struct di_row_sink *sink, di_error *err)
{
    const struct di_picture *p = t->picture;
    struct walk w = walk_of(p);
    di_status status = DI_OK;
    uint8_t *row = di_rows_alloc(1, 3 * p->width);
    CHECK(row, err, DI_ERR_MEMORY, "", "out of memory");
    for (int64_t y = 0; y < p->height; y++) {
        for (int64_t x = 0; x < p->width; x++) {
            int64_t sx = w.start_x + x * w.right_x + y * w.down_x, sy = w.start_y + x * w.right_y + y * w.down_y;
            memcpy(row + 3 * x, t->pixels + 3 * (sy * p->stored_width + sx), 3);
        }
        TRY(sink->row(sink->ctx, row, err));
    }
out:
    di_free(row);
    return status;
}

/* ---------------------------------------------------------------- all formats */

di_status di_picture_decode(struct di_str bytes, const struct di_picture *picture, const struct di_picture_rules *rules, int max_scans,
                            const struct di_row_sink *sink, di_error *err)
{
    struct turn turn = {.picture = picture};
    struct di_row_sink collect = {collect_row, &turn};
    bool turned = picture->orientation > 1;
    struct di_decode_job job = {
        .bytes = (const uint8_t *)bytes.p,
        .n = bytes.n,
        .picture = picture,
        .rules = rules,
        .max_scans = max_scans,
        .sink = turned ? &collect : sink,
    };
    di_status status = DI_OK;
    if (turned) {
        turn.pixels = di_rows_alloc(picture->stored_height, 3 * picture->stored_width);
        CHECK(turn.pixels, err, DI_ERR_MEMORY, "", "out of memory");
    }
    TRY(decoders[picture->format](&job, err));
    if (turned)
        TRY(emit_turned(&turn, sink, err));
out:
    di_free(turn.pixels);
    return status;
}
