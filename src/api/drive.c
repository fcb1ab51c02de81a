/* Public API: driving an engine, by the caller's thread or the engine's own; reading its output. */
#include "api/engine.h"

#include "base/clock.h"
#include "base/threads.h"

/* ---------------------------------------------------------------- the driver */

static di_status begin_driving(di_engine *e, bool own_thread, di_error *err)
{
    di_status status = DI_OK;
    pthread_mutex_lock(&e->lock);
    if (e->driving)
        status = di_fail(err, DI_ERR_INVALID, "engine", "another thread is driving it, or the call comes from a callback");
    else if (e->has_thread && !own_thread)
        status = di_fail(err, DI_ERR_INVALID, "engine", "it drives itself: di_engine_stop comes first");
    else
        e->driving = true;
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* The records of the step can be polled from now on. Holds the lock. */
static void put_in_outbox(di_engine *e)
{
    if (!e->fresh)
        return;
    *e->outbox_end = e->fresh;
    e->outbox_end = e->fresh_end;
    e->n_unread += e->n_fresh;
    e->fresh = NULL;
    e->fresh_end = &e->fresh;
    e->n_fresh = 0;
    pthread_cond_broadcast(&e->output);
}

static void end_driving(di_engine *e)
{
    struct di_core_stats s = di_core_stats(e->core);
    struct di_api_request *ended = e->ended;
    e->ended = NULL;
    pthread_mutex_lock(&e->lock);
    di_engine_stats_from(&e->stats, &s);
    e->metrics = *di_core_metrics(e->core);
    put_in_outbox(e);
    e->driving = false;
    pthread_mutex_unlock(&e->lock);
    for (struct di_api_request *next; ended; ended = next) {
        next = ended->next;
        di_api_request_destroy(ended);
    }
}

/* Give the core what came in since the last step. */
static void take_inbox(di_engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct di_api_request *in = e->inbox, *cancels = e->cancels;
    e->inbox = e->cancels = NULL;
    e->inbox_end = &e->inbox;
    for (struct di_api_request *r = cancels; r; r = r->next_cancel)
        di_core_cancel(e->core, r->id); /* one that comes in below is not known yet, and looked at there */
    pthread_mutex_unlock(&e->lock);
    for (struct di_api_request *r = in, *next; r; r = next) {
        di_error err;
        next = r->next;
        pthread_mutex_lock(&e->lock);
        bool cancel = r->cancel;
        pthread_mutex_unlock(&e->lock);
        if (cancel)
            di_api_request_end(r, DI_REASON_CANCELLED, NULL);
        else if (di_api_request_start(r, &err) != DI_OK)
            di_api_request_end(r, DI_REASON_ERROR, &err);
    }
}

static bool has_mail(di_engine *e)
{
    return e->inbox || e->cancels;
}

static di_status drive_step(di_engine *e, int *busy, di_error *err)
{
    take_inbox(e);
    di_status status = di_core_step(e->core, &e->busy, err);
    pthread_mutex_lock(&e->lock);
    if (busy)
        *busy = e->busy || has_mail(e);
    pthread_mutex_unlock(&e->lock);
    return status;
}

di_status di_engine_step(di_engine *e, int *busy, di_error *err)
{
    di_status status = DI_OK;
    if (busy)
        *busy = 0;
    if (!e)
        return di_fail(err, DI_ERR_INVALID, "engine", "is NULL");
    TRY(begin_driving(e, false, err));
    status = drive_step(e, busy, err);
    end_driving(e);
out:
    return status;
}

di_status di_engine_flush(di_engine *e, di_error *err)
{
    di_status status = DI_OK;
    if (!e)
        return di_fail(err, DI_ERR_INVALID, "engine", "is NULL");
    TRY(begin_driving(e, false, err));
    status = di_core_flush(e->core, err);
    end_driving(e);
out:
    return status;
}

di_status di_engine_run(di_engine *e, di_error *err)
{
    di_status status = DI_OK;
    int busy = 1;
    while (busy && status == DI_OK)
        status = di_engine_step(e, &busy, err);
    return status;
}

void di_engine_wind_up(di_engine *e)
{
    di_engine_stop(e);
    pthread_mutex_lock(&e->lock);
    e->driving = e->closing = true;
    struct di_api_request *in = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    pthread_mutex_unlock(&e->lock);
    for (struct di_api_request *next; in; in = next) {
        next = in->next;
        di_api_request_end(in, DI_REASON_CANCELLED, NULL);
    }
    di_core_destroy(e->core);
    for (struct di_api_request *r = e->ended, *next; r; r = next) {
        next = r->next;
        di_api_request_destroy(r);
    }
}

/* ---------------------------------------------------------------- the engine's own thread */

static void *drive_on_thread(void *arg)
{
    di_engine *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->stopping && !e->busy && !has_mail(e))
            pthread_cond_wait(&e->work, &e->lock);
        bool stop = e->stopping;
        pthread_mutex_unlock(&e->lock);
        if (stop)
            return NULL;
        if (begin_driving(e, true, NULL) != DI_OK)
            continue;
        drive_step(e, NULL, NULL); /* an error has ended all requests, and their records say it */
        end_driving(e);
    }
}

di_status di_engine_start(di_engine *e, di_error *err)
{
    di_status status = DI_OK;
    if (!e)
        return di_fail(err, DI_ERR_INVALID, "engine", "is NULL");
    pthread_mutex_lock(&e->lock);
    CHECK(!e->has_thread, err, DI_ERR_INVALID, "engine", "it has a thread already");
    CHECK(!e->driving, err, DI_ERR_INVALID, "engine", "another thread is driving it, or the call comes from a callback");
    e->has_thread = di_thread_create(&e->thread, drive_on_thread, e) == 0;
    CHECK(e->has_thread, err, DI_ERR_LIMIT, "engine", "the system grants no thread");
out:
    pthread_mutex_unlock(&e->lock);
    return status;
}

void di_engine_stop(di_engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    bool mine = e->has_thread && !e->stopping && !pthread_equal(pthread_self(), e->thread);
    if (mine) {
        e->stopping = true;
        e->stops++;
        pthread_cond_broadcast(&e->work);
        pthread_cond_broadcast(&e->output);
    }
    pthread_mutex_unlock(&e->lock);
    if (!mine)
        return;
    pthread_join(e->thread, NULL);
    pthread_mutex_lock(&e->lock);
    e->has_thread = e->stopping = false;
    pthread_mutex_unlock(&e->lock);
}

/* ---------------------------------------------------------------- reading */

/* Wait for a record; false when the time is over or the driver's thread was stopped. Holds the lock. */
static bool wait_for_output(di_engine *e, int64_t timeout_ms)
{
    uint64_t stops = e->stops;
    int64_t until = timeout_ms > INT64_MAX / 2000000 ? INT64_MAX : di_clock_ns() + timeout_ms * 1000000;
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    while (!e->outbox && e->stops == stops) {
        if (timeout_ms < 0)
            pthread_cond_wait(&e->output, &e->lock);
        else if (pthread_cond_timedwait(&e->output, &e->lock, &at) != 0)
            break;
    }
    return e->outbox != NULL;
}

const di_output *di_engine_poll(di_engine *e, int64_t timeout_ms)
{
    if (!e)
        return NULL;
    pthread_mutex_lock(&e->lock);
    struct di_record *rec = NULL;
    if (e->outbox || (timeout_ms != 0 && wait_for_output(e, timeout_ms))) {
        rec = e->outbox;
        e->outbox = rec->next;
        if (!e->outbox)
            e->outbox_end = &e->outbox;
        e->n_unread--;
        struct di_api_request *r = di_api_request_find(e, rec->out.request);
        if (r)
            r->n_read++;
    }
    pthread_mutex_unlock(&e->lock);
    return rec ? &rec->out : NULL;
}
