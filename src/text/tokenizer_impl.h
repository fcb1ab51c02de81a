/* Inside of struct di_tokenizer; for tokenizer.c and tokenizer_load.c only. */
#ifndef DI_TEXT_TOKENIZER_IMPL_H
#define DI_TEXT_TOKENIZER_IMPL_H

#include "text/tokenizer.h"

enum {
    DI_TOK_PRESENT = 1,
    DI_TOK_ADDED = 2,
    DI_TOK_BASE = 4, /* a base entry in the byte alphabet: merges may produce it */
    DI_TOK_WHOLE = 8 /* merging its bytes gives this one id, so a piece with these bytes needs no merging */
};

struct di_token {
    uint32_t offset, length; /* into bytes */
};

/* A base entry by its bytes. Up to 8 bytes are the key themselves (little-endian, zero-filled), longer ones are hashed. */
struct di_word {
    uint64_t key;
    int32_t id; /* -1 = free */
    uint32_t length;
};

/* Added tokens of one matching pass, sorted by spelling. */
struct di_added_set {
    int32_t *ids;
    size_t n;
    bool first[256]; /* may a spelling start with this byte? */
};

struct di_tokenizer {
    int32_t size, n_added;
    struct di_token *token; /* [size] */
    unsigned char *flags;   /* [size] DI_TOK_ */
    char *bytes;
    struct di_word *words;        /* open addressing, at most half full */
    unsigned word_shift;          /* 64 - log2(slots) */
    size_t longest;               /* bytes of the longest base entry */
    struct di_added_set added[2]; /* "normalized": false, which match first, then true */
    struct di_bpe bpe;
};

/* Id of the base entry with these bytes, or -1. Reads no more than n bytes; `room` >= n says how many may be read. */
int32_t di_tokenizer_find_word(const struct di_tokenizer *t, const char *s, size_t n, size_t room);
/* Puts a token into the word table. False if keys collide far more than chance allows. */
bool di_tokenizer_put_word(struct di_tokenizer *t, int32_t id);

#endif
