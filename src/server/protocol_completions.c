/* Completions of raw prompts (spec/encoding.md §4.4): several prompts, several samples of each, the middle between a prompt and a suffix.
 * */
#include "base/utf8.h"
#include "server/protocol_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* The old log-probability object, four lists side by side. */
struct tokens {
    struct di_buf text, logprobs, top, offsets;
    size_t n;
    size_t chars; /* where the next token begins, in characters of the text */
};

struct own {
    bool bare; /* texts without the begin-of-text id that the engine puts in front */
    bool echo;
    bool score;            /* echo with log-probabilities: the prompt behind its first token is the forced beginning of the answer */
    int64_t max_tokens;    /* then: of what is really new, -1 = not said */
    size_t n_shown;        /* of the samples of each prompt */
    struct tokens *tokens; /* [n_answers] */
    struct di_buf *echoes; /* [n_prompts], with echo */
};

/* ---------------------------------------------------------------- request */

/* Prompt number k, as ids. */
static di_status take_ids(const struct di_exchange *x, const struct di_json *ids, size_t k, di_error *err)
{
    struct di_exchange_prompt *p = &x->prompts[k];
    char where[40];
    const char *key = di_field(x->json, "prompt") ? "prompt" : "prompt_token_ids";
    bool list = di_field(x->json, key) != ids;
    snprintf(where, sizeof where, list ? "%s[%zu]" : "%s", key, k);
    p->ids = di_calloc(ids->count + 1, sizeof *p->ids);
    if (!p->ids)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a prompt");
    for (const struct di_json *v = ids->child; v; v = v->next) {
        int64_t id;
        if (!di_json_int(v, &id) || id < 0 || id > INT32_MAX)
            return di_fail(err, DI_ERR_INVALID, where, "must hold token ids only, whole numbers of at least 0, but entry %zu is none",
                           p->n_ids);
        p->ids[p->n_ids++] = (int32_t)id;
    }
    return DI_OK;
}

static di_status take_text(const struct di_exchange *x, struct di_exchange_prompt *p, struct di_str prompt, di_error *err)
{
    const struct di_json *suffix = di_field(x->json, "suffix");
    if (suffix)
        di_buf_adds(&p->text, "<｜fim▁begin｜>");
    di_buf_addv(&p->text, prompt);
    if (suffix) {
        di_buf_adds(&p->text, "<｜fim▁hole｜>");
        di_buf_addv(&p->text, suffix->text);
        di_buf_adds(&p->text, "<｜fim▁end｜>");
    }
    return di_buf_ok(&p->text, err);
}

static di_status take_prompt(struct di_exchange *x, size_t k, const struct di_json *prompt, di_error *err)
{
    struct own *own = x->own;
    di_status status = DI_OK;
    if (prompt->type != DI_JSON_STRING)
        return take_ids(x, prompt, k, err);
    TRY(take_text(x, &x->prompts[k], prompt->text, err));
    if (own->echo && !own->score)
        di_buf_addv(&own->echoes[k], prompt->text);
    TRY(di_buf_ok(&own->echoes[k], err));
    x->kept += own->echoes[k].cap;
out:
    return status;
}

/* As the engine encodes a text. */
static di_status encode_text(const struct di_exchange *x, struct di_exchange_prompt *p, di_error *err)
{
    di_status status = DI_OK;
    di_prepared *prepared = NULL;
    di_submission s;
    di_submission_init(&s, sizeof s);
    s.text = p->text.p ? p->text.p : "";
    s.text_bytes = p->text.n;
    TRY(di_engine_prepare(x->setup->engine, &s, &prepared, err));
    const int32_t *ids = di_prepared_prompt(prepared, &p->n_ids);
    p->ids = di_malloc(p->n_ids * sizeof *ids);
    CHECK(p->ids, err, DI_ERR_MEMORY, "", "out of memory for a prompt");
    memcpy(p->ids, ids, p->n_ids * sizeof *ids);
out:
    di_prepared_free(prepared);
    return status;
}

/* What echo repeats of a list of ids. */
static di_status echo_ids(struct di_exchange *x, struct di_buf *b, const int32_t *ids, size_t n, di_error *err)
{
    di_status status = DI_OK;
    size_t bytes;
    TRY(di_engine_decode(x->setup->engine, ids, n, NULL, 0, &bytes, err));
    CHECK(di_buf_reserve(b, bytes + 1), err, DI_ERR_MEMORY, "", "out of memory for a prompt");
    TRY(di_engine_decode(x->setup->engine, ids, n, b->p, bytes, &bytes, err));
    b->n = bytes;
    x->kept += b->cap;
out:
    return status;
}

/* Scoring: the prompt's first token is the prompt, the others are forced, and their log-probabilities come as those of an answer. */
static di_status force_prompt(struct di_exchange *x, size_t k, di_error *err)
{
    struct own *own = x->own;
    struct di_exchange_prompt *p = &x->prompts[k];
    di_status status = DI_OK;
    di_model_info info;
    TRY(di_engine_info(x->setup->engine, &info, sizeof info, err));
    if (!p->ids)
        TRY(encode_text(x, p, err));
    int64_t n = (int64_t)p->n_ids, left = info.context - n, wanted = own->max_tokens >= 0 ? own->max_tokens : left < 8192 ? left : 8192;
    CHECK(n > 1 || wanted > 0, err, DI_ERR_INVALID, "prompt", "has one token only: there is nothing to score");
    if (wanted > left)
        TRY(di_fail_context(err, "prompt", info.context, n, wanted));
    if (p->ids[0] != info.bos_id) /* its text; what is forced comes as text of the answer */
        TRY(echo_ids(x, &own->echoes[k], p->ids, 1, err));
    p->max_tokens = n - 1 + wanted;
    x->forced[k] = (struct di_forced){p->ids, p->n_ids, p->ids[0]};
    p->ids = NULL;
out:
    return status;
}

static di_status prepare_prompt(struct di_exchange *x, size_t k, di_error *err)
{
    struct own *own = x->own;
    struct di_exchange_prompt *p = &x->prompts[k];
    di_status status = DI_OK;
    bool list = p->ids != NULL;
    if (own->bare && !list)
        TRY(di_exchange_encode(x, di_buf_str(&p->text), &p->ids, &p->n_ids, err));
    CHECK(!p->ids || p->n_ids, err, DI_ERR_INVALID, "prompt_token_ids", "the prompt is empty; at least one token is needed");
    if (own->score)
        TRY(force_prompt(x, k, err));
    else if (own->echo && list)
        TRY(echo_ids(x, &own->echoes[k], p->ids, p->n_ids, err));
out:
    return status;
}

/* The prompts: *first and its siblings, *n of them. A list of numbers is one prompt. */
static di_status find_prompts(const struct di_json *request, const struct di_json **first, size_t *n, di_error *err)
{
    const struct di_json *prompt = di_field(request, "prompt"), *suffix = di_field(request, "suffix");
    di_status status = DI_OK;
    if (!prompt)
        prompt = di_field(request, "prompt_token_ids");
    else
        CHECK(!di_field(request, "prompt_token_ids"), err, DI_ERR_INVALID, "prompt", "give either prompt or prompt_token_ids, not both");
    CHECK(prompt, err, DI_ERR_INVALID, "prompt", "is missing");
    bool list = prompt->type == DI_JSON_ARRAY && prompt->child && prompt->child->type != DI_JSON_NUMBER;
    CHECK(prompt->type == DI_JSON_STRING || prompt->child, err, DI_ERR_INVALID, "prompt",
          "must be a string, a list of strings, a list of token ids or a list of such lists, and not empty");
    *first = list ? prompt->child : prompt;
    *n = list ? prompt->count : 1;
    for (const struct di_json *v = *first; v; v = list ? v->next : NULL) {
        CHECK(v->type == DI_JSON_STRING || v->type == DI_JSON_ARRAY, err, DI_ERR_INVALID, "prompt", "has an entry that is %s",
              di_json_type_name(v));
        CHECK(!suffix || v->type == DI_JSON_STRING, err, DI_ERR_INVALID, "suffix", "needs a prompt that is text");
    }
    CHECK(!suffix || suffix->type == DI_JSON_STRING, err, DI_ERR_INVALID, "suffix", "must be a string, not %s", di_json_type_name(suffix));
out:
    return status;
}

static di_status read_counts(struct di_exchange *x, size_t *samples, di_error *err)
{
    struct own *own = x->own;
    di_status status = DI_OK;
    int64_t n = di_field_int(x->json, "n", 1), best = di_field_int(x->json, "best_of", n);
    CHECK(n >= 1 && n <= 128 && (!di_field(x->json, "n") || di_json_int(di_field(x->json, "n"), &n)), err, DI_ERR_INVALID, "n",
          "must be a whole number from 1 to 128");
    CHECK(best >= n && best <= 128 && (!di_field(x->json, "best_of") || di_json_int(di_field(x->json, "best_of"), &best)), err,
          DI_ERR_INVALID, "best_of", "must be a whole number of at least n and at most 128");
    CHECK(best == n || !x->stream, err, DI_ERR_INVALID, "best_of", "cannot be more than n in a stream");
    own->n_shown = (size_t)n;
    *samples = (size_t)best;
out:
    return status;
}

static di_status read_options(struct di_exchange *x, di_error *err)
{
    static const char *const forms[] = {"structured_outputs", "guided_json",     "guided_json_object", "guided_regex", "guided_choice",
                                        "guided_grammar",     "response_format", "json_schema",        "regex",        "ebnf"};
    struct own *own = x->own;
    di_status status = DI_OK;
    const struct di_json *options = di_field(x->json, "stream_options"), *logprobs = di_field(x->json, "logprobs");
    CHECK(!options || x->stream, err, DI_ERR_INVALID, "stream_options", "needs \"stream\": true");
    x->include_usage = di_field_true(options, "include_usage");
    x->continuous_usage = di_field_true(options, "continuous_usage_stats");
    x->logprobs = di_json_is(logprobs, DI_JSON_NUMBER) || di_field_true(x->json, "logprobs");
    const struct di_json *special = di_field(x->json, "add_special_tokens");
    own->bare = di_json_is(special, DI_JSON_BOOL) && !special->boolean;
    TRY(di_field_switch(x->json, "echo", false, &own->echo, err));
    own->score = own->echo && x->logprobs;
    own->max_tokens = di_field_int(x->json, "max_completion_tokens", di_field_int(x->json, "max_tokens", -1));
    CHECK(!own->score || !x->stream, err, DI_ERR_INVALID, "echo", "together with logprobs cannot be streamed");
    CHECK(!own->score || own->max_tokens == 0 || !di_field(x->json, "stop"), err, DI_ERR_INVALID, "stop",
          "cannot be used together with echo and logprobs: it would act on the prompt");
    for (size_t i = 0; i < sizeof forms / sizeof *forms && own->score; i++)
        CHECK(!di_field(x->json, forms[i]), err, DI_ERR_INVALID, forms[i],
              "cannot be used together with echo and logprobs: the prompt would have to be of that form");
    CHECK(!own->echo || !di_field(x->json, "suffix"), err, DI_ERR_INVALID, "echo", "cannot be used together with suffix");
out:
    return status;
}

static di_status read_completions(struct di_exchange *x, di_error *err)
{
    di_status status = DI_OK;
    const struct di_json *prompt = NULL;
    size_t n = 0, samples = 0;
    struct own *own = x->own = di_arena_alloc(&x->arena, sizeof *own);
    CHECK(own, err, DI_ERR_MEMORY, "", "out of memory for a request");
    memset(own, 0, sizeof *own);
    TRY(read_counts(x, &samples, err));
    TRY(read_options(x, err));
    TRY(find_prompts(x->json, &prompt, &n, err));
    TRY(di_exchange_make_answers(x, n, samples, err));
    own->tokens = di_calloc(x->n_answers, sizeof *own->tokens);
    own->echoes = di_calloc(n, sizeof *own->echoes);
    if (own->score)
        x->forced = di_calloc(n, sizeof *x->forced);
    x->prompts = di_calloc(n, sizeof *x->prompts);
    CHECK(own->tokens && own->echoes && x->prompts && (x->forced || !own->score), err, DI_ERR_MEMORY, "", "out of memory for a request");
    x->overrides.prompts = 1;
    x->overrides.logprobs = samples > own->n_shown; /* the best ones are those with the best log-probabilities */
    if (own->score) {
        x->overrides.max_tokens = -1; /* see force_prompt */
        x->overrides.no_stop = 1;
        x->overrides.ignore_eos = own->max_tokens == 0;
    }
    for (size_t i = 0; i < n; i++, prompt = prompt->next)
        TRY(take_prompt(x, i, prompt, err));
out:
    return status;
}

static void free_completions(struct di_exchange *x)
{
    struct own *own = x->own;
    for (size_t i = 0; own && own->tokens && i < x->n_answers; i++) {
        di_buf_fini(&own->tokens[i].text);
        di_buf_fini(&own->tokens[i].logprobs);
        di_buf_fini(&own->tokens[i].top);
        di_buf_fini(&own->tokens[i].offsets);
    }
    for (size_t i = 0; own && own->echoes && i < x->n_prompts; i++)
        di_buf_fini(&own->echoes[i]);
    if (own) {
        di_free(own->tokens);
        di_free(own->echoes);
    }
}

/* ---------------------------------------------------------------- answers */

static void add_pair(struct di_exchange *x, struct tokens *t, int32_t id, float logprob)
{
    struct di_str bytes;
    char room[256];
    di_write_token(&t->top, x->setup->engine, id, &bytes, room);
    di_buf_addc(&t->top, ':');
    di_write_chance(&t->top, logprob);
}

/* The first token of a scored prompt has nothing before it that could predict it. */
static void add_first(struct di_exchange *x, struct tokens *t, int32_t id)
{
    di_model_info info;
    struct di_str bytes;
    char room[256];
    di_write_token(&t->text, x->setup->engine, id, &bytes, room);
    di_buf_adds(&t->logprobs, "null");
    di_buf_adds(&t->top, "null");
    di_buf_addc(&t->offsets, '0');
    t->n++;
    bool begin = di_engine_info(x->setup->engine, &info, sizeof info, NULL) == DI_OK && id == info.bos_id;
    t->chars += begin ? 0 : di_utf8_count(bytes); /* a begin-of-text id leaves no text */
}

/* What was forced is the prompt, in the account too. */
static void count_scored(struct di_exchange *x, struct di_answer *a)
{
    const struct di_forced *f = &x->forced[(size_t)(a - x->answers) / x->n_samples];
    a->prompt_tokens = (int64_t)f->n;
    a->completion_tokens -= (int64_t)f->n - 1;
}

static bool add_completions_record(struct di_exchange *x, struct di_answer *a, const di_output *o)
{
    struct own *own = x->own;
    struct tokens *t = &own->tokens[a - x->answers];
    struct di_str bytes;
    char room[256];
    bool sampled_is_top = false;
    if (o->kind == DI_OUTPUT_FINISHED && x->forced)
        count_scored(x, a);
    if (o->kind == DI_OUTPUT_STARTED && x->forced)
        add_first(x, t, x->forced[(size_t)(a - x->answers) / x->n_samples].first);
    if (o->kind != DI_OUTPUT_TOKEN || !x->logprobs)
        return true;
    const char *comma = t->n++ ? "," : "";
    di_buf_adds(&t->text, comma);
    di_write_token(&t->text, x->setup->engine, o->token, &bytes, room);
    di_buf_adds(&t->logprobs, comma);
    di_write_chance(&t->logprobs, o->logprob);
    di_buf_addf(&t->offsets, "%s%zu", comma, t->chars);
    t->chars += di_utf8_count(bytes);
    di_buf_addf(&t->top, "%s{", comma);
    for (uint32_t i = 0; i < o->n_alternatives; i++) {
        di_buf_adds(&t->top, i ? "," : "");
        add_pair(x, t, o->alternatives[i].id, o->alternatives[i].logprob);
        sampled_is_top = sampled_is_top || o->alternatives[i].id == o->token;
    }
    if (!sampled_is_top) {
        di_buf_adds(&t->top, o->n_alternatives ? "," : "");
        add_pair(x, t, o->token, o->logprob);
    }
    di_buf_addc(&t->top, '}');
    return !t->text.failed && !t->logprobs.failed && !t->offsets.failed && !t->top.failed;
}

static void write_list(struct di_buf *b, const char *key, struct di_buf *list, bool first)
{
    di_buf_addf(b, "%s\"%s\":[", first ? "" : ",", key);
    di_buf_addv(b, di_buf_str(list));
    di_buf_addc(b, ']');
    b->failed = b->failed || list->failed;
    di_buf_clear(list);
}

/* What was not written yet. */
static void write_logprobs(struct di_buf *b, struct di_exchange *x, const struct di_answer *a)
{
    struct own *own = x->own;
    struct tokens *t = &own->tokens[a - x->answers];
    di_write_key(b, "logprobs");
    if (!x->logprobs || (x->stream && t->n == 0)) {
        di_buf_adds(b, "null");
        return;
    }
    di_buf_addc(b, '{');
    write_list(b, "tokens", &t->text, true);
    write_list(b, "token_logprobs", &t->logprobs, false);
    write_list(b, "top_logprobs", &t->top, false);
    write_list(b, "text_offset", &t->offsets, false);
    di_buf_addc(b, '}');
    t->n = 0;
}

static void write_finish(struct di_buf *b, const struct di_exchange *x, const struct di_answer *a)
{
    di_buf_addf(b, ",\"finish_reason\":\"%s\"", di_chat_finish(a));
    di_write_stop_reason(b, x, a);
}

static void write_chunk(struct di_exchange *x, struct di_answer *a, struct di_str text, bool last, struct di_buf *out)
{
    di_buf_adds(out, "data: ");
    di_write_openai_head(out, x, "text_completion");
    di_buf_addf(out, "{\"index\":%zu,\"text\":", (size_t)(a - x->answers));
    di_json_write_string(out, text);
    write_logprobs(out, x, a);
    if (last)
        write_finish(out, x, a);
    else
        di_buf_adds(out, ",\"finish_reason\":null");
    di_buf_adds(out, "}]");
    di_write_chunk_usage(out, x, last);
    di_buf_adds(out, "}\n\n");
}

static struct di_str echo_of(const struct di_exchange *x, const struct di_answer *a)
{
    const struct own *own = x->own;
    return own->echo ? di_buf_str(&own->echoes[(size_t)(a - x->answers) / x->n_samples]) : (struct di_str){0};
}

static void write_completions_record(struct di_exchange *x, struct di_answer *a, const di_output *o, struct di_buf *out)
{
    struct di_str text = {o->text, o->text_bytes};
    if (o->kind == DI_OUTPUT_STARTED && echo_of(x, a).n)
        write_chunk(x, a, echo_of(x, a), false, out);
    else if (o->kind == DI_OUTPUT_TEXT)
        write_chunk(x, a, text, false, out);
}

static void end_completions_answer(struct di_exchange *x, struct di_answer *a, struct di_buf *out)
{
    write_chunk(x, a, DI_STR(""), true, out);
}

static void end_completions(struct di_exchange *x, struct di_buf *out)
{
    di_write_openai_end(out, x, "text_completion");
}

static double mean_logprob(const struct di_answer *a)
{
    return a->completion_tokens ? a->logprob_sum / (double)a->completion_tokens : 0;
}

/* By log-probability per token, falling; of equal ones the earlier. */
static int compare_answers(const void *p, const void *q)
{
    const struct di_answer *a = *(const struct di_answer *const *)p, *b = *(const struct di_answer *const *)q;
    double x = mean_logprob(a), y = mean_logprob(b);
    if (x != y)
        return x > y ? -1 : 1;
    return a < b ? -1 : 1;
}

static void write_completions_body(struct di_exchange *x, struct di_buf *out)
{
    struct own *own = x->own;
    struct di_answer *order[128];
    size_t index = 0;
    struct di_str text;
    di_write_openai_head(out, x, "text_completion");
    for (size_t i = 0; i < x->n_prompts; i++) {
        for (size_t k = 0; k < x->n_samples; k++)
            order[k] = &x->answers[i * x->n_samples + k];
        if (own->n_shown < x->n_samples)
            qsort(order, x->n_samples, sizeof *order, compare_answers);
        for (size_t k = 0; k < own->n_shown; k++, index++) {
            struct di_answer *a = order[k];
            struct di_buf whole = {0};
            di_buf_addf(out, "%s{\"index\":%zu,\"text\":", index ? "," : "", index);
            di_buf_addv(&whole, echo_of(x, a));
            di_buf_addv(&whole, di_buf_str(&a->content));
            text = di_buf_str(&whole);
            di_json_write_string(out, text);
            out->failed = out->failed || whole.failed;
            di_buf_fini(&whole);
            write_logprobs(out, x, a);
            write_finish(out, x, a);
            di_buf_addc(out, '}');
        }
    }
    di_buf_adds(out, "],\"usage\":");
    di_write_usage(out, di_exchange_usage(x));
    di_buf_addc(out, '}');
}

const struct di_dialect_ops di_completions_ops = {
    .id_prefix = "cmpl-",
    .read = read_completions,
    .prepare = prepare_prompt,
    .free = free_completions,
    .each = add_completions_record,
    .record = write_completions_record,
    .answer_end = end_completions_answer,
    .end = end_completions,
    .error_event = di_openai_error_event,
    .body = write_completions_body,
};
