/* Snapshots of S, the per-sequence state (docs/design.md, cached state): what a request needs, besides G, to go on at a position T
 * exactly as if it had computed everything before. Of every ring that is the window below T, of every raw ring its last rows; the n-gram
 * history comes from the tokens. A snapshot also serves resumption up to `rollback` tokens before T, which is what a prompt that was seen
 * to its end needs: its last row must be computed again for the logits.
 *
 * Compact: per window ring window - 1 + rollback rows, per raw ring rollback + 1 rows, in the order of positions. All memory is allocated at
 * creation. This file stores bytes and orders them by use; prefix.h knows which tokens they belong to. Not thread-safe. */
#ifndef DI_CACHE_STATE_POOL_H
#define DI_CACHE_STATE_POOL_H

#include "base/plan.h"
#include "cache/block_key.h"

#define DI_MAX_STATES (1 << 30) /* twice as many buckets are counted in 32 bits */

struct di_state_params {
    struct di_backend *be;             /* borrowed */
    const struct di_kv_layout *layout; /* copied */
    int count;                         /* snapshots, 0 .. DI_MAX_STATES */
    int window;                        /* sliding_window: a row sees itself and the window - 1 positions before it */
    int rollback;                      /* 1 to DI_RAW_ROWS - 1, and window - 1 + rollback <= DI_RING_ROWS */
};

struct di_state {
    int64_t at;       /* T: positions [0, T) are behind it */
    int64_t least;    /* lowest row that can be resumed; the caller's */
    int64_t draft_lo; /* lowest position whose draft rows are valid (spec/dspark.md §2.8); the caller's */
    bool used, bounded;
    int32_t prev, next; /* order of use among the used, oldest first; next links the free ones */
    /* by prefix.c */
    int32_t block; /* the indexed block that holds position T - 1 */
    int32_t block_next, bucket_next;
    struct di_key parent; /* key of the chain before that block */
};

struct di_state_pool {
    struct di_state_params params;
    struct di_kv_layout layout;
    size_t bytes_each;
    int n_used;
    int32_t oldest, newest, first_free;
    struct di_state *state;     /* [count] */
    uint8_t DI_DEVICE *data;    /* [count][bytes_each] */
    struct di_copy_span *spans; /* [2 a ring], of one copy: a ring wraps at most once */
};

/* Bytes of one snapshot. */
size_t di_state_bytes(const struct di_kv_layout *l, int window, int rollback);
/* Append what create will allocate. */
void di_state_pool_plan(const struct di_state_params *p, di_memory_plan *plan);
di_status di_state_pool_create(const struct di_state_params *p, struct di_state_pool **out, di_error *err);
void di_state_pool_destroy(struct di_state_pool *p);

/* Number of a free snapshot, now the newest of the used; -1 if there is none (free the oldest, then). */
int32_t di_state_take(struct di_state_pool *p);
void di_state_free(struct di_state_pool *p, int32_t s);
void di_state_touch(struct di_state_pool *p, int32_t s); /* make it the newest */

/* Whether the rows that a snapshot at `at` needs are still in the slot, when rows up to `written` (exclusive, >= at) were written: a step
 * that was launched before the end was known overwrites old rows of the rings (spec/dspark.md §4.2, §4.4). */
bool di_state_can_save(const struct di_state_pool *p, int64_t at, int64_t written);
/* Copy, in launch order, between a slot and snapshot s, whose `at` is set. After load every row that positions >= resume read (resume in
 * [at - rollback, at]) is bit-equal to what was saved; other rows of the slot are untouched. */
void di_state_store(struct di_state_pool *p, int32_t s, const struct di_kv *kv, int slot);
void di_state_load(struct di_state_pool *p, int32_t s, const struct di_kv *kv, int slot);

#endif
