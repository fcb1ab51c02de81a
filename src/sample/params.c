#include "sample/sampler.h"

#include <math.h>

struct di_sampling_params di_sampling_params_default(void)
{
    return (struct di_sampling_params){.temperature = 1.0, .top_p = 1.0, .top_k = -1, .repetition_penalty = 1.0};
}

/* Written so that NaN fails every comparison. */
static di_status check_range(const char *field, double x, double lo, double hi, bool lo_open, di_error *err)
{
    if (x >= lo && x <= hi && !(lo_open && x == lo))
        return DI_OK;
    if (hi == INFINITY)
        return di_fail(err, DI_ERR_INVALID, field, "a finite number above %g was expected, not %g", lo, x);
    return di_fail(err, DI_ERR_INVALID, field, "a number %s %g and at most %g was expected, not %g", lo_open ? "above" : "of at least", lo,
                   hi, x);
}

static di_status check_integer(const char *field, int64_t x, int64_t lo, int64_t hi, di_error *err)
{
    if (x >= lo && x <= hi)
        return DI_OK;
    return di_fail(err, DI_ERR_INVALID, field, "a whole number from %lld to %lld was expected, not %lld", (long long)lo, (long long)hi,
                   (long long)x);
}

static di_status check_id(const char *field, int32_t id, size_t vocab, di_error *err)
{
    if (id >= 0 && (size_t)id < vocab)
        return DI_OK;
    return di_fail(err, DI_ERR_INVALID, field, "token id %d is outside the vocabulary of %zu ids", (int)id, vocab);
}

di_status di_sampling_params_check(const struct di_sampling_params *p, size_t vocab, di_error *err)
{
    di_status status = DI_OK;
    TRY(check_range("temperature", p->temperature, 0, 2, false, err));
    TRY(check_range("top_p", p->top_p, 0, 1, true, err));
    TRY(check_range("min_p", p->min_p, 0, 1, false, err));
    TRY(check_integer("top_k", p->top_k, -1, INT64_MAX, err));
    CHECK(isfinite(p->repetition_penalty), err, DI_ERR_INVALID, "repetition_penalty", "a finite number above 0 was expected, not %g",
          p->repetition_penalty);
    TRY(check_range("repetition_penalty", p->repetition_penalty, 0, INFINITY, true, err));
    TRY(check_range("presence_penalty", p->presence_penalty, -2, 2, false, err));
    TRY(check_range("frequency_penalty", p->frequency_penalty, -2, 2, false, err));
    TRY(check_integer("min_tokens", p->min_tokens, 0, INT64_MAX, err));
    TRY(check_integer("top_logprobs", p->top_logprobs, 0, DI_MAX_TOP_LOGPROBS, err));
    CHECK(p->logprobs || p->top_logprobs == 0, err, DI_ERR_INVALID, "top_logprobs", "logprobs must be on when top_logprobs is given");
    CHECK(p->n_bias <= DI_MAX_LOGIT_BIAS, err, DI_ERR_INVALID, "logit_bias", "%zu entries were given, the limit is %d", p->n_bias,
          DI_MAX_LOGIT_BIAS);
    for (size_t i = 0; i < p->n_bias; i++) {
        TRY(check_id("logit_bias", p->bias[i].id, vocab, err));
        TRY(check_range("logit_bias", p->bias[i].value, -100, 100, false, err));
    }
    for (size_t i = 0; i < p->n_end_ids; i++)
        TRY(check_id("stop_token_ids", p->end_ids[i], vocab, err));
out:
    return status;
}

bool di_sampling_needs_counts(const struct di_sampling_params *p)
{
    return p->repetition_penalty != 1.0 || p->presence_penalty != 0.0 || p->frequency_penalty != 0.0;
}
