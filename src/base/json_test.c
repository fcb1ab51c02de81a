/* not run under TSan: no threads */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void round_trip(const char *in, const char *spaced)
{
    struct di_arena a;
    struct di_json *v;
    struct di_buf b = {0};
    di_error err = {0};
    di_arena_init(&a);
    assert_int_equal(di_json_parse(di_str_c(in), NULL, &a, &v, &err), DI_OK);
    di_json_write_spaced(&b, v);
    assert_string_equal(b.p, spaced);
    di_buf_fini(&b);
    di_arena_fini(&a);
}

static void test_spaced_layout(void **state)
{
    (void)state;
    round_trip("{\"a\":1,\"b\":[true,false,null]}", "{\"a\": 1, \"b\": [true, false, null]}");
    round_trip("[1.0,100000.0,1e16,1.5e-7,0.00001,0.0001,1e22,-0.0,5e-324,0.1,3.14159]",
               "[1.0, 100000.0, 1e+16, 1.5e-07, 1e-05, 0.0001, 1e+22, -0.0, 5e-324, 0.1, 3.14159]");
    round_trip("[123456789012345678901234567890,-0]", "[123456789012345678901234567890, 0]");
    round_trip("{\"z\":1,\"a\":{\"y\":[],\"x\":{}},\"z\":2}", "{\"z\": 2, \"a\": {\"y\": [], \"x\": {}}}");
    round_trip("{\"k\":1,\"k\":2,\"k\":3}", "{\"k\": 3}");
    round_trip("{\"a\":1,\"k\":2,\"k\":[3],\"b\":4,\"a\":5}", "{\"a\": 5, \"k\": [3], \"b\": 4}");
    round_trip("\xEF\xBB\xBF [1]", "[1]"); /* a byte order mark, once, in front */
    round_trip("\"\\u00e9\\ud83d\\ude00\\u0001\\/\"", "\"\xC3\xA9\xF0\x9F\x98\x80\\u0001/\"");
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[1,]",
                                        "{\"a\" 1}",
                                        "01",
                                        "1.",
                                        "1e",
                                        "-",
                                        "\"\\ud800\"",
                                        "\"\\udc00\"",
                                        "\"\x01\"",
                                        "\"\xC3\"",
                                        "nul",
                                        "[1] 2",
                                        "\"\\x\"",
                                        "NaN",
                                        "{\"a\":1,}",
                                        "\"abc",
                                        "\"abc\\",
                                        "\xEF\xBB\xBF",
                                        "\xEF\xBB\xBF\xEF\xBB\xBF"
                                        "1",
                                        " \xEF\xBB\xBF"
                                        "1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct di_arena a;
        struct di_json *v;
        di_error err = {0};
        di_arena_init(&a);
        if (di_json_parse(di_str_c(texts[i]), NULL, &a, &v, &err) == DI_OK)
            fail_msg("accepted: %s", texts[i]);
        assert_true(err.message[0] != 0);
        di_arena_fini(&a);
    }
}

static void test_depth_and_duplicates(void **state)
{
    (void)state;
    char deep[401];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    deep[400] = 0;
    struct di_arena a;
    struct di_json *v;
    di_error err = {0};
    di_arena_init(&a);
    assert_int_equal(di_json_parse(di_str_c(deep), NULL, &a, &v, &err), DI_ERR_LIMIT);
    assert_int_equal(di_json_parse(di_str_c(deep), &(struct di_json_limits){.max_depth = 200}, &a, &v, &err), DI_OK);
    assert_int_equal(di_json_parse(DI_STR("[1,[2],{\"a\":3}]"), &(struct di_json_limits){.max_values = 5}, &a, &v, &err), DI_OK);
    assert_int_equal(di_json_parse(DI_STR("[1,[2],{\"a\":3}]"), &(struct di_json_limits){.max_values = 4}, &a, &v, &err), DI_ERR_LIMIT);
    struct di_json_limits strict = {.refuse_duplicates = true};
    assert_int_equal(di_json_parse(DI_STR("{\"a\":1,\"a\":1}"), &strict, &a, &v, &err), DI_ERR_FORMAT);
    assert_int_equal(di_json_parse(DI_STR("{\"a\":\"x\\u0000y\"}"), &strict, &a, &v, &err), DI_OK);
    assert_int_equal(di_json_get(v, "a")->text.n, 3);
    int64_t i;
    assert_int_equal(di_json_parse(DI_STR("[9223372036854775807,9223372036854775808,1.0]"), NULL, &a, &v, &err), DI_OK);
    assert_true(di_json_int(di_json_at(v, 0), &i) && i == INT64_MAX);
    assert_false(di_json_int(di_json_at(v, 1), &i));
    assert_false(di_json_int(di_json_at(v, 2), &i));
    di_arena_fini(&a);
}

static void test_same(void **state)
{
    (void)state;
    /* Lists of equal numbers; no number equals one of another list. */
    static const char *const lists[] = {"[0,-0,0.0,0e5,0E-99999999999999999999,-0.000]",
                                        "[1,1.0,1e0,10e-1,0.1E+1,1.000,0.0001e4,1e00]",
                                        "[-1,-1.0,-0.1e1]",
                                        "[100,1e2,1E+02,100.00,0.1e3,1000e-1]",
                                        "[1000,1e3]",
                                        "[0.1,1e-1,0.10,0.01e1]",
                                        "[0.01,1e-2]",
                                        "[101,1.01e2,10.1e1]",
                                        "[9007199254740993,9007199254740993.0,9.007199254740993e15,9007199254740993000e-3]",
                                        "[9007199254740992]",
                                        "[18446744073709551615,1844674407370955161.5e1]",
                                        "[18446744073709551616]",
                                        "[1e400,10e399]",
                                        "[1e401]",
                                        "[0.1000000000000000055511151231257827,1000000000000000055511151231257827e-34]",
                                        "[1e99999999999999999999]",
                                        "[1e-99999999999999999999]",
                                        "[null]",
                                        "[false]",
                                        "[true]",
                                        "[\"1\",\"\\u0031\"]",
                                        "[[]]",
                                        "[[1,2],[1.0,2e0]]",
                                        "[[2,1]]",
                                        "[{}]",
                                        "[{\"a\":[1],\"b\":{\"c\":null}},{\"b\":{\"c\":null},\"a\":[1.0]}]",
                                        "[{\"a\":[1],\"b\":{\"c\":0}}]"};
    enum { N = sizeof lists / sizeof *lists };
    struct di_arena a;
    struct di_json *v[N];
    di_arena_init(&a);
    for (int i = 0; i < N; i++)
        assert_int_equal(di_json_parse(di_str_c(lists[i]), NULL, &a, &v[i], NULL), DI_OK);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (const struct di_json *x = v[i]->child; x; x = x->next)
                for (const struct di_json *y = v[j]->child; y; y = y->next)
                    if (di_json_same(x, y) != (i == j))
                        fail_msg("%.*s and %.*s", (int)x->text.n, x->text.p, (int)y->text.n, y->text.p);
    di_arena_fini(&a);
}

static void test_many_keys_in_linear_time(void **state)
{
    (void)state;
    struct di_buf b = {0};
    di_buf_addc(&b, '{');
    for (int i = 0; i < 200000; i++)
        di_buf_addf(&b, "\"key%d\":%d,", i % 150000, i);
    di_buf_adds(&b, "\"end\":0}");
    struct di_arena a;
    struct di_json *v;
    di_arena_init(&a);
    assert_int_equal(di_json_parse(di_buf_str(&b), NULL, &a, &v, NULL), DI_OK);
    assert_int_equal(v->count, 150001);
    int64_t x;
    assert_true(di_json_int(v->child, &x) && x == 150000);
    di_arena_fini(&a);
    di_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spaced_layout),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_depth_and_duplicates),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_many_keys_in_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
