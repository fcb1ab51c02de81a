/* not run under TSan: no threads */
/* Golden prompts, refusals and limits of the chat encoding; vectors in tests/data/text. */
#include "text/chat.h"

#include "base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define DATA DI_SOURCE_DIR "/tests/data/text/"

static struct di_json *load(const char *path, struct di_arena *arena, struct di_buf *text)
{
    di_error err = {0};
    struct di_json *v = NULL;
    di_buf_clear(text);
    if (di_file_read(path, (size_t)64 << 20, text, &err) != DI_OK || di_json_parse(di_buf_str(text), NULL, arena, &v, &err) != DI_OK)
        fail_msg("%s: %s", path, err.message);
    return v;
}

static struct di_str string_of(const struct di_json *v, const char *key)
{
    const struct di_json *m = di_json_get(v, key);
    return di_json_is(m, DI_JSON_STRING) ? m->text : (struct di_str){0};
}

/* One call per line of a JSON lines file. */
static void each_line(const char *path, void (*check)(const struct di_json *))
{
    struct di_buf text = {0};
    di_error err = {0};
    assert_int_equal(di_file_read(path, (size_t)64 << 20, &text, &err), DI_OK);
    size_t n = 0;
    for (size_t at = 0, end; at < text.n; at = end + 1) {
        struct di_arena arena;
        struct di_json *v;
        end = di_str_find(di_buf_str(&text), DI_STR("\n"), at);
        if (end == SIZE_MAX)
            end = text.n;
        di_arena_init(&arena);
        assert_int_equal(di_json_parse((struct di_str){text.p + at, end - at}, NULL, &arena, &v, &err), DI_OK);
        check(v);
        di_arena_fini(&arena);
        n++;
    }
    assert_true(n > 100);
    di_buf_fini(&text);
}

/* The prompt with the image id spelled `image`. */
static void spell(const struct di_prompt *p, struct di_str image, struct di_buf *out)
{
    size_t from = 0;
    di_buf_clear(out);
    for (size_t i = 0; i < p->n_marks; i++) {
        if (p->marks[i].control != DI_CTL_IMAGE)
            continue;
        di_buf_add(out, p->text.p + from, p->marks[i].at - from);
        di_buf_addv(out, image);
        from = p->marks[i].at + di_control_spelling(DI_CTL_IMAGE).n;
    }
    di_buf_add(out, p->text.p + from, p->text.n - from);
}

static void assert_text(struct di_str name, struct di_str got, struct di_str want)
{
    if (di_str_eq(got, want))
        return;
    size_t i = 0;
    while (i < got.n && i < want.n && got.p[i] == want.p[i])
        i++;
    size_t from = i > 60 ? i - 60 : 0;
    fail_msg("%.*s differs at byte %zu\n got: %.*s\nwant: %.*s", (int)name.n, name.p, i, (int)(got.n - from > 160 ? 160 : got.n - from),
             got.p + from, (int)(want.n - from > 160 ? 160 : want.n - from), want.p + from);
}

static void test_json_cases(void **state)
{
    (void)state;
    struct di_arena arena;
    struct di_buf text = {0}, out = {0};
    di_arena_init(&arena);
    const struct di_json *cases = di_json_get(load(DATA "json_cases.json", &arena, &text), "cases");
    size_t compared = 0;
    for (const struct di_json *c = cases->child; c; c = c->next) {
        struct di_json *v;
        struct di_str want = string_of(c, "python_dumps"), in = string_of(c, "input");
        bool parsed = di_json_parse(in, NULL, &arena, &v, NULL) == DI_OK;
        if (string_of(c, "note").n) { /* the two that must be refused in a request */
            struct di_chat *chat = NULL;
            assert_false(parsed && di_chat_create(DI_PROTOCOL_CHAT, v, NULL, &chat, NULL) == DI_OK);
            continue;
        }
        assert_true(parsed);
        di_buf_clear(&out);
        di_json_write_spaced(&out, v);
        assert_text(in, di_buf_str(&out), want);
        compared++;
    }
    assert_int_equal(compared, 6);
    di_buf_fini(&out);
    di_buf_fini(&text);
    di_arena_fini(&arena);
}

static void test_prompt_cases(void **state)
{
    (void)state;
    struct di_arena arena;
    struct di_buf text = {0};
    di_arena_init(&arena);
    const struct di_json *cases = di_json_get(load(DATA "prompt_cases.json", &arena, &text), "cases");
    assert_int_equal(cases->count, 64);
    for (const struct di_json *c = cases->child; c; c = c->next) {
        struct di_chat_options opt = di_chat_options_default;
        struct di_chat *chat;
        di_error err = {0};
        struct di_str name = string_of(c, "name");
        /* Histories that only a renderer without checks sees. */
        opt.strict_history = !di_str_eqc(name, "unknown_result_id_ranks_first") && !di_str_eqc(name, "results_interleaved_with_user");
        if (di_chat_create(DI_PROTOCOL_CHAT, di_json_get(c, "request"), &opt, &chat, &err) != DI_OK)
            fail_msg("%.*s: %s: %s", (int)name.n, name.p, err.where, err.message);
        assert_text(name, di_buf_str(&chat->prompt.text), string_of(c, "prompt"));
        di_chat_destroy(chat);
    }
    di_buf_fini(&text);
    di_arena_fini(&arena);
}

/* ---- recipe_prompts.jsonl ---- */

static size_t points(struct di_str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

/* Offsets count code points of the prompt in which an image is spelled with fewer of them. */
static void check_ranges(struct di_str id, const struct di_json *ranges, const struct di_prompt *p, struct di_str image)
{
    size_t from = 0, at = 0, i = 0;
    assert_int_equal(ranges->count, p->n_marks);
    for (const struct di_json *r = ranges->child; r; r = r->next, i++) {
        int64_t start = 0, end = 0;
        struct di_str mine = di_control_spelling(p->marks[i].control);
        assert_true(di_json_int(di_json_at(r, 0), &start) && di_json_int(di_json_at(r, 1), &end));
        at += points((struct di_str){p->text.p + from, p->marks[i].at - from});
        if (at != (size_t)start)
            fail_msg("%.*s: control %zu at %zu, not %lld", (int)id.n, id.p, i, at, (long long)start);
        at += points(p->marks[i].control == DI_CTL_IMAGE ? image : mine);
        assert_int_equal(at, end);
        from = p->marks[i].at + mine.n;
    }
}

static void check_images(struct di_str id, const struct di_json *want, const struct di_chat *c)
{
    struct di_buf url = {0};
    assert_int_equal(want ? want->count : 0, c->n_images);
    for (size_t i = 0; i < c->n_images; i++) {
        di_buf_clear(&url);
        di_chat_image_write(&url, c->images[i]);
        if (c->images[i]->data.p) {
            url.n = 22;
            di_buf_adds(&url, "…");
        }
        assert_text(id, di_buf_str(&url), di_json_at(want, i)->text);
    }
    di_buf_fini(&url);
}

static void check_settings(struct di_str id, const struct di_json *r, const struct di_chat *c)
{
    const struct di_json *sampling = di_json_get(r, "sampling"), *parser = di_json_get(r, "parser");
    double temperature, top_p;
    int64_t max_tokens, want_max = 0, n_ids = 0;
    di_answer_start start;
    struct di_str start_name = string_of(parser, di_json_get(parser, "start_here") ? "start_here" : "start");
    assert_true(di_json_double(di_json_get(sampling, "temperature"), &temperature));
    assert_true(di_json_double(di_json_get(sampling, "top_p"), &top_p));
    assert_true(di_json_int(di_json_get(sampling, "max_tokens"), &want_max) && di_json_int(di_json_get(r, "n_ids"), &n_ids));
    assert_int_equal(di_chat_max_tokens(c, c->sampling.max_tokens, n_ids, 1048576, &max_tokens, NULL), DI_OK);
    assert_int_equal(max_tokens, want_max);
    assert_true(fabs(c->temperature - temperature) < 1e-6 && fabs(c->top_p - top_p) < 1e-6);
    assert_true(di_parse_start_from_name(start_name, &start));
    if (c->start != start || c->tools_declared != di_json_get(parser, "tools_declared")->boolean ||
        c->json_mode != di_json_get(parser, "json_mode")->boolean)
        fail_msg("%.*s: other parser settings", (int)id.n, id.p);
    enum di_constraint_kind kind = c->constraint.kind;
    /* The record does not tell a schema from any JSON; tool_choice any is as auto there and as required here (§2.6). */
    struct di_str choice = string_of(di_json_get(di_json_get(r, "request"), "tool_choice"), "type");
    const char *got = kind == DI_CONSTRAIN_JSON_SCHEMA                                   ? "json"
                      : di_str_eqc(choice, "any") && kind == DI_CONSTRAIN_TOOLS_REQUIRED ? "tool_call"
                      : kind == DI_CONSTRAIN_NONE                                        ? ""
                                                                                         : di_constraint_name(kind);
    assert_text(id, di_str_c(got), string_of(sampling, "constraint"));
}

static size_t n_prompts, n_refused;

static void check_record(const struct di_json *r)
{
    const struct di_str image = DI_STR("<｜image｜>");
    struct di_str id = string_of(r, "id"), here = string_of(r, "here");
    struct di_chat_options opt = di_chat_options_default;
    enum di_protocol protocol;
    struct di_chat *chat;
    di_error err = {0};
    opt.hosted_sampling = true;
    assert_true(di_protocol_from_name(string_of(r, "protocol"), &protocol));
    di_status status = di_chat_create(protocol, di_json_get(r, "request"), &opt, &chat, &err);
    if (di_json_get(r, "refused")) {
        if (status == DI_OK && di_str_eqc(here, "refuse"))
            fail_msg("%.*s was accepted", (int)id.n, id.p);
        assert_true(status == DI_OK || status == DI_ERR_INVALID);
        di_chat_destroy(chat);
        n_refused++;
        return;
    }
    if (status != DI_OK)
        fail_msg("%.*s: %s: %s", (int)id.n, id.p, err.where, err.message);
    const struct di_json *other = di_json_get(r, "here"), *ranges = di_json_get(r, "control_ranges");
    struct di_buf got = {0};
    spell(&chat->prompt, image, &got);
    assert_text(id, di_buf_str(&got), string_of(other ? other : r, "prompt"));
    if (ranges && !other)
        check_ranges(id, ranges, &chat->prompt, image);
    check_images(id, di_json_get(r, "images"), chat);
    check_settings(id, r, chat);
    di_buf_fini(&got);
    di_chat_destroy(chat);
    n_prompts++;
}

static void test_recipe_prompts(void **state)
{
    (void)state;
    each_line(DATA "recipe_prompts.jsonl", check_record);
    assert_int_equal(n_prompts, 330);
    assert_int_equal(n_refused, 70);
}

/* ---- images ---- */

static int64_t number(const struct di_json *v)
{
    int64_t x;
    assert_true(di_json_int(v, &x));
    return x;
}

static void check_plan(int64_t w, int64_t h, bool repeat, const struct di_json *const want[5])
{
    struct di_image_limits l = di_image_limits_default;
    struct di_image_plan p;
    l.repeat = repeat;
    assert_int_equal(di_image_plan(w, h, &l, &p, NULL), DI_OK);
    const int64_t got[5] = {p.width, p.height, p.columns, p.rows, p.tokens};
    for (int i = 0; i < 5; i++)
        if (want[i] && got[i] != number(want[i]))
            fail_msg("%lldx%lld: value %d is %lld, not %lld", (long long)w, (long long)h, i, (long long)got[i], (long long)number(want[i]));
}

static void check_grid_line(const struct di_json *v)
{
    int64_t w = number(di_json_get(v, "width")), h = number(di_json_get(v, "height"));
    const struct di_json *single = di_json_get(v, "single_pass") ? di_json_get(v, "single_pass") : v;
    for (int repeat = 0; repeat < 2; repeat++) {
        const struct di_json *r = repeat ? v : single, *canvas = di_json_get(r, "canvas"), *grid = di_json_get(r, "grid");
        const struct di_json *const want[5] = {di_json_at(canvas, 0), di_json_at(canvas, 1), di_json_at(grid, 0), di_json_at(grid, 1),
                                               di_json_get(r, "tokens")};
        check_plan(w, h, repeat, want);
    }
}

static void test_image_grids(void **state)
{
    (void)state;
    struct di_arena arena;
    struct di_buf text = {0};
    di_arena_init(&arena);
    const struct di_json *cases = di_json_get(load(DATA "image_grid_cases.json", &arena, &text), "cases");
    for (const struct di_json *c = cases->child; c; c = c->next)
        for (int repeat = 0; repeat < 2; repeat++) {
            const struct di_json *r = repeat ? di_json_get(c, "recipe_fixpoint") : c;
            const struct di_json *const want[5] = {di_json_get(r, "resized_width"), di_json_get(r, "resized_height"),
                                                   di_json_get(r, "llm_cols"), di_json_get(r, "llm_rows"), di_json_get(r, "tokens")};
            assert_non_null(want[4]);
            check_plan(number(di_json_get(c, "width")), number(di_json_get(c, "height")), repeat, want);
        }
    each_line(DATA "image_grid_recipe.jsonl", check_grid_line);
    struct di_image_plan p;
    assert_int_equal(di_image_plan(0, 5, &di_image_limits_default, &p, NULL), DI_ERR_INVALID);
    assert_int_equal(di_image_plan(5, (int64_t)1 << 40, &di_image_limits_default, &p, NULL), DI_ERR_INVALID);
    assert_int_equal(di_image_plan(1 << 24, 1, &di_image_limits_default, &p, NULL), DI_OK);
    assert_int_equal(p.tokens, 1024);
    di_buf_fini(&text);
    di_arena_fini(&arena);
}

/* ---- forms ---- */

/* Every way to ask for JSON puts the same text before the model. */
static void test_every_format_is_shown(void **state)
{
#define SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}"
#define SCHEMA_FORMAT "{\"type\":\"json_schema\",\"name\":\"x\",\"schema\":" SCHEMA "}"
#define ASK "\":[{\"role\":\"user\",\"content\":\"json, please\"}],"
    static const struct {
        enum di_protocol protocol;
        const char *json;
        bool any; /* json_object */
    } cases[] = {
        {DI_PROTOCOL_CHAT, "{\"messages" ASK "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":" SCHEMA_FORMAT "}}", false},
        {DI_PROTOCOL_CHAT, "{\"messages" ASK "\"structured_outputs\":{\"json\":" SCHEMA "}}", false},
        {DI_PROTOCOL_CHAT, "{\"messages" ASK "\"guided_json\":" SCHEMA "}", false},
        {DI_PROTOCOL_CHAT, "{\"messages" ASK "\"json_schema\":" SCHEMA "}", false},
        {DI_PROTOCOL_RESPONSES, "{\"input" ASK "\"text\":{\"format\":" SCHEMA_FORMAT "}}", false},
        {DI_PROTOCOL_RESPONSES, "{\"input" ASK "\"guided_json\":" SCHEMA "}", false},
        {DI_PROTOCOL_MESSAGES, "{\"messages" ASK "\"output_config\":{\"format\":" SCHEMA_FORMAT "}}", false},
        {DI_PROTOCOL_MESSAGES, "{\"messages" ASK "\"output_format\":" SCHEMA_FORMAT "}", false},
        {DI_PROTOCOL_CHAT, "{\"messages" ASK "\"response_format\":{\"type\":\"json_object\"}}", true},
        {DI_PROTOCOL_CHAT, "{\"messages" ASK "\"structured_outputs\":{\"json_object\":true}}", true},
        {DI_PROTOCOL_RESPONSES, "{\"input" ASK "\"text\":{\"format\":{\"type\":\"json_object\"}}}", true},
    };
    struct di_buf first[2] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_arena arena;
        struct di_json *v;
        struct di_chat *chat;
        struct di_buf got = {0}, *want = &first[cases[i].any];
        di_arena_init(&arena);
        assert_int_equal(di_json_parse(di_str_c(cases[i].json), NULL, &arena, &v, NULL), DI_OK);
        assert_int_equal(di_chat_create(cases[i].protocol, v, NULL, &chat, NULL), DI_OK);
        spell(&chat->prompt, DI_STR(""), &got);
        if (want->n)
            assert_text(di_str_c(cases[i].json), di_buf_str(&got), di_buf_str(want));
        else
            di_buf_addv(want, di_buf_str(&got));
        assert_true(di_str_find(di_buf_str(&got), cases[i].any ? DI_STR("json_object") : DI_STR("\"properties\": "), 0) != SIZE_MAX);
        di_chat_destroy(chat);
        di_arena_fini(&arena);
        di_buf_fini(&got);
    }
    di_buf_fini(&first[0]);
    di_buf_fini(&first[1]);
}

/* ---- sentences ---- */

static di_status create(enum di_protocol protocol, const char *json, const struct di_chat_options *opt, struct di_arena *arena,
                        struct di_chat **chat, di_error *err)
{
    struct di_json *v;
    assert_int_equal(di_json_parse(di_str_c(json), NULL, arena, &v, NULL), DI_OK);
    return di_chat_create(protocol, v, opt, chat, err);
}

#define HI "{\"role\":\"user\",\"content\":\"hi\"}"
#define CALL \
    "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"

static void test_errors_name_the_field(void **state)
{
    (void)state;
    static const struct {
        enum di_protocol protocol;
        const char *json, *where;
    } cases[] = {
        {DI_PROTOCOL_CHAT, "3", ""},
        {DI_PROTOCOL_CHAT, "{}", "messages"},
        {DI_PROTOCOL_CHAT, "{\"messages\":{}}", "messages"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI ",null]}", "messages[1]"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI ",{\"role\":3}]}", "messages[1].role"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":7}]}]}", "messages[0].content[0].type"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[" HI "]}]}", "messages[0].content[0].type"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages[0].content[0].text"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "," CALL "]}", ""},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "," CALL "," HI "]}", "messages[2]"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "," CALL ",{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"\"}]}",
         "messages[2].tool_call_id"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true}," HI "]}", "messages[1]"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"temperature\":\"1\"}", "temperature"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"top_p\":0}", "top_p"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"seed\":-9223372036854775809}", "seed"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"functions\":[]}", "functions"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"function_call\":\"auto\"}", "function_call"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"function_call\":{}}]}", "messages[0].function_call"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"function\",\"name\":\"f\",\"content\":\"a\"}]}", "messages[0].role"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"seed\":9223372036854775808}", "seed"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"stop\":[\"a\",3]}", "stop[1]"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"logit_bias\":{\"x\":1}}", "logit_bias"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"logit_bias\":{\"5\":101}}", "logit_bias.5"},
        {DI_PROTOCOL_CHAT,
         "{\"messages\":[" HI "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
         "\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"text\"}]}}}}}]}",
         "tools[0].function.parameters.properties.a.anyOf[0].type"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"user\":1e999}", "user"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"thinking\":{\"type\":\"on\"}}", "thinking.type"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"structured_outputs\":{\"choice\":[]}}", "structured_outputs.choice"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"continue_final_message\":true}", "continue_final_message"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"\"}]}", "messages"},
        {DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"response_format\":{\"type\":\"json_object\"}}", "messages"},
        {DI_PROTOCOL_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\"}}]}]}",
         "messages[0].content[0].source.media_type"},
        {DI_PROTOCOL_MESSAGES, "{\"messages\":[" HI "],\"system\":[{\"type\":\"image\"}]}", "system[0].type"},
        {DI_PROTOCOL_MESSAGES, "{\"messages\":[" HI "],\"tools\":[{\"name\":\"f\"}]}", "tools[0].input_schema"},
        {DI_PROTOCOL_MESSAGES, "{\"messages\":[" HI "],\"output_config\":{\"effort\":\"most\"}}", "output_config.effort"},
        {DI_PROTOCOL_RESPONSES, "{}", "input"},
        {DI_PROTOCOL_RESPONSES, "{\"input\":[{\"content\":\"x\"}]}", "input[0]"},
        {DI_PROTOCOL_RESPONSES, "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\"}]}", "input[0].name"},
        {DI_PROTOCOL_RESPONSES, "{\"input\":\"x\",\"previous_response_id\":\"r\"}", "previous_response_id"},
        {DI_PROTOCOL_RESPONSES, "{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\"}]}]}",
         "tools[0].tools[0].name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_arena arena;
        struct di_chat *chat;
        di_error err = {0};
        di_arena_init(&arena);
        if (create(cases[i].protocol, cases[i].json, NULL, &arena, &chat, &err) != DI_ERR_INVALID)
            fail_msg("accepted: %s", cases[i].json);
        if (strcmp(err.where, cases[i].where) != 0 || err.message[0] == 0)
            fail_msg("%s: where is \"%s\" (%s)", cases[i].json, err.where, err.message);
        di_arena_fini(&arena);
    }
}

/* ---- options and limits ---- */

static void test_rules(void **state)
{
    (void)state;
    static const char forced[] =
        "{\"messages\":[" HI "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\","
        "\"temperature\":0.5,\"top_p\":0.5}";
    struct di_arena arena;
    struct di_chat *chat;
    di_error err = {0};
    struct di_chat_options opt = di_chat_options_default;
    int64_t n;
    di_arena_init(&arena);
    /* Forced while thinking: the grammar forces, the prompt does not open the block. */
    assert_int_equal(create(DI_PROTOCOL_CHAT, forced, NULL, &arena, &chat, &err), DI_OK);
    assert_int_equal(chat->constraint.kind, DI_CONSTRAIN_TOOLS_REQUIRED);
    assert_int_equal(chat->start, DI_STARTS_REASONING);
    assert_int_equal(chat->prompt.marks[chat->prompt.n_marks - 1].control, DI_CTL_THINK);
    assert_true(chat->temperature == 0.5 && chat->top_p == 0.5);
    /* The answer's limit. */
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 1000, 50000, &n, &err), DI_OK);
    assert_int_equal(n, 49000);
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 50000, 50000, &n, &err), DI_OK);
    assert_int_equal(n, 1);
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 50001, 50000, &n, &err), DI_ERR_LIMIT);
    assert_non_null(strstr(err.message, "maximum context length is 50000 tokens"));
    assert_non_null(strstr(err.message, "you requested 50001 tokens (50001 in the messages, 0 in the completion)."));
    di_chat_destroy(chat);
    static const char messages[] = "{\"max_tokens\": 60000, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
    assert_int_equal(create(DI_PROTOCOL_MESSAGES, messages, NULL, &arena, &chat, &err), DI_OK);
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 1000, 50000, &n, &err), DI_OK);
    assert_int_equal(n, 49000);
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 1000, 100000, &n, &err), DI_OK);
    assert_int_equal(n, 60000);
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 50000, 50000, &n, &err), DI_ERR_LIMIT);
    assert_string_equal(err.message, "prompt is too long: 50001 tokens > 50000 maximum");
    assert_int_equal(di_chat_max_tokens(chat, chat->sampling.max_tokens, 70000, 50000, &n, &err), DI_ERR_LIMIT);
    assert_string_equal(err.message, "prompt is too long: 70000 tokens > 50000 maximum");
    di_chat_destroy(chat);
    opt.forced_tools_while_thinking = false;
    assert_int_equal(create(DI_PROTOCOL_CHAT, forced, &opt, &arena, &chat, &err), DI_ERR_INVALID);
    assert_non_null(strstr(err.message, "Thinking mode does not support this tool_choice"));
    /* Another effort table. */
    static const struct di_effort efforts[] = {{"low", 25}, {"high", 50}};
    opt.efforts = efforts;
    opt.n_efforts = 2;
    assert_int_equal(create(DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"reasoning_effort\":\"low\"}", &opt, &arena, &chat, &err), DI_OK);
    assert_int_equal(chat->effort, 25);
    di_chat_destroy(chat);
    assert_int_equal(create(DI_PROTOCOL_CHAT, "{\"messages\":[" HI "],\"reasoning_effort\":\"max\"}", &opt, &arena, &chat, &err),
                     DI_ERR_INVALID);
    assert_int_equal(create(DI_PROTOCOL_CHAT, "{\"messages\":[" HI "]}", &opt, &arena, &chat, &err), DI_OK);
    assert_int_equal(chat->effort, 50);
    di_chat_destroy(chat);
    di_arena_fini(&arena);
}

/* Responses: a call and its result are paired wherever they stand. */
static void test_pairs(void **state)
{
    (void)state;
#define CALLS(id) "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define OUT(id) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"of " id "\"}"
#define SAYS(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define WHY(text) "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]}"
    /* The messages as they are shown: u user, s system, a assistant with its number of calls and text, r a result. */
    static const struct {
        const char *input, *shown;
    } cases[] = {
        {CALLS("1") "," OUT("1"), "a1() r(of 1)"},
        {CALLS("1") "," CALLS("2") "," OUT("2") "," OUT("1"), "a2() r(of 1) r(of 2)"},
        {CALLS("1") "," SAYS("assistant", "x") "," OUT("1") "," SAYS("user", "y"), "a1(x) r(of 1) u(y)"},
        {CALLS("1") "," WHY("w") "," OUT("1"), "a1(w|) r(of 1)"},
        {CALLS("1") "," WHY("w") "," CALLS("2") "," OUT("1") "," SAYS("assistant", "x") "," OUT("2"), "a2(w|x) r(of 1) r(of 2)"},
        {CALLS("1") "," CALLS("2") "," OUT("1") "," CALLS("3") "," OUT("2") "," OUT("3"), "a3() r(of 1) r(of 2) r(of 3)"},
        {CALLS("1") "," OUT("1") "," CALLS("2") "," OUT("2"), "a1() r(of 1) a1() r(of 2)"},
        {CALLS("1") "," OUT("1") "," SAYS("assistant", "x") "," SAYS("user", "y"), "a1() r(of 1) a0(x) u(y)"},
        {CALLS("1") "," SAYS("user", "y") "," OUT("1"), "a1() r(of 1) u(y)"},
        {CALLS("1") "," SAYS("developer", "d") "," SAYS("assistant", "x") "," OUT("1"), "a1() r(of 1) s(d) a0(x)"},
        {CALLS("1") "," SAYS("user", "y") "," CALLS("2") "," OUT("2") "," OUT("1"), "a1() r(of 1) u(y) a1() r(of 2)"},
        {OUT("1") "," SAYS("user", "y") "," CALLS("1") "," SAYS("user", "z"), "u(y) a1() r(of 1) u(z)"},
        {OUT("1") "," CALLS("1") "," CALLS("2") "," OUT("2") "," SAYS("assistant", "x"), "a2() r(of 1) r(of 2) a0(x)"},
        {CALLS("1") "," SAYS("user", "y"), "needs a result for the tool call \"1\""},
        {SAYS("user", "y") "," OUT("1"), "answers the call \"1\", which is not there"},
        {CALLS("1") "," OUT("1") "," OUT("1"), "answers the call \"1\" a second time"},
        {OUT("1") "," OUT("1") "," CALLS("1"), "answers the call \"1\" a second time"},
        {OUT("1") "," CALLS("1") "," OUT("1"), "answers the call \"1\" a second time"},
        {CALLS("1") "," OUT("1") "," CALLS("1") "," OUT("1"), "has the id \"1\" of an earlier call"},
        {"{\"type\":\"item_reference\",\"id\":\"msg_9\"}", "names \"msg_9\""},
        {"{\"type\":\"computer_call\",\"call_id\":\"1\"}", "is \"computer_call\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_arena arena;
        struct di_chat *chat;
        struct di_buf got = {0};
        di_error err = {0};
        char json[1200];
        snprintf(json, sizeof json, "{\"input\":[%s],\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}", cases[i].input);
        di_arena_init(&arena);
        if (create(DI_PROTOCOL_RESPONSES, json, NULL, &arena, &chat, &err) == DI_OK)
            for (const struct di_chat_message *m = chat->messages; m; m = m->next) {
                di_buf_addf(&got, "%s%c", m == chat->messages ? "" : " ", "suar?"[m->role]);
                if (m->role == DI_ROLE_ASSISTANT)
                    di_buf_addf(&got, "%zu", m->n_calls);
                di_buf_addc(&got, '(');
                if (m->has_reasoning)
                    di_buf_addf(&got, "%.*s|", (int)m->reasoning.first->text.n, m->reasoning.first->text.p);
                if (m->content.first)
                    di_buf_addv(&got, m->content.first->text);
                di_buf_addc(&got, ')');
            }
        if (err.code && !strstr(err.message, cases[i].shown))
            fail_msg("%s: %s", json, err.message);
        else if (!err.code)
            assert_text(di_str_c(json), di_buf_str(&got), di_str_c(cases[i].shown));
        di_buf_fini(&got);
        di_chat_destroy(chat);
        di_arena_fini(&arena);
    }
}

/* §2.6: the accounting line is cut as if the parts were joined already. */
static void test_billing_line(void **state)
{
    (void)state;
#define LINE "x-anthropic-billing-header: v=1;"
    static const struct {
        const char *content, *shown; /* NULL: no system turn */
    } cases[] = {
        {"\"" LINE "\"", NULL},
        {"\"" LINE " You are x\"", "You are x"},
        {"\"" LINE "\\n \\u00a0b\"", "b"},
        {"[{\"type\":\"text\",\"text\":\"" LINE "\"},{\"type\":\"text\",\"text\":\" y\"}]", "y"},
        {"[{\"type\":\"text\",\"text\":\"" LINE "\\n\"},{\"type\":\"text\",\"text\":\"\\n\"},{\"type\":\"text\",\"text\":\"z\"}]", "z"},
        {"[{\"type\":\"text\",\"text\":\"p\"},{\"type\":\"text\",\"text\":\"" LINE "\"}]", "p\n\n" LINE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_arena arena;
        struct di_chat *chat;
        struct di_buf want = {0};
        di_error err = {0};
        char json[600];
        snprintf(json, sizeof json, "{\"messages\":[{\"role\":\"system\",\"content\":%s}," HI "],\"thinking\":false}", cases[i].content);
        di_arena_init(&arena);
        assert_int_equal(create(DI_PROTOCOL_CHAT, json, NULL, &arena, &chat, &err), DI_OK);
        di_buf_addf(&want, "<｜begin▁of▁sentence｜>%s%s<｜User｜>hi<｜Assistant｜></think>", cases[i].shown ? "<｜System｜>" : "",
                    cases[i].shown ? cases[i].shown : "");
        assert_text(di_str_c(json), di_buf_str(&chat->prompt.text), di_buf_str(&want));
        di_buf_fini(&want);
        di_chat_destroy(chat);
        di_arena_fini(&arena);
    }
}

/* Ids belong to a turn: the next one may use them again, and sorts its results by its own calls. */
static void test_ids_of_two_turns(void **state)
{
    (void)state;
#define ONE(id, name) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":\"{}\"}}"
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
    static const char json[] =
        "{\"messages\":[" HI ",{\"role\":\"assistant\",\"tool_calls\":[" ONE("a", "f") "," ONE("b", "g") "]}," RESULT("b", "gb") "," RESULT(
            "a", "fa") ",{\"role\":\"assistant\",\"tool_calls\":[" ONE("b", "f") "," ONE("a", "g") "]}," RESULT("a",
                                                                                                                "ga") "," RESULT("b",
                                                                                                                                 "fb") "]}";
    struct di_arena arena;
    struct di_chat *chat;
    di_error err = {0};
    di_arena_init(&arena);
    assert_int_equal(create(DI_PROTOCOL_CHAT, json, NULL, &arena, &chat, &err), DI_OK);
    assert_non_null(strstr(chat->prompt.text.p, "<tool_result>fa</tool_result>\n\n<tool_result>gb</tool_result>"));
    assert_non_null(strstr(chat->prompt.text.p, "<tool_result>fb</tool_result>\n\n<tool_result>ga</tool_result>"));
    di_chat_destroy(chat);
    di_arena_fini(&arena);
}

/* Whatever stands in texts, names and schemas, the control ids are those of the same request with harmless words. */
static void test_content_makes_no_controls(void **state)
{
    (void)state;
    static const char *const templates[] = {
        "{\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"},{"
        "\"type\":\"text\",\"text\":\"x\"}]},"
        "{\"role\":\"assistant\",\"content\":\"%s\",\"reasoning_content\":\"%s\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
        "\"function\":"
        "{\"name\":\"%s\",\"arguments\":\"{\\\"%s\\\": \\\"%s\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"%s\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"%s\",\"parameters\":{\"type\":\"object\","
        "\"title\":\"%s\"}}}]}"};
    enum di_control seen[64];
    size_t n_seen = 0;
    for (int c = -1; c < DI_CTL_REF; c++) {
        struct di_arena arena;
        struct di_chat *chat;
        di_error err = {0};
        char json[8192];
        const char *w = c < 0 ? "word" : di_control_spelling((enum di_control)c).p;
        snprintf(json, sizeof json, templates[0], w, w, w, w, w, w, w, w, w, w);
        di_arena_init(&arena);
        assert_int_equal(create(DI_PROTOCOL_CHAT, json, NULL, &arena, &chat, &err), DI_OK);
        const struct di_prompt *p = &chat->prompt;
        if (c < 0) {
            n_seen = p->n_marks;
            assert_true(n_seen > 20 && n_seen <= 64);
            for (size_t i = 0; i < n_seen; i++)
                seen[i] = p->marks[i].control;
        }
        assert_int_equal(p->n_marks, n_seen);
        for (size_t i = 0; i < n_seen; i++)
            assert_int_equal(p->marks[i].control, seen[i]);
        di_chat_destroy(chat);
        di_arena_fini(&arena);
    }
}

/* Every allocation may fail: an error comes back, nothing leaks (the sanitizers look). */
static void test_out_of_memory(void **state)
{
    (void)state;
    static const char json[] =
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"hi\"},{\"type\":\"input_image\",\"image_url\":"
        "\"https://a\"}]},"
        "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"b\",\"namespace\":\"n\",\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1]}\"},"
        "{\"type\":\"tool_search_call\",\"call_id\":\"a\",\"execution\":\"client\",\"arguments\":{}},"
        "{\"type\":\"tool_search_output\",\"call_id\":\"a\",\"execution\":\"client\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]},"
        "{\"type\":\"function_call_output\",\"call_id\":\"b\",\"output\":\"x\"}],"
        "\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"description\":\"d\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
        "\"strict\":true,"
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}},\"required\":["
        "\"a\"]}}]}],"
        "\"logit_bias\":{\"3\":1},\"stop_token_ids\":[1,2]}";
    struct di_arena arena;
    struct di_json *v;
    di_arena_init(&arena);
    assert_int_equal(di_json_parse(di_str_c(json), NULL, &arena, &v, NULL), DI_OK);
    for (uint64_t n = 0;; n++) {
        struct di_chat *chat;
        di_error err = {0};
        di_mem_fail_after(n);
        di_status status = di_chat_create(DI_PROTOCOL_RESPONSES, v, NULL, &chat, &err);
        di_mem_fail_after(UINT64_MAX);
        if (status == DI_OK) {
            assert_true(n > 10);
            assert_string_equal(chat->images[0]->path, "input[0].content[1].image_url");
            di_chat_destroy(chat);
            break;
        }
        if (status != DI_ERR_MEMORY)
            fail_msg("allocation %llu: %s: %s", (unsigned long long)n, err.where, err.message);
    }
    di_arena_fini(&arena);
}

/* What is settled needs neither the request nor the prompt, and is the same to whoever reads the answer. */
static void test_settled(void **state)
{
    (void)state;
    static const char json[] =
        "{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}},"
        "{\"type\":\"custom\",\"name\":\"c\"},{\"type\":\"namespace\",\"name\":\"n\",\"description\":\"d\",\"tools\":["
        "{\"type\":\"function\",\"name\":\"g\",\"parameters\":{\"type\":\"object\"}}]}],\"max_output_tokens\":7}";
    static const struct {
        const char *name, *space, *local;
        bool custom;
    } want[] = {{"f", "", "f", false}, {"c", "", "c", true}, {"n::g", "n", "g", false}};
    struct di_arena arena;
    struct di_chat *chat;
    size_t n = 0;
    di_arena_init(&arena);
    assert_int_equal(create(DI_PROTOCOL_RESPONSES, json, NULL, &arena, &chat, NULL), DI_OK);
    assert_int_equal(di_chat_settle(chat, NULL), DI_OK);
    di_arena_fini(&arena);
    for (const struct di_chat_tool *t = chat->tools; t; t = t->next, n++) {
        assert_true(n < 3 && di_str_eqc(t->name, want[n].name) && di_str_eqc(t->space, want[n].space));
        assert_true(di_str_eqc(t->local, want[n].local) && t->custom == want[n].custom && t->offered);
    }
    assert_int_equal(n, 3);
    assert_int_equal(chat->sampling.max_tokens, 7);
    assert_true(chat->tools_declared && !chat->messages && !chat->prompt.text.n);
    di_chat_destroy(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_cases),
        cmocka_unit_test(test_prompt_cases),
        cmocka_unit_test(test_recipe_prompts),
        cmocka_unit_test(test_image_grids),
        cmocka_unit_test(test_every_format_is_shown),
        cmocka_unit_test(test_errors_name_the_field),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_content_makes_no_controls),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_ids_of_two_turns),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_billing_line),
        cmocka_unit_test(test_settled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
