#define _GNU_SOURCE /* memfd_create */
#define DI_ON_DEVICE
#include "testing/hostile.h"

#include "base/mem.h"
#include "base/threads.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define REGION ((size_t)4 << 30) /* addresses; pages are there once something is written */
#define GAP ((size_t)64 << 10)   /* before, between and behind allocations: never written, so a wild index reads what makes no sense */
#define MOST_BLOCKS 64
#define MOST_PIECES 8

struct hostile;

/* One call that has not run. */
struct item {
    struct item *next;
    uint64_t number;
    void (*run)(struct hostile *h, struct item *i);
    void (*op)(struct di_backend *inner, const void *descriptor);
    void *descriptor;         /* a copy, or what `run` knows */
    void *piece[MOST_PIECES]; /* copies of host structs that it names */
    int n_pieces;
};

struct block {
    uint8_t *p;
    size_t bytes;
};

struct hostile {
    struct di_backend be; /* first */
    struct di_ops ops;
    struct di_backend *inner;
    struct di_law *law;
    struct hostile *older; /* of those that live */
    struct di_hostile_params params;
    uint8_t *here, *there; /* the region: as addresses of device memory, and as it can be read */
    uint8_t poison[2];     /* by turns */
    bool threaded;         /* a thread of its own runs what is called */
    int eager;             /* a call in so many sets it going before it is waited for; 0 = never */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool ending, busy;
    uint64_t random;
    struct item *first, *last, *held;
    uint64_t called, released, done; /* numbers: the latest, those that may run, those that have */
    int n_waits, n_copies;
    _Atomic bool failed; /* for ever */
    bool step_failed;    /* once */
    di_error fault, step_fault;
    struct block device[MOST_BLOCKS], staging[MOST_BLOCKS]; /* device: ascending */
    int n_device, n_staging;
};

static pthread_mutex_t living_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hostile *living;

static struct hostile *hostile_of(const struct di_backend *be)
{
    return (struct hostile *)(uintptr_t)be;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "hostile device: %s\n", what);
    abort();
}

static uint64_t draw(struct hostile *h)
{
    h->random = h->random * 6364136223846793005u + 1442695040888963407u;
    return h->random >> 33;
}

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        die("out of memory");
    return p;
}

/* ---------------------------------------------------------------- memory */

static bool is_device(const struct hostile *h, const void *p)
{
    return (uintptr_t)p >= (uintptr_t)h->here && (uintptr_t)p < (uintptr_t)h->here + REGION;
}

static uint8_t *seen(const struct hostile *h, const void *p)
{
    return h->there + ((uintptr_t)p - (uintptr_t)h->here);
}

static void spoil(const struct hostile *h, void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)p)[i] = h->poison[i % 2];
}

/* With the lock. */
static bool is_in(const struct block *blocks, int n, const void *p, size_t bytes)
{
    for (int i = 0; i < n; i++)
        if ((uintptr_t)p >= (uintptr_t)blocks[i].p && (uintptr_t)p + bytes <= (uintptr_t)blocks[i].p + blocks[i].bytes)
            return true;
    return false;
}

static void fault(struct hostile *h, const char *op, const char *what)
{
    if (!h->failed)
        di_fail(&h->fault, DI_ERR_INTERNAL, "hostile device", "%s: %s", op, what);
    h->failed = true;
}

/* The first gap that is large enough. */
static void *allocate_device(struct hostile *h, size_t bytes)
{
    uint8_t *at = h->here + GAP;
    int i = 0;
    for (; i < h->n_device && (size_t)(h->device[i].p - at) < bytes + GAP; i++)
        at = h->device[i].p + ((h->device[i].bytes + 63) & ~(size_t)63) + GAP;
    if (h->n_device == MOST_BLOCKS || (size_t)(h->here + REGION - at) < bytes + GAP)
        return NULL;
    memmove(&h->device[i + 1], &h->device[i], (size_t)(h->n_device++ - i) * sizeof *h->device);
    h->device[i] = (struct block){at, bytes};
    spoil(h, seen(h, at - GAP), bytes + 2 * GAP);
    return at;
}

static void *hostile_alloc(struct di_backend *be, enum di_memory kind, size_t bytes)
{
    struct hostile *h = hostile_of(be);
    void *p = NULL;
    bytes += bytes == 0;
    pthread_mutex_lock(&h->lock);
    if (kind != DI_MEMORY_STAGING) {
        p = allocate_device(h, bytes);
    } else if (h->n_staging < MOST_BLOCKS && (p = di_malloc_aligned(bytes))) {
        spoil(h, p, bytes);
        h->staging[h->n_staging++] = (struct block){p, bytes};
    }
    pthread_mutex_unlock(&h->lock);
    return p;
}

/* ---------------------------------------------------------------- running what was called */

static void free_item(struct item *i)
{
    for (int k = 0; k < i->n_pieces; k++)
        free(i->piece[k]);
    free(i->descriptor);
    free(i);
}

/* With the lock, which is given away meanwhile: the first item, if there is one and nobody is running one. */
static void run_first(struct hostile *h)
{
    struct item *i = h->first;
    if (!i || h->busy) {
        pthread_cond_wait(&h->changed, &h->lock);
        return;
    }
    h->first = i->next;
    h->last = h->first ? h->last : NULL;
    h->busy = true;
    pthread_mutex_unlock(&h->lock);
    i->run(h, i);
    pthread_mutex_lock(&h->lock);
    h->busy = false;
    h->done = i->number;
    free_item(i);
    pthread_cond_broadcast(&h->changed);
}

static void *work(void *arg)
{
    struct hostile *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->ending) {
        if (!h->first || h->first->number > h->released) {
            pthread_cond_wait(&h->changed, &h->lock);
            continue;
        }
        if (h->eager && draw(h) % 64 == 0) {
            pthread_mutex_unlock(&h->lock);
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
            pthread_mutex_lock(&h->lock);
        }
        run_first(h);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* With the lock. */
static void reach(struct hostile *h, uint64_t number)
{
    h->released = number > h->released ? number : h->released;
    pthread_cond_broadcast(&h->changed);
    while (h->done < number)
        if (h->threaded)
            pthread_cond_wait(&h->changed, &h->lock);
        else
            run_first(h);
}

/* With the lock. */
static void append(struct hostile *h, struct item *i)
{
    i->number = ++h->called;
    *(h->last ? &h->last->next : &h->first) = i;
    h->last = i;
}

static struct item *new_item(void (*run)(struct hostile *h, struct item *i), const void *descriptor, size_t bytes)
{
    struct item *i = allocate(sizeof *i);
    *i = (struct item){.run = run, .descriptor = allocate(bytes)};
    memcpy(i->descriptor, descriptor, bytes);
    return i;
}

/* A copy of a host struct, which lives as long as the item. */
static void *keep(struct item *i, const void *from, size_t bytes)
{
    if (i->n_pieces == MOST_PIECES)
        die("too many host structs");
    return memcpy(i->piece[i->n_pieces++] = allocate(bytes), from, bytes);
}

/* With the lock. Unless it is to wait until it is waited for, let some of what was called run. */
static void call(struct hostile *h, struct item *i)
{
    append(h, i);
    if (!h->eager || draw(h) % (unsigned)h->eager != 0)
        return;
    uint64_t number = h->done + draw(h) % (h->called - h->done + 1);
    if (!h->threaded)
        reach(h, number);
    h->released = number > h->released ? number : h->released;
    pthread_cond_broadcast(&h->changed);
}

/* With the lock. */
static void append_held(struct hostile *h)
{
    if (h->held)
        append(h, h->held);
    h->held = NULL;
}

static uint64_t hostile_fence(struct di_backend *be)
{
    struct hostile *h = hostile_of(be);
    pthread_mutex_lock(&h->lock);
    append_held(h);
    uint64_t number = h->called;
    pthread_mutex_unlock(&h->lock);
    return number;
}

static di_status hostile_wait(struct di_backend *be, uint64_t fence, di_error *err)
{
    struct hostile *h = hostile_of(be);
    di_error e = {0};
    pthread_mutex_lock(&h->lock);
    if (fence > h->called)
        die("a fence that nobody set");
    bool skipped = ++h->n_waits == h->params.at && h->params.mistake == DI_HOSTILE_NO_WAIT;
    if (!skipped)
        reach(h, fence);
    if (h->failed || h->step_failed)
        e = h->failed ? h->fault : h->step_fault;
    h->step_failed = false;
    pthread_mutex_unlock(&h->lock);
    if (e.code != DI_OK && err)
        *err = e;
    return e.code;
}

static void hostile_release(struct di_backend *be, enum di_memory kind, void *p)
{
    struct hostile *h = hostile_of(be);
    if (!p)
        return;
    pthread_mutex_lock(&h->lock);
    append_held(h);
    reach(h, h->called);
    bool staging = kind == DI_MEMORY_STAGING;
    struct block *blocks = staging ? h->staging : h->device;
    int *n = staging ? &h->n_staging : &h->n_device, i = 0;
    while (i < *n && blocks[i].p != p)
        i++;
    if (i == *n)
        die("what is released was not allocated");
    spoil(h, staging ? p : seen(h, p), blocks[i].bytes);
    memmove(&blocks[i], &blocks[i + 1], (size_t)(--*n - i) * sizeof *blocks);
    pthread_mutex_unlock(&h->lock);
    if (staging)
        di_free_aligned(p);
}

/* ---------------------------------------------------------------- ops of the network */

enum kind { END, DEVICE, MAPPED, ROWS, KV, WEIGHT, EXPERTS, EXPERT };
struct field {
    size_t at;
    enum kind kind;
};

/* With the lock. An address as the op can use it. */
static void translate(struct hostile *h, const char *op, void *field)
{
    void *p;
    memcpy(&p, field, sizeof p);
    if (!p)
        return;
    if (!is_in(h->device, h->n_device, p, 1))
        fault(h, op, is_device(h, p) ? "an address that is not allocated" : "an address that is not the device's");
    else
        p = seen(h, p);
    memcpy(field, &p, sizeof p);
}

static void translate_weight(struct hostile *h, const char *op, struct di_weight *w)
{
    translate(h, op, &w->packed); /* without it the op reads the bytes of the checkpoint, which every device can map */
}

static void translate_expert(struct hostile *h, const char *op, struct di_expert *e)
{
    translate_weight(h, op, &e->w1);
    translate_weight(h, op, &e->w3);
    translate_weight(h, op, &e->w2);
}

static void translate_rows(struct hostile *h, const char *op, struct di_rows *r)
{
    translate(h, op, &r->chunks);
    translate(h, op, &r->pos);
    translate(h, op, &r->chunk);
    translate(h, op, &r->window_floor);
}

static void translate_kv(struct hostile *h, const char *op, struct item *i, struct di_kv *kv)
{
    kv->layout = keep(i, kv->layout, sizeof *kv->layout);
    translate(h, op, &kv->blocks);
    translate(h, op, &kv->state);
    translate(h, op, &kv->pages);
}

static void translate_field(struct hostile *h, const char *op, struct item *i, const struct field *f, int n_experts)
{
    char *at = (char *)i->descriptor + f->at;
    void *p;
    memcpy(&p, at, sizeof p);
    if (!p || f->kind == MAPPED)
        return;
    switch (f->kind) {
    case ROWS: translate_rows(h, op, p = keep(i, p, sizeof(struct di_rows))); break;
    case KV: translate_kv(h, op, i, p = keep(i, p, sizeof(struct di_kv))); break;
    case WEIGHT: translate_weight(h, op, p = keep(i, p, sizeof(struct di_weight))); break;
    case EXPERT: translate_expert(h, op, p = keep(i, p, sizeof(struct di_expert))); break;
    case EXPERTS:
        p = keep(i, p, (size_t)n_experts * sizeof(struct di_expert));
        for (int e = 0; e < n_experts; e++)
            translate_expert(h, op, (struct di_expert *)p + e);
        break;
    default: translate(h, op, &p); break;
    }
    memcpy(at, &p, sizeof p);
}

static void run_op(struct hostile *h, struct item *i)
{
    if (!h->failed)
        i->op(h->inner, i->descriptor);
}

static void call_op(struct di_backend *be, const char *name, const struct field *fields, int n_experts, const void *descriptor,
                    size_t bytes, void (*op)(struct di_backend *inner, const void *descriptor))
{
    struct hostile *h = hostile_of(be);
    struct item *i = new_item(run_op, descriptor, bytes);
    i->op = op;
    pthread_mutex_lock(&h->lock);
    for (const struct field *f = fields; f->kind != END; f++)
        translate_field(h, name, i, f, n_experts);
    call(h, i);
    pthread_mutex_unlock(&h->lock);
}

/* Every pointer of every descriptor; an op dies of one that is missing here. Tables of which a step reads some rows may lie where the
 * checkpoint is mapped. */
#define D(op, name)                               \
    {                                             \
        offsetof(struct di_op_##op, name), DEVICE \
    }
#define F(op, name, kind)                       \
    {                                           \
        offsetof(struct di_op_##op, name), kind \
    }
static const struct field embed_fields[] = {D(embed, ids), F(embed, table, MAPPED), D(embed, x), D(embed, pre), {0}};
static const struct field rmsnorm_fields[] = {D(rmsnorm, x), D(rmsnorm, w), D(rmsnorm, y), {0}};
static const struct field hc_mix_fields[] = {D(hc_mix, x),   D(hc_mix, fn),   D(hc_mix, base), D(hc_mix, scale),
                                             D(hc_mix, pre), D(hc_mix, post), D(hc_mix, comb), {0}};
static const struct field hc_norm_fields[] = {D(hc_norm, x), D(hc_norm, pre), D(hc_norm, w), D(hc_norm, y), D(hc_norm, u), {0}};
static const struct field hc_expand_fields[] = {D(hc_expand, x), D(hc_expand, post), D(hc_expand, comb), D(hc_expand, o), {0}};
static const struct field hc_mean_fields[] = {D(hc_mean, x), D(hc_mean, y), D(hc_mean, to), {0}};
static const struct field quant8_fields[] = {D(quant8, x), D(quant8, y), {0}};
static const struct field linear_fields[] = {F(linear, w, WEIGHT), D(linear, x), D(linear, y), {0}};
static const struct field rope_angles_fields[] = {D(rope_angles, pos), D(rope_angles, freq), D(rope_angles, cos), D(rope_angles, sin), {0}};
static const struct field rope_fields[] = {D(rope, x), D(rope, cos), D(rope, sin), {0}};
static const struct field window_store_fields[] = {D(window_store, kv),  D(window_store, w),    D(window_store, cos),
                                                   D(window_store, sin), D(window_store, rows), {0}};
static const struct field window_commit_fields[] = {
    F(window_commit, rows, ROWS), F(window_commit, kv, KV), D(window_commit, window_new), {0}};
static const struct field compress_fields[] = {D(compress, closed), F(compress, rows, ROWS), F(compress, kv, KV),
                                               D(compress, kv_act), D(compress, kv_f32),     D(compress, gate),
                                               D(compress, w),      D(compress, latent),     {0}};
static const struct field raw_commit_fields[] = {
    F(raw_commit, rows, ROWS), F(raw_commit, kv, KV), D(raw_commit, kv_f32), D(raw_commit, gate), {0}};
static const struct field key_store_fields[] = {D(key_store, closed), F(key_store, rows, ROWS), F(key_store, kv, KV), D(key_store, k),
                                                D(key_store, w),      D(key_store, cos),        D(key_store, sin),    {0}};
static const struct field comp_store_fields[] = {D(comp_store, closed),
                                                 F(comp_store, rows, ROWS),
                                                 F(comp_store, kv, KV),
                                                 D(comp_store, latent),
                                                 D(comp_store, cos),
                                                 D(comp_store, sin),
                                                 {0}};
static const struct field gather_fields[] = {D(gather, rows), D(gather, x), D(gather, y), {0}};
static const struct field scale_fields[] = {D(scale, x), {0}};
static const struct field index_query_fields[] = {D(index_query, q), D(index_query, cos), D(index_query, sin), {0}};
static const struct field index_select_fields[] = {
    F(index_select, rows, ROWS), F(index_select, kv, KV), D(index_select, q),      D(index_select, w),      D(index_select, sel),
    D(index_select, sel_n),      D(index_select, cand),   D(index_select, cand_n), D(index_select, scores), {0}};
static const struct field attention_fields[] = {F(attention, rows, ROWS), F(attention, kv, KV), D(attention, window_new),
                                                D(attention, sel),        D(attention, sel_n),  D(attention, q),
                                                D(attention, sink),       D(attention, o),      {0}};
static const struct field router_fields[] = {D(router, x),    F(router, w, WEIGHT), D(router, bias),    D(router, bias_vl),
                                             D(router, kind), D(router, ids),       D(router, weights), {0}};
static const struct field moe_fields[] = {D(moe, x), D(moe, ids), D(moe, weights), F(moe, experts, EXPERTS), F(moe, shared, EXPERT),
                                          D(moe, y), {0}};
static const struct field engram_gather_fields[] = {
    D(engram_gather, idx), F(engram_gather, table, MAPPED), F(engram_gather, scale, MAPPED), D(engram_gather, e), {0}};
static const struct field engram_gate_fields[] = {D(engram_gate, x), D(engram_gate, kv), D(engram_gate, qk), D(engram_gate, kind), {0}};

static const struct field markov_fields[] = {D(markov, ids), F(markov, embed, MAPPED), D(markov, head),
                                             D(markov, e),   D(markov, logits),        {0}};
static const struct field confidence_fields[] = {D(confidence, h), D(confidence, e), D(confidence, w), D(confidence, z), {0}};

/* X(op, number of experts) */
#define NETWORK_OPS(X)  \
    X(embed, 0)         \
    X(rmsnorm, 0)       \
    X(hc_mix, 0)        \
    X(hc_norm, 0)       \
    X(hc_expand, 0)     \
    X(hc_mean, 0)       \
    X(quant8, 0)        \
    X(linear, 0)        \
    X(rope_angles, 0)   \
    X(rope, 0)          \
    X(window_store, 0)  \
    X(window_commit, 0) \
    X(compress, 0)      \
    X(raw_commit, 0)    \
    X(key_store, 0)     \
    X(comp_store, 0)    \
    X(gather, 0)        \
    X(scale, 0)         \
    X(index_query, 0)   \
    X(index_select, 0) X(attention, 0) X(router, 0) X(moe, d->n_experts) X(engram_gather, 0) X(engram_gate, 0) X(markov, 0) X(confidence, 0)

#define CALL(op, n_experts)                                                     \
    static void run_##op(struct di_backend *inner, const void *descriptor)      \
    {                                                                           \
        inner->ops->op(inner, descriptor);                                      \
    }                                                                           \
    static void hostile_##op(struct di_backend *be, const struct di_op_##op *d) \
    {                                                                           \
        call_op(be, #op, op##_fields, n_experts, d, sizeof *d, run_##op);       \
    }
NETWORK_OPS(CALL)

static size_t hostile_weight_bytes(const struct di_backend *be, const struct di_weight *w)
{
    const struct di_backend *inner = hostile_of(be)->inner;
    return inner->ops->weight_bytes(inner, w);
}

/* At once: weights are packed while nothing is computed, and the file's pages may be given back behind it. */
static void hostile_weight_pack(struct di_backend *be, struct di_weight *w, void *dst)
{
    struct hostile *h = hostile_of(be);
    h->inner->ops->weight_pack(h->inner, w, seen(h, dst));
    w->packed = dst;
}

/* ---------------------------------------------------------------- copies */

struct copy {
    int n;
    struct di_copy_span *spans;
};

static void run_copy(struct hostile *h, struct item *i)
{
    const struct copy *c = i->descriptor;
    (void)h;
    for (int k = 0; k < c->n; k++)
        if (c->spans[k].bytes)
            memcpy(c->spans[k].to, c->spans[k].from, c->spans[k].bytes);
}

/* With the lock: an end of a span, where it can be read. */
static void *place_end(struct hostile *h, const void *p, size_t bytes)
{
    if (is_in(h->device, h->n_device, p, bytes))
        return seen(h, p);
    if (!is_in(h->staging, h->n_staging, p, bytes))
        fault(h, "copy", "a span that is neither in device memory nor in staging memory");
    return (void *)(uintptr_t)p;
}

static void hostile_copy(struct di_backend *be, const struct di_op_copy *d)
{
    struct hostile *h = hostile_of(be);
    struct item *i = new_item(run_copy, &(struct copy){.n = d->n}, sizeof(struct copy));
    struct copy *c = i->descriptor;
    c->spans = keep(i, d->spans, (size_t)d->n * sizeof *d->spans);
    pthread_mutex_lock(&h->lock);
    for (int k = 0; k < d->n && !h->failed; k++) {
        struct di_copy_span *s = &c->spans[k];
        bool down = s->bytes > 0 && !is_device(h, s->to);
        s->to = s->bytes ? place_end(h, s->to, s->bytes) : NULL;
        s->from = s->bytes ? place_end(h, s->from, s->bytes) : NULL;
        if (down && !h->failed)
            spoil(h, s->to, s->bytes);
    }
    if (h->failed)
        c->n = 0;
    if (++h->n_copies == h->params.at && h->params.mistake == DI_HOSTILE_LATE_COPY && !h->held)
        h->held = i;
    else
        call(h, i);
    pthread_mutex_unlock(&h->lock);
}

/* ---------------------------------------------------------------- the sampler */

static void run_sample(struct hostile *h, struct item *i)
{
    const struct di_op_sample *d = i->descriptor;
    if (h->inner)
        h->inner->ops->sample(h->inner, d);
    for (int k = 0; k < d->m && !h->inner; k++)
        di_sample_task_run(h->law, &d->tasks[k], &d->results[k]);
}

static void hostile_sample(struct di_backend *be, const struct di_op_sample *d)
{
    struct hostile *h = hostile_of(be);
    struct item *i = new_item(run_sample, d, sizeof *d);
    struct di_op_sample *copy = i->descriptor;
    struct di_sample_task *tasks = keep(i, d->tasks, (size_t)d->m * sizeof *tasks);
    copy->tasks = tasks;
    pthread_mutex_lock(&h->lock);
    for (int k = 0; k < d->m; k++)
        translate(h, "sample", &tasks[k].row.logits);
    if (d->m && !is_in(h->staging, h->n_staging, d->results, (size_t)d->m * sizeof *d->results))
        fault(h, "sample", "results that are not in staging memory");
    if (h->failed)
        copy->m = 0;
    else
        spoil(h, d->results, (size_t)d->m * sizeof *d->results);
    call(h, i);
    pthread_mutex_unlock(&h->lock);
}

/* ---------------------------------------------------------------- steps of null models */

struct null_call {
    struct di_stepper null;
    struct di_step step;
    int first, n; /* of the head */
    float *logits;
};

static void run_compute(struct hostile *h, struct item *i)
{
    const struct null_call *c = i->descriptor;
    di_error err = {0};
    if (h->failed || c->null.compute(c->null.ctx, &c->step, &err) == DI_OK)
        return;
    pthread_mutex_lock(&h->lock);
    h->step_failed = true;
    h->step_fault = err;
    pthread_mutex_unlock(&h->lock);
}

static void run_head(struct hostile *h, struct item *i)
{
    const struct null_call *c = i->descriptor;
    pthread_mutex_lock(&h->lock);
    bool fails = h->failed || h->step_failed;
    pthread_mutex_unlock(&h->lock);
    if (!fails)
        c->null.head(c->null.ctx, &c->step, c->first, c->n, c->logits);
}

/* The ids of all chunks, behind pointers to them. */
static const int32_t *const *keep_tokens(struct item *i, const struct di_step *s)
{
    size_t n = 0, head = (size_t)s->n_chunks * sizeof(int32_t *);
    for (int k = 0; k < s->n_chunks; k++)
        n += (size_t)(s->chunks[k].pos0 + s->chunks[k].n);
    char *block = allocate(head + n * sizeof(int32_t));
    const int32_t **lists = (const int32_t **)(void *)block;
    int32_t *ids = (int32_t *)(void *)(block + head);
    for (int k = 0; k < s->n_chunks; k++) {
        size_t count = (size_t)(s->chunks[k].pos0 + s->chunks[k].n);
        lists[k] = memcpy(ids, s->tokens[k], count * sizeof *ids);
        ids += count;
    }
    i->piece[i->n_pieces++] = block;
    return (const int32_t *const *)lists;
}

static void call_null(struct di_backend *be, void (*run)(struct hostile *h, struct item *i), const struct null_call *what)
{
    struct hostile *h = hostile_of(be);
    struct item *i = new_item(run, what, sizeof *what);
    struct null_call *c = i->descriptor;
    struct di_step *s = &c->step;
    size_t n = (size_t)s->n_chunks;
    s->tokens = keep_tokens(i, s);
    s->chunks = keep(i, s->chunks, n * sizeof *s->chunks);
    s->replay = s->replay ? keep(i, s->replay, n * sizeof *s->replay) : NULL;
    s->logit_rows = s->n_logits ? keep(i, s->logit_rows, (size_t)s->n_logits * sizeof *s->logit_rows) : NULL;
    pthread_mutex_lock(&h->lock);
    translate_kv(h, "step", i, &s->kv);
    translate(h, "step", &c->logits);
    call(h, i);
    pthread_mutex_unlock(&h->lock);
}

void di_hostile_compute(struct di_backend *be, const struct di_stepper *null, const struct di_step *step)
{
    call_null(be, run_compute, &(struct null_call){.null = *null, .step = *step});
}

void di_hostile_head(struct di_backend *be, const struct di_stepper *null, const struct di_step *step, int first, int n, float *logits)
{
    call_null(be, run_head, &(struct null_call){.null = *null, .step = *step, .first = first, .n = n, .logits = logits});
}

/* ---------------------------------------------------------------- life */

bool di_hostile_is_empty(struct di_backend *be)
{
    struct hostile *h = hostile_of(be);
    pthread_mutex_lock(&h->lock);
    bool empty = h->n_device == 0 && h->n_staging == 0;
    pthread_mutex_unlock(&h->lock);
    return empty;
}

void *di_hostile_view(const void *p)
{
    struct hostile *h;
    pthread_mutex_lock(&living_lock);
    for (h = living; h && !is_device(h, p); h = h->older)
        ;
    pthread_mutex_unlock(&living_lock);
    if (!h)
        return (void *)(uintptr_t)p;
    if (hostile_wait(&h->be, hostile_fence(&h->be), NULL) != DI_OK)
        die(h->fault.message);
    return seen(h, p);
}

static void hostile_destroy(struct di_backend *be)
{
    struct hostile *h = hostile_of(be);
    hostile_wait(be, hostile_fence(be), NULL);
    pthread_mutex_lock(&h->lock);
    h->ending = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (h->threaded)
        pthread_join(h->thread, NULL);
    if (h->n_device || h->n_staging)
        die("memory was not released");
    pthread_mutex_lock(&living_lock);
    struct hostile **at = &living;
    while (*at != h)
        at = &(*at)->older;
    *at = h->older;
    pthread_mutex_unlock(&living_lock);
    munmap(h->here, REGION);
    munmap(h->there, REGION);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    di_law_destroy(h->law);
    if (h->inner)
        h->inner->ops->destroy(h->inner);
    free(h);
}

static bool map_region(struct hostile *h)
{
    int fd = memfd_create("hostile device", MFD_CLOEXEC);
    if (fd < 0)
        return false;
    bool sized = ftruncate(fd, (off_t)REGION) == 0;
    h->here = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    h->there = sized ? mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0) : MAP_FAILED;
    close(fd);
    return h->here != MAP_FAILED && h->there != MAP_FAILED;
}

static void fill_table(struct hostile *h)
{
    h->ops = (struct di_ops){.name = "hostile",
                             .act_bytes = sizeof(float),
                             .weight_bytes = hostile_weight_bytes,
                             .weight_pack = hostile_weight_pack,
                             .alloc = hostile_alloc,
                             .release = hostile_release,
                             .copy = hostile_copy,
                             .fence = hostile_fence,
                             .wait = hostile_wait,
                             .sample = hostile_sample,
                             .destroy = hostile_destroy};
#define SET(op, n_experts) h->ops.op = hostile_##op;
    NETWORK_OPS(SET)
}

di_status di_hostile_create(struct di_backend *inner, int vocab, const struct di_hostile_params *p, struct di_backend **out, di_error *err)
{
    static const int eager[] = {0, 2, 16, 64};
    struct hostile *h = allocate(sizeof *h);
    *h = (struct hostile){
        .inner = inner, .params = *p, .threaded = p->seed % 2, .eager = eager[p->seed / 4 % 4], .random = p->seed * 0x9E3779B97F4A7C15u};
    memcpy(h->poison, p->seed / 2 % 2 ? "\xA5\xA5" : "\xC0\x7F", sizeof h->poison);
    fill_table(h);
    if (!inner && !vocab)
        h->ops.sample = NULL;
    if (inner) {
        h->be = *inner;
        h->ops.name = inner->ops->name;
        h->ops.act_bytes = inner->ops->act_bytes;
    }
    h->be.ops = &h->ops;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    if (!map_region(h) || (vocab && di_law_create((size_t)vocab, &h->law, err) != DI_OK))
        die("no memory for its region");
    if (h->threaded && di_thread_create(&h->thread, work, h) != 0)
        die("no thread");
    pthread_mutex_lock(&living_lock);
    h->older = living;
    living = h;
    pthread_mutex_unlock(&living_lock);
    *out = &h->be;
    return DI_OK;
}
