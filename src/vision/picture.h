/* A picture as it arrives: what its first bytes say, and whether it may be decoded (spec/vision.md §3.1, §16).
 *
 * Nothing here decodes or allocates: one walk over markers and chunks gives format, size and colour mode, so that the number of tokens is
 * known, and hostile pictures are refused, before a decoder sees them. Pure functions; any thread. */
#ifndef DI_VISION_PICTURE_H
#define DI_VISION_PICTURE_H

#include "base/str.h"

enum di_picture_format { DI_PICTURE_JPEG, DI_PICTURE_PNG, DI_PICTURE_GIF, DI_PICTURE_WEBP, DI_PICTURE_FORMATS };
enum di_picture_colour { DI_COLOUR_GREY, DI_COLOUR_GREY_ALPHA, DI_COLOUR_PALETTE, DI_COLOUR_RGB, DI_COLOUR_RGBA, DI_COLOUR_CMYK };

/* What may differ from the reference processor. All false: its rules (spec/vision.md §3.2). Part of the recipe's name. */
struct di_picture_rules {
    bool grey16_high; /* 16-bit grey: the high byte; the reference takes min(value, 255), which is nearly white */
    bool apply_exif;  /* turn the picture as EXIF says; the reference leaves it as it is stored */
};

struct di_picture_limits {
    size_t bytes;        /* 32 MiB: of the file */
    int64_t side;        /* 65,535: of width and height */
    int64_t pixels;      /* 50,000,000 */
    int64_t aspect;      /* longest side : shortest side; 0 = no limit */
    size_t decode_bytes; /* 256 MiB: what the decoder holds of the picture at once */
    int scans;           /* 100: of a JPEG file; each costs a pass over the whole picture */
};
extern const struct di_picture_limits di_picture_limits_default;

struct di_picture {
    enum di_picture_format format;
    enum di_picture_colour colour;
    int bits;                            /* of a sample or palette index: 1, 2, 4, 8 or 16 */
    int64_t width, height;               /* as the model sees them; these go into the image plan */
    int64_t stored_width, stored_height; /* as they are in the file: swapped where EXIF turns the picture by a quarter */
    int orientation;                     /* EXIF, 1..8; 1 unless the rules apply it */
    int scans;                           /* JPEG: 1 or more; else 0 */
    bool buffered;                       /* the decoder cannot give rows from top to bottom as it reads */
    bool lossless;                       /* WebP */
    bool animated;                       /* WebP, PNG: only the first frame is used */
    /* GIF and animated WebP: where the first frame lies on the picture. Elsewhere the whole picture. */
    int64_t frame_x, frame_y, frame_width, frame_height;
    size_t payload, payload_bytes; /* WebP: the frame's bit stream in the file */
    size_t palette;                /* GIF: place of the colours in the file, 3 bytes each */
    int palette_colours;           /* 0: none, indices are grey values */
    int fill;                      /* GIF: index of the colour outside the frame */
    size_t decode_bytes;           /* what the decoder will hold of the picture at once, a row aside */
};

/* Read the header. DI_ERR_INVALID: no picture, or its header is broken, cut short or of a kind that no decoder here reads; DI_ERR_LIMIT: one
 * of the limits, with its figure. */
di_status di_picture_read(struct di_str bytes, const struct di_picture_rules *rules, const struct di_picture_limits *limits,
                          struct di_picture *out, di_error *err);

/* "JPEG", "PNG", "GIF", "WebP" */
const char *di_picture_format_name(enum di_picture_format format);
/* Append "RGB, 8 bits", "grey, 16 bits", "palette, 4 bits, interlaced", ... */
void di_picture_add_mode(struct di_buf *b, const struct di_picture *p);

#endif
