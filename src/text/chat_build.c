#include "text/chat_build.h"

#include "text/schema.h"

#include <stdio.h>

/* ---- map ---- */

struct di_strmap_slot {
    struct di_str key;
    void *value;
    uint32_t generation; /* another one than the map's: free */
};

void di_strmap_fini(struct di_strmap *m)
{
    di_free(m->slots);
    *m = (struct di_strmap){0};
}

/* Old slots stay and count as free: clearing costs nothing, whatever the map once held. */
void di_strmap_clear(struct di_strmap *m)
{
    m->generation++;
    m->n = 0;
}

static struct di_strmap_slot *find(const struct di_strmap *m, struct di_str key)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < key.n; i++)
        h = (h ^ (unsigned char)key.p[i]) * 0x100000001b3u;
    size_t at = (size_t)(h ^ h >> 29);
    for (size_t probes = 0; m->cap && probes < m->cap && probes < 1000; probes++) {
        struct di_strmap_slot *s = &m->slots[(at + probes) & (m->cap - 1)];
        if (s->generation != m->generation || di_str_eq(s->key, key))
            return s;
    }
    return NULL;
}

void *di_strmap_get(const struct di_strmap *m, struct di_str key)
{
    struct di_strmap_slot *s = find(m, key);
    return s && s->generation == m->generation ? s->value : NULL;
}

static bool grow(struct di_strmap *m)
{
    struct di_strmap old = *m;
    struct di_strmap fresh = {.cap = old.cap ? old.cap * 2 : 32, .n = old.n, .generation = 1};
    fresh.slots = di_calloc(fresh.cap, sizeof *fresh.slots);
    if (!fresh.slots)
        return false;
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].generation == old.generation) {
            struct di_strmap_slot *s = find(&fresh, old.slots[i].key);
            if (!s) {
                di_free(fresh.slots);
                return false;
            }
            *s = (struct di_strmap_slot){old.slots[i].key, old.slots[i].value, 1};
        }
    di_free(old.slots);
    *m = fresh;
    return true;
}

bool di_strmap_put(struct di_strmap *m, struct di_str key, void *value)
{
    if (m->n * 2 >= m->cap && !grow(m))
        return false;
    struct di_strmap_slot *s = find(m, key);
    if (!s)
        return false;
    m->n += s->generation != m->generation;
    *s = (struct di_strmap_slot){key, value, m->generation};
    return true;
}

/* ---- reading ---- */

di_status di_build_alloc(struct di_build *b, size_t bytes, void **out)
{
    *out = di_arena_alloc(&b->chat->arena, bytes);
    if (!*out)
        return di_fail(b->err, DI_ERR_MEMORY, "", "out of memory while reading a chat request");
    memset(*out, 0, bytes);
    return DI_OK;
}

const struct di_json *di_build_get(const struct di_json *v, const char *key)
{
    const struct di_json *m = di_json_get(v, key);
    return m && m->type != DI_JSON_NULL ? m : NULL;
}

static const char *type_phrase(enum di_json_type type)
{
    static const char *const phrases[] = {"null", "true or false", "a number", "a string", "an array", "an object"};
    return phrases[type];
}

di_status di_build_member(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, enum di_json_type type,
                          bool required, const struct di_json **out)
{
    const struct di_json *m = di_build_get(v, key);
    *out = m;
    if (!m && required)
        return di_path_fail(b->err, DI_MEMBER(at, di_str_c(key)), "is missing");
    if (m && m->type != type) {
        *out = NULL;
        return di_path_fail(b->err, DI_MEMBER(at, di_str_c(key)), "must be %s, not %s", type_phrase(type), type_phrase(m->type));
    }
    return DI_OK;
}

di_status di_build_string(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, bool required,
                          struct di_str *out)
{
    const struct di_json *m;
    di_status status = di_build_member(b, v, at, key, DI_JSON_STRING, required, &m);
    *out = m ? m->text : (struct di_str){0};
    if (m && !out->p)
        out->p = "";
    return status;
}

di_status di_build_bool(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, int8_t *out)
{
    const struct di_json *m;
    di_status status = di_build_member(b, v, at, key, DI_JSON_BOOL, false, &m);
    *out = m ? (int8_t)m->boolean : -1;
    return status;
}

di_status di_build_word(struct di_build *b, struct di_str word, const struct di_path *at, const char *const *words, size_t n, size_t *out)
{
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (di_str_eqc(word, words[i])) {
            *out = i;
            return DI_OK;
        }
        int len = snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", words[i]);
        used += len > 0 && (size_t)len < sizeof list - used ? (size_t)len : 0;
    }
    return di_path_fail(b->err, at, "must be %s, not \"%.*s\"", list, di_path_shown(word), word.p);
}

bool di_number_overflows(const struct di_json *v)
{
    double x;
    if (v->type != DI_JSON_NUMBER || di_json_double(v, &x))
        return false;
    for (size_t i = 0; i < v->text.n; i++)
        if (v->text.p[i] == '.' || v->text.p[i] == 'e' || v->text.p[i] == 'E')
            return true;
    return false;
}

di_status di_build_object(struct di_build *b, const struct di_json *v, const struct di_path *at)
{
    if (di_json_is(v, DI_JSON_OBJECT))
        return DI_OK;
    return di_path_fail(b->err, at, "must be an object, not %s", v ? type_phrase(v->type) : "nothing");
}

di_status di_build_path(struct di_build *b, const struct di_path *at, const char **out)
{
    struct di_buf path = {0};
    di_status status = DI_OK;
    di_path_write(&path, at);
    TRY(di_buf_ok(&path, b->err));
    *out = di_arena_strndup(&b->chat->arena, path.p, path.n);
    CHECK(*out, b->err, DI_ERR_MEMORY, "", "out of memory while reading a chat request");
out:
    di_buf_fini(&path);
    return status;
}

/* ---- conversation ---- */

di_status di_build_detached(struct di_build *b, enum di_role role, struct di_chat_message **out)
{
    void *m;
    di_status status = di_build_alloc(b, sizeof **out, &m);
    if (status != DI_OK)
        return status;
    *out = m;
    (*out)->role = role;
    return DI_OK;
}

void di_build_append(struct di_build *b, struct di_chat_message *m)
{
    *(b->last ? &b->last->next : &b->chat->messages) = m;
    b->last = m;
}

di_status di_build_message(struct di_build *b, enum di_role role, struct di_chat_message **out)
{
    di_status status = di_build_detached(b, role, out);
    if (status == DI_OK)
        di_build_append(b, *out);
    return status;
}

static di_status add_part(struct di_build *b, struct di_chat_parts *parts, struct di_str text, const struct di_chat_image *image)
{
    void *mem;
    di_status status = di_build_alloc(b, sizeof(struct di_chat_part), &mem);
    if (status != DI_OK)
        return status;
    struct di_chat_part *p = mem;
    p->text = text;
    p->image = image;
    *(parts->last ? &parts->last->next : &parts->first) = p;
    parts->last = p;
    return DI_OK;
}

di_status di_build_text(struct di_build *b, struct di_chat_parts *parts, struct di_str text)
{
    return add_part(b, parts, text, NULL);
}

bool di_parts_empty(const struct di_chat_parts *parts)
{
    return !parts->first || (!parts->first->next && !parts->first->image && parts->first->text.n == 0);
}

static bool same_word(struct di_str s, const char *lower)
{
    size_t n = strlen(lower), i = 0;
    for (; i < n && i < s.n; i++)
        if ((s.p[i] >= 'A' && s.p[i] <= 'Z' ? s.p[i] + 32 : s.p[i]) != lower[i])
            return false;
    return i == n && s.n == n;
}

static bool has_prefix(struct di_str s, const char *lower)
{
    size_t n = strlen(lower);
    return s.n >= n && same_word((struct di_str){s.p, n}, lower);
}

static di_status check_image(struct di_build *b, struct di_str media_type, struct di_str data, const struct di_path *at)
{
    static const char *const types[] = {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"};
    size_t k = 0, n = data.n;
    while (k < 5 && !same_word(media_type, types[k]))
        k++;
    if (k == 5)
        return di_path_fail(b->err, at, "must be a JPEG, PNG, GIF or WebP image, not \"%.*s\"", di_path_shown(media_type), media_type.p);
    for (int pad = 0; pad < 2 && n > 0 && data.p[n - 1] == '='; pad++)
        n--;
    for (size_t i = 0; i < n; i++) {
        char c = data.p[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/'))
            return di_path_fail(b->err, at, "holds something that is not base64 at its byte %zu", i);
    }
    return n % 4 == 1 ? di_path_fail(b->err, at, "holds base64 text that ends inside a byte") : DI_OK;
}

static di_status add_image(struct di_build *b, struct di_chat_parts *parts, struct di_chat_image image, const struct di_path *at)
{
    void *mem;
    di_status status = DI_OK;
    if (b->in_result && b->opt->result_media_as_text)
        return di_build_text(b, parts, DI_STR("[A picture stood here. Pictures are not supported.]"));
    TRY(di_build_alloc(b, sizeof image, &mem));
    TRY(di_build_path(b, at, &image.path));
    *(struct di_chat_image *)mem = image;
    TRY(add_part(b, parts, (struct di_str){0}, mem));
out:
    return status;
}

di_status di_build_document(struct di_build *b, struct di_chat_parts *parts, struct di_str words, const struct di_path *at)
{
    di_status status = DI_OK;
    if (!b->chat->document && !(b->in_result && b->opt->result_media_as_text))
        TRY(di_build_path(b, at, &b->chat->document));
    TRY(di_build_text(b, parts, words));
out:
    return status;
}

di_status di_build_image_url(struct di_build *b, struct di_chat_parts *parts, struct di_str url, struct di_str detail, bool web_only,
                             const struct di_path *at)
{
    static const char *const details[] = {"low", "high", "original", "auto"};
    struct di_chat_image image = {.url = url, .detail = detail};
    size_t which;
    di_status status = DI_OK;
    if (detail.p)
        TRY(di_build_word(b, detail, DI_FIELD(at->up, "detail"), details, 4, &which));
    if (!web_only && has_prefix(url, "data:")) {
        size_t base64 = di_str_find(url, DI_STR(";base64,"), 0);
        if (base64 == SIZE_MAX)
            TRY(di_path_fail(b->err, at, "must be a data URL of the form data:image/...;base64,..."));
        image.media_type = (struct di_str){url.p + 5, base64 - 5};
        size_t semicolon = di_str_find(image.media_type, DI_STR(";"), 0);
        if (semicolon != SIZE_MAX)
            image.media_type.n = semicolon;
        image.data = (struct di_str){url.p + base64 + 8, url.n - base64 - 8};
        TRY(check_image(b, image.media_type, image.data, at));
    } else if (!has_prefix(url, "http://") && !has_prefix(url, "https://")) {
        TRY(di_path_fail(b->err, at, "must be an http or https URL%s", web_only ? "" : " or a data URL with base64"));
    }
    TRY(add_image(b, parts, image, at));
out:
    return status;
}

di_status di_build_image_data(struct di_build *b, struct di_chat_parts *parts, struct di_str media_type, struct di_str data,
                              const struct di_path *at)
{
    di_status status = check_image(b, media_type, data, at);
    return status != DI_OK ? status : add_image(b, parts, (struct di_chat_image){.media_type = media_type, .data = data}, at);
}

di_status di_build_compact(struct di_build *b, const struct di_json *v, struct di_str *out)
{
    struct di_buf json = {0};
    di_status status = DI_OK;
    di_json_write_compact(&json, v);
    TRY(di_buf_ok(&json, b->err));
    out->p = di_arena_strndup(&b->chat->arena, json.p, json.n);
    out->n = json.n;
    CHECK(out->p, b->err, DI_ERR_MEMORY, "", "out of memory while reading a chat request");
out:
    di_buf_fini(&json);
    return status;
}

di_status di_build_call(struct di_build *b, struct di_chat_message *m, struct di_build_call call, const struct di_path *at)
{
    void *mem;
    di_status status = DI_OK;
    if (b->opt->strict_history && di_strmap_get(&b->calls, call.id))
        TRY(di_path_fail(b->err, at, "has the id \"%.*s\" of an earlier call", di_path_shown(call.id), call.id.p));
    TRY(di_build_alloc(b, sizeof(struct di_chat_call), &mem));
    struct di_chat_call *c = mem;
    *c = (struct di_chat_call){.id = call.id, .name = call.name, .arguments = call.arguments, .index = m->n_calls++};
    if (call.custom) { /* the renderer reads arguments as JSON */
        struct di_json input = {.type = DI_JSON_STRING, .key = DI_STR("input"), .text = call.arguments};
        TRY(di_build_compact(b, &(struct di_json){.type = DI_JSON_OBJECT, .count = 1, .child = &input}, &c->arguments));
    }
    CHECK(di_strmap_put(&b->calls, call.id, c), b->err, DI_ERR_MEMORY, "", "out of memory while reading the calls of a chat request");
    *(m->last_call ? &m->last_call->next : &m->calls) = c;
    m->last_call = c;
    b->open_calls++;
out:
    return status;
}

di_status di_build_result(struct di_build *b, struct di_str id, const struct di_path *at)
{
    struct di_chat_call *call = di_strmap_get(&b->calls, id);
    if (b->opt->strict_history && (!call || call->answered))
        return di_path_fail(b->err, at, call ? "answers the call \"%.*s\" a second time" : "answers the call \"%.*s\", which is not there",
                            di_path_shown(id), id.p);
    if (call && !call->answered && b->open_calls) {
        call->answered = true;
        b->open_calls--;
    }
    return DI_OK;
}

di_status di_build_all_answered(struct di_build *b, const struct di_path *at)
{
    if (!b->opt->strict_history || b->open_calls == 0)
        return DI_OK;
    struct di_chat_call *call = NULL;
    for (struct di_chat_message *m = b->chat->messages; m && !call; m = m->next)
        for (call = m->calls; call && call->answered; call = call->next)
            ;
    const char *tail = at ? " before it" : " at the end of the conversation";
    return di_path_fail(b->err, at, "needs a result for the tool call \"%.*s\"%s: each call must be followed by its result",
                        call ? di_path_shown(call->id) : 0, call ? call->id.p : "", tail);
}

di_status di_build_update(struct di_build *b, struct di_chat_message *m, const struct di_chat_tool *tool)
{
    void *mem;
    di_status status = di_build_alloc(b, sizeof(struct di_chat_update), &mem);
    if (status != DI_OK)
        return status;
    struct di_chat_update *u = mem;
    u->tool = tool;
    *(m->last_update ? &m->last_update->next : &m->updates) = u;
    m->last_update = u;
    return DI_OK;
}

/* ---- tools ---- */

di_status di_build_name(struct di_build *b, struct di_str name, const struct di_path *at)
{
    bool good = name.n >= 1 && name.n <= 128;
    for (size_t i = 0; good && i < name.n; i++) {
        char c = name.p[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    }
    return good ? DI_OK : di_path_fail(b->err, DI_FIELD(at, "name"), "must be 1 to 128 letters, digits, '_' and '-'");
}

static di_status join(struct di_build *b, struct di_str x, const char *sep, struct di_str y, struct di_str *out)
{
    void *mem;
    size_t s = strlen(sep);
    di_status status = di_build_alloc(b, x.n + s + y.n + 1, &mem);
    if (status != DI_OK)
        return status;
    char *p = mem;
    if (x.n)
        memcpy(p, x.p, x.n);
    memcpy(p + x.n, sep, s);
    if (y.n)
        memcpy(p + x.n + s, y.p, y.n);
    *out = (struct di_str){p, x.n + s + y.n};
    return DI_OK;
}

/* Tools that are not to be used are not looked into. What a strict tool may have is said by its normal form. */
static di_status read_parameters(struct di_build *b, const struct di_build_tool *t, const struct di_json **out)
{
    const struct di_path *at = DI_MEMBER(t->at, di_str_c(t->parameters_key));
    di_status status = DI_OK;
    struct di_json *strict;
    *out = t->parameters;
    if (b->choice_none)
        return DI_OK;
    if (t->strict) {
        TRY(di_schema_strict(t->parameters, &b->chat->arena, at, &strict, b->err));
        *out = strict;
    } else if (t->parameters) {
        TRY(di_schema_check(t->parameters, at, b->err));
        const struct di_json *type = di_json_get(t->parameters, "type");
        if (!di_json_is(type, DI_JSON_STRING) || !di_str_eqc(type->text, "object"))
            TRY(di_path_fail(b->err, type ? DI_FIELD(at, "type") : at, "must be a JSON Schema with \"type\": \"object\""));
    }
out:
    return status;
}

di_status di_build_tool(struct di_build *b, const struct di_build_tool *t, struct di_chat_tool **out)
{
    void *mem;
    di_status status = DI_OK;
    TRY(di_build_name(b, t->name, t->at));
    TRY(di_build_alloc(b, sizeof **out, &mem));
    struct di_chat_tool *tool = mem;
    *tool = (struct di_chat_tool){.name = t->name,
                                  .local = t->name,
                                  .space = t->space,
                                  .description = t->description,
                                  .has_description = t->has_description,
                                  .strict = t->strict,
                                  .deferred = t->deferred,
                                  .custom = t->custom};
    if (t->space.n)
        TRY(join(b, t->space, "::", t->name, &tool->name));
    if (t->space_description.n) {
        TRY(join(b, t->space_description, "\n", t->description, &tool->description));
        tool->has_description = true;
    }
    if (!b->choice_none && di_strmap_get(&b->tools, tool->name))
        TRY(di_path_fail(b->err, DI_FIELD(t->at, "name"), "is the name of an earlier tool; tool names must be unique"));
    TRY(read_parameters(b, t, &tool->parameters));
    CHECK(di_strmap_put(&b->tools, tool->name, tool), b->err, DI_ERR_MEMORY, "", "out of memory while reading the tools of a chat request");
    *(b->last_tool ? &b->last_tool->next : &b->chat->tools) = tool;
    b->last_tool = tool;
    *out = tool;
out:
    return status;
}

di_status di_build_function(struct di_build *b, const struct di_json *v, const struct di_path *at, const struct di_build_tool *given,
                            struct di_chat_tool **out)
{
    struct di_build_tool t = given ? *given : (struct di_build_tool){0};
    int8_t strict;
    di_status status = DI_OK;
    t.at = at;
    t.parameters_key = "parameters";
    TRY(di_build_object(b, v, at));
    TRY(di_build_string(b, v, at, "name", true, &t.name));
    TRY(di_build_string(b, v, at, "description", false, &t.description));
    TRY(di_build_bool(b, v, at, "strict", &strict));
    t.parameters = di_build_get(v, "parameters");
    t.has_description = t.description.p != NULL;
    t.strict = strict == 1;
    TRY(di_build_tool(b, &t, out));
out:
    return status;
}

void di_build_choose(struct di_build *b, struct di_str name)
{
    b->only_tool = name;
    b->forced = true;
}
