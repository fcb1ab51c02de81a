/* Sampler: from one row of logits to a token (spec/dspark.md §3.1, §3.2).
 *
 * A row goes through: logit bias; penalties; bans and masks; division by the temperature; top-k; top-p on the renormalised top-k set;
 * min-p. What is left is the law of the row. The draw is an argmax over the law of log-probability plus Gumbel noise that depends only on
 * (key, stream, position, anchor, id), so that a token depends on nothing but its request: no generator state, no batch, no order.
 *
 * Ties. Tokens are ordered by their logit after processing, higher first; equal ones by id, lower first. Top-k and top-p keep a prefix of
 * that order: of equal logits at the boundary the lowest ids stay, top-k keeps exactly k. Greedy takes the first token of the order.
 *
 * Weights are integers, floor(2^39 exp((x - max) / T)), and sums of integers don't depend on the order of summation; exp and log are
 * those of base/portable_math.h. So every machine, thread count and back end that follows this page finds the same token. Probabilities
 * below 2^-39 of the largest one have weight 0: top-p (below 1) never keeps them, the untruncated draw does.
 *
 * Any number of threads, each with its own struct di_law. No call but the create functions allocates. */
#ifndef DI_SAMPLE_SAMPLER_H
#define DI_SAMPLE_SAMPLER_H

#include "base/carve.h"
#include "base/mem.h"

/* ---- parameters ---- */

struct di_logit_bias {
    int32_t id;
    float value; /* -100..100, added before everything else */
};

struct di_sampling_params {
    double temperature;               /* 0..2; below 1e-5 is greedy: an argmax, no draw */
    double top_p;                     /* (0, 1]; 1 = off */
    double min_p;                     /* [0, 1]: drop tokens with less than min_p times the largest probability; 0 = off */
    int64_t top_k;                    /* -1 or 0 = off */
    double repetition_penalty;        /* > 0, 1 = off: tokens of prompt and output, x > 0 ? x / r : x * r */
    double presence_penalty;          /* -2..2, subtracted from tokens of the output */
    double frequency_penalty;         /* -2..2, subtracted once per occurrence in the output */
    int64_t seed;                     /* any */
    int64_t min_tokens;               /* `end_ids` are banned until so many tokens were generated */
    int64_t top_logprobs;             /* 0..DI_MAX_TOP_LOGPROBS alternatives to report */
    bool logprobs;                    /* report the token's own log-probability */
    const struct di_logit_bias *bias; /* borrowed; an id given twice counts twice */
    size_t n_bias;
    const int32_t *end_ids; /* borrowed: EOS and stop ids */
    size_t n_end_ids;
};
#define DI_MAX_TOP_LOGPROBS 20
#define DI_MAX_LOGIT_BIAS 4096

/* Temperature 1, everything else off. */
struct di_sampling_params di_sampling_params_default(void);
/* DI_ERR_INVALID with a sentence that names the first field that is NaN or out of range; ids are compared with `vocab`. */
di_status di_sampling_params_check(const struct di_sampling_params *p, size_t vocab, di_error *err);
static inline bool di_sampling_is_greedy(const struct di_sampling_params *p)
{
    return p->temperature < 1e-5;
}
/* Does a request need a struct di_token_counts? */
bool di_sampling_needs_counts(const struct di_sampling_params *p);

/* ---- history of one request, for the penalties ---- */

/* Dense: 8 bytes per vocabulary entry. Only requests with penalties need one. One thread at a time. */
struct di_token_counts;
di_status di_token_counts_create(size_t vocab, struct di_token_counts **out, di_error *err);
void di_token_counts_destroy(struct di_token_counts *c); /* NULL is allowed */
void di_token_counts_reset(struct di_token_counts *c);   /* time: the ids that were added */
/* O(1). Ids outside 0..vocab-1 are ignored. */
void di_token_counts_add_prompt(struct di_token_counts *c, int32_t id);
void di_token_counts_add(struct di_token_counts *c, int32_t id); /* generated, or drafted and about to be verified */
/* Take back an id that di_token_counts_add was called with (a rejected draft). */
void di_token_counts_remove(struct di_token_counts *c, int32_t id);

/* ---- noise ---- */

/* Purposes of random words (spec/dspark.md §3.2); they share no counter. */
enum di_stream { DI_STREAM_TARGET = 0, DI_STREAM_ACCEPT = 1, DI_STREAM_DRAFT = 2, DI_STREAM_SEED = 255 };

struct di_noise {
    uint64_t key;      /* di_sample_key */
    uint64_t position; /* absolute position of the token being decided; its low 32 bits count */
    uint32_t anchor;   /* position of the round's anchor for DRAFT and ACCEPT in rejection mode, else 0 */
    enum di_stream stream;
};
/* Key of sample `index` of a request with n > 1: the seed itself for index 0. */
uint64_t di_sample_key(uint64_t seed, uint32_t index);
/* (w + 0.5) / 2^32 of the word that belongs to `id` (0 for a scalar): in (0, 1). */
double di_noise_uniform(const struct di_noise *n, uint32_t id);
/* -log(-log(uniform)): between -3.14 and 22.9. */
double di_noise_gumbel(const struct di_noise *n, uint32_t id);

/* ---- the law of a row ---- */

/* One row of logits and what is needed besides. All pointers are borrowed for the call. */
struct di_row {
    const float *logits;                     /* [vocab], not changed */
    const struct di_sampling_params *params; /* checked */
    const struct di_token_counts *counts;    /* history before this row, or NULL */
    const uint64_t *banned;                  /* bit set: never sampled (control ids, spec/encoding.md §1.6); or NULL */
    const uint64_t *allowed;                 /* bit set: may be sampled (grammar); or NULL. Bit id%64 of word id/64, both */
    uint64_t n_generated;                    /* tokens of the output before this row, for min_tokens */
    uint64_t position;                       /* of the token being decided */
};

/* Work space for `vocab` tokens, and the law in it. */
struct di_law;
/* In memory that outlives its use. Nothing is to be given back. */
struct di_law *di_law_carve(struct di_carver *c, size_t vocab);
/* In memory of its own; DI_ERR_LIMIT above 2^24 tokens. */
di_status di_law_create(size_t vocab, struct di_law **out, di_error *err);
void di_law_destroy(struct di_law *law); /* of di_law_create; NULL is allowed */

/* Bias, penalties, bans, masks (steps 1 to 3), then temperature and truncation (4 to 8); a greedy row becomes the point mass on its first
 * token. DI_ERR_INTERNAL: a logit is NaN or infinite. DI_ERR_INVALID: every token is banned; `where` names the field that did it. */
di_status di_law_load(struct di_law *law, const struct di_row *row, di_error *err);
/* First token of the order. */
int32_t di_law_argmax(const struct di_law *law);
/* argmax of log-probability + Gumbel noise; for a greedy row the argmax. */
int32_t di_law_draw(const struct di_law *law, const struct di_noise *noise);
/* Is the token in the support? */
bool di_law_has(const struct di_law *law, int32_t id);
/* Probability, from the integer weights: 0 outside the support, and they add up to 1. The first call for a row may scan it. */
double di_law_probability(struct di_law *law, int32_t id);

/* ---- one token ---- */

/* If none of `ids` is among the first `at` tokens of the answer, ids[0] follows them: an upper limit of the reasoning. at -1 = none. */
struct di_cap {
    int64_t at;
    int32_t ids[2];
};

struct di_logprob {
    int32_t id;
    float logprob;
};
struct di_sample {
    int32_t id;
    float logprob; /* NaN unless asked for */
    size_t n_top;  /* first tokens of the order, log-probabilities falling */
    struct di_logprob top[DI_MAX_TOP_LOGPROBS];
};

/* Load the row, draw with the TARGET stream at row->position, report log-probabilities. Those are of the model's own distribution:
 * softmax of the logits as they came, temperature 1, no bias, no penalties, no masks. */
di_status di_sample_row(struct di_law *law, const struct di_row *row, uint64_t key, struct di_sample *out, di_error *err);
/* The log-probabilities alone, for a token chosen elsewhere (verification, forced output, prompts). n_top <= DI_MAX_TOP_LOGPROBS. */
di_status di_row_logprobs(const float *logits, size_t vocab, int32_t id, size_t n_top, struct di_sample *out, di_error *err);

/* ---- rows of a step: what the back end's op `sample` gets and gives (backend.h) ---- */

struct di_sample_task {
    struct di_row row;
    uint64_t key;   /* di_sample_key */
    int32_t forced; /* >= 0: this token follows whatever the logits say; only its log-probability is reported */
};
struct di_sample_result {
    struct di_sample sample;
    di_status status; /* a row that fails disturbs no other */
    di_error err;
};
/* The plain form of that op for one row. */
void di_sample_task_run(struct di_law *law, const struct di_sample_task *task, struct di_sample_result *result);

#endif
