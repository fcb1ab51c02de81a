/* States: interned nodes, and what every machine does with them. */
#include "grammar/cfg.h"

bool gr_grow(struct di_grammar *g, void **items, size_t *cap, size_t need, size_t each)
{
    if (need <= *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 16, bytes;
    while (want < need)
        want *= 2;
    void *bigger = di_mul(want, each, &bytes) ? di_realloc(*items, bytes) : NULL;
    if (!bigger) {
        g->out_of_memory = true;
        return false;
    }
    *items = bigger;
    *cap = want;
    return true;
}

di_status gr_health(const struct di_grammar *g, di_error *err)
{
    if (g->out_of_memory || g->rx.out_of_memory || g->bdd.out_of_memory)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a grammar");
    const char *over = g->over ? g->over : g->rx.over_limit ? "regex_nodes" : g->bdd.over_limit ? "formula_nodes" : NULL;
    return over ? di_fail(err, DI_ERR_LIMIT, "", "the grammar needs more than a limit allows: %s", over) : DI_OK;
}

/* ---- nodes ---- */

static uint32_t hash_node(const struct node *n)
{
    uint64_t v[8], h = 0;
    memcpy(v, n, 64);
    v[7] &= 0xFFFFFFFFu; /* without the chain */
    for (int i = 0; i < 8; i += 2)
        h = (h ^ v[i] ^ v[i + 1] * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
    return (uint32_t)(h ^ h >> 29);
}

static bool same_node(const struct node *a, const struct node *b)
{
    uint64_t x[8], y[8], differ = 0;
    memcpy(x, a, 64);
    memcpy(y, b, 64);
    for (int i = 0; i < 7; i++)
        differ |= x[i] ^ y[i];
    return !(differ | ((x[7] ^ y[7]) & 0xFFFFFFFFu)); /* without the chain */
}

static bool rehash(struct di_grammar *g, size_t size)
{
    uint32_t *heads = di_calloc(size, sizeof *heads);
    if (!heads) {
        g->out_of_memory = true;
        return false;
    }
    di_free(g->heads);
    g->heads = heads;
    g->mask = size - 1;
    for (uint32_t i = 1; i < g->n_nodes; i++)
        gr_link(g, i);
    return true;
}

state_id gr_node(struct di_grammar *g, const struct node *n)
{
    if (g->n_nodes >= g->mask && !rehash(g, g->mask ? (g->mask + 1) * 2 : 1024))
        return 0;
    uint32_t hash = hash_node(n);
    for (uint32_t i = g->heads[hash & g->mask]; i; i = g->nodes[i].chain)
        if (same_node(g->nodes + i, n))
            return i;
    if (g->n_nodes >= 2 * g->options.limits.states) { /* what lives is less: see collect in matcher.c */
        g->over = "states";
        return 0;
    }
    if (!gr_grow(g, (void **)&g->nodes, &g->cap_nodes, g->n_nodes + 2, sizeof *g->nodes))
        return 0;
    if (!g->n_nodes)
        g->nodes[g->n_nodes++] = (struct node){0};
    struct node *to = g->nodes + g->n_nodes;
    *to = *n;
    to->chain = g->heads[hash & g->mask];
    g->heads[hash & g->mask] = (uint32_t)g->n_nodes;
    return (state_id)g->n_nodes++;
}

void gr_link(struct di_grammar *g, uint32_t i)
{
    uint32_t *head = g->heads + (hash_node(g->nodes + i) & g->mask);
    g->nodes[i].chain = *head;
    *head = i;
}

void gr_drop(struct di_grammar *g, size_t mark)
{
    g->free.parent = g->free.parent < mark ? g->free.parent : 0; /* numbers of nodes are used again */
    if (g->repeated.text >= mark || g->repeated.list >= mark)
        g->repeated.text = 0;
    while (g->n_nodes > mark) { /* the newest is first in its chain */
        const struct node *n = g->nodes + --g->n_nodes;
        g->heads[hash_node(n) & g->mask] = n->chain;
    }
}

uint32_t gr_vector(struct di_grammar *g, const uint32_t *v, size_t n)
{
    uint64_t h = n;
    if (!n)
        return 0;
    for (size_t i = 0; i < n; i++)
        h = (h ^ v[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
    if (!g->word_heads) {
        g->word_mask = 4095;
        if (!(g->word_heads = di_calloc(g->word_mask + 1, sizeof *g->word_heads))) {
            g->out_of_memory = true;
            return 0;
        }
    }
    uint32_t *head = g->word_heads + (h & g->word_mask);
    for (uint32_t i = *head; i; i = g->words[i - 2])
        if (g->words[i - 1] == n && memcmp(g->words + i, v, n * sizeof *v) == 0)
            return i;
    if (!gr_grow(g, (void **)&g->words, &g->cap_words, g->n_words + n + 2, sizeof *g->words))
        return 0;
    g->words[g->n_words] = *head;
    g->words[g->n_words + 1] = (uint32_t)n;
    memcpy(g->words + g->n_words + 2, v, n * sizeof *v);
    *head = (uint32_t)g->n_words + 2;
    g->n_words += n + 2;
    return *head;
}

/* ---- the machines ---- */

state_id gr_step(struct di_grammar *g, state_id s, unsigned byte)
{
    const struct node *n = g->nodes + s;
    if (n->kind == NODE_RX) {
        rx_id to = rx_step(&g->rx, n->f[0], byte);
        return to == RX_NONE ? 0 : to == n->f[0] ? s : gr_node(g, &(struct node){.kind = NODE_RX, .f = {to}});
    }
    return n->kind == NODE_ITEMS || n->kind == NODE_ITEM_JSON ? cfg_step(g, s, byte) : json_step(g, s, byte);
}

bool gr_accepts(struct di_grammar *g, state_id s)
{
    const struct node *n = g->nodes + s;
    if (n->kind == NODE_ITEMS || n->kind == NODE_ITEM_JSON)
        return cfg_accepts(g, s);
    return n->kind == NODE_RX ? rx_accepts(&g->rx, n->f[0]) : json_accepts(g, s);
}

/* ---- distances ---- */

static size_t sum(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static size_t times(size_t n, size_t a)
{
    return a > SIZE_MAX / n ? SIZE_MAX : n * a;
}

static size_t site_distance(struct di_grammar *g, uint32_t site)
{
    uint32_t d = json_distance(g, site);
    return d == UINT32_MAX ? SIZE_MAX : d;
}

/* What a frame needs behind the value or key that is open in it. */
static size_t frame_distance(struct di_grammar *g, const struct node *n)
{
    const struct typed_site *t = n->kind == NODE_OBJECT || n->kind == NODE_ARRAY ? g->typed[n->f[F_SITE]] : NULL;
    size_t d = t != NULL;
    if (n->kind == NODE_ARRAY)
        for (uint32_t i = n->f[F_NUMBER] + (n->f[F_EDGE] != 0), alike; i < t->min && d != SIZE_MAX; i += alike) {
            const struct edge *e = json_edge(g, n->f[F_SITE], n->f[F_FORMULA], n->f[F_TRACKS], i < t->n_prefix ? i : t->n_prefix, false);
            alike = i < t->n_prefix ? 1 : t->min - i; /* behind the prefix they are one schema */
            d = e->site == NO_SCHEMA ? SIZE_MAX : sum(d, times(alike, sum(1, site_distance(g, e->site))));
        }
    if (n->kind == NODE_OBJECT) {
        uint8_t *needed = di_malloc((size_t)t->n_names + 1);
        if (!needed) {
            g->out_of_memory = true;
            return SIZE_MAX;
        }
        json_needed(g, n, needed);
        for (uint32_t i = 0; i < t->n_names && d != SIZE_MAX; i++)
            if (needed[i]) {
                const struct edge *e = json_edge(g, n->f[F_SITE], n->f[F_FORMULA], n->f[F_TRACKS], i, true);
                d = e->site == NO_SCHEMA ? SIZE_MAX : sum(sum(d, t->names[i].text.n + 4), site_distance(g, e->site));
            }
        di_free(needed);
    }
    return d;
}

size_t gr_distance(struct di_grammar *g, state_id s)
{
    struct node n = g->nodes[s];
    size_t d = 0;
    if (gr_accepts(g, s))
        return 0;
    if (n.kind == NODE_RX)
        return g->rx.nodes[n.f[0]].min_chars == RX_MANY ? SIZE_MAX : g->rx.nodes[n.f[0]].min_chars;
    if (n.kind == NODE_ITEMS || n.kind == NODE_ITEM_JSON)
        return SIZE_MAX;
    switch (n.kind) {
    case NODE_VALUE: d = site_distance(g, n.f[F_SITE]); break;
    case NODE_WORD: d = 5 - n.f[1]; break;
    case NODE_NUMBER: d = numbers_accept(g, g->typed[n.f[F_SITE]], n.f[1]) ? 0 : 3; break;
    case NODE_STRING: {
        const struct typed_site *t = g->typed[n.f[F_SITE]];
        size_t left = n.f[F_COUNT] < t->min ? t->min - n.f[F_COUNT] : 0;
        d = 1 + left +
            (t->product ? !json_text_accept(g, (struct typed_site *)(uintptr_t)t, n.f[F_RX]) : g->rx.nodes[n.f[F_RX]].min_chars) +
            (n.f[F_ESCAPE] ? 5 : 0);
        break;
    }
    case NODE_KEY: break; /* below, as it may be negative */
    default: d = frame_distance(g, &n);
    }
    if (n.kind == NODE_OBJECT && n.f[F_EDGE]) /* the value that a key announced */
        d = sum(sum(d, 1), site_distance(g, g->edges[n.f[F_EDGE] - 1].site));
    int64_t key = n.kind == NODE_KEY ? json_key_distance(g, &n) : 0;
    while (n.parent && d != SIZE_MAX) {
        n = g->nodes[n.parent];
        d = sum(d, frame_distance(g, &n));
    }
    if (key < 0)
        return d == SIZE_MAX ? d : d > (size_t)-key ? d - (size_t)-key : 1;
    return sum(d, (size_t)key);
}
