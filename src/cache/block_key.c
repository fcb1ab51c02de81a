#include "cache/block_key.h"

#include "base/mem.h"

#include <openssl/evp.h>

enum field { F_FORMAT = 1, F_MODEL, F_NUMERICS, F_SALT, F_PARENT, F_TOKENS, F_IMAGE, F_RECIPE, F_TYPE, F_SHAPE, F_PIXELS };

#define HEAD 9 /* type and length of a field */
#define IMAGE_BYTES (DI_KEY_BYTES + 16)

struct di_hasher {
    EVP_MD_CTX *ctx;
    int bits;
    uint8_t block[HEAD + DI_KEY_BYTES + HEAD + DI_BLOCK_TOKENS * sizeof(int32_t)]; /* with padding five compressions, not six */
};

static void put_le(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(v >> (8 * i));
}

static uint8_t *put_head(uint8_t *to, enum field type, uint64_t bytes)
{
    *to = (uint8_t)type;
    put_le(to + 1, bytes, 8);
    return to + HEAD;
}

di_status di_hasher_create(struct di_hasher **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_hasher *h = di_calloc(1, sizeof *h);
    *out = NULL;
    CHECK(h && (h->ctx = EVP_MD_CTX_new()), err, DI_ERR_MEMORY, "", "out of memory for a hash context");
    CHECK(EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) == 1, err, DI_ERR_UNSUPPORTED, "", "the crypto library has no SHA-256");
    h->bits = 8 * DI_KEY_BYTES;
    *out = h;
    h = NULL;
out:
    di_hasher_destroy(h);
    return status;
}

void di_hasher_destroy(struct di_hasher *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->ctx);
    di_free(h);
}

void di_hasher_weaken(struct di_hasher *h, int bits)
{
    h->bits = bits;
}

static bool begin_hash(struct di_hasher *h)
{
    return EVP_DigestInit_ex(h->ctx, NULL, NULL) == 1; /* NULL: the same algorithm again, nothing is fetched or allocated */
}

static bool hash_bytes(struct di_hasher *h, const void *data, size_t n)
{
    return n == 0 || EVP_DigestUpdate(h->ctx, data, n) == 1;
}

static bool add_field(struct di_hasher *h, enum field type, const void *data, size_t n)
{
    uint8_t head[HEAD];
    put_head(head, type, n);
    return hash_bytes(h, head, sizeof head) && hash_bytes(h, data, n);
}

static bool finish_hash(struct di_hasher *h, bool ok, struct di_key *out)
{
    ok = ok && EVP_DigestFinal_ex(h->ctx, out->byte, NULL) == 1;
    if (!ok)
        *out = (struct di_key){{0}};
    return ok;
}

bool di_key_of_root(struct di_hasher *h, const struct di_key_root *r, struct di_key *out)
{
    uint8_t format[4];
    put_le(format, DI_KEY_FORMAT, 4);
    bool ok = begin_hash(h) && add_field(h, F_FORMAT, format, sizeof format) && add_field(h, F_MODEL, r->model_digest, DI_KEY_BYTES) &&
              add_field(h, F_NUMERICS, r->numerics, strlen(r->numerics)) && add_field(h, F_SALT, r->salt, r->salt_bytes);
    return finish_hash(h, ok, out);
}

bool di_key_of_image(struct di_hasher *h, const struct di_key_pixels *p, struct di_key *out)
{
    uint8_t head[HEAD], side[8];
    bool ok = begin_hash(h) && add_field(h, F_RECIPE, p->recipe, strlen(p->recipe)) && add_field(h, F_TYPE, p->type, strlen(p->type));
    put_head(head, F_SHAPE, (uint64_t)p->n_shape * sizeof side);
    ok = ok && hash_bytes(h, head, sizeof head);
    for (int i = 0; ok && i < p->n_shape; i++) {
        put_le(side, (uint64_t)p->shape[i], sizeof side);
        ok = hash_bytes(h, side, sizeof side);
    }
    return finish_hash(h, ok && add_field(h, F_PIXELS, p->bytes, p->n_bytes), out);
}

int di_key_image_from(const struct di_key_text *t, int64_t pos)
{
    int lo = 0, hi = t->n_images;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (t->images[mid].end > pos)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static bool add_images(struct di_hasher *h, const struct di_key_text *t, int64_t pos0, int n)
{
    bool ok = true;
    for (int i = di_key_image_from(t, pos0); ok && i < t->n_images && t->images[i].begin < pos0 + n; i++) {
        const struct di_key_image *m = &t->images[i];
        int64_t begin = m->begin > pos0 ? m->begin : pos0, end = m->end < pos0 + n ? m->end : pos0 + n;
        uint8_t data[IMAGE_BYTES];
        memcpy(data, m->digest, DI_KEY_BYTES);
        put_le(data + DI_KEY_BYTES, (uint64_t)(begin - pos0), 4);
        put_le(data + DI_KEY_BYTES + 4, (uint64_t)(end - begin), 4);
        put_le(data + DI_KEY_BYTES + 8, (uint64_t)(begin - m->begin), 8);
        ok = add_field(h, F_IMAGE, data, sizeof data);
    }
    return ok;
}

bool di_key_of_block(struct di_hasher *h, const struct di_key *parent, const struct di_key_text *t, int64_t pos0, int n, struct di_key *out)
{
    uint8_t *at = put_head(h->block, F_PARENT, DI_KEY_BYTES);
    memcpy(at, parent, DI_KEY_BYTES);
    at = put_head(at + DI_KEY_BYTES, F_TOKENS, (uint64_t)n * sizeof(int32_t));
    for (int i = 0; i < n; i++, at += sizeof(int32_t))
        put_le(at, (uint32_t)t->tokens[pos0 + i], sizeof(int32_t));
    bool ok = finish_hash(h, begin_hash(h) && hash_bytes(h, h->block, (size_t)(at - h->block)) && add_images(h, t, pos0, n), out);
    if (h->bits < 8 * DI_KEY_BYTES)
        memset(out->byte + h->bits / 8, 0, DI_KEY_BYTES - (size_t)h->bits / 8);
    return ok;
}
