#include "cache/prefix_tree.h"

#include "base/mem.h"

static uint32_t buckets_for(int n)
{
    uint32_t size = 16;
    while (size < (uint32_t)n)
        size *= 2;
    return size;
}

uint64_t di_tree_bytes(int n)
{
    return (uint64_t)n * sizeof(struct di_node) + (uint64_t)buckets_for(n) * sizeof(int32_t);
}

di_status di_tree_init(struct di_tree *t, int n, di_error *err)
{
    di_status status = DI_OK;
    *t = (struct di_tree){.n = n, .mask = buckets_for(n) - 1, .root = -1};
    t->node = di_calloc((size_t)n, sizeof *t->node);
    t->bucket = di_malloc(((size_t)t->mask + 1) * sizeof *t->bucket);
    CHECK(t->node && t->bucket, err, DI_ERR_MEMORY, "", "out of memory for the index of %d cache blocks", n);
    memset(t->bucket, 0xff, ((size_t)t->mask + 1) * sizeof *t->bucket);
out:
    if (status != DI_OK)
        di_tree_fini(t);
    return status;
}

void di_tree_fini(struct di_tree *t)
{
    di_free(t->node);
    di_free(t->bucket);
    *t = (struct di_tree){.root = -1};
}

/* ---------------------------------------------------------------- content */

static void content_images(const struct di_key_text *t, int64_t pos0, int n, struct di_content *c)
{
    for (int i = di_key_image_from(t, pos0); i < t->n_images && t->images[i].begin < pos0 + n; i++) {
        const struct di_key_image *m = &t->images[i];
        int64_t begin = m->begin > pos0 ? m->begin : pos0, end = m->end < pos0 + n ? m->end : pos0 + n;
        if (c->n_spans == DI_CONTENT_SPANS) {
            c->comparable = (int)(begin - pos0);
            return;
        }
        struct di_span *s = &c->spans[c->n_spans++];
        *s = (struct di_span){.at = (int)(begin - pos0), .end = (int)(end - pos0), .index = begin - m->begin};
        memcpy(s->digest, m->digest, DI_KEY_BYTES);
    }
}

void di_content_of(const struct di_key_text *t, int64_t pos0, int n, struct di_content *c)
{
    c->n = c->comparable = n;
    c->n_spans = 0;
    if (n > 0)
        memcpy(c->tokens, t->tokens + pos0, (size_t)n * sizeof *c->tokens);
    content_images(t, pos0, n, c);
}

static int compare_int(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* First position below `n` where the images differ, else n, and how they compare there: no image, a new one, one that goes on. */
static int images_common(const struct di_content *a, const struct di_content *b, int n, int *order)
{
    for (int i = 0; i < a->n_spans || i < b->n_spans; i++) {
        const struct di_span *x = i < a->n_spans ? &a->spans[i] : NULL, *y = i < b->n_spans ? &b->spans[i] : NULL;
        int x_at = x && x->at < n ? x->at : n, y_at = y && y->at < n ? y->at : n;
        if (x_at == n && y_at == n)
            return n;
        *order = compare_int(y_at, x_at);
        if (*order)
            return x_at < y_at ? x_at : y_at;
        *order = memcmp(x->digest, y->digest, DI_KEY_BYTES);
        if (!*order)
            *order = compare_int(x->index, y->index);
        if (*order)
            return x_at;
        *order = compare_int(x->end, y->end);
        if (*order && (x->end < n || y->end < n))
            return x->end < y->end ? x->end : y->end;
    }
    return n;
}

/* Contents are ordered as strings of `comparable` symbols, a symbol being the token and then the image at its place. */
static int common_and_order(const struct di_content *a, const struct di_content *b, int *order)
{
    int n = a->comparable < b->comparable ? a->comparable : b->comparable, i = 0;
    while (i < n && a->tokens[i] == b->tokens[i])
        i++;
    if (a->n_spans || b->n_spans) {
        int k = images_common(a, b, i, order);
        if (k < i)
            return k;
    }
    *order = i < n ? compare_int(a->tokens[i], b->tokens[i]) : compare_int(a->comparable, b->comparable);
    if (!*order)
        *order = compare_int(a->n, b->n);
    return i;
}

int di_content_common(const struct di_content *a, const struct di_content *b)
{
    int order;
    return common_and_order(a, b, &order);
}

static bool content_equal(const struct di_content *a, const struct di_content *b)
{
    return a->n == b->n && a->comparable == b->comparable && di_content_common(a, b) == a->comparable &&
           memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof *a->tokens) == 0;
}

/* ---------------------------------------------------------------- by key */

static int32_t *bucket_of(const struct di_tree *t, const struct di_key *key)
{
    return &t->bucket[(uint32_t)di_key_tag(key) & t->mask];
}

int32_t di_tree_find(const struct di_tree *t, const struct di_key *key, int32_t parent, const struct di_content *c)
{
    for (int32_t b = *bucket_of(t, key); b >= 0; b = t->node[b].bucket_next) {
        const struct di_node *x = &t->node[b];
        if (di_key_equal(&x->key, key) && x->parent == parent && content_equal(&x->content, c))
            return b;
    }
    return -1;
}

int32_t di_tree_find_text(const struct di_tree *t, const struct di_key *key, int32_t parent, const struct di_key_text *text, int64_t pos0)
{
    if (text->n_images > 0) {
        struct di_content c;
        di_content_of(text, pos0, DI_BLOCK_TOKENS, &c);
        return di_tree_find(t, key, parent, &c);
    }
    for (int32_t b = *bucket_of(t, key); b >= 0; b = t->node[b].bucket_next) {
        const struct di_node *x = &t->node[b];
        if (di_key_equal(&x->key, key) && x->parent == parent && x->content.n == DI_BLOCK_TOKENS && x->content.n_spans == 0 &&
            memcmp(x->content.tokens, text->tokens + pos0, sizeof x->content.tokens) == 0)
            return b;
    }
    return -1;
}

/* ---------------------------------------------------------------- order */

/* Negative if node b stands before the place. Equal content stands at the place. */
static int compare_place(const struct di_tree *t, int32_t b, const struct di_place *at)
{
    const struct di_node *x = &t->node[b];
    int order = memcmp(&x->parent_key, at->parent_key, sizeof x->parent_key);
    if (!order)
        order = (int)x->bounded - (int)at->bounded;
    if (!order)
        common_and_order(&x->content, at->content, &order);
    return order;
}

/* Total: nodes of equal content (colliding keys, more images than are compared) go by number. */
static bool stands_before(const struct di_tree *t, int32_t a, int32_t b)
{
    const struct di_node *y = &t->node[b];
    int order = compare_place(t, a, &(struct di_place){&y->parent_key, y->parent, y->bounded, &y->content});
    return order ? order < 0 : a < b;
}

static bool sinks_below(const struct di_tree *t, int32_t a, int32_t b)
{
    const struct di_node *x = &t->node[a], *y = &t->node[b];
    return x->priority != y->priority ? x->priority < y->priority : a < b;
}

static void order_insert(struct di_tree *t, int32_t b)
{
    int32_t *link = &t->root, rest;
    while (*link >= 0 && sinks_below(t, b, *link))
        link = stands_before(t, b, *link) ? &t->node[*link].left : &t->node[*link].right;
    rest = *link;
    *link = b;
    int32_t *left = &t->node[b].left, *right = &t->node[b].right;
    while (rest >= 0) { /* split what was here: smaller to the left, larger to the right */
        struct di_node *x = &t->node[rest];
        if (stands_before(t, rest, b)) {
            *left = rest;
            left = &x->right;
            rest = x->right;
        } else {
            *right = rest;
            right = &x->left;
            rest = x->left;
        }
    }
    *left = *right = -1;
}

static void order_remove(struct di_tree *t, int32_t b)
{
    int32_t *link = &t->root;
    while (*link != b)
        link = stands_before(t, b, *link) ? &t->node[*link].left : &t->node[*link].right;
    int32_t left = t->node[b].left, right = t->node[b].right;
    while (left >= 0 && right >= 0) {
        if (sinks_below(t, right, left)) {
            *link = left;
            link = &t->node[left].right;
            left = *link;
        } else {
            *link = right;
            link = &t->node[right].left;
            right = *link;
        }
    }
    *link = left >= 0 ? left : right;
}

void di_tree_insert(struct di_tree *t, int32_t b)
{
    struct di_node *x = &t->node[b];
    int32_t *head = bucket_of(t, &x->key);
    x->bucket_next = *head;
    *head = b;
    memcpy(&x->priority, x->key.byte + 8, sizeof x->priority);
    order_insert(t, b);
    if (x->parent >= 0)
        t->node[x->parent].n_children++;
    t->n_nodes++;
}

void di_tree_remove(struct di_tree *t, int32_t b)
{
    struct di_node *x = &t->node[b];
    int32_t *link = bucket_of(t, &x->key);
    while (*link != b)
        link = &t->node[*link].bucket_next;
    *link = x->bucket_next;
    order_remove(t, b);
    if (x->parent >= 0)
        t->node[x->parent].n_children--;
    t->n_nodes--;
}

static bool belongs(const struct di_tree *t, int32_t b, const struct di_place *at)
{
    return b >= 0 && t->node[b].parent == at->parent && t->node[b].bounded == at->bounded &&
           di_key_equal(&t->node[b].parent_key, at->parent_key);
}

void di_tree_neighbours(const struct di_tree *t, const struct di_place *at, int32_t *before, int32_t *behind)
{
    *before = *behind = -1;
    for (int32_t b = t->root; b >= 0;) {
        if (compare_place(t, b, at) < 0) {
            *before = b;
            b = t->node[b].right;
        } else {
            *behind = b;
            b = t->node[b].left;
        }
    }
    *before = belongs(t, *before, at) ? *before : -1;
    *behind = belongs(t, *behind, at) ? *behind : -1;
}

int32_t di_tree_nearest(const struct di_tree *t, const struct di_place *at, int *common)
{
    int32_t side[2], best = -1;
    *common = 0;
    di_tree_neighbours(t, at, &side[0], &side[1]);
    for (int i = 0; i < 2; i++) {
        int n = side[i] >= 0 ? di_content_common(&t->node[side[i]].content, at->content) : 0;
        if (n > *common) {
            *common = n;
            best = side[i];
        }
    }
    return best;
}
