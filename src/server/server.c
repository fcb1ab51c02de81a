/* The server as a whole: its loop, signals, reload, drain, health. */
#include "base/plan.h"
#include "server/response_store.h"
#include "server/server_impl.h"
#include "server/server_listen.h"

#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define REPLY_OF_TOKEN ((size_t)32)
#define QUIT_MS 100         /* for the last lines of the log */
#define AFTER_DRAIN_MS 1000 /* for error events to reach clients, and for them to close, after the last request */

/* ---------------------------------------------------------------- drain, reload, signals */

static void begin_drain(struct di_server *s)
{
    s->draining = true;
    s->drain_ns = di_clock_ns();
    s->quiet_ns = s->drain_ns;
    di_notify(s->config.notify, "STOPPING=1");
    di_log(&s->log, DI_LOG_INFO, "draining: %zu answers under way", di_server_answers(s));
    di_http_drain(s->http);
}

/* What is left when the time of the drain is over gets an error, then the connections are closed. */
static void continue_drain(struct di_server *s, int64_t now)
{
    int64_t ms = (now - s->drain_ns) / 1000000;
    if (ms > s->config.drain_ms && !s->failed_drain) {
        s->failed_drain = di_server_answers(s) > 0;
        for (struct di_call *c = s->calls, *next; c; c = next) {
            next = c->next;
            if (c->http && !c->http->answered)
                di_call_fail(c, 503, "the server is stopping");
        }
        di_http_flush(s->http);
    }
    size_t open = di_http_counters(s->http)->open;
    if (s->n_calls > 0 && ms <= s->config.drain_ms + AFTER_DRAIN_MS)
        s->quiet_ns = now;
    if ((s->n_calls == 0 && open == 0) || now - s->quiet_ns > (int64_t)AFTER_DRAIN_MS * 1000000)
        event_base_loopbreak(s->base);
}

static void reload(struct di_server *s)
{
    struct di_keys *keys;
    di_error err;
    if (s->access && s->access != s->messages) { /* it may have been moved away by a rotation */
        if (di_log_sink_reopen(s->access, s->config.access_log, &err) != DI_OK)
            di_log(&s->log, DI_LOG_ERROR, "the access log stays where it was: %s: %s", err.where, err.message);
    }
    if (s->config.api_keys) {
        if (di_keys_load(s->config.api_keys, s->keys, &keys, &err) == DI_OK) {
            di_keys_destroy(s->keys);
            s->keys = keys;
            di_log(&s->log, DI_LOG_INFO, "read the keys again");
        } else {
            di_log(&s->log, DI_LOG_ERROR, "the keys stay as they were: %s: %s", err.where, err.message);
        }
    }
    if (s->config.tls_cert) {
        if (di_http_use_tls(s->http, s->config.tls_cert, s->config.tls_key, &err) == DI_OK)
            di_log(&s->log, DI_LOG_INFO, "read the certificate again");
        else
            di_log(&s->log, DI_LOG_ERROR, "the certificate stays as it was: %s: %s", err.where, err.message);
    }
}

static void on_stop_signal(struct di_server *s)
{
    if (s->draining || !atomic_load(&s->attached)) {
        for (int i = 0; i < 2; i++)
            if (i ? s->messages : s->access)
                di_log_sink_flush(i ? s->messages : s->access, QUIT_MS);
        if (s->config.quit)
            s->config.quit(s->config.quit_ctx, s->draining);
        event_base_loopbreak(s->base);
    } else {
        begin_drain(s);
    }
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    struct di_server *s = arg;
    struct signalfd_siginfo info;
    (void)what;
    while (read(fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP)
            reload(s);
        else
            on_stop_signal(s);
    }
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    struct di_server *s = arg;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) != sizeof count)
        return;
    if (!atomic_load(&s->attached))
        event_base_loopbreak(s->base);
    else if (!s->draining)
        begin_drain(s);
}

/* ---------------------------------------------------------------- the loop */

static void on_queue(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    di_calls_on_queue(arg);
}

/* Steps advance, or the engine has no request: what clients and preparing threads are doing says nothing about it. */
void di_server_watch(struct di_server *s, int64_t now)
{
    di_engine_stats stats = {0};
    if (atomic_load(&s->attached))
        di_engine_get_stats(s->engine, &stats, sizeof stats, NULL);
    uint64_t ended =
        stats.ended_stop + stats.ended_length + stats.ended_tool_calls + stats.ended_cancelled + stats.ended_deadline + stats.ended_error;
    if (stats.steps != s->stats.steps || stats.submitted <= ended)
        s->step_ns = now;
    s->stats = stats;
    double seconds = (double)(now - s->rate_ns) * 1e-9;
    if (seconds >= 1) {
        s->tokens_per_second = (double)(stats.generated_tokens - s->rate_tokens) / seconds;
        s->rate_ns = now;
        s->rate_tokens = stats.generated_tokens;
    }
}

static void on_tick(void *ctx, int64_t now)
{
    struct di_server *s = ctx;
    di_server_watch(s, now);
    di_calls_on_tick(s, now);
    di_server_trim(s, now);
    if (s->draining)
        continue_drain(s, now);
}

static void *run_loop(void *arg)
{
    struct di_server *s = arg;
    prctl(PR_SET_NAME, "http"); /* for top and the like */
    event_base_dispatch(s->base);
    return NULL;
}

/* ---------------------------------------------------------------- creating */

static di_status watch(struct di_server *s, int fd, event_callback_fn fn, struct event **out, di_error *err)
{
    *out = event_new(s->base, fd, EV_READ | EV_PERSIST, fn, s);
    return *out && event_add(*out, NULL) == 0 ? DI_OK : di_fail(err, DI_ERR_MEMORY, "", "out of memory");
}

static di_status listen_on(struct di_server *s, int fd, di_error *err)
{
    enum di_socket_reach reach = di_socket_reach(fd);
    bool tls = s->config.tls_cert && reach != DI_SOCKET_UNIX;
    s->reachable |= reach == DI_SOCKET_OPEN;
    if (!s->address[0])
        di_socket_url(fd, tls, s->address, sizeof s->address);
    di_status status = di_http_listen(s->http, fd, tls, err);
    if (status != DI_OK)
        close(fd);
    return status;
}

static di_status listen_all(struct di_server *s, di_error *err)
{
    di_status status = DI_OK;
    const struct di_server_config *c = &s->config;
    int fds[DI_HTTP_MAX_LISTENERS];
    size_t n = 0, done = 0;
    for (size_t i = 0; i < c->n_fds; i++)
        TRY(listen_on(s, c->fds[i], err));
    if (c->n_fds)
        goto out;
    CHECK(c->port >= 0 || c->unix_socket, err, DI_ERR_INVALID, "port", "there is nothing to listen on");
    if (c->port >= 0) {
        TRY(di_bind_tcp(c->host, c->port, fds, DI_HTTP_MAX_LISTENERS - 1, &n, err));
        while (done < n)
            TRY(listen_on(s, fds[done++], err));
    }
    if (c->unix_socket) {
        TRY(di_bind_unix(c->unix_socket, c->unix_mode, &fds[0], err));
        n = done = 1;
        s->owns_socket_file = true;
        TRY(listen_on(s, fds[0], err));
    }
out:
    while (done < n)
        close(fds[done++]);
    return status;
}

/* As browsers send it: compared as text, so a path or a slash at the end would never fit. */
static bool is_origin(const char *s)
{
    const char *host = strstr(s, "://");
    return strcmp(s, "*") == 0 || (host && host != s && host[3] && !strpbrk(host + 3, "/?# \t\r\n\""));
}

static di_status open_files(struct di_server *s, di_error *err)
{
    const struct di_server_config *c = &s->config;
    di_status status = DI_OK;
    if (c->api_keys)
        TRY(di_keys_load(c->api_keys, NULL, &s->keys, err));
    if (c->access_log && !(s->messages && strcmp(c->access_log, "-") == 0))
        TRY(strcmp(c->access_log, "-") == 0 ? di_log_sink_open_fd(STDERR_FILENO, &s->access, err)
                                            : di_log_sink_open(c->access_log, &s->access, err));
    else if (c->access_log)
        s->access = s->messages;
    CHECK(!c->cors_origin || is_origin(c->cors_origin), err, DI_ERR_INVALID, "cors-origin", "must be * or scheme://host[:port], not \"%s\"",
          c->cors_origin);
    CHECK((c->tls_cert != NULL) == (c->tls_key != NULL), err, DI_ERR_INVALID, "tls-cert", "certificate and key come together");
out:
    return status;
}

static di_status open_loop(struct di_server *s, di_error *err)
{
    di_status status = DI_OK;
    struct di_http_events events = {.on_head = di_server_on_head,
                                    .on_body = di_server_on_body,
                                    .on_request = di_server_on_request,
                                    .on_gone = di_server_on_gone,
                                    .on_refused = di_server_on_refused,
                                    .on_done = di_server_on_done,
                                    .on_tick = on_tick,
                                    .ctx = s};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    CHECK(pthread_sigmask(SIG_BLOCK, &signals, NULL) == 0, err, DI_ERR_IO, "", "signals cannot be blocked");
    s->signal_fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    s->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->base = event_base_new();
    CHECK(s->signal_fd >= 0 && s->stop_fd >= 0 && s->base, err, DI_ERR_IO, "", "the system grants no descriptors for events");
    TRY(di_engine_queue_create(&s->queue, err));
    TRY(di_http_create(s->base, &s->config.limits, &events, &s->log, &s->http, err));
    if (s->config.tls_cert)
        TRY(di_http_use_tls(s->http, s->config.tls_cert, s->config.tls_key, err));
    TRY(listen_all(s, err));
    TRY(watch(s, s->signal_fd, on_signal, &s->on_signal, err));
    TRY(watch(s, s->stop_fd, on_stop, &s->on_stop, err));
    TRY(watch(s, di_engine_queue_fd(s->queue), on_queue, &s->on_queue, err));
out:
    return status;
}

di_status di_server_create(const struct di_server_config *config, struct di_server **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_server *s = di_calloc(1, sizeof *s);
    CHECK(s, err, DI_ERR_MEMORY, "", "out of memory");
    s->config = *config;
    s->log = (struct di_log){.level = DI_LOG_INFO, .fn = di_server_message, .ctx = s};
    s->signal_fd = s->stop_fd = -1;
    s->received = (struct di_places){.limit = config->received, .kind = DI_PLACES_RECEIVED};
    s->held = (struct di_places){.limit = config->held, .kind = DI_PLACES_HELD};
    pthread_mutex_init(&s->preparers.lock, NULL);
    pthread_cond_init(&s->preparers.work, NULL);
    s->began_ns = s->step_ns = s->rate_ns = di_clock_ns();
    if (config->messages)
        TRY(di_log_sink_open_fd(fileno(config->messages), &s->messages, err));
    TRY(open_files(s, err));
    TRY(open_loop(s, err));
    TRY(di_preparers_start(s, err));
    s->has_thread = di_thread_create(&s->thread, run_loop, s) == 0;
    CHECK(s->has_thread, err, DI_ERR_LIMIT, "", "the system grants no thread");
out:
    if (status != DI_OK) {
        di_server_destroy(s);
        s = NULL;
    }
    *out = s;
    return status;
}

const char *di_server_address(const struct di_server *s)
{
    return s->address;
}

/* As much as a response may have waiting, and enough for whatever fits into the context. */
static size_t max_reply(const struct di_server *s)
{
    size_t context = REPLY_OF_TOKEN * (size_t)s->context;
    return s->config.limits.output > context ? s->config.limits.output : context;
}

di_status di_server_attach(struct di_server *s, const struct di_serve_model *model, di_error *err)
{
    di_model_info info = {0};
    di_status status = DI_OK;
    TRY(di_engine_info(model->engine, &info, sizeof info, err));
    s->engine = model->engine;
    s->max_batch = info.max_batch;
    s->context = info.context;
    pthread_mutex_lock(&s->preparers.lock);
    s->preparers.places.limit = (size_t)info.max_batch + (size_t)s->config.max_waiting;
    pthread_mutex_unlock(&s->preparers.lock);
    di_plan_write_json(&s->plan, model->plan ? model->plan : &(di_memory_plan){0});
    TRY(di_buf_ok(&s->plan, err));
    s->setup = (struct di_exchange_setup){.engine = model->engine,
                                          .names = model->names,
                                          .n_names = model->n_names,
                                          .reject_unknown_models = model->reject_unknown_models,
                                          .usage_on_finish = model->usage_on_finish,
                                          .reasoning_twin = model->reasoning_twin,
                                          .fixed_seeds = model->fixed_seeds,
                                          .max_reply = max_reply(s),
                                          .created = (int64_t)time(NULL)};
    if (model->store_bytes)
        TRY(di_response_store_create(model->store_bytes / 1024 + 1, model->store_bytes, &s->setup.store, err));
    atomic_store(&s->attached, true);
    di_notify(s->config.notify, "READY=1");
out:
    return status;
}

void di_server_wait(struct di_server *s)
{
    pthread_join(s->thread, NULL);
    s->has_thread = false;
    if (s->n_calls > 0)
        di_log(&s->log, DI_LOG_WARN, "%zu requests were not finished in time", s->n_calls);
    for (struct di_call *c = s->calls, *next; c; c = next) {
        next = c->next;
        di_call_cancel(c);
    }
    di_preparers_stop(s);
}

/* Ask it to drain, as SIGTERM does. */
static void stop(struct di_server *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->stop_fd, &one, sizeof one);
    (void)n;
}

static void close_event(struct event *e)
{
    if (e)
        event_free(e);
}

void di_server_destroy(struct di_server *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        stop(s);
        pthread_join(s->thread, NULL);
    }
    if (s->preparers.n_threads)
        di_preparers_stop(s);
    di_http_destroy(s->http);
    di_calls_destroy(s);
    close_event(s->on_signal);
    close_event(s->on_queue);
    close_event(s->on_stop);
    if (s->base)
        event_base_free(s->base);
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    if (s->stop_fd >= 0)
        close(s->stop_fd);
    if (s->owns_socket_file)
        unlink(s->config.unix_socket);
    di_engine_queue_destroy(s->queue);
    di_keys_destroy(s->keys);
    di_response_store_destroy(s->setup.store);
    if (s->access != s->messages)
        di_log_sink_close(s->access);
    di_log_sink_close(s->messages);
    di_buf_fini(&s->scratch);
    di_buf_fini(&s->extra);
    di_buf_fini(&s->plan);
    pthread_mutex_destroy(&s->preparers.lock);
    pthread_cond_destroy(&s->preparers.work);
    di_free(s);
}
