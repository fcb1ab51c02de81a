#include "grammar/mask.h"

/* ---- walks ---- */

static state_id step_all(struct di_grammar *g, state_id s, struct di_str bytes)
{
    for (size_t i = 0; i < bytes.n && s; i++)
        s = gr_step(g, s, (unsigned char)bytes.p[i]);
    return s;
}

static bool allows(struct di_grammar *g, state_id s, struct di_str bytes)
{
    size_t mark = g->n_nodes;
    bool yes = step_all(g, s, bytes) != 0;
    gr_drop(g, mark);
    return yes;
}

/* What becomes of the tokens of a node that was reached. */
struct walk {
    struct di_grammar *g;
    const struct di_vocabulary *v;
    state_id from;
    uint32_t *out;
    uint32_t min_chars, max_chars; /* of what stands in front of a residue */
    bool try_each;                 /* residues with something in front are tried as whole tokens */
};

static void doubt(struct walk *w, uint32_t id)
{
    struct mask_cache *c = w->g->cache;
    if (gr_grow(w->g, (void **)&c->doubtful, &c->cap_doubtful, c->n_doubtful + 1, sizeof *c->doubtful))
        c->doubtful[c->n_doubtful++] = id;
}

static void reached(struct walk *w, const struct trie *t, const struct trie_node *n, bool verify)
{
    for (uint32_t i = n->first; i < n->first + n->count; i++) {
        const struct trie_entry *e = t->entries + i;
        if (e->chars < w->min_chars || e->chars > w->max_chars)
            continue;
        if (w->try_each && e->chars && !allows(w->g, w->from, w->v->tokens[e->id]))
            continue;
        if (verify)
            doubt(w, e->id);
        else
            mask_add(w->out, e->id);
    }
}

/* Inside numbers and strings a walk does not make states: it keeps what changes, `x`, beside the state where the number or string began. */
static bool runs(struct di_grammar *g, state_id s, uint32_t *x)
{
    const struct node *n = g->nodes + s;
    if (n->kind == NODE_NUMBER) {
        *x = n->f[1];
        return true;
    }
    if (n->kind != NODE_STRING || n->f[F_ESCAPE])
        return false;
    const struct typed_site *t = g->typed[n->f[F_SITE]];
    *x = n->f[F_RX];
    return !t->product && !t->min && t->max == RX_MANY;
}

static struct mask_step advance(struct di_grammar *g, struct mask_step at, unsigned byte)
{
    if (at.running) {
        const struct node *n = g->nodes + at.state;
        if (n->kind == NODE_NUMBER) {
            uint32_t x = numbers_step(g, g->typed[n->f[F_SITE]], at.x, byte);
            if (x)
                return (struct mask_step){at.state, x, true, at.verify};
        } else if (byte >= 0x20 && byte != '"' && byte != '\\') {
            uint32_t x = rx_step(&g->rx, at.x, byte);
            return (struct mask_step){x == RX_NONE ? 0 : at.state, x, true, at.verify};
        }
        struct node now = *n; /* it ends, or is spelled otherwise */
        now.f[1] = at.x;
        at.state = gr_node(g, &now);
    }
    g->verify = at.verify;
    struct mask_step to = {.state = gr_step(g, at.state, byte)};
    to.verify = g->verify;
    to.running = to.state && runs(g, to.state, &to.x);
    return to;
}

/* The nodes first..end-1 below a node of depth `depth` that was reached with `from`. */
static void walk_nodes(struct walk *w, const struct trie *t, uint32_t first, uint32_t end, unsigned depth, state_id from)
{
    struct di_grammar *g = w->g;
    struct mask_cache *c = g->cache;
    if (!gr_grow(g, (void **)&c->path, &c->cap_path, t->depth + 1, sizeof *c->path))
        return;
    c->path[depth] = (struct mask_step){.state = from};
    c->path[depth].running = runs(g, from, &c->path[depth].x);
    for (uint32_t i = first; i < end;) {
        const struct trie_node *n = t->nodes + i;
        struct mask_step to = advance(g, c->path[n->depth - 1], n->byte);
        if (!to.state) {
            i = n->end;
            continue;
        }
        if (n->count)
            reached(w, t, n, to.verify);
        c->path[n->depth] = to;
        i++;
    }
    g->verify = false;
}

static void walk_trie(struct walk *w, const struct trie *t, state_id from)
{
    walk_nodes(w, t, 1, (uint32_t)t->n_nodes, 0, from);
}

/* ---- slices ---- */

/* All continuations of `left` bytes behind `at` lead to s. */
static bool returns(struct di_grammar *g, state_id s, state_id at, unsigned low, unsigned high, unsigned left)
{
    state_id last = 0;
    for (unsigned byte = low; byte <= high; byte++) {
        state_id to = gr_step(g, at, byte);
        if (!to || (left == 1 && to != s))
            return false;
        if (left > 1 && to != last && !returns(g, s, to, 0x80, 0xBF, left - 1))
            return false;
        last = to;
    }
    return true;
}

/* No character that a string of JSON may hold as it is changes the state. */
static bool loops_on_content(struct di_grammar *g, state_id s)
{
    static const struct {
        uint8_t first, last, low, high, left;
    } leads[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2}, {0xED, 0xED, 0x80, 0x9F, 2},
                 {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3}, {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
    static const char quick[] = "a 1}z:";
    size_t mark = g->n_nodes;
    bool yes = true;
    for (const char *c = quick; *c && yes; c++)
        yes = gr_step(g, s, (unsigned char)*c) == s;
    for (unsigned byte = 0x20; byte < 0x80 && yes; byte++)
        yes = byte == '"' || byte == '\\' || gr_step(g, s, byte) == s;
    for (size_t i = 0; i < sizeof leads / sizeof *leads && yes; i++) {
        state_id last = 0;
        for (unsigned byte = leads[i].first; byte <= leads[i].last && yes; byte++) {
            state_id to = gr_step(g, s, byte);
            yes = to && (to == last || returns(g, s, to, leads[i].low, leads[i].high, leads[i].left));
            last = to;
        }
    }
    gr_drop(g, mark);
    return yes;
}

static void copy_mask(const struct di_vocabulary *v, const uint32_t *from, uint32_t *to)
{
    memcpy(to, from, v->words * sizeof *to);
}

/* A string or key that may hold anything, within limits of its length. */
static void mask_free_string(struct walk *w, uint32_t count, uint32_t min, uint32_t max)
{
    const struct slice *s = &w->v->content;
    struct di_grammar *g = w->g;
    uint32_t left = max == RX_MANY ? RX_MANY : max - count;
    if (left < SLICE_LEFT) {
        copy_mask(w->v, s->short_ones + left * w->v->words, w->out);
    } else {
        copy_mask(w->v, s->whole, w->out);
        for (size_t i = 0; i < s->n_by_chars && s->by_chars[i].chars > left; i++)
            w->out[s->by_chars[i].id / 32] &= ~(1u << s->by_chars[i].id % 32);
    }
    struct node n = g->nodes[w->from];
    if (n.f[F_COUNT] < min && n.kind == NODE_STRING)
        n.f[F_COUNT] = min;
    w->min_chars = min > count ? min - count : 0;
    w->max_chars = left;
    walk_trie(w, &s->closing, gr_node(g, &n));
    w->min_chars = 0;
    w->max_chars = RX_MANY;
    if (count < min) {
        for (size_t i = 0; i < s->others.n_entries; i++) {
            const struct trie_entry *e = s->others.entries + i;
            if (allows(g, w->from, w->v->tokens[e->id]))
                mask_add(w->out, e->id);
        }
        return;
    }
    w->try_each = left < 4096;
    walk_trie(w, &s->others, w->from);
}

/* A key of an object that takes any name: everything is allowed but closing it where it is one of the names that schemas know, which is looked
 * at apart. */
static void mask_free_key(struct walk *w)
{
    const struct di_vocabulary *v = w->v;
    const struct trie *all = &v->all;
    struct di_grammar *g = w->g;
    struct node k = g->nodes[w->from];
    state_id bare;
    k.f[F_LOW] = k.f[F_HIGH] = k.f[F_DEPTH] = 0;
    bare = gr_node(g, &k);
    copy_mask(v, v->content.whole, w->out);
    walk_trie(w, &v->content.closing, bare);
    walk_trie(w, &v->content.others, bare);
    if (bare == w->from)
        return;
    struct node *path = di_malloc((all->depth + 1) * sizeof *path);
    if (!path) {
        g->out_of_memory = true;
        return;
    }
    path[0] = g->nodes[w->from];
    for (uint32_t i = 1; i < all->n_nodes;) {
        const struct trie_node *n = all->nodes + i;
        struct node *at = path + n->depth;
        *at = path[n->depth - 1];
        if (n->byte == '"') {
            uint32_t last = n->end < all->n_nodes ? all->nodes[n->end].first : (uint32_t)all->n_entries;
            for (uint32_t e = n->first; e < last; e++)
                w->out[all->entries[e].id / 32] &= ~(1u << all->entries[e].id % 32);
            walk_nodes(w, all, i, n->end, n->depth - 1u, gr_node(g, at));
            i = n->end;
            continue;
        }
        json_narrow(g, at, n->byte);
        i = at->f[F_HIGH] ? i + 1 : n->end;
    }
    di_free(path);
}

static void compute(struct di_grammar *g, const struct di_vocabulary *v, state_id s, uint32_t *out)
{
    const struct node n = g->nodes[s];
    struct walk w = {.g = g, .v = v, .from = s, .out = out, .max_chars = RX_MANY};
    const struct typed_site *t = n.kind == NODE_STRING ? g->typed[n.f[F_SITE]] : NULL;
    bool text = n.kind == NODE_STRING || n.kind == NODE_KEY || n.kind == NODE_RX || n.kind == NODE_ITEMS || n.kind == NODE_ITEM_JSON;
    size_t mark = g->n_nodes;
    if (t && !t->product && n.f[F_RX] == g->rx.any_text && !n.f[F_ESCAPE]) {
        mask_free_string(&w, n.f[F_COUNT], t->min, t->max);
    } else if (n.kind == NODE_KEY && !n.f[F_ESCAPE] && n.f[F_RX] == g->rx.any_text && json_takes_any_key(g, &n)) {
        mask_free_key(&w);
    } else if (text && loops_on_content(g, s)) {
        copy_mask(v, v->content.whole, out);
        walk_trie(&w, &v->content.closing, s);
        walk_trie(&w, &v->content.others, s);
    } else {
        memset(out, 0, v->words * sizeof *out);
        walk_trie(&w, &v->all, s);
    }
    gr_drop(g, mark);
}

/* ---- the cache ---- */

/* The state without what it captured, which most masks do not depend on. */
static state_id without_text(struct di_grammar *g, state_id s)
{
    struct node n = g->nodes[s];
    bool key = n.kind == NODE_KEY;
    if (n.kind < NODE_VALUE || n.kind > NODE_ARRAY || (!n.f[F_CAPTURE] && !(key && n.f[F_NAME])))
        return s;
    n.f[F_CAPTURE] = 0;
    if (key)
        n.f[F_NAME] = 0;
    return gr_node(g, &n);
}

void mask_compute(struct di_grammar *g, const struct di_vocabulary *v, state_id s, uint32_t *out)
{
    struct mask_cache *c = g->cache;
    state_id bare = without_text(g, s);
    if (!c->slots && !(c->slots = di_calloc(c->n, sizeof *c->slots))) {
        g->out_of_memory = true;
        return;
    }
    if (!bare)
        return;
    struct mask_slot *slot = c->slots + bare * 2654435761u % c->n;
    if (slot->state != bare) {
        slot->state = 0;
        c->n_doubtful = 0;
        g->strip = true;
        compute(g, v, bare, out);
        g->strip = false;
        if (g->over || g->out_of_memory)
            return;
        uint32_t *doubtful = c->n_doubtful ? di_realloc(slot->doubtful, c->n_doubtful * sizeof *doubtful) : slot->doubtful;
        if (!slot->mask)
            slot->mask = di_malloc(v->words * sizeof *slot->mask);
        if (!slot->mask || (c->n_doubtful && !doubtful)) {
            g->out_of_memory = true;
            return;
        }
        slot->doubtful = doubtful;
        slot->n_doubtful = c->n_doubtful;
        if (c->n_doubtful)
            memcpy(doubtful, c->doubtful, c->n_doubtful * sizeof *doubtful);
        memcpy(slot->mask, out, v->words * sizeof *out);
        slot->state = bare;
    } else {
        memcpy(out, slot->mask, v->words * sizeof *out);
    }
    for (size_t i = 0; i < slot->n_doubtful; i++)
        if (allows(g, s, v->tokens[slot->doubtful[i]]))
            mask_add(out, slot->doubtful[i]);
}

void mask_cache_fini(struct mask_cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; c->slots && i < c->n; i++) {
        di_free(c->slots[i].mask);
        di_free(c->slots[i].doubtful);
    }
    di_free(c->slots);
    di_free(c->doubtful);
    di_free(c->path);
    di_free(c);
}

void mask_cache_forget(struct mask_cache *c)
{
    for (size_t i = 0; c->slots && i < c->n; i++)
        c->slots[i].state = 0;
}
