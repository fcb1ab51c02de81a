#include "engine/drafter.h"

#include "model/draft.h"

struct di_drafter {
    struct di_model *m;
    int width;                        /* drafts of a block */
    struct di_draft_block *blocks;    /* [slots] */
    struct di_sample_task *tasks;     /* [slots * width] */
    struct di_sample_result *results; /* staging [slots * width] */
};

di_status di_drafter_create(struct di_model *m, int slots, struct di_drafter **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_drafter *d = di_calloc(1, sizeof *d);
    CHECK(d, err, DI_ERR_MEMORY, "", "out of memory for drafts");
    d->m = m;
    d->width = m->c->dspark_block_size;
    size_t n = (size_t)slots, drafts = n * (size_t)d->width;
    d->blocks = di_calloc(n, sizeof *d->blocks);
    d->tasks = di_calloc(drafts, sizeof *d->tasks);
    d->results = di_staging_alloc(m->be, drafts * sizeof *d->results);
    CHECK(d->blocks && d->tasks && d->results, err, DI_ERR_MEMORY, "", "out of memory for the drafts of %d requests", slots);
    *out = d;
    d = NULL;
out:
    di_drafter_destroy(d);
    return status;
}

void di_drafter_destroy(struct di_drafter *d)
{
    if (!d)
        return;
    di_free(d->blocks);
    di_free(d->tasks);
    di_staging_free(d->m->be, d->results);
    di_free(d);
}

void di_drafter_plan(const struct di_config *c, int slots, di_memory_plan *plan)
{
    const uint64_t draft = sizeof(struct di_sample_task) + sizeof(struct di_sample_result);
    const di_memory_region r = {.group = DI_GROUP_CACHE,
                                .place = DI_PLACE_HOST,
                                .name = "drafts",
                                .count = (uint64_t)slots,
                                .unit_bytes = sizeof(struct di_draft_block) + (uint64_t)c->dspark_block_size * draft};
    di_plan_add(plan, &r, "of each running request, on their way");
}

/* Those that were wanted, up to one that could not be sampled. */
static void take_drafts(const struct di_drafter *d, int n, int i, struct di_guess *g)
{
    for (g->n = 0; g->n < g->most && g->n < d->width; g->n++) {
        const struct di_sample_result *r = &d->results[g->n * n + i];
        if (r->status != DI_OK)
            return;
        g->tokens[g->at + 1 + g->n] = r->sample.id;
    }
}

void di_drafter_guess(void *ctx, const struct di_kv *kv, int n, struct di_guess *guesses)
{
    struct di_drafter *d = ctx;
    for (int i = 0; i < n; i++) {
        const struct di_guess *g = &guesses[i];
        d->blocks[i] = (struct di_draft_block){.slot = g->slot, .at = (int32_t)g->at, .token = g->tokens[g->at], .floor = g->floor};
        for (int k = 0; k < d->width; k++)
            d->tasks[k * n + i] = g->task[k];
    }
    const struct di_draft draft = {.n = n, .blocks = d->blocks, .kv = *kv, .tasks = d->tasks, .results = d->results};
    bool drafted = di_draft_launch(d->m, &draft, NULL) == DI_OK && di_backend_finish(d->m->be, NULL) == DI_OK;
    for (int i = 0; i < n; i++)
        if (drafted)
            take_drafts(d, n, i, &guesses[i]);
}
