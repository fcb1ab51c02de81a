/* The step pipeline: launches run in order on a worker of their own (the CPU's form of a device stream), so that the engine schedules step
 * N+1 and handles the results of N-1 while N computes (spec/dspark.md §6). What a launch samples stays on the worker's side: the next
 * launch reads its input ids where the sampler wrote them, and a request that ended in between computes no further rows.
 *
 * Two launches exist, used in turn. The engine's thread fills one, launches it, and later waits for it; everything else is the worker's. */
#ifndef DI_ENGINE_PIPELINE_H
#define DI_ENGINE_PIPELINE_H

#include "cache/kv_store.h"
#include "engine/masks.h"
#include "engine/stepper.h"

/* The worker's view of a running request. Filled by the engine before the first launch that names the slot; afterwards the worker alone
 * touches it until the slot is named by no launch any more. */
struct di_pipeline_slot {
    int64_t id;       /* of the request, for di_pipeline_drop */
    int32_t *tokens;  /* by absolute position; the worker appends what it samples */
    int64_t n_prompt; /* tokens of the prompt proper: those behind it are generated */
    int64_t n_limit;  /* tokens in all when the answer has its full length */
    const struct di_sampling_params *params;
    bool ignore_end;
    uint64_t key;
    struct di_token_counts *counts; /* or NULL */
    struct di_cap cap;
    const int32_t *forced; /* [n_forced] answer by index instead of sampling; -1 = sampled */
    int64_t n_forced;
    const struct di_mask_source *masks;     /* or NULL */
    struct di_sampling_params guess_params; /* params without reports, for guesses: the worker's */
    di_status mask_status;                  /* of the launch at hand */
    di_error mask_error;
    int64_t cursor; /* rows that are computed and stay: the token at this position is decided, its row is the next */
    bool ended;     /* an end id, the limit, or an error: later rows are dropped */
};

/* What the rows of a chunk are. */
enum di_rows_of {
    DI_ROWS_OF_PROMPT,     /* tokens that are known; nothing is sampled */
    DI_ROWS_OF_PROMPT_END, /* the same, and the last one decides the token behind it */
    DI_ROWS_OF_CURSOR      /* from where the slot stands: each decides a token, as long as the input of the next one is that token */
};

/* Rows of one slot in one launch, and what became of them. */
struct di_launch_chunk {
    int slot;
    enum di_rows_of kind;
    uint64_t generation; /* of the slot, copied from the launch: results of an earlier owner are dropped */
    int n;               /* rows, from a cursor so many at most */
    int32_t pos0;        /* from a cursor: set by the worker */
    struct di_replay replay;
    /* results */
    int n_computed; /* rows; 0: the request had ended, nothing was touched */
    int n_tokens;   /* decided, in order; a failed row is the last. Of the rows of a cursor as many stay, the others count for nothing */
    const struct di_sample_result *tokens;
};

/* The first `tokens` positions of a block go to another one (copy-on-write of a partly shared block). */
struct di_block_copy {
    int32_t from, to;
    int tokens;
};

struct di_launch {
    uint64_t number; /* 1, 2, ... */
    int n_chunks;
    struct di_launch_chunk *chunks; /* [slots] */
    int32_t *pages;   /* [slots][pages_per_slot] staging: new page tables of its slots, which the owner may change while the launch runs */
    int n_page_spans; /* those that go up before the computation; at most one a slot */
    struct di_copy_span *page_spans;
    int n_copies; /* blocks to copy before the computation, in order; at most one a slot */
    struct di_block_copy *copies;
    struct di_sample_result *results; /* staging, those of all chunks */
    di_status status;                 /* of the whole step */
    di_error err;
    bool follows;                 /* launched while its predecessor was under way */
    int64_t started_ns, ended_ns; /* of the computation */
};

/* Rows whose logits are there at the same time: head and sampler go over the rows of a step in such tiles. 16.5 MB at full size. */
#define DI_LOGIT_ROWS 32

struct di_pipeline_params {
    const struct di_stepper *stepper; /* copied */
    struct di_kv_store *store;        /* borrowed; the worker's are its blocks, states and device page table, never its accounts */
    int slots;
    int cursor_rows;        /* most rows of a slot that are sampled in one launch, at least 1 */
    const uint64_t *banned; /* or NULL; borrowed */
};

struct di_pipeline;
di_status di_pipeline_create(const struct di_pipeline_params *p, struct di_pipeline **out, di_error *err);
/* Waits for what was launched. NULL is allowed. */
void di_pipeline_destroy(struct di_pipeline *p);
/* Append what create will allocate. */
void di_pipeline_plan(int slots, int cursor_rows, int vocab, int pages_per_slot, di_memory_plan *plan);
/* Give a launch the first n entries of a slot's page table, once a launch. Copies only what differs in version from what the launch before it
 * leaves on the device. */
void di_pipeline_set_pages(struct di_pipeline *p, struct di_launch *l, int slot, const int32_t *pages, int n, uint64_t version);
struct di_pipeline_slot *di_pipeline_slot_of(struct di_pipeline *p, int slot);
/* The slot is filled: launches may name it. */
void di_pipeline_open_slot(struct di_pipeline *p, int slot);
/* Launches that are not begun compute no rows any more of this request, if a slot has it; it must be ended soon. Any
 * thread. */
void di_pipeline_drop(struct di_pipeline *p, int64_t id);
/* The launch to fill next, empty, with its number. Its predecessor but one must have been waited for. */
struct di_launch *di_pipeline_next(struct di_pipeline *p);
void di_pipeline_launch(struct di_pipeline *p, struct di_launch *l);
/* Block until the launch is done; afterwards its results may be read until di_pipeline_next returns it again. */
void di_pipeline_wait(struct di_pipeline *p, struct di_launch *l);

#endif
