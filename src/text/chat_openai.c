/* Chat completions: the OpenAI dialect with DeepSeek's and vLLM's additions (spec/encoding.md §2.6, §4.2). */
#include "text/chat_build.h"
#include "text/unicode_classes.h"

#include "base/utf8.h"

static di_status read_part(struct di_build *b, const struct di_json *v, const struct di_path *at, bool images, struct di_chat_parts *parts)
{
    static const char *const types[] = {"text", "refusal", "image_url"};
    const struct di_json *image;
    const struct di_path *image_at = DI_FIELD(at, "image_url");
    struct di_str type, s, detail = {0};
    size_t which;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 3, &which));
    if (which < 2) {
        TRY(di_build_string(b, v, at, types[which], true, &s)); /* a refusal is what the model said */
        return di_build_text(b, parts, s);
    }
    if (!images)
        TRY(di_path_fail(b->err, DI_FIELD(at, "type"), "must not be image_url in a message of the assistant"));
    image = di_build_get(v, "image_url");
    if (di_json_is(image, DI_JSON_STRING))
        return di_build_image_url(b, parts, image->text, detail, false, image_at);
    TRY(di_build_member(b, v, at, "image_url", DI_JSON_OBJECT, true, &image));
    TRY(di_build_string(b, image, image_at, "url", true, &s));
    TRY(di_build_string(b, image, image_at, "detail", false, &detail));
    TRY(di_build_image_url(b, parts, s, detail, false, DI_FIELD(image_at, "url")));
out:
    return status;
}

/* The member `content`: a string or a list of parts. */
static di_status read_content(struct di_build *b, const struct di_json *v, const struct di_path *at, bool images,
                              struct di_chat_parts *parts)
{
    const struct di_json *content = di_build_get(v, "content");
    const struct di_path *here = DI_FIELD(at, "content");
    di_status status = DI_OK;
    size_t i = 0;
    if (!content)
        TRY(di_path_fail(b->err, here, "is missing"));
    if (content->type == DI_JSON_STRING)
        return di_build_text(b, parts, content->text);
    if (content->type != DI_JSON_ARRAY)
        TRY(di_path_fail(b->err, here, "must be a string or an array of parts, not %s", di_json_type_name(content)));
    for (const struct di_json *m = content->child; m; m = m->next, i++)
        TRY(read_part(b, m, DI_ITEM(here, i), images, parts));
out:
    return status;
}

static void trim_start(struct di_str *s)
{
    uint32_t cp;
    size_t n;
    while (s->n && (n = di_utf8_decode(s->p, s->n, &cp, NULL)) > 0 && di_unicode_class(cp) & DI_UC_SPACE) {
        s->p += n;
        s->n -= n;
    }
}

/* §2.6: a coding agent's accounting line, which changes with every request, is cut from the start of a system text: the text goes on at
 * the first line feed or "You are", without leading whitespace. Parts count as joined by blank lines. */
static void cut_billing_line(struct di_chat_parts *parts)
{
    struct di_chat_part *p = parts->first;
    if (!p || p->image || !di_str_starts(p->text, DI_STR("x-anthropic-billing-header")))
        return;
    size_t line = di_str_find(p->text, DI_STR("\n"), 0), you = di_str_find(p->text, DI_STR("You are"), 0);
    size_t cut = line < you ? line : you;
    if (cut == SIZE_MAX)
        cut = p->text.n;
    p->text.p += cut;
    p->text.n -= cut;
    trim_start(&p->text);
    while (p->text.n == 0 && !p->image && p->next) { /* what follows begins with the blank line between the parts */
        parts->first = p = p->next;
        trim_start(&p->text);
    }
}

/* The form of tools before there were tools would need answers and a history in that form, too. */
static di_status refuse_functions(struct di_build *b, const struct di_json *v, const struct di_path *at)
{
    static const char *const old[][2] = {{"functions", "tools"}, {"function_call", "tool_choice"}};
    for (size_t i = 0; i < 2; i++)
        if (di_build_get(v, old[i][0]))
            return di_path_fail(b->err, DI_MEMBER(at, di_str_c(old[i][0])), "is the old form of %s and is not supported; send tools and %s",
                                at ? "tool_calls" : old[i][1], at ? "tool_calls" : "tool_choice");
    return DI_OK;
}

static di_status read_call(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_message *m)
{
    static const char *const types[] = {"function", "custom"};
    struct di_build_call call = {0};
    struct di_str type;
    size_t which = 0;
    const struct di_json *body;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "id", true, &call.id));
    TRY(di_build_string(b, v, at, "type", false, &type));
    if (type.p)
        TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 2, &which));
    call.custom = which == 1;
    const struct di_path *body_at = DI_MEMBER(at, di_str_c(types[which]));
    TRY(di_build_member(b, v, at, types[which], DI_JSON_OBJECT, true, &body));
    TRY(di_build_string(b, body, body_at, "name", true, &call.name));
    TRY(di_build_string(b, body, body_at, call.custom ? "input" : "arguments", true, &call.arguments));
    TRY(di_build_call(b, m, call, DI_FIELD(at, "id")));
out:
    return status;
}

static di_status read_assistant(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_message *m)
{
    const struct di_json *tool_calls;
    const struct di_path *calls_at = DI_FIELD(at, "tool_calls");
    struct di_str why;
    int8_t prefix;
    size_t i = 0;
    di_status status = DI_OK;
    di_strmap_clear(&b->calls);
    b->open_calls = 0;
    TRY(refuse_functions(b, v, at));
    TRY(di_build_member(b, v, at, "tool_calls", DI_JSON_ARRAY, false, &tool_calls));
    if (di_build_get(v, "content"))
        TRY(read_content(b, v, at, false, &m->content));
    TRY(di_build_string(b, v, at, "reasoning_content", false, &why));
    if (!why.p)
        TRY(di_build_string(b, v, at, "reasoning", false, &why));
    if (!di_json_get(v, "content") && !tool_calls && !why.p) /* null is what some clients make of an empty answer */
        TRY(di_path_fail(b->err, at, "must have content or tool_calls"));
    m->has_reasoning = why.p != NULL;
    if (why.p)
        TRY(di_build_text(b, &m->reasoning, why));
    if (tool_calls && tool_calls->count == 0)
        TRY(di_path_fail(b->err, calls_at, "must not be empty; leave it out instead"));
    for (const struct di_json *c = tool_calls ? tool_calls->child : NULL; c; c = c->next, i++)
        TRY(read_call(b, c, DI_ITEM(calls_at, i), m));
    TRY(di_build_bool(b, v, at, "prefix", &prefix));
    m->prefix = prefix == 1;
out:
    return status;
}

static di_status read_tool_result(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_message *m)
{
    di_status status = DI_OK;
    TRY(di_build_string(b, v, at, "tool_call_id", b->opt->strict_history, &m->call_id));
    m->has_call_id = m->call_id.p != NULL;
    if (m->has_call_id)
        TRY(di_build_result(b, m->call_id, DI_FIELD(at, "tool_call_id")));
    b->in_result = true;
    TRY(read_content(b, v, at, true, &m->content));
    b->in_result = false;
out:
    return status;
}

static di_status read_user(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_message *m)
{
    static const char *const tasks[] = {"action", "query", "authority", "domain", "title", "read_url"};
    struct di_str task;
    size_t which;
    di_status status = DI_OK;
    TRY(read_content(b, v, at, true, &m->content));
    TRY(di_build_string(b, v, at, "task", false, &task));
    if (task.p) {
        TRY(di_build_word(b, task, DI_FIELD(at, "task"), tasks, 6, &which));
        m->task = DI_CTL_ACTION + (int)which;
    }
out:
    return status;
}

/* *drop: chat drops empty system messages (§2.6). */
static di_status read_message(struct di_build *b, const struct di_json *v, const struct di_path *at, bool *drop)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "latest_reminder"};
    static const enum di_role role_of[] = {DI_ROLE_SYSTEM, DI_ROLE_SYSTEM, DI_ROLE_USER, DI_ROLE_ASSISTANT, DI_ROLE_TOOL, DI_ROLE_REMINDER};
    struct di_chat_message *m;
    struct di_str role, s;
    size_t which;
    di_status status = DI_OK;
    *drop = false;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "role", true, &role));
    TRY(di_build_word(b, role, DI_FIELD(at, "role"), roles, 6, &which));
    TRY(di_build_string(b, v, at, "name", false, &s));
    if (b->last && b->last->prefix)
        TRY(di_path_fail(b->err, at, "follows a message with \"prefix\": true, which must be the last one"));
    if (role_of[which] != DI_ROLE_TOOL)
        TRY(di_build_all_answered(b, at));
    TRY(di_build_message(b, role_of[which], &m));
    switch (role_of[which]) {
    case DI_ROLE_SYSTEM:
        TRY(read_content(b, v, at, true, &m->content));
        cut_billing_line(&m->content);
        *drop = di_parts_empty(&m->content);
        break;
    case DI_ROLE_USER: TRY(read_user(b, v, at, m)); break;
    case DI_ROLE_ASSISTANT: TRY(read_assistant(b, v, at, m)); break;
    case DI_ROLE_TOOL: TRY(read_tool_result(b, v, at, m)); break;
    case DI_ROLE_REMINDER:
        TRY(di_build_string(b, v, at, "content", true, &s));
        TRY(di_build_text(b, &m->content, s));
        break;
    }
out:
    return status;
}

static di_status read_messages(struct di_build *b)
{
    const struct di_json *list;
    const struct di_path *at = DI_FIELD(NULL, "messages");
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "messages", DI_JSON_ARRAY, true, &list));
    if (list->count == 0)
        TRY(di_path_fail(b->err, at, "must not be empty"));
    for (const struct di_json *m = list->child; m; m = m->next, i++) {
        struct di_chat_message *before = b->last;
        bool drop;
        TRY(read_message(b, m, DI_ITEM(at, i), &drop));
        if (drop) {
            *(before ? &before->next : &b->chat->messages) = NULL;
            b->last = before;
        }
    }
    TRY(di_build_all_answered(b, NULL));
out:
    return status;
}

/* vLLM's way to ask for a prefix. */
static di_status read_continuation(struct di_build *b)
{
    int8_t go_on, header;
    const struct di_path *at = DI_FIELD(NULL, "continue_final_message");
    di_status status = DI_OK;
    TRY(di_build_bool(b, b->request, NULL, "continue_final_message", &go_on));
    TRY(di_build_bool(b, b->request, NULL, "add_generation_prompt", &header));
    if (header == 0 && go_on != 1)
        TRY(di_path_fail(b->err, DI_FIELD(NULL, "add_generation_prompt"), "can be false only together with continue_final_message"));
    if (go_on != 1)
        return DI_OK;
    if (!b->last || b->last->role != DI_ROLE_ASSISTANT)
        TRY(di_path_fail(b->err, at, "needs a message of the assistant at the end"));
    b->last->prefix = true;
out:
    return status;
}

static di_status read_tool(struct di_build *b, const struct di_json *v, const struct di_path *at)
{
    static const char *const types[] = {"function", "custom"};
    const struct di_json *body;
    struct di_chat_tool *tool;
    struct di_str type;
    size_t which;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 2, &which));
    TRY(di_build_member(b, v, at, types[which], DI_JSON_OBJECT, true, &body));
    TRY(di_build_function(b, body, DI_MEMBER(at, di_str_c(types[which])), &(struct di_build_tool){.custom = which == 1}, &tool));
out:
    return status;
}

static di_status read_tools(struct di_build *b)
{
    const struct di_json *list;
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "tools", DI_JSON_ARRAY, false, &list));
    for (const struct di_json *m = list ? list->child : NULL; m; m = m->next, i++)
        TRY(read_tool(b, m, DI_ITEM(DI_FIELD(NULL, "tools"), i)));
out:
    return status;
}

static di_status read_choice_word(struct di_build *b, struct di_str word, const struct di_path *at)
{
    static const char *const words[] = {"auto", "none", "required"};
    size_t which;
    di_status status = di_build_word(b, word, at, words, 3, &which);
    if (status != DI_OK)
        return status;
    b->choice_none = which == 1;
    b->forced = which == 2;
    return DI_OK;
}

static di_status read_choice(struct di_build *b)
{
    static const char *const types[] = {"function", "custom"};
    const struct di_path *at = DI_FIELD(NULL, "tool_choice");
    const struct di_json *v = di_build_get(b->request, "tool_choice"), *body;
    struct di_str type, name;
    size_t which;
    int8_t parallel;
    di_status status = DI_OK;
    b->open_block = true;
    TRY(di_build_bool(b, b->request, NULL, "parallel_tool_calls", &parallel));
    b->chat->single_call = parallel == 0;
    if (di_json_is(v, DI_JSON_STRING))
        return read_choice_word(b, v->text, at);
    if (v) {
        TRY(di_build_object(b, v, at));
        TRY(di_build_string(b, v, at, "type", true, &type));
        TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 2, &which));
        TRY(di_build_member(b, v, at, types[which], DI_JSON_OBJECT, true, &body));
        TRY(di_build_string(b, body, DI_MEMBER(at, di_str_c(types[which])), "name", true, &name));
        di_build_choose(b, name);
    }
out:
    return status;
}

static di_status read_history_policy(struct di_build *b)
{
    static const char *const words[] = {"auto", "keep", "drop"};
    struct di_str word;
    size_t which;
    di_status status = DI_OK;
    TRY(di_build_string(b, b->request, NULL, "reasoning_history", false, &word));
    if (word.p) {
        TRY(di_build_word(b, word, DI_FIELD(NULL, "reasoning_history"), words, 3, &which));
        b->chat->reasoning_history = (enum di_reasoning_history)which;
    }
out:
    return status;
}

di_status di_build_chat_request(struct di_build *b)
{
    di_status status = DI_OK;
    TRY(di_build_thinking(b, di_build_get(b->request, "reasoning_effort"), DI_FIELD(NULL, "reasoning_effort")));
    TRY(refuse_functions(b, b->request, NULL));
    TRY(read_history_policy(b));
    TRY(read_choice(b));
    TRY(read_tools(b));
    TRY(read_messages(b));
    TRY(read_continuation(b));
    TRY(di_build_format(b, di_build_get(b->request, "response_format"), DI_FIELD(NULL, "response_format"), false));
out:
    return status;
}
