/* The step pipeline: launches run in order on a worker of their own (the CPU's form of a device stream), so that the engine schedules step
 * N+1 and handles the results of N-1 while N computes (spec/dspark.md §6). What a launch samples stays on the worker's side: the next
 * launch reads its input ids where the sampler wrote them, and a request that ended in between computes no further rows.
 *
 * Two launches exist, used in turn. The engine's thread fills one, launches it, and later waits for it; everything else is the worker's. */
#ifndef DI_ENGINE_PIPELINE_H
#define DI_ENGINE_PIPELINE_H

#include "cache/kv_store.h"
#include "sample/sampler.h"
#include "model/model.h"

/* The worker's view of a running request. Filled by the engine before the first launch that names the lane; afterwards the worker alone
 * touches it until the lane is named by no launch any more. */
struct di_lane {
    uint64_t name;    /* for di_pipeline_drop; 0 = none */
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
    bool ended; /* an end id, the limit, or an error: later rows are dropped */
};

struct di_launch_out {
    int lane;
    uint64_t generation; /* of the lane, copied from the launch: results of an earlier owner are dropped */
    bool valid;          /* false: the request had ended, nothing was computed */
    struct di_sample_result result;
};

/* The first `tokens` positions of a block go to another one (copy-on-write of a partly shared block). */
struct di_block_copy {
    int32_t from, to;
    int tokens;
};

struct di_launch {
    uint64_t number; /* 1, 2, ... */
    int n_chunks;
    struct di_chunk *chunks; /* slot = lane; row0 is set by the worker */
    const int32_t **tokens;
    struct di_replay *replay; /* [n_chunks] */
    int32_t *pages;   /* [lanes][pages_per_lane] staging: new page tables of its lanes, which the owner may change while the launch runs */
    int n_page_spans; /* those that go up before the computation; at most one a lane */
    struct di_copy_span *page_spans;
    bool *wants_logits; /* [n_chunks] the chunk's last row is sampled */
    bool *computed;     /* [n_chunks] result: false = the request had ended, no row was touched */
    int n_copies;       /* blocks to copy before the computation, in order; at most one a lane */
    struct di_block_copy *copies;
    int n_out; /* chunks that want logits, in order */
    struct di_launch_out *out;
    di_status status; /* of the whole step */
    di_error err;
    bool follows;                 /* launched while its predecessor was under way */
    int64_t started_ns, ended_ns; /* of the computation */
};

struct di_pipeline_params {
    /* Computes a step on the worker's thread; the null model of tests writes some logits and returns. */
    di_status (*compute)(void *ctx, const struct di_step *step, di_error *err);
    void *ctx;
    struct di_kv_store *
        store; /* borrowed, with its back end, which samples, too, if it can; the worker's are its blocks, states and device page table, never its accounts */
    int lanes, vocab;
    const uint64_t *banned; /* or NULL; borrowed */
};

struct di_pipeline;
di_status di_pipeline_create(const struct di_pipeline_params *p, struct di_pipeline **out, di_error *err);
/* Waits for what was launched. NULL is allowed. */
void di_pipeline_destroy(struct di_pipeline *p);
uint64_t di_pipeline_bytes(int lanes, int vocab, int pages_per_lane);
/* Give a launch the first n entries of a lane's page table, once a launch. Copies only what differs in version from what the launch before it
 * leaves on the device. */
void di_pipeline_set_pages(struct di_pipeline *p, struct di_launch *l, int lane, const int32_t *pages, int n, uint64_t version);
struct di_lane *di_pipeline_lane(struct di_pipeline *p, int lane);
/* The lane is filled: launches may name it. */
void di_pipeline_open_lane(struct di_pipeline *p, int lane);
/* Launches that are not begun compute no rows any more of the lane that has this name, if there is one; its request must be ended soon. Any
 * thread. */
void di_pipeline_drop(struct di_pipeline *p, uint64_t name);
/* The launch to fill next, empty, with its number. Its predecessor but one must have been waited for. */
struct di_launch *di_pipeline_next(struct di_pipeline *p);
void di_pipeline_launch(struct di_pipeline *p, struct di_launch *l);
/* Block until the launch is done; afterwards its results may be read until di_pipeline_next returns it again. */
void di_pipeline_wait(struct di_pipeline *p, struct di_launch *l);

#endif
