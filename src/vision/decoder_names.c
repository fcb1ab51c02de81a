#include "vision/decode.h"

#include <stdio.h>

#include <gif_lib.h>
#include <jpeglib.h>
#include <png.h>
#include <webp/decode.h>

/* libjpeg-turbo and giflib tell only what they were when this was compiled; their binary interface is the same for all of those. */
void di_decoders_add_names(struct di_buf *b)
{
    int jpeg = LIBJPEG_TURBO_VERSION_NUMBER, webp = WebPGetDecoderVersion();
    di_buf_addf(b, "libjpeg-turbo %d.%d.%d, libpng %s, libwebp %d.%d.%d, giflib %d.%d.%d", jpeg / 1000000, jpeg / 1000 % 1000, jpeg % 1000,
                png_get_libpng_ver(NULL), webp >> 16, webp >> 8 & 255, webp & 255, GIFLIB_MAJOR, GIFLIB_MINOR, GIFLIB_RELEASE);
}
