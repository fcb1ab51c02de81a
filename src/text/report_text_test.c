/* not run under TSan: no threads */
/* Failures that people reported of other engines' text side, each as a test of its number (docs/reports.md). */
#include "text/chat.h"
#include "text/message.h"
#include "text/tokenizer.h"

#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define BAR "\xEF\xBD\x9C"
#define DSML BAR "DSML" BAR

/* ---------------------------------------------------------------- parsing in pieces */

struct heard {
    struct di_message message;
    size_t events;
};

static void hear(void *arg, const struct di_parse_event *e)
{
    struct heard *h = arg;
    assert_true(di_utf8_valid(e->text, NULL)); /* whole characters in every event */
    h->events++;
    di_message_add(&h->message, e);
}

/* `text`, matched by spelling, cut at `cut` and then every `step` bytes (0: not). */
static struct heard parse(struct di_parser_settings s, const char *text, size_t cut, size_t step)
{
    struct heard h = {0};
    struct di_parser *p;
    size_t n = strlen(text);
    s.spelling = true;
    assert_int_equal(di_parser_create(&s, hear, &h, &p, NULL), DI_OK);
    for (size_t i = 0; i < n && !di_parser_stopped(p);) {
        size_t piece = step && step < n - i ? step : n - i;
        if (i < cut && cut < i + piece)
            piece = cut - i;
        assert_int_equal(di_parser_feed(p, (struct di_str){text + i, piece}, DI_PARSE_TEXT, NULL), DI_OK);
        i += piece;
    }
    assert_int_equal(di_parser_finish(p, DI_FINISH_STOP, NULL), DI_OK);
    di_parser_destroy(p);
    return h;
}

static void same(const struct di_buf *b, const char *want)
{
    assert_string_equal(b->p ? b->p : "", want);
}

/* At every place where the text can be cut, and byte by byte. */
static void check_all_cuts(struct di_parser_settings s, const char *text, const char *reasoning, const char *content, const char *arguments)
{
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct heard h = parse(s, text, cut, cut == 0);
        same(&h.message.reasoning, reasoning);
        same(&h.message.content, content);
        assert_int_equal(h.message.n_calls, arguments != NULL);
        if (arguments)
            same(&h.message.calls[0].arguments, arguments);
        di_message_fini(&h.message);
    }
}

#define CALL(arguments) "<" DSML " calls>\n<" DSML " invoke name=\"f\">\n" arguments "</" DSML " invoke>\n</" DSML " calls>"
#define STRING(key, value) "<" DSML " parameter name=\"" key "\" string=\"true\">" value "</" DSML " parameter>\n"

static const struct di_parser_settings thinking = {.start = DI_STARTS_REASONING, .tools_declared = true};
static const struct di_parser_settings plain = {.start = DI_STARTS_CONTENT, .tools_declared = true};

static void report_15_no_markup_in_streamed_arguments(void **state)
{
    (void)state;
    check_all_cuts(plain, "Ok.\n\n" CALL(STRING("a", "1 < 2 </x> <" BAR "D")), "", "Ok.", "{\"a\": \"1 < 2 </x> <" BAR "D\"}");
}

static void report_17_a_call_inside_the_reasoning_comes_once(void **state)
{
    (void)state;
    check_all_cuts(thinking, "Let me see.\n\n" CALL(STRING("a", "b")) "</think>done", "Let me see.", "", "{\"a\": \"b\"}");
}

static void report_18_a_call_in_an_unclosed_reasoning_is_made(void **state)
{
    (void)state;
    check_all_cuts(thinking, "I look it up.\n\n" CALL(STRING("a", "b")), "I look it up.", "", "{\"a\": \"b\"}");
}

/* ASCII bars are no markup: the text arrives whole, and no call with empty arguments is made up. */
static void report_21_ascii_bars_are_text(void **state)
{
    static const char text[] = "<|DSML| calls>\n<|DSML| invoke name=\"f\">\n</|DSML| invoke>\n</|DSML| calls>";
    (void)state;
    check_all_cuts(plain, text, "", text, NULL);
}

/* No stop strings but the client's: a role's marker or half of one is text. */
static void report_24_role_markers_are_no_stops(void **state)
{
    static const char text[] = "a <" BAR "User" BAR "> b <" BAR "Assistant" BAR "> c <";
    (void)state;
    check_all_cuts(plain, text, "", text, NULL);
    check_all_cuts(plain, "<\n\n" CALL(STRING("a", "<" BAR "User" BAR ">")), "", "<", "{\"a\": \"<" BAR "User" BAR ">\"}");
}

static void report_27_characters_split_across_tokens(void **state)
{
    (void)state;
    for (int thinks = 0; thinks < 2; thinks++)
        check_all_cuts(thinks ? thinking : plain, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
                       thinks ? "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80" : "", thinks ? "" : "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", NULL);
    check_all_cuts(plain, CALL(STRING("\xC3\xA9", "\xF0\x9F\x98\x80")), "", "", "{\"\xC3\xA9\": \"\xF0\x9F\x98\x80\"}");
}

/* What never becomes a character is one replacement, at the end. */
static void report_28_half_an_emoji_is_replaced_once(void **state)
{
    (void)state;
    check_all_cuts(plain, "ok \xF0\x9F\x98", "", "ok \xEF\xBF\xBD", NULL);
    check_all_cuts(thinking, "\xF0\x9F", "\xEF\xBF\xBD", "", NULL);
}

static void report_40_stops_across_chunks(void **state)
{
    static const struct di_str stop = {"END OF", 6};
    struct di_parser_settings s = plain;
    (void)state;
    s.stop = &stop;
    s.n_stop = 1;
    check_all_cuts(s, "abc END OF xyz", "", "abc ", NULL);
    check_all_cuts(s, "abc END O", "", "abc END O", NULL);
    s.start = DI_STARTS_REASONING;
    check_all_cuts(s, "why END OF it</think>abc END OF x", "why END OF it", "abc ", NULL);
    s = (struct di_parser_settings){.start = DI_STARTS_CONTENT, .json_mode = true, .stop = &stop, .n_stop = 1};
    check_all_cuts(s, "Sure: {\"a\": \"END OF\"}", "", "{\"a\": \"", NULL);
}

/* A stop string that begins like the marker holds text back, and the marker is still seen. */
static void report_42_stops_beside_the_think_marker(void **state)
{
    static const struct di_str stops[] = {{"</thing>", 8}, {"<", 1}};
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        struct di_parser_settings s = thinking;
        s.stop = &stops[n];
        s.n_stop = 1;
        check_all_cuts(s, "a </thi b</think>c", "a </thi b", "c", NULL);
    }
}

/* ---------------------------------------------------------------- ids and prompts */

/* Begin, end and other control ids in the middle of an answer leave no text; the same letters as text stay. */
static void report_11_control_ids_leave_no_text(void **state)
{
    struct di_tokenizer *t;
    struct di_control_ids controls;
    struct di_ids ids = {0};
    struct di_parser *p;
    struct heard h = {0};
    struct di_parser_settings s = plain;
    const char *spelled = "<" BAR "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">";
    (void)state;
    s.hide_control = true;
    assert_int_equal(di_tokenizer_load(DI_SOURCE_DIR "/models/nano/tokenizer.json", &t, NULL), DI_OK);
    assert_int_equal(di_control_ids_find(t, -1, &controls, NULL), DI_OK);
    assert_int_equal(di_parser_create(&s, hear, &h, &p, NULL), DI_OK);
    static const enum di_control inside[] = {DI_CTL_BOS, DI_CTL_EOS, DI_CTL_USER, DI_CTL_THINK, DI_CTL_SYSTEM};
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        assert_int_equal(di_tokenizer_encode(t, DI_STR("Hel"), DI_TOKENIZER_PLAIN, &ids, NULL), DI_OK);
        assert_true(di_ids_reserve(&ids, 1));
        ids.v[ids.n++] = controls.id[inside[i]];
        assert_int_equal(di_tokenizer_encode(t, DI_STR("lo "), DI_TOKENIZER_PLAIN, &ids, NULL), DI_OK);
    }
    assert_int_equal(di_tokenizer_encode(t, di_str_c(spelled), DI_TOKENIZER_PLAIN, &ids, NULL), DI_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(di_parser_feed_id(p, t, ids.v[i], NULL), DI_OK);
    assert_int_equal(di_parser_finish(p, DI_FINISH_STOP, NULL), DI_OK);
    char want[128];
    snprintf(want, sizeof want, "Hello Hello Hello Hello Hello %s", spelled);
    same(&h.message.content, want);
    di_parser_destroy(p);
    di_message_fini(&h.message);
    di_ids_fini(&ids);
    di_tokenizer_destroy(t);
}

static int effort_of(const char *effort)
{
    char json[200];
    struct di_arena arena;
    struct di_json *request;
    struct di_chat *chat;
    di_arena_init(&arena);
    snprintf(json, sizeof json, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"reasoning_effort\": %s}", effort);
    assert_int_equal(di_json_parse(di_str_c(json), NULL, &arena, &request, NULL), DI_OK);
    assert_int_equal(di_chat_create(DI_PROTOCOL_CHAT, request, NULL, &chat, NULL), DI_OK);
    int number = 0;
    const char *at = strstr(chat->prompt.text.p, "Reasoning Effort: ");
    if (at)
        assert_int_equal(
            sscanf(at, "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n", &number), 1);
    di_chat_destroy(chat);
    di_arena_fini(&arena);
    return number;
}

static void report_01_effort_numbers(void **state)
{
    static const struct {
        const char *word;
        int percent;
    } words[] = {{"\"none\"", 0},   {"\"minimal\"", 50}, {"\"low\"", 50},    {"\"medium\"", 75}, {"\"high\"", 75},
                 {"\"xhigh\"", 75}, {"\"max\"", 100},    {"\"ultra\"", 100}, {"null", 75}};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_int_equal(effort_of(words[i].word), words[i].percent);
    for (int n = 1; n <= 100; n++) {
        char number[8];
        snprintf(number, sizeof number, "%d", n);
        assert_int_equal(effort_of(number), n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_01_effort_numbers),
        cmocka_unit_test(report_11_control_ids_leave_no_text),
        cmocka_unit_test(report_15_no_markup_in_streamed_arguments),
        cmocka_unit_test(report_17_a_call_inside_the_reasoning_comes_once),
        cmocka_unit_test(report_18_a_call_in_an_unclosed_reasoning_is_made),
        cmocka_unit_test(report_21_ascii_bars_are_text),
        cmocka_unit_test(report_24_role_markers_are_no_stops),
        cmocka_unit_test(report_27_characters_split_across_tokens),
        cmocka_unit_test(report_28_half_an_emoji_is_replaced_once),
        cmocka_unit_test(report_40_stops_across_chunks),
        cmocka_unit_test(report_42_stops_beside_the_think_marker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
