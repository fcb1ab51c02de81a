/* not run under TSan: no threads */
#include "cache/block_key.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <openssl/crypto.h>

static int64_t crypto_live, crypto_allocations;

static void *crypto_malloc(size_t n, const char *file, int line)
{
    (void)file, (void)line;
    crypto_allocations++;
    crypto_live++;
    return malloc(n);
}

static void *crypto_realloc(void *p, size_t n, const char *file, int line)
{
    (void)file, (void)line;
    crypto_allocations++;
    crypto_live += !p;
    return realloc(p, n);
}

static void crypto_free(void *p, const char *file, int line)
{
    (void)file, (void)line;
    crypto_live -= p != NULL;
    free(p);
}

static struct di_hasher *new_hasher(void)
{
    struct di_hasher *h;
    assert_int_equal(di_hasher_create(&h, NULL), DI_OK);
    return h;
}

static void same(const struct di_key *key, const char *hex)
{
    char got[2 * DI_KEY_BYTES + 1];
    for (int i = 0; i < DI_KEY_BYTES; i++)
        snprintf(got + 2 * i, 3, "%02x", key->byte[i]);
    assert_string_equal(got, hex);
}

static struct di_key root_of(struct di_hasher *h, const char *numerics, const char *salt)
{
    uint8_t model[32];
    struct di_key root;
    for (int i = 0; i < 32; i++)
        model[i] = (uint8_t)i;
    assert_true(di_key_of_root(h, &(struct di_key_root){model, numerics, salt, strlen(salt)}, &root));
    return root;
}

static struct di_key image_of(struct di_hasher *h, const char *type, int64_t x, int64_t y, const void *bytes, size_t n)
{
    int64_t shape[] = {x, y, 3};
    struct di_key key;
    assert_true(di_key_of_image(
        h, &(struct di_key_pixels){.recipe = "v1", .type = type, .shape = shape, .n_shape = 3, .bytes = bytes, .n_bytes = n}, &key));
    return key;
}

/* The expected keys come from an independent implementation (Python's hashlib) of the layout at the top of block_key.h. */
static void report_A15_keys_are_the_same_in_every_process(void **state)
{
    (void)state;
    struct di_hasher *h = new_hasher();
    int32_t tokens[130];
    uint8_t pixels[18];
    for (int i = 0; i < 130; i++)
        tokens[i] = i ? (int32_t)(((int64_t)i * 7919 - 3) & 0x7fffffff) : -1;
    for (int i = 0; i < 18; i++)
        pixels[i] = (uint8_t)i;
    struct di_key root = root_of(h, "bf16/cpu-avx512", ""), tenant = root_of(h, "bf16/cpu-avx512", "tenant-a"), key = root;
    same(&root, "96adb0536b561a3df579cebd47ec5eed3f35bfe521c3551116de85dd4872e72b");
    same(&tenant, "320d46af50d536f9a063c563605129a558927e8605cccc3bbb06572fc82650d8");
    struct di_key_text t = {tokens, 130, NULL, 0};
    assert_true(di_key_of_block(h, &key, &t, 0, 64, &key));
    same(&key, "379e13e69bde36e1f4952508eabb2683d2410c18326e8e64b80de20d481e7c3d");
    assert_true(di_key_of_block(h, &key, &t, 64, 64, &key));
    same(&key, "02c5291039efeef69a4824c659c70ec9562dd8d1d99cfcbe351c1a7679ffe904");
    assert_true(di_key_of_block(h, &key, &t, 128, 2, &key));
    same(&key, "f56d29acdf347bca969d8077c9f8122a924fd9bca6d7000d4e780299c10b70af");
    struct di_key pixel_key;
    int64_t shape[] = {2, 3, 3};
    assert_true(di_key_of_image(
        h, &(struct di_key_pixels){.recipe = "v1", .type = "u8", .shape = shape, .n_shape = 3, .bytes = pixels, .n_bytes = 18},
        &pixel_key));
    same(&pixel_key, "eb27ed46587f0c7e3a93f318948cfac9791f85406406543b1c43d1b88d8016ef");
    struct di_key_image image = {.begin = 60, .end = 100};
    memcpy(image.digest, pixel_key.byte, DI_KEY_BYTES);
    t = (struct di_key_text){tokens, 130, &image, 1};
    assert_true(di_key_of_block(h, &tenant, &t, 0, 64, &key));
    same(&key, "3ba448d047212ef2323fa30509c66f038bc3a2f57b5638b0eb5cccba172a6a99");
    assert_true(di_key_of_block(h, &key, &t, 64, 64, &key));
    same(&key, "5fe638c8920924ec32573ab872d0954bce9100e5ccc14125d974dc413c945215");
    di_hasher_destroy(h);
}

/* Every mode on every instruction set is another root; nothing else is in the name. Expected roots as above. */
static void all_that_changes_bits_is_in_the_key(void **state)
{
    static const char *const modes[] = {"bf16", "bf16-woa8", "f32r", "f32", "f32-noquant"};
    static const char *const isas[] = {"ref", "avx2", "avx512", "avx512bf16", "amx"};
    struct di_hasher *h = new_hasher();
    struct di_key roots[25];
    char name[DI_BITS_NAME];
    struct di_numerics n;
    (void)state;
    for (int i = 0; i < 25; i++) {
        char want[64];
        assert_true(di_numerics_by_name(modes[i / 5], &n));
        di_bits_name(n, "cpu", isas[i % 5], name);
        snprintf(want, sizeof want, "%s/cpu-%s", modes[i / 5], isas[i % 5]);
        assert_string_equal(name, want);
        roots[i] = root_of(h, name, "");
        for (int k = 0; k < i; k++)
            assert_false(di_key_equal(&roots[i], &roots[k]));
    }
    same(&roots[2], "96adb0536b561a3df579cebd47ec5eed3f35bfe521c3551116de85dd4872e72b");
    same(&roots[6], "06c31b0b96b5f76cc9b8d2997e7f033c4955d00be289a117d417ddb91495e528");
    n = (struct di_numerics){.bf16 = true}; /* no mode has this */
    di_bits_name(n, "cpu", "ref", name);
    assert_string_equal(name, "b---/cpu-ref");
    char names[16][DI_BITS_NAME]; /* of all combinations */
    for (int i = 0; i < 16; i++) {
        di_bits_name((struct di_numerics){i & 1, i & 2, i & 4, i & 8}, "cpu", "ref", names[i]);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(names[i], names[k]);
    }
    di_hasher_destroy(h);
}

/* The key covers all 64 logical tokens, each of them, and everything before. */
static void report_55_hash_covers_the_logical_block(void **state)
{
    (void)state;
    struct di_hasher *h = new_hasher();
    struct di_key root = root_of(h, "bf16", ""), other = root_of(h, "bf16", "x"), base, key;
    int32_t tokens[64] = {0};
    struct di_key_text t = {tokens, 64, NULL, 0};
    assert_true(di_key_of_block(h, &root, &t, 0, 64, &base));
    for (int i = 0; i < 64; i++) {
        tokens[i] = 1;
        assert_true(di_key_of_block(h, &root, &t, 0, 64, &key));
        assert_false(di_key_equal(&key, &base));
        tokens[i] = 0;
        assert_true(di_key_of_block(h, &root, &t, 0, i + 1, &key));
        assert_int_equal(di_key_equal(&key, &base), i == 63);
    }
    assert_true(di_key_of_block(h, &other, &t, 0, 64, &key));
    assert_false(di_key_equal(&key, &base));
    di_hasher_destroy(h);
}

static void fields_cannot_be_shifted_into_each_other(void **state)
{
    (void)state;
    struct di_hasher *h = new_hasher();
    struct di_key a = root_of(h, "bf16", "1x"), b = root_of(h, "bf161", "x");
    assert_false(di_key_equal(&a, &b));
    di_hasher_destroy(h);
}

static void report_A14_same_bytes_other_shape_or_type(void **state)
{
    (void)state;
    struct di_hasher *h = new_hasher();
    uint8_t bytes[24] = {1, 2, 3};
    struct di_key base = image_of(h, "u8", 2, 4, bytes, 24), shape = image_of(h, "u8", 4, 2, bytes, 24),
                  type = image_of(h, "bf16", 2, 4, bytes, 24);
    bytes[23] ^= 1;
    struct di_key last = image_of(h, "u8", 2, 4, bytes, 24);
    assert_false(di_key_equal(&base, &shape));
    assert_false(di_key_equal(&base, &type));
    assert_false(di_key_equal(&base, &last));
    di_hasher_destroy(h);
}

/* The place of an image and the part of it that a block holds are in the key, as is every byte of its digest. */
static void report_A13_every_byte_of_an_image_digest_counts(void **state)
{
    (void)state;
    struct di_hasher *h = new_hasher();
    struct di_key root = root_of(h, "bf16", ""), base, key;
    int32_t tokens[64] = {0};
    struct di_key_image m = {.begin = 10, .end = 30};
    struct di_key_text t = {tokens, 64, &m, 1};
    assert_true(di_key_of_block(h, &root, &t, 0, 64, &base));
    for (int i = 0; i < DI_KEY_BYTES; i++) {
        m.digest[i] ^= 1;
        assert_true(di_key_of_block(h, &root, &t, 0, 64, &key));
        assert_false(di_key_equal(&key, &base));
        m.digest[i] ^= 1;
    }
    const int64_t places[][2] = {{9, 30}, {11, 30}, {10, 29}, {10, 31}};
    for (int i = 0; i < 4; i++) {
        m.begin = places[i][0];
        m.end = places[i][1];
        assert_true(di_key_of_block(h, &root, &t, 0, 64, &key));
        assert_false(di_key_equal(&key, &base));
    }
    t.n_images = 0;
    assert_true(di_key_of_block(h, &root, &t, 0, 64, &key));
    assert_false(di_key_equal(&key, &base));
    di_hasher_destroy(h);
}

/* OpenSSL 3.0 exchanges its inner context (112 bytes) at every start of a digest, whatever the caller reuses; nothing else may be
 * allocated. */
static void hashing_a_block_allocates_nothing_of_ours(void **state)
{
    (void)state;
    struct di_hasher *h = new_hasher();
    struct di_key key = root_of(h, "bf16", "");
    int32_t tokens[64] = {0};
    struct di_key_text t = {tokens, 64, NULL, 0};
    assert_true(crypto_allocations > 0); /* the counter works */
    int64_t before = crypto_allocations, live = crypto_live;
    uint64_t own = di_mem_calls();
    for (int i = 0; i < 100; i++)
        assert_true(di_key_of_block(h, &key, &t, 0, 64, &key));
    assert_true(crypto_allocations - before <= 100);
    assert_int_equal(crypto_live, live);
    assert_int_equal(di_mem_calls(), own);
    di_hasher_destroy(h);
    di_mem_fail_after(0);
    assert_int_equal(di_hasher_create(&h, NULL), DI_ERR_MEMORY);
    di_mem_fail_after(UINT64_MAX);
}

int main(void)
{
    if (!CRYPTO_set_mem_functions(crypto_malloc, crypto_realloc, crypto_free))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_A15_keys_are_the_same_in_every_process), cmocka_unit_test(all_that_changes_bits_is_in_the_key),
        cmocka_unit_test(report_55_hash_covers_the_logical_block),       cmocka_unit_test(fields_cannot_be_shifted_into_each_other),
        cmocka_unit_test(report_A14_same_bytes_other_shape_or_type),     cmocka_unit_test(report_A13_every_byte_of_an_image_digest_counts),
        cmocka_unit_test(hashing_a_block_allocates_nothing_of_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
