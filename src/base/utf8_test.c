/* not run under TSan: no threads */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define TEXT "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z" /* a, and characters of 2, 3 and 4 bytes */

static void cuts_between_characters(void **state)
{
    (void)state;
    static const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11};
    for (size_t most = 0; most < sizeof ends / sizeof *ends; most++)
        assert_int_equal(di_utf8_cut(DI_STR(TEXT), most), ends[most]);
    assert_int_equal(di_utf8_cut((struct di_str){0}, 5), 0);
    assert_int_equal(di_utf8_count(DI_STR(TEXT)), 5);
    assert_int_equal(di_utf8_count((struct di_str){&TEXT[2], 3}), 1); /* the end of one, the beginning of another */
    assert_int_equal(di_utf8_count((struct di_str){0}), 0);
}

/* What does not fit into an error ends between characters, wherever its end falls. */
static void errors_end_between_characters(void **state)
{
    (void)state;
    static const char *const characters[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (size_t k = 0; k < 4; k++)
        for (size_t shift = 0; shift < 4; shift++) {
            di_error err = {0};
            struct di_buf text = {0};
            di_buf_add(&text, "xxxx", shift);
            for (size_t i = 0; i < sizeof err.message; i++)
                di_buf_adds(&text, characters[k]);
            di_fail(&err, DI_ERR_INVALID, text.p, "%s", text.p);
            struct di_str message = di_str_c(err.message), where = di_str_c(err.where);
            assert_true(di_utf8_valid(message, NULL) && di_utf8_valid(where, NULL));
            assert_true(message.n + 5 > sizeof err.message && where.n + 5 > sizeof err.where);
            di_buf_fini(&text);
        }
}

static void beginnings_and_ends(void **state)
{
    (void)state;
    struct di_str s = DI_STR("abcab"), none = {0};
    assert_true(di_str_starts(s, DI_STR("ab")) && di_str_ends(s, DI_STR("cab")));
    assert_true(di_str_starts(s, s) && di_str_ends(s, s) && di_str_ends(s, none) && di_str_ends(none, none));
    assert_false(di_str_starts(s, DI_STR("abcabc")) || di_str_ends(s, DI_STR("xabcab")) || di_str_ends(s, DI_STR("ca")));
    assert_false(di_str_ends(none, DI_STR("a")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_between_characters),
        cmocka_unit_test(errors_end_between_characters),
        cmocka_unit_test(beginnings_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
