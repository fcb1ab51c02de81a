/* Opens the small models of tests/data/vectors, which have no tokenizer. Every failure is a failed assertion of cmocka, whose headers come first. */
#ifndef DI_TESTING_TINY_FIXTURE_H
#define DI_TESTING_TINY_FIXTURE_H

#include "testing/device.h"
#include "testing/golden.h"
#include "model/model.h"

#include <stdio.h>

/* One thread, bf16, steps of 340 rows, requests of up to 400 tokens. */
static inline struct di_model *open_tiny_with(const char *name, const char *isa, bool drafts)
{
    char dir[256];
    struct di_model *m;
    struct di_golden g;
    di_error err = {0};
    snprintf(dir, sizeof dir, DI_SOURCE_DIR "/tests/data/vectors/%s", name);
    assert_int_equal(di_golden_open(dir, dir, &g, &err), DI_OK);
    const struct di_tensor *map = di_golden_field(&g, NULL, "engram_token_map");
    struct di_model_params p = {.backend = di_test_backend,
                                .max_rows = 340,
                                .max_context = 400,
                                .threads = 1,
                                .isa = isa,
                                .drafts = drafts,
                                .token_map = map ? (const int32_t *)(const void *)map->data : NULL};
    assert_true(di_numerics_by_name("bf16", &p.numerics));
    if (di_model_open(dir, &p, &m, &err) != DI_OK)
        fail_msg("%s: %s", name, err.message);
    di_golden_close(&g);
    return m;
}
static inline struct di_model *open_tiny(const char *name, const char *isa)
{
    return open_tiny_with(name, isa, false);
}

#endif
