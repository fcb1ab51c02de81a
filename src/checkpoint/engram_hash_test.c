/* not run under TSan: no threads */
/* The published values of spec/model.md §5.9, and the fields of the golden vectors. */
#include "checkpoint/engram_hash.h"

#include "checkpoint/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void load(const char *dir, struct di_config *c, struct di_engram *e)
{
    di_error err = {0};
    if (di_config_load(dir, c, &err) != DI_OK || di_engram_init(c, e, &err) != DI_OK)
        fail_msg("%s: %s", dir, err.message);
}

static const uint32_t primes[2][3][8] = {
    {{16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183},
     {16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321},
     {16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463}},
    {{16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627},
     {16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769},
     {16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889}},
};
static const uint64_t multipliers[2][4] = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                           {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
static const uint64_t hashes[2][3] = {{479222829893641386, 478684908248162415, 478622620386744554},
                                      {5103920834312462168, 5104015316774205417, 5104262347255115244}};
static const int64_t rows_at_4[2][24] = {
    {12391924,  30601786,  32347082,  62848667,  70397898,  94727027,  98981383,  125214817, 137477310, 158283928, 170183372, 186738561,
     199160461, 222179456, 233717225, 248862157, 264832234, 272989281, 299389025, 312790815, 327133592, 340759732, 360849393, 373449864},
    {743092,    18408009,  41668928,  49698968,  70671423,  85309510,  103753309, 124352426, 133323207, 152679242, 173382312, 184399208,
     195980780, 215496953, 228729201, 251781413, 266429253, 282299026, 294684430, 311528168, 326899755, 345678006, 366904100, 379421666},
};

static void full_size(void **state)
{
    (void)state;
    struct di_config c;
    struct di_engram e;
    load("tests/data/full_size", &c, &e);
    assert_int_equal(e.n_tables, 2);
    assert_int_equal(e.columns, 24);
    assert_int_equal(e.table[0].rows, 384006168);
    assert_int_equal(e.table[1].rows, 384016682);
    static const int32_t window[4] = {5, 99091, 17, 3};
    for (int t = 0; t < 2; t++) {
        uint64_t hash[3];
        int64_t rows[24];
        for (int n = 0; n < 3; n++)
            assert_memory_equal(e.table[t].prime[n], primes[t][n], sizeof primes[t][n]);
        assert_memory_equal(e.table[t].multiplier, multipliers[t], sizeof multipliers[t]);
        di_engram_hashes(&e, t, window, 2, hash);
        assert_memory_equal(hash, hashes[t], sizeof hash);
        di_engram_rows(&e, t, window, 2, rows);
        assert_memory_equal(rows, rows_at_4[t], sizeof rows);
    }
}

static void start_and_dead_tokens(void **state)
{
    (void)state;
    struct di_config c;
    struct di_engram e;
    int64_t rows[24], same[24];
    load("tests/data/full_size", &c, &e);
    di_engram_rows(&e, 0, (int32_t[]){0, -1, -1, -1}, 2, rows);
    assert_int_equal(rows[0], 5702652);
    assert_int_equal(rows[1], 24393184);
    assert_int_equal(rows[2], 39183301);
    assert_int_equal(rows[23], 380066193);
    /* sticky: what lies behind a dead token does not count; a dead current token makes all of them the pad */
    di_engram_rows(&e, 1, (int32_t[]){7, -1, 8, 9}, 2, rows);
    di_engram_rows(&e, 1, (int32_t[]){7, 2, 2, 2}, 2, same);
    assert_memory_equal(rows, same, sizeof rows);
    di_engram_rows(&e, 1, (int32_t[]){-1, 5, 8, 9}, 2, rows);
    di_engram_rows(&e, 1, (int32_t[]){2, 2, 2, 2}, 2, same);
    assert_memory_equal(rows, same, sizeof rows);
}

/* engram_multipliers and engram_rows of a folder of golden vectors. */
static void vectors(const char *folder, const char *model)
{
    struct di_config c;
    struct di_engram e;
    struct di_safetensors st;
    di_error err = {0};
    char path[200];
    load(model, &c, &e);
    snprintf(path, sizeof path, "%s/vectors.safetensors", folder);
    assert_int_equal(di_safetensors_open(path, &st, &err), DI_OK);
    const struct di_tensor *mult = di_safetensors_find(&st, "engram_multipliers"), *want = di_safetensors_find(&st, "engram_rows");
    const int32_t *ids = (const void *)di_safetensors_find(&st, "ids")->data,
                  *map = (const void *)di_safetensors_find(&st, "engram_token_map")->data;
    const struct di_tensor *at = di_safetensors_find(&st, "rows");
    assert_true(mult && want && at);
    for (int t = 0; t < e.n_tables; t++) {
        assert_memory_equal(mult->data + (size_t)t * 8 * (size_t)e.max_ngram, e.table[t].multiplier, 8 * (size_t)e.max_ngram);
        for (int64_t r = 0; r < at->shape[0]; r++) {
            int32_t window[DI_MAX_NGRAM];
            int64_t rows[DI_MAX_NGRAM * DI_MAX_ENGRAM_HEADS];
            int p = ((const int32_t *)at->data)[r];
            for (int i = 0; i < e.max_ngram; i++)
                window[i] = p - i >= 0 ? map[ids[p - i]] : -1;
            di_engram_rows(&e, t, window, map[c.engram_pad_token_id], rows);
            for (int k = 0; k < e.columns; k++)
                assert_int_equal(rows[k], ((const int32_t *)want->data)[(t * at->shape[0] + r) * e.columns + k]);
        }
    }
    di_safetensors_close(&st);
}

static void golden(void **state)
{
    (void)state;
    vectors("tests/data/vectors/tiny_a", "tests/data/vectors/tiny_a");
    vectors("tests/data/vectors/tiny_c", "tests/data/vectors/tiny_c");
    vectors("tests/data/vectors/tiny_d", "tests/data/vectors/tiny_d");
    vectors("tests/data/vectors/nano_text", "models/nano");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(full_size), cmocka_unit_test(start_and_dead_tokens), cmocka_unit_test(golden)};
    return cmocka_run_group_tests_name("engram_hash", tests, NULL, NULL);
}
