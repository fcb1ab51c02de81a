/* Unguessable bytes from the operating system. */
#ifndef DI_BASE_ENTROPY_H
#define DI_BASE_ENTROPY_H

#include <stdbool.h>
#include <stddef.h>

/* A source of random bytes; tests inject one that repeats. False: there are none. */
typedef bool di_entropy_source(void *ctx, void *bytes, size_t n);

/* getrandom(2); `ctx` is not used. Any thread. */
bool di_entropy(void *ctx, void *bytes, size_t n);

#endif
