#include "text/bpe.h"

#define NO_RANK UINT32_MAX
#define FREE_SLOT UINT64_MAX
#define SHORT_PIECE 48  /* up to here scanning for the lowest rank beats the heap */
#define MAX_PROBES 1000

void di_ids_fini(struct di_ids *ids)
{
    di_free(ids->v);
    *ids = (struct di_ids){0};
}

bool di_ids_reserve(struct di_ids *ids, size_t more)
{
    size_t need, bytes;
    if (!di_add(ids->n, more, &need))
        return false;
    if (need <= ids->cap)
        return true;
    size_t cap = ids->cap < 32 ? 32 : ids->cap;
    while (cap < need && cap <= SIZE_MAX / 2)
        cap *= 2;
    if (!di_mul(cap, sizeof *ids->v, &bytes) || cap < need)
        return false;
    int32_t *v = di_realloc(ids->v, bytes);
    if (!v)
        return false;
    ids->v = v;
    ids->cap = cap;
    return true;
}

di_status di_bpe_init(struct di_bpe *b, uint32_t merges, di_error *err)
{
    unsigned log2 = 4;
    while (((size_t)1 << log2) < (size_t)merges * 2)
        log2++;
    size_t slots = (size_t)1 << log2;
    b->n_merges = 0;
    b->cap_merges = merges;
    b->shift = 64 - log2;
    b->pairs = di_malloc(slots * sizeof *b->pairs);
    b->byte_rank = di_malloc(65536 * sizeof *b->byte_rank);
    b->merged = di_malloc(merges * sizeof *b->merged);
    if (!b->pairs || !b->byte_rank || !b->merged) {
        di_bpe_fini(b);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for %u merges", (unsigned)merges);
    }
    memset(b->pairs, 0xFF, slots * sizeof *b->pairs);
    return DI_OK;
}

void di_bpe_fini(struct di_bpe *b)
{
    di_free(b->pairs);
    di_free(b->byte_rank);
    di_free(b->merged);
    b->pairs = NULL;
    b->byte_rank = NULL;
    b->merged = NULL;
}

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 20 | (uint32_t)right;
}

static inline size_t pair_slot(const struct di_bpe *b, uint64_t key)
{
    return (size_t)((key ^ key >> 23) * 0x9E3779B97F4A7C15u >> b->shift);
}

static inline uint32_t pair_rank(const struct di_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1;
    for (size_t h = pair_slot(b, key);; h = (h + 1) & mask) {
        uint64_t e = b->pairs[h];
        if (e == FREE_SLOT)
            return NO_RANK;
        if (e >> 24 == key)
            return (uint32_t)(e & 0xFFFFFF);
    }
}

di_status di_bpe_add(struct di_bpe *b, int32_t left, int32_t right, int32_t merged, di_error *err)
{
    uint64_t key = pair_key(left, right);
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1, h = pair_slot(b, key);
    if (b->n_merges >= b->cap_merges)
        return di_fail(err, DI_ERR_INTERNAL, "", "more merges than were announced");
    for (unsigned probes = 0; b->pairs[h] != FREE_SLOT; h = (h + 1) & mask) {
        if (b->pairs[h] >> 24 == key)
            return di_fail(err, DI_ERR_FORMAT, "", "the pair of ids %d and %d is merged twice", (int)left, (int)right);
        if (++probes > MAX_PROBES)
            return di_fail(err, DI_ERR_LIMIT, "", "the merges collide in the pair table");
    }
    b->pairs[h] = key << 24 | b->n_merges;
    b->merged[b->n_merges++] = merged;
    return DI_OK;
}

void di_bpe_finish(struct di_bpe *b)
{
    for (unsigned i = 0; i < 65536; i++)
        b->byte_rank[i] = pair_rank(b, b->byte_id[i >> 8], b->byte_id[i & 255]);
}

/* rank[i] belongs to the pair of symbols i and i+1; rank[n-1] is NO_RANK. */
static size_t merge_short(const struct di_bpe *b, int32_t *sym, uint32_t *rank, size_t n)
{
    for (;;) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (rank[i] < rank[at])
                at = i;
        if (rank[at] == NO_RANK)
            return n;
        sym[at] = b->merged[rank[at]];
        n--;
        memmove(sym + at + 1, sym + at + 2, (n - at - 1) * sizeof *sym);
        memmove(rank + at, rank + at + 1, (n - at) * sizeof *rank);
        rank[at] = at + 1 < n ? pair_rank(b, sym[at], sym[at + 1]) : NO_RANK;
        if (at > 0)
            rank[at - 1] = pair_rank(b, sym[at - 1], sym[at]);
    }
}

/* A long piece: symbols form a linked list, candidate merges a binary heap ordered by (rank, position). An entry is stale when the
 * rank at its position has changed since; equal ranks mean the same pair, so a stale entry can't pass for a fresh one. */
struct node {
    uint32_t prev, next; /* position of the neighbours; `next` of the last one is n */
    int32_t sym;
    uint32_t rank; /* of this symbol with the next one */
};

struct heap {
    uint64_t *v; /* rank << 32 | position */
    size_t n;
};

static void sift_down(struct heap *h, size_t i)
{
    uint64_t x = h->v[i];
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= h->n)
            break;
        if (c + 1 < h->n && h->v[c + 1] < h->v[c])
            c++;
        if (h->v[c] >= x)
            break;
        h->v[i] = h->v[c];
        i = c;
    }
    h->v[i] = x;
}

static void heap_push(struct heap *h, uint64_t x)
{
    size_t i = h->n++;
    for (; i > 0 && h->v[(i - 1) / 2] > x; i = (i - 1) / 2)
        h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = x;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->v[0];
    h->v[0] = h->v[--h->n];
    if (h->n > 1)
        sift_down(h, 0);
    return top;
}

static void set_rank(const struct di_bpe *b, struct node *node, struct heap *h, uint32_t at, uint32_t n)
{
    node[at].rank = node[at].next < n ? pair_rank(b, node[at].sym, node[node[at].next].sym) : NO_RANK;
    if (node[at].rank != NO_RANK)
        heap_push(h, (uint64_t)node[at].rank << 32 | at);
}

static void merge_long(const struct di_bpe *b, struct node *node, struct heap *h, uint32_t n)
{
    for (size_t i = h->n / 2; i-- > 0;)
        sift_down(h, i);
    while (h->n) {
        uint64_t top = heap_pop(h);
        uint32_t at = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (node[at].rank != rank)
            continue;
        uint32_t gone = node[at].next, next = node[gone].next;
        node[at].sym = b->merged[rank];
        node[at].next = next;
        node[gone].rank = NO_RANK;
        if (next < n)
            node[next].prev = at;
        set_rank(b, node, h, at, n);
        if (at > 0)
            set_rank(b, node, h, node[at].prev, n);
    }
}

static di_status encode_long(const struct di_bpe *b, const unsigned char *s, size_t n, struct di_ids *out, di_error *err)
{
    di_status status = DI_OK;
    struct node *node = NULL;
    struct heap heap = {0};
    CHECK(n < UINT32_MAX, err, DI_ERR_LIMIT, "", "a piece of %zu bytes is too long", n);
    /* each merge takes one entry off the heap and adds at most two, so it never holds more than 2n */
    node = di_malloc(n * sizeof *node);
    heap.v = di_malloc(2 * n * sizeof *heap.v);
    CHECK(node && heap.v, err, DI_ERR_MEMORY, "", "out of memory for a piece of %zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        uint32_t rank = i + 1 < n ? b->byte_rank[s[i] << 8 | s[i + 1]] : NO_RANK;
        node[i] = (struct node){(uint32_t)i - 1, (uint32_t)i + 1, b->byte_id[s[i]], rank};
        if (rank != NO_RANK)
            heap.v[heap.n++] = (uint64_t)rank << 32 | i;
    }
    merge_long(b, node, &heap, (uint32_t)n);
    for (size_t i = 0; i < n; i = node[i].next) {
        CHECK(di_ids_reserve(out, 1), err, DI_ERR_MEMORY, "", "out of memory for token ids");
        out->v[out->n++] = node[i].sym;
    }
out:
    di_free(node);
    di_free(heap.v);
    return status;
}

di_status di_bpe_encode(const struct di_bpe *b, const char *text, size_t n, struct di_ids *out, di_error *err)
{
    const unsigned char *s = (const unsigned char *)text;
    if (n > SHORT_PIECE)
        return encode_long(b, s, n, out, err);
    if (n == 0)
        return DI_OK;
    int32_t sym[SHORT_PIECE];
    uint32_t rank[SHORT_PIECE];
    for (size_t i = 0; i < n; i++) {
        sym[i] = b->byte_id[s[i]];
        rank[i] = i + 1 < n ? b->byte_rank[s[i] << 8 | s[i + 1]] : NO_RANK;
    }
    n = merge_short(b, sym, rank, n);
    if (!di_ids_reserve(out, n))
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for token ids");
    memcpy(out->v + out->n, sym, n * sizeof *sym);
    out->n += n;
    return DI_OK;
}
