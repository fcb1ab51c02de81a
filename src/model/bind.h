/* Where the tensors of the inventory (checkpoint/inventory.h) live when a model runs, and how they get there. Loading and planning go
 * through the same table, so what is loaded is what was planned. */
#ifndef DI_MODEL_BIND_H
#define DI_MODEL_BIND_H

#include "model/model.h"

enum di_home {
    DI_HOME_FILE,    /* stays there: checked at opening, used by nothing yet */
    DI_HOME_PACKED,  /* a matrix in the layout of the back end */
    DI_HOME_COPIED,  /* a vector or a small matrix, as it is in the file */
    DI_HOME_PRODUCT, /* bf16, kept in fp32 and multiplied by its factor */
    DI_HOME_FACTOR,  /* bf16, multiplied into the product of the same field; not kept itself */
    DI_HOME_MAPPED,  /* read in place: a table of which a step needs a few rows, or a matrix that the back end reads as it is in the file */
    DI_HOME_COUNT
};

/* What of the weights lives where. What is packed, copied or a product lies in one region of the device, in the order of the inventory,
 * behind it the frequencies of the two kinds of RoPE (which count as copied); each in whole 64 bytes. */
struct di_weight_sums {
    struct di_home_sum {
        uint64_t tensors, file_bytes, bytes; /* a matrix and its scales are one; in the file; in the region or in place */
    } home[DI_HOME_COUNT][DI_PART_COUNT];
    uint64_t region_bytes, staging_bytes; /* staging: of what is copied or multiplied the largest, while it is loaded */
};
void di_bind_sums(const struct di_config *c, const struct di_backend *be, bool drafts, struct di_weight_sums *out);
/* Append what di_bind_load will fill, and what stays in the files or is read there. */
void di_bind_plan(const struct di_config *c, const struct di_backend *be, bool drafts, di_memory_plan *plan);

/* Bind every tensor to its field: makes m->layers, fills m->weights, which has region_bytes. File pages that are not needed any
 * more are given back. Calls the model's progress. */
di_status di_bind_load(struct di_model *m, const struct di_weight_sums *sums, di_error *err);

#endif
