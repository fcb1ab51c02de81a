/* also run on the hostile device, seed 1 */
/* not run under TSan: no threads */
/* The memory of the cached state is what the plan says: 890 bytes a token at full size (spec/model.md §6), to the byte. */
#define DI_ON_DEVICE /* writes what ops would */
#include "cache/kv_store.h"

#include "base/mem.h"
#include "testing/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void load(const char *dir, struct di_config *c, struct di_kv_layout *l)
{
    struct di_numerics numerics;
    assert_int_equal(di_config_load(dir, c, NULL), DI_OK);
    assert_true(di_numerics_by_name("bf16", &numerics));
    di_kv_layout_init(l, c, numerics);
}

static uint64_t planned(const di_memory_plan *p, const char *name)
{
    for (int i = 0; i < p->n_regions; i++)
        if (strcmp(p->regions[i].name, name) == 0)
            return p->regions[i].bytes;
    fail_msg("no region %s", name);
    return 0;
}

/* Published figures, contexts on both sides of a block's end, several requests. */
static void the_plan_has_the_published_figures(void **state)
{
    (void)state;
    struct di_config c;
    struct di_kv_layout l;
    load("tests/data/full_size", &c, &l);
    for (int batch = 1; batch <= 17; batch += 16)
        for (int64_t context = 63; context <= 65; context++) {
            di_memory_plan p = {0};
            uint64_t pages = context > 64 ? 2 : 1, n = (uint64_t)batch;
            di_kv_store_plan(&l, batch, batch * (int)pages, context, &p);
            assert_int_equal(planned(&p, "cache blocks"), n * pages * 64 * 890);
            assert_int_equal(planned(&p, "request states"), n * (43 * 144 * 528 + 3 * 16 * 2 * 512 * 4));
            assert_int_equal(planned(&p, "page table"), n * pages * 4);
            assert_int_equal(p.cache, p.total);
        }
}

/* Write the rows of every token of one request into a pool of full size: they fill its blocks, 890 bytes a token, no byte twice, none left.
 * */
static void figure_890_bytes_a_token(void **state)
{
    (void)state;
    struct di_config c;
    struct di_kv_layout l;
    struct di_kv_store *store;
    int64_t tokens = 10 * DI_BLOCK_TOKENS;
    load("tests/data/full_size", &c, &l);
    assert_int_equal(l.block_bytes, 64 * 890);
    assert_int_equal(di_kv_store_create(di_test_memory(), &l, 1, 10, tokens, &store, NULL), DI_OK);
    assert_true(di_kv_reserve(store, 0, tokens));
    assert_int_equal(di_kv_available(store), 0);
    di_kv_send_pages(store);
    struct di_kv kv = di_test_view_kv(store);
    memset(kv.blocks, 0, 10 * l.block_bytes);
    for (int src = 0; src < l.n_sources; src++)
        for (int32_t j = 0; j < tokens / l.ratio[src]; j++) {
            uint8_t *row[2] = {di_kv_key_row(&kv, 0, src, j), di_kv_comp_row(&kv, 0, src, j)};
            size_t bytes[2] = {l.key_row_bytes, l.comp_row_bytes};
            for (int k = 0; k < 2; k++)
                for (size_t i = 0; i < bytes[k]; i++)
                    row[k][i]++;
        }
    for (int64_t i = 0; i < tokens * 890; i++)
        assert_int_equal(kv.blocks[i], 1);
    struct di_backend *be = store->be;
    di_kv_store_destroy(store);
    di_test_memory_close(be);
}

/* Rings of both kinds of neighbouring slots do not touch. */
static void slots_have_their_own_rows(void **state)
{
    (void)state;
    struct di_config c;
    struct di_kv_layout l;
    struct di_kv_store *store;
    load("models/nano", &c, &l);
    assert_int_equal(di_kv_store_create(di_test_memory(), &l, 3, 3, 64, &store, NULL), DI_OK);
    size_t bytes = di_kv_state_bytes(&l), raw = di_kv_raw_offset(&l);
    struct di_kv kv = di_test_view_kv(store);
    memset(kv.state, 0, 3 * bytes);
    for (int slot = 0; slot < 3; slot++) {
        for (int layer = 0; layer < l.ring_layers; layer++)
            for (int32_t pos = 1000; pos < 1000 + DI_RING_ROWS; pos++)
                for (size_t i = 0; i < l.window_row_bytes; i++)
                    di_kv_window_row(&kv, slot, layer, pos)[i]++;
        for (int ring = 0; ring < l.n_raw_rings; ring++)
            for (int32_t pos = 1000; pos < 1000 + DI_RAW_ROWS; pos++)
                for (size_t i = 0; i < 2 * (size_t)l.d; i++)
                    di_kv_raw_row(&kv, slot, ring, pos)[i]++;
    }
    for (size_t i = 0; i < 3 * bytes; i++) {
        float value;
        memcpy(&value, kv.state + i / sizeof value * sizeof value, sizeof value);
        if (i % bytes < l.ring_bytes)
            assert_int_equal(kv.state[i], 1);
        else if (i % bytes >= raw && i % bytes < raw + l.raw_bytes)
            assert_true(value == 1);
        else
            assert_int_equal(kv.state[i], 0);
    }
    struct di_backend *be = store->be;
    di_kv_store_destroy(store);
    di_test_memory_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_has_the_published_figures),
        cmocka_unit_test(figure_890_bytes_a_token),
        cmocka_unit_test(slots_have_their_own_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
