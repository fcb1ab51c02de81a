#include "server/engine_queue.h"

#include "base/assert.h"

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct di_engine_queue {
    pthread_mutex_t lock;
    struct di_buf in;  /* shared */
    struct di_buf out; /* the reader's */
    int fd;
};

/* A record in the buffer: this, and behind it whatever its output points to, each at a multiple of 16 bytes. */
struct copy {
    void *to;
    size_t bytes;
    bool has_output;
    di_output output; /* its pointers are those of the original until the record is read */
    struct {
        size_t alternatives, error, text, call_id, call_space; /* from the start of the copy; 0: NULL */
    } at;
};

static size_t round_up(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* A place for n bytes at the end of the copy. */
static size_t add_place(struct copy *c, const void *p, size_t n)
{
    size_t at = c->bytes;
    if (!p)
        return 0;
    c->bytes += round_up(n);
    return at;
}

static size_t string_bytes(const char *s)
{
    return s ? strlen(s) + 1 : 0;
}

static void put_bytes(char *copy, size_t at, const void *from, size_t n)
{
    if (at)
        memcpy(copy + at, from, n);
}

bool di_records_add(struct di_buf *b, void *to, const di_output *output)
{
    static const di_output none = {0};
    const di_output *o = output ? output : &none;
    struct copy head = {.to = to, .bytes = round_up(sizeof head), .has_output = output, .output = *o};
    size_t alternatives = o->n_alternatives * sizeof *o->alternatives, id = string_bytes(o->call_id), space = string_bytes(o->call_space);
    head.at.alternatives = add_place(&head, alternatives ? o->alternatives : NULL, alternatives);
    head.at.error = add_place(&head, o->error, sizeof *o->error);
    head.at.text = add_place(&head, o->text, o->text_bytes + 1);
    head.at.call_id = add_place(&head, o->call_id, id);
    head.at.call_space = add_place(&head, o->call_space, space);
    if (!di_buf_reserve(b, head.bytes))
        return false;
    char *p = b->p + b->n;
    memcpy(p, &head, sizeof head);
    put_bytes(p, head.at.alternatives, o->alternatives, alternatives);
    put_bytes(p, head.at.error, o->error, sizeof *o->error);
    put_bytes(p, head.at.text, o->text, o->text_bytes + 1);
    put_bytes(p, head.at.call_id, o->call_id, id);
    put_bytes(p, head.at.call_space, o->call_space, space);
    b->n += head.bytes;
    return true;
}

static const void *place_of(const struct copy *c, size_t at)
{
    return at ? (const char *)c + at : NULL;
}

void di_records_each(const struct di_buf *b, di_engine_queue_fn fn, void *ctx)
{
    static_assert(alignof(struct copy) <= 16, "copies start at multiples of 16");
    for (size_t i = 0; i < b->n;) {
        struct copy *c = (void *)(b->p + i);
        di_output *o = &c->output;
        DI_ASSERT(c->bytes >= sizeof *c && c->bytes % 16 == 0 && c->bytes <= b->n - i);
        i += c->bytes;
        o->alternatives = place_of(c, c->at.alternatives);
        o->error = place_of(c, c->at.error);
        o->text = place_of(c, c->at.text);
        o->call_id = place_of(c, c->at.call_id);
        o->call_space = place_of(c, c->at.call_space);
        fn(ctx, c->to, c->has_output ? o : NULL);
    }
}

di_status di_engine_queue_create(struct di_engine_queue **out, di_error *err)
{
    struct di_engine_queue *q = di_calloc(1, sizeof *q);
    *out = q;
    if (!q)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory");
    q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->fd >= 0 && pthread_mutex_init(&q->lock, NULL) == 0)
        return DI_OK;
    if (q->fd >= 0)
        close(q->fd);
    di_free(q);
    *out = NULL;
    return di_fail(err, DI_ERR_IO, "", "the system grants no event descriptor");
}

void di_engine_queue_destroy(struct di_engine_queue *q)
{
    if (!q)
        return;
    close(q->fd);
    pthread_mutex_destroy(&q->lock);
    di_buf_fini(&q->in);
    di_buf_fini(&q->out);
    di_free(q);
}

int di_engine_queue_fd(const struct di_engine_queue *q)
{
    return q->fd;
}

bool di_engine_queue_push(struct di_engine_queue *q, void *to, const di_output *output, size_t limit)
{
    uint64_t one = 1;
    pthread_mutex_lock(&q->lock);
    bool was_empty = q->in.n == 0;
    bool fits = q->in.n < limit || !output || output->kind == DI_OUTPUT_FINISHED;
    bool ok = fits && di_records_add(&q->in, to, output);
    if (!ok)
        q->in.failed = false; /* a later one may fit */
    pthread_mutex_unlock(&q->lock);
    if (ok && was_empty) {
        ssize_t n = write(q->fd, &one, sizeof one);
        (void)n; /* cannot fail: the counter is far from its end */
    }
    return ok;
}

void di_engine_queue_drain(struct di_engine_queue *q, di_engine_queue_fn fn, void *ctx)
{
    uint64_t count;
    ssize_t n = read(q->fd, &count, sizeof count);
    (void)n;
    pthread_mutex_lock(&q->lock);
    struct di_buf t = q->in;
    q->in = q->out;
    q->out = t;
    pthread_mutex_unlock(&q->lock);
    di_records_each(&q->out, fn, ctx);
    if (q->out.cap > (size_t)1 << 20)
        di_buf_fini(&q->out);
    else
        di_buf_clear(&q->out);
}
