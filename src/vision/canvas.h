/* Rows of a picture to the canvas that the tower sees: fitted, padded with grey, cut into patches (spec/vision.md §4.1, §5, §6). The size of
 * the canvas comes from the image plan (text/image_plan.h). */
#ifndef DI_VISION_CANVAS_H
#define DI_VISION_CANVAS_H

#include "vision/resample.h"

#define DI_CANVAS_GREY 127

/* Where the picture lies on its canvas. */
struct di_placement {
    int64_t width, height; /* of the canvas */
    int64_t fit_width, fit_height, x, y;
};
/* max_aspect as in the image plan; 0: none. All sizes >= 1. */
struct di_placement di_place(int64_t width, int64_t height, int64_t canvas_width, int64_t canvas_height, int64_t max_aspect);

/* A canvas under way. One thread. Holds 3 * fit_width * picture height bytes unless the height stays as it is. */
struct di_canvas {
    /* private */
    struct di_placement at;
    int64_t in_width, in_height, row;
    const struct di_resampler *resampler;
    struct di_axis across, down; /* empty where the size stays */
    uint8_t *fit;                /* [in_height][fit_width][3] */
    uint8_t *pixels;
};

/* `pixels` belongs to the caller and gets height * width * 3 bytes. The resampler is one that this processor runs; NULL: the best.
 * DI_ERR_MEMORY; then nothing needs closing. */
di_status di_canvas_open(struct di_canvas *c, int64_t width, int64_t height, const struct di_placement *at,
                         const struct di_resampler *resampler, uint8_t *pixels, di_error *err);
/* The next row of the picture, 3 * width bytes and 16 readable ones behind them. */
void di_canvas_add_row(struct di_canvas *c, const uint8_t *rgb);
/* All rows are there: the canvas is written whole. */
void di_canvas_finish(struct di_canvas *c);
void di_canvas_close(struct di_canvas *c);

/* bf16 of ((v / 255) - 0.5) / 0.5 for each v. Made once by division: multiplying by 1 / 255 gives another value for the grey. */
void di_patch_values(uint16_t table[256]);
/* Patches in reading order, each [3][patch][patch] as bf16 from `table`, at `stride` elements from each other; elements behind
 * 3 * patch * patch are left alone. Width and height are multiples of the patch. */
void di_canvas_patches(const uint8_t *pixels, int64_t width, int64_t height, int64_t patch, const uint16_t table[256], uint16_t *out,
                       int64_t stride);

#endif
