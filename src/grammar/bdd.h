/* Binary decision diagrams: formulas over numbered variables, one form each, so that equal formulas are equal numbers. Private to the room. */
#ifndef DI_GRAMMAR_BDD_H
#define DI_GRAMMAR_BDD_H

#include "base/str.h"

typedef uint32_t bdd_id;
enum { BDD_FALSE = 0, BDD_TRUE = 1 };

struct bdd_node {
    uint32_t var;
    bdd_id low, high; /* the variable is false, true */
    uint32_t chain;
};

struct bdd_memo {
    uint32_t op;
    bdd_id a, b, c, result;
};

struct bdd_pool {
    struct bdd_node *nodes;
    uint32_t *heads;
    struct bdd_memo *memo;
    size_t n, cap, mask, limit, memo_size, work;
    bool out_of_memory, over_limit;
};

bool bdd_init(struct bdd_pool *p, size_t limit);
void bdd_fini(struct bdd_pool *p);
static inline bool bdd_failed(const struct bdd_pool *p) /* then results are BDD_FALSE */
{
    return p->out_of_memory || p->over_limit;
}

bdd_id bdd_var(struct bdd_pool *p, uint32_t var);
bdd_id bdd_ite(struct bdd_pool *p, bdd_id a, bdd_id b, bdd_id c);
static inline bdd_id bdd_and(struct bdd_pool *p, bdd_id a, bdd_id b)
{
    return bdd_ite(p, a, b, BDD_FALSE);
}
static inline bdd_id bdd_or(struct bdd_pool *p, bdd_id a, bdd_id b)
{
    return bdd_ite(p, a, BDD_TRUE, b);
}
static inline bdd_id bdd_not(struct bdd_pool *p, bdd_id a)
{
    return bdd_ite(p, a, BDD_FALSE, BDD_TRUE);
}
/* The variable is `value`. */
bdd_id bdd_set(struct bdd_pool *p, bdd_id a, uint32_t var, bool value);
/* The variable is replaced by f, which may contain it. */
bdd_id bdd_replace(struct bdd_pool *p, bdd_id a, uint32_t var, bdd_id f);
/* All variables at once: variable v by f[v]. */
bdd_id bdd_compose(struct bdd_pool *p, bdd_id a, const bdd_id *f);
/* There is a value of the variable for which a is true. */
bdd_id bdd_exists(struct bdd_pool *p, bdd_id a, uint32_t var);
/* a's value for an assignment. */
static inline bool bdd_value(const struct bdd_pool *p, bdd_id a, const bool *assignment)
{
    while (a > BDD_TRUE)
        a = assignment[p->nodes[a].var] ? p->nodes[a].high : p->nodes[a].low;
    return a;
}
/* Mark in `used` (of n_vars) the variables that a depends on. */
void bdd_support(const struct bdd_pool *p, bdd_id a, bool *used, size_t n_vars);

#endif
