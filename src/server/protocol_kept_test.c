/* Bytes of requests under way: what di_exchange_release says, with the nano model behind the exchange. */
#include "server/protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* `text` with a number in place of its #. */
static void add_numbered(struct di_buf *b, const char *text, int number)
{
    size_t n = strcspn(text, "#");
    di_buf_add(b, text, n);
    if (text[n])
        di_buf_addf(b, "%d%s", number, text + n + 1);
}

/* What is said to be kept of requests holds what an answer needs of them, and not much more. */
static void test_kept_bytes(void **state)
{
    static const struct {
        enum di_route route;
        const char *before, *item, *after; /* `item` comes REPEATS times, # is its number */
        size_t least;                      /* bytes of each that an answer needs */
    } cases[] = {
        {DI_ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"none\",\"tools\":[",
         "{\"type\":\"function\",\"function\":{\"name\":\"a_name_of_forty_letters_and_its_number_#\"}}", "]}", 100},
        {DI_ROUTE_RESPONSES, "{\"input\":\"x\",\"tool_choice\":\"none\",\"tools\":[",
         "{\"type\":\"function\",\"name\":\"a_name_of_forty_letters_and_its_number_#\"}", "]}", 160},
        {DI_ROUTE_COMPLETIONS, "{\"max_tokens\":1,\"prompt\":[", "300", "]}", 4},
        {DI_ROUTE_COMPLETIONS, "{\"max_tokens\":1,\"echo\":true,\"prompt\":[", "300", "]}", 10},
        {DI_ROUTE_COMPLETIONS, "{\"max_tokens\":0,\"echo\":true,\"logprobs\":1,\"n\":3,\"prompt\":[", "300", "]}", 12},
        {DI_ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[", "{\"type\":\"text\",\"text\":\"some\"}", "]}]}", 4},
    };
    enum { REPEATS = 2000 };
    static const char *const names[] = {"m"};
    struct di_exchange_setup setup = {.names = names, .n_names = 1};
    di_engine_config c;
    di_error err;
    (void)state;
    di_engine_config_init(&c, sizeof c);
    c.model = DI_SOURCE_DIR "/models/nano";
    c.context = 4096;
    c.max_batch = 1;
    c.threads = 1;
    assert_int_equal(di_engine_open(&c, &setup.engine, &err), DI_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_buf body = {0};
        di_buf_adds(&body, cases[i].before);
        for (int k = 0; k < REPEATS; k++) {
            di_buf_adds(&body, k ? "," : "");
            add_numbered(&body, cases[i].item, k);
        }
        di_buf_adds(&body, cases[i].after);
        struct di_exchange_request r = {.route = cases[i].route, .body = di_buf_str(&body), .now = 1790000000};
        struct di_exchange *x;
        struct di_http_error e;
        if (di_exchange_create(&setup, &r, &x, &e) != DI_OK)
            fail_msg("case %zu: %s", i, e.message);
        assert_int_equal(di_exchange_prompts(x), 1);
        if (di_exchange_prepare(x, 0, &err) != DI_OK)
            fail_msg("case %zu: %s %s", i, err.where, err.message);
        size_t kept = di_exchange_release(x);
        if (kept < cases[i].least * REPEATS || kept > (size_t)20000 + 6 * cases[i].least * REPEATS)
            fail_msg("case %zu: %zu bytes are said to be kept", i, kept);
        di_exchange_destroy(x);
        di_buf_fini(&body);
    }
    di_engine_close(setup.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
