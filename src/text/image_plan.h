/* How many tokens an image takes: a pure function of its size (spec/encoding.md §2.13, spec/vision.md §4). */
#ifndef DI_TEXT_IMAGE_PLAN_H
#define DI_TEXT_IMAGE_PLAN_H

#include "base/error.h"

#include <stdbool.h>

struct di_image_limits {
    int64_t patch;      /* 14: pixels of a patch side */
    int64_t downsample; /* 3: patches of a token side */
    int64_t max_tokens; /* 1024: row ends, start and end included */
    int64_t min_area;   /* 544 * 544: smaller images are enlarged */
    int64_t max_aspect; /* width : height beyond which the plan narrows the image; 0 = no limit */
    bool repeat;        /* plan the result again until it stands still, as the official request library counts; the model's own image
                         * processor plans once */
};
extern const struct di_image_limits di_image_limits_default;

struct di_image_plan {
    int64_t width, height; /* of the canvas in pixels, multiples of the patch */
    int64_t columns, rows; /* of the token grid */
    int64_t tokens;        /* rows * (columns + 1) + 2 */
};

/* DI_ERR_INVALID for sizes outside 1..2^24 or limits that make no sense, DI_ERR_LIMIT if no canvas fits the budget. */
di_status di_image_plan(int64_t width, int64_t height, const struct di_image_limits *limits, struct di_image_plan *out, di_error *err);

#endif
