/* JPEG by libjpeg-turbo with its defaults: integer DCT, smooth chroma upsampling (spec/vision.md §3.2). */
#include "vision/decode_impl.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>
#include <jerror.h>

struct reader {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    char sentence[JMSG_LENGTH_MAX];
    int max_scans;
    uint8_t *line, *rgb;
};

static void leave_with_message(j_common_ptr c)
{
    struct reader *r = c->client_data;
    c->err->format_message(c, r->sentence);
    longjmp(r->leave, 1);
}

/* Warnings are passed over, as the reference does, but for the one that says where a file is cut short. */
static void note_message(j_common_ptr c, int level)
{
    if (level < 0 && c->err->msg_code == JWRN_JPEG_EOF) {
        struct reader *r = c->client_data;
        snprintf(r->sentence, sizeof r->sentence, "it is cut short");
        longjmp(r->leave, 1);
    }
}

static void watch_scans(j_common_ptr c)
{
    struct reader *r = c->client_data;
    if (r->jpeg.input_scan_number > r->max_scans) {
        snprintf(r->sentence, sizeof r->sentence, "it has more than %d scans", r->max_scans);
        longjmp(r->leave, 1);
    }
}

/* t = a * b + 128, then / 255 rounded: as the reference multiplies bytes. */
static int mul_div_255(int a, int b)
{
    int t = a * b + 128;
    return ((t >> 8) + t) >> 8;
}

/* The samples are stored inverted, as Adobe's programs write them. */
static void convert_cmyk(const uint8_t *cmyk, uint8_t *rgb, int64_t width)
{
    for (int64_t x = 0; x < width; x++) {
        int white = cmyk[4 * x + 3]; /* 255 - K */
        for (int i = 0; i < 3; i++) {
            int v = white - mul_div_255(255 - cmyk[4 * x + i], white);
            rgb[3 * x + i] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

static void spread_grey(const uint8_t *grey, uint8_t *rgb, int64_t width)
{
    for (int64_t x = 0; x < width; x++)
        rgb[3 * x] = rgb[3 * x + 1] = rgb[3 * x + 2] = grey[x];
}

/* All rows; leaves through r->leave on an error of the library. */
static di_status read_rows(struct reader *r, const struct di_decode_job *job, di_error *err)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    int64_t width = job->picture->stored_width;
    di_status status = DI_OK;
    jpeg_create_decompress(j);
    j->progress = &r->progress;
    j->mem->max_memory_to_use = (long)(job->picture->decode_bytes + ((size_t)64 << 20)); /* beyond it the library gives up */
    jpeg_mem_src(j, job->bytes, (unsigned long)job->n);
    jpeg_read_header(j, TRUE);
    CHECK(j->image_width == width && j->image_height == job->picture->stored_height && j->num_components <= 4, err, DI_ERR_INVALID, "",
          "the JPEG picture states two sizes");
    j->out_color_space = j->num_components == 1 ? JCS_GRAYSCALE : j->num_components == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_start_decompress(j);
    r->line = di_rows_alloc(1, 4 * width);
    r->rgb = j->num_components == 3 ? NULL : di_rows_alloc(1, 3 * width);
    CHECK(r->line && (r->rgb || j->num_components == 3), err, DI_ERR_MEMORY, "", "out of memory");
    while (j->output_scanline < j->output_height) {
        JSAMPROW line = r->line;
        jpeg_read_scanlines(j, &line, 1);
        if (j->num_components == 1)
            spread_grey(r->line, r->rgb, width);
        else if (j->num_components == 4)
            convert_cmyk(r->line, r->rgb, width);
        TRY(job->sink->row(job->sink->ctx, r->rgb ? r->rgb : r->line, err));
    }
out:
    return status;
}

di_status di_decode_jpeg(const struct di_decode_job *job, di_error *err)
{
    struct reader *r = di_calloc(1, sizeof *r);
    di_status status;
    if (!r)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory");
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->jpeg.client_data = r;
    r->errors.error_exit = leave_with_message;
    r->errors.emit_message = note_message;
    r->progress.progress_monitor = watch_scans;
    r->max_scans = job->max_scans;
    if (setjmp(r->leave) == 0)
        status = read_rows(r, job, err);
    else
        status = di_fail(err, r->errors.msg_code == JERR_OUT_OF_MEMORY ? DI_ERR_MEMORY : DI_ERR_INVALID, "",
                         "the JPEG picture cannot be decoded: %s", r->sentence);
    jpeg_destroy_decompress(&r->jpeg);
    di_free(r->line);
    di_free(r->rgb);
    di_free(r);
    return status;
}
