/* Responses: OpenAI's item dialect (spec/encoding.md §2.6, §4.5). */
#include "text/chat_build.h"

#include <stdlib.h>

/* Calls and their results are paired by call id, wherever they stand. So every message gets a place, and the conversation is put in order
 * when all items are read: the turn, then in it the assistant's message, the results in the order of their calls, the tools that searches
 * found, and what others say. */
enum rank { R_ASSISTANT, R_RESULT, R_LOADED, R_OTHER };

struct place {
    struct di_chat_message *message, *notice; /* notice: of a result, stays behind it */
    size_t turn, call, order;                 /* call: its index in the turn */
    enum rank rank;
};

/* A call that stands somewhere in the input. */
struct pair {
    bool come;             /* the call was read: */
    size_t turn, call;     /* its turn, its index there */
    size_t result, loaded; /* places of what came before it, + 1; 0: nothing */
};

struct items {
    struct di_build *b;
    struct place *places; /* heap */
    size_t n, cap;
    size_t turn;                  /* of the latest assistant message */
    struct di_chat_message *open; /* that message while it can go on, else NULL */
    size_t n_open;                /* its calls whose results have not come yet */
    struct di_strmap pairs;       /* call id -> struct pair */
    size_t result;                /* the place of the item before if that was the output of a function or custom tool, + 1; else 0 */
};

enum part { P_TEXT, P_OUTPUT_TEXT, P_REFUSAL, P_IMAGE, P_FILE };

static di_status read_part(struct di_build *b, const struct di_json *v, const struct di_path *at, bool images, struct di_chat_parts *parts)
{
    static const char *const types[] = {"input_text", "output_text", "refusal", "input_image", "input_file"};
    struct di_str type, s, detail;
    size_t which;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 5, &which));
    if (which == P_FILE)
        return di_build_document(b, parts, DI_STR("[Unsupported Document]"), at);
    if (which != P_IMAGE) {
        TRY(di_build_string(b, v, at, which == P_REFUSAL ? "refusal" : "text", true, &s));
        return di_build_text(b, parts, s);
    }
    if (!images)
        TRY(di_path_fail(b->err, DI_FIELD(at, "type"), "must not be input_image in a message of the assistant"));
    if (di_build_get(v, "file_id"))
        TRY(di_path_fail(b->err, DI_FIELD(at, "file_id"), "is not supported; send the image as a data URL"));
    TRY(di_build_string(b, v, at, "image_url", true, &s));
    TRY(di_build_string(b, v, at, "detail", false, &detail));
    TRY(di_build_image_url(b, parts, s, detail, false, DI_FIELD(at, "image_url")));
out:
    return status;
}

/* A member that is a string or a list of parts. */
static di_status read_content(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, bool images,
                              struct di_chat_parts *parts)
{
    const struct di_json *content = di_build_get(v, key);
    const struct di_path *here = DI_MEMBER(at, di_str_c(key));
    size_t i = 0;
    di_status status = DI_OK;
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

/* ---- places ---- */

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->turn != y->turn)
        return x->turn < y->turn ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->call != y->call)
        return x->call < y->call ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* A place in the present turn, behind what has it already. */
static di_status add_place(struct items *it, struct di_chat_message *m, enum rank rank)
{
    di_status status = DI_OK;
    if (it->n == it->cap) {
        size_t cap = it->cap ? it->cap * 2 : 16;
        struct place *grown = di_realloc(it->places, cap * sizeof *grown);
        CHECK(grown, it->b->err, DI_ERR_MEMORY, "", "out of memory while reading a conversation");
        it->places = grown;
        it->cap = cap;
    }
    it->places[it->n] = (struct place){.message = m, .turn = it->turn, .rank = rank, .order = it->n};
    it->n++;
out:
    return status;
}

/* What is neither the assistant's nor a result ends the turn. */
static di_status add_other(struct items *it, struct di_chat_message *m)
{
    it->open = NULL;
    return add_place(it, m, R_OTHER);
}

/* All items are read. */
static di_status put_in_order(struct items *it)
{
    struct di_build *b = it->b;
    di_status status = DI_OK;
    if (it->n > 1)
        qsort(it->places, it->n, sizeof *it->places, compare_places);
    for (size_t i = 0; i < it->n; i++) {
        di_build_append(b, it->places[i].message);
        if (it->places[i].notice)
            di_build_append(b, it->places[i].notice);
    }
    TRY(di_build_all_answered(b, NULL));
out:
    return status;
}

/* A developer message that a client sends about the images of the output before it: exactly one text block in these tags. */
static bool is_notice(const struct di_json *v)
{
    const struct di_str open = DI_STR("<image_resize_notice>"), close = DI_STR("</image_resize_notice>");
    const struct di_json *content = di_json_get(v, "content"), *text = di_json_get(di_json_at(content, 0), "text");
    struct di_str s = di_json_is(text, DI_JSON_STRING) ? text->text : (struct di_str){0};
    return content && content->count == 1 && s.n >= open.n + close.n && di_str_starts(s, open) && di_str_ends(s, close);
}

/* ---- results ---- */

/* Every call id of the input, so that a result knows whether its call is still to come. */
static di_status find_calls(struct items *it, const struct di_json *list)
{
    di_status status = DI_OK;
    for (const struct di_json *v = list->child; v; v = v->next) {
        const struct di_json *type = di_json_get(v, "type"), *id = di_json_get(v, "call_id");
        void *pair;
        if (!di_json_is(type, DI_JSON_STRING) || !di_json_is(id, DI_JSON_STRING) || !di_str_ends(type->text, DI_STR("_call")) ||
            di_strmap_get(&it->pairs, id->text))
            continue;
        TRY(di_build_alloc(it->b, sizeof(struct pair), &pair));
        CHECK(di_strmap_put(&it->pairs, id->text, pair), it->b->err, DI_ERR_MEMORY, "", "out of memory while reading tool calls");
    }
out:
    return status;
}

/* The result's place in the turn of its call, which may stand before or behind it. Without strict history one without a call stays in the
 * present turn. */
static di_status place_result(struct items *it, struct di_chat_message *m, const struct di_path *at, struct pair **pair)
{
    struct di_build *b = it->b;
    di_status status = DI_OK;
    bool strict = b->opt->strict_history;
    *pair = di_strmap_get(&it->pairs, m->call_id);
    bool early = *pair && !(*pair)->come;
    if (early && (*pair)->result && strict)
        TRY(di_path_fail(b->err, at, "answers the call \"%.*s\" a second time", di_path_shown(m->call_id), m->call_id.p));
    if (!early)
        TRY(di_build_result(b, m->call_id, at));
    TRY(add_place(it, m, R_RESULT));
    struct place *p = &it->places[it->n - 1];
    if (early) {
        (*pair)->result = it->n;
    } else if (*pair) {
        p->turn = (*pair)->turn;
        p->call = (*pair)->call;
        if (p->turn == it->turn && it->n_open && --it->n_open == 0)
            it->open = NULL;
    }
out:
    return status;
}

static di_status add_output(struct items *it, const struct di_json *v, const struct di_path *at, struct di_chat_message **out,
                            struct pair **pair)
{
    struct di_build *b = it->b;
    di_status status = DI_OK;
    TRY(di_build_detached(b, DI_ROLE_TOOL, out));
    TRY(di_build_string(b, v, at, "call_id", true, &(*out)->call_id));
    (*out)->has_call_id = true;
    TRY(place_result(it, *out, DI_FIELD(at, "call_id"), pair));
out:
    return status;
}

/* ---- items ---- */

/* The assistant message that goes on, or a new one. One with calls goes on with anything while a result is missing, then with calls alone. */
static di_status assistant(struct items *it, bool for_call, bool for_reasoning, struct di_chat_message **out)
{
    struct di_chat_message *m = it->open;
    di_status status = DI_OK;
    bool answered = m && m->calls && it->n_open == 0;
    *out = m;
    if (m && (for_call || !answered) && (!for_reasoning || m->calls || di_parts_empty(&m->content)))
        return DI_OK;
    TRY(di_build_detached(it->b, DI_ROLE_ASSISTANT, &m));
    it->turn++;
    it->open = *out = m;
    it->n_open = 0;
    TRY(add_place(it, m, R_ASSISTANT));
out:
    return status;
}

static di_status read_assistant_message(struct items *it, const struct di_json *v, const struct di_path *at)
{
    struct di_build *b = it->b;
    struct di_chat_message *m;
    struct di_chat_parts parts = {0};
    di_status status = DI_OK;
    TRY(read_content(b, v, at, "content", false, &parts));
    TRY(assistant(it, false, false, &m));
    if (di_parts_empty(&m->content)) {
        m->content = parts;
    } else if (!di_parts_empty(&parts)) {
        m->content.last->next = parts.first;
        m->content.last = parts.last;
    }
out:
    return status;
}

static di_status read_message(struct items *it, const struct di_json *v, const struct di_path *at)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    struct di_build *b = it->b;
    struct di_chat_message *m;
    struct di_str role;
    size_t which;
    size_t result = it->result;
    di_status status = DI_OK;
    it->result = 0;
    TRY(di_build_string(b, v, at, "role", true, &role));
    TRY(di_build_word(b, role, DI_FIELD(at, "role"), roles, 4, &which));
    if (which == 1)
        return read_assistant_message(it, v, at);
    TRY(di_build_detached(b, which == 0 ? DI_ROLE_USER : DI_ROLE_SYSTEM, &m));
    TRY(read_content(b, v, at, "content", true, &m->content));
    if (which == 3 && result && is_notice(v))
        it->places[result - 1].notice = m;
    else
        TRY(add_other(it, m));
out:
    return status;
}

/* Only `content` counts; encrypted reasoning and summaries add nothing. */
static di_status read_reasoning(struct items *it, const struct di_json *v, const struct di_path *at)
{
    struct di_build *b = it->b;
    const struct di_path *here = DI_FIELD(at, "content");
    const struct di_json *content;
    struct di_chat_parts parts = {0};
    struct di_chat_message *m;
    size_t i = 0;
    di_status status = DI_OK;
    it->result = 0;
    TRY(di_build_member(b, v, at, "content", DI_JSON_ARRAY, false, &content));
    for (const struct di_json *p = content ? content->child : NULL; p; p = p->next, i++) {
        struct di_str s;
        TRY(di_build_object(b, p, DI_ITEM(here, i)));
        TRY(di_build_string(b, p, DI_ITEM(here, i), "text", true, &s));
        TRY(di_build_text(b, &parts, s));
    }
    if (di_parts_empty(&parts))
        return DI_OK;
    TRY(assistant(it, false, true, &m));
    if (m->has_reasoning)
        m->reasoning.last->next = parts.first;
    else
        m->reasoning.first = parts.first;
    m->reasoning.last = parts.last;
    m->has_reasoning = true;
out:
    return status;
}

static di_status join_name(struct di_build *b, struct di_str space, struct di_str *name)
{
    struct di_buf text = {0};
    di_status status = DI_OK;
    if (!space.p)
        return DI_OK;
    di_buf_addv(&text, space);
    di_buf_adds(&text, "::");
    di_buf_addv(&text, *name);
    TRY(di_buf_ok(&text, b->err));
    name->p = di_arena_strndup(&b->chat->arena, text.p, text.n);
    name->n = text.n;
    CHECK(name->p, b->err, DI_ERR_MEMORY, "", "out of memory while reading a chat request");
out:
    di_buf_fini(&text);
    return status;
}

enum item { I_MESSAGE, I_REASONING, I_CALL, I_CUSTOM_CALL, I_SEARCH_CALL, I_OUTPUT, I_CUSTOM_OUTPUT, I_SEARCH_OUTPUT, I_COUNT };

static di_status read_call(struct items *it, enum item kind, const struct di_json *v, const struct di_path *at)
{
    struct di_build *b = it->b;
    struct di_build_call call = {.custom = kind == I_CUSTOM_CALL, .name = DI_STR("tool_search")};
    struct di_chat_message *m;
    struct di_str space;
    const struct di_json *query;
    di_status status = DI_OK;
    it->result = 0;
    TRY(di_build_string(b, v, at, "call_id", true, &call.id));
    if (kind == I_SEARCH_CALL) {
        TRY(di_build_member(b, v, at, "arguments", DI_JSON_OBJECT, true, &query));
        TRY(di_build_compact(b, query, &call.arguments));
    } else {
        TRY(di_build_string(b, v, at, "name", true, &call.name));
        TRY(di_build_string(b, v, at, call.custom ? "input" : "arguments", true, &call.arguments));
        TRY(di_build_string(b, v, at, "namespace", false, &space));
        TRY(join_name(b, space, &call.name));
    }
    TRY(assistant(it, true, false, &m));
    TRY(di_build_call(b, m, call, DI_FIELD(at, "call_id")));
    struct pair *pair = di_strmap_get(&it->pairs, call.id);
    pair->come = true;
    pair->turn = it->turn;
    pair->call = m->last_call->index;
    if (!pair->result) {
        it->n_open++;
        return DI_OK;
    }
    size_t early[] = {pair->result, pair->loaded};
    for (size_t i = 0; i < 2; i++)
        if (early[i]) {
            it->places[early[i] - 1].turn = pair->turn;
            it->places[early[i] - 1].call = i == 0 ? pair->call : 0;
        }
    TRY(di_build_result(b, call.id, DI_FIELD(at, "call_id")));
out:
    return status;
}

static di_status read_output(struct items *it, const struct di_json *v, const struct di_path *at)
{
    struct di_chat_message *m;
    struct pair *pair;
    di_status status = DI_OK;
    TRY(add_output(it, v, at, &m, &pair));
    it->result = it->n;
    it->b->in_result = true;
    TRY(read_content(it->b, v, at, "output", true, &m->content));
    it->b->in_result = false;
out:
    return status;
}

/* ---- tools ---- */

struct tool_list {
    struct di_build *b;
    struct di_chat_message *shown_by; /* the message that shows tools found by a search, NULL: the head shows them */
    struct di_buf *report;            /* then: the JSON list that is the search's result */
};

/* A found tool as the result of the search tells it. */
static void report_tool(struct tool_list *l, const struct di_json *v, const struct di_build_tool *space)
{
    static const char *const keys[] = {"name", "description", "parameters", "strict"};
    struct di_buf *b = l->report;
    di_buf_adds(b, b->n > 1 ? ",{\"type\":\"function\"" : "{\"type\":\"function\"");
    for (size_t i = 0; i < 4; i++) {
        const struct di_json *m = di_build_get(v, keys[i]);
        di_buf_addf(b, ",\"%s\":", keys[i]);
        if (m)
            di_json_write_compact(b, m);
        else
            di_buf_adds(b, "null");
    }
    if (space) {
        di_buf_adds(b, ",\"namespace\":{\"name\":");
        di_json_write_string(b, space->space);
        di_buf_adds(b, ",\"description\":");
        di_json_write_string(b, space->has_description ? space->space_description : DI_STR(""));
        di_buf_addc(b, '}');
    }
    di_buf_addc(b, '}');
}

static di_status add_function(struct tool_list *l, const struct di_json *v, const struct di_path *at, const struct di_build_tool *space,
                              bool custom)
{
    struct di_build_tool t = space ? *space : (struct di_build_tool){0};
    struct di_chat_tool *tool;
    di_status status = DI_OK;
    t.custom = custom;
    t.deferred = l->shown_by != NULL;
    TRY(di_build_function(l->b, v, at, &t, &tool));
    if (l->shown_by) {
        TRY(di_build_update(l->b, l->shown_by, tool));
        report_tool(l, v, space);
    }
out:
    return status;
}

static di_status add_namespace(struct tool_list *l, const struct di_json *v, const struct di_path *at)
{
    static const char *const types[] = {"function", "custom"};
    struct di_build *b = l->b;
    struct di_build_tool space = {0};
    const struct di_path *tools_at = DI_FIELD(at, "tools");
    const struct di_json *list;
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_string(b, v, at, "name", true, &space.space));
    TRY(di_build_name(b, space.space, at));
    TRY(di_build_string(b, v, at, "description", false, &space.space_description));
    space.has_description = space.space_description.p != NULL;
    TRY(di_build_member(b, v, at, "tools", DI_JSON_ARRAY, true, &list));
    for (const struct di_json *m = list->child; m; m = m->next, i++) {
        const struct di_path *here = DI_ITEM(tools_at, i);
        struct di_str type;
        size_t which;
        TRY(di_build_object(b, m, here));
        TRY(di_build_string(b, m, here, "type", true, &type));
        TRY(di_build_word(b, type, DI_FIELD(here, "type"), types, 2, &which));
        TRY(add_function(l, m, here, &space, which == 1));
    }
out:
    return status;
}

/* Tools of other types, web search among them, are left out. */
static di_status add_tool(struct tool_list *l, const struct di_json *v, const struct di_path *at)
{
    struct di_build *b = l->b;
    struct di_str type, execution;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    if (di_str_eqc(type, "namespace"))
        return add_namespace(l, v, at);
    if (di_str_eqc(type, "function") || di_str_eqc(type, "custom"))
        return add_function(l, v, at, NULL, di_str_eqc(type, "custom"));
    if (di_str_eqc(type, "tool_search") && !l->shown_by) {
        struct di_build_tool t = {.name = DI_STR("tool_search"), .at = at, .parameters_key = "parameters"};
        struct di_chat_tool *tool;
        TRY(di_build_string(b, v, at, "execution", false, &execution));
        if (!di_str_eqc(execution, "client"))
            return DI_OK;
        TRY(di_build_string(b, v, at, "description", false, &t.description));
        t.has_description = t.description.p != NULL;
        t.parameters = di_build_get(v, "parameters");
        TRY(di_build_tool(b, &t, &tool));
    }
out:
    return status;
}

static di_status read_search_output(struct items *it, const struct di_json *v, const struct di_path *at)
{
    struct di_build *b = it->b;
    struct di_buf report = {0};
    struct tool_list l = {.b = b, .report = &report};
    const struct di_path *tools_at = DI_FIELD(at, "tools");
    const struct di_json *list;
    struct di_chat_message *m;
    struct pair *pair;
    size_t i = 0;
    di_status status = DI_OK;
    it->result = 0; /* notices are about images, which a search does not return */
    TRY(add_output(it, v, at, &m, &pair));
    TRY(di_build_member(b, v, at, "tools", DI_JSON_ARRAY, true, &list));
    TRY(di_build_detached(b, DI_ROLE_SYSTEM, &l.shown_by));
    di_buf_addc(&report, '[');
    for (const struct di_json *t = list->child; t; t = t->next, i++)
        TRY(add_tool(&l, t, DI_ITEM(tools_at, i)));
    di_buf_addc(&report, ']');
    TRY(di_buf_ok(&report, b->err));
    char *text = di_arena_strndup(&b->chat->arena, report.p, report.n);
    CHECK(text, b->err, DI_ERR_MEMORY, "", "out of memory while reading a chat request");
    TRY(di_build_text(b, &m->content, (struct di_str){text, report.n}));
    if (l.shown_by->updates) {
        size_t turn = it->places[it->n - 1].turn;
        TRY(add_place(it, l.shown_by, R_LOADED));
        it->places[it->n - 1].turn = turn;
        if (pair && !pair->come)
            pair->loaded = it->n;
    }
out:
    di_buf_fini(&report);
    return status;
}

static di_status read_item(struct items *it, const struct di_json *v, const struct di_path *at)
{
    static const char *const types[I_COUNT] = {"message",
                                               "reasoning",
                                               "function_call",
                                               "custom_tool_call",
                                               "tool_search_call",
                                               "function_call_output",
                                               "custom_tool_call_output",
                                               "tool_search_output"};
    struct di_build *b = it->b;
    struct di_str type;
    size_t kind = 0;
    di_status status = DI_OK;
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", false, &type));
    if (!type.p && !di_build_get(v, "role"))
        TRY(di_path_fail(b->err, at, "must have a type or a role"));
    while (type.p && kind < I_COUNT && !di_str_eqc(type, types[kind]))
        kind++;
    switch (kind) {
    case I_MESSAGE: return read_message(it, v, at);
    case I_REASONING: return read_reasoning(it, v, at);
    case I_CALL:
    case I_CUSTOM_CALL:
    case I_SEARCH_CALL: return read_call(it, (enum item)kind, v, at);
    case I_OUTPUT:
    case I_CUSTOM_OUTPUT: return read_output(it, v, at);
    case I_SEARCH_OUTPUT: return read_search_output(it, v, at);
    default: break;
    }
    struct di_str id;
    TRY(di_build_string(b, v, at, "id", false, &id));
    if (di_str_eqc(type, "item_reference"))
        TRY(di_path_fail(b->err, DI_FIELD(at, "id"), "names \"%.*s\", an item that is not stored here (any more): send the item itself",
                         di_path_shown(id), id.p ? id.p : ""));
    TRY(di_path_fail(b->err, DI_FIELD(at, "type"), "is \"%.*s\", an item that is not supported", di_path_shown(type), type.p));
out:
    return status;
}

static di_status add_text(struct items *it, enum di_role role, struct di_str text)
{
    struct di_chat_message *m;
    di_status status = DI_OK;
    TRY(di_build_detached(it->b, role, &m));
    TRY(di_build_text(it->b, &m->content, text));
    TRY(add_other(it, m));
out:
    return status;
}

static di_status read_items(struct items *it, const struct di_json *v, const struct di_path *at)
{
    di_status status = DI_OK;
    size_t i = 0;
    if (v->type != DI_JSON_ARRAY)
        TRY(di_path_fail(it->b->err, at, "must be a string or an array of items, not %s", di_json_type_name(v)));
    if (v->count == 0)
        TRY(di_path_fail(it->b->err, at, "must not be empty"));
    TRY(find_calls(it, v));
    for (const struct di_json *item = v->child; item; item = item->next, i++)
        TRY(read_item(it, item, DI_ITEM(at, i)));
out:
    return status;
}

static di_status read_input(struct di_build *b)
{
    const struct di_path *at = DI_FIELD(NULL, "input");
    const struct di_json *v = di_build_get(b->request, "input");
    struct items it = {.b = b};
    struct di_str instructions;
    di_status status = DI_OK;
    TRY(di_build_string(b, b->request, NULL, "instructions", false, &instructions));
    if (!v && !instructions.p)
        TRY(di_path_fail(b->err, at, "is missing, and so are instructions"));
    if (instructions.n)
        TRY(add_text(&it, DI_ROLE_SYSTEM, instructions));
    if (di_json_is(v, DI_JSON_STRING))
        TRY(add_text(&it, DI_ROLE_USER, v->text));
    else if (v)
        TRY(read_items(&it, v, at));
    TRY(put_in_order(&it));
out:
    di_free(it.places);
    di_strmap_fini(&it.pairs);
    return status;
}

static di_status read_choice(struct di_build *b)
{
    static const char *const words[] = {"auto", "none", "required"};
    static const char *const types[] = {"function", "custom", "web_search", "web_search_2025_08_26"};
    const struct di_path *at = DI_FIELD(NULL, "tool_choice");
    const struct di_json *v = di_build_get(b->request, "tool_choice");
    struct di_str type, name, space;
    size_t which;
    int8_t parallel;
    di_status status = DI_OK;
    b->open_block = true;
    TRY(di_build_bool(b, b->request, NULL, "parallel_tool_calls", &parallel));
    b->chat->single_call = parallel == 0;
    if (!v)
        return DI_OK;
    if (v->type == DI_JSON_STRING) {
        TRY(di_build_word(b, v->text, at, words, 3, &which));
        b->choice_none = which == 1;
        b->forced = which == 2;
        return DI_OK;
    }
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "type", true, &type));
    TRY(di_build_word(b, type, DI_FIELD(at, "type"), types, 4, &which));
    if (which > 1)
        return DI_OK;
    TRY(di_build_string(b, v, at, "name", true, &name));
    TRY(di_build_string(b, v, at, "namespace", false, &space));
    TRY(join_name(b, space, &name));
    di_build_choose(b, name);
out:
    return status;
}

di_status di_build_responses_request(struct di_build *b)
{
    static const char *const stored[] = {"previous_response_id", "conversation"};
    const struct di_json *reasoning, *text, *tools;
    struct tool_list l = {.b = b};
    int8_t background;
    size_t i = 0;
    di_status status = DI_OK;
    TRY(di_build_bool(b, b->request, NULL, "background", &background));
    if (background == 1)
        TRY(di_path_fail(b->err, DI_FIELD(NULL, "background"), "is not supported: an answer goes to the connection that asks for it"));
    for (size_t k = 0; k < 2 && b->opt->refuse_stored; k++)
        if (di_build_get(b->request, stored[k]))
            TRY(di_path_fail(b->err, DI_MEMBER(NULL, di_str_c(stored[k])),
                             "is not supported: nothing is stored here, send the whole input"));
    TRY(di_build_member(b, b->request, NULL, "reasoning", DI_JSON_OBJECT, false, &reasoning));
    TRY(di_build_thinking(b, di_build_get(reasoning, "effort"), DI_FIELD(DI_FIELD(NULL, "reasoning"), "effort")));
    TRY(read_choice(b));
    TRY(di_build_member(b, b->request, NULL, "tools", DI_JSON_ARRAY, false, &tools));
    for (const struct di_json *t = tools ? tools->child : NULL; t; t = t->next, i++)
        TRY(add_tool(&l, t, DI_ITEM(DI_FIELD(NULL, "tools"), i)));
    TRY(read_input(b));
    TRY(di_build_member(b, b->request, NULL, "text", DI_JSON_OBJECT, false, &text));
    TRY(di_build_format(b, di_build_get(text, "format"), DI_FIELD(DI_FIELD(NULL, "text"), "format"), true));
out:
    return status;
}
