/* The first frame of a GIF file, by giflib. Transparency is left aside (spec/vision.md §3.2). */
#include "vision/decode_impl.h"

#include <gif_lib.h>

struct reader {
    const struct di_decode_job *job;
    size_t at;
    GifFileType *gif;
    uint8_t *indices; /* of a line, or of the whole frame if it is interlaced */
    uint8_t *rgb;
    uint8_t colours[256][3];
};

static int read_bytes(GifFileType *gif, GifByteType *to, int n)
{
    struct reader *r = gif->UserData;
    size_t left = r->job->n - r->at, take = (size_t)n < left ? (size_t)n : left;
    memcpy(to, r->job->bytes + r->at, take);
    r->at += take;
    return (int)take;
}

/* `code`: of a call that had no reader yet, else 0. */
static di_status broken(const struct reader *r, int code, di_error *err)
{
    code = r->gif ? r->gif->Error : code;
    bool no_memory = code == D_GIF_ERR_NOT_ENOUGH_MEM;
    const char *why = r->at == r->job->n && !no_memory ? "it is cut short" : GifErrorString(code);
    return di_fail(err, no_memory ? DI_ERR_MEMORY : DI_ERR_INVALID, "", "the GIF picture cannot be decoded: %s",
                   why ? why : "its data are broken");
}

/* A palette that is a ramp of greys from 0 is no palette in the reference, so an index beyond it is a grey, too. With any other palette
 * what lies beyond is black. */
static void set_colours(struct reader *r)
{
    const struct di_picture *p = r->job->picture;
    const uint8_t *palette = r->job->bytes + p->palette;
    bool ramp = true;
    for (int i = 0; i < 3 * p->palette_colours; i++)
        ramp &= palette[i] == i / 3;
    for (int i = 0; i < 256; i++)
        if (ramp)
            memset(r->colours[i], i, 3);
        else if (i < p->palette_colours)
            memcpy(r->colours[i], palette + 3 * i, 3);
}

/* Up to the data of the first frame. */
static di_status open_frame(struct reader *r, di_error *err)
{
    GifRecordType record;
    GifByteType *extension;
    int code = 0;
    r->gif = DGifOpen(r, read_bytes, &code);
    if (!r->gif)
        return broken(r, code, err);
    for (;;) {
        if (DGifGetRecordType(r->gif, &record) == GIF_ERROR)
            return broken(r, 0, err);
        if (record == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(r->gif) == GIF_ERROR ? broken(r, 0, err) : DI_OK;
        if (record != EXTENSION_RECORD_TYPE || DGifGetExtension(r->gif, &code, &extension) == GIF_ERROR)
            return broken(r, 0, err);
        while (extension)
            if (DGifGetExtensionNext(r->gif, &extension) == GIF_ERROR)
                return broken(r, 0, err);
    }
}

/* All lines of an interlaced frame: every 8th from 0, every 8th from 4, every 4th from 2, every 2nd from 1. */
static di_status read_interlaced(struct reader *r, di_error *err)
{
    static const int starts[] = {0, 4, 2, 1}, steps[] = {8, 8, 4, 2};
    const struct di_picture *p = r->job->picture;
    for (int pass = 0; pass < 4; pass++)
        for (int64_t y = starts[pass]; y < p->frame_height; y += steps[pass])
            if (DGifGetLine(r->gif, r->indices + (size_t)(y * p->frame_width), (int)p->frame_width) == GIF_ERROR)
                return broken(r, 0, err);
    return DI_OK;
}

static void fill_row(struct reader *r)
{
    const struct di_picture *p = r->job->picture;
    for (int64_t x = 0; x < p->stored_width; x++)
        memcpy(r->rgb + 3 * x, r->colours[p->fill], 3);
}

static di_status emit_rows(struct reader *r, di_error *err)
{
    const struct di_picture *p = r->job->picture;
    di_status status = DI_OK;
    fill_row(r);
    for (int64_t y = 0; y < p->stored_height; y++) {
        int64_t line = y - p->frame_y;
        if (line >= 0 && line < p->frame_height) {
            const uint8_t *indices = r->indices + (p->buffered ? line * p->frame_width : 0);
            if (!p->buffered && DGifGetLine(r->gif, r->indices, (int)p->frame_width) == GIF_ERROR)
                return broken(r, 0, err);
            for (int64_t x = 0; x < p->frame_width; x++)
                memcpy(r->rgb + 3 * (p->frame_x + x), r->colours[indices[x]], 3);
        } else if (line == p->frame_height) {
            fill_row(r);
        }
        TRY(r->job->sink->row(r->job->sink->ctx, r->rgb, err));
    }
out:
    return status;
}

di_status di_decode_gif(const struct di_decode_job *job, di_error *err)
{
    const struct di_picture *p = job->picture;
    struct reader r = {.job = job};
    di_status status = DI_OK;
    int code;
    set_colours(&r);
    r.indices = di_rows_alloc(p->buffered ? p->frame_height : 1, p->frame_width);
    r.rgb = di_rows_alloc(1, 3 * p->stored_width);
    CHECK(r.indices && r.rgb, err, DI_ERR_MEMORY, "", "out of memory");
    TRY(open_frame(&r, err));
    CHECK(r.gif->Image.Width == p->frame_width && r.gif->Image.Height == p->frame_height, err, DI_ERR_INVALID, "",
          "the GIF picture states two sizes");
    if (p->buffered)
        TRY(read_interlaced(&r, err));
    TRY(emit_rows(&r, err));
out:
    if (r.gif)
        DGifCloseFile(r.gif, &code);
    di_free(r.indices);
    di_free(r.rgb);
    return status;
}
