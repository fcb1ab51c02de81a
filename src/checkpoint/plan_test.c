/* not run under TSan: no threads */
/* The memory plan against the published figures (spec/model.md §2.1, §6) and, for a small model, against sums made by hand. */
#include "checkpoint/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void load(const char *dir, struct di_config *c)
{
    di_error err = {0};
    if (di_config_load(dir, c, &err) != DI_OK)
        fail_msg("%s: %s", dir, err.message);
}

static void parameters(void **state)
{
    (void)state;
    static const uint64_t want[DI_PART_COUNT] = {
        [DI_PART_EMBED] = 661913600,
        [DI_PART_HEAD] = 661913600,
        [DI_PART_NORM] = 5120,
        [DI_PART_ATTENTION] = 5064696320,
        [DI_PART_COMPRESSOR] = 18352128,
        [DI_PART_INDEXER_KEY] = 262656,
        [DI_PART_INDEXER_QUERY] = 43253760,
        [DI_PART_ROUTER] = 78673920,
        [DI_PART_SHARED_EXPERT] = 1415577600,
        [DI_PART_ROUTED_EXPERTS] = 543581798400,
        [DI_PART_MHC] = 39323760,
        [DI_PART_LAYER_NORMS] = 409600,
        [DI_PART_ENGRAM_PROJ] = 314654720,
        [DI_PART_ENGRAM_TABLE] = 196613849600,
        [DI_PART_DRAFT] = 14225362530,
        [DI_PART_VISION] = 485268480,
    };
    struct di_config c;
    struct di_part_sums s;
    load("tests/data/full_size", &c);
    di_part_sums(&c, true, true, &s);
    for (int i = 0; i < DI_PART_COUNT; i++)
        if (s.part[i].parameters != want[i])
            fail_msg("%s: %llu parameters", di_part_name((enum di_part)i), (unsigned long long)s.part[i].parameters);
    assert_int_equal(s.all.parameters, 763205315794);
    assert_int_equal(s.all.bytes, 510286023000);
    assert_int_equal(s.all.tensors, 96085);
    di_part_sums(&c, false, false, &s);
    assert_int_equal(s.all.tensors, 93418);
    assert_int_equal(s.all.bytes, 501382611408);
    assert_int_equal(s.all.parameters, 748494684784);
}

static const struct di_plan_region *region(const struct di_plan *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->region[i].name, name) == 0)
            return &p->region[i];
    fail_msg("no region %s", name);
    return NULL;
}

static void full_size(void **state)
{
    (void)state;
    struct di_config c;
    struct di_plan p;
    struct di_plan_params params = {.context = 1048576,
                                    .batch = 1,
                                    .draft = true,
                                    .vision = true,
                                    .load_draft = true,
                                    .load_vision = true,
                                    .packed_bytes = DI_PLAN_UNKNOWN,
                                    .activation_bytes = DI_PLAN_UNKNOWN,
                                    .scratch_bytes = DI_PLAN_UNKNOWN};
    load("tests/data/full_size", &c);
    assert_int_equal(di_plan_make(&c, &params, &p, NULL), DI_OK);
    assert_int_equal(p.block_bytes, 56960);
    uint64_t kv = 0;
    for (int i = 0; i < 4; i++)
        kv += region(&p, (const char *[]){"KV of layer 2", "KV of layer 8", "KV of layer 14", "KV of layer 20"}[i])->bytes;
    assert_int_equal(kv, 933232640);
    assert_int_equal(region(&p, "KV of layer 20")->unit_bytes, 64 * (288 + 68));
    assert_int_equal(region(&p, "window rings")->bytes, 43 * 144 * 528);
    assert_int_equal(region(&p, "open groups")->bytes, 3 * 16 * 2 * 512 * 4);
    assert_int_equal(region(&p, "token ids")->bytes, 4 * 1048576);
    assert_int_equal(p.bytes_per_sequence, 43 * 144 * 528 + 3 * 16 * 4096 + 4 * 1048576);
    assert_int_equal(region(&p, "engram tables")->bytes, 202758032400);
    assert_int_equal(region(&p, "engram tables")->place, DI_PLACE_MAPPED);
    assert_int_equal(region(&p, "routed experts")->place, DI_PLACE_COPIED);
    assert_int_equal(p.unknown, 2);
    uint64_t mapped = 202758032400 + 1323827200 + 10240 + 157295040 + 819200; /* tables, embedding, norm, mHC, layer norms */
    assert_int_equal(p.mapped, mapped);
    assert_int_equal(region(&p, "repacked weights")->bytes, 510286023000 - mapped);
    assert_int_equal(p.allocated, 510286023000 - mapped + kv + p.bytes_per_sequence + 3 * 4 * 16384);
}

static void told_figures(void **state)
{
    (void)state;
    struct di_config c;
    struct di_plan p;
    struct di_plan_params params = {.context = 65,
                                    .batch = 3,
                                    .draft = false,
                                    .vision = true,
                                    .load_draft = false,
                                    .load_vision = false,
                                    .packed_bytes = 0,
                                    .activation_bytes = 1000,
                                    .scratch_bytes = 2000};
    load("models/nano", &c);
    assert_int_equal(di_plan_make(&c, &params, &p, NULL), DI_OK);
    assert_int_equal(p.unknown, 0);
    /* d 128: 64 + 8; di 64: 32 + 2; sources of ratio 2, 2 and 1; two blocks for 65 tokens */
    assert_int_equal(p.block_bytes, (32 + 32 + 64) * (72 + 34));
    assert_int_equal(region(&p, "KV of layer 2")->count, 6);
    assert_int_equal(region(&p, "window rings")->bytes, 3 * 13 * 144 * (128 + 4));
    assert_int_equal(region(&p, "routed experts")->place, DI_PLACE_MAPPED);
    assert_int_equal(region(&p, "vision")->place, DI_PLACE_UNUSED);
    struct di_part_sums sums;
    di_part_sums(&c, false, false, &sums);
    assert_int_equal(p.mapped, sums.all.bytes);
    assert_int_equal(p.allocated, 6 * p.block_bytes + 3 * p.bytes_per_sequence + 3 * 16 + 6 * 4 + 3000);
    for (int i = 0; i < p.n; i++)
        assert_true(strcmp(p.region[i].name, "repacked weights") && strcmp(p.region[i].name, "draft"));
}

static void limits(void **state)
{
    (void)state;
    struct di_config c;
    struct di_plan p;
    di_error err;
    load("models/nano", &c);
    static const int64_t wrong[][2] = {{0, 1}, {-1, 1}, {65537, 1}, {1, 0}, {1, 1000001}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(di_plan_make(&c, &(struct di_plan_params){.context = wrong[i][0], .batch = wrong[i][1]}, &p, &err),
                         DI_ERR_INVALID);
    struct di_plan_params huge = {.context = 1, .batch = 1, .scratch_bytes = (uint64_t)INT64_MAX};
    assert_int_equal(di_plan_make(&c, &huge, &p, &err), DI_ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parameters), cmocka_unit_test(full_size), cmocka_unit_test(told_figures),
                                       cmocka_unit_test(limits)};
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
