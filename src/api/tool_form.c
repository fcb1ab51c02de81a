/* The block of calls as a form. */
#include "api/tool_form.h"

#define D DI_TOOL_FORM_MARK
#define MOST_PARAMETERS 3000  /* of a tool; and names that it requires */
#define MOST_BYTES (4u << 20) /* of the grammar; and of schemas that were tried on the way */

struct writer {
    const struct di_chat *chat;
    di_tool_form_try *try;
    void *ctx;
    struct di_buf *out;
    size_t schemas; /* bytes */
    di_error *err;
};

/* ---------------------------------------------------------------- pieces */

/* As the inside of a Lark string. */
static void add_quoted(struct di_buf *b, struct di_str s)
{
    for (size_t i = 0; i < s.n; i++)
        switch (s.p[i]) {
        case '"': di_buf_adds(b, "\\\""); break;
        case '\\': di_buf_adds(b, "\\\\"); break;
        case '\n': di_buf_adds(b, "\\n"); break;
        default: di_buf_addc(b, s.p[i]);
        }
}

void di_tool_form_add_string(struct di_buf *b, struct di_str s)
{
    di_buf_addc(b, '"');
    add_quoted(b, s);
    di_buf_addc(b, '"');
}

/* Has the schema only keywords of this list? */
static bool has_only(const struct di_json *schema, const char *const *keywords, size_t n)
{
    for (const struct di_json *m = schema->child; m; m = m->next) {
        size_t i = 0;
        while (i < n && !di_str_eqc(m->key, keywords[i]))
            i++;
        if (i == n)
            return false;
    }
    return true;
}

static const char *const notes[] = {"type",       "description", "title",     "default",  "examples",
                                    "deprecated", "readOnly",    "writeOnly", "$comment", "enum"};

static bool is_string_enum(const struct di_json *list)
{
    if (!di_json_is(list, DI_JSON_ARRAY) || !list->count)
        return false;
    for (const struct di_json *v = list->child; v; v = v->next)
        if (v->type != DI_JSON_STRING)
            return false;
    return true;
}

/* May a string be among the values? */
static bool allows_string(const struct di_json *schema)
{
    const struct di_json *type = di_json_get(schema, "type");
    if (!type)
        return true;
    if (type->type == DI_JSON_STRING)
        return di_str_eqc(type->text, "string");
    for (const struct di_json *t = type->child; t; t = t->next)
        if (di_json_is(t, DI_JSON_STRING) && di_str_eqc(t->text, "string"))
            return true;
    return false;
}

static bool is_string_only(const struct di_json *schema)
{
    const struct di_json *type = di_json_get(schema, "type"), *list = di_json_get(schema, "enum");
    return (di_json_is(type, DI_JSON_STRING) && di_str_eqc(type->text, "string")) || (!type && is_string_enum(list));
}

static bool has_reference(const struct di_json *v)
{
    if (di_json_is(v, DI_JSON_OBJECT) && (di_json_get(v, "$ref") || di_json_get(v, "$dynamicRef") || di_json_get(v, "$recursiveRef")))
        return true;
    if (di_json_is(v, DI_JSON_OBJECT) || di_json_is(v, DI_JSON_ARRAY))
        for (const struct di_json *m = v->child; m; m = m->next)
            if (has_reference(m))
                return true;
    return false;
}

/* The parameter's schema as a document of its own: what its references name is in front. */
static void write_schema(struct di_buf *b, const struct di_json *root, const struct di_json *schema)
{
    static const char *const places[] = {"$defs", "definitions", "$def"};
    if (!di_json_is(schema, DI_JSON_OBJECT)) {
        di_json_write_compact(b, schema);
        return;
    }
    di_buf_addc(b, '{');
    size_t n = 0;
    bool refers = has_reference(schema);
    for (size_t i = 0; refers && i < sizeof places / sizeof *places; i++)
        if (di_json_get(root, places[i]) && !di_json_get(schema, places[i])) {
            di_buf_addf(b, "%s\"%s\":", n++ ? "," : "", places[i]);
            di_json_write_compact(b, di_json_get(root, places[i]));
        }
    for (const struct di_json *m = schema->child; m; m = m->next) {
        di_buf_adds(b, n++ ? "," : "");
        di_json_write_string(b, m->key);
        di_buf_addc(b, ':');
        di_json_write_compact(b, m);
    }
    di_buf_addc(b, '}');
}

/* ---------------------------------------------------------------- values */

/* A Lark string cannot go over lines, and a %json schema ends where its brackets do: an object is needed. */
static void write_json_value(struct writer *w, const struct di_chat_tool *t, const struct di_json *schema)
{
    struct di_buf text = {0};
    write_schema(&text, t->parameters, schema);
    bool plain = !di_json_is(schema, DI_JSON_OBJECT) || text.failed || (!t->strict && w->try && !w->try(w->ctx, di_buf_str(&text)));
    di_buf_adds(w->out, "\"false\\\">\" %json ");
    di_buf_addv(w->out, plain ? DI_STR("{}") : di_buf_str(&text));
    w->out->failed = w->out->failed || text.failed;
    w->schemas += text.n;
    di_buf_fini(&text);
}

/* Strings as they are where the schema says no more of them than a list does; everything else as JSON. */
static void write_value(struct writer *w, const struct di_chat_tool *t, const struct di_json *schema)
{
    const struct di_json *list = di_json_get(schema, "enum");
    bool simple = di_json_is(schema, DI_JSON_OBJECT) && has_only(schema, notes, sizeof notes / sizeof *notes);
    bool as_text = di_json_is(schema, DI_JSON_BOOL) ? schema->boolean : simple && allows_string(schema) && (!list || is_string_enum(list));
    if (as_text && list) {
        di_buf_adds(w->out, "\"true\\\">\" (");
        for (const struct di_json *v = list->child; v; v = v->next) {
            di_buf_adds(w->out, v == list->child ? "" : " | ");
            di_tool_form_add_string(w->out, v->text);
        }
        di_buf_adds(w->out, ")");
    } else if (as_text) {
        di_buf_adds(w->out, "\"true\\\">\" TEXT");
    }
    if (as_text && di_json_is(schema, DI_JSON_OBJECT) && is_string_only(schema))
        return;
    di_buf_adds(w->out, as_text ? " | " : "");
    write_json_value(w, t, schema);
}

/* ---------------------------------------------------------------- calls */

static bool is_required(const struct di_json *parameters, struct di_str name)
{
    const struct di_json *list = di_json_get(parameters, "required");
    for (const struct di_json *v = list ? list->child : NULL; v; v = v->next)
        if (di_json_is(v, DI_JSON_STRING) && di_str_eq(v->text, name))
            return true;
    return false;
}

static bool can_be_said(struct di_str name)
{
    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] == '"' || (unsigned char)name.p[i] < 0x20)
            return false;
    return name.n > 0;
}

/* Rules h (none so far: not behind a required one) and t (some so far) for the parameters from the k-th on. */
static void write_rest(struct writer *w, size_t tool, size_t k, size_t n, bool required, bool none_so_far)
{
    const char *again = k + 1 < n ? " " : "";
    if (none_so_far) {
        di_buf_addf(w->out, "h%zu_%zu: p%zu_%zu", tool, k, tool, k);
        if (k + 1 < n)
            di_buf_addf(w->out, " t%zu_%zu", tool, k + 1);
        if (k + 1 < n && !required)
            di_buf_addf(w->out, " | h%zu_%zu", tool, k + 1);
        di_buf_addc(w->out, '\n');
    }
    if (k == 0)
        return;
    di_buf_addf(w->out, "t%zu_%zu: (\"\\n\" p%zu_%zu)%s%s", tool, k, tool, k, required ? "" : "?", again);
    if (k + 1 < n)
        di_buf_addf(w->out, "t%zu_%zu", tool, k + 1);
    di_buf_addc(w->out, '\n');
}

static void write_parameter(struct writer *w, const struct di_chat_tool *t, size_t tool, size_t k, const struct di_json *schema)
{
    di_buf_addf(w->out, "p%zu_%zu: \"<" D " parameter name=\\\"", tool, k);
    add_quoted(w->out, schema->key);
    di_buf_adds(w->out, "\\\" string=\\\"\" (");
    write_value(w, t, schema);
    di_buf_adds(w->out, ") \"</" D " parameter>\"\n");
}

/* Parameters of which nothing is known. */
static bool takes_anything(const struct di_chat_tool *t)
{
    const struct di_json *more = di_json_get(t->parameters, "additionalProperties"), *p = di_json_get(t->parameters, "properties");
    return !t->custom && (!p || !p->count) && !(di_json_is(more, DI_JSON_BOOL) && !more->boolean) && !t->strict;
}

static bool is_too_long(const struct di_json *list)
{
    return list && list->count > MOST_PARAMETERS;
}

static di_status check_bytes(const struct writer *w)
{
    return w->out->n <= MOST_BYTES && w->schemas <= MOST_BYTES
               ? DI_OK
               : di_fail(w->err, DI_ERR_LIMIT, "tools", "the schemas of the tools take more than %u MiB in a grammar", MOST_BYTES >> 20);
}

static di_status write_tool(struct writer *w, const struct di_chat_tool *t, size_t tool)
{
    static const struct di_json text_type = {.type = DI_JSON_STRING, .key = {"type", 4}, .text = {"string", 6}};
    struct di_json type = text_type;
    const struct di_json input = {.type = DI_JSON_OBJECT, .key = {"input", 5}, .count = 1, .child = &type};
    const struct di_json *properties = t->custom ? NULL : di_json_get(t->parameters, "properties");
    size_t n = 0, k = 0;
    bool any_required = t->custom, none_so_far = true;
    di_status status = DI_OK;
    if (is_too_long(properties) || is_too_long(di_json_get(t->parameters, "required")))
        return di_fail(w->err, DI_ERR_LIMIT, "tools", "the tool \"%.*s\" has more than %d parameters", (int)t->name.n, t->name.p,
                       MOST_PARAMETERS);
    for (const struct di_json *p = properties ? properties->child : NULL; p; p = p->next) {
        bool required = is_required(t->parameters, p->key);
        if (!can_be_said(p->key) && (t->strict || required))
            return di_fail(w->err, DI_ERR_UNSUPPORTED, "tools", "the tool \"%.*s\" has a parameter whose name cannot stand in a call",
                           (int)t->name.n, t->name.p);
        n += can_be_said(p->key);
        any_required = any_required || required;
    }
    n += t->custom;
    di_buf_addf(w->out, "c%zu: \"<" D " invoke name=\\\"", tool);
    add_quoted(w->out, t->name);
    di_buf_adds(w->out, "\\\">\\n\" ");
    if (n)
        di_buf_addf(w->out, any_required ? "h%zu_0 " : "h%zu_0? ", tool);
    else if (takes_anything(t))
        di_buf_adds(w->out, "(any (\"\\n\" any)*)? ");
    di_buf_adds(w->out, "\"\\n</" D " invoke>\"\n");
    if (t->custom) {
        write_parameter(w, t, tool, 0, &input);
        write_rest(w, tool, 0, 1, true, true);
    }
    for (const struct di_json *p = properties ? properties->child : NULL; p; p = p->next)
        if (can_be_said(p->key)) {
            bool required = is_required(t->parameters, p->key);
            write_parameter(w, t, tool, k, p);
            write_rest(w, tool, k, n, required, none_so_far);
            none_so_far = none_so_far && !required;
            k++;
            TRY(check_bytes(w));
        }
    TRY(check_bytes(w));
out:
    return status;
}

di_status di_tool_form_write(const struct di_chat *chat, enum di_tool_form_start start, struct di_str content, di_tool_form_try *try,
                             void *ctx, struct di_buf *out, di_error *err)
{
    static const char *const starts[] = {
        [DI_TOOL_FORM_BLOCK] = "\"\\n\\n<" D " calls>\\n\" ", [DI_TOOL_FORM_MARKED] = "\" calls>\\n\" ", [DI_TOOL_FORM_OPENED] = ""};
    struct writer w = {.chat = chat, .try = try, .ctx = ctx, .out = out, .err = err};
    size_t tool = 0;
    di_status status = DI_OK;
    di_buf_addf(out, "start: %sc%s", starts[start], chat->single_call ? "" : " (\"\\n\" c)*");
    di_buf_adds(out, " \"\\n</" D " calls>\"");
    if (content.n) {
        di_buf_adds(out, " | ");
        di_buf_addv(out, content);
    }
    di_buf_adds(out,
                "\nTEXT: /.*/s\n"
                "any: \"<" D " parameter name=\\\"\" /[^\"\\n]+/ \"\\\" string=\\\"\" (\"true\\\">\" TEXT | \"false\\\">\" %json {}) \"</" D
                " parameter>\"\nc: ");
    for (const struct di_chat_tool *t = chat->tools; t; t = t->next)
        if (t->offered) {
            di_buf_addf(out, "%sc%zu", tool ? " | " : "", tool);
            tool++;
        }
    di_buf_addc(out, '\n');
    tool = 0;
    for (const struct di_chat_tool *t = chat->tools; t; t = t->next)
        if (t->offered)
            TRY(write_tool(&w, t, tool++));
    TRY(di_buf_ok(out, err));
out:
    return status;
}
