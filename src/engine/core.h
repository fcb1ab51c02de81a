/* Token level of the engine: requests share the steps of one model. Each step is a list of rows: one for every request that decodes, and
 * the next rows of prompts that are not done, up to a row budget. What a request computes depends on itself only (backend.h), so its tokens
 * are the same whatever runs beside it.
 *
 * di_core_step launches step N and handles the results of step N-1; while it returns, N computes (pipeline.h). A request that ended or was
 * cancelled is seen one step late; its slot and pages are given back once the last step that names it is done.
 *
 * One thread owns an engine and makes all calls; callbacks come from inside di_core_step, di_core_flush and di_core_destroy. */
#ifndef DI_ENGINE_CORE_H
#define DI_ENGINE_CORE_H

#include "cache/kv_store.h"
#include "cache/prefix.h"
#include "engine/draft_counts.h"
#include "engine/masks.h"
#include "engine/metrics.h"
#include "engine/replay.h"
#include "engine/stepper.h"

/* Which prompt goes first among those of one priority and one tenant, in starting and at the rows of a step. The bits do not depend on it. */
enum di_prefill_order {
    DI_PREFILL_SHORTEST, /* the one with the fewest rows left, less a tenth of the rows that could have been computed while it waited */
    DI_PREFILL_ARRIVAL   /* starting in order of arrival; those that run take turns */
};
/* "shortest", "arrival". False for another name. */
bool di_prefill_order_by_name(const char *name, enum di_prefill_order *out);

struct di_core_config {
    int max_batch;     /* requests that run at the same time, 1..1024 */
    int prefill_chunk; /* prompt rows a step, at least 1 */
    int64_t context;   /* tokens of one request, prompt and answer; 0 = the model's limit, at most 65,536 */
    int cache_blocks;  /* blocks of 64 tokens in the pool; 0 = enough for max_batch requests of the full context */
    int states;        /* snapshots of request state for prefix reuse; 0 = none */
    bool no_reuse;     /* every request computes all of its prompt */
    int drafts;        /* guessed tokens of a request that a step verifies at most (di_stepper.guess), 0 to DI_MAX_DRAFTS. Those of a
                                 * model are its draft's: it is opened with drafts, and has blocks of so many */
    enum di_replay_mode replay; /* of requests that do not say (replay.h) */
    int64_t replay_rows;        /* K of bounded replay, 0 = as replay.h says */
    enum di_prefill_order prefill_order;
    const uint64_t *banned; /* bit set of ids that are never sampled (spec/encoding.md §1.6), or NULL; borrowed */
};

/* What became of a request. Times are nanoseconds since its arrival, -1 = it never came so far; with several starts the first one counts.
 * */
struct di_request_facts {
    int64_t queue_ns, first_token_ns, total_ns;
    int64_t cached; /* tokens of the prompt that were reused */
    di_miss_reason miss;
    int64_t miss_at; /* -1 with DI_MISS_REASON_NONE */
    int64_t skipped; /* rows of the prompt that the decoder half left out (bounded replay) */
    bool bounded;    /* the answer is approximate: something before it went through bounded replay */
    struct di_draft_counts drafts;
};

struct di_request {
    const int32_t *prompt; /* copied at submit */
    int64_t n_prompt, max_tokens;
    bool prompt_stays; /* the prompt lives until on_end: it is copied when the request starts, so that waiting ones share it */
    struct di_sampling_params sampling; /* its lists are copied; end_ids end the answer (the id itself is reported) */
    uint32_t sample;                    /* which of several samples with the same seed, 0 for the first */
    bool ignore_end;                    /* end_ids do not end the answer */
    const int32_t *forced;              /* [n_forced] the answer's tokens by index, -1 = sampled; copied. For scoring and resuming */
    int64_t n_forced;
    const struct di_cap *cap;           /* NULL = none; copied */
    const struct di_mask_source *masks; /* what may follow, NULL = everything; copied. Released once, unless submit refuses */
    int64_t id;                         /* its number, higher than all before; 0 = the next one */
    int priority;                       /* lower runs earlier and may take the place of a higher one */
    uint64_t tenant;                    /* requests of one priority are admitted fairly between tenants */
    uint64_t space;                     /* a cached prefix is shared within one space of one tenant; 0 for the usual one */
    int64_t deadline_ns;                /* of di_clock_ns; 0 = none. A request that is not over by then ends with DI_REASON_DEADLINE */
    enum di_replay_mode replay;         /* 0 = the engine's. Bounded ones take no forced tokens: scores would be approximate */
    /* A request of the same tenant with the same beginning: this one waits, overtaken by others, until that one has computed what both have
     * in common (or is over), and finds it cached: siblings over one prompt, branches of a live answer. 0 = none, as is one that is not
     * known (any more). */
    int64_t after;
    /* [n_save_at] rising, 1 .. n_prompt: the state before these rows is kept, for later prompts that go on from there. Copied. */
    const int32_t *save_at;
    size_t n_save_at;
    int64_t arrived_ns;             /* of di_clock_ns; 0 = now */
    struct di_request_facts *facts; /* filled right before on_end, or NULL */
    /* It was given a place (again, after a preemption): so many tokens of its prompt are reused. May be NULL. */
    void (*on_start)(void *ctx, int64_t cached);
    /* A token was sampled. Returning false ends the request with DI_REASON_STOP after this token (a stop string was found). */
    bool (*on_token)(void *ctx, const struct di_sample *token);
    /* The request is over (STOP, LENGTH, CANCELLED, DEADLINE, ERROR); called exactly once, and nothing of the request is used afterwards. `err`
     * is set with ERROR. */
    void (*on_end)(void *ctx, di_end_reason end, const di_error *err);
    void *ctx;
};

struct di_core_stats {
    uint64_t steps, prompt_rows, decode_rows, wasted_rows; /* wasted: launched for a request that had ended */
    uint64_t finished, cancelled, failed, preempted;
    uint64_t host_ns, compute_ns,
        gap_ns; /* time of the engine's thread in steps without waiting; of the worker; idle worker between two launches */
    int running, waiting, free_blocks, blocks; /* free: not held by a request; may be cached */
    int held_slots;                            /* of the running: have ended or given way, but their last launch is not done */
    uint64_t lookups, lookup_tokens,
        cached_tokens;              /* prefix reuse: requests that were looked up, their tokens, tokens not computed again */
    uint64_t miss[DI_MISS_REASONS]; /* why a lookup ended where it did */
    uint64_t miss_other_tenant;     /* of those never seen: another tenant has it */
    uint64_t evicted, states_saved, states_restored;
    uint64_t prompt_tokens, generated_tokens; /* of prompts that are done; handed out */
    bool failing;                             /* the latest step that is done failed as a whole */
    uint64_t queue_visits;                    /* places of the queue that were looked at: what waiting requests cost the engine's thread */
    struct di_draft_counts drafts;
    uint64_t bounded, skipped_rows; /* starts of requests as an approximation (replay.h); prompt rows that the decoder half left out */
};

struct di_core;

/* Append what an engine takes beside its model: cache (G and S) and its own arrays. */
void di_core_plan(const struct di_config *c, struct di_numerics numerics, const struct di_core_config *config, di_memory_plan *plan);
/* A number of snapshots for a pool of that size (di_reuse_default_states). */
int di_core_default_states(const struct di_config *c, struct di_numerics numerics, const struct di_core_config *config);
/* Rows that the model must allow in one step. */
int di_core_max_rows(const struct di_core_config *config);
/* The context that `config` means for this model. */
int64_t di_core_context(const struct di_config *c, const struct di_core_config *config);

/* The model is borrowed; its max_rows and max_context must be at least those of di_core_max_rows and di_core_context. */
di_status di_core_create(struct di_model *model, const struct di_core_config *config, struct di_core **out, di_error *err);
/* The same over anything that computes steps. */
di_status di_core_create_on(const struct di_stepper *stepper, const struct di_core_config *config, struct di_core **out, di_error *err);
void di_core_destroy(struct di_core *e); /* running requests end as cancelled */

/* Queue a request. Refused at once, with the reason: an empty prompt, ids outside the vocabulary, prompt + max_tokens beyond the context or
 * the pool, sampling parameters out of range, bounded replay that the model cannot do. *id (may be NULL) is its number. */
di_status di_core_submit(struct di_core *e, const struct di_request *r, int64_t *id, di_error *err);
/* The refusals of submit alone. Reads only what never changes: any thread, at any time. */
di_status di_core_check(const struct di_core *e, const struct di_request *r, di_error *err);
/* End a request at the next step, in whatever state it is. False if it is not (or no longer) known. */
bool di_core_cancel(struct di_core *e, int64_t id);
/* This request is about to be cancelled: launches that are not begun leave it out at once. Any thread; di_core_cancel must
 * follow. */
void di_core_drop(struct di_core *e, int64_t id);
/* Launch a step, handle the results of the one before. *busy is false when nothing is running, waiting or under way. An error of one
 * request ends that request; an error returned here is the model's and ends all. */
di_status di_core_step(struct di_core *e, bool *busy, di_error *err);
/* Wait for the step under way and handle its results; afterwards nothing is under way and slots of ended requests are free. */
di_status di_core_flush(struct di_core *e, di_error *err);
struct di_core_stats di_core_stats(const struct di_core *e);
const struct di_metrics *di_core_metrics(const struct di_core *e); /* changes in every step */
/* NULL, or what contradicts in the accounts of blocks and prefixes. O(blocks), for tests. */
const char *di_core_check_accounts(const struct di_core *e);

#endif
