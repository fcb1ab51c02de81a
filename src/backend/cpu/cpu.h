/* Inside of the CPU back end: the instance, its instruction sets, and the tables that the files of this folder fill. */
#ifndef DI_BACKEND_CPU_CPU_H
#define DI_BACKEND_CPU_CPU_H

#define DI_ON_DEVICE /* the only place where the CPU back end takes the mark off */
#include "backend/backend.h"
#include "base/carve.h"
#include "base/threads.h"

enum di_cpu_isa { DI_ISA_REF, DI_ISA_AVX2, DI_ISA_AVX512, DI_ISA_AVX512BF16, DI_ISA_AMX, DI_ISA_COUNT };

struct di_cpu {
    struct di_backend be; /* first: the op functions get &cpu->be */
    struct di_ops ops;    /* reference entries, overwritten by those of the chosen instruction set */
    enum di_cpu_isa isa;
    struct di_pool *pool;
    int threads;
    /* Scratch of one op at a time, carved by each anew (di_cpu_shared, di_cpu_per_thread). As large as any of them needs it. */
    uint8_t *shared;
    uint8_t *per_thread;
    size_t shared_bytes, per_thread_bytes; /* per_thread_bytes: of one thread, a multiple of 64 */
};
static inline struct di_cpu *di_cpu_of(struct di_backend *be)
{
    return (struct di_cpu *)be;
}

/* Whose state a row reads and writes; -1: nobody's, a row of padding. */
static inline int di_slot_of_row(const struct di_rows *rows, int64_t row)
{
    return rows->chunks[rows->chunk[row]].slot;
}

struct di_cpu_scratch {
    size_t shared, per_thread; /* bytes */
};
/* Let *bytes suffice for what was counted. */
static inline void di_cpu_need(size_t *bytes, const struct di_carver *c)
{
    *bytes = c->used > *bytes ? c->used : *bytes;
}
static inline struct di_carver di_cpu_shared(struct di_cpu *cpu)
{
    return (struct di_carver){.base = cpu->shared, .size = cpu->shared_bytes};
}
static inline struct di_carver di_cpu_per_thread(struct di_cpu *cpu, int thread)
{
    return (struct di_carver){.base = cpu->per_thread + (size_t)thread * cpu->per_thread_bytes, .size = cpu->per_thread_bytes};
}

/* Most keys of a row of attention beside those of its window: selected ones, or the others of its block. */
static inline int di_cpu_more_keys(const struct di_config *c)
{
    return c->index_topk > DI_MAX_DRAFTS ? c->index_topk : DI_MAX_DRAFTS;
}

/* The memory ops, of every instruction set. */
void *di_cpu_alloc(struct di_backend *be, enum di_memory kind, size_t bytes);
void di_cpu_release(struct di_backend *be, enum di_memory kind, void *p);
void di_cpu_copy(struct di_backend *be, const struct di_op_copy *d);
uint64_t di_cpu_fence(struct di_backend *be);
di_status di_cpu_wait(struct di_backend *be, uint64_t fence, di_error *err);

/* The reference: every op, single-threaded, plain C, all numerics. */
extern const struct di_ops di_cpu_ref_ops;
/* Longest k of any matrix of the model. */
int di_cpu_longest_k(const struct di_config *c);
/* Let *s, too, suffice for these ops. */
void di_cpu_ref_scratch(const struct di_backend_params *p, struct di_cpu_scratch *s);

/* Matrix ops (linear, router, moe, weight packing) of an instruction set: cpu/linear*.c. */
void di_cpu_linear_ops(struct di_ops *ops, enum di_cpu_isa isa);
void di_cpu_linear_scratch(const struct di_backend_params *p, enum di_cpu_isa isa, struct di_cpu_scratch *s);

/* All other ops of an instruction set: cpu/vector*.c. */
void di_cpu_vector_ops(struct di_ops *ops, enum di_cpu_isa isa);
void di_cpu_vector_scratch(const struct di_backend_params *p, int threads, struct di_cpu_scratch *s);

/* Can this processor run the set? Asks cpuid and xgetbv; for a set that cpuid hides (some hypervisors mask AVX512-BF16) a trial in a child
 * process decides. */
bool di_cpu_isa_usable(enum di_cpu_isa isa);
bool di_cpu_isa_by_name(const char *name, enum di_cpu_isa *out);
const char *di_cpu_isa_name(enum di_cpu_isa isa);

#endif
