#include "vision/render.h"

#include "vision/canvas.h"
#include "vision/decode.h"

#include <zlib.h>

_Static_assert(DI_ROW_PAD >= 16, "the resampler reads 16 bytes behind a row");

struct work {
    struct di_canvas canvas;
    size_t row_bytes;
    bool want_crc;
    uLong crc;
};

static di_status take_row(void *ctx, const uint8_t *rgb, di_error *err)
{
    struct work *w = ctx;
    (void)err;
    if (w->want_crc)
        w->crc = crc32(w->crc, rgb, (uInt)w->row_bytes);
    di_canvas_add_row(&w->canvas, rgb);
    return DI_OK;
}

di_status di_render(struct di_str bytes, const struct di_render_order *order, uint8_t *canvas, uint32_t *pixel_crc, di_error *err)
{
    struct di_picture picture;
    struct work work = {.want_crc = order->want_pixel_crc && pixel_crc};
    struct di_row_sink sink = {take_row, &work};
    di_status status = DI_OK;
    TRY(di_picture_read(bytes, &order->rules, &order->limits, &picture, err));
    struct di_placement at = di_place(picture.width, picture.height, order->canvas_width, order->canvas_height, order->max_aspect);
    TRY(di_canvas_open(&work.canvas, picture.width, picture.height, &at, NULL, canvas, err));
    work.row_bytes = (size_t)picture.width * 3;
    TRY(di_picture_decode(bytes, &picture, &order->rules, order->limits.scans, &sink, err));
    di_canvas_finish(&work.canvas);
    if (pixel_crc)
        *pixel_crc = (uint32_t)work.crc;
out:
    di_canvas_close(&work.canvas);
    return status;
}

void di_recipe_add_name(struct di_buf *b, const struct di_picture_rules *rules)
{
    di_buf_adds(b, "canvas 1"); /* another number whenever the same picture would give other bytes */
    di_buf_adds(b, rules->grey16_high ? ", grey16 high" : "");
    di_buf_adds(b, rules->apply_exif ? ", exif" : "");
    di_buf_adds(b, ", ");
    di_decoders_add_names(b);
}
