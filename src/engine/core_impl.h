/* Private to core.c (a request's life, steps), core_queue.c (what waits, and in which order) and core_admission.c (who waits for whom, who
 * starts, who gives way). */
#ifndef DI_ENGINE_CORE_IMPL_H
#define DI_ENGINE_CORE_IMPL_H

#include "base/order.h"
#include "engine/drafter.h"
#include "engine/core.h"
#include "engine/pipeline.h"
#include "engine/reuse.h"

/* A request from submit to its end. A waiting one stands in the queue of its class, or among those that wait for another request; a running
 * one owns a slot. */
struct request {
    struct di_order_node by_id, due; /* until its end is told */
    struct di_order_node place;      /* while it waits: in its class, or among its leader's followers */
    struct waiting_class *class;
    int64_t id;
    struct di_request r;            /* the lists that it names point behind this struct, the prompt is `tokens` */
    struct di_token_counts *counts; /* only for penalties */
    struct di_cap cap;
    struct di_mask_source masks; /* {0}: none */
    uint64_t key;
    int slot;         /* -1: it waits */
    int64_t n_done;   /* tokens known to the engine's thread: prompt and reported */
    int64_t n_resume; /* of these, what is to be computed again before the next token: n_prompt, or more after a preemption */
    int64_t last_token_ns;
    struct di_request_facts facts;
    int64_t seen_resume; /* n_done when it (re)started: a victim must have made progress */
    int64_t n_reached;   /* most rows that were computed so far: they can be reused */
    int64_t n_cached;    /* while it waits: of n_resume rows, those that were cached when it was looked up */
    int64_t waits_since; /* di_core.computable when it was submitted */
    int64_t turn;        /* service of its tenant when it started */
    int passed_over;
    bool cancelled;
    struct request *leader; /* di_request.after while it lives, or one that is just computing the same beginning (guessed) */
    bool guessed;
    int64_t n_common;          /* this one is ready when the leader has reached so many rows */
    struct di_order followers; /* requests that name this one as their leader and are not ready, by n_common */
    int32_t *room;             /* [n_prompt + max_tokens] from the start on, the pipeline appends; before, maybe NULL */
    const int32_t *tokens;     /* [n_done] room, or the caller's prompt */
};

/* FREE -> RUNNING -> LEAVING (nothing more is scheduled; results of launches up to `fence` are out) -> FREE. */
enum slot_state { SLOT_FREE, SLOT_RUNNING, SLOT_LEAVING };
struct slot {
    enum slot_state state;
    struct request *req;
    uint64_t generation;
    int64_t n_started;  /* the first row that it computes */
    int64_t n_rows;     /* positions launched; of launches from the cursor that are not done, one each: as many are certain */
    int64_t n_computed; /* of these, positions whose launch is done */
    int64_t n_written;  /* positions that launches may have written so far: rows of guesses too */
    int64_t n_touched;  /* of these, what launches that are done have written from the cursor on */
    int64_t common;     /* other requests shared the prefix so far, but left no state there; 0 = no such row */
    int64_t right_from; /* of its rings, see di_reuse_start */
    int64_t save_at;    /* the next row before which its state is to be saved, 0 = none; the launches pause there */
    struct di_replay replay;
    uint64_t page_version;
    uint64_t fence; /* LEAVING: number of the last launch that names the slot */
    bool end_saved; /* LEAVING: its last state is kept */
    bool over;      /* LEAVING: the request has ended; else it goes back to the queue (preempted) */
};

/* Service that a tenant has had, in tokens: the least served goes first. It is known while the tenant has requests, and afterwards while it
 * is above that of everybody who is given a place (a debt); of such tenants those with the most are kept. */
struct tenant {
    struct di_order_node by_id, debt; /* debt: while it has no request */
    int64_t served;
    int64_t n_waiting; /* its requests that wait */
    int n_classes;
    int64_t least; /* while a step is built */
};

/* Requests of one tenant with one priority. */
struct waiting_class {
    struct di_order_node by_name, turn; /* turn: while some are ready */
    struct tenant *tenant;
    int priority;
    int64_t n_requests;    /* that wait or run */
    struct di_order ready; /* in the order of starting; size: the blocks that one needs */
};

/* A prompt that asks for rows of the step: lower keys first. */
struct bidder {
    int64_t key[3];
    int slot;
};

struct di_core {
    struct di_core_config config;
    int64_t context, last_id;
    int vocab;
    struct di_kv_store *store;
    struct di_pipeline *pipe;
    struct di_reuse *reuse;     /* NULL: no_reuse */
    struct di_drafter *drafter; /* NULL: the stepper's own guesses, or none */
    struct di_replay_rules replay;
    uint64_t page_versions;
    struct slot *slots;
    struct di_order living;  /* requests whose end is not told, by id */
    struct di_order due;     /* those that have a deadline, by it; cancelled ones at once */
    struct di_order classes; /* by priority and tenant */
    struct di_order turns;   /* those of which some are ready, by priority and service; size: the fewest blocks that one needs */
    struct di_order tenants, debtors;
    int64_t service;               /* that the best served one of those who were given a place had before: credit is counted from here on */
    int64_t computable;            /* prompt rows that all steps so far could have computed */
    uint64_t queue_visits;         /* of ordered sets that are gone */
    struct bidder *bidders;        /* [max_batch], of the step that is built */
    struct di_launch *under_way;   /* launched, results not handled */
    int64_t last_ended_ns, now_ns; /* now: of the present step, read again when it has waited */
    struct di_core_stats stats;
    struct di_metrics metrics;
    int n_leaving;
    int first_prompt; /* slot whose prompt is served first in the next step */
};

/* ---- core.c ---- */
/* Positions that a request must have pages for. */
int64_t di_core_positions(const struct di_core *e, const struct di_request *r);
/* No more rows for a slot; `over`: its request has ended, else it goes back to the queue. */
void di_core_leave(struct di_core *e, struct slot *s, bool over);
/* Keep the state of a slot at row `at`. */
void di_core_save(struct di_core *e, int slot, int64_t at);

/* ---- core_queue.c ---- */
/* Make a request known that was just made: its id, its deadline, its class. */
di_status di_core_enter(struct di_core *e, struct request *q, di_error *err);
/* Its end is told: nothing finds it any more. */
void di_core_forget(struct di_core *e, struct request *q);
void di_core_free_request(struct di_core *e, struct request *q); /* forgotten, and in no queue */
void di_core_free_queue(struct di_core *e);                      /* all requests are freed */
/* A request that is not over, by its id; NULL if there is none. */
struct request *di_core_find(struct di_core *e, int64_t id);
/* Put a request among the waiting ones, or take it out, wherever it stands there. */
void di_core_wait(struct di_core *e, struct request *q);
void di_core_unwait(struct di_core *e, struct request *q);
/* A waiting q waits for p to reach n rows; it is ready again. */
void di_core_set_leader(struct di_core *e, struct request *q, struct request *p, int64_t n, bool guessed);
void di_core_unset_leader(struct di_core *e, struct request *q);
/* Ready again, after n_cached was changed. */
void di_core_reorder(struct di_core *e, struct request *q);
/* The first ready request in the order of starting that needs at most so many blocks: priority, then the tenant that had less, then
 * di_core_rank. */
struct request *di_core_first(struct di_core *e, int blocks);
/* Among prompts of one tenant the lower one goes first: rows left to compute (ten times), less the rows that could have been computed while
 * it waited (what all have in common is left out), so that nobody waits for ever. Arrival: always 0. */
int64_t di_core_rank(const struct di_core *e, const struct request *q, int64_t left);
int di_core_blocks(const struct di_core *e, const struct request *q);
/* q is given a place: its tenant is charged for all its tokens. */
void di_core_charge(struct di_core *e, struct request *q);
uint64_t di_core_queue_visits(const struct di_core *e);
/* NULL, or what contradicts in the sets. O(requests). */
const char *di_core_check_queue(const struct di_core *e);

/* Memory that a running request needs beside the pool's: for its tokens, and for penalties. False: there is none. */
bool di_core_make_room(const struct di_core *e, struct request *q);
/* A waiting request that cannot start ends as an error. */
void di_core_give_up(struct di_core *e, struct request *q, const di_error *err);

/* ---- core_admission.c ---- */
/* p has reached n_reached rows: those that waited for that are ready. */
void di_core_reached(struct di_core *e, struct request *p);
/* Those that wait for p wait no longer. */
void di_core_leave_leader(struct di_core *e, struct request *p, bool guessed_only);
/* The next row at which the launches of a slot pause, so that its state can be saved: not launched yet, not computed. The end of the prompt
 * needs no pause, a launch ends there. */
int64_t di_core_next_save(const struct di_core *e, const struct slot *s);
/* Let q wait for the request that it names, and see to it that the state is kept where they part: now if it is there, else when it is
 * reached. */
void di_core_follow(struct di_core *e, struct request *q);
/* Rows of a waiting request that need not be computed. The order of arrival does not ask: 0. */
int64_t di_core_cached_rows(struct di_core *e, const struct request *q);
/* Start what waits, while there is place; else let somebody give way to a better priority. */
void di_core_admit(struct di_core *e, struct di_launch *l);

#endif
