#include "server/response_store.h"

#include <pthread.h>

/* One allocation: the strings stand behind the struct. */
struct entry {
    struct entry *newer, *older; /* the ring by use, through the store's `ring` */
    struct entry *next;          /* of its bucket */
    uint64_t tenant;
    struct di_str id, items, body;
    size_t bytes;
};

struct di_response_store {
    pthread_mutex_t lock;
    struct entry ring; /* ring.newer: the oldest, ring.older: the newest */
    struct entry **buckets;
    size_t n_buckets, n, bytes, max_n, max_bytes;
};

di_status di_response_store_create(size_t max_responses, size_t max_bytes, struct di_response_store **out, di_error *err)
{
    struct di_response_store *s = di_calloc(1, sizeof *s);
    *out = NULL;
    size_t n = 64;
    while (n < max_responses && n < ((size_t)1 << 20))
        n *= 2;
    struct entry **buckets = di_calloc(n, sizeof *buckets);
    if (!s || !buckets) {
        di_free(s);
        di_free(buckets);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a store of responses");
    }
    pthread_mutex_init(&s->lock, NULL);
    s->ring.newer = s->ring.older = &s->ring;
    s->buckets = buckets;
    s->n_buckets = n;
    s->max_n = max_responses;
    s->max_bytes = max_bytes;
    *out = s;
    return DI_OK;
}

/* Ids are ours and random: no client chooses them. */
static struct entry **bucket_of(struct di_response_store *s, struct di_str id)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < id.n; i++)
        h = (h ^ (unsigned char)id.p[i]) * 1099511628211u;
    return &s->buckets[h & (s->n_buckets - 1)];
}

static struct entry **find(struct di_response_store *s, uint64_t tenant, struct di_str id)
{
    struct entry **link = bucket_of(s, id);
    while (*link && !((*link)->tenant == tenant && di_str_eq((*link)->id, id)))
        link = &(*link)->next;
    return link;
}

static void drop(struct di_response_store *s, struct entry **link)
{
    struct entry *e = *link;
    *link = e->next;
    e->newer->older = e->older;
    e->older->newer = e->newer;
    s->n--;
    s->bytes -= e->bytes;
    di_free(e);
}

static void make_newest(struct di_response_store *s, struct entry *e)
{
    e->older = s->ring.older;
    e->newer = &s->ring;
    e->older->newer = e;
    s->ring.older = e;
}

void di_response_store_destroy(struct di_response_store *s)
{
    if (!s)
        return;
    while (s->n)
        drop(s, find(s, s->ring.newer->tenant, s->ring.newer->id));
    pthread_mutex_destroy(&s->lock);
    di_free(s->buckets);
    di_free(s);
}

static struct di_str copy_text(char **at, struct di_str s)
{
    struct di_str to = {*at, s.n};
    if (s.n)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return to;
}

void di_response_store_put(struct di_response_store *s, uint64_t tenant, struct di_str id, struct di_str items, struct di_str body)
{
    size_t bytes = sizeof(struct entry);
    if (!di_add(bytes, id.n, &bytes) || !di_add(bytes, items.n, &bytes) || !di_add(bytes, body.n, &bytes) || bytes > s->max_bytes ||
        s->max_n == 0)
        return;
    struct entry *e = di_malloc(bytes);
    if (!e)
        return;
    char *at = (char *)(e + 1);
    e->tenant = tenant;
    e->id = copy_text(&at, id);
    e->items = copy_text(&at, items);
    e->body = copy_text(&at, body);
    e->bytes = bytes;
    pthread_mutex_lock(&s->lock);
    struct entry **old = find(s, tenant, id);
    if (*old)
        drop(s, old);
    while (s->n >= s->max_n || s->bytes + bytes > s->max_bytes)
        drop(s, find(s, s->ring.newer->tenant, s->ring.newer->id));
    struct entry **bucket = bucket_of(s, id);
    e->next = *bucket;
    *bucket = e;
    make_newest(s, e);
    s->n++;
    s->bytes += bytes;
    pthread_mutex_unlock(&s->lock);
}

bool di_response_store_get(struct di_response_store *s, uint64_t tenant, struct di_str id, struct di_buf *items, struct di_buf *body)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = *find(s, tenant, id);
    if (e) {
        e->newer->older = e->older;
        e->older->newer = e->newer;
        make_newest(s, e);
        if (items)
            di_buf_addv(items, e->items);
        if (body)
            di_buf_addv(body, e->body);
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

bool di_response_store_delete(struct di_response_store *s, uint64_t tenant, struct di_str id)
{
    pthread_mutex_lock(&s->lock);
    struct entry **link = find(s, tenant, id);
    bool found = *link != NULL;
    if (found)
        drop(s, link);
    pthread_mutex_unlock(&s->lock);
    return found;
}
