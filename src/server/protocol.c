/* Life of an exchange: reading the request, submissions, records, the end. The dialects are in protocol_*.c. */
#include "server/protocol_impl.h"

#include "base/entropy.h"
#include "base/utf8.h"

#include <stdio.h>

static const struct {
    const struct di_dialect_ops *ops;
    const char *protocol;
    enum di_dialect dialect;
    bool has_body;
} routes[] = {
    [DI_ROUTE_CHAT] = {&di_chat_ops, "chat", DI_DIALECT_OPENAI, true},
    [DI_ROUTE_COMPLETIONS] = {&di_completions_ops, "completion", DI_DIALECT_OPENAI, true},
    [DI_ROUTE_MESSAGES] = {&di_messages_ops, "messages", DI_DIALECT_ANTHROPIC, true},
    [DI_ROUTE_COUNT_TOKENS] = {NULL, "messages", DI_DIALECT_ANTHROPIC, true},
    [DI_ROUTE_RESPONSES] = {&di_responses_ops, "responses", DI_DIALECT_OPENAI, true},
    [DI_ROUTE_RESPONSE_GET] = {NULL, "", DI_DIALECT_OPENAI, false},
    [DI_ROUTE_RESPONSE_DELETE] = {NULL, "", DI_DIALECT_OPENAI, false},
    [DI_ROUTE_RESPONSE_ITEMS] = {NULL, "", DI_DIALECT_OPENAI, false},
    [DI_ROUTE_RESPONSE_TOKENS] = {NULL, "responses", DI_DIALECT_OPENAI, true},
    [DI_ROUTE_MODELS] = {NULL, "", DI_DIALECT_OPENAI, false},
    [DI_ROUTE_MODEL] = {NULL, "", DI_DIALECT_OPENAI, false},
    [DI_ROUTE_TOKENIZE] = {NULL, "chat", DI_DIALECT_OPENAI, true},
    [DI_ROUTE_TOKENIZER_INFO] = {NULL, "", DI_DIALECT_OPENAI, false},
    [DI_ROUTE_DETOKENIZE] = {NULL, "", DI_DIALECT_OPENAI, true},
};

enum di_dialect di_route_dialect(enum di_route route)
{
    return routes[route].dialect;
}

/* ---------------------------------------------------------------- reading */

const struct di_json *di_field(const struct di_json *object, const char *key)
{
    const struct di_json *v = di_json_get(object, key);
    return di_json_is(v, DI_JSON_NULL) ? NULL : v;
}

bool di_field_true(const struct di_json *object, const char *key)
{
    const struct di_json *v = di_field(object, key);
    return di_json_is(v, DI_JSON_BOOL) && v->boolean;
}

struct di_str di_field_string(const struct di_json *object, const char *key)
{
    const struct di_json *v = di_field(object, key);
    return di_json_is(v, DI_JSON_STRING) ? v->text : (struct di_str){0};
}

int64_t di_field_int(const struct di_json *object, const char *key, int64_t otherwise)
{
    int64_t x;
    return di_json_int(di_field(object, key), &x) ? x : otherwise;
}

di_status di_field_switch(const struct di_json *object, const char *key, bool otherwise, bool *out, di_error *err)
{
    const struct di_json *v = di_field(object, key);
    if (v && v->type != DI_JSON_BOOL)
        return di_fail(err, DI_ERR_INVALID, key, "must be true or false, not %s", di_json_type_name(v));
    *out = v ? v->boolean : otherwise;
    return DI_OK;
}

di_status di_exchange_make_answers(struct di_exchange *x, size_t prompts, size_t samples, di_error *err)
{
    size_t most = x->setup->max_submissions > 0 ? (size_t)x->setup->max_submissions : 128, n;
    unsigned keep = 0;
    if (!di_mul(prompts, samples, &n) || n > most)
        return di_fail(err, DI_ERR_INVALID, "n", "%zu prompts with %zu samples each are more than the %zu that one request may have",
                       prompts, samples, most);
    x->prepared = di_calloc(prompts, sizeof *x->prepared);
    x->answers = di_calloc(n, sizeof *x->answers);
    if (!x->prepared || !x->answers)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    if (x->logprobs && !x->ops->each) /* that keeps them in its own way */
        keep = DI_ANSWER_LOGPROBS | (x->hide_reasoning ? 0 : DI_ANSWER_REASONING_LOGPROBS);
    for (size_t i = 0; i < n; i++) {
        x->answers[i].engine = x->setup->engine;
        x->answers[i].keep = keep;
    }
    x->n_answers = n;
    x->n_samples = samples;
    x->n_prompts = prompts;
    return DI_OK;
}

static di_status random_bytes(const struct di_exchange_setup *s, void *bytes, size_t n, di_error *err)
{
    if (!(s->random ? s->random(s->random_ctx, bytes, n) : di_entropy(NULL, bytes, n)))
        return di_fail(err, DI_ERR_IO, "", "the system gives no random bytes");
    return DI_OK;
}

/* A request without a seed gets one of its own. */
static di_status choose_seed(struct di_exchange *x, di_error *err)
{
    uint64_t seed;
    if (x->setup->fixed_seeds)
        return DI_OK;
    di_request_defaults_init(&x->defaults, sizeof x->defaults);
    di_status status = random_bytes(x->setup, &seed, sizeof seed, err);
    x->defaults.seed = (int64_t)(seed >> 1);
    return status;
}

/* request_id, if the client gave one of harmless letters, is part of the id (spec/encoding.md §4.2). */
static di_status make_id(struct di_exchange *x, di_error *err)
{
    unsigned char r[16];
    struct di_str given = di_field_string(x->json, "request_id");
    bool plain = given.n > 0 && given.n <= 40;
    for (size_t i = 0; plain && i < given.n; i++) {
        char c = given.p[i];
        plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    }
    if (plain) {
        snprintf(x->id, sizeof x->id, "%s%.*s", x->ops->id_prefix, (int)given.n, given.p);
        return DI_OK;
    }
    di_status status = random_bytes(x->setup, r, sizeof r, err);
    int n = snprintf(x->id, sizeof x->id, "%s", x->ops->id_prefix);
    for (size_t i = 0; i < sizeof r; i++)
        n += snprintf(x->id + n, sizeof x->id - (size_t)n, "%02x", r[i]);
    return status;
}

const char *di_model_served(const struct di_exchange_setup *setup, struct di_str name)
{
    for (size_t i = 0; i < setup->n_names; i++) {
        struct di_str known = di_str_c(setup->names[i]);
        bool all = known.n && known.p[known.n - 1] == '*';
        if (all ? di_str_starts(name, (struct di_str){known.p, known.n - 1}) : di_str_eq(name, known))
            return setup->names[i];
    }
    return NULL;
}

#define MAX_MODEL_NAME 256

static di_status read_model(struct di_exchange *x, struct di_http_error *error, di_error *err)
{
    struct di_str name = di_field_string(x->json, "model");
    if (name.n > MAX_MODEL_NAME) /* every chunk repeats it */
        return di_fail(err, DI_ERR_INVALID, "model", "has %zu bytes, at most %d are allowed", name.n, MAX_MODEL_NAME);
    if (!name.n)
        name = di_str_c(x->setup->n_names ? x->setup->names[0] : "");
    else if (x->setup->reject_unknown_models && !di_model_served(x->setup, name)) {
        di_http_error_set(error, 404, "model_not_found", "model", "The model \"%.*s\" does not exist here.", (int)di_utf8_cut(name, 80),
                          name.p);
        return DI_ERR_NOT_FOUND;
    }
    x->model = di_arena_strndup(&x->arena, name.p, name.n);
    return x->model ? DI_OK : di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
}

/* Absent fields and those of another type stay as they are: the engine says what is wrong with them. */
static di_status keep_fields(struct di_exchange *x, di_error *err)
{
    const struct di_json *ids = di_field(x->json, "stop_token_ids");
    int64_t priority = di_field_int(x->json, "priority", 0);
    if (priority < 0 && x->request.tenant) /* among tenants a client can step back, but not push forward */
        priority = 0;
    x->priority = priority >= INT32_MIN && priority <= INT32_MAX ? (int32_t)priority : 0;
    x->stream = di_field_true(x->json, "stream");
    if (!di_json_is(ids, DI_JSON_ARRAY))
        return DI_OK;
    x->stop_ids = di_arena_alloc(&x->arena, ids->count * sizeof *x->stop_ids);
    if (!x->stop_ids)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    for (const struct di_json *v = ids->child; v; v = v->next)
        x->n_stop_ids += di_json_int(v, &x->stop_ids[x->n_stop_ids]);
    return DI_OK;
}

static di_status read_request(struct di_exchange *x, struct di_http_error *error, di_error *err)
{
    struct di_json_limits limits = di_json_request_limits(x->request.body.n);
    di_status status = DI_OK;
    if (routes[x->request.route].has_body) {
        TRY(di_json_parse(x->request.body, &limits, &x->tree, &x->json, err));
        CHECK(di_json_is(x->json, DI_JSON_OBJECT), err, DI_ERR_INVALID, "", "the body must be a JSON object, not %s",
              di_json_type_name(x->json));
        TRY(read_model(x, error, err));
    }
    if (!x->ops)
        return di_exchange_reply(x, err);
    TRY(make_id(x, err));
    TRY(choose_seed(x, err));
    TRY(keep_fields(x, err));
    TRY(x->ops->read(x, err));
out:
    return status;
}

di_status di_exchange_create(const struct di_exchange_setup *setup, const struct di_exchange_request *request, struct di_exchange **out,
                             struct di_http_error *error)
{
    di_error err = {0};
    di_status status = DI_ERR_MEMORY;
    *out = NULL;
    error->status = 0;
    struct di_exchange *x = di_calloc(1, sizeof *x);
    if (!x) {
        di_http_error_set(error, 503, NULL, "", "out of memory for a request");
        return status;
    }
    di_arena_init(&x->arena);
    di_arena_init(&x->tree);
    x->setup = setup;
    x->request = *request;
    x->ops = routes[request->route].ops;
    x->protocol = routes[request->route].protocol;
    x->status = 200;
    di_request_overrides_init(&x->overrides, sizeof x->overrides);
    status = read_request(x, error, &err);
    x->json = NULL;
    di_arena_fini(&x->tree);
    if (status == DI_OK) {
        *out = x;
        return DI_OK;
    }
    if (!error->status)
        di_http_error_from(error, &err);
    di_exchange_destroy(x);
    return status;
}

void di_exchange_destroy(struct di_exchange *x)
{
    if (!x)
        return;
    if (x->ops && x->ops->free)
        x->ops->free(x);
    for (size_t i = 0; i < x->n_answers; i++)
        di_answer_fini(&x->answers[i]);
    di_exchange_release(x);
    di_free(x->forced);
    di_free(x->answers);
    di_buf_fini(&x->reply);
    di_arena_fini(&x->arena);
    di_free(x);
}

size_t di_exchange_release(struct di_exchange *x)
{
    size_t bytes = sizeof *x + x->kept + di_arena_bytes(&x->arena);
    for (size_t i = 0; x->prepared && i < x->n_prompts; i++) {
        bytes += di_prepared_bytes(x->prepared[i]);
        di_prepared_free(x->prepared[i]);
    }
    di_free(x->prepared);
    x->prepared = NULL;
    bytes += di_prepared_bytes(x->fields);
    di_prepared_free(x->fields);
    x->fields = NULL;
    for (size_t i = 0; x->forced && i < x->n_prompts; i++) {
        bytes += x->n_samples * x->forced[i].n * sizeof(int32_t); /* the engine's, of each answer */
        di_free(x->forced[i].ids);
        x->forced[i].ids = NULL;
    }
    for (size_t i = 0; x->prompts && i < x->n_prompts; i++) {
        di_buf_fini(&x->prompts[i].text);
        di_free(x->prompts[i].ids);
    }
    di_free(x->prompts);
    x->prompts = NULL;
    di_buf_fini(&x->input);
    x->request.body = (struct di_str){0};
    return bytes;
}

/* ---------------------------------------------------------------- the transport's questions */

bool di_exchange_streams(const struct di_exchange *x)
{
    return x->stream;
}
const char *di_exchange_content_type(const struct di_exchange *x)
{
    return di_stream_content_type(x->stream);
}
const char *di_exchange_model(const struct di_exchange *x)
{
    return x->model ? di_model_served(x->setup, di_str_c(x->model)) : NULL;
}
const char *di_exchange_id(const struct di_exchange *x)
{
    return x->id;
}
bool di_exchange_finished(const struct di_exchange *x)
{
    return x->done;
}
int di_exchange_status(const struct di_exchange *x)
{
    return x->status;
}
size_t di_exchange_submissions(const struct di_exchange *x)
{
    return x->n_answers;
}
size_t di_exchange_prompts(const struct di_exchange *x)
{
    return x->n_prompts;
}

void di_exchange_describe(struct di_exchange *x, di_submission *s)
{
    di_submission_init(s, sizeof *s);
    s->json = x->request.body.p;
    s->json_bytes = x->request.body.n;
    s->protocol = x->protocol;
    s->defaults = x->ops && !x->setup->fixed_seeds ? &x->defaults : NULL;
    s->tenant = x->request.tenant;
    s->n_samples = (int32_t)x->n_samples; /* at most max_submissions */
    x->overrides.input = x->input.n ? x->input.p : NULL;
    x->overrides.input_bytes = x->input.n;
    s->overrides = &x->overrides;
}

void di_exchange_describe_prompt(struct di_exchange *x, size_t k, di_submission *s)
{
    const struct di_exchange_prompt *p = &x->prompts[k];
    di_submission_init(s, sizeof *s);
    s->prepared = x->fields;
    s->tenant = x->request.tenant;
    s->n_samples = (int32_t)x->n_samples;
    di_request_overrides_init(&x->of_prompt, sizeof x->of_prompt);
    x->of_prompt.max_tokens = p->max_tokens;
    s->overrides = &x->of_prompt;
    if (x->forced) {
        s->ids = x->forced[k].ids;
        s->n_ids = 1;
    } else if (p->ids) {
        s->ids = p->ids;
        s->n_ids = p->n_ids;
    } else {
        s->text = p->text.p ? p->text.p : "";
        s->text_bytes = p->text.n;
    }
}

di_status di_exchange_prepare(struct di_exchange *x, size_t k, di_error *err)
{
    di_status status = DI_OK;
    di_submission s;
    if (x->ops->prepare)
        TRY(x->ops->prepare(x, k, err));
    di_exchange_describe(x, &s);
    if (x->prompts) {
        if (!x->fields)
            TRY(di_engine_prepare(x->setup->engine, &s, &x->fields, err));
        di_exchange_describe_prompt(x, k, &s);
    }
    TRY(di_engine_prepare(x->setup->engine, &s, &x->prepared[k], err));
out:
    return status;
}

void di_exchange_submission(const struct di_exchange *x, size_t i, di_submission *s)
{
    size_t first = i - i % x->n_samples;
    di_submission_init(s, sizeof *s);
    s->prepared = x->prepared[i / x->n_samples];
    s->tenant = x->request.tenant;
    s->priority = x->priority;
    s->report_start = 1;
    if (x->forced) {
        s->forced = x->forced[i / x->n_samples].ids + 1;
        s->n_forced = x->forced[i / x->n_samples].n - 1;
    }
    s->n_samples = (int32_t)x->n_samples;
    s->sample = (int32_t)(i - first);
    s->after = i > first ? x->answers[first].request : 0;
}

void di_exchange_submitted(struct di_exchange *x, size_t i, di_request_id id)
{
    x->answers[i].request = id;
}

/* ---------------------------------------------------------------- records */

/* What an end that is the server's doing is called; status 0: the answer is good. */
static void reason_error(const di_output *o, struct di_http_error *e)
{
    static const di_error unknown = {DI_ERR_INTERNAL, "the engine failed", ""};
    e->status = 0;
    if (o->reason == DI_REASON_ERROR)
        di_http_error_from(e, o->error ? o->error : &unknown);
    else if (o->reason == DI_REASON_CANCELLED)
        di_http_error_set(e, 503, NULL, "", "The request was stopped by the server.");
    else if (o->reason == DI_REASON_DEADLINE)
        di_http_error_set(e, 503, "timeout", "", "The request took longer than the server allows.");
}

di_status di_exchange_begin(struct di_exchange *x, struct di_buf *out, di_error *err)
{
    if (!x->ops) {
        di_buf_addv(out, di_buf_str(&x->reply));
        x->done = true;
    }
    return di_buf_ok(out, err);
}

di_status di_exchange_output(struct di_exchange *x, size_t i, const di_output *o, struct di_buf *out, di_error *err)
{
    struct di_answer *a = &x->answers[i];
    if (x->done || a->finished)
        return DI_OK;
    if (!di_answer_add(a, o) || (x->ops->each && !x->ops->each(x, a, o)))
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for an answer");
    if (o->kind == DI_OUTPUT_FINISHED) {
        struct di_http_error e;
        reason_error(o, &e);
        if (e.status) {
            x->status = x->stream ? 200 : e.status;
            di_exchange_fail(x, &e, x->stream, out);
            return di_buf_ok(out, err);
        }
        x->n_finished++;
    }
    bool last = x->n_finished == x->n_answers;
    if (x->stream) {
        if (o->kind != DI_OUTPUT_FINISHED)
            x->ops->record(x, a, o, out);
        else
            x->ops->answer_end(x, a, out);
        if (last)
            x->ops->end(x, out);
    } else if (last) {
        x->ops->body(x, out);
    }
    x->done = last;
    return di_buf_ok(out, err);
}

void di_exchange_fail(struct di_exchange *x, const struct di_http_error *error, bool started, struct di_buf *out)
{
    if (x->done)
        return;
    x->done = true;
    if (x->stream && (started || (x->ops->tells_by_event && x->ops->tells_by_event(error)))) {
        x->ops->error_event(x, error, out);
        return;
    }
    if (!started)
        x->status = error->status;
    di_http_error_write(routes[x->request.route].dialect, error, x->request.request_id, out);
}
