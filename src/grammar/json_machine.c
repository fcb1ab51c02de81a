/* JSON documents as stacks of frames. A step looks at the frame on top only; when a value ends, its parent makes a new frame of itself. */
#include "grammar/impl.h"

enum {
    PHASE_OPEN,
    PHASE_KEY,
    PHASE_COLON,
    PHASE_AFTER
}; /* of objects: behind {, behind a comma, behind a key, behind a value; of arrays the 1st and 4th */
enum { FLAG_CAPTURE = 1, FLAG_BLIND = 2 }; /* bytes are kept for uniqueItems; a key ended while nothing was captured */
enum { BITS = 352 };

static const char *const words[] = {"null", "false", "true"};

static bool is_space(unsigned byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static state_id end_value(struct di_grammar *g, state_id parent, uint32_t capture);

/* ---- captured text ---- */

static uint32_t text_add(struct di_grammar *g, uint32_t text, unsigned byte)
{
    return g->strip ? 0 : gr_node(g, &(struct node){.kind = NODE_TEXT, .parent = text, .f = {byte, g->nodes[text].f[1] + 1}});
}

/* Bytes from `start` on, to an allocation of the caller's to free; NULL without memory. */
static char *text_copy(struct di_grammar *g, uint32_t text, uint32_t start, size_t *n)
{
    uint32_t length = text ? g->nodes[text].f[1] : 0;
    *n = length > start ? length - start : 0;
    char *to = di_malloc(*n + 1);
    if (!to) {
        g->out_of_memory = true;
        return NULL;
    }
    for (size_t i = *n; i-- > 0; text = g->nodes[text].parent)
        to[i] = (char)g->nodes[text].f[0];
    return to;
}

/* ---- sets of names ---- */

static bool bit_is_set(const struct di_grammar *g, uint32_t bits, uint32_t i)
{
    for (; bits && i >= BITS; i -= BITS)
        bits = g->nodes[bits].parent;
    return bits && g->nodes[bits].f[i / 32] >> (i % 32) & 1;
}

static uint32_t set_bit(struct di_grammar *g, uint32_t bits, uint32_t i)
{
    struct node n = {.kind = NODE_BITS};
    if (bits)
        n = g->nodes[bits];
    n.chain = 0;
    if (i >= BITS)
        n.parent = set_bit(g, n.parent, i - BITS);
    else
        n.f[i / 32] |= 1u << (i % 32);
    return gr_node(g, &n);
}

/* ---- values ---- */

static state_id value_state(struct di_grammar *g, state_id parent, uint32_t site, bool capture, uint32_t text)
{
    return gr_node(
        g, &(struct node){.kind = NODE_VALUE, .parent = parent, .flags = capture ? FLAG_CAPTURE : 0, .f = {site, [F_CAPTURE] = text}});
}

state_id json_start(struct di_grammar *g, uint32_t schema)
{
    uint32_t site = json_site(g, &schema, schema != SCHEMA_ANY, NULL, 0, BDD_TRUE);
    state_id done = gr_node(g, &(struct node){.kind = NODE_DONE});
    return site == NO_SCHEMA || !json_satisfiable(g, site) ? 0 : value_state(g, done, site, false, 0);
}

static bool too_deep(struct di_grammar *g, state_id s)
{
    return g->nodes[s].f[12] >= g->options.limits.depth;
}

static state_id begin_value(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node v = g->nodes[s];
    uint32_t number, capture = v.f[F_CAPTURE];
    unsigned type = byte == 'n'                                   ? 0
                    : byte == 'f'                                 ? 1
                    : byte == 't'                                 ? 2
                    : byte == '-' || (byte >= '0' && byte <= '9') ? 3
                    : byte == '"'                                 ? 4
                    : byte == '['                                 ? 5
                                                                  : 6;
    if (type == 6 && byte != '{')
        return 0;
    struct typed_site *t = json_typed(g, v.f[F_SITE], type, &number);
    if (!t || !t->possible)
        return 0;
    if (v.flags & FLAG_CAPTURE)
        capture = text_add(g, capture, byte);
    struct node n = {.parent = v.parent, .flags = v.flags, .f = {[F_SITE] = number, [F_CAPTURE] = capture}};
    n.f[12] = g->nodes[v.parent].f[12];
    switch (type) {
    case 3:
        n.kind = NODE_NUMBER;
        n.f[1] = numbers_step(g, t, 1, byte);
        return n.f[1] ? gr_node(g, &n) : 0;
    case 4:
        n.kind = NODE_STRING;
        n.f[F_RX] = t->product ? 0 : t->text;
        return gr_node(g, &n);
    case 5:
    case 6:
        if (too_deep(g, v.parent))
            return 0;
        n.kind = type == 5 ? NODE_ARRAY : NODE_OBJECT;
        n.phase = PHASE_OPEN;
        n.f[F_FORMULA] = t->formula;
        n.f[F_TRACKS] = t->tracks;
        n.f[12]++;
        if (t->capture && !(n.flags & FLAG_CAPTURE)) {
            n.flags |= FLAG_CAPTURE;
            n.f[F_CAPTURE] = 0;
        }
        return gr_node(g, &n);
    default:
        n.kind = NODE_WORD;
        n.f[1] = 1;
        n.f[2] = number;
        n.f[0] = type;
        return gr_node(g, &n);
    }
}

/* Outcomes of a value for which all atoms are decided. */
static void set_outcomes(struct di_grammar *g, const struct typed_site *t, const bool *atoms)
{
    for (uint32_t i = 0; i < t->n_soft; i++)
        g->outcome[i] = bdd_value(&g->bdd, gr_items(g, t->tracks)[i], atoms);
}

static state_id step_word(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node n = g->nodes[s];
    const char *word = words[n.f[0]];
    if (byte != (unsigned char)word[n.f[1]])
        return 0;
    if (n.flags & FLAG_CAPTURE)
        n.f[F_CAPTURE] = text_add(g, n.f[F_CAPTURE], byte);
    if (word[++n.f[1]])
        return gr_node(g, &n);
    set_outcomes(g, g->typed[n.f[2]], NULL);
    return end_value(g, n.parent, n.f[F_CAPTURE]);
}

static state_id end_number(struct di_grammar *g, state_id s)
{
    struct node n = g->nodes[s];
    struct typed_site *t = g->typed[n.f[F_SITE]];
    if (!numbers_accept(g, t, n.f[1]))
        return 0;
    if (t->n_soft) {
        bool *atoms = di_calloc(t->n_atoms + 1, sizeof *atoms);
        if (!atoms) {
            g->out_of_memory = true;
            return 0;
        }
        numbers_assign(t, n.f[1], atoms);
        set_outcomes(g, t, atoms);
        di_free(atoms);
    }
    return end_value(g, n.parent, n.f[F_CAPTURE]);
}

static state_id step_number(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node n = g->nodes[s];
    struct typed_site *t = g->typed[n.f[F_SITE]];
    uint32_t to = numbers_step(g, t, n.f[1], byte);
    if (to) {
        n.f[1] = to;
        if (n.flags & FLAG_CAPTURE)
            n.f[F_CAPTURE] = text_add(g, n.f[F_CAPTURE], byte);
        return gr_node(g, &n);
    }
    if (!is_space(byte) && byte != ',' && byte != ']' && byte != '}')
        return 0;
    state_id after = end_number(g, s);
    return after ? json_step(g, after, byte) : 0;
}

/* ---- strings ---- */

static void assign_texts(struct di_grammar *g, const struct typed_site *t, uint32_t state, bool *atoms)
{
    for (uint32_t i = 0; i < t->n_atoms; i++)
        atoms[i] = t->hard[i];
    for (uint32_t i = 1; i < t->product->n; i++)
        atoms[t->component[i]] = rx_accepts(&g->rx, t->product->states[(size_t)state * t->product->n + i]);
}

static bool accept_texts(struct di_grammar *g, struct product *p, uint32_t state, void *ctx)
{
    const struct typed_site *t = ctx;
    bool few[128] = {false}, *atoms = few, yes;
    if (!rx_accepts(&g->rx, p->states[(size_t)state * p->n]))
        return false;
    if (t->n_atoms > 128 && !(atoms = di_malloc(t->n_atoms * sizeof *atoms))) {
        g->out_of_memory = true;
        return false;
    }
    assign_texts(g, t, state, atoms);
    yes = bdd_value(&g->bdd, t->formula, atoms);
    if (atoms != few)
        di_free(atoms);
    return yes;
}

bool json_text_live(struct di_grammar *g, struct typed_site *t, uint32_t state)
{
    return t->product->states[(size_t)state * t->product->n] != RX_NONE &&
           product_live(g, t->product, state, t->formula, t->tracks, accept_texts, t);
}

bool json_text_accept(struct di_grammar *g, struct typed_site *t, uint32_t state)
{
    return accept_texts(g, t->product, state, t);
}

/* One byte of a string's content (not of its spelling). False: dead. */
static bool content_byte(struct di_grammar *g, struct node *n, unsigned byte)
{
    struct typed_site *t = g->typed[n->f[F_SITE]];
    if (t->product) {
        n->f[F_RX] = product_step(g, t->product, n->f[F_RX], byte);
        if (!json_text_live(g, t, n->f[F_RX]))
            return false;
    } else {
        n->f[F_RX] = rx_step(&g->rx, n->f[F_RX], byte);
        if (n->f[F_RX] == RX_NONE)
            return false;
    }
    if (byte < 0x80 || byte > 0xBF) { /* a character begins */
        if (n->f[F_COUNT] >= t->max)
            return false;
        n->f[F_COUNT] += t->max != RX_MANY || n->f[F_COUNT] < t->min;
    }
    return true;
}

/* Names from `low` to `high` that go on with a byte. */
static void narrow(const struct typed_site *t, struct node *n, unsigned byte)
{
    uint32_t low = n->f[F_LOW], high = n->f[F_HIGH], depth = n->f[F_DEPTH];
    for (uint32_t a = low, b = high; a < b;) { /* the first whose byte is not smaller */
        uint32_t mid = (a + b) / 2;
        struct di_str x = t->names[mid].text;
        if (x.n <= depth || (unsigned char)x.p[depth] < byte)
            low = a = mid + 1;
        else
            b = mid;
    }
    for (uint32_t a = low, b = high; a < b;) { /* the first whose byte is larger */
        uint32_t mid = (a + b) / 2;
        struct di_str x = t->names[mid].text;
        if (x.n <= depth || (unsigned char)x.p[depth] <= byte)
            a = mid + 1;
        else
            high = b = mid;
    }
    n->f[F_LOW] = low < high ? low : 0;
    n->f[F_HIGH] = low < high ? high : 0;
    n->f[F_DEPTH] = low < high ? depth + 1 : 0;
}

/* ---- keys ---- */

/* The number of a name that some schema of the object knows. */
static uint32_t number_of(const struct typed_site *t, struct di_str text)
{
    uint32_t k = 0;
    while (k < t->n_names && !di_str_eq(t->names[k].text, text))
        k++;
    return k;
}

/* In declared order: is nothing too late that must come because of this name or those before it? */
static bool keeps_order(const struct di_grammar *g, const struct node *o, uint32_t name)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        if (t->atoms[i].kind != ATOM_NEEDS || !t->hard[i])
            continue;
        const struct dependency *d = g->schemas.v[t->atoms[i].schema].dependencies + t->atoms[i].index;
        uint32_t by = number_of(t, d->name);
        if (by != name && !bit_is_set(g, o->f[F_SEEN], by))
            continue;
        for (uint32_t m = 0; m < d->n_names; m++) {
            uint32_t k = number_of(t, d->names[m]);
            if (k != name && !bit_is_set(g, o->f[F_SEEN], k) && (name == NO_SCHEMA || t->names[k].order < t->names[name].order))
                return false;
        }
    }
    return true;
}

/* What the key alone does to an object's formula: counts and required names. BDD_FALSE: it must not come. */
static bdd_id after_key(struct di_grammar *g, const struct node *o, uint32_t name, uint32_t *tracks)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    bdd_id f = o->f[F_FORMULA];
    *tracks = o->f[F_TRACKS];
    if (g->options.declared && !keeps_order(g, o, name))
        return BDD_FALSE;
    if (f == BDD_TRUE && !*tracks)
        return f;
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        const struct atom *a = t->atoms + i;
        const struct schema *s = g->schemas.v + a->schema;
        if (t->hard[i])
            continue;
        if (a->kind == ATOM_COUNT) {
            if (o->f[F_NUMBER] + 1 > s->max_properties)
                json_replace(g, &f, tracks, i, BDD_FALSE);
            else if (s->max_properties == RX_MANY && o->f[F_NUMBER] + 1 >= s->min_properties)
                json_replace(g, &f, tracks, i, BDD_TRUE);
        }
        if (a->kind == ATOM_REQUIRED && name == NO_SCHEMA && g->options.declared)
            json_replace(g, &f, tracks, i, BDD_FALSE); /* no name that a schema knows comes behind */
        if (a->kind == ATOM_REQUIRED && name != NO_SCHEMA) {
            bool all = true, asks = false, late = false;
            for (uint32_t k = 0; k < s->n_required; k++) {
                uint32_t low = 0, high = t->n_names; /* the name's number */
                while (high - low > 1) {
                    uint32_t mid = (low + high) / 2;
                    struct di_str x = t->names[mid].text, y = s->required[k];
                    int c = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
                    if (c < 0 || (c == 0 && x.n <= y.n))
                        low = mid;
                    else
                        high = mid;
                }
                bool there = low == name || bit_is_set(g, o->f[F_SEEN], low);
                asks |= low == name;
                all &= there;
                late |= !there && g->options.declared && t->names[low].order < t->names[name].order;
            }
            if (all && asks)
                json_replace(g, &f, tracks, i, BDD_TRUE);
            else if (late)
                json_replace(g, &f, tracks, i, BDD_FALSE);
        }
    }
    return f;
}

static const struct edge *edge_of(struct di_grammar *g, const struct node *o, uint64_t class, bool named)
{
    uint32_t tracks;
    bdd_id f = after_key(g, o, named ? (uint32_t) class : NO_SCHEMA, &tracks);
    return f == BDD_FALSE ? NULL : json_edge(g, o->f[F_SITE], f, tracks, class, named);
}

static uint32_t required_left(const struct di_grammar *g, const struct node *o)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    uint32_t left = 0;
    for (uint32_t i = 0; t->n_required && i < t->n_names; i++)
        left += t->required[i] && !bit_is_set(g, o->f[F_SEEN], i);
    return left;
}

/* May another member come that is not one of the required ones? */
static bool has_room(const struct di_grammar *g, const struct node *o)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    return t->max == RX_MANY || o->f[F_NUMBER] + required_left(g, o) < t->max;
}

/* In declared order: are there enough names behind this one for the smallest number of members? */
static bool leaves_enough(struct di_grammar *g, const struct node *o, uint32_t name)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    uint32_t count = o->f[F_NUMBER] + 1;
    if (count >= t->min || t->product)
        return true;
    const struct edge *e = edge_of(g, o, 0, false);
    if (e && e->site != NO_SCHEMA)
        return true;
    for (uint32_t i = 0; i < t->n_names && count < t->min; i++) {
        e = t->names[i].order > t->names[name].order ? edge_of(g, o, i, true) : NULL;
        count += e && e->site != NO_SCHEMA;
    }
    return count >= t->min;
}

static bool name_viable(struct di_grammar *g, const struct node *o, uint32_t name)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    if (bit_is_set(g, o->f[F_SEEN], name))
        return false;
    if (t->required[name] ? o->f[F_NUMBER] >= t->max : !has_room(g, o))
        return false;
    if (g->options.declared) {
        if (o->f[F_LAST] > t->names[name].order || !leaves_enough(g, o, name))
            return false;
        for (uint32_t i = 0; t->n_required && i < t->n_names; i++)
            if (t->required[i] && t->names[i].order < t->names[name].order && !bit_is_set(g, o->f[F_SEEN], i))
                return false;
    }
    const struct edge *e = edge_of(g, o, name, true);
    return e && e->site != NO_SCHEMA;
}

static bool free_class_viable(struct di_grammar *g, const struct node *o, uint64_t matches)
{
    const struct edge *e = edge_of(g, o, matches, false);
    return e && e->site != NO_SCHEMA;
}

static bool accept_free(struct di_grammar *g, struct product *p, uint32_t state, void *ctx)
{
    return free_class_viable(g, ctx, product_matches(g, p, state));
}

/* Can a name that no schema knows come of this state of the patterns? */
static bool free_viable(struct di_grammar *g, const struct node *o, uint32_t state)
{
    struct typed_site *t = g->typed[o->f[F_SITE]];
    if (!has_room(g, o) || (g->options.declared && required_left(g, o)))
        return false;
    if (!t->product)
        return free_class_viable(g, o, 0);
    uint32_t tracks;
    bdd_id f = after_key(g, o, NO_SCHEMA, &tracks);
    return f != BDD_FALSE && product_live(g, t->product, state, f, tracks, accept_free, (void *)(uintptr_t)o);
}

bool json_free_viable(struct di_grammar *g, state_id object, uint32_t item)
{
    if (g->free.parent != object || g->free.item != item) { /* asked for each byte of a walk, with few answers */
        const struct node o = g->nodes[object];
        bool viable = free_viable(g, &o, item);
        g->free.parent = object;
        g->free.item = item;
        g->free.viable = viable;
    }
    return g->free.viable;
}

/* Can the key still become one that may come? */
static bool key_viable(struct di_grammar *g, const struct node *k)
{
    if (json_free_viable(g, k->parent, k->f[F_ITEM]))
        return true;
    const struct node o = g->nodes[k->parent];
    for (uint32_t i = k->f[F_LOW]; i < k->f[F_HIGH]; i++)
        if (name_viable(g, &o, i))
            return true;
    return false;
}

static bool key_byte(struct di_grammar *g, struct node *k, unsigned byte)
{
    struct typed_site *t = g->typed[g->nodes[k->parent].f[F_SITE]];
    k->f[F_RX] = rx_step(&g->rx, k->f[F_RX], byte);
    if (k->f[F_RX] == RX_NONE)
        return false;
    if (k->f[F_HIGH])
        narrow(t, k, byte);
    if (t->product)
        k->f[F_ITEM] = product_step(g, t->product, k->f[F_ITEM], byte);
    k->f[F_NAME] = text_add(g, k->f[F_NAME], byte);
    return key_viable(g, k);
}

static state_id begin_key(struct di_grammar *g, state_id s)
{
    struct node o = g->nodes[s];
    struct typed_site *t = g->typed[o.f[F_SITE]];
    struct node k = {.kind = NODE_KEY, .flags = o.flags, .f = {[F_RX] = g->rx.any_text, [F_HIGH] = t->n_names}};
    if (o.flags & FLAG_CAPTURE)
        k.f[F_CAPTURE] = text_add(g, o.f[F_CAPTURE], '"');
    o.f[F_CAPTURE] = 0;
    o.phase = PHASE_KEY;
    o.chain = 0;
    k.parent = gr_node(g, &o);
    k.f[12] = o.f[12];
    return key_viable(g, &k) ? gr_node(g, &k) : 0;
}

/* Is a name that no schema knows there already? */
static bool repeats(struct di_grammar *g, uint32_t list, uint32_t text)
{
    for (; list; list = g->nodes[list].parent)
        if (g->nodes[list].f[0] == text)
            return true;
    return false;
}

static state_id end_key(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node k = g->nodes[s], o = g->nodes[k.parent];
    struct typed_site *t = g->typed[o.f[F_SITE]];
    bool named = k.f[F_HIGH] && t->names[k.f[F_LOW]].text.n == k.f[F_DEPTH];
    uint64_t class = named ? k.f[F_LOW] : t->product ? product_matches(g, t->product, k.f[F_ITEM]) : 0;
    if (!rx_accepts(&g->rx, k.f[F_RX]))
        return 0;
    if (named) {
        if (!name_viable(g, &o, (uint32_t) class))
            return 0;
    } else {
        if (!has_room(g, &o) || (g->options.declared && required_left(g, &o)))
            return 0;
        if (g->strip) { /* the walk does not know the name */
            g->verify |= (o.flags & FLAG_BLIND) || o.f[F_FREE];
            o.flags |= FLAG_BLIND;
        } else {
            if (repeats(g, o.f[F_FREE], k.f[F_NAME]))
                return 0;
        }
    }
    uint32_t tracks;
    bdd_id f = after_key(g, &o, named ? (uint32_t) class : NO_SCHEMA, &tracks);
    const struct edge *e = f == BDD_FALSE ? NULL : json_edge(g, o.f[F_SITE], f, tracks, class, named);
    if (!e || e->site == NO_SCHEMA)
        return 0;
    o.f[F_FORMULA] = e->formula_after;
    o.f[F_TRACKS] = e->tracks_after;
    o.f[F_EDGE] = (uint32_t)(e - g->edges) + 1;
    if (named)
        o.f[F_SEEN] = set_bit(g, o.f[F_SEEN], (uint32_t) class);
    else if (!g->strip)
        o.f[F_FREE] = gr_node(g, &(struct node){.kind = NODE_LIST, .parent = o.f[F_FREE], .f = {k.f[F_NAME]}});
    if (g->options.declared)
        o.f[F_LAST] = named ? t->names[class].order : UINT32_MAX;
    o.f[F_NUMBER]++;
    if (t->max == RX_MANY && o.f[F_NUMBER] > t->min) { /* counts that nobody asks for */
        bool counted = false;
        for (uint32_t i = 0; i < t->n_atoms; i++)
            counted |= t->atoms[i].kind == ATOM_COUNT && !t->hard[i];
        if (!counted)
            o.f[F_NUMBER] = t->min;
    }
    o.phase = PHASE_COLON;
    if (o.flags & FLAG_CAPTURE)
        o.f[F_CAPTURE] = text_add(g, k.f[F_CAPTURE], byte);
    o.chain = 0;
    return gr_node(g, &o);
}

/* ---- bytes of strings and keys ---- */

bool json_text_byte(struct di_grammar *g, struct node *n, unsigned byte)
{
    return n->kind == NODE_KEY ? key_byte(g, n, byte) : content_byte(g, n, byte);
}

static state_id end_string(struct di_grammar *g, const struct node *n, uint32_t capture)
{
    struct typed_site *t = g->typed[n->f[F_SITE]];
    if (n->f[F_COUNT] < t->min || (t->product ? !json_text_accept(g, t, n->f[F_RX]) : !rx_accepts(&g->rx, n->f[F_RX])))
        return 0;
    if (t->n_soft) {
        bool *atoms = di_calloc(t->n_atoms + 1, sizeof *atoms);
        if (!atoms) {
            g->out_of_memory = true;
            return 0;
        }
        if (t->product)
            assign_texts(g, t, n->f[F_RX], atoms);
        set_outcomes(g, t, atoms);
        di_free(atoms);
    }
    return end_value(g, n->parent, capture);
}

static state_id step_string(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node n = g->nodes[s];
    if (byte < 0x20)
        return 0;
    if (byte == '"' && !n.f[F_ESCAPE]) {
        if (n.kind == NODE_KEY)
            return end_key(g, s, byte);
        return end_string(g, &n, n.flags & FLAG_CAPTURE ? text_add(g, n.f[F_CAPTURE], byte) : 0);
    }
    if (n.flags & FLAG_CAPTURE)
        n.f[F_CAPTURE] = text_add(g, n.f[F_CAPTURE], byte);
    n.chain = 0;
    if (n.f[F_ESCAPE])
        return json_escape_byte(g, &n, byte) ? gr_node(g, &n) : 0;
    if (byte != '\\')
        return json_text_byte(g, &n, byte) ? gr_node(g, &n) : 0;
    const struct typed_site *t = n.kind == NODE_STRING ? g->typed[n.f[F_SITE]] : NULL;
    bool any = t && !t->product && n.f[F_RX] == g->rx.any_text && n.f[F_COUNT] < t->max; /* every escape may come */
    return json_escape_begin(g, &n, any) ? gr_node(g, &n) : 0; /* inside a character nothing but the rest of it may come */
}

/* ---- arrays and objects ---- */

static const struct edge *item_edge(struct di_grammar *g, const struct node *a)
{
    const struct typed_site *t = g->typed[a->f[F_SITE]];
    uint32_t at = a->f[F_NUMBER];
    if (at >= t->max)
        return NULL;
    const struct edge *e = json_edge(g, a->f[F_SITE], a->f[F_FORMULA], a->f[F_TRACKS], at < t->n_prefix ? at : t->n_prefix, false);
    return e && e->site != NO_SCHEMA ? e : NULL;
}

static state_id begin_item(struct di_grammar *g, const struct node *array, uint32_t capture)
{
    struct node a = *array;
    const struct edge *e = item_edge(g, &a);
    if (!e)
        return 0;
    uint32_t site = e->site;
    a.f[F_FORMULA] = e->formula_after;
    a.f[F_TRACKS] = e->tracks_after;
    a.f[F_EDGE] = (uint32_t)(e - g->edges) + 1;
    a.f[F_CAPTURE] = 0;
    a.f[F_START] = g->strip || !capture ? 0 : g->nodes[capture].f[1];
    a.chain = 0;
    return value_state(g, gr_node(g, &a), site, a.flags & FLAG_CAPTURE, capture);
}

/* What atoms are at the end of a frame, if the names that `more` marks (NULL: none) still come. False: one that must hold does not. */
static bool assign_atoms(struct di_grammar *g, const struct node *n, const uint8_t *more, bool *atoms)
{
    const struct typed_site *t = g->typed[n->f[F_SITE]];
    uint32_t count = n->f[F_NUMBER];
    bool yes = true;
    for (uint32_t k = 0; more && k < t->n_names; k++)
        count += more[k] != 0;
#define COMES(k) ((k) < t->n_names && ((more && more[k]) || bit_is_set(g, n->f[F_SEEN], k)))
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        const struct atom *a = t->atoms + i;
        const struct schema *s = g->schemas.v + a->schema;
        bool holds = true;
        switch (a->kind) {
        case ATOM_ITEM_COUNT: holds = count >= s->min_items && (count <= s->max_items); break;
        case ATOM_COUNT: holds = t->hard[i] || (count >= s->min_properties && count <= s->max_properties); break;
        case ATOM_CONTAINS: {
            uint32_t which = 0, found = 0;
            for (uint32_t k = 0; k < i; k++)
                which += t->atoms[k].kind == ATOM_CONTAINS;
            if (which < gr_count(g, n->f[F_FREE]))
                found = gr_items(g, n->f[F_FREE])[which];
            holds = found >= s->min_contains && (s->max_contains == RX_MANY || found <= s->max_contains);
            break;
        }
        case ATOM_REQUIRED: /* what became true is no longer asked */
            holds = more != NULL;
            for (uint32_t k = 0; holds && k < s->n_required; k++)
                holds = COMES(number_of(t, s->required[k]));
            break;
        case ATOM_PRESENT: holds = more && more[a->index]; break;
        case ATOM_NEEDS: {
            const struct dependency *d = s->dependencies + a->index;
            bool there = COMES(number_of(t, d->name));
            for (uint32_t m = 0; there && m < d->n_names && holds; m++)
                holds = COMES(number_of(t, d->names[m]));
            yes &= holds || !t->hard[i];
            break;
        }
        default: break;
        }
        atoms[i] = holds;
    }
#undef COMES
    return yes;
}

/* All that is open about a frame is settled as it is at its end. */
static bool settle(struct di_grammar *g, const struct node *n)
{
    const struct typed_site *t = g->typed[n->f[F_SITE]];
    bool few[128], *atoms = few, yes;
    if (t->n_atoms > 128 && !(atoms = di_malloc(t->n_atoms * sizeof *atoms))) {
        g->out_of_memory = true;
        return false;
    }
    yes = assign_atoms(g, n, NULL, atoms) && bdd_value(&g->bdd, n->f[F_FORMULA], atoms) && n->f[F_NUMBER] >= t->min &&
          (n->kind != NODE_OBJECT || !required_left(g, n));
    for (uint32_t i = 0; yes && i < t->n_soft; i++)
        g->outcome[i] = bdd_value(&g->bdd, gr_items(g, n->f[F_TRACKS])[i], atoms);
    if (atoms != few)
        di_free(atoms);
    return yes;
}

/* Mark the names of a list that are not there yet. False: one of them cannot come. */
static bool mark_missing(struct di_grammar *g, const struct node *o, const struct di_str *names, uint32_t n, uint8_t *needed)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = number_of(t, names[i]);
        if (k < t->n_names && !bit_is_set(g, o->f[F_SEEN], k) && !needed[k]) {
            if (!name_viable(g, o, k))
                return false;
            needed[k] = 1;
        }
    }
    return true;
}

/* What the marked names need, by dependencies that must hold. */
static bool mark_dependent(struct di_grammar *g, const struct node *o, uint8_t *needed)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    for (uint32_t round = 0; round < 8; round++) /* dependencies of dependencies */
        for (uint32_t i = 0; i < t->n_atoms; i++) {
            if (t->atoms[i].kind != ATOM_NEEDS || !t->hard[i])
                continue;
            const struct dependency *d = g->schemas.v[t->atoms[i].schema].dependencies + t->atoms[i].index;
            uint32_t k = number_of(t, d->name);
            if (k < t->n_names && (needed[k] || bit_is_set(g, o->f[F_SEEN], k)) && !mark_missing(g, o, d->names, d->n_names, needed))
                return false;
        }
    return true;
}

/* May an object end when the marked names have come, for some values of them? */
static bool may_end(struct di_grammar *g, const struct node *o, const uint8_t *needed, bool *atoms)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    bdd_id f = o->f[F_FORMULA];
    if (!assign_atoms(g, o, needed, atoms))
        return false;
    for (uint32_t i = 0; i < t->n_atoms && f > BDD_TRUE; i++)
        if (t->atoms[i].kind != ATOM_MEMBERS && t->atoms[i].kind != ATOM_REST) /* these the values decide */
            f = bdd_set(&g->bdd, f, i, atoms[i]);
    return f != BDD_FALSE;
}

void json_needed(struct di_grammar *g, const struct node *o, uint8_t *needed)
{
    const struct typed_site *t = g->typed[o->f[F_SITE]];
    memset(needed, 0, t->n_names);
    for (uint32_t i = 0; t->n_required && i < t->n_names; i++)
        needed[i] = t->required[i] && !bit_is_set(g, o->f[F_SEEN], i);
    mark_dependent(g, o, needed);
    if (!t->n_atoms || o->f[F_FORMULA] == BDD_TRUE)
        return;
    bool *atoms = di_malloc(t->n_atoms * sizeof *atoms);
    uint8_t *trial = di_malloc(2 * ((size_t)t->n_names + 1)), *best = trial ? trial + t->n_names + 1 : NULL;
    size_t fewest = SIZE_MAX;
    if (!atoms || !trial) {
        g->out_of_memory = true;
    } else if (!assign_atoms(g, o, needed, atoms) || !bdd_value(&g->bdd, o->f[F_FORMULA], atoms)) {
        for (uint32_t i = 0; i < t->n_atoms; i++) { /* one of the lists that branches require */
            const struct schema *s = g->schemas.v + t->atoms[i].schema;
            size_t count = 0;
            if (t->atoms[i].kind != ATOM_REQUIRED || t->hard[i])
                continue;
            memcpy(trial, needed, t->n_names);
            if (!mark_missing(g, o, s->required, s->n_required, trial) || !mark_dependent(g, o, trial))
                continue;
            for (uint32_t k = 0; k < t->n_names; k++)
                count += trial[k] != 0;
            if (count < fewest && may_end(g, o, trial, atoms)) {
                fewest = count;
                memcpy(best, trial, t->n_names);
            }
        }
        if (fewest != SIZE_MAX)
            memcpy(needed, best, t->n_names);
    }
    di_free(atoms);
    di_free(trial);
}

int64_t json_key_distance(struct di_grammar *g, const struct node *k)
{
    const struct node o = g->nodes[k->parent];
    const struct typed_site *t = g->typed[o.f[F_SITE]];
    const struct edge *e = NULL;
    int64_t best = INT64_MAX;
    uint32_t site;
    uint8_t *needed = di_malloc((size_t)t->n_names + 1);
    if (!needed) {
        g->out_of_memory = true;
        return 1000;
    }
    json_needed(g, &o, needed);
    for (uint32_t i = k->f[F_LOW]; i < k->f[F_HIGH] && i < k->f[F_LOW] + 64; i++)
        if (name_viable(g, &o, i) && (e = edge_of(g, &o, i, true)) && (site = e->site) != NO_SCHEMA) {
            int64_t left = (int64_t)t->names[i].text.n - k->f[F_DEPTH] + 2 + json_distance(g, site);
            if (needed[i]) /* the object has counted it */
                left = -(int64_t)k->f[F_DEPTH] - 2;
            best = left < best ? left : best;
        }
    di_free(needed);
    uint64_t matches = t->product ? product_matches(g, t->product, k->f[F_ITEM]) : 0;
    if (best == INT64_MAX && (e = edge_of(g, &o, matches, false)) && (site = e->site) != NO_SCHEMA)
        best = 2 + (int64_t)json_distance(g, site);
    return best == INT64_MAX ? 1000 : best + (k->f[F_ESCAPE] ? 5 : 0);
}

static state_id step_array(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node n = g->nodes[s];
    uint32_t capture = n.flags & FLAG_CAPTURE && !is_space(byte) ? text_add(g, n.f[F_CAPTURE], byte) : n.f[F_CAPTURE];
    if (is_space(byte)) {
        return g->options.compact ? 0 : s;
    } else if (byte == ']') {
        struct node up = g->nodes[n.parent];
        return settle(g, &n) ? end_value(g, n.parent, up.flags & FLAG_CAPTURE ? capture : 0) : 0;
    } else if (n.phase == PHASE_OPEN) {
        state_id item = begin_item(g, &n, n.f[F_CAPTURE]);
        return item ? json_step(g, item, byte) : 0;
    }
    return byte == ',' ? begin_item(g, &n, capture) : 0;
}

static state_id step_object(struct di_grammar *g, state_id s, unsigned byte)
{
    struct node n = g->nodes[s];
    bool keep = n.flags & FLAG_CAPTURE;
    n.chain = 0;
    if (is_space(byte))
        return g->options.compact ? 0 : s;
    switch (n.phase) {
    case PHASE_OPEN:
    case PHASE_KEY:
        if (byte == '"')
            return begin_key(g, s);
        if (byte == '}' && n.phase == PHASE_OPEN && settle(g, &n))
            return end_value(g, n.parent, keep ? text_add(g, n.f[F_CAPTURE], byte) : 0);
        return 0;
    case PHASE_COLON: {
        if (byte != ':')
            return 0;
        uint32_t site = g->edges[n.f[F_EDGE] - 1].site, capture = keep ? text_add(g, n.f[F_CAPTURE], byte) : 0;
        n.f[F_CAPTURE] = 0;
        return value_state(g, gr_node(g, &n), site, keep, capture);
    }
    default:
        if (byte == '}')
            return settle(g, &n) ? end_value(g, n.parent, keep ? text_add(g, n.f[F_CAPTURE], byte) : 0) : 0;
        if (byte != ',')
            return 0;
        n.phase = PHASE_KEY;
        if (keep)
            n.f[F_CAPTURE] = text_add(g, n.f[F_CAPTURE], byte);
        struct node key = {.kind = NODE_KEY, .f = {[F_RX] = g->rx.any_text, [F_HIGH] = g->typed[n.f[F_SITE]]->n_names}};
        state_id after = gr_node(g, &n);
        key.parent = after;
        return key_viable(g, &key) ? after : 0;
    }
}

/* Is the item that ended the same value as an earlier one? */
static bool is_repeated(struct di_grammar *g, uint32_t list, uint32_t text, uint32_t start)
{
    struct di_arena arena;
    struct di_json *a, *b;
    size_t n, m;
    bool same = false;
    if (text && g->repeated.text == text && g->repeated.list == list && g->repeated.start == start)
        return g->repeated.yes;
    g->repeated.list = list, g->repeated.text = text, g->repeated.start = start;
    char *mine = text_copy(g, text, start, &n);
    di_arena_init(&arena);
    if (mine && di_json_parse((struct di_str){mine, n}, NULL, &arena, &a, NULL) == DI_OK)
        for (; list && !same; list = g->nodes[list].parent) {
            char *other = text_copy(g, g->nodes[list].f[0], g->nodes[list].f[1], &m);
            same = other && di_json_parse((struct di_str){other, m}, NULL, &arena, &b, NULL) == DI_OK && di_json_same(a, b);
            di_free(other);
        }
    di_arena_fini(&arena);
    di_free(mine);
    return g->repeated.yes = same;
}

/* A value below `parent` is complete; its outcomes are in g->outcome. */
static state_id end_value(struct di_grammar *g, state_id parent, uint32_t capture)
{
    struct node n = g->nodes[parent];
    n.chain = 0;
    if (n.kind == NODE_DONE)
        return parent;
    struct typed_site *t = g->typed[n.f[F_SITE]];
    const struct edge *e = g->edges + n.f[F_EDGE] - 1;
    bool array = n.kind == NODE_ARRAY;
    if (gr_count(g, e->pending)) {
        uint32_t counts = array ? n.f[F_FREE] : 0;
        bdd_id f = n.f[F_FORMULA];
        json_after_value(g, t, e, &f, &n.f[F_TRACKS], &counts);
        n.f[F_FORMULA] = f;
        if (array)
            n.f[F_FREE] = counts;
        if (f == BDD_FALSE)
            return 0;
    }
    if (array && t->capture) {
        for (uint32_t i = 0; i < t->n_atoms; i++) {
            if (t->atoms[i].kind != ATOM_UNIQUE)
                continue;
            if (g->strip) {
                g->verify = true;
            } else if (is_repeated(g, n.f[F_SEEN], capture, n.f[F_START])) {
                if (t->hard[i])
                    return 0;
                bdd_id f = n.f[F_FORMULA];
                json_replace(g, &f, &n.f[F_TRACKS], i, BDD_FALSE);
                n.f[F_FORMULA] = f;
                if (f == BDD_FALSE)
                    return 0;
            }
        }
        if (!g->strip)
            n.f[F_SEEN] = gr_node(g, &(struct node){.kind = NODE_LIST, .parent = n.f[F_SEEN], .f = {capture, n.f[F_START]}});
    }
    if (array) {
        uint32_t most = t->n_prefix > t->min ? t->n_prefix : t->min;
        for (uint32_t i = 0; i < t->n_atoms; i++) {
            const struct schema *s = g->schemas.v + t->atoms[i].schema;
            if (t->atoms[i].kind != ATOM_ITEM_COUNT)
                continue;
            most = s->min_items > most ? s->min_items : most;
            if (s->max_items != RX_MANY && s->max_items + 1 > most)
                most = s->max_items + 1;
        }
        n.f[F_NUMBER] += n.f[F_NUMBER] < most;
    }
    n.f[F_EDGE] = 0;
    n.f[F_START] = 0;
    n.f[F_CAPTURE] = n.flags & FLAG_CAPTURE ? capture : 0;
    n.phase = PHASE_AFTER;
    return gr_node(g, &n);
}

/* ---- the whole ---- */

state_id json_step(struct di_grammar *g, state_id s, unsigned byte)
{
    switch (g->nodes[s].kind) {
    case NODE_VALUE:
        if (is_space(byte))
            return g->options.compact ? 0 : s;
        return begin_value(g, s, byte);
    case NODE_WORD: return step_word(g, s, byte);
    case NODE_NUMBER: return step_number(g, s, byte);
    case NODE_STRING:
    case NODE_KEY: return step_string(g, s, byte);
    case NODE_OBJECT: return step_object(g, s, byte);
    case NODE_ARRAY: return step_array(g, s, byte);
    case NODE_DONE: return is_space(byte) && !g->options.compact ? s : 0;
    default: return 0;
    }
}

bool json_accepts(struct di_grammar *g, state_id s)
{
    const struct node *n = g->nodes + s;
    if (n->kind == NODE_NUMBER && g->nodes[n->parent].kind == NODE_DONE)
        return numbers_accept(g, g->typed[n->f[F_SITE]], n->f[1]);
    return n->kind == NODE_DONE;
}
