/* Byte-pair encoding of one piece: start from single bytes, merge the adjacent pair of lowest rank, leftmost first on ties, until no
 * adjacent pair has a rank (spec/encoding.md §1.4). Knows ids and ranks, not what they spell. */
#ifndef DI_TEXT_BPE_H
#define DI_TEXT_BPE_H

#include "base/str.h"

/* Ids and ranks are packed into one table word, a rank and a position into another; hence these bounds. */
#define DI_BPE_MAX_IDS ((1u << 20) - 1)
#define DI_BPE_MAX_MERGES ((1u << 23) - 1)

/* Growable list of token ids. Zero-initialise. */
struct di_ids {
    int32_t *v;
    size_t n, cap;
};
void di_ids_fini(struct di_ids *ids);
/* Room for `more` further ids. False when memory is exhausted; the content stays. */
bool di_ids_reserve(struct di_ids *ids, size_t more);

/* Immutable once all merges were added; then any thread may encode. */
struct di_bpe {
    uint64_t *pairs;       /* open addressing: left id (20 bits), right id (20), rank (24); all ones = free */
    unsigned char *filter; /* a bit for each quarter of a slot: most pairs that have no rank end here, in a nearer cache */
    uint32_t *byte_rank;   /* [256 * 256] rank of a pair of single bytes */
    int32_t *merged;       /* [n_merges] id that the merge of this rank makes */
    uint32_t n_merges, cap_merges;
    unsigned shift; /* 64 - log2(slots) */
    int32_t byte_id[256];
};

/* byte_id must be filled. Room for `merges` (at most DI_BPE_MAX_MERGES) merges. DI_ERR_MEMORY. */
di_status di_bpe_init(struct di_bpe *b, uint32_t merges, di_error *err);
void di_bpe_fini(struct di_bpe *b);
/* The next rank: left, right -> merged; ids in [0, DI_BPE_MAX_IDS). DI_ERR_FORMAT if the pair has a rank already, DI_ERR_LIMIT if the
 * pairs collide far more than chance allows. After an error only di_bpe_fini. */
di_status di_bpe_add(struct di_bpe *b, int32_t left, int32_t right, int32_t merged, di_error *err);
/* Call once after the last di_bpe_add. */
void di_bpe_finish(struct di_bpe *b);

/* Append the ids of the piece s[0..n) to *out. O(n log n). DI_ERR_MEMORY, DI_ERR_LIMIT (4 GB). */
di_status di_bpe_encode(const struct di_bpe *b, const char *s, size_t n, struct di_ids *out, di_error *err);

#endif
