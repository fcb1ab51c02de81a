#include "grammar/rx.h"

#include <stdlib.h>

#define MAX_DEPTH 3000
#define MOST_LIST 64 /* members of OR and AND nodes, on the average */

/* ---- storage ---- */

static bool grow(struct rx_pool *p, void **items, size_t *cap, size_t need, size_t each)
{
    if (need <= *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 64, bytes;
    while (want < need)
        want *= 2;
    void *bigger = di_mul(want, each, &bytes) ? di_realloc(*items, bytes) : NULL;
    if (!bigger) {
        p->out_of_memory = true;
        return false;
    }
    *items = bigger;
    *cap = want;
    return true;
}

static uint32_t hash_node(const struct rx_pool *p, const struct rx_node *n)
{
    uint64_t h = n->op * 0x9E3779B97F4A7C15u + n->b;
    if (n->op == OP_OR || n->op == OP_AND) {
        for (uint32_t i = 0; i < n->b; i++)
            h = (h ^ p->lists[n->a + i]) * 0xD6E8FEB86659FD93u;
    } else if (n->op == OP_BYTES) {
        for (int w = 0; w < 4; w++)
            h = (h ^ p->sets[n->a].w[w] ^ h >> 31) * 0xD6E8FEB86659FD93u;
    } else {
        h = (h ^ n->a) * 0xD6E8FEB86659FD93u;
        h = (h ^ n->min) * 0xD6E8FEB86659FD93u;
        h = (h ^ n->max) * 0xD6E8FEB86659FD93u;
    }
    return (uint32_t)(h ^ h >> 29);
}

static bool same_node(const struct rx_pool *p, const struct rx_node *x, const struct rx_node *y)
{
    if (x->op != y->op || x->b != y->b)
        return false;
    if (x->op == OP_OR || x->op == OP_AND)
        return memcmp(p->lists + x->a, p->lists + y->a, x->b * sizeof *p->lists) == 0;
    if (x->op == OP_BYTES)
        return memcmp(p->sets + x->a, p->sets + y->a, sizeof *p->sets) == 0;
    return x->a == y->a && x->min == y->min && x->max == y->max;
}

static uint32_t add_len(uint32_t a, uint32_t b)
{
    return a == RX_MANY || b == RX_MANY || a + b < a ? RX_MANY : a + b;
}

static uint32_t mul_len(uint32_t a, uint32_t times)
{
    if (a == 0 || times == 0)
        return 0;
    if (a == RX_MANY || times == RX_MANY || a > RX_MANY / times)
        return RX_MANY;
    return a * times;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    unsigned __int128 wide = (unsigned __int128)(h ^ x ^ 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return (uint64_t)wide ^ (uint64_t)(wide >> 64) ^ x << 23;
}

/* Members of OR and AND are in an order that differs from pool to pool: their digests are added. */
static void make_digest(const struct rx_pool *p, struct rx_node *n)
{
    static const char secret; /* its place is another one in every process: nobody finds two expressions of one digest */
    for (uint64_t k = 0; k < 2; k++) {
        uint64_t h = mix((uint64_t)(uintptr_t)&secret + k * 0xA24BAED4963EE407u, n->op);
        if (n->op == OP_BYTES) {
            for (int w = 0; w < 4; w++)
                h = mix(h, p->sets[n->a].w[w]);
        } else if (n->op == OP_OR || n->op == OP_AND) {
            uint64_t sum = n->b;
            for (uint32_t i = 0; i < n->b; i++)
                sum += mix(h, p->nodes[p->lists[n->a + i]].digest[k]);
            h = mix(h, sum);
        } else if (n->op != OP_NONE && n->op != OP_EMPTY) {
            h = mix(mix(mix(h, p->nodes[n->a].digest[k]), n->op == OP_CAT ? p->nodes[n->b].digest[k] : 0), (uint64_t)n->min << 32 | n->max);
        }
        n->digest[k] = h;
    }
}

/* What the node's parts say about it. */
static void describe(const struct rx_pool *p, struct rx_node *n)
{
    const struct rx_node *a = p->nodes + n->a, *b = p->nodes + n->b;
    switch (n->op) {
    case OP_NONE: n->min_chars = RX_MANY; break;
    case OP_EMPTY: n->nullable = 1; break;
    case OP_BYTES: {
        const struct byte_set *s = p->sets + n->a;
        n->min_chars = s->w[0] || s->w[1] || s->w[3] ? 1 : 0;
        n->max_chars = n->min_chars;
        if (s->w[2])
            n->min_chars = 0;
        break;
    }
    case OP_CAT:
        n->nullable = a->nullable && b->nullable;
        n->boolean = a->boolean || b->boolean;
        n->min_chars = add_len(a->min_chars, b->min_chars);
        n->max_chars = add_len(a->max_chars, b->max_chars);
        break;
    case OP_REP:
        n->nullable = n->min == 0 || a->nullable;
        n->boolean = a->boolean;
        n->min_chars = mul_len(a->min_chars, n->min);
        n->max_chars = mul_len(a->max_chars, n->max);
        break;
    case OP_NOT:
        n->nullable = !a->nullable;
        n->boolean = 1;
        n->max_chars = RX_MANY;
        break;
    default: {
        bool any = n->op == OP_OR;
        n->nullable = !any;
        n->boolean = !any;
        n->min_chars = any ? RX_MANY : 0;
        n->max_chars = any ? 0 : RX_MANY;
        for (uint32_t i = 0; i < n->b; i++) {
            const struct rx_node *x = p->nodes + p->lists[n->a + i];
            n->boolean |= x->boolean;
            if (any) {
                n->nullable |= x->nullable;
                n->min_chars = x->min_chars < n->min_chars ? x->min_chars : n->min_chars;
                n->max_chars = x->max_chars > n->max_chars ? x->max_chars : n->max_chars;
            } else {
                n->nullable &= x->nullable;
                n->min_chars = x->min_chars > n->min_chars ? x->min_chars : n->min_chars;
                n->max_chars = x->max_chars < n->max_chars ? x->max_chars : n->max_chars;
            }
        }
    }
    }
}

static bool rehash(struct rx_pool *p)
{
    size_t size = (p->mask + 1) * 2;
    uint32_t *heads = di_calloc(size, sizeof *heads);
    if (!heads) {
        p->out_of_memory = true;
        return false;
    }
    di_free(p->heads);
    p->heads = heads;
    p->mask = size - 1;
    for (uint32_t i = 1; i < p->n; i++) {
        uint32_t *head = heads + (hash_node(p, p->nodes + i) & p->mask);
        p->nodes[i].chain = *head;
        *head = i;
    }
    return true;
}

/* The list of an OR or AND node must be the last thing in p->lists, the set of a BYTES node the last in p->sets; they are taken back if the
 * node exists. */
static rx_id intern(struct rx_pool *p, struct rx_node n)
{
    bool list = n.op == OP_OR || n.op == OP_AND;
    if (rx_failed(p))
        return RX_NONE;
    uint32_t *head = p->heads + (hash_node(p, &n) & p->mask);
    for (uint32_t i = *head; i; i = p->nodes[i].chain)
        if (same_node(p, p->nodes + i, &n)) {
            p->n_lists -= list ? n.b : 0;
            p->n_sets -= n.op == OP_BYTES;
            return i;
        }
    if (p->n >= p->limit || p->n_lists / MOST_LIST > p->limit) {
        p->over_limit = true;
        return RX_NONE;
    }
    if (!grow(p, (void **)&p->nodes, &p->cap, p->n + 1, sizeof *p->nodes))
        return RX_NONE;
    describe(p, &n);
    make_digest(p, &n);
    n.live = n.op == OP_NONE ? 2 : !n.boolean;
    n.chain = *head;
    p->nodes[p->n] = n;
    *head = (uint32_t)p->n++;
    rx_id id = (rx_id)p->n - 1;
    return p->n > p->mask && !rehash(p) ? RX_NONE : id;
}

bool rx_init(struct rx_pool *p, size_t limit)
{
    *p = (struct rx_pool){.limit = limit, .mask = 255};
    p->heads = di_calloc(256, sizeof *p->heads);
    if (!p->heads)
        return false;
    if (!grow(p, (void **)&p->nodes, &p->cap, 64, sizeof *p->nodes))
        return false;
    p->nodes[p->n++] = (struct rx_node){.op = OP_NONE, .live = 2, .min_chars = RX_MANY};
    intern(p, (struct rx_node){.op = OP_EMPTY});
    rx_set(p, &(struct byte_set){{~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0}});
    p->any_char = rx_ranges(p, (const uint32_t[]){0, 0x10FFFF}, 1);
    p->any_text = rx_rep(p, p->any_char, 0, RX_MANY);
    return !rx_failed(p);
}

void rx_fini(struct rx_pool *p)
{
    for (size_t i = 0; i < p->n; i++)
        di_free(p->nodes[i].next);
    di_free(p->nodes);
    di_free(p->sets);
    di_free(p->lists);
    di_free(p->heads);
}

size_t rx_bytes_used(const struct rx_pool *p)
{
    return p->cap * sizeof *p->nodes + p->cap_sets * sizeof *p->sets + (p->cap_lists + p->mask + 1) * sizeof(uint32_t) + p->tables * 1024;
}

/* ---- the algebra ---- */

rx_id rx_set(struct rx_pool *p, const struct byte_set *s)
{
    if (!(s->w[0] | s->w[1] | s->w[2] | s->w[3]))
        return RX_NONE;
    if (!grow(p, (void **)&p->sets, &p->cap_sets, p->n_sets + 1, sizeof *s))
        return RX_NONE;
    p->sets[p->n_sets] = *s;
    return intern(p, (struct rx_node){.op = OP_BYTES, .a = (uint32_t)p->n_sets++});
}

rx_id rx_byte(struct rx_pool *p, unsigned b)
{
    struct byte_set s = {0};
    set_add(&s, b);
    return rx_set(p, &s);
}

rx_id rx_cat(struct rx_pool *p, rx_id a, rx_id b)
{
    if (a == RX_NONE || b == RX_NONE)
        return RX_NONE;
    if (a == RX_EMPTY)
        return b;
    if (b == RX_EMPTY)
        return a;
    if (p->nodes[a].op == OP_CAT) { /* to the right, so that one text has one form */
        rx_id first = p->nodes[a].a, rest = p->nodes[a].b;
        if (++p->depth > MAX_DEPTH) {
            p->over_limit = true;
            return RX_NONE;
        }
        rest = rx_cat(p, rest, b);
        p->depth--;
        return intern(p, (struct rx_node){.op = OP_CAT, .a = first, .b = rest});
    }
    if (a == p->any_text && b == p->any_text)
        return a;
    return intern(p, (struct rx_node){.op = OP_CAT, .a = a, .b = b});
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* OR or AND of a list: flat, sorted, each once, sets of bytes as one. */
static rx_id join(struct rx_pool *p, uint8_t op, rx_id *list, size_t n)
{
    bool any = op == OP_OR, have_set = false;
    struct byte_set set = {0};
    size_t start = p->n_lists, flat = 0;
    for (size_t i = 0; i < n; i++) {
        const struct rx_node *x = p->nodes + list[i];
        flat += x->op == op ? x->b : 1;
    }
    if (!grow(p, (void **)&p->lists, &p->cap_lists, start + flat + 1, sizeof *p->lists))
        return RX_NONE;
    uint32_t *to = p->lists + start;
    for (size_t i = 0; i < n; i++) {
        const struct rx_node *x = p->nodes + list[i];
        const uint32_t *from = x->op == op ? p->lists + x->a : &list[i];
        for (size_t k = 0, count = x->op == op ? x->b : 1; k < count; k++) {
            rx_id id = from[k];
            if (id == RX_NONE && any)
                continue;
            if (id == RX_NONE)
                return RX_NONE;
            if (any && id == p->any_text && p->any_text)
                return id;
            if (p->nodes[id].op == OP_BYTES) {
                const struct byte_set *s = p->sets + p->nodes[id].a;
                for (int w = 0; w < 4; w++)
                    set.w[w] = !have_set ? s->w[w] : any ? set.w[w] | s->w[w] : set.w[w] & s->w[w];
                have_set = true;
                continue;
            }
            *to++ = id;
        }
    }
    size_t count = (size_t)(to - (p->lists + start));
    if (have_set) {
        p->n_lists = start + count; /* the set's node must not write over the list */
        rx_id id = rx_set(p, &set);
        p->n_lists = start;
        if (id == RX_NONE && !any)
            return RX_NONE;
        if (id != RX_NONE)
            p->lists[start + count++] = id;
    }
    qsort(p->lists + start, count, sizeof *p->lists, by_number);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || p->lists[start + kept - 1] != p->lists[start + i])
            p->lists[start + kept++] = p->lists[start + i];
    if (kept == 0)
        return any ? RX_NONE : p->any_text;
    if (kept == 1)
        return p->lists[start];
    p->n_lists = start + kept;
    return intern(p, (struct rx_node){.op = op, .a = (uint32_t)start, .b = (uint32_t)kept});
}

rx_id rx_any_of(struct rx_pool *p, rx_id *list, size_t n)
{
    return join(p, OP_OR, list, n);
}

rx_id rx_or(struct rx_pool *p, rx_id a, rx_id b)
{
    return a == b || b == RX_NONE ? a : a == RX_NONE ? b : join(p, OP_OR, (rx_id[]){a, b}, 2);
}

rx_id rx_and(struct rx_pool *p, rx_id a, rx_id b)
{
    if (a == b || (b == p->any_text && p->nodes[a].op != OP_NOT))
        return a;
    if (a == p->any_text && p->nodes[b].op != OP_NOT)
        return b;
    return join(p, OP_AND, (rx_id[]){a, b}, 2);
}

static rx_id negate(struct rx_pool *p, rx_id a)
{
    return p->nodes[a].op == OP_NOT ? p->nodes[a].a : intern(p, (struct rx_node){.op = OP_NOT, .a = a});
}

rx_id rx_not(struct rx_pool *p, rx_id a)
{
    if (a == p->any_text)
        return RX_NONE;
    return a == RX_NONE ? p->any_text : join(p, OP_AND, (rx_id[]){negate(p, a), p->any_text}, 2);
}

rx_id rx_rep(struct rx_pool *p, rx_id a, uint32_t min, uint32_t max)
{
    if (max == 0 || a == RX_EMPTY || (a == RX_NONE && min == 0))
        return RX_EMPTY;
    if (a == RX_NONE || (min == 1 && max == 1))
        return a;
    struct rx_node n = p->nodes[a];
    if (n.nullable)
        min = 0;
    if (n.op == OP_REP && n.min == 0 && n.max == RX_MANY)
        return a;
    if (n.op == OP_REP && n.min == 0 && n.max == 1 && min == 0) /* (x?)* */
        return rx_rep(p, n.a, min, max);
    return intern(p, (struct rx_node){.op = OP_REP, .a = a, .min = min, .max = max});
}

rx_id rx_literal(struct rx_pool *p, struct di_str s)
{
    rx_id r = RX_EMPTY;
    for (size_t i = s.n; i-- > 0;)
        r = rx_cat(p, rx_byte(p, (unsigned char)s.p[i]), r);
    return r;
}

static rx_id words_from(struct rx_pool *p, const struct di_str *w, size_t n, size_t depth)
{
    if (depth > MAX_DEPTH) {
        p->over_limit = true;
        return RX_NONE;
    }
    if (n == 1)
        return rx_literal(p, (struct di_str){w->p + depth, w->n - depth});
    rx_id found[257];
    size_t count = 0;
    for (size_t i = 0, k; i < n; i = k) {
        k = i + 1;
        if (w[i].n == depth) {
            found[count++] = RX_EMPTY;
            continue;
        }
        while (k < n && w[k].p[depth] == w[i].p[depth])
            k++;
        size_t same = depth + 1; /* the common beginning in one go, so that depth grows with branches only */
        while (k - i > 1 && same < w[i].n && w[k - 1].n > same && w[i].p[same] == w[k - 1].p[same])
            same++;
        if (count == 257)
            return RX_NONE;
        found[count++] = rx_cat(p, rx_literal(p, (struct di_str){w[i].p + depth, same - depth}), words_from(p, w + i, k - i, same));
    }
    return rx_any_of(p, found, count);
}

rx_id rx_words(struct rx_pool *p, const struct di_str *sorted, size_t n)
{
    return n ? words_from(p, sorted, n, 0) : RX_NONE;
}

/* ---- characters as UTF-8 ---- */

struct range {
    uint32_t first, last;
};

static int by_first(const void *a, const void *b)
{
    uint32_t x = ((const struct range *)a)->first, y = ((const struct range *)b)->first;
    return (x > y) - (x < y);
}

/* Continuation bytes (`left` of them) whose value base + offset lies in the ranges; offsets are 64^left. */
static rx_id continuation(struct rx_pool *p, const struct range *r, size_t n, uint32_t base, unsigned left)
{
    if (left == 0)
        return RX_EMPTY;
    uint32_t each = (uint32_t)1 << 6 * (left - 1);
    rx_id ids[64], parts[64];
    for (unsigned i = 0; i < 64; i++) {
        uint32_t first = base + i * each, last = first + each - 1;
        size_t from = 0, to = n;
        while (from < to && r[from].last < first)
            from++;
        while (to > from && r[to - 1].first > last)
            to--;
        ids[i] = from == to ? RX_NONE
                 : i > 0 && to == from + 1 && r[from].first <= first - each && r[from].last >= last && ids[i - 1]
                     ? ids[i - 1] /* as whole as the one before */
                     : continuation(p, r + from, to - from, first, left - 1);
    }
    size_t count = 0;
    for (unsigned i = 0; i < 64; i++) {
        if (ids[i] == RX_NONE)
            continue;
        struct byte_set set = {0};
        rx_id rest = ids[i];
        for (unsigned k = i; k < 64; k++)
            if (ids[k] == rest) {
                set_add(&set, 0x80 + k);
                ids[k] = RX_NONE;
            }
        parts[count++] = rx_cat(p, rx_set(p, &set), rest);
    }
    return rx_any_of(p, parts, count);
}

/* The part of one length: characters low..high, whose first byte is `lead` + the bits above the continuation bytes. */
static rx_id of_length(struct rx_pool *p, const struct range *r, size_t n, uint32_t low, uint32_t high, unsigned lead, unsigned left)
{
    struct range *cut = di_malloc((n + 1) * sizeof *cut);
    rx_id ids[32], parts[32];
    size_t m = 0, count = 0;
    if (!cut) {
        p->out_of_memory = true;
        return RX_NONE;
    }
    for (size_t i = 0; i < n; i++)
        if (r[i].first <= high && r[i].last >= low)
            cut[m++] = (struct range){r[i].first > low ? r[i].first : low, r[i].last < high ? r[i].last : high};
    uint32_t each = (uint32_t)1 << 6 * left;
    for (unsigned i = 0; i < 32; i++) {
        uint32_t first = i * each, last = first + each - 1;
        size_t from = 0, to = m;
        while (from < to && cut[from].last < first)
            from++;
        while (to > from && cut[to - 1].first > last)
            to--;
        ids[i] = from == to ? RX_NONE : continuation(p, cut + from, to - from, first, left);
    }
    for (unsigned i = 0; i < 32; i++) {
        if (ids[i] == RX_NONE)
            continue;
        struct byte_set set = {0};
        rx_id rest = ids[i];
        for (unsigned k = i; k < 32; k++)
            if (ids[k] == rest) {
                set_add(&set, lead + k);
                ids[k] = RX_NONE;
            }
        parts[count++] = rx_cat(p, rx_set(p, &set), rest);
    }
    di_free(cut);
    return rx_any_of(p, parts, count);
}

rx_id rx_ranges(struct rx_pool *p, const uint32_t *pairs, size_t n_pairs)
{
    struct range *r = di_malloc((2 * n_pairs + 1) * sizeof *r);
    struct byte_set ascii = {0};
    size_t n = 0, kept = 0;
    if (!r) {
        p->out_of_memory = true;
        return RX_NONE;
    }
    for (size_t i = 0; i < n_pairs; i++) {
        uint32_t first = pairs[2 * i], last = pairs[2 * i + 1] > 0x10FFFF ? 0x10FFFF : pairs[2 * i + 1];
        if (first <= last && first < 0xD800) /* without surrogates */
            r[n++] = (struct range){first, last < 0xD800 ? last : 0xD7FF};
        if (first <= last && last > 0xDFFF)
            r[n++] = (struct range){first > 0xDFFF ? first : 0xE000, last};
    }
    qsort(r, n, sizeof *r, by_first);
    for (size_t i = 0; i < n; i++) {
        if (kept && r[i].first <= r[kept - 1].last + 1 && r[kept - 1].last != 0xD7FF)
            r[kept - 1].last = r[i].last > r[kept - 1].last ? r[i].last : r[kept - 1].last;
        else
            r[kept++] = r[i];
    }
    for (size_t i = 0; i < kept; i++)
        for (uint32_t c = r[i].first; c <= r[i].last && c < 0x80; c++)
            set_add(&ascii, c);
    rx_id parts[4] = {rx_set(p, &ascii), of_length(p, r, kept, 0x80, 0x7FF, 0xC0, 1), of_length(p, r, kept, 0x800, 0xFFFF, 0xE0, 2),
                      of_length(p, r, kept, 0x10000, 0x10FFFF, 0xF0, 3)};
    di_free(r);
    return rx_any_of(p, parts, 4);
}

/* ---- derivatives ---- */

static const struct byte_set all_bytes = {{~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0}};

/* The derivative of a by byte; *same becomes the bytes that have the same one for the same reasons. */
static rx_id derive(struct rx_pool *p, rx_id a, unsigned byte, struct byte_set *same)
{
    struct rx_node n = p->nodes[a];
    struct byte_set other;
    rx_id left, right, few[8], *list = few;
    if (n.next && n.next[byte] != RX_UNKNOWN && n.op != OP_BYTES) {
        struct byte_set s = {0}; /* known: the bytes that lead to the same place */
        for (unsigned i = 0; i < 256; i++)
            if (n.next[i] == n.next[byte])
                set_add(&s, i);
        *same = s;
        return n.next[byte];
    }
    switch (n.op) {
    case OP_NONE:
    case OP_EMPTY: *same = all_bytes; return RX_NONE;
    case OP_BYTES: {
        bool in = set_has(p->sets + n.a, byte);
        for (int w = 0; w < 4; w++)
            same->w[w] = in ? p->sets[n.a].w[w] : ~p->sets[n.a].w[w];
        return in ? RX_EMPTY : RX_NONE;
    }
    default: break;
    }
    p->work++;
    if (++p->depth > MAX_DEPTH) {
        p->over_limit = true;
        return RX_NONE;
    }
    switch (n.op) {
    case OP_CAT:
        left = rx_cat(p, derive(p, n.a, byte, same), n.b);
        if (p->nodes[n.a].nullable) {
            right = derive(p, n.b, byte, &other);
            for (int w = 0; w < 4; w++)
                same->w[w] &= other.w[w];
            left = rx_or(p, left, right);
        }
        break;
    case OP_REP:
        right = rx_rep(p, n.a, n.min ? n.min - 1 : 0, n.max == RX_MANY ? RX_MANY : n.max - 1);
        left = rx_cat(p, derive(p, n.a, byte, same), right);
        break;
    case OP_NOT: left = negate(p, derive(p, n.a, byte, same)); break;
    default:
        if (n.b > 8 && !(list = di_malloc(n.b * sizeof *list))) {
            p->out_of_memory = true;
            return RX_NONE;
        }
        *same = all_bytes;
        size_t count = 0;
        for (uint32_t i = 0; i < n.b; i++) {
            list[count++] = derive(p, p->lists[n.a + i], byte, &other);
            for (int w = 0; w < 4; w++)
                same->w[w] &= other.w[w];
        }
        left = join(p, n.op, list, count);
        if (list != few)
            di_free(list);
    }
    p->depth--;
    return left;
}

rx_id rx_derive(struct rx_pool *p, rx_id a, unsigned byte)
{
    struct byte_set same = {0};
    if (rx_failed(p))
        return RX_NONE;
    if (!p->nodes[a].next) {
        if (p->tables * 4 > p->limit) { /* of 1 KiB each: a quarter of the nodes may be entered */
            p->over_limit = true;
            return RX_NONE;
        }
        uint32_t *next = di_malloc(256 * sizeof *next);
        if (!next) {
            p->out_of_memory = true;
            return RX_NONE;
        }
        memset(next, 0xFF, 256 * sizeof *next);
        p->nodes[a].next = next;
        p->tables++;
    }
    p->depth = 0;
    rx_id to = derive(p, a, byte, &same);
    if (rx_failed(p))
        return RX_NONE;
    if (p->nodes[to].boolean && !rx_live(p, to))
        to = RX_NONE;
    uint32_t *next = p->nodes[a].next;
    for (unsigned i = 0; i < 256; i++)
        if (set_has(&same, i))
            next[i] = to;
    next[byte] = to;
    return to;
}

#define SEARCH 4096

bool rx_live(struct rx_pool *p, rx_id a)
{
    if (p->nodes[a].live)
        return p->nodes[a].live == 1;
    if (!rx_may_search(p))
        return true;
    rx_id *queue = di_malloc(SEARCH * sizeof *queue);
    uint8_t *seen = NULL;
    size_t seen_size = 0, n = 0;
    if (!queue) {
        p->out_of_memory = true;
        return false;
    }
    queue[n++] = a;
    bool found = false, whole = true;
    for (size_t i = 0; i < n && !found && !rx_failed(p); i++) {
        rx_id at = queue[i];
        if (p->nodes[at].nullable || p->nodes[at].live == 1) {
            found = true;
            break;
        }
        struct byte_set done = {0}, same;
        for (unsigned byte = 0; byte < 256 && whole; byte++) {
            if (set_has(&done, byte))
                continue;
            p->depth = 0;
            rx_id to = derive(p, at, byte, &same);
            for (int w = 0; w < 4; w++)
                done.w[w] |= same.w[w];
            set_add(&done, byte);
            if (to == RX_NONE || p->nodes[to].live == 2)
                continue;
            if (seen_size < p->n) {
                uint8_t *bigger = di_realloc(seen, p->n * 2);
                if (!bigger) {
                    p->out_of_memory = true;
                    break;
                }
                seen = bigger;
                memset(seen + seen_size, 0, p->n * 2 - seen_size);
                seen_size = p->n * 2;
            }
            if (seen[to])
                continue;
            seen[to] = 1;
            whole = n < SEARCH && rx_may_search(p);
            if (whole)
                queue[n++] = to;
        }
    }
    if (found || !whole) {
        p->nodes[a].live = 1;
    } else if (!rx_failed(p)) {
        for (size_t i = 0; i < n; i++) /* nothing that was reached leads anywhere */
            p->nodes[queue[i]].live = 2;
    }
    di_free(queue);
    di_free(seen);
    return p->nodes[a].live == 1;
}
