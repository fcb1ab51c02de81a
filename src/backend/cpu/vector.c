/* Choice of the compiled set and size of its scratch. */
#include "backend/cpu/vector.h"

void di_cpu_vector_ops(struct di_ops *ops, enum di_cpu_isa isa)
{
    if (isa == DI_ISA_AVX2)
        di_cpu_vector_ops_avx2(ops);
    else if (isa != DI_ISA_REF) /* bf16 and AMX instructions have nothing to add here */
        di_cpu_vector_ops_avx512(ops);
}

void di_cpu_vector_scratch(const struct di_backend_params *p, int threads, struct di_cpu_scratch *s)
{
    const struct di_config *c = p->config;
    int heads = c->num_attention_heads, d = c->head_dim;

    struct di_carver mix = {0}, mix_thread = {0};
    mix_sums(&mix, p->max_rows);
    mix_partial(&mix_thread);

    struct di_carver index = {0}, index_thread = {0};
    index_merge_take(&index, c->index_topk, c->candidate_topk_blocks, threads);
    index_take(&index_thread, c->index_n_heads, c->index_head_dim, c->index_topk, c->candidate_topk_blocks);

    struct di_carver att = {0}, att_thread = {0}, few = {0};
    att_row_take(&att, heads, d, c->sliding_window, di_cpu_more_keys(c));
    att_tile_take(&att_thread, heads);
    att_row_take(&att_thread, heads, d, c->sliding_window, di_cpu_more_keys(c));
    if (heads <= FEW_HEADS)
        att_few_take(&few, d, c->sliding_window, di_cpu_more_keys(c));

    struct di_carver row = {0}; /* one cache row before packing */
    di_carve(&row, (size_t)(d > c->index_head_dim ? d : c->index_head_dim), sizeof(float));

    struct di_carver sample = {0};
    sample_take(&sample, (size_t)c->vocab_size);

    const struct di_carver *shared[] = {&mix, &index, &att};
    const struct di_carver *per_thread[] = {&mix_thread, &index_thread, &att_thread, &few, &row, &sample};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        di_cpu_need(&s->shared, shared[i]);
    for (size_t i = 0; i < sizeof per_thread / sizeof *per_thread; i++)
        di_cpu_need(&s->per_thread, per_thread[i]);
}
