#include "checkpoint/digest.h"

#include "base/file.h"

#include <openssl/evp.h>
#include <unistd.h>

#define FORMAT "deepinfer checkpoint 1"
#define PIECE ((size_t)1 << 20)
#define PAGE ((size_t)4096)

struct digest {
    EVP_MD_CTX *hash;
    uint8_t *piece; /* [PIECE] */
    di_error *err;
};

static di_status add_bytes(struct digest *d, const void *bytes, size_t n)
{
    if (EVP_DigestUpdate(d->hash, bytes, n) != 1)
        return di_fail(d->err, DI_ERR_INTERNAL, "", "the crypto library's SHA-256 failed");
    return DI_OK;
}

static di_status add_number(struct digest *d, uint64_t x)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(x >> (8 * i));
    return add_bytes(d, le, sizeof le);
}

/* Bytes [from, to) of an open file. */
static di_status add_range(struct digest *d, int fd, const char *path, size_t from, size_t to)
{
    di_status status = DI_OK;
    while (from < to && status == DI_OK) {
        size_t n = to - from < PIECE ? to - from : PIECE;
        TRY(di_file_pread(fd, path, d->piece, n, from, d->err));
        TRY(add_bytes(d, d->piece, n));
        from += n;
    }
out:
    return status;
}

/* An open file with its size; all of it, or its first `head` bytes and pages of the rest. */
static di_status add_file(struct digest *d, int fd, const char *path, size_t bytes, size_t head)
{
    di_status status = DI_OK;
    TRY(add_number(d, bytes));
    head = head > bytes ? bytes : head;
    TRY(add_range(d, fd, path, 0, head));
    size_t rest = bytes - head, last = rest > PAGE ? rest - PAGE : 0;
    for (size_t i = 0; i < DI_DIGEST_PAGES && rest > 0; i++) {
        size_t at = head + (size_t)((double)last * (double)i / (DI_DIGEST_PAGES - 1));
        TRY(add_range(d, fd, path, at, at + PAGE < bytes ? at + PAGE : bytes));
    }
out:
    return status;
}

/* A file of the directory. One that is missing has no size: nothing else is told as this number. */
static di_status add_named(struct digest *d, const char *dir, const char *name)
{
    struct di_buf path = {0};
    di_status status = DI_OK;
    int fd = -1;
    size_t bytes;
    di_buf_addf(&path, "%s/%s", dir, name);
    TRY(di_buf_ok(&path, d->err));
    if (access(path.p, F_OK) == 0) {
        TRY(di_file_open(path.p, &fd, &bytes, d->err));
        TRY(add_file(d, fd, path.p, bytes, SIZE_MAX));
    } else {
        TRY(add_number(d, UINT64_MAX));
    }
out:
    if (fd >= 0)
        close(fd);
    di_buf_fini(&path);
    return status;
}

/* Shards in the order of their names. */
static const struct di_safetensors *next_shard(const struct di_checkpoint *ck, const char *behind)
{
    const struct di_safetensors *next = NULL;
    for (size_t i = 0; i < ck->n_shards; i++) {
        const struct di_safetensors *s = &ck->shards[i];
        if ((!behind || strcmp(s->path, behind) > 0) && (!next || strcmp(s->path, next->path) < 0))
            next = s;
    }
    return next;
}

di_status di_checkpoint_digest(const struct di_checkpoint *ck, uint64_t whole, uint8_t out[DI_DIGEST_BYTES], di_error *err)
{
    struct digest d = {.hash = EVP_MD_CTX_new(), .piece = di_malloc(PIECE), .err = err};
    uint64_t bytes = 0;
    di_status status = DI_OK;
    CHECK(d.hash && d.piece, err, DI_ERR_MEMORY, "", "out of memory for the checkpoint's digest");
    CHECK(EVP_DigestInit_ex(d.hash, EVP_sha256(), NULL) == 1, err, DI_ERR_UNSUPPORTED, "", "the crypto library has no SHA-256");
    for (size_t i = 0; i < ck->n_shards; i++)
        bytes += ck->shards[i].map_bytes;
    TRY(add_bytes(&d, FORMAT, sizeof FORMAT));
    TRY(add_named(&d, ck->dir, "config.json"));
    TRY(add_named(&d, ck->dir, "tokenizer.json"));
    TRY(add_number(&d, bytes > whole ? DI_DIGEST_PAGES : 0));
    for (const struct di_safetensors *s = next_shard(ck, NULL); s; s = next_shard(ck, s->path))
        TRY(add_file(&d, di_mapping_fd(s->mapping), s->path, s->map_bytes, bytes <= whole ? SIZE_MAX : s->data_start));
    CHECK(EVP_DigestFinal_ex(d.hash, out, NULL) == 1, err, DI_ERR_INTERNAL, "", "the crypto library's SHA-256 failed");
out:
    EVP_MD_CTX_free(d.hash);
    di_free(d.piece);
    return status;
}

void di_digest_hex(const uint8_t digest[DI_DIGEST_BYTES], char hex[2 * DI_DIGEST_BYTES + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < DI_DIGEST_BYTES; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * DI_DIGEST_BYTES] = 0;
}
