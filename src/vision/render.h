/* From the bytes of a picture to its canvas, in the calling process. */
#ifndef DI_VISION_RENDER_H
#define DI_VISION_RENDER_H

#include "vision/picture.h"

struct di_render_order {
    struct di_picture_rules rules;
    struct di_picture_limits limits;
    int64_t canvas_width, canvas_height; /* of the image plan, for the size that di_picture_read gave under these rules */
    int64_t max_aspect;                  /* as in the image plan */
    bool want_pixel_crc;                 /* for tests and people: a pass over all samples */
};

/* Reads the header, decodes, fits and pads. `canvas` gets canvas_height * canvas_width * 3 bytes, *pixel_crc (may be NULL) the CRC-32 of
 * the picture's own RGB samples if that is wanted. Errors as of di_picture_read and di_picture_decode. */
di_status di_render(struct di_str bytes, const struct di_render_order *order, uint8_t *canvas, uint32_t *pixel_crc, di_error *err);

/* Append what decides the bytes of a canvas besides the picture and its grid: rules and decoders. Belongs into every key under which
 * something made of a picture is kept. */
void di_recipe_add_name(struct di_buf *b, const struct di_picture_rules *rules);

#endif
