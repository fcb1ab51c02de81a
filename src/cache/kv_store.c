#include "cache/kv_store.h"

#include "base/mem.h"

void di_kv_store_plan(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, di_memory_plan *plan)
{
    const uint64_t pages = (uint64_t)di_kv_blocks_for(max_context) * sizeof(int32_t);
    di_memory_region r = {.group = DI_GROUP_CACHE, .name = "cache blocks", .count = (uint64_t)n_blocks, .unit_bytes = l->block_bytes};
    di_plan_add(plan, &r, "of %d tokens, %.4g B each", DI_BLOCK_TOKENS, (double)l->block_bytes / DI_BLOCK_TOKENS);
    r = (di_memory_region){.group = DI_GROUP_CACHE, .name = "request states", .count = (uint64_t)slots, .unit_bytes = di_kv_state_bytes(l)};
    di_plan_add(plan, &r, "rings of %d layers of %d rows of %zu B, raw rings of %d sources of %d rows", l->ring_layers, DI_RING_ROWS,
                l->window_row_bytes, l->n_raw_rings, DI_RAW_ROWS);
    r = (di_memory_region){.group = DI_GROUP_CACHE, .name = "page table", .count = (uint64_t)slots, .unit_bytes = pages};
    di_plan_add(plan, &r, "4 B a block");
    r = (di_memory_region){.group = DI_GROUP_CACHE,
                           .place = DI_PLACE_HOST,
                           .name = "leases",
                           .count = (uint64_t)slots,
                           .unit_bytes = pages + sizeof(struct di_lease)};
    di_plan_add(plan, &r, "the same, as requests hold them");
    di_block_pool_plan(n_blocks, plan);
}

static bool allocate_store(struct di_kv_store *s)
{
    size_t slots = (size_t)s->slots, pages = slots * (size_t)s->pages_per_slot * sizeof(int32_t);
    s->blocks = di_device_alloc(s->be, (size_t)s->n_blocks * s->layout.block_bytes);
    s->states = di_device_alloc(s->be, slots * di_kv_state_bytes(&s->layout));
    s->page_table = di_device_alloc(s->be, pages);
    s->pages = di_staging_alloc(s->be, pages);
    s->lease = di_calloc(slots, sizeof *s->lease);
    if (s->pages)
        memset(s->pages, 0, pages);
    return s->blocks && s->states && s->page_table && s->pages && s->lease;
}

di_status di_kv_store_create(struct di_backend *be, const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context,
                             struct di_kv_store **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_kv_store *s = di_calloc(1, sizeof *s);
    CHECK(s, err, DI_ERR_MEMORY, "", "out of memory for the cache");
    *s =
        (struct di_kv_store){.be = be, .layout = *l, .slots = slots, .n_blocks = n_blocks, .pages_per_slot = di_kv_blocks_for(max_context)};
    CHECK(allocate_store(s), err, DI_ERR_MEMORY, "", "out of memory for a cache of %d blocks of %zu bytes and %d slots of %zu bytes",
          n_blocks, l->block_bytes, slots, l->ring_bytes + l->raw_bytes);
    TRY(di_block_pool_init(&s->pool, n_blocks, err));
    for (int i = 0; i < slots; i++)
        di_lease_init(&s->lease[i], s->pages + (size_t)i * (size_t)s->pages_per_slot, s->pages_per_slot);
    *out = s;
    s = NULL;
out:
    di_kv_store_destroy(s);
    return status;
}

void di_kv_store_destroy(struct di_kv_store *s)
{
    if (!s)
        return;
    di_device_free(s->be, s->blocks);
    di_device_free(s->be, s->states);
    di_device_free(s->be, s->page_table);
    di_staging_free(s->be, s->pages);
    di_block_pool_fini(&s->pool);
    di_free(s->lease);
    di_free(s);
}

bool di_kv_reserve(struct di_kv_store *s, int slot, int64_t tokens)
{
    return di_lease_grow(&s->pool, &s->lease[slot], di_kv_blocks_for(tokens));
}

void di_kv_release(struct di_kv_store *s, int slot)
{
    di_lease_release(&s->pool, &s->lease[slot]);
}

void di_kv_copy_block(struct di_kv_store *s, int32_t from, int32_t to, int tokens)
{
    const struct di_kv_layout *l = &s->layout;
    const uint8_t DI_DEVICE *src = s->blocks + (size_t)from * l->block_bytes;
    uint8_t DI_DEVICE *dst = s->blocks + (size_t)to * l->block_bytes;
    struct di_copy_span spans[2 * DI_MAX_SOURCES];
    int n = 0;
    for (int i = 0; i < l->n_sources; i++) {
        size_t rows = (size_t)(tokens / l->ratio[i]);
        spans[n++] = (struct di_copy_span){dst + l->key_offset[i], src + l->key_offset[i], rows * l->key_row_bytes};
        spans[n++] = (struct di_copy_span){dst + l->comp_offset[i], src + l->comp_offset[i], rows * l->comp_row_bytes};
    }
    s->be->ops->copy(s->be, &(struct di_op_copy){n, spans});
}

void di_kv_send_pages(struct di_kv_store *s)
{
    struct di_copy_span all = {s->page_table, s->pages, (size_t)s->slots * (size_t)s->pages_per_slot * sizeof *s->pages};
    s->be->ops->copy(s->be, &(struct di_op_copy){1, &all});
}

struct di_kv di_kv_view(const struct di_kv_store *s)
{
    return (struct di_kv){.layout = &s->layout,
                          .blocks = s->blocks,
                          .state = s->states,
                          .state_stride = di_kv_state_bytes(&s->layout),
                          .pages = s->page_table,
                          .pages_per_slot = s->pages_per_slot};
}
