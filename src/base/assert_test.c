/* A violated assertion ends the process with its place and its words, in the builds that look; in the others nothing is evaluated. */
#include "base/assert.h"
#include "base/order.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if DI_ASSERTS
#include <sanitizer/common_interface_defs.h>
#endif

/* What a child says that runs `what`; true if it came to its end. */
static bool child_ends(void (*what)(void), char *said, size_t size)
{
    int ends[2], status;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGILL, SIG_DFL); /* cmocka would take it for the end of this test */
#if DI_ASSERTS
        __sanitizer_set_report_fd((void *)STDERR_FILENO);
#endif
        what();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t k; n + 1 < size && (k = read(ends[0], said + n, size - 1 - n)) > 0;)
        n += (size_t)k;
    said[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void call_fail(void)
{
    di_assert_fail("src/room/file.c", 12, "left == right");
}

static void test_words(void **state)
{
    char said[65536];
    (void)state;
    assert_false(child_ends(call_fail, said, sizeof said));
    assert_non_null(strstr(said, "src/room/file.c:12: must hold: left == right\n"));
}

static const char *const two = "2";
enum { VIOLATED_AT = __LINE__ + 3 };
static void violate(void)
{
    DI_ASSERT(strcmp(two, "3") == 0);
}

static void violate_sound(void)
{
    DI_ASSERT_SOUND(*two == '2' ? "two is no verdict" : NULL);
}

static void hold(void)
{
    DI_ASSERT(strcmp(two, "2") == 0);
    DI_ASSERT_SOUND(*two == '2' ? NULL : "two is no verdict");
}

/* An invariant of a module: a node is taken out of a set in which it does not stand. */
static void take_out_of_the_other(void)
{
    struct di_order one = {0}, other = {0};
    struct di_order_node x = {0}, y = {0};
    di_order_add(&one, &x, &x, 1, 0, 0);
    di_order_add(&other, &y, &y, 1, 0, 0);
    di_order_remove(&other, &x);
}

static void test_violations(void **state)
{
    char said[65536], violation[80];
    (void)state;
    snprintf(violation, sizeof violation, "assert_test.c:%d: must hold: strcmp(two, \"3\") == 0\n", VIOLATED_AT);
    assert_true(child_ends(hold, said, sizeof said));
    assert_string_equal(said, "");
    const struct {
        void (*what)(void);
        const char *words;
    } cases[] = {
        {violate, violation}, {violate_sound, "must hold: two is no verdict\n"}, {take_out_of_the_other, "must hold: stands_in(o, x)\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(child_ends(cases[i].what, said, sizeof said), !DI_ASSERTS);
        if (DI_ASSERTS)
            assert_non_null(strstr(said, cases[i].words));
        else
            assert_string_equal(said, "");
    }
}

static void test_not_evaluated(void **state)
{
    int n = 0;
    (void)state;
    DI_ASSERT(++n);
    assert_int_equal(n, DI_ASSERTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_violations),
                                       cmocka_unit_test(test_not_evaluated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
