/* Earley's algorithm on bytes. A set is a chain of interned nodes with up to three items each, sorted, so equal sets are one number. An item is
 * a place in a rule's automaton or inside a terminal, the set where its rule began, and the rule that ends with it: a call at the very end of a
 * rule goes on as its caller, so lists that recurse to the right do not grow the sets. */
#include "grammar/cfg.h"

#include <stdio.h>
#include <stdlib.h>

enum { SELF = 0 }; /* origin: the set itself */
enum { IN_TERMINAL = 1u << 31, ACCEPT = UINT32_MAX };
enum { WORDS = 4 }; /* what (a state, or IN_TERMINAL | edge), origin, inside (expression or state), rule */
#define MOST_ITEMS 20000
#define MOST_RULES 3000
#define MOST_COPIES 2000 /* of a part that is repeated and no expression */

/* ---- building ---- */

struct cfg_part *cfg_part(struct di_grammar *g, enum cfg_op op, struct cfg_part *const *parts, size_t n)
{
    if (n == 1 && (op == CFG_SEQUENCE || op == CFG_EITHER))
        return parts[0];
    struct cfg_part *p = di_arena_alloc(&g->arena, sizeof *p);
    struct cfg_part **list = di_arena_alloc(&g->arena, (n + 1) * sizeof *list);
    if (!p || !list) {
        g->out_of_memory = true;
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        list[i] = parts[i];
    *p = (struct cfg_part){.op = op, .parts = list, .n = (uint32_t)n};
    return p;
}

struct cfg_part *cfg_rx(struct di_grammar *g, rx_id rx)
{
    struct cfg_part *p = cfg_part(g, CFG_RX, NULL, 0);
    if (p)
        p->rx = rx;
    return p;
}

struct cfg_part *cfg_repeat(struct di_grammar *g, struct cfg_part *part, uint32_t min, uint32_t max)
{
    struct cfg_part *p = cfg_part(g, CFG_REPEAT, &part, 1);
    if (p)
        p->min = min, p->max = max;
    return p;
}

bool cfg_append(struct di_grammar *g, struct cfg_list *list, struct cfg_part *part)
{
    if (!gr_grow(g, (void **)&list->parts, &list->cap, list->n + 1, sizeof *list->parts))
        return false;
    list->parts[list->n++] = part;
    return true;
}

uint32_t cfg_rule_named(struct di_grammar *g, struct di_str name, unsigned line)
{
    struct cfg *c = g->cfg;
    for (uint32_t i = 0; i < c->n_rules; i++)
        if (di_str_eq(c->rules[i].name, name))
            return i;
    if (c->n_rules == MOST_RULES) {
        g->over = "3,000 rules";
        return NO_SCHEMA;
    }
    if (!gr_grow(g, (void **)&c->rules, &c->cap_rules, c->n_rules + 1, sizeof *c->rules))
        return NO_SCHEMA;
    c->rules[c->n_rules] = (struct cfg_rule){.name = name, .line = line};
    return (uint32_t)c->n_rules++;
}

/* The expression of a part that does not recurse; false if it is none. */
static bool regular(struct di_grammar *g, const struct cfg_part *p, rx_id *out, unsigned depth)
{
    struct rx_pool *rx = &g->rx;
    rx_id one;
    if (!p || depth > 200 || p->op == CFG_JSON)
        return false;
    switch (p->op) {
    case CFG_RX: *out = p->rx; return true;
    case CFG_SEQUENCE:
        *out = RX_EMPTY;
        for (uint32_t i = p->n; i-- > 0;) {
            if (!regular(g, p->parts[i], &one, depth + 1))
                return false;
            *out = rx_cat(rx, one, *out);
        }
        return true;
    case CFG_EITHER: {
        rx_id *list = di_malloc(p->n * sizeof *list);
        uint32_t n = 0;
        if (!list) {
            g->out_of_memory = true;
            return false;
        }
        while (n < p->n && regular(g, p->parts[n], &list[n], depth + 1))
            n++;
        *out = n == p->n ? rx_any_of(rx, list, n) : RX_NONE;
        di_free(list);
        return n == p->n;
    }
    case CFG_REPEAT:
        if (!regular(g, p->parts[0], &one, depth + 1))
            return false;
        *out = rx_rep(rx, one, p->min, p->max);
        return true;
    default: {
        struct cfg_rule *r = g->cfg->rules + p->rule;
        if (r->regular == 0) {
            r->regular = 1;
            bool yes = regular(g, r->body, &one, depth + 1);
            r = g->cfg->rules + p->rule;
            r->regular = yes ? 3 : 2;
            r->rx = yes ? one : RX_NONE;
        } else if (r->regular == 1) {
            return false; /* recursion: all rules on the way are found to be none */
        }
        *out = r->rx;
        return r->regular == 3;
    }
    }
}

static uint32_t new_state(struct di_grammar *g)
{
    struct cfg *c = g->cfg;
    if (c->n_states >= g->options.limits.schema_nodes) {
        g->over = "schema_nodes";
        return 0;
    }
    if (!gr_grow(g, (void **)&c->end_of, &c->cap_states, c->n_states + 1, sizeof *c->end_of))
        return 0;
    c->end_of[c->n_states] = NO_SCHEMA;
    return (uint32_t)c->n_states++;
}

static void add_edge(struct di_grammar *g, uint32_t from, uint32_t to, enum cfg_op op, uint32_t what)
{
    struct cfg *c = g->cfg;
    if (gr_grow(g, (void **)&c->edges, &c->cap_edges, c->n_edges + 1, sizeof *c->edges))
        c->edges[c->n_edges++] = (struct cfg_edge){from, to, op, what, false};
}

/* Edges for a part between two states. */
static di_status lay(struct di_grammar *g, const struct cfg_part *p, uint32_t from, uint32_t to, unsigned depth, di_error *err)
{
    di_status status = DI_OK;
    rx_id rx;
    if (g->over || g->out_of_memory || rx_failed(&g->rx))
        return gr_health(g, err);
    if (!p || depth > 300)
        return di_fail(err, DI_ERR_LIMIT, "", "the grammar is nested too deeply");
    if (regular(g, p, &rx, 0)) {
        if (rx != RX_NONE)
            add_edge(g, from, to, rx == RX_EMPTY ? CFG_SEQUENCE : CFG_RX, rx);
        return DI_OK;
    }
    switch (p->op) {
    case CFG_SEQUENCE:
        for (uint32_t i = 0; i < p->n; i++) {
            uint32_t next = i + 1 < p->n ? new_state(g) : to;
            TRY(lay(g, p->parts[i], from, next, depth + 1, err));
            from = next;
        }
        break;
    case CFG_EITHER:
        for (uint32_t i = 0; i < p->n; i++)
            TRY(lay(g, p->parts[i], from, to, depth + 1, err));
        break;
    case CFG_REPEAT: {
        if (p->min > MOST_COPIES || (p->max != RX_MANY && p->max > MOST_COPIES))
            return di_fail(err, DI_ERR_LIMIT, "", "a part that calls rules is repeated more than %d times", MOST_COPIES);
        uint32_t copies = p->max == RX_MANY ? p->min : p->max;
        for (uint32_t i = 0; i < copies; i++) {
            uint32_t next = new_state(g);
            if (i >= p->min)
                add_edge(g, from, to, CFG_SEQUENCE, 0);
            TRY(lay(g, p->parts[0], from, next, depth + 1, err));
            from = next;
        }
        if (p->max == RX_MANY) {
            uint32_t loop = new_state(g);
            add_edge(g, from, loop, CFG_SEQUENCE, 0);
            TRY(lay(g, p->parts[0], loop, loop, depth + 1, err));
            from = loop;
        }
        add_edge(g, from, to, CFG_SEQUENCE, 0);
        break;
    }
    case CFG_JSON: {
        uint32_t top;
        TRY(schemas_read(&g->schemas, p->schema, &top, err));
        state_id start = json_start(g, top);
        TRY(gr_health(g, err));
        CHECK(start, err, DI_ERR_INVALID, "/", "no value satisfies a schema of the grammar");
        add_edge(g, from, to, CFG_JSON, start);
        break;
    }
    default: add_edge(g, from, to, CFG_RULE, p->rule);
    }
out:
    return status;
}

static int by_state(const void *a, const void *b)
{
    const struct cfg_edge *x = a, *y = b;
    return (x->state > y->state) - (x->state < y->state);
}

/* States from which the end of their rule is reached over edges that `passes` lets through; a rule counts as passed when its start is such a
 * state (rule r starts in state r). Every edge is looked at twice at most. NULL: no memory. */
static uint8_t *find_ending(struct di_grammar *g, bool (*passes)(struct di_grammar *g, const struct cfg_edge *e))
{
    struct cfg *c = g->cfg;
    size_t n = c->n_states, m = c->n_edges;
    uint8_t *ends = di_calloc(n + 1, 1);
    uint32_t *queue = di_malloc((n + 1) * sizeof *queue), *into = di_malloc((n + 1) * sizeof *into);
    uint32_t *next_into = di_malloc((m + 1) * sizeof *next_into), *next_call = di_malloc((m + 1) * sizeof *next_call);
    uint32_t *calls = di_malloc((c->n_rules + 1) * sizeof *calls);
    size_t count = 0;
    bool built = ends && queue && into && next_into && next_call && calls;
    if (built) {
        memset(into, 0xFF, (n + 1) * sizeof *into);
        memset(calls, 0xFF, (c->n_rules + 1) * sizeof *calls);
    }
    for (uint32_t i = 0; built && i < m; i++) { /* edges by target, calls by rule */
        const struct cfg_edge *e = c->edges + i;
        next_into[i] = into[e->target];
        into[e->target] = i;
        if (e->op == CFG_RULE) {
            next_call[i] = calls[e->what];
            calls[e->what] = i;
        }
    }
    for (uint32_t s = 0; built && s < n; s++)
        if (c->end_of[s] != NO_SCHEMA) {
            ends[s] = 1;
            queue[count++] = s;
        }
    for (size_t i = 0; i < count; i++) {
        uint32_t s = queue[i];
        for (uint32_t k = into[s]; k != UINT32_MAX; k = next_into[k]) {
            const struct cfg_edge *e = c->edges + k;
            bool passed = e->op == CFG_RULE ? ends[e->what] : passes(g, e);
            if (passed && !ends[e->state]) {
                ends[e->state] = 1;
                queue[count++] = e->state;
            }
        }
        for (uint32_t k = s < c->n_rules ? calls[s] : UINT32_MAX; k != UINT32_MAX; k = next_call[k]) {
            const struct cfg_edge *e = c->edges + k;
            if (ends[e->target] && !ends[e->state]) {
                ends[e->state] = 1;
                queue[count++] = e->state;
            }
        }
    }
    di_free(queue);
    di_free(into);
    di_free(next_into);
    di_free(next_call);
    di_free(calls);
    if (!built) {
        di_free(ends);
        g->out_of_memory = true;
    }
    return built ? ends : NULL;
}

static bool reads_nothing(struct di_grammar *g, const struct cfg_edge *e)
{
    return e->op == CFG_SEQUENCE || (e->op == CFG_RX && rx_accepts(&g->rx, e->what));
}

static bool reads_something(struct di_grammar *g, const struct cfg_edge *e)
{
    return e->op != CFG_RX || rx_live(&g->rx, e->what);
}

/* Which rules may be empty; and edges from which no rule ever ends are taken out, so that whatever text is allowed can be completed. */
static bool prune(struct di_grammar *g)
{
    struct cfg *c = g->cfg;
    uint8_t *empty = find_ending(g, reads_nothing), *ends = find_ending(g, reads_something);
    size_t kept = 0;
    for (uint32_t r = 0; empty && r < c->n_rules; r++)
        c->rules[r].nullable = empty[r];
    for (size_t i = 0; ends && i < c->n_edges; i++) {
        const struct cfg_edge e = c->edges[i];
        if (ends[e.target] && (e.op == CFG_RULE ? ends[e.what] : reads_something(g, &e)))
            c->edges[kept++] = e;
    }
    if (ends)
        c->n_edges = kept;
    bool done = empty && ends;
    di_free(empty);
    di_free(ends);
    return done;
}

static state_id finish_set(struct di_grammar *g);
static void add_item(struct di_grammar *g, uint32_t what, uint32_t origin, uint32_t inside, uint32_t rule);

di_status cfg_compile(struct di_grammar *g, di_error *err)
{
    static di_status (*const readers[])(struct di_grammar *, struct di_str, di_error *) = {[DI_GRAMMAR_GBNF] = ebnf_read,
                                                                                           [DI_GRAMMAR_EBNF] = ebnf_read,
                                                                                           [DI_GRAMMAR_LARK] = lark_read,
                                                                                           [DI_GRAMMAR_STRUCTURAL] = structural_read};
    struct cfg *c = g->cfg = di_calloc(1, sizeof *c);
    di_status status = DI_OK;
    char where[32] = "";
    if (!c)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a grammar");
    TRY(readers[g->kind](g, di_buf_str(&g->text), err));
    TRY(gr_health(g, err));
    for (uint32_t r = 0; r < c->n_rules; r++) {
        snprintf(where, sizeof where, "line %u", c->rules[r].line);
        CHECK(c->rules[r].body, err, DI_ERR_INVALID, where, "the rule \"%.*s\" is used but not defined",
              (int)(c->rules[r].name.n < 100 ? c->rules[r].name.n : 100), c->rules[r].name.p);
        c->rules[r].start = new_state(g);
    }
    for (uint32_t r = 0; r < c->n_rules; r++) {
        uint32_t end = new_state(g);
        TRY(gr_health(g, err));
        c->end_of[end] = r;
        TRY(lay(g, c->rules[r].body, c->rules[r].start, end, 0, err));
    }
    TRY(gr_health(g, err));
    if (!prune(g))
        return gr_health(g, err);
    if (c->n_edges)
        qsort(c->edges, c->n_edges, sizeof *c->edges, by_state);
    c->first = di_arena_alloc(&g->arena, (c->n_states + 2) * sizeof *c->first);
    CHECK(c->first, err, DI_ERR_MEMORY, "", "out of memory for a grammar");
    for (uint32_t s = 0, e = 0; s <= c->n_states; s++) {
        while (e < c->n_edges && c->edges[e].state < s)
            e++;
        c->first[s] = e;
    }
    for (size_t i = 0; i < c->n_edges; i++) {
        struct cfg_edge *e = c->edges + i;
        e->tail = c->end_of[e->target] != NO_SCHEMA && c->first[e->target] == c->first[e->target + 1];
    }
    add_item(g, c->rules[c->root].start, SELF, 0, c->root);
    g->start = finish_set(g);
    TRY(gr_health(g, err));
    CHECK(g->start, err, DI_ERR_INVALID, "", "nothing matches the grammar");
out:
    return status;
}

void cfg_destroy(struct di_grammar *g)
{
    if (!g->cfg)
        return;
    di_free(g->cfg->rules);
    di_free(g->cfg->edges);
    di_free(g->cfg->end_of);
    di_free(g->cfg->work);
    di_free(g->cfg->table);
    di_free(g->cfg);
}

/* ---- sets ---- */

static uint32_t hash_item(const uint32_t *i)
{
    uint64_t h = (((uint64_t)i[0] << 32 | i[1]) * 0x9E3779B97F4A7C15u) ^ ((uint64_t)i[2] << 32 | i[3]) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

static void add_item(struct di_grammar *g, uint32_t what, uint32_t origin, uint32_t inside, uint32_t rule)
{
    struct cfg *c = g->cfg;
    uint32_t item[WORDS] = {what, origin, inside, rule};
    if (c->n_work >= MOST_ITEMS) {
        g->over = "20,000 items of an ambiguous grammar";
        return;
    }
    if (c->n_work * 2 >= c->table_size) {
        size_t size = c->table_size ? c->table_size * 4 : 256;
        uint32_t *table = di_calloc(size, sizeof *table);
        if (!table) {
            g->out_of_memory = true;
            return;
        }
        for (uint32_t i = 0; i < c->n_work; i++) {
            size_t at = hash_item(c->work + (size_t)i * WORDS) & (size - 1);
            while (table[at])
                at = (at + 1) & (size - 1);
            table[at] = i + 1;
        }
        di_free(c->table);
        c->table = table;
        c->table_size = size;
    }
    size_t at = hash_item(item) & (c->table_size - 1);
    for (; c->table[at]; at = (at + 1) & (c->table_size - 1))
        if (memcmp(c->work + (size_t)(c->table[at] - 1) * WORDS, item, sizeof item) == 0)
            return;
    if (!gr_grow(g, (void **)&c->work, &c->cap_work, (c->n_work + 1) * WORDS, sizeof *c->work))
        return;
    memcpy(c->work + c->n_work * WORDS, item, sizeof item);
    c->table[at] = (uint32_t)++c->n_work;
}

/* The items of a set, one after the other; copies, as sets move when others are made. */
struct items {
    struct node n;
    uint32_t at;
};

static bool next_item(const struct di_grammar *g, struct items *i, uint32_t item[WORDS])
{
    while (i->at == i->n.phase) {
        if (!i->n.parent)
            return false;
        i->n = g->nodes[i->n.parent];
        i->at = 0;
    }
    memcpy(item, i->n.f + i->at++ * WORDS, WORDS * sizeof *item);
    return true;
}

/* The rule has ended that began in `origin`: its callers there go on. */
static void complete(struct di_grammar *g, uint32_t rule, state_id origin)
{
    const struct cfg *c = g->cfg;
    struct items items = {.n = g->nodes[origin]};
    uint32_t item[WORDS];
    while (next_item(g, &items, item))
        for (uint32_t e = item[0] & IN_TERMINAL ? 0 : c->first[item[0]], end = item[0] & IN_TERMINAL ? 0 : c->first[item[0] + 1]; e < end;
             e++)
            if (c->edges[e].op == CFG_RULE && c->edges[e].what == rule && !c->edges[e].tail)
                add_item(g, c->edges[e].target, item[1] == SELF ? origin : item[1], 0, item[3]);
}

static int by_words(const void *a, const void *b)
{
    return memcmp(a, b, WORDS * sizeof(uint32_t));
}

/* All that follows from the items without reading anything; then the set, as a state. 0: nothing can come and nothing is complete. */
static state_id finish_set(struct di_grammar *g)
{
    struct cfg *c = g->cfg;
    bool accepting = false;
    for (size_t i = 0; i < c->n_work && !g->over && !g->out_of_memory; i++) {
        uint32_t what = c->work[i * WORDS], origin = c->work[i * WORDS + 1], rule = c->work[i * WORDS + 3];
        if (what & IN_TERMINAL)
            continue;
        if (c->end_of[what] != NO_SCHEMA) {
            if (rule == c->root && (origin == SELF ? !g->start : origin == g->start))
                accepting = true;
            if (origin != SELF)
                complete(g, rule, origin);
        }
        for (uint32_t k = c->first[what]; k < c->first[what + 1]; k++) {
            const struct cfg_edge *e = c->edges + k;
            if (e->op == CFG_SEQUENCE) {
                add_item(g, e->target, origin, 0, rule);
            } else if (e->op == CFG_RULE) {
                if (e->tail)
                    add_item(g, c->rules[e->what].start, origin, 0, rule);
                else
                    add_item(g, c->rules[e->what].start, SELF, 0, e->what);
                if (c->rules[e->what].nullable)
                    add_item(g, e->target, origin, 0, rule);
            } else {
                add_item(g, IN_TERMINAL | k, origin, e->what, rule);
                if (e->op == CFG_RX && rx_accepts(&g->rx, e->what))
                    add_item(g, e->target, origin, 0, rule);
            }
        }
    }
    size_t kept = 0; /* terminals, and states that call */
    bool lives = accepting;
    for (size_t i = 0; i < c->n_work; i++) {
        uint32_t *item = c->work + i * WORDS;
        bool keep = item[0] & IN_TERMINAL;
        lives |= keep;
        for (uint32_t k = keep ? 0 : c->first[item[0]], end = keep ? 0 : c->first[item[0] + 1]; k < end; k++)
            keep |= c->edges[k].op == CFG_RULE && !c->edges[k].tail;
        if (keep)
            memmove(c->work + kept++ * WORDS, item, WORDS * sizeof *item);
    }
    state_id set = 0;
    if (lives && !g->over && !g->out_of_memory) {
        if (kept)
            qsort(c->work, kept, WORDS * sizeof *c->work, by_words);
        set = accepting ? gr_node(g, &(struct node){.kind = NODE_ITEMS, .flags = 1}) : 0;
        for (size_t i = 0; i < kept;) {
            struct node n = {.kind = NODE_ITEMS, .parent = set, .flags = accepting};
            while (n.phase < 3 && i < kept) {
                const uint32_t *item = c->work + i * WORDS;
                bool document = item[0] & IN_TERMINAL && c->edges[item[0] & ~IN_TERMINAL].op == CFG_JSON;
                if (document && n.phase)
                    break;
                memcpy(n.f + n.phase * WORDS, item, WORDS * sizeof *item);
                n.phase++;
                i++;
                if (document) { /* what is inside is a state: a node of its own kind says so */
                    n.kind = NODE_ITEM_JSON;
                    break;
                }
            }
            set = gr_node(g, &n);
        }
    }
    c->n_work = 0;
    memset(c->table, 0, c->table_size * sizeof *c->table);
    return g->over || g->out_of_memory ? 0 : set;
}

state_id cfg_step(struct di_grammar *g, state_id s, unsigned byte)
{
    const struct cfg *c = g->cfg;
    struct items items = {.n = g->nodes[s]};
    uint32_t item[WORDS];
    while (next_item(g, &items, item)) {
        if (!(item[0] & IN_TERMINAL))
            continue;
        uint32_t k = item[0] & ~(uint32_t)IN_TERMINAL, origin = item[1] == SELF ? s : item[1], rule = item[3], inside = item[2];
        bool document = c->edges[k].op == CFG_JSON;
        inside = document ? gr_step(g, inside, byte) : rx_step(&g->rx, inside, byte);
        if (!inside)
            continue;
        if (document || inside != RX_EMPTY)
            add_item(g, IN_TERMINAL | k, origin, inside, rule);
        if (document ? gr_accepts(g, inside) : rx_accepts(&g->rx, inside))
            add_item(g, c->edges[k].target, origin, 0, rule);
    }
    return c->n_work ? finish_set(g) : 0;
}

bool cfg_accepts(struct di_grammar *g, state_id s)
{
    return g->nodes[s].flags & 1;
}
