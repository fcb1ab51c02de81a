/* not run under TSan: no threads */
/* The list of memory regions: sums, limits, and what is printed of it. */
#include "base/plan.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void sums(void **state)
{
    (void)state;
    di_memory_plan p = {.max_batch = 2, .context = 1234, .max_rows = 3, .arithmetic = "bf16/x"};
    di_plan_add(&p, &(di_memory_region){.name = "a", .group = DI_GROUP_WEIGHTS, .count = 3, .unit_bytes = 100}, "%d times", 3);
    di_plan_add(&p, &(di_memory_region){.name = "b", .group = DI_GROUP_WEIGHTS, .place = DI_PLACE_MAPPED, .count = 1, .unit_bytes = 7},
                "b");
    di_plan_add(&p, &(di_memory_region){.name = "c", .group = DI_GROUP_WEIGHTS, .place = DI_PLACE_FILE, .count = 1, .unit_bytes = 9}, "c");
    di_plan_add(&p, &(di_memory_region){.name = "d", .group = DI_GROUP_CACHE, .place = DI_PLACE_HOST, .count = 1, .unit_bytes = 11}, "d");
    di_plan_add(&p, &(di_memory_region){.name = "e", .group = DI_GROUP_ACTIVATIONS, .count = 1, .unit_bytes = 13}, "e");
    di_plan_add(&p, &(di_memory_region){.name = "f", .group = DI_GROUP_SCRATCH, .count = 1, .unit_bytes = 17}, "f");
    di_plan_add(&p, &(di_memory_region){.name = "g", .group = DI_GROUP_CACHE, .count = 0, .unit_bytes = 17}, "nothing");
    assert_int_equal(p.n_regions, 6);
    assert_int_equal(p.weights_packed, 300);
    assert_int_equal(p.weights_mapped, 7);
    assert_int_equal(p.cache, 11);
    assert_int_equal(p.activations, 13);
    assert_int_equal(p.scratch, 17);
    assert_int_equal(p.total, 348);
    assert_int_equal(di_plan_taken(&p), 341);
    assert_string_equal(p.regions[0].note, "3 times");
    assert_int_equal(di_plan_check(&p, NULL), DI_OK);

    struct di_buf b = {0};
    di_plan_write(&b, &p);
    assert_non_null(strstr(b.p, "memory plan: 2 requests of 1,234 tokens, at most 3 rows a step, bf16/x\n"));
    assert_non_null(
        strstr(b.p, "\n  weights     a                  device          3             100               300       300 B    3 times\n"));
    assert_non_null(strstr(b.p, "\n  weights     c                  file "));
    assert_non_null(strstr(b.p, " 348       348 B    at most\n"));
    b.n = 0;
    di_plan_write_json(&b, &p);
    struct di_arena arena;
    struct di_json *root;
    di_arena_init(&arena);
    assert_int_equal(di_json_parse(di_buf_str(&b), NULL, &arena, &root, NULL), DI_OK);
    const struct di_json *regions = di_json_get(root, "regions");
    int64_t bytes;
    assert_int_equal(regions->count, 6);
    assert_true(di_json_int(di_json_get(root, "rows"), &bytes) && bytes == 3);
    assert_true(di_json_int(di_json_get(root, "total"), &bytes) && bytes == 348);
    assert_true(di_json_int(di_json_get(root, "allocated_bytes"), &bytes) && bytes == (int64_t)di_plan_taken(&p));
    assert_true(di_json_int(di_json_get(di_json_at(regions, 0), "bytes"), &bytes) && bytes == 300);
    assert_true(di_str_eqc(di_json_get(di_json_at(regions, 1), "place")->text, "mapped"));
    di_arena_fini(&arena);
    di_buf_fini(&b);
}

/* A sum that does not fit is refused, and never a small number. */
static void limits(void **state)
{
    (void)state;
    static const uint64_t cases[][2] = {{1, (uint64_t)INT64_MAX + 1}, {1, UINT64_MAX}, {(uint64_t)1 << 40, (uint64_t)1 << 40}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_memory_plan p = {0};
        for (int k = 0; k < 3; k++)
            di_plan_add(&p, &(di_memory_region){.name = "a", .group = DI_GROUP_CACHE, .count = cases[i][0], .unit_bytes = cases[i][1]},
                        "a");
        assert_true(p.total > INT64_MAX);
        assert_int_equal(di_plan_check(&p, NULL), DI_ERR_LIMIT);
    }
    di_memory_plan p = {0};
    for (int i = 0; i < DI_MEMORY_REGIONS_MAX + 2; i++) {
        assert_int_equal(di_plan_check(&p, NULL), i <= DI_MEMORY_REGIONS_MAX ? DI_OK : DI_ERR_INTERNAL);
        di_plan_add(&p, &(di_memory_region){.name = "a", .group = DI_GROUP_CACHE, .count = 1, .unit_bytes = 1}, "a");
    }
}

static void names(void **state)
{
    (void)state;
    char s[32];
    assert_string_equal(di_memory_group_name(DI_GROUP_SCRATCH), "scratch");
    assert_string_equal(di_memory_group_name((di_memory_group)4), "");
    assert_string_equal(di_memory_place_name(DI_PLACE_FILE), "file");
    assert_string_equal(di_memory_place_name((di_memory_place)-1), "");
    assert_string_equal(di_grouped(0, s), "0");
    assert_string_equal(di_grouped(999, s), "999");
    assert_string_equal(di_grouped(1000, s), "1,000");
    assert_string_equal(di_grouped(UINT64_MAX, s), "18,446,744,073,709,551,615");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums), cmocka_unit_test(limits), cmocka_unit_test(names)};
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
