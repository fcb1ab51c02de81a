/* The hostile device itself: that it is one, and that it finds the mistakes that a host can make with a real one. Other tests run on it as
 * `tests/run` says. */
#define DI_ON_DEVICE
#include "testing/device.h"
#include "testing/golden.h"
#include "testing/null_model.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct di_backend *open_device(uint64_t seed)
{
    struct di_backend *be;
    assert_int_equal(di_hostile_create(NULL, 8, &(struct di_hostile_params){.seed = seed}, &be, NULL), DI_OK);
    return be;
}

static void copy(struct di_backend *be, void *to, const void *from, size_t bytes)
{
    be->ops->copy(be, &(struct di_op_copy){1, &(struct di_copy_span){to, from, bytes}});
}

/* Runs `child` in a process of its own: its exit status, or 128 and the signal that ended it. */
static int status_of(int (*child)(const void *what), const void *what)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* no report of a sanitizer */
        signal(SIGBUS, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        alarm(600); /* for what hangs, not for what a busy machine makes slow */
        if (!freopen("/dev/null", "w", stderr))
            _exit(99);
        _exit(child(what));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---------------------------------------------------------------- what it is */

static int read_byte(const void *p)
{
    return *(const volatile uint8_t *)p == 3;
}

static void addresses_are_nobodys(void **state)
{
    (void)state;
    struct di_backend *be = open_device(2);
    uint8_t *device = di_device_alloc(be, 100);
    assert_int_equal(status_of(read_byte, device), 128 + SIGSEGV);
    assert_true(status_of(read_byte, di_hostile_view(device)) <= 1);
    di_device_free(be, device);
    be->ops->destroy(be);
}

/* A copy runs when it is waited for, between the copies around it; before, what it will write holds no sense. */
static void copies_run_late_and_in_order(void **state)
{
    (void)state;
    struct di_backend *be = open_device(16); /* never before it is waited for */
    uint8_t *a = di_device_alloc(be, 64), *b = di_device_alloc(be, 64), *up = di_staging_alloc(be, 64), *down = di_staging_alloc(be, 64);
    memset(up, 1, 64);
    copy(be, a, up, 64);
    copy(be, b, a, 64);
    memset(down, 2, 64);
    copy(be, down, b, 64);
    uint64_t fence = be->ops->fence(be);
    copy(be, a, down, 32); /* behind the fence */
    assert_int_equal(down[0], 0xC0);
    memset(up, 3, 64); /* too early: what goes up is what is there when the copy runs */
    assert_int_equal(be->ops->wait(be, fence, NULL), DI_OK);
    assert_int_equal(down[0], 3);
    copy(be, down, a, 64);
    assert_int_equal(di_backend_finish(be, NULL), DI_OK);
    assert_int_equal(down[63], 3);
    di_device_free(be, a);
    di_device_free(be, b);
    di_staging_free(be, up);
    di_staging_free(be, down);
    be->ops->destroy(be);
}

static void what_was_not_written_makes_no_sense(void **state)
{
    (void)state;
    for (uint64_t seed = 2; seed <= 4; seed += 2) { /* both patterns */
        struct di_backend *be = open_device(seed);
        uint8_t *a = di_device_alloc(be, 64), *s = di_staging_alloc(be, 64), *seen = di_hostile_view(a), even = seed == 2 ? 0xA5 : 0xC0;
        uint8_t odd = seed == 2 ? 0xA5 : 0x7F;
        for (int i = 0; i < 64; i++)
            assert_true(seen[i] == (i % 2 ? odd : even) && s[i] == seen[i]);
        memset(s, 1, 64);
        copy(be, a, s, 64);
        assert_int_equal(di_backend_finish(be, NULL), DI_OK);
        assert_int_equal(seen[9], 1);
        di_device_free(be, a);
        assert_int_equal(seen[9], odd);
        assert_int_equal(seen[-1], odd);
        assert_int_equal(seen[64], even);
        di_staging_free(be, s);
        be->ops->destroy(be);
    }
}

static void use_host_memory(struct di_backend *be, uint8_t *device, uint8_t *other)
{
    static uint8_t mine[64];
    (void)other;
    copy(be, device, mine, 64);
}
static void use_freed_memory(struct di_backend *be, uint8_t *device, uint8_t *other)
{
    di_device_free(be, other);
    copy(be, device, other, 64);
}
static void use_too_much(struct di_backend *be, uint8_t *device, uint8_t *other)
{
    copy(be, device, other, 65);
}
static void use_host_logits(struct di_backend *be, uint8_t *device, uint8_t *other)
{
    static const float logits[8];
    static struct di_sampling_params params;
    struct di_sample_result *result = di_staging_alloc(be, sizeof *result);
    struct di_sample_task task = {.row = {.logits = logits, .params = &params}, .forced = -1};
    (void)device, (void)other;
    be->ops->sample(be, &(struct di_op_sample){.m = 1, .tasks = &task, .results = result});
    di_staging_free(be, result);
}

/* And every wait from then on tells it. */
static void wrong_addresses_are_faults(void **state)
{
    (void)state;
    static void (*const use[])(struct di_backend * be, uint8_t * device, uint8_t * other) = {use_host_memory, use_freed_memory,
                                                                                             use_too_much, use_host_logits};
    for (size_t i = 0; i < sizeof use / sizeof *use; i++) {
        di_error err = {0};
        struct di_backend *be = open_device(2 + i);
        uint8_t *a = di_device_alloc(be, 64), *b = di_device_alloc(be, 64);
        use[i](be, a, b);
        assert_int_equal(di_backend_finish(be, &err), DI_ERR_INTERNAL);
        assert_int_equal(di_backend_finish(be, NULL), DI_ERR_INTERNAL);
        di_device_free(be, a);
        if (use[i] != use_freed_memory)
            di_device_free(be, b);
        be->ops->destroy(be);
    }
}

/* ---------------------------------------------------------------- what it finds */

#define CONTEXT 320
#define REQUESTS 12

/* A life of an engine: prompts that begin alike, go on from the ends of others, and are more than there is place for. 0, or what is wrong. */
static int live(const void *device)
{
    static int32_t room[REQUESTS][CONTEXT];
    struct di_null_model model;
    struct di_core *core;
    struct di_watch w[REQUESTS];
    struct di_core_config config = {.max_batch = 3, .prefill_chunk = 48, .cache_blocks = 14, .states = 4};
    di_test_set_device(device);
    if (di_null_model_init(&model, 60, 20, CONTEXT, NULL) != DI_OK || di_null_core(&model, &config, &core, NULL) != DI_OK)
        return 98;
    bool busy = true;
    for (int i = 0; i < REQUESTS; i++) {
        w[i] = (struct di_watch){.tokens = room[i], .n_prompt = 70 + 13 * i, .max_tokens = 5 + i, .ignore_end = true};
        for (int k = 0; k < w[i].n_prompt; k++)
            room[i][k] = 8 + (k * 7 + (k > 60 + 20 * (i % 3) ? i : 0)) % 50;
        if (di_watch_submit(&w[i], core, NULL) != DI_OK)
            return 97;
        for (int steps = i % 4 == 3 || i + 1 == REQUESTS ? 1000 : 3; steps > 0 && (busy || steps == 3); steps--)
            if (di_core_step(core, &busy, NULL) != DI_OK)
                return 96;
    }
    if (busy || di_core_flush(core, NULL) != DI_OK)
        return 95;
    int wrong = di_null_left(core, &model) != NULL;
    for (int i = 0; i < REQUESTS; i++)
        wrong += di_watch_wrong(&w[i]) != NULL;
    wrong += di_core_stats(core).cached_tokens == 0;
    di_core_destroy(core);
    di_null_model_fini(&model);
    return wrong;
}

/* The network, which a test looks at as it should, or as a host that thinks everything is its own. */
static void look(void *ctx, const struct di_trace_point *p)
{
    float *sum = ctx;
    if (strcmp(p->name, "streams") == 0)
        *sum += *(const float *)p->data;
}
static void look_right(void *ctx, const struct di_trace_point *p)
{
    struct di_trace_point here = *p;
    here.data = di_hostile_view(p->data);
    look(ctx, &here);
}

static int pass(const void *at)
{
    static float logits[4096 * 64];
    float sum = 0;
    struct di_golden g;
    struct di_model *m;
    struct di_kv_store *s;
    const char *dir = DI_SOURCE_DIR "/tests/data/vectors/tiny_d";
    di_test_set_device(&(struct di_hostile_params){.seed = 17});
    if (di_golden_open(dir, dir, &g, NULL) != DI_OK)
        return 99;
    struct di_golden_run run = {.mode = "bf16", .threads = 1, .chunk = 40, .decode_from = 40, .trace = {.ctx = &sum}};
    memcpy(&run.trace.at, at, sizeof run.trace.at);
    g.n_ids = 60;
    if (di_golden_run(&g, &run, logits, &m, &s, NULL) != DI_OK)
        return 98;
    di_kv_store_destroy(s);
    di_model_close(m);
    di_golden_close(&g);
    return !(fabsf(sum) > 0); /* not a number: it saw what was not written */
}

static void who_looks_dies(void **state)
{
    (void)state;
    void (*at)(void *ctx, const struct di_trace_point *p) = look_right;
    assert_int_equal(status_of(pass, &at), 0);
    at = look;
    assert_int_equal(status_of(pass, &at), 128 + SIGSEGV);
}

static void lives_are_right(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        int status = status_of(live, &(struct di_hostile_params){.seed = seed});
        if (status)
            fail_msg("seed %d: %d", (int)seed, status);
    }
}

/* By seeds that let nothing run before it is waited for. The second launch ends the first prompt: its token is read behind that wait. The
 * first copy is the page table of the first launch. */
static void mistakes_are_found(void **state)
{
    (void)state;
    static const struct di_hostile_params mistakes[] = {{.mistake = DI_HOSTILE_NO_WAIT, .at = 2},
                                                        {.mistake = DI_HOSTILE_LATE_COPY, .at = 1}};
    for (uint64_t seed = 16; seed < 20; seed++)
        for (size_t i = 0; i < 2; i++) {
            struct di_hostile_params p = mistakes[i];
            p.seed = seed;
            if (!status_of(live, &p))
                fail_msg("seed %d: nobody found mistake %zu", (int)seed, i);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_nobodys),
        cmocka_unit_test(copies_run_late_and_in_order),
        cmocka_unit_test(what_was_not_written_makes_no_sense),
        cmocka_unit_test(wrong_addresses_are_faults),
        cmocka_unit_test(who_looks_dies),
        cmocka_unit_test(lives_are_right),
        cmocka_unit_test(mistakes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
