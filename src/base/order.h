/* Ordered sets of things that their owner keeps: a node stands inside the thing, so nothing is allocated and nothing can fail. Every
 * operation takes a logarithmic number of visits to nodes (a treap). Beside its key a node has a size, and the first one in order whose
 * size is at most so much is found as fast. Not thread-safe. */
#ifndef DI_BASE_ORDER_H
#define DI_BASE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

struct di_order_node {
    struct di_order_node *parent, *left, *right;
    void *of;             /* the thing; set by di_order_add */
    int64_t major, minor; /* the key: lower ones first, equal ones in the order of their adding */
    int32_t size, least;  /* least: of the sizes at and below this node */
    uint32_t heap;        /* a parent's is not lower than its children's */
    bool in;              /* it stands in a set */
};

/* Zeroed it is empty. */
struct di_order {
    struct di_order_node *root;
    int64_t n;
    uint64_t added, visited; /* since its beginning: nodes added; nodes that were looked at, which is the work that was done */
};

/* x is in no set, and zeroed if it never was in one. */
void di_order_add(struct di_order *o, struct di_order_node *x, void *of, int64_t major, int64_t minor, int32_t size);
void di_order_remove(struct di_order *o, struct di_order_node *x); /* nothing happens if it is not in */
void di_order_resize(struct di_order *o, struct di_order_node *x, int32_t size);

/* What a node stands in; NULL = there is none. */
void *di_order_first(struct di_order *o);
void *di_order_next(struct di_order *o, const struct di_order_node *x);
void *di_order_from(struct di_order *o, int64_t major, int64_t minor); /* the first whose key is not lower */
void *di_order_within(struct di_order *o, int32_t most);               /* the first whose size is at most that */
static inline int32_t di_order_least(const struct di_order *o)         /* of all sizes; INT32_MAX of an empty set */
{
    return o->root ? o->root->least : INT32_MAX;
}

/* NULL, or what contradicts in the set: its links, its order, its sizes, its count, or what `each` says about one of its things (NULL: it is
 * not asked). Counts no visits; O(n), for tests and assertions. */
const char *di_order_check(const struct di_order *o, const char *(*each)(const void *of, void *ctx), void *ctx);

#endif
