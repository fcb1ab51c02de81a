/* What headers say, which limits hold before anything is decoded, and decoders under damaged files. not run under TSan: no threads */
#include "base/file.h"
#include "vision/decode.h"
#include "vision/header.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include <zlib.h>

#define DIR DI_SOURCE_DIR "/tests/data/images/"

static const struct di_picture_rules plain = {0};

static void load(const char *name, struct di_buf *b)
{
    char path[512];
    snprintf(path, sizeof path, DIR "%s", name);
    assert_int_equal(di_file_read(path, 1 << 20, b, NULL), DI_OK);
}

static di_status read_str(const void *p, size_t n, struct di_picture *out, di_error *err)
{
    return di_picture_read((struct di_str){p, n}, &plain, &di_picture_limits_default, out, err);
}

/* ---- headers ---- */

struct seen {
    uLong crc;
    size_t row_bytes;
    int64_t rows;
};

static di_status take_row(void *ctx, const uint8_t *rgb, di_error *err)
{
    (void)err;
    struct seen *s = ctx;
    s->crc = crc32(s->crc, rgb, (uInt)s->row_bytes);
    s->rows++;
    return DI_OK;
}

static di_status decode(struct di_str bytes, const struct di_picture_rules *rules, struct di_picture *p, struct seen *s, di_error *err)
{
    struct di_row_sink sink = {take_row, s};
    di_status status = di_picture_read(bytes, rules, &di_picture_limits_default, p, err);
    *s = (struct seen){.row_bytes = (size_t)p->width * 3};
    if (status == DI_OK)
        status = di_picture_decode(bytes, p, rules, di_picture_limits_default.scans, &sink, err);
    return status;
}

/* CRC-32 of the RGB samples as the reference decodes them. */
static const struct {
    const char *name;
    enum di_picture_format format;
    enum di_picture_colour colour;
    int bits;
    bool buffered;
    uint32_t crc;
} files[] = {
    {"alpha.webp", DI_PICTURE_WEBP, DI_COLOUR_RGBA, 8, true, 0x8d2d3bda},
    {"animated.gif", DI_PICTURE_GIF, DI_COLOUR_PALETTE, 8, false, 0xc7ba8575},
    {"animated.webp", DI_PICTURE_WEBP, DI_COLOUR_RGB, 8, true, 0xd8ebbca9},
    {"cmyk.jpg", DI_PICTURE_JPEG, DI_COLOUR_CMYK, 8, false, 0x6bbeebf9},
    {"exif6.jpg", DI_PICTURE_JPEG, DI_COLOUR_RGB, 8, false, 0x8352103b},
    {"grey.jpg", DI_PICTURE_JPEG, DI_COLOUR_GREY, 8, false, 0x0b2da737},
    {"grey1.png", DI_PICTURE_PNG, DI_COLOUR_GREY, 1, false, 0x150aaf64},
    {"grey16.png", DI_PICTURE_PNG, DI_COLOUR_GREY, 16, false, 0xd80e8b41},
    {"grey_alpha.png", DI_PICTURE_PNG, DI_COLOUR_GREY_ALPHA, 8, false, 0x31de6f13},
    {"interlaced.gif", DI_PICTURE_GIF, DI_COLOUR_PALETTE, 8, true, 0xb2854832},
    {"interlaced.png", DI_PICTURE_PNG, DI_COLOUR_RGB, 8, true, 0x22e98181},
    {"lossless.webp", DI_PICTURE_WEBP, DI_COLOUR_RGB, 8, true, 0x22e98181},
    {"lossy.webp", DI_PICTURE_WEBP, DI_COLOUR_RGB, 8, true, 0xa7c2e9dc},
    {"palette.png", DI_PICTURE_PNG, DI_COLOUR_PALETTE, 4, false, 0x65a8e1da},
    {"plain.gif", DI_PICTURE_GIF, DI_COLOUR_PALETTE, 8, false, 0xc7ba8575},
    {"progressive.jpg", DI_PICTURE_JPEG, DI_COLOUR_RGB, 8, true, 0x8352103b},
    {"rgb.jpg", DI_PICTURE_JPEG, DI_COLOUR_RGB, 8, false, 0x8352103b},
    {"rgb.png", DI_PICTURE_PNG, DI_COLOUR_RGB, 8, false, 0x22e98181},
    {"rgba.png", DI_PICTURE_PNG, DI_COLOUR_RGBA, 8, false, 0x22e98181},
};
#define N_FILES (sizeof files / sizeof *files)

static void test_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        struct di_buf b = {0};
        struct di_picture p;
        struct seen s;
        load(files[i].name, &b);
        assert_int_equal(decode(di_buf_str(&b), &plain, &p, &s, NULL), DI_OK);
        assert_int_equal(p.format, files[i].format);
        assert_int_equal(p.colour, files[i].colour);
        assert_int_equal(p.bits, files[i].bits);
        assert_int_equal(p.buffered, files[i].buffered);
        assert_int_equal(s.rows, p.height);
        if (s.crc != files[i].crc)
            fail_msg("%s decodes to other pixels", files[i].name);
        di_buf_fini(&b);
    }
}

/* EXIF says "turn by a quarter": only where the rules ask for it, and before the plan sees a size. */
static void test_exif(void **state)
{
    (void)state;
    struct di_buf b = {0};
    struct di_picture p;
    struct seen s, turned;
    load("exif6.jpg", &b);
    assert_int_equal(decode(di_buf_str(&b), &plain, &p, &s, NULL), DI_OK);
    assert_int_equal(p.width, 17);
    assert_int_equal(decode(di_buf_str(&b), &(struct di_picture_rules){.apply_exif = true}, &p, &turned, NULL), DI_OK);
    assert_int_equal(p.orientation, 6);
    assert_int_equal(p.width, 13);
    assert_int_equal(p.height, 17);
    assert_int_not_equal(turned.crc, s.crc);
    di_buf_fini(&b);
    static const uint8_t little[] = {'I', 'I', '*', 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 8, 0, 0, 0};
    static const uint8_t big[] = {'M', 'M', 0, '*', 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 5, 0, 0};
    assert_int_equal(di_exif_orientation(little, sizeof little), 8);
    assert_int_equal(di_exif_orientation(big, sizeof big), 5);
    for (size_t n = 0; n < sizeof big; n++)
        assert_int_equal(di_exif_orientation(big, n), 1);
}

static void test_grey16(void **state)
{
    (void)state;
    struct di_buf b = {0};
    struct di_picture p;
    struct seen reference, high;
    load("grey16.png", &b);
    assert_int_equal(decode(di_buf_str(&b), &plain, &p, &reference, NULL), DI_OK);
    assert_int_equal(decode(di_buf_str(&b), &(struct di_picture_rules){.grey16_high = true}, &p, &high, NULL), DI_OK);
    assert_int_not_equal(reference.crc, high.crc);
    di_buf_fini(&b);
}

/* ---- limits ---- */

static void put_be32(char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (char)(v >> (24 - 8 * i));
}

static void expect_refusal(struct di_str bytes, const struct di_picture_limits *l, di_status status, const char *words)
{
    struct di_picture p;
    di_error err = {0};
    assert_int_equal(di_picture_read(bytes, &plain, l, &p, &err), status);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void test_limits(void **state)
{
    (void)state;
    const struct di_picture_limits *usual = &di_picture_limits_default;
    struct di_picture_limits few = *usual;
    struct di_buf png = {0}, jpeg = {0};
    load("interlaced.png", &png);
    static const struct {
        uint32_t w, h;
        di_status status;
        const char *words;
    } sizes[] = {
        {65535, 65535, DI_ERR_LIMIT, "4294836225"},
        {65536, 1, DI_ERR_LIMIT, "at most 65535"},
        {1, 4294967295u, DI_ERR_LIMIT, "at most 65535"},
        {0, 5, DI_ERR_INVALID, "0 x 5"},
        {5, 0, DI_ERR_INVALID, "5 x 0"},
        {50000, 1001, DI_ERR_LIMIT, "50050000"},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        put_be32(png.p + 16, sizes[i].w);
        put_be32(png.p + 20, sizes[i].h);
        expect_refusal(di_buf_str(&png), usual, sizes[i].status, sizes[i].words);
    }
    put_be32(png.p + 16, 40000);
    put_be32(png.p + 20, 1);
    few.aspect = 1000;
    expect_refusal(di_buf_str(&png), &few, DI_ERR_LIMIT, "1000 : 1");
    put_be32(png.p + 20, 1000); /* interlaced: 120 MB are held */
    few = *usual;
    few.decode_bytes = 119999999;
    expect_refusal(di_buf_str(&png), &few, DI_ERR_LIMIT, "MiB");
    few.bytes = png.n - 1;
    expect_refusal(di_buf_str(&png), &few, DI_ERR_LIMIT, "bytes");
    load("progressive.jpg", &jpeg);
    struct di_picture p;
    assert_int_equal(read_str(jpeg.p, jpeg.n, &p, NULL), DI_OK);
    assert_true(p.scans > 5);
    few = *usual;
    few.scans = p.scans - 1;
    expect_refusal(di_buf_str(&jpeg), &few, DI_ERR_LIMIT, "scans");
    struct di_row_sink sink = {take_row, &(struct seen){.row_bytes = 51}}; /* the decoder counts them again, whatever the header said */
    di_error err = {0};
    assert_int_equal(di_picture_decode(di_buf_str(&jpeg), &p, &plain, p.scans - 1, &sink, &err), DI_ERR_INVALID);
    assert_non_null(strstr(err.message, "scans"));
    di_buf_fini(&png);
    di_buf_fini(&jpeg);
}

static void test_no_pictures(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "x", "<svg>", "BM0000000000000", "RIFF0000WAVE", "\x89PNG", "GIF88a000000000", "%PDF-1.7"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_refusal(di_str_c(texts[i]), &di_picture_limits_default, DI_ERR_INVALID, i ? "JPEG, PNG, GIF or WebP" : "empty");
}

/* ---- damaged files ---- */

/* Whatever is given: a status, a sentence with an error, and rows of the right number without one. */
static di_status survive(const char *p, size_t n, uint32_t *crc)
{
    char *exact = di_malloc(n); /* so that a sanitizer sees a read behind the end */
    struct di_picture picture;
    struct seen s;
    di_error err = {0};
    memcpy(exact, p, n);
    di_status status = decode((struct di_str){exact, n}, &plain, &picture, &s, &err);
    if (status == DI_OK)
        assert_int_equal(s.rows, picture.height);
    else
        assert_true(err.message[0] != 0);
    *crc = (uint32_t)s.crc;
    di_free(exact);
    return status;
}

/* A file that is cut anywhere is an error, or nothing of its picture was lost: never a part of it. */
static void test_truncation(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        struct di_buf b = {0};
        uint32_t crc;
        size_t good = 0;
        load(files[i].name, &b);
        for (size_t n = 0; n < b.n; n++)
            if (survive(b.p, n, &crc) == DI_OK) {
                assert_int_equal(crc, files[i].crc);
                good++;
            }
        if (!strstr(files[i].name, "animated"))
            assert_true(good <= 12); /* the end marks of PNG and GIF */
        di_buf_fini(&b);
    }
}

static void test_damage(void **state)
{
    (void)state;
    uint32_t crc;
    for (size_t i = 0; i < N_FILES; i++) {
        struct di_buf b = {0};
        load(files[i].name, &b);
        for (size_t at = 0; at < b.n; at++)
            for (int bit = 0; bit < 8; bit += 3) {
                b.p[at] = (char)(b.p[at] ^ 1 << bit);
                if (at < 16 || at > 23 || files[i].format != DI_PICTURE_PNG) /* not to decode gigapixels of nothing */
                    survive(b.p, b.n, &crc);
                b.p[at] = (char)(b.p[at] ^ 1 << bit);
            }
        di_buf_fini(&b);
    }
}

/* Every allocation of ours that fails is told. */
static void test_no_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        struct di_buf b = {0};
        struct di_picture p;
        struct seen s;
        load(files[i].name, &b);
        for (uint64_t n = 0;; n++) {
            di_mem_fail_after(n);
            di_status status = decode(di_buf_str(&b), &(struct di_picture_rules){.apply_exif = true}, &p, &s, NULL);
            di_mem_fail_after(UINT64_MAX);
            if (status == DI_OK)
                break;
            assert_int_equal(status, DI_ERR_MEMORY);
        }
        di_buf_fini(&b);
    }
}

static void test_names(void **state)
{
    (void)state;
    struct di_buf b = {0};
    di_decoders_add_names(&b);
    assert_non_null(strstr(b.p, "libjpeg-turbo "));
    assert_non_null(strstr(b.p, "libwebp "));
    di_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),  cmocka_unit_test(test_exif),        cmocka_unit_test(test_grey16),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_no_pictures), cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_damage), cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("picture", tests, NULL, NULL);
}
