#include "engine/core_impl.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- sizes */

/* Rows from a request's cursor in one launch. */
static int cursor_rows(const struct di_core_config *config)
{
    return 1 + config->drafts;
}

/* Positions behind a request's last one for rows of guesses: of a launch and of the wasted one behind it. A device that does not know the end
 * writes there (spec/dspark.md §6.6); this worker stops at the limit. */
static int slack_rows(const struct di_core_config *config)
{
    return config->drafts ? 2 * cursor_rows(config) : 0;
}

int di_core_max_rows(const struct di_core_config *config)
{
    int rows = config->prefill_chunk + config->max_batch * cursor_rows(config),
        drafted = config->drafts ? config->max_batch * DI_MAX_DRAFTS : 0;
    return rows > drafted ? rows : drafted;
}

int64_t di_core_context(const struct di_config *c, const struct di_core_config *config)
{
    if (config->context)
        return config->context;
    return c->max_position_embeddings < 65536 ? c->max_position_embeddings : 65536;
}

static int pool_blocks(const struct di_core_config *config, int64_t context)
{
    int spare = config->no_reuse ? 0 : 1; /* the source of a copy is held while its request has all other blocks */
    int whole = di_kv_blocks_for(context + slack_rows(config)) + spare;
    return config->cache_blocks ? config->cache_blocks : config->max_batch * whole;
}

int64_t di_core_positions(const struct di_core *e, const struct di_request *r)
{
    return r->n_prompt + r->max_tokens + slack_rows(&e->config);
}

int di_core_default_states(const struct di_config *c, struct di_numerics numerics, const struct di_core_config *config)
{
    struct di_kv_layout layout;
    di_kv_layout_init(&layout, c, numerics);
    return di_reuse_default_states(&layout, pool_blocks(config, di_core_context(c, config)), c->sliding_window);
}

void di_core_plan(const struct di_config *c, struct di_numerics numerics, const struct di_core_config *config, di_memory_plan *plan)
{
    struct di_kv_layout layout;
    int64_t context = di_core_context(c, config), positions = context + slack_rows(config);
    int blocks = pool_blocks(config, context);
    di_kv_layout_init(&layout, c, numerics);
    plan->max_batch = config->max_batch;
    di_kv_store_plan(&layout, config->max_batch, blocks, positions, plan);
    const struct di_reuse_params reuse = {
        .states = config->states, .window = c->sliding_window, .layers = c->num_hidden_layers, .max_tokens = context};
    if (!config->no_reuse)
        di_reuse_plan(&layout, blocks, &reuse, plan);
    di_pipeline_plan(config->max_batch, cursor_rows(config), c->vocab_size, di_kv_blocks_for(positions), plan);
    if (config->drafts)
        di_drafter_plan(c, config->max_batch, plan);
    const di_memory_region slots = {.group = DI_GROUP_CACHE,
                                    .place = DI_PLACE_HOST,
                                    .name = "slots",
                                    .count = (uint64_t)config->max_batch,
                                    .unit_bytes = sizeof(struct slot) + sizeof(struct bidder)};
    di_plan_add(plan, &slots, "what the engine knows of each running request");
}

/* ---------------------------------------------------------------- creation */

di_status di_core_create_on(const struct di_stepper *n, const struct di_core_config *config, struct di_core **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_core *e = NULL;
    *out = NULL;
    CHECK(config->max_batch >= 1 && config->max_batch <= 1024 && config->prefill_chunk >= 1 && config->cache_blocks >= 0, err,
          DI_ERR_INVALID, "engine", "max-batch must be 1 to 1024 and prefill-chunk at least 1");
    CHECK(config->drafts >= 0 && config->drafts <= DI_MAX_DRAFTS, err, DI_ERR_INVALID, "engine", "drafts must be 0 to %d", DI_MAX_DRAFTS);
    e = di_calloc(1, sizeof *e);
    CHECK(e, err, DI_ERR_MEMORY, "", "out of memory for the engine");
    e->config = *config;
    e->context = n->context;
    e->replay = (struct di_replay_rules){config->replay, config->replay_rows, n->window, n->rollback};
    TRY(di_replay_rules_check(&e->replay, err));
    e->vocab = n->vocab;
    e->slots = di_calloc((size_t)config->max_batch, sizeof *e->slots);
    e->bidders = di_calloc((size_t)config->max_batch, sizeof *e->bidders);
    CHECK(e->slots && e->bidders, err, DI_ERR_MEMORY, "", "out of memory for %d slots", config->max_batch);
    TRY(di_kv_store_create(n->be ? n->be : di_backend_plain_memory(), &n->layout, config->max_batch, pool_blocks(config, n->context),
                           n->context + slack_rows(config), &e->store, err));
    if (!config->no_reuse) {
        struct di_reuse_params r = {
            .states = config->states, .window = n->window, .layers = n->layers, .max_tokens = n->context, .numerics = n->numerics};
        memcpy(r.model_digest, n->model_digest, sizeof r.model_digest);
        TRY(di_reuse_create(e->store, &r, &e->reuse, err));
    }
    struct di_pipeline_params p = {
        .stepper = n, .store = e->store, .slots = config->max_batch, .cursor_rows = cursor_rows(config), .banned = config->banned};
    TRY(di_pipeline_create(&p, &e->pipe, err));
    *out = e;
    e = NULL;
out:
    di_core_destroy(e);
    return status;
}

static di_status compute_model(void *ctx, const struct di_step *step, di_error *err)
{
    return di_model_launch(ctx, step, err);
}

static void compute_head(void *ctx, const struct di_step *step, int first, int n, float DI_DEVICE *logits)
{
    (void)step;
    di_model_head(ctx, first, n, logits);
}

static di_status check_model(void *ctx, di_error *err)
{
    return di_model_check(ctx, err);
}

di_status di_core_create(struct di_model *model, const struct di_core_config *config, struct di_core **out, di_error *err)
{
    struct di_stepper n = {.be = model->be,
                           .layout = model->be->layout,
                           .vocab = model->c->vocab_size,
                           .window = model->c->sliding_window,
                           .layers = model->c->num_hidden_layers,
                           .rollback = di_replay_rollback(model->c),
                           .context = di_core_context(model->c, config),
                           .compute = compute_model,
                           .head = compute_head,
                           .check = check_model,
                           .ctx = model,
                           .numerics = model->be->bits};
    memcpy(n.model_digest, model->digest, sizeof n.model_digest);
    *out = NULL;
    if (config->drafts && (!model->params.drafts || config->drafts > model->c->dspark_block_size))
        return di_fail(err, DI_ERR_INVALID, "engine", "%d drafts a step are not what the model can make", config->drafts);
    if (model->params.max_rows < di_core_max_rows(config) || model->params.max_context < n.context)
        return di_fail(err, DI_ERR_INTERNAL, "engine", "the model was opened for %d rows and %lld tokens, fewer than the engine uses",
                       model->params.max_rows, (long long)model->params.max_context);
    struct di_drafter *drafter = NULL;
    di_status status = config->drafts ? di_drafter_create(model, config->max_batch, &drafter, err) : DI_OK;
    if (drafter) {
        n.guess = di_drafter_guess;
        n.guess_ctx = drafter;
    }
    if (status == DI_OK)
        status = di_core_create_on(&n, config, out, err);
    if (status == DI_OK)
        (*out)->drafter = drafter;
    else
        di_drafter_destroy(drafter);
    return status;
}

/* ---------------------------------------------------------------- the end of requests */

/* A request that its owner has been told the end of. */
static void drop_request(struct di_core *e, struct request *q)
{
    di_core_leave_leader(e, q, false);
    di_core_free_request(e, q);
}

/* Of requests that ended by themselves. */
static void record_whole(struct di_core *e, const struct request *q)
{
    const struct di_request_facts *f = &q->facts;
    struct di_metrics *m = &e->metrics;
    di_metrics_add(m, DI_HISTOGRAM_TOTAL_TIME, f->total_ns);
    di_metrics_add(m, DI_HISTOGRAM_INFERENCE_TIME, f->total_ns - f->queue_ns);
    di_metrics_add(m, DI_HISTOGRAM_PREFILL_TIME, f->first_token_ns - f->queue_ns);
    di_metrics_add(m, DI_HISTOGRAM_DECODE_TIME, q->last_token_ns - q->r.arrived_ns - f->first_token_ns);
    di_metrics_add(m, DI_HISTOGRAM_PROMPT_TOKENS, q->r.n_prompt);
    di_metrics_add(m, DI_HISTOGRAM_GENERATION_TOKENS, q->n_done - q->r.n_prompt);
    di_metrics_add(m, DI_HISTOGRAM_CACHED_TOKENS, f->cached);
    di_metrics_add(m, DI_HISTOGRAM_MAX_TOKENS, q->r.max_tokens);
}

static void tell_end(struct di_core *e, struct request *q, di_end_reason end, const di_error *err)
{
    di_core_forget(e, q);
    q->facts.total_ns = e->now_ns - q->r.arrived_ns;
    if (end == DI_REASON_STOP || end == DI_REASON_LENGTH)
        record_whole(e, q);
    if (q->r.facts)
        *q->r.facts = q->facts;
    bool given_up = end == DI_REASON_CANCELLED || end == DI_REASON_DEADLINE;
    *(end == DI_REASON_ERROR ? &e->stats.failed : given_up ? &e->stats.cancelled : &e->stats.finished) += 1;
    if (q->r.on_end)
        q->r.on_end(q->r.ctx, end, err);
}

/* No more rows for a slot. Its memory stays until the launches that name it are done: the last one is the one under way, or, between a
 * launch and the handling of its predecessor, the one just launched (both are the newest). */
void di_core_leave(struct di_core *e, struct slot *s, bool over)
{
    DI_ASSERT(s->state != SLOT_FREE);
    e->n_leaving += s->state != SLOT_LEAVING;
    s->state = SLOT_LEAVING;
    s->over = over;
    s->fence = e->under_way ? e->under_way->number : 0;
}

void di_core_save(struct di_core *e, int slot, int64_t at)
{
    struct slot *s = &e->slots[slot];
    di_reuse_save(e->reuse, slot, s->req->tokens, at, s->n_written, s->right_from);
    s->page_version = ++e->page_versions;
}

/* The state at the end of the answer is kept at once: whoever heard the end may come back before the launch under way is done. */
static void end_slot(struct di_core *e, struct slot *s, di_end_reason end, const di_error *err)
{
    s->end_saved = e->reuse && s->n_computed > s->req->r.n_prompt;
    if (s->end_saved)
        di_core_save(e, (int)(s - e->slots), s->n_computed);
    di_core_leave(e, s, true);
    tell_end(e, s->req, end, err);
}

/* Free the slots whose last launch is done. */
static void free_left_slots(struct di_core *e, uint64_t done)
{
    for (int i = 0; i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        if (s->state != SLOT_LEAVING || s->fence > done)
            continue;
        /* Cut within its prompt (cancelled, preempted): who comes again goes on there instead of computing the rings anew from G. */
        bool cut = s->n_computed >= DI_BLOCK_TOKENS && s->n_computed < s->req->r.n_prompt;
        if (e->reuse && !s->end_saved && (cut || s->n_computed > s->req->r.n_prompt))
            di_core_save(e, i, s->n_computed);
        di_kv_release(e->store, i);
        if (s->over) {
            drop_request(e, s->req);
        } else {
            di_core_leave_leader(e, s->req, true); /* who knows for how long it waits */
            s->req->n_resume = s->req->n_done;
            s->req->n_cached = di_core_cached_rows(e, s->req);
            di_core_wait(e, s->req);
        }
        s->req = NULL;
        s->state = SLOT_FREE;
        s->generation++;
        e->stats.running--;
        e->n_leaving--;
    }
}

/* Of all that wait, when nothing runs. */
static void end_waiting(struct di_core *e, di_end_reason end, const di_error *err)
{
    struct request *q;
    while ((q = di_order_first(&e->living))) {
        di_core_unwait(e, q);
        tell_end(e, q, end, err);
        drop_request(e, q);
    }
}

void di_core_destroy(struct di_core *e)
{
    if (!e)
        return;
    di_pipeline_destroy(e->pipe);
    e->now_ns = di_clock_ns();
    for (int i = 0; e->slots && i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        if (s->state == SLOT_RUNNING || (s->state == SLOT_LEAVING && !s->over))
            tell_end(e, s->req, DI_REASON_CANCELLED, NULL);
        if (s->state != SLOT_FREE)
            drop_request(e, s->req);
    }
    end_waiting(e, DI_REASON_CANCELLED, NULL);
    di_core_free_queue(e);
    for (int i = 0; e->store && i < e->config.max_batch; i++)
        di_kv_release(e->store, i);
    di_drafter_destroy(e->drafter);
    di_reuse_destroy(e->reuse);
    di_kv_store_destroy(e->store);
    di_free(e->slots);
    di_free(e->bidders);
    di_free(e);
}

/* ---------------------------------------------------------------- submit, cancel */

di_status di_core_check(const struct di_core *e, const struct di_request *r, di_error *err)
{
    di_status status = DI_OK;
    CHECK(r->n_prompt > 0, err, DI_ERR_INVALID, "prompt", "the prompt is empty; at least one token is needed");
    CHECK(r->max_tokens > 0, err, DI_ERR_INVALID, "max_tokens", "max_tokens must be at least 1");
    if (r->n_prompt > e->context || r->max_tokens > e->context - r->n_prompt)
        return di_fail_context(err, "prompt", e->context, r->n_prompt, r->max_tokens);
    int blocks = di_kv_blocks_for(di_core_positions(e, r));
    CHECK(blocks <= e->store->n_blocks, err, DI_ERR_LIMIT, "prompt", "%lld tokens need %d cache blocks, the pool has %d",
          (long long)(r->n_prompt + r->max_tokens), blocks, e->store->n_blocks);
    for (int64_t i = 0; i < r->n_prompt; i++)
        CHECK(r->prompt[i] >= 0 && r->prompt[i] < e->vocab, err, DI_ERR_INVALID, "prompt",
              "token id %d at position %lld is outside the vocabulary of %d", r->prompt[i], (long long)i, e->vocab);
    for (int64_t i = 0; i < r->n_forced; i++)
        CHECK(r->forced[i] >= -1 && r->forced[i] < e->vocab, err, DI_ERR_INVALID, "forced",
              "entry %lld is %d; it must be a token id below %d, or -1 for a sampled token", (long long)i, r->forced[i], e->vocab);
    for (size_t i = 0; i < r->n_save_at; i++)
        CHECK(r->save_at[i] > (i ? r->save_at[i - 1] : 0) && r->save_at[i] <= r->n_prompt, err, DI_ERR_INVALID, "save_at",
              "entry %zu is %d; positions must rise from 1 to the prompt's length of %lld", i, r->save_at[i], (long long)r->n_prompt);
    TRY(di_replay_mode_check(&e->replay, r->replay, r->n_forced > 0, err));
    status = di_sampling_params_check(&r->sampling, (size_t)e->vocab, err);
out:
    return status;
}

/* Copy of a list to *at, which moves behind it. */
static const void *copy_list(char **at, const void *list, size_t bytes)
{
    void *to = *at;
    if (bytes)
        memcpy(to, list, bytes);
    *at += bytes;
    return to;
}

bool di_core_make_room(const struct di_core *e, struct request *q)
{
    if (!q->room) {
        q->room = di_malloc((size_t)(q->r.n_prompt + q->r.max_tokens) * sizeof *q->room);
        if (!q->room)
            return false;
        memcpy(q->room, q->tokens, (size_t)q->r.n_prompt * sizeof *q->room);
        q->tokens = q->r.prompt = q->room;
    }
    if (q->counts || !di_sampling_needs_counts(&q->r.sampling))
        return true;
    if (di_token_counts_create((size_t)e->vocab, &q->counts, NULL) != DI_OK)
        return false;
    for (int64_t i = 0; i < q->r.n_prompt; i++)
        di_token_counts_add_prompt(q->counts, q->room[i]);
    return true;
}

void di_core_give_up(struct di_core *e, struct request *q, const di_error *err)
{
    di_core_unwait(e, q);
    tell_end(e, q, DI_REASON_ERROR, err);
    drop_request(e, q);
}

static struct request *request_create(const struct di_request *r)
{
    size_t ends = r->sampling.n_end_ids * sizeof(int32_t);
    size_t bias = r->sampling.n_bias * sizeof *r->sampling.bias;
    size_t forced = (size_t)r->n_forced * sizeof *r->forced;
    size_t saves = r->n_save_at * sizeof *r->save_at;
    struct request *q = di_malloc(sizeof *q + ends + bias + forced + saves);
    if (!q)
        return NULL;
    char *at = (char *)(q + 1);
    *q = (struct request){.r = *r, .n_done = r->n_prompt, .n_resume = r->n_prompt};
    q->facts = (struct di_request_facts){.queue_ns = -1, .first_token_ns = -1, .miss_at = -1};
    if (!r->arrived_ns)
        q->r.arrived_ns = di_clock_ns();
    q->tokens = r->prompt;
    q->r.sampling.end_ids = copy_list(&at, r->sampling.end_ids, ends);
    q->r.sampling.bias = copy_list(&at, r->sampling.bias, bias);
    q->r.forced = copy_list(&at, r->forced, forced);
    q->r.save_at = copy_list(&at, r->save_at, saves);
    q->cap = r->cap ? *r->cap : (struct di_cap){.at = -1};
    q->key = di_sample_key((uint64_t)r->sampling.seed, r->sample);
    return q;
}

di_status di_core_submit(struct di_core *e, const struct di_request *r, int64_t *id, di_error *err)
{
    di_status status = DI_OK;
    struct request *q = NULL;
    TRY(di_core_check(e, r, err));
    CHECK(!r->id || r->id > e->last_id, err, DI_ERR_INVALID, "id", "is %lld, but there was a request %lld before", (long long)r->id,
          (long long)e->last_id);
    q = request_create(r);
    CHECK(q, err, DI_ERR_MEMORY, "", "out of memory for a request of %lld tokens", (long long)(r->n_prompt + r->max_tokens));
    CHECK(r->prompt_stays || di_core_make_room(e, q), err, DI_ERR_MEMORY, "", "out of memory for a request of %lld tokens",
          (long long)(r->n_prompt + r->max_tokens));
    TRY(di_core_enter(e, q, err));
    if (r->masks)
        q->masks = *r->masks;
    if (id)
        *id = q->id;
    q->n_cached = di_core_cached_rows(e, q);
    di_core_wait(e, q);
    di_core_follow(e, q);
    q = NULL;
out:
    if (q)
        di_core_free_request(e, q);
    return status;
}

bool di_core_cancel(struct di_core *e, int64_t id)
{
    struct request *q = di_core_find(e, id);
    if (q && !q->cancelled) {
        q->cancelled = true;
        di_order_remove(&e->due, &q->due);
        di_order_add(&e->due, &q->due, q, INT64_MIN, 0, 0);
    }
    return q != NULL;
}

/* End what was cancelled or is late. */
static void end_late_requests(struct di_core *e)
{
    struct request *q;
    while ((q = di_order_first(&e->due)) && q->due.major < e->now_ns) {
        di_end_reason end = q->cancelled ? DI_REASON_CANCELLED : DI_REASON_DEADLINE;
        if (q->slot >= 0) {
            end_slot(e, &e->slots[q->slot], end, NULL);
            continue;
        }
        di_core_unwait(e, q);
        tell_end(e, q, end, NULL);
        drop_request(e, q);
    }
}

void di_core_drop(struct di_core *e, int64_t id)
{
    di_pipeline_drop(e->pipe, id);
}

/* ---------------------------------------------------------------- a step */

/* Rows that a running request could have in the next step, were there no budget. A row at position p decides the token at p + 1; none is
 * launched for a token that max_tokens excludes. From the cursor on it is one, and rows of guesses. */
static int64_t rows_to_launch(const struct di_core *e, const struct slot *s)
{
    const struct request *q = s->req;
    int64_t left = q->n_resume - s->n_rows;
    if (left <= 0) {
        left = q->r.n_prompt + q->r.max_tokens - 1 - s->n_rows;
        left = left < cursor_rows(&e->config) ? left : cursor_rows(&e->config);
    }
    if (s->save_at == s->n_rows && s->save_at > 0)
        return 0; /* its state is saved when the launch under way is done, before a later one overwrites the rings */
    return s->save_at > s->n_rows && s->save_at - s->n_rows < left ? s->save_at - s->n_rows : left;
}

static void add_rows(struct di_core *e, struct di_launch *l, int slot, int rows)
{
    struct slot *s = &e->slots[slot];
    const struct request *q = s->req;
    int64_t before = s->replay.tail - s->n_rows; /* rows before the tail */
    bool cursor = s->n_rows >= q->n_resume;
    int certain = cursor ? 1 : rows;
    *(cursor ? &e->stats.decode_rows : &e->stats.prompt_rows) += (uint64_t)certain;
    if (before > 0 && !s->replay.mask)
        e->stats.skipped_rows += (uint64_t)(before < rows ? before : rows);
    DI_ASSERT(rows > 0 && l->n_chunks < e->config.max_batch);
    DI_ASSERT(s->n_rows + rows <= (int64_t)e->store->lease[slot].n * DI_BLOCK_TOKENS);
    di_pipeline_set_pages(e->pipe, l, slot, e->store->lease[slot].pages, e->store->lease[slot].n, s->page_version);
    struct di_launch_chunk *c = &l->chunks[l->n_chunks++];
    c->slot = slot;
    c->generation = s->generation;
    c->kind = cursor ? DI_ROWS_OF_CURSOR : s->n_rows + rows == q->n_resume ? DI_ROWS_OF_PROMPT_END : DI_ROWS_OF_PROMPT;
    c->n = rows;
    c->pos0 = (int32_t)s->n_rows;
    c->replay = s->replay;
    s->n_rows += certain;
    s->n_written += rows;
}

/* Rows that a prompt has left; as somebody may wait for a part of it, those up to there. */
static int64_t rows_left(struct slot *s)
{
    const struct request *f = di_order_first(&s->req->followers);
    return (f && f->n_common < s->req->n_resume ? f->n_common : s->req->n_resume) - s->n_rows;
}

/* What decides between prompts: the priority, what the tenant had (rows of the prompts that run count when they are computed), the rank; or
 * whose turn it is. */
static void make_bid(struct di_core *e, struct bidder *b, int slot)
{
    struct slot *s = &e->slots[slot];
    const struct request *q = s->req;
    b->slot = slot;
    if (e->config.prefill_order == DI_PREFILL_ARRIVAL) {
        b->key[0] = b->key[1] = 0;
        b->key[2] = (slot - e->first_prompt + e->config.max_batch) % e->config.max_batch;
        return;
    }
    b->key[0] = q->r.priority;
    b->key[1] = q->turn + s->n_rows - s->n_started;
    b->key[2] = di_core_rank(e, q, rows_left(s));
}

/* Tenants are compared, not their requests: each has what the least of its prompts had. */
static void level_tenants(struct di_core *e, struct bidder *b, int n)
{
    for (int i = 0; i < n; i++)
        e->slots[b[i].slot].req->class->tenant->least = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t *least = &e->slots[b[i].slot].req->class->tenant->least;
        *least = b[i].key[1] < *least ? b[i].key[1] : *least;
    }
    for (int i = 0; i < n; i++)
        b[i].key[1] = e->slots[b[i].slot].req->class->tenant->least;
}

static int compare_bids(const void *x, const void *y)
{
    const struct bidder *a = x, *b = y;
    for (int i = 0; i < 3; i++)
        if (a->key[i] != b->key[i])
            return a->key[i] < b->key[i] ? -1 : 1;
    return a->slot - b->slot;
}

/* Rows of the step: all that decode, and prompts while the budget lasts, in an order that is decided anew in every step. In order of
 * arrival the next step goes on behind the prompt that took the last of the budget, so that a long prompt and a stream of short ones take
 * turns. */
static void build_step(struct di_core *e, struct di_launch *l)
{
    int budget = e->config.prefill_chunk, n = 0;
    uint64_t before = e->stats.prompt_rows + e->stats.decode_rows;
    for (int i = 0; i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        int64_t rows = s->state == SLOT_RUNNING ? rows_to_launch(e, s) : 0;
        if (rows > 0 && s->n_rows < s->req->n_resume)
            make_bid(e, &e->bidders[n++], i);
        else if (rows > 0)
            add_rows(e, l, i, (int)rows);
    }
    if (n > 1) {
        level_tenants(e, e->bidders, n);
        qsort(e->bidders, (size_t)n, sizeof *e->bidders, compare_bids);
    }
    for (int i = 0; i < n && budget > 0; i++) {
        int64_t rows = rows_to_launch(e, &e->slots[e->bidders[i].slot]);
        rows = rows < budget ? rows : budget;
        add_rows(e, l, e->bidders[i].slot, (int)rows);
        if ((budget -= (int)rows) == 0)
            e->first_prompt = (e->bidders[i].slot + 1) % e->config.max_batch;
    }
    if (l->n_chunks)
        di_metrics_add(&e->metrics, DI_HISTOGRAM_STEP_ROWS, (int64_t)(e->stats.prompt_rows + e->stats.decode_rows - before));
}

static bool is_end(const struct di_request *r, int32_t id)
{
    for (size_t i = 0; i < r->sampling.n_end_ids && !r->ignore_end; i++)
        if (r->sampling.end_ids[i] == id)
            return true;
    return false;
}

static void record_token(struct di_core *e, struct request *q)
{
    e->stats.generated_tokens++;
    if (q->facts.first_token_ns >= 0) {
        di_metrics_add(&e->metrics, DI_HISTOGRAM_INTER_TOKEN_TIME, e->now_ns - q->last_token_ns);
    } else {
        q->facts.first_token_ns = e->now_ns - q->r.arrived_ns;
        di_metrics_add(&e->metrics, DI_HISTOGRAM_FIRST_TOKEN_TIME, q->facts.first_token_ns);
        e->stats.prompt_tokens += (uint64_t)q->r.n_prompt;
    }
    q->last_token_ns = e->now_ns;
}

/* The rows of a slot up to `now` are computed and stay. The state is kept at the end of the prompt, where it was asked for, and at the end
 * (leave). */
static void advance_slot(struct di_core *e, struct slot *s, int64_t now)
{
    struct request *q = s->req;
    int slot = (int)(s - e->slots);
    int64_t before = s->n_computed;
    DI_ASSERT(now > before && now <= s->n_rows && s->n_rows <= s->n_written);
    s->n_computed = now;
    if (!e->reuse)
        return;
    q->n_reached = q->n_reached > now ? q->n_reached : now;
    di_core_reached(e, q);
    if (now / DI_BLOCK_TOKENS > before / DI_BLOCK_TOKENS) {
        di_reuse_computed(e->reuse, slot, q->tokens, now);
        s->page_version = ++e->page_versions;
    }
    if (now == s->save_at || now == q->r.n_prompt) {
        di_core_save(e, slot, now);
        s->save_at = di_core_next_save(e, s);
    }
}

/* One token of a request; false: it was the last. */
static bool take_token(struct di_core *e, struct slot *s, const struct di_sample_result *result)
{
    struct request *q = s->req;
    if (result->status != DI_OK) {
        end_slot(e, s, DI_REASON_ERROR, &result->err);
        return false;
    }
    DI_ASSERT(q->n_done < q->r.n_prompt + q->r.max_tokens);
    q->n_done++;
    record_token(e, q);
    bool go_on = !q->r.on_token || q->r.on_token(q->r.ctx, &result->sample);
    if (!go_on || is_end(&q->r, result->sample.id))
        end_slot(e, s, DI_REASON_STOP, NULL);
    else if (q->n_done == q->r.n_prompt + q->r.max_tokens)
        end_slot(e, s, DI_REASON_LENGTH, NULL);
    else
        return true;
    return false;
}

/* What a chunk decided. Behind the first token each came from a row of its own, which stays if the request goes on. */
static void take_tokens(struct di_core *e, const struct di_launch_chunk *c)
{
    struct slot *s = &e->slots[c->slot];
    if (c->kind == DI_ROWS_OF_PROMPT)
        return;
    if (s->state == SLOT_FREE || s->generation != c->generation || (s->state == SLOT_LEAVING && s->over) || c->n_computed == 0) {
        e->stats.wasted_rows++;
        return;
    }
    bool cursor = c->kind == DI_ROWS_OF_CURSOR;
    struct di_draft_counts *counts[] = {&e->stats.drafts, &s->req->facts.drafts};
    for (int k = 0; cursor && k < 2; k++)
        di_draft_counts_step(counts[k], c->n_computed - 1);
    for (int i = 0; i < c->n_tokens; i++) {
        if (i > 0) {
            for (int k = 0; k < 2; k++)
                di_draft_counts_accept(counts[k], i - 1);
            s->n_rows++;
            advance_slot(e, s, s->n_computed + 1);
        }
        if (!take_token(e, s, &c->tokens[i]))
            return;
    }
}

static void end_all(struct di_core *e, const di_error *err)
{
    for (int i = 0; i < e->config.max_batch; i++)
        if (e->slots[i].state == SLOT_RUNNING || (e->slots[i].state == SLOT_LEAVING && !e->slots[i].over))
            end_slot(e, &e->slots[i], DI_REASON_ERROR, err);
    end_waiting(e, DI_REASON_ERROR, err);
}

/* Rows from the cursor: the first stays. What is written behind it is what this launch wrote, or the one that is under way may write. Of a
 * request that ended at one of several tokens, the rows behind that one count for nothing. */
static void enter_cursor_rows(struct di_core *e, struct slot *s, const struct di_launch_chunk *c)
{
    e->stats.decode_rows += (uint64_t)(c->n_computed - 1);
    s->n_touched = c->pos0 + c->n_computed > s->n_touched ? c->pos0 + c->n_computed : s->n_touched;
    if (c->pos0 > s->n_computed && s->state == SLOT_LEAVING && s->over)
        return;
    int64_t under_way = s->n_rows - (c->pos0 + 1);
    s->n_written = under_way ? c->pos0 + c->n_tokens + under_way * cursor_rows(&e->config) : c->pos0 + c->n_computed;
    advance_slot(e, s, c->pos0 + 1);
}

/* Nothing was written. */
static void take_back(struct di_core *e, struct slot *s, const struct di_launch_chunk *c)
{
    bool cursor = c->kind == DI_ROWS_OF_CURSOR;
    s->n_rows -= cursor ? 1 : c->n;
    s->n_written = s->n_written - c->n > s->n_touched ? s->n_written - c->n : s->n_touched;
    if (!cursor)
        e->stats.prompt_rows -= (uint64_t)c->n;
}

/* The rows of a launch that is done can be reused, also those of a request that ended meanwhile. */
static void enter_computed(struct di_core *e, const struct di_launch *l)
{
    for (int k = 0; k < l->n_chunks; k++) {
        const struct di_launch_chunk *c = &l->chunks[k];
        struct slot *s = &e->slots[c->slot];
        if (s->state == SLOT_FREE)
            continue;
        if (c->n_computed == 0)
            take_back(e, s, c);
        else if (c->kind == DI_ROWS_OF_CURSOR)
            enter_cursor_rows(e, s, c);
        else
            advance_slot(e, s, c->pos0 + c->n);
    }
}

/* A launch behind a failed one finds all its requests ended: that is no success. */
static bool computed_any(const struct di_launch *l)
{
    for (int k = 0; k < l->n_chunks; k++)
        if (l->chunks[k].n_computed > 0)
            return true;
    return false;
}

/* Wait for a launch and hand its results out. */
static di_status handle_launch(struct di_core *e, struct di_launch *l, di_error *err)
{
    int64_t before = di_clock_ns();
    di_pipeline_wait(e->pipe, l);
    e->now_ns = di_clock_ns();
    e->stats.host_ns -= (uint64_t)(e->now_ns - before);
    e->stats.compute_ns += (uint64_t)(l->ended_ns - l->started_ns);
    di_metrics_add(&e->metrics, DI_HISTOGRAM_STEP_TIME, l->ended_ns - l->started_ns);
    if (l->follows) {
        e->stats.gap_ns += (uint64_t)(l->started_ns - e->last_ended_ns);
        di_metrics_add(&e->metrics, DI_HISTOGRAM_STEP_GAP_TIME, l->started_ns - e->last_ended_ns);
    }
    e->last_ended_ns = l->ended_ns;
    if (l->status != DI_OK || computed_any(l))
        e->stats.failing = l->status != DI_OK;
    if (l->status != DI_OK) {
        if (err)
            *err = l->err;
        end_all(e, &l->err);
    } else {
        enter_computed(e, l);
        for (int i = 0; i < l->n_chunks; i++)
            take_tokens(e, &l->chunks[i]);
    }
    free_left_slots(e, l->number);
    return l->status;
}

/* So many blocks and waiting requests are looked at in a step of a build with assertions, in all of them at once every so many steps. */
#define CHECKED_A_STEP 4

static bool accounts_are_due(const struct di_core *e)
{
    return e->stats.steps % (1 + (uint64_t)(e->store->n_blocks + e->stats.waiting) / CHECKED_A_STEP) == 0;
}

di_status di_core_step(struct di_core *e, bool *busy, di_error *err)
{
    int64_t before = e->now_ns = di_clock_ns();
    uint64_t host_ns = e->stats.host_ns;
    di_status status = DI_OK;
    struct di_launch *previous = e->under_way, *l = di_pipeline_next(e->pipe);
    end_late_requests(e);
    di_core_admit(e, l);
    build_step(e, l);
    e->under_way = NULL;
    if (l->n_chunks > 0 || l->n_copies > 0) {
        l->follows = previous != NULL;
        di_pipeline_launch(e->pipe, l);
        e->under_way = l;
        e->stats.steps++;
        e->computable += e->config.prefill_chunk;
    }
    if (previous)
        status = handle_launch(e, previous, err);
    if (!e->under_way)
        free_left_slots(e, UINT64_MAX);
    DI_ASSERT_SOUND(e->under_way && accounts_are_due(e) ? di_core_check_accounts(e) : NULL);
    *busy = e->stats.running > 0 || e->stats.waiting > 0 || e->under_way;
    e->stats.host_ns += (uint64_t)(di_clock_ns() - before);
    if (e->under_way)
        di_metrics_add(&e->metrics, DI_HISTOGRAM_STEP_HOST_TIME, (int64_t)(e->stats.host_ns - host_ns));
    return status;
}

di_status di_core_flush(struct di_core *e, di_error *err)
{
    struct di_launch *l = e->under_way;
    e->under_way = NULL;
    di_status status = l ? handle_launch(e, l, err) : DI_OK;
    free_left_slots(e, UINT64_MAX);
    return status;
}

struct di_core_stats di_core_stats(const struct di_core *e)
{
    struct di_core_stats s = e->stats;
    s.blocks = e->store->n_blocks;
    s.free_blocks = di_kv_available(e->store);
    s.held_slots = e->n_leaving;
    s.queue_visits = di_core_queue_visits(e);
    if (e->reuse) {
        struct di_prefix_stats p = di_reuse_stats(e->reuse);
        memcpy(s.miss, p.miss, sizeof s.miss);
        s.evicted = p.evicted;
        s.states_saved = p.states_saved;
        s.states_restored = p.states_restored;
        s.miss_other_tenant = p.other_tenant;
    }
    return s;
}

const struct di_metrics *di_core_metrics(const struct di_core *e)
{
    return &e->metrics;
}

static const char *check_slot(const struct di_core *e, int slot)
{
    const struct slot *s = &e->slots[slot];
    const struct di_lease *l = &e->store->lease[slot];
    if (s->state == SLOT_FREE)
        return s->req || l->n ? "a free slot has a request or blocks" : NULL;
    if (!s->req || s->req->slot != slot)
        return "a slot and its request disagree";
    if (s->n_started < 0 || s->n_computed < s->n_started || s->n_rows < s->n_computed || s->n_rows > (int64_t)l->n * DI_BLOCK_TOKENS)
        return "a slot's rows contradict each other or its blocks";
    return l->n_chain > l->n ? "a lease's chain is longer than its pages" : NULL;
}

const char *di_core_check_accounts(const struct di_core *e)
{
    struct di_block_counts counts;
    int64_t held = 0;
    int running = 0, leaving = 0;
    if (!di_block_pool_count(&e->store->pool, &counts))
        return "the block pool contradicts itself";
    for (int i = 0; i < e->config.max_batch; i++) {
        const char *wrong = check_slot(e, i);
        if (wrong)
            return wrong;
        held += e->store->lease[i].n + (e->store->lease[i].source >= 0);
        running += e->slots[i].state != SLOT_FREE;
        leaving += e->slots[i].state == SLOT_LEAVING;
    }
    if (held != counts.refs)
        return "the holders of blocks are not the pages of the leases";
    if (running != e->stats.running || leaving != e->n_leaving)
        return "the counts of slots are wrong";
    const char *wrong = di_core_check_queue(e);
    return wrong || !e->reuse ? wrong : di_reuse_check(e->reuse);
}
