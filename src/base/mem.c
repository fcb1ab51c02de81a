#define _DEFAULT_SOURCE /* madvise */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic uint64_t calls;
static _Atomic uint64_t fail_at = UINT64_MAX;

static bool may_allocate(void)
{
    return atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) < atomic_load_explicit(&fail_at, memory_order_relaxed);
}

uint64_t di_mem_calls(void)
{
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

void di_mem_fail_after(uint64_t n)
{
    uint64_t now = di_mem_calls();
    atomic_store(&fail_at, n > UINT64_MAX - now ? UINT64_MAX : now + n);
}

void *di_malloc(size_t bytes)
{
    return may_allocate() ? malloc(bytes ? bytes : 1) : NULL;
}

void *di_calloc(size_t count, size_t bytes)
{
    return may_allocate() ? calloc(count ? count : 1, bytes ? bytes : 1) : NULL;
}

void *di_realloc(void *p, size_t bytes)
{
    return may_allocate() ? realloc(p, bytes ? bytes : 1) : NULL;
}

void di_free(void *p)
{
    free(p);
}

void *di_malloc_aligned(size_t bytes)
{
    size_t rounded;
    if (!di_add(bytes ? bytes : 1, 63, &rounded) || !may_allocate())
        return NULL;
    return aligned_alloc(64, rounded & ~(size_t)63);
}

void di_free_aligned(void *p)
{
    free(p);
}

void di_advise_huge(void *p, size_t bytes)
{
    const uintptr_t page = (uintptr_t)2 << 20;
    uintptr_t from = ((uintptr_t)p + page - 1) & ~(page - 1), to = ((uintptr_t)p + bytes) & ~(page - 1);
    if (to > from)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

struct di_arena_block {
    struct di_arena_block *next;
    size_t used, cap;
    _Alignas(16) unsigned char data[];
};

void di_arena_init(struct di_arena *a)
{
    a->head = NULL;
}

void di_arena_fini(struct di_arena *a)
{
    for (struct di_arena_block *b = a->head; b;) {
        struct di_arena_block *next = b->next;
        di_free(b);
        b = next;
    }
    a->head = NULL;
}

void *di_arena_alloc(struct di_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    struct di_arena_block *b = a->head;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = b ? b->cap * 2 : 4096;
        if (cap > (size_t)1 << 20)
            cap = (size_t)1 << 20;
        if (cap < bytes)
            cap = bytes;
        struct di_arena_block *fresh = di_malloc(sizeof *fresh + cap);
        if (!fresh)
            return NULL;
        fresh->next = b;
        fresh->used = 0;
        fresh->cap = cap;
        a->head = b = fresh;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return p;
}

size_t di_arena_bytes(const struct di_arena *a)
{
    size_t bytes = 0;
    for (const struct di_arena_block *b = a->head; b; b = b->next)
        bytes += sizeof *b + b->cap;
    return bytes;
}

char *di_arena_strndup(struct di_arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? di_arena_alloc(a, n + 1) : NULL;
    if (p) {
        if (n)
            memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}
