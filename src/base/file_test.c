/* not run under TSan: no threads */
#include "base/file.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_replace_and_read(void **state)
{
    (void)state;
    char dir[] = "/tmp/deepinfer-file-XXXXXX", path[64], missing[64];
    struct di_buf b = {0};
    di_error err = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a", dir);
    snprintf(missing, sizeof missing, "%s/none/a", dir);
    assert_int_equal(di_file_read(path, 100, &b, &err), DI_ERR_NOT_FOUND);
    assert_string_equal(err.where, path);
    assert_int_equal(di_file_replace(path, DI_STR("old\0old"), &err), DI_OK);
    assert_int_equal(di_file_replace(path, DI_STR("new"), &err), DI_OK);
    assert_int_equal(di_file_replace(missing, DI_STR("x"), &err), DI_ERR_IO);
    assert_int_equal(di_file_read(path, 2, &b, &err), DI_ERR_LIMIT);
    di_buf_adds(&b, "=");
    assert_int_equal(di_file_read(path, 3, &b, &err), DI_OK);
    assert_string_equal(b.p, "=new");
    assert_int_equal(di_file_read(dir, 100, &b, &err), DI_ERR_INVALID);
    /* A target that cannot be replaced: the old content stays and nothing is left beside it. */
    assert_int_equal(di_file_replace(dir, DI_STR("x"), &err), DI_ERR_IO);
    /* A link stays one. */
    char link[300];
    snprintf(link, sizeof link, "%s/link", dir);
    assert_int_equal(symlink(path, link), 0);
    assert_false(di_file_replaceable(link));
    assert_true(di_file_replaceable(path) && di_file_replaceable(missing));
    assert_int_equal(di_file_replace(link, DI_STR("through"), &err), DI_OK);
    assert_false(di_file_replaceable(link));
    di_buf_clear(&b);
    assert_int_equal(di_file_read(path, 100, &b, &err), DI_OK);
    assert_true(di_str_eqc(di_buf_str(&b), "through"));
    unlink(link);
    assert_int_equal(symlink("/dev/full", link), 0);
    assert_int_equal(di_file_replace(link, DI_STR("x"), &err), DI_ERR_IO);
    unlink(link);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
    di_buf_fini(&b);
}

static void test_stream(void **state)
{
    (void)state;
    for (size_t limit = 4; limit <= 6; limit++) {
        int fd[2];
        struct di_buf b = {0};
        di_error err = {0};
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(di_file_write(fd[1], "pipe", "hello", 5, &err), DI_OK);
        close(fd[1]);
        assert_int_equal(di_stream_read(fd[0], "pipe", limit, &b, &err), limit < 5 ? DI_ERR_LIMIT : DI_OK);
        if (limit >= 5)
            assert_string_equal(b.p, "hello");
        close(fd[0]);
        di_buf_fini(&b);
    }
}

static void keep(void *ctx, enum di_log_level level, const char *text)
{
    snprintf(ctx, 64, "%s/%s", di_log_level_name(level), text);
}

static void test_log(void **state)
{
    (void)state;
    char got[64] = "";
    struct di_log log = {.level = DI_LOG_WARN, .fn = keep, .ctx = got};
    di_log(NULL, DI_LOG_ERROR, "nobody");
    di_log(&(struct di_log){0}, DI_LOG_ERROR, "nobody");
    di_log(&log, DI_LOG_INFO, "dropped");
    assert_string_equal(got, "");
    di_log(&log, DI_LOG_WARN, "%d of %s", 3, "four");
    assert_string_equal(got, "warning/3 of four");

    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    di_log(&(struct di_log){.level = DI_LOG_DEBUG, .file = f}, DI_LOG_DEBUG, "x");
    fclose(f);
    assert_string_equal(text, "debug: x\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace_and_read),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
