#include "api/completion.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdatomic.h>

struct di_completion_defaults di_completion_defaults(void)
{
    return (struct di_completion_defaults){.temperature = NAN, .top_p = NAN, .min_p = 0, .top_k = 0, .seed = 0, .max_tokens = INT64_MIN};
}

/* ---------------------------------------------------------------- request -> ids and settings */

/* What a client's cache_salt sets apart. 64 bits of a hash that it cannot steer; the tenant is beside it. */
static uint64_t cache_space(struct di_str salt)
{
    unsigned char hash[32];
    uint64_t space = 0;
    if (salt.n && EVP_Digest(salt.p, salt.n, hash, NULL, EVP_sha256(), NULL) == 1)
        memcpy(&space, hash, sizeof space);
    return space;
}

/* Turns are remembered apart in the same way. */
static uint64_t memory_tenant(uint64_t tenant, struct di_str salt)
{
    uint64_t parts[2] = {tenant, cache_space(salt)}, space = tenant;
    unsigned char hash[32];
    if (parts[1] && EVP_Digest(parts, sizeof parts, hash, NULL, EVP_sha256(), NULL) == 1)
        memcpy(&space, hash, sizeof space);
    return space;
}

static di_status refuse_unsupported(const struct di_chat *c, int64_t n, di_error *err)
{
    static const enum di_constraint_kind masks[] = {DI_CONSTRAIN_REGEX, DI_CONSTRAIN_GRAMMAR, DI_CONSTRAIN_CHOICE};
    if (c->n_images)
        return di_fail(err, DI_ERR_UNSUPPORTED, c->images[0]->path, "images are not supported by this version");
    if (c->document)
        return di_fail(err, DI_ERR_UNSUPPORTED, c->document, "documents are not supported by this version");
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
        if (c->format.kind == masks[i])
            return di_fail(err, DI_ERR_UNSUPPORTED, c->format.path,
                           "a constraint of kind \"%s\" exists only as a mask over the samples, which this version does not have",
                           di_constraint_name(masks[i]));
    if (c->protocol == DI_PROTOCOL_COMPLETION && c->format.kind != DI_CONSTRAIN_NONE)
        return di_fail(err, DI_ERR_UNSUPPORTED, c->format.path,
                       "a raw prompt shows the model no form of the answer, and nothing enforces one yet; use a chat request");
    const struct {
        const char *name;
        bool asked;
    } missing[] = {
        {"bad_words", c->sampling.n_bad_words > 0},
        {"allowed_token_ids", c->sampling.n_allowed_token_ids > 0},
        {"n", c->sampling.n > 0 && c->sampling.n != (n ? n : 1)},
        {"best_of", c->sampling.best_of > (n ? n : 1)},
        {"echo", c->sampling.echo == 1},
        {"return_token_ids", c->sampling.return_token_ids == 1},
        {"return_tokens_as_token_ids", c->sampling.return_tokens_as_token_ids == 1},
        {"prompt_logprobs", c->sampling.prompt_logprobs != INT64_MIN},
        {"truncate_prompt_tokens", c->sampling.truncate_prompt_tokens != INT64_MIN},
    };
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (missing[i].asked)
            return di_fail(err, DI_ERR_UNSUPPORTED, missing[i].name, "not supported by this version");
    return DI_OK;
}

static di_status raw_prompt_text(struct di_completion *c, const struct di_json *text, di_error *err)
{
    int32_t bos = c->text->controls.id[DI_CTL_BOS];
    di_status status = DI_OK;
    CHECK(text->text.n > 0, err, DI_ERR_INVALID, "prompt", "the prompt is empty");
    CHECK(di_ids_reserve(&c->prompt, 1), err, DI_ERR_MEMORY, "prompt", "out of memory");
    c->prompt.v[c->prompt.n++] = bos;
    TRY(di_tokenizer_encode(c->text->tokenizer, text->text, DI_TOKENIZER_ADDED, &c->prompt, err));
    if (c->prompt.n > 1 && c->prompt.v[1] == bos) { /* the client wrote it */
        memmove(c->prompt.v, c->prompt.v + 1, (c->prompt.n - 1) * sizeof *c->prompt.v);
        c->prompt.n--;
    }
out:
    return status;
}

static di_status raw_prompt_ids(struct di_completion *c, const struct di_json *ids, di_error *err)
{
    di_status status = DI_OK;
    CHECK(di_json_is(ids, DI_JSON_ARRAY), err, DI_ERR_INVALID, "prompt_token_ids", "must be an array of token ids, not %s",
          di_json_type_name(ids));
    CHECK(ids->count > 0, err, DI_ERR_INVALID, "prompt_token_ids", "the prompt is empty; at least one token is needed");
    CHECK(di_ids_reserve(&c->prompt, ids->count), err, DI_ERR_MEMORY, "prompt_token_ids", "out of memory for %zu ids", ids->count);
    for (const struct di_json *v = ids->child; v; v = v->next) {
        int64_t id;
        CHECK(di_json_int(v, &id) && id >= 0 && id <= INT32_MAX, err, DI_ERR_INVALID, "prompt_token_ids",
              "entry %zu must be a token id, a whole number of at least 0", c->prompt.n);
        c->prompt.v[c->prompt.n++] = (int32_t)id;
    }
out:
    return status;
}

static di_status copy_prompt(struct di_completion *c, const int32_t *ids, size_t n, di_error *err)
{
    if (!di_ids_reserve(&c->prompt, n))
        return di_fail(err, DI_ERR_MEMORY, "prompt", "out of memory for %zu ids", n);
    if (n)
        memcpy(c->prompt.v, ids, n * sizeof *ids);
    c->prompt.n = n;
    return DI_OK;
}

struct replay {
    struct di_completion *c;
    struct di_turn_prefix prefix;
};

static bool find_turn(void *ctx, const struct di_prompt_turn *turn, struct di_ids *ids)
{
    struct replay *r = ctx;
    struct di_completion *c = r->c;
    uint8_t prefix[32];
    return di_turn_prefix_hash(&r->prefix, ids->v, ids->n, prefix) &&
           di_turn_memory_find(c->memory, c->memory_tenant, prefix, turn->message, c->chat->protocol, turn->reasons, ids);
}

/* Will later prompts of this conversation show what it reasons (spec/encoding.md §2.5)? If not, no turn that reasoned can be replayed. */
static bool keeps_reasoning(const struct di_chat *chat)
{
    return chat->reasoning_history == DI_REASONING_AUTO ? chat->tools_declared : chat->reasoning_history == DI_REASONING_KEEP;
}

/* Where the turn begins that this answer will be; a prefix of the client's is no turn of the model's. */
static bool find_start(struct di_completion *c, struct replay *r)
{
    enum di_parse_start start = c->chat->start;
    bool fresh = start == DI_START_REASONING || start == DI_START_CONTENT || start == DI_START_TOOL_BLOCK;
    size_t n = c->prompt.n;
    while (fresh && n && c->prompt.v[n - 1] != c->text->controls.id[DI_CTL_ASSISTANT])
        n--;
    c->turn_at = n;
    return fresh && n >= r->prefix.done && (!c->chat->thinking || keeps_reasoning(c->chat)) &&
           di_turn_prefix_hash(&r->prefix, c->prompt.v, n, c->turn_prefix);
}

static di_status chat_prompt(struct di_completion *c, di_error *err)
{
    struct replay r = {.c = c};
    struct di_prompt_replay replay = {find_turn, &r};
    di_status status =
        di_prompt_encode(&c->chat->prompt, c->text->tokenizer, &c->text->controls, c->memory ? &replay : NULL, &c->prompt, err);
    if (status == DI_OK && c->memory && !find_start(c, &r))
        c->memory = NULL;
    di_turn_prefix_fini(&r.prefix);
    return status;
}

/* Absent and null are the same. */
static const struct di_json *member(const struct di_json *request, const char *key)
{
    const struct di_json *v = di_json_get(request, key);
    return di_json_is(v, DI_JSON_NULL) ? NULL : v;
}

static di_status make_prompt(struct di_completion *c, const struct di_json *request, const struct di_completion_defaults *def,
                             di_error *err)
{
    if (c->chat->protocol != DI_PROTOCOL_COMPLETION)
        return chat_prompt(c, err);
    const struct di_json *ids = member(request, "prompt_token_ids"), *text = member(request, "prompt");
    if (ids && text)
        return di_fail(err, DI_ERR_INVALID, "prompt", "give either prompt or prompt_token_ids, not both");
    if (!ids && !text && def->prompt_ids)
        return copy_prompt(c, def->prompt_ids, def->n_prompt_ids, err);
    if (ids)
        return raw_prompt_ids(c, ids, err);
    if (!di_json_is(text, DI_JSON_STRING))
        return di_fail(err, DI_ERR_INVALID, "prompt", "must be a string, not %s", di_json_type_name(text));
    return raw_prompt_text(c, text, err);
}

static double or_default(double x, double def)
{
    return isnan(x) ? def : x;
}
static int64_t int_or(int64_t x, int64_t def)
{
    return x == INT64_MIN ? def : x;
}

/* Sampling of the engine from the request's fields; what is absent comes from the defaults, then from the rules. */
static di_status make_sampling(struct di_completion *c, const struct di_completion_defaults *def, di_error *err)
{
    const struct di_sampling *s = &c->chat->sampling;
    struct di_sampling_params *p = &c->sampling;
    *p = di_sampling_params_default();
    p->temperature = isnan(s->temperature) && !isnan(def->temperature) ? def->temperature : c->chat->temperature;
    p->top_p = isnan(s->top_p) && !isnan(def->top_p) ? def->top_p : c->chat->top_p;
    p->min_p = or_default(s->min_p, def->min_p);
    p->top_k = int_or(s->top_k, def->top_k);
    p->seed = s->has_seed ? s->seed : def->seed;
    p->repetition_penalty = or_default(s->repetition_penalty, p->repetition_penalty);
    p->presence_penalty = or_default(s->presence_penalty, p->presence_penalty);
    p->frequency_penalty = or_default(s->frequency_penalty, p->frequency_penalty);
    p->min_tokens = int_or(s->min_tokens, 0);
    p->logprobs = s->logprobs == 1;
    p->top_logprobs = p->logprobs ? int_or(s->top_logprobs, 0) : 0;
    p->n_end_ids = 1 + s->n_stop_token_ids;
    p->n_bias = s->n_logit_bias;
    c->end_ids = di_malloc(p->n_end_ids * sizeof *c->end_ids + p->n_bias * sizeof(struct di_logit_bias));
    if (!c->end_ids)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    c->end_ids[0] = c->text->controls.id[DI_CTL_EOS];
    for (size_t i = 0; i < s->n_stop_token_ids; i++)
        c->end_ids[1 + i] = s->stop_token_ids[i];
    struct di_logit_bias *bias = (struct di_logit_bias *)(void *)(c->end_ids + p->n_end_ids);
    for (size_t i = 0; i < p->n_bias; i++)
        bias[i] = (struct di_logit_bias){s->logit_bias[i].id, s->logit_bias[i].bias};
    p->end_ids = c->end_ids;
    p->bias = bias;
    return DI_OK;
}

/* ---------------------------------------------------------------- answers of one request */

/* Never changed once it is made: any thread reads it. */
struct di_completion_source {
    atomic_int holders;
    struct di_chat *chat;
    struct di_ids prompt;
    int32_t *end_ids;
};

static di_status make_source(struct di_completion *c, di_error *err)
{
    di_status status = di_chat_settle(c->chat, err);
    if (status != DI_OK)
        return status;
    struct di_completion_source *s = di_calloc(1, sizeof *s);
    if (!s)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    int32_t *fit = c->prompt.n ? di_realloc(c->prompt.v, c->prompt.n * sizeof *fit) : NULL;
    if (fit) { /* without the room that it had to grow */
        c->prompt.v = fit;
        c->prompt.cap = c->prompt.n;
    }
    atomic_init(&s->holders, 1);
    s->chat = c->chat;
    s->prompt = c->prompt;
    s->end_ids = c->end_ids;
    c->source = s;
    return DI_OK;
}

static void put_source(struct di_completion_source *s)
{
    if (atomic_fetch_sub(&s->holders, 1) > 1)
        return;
    di_chat_destroy(s->chat);
    di_ids_fini(&s->prompt);
    di_free(s->end_ids);
    di_free(s);
}

/* The id of the call that has just begun. */
static void name_call(struct di_completion *c)
{
    unsigned char random[DI_CALL_ID_RANDOM];
    if (c->message.failed)
        return;
    if (!c->random(c->random_ctx, random, sizeof random)) {
        di_fail(&c->err, DI_ERR_IO, "", "the system gives no random bytes");
        return;
    }
    size_t index = c->message.n_calls - 1;
    di_call_id_write(c->message.calls[index].id, index, c->chat->thinking && c->message.reasoning.n == 0, random);
}

static bool may_call(void *arg, struct di_str name)
{
    const struct di_completion *c = arg;
    const struct di_chat_tool *t = c->chat->tools;
    while (t && !(t->offered && di_str_eq(t->name, name)))
        t = t->next;
    return t;
}

static void on_event(void *arg, const struct di_parse_event *event)
{
    struct di_completion *c = arg;
    struct di_parse_event done = *event;
    if (c->enough && event->kind == DI_EVENT_DONE && event->finish == DI_FINISH_STOP) { /* inside the call after the one that was wanted */
        done.finish = DI_FINISH_TOOL_CALLS;
        event = &done;
    }
    c->enough = c->enough || (c->chat->single_call && event->kind == DI_EVENT_CALL && event->index > 0);
    if (c->enough && event->kind != DI_EVENT_DONE)
        return;
    di_message_add(&c->message, event);
    if (event->kind == DI_EVENT_CALL)
        name_call(c);
    if (c->emit && !c->muted)
        c->emit(c->emit_arg, event);
}

static di_status make_parser(struct di_completion *c, di_error *err)
{
    const struct di_chat *chat = c->chat;
    struct di_parser_settings s = {
        .start = chat->start,
        .tools_declared = chat->tools_declared,
        .json_mode = chat->json_mode && chat->protocol == DI_PROTOCOL_CHAT,
        .hide_control = chat->sampling.skip_special_tokens != 0,
        .include_stop = chat->sampling.include_stop_str_in_output == 1,
        .offered = may_call,
        .refuse_not_offered = chat->forced,
        .stop = chat->sampling.stop,
        .n_stop = chat->sampling.n_stop,
    };
    return di_parser_create(&s, on_event, c, &c->parser, err);
}

/* The limit of the reasoning: `</think>` comes after so many tokens unless it or a call came before (spec/encoding.md §4.2,
 * thinking_token_budget). */
static void make_cap(struct di_completion *c)
{
    const struct di_chat *chat = c->chat;
    bool reasons = chat->start == DI_START_REASONING || chat->start == DI_START_REASONING_CONTINUED;
    int64_t budget = chat->sampling.thinking_token_budget;
    if (reasons && budget != INT64_MIN)
        c->cap = (struct di_cap){budget, {c->text->controls.id[DI_CTL_THINK_END], c->text->controls.id[DI_CTL_DSML]}};
}

di_status di_completion_create(const struct di_completion_setup *setup, enum di_protocol protocol, const struct di_json *request,
                               struct di_completion **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_completion *c = di_calloc(1, sizeof *c);
    CHECK(c, err, DI_ERR_MEMORY, "", "out of memory for a request");
    c->text = setup->text;
    c->facts = (struct di_request_facts){.queue_ns = -1, .first_token_ns = -1, .total_ns = -1, .miss_at = -1};
    c->cap.at = -1;
    c->random = setup->random ? setup->random : di_entropy;
    c->random_ctx = setup->random_ctx;
    c->memory = setup->branch || protocol == DI_PROTOCOL_COMPLETION ? NULL : setup->memory;
    TRY(di_chat_create(protocol, request, setup->options, &c->chat, err));
    c->memory_tenant = memory_tenant(setup->memory_tenant, c->chat->cache_salt);
    c->space = cache_space(c->chat->cache_salt);
    TRY(refuse_unsupported(c->chat, setup->n, err));
    if (!setup->branch)
        TRY(make_prompt(c, request, &setup->defaults, err));
    if (c->chat->sampling.max_tokens == INT64_MIN)
        c->chat->sampling.max_tokens = setup->defaults.max_tokens;
    TRY(di_chat_max_tokens(c->chat, (int64_t)c->prompt.n, setup->context, &c->max_tokens, err));
    TRY(make_sampling(c, &setup->defaults, err));
    TRY(make_source(c, err));
    TRY(make_parser(c, err));
    make_cap(c);
    *out = c;
    c = NULL;
out:
    di_completion_destroy(c);
    return status;
}

di_status di_completion_sample(const struct di_completion *first, struct di_completion **out, di_error *err)
{
    struct di_completion *c = di_malloc(sizeof *c);
    *out = NULL;
    if (!c)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    *c = (struct di_completion){.source = first->source,
                                .chat = first->chat,
                                .text = first->text,
                                .prompt = first->prompt,
                                .max_tokens = first->max_tokens,
                                .sampling = first->sampling,
                                .end_ids = first->end_ids,
                                .cap = first->cap,
                                .random = first->random,
                                .random_ctx = first->random_ctx,
                                .memory = first->memory,
                                .memory_tenant = first->memory_tenant,
                                .space = first->space,
                                .turn_at = first->turn_at};
    c->facts = (struct di_request_facts){.queue_ns = -1, .first_token_ns = -1, .total_ns = -1, .miss_at = -1};
    memcpy(c->turn_prefix, first->turn_prefix, sizeof c->turn_prefix);
    atomic_fetch_add(&c->source->holders, 1);
    di_status status = make_parser(c, err);
    if (status == DI_OK)
        *out = c;
    else
        di_completion_destroy(c);
    return status;
}

static bool is_end(const struct di_completion *c, int32_t id)
{
    for (size_t i = 0; i < c->sampling.n_end_ids; i++)
        if (c->end_ids[i] == id)
            return true;
    return false;
}

/* The parser gets what the branch begins with, so that it stands where that of `from` stood. */
static di_status feed_silently(struct di_completion *c, const int32_t *ids, size_t n, di_error *err)
{
    di_status status = DI_OK;
    c->muted = true;
    for (size_t i = 0; i < n && status == DI_OK; i++)
        if (!is_end(c, ids[i]))
            status = di_parser_feed_id(c->parser, c->text->tokenizer, ids[i], err);
    c->muted = false;
    if (status == DI_OK && di_parser_stopped(c->parser))
        status = di_fail(err, DI_ERR_INVALID, "stop", "a stop string stands in the answer before the branch");
    return status;
}

di_status di_completion_branch(struct di_completion *c, const struct di_completion *from, int64_t at, bool left, int64_t context,
                               di_error *err)
{
    di_status status = DI_OK;
    int64_t n_prompt = (int64_t)from->prompt.n, most = n_prompt + (int64_t)from->ids.n;
    at = at ? at : most;
    CHECK(at >= 1 && at <= most, err, DI_ERR_INVALID, "fork_at", "the request has %lld tokens so far, a branch behind %lld is not possible",
          (long long)most, (long long)at);
    CHECK(at >= n_prompt || c->chat->protocol == DI_PROTOCOL_COMPLETION, err, DI_ERR_INVALID, "fork_at",
          "a chat request can branch behind its prompt of %lld tokens only, not behind %lld", (long long)n_prompt, (long long)at);
    CHECK(di_ids_reserve(&c->prompt, (size_t)at), err, DI_ERR_MEMORY, "", "out of memory for %lld ids", (long long)at);
    size_t of_prompt = (size_t)(at < n_prompt ? at : n_prompt), of_answer = (size_t)at - of_prompt;
    memcpy(c->prompt.v, from->prompt.v, of_prompt * sizeof *c->prompt.v);
    if (of_answer)
        memcpy(c->prompt.v + of_prompt, from->ids.v, of_answer * sizeof *c->prompt.v);
    c->prompt.n = (size_t)at;
    if (left)
        c->max_tokens = from->max_tokens - (int64_t)of_answer;
    else
        TRY(di_chat_max_tokens(c->chat, at, context, &c->max_tokens, err));
    TRY(feed_silently(c, from->ids.v, of_answer, err));
out:
    return status;
}

void di_completion_destroy(struct di_completion *c)
{
    if (!c)
        return;
    di_parser_destroy(c->parser);
    di_message_fini(&c->message);
    di_ids_fini(&c->ids);
    if (!c->source || c->prompt.v != c->source->prompt.v)
        di_ids_fini(&c->prompt);
    if (c->source) {
        put_source(c->source);
    } else { /* it was never whole */
        di_free(c->end_ids);
        di_chat_destroy(c->chat);
    }
    di_free(c);
}

bool di_completion_unconstrained(const struct di_completion *c)
{
    return c->chat->format.kind != DI_CONSTRAIN_NONE || c->chat->forced;
}

/* ---------------------------------------------------------------- ids -> message */

/* A preempted request starts again and finds its own tokens: what counts is the first time. */
static void on_start(void *ctx, int64_t cached)
{
    struct di_completion *c = ctx;
    if (c->ids.n == 0)
        c->cached_tokens = cached;
    if (!c->begun && c->on_begin)
        c->on_begin(c->emit_arg);
    c->begun = true;
}

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct di_completion *c = ctx;
    if (c->on_sample)
        c->on_sample(c->emit_arg, s);
    if (!di_ids_reserve(&c->ids, 1)) {
        di_fail(&c->err, DI_ERR_MEMORY, "", "out of memory for the answer");
        return false;
    }
    c->ids.v[c->ids.n++] = s->id;
    c->reasoning_tokens += di_parser_phase(c->parser) == DI_PHASE_REASONING;
    if (is_end(c, s->id))
        return true;
    if (di_parser_feed_id(c->parser, c->text->tokenizer, s->id, &c->err) != DI_OK)
        return false;
    if (c->chat->forced && di_parser_refused(c->parser)) {
        di_fail(&c->err, DI_ERR_FORMAT, "tool_choice", "a tool was to be called, but the model called one that was not offered");
        return false;
    }
    return !di_parser_stopped(c->parser) && !c->enough;
}

/* A turn that the model ended itself. Without memory for it the next prompt is rendered instead. */
static void remember(struct di_completion *c)
{
    struct di_ids ids = {0};
    bool whole = c->memory && c->end == DI_END_STOP && c->ids.n && c->ids.v[c->ids.n - 1] == c->text->controls.id[DI_CTL_EOS] &&
                 c->message.finish != DI_FINISH_STOP_STRING;
    size_t before = c->prompt.n - c->turn_at;
    if (!whole || !di_ids_reserve(&ids, before + c->ids.n))
        return;
    memcpy(ids.v, c->prompt.v + c->turn_at, before * sizeof *ids.v);
    memcpy(ids.v + before, c->ids.v, c->ids.n * sizeof *ids.v);
    di_turn_memory_put(c->memory, &(struct di_turn){.tenant = c->memory_tenant,
                                                    .prefix = c->turn_prefix,
                                                    .ids = ids.v,
                                                    .n_ids = before + c->ids.n,
                                                    .thinking = c->chat->thinking,
                                                    .message = &c->message});
    di_ids_fini(&ids);
}

static void on_end(void *ctx, enum di_end end, const di_error *err)
{
    static const enum di_finish reasons[] = {[DI_END_STOP] = DI_FINISH_STOP,
                                             [DI_END_LENGTH] = DI_FINISH_LENGTH,
                                             [DI_END_CANCELLED] = DI_FINISH_ABORT,
                                             [DI_END_DEADLINE] = DI_FINISH_ABORT,
                                             [DI_END_ERROR] = DI_FINISH_ERROR};
    struct di_completion *c = ctx;
    if (err && c->err.code == DI_OK)
        c->err = *err;
    c->end = c->err.code == DI_OK ? end : DI_END_ERROR;
    di_error ignored;
    if (di_parser_finish(c->parser, reasons[c->end], &ignored) != DI_OK || di_message_ok(&c->message, &ignored) != DI_OK) {
        c->end = DI_END_ERROR;
        if (c->err.code == DI_OK)
            c->err = ignored;
    }
    remember(c);
    c->done = true;
    if (c->on_done)
        c->on_done(c->emit_arg);
}

static struct di_request engine_request(const struct di_completion *c)
{
    struct di_request r = c->schedule;
    r.cap = c->cap.at >= 0 ? &c->cap : NULL;
    r.space = c->space;
    r.prompt = c->prompt.v;
    r.prompt_stays = true;
    r.n_prompt = (int64_t)c->prompt.n;
    r.max_tokens = c->max_tokens;
    r.sampling = c->sampling;
    r.ignore_end = c->chat->sampling.ignore_eos == 1;
    return r;
}

di_status di_completion_check(const struct di_completion *c, const struct di_core *e, di_error *err)
{
    struct di_request r = engine_request(c);
    return di_core_check(e, &r, err);
}

di_status di_completion_submit(struct di_completion *c, struct di_core *e, int64_t *id, di_error *err)
{
    struct di_request r = engine_request(c);
    r.on_start = on_start;
    r.on_token = on_token;
    r.on_end = on_end;
    r.facts = &c->facts;
    r.ctx = c;
    return di_core_submit(e, &r, id, err);
}
