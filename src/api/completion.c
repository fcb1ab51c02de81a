#include "api/completion.h"

#include "base/entropy.h"

/* ---------------------------------------------------------------- answers of one request */

/* The id of the call that has just begun. */
static void name_call(struct di_completion *c)
{
    unsigned char random[DI_CALL_ID_RANDOM];
    if (c->message.failed)
        return;
    if (!di_entropy(NULL, random, sizeof random)) {
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

static void take_event(void *arg, const struct di_parse_event *event)
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
        .json_mode = chat->json_mode && chat->protocol == DI_PROTOCOL_CHAT && !c->prepared->form.grammar,
        .keep_newlines = c->prepared->form.grammar && !c->prepared->form.json,
        .hide_control = chat->sampling.skip_special_tokens != 0,
        .include_stop = chat->sampling.include_stop_str_in_output == 1,
        .offered = may_call,
        .refuse_not_offered = chat->forced,
        .stop = chat->sampling.stop,
        .n_stop = chat->sampling.n_stop,
    };
    return di_parser_create(&s, take_event, c, &c->parser, err);
}

static bool begins_reasoning(const struct di_chat *chat)
{
    return chat->start == DI_STARTS_REASONING || chat->start == DI_STARTS_REASONING_CONTINUED;
}

/* Who says what may follow, if the answer has a form. */
static di_status make_follower(struct di_completion *c, di_error *err)
{
    const struct di_prepared *p = c->prepared;
    const int32_t *controls = c->text->controls.id;
    bool reasons = begins_reasoning(c->chat) && !p->trigger.n && !p->form.opens;
    struct di_follower_setup setup = {.crew = p->crew,
                                      .forms = p->forms,
                                      .form = &p->form,
                                      .end_ids = p->sampling.end_ids,
                                      .n_end_ids = p->sampling.n_end_ids,
                                      .ignore_end = c->chat->sampling.ignore_eos == 1,
                                      .min_tokens = p->sampling.min_tokens,
                                      .mark_id = controls[DI_CTL_DSML],
                                      .trigger = p->trigger.v,
                                      .n_trigger = p->trigger.n,
                                      .bound_id = p->bound_id,
                                      .may_end_before = !reasons};
    if (!p->form.grammar)
        return DI_OK;
    if (reasons || p->form.opens) {
        setup.trigger = &controls[reasons ? DI_CTL_THINK_END : DI_CTL_DSML];
        setup.n_trigger = 1;
    }
    return di_follower_create(&setup, &c->follower, err);
}

/* The limit of the reasoning: `</think>` comes after so many tokens unless it or a call came before (spec/encoding.md §4.2,
 * thinking_token_budget). Without tools the mark of a call is text and ends nothing. */
static void make_cap(struct di_completion *c)
{
    const struct di_chat *chat = c->chat;
    int64_t budget = chat->sampling.thinking_token_budget;
    int32_t end = c->text->controls.id[DI_CTL_THINK_END];
    if (begins_reasoning(chat) && budget != INT64_MIN)
        c->cap = (struct di_cap){budget, {end, chat->tools_declared ? c->text->controls.id[DI_CTL_DSML] : end}};
}

di_status di_completion_init(struct di_completion *c, struct di_prepared *p, int64_t context, bool branch, di_error *err)
{
    di_status status = DI_OK;
    c->prepared = di_prepared_hold(p);
    c->chat = p->chat;
    c->text = p->text;
    if (!branch) {
        c->prompt = p->prompt;
        c->memory = p->memory;
        c->begins_at = p->prompt.n;
    }
    c->facts = (struct di_request_facts){.queue_ns = -1, .first_token_ns = -1, .total_ns = -1, .miss_at = -1};
    c->cap.at = -1;
    TRY(di_chat_max_tokens(c->chat, p->max_tokens, (int64_t)c->prompt.n, context, &c->max_tokens, err));
    TRY(make_parser(c, err));
    TRY(make_follower(c, err));
    make_cap(c);
out:
    return status;
}

static bool is_end_id(const struct di_completion *c, int32_t id)
{
    const struct di_prepared *p = c->prepared;
    for (size_t i = 0; i < p->sampling.n_end_ids; i++)
        if (p->end_ids[i] == id)
            return true;
    return false;
}

/* The parser gets what the branch begins with, so that it stands where that of `from` stood. */
static di_status feed_silently(struct di_completion *c, const int32_t *ids, size_t n, di_error *err)
{
    di_status status = DI_OK;
    c->muted = true;
    for (size_t i = 0; i < n && status == DI_OK; i++)
        if (!is_end_id(c, ids[i]))
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
    c->begins_at = from->begins_at < (size_t)at ? from->begins_at : (size_t)at;
    if (left)
        c->max_tokens = from->max_tokens - (int64_t)of_answer;
    else
        TRY(di_chat_max_tokens(c->chat, c->prepared->max_tokens, at, context, &c->max_tokens, err));
    TRY(feed_silently(c, from->ids.v, of_answer, err));
out:
    return status;
}

void di_completion_fini(struct di_completion *c)
{
    di_follower_destroy(c->follower);
    di_parser_destroy(c->parser);
    di_message_fini(&c->message);
    di_ids_fini(&c->ids);
    if (c->prepared && c->prompt.v != c->prepared->prompt.v)
        di_ids_fini(&c->prompt);
    di_prepared_put(c->prepared);
}

bool di_completion_unconstrained(const struct di_completion *c)
{
    return (c->chat->format.kind != DI_CONSTRAIN_NONE || c->chat->forced) && !c->prepared->form.grammar;
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
    c->reasoning_tokens += di_parser_phase(c->parser) == DI_PHASE_OF_REASONING;
    if (is_end_id(c, s->id))
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
static void remember_turn(struct di_completion *c)
{
    struct di_ids ids = {0};
    bool whole = c->memory && c->end == DI_REASON_STOP && c->ids.n && c->ids.v[c->ids.n - 1] == c->text->controls.id[DI_CTL_EOS] &&
                 c->message.finish != DI_FINISH_STOP_STRING;
    const struct di_prepared *p = c->prepared;
    size_t before = c->prompt.n - p->turn_at;
    if (!whole || !di_ids_reserve(&ids, before + c->ids.n))
        return;
    memcpy(ids.v, c->prompt.v + p->turn_at, before * sizeof *ids.v);
    memcpy(ids.v + before, c->ids.v, c->ids.n * sizeof *ids.v);
    di_turn_memory_put(c->memory, &(struct di_turn){.tenant = p->memory_tenant,
                                                    .prefix = p->turn_prefix,
                                                    .ids = ids.v,
                                                    .n_ids = before + c->ids.n,
                                                    .thinking = c->chat->thinking,
                                                    .message = &c->message});
    di_ids_fini(&ids);
}

static void on_end(void *ctx, di_end_reason end, const di_error *err)
{
    static const enum di_finish reasons[] = {[DI_REASON_STOP] = DI_FINISH_STOP,
                                             [DI_REASON_LENGTH] = DI_FINISH_LENGTH,
                                             [DI_REASON_CANCELLED] = DI_FINISH_ABORT,
                                             [DI_REASON_DEADLINE] = DI_FINISH_ABORT,
                                             [DI_REASON_ERROR] = DI_FINISH_ERROR};
    struct di_completion *c = ctx;
    if (err && c->err.code == DI_OK)
        c->err = *err;
    c->end = c->err.code == DI_OK ? end : DI_REASON_ERROR;
    di_error ignored;
    if (di_parser_finish(c->parser, reasons[c->end], &ignored) != DI_OK || di_message_ok(&c->message, &ignored) != DI_OK) {
        c->end = DI_REASON_ERROR;
        if (c->err.code == DI_OK)
            c->err = ignored;
    }
    remember_turn(c);
    if (c->on_done)
        c->on_done(c->emit_arg);
}

static struct di_request engine_request(const struct di_completion *c)
{
    struct di_request r = c->schedule;
    r.cap = c->cap.at >= 0 ? &c->cap : NULL;
    r.space = c->prepared->space;
    r.prompt = c->prompt.v;
    r.prompt_stays = true;
    r.n_prompt = (int64_t)c->prompt.n;
    r.max_tokens = c->max_tokens;
    r.sampling = c->prepared->sampling;
    r.ignore_end = c->chat->sampling.ignore_eos == 1;
    return r;
}

di_status di_completion_check(const struct di_completion *c, const struct di_core *e, di_error *err)
{
    struct di_request r = engine_request(c);
    return di_core_check(e, &r, err);
}

di_status di_completion_submit(struct di_completion *c, struct di_core *e, di_error *err)
{
    struct di_request r = engine_request(c);
    r.on_start = on_start;
    r.on_token = on_token;
    r.on_end = on_end;
    r.facts = &c->facts;
    r.ctx = c;
    if (!c->follower)
        return di_core_submit(e, &r, NULL, err);
    struct di_mask_source masks = di_follower_source(c->follower);
    di_follower_place(c->follower, (int64_t)c->begins_at, r.n_prompt, r.n_prompt + r.max_tokens);
    r.masks = &masks;
    di_status status = di_core_submit(e, &r, NULL, err);
    c->follower = status == DI_OK ? NULL : c->follower;
    return status;
}
