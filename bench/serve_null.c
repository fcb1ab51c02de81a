/* The server of `deepinfer serve` in front of an engine that computes nothing: it makes a token for every request by the clock. What is
 * left is the cost of HTTP. usage: serve_null PORT [RATE [GROUPS]]
 *
 * RATE tokens a second for each request (50). GROUPS: requests get their tokens in so many turns within one period; 1 is one burst for all,
 * as a single step of a large batch gives (1). The text of a token is "t=NANOSECONDS;", the monotonic time at which it was handed out.
 *
 * It stands in for the functions of deepinfer.h that the server calls; see CMakeLists.txt, target serve_null. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "server/server.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define MAX_LIVE 20000

struct live {
    di_request_id id;
    int (*on_output)(void *user, const di_output *output);
    void *user;
    int64_t left, made;
    bool cancelled;
};

struct di_engine {
    pthread_mutex_t lock; /* live, n, last, stats */
    struct live *live;
    size_t n;
    di_request_id last;
    di_engine_stats stats;
    double rate;
    int groups;
};

/* ---------------------------------------------------------------- what the server calls */

void di_submission_init(di_submission *s, size_t size)
{
    memset(s, 0, size);
    s->size = size;
}

void di_request_defaults_init(di_request_defaults *d, size_t size)
{
    memset(d, 0, size);
    d->size = size;
}

void di_request_overrides_init(di_request_overrides *o, size_t size)
{
    memset(o, 0, size);
    o->size = size;
}

const char *di_end_reason_name(di_end_reason reason)
{
    static const char *const names[] = {"", "stop", "length", "tool_calls", "abort", "deadline", "error"};
    return names[reason];
}

di_status di_engine_info(const di_engine *e, di_model_info *out, size_t size, di_error *err)
{
    (void)e, (void)err;
    memset(out, 0, size);
    out->name = "null";
    out->context = 65536;
    out->max_batch = 1024;
    return DI_OK;
}

/* "max_tokens": N of a request, or 100. */
static int64_t asked_tokens(struct di_str json)
{
    size_t at = di_str_find(json, DI_STR("\"max_tokens\":"), 0);
    return at == SIZE_MAX ? 100 : atoll(json.p + at + 13);
}

struct di_prepared {
    int64_t tokens;
};

di_status di_engine_prepare(di_engine *e, const di_submission *s, di_prepared **out, di_error *err)
{
    (void)e;
    *out = di_malloc(sizeof **out);
    if (!*out)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory");
    (*out)->tokens = s->json ? asked_tokens((struct di_str){s->json, s->json_bytes}) : s->prepared->tokens;
    return DI_OK;
}

const int32_t *di_prepared_prompt(const di_prepared *p, size_t *n)
{
    (void)p;
    *n = 0;
    return NULL;
}

size_t di_prepared_bytes(const di_prepared *p)
{
    return p ? sizeof *p : 0;
}

void di_prepared_free(di_prepared *p)
{
    di_free(p);
}

di_status di_engine_submit(di_engine *e, const di_submission *s, di_request_id *id, di_error *err)
{
    di_status status = DI_OK;
    pthread_mutex_lock(&e->lock);
    if (e->n == MAX_LIVE) {
        status = di_fail(err, DI_ERR_LIMIT, "", "too many");
    } else {
        *id = ++e->last;
        e->live[e->n++] = (struct live){*id, s->on_output, s->user, s->prepared->tokens, 0, false};
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

int di_engine_cancel(di_engine *e, di_request_id id)
{
    int found = 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < e->n; i++)
        if (e->live[i].id == id) {
            e->live[i].cancelled = true;
            found = 1;
        }
    pthread_mutex_unlock(&e->lock);
    return found;
}

di_status di_engine_get_stats(di_engine *e, di_engine_stats *out, size_t size, di_error *err)
{
    (void)err;
    pthread_mutex_lock(&e->lock);
    e->stats.running = (int32_t)e->n;
    memcpy(out, &e->stats, size < sizeof e->stats ? size : sizeof e->stats);
    pthread_mutex_unlock(&e->lock);
    return DI_OK;
}

di_status di_engine_get_histogram(di_engine *e, di_histogram_id which, di_histogram *out, size_t size, di_error *err)
{
    (void)e, (void)which, (void)out, (void)size;
    return di_fail(err, DI_ERR_NOT_FOUND, "", "none");
}

di_status di_engine_encode(const di_engine *e, const char *text, size_t bytes, int control, int32_t *ids, size_t capacity, size_t *n,
                           di_error *err)
{
    (void)e, (void)text, (void)bytes, (void)control, (void)ids, (void)capacity, (void)n;
    return di_fail(err, DI_ERR_UNSUPPORTED, "", "no tokenizer");
}

di_status di_engine_decode(const di_engine *e, const int32_t *ids, size_t n_ids, char *text, size_t capacity, size_t *n, di_error *err)
{
    (void)e, (void)ids, (void)n_ids, (void)text, (void)capacity, (void)n;
    return di_fail(err, DI_ERR_UNSUPPORTED, "", "no tokenizer");
}

di_status di_engine_token_bytes(const di_engine *e, int32_t id, char *bytes, size_t capacity, size_t *n, di_error *err)
{
    (void)e, (void)id, (void)bytes, (void)capacity, (void)n;
    return di_fail(err, DI_ERR_UNSUPPORTED, "", "no tokenizer");
}

di_status di_engine_prompt(const di_engine *e, const di_submission *s, int32_t *ids, size_t capacity, size_t *n, di_error *err)
{
    (void)e, (void)s, (void)ids, (void)capacity, (void)n;
    return di_fail(err, DI_ERR_UNSUPPORTED, "", "no tokenizer");
}

/* ---------------------------------------------------------------- tokens by the clock */

/* A token and its text, or the end. False: the request is over. */
static bool give(struct live *l)
{
    char text[40];
    di_output o = {.request = l->id, .user = l->user, .kind = DI_OUTPUT_TOKEN, .index = l->made, .text = "", .stop_index = -1};
    if (l->left == 0 || l->cancelled) {
        o.kind = DI_OUTPUT_FINISHED;
        o.reason = l->cancelled ? DI_REASON_CANCELLED : DI_REASON_LENGTH;
        o.prompt_tokens = 10;
        o.completion_tokens = l->made;
        l->on_output(l->user, &o);
        return false;
    }
    l->left--;
    l->made++;
    if (!l->on_output(l->user, &o))
        l->cancelled = true;
    o.kind = DI_OUTPUT_TEXT;
    o.text = text;
    o.text_bytes = (size_t)snprintf(text, sizeof text, "t=%lld;", (long long)di_clock_ns());
    if (!l->on_output(l->user, &o))
        l->cancelled = true;
    return true;
}

static void turn(struct di_engine *e, int group)
{
    pthread_mutex_lock(&e->lock); /* a real engine holds no lock here; its callbacks do not wait for this one */
    for (size_t i = 0; i < e->n;) {
        if (e->live[i].id % e->groups != group || give(&e->live[i])) {
            i++;
            continue;
        }
        e->live[i] = e->live[--e->n];
        e->stats.finished++;
    }
    e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
}

static void *tick(void *arg)
{
    struct di_engine *e = arg;
    int64_t period = (int64_t)(1e9 / e->rate / e->groups), next = di_clock_ns();
    for (int group = 0;; group = (group + 1) % e->groups) {
        struct timespec t = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        turn(e, group);
        next += period;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static struct di_engine e = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static const char *const name = "null";
    struct rlimit files;
    struct di_server *server;
    di_error err;
    pthread_t thread;
    e.rate = argc > 2 ? atof(argv[2]) : 50;
    e.groups = argc > 3 ? atoi(argv[3]) : 1;
    e.live = di_calloc(MAX_LIVE, sizeof *e.live);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    struct di_server_config c = {
        .host = "127.0.0.1", .port = argc > 1 ? atoi(argv[1]) : 0, .messages = stderr, .max_waiting = MAX_LIVE, .drain_ms = 1000};
    c.comment_ms = 3000;
    c.held = (size_t)1 << 30;
    c.limits = (struct di_http_limits){32 << 10, 32 << 20, 256 << 20, 1 << 20, 20000, 10000, 20000, 600000, 30000};
    struct di_serve_model m = {.engine = &e, .names = &name, .n_names = 1, .fixed_seeds = true};
    if (di_server_create(&c, &server, &err) != DI_OK || di_server_attach(server, &m, &err) != DI_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        return 1;
    }
    pthread_create(&thread, NULL, tick, &e);
    printf("listening on %s\n", di_server_address(server));
    fflush(stdout);
    di_server_wait(server);
    return 0; /* the clock still runs: the system takes the rest */
}
