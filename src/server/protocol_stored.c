/* The conversation of a Responses request: what the store has of earlier turns, references to its items, and the list of a response's input
 * (spec/encoding.md §4.5). */
#include "base/utf8.h"
#include "server/http_parse.h"
#include "server/protocol_impl.h"
#include "server/response_store.h"

#include <stdio.h>

/* ---------------------------------------------------------------- references */

/* An item that an earlier response gave. */
struct kept {
    struct di_str id, text;
    bool used;
};
/* The output of one response, or nothing if it is not stored. */
struct fetched {
    struct di_str id;
    struct kept *items;
    size_t n;
};
struct references {
    struct di_exchange *x;
    struct fetched *v; /* heap; what is in it lives in the exchange's tree */
    size_t n, cap;
};

static di_status copy_to_tree(struct di_exchange *x, struct di_str s, struct di_str *out, di_error *err)
{
    *out = (struct di_str){di_arena_strndup(&x->tree, s.p, s.n), s.n};
    return out->p ? DI_OK : di_fail(err, DI_ERR_MEMORY, "", "out of memory for a conversation");
}

static di_status read_output(struct di_exchange *x, const struct di_json *output, struct fetched *f, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf text = {0};
    f->items = di_arena_alloc(&x->tree, (output->count + 1) * sizeof *f->items);
    CHECK(f->items, err, DI_ERR_MEMORY, "", "out of memory for a conversation");
    for (const struct di_json *v = output->child; v; v = v->next, f->n++) {
        struct kept *k = &f->items[f->n];
        *k = (struct kept){0};
        di_buf_clear(&text);
        di_json_write_compact(&text, v);
        TRY(di_buf_ok(&text, err));
        TRY(copy_to_tree(x, di_buf_str(&text), &k->text, err));
        TRY(copy_to_tree(x, di_field_string(v, "id"), &k->id, err));
    }
out:
    di_buf_fini(&text);
    return status;
}

/* The response that an item's id names: "msg_RESPONSE_0". Each is read once. */
static di_status fetch(struct references *r, struct di_str id, struct fetched **out, di_error *err)
{
    struct di_exchange *x = r->x;
    struct di_buf body = {0};
    struct di_arena arena;
    struct di_json *v;
    di_status status = DI_OK;
    di_arena_init(&arena);
    for (size_t i = r->n; i > 0; i--) /* mostly the one before */
        if (di_str_eq(r->v[i - 1].id, id)) {
            *out = &r->v[i - 1];
            goto out;
        }
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 8;
        struct fetched *grown = di_realloc(r->v, cap * sizeof *grown);
        CHECK(grown, err, DI_ERR_MEMORY, "", "out of memory for a conversation");
        r->v = grown;
        r->cap = cap;
    }
    *out = &r->v[r->n];
    **out = (struct fetched){.id = id};
    r->n++;
    if (di_response_store_get(x->setup->store, x->request.tenant, id, NULL, &body)) {
        TRY(di_buf_ok(&body, err));
        TRY(di_json_parse(di_buf_str(&body), NULL, &arena, &v, err));
        TRY(read_output(x, di_field(v, "output"), *out, err));
    }
out:
    di_arena_fini(&arena);
    di_buf_fini(&body);
    return status;
}

static di_status resolve(struct references *r, const struct di_json *item, size_t index, struct di_buf *out, di_error *err)
{
    struct di_str id = di_field_string(item, "id");
    struct fetched *f = NULL;
    const char *why = "is not stored here (any more)";
    char where[40];
    di_status status = DI_OK;
    snprintf(where, sizeof where, "input[%zu].id", index);
    size_t from = di_str_find(id, DI_STR("_"), 0), to = id.n;
    while (to > 0 && id.p[to - 1] != '_')
        to--;
    if (from != SIZE_MAX && from + 1 < to)
        TRY(fetch(r, (struct di_str){id.p + from + 1, to - 1 - (from + 1)}, &f, err));
    for (size_t i = 0; f && i < f->n; i++) {
        if (!di_str_eq(f->items[i].id, id))
            continue;
        if (!f->items[i].used) {
            f->items[i].used = true;
            di_buf_addv(out, f->items[i].text);
            return DI_OK;
        }
        why = "is named a second time";
    }
    status =
        di_fail(err, DI_ERR_INVALID, where, "the item \"%.*s\" %s: send the item itself", (int)di_utf8_cut(id, 80), id.p ? id.p : "", why);
out:
    return status;
}

/* The input as items separated by commas behind what `b` has. *resolved: there were references. */
static di_status add_input(struct references *r, const struct di_json *input, struct di_buf *b, bool *resolved, di_error *err)
{
    di_status status = DI_OK;
    size_t i = 0;
    if (di_json_is(input, DI_JSON_STRING)) {
        di_buf_adds(b, b->n ? ",{\"role\":\"user\",\"content\":" : "{\"role\":\"user\",\"content\":");
        di_json_write_string(b, input->text);
        di_buf_addc(b, '}');
        return DI_OK;
    }
    for (const struct di_json *v = di_json_is(input, DI_JSON_ARRAY) ? input->child : NULL; v; v = v->next, i++) {
        if (b->n)
            di_buf_addc(b, ',');
        if (di_str_eqc(di_field_string(v, "type"), "item_reference")) {
            TRY(resolve(r, v, i, b, err));
            *resolved = true;
        } else {
            di_json_write_compact(b, v);
        }
    }
out:
    return status;
}

di_status di_stored_conversation(struct di_exchange *x, struct di_buf *items, di_error *err)
{
    struct references r = {.x = x};
    struct di_str previous = di_field_string(x->json, "previous_response_id");
    bool resolved = false;
    di_status status = DI_OK;
    if (!x->setup->store)
        return DI_OK; /* the engine refuses what needs one */
    if (previous.n)
        CHECK(di_response_store_get(x->setup->store, x->request.tenant, previous, items, NULL), err, DI_ERR_NOT_FOUND,
              "previous_response_id", "there is no response with this id (any more): send the whole input");
    TRY(add_input(&r, di_field(x->json, "input"), items, &resolved, err));
    if (previous.n || resolved) {
        di_buf_addc(&x->input, '[');
        di_buf_addv(&x->input, di_buf_str(items));
        di_buf_addc(&x->input, ']');
    }
    TRY(di_buf_ok(items, err));
    TRY(di_buf_ok(&x->input, err));
out:
    di_free(r.v);
    return status;
}

/* ---------------------------------------------------------------- the input of a response */

struct page {
    int64_t limit;
    bool rising;
    struct di_buf after; /* an item's id; empty: from the end of the list on */
};

static bool take_number(struct di_str s, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9' || i > 3)
            return false;
        *out = 10 * *out + s.p[i] - '0';
    }
    return s.n > 0;
}

/* limit, order and after of the query; what else stands there is left alone. */
static di_status read_page(struct di_str query, struct page *p, di_error *err)
{
    di_status status = DI_OK;
    p->limit = 20;
    while (query.n) {
        size_t end = di_str_find(query, DI_STR("&"), 0), n = end == SIZE_MAX ? query.n : end;
        size_t mark = di_str_find((struct di_str){query.p, n}, DI_STR("="), 0);
        struct di_str key = {query.p, mark == SIZE_MAX ? n : mark};
        struct di_str value = {query.p + key.n, n - key.n};
        if (value.n) {
            value.p++;
            value.n--;
        }
        if (di_str_eqc(key, "limit"))
            CHECK(take_number(value, &p->limit) && p->limit >= 1 && p->limit <= 100, err, DI_ERR_INVALID, "limit",
                  "must be a whole number from 1 to 100");
        if (di_str_eqc(key, "order")) {
            p->rising = di_str_eqc(value, "asc");
            CHECK(p->rising || di_str_eqc(value, "desc"), err, DI_ERR_INVALID, "order", "must be asc or desc");
        }
        if (di_str_eqc(key, "after")) {
            di_buf_clear(&p->after);
            CHECK(value.n && di_http_unescape(value, &p->after), err, DI_ERR_INVALID, "after", "must be the id of an item");
        }
        n += end != SIZE_MAX;
        query.p += n;
        query.n -= n;
    }
out:
    return status;
}

/* The id of item number `i`: its own, or one that is made up of the response's. */
static void item_id(const struct di_exchange *x, const struct di_json *v, size_t i, struct di_buf *b)
{
    struct di_str id = di_field_string(v, "id");
    di_buf_clear(b);
    if (id.n)
        di_buf_addv(b, id);
    else
        di_buf_addf(b, "item_%.*s_in%zu", (int)x->request.id.n, x->request.id.p, i);
}

/* With what the protocol's lists have and requests may leave out. */
static void write_item(struct di_buf *b, const struct di_json *v, struct di_str id)
{
    const struct di_json *content = di_field(v, "content");
    bool message = !di_field(v, "type") || di_str_eqc(di_field_string(v, "type"), "message");
    bool own = di_str_eqc(di_field_string(v, "role"), "assistant");
    di_buf_adds(b, message ? "{\"type\":\"message\"" : "{\"type\":");
    if (!message)
        di_json_write_compact(b, di_field(v, "type"));
    di_write_string(b, "id", id);
    if (!di_field(v, "status"))
        di_buf_adds(b, ",\"status\":\"completed\"");
    for (const struct di_json *m = v->child; m; m = m->next) {
        if (di_str_eqc(m->key, "type") || di_str_eqc(m->key, "id") || m->type == DI_JSON_NULL)
            continue;
        di_buf_addc(b, ',');
        di_json_write_string(b, m->key);
        di_buf_addc(b, ':');
        if (message && m == content && m->type == DI_JSON_STRING) {
            di_buf_adds(b, own ? "[{\"type\":\"output_text\",\"annotations\":[]" : "[{\"type\":\"input_text\"");
            di_write_string(b, "text", m->text);
            di_buf_adds(b, "}]");
        } else {
            di_json_write_compact(b, m);
        }
    }
    di_buf_addc(b, '}');
}

static di_status write_page(struct di_exchange *x, const struct di_json **items, size_t n, const struct page *p, di_error *err)
{
    struct di_buf *b = &x->reply, id = {0}, first = {0};
    size_t at = 0, shown = 0;
    di_status status = DI_OK;
    while (p->after.n && at < n) {
        item_id(x, items[p->rising ? at : n - 1 - at], p->rising ? at : n - 1 - at, &id);
        at++;
        if (di_str_eq(di_buf_str(&id), di_buf_str(&p->after)))
            break;
        CHECK(at < n, err, DI_ERR_INVALID, "after", "names no item of this response");
    }
    di_buf_adds(b, "{\"object\":\"list\",\"data\":[");
    for (; at < n && (int64_t)shown < p->limit; at++, shown++) {
        size_t i = p->rising ? at : n - 1 - at;
        item_id(x, items[i], i, &id);
        if (!shown)
            di_buf_addv(&first, di_buf_str(&id));
        di_buf_adds(b, shown ? "," : "");
        write_item(b, items[i], di_buf_str(&id));
    }
    di_buf_addc(b, ']');
    di_write_string(b, "first_id", di_buf_str(&first));
    di_write_string(b, "last_id", shown ? di_buf_str(&id) : DI_STR(""));
    di_buf_addf(b, ",\"has_more\":%s}", at < n ? "true" : "false");
    CHECK(!id.failed && !first.failed, err, DI_ERR_MEMORY, "", "out of memory for a list");
out:
    di_buf_fini(&id);
    di_buf_fini(&first);
    return status;
}

di_status di_stored_input_items(struct di_exchange *x, di_error *err)
{
    struct di_buf items = {0}, body = {0};
    struct page page = {0};
    struct di_json *list, *response;
    const struct di_json **v = NULL;
    size_t n = 0;
    di_status status = DI_OK;
    TRY(read_page(x->request.query, &page, err));
    di_buf_addc(&items, '[');
    CHECK(x->setup->store && di_response_store_get(x->setup->store, x->request.tenant, x->request.id, &items, &body), err, DI_ERR_NOT_FOUND,
          "id", "there is no response with this id");
    di_buf_addc(&items, ']');
    TRY(di_buf_ok(&items, err));
    TRY(di_buf_ok(&body, err));
    TRY(di_json_parse(di_buf_str(&items), NULL, &x->tree, &list, err));
    TRY(di_json_parse(di_buf_str(&body), NULL, &x->tree, &response, err));
    v = di_calloc(list->count + 1, sizeof *v);
    CHECK(v, err, DI_ERR_MEMORY, "", "out of memory for a list");
    for (const struct di_json *m = list->child; m; m = m->next)
        v[n++] = m;
    n -= di_field(response, "output")->count; /* the items end in what the response said itself */
    TRY(write_page(x, v, n, &page, err));
out:
    di_free(v);
    di_buf_fini(&page.after);
    di_buf_fini(&items);
    di_buf_fini(&body);
    return status;
}
