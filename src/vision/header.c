#include "vision/header.h"

/* Numbers at a place that the caller has checked. */
static uint32_t read_be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}
static uint32_t read_le16(const uint8_t *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}
static uint32_t read_le24(const uint8_t *p)
{
    return (uint32_t)p[2] << 16 | read_le16(p);
}
static uint32_t read_be32(const uint8_t *p)
{
    return read_be16(p) << 16 | read_be16(p + 2);
}
static uint32_t read_le32(const uint8_t *p)
{
    return read_le16(p + 2) << 16 | read_le16(p);
}

static di_status header_short(di_error *err, const char *format)
{
    return di_fail(err, DI_ERR_INVALID, "", "the %s picture is cut short: it ends within its header", format);
}

/* ---------------------------------------------------------------- EXIF */

int di_exif_orientation(const uint8_t *p, size_t n)
{
    if (n < 8 || (memcmp(p, "II*\0", 4) != 0 && memcmp(p, "MM\0*", 4) != 0))
        return 1;
    bool little = p[0] == 'I';
    size_t at = little ? read_le32(p + 4) : read_be32(p + 4);
    if (at > n - 2)
        return 1;
    size_t entries = little ? read_le16(p + at) : read_be16(p + at);
    at += 2;
    for (; entries > 0 && n - at >= 12; entries--, at += 12) {
        const uint8_t *e = p + at;
        uint32_t tag = little ? read_le16(e) : read_be16(e), type = little ? read_le16(e + 2) : read_be16(e + 2);
        uint32_t value = little ? read_le16(e + 8) : read_be16(e + 8);
        if (tag == 0x0112)
            return type == 3 && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* ---------------------------------------------------------------- JPEG */

enum { SOI = 0xd8, EOI = 0xd9, SOS = 0xda, TEM = 0x01, RST0 = 0xd0, RST7 = 0xd7, DHT = 0xc4, JPG = 0xc8, DAC = 0xcc, APP1 = 0xe1 };

static bool is_frame_marker(int m)
{
    return m >= 0xc0 && m <= 0xcf && m != DHT && m != JPG && m != DAC;
}

/* A frame header: precision, height, width, components with their sampling factors. */
static di_status read_frame(const uint8_t *p, size_t n, int marker, struct di_picture *out, di_error *err)
{
    di_status status = DI_OK;
    int components, widest = 1, tallest = 1, samples = 0;
    CHECK(n >= 6 && n >= 6 + 3 * (size_t)p[5], err, DI_ERR_INVALID, "", "the JPEG picture has a broken frame header");
    CHECK(marker == 0xc0 || marker == 0xc1 || marker == 0xc2 || marker == 0xc9 || marker == 0xca, err, DI_ERR_INVALID, "",
          "the JPEG picture is of a kind that is not read here: lossless or hierarchical (marker FF%02X)", (unsigned)marker);
    CHECK(p[0] == 8, err, DI_ERR_INVALID, "", "the JPEG picture has %d bits a sample; 8 can be read", p[0]);
    components = p[5];
    CHECK(components == 1 || components == 3 || components == 4, err, DI_ERR_INVALID, "",
          "the JPEG picture has %d components; 1, 3 and 4 can be read", components);
    out->stored_height = read_be16(p + 1);
    out->stored_width = read_be16(p + 3);
    out->bits = 8;
    out->colour = components == 1 ? DI_COLOUR_GREY : components == 3 ? DI_COLOUR_RGB : DI_COLOUR_CMYK;
    out->buffered = marker == 0xc2 || marker == 0xca;
    for (int i = 0; i < components; i++) {
        int h = p[7 + 3 * i] >> 4, v = p[7 + 3 * i] & 15;
        CHECK(h >= 1 && h <= 4 && v >= 1 && v <= 4, err, DI_ERR_INVALID, "", "the JPEG picture has a broken frame header");
        widest = h > widest ? h : widest;
        tallest = v > tallest ? v : tallest;
        samples += h * v;
    }
    /* 16-bit coefficients of all components, in whole blocks: what a picture of several scans keeps until the last one. */
    out->decode_bytes = (size_t)((out->stored_width + 8 * widest - 1) / (8 * widest)) *
                        (size_t)((out->stored_height + 8 * tallest - 1) / (8 * tallest)) * 128 * (size_t)samples;
out:
    return status;
}

/* The marker behind the entropy-coded data that begins at `at`, or n. */
static size_t skip_entropy(const uint8_t *p, size_t n, size_t at)
{
    while (at + 1 < n) {
        const uint8_t *ff = memchr(p + at, 0xff, n - 1 - at);
        if (!ff)
            break;
        at = (size_t)(ff - p);
        if (ff[1] != 0 && ff[1] != 0xff && (ff[1] < RST0 || ff[1] > RST7))
            return at;
        at += ff[1] == 0xff ? 1 : 2;
    }
    return n;
}

static di_status jpeg_segment(const uint8_t *body, size_t bytes, int marker, bool exif, struct di_picture *out, di_error *err)
{
    if (is_frame_marker(marker) && out->bits == 0)
        return read_frame(body, bytes, marker, out, err);
    if (marker == SOS && out->bits == 0)
        return di_fail(err, DI_ERR_INVALID, "", "the JPEG picture has data before its frame header");
    if (marker == SOS && out->scans++ == 0 && bytes > 0) {
        int components = out->colour == DI_COLOUR_GREY ? 1 : out->colour == DI_COLOUR_RGB ? 3 : 4;
        out->buffered |= body[0] < components; /* each component in a scan of its own */
    }
    if (exif && marker == APP1 && out->scans == 0 && out->orientation == 1 && bytes > 6 && memcmp(body, "Exif\0", 6) == 0)
        out->orientation = di_exif_orientation(body + 6, bytes - 6);
    return DI_OK;
}

/* All segments up to the end of the first image: scans have to be counted before the decoder works through them. What is broken behind
 * the first scan is left for the decoder to tell. */
di_status di_header_jpeg(const uint8_t *p, size_t n, bool exif, struct di_picture *out, di_error *err)
{
    di_status status = DI_OK;
    size_t at = 2;
    while (at + 1 < n && (out->scans == 0 || p[at] == 0xff)) {
        CHECK(p[at] == 0xff, err, DI_ERR_INVALID, "", "the JPEG picture has no marker at byte %zu", at);
        int marker = p[at + 1];
        if (marker == 0xff) { /* filling */
            at++;
            continue;
        }
        if (marker == EOI)
            break;
        at += 2;
        if (marker == TEM || (marker >= RST0 && marker <= RST7))
            continue;
        if (n - at < 2 || read_be16(p + at) > n - at)
            break;
        size_t bytes = read_be16(p + at);
        CHECK(bytes >= 2 && marker != SOI, err, DI_ERR_INVALID, "", "the JPEG picture has a broken segment at byte %zu", at);
        TRY(jpeg_segment(p + at + 2, bytes - 2, marker, exif, out, err));
        at += bytes;
        if (marker == SOS)
            at = skip_entropy(p, n, at);
    }
    if (out->bits == 0 || out->scans == 0)
        status = header_short(err, "JPEG");
    if (!out->buffered)
        out->decode_bytes = 0;
out:
    return status;
}

/* ---------------------------------------------------------------- PNG */

/* Chunks until the first data, or all of them for EXIF, which may stand behind. Broken ones are left for the decoder. */
static void walk_chunks(const uint8_t *p, size_t n, bool exif, struct di_picture *out)
{
    for (size_t at = 8; n - at >= 12;) {
        size_t bytes = read_be32(p + at);
        const uint8_t *type = p + at + 4;
        if (bytes > n - at - 12 || memcmp(type, "IEND", 4) == 0 || (!exif && memcmp(type, "IDAT", 4) == 0))
            return;
        if (memcmp(type, "acTL", 4) == 0)
            out->animated = true;
        if (exif && memcmp(type, "eXIf", 4) == 0)
            out->orientation = di_exif_orientation(type + 4, bytes);
        at += 12 + bytes;
    }
}

di_status di_header_png(const uint8_t *p, size_t n, bool exif, struct di_picture *out, di_error *err)
{
    static const struct {
        enum di_picture_colour colour;
        uint8_t depths; /* allowed ones, as a sum */
    } kinds[7] = {
        [0] = {DI_COLOUR_GREY, 1 + 2 + 4 + 8 + 16}, [2] = {DI_COLOUR_RGB, 8 + 16},  [3] = {DI_COLOUR_PALETTE, 1 + 2 + 4 + 8},
        [4] = {DI_COLOUR_GREY_ALPHA, 8 + 16},       [6] = {DI_COLOUR_RGBA, 8 + 16},
    };
    if (n < 33)
        return header_short(err, "PNG");
    const uint8_t *h = p + 16;
    int depth = h[8], kind = h[9], interlace = h[12];
    if (read_be32(p + 8) != 13 || memcmp(p + 12, "IHDR", 4) != 0 || kind > 6 || !(kinds[kind].depths & depth) || (depth & (depth - 1)) ||
        h[10] != 0 || h[11] != 0 || interlace > 1)
        return di_fail(err, DI_ERR_INVALID, "", "the PNG picture has a broken header");
    out->stored_width = read_be32(h);
    out->stored_height = read_be32(h + 4);
    out->colour = kinds[kind].colour;
    out->bits = depth;
    out->buffered = interlace == 1;
    walk_chunks(p, n, exif, out);
    return DI_OK;
}

/* ---------------------------------------------------------------- GIF */

/* The place behind a chain of sub-blocks that begins at `at`; more than n if it does not end. */
static size_t skip_sub_blocks(const uint8_t *p, size_t n, size_t at)
{
    while (at < n && p[at] != 0)
        at += 1 + (size_t)p[at];
    return at + 1;
}

/* An image descriptor (9 bytes at p + at): the picture grows where the frame passes the screen, as in the reference. */
static di_status read_gif_frame(const uint8_t *p, size_t n, size_t at, struct di_picture *out, di_error *err)
{
    if (n - at < 10)
        return header_short(err, "GIF");
    const uint8_t *d = p + at;
    out->frame_x = read_le16(d);
    out->frame_y = read_le16(d + 2);
    out->frame_width = read_le16(d + 4);
    out->frame_height = read_le16(d + 6);
    out->buffered = d[8] >> 6 & 1;
    if (out->frame_x + out->frame_width > out->stored_width)
        out->stored_width = out->frame_x + out->frame_width;
    if (out->frame_y + out->frame_height > out->stored_height)
        out->stored_height = out->frame_y + out->frame_height;
    if (d[8] & 0x80) {
        out->palette = at + 9;
        out->palette_colours = 2 << (d[8] & 7);
        if (n - at - 9 < 3 * (size_t)out->palette_colours)
            return header_short(err, "GIF");
    }
    return DI_OK;
}

di_status di_header_gif(const uint8_t *p, size_t n, bool exif, struct di_picture *out, di_error *err)
{
    (void)exif; /* GIF has none */
    if (n < 13)
        return header_short(err, "GIF");
    size_t at = 13;
    out->stored_width = read_le16(p + 6);
    out->stored_height = read_le16(p + 8);
    out->colour = DI_COLOUR_PALETTE;
    out->bits = 8;
    if (p[10] & 0x80) {
        out->palette = at;
        out->palette_colours = 2 << (p[10] & 7);
        at += 3 * (size_t)out->palette_colours;
    }
    while (at < n) {
        int block = p[at++];
        if (block == 0x2c)
            return read_gif_frame(p, n, at, out, err);
        if (block != 0x21)
            return di_fail(err, DI_ERR_INVALID, "", block == 0x3b ? "the GIF file has no picture" : "the GIF picture is broken");
        if (n - at >= 6 && p[at] == 0xf9 && p[at + 1] >= 4) /* graphic control: its transparent colour fills what the frame leaves */
            out->fill = p[at + 2] & 1 ? p[at + 5] : 0;
        at = skip_sub_blocks(p, n, at + 1);
    }
    return header_short(err, "GIF");
}

/* ---------------------------------------------------------------- WebP */

struct chunk {
    const uint8_t *type; /* 4 bytes */
    const uint8_t *body;
    size_t bytes;
};

/* The chunk at *at, and *at behind it. False at the end, or if it is cut short. */
static bool next_chunk(const uint8_t *p, size_t n, size_t *at, struct chunk *c)
{
    if (*at > n || n - *at < 8)
        return false;
    *c = (struct chunk){p + *at, p + *at + 8, read_le32(p + *at + 4)};
    if (c->bytes > n - *at - 8)
        return false;
    *at += 8 + c->bytes + (c->bytes & 1);
    return true;
}

static bool chunk_is(const struct chunk *c, const char *type)
{
    return memcmp(c->type, type, 4) == 0;
}

/* The bit stream of a still picture or frame: VP8 or VP8L. False if its own header is broken. */
static bool read_stream(const uint8_t *file, const struct chunk *c, struct di_picture *out)
{
    const uint8_t *b = c->body;
    out->payload = (size_t)(b - file);
    out->payload_bytes = c->bytes;
    out->lossless = chunk_is(c, "VP8L");
    if (out->lossless) {
        if (c->bytes < 5 || b[0] != 0x2f)
            return false;
        uint32_t v = read_le32(b + 1);
        out->frame_width = (v & 0x3fff) + 1;
        out->frame_height = (v >> 14 & 0x3fff) + 1;
        if (v >> 28 & 1)
            out->colour = DI_COLOUR_RGBA;
        return true;
    }
    if (c->bytes < 10 || (b[0] & 1) || b[3] != 0x9d || b[4] != 0x01 || b[5] != 0x2a)
        return false;
    out->frame_width = read_le16(b + 6) & 0x3fff;
    out->frame_height = read_le16(b + 8) & 0x3fff;
    return true;
}

/* The stream among the chunks of [at, end), which are those of the file or of a frame. */
static di_status find_stream(const uint8_t *p, size_t end, size_t at, struct di_picture *out, di_error *err)
{
    struct chunk c;
    while (next_chunk(p, end, &at, &c))
        if (chunk_is(&c, "VP8 ") || chunk_is(&c, "VP8L"))
            return read_stream(p, &c, out) ? DI_OK : di_fail(err, DI_ERR_INVALID, "", "the WebP picture has a broken header");
        else if (chunk_is(&c, "ALPH"))
            out->colour = DI_COLOUR_RGBA;
    return di_fail(err, DI_ERR_INVALID, "", "the WebP picture is cut short, or has no image data");
}

static di_status read_webp_animation(const uint8_t *p, size_t n, size_t at, struct di_picture *out, di_error *err)
{
    struct chunk c;
    while (next_chunk(p, n, &at, &c)) {
        if (!chunk_is(&c, "ANMF"))
            continue;
        if (c.bytes < 16)
            break;
        int64_t w = (int64_t)read_le24(c.body + 6) + 1, h = (int64_t)read_le24(c.body + 9) + 1;
        out->frame_x = 2 * (int64_t)read_le24(c.body);
        out->frame_y = 2 * (int64_t)read_le24(c.body + 3);
        size_t first = (size_t)(c.body - p) + 16;
        di_status status = find_stream(p, first + c.bytes - 16, first, out, err);
        if (status == DI_OK && (out->frame_width != w || out->frame_height != h || out->frame_x + w > out->stored_width ||
                                out->frame_y + h > out->stored_height))
            status = di_fail(err, DI_ERR_INVALID, "", "the first frame of the WebP picture does not fit into it");
        return status;
    }
    return di_fail(err, DI_ERR_INVALID, "", "the WebP picture is cut short, or has no frame");
}

di_status di_header_webp(const uint8_t *p, size_t n, bool exif, struct di_picture *out, di_error *err)
{
    struct chunk first, c;
    size_t at = 12;
    di_status status = DI_OK;
    out->buffered = true;
    out->bits = 8;
    out->colour = DI_COLOUR_RGB;
    if (!next_chunk(p, n, &at, &first))
        return header_short(err, "WebP");
    if (!chunk_is(&first, "VP8X")) {
        TRY(find_stream(p, n, 12, out, err));
        out->stored_width = out->frame_width;
        out->stored_height = out->frame_height;
        return DI_OK;
    }
    CHECK(first.bytes >= 10, err, DI_ERR_INVALID, "", "the WebP picture has a broken header");
    out->stored_width = (int64_t)read_le24(first.body + 4) + 1;
    out->stored_height = (int64_t)read_le24(first.body + 7) + 1;
    out->animated = first.body[0] & 2;
    if (out->animated) {
        TRY(read_webp_animation(p, n, at, out, err));
    } else {
        TRY(find_stream(p, n, at, out, err));
        CHECK(out->frame_width == out->stored_width && out->frame_height == out->stored_height, err, DI_ERR_INVALID, "",
              "the WebP picture states two sizes");
    }
    while (exif && next_chunk(p, n, &at, &c))
        if (chunk_is(&c, "EXIF")) {
            bool prefix = c.bytes > 6 && memcmp(c.body, "Exif\0", 6) == 0;
            out->orientation = di_exif_orientation(c.body + (prefix ? 6 : 0), c.bytes - (prefix ? 6 : 0));
        }
out:
    return status;
}
