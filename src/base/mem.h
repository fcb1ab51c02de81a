/* Memory: counted heap allocation, checked sizes, and an arena for things that die together. */
#ifndef DI_BASE_MEM_H
#define DI_BASE_MEM_H

#include "base/error.h"

#include <stdbool.h>

/* Heap memory. All of the library allocates here, so that tests can count calls (the decode path makes none) and can make the
 * n-th call fail. Sizes of 0 return a unique pointer. NULL on failure. Any thread. */
void *di_malloc(size_t bytes);
void *di_calloc(size_t count, size_t bytes); /* checked product, zeroed */
void *di_realloc(void *p, size_t bytes);
void di_free(void *p);

/* 64-byte aligned, rounded up to 64 bytes; for tensors. Freed with di_free_aligned. Pages of a large block are untouched (not resident). */
void *di_malloc_aligned(size_t bytes);
void di_free_aligned(void *p);

/* Ask for huge pages behind a large block, before it is touched: weights that are streamed then miss the TLB less. Advice only. */
void di_advise_huge(void *p, size_t bytes);

/* Number of allocation calls since start, of the whole process. */
uint64_t di_mem_calls(void);
/* Test hook: after `n` more successful calls every allocation fails, until called with UINT64_MAX. */
void di_mem_fail_after(uint64_t n);

/* a*b and a+b; false (and *out untouched) on overflow. */
static inline bool di_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}
static inline bool di_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Arena: many small allocations with one lifetime. Blocks grow geometrically; nothing is freed singly. Not thread-safe. */
struct di_arena {
    struct di_arena_block *head; /* private */
};
void di_arena_init(struct di_arena *a);
void di_arena_fini(struct di_arena *a);
/* 16-byte aligned memory owned by the arena, not zeroed; NULL when the heap is exhausted. */
void *di_arena_alloc(struct di_arena *a, size_t bytes);
/* Copy of n bytes with a 0 byte behind it. */
char *di_arena_strndup(struct di_arena *a, const char *s, size_t n);
/* Bytes of heap that it holds. */
size_t di_arena_bytes(const struct di_arena *a);

#endif
