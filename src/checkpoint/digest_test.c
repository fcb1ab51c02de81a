/* not run under TSan: no threads */
/* The digest of a checkpoint: equal for equal files wherever they lie, another one for every byte that is read. */
#include "checkpoint/digest.h"

#include "base/file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "models/nano"
#define SHARD "model-00002-of-00003.safetensors"

static const char *const files[] = {"config.json",
                                    "tokenizer.json",
                                    "model.safetensors.index.json",
                                    "model-00001-of-00003.safetensors",
                                    SHARD,
                                    "model-00003-of-00003.safetensors"};
#define N_FILES (sizeof files / sizeof *files)
static char dir[200];

static const char *in_dir(const char *file)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return path;
}

static int copy_model(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/di_digest_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    for (size_t i = 0; i < N_FILES; i++) {
        struct di_buf b = {0};
        char from[200];
        snprintf(from, sizeof from, MODEL "/%s", files[i]);
        int fd = open(in_dir(files[i]), O_WRONLY | O_CREAT, 0644);
        if (di_file_read(from, 1 << 24, &b, NULL) != DI_OK || di_file_write(fd, files[i], b.p, b.n, NULL) != DI_OK)
            return -1;
        close(fd);
        di_buf_fini(&b);
    }
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++)
        unlink(in_dir(files[i]));
    return rmdir(dir);
}

struct hex {
    char s[2 * DI_DIGEST_BYTES + 1];
};

static struct hex digest_of(const char *model, uint64_t whole)
{
    struct di_checkpoint ck;
    struct hex hex;
    uint8_t digest[DI_DIGEST_BYTES];
    assert_int_equal(di_checkpoint_open(model, &ck, NULL), DI_OK);
    assert_int_equal(di_checkpoint_digest(&ck, whole, digest, NULL), DI_OK);
    di_checkpoint_close(&ck);
    di_digest_hex(digest, hex.s);
    return hex;
}

/* Change one byte in place; the same call changes it back. */
static void flip(const char *file, off_t at)
{
    uint8_t byte;
    int fd = open(in_dir(file), O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Where the data of the shard begins, and its bytes. */
static void measure(off_t *start, off_t *bytes)
{
    struct di_safetensors st;
    assert_int_equal(di_safetensors_open(in_dir(SHARD), &st, NULL), DI_OK);
    *start = (off_t)st.data_start;
    *bytes = (off_t)st.map_bytes;
    di_safetensors_close(&st);
}

static void test_same_files_elsewhere(void **state)
{
    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        uint64_t whole = sampled ? 0 : DI_DIGEST_WHOLE;
        struct hex a = digest_of(MODEL, whole), b = digest_of(dir, whole);
        assert_string_equal(a.s, b.s);
        assert_int_equal(strspn(a.s, "0123456789abcdef"), 64);
    }
    assert_string_not_equal(digest_of(dir, 0).s, digest_of(dir, DI_DIGEST_WHOLE).s);
}

static void test_every_byte_counts(void **state)
{
    (void)state;
    off_t start, bytes;
    measure(&start, &bytes);
    struct hex before = digest_of(dir, DI_DIGEST_WHOLE);
    for (int i = 0; i <= 20; i++) {
        off_t at = start + (bytes - start - 1) * i / 20;
        flip(SHARD, at);
        assert_string_not_equal(digest_of(dir, DI_DIGEST_WHOLE).s, before.s);
        flip(SHARD, at);
    }
    assert_string_equal(digest_of(dir, DI_DIGEST_WHOLE).s, before.s);
    flip("tokenizer.json", 100); /* not opened as such here */
    assert_string_not_equal(digest_of(dir, DI_DIGEST_WHOLE).s, before.s);
    flip("tokenizer.json", 100);
    int fd = open(in_dir("config.json"), O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, " ", 1), 1);
    close(fd);
    assert_string_not_equal(digest_of(dir, DI_DIGEST_WHOLE).s, before.s);
}

/* What a large checkpoint promises: both ends of each shard and the pages between; the bytes between pages are not seen. */
static void test_large_ones_are_sampled(void **state)
{
    (void)state;
    off_t start, bytes;
    measure(&start, &bytes);
    assert_true(bytes - start > 100 * DI_DIGEST_PAGES * 4096L / 8);
    struct hex before = digest_of(dir, 1000);
    const off_t seen[] = {start, start + 4095, bytes - 1, bytes - 4096};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        flip(SHARD, seen[i]);
        assert_string_not_equal(digest_of(dir, 1000).s, before.s);
        flip(SHARD, seen[i]);
    }
    int changes = 0;
    for (int i = 0; i < 50; i++) { /* one page in 39 is looked at: a change of all weights cannot be missed */
        off_t at = start + 5000 + (bytes - start - 10000) * i / 50;
        flip(SHARD, at);
        changes += strcmp(digest_of(dir, 1000).s, before.s) != 0;
        flip(SHARD, at);
    }
    assert_true(changes < 10);
}

static void test_failures(void **state)
{
    (void)state;
    struct di_checkpoint ck;
    uint8_t digest[DI_DIGEST_BYTES], before[DI_DIGEST_BYTES];
    di_error err;
    assert_int_equal(di_checkpoint_open(dir, &ck, NULL), DI_OK);
    assert_int_equal(di_checkpoint_digest(&ck, DI_DIGEST_WHOLE, before, NULL), DI_OK);
    di_mem_fail_after(0);
    di_status status = di_checkpoint_digest(&ck, DI_DIGEST_WHOLE, digest, &err);
    di_mem_fail_after(UINT64_MAX);
    assert_int_equal(status, DI_ERR_MEMORY);
    /* Of what was opened, whatever has that name by now. */
    int shard = open(in_dir(SHARD), O_RDWR), other;
    unlink(in_dir(SHARD));
    other = open(in_dir(SHARD), O_WRONLY | O_CREAT, 0644);
    assert_int_equal(di_checkpoint_digest(&ck, DI_DIGEST_WHOLE, digest, &err), DI_OK);
    assert_memory_equal(digest, before, DI_DIGEST_BYTES);
    assert_int_equal(ftruncate(shard, 1000), 0);
    assert_int_equal(di_checkpoint_digest(&ck, DI_DIGEST_WHOLE, digest, &err), DI_ERR_IO);
    close(shard);
    close(other);
    di_checkpoint_close(&ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_files_elsewhere),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_large_ones_are_sampled),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, copy_model, remove_model);
}
