/* The header walks of the four formats, for picture.c. Each fills what it knows of a zeroed picture whose orientation is 1. */
#ifndef DI_VISION_HEADER_H
#define DI_VISION_HEADER_H

#include "vision/picture.h"

/* The magic bytes are there; `exif`: look for the orientation. DI_ERR_INVALID with a sentence. */
typedef di_status di_header_fn(const uint8_t *p, size_t n, bool exif, struct di_picture *out, di_error *err);
di_header_fn di_header_jpeg, di_header_png, di_header_gif, di_header_webp;

/* Orientation 1..8 in a TIFF structure (the content of an EXIF block without its "Exif\0\0"); 1 if there is none. */
int di_exif_orientation(const uint8_t *p, size_t n);

#endif
