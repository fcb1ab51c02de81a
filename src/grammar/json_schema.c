#include "grammar/json_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool schema_grow(void **items, size_t *cap, size_t need, size_t each)
{
    if (need <= *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 32, bytes;
    while (want < need)
        want *= 2;
    void *bigger = di_mul(want, each, &bytes) ? di_realloc(*items, bytes) : NULL;
    if (!bigger)
        return false;
    *items = bigger;
    *cap = want;
    return true;
}

di_status schema_no_memory(di_error *err)
{
    return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a schema");
}

/* ---- places ---- */

static void add_place(const struct schemas *s, uint32_t id, struct di_buf *b)
{
    uint32_t chain[64];
    size_t n = 0;
    for (; id > SCHEMA_NONE && id != NO_SCHEMA && n < 64; id = s->v[id].up)
        chain[n++] = id;
    while (n-- > 0) {
        const struct schema *x = s->v + chain[n];
        if (!x->label) { /* the target of a reference */
            di_buf_addv(b, x->key);
            continue;
        }
        if (*x->label)
            di_buf_addf(b, "/%s", x->label);
        if (x->key.p)
            di_buf_addf(b, "/%.*s", (int)(x->key.n < 60 ? x->key.n : 60), x->key.p);
        else if (x->index != NO_SCHEMA)
            di_buf_addf(b, "/%u", x->index);
    }
}

di_status schema_fail(struct schemas *s, di_status code, uint32_t id, const char *keyword, const char *fmt, ...)
{
    struct di_buf place = {0};
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_place(s, id, &place);
    if (*keyword)
        di_buf_addf(&place, "/%s", keyword);
    di_fail(s->err, code, place.n ? place.p : "/", "%s", text);
    di_buf_fini(&place);
    return code;
}

/* ---- records ---- */

static uint32_t add_schema(struct schemas *s, uint32_t up, const char *label)
{
    if (s->n >= s->limit) {
        schema_fail(s, DI_ERR_LIMIT, up, label ? label : "", "the schema has more than %zu parts (the limit schema_nodes)", s->limit);
        return NO_SCHEMA;
    }
    if (!schema_grow((void **)&s->v, &s->cap, s->n + 1, sizeof *s->v)) {
        schema_no_memory(s->err);
        return NO_SCHEMA;
    }
    s->v[s->n] = (struct schema){.up = up,
                                 .label = label,
                                 .index = NO_SCHEMA,
                                 .types = T_ALL,
                                 .draft = up < s->n && up != NO_SCHEMA ? s->v[up].draft : DRAFT_UNNAMED,
                                 .max_length = RX_MANY,
                                 .items = NO_SCHEMA,
                                 .contains = NO_SCHEMA,
                                 .other_items = NO_SCHEMA,
                                 .max_items = RX_MANY,
                                 .min_contains = 1,
                                 .max_contains = RX_MANY,
                                 .additional = NO_SCHEMA,
                                 .names = NO_SCHEMA,
                                 .other_properties = NO_SCHEMA,
                                 .max_properties = RX_MANY,
                                 .not_ = NO_SCHEMA,
                                 .if_ = NO_SCHEMA,
                                 .then_ = NO_SCHEMA,
                                 .else_ = NO_SCHEMA};
    return (uint32_t)s->n++;
}

static bool add_words(struct schemas *s, const uint32_t *v, size_t n, struct span *out)
{
    if (!schema_grow((void **)&s->words, &s->cap_words, s->n_words + n + 1, sizeof *s->words))
        return schema_no_memory(s->err), false;
    *out = (struct span){(uint32_t)s->n_words, (uint32_t)n};
    if (n)
        memcpy(s->words + s->n_words, v, n * sizeof *v);
    s->n_words += n;
    return true;
}

static uint32_t hash_place(const struct di_json *v, uint32_t scope)
{
    uint64_t h = ((uint64_t)(uintptr_t)v ^ scope * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

/* The record for a subschema at this place of the document; read later. */
di_status schema_at(struct schemas *s, const struct di_json *v, uint32_t up, const char *label, struct di_str key, uint32_t index,
                    uint32_t scope, uint32_t resource, uint32_t *out)
{
    struct schema_index *x = s->index;
    if (v->type == DI_JSON_BOOL) {
        *out = v->boolean ? SCHEMA_ANY : SCHEMA_NONE;
        return DI_OK;
    }
    if (v->type != DI_JSON_OBJECT) {
        struct di_buf at = {0};
        di_buf_addf(&at, index != NO_SCHEMA ? "%s/%u" : key.p ? "%s/" : "%s", label ? label : "", index);
        if (key.p && label)
            di_buf_addv(&at, key);
        schema_fail(s, DI_ERR_INVALID, up, at.p ? at.p : "", "a schema was expected, not %s", di_json_type_name(v));
        di_buf_fini(&at);
        return DI_ERR_INVALID;
    }
    if (v->count == 0) {
        *out = SCHEMA_ANY;
        return DI_OK;
    }
    if (x->n_seen >= x->mask / 2) {
        size_t size = x->mask ? (x->mask + 1) * 4 : 256;
        uint32_t *heads = di_malloc(size * sizeof *heads);
        if (!heads)
            return schema_no_memory(s->err);
        memset(heads, 0xFF, size * sizeof *heads);
        for (uint32_t i = 0; i < x->n_seen; i++) {
            uint32_t *head = heads + (hash_place(x->seen[i].v, x->seen[i].scope) & (size - 1));
            x->seen[i].chain = *head;
            *head = i;
        }
        di_free(x->heads);
        x->heads = heads;
        x->mask = size - 1;
    }
    uint32_t *head = x->heads + (hash_place(v, scope) & x->mask);
    for (uint32_t i = *head; i != UINT32_MAX; i = x->seen[i].chain)
        if (x->seen[i].v == v && x->seen[i].scope == scope) {
            *out = x->seen[i].id;
            return DI_OK;
        }
    uint32_t id = add_schema(s, up, label);
    if (id == NO_SCHEMA)
        return s->err ? s->err->code : DI_ERR_LIMIT;
    if (!schema_grow((void **)&x->seen, &x->cap_seen, x->n_seen + 1, sizeof *x->seen))
        return schema_no_memory(s->err);
    head = x->heads + (hash_place(v, scope) & x->mask);
    x->seen[x->n_seen] = (struct seen){v, scope, id, *head};
    *head = (uint32_t)x->n_seen++;
    s->v[id].v = v;
    s->v[id].key = key;
    s->v[id].index = index;
    s->v[id].scope = scope;
    s->v[id].resource = resource;
    s->v[id].draft = x->drafts[resource];
    *out = id;
    return DI_OK;
}

static di_status child(struct schemas *s, uint32_t up, const struct di_json *v, const char *label, struct di_str key, uint32_t index,
                       uint32_t *out)
{
    return schema_at(s, v, up, label, key, index, s->v[up].scope, s->v[up].resource, out);
}

/* ---- values as schemas (enum, const) ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct di_str *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static di_status values_schema(struct schemas *s, uint32_t up, const char *label, const struct di_json *const *values, size_t n,
                               unsigned depth, uint32_t *out);

static di_status compound_schema(struct schemas *s, uint32_t up, const char *label, const struct di_json *v, unsigned depth, uint32_t *out)
{
    uint32_t id = add_schema(s, up, label), part = NO_SCHEMA;
    if (id == NO_SCHEMA)
        return s->err ? s->err->code : DI_ERR_LIMIT;
    *out = id;
    size_t n = 0;
    if (v->type == DI_JSON_ARRAY) {
        uint32_t *ids = di_arena_alloc(s->arena, (v->count + 1) * sizeof *ids);
        if (!ids)
            return schema_no_memory(s->err);
        for (const struct di_json *m = v->child; m; m = m->next, n++) {
            di_status status = values_schema(s, up, label, &m, 1, depth + 1, &ids[n]);
            if (status != DI_OK)
                return status;
        }
        s->v[id].types = T_ARRAY;
        s->v[id].min_items = s->v[id].max_items = (uint32_t)n;
        s->v[id].items = SCHEMA_NONE;
        return add_words(s, ids, n, &s->v[id].prefix) ? DI_OK : DI_ERR_MEMORY;
    }
    struct property *p = di_arena_alloc(s->arena, (v->count + 1) * sizeof *p);
    struct di_str *names = di_arena_alloc(s->arena, (v->count + 1) * sizeof *names);
    if (!p || !names)
        return schema_no_memory(s->err);
    for (const struct di_json *m = v->child; m; m = m->next) {
        if (schema_member(s, v, m->key) != m)
            continue;
        di_status status = values_schema(s, up, label, &m, 1, depth + 1, &part);
        if (status != DI_OK)
            return status;
        p[n] = (struct property){m->key, part};
        names[n++] = m->key;
    }
    struct schema *x = s->v + id;
    x->types = T_OBJECT;
    x->properties = p;
    x->required = names;
    x->n_properties = x->n_required = (uint32_t)n;
    x->additional = SCHEMA_NONE;
    return DI_OK;
}

static di_status values_schema(struct schemas *s, uint32_t up, const char *label, const struct di_json *const *values, size_t n,
                               unsigned depth, uint32_t *out)
{
    if (depth > 100)
        return schema_fail(s, DI_ERR_LIMIT, up, label, "a value nested more than 100 deep");
    uint32_t id = add_schema(s, up, label);
    if (id == NO_SCHEMA)
        return s->err ? s->err->code : DI_ERR_LIMIT;
    struct di_str *texts = di_malloc((n + 1) * sizeof *texts);
    struct number_rule *rule = di_arena_alloc(s->arena, sizeof *rule);
    struct decimal *numbers = di_arena_alloc(s->arena, (n + 1) * sizeof *numbers);
    uint32_t *compound = di_arena_alloc(s->arena, (n + 1) * sizeof *compound);
    size_t n_texts = 0, n_numbers = 0, n_compound = 0;
    uint8_t types = 0;
    di_status status = DI_OK;
    CHECK(texts && rule && numbers && compound, s->err, DI_ERR_MEMORY, "", "out of memory for a schema");
    for (size_t i = 0; i < n; i++) {
        const struct di_json *v = values[i];
        switch (v->type) {
        case DI_JSON_NULL: types |= T_NULL; break;
        case DI_JSON_BOOL: types |= v->boolean ? T_TRUE : T_FALSE; break;
        case DI_JSON_STRING:
            types |= T_STRING;
            texts[n_texts++] = v->text;
            break;
        case DI_JSON_NUMBER:
            types |= T_NUMBER;
            if (!decimal_read(s->arena, v->text, &numbers[n_numbers++])) {
                status = schema_fail(s, DI_ERR_LIMIT, up, label, "a number with more than 4,000 characters or an exponent beyond 900");
                goto out;
            }
            break;
        default:
            types |= v->type == DI_JSON_ARRAY ? T_ARRAY : T_OBJECT;
            TRY(compound_schema(s, up, label, v, depth, &compound[n_compound]));
            n_compound++;
        }
    }
    s->v[id].types = types;
    if (n_texts) {
        size_t kept = 0;
        qsort(texts, n_texts, sizeof *texts, by_bytes);
        for (size_t i = 0; i < n_texts; i++)
            if (!kept || by_bytes(&texts[kept - 1], &texts[i]) != 0)
                texts[kept++] = texts[i];
        s->rx->depth = 0;
        s->v[id].has_text = true;
        s->v[id].text = rx_words(s->rx, texts, kept);
    }
    if (n_numbers) {
        *rule = (struct number_rule){.has_set = true, .set = numbers, .n_set = (uint32_t)n_numbers};
        s->v[id].number = rule;
    }
    if (n_compound) { /* for arrays and objects only; the branch for all others is one that every other value matches */
        uint32_t scalar = add_schema(s, up, label);
        if (scalar == NO_SCHEMA) {
            status = DI_ERR_LIMIT;
            goto out;
        }
        s->v[scalar].types = T_ALL & ~(T_ARRAY | T_OBJECT);
        compound[n_compound++] = scalar;
        if (!add_words(s, compound, n_compound, &s->v[id].any_of))
            status = DI_ERR_MEMORY;
    }
    *out = id;
out:
    di_free(texts);
    return status;
}

/* ---- keywords ---- */

struct reading { /* of one schema */
    struct schemas *s;
    uint32_t id;
    const struct di_json *v; /* the schema */
    uint32_t extra[8];       /* further members of allOf */
    size_t n_extra;
};

#define SELF (r->s->v + r->id)

static di_status expect(struct reading *r, const struct di_json *m, enum di_json_type type, const char *what)
{
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)(m->key.n < 60 ? m->key.n : 60), m->key.p);
    return m->type == type ? DI_OK : schema_fail(r->s, DI_ERR_INVALID, r->id, key, "%s was expected, not %s", what, di_json_type_name(m));
}

static di_status read_types(struct reading *r, const struct di_json *m)
{
    static const struct {
        const char *name;
        uint8_t types;
    } names[] = {{"null", T_NULL},   {"boolean", T_TRUE | T_FALSE}, {"number", T_NUMBER}, {"integer", T_NUMBER}, {"string", T_STRING},
                 {"array", T_ARRAY}, {"object", T_OBJECT}};
    uint8_t types = 0;
    bool number = false, integer = false;
    const struct di_json *one = m->type == DI_JSON_ARRAY ? m->child : m;
    for (; one; one = m->type == DI_JSON_ARRAY ? one->next : NULL) {
        size_t i = 0;
        while (i < 7 && !(one->type == DI_JSON_STRING && di_str_eqc(one->text, names[i].name)))
            i++;
        if (i == 7)
            return schema_fail(r->s, DI_ERR_INVALID, r->id, "type", "the name of a type was expected");
        types |= names[i].types;
        number |= i == 2;
        integer |= i == 3;
    }
    SELF->types &= types;
    if (integer && !number) {
        if (!SELF->number) {
            SELF->number = di_arena_alloc(r->s->arena, sizeof *SELF->number);
            if (!SELF->number)
                return schema_no_memory(r->s->err);
            *SELF->number = (struct number_rule){0};
        }
        SELF->number->integer = true;
        SELF->number->integer_text = SELF->draft == DRAFT_4;
    }
    return DI_OK;
}

/* A count that limits something; values beyond 2^31 are no limit for a maximum and more than anybody has for a minimum. */
static di_status read_count(struct reading *r, const struct di_json *m, uint32_t *out)
{
    struct decimal d;
    char key[32];
    snprintf(key, sizeof key, "%.*s", (int)(m->key.n < 30 ? m->key.n : 30), m->key.p);
    if (m->type != DI_JSON_NUMBER || !decimal_read(r->s->arena, m->text, &d) || d.negative ||
        (d.n && (int64_t)d.exponent + 1 < (int64_t)d.n))
        return schema_fail(r->s, DI_ERR_INVALID, r->id, key, "a whole number was expected");
    uint64_t v = 0;
    if (d.n && d.exponent > 9) {
        *out = RX_MANY - 1;
        return DI_OK;
    }
    for (int32_t i = 0; d.n && i <= d.exponent; i++)
        v = v * 10 + (i < (int32_t)d.n ? (uint64_t)d.digits[i] : 0);
    *out = v >= RX_MANY ? RX_MANY - 1 : (uint32_t)v;
    return DI_OK;
}

static di_status rule_of(struct reading *r, struct number_rule **out)
{
    if (!SELF->number) {
        SELF->number = di_arena_alloc(r->s->arena, sizeof *SELF->number);
        if (!SELF->number)
            return schema_no_memory(r->s->err);
        *SELF->number = (struct number_rule){0};
    }
    *out = SELF->number;
    return DI_OK;
}

static di_status read_decimal(struct reading *r, const struct di_json *m, struct decimal *out)
{
    char key[32];
    snprintf(key, sizeof key, "%.*s", (int)(m->key.n < 30 ? m->key.n : 30), m->key.p);
    di_status status = expect(r, m, DI_JSON_NUMBER, "a number");
    if (status == DI_OK && !decimal_read(r->s->arena, m->text, out))
        status = schema_fail(r->s, DI_ERR_LIMIT, r->id, key, "a number with more than 4,000 characters or an exponent beyond 900");
    return status;
}

/* minimum and exclusiveMinimum together: the narrower one. */
static void narrow(struct number_rule *n, bool low, struct decimal d, bool open)
{
    bool *has = low ? &n->has_low : &n->has_high, *is_open = low ? &n->open_low : &n->open_high;
    struct decimal *at = low ? &n->low : &n->high;
    int c = *has ? decimal_compare(&d, at) : low ? 1 : -1;
    if (c == 0)
        *is_open |= open;
    if ((low && c > 0) || (!low && c < 0) || !*has) {
        *at = d;
        *is_open = open;
    }
    *has = true;
}

static di_status read_bound(struct reading *r, const struct di_json *m)
{
    bool low = di_str_ends(m->key, DI_STR("inimum")), exclusive = di_str_starts(m->key, DI_STR("exclusive"));
    struct number_rule *n;
    struct decimal d;
    di_status status = DI_OK;
    if (exclusive && m->type == DI_JSON_BOOL && (SELF->draft == DRAFT_4 || SELF->draft == DRAFT_UNNAMED)) /* read beside the bound itself */
        return DI_OK;
    if (exclusive && SELF->draft == DRAFT_4)
        return schema_fail(r->s, DI_ERR_INVALID, r->id, low ? "exclusiveMinimum" : "exclusiveMaximum",
                           "true or false was expected in draft 4");
    TRY(read_decimal(r, m, &d));
    TRY(rule_of(r, &n));
    const struct di_json *open = di_json_get(r->v, low ? "exclusiveMinimum" : "exclusiveMaximum");
    narrow(n, low, d, exclusive || (di_json_is(open, DI_JSON_BOOL) && open->boolean));
out:
    return status;
}

static di_status read_step(struct reading *r, const struct di_json *m)
{
    struct number_rule *n;
    struct decimal d;
    di_status status = DI_OK;
    TRY(read_decimal(r, m, &d));
    if (d.negative || !d.n)
        return schema_fail(r->s, DI_ERR_INVALID, r->id, "multipleOf", "a number above 0 was expected");
    if (d.n > 9 || d.exponent > 8 || d.exponent - (int32_t)d.n + 1 < -18)
        return schema_fail(r->s, DI_ERR_UNSUPPORTED, r->id, "multipleOf", "steps of more than nine digits are not enforced");
    TRY(rule_of(r, &n));
    n->step = d;
out:
    return status;
}

static di_status read_numbers(struct reading *r, const struct di_json *m)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"minLength", offsetof(struct schema, min_length)},         {"maxLength", offsetof(struct schema, max_length)},
                  {"minItems", offsetof(struct schema, min_items)},           {"maxItems", offsetof(struct schema, max_items)},
                  {"minContains", offsetof(struct schema, min_contains)},     {"maxContains", offsetof(struct schema, max_contains)},
                  {"minProperties", offsetof(struct schema, min_properties)}, {"maxProperties", offsetof(struct schema, max_properties)}};
    uint32_t v = 0;
    di_status status = read_count(r, m, &v);
    for (size_t i = 0; i < sizeof fields / sizeof *fields && status == DI_OK; i++)
        if (di_str_eqc(m->key, fields[i].name))
            *(uint32_t *)((char *)SELF + fields[i].offset) = v;
    return status;
}

static di_status add_text(struct reading *r, rx_id id)
{
    SELF->text = SELF->has_text ? rx_and(r->s->rx, SELF->text, id) : id;
    SELF->has_text = true;
    return DI_OK;
}

static di_status read_expression(struct reading *r, const char *keyword, struct di_str text, rx_id *out)
{
    di_error inner = {0};
    di_status status = rx_parse(r->s->rx, text, RX_SEARCH, out, &inner);
    return status == DI_OK ? DI_OK
                           : schema_fail(r->s, status, r->id, keyword, "%s%s%s", inner.message, *inner.where ? ", " : "", inner.where);
}

static di_status read_pattern(struct reading *r, const struct di_json *m)
{
    rx_id id;
    di_status status = DI_OK;
    TRY(expect(r, m, DI_JSON_STRING, "a regular expression"));
    TRY(read_expression(r, "pattern", m->text, &id));
    return add_text(r, id);
out:
    return status;
}

static di_status read_format(struct reading *r, const struct di_json *m)
{
    if (m->type != DI_JSON_STRING)
        return DI_OK;
    rx_id id = format_expression(r->s->rx, m->text);
    return id == RX_NONE ? DI_OK : add_text(r, id);
}

static di_status read_values(struct reading *r, const struct di_json *m)
{
    bool one = di_str_eqc(m->key, "const");
    const struct di_json **list = di_malloc((one ? 1 : m->count + 1) * sizeof *list);
    size_t n = 0;
    di_status status = DI_OK;
    CHECK(list, r->s->err, DI_ERR_MEMORY, "", "out of memory for a schema");
    if (one)
        list[n++] = m;
    else
        TRY(expect(r, m, DI_JSON_ARRAY, "a list of values"));
    for (const struct di_json *v = one ? NULL : m->child; v; v = v->next)
        list[n++] = v;
    TRY(values_schema(r->s, r->id, one ? "const" : "enum", list, n, 0, &r->extra[r->n_extra]));
    r->n_extra++;
out:
    di_free(list);
    return status;
}

static di_status read_list(struct reading *r, const struct di_json *m, const char *label, const uint32_t *more, size_t n_more,
                           struct span *out)
{
    uint32_t *ids = di_malloc((m->count + n_more + 1) * sizeof *ids);
    size_t n = 0;
    di_status status = DI_OK;
    struct span span = {0};
    CHECK(ids, r->s->err, DI_ERR_MEMORY, "", "out of memory for a schema");
    TRY(expect(r, m, DI_JSON_ARRAY, "a list of schemas"));
    for (const struct di_json *v = m->child; v; v = v->next, n++)
        TRY(child(r->s, r->id, v, label, (struct di_str){0}, (uint32_t)n, &ids[n]));
    for (size_t i = 0; i < n_more; i++)
        ids[n++] = more[i];
    if (!add_words(r->s, ids, n, &span))
        status = DI_ERR_MEMORY;
    *out = span;
out:
    di_free(ids);
    return status;
}

static di_status read_branches(struct reading *r, const struct di_json *m)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"anyOf", offsetof(struct schema, any_of)},
                  {"oneOf", offsetof(struct schema, one_of)},
                  {"prefixItems", offsetof(struct schema, prefix)}};
    struct span span;
    for (size_t i = 0; i < 3; i++)
        if (di_str_eqc(m->key, fields[i].name)) {
            di_status status = read_list(r, m, fields[i].name, NULL, 0, &span);
            if (status == DI_OK)
                *(struct span *)((char *)SELF + fields[i].offset) = span;
            if (status == DI_OK && i < 2 && !span.count)
                return schema_fail(r->s, DI_ERR_INVALID, r->id, fields[i].name, "a list of at least one schema was expected");
            return status;
        }
    return DI_OK;
}

static di_status read_one(struct reading *r, const struct di_json *m)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"not", offsetof(struct schema, not_)},
                  {"if", offsetof(struct schema, if_)},
                  {"then", offsetof(struct schema, then_)},
                  {"else", offsetof(struct schema, else_)},
                  {"contains", offsetof(struct schema, contains)},
                  {"propertyNames", offsetof(struct schema, names)},
                  {"additionalProperties", offsetof(struct schema, additional)},
                  {"unevaluatedItems", offsetof(struct schema, other_items)},
                  {"unevaluatedProperties", offsetof(struct schema, other_properties)}};
    uint32_t id = NO_SCHEMA;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (di_str_eqc(m->key, fields[i].name)) {
            di_status status = child(r->s, r->id, m, fields[i].name, (struct di_str){0}, NO_SCHEMA, &id);
            if (status == DI_OK)
                *(uint32_t *)((char *)SELF + fields[i].offset) = id;
            return status;
        }
    return DI_OK;
}

static di_status read_items(struct reading *r, const struct di_json *m)
{
    di_status status = DI_OK;
    uint32_t id = NO_SCHEMA;
    struct span span;
    bool tuple = m->type == DI_JSON_ARRAY;
    if (tuple && SELF->draft == DRAFT_2020)
        return schema_fail(r->s, DI_ERR_INVALID, r->id, "items", "a list is called prefixItems in draft 2020-12");
    if (!tuple) {
        TRY(child(r->s, r->id, m, "items", (struct di_str){0}, NO_SCHEMA, &id));
        SELF->items = id;
        return DI_OK;
    }
    TRY(read_list(r, m, "items", NULL, 0, &span));
    SELF->prefix = span;
    const struct di_json *rest = di_json_get(r->v, "additionalItems");
    if (rest) {
        TRY(child(r->s, r->id, rest, "additionalItems", (struct di_str){0}, NO_SCHEMA, &id));
        SELF->items = id;
    }
out:
    return status;
}

static di_status read_flag(struct reading *r, const struct di_json *m)
{
    di_status status = expect(r, m, DI_JSON_BOOL, "true or false");
    SELF->unique = status == DI_OK && m->boolean;
    return status;
}

static di_status read_properties(struct reading *r, const struct di_json *m)
{
    di_status status = DI_OK;
    uint32_t id = NO_SCHEMA;
    size_t n = 0;
    TRY(expect(r, m, DI_JSON_OBJECT, "an object of schemas"));
    struct property *p = di_arena_alloc(r->s->arena, (m->count + 1) * sizeof *p);
    CHECK(p, r->s->err, DI_ERR_MEMORY, "", "out of memory for a schema");
    for (const struct di_json *v = m->child; v; v = v->next) {
        TRY(child(r->s, r->id, v, "properties", v->key, NO_SCHEMA, &id));
        p[n++] = (struct property){v->key, id};
    }
    SELF->properties = p;
    SELF->n_properties = (uint32_t)n;
out:
    return status;
}

static di_status read_patterns(struct reading *r, const struct di_json *m)
{
    di_status status = DI_OK;
    uint32_t id = NO_SCHEMA;
    size_t n = 0;
    TRY(expect(r, m, DI_JSON_OBJECT, "an object of schemas"));
    struct pattern_property *p = di_arena_alloc(r->s->arena, (m->count + 1) * sizeof *p);
    CHECK(p, r->s->err, DI_ERR_MEMORY, "", "out of memory for a schema");
    for (const struct di_json *v = m->child; v; v = v->next) {
        TRY(child(r->s, r->id, v, "patternProperties", v->key, NO_SCHEMA, &id));
        TRY(read_expression(r, "patternProperties", v->key, &p[n].pattern));
        p[n++].schema = id;
    }
    SELF->patterns = p;
    SELF->n_patterns = (uint32_t)n;
out:
    return status;
}

static di_status read_names(struct reading *r, const struct di_json *m, const char *keyword, struct di_str **out, uint32_t *count)
{
    size_t n = 0;
    if (m->type != DI_JSON_ARRAY)
        return schema_fail(r->s, DI_ERR_INVALID, r->id, keyword, "a list of names was expected, not %s", di_json_type_name(m));
    struct di_str *names = di_arena_alloc(r->s->arena, (m->count + 1) * sizeof *names);
    if (!names)
        return schema_no_memory(r->s->err);
    for (const struct di_json *v = m->child; v; v = v->next) {
        size_t k = 0;
        if (v->type != DI_JSON_STRING)
            return schema_fail(r->s, DI_ERR_INVALID, r->id, keyword, "a list of names was expected");
        while (k < n && n < 64 && !di_str_eq(names[k], v->text))
            k++;
        if (k == n || n >= 64)
            names[n++] = v->text;
    }
    *out = names;
    *count = (uint32_t)n;
    return DI_OK;
}

static di_status read_required(struct reading *r, const struct di_json *m)
{
    struct di_str *names;
    uint32_t n;
    di_status status = read_names(r, m, "required", &names, &n);
    if (status == DI_OK) {
        SELF->required = names;
        SELF->n_required = n;
    }
    return status;
}

static di_status read_dependencies(struct reading *r, const struct di_json *m)
{
    di_status status = DI_OK;
    char label[24];
    snprintf(label, sizeof label, "%.*s", (int)m->key.n, m->key.p);
    bool names_only = di_str_eqc(m->key, "dependentRequired"), schemas_only = di_str_eqc(m->key, "dependentSchemas");
    TRY(expect(r, m, DI_JSON_OBJECT, "an object"));
    struct dependency *d = di_arena_alloc(r->s->arena, (SELF->n_dependencies + m->count + 1) * sizeof *d);
    size_t n = SELF->n_dependencies;
    CHECK(d, r->s->err, DI_ERR_MEMORY, "", "out of memory for a schema");
    if (n)
        memcpy(d, SELF->dependencies, n * sizeof *d);
    for (const struct di_json *v = m->child; v; v = v->next) {
        struct dependency one = {.name = v->key, .schema = NO_SCHEMA};
        if (names_only || (!schemas_only && v->type == DI_JSON_ARRAY))
            TRY(read_names(r, v, label, &one.names, &one.n_names));
        else
            TRY(child(r->s, r->id, v,
                      names_only     ? ""
                      : schemas_only ? "dependentSchemas"
                                     : "dependencies",
                      v->key, NO_SCHEMA, &one.schema));
        d[n++] = one;
    }
    SELF->dependencies = d;
    SELF->n_dependencies = (uint32_t)n;
out:
    return status;
}

static di_status read_reference(struct reading *r, const struct di_json *m)
{
    di_status status = DI_OK;
    TRY(expect(r, m, DI_JSON_STRING, "an address"));
    const char *keyword = di_str_eqc(m->key, "$ref") ? "$ref" : di_str_eqc(m->key, "$dynamicRef") ? "$dynamicRef" : "$recursiveRef";
    TRY(schema_reference(r->s, r->id, keyword, m->text, &r->extra[r->n_extra]));
    r->n_extra++;
out:
    return status;
}

/* Keywords and the drafts that have them; all others have no effect by the standard. */
static const struct keyword {
    const char *name;
    di_status (*read)(struct reading *r, const struct di_json *m);
    uint8_t from, to;
} keywords[] = {
    {"type", read_types, DRAFT_4, DRAFT_UNNAMED},
    {"enum", read_values, DRAFT_4, DRAFT_UNNAMED},
    {"const", read_values, DRAFT_6, DRAFT_UNNAMED},
    {"minimum", read_bound, DRAFT_4, DRAFT_UNNAMED},
    {"maximum", read_bound, DRAFT_4, DRAFT_UNNAMED},
    {"exclusiveMinimum", read_bound, DRAFT_4, DRAFT_UNNAMED},
    {"exclusiveMaximum", read_bound, DRAFT_4, DRAFT_UNNAMED},
    {"multipleOf", read_step, DRAFT_4, DRAFT_UNNAMED},
    {"minLength", read_numbers, DRAFT_4, DRAFT_UNNAMED},
    {"maxLength", read_numbers, DRAFT_4, DRAFT_UNNAMED},
    {"pattern", read_pattern, DRAFT_4, DRAFT_UNNAMED},
    {"format", read_format, DRAFT_4, DRAFT_UNNAMED},
    {"items", read_items, DRAFT_4, DRAFT_UNNAMED},
    {"prefixItems", read_branches, DRAFT_2020, DRAFT_UNNAMED},
    {"minItems", read_numbers, DRAFT_4, DRAFT_UNNAMED},
    {"maxItems", read_numbers, DRAFT_4, DRAFT_UNNAMED},
    {"uniqueItems", read_flag, DRAFT_4, DRAFT_UNNAMED},
    {"contains", read_one, DRAFT_6, DRAFT_UNNAMED},
    {"minContains", read_numbers, DRAFT_2019, DRAFT_UNNAMED},
    {"maxContains", read_numbers, DRAFT_2019, DRAFT_UNNAMED},
    {"unevaluatedItems", read_one, DRAFT_2019, DRAFT_UNNAMED},
    {"properties", read_properties, DRAFT_4, DRAFT_UNNAMED},
    {"patternProperties", read_patterns, DRAFT_4, DRAFT_UNNAMED},
    {"additionalProperties", read_one, DRAFT_4, DRAFT_UNNAMED},
    {"unevaluatedProperties", read_one, DRAFT_2019, DRAFT_UNNAMED},
    {"propertyNames", read_one, DRAFT_6, DRAFT_UNNAMED},
    {"required", read_required, DRAFT_4, DRAFT_UNNAMED},
    {"minProperties", read_numbers, DRAFT_4, DRAFT_UNNAMED},
    {"maxProperties", read_numbers, DRAFT_4, DRAFT_UNNAMED},
    {"dependencies", read_dependencies, DRAFT_4, DRAFT_UNNAMED}, /* later drafts keep it for old schemas */
    {"dependentRequired", read_dependencies, DRAFT_2019, DRAFT_UNNAMED},
    {"dependentSchemas", read_dependencies, DRAFT_2019, DRAFT_UNNAMED},
    {"anyOf", read_branches, DRAFT_4, DRAFT_UNNAMED},
    {"oneOf", read_branches, DRAFT_4, DRAFT_UNNAMED},
    {"not", read_one, DRAFT_4, DRAFT_UNNAMED},
    {"if", read_one, DRAFT_7, DRAFT_UNNAMED},
    {"then", read_one, DRAFT_7, DRAFT_UNNAMED},
    {"else", read_one, DRAFT_7, DRAFT_UNNAMED},
    {"$ref", read_reference, DRAFT_4, DRAFT_UNNAMED},
    {"$recursiveRef", read_reference, DRAFT_2019, DRAFT_2019},
    {"$dynamicRef", read_reference, DRAFT_2020, DRAFT_UNNAMED},
};

/* The rules of hosted services: nothing additional, every property required. */
static di_status make_strict(struct reading *r)
{
    struct schema *x = SELF;
    if (!x->n_properties)
        return DI_OK;
    if (x->additional != NO_SCHEMA && x->additional != SCHEMA_NONE)
        return schema_fail(r->s, DI_ERR_UNSUPPORTED, r->id, "additionalProperties", "strict schemas must have additionalProperties: false");
    x->additional = SCHEMA_NONE;
    x->required = di_arena_alloc(r->s->arena, x->n_properties * sizeof *x->required);
    if (!x->required)
        return schema_no_memory(r->s->err);
    for (uint32_t i = 0; i < x->n_properties; i++)
        x->required[i] = x->properties[i].name;
    x->n_required = x->n_properties;
    return DI_OK;
}

static di_status read_schema(struct schemas *s, uint32_t id)
{
    struct reading reading = {.s = s, .id = id, .v = s->v[id].v}, *r = &reading;
    const struct di_json *all = NULL, *only = NULL;
    di_status status = DI_OK;
    struct span span = {0};
    if (!r->v)
        return DI_OK;
    for (size_t i = 0; i < s->index->n_targets; i++) /* an address of its own: a resource of its own */
        if (s->index->targets[i].v == r->v && !s->index->targets[i].anchor.n && s->index->targets[i].resource != SELF->resource) {
            SELF->resource = s->index->targets[i].resource;
            SELF->scope = schema_enter_scope(s, SELF->scope, SELF->resource);
            SELF->draft = s->index->drafts[SELF->resource];
        }
    uint8_t draft = SELF->draft;
    if (draft <= DRAFT_7)
        only = schema_string(r->v, "$ref"); /* hides what stands beside it */
    for (const struct di_json *m = r->v->child; m; m = m->next) {
        if ((only && m != only) || schema_member(s, r->v, m->key) != m)
            continue;
        if (di_str_eqc(m->key, "allOf")) {
            all = m;
            continue;
        }
        for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
            if (keywords[i].name[0] == (m->key.n ? m->key.p[0] : 0) && di_str_eqc(m->key, keywords[i].name) && draft >= keywords[i].from &&
                draft <= keywords[i].to)
                TRY(keywords[i].read(r, m));
    }
    if (all) {
        TRY(read_list(r, all, "allOf", r->extra, r->n_extra, &span));
        if (span.count == r->n_extra)
            return schema_fail(s, DI_ERR_INVALID, id, "allOf", "a list of at least one schema was expected");
    } else if (!add_words(s, r->extra, r->n_extra, &span)) {
        status = DI_ERR_MEMORY;
    }
    SELF->all_of = span;
    SELF->items_cover_contains = draft >= DRAFT_2020;
    if (s->strict)
        TRY(make_strict(r));
    if (rx_failed(s->rx))
        return s->rx->out_of_memory ? schema_no_memory(s->err)
                                    : schema_fail(s, DI_ERR_LIMIT, id, "", "expressions need more than the limit of regex_nodes");
out:
    return status;
}

di_status schemas_read(struct schemas *s, const struct di_json *root, uint32_t *top, di_error *err)
{
    struct schema_index x = {.root = root};
    uint32_t resource;
    di_status status = DI_OK;
    di_error local = {0};
    s->err = err ? err : &local;
    s->index = &x;
    if (s->n == 0) { /* a grammar may have several */
        add_schema(s, NO_SCHEMA, "");
        if (add_schema(s, NO_SCHEMA, "") != SCHEMA_NONE) {
            status = schema_no_memory(s->err);
            goto out;
        }
        s->v[SCHEMA_NONE].types = 0;
    }
    uint32_t first = (uint32_t)s->n;
    if (!schema_index_all(s, &resource)) {
        status = schema_no_memory(s->err);
        goto out;
    }
    TRY(schema_at(s, root, NO_SCHEMA, "", (struct di_str){0}, NO_SCHEMA, schema_enter_scope(s, 0, resource), resource, top));
    for (uint32_t i = first; i < s->n; i++)
        TRY(read_schema(s, i));
out:
    di_free(x.targets);
    di_free(x.scopes);
    di_free(x.seen);
    di_free(x.heads);
    di_free(x.bases);
    di_free(x.drafts);
    di_free(x.members);
    s->index = NULL;
    s->err = NULL;
    return status;
}

void schemas_fini(struct schemas *s)
{
    di_free(s->v);
    di_free(s->words);
}
