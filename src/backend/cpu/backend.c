/* Creation of the CPU back end: chooses the instruction set, fills the table, allocates scratch and threads. */
#include "backend/cpu/cpu.h"

static int thread_count(const struct di_backend_params *p)
{
    if (p->threads > 0)
        return p->threads;
    int n = di_cpu_count();
    return n > 256 ? 256 : n;
}

static bool fast_numerics(struct di_numerics n)
{
    return n.bf16 && n.q_cache;
}

static di_status choose_isa(const struct di_backend_params *p, enum di_cpu_isa *isa, di_error *err)
{
    bool fast = fast_numerics(p->numerics);
    if (!p->isa)
        return di_cpu_isa_by_name(fast ? di_cpu_isa_best() : "ref", isa) ? DI_OK : DI_ERR_INTERNAL;
    if (!di_cpu_isa_by_name(p->isa, isa))
        return di_fail(err, DI_ERR_INVALID, "cpu-isa", "unknown instruction set \"%s\"; usable here: %s", p->isa, di_cpu_isa_list());
    if (!di_cpu_isa_usable(*isa))
        return di_fail(err, DI_ERR_UNSUPPORTED, "cpu-isa", "this processor cannot run %s; usable here: %s", p->isa, di_cpu_isa_list());
    if (*isa != DI_ISA_REF && !fast)
        return di_fail(err, DI_ERR_UNSUPPORTED, "numerics",
                       "the f32 numerics exist in the reference back end only (--cpu-isa ref), not in %s", p->isa);
    return DI_OK;
}

int di_cpu_longest_k(const struct di_config *c)
{
    const int k[] = {c->hidden_size,
                     c->q_lora_rank,
                     c->moe_intermediate_size,
                     c->head_dim,
                     c->num_attention_heads / c->o_groups * c->head_dim,
                     c->o_groups * c->o_lora_rank,
                     (c->engram_max_ngram_size - 1) * c->engram_n_heads * c->engram_head_dim,
                     c->n_dspark_targets * c->hidden_size,
                     c->dspark_markov_rank};
    int top = 0;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        top = k[i] > top ? k[i] : top;
    return top;
}

static struct di_cpu_scratch scratch_of(const struct di_backend_params *p, enum di_cpu_isa isa, int threads)
{
    struct di_cpu_scratch s = {0, 0};
    di_cpu_ref_scratch(p, &s);
    if (isa != DI_ISA_REF) {
        di_cpu_linear_scratch(p, isa, &s);
        di_cpu_vector_scratch(p, threads, &s);
    }
    return s;
}

static void cpu_destroy(struct di_backend *be)
{
    if (!be)
        return;
    struct di_cpu *cpu = di_cpu_of(be);
    di_pool_destroy(cpu->pool);
    di_free_aligned(cpu->shared);
    di_free_aligned(cpu->per_thread);
    di_free(cpu);
}

di_status di_backend_cpu_create(const struct di_backend_params *params, struct di_backend **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_cpu *cpu = NULL;
    enum di_cpu_isa isa;
    *out = NULL;
    TRY(choose_isa(params, &isa, err));
    cpu = di_calloc(1, sizeof *cpu);
    CHECK(cpu, err, DI_ERR_MEMORY, "", "out of memory for the back end");
    cpu->isa = isa;
    cpu->threads = isa == DI_ISA_REF ? 1 : thread_count(params);
    cpu->ops = di_cpu_ref_ops;
    cpu->ops.name = di_cpu_isa_name(isa);
    cpu->ops.destroy = cpu_destroy;
    if (isa != DI_ISA_REF) {
        di_cpu_linear_ops(&cpu->ops, isa);
        di_cpu_vector_ops(&cpu->ops, isa);
    }
    cpu->be = (struct di_backend){.ops = &cpu->ops, .params = *params};
    di_bits_name(params->numerics, "cpu", cpu->ops.name, cpu->be.bits);
    di_kv_layout_init(&cpu->be.layout, params->config, params->numerics);
    struct di_cpu_scratch s = scratch_of(params, isa, cpu->threads);
    cpu->shared_bytes = s.shared;
    cpu->per_thread_bytes = s.per_thread;
    cpu->be.scratch_bytes = s.shared + s.per_thread * (size_t)cpu->threads;
    cpu->shared = di_malloc_aligned(s.shared);
    cpu->per_thread = di_malloc_aligned(s.per_thread * (size_t)cpu->threads);
    CHECK(cpu->shared && cpu->per_thread, err, DI_ERR_MEMORY, "", "out of memory for %zu bytes of scratch", cpu->be.scratch_bytes);
    TRY(di_pool_create(cpu->threads, &cpu->pool, err));
    *out = &cpu->be;
    cpu = NULL;
out:
    if (cpu)
        cpu_destroy(&cpu->be);
    return status;
}
