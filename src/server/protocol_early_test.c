#include "server/protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void bodies_that_stream(void **state)
{
    static const char *const yes[] = {"{\"stream\":true}", " {\n\"a\" : [1,{\"stream\":false}], \"stream\" : true , \"b\":{}}",
                                      "{\"stream\":false,\"stream\":true}", "{\"a\":\"\\\\\",\"stream\":true}",
                                      "{\"a\":\"\\\"},\",\"stream\":true,\"messages\":[\"cut"};
    static const char *const no[] = {"",
                                     "[{\"stream\":true}]",
                                     "{\"stream\":\"true\"}",
                                     "{\"stream\":true,\"stream\":null}",
                                     "{\"a\":{\"stream\":true}}",
                                     "{\"a\":\"\\\",\\\"stream\\\":true\"}",
                                     "{\"stream\"",
                                     "{\"stream\":",
                                     "{stream:true}",
                                     "{\"a\":1}{\"stream\":true}",
                                     "{\"a"};
    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!di_body_streams(di_str_c(yes[i])))
            fail_msg("%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (di_body_streams(di_str_c(no[i])))
            fail_msg("%s", no[i]);
}

static void refused_late(void **state)
{
    static const struct {
        enum di_route route;
        bool stream;
        const char *begin, *end;
    } cases[] = {{DI_ROUTE_CHAT, true, "data: {\"error\":", "}\n\ndata: [DONE]\n\n"},
                 {DI_ROUTE_CHAT, false, "{\"error\":", "}"},
                 {DI_ROUTE_MESSAGES, true, "event: error\ndata: {\"type\":\"error\"", "}\n\n"},
                 {DI_ROUTE_MESSAGES, false, "{\"type\":\"error\"", "}"},
                 {DI_ROUTE_RESPONSES, true, "event: response.failed\ndata: {", "}}\n\n"}};
    struct di_http_error e;
    (void)state;
    di_http_error_set(&e, 400, NULL, "temperature", "must be a \"number\"");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_buf out = {0};
        di_exchange_refuse(cases[i].route, cases[i].stream, &e, DI_STR("req_1"), &out);
        struct di_str s = di_buf_str(&out), end = di_str_c(cases[i].end);
        assert_true(di_str_starts(s, di_str_c(cases[i].begin)) && s.n > end.n);
        assert_memory_equal(s.p + s.n - end.n, end.p, end.n);
        assert_true(di_str_find(s, DI_STR("must be a \\\"number\\\""), 0) != SIZE_MAX);
        di_buf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bodies_that_stream), cmocka_unit_test(refused_late)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
