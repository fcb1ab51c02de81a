#include "server/log_sink.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/log_sink_test_XXXXXX";

static const char *path_of(const char *name)
{
    static char path[2][64];
    static int i;
    i = !i;
    snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
    return path[i];
}

static void add(struct di_log_sink *s, int number)
{
    char line[128];
    int n = snprintf(line, sizeof line, "line %06d %*s\n", number, 60, "");
    di_log_sink_add(s, (struct di_str){line, (size_t)n});
}

static size_t read_file(const char *path, char *to, size_t room)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(to, 1, room - 1, f);
    fclose(f);
    to[n] = 0;
    return n;
}

static void files(void **state)
{
    static char text[100000];
    struct di_log_sink *s;
    di_error err;
    (void)state;
    assert_int_equal(di_log_sink_open(path_of("no/such"), &s, &err), DI_ERR_IO);
    assert_int_equal(di_log_sink_open(path_of("log"), &s, &err), DI_OK);
    for (int i = 0; i < 500; i++)
        add(s, i);
    di_log_sink_flush(s, 10000);
    assert_int_equal(read_file(path_of("log"), text, sizeof text), 500 * 73);
    assert_non_null(strstr(text, "line 000499"));
    assert_int_equal(rename(path_of("log"), path_of("log.1")), 0);
    assert_int_equal(di_log_sink_reopen(s, path_of("no/such"), &err), DI_ERR_IO);
    assert_int_equal(di_log_sink_reopen(s, path_of("log"), &err), DI_OK);
    add(s, 500);
    assert_int_equal(di_log_sink_dropped(s), 0);
    di_log_sink_close(s);
    assert_int_equal(read_file(path_of("log"), text, sizeof text), 73);
    assert_int_equal(read_file(path_of("log.1"), text, sizeof text), 500 * 73);
    di_log_sink_close(NULL);
}

/* Nobody reads: adding takes no time, lines are lost and counted, closing ends. A reader that comes late gets whole lines. */
static void pipes(void **state)
{
    static char text[200000];
    struct di_log_sink *s;
    di_error err;
    (void)state;
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(di_log_sink_open(path_of("fifo"), &s, &err), DI_OK);
    int64_t begin = di_clock_ns();
    for (int i = 0; i < 100000; i++)
        add(s, i);
    assert_true(di_clock_ns() - begin < INT64_C(20000000000));
    uint64_t dropped = di_log_sink_dropped(s);
    assert_true(dropped > 70000 && dropped < 90000); /* 1 MiB of lines wait, as many may be in the writer's hand */
    int fd = open(path_of("fifo"), O_RDONLY | O_NONBLOCK);
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    for (size_t n = 0; n < 60000;) {
        assert_int_equal(poll(&readable, 1, 60000), 1);
        ssize_t more = read(fd, text + n, sizeof text - n);
        assert_true(more > 0);
        n += (size_t)more;
        assert_int_equal(text[n - 1], '\n');
    }
    assert_memory_equal(text, "line 000000", 11);
    begin = di_clock_ns();
    di_log_sink_close(s);
    assert_true(di_clock_ns() - begin < INT64_C(20000000000));
    close(fd);
    /* A reader that goes away. */
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(di_log_sink_open_fd(ends[1], &s, &err), DI_OK);
    close(ends[0]);
    add(s, 1);
    di_log_sink_flush(s, 10000);
    assert_int_equal(di_log_sink_dropped(s), 1);
    di_log_sink_close(s);
    close(ends[1]);
}

static int begin(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    const char *names[] = {"log", "log.1", "fifo"};
    for (int i = 0; i < 3; i++)
        unlink(path_of(names[i]));
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files), cmocka_unit_test(pipes)};
    return cmocka_run_group_tests(tests, begin, end);
}
