/* Addresses of schemas: $id, anchors, references (RFC 3986, JSON pointers), and the dynamic scope. */
#include "grammar/json_read.h"

#include <stdlib.h>

#define MAX_SCOPES 4096

/* `ref` seen from `base`, without its fragment (RFC 3986 §5, without dot segments in the middle). */
static struct di_str resolve(struct schemas *s, struct di_str base, struct di_str ref)
{
    size_t hash = di_str_find(ref, DI_STR("#"), 0);
    if (hash != SIZE_MAX)
        ref.n = hash;
    if (!ref.n)
        return base;
    size_t colon = di_str_find(ref, DI_STR(":"), 0), slash = di_str_find(ref, DI_STR("/"), 0);
    if (colon != SIZE_MAX && colon > 0 && (slash == SIZE_MAX || colon < slash))
        return ref;
    size_t scheme = di_str_find(base, DI_STR("://"), 0), keep;
    size_t host_end = scheme == SIZE_MAX ? 0 : di_str_find(base, DI_STR("/"), scheme + 3);
    if (host_end == SIZE_MAX)
        host_end = base.n;
    if (ref.p[0] == '/') {
        keep = host_end;
    } else {
        keep = base.n;
        while (keep > host_end && base.p[keep - 1] != '/')
            keep--;
        while (ref.n >= 3 && memcmp(ref.p, "../", 3) == 0) {
            ref = (struct di_str){ref.p + 3, ref.n - 3};
            if (keep > host_end + 1)
                keep--;
            while (keep > host_end + 1 && base.p[keep - 1] != '/')
                keep--;
        }
        if (ref.n >= 2 && memcmp(ref.p, "./", 2) == 0)
            ref = (struct di_str){ref.p + 2, ref.n - 2};
    }
    char *joined = di_arena_alloc(s->arena, keep + ref.n + 2);
    if (!joined)
        return base;
    memcpy(joined, base.p, keep);
    size_t n = keep;
    if (host_end && keep == host_end && ref.p[0] != '/')
        joined[n++] = '/';
    memcpy(joined + n, ref.p, ref.n);
    return (struct di_str){joined, n + ref.n};
}

static struct di_str fragment(struct di_str ref)
{
    size_t hash = di_str_find(ref, DI_STR("#"), 0);
    return hash == SIZE_MAX ? (struct di_str){"", 0} : (struct di_str){ref.p + hash + 1, ref.n - hash - 1};
}

static unsigned draft_named(const struct di_json *v, unsigned otherwise)
{
    static const struct {
        const char *part;
        uint8_t draft;
    } names[] = {{"draft-04", DRAFT_4}, {"draft-05", DRAFT_4},   {"draft-06", DRAFT_6},
                 {"draft-07", DRAFT_7}, {"2019-09", DRAFT_2019}, {"2020-12", DRAFT_2020}};
    const struct di_json *name = di_json_get(v, "$schema");
    if (di_json_is(name, DI_JSON_STRING))
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (di_str_find(name->text, di_str_c(names[i].part), 0) != SIZE_MAX)
                return names[i].draft;
    return otherwise;
}

static bool add_resource(struct schemas *s, struct di_str base, unsigned draft, uint32_t *out)
{
    struct schema_index *x = s->index;
    if (!schema_grow((void **)&x->bases, &x->cap_bases, x->n_bases + 1, sizeof *x->bases) ||
        !schema_grow((void **)&x->drafts, &x->cap_drafts, x->n_bases + 1, 1))
        return schema_no_memory(s->err), false;
    x->bases[x->n_bases] = base;
    x->drafts[x->n_bases] = (uint8_t)draft;
    *out = (uint32_t)x->n_bases++;
    return true;
}

static bool add_target(struct schemas *s, struct target t)
{
    struct schema_index *x = s->index;
    if (!schema_grow((void **)&x->targets, &x->cap_targets, x->n_targets + 1, sizeof t))
        return schema_no_memory(s->err), false;
    x->targets[x->n_targets++] = t;
    return true;
}

const struct di_json *schema_string(const struct di_json *v, const char *key)
{
    const struct di_json *m = di_json_get(v, key);
    return di_json_is(m, DI_JSON_STRING) ? m : NULL;
}

/* The address that an object gives itself, or NULL. */
static const struct di_json *own_address(const struct di_json *v, unsigned draft)
{
    if (draft <= DRAFT_7 && di_json_get(v, "$ref"))
        return NULL;
    const struct di_json *id = schema_string(v, draft == DRAFT_4 ? "id" : "$id");
    return id;
}

/* All addresses and anchors below v. */
static bool index_targets(struct schemas *s, const struct di_json *v, uint32_t resource, unsigned depth)
{
    struct schema_index *x = s->index;
    if (v->type == DI_JSON_OBJECT) {
        unsigned draft = x->drafts[resource];
        const struct di_json *id = own_address(v, draft);
        if (id && v != x->root && id->text.n && id->text.p[0] != '#') {
            if (!add_resource(s, resolve(s, x->bases[resource], id->text), draft_named(v, draft), &resource))
                return false;
            const struct di_json *again = di_json_get(v, "$recursiveAnchor");
            if (!add_target(
                    s, (struct target){.base = x->bases[resource], .v = v, .resource = resource, .recursive = again && again->boolean}))
                return false;
        } else if (id && id->text.n > 1 && id->text.p[0] == '#' && draft <= DRAFT_7) {
            if (!add_target(s, (struct target){.base = x->bases[resource], .anchor = fragment(id->text), .v = v, .resource = resource}))
                return false;
        }
        const struct di_json *anchor = schema_string(v, "$anchor"), *dynamic = schema_string(v, "$dynamicAnchor");
        if (anchor && !add_target(s, (struct target){.base = x->bases[resource], .anchor = anchor->text, .v = v, .resource = resource}))
            return false;
        if (dynamic &&
            !add_target(
                s, (struct target){.base = x->bases[resource], .anchor = dynamic->text, .v = v, .resource = resource, .dynamic = true}))
            return false;
    }
    if (depth < 200 && (v->type == DI_JSON_OBJECT || v->type == DI_JSON_ARRAY))
        for (const struct di_json *m = v->child; m; m = m->next) {
            if (v->type == DI_JSON_OBJECT && (di_str_eqc(m->key, "enum") || di_str_eqc(m->key, "const")))
                continue;
            if (!index_targets(s, m, resource, depth + 1))
                return false;
        }
    return true;
}

/* Undo %XX and then ~0 ~1 of one step of a pointer. */
static struct di_str unescape_step(struct schemas *s, struct di_str step)
{
    char *to = di_arena_alloc(s->arena, step.n + 1);
    size_t n = 0;
    if (!to)
        return step;
    for (size_t i = 0; i < step.n; i++) {
        char c = step.p[i];
        if (c == '%' && i + 2 < step.n) {
            char hex[3] = {step.p[i + 1], step.p[i + 2], 0};
            c = (char)strtol(hex, NULL, 16);
            i += 2;
        }
        if (n && to[n - 1] == '~' && (c == '0' || c == '1'))
            to[n - 1] = c == '0' ? 1 : '/'; /* 1 stands for ~ until the end, so that ~01 is ~1 */
        else
            to[n++] = c;
    }
    for (size_t i = 0; i < n; i++)
        if (to[i] == 1)
            to[i] = '~';
    return (struct di_str){to, n};
}

static uint64_t hash_member(const struct di_json *object, struct di_str key)
{
    uint64_t h = (uint64_t)(uintptr_t)object * 0x9E3779B97F4A7C15u ^ key.n;
    for (size_t i = 0; i < key.n; i++)
        h = (h ^ (unsigned char)key.p[i]) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static struct di_str name_of(const struct di_json *m)
{
    return !m ? (struct di_str){0} : m->key.n ? m->key : (struct di_str){"", 0};
}

/* The slot of a member, or of the object itself (key.p NULL), or the free one where it belongs. */
static struct member_slot *find_slot(const struct schema_index *x, const struct di_json *object, struct di_str key)
{
    size_t at = hash_member(object, key) & (x->cap_members - 1);
    for (;; at = (at + 1) & (x->cap_members - 1)) {
        struct member_slot *slot = x->members + at;
        if (!slot->object || (slot->object == object && (key.p ? slot->m && di_str_eq(slot->m->key, key) : !slot->m)))
            return slot;
    }
}

static bool index_members(struct schema_index *x, const struct di_json *v)
{
    if ((x->n_members + v->count + 1) * 2 > x->cap_members) {
        struct schema_index old = *x;
        while ((x->n_members + v->count + 1) * 2 > x->cap_members)
            x->cap_members = x->cap_members ? x->cap_members * 2 : 256;
        x->members = di_calloc(x->cap_members, sizeof *x->members);
        if (!x->members) {
            x->members = old.members;
            x->cap_members = old.cap_members;
            return false;
        }
        for (size_t i = 0; i < old.cap_members; i++)
            if (old.members[i].object)
                *find_slot(x, old.members[i].object, name_of(old.members[i].m)) = old.members[i];
        di_free(old.members);
    }
    *find_slot(x, v, (struct di_str){0}) = (struct member_slot){v, NULL};
    for (const struct di_json *m = v->child; m; m = m->next)
        *find_slot(x, v, name_of(m)) = (struct member_slot){v, m};
    x->n_members += v->count + 1;
    return true;
}

#define FEW_MEMBERS 16 /* objects with more are indexed, so that reading is not quadratic */

const struct di_json *schema_member(struct schemas *s, const struct di_json *v, struct di_str key)
{
    struct schema_index *x = s->index;
    const struct di_json *found = NULL;
    if (v->count > FEW_MEMBERS && v->type == DI_JSON_OBJECT) {
        bool there = x->cap_members && find_slot(x, v, (struct di_str){0})->object;
        if (there || index_members(x, v))
            return find_slot(x, v, key.n ? key : (struct di_str){"", 0})->m;
    }
    for (const struct di_json *m = v->child; m; m = m->next)
        if (di_str_eq(m->key, key))
            found = m;
    return found;
}

/* Follow a JSON pointer (without #) from v; the resource changes where an address is given on the way. */
static const struct di_json *follow(struct schemas *s, const struct di_json *v, struct di_str pointer, uint32_t *resource)
{
    struct schema_index *x = s->index;
    size_t at = 0;
    while (v && at < pointer.n) {
        size_t end = di_str_find(pointer, DI_STR("/"), at + 1);
        end = end == SIZE_MAX ? pointer.n : end;
        struct di_str step = unescape_step(s, (struct di_str){pointer.p + at + 1, end - at - 1});
        if (v->type == DI_JSON_OBJECT) {
            v = schema_member(s, v, step);
        } else if (v->type == DI_JSON_ARRAY && step.n && step.n < 9 && step.p[0] >= '0' && step.p[0] <= '9') {
            size_t i = 0;
            for (size_t k = 0; k < step.n; k++)
                i = i * 10 + (size_t)(step.p[k] - '0');
            v = di_json_at(v, i);
        } else {
            return NULL;
        }
        for (size_t i = 0; v && i < x->n_targets; i++)
            if (x->targets[i].v == v && !x->targets[i].anchor.n)
                *resource = x->targets[i].resource;
        at = end;
    }
    return v;
}

uint32_t schema_enter_scope(struct schemas *s, uint32_t scope, uint32_t resource)
{
    struct schema_index *x = s->index;
    if (!x->needs_scope)
        return 0;
    for (uint32_t i = scope; i; i = x->scopes[i].up)
        if (x->scopes[i].resource == resource)
            return scope;
    for (uint32_t i = 1; i < x->n_scopes; i++)
        if (x->scopes[i].up == scope && x->scopes[i].resource == resource)
            return i;
    if (x->n_scopes >= MAX_SCOPES || !schema_grow((void **)&x->scopes, &x->cap_scopes, x->n_scopes + 1, sizeof *x->scopes))
        return scope;
    x->scopes[x->n_scopes] = (struct scope){scope, resource};
    return (uint32_t)x->n_scopes++;
}

static const struct target *find_target(const struct schema_index *x, struct di_str base, struct di_str anchor)
{
    if (base.n && base.p[base.n - 1] == '#')
        base.n--;
    for (size_t i = 0; i < x->n_targets; i++) {
        struct di_str b = x->targets[i].base;
        if (b.n && b.p[b.n - 1] == '#')
            b.n--;
        if (di_str_eq(b, base) && di_str_eq(x->targets[i].anchor, anchor))
            return x->targets + i;
    }
    return NULL;
}

di_status schema_reference(struct schemas *s, uint32_t id, const char *keyword, struct di_str ref, uint32_t *out)
{
    struct schema_index *x = s->index;
    struct di_str base = resolve(s, x->bases[s->v[id].resource], ref), part = fragment(ref);
    const struct target *t = find_target(x, base, (struct di_str){"", 0});
    uint32_t resource, scope = s->v[id].scope;
    const struct di_json *v;
    if (!t) /* some give an address to the whole and refer to it by nothing but fragments elsewhere */
        return schema_fail(s, DI_ERR_UNSUPPORTED, id, keyword, "the reference \"%.*s\" leads out of the schema",
                           (int)(ref.n < 200 ? ref.n : 200), ref.p);
    resource = t->resource;
    v = t->v;
    if (part.n && part.p[0] != '/') {
        t = find_target(x, base, unescape_step(s, part));
        v = t ? t->v : NULL;
        resource = t ? t->resource : resource;
        if (t && t->dynamic && strcmp(keyword, "$dynamicRef") == 0)
            for (uint32_t k = scope; k; k = x->scopes[k].up) /* the outermost wins */
                for (size_t i = 0; i < x->n_targets; i++)
                    if (x->targets[i].dynamic && x->targets[i].resource == x->scopes[k].resource && di_str_eq(x->targets[i].anchor, part)) {
                        v = x->targets[i].v;
                        resource = x->targets[i].resource;
                    }
    } else {
        v = follow(s, v, part, &resource);
        if (strcmp(keyword, "$recursiveRef") == 0 && t->recursive)
            for (uint32_t k = scope; k; k = x->scopes[k].up) {
                size_t i = 0;
                while (i < x->n_targets && !(x->targets[i].resource == x->scopes[k].resource && !x->targets[i].anchor.n))
                    i++;
                if (i == x->n_targets || !x->targets[i].recursive)
                    break; /* the chain must not be broken */
                v = x->targets[i].v;
                resource = x->targets[i].resource;
            }
    }
    if (!v)
        return schema_fail(s, DI_ERR_INVALID, id, keyword, "the reference \"%.*s\" leads nowhere", (int)(ref.n < 200 ? ref.n : 200), ref.p);
    return schema_at(s, v, NO_SCHEMA, NULL, part.n ? part : DI_STR("#"), NO_SCHEMA, schema_enter_scope(s, scope, resource), resource, out);
}

bool schema_index_all(struct schemas *s, uint32_t *resource)
{
    struct schema_index *x = s->index;
    const struct di_json *root = x->root;
    unsigned draft = draft_named(root, DRAFT_UNNAMED);
    const struct di_json *id = root->type == DI_JSON_OBJECT ? schema_string(root, draft == DRAFT_4 ? "id" : "$id") : NULL;
    struct di_str base = id ? id->text : (struct di_str){"", 0};
    size_t hash = di_str_find(base, DI_STR("#"), 0);
    base.n = hash == SIZE_MAX ? base.n : hash;
    const struct di_json *again = di_json_get(root, "$recursiveAnchor");
    if (!add_resource(s, base, draft, resource) ||
        !add_target(s,
                    (struct target){
                        .base = base, .v = root, .resource = *resource, .recursive = di_json_is(again, DI_JSON_BOOL) && again->boolean}) ||
        !schema_grow((void **)&x->scopes, &x->cap_scopes, 1, sizeof *x->scopes) || !index_targets(s, root, *resource, 0))
        return false;
    x->n_scopes = 1;
    size_t dynamic = 0;
    for (size_t i = 0; i < x->n_targets; i++)
        dynamic += x->targets[i].dynamic || x->targets[i].recursive;
    x->needs_scope = dynamic > 1;
    return true;
}
