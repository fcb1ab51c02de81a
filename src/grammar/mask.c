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

/* Bytes that may come where no string, number or word is open, in the order of the trie. */
static const char structure[] = "\t\n\r \",-0123456789:[]fnt{}";

static const struct byte_set structural = {{0x07FF300500002600u, 0x2810404028000000u, 0, 0}};

static bool is_structural(const struct node *n)
{
    return n->kind == NODE_OBJECT || n->kind == NODE_ARRAY || n->kind == NODE_VALUE || n->kind == NODE_DONE;
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
        if (n->kind == NODE_NUMBER && !set_has(&structural, byte))
            return (struct mask_step){0};
        struct node now = *n; /* it ends, or is spelled otherwise */
        now.f[1] = at.x;
        at.state = gr_node(g, &now);
    }
    if (is_structural(g->nodes + at.state) && !set_has(&structural, byte))
        return (struct mask_step){0};
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

static uint32_t step_rx(void *ctx, uint32_t state, unsigned byte)
{
    struct di_grammar *g = ctx;
    return rx_step(&g->rx, state, byte);
}

static uint32_t step_state(void *ctx, uint32_t state, unsigned byte)
{
    return state ? gr_step(ctx, state, byte) : 0;
}

static enum loops rx_loops(struct di_grammar *g, rx_id id)
{
    if (!g->rx.nodes[id].loops) {
        enum loops found = find_loops(id, step_rx, g);
        g->rx.nodes[id].loops = (uint8_t)(1 + found);
    }
    return (enum loops)(g->rx.nodes[id].loops - 1);
}

/* Which characters, as content of a string or key or as they are, do not change the state. */
static enum loops state_loops(struct di_grammar *g, state_id s)
{
    const struct node n = g->nodes[s];
    const struct typed_site *t;
    size_t mark = g->n_nodes;
    enum loops found = LOOPS_NOT;
    switch (n.kind) {
    case NODE_RX: return rx_loops(g, n.f[0]) ? LOOPS_CONTENT : LOOPS_NOT;
    case NODE_ITEMS:
    case NODE_ITEM_JSON: found = find_loops(s, step_state, g) ? LOOPS_CONTENT : LOOPS_NOT; break;
    case NODE_STRING:
        t = g->typed[n.f[F_SITE]];
        if (n.f[F_ESCAPE] || t->max != RX_MANY || n.f[F_COUNT] < t->min)
            return LOOPS_NOT;
        return t->product ? product_loops(g, t->product, n.f[F_RX]) : rx_loops(g, n.f[F_RX]);
    case NODE_KEY:
        t = g->typed[g->nodes[n.parent].f[F_SITE]];
        if (n.f[F_ESCAPE] || n.f[F_HIGH] || n.f[F_RX] != g->rx.any_text)
            return LOOPS_NOT;
        found = t->product ? product_loops(g, t->product, n.f[F_ITEM]) : LOOPS_ANY;
        found = found && gr_step(g, s, 'a') == s ? found : LOOPS_NOT;
        break;
    default: break;
    }
    gr_drop(g, mark);
    return found;
}

static void copy_mask(const struct di_vocabulary *v, const uint32_t *from, uint32_t *to)
{
    memcpy(to, from, v->words * sizeof *to);
}

/* A string or key that may hold anything and is long enough to be closed, with no limit that a token could reach. */
static void mask_any_text(struct walk *w)
{
    copy_mask(w->v, w->v->content.inside, w->out);
    walk_trie(w, &w->v->content.leaving, w->from);
    for (size_t i = 0; i < w->v->content.n_pairs; i++)
        if (allows(w->g, w->from, w->v->tokens[w->v->content.pairs[i]]))
            mask_add(w->out, w->v->content.pairs[i]);
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

/* A state that one character leads to and that no further one changes, or 0: where a text goes that is none of the words which `s` knows. */
static state_id find_loop(struct di_grammar *g, state_id s)
{
    static const char probes[] = "q~Z5 ";
    state_id tried = 0;
    for (const char *c = probes; *c; c++) {
        state_id to = gr_step(g, s, (unsigned char)*c);
        if (to && to != tried && state_loops(g, to))
            return to;
        tried = to ? to : tried;
    }
    return 0;
}

/* `out` is the mask of `loop`: make it that of w->from, looking only at tokens on whose way the two states differ. */
static void walk_difference(struct walk *w, state_id loop)
{
    const struct trie *t = &w->v->all;
    struct di_grammar *g = w->g;
    struct mask_cache *c = g->cache;
    if (!gr_grow(g, (void **)&c->path, &c->cap_path, t->depth + 1, sizeof *c->path))
        return;
    c->path[0] = (struct mask_step){.state = w->from, .x = loop};
    for (uint32_t i = 1; i < t->n_nodes;) {
        const struct trie_node *n = t->nodes + i;
        const struct mask_step *from = c->path + n->depth - 1;
        g->verify = from->verify;
        struct mask_step to = {.state = from->state ? gr_step(g, from->state, n->byte) : 0,
                               .x = from->x ? gr_step(g, from->x, n->byte) : 0};
        to.verify = g->verify;
        if (to.state == to.x) {
            i = n->end;
            continue;
        }
        uint32_t last = to.state ? n->first + n->count : n->end < t->n_nodes ? t->nodes[n->end].first : (uint32_t)t->n_entries;
        for (uint32_t e = n->first; e < last; e++)
            w->out[t->entries[e].id / 32] &= ~(1u << t->entries[e].id % 32);
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

static void walk_structure(struct walk *w)
{
    const struct trie *t = &w->v->all;
    for (size_t k = 0; k < sizeof structure - 1; k++) {
        uint32_t i = w->v->first_node[(unsigned char)structure[k]];
        if (i)
            walk_nodes(w, t, i, t->nodes[i].end, 0, w->from);
    }
}

static void compute(struct di_grammar *g, const struct di_vocabulary *v, state_id s, uint32_t *out)
{
    const struct node n = g->nodes[s];
    struct walk w = {.g = g, .v = v, .from = s, .out = out, .max_chars = RX_MANY};
    const struct typed_site *t = n.kind == NODE_STRING ? g->typed[n.f[F_SITE]] : NULL;
    bool text = n.kind == NODE_STRING || n.kind == NODE_KEY || n.kind == NODE_RX || n.kind == NODE_ITEMS || n.kind == NODE_ITEM_JSON;
    size_t mark = g->n_nodes;
    bool limited = t && !t->product && n.f[F_RX] == g->rx.any_text && !n.f[F_ESCAPE] && (t->max != RX_MANY || n.f[F_COUNT] < t->min);
    enum loops loops = text ? state_loops(g, s) : LOOPS_NOT;
    if (loops == LOOPS_ANY || (limited && n.f[F_COUNT] >= t->min && t->max - n.f[F_COUNT] >= v->all.depth)) {
        mask_any_text(&w);
    } else if (limited) {
        mask_free_string(&w, n.f[F_COUNT], t->min, t->max);
    } else if (loops == LOOPS_CONTENT) {
        copy_mask(v, v->content.whole, out);
        walk_trie(&w, &v->content.closing, s);
        walk_trie(&w, &v->content.others, s);
    } else {
        state_id loop = text ? find_loop(g, s) : 0;
        if (loop) {
            compute(g, v, loop, out);
            walk_difference(&w, loop);
        } else {
            memset(out, 0, v->words * sizeof *out);
            if (is_structural(&n))
                walk_structure(&w);
            else
                walk_trie(&w, &v->all, s);
        }
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
