#include "engine/core_impl.h"

#include <limits.h>

/* ---------------------------------------------------------------- requests that wait for another one's rows */

void di_core_reached(struct di_core *e, struct request *p)
{
    struct request *q;
    while ((q = di_order_first(&p->followers)) && q->n_common <= p->n_reached)
        di_core_unset_leader(e, q);
}

void di_core_leave_leader(struct di_core *e, struct request *p, bool guessed_only)
{
    for (struct request *q = di_order_first(&p->followers), *next; q; q = next) {
        next = di_order_next(&p->followers, &q->place);
        if (q->guessed || !guessed_only)
            di_core_unset_leader(e, q);
    }
}

int64_t di_core_next_save(const struct di_core *e, const struct slot *s)
{
    struct request *q = s->req;
    if (!e->reuse)
        return 0; /* nothing is kept */
    int64_t next = INT64_MAX, least = s->n_rows > s->n_computed ? s->n_rows : s->n_computed + 1;
    if (least < s->right_from)
        least = s->right_from;
    if (s->common >= least)
        next = s->common;
    for (size_t i = 0; i < q->r.n_save_at; i++)
        if (q->r.save_at[i] >= least && q->r.save_at[i] < next && q->r.save_at[i] < q->r.n_prompt)
            next = q->r.save_at[i];
    const struct request *f = di_order_from(&q->followers, least, 0);
    if (f && f->n_common < next && f->n_common < q->r.n_prompt)
        next = f->n_common;
    return next == INT64_MAX ? 0 : next;
}

static int64_t common_tokens(const struct request *a, int64_t n_a, const struct request *b, int64_t n_b)
{
    int64_t n = 0, most = n_a < n_b ? n_a : n_b;
    while (n < most && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

/* A waiting q whose prompt begins like that of p, which is running and has not come so far, had better wait for it: both would only share
 * the row budget to compute the same rows twice. Never behind a worse priority, never for one that is not running. The tokens that both
 * have in common, or 0. */
static int64_t worth_waiting(const struct di_core *e, const struct request *p, const struct request *q)
{
    bool alike = q->r.tenant == p->r.tenant && q->r.space == p->r.space && q->r.priority >= p->r.priority && q->n_resume == q->r.n_prompt &&
                 di_replay_mode_of(&e->replay, p->r.replay) == di_replay_mode_of(&e->replay, q->r.replay);
    if (!alike || q->r.after || !e->reuse || !e->config.states)
        return 0;
    int64_t n = common_tokens(p, p->r.n_prompt, q, q->r.n_prompt);
    return n < DI_BLOCK_TOKENS || n <= p->n_reached ? 0 : n;
}

/* Of the running ones with fewer than `most` followers, the one that has most in common with a ready q. */
static bool guess_leader(struct di_core *e, struct request *q, int64_t most)
{
    struct slot *best = NULL;
    int64_t n_best = 0;
    for (int i = 0; i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        if (s->state != SLOT_RUNNING || s->n_computed >= s->req->r.n_prompt || s->req->followers.n >= most)
            continue;
        int64_t n = worth_waiting(e, s->req, q);
        if (n > n_best) {
            n_best = n;
            best = s;
        }
    }
    if (!best)
        return false;
    di_core_set_leader(e, q, best->req, n_best, true);
    best->save_at = di_core_next_save(e, best);
    return true;
}

/* So many requests are looked at in one step that then do not start, and followers are found for one that starts. Others wait no less: they
 * are looked at when their turn comes. */
#define LOOK_AHEAD 64

/* p starts: the next ones of its queue may wait for it. */
static void guess_followers(struct di_core *e, struct request *p)
{
    struct di_order *ready = &p->class->ready;
    struct request *q = di_order_first(ready), *next;
    for (int i = 0; q && i < LOOK_AHEAD; i++, q = next) {
        next = di_order_next(ready, &q->place);
        int64_t n = worth_waiting(e, p, q);
        if (n)
            di_core_set_leader(e, q, p, n, true);
    }
}

void di_core_follow(struct di_core *e, struct request *q)
{
    struct request *p = e->reuse && q->r.after < q->id ? di_core_find(e, q->r.after) : NULL;
    if (!q->r.after)
        guess_leader(e, q, LOOK_AHEAD);
    if (!p || p->r.tenant != q->r.tenant)
        return;
    int64_t n = common_tokens(p, p->n_done, q, q->r.n_prompt);
    int64_t common = n < p->r.n_prompt ? n : p->r.n_prompt; /* what is behind the prompt is there, but for the row under way */
    if (common > p->n_reached)
        di_core_set_leader(e, q, p, common, false);
    if (p->slot < 0)
        return;
    struct slot *s = &e->slots[p->slot];
    int64_t at = n < s->n_computed ? n : s->n_computed;
    if (at > 0 && at >= n - 1)
        di_core_save(e, p->slot, at); /* nothing happens if the rings do not hold it any more */
    s->save_at = di_core_next_save(e, s);
}

/* ---------------------------------------------------------------- who starts */

static int free_slot(const struct di_core *e)
{
    for (int i = 0; i < e->config.max_batch; i++)
        if (e->slots[i].state == SLOT_FREE)
            return i;
    return -1;
}

/* Would q fit if all running ones of worse priorities gave way? Blocks that those share are counted for each: then it is tried in vain. */
static bool fits_by_preemption(const struct di_core *e, const struct request *q)
{
    int64_t blocks = di_kv_available(e->store);
    bool worse = false;
    for (int i = 0; i < e->config.max_batch; i++) {
        const struct slot *s = &e->slots[i];
        bool gives_way = s->state == SLOT_RUNNING && s->req->r.priority > q->r.priority;
        worse |= gives_way;
        if (gives_way || s->state == SLOT_LEAVING)
            blocks += e->store->lease[i].n;
    }
    return worse && blocks >= di_core_blocks(e, q);
}

/* Overtaking ends when somebody was passed over so often: then blocks gather until that one fits. */
#define PATIENCE 64

/* The next waiting request to start: the first in order that fits. Those in front that do not fit are passed over; not by worse priorities
 * if others of these give way for it. *first: the one that is passed over, or NULL. */
static struct request *next_fitting(struct di_core *e, struct request **first)
{
    struct request *best = di_core_first(e, di_kv_available(e->store));
    *first = best ? di_core_first(e, INT_MAX) : NULL;
    if (*first == best) {
        *first = NULL;
        return best;
    }
    if (best->r.priority > (*first)->r.priority && fits_by_preemption(e, *first))
        return NULL;
    return (*first)->passed_over < PATIENCE ? best : NULL;
}

static struct di_reuse_ask ask_of(const struct di_core *e, const struct request *q)
{
    return (struct di_reuse_ask){.tokens = q->tokens,
                                 .n = q->n_resume,
                                 .total = di_core_positions(e, &q->r),
                                 .tenant = q->r.tenant,
                                 .space = q->r.space,
                                 .tail = di_replay_tail(&e->replay, q->r.replay, q->r.n_prompt)};
}

int64_t di_core_cached_rows(struct di_core *e, const struct request *q)
{
    struct di_reuse_ask ask = ask_of(e, q);
    return e->reuse && e->config.prefill_order == DI_PREFILL_SHORTEST ? di_reuse_look(e->reuse, &ask) : 0;
}

/* The next one to start shall not: somebody else is just computing what it begins with, or less is cached of it than when it was looked up,
 * and now it is another one's turn. */
static bool is_put_back(struct di_core *e, struct request *q)
{
    if (guess_leader(e, q, INT64_MAX))
        return true;
    if (q->n_cached == 0)
        return false;
    int64_t cached = di_core_cached_rows(e, q);
    if (cached >= q->n_cached)
        return false;
    q->n_cached = cached;
    di_core_reorder(e, q);
    return di_core_first(e, di_kv_available(e->store)) != q;
}

static void record_start(struct di_core *e, struct request *q, const struct di_reuse_start *from)
{
    e->stats.lookups += e->reuse != NULL;
    e->stats.lookup_tokens += e->reuse ? (uint64_t)q->n_resume : 0;
    e->stats.cached_tokens += (uint64_t)from->row;
    bool bounded = from->bounded || from->replay.tail > 0;
    e->stats.bounded += bounded;
    q->facts.bounded |= bounded;
    if (from->miss == DI_MISS_REASON_DIVERGED)
        di_metrics_add(&e->metrics, DI_HISTOGRAM_DIVERGED_AT, from->miss_at);
    if (q->facts.queue_ns >= 0) /* again, after a preemption */
        return;
    q->facts.queue_ns = e->now_ns - q->r.arrived_ns;
    q->facts.cached = from->row;
    q->facts.miss = from->miss;
    q->facts.skipped = from->replay.tail > from->row ? from->replay.tail - from->row : 0;
    q->facts.miss_at = from->miss == DI_MISS_REASON_NONE ? -1 : from->miss_at;
    di_metrics_add(&e->metrics, DI_HISTOGRAM_QUEUE_TIME, q->facts.queue_ns);
}

/* A request that waits no more; false, with nothing changed, if the pool cannot give its blocks now. */
static bool start_request(struct di_core *e, struct di_launch *l, int slot, struct request *q)
{
    struct slot *s = &e->slots[slot];
    struct di_reuse_ask ask = ask_of(e, q);
    struct di_reuse_start from = {.replay.tail = (int32_t)ask.tail};
    if (e->reuse ? !di_reuse_begin(e->reuse, slot, &ask, &from) : !di_kv_reserve(e->store, slot, ask.total))
        return false;
    di_core_unwait(e, q);
    q->slot = slot;
    from.replay.mask = di_replay_mode_of(&e->replay, q->r.replay) == DI_REPLAY_MASK;
    if (from.copies)
        l->copies[l->n_copies++] = (struct di_block_copy){from.copy_from, from.copy_to, from.copy_tokens};
    *s = (struct slot){.state = SLOT_RUNNING,
                       .req = q,
                       .generation = s->generation,
                       .n_started = from.row,
                       .n_rows = from.row,
                       .n_computed = from.row,
                       .n_written = from.row,
                       .common = from.save_at,
                       .right_from = from.right_from,
                       .replay = from.replay,
                       .page_version = ++e->page_versions};
    record_start(e, q, &from);
    q->n_reached = q->n_reached > from.row ? q->n_reached : from.row;
    di_core_reached(e, q);
    guess_followers(e, q);
    s->save_at = di_core_next_save(e, s);
    if (q->r.on_start)
        q->r.on_start(q->r.ctx, from.row);
    *di_pipeline_slot_of(e->pipe, slot) = (struct di_pipeline_slot){.id = q->id,
                                                                    .tokens = q->room,
                                                                    .n_prompt = q->r.n_prompt,
                                                                    .n_limit = q->r.n_prompt + q->r.max_tokens,
                                                                    .params = &q->r.sampling,
                                                                    .ignore_end = q->r.ignore_end,
                                                                    .key = q->key,
                                                                    .counts = q->counts,
                                                                    .cap = q->cap,
                                                                    .forced = q->r.forced,
                                                                    .n_forced = q->r.n_forced,
                                                                    .masks = q->masks.wait ? &q->masks : NULL};
    di_pipeline_open_slot(e->pipe, slot);
    q->seen_resume = q->n_done;
    di_core_charge(e, q);
    e->stats.running++;
    return true;
}

/* Somebody of a better priority waits and finds no place: the running one of the worst priority that was started last gives way. */
static void preempt_worst(struct di_core *e)
{
    const struct request *best = di_core_first(e, INT_MAX);
    struct slot *victim = NULL;
    if (!best || !fits_by_preemption(e, best))
        return;
    for (int i = 0; i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        if (s->state == SLOT_LEAVING)
            return; /* a place is about to come free */
        if (s->state != SLOT_RUNNING || s->req->r.priority <= best->r.priority || s->req->n_done == s->req->seen_resume)
            continue;
        if (!victim || s->req->r.priority > victim->req->r.priority ||
            (s->req->r.priority == victim->req->r.priority && s->req->id > victim->req->id))
            victim = s;
    }
    if (!victim)
        return;
    di_core_leave(e, victim, false);
    e->stats.preempted++;
}

void di_core_admit(struct di_core *e, struct di_launch *l)
{
    static const di_error no_room = {DI_ERR_MEMORY, "out of memory for the tokens of a request", ""};
    for (int put_back = 0; e->turns.n > 0 && put_back < LOOK_AHEAD;) {
        struct request *first = NULL;
        int slot = free_slot(e);
        struct request *q = slot < 0 ? NULL : next_fitting(e, &first);
        if (!q) {
            preempt_worst(e);
            return;
        }
        if (is_put_back(e, q)) {
            put_back++;
            continue;
        }
        if (!di_core_make_room(e, q)) {
            di_core_give_up(e, q, &no_room);
            continue;
        }
        if (!start_request(e, l, slot, q))
            return;
        if (first)
            first->passed_over++;
    }
}
