/* Distributions of what happens in the engine: one struct of histograms with fixed buckets, for a server's metrics page and for --stats.
 *
 * Recording is a search among at most 41 edges and three additions; nothing is allocated. The engine's thread owns a struct di_metrics;
 * others get copies. The public form, with edges in seconds, is di_histogram (deepinfer.h). Names are those that dashboards ask for
 * (spec/encoding.md §4.7). */
#ifndef DI_ENGINE_METRICS_H
#define DI_ENGINE_METRICS_H

#include "deepinfer.h"

#define DI_HISTOGRAMS (DI_HISTOGRAM_STEP_GAP_TIME + 1)

struct di_metrics {
    struct di_counts {
        uint64_t count, sum;                          /* of nanoseconds or tokens */
        uint64_t buckets[DI_HISTOGRAM_EDGES_MAX + 1]; /* by edge: values of at most that much and more than the edge before */
    } of[DI_HISTOGRAMS];
};

/* `value` is in nanoseconds or tokens; below 0 counts as 0. */
void di_metrics_add(struct di_metrics *m, di_histogram_id which, int64_t value);
/* The public form of one histogram. False if there is no such one. */
_Bool di_metrics_get(const struct di_metrics *m, di_histogram_id which, di_histogram *out);

#endif
