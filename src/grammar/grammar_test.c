/* not run under TSan: no threads */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static struct di_grammar *compile(enum di_grammar_kind kind, const char *text, const struct di_grammar_options *options)
{
    struct di_grammar *g;
    di_error err = {0};
    if (di_grammar_compile(kind, di_str_c(text), options, &g, &err) != DI_OK)
        fail_msg("%s: %s: %s", text, err.where, err.message);
    return g;
}

static bool matches(struct di_grammar *g, const char *text)
{
    struct di_matcher *m;
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    bool yes = di_matcher_accept_bytes(m, di_str_c(text), NULL) == DI_OK && di_matcher_is_accepting(m);
    di_matcher_destroy(m);
    return yes;
}

struct match_case {
    const char *grammar, *good[8], *bad[8];
};

static void check_cases(enum di_grammar_kind kind, const struct match_case *cases, size_t n, const struct di_grammar_options *options)
{
    for (size_t i = 0; i < n; i++) {
        struct di_grammar *g = compile(kind, cases[i].grammar, options);
        for (int k = 0; k < 8 && cases[i].good[k]; k++)
            if (!matches(g, cases[i].good[k]))
                fail_msg("%s must match %s", cases[i].grammar, cases[i].good[k]);
        for (int k = 0; k < 8 && cases[i].bad[k]; k++)
            if (matches(g, cases[i].bad[k]))
                fail_msg("%s must not match %s", cases[i].grammar, cases[i].bad[k]);
        di_grammar_unref(g);
    }
}
#define CHECK_CASES(kind, cases, options) check_cases(kind, cases, sizeof cases / sizeof *cases, options)

static void test_regex(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"abc", {"abc"}, {"ab", "abcd", ""}},
        {"a|bc*", {"a", "b", "bccc"}, {"ab", "c"}},
        {"(a|b){2,3}", {"ab", "bab"}, {"a", "abab"}},
        {"a{3}", {"aaa"}, {"aa", "aaaa"}},
        {"a{2,}b?", {"aa", "aaab"}, {"a", "ab"}},
        {"a{x}", {"a{x}"}, {"aa"}},
        {"[^a-c]", {"d", "\n", "\xC3\xA9"}, {"a", "dd"}},
        {".", {"x", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}, {"\n", "\xE2\x80\xA8", "\xE2\x82", ""}},
        {"\\d+\\.\\d", {"12.5"}, {"12.", "\xD9\xA1.1"}},
        {"\\w\\W\\s\\S", {"a- b"}, {"--  "}},
        {"\\p{Lu}\\p{Nd}*", {"A1", "\xC3\x89"}, {"a", "1"}},
        {"\\P{L}", {"1"}, {"x"}},
        {"[\\p{L}_]+", {"abc_\xC3\xA9"}, {"a1"}},
        {"\\u00e9\\x41\\u{1F600}\\ud83d\\ude00",
         {"\xC3\xA9"
          "A\xF0\x9F\x98\x80\xF0\x9F\x98\x80"},
         {"eA"}},
        {"^abc$", {"abc"}, {"xabc"}},
        {"^a|b$", {"a", "b"}, {"ab"}},
        {"(?:a(?<n>b))+?", {"ab", "abab"}, {"a"}},
        {"(?i:ab)c", {"ABc", "abc"}, {"abC"}},
        {"x*", {"", "xx"}, {"y"}},
        {"\\/\\.\\-[\\]\\-]", {"/.-]", "/.--"}, {"/.-a"}},
        {"(a*)*b", {"b", "aaab"}, {"a"}},
        {"(a{0,3}){0,3}", {"", "aaaaaaaaa"}, {"aaaaaaaaaa"}},
    };
    CHECK_CASES(DI_GRAMMAR_REGEX, cases, NULL);
}

static void test_refused_expressions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        di_status status;
        const char *message;
    } cases[] = {
        {"a(?=b)", DI_ERR_UNSUPPORTED, "lookahead"},
        {"(?<!a)b", DI_ERR_UNSUPPORTED, "lookbehind"},
        {"(a)\\1", DI_ERR_UNSUPPORTED, "backreference"},
        {"\\bword", DI_ERR_UNSUPPORTED, "word boundary"},
        {"\\p{Script=Greek}", DI_ERR_UNSUPPORTED, "general category"},
        {"a**", DI_ERR_INVALID, "repetition of a repetition"},
        {"(a", DI_ERR_INVALID, "group without an end"},
        {"a)", DI_ERR_INVALID, "closing parenthesis"},
        {"[a", DI_ERR_INVALID, "class without an end"},
        {"[b-a]", DI_ERR_INVALID, "range"},
        {"a{3,2}", DI_ERR_INVALID, "wrong way round"},
        {"a{1000000}", DI_ERR_LIMIT, "100,000"},
        {"a^b", DI_ERR_INVALID, "nothing matches"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_grammar *g;
        di_error err = {0};
        assert_int_equal(di_grammar_compile(DI_GRAMMAR_REGEX, di_str_c(cases[i].text), NULL, &g, &err), cases[i].status);
        assert_non_null(strstr(err.message, cases[i].message));
        assert_null(g);
    }
}

static void test_choice(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"[\"yes\",\"no\",\"yesterday\",\"\"]", {"yes", "no", "yesterday", ""}, {"ye", "yesno"}},
        {"[\"a\\\"b\"]", {"a\"b"}, {"ab"}},
    };
    CHECK_CASES(DI_GRAMMAR_CHOICE, cases, NULL);
}

static void test_schema(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"true", {"1", " {\"a\" : [ 1 , null ] } ", "\"x\"", "-0.5e+3"}, {"", "{,}", "01", "[1,]", "nul", "1 2", "\"\x01\""}},
        {"{\"type\":\"integer\"}", {"1", "-7", "1.0", "1e3", "1.5e1", "0"}, {"1.5", "1e-1", "1.25e1", "\"1\""}},
        {"{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"type\":\"integer\"}", {"1"}, {"1.0", "1e3"}},
        {"{\"minimum\":-5,\"exclusiveMaximum\":12.5}",
         {"-5", "12.4999", "12", "1.2e1", "-5.0", "9e-3", "null"},
         {"-5.01", "12.5", "13", "100", "1.25e1"}},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":65535}", {"0", "65535", "9999", "-0"}, {"65536", "-1", "70000", "655350", "7e4"}},
        {"{\"multipleOf\":0.25,\"type\":\"number\"}", {"0.5", "1", "7.75", "0.250"}, {"0.3", "0.125"}},
        {"{\"multipleOf\":100,\"type\":\"number\"}", {"100", "0", "1200"}, {"150"}},
        {"{\"enum\":[1,\"a\",null,[1,{\"b\":2}],{\"x\":1}]}",
         {"1", "1.0", "\"a\"", "\"\\u0061\"", "null", "[1,{\"b\":2.0}]", "{\"x\":1}"},
         {"2", "\"b\"", "[1]", "[1,{\"b\":2},3]", "{}", "{\"x\":1,\"y\":1}"}},
        {"{\"const\":-0.5}", {"-0.5", "-0.50", "-5e-1"}, {"0.5", "-5"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xC3\xA9\xF0\x9F\x98\x80x\"", "\"\\n\\u00e9\\ud83d\\ude00\""},
         {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\"", "\"\\udc00a\""}},
        {"{\"pattern\":\"^a[0-9]+$\"}", {"\"a1\"", "5", "\"\\u0061\\u0031\""}, {"\"a\"", "\"ba1\"", "\"\\u0062\""}},
        {"{\"pattern\":\"b\"}", {"\"abc\"", "\"b\""}, {"\"ac\""}},
        {"{\"format\":\"date\"}", {"\"2024-02-29\"", "\"2023-12-31\""}, {"\"2023-02-29\"", "\"2023-13-01\"", "\"1900-02-29\""}},
        {"{\"format\":\"ipv4\"}", {"\"1.2.3.255\""}, {"\"1.2.3.256\"", "\"1.2.3\"", "\"01.2.3.4\""}},
        {"{\"format\":\"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567e89b12d3a456426614174000\""}},
        {"{\"format\":\"ipv6\"}", {"\"::1\"", "\"2001:db8::1.2.3.4\""}, {"\"1::2::3\"", "\"12345::\""}},
    };
    CHECK_CASES(DI_GRAMMAR_JSON, cases, NULL);
}

static void test_objects_and_arrays(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"],"
         "\"additionalProperties\":false}",
         {"{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{ \"a\" : 1 , \"b\" : \"\" }", "{\"\\u0061\":1}"},
         {"{}", "{\"b\":\"\"}", "{\"a\":1,\"a\":2}", "{\"a\":1,\"c\":2}", "{\"a\":\"1\"}", "{\"a\":1,}"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
         {"{\"x\":1,\"y\":2}", "{}"},
         {"{\"x\":1,\"x\":2}", "{\"x\":\"\"}", "{\"x\":1,\"\\u0078\":2}"}},
        {"{\"patternProperties\":{\"^s\":{\"type\":\"string\"},\"n$\":{\"minLength\":2}},\"additionalProperties\":false}",
         {"{\"s\":\"\",\"sn\":\"ab\"}", "{\"n\":3}"},
         {"{\"sn\":\"a\"}", "{\"s\":1}", "{\"x\":1}"}},
        {"{\"propertyNames\":{\"maxLength\":2},\"minProperties\":1,\"maxProperties\":2}",
         {"{\"ab\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"abc\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {"{\"dependentRequired\":{\"a\":[\"b\"]},\"dependentSchemas\":{\"c\":{\"required\":[\"d\"]}}}",
         {"{\"a\":1,\"b\":1}", "{\"b\":1}", "{\"d\":1,\"c\":1}"},
         {"{\"a\":1}", "{\"c\":1}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}",
         {"[1]", "[1, 2]"},
         {"[]", "[1,2,3]", "[\"\"]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
         {"[]", "[1]", "[1,\"\"]"},
         {"[\"\"]", "[1,\"\",2]"}},
        {"{\"contains\":{\"type\":\"string\"},\"minContains\":1,\"maxContains\":2}",
         {"[\"\"]", "[1,\"\",\"\"]"},
         {"[1]", "[]", "[\"\",\"\",\"\"]"}},
        {"{\"uniqueItems\":true}",
         {"[1,2]", "[[1],[2]]", "[{\"a\":1,\"b\":2}]"},
         {"[1,1.0]", "[\"a\",\"\\u0061\"]", "[{\"a\":1,\"b\":2},{\"b\":2,\"a\":1}]"}},
    };
    CHECK_CASES(DI_GRAMMAR_JSON, cases, NULL);
}

static void test_applicators(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"{\"allOf\":[{\"minimum\":2},{\"maximum\":4}],\"type\":\"integer\"}", {"2", "4"}, {"1", "5"}},
        {"{\"oneOf\":[{\"minimum\":2},{\"maximum\":4}],\"type\":\"integer\"}", {"1", "5"}, {"2", "3"}},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"minimum\":2}]}", {"\"\"", "2", "null"}, {"1"}},
        {"{\"not\":{\"type\":\"string\"}}", {"1", "{}"}, {"\"\""}},
        {"{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"ab\"]}}", {"\"\"", "\"b\"", "\"abc\""}, {"\"a\"", "\"ab\""}},
        {"{\"if\":{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},\"then\":{\"required\":[\"x\"]},\"else\":{\"required\":["
         "\"y\"]}}",
         {"{\"k\":1,\"x\":0}", "{\"k\":2,\"y\":0}", "{\"y\":0}"},
         {"{\"k\":1,\"y\":0}", "{\"k\":2,\"x\":0}", "{}"}},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"v\":{\"type\":\"integer\"}},\"required\":[\"k\"]},"
         "{\"properties\":{\"k\":{\"const\":\"b\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\"]}]}",
         {"{\"k\":\"a\",\"v\":1}", "{\"v\":\"\",\"k\":\"b\"}", "{\"k\":\"b\"}"},
         {"{\"k\":\"b\",\"v\":1}", "{\"v\":\"\",\"k\":\"a\"}", "{\"v\":1}", "{\"k\":\"c\"}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":true}}],\"properties\":{\"b\":true},\"unevaluatedProperties\":false}",
         {"{\"a\":1,\"b\":2}", "{}"},
         {"{\"c\":1}"}},
        {"{\"anyOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{\"b\":true}}],\"unevaluatedProperties\":"
         "false}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}", "{\"b\":2}"},
         {"{\"a\":2}", "{\"c\":2}"}},
        {"{\"prefixItems\":[{\"const\":1}],\"unevaluatedItems\":{\"type\":\"string\"}}", {"[1,\"\"]", "[]"}, {"[1,2]"}},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"properties\":{\"next\":{\"$ref\":\"#/$defs/t\"}},\"additionalProperties\":false}}}",
         {"{\"next\":{\"next\":{}}}"},
         {"{\"next\":{\"prev\":{}}}"}},
        {"{\"$id\":\"http://x/"
         "a.json\",\"$ref\":\"b.json#n\",\"$defs\":{\"b\":{\"$id\":\"b.json\",\"$defs\":{\"n\":{\"$anchor\":\"n\",\"type\":\"null\"}}}}}",
         {"null"},
         {"1"}},
        {"{\"$id\":\"http://x/"
         "strict\",\"$dynamicAnchor\":\"n\",\"$ref\":\"tree\",\"unevaluatedProperties\":false,\"$defs\":{\"t\":{\"$id\":\"tree\","
         "\"$dynamicAnchor\":\"n\",\"type\":\"object\",\"properties\":{\"d\":true,\"c\":{\"type\":\"array\",\"items\":{\"$dynamicRef\":\"#"
         "n\"}}}}}}",
         {"{\"c\":[{\"d\":1}]}"},
         {"{\"c\":[{\"e\":1}]}", "{\"e\":1}"}},
    };
    CHECK_CASES(DI_GRAMMAR_JSON, cases, NULL);
}

/* What a branch evaluates counts only if the branch holds, also when the branch was met before the schema that asks. */
static void test_unevaluated_properties_of_failed_branches(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"{\"allOf\":[{\"anyOf\":[{\"$ref\":\"#/$defs/x\"},{\"properties\":{\"b\":true}}]},{\"anyOf\":[{\"$ref\":\"#/$defs/x\"},{"
         "\"properties\":{\"b\":true}}],\"unevaluatedProperties\":false}],\"$defs\":{\"x\":{\"properties\":{\"a\":{\"type\":\"string\"}}"
         "}}}",
         {"{\"a\":\"1\"}", "{\"b\":1}"},
         {"{\"a\":1}"}},
        {"{\"unevaluatedProperties\":false,\"anyOf\":[{\"properties\":{\"a\":{\"const\":1},\"b\":false}},{\"properties\":{\"b\":true}}]}",
         {"{\"a\":1}", "{\"b\":1}"},
         {"{\"a\":1,\"b\":1}", "{\"b\":1,\"a\":1}"}},
    };
    CHECK_CASES(DI_GRAMMAR_JSON, cases, NULL);
}

/* Which branches may still hold is no table of all their subsets. */
static void test_one_of_many_objects_stays_small(void **state)
{
    (void)state;
    struct di_buf schema = {0};
    struct di_grammar_options options = {.limits = {.formula_nodes = 20000}};
    di_buf_adds(&schema, "{\"additionalProperties\":{\"oneOf\":[");
    for (int i = 0; i < 40; i++)
        di_buf_addf(&schema,
                    "%s{\"type\":\"object\",\"required\":[\"kind\"],\"properties\":{\"kind\":{\"enum\":[\"k%d\"]},\"v\":{\"type\":\"%s\"},"
                    "\"w%d\":{\"multipleOf\":0.5}},\"additionalProperties\":{\"type\":\"boolean\"}}",
                    i ? "," : "", i, i % 2 ? "string" : "integer", i % 7);
    di_buf_adds(&schema, "]}}");
    struct di_grammar *g = compile(DI_GRAMMAR_JSON, schema.p, &options);
    assert_true(matches(g, "{\"a\":{\"v\":\"x\",\"t\":true,\"w3\":1.5,\"kind\":\"k3\"},\"b\":{\"kind\":\"k38\",\"v\":1}}"));
    assert_false(matches(g, "{\"a\":{\"v\":\"x\",\"w3\":1.5,\"kind\":\"k4\"}}"));
    assert_false(matches(g, "{\"a\":{\"v\":\"x\",\"w3\":1.2,\"kind\":\"k3\"}}"));
    di_grammar_unref(g);
    di_buf_fini(&schema);
}

static void test_order_and_white_space(void **state)
{
    (void)state;
    static const char schema[] = "{\"properties\":{\"b\":true,\"a\":true},\"required\":[\"b\"]}";
    static const struct match_case declared[] = {{schema,
                                                  {"{\"b\":1,\"a\":2}", "{\"b\":1,\"c\":3}", "{\"b\": 1}"},
                                                  {"{\"a\":1,\"b\":2}", "{\"c\":1,\"b\":2}", "{\"b\":1,\"c\":3,\"a\":2}"}}},
                                   compact[] = {{schema,
                                                 {"{\"b\":1,\"a\":2}", "{\"a\":1,\"b\":\" \"}"},
                                                 {"{\"b\": 1}", "{\"b\":1} ", "{ \"b\":1}"}}},
                                   strict[] = {{schema, {"{\"a\":1,\"b\":2}"}, {"{\"b\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}}};
    CHECK_CASES(DI_GRAMMAR_JSON, declared, &(struct di_grammar_options){.declared = true});
    CHECK_CASES(DI_GRAMMAR_JSON, compact, &(struct di_grammar_options){.compact = true});
    CHECK_CASES(DI_GRAMMAR_JSON, strict, &(struct di_grammar_options){.strict = true});
}

static void test_refused_schemas(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        di_status status;
        const char *where;
    } cases[] = {
        {"{\"properties\":{\"a\":{\"type\":\"strin\"}}}", DI_ERR_INVALID, "/properties/a/type"},
        {"{\"items\":{\"pattern\":\"(?=a)\"}}", DI_ERR_UNSUPPORTED, "/items/pattern"},
        {"{\"anyOf\":[{},{\"$ref\":\"#/$defs/x\"}]}", DI_ERR_INVALID, "/anyOf/1/$ref"},
        {"{\"$ref\":\"http://elsewhere/x\"}", DI_ERR_UNSUPPORTED, "/$ref"},
        {"{\"multipleOf\":5000000000}", DI_ERR_UNSUPPORTED, "/multipleOf"},
        {"{\"minLength\":-1}", DI_ERR_INVALID, "/minLength"},
        {"{\"required\":true}", DI_ERR_INVALID, "/required"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", DI_ERR_INVALID, "/"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", DI_ERR_INVALID, "/"},
        {"{\"$defs\":{\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/a\"}]}},\"$ref\":\"#/$defs/a\"}", DI_ERR_LIMIT, ""},
        {"[]", DI_ERR_INVALID, "/"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,\"minProperties\":3}", DI_ERR_INVALID,
         "/"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_grammar *g;
        di_error err = {0};
        if (di_grammar_compile(DI_GRAMMAR_JSON, di_str_c(cases[i].text), NULL, &g, &err) != cases[i].status ||
            strcmp(err.where, cases[i].where) != 0)
            fail_msg("%s: %d at %s: %s", cases[i].text, err.code, err.where, err.message);
    }
}

static void test_ebnf(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= [a-z] ws | num | \"(\" ws expr \")\" ws\n"
         "num ::= [0-9]+ ws # digits\nws ::= [ \\t\\n]*",
         {"(a+1)*b= 3\n", "a=b\nc=1\n"},
         {"a=", "((a)=b\n", ""}},
        {"root ::= \"a\" root \"b\" | \"\"", {"", "aabb"}, {"aab", "ba"}},
        {"root ::= root \"a\" | \"b\"", {"b", "baaa"}, {"", "a"}},
        {"root ::= item root | item\nitem ::= \"x\" item | \"y\"", {"y", "xxyy"}, {"x", ""}},
        {"root ::= a a a\na ::= \"\" | \"x\" a", {"", "xxxxx"}, {"y"}},
        {"root ::= x{2,3} [^a-c\\]]\nx ::= \"x\" | \"(\" root \")\"", {"xxd", "x(xxd)e"}, {"xd", "xxa", "xxxxd"}},
        {"root ::= e\ne ::= e \"+\" e | \"1\"", {"1", "1+1+1+1+1+1"}, {"1+", "+"}},
    };
    CHECK_CASES(DI_GRAMMAR_GBNF, cases, NULL);
}

/* A text that may come can be completed: ways into rules that never end do not exist. */
static void test_no_ways_into_endless_rules(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"root ::= \"a\" root | \"b\" x | \"c\"\nx ::= \"d\" x", {"c", "aac"}, {"b", "bd"}},
    };
    CHECK_CASES(DI_GRAMMAR_GBNF, cases, NULL);
    struct di_grammar *g = compile(DI_GRAMMAR_GBNF, cases[0].grammar, NULL);
    struct di_matcher *m;
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("b"), NULL), DI_ERR_INVALID);
    di_matcher_destroy(m);
    di_grammar_unref(g);
}

/* Large grammars compile, or are refused, in about their own size of time and memory. */
static void test_large_grammars_are_bounded(void **state)
{
    (void)state;
    struct di_buf text = {0};
    struct di_grammar *g;
    di_error err = {0};
    di_buf_adds(&text, "x");
    for (uint32_t i = 0; i < 20000; i++) /* lists of alternatives */
        di_buf_addf(&text, "|%cb%uc%u", 'a' + (int)(i % 26), i * 2654435761u % 100000, i);
    g = compile(DI_GRAMMAR_REGEX, text.p, NULL);
    assert_true(matches(g, "ab0c0"));
    assert_true(di_grammar_bytes(g) < (size_t)64 << 20);
    di_grammar_unref(g);
    di_buf_clear(&text);
    di_buf_adds(&text, "root ::= r0\nr2900 ::= \"z\"\n"); /* rules that may be empty if the next one is */
    for (int i = 0; i < 2900; i++)
        di_buf_addf(&text, "r%d ::= \"a\" r%d? | \"b\" r%d\n", i, i + 1, i + 1);
    g = compile(DI_GRAMMAR_GBNF, text.p, NULL);
    assert_true(matches(g, "ababa"));
    di_grammar_unref(g);
    di_buf_clear(&text);
    di_buf_adds(&text, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"a20000\":{}"); /* references to one of many */
    for (int i = 0; i < 20000; i++)
        di_buf_addf(&text, ",\"a%d\":{\"required\":[\"x\"],\"properties\":{\"x\":{\"$ref\":\"#/$defs/a%d\"}},\"type\":\"object\"}", i,
                    i + 1);
    di_buf_adds(&text, "}}");
    assert_int_equal(di_grammar_compile(DI_GRAMMAR_JSON, di_buf_str(&text), NULL, &g, &err), DI_ERR_LIMIT);
    assert_non_null(strstr(err.message, "300 values inside each other"));
    di_buf_clear(&text);
    di_buf_adds(&text,
                "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"a60\":false"); /* each needs the next one in two ways, and the last does not exist */
    for (int i = 0; i < 60; i++)
        di_buf_addf(&text,
                    ",\"a%d\":{\"type\":[\"object\",\"array\"],\"required\":[\"x\"],\"properties\":{\"x\":{\"$ref\":\"#/$defs/a%d\"}},"
                    "\"minItems\":1,\"items\":{\"$ref\":\"#/$defs/a%d\"}}",
                    i, i + 1, (i + 1) % 60);
    di_buf_adds(&text, "}}");
    assert_int_equal(di_grammar_compile(DI_GRAMMAR_JSON, di_buf_str(&text), NULL, &g, &err), DI_ERR_INVALID);
    di_buf_fini(&text);
}

/* In declared order no name that a schema knows comes behind a free one: so a free one must wait for what a branch asks for. */
static void test_declared_order_has_no_dead_ends(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
        "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}},\"dependentRequired\":{\"a\":[\"b\"]}}",
        "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}},\"additionalProperties\":false,\"minProperties\":2}"};
    static const char *const beginnings[] = {"{\"x", "{\"a", "{\"a"};
    for (size_t i = 0; i < 3; i++) {
        struct di_grammar *g = compile(DI_GRAMMAR_JSON, schemas[i], &(struct di_grammar_options){.declared = true});
        struct di_matcher *m;
        assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
        struct di_buf text = {0};
        di_buf_addf(&text, "%s\":1", beginnings[i]);
        assert_int_equal(di_matcher_accept_bytes(m, di_buf_str(&text), NULL), DI_ERR_INVALID);
        di_buf_fini(&text);
        di_matcher_destroy(m);
        di_grammar_unref(g);
    }
    struct di_grammar *g = compile(DI_GRAMMAR_JSON, schemas[0], NULL);
    struct di_matcher *m;
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("{\"x\":1"), NULL), DI_OK);
    size_t far = di_matcher_distance(m); /* ,"a":0} at least */
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR(",\"b\":0"), NULL), DI_OK);
    assert_true(di_matcher_distance(m) + 4 < far && far < 20);
    di_matcher_destroy(m);
    di_grammar_unref(g);
}

static void test_lark(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"start: expr\n?expr: expr \"+\" term -> add\n    | term\nterm: NUMBER | \"(\" expr \")\" | %json {\"const\": {\"a\": 1}}\n"
         "%import common.NUMBER\n%import common.WS\n%ignore WS // blanks\n",
         {"1 + (2+3.5)", "{\"a\":1} + 4", " ((((1))))+1 "},
         {"1+", "{\"a\":2}", "1 2"}},
        {"start: (\"A\"i | /b[0-9]/)~2 [END]\nEND: \"x\"..\"z\" \"!\"+\n", {"aA", "Ab3", "b1b2y!!"}, {"a", "aaa", "b1b2y", "aaw!"}},
    };
    CHECK_CASES(DI_GRAMMAR_LARK, cases, NULL);
}

static void test_structural(void **state)
{
    (void)state;
    static const struct match_case cases[] = {
        {"{\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"type\":\"object\",\"required\":[\"x\"]},\"end\":\"</"
         "f>\"}],\"triggers\":[\"<f\"]}",
         {"", "hello", "hi <f>{\"x\":1}</f> and <f>{\"x\":2}</f>", "a<g"},
         {"<f>{}</f>", "a<f", "<f>{\"x\":1}"}},
        {"{\"type\":\"structural_tag\",\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"const_string\",\"value\":\"k=\"},{"
         "\"type\":\"or\",\"elements\":["
         "{\"type\":\"regex\",\"pattern\":\"[0-9]+\"},{\"type\":\"tag\",\"begin\":\"<\",\"content\":{\"type\":\"any_text\"},\"end\":\">\"}]"
         "}]}}",
         {"k=12", "k=<a b>"},
         {"k=", "k=<a", "k=<a>b>"}},
        {"{\"format\":{\"type\":\"tags_with_separator\",\"separator\":\",\",\"tags\":[{\"begin\":\"a\",\"content\":{\"type\":\"json_"
         "schema\",\"json_schema\":"
         "{\"type\":\"null\"}},\"end\":\"b\"}]}}",
         {"", "anullb", "anullb,anullb"},
         {"anullb,", ","}},
    };
    CHECK_CASES(DI_GRAMMAR_STRUCTURAL, cases, NULL);
}

static void test_refused_grammars(void **state)
{
    (void)state;
    static const struct {
        enum di_grammar_kind kind;
        const char *text;
        di_status status;
        const char *where;
    } cases[] = {
        {DI_GRAMMAR_GBNF, "root ::= x", DI_ERR_INVALID, "line 1"},
        {DI_GRAMMAR_GBNF, "a ::= \"x\"", DI_ERR_INVALID, "line 0"},
        {DI_GRAMMAR_EBNF, "root ::= \"a\" (= \"b\")", DI_ERR_UNSUPPORTED, "line 1"},
        {DI_GRAMMAR_EBNF, "root ::= \"a\"\n\n ::=", DI_ERR_INVALID, "line 3"},
        {DI_GRAMMAR_GBNF, "root ::= root", DI_ERR_INVALID, ""},
        {DI_GRAMMAR_GBNF, "root ::= \"a\" root | \"b\" x\nx ::= \"c\" x", DI_ERR_INVALID, ""},
        {DI_GRAMMAR_LARK, "start: \"ab\"..\"c\"", DI_ERR_INVALID, "line 1"},
        {DI_GRAMMAR_LARK, "start: /a(?=b)/", DI_ERR_UNSUPPORTED, "line 1"},
        {DI_GRAMMAR_LARK, "start: A\n%declare A", DI_ERR_UNSUPPORTED, "line 2"},
        {DI_GRAMMAR_LARK, "start[stop=\"x\"]: \"a\"", DI_ERR_UNSUPPORTED, "line 1"},
        {DI_GRAMMAR_STRUCTURAL, "{\"format\":{\"type\":\"qwen\"}}", DI_ERR_UNSUPPORTED, "format"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_grammar *g;
        di_error err = {0};
        if (di_grammar_compile(cases[i].kind, di_str_c(cases[i].text), NULL, &g, &err) != cases[i].status ||
            strcmp(err.where, cases[i].where) != 0)
            fail_msg("%s: %d at %s: %s", cases[i].text, err.code, err.where, err.message);
    }
}

/* ---- masks ---- */

static const char *const pieces[] = {
    "",         "a",     "b",    "ab",   "abc",  "\"",     "\":",          "{",
    "{\"",      "}",     "[",    "]",    ",",    ",\"",    "\",\"",        " ",
    "\n",       "1",     "12",   "123",  "0",    "-",      ".5",           "e1",
    "true",     "null",  "\\",   "\\n",  "\\u0", "0061",   "\xC3",         "\xA9",
    "\xC3\xA9", "a\"",   "b\"}", "\"}}", "\"a",  "\"a\":", "{\"a\":1",     "1,\"b\"",
    "x\",",     "\":\"", "]}",   "ff",   "tr",   "ue}",    "\xE2\x82\xAC", "long text of many characters here"};
#define N_PIECES (sizeof pieces / sizeof *pieces)

/* Many words behind one letter, as vocabularies have them: of four kinds, each with all of up to five further characters of two kinds. */
#define WORDS_OF_ONE 63
enum { N_TOKENS = N_PIECES + 4 * WORDS_OF_ONE };
static struct di_str tokens[N_TOKENS];

static void make_tokens(void)
{
    static const char *const first[] = {"a", "1", "\xC3\xA9", "-"}, *const next[][2] = {{"a", "b"},
                                                                                        {"0", "2"},
                                                                                        {"\xC3\xA9", "\xE2\x80\xA8"},
                                                                                        {" ", "\xE2\x82"}};
    static char words[4 * WORDS_OF_ONE][24];
    for (size_t i = 0; i < N_PIECES; i++)
        tokens[i] = di_str_c(pieces[i]);
    for (unsigned i = 0; i < 4 * WORDS_OF_ONE; i++) {
        strcpy(words[i], first[i / WORDS_OF_ONE]);
        for (unsigned bits = i % WORDS_OF_ONE + 1; bits > 1; bits /= 2)
            strcat(words[i], next[i / WORDS_OF_ONE][bits & 1]);
        tokens[N_PIECES + i] = di_str_c(words[i]);
    }
}

static uint32_t next_random(uint32_t *r)
{
    *r = *r * 1664525 + 1013904223;
    return *r >> 8;
}

/* Along random texts, every mask must be what accepting each token says. */
static void check_masks(enum di_grammar_kind kind, const char *text, const struct di_vocabulary *v)
{
    struct di_grammar *g = compile(kind, text, NULL);
    uint32_t mask[(N_TOKENS + 31) / 32], r = 1;
    for (int round = 0; round < 30; round++) {
        struct di_matcher *m, *fork;
        struct di_buf so_far = {0};
        assert_int_equal(di_matcher_create(g, v, &m, NULL), DI_OK);
        for (int step = 0; step < 25; step++) {
            uint32_t allowed[N_TOKENS];
            size_t n = 0;
            assert_int_equal(di_matcher_mask(m, mask, NULL), DI_OK);
            assert_int_equal(di_matcher_fork(m, &fork, NULL), DI_OK);
            for (uint32_t id = 0; id < N_TOKENS; id++) {
                bool yes = di_matcher_accept_token(fork, (int32_t)id, NULL) == DI_OK;
                if (yes)
                    assert_true(di_matcher_rollback(fork, 1));
                if (yes != (mask[id / 32] >> id % 32 & 1))
                    fail_msg("%s: behind %s the mask is wrong about token %s", text, so_far.n ? so_far.p : "", tokens[id].p);
                if (yes)
                    allowed[n++] = id;
            }
            di_matcher_destroy(fork);
            if (!n)
                break;
            uint32_t id = allowed[next_random(&r) % n];
            assert_int_equal(di_matcher_accept_token(m, (int32_t)id, NULL), DI_OK);
            di_buf_addv(&so_far, tokens[id]);
        }
        di_buf_fini(&so_far);
        di_matcher_destroy(m);
    }
    di_grammar_unref(g);
}

static void test_masks_are_what_accepting_says(void **state)
{
    (void)state;
    static const struct {
        enum di_grammar_kind kind;
        const char *text;
    } cases[] = {
        {DI_GRAMMAR_REGEX, "[a-c]+\"?(12|a)*"},
        {DI_GRAMMAR_REGEX, ".*"},
        {DI_GRAMMAR_CHOICE, "[\"abc\",\"ab\",\"12\"]"},
        {DI_GRAMMAR_JSON, "true"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\"}"},
        {DI_GRAMMAR_JSON,
         "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"maximum\":12},\"ab\":{\"type\":\"string\"}}}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"properties\":{\"a\":{\"maximum\":12},\"b\":{\"type\":\"string\",\"maxLength\":3}},"
                          "\"additionalProperties\":false,\"required\":[\"b\"]}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":2}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"b\"}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^.*$\"}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^x?.+$\",\"maxLength\":9}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^[a-z0-9-]+$\",\"minLength\":1,\"maxLength\":12}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^[a-z0-9-]+1$\",\"minLength\":1,\"maxLength\":300}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^a[^1]{2,90}$\"}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"minLength\":2}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^[^1b]\"}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"patternProperties\":{\"^a\":false}}"},
        {DI_GRAMMAR_JSON, "{\"items\":{\"type\":\"integer\",\"minimum\":5,\"maximum\":1200},\"type\":\"array\"}"},
        {DI_GRAMMAR_JSON, "{\"items\":{\"type\":\"number\"},\"type\":\"array\",\"uniqueItems\":true}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"number\",\"multipleOf\":0.5}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\".*b\":false}}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"patternProperties\":{\"^.*$\":{\"type\":\"integer\"}},\"additionalProperties\":false}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-b]+$\"},\"properties\":{\"a1\":{},\"aab\":{}}}"},
        {DI_GRAMMAR_JSON,
         "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[^1]*a\"},{\"type\":\"string\",\"pattern\":\"^1+$\"},{\"items\":{}}]}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",1,12]}}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}"},
        {DI_GRAMMAR_JSON, "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"}},\"additionalProperties\":false}"},
        {DI_GRAMMAR_JSON, "{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"a\"},{\"type\":\"string\",\"pattern\":\"b\"}]}"},
    };
    static const char numbers[] = "root ::= list\nlist ::= [a-c]+ | \"{\" list \"}\" | list \",\" list";
    static const char lark[] = "start: %json {\"items\": {\"type\": \"integer\"}} \"a\"* (\"b\" start)?";
    struct di_vocabulary *v;
    make_tokens();
    assert_int_equal(di_vocabulary_create(tokens, N_TOKENS, &v, NULL), DI_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_masks(cases[i].kind, cases[i].text, v);
    check_masks(DI_GRAMMAR_GBNF, numbers, v);
    check_masks(DI_GRAMMAR_LARK, lark, v);
    check_masks(DI_GRAMMAR_STRUCTURAL, "{\"structures\":[{\"begin\":\"{a\",\"schema\":true,\"end\":\"}\"}],\"triggers\":[\"{\"]}", v);
    di_vocabulary_destroy(v);
}

static void test_rollback_forced_and_distance(void **state)
{
    (void)state;
    struct di_grammar *g = compile(
        DI_GRAMMAR_JSON,
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"integer\"}},\"required\":[\"name\"],\"additionalProperties\":false}",
        &(struct di_grammar_options){.compact = true});
    struct di_matcher *m;
    struct di_buf out = {0};
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    assert_int_equal(di_matcher_distance(m), 10);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("{"), NULL), DI_OK);
    assert_int_equal(di_matcher_forced(m, 100, &out, NULL), DI_OK);
    assert_string_equal(out.p, "\""); /* a letter may be spelled as an escape, so no more is forced */
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("\"name\":1"), NULL), DI_OK);
    assert_int_equal(di_matcher_distance(m), 1);
    assert_false(di_matcher_is_accepting(m));
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("x"), NULL), DI_ERR_INVALID);
    assert_int_equal(di_matcher_steps(m), 2);
    assert_true(di_matcher_rollback(m, 1));
    assert_false(di_matcher_rollback(m, 2));
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("\"name\":23}"), NULL), DI_OK);
    assert_true(di_matcher_is_accepting(m));
    assert_int_equal(di_matcher_distance(m), 0);
    di_buf_fini(&out);
    di_matcher_destroy(m);
    di_grammar_unref(g);
}

/* Items that are alike are counted at once, however many there must be. */
static void test_distance_of_many_items(void **state)
{
    (void)state;
    struct di_grammar *g =
        compile(DI_GRAMMAR_JSON,
                "{\"type\":\"array\",\"prefixItems\":[{\"const\":12345}],\"items\":{\"type\":\"integer\"},\"minItems\":2000000000}", NULL);
    struct di_matcher *m;
    clock_t start = clock();
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    assert_true(di_matcher_distance(m) > 3999999990u);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("[12345,7"), NULL), DI_OK);
    assert_true(di_matcher_distance(m) > 3999999900u);
    assert_true(clock() - start < CLOCKS_PER_SEC);
    di_matcher_destroy(m);
    di_grammar_unref(g);
}

/* What was taken can always go on: no escape inside a character, no half of a pair without the other. */
static void test_no_dead_ends_in_strings(void **state)
{
    (void)state;
    static const char *const schemas[] = {"{\"type\":\"string\"}", "{\"type\":\"string\",\"pattern\":\"^.*$\"}"}, *const bad[] = {
                                                                                                                      "\"\xC3\\",
                                                                                                                      "\"\xC3\"",
                                                                                                                      "\"\\ud83dx",
                                                                                                                      "\"\\udc"};
    for (size_t i = 0; i < 2; i++) {
        struct di_grammar *g = compile(DI_GRAMMAR_JSON, schemas[i], NULL);
        struct di_matcher *m;
        assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
        for (size_t k = 0; k < 4; k++)
            assert_int_equal(di_matcher_accept_bytes(m, di_str_c(bad[k]), NULL), DI_ERR_INVALID);
        di_matcher_destroy(m);
        di_grammar_unref(g);
    }
}

/* States are given back while a matcher goes on. */
static void test_old_states_are_collected(void **state)
{
    (void)state;
    struct di_grammar *g = compile(DI_GRAMMAR_JSON, "{\"items\":{\"type\":\"object\",\"additionalProperties\":{\"uniqueItems\":true}}}",
                                   &(struct di_grammar_options){.limits = {.states = 3000}});
    struct di_matcher *m;
    di_error err = {0};
    char item[64];
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("[{}"), NULL), DI_OK);
    for (int i = 0; i < 900; i++) {
        snprintf(item, sizeof item, ",{\"key%d\":[%d,1.5,\"a\"]}", i, i);
        if (di_matcher_accept_bytes(m, di_str_c(item), &err) != DI_OK)
            fail_msg("%d: %s", i, err.message);
    }
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR(",{\"k\":[1,1.0"), NULL), DI_OK);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("]"), NULL), DI_ERR_INVALID);
    di_matcher_destroy(m);
    di_grammar_unref(g);
}

/* What was decided holds no states, however long the text. */
static void test_forgotten_steps_hold_no_states(void **state)
{
    (void)state;
    struct di_grammar *g = compile(DI_GRAMMAR_JSON, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":10000}",
                                   &(struct di_grammar_options){.limits = {.states = 1000}});
    struct di_matcher *m;
    assert_int_equal(di_matcher_create(g, NULL, &m, NULL), DI_OK);
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("[1"), NULL), DI_OK);
    for (int i = 0; i < 3000; i++) {
        assert_int_equal(di_matcher_accept_bytes(m, DI_STR(","), NULL), DI_OK);
        assert_int_equal(di_matcher_accept_bytes(m, DI_STR("1"), NULL), DI_OK);
        di_matcher_forget(m, 3);
    }
    assert_int_equal(di_matcher_steps(m), 3);
    assert_false(di_matcher_rollback(m, 4));
    assert_true(di_matcher_rollback(m, 3)); /* to behind a comma */
    assert_int_equal(di_matcher_accept_bytes(m, DI_STR("12]"), NULL), DI_OK);
    assert_true(di_matcher_is_accepting(m));
    assert_true(di_grammar_is_well(g));
    di_matcher_destroy(m);
    di_grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_refused_expressions),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_objects_and_arrays),
        cmocka_unit_test(test_applicators),
        cmocka_unit_test(test_unevaluated_properties_of_failed_branches),
        cmocka_unit_test(test_one_of_many_objects_stays_small),
        cmocka_unit_test(test_order_and_white_space),
        cmocka_unit_test(test_refused_schemas),
        cmocka_unit_test(test_ebnf),
        cmocka_unit_test(test_no_ways_into_endless_rules),
        cmocka_unit_test(test_large_grammars_are_bounded),
        cmocka_unit_test(test_declared_order_has_no_dead_ends),
        cmocka_unit_test(test_lark),
        cmocka_unit_test(test_structural),
        cmocka_unit_test(test_refused_grammars),
        cmocka_unit_test(test_masks_are_what_accepting_says),
        cmocka_unit_test(test_rollback_forced_and_distance),
        cmocka_unit_test(test_distance_of_many_items),
        cmocka_unit_test(test_no_dead_ends_in_strings),
        cmocka_unit_test(test_old_states_are_collected),
        cmocka_unit_test(test_forgotten_steps_hold_no_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
