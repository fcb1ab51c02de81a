/* Sites: what is asked about a value. A typed site is the same for values of one type, where every assertion has become an atom (a variable
 * of a diagram) and what must hold anyway is taken out of the formula. */
#include "grammar/impl.h"

#include <stdlib.h>

#define MAX_ATOMS 4096
#define MAX_REQUIRED 300 /* values inside each other that a value needs */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static size_t unique(uint32_t *v, size_t n)
{
    size_t kept = 0;
    if (n)
        qsort(v, n, sizeof *v, by_number);
    for (size_t i = 0; i < n; i++)
        if (!kept || v[kept - 1] != v[i])
            v[kept++] = v[i];
    return kept;
}

uint32_t json_site(struct di_grammar *g, uint32_t *hard, size_t n_hard, uint32_t *soft, size_t n_soft, bdd_id demand)
{
    n_hard = unique(hard, n_hard);
    uint32_t h = gr_vector(g, hard, n_hard), s = gr_vector(g, soft, n_soft);
    uint64_t hash = ((uint64_t)h * 0x9E3779B97F4A7C15u ^ s) * 0xD6E8FEB86659FD93u ^ demand * 0x9E3779B97F4A7C15u;
    if (!g->site_heads) {
        g->site_heads = di_calloc(1024, sizeof *g->site_heads);
        g->site_mask = 1023;
        if (!g->site_heads) {
            g->out_of_memory = true;
            return NO_SCHEMA;
        }
    }
    uint32_t *head = g->site_heads + (hash >> 32 & g->site_mask);
    for (uint32_t i = *head; i; i = g->sites[i - 1].chain)
        if (g->sites[i - 1].hard == h && g->sites[i - 1].soft == s && g->sites[i - 1].demand == demand)
            return i - 1;
    if (!gr_grow(g, (void **)&g->sites, &g->cap_sites, g->n_sites + 1, sizeof *g->sites))
        return NO_SCHEMA;
    g->sites[g->n_sites] = (struct site){.hard = h, .soft = s, .demand = demand, .chain = *head};
    *head = (uint32_t)g->n_sites + 1;
    return (uint32_t)g->n_sites++;
}

/* ---- definitions ---- */

struct build {
    struct di_grammar *g;
    unsigned type; /* bit */
    struct atom *atoms;
    size_t n, cap;
    struct name *names;
    size_t n_names, cap_names;
    rx_id *patterns;
    size_t n_patterns, cap_patterns;
    bdd_id *conditions; /* of evaluators */
    struct evaluator *evaluators;
    size_t n_evaluators, cap_evaluators, cap_conditions;
};

static bdd_id atom(struct build *b, enum atom_kind kind, uint32_t schema, uint32_t index, struct di_str name)
{
    if (kind == ATOM_PRESENT)
        for (size_t i = 0; i < b->n; i++)
            if (b->atoms[i].kind == kind && di_str_eq(b->atoms[i].name, name))
                return bdd_var(&b->g->bdd, (uint32_t)i);
    if (b->n >= MAX_ATOMS) {
        b->g->over = "4096 assertions about one value";
        return BDD_FALSE;
    }
    if (!gr_grow(b->g, (void **)&b->atoms, &b->cap, b->n + 1, sizeof *b->atoms))
        return BDD_FALSE;
    b->atoms[b->n] = (struct atom){.kind = (uint8_t)kind, .schema = schema, .index = index, .name = name};
    return bdd_var(&b->g->bdd, (uint32_t)b->n++);
}

static void add_name(struct build *b, struct di_str text)
{
    if (gr_grow(b->g, (void **)&b->names, &b->cap_names, b->n_names + 1, sizeof *b->names)) {
        b->names[b->n_names] = (struct name){.text = text, .order = (uint32_t)b->n_names};
        b->n_names++;
    }
}

static void add_pattern(struct build *b, rx_id id)
{
    for (size_t i = 0; i < b->n_patterns; i++)
        if (b->patterns[i] == id)
            return;
    if (b->n_patterns >= 62)
        b->g->over = "62 patterns of names in one object";
    else if (gr_grow(b->g, (void **)&b->patterns, &b->cap_patterns, b->n_patterns + 1, sizeof *b->patterns))
        b->patterns[b->n_patterns++] = id;
}

static bdd_id define(struct build *b, uint32_t id);

static rx_id of_length(struct rx_pool *rx, rx_id text, uint32_t min, uint32_t max)
{
    if (min > max)
        return RX_NONE;
    return min || max != RX_MANY ? rx_and(rx, text, rx_rep(rx, rx->any_char, min, max)) : text;
}

/* Texts that satisfy a schema, as an expression (for propertyNames). */
static rx_id texts_of_formula(struct build *b, bdd_id f)
{
    struct rx_pool *rx = &b->g->rx;
    if (f == BDD_FALSE)
        return RX_NONE;
    if (f == BDD_TRUE)
        return rx->any_text;
    const struct bdd_node n = b->g->bdd.nodes[f];
    const struct schema *s = b->g->schemas.v + b->atoms[n.var].schema;
    rx_id text = s->has_text ? s->text : rx->any_text;
    text = of_length(rx, text, s->min_length, s->max_length);
    rx_id high = texts_of_formula(b, n.high), low = texts_of_formula(b, n.low);
    if (low == RX_NONE)
        return high == RX_NONE ? RX_NONE : rx_and(rx, text, high);
    return rx_or(rx, high == RX_NONE ? RX_NONE : rx_and(rx, text, high), rx_and(rx, rx_not(rx, text), low));
}

static rx_id texts_of(struct di_grammar *g, uint32_t schema)
{
    struct build b = {.g = g, .type = T_STRING};
    uint32_t *defined = g->defined;
    bdd_id *definitions = g->definitions;
    size_t caps[2] = {g->cap_defined, g->cap_definitions};
    g->defined = NULL; /* a definition of its own */
    g->definitions = NULL;
    g->cap_defined = g->cap_definitions = 0;
    bdd_id f = define(&b, schema);
    rx_id id = texts_of_formula(&b, f);
    di_free(g->defined);
    di_free(g->definitions);
    g->defined = defined;
    g->definitions = definitions;
    g->cap_defined = caps[0];
    g->cap_definitions = caps[1];
    di_free(b.atoms);
    return id;
}

/* Schemas in place below `id` that evaluate members or items, and under which condition. */
static void find_evaluators(struct build *b, uint32_t id, bdd_id condition, bool own, unsigned depth)
{
    struct di_grammar *g = b->g;
    const struct schema s = g->schemas.v[id];
    if (id <= SCHEMA_NONE || condition == BDD_FALSE || depth > 100)
        return;
    if (own && gr_grow(g, (void **)&b->evaluators, &b->cap_evaluators, b->n_evaluators + 1, sizeof *b->evaluators) &&
        gr_grow(g, (void **)&b->conditions, &b->cap_conditions, b->n_evaluators + 1, sizeof *b->conditions)) {
        b->evaluators[b->n_evaluators].schema = id;
        b->conditions[b->n_evaluators++] = condition;
    }
    const struct span lists[] = {s.all_of, s.any_of, s.one_of};
    for (int k = 0; k < 3; k++)
        for (uint32_t i = 0; i < lists[k].count; i++) {
            uint32_t sub = g->schemas.words[lists[k].first + i];
            find_evaluators(b, sub, bdd_and(&g->bdd, condition, define(b, sub)), true, depth + 1);
        }
    if (s.if_ != NO_SCHEMA) {
        bdd_id yes = define(b, s.if_);
        find_evaluators(b, s.if_, bdd_and(&g->bdd, condition, yes), true, depth + 1);
        if (s.then_ != NO_SCHEMA)
            find_evaluators(b, s.then_, bdd_and(&g->bdd, condition, bdd_and(&g->bdd, yes, define(b, s.then_))), true, depth + 1);
        if (s.else_ != NO_SCHEMA)
            find_evaluators(b, s.else_, bdd_and(&g->bdd, condition, bdd_and(&g->bdd, bdd_not(&g->bdd, yes), define(b, s.else_))), true,
                            depth + 1);
    }
    for (uint32_t i = 0; i < s.n_dependencies; i++)
        if (s.dependencies[i].schema != NO_SCHEMA) {
            bdd_id there = atom(b, ATOM_PRESENT, id, 0, s.dependencies[i].name);
            find_evaluators(b, s.dependencies[i].schema,
                            bdd_and(&g->bdd, condition, bdd_and(&g->bdd, there, define(b, s.dependencies[i].schema))), true, depth + 1);
        }
}

static bdd_id define_rest(struct build *b, enum atom_kind kind, uint32_t id)
{
    bdd_id f = atom(b, kind, id, 0, (struct di_str){0});
    size_t at = b->n - 1, first = b->n_evaluators;
    find_evaluators(b, id, BDD_TRUE, false, 0);
    b->atoms[at].index = (uint32_t)first;
    b->atoms[at].count = (uint32_t)(b->n_evaluators - first);
    return f;
}

/* The assertions of one schema about values of the type, without its applicators. */
static bdd_id define_own(struct build *b, uint32_t id)
{
    const struct schema *s = b->g->schemas.v + id;
    struct bdd_pool *bdd = &b->g->bdd;
    struct di_str none = {0};
    bdd_id f = BDD_TRUE;
#define NEED(kind) (f = bdd_and(bdd, f, atom(b, kind, id, 0, none)))
    switch (b->type) {
    case T_STRING:
        if (s->has_text || s->min_length || s->max_length != RX_MANY)
            NEED(ATOM_TEXT);
        break;
    case T_NUMBER:
        if (s->number)
            NEED(ATOM_NUMBER);
        break;
    case T_ARRAY:
        if (s->prefix.count || (s->items != NO_SCHEMA && s->items != SCHEMA_ANY))
            NEED(ATOM_ITEMS);
        if (s->min_items || s->max_items != RX_MANY)
            NEED(ATOM_ITEM_COUNT);
        if (s->contains != NO_SCHEMA && (s->min_contains || s->max_contains != RX_MANY))
            NEED(ATOM_CONTAINS);
        if (s->unique)
            NEED(ATOM_UNIQUE);
        if (s->other_items != NO_SCHEMA && s->other_items != SCHEMA_ANY)
            f = bdd_and(bdd, f, define_rest(b, ATOM_REST_ITEMS, id));
        break;
    case T_OBJECT: {
        bool assert_members = s->additional != NO_SCHEMA && s->additional != SCHEMA_ANY;
        for (uint32_t i = 0; i < s->n_properties; i++) {
            add_name(b, s->properties[i].name);
            assert_members |= s->properties[i].schema != SCHEMA_ANY;
        }
        for (uint32_t i = 0; i < s->n_patterns; i++) {
            add_pattern(b, s->patterns[i].pattern);
            assert_members |= s->patterns[i].schema != SCHEMA_ANY;
        }
        for (uint32_t i = 0; i < s->n_required; i++)
            add_name(b, s->required[i]);
        if (assert_members)
            NEED(ATOM_MEMBERS);
        if (s->names != NO_SCHEMA && s->names != SCHEMA_ANY) {
            rx_id texts = texts_of(b->g, s->names);
            s = b->g->schemas.v + id;
            add_pattern(b, texts);
            NEED(ATOM_NAMES);
            b->atoms[b->n - 1].count = texts; /* an expression, until patterns are numbered */
        }
        if (s->min_properties || s->max_properties != RX_MANY)
            NEED(ATOM_COUNT);
        if (s->n_required)
            NEED(ATOM_REQUIRED);
        for (uint32_t i = 0; i < s->n_dependencies; i++) {
            const struct dependency *d = s->dependencies + i;
            add_name(b, d->name);
            for (uint32_t k = 0; k < d->n_names; k++)
                add_name(b, d->names[k]);
            if (d->n_names)
                f = bdd_and(bdd, f, atom(b, ATOM_NEEDS, id, i, d->name));
            if (d->schema != NO_SCHEMA) {
                bdd_id there = atom(b, ATOM_PRESENT, id, i, d->name), what = define(b, d->schema);
                s = b->g->schemas.v + id;
                f = bdd_and(bdd, f, bdd_ite(bdd, there, what, BDD_TRUE));
            }
        }
        if (s->other_properties != NO_SCHEMA && s->other_properties != SCHEMA_ANY)
            f = bdd_and(bdd, f, define_rest(b, ATOM_REST, id));
        break;
    }
    default: break;
    }
    return f;
#undef NEED
}

static bdd_id define(struct build *b, uint32_t id)
{
    struct di_grammar *g = b->g;
    const struct schema *s = g->schemas.v + id;
    const uint32_t *words = g->schemas.words;
    struct bdd_pool *bdd = &g->bdd;
    if (!(s->types & b->type))
        return BDD_FALSE;
    if (id == SCHEMA_ANY)
        return BDD_TRUE;
    if (g->cap_defined < g->schemas.n || g->cap_definitions < g->schemas.n) {
        size_t old = g->cap_defined;
        if (!gr_grow(g, (void **)&g->defined, &g->cap_defined, g->schemas.n, sizeof *g->defined) ||
            !gr_grow(g, (void **)&g->definitions, &g->cap_definitions, g->schemas.n, sizeof *g->definitions))
            return BDD_FALSE;
        memset(g->defined + old, 0, (g->cap_defined - old) * sizeof *g->defined);
    }
    if (g->defined[id] == g->stamp) {
        if (g->definitions[id] == UINT32_MAX)
            g->over = "a schema that applies itself to the same value without end";
        return g->definitions[id] == UINT32_MAX ? BDD_FALSE : g->definitions[id];
    }
    if (++g->depth > 600) {
        g->over = "600 schemas inside each other for one value";
        g->depth--;
        return BDD_FALSE;
    }
    g->defined[id] = g->stamp;
    g->definitions[id] = UINT32_MAX;
    bdd_id f = define_own(b, id);
    for (uint32_t i = 0; i < s->all_of.count && f != BDD_FALSE; i++)
        f = bdd_and(bdd, f, define(b, words[s->all_of.first + i]));
    if (s->any_of.count && f != BDD_FALSE) {
        bdd_id any = BDD_FALSE;
        for (uint32_t i = 0; i < s->any_of.count && any != BDD_TRUE; i++)
            any = bdd_or(bdd, any, define(b, words[s->any_of.first + i]));
        f = bdd_and(bdd, f, any);
    }
    if (s->one_of.count && f != BDD_FALSE) {
        bdd_id none = BDD_TRUE, one = BDD_FALSE;
        for (uint32_t i = 0; i < s->one_of.count; i++) {
            bdd_id d = define(b, words[s->one_of.first + i]);
            one = bdd_ite(bdd, d, none, one);
            none = bdd_and(bdd, none, bdd_not(bdd, d));
        }
        f = bdd_and(bdd, f, one);
    }
    if (s->not_ != NO_SCHEMA && f != BDD_FALSE)
        f = bdd_and(bdd, f, bdd_not(bdd, define(b, s->not_)));
    if (s->if_ != NO_SCHEMA && (s->then_ != NO_SCHEMA || s->else_ != NO_SCHEMA) && f != BDD_FALSE) {
        bdd_id yes = define(b, s->if_), then = s->then_ == NO_SCHEMA ? BDD_TRUE : define(b, s->then_),
               other = s->else_ == NO_SCHEMA ? BDD_TRUE : define(b, s->else_);
        f = bdd_and(bdd, f, bdd_ite(bdd, yes, then, other));
    }
    g->definitions[id] = f;
    g->depth--;
    return f;
}

/* ---- typed sites ---- */

static int by_text(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    size_t n = x->text.n < y->text.n ? x->text.n : y->text.n;
    int c = n ? memcmp(x->text.p, y->text.p, n) : 0;
    if (c == 0)
        c = (x->text.n > y->text.n) - (x->text.n < y->text.n);
    return c ? c : (x->order > y->order) - (x->order < y->order);
}

static uint32_t find_name(const struct typed_site *t, struct di_str text)
{
    uint32_t low = 0, high = t->n_names;
    struct name key = {.text = text};
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (by_text(&(struct name){.text = t->names[mid].text}, &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static uint64_t match_patterns(struct di_grammar *g, const struct typed_site *t, struct di_str text)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < t->n_patterns; i++) {
        rx_id at = t->patterns[i];
        for (size_t k = 0; k < text.n && at != RX_NONE; k++)
            at = rx_step(&g->rx, at, (unsigned char)text.p[k]);
        bits |= (uint64_t)rx_accepts(&g->rx, at) << i;
    }
    return bits;
}

static void limit_to(struct typed_site *t, uint32_t min, uint32_t max)
{
    t->min = min > t->min ? min : t->min;
    t->max = max < t->max ? max : t->max;
}

static bool finish_strings(struct di_grammar *g, struct typed_site *t)
{
    uint32_t n = 1;
    rx_id *parts = di_arena_alloc(&g->arena, (t->n_atoms + 1) * sizeof *parts);
    t->component = di_arena_alloc(&g->arena, (t->n_atoms + 1) * sizeof *t->component);
    if (!parts || !t->component)
        return false;
    t->text = g->rx.any_text;
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        const struct schema *s = g->schemas.v + t->atoms[i].schema;
        rx_id text = s->has_text ? s->text : g->rx.any_text;
        if (t->hard[i]) {
            t->text = rx_and(&g->rx, t->text, text);
            limit_to(t, s->min_length, s->max_length);
            continue;
        }
        t->component[n] = i;
        parts[n++] = of_length(&g->rx, text, s->min_length, s->max_length);
    }
    bool counted = t->min || t->max != RX_MANY;
    const struct rx_node *x = g->rx.nodes + t->text;
    if (counted && x->min_chars >= t->min && x->max_chars <= t->max && x->max_chars != RX_MANY)
        t->min = 0, t->max = RX_MANY, counted = false; /* lengths that the expression has anyway */
    if (t->min > t->max) {
        t->text = RX_NONE;
    } else if (counted && (t->text != g->rx.any_text || n > 1)) {
        t->text = rx_and(&g->rx, t->text, rx_rep(&g->rx, g->rx.any_char, t->min, t->max));
        t->min = 0;
        t->max = RX_MANY;
    }
    if (!rx_live(&g->rx, t->text))
        t->text = RX_NONE;
    parts[0] = t->text;
    if (n > 1 && t->text != RX_NONE) {
        t->product = product_create(g, parts, n);
        if (!t->product)
            return false;
        t->possible = json_text_live(g, t, 0);
    }
    t->possible &= t->text != RX_NONE;
    return true;
}

static bool finish_objects(struct di_grammar *g, struct typed_site *t, struct build *b)
{
    size_t kept = 0;
    if (b->n_names)
        qsort(b->names, b->n_names, sizeof *b->names, by_text);
    for (size_t i = 0; i < b->n_names; i++)
        if (!kept || !di_str_eq(b->names[kept - 1].text, b->names[i].text))
            b->names[kept++] = b->names[i];
    t->n_names = (uint32_t)kept;
    t->names = di_arena_alloc(&g->arena, (kept + 1) * sizeof *t->names);
    t->required = di_arena_alloc(&g->arena, kept + 1);
    t->n_patterns = (uint32_t)b->n_patterns;
    t->patterns = di_arena_alloc(&g->arena, (b->n_patterns + 1) * sizeof *t->patterns);
    if (!t->names || !t->required || !t->patterns)
        return false;
    memset(t->required, 0, kept + 1);
    if (kept)
        memcpy(t->names, b->names, kept * sizeof *t->names);
    if (t->n_patterns)
        memcpy(t->patterns, b->patterns, t->n_patterns * sizeof *t->patterns);
    for (uint32_t i = 0; i < t->n_names; i++)
        t->names[i].matches = match_patterns(g, t, t->names[i].text);
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        struct atom *a = t->atoms + i;
        const struct schema *s = g->schemas.v + a->schema;
        if (a->kind == ATOM_PRESENT)
            a->index = find_name(t, a->name);
        if (a->kind == ATOM_NAMES) {
            uint32_t k = 0;
            while (k < t->n_patterns && t->patterns[k] != a->count)
                k++;
            a->index = k;
            if (t->hard[i])
                t->hard_names |= (uint64_t)1 << k;
        }
        if (a->kind == ATOM_COUNT && t->hard[i])
            limit_to(t, s->min_properties, s->max_properties);
        if (a->kind == ATOM_REQUIRED && t->hard[i])
            for (uint32_t k = 0; k < s->n_required; k++) {
                uint8_t *r = &t->required[find_name(t, s->required[k])];
                t->n_required += !*r;
                *r = 1;
            }
    }
    if (t->n_patterns && !(t->product = product_create(g, t->patterns, t->n_patterns)))
        return false;
    t->possible &= t->min <= t->max && t->n_required <= t->max;
    return true;
}

static void finish_arrays(struct di_grammar *g, struct typed_site *t)
{
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        const struct schema *s = g->schemas.v + t->atoms[i].schema;
        if (t->atoms[i].kind == ATOM_ITEM_COUNT && t->hard[i])
            limit_to(t, s->min_items, s->max_items);
        if (t->atoms[i].kind == ATOM_UNIQUE)
            t->capture = 1;
        if (s->prefix.count > t->n_prefix)
            t->n_prefix = s->prefix.count;
    }
    for (uint32_t i = 0; i < t->n_evaluators; i++) {
        uint32_t n = g->schemas.v[t->evaluators[i].schema].prefix.count;
        t->n_prefix = n > t->n_prefix ? n : t->n_prefix;
    }
    t->possible &= t->min <= t->max;
}

static struct typed_site *build_typed(struct di_grammar *g, uint32_t site, unsigned type)
{
    struct typed_site *t = di_arena_alloc(&g->arena, sizeof *t);
    struct build b = {.g = g, .type = 1u << type};
    struct site x = g->sites[site];
    uint32_t n_soft = gr_count(g, x.soft), n_hard = gr_count(g, x.hard);
    bdd_id *tracks = NULL;
    if (!t)
        goto failed;
    *t = (struct typed_site){.site = site, .type = (uint8_t)type, .n_soft = n_soft, .max = RX_MANY};
    g->stamp++;
    bdd_id f = BDD_TRUE;
    for (uint32_t i = 0; i < n_hard && f != BDD_FALSE; i++)
        f = bdd_and(&g->bdd, f, define(&b, gr_items(g, x.hard)[i]));
    bdd_id *soft = di_malloc((n_soft + 1) * sizeof *soft);
    if (!soft)
        goto failed;
    for (uint32_t i = 0; i < n_soft; i++)
        soft[i] = define(&b, gr_items(g, x.soft)[i]);
    f = bdd_and(&g->bdd, f, bdd_compose(&g->bdd, x.demand, soft));
    tracks = di_malloc((n_soft + b.n_evaluators + 1) * sizeof *tracks);
    t->atoms = di_arena_alloc(&g->arena, (b.n + 1) * sizeof *t->atoms);
    t->hard = di_arena_alloc(&g->arena, b.n + 1);
    t->evaluators = di_arena_alloc(&g->arena, (b.n_evaluators + 1) * sizeof *t->evaluators);
    if (!tracks || !t->atoms || !t->hard || !t->evaluators) {
        di_free(soft);
        goto failed;
    }
    memcpy(tracks, soft, n_soft * sizeof *soft);
    di_free(soft);
    for (size_t i = 0; i < b.n_evaluators; i++) {
        tracks[n_soft + i] = b.conditions[i];
        t->evaluators[i] = (struct evaluator){b.evaluators[i].schema, (uint32_t)(n_soft + i)};
    }
    size_t n_tracks = n_soft + b.n_evaluators;
    t->n_evaluators = (uint32_t)b.n_evaluators;
    t->n_atoms = (uint32_t)b.n;
    if (b.n)
        memcpy(t->atoms, b.atoms, b.n * sizeof *b.atoms);
    memset(t->hard, 0, b.n + 1);
    for (uint32_t i = 0; i < t->n_atoms && f > BDD_TRUE; i++)
        if (t->atoms[i].kind != ATOM_REST && t->atoms[i].kind != ATOM_REST_ITEMS && t->atoms[i].kind != ATOM_CONTAINS &&
            bdd_set(&g->bdd, f, i, false) == BDD_FALSE) {
            t->hard[i] = true;
            f = bdd_set(&g->bdd, f, i, true);
            for (size_t k = 0; k < n_tracks; k++)
                tracks[k] = bdd_set(&g->bdd, tracks[k], i, true);
        }
    t->formula = f;
    t->tracks = gr_vector(g, tracks, n_tracks);
    t->possible = f != BDD_FALSE;
    if (t->possible && type == 3 && !(t->numbers = numbers_create(g, t)))
        goto failed;
    if (t->possible && type == 3)
        t->possible = numbers_accept(g, t, UINT32_MAX);
    if (t->possible && type == 4 && !finish_strings(g, t))
        goto failed;
    if (t->possible && type == 5)
        finish_arrays(g, t);
    if (t->possible && type == 6 && !finish_objects(g, t, &b))
        goto failed;
    goto out;
failed:
    g->out_of_memory |= !g->over;
    t = NULL;
out:
    di_free(tracks);
    di_free(b.atoms);
    di_free(b.names);
    di_free(b.patterns);
    di_free(b.conditions);
    di_free(b.evaluators);
    return t;
}

struct typed_site *json_typed(struct di_grammar *g, uint32_t site, unsigned type, uint32_t *number)
{
    uint32_t known = g->sites[site].typed[type];
    if (!known) {
        struct typed_site *t = build_typed(g, site, type);
        if (!t || g->over || bdd_failed(&g->bdd) || rx_failed(&g->rx) ||
            !gr_grow(g, (void **)&g->typed, &g->cap_typed, g->n_typed + 1, sizeof *g->typed))
            return NULL;
        g->typed[g->n_typed++] = t;
        known = g->sites[site].typed[type] = (uint32_t)g->n_typed;
    }
    if (number)
        *number = known - 1;
    return g->typed[known - 1];
}

/* ---- satisfiability ---- */

/* Are there as many names as there must be members? */
static bool has_names(struct di_grammar *g, uint32_t number)
{
    const struct typed_site *t = g->typed[number];
    uint32_t count = 0;
    if (t->min <= t->n_required || t->product)
        return true; /* of names that match expressions there are many, or none at all */
    const struct edge *e = json_edge(g, number, t->formula, t->tracks, 0, false);
    if (e->site != NO_SCHEMA)
        return true;
    for (uint32_t i = 0; i < t->n_names && count < t->min; i++) {
        e = json_edge(g, number, t->formula, t->tracks, i, true);
        count += e->site != NO_SCHEMA;
    }
    return count >= t->min;
}

static bool object_satisfiable(struct di_grammar *g, uint32_t number)
{
    const struct typed_site *t = g->typed[number];
    if (!has_names(g, number))
        return false;
    for (uint32_t i = 0; i < t->n_names; i++)
        if (t->required[i]) {
            const struct edge *e = json_edge(g, number, t->formula, t->tracks, i, true);
            if (!e || e->site == NO_SCHEMA)
                return false;
        }
    return true;
}

static bool array_satisfiable(struct di_grammar *g, uint32_t number)
{
    const struct typed_site *t = g->typed[number];
    for (uint32_t i = 0; i < t->min && i <= t->n_prefix; i++) {
        const struct edge *e = json_edge(g, number, t->formula, t->tracks, i, false);
        if (!e || e->site == NO_SCHEMA)
            return false;
    }
    return true;
}

/* One round: what is being looked at, or was looked at in this round without success, counts as unsatisfiable. */
static bool try_satisfy(struct di_grammar *g, uint32_t site)
{
    struct site *x = g->sites + site;
    if (x->satisfiable)
        return x->satisfiable == 1;
    if (x->round == g->round || g->building >= MAX_REQUIRED) {
        g->too_deep |= x->round != g->round;
        g->assuming++;
        return false;
    }
    x->round = g->round;
    unsigned before = g->assuming;
    bool yes = false;
    g->building++;
    for (unsigned type = 0; type < N_TYPES && !yes; type++) {
        uint32_t number;
        const struct typed_site *t = json_typed(g, site, type, &number);
        yes = t && t->possible && (type != 6 || object_satisfiable(g, number)) && (type != 5 || array_satisfiable(g, number));
    }
    g->building--;
    if (yes || g->assuming == before)
        g->sites[site].satisfiable = yes ? 1 : 2;
    g->found += yes;
    return yes;
}

/* The least fixed point: a value that needs itself is none. A round that finds nothing new to be satisfiable is the last one. */
bool json_satisfiable(struct di_grammar *g, uint32_t site)
{
    bool yes;
    if (g->sites[site].satisfiable || g->building)
        return try_satisfy(g, site);
    do {
        g->round++;
        g->found = 0;
        yes = try_satisfy(g, site);
    } while (!yes && g->found && !g->over && !g->out_of_memory);
    g->sites[site].satisfiable = yes ? 1 : 2;
    return yes;
}

static uint32_t add(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

static uint32_t times(uint32_t n, uint32_t a)
{
    return a > UINT32_MAX / n ? UINT32_MAX : n * a;
}

uint32_t json_distance(struct di_grammar *g, uint32_t site)
{
    static const uint8_t words[] = {4, 5, 4};
    uint32_t best = UINT32_MAX;
    if (g->sites[site].distance)
        return g->sites[site].distance;
    if (g->measuring >= MAX_REQUIRED || !json_satisfiable(g, site))
        return UINT32_MAX;
    g->measuring++;
    g->sites[site].distance = UINT32_MAX; /* while it is computed: not through itself */
    for (unsigned type = 0; type < N_TYPES; type++) {
        uint32_t number, d = 0;
        const struct typed_site *t = json_typed(g, site, type, &number);
        if (!t || !t->possible)
            continue;
        if (type < 3)
            d = words[type];
        else if (type == 3)
            d = t->numbers->free ? 1 : 8;
        else if (type == 4)
            d = add(2, add(t->min, g->rx.nodes[t->text].min_chars));
        else
            d = 2;
        for (uint32_t i = 0, alike; type == 5 && i < t->min && d != UINT32_MAX; i += alike) {
            const struct edge *e = json_edge(g, number, t->formula, t->tracks, i < t->n_prefix ? i : t->n_prefix, false);
            alike = i < t->n_prefix ? 1 : t->min - i; /* behind the prefix they are one schema */
            d = e && e->site != NO_SCHEMA ? add(d, times(alike, add(1, json_distance(g, e->site)))) : UINT32_MAX;
        }
        for (uint32_t i = 0; type == 6 && i < t->n_names && d != UINT32_MAX; i++) {
            if (!t->required[i])
                continue;
            const struct edge *e = json_edge(g, number, t->formula, t->tracks, i, true);
            t = g->typed[number];
            d = e && e->site != NO_SCHEMA ? add(d, add((uint32_t)t->names[i].text.n + 4, json_distance(g, e->site))) : UINT32_MAX;
        }
        if (d > 2 && d != UINT32_MAX && (type == 5 || type == 6))
            d--; /* one separator less than members */
        best = d < best ? d : best;
    }
    g->measuring--;
    g->sites[site].distance = best == UINT32_MAX ? 0 : best;
    return best;
}
