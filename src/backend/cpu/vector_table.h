/* Entries of the op table that the vector_*.h files fill; the rest stays the reference's (rope_angles in double, and plain copies). */
#ifndef DI_BACKEND_CPU_VECTOR_TABLE_H
#define DI_BACKEND_CPU_VECTOR_TABLE_H

static void vector_table(struct di_ops *ops)
{
    ops->embed = vec_embed;
    ops->rmsnorm = vec_rmsnorm;
    ops->hc_mix = vec_hc_mix;
    ops->hc_norm = vec_hc_norm;
    ops->hc_expand = vec_hc_expand;
    ops->hc_mean = vec_hc_mean;
    ops->quant8 = vec_quant8;
    ops->rope = vec_rope;
    ops->scale = vec_scale;
    ops->window_store = vec_window_store;
    ops->compress = vec_compress;
    ops->key_store = vec_key_store;
    ops->comp_store = vec_comp_store;
    ops->index_query = vec_index_query;
    ops->index_select = vec_index_select;
    ops->attention = vec_attention;
    ops->engram_gather = vec_engram_gather;
    ops->engram_gate = vec_engram_gate;
    ops->sample = vec_sample;
}

#endif
