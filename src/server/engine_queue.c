#include "server/engine_queue.h"

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct di_engine_queue {
    pthread_mutex_t lock;
    struct di_buf in;  /* shared */
    struct di_buf out; /* the reader's */
    int fd;
};

/* A record in the buffer: this, its alternatives, its error, its text and a 0 byte, up to a multiple of 16 bytes. */
struct copy {
    void *to;
    size_t bytes;
    bool has_output;
    di_output output;
};

static size_t round_up(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

bool di_records_add(struct di_buf *b, void *to, const di_output *o)
{
    struct copy head = {.to = to, .has_output = o != NULL};
    size_t alternatives = o ? o->n_alternatives * sizeof *o->alternatives : 0, error = o && o->error ? sizeof *o->error : 0;
    size_t at = round_up(sizeof head), text = at + round_up(alternatives) + round_up(error);
    head.bytes = round_up(text + (o ? o->text_bytes : 0) + 1);
    if (o)
        head.output = *o;
    if (!di_buf_reserve(b, head.bytes))
        return false;
    char *p = b->p + b->n;
    memcpy(p, &head, sizeof head);
    if (alternatives)
        memcpy(p + at, o->alternatives, alternatives);
    if (error)
        memcpy(p + at + round_up(alternatives), o->error, error);
    if (o && o->text_bytes)
        memcpy(p + text, o->text, o->text_bytes);
    p[text + (o ? o->text_bytes : 0)] = 0;
    b->n += head.bytes;
    return true;
}

void di_records_each(const struct di_buf *b, di_engine_queue_fn fn, void *ctx)
{
    static_assert(alignof(struct copy) <= 16, "copies start at multiples of 16");
    for (size_t i = 0; i < b->n;) {
        struct copy *c = (void *)(b->p + i);
        di_output *o = &c->output;
        i += c->bytes;
        if (c->has_output) { /* the pointers of the copy */
            char *p = (char *)c + round_up(sizeof *c);
            size_t alternatives = round_up(o->n_alternatives * sizeof *o->alternatives);
            o->alternatives = o->n_alternatives ? (void *)p : NULL;
            o->text = p + alternatives + (o->error ? round_up(sizeof *o->error) : 0);
            o->error = o->error ? (void *)(p + alternatives) : NULL;
        }
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
