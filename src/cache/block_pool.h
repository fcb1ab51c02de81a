/* Owners of G blocks. Every block of the pool is in exactly one state:
 *
 *   free          in nobody's hands
 *   held          by one or more requests (leases), not in the index
 *   cached        in the index only; reclaimable, oldest release first
 *   held+cached   both
 *
 * The index keeps blocks as trees (prefix.h). A lease holds a block only together with all blocks before it in the tree, and drops from
 * the last to the first; so in the list of cached blocks a child always stands before its parent, the head of the list is a leaf without
 * holders, and every cached block is reclaimable: n_free + n_cached is exactly what can be taken.
 *
 * Numbers only: the memory of the blocks is the store's. Not thread-safe: the engine's thread owns it. Nothing is allocated after
 * creation. */
#ifndef DI_CACHE_BLOCK_POOL_H
#define DI_CACHE_BLOCK_POOL_H

#include "base/plan.h"
#include "cache/block_key.h"

struct di_block_pool {
    int n, n_free, n_cached; /* n_cached: cached and not held */
    int32_t *refs;           /* [n] leases that hold the block */
    uint8_t *cached;         /* [n] in the index */
    int32_t *prev, *next;    /* [n] list of cached-only blocks, -1 = end; prev of a free block is its place in free_list */
    int32_t oldest, newest;
    int32_t *free_list; /* stack of n_free numbers */
    /* Set by the index: take a cached-only block out of it (di_block_uncache). Called when the pool has no free one. */
    void (*reclaim)(void *ctx, int32_t block);
    void *reclaim_ctx;
};

struct di_block_counts {
    int free, held, cached, held_cached; /* sum = pool */
    int64_t refs;                        /* of all blocks together = pages of all leases and their copy sources */
};

di_status di_block_pool_init(struct di_block_pool *p, int n, di_error *err); /* n >= 0; on failure nothing is left allocated */
void di_block_pool_fini(struct di_block_pool *p);
void di_block_pool_plan(int n, di_memory_plan *plan); /* append what init will allocate */

static inline int di_block_available(const struct di_block_pool *p)
{
    return p->n_free + p->n_cached;
}
void di_block_hold(struct di_block_pool *p, int32_t block); /* one more holder of a held or cached block */
void di_block_drop(struct di_block_pool *p, int32_t block); /* one less; the last leaves it cached (as the newest) or free */
/* By the index only: enter a held block, take a block out (free if nobody holds it), make a cached-only block the newest. */
void di_block_cache(struct di_block_pool *p, int32_t block);
void di_block_uncache(struct di_block_pool *p, int32_t block);
void di_block_touch(struct di_block_pool *p, int32_t block);
/* Count from the arrays. False if anything contradicts: a block on two lists or none, a sum that is not the pool. O(n), for tests. */
bool di_block_pool_count(const struct di_block_pool *p, struct di_block_counts *out);

/* ---------------------------------------------------------------- leases */

/* The blocks of one running request. The page table row belongs to the caller; page i covers positions [64 i, 64 i + 64). */
struct di_lease {
    int32_t *pages; /* [cap], n in use */
    int n, cap;
    /* by prefix.c: the first n_chain pages are the request's chain in the index, and tip is the key of the last of them (or the root) */
    int n_chain;
    struct di_key tip;
    int32_t source; /* held until its rows were copied, -1 = none */
    bool bounded;   /* what it publishes is marked as bounded */
    bool broken;    /* its chain left the index: it publishes nothing more */
    /* The rings of the decoder half came through bounded replay (spec/model.md §8.2): its snapshots are marked, its blocks are not. */
    bool state_bounded;
};

void di_lease_init(struct di_lease *l, int32_t *pages, int cap);
/* Let the lease have n pages, new ones its own. False, with nothing changed, if n > cap or too few are available. Never shrinks. */
bool di_lease_grow(struct di_block_pool *p, struct di_lease *l, int n);
/* Drop the copy source, if still held. Call it when the copy is ordered before every later write to the pool. */
void di_lease_copied(struct di_block_pool *p, struct di_lease *l);
/* Drop everything; the lease is as after init. */
void di_lease_release(struct di_block_pool *p, struct di_lease *l);

#endif
