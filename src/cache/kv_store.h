/* Memory of the cached state: a pool of G blocks (64 tokens each) and, for each slot, its rings, tails and page table (design: two kinds
 * of cached state). All of it is allocated at creation; reserving and releasing blocks moves numbers only. Who owns which block is
 * block_pool.h's; what a block holds and whether others may share it is prefix.h's, if an index is created over `pool`. Not thread-safe:
 * the engine's thread owns it. */
#ifndef DI_CACHE_KV_STORE_H
#define DI_CACHE_KV_STORE_H

#include "cache/block_pool.h"

struct di_kv_store {
    struct di_kv_layout layout;
    int slots, n_blocks, pages_per_slot;
    uint8_t *blocks, *rings;
    float *tails;
    int32_t *pages; /* [slots][pages_per_slot] */
    struct di_block_pool pool;
    struct di_lease *lease; /* [slots]; pages of lease i = row i of the page table */
    uint8_t **ring_of;
    float **tail_of;
    const int32_t **pages_of;
};

/* Bytes of G and of S that create will allocate. */
void di_kv_store_bytes(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, uint64_t *g_bytes, uint64_t *s_bytes);
di_status di_kv_store_create(const struct di_kv_layout *l, int slots, int n_blocks, int64_t max_context, struct di_kv_store **out,
                             di_error *err);
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
/* Copy the G rows of the first `tokens` positions (1..64) of block `from` to block `to`: every group that they complete. */
void di_kv_copy_block(struct di_kv_store *s, int32_t from, int32_t to, int tokens);
/* The view that ops use. Valid as long as the store. */
struct di_kv di_kv_view(const struct di_kv_store *s);

#endif
