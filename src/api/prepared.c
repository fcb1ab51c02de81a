/* Reading a request: JSON, text or ids become a prompt and settings. */
#include "api/prepared.h"

#include "base/utf8.h"
#include "text/json_path.h"

#include <math.h>
#include <openssl/evp.h>

/* ---------------------------------------------------------------- what is said elsewhere */

/* A member of this name goes out of the tree. */
static void drop_member(struct di_json *object, const char *name)
{
    for (struct di_json **link = &object->child; *link; link = &(*link)->next)
        if (di_str_eqc((*link)->key, name)) {
            *link = (*link)->next;
            object->count--;
            return;
        }
}

static di_status replace_input(struct di_json *request, struct di_str list, struct di_arena *arena, di_error *err)
{
    struct di_json *input, **end = &request->child;
    struct di_json_limits limits = di_json_request_limits(list.n);
    di_status status = di_json_parse(list, &limits, arena, &input, err);
    if (status != DI_OK)
        return status;
    drop_member(request, "input");
    drop_member(request, "previous_response_id");
    input->key = DI_STR("input");
    while (*end)
        end = &(*end)->next;
    *end = input;
    request->count++;
    return DI_OK;
}

/* The members whose place is taken. */
static di_status override_members(struct di_json *request, const di_request_overrides *o, struct di_arena *arena, di_error *err)
{
    const struct {
        const char *name;
        bool taken;
    } members[] = {
        {"prompt", o->prompts},
        {"prompt_token_ids", o->prompts},
        {"suffix", o->prompts},
        {"echo", o->prompts},
        {"n", o->prompts},
        {"best_of", o->prompts},
        {"max_tokens", o->max_tokens != 0},
        {"max_completion_tokens", o->max_tokens != 0},
        {"stop", o->no_stop},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (members[i].taken)
            drop_member(request, members[i].name);
    return o->input ? replace_input(request, (struct di_str){o->input, o->input_bytes}, arena, err) : DI_OK;
}

static void override_sampling(struct di_sampling *s, const di_request_overrides *o)
{
    if (o->max_tokens)
        s->max_tokens = o->max_tokens > 0 ? o->max_tokens : INT64_MIN;
    if (o->no_stop)
        s->n_stop = 0;
    if (o->ignore_eos)
        s->ignore_eos = 1;
    if (o->logprobs && s->logprobs != 1) {
        s->logprobs = 1;
        s->top_logprobs = 0;
    }
}

/* ---------------------------------------------------------------- who shares what */

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
static uint64_t memory_tenant(uint64_t tenant, uint64_t cache)
{
    uint64_t parts[2] = {tenant, cache}, space = tenant;
    unsigned char hash[32];
    if (cache && EVP_Digest(parts, sizeof parts, hash, NULL, EVP_sha256(), NULL) == 1)
        memcpy(&space, hash, sizeof space);
    return space;
}

/* ---------------------------------------------------------------- the prompt */

static di_status refuse_unsupported(const struct di_chat *c, int32_t n_samples, di_error *err)
{
    int64_t n = n_samples ? n_samples : 1;
    if (c->n_images)
        return di_fail(err, DI_ERR_UNSUPPORTED, c->images[0]->path, "images are not supported by this version");
    if (c->document)
        return di_fail(err, DI_ERR_UNSUPPORTED, c->document, "documents are not supported by this version");
    const struct {
        const char *name;
        bool asked;
    } missing[] = {
        {"bad_words", c->sampling.n_bad_words > 0},
        {"allowed_token_ids", c->sampling.n_allowed_token_ids > 0},
        {"n", c->sampling.n > 0 && c->sampling.n != n},
        {"best_of", c->sampling.best_of > n},
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

static di_status copy_trigger(struct di_prepared *p, const int32_t *ids, size_t n, int32_t bound_id, di_error *err)
{
    p->bound_id = bound_id;
    if (!n)
        return DI_OK;
    if (!di_ids_reserve(&p->trigger, n))
        return di_fail(err, DI_ERR_MEMORY, "form.trigger_ids", "out of memory for %zu ids", n);
    memcpy(p->trigger.v, ids, n * sizeof *ids);
    p->trigger.n = n;
    return DI_OK;
}

/* The form of the answer: the caller's, or what the request asks for. */
static di_status make_form(struct di_prepared *p, const struct di_prepare_setup *setup, di_error *err)
{
    const di_form_options *o = setup->form;
    struct di_form_wish wish;
    di_status status = DI_OK;
    p->forms = setup->forms;
    p->crew = setup->crew;
    p->bound_id = -1;
    if (!o)
        return di_form_of_chat(p->forms, p->chat, &p->form, err);
    CHECK(p->chat->format.kind == DI_CONSTRAIN_NONE, err, DI_ERR_INVALID, "form", "cannot stand beside %s", p->chat->format.path);
    CHECK(!p->chat->tools_declared, err, DI_ERR_UNSUPPORTED, "form", "beside tools is not supported by this version");
    TRY(di_form_wish_of(o, &wish, err));
    TRY(copy_trigger(p, o->trigger_ids, o->n_trigger_ids, o->bound_id, err));
    TRY(di_form_make(p->forms, &wish, &p->form, err));
out:
    return status;
}

static di_status encode_prompt(struct di_prepared *p, struct di_str prompt, di_error *err)
{
    int32_t bos = p->text->controls.id[DI_CTL_BOS];
    di_status status = DI_OK;
    CHECK(prompt.n > 0, err, DI_ERR_INVALID, "prompt", "the prompt is empty");
    CHECK(di_ids_reserve(&p->prompt, 1), err, DI_ERR_MEMORY, "prompt", "out of memory");
    p->prompt.v[p->prompt.n++] = bos;
    TRY(di_tokenizer_encode(p->text->tokenizer, prompt, DI_TOKENIZER_ADDED, &p->prompt, err));
    if (p->prompt.n > 1 && p->prompt.v[1] == bos) { /* the client wrote it */
        memmove(p->prompt.v, p->prompt.v + 1, (p->prompt.n - 1) * sizeof *p->prompt.v);
        p->prompt.n--;
    }
out:
    return status;
}

static di_status read_prompt_ids(struct di_prepared *p, const struct di_json *ids, di_error *err)
{
    di_status status = DI_OK;
    CHECK(di_json_is(ids, DI_JSON_ARRAY), err, DI_ERR_INVALID, "prompt_token_ids", "must be an array of token ids, not %s",
          di_json_type_name(ids));
    CHECK(ids->count > 0, err, DI_ERR_INVALID, "prompt_token_ids", "the prompt is empty; at least one token is needed");
    CHECK(di_ids_reserve(&p->prompt, ids->count), err, DI_ERR_MEMORY, "prompt_token_ids", "out of memory for %zu ids", ids->count);
    for (const struct di_json *v = ids->child; v; v = v->next) {
        int64_t id;
        CHECK(di_json_int(v, &id) && id >= 0 && id <= INT32_MAX, err, DI_ERR_INVALID, "prompt_token_ids",
              "entry %zu must be a token id, a whole number of at least 0", p->prompt.n);
        p->prompt.v[p->prompt.n++] = (int32_t)id;
    }
out:
    return status;
}

static di_status copy_prompt(struct di_prepared *p, const int32_t *ids, size_t n, di_error *err)
{
    if (!di_ids_reserve(&p->prompt, n))
        return di_fail(err, DI_ERR_MEMORY, "prompt", "out of memory for %zu ids", n);
    if (n)
        memcpy(p->prompt.v, ids, n * sizeof *ids);
    p->prompt.n = n;
    return DI_OK;
}

static di_status take_given_prompt(struct di_prepared *p, const struct di_given_prompt *given, di_error *err)
{
    if (given->ids)
        return copy_prompt(p, given->ids, given->n_ids, err);
    if (!di_utf8_valid(given->text, NULL))
        return di_fail(err, DI_ERR_INVALID, "prompt", "is not valid UTF-8");
    return encode_prompt(p, given->text, err);
}

/* Turns that the model gave, put back into the prompt id by id. */
struct turn_finder {
    struct di_prepared *p;
    struct di_turn_prefix prefix;
};

static bool find_turn(void *ctx, const struct di_prompt_turn *turn, struct di_ids *ids)
{
    struct turn_finder *r = ctx;
    struct di_prepared *p = r->p;
    uint8_t prefix[32];
    return di_turn_prefix_hash(&r->prefix, ids->v, ids->n, prefix) &&
           di_turn_memory_find(p->memory, p->memory_tenant, prefix, turn->message, p->chat->protocol, turn->reasons, ids);
}

/* Will later prompts of this conversation show what it reasons (spec/encoding.md §2.5)? If not, no turn that reasoned can be recalled. */
static bool keeps_reasoning(const struct di_chat *chat)
{
    return chat->reasoning_history == DI_REASONING_AUTO ? chat->tools_declared : chat->reasoning_history == DI_REASONING_KEEP;
}

/* Where the turn begins that this answer will be; a prefix of the client's is no turn of the model's. */
static bool find_start(struct di_prepared *p, struct turn_finder *r)
{
    di_answer_start start = p->chat->start;
    bool fresh = start == DI_STARTS_REASONING || start == DI_STARTS_CONTENT || start == DI_STARTS_TOOL_CALLS;
    size_t n = p->prompt.n;
    while (fresh && n && p->prompt.v[n - 1] != p->text->controls.id[DI_CTL_ASSISTANT])
        n--;
    p->turn_at = n;
    return fresh && n >= r->prefix.done && (!p->chat->thinking || keeps_reasoning(p->chat)) &&
           di_turn_prefix_hash(&r->prefix, p->prompt.v, n, p->turn_prefix);
}

static di_status render_prompt(struct di_prepared *p, di_error *err)
{
    struct turn_finder r = {.p = p};
    struct di_prompt_recall recall = {find_turn, &r};
    di_status status =
        di_prompt_encode(&p->chat->prompt, p->text->tokenizer, &p->text->controls, p->memory ? &recall : NULL, &p->prompt, err);
    if (status == DI_OK && p->memory && !find_start(p, &r))
        p->memory = NULL;
    di_turn_prefix_fini(&r.prefix);
    return status;
}

/* Absent and null are the same. */
static const struct di_json *member(const struct di_json *request, const char *key)
{
    const struct di_json *v = di_json_get(request, key);
    return di_json_is(v, DI_JSON_NULL) ? NULL : v;
}

static di_status make_prompt(struct di_prepared *p, const struct di_prepare_setup *setup, const struct di_json *request, di_error *err)
{
    if (p->chat->protocol != DI_PROTOCOL_COMPLETION)
        return render_prompt(p, err);
    if (setup->prompt.ids || setup->prompt.text.p)
        return take_given_prompt(p, &setup->prompt, err);
    const struct di_json *ids = member(request, "prompt_token_ids"), *text = member(request, "prompt");
    if (ids && text)
        return di_fail(err, DI_ERR_INVALID, "prompt", "give either prompt or prompt_token_ids, not both");
    if (ids)
        return read_prompt_ids(p, ids, err);
    if (!di_json_is(text, DI_JSON_STRING))
        return di_fail(err, DI_ERR_INVALID, "prompt", "must be a string, not %s", di_json_type_name(text));
    return encode_prompt(p, text->text, err);
}

/* Without the room that it had to grow. */
static void trim_prompt(struct di_prepared *p)
{
    int32_t *fit = p->prompt.n ? di_realloc(p->prompt.v, p->prompt.n * sizeof *fit) : NULL;
    if (fit) {
        p->prompt.v = fit;
        p->prompt.cap = p->prompt.n;
    }
}

/* ---------------------------------------------------------------- settings */

static double or_default(double x, double def)
{
    return isnan(x) ? def : x;
}
static int64_t int_or(int64_t x, int64_t def)
{
    return x == INT64_MIN ? def : x;
}

/* Sampling of the engine from the request's fields; what is absent comes from the defaults, then from the rules. */
static di_status make_sampling(struct di_prepared *p, const di_request_defaults *def, di_error *err)
{
    const struct di_sampling *s = &p->chat->sampling;
    struct di_sampling_params *params = &p->sampling;
    *params = di_sampling_params_default();
    params->temperature = isnan(s->temperature) && !isnan(def->temperature) ? def->temperature : p->chat->temperature;
    params->top_p = isnan(s->top_p) && !isnan(def->top_p) ? def->top_p : p->chat->top_p;
    params->min_p = or_default(s->min_p, def->min_p);
    params->top_k = int_or(s->top_k, def->top_k);
    params->seed = s->has_seed ? s->seed : def->seed;
    params->repetition_penalty = or_default(s->repetition_penalty, params->repetition_penalty);
    params->presence_penalty = or_default(s->presence_penalty, params->presence_penalty);
    params->frequency_penalty = or_default(s->frequency_penalty, params->frequency_penalty);
    params->min_tokens = int_or(s->min_tokens, 0);
    params->logprobs = s->logprobs == 1;
    params->top_logprobs = params->logprobs ? int_or(s->top_logprobs, 0) : 0;
    params->n_end_ids = 1 + s->n_stop_token_ids;
    params->n_bias = s->n_logit_bias;
    p->end_ids = di_malloc(params->n_end_ids * sizeof *p->end_ids + params->n_bias * sizeof(struct di_logit_bias));
    if (!p->end_ids)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    p->end_ids[0] = p->text->controls.id[DI_CTL_EOS];
    for (size_t i = 0; i < s->n_stop_token_ids; i++)
        p->end_ids[1 + i] = s->stop_token_ids[i];
    struct di_logit_bias *bias = (struct di_logit_bias *)(void *)(p->end_ids + params->n_end_ids);
    for (size_t i = 0; i < params->n_bias; i++)
        bias[i] = (struct di_logit_bias){s->logit_bias[i].id, s->logit_bias[i].value};
    params->end_ids = p->end_ids;
    params->bias = bias;
    return DI_OK;
}

/* ---------------------------------------------------------------- life */

static di_status create_empty(struct di_prepared **out, di_error *err)
{
    *out = di_calloc(1, sizeof **out);
    if (!*out)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a request");
    atomic_init(&(*out)->holders, 1);
    return DI_OK;
}

static di_status refuse_unknown(enum di_protocol protocol, const struct di_json *request, di_error *err)
{
    for (const struct di_json *m = request->child; m; m = m->next)
        if (!di_chat_has_field(protocol, m->key))
            return di_path_fail(err, DI_MEMBER(NULL, m->key), "means nothing in a %s request",
                                protocol == DI_PROTOCOL_CHAT ? "chat" : "completion");
    return DI_OK;
}

static di_status read_request(struct di_prepared *p, const struct di_prepare_setup *setup, enum di_protocol protocol,
                              struct di_json *request, struct di_arena *arena, di_error *err)
{
    const di_request_overrides *o = setup->overrides;
    di_status status = DI_OK;
    CHECK(di_json_is(request, DI_JSON_OBJECT), err, DI_ERR_INVALID, "", "a request must be an object, not %s", di_json_type_name(request));
    if (o)
        TRY(override_members(request, o, arena, err));
    if (setup->strict)
        TRY(refuse_unknown(protocol, request, err));
    TRY(di_chat_create(protocol, request, &setup->options, &p->chat, err));
    if (o)
        override_sampling(&p->chat->sampling, o);
    p->takes_prompts = o && o->prompts;
    p->memory = protocol == DI_PROTOCOL_COMPLETION ? NULL : setup->memory;
    p->space = cache_space(p->chat->cache_salt);
    p->memory_tenant = memory_tenant(setup->tenant, p->space);
    TRY(refuse_unsupported(p->chat, setup->n_samples, err));
    if (!p->takes_prompts)
        TRY(make_prompt(p, setup, request, err));
    TRY(make_form(p, setup, err)); /* last: it may cost more than all else */
    p->max_tokens = p->chat->sampling.max_tokens;
    if (p->max_tokens == INT64_MIN && setup->defaults.max_tokens)
        p->max_tokens = setup->defaults.max_tokens;
    TRY(make_sampling(p, &setup->defaults, err));
    TRY(di_chat_settle(p->chat, err));
    trim_prompt(p);
out:
    return status;
}

di_status di_prepared_create(const struct di_prepare_setup *setup, enum di_protocol protocol, struct di_str json, struct di_prepared **out,
                             di_error *err)
{
    di_status status = DI_OK;
    struct di_prepared *p = NULL;
    struct di_json nothing = {.type = DI_JSON_OBJECT}, *request = &nothing;
    struct di_json_limits limits = di_json_request_limits(json.n);
    struct di_arena arena;
    *out = NULL;
    di_arena_init(&arena);
    TRY(create_empty(&p, err));
    p->text = setup->text;
    p->tenant = setup->tenant;
    p->n_samples = setup->n_samples;
    if (json.p)
        TRY(di_json_parse(json, &limits, &arena, &request, err));
    TRY(read_request(p, setup, protocol, request, &arena, err));
    *out = p;
    p = NULL;
out:
    di_arena_fini(&arena);
    di_prepared_put(p);
    return status;
}

/* What both forms of another one share with `of`. */
static di_status create_on(struct di_prepared *of, int32_t n_samples, struct di_prepared **out, di_error *err)
{
    di_status status = create_empty(out, err);
    if (status != DI_OK)
        return status;
    struct di_prepared *p = *out;
    p->base = di_prepared_hold(of);
    p->form = di_form_hold(&of->form);
    p->forms = of->forms;
    p->crew = of->crew;
    p->text = of->text;
    p->chat = of->chat;
    p->end_ids = of->end_ids;
    p->sampling = of->sampling;
    p->max_tokens = of->max_tokens;
    p->tenant = of->tenant;
    p->space = of->space;
    p->memory_tenant = of->memory_tenant;
    p->n_samples = n_samples;
    return DI_OK;
}

di_status di_prepared_with_prompt(struct di_prepared *of, const struct di_given_prompt *prompt, int64_t max_tokens, int32_t n_samples,
                                  struct di_prepared **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_prepared *p = NULL;
    *out = NULL;
    CHECK(of->takes_prompts, err, DI_ERR_INVALID, "prepared", "has its prompt; it takes no other one");
    TRY(create_on(of, n_samples, &p, err));
    TRY(copy_trigger(p, of->trigger.v, of->trigger.n, of->bound_id, err));
    if (max_tokens)
        p->max_tokens = max_tokens;
    TRY(take_given_prompt(p, prompt, err));
    trim_prompt(p);
    *out = p;
    p = NULL;
out:
    di_prepared_put(p);
    return status;
}

di_status di_prepared_branch(struct di_prepared *of, const di_sampling_options *sampling, struct di_prepared **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_prepared *p = NULL;
    struct di_chat *chat = NULL;
    di_request_defaults none;
    *out = NULL;
    di_request_defaults_init(&none, sizeof none);
    TRY(di_chat_branch(of->chat, sampling, &chat, err));
    TRY(create_empty(&p, err));
    p->text = of->text;
    p->chat = chat;
    chat = NULL;
    p->form = di_form_hold(&of->form);
    p->forms = of->forms;
    p->crew = of->crew;
    p->tenant = of->tenant;
    p->space = of->space;
    p->max_tokens = p->chat->sampling.max_tokens;
    TRY(copy_trigger(p, of->trigger.v, of->trigger.n, of->bound_id, err));
    TRY(make_sampling(p, &none, err));
    TRY(di_chat_settle(p->chat, err));
    *out = p;
    p = NULL;
out:
    di_chat_destroy(chat);
    di_prepared_put(p);
    return status;
}

size_t di_prepared_held(const struct di_prepared *p)
{
    size_t bytes = sizeof *p + p->prompt.cap * sizeof *p->prompt.v;
    if (!p->base)
        bytes += sizeof *p->chat + di_arena_bytes(&p->chat->arena) + p->sampling.n_end_ids * sizeof *p->end_ids +
                 p->sampling.n_bias * sizeof *p->sampling.bias;
    return bytes;
}

struct di_prepared *di_prepared_hold(struct di_prepared *p)
{
    atomic_fetch_add(&p->holders, 1);
    return p;
}

void di_prepared_put(struct di_prepared *p)
{
    while (p && atomic_fetch_sub(&p->holders, 1) == 1) {
        struct di_prepared *base = p->base;
        if (!base) {
            di_chat_destroy(p->chat);
            di_free(p->end_ids);
        }
        di_form_fini(&p->form);
        di_ids_fini(&p->trigger);
        di_ids_fini(&p->prompt);
        di_free(p);
        p = base;
    }
}
