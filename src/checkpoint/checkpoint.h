/* A checkpoint directory: config.json, model.safetensors.index.json and its shards, checked against the inventory that the config implies.
 * */
#ifndef DI_CHECKPOINT_CHECKPOINT_H
#define DI_CHECKPOINT_CHECKPOINT_H

#include "base/plan.h"
#include "checkpoint/inventory.h"

struct di_checkpoint {
    char *dir;
    struct di_config config;
    struct di_safetensors *shards;
    size_t n_shards;
    const struct di_tensor **tensors; /* all, sorted by name; names are bare */
    size_t count;
    size_t n_extra;             /* tensors that no part of the model asks for */
    bool has_draft, has_vision; /* the tensors of that group are there; of the draft, as they should be */
    di_error draft_fault;       /* why the draft cannot be used; DI_OK: it can */
};

/* Opens every shard named by the index (or the single model.safetensors), reading headers only. Checks: each tensor of the expected
 * inventory (di_inventory_*) is present once with the right dtype and shape; tensors that the index names but the shard lacks, that a shard
 * holds but the index does not name, and duplicates each get their own sentence. The vision tensors (vision.*, aligner.*, image_*)
 * may be absent as a group, not in part. What is wrong with those of the draft (mtp.*), which no answer needs, fails nothing: `draft_fault`
 * says it. Unknown extra tensors are ignored but counted, except in a vision group that the config describes (spec/vision.md §12). Accepts the optional prefix "model." (spec §3.3). Shard names are plain file names in `dir`.
 * 96,085 tensors open in well under 2 s. On failure nothing needs closing. */
di_status di_checkpoint_open(const char *dir, struct di_checkpoint *ck, di_error *err);
void di_checkpoint_close(struct di_checkpoint *ck);
/* Append what opening a checkpoint of this config allocates and keeps: its tensors, wherever they lie. */
void di_checkpoint_plan(const struct di_config *c, di_memory_plan *plan);
/* Are the files what they were when they were opened? DI_ERR_IO names one that is not: whatever was computed since may be wrong. A system
 * call for each shard. */
di_status di_checkpoint_check(const struct di_checkpoint *ck, di_error *err);
/* Tensor by bare name ("layers.3.attn.wq_a.weight"); NULL if absent. */
const struct di_tensor *di_checkpoint_find(const struct di_checkpoint *ck, const char *name);
/* printf-style convenience; the tensor is known to exist after open, so a NULL is a defect of the caller. */
const struct di_tensor *di_checkpoint_findf(const struct di_checkpoint *ck, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Tell the system that a tensor's file pages are no longer needed (after repacking). */
void di_tensor_forget(const struct di_tensor *t);
/* The same for everything; what is used in place comes back when it is touched. Reading a page maps its neighbours too, so a series of
 * di_tensor_forget leaves much of a small checkpoint resident. */
void di_checkpoint_forget(const struct di_checkpoint *ck);

#endif
