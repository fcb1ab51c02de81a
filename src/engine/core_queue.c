#include "engine/core_impl.h"

#include "base/assert.h"

/* ---------------------------------------------------------------- tenants and classes */

/* Tenants without requests whose service is remembered. */
#define DEBTORS 1024

static struct tenant *tenant_of(struct di_core *e, uint64_t id)
{
    struct tenant *t = di_order_from(&e->tenants, (int64_t)id, 0);
    if (t && t->by_id.major == (int64_t)id)
        return t;
    t = di_calloc(1, sizeof *t);
    if (t)
        di_order_add(&e->tenants, &t->by_id, t, (int64_t)id, 0, 0);
    return t;
}

static void forget_tenant(struct di_core *e, struct tenant *t)
{
    DI_ASSERT(t->n_classes == 0 && t->n_waiting == 0);
    di_order_remove(&e->debtors, &t->debt);
    di_order_remove(&e->tenants, &t->by_id);
    di_free(t);
}

/* Debts that are none any more, and the smallest of too many. */
static void forget_debts(struct di_core *e)
{
    struct tenant *t;
    while ((t = di_order_first(&e->debtors)) && (t->served <= e->service || e->debtors.n > DEBTORS))
        forget_tenant(e, t);
}

static struct waiting_class *class_of(struct di_core *e, int priority, uint64_t tenant)
{
    struct waiting_class *c = di_order_from(&e->classes, priority, (int64_t)tenant);
    if (c && c->priority == priority && c->by_name.minor == (int64_t)tenant)
        return c;
    struct tenant *t = tenant_of(e, tenant);
    c = t ? di_calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (t && !t->n_classes && !t->debt.in)
            forget_tenant(e, t);
        return NULL;
    }
    c->tenant = t;
    c->priority = priority;
    t->n_classes++;
    di_order_remove(&e->debtors, &t->debt);
    di_order_add(&e->classes, &c->by_name, c, priority, (int64_t)tenant, 0);
    return c;
}

static void leave_class(struct di_core *e, struct waiting_class *c)
{
    struct tenant *t = c->tenant;
    DI_ASSERT(c->n_requests > 0);
    if (--c->n_requests > 0)
        return;
    DI_ASSERT(c->ready.n == 0 && !c->turn.in);
    e->queue_visits += c->ready.visited;
    di_order_remove(&e->classes, &c->by_name);
    di_free(c);
    if (--t->n_classes > 0)
        return;
    di_order_add(&e->debtors, &t->debt, t, t->served, 0, 0);
    forget_debts(e);
}

/* The set of turns says of a class what its queue says. */
static void update_turn(struct di_core *e, struct waiting_class *c)
{
    int32_t least = di_order_least(&c->ready);
    e->queue_visits += c->ready.visited;
    c->ready.visited = 0;
    bool stale = c->turn.in && c->turn.minor != c->tenant->served;
    if (c->turn.in && !stale && c->ready.n) {
        if (c->turn.size != least)
            di_order_resize(&e->turns, &c->turn, least);
        return;
    }
    di_order_remove(&e->turns, &c->turn);
    if (c->ready.n)
        di_order_add(&e->turns, &c->turn, c, c->priority, c->tenant->served, least);
}

/* ---------------------------------------------------------------- known requests */

di_status di_core_enter(struct di_core *e, struct request *q, di_error *err)
{
    q->class = class_of(e, q->r.priority, q->r.tenant);
    if (!q->class)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a queue");
    q->class->n_requests++;
    q->id = e->last_id = q->r.id ? q->r.id : e->last_id + 1;
    q->waits_since = e->computable;
    di_order_add(&e->living, &q->by_id, q, q->id, 0, 0);
    if (q->r.deadline_ns)
        di_order_add(&e->due, &q->due, q, q->r.deadline_ns, 0, 0);
    return DI_OK;
}

void di_core_forget(struct di_core *e, struct request *q)
{
    di_order_remove(&e->living, &q->by_id);
    di_order_remove(&e->due, &q->due);
}

void di_core_free_request(struct di_core *e, struct request *q)
{
    DI_ASSERT(!q->by_id.in && !q->due.in && !q->place.in && q->followers.n == 0);
    e->queue_visits += q->followers.visited;
    if (q->class)
        leave_class(e, q->class);
    if (q->masks.release)
        q->masks.release(q->masks.ctx);
    di_token_counts_destroy(q->counts);
    di_free(q->room);
    di_free(q);
}

void di_core_free_queue(struct di_core *e)
{
    struct tenant *t;
    while ((t = di_order_first(&e->debtors)))
        forget_tenant(e, t);
}

struct request *di_core_find(struct di_core *e, int64_t id)
{
    struct request *q = di_order_from(&e->living, id, 0);
    return q && q->id == id ? q : NULL;
}

/* ---------------------------------------------------------------- waiting */

bool di_prefill_order_by_name(const char *name, enum di_prefill_order *out)
{
    *out = strcmp(name, "arrival") == 0 ? DI_PREFILL_ARRIVAL : DI_PREFILL_SHORTEST;
    return *out == DI_PREFILL_ARRIVAL || strcmp(name, "shortest") == 0;
}

int di_core_blocks(const struct di_core *e, const struct request *q)
{
    return di_kv_blocks_for(di_core_positions(e, &q->r));
}

int64_t di_core_rank(const struct di_core *e, const struct request *q, int64_t left)
{
    return e->config.prefill_order == DI_PREFILL_ARRIVAL ? 0 : 10 * left + q->waits_since;
}

static void add_ready(struct di_core *e, struct request *q)
{
    int64_t rank = di_core_rank(e, q, q->n_resume - q->n_cached);
    di_order_add(&q->class->ready, &q->place, q, rank, q->id, di_core_blocks(e, q));
    update_turn(e, q->class);
}

/* Out of the set in which it waits. */
static void remove_place(struct di_core *e, struct request *q)
{
    if (q->leader) {
        di_order_remove(&q->leader->followers, &q->place);
        q->leader = NULL;
        return;
    }
    di_order_remove(&q->class->ready, &q->place);
    update_turn(e, q->class);
}

/* Who asked for nothing for a while, or comes for the first time, is owed nothing for that. */
void di_core_wait(struct di_core *e, struct request *q)
{
    struct tenant *t = q->class->tenant;
    if (t->n_waiting++ == 0 && t->served < e->service)
        t->served = e->service;
    e->stats.waiting++;
    q->slot = -1;
    add_ready(e, q);
}

void di_core_unwait(struct di_core *e, struct request *q)
{
    DI_ASSERT(q->place.in && q->class->tenant->n_waiting > 0 && e->stats.waiting > 0);
    remove_place(e, q);
    q->class->tenant->n_waiting--;
    e->stats.waiting--;
}

void di_core_set_leader(struct di_core *e, struct request *q, struct request *p, int64_t n, bool guessed)
{
    DI_ASSERT(q->place.in && q != p);
    remove_place(e, q);
    q->leader = p;
    q->guessed = guessed;
    q->n_common = n;
    di_order_add(&p->followers, &q->place, q, n, q->id, 0);
}

void di_core_unset_leader(struct di_core *e, struct request *q)
{
    int64_t reached = q->leader->n_reached < q->n_common ? q->leader->n_reached : q->n_common;
    remove_place(e, q);
    if (q->n_cached < reached)
        q->n_cached = reached < q->n_resume ? reached : q->n_resume - 1;
    add_ready(e, q);
}

void di_core_reorder(struct di_core *e, struct request *q)
{
    remove_place(e, q);
    add_ready(e, q);
}

/* Service only grows, so a class whose key is not up to date stands too far in front: it is looked at before it could be missed. */
struct request *di_core_first(struct di_core *e, int blocks)
{
    struct waiting_class *c;
    while ((c = di_order_within(&e->turns, blocks)) && c->turn.minor != c->tenant->served)
        update_turn(e, c);
    return c ? di_order_within(&c->ready, blocks) : NULL;
}

void di_core_charge(struct di_core *e, struct request *q)
{
    struct tenant *t = q->class->tenant;
    q->turn = t->served;
    e->service = t->served > e->service ? t->served : e->service;
    t->served += q->r.n_prompt + q->r.max_tokens;
    forget_debts(e);
}

uint64_t di_core_queue_visits(const struct di_core *e)
{
    return e->queue_visits + e->living.visited + e->due.visited + e->classes.visited + e->turns.visited + e->tenants.visited +
           e->debtors.visited;
}

/* ---------------------------------------------------------------- check */

struct queue_counts {
    int64_t living, waiting, following, ready, classes_ready, tenants_waiting;
    const void *of; /* whose set is looked at */
};

static const char *check_follower(const void *of, void *ctx)
{
    const struct request *q = of;
    struct queue_counts *t = ctx;
    t->following++;
    return q->leader != t->of || q->slot >= 0 ? "a follower does not wait for its leader" : NULL;
}

static const char *check_living(const void *of, void *ctx)
{
    const struct request *q = of;
    struct queue_counts *t = ctx;
    t->living++;
    t->waiting += q->slot < 0;
    t->of = q;
    if (q->by_id.major != q->id || !q->class || q->place.in != (q->slot < 0))
        return "a request that waits stands in no set, or one that runs in some";
    return di_order_check(&q->followers, check_follower, t);
}

static const char *check_ready(const void *of, void *ctx)
{
    const struct request *q = of;
    struct queue_counts *t = ctx;
    t->ready++;
    return q->class != t->of || q->leader || q->slot >= 0 ? "a request is not ready, or stands in another's class" : NULL;
}

static const char *check_class(const void *of, void *ctx)
{
    const struct waiting_class *c = of;
    struct queue_counts *t = ctx;
    t->classes_ready += c->ready.n > 0;
    t->of = c;
    if (c->turn.in != (c->ready.n > 0) || c->n_requests < c->ready.n || (c->turn.in && c->turn.size != di_order_least(&c->ready)))
        return "a class's turn does not say what its queue says";
    return di_order_check(&c->ready, check_ready, t);
}

static const char *check_tenant(const void *of, void *ctx)
{
    const struct tenant *x = of;
    struct queue_counts *t = ctx;
    t->tenants_waiting += x->n_waiting;
    return x->debt.in != (x->n_classes == 0) ? "a tenant without requests is no debtor, or one with requests is" : NULL;
}

const char *di_core_check_queue(const struct di_core *e)
{
    struct queue_counts t = {0};
    const char *wrong = di_order_check(&e->living, check_living, &t);
    if (!wrong)
        wrong = di_order_check(&e->classes, check_class, &t);
    if (!wrong)
        wrong = di_order_check(&e->tenants, check_tenant, &t);
    if (!wrong)
        wrong = di_order_check(&e->turns, NULL, NULL);
    if (!wrong)
        wrong = di_order_check(&e->due, NULL, NULL);
    if (wrong)
        return wrong;
    if (t.waiting != e->stats.waiting || t.waiting != t.following + t.ready || t.waiting != t.tenants_waiting)
        return "the counts of waiting requests are wrong";
    return t.classes_ready != e->turns.n ? "a class has no turn, or one too many" : NULL;
}
