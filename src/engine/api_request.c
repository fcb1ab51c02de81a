/* Public API: a submission becomes a completion, and what happens to it becomes records. */
#include "engine/api_impl.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <math.h>

/* ---------------------------------------------------------------- records */

#define SPARE_RECORDS 1024
#define SPARE_TEXT 4096

void di_record_destroy(struct di_record *r)
{
    if (!r)
        return;
    di_buf_fini(&r->text);
    di_free(r->error);
    di_free(r);
}

/* A record to fill: the scratch one of callbacks, or one for the outbox. NULL when memory ran out; the request then ends as an error. */
static struct di_record *record_begin(struct di_api_request *r)
{
    di_engine *e = r->engine;
    struct di_record *rec = &e->scratch;
    if (!r->on_output) {
        pthread_mutex_lock(&e->lock);
        rec = e->spare;
        if (rec) {
            e->spare = rec->next;
            e->n_spare--;
        }
        pthread_mutex_unlock(&e->lock);
        if (!rec)
            rec = di_calloc(1, sizeof *rec);
    }
    if (!rec) {
        r->lost = true;
        di_engine_cancel(e, r->id);
    }
    return rec;
}

static void record_prepare(struct di_record *rec, const struct di_api_request *r, di_output_kind kind)
{
    di_buf_clear(&rec->text);
    rec->next = NULL;
    rec->out = (di_output){.request = r->id, .user = r->user, .kind = kind, .token = -1, .logprob = NAN, .text = "", .stop_index = -1};
}

static void record_deliver(struct di_api_request *r, struct di_record *rec)
{
    di_engine *e = r->engine;
    if (rec->text.n) {
        rec->out.text = rec->text.p;
        rec->out.text_bytes = rec->text.n;
    }
    if (r->on_output) {
        bool last = rec->out.kind == DI_OUTPUT_FINISHED;
        if ((!r->muted || last) && !r->on_output(r->user, &rec->out) && !last) {
            r->muted = true;
            di_engine_cancel(e, r->id);
        }
        return;
    }
    pthread_mutex_lock(&e->lock);
    *e->outbox_end = rec;
    e->outbox_end = &rec->next;
    e->n_unread++;
    pthread_cond_signal(&e->output);
    pthread_mutex_unlock(&e->lock);
}

void di_output_free(di_engine *e, const di_output *output)
{
    if (!e || !output)
        return;
    struct di_record *rec = (struct di_record *)(void *)output; /* it is the first member */
    di_free(rec->error);
    rec->error = NULL;
    pthread_mutex_lock(&e->lock);
    bool keep = e->n_spare < SPARE_RECORDS && rec->text.cap <= SPARE_TEXT;
    if (keep) {
        rec->next = e->spare;
        e->spare = rec;
        e->n_spare++;
    }
    pthread_mutex_unlock(&e->lock);
    if (!keep)
        di_record_destroy(rec);
}

const char *di_end_reason_name(di_end_reason reason)
{
    static const char *const names[] = {"", "stop", "length", "tool_calls", "abort", "deadline", "error"};
    size_t i = (size_t)reason;
    return i < sizeof names / sizeof *names ? names[i] : "";
}

/* ---------------------------------------------------------------- what the completion says (driver) */

static void on_begin(void *arg)
{
    static const di_answer_start starts[] = {[DI_START_REASONING] = DI_STARTS_REASONING,
                                             [DI_START_CONTENT] = DI_STARTS_CONTENT,
                                             [DI_START_TOOL_BLOCK] = DI_STARTS_TOOL_CALLS,
                                             [DI_START_REASONING_CONTINUED] = DI_STARTS_REASONING_CONTINUED,
                                             [DI_START_CONTENT_CONTINUED] = DI_STARTS_CONTENT_CONTINUED};
    struct di_api_request *r = arg;
    struct di_record *rec = record_begin(r);
    if (!rec)
        return;
    record_prepare(rec, r, DI_OUTPUT_STARTED);
    rec->out.prompt_tokens = (int64_t)r->answer->prompt.n;
    rec->out.cached_tokens = r->answer->cached_tokens;
    rec->out.start = starts[r->answer->chat->start];
    rec->out.thinking = r->answer->chat->thinking;
    record_deliver(r, rec);
}

static void on_sample(void *arg, const struct di_sample *s)
{
    static const di_answer_phase phases[] = {[DI_PHASE_REASONING] = DI_PHASE_OF_REASONING,
                                             [DI_PHASE_CONTENT] = DI_PHASE_OF_CONTENT,
                                             [DI_PHASE_TOOLS] = DI_PHASE_OF_TOOL_CALLS,
                                             [DI_PHASE_DONE] = DI_PHASE_OF_CONTENT};
    struct di_api_request *r = arg;
    struct di_record *rec = record_begin(r);
    if (!rec)
        return;
    record_prepare(rec, r, DI_OUTPUT_TOKEN);
    rec->out.token = s->id;
    rec->out.index = (int64_t)r->answer->ids.n;
    rec->out.logprob = s->logprob;
    rec->out.phase = phases[di_parser_phase(r->answer->parser)];
    rec->out.n_alternatives = (uint32_t)s->n_top;
    rec->out.alternatives = rec->alternatives;
    for (size_t i = 0; i < s->n_top; i++)
        rec->alternatives[i] = (di_alternative){s->top[i].id, s->top[i].logprob};
    record_deliver(r, rec);
}

/* What only the request's list of tools knows; the strings are put behind the name in the record's memory. */
static void describe_call(const struct di_completion *c, struct di_str name, struct di_record *rec)
{
    const struct di_chat_tool *t = c->chat->tools;
    while (t && !di_str_eq(t->name, name))
        t = t->next;
    size_t n = rec->text.n, id = n + 1;
    di_buf_addc(&rec->text, 0);
    di_buf_adds(&rec->text, c->message.n_calls ? c->message.calls[c->message.n_calls - 1].id : "");
    di_buf_addc(&rec->text, 0);
    size_t space = rec->text.n;
    di_buf_addv(&rec->text, t ? t->space : (struct di_str){0});
    if (rec->text.failed)
        return;
    rec->out.call_id = rec->text.p + id;
    rec->out.call_space = rec->text.p + space;
    rec->out.call_custom = t && t->custom;
    rec->text.n = n;
}

static void on_event(void *arg, const struct di_parse_event *event)
{
    static const di_output_kind kinds[] = {[DI_EVENT_REASONING] = DI_OUTPUT_REASONING,
                                           [DI_EVENT_CONTENT] = DI_OUTPUT_TEXT,
                                           [DI_EVENT_CALL] = DI_OUTPUT_CALL,
                                           [DI_EVENT_ARGUMENTS] = DI_OUTPUT_ARGUMENTS,
                                           [DI_EVENT_RECOVER] = DI_OUTPUT_RECOVERED};
    struct di_api_request *r = arg;
    if (event->kind == DI_EVENT_DONE)
        return;
    struct di_record *rec = record_begin(r);
    if (!rec)
        return;
    record_prepare(rec, r, kinds[event->kind]);
    rec->out.index = event->kind == DI_EVENT_CALL || event->kind == DI_EVENT_ARGUMENTS ? (int64_t)event->index : 0;
    di_buf_addv(&rec->text, event->text);
    if (event->kind == DI_EVENT_CALL)
        describe_call(r->answer, event->text, rec);
    r->lost = r->lost || rec->text.failed;
    record_deliver(r, rec);
}

static di_end_reason reason_of(const struct di_completion *c, enum di_end end)
{
    static const di_end_reason reasons[] = {[DI_END_STOP] = DI_REASON_STOP,
                                            [DI_END_LENGTH] = DI_REASON_LENGTH,
                                            [DI_END_CANCELLED] = DI_REASON_CANCELLED,
                                            [DI_END_DEADLINE] = DI_REASON_DEADLINE,
                                            [DI_END_ERROR] = DI_REASON_ERROR};
    return end == DI_END_STOP && c->message.finish == DI_FINISH_TOOL_CALLS ? DI_REASON_TOOL_CALLS : reasons[end];
}

/* No cancel finds the request any more; it counts as ended. */
static void forget(struct di_api_request *r, di_end_reason reason)
{
    di_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    e->ended_by[reason]++;
    struct di_api_request **link = &e->table[r->id % DI_API_BUCKETS];
    while (*link != r)
        link = &(*link)->next_bucket;
    *link = r->next_bucket;
    if (r->cancel) {
        link = &e->cancels;
        while (*link && *link != r)
            link = &(*link)->next_cancel;
        if (*link)
            *link = r->next_cancel;
    }
    pthread_mutex_unlock(&e->lock);
}

static double ms_of(int64_t ns)
{
    return ns < 0 ? -1 : (double)ns / 1e6;
}

static void record_facts(di_output *out, const struct di_completion *c)
{
    const struct di_request_facts *f = &c->facts;
    out->queue_ms = ms_of(f->queue_ns);
    out->first_token_ms = ms_of(f->first_token_ns);
    out->total_ms = ms_of(f->total_ns >= 0 ? f->total_ns : di_clock_ns() - c->schedule.arrived_ns); /* the core did not know it */
    out->miss = (di_miss_reason)f->miss;
    out->miss_position = f->miss_at;
}

void di_api_request_end(struct di_api_request *r, enum di_end end, const di_error *err)
{
    static const di_error memory = {DI_ERR_MEMORY, "memory for the request's output ran out", ""};
    const struct di_completion *c = r->answer;
    struct di_record *rec = r->last;
    r->last = NULL;
    if (r->lost) {
        end = DI_END_ERROR;
        err = &memory;
    }
    record_prepare(rec, r, DI_OUTPUT_FINISHED);
    rec->out.reason = reason_of(c, end);
    if (end == DI_END_ERROR) {
        *rec->error = *err;
        rec->out.error = rec->error;
    }
    if (c->message.finish == DI_FINISH_STOP_STRING && c->message.stop_index != SIZE_MAX)
        rec->out.stop_index = (int32_t)c->message.stop_index; /* at most DI_PARSE_MAX_STOP */
    rec->out.token = c->ids.n ? c->ids.v[c->ids.n - 1] : -1;
    rec->out.prompt_tokens = (int64_t)c->prompt.n;
    rec->out.completion_tokens = (int64_t)c->ids.n;
    rec->out.reasoning_tokens = c->reasoning_tokens;
    rec->out.cached_tokens = c->cached_tokens;
    record_facts(&rec->out, c);
    forget(r, rec->out.reason);
    record_deliver(r, rec);
    if (r->on_output)
        di_record_destroy(rec);
    r->next = r->engine->ended;
    r->engine->ended = r;
}

static void on_done(void *arg)
{
    struct di_api_request *r = arg;
    di_api_request_end(r, r->answer->end, &r->answer->err);
}

/* ---------------------------------------------------------------- submission */

void di_api_request_destroy(struct di_api_request *r)
{
    if (!r)
        return;
    di_completion_destroy(r->answer);
    di_record_destroy(r->last);
    di_buf_fini(&r->json);
    di_arena_fini(&r->arena);
    di_free(r->forced);
    di_free(r);
}

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

static void add_integers(struct di_buf *b, const di_sampling_options *s)
{
    const struct {
        const char *key;
        int64_t value;
        bool said;
    } fields[] = {{"top_k", s->top_k, true},
                  {"seed", s->seed, true},
                  {"min_tokens", s->min_tokens, true},
                  {"max_tokens", s->max_tokens, s->max_tokens != 0},
                  {"top_logprobs", s->top_logprobs, s->top_logprobs != 0}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].said) {
            add_key(b, fields[i].key);
            di_buf_addf(b, "%lld", (long long)fields[i].value);
        }
    add_bool(b, "logprobs", s->logprobs);
    add_bool(b, "ignore_eos", s->ignore_eos);
    add_bool(b, "include_stop_str_in_output", s->include_stop);
    add_bool(b, "skip_special_tokens", !s->show_control);
}

static di_status add_lists(struct di_buf *b, const di_sampling_options *s, di_error *err)
{
    di_status status = DI_OK;
    CHECK(s->stop || !s->n_stop, err, DI_ERR_INVALID, "stop", "is NULL, but n_stop is not 0");
    CHECK(s->stop_ids || !s->n_stop_ids, err, DI_ERR_INVALID, "stop_ids", "is NULL, but n_stop_ids is not 0");
    CHECK(s->bias || !s->n_bias, err, DI_ERR_INVALID, "bias", "is NULL, but n_bias is not 0");
    CHECK(s->n_stop <= DI_PARSE_MAX_STOP && s->n_bias <= DI_MAX_LOGIT_BIAS && s->n_stop_ids <= DI_MAX_LOGIT_BIAS, err, DI_ERR_INVALID,
          "stop", "at most %d stop strings, %d stop ids and %d biases are possible", DI_PARSE_MAX_STOP, DI_MAX_LOGIT_BIAS,
          DI_MAX_LOGIT_BIAS);
    add_key(b, "stop");
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

/* Text and ids take the way of a completion request, so that every field has one reader, one range and one sentence. */
static di_status write_request(struct di_buf *b, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    di_sampling_options o;
    if (s->json) {
        di_buf_add(b, s->json, s->json_bytes);
        return di_buf_ok(b, err);
    }
    di_sampling_options_init(&o, sizeof o);
    if (s->sampling)
        TRY(di_take_struct(&o, sizeof o, s->sampling, "di_sampling_options", err));
    CHECK(o.logprobs || !o.top_logprobs, err, DI_ERR_INVALID, "top_logprobs", "needs logprobs");
    di_buf_addc(b, '{');
    if (s->text) {
        struct di_str text = {s->text, s->text_bytes};
        CHECK(di_utf8_valid(text, NULL), err, DI_ERR_INVALID, "prompt", "is not valid UTF-8");
        add_key(b, "prompt");
        di_json_write_string(b, text);
    }
    TRY(add_doubles(b, &o, err));
    add_integers(b, &o);
    TRY(add_lists(b, &o, err));
    di_buf_addc(b, '}');
    TRY(di_buf_ok(b, err));
out:
    return status;
}

static di_status check_submission(const di_submission *s, enum di_protocol *protocol, di_error *err)
{
    di_status status = DI_OK;
    CHECK((s->text != NULL) + (s->ids != NULL) + (s->json != NULL) == 1, err, DI_ERR_INVALID, "di_submission",
          "give one of text, ids and json");
    CHECK(!s->json || !s->sampling, err, DI_ERR_INVALID, "sampling",
          "a JSON request has its sampling fields itself; sampling must be NULL");
    CHECK(s->deadline_ms >= 0 && s->deadline_ms <= INT64_MAX / 2000000, err, DI_ERR_INVALID, "deadline_ms", "must be 0 or a time from now");
    CHECK(s->forced || !s->n_forced, err, DI_ERR_INVALID, "forced", "is NULL, but n_forced is not 0");
    CHECK(s->n_forced <= INT32_MAX && s->n_ids <= INT32_MAX, err, DI_ERR_LIMIT, s->n_ids > INT32_MAX ? "ids" : "forced", "too many ids");
    *protocol = s->json ? DI_PROTOCOL_CHAT : DI_PROTOCOL_COMPLETION;
    if (s->json && s->protocol && strcmp(s->protocol, "completion") == 0)
        *protocol = DI_PROTOCOL_COMPLETION;
    else if (s->json && s->protocol)
        CHECK(di_protocol_from_name(di_str_c(s->protocol), protocol), err, DI_ERR_INVALID, "protocol",
              "\"%s\" is none of chat, completion, responses and messages", s->protocol);
out:
    return status;
}

/* So that a request cannot ask for a hundred times its own memory: more values than any context has tokens. */
static const struct di_json_limits json_limits = {.max_values = (size_t)4 << 20};

/* `json` and `arena` keep what the completion borrows. */
static di_status read_submission(const di_engine *e, int64_t context, const di_submission *s, struct di_buf *json, struct di_arena *arena,
                                 struct di_completion **out, di_error *err)
{
    di_status status = DI_OK;
    enum di_protocol protocol;
    struct di_json *request;
    struct di_completion_defaults def = di_completion_defaults();
    def.seed = e->seed;
    def.prompt_ids = s->ids;
    def.n_prompt_ids = s->n_ids;
    TRY(check_submission(s, &protocol, err));
    TRY(write_request(json, s, err));
    TRY(di_json_parse(di_buf_str(json), &json_limits, arena, &request, err));
    CHECK(di_json_is(request, DI_JSON_OBJECT), err, DI_ERR_INVALID, "", "a request must be an object, not %s", di_json_type_name(request));
    struct di_completion_setup setup = {.text = &e->text, .defaults = def, .context = context};
    TRY(di_completion_create(&setup, protocol, request, out, err));
out:
    return status;
}

static di_status make_answer(struct di_api_request *r, const di_submission *s, di_error *err)
{
    di_status status = DI_OK;
    const di_engine *e = r->engine;
    TRY(read_submission(e, e->context, s, &r->json, &r->arena, &r->answer, err));
    if (s->n_forced) {
        r->forced = di_malloc(s->n_forced * sizeof *r->forced);
        CHECK(r->forced, err, DI_ERR_MEMORY, "", "out of memory for %zu forced tokens", s->n_forced);
        memcpy(r->forced, s->forced, s->n_forced * sizeof *r->forced);
    }
    struct di_completion *c = r->answer;
    c->schedule = (struct di_request){.priority = s->priority, .tenant = s->tenant, .forced = r->forced, .n_forced = (int64_t)s->n_forced};
    c->schedule.arrived_ns = di_clock_ns();
    c->schedule.deadline_ns = s->deadline_ms ? di_clock_ns() + s->deadline_ms * 1000000 : 0;
    c->emit = on_event;
    c->on_begin = s->report_start ? on_begin : NULL;
    c->on_sample = on_sample;
    c->on_done = on_done;
    c->emit_arg = r;
    TRY(di_completion_check(c, e->core, err));
out:
    return status;
}

static di_status request_create(di_engine *e, const di_submission *s, struct di_api_request **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_api_request *r = di_calloc(1, sizeof *r);
    CHECK(r, err, DI_ERR_MEMORY, "", "out of memory for a request");
    di_arena_init(&r->arena);
    r->engine = e;
    r->on_output = s->on_output;
    r->user = s->user;
    r->last = di_calloc(1, sizeof *r->last);
    CHECK(r->last, err, DI_ERR_MEMORY, "", "out of memory for a request");
    r->last->error = di_calloc(1, sizeof *r->last->error);
    CHECK(r->last->error, err, DI_ERR_MEMORY, "", "out of memory for a request");
    TRY(make_answer(r, s, err));
    *out = r;
    r = NULL;
out:
    di_api_request_destroy(r);
    return status;
}

static void put_in_inbox(di_engine *e, struct di_api_request *r, di_request_id *id)
{
    pthread_mutex_lock(&e->lock);
    r->id = ++e->last_id;
    if (id)
        *id = r->id;
    struct di_api_request **bucket = &e->table[r->id % DI_API_BUCKETS];
    r->next_bucket = *bucket;
    *bucket = r;
    *e->inbox_end = r;
    e->inbox_end = &r->next;
    e->stats.submitted++;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
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
    put_in_inbox(e, r, id);
out:
    if (status != DI_OK) {
        pthread_mutex_lock(&e->lock);
        e->stats.refused++;
        pthread_mutex_unlock(&e->lock);
    }
    return status;
}

di_status di_engine_prompt(const di_engine *e, const di_submission *submission, int32_t *ids, size_t capacity, size_t *n, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    struct di_buf json = {0};
    struct di_arena arena;
    struct di_completion *c = NULL;
    di_arena_init(&arena);
    CHECK(e && submission && n, err, DI_ERR_INVALID, !e ? "engine" : !submission ? "submission" : "n", "is NULL");
    CHECK(ids || capacity == 0, err, DI_ERR_INVALID, "ids", "is NULL, but its length is not 0");
    TRY(di_take_struct(&s, sizeof s, submission, "di_submission", err));
    TRY(read_submission(e, INT64_MAX / 2, &s, &json, &arena, &c, err));
    *n = c->prompt.n;
    size_t most = *n < capacity ? *n : capacity;
    if (most)
        memcpy(ids, c->prompt.v, most * sizeof *ids);
out:
    di_completion_destroy(c);
    di_buf_fini(&json);
    di_arena_fini(&arena);
    return status;
}

int di_engine_cancel(di_engine *e, di_request_id id)
{
    if (!e || id <= 0)
        return 0;
    pthread_mutex_lock(&e->lock);
    struct di_api_request *r = e->table[id % DI_API_BUCKETS];
    while (r && r->id != id)
        r = r->next_bucket;
    if (r && !r->cancel) {
        r->cancel = true;
        r->next_cancel = e->cancels;
        e->cancels = r;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    return r != NULL;
}
