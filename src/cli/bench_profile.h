/* A profile of the forward pass: stands between a model and the ops of its back end, times every call and counts what the call must read
 * and multiply, whatever the implementation. */
#ifndef DI_CLI_BENCH_PROFILE_H
#define DI_CLI_BENCH_PROFILE_H

#include "backend/backend.h"

#include <time.h>

#define DI_PROFILE_ENTRIES 64

struct di_profile_entry {
    char name[48]; /* of the op; matrices apart by type and shape */
    int64_t calls;
    double seconds, least; /* since the last di_profile_lap; of the fastest lap */
    double
        bytes; /* read from memory at the least: weights once a call (of experts those that were chosen), cache rows once a row of the step
                  */
    double flops; /* multiply-adds count as two */
};
struct di_profile {
    struct di_ops ops; /* first: the back end is given &ops, and the ops find the profile through it */
    const struct di_ops *inner;
    clockid_t clock;
    int n, laps;
    struct di_profile_entry entry[DI_PROFILE_ENTRIES];
};

/* From here on the ops of `be` are counted and timed by `clock`; the profile must outlive that. Entries start at zero. */
void di_profile_attach(struct di_profile *p, struct di_backend *be, clockid_t clock);
/* The same work may be done several times, a lap each: calls, bytes and flops are then those of one lap, `least` the time of the fastest.
 * */
void di_profile_lap(struct di_profile *p);
void di_profile_detach(struct di_profile *p, struct di_backend *be);

#endif
