/* Messages: the Anthropic dialect (spec/encoding.md §2.6, §4.6). */
#include "text/chat_build.h"
#include "text/client_tools.h"

enum block {
    B_TEXT,
    B_IMAGE,
    B_DOCUMENT,
    B_THINKING,
    B_REDACTED,
    B_TOOL_USE,
    B_TOOL_RESULT,
    B_TOOL_ADDITION,
    B_TOOL_REFERENCE,
    B_SERVER_USE,
    B_SEARCH_RESULT,
    B_COUNT
};
static const char *const block_names[B_COUNT] = {
    "text",        "image",         "document",       "thinking",        "redacted_thinking",     "tool_use",
    "tool_result", "tool_addition", "tool_reference", "server_tool_use", "web_search_tool_result"};
#define BIT(k) (1u << (k))
enum {
    WEB_BLOCKS = BIT(B_SERVER_USE) | BIT(B_SEARCH_RESULT),
    SYSTEM_BLOCKS = BIT(B_TEXT) | BIT(B_IMAGE) | BIT(B_TOOL_ADDITION),
    USER_BLOCKS = BIT(B_TEXT) | BIT(B_IMAGE) | BIT(B_DOCUMENT) | BIT(B_TOOL_RESULT) | BIT(B_SEARCH_RESULT),
    ASSISTANT_BLOCKS = BIT(B_TEXT) | BIT(B_THINKING) | BIT(B_REDACTED) | BIT(B_TOOL_USE) | WEB_BLOCKS,
    RESULT_BLOCKS = BIT(B_TEXT) | BIT(B_IMAGE) | BIT(B_DOCUMENT) | BIT(B_TOOL_REFERENCE)
};

/* The type of a block, which must be among `allowed`. *skip: a web search block that is to be dropped. */
static di_status read_type(struct di_build *b, const struct di_json *v, const struct di_path *at, unsigned allowed, enum block *out,
                           bool *skip)
{
    struct di_str type;
    size_t which;
    di_status status = DI_OK;
    *skip = false;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), block_names, B_COUNT, &which));
    if (!(allowed & BIT(which)))
        TRY(di_path_fail(b->err, DI_FIELD(at, "type"), "must not be %s in this place", block_names[which]));
    if (WEB_BLOCKS & BIT(which)) {
        *skip = b->opt->messages_drop_web_search;
        if (!*skip)
            TRY(di_path_fail(b->err, DI_FIELD(at, "type"), "is %s, but tools that run in the server are not supported",
                             block_names[which]));
    }
    *out = (enum block)which;
out:
    return status;
}

static di_status read_image(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_parts *parts)
{
    static const char *const types[] = {"base64", "url"};
    const struct di_path *source_at = DI_FIELD(at, "source");
    const struct di_json *source;
    struct di_str type, media, s;
    size_t which;
    di_status status = DI_OK;
    TRY(di_build_member(b, v, at, "source", DI_JSON_OBJECT, true, &source));
    TRY(di_build_string(b, source, source_at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(source_at, "type"), types, 2, &which));
    if (which == 1) {
        TRY(di_build_string(b, source, source_at, "url", true, &s));
        return di_build_image_url(b, parts, s, (struct di_str){0}, true, DI_FIELD(source_at, "url"));
    }
    TRY(di_build_string(b, source, source_at, "media_type", true, &media));
    TRY(di_build_string(b, source, source_at, "data", true, &s));
    TRY(di_build_image_data(b, parts, media, s, DI_FIELD(source_at, "data")));
out:
    return status;
}

static di_status read_document(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_parts *parts)
{
    const struct di_json *source;
    struct di_str media;
    struct di_buf text = {0};
    di_status status = DI_OK;
    TRY(di_build_member(b, v, at, "source", DI_JSON_OBJECT, true, &source));
    TRY(di_build_string(b, source, DI_FIELD(at, "source"), "media_type", false, &media));
    di_buf_adds(&text, "[Unsupported document type: ");
    di_buf_addv(&text, media.p ? media : DI_STR("unknown"));
    di_buf_addc(&text, ']');
    TRY(di_buf_ok(&text, b->err));
    char *copy = di_arena_strndup(&b->chat->arena, text.p, text.n);
    CHECK(copy, b->err, DI_ERR_MEMORY, "", "out of memory while reading a chat request");
    TRY(di_build_document(b, parts, (struct di_str){copy, text.n}, at));
out:
    di_buf_fini(&text);
    return status;
}

static di_status read_text(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_parts *parts)
{
    struct di_str s;
    di_status status = di_build_string(b, v, at, "text", true, &s);
    return status != DI_OK ? status : di_build_text(b, parts, s);
}

/* Blocks that are the same in every place. */
static di_status read_part(struct di_build *b, enum block kind, const struct di_json *v, const struct di_path *at,
                           struct di_chat_parts *parts)
{
    return kind == B_IMAGE ? read_image(b, v, at, parts) : kind == B_DOCUMENT ? read_document(b, v, at, parts) : read_text(b, v, at, parts);
}

/* A tool that is named in the history must have been declared. */
static di_status find_tool(struct di_build *b, struct di_str name, const struct di_path *at, struct di_chat_tool **out)
{
    *out = di_strmap_get(&b->tools, name);
    return *out ? DI_OK : di_path_fail(b->err, at, "names \"%.*s\", which is not among the tools", di_path_shown(name), name.p);
}

/* The tools that results refer to are shown by a message of their own behind the user turn; *loaded is made when first needed. */
static di_status read_result(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_message **loaded)
{
    const struct di_path *here = DI_FIELD(at, "content");
    const struct di_json *content = di_build_get(v, "content");
    struct di_chat_message *m;
    struct di_chat_tool *tool;
    struct di_str name;
    enum block kind;
    bool skip;
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_message(b, DI_ROLE_TOOL, &m));
    TRY(di_build_string(b, v, at, "tool_use_id", true, &m->call_id));
    m->has_call_id = true;
    TRY(di_build_result(b, m->call_id, DI_FIELD(at, "tool_use_id")));
    if (!content)
        return DI_OK;
    if (content->type == DI_JSON_STRING)
        return di_build_text(b, &m->content, content->text);
    if (content->type != DI_JSON_ARRAY)
        TRY(di_path_fail(b->err, here, "must be a string or an array of blocks, not %s", di_json_type_name(content)));
    for (const struct di_json *block = content->child; block; block = block->next, i++) {
        const struct di_path *block_at = DI_ITEM(here, i);
        TRY(read_type(b, block, block_at, RESULT_BLOCKS, &kind, &skip));
        if (kind != B_TOOL_REFERENCE) {
            TRY(read_part(b, kind, block, block_at, &m->content));
            continue;
        }
        TRY(di_build_string(b, block, block_at, "tool_name", true, &name));
        TRY(find_tool(b, name, DI_FIELD(block_at, "tool_name"), &tool));
        TRY(di_build_text(b, &m->content, name));
        if (!*loaded)
            TRY(di_build_detached(b, DI_ROLE_SYSTEM, loaded));
        TRY(di_build_update(b, *loaded, tool));
    }
out:
    return status;
}

static di_status read_user(struct di_build *b, const struct di_json *list, const struct di_path *at)
{
    struct di_chat_message *m = NULL, *loaded = NULL;
    enum block kind;
    bool skip;
    size_t i = 0;
    di_status status = DI_OK;
    for (const struct di_json *v = list->child; v; v = v->next, i++) {
        const struct di_path *here = DI_ITEM(at, i);
        TRY(read_type(b, v, here, USER_BLOCKS, &kind, &skip));
        if (skip)
            continue;
        if (kind == B_TOOL_RESULT) {
            if (m)
                TRY(di_path_fail(b->err, here, "must stand before the other blocks of its message: tool results come first"));
            b->in_result = true;
            TRY(read_result(b, v, here, &loaded));
            b->in_result = false;
            continue;
        }
        if (!m) {
            TRY(di_build_all_answered(b, here));
            TRY(di_build_message(b, DI_ROLE_USER, &m));
        }
        TRY(read_part(b, kind, v, here, &m->content));
    }
    TRY(di_build_all_answered(b, at->up));
    if (loaded)
        di_build_append(b, loaded);
out:
    return status;
}

static di_status read_call(struct di_build *b, const struct di_json *v, const struct di_path *at, struct di_chat_message *m)
{
    struct di_build_call call = {0};
    const struct di_json *input = di_json_get(v, "input"); /* null is a value here */
    di_status status = DI_OK;
    TRY(di_build_string(b, v, at, "id", true, &call.id));
    TRY(di_build_string(b, v, at, "name", true, &call.name));
    if (!input)
        TRY(di_path_fail(b->err, DI_FIELD(at, "input"), "is missing"));
    TRY(di_build_compact(b, input, &call.arguments));
    TRY(di_build_call(b, m, call, DI_FIELD(at, "id")));
out:
    return status;
}

static di_status read_assistant(struct di_build *b, const struct di_json *list, const struct di_path *at, struct di_chat_message *m)
{
    struct di_str s;
    enum block kind;
    bool skip;
    size_t i = 0;
    di_status status = DI_OK;
    for (const struct di_json *v = list->child; v; v = v->next, i++) {
        const struct di_path *here = DI_ITEM(at, i);
        TRY(read_type(b, v, here, ASSISTANT_BLOCKS, &kind, &skip));
        if (skip || kind == B_REDACTED)
            continue;
        if (kind == B_THINKING) {
            TRY(di_build_string(b, v, here, "thinking", true, &s));
            TRY(di_build_text(b, &m->reasoning, s));
            m->has_reasoning = true;
        } else if (kind == B_TOOL_USE) {
            TRY(read_call(b, v, here, m));
        } else {
            if (m->calls)
                TRY(di_path_fail(b->err, here, "must stand before the tool_use blocks"));
            TRY(di_build_string(b, v, here, "text", true, &s));
            if (s.n || !di_parts_empty(&m->content)) /* an empty block adds no separator if nothing stands before it */
                TRY(di_build_text(b, &m->content, s));
        }
    }
out:
    return status;
}

static di_status read_system(struct di_build *b, const struct di_json *list, const struct di_path *at, struct di_chat_message *m)
{
    enum block kind;
    bool skip;
    size_t i = 0;
    di_status status = DI_OK;
    for (const struct di_json *v = list->child; v; v = v->next, i++) {
        const struct di_path *here = DI_ITEM(at, i);
        TRY(read_type(b, v, here, SYSTEM_BLOCKS, &kind, &skip));
        if (kind == B_TOOL_ADDITION) {
            const struct di_path *tool_at = DI_FIELD(here, "tool");
            const struct di_json *ref;
            struct di_chat_tool *tool;
            struct di_str name;
            TRY(di_build_member(b, v, here, "tool", DI_JSON_OBJECT, true, &ref));
            TRY(di_build_string(b, ref, tool_at, "name", true, &name));
            TRY(find_tool(b, name, DI_FIELD(tool_at, "name"), &tool));
            TRY(di_build_update(b, m, tool));
        } else {
            TRY(read_part(b, kind, v, here, &m->content));
        }
    }
out:
    return status;
}

static di_status read_message(struct di_build *b, const struct di_json *v, const struct di_path *at)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    static const enum di_role role_of[] = {DI_ROLE_USER, DI_ROLE_ASSISTANT, DI_ROLE_SYSTEM};
    const struct di_path *here = DI_FIELD(at, "content");
    const struct di_json *content = di_build_get(v, "content");
    struct di_chat_message *m;
    struct di_str role;
    size_t which;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "role", true, &role));
    TRY(di_build_word(b, role, DI_FIELD(at, "role"), roles, 3, &which));
    bool string = di_json_is(content, DI_JSON_STRING);
    if (!string && !di_json_is(content, DI_JSON_ARRAY))
        TRY(di_path_fail(b->err, here, content ? "must be a string or an array of blocks, not %s" : "is missing",
                         di_json_type_name(content)));
    if (!string && content->count == 0 && role_of[which] == DI_ROLE_USER) /* an answer can be empty */
        TRY(di_path_fail(b->err, here, "must not be empty"));
    if (!string && role_of[which] == DI_ROLE_USER)
        return read_user(b, content, here);
    TRY(di_build_all_answered(b, at));
    TRY(di_build_message(b, role_of[which], &m));
    if (role_of[which] == DI_ROLE_ASSISTANT) {
        di_strmap_clear(&b->calls);
        b->open_calls = 0;
    }
    if (string)
        return di_build_text(b, &m->content, content->text);
    if (role_of[which] == DI_ROLE_SYSTEM)
        return read_system(b, content, here, m);
    TRY(read_assistant(b, content, here, m));
out:
    return status;
}

static bool billing_line(struct di_str s)
{
    static const char prefix[] = "x-anthropic-billing-header";
    size_t n = sizeof prefix - 1;
    for (size_t i = 0; s.n >= n && i < n; i++)
        if ((s.p[i] >= 'A' && s.p[i] <= 'Z' ? s.p[i] + 32 : s.p[i]) != prefix[i])
            return false;
    return s.n >= n;
}

/* The member `system`. A first block with a coding agent's accounting line is dropped (§2.6). */
static di_status read_instructions(struct di_build *b)
{
    const struct di_path *at = DI_FIELD(NULL, "system");
    const struct di_json *v = di_build_get(b->request, "system");
    struct di_chat_message *m;
    enum block kind;
    bool skip;
    size_t i = 0;
    di_status status = DI_OK;
    if (!v)
        return DI_OK;
    TRY(di_build_message(b, DI_ROLE_SYSTEM, &m));
    if (v->type == DI_JSON_STRING)
        return di_build_text(b, &m->content, v->text);
    if (v->type != DI_JSON_ARRAY)
        TRY(di_path_fail(b->err, at, "must be a string or an array of text blocks, not %s", di_json_type_name(v)));
    for (const struct di_json *block = v->child; block; block = block->next, i++) {
        struct di_str s;
        const struct di_path *here = DI_ITEM(at, i);
        TRY(read_type(b, block, here, BIT(B_TEXT), &kind, &skip));
        TRY(di_build_string(b, block, here, "text", true, &s));
        if (i > 0 || !billing_line(s))
            TRY(di_build_text(b, &m->content, s));
    }
out:
    return status;
}

static di_status read_tool(struct di_build *b, const struct di_json *v, const struct di_path *at, size_t *ready)
{
    struct di_build_tool t = {.at = at, .parameters_key = "input_schema"};
    struct di_chat_tool *tool;
    const struct di_client_tool *known = NULL;
    struct di_json *schema;
    struct di_str type;
    int8_t deferred;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", false, &type));
    if (type.p && !di_str_eqc(type, "custom")) {
        if (b->opt->messages_drop_web_search && di_str_starts(type, DI_STR("web_search")))
            return DI_OK;
        known = di_client_tool_find(type);
        if (!known)
            return di_path_fail(b->err, DI_FIELD(at, "type"),
                                "must be custom, bash, text_editor or memory (with their dates), not \"%.*s\": tools that run in the "
                                "server are not supported",
                                di_path_shown(type), type.p);
    }
    TRY(di_build_string(b, v, at, "name", true, &t.name));
    TRY(di_build_string(b, v, at, "description", false, &t.description));
    TRY(di_build_bool(b, v, at, "defer_loading", &deferred));
    t.has_description = t.description.p != NULL;
    t.parameters = di_build_get(v, "input_schema");
    if (known) {
        TRY(di_json_parse(di_str_c(known->schema), NULL, &b->chat->arena, &schema, b->err));
        t.parameters = schema;
        t.description = di_str_c(known->description);
        t.has_description = true;
    }
    if (!t.parameters && !b->choice_none)
        TRY(di_path_fail(b->err, DI_FIELD(at, "input_schema"), "is missing"));
    t.deferred = deferred == 1;
    *ready += !t.deferred;
    TRY(di_build_tool(b, &t, &tool));
out:
    return status;
}

static di_status read_tools(struct di_build *b)
{
    const struct di_path *at = DI_FIELD(NULL, "tools");
    const struct di_json *list;
    size_t i = 0, ready = 0;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "tools", DI_JSON_ARRAY, false, &list));
    for (const struct di_json *m = list ? list->child : NULL; m; m = m->next, i++)
        TRY(read_tool(b, m, DI_ITEM(at, i), &ready));
    if (b->chat->tools && ready == 0)
        TRY(di_path_fail(b->err, at, "must contain at least one tool without defer_loading"));
out:
    return status;
}

static di_status read_choice(struct di_build *b)
{
    static const char *const types[] = {"auto", "none", "any", "tool"};
    const struct di_path *at = DI_FIELD(NULL, "tool_choice");
    const struct di_json *v;
    struct di_str type, name;
    size_t which;
    int8_t single;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "tool_choice", DI_JSON_OBJECT, false, &v));
    if (!v)
        return DI_OK;
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 4, &which));
    TRY(di_build_bool(b, v, at, "disable_parallel_tool_use", &single));
    b->chat->single_call = single == 1;
    b->choice_none = which == 1;
    b->forced = which == 2; /* by constraint alone: the prompt is that of auto, as the official library renders it */
    b->open_block = which == 3;
    if (which == 3) {
        TRY(di_build_string(b, v, at, "name", true, &name));
        di_build_choose(b, name);
    }
out:
    return status;
}

/* The newer name and the older one. Whoever asks in this dialect need not say "json" in the conversation. */
static di_status read_format(struct di_build *b, const struct di_json *config)
{
    const struct di_json *v = di_build_get(config, "format"), *old = di_build_get(b->request, "output_format");
    const struct di_path *at = DI_FIELD(DI_FIELD(NULL, "output_config"), "format"), *old_at = DI_FIELD(NULL, "output_format");
    di_status status = DI_OK;
    if (v && old)
        TRY(di_path_fail(b->err, old_at, "cannot stand beside output_config.format"));
    TRY(di_build_format(b, v ? v : old, v ? at : old_at, true));
    b->chat->json_mode = false;
out:
    return status;
}

di_status di_build_messages_request(struct di_build *b)
{
    const struct di_path *config_at = DI_FIELD(NULL, "output_config"), *at = DI_FIELD(NULL, "messages");
    const struct di_json *config, *list;
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_member(b, b->request, NULL, "output_config", DI_JSON_OBJECT, false, &config));
    TRY(di_build_thinking(b, di_build_get(config, "effort"), DI_FIELD(config_at, "effort")));
    TRY(read_format(b, config));
    TRY(read_choice(b));
    TRY(read_tools(b));
    TRY(read_instructions(b));
    TRY(di_build_member(b, b->request, NULL, "messages", DI_JSON_ARRAY, true, &list));
    if (list->count == 0)
        TRY(di_path_fail(b->err, at, "must not be empty"));
    for (const struct di_json *m = list->child; m; m = m->next, i++)
        TRY(read_message(b, m, DI_ITEM(at, i)));
    TRY(di_build_all_answered(b, NULL));
    if (b->last && b->last->role == DI_ROLE_ASSISTANT && !b->last->calls) /* the answer goes on from there */
        b->last->prefix = true;
out:
    return status;
}
