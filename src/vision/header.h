/* The header walks of the four formats, for picture.c. Each fills what it knows of a zeroed picture whose orientation is 1. */
#ifndef DI_VISION_HEADER_H
#define DI_VISION_HEADER_H

#include "vision/picture.h"

/* Numbers at a place that the caller has checked. */
static inline uint32_t di_be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}
static inline uint32_t di_le16(const uint8_t *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}
static inline uint32_t di_le24(const uint8_t *p)
{
    return (uint32_t)p[2] << 16 | di_le16(p);
}
static inline uint32_t di_be32(const uint8_t *p)
{
    return di_be16(p) << 16 | di_be16(p + 2);
}
static inline uint32_t di_le32(const uint8_t *p)
{
    return di_le16(p + 2) << 16 | di_le16(p);
}

/* The magic bytes are there; `exif`: look for the orientation. DI_ERR_INVALID with a sentence. */
typedef di_status di_header_fn(const uint8_t *p, size_t n, bool exif, struct di_picture *out, di_error *err);
di_header_fn di_header_jpeg, di_header_png, di_header_gif, di_header_webp;

/* Orientation 1..8 in a TIFF structure (the content of an EXIF block without its "Exif\0\0"); 1 if there is none. */
int di_exif_orientation(const uint8_t *p, size_t n);

di_status di_header_short(di_error *err, const char *format);

#endif
