/* Hashing of n-grams into rows of the engram tables (spec/model.md §5.9): integers only, exact. */
#ifndef DI_CHECKPOINT_ENGRAM_HASH_H
#define DI_CHECKPOINT_ENGRAM_HASH_H

#include "checkpoint/config.h"

/* One table. Sizes n = 2 .. max_ngram are stored at n - 2. */
struct di_engram_table {
    uint64_t multiplier[DI_MAX_NGRAM];                     /* of the token 0, 1, 2, ... back; odd */
    uint32_t prime[DI_MAX_NGRAM - 1][DI_MAX_ENGRAM_HEADS]; /* bucket count of (n, head) */
    int64_t offset[DI_MAX_NGRAM - 1][DI_MAX_ENGRAM_HEADS]; /* first row of (n, head) */
    int64_t rows;                                          /* sum of the primes */
};

struct di_engram {
    int n_tables, max_ngram, n_heads, columns; /* columns = (max_ngram - 1) * n_heads, n-gram major */
    struct di_engram_table table[DI_MAX_ENGRAM];
};

/* Needs the engram fields of the config, within the ranges that di_config_parse allows. A few milliseconds at full size. DI_ERR_LIMIT if
 * the primes pass 32 bits. */
di_status di_engram_init(const struct di_config *c, struct di_engram *e, di_error *err);

/* Rows of one position, columns of them. window[i] = compressed id of the token i back (window[0] = the current one), max_ngram of them; -1
 * where the position lies before the start or the token is dead (image span). From the first -1 on all count as `pad`, the compressed id
 * of engram_pad_token_id. Pure; any thread. */
void di_engram_rows(const struct di_engram *e, int table, const int32_t *window, int32_t pad, int64_t *rows);
/* hash_n for n = 2 .. max_ngram, into out[n - 2]; window as above. */
void di_engram_hashes(const struct di_engram *e, int table, const int32_t *window, int32_t pad, uint64_t *out);

#endif
