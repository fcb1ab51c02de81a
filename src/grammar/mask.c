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
    bool try_breaks;               /* those with a line break of Unicode are */
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
        if (w->try_breaks && has_break(w->v->tokens[e->id]) && !allows(w->g, w->from, w->v->tokens[e->id]))
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

/* Bytes that may come where no string, number or word is open; and in a number. */
static const struct byte_set structural = {{0x07FF300500002600u, 0x2810404028000000u, 0, 0}};
static const struct byte_set numeric = {{0x03FF780100002600u, 0x2000002020000020u, 0, 0}};

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

/* All tokens that begin with one of these bytes. */
static void walk_first(struct walk *w, const struct byte_set *first)
{
    const struct trie *t = &w->v->all;
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t i = w->v->first_node[byte];
        if (i && set_has(first, byte))
            walk_nodes(w, t, i, t->nodes[i].end, 0, w->from);
    }
}

/* Numerals that may come in a number, or (state 1) begin one, as ids behind their count; remembered with the state. NULL: no memory. */
static const uint32_t *find_numerals(struct di_grammar *g, const struct di_vocabulary *v, struct typed_site *t, uint32_t state)
{
    const struct trie *trie = &v->numerals;
    struct mask_cache *c = g->cache;
    if (*numbers_memo(t, state))
        return *numbers_memo(t, state);
    uint32_t *list = di_malloc((trie->n_entries + 1) * sizeof *list), n = 0;
    if (!list || !gr_grow(g, (void **)&c->path, &c->cap_path, trie->depth + 1, sizeof *c->path)) {
        g->out_of_memory |= !list;
        di_free(list);
        return NULL;
    }
    c->path[0].x = state;
    for (uint32_t i = 1; i < trie->n_nodes;) {
        const struct trie_node *node = trie->nodes + i;
        uint32_t to = numbers_step(g, t, c->path[node->depth - 1].x, node->byte);
        c->path[node->depth].x = to;
        for (uint32_t e = node->first; e < node->first + (to ? node->count : 0); e++)
            list[++n] = trie->entries[e].id;
        i = to ? i + 1 : node->end;
    }
    list[0] = n;
    uint32_t *fit = di_realloc(list, (n + 1) * sizeof *list);
    return *numbers_memo(t, state) = fit ? fit : list; /* the states may have moved */
}

static void mask_numerals(struct walk *w, struct typed_site *t, uint32_t state)
{
    const uint32_t *list = find_numerals(w->g, w->v, t, state);
    for (uint32_t i = 1; list && i <= list[0]; i++)
        mask_add(w->out, list[i]);
}

static void add_spaces(struct walk *w)
{
    for (size_t i = 0; i < w->v->words; i++)
        w->out[i] |= w->v->spaces[i];
}

/* What a number would have to be that begins here; NULL: none can. */
static struct typed_site *number_site(struct di_grammar *g, state_id s)
{
    for (const char *c = "0123456789-"; *c; c++) {
        state_id to = gr_step(g, s, (unsigned char)*c);
        if (to)
            return g->typed[g->nodes[to].f[F_SITE]];
    }
    return NULL;
}

/* Tokens where no string, number or word is open. White space changes nothing, so it is not walked. */
static void mask_structure(struct walk *w, const struct node *n)
{
    struct di_grammar *g = w->g;
    if (g->options.compact) {
        walk_first(w, &structural);
        return;
    }
    add_spaces(w);
    struct typed_site *t = n->kind == NODE_VALUE || n->kind == NODE_ARRAY ? number_site(g, w->from) : NULL;
    if (t)
        mask_numerals(w, t, 1);
    walk_trie(w, &w->v->structure, w->from);
}

static void mask_number(struct walk *w, const struct node *n)
{
    struct di_grammar *g = w->g;
    g->verify = false;
    state_id after = g->options.compact ? 0 : gr_step(g, w->from, ' ');
    bool doubtful = g->verify;
    g->verify = false;
    if (g->options.compact || doubtful) {
        walk_first(w, &numeric);
        return;
    }
    mask_numerals(w, g->typed[n->f[F_SITE]], n->f[1]);
    walk_trie(w, &w->v->after_number, w->from);
    if (after) {
        add_spaces(w);
        walk_trie(w, &w->v->structure, after);
    }
}

/* ---- inside of strings and keys ---- */

/* What changes inside a string or a key that is none of the names that schemas know, beside the node. */
struct inside {
    enum { INSIDE_RX, INSIDE_PRODUCT, INSIDE_KEY } kind;
    struct typed_site *t;
    state_id object; /* KEY */
    uint32_t x, y;   /* expression or product's state; KEY: patterns and expression */
};

static bool step_inside(struct di_grammar *g, const struct inside *in, struct mask_step *at, unsigned byte)
{
    switch (in->kind) {
    case INSIDE_RX: at->x = rx_step(&g->rx, at->x, byte); return at->x != RX_NONE;
    case INSIDE_PRODUCT: at->x = product_step(g, in->t->product, at->x, byte); return json_text_live(g, in->t, at->x);
    default:
        at->state = rx_step(&g->rx, at->state, byte);
        if (in->t->product)
            at->x = product_step(g, in->t->product, at->x, byte);
        return at->state != RX_NONE && json_free_viable(g, in->object, at->x);
    }
}

/* Can the state be followed without nodes? Lengths that are counted are in the node. */
static bool is_inside(struct di_grammar *g, const struct node *n, struct inside *in)
{
    if ((n->kind != NODE_STRING && n->kind != NODE_KEY) || n->f[F_ESCAPE])
        return false;
    if (n->kind == NODE_KEY) {
        *in = (struct inside){INSIDE_KEY, g->typed[g->nodes[n->parent].f[F_SITE]], n->parent, n->f[F_ITEM], n->f[F_RX]};
        return !n->f[F_HIGH];
    }
    struct typed_site *t = g->typed[n->f[F_SITE]];
    *in = (struct inside){t->product ? INSIDE_PRODUCT : INSIDE_RX, t, 0, n->f[F_RX], 0};
    return !t->min && t->max == RX_MANY;
}

static void copy_mask(const struct di_vocabulary *v, const uint32_t *from, uint32_t *to)
{
    memcpy(to, from, v->words * sizeof *to);
}

static uint32_t step_rx(void *ctx, uint32_t state, unsigned byte)
{
    struct di_grammar *g = ctx;
    return rx_step(&g->rx, state, byte);
}

struct stepping {
    struct di_grammar *g;
    struct product *p;
};

static uint32_t step_product(void *ctx, uint32_t state, unsigned byte)
{
    struct stepping *s = ctx;
    return product_step(s->g, s->p, state, byte);
}

#define KNOWN 0x8000u /* classes were found */

/* Classes of which every character leads from `state` to itself. */
static unsigned looping_classes(uint32_t state, uint32_t (*step)(void *ctx, uint32_t state, unsigned byte), void *ctx)
{
    unsigned out = 0;
    struct byte_set good = {0};
    for (unsigned k = 0; k < N_ASCII_CLASSES; k++) {
        bool all = true;
        for (unsigned byte = 0x20; byte < 0x7F && all; byte++) {
            if (!set_has(&trie_classes[k], byte) || set_has(&good, byte))
                continue;
            all = step(ctx, state, byte) == state;
            if (all)
                set_add(&good, byte);
        }
        out |= (unsigned)all << k;
    }
    enum loops loops = out >> (N_ASCII_CLASSES - 1) & 1 ? find_loops(state, step, ctx) : LOOPS_NOT;
    return out | (unsigned)(loops >= LOOPS_LINE) << CLASS_LINE | (unsigned)(loops >= LOOPS_CONTENT) << CLASS_TEXT | KNOWN;
}

static uint32_t step_part(void *ctx, uint32_t state, unsigned byte)
{
    struct di_grammar *g = ctx;
    return rx_step(&g->rx, state, byte) == RX_EMPTY ? state : RX_NONE;
}

/* Classes of which any text of up to `most` characters may come and the expression still matches something. */
static unsigned rx_classes(struct di_grammar *g, rx_id id, size_t most)
{
    struct rx_node n = g->rx.nodes[id];
    unsigned found = n.classes;
    if (found)
        return found;
    if (n.op == OP_AND && n.b == 2) /* a limited length: what matches now and loops can be made as long as one likes */
        for (uint32_t i = 0; i < 2; i++) {
            rx_id one = g->rx.lists[n.a + i], other = g->rx.lists[n.a + 1 - i];
            const struct rx_node *length = g->rx.nodes + one;
            if (length->op == OP_REP && length->a == g->rx.any_char && length->max >= most &&
                (length->max == RX_MANY || length->min <= length->max - most) && g->rx.nodes[other].nullable)
                found |= looping_classes(other, step_rx, g);
        }
    else if (!n.boolean && (n.op == OP_REP || (n.op == OP_CAT && g->rx.nodes[n.a].op == OP_REP))) {
        const struct rx_node rep = n.op == OP_REP ? n : g->rx.nodes[n.a];
        if (rep.max >= most)
            found = looping_classes(rep.a, step_part, g) & ((1u << N_ASCII_CLASSES) - 1);
    }
    found |= looping_classes(id, step_rx, g);
    g->rx.nodes[id].classes = (uint16_t)found;
    return found;
}

static unsigned product_classes(struct di_grammar *g, struct product *p, uint32_t state)
{
    size_t old = p->cap_classes;
    if (!gr_grow(g, (void **)&p->classes, &p->cap_classes, (size_t)state + 1, sizeof *p->classes))
        return 0;
    memset(p->classes + old, 0, (p->cap_classes - old) * sizeof *p->classes);
    if (!p->classes[state])
        p->classes[state] = (uint16_t)looping_classes(state, step_product, &(struct stepping){g, p});
    return p->classes[state];
}

static unsigned classes_inside(struct di_grammar *g, const struct inside *in, const struct mask_step *at, size_t most)
{
    if (in->kind == INSIDE_RX)
        return rx_classes(g, at->x, most);
    if (in->kind == INSIDE_KEY && at->state != g->rx.any_text)
        return 0; /* inside a character */
    return in->t->product ? product_classes(g, in->t->product, at->x) : (1u << N_CLASSES) - 1;
}

/* The largest class that most of what begins here ends in, or N_CLASSES. */
static unsigned likely_class(struct di_grammar *g, const struct inside *in, const struct mask_step *from, size_t most)
{
    unsigned common = (1u << N_CLASSES) - 1, k = N_CLASSES;
    for (const char *c = "qZ7"; *c; c++) {
        struct mask_step to = *from;
        common &= step_inside(g, in, &to, (unsigned char)*c) ? classes_inside(g, in, &to, most) : 0;
    }
    while (k > 0 && !(common >> (k - 1) & 1))
        k--;
    return k ? k - 1 : N_CLASSES;
}

#define FEW_NODES 16 /* are walked; of more it is asked first whether all their tokens may come */

static uint32_t sum(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

/* Characters of the shortest text of an expression; RX_MANY if that is not known. */
static uint32_t shortest(const struct di_grammar *g, rx_id id)
{
    return g->rx.nodes[id].boolean ? RX_MANY : g->rx.nodes[id].min_chars;
}

/* The tokens that stay inside: their texts hold nothing that a string spells otherwise. Gives the length of the shortest text for which all of
 * them are needed at most (expressions only). `out` begins as the mask of a class: the largest that
 * loops here, whose tokens then need no look, or the one where most beginnings lead to, from which what cannot come is taken away. */
static uint32_t walk_plain(struct walk *w, const struct inside *in)
{
    const struct trie *t = &w->v->plain;
    struct di_grammar *g = w->g;
    struct mask_cache *c = g->cache;
    bool expression = in->kind == INSIDE_RX;
    uint32_t most = expression ? sum(shortest(g, in->x), (uint32_t)t->depth) : 0;
    if (!gr_grow(g, (void **)&c->path, &c->cap_path, t->depth + 1, sizeof *c->path))
        return RX_MANY;
    c->path[0] = (struct mask_step){.state = in->y, .x = in->x};
    unsigned loops = classes_inside(g, in, c->path, t->depth) & ((1u << N_CLASSES) - 1), begun = 0;
    unsigned class = loops ? 31 - (unsigned)__builtin_clz(loops) : likely_class(g, in, c->path, t->depth);
    if (class < N_CLASSES) {
        copy_mask(w->v, w->v->of_class + (size_t) class * w->v->words, w->out);
        begun = 1u << class;
    } else {
        memset(w->out, 0, w->v->words * sizeof *w->out);
    }
    unsigned skip = loops ? begun : 0;
    for (uint32_t i = 1; i < t->n_nodes;) {
        const struct trie_node *n = t->nodes + i;
        struct mask_step to = c->path[n->depth - 1];
        unsigned pure = w->v->pure[i];
        if (pure & skip) {
            i = n->end;
            continue;
        }
        bool lives = step_inside(g, in, &to, n->byte), all = false;
        if (lives && pure && n->end - i > FEW_NODES)
            all = pure & classes_inside(g, in, &to, t->depth);
        if (lives && expression) {
            uint32_t chars = sum(shortest(g, to.x), all ? (uint32_t)t->depth : n->depth);
            most = chars > most ? chars : most;
        }
        if (lives && !all) {
            for (uint32_t e = n->first; e < n->first + n->count; e++)
                mask_add(w->out, t->entries[e].id);
            c->path[n->depth] = to;
            i++;
            continue;
        }
        uint32_t last = n->end < t->n_nodes ? t->nodes[n->end].first : (uint32_t)t->n_entries;
        if (all && !(pure & begun))
            for (uint32_t e = n->first; e < last; e++)
                mask_add(w->out, t->entries[e].id);
        if (!lives && begun)
            for (uint32_t e = n->first; e < last; e++)
                w->out[t->entries[e].id / 32] &= ~(1u << t->entries[e].id % 32);
        i = n->end;
    }
    return most;
}

/* The slot of an expression among the masks that grammars share. */
static size_t shared_slot(const uint64_t *digest)
{
    return digest[0] % SHARED_MASKS;
}

static bool find_shared(const struct di_vocabulary *v, const uint64_t *digest, uint32_t *out, uint32_t *most)
{
    struct shared_masks *s = v->shared;
    size_t i = shared_slot(digest);
    pthread_mutex_lock(&s->lock);
    bool found = s->slots[i].mask && memcmp(s->slots[i].digest, digest, sizeof s->slots[i].digest) == 0;
    if (found) {
        memcpy(out, s->slots[i].mask, v->words * sizeof *out);
        *most = s->slots[i].most_chars;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static void keep_shared(const struct di_vocabulary *v, const uint64_t *digest, const uint32_t *mask, uint32_t most)
{
    struct shared_masks *s = v->shared;
    size_t i = shared_slot(digest);
    pthread_mutex_lock(&s->lock);
    if (!s->slots[i].mask)
        s->slots[i].mask = di_malloc((v->words + 1) * sizeof *mask); /* without memory nothing is kept */
    if (s->slots[i].mask) {
        memcpy(s->slots[i].mask, mask, v->words * sizeof *mask);
        memcpy(s->slots[i].digest, digest, sizeof s->slots[i].digest);
        s->slots[i].most_chars = most;
    }
    pthread_mutex_unlock(&s->lock);
}

/* The plain tokens of an expression, remembered for all grammars. */
static uint32_t mask_expression(struct walk *w, const struct inside *in)
{
    struct di_grammar *g = w->g;
    bool shared = rx_may_search(&g->rx); /* else what is dead is known less well here than elsewhere */
    uint64_t digest[2];
    uint32_t most;
    memcpy(digest, g->rx.nodes[in->x].digest, sizeof digest);
    if (shared && find_shared(w->v, digest, w->out, &most))
        return most;
    most = walk_plain(w, in);
    if (shared && rx_may_search(&g->rx) && gr_health(g, NULL) == DI_OK)
        keep_shared(w->v, digest, w->out, most);
    return most;
}

/* An expression whose length is limited, apart from its limit; or RX_NONE. */
static rx_id without_limit(const struct di_grammar *g, rx_id id, uint32_t *max)
{
    const struct rx_node *n = g->rx.nodes + id;
    for (uint32_t i = 0; n->op == OP_AND && n->b == 2 && i < 2; i++) {
        const struct rx_node *length = g->rx.nodes + g->rx.lists[n->a + i];
        *max = length->max;
        if (length->op == OP_REP && length->a == g->rx.any_char && !length->min && length->max != RX_MANY)
            return g->rx.lists[n->a + 1 - i];
    }
    return RX_NONE;
}

/* Tokens that stay inside a string or key, then those with something that a string spells otherwise or ends with. */
static void mask_inside(struct walk *w, const struct inside *in)
{
    struct inside free = *in;
    uint32_t max = 0;
    if (in->kind != INSIDE_RX) {
        walk_plain(w, in);
    } else {
        free.x =
            without_limit(w->g, in->x, &max); /* a limit that no token can reach is none, so that one mask serves all places of a text */
        if (free.x == RX_NONE || mask_expression(w, &free) > max)
            mask_expression(w, in);
    }
    walk_trie(w, &w->v->marked, w->from);
}

/* ---- slices ---- */

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
    case NODE_RX: found = rx_loops(g, n.f[0]); return found == LOOPS_ANY ? LOOPS_CONTENT : found;
    case NODE_ITEMS:
    case NODE_ITEM_JSON:
        found = find_loops(s, step_state, g);
        found = found == LOOPS_ANY ? LOOPS_CONTENT : found;
        break;
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
    if (count < min) { /* as many characters in front as are missing, or fewer: by their number */
        for (uint32_t front = 0; front < min - count && front <= s->most_chars; front++) {
            n.f[F_COUNT] = count + front;
            w->min_chars = w->max_chars = front;
            walk_trie(w, &s->others, gr_node(g, &n));
        }
        n.f[F_COUNT] = min;
        w->min_chars = min - count;
        w->max_chars = left;
    }
    w->try_each = left < 4096;
    walk_trie(w, &s->others, count < min ? gr_node(g, &n) : w->from);
}

/* A state with which `s` is compared: where a text goes that is none of the words which `s` knows. 0: there is none. */
static state_id find_base(struct di_grammar *g, state_id s)
{
    static const char probes[] = "q~Z5 ";
    struct node n = g->nodes[s];
    state_id tried = 0;
    if (n.kind == NODE_KEY && n.f[F_ESCAPE])
        return 0;
    if (n.kind == NODE_KEY) { /* the key of a free name */
        n.f[F_LOW] = n.f[F_HIGH] = n.f[F_DEPTH] = n.chain = 0;
        return json_free_viable(g, n.parent, n.f[F_ITEM]) ? gr_node(g, &n) : 0;
    }
    for (const char *c = probes; *c; c++) {
        state_id to = gr_step(g, s, (unsigned char)*c);
        if (to && to != tried && state_loops(g, to))
            return to;
        tried = to ? to : tried;
    }
    return 0;
}

/* Bytes that go on with one of the names a key may still become, and those that are no text of it. */
static struct byte_set bytes_of_names(const struct di_grammar *g, const struct node *key)
{
    const struct typed_site *t = g->typed[g->nodes[key->parent].f[F_SITE]];
    struct byte_set set = {0};
    set_add(&set, '"');
    set_add(&set, '\\');
    for (uint32_t i = key->f[F_LOW]; i < key->f[F_HIGH]; i++)
        if (t->names[i].text.n > key->f[F_DEPTH])
            set_add(&set, (unsigned char)t->names[i].text.p[key->f[F_DEPTH]]);
    return set;
}

/* `out` is the mask of `base`: make it that of w->from, looking only at tokens on whose way the two states differ. */
static void walk_difference(struct walk *w, state_id base, uint32_t first, uint32_t end)
{
    const struct trie *t = &w->v->all;
    struct di_grammar *g = w->g;
    struct mask_cache *c = g->cache;
    c->path[0] = (struct mask_step){.state = w->from, .x = base};
    for (uint32_t i = first; i < end;) {
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

static void mask_difference(struct walk *w, state_id base)
{
    const struct trie *t = &w->v->all;
    struct di_grammar *g = w->g;
    const struct node n = g->nodes[w->from];
    struct mask_cache *c = g->cache;
    if (!gr_grow(g, (void **)&c->path, &c->cap_path, t->depth + 1, sizeof *c->path))
        return;
    if (n.kind != NODE_KEY) {
        walk_difference(w, base, 1, (uint32_t)t->n_nodes);
        return;
    }
    struct byte_set first = bytes_of_names(g, &n); /* any other byte leads both to the same state */
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t i = w->v->first_node[byte];
        if (i && set_has(&first, byte))
            walk_difference(w, base, i, t->nodes[i].end);
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
    } else if (loops == LOOPS_CONTENT || loops == LOOPS_LINE) {
        copy_mask(v, v->content.whole, out);
        for (size_t i = 0; i < (loops == LOOPS_LINE ? v->content.n_breaks : 0); i++)
            if (!allows(g, s, v->tokens[v->content.breaks[i]]))
                out[v->content.breaks[i] / 32] &= ~(1u << v->content.breaks[i] % 32);
        w.try_breaks = loops == LOOPS_LINE;
        walk_trie(&w, &v->content.closing, s);
        walk_trie(&w, &v->content.others, s);
    } else {
        struct inside in;
        state_id base = 0;
        if (is_inside(g, &n, &in)) {
            mask_inside(&w, &in);
        } else if (text && (base = find_base(g, s))) {
            compute(g, v, base, out);
            mask_difference(&w, base);
        } else {
            memset(out, 0, v->words * sizeof *out);
            struct byte_set names;
            if (is_structural(&n))
                mask_structure(&w, &n);
            else if (n.kind == NODE_NUMBER)
                mask_number(&w, &n);
            else if (n.kind == NODE_KEY && !n.f[F_ESCAPE])
                names = bytes_of_names(g, &n), walk_first(&w, &names);
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

size_t mask_cache_bytes(const struct mask_cache *c, const struct di_vocabulary *v)
{
    size_t bytes = c->slots ? c->n * sizeof *c->slots : 0;
    for (size_t i = 0; c->slots && i < c->n; i++)
        bytes += (c->slots[i].mask ? v->words * sizeof *c->slots[i].mask : 0) + c->slots[i].n_doubtful * sizeof *c->slots[i].doubtful;
    return bytes;
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
