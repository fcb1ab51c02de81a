/* not run under TSan: no threads */
/* The plan is what is allocated: every region of model and engine, against the growth of the heap. A region that is left out of the plan,
 * or an array that no region counts, is seen where its numbers are large. */
#include "engine/core.h"
#include "testing/device.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MODEL "models/nano"

static uint64_t heap(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void check(const char *what, const di_memory_plan *p, uint64_t grown, uint64_t slack)
{
    uint64_t planned = di_plan_taken(p), off = grown > planned ? grown - planned : planned - grown;
    print_message("%s: %llu bytes planned, the heap grew by %llu\n", what, (unsigned long long)planned, (unsigned long long)grown);
    if (off > slack && !DI_TEST_SHORT) /* the heap of a sanitizer tells nothing */
        fail_msg("%s: off by %llu", what, (unsigned long long)off);
}

struct sizes {
    int batch, chunk, blocks, states, drafts;
    int64_t context;
    bool no_reuse;
};

static void the_plan_is_what_is_allocated(void **state)
{
    (void)state;
    static const struct {
        const char *isa;
        struct sizes s;
    } cases[] = {
        {NULL, {.batch = 4, .chunk = 64, .states = 10, .context = 512}},
        {NULL, {.batch = 1024, .chunk = 16, .blocks = 20000, .states = 3, .context = 8192}}, /* requests */
        {NULL, {.batch = 512, .chunk = 16, .blocks = 20000, .drafts = 5, .context = 8192}},  /* rows of drafts */
        {NULL, {.batch = 1, .chunk = 2048, .blocks = 30000, .states = 4000, .context = 64}}, /* snapshots, rows of a step */
        {NULL, {.batch = 2, .chunk = 16, .blocks = 20000, .context = 65536, .no_reuse = true}},
        {"ref", {.batch = 3, .chunk = 33, .states = 1, .context = 1000}},
        {"ref", {.batch = 3, .chunk = 2000, .states = 1, .drafts = 1, .context = 2000}},
    };
    struct di_config c;
    assert_int_equal(di_config_load(MODEL, &c, NULL), DI_OK);
    int32_t *map = calloc((size_t)c.vocab_size, sizeof *map); /* the hashes do not matter here */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sizes *s = &cases[i].s;
        struct di_core_config config = {.max_batch = s->batch,
                                        .prefill_chunk = s->chunk,
                                        .cache_blocks = s->blocks,
                                        .states = s->states,
                                        .drafts = s->drafts,
                                        .context = s->context,
                                        .no_reuse = s->no_reuse};
        struct di_model_params params = {.max_rows = di_core_max_rows(&config),
                                         .max_context = s->context,
                                         .threads = 1,
                                         .isa = cases[i].isa,
                                         .drafts = s->drafts > 0,
                                         .token_map = map};
        di_memory_plan of_model = {0}, of_core = {0};
        struct di_model *model;
        struct di_core *core;
        assert_true(di_numerics_by_name("bf16", &params.numerics));
        assert_int_equal(di_model_plan(&c, &params, &of_model, NULL), DI_OK);
        uint64_t before = heap();
        assert_int_equal(di_model_open(MODEL, &params, &model, NULL), DI_OK);
        check("model", &of_model, heap() - before, 256 << 10); /* arenas grow in steps */
        di_core_plan(&c, params.numerics, &config, &of_core);
        before = heap();
        assert_int_equal(di_core_create(model, &config, &core, NULL), DI_OK);
        check("engine", &of_core, heap() - before, 40 << 10); /* small structs, and what the heap itself takes */
        di_core_destroy(core);
        di_model_close(model);
    }
    free(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plan_is_what_is_allocated)};
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
