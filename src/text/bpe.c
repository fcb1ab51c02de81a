#include "text/bpe.h"

#define NO_RANK UINT32_MAX
#define FREE_SLOT UINT64_MAX
#define NO_KEY INT32_MAX
#define SHORT_PIECE 256 /* up to here looking for the lowest rank beats a heap; positions fit one byte */
#define GROUP 8
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
    b->filter = di_calloc(slots / 2, 1);
    b->byte_rank = di_malloc(65536 * sizeof *b->byte_rank);
    b->merged = di_malloc(merges * sizeof *b->merged);
    if (!b->pairs || !b->filter || !b->byte_rank || !b->merged) {
        di_bpe_fini(b);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for %u merges", (unsigned)merges);
    }
    memset(b->pairs, 0xFF, slots * sizeof *b->pairs);
    return DI_OK;
}

void di_bpe_fini(struct di_bpe *b)
{
    di_free(b->pairs);
    di_free(b->filter);
    di_free(b->byte_rank);
    di_free(b->merged);
    b->pairs = NULL;
    b->filter = NULL;
    b->byte_rank = NULL;
    b->merged = NULL;
}

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 20 | (uint32_t)right;
}

static inline uint64_t pair_hash(uint64_t key)
{
    return (key ^ key >> 23) * 0x9E3779B97F4A7C15u;
}

/* Bit of the filter that a pair sets: the slot and two bits more. */
static inline size_t filter_bit(const struct di_bpe *b, uint64_t hash)
{
    return (size_t)(hash >> (b->shift - 2));
}

static inline uint32_t pair_rank(const struct di_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right), hash = pair_hash(key);
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1, bit = filter_bit(b, hash);
    if (!(b->filter[bit >> 3] >> (bit & 7) & 1))
        return NO_RANK;
    for (size_t h = (size_t)(hash >> b->shift);; h = (h + 1) & mask) {
        uint64_t e = b->pairs[h];
        if (e == FREE_SLOT)
            return NO_RANK;
        if (e >> 24 == key)
            return (uint32_t)(e & 0xFFFFFF);
    }
}

di_status di_bpe_add(struct di_bpe *b, int32_t left, int32_t right, int32_t merged, di_error *err)
{
    uint64_t key = pair_key(left, right), hash = pair_hash(key);
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1, h = (size_t)(hash >> b->shift), bit = filter_bit(b, hash);
    if (b->n_merges >= b->cap_merges)
        return di_fail(err, DI_ERR_INTERNAL, "", "more merges than were announced");
    for (unsigned probes = 0; b->pairs[h] != FREE_SLOT; h = (h + 1) & mask) {
        if (b->pairs[h] >> 24 == key)
            return di_fail(err, DI_ERR_FORMAT, "", "the pair of ids %d and %d is merged twice", (int)left, (int)right);
        if (++probes > MAX_PROBES)
            return di_fail(err, DI_ERR_LIMIT, "", "the merges collide in the pair table");
    }
    b->pairs[h] = key << 24 | b->n_merges;
    b->filter[bit >> 3] |= (unsigned char)(1 << (bit & 7));
    b->merged[b->n_merges++] = merged;
    return DI_OK;
}

void di_bpe_finish(struct di_bpe *b)
{
    for (unsigned i = 0; i < 65536; i++)
        b->byte_rank[i] = pair_rank(b, b->byte_id[i >> 8], b->byte_id[i & 255]);
}

/* A short piece. key[i] = rank of symbol i with its right neighbour << 8 | i, so that the smallest key is the lowest rank, leftmost first.
 * Symbols stay in their places; the keys of the dead and of those without a rank are NO_KEY. low[g] is the smallest key of group g, so
 * that a merge costs three groups and one look over the groups. */
struct short_piece {
    int32_t key[SHORT_PIECE], low[SHORT_PIECE / GROUP]; /* signed: SSE2 compares these */
    int32_t sym[SHORT_PIECE];
    unsigned char prev[SHORT_PIECE], next[SHORT_PIECE]; /* next of the last one is 0 */
};

static inline int32_t smallest(const int32_t *v, size_t n)
{
    int32_t low = v[0];
    for (size_t i = 1; i < n; i++)
        low = v[i] < low ? v[i] : low;
    return low;
}

static inline void set_key(const struct di_bpe *b, struct short_piece *p, unsigned i)
{
    uint32_t rank = p->next[i] ? pair_rank(b, p->sym[i], p->sym[p->next[i]]) : NO_RANK;
    p->key[i] = rank == NO_RANK ? NO_KEY : (int32_t)(rank << 8 | i);
}

static inline void set_low(struct short_piece *p, unsigned i)
{
    p->low[i / GROUP] = smallest(p->key + i / GROUP * GROUP, GROUP);
}

static void merge_short(const struct di_bpe *b, struct short_piece *p, size_t groups)
{
    for (;;) {
        int32_t low = smallest(p->low, groups);
        if (low == NO_KEY)
            return;
        unsigned at = (unsigned)low & 255, gone = p->next[at], next = p->next[gone], prev = p->prev[at];
        p->sym[at] = b->merged[low >> 8];
        p->next[at] = (unsigned char)next;
        p->prev[next] = (unsigned char)at; /* symbol 0 has no left neighbour, so writing its prev does no harm */
        p->key[gone] = NO_KEY;
        set_key(b, p, at);
        if (at > 0)
            set_key(b, p, prev);
        set_low(p, gone);
        if (gone / GROUP != at / GROUP)
            set_low(p, at);
        if (at > 0 && prev / GROUP != at / GROUP)
            set_low(p, prev);
    }
}

static di_status encode_short(const struct di_bpe *b, const unsigned char *s, size_t n, struct di_ids *out, di_error *err)
{
    struct short_piece p;
    size_t groups = (n + GROUP - 1) / GROUP;
    if (n == 0)
        return DI_OK;
    for (size_t i = 0; i < n; i++) {
        uint32_t rank = i + 1 < n ? b->byte_rank[s[i] << 8 | s[i + 1]] : NO_RANK;
        p.sym[i] = b->byte_id[s[i]];
        p.prev[i] = (unsigned char)(i - 1);
        p.next[i] = (unsigned char)(i + 1);
        p.key[i] = rank == NO_RANK ? NO_KEY : (int32_t)(rank << 8 | (uint32_t)i);
    }
    p.next[n - 1] = 0;
    for (size_t i = n; i < groups * GROUP; i++)
        p.key[i] = NO_KEY;
    for (size_t g = 0; g < groups; g++)
        set_low(&p, (unsigned)(g * GROUP));
    merge_short(b, &p, groups);
    if (!di_ids_reserve(out, n))
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for token ids");
    size_t i = 0;
    do {
        out->v[out->n++] = p.sym[i];
        i = p.next[i];
    } while (i);
    return DI_OK;
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
    return n > SHORT_PIECE ? encode_long(b, s, n, out, err) : encode_short(b, s, n, out, err);
}
