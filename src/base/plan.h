/* The memory that a run will take, as one list (di_memory_plan of deepinfer.h). Every room appends the regions that it will allocate, beside
 * the code that allocates them; whoever shows a plan shows this list. */
#ifndef DI_BASE_PLAN_H
#define DI_BASE_PLAN_H

#include "base/str.h"

/* Append a region that is given but for `bytes` and `note`, which is made here, and count it. One of nothing is left out. Sums that pass 64
 * bits stay at the highest number. */
void di_plan_add(di_memory_plan *p, const di_memory_region *region, const char *note, ...) __attribute__((format(printf, 3, 4)));
/* DI_ERR_LIMIT if the total passes 2^63, DI_ERR_INTERNAL if there are too many regions. */
di_status di_plan_check(const di_memory_plan *p, di_error *err);
/* What is taken at start: all but what is read in place. */
uint64_t di_plan_taken(const di_memory_plan *p);

/* The lines that `inspect --plan`, `generate` and `serve` print. */
void di_plan_write(struct di_buf *b, const di_memory_plan *p);
/* The one JSON form: {"context","batch","rows","arithmetic","mapped_bytes","allocated_bytes","weights_packed","weights_mapped","cache",
 * "activations","scratch","total","regions":[{"group","name","place","count","unit_bytes","bytes","note"}]}. */
void di_plan_write_json(struct di_buf *b, const di_memory_plan *p);
/* "1,234,567". */
const char *di_grouped(uint64_t x, char s[32]);
/* "    276.74 GiB": the largest unit that gives at least 1. */
void di_add_human_bytes(struct di_buf *b, uint64_t bytes);

#endif
