#include "vision/picture.h"

#include "vision/header.h"

const struct di_picture_limits di_picture_limits_default = {
    .bytes = (size_t)32 << 20,
    .side = 65535,
    .pixels = 50000000,
    .aspect = 0,
    .decode_bytes = (size_t)256 << 20,
    .scans = 100,
};

static const struct {
    const char *name;
    di_header_fn *read;
} formats[DI_PICTURE_FORMATS] = {
    [DI_PICTURE_JPEG] = {"JPEG", di_header_jpeg},
    [DI_PICTURE_PNG] = {"PNG", di_header_png},
    [DI_PICTURE_GIF] = {"GIF", di_header_gif},
    [DI_PICTURE_WEBP] = {"WebP", di_header_webp},
};

const char *di_picture_format_name(enum di_picture_format format)
{
    return formats[format].name;
}

void di_picture_add_mode(struct di_buf *b, const struct di_picture *p)
{
    static const char *const colours[] = {
        [DI_COLOUR_GREY] = "grey", [DI_COLOUR_GREY_ALPHA] = "grey with alpha", [DI_COLOUR_PALETTE] = "palette",
        [DI_COLOUR_RGB] = "RGB",   [DI_COLOUR_RGBA] = "RGB with alpha",        [DI_COLOUR_CMYK] = "CMYK",
    };
    di_buf_addf(b, "%s, %d bit%s", colours[p->colour], p->bits, p->bits == 1 ? "" : "s");
    if (p->format == DI_PICTURE_WEBP)
        di_buf_adds(b, p->lossless ? ", lossless" : ", lossy");
    else if (p->buffered)
        di_buf_adds(b, p->format == DI_PICTURE_JPEG ? ", progressive" : ", interlaced");
    if (p->animated)
        di_buf_adds(b, ", animated");
}

static bool sniff(const uint8_t *p, size_t n, enum di_picture_format *format)
{
    static const uint8_t png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (n >= 3 && p[0] == 0xff && p[1] == 0xd8 && p[2] == 0xff)
        *format = DI_PICTURE_JPEG;
    else if (n >= 8 && memcmp(p, png, 8) == 0)
        *format = DI_PICTURE_PNG;
    else if (n >= 6 && (memcmp(p, "GIF87a", 6) == 0 || memcmp(p, "GIF89a", 6) == 0))
        *format = DI_PICTURE_GIF;
    else if (n >= 12 && memcmp(p, "RIFF", 4) == 0 && memcmp(p + 8, "WEBP", 4) == 0)
        *format = DI_PICTURE_WEBP;
    else
        return false;
    return true;
}

/* Bytes that a decoder holds besides a row; JPEG headers have counted their own. Sizes are within the limits here, so nothing overflows. */
static size_t count_decode_bytes(const struct di_picture *p)
{
    size_t pixels = (size_t)(p->frame_width * p->frame_height), bytes = 0;
    switch (p->format) {
    case DI_PICTURE_JPEG: bytes = p->decode_bytes; break;
    case DI_PICTURE_PNG:
        if (p->buffered)
            bytes = pixels * (p->colour == DI_COLOUR_RGB || p->colour == DI_COLOUR_RGBA ? 3 : p->bits == 16 ? 2 : 1);
        break;
    case DI_PICTURE_GIF: bytes = p->buffered ? pixels : 0; break;
    default: bytes = pixels * (p->lossless ? 7 : 3); break; /* RGB, and what the lossless decoder keeps */
    }
    if (p->orientation > 1)
        bytes += (size_t)(p->stored_width * p->stored_height) * 3;
    return bytes;
}

/* Sides first: what is computed of them afterwards cannot overflow. */
static di_status check_sides(const struct di_picture *p, const struct di_picture_limits *l, di_error *err)
{
    int64_t w = p->stored_width, h = p->stored_height;
    if (w < 1 || h < 1 || p->frame_width < 1 || p->frame_height < 1)
        return di_fail(err, DI_ERR_INVALID, "", "the %s picture says that it is %lld x %lld pixels", formats[p->format].name, (long long)w,
                       (long long)h);
    if (w > l->side || h > l->side)
        return di_fail(err, DI_ERR_LIMIT, "", "the picture says that it is %lld x %lld pixels; a side may have at most %lld", (long long)w,
                       (long long)h, (long long)l->side);
    return DI_OK;
}

static di_status check_limits(const struct di_picture *p, const struct di_picture_limits *l, di_error *err)
{
    di_status status = DI_OK;
    int64_t w = p->stored_width, h = p->stored_height, longest = w > h ? w : h, shortest = w > h ? h : w;
    CHECK(w <= l->pixels / h, err, DI_ERR_LIMIT, "", "the picture has %lld x %lld = %lld pixels; the limit is %lld", (long long)w,
          (long long)h, (long long)(w * h), (long long)l->pixels);
    CHECK(l->aspect == 0 || longest <= shortest * l->aspect, err, DI_ERR_LIMIT, "",
          "the picture of %lld x %lld pixels is longer than %lld : 1", (long long)w, (long long)h, (long long)l->aspect);
    CHECK(p->scans <= l->scans, err, DI_ERR_LIMIT, "", "the JPEG picture has more than %d scans", l->scans);
    CHECK(p->decode_bytes <= l->decode_bytes, err, DI_ERR_LIMIT, "",
          "decoding a picture of this kind and of %lld x %lld pixels takes %zu MiB; the limit is %zu MiB", (long long)w, (long long)h,
          p->decode_bytes >> 20, l->decode_bytes >> 20);
out:
    return status;
}

di_status di_picture_read(struct di_str bytes, const struct di_picture_rules *rules, const struct di_picture_limits *limits,
                          struct di_picture *out, di_error *err)
{
    const uint8_t *p = (const uint8_t *)bytes.p;
    struct di_picture pic = {.orientation = 1};
    di_status status = DI_OK;
    *out = pic;
    CHECK(bytes.n > 0, err, DI_ERR_INVALID, "", "the picture is empty");
    CHECK(bytes.n <= limits->bytes, err, DI_ERR_LIMIT, "", "the picture has %zu bytes; the limit is %zu", bytes.n, limits->bytes);
    CHECK(sniff(p, bytes.n, &pic.format), err, DI_ERR_INVALID, "",
          "this is no picture that can be read: its first bytes are not those of JPEG, PNG, GIF or WebP");
    TRY(formats[pic.format].read(p, bytes.n, rules->apply_exif, &pic, err));
    if (pic.frame_width == 0 && pic.frame_height == 0 && pic.format != DI_PICTURE_GIF) {
        pic.frame_width = pic.stored_width;
        pic.frame_height = pic.stored_height;
    }
    TRY(check_sides(&pic, limits, err));
    pic.decode_bytes = count_decode_bytes(&pic);
    TRY(check_limits(&pic, limits, err));
    pic.width = pic.orientation >= 5 ? pic.stored_height : pic.stored_width;
    pic.height = pic.orientation >= 5 ? pic.stored_width : pic.stored_height;
    *out = pic;
out:
    return status;
}
