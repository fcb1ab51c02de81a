/* Whom a request belongs to, and what is fair between tenants: places in the queue, turns at the preparing threads. Without keys all
 * requests belong to one tenant. Whoever uses these functions on several threads holds a lock of his own. */
#ifndef DI_SERVER_TENANT_H
#define DI_SERVER_TENANT_H

#include "base/str.h"

struct di_job { /* something that waits for its turn */
    struct di_job *next;
};

struct di_turns {
    struct di_tenant *first, **last; /* those that have jobs, in the order of their turns */
    size_t kind;                     /* a tenant is in one list of each kind */
};
#define DI_TURN_KINDS 2

/* What is limited in all and shared by tenants: answers that are computed or wait for it, bytes of bodies that are being received, bytes
 * of bodies of requests under way. */
enum di_place_kind { DI_PLACES_ANSWERS, DI_PLACES_RECEIVED, DI_PLACES_HELD };
#define DI_PLACE_KINDS 3
#define DI_TENANT_NAME 64 /* bytes, with the 0 */

struct di_tenant {
    char name[DI_TENANT_NAME];
    uint64_t id;                   /* from the name, never 0; of the tenant without keys 0 */
    int holders;                   /* keys that point here */
    size_t places[DI_PLACE_KINDS]; /* that it has */
    struct {
        struct di_job *first, **last;
        struct di_tenant *next; /* that has its turn after this one */
    } turn[DI_TURN_KINDS];
};

struct di_places {
    size_t limit, used, tenants; /* tenants: that have some */
    enum di_place_kind kind;
};

/* Would n more fit? When all places are taken, a tenant is let in all the same up to its share: the limit divided by the tenants
 * that have something under way; its first request always. So nobody is shut out by another one, and all together have a small number of
 * limits at most. A request that wants more than the limit is taken when nothing else is under way. */
bool di_places_fit(const struct di_places *p, const struct di_tenant *t, size_t n);
/* A request that has `old` places (0: none yet) gets n instead, if they fit or are fewer; else all stays as it was. */
bool di_places_change(struct di_places *p, struct di_tenant *t, size_t old, size_t n);
/* The same without asking. */
void di_places_set(struct di_places *p, struct di_tenant *t, size_t old, size_t n);

void di_turns_init(struct di_turns *t, size_t kind);
/* Behind the tenant's other jobs. */
void di_turns_add(struct di_turns *t, struct di_tenant *owner, struct di_job *job);
/* The first job of the tenant whose turn it is, or NULL; the tenant's next turn comes after those of the others. */
struct di_job *di_turns_next(struct di_turns *t);

#endif
