/* also run on the hostile device, seeds 11 14 */
/* A long life in short: very many short requests that are cancelled in every state, come too late, are stopped by their callbacks, preempt
 * each other, follow each other, share prefixes in a pool that is too small. All accounts return to zero, resident memory is flat.
 *
 * soak_test [N [M]]: N requests on the null model through the core, M on the nano model through the public interface. */
#include <setjmp.h>
#include <stdarg.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "testing/null_fixture.h"
#include "base/clock.h"

static int requests =
    6000; /* about 12 of them are cancelled while they are preempted, which is the rarest of the states that must be met */
#ifdef DI_TEST_QUICK
static int nano_requests = 24;
#else
static int nano_requests = 60;
#endif

static uint32_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* KiB resident now and at most so far; 0 where the system does not say. */
static void resident(long *now, long *peak)
{
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    *now = *peak = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            *now = atol(line + 6);
        else if (strncmp(line, "VmHWM:", 6) == 0)
            *peak = atol(line + 6);
    }
    if (f)
        fclose(f);
}

/* Shares of the way at which memory is looked at. */
static const int percent[] = {10, 50, 100};
struct memory {
    long now[3], peak[3];
};

static void memory_note(struct memory *m, int k, int64_t begun)
{
    resident(&m->now[k], &m->peak[k]);
    printf("%3d %%: %ld KiB resident, %ld at most, %.1f s\n", percent[k], m->now[k], m->peak[k], (double)(di_clock_ns() - begun) / 1e9);
}

/* Between half way and the end less than 1 MiB. The sanitizers keep what was freed. */
static void memory_is_flat(const struct memory *m)
{
#ifdef DI_TEST_QUICK
    bool kept = true;
#else
    bool kept = false;
#endif
    assert_true(kept || m->now[2] - m->now[1] < 1024);
    assert_true(kept || m->peak[2] - m->peak[1] < 1024);
}

/* ---------------------------------------------------------------- the core on the null model */

#define CONTEXT 256
#define LIVE 36 /* known to the engine at a time */
enum was { QUEUED, IN_PROMPT, DECODING, LAST_TOKEN, PREEMPTED, STATES };

struct life {
    struct fixture f;
    struct di_watch w[LIVE];
    int32_t room[LIVE][CONTEXT];
    bool used[LIVE];
    uint64_t rng;
    int64_t last_id;
    long cancelled_when[STATES], ends[DI_REASON_ERROR + 1], late, followers;
};

static void life_make(struct life *l, int i)
{
    struct di_watch *w = &l->w[i];
    uint64_t family = next(&l->rng) % 12;
    int shared = family < 8 ? (int)(next(&l->rng) % 150) : 0;
    *w = watch(l->room[i], 1 + (int)(next(&l->rng) % 150), 1 + (int)(next(&l->rng) % 24), next(&l->rng) | 1);
    fill(w->tokens, shared < w->n_prompt ? shared : w->n_prompt, (uint32_t)family + 1);
    w->stop_after = next(&l->rng) % 6 ? 0 : 1 + (int)(next(&l->rng) % 12);
    w->priority = (int)(next(&l->rng) % 3);
    w->tenant = next(&l->rng) % 3 ? 0 : next(&l->rng) % 90;
    w->ignore_end = next(&l->rng) % 3 == 0;
    w->frequency_penalty = next(&l->rng) % 5 ? 0 : 0.1;
    if (next(&l->rng) % 25 == 0)
        w->deadline_ns = di_clock_ns() + next(&l->rng) % 200000;
    if (next(&l->rng) % 8 == 0) {
        w->after = l->last_id - next(&l->rng) % 8;
        l->followers++;
    }
    if (w->n_prompt > 2 && next(&l->rng) % 8 == 0) {
        w->n_save_at = 1;
        w->save_at[0] = 1 + (int32_t)(next(&l->rng) % (uint32_t)w->n_prompt);
    }
}

static void life_cancel(struct life *l, int i)
{
    const struct di_watch *w = &l->w[i];
    if (!l->used[i] || w->over || !di_core_cancel(l->f.core, w->id))
        return;
    enum was state = w->starts == 0                      ? QUEUED
                     : w->starts > 1 && w->progress == 0 ? PREEMPTED
                     : w->n_got == 0                     ? IN_PROMPT
                     : w->n_got + 1 == w->max_tokens     ? LAST_TOKEN
                                                         : DECODING;
    l->cancelled_when[state]++;
}

/* Look at those that are over; their places are free then. */
static void life_collect(struct life *l)
{
    for (int i = 0; i < LIVE; i++)
        if (l->used[i] && l->w[i].over) {
            right(&l->w[i]);
            l->ends[l->w[i].end]++;
            l->used[i] = false;
        }
}

/* Requests until `until` of them were sent, then all of them to their end. */
static void life_until(struct life *l, int *sent, int until)
{
    bool busy = true;
    while (busy || *sent < until) {
        for (int i = 0; i < LIVE && *sent < until; i++)
            if (!l->used[i] && next(&l->rng) % 4) {
                life_make(l, i);
                send(&l->f, &l->w[i]);
                l->last_id = l->w[i].id;
                l->used[i] = true;
                ++*sent;
            }
        if (next(&l->rng) % 4 == 0)
            life_cancel(l, (int)(next(&l->rng) % LIVE));
        if (next(&l->rng) % 64 == 0)
            assert_int_equal(di_core_flush(l->f.core, NULL), DI_OK);
        busy = step(&l->f);
        life_collect(l);
    }
    assert_int_equal(di_core_flush(l->f.core, NULL), DI_OK);
    const char *left = di_null_left(l->f.core, &l->f.model);
    if (left)
        fail_msg("after %d requests: %s", *sent, left);
}

static void soak_core(void **state)
{
    static struct life l;
    struct di_core_config config = {.max_batch = 12, .prefill_chunk = 64, .cache_blocks = 36, .states = 12};
    struct memory memory;
    int sent = 0;
    int64_t begun = di_clock_ns();
    (void)state;
    l.rng = 24;
    fixture_open(&l.f, CONTEXT, &config);
    for (int k = 0; k < 3; k++) {
        life_until(&l, &sent, (int)((int64_t)requests * percent[k] / 100));
        memory_note(&memory, k, begun);
    }
    memory_is_flat(&memory);
    struct di_core_stats s = di_core_stats(l.f.core);
    printf("%d requests in %llu steps: %ld stopped, %ld full length, %ld cancelled, %ld late; %ld followed another\n", sent,
           (unsigned long long)s.steps, l.ends[DI_REASON_STOP], l.ends[DI_REASON_LENGTH], l.ends[DI_REASON_CANCELLED],
           l.ends[DI_REASON_DEADLINE], l.followers);
    printf("cancelled when queued %ld, in the prompt %ld, decoding %ld, at the last token %ld, preempted %ld\n", l.cancelled_when[QUEUED],
           l.cancelled_when[IN_PROMPT], l.cancelled_when[DECODING], l.cancelled_when[LAST_TOKEN], l.cancelled_when[PREEMPTED]);
    printf("%llu preemptions, %llu of %llu prompt tokens reused, %llu blocks evicted, %llu states restored\n",
           (unsigned long long)s.preempted, (unsigned long long)s.cached_tokens, (unsigned long long)s.lookup_tokens,
           (unsigned long long)s.evicted, (unsigned long long)s.states_restored);
    for (int i = 0; i < STATES; i++)
        assert_true(l.cancelled_when[i] > 0);
    assert_true(l.ends[DI_REASON_DEADLINE] > 0 && s.preempted > 0 && s.evicted > 0 && s.states_restored > 0);
    assert_int_equal(l.ends[DI_REASON_ERROR], 0);
    fixture_close(&l.f);
}

/* Short lives of every shape: places, chunks, blocks, snapshots, guesses, windows up to what the rings hold. */
static void lives_of_every_shape(void **state)
{
    static const int windows[] = {1, 2, 20, 90, 128};
    static struct life l;
    uint64_t shape = 7;
    (void)state;
    for (int i = 0; i < (requests < 12000 ? requests / 60 : 200); i++) {
        struct di_core_config config = {.max_batch = 1 + (int)(next(&shape) % 16),
                                        .prefill_chunk = 1 + (int)(next(&shape) % 120),
                                        .cache_blocks = 4 + (int)(next(&shape) % 50),
                                        .states = (int)(next(&shape) % 12),
                                        .drafts = i % (DI_MAX_DRAFTS + 1)};
        int sent = 0;
        memset(&l, 0, sizeof l);
        l.rng = next(&shape);
        assert_int_equal(di_null_model_init(&l.f.model, FIXTURE_VOCAB, windows[i % 5], CONTEXT, NULL), DI_OK);
        assert_int_equal(di_null_core(&l.f.model, &config, &l.f.core, NULL), DI_OK);
        life_until(&l, &sent, 150);
        fixture_close(&l.f);
    }
}

/* ---------------------------------------------------------------- the public interface on the nano model */

#define CLIENTS 3
struct client {
    di_engine *engine;
    uint64_t rng;
    int requests, sent, ended, refused, wants;
    long records;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Some want no more after a few records, some cancel from the inside. */
static int client_hears(void *user, const di_output *o)
{
    struct client *c = user;
    pthread_mutex_lock(&c->lock);
    c->records++;
    if (o->kind == DI_OUTPUT_FINISHED) {
        c->ended++;
        pthread_cond_signal(&c->changed);
    }
    bool enough = c->records % c->wants == 0;
    pthread_mutex_unlock(&c->lock);
    if (enough && o->index % 2)
        di_engine_cancel(c->engine, o->request);
    return !enough;
}

static void client_sends(struct client *c, di_request_id *last)
{
    static const char *const texts[] = {"The capital of France", "Once upon a time there was a",
                                        "The capital of France is Paris. The capital of", "1, 2, 3, 4,"};
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 2 + 3?\"}], \"max_tokens\": 5}";
    di_sampling_options o;
    di_submission s;
    di_submission_init(&s, sizeof s);
    di_sampling_options_init(&o, sizeof o);
    o.max_tokens = 1 + next(&c->rng) % 6;
    o.seed = next(&c->rng) % 4;
    if (next(&c->rng) % 4 == 0) {
        s.json = json;
        s.json_bytes = sizeof json - 1;
    } else {
        s.text = texts[next(&c->rng) % 4];
        s.text_bytes = strlen(s.text);
        s.sampling = &o;
    }
    s.priority = (int32_t)(next(&c->rng) % 3);
    s.tenant = next(&c->rng) % 4;
    s.deadline_ms = next(&c->rng) % 10 ? 0 : 1 + next(&c->rng) % 20;
    s.on_output = next(&c->rng) % 4 ? client_hears : NULL; /* else the main thread polls it */
    s.user = c;
    if (di_engine_submit(c->engine, &s, last, NULL) != DI_OK)
        c->refused++;
    c->sent++;
}

static void *client(void *arg)
{
    struct client *c = arg;
    di_request_id last = 0;
    while (c->sent < c->requests) {
        client_sends(c, &last);
        if (next(&c->rng) % 3 == 0)
            di_engine_cancel(c->engine, last - next(&c->rng) % 4);
        pthread_mutex_lock(&c->lock);
        while (c->sent - c->ended > 6) /* those that are polled count when they are read */
            pthread_cond_wait(&c->changed, &c->lock);
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

static void read_one(const di_output *o)
{
    struct client *c = o->user;
    pthread_mutex_lock(&c->lock);
    if (o->kind == DI_OUTPUT_FINISHED) {
        c->ended++;
        pthread_cond_signal(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The main thread polls until all have ended. */
static void clients_until(di_engine *e, struct client *c, int each)
{
    pthread_t threads[CLIENTS];
    bool left = true;
    for (int i = 0; i < CLIENTS; i++) {
        c[i].requests = each;
        assert_int_equal(pthread_create(&threads[i], NULL, client, &c[i]), 0);
    }
    for (time_t begun = time(NULL); left && time(NULL) - begun < 3600;) {
        const di_output *o = di_engine_poll(e, 20);
        if (o)
            read_one(o);
        di_output_free(e, o);
        left = false;
        for (int i = 0; i < CLIENTS; i++) {
            pthread_mutex_lock(&c[i].lock);
            left = left || c[i].ended < each;
            pthread_mutex_unlock(&c[i].lock);
        }
    }
    assert_false(left);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
}

static void accounts_are_zero(di_engine *e)
{
    di_engine_stats s;
    di_engine_stop(e);
    assert_int_equal(di_engine_flush(e, NULL), DI_OK);
    assert_int_equal(di_engine_get_stats(e, &s, sizeof s, NULL), DI_OK);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.unread, 0);
    assert_int_equal(s.free_blocks, s.blocks);
    assert_int_equal(s.finished + s.cancelled + s.failed <= s.submitted, 1);
    assert_int_equal(s.failed, 0);
}

static void soak_nano(void **state)
{
    di_engine_config config;
    struct client c[CLIENTS] = {{0}};
    struct memory memory;
    di_engine *e;
    int64_t begun = di_clock_ns();
    (void)state;
    di_engine_config_init(&config, sizeof config);
    config.model = DI_SOURCE_DIR "/models/nano";
    config.context = 256;
    config.max_batch = 4;
    config.prefill_chunk = 16;
    config.cache_blocks = 8;
    config.state_slots = 4;
    config.threads = 1;
    assert_int_equal(di_engine_open(&config, &e, NULL), DI_OK);
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (struct client){.engine = e, .rng = (uint64_t)i + 5, .wants = 5 + i};
        pthread_mutex_init(&c[i].lock, NULL);
        pthread_cond_init(&c[i].changed, NULL);
    }
    for (int k = 0; k < 3; k++) {
        assert_int_equal(di_engine_start(e, NULL), DI_OK);
        clients_until(e, c, nano_requests / CLIENTS * percent[k] / 100);
        accounts_are_zero(e);
        memory_note(&memory, k, begun);
    }
    if (nano_requests > 500) /* until then buffers find their size */
        memory_is_flat(&memory);
    di_engine_stats s;
    assert_int_equal(di_engine_get_stats(e, &s, sizeof s, NULL), DI_OK);
    printf("nano: %llu requests, %llu finished, %llu cancelled or late, %llu preemptions, %llu of %llu prompt tokens reused\n",
           (unsigned long long)s.submitted, (unsigned long long)s.finished, (unsigned long long)s.cancelled,
           (unsigned long long)s.preempted, (unsigned long long)s.cached_tokens, (unsigned long long)s.lookup_tokens);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(c[i].refused, 0);
        pthread_mutex_destroy(&c[i].lock);
        pthread_cond_destroy(&c[i].changed);
    }
    di_engine_close(e);
}

int main(int argc, char **argv)
{
    requests = argc > 1 ? atoi(argv[1]) : requests;
    nano_requests = argc > 2 ? atoi(argv[2]) : nano_requests;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soak_core),
        cmocka_unit_test(lives_of_every_shape),
        cmocka_unit_test(soak_nano),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
