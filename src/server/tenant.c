#include "server/tenant.h"

#include "base/assert.h"

bool di_places_fit(const struct di_places *p, const struct di_tenant *t, size_t n)
{
    size_t own = t->places[p->kind], tenants = p->tenants + (own == 0);
    if (p->used + n <= p->limit || p->used == 0)
        return true;
    return tenants > 1 && (own == 0 || own + n <= p->limit / tenants);
}

static void add(struct di_places *p, struct di_tenant *t, size_t n)
{
    p->tenants += t->places[p->kind] == 0 && n > 0;
    p->used += n;
    t->places[p->kind] += n;
    DI_ASSERT(p->used >= t->places[p->kind] && (p->tenants > 0 || p->used == 0));
}

static void subtract(struct di_places *p, struct di_tenant *t, size_t n)
{
    DI_ASSERT(n <= t->places[p->kind] && t->places[p->kind] <= p->used);
    p->used -= n;
    t->places[p->kind] -= n;
    p->tenants -= t->places[p->kind] == 0 && n > 0;
    DI_ASSERT((p->tenants == 0) == (p->used == 0));
}

bool di_places_change(struct di_places *p, struct di_tenant *t, size_t old, size_t n)
{
    subtract(p, t, old);
    bool fits = n <= old || di_places_fit(p, t, n);
    add(p, t, fits ? n : old);
    return fits;
}

void di_places_set(struct di_places *p, struct di_tenant *t, size_t old, size_t n)
{
    subtract(p, t, old);
    add(p, t, n);
}

void di_turns_init(struct di_turns *t, size_t kind)
{
    *t = (struct di_turns){.last = &t->first, .kind = kind};
}

static void append(struct di_turns *t, struct di_tenant *owner)
{
    owner->turn[t->kind].next = NULL;
    *t->last = owner;
    t->last = &owner->turn[t->kind].next;
}

void di_turns_add(struct di_turns *t, struct di_tenant *owner, struct di_job *job)
{
    job->next = NULL;
    if (!owner->turn[t->kind].first) {
        owner->turn[t->kind].last = &owner->turn[t->kind].first;
        append(t, owner);
    }
    *owner->turn[t->kind].last = job;
    owner->turn[t->kind].last = &job->next;
}

struct di_job *di_turns_next(struct di_turns *t)
{
    struct di_tenant *owner = t->first;
    if (!owner)
        return NULL;
    struct di_job *job = owner->turn[t->kind].first;
    DI_ASSERT(job); /* a tenant without jobs has no turn */
    t->first = owner->turn[t->kind].next;
    if (!t->first)
        t->last = &t->first;
    owner->turn[t->kind].first = job->next;
    if (job->next)
        append(t, owner);
    return job;
}
