#define DI_ON_DEVICE
#include "testing/device.h"

#include <stdlib.h>
#include <string.h>

static struct di_hostile_params chosen;
static bool is_chosen;

static const struct di_hostile_params *device_params(void)
{
    const char *seed = is_chosen ? NULL : getenv("DI_HOSTILE");
    if (seed)
        di_test_set_device(&(struct di_hostile_params){.seed = strtoull(seed, NULL, 10)});
    return &chosen;
}

uint64_t di_test_seed(void)
{
    return device_params()->seed;
}

void di_test_set_device(const struct di_hostile_params *p)
{
    chosen = *p;
    is_chosen = true;
}

di_status di_test_backend(const struct di_backend_params *params, struct di_backend **out, di_error *err)
{
    const struct di_hostile_params *p = device_params();
    di_status status = di_backend_cpu_create(params, out, err);
    return status == DI_OK && p->seed ? di_hostile_create(*out, 0, p, out, err) : status; /* it owns the other */
}

bool di_test_isa(const char *isa)
{
    return di_test_seed() ? strcmp(di_cpu_isa_best(), isa) == 0 : strstr(di_cpu_isa_list(), isa) != NULL;
}

/* ---------------------------------------------------------------- null models */

/* A null model and its device, which the core does not know to destroy: that is done when the next one is made, or at the end. */
struct late {
    struct late *older;
    struct di_backend *be;
    struct di_stepper null;
};
static struct late *newest;

static void destroy_unused(void)
{
    for (struct late **at = &newest; *at;) {
        struct late *l = *at;
        if (!di_hostile_is_empty(l->be)) {
            at = &l->older;
            continue;
        }
        *at = l->older;
        l->be->ops->destroy(l->be);
        free(l);
    }
}

static di_status compute_late(void *ctx, const struct di_step *step, di_error *err)
{
    struct late *l = ctx;
    (void)err;
    di_hostile_compute(l->be, &l->null, step);
    return DI_OK;
}

static void head_late(void *ctx, const struct di_step *step, int first, int n, float *logits)
{
    struct late *l = ctx;
    di_hostile_head(l->be, &l->null, step, first, n, logits);
}

/* The host's own, as the next one. */
static di_status check_now(void *ctx, di_error *err)
{
    struct late *l = ctx;
    return l->null.check(l->null.ctx, err);
}

static void guess_now(void *ctx, const struct di_kv *kv, int n, struct di_guess *guesses)
{
    struct late *l = ctx;
    l->null.guess(l->null.guess_ctx, kv, n, guesses);
}

di_status di_test_core(const struct di_stepper *null, const struct di_core_config *config, struct di_core **out, di_error *err)
{
    const struct di_hostile_params *p = device_params();
    if (!p->seed)
        return di_core_create_on(null, config, out, err);
    if (!newest)
        atexit(destroy_unused);
    destroy_unused();
    struct late *l = calloc(1, sizeof *l);
    if (!l)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a hostile device");
    *l = (struct late){.older = newest, .null = *null};
    di_status status = di_hostile_create(NULL, null->vocab, p, &l->be, err);
    if (status != DI_OK) {
        free(l);
        return status;
    }
    newest = l;
    struct di_stepper n = *null;
    n.be = l->be;
    n.compute = compute_late;
    n.head = head_late;
    n.check = null->check ? check_now : NULL;
    n.guess = null->guess ? guess_now : NULL;
    n.ctx = n.guess_ctx = l;
    return di_core_create_on(&n, config, out, err);
}

struct di_backend *di_test_memory(void)
{
    const struct di_hostile_params *p = device_params();
    struct di_backend *be;
    return p->seed && di_hostile_create(NULL, 0, p, &be, NULL) == DI_OK ? be : di_backend_plain_memory();
}

void di_test_memory_close(struct di_backend *be)
{
    if (be != di_backend_plain_memory())
        be->ops->destroy(be);
}

struct di_kv di_test_view_kv(const struct di_kv_store *s)
{
    struct di_kv kv = di_kv_view(s);
    kv.blocks = di_hostile_view(kv.blocks);
    kv.state = di_hostile_view(kv.state);
    kv.pages = di_hostile_view(kv.pages);
    return kv;
}
