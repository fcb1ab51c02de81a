/* Choice of the compiled set and size of its scratch. */
#include "backend/cpu/vector.h"

void di_cpu_vector_ops(struct di_ops *ops, enum di_cpu_isa isa)
{
    if (isa == DI_ISA_AVX2)
        di_cpu_vector_ops_avx2(ops);
    else if (isa != DI_ISA_REF) /* bf16 and AMX instructions have nothing to add here */
        di_cpu_vector_ops_avx512(ops);
}

struct di_cpu_scratch di_cpu_vector_scratch(const struct di_backend_params *p, enum di_cpu_isa isa, int threads)
{
    const struct di_config *c = p->config;
    int heads = c->num_attention_heads, d = c->head_dim;
    struct di_cpu_scratch s = {0, 0};
    if (isa == DI_ISA_REF)
        return s;

    struct vec_arena mix = {0}, mix_thread = {0};
    mix_sums(&mix, p->max_rows);
    mix_partial(&mix_thread);

    struct vec_arena index = {0}, index_thread = {0};
    index_merge_take(&index, c->index_topk, c->candidate_topk_blocks, threads);
    index_take(&index_thread, c->index_n_heads, c->index_head_dim, c->index_topk, c->candidate_topk_blocks);

    struct vec_arena att = {0}, att_thread = {0}, few = {0};
    att_row_take(&att, heads, d, c->sliding_window, di_cpu_more_keys(c));
    att_tile_take(&att_thread, heads);
    att_row_take(&att_thread, heads, d, c->sliding_window, di_cpu_more_keys(c));
    if (heads <= FEW_HEADS)
        att_few_take(&few, d, c->sliding_window, di_cpu_more_keys(c));

    struct vec_arena row = {0}; /* one cache row before packing */
    vec_take(&row, (size_t)(d > c->index_head_dim ? d : c->index_head_dim), sizeof(float));

    struct vec_arena sample = {0};
    sample_take(&sample, (size_t)c->vocab_size);

    s.shared = max2(mix.used, max2(index.used, att.used));
    s.per_thread = max2(max2(mix_thread.used, max2(row.used, sample.used)), max2(index_thread.used, max2(att_thread.used, few.used)));
    return s;
}
