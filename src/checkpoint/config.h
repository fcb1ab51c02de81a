/* config.json of a checkpoint (spec/model.md §1): every number of the network comes from here, nothing in the code knows 40 layers. */
#ifndef DI_CHECKPOINT_CONFIG_H
#define DI_CHECKPOINT_CONFIG_H

#include "base/str.h"

#define DI_MAX_LAYERS 256 /* backbone + draft layers */
#define DI_MAX_SOURCES 64 /* entries of the *_source_layer_ids lists */
#define DI_MAX_ENGRAM 8   /* engram layers */
#define DI_MAX_NGRAM 8
#define DI_MAX_ENGRAM_HEADS 32
#define DI_MAX_STREAMS 8 /* hc_mult */
#define DI_MAX_EXPERTS_PER_TOK 32

/* Field names are the config's own. Derived fields stand at the end. */
struct di_config {
    int bos_token_id, eos_token_id, pad_token_id, image_token_id;
    int vocab_size, hidden_size, moe_intermediate_size, num_hidden_layers, num_attention_heads, head_dim, qk_rope_head_dim, q_lora_rank,
        o_lora_rank, o_groups, n_routed_experts, n_shared_experts, num_experts_per_tok, sliding_window, index_n_heads, index_head_dim,
        index_topk, candidate_source_layer_id /* -1: none */, candidate_topk_blocks, candidate_block_size, hc_mult, hc_sinkhorn_iters;
    int64_t max_position_embeddings;
    double swiglu_limit, rms_norm_eps, rope_theta, compress_rope_theta, routed_scaling_factor, hc_eps;
    double rope_factor, rope_beta_fast, rope_beta_slow; /* rope_scaling */
    int64_t rope_original_max_position_embeddings;
    int compress_ratios[DI_MAX_LAYERS]; /* num_hidden_layers + num_nextn_predict_layers entries: 0, 1 or 2 */
    int n_kv_sources, kv_source_layer_ids[DI_MAX_SOURCES];
    int n_index_sources, index_source_layer_ids[DI_MAX_SOURCES];
    int n_engram, engram_layer_ids[DI_MAX_ENGRAM];
    int64_t engram_num_embeddings[DI_MAX_ENGRAM];
    int engram_max_ngram_size, engram_n_heads, engram_head_dim, engram_pad_token_id, engram_compressed_vocab_size;
    int64_t engram_vocab_size;
    int num_nextn_predict_layers, dspark_block_size, dspark_noise_token_id, dspark_markov_rank, dspark_n_routed_experts,
        dspark_num_experts_per_tok;
    int n_dspark_targets, dspark_target_layer_ids[DI_MAX_SOURCES];
    bool has_vision;
    struct {
        int num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, patch_size, downsample_ratio, max_image_tokens;
        int64_t min_pixels;
        double rope_theta, max_wh_ratio /* 0: none */;
    } vision;

    /* Derived at load. */
    int layer_kv_source[DI_MAX_LAYERS];    /* index into kv_source_layer_ids, -1 for ratio 0 */
    int layer_index_source[DI_MAX_LAYERS]; /* index into index_source_layer_ids, -1 for ratio 0 */
    int layer_is_kv_source[DI_MAX_LAYERS], layer_is_index_source[DI_MAX_LAYERS];
    int layer_engram[DI_MAX_LAYERS]; /* index into engram_layer_ids, -1 for none */
};

/* Parse and check a config (text of config.json). Refuses by name: missing or mistyped fields, sizes that are zero, negative or absurd,
 * dimensions that are no multiples of 32, lists of the wrong length, sources that do not fit the ratios, engram row counts that are not the
 * prime sums, an unknown model_type, and the optional keys of spec §1 at values other than the supported ones. Unknown keys are ignored. */
di_status di_config_parse(struct di_str json, const char *where, struct di_config *out, di_error *err);
di_status di_config_load(const char *model_dir, struct di_config *out, di_error *err);

#endif
