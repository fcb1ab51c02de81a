#include "cache/block_pool.h"

#include "base/assert.h"
#include "base/mem.h"

static bool is_number(const struct di_block_pool *p, int32_t b)
{
    return b >= 0 && b < p->n;
}

static void push_free(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(p->n_free < p->n && p->refs[b] == 0 && !p->cached[b]);
    p->prev[b] = p->n_free; /* its place in the stack, so that a block on it twice is found out */
    p->free_list[p->n_free++] = b;
}

di_status di_block_pool_init(struct di_block_pool *p, int n, di_error *err)
{
    di_status status = DI_OK;
    size_t count = (size_t)n;
    *p = (struct di_block_pool){.n = n, .oldest = -1, .newest = -1};
    p->refs = di_calloc(count, sizeof *p->refs);
    p->cached = di_calloc(count, sizeof *p->cached);
    p->prev = di_calloc(count, sizeof *p->prev);
    p->next = di_calloc(count, sizeof *p->next);
    p->free_list = di_calloc(count, sizeof *p->free_list);
    CHECK(p->refs && p->cached && p->prev && p->next && p->free_list, err, DI_ERR_MEMORY, "",
          "out of memory for the table of %d cache blocks", n);
    while (p->n_free < n)
        push_free(p, n - 1 - p->n_free); /* lowest numbers first */
out:
    if (status != DI_OK)
        di_block_pool_fini(p);
    return status;
}

void di_block_pool_fini(struct di_block_pool *p)
{
    di_free(p->refs);
    di_free(p->cached);
    di_free(p->prev);
    di_free(p->next);
    di_free(p->free_list);
    *p = (struct di_block_pool){.oldest = -1, .newest = -1};
}

void di_block_pool_plan(int n, di_memory_plan *plan)
{
    const di_memory_region r = {.group = DI_GROUP_CACHE,
                                .place = DI_PLACE_HOST,
                                .name = "block accounts",
                                .count = (uint64_t)n,
                                .unit_bytes = 4 * sizeof(int32_t) + sizeof(uint8_t)};
    di_plan_add(plan, &r, "who holds each block");
}

static void list_add(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(p->n_free + p->n_cached < p->n && p->refs[b] == 0 && p->cached[b]);
    p->prev[b] = p->newest;
    p->next[b] = -1;
    *(p->newest >= 0 ? &p->next[p->newest] : &p->oldest) = b;
    p->newest = b;
    p->n_cached++;
}

static void list_remove(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(p->n_cached > 0 && (p->prev[b] >= 0 ? p->next[p->prev[b]] : p->oldest) == b &&
              (p->next[b] >= 0 ? p->prev[p->next[b]] : p->newest) == b);
    *(p->prev[b] >= 0 ? &p->next[p->prev[b]] : &p->oldest) = p->next[b];
    *(p->next[b] >= 0 ? &p->prev[p->next[b]] : &p->newest) = p->prev[b];
    p->n_cached--;
}

/* A block with one holder, the caller: a free one, else the oldest cached-only one is reclaimed. -1 if every block is held. O(1). */
static int32_t take_block(struct di_block_pool *p)
{
    if (p->n_free == 0 && p->oldest >= 0)
        p->reclaim(p->reclaim_ctx, p->oldest);
    if (p->n_free == 0)
        return -1;
    int32_t b = p->free_list[--p->n_free];
    DI_ASSERT(p->refs[b] == 0 && !p->cached[b] && p->prev[b] == p->n_free);
    p->refs[b] = 1;
    return b;
}

void di_block_hold(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(is_number(p, b) && (p->refs[b] > 0 || p->cached[b]));
    if (p->refs[b]++ == 0)
        list_remove(p, b);
}

void di_block_drop(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(is_number(p, b) && p->refs[b] > 0);
    if (--p->refs[b] > 0)
        return;
    if (p->cached[b])
        list_add(p, b);
    else
        push_free(p, b);
}

void di_block_cache(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(is_number(p, b) && p->refs[b] > 0);
    p->cached[b] = 1;
}

void di_block_uncache(struct di_block_pool *p, int32_t b)
{
    DI_ASSERT(is_number(p, b) && p->cached[b]);
    p->cached[b] = 0;
    if (p->refs[b] > 0)
        return;
    list_remove(p, b);
    push_free(p, b);
}

void di_block_touch(struct di_block_pool *p, int32_t b)
{
    if (!p->cached[b] || p->refs[b] > 0)
        return;
    list_remove(p, b);
    list_add(p, b);
}

bool di_block_pool_count(const struct di_block_pool *p, struct di_block_counts *out)
{
    *out = (struct di_block_counts){0};
    int listed = 0;
    for (int b = 0; b < p->n; b++) {
        int *state = p->refs[b] > 0 ? (p->cached[b] ? &out->held_cached : &out->held) : p->cached[b] ? &out->cached : &out->free;
        ++*state;
        out->refs += p->refs[b];
        if (p->refs[b] < 0)
            return false;
    }
    for (int i = 0; i < p->n_free; i++) {
        int32_t b = p->free_list[i];
        if (p->refs[b] != 0 || p->cached[b] || p->prev[b] != i)
            return false;
    }
    int32_t before = -1;
    for (int32_t b = p->oldest; b >= 0; before = b, b = p->next[b])
        if (++listed > p->n || p->refs[b] != 0 || !p->cached[b] || p->prev[b] != before)
            return false;
    return before == p->newest && listed == p->n_cached && out->cached == listed && out->free == p->n_free;
}

void di_lease_init(struct di_lease *l, int32_t *pages, int cap)
{
    *l = (struct di_lease){.cap = cap, .source = -1};
    l->pages = pages;
}

bool di_lease_grow(struct di_block_pool *p, struct di_lease *l, int n)
{
    if (n > l->cap || n - l->n > di_block_available(p))
        return false;
    while (l->n < n) {
        l->pages[l->n] = take_block(p);
        DI_ASSERT(l->pages[l->n] >= 0); /* what is available can be taken */
        l->n++;
    }
    return true;
}

void di_lease_copied(struct di_block_pool *p, struct di_lease *l)
{
    if (l->source >= 0)
        di_block_drop(p, l->source);
    l->source = -1;
}

void di_lease_release(struct di_block_pool *p, struct di_lease *l)
{
    di_lease_copied(p, l);
    while (l->n > 0)
        di_block_drop(p, l->pages[--l->n]); /* children before parents, see the top of block_pool.h */
    di_lease_init(l, l->pages, l->cap);
}
