#include "text/schema.h"

#include <stdlib.h>

enum kind {
    K_SCHEMA, /* a schema */
    K_ITEMS,  /* a schema, or the list of schemas of older drafts */
    K_LIST,   /* a list of schemas, not empty */
    K_MAP,    /* an object of schemas */
    K_STRING,
    K_BOOL,
    K_NUMBER,
    K_POSITIVE,
    K_COUNT, /* an integer, not negative */
    K_NAMES, /* a list of different strings */
    K_TYPE,  /* a type name or a list of them */
    K_ARRAY
};

static const struct {
    const char *name;
    enum kind kind;
} keywords[] = {
    {"type", K_TYPE},
    {"properties", K_MAP},
    {"required", K_NAMES},
    {"additionalProperties", K_SCHEMA},
    {"items", K_ITEMS},
    {"description", K_STRING},
    {"title", K_STRING},
    {"enum", K_ARRAY},
    {"examples", K_ARRAY},
    {"$ref", K_STRING},
    {"$defs", K_MAP},
    {"definitions", K_MAP},
    {"anyOf", K_LIST},
    {"allOf", K_LIST},
    {"oneOf", K_LIST},
    {"prefixItems", K_LIST},
    {"not", K_SCHEMA},
    {"if", K_SCHEMA},
    {"then", K_SCHEMA},
    {"else", K_SCHEMA},
    {"contains", K_SCHEMA},
    {"propertyNames", K_SCHEMA},
    {"unevaluatedItems", K_SCHEMA},
    {"unevaluatedProperties", K_SCHEMA},
    {"patternProperties", K_MAP},
    {"dependentSchemas", K_MAP},
    {"format", K_STRING},
    {"pattern", K_STRING},
    {"$schema", K_STRING},
    {"$id", K_STRING},
    {"$anchor", K_STRING},
    {"$comment", K_STRING},
    {"contentEncoding", K_STRING},
    {"contentMediaType", K_STRING},
    {"uniqueItems", K_BOOL},
    {"readOnly", K_BOOL},
    {"writeOnly", K_BOOL},
    {"deprecated", K_BOOL},
    {"minimum", K_NUMBER},
    {"maximum", K_NUMBER},
    {"exclusiveMinimum", K_NUMBER},
    {"exclusiveMaximum", K_NUMBER},
    {"multipleOf", K_POSITIVE},
    {"minLength", K_COUNT},
    {"maxLength", K_COUNT},
    {"minItems", K_COUNT},
    {"maxItems", K_COUNT},
    {"minProperties", K_COUNT},
    {"maxProperties", K_COUNT},
    {"minContains", K_COUNT},
    {"maxContains", K_COUNT},
};

static const char *const type_names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
enum { T_OBJECT, T_ARRAY, T_STRING, T_NUMBER, T_INTEGER, T_BOOLEAN, T_NULL, T_COUNT };

static int type_of(const struct di_json *v)
{
    for (int i = 0; di_json_is(v, DI_JSON_STRING) && i < T_COUNT; i++)
        if (di_str_eqc(v->text, type_names[i]))
            return i;
    return -1;
}

static di_status check_type(const struct di_json *v, const struct di_path *at, di_error *err)
{
    if (type_of(v) >= 0)
        return DI_OK;
    if (!di_json_is(v, DI_JSON_ARRAY))
        return di_path_fail(err, at, "must be a JSON Schema type name or a list of them");
    size_t i = 0;
    for (const struct di_json *m = v->child; m; m = m->next, i++)
        if (type_of(m) < 0)
            return di_path_fail(err, DI_ITEM(at, i), "must be a JSON Schema type name");
    return DI_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct di_str *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* The strings of a list, sorted, in heap memory. */
static di_status sorted_names(const struct di_json *v, const struct di_path *at, struct di_str **out, di_error *err)
{
    if (!di_json_is(v, DI_JSON_ARRAY))
        return di_path_fail(err, at, "must be an array of strings, not %s", di_json_type_name(v));
    di_status status = DI_OK;
    size_t i = 0;
    struct di_str *names = di_calloc(v->count, sizeof *names);
    CHECK(names, err, DI_ERR_MEMORY, "", "out of memory for a list of %zu names", v->count);
    for (const struct di_json *m = v->child; m; m = m->next, i++) {
        if (!di_json_is(m, DI_JSON_STRING))
            TRY(di_path_fail(err, DI_ITEM(at, i), "must be a string, not %s", di_json_type_name(m)));
        names[i] = m->text;
    }
    if (v->count > 1)
        qsort(names, v->count, sizeof *names, compare_names);
    for (i = 1; i < v->count; i++)
        if (di_str_eq(names[i - 1], names[i]))
            TRY(di_path_fail(err, at, "names \"%.*s\" twice", di_path_shown(names[i]), names[i].p));
    *out = names;
    return DI_OK;
out:
    di_free(names);
    return status;
}

static di_status check_names(const struct di_json *v, const struct di_path *at, di_error *err)
{
    struct di_str *names = NULL;
    di_status status = sorted_names(v, at, &names, err);
    if (status == DI_OK)
        di_free(names);
    return status;
}

static di_status check_number(const struct di_json *v, enum kind kind, const struct di_path *at, di_error *err)
{
    double x;
    if (!di_json_double(v, &x))
        return di_path_fail(err, at, "must be a number, not %s", di_json_type_name(v));
    if (kind == K_POSITIVE && !(x > 0))
        return di_path_fail(err, at, "must be greater than 0");
    if (kind == K_COUNT && (x < 0 || x != (double)(uint64_t)(x < 1e18 ? x : 1e18)))
        return di_path_fail(err, at, "must be a whole number of at least 0");
    return DI_OK;
}

/* All members of a list or object are schemas. */
static di_status check_children(const struct di_json *v, enum di_json_type want, const struct di_path *at, di_error *err)
{
    if (!di_json_is(v, want))
        return di_path_fail(err, at, "must be an %s of schemas, not %s", want == DI_JSON_ARRAY ? "array" : "object", di_json_type_name(v));
    size_t i = 0;
    for (const struct di_json *m = v->child; m; m = m->next, i++) {
        di_status status = di_schema_check(m, want == DI_JSON_ARRAY ? DI_ITEM(at, i) : DI_MEMBER(at, m->key), err);
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

static di_status check_keyword(const struct di_json *v, enum kind kind, const struct di_path *at, di_error *err)
{
    static const struct {
        enum di_json_type type;
        const char *what;
    } plain[] = {
        [K_STRING] = {DI_JSON_STRING, "a string"}, [K_BOOL] = {DI_JSON_BOOL, "true or false"}, [K_ARRAY] = {DI_JSON_ARRAY, "an array"}};
    switch (kind) {
    case K_SCHEMA: return di_schema_check(v, at, err);
    case K_ITEMS: return di_json_is(v, DI_JSON_ARRAY) ? check_children(v, DI_JSON_ARRAY, at, err) : di_schema_check(v, at, err);
    case K_MAP: return check_children(v, DI_JSON_OBJECT, at, err);
    case K_LIST:
        if (di_json_is(v, DI_JSON_ARRAY) && v->count == 0)
            return di_path_fail(err, at, "must not be empty");
        return check_children(v, DI_JSON_ARRAY, at, err);
    case K_NUMBER:
    case K_POSITIVE:
    case K_COUNT: return check_number(v, kind, at, err);
    case K_NAMES: return check_names(v, at, err);
    case K_TYPE: return check_type(v, at, err);
    case K_STRING:
    case K_BOOL:
    case K_ARRAY: break;
    }
    if (!di_json_is(v, plain[kind].type))
        return di_path_fail(err, at, "must be %s, not %s", plain[kind].what, di_json_type_name(v));
    return DI_OK;
}

di_status di_schema_check(const struct di_json *schema, const struct di_path *at, di_error *err)
{
    if (di_json_is(schema, DI_JSON_BOOL))
        return DI_OK;
    if (!di_json_is(schema, DI_JSON_OBJECT))
        return di_path_fail(err, at, "must be a JSON Schema: an object or a boolean, not %s", di_json_type_name(schema));
    for (const struct di_json *m = schema->child; m; m = m->next)
        for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++)
            if (di_str_eqc(m->key, keywords[k].name)) {
                di_status status = check_keyword(m, keywords[k].kind, DI_MEMBER(at, m->key), err);
                if (status != DI_OK)
                    return status;
                break;
            }
    return DI_OK;
}

/* ---- strict form ---- */

struct strict {
    struct di_arena *arena;
    di_error *err;
};

static di_status new_value(struct strict *s, enum di_json_type type, struct di_json **out)
{
    struct di_json *v = di_arena_alloc(s->arena, sizeof *v);
    *out = v;
    if (!v)
        return di_fail(s->err, DI_ERR_MEMORY, "", "out of memory while normalising a schema");
    *v = (struct di_json){.type = type};
    return DI_OK;
}

/* Append `v` (made here, not shared) to the object or list. */
static void append(struct di_json *to, struct di_json ***tail, struct di_str key, struct di_json *v)
{
    v->key = key;
    v->next = NULL;
    **tail = v;
    *tail = &v->next;
    to->count++;
}

static di_status copy(struct strict *s, const struct di_json *v, struct di_json **out)
{
    di_status status = new_value(s, v->type, out);
    if (status == DI_OK)
        **out = *v; /* children are shared, they are never changed */
    return status;
}

static di_status strict_node(struct strict *s, const struct di_json *in, bool top, const struct di_path *at, struct di_json **out);

/* `properties`, `$def` and the like: every member normalised. */
static di_status strict_map(struct strict *s, const struct di_json *in, const struct di_path *at, struct di_json **out)
{
    di_status status = DI_OK;
    TRY(new_value(s, DI_JSON_OBJECT, out));
    struct di_json **tail = &(*out)->child;
    for (const struct di_json *m = in ? in->child : NULL; m; m = m->next) {
        struct di_json *node;
        TRY(strict_node(s, m, false, DI_MEMBER(at, m->key), &node));
        append(*out, &tail, m->key, node);
    }
out:
    return status;
}

/* The `required` of an object: all its properties; a list that was sent must name exactly those. */
static di_status strict_required(struct strict *s, const struct di_json *in, const struct di_json *properties, const struct di_path *at,
                                 struct di_json **out)
{
    di_status status = DI_OK;
    struct di_str *sent = NULL, *have = NULL;
    const struct di_json *list = di_json_get(in, "required");
    TRY(new_value(s, DI_JSON_ARRAY, out));
    struct di_json **tail = &(*out)->child;
    for (const struct di_json *m = properties->child; m; m = m->next) {
        struct di_json *name;
        TRY(new_value(s, DI_JSON_STRING, &name));
        name->text = m->key;
        append(*out, &tail, (struct di_str){0}, name);
    }
    if (list && list->type != DI_JSON_NULL) {
        const struct di_path *here = DI_FIELD(at, "required");
        TRY(sorted_names(list, here, &sent, s->err));
        TRY(sorted_names(*out, here, &have, s->err));
        bool same = list->count == (*out)->count;
        for (size_t i = 0; same && i < list->count; i++)
            same = di_str_eq(sent[i], have[i]);
        if (!same)
            TRY(di_path_fail(s->err, here, "must list exactly the properties of the object, since the tool is strict"));
    }
out:
    di_free(sent);
    di_free(have);
    return status;
}

static di_status strict_object(struct strict *s, const struct di_json *in, bool top, const struct di_path *at, struct di_json *out,
                               struct di_json **tail)
{
    di_status status = DI_OK;
    struct di_json *properties, *additional, *required;
    const struct di_json *given = di_json_get(in, "properties"), *extra = di_json_get(in, "additionalProperties");
    if (given && given->type == DI_JSON_NULL)
        given = NULL;
    if (given && given->type != DI_JSON_OBJECT)
        TRY(di_path_fail(s->err, DI_FIELD(at, "properties"), "must be an object, not %s", di_json_type_name(given)));
    if ((!given || given->count == 0) && !top)
        TRY(di_path_fail(s->err, at, "is an object without properties, which a strict tool may only have at the top"));
    if (extra && extra->type != DI_JSON_NULL && (extra->type != DI_JSON_BOOL || extra->boolean))
        TRY(di_path_fail(s->err, DI_FIELD(at, "additionalProperties"), "must be false, since the tool is strict"));
    TRY(strict_map(s, given, DI_FIELD(at, "properties"), &properties));
    append(out, &tail, DI_STR("properties"), properties);
    TRY(new_value(s, DI_JSON_BOOL, &additional));
    append(out, &tail, DI_STR("additionalProperties"), additional);
    TRY(strict_required(s, in, properties, at, &required));
    append(out, &tail, DI_STR("required"), required);
    const struct di_json *description = di_json_get(in, "description"), *def = di_json_get(in, "$def");
    struct di_json *v;
    if (description && description->type != DI_JSON_NULL) {
        if (description->type != DI_JSON_STRING)
            TRY(di_path_fail(s->err, DI_FIELD(at, "description"), "must be a string, not %s", di_json_type_name(description)));
        TRY(copy(s, description, &v));
        append(out, &tail, DI_STR("description"), v);
    }
    if (def && def->type != DI_JSON_NULL) {
        if (def->type != DI_JSON_OBJECT)
            TRY(di_path_fail(s->err, DI_FIELD(at, "$def"), "must be an object, not %s", di_json_type_name(def)));
        TRY(strict_map(s, def, DI_FIELD(at, "$def"), &v));
        append(out, &tail, DI_STR("$def"), v);
    }
out:
    return status;
}

enum value_kind { V_STRING, V_STRINGS, V_INTEGER, V_NUMBER, V_FORMAT };

/* Keywords of the simple types, in the order in which they are shown. */
static const struct {
    const char *name;
    enum value_kind kind;
    unsigned types;
} simple[] = {
    {"description", V_STRING, 1u << T_STRING | 1u << T_NUMBER | 1u << T_INTEGER | 1u << T_BOOLEAN | 1u << T_NULL},
    {"pattern", V_STRING, 1u << T_STRING},
    {"format", V_FORMAT, 1u << T_STRING},
    {"enum", V_STRINGS, 1u << T_STRING},
    {"const", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
    {"default", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
    {"minimum", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
    {"maximum", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
    {"exclusiveMinimum", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
    {"exclusiveMaximum", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
    {"multipleOf", V_NUMBER, 1u << T_NUMBER | 1u << T_INTEGER},
};
static const char *const formats[] = {"email", "hostname", "ipv4", "ipv6", "uuid"};

static bool integer_literal(const struct di_json *v)
{
    for (size_t i = 0; i < v->text.n; i++)
        if (v->text.p[i] == '.' || v->text.p[i] == 'e' || v->text.p[i] == 'E')
            return false;
    return true;
}

static di_status check_value(struct strict *s, const struct di_json *v, enum value_kind kind, const struct di_path *at)
{
    size_t i = 0;
    switch (kind) {
    case V_STRING:
    case V_FORMAT:
        if (v->type != DI_JSON_STRING)
            return di_path_fail(s->err, at, "must be a string, not %s", di_json_type_name(v));
        for (; kind == V_FORMAT && i < sizeof formats / sizeof *formats; i++)
            if (di_str_eqc(v->text, formats[i]))
                return DI_OK;
        return kind == V_STRING ? DI_OK
                                : di_path_fail(s->err, at, "must be one of email, hostname, ipv4, ipv6 and uuid, since the tool is strict");
    case V_STRINGS:
        if (v->type != DI_JSON_ARRAY)
            return di_path_fail(s->err, at, "must be an array of strings, not %s", di_json_type_name(v));
        for (const struct di_json *m = v->child; m; m = m->next, i++)
            if (m->type != DI_JSON_STRING)
                return di_path_fail(s->err, DI_ITEM(at, i), "must be a string, not %s", di_json_type_name(m));
        return DI_OK;
    case V_INTEGER:
        if (v->type != DI_JSON_NUMBER || !integer_literal(v))
            return di_path_fail(s->err, at, "must be an integer");
        return DI_OK;
    case V_NUMBER:
        if (v->type != DI_JSON_NUMBER)
            return di_path_fail(s->err, at, "must be a number, not %s", di_json_type_name(v));
        return DI_OK;
    }
    return DI_OK;
}

static di_status strict_simple(struct strict *s, const struct di_json *in, int type, const struct di_path *at, struct di_json *out,
                               struct di_json **tail)
{
    di_status status = DI_OK;
    for (size_t k = 0; k < sizeof simple / sizeof *simple; k++) {
        const struct di_json *v = simple[k].types >> type & 1 ? di_json_get(in, simple[k].name) : NULL;
        if (!v || v->type == DI_JSON_NULL)
            continue;
        struct di_str key = di_str_c(simple[k].name);
        enum value_kind kind = simple[k].kind == V_NUMBER && type == T_INTEGER ? V_INTEGER : simple[k].kind;
        struct di_json *copied;
        TRY(check_value(s, v, kind, DI_MEMBER(at, key)));
        TRY(copy(s, v, &copied));
        append(out, &tail, key, copied);
    }
out:
    return status;
}

static di_status add_description(struct strict *s, const struct di_json *in, const struct di_path *at, struct di_json *out,
                                 struct di_json **tail)
{
    return strict_simple(s, in, T_NULL, at, out, tail);
}

static di_status strict_array(struct strict *s, const struct di_json *in, const struct di_path *at, struct di_json *out,
                              struct di_json **tail)
{
    di_status status = DI_OK;
    struct di_json *items;
    TRY(strict_node(s, di_json_get(in, "items"), false, DI_FIELD(at, "items"), &items));
    append(out, &tail, DI_STR("items"), items);
    TRY(add_description(s, in, at, out, tail));
out:
    return status;
}

static di_status strict_any_of(struct strict *s, const struct di_json *in, const struct di_json *list, const struct di_path *at,
                               struct di_json *out, struct di_json **tail)
{
    di_status status = DI_OK;
    struct di_json *any;
    const struct di_path *here = DI_FIELD(at, "anyOf");
    if (list->type != DI_JSON_ARRAY)
        TRY(di_path_fail(s->err, here, "must be an array, not %s", di_json_type_name(list)));
    TRY(new_value(s, DI_JSON_ARRAY, &any));
    struct di_json **end = &any->child;
    size_t i = 0;
    for (const struct di_json *m = list->child; m; m = m->next, i++) {
        struct di_json *node;
        TRY(strict_node(s, m, false, DI_ITEM(here, i), &node));
        append(any, &end, (struct di_str){0}, node);
    }
    append(out, &tail, DI_STR("anyOf"), any);
    TRY(add_description(s, in, at, out, tail));
out:
    return status;
}

static di_status strict_typed(struct strict *s, const struct di_json *in, bool top, const struct di_path *at, struct di_json *out,
                              struct di_json **tail)
{
    di_status status = DI_OK;
    const struct di_json *type = di_json_get(in, "type");
    const struct di_path *here = DI_FIELD(at, "type");
    struct di_json *v;
    TRY(check_type(type, here, s->err));
    TRY(copy(s, type, &v));
    append(out, &tail, DI_STR("type"), v);
    if (type->type == DI_JSON_ARRAY) {
        size_t i = 0;
        for (const struct di_json *m = type->child; m; m = m->next, i++)
            if (type_of(m) <= T_ARRAY)
                TRY(di_path_fail(s->err, DI_ITEM(here, i), "must be a simple type, since the tool is strict"));
        return add_description(s, in, at, out, tail);
    }
    int t = type_of(type);
    if (t == T_OBJECT)
        return strict_object(s, in, top, at, out, tail);
    return t == T_ARRAY ? strict_array(s, in, at, out, tail) : strict_simple(s, in, t, at, out, tail);
out:
    return status;
}

static di_status strict_node(struct strict *s, const struct di_json *in, bool top, const struct di_path *at, struct di_json **out)
{
    di_status status = DI_OK;
    const struct di_json *type = di_json_get(in, "type"), *any = di_json_get(in, "anyOf"), *ref = di_json_get(in, "$ref");
    TRY(new_value(s, DI_JSON_OBJECT, out));
    struct di_json **tail = &(*out)->child;
    if (top && (!di_json_is(type, DI_JSON_STRING) || type_of(type) != T_OBJECT))
        return di_path_fail(s->err, at, "must have \"type\": \"object\"");
    if (type && type->type != DI_JSON_NULL)
        return strict_typed(s, in, top, at, *out, tail);
    if (any && any->type != DI_JSON_NULL)
        return strict_any_of(s, in, any, at, *out, tail);
    if (!di_json_is(ref, DI_JSON_STRING))
        return di_path_fail(s->err, at, "must have one of type, anyOf and $ref, since the tool is strict");
    struct di_json *v;
    TRY(copy(s, ref, &v));
    append(*out, &tail, DI_STR("$ref"), v);
out:
    return status;
}

di_status di_schema_strict(const struct di_json *schema, struct di_arena *arena, const struct di_path *at, struct di_json **out,
                           di_error *err)
{
    static struct di_json object = {.type = DI_JSON_STRING, .key = {"type", 4}, .text = {"object", 6}};
    static const struct di_json empty = {.type = DI_JSON_OBJECT, .count = 1, .child = &object};
    return strict_node(&(struct strict){arena, err}, schema ? schema : &empty, true, at, out);
}
