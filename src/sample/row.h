/* The arithmetic of a row, shared by every form of the sampler: sampler.c is the plain one, a back end may have its own. What a form does
 * must give the token and the log-probabilities of the plain one, to the last bit. */
#ifndef DI_SAMPLE_ROW_H
#define DI_SAMPLE_ROW_H

#include "base/philox.h"
#include "base/portable_math.h"
#include "sample/sampler.h"

#define DI_WEIGHT_BITS 39 /* 2^24 tokens of the largest weight still fit into 64 bits */
#define DI_WEIGHT_ONE ((uint64_t)1 << DI_WEIGHT_BITS)
#define DI_LOG_SMALLEST (-27.04) /* below -39 ln 2 a weight is 0 */
#define DI_LARGEST_GUMBEL 22.9   /* -log(-log(1 - 2^-33)) = 22.87 */

/* Integer weight of a log-weight <= 0. */
static inline uint64_t di_weight_of(double log_w)
{
    return log_w < DI_LOG_SMALLEST ? 0 : (uint64_t)(di_portable_exp(log_w) * (double)DI_WEIGHT_ONE);
}

/* share in (0, 1] of an integer, rounded up, at least 1; the share counts as a multiple of 2^-53. */
static inline uint64_t di_share_of(double share, uint64_t total)
{
    unsigned __int128 product = (unsigned __int128)(uint64_t)(share * 0x1p53) * total;
    uint64_t r = (uint64_t)((product + (((unsigned __int128)1 << 53) - 1)) >> 53);
    return r ? r : 1;
}

static inline double di_uniform_of(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}

static inline double di_gumbel_of(uint32_t word)
{
    return -di_portable_log(-di_portable_log(di_uniform_of(word)));
}

/* Bits of the ids 64 w .. 64 w + 63 that bans and masks leave. */
static inline uint64_t di_row_mask(const struct di_row *row, size_t w)
{
    return (row->allowed ? row->allowed[w] : ~(uint64_t)0) & ~(row->banned ? row->banned[w] : 0);
}

/* DI_ERR_INTERNAL with the first logit that is NaN or infinite. */
di_status di_row_check_finite(const float *logits, size_t n, di_error *err);
/* Does di_row_edit change anything? */
bool di_row_is_edited(const struct di_row *row);
/* Bias, penalties, and the end ids that min_tokens bans, on a copy of the logits. The masks come afterwards. */
void di_row_edit(const struct di_row *row, float *x);
/* DI_ERR_INVALID: every token is banned. */
di_status di_row_fail_empty(const struct di_row *row, di_error *err);

/* Keep the n first tokens of the order in out->top, whose `logprob` holds logits so far; ids arrive in rising order. */
static inline void di_sample_keep_top(struct di_sample *out, size_t n, int32_t id, float x)
{
    if (n == 0 || (out->n_top == n && !(x > out->top[n - 1].logprob)))
        return;
    size_t at = out->n_top < n ? out->n_top++ : n - 1;
    for (; at > 0 && x > out->top[at - 1].logprob; at--)
        out->top[at] = out->top[at - 1];
    out->top[at] = (struct di_logprob){id, x};
}

#endif
