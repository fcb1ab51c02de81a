/* deepinfer image: what happens to a picture before the model sees it (spec/vision.md §3 to §6). */
#include "base/file.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "text/image_plan.h"
#include "vision/canvas.h"
#include "vision/helper.h"

#include <unistd.h>
#include <zlib.h>

struct options {
    struct di_str_list images;
    const char *grey16, *canvas;
    bool exif, json, pixels;
    int64_t workers;
};

static const struct di_option table[] = {
    {.name = "image",
     .type = DI_OPT_LIST,
     .offset = offsetof(struct options, images),
     .metavar = "FILE",
     .help = "A JPEG, PNG, GIF or WebP file, told by its content. May be given several times."},
    {.name = "image-grey16",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct options, grey16),
     .def = "reference",
     .choices = "reference|high",
     .help = "16-bit grey: as the reference does, which turns nearly everything white, or the high byte of each sample."},
    {.name = "image-exif",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, exif),
     .def = "false",
     .help = "Turn pictures as their EXIF data say. The reference shows them as they are stored."},
    {.name = "image-workers",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, workers),
     .def = "2",
     .min = 0,
     .max = 64,
     .metavar = "N",
     .help = "Helper processes that decode. 0: decode in this process, unprotected."},
    {.name = "canvas",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, canvas),
     .metavar = "FILE",
     .help = "Write what the model sees of the (last) picture to this file, as PPM."},
    {.name = "pixels",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, pixels),
     .def = "false",
     .help = "Also tell the CRC-32 of the decoded picture."},
    {.name = "json",
     .type = DI_OPT_BOOL,
     .offset = offsetof(struct options, json),
     .def = "false",
     .help = "Print one JSON object a picture."},
};

struct seen {
    const char *name;
    struct di_picture picture;
    struct di_image_plan plan;
    struct di_placement at;
    uint32_t pixel_crc, canvas_crc, patch_crc;
};

/* CRC of all patches as the tower gets them, one row of patches at a time. */
static di_status count_patches(const uint8_t *canvas, struct seen *s, int64_t patch, di_error *err)
{
    uint16_t values[256];
    int64_t columns = s->plan.width / patch, elements = 3 * patch * patch;
    uint16_t *row = di_malloc((size_t)(columns * elements) * sizeof *row);
    uLong crc = 0;
    if (!row)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory");
    di_patch_values(values);
    for (int64_t y = 0; y < s->plan.height; y += patch) {
        di_canvas_patches(canvas + y * s->plan.width * 3, s->plan.width, patch, patch, values, row, elements);
        crc = crc32_z(crc, (const void *)row, (size_t)(columns * elements) * sizeof *row);
    }
    di_free(row);
    s->patch_crc = (uint32_t)crc;
    return DI_OK;
}

static di_status write_canvas(const char *path, const uint8_t *canvas, const struct di_image_plan *plan, di_error *err)
{
    struct di_buf b = {0};
    di_buf_addf(&b, "P6\n%lld %lld\n255\n", (long long)plan->width, (long long)plan->height);
    di_buf_add(&b, canvas, (size_t)(plan->width * plan->height) * 3);
    di_status status = di_buf_ok(&b, err);
    if (status == DI_OK)
        status = di_file_replace(path, di_buf_str(&b), err);
    di_buf_fini(&b);
    return status;
}

static di_status look_at(const struct options *opt, struct di_helpers *helpers, struct seen *s, di_error *err)
{
    struct di_image_limits limits = di_image_limits_default;
    struct di_render_order order = {
        .rules = {.grey16_high = strcmp(opt->grey16, "high") == 0, .apply_exif = opt->exif},
        .limits = di_picture_limits_default,
        .want_pixel_crc = opt->pixels,
    };
    struct di_buf bytes = {0};
    uint8_t *canvas = NULL;
    di_status status = DI_OK;
    TRY(di_file_read(s->name, order.limits.bytes, &bytes, err));
    TRY(di_picture_read(di_buf_str(&bytes), &order.rules, &order.limits, &s->picture, err));
    TRY(di_image_plan(s->picture.width, s->picture.height, &limits, &s->plan, err));
    order.canvas_width = s->plan.width;
    order.canvas_height = s->plan.height;
    s->at = di_place(s->picture.width, s->picture.height, s->plan.width, s->plan.height, limits.max_aspect);
    canvas = di_malloc((size_t)(s->plan.width * s->plan.height) * 3);
    CHECK(canvas, err, DI_ERR_MEMORY, "", "out of memory");
    TRY(di_helpers_render(helpers, di_buf_str(&bytes), &order, canvas, &s->pixel_crc, err));
    s->canvas_crc = (uint32_t)crc32_z(0, canvas, (size_t)(s->plan.width * s->plan.height) * 3);
    if (opt->json)
        TRY(count_patches(canvas, s, limits.patch, err));
    if (opt->canvas)
        TRY(write_canvas(opt->canvas, canvas, &s->plan, err));
out:
    di_free(canvas);
    di_buf_fini(&bytes);
    return status;
}

static void add_text(struct di_buf *b, const struct seen *s, const struct options *opt)
{
    const struct di_picture *p = &s->picture;
    di_buf_addf(b, "%s\n  picture  %s, %lld x %lld, ", s->name, di_picture_format_name(p->format), (long long)p->width,
                (long long)p->height);
    di_picture_add_mode(b, p);
    if (p->orientation > 1)
        di_buf_addf(b, ", turned (EXIF %d)", p->orientation);
    if (opt->pixels)
        di_buf_addf(b, ", CRC-32 of the pixels %08x", (unsigned)s->pixel_crc);
    di_buf_addf(b, "\n  canvas   %lld x %lld, the picture as %lld x %lld at (%lld, %lld), CRC-32 %08x\n", (long long)s->plan.width,
                (long long)s->plan.height, (long long)s->at.fit_width, (long long)s->at.fit_height, (long long)s->at.x, (long long)s->at.y,
                (unsigned)s->canvas_crc);
    di_buf_addf(b, "  tokens   %lld: %lld rows of %lld and their ends\n", (long long)s->plan.tokens, (long long)s->plan.rows,
                (long long)s->plan.columns);
}

static void add_json(struct di_buf *b, const struct seen *s, const struct options *opt)
{
    const struct di_picture *p = &s->picture;
    struct di_buf mode = {0};
    di_picture_add_mode(&mode, p);
    di_buf_adds(b, "{\"image\":");
    di_json_write_string(b, di_str_c(s->name));
    di_buf_addf(b, ",\"format\":\"%s\",\"mode\":\"%s\",\"width\":%lld,\"height\":%lld,\"orientation\":%d",
                di_picture_format_name(p->format), mode.p ? mode.p : "", (long long)p->width, (long long)p->height, p->orientation);
    di_buf_addf(b, ",\"canvas\":[%lld,%lld],\"fit\":[%lld,%lld],\"at\":[%lld,%lld],\"grid\":[%lld,%lld],\"tokens\":%lld",
                (long long)s->plan.width, (long long)s->plan.height, (long long)s->at.fit_width, (long long)s->at.fit_height,
                (long long)s->at.x, (long long)s->at.y, (long long)s->plan.columns, (long long)s->plan.rows, (long long)s->plan.tokens);
    if (opt->pixels)
        di_buf_addf(b, ",\"pixels_crc32\":\"%08x\"", (unsigned)s->pixel_crc);
    di_buf_addf(b, ",\"canvas_crc32\":\"%08x\",\"patches_crc32\":\"%08x\"}\n", (unsigned)s->canvas_crc, (unsigned)s->patch_crc);
    di_buf_fini(&mode);
}

static di_status show_picture(const struct options *opt, struct di_helpers *helpers, const char *name, bool *failed, di_error *err)
{
    struct seen s = {.name = name};
    struct di_buf b = {0};
    di_status status = look_at(opt, helpers, &s, err);
    if (status != DI_OK) {
        *failed = true;
        di_error_at(err, name);
        if (opt->json) {
            struct di_json id = {.type = DI_JSON_STRING, .text = di_str_c(name)};
            di_add_error_object(&b, &id, err, 0);
            di_buf_addc(&b, '\n');
        } else {
            di_cli_fail("image", err);
        }
    } else if (opt->json) {
        add_json(&b, &s, opt);
    } else {
        add_text(&b, &s, opt);
    }
    *err = (di_error){0};
    status = di_buf_ok(&b, err);
    if (status == DI_OK && b.n)
        status = di_write_text(stdout, di_buf_str(&b), err);
    di_buf_fini(&b);
    return status;
}

static int run_image(const void *options)
{
    const struct options *opt = options;
    struct di_log log = {.level = DI_LOG_WARN, .file = stderr};
    struct di_helper_params params = di_helper_params_default;
    struct di_helpers *helpers = NULL;
    char program[4096];
    bool failed = false;
    di_error err = {0};
    di_status status = DI_OK;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    CHECK(opt->images.count > 0, &err, DI_ERR_INVALID, "", "--image FILE is missing");
    CHECK(opt->workers == 0 || n > 0, &err, DI_ERR_IO, "", "the program's own path is unknown; --image-workers 0 decodes in this process");
    params.program = opt->workers ? program : NULL;
    params.helpers = opt->workers ? (int)opt->workers : 1;
    params.log = &log;
    TRY(di_helpers_open(&params, &helpers, &err));
    for (size_t i = 0; i < opt->images.count; i++)
        TRY(show_picture(opt, helpers, opt->images.items[i], &failed, &err));
out:
    di_helpers_close(helpers);
    if (status != DI_OK)
        return di_cli_fail("image", &err);
    return failed ? DI_EXIT_SOME_FAILED : DI_EXIT_OK;
}

const struct di_command di_cmd_image = {
    .name = "image",
    .summary = "what happens to a picture before a model sees it, and how many tokens it takes",
    .usage = "--image FILE [--image FILE ...] [--canvas FILE] [--json]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_image,
};
