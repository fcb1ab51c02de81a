/* Prefix reuse as the engine uses it: looking a request up, entering what it computed, saving and restoring its state. The rules of the
 * cache are those of src/cache/prefix.h; this file decides when. */
#ifndef DI_ENGINE_REUSE_H
#define DI_ENGINE_REUSE_H

#include "cache/hit_plan.h"
#include "cache/kv_store.h"
#include "cache/prefix.h"
#include "model/model.h"

struct di_reuse_params {
    int states;         /* snapshots of request state; 0 = G alone, rings are rebuilt by exact replay */
    int window, layers; /* sliding_window, num_hidden_layers */
    int64_t max_tokens; /* longest request */
    uint8_t model_digest[DI_KEY_BYTES];
    const char *numerics; /* di_backend.bits; borrowed */
};

struct di_reuse;
di_status di_reuse_create(struct di_kv_store *store, const struct di_reuse_params *p, struct di_reuse **out, di_error *err);
void di_reuse_destroy(struct di_reuse *r); /* all slots released before; NULL is allowed */
/* Snapshots whose bytes are a quarter of those of a pool of so many blocks, at least 64: where prompts go on from many places, snapshots are
 * scarce before blocks are (bench/results/cache-replay.md). */
int di_reuse_default_states(const struct di_kv_layout *l, int n_blocks, int window);
/* Append what create will allocate. */
void di_reuse_plan(const struct di_kv_layout *l, int n_blocks, const struct di_reuse_params *p, di_memory_plan *plan);

/* Where a request starts. */
struct di_reuse_start {
    int64_t row; /* first row to compute: tokens saved */
    struct di_replay replay;
    bool copies; /* the first rows of `copy_to` are to be copied from `copy_from`, ordered before everything launched later */
    int32_t copy_from, copy_to;
    int copy_tokens;
    bool bounded;       /* it goes on from what came through bounded replay, or begins with it: what it computes is approximate */
    int64_t right_from; /* what rows below it need is not in the slot's rings: no state is kept before it, none serves a row before it */
    int64_t save_at;    /* save the state when this row is reached (others share the prefix so far), 0 = not */
    di_miss_reason miss;
    int64_t miss_at;
};
struct di_reuse_ask {
    const int32_t *tokens;  /* [n] */
    int64_t n, total;       /* known now; pages for so many in all */
    uint64_t tenant, space; /* of the tenant's caches, see di_request */
    int64_t tail;           /* di_replay_tail: bounded replay and what came through it are accepted; 0 = exact */
};
/* The row at which a request would start now: so many need not be computed. Changes nothing. */
int64_t di_reuse_look(struct di_reuse *r, const struct di_reuse_ask *ask);
/* Look up what a request has, give the free slot its pages, restore its state. False, with nothing changed, if the pool cannot give the
 * pages now. The slot is named by no launch. */
bool di_reuse_begin(struct di_reuse *r, int slot, const struct di_reuse_ask *ask, struct di_reuse_start *out);
/* Rows [0, n) of a slot are computed: their full blocks can be found from now on. */
void di_reuse_computed(struct di_reuse *r, int slot, const int32_t *tokens, int64_t n);
/* Keep the state at row `at`; launches may have written up to `written`; `right_from` as di_reuse_begin said. */
void di_reuse_save(struct di_reuse *r, int slot, const int32_t *tokens, int64_t at, int64_t written, int64_t right_from);
struct di_prefix_stats di_reuse_stats(const struct di_reuse *r);
/* NULL, or what is inconsistent. For tests. */
const char *di_reuse_check(const struct di_reuse *r);

#endif
