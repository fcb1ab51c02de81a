#include "text/turn_memory.h"

#include <openssl/evp.h>
#include <pthread.h>

#define HASH 32

struct name {
    struct name *next; /* of its bucket */
    struct turn *turn;
    uint8_t hash[HASH];
};

struct turn {
    struct turn *newer, *older; /* the ring by use, through the memory's `ring` */
    size_t bytes, n_names;
    struct name *names; /* [n_names] behind the struct, like all that follows */
    bool thinking;
    int32_t *ids;
    size_t n_ids;
    struct di_str reasoning, content;
    struct call {
        struct di_str name, arguments;
    } * calls; /* [n_calls] */
    size_t n_calls;
};

struct di_turn_memory {
    pthread_mutex_t lock;
    struct turn ring; /* ring.newer: used longest ago, ring.older: used last */
    struct name **buckets;
    size_t n_buckets, max_names, max_bytes;
    struct di_turn_memory_stats stats;
};

di_status di_turn_memory_create(size_t max_names, size_t max_bytes, struct di_turn_memory **out, di_error *err)
{
    size_t n = 64;
    while (n < max_names && n < ((size_t)1 << 24))
        n *= 2;
    struct di_turn_memory *m = di_calloc(1, sizeof *m);
    struct name **buckets = di_calloc(n, sizeof *buckets);
    *out = NULL;
    if (!m || !buckets) {
        di_free(m);
        di_free(buckets);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a memory of turns");
    }
    pthread_mutex_init(&m->lock, NULL);
    m->ring.newer = m->ring.older = &m->ring;
    m->buckets = buckets;
    m->n_buckets = n;
    m->max_names = max_names;
    m->max_bytes = max_bytes;
    *out = m;
    return DI_OK;
}

/* ---------------------------------------------------------------- the table */

static struct name **bucket_of(struct di_turn_memory *m, const uint8_t hash[HASH])
{
    uint64_t h;
    memcpy(&h, hash, sizeof h);
    return &m->buckets[h & (m->n_buckets - 1)];
}

static struct turn *find_turn(struct di_turn_memory *m, const uint8_t hash[HASH])
{
    for (struct name *n = *bucket_of(m, hash); n; n = n->next)
        if (memcmp(n->hash, hash, HASH) == 0)
            return n->turn;
    return NULL;
}

static void unlink_turn(struct turn *t)
{
    t->newer->older = t->older;
    t->older->newer = t->newer;
}

static void make_newest(struct di_turn_memory *m, struct turn *t)
{
    t->older = m->ring.older;
    t->newer = &m->ring;
    t->older->newer = t;
    m->ring.older = t;
}

static void drop_turn(struct di_turn_memory *m, struct turn *t)
{
    for (size_t i = 0; i < t->n_names; i++) {
        struct name **link = bucket_of(m, t->names[i].hash);
        while (*link != &t->names[i])
            link = &(*link)->next;
        *link = t->names[i].next;
    }
    unlink_turn(t);
    m->stats.names -= t->n_names;
    m->stats.bytes -= t->bytes;
    m->stats.turns--;
    di_free(t);
}

static void enter_turn(struct di_turn_memory *m, struct turn *t)
{
    for (size_t i = 0; i < t->n_names; i++) {
        struct turn *old = find_turn(m, t->names[i].hash); /* the same plain answer after the same conversation */
        if (old && old != t)
            drop_turn(m, old);
        struct name **bucket = bucket_of(m, t->names[i].hash);
        t->names[i].next = *bucket;
        *bucket = &t->names[i];
    }
    make_newest(m, t);
    m->stats.names += t->n_names;
    m->stats.bytes += t->bytes;
    m->stats.turns++;
    while (m->stats.names > m->max_names || m->stats.bytes > m->max_bytes)
        drop_turn(m, m->ring.newer);
}

void di_turn_memory_destroy(struct di_turn_memory *m)
{
    if (!m)
        return;
    while (m->stats.turns)
        drop_turn(m, m->ring.newer);
    pthread_mutex_destroy(&m->lock);
    di_free(m->buckets);
    di_free(m);
}

/* ---------------------------------------------------------------- names */

void di_turn_prefix_fini(struct di_turn_prefix *p)
{
    EVP_MD_CTX_free(p->ctx);
    *p = (struct di_turn_prefix){0};
}

bool di_turn_prefix_hash(struct di_turn_prefix *p, const int32_t *ids, size_t n, uint8_t out[32])
{
    if (!p->ctx) {
        p->ctx = EVP_MD_CTX_new();
        if (!p->ctx || EVP_DigestInit_ex(p->ctx, EVP_sha256(), NULL) != 1)
            return false;
    }
    if (n > p->done && EVP_DigestUpdate(p->ctx, ids + p->done, (n - p->done) * sizeof *ids) != 1)
        return false;
    p->done = n;
    EVP_MD_CTX *copy = EVP_MD_CTX_new();
    bool ok = copy && EVP_MD_CTX_copy_ex(copy, p->ctx) == 1 && EVP_DigestFinal_ex(copy, out, NULL) == 1;
    EVP_MD_CTX_free(copy);
    return ok;
}

/* Of a call (`prefix` NULL) or a plain turn. The tenant is inside: nobody reaches another's. */
static bool name_of(uint64_t tenant, const uint8_t *prefix, struct di_str s, uint8_t out[HASH])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    uint8_t kind = prefix ? 1 : 0;
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(ctx, &kind, 1) == 1 &&
              EVP_DigestUpdate(ctx, &tenant, sizeof tenant) == 1 && (!prefix || EVP_DigestUpdate(ctx, prefix, HASH) == 1) &&
              (s.n == 0 || EVP_DigestUpdate(ctx, s.p, s.n) == 1) && EVP_DigestFinal_ex(ctx, out, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    return ok;
}

/* ---------------------------------------------------------------- remembering */

static struct di_str copy_text(char **at, struct di_str s)
{
    struct di_str to = {*at, s.n};
    if (s.n)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return to;
}

static bool size_of(const struct di_turn *turn, size_t n_names, size_t *bytes)
{
    const struct di_message *msg = turn->message;
    size_t ids, names, calls;
    *bytes = sizeof(struct turn);
    if (!di_mul(turn->n_ids, sizeof(int32_t), &ids) || !di_mul(n_names, sizeof(struct name), &names) ||
        !di_mul(msg->n_calls, sizeof(struct call), &calls) || !di_add(*bytes, ids, bytes) || !di_add(*bytes, names, bytes) ||
        !di_add(*bytes, calls, bytes) || !di_add(*bytes, msg->content.n, bytes) || !di_add(*bytes, msg->reasoning.n, bytes))
        return false;
    for (size_t i = 0; i < msg->n_calls; i++)
        if (!di_add(*bytes, msg->calls[i].name.n, bytes) || !di_add(*bytes, msg->calls[i].arguments.n, bytes))
            return false;
    return true;
}

/* In one allocation. */
static struct turn *copy_turn(const struct di_turn *turn, size_t n_names, size_t bytes)
{
    const struct di_message *msg = turn->message;
    struct turn *t = di_malloc(bytes);
    if (!t)
        return NULL;
    *t = (struct turn){.bytes = bytes, .n_names = n_names, .thinking = turn->thinking, .n_ids = turn->n_ids, .n_calls = msg->n_calls};
    t->names = (struct name *)(void *)(t + 1);
    t->calls = (struct call *)(void *)(t->names + n_names);
    t->ids = (int32_t *)(void *)(t->calls + t->n_calls);
    memcpy(t->ids, turn->ids, turn->n_ids * sizeof *t->ids);
    char *at = (char *)(t->ids + t->n_ids);
    t->reasoning = copy_text(&at, di_buf_str(&msg->reasoning));
    t->content = copy_text(&at, di_buf_str(&msg->content));
    for (size_t i = 0; i < t->n_calls; i++) {
        t->calls[i].name = copy_text(&at, di_buf_str(&msg->calls[i].name));
        t->calls[i].arguments = copy_text(&at, di_buf_str(&msg->calls[i].arguments));
    }
    return t;
}

void di_turn_memory_put(struct di_turn_memory *m, const struct di_turn *turn)
{
    const struct di_message *msg = turn->message;
    size_t n_names = msg->n_calls ? msg->n_calls : 1, bytes;
    bool ok = true;
    if (n_names > m->max_names || !size_of(turn, n_names, &bytes) || bytes > m->max_bytes)
        return;
    struct turn *t = copy_turn(turn, n_names, bytes);
    if (!t)
        return;
    for (size_t i = 0; i < n_names; i++) {
        t->names[i].turn = t;
        ok = ok && (msg->n_calls ? name_of(turn->tenant, NULL, di_str_c(msg->calls[i].id), t->names[i].hash)
                                 : name_of(turn->tenant, turn->prefix, t->content, t->names[i].hash));
    }
    if (!ok) {
        di_free(t);
        return;
    }
    pthread_mutex_lock(&m->lock);
    enter_turn(m, t);
    pthread_mutex_unlock(&m->lock);
}

/* ---------------------------------------------------------------- comparing */

bool di_json_text_same(struct di_str a, struct di_str b)
{
    struct di_arena arena;
    struct di_json *x, *y;
    if (di_str_eq(a, b))
        return true;
    di_arena_init(&arena);
    struct di_json_limits limits = {.max_values = 10000}; /* finding members is quadratic in the worst case */
    bool same =
        di_json_parse(a, &limits, &arena, &x, NULL) == DI_OK && di_json_parse(b, &limits, &arena, &y, NULL) == DI_OK && di_json_same(x, y);
    di_arena_fini(&arena);
    return same;
}

/* Do the parts, joined, say this? */
static bool same_text(const struct di_chat_parts *parts, struct di_str separator, struct di_str text)
{
    for (const struct di_chat_part *p = parts->first; p; p = p->next) {
        if (p->image)
            return false;
        if (p != parts->first) {
            if (!di_str_starts(text, separator))
                return false;
            text.p += separator.n;
            text.n -= separator.n;
        }
        if (!di_str_starts(text, p->text))
            return false;
        text.p += p->text.n;
        text.n -= p->text.n;
    }
    return text.n == 0;
}

static bool same_turn(const struct turn *t, const struct di_chat_message *shown, enum di_protocol protocol)
{
    size_t i = 0;
    if (t->n_calls != shown->n_calls || !same_text(&shown->content, DI_STR("\n\n"), t->content))
        return false;
    struct di_str between = protocol == DI_PROTOCOL_RESPONSES ? DI_STR("\n") : DI_STR("\n\n");
    if (shown->reasoning.first && !same_text(&shown->reasoning, between, t->reasoning)) /* left out is not changed */
        return false;
    for (const struct di_chat_call *c = shown->calls; c; c = c->next, i++)
        if (!di_str_eq(c->name, t->calls[i].name) || !di_json_text_same(c->arguments, t->calls[i].arguments))
            return false;
    return true;
}

/* Names of the calls, in their order, of this very turn. */
static bool same_names(const struct turn *t, uint64_t tenant, const struct di_chat_message *shown)
{
    uint8_t hash[HASH];
    size_t i = 0;
    for (const struct di_chat_call *c = shown->calls; c; c = c->next, i++)
        if (i >= t->n_names || !name_of(tenant, NULL, c->id, hash) || memcmp(hash, t->names[i].hash, HASH) != 0)
            return false;
    return true;
}

/* Room for parts of the text content as one, to name a plain turn. */
static bool join_parts(const struct di_chat_parts *parts, struct di_buf *b)
{
    for (const struct di_chat_part *p = parts->first; p; p = p->next) {
        if (p->image)
            return false;
        di_buf_adds(b, p == parts->first ? "" : "\n\n");
        di_buf_addv(b, p->text);
    }
    return !b->failed;
}

bool di_turn_memory_find(struct di_turn_memory *m, uint64_t tenant, const uint8_t prefix[32], const struct di_chat_message *shown,
                         enum di_protocol protocol, bool thinking, struct di_ids *out)
{
    uint8_t hash[HASH];
    struct di_buf content = {0};
    bool ok = shown->calls ? name_of(tenant, NULL, shown->calls->id, hash)
                           : join_parts(&shown->content, &content) && name_of(tenant, prefix, di_buf_str(&content), hash);
    di_buf_fini(&content);
    if (!ok)
        return false;
    pthread_mutex_lock(&m->lock);
    struct turn *t = find_turn(m, hash);
    bool same =
        t && t->thinking == thinking && same_names(t, tenant, shown) && same_turn(t, shown, protocol) && di_ids_reserve(out, t->n_ids);
    if (same) {
        memcpy(out->v + out->n, t->ids, t->n_ids * sizeof *t->ids);
        out->n += t->n_ids;
        unlink_turn(t);
        make_newest(m, t);
    }
    *(same ? &m->stats.hits : t ? &m->stats.changed : &m->stats.unknown) += 1;
    pthread_mutex_unlock(&m->lock);
    return same;
}

struct di_turn_memory_stats di_turn_memory_stats(struct di_turn_memory *m)
{
    pthread_mutex_lock(&m->lock);
    struct di_turn_memory_stats s = m->stats;
    pthread_mutex_unlock(&m->lock);
    return s;
}
