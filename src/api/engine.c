/* Public API: opening, closing, what is known about a model, text and ids. Requests: submit.c. Driving: drive.c. */
#include "api/engine.h"

#include "base/threads.h"

#include <math.h>

/* ---------------------------------------------------------------- structs with a size */

di_status di_take_struct(void *to, size_t bytes, const void *from, const char *name, di_error *err)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < bytes || size > bytes + 4096) /* all fields of the first version are required; a size in the thousands is no size */
        return di_fail(err, DI_ERR_INVALID, name, "its size is %zu where %zu is expected: call %s_init first", size, bytes, name);
    for (size_t i = bytes; i < size; i++)
        if (((const unsigned char *)from)[i])
            return di_fail(err, DI_ERR_UNSUPPORTED, name, "it sets a field that version %s of the library does not know",
                           DI_VERSION_STRING);
    memcpy(to, from, bytes);
    return DI_OK;
}

static void give_struct(void *to, size_t size, const void *from, size_t bytes)
{
    memset(to, 0, size);
    memcpy(to, from, size < bytes ? size : bytes);
}

void di_engine_config_init(di_engine_config *config, size_t size)
{
    di_engine_config c = {.size = size, .max_batch = 16, .prefill_chunk = 256};
    if (config)
        give_struct(config, size, &c, sizeof c);
}

void di_sampling_options_init(di_sampling_options *options, size_t size)
{
    di_sampling_options o = {.size = size, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (options)
        give_struct(options, size, &o, sizeof o);
}

void di_request_defaults_init(di_request_defaults *defaults, size_t size)
{
    di_request_defaults d = {.size = size, .temperature = NAN, .top_p = NAN, .thinking = 1};
    if (defaults)
        give_struct(defaults, size, &d, sizeof d);
}

void di_request_overrides_init(di_request_overrides *overrides, size_t size)
{
    di_request_overrides o = {.size = size};
    if (overrides)
        give_struct(overrides, size, &o, sizeof o);
}

void di_form_options_init(di_form_options *options, size_t size)
{
    di_form_options o = {.size = size, .bound_id = -1};
    if (options)
        give_struct(options, size, &o, sizeof o);
}

void di_submission_init(di_submission *submission, size_t size)
{
    di_submission s = {.size = size};
    if (submission)
        give_struct(submission, size, &s, sizeof s);
}

/* ---------------------------------------------------------------- opening */

static di_status check_range(const char *name, int64_t x, int64_t least, int64_t most, di_error *err)
{
    if (x < least || x > most)
        return di_fail(err, DI_ERR_INVALID, name, "%s is %lld; it must be %lld to %lld", name, (long long)x, (long long)least,
                       (long long)most);
    return DI_OK;
}

static di_status read_config(const di_engine_config *given, di_engine_config *out, struct di_model_params *params, di_error *err)
{
    di_status status = DI_OK;
    di_engine_config_init(out, sizeof *out);
    CHECK(given, err, DI_ERR_INVALID, "config", "no configuration was given");
    TRY(di_take_struct(out, sizeof *out, given, "di_engine_config", err));
    CHECK(out->model, err, DI_ERR_INVALID, "model", "no model directory was given");
    TRY(check_range("threads", out->threads, 0, DI_POOL_MAX_THREADS, err));
    TRY(check_range("max_batch", out->max_batch, 1, 1024, err));
    TRY(check_range("prefill_chunk", out->prefill_chunk, 1, 65536, err));
    TRY(check_range("cache_blocks", out->cache_blocks, 0, INT32_MAX, err));
    TRY(check_range("state_slots", out->state_slots, 0, DI_MAX_STATES, err));
    TRY(check_range("context", out->context, 0, 1 << 30, err));
    TRY(check_range("seed", out->seed, 0, INT64_MAX, err));
    TRY(check_range("turn_memory", out->turn_memory, 0, INT32_MAX, err));
    TRY(check_range("turn_memory_bytes", out->turn_memory_bytes, 0, INT64_MAX, err));
    TRY(check_range("draft_tokens", out->draft_tokens, 0, DI_MAX_DRAFTS, err));
    TRY(check_range("max_unread", out->max_unread, 0, INT32_MAX, err));
    *params = (struct di_model_params){
        .threads = out->threads, .isa = out->isa, .progress = out->progress, .progress_ctx = out->progress_context};
    CHECK(di_numerics_by_name(out->numerics ? out->numerics : "bf16", &params->numerics), err, DI_ERR_INVALID, "numerics",
          "the mode \"%s\" does not exist; there are bf16, bf16-woa8, f32r, f32 and f32-noquant", out->numerics);
out:
    return status;
}

/* Drafts that a step verifies of an answer. */
static di_status fit_drafts(const di_engine_config *c, const struct di_config *model, int *drafts, di_error *err)
{
    *drafts = 0;
    if (!c->draft || strcmp(c->draft, "off") == 0)
        return DI_OK;
    if (strcmp(c->draft, "static") != 0)
        return di_fail(err, DI_ERR_INVALID, "draft", "\"%s\" is neither off nor static", c->draft);
    if (model->num_nextn_predict_layers == 0 || model->dspark_block_size > DI_MAX_DRAFTS)
        return di_fail(err, DI_ERR_UNSUPPORTED, "draft", "the model has no draft of 1 to %d tokens", DI_MAX_DRAFTS);
    if (c->draft_tokens > model->dspark_block_size)
        return di_fail(err, DI_ERR_INVALID, "draft_tokens", "the model drafts %d tokens, draft_tokens asks for %d",
                       model->dspark_block_size, c->draft_tokens);
    *drafts = c->draft_tokens ? c->draft_tokens : model->dspark_block_size;
    return DI_OK;
}

/* The sizes that follow from the model's config. */
static di_status fit(const di_engine_config *c, const struct di_config *model, struct di_core_config *core, struct di_model_params *params,
                     di_error *err)
{
    if (c->context > model->max_position_embeddings)
        return di_fail(err, DI_ERR_INVALID, "context", "the model's limit is %lld tokens, context asks for %lld",
                       (long long)model->max_position_embeddings, (long long)c->context);
    *core = (struct di_core_config){.max_batch = c->max_batch,
                                    .prefill_chunk = c->prefill_chunk,
                                    .context = c->context,
                                    .cache_blocks = c->cache_blocks,
                                    .no_reuse = c->no_reuse != 0,
                                    .replay_rows = c->replay_rows};
    di_status status = fit_drafts(c, model, &core->drafts, err);
    if (status != DI_OK)
        return status;
    params->drafts = core->drafts > 0;
    if (!c->no_reuse)
        core->states = c->state_slots ? c->state_slots : di_core_default_states(model, params->numerics, core);
    if (c->replay && !di_replay_by_name(c->replay, &core->replay))
        return di_fail(err, DI_ERR_INVALID, "replay", "\"%s\" is neither exact nor bounded", c->replay);
    if (c->prefill_order && !di_prefill_order_by_name(c->prefill_order, &core->prefill_order))
        return di_fail(err, DI_ERR_INVALID, "prefill_order", "\"%s\" is neither shortest nor arrival", c->prefill_order);
    struct di_replay_rules rules;
    status = di_replay_rules_init(&rules, model, core->replay, core->replay_rows, err);
    if (status != DI_OK)
        return status;
    params->max_rows = di_core_max_rows(core);
    params->max_context = di_core_context(model, core);
    return DI_OK;
}

di_status di_engine_plan(const di_engine_config *config, di_memory_plan *out, size_t size, di_error *err)
{
    di_status status = DI_OK;
    di_engine_config c;
    struct di_config model;
    struct di_model_params params;
    struct di_core_config core;
    di_memory_plan plan = {0};
    CHECK(out, err, DI_ERR_INVALID, "out", "no place for the plan was given");
    TRY(read_config(config, &c, &params, err));
    TRY(di_config_load(c.model, &model, err));
    TRY(fit(&c, &model, &core, &params, err));
    TRY(di_model_plan(&model, &params, &plan, err));
    di_core_plan(&model, params.numerics, &core, &plan);
    TRY(di_plan_check(&plan, err));
    give_struct(out, size, &plan, sizeof plan);
out:
    return status;
}

/* The last component of a path, without slashes behind it. */
static char *last_component(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    char *name = di_malloc(end - begin + 1);
    if (name) {
        memcpy(name, path + begin, end - begin);
        name[end - begin] = 0;
    }
    return name;
}

static void init_lock(di_engine *e)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->output, &monotonic);
    pthread_condattr_destroy(&monotonic);
    e->has_lock = true;
}

di_status di_engine_open(const di_engine_config *config, di_engine **out, di_error *err)
{
    di_status status = DI_OK;
    di_engine *e = NULL;
    di_engine_config c;
    struct di_model_params params;
    CHECK(out, err, DI_ERR_INVALID, "out", "no place for the engine was given");
    *out = NULL;
    TRY(read_config(config, &c, &params, err));
    e = di_calloc(1, sizeof *e);
    CHECK(e, err, DI_ERR_MEMORY, "", "out of memory for an engine");
    e->inbox_end = &e->inbox;
    e->outbox_end = &e->outbox;
    e->fresh_end = &e->fresh;
    e->seed = c.seed;
    e->max_unread = c.max_unread ? c.max_unread : 65536;
    init_lock(e);
    e->name = last_component(c.model);
    e->n_buckets = 1024;
    e->table = di_calloc((size_t)e->n_buckets, sizeof *e->table);
    CHECK(e->name && e->table, err, DI_ERR_MEMORY, "", "out of memory for an engine");
    TRY(di_config_load(c.model, &e->config, err));
    TRY(fit(&c, &e->config, &e->core_config, &params, err));
    e->context = params.max_context;
    TRY(di_text_model_load(c.model, &e->config, &e->text, err));
    e->core_config.banned = e->text.banned;
    params.token_map = e->text.token_map;
    TRY(di_model_open(c.model, &params, &e->model, err));
    di_digest_hex(e->model->digest, e->digest);
    TRY(di_core_create(e->model, &e->core_config, &e->core, err));
    if (c.turn_memory)
        TRY(di_turn_memory_create((size_t)c.turn_memory, c.turn_memory_bytes ? (size_t)c.turn_memory_bytes : (size_t)256 << 20, &e->memory,
                                  err));
    TRY(di_forms_create(&e->text, e->config.vocab_size, &e->forms, err));
    TRY(di_follower_crew_create(&e->crew, err));
    e->n_blocks = di_core_stats(e->core).blocks;
    if (e->context > (int64_t)e->n_blocks * DI_BLOCK_TOKENS) /* a request reserves pages for all of its life */
        e->context = (int64_t)e->n_blocks * DI_BLOCK_TOKENS;
    e->stats.blocks = e->stats.free_blocks = e->n_blocks;
    *out = e;
    e = NULL;
out:
    di_engine_close(e);
    return status;
}

static void free_records(struct di_record *r)
{
    for (struct di_record *next; r; r = next) {
        next = r->next;
        di_record_destroy(r);
    }
}

void di_engine_close(di_engine *e)
{
    if (!e)
        return;
    if (e->core)
        di_engine_wind_up(e);
    free_records(e->outbox);
    free_records(e->spare);
    free_records(e->fresh);
    free_records(e->own_spare);
    di_buf_fini(&e->scratch.text);
    di_model_close(e->model);
    di_turn_memory_destroy(e->memory);
    di_follower_crew_destroy(e->crew);
    di_forms_destroy(e->forms);
    di_text_model_fini(&e->text);
    di_free(e->name);
    di_free(e->table);
    if (e->has_lock) {
        pthread_mutex_destroy(&e->lock);
        pthread_cond_destroy(&e->work);
        pthread_cond_destroy(&e->output);
    }
    di_free(e);
}

di_status di_engine_info(const di_engine *e, di_model_info *out, size_t size, di_error *err)
{
    if (!e || !out)
        return di_fail(err, DI_ERR_INVALID, e ? "out" : "engine", "is NULL");
    di_model_info i = {.name = e->name,
                       .context = e->context,
                       .vocab_size = e->config.vocab_size,
                       .bos_id = e->config.bos_token_id,
                       .eos_id = e->config.eos_token_id,
                       .pad_id = e->config.pad_token_id,
                       .max_batch = e->core_config.max_batch,
                       .cache_blocks = e->n_blocks,
                       .digest = e->digest};
    give_struct(out, size, &i, sizeof i);
    return DI_OK;
}

/* ---------------------------------------------------------------- text and ids */

/* NOLINTNEXTLINE(readability-function-size): a text and a list of ids, each with its size */
di_status di_engine_encode(const di_engine *e, const char *text, size_t bytes, int control, int32_t *ids, size_t capacity, size_t *n,
                           di_error *err)
{
    di_status status = DI_OK;
    struct di_ids list = {0};
    CHECK(e && n, err, DI_ERR_INVALID, e ? "n" : "engine", "is NULL");
    CHECK((text || bytes == 0) && (ids || capacity == 0), err, DI_ERR_INVALID, text ? "ids" : "text", "is NULL, but its length is not 0");
    TRY(di_tokenizer_encode(e->text.tokenizer, (struct di_str){text, bytes}, control ? DI_TOKENIZER_ADDED : DI_TOKENIZER_PLAIN, &list,
                            err));
    *n = list.n;
    size_t most = list.n < capacity ? list.n : capacity;
    if (most)
        memcpy(ids, list.v, most * sizeof *ids);
out:
    di_ids_fini(&list);
    return status;
}

di_status di_engine_token_bytes(const di_engine *e, int32_t id, char *bytes, size_t capacity, size_t *n, di_error *err)
{
    if (!e || !n || (!bytes && capacity))
        return di_fail(err, DI_ERR_INVALID, !e ? "engine" : !n ? "n" : "bytes", "is NULL");
    if (id < 0 || id >= di_tokenizer_size(e->text.tokenizer))
        return di_fail(err, DI_ERR_INVALID, "id", "token id %d does not exist", (int)id);
    struct di_str s = di_tokenizer_token_bytes(e->text.tokenizer, id);
    *n = s.n;
    size_t most = s.n < capacity ? s.n : capacity;
    if (most)
        memcpy(bytes, s.p, most);
    return DI_OK;
}

di_status di_engine_decode(const di_engine *e, const int32_t *ids, size_t n_ids, char *text, size_t capacity, size_t *n, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf b = {0};
    CHECK(e && n, err, DI_ERR_INVALID, e ? "n" : "engine", "is NULL");
    CHECK((ids || n_ids == 0) && (text || capacity == 0), err, DI_ERR_INVALID, ids ? "text" : "ids", "is NULL, but its length is not 0");
    TRY(di_tokenizer_decode(e->text.tokenizer, ids, n_ids, &b, err));
    TRY(di_buf_ok(&b, err));
    *n = b.n;
    size_t most = b.n < capacity ? b.n : capacity;
    if (most)
        memcpy(text, b.p, most);
out:
    di_buf_fini(&b);
    return status;
}
