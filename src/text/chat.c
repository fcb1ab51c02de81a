#include "text/chat.h"

#include "text/chat_build.h"

const struct di_chat_options di_chat_options_default = {
    .thinking = true,
    .strict_history = true,
    .forced_tools_while_thinking = true,
    .refuse_stored = true,
    .reasoning_history = DI_REASONING_AUTO,
    .default_effort = "high",
    .max_tokens_limit = 393216,
};

static const char *const protocol_names[] = {"chat", "responses", "messages"};

bool di_protocol_from_name(struct di_str name, enum di_protocol *out)
{
    for (int i = 0; i < 3; i++)
        if (di_str_eqc(name, protocol_names[i])) {
            *out = (enum di_protocol)i;
            return true;
        }
    return false;
}

const char *di_constraint_name(enum di_constraint_kind k)
{
    static const char *const names[] = {"none",           "json",      "json_schema",       "regex", "grammar", "choice",
                                        "structural_tag", "tool_call", "tool_call_required"};
    return names[k];
}

void di_chat_image_write(struct di_buf *b, const struct di_chat_image *image)
{
    if (image->url.n) {
        di_buf_addv(b, image->url);
        return;
    }
    di_buf_adds(b, "data:");
    di_buf_addv(b, image->media_type);
    di_buf_adds(b, ";base64,");
    di_buf_addv(b, image->data);
}

static di_status check_numbers(const struct di_json *v, const struct di_path *at, di_error *err)
{
    size_t i = 0;
    if (di_number_overflows(v))
        return di_path_fail(err, at, "is a number that is too large");
    for (const struct di_json *m = v->child; m; m = m->next, i++) {
        di_status status = check_numbers(m, v->type == DI_JSON_ARRAY ? DI_ITEM(at, i) : DI_MEMBER(at, m->key), err);
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* Which tools may be called and shown, once all are known: late ones may stand anywhere in the history. */
static di_status offer_tools(struct di_build *b)
{
    struct di_chat *c = b->chat;
    bool any = false, found = false;
    for (struct di_chat_tool *t = c->tools; t; t = t->next) {
        bool named = !b->only_tool.p || di_str_eq(t->name, b->only_tool);
        t->offered = named && !b->choice_none;
        any = any || t->offered;
        found = found || named;
    }
    if (b->only_tool.p && c->tools && !found) /* without any tools a choice means nothing */
        return di_path_fail(b->err, DI_FIELD(NULL, "tool_choice"), "names \"%.*s\", which is not among the tools",
                            di_path_shown(b->only_tool), b->only_tool.p);
    c->tools_declared = any;
    c->forced = any && b->forced;
    c->opened = c->forced && b->open_block && !c->thinking;
    if (c->forced && b->open_block && c->thinking && !b->opt->forced_tools_while_thinking)
        return di_path_fail(b->err, DI_FIELD(NULL, "tool_choice"), "cannot be this: Thinking mode does not support this tool_choice");
    c->constraint = c->format;
    if (any)
        c->constraint = (struct di_constraint){.kind = c->forced ? DI_CONSTRAIN_TOOLS_REQUIRED : DI_CONSTRAIN_TOOLS};
    return DI_OK;
}

static bool mentions_json(const struct di_chat *c)
{
    for (const struct di_chat_message *m = c->messages; m; m = m->next)
        for (const struct di_chat_part *p = m->content.first; p; p = p->next)
            for (size_t i = 0; i + 4 <= p->text.n; i++) {
                const char *s = p->text.p + i;
                if ((s[0] | 32) == 'j' && (s[1] | 32) == 's' && (s[2] | 32) == 'o' && (s[3] | 32) == 'n')
                    return true;
            }
    return false;
}

static di_status check_prefix(struct di_build *b)
{
    const struct di_chat *c = b->chat;
    const char *beside = c->tools ? "tools" : c->json_mode ? "a response format json_object" : NULL;
    if (!b->last || !b->last->prefix || c->protocol == DI_PROTOCOL_MESSAGES) /* Messages has no such rule */
        return DI_OK;
    for (const struct di_chat_message *m = c->messages; m && !beside; m = m->next)
        if (m->calls)
            beside = "tool calls in the conversation";
    if (beside)
        return di_path_fail(b->err, DI_FIELD(NULL, "messages"), "ends with a prefix, which cannot be used together with %s", beside);
    return DI_OK;
}

/* A raw prompt has no conversation: the answer is plain content from its first byte on. */
static di_status build_completion(struct di_build *b)
{
    b->chat->start = DI_STARTS_CONTENT_CONTINUED;
    return di_build_format(b, di_build_get(b->request, "response_format"), DI_FIELD(NULL, "response_format"), false);
}

static di_status build(struct di_build *b)
{
    static di_status (*const dialects[])(struct di_build *) = {di_build_chat_request, di_build_responses_request, di_build_messages_request,
                                                               build_completion};
    di_status status = DI_OK;
    TRY(di_build_object(b, b->request, NULL));
    TRY(check_numbers(b->request, NULL, b->err));
    TRY(dialects[b->chat->protocol](b));
    TRY(di_build_sampling(b));
    if (b->chat->protocol == DI_PROTOCOL_COMPLETION) {
        b->chat->constraint = b->chat->format;
        return DI_OK;
    }
    TRY(offer_tools(b));
    TRY(check_prefix(b));
    if (b->chat->json_mode && !mentions_json(b->chat))
        TRY(di_path_fail(b->err, DI_MEMBER(NULL, di_str_c(b->chat->protocol == DI_PROTOCOL_RESPONSES ? "input" : "messages")),
                         "must contain the word json when the response format is json_object"));
    TRY(di_build_render(b));
out:
    return status;
}

di_status di_chat_create(enum di_protocol protocol, const struct di_json *request, const struct di_chat_options *options,
                         struct di_chat **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_build b = {.opt = options ? options : &di_chat_options_default, .request = request, .err = err};
    *out = NULL;
    struct di_chat *c = di_calloc(1, sizeof *c);
    CHECK(c, err, DI_ERR_MEMORY, "", "out of memory for a chat request");
    di_arena_init(&c->arena);
    c->protocol = protocol;
    b.chat = c;
    TRY(build(&b));
    *out = c;
    c = NULL;
out:
    di_strmap_fini(&b.tools);
    di_strmap_fini(&b.calls);
    di_chat_destroy(c);
    return status;
}

di_status di_chat_branch(const struct di_chat *of, const di_sampling_options *sampling, struct di_chat **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_build b = {.opt = &di_chat_options_default, .err = err};
    *out = NULL;
    struct di_chat *c = di_malloc(sizeof *c);
    CHECK(c, err, DI_ERR_MEMORY, "", "out of memory for a chat request");
    *c = *of;
    di_arena_init(&c->arena);
    c->prompt = (struct di_prompt){0};
    b.chat = c;
    TRY(di_build_sampling_options(&b, sampling));
    c->sampling.thinking_token_budget = of->sampling.thinking_token_budget;
    di_build_sampling_rules(&b);
    *out = c;
    c = NULL;
out:
    di_chat_destroy(c);
    return status;
}

/* A copy in the arena. */
static bool keep_text(struct di_arena *arena, struct di_str *s)
{
    if (s->n == 0) {
        *s = (struct di_str){0};
        return true;
    }
    s->p = di_arena_strndup(arena, s->p, s->n);
    return s->p != NULL;
}

static bool keep_tools(struct di_arena *arena, struct di_chat_tool **list)
{
    for (struct di_chat_tool **link = list; *link; link = &(*link)->next) {
        struct di_chat_tool *t = di_arena_alloc(arena, sizeof *t);
        if (!t)
            return false;
        *t = (struct di_chat_tool){.next = (*link)->next,
                                   .name = (*link)->name,
                                   .space = (*link)->space,
                                   .local = (*link)->local,
                                   .custom = (*link)->custom,
                                   .offered = (*link)->offered};
        if (!keep_text(arena, &t->name) || !keep_text(arena, &t->space) || !keep_text(arena, &t->local))
            return false;
        *link = t;
    }
    return true;
}

di_status di_chat_settle(struct di_chat *c, di_error *err)
{
    struct di_arena arena;
    struct di_chat_tool *tools = c->tools;
    struct di_sampling s = c->sampling;
    di_arena_init(&arena);
    struct di_str *stop = di_arena_alloc(&arena, (s.n_stop + 1) * sizeof *stop);
    bool ok = stop && keep_tools(&arena, &tools);
    for (size_t i = 0; ok && i < s.n_stop; i++) {
        stop[i] = s.stop[i];
        ok = keep_text(&arena, &stop[i]);
    }
    if (!ok) {
        di_arena_fini(&arena);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a chat request");
    }
    di_prompt_fini(&c->prompt);
    di_arena_fini(&c->arena);
    c->arena = arena;
    c->tools = tools;
    c->sampling.stop = stop;
    c->sampling.bad_words = NULL;
    c->sampling.stop_token_ids = c->sampling.allowed_token_ids = NULL;
    c->sampling.logit_bias = NULL;
    c->sampling.n_bad_words = c->sampling.n_stop_token_ids = c->sampling.n_allowed_token_ids = c->sampling.n_logit_bias = 0;
    c->model = c->request_id = c->cache_salt = (struct di_str){0};
    c->messages = NULL;
    c->images = NULL;
    c->n_images = 0;
    c->document = NULL;
    c->format_shown = c->format.schema = c->constraint.schema = NULL;
    c->format.text = c->constraint.text = (struct di_str){0};
    c->format.path = c->constraint.path = NULL;
    return DI_OK;
}

void di_chat_destroy(struct di_chat *chat)
{
    if (!chat)
        return;
    di_prompt_fini(&chat->prompt);
    di_arena_fini(&chat->arena);
    di_free(chat);
}

di_status di_chat_max_tokens(const struct di_chat *c, int64_t asked, int64_t prompt_tokens, int64_t context, int64_t *out, di_error *err)
{
    static const char *const prompt_of[] = {"messages", "input", "messages", "prompt"};
    int64_t left = context - prompt_tokens;
    bool lower = c->protocol == DI_PROTOCOL_MESSAGES; /* its clients ask for what the model can at most, whatever the prompt takes */
    if (lower && left < 1)                            /* the answer's first token is what a prompt of the context's length lacks */
        return di_fail(err, DI_ERR_LIMIT, "messages", "prompt is too long: %lld tokens > %lld maximum",
                       (long long)(left < 0 ? prompt_tokens : context + 1), (long long)context);
    if (lower && asked > left)
        asked = left;
    if (asked > 0 ? asked > left : left < 0)
        return di_fail_context(err, prompt_of[c->protocol], context, prompt_tokens, asked > 0 ? asked : 0);
    int64_t standard = !c->thinking ? 8192 : c->effort >= 100 ? 131072 : 65536;
    *out = asked > 0 ? asked : standard < left ? standard : left > 1 ? left : 1;
    return DI_OK;
}
