/* Masks of a state, and those that are kept. Private to the room. */
#ifndef DI_GRAMMAR_MASK_H
#define DI_GRAMMAR_MASK_H

#include "grammar/impl.h"
#include "grammar/vocabulary.h"

struct mask_step { /* of a walk */
    state_id state;
    uint32_t x;
    bool running, verify;
};

struct mask_slot {
    state_id state; /* 0: free */
    uint32_t *mask, *doubtful;
    size_t n_doubtful;
};

struct mask_cache { /* a slot by the state's number: what comes later takes the place */
    struct mask_slot *slots;
    size_t n;
    uint32_t *doubtful; /* of the mask that is being computed */
    size_t n_doubtful, cap_doubtful;
    struct mask_step *path;
    size_t cap_path;
};

/* Fill `out`. Which tokens are doubtful, because their bytes depend on text that the state forgot, is settled with `s` itself. */
void mask_compute(struct di_grammar *g, const struct di_vocabulary *v, state_id s, uint32_t *out);
void mask_cache_fini(struct mask_cache *c);
size_t mask_cache_bytes(const struct mask_cache *c, const struct di_vocabulary *v);
/* States were numbered anew. */
void mask_cache_forget(struct mask_cache *c);

#endif
