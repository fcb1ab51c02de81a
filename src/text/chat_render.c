/* The conversation as a prompt: the grammar of spec/encoding.md §2.2. */
#include "text/chat_build.h"

#include <stdlib.h>

static const char effort_text[] = "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

/* The tool block (§2.3). A byte below 8 stands for a control id. */
#define DSML "\001"
static const char tool_text[] =
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<" DSML
    " calls>\" block like the following:\n\n<" DSML " calls>\n<" DSML " invoke name=\"$TOOL_NAME\">\n<" DSML
    " parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" DSML " parameter>\n...\n</" DSML " invoke>\n<" DSML
    " invoke name=\"$TOOL_NAME2\">\n...\n</" DSML " invoke>\n</" DSML " calls>\n\nString parameters should be specified as is and set "
    "`string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by \002), you MUST output your complete reasoning inside \002...\003 "
    "BEFORE any tool calls or final response.\n\nOtherwise, output directly after \003 with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
static const char tool_end[] = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
static const char format_text[] = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
static const char update_text[] = "\n\n### Updated Tool Schemas\n\n";

struct render {
    struct di_build *b;
    struct di_chat *c;
    struct di_prompt *p;
    const struct di_chat_message **v; /* the messages that are shown */
    size_t n;
    size_t cap_images;
    struct di_strmap ranks; /* the calls of the last assistant message that had some, by id */
    bool answered_bare;     /* the turn before ended in a task: the answer has no header */
};

static void text(struct render *r, const char *s)
{
    di_prompt_text(r->p, di_str_c(s));
}

/* A template of this file. */
static void template(struct render *r, const char *s)
{
    static const enum di_control marks[] = {DI_CTL_COUNT, DI_CTL_DSML, DI_CTL_THINK, DI_CTL_THINK_END};
    for (;;) {
        size_t run = strcspn(s, "\001\002\003");
        di_prompt_text(r->p, (struct di_str){s, run});
        if (!s[run])
            return;
        di_prompt_control(r->p, marks[(int)s[run]]);
        s += run + 1;
    }
}

static void tool_schema(struct render *r, const struct di_chat_tool *t)
{
    struct di_buf *b = &r->p->text;
    di_buf_adds(b, "{\"name\": ");
    di_json_write_string(b, t->name);
    di_buf_adds(b, ", \"description\": ");
    di_json_write_string(b, t->description);
    di_buf_adds(b, ", \"parameters\": ");
    if (t->parameters)
        di_json_write_spaced(b, t->parameters);
    else
        di_buf_adds(b, t->custom ? "{\"type\": \"object\", \"properties\": {\"input\": {\"type\": \"string\"}}, \"required\": [\"input\"]}"
                                 : "{}");
    di_buf_addc(b, '}');
}

static void tool_block(struct render *r)
{
    bool first = true;
    text(r, "\n\n");
    template(r, tool_text);
    for (const struct di_chat_tool *t = r->c->tools; t; t = t->next)
        if (t->offered && !t->deferred) {
            text(r, first ? "" : "\n");
            tool_schema(r, t);
            first = false;
        }
    text(r, tool_end);
}

static void updates(struct render *r, const struct di_chat_message *m)
{
    const char *before = update_text;
    for (const struct di_chat_update *u = m ? m->updates : NULL; u; u = u->next)
        if (u->tool->offered) {
            text(r, before);
            tool_schema(r, u->tool);
            before = "\n";
        }
}

static di_status image(struct render *r, const struct di_chat_image *img)
{
    struct di_chat *c = r->c;
    if (c->n_images == r->cap_images) { /* an array in the arena that doubles */
        void *mem;
        size_t cap = r->cap_images ? r->cap_images * 2 : 8;
        di_status status = di_build_alloc(r->b, cap * sizeof *c->images, &mem);
        if (status != DI_OK)
            return status;
        if (c->n_images)
            memcpy(mem, c->images, c->n_images * sizeof *c->images);
        c->images = mem;
        r->cap_images = cap;
    }
    c->images[c->n_images++] = img;
    di_prompt_control(r->p, DI_CTL_IMAGE);
    return DI_OK;
}

static di_status parts(struct render *r, const struct di_chat_parts *list)
{
    for (const struct di_chat_part *p = list->first; p; p = p->next) {
        if (p != list->first)
            text(r, "\n\n");
        if (!p->image)
            di_prompt_text(r->p, p->text);
        else if (image(r, p->image) != DI_OK)
            return DI_ERR_MEMORY;
    }
    return DI_OK;
}

/* Assistant text: grounding marks become control ids (§2.10). */
static void grounded(struct render *r, const struct di_chat_parts *list, const char *separator)
{
    for (const struct di_chat_part *p = list->first; p; p = p->next) {
        if (p != list->first)
            text(r, separator);
        di_prompt_grounded(r->p, p->text);
    }
}

static void reasoning(struct render *r, const struct di_chat_message *m)
{
    grounded(r, &m->reasoning, r->c->protocol == DI_PROTOCOL_RESPONSES ? "\n" : "\n\n");
}

/* ---- user turns ---- */

struct slot {
    const struct di_chat_message *m;
    size_t rank, order;
};

static int compare_slots(const void *a, const void *b)
{
    const struct slot *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static bool sortable(const struct di_chat_message *m)
{
    return m->role == DI_ROLE_TOOL && m->has_call_id;
}

/* Results among v[from, to) swap places so that they stand in the order of their calls; everything else keeps its place (§2.6). */
static di_status sort_results(struct render *r, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        n += sortable(r->v[i]);
    if (n < 2)
        return DI_OK;
    struct slot *slots = di_calloc(n, sizeof *slots);
    if (!slots)
        return di_fail(r->b->err, DI_ERR_MEMORY, "", "out of memory while sorting %zu tool results", n);
    size_t k = 0;
    for (size_t i = from; i < to; i++)
        if (sortable(r->v[i])) {
            const struct di_chat_call *call = di_strmap_get(&r->ranks, r->v[i]->call_id);
            slots[k] = (struct slot){r->v[i], call ? call->index : 0, k};
            k++;
        }
    qsort(slots, n, sizeof *slots, compare_slots);
    k = 0;
    for (size_t i = from; i < to; i++)
        if (sortable(r->v[i]))
            r->v[i] = slots[k++].m;
    di_free(slots);
    return DI_OK;
}

static void think_mark(struct render *r)
{
    di_prompt_control(r->p, r->c->thinking ? DI_CTL_THINK : DI_CTL_THINK_END);
}

/* The run of user and tool messages that starts at *i (§2.6); *i moves behind it. */
static di_status user_turn(struct render *r, size_t *i)
{
    di_status status = DI_OK;
    size_t from = *i, to = from;
    int task = 0;
    while (to < r->n && !task && (r->v[to]->role == DI_ROLE_USER || r->v[to]->role == DI_ROLE_TOOL))
        task = r->v[to++]->task;
    TRY(sort_results(r, from, to));
    di_prompt_control(r->p, DI_CTL_USER);
    for (size_t k = from; k < to; k++) {
        const struct di_chat_message *m = r->v[k];
        bool result = m->role == DI_ROLE_TOOL;
        text(r, k == from ? "" : "\n\n");
        text(r, result ? "<tool_result>" : "");
        TRY(parts(r, &m->content));
        text(r, result ? "</tool_result>" : "");
    }
    if (task == DI_CTL_ACTION) { /* §2.12 */
        di_prompt_control(r->p, DI_CTL_ASSISTANT);
        think_mark(r);
    }
    if (task)
        di_prompt_control(r->p, (enum di_control)task);
    r->answered_bare = task != 0;
    *i = to;
out:
    return status;
}

/* ---- assistant turns ---- */

static void parameter(struct render *r, struct di_str key, bool string)
{
    text(r, "<");
    di_prompt_control(r->p, DI_CTL_DSML);
    text(r, " parameter name=\"");
    di_prompt_text(r->p, key);
    text(r, string ? "\" string=\"true\">" : "\" string=\"false\">");
}

static void tag(struct render *r, const char *before, const char *after)
{
    text(r, before);
    di_prompt_control(r->p, DI_CTL_DSML);
    text(r, after);
}

static bool all_finite(const struct di_json *v)
{
    if (di_number_overflows(v))
        return false;
    for (const struct di_json *m = v->child; m; m = m->next)
        if (!all_finite(m))
            return false;
    return true;
}

/* §2.7: one parameter per key of an object, anything else is one string parameter. */
static di_status arguments(struct render *r, const struct di_chat_call *call)
{
    struct di_arena arena;
    struct di_json *args;
    di_arena_init(&arena);
    struct di_json_limits limits = di_json_request_limits(call->arguments.n);
    di_status status = di_json_parse(call->arguments, &limits, &arena, &args, NULL);
    if (status == DI_ERR_MEMORY) {
        status = di_fail(r->b->err, DI_ERR_MEMORY, "", "out of memory while reading the arguments of a tool call");
        goto out;
    }
    if (status == DI_OK && args->type == DI_JSON_OBJECT && all_finite(args)) {
        for (const struct di_json *m = args->child; m; m = m->next) {
            bool string = m->type == DI_JSON_STRING;
            parameter(r, m->key, string);
            if (string)
                di_prompt_text(r->p, m->text);
            else
                di_json_write_spaced(&r->p->text, m);
            tag(r, "</", m->next ? " parameter>\n" : " parameter>");
        }
    } else {
        parameter(r, DI_STR("arguments"), true);
        di_prompt_text(r->p, call->arguments);
        tag(r, "</", " parameter>");
    }
    status = DI_OK;
out:
    di_arena_fini(&arena);
    return status;
}

static di_status calls(struct render *r, const struct di_chat_message *m)
{
    di_status status = DI_OK;
    di_strmap_clear(&r->ranks);
    tag(r, "\n\n<", " calls>\n");
    for (struct di_chat_call *call = m->calls; call; call = call->next) {
        if (!di_strmap_get(&r->ranks, call->id))
            CHECK(di_strmap_put(&r->ranks, call->id, call), r->b->err, DI_ERR_MEMORY, "", "out of memory while rendering tool calls");
        tag(r, "<", " invoke name=\"");
        di_prompt_text(r->p, call->name);
        text(r, "\">\n");
        TRY(arguments(r, call));
        tag(r, "\n</", " invoke>\n");
    }
    tag(r, "</", " calls>");
out:
    return status;
}

/* The lead of a finished turn (§2.5). A missing reasoning is an empty pair where the others show theirs. */
static void lead(struct render *r, const struct di_chat_message *m)
{
    const struct di_chat *c = r->c;
    bool show = c->thinking && (c->reasoning_history == DI_REASONING_AUTO   ? c->tools_declared
                                : c->reasoning_history == DI_REASONING_KEEP ? c->tools_declared || m->has_reasoning
                                                                            : false);
    if (show) {
        di_prompt_control(r->p, DI_CTL_THINK);
        reasoning(r, m);
    }
    di_prompt_control(r->p, DI_CTL_THINK_END);
}

static di_status assistant_turn(struct render *r, const struct di_chat_message *m)
{
    const struct di_chat *c = r->c;
    di_status status = DI_OK;
    size_t first = r->p->n_marks;
    bool bare = r->answered_bare;
    if (!bare) {
        di_prompt_control(r->p, DI_CTL_ASSISTANT);
        lead(r, m);
    }
    r->answered_bare = false;
    grounded(r, &m->content, "\n\n");
    if (m->calls)
        TRY(calls(r, m));
    di_prompt_control(r->p, DI_CTL_EOS);
    if (!bare)
        di_prompt_add_turn(r->p, first, m,
                           c->thinking &&
                               (c->reasoning_history == DI_REASONING_AUTO ? c->tools_declared : c->reasoning_history == DI_REASONING_KEEP));
out:
    return status;
}

/* §2.11: the open end of a prompt that the answer continues. */
static void prefix(struct render *r, const struct di_chat_message *m)
{
    struct di_chat *c = r->c;
    bool has_content = !di_parts_empty(&m->content);
    if (!r->answered_bare) {
        di_prompt_control(r->p, DI_CTL_ASSISTANT);
        di_prompt_control(r->p, c->thinking ? DI_CTL_THINK : DI_CTL_THINK_END);
        if (c->thinking)
            reasoning(r, m);
        if (c->thinking && has_content)
            di_prompt_control(r->p, DI_CTL_THINK_END);
    }
    grounded(r, &m->content, "\n\n");
    c->start = !c->thinking || has_content || r->answered_bare ? DI_STARTS_CONTENT_CONTINUED
               : di_parts_empty(&m->reasoning)                 ? DI_STARTS_REASONING
                                                               : DI_STARTS_REASONING_CONTINUED;
}

static void tail(struct render *r)
{
    struct di_chat *c = r->c;
    if (r->answered_bare) {
        c->start = DI_STARTS_CONTENT;
        return;
    }
    c->start = c->opened ? DI_STARTS_TOOL_CALLS : c->thinking ? DI_STARTS_REASONING : DI_STARTS_CONTENT;
    di_prompt_control(r->p, DI_CTL_ASSISTANT);
    think_mark(r);
    if (c->opened)
        tag(r, "\n\n<", " calls>\n");
}

/* ---- whole ---- */

/* A message that only brought in tools which are not offered leaves nothing; of neighbouring reminders only the first stays (§2.6). */
static di_status choose_messages(struct render *r)
{
    const struct di_chat_message *m;
    size_t n = 0;
    for (m = r->c->messages; m; m = m->next)
        n++;
    r->v = di_calloc(n + 1, sizeof *r->v);
    if (!r->v)
        return di_fail(r->b->err, DI_ERR_MEMORY, "", "out of memory for a conversation of %zu messages", n);
    for (m = r->c->messages; m; m = m->next) {
        bool offered = false;
        for (const struct di_chat_update *u = m->updates; u; u = u->next)
            offered = offered || u->tool->offered;
        bool nothing = m->updates && !offered && di_parts_empty(&m->content);
        bool repeated = m->role == DI_ROLE_REMINDER && r->n && r->v[r->n - 1]->role == DI_ROLE_REMINDER;
        if (!nothing && !repeated)
            r->v[r->n++] = m;
    }
    if (r->n == 0)
        return di_path_fail(r->b->err, DI_MEMBER(NULL, di_str_c(r->c->protocol == DI_PROTOCOL_RESPONSES ? "input" : "messages")),
                            "must contain at least one message that is not empty");
    return DI_OK;
}

static di_status head(struct render *r, size_t *i)
{
    struct di_chat *c = r->c;
    const struct di_chat_message *first = r->v[0]->role == DI_ROLE_SYSTEM ? r->v[0] : NULL;
    di_status status = DI_OK;
    di_prompt_control(r->p, DI_CTL_BOS);
    if (!c->thinking && !first && !c->tools_declared && !c->format_shown)
        return DI_OK;
    di_prompt_control(r->p, DI_CTL_SYSTEM);
    if (c->thinking)
        di_buf_addf(&r->p->text, effort_text, c->effort);
    if (first)
        TRY(parts(r, &first->content));
    if (c->tools_declared)
        tool_block(r);
    if (c->format_shown) {
        text(r, format_text);
        di_json_write_spaced(&r->p->text, c->format_shown);
    }
    updates(r, first);
    *i = first ? 1 : 0;
out:
    return status;
}

static di_status render(struct render *r)
{
    di_status status = DI_OK;
    size_t i = 0;
    TRY(choose_messages(r));
    TRY(head(r, &i));
    while (i < r->n) {
        const struct di_chat_message *m = r->v[i];
        if (m->role == DI_ROLE_USER || m->role == DI_ROLE_TOOL) {
            TRY(user_turn(r, &i));
            continue;
        }
        i++;
        if (m->role == DI_ROLE_ASSISTANT && m->prefix) {
            prefix(r, m);
            return di_prompt_ok(r->p, r->b->err);
        }
        if (m->role == DI_ROLE_ASSISTANT) {
            TRY(assistant_turn(r, m));
            continue;
        }
        r->answered_bare = false;
        di_prompt_control(r->p, m->role == DI_ROLE_SYSTEM ? DI_CTL_SYSTEM : DI_CTL_REMINDER);
        TRY(parts(r, &m->content));
        updates(r, m);
    }
    tail(r);
    status = di_prompt_ok(r->p, r->b->err);
out:
    return status;
}

di_status di_build_render(struct di_build *b)
{
    struct render r = {.b = b, .c = b->chat, .p = &b->chat->prompt};
    di_status status = render(&r);
    di_strmap_fini(&r.ranks);
    di_free(r.v);
    return status;
}
