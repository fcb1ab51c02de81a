#include "engine/metrics.h"

#include <string.h>

/* Edges fit dashboards: seconds from 0.1 ms to 6,000 s for requests and from 1 us to 10 s for steps, five in each decade, so that a
 * quantile read from a bucket is wrong by less than a third; tokens from 1 to a million, three in each decade, and an own bucket for none.
 * */
#define DECADE(x) (x), (x) / 2 * 3, (x) / 2 * 5, (x)*4, (x)*6
#define US INT64_C(1000)
#define MS (1000 * US)
#define S (1000 * MS)
static const int64_t request_ns[] = {DECADE(100 * US), DECADE(MS),     DECADE(10 * MS), DECADE(100 * MS),
                                     DECADE(S),        DECADE(10 * S), DECADE(100 * S), DECADE(1000 * S)};
static const int64_t step_ns[] = {DECADE(US),      DECADE(10 * US),  DECADE(100 * US), DECADE(MS),
                                  DECADE(10 * MS), DECADE(100 * MS), DECADE(S),        10 * S};
static const int64_t tokens[] = {0,    1,    2,    5,     10,    20,    50,     100,    200,    500,
                                 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

#define SCALE(edges, per_unit)                        \
    {                                                 \
        edges, sizeof edges / sizeof *edges, per_unit \
    }
static const struct scale {
    const int64_t *edges;
    int n;
    double per_unit; /* what is recorded, in one unit of the public form */
} scales[] = {SCALE(request_ns, 1e9), SCALE(step_ns, 1e9), SCALE(tokens, 1)};
enum { REQUEST_TIME, STEP_TIME, TOKENS };

static const struct kind {
    const char *name, *help;
    int scale;
} kinds[DI_HISTOGRAMS] = {
    [DI_HISTOGRAM_QUEUE_TIME] = {"request_queue_time_seconds", "From submission until a request is first given a place.", REQUEST_TIME},
    [DI_HISTOGRAM_FIRST_TOKEN_TIME] = {"time_to_first_token_seconds", "From submission to the first token.", REQUEST_TIME},
    [DI_HISTOGRAM_INTER_TOKEN_TIME] = {"inter_token_latency_seconds", "Between two tokens of a request.", REQUEST_TIME},
    [DI_HISTOGRAM_TOTAL_TIME] = {"e2e_request_latency_seconds", "From submission to the end of a request.", REQUEST_TIME},
    [DI_HISTOGRAM_INFERENCE_TIME] = {"request_inference_time_seconds", "From the first place to the end of a request.", REQUEST_TIME},
    [DI_HISTOGRAM_PREFILL_TIME] = {"request_prefill_time_seconds", "From the first place to the first token.", REQUEST_TIME},
    [DI_HISTOGRAM_DECODE_TIME] = {"request_decode_time_seconds", "From the first token to the last one.", REQUEST_TIME},
    [DI_HISTOGRAM_PROMPT_TOKENS] = {"request_prompt_tokens", "Tokens of a request's prompt.", TOKENS},
    [DI_HISTOGRAM_GENERATION_TOKENS] = {"request_generation_tokens", "Tokens of a request's answer.", TOKENS},
    [DI_HISTOGRAM_CACHED_TOKENS] = {"request_cached_tokens", "Tokens of a request's prompt that were not computed again.", TOKENS},
    [DI_HISTOGRAM_MAX_TOKENS] = {"request_params_max_tokens", "Longest answer that a request allowed.", TOKENS},
    [DI_HISTOGRAM_DIVERGED_AT] = {"request_diverged_at_tokens", "Where a prompt first differs from all that are cached.", TOKENS},
    [DI_HISTOGRAM_STEP_ROWS] = {"iteration_tokens_total", "Rows of a step: prompt and decode tokens.", TOKENS},
    [DI_HISTOGRAM_STEP_TIME] = {"step_time_seconds", "Computation of a step, sampling included.", STEP_TIME},
    [DI_HISTOGRAM_STEP_HOST_TIME] = {"step_host_time_seconds", "Work of the engine's thread for a step, without waiting.", STEP_TIME},
    [DI_HISTOGRAM_STEP_GAP_TIME] = {"step_gap_time_seconds", "Idle model between two steps that follow each other.", STEP_TIME},
};
_Static_assert(sizeof request_ns / sizeof *request_ns <= DI_HISTOGRAM_EDGES_MAX, "edges must fit");

void di_metrics_add(struct di_metrics *m, di_histogram_id which, int64_t value)
{
    const struct scale *s = &scales[kinds[which].scale];
    struct di_counts *c = &m->of[which];
    int low = 0, high = s->n; /* the first edge that is not below the value, n = none */
    if (value < 0)
        value = 0;
    while (low < high) {
        int middle = (low + high) / 2;
        if (s->edges[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    c->buckets[low]++;
    c->count++;
    c->sum += (uint64_t)value;
}

_Bool di_metrics_get(const struct di_metrics *m, di_histogram_id which, di_histogram *out)
{
    if ((unsigned)which >= DI_HISTOGRAMS)
        return 0;
    const struct scale *s = &scales[kinds[which].scale];
    *out = (di_histogram){.name = kinds[which].name,
                          .help = kinds[which].help,
                          .count = m->of[which].count,
                          .sum = (double)m->of[which].sum / s->per_unit,
                          .n_edges = s->n};
    for (int i = 0; i < s->n; i++)
        out->edges[i] = (double)s->edges[i] / s->per_unit;
    memcpy(out->buckets, m->of[which].buckets, ((size_t)s->n + 1) * sizeof *out->buckets);
    return 1;
}

double di_histogram_quantile(const di_histogram *h, double share)
{
    if (!h || !h->count || !(share >= 0 && share <= 1))
        return 0;
    double rank = share * (double)h->count, below = 0;
    for (int i = 0; i < h->n_edges; i++) {
        double from = i ? h->edges[i - 1] : 0, n = (double)h->buckets[i];
        if (n > 0 && below + n >= rank)
            return from + (h->edges[i] - from) * (rank > below ? (rank - below) / n : 0);
        below += n;
    }
    return h->edges[h->n_edges - 1];
}
