/* not run under TSan: no threads */
#include "cli/io.h"

#include "base/file.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/deepinfer-io-XXXXXX";

static void put(struct di_str content)
{
    assert_int_equal(di_file_replace(path, content, NULL), DI_OK);
}

static void expect_line(struct di_lines *in, struct di_str want, int64_t number)
{
    struct di_str line;
    bool more;
    assert_int_equal(di_lines_next(in, &line, &more, NULL), DI_OK);
    assert_true(more);
    assert_true(di_str_eq(line, want));
    assert_int_equal(in->number, number);
}

static void expect_end(struct di_lines *in)
{
    struct di_str line;
    bool more = true;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(di_lines_next(in, &line, &more, NULL), DI_OK);
        assert_false(more);
    }
}

static void test_lines(void **state)
{
    (void)state;
    struct di_lines in;
    put(DI_STR("a\nb\r\n\n\r\nx\0y\nlast"));
    assert_int_equal(di_lines_open(&in, path, 0, NULL), DI_OK);
    expect_line(&in, DI_STR("a"), 1);
    expect_line(&in, DI_STR("b"), 2);
    expect_line(&in, DI_STR(""), 3);
    expect_line(&in, DI_STR(""), 4);
    expect_line(&in, DI_STR("x\0y"), 5);
    expect_line(&in, DI_STR("last"), 6);
    expect_end(&in);
    di_lines_close(&in);
    put(DI_STR(""));
    assert_int_equal(di_lines_open(&in, path, 0, NULL), DI_OK);
    expect_end(&in);
    di_lines_close(&in);
    di_error err = {0};
    assert_int_equal(di_lines_open(&in, "/nonexistent/file", 0, &err), DI_ERR_NOT_FOUND);
}

static void test_long_lines(void **state)
{
    (void)state;
    struct di_lines in;
    struct di_buf b = {0};
    struct di_str line;
    di_error err = {0};
    bool more;
    static char big[200001];
    memset(big, 'x', sizeof big);
    /* 200000 fits (also before "\r\n"), 200001 does not; the line behind it is read again. */
    di_buf_add(&b, big, 200000);
    di_buf_adds(&b, "\r\n");
    di_buf_add(&b, big, 200001);
    di_buf_adds(&b, "\nnext\n");
    di_buf_add(&b, big, 200001);
    put(di_buf_str(&b));
    assert_int_equal(di_lines_open(&in, path, 200000, NULL), DI_OK);
    expect_line(&in, (struct di_str){big, 200000}, 1);
    assert_int_equal(di_lines_next(&in, &line, &more, &err), DI_ERR_LIMIT);
    assert_true(more);
    assert_string_equal(err.message, "line 2 is longer than the limit of 200000 bytes");
    expect_line(&in, DI_STR("next"), 3);
    assert_int_equal(di_lines_next(&in, &line, &more, &err), DI_ERR_LIMIT);
    assert_int_equal(in.number, 4);
    expect_end(&in);
    di_lines_close(&in);
    di_buf_fini(&b);
}

static void test_write_errors(void **state)
{
    (void)state;
    di_error err = {0};
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    assert_int_equal(di_write_line(full, DI_STR("x"), &err), DI_ERR_IO);
    assert_non_null(strstr(err.message, "No space left"));
    fclose(full);
    int fd[2];
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(fd), 0);
    close(fd[0]);
    FILE *closed = fdopen(fd[1], "w");
    assert_non_null(closed);
    assert_int_equal(di_write_text(closed, DI_STR("x"), &err), DI_ERR_IO);
    fclose(closed);

    FILE *f = fopen(path, "w");
    struct di_buf b = {0};
    assert_int_equal(di_write_line(f, DI_STR("a\0b"), &err), DI_OK);
    assert_int_equal(di_file_read(path, 100, &b, &err), DI_OK); /* flushed, though not closed */
    assert_true(di_str_eq(di_buf_str(&b), DI_STR("a\0b\n")));
    fclose(f);
    di_buf_fini(&b);
}

static void test_error_object(void **state)
{
    (void)state;
    struct di_buf b = {0};
    struct di_json id = {.type = DI_JSON_STRING, .text = DI_STR("q\"1")};
    di_error err = {.code = DI_ERR_INVALID, .message = "bad \xFF \"x\"", .where = "messages[0]"};
    di_add_error_object(&b, &id, &err, 7);
    assert_string_equal(b.p, "{\"id\":\"q\\\"1\",\"error\":{\"code\":\"invalid\",\"message\":\"messages[0]: bad \xEF\xBF\xBD \\\"x\\\"\","
                             "\"line\":7}}");
    di_buf_clear(&b);
    err.where[0] = 0;
    di_add_error_object(&b, NULL, &err, 0);
    assert_string_equal(b.p, "{\"id\":null,\"error\":{\"code\":\"invalid\",\"message\":\"bad \xEF\xBF\xBD \\\"x\\\"\"}}");
    di_buf_fini(&b);
}

static int make_path(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_write_errors),
        cmocka_unit_test(test_error_object),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
