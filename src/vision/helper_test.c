/* Helper processes: whatever becomes of one, its picture gets an answer and the next picture is not concerned. This program is its own
 * helper; under other names it is one that misbehaves. */
#define _GNU_SOURCE /* readlink, mkdtemp, kill */
#include "vision/helper.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/threads.h"
#include "vision/helper_protocol.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DIR DI_SOURCE_DIR "/tests/data/images/"
#define CANVAS_BYTES (644 * 490 * 3)

static char self[512];
static struct di_buf picture; /* rgb.jpg */
static uint8_t expected[CANVAS_BYTES];
static struct di_render_order order = {.canvas_width = 644, .canvas_height = 490};

/* ---- helpers that misbehave ---- */

static void greet_as(bool confined)
{
    struct di_helper_greeting g = {.confined = confined};
    struct di_buf b = {0};
    di_recipe_add_name(&b, &(struct di_picture_rules){0});
    snprintf(g.recipe, sizeof g.recipe, "%s", b.p);
    di_buf_fini(&b);
    send(DI_HELPER_FD, &g, sizeof g, MSG_NOSIGNAL);
}

static void greet(void)
{
    greet_as(true);
}

static bool take_order(void)
{
    struct di_helper_order o;
    return recv(DI_HELPER_FD, &o, sizeof o, 0) > 0;
}

static int play_other_version(void)
{
    struct di_helper_greeting g = {.recipe = "of last year"};
    return send(DI_HELPER_FD, &g, sizeof g, MSG_NOSIGNAL) < 0;
}

static int play_crash(void)
{
    greet();
    while (take_order())
        raise(SIGSEGV);
    return 0;
}

static int play_stop(void)
{
    greet();
    while (take_order())
        raise(SIGSTOP);
    return 0;
}

static int play_loop(void)
{
    greet();
    for (volatile uint64_t n = 0; take_order();)
        for (;;)
            n = n + 1;
    return 0;
}

static int play_leave(void)
{
    greet();
    take_order();
    return 3;
}

static int play_open_door(void)
{
    greet_as(false);
    take_order();
    return 3;
}

/* Replies that no honest helper gives: of the wrong length, with a status that does not exist, with a sentence that does not end. */
static int play_liar(void)
{
    struct di_helper_reply r;
    greet();
    for (int n = 0; take_order(); n++) {
        memset(&r, 'x', sizeof r);
        r.status = (di_status)999;
        send(DI_HELPER_FD, &r, n == 1 ? sizeof r - 1 : sizeof r, MSG_NOSIGNAL);
    }
    return 0;
}

static int play_silent(void)
{
    return 0;
}

static const struct {
    const char *name;
    int (*play)(void);
    di_status status;
    const char *words;
} parts[] = {
    {"other_version", play_other_version, DI_ERR_IO, "of last year"},
    {"crash", play_crash, DI_ERR_INVALID, "signal 11"},
    {"stop", play_stop, DI_ERR_LIMIT, "more than 700 ms"},
    {"loop", play_loop, DI_ERR_LIMIT, "more than 1 s of processor time"},
    {"leave", play_leave, DI_ERR_INVALID, "status 3"},
    {"open_door", play_open_door, DI_ERR_INVALID, "status 3"},
    {"liar", play_liar, DI_ERR_INVALID, "xxx"},
    {"silent", play_silent, DI_ERR_IO, "does not start"},
};
#define N_PARTS (sizeof parts / sizeof *parts)

/* ---- what a pool makes of them ---- */

static struct di_helpers *open_pool(const char *program, int helpers, int64_t wall_ms)
{
    struct di_helper_params p = di_helper_params_default;
    struct di_helpers *pool;
    p.program = program;
    p.helpers = helpers;
    p.cpu_seconds = 1;
    p.wall_ms = wall_ms;
    assert_int_equal(di_helpers_open(&p, &pool, NULL), DI_OK);
    return pool;
}

static di_status render(struct di_helpers *pool, uint8_t *canvas, di_error *err)
{
    memset(canvas, 0, CANVAS_BYTES);
    return di_helpers_render(pool, di_buf_str(&picture), &order, canvas, NULL, err);
}

static void test_honest(void **state)
{
    (void)state;
    static uint8_t canvas[CANVAS_BYTES];
    struct di_helpers *pool = open_pool(self, 1, 30000);
    struct di_helper_counts counts;
    di_error err = {0};
    for (int i = 0; i < 20; i++) {
        if (render(pool, canvas, &err) != DI_OK)
            fail_msg("%s", err.message);
        assert_memory_equal(canvas, expected, CANVAS_BYTES);
    }
    struct di_str cut = {picture.p, picture.n - 1};
    assert_int_equal(di_helpers_render(pool, cut, &order, canvas, NULL, &err), DI_ERR_INVALID);
    assert_non_null(strstr(err.message, "cut short"));
    assert_int_equal(render(pool, canvas, NULL), DI_OK);
    di_helpers_counts(pool, &counts);
    assert_int_equal(counts.started, 1);
    assert_int_equal(counts.pictures, 22);
    assert_int_equal(counts.lost, 0);
    assert_int_equal(counts.running, 1);
    di_helpers_close(pool);
}

#ifndef DI_CHECKED
/* The value behind a name in a file of /proc about a process. */
static void read_fact(int64_t pid, const char *file, const char *name, char *value, size_t n)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%lld/%s", (long long)pid, file);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    value[0] = 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            snprintf(value, n, "%s", line + strlen(name) + strspn(line + strlen(name), " \t"));
    fclose(f);
}

/* A helper that greeted is shut in: the filter is in force where the system has one, memory is bounded, it starts nothing and leaves no
 * core. */
static void test_shut_in(void **state)
{
    static const char *const none[] = {"Max processes", "Max core file size", "Max file size"};
    static uint8_t canvas[CANVAS_BYTES];
    struct di_helpers *pool = open_pool(self, 1, 30000);
    int64_t pid = 0;
    char value[256];
    (void)state;
    assert_int_equal(render(pool, canvas, NULL), DI_OK);
    assert_int_equal(di_helpers_pids(pool, &pid, 1), 1);
    read_fact(pid, "status", "Seccomp:", value, sizeof value);
    assert_string_equal(value, access("/proc/sys/kernel/seccomp/actions_avail", F_OK) == 0 ? "2\n" : "0\n");
    read_fact(pid, "limits", "Max address space", value, sizeof value);
    assert_true(strtoull(value, NULL, 10) > 0); /* not "unlimited" */
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        read_fact(pid, "limits", none[i], value, sizeof value);
        assert_true(strncmp(value, "0 ", 2) == 0);
    }
    di_helpers_close(pool);
}
#endif

static void count_warning(void *ctx, enum di_log_level level, const char *text)
{
    *(int *)ctx += level == DI_LOG_WARN && strstr(text, "not shut in") != NULL;
}

/* Of one that is not, the log says so once. */
static void test_not_shut_in(void **state)
{
    struct di_helper_params p = di_helper_params_default;
    static uint8_t canvas[CANVAS_BYTES];
    char dir[] = "/tmp/deepinfer-helper-XXXXXX", path[128];
    int warnings = 0;
    struct di_log log = {.level = DI_LOG_INFO, .fn = count_warning, .ctx = &warnings};
    struct di_helpers *pool;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/open_door", dir);
    assert_int_equal(symlink(self, path), 0);
    p.program = path;
    p.log = &log;
    assert_int_equal(di_helpers_open(&p, &pool, NULL), DI_OK);
    for (int i = 0; i < 3; i++) /* it leaves each time */
        assert_int_equal(render(pool, canvas, NULL), DI_ERR_INVALID);
    assert_int_equal(warnings, 1);
    di_helpers_close(pool);
    unlink(path);
    rmdir(dir);
}

static void test_misbehaviour(void **state)
{
    (void)state;
    static uint8_t canvas[CANVAS_BYTES];
    char dir[] = "/tmp/deepinfer-helper-XXXXXX", path[128];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < N_PARTS; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, parts[i].name);
        assert_int_equal(symlink(self, path), 0);
        struct di_helpers *pool = open_pool(path, 1, strcmp(parts[i].name, "stop") == 0 ? 700 : 30000);
        for (int n = 0; n < 3; n++) { /* each is replaced */
            di_error err = {0};
            di_status status = render(pool, canvas, &err);
            bool short_reply = strcmp(parts[i].name, "liar") == 0 && n == 1;
            if (status != parts[i].status || (!strstr(err.message, parts[i].words) && !short_reply))
                fail_msg("%s: %d, \"%s\"", parts[i].name, status, err.message);
        }
        di_helpers_close(pool);
        unlink(path);
    }
    rmdir(dir);
}

static void test_no_program(void **state)
{
    (void)state;
    static uint8_t canvas[CANVAS_BYTES];
    di_error err = {0};
    struct di_helpers *pool = open_pool("/nowhere/deepinfer", 1, 1000);
    assert_int_equal(render(pool, canvas, &err), DI_ERR_IO);
    assert_non_null(strstr(err.message, "cannot be started"));
    di_helpers_close(pool);
    pool = open_pool(NULL, 1, 1000); /* in this process */
    assert_int_equal(render(pool, canvas, NULL), DI_OK);
    assert_memory_equal(canvas, expected, CANVAS_BYTES);
    di_helpers_close(pool);
    di_helpers_close(NULL);
}

/* ---- signals at any moment ---- */

struct storm {
    struct di_helpers *pool;
    int64_t good, bad, late;
    int done;
};

static void *render_often(void *arg)
{
    struct storm *s = arg;
    uint8_t *canvas = di_malloc(CANVAS_BYTES);
#ifdef DI_TEST_QUICK
    int rounds = 60;
#else
    int rounds = 300;
#endif
    for (int i = 0; i < rounds; i++) {
        di_error err = {0};
        di_status status = render(s->pool, canvas, &err);
        bool right = status == DI_OK ? memcmp(canvas, expected, CANVAS_BYTES) == 0 : err.message[0] != 0;
        __atomic_add_fetch(status == DI_OK ? &s->good : &s->bad, right ? 1 : 1000000, __ATOMIC_RELAXED);
        __atomic_add_fetch(&s->late, status == DI_ERR_LIMIT, __ATOMIC_RELAXED); /* stopped; on a busy machine also others */
    }
    di_free(canvas);
    __atomic_add_fetch(&s->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Three threads, two helpers that are killed, made to crash and stopped all the time: every picture is right or has a sentence, no more are
 * lost than signals were sent, and afterwards all is well. */
static void test_signals(void **state)
{
    (void)state;
    static const int signals[] = {SIGKILL, SIGSEGV, SIGSTOP, SIGTERM};
    struct storm storm = {.pool = open_pool(self, 2, 1000)};
    struct di_helper_counts counts;
    pthread_t threads[3];
    int64_t pids[2], sent = 0;
    uint32_t seed = 12345;
    for (int i = 0; i < 3; i++)
        assert_int_equal(di_thread_create(&threads[i], render_often, &storm), 0);
    while (__atomic_load_n(&storm.done, __ATOMIC_ACQUIRE) < 3) {
        seed = seed * 1664525 + 1013904223;
        nanosleep(&(struct timespec){.tv_nsec = 1000 * (seed >> 18)}, NULL);
        if (sent < 40 && di_helpers_pids(storm.pool, pids, 2) > 0)
            sent += kill((pid_t)pids[0], signals[seed >> 8 & 3]) == 0;
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    di_helpers_counts(storm.pool, &counts);
    print_message("%lld pictures right, %lld lost, %lld signals, %lld helpers started\n", (long long)storm.good, (long long)storm.bad,
                  (long long)sent, (long long)counts.started);
    assert_true(storm.good > 0 && storm.good < 1000000);
    assert_true(storm.bad > 0 && storm.bad - storm.late <= sent);
    assert_int_equal(counts.lost, storm.bad);
    for (int i = 0; i < 4; i++) {
        uint8_t *canvas = di_malloc(CANVAS_BYTES);
        (void)render(storm.pool, canvas, NULL); /* one may still be stopped */
        di_free(canvas);
    }
    uint8_t *canvas = di_malloc(CANVAS_BYTES);
    assert_int_equal(render(storm.pool, canvas, NULL), DI_OK);
    di_free(canvas);
    di_helpers_close(storm.pool);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest),
#ifndef DI_CHECKED
        cmocka_unit_test(test_shut_in),
#endif
        cmocka_unit_test(test_not_shut_in), cmocka_unit_test(test_misbehaviour),
        cmocka_unit_test(test_no_program),  cmocka_unit_test(test_signals),
    };
    if (argc > 1 && strcmp(argv[1], "image-worker") == 0) {
        const char *name = strrchr(argv[0], '/') + 1;
        signal(SIGSEGV, SIG_DFL); /* no sanitizer's report of what is meant */
        for (size_t i = 0; i < N_PARTS; i++)
            if (strcmp(name, parts[i].name) == 0)
                return parts[i].play();
        return di_helper_serve((size_t)384 << 20);
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || di_file_read(DIR "rgb.jpg", 1 << 20, &picture, NULL) != DI_OK)
        return 1;
    order.limits = di_picture_limits_default;
    if (di_render(di_buf_str(&picture), &order, expected, NULL, NULL) != DI_OK)
        return 1;
    int failed = cmocka_run_group_tests_name("helper", tests, NULL, NULL);
    di_buf_fini(&picture);
    return failed;
}
