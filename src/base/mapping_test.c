#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "base/mapping.h"

#include "base/file.h"
#include "base/threads.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 8 };
static size_t page;

/* A file of PAGES pages of '0', '1', ...; the name goes to `path`. */
static int make_file(char path[40])
{
    strcpy(path, "/tmp/deepinfer-mapping-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    page = (size_t)sysconf(_SC_PAGESIZE);
    char *bytes = malloc(page);
    for (int i = 0; i < PAGES; i++) {
        memset(bytes, '0' + i, page);
        assert_int_equal(di_file_write(fd, path, bytes, page, NULL), DI_OK);
    }
    free(bytes);
    return fd;
}

static struct di_mapping *open_mapping(const char *path)
{
    struct di_mapping *m;
    int fd;
    size_t bytes;
    di_error err = {0};
    assert_int_equal(di_file_open(path, &fd, &bytes, &err), DI_OK);
    assert_int_equal(di_mapping_open(fd, path, bytes, &m, &err), DI_OK);
    return m;
}

static struct sigaction handler_now(void)
{
    struct sigaction a;
    sigaction(SIGBUS, NULL, &a);
    return a;
}

/* cmocka and sanitizers have handlers of their own. */
static void set_default(void)
{
    struct sigaction none = {.sa_handler = SIG_DFL};
    assert_int_equal(sigaction(SIGBUS, &none, NULL), 0);
}

static bool is_default(void)
{
    struct sigaction a = handler_now();
    return !(a.sa_flags & SA_SIGINFO) && a.sa_handler == SIG_DFL;
}

/* Let the clock of the file system go on. */
static void tick(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
}

static void test_what_is_a_change(void **state)
{
    (void)state;
    char path[40], other[60];
    int fd = make_file(path);
    di_error err = {0};
    tick();
    for (int what = 0; what < 7; what++) {
        struct di_mapping *m = open_mapping(path);
        assert_int_equal(di_mapping_data(m)[3 * page], '3');
        assert_int_equal(di_mapping_check(m, &err), DI_OK);
        tick();
        const char *word = NULL; /* of the sentence */
        switch (what) {
        case 0:
            assert_int_equal(pwrite(fd, "x", 1, 0), 1);
            word = "written to";
            break;
        case 1:
            assert_int_equal(ftruncate(fd, (off_t)(PAGES * page + 1)), 0);
            word = "has 32769 now";
            break;
        case 2:
            assert_int_equal(ftruncate(fd, (off_t)(PAGES * page)), 0);
            word = "has 32768 now";
            break;
        case 3:
            assert_int_equal(futimens(fd, NULL), 0);
            word = "written to";
            break;
        case 4: assert_int_equal(chmod(path, 0600), 0); break;
        case 5:
            snprintf(other, sizeof other, "%s.x", path);
            assert_int_equal(rename(path, other), 0);
            assert_int_equal(rename(other, path), 0);
            break;
        case 6: unlink(path); break;
        }
        for (int twice = 0; twice < 2; twice++) {
            assert_int_equal(di_mapping_check(m, &err), word ? DI_ERR_IO : DI_OK);
            if (word && page == 4096 && !strstr(err.message, word))
                fail_msg("%d: %s", what, err.message);
        }
        if (word) { /* what was seen is not forgotten */
            struct timespec old[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1}};
            assert_string_equal(err.where, path + 5);
            assert_int_equal(futimens(fd, old), 0);
            assert_int_equal(di_mapping_check(m, &err), DI_ERR_IO);
        }
        di_mapping_close(m);
    }
    close(fd);
}

struct readers {
    const uint8_t *data;
    size_t bytes;
    _Atomic int sum;
};

static void read_part(void *ctx, int thread, int n_threads)
{
    struct readers *r = ctx;
    di_range part = di_split((int64_t)r->bytes, (int64_t)page, thread, n_threads);
    for (int64_t i = part.begin; i < part.end; i += 97)
        r->sum += r->data[i] == 0;
}

/* On any thread, pool threads included. */
static void test_shortened(void **state)
{
    (void)state;
    set_default();
    char path[2][40];
    int fd[2] = {make_file(path[0]), make_file(path[1])};
    struct di_mapping *m = open_mapping(path[0]), *whole = open_mapping(path[1]);
    struct di_pool *pool;
    di_error err = {0};
    assert_int_equal(di_pool_create(3, &pool, NULL), DI_OK);
    for (int i = 0; i < 2; i++)
        unlink(path[i]);
    struct readers r = {.data = di_mapping_data(m), .bytes = PAGES * page};
    di_pool_run(pool, read_part, &r);
    assert_int_equal(r.sum, 0);
    assert_int_equal(ftruncate(fd[0], (off_t)page), 0);
    di_pool_run(pool, read_part, &r);
    assert_true(r.sum > 0);
    assert_int_equal(r.data[(PAGES - 1) * page], 0);
    assert_int_equal(di_mapping_check(m, &err), DI_ERR_IO);
    assert_non_null(strstr(err.message, "must not change while it is in use"));
    r = (struct readers){.data = di_mapping_data(whole), .bytes = PAGES * page};
    di_pool_run(pool, read_part, &r);
    assert_int_equal(r.sum, 0);
    assert_int_equal(di_mapping_check(whole, &err), DI_OK);
    di_mapping_close(m);
    di_mapping_close(whole);
    di_pool_destroy(pool);
    close(fd[0]);
    close(fd[1]);
    assert_true(is_default());
}

/* A page that is lost although the file looks as before, as on a disk that fails. */
static void test_lost_page(void **state)
{
    (void)state;
    set_default();
    char path[40];
    int fd = make_file(path);
    unlink(path);
    struct stat sb;
    struct di_mapping *m;
    di_error err = {0};
    assert_int_equal(fstat(fd, &sb), 0);
    assert_int_equal(di_mapping_open(dup(fd), path, PAGES * page, &m, &err), DI_OK);
    assert_int_equal(ftruncate(fd, (off_t)page), 0);
    assert_int_equal(di_mapping_data(m)[5 * page], 0);
    assert_int_equal(ftruncate(fd, sb.st_size), 0);
    assert_int_equal(futimens(fd, (struct timespec[2]){sb.st_atim, sb.st_mtim}), 0);
    assert_int_equal(di_mapping_check(m, &err), DI_ERR_IO);
    assert_non_null(strstr(err.message, "cannot be read any more"));
    di_mapping_close(m);
    close(fd);
}

/* ---------------------------------------------------------------- manners */

static sigjmp_buf back;
static volatile sig_atomic_t caught;

static void plain(int number)
{
    (void)number;
    caught = 1;
    siglongjmp(back, 1);
}

static void with_info(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    caught = info->si_addr ? 2 : 3;
    siglongjmp(back, 1);
}

static void set_handler(const struct sigaction *a)
{
    assert_int_equal(sigaction(SIGBUS, a, NULL), 0);
}

/* A fault that is none of a mapping's: whose handler gets it? */
static int foreign_fault(void)
{
    char path[40];
    int fd = make_file(path);
    unlink(path);
    volatile uint8_t *data = mmap(NULL, PAGES * page, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(data != MAP_FAILED);
    assert_int_equal(ftruncate(fd, 0), 0);
    caught = 0;
    if (sigsetjmp(back, 1) == 0)
        (void)data[page];
    munmap((void *)(uintptr_t)data, PAGES * page);
    close(fd);
    return caught;
}

static void test_foreign_faults(void **state)
{
    (void)state;
    struct sigaction simple = {.sa_handler = plain}, info = {.sa_sigaction = with_info, .sa_flags = SA_SIGINFO};
    char path[40];
    int fd = make_file(path);
    set_handler(&simple);
    struct di_mapping *a = open_mapping(path), *b = open_mapping(path);
    assert_true(handler_now().sa_handler != plain);
    assert_int_equal(foreign_fault(), 1);
    caught = 0;
    if (sigsetjmp(back, 1) == 0)
        raise(SIGBUS);
    assert_int_equal(caught, 1);
    di_mapping_close(a);
    assert_int_equal(foreign_fault(), 1);
    di_mapping_close(b);
    assert_true(handler_now().sa_handler == plain);

    set_handler(&info);
    a = open_mapping(path);
    assert_int_equal(foreign_fault(), 2);
    set_handler(&simple); /* one above ours stays */
    di_mapping_close(a);
    assert_true(handler_now().sa_handler == plain);
    a = open_mapping(path);
    assert_true(handler_now().sa_handler == plain);
    di_mapping_close(a);

    set_default(); /* and one that took ours away is no reason to do without */
    a = open_mapping(path);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(di_mapping_data(a)[page], 0);
    di_mapping_close(a);
    assert_true(is_default());
    close(fd);
    unlink(path);
}

static struct sigaction below;

/* As crash reporters do: tell, put back what was there, and let that one see the signal. */
static void raise_anew(int number)
{
    caught = 4;
    sigaction(number, &below, NULL);
    raise(number);
}

static void test_passed_on_by_raise(void **state)
{
    (void)state;
    struct sigaction simple = {.sa_handler = plain}, reporter = {.sa_handler = raise_anew, .sa_flags = SA_NODEFER};
    char path[40];
    int fd = make_file(path);
    unlink(path);
    set_handler(&simple);
    struct di_mapping *m;
    di_error err = {0};
    assert_int_equal(di_mapping_open(dup(fd), path, PAGES * page, &m, NULL), DI_OK);
    assert_int_equal(sigaction(SIGBUS, &reporter, &below), 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    caught = 0;
    if (sigsetjmp(back, 1) == 0)
        assert_int_equal(di_mapping_data(m)[page], 0);
    assert_int_equal(caught, 4);
    assert_int_equal(di_mapping_check(m, &err), DI_ERR_IO);
    if (sigsetjmp(back, 1) == 0) /* the next one is none of a mapping's */
        raise(SIGBUS);
    assert_int_equal(caught, 1);
    di_mapping_close(m);
    close(fd);
}

static void test_refusals(void **state)
{
    (void)state;
    char path[40];
    int fd = make_file(path);
    struct di_mapping *m;
    di_error err = {0};
    set_default();
    assert_int_equal(di_mapping_open(fd, path, 5, &m, &err), DI_ERR_IO);
    assert_null(m);
    assert_int_equal(di_mapping_open(-1, path, 5, &m, &err), DI_ERR_IO);
    di_mapping_close(NULL);
    unlink(path);
    assert_true(is_default());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_a_change), cmocka_unit_test(test_shortened),          cmocka_unit_test(test_lost_page),
        cmocka_unit_test(test_foreign_faults),   cmocka_unit_test(test_passed_on_by_raise), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
