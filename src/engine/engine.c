#include "engine/engine.h"

/* A request from submit to its end. Waiting ones form a queue; running ones own a slot. */
struct request {
    struct request *next;
    int64_t id;
    struct di_request r; /* prompt and the sampler's lists point behind this struct */
    struct di_token_counts *counts; /* only for penalties */
    uint64_t key;
    bool cancelled;
};

struct slot {
    struct request *req; /* NULL = free */
    int32_t *tokens;     /* [context], by absolute position */
    int64_t n_tokens;    /* known: prompt and sampled */
    int64_t n_done;      /* of these, positions whose rows were computed */
};

struct di_engine {
    struct di_model *model;
    struct di_engine_config config;
    int64_t context, next_id;
    struct di_kv_store *store;
    struct slot *slots;
    struct request *queue, **queue_end;
    struct di_engine_stats stats;
    /* of the step being built */
    struct di_chunk *chunks;
    const int32_t **tokens;
    int32_t *logit_rows;
    int *logit_slot;
    float *logits;
    struct di_law *law;
};

int di_engine_max_rows(const struct di_engine_config *config)
{
    return config->prefill_chunk + config->max_batch;
}

int64_t di_engine_context(const struct di_config *c, const struct di_engine_config *config)
{
    if (config->context)
        return config->context;
    return c->max_position_embeddings < 65536 ? c->max_position_embeddings : 65536;
}

static int pool_blocks(const struct di_engine_config *config, int64_t context)
{
    return config->max_batch * di_kv_blocks_for(context);
}

static uint64_t own_bytes(const struct di_config *c, const struct di_engine_config *config, int64_t context)
{
    uint64_t per_slot = sizeof(struct slot) + (uint64_t)context * sizeof(int32_t) + (uint64_t)c->vocab_size * sizeof(float) +
                        sizeof(struct di_chunk) + sizeof(int32_t *) + sizeof(int32_t) + sizeof(int);
    return (uint64_t)config->max_batch * per_slot;
}

uint64_t di_engine_bytes(const struct di_config *c, struct di_numerics numerics, const struct di_engine_config *config)
{
    struct di_kv_layout layout;
    uint64_t g, s;
    int64_t context = di_engine_context(c, config);
    di_kv_layout_init(&layout, c, numerics);
    di_kv_store_bytes(&layout, config->max_batch, pool_blocks(config, context), context, &g, &s);
    return g + s + own_bytes(c, config, context);
}

static bool allocate(struct di_engine *e)
{
    size_t n = (size_t)e->config.max_batch;
    e->slots = di_calloc(n, sizeof *e->slots);
    e->chunks = di_calloc(n, sizeof *e->chunks);
    e->tokens = di_calloc(n, sizeof *e->tokens);
    e->logit_rows = di_calloc(n, sizeof *e->logit_rows);
    e->logit_slot = di_calloc(n, sizeof *e->logit_slot);
    e->logits = di_malloc_aligned(n * (size_t)e->model->c->vocab_size * sizeof *e->logits);
    bool ok = e->slots && e->chunks && e->tokens && e->logit_rows && e->logit_slot && e->logits;
    for (size_t i = 0; ok && i < n; i++)
        ok = (e->slots[i].tokens = di_malloc((size_t)e->context * sizeof(int32_t))) != NULL;
    return ok;
}

di_status di_engine_create(struct di_model *model, const struct di_engine_config *config, struct di_engine **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_engine *e = NULL;
    *out = NULL;
    int64_t context = di_engine_context(model->c, config);
    CHECK(config->max_batch >= 1 && config->max_batch <= 1024 && config->prefill_chunk >= 1, err, DI_ERR_INVALID, "engine",
          "max-batch must be 1 to 1024 and prefill-chunk at least 1");
    CHECK(model->params.max_rows >= di_engine_max_rows(config) && model->params.max_context >= context, err, DI_ERR_INTERNAL, "engine",
          "the model was opened for %d rows and %lld tokens, fewer than the engine uses", model->params.max_rows,
          (long long)model->params.max_context);
    e = di_calloc(1, sizeof *e);
    CHECK(e, err, DI_ERR_MEMORY, "", "out of memory for the engine");
    e->model = model;
    e->config = *config;
    e->context = context;
    e->queue_end = &e->queue;
    TRY(di_kv_store_create(&model->be->layout, config->max_batch, pool_blocks(config, context), context, &e->store, err));
    TRY(di_law_create((size_t)model->c->vocab_size, &e->law, err));
    CHECK(allocate(e), err, DI_ERR_MEMORY, "", "out of memory for %d slots of %lld tokens", config->max_batch, (long long)context);
    *out = e;
    e = NULL;
out:
    di_engine_destroy(e);
    return status;
}

static void end_request(struct di_engine *e, struct request *q, enum di_end end, const di_error *err)
{
    *(end == DI_END_ERROR ? &e->stats.failed : end == DI_END_CANCELLED ? &e->stats.cancelled : &e->stats.finished) += 1;
    void (*on_end)(void *, enum di_end, const di_error *) = q->r.on_end;
    void *ctx = q->r.ctx;
    di_token_counts_destroy(q->counts);
    di_free(q);
    if (on_end)
        on_end(ctx, end, err);
}

static void end_slot(struct di_engine *e, int slot, enum di_end end, const di_error *err)
{
    struct request *q = e->slots[slot].req;
    e->slots[slot].req = NULL;
    e->stats.running--;
    di_kv_release(e->store, slot);
    end_request(e, q, end, err);
}

/* Unlink the first waiting request. */
static struct request *queue_take(struct di_engine *e)
{
    struct request *q = e->queue;
    e->queue = q->next;
    if (!e->queue)
        e->queue_end = &e->queue;
    e->stats.waiting--;
    return q;
}

void di_engine_destroy(struct di_engine *e)
{
    if (!e)
        return;
    for (int i = 0; e->slots && i < e->config.max_batch; i++)
        if (e->slots[i].req)
            end_slot(e, i, DI_END_CANCELLED, NULL);
    while (e->queue)
        end_request(e, queue_take(e), DI_END_CANCELLED, NULL);
    for (int i = 0; e->slots && i < e->config.max_batch; i++)
        di_free(e->slots[i].tokens);
    di_kv_store_destroy(e->store);
    di_free(e->slots);
    di_free(e->chunks);
    di_free(e->tokens);
    di_free(e->logit_rows);
    di_free(e->logit_slot);
    di_free_aligned(e->logits);
    di_law_destroy(e->law);
    di_free(e);
}

static di_status check_request(const struct di_engine *e, const struct di_request *r, di_error *err)
{
    di_status status = DI_OK;
    CHECK(r->n_prompt > 0, err, DI_ERR_INVALID, "prompt", "the prompt is empty; at least one token is needed");
    CHECK(r->max_tokens > 0, err, DI_ERR_INVALID, "max_tokens", "max_tokens must be at least 1");
    CHECK(r->n_prompt <= e->context && r->max_tokens <= e->context - r->n_prompt, err, DI_ERR_LIMIT, "prompt",
          "this model's maximum context length is %lld tokens, but %lld were requested (%lld in the prompt, %lld for the answer)",
          (long long)e->context, (long long)(r->n_prompt + r->max_tokens), (long long)r->n_prompt, (long long)r->max_tokens);
    for (int64_t i = 0; i < r->n_prompt; i++)
        CHECK(r->prompt[i] >= 0 && r->prompt[i] < e->model->c->vocab_size, err, DI_ERR_INVALID, "prompt",
              "token id %d at position %lld is outside the vocabulary of %d", r->prompt[i], (long long)i, e->model->c->vocab_size);
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

static struct request *request_create(const struct di_request *r)
{
    size_t prompt = (size_t)r->n_prompt * sizeof(int32_t), ends = r->sampling.n_end_ids * sizeof(int32_t);
    size_t bias = r->sampling.n_bias * sizeof *r->sampling.bias;
    struct request *q = di_malloc(sizeof *q + prompt + ends + bias);
    if (!q)
        return NULL;
    char *at = (char *)(q + 1);
    *q = (struct request){.r = *r};
    q->r.prompt = copy_list(&at, r->prompt, prompt);
    q->r.sampling.end_ids = copy_list(&at, r->sampling.end_ids, ends);
    q->r.sampling.bias = copy_list(&at, r->sampling.bias, bias);
    q->key = di_sample_key((uint64_t)r->sampling.seed, r->sample);
    return q;
}

di_status di_engine_submit(struct di_engine *e, const struct di_request *r, int64_t *id, di_error *err)
{
    di_status status = DI_OK;
    struct request *q = NULL;
    size_t vocab = (size_t)e->model->c->vocab_size;
    TRY(check_request(e, r, err));
    TRY(di_sampling_params_check(&r->sampling, vocab, err));
    q = request_create(r);
    CHECK(q, err, DI_ERR_MEMORY, "", "out of memory for a prompt of %lld tokens", (long long)r->n_prompt);
    if (di_sampling_needs_counts(&r->sampling)) {
        TRY(di_token_counts_create(vocab, &q->counts, err));
        for (int64_t i = 0; i < r->n_prompt; i++)
            di_token_counts_add_prompt(q->counts, r->prompt[i]);
    }
    q->id = ++e->next_id;
    *e->queue_end = q;
    e->queue_end = &q->next;
    e->stats.waiting++;
    if (id)
        *id = q->id;
    q = NULL;
out:
    di_free(q);
    return status;
}

bool di_engine_cancel(struct di_engine *e, int64_t id)
{
    for (int i = 0; i < e->config.max_batch; i++)
        if (e->slots[i].req && e->slots[i].req->id == id)
            return e->slots[i].req->cancelled = true;
    for (struct request *q = e->queue; q; q = q->next)
        if (q->id == id)
            return q->cancelled = true;
    return false;
}

/* End what was cancelled; give free slots and pages for a whole life to those who wait, in order. */
static void admit(struct di_engine *e)
{
    for (int i = 0; i < e->config.max_batch; i++)
        if (e->slots[i].req && e->slots[i].req->cancelled)
            end_slot(e, i, DI_END_CANCELLED, NULL);
    for (struct request **link = &e->queue; *link;) {
        struct request *q = *link;
        if (!q->cancelled) {
            link = &q->next;
            continue;
        }
        *link = q->next;
        if (e->queue_end == &q->next)
            e->queue_end = link;
        e->stats.waiting--;
        end_request(e, q, DI_END_CANCELLED, NULL);
    }
    for (int i = 0; i < e->config.max_batch && e->queue; i++) {
        struct slot *s = &e->slots[i];
        if (s->req || !di_kv_reserve(e->store, i, e->queue->r.n_prompt + e->queue->r.max_tokens))
            continue;
        s->req = queue_take(e);
        s->n_tokens = s->req->r.n_prompt;
        s->n_done = 0;
        memcpy(s->tokens, s->req->r.prompt, (size_t)s->n_tokens * sizeof *s->tokens);
        e->stats.running++;
    }
}

/* Rows of the step: all that decode, then prompts in slot order while the budget lasts. A prompt's last row wants logits too. */
static int build(struct di_engine *e, int *n_logits)
{
    int n = 0, row = 0, budget = e->config.prefill_chunk;
    *n_logits = 0;
    for (int i = 0; i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        if (!s->req)
            continue;
        int64_t left = s->n_tokens - s->n_done;
        bool prompt = s->n_done < s->req->r.n_prompt;
        int rows = !prompt ? 1 : left < budget ? (int)left : budget;
        if (rows == 0)
            continue;
        if (prompt)
            budget -= rows;
        *(prompt ? &e->stats.prompt_rows : &e->stats.decode_rows) += (uint64_t)rows;
        e->chunks[n] = (struct di_chunk){i, row, rows, (int32_t)s->n_done};
        e->tokens[n++] = s->tokens;
        row += rows;
        s->n_done += rows;
        if (s->n_done == s->n_tokens) {
            e->logit_rows[*n_logits] = row - 1;
            e->logit_slot[(*n_logits)++] = i;
        }
    }
    return n;
}

static bool is_end(const struct di_request *r, int32_t id)
{
    for (size_t i = 0; i < r->sampling.n_end_ids && !r->ignore_end; i++)
        if (r->sampling.end_ids[i] == id)
            return true;
    return false;
}

static void sample(struct di_engine *e, int slot, const float *logits)
{
    struct slot *s = &e->slots[slot];
    struct request *q = s->req;
    struct di_request *r = &q->r;
    struct di_sample got;
    di_error err = {0};
    uint64_t n_generated = (uint64_t)(s->n_tokens - r->n_prompt);
    struct di_row row = {.logits = logits, .params = &r->sampling, .counts = q->counts, .banned = e->config.banned,
                         .n_generated = n_generated, .position = (uint64_t)s->n_tokens};
    if (di_sample_row(e->law, &row, q->key, &got, &err) != DI_OK) {
        end_slot(e, slot, DI_END_ERROR, &err);
        return;
    }
    s->tokens[s->n_tokens++] = got.id;
    if (q->counts)
        di_token_counts_add(q->counts, got.id);
    bool go_on = !r->on_token || r->on_token(r->ctx, &got);
    if (!go_on || is_end(r, got.id))
        end_slot(e, slot, DI_END_STOP, NULL);
    else if (s->n_tokens - r->n_prompt == r->max_tokens)
        end_slot(e, slot, DI_END_LENGTH, NULL);
}

static void end_all(struct di_engine *e, const di_error *err)
{
    for (int i = 0; i < e->config.max_batch; i++)
        if (e->slots[i].req)
            end_slot(e, i, DI_END_ERROR, err);
    while (e->queue)
        end_request(e, queue_take(e), DI_END_ERROR, err);
}

di_status di_engine_step(struct di_engine *e, bool *busy, di_error *err)
{
    int n_logits;
    di_error own = {0};
    admit(e);
    int n = build(e, &n_logits);
    if (n > 0) {
        struct di_step step = {.n_chunks = n, .chunks = e->chunks, .tokens = e->tokens, .kv = di_kv_view(e->store), .n_logits = n_logits,
                               .logit_rows = e->logit_rows, .logits = e->logits};
        di_status status = di_model_step(e->model, &step, err ? err : &own);
        if (status != DI_OK) {
            end_all(e, err ? err : &own);
            *busy = false;
            return status;
        }
        e->stats.steps++;
        for (int i = 0; i < n_logits; i++)
            sample(e, e->logit_slot[i], e->logits + (size_t)i * (size_t)e->model->c->vocab_size);
    }
    *busy = e->stats.running > 0 || e->stats.waiting > 0;
    return DI_OK;
}

struct di_engine_stats di_engine_stats(const struct di_engine *e)
{
    return e->stats;
}
