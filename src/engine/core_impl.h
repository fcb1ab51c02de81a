/* Private to core.c (a request's life, steps) and core_admission.c (the queue: who waits for whom, who starts, who gives way). */
#ifndef DI_ENGINE_CORE_IMPL_H
#define DI_ENGINE_CORE_IMPL_H

#include "engine/core.h"
#include "engine/pipeline.h"
#include "engine/reuse.h"

/* A request from submit to its end. Waiting ones form a list in order of arrival; running ones own a slot. */
struct request {
    struct request *next;
    int64_t id;
    struct di_request r;            /* prompt and the sampler's lists point behind this struct */
    struct di_token_counts *counts; /* only for penalties */
    struct di_cap cap;
    uint64_t key;
    int64_t n_done;   /* tokens known to the engine's thread: prompt and reported */
    int64_t n_resume; /* of these, what is to be computed again before the next token: n_prompt, or more after a preemption */
    int64_t last_token_ns;
    struct di_request_facts facts;
    int64_t seen_resume; /* n_done when it (re)started: a victim must have made progress */
    int64_t n_reached;   /* most rows that were computed so far: they can be reused */
    int passed_over;
    int64_t since; /* di_core.service at its arrival: what its tenant did not use before does not count */
    bool cancelled;
    struct request *leader; /* di_request.after while it lives, or one that is just computing the same beginning (guessed) */
    bool guessed;
    int64_t n_common; /* this one is ready when the leader has reached so many rows */
    int n_followers;  /* requests that name this one as their leader */
    int32_t tokens[]; /* [n_prompt + max_tokens]; the pipeline appends */
};

/* FREE -> RUNNING -> LEAVING (nothing more is scheduled; results of launches up to `fence` are out) -> FREE. */
enum slot_state { SLOT_FREE, SLOT_RUNNING, SLOT_LEAVING };
struct slot {
    enum slot_state state;
    struct request *req;
    uint64_t generation;
    int64_t n_rows;     /* positions launched */
    int64_t n_computed; /* of these, positions whose launch is done */
    int64_t common;     /* other requests shared the prefix so far, but left no state there; 0 = no such row */
    int64_t right_from; /* of its rings, see di_reuse_start */
    int64_t save_at;    /* the next row before which its state is to be saved, 0 = none; the launches pause there */
    struct di_replay replay;
    uint64_t page_version;
    uint64_t fence; /* LEAVING: number of the last launch that names the slot */
    bool end_saved; /* LEAVING: its last state is kept */
    bool over;      /* LEAVING: the request has ended; else it goes back to the queue (preempted) */
};

/* Service that a tenant has had, in tokens; the least served goes first. A small table: when it is full, all are forgotten. */
#define TENANTS 64
struct tenant {
    uint64_t id;
    int64_t served;
};

struct di_core {
    struct di_core_config config;
    int64_t context, next_id;
    int vocab;
    struct di_kv_store *store;
    struct di_pipeline *pipe;
    struct di_reuse *reuse; /* NULL: no_reuse */
    struct di_replay_rules replay;
    uint64_t page_versions;
    struct slot *slots;
    struct request *queue, **queue_end; /* where the next one is put */
    struct tenant tenants[TENANTS];
    int n_tenants;
    int64_t service;               /* that the best served one of those who were given a place had before: credit is counted from here on */
    struct di_launch *under_way;   /* launched, results not handled */
    int64_t last_ended_ns, now_ns; /* now: of the present step, read again when it has waited */
    struct di_core_stats stats;
    struct di_metrics metrics;
    int n_leaving;
    int first_prompt; /* slot whose prompt is served first in the next step */
};

/* ---- core.c ---- */
/* No more rows for a slot; `over`: its request has ended, else it goes back to the queue. */
void di_core_leave(struct di_core *e, struct slot *s, bool over);
/* Keep the state of a slot at row `at`. */
void di_core_save(struct di_core *e, int slot, int64_t at);

/* ---- core_admission.c ---- */
void di_core_enqueue(struct di_core *e, struct request *q, bool front);
/* Take *link out of the queue. */
void di_core_unlink(struct di_core *e, struct request **link);
/* A request that is not over, by its id. *slot: where it runs, -1 = it waits. */
struct request *di_core_find(const struct di_core *e, int64_t id, int *slot);
/* Those that wait for p wait no longer. */
void di_core_leave_leader(struct di_core *e, struct request *p, bool guessed_only);
/* The next row at which the launches of a slot pause, so that its state can be saved: not launched yet, not computed. The end of the prompt
 * needs no pause, a launch ends there. */
int64_t di_core_next_save(const struct di_core *e, const struct slot *s);
/* Let q wait for the request that it names, and see to it that the state is kept where they part: now if it is there, else when it is
 * reached. */
void di_core_follow(struct di_core *e, struct request *q);
/* Start what waits, while there is place; else let somebody give way to a better priority. */
void di_core_admit(struct di_core *e, struct di_launch *l);

#endif
