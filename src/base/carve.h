/* Several arrays in one region of memory: a carver hands out pieces one behind the other, each at a multiple of 64 bytes. The same calls on a
 * carver without memory only count, so that there is no second sum to keep right.
 *
 * In builds with AddressSanitizer (DI_RED_ZONES, set by CMakeLists.txt for all files alike, instrumented or not) a red zone of 64 bytes or
 * more lies behind every piece: touching it ends the process there and then. */
#ifndef DI_BASE_CARVE_H
#define DI_BASE_CARVE_H

#include "base/assert.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef DI_RED_ZONES
#include <sanitizer/asan_interface.h>
#define DI_CARVE_GAP ((size_t)64)
#define DI_CARVE_CLOSE(p, bytes) __asan_poison_memory_region(p, bytes)
#define DI_CARVE_OPEN(p, bytes) __asan_unpoison_memory_region(p, bytes)
#else
#define DI_CARVE_GAP ((size_t)0)
#define DI_CARVE_CLOSE(p, bytes) ((void)(p), (void)(bytes))
#define DI_CARVE_OPEN(p, bytes) ((void)(p), (void)(bytes))
#endif

struct di_carver {
    uint8_t *base; /* 64-byte aligned; NULL: pieces are counted, their addresses are NULL */
    size_t used;   /* bytes */
    size_t size;   /* of the memory, which DI_ASSERT looks at; 0: not known */
    bool unmarked; /* red zones are left open: the addresses are not the host's, or one copy goes over all pieces */
};

/* Bytes that one piece takes, its red zone included. */
static inline size_t di_carve_bytes(size_t bytes)
{
    return ((bytes + 63) & ~(size_t)63) + DI_CARVE_GAP;
}

/* The next piece, for `count` values of `size` bytes. What was carved from the same memory before has ended. Threads may carve the same pieces
 * from the same memory at the same time. */
static inline void *di_carve(struct di_carver *c, size_t count, size_t size)
{
    size_t bytes = count * size;
    uint8_t *p = c->base ? c->base + c->used : NULL;
    c->used += di_carve_bytes(bytes);
    DI_ASSERT(!p || c->size == 0 || c->used <= c->size);
    if (p && !c->unmarked) {
        DI_CARVE_OPEN(p, bytes);
        DI_CARVE_CLOSE(p + bytes, di_carve_bytes(bytes) - bytes);
    }
    return p;
}

/* The red zones so far are opened: what follows goes over all pieces alike. */
static inline void di_carve_open(const struct di_carver *c)
{
    if (c->base && !c->unmarked)
        DI_CARVE_OPEN(c->base, c->used);
}

/* A list of pieces: where the address of each goes, and what it holds a row. */
struct di_piece {
    void *field; /* of a pointer */
    size_t count, size;
};
static inline void di_carve_rows(struct di_carver *c, size_t rows, const struct di_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *p = di_carve(c, rows * pieces[i].count, pieces[i].size);
        memcpy(pieces[i].field, &p, sizeof p);
    }
}

#endif
