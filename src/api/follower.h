/* Masks of answers that have a form (engine/masks.h): a follower reads the tokens of one answer as they are decided and says which may come
 * next. It works on the thread of its crew while the model computes; the pipeline's worker does what has not been begun when it asks. */
#ifndef DI_API_FOLLOWER_H
#define DI_API_FOLLOWER_H

#include "api/forms.h"
#include "engine/masks.h"

/* The thread, and what waits for it. Outlives its followers. */
struct di_follower_crew;
di_status di_follower_crew_create(struct di_follower_crew **out, di_error *err);
void di_follower_crew_destroy(struct di_follower_crew *c); /* NULL is allowed */

struct di_follower_setup {
    struct di_follower_crew *crew;
    const struct di_forms *forms;
    const struct di_form *form; /* with a grammar */
    const int32_t *end_ids;     /* [n_end_ids] copied */
    size_t n_end_ids;
    bool ignore_end;
    int64_t min_tokens;
    /* The form begins behind these ids, when they have come one after the other: the reasoning's end, or what the caller says. None: at
     * once. Until then everything may come, an end id only if `may_end_before`. */
    const int32_t *trigger; /* [n_trigger] copied */
    size_t n_trigger;
    int32_t mark_id;  /* ｜DSML｜ */
    int32_t bound_id; /* behind this id nothing but the rest of the trigger may come; -1: none */
    bool may_end_before;
};

struct di_follower;
/* Any thread. */
di_status di_follower_create(const struct di_follower_setup *setup, struct di_follower **out, di_error *err);
/* Positions, before the first launch: the answer begins at `begin`, of it the tokens up to `prompt` are known, it ends before `limit`. */
void di_follower_place(struct di_follower *f, int64_t begin, int64_t prompt, int64_t limit);
/* To be handed to the engine; its release destroys the follower. */
struct di_mask_source di_follower_source(struct di_follower *f);
/* Instead of release, if the engine never had it. NULL is allowed. */
void di_follower_destroy(struct di_follower *f);

#endif
