#include "engine/pipeline.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/threads.h"

#include <math.h>
#include <stdatomic.h>

struct di_pipeline {
    struct di_pipeline_params params;
    struct di_stepper stepper;
    struct di_pipeline_slot *slots;
    _Atomic int64_t *owners, *dropped; /* [slots] the request, for other threads; the one whose rows are to be dropped. From 1 on */
    struct di_launch launches[2];
    uint64_t *page_version;  /* [slots] of what the newest launch leaves in the device's page table */
    uint64_t launched, done; /* numbers; guarded by lock */
    bool ending;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;
    /* worker only */
    struct di_law *law;      /* of the plain sampler, for a back end that has none */
    float DI_DEVICE *logits; /* [tile_rows][vocab] */
    int tile_rows;
    struct di_step step;     /* of the launch that runs, over the arrays below */
    struct di_chunk *chunks; /* [slots], as the next two */
    struct di_replay *replay;
    const int32_t **tokens;
    int32_t *logit_rows;          /* [slots * cursor_rows], as the next */
    struct di_sample_task *tasks; /* of the rows that are sampled, in order */
    const uint64_t **allowed;     /* [cursor_rows] */
    struct di_guess *guesses;     /* [slots], of a launch; NULL if there are none */
    int n_guesses;
};

/* ---------------------------------------------------------------- worker: rows */

/* The last rows of a chunk decide tokens: so many. */
static int sampled_rows(const struct di_launch_chunk *c)
{
    return c->kind == DI_ROWS_OF_CURSOR ? c->n_computed : c->kind == DI_ROWS_OF_PROMPT_END && c->n_computed > 0;
}

/* Position of the first token that a chunk decides. */
static int64_t first_decided(const struct di_launch_chunk *c)
{
    return (int64_t)c->pos0 + c->n_computed - sampled_rows(c) + 1;
}

static bool ends_answer(const struct di_pipeline_slot *slot, int32_t id)
{
    for (size_t i = 0; i < slot->params->n_end_ids && !slot->ignore_end; i++)
        if (slot->params->end_ids[i] == id)
            return true;
    return false;
}

/* The token that the request's own rules put at `index` of the answer, -1 = it is sampled. */
static int32_t forced_token(const struct di_pipeline_slot *slot, int64_t index)
{
    const struct di_cap *cap = &slot->cap;
    if (index < slot->n_forced)
        return slot->forced[index];
    if (index != cap->at)
        return -1;
    for (const int32_t *t = slot->tokens + slot->n_prompt; t < slot->tokens + slot->n_prompt + index; t++)
        if (*t == cap->ids[0] || *t == cap->ids[1])
            return -1;
    return cap->ids[0];
}

/* What the sampler gets for the token at `position` of a slot; logits and mask follow. */
static struct di_sample_task sample_task(const struct di_pipeline *p, const struct di_pipeline_slot *slot, int64_t position)
{
    return (struct di_sample_task){.row = {.params = slot->params,
                                           .counts = slot->counts,
                                           .banned = p->params.banned,
                                           .n_generated = (uint64_t)(position - slot->n_prompt),
                                           .position = (uint64_t)position},
                                   .key = slot->key,
                                   .forced = forced_token(slot, position - slot->n_prompt)};
}

/* The same of a guess: the same draw, of which nothing is reported. Whether the reasoning has ended by then is not known. */
static struct di_sample_task guess_task(const struct di_pipeline *p, const struct di_pipeline_slot *slot, int64_t position)
{
    int64_t index = position - slot->n_prompt;
    return (struct di_sample_task){
        .row = {.params = &slot->guess_params, .banned = p->params.banned, .n_generated = (uint64_t)index, .position = (uint64_t)position},
        .key = slot->key,
        .forced = index < slot->n_forced ? slot->forced[index] : -1};
}

static void add_chunk(struct di_pipeline *p, struct di_launch *l, struct di_launch_chunk *c, int row)
{
    struct di_step *s = &p->step;
    struct di_pipeline_slot *slot = &p->slots[c->slot];
    int sampled = sampled_rows(c);
    p->chunks[s->n_chunks] = (struct di_chunk){.slot = c->slot, .row0 = row, .n = c->n_computed, .pos0 = c->pos0};
    p->replay[s->n_chunks] = c->replay;
    p->tokens[s->n_chunks++] = slot->tokens;
    c->tokens = &l->results[s->n_logits];
    if (sampled && slot->masks)
        slot->masks->start(slot->masks->ctx, slot->tokens, first_decided(c), sampled);
    for (int i = 0; i < sampled; i++) {
        p->tasks[s->n_logits] = sample_task(p, slot, first_decided(c) + i);
        p->logit_rows[s->n_logits++] = row + c->n_computed - sampled + i;
    }
}

/* From where the slot stands: the row of the token that was decided last, and rows of guesses behind it. Where penalties count what came
 * before, every row would need counts of its own: it stands alone. */
static void begin_at_cursor(struct di_pipeline *p, struct di_launch_chunk *c, struct di_pipeline_slot *slot)
{
    int64_t left = slot->n_limit - 1 - slot->cursor; /* tokens */
    int most = left < c->n ? (int)left : c->n;
    c->pos0 = (int32_t)slot->cursor;
    c->n_computed = 1;
    if (!p->guesses || most < 2 || slot->counts)
        return;
    struct di_guess *g = &p->guesses[p->n_guesses++];
    *g = (struct di_guess){.slot = c->slot,
                           .tokens = slot->tokens,
                           .at = slot->cursor,
                           .most = most - 1,
                           .floor = c->replay.tail > c->replay.floor ? c->replay.tail : c->replay.floor};
    slot->guess_params = *slot->params;
    slot->guess_params.logprobs = false;
    slot->guess_params.top_logprobs = 0;
    for (int k = 0; k < DI_MAX_DRAFTS; k++)
        g->task[k] = guess_task(p, slot, slot->cursor + 1 + k);
}

/* Which rows are computed, as far as it is known before tokens are guessed. */
static void begin_chunk(struct di_pipeline *p, const struct di_launch *l, struct di_launch_chunk *c)
{
    struct di_pipeline_slot *slot = &p->slots[c->slot];
    if (slot->id && atomic_load(&p->dropped[c->slot]) == slot->id)
        slot->ended = true;
    c->tokens = l->results; /* none, until rows of it are sampled */
    c->n_tokens = 0;
    c->n_computed = slot->ended ? 0 : c->n;
    if (c->kind == DI_ROWS_OF_CURSOR && !slot->ended)
        begin_at_cursor(p, c, slot);
}

/* The step of a launch: rows of the slots that have not ended. */
static void make_step(struct di_pipeline *p, struct di_launch *l)
{
    const struct di_guess *g = p->guesses;
    int row = 0;
    p->step = (struct di_step){
        .chunks = p->chunks, .tokens = p->tokens, .replay = p->replay, .kv = di_kv_view(p->params.store), .logit_rows = p->logit_rows};
    p->n_guesses = 0;
    for (int i = 0; i < l->n_chunks; i++)
        begin_chunk(p, l, &l->chunks[i]);
    if (p->n_guesses > 0)
        p->stepper.guess(p->stepper.guess_ctx, &p->step.kv, p->n_guesses, p->guesses);
    for (struct di_launch_chunk *c = l->chunks; c < l->chunks + l->n_chunks; c++) {
        if (c->n_computed == 0)
            continue;
        if (g && g < p->guesses + p->n_guesses && g->slot == c->slot) /* in the order of the chunks */
            c->n_computed += g++->n;
        add_chunk(p, l, c, row);
        row += c->n_computed;
    }
}

/* ---------------------------------------------------------------- worker: tokens */

/* The gate between model and sampler: masks of all rows of a chunk. A slot whose masks fail ends behind the launch; its rows are sampled
 * for nothing. */
static void take_masks(struct di_pipeline *p, const struct di_launch *l, const struct di_launch_chunk *c)
{
    struct di_pipeline_slot *slot = &p->slots[c->slot];
    int n = sampled_rows(c);
    if (!n || !slot->masks)
        return;
    struct di_sample_task *task = &p->tasks[c->tokens - l->results];
    slot->mask_status = slot->masks->wait(slot->masks->ctx, n, p->allowed, &slot->mask_error);
    for (int i = 0; i < n && slot->mask_status == DI_OK; i++)
        task[i].row.allowed = p->allowed[i];
}

static void sample_tasks(struct di_pipeline *p, int n, const struct di_sample_task *tasks, struct di_sample_result *results)
{
    struct di_backend *be = p->params.store->be;
    if (be->ops->sample)
        be->ops->sample(be, &(struct di_op_sample){.m = n, .tasks = tasks, .results = results});
    else
        for (int i = 0; i < n; i++)
            di_sample_task_run(p->law, &tasks[i], &results[i]);
}

/* Head and sampler, a tile of rows at a time. */
static void sample_rows(struct di_pipeline *p, struct di_launch *l)
{
    struct di_launch_chunk *c = l->chunks, *end = l->chunks + l->n_chunks;
    for (int first = 0, n; first < p->step.n_logits; first += n) {
        n = p->step.n_logits - first < p->tile_rows ? p->step.n_logits - first : p->tile_rows;
        p->stepper.head(p->stepper.ctx, &p->step, first, n, p->logits);
        for (; c < end && (!sampled_rows(c) || c->tokens < l->results + first + n); c++)
            take_masks(p, l, c);
        for (int i = 0; i < n; i++) /* read by the sampler, on the device */
            p->tasks[first + i].row.logits = (const float *)p->logits + (size_t)i * (size_t)p->stepper.vocab;
        sample_tasks(p, n, p->tasks + first, l->results + first);
    }
}

/* The token at `position` is decided. */
static void append_token(struct di_pipeline_slot *slot, int64_t position, int32_t id)
{
    DI_ASSERT(position >= slot->n_prompt && position < slot->n_limit);
    slot->tokens[position] = id;
    if (slot->counts)
        di_token_counts_add(slot->counts, id);
    slot->ended = ends_answer(slot, id) || position + 1 == slot->n_limit;
}

/* Of the tokens that a chunk decided those stay that follow from what stays: a row whose input was another one than was decided before it
 * counts for nothing, nor does what lies behind an end. The slot goes on behind the last of them; the rows of the others will be written
 * again. */
static void keep_tokens(struct di_pipeline *p, struct di_launch *l, struct di_launch_chunk *c)
{
    struct di_pipeline_slot *slot = &p->slots[c->slot];
    struct di_sample_result *results = &l->results[c->tokens - l->results];
    int n = sampled_rows(c);
    int64_t at = first_decided(c);
    if (n && slot->mask_status != DI_OK) {
        results->status = slot->mask_status;
        results->err = slot->mask_error;
    }
    for (bool stays = n > 0; stays; at++) {
        const struct di_sample_result *r = &results[c->n_tokens++];
        if (r->status != DI_OK &&
            c->n_tokens > 1) { /* asked again without a guess before it: then the error is the same as without guesses */
            c->n_tokens--;
            break;
        }
        slot->ended = r->status != DI_OK;
        if (slot->ended)
            break;
        stays = c->n_tokens < n && slot->tokens[at] == r->sample.id;
        append_token(slot, at, r->sample.id);
        stays = stays && !slot->ended;
    }
    slot->cursor = at - 1;
}

/* ---------------------------------------------------------------- worker: launches */

static void enqueue_launch(struct di_pipeline *p, struct di_launch *l)
{
    struct di_kv_store *store = p->params.store;
    store->be->ops->copy(store->be, &(struct di_op_copy){l->n_page_spans, l->page_spans});
    for (int i = 0; i < l->n_copies; i++)
        di_kv_copy_block(store, l->copies[i].from, l->copies[i].to, l->copies[i].tokens);
    if (p->step.n_chunks > 0)
        l->status = p->stepper.compute(p->stepper.ctx, &p->step, &l->err);
    if (l->status == DI_OK)
        sample_rows(p, l);
}

/* Everything that was enqueued is done. */
static void finish_launch(struct di_pipeline *p, struct di_launch *l)
{
    di_status done = di_backend_finish(p->params.store->be, l->status == DI_OK ? &l->err : NULL);
    l->status = l->status == DI_OK ? done : l->status;
    if (l->status == DI_OK && p->stepper.check && p->step.n_chunks > 0)
        l->status = p->stepper.check(p->stepper.ctx, &l->err);
    for (int i = 0; i < l->n_chunks; i++)
        if (l->chunks[i].n_computed > 0 && l->status == DI_OK)
            keep_tokens(p, l, &l->chunks[i]);
        else if (l->chunks[i].n_computed > 0) /* the next launch would read tokens that nobody sampled */
            p->slots[l->chunks[i].slot].ended = true;
}

static void execute_launch(struct di_pipeline *p, struct di_launch *l)
{
    l->status = DI_OK;
    l->started_ns = di_clock_ns();
    make_step(p, l); /* guesses are computed in it */
    enqueue_launch(p, l);
    finish_launch(p, l);
    l->ended_ns = di_clock_ns();
}

static void *run_worker(void *arg)
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
        execute_launch(p, l);
        pthread_mutex_lock(&p->lock);
        p->done++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---------------------------------------------------------------- engine's side */

static bool is_done(struct di_pipeline *p, uint64_t number)
{
    pthread_mutex_lock(&p->lock);
    bool done = p->done >= number;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static bool allocate_launch(struct di_pipeline *p, struct di_launch *l)
{
    size_t n = (size_t)p->params.slots;
    struct di_backend *be = p->params.store->be;
    l->chunks = di_calloc(n, sizeof *l->chunks);
    l->copies = di_calloc(n, sizeof *l->copies);
    l->pages = di_staging_alloc(be, n * (size_t)p->params.store->pages_per_slot * sizeof *l->pages);
    l->page_spans = di_calloc(n, sizeof *l->page_spans);
    l->results = di_staging_alloc(be, n * (size_t)p->params.cursor_rows * sizeof *l->results);
    return l->chunks && l->copies && l->pages && l->page_spans && l->results;
}

static int tile_rows(int slots, int cursor_rows)
{
    return slots * cursor_rows < DI_LOGIT_ROWS ? slots * cursor_rows : DI_LOGIT_ROWS;
}

static bool has_guesses(const struct di_pipeline *p)
{
    return p->stepper.guess && p->params.cursor_rows > 1;
}

static bool allocate_arrays(struct di_pipeline *p)
{
    size_t n = (size_t)p->params.slots, rows = n * (size_t)p->params.cursor_rows;
    p->slots = di_calloc(n, sizeof *p->slots);
    p->owners = di_calloc(n, sizeof *p->owners);
    p->dropped = di_calloc(n, sizeof *p->dropped);
    p->page_version = di_calloc(n, sizeof *p->page_version);
    p->chunks = di_calloc(n, sizeof *p->chunks);
    p->replay = di_calloc(n, sizeof *p->replay);
    p->tokens = di_calloc(n, sizeof *p->tokens);
    p->logit_rows = di_calloc(rows, sizeof *p->logit_rows);
    p->tasks = di_calloc(rows, sizeof *p->tasks);
    p->allowed = di_calloc((size_t)p->params.cursor_rows, sizeof *p->allowed);
    p->guesses = has_guesses(p) ? di_calloc(n, sizeof *p->guesses) : NULL;
    p->tile_rows = tile_rows(p->params.slots, p->params.cursor_rows);
    p->logits = di_device_alloc(p->params.store->be, (size_t)p->tile_rows * (size_t)p->stepper.vocab * sizeof *p->logits);
    return p->slots && p->owners && p->dropped && p->page_version && p->chunks && p->replay && p->tokens && p->logit_rows && p->tasks &&
           p->allowed && (p->guesses || !has_guesses(p)) && p->logits && allocate_launch(p, &p->launches[0]) &&
           allocate_launch(p, &p->launches[1]);
}

void di_pipeline_plan(int slots, int cursor_rows, int vocab, int pages_per_slot, di_memory_plan *plan)
{
    const uint64_t n = (uint64_t)slots, k = (uint64_t)cursor_rows;
    const uint64_t launch = sizeof(struct di_launch_chunk) + sizeof(struct di_block_copy) + (uint64_t)pages_per_slot * sizeof(int32_t) +
                            sizeof(struct di_copy_span) + k * sizeof(struct di_sample_result);
    const uint64_t slot = sizeof(struct di_pipeline_slot) + 3 * sizeof(uint64_t) + sizeof(struct di_chunk) + sizeof(struct di_replay) +
                          sizeof(int32_t *) + k * (sizeof(int32_t) + sizeof(struct di_sample_task)) +
                          (cursor_rows > 1 ? sizeof(struct di_guess) : 0);
    di_memory_region r = {.group = DI_GROUP_CACHE,
                          .name = "logits",
                          .count = (uint64_t)tile_rows(slots, cursor_rows),
                          .unit_bytes = (uint64_t)vocab * sizeof(float)};
    di_plan_add(plan, &r, "rows of the vocabulary that are sampled together");
    r = (di_memory_region){.group = DI_GROUP_CACHE, .place = DI_PLACE_HOST, .name = "launch tables", .count = 2, .unit_bytes = n * launch};
    di_plan_add(plan, &r, "of a step that runs and the next one; page tables on their way");
    r = (di_memory_region){.group = DI_GROUP_CACHE, .place = DI_PLACE_HOST, .name = "worker slots", .count = n, .unit_bytes = slot};
    di_plan_add(plan, &r, "what the worker knows of each request");
}

di_status di_pipeline_create(const struct di_pipeline_params *params, struct di_pipeline **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_pipeline *p = di_calloc(1, sizeof *p);
    CHECK(p, err, DI_ERR_MEMORY, "", "out of memory for the step pipeline");
    p->params = *params;
    p->stepper = *params->stepper;
    p->params.stepper = &p->stepper;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    if (!params->store->be->ops->sample)
        TRY(di_law_create((size_t)p->stepper.vocab, &p->law, err));
    CHECK(allocate_arrays(p), err, DI_ERR_MEMORY, "", "out of memory for %d slots of %d logits", params->slots, p->stepper.vocab);
    p->has_thread = di_thread_create(&p->thread, run_worker, p) == 0;
    CHECK(p->has_thread, err, DI_ERR_LIMIT, "", "the system grants no thread for the step pipeline");
    *out = p;
    p = NULL;
out:
    di_pipeline_destroy(p);
    return status;
}

void di_pipeline_set_pages(struct di_pipeline *p, struct di_launch *l, int slot, const int32_t *pages, int n, uint64_t version)
{
    const struct di_kv_store *store = p->params.store;
    size_t row = (size_t)slot * (size_t)store->pages_per_slot, bytes = (size_t)n * sizeof *pages;
    DI_ASSERT(slot >= 0 && slot < p->params.slots && n <= store->pages_per_slot && l->n_page_spans < p->params.slots);
    if (p->page_version[slot] == version)
        return;
    p->page_version[slot] = version;
    memcpy(l->pages + row, pages, bytes);
    l->page_spans[l->n_page_spans++] = (struct di_copy_span){store->page_table + row, l->pages + row, bytes};
}

static void free_launch(struct di_backend *be, struct di_launch *l)
{
    di_free(l->chunks);
    di_free(l->copies);
    di_staging_free(be, l->pages);
    di_free(l->page_spans);
    di_staging_free(be, l->results);
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
    di_free(p->slots);
    di_free(p->owners);
    di_free(p->dropped);
    di_free(p->page_version);
    di_free(p->chunks);
    di_free(p->replay);
    di_free(p->tokens);
    di_free(p->logit_rows);
    di_free(p->tasks);
    di_free(p->allowed);
    di_free(p->guesses);
    di_device_free(be, p->logits);
    di_free(p);
}

struct di_pipeline_slot *di_pipeline_slot_of(struct di_pipeline *p, int slot)
{
    return &p->slots[slot];
}

void di_pipeline_open_slot(struct di_pipeline *p, int slot)
{
    atomic_store(&p->owners[slot], p->slots[slot].id);
}

/* A number that is compared on both sides: a slot that changed its owner in between is left alone. */
void di_pipeline_drop(struct di_pipeline *p, int64_t id)
{
    for (int i = 0; i < p->params.slots && id; i++)
        if (atomic_load(&p->owners[i]) == id)
            atomic_store(&p->dropped[i], id);
}

struct di_launch *di_pipeline_next(struct di_pipeline *p)
{
    struct di_launch *l = &p->launches[(p->launched + 1) % 2];
    DI_ASSERT(p->launched == 0 || is_done(p, p->launched - 1)); /* it had this place */
    l->number = p->launched + 1;
    l->n_chunks = l->n_copies = l->n_page_spans = 0;
    return l;
}

void di_pipeline_launch(struct di_pipeline *p, struct di_launch *l)
{
    DI_ASSERT(l->number == p->launched + 1 && l == &p->launches[l->number % 2]);
    DI_ASSERT(l->n_chunks <= p->params.slots && l->n_copies <= p->params.slots);
    pthread_mutex_lock(&p->lock);
    p->launched = l->number;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void di_pipeline_wait(struct di_pipeline *p, struct di_launch *l)
{
    DI_ASSERT(l->number <= p->launched); /* else it would wait for ever */
    pthread_mutex_lock(&p->lock);
    while (p->done < l->number)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
