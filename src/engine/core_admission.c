#include "engine/core_impl.h"

/* ---------------------------------------------------------------- the queue */

void di_core_enqueue(struct di_core *e, struct request *q, bool front)
{
    struct request **link = front ? &e->queue : e->queue_end;
    q->next = *link;
    *link = q;
    if (!q->next)
        e->queue_end = &q->next;
    e->stats.waiting++;
}

void di_core_unlink(struct di_core *e, struct request **link)
{
    struct request *q = *link;
    *link = q->next;
    if (!*link)
        e->queue_end = link;
    e->stats.waiting--;
}

struct request *di_core_find(const struct di_core *e, int64_t id, int *slot)
{
    for (*slot = 0; *slot < e->config.max_batch; ++*slot) {
        const struct slot *s = &e->slots[*slot];
        if ((s->state == SLOT_RUNNING || (s->state == SLOT_LEAVING && !s->over)) && s->req->id == id)
            return s->req;
    }
    *slot = -1;
    struct request *q = e->queue;
    while (q && q->id != id)
        q = q->next;
    return q;
}

/* ---------------------------------------------------------------- requests that wait for another one's rows */

void di_core_leave_leader(struct di_core *e, struct request *p, bool guessed_only)
{
    for (struct request *q = e->queue; q && p->n_followers; q = q->next)
        if (q->leader == p && (q->guessed || !guessed_only)) {
            q->leader = NULL;
            p->n_followers--;
        }
}

int64_t di_core_next_save(const struct di_core *e, const struct slot *s)
{
    const struct request *q = s->req;
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
    for (const struct request *f = e->queue; f && q->n_followers; f = f->next)
        if (f->leader == q && f->n_common >= least && f->n_common < next && f->n_common < q->r.n_prompt)
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

/* A waiting q whose prompt begins like that of p, which is running and has not come so far, waits for it: both would only share the row
 * budget to compute the same rows twice. Never behind a worse priority, never for one that is not running. */
static void guess_leader(const struct di_core *e, struct request *p, struct request *q)
{
    bool alike = q->r.tenant == p->r.tenant && q->r.space == p->r.space && q->r.priority >= p->r.priority && q->n_resume == q->r.n_prompt &&
                 di_replay_mode_of(&e->replay, p->r.replay) == di_replay_mode_of(&e->replay, q->r.replay);
    if (p == q || !alike || (q->leader && !q->guessed) || !e->reuse || !e->config.states)
        return;
    int64_t n = common_tokens(p, p->r.n_prompt, q, q->r.n_prompt);
    if (n < DI_BLOCK_TOKENS || n <= p->n_reached || (q->leader && n <= q->n_common))
        return;
    if (q->leader)
        q->leader->n_followers--;
    q->leader = p;
    q->guessed = true;
    q->n_common = n;
    p->n_followers++;
}

/* Of the running ones. */
static void guess_leaders(struct di_core *e, struct request *q)
{
    for (int i = 0; i < e->config.max_batch; i++) {
        struct slot *s = &e->slots[i];
        if (s->state == SLOT_RUNNING && s->n_computed < s->req->r.n_prompt) {
            guess_leader(e, s->req, q);
            s->save_at = di_core_next_save(e, s);
        }
    }
}

/* p starts: the next ones of the queue may wait for it. */
#define LOOK_AHEAD 64
static void guess_followers(struct di_core *e, struct request *p)
{
    struct request *q = e->queue;
    for (int i = 0; q && i < LOOK_AHEAD; i++, q = q->next)
        guess_leader(e, p, q);
}

void di_core_follow(struct di_core *e, struct request *q)
{
    int slot;
    struct request *p = e->reuse && q->r.after < q->id ? di_core_find(e, q->r.after, &slot) : NULL;
    if (!q->r.after)
        guess_leaders(e, q);
    if (!p || p->r.tenant != q->r.tenant)
        return;
    int64_t n = common_tokens(p, p->n_done, q, q->r.n_prompt);
    q->n_common = n < p->r.n_prompt ? n : p->r.n_prompt; /* what is behind the prompt is there, but for the row under way */
    q->leader = p;
    p->n_followers++;
    if (slot < 0)
        return;
    struct slot *s = &e->slots[slot];
    int64_t at = n < s->n_computed ? n : s->n_computed;
    if (at > 0 && at >= n - 1)
        di_core_save(e, slot, at); /* nothing happens if the rings do not hold it any more */
    s->save_at = di_core_next_save(e, s);
}

static bool is_ready(const struct request *q)
{
    return !q->leader || q->leader->n_reached >= q->n_common;
}

/* ---------------------------------------------------------------- whose turn it is */

static int64_t *served(struct di_core *e, uint64_t tenant)
{
    for (int i = 0; i < e->n_tenants; i++)
        if (e->tenants[i].id == tenant)
            return &e->tenants[i].served;
    if (e->n_tenants == TENANTS) /* forget all: they start level again */
        e->n_tenants = 0;
    e->tenants[e->n_tenants] = (struct tenant){tenant, 0};
    return &e->tenants[e->n_tenants++].served;
}

/* The service after which a request's turn comes. Who asked for nothing for a while, or comes for the first time, is owed nothing for that.
 * */
static int64_t turn(struct di_core *e, const struct request *q)
{
    int64_t had = *served(e, q->r.tenant);
    return had > q->since ? had : q->since;
}

/* Does a go before b? Priority, then the tenant that had less, then arrival (list order: the earlier one is asked as b). */
static bool goes_before(struct di_core *e, const struct request *a, const struct request *b)
{
    if (a->r.priority != b->r.priority)
        return a->r.priority < b->r.priority;
    return turn(e, a) < turn(e, b);
}

static int free_slot(const struct di_core *e)
{
    for (int i = 0; i < e->config.max_batch; i++)
        if (e->slots[i].state == SLOT_FREE)
            return i;
    return -1;
}

static int blocks_of(const struct request *q)
{
    return di_kv_blocks_for(q->r.n_prompt + q->r.max_tokens);
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
    return worse && blocks >= blocks_of(q);
}

/* Overtaking ends when somebody was passed over so often: then blocks gather until that one fits. */
#define PATIENCE 64

/* The next waiting request to start: the first in order that fits. Those in front that do not fit were passed over; not by worse priorities
 * if others of these give way for it. */
static struct request **next_fitting(struct di_core *e)
{
    struct request **best = NULL, **first = NULL;
    for (struct request **link = &e->queue; *link; link = &(*link)->next) {
        struct request *q = *link;
        if (!is_ready(q))
            continue;
        bool fits = blocks_of(q) <= di_kv_available(e->store);
        if (!first || goes_before(e, q, *first))
            first = link;
        if (fits && (!best || goes_before(e, q, *best)))
            best = link;
    }
    if (best && (*best)->r.priority > (*first)->r.priority && fits_by_preemption(e, *first))
        return NULL;
    if (best && first != best && (*first)->passed_over++ >= PATIENCE)
        return NULL;
    return best;
}

static void record_start(struct di_core *e, struct request *q, const struct di_reuse_start *from)
{
    e->stats.lookups += e->reuse != NULL;
    e->stats.lookup_tokens += e->reuse ? (uint64_t)q->n_resume : 0;
    e->stats.cached_tokens += (uint64_t)from->row;
    bool bounded = from->bounded || from->replay.tail > 0;
    e->stats.bounded += bounded;
    q->facts.bounded |= bounded;
    if (from->miss == DI_MISS_DIVERGED)
        di_metrics_add(&e->metrics, DI_HISTOGRAM_DIVERGED_AT, from->miss_at);
    if (q->facts.queue_ns >= 0) /* again, after a preemption */
        return;
    q->facts.queue_ns = e->now_ns - q->r.arrived_ns;
    q->facts.cached = from->row;
    q->facts.miss = from->miss;
    q->facts.skipped = from->replay.tail > from->row ? from->replay.tail - from->row : 0;
    q->facts.miss_at = from->miss == DI_MISS_NONE ? -1 : from->miss_at;
    di_metrics_add(&e->metrics, DI_HISTOGRAM_QUEUE_TIME, q->facts.queue_ns);
}

static bool start(struct di_core *e, struct di_launch *l, int slot, struct request *q)
{
    struct slot *s = &e->slots[slot];
    int64_t total = q->r.n_prompt + q->r.max_tokens;
    int64_t tail = di_replay_tail(&e->replay, q->r.replay, q->r.n_prompt);
    struct di_reuse_ask ask = {
        .tokens = q->tokens, .n = q->n_resume, .total = total, .tenant = q->r.tenant, .space = q->r.space, .tail = tail};
    struct di_reuse_start from = {.replay.tail = (int32_t)tail};
    if (e->reuse ? !di_reuse_begin(e->reuse, slot, &ask, &from) : !di_kv_reserve(e->store, slot, total))
        return false;
    from.replay.mask = di_replay_mode_of(&e->replay, q->r.replay) == DI_REPLAY_MASK;
    if (from.copies)
        l->copies[l->n_copies++] = (struct di_block_copy){from.copy_from, from.copy_to, from.copy_tokens};
    *s = (struct slot){.state = SLOT_RUNNING,
                       .req = q,
                       .generation = s->generation,
                       .n_rows = from.row,
                       .n_computed = from.row,
                       .common = from.save_at,
                       .right_from = from.right_from,
                       .replay = from.replay,
                       .page_version = ++e->page_versions};
    record_start(e, q, &from);
    if (q->leader)
        q->leader->n_followers--;
    q->leader = NULL;
    q->n_reached = q->n_reached > from.row ? q->n_reached : from.row;
    guess_followers(e, q);
    s->save_at = di_core_next_save(e, s);
    if (q->r.on_start)
        q->r.on_start(q->r.ctx, from.row);
    *di_pipeline_lane(e->pipe, slot) = (struct di_lane){.name = q->r.name,
                                                        .tokens = q->tokens,
                                                        .n_prompt = q->r.n_prompt,
                                                        .n_limit = q->r.n_prompt + q->r.max_tokens,
                                                        .params = &q->r.sampling,
                                                        .ignore_end = q->r.ignore_end,
                                                        .key = q->key,
                                                        .counts = q->counts,
                                                        .cap = q->cap,
                                                        .forced = q->r.forced,
                                                        .n_forced = q->r.n_forced};
    di_pipeline_open_lane(e->pipe, slot);
    q->seen_resume = q->n_done;
    int64_t had = turn(e, q);
    e->service = had > e->service ? had : e->service;
    *served(e, q->r.tenant) = had + total;
    e->stats.running++;
    return true;
}

/* Somebody of a better priority waits and finds no place: the running one of the worst priority that was started last gives way. */
static void preempt(struct di_core *e)
{
    const struct request *best = NULL;
    struct slot *victim = NULL;
    for (const struct request *q = e->queue; q; q = q->next)
        if (is_ready(q) && (!best || q->r.priority < best->r.priority))
            best = q;
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
    while (e->queue) {
        int slot = free_slot(e);
        struct request **link = slot < 0 ? NULL : next_fitting(e);
        if (!link) {
            preempt(e);
            return;
        }
        if (!start(e, l, slot, *link))
            return;
        di_core_unlink(e, link);
    }
}
