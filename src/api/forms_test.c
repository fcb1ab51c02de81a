/* not run under TSan: no threads. Forms of answers, as requests share them. */
#include "api/forms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define NANO DI_SOURCE_DIR "/models/nano"

struct nano {
    struct di_config config;
    struct di_text_model text;
    struct di_forms *forms;
};

static int set_up(void **state)
{
    static struct nano n;
    *state = &n;
    assert_int_equal(di_config_load(NANO, &n.config, NULL), DI_OK);
    assert_int_equal(di_text_model_load(NANO, &n.config, &n.text, NULL), DI_OK);
    assert_int_equal(di_forms_create(&n.text, (int)n.config.vocab_size, &n.forms, NULL), DI_OK);
    return 0;
}

static int tear_down(void **state)
{
    struct nano *n = *state;
    di_forms_destroy(n->forms);
    di_text_model_fini(&n->text);
    return 0;
}

static struct di_form form_of(const struct nano *n, enum di_grammar_kind kind, const char *text)
{
    struct di_form form;
    di_error err = {0};
    if (di_form_make(n->forms, &(struct di_form_wish){.kind = kind, .text = di_str_c(text), .path = "form"}, &form, &err) != DI_OK)
        fail_msg("%s: %s: %s", text, err.where, err.message);
    return form;
}

static void test_equal_wishes_share_a_grammar(void **state)
{
    struct di_form a = form_of(*state, DI_GRAMMAR_REGEX, "a+"), b = form_of(*state, DI_GRAMMAR_REGEX, "a+"),
                   c = form_of(*state, DI_GRAMMAR_REGEX, "a*");
    assert_ptr_equal(a.grammar, b.grammar);
    assert_ptr_not_equal(a.grammar, c.grammar);
    di_form_fini(&a);
    di_form_fini(&b);
    di_form_fini(&c);
}

/* A text that leads into ever new derivatives. */
static di_status meet_a_limit(struct di_grammar *g)
{
    struct di_matcher *m;
    di_status status = DI_OK;
    uint32_t random = 1;
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    for (int i = 0; i < 1000000 && status == DI_OK; i++) {
        random = random * 1664525 + 1013904223;
        status = di_matcher_accept_bytes(m, random >> 31 ? DI_STR("a") : DI_STR("b"), NULL);
        di_matcher_forget(m, 0);
    }
    di_matcher_destroy(m);
    return status;
}

/* What an answer did to a grammar is not what the next request gets. */
static void test_a_limit_is_met_once(void **state)
{
    static const char expression[] = "(a|b)*a(a|b){60}";
    struct di_form a = form_of(*state, DI_GRAMMAR_REGEX, expression), b;
    assert_int_equal(meet_a_limit(a.grammar), DI_ERR_LIMIT);
    assert_false(di_grammar_is_well(a.grammar));
    b = form_of(*state, DI_GRAMMAR_REGEX, expression);
    assert_ptr_not_equal(a.grammar, b.grammar);
    assert_true(di_grammar_is_well(b.grammar));
    di_form_fini(&a);
    a = form_of(*state, DI_GRAMMAR_REGEX, expression);
    assert_ptr_equal(a.grammar, b.grammar);
    di_form_fini(&a);
    di_form_fini(&b);
}

/* What is kept is bounded in bytes, too: large forms drive each other out. */
static void test_large_forms_are_not_kept_for_long(void **state)
{
    struct di_form first = {0}, other;
    struct di_buf text = {0};
    size_t bytes = 0;
    di_buf_adds(&text, "{\"const\":10,\"description\":\"");
    for (int k = 0; k < 4100; k++)
        di_buf_addf(&text, "%01000d", 0);
    di_buf_adds(&text, "\"}");
    for (int i = 0; i < 40; i++) {
        text.p[9] = (char)('1' + i / 10);
        text.p[10] = (char)('0' + i % 10);
        other = form_of(*state, DI_GRAMMAR_JSON, text.p);
        bytes += di_grammar_bytes(other.grammar);
        if (i == 0)
            first = di_form_hold(&other);
        di_form_fini(&other);
    }
    assert_true(bytes > (size_t)128 << 20);
    text.p[9] = '1', text.p[10] = '0';
    other = form_of(*state, DI_GRAMMAR_JSON, text.p);
    assert_ptr_not_equal(first.grammar, other.grammar);
    di_form_fini(&other);
    di_form_fini(&first);
    di_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_wishes_share_a_grammar),
        cmocka_unit_test(test_a_limit_is_met_once),
        cmocka_unit_test(test_large_forms_are_not_kept_for_long),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
