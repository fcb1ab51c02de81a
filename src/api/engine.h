/* Inside of a di_engine (deepinfer.h): the core with its model, an inbox of submissions and cancels, an outbox of records.
 *
 * Who touches what. `lock` guards everything under "shared". The driver (the thread that is inside step, flush or close) alone touches the
 * core and the requests that the core knows. What is under "fixed" never changes after opening. */
#ifndef DI_API_ENGINE_H
#define DI_API_ENGINE_H

#include "api/completion.h"

#include <pthread.h>
#include <stdatomic.h>

struct di_record {
    di_output out;          /* first: the caller's pointer is ours */
    struct di_record *self; /* what is behind that pointer, for the caller has it const */
    struct di_record *next;
    struct di_buf text;
    di_alternative alternatives[DI_MAX_TOP_LOGPROBS];
    di_error *error; /* owned, or NULL */
};

/* One request from submit until the driver has seen its end. */
struct di_api_request {
    struct di_api_request *next;        /* inbox, or the driver's list of ended ones */
    struct di_api_request *next_bucket; /* shared: table by id */
    struct di_api_request *next_cancel; /* shared: list of cancels */
    di_engine *engine;
    di_request_id id;
    bool cancel; /* shared: asked to end, and in the list of cancels until the driver takes it */
    struct di_completion answer;
    int32_t *forced, *save_at;
    di_request_id after; /* of another request, or 0 */
    bool branches;       /* from `after` */
    bool as_parent;      /* with its sampling */
    int64_t fork_at;
    int (*on_output)(void *user, const di_output *output);
    void *user;
    struct di_record *last; /* its FINISHED record: there is memory for the end */
    /* driver */
    int64_t n_made;         /* records for di_engine_poll */
    bool muted;             /* the callback wants no more */
    bool lost;              /* memory for a record ran out: the request ends as an error */
    bool unread;            /* too much of its output waits: likewise */
    _Atomic int64_t n_read; /* of its records, those that were polled; added to under the lock */
};

struct di_engine {
    /* fixed */
    struct di_config config;
    struct di_text_model text;
    struct di_model *model;
    struct di_core *core;
    struct di_core_config core_config;
    struct di_turn_memory *memory; /* or NULL; has its own lock */
    struct di_forms *forms;        /* as the next, each with its own lock */
    struct di_follower_crew *crew;
    int64_t context, seed, max_unread;
    int n_blocks;
    char *name;
    char digest[2 * DI_DIGEST_BYTES + 1];
    bool has_lock;
    pthread_mutex_t lock;
    pthread_cond_t work, output; /* for the driver's thread; for waiting polls */

    /* shared */
    struct di_api_request *inbox, **inbox_end, *cancels;
    struct di_api_request **table; /* [n_buckets] requests without a FINISHED record; it grows with them */
    int64_t n_buckets, n_known;
    di_request_id last_id;
    struct di_record *outbox, **outbox_end, *spare;
    int64_t n_unread, n_spare;
    bool driving; /* somebody is inside step, flush or close */
    bool has_thread, stopping;
    bool closing; /* nothing is taken any more */
    uint64_t stops;
    pthread_t thread;
    di_engine_stats stats; /* as of the end of the latest step; submitted and refused at once */
    struct di_metrics metrics;
    uint64_t ended_by[DI_REASON_ERROR + 1];

    /* driver */
    struct di_api_request *ended;
    struct di_record scratch;                         /* of callbacks */
    struct di_record *fresh, **fresh_end, *own_spare; /* of the present step, for the outbox; records to fill */
    int64_t n_fresh;
    bool busy; /* what the latest step said */
};

/* request.c */
void di_api_request_destroy(struct di_api_request *r); /* NULL is allowed */
/* Let its records follow from what its completion says; `start`: with the STARTED record. */
void di_api_request_listen(struct di_api_request *r, bool start);
/* Deliver the FINISHED record of a request that the core does not know (yet). `err` with DI_REASON_ERROR. */
void di_api_request_end(struct di_api_request *r, di_end_reason end, const di_error *err);
void di_record_destroy(struct di_record *r); /* NULL is allowed */

/* submit.c */
/* A request without a FINISHED record, or NULL. The caller holds the lock. */
struct di_api_request *di_api_request_find(di_engine *e, di_request_id id);
/* Hand a request over to the core (driver). */
di_status di_api_request_start(struct di_api_request *r, di_error *err);

/* drive.c */
/* Be the driver of an engine that is being closed: no thread of its own, no step, every request has ended. */
void di_engine_wind_up(di_engine *e);

/* stats.c */
/* What the core counts, in public form; the counts of the API itself stay. */
void di_engine_stats_from(di_engine_stats *to, const struct di_core_stats *s);

/* Copy a caller's struct that begins with its size over one that has the defaults. DI_ERR_INVALID unless `from` was initialised;
 * DI_ERR_UNSUPPORTED if it sets fields that this version does not know. */
di_status di_take_struct(void *to, size_t bytes, const void *from, const char *name, di_error *err);

#endif
