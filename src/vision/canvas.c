#include "vision/canvas.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* Half to even, as the reference; at least one pixel, where it would fail. */
static int64_t round_side(double x)
{
    int64_t n = (int64_t)rint(x);
    return n < 1 ? 1 : n;
}

struct di_placement di_place(int64_t width, int64_t height, int64_t canvas_width, int64_t canvas_height, int64_t max_aspect)
{
    struct di_placement p = {.width = canvas_width, .height = canvas_height, .fit_width = canvas_width, .fit_height = canvas_height};
    double w = (double)width, h = (double)height, cw = (double)canvas_width, ch = (double)canvas_height;
    if (max_aspect > 0 && width >= max_aspect * height)
        return p; /* stretched */
    if (w / h > cw / ch)
        p.fit_height = round_side(h / w * cw);
    else if (w / h < cw / ch)
        p.fit_width = round_side(w / h * ch);
    if (p.fit_width != canvas_width)
        p.x = (int64_t)rint((double)(canvas_width - p.fit_width) * 0.5);
    else
        p.y = (int64_t)rint((double)(canvas_height - p.fit_height) * 0.5);
    return p;
}

/* The place of row y of the fitted picture. */
static uint8_t *canvas_row(const struct di_canvas *c, int64_t y)
{
    return c->pixels + ((c->at.y + y) * c->at.width + c->at.x) * 3;
}

di_status di_canvas_open(struct di_canvas *c, int64_t width, int64_t height, const struct di_placement *at,
                         const struct di_resampler *resampler, uint8_t *pixels, di_error *err)
{
    di_status status = DI_OK;
    *c = (struct di_canvas){.at = *at, .in_width = width, .in_height = height, .pixels = pixels};
    c->resampler = resampler ? resampler : di_resampler_best();
    if (width != at->fit_width)
        TRY(di_axis_open(width, at->fit_width, c->resampler->form, &c->across, err));
    if (height != at->fit_height) {
        TRY(di_axis_open(height, at->fit_height, c->resampler->form, &c->down, err));
        c->fit = di_malloc((size_t)(height * at->fit_width) * 3 + 64); /* the fast forms read whole registers */
        CHECK(c->fit, err, DI_ERR_MEMORY, "", "out of memory");
    }
    memset(pixels, DI_CANVAS_GREY, (size_t)(at->width * at->height) * 3);
out:
    if (status != DI_OK)
        di_canvas_close(c);
    return status;
}

void di_canvas_add_row(struct di_canvas *c, const uint8_t *rgb)
{
    uint8_t *to = c->fit ? c->fit + c->row * c->at.fit_width * 3 : canvas_row(c, c->row);
    c->row++;
    if (c->across.out)
        c->resampler->across(&c->across, rgb, to);
    else
        memcpy(to, rgb, (size_t)c->in_width * 3);
}

void di_canvas_finish(struct di_canvas *c)
{
    int64_t bytes = c->at.fit_width * 3;
    for (int64_t y = 0; c->fit && y < c->at.fit_height; y++)
        c->resampler->down(&c->down, y, c->fit, bytes, canvas_row(c, y), bytes);
}

void di_canvas_close(struct di_canvas *c)
{
    di_axis_close(&c->across);
    di_axis_close(&c->down);
    di_free(c->fit);
    c->fit = NULL;
}

/* ---------------------------------------------------------------- patches */

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void di_patch_values(uint16_t table[256])
{
    for (int v = 0; v < 256; v++)
        table[v] = bf16_of(((float)v / 255.0f - 0.5f) / 0.5f);
}

/* One row of pixels of one patch, its three colours apart. */
static void split_colours(const uint8_t *rgb, int64_t patch, const uint16_t table[256], uint16_t *out)
{
    int64_t plane = patch * patch;
    for (int64_t x = 0; x < patch; x++)
        for (int c = 0; c < 3; c++)
            out[c * plane + x] = table[rgb[3 * x + c]];
}

void di_canvas_patches(const uint8_t *pixels, int64_t width, int64_t height, int64_t patch, const uint16_t table[256], uint16_t *out,
                       int64_t stride)
{
    int64_t columns = width / patch;
    for (int64_t y = 0; y < height; y++)
        for (int64_t column = 0; column < columns; column++)
            split_colours(pixels + (y * width + column * patch) * 3, patch, table,
                          out + (y / patch * columns + column) * stride + y % patch * patch);
}
