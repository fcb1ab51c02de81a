/* not run under TSan: no threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/json.h"
#include "text/pretokenizer.h"
#include "text/token_map.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>

static struct di_tokenizer *nano;

static int setup(void **state)
{
    (void)state;
    return di_tokenizer_load("models/nano", &nano, NULL) == DI_OK ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    di_tokenizer_destroy(nano);
    return 0;
}

/* SHA-256 of the map as little-endian int32 values; the map itself was compared with the golden vectors of the nano model. */
static void map_of_the_nano_model(void **state)
{
    (void)state;
    int32_t n = di_tokenizer_size(nano), distinct, *map = malloc((size_t)n * sizeof *map);
    assert_int_equal(di_token_map_build(nano, map, n, &distinct, NULL), DI_OK);
    assert_int_equal(distinct, 4367);
    assert_true(map[0] == 0 && map[2] == 2 && map[3] == 3);
    unsigned char *bytes = malloc((size_t)n * 4), digest[SHA256_DIGEST_LENGTH];
    char hex[65];
    for (int32_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            bytes[4 * i + k] = (unsigned char)((uint32_t)map[i] >> (8 * k));
    SHA256(bytes, (size_t)n * 4, digest);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(hex, "a987a71db30cf06bdd25ce5860e938ac25427e7633f5e2fd2dd7abd47b9aee4f");

    int32_t seen = -1; /* new values come in order */
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(map[i], 0, seen + 1);
        seen = map[i] > seen ? map[i] : seen;
    }
    assert_int_equal(di_token_map_build(nano, map, n + 1, &distinct, NULL), DI_ERR_INVALID);
    assert_int_equal(di_token_map_build(nano, map, 0, &distinct, NULL), DI_OK);
    assert_int_equal(distinct, 0);
    free(bytes);
    free(map);
}

/* The steps of the normaliser (spec/model.md §5.9), on added tokens, which may be spelled at will. */
static const struct {
    const char *json, *key; /* the spelling as it stands in JSON */
} cases[] = {
    {"ABC Q", "abc q"},
    {"Q\\u0130Q", "qiq"},                                      /* decomposed, the dot deleted */
    {"\\uFB01QQ", "fiqq"},                                     /* compatibility */
    {"\\u00C5QQ\\u0301", "aqq"},                               /* marks */
    {"\\u03A3\\u03A3QQ\\u03A3", "\xCF\x83\xCF\x83qq\xCF\x83"}, /* no final sigma */
    {"\\u1E9EQQ", "\xC3\x9Fqq"},
    {"QQ \\t\\r\\n QQ", "qq qq"},
    {"\\u00A0QQ\\u2003 ", "qq"},
    {" \\n\\t\\r ", " "},                   /* only white space: one space stays */
    {"\\u2003\\u2003", " "},                /* compatibility makes them plain spaces */
    {"\\u0085\\u0085", "\xC2\x85\xC2\x85"}, /* white space that is not plain goes; an empty result gives the text itself */
    {"\\u0301\\u0302", "\xCC\x81\xCC\x82"}, /* nothing left: the text itself */
    {"Q\\uE000Q", "q q"},
    {"\\uFF5CQ\\uFF5C", "|q|"},
    {"Q\\uFFFDQ", "Q\xEF\xBF\xBDQ"}, /* U+FFFD: as written in the file */
    {"\\u212B", "a"},
    {"\\uD55C", "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"},
};

static void write_tokenizer(struct di_buf *json)
{
    di_buf_adds(json, "{\"added_tokens\": [");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        di_buf_addf(json, "%s{\"id\": %zu, \"content\": \"%s\"}", i ? "," : "", 256 + i, cases[i].json);
    di_buf_adds(json, "], \"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [");
    for (size_t i = 0; i < 3; i++) {
        di_buf_adds(json, "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": ");
        di_json_write_string(json, di_str_c(di_pretoken_regex[i]));
        di_buf_adds(json, "}},");
    }
    di_buf_adds(json, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}, "
                      "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
    for (unsigned b = 0; b < 256; b++) {
        di_buf_adds(json, b ? ",\"" : "\"");
        if (b == '"' || b == '\\')
            di_buf_addc(json, '\\');
        di_tokenizer_add_byte_char(json, (unsigned char)b);
        di_buf_addf(json, "\": %u", b);
    }
    di_buf_adds(json, "}}}");
}

static void keys(void **state)
{
    (void)state;
    struct di_buf json = {0}, key = {0};
    write_tokenizer(&json);
    struct di_tokenizer *t = NULL;
    di_error err = {0};
    if (di_tokenizer_from_json(di_buf_str(&json), &t, &err) != DI_OK)
        fail_msg("%s: %s", err.where, err.message);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_buf_clear(&key);
        assert_int_equal(di_token_map_key(t, (int32_t)(256 + i), &key, NULL), DI_OK);
        assert_string_equal(key.p, cases[i].key);
    }
    /* bytes that are no character: the entry as written; single letters: folded */
    di_buf_clear(&key);
    assert_int_equal(di_token_map_key(t, 0xFF, &key, NULL), DI_OK);
    assert_string_equal(key.p, "\xC3\xBF");
    di_buf_clear(&key);
    assert_int_equal(di_token_map_key(t, 0x80, &key, NULL), DI_OK);
    assert_string_equal(key.p, "\xC4\xA2");
    di_buf_clear(&key);
    assert_int_equal(di_token_map_key(t, 'A', &key, NULL), DI_OK);
    assert_string_equal(key.p, "a");
    assert_int_equal(di_token_map_key(t, 5000, &key, NULL), DI_ERR_INVALID);
    di_tokenizer_destroy(t);
    di_buf_fini(&json);
    di_buf_fini(&key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_of_the_nano_model),
        cmocka_unit_test(keys),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
