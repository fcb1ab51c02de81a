/* Requests in the engine. A preparing thread makes the exchange and submits; from then on the exchange is the loop's, which gets the
 * engine's records through the queue, turns them into bytes and gives those to the transport. */
#include "server/server_impl.h"

#include <malloc.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

/* Copies of records that wait for the loop; a request that would add more is cancelled. The loop never waits, so they only pile up if the
 * process is starved of CPU. */
#define QUEUE_LIMIT ((size_t)64 << 20)
#define LARGE_BODY ((size_t)512 << 10) /* 31 MiB may take many seconds to tokenize */

/* Small requests leave holes in the heap. When about so many bytes of requests were freed, the pages of the holes go back a little later, when
 * the engine has freed its part, too. */
#define TRIM_BYTES ((size_t)4 << 20)
#define TRIM_NS INT64_C(500000000)
#define ANSWER_BYTES ((size_t)12 << 10) /* of each, beside its tokens */

struct di_call *di_call_create(struct di_server *s, struct di_http_request *r)
{
    struct di_call *c = di_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->server = s;
    c->http = r;
    c->tenant = &s->everybody;
    c->next = s->calls;
    if (c->next)
        c->next->prev = c;
    s->calls = c;
    s->n_calls++;
    r->user = c;
    return c;
}

/* ---------------------------------------------------------------- places in the queue */

bool di_call_fits(struct di_call *c, size_t n)
{
    struct di_preparers *p = &c->server->preparers;
    pthread_mutex_lock(&p->lock);
    bool fits = di_places_fit(&p->places, c->tenant, n);
    pthread_mutex_unlock(&p->lock);
    return fits;
}

bool di_call_take_places(struct di_call *c, size_t n)
{
    struct di_preparers *p = &c->server->preparers;
    pthread_mutex_lock(&p->lock);
    bool fits = di_places_change(&p->places, c->tenant, c->places, n);
    c->places = fits ? n : c->places;
    pthread_mutex_unlock(&p->lock);
    return fits;
}

size_t di_server_answers(struct di_server *s)
{
    pthread_mutex_lock(&s->preparers.lock);
    size_t n = s->preparers.places.used;
    pthread_mutex_unlock(&s->preparers.lock);
    return n;
}

/* ---------------------------------------------------------------- life */

static void hold_bytes(struct di_call *c, size_t bytes)
{
    di_places_set(&c->server->held, c->tenant, c->held, bytes);
    c->server->freed_bytes += bytes < c->held ? c->held - bytes : 0;
    c->held = bytes;
}

static void call_destroy(struct di_call *c)
{
    struct di_server *s = c->server;
    *(c->prev ? &c->prev->next : &s->calls) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_calls--;
    hold_bytes(c, 0);
    s->freed_bytes += c->n_subs * ANSWER_BYTES + (size_t)c->prompt_tokens * sizeof(int32_t);
    di_exchange_destroy(c->x);
    if (c->admitted)
        di_key_leave(c->key);
    di_key_drop(c->key);
    di_buf_fini(&c->body);
    di_buf_fini(&c->path_id);
    di_buf_fini(&c->query);
    di_buf_fini(&c->early);
    di_buf_fini(&c->whole);
    di_free(c->subs);
    di_free(c);
}

static bool engine_done(const struct di_call *c)
{
    return c->state == DI_CALL_HERE || (c->state == DI_CALL_RUNNING && c->n_unfinished == 0);
}

/* Free it if nobody needs it. */
static void free_if_done(struct di_call *c)
{
    if (!engine_done(c))
        return;
    if (c->row && c->row->generates)
        di_call_take_places(c, 0);
    if (!c->http)
        call_destroy(c);
}

void di_call_http_done(struct di_call *c)
{
    c->http = NULL;
    if (!engine_done(c))
        di_call_cancel(c);
    free_if_done(c);
}

void di_call_cancel(struct di_call *c)
{
    atomic_store(&c->gone, true);
    if (c->state != DI_CALL_RUNNING || c->cancelled)
        return;
    c->cancelled = true;
    for (size_t i = 0; i < c->n_subs; i++)
        if (!c->subs[i].finished)
            di_engine_cancel(c->server->engine, c->subs[i].id);
}

/* ---------------------------------------------------------------- output */

/* Memory ran out for a whole body. */
static void cut_short(struct di_call *c)
{
    struct di_http_error e;
    di_http_error_set(&e, 503, NULL, NULL, "out of memory");
    if (c->http->started)
        di_http_abort(c->http); /* what was begun cannot become an answer */
    else
        di_call_reply_error(c, &e, 1);
}

/* Send what the exchange has written. */
static void deliver_bytes(struct di_call *c, struct di_str bytes)
{
    struct di_http_request *r = c->http;
    bool finished = di_exchange_finished(c->x), streams = di_exchange_streams(c->x);
    if (!r)
        return;
    if (!streams)
        di_buf_addv(&c->whole, bytes);
    if (streams && (bytes.n || finished)) {
        di_http_start(r, 200, di_exchange_content_type(c->x), di_call_headers(c, true));
        di_http_send(r, bytes);
        c->sent_ns = di_clock_ns();
    }
    if (!finished)
        return;
    int status = di_exchange_status(c->x);
    if (streams) {
        di_http_end(r);
    } else if (c->whole.failed) {
        cut_short(c);
    } else if (r->started) { /* blank lines were sent */
        di_http_send(r, di_buf_str(&c->whole));
        di_http_end(r);
    } else {
        di_http_reply(r, status, status == 200 ? di_exchange_content_type(c->x) : "application/json", di_call_headers(c, false),
                      di_buf_str(&c->whole));
    }
    if (c->n_unfinished)
        di_call_cancel(c); /* what is left has nobody to go to */
}

static void fail_call(struct di_call *c, const struct di_http_error *e)
{
    struct di_http_request *r = c->http;
    struct di_buf *out = &c->server->scratch;
    di_call_cancel(c);
    if (!r || r->answered)
        return;
    c->server->counters.limited += e->status == 429;
    di_buf_clear(out);
    if (c->x)
        di_exchange_fail(c->x, e, r->started, out);
    else if (r->started)
        di_exchange_refuse(c->row->route, c->form == DI_CALL_STREAMS, e, di_str_c(c->id), out);
    if (!r->started) {
        bool events = c->x && di_exchange_status(c->x) == 200; /* a stream that begins with its error */
        if (events)
            di_http_reply(r, 200, di_exchange_content_type(c->x), di_call_headers(c, true), di_buf_str(out));
        else
            di_call_reply_error(c, e, e->status == 429 || e->status == 503 ? 1 : 0);
        return;
    }
    di_http_send(r, di_buf_str(out));
    di_http_close_after(r);
    di_http_end(r);
}

void di_call_fail(struct di_call *c, int status, const char *message)
{
    struct di_http_error e;
    if (c->state == DI_CALL_PREPARING) { /* the exchange is not ours yet */
        atomic_store(&c->gone, true);
        return;
    }
    di_http_error_set(&e, status, NULL, NULL, "%s", message);
    fail_call(c, &e);
}

/* What went wrong on this side, for the operator. */
static void log_failure(const struct di_server *s, const di_error *err)
{
    if (err->code == DI_ERR_IO || err->code == DI_ERR_MEMORY || err->code == DI_ERR_INTERNAL)
        di_log(&s->log, DI_LOG_ERROR, "a request failed: %s%s%s", err->where, err->where[0] ? ": " : "", err->message);
}

/* One record of submission `sub`. */
static void take_record(struct di_call *c, struct di_sub *sub, const di_output *o)
{
    struct di_server *s = c->server;
    struct di_buf *out = &s->scratch;
    di_error err;
    if (o->kind == DI_OUTPUT_FINISHED) {
        sub->finished = true;
        c->n_unfinished--;
        c->prompt_tokens += o->prompt_tokens;
        c->cached_tokens += o->cached_tokens;
        c->completion_tokens += o->completion_tokens;
        if (o->reason == DI_REASON_ERROR && o->error)
            log_failure(s, o->error);
    }
    if (!c->http || c->refused || di_exchange_finished(c->x))
        return;
    di_buf_clear(out);
    if (di_exchange_output(c->x, sub->index, o, out, &err) == DI_OK) {
        deliver_bytes(c, di_buf_str(out));
    } else {
        struct di_http_error e;
        di_http_error_from(&e, &err);
        fail_call(c, &e);
    }
}

static void take_early(void *ctx, void *to, const di_output *o)
{
    (void)ctx;
    struct di_sub *sub = to;
    take_record(sub->call, sub, o);
}

static void count_answers(struct di_server_counters *t, size_t n)
{
    int i = 0;
    while (i < DI_N_ANSWER_EDGES && n > (size_t)1 << i)
        i++;
    t->answers[i] += n > 0;
    t->n_answers += n;
}

/* The preparing thread is done with it. */
static void take_prepared(struct di_call *c)
{
    struct di_server *s = c->server;
    di_error err;
    c->state = DI_CALL_RUNNING;
    c->n_unfinished = c->n_subs;
    di_buf_fini(&c->body);
    hold_bytes(c, c->kept);
    count_answers(&s->counters, c->n_subs);
    c->sent_ns = c->http && c->http->started ? c->sent_ns : di_clock_ns();
    if (c->refused && c->http) {
        fail_call(c, &c->error);
    } else if (!c->http || (atomic_load(&c->gone) && c->x && c->n_subs < di_exchange_submissions(c->x))) {
        di_call_cancel(c);
        if (c->http)
            di_call_fail(c, 503, "the server is stopping");
    } else {
        di_buf_clear(&s->scratch);
        if (di_exchange_begin(c->x, &s->scratch, &err) == DI_OK) {
            deliver_bytes(c, di_buf_str(&s->scratch));
        } else {
            di_http_error_from(&c->error, &err);
            fail_call(c, &c->error);
        }
    }
    if (c->x)
        c->model = di_exchange_model(c->x);
    di_records_each(&c->early, take_early, NULL);
    di_buf_fini(&c->early);
    free_if_done(c);
}

/* From the queue: a record for a submission, or a call that is prepared. */
static void take_from_queue(void *ctx, void *to, const di_output *o)
{
    (void)ctx;
    if (!o) {
        take_prepared(to);
        return;
    }
    struct di_sub *sub = to;
    struct di_call *c = sub->call;
    if (c->state == DI_CALL_PREPARING) {
        if (!di_records_add(&c->early, sub, o))
            atomic_store(&sub->lost, true), atomic_store(&c->server->lost, true);
        return;
    }
    take_record(c, sub, o);
    free_if_done(c);
}

/* Memory ran out for records that had to arrive: end those submissions here. */
static void take_lost(struct di_server *s)
{
    static const di_error err = {DI_ERR_MEMORY, "out of memory", ""};
    bool left = false;
    for (struct di_call *c = s->calls, *next; c; c = next) {
        next = c->next;
        for (size_t i = 0; c->state == DI_CALL_RUNNING && i < c->n_subs; i++) {
            di_output o = {.kind = DI_OUTPUT_FINISHED, .token = -1, .reason = DI_REASON_ERROR, .stop_index = -1, .text = "", .error = &err};
            if (atomic_load(&c->subs[i].lost) && !c->subs[i].finished)
                take_record(c, &c->subs[i], &o);
        }
        left = left || c->state == DI_CALL_PREPARING;
        if (c->state == DI_CALL_RUNNING)
            free_if_done(c);
    }
    atomic_store(&s->lost, left);
}

void di_calls_on_queue(struct di_server *s)
{
    di_engine_queue_drain(s->queue, take_from_queue, s);
    if (atomic_load(&s->lost))
        take_lost(s);
    di_http_flush(s->http);
}

/* Is it a stream? While a preparing thread has the exchange, the body alone says so. */
static bool streams(struct di_call *c)
{
    if (c->state == DI_CALL_RUNNING)
        return c->x && di_exchange_streams(c->x);
    if (c->form == DI_CALL_UNSEEN)
        c->form = di_body_streams(di_buf_str(&c->body)) ? DI_CALL_STREAMS : DI_CALL_WHOLE;
    return c->form == DI_CALL_STREAMS;
}

/* Something to read for clients that wait (spec/encoding.md §4.9), by the clock alone, in whatever state the request is. */
static void keep_alive(struct di_call *c, int64_t now)
{
    struct di_server *s = c->server;
    if (c->state == DI_CALL_HERE || !c->row->generates || !c->http || c->http->answered || s->config.comment_ms == 0 ||
        now - c->sent_ns < s->config.comment_ms * 1000000 || (c->state == DI_CALL_RUNNING && (!c->x || di_exchange_finished(c->x))))
        return;
    bool stream = streams(c);
    if (!stream && !s->config.blank_lines)
        return;
    di_http_start(c->http, 200, di_stream_content_type(stream), di_call_headers(c, stream));
    di_http_send(c->http, di_keep_alive(stream));
    c->sent_ns = now;
    s->counters.comments++;
}

void di_calls_on_tick(struct di_server *s, int64_t now_ns)
{
    for (struct di_call *c = s->calls; c; c = c->next)
        keep_alive(c, now_ns);
}

void di_calls_destroy(struct di_server *s)
{
    while (s->calls) {
        s->calls->http = NULL;
        call_destroy(s->calls);
    }
}

/* ---------------------------------------------------------------- the engine's thread */

static int on_output(void *user, const di_output *output)
{
    struct di_sub *sub = user;
    struct di_server *s = sub->call->server;
    if (di_engine_queue_push(s->queue, sub, output, QUEUE_LIMIT))
        return 1;
    if (output->kind == DI_OUTPUT_FINISHED) {
        atomic_store(&sub->lost, true);
        atomic_store(&s->lost, true);
    }
    return 0;
}

/* ---------------------------------------------------------------- the preparing threads */

static void submit_all(struct di_call *c)
{
    struct di_server *s = c->server;
    size_t n = di_exchange_submissions(c->x);
    di_error err;
    if (n > 1 && !di_call_take_places(c, n)) {
        di_http_error_set(&c->error, 429, NULL, NULL, "the queue is full");
        c->refused = true;
        return;
    }
    c->subs = di_calloc(n ? n : 1, sizeof *c->subs);
    if (!c->subs) {
        di_http_error_set(&c->error, 503, NULL, NULL, "out of memory");
        c->refused = true;
        return;
    }
    for (size_t k = 0; k < di_exchange_prompts(c->x) && !atomic_load(&c->gone); k++)
        if (di_exchange_prepare(c->x, k, &err) != DI_OK) {
            di_http_error_from(&c->error, &err);
            c->refused = true;
            return;
        }
    for (size_t i = 0; i < n && !atomic_load(&c->gone); i++) {
        di_submission sub;
        c->subs[i].call = c;
        c->subs[i].index = i;
        di_exchange_submission(c->x, i, &sub);
        sub.on_output = on_output;
        sub.user = &c->subs[i];
        sub.deadline_ms = s->config.request_ms;
        if (di_engine_submit(s->engine, &sub, &c->subs[i].id, &err) != DI_OK) {
            di_http_error_from(&c->error, &err);
            c->refused = true;
            return;
        }
        c->n_subs++;
        di_exchange_submitted(c->x, i, c->subs[i].id);
    }
}

static void prepare_call(struct di_call *c)
{
    struct di_server *s = c->server;
    struct di_exchange_request request = {.route = c->row->route,
                                          .body = di_buf_str(&c->body),
                                          .id = di_buf_str(&c->path_id),
                                          .query = di_buf_str(&c->query),
                                          .request_id = di_str_c(c->id),
                                          .tenant = c->tenant->id,
                                          .now = (int64_t)time(NULL)};
    if (atomic_load(&c->gone)) { /* who left while it waited has no time spent on it */
        di_http_error_set(&c->error, 503, NULL, NULL, "the server is stopping");
        c->refused = true;
    } else if (di_exchange_create(&s->setup, &request, &c->x, &c->error) != DI_OK) {
        c->refused = true;
    } else {
        submit_all(c);
        c->kept = di_exchange_release(c->x);
    }
}

static struct di_call *next_job(struct di_preparers *p, bool takes_large)
{
    struct di_job *job = takes_large ? di_turns_next(&p->large) : NULL;
    return (struct di_call *)(job ? job : di_turns_next(&p->small)); /* its first member */
}

static void *prepare_calls(void *arg)
{
    struct di_server *s = arg;
    struct di_preparers *p = &s->preparers;
    prctl(PR_SET_NAME, "prepare");
    pthread_mutex_lock(&p->lock);
    bool takes_large = p->n_begun++ == 0;
    pthread_mutex_unlock(&p->lock);
    for (;;) {
        struct di_call *c;
        pthread_mutex_lock(&p->lock);
        while (!(c = next_job(p, takes_large)) && !p->stop && !p->trim)
            pthread_cond_wait(&p->work, &p->lock);
        bool trim = !c && p->trim;
        p->trim = p->trim && !trim;
        pthread_mutex_unlock(&p->lock);
        if (trim) {
            malloc_trim(0);
            continue;
        }
        if (!c)
            return NULL;
        prepare_call(c);
        while (!di_engine_queue_push(s->queue, c, NULL, 0)) /* without it the call would be lost */
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

void di_call_prepare(struct di_call *c)
{
    struct di_preparers *p = &c->server->preparers;
    c->body = c->http->body;
    c->http->body = (struct di_buf){0};
    hold_bytes(c, c->body.n);
    c->state = DI_CALL_PREPARING;
    c->sent_ns = di_clock_ns();
    pthread_mutex_lock(&p->lock);
    di_turns_add(c->body.n > LARGE_BODY ? &p->large : &p->small, c->tenant, &c->job);
    pthread_cond_broadcast(&p->work); /* either may be the one that takes it */
    pthread_mutex_unlock(&p->lock);
}

void di_server_trim(struct di_server *s, int64_t now)
{
    struct di_preparers *p = &s->preparers;
    if (s->freed_bytes < TRIM_BYTES)
        return;
    if (!s->trim_ns)
        s->trim_ns = now + TRIM_NS;
    if (now < s->trim_ns)
        return;
    s->freed_bytes = 0;
    s->trim_ns = 0;
    pthread_mutex_lock(&p->lock);
    p->trim = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

di_status di_preparers_start(struct di_server *s, di_error *err)
{
    struct di_preparers *p = &s->preparers;
    di_turns_init(&p->large, 0);
    di_turns_init(&p->small, 1);
    for (; p->n_threads < DI_PREPARERS; p->n_threads++)
        if (di_thread_create(&p->threads[p->n_threads], prepare_calls, s) != 0)
            return di_fail(err, DI_ERR_LIMIT, "", "the system grants no thread");
    return DI_OK;
}

void di_preparers_stop(struct di_server *s)
{
    struct di_preparers *p = &s->preparers;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    p->n_threads = 0;
}
