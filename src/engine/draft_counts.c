#include "engine/draft_counts.h"

#include "base/assert.h"

void di_draft_counts_step(struct di_draft_counts *c, int drafted)
{
    DI_ASSERT(drafted >= 0 && drafted <= DI_MAX_DRAFTS);
    c->steps++;
    c->drafted += (uint64_t)drafted;
    for (int k = 0; k < drafted; k++)
        c->drafted_at[k]++;
}

void di_draft_counts_accept(struct di_draft_counts *c, int place)
{
    DI_ASSERT(place >= 0 && place < DI_MAX_DRAFTS && c->accepted_at[place] < c->drafted_at[place]);
    c->accepted++;
    c->accepted_at[place]++;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

struct di_draft_rates di_draft_rates_of(const struct di_draft_counts *c)
{
    struct di_draft_rates r = {.tau = 1 + share(c->accepted, c->steps),
                               .accept_rate = share(c->accepted, c->drafted),
                               .verify_rate = share(c->accepted + c->steps, c->drafted + c->steps),
                               .mean_verified = share(c->drafted, c->steps)};
    for (int k = 0; k < DI_MAX_DRAFTS; k++)
        r.accepted_at[k] = share(c->accepted_at[k], c->drafted_at[k]);
    return r;
}
