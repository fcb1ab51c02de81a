/* Inside of prefix.c: the nodes, found by key, and ordered so that the node that shares most with a given content is a neighbour of its
 * place. Node number = block number. Knows nothing of owners, eviction or snapshots. */
#ifndef DI_CACHE_PREFIX_TREE_H
#define DI_CACHE_PREFIX_TREE_H

#include "cache/block_key.h"

/* Images have at least 100 tokens at released sizes (spec/vision.md §1), so 2 reach into a block; more than 4 are hashed but not
 * compared. */
#define DI_CONTENT_SPANS 4

/* What a block holds. Image positions carry the same token id, so images are part of the comparison. */
struct di_content {
    int n;          /* tokens, 0..64 */
    int comparable; /* <= n; behind it only whole blocks are compared, by key */
    int n_spans;
    int32_t tokens[DI_BLOCK_TOKENS];
    struct di_span {
        int at;        /* first index in the block */
        int end;       /* behind the last index in the block */
        int64_t index; /* of the first one in the image */
        uint8_t digest[DI_KEY_BYTES];
    } spans[DI_CONTENT_SPANS];
};

struct di_node {
    struct di_key key, parent_key;
    struct di_content content;
    int32_t parent; /* -1 below a root */
    int32_t n_children;
    int32_t states; /* first snapshot that ends in this block, -1 = none */
    int32_t bucket_next, left, right;
    uint32_t priority;
    bool bounded;
};

struct di_tree {
    int n, n_nodes;
    struct di_node *node; /* [n] */
    int32_t *bucket;      /* [mask + 1] heads by key */
    uint32_t mask;
    int32_t root; /* of a treap ordered by parent key, provenance, content; priorities come from the keys */
};

di_status di_tree_init(struct di_tree *t, int n, di_error *err);
void di_tree_fini(struct di_tree *t);
uint64_t di_tree_bytes(int n);

void di_content_of(const struct di_key_text *t, int64_t pos0, int n, struct di_content *out);
/* Number of leading positions where both hold the same. */
int di_content_common(const struct di_content *a, const struct di_content *b);

/* The node with this key whose parent and content are equal too; -1 = none. */
int32_t di_tree_find(const struct di_tree *t, const struct di_key *key, int32_t parent, const struct di_content *c);
/* The same for a full block of a text, without building a content where there are no images. */
int32_t di_tree_find_text(const struct di_tree *t, const struct di_key *key, int32_t parent, const struct di_key_text *text, int64_t pos0);

/* Enter or remove node b, whose key, parent_key, parent, content and bounded are set. Counts it at its parent. */
void di_tree_insert(struct di_tree *t, int32_t b);
void di_tree_remove(struct di_tree *t, int32_t b);

/* A place in the order. */
struct di_place {
    const struct di_key *parent_key;
    int32_t parent;
    bool bounded;
    const struct di_content *content;
};
/* The child of `at->parent` with this provenance that has most in common with the content, and how much (0 with -1). */
int32_t di_tree_nearest(const struct di_tree *t, const struct di_place *at, int *common);
/* The nodes right before and at or behind a place, of the same parent and provenance; -1 = none. */
void di_tree_neighbours(const struct di_tree *t, const struct di_place *at, int32_t *before, int32_t *behind);

#endif
