/* not run under TSan: no threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode_classes.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* sanitizers make everything about ten times slower */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWNESS 10
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOWNESS 10
#endif
#endif
#ifndef SLOWNESS
#define SLOWNESS 1
#endif

#define NANO "models/nano/tokenizer.json"

static struct di_buf nano_json;
static struct di_tokenizer *nano;

static int setup(void **state)
{
    (void)state;
    di_error err = {0};
    if (di_file_read(NANO, (size_t)1 << 24, &nano_json, &err) != DI_OK || di_tokenizer_load("models/nano", &nano, &err) != DI_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    di_tokenizer_destroy(nano);
    di_buf_fini(&nano_json);
    return 0;
}

/* ---- character classes ---- */

static void classes_are_unicode_16(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned bit;
    } sets[] = {{"L", DI_UC_LETTER}, {"M", DI_UC_MARK},   {"N", DI_UC_NUMBER},
                {"P", DI_UC_PUNCT},  {"S", DI_UC_SYMBOL}, {"space", DI_UC_SPACE}};
    struct di_buf text = {0};
    struct di_arena arena;
    struct di_json *root;
    unsigned char *want = calloc(0x110000, 1);
    di_arena_init(&arena);
    assert_int_equal(di_file_read("tests/data/text/unicode_classes.json", (size_t)1 << 20, &text, NULL), DI_OK);
    assert_int_equal(di_json_parse(di_buf_str(&text), NULL, &arena, &root, NULL), DI_OK);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const struct di_json *list = di_json_get(root, sets[i].name);
        assert_true(di_json_is(list, DI_JSON_ARRAY) && list->count > 5);
        for (const struct di_json *r = list->child; r; r = r->next) {
            int64_t first = 0, last = -1;
            assert_true(di_json_int(di_json_at(r, 0), &first) && di_json_int(di_json_at(r, 1), &last));
            for (; first <= last; first++)
                want[first] |= (unsigned char)sets[i].bit;
        }
    }
    for (uint32_t c = 0; c < 0x110000; c++) {
        bool cjk = (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
        assert_int_equal(di_unicode_class(c), want[c] | (cjk ? DI_UC_CJK : 0) | (c == 10 || c == 13 ? DI_UC_NEWLINE : 0));
    }
    free(want);
    di_arena_fini(&arena);
    di_buf_fini(&text);
}

/* ---- pre-tokenizer ---- */

static void pieces_of_the_handed_cases(void **state)
{
    (void)state;
    struct di_buf text = {0};
    struct di_arena arena;
    struct di_json *root;
    size_t cases = 0;
    di_arena_init(&arena);
    assert_int_equal(di_file_read("tests/data/text/tokenizer_cases.json", (size_t)1 << 20, &text, NULL), DI_OK);
    assert_int_equal(di_json_parse(di_buf_str(&text), NULL, &arena, &root, NULL), DI_OK);
    for (const struct di_json *c = di_json_get(root, "plain")->child; c; c = c->next, cases++) {
        struct di_str s = di_json_get(c, "text")->text;
        const struct di_json *piece = di_json_get(c, "pieces")->child;
        for (size_t i = 0, n; i < s.n; i += n, piece = piece->next) {
            n = di_pretoken_length(s.p + i, s.n - i);
            assert_non_null(piece);
            assert_true(di_str_eq(piece->text, (struct di_str){s.p + i, n}));
        }
        assert_null(piece);
    }
    assert_int_equal(cases, 48);
    di_arena_fini(&arena);
    di_buf_fini(&text);
}

/* Consequences named in spec/encoding.md §1.4; '|' stands between the pieces. */
static void pieces_of_special_mixtures(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "12| |345",
        "123|456|7",
        "½²3|4",
        "abc|   |12",
        "x|  |日本",
        "日本|word|日",
        "ア|・|イー|゛",
        "end|.\n\n|x",
        "word|\n\n|x",
        "a|  | b",
        "a| \n| b",
        "a| \t\n \n|  | b",
        "a|   ",
        "\tword",
        "\xE2\x80\x8Dword",
        "(word|)",
        "!word|!| word",
        " !?\r\n| \r\n",
        "e\xCC\x81x",
        "\xEE\x80\x80|\xEE\x80\x81"
        "a",
        "\x02\x03|\x04"
        "a|\x05\x06",
        "1|\x7F|2",
        "a| |\x02",
        ".| 。",
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char text[80];
        size_t n = 0, at = 0;
        for (const char *p = cases[k]; *p; p++)
            if (*p != '|')
                text[n++] = *p;
        for (const char *p = cases[k]; *p;) {
            size_t want = strcspn(p, "|"), got = di_pretoken_length(text + at, n - at);
            if (got != want)
                fail_msg("case %zu \"%s\": at byte %zu a piece of %zu bytes, %zu expected", k, cases[k], at, got, want);
            at += want;
            p += want + (p[want] == '|');
        }
        assert_int_equal(at, n);
    }
}

/* ---- encoding and decoding ---- */

static void expect_ids(const char *text, unsigned flags, const int32_t *want, size_t n)
{
    struct di_ids ids = {0};
    assert_int_equal(di_tokenizer_encode(nano, di_str_c(text), flags, &ids, NULL), DI_OK);
    assert_int_equal(ids.n, n);
    if (n)
        assert_memory_equal(ids.v, want, n * sizeof *want);
    di_ids_fini(&ids);
}

static void added_tokens(void **state)
{
    (void)state;
    struct di_str user = DI_STR("<｜User｜>");
    int32_t id = di_tokenizer_find_added(nano, user), bos = di_tokenizer_find_added(nano, DI_STR("<｜begin▁of▁sentence｜>"));
    struct di_ids ids = {0};
    assert_int_equal(bos, 0);
    assert_true(id > 4991 && di_tokenizer_is_added(nano, id) && di_str_eq(di_tokenizer_token_bytes(nano, id), user));
    assert_int_equal(di_tokenizer_size(nano), 5120);
    assert_int_equal(di_tokenizer_n_added(nano), 5120 - 4992 + 3);
    assert_int_equal(di_tokenizer_find_added(nano, DI_STR("<｜User｜")), -1);
    assert_int_equal(di_tokenizer_find_added(nano, DI_STR("the")), -1);
    assert_int_equal(di_tokenizer_find_added(nano, DI_STR("")), -1);
    assert_false(di_tokenizer_is_added(nano, 3));
    assert_false(di_tokenizer_is_added(nano, -1) || di_tokenizer_is_added(nano, 5120) || di_tokenizer_has(nano, 5120));
    assert_int_equal(di_tokenizer_token_bytes(nano, 5120).n, 0);

    int32_t both[] = {bos, id, id};
    expect_ids("<｜begin▁of▁sentence｜><｜User｜><｜User｜>", DI_TOKENIZER_ADDED, both, 3);
    expect_ids("", DI_TOKENIZER_ADDED, NULL, 0);
    /* as plain text no spelling of any added token gives a control id */
    for (int32_t i = 0; i < 5120; i++) {
        if (!di_tokenizer_is_added(nano, i))
            continue;
        struct di_str s = di_tokenizer_token_bytes(nano, i);
        ids.n = 0;
        assert_int_equal(di_tokenizer_encode(nano, s, DI_TOKENIZER_PLAIN, &ids, NULL), DI_OK);
        for (size_t k = 0; k < ids.n; k++)
            assert_false(di_tokenizer_is_added(nano, ids.v[k]));
        ids.n = 0;
        assert_int_equal(di_tokenizer_encode(nano, s, DI_TOKENIZER_ADDED, &ids, NULL), DI_OK);
        assert_true(ids.n == 1 && ids.v[0] == i);
    }
    di_ids_fini(&ids);
}

static void ill_formed_text_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"ab\xff", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "x\xE2\x80", "\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct di_ids ids = {0};
        di_error err = {0};
        assert_int_equal(di_tokenizer_encode(nano, di_str_c(bad[i]), DI_TOKENIZER_ADDED, &ids, &err), DI_ERR_INVALID);
        assert_non_null(strstr(err.where, "byte "));
        assert_int_equal(ids.n, 0);
        di_ids_fini(&ids);
    }
    int32_t beyond[] = {3, 5120}, negative[] = {-1};
    struct di_buf out = {0};
    assert_int_equal(di_tokenizer_decode(nano, beyond, 2, &out, NULL), DI_ERR_INVALID);
    assert_int_equal(di_tokenizer_decode(nano, negative, 1, &out, NULL), DI_ERR_INVALID);
    assert_int_equal(out.n, 0);
    di_buf_fini(&out);
}

static uint32_t random_next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

static uint32_t random_character(uint64_t *rng)
{
    static const uint32_t limit[] = {0x80, 0x80, 0x80, 0x250, 0x800, 0x3100, 0xD800, 0x10000, 0x110000};
    uint32_t c = random_next(rng) % limit[random_next(rng) % (sizeof limit / sizeof *limit)];
    return c >= 0xD800 && c <= 0xDFFF ? ' ' : c;
}

static struct di_str tail_from(const struct di_buf *b, size_t at)
{
    return b->n > at ? (struct di_str){b->p + at, b->n - at} : (struct di_str){0};
}

/* decode(encode(text)) == text, whole and id by id; a streaming decoder only ever emits whole characters. */
static void round_trip_and_streaming(void **state)
{
    (void)state;
    uint64_t rng = 5;
    struct di_buf text = {0}, back = {0}, streamed = {0};
    struct di_ids ids = {0};
    for (int round = 0; round < 3000; round++) {
        di_buf_clear(&text);
        di_buf_clear(&back);
        di_buf_clear(&streamed);
        ids.n = 0;
        for (uint32_t k = random_next(&rng) % 60; k > 0; k--) {
            char c[4];
            size_t n = di_utf8_encode(random_character(&rng), c);
            di_buf_add(&text, c, n);
        }
        unsigned flags = round & 1 ? DI_TOKENIZER_ADDED : DI_TOKENIZER_PLAIN;
        assert_int_equal(di_tokenizer_encode(nano, di_buf_str(&text), flags, &ids, NULL), DI_OK);
        assert_int_equal(di_tokenizer_decode(nano, ids.v, ids.n, &back, NULL), DI_OK);
        assert_true(di_str_eq(di_buf_str(&text), di_buf_str(&back)));
        struct di_utf8_stream stream = {0};
        for (size_t k = 0; k < ids.n; k++) {
            size_t before = streamed.n;
            di_utf8_stream_push(&stream, di_tokenizer_token_bytes(nano, ids.v[k]), &streamed);
            assert_true(di_utf8_valid(tail_from(&streamed, before), NULL));
        }
        di_utf8_stream_end(&stream, &streamed);
        assert_true(di_str_eq(di_buf_str(&text), di_buf_str(&streamed)));
    }
    /* and for ids in any order, where bytes need not fit */
    for (int round = 0; round < 3000; round++) {
        struct di_utf8_stream stream = {0};
        ids.n = 0;
        di_buf_clear(&back);
        di_buf_clear(&streamed);
        assert_true(di_ids_reserve(&ids, 40));
        for (size_t k = 0; k < 40; k++) {
            size_t before = streamed.n;
            ids.v[ids.n++] = (int32_t)(random_next(&rng) % (round & 1 ? 300 : 5120));
            di_utf8_stream_push(&stream, di_tokenizer_token_bytes(nano, ids.v[k]), &streamed);
            assert_true(di_utf8_valid(tail_from(&streamed, before), NULL));
        }
        di_utf8_stream_end(&stream, &streamed);
        assert_int_equal(di_tokenizer_decode(nano, ids.v, ids.n, &back, NULL), DI_OK);
        assert_true(di_str_eq(di_buf_str(&back), di_buf_str(&streamed)));
    }
    di_ids_fini(&ids);
    di_buf_fini(&text);
    di_buf_fini(&back);
    di_buf_fini(&streamed);
}

/* What may be sent after each id, from raw token bytes. */
static void stream_cases(void **state)
{
    (void)state;
    struct di_buf text = {0}, out = {0};
    struct di_arena arena;
    struct di_json *root;
    size_t cases = 0;
    di_arena_init(&arena);
    assert_int_equal(di_file_read("tests/data/text/utf8_stream_cases.json", (size_t)1 << 20, &text, NULL), DI_OK);
    assert_int_equal(di_json_parse(di_buf_str(&text), NULL, &arena, &root, NULL), DI_OK);
    for (const struct di_json *c = di_json_get(root, "cases")->child; c; c = c->next, cases++) {
        struct di_utf8_stream stream = {0};
        const struct di_json *want = di_json_get(c, "emit_after_each")->child;
        for (const struct di_json *t = di_json_get(c, "token_bytes")->child; t; t = t->next, want = want->next) {
            char bytes[128];
            size_t n = 0;
            int64_t b;
            for (const struct di_json *v = t->child; v; v = v->next) {
                assert_true(di_json_int(v, &b) && n < sizeof bytes);
                bytes[n++] = (char)b;
            }
            di_buf_clear(&out);
            di_utf8_stream_push(&stream, (struct di_str){bytes, n}, &out);
            assert_true(di_str_eq(di_buf_str(&out), want->text));
        }
        di_buf_clear(&out);
        di_utf8_stream_end(&stream, &out);
        assert_true(di_str_eq(di_buf_str(&out), di_json_get(c, "emit_at_end")->text));
    }
    assert_int_equal(cases, 15);
    di_arena_fini(&arena);
    di_buf_fini(&text);
    di_buf_fini(&out);
}

/* ---- long pieces ---- */

/* The plainest BPE: look for the best pair, merge, start over. */
static size_t naive_merge(int32_t *sym, size_t n, const struct di_json *merges, const int32_t (*triple)[3])
{
    for (;;) {
        size_t best = SIZE_MAX, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t r = 0; r < merges->count && r < best; r++)
                if (triple[r][0] == sym[i] && triple[r][1] == sym[i + 1]) {
                    best = r;
                    at = i;
                }
        if (best == SIZE_MAX)
            return n;
        sym[at] = triple[best][2];
        memmove(sym + at + 1, sym + at + 2, (n - at - 2) * sizeof *sym);
        n--;
    }
}

/* A tokenizer with few merges, ties and nested overlaps: short and long pieces against the plainest BPE. */
static void merging_equals_the_plain_definition(void **state)
{
    (void)state;
    enum { MERGES = 9 };
    static const int32_t triple[MERGES][3] = {{'a', 'a', 256}, {'a', 'b', 257}, {256, 'a', 258}, {256, 256, 259}, {257, 'a', 260},
                                              {'b', 'b', 261}, {260, 257, 262}, {258, 'b', 263}, {261, 256, 264}};
    struct di_bpe bpe = {0};
    struct di_json count = {.count = MERGES};
    struct di_ids ids = {0};
    uint64_t rng = 11;
    for (int i = 0; i < 256; i++)
        bpe.byte_id[i] = i;
    assert_int_equal(di_bpe_init(&bpe, MERGES, NULL), DI_OK);
    for (int r = 0; r < MERGES; r++)
        assert_int_equal(di_bpe_add(&bpe, triple[r][0], triple[r][1], triple[r][2], NULL), DI_OK);
    di_bpe_finish(&bpe);
    for (int round = 0; round < 4000; round++) {
        char text[600];
        int32_t sym[600];
        size_t n = 1 + random_next(&rng) % (round % 16 == 0 ? 600 : round & 1 ? 200 : 30);
        for (size_t i = 0; i < n; i++)
            sym[i] = text[i] = "aaaabbbc"[random_next(&rng) % (round & 2 ? 8 : 5)];
        size_t want = naive_merge(sym, n, &count, triple);
        ids.n = 0;
        assert_int_equal(di_bpe_encode(&bpe, text, n, &ids, NULL), DI_OK);
        assert_int_equal(ids.n, want);
        assert_memory_equal(ids.v, sym, want * sizeof *sym);
    }
    di_ids_fini(&ids);
    di_bpe_fini(&bpe);
}

/* Of this thread: what else the machine does is not counted. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void two_megabytes_without_a_space(void **state)
{
    (void)state;
    static const char *const unit[] = {"a", "abcdefgh", "thequickbrownfox", "日本語", "=", " "};
    const size_t size = (size_t)2 << 20;
    for (size_t k = 0; k < sizeof unit / sizeof *unit; k++) {
        struct di_buf text = {0}, back = {0};
        struct di_ids ids = {0};
        while (text.n < size)
            di_buf_adds(&text, unit[k]);
        assert_int_equal(di_pretoken_length(text.p, text.n), text.n);
        double start = cpu_seconds();
        assert_int_equal(di_tokenizer_encode(nano, di_buf_str(&text), DI_TOKENIZER_ADDED, &ids, NULL), DI_OK);
        double seconds = cpu_seconds() - start;
        print_message("2 MiB of \"%s\": %.3f s\n", unit[k], seconds);
        assert_true(seconds < 2.0 * SLOWNESS); /* the aim is 1 s */
        assert_int_equal(di_tokenizer_decode(nano, ids.v, ids.n, &back, NULL), DI_OK);
        assert_true(di_str_eq(di_buf_str(&text), di_buf_str(&back)));
        di_ids_fini(&ids);
        di_buf_fini(&text);
        di_buf_fini(&back);
    }
}

/* ---- files ---- */

struct edit {
    const char *from, *to; /* first occurrence */
    di_status want;
};

static di_status load_edited(const struct edit *e, di_error *err)
{
    struct di_buf text = {0};
    struct di_tokenizer *t = NULL;
    size_t at = di_str_find(di_buf_str(&nano_json), di_str_c(e->from), 0);
    if (at == SIZE_MAX)
        fail_msg("the file has no %s", e->from);
    di_buf_add(&text, nano_json.p, at);
    di_buf_adds(&text, e->to);
    di_buf_add(&text, nano_json.p + at + strlen(e->from), nano_json.n - at - strlen(e->from));
    di_status status = di_tokenizer_from_json(di_buf_str(&text), &t, err);
    assert_true((status == DI_OK) == (t != NULL));
    di_tokenizer_destroy(t);
    di_buf_fini(&text);
    return status;
}

static const struct edit edits[] = {
    {"\"version\"", "\"version\"", DI_OK},
    {"\"truncation\": null,", "", DI_OK},
    {"\"Ġ t\"", "[\"Ġ\", \"t\"]", DI_OK},
    /* ids */
    {"\"\\\"\": 4", "\"\\\"\": 3", DI_ERR_FORMAT},
    {"\"\\\"\": 4", "\"\\\"\": -4", DI_ERR_FORMAT},
    {"\"\\\"\": 4", "\"\\\"\": 4.0", DI_ERR_FORMAT},
    {"\"\\\"\": 4", "\"\\\"\": \"4\"", DI_ERR_FORMAT},
    {"\"\\\"\": 4", "\"\\\"\": 99999999999999999999", DI_ERR_FORMAT},
    {"\"\\\"\": 4", "\"\\\"\": 1048575", DI_ERR_LIMIT},
    {"\"\\\"\": 4", "\"\\\"\": 1048574", DI_OK}, /* a hole at 4, and many more */
    {"\"\\\"\": 4", "\"!\": 4", DI_ERR_FORMAT},
    {"\"\\\"\": 4", "\"\": 4", DI_ERR_FORMAT},
    {"\"\\\"\": 4",
     "\""
     "\xE2\x82\xAC"
     "\": 4",
     DI_ERR_UNSUPPORTED}, /* a byte has no entry */
    /* merges */
    {"\"Ġ t\"", "\"Ġ  t\"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\"Ġt\"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\" t\"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\"t \"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\"\"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\"Ġ a\"", DI_ERR_FORMAT}, /* twice */
    {"\"Ġ t\"", "\"Ġ \xE2\x82\xAC\"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\"\\u0000 t\"", DI_ERR_FORMAT},
    {"\"Ġ t\"", "[\"Ġ\"]", DI_ERR_FORMAT},
    {"\"Ġ t\"", "[\"Ġ\", \"t\", \"h\"]", DI_ERR_FORMAT},
    {"\"Ġ t\"", "[\"Ġ\", 7]", DI_ERR_FORMAT},
    {"\"Ġ t\"", "7", DI_ERR_FORMAT},
    {"\"merges\"", "\"merged\"", DI_ERR_FORMAT},
    {"\"vocab\"", "\"vocabulary\"", DI_ERR_FORMAT},
    /* added tokens */
    {"\"id\": 1,", "\"id\": 3,", DI_ERR_UNSUPPORTED}, /* an ordinary entry */
    {"\"id\": 1,", "\"id\": 2,", DI_ERR_FORMAT},
    {"\"id\": 1,", "\"id\": 4993,", DI_ERR_FORMAT},
    {"\"id\": 1,", "\"id\": -1,", DI_ERR_FORMAT},
    {"\"id\": 1,", "\"id\": 1048575,", DI_ERR_LIMIT},
    {"\"id\": 1,", "", DI_ERR_FORMAT},
    {"\"id\": 1,", "\"id\": 6000,", DI_ERR_FORMAT}, /* the spelling has id 1 in the vocabulary */
    {"<｜▁pad▁｜>", "<｜end▁of▁sentence｜>", DI_ERR_FORMAT},
    {"<｜place▁holder▁no▁0｜>", "<｜place▁holder▁no▁1｜>", DI_ERR_FORMAT},
    {"<｜place▁holder▁no▁0｜>", "the", DI_ERR_UNSUPPORTED},
    {"<｜place▁holder▁no▁0｜>", "", DI_ERR_FORMAT},
    {"\"lstrip\": false", "\"lstrip\": true", DI_ERR_UNSUPPORTED},
    {"\"rstrip\": false", "\"rstrip\": true", DI_ERR_UNSUPPORTED},
    {"\"single_word\": false", "\"single_word\": true", DI_ERR_UNSUPPORTED},
    {"\"normalized\": false", "\"normalized\": true", DI_OK},
    {"\"added_tokens\": [", "\"added_tokens\": [7,", DI_ERR_FORMAT},
    {"\"added_tokens\": [", "\"added_tokens\": {}, \"x\": [", DI_ERR_FORMAT},
    {"\"added_tokens\": [", "\"x\": [", DI_OK},
    /* settings */
    {"\"truncation\": null", "\"truncation\": {\"max_length\": 5}", DI_ERR_UNSUPPORTED},
    {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", DI_ERR_UNSUPPORTED},
    {"\"dropout\": null", "\"dropout\": 0.5", DI_ERR_UNSUPPORTED},
    {"\"unk_token\": null", "\"unk_token\": \"?\"", DI_ERR_UNSUPPORTED},
    {"\"byte_fallback\": false", "\"byte_fallback\": true", DI_ERR_UNSUPPORTED},
    {"\"byte_fallback\": false", "\"ignore_merges\": true", DI_ERR_UNSUPPORTED},
    {"\"normalizers\": []", "\"normalizers\": [{\"type\": \"NFC\"}]", DI_ERR_UNSUPPORTED},
    {"p{N}{1,3}", "p{N}{1,2}", DI_ERR_UNSUPPORTED},
    {"[一-龥", "[一-龦", DI_ERR_UNSUPPORTED},
    {"A-Za-z", "A-Z", DI_ERR_UNSUPPORTED},
    {"\"Isolated\"", "\"Removed\"", DI_ERR_UNSUPPORTED},
    {"\"invert\": false", "\"invert\": true", DI_ERR_UNSUPPORTED},
    {"\"use_regex\": false", "\"use_regex\": true", DI_ERR_UNSUPPORTED},
    {"\"add_prefix_space\": false", "\"add_prefix_space\": true", DI_ERR_UNSUPPORTED},
    {"\"decoder\"", "\"decoders\"", DI_ERR_UNSUPPORTED},
    {"\"model\"", "\"models\"", DI_ERR_FORMAT},
    {"\"version\"", "\"model\": 1, \"version\"", DI_ERR_FORMAT}, /* a key twice */
    {"\"version\": ", "\"version\": [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]], \"x\": ", DI_ERR_LIMIT},
    {"{", "[{", DI_ERR_FORMAT},
    {"\"Ġ t\"", "\"\\ud800 t\"", DI_ERR_FORMAT},
};

static void broken_and_foreign_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        di_error err = {0};
        di_status got = load_edited(&edits[i], &err);
        if (got != edits[i].want)
            fail_msg("edit %zu, %s for %s: %s (%s: %s), %s expected", i, edits[i].to, edits[i].from, di_status_name(got), err.where,
                     err.message, di_status_name(edits[i].want));
        if (got != DI_OK)
            assert_true(err.code == got && err.message[0]);
    }
    struct di_tokenizer *t;
    for (size_t n = 0; n < nano_json.n; n += n < 4000 ? 37 : 4999) /* cut off anywhere */
        assert_int_equal(di_tokenizer_from_json((struct di_str){nano_json.p, n}, &t, NULL), DI_ERR_FORMAT);
    assert_int_equal(di_tokenizer_load("tests/data", &t, NULL), DI_ERR_NOT_FOUND);
    assert_int_equal(di_tokenizer_load("no such file", &t, NULL), DI_ERR_NOT_FOUND);
    di_error err = {0};
    assert_int_equal(di_tokenizer_load("README.md", &t, &err), DI_ERR_FORMAT);
    assert_string_equal(err.where, "README.md"); /* the file, also where its text is wrong */
}

/* The nano file with one text in the place of another. */
static struct di_tokenizer *edited(const char *from, const char *to)
{
    struct di_buf text = {0};
    struct di_tokenizer *t = NULL;
    size_t at = di_str_find(di_buf_str(&nano_json), di_str_c(from), 0);
    assert_int_not_equal(at, SIZE_MAX);
    di_buf_add(&text, nano_json.p, at);
    di_buf_adds(&text, to);
    di_buf_add(&text, nano_json.p + at + strlen(from), nano_json.n - at - strlen(from));
    assert_int_equal(di_tokenizer_from_json(di_buf_str(&text), &t, NULL), DI_OK);
    di_buf_fini(&text);
    return t;
}

static void expect_encoding(const struct di_tokenizer *t, const char *text, size_t n, const int32_t *want)
{
    struct di_ids ids = {0};
    assert_int_equal(di_tokenizer_encode(t, di_str_c(text), DI_TOKENIZER_ADDED, &ids, NULL), DI_OK);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.v, want, n * sizeof *want);
    di_ids_fini(&ids);
}

/* Leftmost, then longest; those with "normalized": false before all others. */
static void overlapping_added_tokens(void **state)
{
    (void)state;
    struct di_tokenizer *t =
        edited("\"added_tokens\": [",
               "\"added_tokens\": [{\"id\": 6001, \"content\": \"#a\"}, {\"id\": 6002, \"content\": \"#a1#c\"}, "
               "{\"id\": 6003, \"content\": \"#c\"},"
               "{\"id\": 6004, \"content\": \"1#\", \"normalized\": true}, {\"id\": 6005, \"content\": \"1#1\", \"normalized\": true},");
    int32_t one = '1' - '!' + 3, hash = '#' - '!' + 3; /* single bytes have these ids */
    expect_encoding(t, "#a", 1, (int32_t[]){6001});
    expect_encoding(t, "#a1#c", 1, (int32_t[]){6002});
    expect_encoding(t, "#a1#", 2, (int32_t[]){6001, 6004});
    expect_encoding(t, "#a1#1", 2, (int32_t[]){6001, 6005});
    expect_encoding(t, "1#c", 2, (int32_t[]){one, 6003}); /* not 1# first, although it begins further left */
    expect_encoding(t, "##a#", 3, (int32_t[]){hash, 6001, hash});
    di_tokenizer_destroy(t);
}

/* An entry that no merges lead to is never produced, also where a piece has just its bytes. */
static void entries_without_merges(void **state)
{
    (void)state;
    struct di_tokenizer *t = edited("\"vocab\": {", "\"vocab\": {\"qqqxqq\": 6000,");
    struct di_ids with = {0}, without = {0};
    assert_true(di_str_eq(di_tokenizer_token_bytes(t, 6000), DI_STR("qqqxqq")));
    assert_int_equal(di_tokenizer_encode(t, DI_STR("qqqxqq"), 0, &with, NULL), DI_OK);
    assert_int_equal(di_tokenizer_encode(nano, DI_STR("qqqxqq"), 0, &without, NULL), DI_OK);
    assert_int_equal(with.n, without.n);
    assert_memory_equal(with.v, without.v, with.n * sizeof *with.v);
    di_ids_fini(&with);
    di_ids_fini(&without);
    di_tokenizer_destroy(t);
}

static void holes_have_no_bytes(void **state)
{
    (void)state;
    struct di_buf out = {0};
    struct di_tokenizer *t = edited("\"\\\"\": 4", "\"\\\"\": 9000");
    struct di_ids ids = {0};
    assert_int_equal(di_tokenizer_size(t), 9001);
    int32_t hole[] = {4, 8999};
    for (int i = 0; i < 2; i++) {
        assert_false(di_tokenizer_has(t, hole[i]));
        assert_int_equal(di_tokenizer_token_bytes(t, hole[i]).n, 0);
        assert_int_equal(di_tokenizer_decode(t, hole + i, 1, &out, NULL), DI_ERR_INVALID);
    }
    assert_int_equal(di_tokenizer_encode(t, DI_STR("\""), 0, &ids, NULL), DI_OK);
    assert_true(ids.n == 1 && ids.v[0] == 9000);
    di_ids_fini(&ids);
    di_tokenizer_destroy(t);
    di_buf_fini(&out);
}

static void running_out_of_memory(void **state)
{
    (void)state;
    struct di_tokenizer *t = NULL;
    struct di_ids ids = {0};
    for (uint64_t n = 0;; n++) {
        di_mem_fail_after(n);
        di_status status = di_tokenizer_from_json(di_buf_str(&nano_json), &t, NULL);
        di_mem_fail_after(UINT64_MAX);
        if (status == DI_OK)
            break;
        assert_int_equal(status, DI_ERR_MEMORY);
        assert_null(t);
    }
    di_mem_fail_after(0);
    assert_int_equal(di_tokenizer_encode(t, DI_STR("some text"), DI_TOKENIZER_ADDED, &ids, NULL), DI_ERR_MEMORY);
    di_mem_fail_after(UINT64_MAX);
    assert_int_equal(ids.n, 0);
    di_ids_fini(&ids);
    di_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_unicode_16),
        cmocka_unit_test(pieces_of_the_handed_cases),
        cmocka_unit_test(pieces_of_special_mixtures),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(ill_formed_text_is_refused),
        cmocka_unit_test(round_trip_and_streaming),
        cmocka_unit_test(stream_cases),
        cmocka_unit_test(merging_equals_the_plain_definition),
        cmocka_unit_test(two_megabytes_without_a_space),
        cmocka_unit_test(broken_and_foreign_files),
        cmocka_unit_test(overlapping_added_tokens),
        cmocka_unit_test(entries_without_merges),
        cmocka_unit_test(holes_have_no_bytes),
        cmocka_unit_test(running_out_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
