#include "cache/prefix.h"

#include "base/assert.h"
#include "base/mem.h"
#include "cache/prefix_tree.h"

#define STATE_BUCKETS_MIN 16
#define TENANT_MEMORY 1024

struct di_prefix {
    struct di_prefix_params params;
    struct di_block_pool *pool;
    struct di_state_pool *states;
    struct di_tree tree;
    struct di_hasher *hasher;
    int32_t *path; /* [max_tokens / 64] blocks of the latest match */
    int path_cap;
    int32_t *state_bucket; /* [state_mask + 1] snapshots by the key before their block */
    uint32_t state_mask, evicted_mask;
    uint64_t *evicted; /* [evicted_mask + 1] tags of evicted keys, newer over older */
    struct first_block {
        uint64_t content, root;
    } first_blocks[TENANT_MEMORY]; /* and the roots they were entered under; for stats.other_tenant only */
    uint64_t serial;
    struct di_prefix_stats stats;
};

static uint32_t power_of_two(uint32_t at_least, uint32_t n)
{
    while (at_least < n)
        at_least *= 2;
    return at_least;
}

static uint32_t evicted_size(const struct di_prefix_params *p)
{
    return power_of_two(16, p->seen > 0 ? (uint32_t)p->seen : 4096);
}

static uint32_t state_buckets(int n_states)
{
    return power_of_two(STATE_BUCKETS_MIN, 2 * (uint32_t)n_states);
}

void di_prefix_plan(int n_blocks, int n_states, const struct di_prefix_params *p, di_memory_plan *plan)
{
    const di_memory_region r = {.group = DI_GROUP_CACHE,
                                .place = DI_PLACE_HOST,
                                .name = "prefix index",
                                .count = 1,
                                .unit_bytes = sizeof(struct di_prefix) + di_tree_bytes(n_blocks) +
                                              (uint64_t)(p->max_tokens / DI_BLOCK_TOKENS) * sizeof(int32_t) +
                                              state_buckets(n_states) * sizeof(int32_t) + evicted_size(p) * sizeof(uint64_t)};
    di_plan_add(plan, &r, "which texts %d blocks and %d snapshots belong to", n_blocks, n_states);
}

static void reclaim_block(void *ctx, int32_t block);

di_status di_prefix_create(const struct di_prefix_params *params, struct di_prefix **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_prefix *p = NULL;
    *out = NULL;
    CHECK(params->max_tokens >= 1 && params->max_tokens <= INT32_MAX, err, DI_ERR_INVALID, "", "a text of %lld tokens cannot be indexed",
          (long long)params->max_tokens);
    p = di_calloc(1, sizeof *p);
    CHECK(p, err, DI_ERR_MEMORY, "", "out of memory for the prefix index");
    p->params = *params;
    p->states = params->states;
    p->path_cap = (int)(params->max_tokens / DI_BLOCK_TOKENS);
    p->state_mask = state_buckets(params->states ? params->states->params.count : 0) - 1;
    p->evicted_mask = evicted_size(params) - 1;
    TRY(di_hasher_create(&p->hasher, err));
    TRY(di_tree_init(&p->tree, params->pool->n, err));
    p->path = di_calloc((size_t)p->path_cap, sizeof *p->path);
    p->state_bucket = di_malloc(((size_t)p->state_mask + 1) * sizeof *p->state_bucket);
    p->evicted = di_calloc((size_t)p->evicted_mask + 1, sizeof *p->evicted);
    CHECK(p->path && p->state_bucket && p->evicted, err, DI_ERR_MEMORY, "", "out of memory for the prefix index");
    memset(p->state_bucket, 0xff, ((size_t)p->state_mask + 1) * sizeof *p->state_bucket);
    p->pool = params->pool;
    p->pool->reclaim = reclaim_block;
    p->pool->reclaim_ctx = p;
    *out = p;
    p = NULL;
out:
    di_prefix_destroy(p);
    return status;
}

struct di_hasher *di_prefix_hasher(struct di_prefix *p)
{
    return p->hasher;
}

struct di_prefix_stats di_prefix_stats(const struct di_prefix *p)
{
    struct di_prefix_stats s = p->stats;
    s.blocks = p->tree.n_nodes;
    s.states = p->states ? p->states->n_used : 0;
    return s;
}

static uint64_t *evicted_slot(struct di_prefix *p, const struct di_key *key)
{
    return &p->evicted[di_key_tag(key) & p->evicted_mask];
}

/* ---------------------------------------------------------------- snapshots and their blocks */

static int32_t *state_bucket(struct di_prefix *p, const struct di_key *parent)
{
    return &p->state_bucket[(uint32_t)di_key_tag(parent) & p->state_mask];
}

static void state_attach(struct di_prefix *p, int32_t s, int32_t block)
{
    struct di_state *st = &p->states->state[s];
    st->block = block;
    st->block_next = p->tree.node[block].states;
    p->tree.node[block].states = s;
}

static void state_drop(struct di_prefix *p, int32_t s)
{
    struct di_state *st = &p->states->state[s];
    DI_ASSERT(st->used && p->pool->cached[st->block]);
    int32_t *link = &p->tree.node[st->block].states;
    while (*link != s)
        link = &p->states->state[*link].block_next;
    *link = st->block_next;
    link = state_bucket(p, &st->parent);
    while (*link != s)
        link = &p->states->state[*link].bucket_next;
    *link = st->bucket_next;
    di_state_free(p->states, s);
    p->stats.states_evicted++;
}

/* Take a node out of the index with its snapshots; they go to `heir`, a block that contains it, or with it. */
static void node_leave(struct di_prefix *p, int32_t b, int32_t heir)
{
    DI_ASSERT(p->tree.node[b].n_children == 0 && (heir < 0 || p->pool->cached[heir]));
    for (int32_t s; (s = p->tree.node[b].states) >= 0;) {
        if (heir < 0) {
            state_drop(p, s);
            continue;
        }
        p->tree.node[b].states = p->states->state[s].block_next;
        state_attach(p, s, heir);
    }
    di_tree_remove(&p->tree, b);
    di_block_uncache(p->pool, b);
}

static void reclaim_block(void *ctx, int32_t b)
{
    struct di_prefix *p = ctx;
    *evicted_slot(p, &p->tree.node[b].key) = di_key_tag(&p->tree.node[b].key);
    p->stats.evicted++;
    p->serial++;
    node_leave(p, b, -1);
}

/* All of a bounded block's descendants, leaves first, and the block. Holders keep their pages; their chains are broken. */
static void leave_subtree(struct di_prefix *p, int32_t top)
{
    static const struct di_content first = {0};
    for (int32_t b = top;;) {
        struct di_node *x = &p->tree.node[b];
        int32_t before, child = -1;
        if (x->n_children > 0)
            di_tree_neighbours(&p->tree, &(struct di_place){&x->key, b, true, &first}, &before, &child);
        for (int32_t i = 0; child < 0 && x->n_children > 0; i++) /* hidden behind the children of a colliding key */
            if (p->pool->cached[i] && p->tree.node[i].parent == b)
                child = i;
        if (child >= 0) {
            b = child;
            continue;
        }
        int32_t parent = x->parent;
        node_leave(p, b, -1);
        p->stats.replaced++;
        if (b == top)
            return;
        b = parent;
    }
}

void di_prefix_destroy(struct di_prefix *p)
{
    if (!p)
        return;
    if (p->pool) {
        while (p->pool->oldest >= 0)
            node_leave(p, p->pool->oldest, -1);
        p->pool->reclaim = NULL;
    }
    di_tree_fini(&p->tree);
    di_hasher_destroy(p->hasher);
    di_free(p->path);
    di_free(p->state_bucket);
    di_free(p->evicted);
    di_free(p);
}

/* ---------------------------------------------------------------- match */

struct search {
    struct di_prefix *p;
    const struct di_key *root;
    const struct di_key_text *text;
    int64_t limit; /* tokens that may be found */
    bool bounded_ok;
    struct di_content rest; /* behind the full blocks, at most a block */
};

static const struct di_key *key_before(const struct search *s, int depth)
{
    return depth ? &s->p->tree.node[s->p->path[depth - 1]].key : s->root;
}

static int32_t path_end(const struct search *s, int depth)
{
    return depth ? s->p->path[depth - 1] : -1;
}

/* Full blocks, and the reason if the walk ends at one that could have been there. */
static void match_full(const struct search *s, struct di_match *m)
{
    struct di_prefix *p = s->p;
    struct di_key key = *s->root;
    int64_t full = s->limit / DI_BLOCK_TOKENS;
    for (; m->n_blocks < full; m->n_blocks++) {
        int64_t pos0 = (int64_t)m->n_blocks * DI_BLOCK_TOKENS;
        if (!di_key_of_block(p->hasher, &key, s->text, pos0, DI_BLOCK_TOKENS, &key))
            return;
        int32_t b = di_tree_find_text(&p->tree, &key, path_end(s, m->n_blocks), s->text, pos0);
        if (b < 0 && *evicted_slot(p, &key) == di_key_tag(&key))
            m->miss = DI_MISS_REASON_EVICTED;
        if (b >= 0 && p->tree.node[b].bounded && !s->bounded_ok)
            m->miss = DI_MISS_REASON_BOUNDED;
        if (b < 0 || m->miss == DI_MISS_REASON_BOUNDED)
            return;
        m->bounded = p->tree.node[b].bounded;
        p->path[m->n_blocks] = b;
    }
}

/* The child that goes on longest like the text. */
static void match_rest(struct search *s, struct di_match *m)
{
    struct di_prefix *p = s->p;
    int64_t pos0 = (int64_t)m->n_blocks * DI_BLOCK_TOKENS;
    int left = s->limit - pos0 < DI_BLOCK_TOKENS ? (int)(s->limit - pos0) : DI_BLOCK_TOKENS;
    di_content_of(s->text, pos0, left, &s->rest);
    for (int bounded = 0; bounded <= (int)s->bounded_ok; bounded++) {
        struct di_place at = {key_before(s, m->n_blocks), path_end(s, m->n_blocks), bounded, &s->rest};
        int common;
        int32_t b = di_tree_nearest(&p->tree, &at, &common);
        if (common > m->source_tokens) {
            m->source = b;
            m->source_tokens = common;
        }
    }
    if (m->source >= 0 && p->tree.node[m->source].bounded)
        m->bounded = true;
    m->common = pos0 + m->source_tokens;
    m->tokens = m->common & ~(int64_t)1; /* whole groups of the ratio-2 sources */
}

/* The snapshot from which most can be resumed: its block must begin like the text, up to the snapshot's end less the rollback. */
static void match_state(const struct search *s, struct di_match *m)
{
    struct di_prefix *p = s->p;
    if (!p->states || p->states->n_used == 0)
        return;
    for (int d = m->n_blocks; d >= 0 && m->state < 0; d--) {
        const struct di_key *parent = key_before(s, d);
        const struct di_content *here = d == m->n_blocks ? &s->rest : &p->tree.node[p->path[d]].content;
        int64_t pos0 = (int64_t)d * DI_BLOCK_TOKENS;
        for (int32_t i = *state_bucket(p, parent); i >= 0; i = p->states->state[i].bucket_next) {
            const struct di_state *st = &p->states->state[i];
            const struct di_node *x = &p->tree.node[st->block];
            if (x->parent != path_end(s, d) || !di_key_equal(&st->parent, parent) || (st->bounded && !s->bounded_ok))
                continue;
            int64_t most = pos0 + di_content_common(&x->content, here), resume = st->at < most ? st->at : most;
            bool better = resume > m->resume || (resume == m->resume && m->state_bounded && !st->bounded);
            if (resume >= st->least && resume > 0 && resume <= m->common && st->at - resume <= p->states->params.rollback && better) {
                m->state = i;
                m->resume = resume;
                m->state_bounded = st->bounded;
            }
        }
    }
}

static void explain_miss(const struct search *s, struct di_match *m)
{
    const struct di_tree *t = &s->p->tree;
    int32_t last = path_end(s, m->n_blocks);
    m->miss_at = m->common;
    if (m->common >= s->limit)
        m->miss = DI_MISS_REASON_NONE;
    else if (m->miss == DI_MISS_REASON_NONE) {
        bool others = (m->source >= 0 && t->node[m->source].content.n > m->source_tokens) ||
                      (m->source_tokens == 0 && last >= 0 && t->node[last].n_children > 0);
        m->miss = others ? DI_MISS_REASON_DIVERGED : DI_MISS_REASON_NEVER_SEEN;
    }
}

struct di_match di_prefix_match(struct di_prefix *p, const struct di_key *root, const struct di_key_text *t, bool bounded_ok)
{
    struct search s = {.p = p, .root = root, .text = t, .limit = t->n - 1, .bounded_ok = bounded_ok};
    struct di_match m = {.source = -1, .state = -1, .serial = p->serial};
    if (s.limit < 1 || t->n > p->params.max_tokens)
        return m;
    match_full(&s, &m);
    match_rest(&s, &m);
    match_state(&s, &m);
    explain_miss(&s, &m);
    return m;
}

/* ---------------------------------------------------------------- leases */

void di_prefix_begin(struct di_lease *l, const struct di_key *root)
{
    l->tip = *root;
}

/* Tells contents apart well enough for a counter that nobody but the operator sees. */
static uint64_t content_tag(const struct di_key_text *t)
{
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < DI_BLOCK_TOKENS; i++)
        x = ((x >> 32) ^ x ^ (uint32_t)t->tokens[i]) * 0xff51afd7ed558ccdu;
    for (int i = 0; i < t->n_images && t->images[i].begin < DI_BLOCK_TOKENS; i++)
        x ^= di_key_tag((const struct di_key *)t->images[i].digest) + (uint64_t)t->images[i].begin;
    return x;
}

static void count_lookup(struct di_prefix *p, const struct di_key *root, const struct di_key_text *t, const struct di_match *m)
{
    p->stats.lookups++;
    p->stats.tokens += (uint64_t)t->n;
    p->stats.hit_tokens += (uint64_t)m->tokens;
    p->stats.miss[m->miss]++;
    if (m->n_blocks == 0 && t->n >= DI_BLOCK_TOKENS) {
        uint64_t content = content_tag(t);
        const struct first_block *seen = &p->first_blocks[content % TENANT_MEMORY];
        p->stats.other_tenant += seen->content == content && seen->root != di_key_tag(root);
    }
}

bool di_prefix_acquire(struct di_prefix *p, struct di_lease *l, const struct di_key *root, const struct di_key_text *t,
                       const struct di_match *m, int n_pages)
{
    if (l->n != 0 || m->serial != p->serial || m->n_blocks > n_pages || n_pages > l->cap)
        return false;
    for (int i = 0; i < m->n_blocks; i++) {
        di_block_hold(p->pool, p->path[i]);
        l->pages[l->n++] = p->path[i];
    }
    if (m->source >= 0)
        di_block_hold(p->pool, l->source = m->source);
    if (n_pages - l->n > di_block_available(p->pool)) {
        di_lease_release(p->pool, l); /* the blocks are now the newest ones: a waiting request keeps its prefix warm */
        return false;
    }
    l->n_chain = m->n_blocks;
    l->tip = m->n_blocks ? p->tree.node[l->pages[m->n_blocks - 1]].key : *root;
    l->bounded = m->bounded;
    if (m->state >= 0)
        di_block_touch(p->pool, p->states->state[m->state].block); /* its parent is held above */
    count_lookup(p, root, t, m);
    p->serial++;
    return di_lease_grow(p->pool, l, n_pages);
}

void di_prefix_fork(struct di_prefix *p, const struct di_lease *from, struct di_lease *to, int64_t n)
{
    int full = (int)(n / DI_BLOCK_TOKENS);
    DI_ASSERT(to->n == 0 && full <= from->n && full <= to->cap);
    for (; to->n < full; to->n++)
        di_block_hold(p->pool, to->pages[to->n] = from->pages[to->n]);
    to->n_chain = from->n_chain < full ? from->n_chain : full;
    to->bounded = from->bounded;
    to->broken = from->broken;
    to->state_bounded = from->state_bounded;
    if (to->n_chain == from->n_chain)
        to->tip = from->tip;
    else if (to->n_chain > 0)
        to->tip = p->tree.node[to->pages[to->n_chain - 1]].key;
    else
        to->tip = p->tree.node[from->pages[0]].parent_key;
    p->serial++;
}

/* ---------------------------------------------------------------- publish */

/* Whether the lease's chain still is what the index has. */
static bool chain_stands(const struct di_prefix *p, struct di_lease *l)
{
    if (l->n_chain > 0 && !l->broken) {
        int32_t b = l->pages[l->n_chain - 1];
        l->broken = !p->pool->cached[b] || !di_key_equal(&p->tree.node[b].key, &l->tip);
    }
    return !l->broken;
}

/* Leaves that a new block contains leave; holders keep their pages. They stand right before it: what stood between would contain them
 * too. */
static void supersede_leaves(struct di_prefix *p, int32_t b)
{
    const struct di_node *x = &p->tree.node[b];
    struct di_place at = {&x->parent_key, x->parent, x->bounded, &x->content};
    for (;;) {
        int32_t before, behind;
        di_tree_neighbours(&p->tree, &at, &before, &behind);
        const struct di_content *c = before >= 0 ? &p->tree.node[before].content : NULL;
        if (!c || c->comparable < c->n || di_content_common(c, &x->content) < c->n)
            return;
        node_leave(p, before, b);
        p->stats.superseded++;
    }
}

static void insert_block(struct di_prefix *p, const struct di_lease *l, int32_t b, const struct di_key *key, const struct di_content *c)
{
    struct di_node *x = &p->tree.node[b];
    if (p->pool->cached[b])
        di_tree_remove(&p->tree, b); /* it was a leaf that has been filled on */
    else
        x->states = -1;
    x->key = *key;
    x->parent_key = l->tip;
    x->content = *c;
    x->parent = l->n_chain ? l->pages[l->n_chain - 1] : -1;
    x->n_children = 0;
    x->bounded = l->bounded;
    di_tree_insert(&p->tree, b);
    di_block_cache(p->pool, b);
    supersede_leaves(p, b);
    if (*evicted_slot(p, key) == di_key_tag(key))
        *evicted_slot(p, key) = 0;
    p->stats.inserted++;
}

/* Enter the full page n_chain, or take the equal one that is there. */
static bool publish_full(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t)
{
    int i = l->n_chain;
    int32_t mine = l->pages[i], parent = i ? l->pages[i - 1] : -1;
    struct di_key key;
    struct di_content c;
    if (!di_key_of_block(p->hasher, &l->tip, t, (int64_t)i * DI_BLOCK_TOKENS, DI_BLOCK_TOKENS, &key))
        return false;
    di_content_of(t, (int64_t)i * DI_BLOCK_TOKENS, DI_BLOCK_TOKENS, &c);
    int32_t there = di_tree_find(&p->tree, &key, parent, &c);
    if (there >= 0 && there != mine && p->tree.node[there].bounded && !l->bounded) {
        leave_subtree(p, there);
        there = -1;
    }
    if (there < 0) {
        insert_block(p, l, mine, &key, &c);
        if (i == 0) {
            uint64_t content = content_tag(t);
            p->first_blocks[content % TENANT_MEMORY] = (struct first_block){content, di_key_tag(&l->tip)};
        }
    } else if (there != mine) {
        di_block_hold(p->pool, there);
        l->pages[i] = there;
        if (p->pool->cached[mine] && p->tree.node[mine].bounded >= p->tree.node[there].bounded)
            node_leave(p, mine, there); /* my leaf, entered when it was partly filled */
        di_block_drop(p->pool, mine);
        p->stats.switched++;
    }
    l->n_chain++;
    l->tip = key;
    return true;
}

/* Enter [64 n_chain, n). The indexed block that now covers it, or -1. */
static int32_t publish_partial(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t, int64_t n)
{
    int64_t pos0 = (int64_t)l->n_chain * DI_BLOCK_TOKENS;
    int32_t mine = l->pages[l->n_chain];
    int common;
    struct di_key key;
    struct di_content c;
    di_content_of(t, pos0, (int)(n - pos0), &c);
    for (int bounded = 0; bounded <= (int)l->bounded; bounded++) {
        struct di_place at = {&l->tip, l->n_chain ? l->pages[l->n_chain - 1] : -1, bounded, &c};
        int32_t there = di_tree_nearest(&p->tree, &at, &common);
        if (common == c.n)
            return there;
    }
    if (p->pool->cached[mine] && p->pool->refs[mine] > 1 && p->tree.node[mine].bounded != l->bounded)
        return -1;
    if (!di_key_of_block(p->hasher, &l->tip, t, pos0, c.n, &key))
        return -1;
    insert_block(p, l, mine, &key, &c);
    return mine;
}

/* Returns the indexed block that holds position n - 1, or -1. */
static int32_t publish_rows(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t, int64_t n, bool partial)
{
    int full = (int)(n / DI_BLOCK_TOKENS);
    DI_ASSERT(l->n_chain <= l->n && (n + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS <= l->n);
    p->serial++;
    if (!chain_stands(p, l))
        return -1;
    while (l->n_chain < full)
        if (!publish_full(p, l, t))
            return -1;
    if ((int64_t)l->n_chain * DI_BLOCK_TOKENS >= n)
        return l->pages[(n - 1) / DI_BLOCK_TOKENS];
    return partial ? publish_partial(p, l, t, n) : -1;
}

void di_prefix_publish(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t, int64_t n, bool partial)
{
    if (n > 0)
        publish_rows(p, l, t, n, partial);
}

/* ---------------------------------------------------------------- save and restore */

/* A snapshot of the same content at the same position. */
static int32_t find_state(struct di_prefix *p, int32_t block, int64_t at)
{
    const struct di_node *x = &p->tree.node[block];
    int need = (int)((at - 1) % DI_BLOCK_TOKENS) + 1;
    for (int32_t i = *state_bucket(p, &x->parent_key); i >= 0; i = p->states->state[i].bucket_next) {
        const struct di_state *st = &p->states->state[i];
        const struct di_node *y = &p->tree.node[st->block];
        if (st->at == at && y->parent == x->parent && (st->block == block || di_content_common(&y->content, &x->content) >= need))
            return i;
    }
    return -1;
}

/* A state against a new one at the same place: exact content takes the place of bounded, and one that serves more rows that of one that
 * serves less. */
static bool keeps_state(const struct di_state *st, bool bounded, int64_t least)
{
    return st->bounded == bounded ? st->least <= least : bounded;
}

bool di_prefix_save(struct di_prefix *p, struct di_lease *l, const struct di_key_text *t, int64_t at, const struct di_state_from *from)
{
    bool bounded = l->bounded || l->state_bounded;
    if (!p->states || p->states->params.count == 0 || at < 1 || at < from->least || !di_state_can_save(p->states, at, from->written))
        return false;
    int32_t block = publish_rows(p, l, t, at, true);
    if (block < 0)
        return false;
    int32_t s = find_state(p, block, at);
    if (s >= 0 && keeps_state(&p->states->state[s], bounded, from->least)) {
        di_state_touch(p->states, s);
        return true;
    }
    if (s >= 0)
        state_drop(p, s);
    else if (p->states->first_free < 0)
        state_drop(p, p->states->oldest);
    s = di_state_take(p->states);
    DI_ASSERT(s >= 0);
    struct di_state *st = &p->states->state[s];
    st->at = at;
    st->bounded = bounded;
    st->draft_lo = from->draft_lo;
    st->least = from->least;
    st->parent = p->tree.node[block].parent_key;
    int32_t *head = state_bucket(p, &st->parent);
    st->bucket_next = *head;
    *head = s;
    state_attach(p, s, block);
    di_state_store(p->states, s, from->kv, from->slot);
    p->stats.states_saved++;
    return true;
}

int64_t di_prefix_restore(struct di_prefix *p, const struct di_match *m, const struct di_kv *kv, int slot)
{
    DI_ASSERT(m->state >= 0 && p->states->state[m->state].used);
    di_state_load(p->states, m->state, kv, slot);
    di_state_touch(p->states, m->state);
    p->stats.states_restored++;
    return p->states->state[m->state].draft_lo;
}

/* ---------------------------------------------------------------- check */

int di_prefix_node(const struct di_prefix *p, int32_t block, bool *bounded)
{
    *bounded = p->pool->cached[block] && p->tree.node[block].bounded;
    return p->pool->cached[block] ? p->tree.node[block].content.n : 0;
}

static const char *check_node(const struct di_prefix *p, int32_t b)
{
    const struct di_node *x = &p->tree.node[b], *up = x->parent >= 0 ? &p->tree.node[x->parent] : NULL;
    if (di_tree_find(&p->tree, &x->key, x->parent, &x->content) < 0)
        return "a node is not found by its key";
    if (x->content.n < 1 || (x->n_children > 0 && x->content.n != DI_BLOCK_TOKENS))
        return "a node that is not full has children";
    if (up && (!p->pool->cached[x->parent] || !di_key_equal(&up->key, &x->parent_key)))
        return "a node's parent is not in the index";
    if (up && up->bounded && !x->bounded)
        return "an exact block stands behind a bounded one";
    if (up && p->pool->refs[b] > 0 && p->pool->refs[x->parent] == 0)
        return "a held block's parent is not held";
    for (int32_t s = x->states; s >= 0; s = p->states->state[s].block_next) {
        const struct di_state *st = &p->states->state[s];
        if (!st->used || st->block != b || !di_key_equal(&st->parent, &x->parent_key) || (st->at - 1) % DI_BLOCK_TOKENS >= x->content.n)
            return "a snapshot does not belong to its block";
    }
    return NULL;
}

const char *di_prefix_check(const struct di_prefix *p)
{
    struct di_block_counts counts;
    int nodes = 0, children = 0, with_parent = 0, states = 0;
    if (!di_block_pool_count(p->pool, &counts))
        return "the pool's lists contradict its blocks";
    for (int32_t b = 0; b < p->pool->n; b++) {
        if (!p->pool->cached[b])
            continue;
        const char *wrong = check_node(p, b);
        if (wrong)
            return wrong;
        nodes++;
        children += p->tree.node[b].n_children;
        with_parent += p->tree.node[b].parent >= 0;
        for (int32_t s = p->tree.node[b].states; s >= 0; s = p->states->state[s].block_next)
            states++;
    }
    if (nodes != p->tree.n_nodes || children != with_parent)
        return "the tree's counts are wrong";
    if (p->states && states != p->states->n_used)
        return "a snapshot has no block";
    return NULL;
}
