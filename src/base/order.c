#include "base/order.h"

#include "base/assert.h"

#include <stddef.h>

typedef struct di_order_node node;

/* Tells nodes apart at random, and the same way in every run. */
static uint32_t scatter(uint64_t x)
{
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

static void update_node(node *x)
{
    x->least = x->size;
    if (x->left && x->left->least < x->least)
        x->least = x->left->least;
    if (x->right && x->right->least < x->least)
        x->least = x->right->least;
}

/* Something changed below or in x: measure it and what is above it, up to the first that stays as it was. */
static void measure_up(struct di_order *o, node *x)
{
    for (bool changed = true; x && changed; x = x->parent) {
        int32_t before = x->least;
        o->visited++;
        update_node(x);
        changed = x->least != before;
    }
}

/* Where the parent of x, or the set, names it. */
static node **link_of(struct di_order *o, const node *x)
{
    return !x->parent ? &o->root : x->parent->left == x ? &x->parent->left : &x->parent->right;
}

/* x takes the place of its parent, which becomes its child. */
static void rotate_up(struct di_order *o, node *x)
{
    node *p = x->parent, **at = link_of(o, p);
    bool left = p->left == x;
    node **inner = left ? &x->right : &x->left;
    o->visited++;
    *(left ? &p->left : &p->right) = *inner;
    if (*inner)
        (*inner)->parent = p;
    *inner = p;
    x->parent = p->parent;
    p->parent = x;
    *at = x;
    update_node(p);
    update_node(x);
}

static bool stands_in(const struct di_order *o, const node *x)
{
    while (x->parent)
        x = x->parent;
    return x == o->root;
}

static bool is_before(const node *x, int64_t major, int64_t minor)
{
    return x->major != major ? x->major < major : x->minor < minor;
}

void di_order_add(struct di_order *o, node *x, void *of, int64_t major, int64_t minor, int32_t size)
{
    node **at = &o->root;
    DI_ASSERT(!x->in);
    *x = (node){.of = of, .major = major, .minor = minor, .size = size, .heap = scatter(++o->added), .in = true};
    while (*at) {
        o->visited++;
        x->parent = *at;
        bool behind = is_before(*at, major, minor) || ((*at)->major == major && (*at)->minor == minor);
        at = behind ? &(*at)->right : &(*at)->left;
    }
    *at = x;
    o->n++;
    update_node(x);
    while (x->parent && x->parent->heap < x->heap)
        rotate_up(o, x);
    measure_up(o, x->parent);
}

void di_order_remove(struct di_order *o, node *x)
{
    if (!x->in)
        return;
    DI_ASSERT(stands_in(o, x));
    while (x->left || x->right)
        rotate_up(o, !x->left ? x->right : !x->right || x->left->heap > x->right->heap ? x->left : x->right);
    *link_of(o, x) = NULL;
    measure_up(o, x->parent);
    x->in = false;
    o->n--;
}

void di_order_resize(struct di_order *o, node *x, int32_t size)
{
    DI_ASSERT(x->in && stands_in(o, x));
    x->size = size;
    measure_up(o, x);
}

static void *leftmost(struct di_order *o, const node *x)
{
    for (; x && x->left; x = x->left)
        o->visited++;
    return x ? x->of : NULL;
}

void *di_order_first(struct di_order *o)
{
    return leftmost(o, o->root);
}

void *di_order_next(struct di_order *o, const node *x)
{
    if (x->right)
        return leftmost(o, x->right);
    for (o->visited++; x->parent && x->parent->right == x; x = x->parent)
        o->visited++;
    return x->parent ? x->parent->of : NULL;
}

void *di_order_from(struct di_order *o, int64_t major, int64_t minor)
{
    const node *best = NULL;
    for (const node *x = o->root; x; o->visited++) {
        bool before = is_before(x, major, minor);
        best = before ? best : x;
        x = before ? x->right : x->left;
    }
    return best ? best->of : NULL;
}

void *di_order_within(struct di_order *o, int32_t most)
{
    const node *x = o->root;
    while (x && x->least <= most) {
        o->visited++;
        if (x->left && x->left->least <= most)
            x = x->left;
        else if (x->size <= most)
            return x->of;
        else
            x = x->right;
    }
    return NULL;
}

struct inspection {
    const char *(*each)(const void *of, void *ctx);
    void *ctx;
    int64_t n;
    const node *last;
};

static const char *inspect_node(struct inspection *s, const node *x, const node *parent)
{
    if (!x)
        return NULL;
    node measured = *x;
    update_node(&measured);
    if (x->parent != parent || !x->in || (parent && parent->heap < x->heap))
        return "a node of an ordered set is linked wrongly";
    if (x->least != measured.least)
        return "a node of an ordered set does not know the least size below it";
    const char *wrong = inspect_node(s, x->left, x);
    if (wrong)
        return wrong;
    if (s->last && is_before(x, s->last->major, s->last->minor))
        return "an ordered set is out of order";
    s->last = x;
    s->n++;
    wrong = s->each ? s->each(x->of, s->ctx) : NULL;
    return wrong ? wrong : inspect_node(s, x->right, x);
}

const char *di_order_check(const struct di_order *o, const char *(*each)(const void *of, void *ctx), void *ctx)
{
    struct inspection s = {.each = each, .ctx = ctx};
    const char *wrong = inspect_node(&s, o->root, NULL);
    return wrong || s.n == o->n ? wrong : "the count of an ordered set is wrong";
}
