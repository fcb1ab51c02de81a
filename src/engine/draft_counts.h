/* Accounting of drafts (spec/dspark.md §7): sums, of a request or of all; ratios are made of sums, never of ratios. */
#ifndef DI_ENGINE_DRAFT_COUNTS_H
#define DI_ENGINE_DRAFT_COUNTS_H

#include "backend/backend.h"

struct di_draft_counts {
    uint64_t steps;                                                 /* of a request, behind its prompt: each decides a token of its own */
    uint64_t drafted, accepted;                                     /* drafts that were verified; of them, tokens of the answer */
    uint64_t drafted_at[DI_MAX_DRAFTS], accepted_at[DI_MAX_DRAFTS]; /* the same by place in the block */
};
/* A step verified so many drafts; afterwards each of those that became tokens, by its place from 0 on. */
void di_draft_counts_step(struct di_draft_counts *c, int drafted);
void di_draft_counts_accept(struct di_draft_counts *c, int place);

struct di_draft_rates {
    double tau;           /* tokens a step, the step's own included: 1 + accepted / steps */
    double accept_rate;   /* accepted / drafted */
    double verify_rate;   /* the same with the step's own row and token: (accepted + steps) / (drafted + steps) */
    double mean_verified; /* drafted / steps */
    double accepted_at[DI_MAX_DRAFTS];
};
/* 0 where nothing was counted; tau 1. */
struct di_draft_rates di_draft_rates_of(const struct di_draft_counts *c);

#endif
