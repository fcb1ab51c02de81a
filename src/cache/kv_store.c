#include "cache/kv_store.h"

#include "base/mem.h"

void di_kv_store_bytes(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, uint64_t *g_bytes, uint64_t *s_bytes)
{
    uint64_t per_slot = l->ring_bytes + l->tail_bytes + (uint64_t)di_kv_blocks_for(max_context) * sizeof(int32_t);
    *g_bytes = (uint64_t)n_blocks * l->block_bytes;
    *s_bytes = (uint64_t)slots * per_slot;
}

static bool allocate(struct di_kv_store *s)
{
    size_t slots = (size_t)s->slots;
    s->blocks = di_malloc_aligned((size_t)s->n_blocks * s->layout.block_bytes);
    s->rings = di_malloc_aligned(slots * s->layout.ring_bytes);
    s->tails = di_malloc_aligned(slots * s->layout.tail_bytes);
    s->pages = di_calloc(slots * (size_t)s->pages_per_slot, sizeof *s->pages);
    s->lease = di_calloc(slots, sizeof *s->lease);
    s->ring_of = di_calloc(slots, sizeof *s->ring_of);
    s->tail_of = di_calloc(slots, sizeof *s->tail_of);
    s->pages_of = di_calloc(slots, sizeof *s->pages_of);
    return s->blocks && s->rings && s->tails && s->pages && s->lease && s->ring_of && s->tail_of && s->pages_of;
}

di_status di_kv_store_create(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, struct di_kv_store **out,
                             di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_kv_store *s = di_calloc(1, sizeof *s);
    CHECK(s, err, DI_ERR_MEMORY, "", "out of memory for the cache");
    *s = (struct di_kv_store){.layout = *l, .slots = slots, .n_blocks = n_blocks, .pages_per_slot = di_kv_blocks_for(max_context)};
    CHECK(allocate(s), err, DI_ERR_MEMORY, "", "out of memory for a cache of %d blocks of %zu bytes and %d slots of %zu bytes", n_blocks,
          l->block_bytes, slots, l->ring_bytes + l->tail_bytes);
    TRY(di_block_pool_init(&s->pool, n_blocks, err));
    for (int i = 0; i < slots; i++) {
        s->ring_of[i] = s->rings + (size_t)i * l->ring_bytes;
        s->tail_of[i] = s->tails + (size_t)i * l->tail_bytes / sizeof(float);
        int32_t *pages = s->pages + (size_t)i * (size_t)s->pages_per_slot;
        s->pages_of[i] = pages;
        di_lease_init(&s->lease[i], pages, s->pages_per_slot);
    }
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
    di_free_aligned(s->blocks);
    di_free_aligned(s->rings);
    di_free_aligned(s->tails);
    di_free(s->pages);
    di_block_pool_fini(&s->pool);
    di_free(s->lease);
    di_free(s->ring_of);
    di_free(s->tail_of);
    di_free(s->pages_of);
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
    const uint8_t *src = s->blocks + (size_t)from * l->block_bytes;
    uint8_t *dst = s->blocks + (size_t)to * l->block_bytes;
    for (int i = 0; i < l->n_sources; i++) {
        size_t rows = (size_t)(tokens / l->ratio[i]);
        memcpy(dst + l->key_offset[i], src + l->key_offset[i], rows * l->key_row_bytes);
        memcpy(dst + l->comp_offset[i], src + l->comp_offset[i], rows * l->comp_row_bytes);
    }
}

struct di_kv di_kv_view(const struct di_kv_store *s)
{
    return (struct di_kv){&s->layout, s->blocks, s->ring_of, s->tail_of, s->pages_of};
}
