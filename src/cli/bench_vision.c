/* Suite vision: one thread, processor time. Canvases from decoded pictures, in each form of the resampler that this processor runs; and,
 * with --image, decoding of files, without a canvas. bench/vision.py puts other programs beside it. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "text/image_plan.h"
#include "vision/canvas.h"
#include "vision/decode.h"

#include <stdio.h>

struct bench {
    const struct di_bench_options *o;
    FILE *json; /* or NULL */
    int rows;
};

static void report(struct bench *b, const char *what, const char *name, int64_t width, int64_t height, double *seconds)
{
    double ms = di_bench_median(seconds, (int)b->o->rounds) * 1e3;
    printf("%-7s %-24s %5lld x %-5lld %9.3f ms  %8.1f Mpixel/s\n", what, name, (long long)width, (long long)height, ms,
           (double)(width * height) / ms / 1e3);
    if (b->json)
        fprintf(b->json, "%s{\"what\":\"%s\",\"name\":\"%s\",\"width\":%lld,\"height\":%lld,\"ms\":%.6f}", b->rows++ ? ",\n" : "[", what,
                name, (long long)width, (long long)height, ms);
}

static bool is_wanted(const struct bench *b, const char *name)
{
    return !b->o->filter || strstr(name, b->o->filter);
}

/* ---- canvases ---- */

static di_status make_canvas(const struct di_resampler *r, const uint8_t *rgb, int64_t w, int64_t h, const struct di_placement *at,
                             uint8_t *canvas, di_error *err)
{
    struct di_canvas c;
    di_status status = di_canvas_open(&c, w, h, at, r, canvas, err);
    if (status != DI_OK)
        return status;
    for (int64_t y = 0; y < h; y++)
        di_canvas_add_row(&c, rgb + y * w * 3);
    di_canvas_finish(&c);
    di_canvas_close(&c);
    return DI_OK;
}

static di_status measure_canvas(struct bench *b, int64_t w, int64_t h, di_error *err)
{
    static const struct di_resampler *const forms[] = {&di_resample_ref, &di_resample_avx2, &di_resample_avx512};
    double seconds[DI_BENCH_ROUNDS];
    struct di_image_plan plan;
    uint8_t *rgb = NULL, *canvas = NULL;
    di_status status = DI_OK;
    TRY(di_image_plan(w, h, &di_image_limits_default, &plan, err));
    struct di_placement at = di_place(w, h, plan.width, plan.height, 0);
    rgb = di_malloc((size_t)(w * h) * 3 + DI_ROW_PAD);
    canvas = di_malloc((size_t)(plan.width * plan.height) * 3);
    CHECK(rgb && canvas, err, DI_ERR_MEMORY, "", "out of memory");
    for (int64_t i = 0; i < w * h * 3; i++)
        rgb[i] = (uint8_t)((uint64_t)i * 2654435761u >> 13);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (!di_resampler_runs(forms[f]) || !is_wanted(b, forms[f]->name))
            continue;
        for (int64_t i = 0; i < b->o->rounds; i++) {
            double start = di_bench_clock(CLOCK_THREAD_CPUTIME_ID);
            TRY(make_canvas(forms[f], rgb, w, h, &at, canvas, err));
            seconds[i] = di_bench_clock(CLOCK_THREAD_CPUTIME_ID) - start;
        }
        report(b, "canvas", forms[f]->name, w, h, seconds);
    }
out:
    di_free(rgb);
    di_free(canvas);
    return status;
}

/* ---- decoders ---- */

static di_status drop_row(void *ctx, const uint8_t *rgb, di_error *err)
{
    (void)err;
    *(uint8_t *)ctx ^= rgb[0];
    return DI_OK;
}

static di_status measure_file(struct bench *b, const char *path, di_error *err)
{
    static const struct di_picture_rules rules = {0};
    double seconds[DI_BENCH_ROUNDS];
    struct di_picture p = {0};
    struct di_buf bytes = {0};
    uint8_t seen = 0;
    struct di_row_sink sink = {drop_row, &seen};
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    di_status status = DI_OK;
    TRY(di_file_read(path, di_picture_limits_default.bytes, &bytes, err));
    for (int64_t i = 0; i < b->o->rounds; i++) {
        double start = di_bench_clock(CLOCK_THREAD_CPUTIME_ID);
        TRY(di_picture_read(di_buf_str(&bytes), &rules, &di_picture_limits_default, &p, err));
        TRY(di_picture_decode(di_buf_str(&bytes), &p, &rules, di_picture_limits_default.scans, &sink, err));
        seconds[i] = di_bench_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    }
    report(b, "decode", name, p.width, p.height, seconds);
out:
    di_error_at(err, path);
    di_buf_fini(&bytes);
    return status;
}

di_status di_bench_vision(const struct di_bench_options *o, di_error *err)
{
    static const int64_t sizes[][2] = {{4032, 3024}, {1920, 1080}, {224, 224}};
    struct bench b = {.o = o};
    di_status status = DI_OK;
    if (o->json) {
        b.json = fopen(o->json, "w");
        CHECK(b.json, err, DI_ERR_IO, o->json, "the file cannot be written");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        TRY(measure_canvas(&b, sizes[i][0], sizes[i][1], err));
    for (size_t i = 0; i < o->images.count; i++)
        TRY(measure_file(&b, o->images.items[i], err));
out:
    if (b.json) {
        fputs(b.rows ? "]\n" : "[]\n", b.json);
        if (fclose(b.json) != 0 && status == DI_OK)
            status = di_fail(err, DI_ERR_IO, o->json, "the file cannot be written");
    }
    return status;
}
