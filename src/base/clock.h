/* Time for measuring. */
#ifndef DI_BASE_CLOCK_H
#define DI_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of a clock that never jumps; only differences mean something. Any thread. */
static inline int64_t di_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
