#include "text/image_plan.h"

#include <math.h>

const struct di_image_limits di_image_limits_default = {.patch = 14, .downsample = 3, .max_tokens = 1024, .min_area = 544 * 544};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void count(struct di_image_plan *p, const struct di_image_limits *l)
{
    p->columns = ceil_div(p->width / l->patch, l->downsample);
    p->rows = ceil_div(p->height / l->patch, l->downsample);
    p->tokens = p->rows * (p->columns + 1) + 2;
}

/* The size before rounding is w x h and its grid is over the budget: the largest canvas of about its shape. The expressions are in the
 * order of the specification, since their rounding decides. */
static void fit_budget(int64_t w, int64_t h, const struct di_image_limits *l, struct di_image_plan *p)
{
    int64_t cell = l->patch * l->downsample, budget = l->max_tokens - 2;
    double ratio = (double)h / (double)w;
    double columns = sqrt((double)budget / ratio + 0.25) - 0.5, rows = columns * ratio;
    if (columns < 1) {
        p->width = cell;
        p->height = budget / 2 * cell;
    } else if (rows < 1) {
        p->width = (budget - 1) * cell;
        p->height = cell;
    } else {
        double by_width = floor(columns) * (double)cell / (double)w, by_height = floor(rows) * (double)cell / (double)h;
        double beta = by_width < by_height ? by_width : by_height;
        p->width = (int64_t)floor((double)w * beta / (double)l->patch) * l->patch;
        p->height = (int64_t)floor((double)h * beta / (double)l->patch) * l->patch;
    }
    count(p, l);
}

static di_status plan_once(int64_t w, int64_t h, const struct di_image_limits *l, struct di_image_plan *p, di_error *err)
{
    if (l->max_aspect > 0 && w > h * l->max_aspect)
        w = h * l->max_aspect;
    if (w * h < l->min_area) {
        double q = pow((double)l->min_area / (double)(w * h), 0.5);
        w = (int64_t)((double)w * q);
        h = (int64_t)((double)h * q);
    }
    p->width = ceil_div(w, l->patch) * l->patch;
    p->height = ceil_div(h, l->patch) * l->patch;
    count(p, l);
    if (p->tokens > l->max_tokens)
        fit_budget(w, h, l, p);
    if (p->tokens > l->max_tokens || p->columns < 1 || p->rows < 1)
        return di_fail(err, DI_ERR_LIMIT, "", "an image of %lld x %lld pixels does not fit %lld tokens", (long long)w, (long long)h,
                       (long long)l->max_tokens);
    return DI_OK;
}

di_status di_image_plan(int64_t width, int64_t height, const struct di_image_limits *l, struct di_image_plan *out, di_error *err)
{
    const int64_t side = (int64_t)1 << 24;
    di_status status = DI_OK;
    CHECK(width >= 1 && height >= 1 && width <= side && height <= side, err, DI_ERR_INVALID, "",
          "an image of %lld x %lld pixels: each side must be 1 to %lld", (long long)width, (long long)height, (long long)side);
    CHECK(l->patch >= 1 && l->patch <= 4096 && l->downsample >= 1 && l->downsample <= 64 && l->max_tokens >= 4 &&
              l->max_tokens <= 1 << 20 && l->min_area >= 1 && l->min_area <= side * side && l->max_aspect >= 0 && l->max_aspect <= side,
          err, DI_ERR_INVALID, "", "the limits of the image plan make no sense");
    TRY(plan_once(width, height, l, out, err));
    for (int i = 0; l->repeat && i < 10; i++) {
        struct di_image_plan again;
        TRY(plan_once(out->width, out->height, l, &again, err));
        if (again.width == out->width && again.height == out->height)
            break;
        *out = again;
    }
out:
    return status;
}
