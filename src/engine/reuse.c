#include "engine/reuse.h"

/* The state that a hit needs lies at most so many tokens before the end that was seen: its last row, for the logits. */
#define ROLLBACK 2

struct di_reuse {
    struct di_reuse_params p;
    struct di_kv_store *store;
    struct di_state_pool *states;
    struct di_prefix *prefix;
};

static struct di_state_params state_params(struct di_backend *be, const struct di_kv_layout *l, const struct di_reuse_params *p)
{
    return (struct di_state_params){.be = be, .layout = l, .count = p->states, .window = p->window, .rollback = ROLLBACK};
}

int di_reuse_default_states(const struct di_kv_layout *l, int n_blocks, int window)
{
    uint64_t n = (uint64_t)n_blocks * l->block_bytes / 4 / di_state_bytes(l, window, ROLLBACK);
    return n < 64 ? 64 : n > DI_MAX_STATES ? DI_MAX_STATES : (int)n;
}

void di_reuse_plan(const struct di_kv_layout *l, int n_blocks, const struct di_reuse_params *p, di_memory_plan *plan)
{
    struct di_state_params sp = state_params(NULL, l, p);
    struct di_prefix_params pp = {.max_tokens = p->max_tokens};
    di_state_pool_plan(&sp, plan);
    di_prefix_plan(n_blocks, p->states, &pp, plan);
}

di_status di_reuse_create(struct di_kv_store *store, const struct di_reuse_params *p, struct di_reuse **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_reuse *r = di_calloc(1, sizeof *r);
    CHECK(r, err, DI_ERR_MEMORY, "", "out of memory for the prefix cache");
    r->p = *p;
    r->store = store;
    if (p->states) {
        struct di_state_params sp = state_params(store->be, &store->layout, p);
        TRY(di_state_pool_create(&sp, &r->states, err));
    }
    struct di_prefix_params pp = {.pool = &store->pool, .states = r->states, .max_tokens = p->max_tokens};
    TRY(di_prefix_create(&pp, &r->prefix, err));
    *out = r;
    r = NULL;
out:
    di_reuse_destroy(r);
    return status;
}

void di_reuse_destroy(struct di_reuse *r)
{
    if (!r)
        return;
    if (r->prefix)
        di_prefix_destroy(r->prefix);
    di_state_pool_destroy(r->states);
    di_free(r);
}

/* A row sees the window - 1 before it, and the decoder half's rings begin at the tail. */
static int64_t right_from(const struct di_reuse *r, int64_t tail, int64_t encoder)
{
    int64_t decoder = tail > 0 ? tail + r->p.window - 1 : 0;
    return decoder > encoder ? decoder : encoder;
}

/* What is there of a request, and what follows from it; false if it is not to be looked up. */
static bool look_up(struct di_reuse *r, const struct di_reuse_ask *ask, struct di_key *root, struct di_match *m, struct di_hit_plan *plan)
{
    const uint64_t salt[2] = {ask->tenant, ask->space};
    struct di_key_root from = {r->p.model_digest, r->p.numerics, salt, ask->space ? sizeof salt : sizeof salt[0]};
    struct di_key_text text = {.tokens = ask->tokens, .n = ask->n};
    if (!di_key_of_root(di_prefix_hasher(r->prefix), &from, root))
        return false;
    *m = di_prefix_match(r->prefix, root, &text, ask->tail > 0);
    struct di_hit hit = {.n = ask->n,
                         .hit = m->tokens,
                         .resume = m->state >= 0 ? m->resume : 0,
                         .window = r->p.window,
                         .layers = r->p.layers,
                         .tail = ask->tail};
    *plan = di_hit_plan(&hit);
    return true;
}

int64_t di_reuse_look(struct di_reuse *r, const struct di_reuse_ask *ask)
{
    struct di_key root;
    struct di_match m;
    struct di_hit_plan plan;
    return look_up(r, ask, &root, &m, &plan) ? plan.start : 0;
}

bool di_reuse_begin(struct di_reuse *r, int slot, const struct di_reuse_ask *ask, struct di_reuse_start *out)
{
    struct di_lease *lease = &r->store->lease[slot];
    struct di_key_text text = {.tokens = ask->tokens, .n = ask->n};
    struct di_key root;
    struct di_match m;
    struct di_hit_plan plan;
    int pages = di_kv_blocks_for(ask->total);
    lease->state_bounded = ask->tail > 0;
    *out = (struct di_reuse_start){.replay.tail = (int32_t)ask->tail, .right_from = right_from(r, ask->tail, 0)};
    if (!look_up(r, ask, &root, &m, &plan))
        return di_kv_reserve(r->store, slot, ask->total); /* nothing is looked up, nothing is entered */
    struct di_kv kv = di_kv_view(r->store);
    if (plan.how == DI_RESUME_STATE)
        di_prefix_restore(r->prefix, &m, &kv, slot); /* before acquire, which may evict it */
    if (!di_prefix_acquire(r->prefix, lease, &root, &text, &m, pages)) {
        lease->state_bounded = ask->tail > 0;
        di_prefix_begin(lease, &root); /* holding the copy source as well may be one block too many: then nothing is reused */
        return di_kv_reserve(r->store, slot, ask->total);
    }
    if (plan.how == DI_RESUME_BOUNDED || (plan.how == DI_RESUME_STATE && m.state_bounded))
        lease->bounded = true;
    lease->state_bounded = plan.tail > 0;
    *out = (struct di_reuse_start){
        .row = plan.start,
        .replay = {.floor = (int32_t)plan.window_floor, .write_from = (int32_t)plan.write_from, .tail = (int32_t)plan.tail},
        .bounded = lease->bounded,
        .right_from = right_from(r, plan.tail, plan.window_floor > 0 ? plan.write_from : plan.start),
        .miss = m.miss,
        .miss_at = m.miss_at};
    if (m.source >= 0) {
        out->copies = true;
        out->copy_from = m.source;
        out->copy_to = lease->pages[m.n_blocks];
        out->copy_tokens = m.source_tokens;
        di_lease_copied(&r->store->pool, lease); /* whoever takes the source writes to it in a later launch than the copy */
    }
    /* G was shared but the rings were not: the next one that comes this way shall find them. Blocks end a prefix that many have in common;
     * but a replay makes the rings right at its end only. */
    int64_t common = plan.window_floor > 0 ? m.tokens : m.tokens - m.tokens % DI_BLOCK_TOKENS;
    if (r->states && common > plan.start + DI_BLOCK_TOKENS)
        out->save_at = common;
    return true;
}

void di_reuse_computed(struct di_reuse *r, int slot, const int32_t *tokens, int64_t n)
{
    struct di_key_text text = {.tokens = tokens, .n = n};
    di_prefix_publish(r->prefix, &r->store->lease[slot], &text, n, false);
}

void di_reuse_save(struct di_reuse *r, int slot, const int32_t *tokens, int64_t at, int64_t written, int64_t right_from)
{
    struct di_kv kv = di_kv_view(r->store);
    struct di_key_text text = {.tokens = tokens, .n = at};
    struct di_state_from from = {.kv = &kv, .slot = slot, .written = written, .least = right_from};
    di_prefix_save(r->prefix, &r->store->lease[slot], &text, at, &from);
}

struct di_prefix_stats di_reuse_stats(const struct di_reuse *r)
{
    return di_prefix_stats(r->prefix);
}

const char *di_reuse_check(const struct di_reuse *r)
{
    return di_prefix_check(r->prefix);
}
