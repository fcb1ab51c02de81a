/* A device that is as unlike the CPU as tests without one can have it, over the CPU's own ops.
 *
 *  - Addresses of device memory belong to no page: whoever looks there dies. Ops and copies see the same memory somewhere else. A descriptor
 *    that names device memory that is not allocated, or other memory where the device's is asked for, is a fault, told by the next wait.
 *  - What is called runs later: when it is waited for, or at a moment that the seed chooses, on a thread of the device or on that of a caller.
 *    Descriptors and the host structs that they name are copied by the call, as they may be gone by then.
 *  - Memory that was not written, or is free, holds what makes no sense: 0x7FC0, not a number and an index far outside, or bytes 0xA5. So does
 *    staging memory to which a copy or a sampler has been called and has not run.
 *
 * Test support; aborts where a test cannot be told otherwise. Any thread. */
#ifndef DI_TESTING_HOSTILE_H
#define DI_TESTING_HOSTILE_H

#include "engine/stepper.h"

/* A mistake of the host, made on purpose: number `at` (from 1 on) of its kind. */
enum di_hostile_mistake {
    DI_HOSTILE_NO_MISTAKE,
    DI_HOSTILE_NO_WAIT,  /* one wait returns at once */
    DI_HOSTILE_LATE_COPY /* one copy runs behind all that is called before the next fence */
};
struct di_hostile_params {
    uint64_t seed;
    enum di_hostile_mistake mistake;
    int at;
};

/* Over a CPU back end, which belongs to the device from now on; NULL: memory alone and, with a `vocab`,
 * the sampler of rows of so many logits. */
di_status di_hostile_create(struct di_backend *inner, int vocab, const struct di_hostile_params *p, struct di_backend **out, di_error *err);

/* Is none of its memory allocated? */
bool di_hostile_is_empty(struct di_backend *be);
/* Where the host may look at device memory of any hostile device, after all that was called has run; other pointers are returned as they
 * are. */
void *di_hostile_view(const void DI_DEVICE *p);
/* The calls of a null model, which run later with a copy of the step (ids too) that names memory where it can be read. A step that fails is
 * told by the next wait, once. */
void di_hostile_compute(struct di_backend *be, const struct di_stepper *null, const struct di_step *step);
void di_hostile_head(struct di_backend *be, const struct di_stepper *null, const struct di_step *step, int first, int n,
                     float DI_DEVICE *logits);

#endif
