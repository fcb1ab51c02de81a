/* From a frame to the value of one of its members: which schemas apply to it, what they may turn out to be, and what follows for the frame. */
#include "grammar/impl.h"

#define OUTCOMES 8192 /* variables from here on are outcomes of the value's soft schemas */
enum { PENDING_REPLACE, PENDING_CONTAINS };
enum { REF_ALWAYS = UINT32_MAX };

struct work {
    struct di_grammar *g;
    struct typed_site *t;
    bdd_id formula;
    bdd_id *tracks;
    uint32_t n_tracks;
    bool *used; /* atoms that formula or tracks depend on */
    uint32_t *hard, *soft, *pending;
    size_t n_hard, n_soft, n_pending, cap_hard, cap_soft, cap_pending;
    bool impossible, decided;
};

static void push(struct work *w, uint32_t **v, size_t *n, size_t *cap, uint32_t x)
{
    if (gr_grow(w->g, (void **)v, cap, *n + 1, sizeof **v))
        (*v)[(*n)++] = x;
}

/* A member of a list of schemas that a value is asked about. */
static bdd_id soft_outcome(struct work *w, uint32_t schema)
{
    size_t i = 0;
    if (schema == SCHEMA_ANY || schema == NO_SCHEMA)
        return BDD_TRUE;
    if (schema == SCHEMA_NONE)
        return BDD_FALSE;
    while (i < w->n_soft && w->soft[i] != schema)
        i++;
    if (i == w->n_soft) {
        if (i >= sizeof w->g->outcome) {
            w->g->over = "4096 schemas whose outcome for one value is open";
            return BDD_FALSE;
        }
        push(w, &w->soft, &w->n_soft, &w->cap_soft, schema);
    }
    return bdd_var(&w->g->bdd, OUTCOMES + (uint32_t)i);
}

static void replace(struct work *w, uint32_t var, bdd_id f)
{
    w->formula = bdd_replace(&w->g->bdd, w->formula, var, f);
    for (uint32_t i = 0; i < w->n_tracks; i++)
        w->tracks[i] = bdd_replace(&w->g->bdd, w->tracks[i], var, f);
    w->decided = true;
}

static void later(struct work *w, uint32_t var, uint32_t kind, uint32_t what)
{
    push(w, &w->pending, &w->n_pending, &w->cap_pending, var);
    push(w, &w->pending, &w->n_pending, &w->cap_pending, kind);
    push(w, &w->pending, &w->n_pending, &w->cap_pending, what);
}

/* The schemas of `s` for a member, by `visit`; false if `s` says nothing about it. */
static bool for_member(struct work *w, const struct schema *s, uint32_t name, uint64_t matches,
                       void (*visit)(struct work *w, uint32_t schema, void *ctx), void *ctx)
{
    const struct typed_site *t = w->t;
    bool found = false;
    if (name != NO_SCHEMA)
        for (uint32_t i = s->n_properties; i-- > 0;)
            if (di_str_eq(s->properties[i].name, t->names[name].text)) {
                found = true;
                visit(w, s->properties[i].schema, ctx);
                break;
            }
    for (uint32_t i = 0; i < s->n_patterns; i++)
        for (uint32_t k = 0; k < t->n_patterns; k++)
            if (t->patterns[k] == s->patterns[i].pattern && matches >> k & 1) {
                found = true;
                visit(w, s->patterns[i].schema, ctx);
            }
    if (!found && s->additional != NO_SCHEMA) {
        found = true;
        visit(w, s->additional, ctx);
    }
    return found;
}

static bool for_item(struct work *w, const struct schema *s, uint32_t index, void (*visit)(struct work *w, uint32_t schema, void *ctx),
                     void *ctx)
{
    if (index < s->prefix.count)
        visit(w, w->g->schemas.words[s->prefix.first + index], ctx);
    else if (s->items != NO_SCHEMA)
        visit(w, s->items, ctx);
    else
        return false;
    return true;
}

static void visit_hard(struct work *w, uint32_t schema, void *ctx)
{
    (void)ctx;
    if (schema == SCHEMA_NONE)
        w->impossible = true;
    else if (schema != SCHEMA_ANY)
        push(w, &w->hard, &w->n_hard, &w->cap_hard, schema);
}

static void visit_soft(struct work *w, uint32_t schema, void *ctx)
{
    bdd_id *all = ctx;
    *all = bdd_and(&w->g->bdd, *all, soft_outcome(w, schema));
}

static void visit_nothing(struct work *w, uint32_t schema, void *ctx)
{
    (void)w, (void)schema, (void)ctx;
}

/* Is the member evaluated by s itself? As a formula, as `contains` evaluates what it matches. */
static bdd_id evaluates(struct work *w, const struct schema *s, bool item, uint32_t name, uint64_t matches, uint32_t index, bool rest_too)
{
    if (rest_too && (item ? s->other_items : s->other_properties) != NO_SCHEMA)
        return BDD_TRUE;
    if (!item)
        return for_member(w, s, name, matches, visit_nothing, NULL) ? BDD_TRUE : BDD_FALSE;
    if (for_item(w, s, index, visit_nothing, NULL))
        return BDD_TRUE;
    return s->contains != NO_SCHEMA && s->items_cover_contains ? soft_outcome(w, s->contains) : BDD_FALSE;
}

static bool is_rest(const struct atom *a)
{
    return a->kind == ATOM_REST || a->kind == ATOM_REST_ITEMS;
}

static void plan_rest(struct work *w, uint32_t var, bool item, uint32_t name, uint64_t matches, uint32_t index)
{
    struct di_grammar *g = w->g;
    const struct atom *a = w->t->atoms + var;
    const struct schema *s = g->schemas.v + a->schema;
    bdd_id seen = evaluates(w, s, item, name, matches, index, false);
    for (uint32_t i = 0; i < a->count && seen != BDD_TRUE; i++) {
        const struct evaluator *e = w->t->evaluators + a->index + i;
        bdd_id by = evaluates(w, g->schemas.v + e->schema, item, name, matches, index, true);
        seen = bdd_or(&g->bdd, seen, bdd_and(&g->bdd, w->tracks[e->track], by));
    }
    if (seen != BDD_TRUE)
        seen = bdd_or(&g->bdd, seen, soft_outcome(w, item ? s->other_items : s->other_properties));
    if (seen != BDD_TRUE)
        later(w, var, PENDING_REPLACE, bdd_and(&g->bdd, bdd_var(&g->bdd, var), seen));
}

static void plan(struct work *w, uint32_t name, uint64_t matches, uint32_t index)
{
    struct di_grammar *g = w->g;
    struct typed_site *t = w->t;
    bool item = t->type == 5;
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        const struct atom *a = t->atoms + i;
        const struct schema *s = g->schemas.v + a->schema;
        if (a->kind == ATOM_MEMBERS || a->kind == ATOM_ITEMS) {
            bdd_id all = BDD_TRUE;
            if (t->hard[i]) {
                (void)(item ? for_item(w, s, index, visit_hard, NULL) : for_member(w, s, name, matches, visit_hard, NULL));
            } else if (w->used[i]) {
                (void)(item ? for_item(w, s, index, visit_soft, &all) : for_member(w, s, name, matches, visit_soft, &all));
                if (all == BDD_FALSE)
                    replace(w, i, BDD_FALSE);
                else if (all != BDD_TRUE)
                    later(w, i, PENDING_REPLACE, bdd_and(&g->bdd, bdd_var(&g->bdd, i), all));
            }
        } else if (!w->used[i]) {
            continue;
        } else if (a->kind == ATOM_NAMES && !t->hard[i] && !(matches >> a->index & 1)) {
            replace(w, i, BDD_FALSE);
        } else if (a->kind == ATOM_PRESENT && name != NO_SCHEMA && a->index == name) {
            replace(w, i, BDD_TRUE);
        } else if (a->kind == ATOM_CONTAINS) {
            bdd_id outcome = soft_outcome(w, s->contains);
            if (outcome != BDD_FALSE)
                later(w, i, PENDING_CONTAINS, outcome);
        }
    }
    for (uint32_t i = 0; i < t->n_atoms; i++) /* what is evaluated depends on all that was decided above */
        if (w->used[i] && is_rest(t->atoms + i))
            plan_rest(w, i, item, name, matches, index);
}

/* What replaces a variable may speak of others that are replaced too (unevaluated*): those come behind it, so that they are replaced in it. */
static void order_pending(struct work *w)
{
    bool *speaks_of = NULL;
    size_t moves = 0;
    for (size_t i = w->n_pending; i >= 3; i -= 3) { /* from the end: what was placed already stays in order */
        uint32_t *p = w->pending + i - 3, one[3] = {p[0], p[1], p[2]};
        if (!is_rest(w->t->atoms + one[0]))
            continue;
        if (!speaks_of && !(speaks_of = di_malloc(w->t->n_atoms + 1))) {
            w->g->out_of_memory = true;
            return;
        }
        memset(speaks_of, 0, w->t->n_atoms);
        bdd_support(&w->g->bdd, one[2], speaks_of, w->t->n_atoms);
        size_t to = i - 3;
        for (size_t k = 0; k < to; k += 3)
            if (speaks_of[w->pending[k]])
                to = k;
        memmove(w->pending + to + 3, w->pending + to, (i - 3 - to) * sizeof *p);
        memcpy(w->pending + to, one, sizeof one);
        i += to < i - 3 && moves++ < w->n_pending ? 3 : 0; /* another one stands here now */
    }
    di_free(speaks_of);
}

/* Outcomes of the value that the frame can live with, over variables from 0 on: for some truth of what is still open. A variable is
 * replaced and made open in one go: all replaced before any goes would make every subset of them a diagram of its own. */
static bdd_id demand(struct work *w)
{
    struct bdd_pool *bdd = &w->g->bdd;
    const struct typed_site *t = w->t;
    bdd_id d = w->formula;
    bdd_id *names = di_malloc((OUTCOMES + w->n_soft) * sizeof *names);
    uint8_t *waits = di_calloc(t->n_atoms + 1, 1);
    bool rest = false;
    if (!names || !waits) {
        w->g->out_of_memory = true;
        d = BDD_FALSE;
        goto out;
    }
    for (size_t i = 0; i < w->n_pending; i += 3)
        if (w->pending[i + 1] == PENDING_REPLACE) {
            waits[w->pending[i]] = 1;
            rest |= is_rest(t->atoms + w->pending[i]);
        }
    for (uint32_t i = 0; i < t->n_atoms && !rest; i++)
        if (w->used[i] && !waits[i])
            d = bdd_exists(bdd, d, i);
    for (size_t i = 0; i < w->n_pending; i += 3)
        if (w->pending[i + 1] == PENDING_REPLACE) {
            uint32_t var = w->pending[i];
            bdd_id seen = bdd_set(bdd, w->pending[i + 2], var, true); /* the variable becomes itself and this */
            d = bdd_or(bdd, bdd_set(bdd, d, var, false), bdd_replace(bdd, d, var, seen));
        }
    for (uint32_t i = 0; i < t->n_atoms && rest; i++)
        if (w->used[i] && !waits[i])
            d = bdd_exists(bdd, d, i);
    for (size_t i = 0; i < w->n_soft; i++)
        names[OUTCOMES + i] = bdd_var(bdd, (uint32_t)i);
    d = bdd_compose(bdd, d, names);
out:
    di_free(names);
    di_free(waits);
    return d;
}

/* If the frame needs all soft schemas to hold they are hard ones, and nothing is pending but what becomes of their truth. */
static bool all_needed(struct work *w, bdd_id d)
{
    struct bdd_pool *bdd = &w->g->bdd;
    for (size_t i = 0; i < w->n_soft; i++)
        if (bdd_set(bdd, d, (uint32_t)i, false) != BDD_FALSE)
            return false;
    size_t kept = 0;
    for (size_t i = 0; i < w->n_pending; i += 3) {
        uint32_t var = w->pending[i], kind = w->pending[i + 1];
        bdd_id f = w->pending[i + 2];
        for (size_t k = 0; k < w->n_soft; k++)
            f = bdd_set(bdd, f, OUTCOMES + (uint32_t)k, true);
        if (kind == PENDING_REPLACE && f == bdd_var(bdd, var))
            continue;
        w->pending[kept++] = var;
        w->pending[kept++] = kind;
        w->pending[kept++] = f;
    }
    w->n_pending = kept;
    for (size_t i = 0; i < w->n_soft; i++)
        push(w, &w->hard, &w->n_hard, &w->cap_hard, w->soft[i]);
    w->n_soft = 0;
    return true;
}

static uint32_t *find_edge(struct di_grammar *g, const struct edge *key)
{
    uint64_t h = ((uint64_t)key->typed << 32 ^ key->formula) * 0x9E3779B97F4A7C15u;
    h = (h ^ key->tracks ^ h >> 29) * 0xD6E8FEB86659FD93u;
    h = (h ^ ((uint64_t)key->class_high << 32 | key->class_low) ^ h >> 31) * 0xD6E8FEB86659FD93u;
    uint32_t *at = &g->edge_heads[h >> 32 & g->edge_mask];
    while (*at) {
        struct edge *e = g->edges + *at - 1;
        if (e->typed == key->typed && e->formula == key->formula && e->tracks == key->tracks && e->class_low == key->class_low &&
            e->class_high == key->class_high)
            break;
        at = &e->chain;
    }
    return at;
}

const struct edge *json_edge(struct di_grammar *g, uint32_t typed, bdd_id formula, uint32_t tracks, uint64_t class, bool named)
{
    static const struct edge none = {.site = NO_SCHEMA};
    struct typed_site *t = g->typed[typed];
    struct edge key = {.typed = typed,
                       .formula = formula,
                       .tracks = tracks,
                       .class_low = (uint32_t) class,
                       .class_high = named ? UINT32_MAX : (uint32_t)(class >> 32)};
    if (!g->edge_heads) {
        g->edge_mask = 2047;
        if (!(g->edge_heads = di_calloc(g->edge_mask + 1, sizeof *g->edge_heads))) {
            g->out_of_memory = true;
            return &none;
        }
    }
    uint32_t *at = find_edge(g, &key);
    if (*at)
        return g->edges + *at - 1;

    bool item = t->type == 5;
    uint32_t name = item || !named ? NO_SCHEMA : (uint32_t) class, index = item ? (uint32_t) class : 0;
    uint64_t matches = item ? 0 : named ? t->names[name].matches : class;
    struct work w = {.g = g, .t = t, .formula = formula, .n_tracks = gr_count(g, tracks)};
    unsigned assumed = g->assuming;
    w.tracks = di_malloc((w.n_tracks + 1) * sizeof *w.tracks);
    w.used = di_calloc(t->n_atoms + 1, sizeof *w.used);
    key.site = NO_SCHEMA;
    if (!w.tracks || !w.used) {
        g->out_of_memory = true;
        goto out;
    }
    if (w.n_tracks)
        memcpy(w.tracks, gr_items(g, tracks), w.n_tracks * sizeof *w.tracks);
    bdd_support(&g->bdd, formula, w.used, t->n_atoms);
    for (uint32_t i = 0; i < w.n_tracks; i++)
        bdd_support(&g->bdd, w.tracks[i], w.used, t->n_atoms);
    w.impossible = !item && (matches & t->hard_names) != t->hard_names;
    if (!w.impossible)
        plan(&w, name, matches, index);
    if (!w.impossible && w.formula != BDD_FALSE) {
        order_pending(&w);
        bdd_id d = w.n_pending || w.n_soft ? demand(&w) : BDD_TRUE;
        if (w.n_soft && d > BDD_TRUE && all_needed(&w, d))
            d = BDD_TRUE;
        if (d != BDD_FALSE)
            key.site = json_site(g, w.hard, w.n_hard, w.soft, w.n_soft, d);
        if (key.site != NO_SCHEMA && !json_satisfiable(g, key.site))
            key.site = NO_SCHEMA;
    }
    key.formula_after = w.formula;
    key.tracks_after = w.decided ? gr_vector(g, w.tracks, w.n_tracks) : tracks;
    key.pending = gr_vector(g, w.pending, w.n_pending);
out:
    di_free(w.tracks);
    di_free(w.used);
    di_free(w.hard);
    di_free(w.soft);
    di_free(w.pending);
    if (key.site == NO_SCHEMA && g->assuming != assumed && g->building)
        return &none; /* rests on a guess: not kept */
    if (!gr_grow(g, (void **)&g->edges, &g->cap_edges, g->n_edges + 1, sizeof *g->edges))
        return &none;
    at = find_edge(g, &key);
    key.chain = 0;
    g->edges[g->n_edges++] = key;
    *at = (uint32_t)g->n_edges; /* `at` may lie in an edge: it was found behind the growth */
    return g->edges + g->n_edges - 1;
}

void json_replace(struct di_grammar *g, bdd_id *formula, uint32_t *tracks, uint32_t var, bdd_id f)
{
    uint32_t n = gr_count(g, *tracks), few[64], *v = few;
    *formula = bdd_replace(&g->bdd, *formula, var, f);
    if (!n)
        return;
    if (n > 64 && !(v = di_malloc(n * sizeof *v))) {
        g->out_of_memory = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        v[i] = bdd_replace(&g->bdd, gr_items(g, *tracks)[i], var, f);
    *tracks = gr_vector(g, v, n);
    if (v != few)
        di_free(v);
}

static bdd_id with_outcomes(struct di_grammar *g, bdd_id f, uint32_t n_soft)
{
    for (uint32_t i = 0; i < n_soft && f > BDD_TRUE; i++)
        f = bdd_set(&g->bdd, f, OUTCOMES + i, g->outcome[i]);
    return f;
}

void json_after_value(struct di_grammar *g, struct typed_site *t, const struct edge *edge, bdd_id *formula, uint32_t *tracks,
                      uint32_t *counts)
{
    struct edge e = *edge;
    uint32_t n = gr_count(g, e.pending), n_soft = gr_count(g, g->sites[e.site].soft);
    for (uint32_t k = 0; k < n; k += 3) {
        const uint32_t *p = gr_items(g, e.pending) + k;
        uint32_t var = p[0], kind = p[1];
        bdd_id f = with_outcomes(g, p[2], n_soft);
        if (kind == PENDING_REPLACE) {
            json_replace(g, formula, tracks, var, f);
        } else if (f == BDD_TRUE) {
            const struct schema *s = g->schemas.v + t->atoms[var].schema;
            uint32_t which = 0, values[64], total = gr_count(g, *counts),
                     most = s->max_contains == RX_MANY ? s->min_contains : s->max_contains + 1;
            for (uint32_t i = 0; i < var; i++)
                which += t->atoms[i].kind == ATOM_CONTAINS;
            if (which >= 64) {
                g->over = "64 contains in one array";
                return;
            }
            memset(values, 0, sizeof values);
            if (total)
                memcpy(values, gr_items(g, *counts), total * sizeof *values);
            values[which] += values[which] < most;
            *counts = gr_vector(g, values, which + 1 > total ? which + 1 : total);
            if (s->max_contains == RX_MANY && values[which] >= s->min_contains)
                json_replace(g, formula, tracks, var, BDD_TRUE);
            else if (s->max_contains != RX_MANY && values[which] > s->max_contains)
                json_replace(g, formula, tracks, var, BDD_FALSE);
        }
    }
}
