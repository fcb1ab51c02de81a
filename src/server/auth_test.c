/* not run under TSan: no threads */
#include "server/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define ALPHA "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8" /* of "alpha" */
#define BETA "F44E64E75F3948E9F73F8DCEC94FD13A6B83F9A20D7C6D5F3E2E1B1C5B1E1F00"  /* of nothing known */
#define GAMMA "be9d587defa1f0c09ef49eb17e206983a5f8f8289e4281860bd0ee5a19592c67" /* of "gamma" */
#define SECOND INT64_C(1000000000)

static di_status load(const char *text, const struct di_keys *before, struct di_keys **out, di_error *err)
{
    char path[] = "/tmp/auth_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    di_status status = di_keys_load(path, before, out, err);
    unlink(path);
    return status;
}

static void found(void **state)
{
    struct di_keys *k;
    di_error err;
    (void)state;
    assert_int_equal(load("# a\r\n\r\n  sha256:" ALPHA "\tteam-a rate=60 concurrency=2\r\n" BETA " team-a", NULL, &k, &err), DI_OK);
    struct di_auth_key *key = di_keys_find(k, DI_STR("alpha"));
    assert_non_null(key);
    assert_string_equal(key->tenant->name, "team-a");
    assert_true(key->tenant->id != 0 && key->per_minute == 60 && key->concurrency == 2);
    assert_null(di_keys_find(k, DI_STR("Alpha")));
    assert_null(di_keys_find(k, DI_STR("")));
    assert_null(di_keys_find(NULL, DI_STR("alpha")));
    di_keys_destroy(k);
}

static void limited(void **state)
{
    struct di_keys *k;
    di_error err;
    const char *why;
    (void)state;
    assert_int_equal(load(ALPHA " a rate=60 concurrency=20\n", NULL, &k, &err), DI_OK);
    struct di_auth_key *key = di_keys_find(k, DI_STR("alpha"));
    int64_t now = key->filled_ns;
    for (int i = 0; i < 10; i++) /* what 10 s fill */
        assert_int_equal(di_key_admit(key, now, &why), 0);
    assert_int_equal(di_key_admit(key, now, &why), 1);
    assert_int_equal(di_key_admit(key, now + SECOND / 2, &why), 1);
    assert_int_equal(di_key_admit(key, now + SECOND, &why), 0);
    assert_int_equal(di_key_admit(key, now + SECOND, &why), 1);
    for (int i = 0; i < 9; i++) /* twenty in all */
        assert_int_equal(di_key_admit(key, now + 1000 * SECOND, &why), 0);
    assert_int_equal(di_key_admit(key, now + 2000 * SECOND, &why), 1);
    assert_string_equal(why, "this key has as many requests under way as it may");
    assert_int_equal(di_key_check(key, now + 2000 * SECOND, &why), 1);
    for (int i = 0; i < 20; i++)
        di_key_leave(key);
    assert_int_equal(di_key_check(key, now + 2000 * SECOND, &why), 0); /* asking takes nothing */
    assert_int_equal(key->running, 0);
    di_keys_destroy(k);
}

/* A reload keeps accounts of keys that stay, and requests keep keys that go. */
static void reloaded(void **state)
{
    struct di_keys *a, *b, *c;
    di_error err;
    const char *why;
    (void)state;
    assert_int_equal(load(ALPHA " a concurrency=1\n" BETA " b\n", NULL, &a, &err), DI_OK);
    struct di_auth_key *key = di_keys_find(a, DI_STR("alpha"));
    assert_int_equal(di_key_admit(key, key->filled_ns, &why), 0);
    di_key_hold(key);
    struct di_tenant *tenant = key->tenant;
    assert_int_equal(load(ALPHA " a concurrency=1\n" GAMMA " a\n", a, &b, &err), DI_OK);
    di_keys_destroy(a);
    assert_ptr_equal(di_keys_find(b, DI_STR("gamma"))->tenant, tenant); /* one account for all keys of a name */
    assert_ptr_equal(di_keys_find(b, DI_STR("alpha")), key);
    assert_int_equal(di_key_admit(key, key->filled_ns, &why), 1);
    assert_int_equal(load(ALPHA " a concurrency=5\nnonsense\n", b, &c, &err), DI_ERR_FORMAT);
    assert_null(c);
    assert_int_equal(key->concurrency, 1); /* a broken file changes nothing */
    assert_int_equal(load(BETA " b\n", b, &c, &err), DI_OK);
    di_keys_destroy(b);
    assert_null(di_keys_find(c, DI_STR("alpha")));
    assert_int_equal(key->running, 1);
    assert_string_equal(key->tenant->name, "a");
    di_key_leave(key);
    di_key_drop(key);
    di_keys_destroy(c);
}

static void refused(void **state)
{
    static const char *const texts[] = {"",
                                        "# nothing\n",
                                        "abc a\n",
                                        ALPHA "\n",
                                        ALPHA "0 a\n",
                                        "md5:" ALPHA " a\n",
                                        ALPHA " a rate=0\n",
                                        ALPHA " a rate=\n",
                                        ALPHA " a rate=1x\n",
                                        ALPHA " a rate=nan\n",
                                        ALPHA " a concurrency=-1\n",
                                        ALPHA " a more\n",
                                        ALPHA " a\"b\n",
                                        ALPHA " a\n" ALPHA " b\n",
                                        ALPHA " aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"};
    struct di_keys *k;
    di_error err;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (load(texts[i], NULL, &k, &err) != DI_ERR_FORMAT)
            fail_msg("accepted: %s", texts[i]);
        assert_null(k);
    }
    assert_int_equal(di_keys_load("/nothing/here", NULL, &k, &err), DI_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(found), cmocka_unit_test(limited), cmocka_unit_test(reloaded),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
