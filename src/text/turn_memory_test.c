/* not run under TSan: no threads */
#include "text/turn_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const uint8_t nowhere[32] = {1};

/* ---------------------------------------------------------------- a turn as the model said it, and as a client shows it */

struct sample {
    struct di_message message;
    int32_t ids[4];
    struct di_turn turn;
    struct di_chat_message shown;
    struct di_chat_part content;
    struct di_chat_call call;
};

/* One call named `id`, or a plain answer if it is NULL. */
static void make(struct sample *s, const char *id, const char *arguments, const char *content)
{
    memset(s, 0, sizeof *s);
    di_buf_adds(&s->message.content, content);
    if (id) {
        s->message.calls = di_calloc(1, sizeof *s->message.calls);
        s->message.n_calls = s->message.cap_calls = 1;
        snprintf(s->message.calls[0].id, sizeof s->message.calls[0].id, "%s", id);
        di_buf_adds(&s->message.calls[0].name, "f");
        di_buf_adds(&s->message.calls[0].arguments, arguments);
        s->call = (struct di_chat_call){.id = di_str_c(id), .name = DI_STR("f"), .arguments = di_str_c(arguments)};
        s->shown.calls = s->shown.last_call = &s->call;
        s->shown.n_calls = 1;
    }
    s->content.text = di_str_c(content);
    s->shown.content.first = s->shown.content.last = &s->content;
    s->ids[0] = 7;
    s->turn = (struct di_turn){.prefix = nowhere, .ids = s->ids, .n_ids = 4, .message = &s->message};
}

static bool find(struct di_turn_memory *m, const struct sample *s, const uint8_t prefix[32])
{
    struct di_ids ids = {0};
    bool found = di_turn_memory_find(m, s->turn.tenant, prefix, &s->shown, DI_PROTOCOL_CHAT, s->turn.thinking, &ids);
    assert_int_equal(ids.n, found ? 4 : 0);
    assert_true(!found || memcmp(ids.v, s->ids, sizeof s->ids) == 0);
    di_ids_fini(&ids);
    return found;
}

static void test_what_is_found(void **state)
{
    (void)state;
    struct di_turn_memory *m;
    struct sample s, t;
    const uint8_t elsewhere[32] = {2};
    assert_int_equal(di_turn_memory_create(10, 1 << 20, &m, NULL), DI_OK);
    make(&s, "call_00_a", "{\"x\": 1, \"y\": [true, null]}", "text");
    assert_false(find(m, &s, nowhere));
    di_turn_memory_put(m, &s.turn);
    assert_true(find(m, &s, elsewhere)); /* the name of a call is enough */
    s.call.arguments = DI_STR("{\"y\":[true,null],\"x\":1.0}");
    assert_true(find(m, &s, nowhere));
    static const char *const changed[] = {
        "{\"x\": 2, \"y\": [true, null]}",           "{\"x\": 1, \"y\": [null, true]}",    "{\"x\": 1}", "", "[]",
        "{\"x\": 1, \"y\": [true, null], \"z\": 0}", "{\"x\": \"1\", \"y\": [true, null]}"};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        s.call.arguments = di_str_c(changed[i]);
        assert_false(find(m, &s, nowhere));
    }
    s.call.arguments = di_buf_str(&s.message.calls[0].arguments);
    s.call.name = DI_STR("g");
    assert_false(find(m, &s, nowhere));
    s.call.name = DI_STR("f");
    s.content.text = DI_STR("text ");
    assert_false(find(m, &s, nowhere));
    s.content.text = DI_STR("text");
    s.turn.tenant = 1;
    assert_false(find(m, &s, nowhere));
    s.turn.tenant = 0;
    s.turn.thinking = true;
    assert_false(find(m, &s, nowhere));
    s.turn.thinking = false;
    struct di_chat_part why = {.text = DI_STR("because")};
    s.shown.reasoning.first = s.shown.reasoning.last = &why;
    assert_false(find(m, &s, nowhere)); /* the model gave no reason */
    s.shown.reasoning.first = NULL;
    struct di_chat_call more = s.call;
    s.call.next = &more;
    s.shown.n_calls = 2;
    assert_false(find(m, &s, nowhere));
    s.call.next = NULL;
    s.shown.n_calls = 1;
    assert_true(find(m, &s, nowhere));
    make(&t, NULL, "", "text");
    di_turn_memory_put(m, &t.turn);
    assert_true(find(m, &t, nowhere));
    assert_false(find(m, &t, elsewhere)); /* a plain answer belongs to its conversation */
    assert_int_equal(di_turn_memory_stats(m).turns, 2);
    di_turn_memory_put(m, &t.turn); /* again: it takes the place of the first */
    assert_int_equal(di_turn_memory_stats(m).turns, 2);
    di_message_fini(&s.message);
    di_message_fini(&t.message);
    di_turn_memory_destroy(m);
}

/* Every call must be one of this turn, at its place. */
static void test_several_calls(void **state)
{
    (void)state;
    struct di_turn_memory *m;
    struct sample s;
    assert_int_equal(di_turn_memory_create(10, 1 << 20, &m, NULL), DI_OK);
    make(&s, "call_00_a", "{}", "");
    s.message.calls = di_realloc(s.message.calls, 2 * sizeof *s.message.calls);
    memset(&s.message.calls[1], 0, sizeof *s.message.calls);
    s.message.n_calls = s.message.cap_calls = 2;
    snprintf(s.message.calls[1].id, sizeof s.message.calls[1].id, "call_01_b");
    di_buf_adds(&s.message.calls[1].name, "f");
    di_buf_adds(&s.message.calls[1].arguments, "{}");
    di_turn_memory_put(m, &s.turn);
    assert_int_equal(di_turn_memory_stats(m).names, 2);
    assert_false(find(m, &s, nowhere)); /* one is missing */
    struct di_chat_call second = {.id = DI_STR("call_01_b"), .name = DI_STR("f"), .arguments = DI_STR("{}")};
    s.call.next = &second;
    s.shown.n_calls = 2;
    assert_true(find(m, &s, nowhere));
    second.id = DI_STR("call_01_c");
    assert_false(find(m, &s, nowhere));
    second.id = DI_STR("call_00_a");
    s.call.id = DI_STR("call_01_b"); /* the other way round */
    assert_false(find(m, &s, nowhere));
    di_message_fini(&s.message);
    di_turn_memory_destroy(m);
}

/* Parts count as joined by blank lines. */
static void test_content_in_parts(void **state)
{
    (void)state;
    struct di_turn_memory *m;
    struct sample s;
    assert_int_equal(di_turn_memory_create(10, 1 << 20, &m, NULL), DI_OK);
    make(&s, NULL, "", "one\n\ntwo");
    di_turn_memory_put(m, &s.turn);
    struct di_chat_part two = {.text = DI_STR("two")};
    s.content = (struct di_chat_part){.next = &two, .text = DI_STR("one")};
    assert_true(find(m, &s, nowhere));
    two.text = DI_STR("tw");
    assert_false(find(m, &s, nowhere));
    di_message_fini(&s.message);
    di_turn_memory_destroy(m);
}

static void test_bounds(void **state)
{
    (void)state;
    struct di_turn_memory *m;
    struct sample s[5];
    assert_int_equal(di_turn_memory_create(3, 1 << 20, &m, NULL), DI_OK);
    for (int i = 0; i < 5; i++) {
        char id[16];
        snprintf(id, sizeof id, "call_%d", i);
        make(&s[i], id, "{}", "");
        s[i].call.id = di_str_c(s[i].message.calls[0].id);
    }
    for (int i = 0; i < 3; i++)
        di_turn_memory_put(m, &s[i].turn);
    assert_true(find(m, &s[0], nowhere)); /* so 1 is the one used longest ago */
    di_turn_memory_put(m, &s[3].turn);
    assert_int_equal(di_turn_memory_stats(m).names, 3);
    assert_false(find(m, &s[1], nowhere));
    assert_true(find(m, &s[0], nowhere) && find(m, &s[2], nowhere) && find(m, &s[3], nowhere));
    size_t each = di_turn_memory_stats(m).bytes / 3;
    di_turn_memory_destroy(m);
    assert_int_equal(di_turn_memory_create(100, 2 * each + each / 2, &m, NULL), DI_OK);
    for (int i = 0; i < 5; i++)
        di_turn_memory_put(m, &s[i].turn);
    assert_int_equal(di_turn_memory_stats(m).turns, 2);
    assert_true(find(m, &s[3], nowhere) && find(m, &s[4], nowhere));
    di_turn_memory_destroy(m);
    assert_int_equal(di_turn_memory_create(100, each - 1, &m, NULL), DI_OK);
    di_turn_memory_put(m, &s[0].turn);
    assert_int_equal(di_turn_memory_stats(m).turns, 0);
    di_turn_memory_destroy(m);
    for (int i = 0; i < 5; i++)
        di_message_fini(&s[i].message);
}

static void test_prefixes(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 2, 3, 4};
    struct di_turn_prefix a = {0}, b = {0};
    uint8_t step[32], whole[32];
    assert_true(di_turn_prefix_hash(&a, ids, 2, step));
    assert_true(di_turn_prefix_hash(&b, ids, 4, whole));
    assert_memory_not_equal(step, whole, 32);
    assert_true(di_turn_prefix_hash(&a, ids, 4, step));
    assert_memory_equal(step, whole, 32);
    di_turn_prefix_fini(&a);
    di_turn_prefix_fini(&b);
}

static void test_same_json(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {{"{}", " { } ", true},
                 {"[1,2]", "[2,1]", false},
                 {"1e2", "100", true},
                 {"\"a\"", "\"\\u0061\"", true},
                 {"x", "x", true},
                 {"x", "x ", false},
                 {"{\"a\":", "{}", false},
                 {"{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", true},
                 {"null", "false", false},
                 {"9007199254740993", "9007199254740993", true},
                 {"{\"id\":9007199254740993}", "{\"id\":9007199254740992}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(di_json_text_same(di_str_c(cases[i].a), di_str_c(cases[i].b)), cases[i].same);
        assert_int_equal(di_json_text_same(di_str_c(cases[i].b), di_str_c(cases[i].a)), cases[i].same);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_found), cmocka_unit_test(test_content_in_parts), cmocka_unit_test(test_several_calls),
        cmocka_unit_test(test_bounds),        cmocka_unit_test(test_prefixes),         cmocka_unit_test(test_same_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
