/* Structural tags: free text in which some beginnings must go on as told. Both forms that engines read: {"structures", "triggers"} and
 * {"format": {"type": ...}}. */
#include "grammar/cfg.h"

#include <stdio.h>

static di_status build(struct di_grammar *g, const struct di_json *v, unsigned depth, struct cfg_part **out, di_error *err);

static di_status wrong(di_error *err, const char *field, const char *what)
{
    return di_fail(err, DI_ERR_INVALID, field, "%s was expected in a structural tag", what);
}

static struct cfg_part *text_part(struct di_grammar *g, struct di_str s)
{
    g->rx.depth = 0;
    return cfg_rx(g, rx_literal(&g->rx, s));
}

/* Any text in which none of the strings occurs. */
static struct cfg_part *text_without(struct di_grammar *g, const struct di_json *list)
{
    rx_id any = RX_NONE;
    for (const struct di_json *v = list ? list->child : NULL; v; v = v->next) {
        g->rx.depth = 0;
        any = rx_or(&g->rx, any, rx_cat(&g->rx, g->rx.any_text, rx_cat(&g->rx, rx_literal(&g->rx, v->text), g->rx.any_text)));
    }
    return cfg_rx(g, any == RX_NONE ? g->rx.any_text : rx_not(&g->rx, any));
}

static bool strings(const struct di_json *v)
{
    if (!di_json_is(v, DI_JSON_ARRAY))
        return false;
    for (const struct di_json *m = v->child; m; m = m->next)
        if (m->type != DI_JSON_STRING || !m->text.n)
            return false;
    return true;
}

static struct cfg_part *schema_part(struct di_grammar *g, const struct di_json *schema)
{
    struct cfg_part *p = cfg_part(g, CFG_JSON, NULL, 0);
    if (p)
        p->schema = schema;
    return p;
}

/* begin, content, end. `end` may be a list of alternatives. */
static di_status build_tag(struct di_grammar *g, const struct di_json *v, unsigned depth, struct cfg_part **out, di_error *err)
{
    const struct di_json *begin = di_json_get(v, "begin"), *end = di_json_get(v, "end"), *content = di_json_get(v, "content"),
                         *schema = di_json_get(v, "schema");
    struct cfg_part *parts[3];
    if (!di_json_is(begin, DI_JSON_STRING) || !(di_json_is(end, DI_JSON_STRING) || (strings(end) && end->count)))
        return wrong(err, "begin", "a tag with the strings begin and end");
    parts[0] = text_part(g, begin->text);
    if (end->type == DI_JSON_STRING) {
        parts[2] = text_part(g, end->text);
    } else {
        rx_id any = RX_NONE;
        for (const struct di_json *m = end->child; m; m = m->next)
            any = rx_or(&g->rx, any, rx_literal(&g->rx, m->text));
        parts[2] = cfg_rx(g, any);
    }
    di_status status = DI_OK;
    if (content && di_json_is(di_json_get(content, "type"), DI_JSON_STRING) && di_str_eqc(di_json_get(content, "type")->text, "any_text") &&
        end->type == DI_JSON_STRING && end->text.n) {
        struct di_json only = {.type = DI_JSON_ARRAY, .count = 1}, copy = *end;
        copy.next = NULL;
        only.child = &copy;
        parts[1] = text_without(g, &only); /* the text ends where the end begins */
    } else if (content) {
        status = build(g, content, depth + 1, &parts[1], err);
    } else if (schema) {
        parts[1] = schema_part(g, schema);
    } else {
        return wrong(err, "content", "the content of a tag");
    }
    if (status == DI_OK)
        *out = cfg_part(g, CFG_SEQUENCE, parts, 3);
    return status;
}

/* All members of a list as parts. */
static di_status build_list(struct di_grammar *g, const struct di_json *list, bool tags, unsigned depth, enum cfg_op op,
                            struct cfg_part **out, di_error *err)
{
    if (!di_json_is(list, DI_JSON_ARRAY) || !list->count)
        return wrong(err, tags ? "tags" : "elements", "a list");
    struct cfg_part **parts = di_malloc(list->count * sizeof *parts);
    size_t n = 0;
    di_status status = DI_OK;
    CHECK(parts, err, DI_ERR_MEMORY, "", "out of memory for a grammar");
    for (const struct di_json *v = list->child; v; v = v->next, n++)
        TRY(tags ? build_tag(g, v, depth, &parts[n], err) : build(g, v, depth + 1, &parts[n], err));
    *out = cfg_part(g, op, parts, n);
out:
    di_free(parts);
    return status;
}

/* Free text and tags in turn; every tag must begin with a trigger, and the text has none. */
static di_status build_triggered(struct di_grammar *g, const struct di_json *tags, const struct di_json *triggers, bool at_least_one,
                                 bool stop_after_first, unsigned depth, struct cfg_part **out, di_error *err)
{
    struct cfg_part *tag = NULL, *parts[2];
    if (!strings(triggers) || !triggers->count)
        return wrong(err, "triggers", "a list of strings");
    for (const struct di_json *v = di_json_is(tags, DI_JSON_ARRAY) ? tags->child : NULL; v; v = v->next) {
        const struct di_json *begin = di_json_get(v, "begin"), *t = triggers->child;
        while (t && di_json_is(begin, DI_JSON_STRING) && !di_str_starts(begin->text, t->text))
            t = t->next;
        if (!t)
            return di_fail(err, DI_ERR_INVALID, "triggers", "a tag of the structural tag begins with no trigger");
    }
    di_status status = build_list(g, tags, true, depth, CFG_EITHER, &tag, err);
    if (status != DI_OK)
        return status;
    struct cfg_part *text = text_without(g, triggers), *round[2] = {tag, text}, *both = cfg_part(g, CFG_SEQUENCE, round, 2);
    if (stop_after_first) {
        struct cfg_part *once[2] = {text, at_least_one ? tag : cfg_repeat(g, tag, 0, 1)};
        *out = cfg_part(g, CFG_SEQUENCE, once, 2);
        return DI_OK;
    }
    parts[0] = text;
    parts[1] = cfg_repeat(g, both, at_least_one, RX_MANY);
    *out = cfg_part(g, CFG_SEQUENCE, parts, 2);
    return DI_OK;
}

static bool flag(const struct di_json *v, const char *name)
{
    const struct di_json *m = di_json_get(v, name);
    return di_json_is(m, DI_JSON_BOOL) && m->boolean;
}

static di_status build(struct di_grammar *g, const struct di_json *v, unsigned depth, struct cfg_part **out, di_error *err)
{
    const struct di_json *type = di_json_get(v, "type"), *m;
    di_status status = DI_OK;
    rx_id rx = RX_NONE;
    if (!di_json_is(type, DI_JSON_STRING))
        return wrong(err, "type", "the name of a type");
    if (depth > 100)
        return di_fail(err, DI_ERR_LIMIT, "format", "a structural tag is nested more than 100 deep");
    if (di_str_eqc(type->text, "const_string") || di_str_eqc(type->text, "literal")) {
        if (!di_json_is(m = di_json_get(v, type->text.n == 7 ? "text" : "value"), DI_JSON_STRING))
            return wrong(err, "value", "a string");
        *out = text_part(g, m->text);
    } else if (di_str_eqc(type->text, "json_schema")) {
        if (!(m = di_json_get(v, "json_schema")))
            return wrong(err, "json_schema", "a schema");
        *out = schema_part(g, m);
    } else if (di_str_eqc(type->text, "regex")) {
        if (!di_json_is(m = di_json_get(v, "pattern"), DI_JSON_STRING))
            return wrong(err, "pattern", "a regular expression");
        TRY(rx_parse(&g->rx, m->text, 0, &rx, err));
        *out = cfg_rx(g, rx);
    } else if (di_str_eqc(type->text, "any_text")) {
        m = di_json_get(v, "excludes");
        if (m && !strings(m))
            return wrong(err, "excludes", "a list of strings");
        *out = text_without(g, m);
    } else if (di_str_eqc(type->text, "sequence") || di_str_eqc(type->text, "or")) {
        TRY(build_list(g, di_json_get(v, "elements"), false, depth, type->text.n == 2 ? CFG_EITHER : CFG_SEQUENCE, out, err));
    } else if (di_str_eqc(type->text, "tag")) {
        TRY(build_tag(g, v, depth, out, err));
    } else if (di_str_eqc(type->text, "triggered_tags")) {
        TRY(build_triggered(g, di_json_get(v, "tags"), di_json_get(v, "triggers"), flag(v, "at_least_one"), flag(v, "stop_after_first"),
                            depth, out, err));
    } else if (di_str_eqc(type->text, "tags_with_separator")) {
        struct cfg_part *tag = NULL, *more[2], *parts[2];
        if (!di_json_is(m = di_json_get(v, "separator"), DI_JSON_STRING))
            return wrong(err, "separator", "a string");
        TRY(build_list(g, di_json_get(v, "tags"), true, depth, CFG_EITHER, &tag, err));
        more[0] = text_part(g, m->text);
        more[1] = tag;
        parts[0] = tag;
        parts[1] = cfg_repeat(g, cfg_part(g, CFG_SEQUENCE, more, 2), 0, flag(v, "stop_after_first") ? 0 : RX_MANY);
        *out = cfg_part(g, CFG_SEQUENCE, parts, 2);
        if (!flag(v, "at_least_one"))
            *out = cfg_repeat(g, *out, 0, 1);
    } else {
        return di_fail(err, DI_ERR_UNSUPPORTED, "format", "the type \"%.*s\" of a structural tag is not enforced",
                       (int)(type->text.n < 60 ? type->text.n : 60), type->text.p);
    }
    TRY(gr_health(g, err));
out:
    return status;
}

di_status structural_read(struct di_grammar *g, struct di_str text, di_error *err)
{
    struct di_json *root;
    struct cfg_part *body = NULL;
    di_status status = DI_OK;
    TRY(di_json_parse(text, &(struct di_json_limits){.max_depth = 256}, &g->arena, &root, err));
    const struct di_json *format = di_json_get(root, "format"), *structures = di_json_get(root, "structures");
    if (format)
        TRY(build(g, format, 0, &body, err));
    else
        TRY(build_triggered(g, structures, di_json_get(root, "triggers"), false, false, 0, &body, err));
    uint32_t rule = cfg_rule_named(g, DI_STR("root"), 1);
    TRY(gr_health(g, err));
    g->cfg->rules[rule].body = body;
    g->cfg->root = rule;
out:
    return status;
}
