/* The public face: grammars and matchers. Whatever touches the lazily built parts of a grammar holds its lock. */
#include "grammar/cfg.h"
#include "grammar/mask.h"

#include <stdio.h>
#include <stdlib.h>

struct di_matcher {
    struct di_grammar *g;
    const struct di_vocabulary *v;
    state_id *states; /* states[0] is where the steps that may be taken back begin */
    size_t n, cap;
    struct di_matcher *next, *previous; /* of the grammar's */
};

static const char *const kinds[] = {"regex", "choice", "json", "gbnf", "ebnf", "lark", "structural"};

bool di_grammar_kind_named(struct di_str name, enum di_grammar_kind *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (di_str_eqc(name, kinds[i])) {
            *out = (enum di_grammar_kind)i;
            return true;
        }
    return false;
}

/* ---- compiling ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct di_str *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static di_status compile_regex(struct di_grammar *g, rx_id id, di_error *err)
{
    if (!rx_live(&g->rx, id) && gr_health(g, NULL) == DI_OK)
        return di_fail(err, DI_ERR_INVALID, "", "nothing matches the expression");
    g->start = gr_node(g, &(struct node){.kind = NODE_RX, .f = {id}});
    return gr_health(g, err);
}

static di_status compile_choice(struct di_grammar *g, di_error *err)
{
    struct di_json *list;
    struct di_str *texts = NULL;
    size_t n = 0, kept = 0;
    di_status status = DI_OK;
    TRY(di_json_parse(di_buf_str(&g->text), NULL, &g->arena, &list, err));
    CHECK(list->type == DI_JSON_ARRAY && list->count, err, DI_ERR_INVALID, "choice", "a list of strings was expected, not %s",
          list->count ? di_json_type_name(list) : "an empty one");
    texts = di_malloc(list->count * sizeof *texts);
    CHECK(texts, err, DI_ERR_MEMORY, "", "out of memory for a list of choices");
    for (const struct di_json *v = list->child; v; v = v->next) {
        CHECK(v->type == DI_JSON_STRING, err, DI_ERR_INVALID, "choice", "a list of strings was expected; one of them is %s",
              di_json_type_name(v));
        texts[n++] = v->text;
    }
    qsort(texts, n, sizeof *texts, by_bytes);
    for (size_t i = 0; i < n; i++)
        if (!kept || !di_str_eq(texts[kept - 1], texts[i]))
            texts[kept++] = texts[i];
    TRY(compile_regex(g, rx_words(&g->rx, texts, kept), err));
out:
    di_free(texts);
    return status;
}

static di_status compile_json(struct di_grammar *g, di_error *err)
{
    struct di_json *root;
    uint32_t top;
    di_status status = DI_OK;
    TRY(di_json_parse(di_buf_str(&g->text), &(struct di_json_limits){.max_depth = 256}, &g->arena, &root, err));
    TRY(schemas_read(&g->schemas, root, &top, err));
    g->start = json_start(g, top);
    TRY(gr_health(g, err));
    CHECK(g->start || !g->too_deep, err, DI_ERR_LIMIT, "/", "the schema asks for more than 300 values inside each other");
    CHECK(g->start, err, DI_ERR_INVALID, "/", "no value satisfies the schema");
out:
    return status;
}

static di_status compile_kind(struct di_grammar *g, di_error *err)
{
    rx_id id;
    switch (g->kind) {
    case DI_GRAMMAR_REGEX: {
        di_status status = rx_parse(&g->rx, di_buf_str(&g->text), 0, &id, err);
        return status == DI_OK ? compile_regex(g, id, err) : status;
    }
    case DI_GRAMMAR_CHOICE: return compile_choice(g, err);
    case DI_GRAMMAR_JSON: return compile_json(g, err);
    default: return cfg_compile(g, err);
    }
}

di_status di_grammar_compile(enum di_grammar_kind kind, struct di_str text, const struct di_grammar_options *options,
                             struct di_grammar **out, di_error *err)
{
    static const struct di_grammar_limits defaults = {.text_bytes = (size_t)4 << 20,
                                                      .schema_nodes = 400000,
                                                      .regex_nodes = 400000,
                                                      .formula_nodes = 400000,
                                                      .states = 1000000,
                                                      .cached_masks = 1024,
                                                      .depth = 512};
    struct di_grammar *g = di_calloc(1, sizeof *g);
    di_status status = DI_OK;
    *out = NULL;
    if (!g)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a grammar");
    di_arena_init(&g->arena);
    pthread_mutex_init(&g->lock, NULL);
    g->refs = 1;
    g->kind = kind;
    g->options = options ? *options : (struct di_grammar_options){0};
    size_t *limits = (size_t *)&g->options.limits;
    for (size_t i = 0; i < sizeof defaults / sizeof(size_t); i++)
        limits[i] = limits[i] ? limits[i] : ((const size_t *)&defaults)[i];
    g->schemas = (struct schemas){.limit = g->options.limits.schema_nodes, .arena = &g->arena, .rx = &g->rx, .strict = g->options.strict};
    g->cache = di_calloc(1, sizeof *g->cache);
    CHECK(rx_init(&g->rx, g->options.limits.regex_nodes) && bdd_init(&g->bdd, g->options.limits.formula_nodes) && g->cache, err,
          DI_ERR_MEMORY, "", "out of memory for a grammar");
    g->cache->n = g->options.limits.cached_masks;
    CHECK(text.n <= g->options.limits.text_bytes, err, DI_ERR_LIMIT, "", "the grammar has %zu bytes; the limit text_bytes is %zu", text.n,
          g->options.limits.text_bytes);
    di_buf_addv(&g->text, text);
    TRY(di_buf_ok(&g->text, err));
    TRY(compile_kind(g, err));
    *out = g;
    g = NULL;
out:
    di_grammar_unref(g);
    return status;
}

struct di_grammar *di_grammar_ref(struct di_grammar *g)
{
    __atomic_add_fetch(&g->refs, 1, __ATOMIC_RELAXED);
    return g;
}

void di_grammar_unref(struct di_grammar *g)
{
    if (!g || __atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (size_t i = 0; i < g->n_typed; i++) {
        product_destroy(g->typed[i]->product);
        numbers_destroy(g->typed[i]->numbers);
    }
    cfg_destroy(g);
    mask_cache_fini(g->cache);
    schemas_fini(&g->schemas);
    rx_fini(&g->rx);
    bdd_fini(&g->bdd);
    di_buf_fini(&g->text);
    di_free(g->nodes);
    di_free(g->heads);
    di_free(g->sites);
    di_free(g->typed);
    di_free(g->edges);
    di_free(g->edge_heads);
    di_free(g->site_heads);
    di_free(g->words);
    di_free(g->word_heads);
    di_free(g->definitions);
    di_free(g->defined);
    di_arena_fini(&g->arena);
    pthread_mutex_destroy(&g->lock);
    di_free(g);
}

size_t di_grammar_bytes(struct di_grammar *g)
{
    pthread_mutex_lock(&g->lock);
    size_t bytes = sizeof *g + rx_bytes_used(&g->rx) + g->bdd.cap * (sizeof(struct bdd_node) + 4) + g->cap_nodes * sizeof(struct node) +
                   (g->mask + 1) * 4 + g->cap_sites * sizeof(struct site) + g->cap_edges * sizeof(struct edge) + g->cap_words * 4 +
                   g->schemas.cap * sizeof(struct schema) + g->text.cap + di_arena_bytes(&g->arena) +
                   mask_cache_bytes(g->cache, g->vocabulary);
    if (g->cfg)
        bytes += g->cfg->cap_rules * sizeof(struct cfg_rule) + g->cfg->cap_edges * sizeof(struct cfg_edge) + g->cfg->cap_states * 8 +
                 g->cfg->cap_work * 4 + g->cfg->table_size * 4;
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

bool di_grammar_is_well(struct di_grammar *g)
{
    pthread_mutex_lock(&g->lock);
    bool well = gr_health(g, NULL) == DI_OK;
    pthread_mutex_unlock(&g->lock);
    return well;
}

/* ---- states that nobody needs any more ---- */

/* Fields that are numbers of nodes, by kind, as bits. */
static const uint16_t links[] = {
    [NODE_VALUE] = 1 << F_CAPTURE,
    [NODE_WORD] = 1 << F_CAPTURE,
    [NODE_NUMBER] = 1 << F_CAPTURE,
    [NODE_STRING] = 1 << F_CAPTURE,
    [NODE_KEY] = 1 << F_CAPTURE | 1 << F_NAME,
    [NODE_OBJECT] = 1 << F_SEEN | 1 << F_FREE | 1 << F_CAPTURE,
    [NODE_ARRAY] = 1 << F_SEEN | 1 << F_CAPTURE,
    [NODE_ITEMS] = 1 << 1 | 1 << 5 | 1 << 9,
    [NODE_ITEM_JSON] = 1 << 1 | 1 << 2,
    [NODE_LIST] = 1,
};

/* Keep the states that matchers have and what they refer to, and number them anew; as numbers only refer to smaller ones, two passes do. */
static void collect(struct di_grammar *g)
{
    state_id *to = di_calloc(g->n_nodes, sizeof *to);
    if (!to)
        return; /* later, then */
    to[g->start] = 1;
    for (size_t i = 0; g->cfg && i < g->cfg->n_edges; i++)
        if (g->cfg->edges[i].op == CFG_JSON)
            to[g->cfg->edges[i].what] = 1;
    for (struct di_matcher *m = g->matchers; m; m = m->next)
        for (size_t i = 0; i < m->n; i++)
            to[m->states[i]] = 1;
    for (size_t i = g->n_nodes; i-- > 1;) {
        const struct node *n = g->nodes + i;
        if (!to[i])
            continue;
        to[n->parent] = 1;
        for (int k = 0; k < 13; k++)
            if (links[n->kind] >> k & 1)
                to[n->f[k]] = 1;
    }
    size_t kept = 1;
    to[0] = 0;
    for (size_t i = 1; i < g->n_nodes; i++) {
        struct node n = g->nodes[i];
        if (!to[i])
            continue;
        to[i] = (state_id)kept;
        n.parent = to[n.parent];
        for (int k = 0; k < 13; k++)
            if (links[n.kind] >> k & 1)
                n.f[k] = to[n.f[k]];
        g->nodes[kept++] = n;
    }
    g->n_nodes = kept;
    memset(g->heads, 0, (g->mask + 1) * sizeof *g->heads);
    for (uint32_t i = 1; i < g->n_nodes; i++)
        gr_link(g, i);
    g->start = to[g->start];
    for (size_t i = 0; g->cfg && i < g->cfg->n_edges; i++)
        if (g->cfg->edges[i].op == CFG_JSON)
            g->cfg->edges[i].what = to[g->cfg->edges[i].what];
    for (struct di_matcher *m = g->matchers; m; m = m->next)
        for (size_t i = 0; i < m->n; i++)
            m->states[i] = to[m->states[i]];
    g->free.parent = g->repeated.text = 0;
    mask_cache_forget(g->cache);
    di_free(to);
}

/* ---- matchers ---- */

/* Take the lock; what a call may spend on formulas begins anew. */
static void hold(struct di_grammar *g)
{
    pthread_mutex_lock(&g->lock);
    g->bdd.work = 0;
}

static struct di_matcher *new_matcher(struct di_grammar *g, const struct di_vocabulary *v, const state_id *states, size_t n)
{
    struct di_matcher *m = di_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->cap = n + 64;
    m->states = di_malloc(m->cap * sizeof *m->states);
    if (!m->states) {
        di_free(m);
        return NULL;
    }
    memcpy(m->states, states, n * sizeof *states);
    m->n = n;
    m->g = di_grammar_ref(g);
    m->v = v;
    m->next = g->matchers;
    if (m->next)
        m->next->previous = m;
    g->matchers = m;
    return m;
}

di_status di_matcher_create(struct di_grammar *g, const struct di_vocabulary *v, struct di_matcher **out, di_error *err)
{
    hold(g);
    bool other = v && g->vocabulary && g->vocabulary != v;
    if (v && !other)
        g->vocabulary = v;
    *out = other ? NULL : new_matcher(g, v, &g->start, 1);
    pthread_mutex_unlock(&g->lock);
    if (other)
        return di_fail(err, DI_ERR_INVALID, "", "the grammar is used with another vocabulary");
    return *out ? DI_OK : di_fail(err, DI_ERR_MEMORY, "", "out of memory for a matcher");
}

di_status di_matcher_fork(const struct di_matcher *m, struct di_matcher **out, di_error *err)
{
    hold(m->g);
    *out = new_matcher(m->g, m->v, m->states, m->n);
    pthread_mutex_unlock(&m->g->lock);
    return *out ? DI_OK : di_fail(err, DI_ERR_MEMORY, "", "out of memory for a matcher");
}

void di_matcher_destroy(struct di_matcher *m)
{
    if (!m)
        return;
    hold(m->g);
    if (m->next)
        m->next->previous = m->previous;
    if (m->previous)
        m->previous->next = m->next;
    else
        m->g->matchers = m->next;
    pthread_mutex_unlock(&m->g->lock);
    di_grammar_unref(m->g);
    di_free(m->states);
    di_free(m);
}

static di_status accept_locked(struct di_matcher *m, struct di_str bytes, di_error *err)
{
    struct di_grammar *g = m->g;
    if (g->n_nodes > g->options.limits.states)
        collect(g);
    if (!gr_grow(g, (void **)&m->states, &m->cap, m->n + 1, sizeof *m->states))
        return gr_health(g, err);
    size_t mark = g->n_nodes;
    state_id s = m->states[m->n - 1];
    for (size_t i = 0; i < bytes.n; i++) {
        s = gr_step(g, s, (unsigned char)bytes.p[i]);
        if (s)
            continue;
        gr_drop(g, mark);
        di_status status = gr_health(g, err);
        if (status != DI_OK)
            return status;
        char where[32];
        snprintf(where, sizeof where, "byte %zu", i);
        return di_fail(err, DI_ERR_INVALID, where, "the grammar does not allow this text");
    }
    m->states[m->n++] = s;
    return DI_OK;
}

di_status di_matcher_accept_bytes(struct di_matcher *m, struct di_str bytes, di_error *err)
{
    hold(m->g);
    di_status status = accept_locked(m, bytes, err);
    pthread_mutex_unlock(&m->g->lock);
    return status;
}

di_status di_matcher_accept_token(struct di_matcher *m, int32_t id, di_error *err)
{
    struct di_str bytes = m->v && id >= 0 ? di_vocabulary_token(m->v, (size_t)id) : (struct di_str){0};
    if (!bytes.n)
        return di_fail(err, DI_ERR_INVALID, "", "token %d has no text", (int)id);
    return di_matcher_accept_bytes(m, bytes, err);
}

bool di_matcher_rollback(struct di_matcher *m, size_t k)
{
    if (k >= m->n)
        return false;
    pthread_mutex_lock(&m->g->lock); /* another matcher's thread may be collecting what nobody's list names */
    m->n -= k;
    pthread_mutex_unlock(&m->g->lock);
    return true;
}

void di_matcher_forget(struct di_matcher *m, size_t keep)
{
    if (keep + 1 >= m->n)
        return;
    hold(m->g); /* who collects reads the list */
    memmove(m->states, m->states + m->n - keep - 1, (keep + 1) * sizeof *m->states);
    m->n = keep + 1;
    pthread_mutex_unlock(&m->g->lock);
}

size_t di_matcher_steps(const struct di_matcher *m)
{
    return m->n - 1;
}

bool di_matcher_is_accepting(struct di_matcher *m)
{
    hold(m->g);
    bool yes = gr_accepts(m->g, m->states[m->n - 1]);
    pthread_mutex_unlock(&m->g->lock);
    return yes;
}

di_status di_matcher_mask(struct di_matcher *m, uint32_t *out, di_error *err)
{
    struct di_grammar *g = m->g;
    if (!m->v)
        return di_fail(err, DI_ERR_INVALID, "", "the matcher has no vocabulary");
    hold(g);
    mask_compute(g, m->v, m->states[m->n - 1], out);
    di_status status = gr_health(g, err);
    pthread_mutex_unlock(&g->lock);
    if (status != DI_OK)
        memset(out, 0, m->v->words * sizeof *out);
    return status;
}

di_status di_matcher_forced(struct di_matcher *m, size_t most, struct di_buf *out, di_error *err)
{
    struct di_grammar *g = m->g;
    hold(g);
    size_t mark = g->n_nodes;
    state_id s = m->states[m->n - 1];
    for (size_t n = 0; n < most && !gr_accepts(g, s); n++) {
        state_id only = 0;
        unsigned byte = 0, count = 0;
        for (unsigned b = 0; b < 256 && count < 2; b++) {
            state_id to = gr_step(g, s, b);
            if (to) {
                only = to;
                byte = b;
                count++;
            }
        }
        if (count != 1)
            break;
        di_buf_addc(out, (char)byte);
        s = only;
    }
    gr_drop(g, mark);
    di_status status = gr_health(g, err);
    pthread_mutex_unlock(&g->lock);
    return status == DI_OK ? di_buf_ok(out, err) : status;
}

size_t di_matcher_distance(struct di_matcher *m)
{
    hold(m->g);
    size_t d = gr_distance(m->g, m->states[m->n - 1]);
    pthread_mutex_unlock(&m->g->lock);
    return d;
}
