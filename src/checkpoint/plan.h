/* What a checkpoint holds and what running it will cost: pure arithmetic on the config, nothing is loaded. */
#ifndef DI_CHECKPOINT_PLAN_H
#define DI_CHECKPOINT_PLAN_H

#include "checkpoint/checkpoint.h"

/* Rows of the cached state that do not come from the config; those of the back ends (spec/dspark.md §4.2). */
#define DI_PLAN_BLOCK_TOKENS 64
#define DI_PLAN_RING_ROWS 144
#define DI_PLAN_TAIL_ROWS 16

#define DI_PLAN_UNKNOWN UINT64_MAX
struct di_plan_params {
    int64_t context;              /* tokens of each request, 1 .. max_position_embeddings */
    int64_t batch;                /* requests at once, 1 .. 1,000,000 */
    bool draft, vision;           /* the tensors of that group are there */
    bool load_draft, load_vision; /* and will be used; otherwise they stay in the file */
    /* What only a back end and the model know; DI_PLAN_UNKNOWN until they are asked. */
    uint64_t packed_bytes;     /* copies of the repacked parts; 0: the back end reads all in place */
    uint64_t activation_bytes; /* one step of the model */
    uint64_t scratch_bytes;    /* the back end's own */
};

enum di_plan_kind { DI_PLAN_WEIGHTS, DI_PLAN_CACHE, DI_PLAN_STATE, DI_PLAN_SCRATCH };
enum di_plan_place {
    DI_PLACE_MAPPED,    /* pages of the mapped file: read on first use, given back by the system under pressure */
    DI_PLACE_ALLOCATED, /* memory taken once at start */
    DI_PLACE_UNUSED,    /* stays in the file */
    DI_PLACE_COPIED     /* read once at start and copied: see the region "repacked weights"; then the pages are given back */
};

struct di_plan_region {
    char name[40];
    enum di_plan_kind kind;
    enum di_plan_place place;
    uint64_t count, unit_bytes, bytes; /* bytes = count * unit_bytes, DI_PLAN_UNKNOWN where nobody told */
    char note[120];
};

#define DI_PLAN_MAX_REGIONS (DI_PART_COUNT + DI_MAX_SOURCES + 10)
struct di_plan {
    struct di_plan_region region[DI_PLAN_MAX_REGIONS];
    int n;
    uint64_t block_bytes;        /* one block of 64 tokens */
    uint64_t bytes_per_sequence; /* state of one request beside its blocks */
    uint64_t mapped, allocated;  /* totals by place; unknown regions count as 0 */
    int unknown;                 /* regions whose size nobody told */
};

/* DI_ERR_INVALID for a context or batch out of range, DI_ERR_LIMIT if a total passes 2^63. */
di_status di_plan_make(const struct di_config *c, const struct di_plan_params *params, struct di_plan *out, di_error *err);

#endif
