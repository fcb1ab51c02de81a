#include "grammar/bdd.h"

#define MOST_MEMO ((size_t)1 << 18) /* entries of 20 bytes */
#define MOST_WORK 4000000           /* calls that were not remembered, since `work` was set to 0, before a formula counts as too large */
enum { MEMO_ITE = 1, MEMO_REPLACE };

bool bdd_init(struct bdd_pool *p, size_t limit)
{
    *p = (struct bdd_pool){.mask = 255, .cap = 256, .n = 2, .limit = limit};
    p->nodes = di_calloc(p->cap, sizeof *p->nodes);
    p->heads = di_calloc(p->mask + 1, sizeof *p->heads);
    p->nodes ? (void)(p->nodes[0].var = p->nodes[1].var = UINT32_MAX) : (void)0;
    return p->nodes && p->heads;
}

void bdd_fini(struct bdd_pool *p)
{
    di_free(p->nodes);
    di_free(p->heads);
    di_free(p->memo);
}

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t h = (a * 0x9E3779B97F4A7C15u ^ b) * 0xD6E8FEB86659FD93u;
    h = (h ^ c ^ h >> 31) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

static bool enlarge(struct bdd_pool *p)
{
    struct bdd_node *nodes = di_realloc(p->nodes, p->cap * 2 * sizeof *nodes);
    if (nodes)
        p->nodes = nodes;
    uint32_t *heads = nodes ? di_calloc(p->cap * 2, sizeof *heads) : NULL;
    if (!heads) {
        p->out_of_memory = true;
        return false;
    }
    di_free(p->heads);
    p->heads = heads;
    p->cap *= 2;
    p->mask = p->cap - 1;
    for (uint32_t i = 2; i < p->n; i++) {
        struct bdd_node *n = p->nodes + i;
        uint32_t *head = heads + (mix(n->var, n->low, n->high) & p->mask);
        n->chain = *head;
        *head = i;
    }
    return true;
}

static bdd_id make(struct bdd_pool *p, uint32_t var, bdd_id low, bdd_id high)
{
    if (low == high)
        return low;
    if (bdd_failed(p))
        return BDD_FALSE;
    uint32_t at = mix(var, low, high);
    for (uint32_t i = p->heads[at & p->mask]; i; i = p->nodes[i].chain)
        if (p->nodes[i].var == var && p->nodes[i].low == low && p->nodes[i].high == high)
            return i;
    if (p->n >= p->limit) {
        p->over_limit = true;
        return BDD_FALSE;
    }
    if (p->n == p->cap && !enlarge(p))
        return BDD_FALSE;
    p->nodes[p->n] = (struct bdd_node){var, low, high, p->heads[at & p->mask]};
    p->heads[at & p->mask] = (uint32_t)p->n;
    return (bdd_id)p->n++;
}

bdd_id bdd_var(struct bdd_pool *p, uint32_t var)
{
    return make(p, var, BDD_FALSE, BDD_TRUE);
}

static struct bdd_memo *recall(struct bdd_pool *p, uint32_t op, bdd_id a, bdd_id b, bdd_id c)
{
    if (p->memo_size < p->cap && p->memo_size < MOST_MEMO) { /* it forgets: entries take each other's place, and all go when it grows */
        di_free(p->memo);
        p->memo_size = p->cap;
        p->memo = di_calloc(p->memo_size, sizeof *p->memo);
    }
    if (!p->memo) {
        p->out_of_memory = true;
        return NULL;
    }
    return p->memo + (mix(a * 31 + op, b, c) & (p->memo_size - 1));
}

static bool known(const struct bdd_memo *m, uint32_t op, bdd_id a, bdd_id b, bdd_id c)
{
    return m && m->op == op && m->a == a && m->b == b && m->c == c;
}

static bdd_id keep(struct bdd_pool *p, uint32_t op, bdd_id a, bdd_id b, bdd_id c, bdd_id result)
{
    struct bdd_memo *m = bdd_failed(p) ? NULL : recall(p, op, a, b, c); /* the memo may have moved since */
    if (++p->work > MOST_WORK)
        p->over_limit = true;
    if (!m || bdd_failed(p))
        return BDD_FALSE;
    *m = (struct bdd_memo){op, a, b, c, result};
    return result;
}

static bdd_id branch(const struct bdd_pool *p, bdd_id a, uint32_t var, bool high)
{
    return p->nodes[a].var != var ? a : high ? p->nodes[a].high : p->nodes[a].low;
}

bdd_id bdd_ite(struct bdd_pool *p, bdd_id a, bdd_id b, bdd_id c)
{
    if (a == BDD_TRUE || b == c)
        return b;
    if (a == BDD_FALSE)
        return c;
    if (b == BDD_TRUE && c == BDD_FALSE)
        return a;
    struct bdd_memo *m = recall(p, MEMO_ITE, a, b, c);
    if (known(m, MEMO_ITE, a, b, c))
        return m->result;
    if (bdd_failed(p))
        return BDD_FALSE;
    uint32_t var = p->nodes[a].var;
    var = p->nodes[b].var < var ? p->nodes[b].var : var;
    var = p->nodes[c].var < var ? p->nodes[c].var : var;
    bdd_id low = bdd_ite(p, branch(p, a, var, false), branch(p, b, var, false), branch(p, c, var, false));
    bdd_id high = bdd_ite(p, branch(p, a, var, true), branch(p, b, var, true), branch(p, c, var, true));
    bdd_id result = make(p, var, low, high);
    return keep(p, MEMO_ITE, a, b, c, result);
}

bdd_id bdd_replace(struct bdd_pool *p, bdd_id a, uint32_t var, bdd_id f)
{
    const struct bdd_node n = p->nodes[a];
    if (a <= BDD_TRUE || n.var > var)
        return a;
    if (n.var == var)
        return bdd_ite(p, f, n.high, n.low);
    struct bdd_memo *m = recall(p, MEMO_REPLACE, a, var, f);
    if (known(m, MEMO_REPLACE, a, var, f))
        return m->result;
    if (bdd_failed(p))
        return BDD_FALSE;
    bdd_id low = bdd_replace(p, n.low, var, f), high = bdd_replace(p, n.high, var, f);
    bdd_id result = bdd_ite(p, bdd_var(p, n.var), high, low);
    return keep(p, MEMO_REPLACE, a, var, f, result);
}

bdd_id bdd_set(struct bdd_pool *p, bdd_id a, uint32_t var, bool value)
{
    return bdd_replace(p, a, var, value ? BDD_TRUE : BDD_FALSE);
}

bdd_id bdd_exists(struct bdd_pool *p, bdd_id a, uint32_t var)
{
    return bdd_or(p, bdd_set(p, a, var, false), bdd_set(p, a, var, true));
}

/* Nodes of a below itself are few where this is used; each is computed once through the memo of ite, so paths are bounded by `budget`. */
static bdd_id compose(struct bdd_pool *p, bdd_id a, const bdd_id *f, bdd_id *done)
{
    if (a <= BDD_TRUE)
        return a;
    if (done[a])
        return done[a] - 1;
    bdd_id low = compose(p, p->nodes[a].low, f, done), high = compose(p, p->nodes[a].high, f, done);
    bdd_id result = bdd_ite(p, f[p->nodes[a].var], high, low);
    done[a] = result + 1;
    return result;
}

bdd_id bdd_compose(struct bdd_pool *p, bdd_id a, const bdd_id *f)
{
    if (a <= BDD_TRUE)
        return a;
    bdd_id *done = di_calloc((size_t)a + 1, sizeof *done); /* parts have smaller numbers */
    if (!done) {
        p->out_of_memory = true;
        return BDD_FALSE;
    }
    bdd_id result = compose(p, a, f, done);
    di_free(done);
    return result;
}

static void support(const struct bdd_pool *p, bdd_id a, bool *used, size_t n_vars, uint8_t *seen)
{
    if (a <= BDD_TRUE || seen[a])
        return;
    seen[a] = 1;
    if (p->nodes[a].var < n_vars)
        used[p->nodes[a].var] = true;
    support(p, p->nodes[a].low, used, n_vars, seen);
    support(p, p->nodes[a].high, used, n_vars, seen);
}

void bdd_support(const struct bdd_pool *p, bdd_id a, bool *used, size_t n_vars)
{
    if (a <= BDD_TRUE)
        return;
    uint8_t *seen = di_calloc((size_t)a + 1, 1);
    if (!seen) { /* then all of them, which is always right */
        memset(used, true, n_vars);
        return;
    }
    support(p, a, used, n_vars, seen);
    di_free(seen);
}
