/* Memory of the cached state: a pool of G blocks (64 tokens each) and, for each slot, its state (window rings and raw rings) and page table
 * (docs/design.md, cached state). All of it is allocated at creation, blocks, states and the page table that ops read on the device;
 * reserving and releasing blocks moves numbers only, in the page tables of the leases. Who owns which block is block_pool.h's; what a block
 * holds and whether others may share it is prefix.h's, if an index is created over `pool`. Not thread-safe: the engine's thread owns it. */
#ifndef DI_CACHE_KV_STORE_H
#define DI_CACHE_KV_STORE_H

#include "base/plan.h"
#include "cache/block_pool.h"

struct di_kv_store {
    struct di_backend *be; /* borrowed */
    struct di_kv_layout layout;
    int slots, n_blocks, pages_per_slot;
    uint8_t DI_DEVICE *blocks, *states;
    int32_t DI_DEVICE *page_table; /* [slots][pages_per_slot], what was sent */
    int32_t *pages;                /* the same as the leases have it, staging */
    struct di_lease *lease;        /* [slots]; pages of lease i = row i of `pages` */
    struct di_block_pool pool;
};

/* Append what create will allocate. */
void di_kv_store_plan(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, di_memory_plan *plan);
di_status di_kv_store_create(struct di_backend *be, const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context,
                             struct di_kv_store **out, di_error *err);
void di_kv_store_destroy(struct di_kv_store *s);
/* Blocks that `tokens` positions need. */
static inline int di_kv_blocks_for(int64_t tokens)
{
    return (int)((tokens + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS); /* contexts are below 2^31 */
}
/* Blocks that can be taken now: free ones, and cached ones that nobody holds. */
static inline int di_kv_available(const struct di_kv_store *s)
{
    return di_block_available(&s->pool);
}
/* Let the slot's pages cover positions [0, tokens). False, with nothing changed, if the pool has too few available blocks. */
bool di_kv_reserve(struct di_kv_store *s, int slot, int64_t tokens);
/* Give back all blocks of a slot. Rings need no cleaning: a row is read only at positions that were written. */
void di_kv_release(struct di_kv_store *s, int slot);
/* Copy, in launch order, the G rows of the first `tokens` positions (1..64) of block `from` to block `to`: every group that they complete. */
void di_kv_copy_block(struct di_kv_store *s, int32_t from, int32_t to, int tokens);
/* The page tables of all slots go up, in launch order: for steps without a pipeline, whose launches bring their own. The leases must stay
 * as they are until a fence behind it. */
void di_kv_send_pages(struct di_kv_store *s);
/* The view that ops use. Valid as long as the store; its page table holds what was sent. */
struct di_kv di_kv_view(const struct di_kv_store *s);

#endif
