/* What a checkpoint's tensors are to the model. */
#include "model/model.h"

void di_layer_shape(const struct di_config *c, int l, struct di_layer *out)
{
    bool draft = l >= c->num_hidden_layers, index_source = !draft && c->layer_is_index_source[l];
    int first = c->candidate_source_layer_id;
    *out = (struct di_layer){
        .ring = l,
        .n_experts = draft ? c->dspark_n_routed_experts : c->n_routed_experts,
        .k = draft ? c->dspark_num_experts_per_tok : c->num_experts_per_tok,
        .ratio = c->compress_ratios[l],
        .kv_source = c->layer_kv_source[l],
        .is_kv_source = !draft && c->layer_is_kv_source[l],
        .is_index_source = index_source,
        .candidates = !index_source || first < 0 || l < first ? DI_CAND_NONE
                      : l == first                            ? DI_CAND_PRODUCE
                                                              : DI_CAND_FILTER,
        .rope = c->compress_ratios[l] ? DI_ROPE_COMPRESS : DI_ROPE_MAIN,
        .engram_table = draft ? -1 : c->layer_engram[l],
    };
}
