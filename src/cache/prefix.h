/* The prefix index: which blocks of the pool hold the G of which token prefixes, and which snapshots of S belong to them.
 *
 * Nodes are blocks in use by the index; a node's chain of parents spells its content from position 0. Inner nodes are full blocks of 64
 * tokens; leaves may be partly filled (end of a prompt or of an answer), and go on being filled by the request that holds them. A page of
 * the index is immutable in the rows that its node counts. Nothing is ever returned that was not compared: keys find a node, then parent,
 * tokens and image digests are compared, so that even equal keys of different content could not serve a wrong block.
 *
 * Rules
 *  - Tenants: a prompt is looked up below its root key. Different salt, model or numerics = different root, nothing shared. To a client a
 *    prefix of another tenant is DI_MISS_REASON_NEVER_SEEN, in time and in words (A17); only `stats.other_tenant`, for the operator, counts it.
 *  - Provenance: a block is exact, or bounded when something before it went through bounded replay. Exact requests see exact blocks only.
 *    Every descendant of a bounded block is bounded. Exact content that arrives where bounded content stands replaces it and all behind
 *    it.
 *  - Equal content twice: the index keeps what it has, and the request switches its page to it. Exact requests compute the same bits, so
 *    nothing changes for them. (A bounded request may switch to other, equally approximate rows.)
 *  - Eviction is the pool's (block_pool.h): oldest release first, leaves before their parents, never a held block, O(1), no clock. A
 *    block that leaves takes its snapshots with it. Snapshots have their own number and order of use.
 *  - A partly filled leaf leaves the index when a later block contains it; its snapshots move to that block, its holders keep their page.
 *
 * Life of a request in slot i of a store (lease = &store->lease[i], text = all its tokens so far):
 *
 *   m = di_prefix_match(p, root, text, bounded_ok)
 *   plan = di_hit_plan({n, m.tokens, m.resume, window, layers, tail})
 *   if plan.how is DI_RESUME_STATE: di_prefix_restore(p, &m, kv, i)
 *   di_prefix_acquire(p, lease, root, text, &m, pages of the whole life); false: wait, and match again later
 *   if m.source >= 0: di_kv_copy_block(store, m.source, lease->pages[m.n_blocks], m.source_tokens); di_lease_copied
 *   if plan.how is DI_RESUME_BOUNDED, or DI_RESUME_STATE with m.state_bounded: lease->bounded = true;
 *   lease->state_bounded = plan.tail > 0
 *   compute rows plan.start, ..., with plan.window_floor; rows before plan.write_from store no G
 *   after a step: di_prefix_publish(p, lease, text, positions computed, false)
 *   end of prompt and end of answer: di_prefix_save(...) at that position
 *   end, abort, preemption: publish what was computed, then di_kv_release(store, i)
 *
 * Steps launched in order (a stream) may run behind these calls: a block given back and taken again is written by a later launch than
 * the one that still reads it. A caller whose launches are not ordered must hold blocks (di_block_hold) until its fence.
 *
 * One thread at a time. Nothing is allocated after creation; no call but create fails for lack of memory. */
#ifndef DI_CACHE_PREFIX_H
#define DI_CACHE_PREFIX_H

#include "cache/block_pool.h"
#include "cache/state_pool.h"

struct di_prefix_params {
    struct di_block_pool *pool;   /* borrowed; the index sets its reclaim hook. One index a pool */
    struct di_state_pool *states; /* borrowed, or NULL: no snapshots */
    int64_t max_tokens;           /* longest text, at least 1 */
    int seen; /* size of the memory of evicted keys, for reasons of misses only; rounded up to a power of two; 0 = 4096 */
};

#define DI_MISS_REASONS (DI_MISS_REASON_BOUNDED + 1)

/* What is cached of a text. Valid until the next call that changes the index (acquire, publish, save, fork, growing a lease). */
struct di_match {
    int64_t common;    /* tokens in common, < n */
    int64_t tokens;    /* of these, G reaches so far: whole groups of 2 */
    int n_blocks;      /* full blocks to share: positions [0, 64 n_blocks) */
    int32_t source;    /* block to copy for the next page, -1 = none (copy-on-write) */
    int source_tokens; /* tokens of it in common: common - 64 n_blocks; copy their rows with di_kv_copy_block */
    bool bounded;      /* a shared or copied block is bounded */
    int32_t state;     /* snapshot to restore, -1 = none */
    /* First row to compute after restoring it, 1 .. common; 0 without. At most the pool's rollback before the snapshot's position T, and
     * not before the block of position T - 1. */
    int64_t resume;
    bool state_bounded;
    di_miss_reason miss; /* why it ended where it did */
    int64_t miss_at;     /* = common, unless DI_MISS_REASON_NONE */
    uint64_t serial;     /* private */
};

struct di_prefix_stats {
    uint64_t lookups, tokens, hit_tokens; /* counted by acquire: requests, their tokens, tokens whose G was found */
    uint64_t miss[DI_MISS_REASONS], other_tenant;
    uint64_t inserted, switched, superseded, replaced, evicted; /* blocks; replaced: bounded ones by exact */
    uint64_t states_saved, states_restored, states_evicted;
    int blocks, states; /* in the index now */
};

struct di_prefix;
di_status di_prefix_create(const struct di_prefix_params *params, struct di_prefix **out, di_error *err);
/* All leases must be released before. Cached blocks become free. */
void di_prefix_destroy(struct di_prefix *p);
/* Append what create will allocate, for a pool of n_blocks and n_states snapshots; of `params` the numbers count. */
void di_prefix_plan(int n_blocks, int n_states, const struct di_prefix_params *params, di_memory_plan *plan);
struct di_prefix_stats di_prefix_stats(const struct di_prefix *p);
/* The index's own hasher, for root and image keys. */
struct di_hasher *di_prefix_hasher(struct di_prefix *p);

/* The longest cached prefix of t->tokens[0 .. n-1), n <= max_tokens: at least the last token is left to compute. Changes nothing.
 * `bounded_ok`: bounded blocks and snapshots are acceptable. Linear in the tokens found (about 0.5 us a block), independent of what else
 * is cached up to a logarithm, and linear in the snapshots that end in the last block. */
struct di_match di_prefix_match(struct di_prefix *p, const struct di_key *root, const struct di_key_text *t, bool bounded_ok);

/* Give an empty lease the matched blocks and own pages up to n_pages in all, and let it hold the copy source until di_lease_copied.
 * The request may write only to pages from m->n_blocks on. False, with nothing changed, if the pool cannot give so many now. */
bool di_prefix_acquire(struct di_prefix *p, struct di_lease *l, const struct di_key *root, const struct di_key_text *t,
                       const struct di_match *m, int n_pages);
/* An empty lease without any hit, for a request that is not to be looked up: publishes below `root`. */
void di_prefix_begin(struct di_lease *l, const struct di_key *root);

/* Enter what the request has computed. t->tokens[0 .. n) is the request's text; the rows of all these positions, or launches that write
 * them, are in the lease's pages. Full blocks are entered once; with `partial` the partly filled last page is entered too, and may be filled
 * on. Pages of the lease may be switched to equal ones (pages[i] changes, for i < n / 64 only): refresh copies of the page table. Set
 * l->bounded before, if anything was computed through bounded replay; acquire sets it for bounded hits. */
void di_prefix_publish(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t, int64_t n, bool partial);

/* State of a slot to be saved: rows up to `written` (exclusive) were written into its rings. What rows below `least` need is not there: it
 * was not restored (least = where the request was resumed), lies inside a replay (least = its end) or before the tail (a window behind it).
 * */
struct di_state_from {
    const struct di_kv *kv;
    int slot;
    int64_t written, draft_lo, least;
};
/* Publish [0, at) with its partly filled block, and save the state at `at`, 1 <= at. Replaces the snapshot used longest ago when all are in use; an
 * equal one is kept and counts as used. False if nothing is there now: no pool, the rows are overwritten or lie below `least`, the chain is
 * broken. Call at the end of the prompt and at the end of the answer, or where a caller asks. */
bool di_prefix_save(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t, int64_t at, const struct di_state_from *from);
/* Copy the matched snapshot into a slot: rows >= m->resume can be computed. Before anything else changes the index (before acquire is
 * best: acquire may evict). Returns its draft_lo. */
int64_t di_prefix_restore(struct di_prefix *p, const struct di_match *m, const struct di_kv *kv, int slot);

/* A branch of a live request after its first n tokens, all computed: `to` (empty) shares the full pages of `from`. Of the next page
 * copy n % 64 tokens yourself, from from->pages[n / 64], after growing `to`. */
void di_prefix_fork(struct di_prefix *p, const struct di_lease *from, struct di_lease *to, int64_t n);

/* Check everything that must hold between tree, tables, lists and pool; NULL or what is wrong. O(blocks), for tests. */
const char *di_prefix_check(const struct di_prefix *p);
/* Tokens that the node of an indexed block counts (1..64) and whether it is bounded; 0 if the block is not in the index. For tests and
 * tools. */
int di_prefix_node(const struct di_prefix *p, int32_t block, bool *bounded);

#endif
