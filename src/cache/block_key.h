/* Names of cached content: a SHA-256 chain. A block's key covers the key of the block before it, so that two equal keys mean equal
 * content from position 0 on, in the same model, arithmetic and tenant.
 *
 * Every message is a list of fields: type (1 byte), length (8 bytes, little endian), data; no two different lists give the same bytes.
 * Token ids are little-endian int32, so keys are the same on every host and in every process. block_key_test.c holds golden keys: a
 * change that alters them must raise DI_KEY_FORMAT.
 *
 *   root  = FORMAT u32, MODEL 32 bytes, NUMERICS text, SALT bytes
 *   block = PARENT 32 bytes, TOKENS n * int32, then for each image that reaches into the block, in order, IMAGE: digest 32 bytes,
 *           u32 first index in the block, u32 number of its tokens in the block, u64 index of the first of these in the image
 *   image = RECIPE text, TYPE text, SHAPE n * int64, PIXELS bytes */
#ifndef DI_CACHE_BLOCK_KEY_H
#define DI_CACHE_BLOCK_KEY_H

#include "backend/backend.h"

#define DI_KEY_FORMAT 1
#define DI_KEY_BYTES 32

struct di_key {
    uint8_t byte[DI_KEY_BYTES];
};

/* What separates caches that must share nothing. */
struct di_key_root {
    const uint8_t *model_digest; /* 32 bytes over the checkpoint */
    const char *numerics;        /* di_backend.bits: everything that changes bits, "bf16/cpu-avx512" */
    const void *salt;            /* the tenant, chosen by the server and never by a client (A17); 0 bytes = the common tenant */
    size_t salt_bytes;
};
/* An image between its digest (di_key_of_image) and the prompt positions [begin, end) that it fills. */
struct di_key_image {
    uint8_t digest[DI_KEY_BYTES];
    int64_t begin, end;
};
/* Tokens of a request from position 0. Images ascend, do not overlap and are not empty. All borrowed. */
struct di_key_text {
    const int32_t *tokens;
    int64_t n;
    const struct di_key_image *images;
    int n_images;
};
/* Pixels as the vision tower gets them: bytes alone do not name an image (A14). */
struct di_key_pixels {
    const char *recipe; /* preprocessing and its version */
    const char *type;   /* "u8", "bf16", ... */
    const int64_t *shape;
    int n_shape;
    const void *bytes;
    size_t n_bytes;
};

/* Hashing context, reused without allocation. One thread at a time. */
struct di_hasher;
di_status di_hasher_create(struct di_hasher **out, di_error *err);
void di_hasher_destroy(struct di_hasher *h);
/* Tests only: block keys keep their first `bits` bits and are zero behind, so that collisions can be made. */
void di_hasher_weaken(struct di_hasher *h, int bits);

/* All three return false, with *out all zero, only if the hash itself fails; the caller then treats the content as not cached. */
bool di_key_of_root(struct di_hasher *h, const struct di_key_root *r, struct di_key *out);
bool di_key_of_image(struct di_hasher *h, const struct di_key_pixels *p, struct di_key *out);
/* Key of positions [pos0, pos0 + n) of the text, 1 <= n <= 64, pos0 a multiple of 64. `out` may be `parent`. About 0.3 us. */
bool di_key_of_block(struct di_hasher *h, const struct di_key *parent, const struct di_key_text *t, int64_t pos0, int n,
                     struct di_key *out);

/* Index of the first image that ends behind `pos`. */
int di_key_image_from(const struct di_key_text *t, int64_t pos);
static inline bool di_key_equal(const struct di_key *a, const struct di_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}
/* 64 bits of a key for tables; never an identity. */
static inline uint64_t di_key_tag(const struct di_key *k)
{
    uint64_t x;
    memcpy(&x, k->byte, sizeof x);
    return x;
}

#endif
