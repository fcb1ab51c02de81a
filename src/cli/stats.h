/* The engine's statistics as `--stats` prints them, read through the public API. */
#ifndef DI_CLI_STATS_H
#define DI_CLI_STATS_H

#include "base/str.h"
#include "deepinfer.h"

/* Append one JSON object: counters and gauges under the names of di_engine_stats, "misses" by reason, and under "histograms" count, mean,
 * p50, p90 and p99 of each, in seconds or tokens. */
void di_stats_write(struct di_buf *b, di_engine *engine);
/* Append a table for a person: a few lines of counters, a line for each histogram that has values. */
void di_stats_write_table(struct di_buf *b, di_engine *engine);

#endif
