/* Public API: a submission becomes a completion, and waits for the driver. */
#include "api/engine.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <math.h>

/* ---------------------------------------------------------------- submissions as JSON */

static void add_key(struct di_buf *b, const char *key)
{
    di_buf_addf(b, "%s\"%s\":", b->n > 1 ? "," : "", key);
}

static void add_bool(struct di_buf *b, const char *key, bool value)
{
    add_key(b, key);
    di_buf_adds(b, value ? "true" : "false");
}

static di_status add_doubles(struct di_buf *b, const di_sampling_options *s, di_error *err)
{
    const struct {
        const char *key;
        double value;
    } fields[] = {{"temperature", s->temperature},
                  {"top_p", s->top_p},
                  {"min_p", s->min_p},
                  {"repetition_penalty", s->repetition_penalty},
                  {"presence_penalty", s->presence_penalty},
                  {"frequency_penalty", s->frequency_penalty}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!isfinite(fields[i].value))
            return di_fail(err, DI_ERR_INVALID, fields[i].key, "must be a finite number");
        add_key(b, fields[i].key);
        di_json_write_double(b, fields[i].value);
    }
    return DI_OK;
}

static void add_integers(struct di_buf *b, const di_sampling_options *s, enum di_protocol protocol)
{
    const char *max_tokens = protocol == DI_PROTOCOL_RESPONSES ? "max_output_tokens" : "max_tokens";
    const struct {
        const char *key;
        int64_t value;
        bool said;
    } fields[] = {{"top_k", s->top_k, true},
                  {"seed", s->seed, true},
                  {"min_tokens", s->min_tokens, true},
                  {max_tokens, s->max_tokens, s->max_tokens != 0},
                  {"top_logprobs", s->top_logprobs, s->top_logprobs != 0}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        add_key(b, fields[i].key);
        if (fields[i].said)
            di_buf_addf(b, "%lld", (long long)fields[i].value);
        else
            di_buf_adds(b, "null");
    }
    add_bool(b, "logprobs", s->logprobs);
    add_bool(b, "ignore_eos", s->ignore_eos);
    add_bool(b, "include_stop_str_in_output", s->include_stop);
    add_bool(b, "skip_special_tokens", !s->show_control);
}

static di_status add_lists(struct di_buf *b, const di_sampling_options *s, enum di_protocol protocol, di_error *err)
{
    di_status status = DI_OK;
    CHECK(s->stop || !s->n_stop, err, DI_ERR_INVALID, "stop", "is NULL, but n_stop is not 0");
    CHECK(s->stop_ids || !s->n_stop_ids, err, DI_ERR_INVALID, "stop_ids", "is NULL, but n_stop_ids is not 0");
    CHECK(s->bias || !s->n_bias, err, DI_ERR_INVALID, "bias", "is NULL, but n_bias is not 0");
    CHECK(s->n_stop <= DI_PARSE_MAX_STOP && s->n_bias <= DI_MAX_LOGIT_BIAS && s->n_stop_ids <= DI_MAX_LOGIT_BIAS, err, DI_ERR_INVALID,
          "stop", "at most %d stop strings, %d stop ids and %d biases are possible", DI_PARSE_MAX_STOP, DI_MAX_LOGIT_BIAS,
          DI_MAX_LOGIT_BIAS);
    CHECK(!s->n_stop || protocol != DI_PROTOCOL_RESPONSES, err, DI_ERR_INVALID, "stop", "the responses protocol has no stop strings");
    add_key(b, protocol == DI_PROTOCOL_MESSAGES ? "stop_sequences" : "stop");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < s->n_stop; i++) {
        CHECK(s->stop[i] && di_utf8_valid(di_str_c(s->stop[i]), NULL), err, DI_ERR_INVALID, "stop", "string %zu is not valid UTF-8", i);
        di_buf_adds(b, i ? "," : "");
        di_json_write_string(b, di_str_c(s->stop[i]));
    }
    di_buf_addc(b, ']');
    add_key(b, "stop_token_ids");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < s->n_stop_ids; i++)
        di_buf_addf(b, "%s%d", i ? "," : "", s->stop_ids[i]);
    di_buf_addc(b, ']');
    add_key(b, "logit_bias");
    di_buf_addc(b, '{');
    for (size_t i = 0; i < s->n_bias; i++) {
        CHECK(isfinite(s->bias[i].value), err, DI_ERR_INVALID, "bias", "entry %zu must be a finite number", i);
        di_buf_addf(b, "%s\"%d\":", i ? "," : "", s->bias[i].id);
        di_json_write_double(b, (double)s->bias[i].value);
    }
    di_buf_addc(b, '}');
out:
    return status;
}

/* The fields of an object that has begun. */
static di_status add_sampling(struct di_buf *b, const di_sampling_options *given, enum di_protocol protocol, di_error *err)
{
    di_status status = DI_OK;
    di_sampling_options o;
    di_sampling_options_init(&o, sizeof o);
    if (given)
        TRY(di_take_struct(&o, sizeof o, given, "di_sampling_options", err));
    CHECK(o.logprobs || !o.top_logprobs, err, DI_ERR_INVALID, "top_logprobs", "needs logprobs");
    TRY(add_doubles(b, &o, err));
    add_integers(b, &o, protocol);
    TRY(add_lists(b, &o, protocol, err));
out:
    return status;
}

/* Text and ids take the way of a completion request, so that every field has one reader, one range and one sentence. */
static di_status write_request(struct di_buf *b, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    di_buf_addc(b, '{');
    if (s->text) {
        struct di_str text = {s->text, s->text_bytes};
        CHECK(di_utf8_valid(text, NULL), err, DI_ERR_INVALID, "prompt", "is not valid UTF-8");
        add_key(b, "prompt");
        di_json_write_string(b, text);
    }
    TRY(add_sampling(b, s->sampling, DI_PROTOCOL_COMPLETION, err));
    di_buf_addc(b, '}');
    TRY(di_buf_ok(b, err));
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

static di_status check_submission(const di_submission *s, enum di_protocol *protocol, di_error *err)
{
    di_status status = DI_OK;
    TRY(check_common(s, err));
    CHECK((s->text != NULL) + (s->ids != NULL) + (s->json != NULL) == 1, err, DI_ERR_INVALID, "di_submission",
          "give one of text, ids and json");
    CHECK(!s->json || !s->sampling, err, DI_ERR_INVALID, "sampling",
          "a JSON request has its sampling fields itself; sampling must be NULL");
    CHECK(s->json || !s->defaults, err, DI_ERR_INVALID, "defaults", "are for JSON requests");
    CHECK(s->fork_at == 0, err, DI_ERR_INVALID, "fork_at", "is for di_engine_fork");
    *protocol = s->json ? DI_PROTOCOL_CHAT : DI_PROTOCOL_COMPLETION;
    if (s->json && s->protocol && strcmp(s->protocol, "completion") == 0)
        *protocol = DI_PROTOCOL_COMPLETION;
    else if (s->json && s->protocol)
        CHECK(di_protocol_from_name(di_str_c(s->protocol), protocol), err, DI_ERR_INVALID, "protocol",
              "\"%s\" is none of chat, completion, responses and messages", s->protocol);
out:
    return status;
}

static di_status read_defaults(struct di_api_request *r, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    di_request_defaults d;
    di_request_defaults_init(&d, sizeof d);
    d.seed = r->engine->seed;
    if (s->defaults)
        TRY(di_take_struct(&d, sizeof d, s->defaults, "di_request_defaults", err));
    CHECK(d.max_tokens >= 0, err, DI_ERR_INVALID, "max_tokens", "the default is %lld; it must be at least 0", (long long)d.max_tokens);
    r->defaults = (struct di_completion_defaults){.temperature = d.temperature,
                                                  .top_p = d.top_p,
                                                  .min_p = d.min_p,
                                                  .top_k = d.top_k,
                                                  .seed = d.seed,
                                                  .max_tokens = d.max_tokens ? d.max_tokens : INT64_MIN};
    r->options = di_chat_options_default;
    r->options.thinking = d.thinking != 0;
    r->options.result_media_as_text = true; /* a tool's picture must not end a session for ever */
out:
    return status;
}

/* ---------------------------------------------------------------- requests */

void di_api_text_put(struct di_api_text *t)
{
    if (!t || atomic_fetch_sub(&t->holders, 1) > 1)
        return;
    di_buf_fini(&t->json);
    di_free(t);
}

static di_status text_create(struct di_api_request *r, di_error *err)
{
    r->text = di_calloc(1, sizeof *r->text);
    if (!r->text)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    atomic_init(&r->text->holders, 1);
    return DI_OK;
}

/* What r->text says. `s` gives ids and the number of samples. The tree is gone afterwards. */
static di_status read_request(struct di_api_request *r, enum di_protocol protocol, const di_submission *s, int64_t context, di_error *err)
{
    di_status status = DI_OK;
    struct di_json *request;
    struct di_arena arena;
    struct di_str text = di_buf_str(&r->text->json);
    struct di_json_limits limits = di_json_request_limits(text.n);
    struct di_completion_defaults defaults = r->defaults;
    di_arena_init(&arena);
    defaults.prompt_ids = s->ids;
    defaults.n_prompt_ids = s->n_ids;
    TRY(di_json_parse(text, &limits, &arena, &request, err));
    CHECK(di_json_is(request, DI_JSON_OBJECT), err, DI_ERR_INVALID, "", "a request must be an object, not %s", di_json_type_name(request));
    struct di_completion_setup setup = {.text = &r->engine->text,
                                        .options = &r->options,
                                        .defaults = defaults,
                                        .context = context,
                                        .n = s->n_samples,
                                        .branch = r->branches,
                                        .memory = r->engine->memory,
                                        .memory_tenant = s->tenant};
    TRY(di_completion_create(&setup, protocol, request, &r->answer, err));
out:
    di_arena_fini(&arena);
    return status;
}

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
    r->tenant = s->tenant;
    r->n_samples = s->n_samples;
    r->has_ids = s->ids != NULL;
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
static di_status prepare(struct di_api_request *r, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    struct di_completion *c = r->answer;
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

/* NAN is what was not given. */
static bool same_double(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static bool same_defaults(const struct di_api_request *a, const struct di_api_request *b)
{
    const struct di_completion_defaults *x = &a->defaults, *y = &b->defaults;
    return same_double(x->temperature, y->temperature) && same_double(x->top_p, y->top_p) && same_double(x->min_p, y->min_p) &&
           x->top_k == y->top_k && x->seed == y->seed && x->max_tokens == y->max_tokens && a->options.thinking == b->options.thinking;
}

/* Is p, which is alive, another answer to what `s` asks as `text`? */
static bool is_sibling(const struct di_api_request *r, const struct di_api_request *p, enum di_protocol protocol, const di_submission *s,
                       struct di_str text)
{
    const struct di_ids *prompt = &p->answer->prompt;
    return !p->branches && p->tenant == s->tenant && p->n_samples == s->n_samples && p->answer->chat->protocol == protocol &&
           p->has_ids == (s->ids != NULL) && same_defaults(r, p) && di_str_eq(di_buf_str(&p->text->json), text) &&
           (!s->ids || (prompt->n == s->n_ids && memcmp(prompt->v, s->ids, s->n_ids * sizeof *s->ids) == 0));
}

/* One of several answers to a request shares what was made for the one that it names, if that is alive. r->answer stays NULL otherwise. */
static di_status share(struct di_api_request *r, enum di_protocol protocol, const di_submission *s, struct di_str text, di_error *err)
{
    di_engine *e = r->engine;
    di_status status = DI_OK;
    if (!s->after || s->n_samples < 2)
        return DI_OK;
    pthread_mutex_lock(&e->lock);
    struct di_api_request *p = di_api_request_find(e, s->after);
    if (p && is_sibling(r, p, protocol, s, text)) {
        status = di_completion_sample(p->answer, &r->answer, err);
        if (status == DI_OK) {
            r->text = p->text;
            atomic_fetch_add(&r->text->holders, 1);
        }
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* From a submission to what can be queued; r->answer is complete but for how it is told. */
static di_status convert(struct di_api_request *r, const di_submission *s, int64_t context, di_error *err)
{
    di_status status = DI_OK;
    enum di_protocol protocol;
    struct di_buf written = {0};
    struct di_str json = {s->json, s->json_bytes};
    TRY(check_submission(s, &protocol, err));
    TRY(read_defaults(r, s, err));
    if (!s->json) {
        TRY(write_request(&written, s, err));
        json = di_buf_str(&written);
    }
    TRY(share(r, protocol, s, json, err));
    if (r->answer)
        goto out;
    TRY(text_create(r, err));
    di_buf_reserve(&r->text->json, json.n);
    di_buf_addv(&r->text->json, json);
    TRY(di_buf_ok(&r->text->json, err));
    TRY(read_request(r, protocol, s, context, err));
out:
    di_buf_fini(&written);
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

static void count_refused(di_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stats.refused++;
    pthread_mutex_unlock(&e->lock);
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
    struct di_api_request *r = NULL;
    if (!e || !submission)
        return di_fail(err, DI_ERR_INVALID, e ? "submission" : "engine", "is NULL");
    if (id)
        *id = 0;
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(request_create(e, &s, &r, err));
    TRY(convert(r, &s, e->context, err));
    TRY(prepare(r, &s, err));
    TRY(di_completion_check(r->answer, e->core, err));
    TRY(check_after(e, s.after, err));
    TRY(put_in_inbox(e, r, id, err));
    r = NULL;
out:
    di_api_request_destroy(r);
    if (status != DI_OK)
        count_refused(e);
    return status;
}

di_status di_engine_prompt(const di_engine *e, const di_submission *submission, int32_t *ids, size_t capacity, size_t *n, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    struct di_api_request *r = NULL;
    CHECK(e && submission && n, err, DI_ERR_INVALID, !e ? "engine" : !submission ? "submission" : "n", "is NULL");
    CHECK(ids || capacity == 0, err, DI_ERR_INVALID, "ids", "is NULL, but its length is not 0");
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(request_create((di_engine *)(uintptr_t)e, &s, &r, err)); /* it is only read */
    TRY(convert(r, &s, INT64_MAX / 2, err));
    *n = r->answer->prompt.n;
    size_t most = *n < capacity ? *n : capacity;
    if (most)
        memcpy(ids, r->answer->prompt.v, most * sizeof *ids);
out:
    di_api_request_destroy(r);
    return status;
}

/* ---------------------------------------------------------------- branches */

/* What the parent's request says, from the table. */
static di_status copy_parent(struct di_api_request *r, di_request_id parent, enum di_protocol *protocol, di_error *err)
{
    di_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    struct di_api_request *p = di_api_request_find(e, parent);
    if (p) {
        di_buf_addv(&r->text->json, di_buf_str(&p->text->json));
        r->defaults = p->defaults;
        r->options = p->options;
        *protocol = p->answer->chat->protocol;
    }
    pthread_mutex_unlock(&e->lock);
    if (!p)
        return di_fail(err, DI_ERR_NOT_FOUND, "parent", "there is no request %lld, or it is over", (long long)parent);
    return di_buf_ok(&r->text->json, err);
}

/* Fields behind those of an object's text: of a repeated key the last value counts. */
static di_status override_fields(struct di_buf *json, const di_submission *s, enum di_protocol protocol, di_error *err)
{
    di_status status = DI_OK;
    while (json->p[json->n - 1] != '}') /* only white space can follow */
        json->n--;
    json->n--;
    while (strchr(" \t\r\n", json->p[json->n - 1]))
        json->n--;
    if (s->sampling) {
        add_key(json, "max_completion_tokens"); /* it would win over max_tokens */
        di_buf_adds(json, "null");
        TRY(add_sampling(json, s->sampling, protocol, err));
    }
    add_key(json, "n");
    di_buf_addf(json, "%d}", s->n_samples ? s->n_samples : 1);
    TRY(di_buf_ok(json, err));
out:
    return status;
}

di_status di_engine_fork(di_engine *e, di_request_id parent, const di_submission *submission, di_request_id *id, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    enum di_protocol protocol = DI_PROTOCOL_COMPLETION;
    struct di_api_request *r = NULL;
    if (!e || !submission)
        return di_fail(err, DI_ERR_INVALID, e ? "submission" : "engine", "is NULL");
    if (id)
        *id = 0;
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(check_common(&s, err));
    CHECK(!s.text && !s.ids && !s.json && !s.protocol && !s.defaults && !s.after && !s.n_save_at, err, DI_ERR_INVALID, "di_submission",
          "a branch begins as its parent does: text, ids, json, protocol, defaults, after and save_at must be absent");
    CHECK(s.fork_at >= 0, err, DI_ERR_INVALID, "fork_at", "is %lld; it must be at least 0", (long long)s.fork_at);
    TRY(request_create(e, &s, &r, err));
    TRY(text_create(r, err));
    TRY(copy_parent(r, parent, &protocol, err));
    r->branches = true;
    r->after = parent;
    r->as_parent = !s.sampling;
    if (s.sampling)
        r->defaults = di_completion_defaults();
    TRY(override_fields(&r->text->json, &s, protocol, err));
    TRY(read_request(r, protocol, &s, e->context, err));
    TRY(prepare(r, &s, err));
    TRY(di_sampling_params_check(&r->answer->sampling, (size_t)e->config.vocab_size, err));
    TRY(put_in_inbox(e, r, id, err));
    r = NULL;
out:
    di_api_request_destroy(r);
    if (status != DI_OK)
        count_refused(e);
    return status;
}

di_status di_api_request_start(struct di_api_request *r, di_error *err)
{
    di_status status = DI_OK;
    di_engine *e = r->engine;
    struct di_completion *c = r->answer;
    pthread_mutex_lock(&e->lock);
    const struct di_api_request *p = r->after ? di_api_request_find(e, r->after) : NULL; /* its end comes from this thread */
    pthread_mutex_unlock(&e->lock);
    if (p)
        c->schedule.after = p->core_id;
    if (r->branches) {
        CHECK(p, err, DI_ERR_NOT_FOUND, "parent", "request %lld was over before the branch could begin", (long long)r->after);
        c->schedule.tenant = p->answer->schedule.tenant;
        if (c->schedule.replay == DI_REPLAY_DEFAULT)
            c->schedule.replay = p->answer->schedule.replay;
        TRY(di_completion_branch(c, p->answer, r->fork_at, r->as_parent, e->context, err));
    }
    c->schedule.name = (uint64_t)r->id;
    TRY(di_completion_submit(c, e->core, &r->core_id, err));
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
        di_core_drop(e->core, (uint64_t)id);
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    return r != NULL;
}
