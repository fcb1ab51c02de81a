/* Memory of the CPU: all kinds are ordinary memory, whoever calls sees what was computed and copied before. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

void *di_cpu_alloc(struct di_backend *be, enum di_memory kind, size_t bytes)
{
    (void)be;
    void *p = di_malloc_aligned(bytes);
    if (p && kind == DI_MEMORY_WEIGHTS)
        di_advise_huge(p, bytes);
    return p;
}

void di_cpu_release(struct di_backend *be, enum di_memory kind, void *p)
{
    (void)be;
    (void)kind;
    di_free_aligned(p);
}

void di_cpu_copy(struct di_backend *be, const struct di_op_copy *d)
{
    (void)be;
    for (int i = 0; i < d->n; i++)
        memcpy(d->spans[i].to, d->spans[i].from, d->spans[i].bytes);
}

uint64_t di_cpu_fence(struct di_backend *be)
{
    (void)be;
    return 0;
}

di_status di_cpu_wait(struct di_backend *be, uint64_t fence, di_error *err)
{
    (void)be;
    (void)fence;
    (void)err;
    return DI_OK;
}

struct di_backend *di_backend_plain_memory(void)
{
    static const struct di_ops ops = {.name = "plain memory",
                                      .alloc = di_cpu_alloc,
                                      .release = di_cpu_release,
                                      .copy = di_cpu_copy,
                                      .fence = di_cpu_fence,
                                      .wait = di_cpu_wait};
    static struct di_backend memory = {.ops = &ops};
    return &memory;
}
