/* Guesses of the next tokens by the model's own draft (model/draft.h), for a stepper over that model: all requests of a launch together. */
#ifndef DI_ENGINE_DRAFTER_H
#define DI_ENGINE_DRAFTER_H

#include "engine/stepper.h"

struct di_drafter;
/* The model is borrowed, and opened with drafts; `slots` requests at most. */
di_status di_drafter_create(struct di_model *m, int slots, struct di_drafter **out, di_error *err);
void di_drafter_destroy(struct di_drafter *d); /* NULL is allowed */
/* Append what create will allocate. */
void di_drafter_plan(const struct di_config *c, int slots, di_memory_plan *plan);
/* di_stepper.guess; ctx is the drafter. It waits for the drafts. What cannot be drafted is no error: there is nothing to verify then. */
void di_drafter_guess(void *ctx, const struct di_kv *kv, int n, struct di_guess *guesses);

#endif
