/* PNG by libpng. Alpha, gamma and profiles are left aside; ancillary chunks are not even unpacked (spec/vision.md §3.2, §16). */
#include "vision/decode_impl.h"

#include <setjmp.h>
#include <stdio.h>

#include <png.h>

struct reader {
    const struct di_decode_job *job;
    png_structp png;
    png_infop info;
    size_t at; /* next byte of the file */
    char sentence[160];
    uint8_t *rows, *rgb;
    uint8_t palette[256][3]; /* what an index beyond the file's own palette means is black */
};

static void leave_with_message(png_structp png, png_const_charp message)
{
    struct reader *r = png_get_error_ptr(png);
    snprintf(r->sentence, sizeof r->sentence, "%s", message);
    png_longjmp(png, 1);
}

static void pass_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);
    if (n > r->job->n - r->at)
        png_error(png, "it is cut short");
    memcpy(to, r->job->bytes + r->at, n);
    r->at += n;
}

/* One row as the library gives it after set_transforms. */
static const uint8_t *convert_row(struct reader *r, const uint8_t *row)
{
    const struct di_picture *p = r->job->picture;
    bool wide_grey = p->colour == DI_COLOUR_GREY && p->bits == 16;
    if (p->colour == DI_COLOUR_RGB || p->colour == DI_COLOUR_RGBA)
        return row;
    for (int64_t x = 0; x < p->stored_width; x++) {
        uint8_t *to = r->rgb + 3 * x;
        if (p->colour == DI_COLOUR_PALETTE)
            memcpy(to, r->palette[row[x]], 3);
        else if (!wide_grey)
            memset(to, row[x], 3);
        else if (r->job->rules->grey16_high)
            memset(to, row[2 * x], 3);
        else
            memset(to, row[2 * x] ? 255 : row[2 * x + 1], 3);
    }
    return r->rgb;
}

/* Rows of R G B, of one index byte, of one grey byte, or of two grey bytes. */
static void set_transforms(struct reader *r)
{
    const struct di_picture *p = r->job->picture;
    png_colorp colours = NULL;
    int n = 0;
    if (p->colour == DI_COLOUR_PALETTE) {
        png_set_packing(r->png);
        if (png_get_PLTE(r->png, r->info, &colours, &n) == 0)
            png_error(r->png, "it has no palette");
        for (int i = 0; i < n && i < 256; i++) {
            r->palette[i][0] = colours[i].red;
            r->palette[i][1] = colours[i].green;
            r->palette[i][2] = colours[i].blue;
        }
    }
    if (p->colour == DI_COLOUR_GREY && p->bits < 8)
        png_set_expand_gray_1_2_4_to_8(r->png);
    if (p->bits == 16 && p->colour != DI_COLOUR_GREY)
        png_set_strip_16(r->png);
    if (p->colour == DI_COLOUR_RGBA || p->colour == DI_COLOUR_GREY_ALPHA)
        png_set_strip_alpha(r->png);
}

/* Leaves through the library's jump buffer on its errors. */
static di_status read_rows(struct reader *r, di_error *err)
{
    const struct di_picture *p = r->job->picture;
    di_status status = DI_OK;
    size_t row_bytes;
    int passes;
    png_set_read_fn(r->png, r, read_bytes);
    png_set_user_limits(r->png, 65535, 65535);
    png_set_chunk_malloc_max(r->png, 1 << 20);
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(r->png, r->info);
    CHECK(png_get_image_width(r->png, r->info) == p->stored_width && png_get_image_height(r->png, r->info) == p->stored_height, err,
          DI_ERR_INVALID, "", "the PNG picture states two sizes");
    set_transforms(r);
    passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    row_bytes = png_get_rowbytes(r->png, r->info);
    r->rows = di_rows_alloc(passes > 1 ? p->stored_height : 1, (int64_t)row_bytes);
    r->rgb = di_rows_alloc(1, 3 * p->stored_width);
    CHECK(r->rows && r->rgb, err, DI_ERR_MEMORY, "", "out of memory");
    for (int pass = 0; passes > 1 && pass < passes; pass++)
        for (int64_t y = 0; y < p->stored_height; y++)
            png_read_row(r->png, r->rows + (size_t)y * row_bytes, NULL);
    for (int64_t y = 0; y < p->stored_height; y++) {
        if (passes == 1)
            png_read_row(r->png, r->rows, NULL);
        TRY(r->job->sink->row(r->job->sink->ctx, convert_row(r, r->rows + (passes > 1 ? (size_t)y * row_bytes : 0)), err));
    }
out:
    return status;
}

di_status di_decode_png(const struct di_decode_job *job, di_error *err)
{
    struct reader *r = di_calloc(1, sizeof *r);
    di_status status = DI_OK;
    CHECK(r, err, DI_ERR_MEMORY, "", "out of memory");
    r->job = job;
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, leave_with_message, pass_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    CHECK(r->info, err, DI_ERR_MEMORY, "", "out of memory");
    if (setjmp(png_jmpbuf(r->png)) == 0)
        status = read_rows(r, err);
    else
        status = di_fail(err, DI_ERR_INVALID, "", "the PNG picture cannot be decoded: %s", r->sentence);
out:
    if (r) {
        png_destroy_read_struct(&r->png, &r->info, NULL);
        di_free(r->rows);
        di_free(r->rgb);
        di_free(r);
    }
    return status;
}
