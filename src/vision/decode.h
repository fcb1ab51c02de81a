/* From the bytes of a picture to rows of RGB, 8 bits a sample (spec/vision.md §3.2), by the system's decoders. They parse hostile bytes, so
 * a service runs this in a helper process (vision/helper.h). */
#ifndef DI_VISION_DECODE_H
#define DI_VISION_DECODE_H

#include "vision/picture.h"

#define DI_ROW_PAD 64 /* readable bytes behind each row that is handed on; their content has no meaning */

/* Takes the rows from top to bottom: 3 * picture.width bytes, R G B R G B ..., valid during the call, DI_ROW_PAD readable bytes behind. */
struct di_row_sink {
    di_status (*row)(void *ctx, const uint8_t *rgb, di_error *err);
    void *ctx;
};

/* All rows of a picture that di_picture_read has accepted, under the same rules; `max_scans` as in its limits. At most picture.decode_bytes
 * and some rows are held. DI_ERR_INVALID: the file is broken or cut short (then some rows may have been handed on); DI_ERR_MEMORY. */
di_status di_picture_decode(struct di_str bytes, const struct di_picture *picture, const struct di_picture_rules *rules, int max_scans,
                            const struct di_row_sink *sink, di_error *err);

/* "libjpeg-turbo 2.1.5, libpng 1.6.39, libwebp 1.2.4, giflib 5.2.1": those that this process uses. Part of the recipe's name, since pixels
 * may depend on them. */
void di_decoders_add_names(struct di_buf *b);

#endif
