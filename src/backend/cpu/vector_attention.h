/* Core attention (spec/model.md §5.5): the kernel for the number of heads, and the split over threads. */
#ifndef DI_BACKEND_CPU_VECTOR_ATTENTION_H
#define DI_BACKEND_CPU_VECTOR_ATTENTION_H

#include "backend/cpu/vector_attention_few.h"
#include "backend/cpu/vector_attention_many.h"

static void vec_attention(struct di_backend *be, const struct di_op_attention *d)
{
    struct att_job job = {di_cpu_of(be), d};
    int threads = job.cpu->threads;
    bool few = d->heads <= FEW_HEADS;
    int64_t flop = 4 * (int64_t)vec_up(d->heads, few ? 4 : 16) * d->d * (d->window + (d->src >= 0 ? d->sel_ld : 0));
    /* a share per thread must be worth five synchronisations */
    if (!few && d->m < 3 * threads && d->m % threads != 0 && flop / threads > 10 * VEC_FORK_FLOP)
        vec_run(job.cpu, true, many_heads_together, &job);
    else
        vec_rows(be, d->m, flop, few ? few_heads_rows : many_heads_rows, d);
}

#endif
