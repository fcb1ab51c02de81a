#include "cache/kv_store.h"

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
    s->free_list = di_calloc((size_t)s->n_blocks, sizeof *s->free_list);
    s->n_pages = di_calloc(slots, sizeof *s->n_pages);
    s->ring_of = di_calloc(slots, sizeof *s->ring_of);
    s->tail_of = di_calloc(slots, sizeof *s->tail_of);
    s->pages_of = di_calloc(slots, sizeof *s->pages_of);
    return s->blocks && s->rings && s->tails && s->pages && s->free_list && s->n_pages && s->ring_of && s->tail_of && s->pages_of;
}

di_status di_kv_store_create(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, struct di_kv_store **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_kv_store *s = di_calloc(1, sizeof *s);
    CHECK(s, err, DI_ERR_MEMORY, "", "out of memory for the cache");
    *s = (struct di_kv_store){.layout = *l, .slots = slots, .n_blocks = n_blocks, .pages_per_slot = di_kv_blocks_for(max_context)};
    CHECK(allocate(s), err, DI_ERR_MEMORY, "", "out of memory for a cache of %d blocks of %zu bytes and %d slots of %zu bytes", n_blocks,
          l->block_bytes, slots, l->ring_bytes + l->tail_bytes);
    for (int i = 0; i < slots; i++) {
        s->ring_of[i] = s->rings + (size_t)i * l->ring_bytes;
        s->tail_of[i] = s->tails + (size_t)i * l->tail_bytes / sizeof(float);
        s->pages_of[i] = s->pages + (size_t)i * (size_t)s->pages_per_slot;
    }
    for (s->n_free = 0; s->n_free < n_blocks; s->n_free++)
        s->free_list[s->n_free] = n_blocks - 1 - s->n_free; /* lowest numbers first */
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
    di_free(s->free_list);
    di_free(s->n_pages);
    di_free(s->ring_of);
    di_free(s->tail_of);
    di_free(s->pages_of);
    di_free(s);
}

bool di_kv_reserve(struct di_kv_store *s, int slot, int64_t tokens)
{
    int need = di_kv_blocks_for(tokens);
    if (need > s->pages_per_slot || need - s->n_pages[slot] > s->n_free)
        return false;
    while (s->n_pages[slot] < need)
        s->pages[(size_t)slot * (size_t)s->pages_per_slot + (size_t)s->n_pages[slot]++] = s->free_list[--s->n_free];
    return true;
}

void di_kv_release(struct di_kv_store *s, int slot)
{
    while (s->n_pages[slot] > 0)
        s->free_list[s->n_free++] = s->pages[(size_t)slot * (size_t)s->pages_per_slot + (size_t)--s->n_pages[slot]];
}

struct di_kv di_kv_view(const struct di_kv_store *s)
{
    return (struct di_kv){&s->layout, s->blocks, s->ring_of, s->tail_of, s->pages_of};
}
