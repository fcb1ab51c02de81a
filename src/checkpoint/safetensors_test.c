/* not run under TSan: no threads */
/* The safetensors reader against files that lie, and the writer against the reader. */
#include "checkpoint/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* A file image in memory: header text and n bytes of data. */
static di_status parse(const char *header, size_t data, struct di_safetensors *st, di_error *err)
{
    static _Alignas(8) uint8_t image[1 << 16];
    size_t n = strlen(header);
    memset(image, 0, 8);
    memcpy(image, (uint32_t[]){(uint32_t)n}, 4);
    memcpy(image + 8, header, n);
    memset(image + 8 + n, 0x5A, data);
    return di_safetensors_parse(image, 8 + n + data, "image", st, err);
}

struct bad_case {
    const char *header;
    size_t data;
    const char *sentence;
};

static const struct bad_case bad_cases[] = {
    {"", 0, "begin with '{'"},
    {"[]      ", 0, "begin with '{'"},
    {"{       ", 0, "not valid JSON"},
    {"{\"a\":1} ", 0, "an object was expected, not number"},
    {"{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"F99\" is unknown"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype must be a string, not number"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype must be a string, not nothing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0 of its shape is no natural number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4,1.0],\"data_offsets\":[0,4]}}", 4, "dimension 1 of its shape is no natural number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,4],\"data_offsets\":[0,4]}}", 4, "at most 6 numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "at most 6 numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "more bytes than an address can count"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[9223372036854775807],\"data_offsets\":[0,0]}}", 0, "more bytes than an address can count"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0, "no natural number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "two ascending natural numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, "two ascending natural numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", 4, "two ascending natural numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", 4, "two ascending natural numbers"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "truncated: tensor a ends at byte 4 of the data, which has 3"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[9223372036854775800,9223372036854775804]}}", 4, "truncated"},
    {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "need 8 bytes, its data_offsets give 4"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 9, "5 bytes of data at the end belong to no tensor"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}", 7,
     "tensors a and b overlap"},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
     "overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}", 10,
     "a hole of 2 bytes lies before tensor b"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8,
     "the key \"a\" occurs twice"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "name is empty or contains a 0 byte"},
    {"{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "name is empty or contains a 0 byte"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ must be an object of strings"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ must be an object of strings"},
    {"{\"a\":{\"dtype\":[[[[[[[[1]]]]]]]],\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "nested deeper"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[3,5]}}  ", 5,
     "tensor b is misaligned"},
};

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
        struct di_safetensors st;
        di_error err = {0};
        if (parse(bad_cases[i].header, bad_cases[i].data, &st, &err) == DI_OK)
            fail_msg("accepted: %s", bad_cases[i].header);
        if (!strstr(err.message, bad_cases[i].sentence))
            fail_msg("%s: \"%s\" lacks \"%s\"", bad_cases[i].header, err.message, bad_cases[i].sentence);
        assert_string_equal(err.where, "image");
    }
}

static void false_lengths(void **state)
{
    (void)state;
    static const uint64_t claims[] = {1, 1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct di_safetensors st;
        di_error err;
        _Alignas(8) uint8_t image[8];
        memcpy(image, &claims[i], 8);
        assert_int_equal(di_safetensors_parse(image, 8, "image", &st, &err), DI_ERR_FORMAT);
        assert_non_null(strstr(err.message, "it claims a header of"));
        assert_int_equal(di_safetensors_parse(image, 7, "image", &st, &err), DI_ERR_FORMAT);
        assert_non_null(strstr(err.message, "too few"));
    }
}

static void accepts(void **state)
{
    (void)state;
    struct di_safetensors st;
    di_error err;
    assert_int_equal(parse("{}", 0, &st, &err), DI_OK);
    assert_null(di_safetensors_find(&st, "a"));
    di_safetensors_close(&st);
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                         "\"empty\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                         "\"a\\u00e9\":{\"dtype\":\"U8\",\"shape\":[1,3],\"data_offsets\":[4,7]}} ";
    char padded[512];
    snprintf(padded, sizeof padded, "%s%*s", header, (int)((8 - strlen(header) % 8) % 8), "");
    assert_int_equal(parse(padded, 7, &st, &err), DI_OK);
    assert_int_equal(st.count, 3);
    const struct di_tensor *t = di_safetensors_find(&st, "b");
    assert_true(t && t->ndim == 0 && t->bytes == 4 && t->dtype == DI_DT_F32);
    t = di_safetensors_find(&st, "a\xC3\xA9");
    assert_true(t && t->ndim == 2 && t->shape[1] == 3 && t->data == di_safetensors_find(&st, "b")->data + 4);
    assert_non_null(di_safetensors_find(&st, "empty"));
    di_safetensors_close(&st);
}

static void make_path(char *path, size_t cap)
{
    snprintf(path, cap, "%s/di_safetensors_%ld", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
}

static void round_trip(void **state)
{
    (void)state;
    char path[256];
    make_path(path, sizeof path);
    uint8_t bytes[5] = {1, 2, 3, 4, 5};
    double wide[2] = {1.5, -2};
    uint16_t half[3] = {7, 8, 9};
    struct di_tensor in[] = {
        {.name = DI_STR("zz \"q\""), .dtype = DI_DT_I8, .ndim = 1, .shape = {5}, .data = bytes, .bytes = 5},
        {.name = DI_STR("half"), .dtype = DI_DT_BF16, .ndim = 2, .shape = {1, 3}, .data = (uint8_t *)half, .bytes = 6},
        {.name = DI_STR("wide"), .dtype = DI_DT_F64, .ndim = 1, .shape = {2}, .data = (uint8_t *)wide, .bytes = 16},
    };
    struct di_safetensors st;
    di_error err = {0};
    assert_int_equal(di_safetensors_write(path, in, 3, &err), DI_OK);
    assert_int_equal(di_safetensors_open(path, &st, &err), DI_OK);
    assert_int_equal(st.count, 3);
    for (int i = 0; i < 3; i++) {
        const struct di_tensor *t = di_safetensors_find(&st, in[i].name.p);
        assert_non_null(t);
        assert_true(t->dtype == in[i].dtype && t->ndim == in[i].ndim && t->bytes == in[i].bytes);
        assert_memory_equal(t->shape, in[i].shape, sizeof t->shape);
        assert_memory_equal(t->data, in[i].data, t->bytes);
    }
    di_safetensors_close(&st);
    in[1].bytes = 5;
    assert_int_equal(di_safetensors_write(path, in, 3, &err), DI_ERR_INVALID);
    assert_non_null(strstr(err.message, "5 bytes given, 6 needed"));
    assert_int_equal(di_safetensors_open(path, &st, NULL), DI_OK); /* the failed write left the old file */
    di_safetensors_close(&st);
    assert_int_equal(di_safetensors_write("/nonexistent/x", in, 0, &err), DI_ERR_IO);
    in[1].bytes = 6;
    char link[300];
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink("/dev/full", link), 0);
    assert_int_equal(di_safetensors_write(link, in, 3, &err), DI_ERR_IO); /* and the link is still one */
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(di_safetensors_write(link, in, 2, &err), DI_OK);
    assert_int_equal(di_safetensors_open(path, &st, &err), DI_OK);
    assert_int_equal(st.count, 2);
    di_safetensors_close(&st);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(di_safetensors_open(path, &st, &err), DI_ERR_NOT_FOUND);
    assert_int_equal(di_safetensors_open("/", &st, &err), DI_ERR_INVALID);
}

/* A real file cut at every byte of its header, and at some of its data, is refused and never read beyond its end. */
static void cut_anywhere(void **state)
{
    (void)state;
    struct di_safetensors st, cut;
    di_error err = {0};
    assert_int_equal(di_safetensors_open("tests/data/vectors/tiny_b/model-00002-of-00003.safetensors", &st, &err), DI_OK);
    size_t step = 1;
    for (size_t n = 0; n < st.map_bytes; n += step) {
        void *copy = di_malloc(n);
        memcpy(copy, st.map, n);
        assert_int_not_equal(di_safetensors_parse(copy, n, "cut", &cut, &err), DI_OK);
        if (n >= 8)
            assert_non_null(strstr(err.message, "truncated"));
        di_free(copy);
        if (n > st.data_start + 64)
            step = 9973;
        else if (n > 64 && n + 64 < st.data_start)
            step = 61;
        else
            step = 1;
    }
    di_safetensors_close(&st);
}

static void no_memory(void **state)
{
    (void)state;
    struct di_safetensors st;
    di_error err;
    di_status status = DI_ERR_MEMORY;
    for (uint64_t n = 0; status != DI_OK; n++) {
        di_mem_fail_after(n);
        status = di_safetensors_open("tests/data/vectors/tiny_b/model-00002-of-00003.safetensors", &st, &err);
        di_mem_fail_after(UINT64_MAX);
        assert_true(status == DI_OK || status == DI_ERR_MEMORY);
        assert_true(n < 10000);
    }
    di_safetensors_close(&st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),   cmocka_unit_test(false_lengths), cmocka_unit_test(accepts),
        cmocka_unit_test(round_trip), cmocka_unit_test(cut_anywhere),  cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
