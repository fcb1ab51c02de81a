/* also run on the hostile device, seeds 2 3 */
/* not run under TSan: no threads */
#define DI_ON_DEVICE /* the test is its own network */
#include "cache/hit_plan.h"
#include "cache/kv_store.h"
#include "cache/prefix.h"

#include "base/mem.h"
#include "testing/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SLOTS 4
#define CONTEXT 8192

/* Two sources (ratio 1 and 2), one ring layer: rows are 8 bytes. */
static const struct di_kv_layout layout = {.d = 2,
                                           .di = 2,
                                           .window_row_bytes = 8,
                                           .comp_row_bytes = 8,
                                           .key_row_bytes = 8,
                                           .ring_layers = 1,
                                           .n_sources = 2,
                                           .ratio = {1, 2},
                                           .raw_ring = {-1, 0},
                                           .comp_offset = {512, 1280},
                                           .key_offset = {0, 1024},
                                           .block_bytes = 1536,
                                           .ring_bytes = 8 * DI_RING_ROWS,
                                           .raw_bytes = DI_RAW_ROWS * 16,
                                           .n_raw_rings = 1};

struct world {
    struct di_backend *be;
    struct di_kv_store *store;
    struct di_state_pool *states;
    struct di_prefix *p;
    struct di_kv kv;
    struct di_key root;
};

static di_status world_create(struct world *w, int blocks, int states)
{
    struct di_prefix_params params = {.max_tokens = CONTEXT};
    di_status status = DI_OK;
    *w = (struct world){.be = di_test_memory()};
    TRY(di_kv_store_create(w->be, &layout, SLOTS, blocks, CONTEXT, &w->store, NULL));
    TRY(di_state_pool_create(&(struct di_state_params){.be = w->be, .layout = &layout, .count = states, .window = 128, .rollback = 1},
                             &w->states, NULL));
    params.pool = &w->store->pool;
    params.states = w->states;
    TRY(di_prefix_create(&params, &w->p, NULL));
    w->kv = di_kv_view(w->store);
out:
    return status;
}

static struct di_key root_of(struct world *w, const char *salt)
{
    static const uint8_t model[32] = {1};
    struct di_key root;
    assert_true(di_key_of_root(di_prefix_hasher(w->p), &(struct di_key_root){model, "test", salt, strlen(salt)}, &root));
    return root;
}

static void world_destroy(struct world *w)
{
    struct di_block_counts n;
    if (w->p) {
        assert_null(di_prefix_check(w->p));
        assert_true(di_block_pool_count(&w->store->pool, &n));
        assert_int_equal(n.held + n.held_cached, 0);
        assert_int_equal(n.refs, 0);
        di_prefix_destroy(w->p);
        assert_int_equal(w->store->pool.n_free, w->store->pool.n);
    }
    di_state_pool_destroy(w->states);
    di_kv_store_destroy(w->store);
    di_test_memory_close(w->be);
}

static struct world open_world(int blocks, int states)
{
    struct world w;
    assert_int_equal(world_create(&w, blocks, states), DI_OK);
    w.root = root_of(&w, "");
    return w;
}

static struct di_key_text text(const int32_t *tokens, int64_t n)
{
    return (struct di_key_text){tokens, n, NULL, 0};
}

static int32_t *numbers(int64_t n, int32_t seed)
{
    int32_t *t = di_malloc((size_t)n * sizeof *t);
    assert_non_null(t);
    for (int64_t i = 0; i < n; i++)
        t[i] = (int32_t)(i * 31 + seed);
    return t;
}

/* A whole request: look up, hold, publish everything with its partly filled block, save the state, give back. Returns what was found. */
static struct di_match run(struct world *w, int slot, const struct di_key *root, const struct di_key_text *t, bool save)
{
    struct di_lease *l = &w->store->lease[slot];
    struct di_match m = di_prefix_match(w->p, root, t, false);
    if (m.state >= 0)
        di_prefix_restore(w->p, &m, &w->kv, slot);
    assert_true(di_prefix_acquire(w->p, l, root, t, &m, di_kv_blocks_for(t->n)));
    if (m.source >= 0)
        di_kv_copy_block(w->store, m.source, l->pages[m.n_blocks], m.source_tokens);
    di_lease_copied(&w->store->pool, l);
    di_prefix_publish(w->p, l, t, t->n, true);
    if (save)
        assert_true(di_prefix_save(w->p, l, t, t->n,
                                   &(struct di_state_from){.kv = &w->kv, .slot = slot, .written = t->n, .draft_lo = 0, .least = 0}));
    assert_null(di_prefix_check(w->p));
    di_lease_release(&w->store->pool, l);
    assert_null(di_prefix_check(w->p));
    return m;
}

/* Two sessions of 50 blocks that grow in turns in a pool that holds both: nothing that was published is ever missing. */
static void two_sessions(int blocks)
{
    struct world w = open_world(blocks, 4);
    int32_t *tokens[2] = {numbers(CONTEXT, 1), numbers(CONTEXT, 2)};
    for (int turn = 0; turn < 12; turn++)
        for (int s = 0; s < 2; s++) {
            int64_t n = 2600 + 50 * turn;
            struct di_key_text t = text(tokens[s], n);
            struct di_match m = run(&w, s, &w.root, &t, true);
            if (turn > 0) {
                assert_int_equal(m.common, n - 50);
                assert_int_equal(m.resume, n - 50);
                assert_int_equal(m.n_blocks, (n - 50) / 64);
            }
        }
    assert_int_equal(di_prefix_stats(w.p).evicted, 0);
    world_destroy(&w);
    di_free(tokens[0]);
    di_free(tokens[1]);
}

static void report_86_two_sessions_that_fit_keep_everything(void **state)
{
    (void)state;
    two_sessions(2 * 51);
}

static void report_A2_interleaved_sessions_in_a_big_pool(void **state)
{
    (void)state;
    two_sessions(880); /* 12 % used */
}

static void report_A1_alternating_prompts_hit_whole(void **state)
{
    (void)state;
    struct world w = open_world(832, 2);
    int32_t *a = numbers(3200, 1), *b = numbers(3200, 2);
    for (int turn = 0; turn < 12; turn++)
        for (int s = 0; s < 2; s++) {
            struct di_key_text t = text(s ? b : a, 3200);
            struct di_match m = run(&w, 0, &w.root, &t, true);
            assert_int_equal(m.common, turn ? 3199 : 0);
            assert_int_equal(m.resume, turn ? 3199 : 0);
            assert_int_equal(m.miss, turn ? DI_MISS_REASON_NONE : DI_MISS_REASON_NEVER_SEEN);
        }
    assert_int_equal(di_prefix_stats(w.p).blocks, 100);
    world_destroy(&w);
    di_free(a);
    di_free(b);
}

/* Short prompts hit: all but the last token, at every length. */
static void report_A5_short_prompts_hit(void **state)
{
    (void)state;
    struct world w = open_world(130, 2);
    for (int64_t n = 2; n <= 4096; n = n < 300 ? n + 1 : n + 97) {
        int32_t *tokens = numbers(n, (int32_t)n << 12);
        struct di_key_text t = text(tokens, n);
        assert_int_equal(run(&w, 0, &w.root, &t, true).common, 0);
        struct di_match m = run(&w, 1, &w.root, &t, true);
        assert_int_equal(m.common, n - 1);
        assert_int_equal(m.resume, n - 1);
        assert_int_equal(m.tokens, (n - 1) & ~(int64_t)1);
        di_free(tokens);
    }
    world_destroy(&w);
}

static void report_A17_other_tenant_sees_nothing(void **state)
{
    (void)state;
    struct world w = open_world(64, 4);
    struct di_key other = root_of(&w, "other");
    int32_t *tokens = numbers(1000, 1);
    struct di_key_text t = text(tokens, 1000);
    run(&w, 0, &w.root, &t, true);
    struct di_match m = di_prefix_match(w.p, &other, &t, true);
    assert_int_equal(m.common, 0);
    assert_int_equal(m.state, -1);
    assert_int_equal(m.miss, DI_MISS_REASON_NEVER_SEEN); /* as if nobody had ever sent it */
    assert_int_equal(run(&w, 1, &w.root, &t, false).common, 999);
    assert_int_equal(di_prefix_stats(w.p).other_tenant, 0);
    run(&w, 1, &other, &t, false);
    assert_int_equal(di_prefix_stats(w.p).other_tenant, 1);
    world_destroy(&w);
    di_free(tokens);
}

/* All keys collide (their first byte alone counts): comparing keeps contents apart. */
static void forged_keys(int bits)
{
    struct world w = open_world(120, 4);
    int32_t tokens[200] = {0};
    di_hasher_weaken(di_prefix_hasher(w.p), bits);
    for (int round = 0; round < 2; round++)
        for (int32_t i = 0; i < 30; i++) {
            for (int k = 0; k < 200; k++)
                tokens[k] = i;
            struct di_key_text t = text(tokens, 200);
            struct di_match m = run(&w, 0, &w.root, &t, false);
            assert_true(m.common == 0 || m.common >= 192 || bits == 0);
            assert_true(round == 0 ? m.common == 0 : m.common == 0 || m.n_blocks > 0);
            for (int b = 0; b < m.n_blocks; b++)
                assert_int_equal(m.bounded, false);
        }
    world_destroy(&w);
}

/* What stands behind colliding blocks is the same, but not behind the same: the parent is compared too. */
static void forged_parents(int bits)
{
    struct world w = open_world(60, 4);
    int32_t tokens[200];
    di_hasher_weaken(di_prefix_hasher(w.p), bits);
    for (int i = 0; i < 8; i++)
        for (int n = 64; n <= 200; n += 136) {
            for (int k = 0; k < 200; k++)
                tokens[k] = k < 64 ? i : 7;
            struct di_key_text whole = text(tokens, 200), t = text(tokens, n);
            int64_t found = n > 64 ? 64 : 0; /* the first block of this text; what others have behind theirs does not count */
            assert_int_equal(di_prefix_match(w.p, &w.root, &whole, false).common, found);
            struct di_lease *l = &w.store->lease[0];
            run(&w, 0, &w.root, &t, false);
            assert_true(di_kv_reserve(w.store, 0, 200));
            di_prefix_begin(l, &w.root);
            di_prefix_publish(w.p, l, &t, n, false);
            assert_int_equal(di_prefix_stats(w.p).switched, n > 64 ? 4 * i + 4 : 4 * i + 1);
            assert_null(di_prefix_check(w.p));
            di_kv_release(w.store, 0);
        }
    world_destroy(&w);
}

static void report_A18_forged_key(void **state)
{
    (void)state;
    forged_keys(0);
    forged_keys(8);
    forged_keys(16);
    forged_parents(0);
    forged_parents(256);
}

/* Images stand behind equal placeholder tokens: only the digest tells them apart, in full blocks and in the rest. */
static void report_A13_images_with_colliding_keys(void **state)
{
    (void)state;
    struct world w = open_world(300, 4);
    int32_t tokens[200] = {0};
    di_hasher_weaken(di_prefix_hasher(w.p), 16);
    for (uint32_t i = 0; i < 70000; i++) {
        struct di_key_image image = {.begin = 20, .end = 180};
        memcpy(image.digest + 28, &i, 4);
        struct di_key_text t = {tokens, 200, &image, 1};
        struct di_match m = di_prefix_match(w.p, &w.root, &t, false);
        assert_int_equal(m.common, i ? 20 : 0);
        if (i % 1000 == 0)
            run(&w, 0, &w.root, &t, false);
    }
    world_destroy(&w);
}

/* The same image at another place, or another part of it, is other content. */
static void images_limit_the_partial_match(void **state)
{
    (void)state;
    struct world w = open_world(30, 4);
    int32_t tokens[60] = {0};
    struct di_key_image images[2] = {{.begin = 10, .end = 20}, {.begin = 30, .end = 40}};
    images[1].digest[0] = 1;
    struct di_key_text t = {tokens, 60, images, 2};
    run(&w, 0, &w.root, &t, false);
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).common, 59);
    t.n_images = 1;
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).common, 30);
    t.n_images = 0;
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).common, 10);
    t.n_images = 2;
    images[1].begin = 31;
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).common, 30);
    images[1].begin = 30;
    images[1].digest[31] = 9;
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).common, 30);
    images[0].end = 19;
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).common, 19);
    world_destroy(&w);
}

static void misses_have_reasons(void **state)
{
    (void)state;
    struct world w = open_world(8, 0);
    int32_t *a = numbers(640, 1), *b = numbers(640, 100000);
    struct di_key_text t = text(a, 300), u = text(b, 500);
    run(&w, 0, &w.root, &t, false);
    a[150] = -1;
    struct di_match m = di_prefix_match(w.p, &w.root, &t, false);
    assert_int_equal(m.miss, DI_MISS_REASON_DIVERGED);
    assert_int_equal(m.miss_at, 150);
    assert_int_equal(m.source_tokens, 150 - 128);
    a[150] = 150 * 31 + 1;
    t.n = 400;
    m = di_prefix_match(w.p, &w.root, &t, false);
    assert_int_equal(m.miss, DI_MISS_REASON_NEVER_SEEN);
    assert_int_equal(m.miss_at, 300);
    run(&w, 0, &w.root, &u, false); /* 8 blocks: all of the pool */
    m = di_prefix_match(w.p, &w.root, &t, false);
    assert_int_equal(m.miss, DI_MISS_REASON_EVICTED);
    assert_int_equal(m.miss_at, 0);
    run(&w, 0, &w.root, &t, false);
    assert_int_equal(di_prefix_stats(w.p).miss[DI_MISS_REASON_EVICTED], 1);
    world_destroy(&w);
    di_free(a);
    di_free(b);
}

static void publish_as(struct world *w, const struct di_key_text *t, bool bounded)
{
    struct di_lease *l = &w->store->lease[0];
    di_prefix_begin(l, &w->root);
    assert_true(di_lease_grow(&w->store->pool, l, di_kv_blocks_for(t->n)));
    l->bounded = bounded;
    assert_true(
        di_prefix_save(w->p, l, t, t->n, &(struct di_state_from){.kv = &w->kv, .slot = 0, .written = t->n, .draft_lo = 0, .least = 0}));
    di_lease_release(&w->store->pool, l);
}

static void bounded_blocks_never_serve_exact_requests(void **state)
{
    (void)state;
    struct world w = open_world(20, 4);
    int32_t *a = numbers(300, 1);
    struct di_key_text t = text(a, 300);
    publish_as(&w, &t, true);
    struct di_match m = di_prefix_match(w.p, &w.root, &t, false);
    assert_int_equal(m.common, 0);
    assert_int_equal(m.state, -1);
    assert_int_equal(m.miss, DI_MISS_REASON_BOUNDED);
    m = di_prefix_match(w.p, &w.root, &t, true);
    assert_int_equal(m.common, 299);
    assert_int_equal(m.resume, 299);
    assert_true(m.bounded && m.state_bounded);
    publish_as(&w, &t, false); /* exact content replaces it */
    m = di_prefix_match(w.p, &w.root, &t, true);
    assert_int_equal(m.common, 299);
    assert_true(!m.bounded && !m.state_bounded);
    assert_int_equal(di_prefix_stats(w.p).replaced, 5);
    assert_null(di_prefix_check(w.p));
    world_destroy(&w);
    di_free(a);
}

/* A bounded request that ends inside exact blocks saves a bounded state; the exact one takes its place. */
static void exact_states_replace_bounded_ones(void **state)
{
    (void)state;
    struct world w = open_world(20, 4);
    int32_t *a = numbers(300, 1);
    struct di_key_text t = text(a, 300);
    run(&w, 0, &w.root, &t, false);
    publish_as(&w, &t, true);
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).resume, 0);
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, true).resume, 299);
    publish_as(&w, &t, false);
    publish_as(&w, &t, true); /* and is not replaced by one */
    assert_int_equal(di_prefix_match(w.p, &w.root, &t, false).resume, 299);
    assert_int_equal(di_prefix_stats(w.p).states, 1);
    world_destroy(&w);
    di_free(a);
}

/* Two requests compute the same at the same time: one page remains, both hold it. */
static void equal_pages_become_one(void **state)
{
    (void)state;
    struct world w = open_world(12, 2);
    struct di_lease *l = w.store->lease;
    int32_t *a = numbers(300, 1);
    struct di_key_text t = text(a, 300);
    for (int i = 0; i < 2; i++) {
        di_prefix_begin(&l[i], &w.root);
        assert_true(di_lease_grow(&w.store->pool, &l[i], 5));
        di_prefix_publish(w.p, &l[i], &t, 300, true);
        assert_null(di_prefix_check(w.p));
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(l[0].pages[i], l[1].pages[i]);
    assert_int_not_equal(l[0].pages[4], l[1].pages[4]); /* still being filled */
    assert_int_equal(di_prefix_stats(w.p).switched, 4);
    assert_int_equal(di_kv_available(w.store), 6);
    assert_false(di_kv_reserve(w.store, 2, 7 * 64));
    assert_true(di_kv_reserve(w.store, 2, 6 * 64));
    for (int i = 0; i < 3; i++)
        di_kv_release(w.store, i);
    assert_int_equal(di_prefix_stats(w.p).blocks, 5);
    world_destroy(&w);
    di_free(a);
}

static void a_failed_acquire_changes_nothing(void **state)
{
    (void)state;
    struct world w = open_world(10, 2);
    int32_t *a = numbers(640, 1);
    struct di_key_text t = text(a, 300), longer = text(a, 640);
    run(&w, 0, &w.root, &t, false);
    assert_true(di_kv_reserve(w.store, 1, 1));
    struct di_match m = di_prefix_match(w.p, &w.root, &longer, false);
    assert_int_equal(m.common, 300);
    assert_false(di_prefix_acquire(w.p, &w.store->lease[0], &w.root, &longer, &m, 10)); /* 4 shared, 1 copied from, 5 left, 1 held */
    assert_int_equal(w.store->lease[0].n, 0);
    assert_null(di_prefix_check(w.p));
    assert_int_equal(di_kv_available(w.store), 9);
    m = di_prefix_match(w.p, &w.root, &longer, false);
    assert_true(di_prefix_acquire(w.p, &w.store->lease[0], &w.root, &longer, &m, 8));
    di_kv_release(w.store, 0);
    di_kv_release(w.store, 1);
    assert_false(di_prefix_acquire(w.p, &w.store->lease[0], &w.root, &longer, &m, 8)); /* a match is used once */
    world_destroy(&w);
    di_free(a);
}

/* Rows that later steps overwrote cannot be saved: spec/dspark.md §4.2 and §4.4. */
static void states_are_saved_only_while_their_rows_stand(void **state)
{
    (void)state;
    struct world w = open_world(10, 2);
    assert_true(di_state_can_save(w.states, 300, 314));
    assert_false(di_state_can_save(w.states, 300, 315)); /* the raw ring has 16 rows, two are needed */
    assert_false(di_state_can_save(w.states, 300, 299));
    struct di_kv_layout no_raw_rings = layout;
    struct di_state_pool *pool;
    no_raw_rings.n_raw_rings = 0;
    assert_int_equal(
        di_state_pool_create(&(struct di_state_params){.be = w.be, .layout = &no_raw_rings, .window = 128, .rollback = 1}, &pool, NULL),
        DI_OK);
    assert_true(di_state_can_save(pool, 300, 316));
    assert_false(di_state_can_save(pool, 300, 317));
    assert_true(di_state_can_save(pool, 5, 140));
    di_state_pool_destroy(pool);
    assert_int_equal(
        di_state_pool_create(&(struct di_state_params){.be = w.be, .layout = &layout, .window = 128, .rollback = DI_RAW_ROWS}, &pool, NULL),
        DI_ERR_INVALID);
    world_destroy(&w);
}

static void creation_survives_lack_of_memory(void **state)
{
    (void)state;
    for (uint64_t n = 0;; n++) {
        struct world w;
        di_mem_fail_after(n);
        di_status status = world_create(&w, 16, 3);
        di_mem_fail_after(UINT64_MAX);
        world_destroy(&w);
        if (status == DI_OK)
            break;
        assert_int_equal(status, DI_ERR_MEMORY);
        assert_true(n < 100);
    }
}

static void nothing_is_allocated_while_running(void **state)
{
    (void)state;
    struct world w = open_world(20, 2);
    int32_t *a = numbers(900, 1);
    uint64_t before = di_mem_calls();
    for (int i = 0; i < 50; i++) {
        struct di_key_text t = text(a + i, 800);
        run(&w, 0, &w.root, &t, true);
    }
    assert_int_equal(di_mem_calls(), before);
    world_destroy(&w);
    di_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_86_two_sessions_that_fit_keep_everything),
        cmocka_unit_test(report_A2_interleaved_sessions_in_a_big_pool),
        cmocka_unit_test(report_A1_alternating_prompts_hit_whole),
        cmocka_unit_test(report_A5_short_prompts_hit),
        cmocka_unit_test(report_A17_other_tenant_sees_nothing),
        cmocka_unit_test(report_A18_forged_key),
        cmocka_unit_test(report_A13_images_with_colliding_keys),
        cmocka_unit_test(images_limit_the_partial_match),
        cmocka_unit_test(misses_have_reasons),
        cmocka_unit_test(bounded_blocks_never_serve_exact_requests),
        cmocka_unit_test(exact_states_replace_bounded_ones),
        cmocka_unit_test(equal_pages_become_one),
        cmocka_unit_test(a_failed_acquire_changes_nothing),
        cmocka_unit_test(states_are_saved_only_while_their_rows_stand),
        cmocka_unit_test(creation_survives_lack_of_memory),
        cmocka_unit_test(nothing_is_allocated_while_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
