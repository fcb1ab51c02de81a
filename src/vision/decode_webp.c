/* A WebP picture, or the first frame of an animated one, by libwebp. Only the colours are decoded, not the alpha plane of lossy pictures. */
#include "vision/decode_impl.h"

#include <webp/decode.h>

/* The frame into pixels[frame_height][frame_width][3]. */
static di_status decode_frame(const struct di_decode_job *job, uint8_t *pixels, di_error *err)
{
    static const char *const reasons[] = {
        [VP8_STATUS_OUT_OF_MEMORY] = "there is not enough memory",
        [VP8_STATUS_BITSTREAM_ERROR] = "its data are broken",
        [VP8_STATUS_UNSUPPORTED_FEATURE] = "it uses a feature that is unknown",
        [VP8_STATUS_SUSPENDED] = "it is cut short",
        [VP8_STATUS_NOT_ENOUGH_DATA] = "it is cut short",
    };
    const struct di_picture *p = job->picture;
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return di_fail(err, DI_ERR_INTERNAL, "", "libwebp is of another version than its headers were");
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels;
    config.output.u.RGBA.stride = (int)(3 * p->frame_width);
    config.output.u.RGBA.size = (size_t)(3 * p->frame_width * p->frame_height);
    VP8StatusCode code = WebPGetFeatures(job->bytes + p->payload, p->payload_bytes, &config.input);
    if (code == VP8_STATUS_OK && (config.input.width != p->frame_width || config.input.height != p->frame_height))
        return di_fail(err, DI_ERR_INVALID, "", "the WebP picture states two sizes");
    if (code == VP8_STATUS_OK)
        code = WebPDecode(job->bytes + p->payload, p->payload_bytes, &config);
    if (code == VP8_STATUS_OK)
        return DI_OK;
    const char *why = (size_t)code < sizeof reasons / sizeof *reasons && reasons[code] ? reasons[code] : "its data are broken";
    return di_fail(err, code == VP8_STATUS_OUT_OF_MEMORY ? DI_ERR_MEMORY : DI_ERR_INVALID, "", "the WebP picture cannot be decoded: %s",
                   why);
}

/* Outside the first frame the picture is black: transparent, with the alpha dropped. */
di_status di_decode_webp(const struct di_decode_job *job, di_error *err)
{
    const struct di_picture *p = job->picture;
    bool whole = p->frame_width == p->stored_width && p->frame_height == p->stored_height;
    size_t frame_bytes = (size_t)(3 * p->frame_width);
    di_status status = DI_OK;
    uint8_t *pixels = di_rows_alloc(p->frame_height, 3 * p->frame_width), *row = di_rows_alloc(1, 3 * p->stored_width);
    CHECK(pixels && row, err, DI_ERR_MEMORY, "", "out of memory");
    TRY(decode_frame(job, pixels, err));
    for (int64_t y = 0; y < p->stored_height; y++) {
        int64_t line = y - p->frame_y;
        bool inside = line >= 0 && line < p->frame_height;
        if (!whole && inside)
            memcpy(row + 3 * p->frame_x, pixels + (size_t)line * frame_bytes, frame_bytes);
        else if (!whole)
            memset(row, 0, (size_t)(3 * p->stored_width));
        TRY(job->sink->row(job->sink->ctx, whole ? pixels + (size_t)y * frame_bytes : row, err));
    }
out:
    di_free(pixels);
    di_free(row);
    return status;
}
