#include "engine/pipeline.h"

#include "base/clock.h"
#include "base/threads.h"

#include <math.h>
#include <stdatomic.h>

struct di_pipeline {
    struct di_pipeline_params params;
    struct di_lane *lanes;
    _Atomic uint64_t *names, *dropped; /* [lanes] the owner, for other threads; the one whose rows are to be dropped */
    struct di_launch launches[2];
    uint64_t *page_version;  /* [lanes] of what the newest launch leaves in the device's page table */
    uint64_t launched, done; /* numbers; guarded by lock */
    bool ending;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;
    /* worker only */
    struct di_law *law;               /* of the plain form, for a back end without a sampler */
    float DI_DEVICE *logits;          /* [lanes][vocab] */
    struct di_sample_task *tasks;     /* [lanes], as the next two */
    struct di_sample_result *results; /* staging */
    int64_t *positions;
    struct di_chunk *live;
    struct di_replay *live_replay;
    const int32_t **live_tokens;
    int32_t *logit_rows;
    int *logit_out;
};

/* ---------------------------------------------------------------- worker */

/* The chunks of lanes that have not ended, packed; n_logits of them end in a row that is sampled. */
static int live_chunks(struct di_pipeline *p, struct di_launch *l, int *n_logits)
{
    int n = 0, row = 0, out = 0;
    *n_logits = 0;
    for (int i = 0; i < l->n_chunks; i++) {
        struct di_lane *lane = &p->lanes[l->chunks[i].slot];
        if (lane->name && atomic_load(&p->dropped[l->chunks[i].slot]) == lane->name)
            lane->ended = true;
        bool ended = lane->ended;
        l->computed[i] = !ended;
        if (l->wants_logits[i])
            l->out[out].valid = !ended;
        if (!ended) {
            p->live[n] = l->chunks[i];
            p->live[n].row0 = row;
            p->live_replay[n] = l->replay[i];
            p->live_tokens[n++] = l->tokens[i];
            row += l->chunks[i].n;
            if (l->wants_logits[i]) {
                p->logit_rows[*n_logits] = row - 1;
                p->logit_out[(*n_logits)++] = out;
            }
        }
        out += l->wants_logits[i];
    }
    return n;
}

static bool is_end(const struct di_lane *lane, int32_t id)
{
    for (size_t i = 0; i < lane->params->n_end_ids && !lane->ignore_end; i++)
        if (lane->params->end_ids[i] == id)
            return true;
    return false;
}

/* The token that the request's own rules put at `index` of the answer, -1 = it is sampled. */
static int32_t forced_token(const struct di_lane *lane, int64_t index)
{
    const struct di_cap *cap = &lane->cap;
    if (index < lane->n_forced)
        return lane->forced[index];
    if (index != cap->at)
        return -1;
    for (const int32_t *t = lane->tokens + lane->n_prompt; t < lane->tokens + lane->n_prompt + index; t++)
        if (*t == cap->ids[0] || *t == cap->ids[1])
            return -1;
    return cap->ids[0];
}

/* What the sampler gets for the token at `position` of a lane. */
static struct di_sample_task sample_task(const struct di_pipeline *p, const struct di_lane *lane, int64_t position,
                                         const float DI_DEVICE *logits)
{
    return (struct di_sample_task){.row = {.logits = (const float *)logits, /* read by the sampler, on the device */
                                           .params = lane->params,
                                           .counts = lane->counts,
                                           .banned = p->params.banned,
                                           .n_generated = (uint64_t)(position - lane->n_prompt),
                                           .position = (uint64_t)position},
                                   .key = lane->key,
                                   .forced = forced_token(lane, position - lane->n_prompt)};
}

/* The token at `position` is decided. */
static void append_token(struct di_lane *lane, struct di_launch_out *o, int64_t position)
{
    if (o->result.status != DI_OK) {
        lane->ended = true;
        return;
    }
    int32_t id = o->result.sample.id;
    lane->tokens[position] = id;
    if (lane->counts)
        di_token_counts_add(lane->counts, id);
    lane->ended = is_end(lane, id) || position + 1 == lane->n_limit;
}

/* Tokens of the rows that want logits: results are there when the launch is done. */
static void sample_rows(struct di_pipeline *p, int n)
{
    for (int i = 0, c = 0; i < n; i++, c++) {
        while (p->live[c].row0 + p->live[c].n - 1 != p->logit_rows[i])
            c++;
        p->positions[i] = (int64_t)p->live[c].pos0 + p->live[c].n;
        p->tasks[i] = sample_task(p, &p->lanes[p->live[c].slot], p->positions[i], p->logits + (size_t)i * (size_t)p->params.vocab);
    }
    struct di_backend *be = p->params.store->be;
    if (be->ops->sample)
        be->ops->sample(be, &(struct di_op_sample){.m = n, .tasks = p->tasks, .results = p->results});
    else
        for (int i = 0; i < n; i++)
            di_sample_task_run(p->law, &p->tasks[i], &p->results[i]);
}

static void take_results(struct di_pipeline *p, struct di_launch *l, int n)
{
    for (int i = 0; i < n; i++) {
        struct di_launch_out *o = &l->out[p->logit_out[i]];
        o->result = p->results[i];
        append_token(&p->lanes[o->lane], o, p->positions[i]);
    }
}

static void execute(struct di_pipeline *p, struct di_launch *l)
{
    struct di_kv_store *store = p->params.store;
    int n_logits, n = live_chunks(p, l, &n_logits);
    l->status = DI_OK;
    l->started_ns = di_clock_ns();
    store->be->ops->copy(store->be, &(struct di_op_copy){l->n_page_spans, l->page_spans});
    for (int i = 0; i < l->n_copies; i++)
        di_kv_copy_block(store, l->copies[i].from, l->copies[i].to, l->copies[i].tokens);
    if (n > 0) {
        struct di_step step = {.n_chunks = n,
                               .chunks = p->live,
                               .tokens = p->live_tokens,
                               .replay = p->live_replay,
                               .kv = di_kv_view(store),
                               .n_logits = n_logits,
                               .logit_rows = p->logit_rows,
                               .logits = p->logits};
        l->status = p->params.compute(p->params.ctx, &step, &l->err);
    }
    if (l->status == DI_OK)
        sample_rows(p, n_logits);
    di_status done = di_backend_finish(store->be, l->status == DI_OK ? &l->err : NULL);
    l->status = l->status == DI_OK ? done : l->status;
    for (int i = 0; i < n && l->status != DI_OK; i++) /* the next launch would read tokens that nobody sampled */
        p->lanes[p->live[i].slot].ended = true;
    if (l->status == DI_OK)
        take_results(p, l, n_logits);
    l->ended_ns = di_clock_ns();
}

static void *work(void *arg)
{
    struct di_pipeline *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->done == p->launched && !p->ending)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->done == p->launched)
            break;
        struct di_launch *l = &p->launches[(p->done + 1) % 2];
        pthread_mutex_unlock(&p->lock);
        execute(p, l);
        pthread_mutex_lock(&p->lock);
        p->done++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---------------------------------------------------------------- engine's side */

static bool allocate_launch(struct di_pipeline *p, struct di_launch *l)
{
    size_t n = (size_t)p->params.lanes;
    l->replay = di_calloc(n, sizeof *l->replay);
    l->copies = di_calloc(n, sizeof *l->copies);
    l->pages = di_staging_alloc(p->params.store->be, n * (size_t)p->params.store->pages_per_slot * sizeof *l->pages);
    l->page_spans = di_calloc(n, sizeof *l->page_spans);
    l->chunks = di_calloc(n, sizeof *l->chunks);
    l->tokens = di_calloc(n, sizeof *l->tokens);
    l->wants_logits = di_calloc(n, sizeof *l->wants_logits);
    l->computed = di_calloc(n, sizeof *l->computed);
    l->out = di_calloc(n, sizeof *l->out);
    return l->replay && l->copies && l->pages && l->page_spans && l->chunks && l->tokens && l->wants_logits && l->computed && l->out;
}

static bool allocate(struct di_pipeline *p)
{
    size_t n = (size_t)p->params.lanes;
    p->lanes = di_calloc(n, sizeof *p->lanes);
    p->names = di_calloc(n, sizeof *p->names);
    p->dropped = di_calloc(n, sizeof *p->dropped);
    p->live = di_calloc(n, sizeof *p->live);
    p->live_replay = di_calloc(n, sizeof *p->live_replay);
    p->live_tokens = di_calloc(n, sizeof *p->live_tokens);
    p->logit_rows = di_calloc(n, sizeof *p->logit_rows);
    p->logit_out = di_calloc(n, sizeof *p->logit_out);
    p->tasks = di_calloc(n, sizeof *p->tasks);
    p->results = di_staging_alloc(p->params.store->be, n * sizeof *p->results);
    p->positions = di_calloc(n, sizeof *p->positions);
    p->page_version = di_calloc(n, sizeof *p->page_version);
    p->logits = di_device_alloc(p->params.store->be, n * (size_t)p->params.vocab * sizeof *p->logits);
    return p->lanes && p->names && p->dropped && p->live && p->live_replay && p->live_tokens && p->logit_rows && p->logit_out && p->tasks &&
           p->results && p->positions && p->page_version && p->logits && allocate_launch(p, &p->launches[0]) &&
           allocate_launch(p, &p->launches[1]);
}

uint64_t di_pipeline_bytes(int lanes, int vocab, int pages_per_lane)
{
    uint64_t launch = sizeof(struct di_chunk) + sizeof(int32_t *) + sizeof(struct di_replay) + sizeof(struct di_block_copy) +
                      (uint64_t)pages_per_lane * sizeof(int32_t) + sizeof(struct di_copy_span) + 2 * sizeof(bool) +
                      sizeof(struct di_launch_out);
    uint64_t lane = sizeof(struct di_lane) + 3 * sizeof(uint64_t) + sizeof(struct di_chunk) + sizeof(int32_t *) + 2 * sizeof(int32_t) +
                    sizeof(struct di_sample_task) + sizeof(struct di_sample_result) + sizeof(int64_t) + (uint64_t)vocab * sizeof(float);
    return (uint64_t)lanes * (lane + 2 * launch);
}

di_status di_pipeline_create(const struct di_pipeline_params *params, struct di_pipeline **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_pipeline *p = di_calloc(1, sizeof *p);
    CHECK(p, err, DI_ERR_MEMORY, "", "out of memory for the step pipeline");
    p->params = *params;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    if (!params->store->be->ops->sample)
        TRY(di_law_create((size_t)params->vocab, &p->law, err));
    CHECK(allocate(p), err, DI_ERR_MEMORY, "", "out of memory for %d lanes of %d logits", params->lanes, params->vocab);
    p->has_thread = di_thread_create(&p->thread, work, p) == 0;
    CHECK(p->has_thread, err, DI_ERR_LIMIT, "", "the system grants no thread for the step pipeline");
    *out = p;
    p = NULL;
out:
    di_pipeline_destroy(p);
    return status;
}

void di_pipeline_set_pages(struct di_pipeline *p, struct di_launch *l, int lane, const int32_t *pages, int n, uint64_t version)
{
    const struct di_kv_store *store = p->params.store;
    size_t row = (size_t)lane * (size_t)store->pages_per_slot, bytes = (size_t)n * sizeof *pages;
    if (p->page_version[lane] == version)
        return;
    p->page_version[lane] = version;
    memcpy(l->pages + row, pages, bytes);
    l->page_spans[l->n_page_spans++] = (struct di_copy_span){store->page_table + row, l->pages + row, bytes};
}

static void free_launch(struct di_backend *be, struct di_launch *l)
{
    di_free(l->replay);
    di_free(l->copies);
    di_staging_free(be, l->pages);
    di_free(l->page_spans);
    di_free(l->chunks);
    di_free(l->tokens);
    di_free(l->wants_logits);
    di_free(l->computed);
    di_free(l->out);
}

void di_pipeline_destroy(struct di_pipeline *p)
{
    if (!p)
        return;
    if (p->has_thread) {
        pthread_mutex_lock(&p->lock);
        p->ending = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    struct di_backend *be = p->params.store->be;
    free_launch(be, &p->launches[0]);
    free_launch(be, &p->launches[1]);
    di_law_destroy(p->law);
    di_free(p->lanes);
    di_free(p->names);
    di_free(p->dropped);
    di_free(p->live);
    di_free(p->live_replay);
    di_free(p->live_tokens);
    di_free(p->page_version);
    di_free(p->logit_rows);
    di_free(p->logit_out);
    di_free(p->tasks);
    di_staging_free(be, p->results);
    di_free(p->positions);
    di_device_free(be, p->logits);
    di_free(p);
}

struct di_lane *di_pipeline_lane(struct di_pipeline *p, int lane)
{
    return &p->lanes[lane];
}

void di_pipeline_open_lane(struct di_pipeline *p, int lane)
{
    atomic_store(&p->names[lane], p->lanes[lane].name);
}

/* A name that is compared on both sides: a lane that changed its owner in between is left alone. */
void di_pipeline_drop(struct di_pipeline *p, uint64_t name)
{
    for (int i = 0; i < p->params.lanes && name; i++)
        if (atomic_load(&p->names[i]) == name)
            atomic_store(&p->dropped[i], name);
}

struct di_launch *di_pipeline_next(struct di_pipeline *p)
{
    struct di_launch *l = &p->launches[(p->launched + 1) % 2];
    l->number = p->launched + 1;
    l->n_chunks = l->n_out = l->n_copies = l->n_page_spans = 0;
    return l;
}

void di_pipeline_launch(struct di_pipeline *p, struct di_launch *l)
{
    pthread_mutex_lock(&p->lock);
    p->launched = l->number;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void di_pipeline_wait(struct di_pipeline *p, struct di_launch *l)
{
    pthread_mutex_lock(&p->lock);
    while (p->done < l->number)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
