/* Public API: a submission becomes a completion, and waits for the driver. */
#include "api/engine.h"

#include "base/clock.h"

/* ---------------------------------------------------------------- what the caller's structs say */

/* The sampling in the present version's form; *out is what `room` then has, or NULL. */
static di_status take_sampling(const di_sampling_options *given, di_sampling_options *room, const di_sampling_options **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    if (!given)
        return DI_OK;
    TRY(di_take_struct(room, sizeof *room, given, "di_sampling_options", err));
    CHECK(room->stop || !room->n_stop, err, DI_ERR_INVALID, "stop", "is NULL, but n_stop is not 0");
    CHECK(room->stop_ids || !room->n_stop_ids, err, DI_ERR_INVALID, "stop_ids", "is NULL, but n_stop_ids is not 0");
    CHECK(room->bias || !room->n_bias, err, DI_ERR_INVALID, "bias", "is NULL, but n_bias is not 0");
    CHECK(room->n_stop <= DI_PARSE_MAX_STOP && room->n_bias <= DI_MAX_LOGIT_BIAS && room->n_stop_ids <= DI_MAX_LOGIT_BIAS, err,
          DI_ERR_INVALID, "stop", "at most %d stop strings, %d stop ids and %d biases are possible", DI_PARSE_MAX_STOP, DI_MAX_LOGIT_BIAS,
          DI_MAX_LOGIT_BIAS);
    *out = room;
out:
    return status;
}

/* What submissions and forks have in common. */
static di_status check_common(const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    CHECK(s->deadline_ms >= 0 && s->deadline_ms <= INT64_MAX / 2000000, err, DI_ERR_INVALID, "deadline_ms", "must be 0 or a time from now");
    CHECK(s->forced || !s->n_forced, err, DI_ERR_INVALID, "forced", "is NULL, but n_forced is not 0");
    CHECK(s->save_at || !s->n_save_at, err, DI_ERR_INVALID, "save_at", "is NULL, but n_save_at is not 0");
    CHECK(s->n_forced <= INT32_MAX && s->n_ids <= INT32_MAX && s->n_save_at <= INT32_MAX, err, DI_ERR_LIMIT,
          s->n_ids > INT32_MAX      ? "ids"
          : s->n_forced > INT32_MAX ? "forced"
                                    : "save_at",
          "is too long");
    CHECK(s->n_samples >= 0 && s->n_samples <= 128, err, DI_ERR_INVALID, "n_samples", "is %d; it must be 0 to 128", s->n_samples);
    CHECK(s->sample >= 0 && s->sample < (s->n_samples ? s->n_samples : 1), err, DI_ERR_INVALID, "sample", "is %d of %d samples", s->sample,
          s->n_samples ? s->n_samples : 1);
out:
    return status;
}

static di_status take_overrides(const di_submission *s, di_request_overrides *out, di_error *err)
{
    di_status status = DI_OK;
    di_request_overrides_init(out, sizeof *out);
    if (!s->overrides)
        return DI_OK;
    TRY(di_take_struct(out, sizeof *out, s->overrides, "di_request_overrides", err));
    CHECK(out->input || !out->input_bytes, err, DI_ERR_INVALID, "input", "is NULL, but input_bytes is not 0");
    CHECK((out->max_tokens >= 0 || out->prompts) && out->max_tokens <= INT32_MAX, err, DI_ERR_INVALID, "max_tokens",
          "is %lld; it must be 0 to %d", (long long)out->max_tokens, INT32_MAX);
out:
    return status;
}

static di_status read_protocol(const di_submission *s, const di_request_overrides *o, enum di_protocol *protocol, di_error *err)
{
    di_status status = DI_OK;
    *protocol = s->json ? DI_PROTOCOL_CHAT : DI_PROTOCOL_COMPLETION;
    if (s->json && s->protocol && strcmp(s->protocol, "completion") == 0)
        *protocol = DI_PROTOCOL_COMPLETION;
    else if (s->json && s->protocol)
        CHECK(di_protocol_from_name(di_str_c(s->protocol), protocol), err, DI_ERR_INVALID, "protocol",
              "\"%s\" is none of chat, completion, responses and messages", s->protocol);
    CHECK(*protocol == DI_PROTOCOL_COMPLETION || !(o->prompts || o->no_stop || o->max_tokens), err, DI_ERR_INVALID, "overrides",
          "prompts, no_stop and max_tokens are for the completion protocol");
    CHECK(*protocol == DI_PROTOCOL_CHAT || *protocol == DI_PROTOCOL_COMPLETION || !s->strict, err, DI_ERR_INVALID, "strict",
          "is for the chat and completion protocols");
    CHECK(*protocol == DI_PROTOCOL_RESPONSES || !o->input, err, DI_ERR_INVALID, "overrides", "input is for the responses protocol");
out:
    return status;
}

static di_status check_prepared(const di_engine *e, const di_submission *s, bool prompt, di_error *err)
{
    const di_prepared *p = s->prepared;
    di_status status = DI_OK;
    CHECK(p->text == &e->text, err, DI_ERR_INVALID, "prepared", "belongs to another engine");
    CHECK(!s->json && !s->protocol && !s->sampling && !s->form && !s->defaults && (!s->overrides || prompt), err, DI_ERR_INVALID,
          "prepared", "has been read: json, protocol, sampling, form, defaults and overrides must be absent");
    CHECK(p->tenant == s->tenant, err, DI_ERR_INVALID, "tenant", "is another one than the request was prepared for");
    CHECK(prompt || p->n_samples == s->n_samples, err, DI_ERR_INVALID, "n_samples", "is %d, but the request was prepared for %d",
          s->n_samples, p->n_samples);
    CHECK(prompt || !p->takes_prompts, err, DI_ERR_INVALID, "prepared", "has no prompt: give text or ids");
out:
    return status;
}

static di_status check_submission(const di_engine *e, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    bool prompt = s->text || s->ids;
    TRY(check_common(s, err));
    CHECK(!(s->text && s->ids) && (s->json || s->prepared || prompt) && !(s->json && prompt), err, DI_ERR_INVALID, "di_submission",
          "give one of text, ids and json");
    if (s->prepared)
        TRY(check_prepared(e, s, prompt, err));
    CHECK(s->json || !s->defaults, err, DI_ERR_INVALID, "defaults", "are for JSON requests");
    CHECK(s->json || s->prepared || !s->overrides, err, DI_ERR_INVALID, "overrides", "are for JSON requests");
    CHECK(s->fork_at == 0, err, DI_ERR_INVALID, "fork_at", "is for di_engine_fork");
out:
    return status;
}

static di_status take_defaults(const di_engine *e, const di_submission *s, di_request_defaults *out, di_error *err)
{
    di_status status = DI_OK;
    di_request_defaults_init(out, sizeof *out);
    out->seed = e->seed;
    if (s->defaults)
        TRY(di_take_struct(out, sizeof *out, s->defaults, "di_request_defaults", err));
    CHECK(out->max_tokens >= 0 && out->max_tokens <= INT32_MAX, err, DI_ERR_INVALID, "max_tokens",
          "the default is %lld; it must be 0 to %d", (long long)out->max_tokens, INT32_MAX);
out:
    return status;
}

/* ---------------------------------------------------------------- reading */

static di_status read_submission(const di_engine *e, const di_submission *s, const di_request_overrides *overrides, di_prepared **out,
                                 di_error *err)
{
    di_status status = DI_OK;
    enum di_protocol protocol;
    di_sampling_options room, usual;
    di_form_options form;
    struct di_prepare_setup setup = {.text = &e->text,
                                     .options = di_chat_options_default,
                                     .overrides = overrides,
                                     .prompt = {{s->text, s->text_bytes}, s->ids, s->n_ids},
                                     .strict = s->strict != 0,
                                     .n_samples = s->n_samples,
                                     .tenant = s->tenant,
                                     .memory = e->memory,
                                     .forms = e->forms,
                                     .crew = e->crew};
    TRY(read_protocol(s, overrides, &protocol, err));
    TRY(take_defaults(e, s, &setup.defaults, err));
    TRY(take_sampling(s->sampling, &room, &setup.options.sampling, err));
    if (s->form) {
        TRY(di_take_struct(&form, sizeof form, s->form, "di_form_options", err));
        setup.form = &form;
    }
    if (!s->json && !s->sampling) { /* not the seed of JSON requests */
        di_sampling_options_init(&usual, sizeof usual);
        setup.options.sampling = &usual;
    }
    setup.options.thinking = setup.defaults.thinking != 0;
    setup.options.result_media_as_text = true; /* a tool's picture must not end a session for ever */
    TRY(di_prepared_create(&setup, protocol, (struct di_str){s->json, s->json_bytes}, out, err));
out:
    return status;
}

/* What a submission asks: read, or as it was prepared. *out has a holder more. */
static di_status prepare_submission(const di_engine *e, const di_submission *s, di_prepared **out, di_error *err)
{
    di_status status = DI_OK;
    di_request_overrides overrides;
    const struct di_given_prompt prompt = {{s->text, s->text_bytes}, s->ids, s->n_ids};
    *out = NULL;
    TRY(take_overrides(s, &overrides, err));
    TRY(check_submission(e, s, err));
    if (!s->prepared)
        TRY(read_submission(e, s, &overrides, out, err));
    else if (s->text || s->ids)
        TRY(di_prepared_with_prompt(s->prepared, &prompt, overrides.max_tokens, s->n_samples, out, err));
    else
        *out = di_prepared_hold(s->prepared);
out:
    return status;
}

static void count_refused(di_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stats.refused++;
    pthread_mutex_unlock(&e->lock);
}

di_status di_engine_prepare(di_engine *e, const di_submission *submission, di_prepared **out, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    if (!out)
        return di_fail(err, DI_ERR_INVALID, "out", "is NULL");
    *out = NULL;
    if (!e || !submission)
        return di_fail(err, DI_ERR_INVALID, e ? "submission" : "engine", "is NULL");
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(prepare_submission(e, &s, out, err));
out:
    if (status != DI_OK)
        count_refused(e);
    return status;
}

const int32_t *di_prepared_prompt(const di_prepared *p, size_t *n)
{
    if (n)
        *n = p ? p->prompt.n : 0;
    return p ? p->prompt.v : NULL;
}

size_t di_prepared_bytes(const di_prepared *p)
{
    return p ? di_prepared_held(p) : 0;
}

void di_prepared_free(di_prepared *p)
{
    di_prepared_put(p);
}

di_status di_engine_prompt(const di_engine *e, const di_submission *submission, int32_t *ids, size_t capacity, size_t *n, di_error *err)
{
    di_status status = DI_OK;
    di_prepared *p = NULL;
    di_submission s;
    CHECK(e && submission && n, err, DI_ERR_INVALID, !e ? "engine" : !submission ? "submission" : "n", "is NULL");
    CHECK(ids || capacity == 0, err, DI_ERR_INVALID, "ids", "is NULL, but its length is not 0");
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(prepare_submission(e, &s, &p, err));
    *n = p->prompt.n;
    size_t most = *n < capacity ? *n : capacity;
    if (most)
        memcpy(ids, p->prompt.v, most * sizeof *ids);
out:
    di_prepared_put(p);
    return status;
}

/* ---------------------------------------------------------------- requests */

static di_status request_create(di_engine *e, const di_submission *s, struct di_api_request **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_api_request *r = di_calloc(1, sizeof *r);
    *out = r;
    CHECK(r, err, DI_ERR_MEMORY, "", "out of memory for a request");
    r->engine = e;
    r->on_output = s->on_output;
    r->user = s->user;
    r->after = s->after;
    r->fork_at = s->fork_at;
    r->last = di_calloc(1, sizeof *r->last);
    CHECK(r->last, err, DI_ERR_MEMORY, "", "out of memory for a request");
    r->last->error = di_calloc(1, sizeof *r->last->error);
    CHECK(r->last->error, err, DI_ERR_MEMORY, "", "out of memory for a request");
out:
    return status;
}

static di_status copy_ids(const int32_t *ids, size_t n, int32_t **out, di_error *err)
{
    if (n == 0)
        return DI_OK;
    *out = di_malloc(n * sizeof **out);
    if (!*out)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a list of %zu numbers", n);
    memcpy(*out, ids, n * sizeof **out);
    return DI_OK;
}

/* How the answer is scheduled and told. */
static di_status schedule_request(struct di_api_request *r, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    struct di_completion *c = &r->answer;
    size_t longest = 0;
    TRY(copy_ids(s->forced, s->n_forced, &r->forced, err));
    TRY(copy_ids(s->save_at, s->n_save_at, &r->save_at, err));
    for (size_t i = 0; i < c->chat->sampling.n_stop; i++)
        longest = longest > c->chat->sampling.stop[i].n ? longest : c->chat->sampling.stop[i].n;
    CHECK(di_buf_reserve(&r->last->text, longest + 1), err, DI_ERR_MEMORY, "", "out of memory for a request");
    c->schedule = (struct di_request){.priority = s->priority,
                                      .tenant = s->tenant,
                                      .sample = (uint32_t)s->sample,
                                      .forced = r->forced,
                                      .n_forced = (int64_t)s->n_forced,
                                      .save_at = r->save_at,
                                      .n_save_at = s->n_save_at,
                                      .arrived_ns = di_clock_ns()};
    if (s->replay)
        CHECK(di_replay_by_name(s->replay, &c->schedule.replay), err, DI_ERR_INVALID, "replay", "\"%s\" is neither exact nor bounded",
              s->replay);
    c->schedule.deadline_ns = s->deadline_ms ? c->schedule.arrived_ns + s->deadline_ms * 1000000 : 0;
    di_api_request_listen(r, s->report_start != 0);
out:
    return status;
}

/* As many buckets as requests, in powers of two. Without memory for them the lists stay longer. Holds the lock. */
static void grow_table(di_engine *e)
{
    if (e->n_known < e->n_buckets)
        return;
    struct di_api_request **table = di_calloc(2 * (size_t)e->n_buckets, sizeof(struct di_api_request *));
    if (!table)
        return;
    for (int64_t i = 0; i < e->n_buckets; i++)
        for (struct di_api_request *r = e->table[i], *next; r; r = next) {
            struct di_api_request **bucket = &table[r->id % (2 * e->n_buckets)];
            next = r->next_bucket;
            r->next_bucket = *bucket;
            *bucket = r;
        }
    di_free(e->table);
    e->table = table;
    e->n_buckets *= 2;
}

static di_status put_in_inbox(di_engine *e, struct di_api_request *r, di_request_id *id, di_error *err)
{
    di_status status = DI_OK;
    pthread_mutex_lock(&e->lock);
    CHECK(!e->closing, err, DI_ERR_CANCELLED, "engine", "it is being closed"); /* a callback of the last ends asks */
    r->id = ++e->last_id;
    if (id)
        *id = r->id;
    grow_table(e);
    struct di_api_request **bucket = &e->table[r->id % e->n_buckets];
    r->next_bucket = *bucket;
    *bucket = r;
    e->n_known++;
    *e->inbox_end = r;
    e->inbox_end = &r->next;
    e->stats.submitted++;
    pthread_cond_signal(&e->work);
out:
    pthread_mutex_unlock(&e->lock);
    return status;
}

static di_status check_after(di_engine *e, di_request_id after, di_error *err)
{
    pthread_mutex_lock(&e->lock);
    di_request_id last = e->last_id;
    pthread_mutex_unlock(&e->lock);
    if (after >= 0 && after <= last)
        return DI_OK;
    return di_fail(err, DI_ERR_INVALID, "after", "there was no request %lld so far", (long long)after);
}

di_status di_engine_submit(di_engine *e, const di_submission *submission, di_request_id *id, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    di_prepared *p = NULL;
    struct di_api_request *r = NULL;
    if (!e || !submission)
        return di_fail(err, DI_ERR_INVALID, e ? "submission" : "engine", "is NULL");
    if (id)
        *id = 0;
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(prepare_submission(e, &s, &p, err));
    TRY(request_create(e, &s, &r, err));
    TRY(di_completion_init(&r->answer, p, e->context, false, err));
    TRY(schedule_request(r, &s, err));
    TRY(di_completion_check(&r->answer, e->core, err));
    TRY(check_after(e, s.after, err));
    TRY(put_in_inbox(e, r, id, err));
    r = NULL;
out:
    di_prepared_put(p);
    di_api_request_destroy(r);
    if (status != DI_OK)
        count_refused(e);
    return status;
}

/* ---------------------------------------------------------------- branches */

/* What the parent was made of; *out has a holder more. */
static di_status find_parent(di_engine *e, di_request_id parent, di_prepared **out, di_error *err)
{
    pthread_mutex_lock(&e->lock);
    struct di_api_request *p = di_api_request_find(e, parent);
    *out = p ? di_prepared_hold(p->answer.prepared) : NULL;
    pthread_mutex_unlock(&e->lock);
    return p ? DI_OK : di_fail(err, DI_ERR_NOT_FOUND, "parent", "there is no request %lld, or it is over", (long long)parent);
}

di_status di_engine_fork(di_engine *e, di_request_id parent, const di_submission *submission, di_request_id *id, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    di_sampling_options room;
    const di_sampling_options *sampling;
    di_prepared *of = NULL, *p = NULL;
    struct di_api_request *r = NULL;
    if (!e || !submission)
        return di_fail(err, DI_ERR_INVALID, e ? "submission" : "engine", "is NULL");
    if (id)
        *id = 0;
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(check_common(&s, err));
    CHECK(!s.text && !s.ids && !s.json && !s.prepared && !s.protocol && !s.form && !s.defaults && !s.overrides && !s.after && !s.n_save_at,
          err, DI_ERR_INVALID, "di_submission",
          "a branch begins as its parent does: text, ids, json, prepared, protocol, form, defaults, overrides, after and save_at must be "
          "absent");
    CHECK(s.fork_at >= 0, err, DI_ERR_INVALID, "fork_at", "is %lld; it must be at least 0", (long long)s.fork_at);
    TRY(take_sampling(s.sampling, &room, &sampling, err));
    TRY(find_parent(e, parent, &of, err));
    if (sampling)
        TRY(di_prepared_branch(of, sampling, &p, err));
    TRY(request_create(e, &s, &r, err));
    r->branches = true;
    r->after = parent;
    r->as_parent = !sampling;
    TRY(di_completion_init(&r->answer, p ? p : of, e->context, true, err));
    TRY(schedule_request(r, &s, err));
    TRY(di_sampling_params_check(&r->answer.prepared->sampling, (size_t)e->config.vocab_size, err));
    TRY(put_in_inbox(e, r, id, err));
    r = NULL;
out:
    di_prepared_put(of);
    di_prepared_put(p);
    di_api_request_destroy(r);
    if (status != DI_OK)
        count_refused(e);
    return status;
}

di_status di_api_request_start(struct di_api_request *r, di_error *err)
{
    di_status status = DI_OK;
    di_engine *e = r->engine;
    struct di_completion *c = &r->answer;
    pthread_mutex_lock(&e->lock);
    const struct di_api_request *p = r->after ? di_api_request_find(e, r->after) : NULL; /* its end comes from this thread */
    pthread_mutex_unlock(&e->lock);
    if (p)
        c->schedule.after = p->id;
    if (r->branches) {
        CHECK(p, err, DI_ERR_NOT_FOUND, "parent", "request %lld was over before the branch could begin", (long long)r->after);
        c->schedule.tenant = p->answer.schedule.tenant;
        if (c->schedule.replay == DI_REPLAY_DEFAULT)
            c->schedule.replay = p->answer.schedule.replay;
        TRY(di_completion_branch(c, &p->answer, r->fork_at, r->as_parent, e->context, err));
    }
    c->schedule.id = r->id;
    TRY(di_completion_submit(c, e->core, err));
out:
    return status;
}

struct di_api_request *di_api_request_find(di_engine *e, di_request_id id)
{
    struct di_api_request *r = id > 0 ? e->table[id % e->n_buckets] : NULL;
    while (r && r->id != id)
        r = r->next_bucket;
    return r;
}

int di_engine_cancel(di_engine *e, di_request_id id)
{
    if (!e)
        return 0;
    pthread_mutex_lock(&e->lock);
    struct di_api_request *r = di_api_request_find(e, id);
    if (r && !r->cancel) {
        r->cancel = true;
        r->next_cancel = e->cancels;
        e->cancels = r;
        di_core_drop(e->core, id);
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    return r != NULL;
}
