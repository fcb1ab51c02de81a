#include "checkpoint/inventory.h"

#include <stdio.h>

/* Sizes that shapes are made of; resolved once per layer. NONE as the second one: a vector. */
enum dim {
    NONE,
    ONE,
    VOCAB,
    HIDDEN,
    EXPERT,
    Q_RANK,
    HEAD_DIM,
    HEADS,
    Q_ROWS,
    O_ROWS,
    O_COLS,
    MIX,
    MIX_COLS,
    THREE,
    EXPERTS,
    INDEX_DIM,
    INDEX_HEADS,
    INDEX_ROWS,
    STREAMS,
    TABLE_ROWS,
    TABLE_COLS,
    ENGRAM_ROWS,
    ENGRAM_COLS,
    TAPS,
    RANK,
    CONFIDENCE,
    VIT,
    VIT3,
    VIT_GATE_UP,
    VIT_INNER,
    PATCH,
    UNSHUFFLED,
    DIM_COUNT
};

/* Which items of a kind there is one of. */
enum scope { VISION, BLOCK, EMBEDDING, DELIMITERS, LAYER, EXPERT_OF_LAYER, TOP, ENGRAM, SCOPE_COUNT };
static const struct {
    enum di_tensor_id first, last;
} scopes[SCOPE_COUNT] = {
    [VISION] = {DI_TENSOR_PATCH, DI_TENSOR_ALIGNER_W2_BIAS},
    [BLOCK] = {DI_TENSOR_BLOCK_NORM1, DI_TENSOR_BLOCK_W2},
    [EMBEDDING] = {DI_TENSOR_EMBED, DI_TENSOR_EMBED},
    [DELIMITERS] = {DI_TENSOR_IMAGE_START, DI_TENSOR_IMAGE_NEWLINE},
    [LAYER] = {DI_TENSOR_ATTN_NORM, DI_TENSOR_DRAFT_CONFIDENCE},
    [EXPERT_OF_LAYER] = {DI_TENSOR_EXPERT_W1, DI_TENSOR_EXPERT_W3},
    [TOP] = {DI_TENSOR_HEAD, DI_TENSOR_NORM},
    [ENGRAM] = {DI_TENSOR_ENGRAM_TABLE, DI_TENSOR_ENGRAM_K},
};

/* Where in its scope a tensor occurs. */
enum when { ALWAYS, KV_SOURCE, RATIO_2, INDEX_SOURCE, FIRST_STAGE, LAST_STAGE, WHEN_COUNT };

static const struct entry {
    const char *name; /* without the prefix; what has scales is NAME.weight and NAME.scale */
    enum di_part part;
    enum di_encoding encoding;
    enum dim n, k;
    enum when when;
} entries[DI_TENSOR_COUNT] = {
    [DI_TENSOR_PATCH] = {"vision.patch_embed.proj.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT, PATCH, ALWAYS},
    [DI_TENSOR_PATCH_BIAS] = {"vision.patch_embed.proj.bias", DI_PART_VISION, DI_ENCODING_BF16, VIT, NONE, ALWAYS},
    [DI_TENSOR_TOWER_NORM] = {"vision.norm.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT, NONE, ALWAYS},
    [DI_TENSOR_ALIGNER_W1] = {"aligner.w1.weight", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, UNSHUFFLED, ALWAYS},
    [DI_TENSOR_ALIGNER_W1_BIAS] = {"aligner.w1.bias", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_ALIGNER_W2] = {"aligner.w2.weight", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, HIDDEN, ALWAYS},
    [DI_TENSOR_ALIGNER_W2_BIAS] = {"aligner.w2.bias", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_BLOCK_NORM1] = {"norm1.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT, NONE, ALWAYS},
    [DI_TENSOR_BLOCK_NORM2] = {"norm2.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT, NONE, ALWAYS},
    [DI_TENSOR_BLOCK_WQKV] = {"attn.wqkv.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT3, VIT, ALWAYS},
    [DI_TENSOR_BLOCK_WQKV_BIAS] = {"attn.wqkv.bias", DI_PART_VISION, DI_ENCODING_BF16, VIT3, NONE, ALWAYS},
    [DI_TENSOR_BLOCK_WO] = {"attn.wo.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT, VIT, ALWAYS},
    [DI_TENSOR_BLOCK_WO_BIAS] = {"attn.wo.bias", DI_PART_VISION, DI_ENCODING_BF16, VIT, NONE, ALWAYS},
    [DI_TENSOR_BLOCK_W1] = {"mlp.w1.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT_GATE_UP, VIT, ALWAYS},
    [DI_TENSOR_BLOCK_W2] = {"mlp.w2.weight", DI_PART_VISION, DI_ENCODING_BF16, VIT, VIT_INNER, ALWAYS},
    [DI_TENSOR_EMBED] = {"embed.weight", DI_PART_EMBED, DI_ENCODING_BF16, VOCAB, HIDDEN, ALWAYS},
    [DI_TENSOR_IMAGE_START] = {"image_start", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_IMAGE_END] = {"image_end", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_IMAGE_NEWLINE] = {"image_newline", DI_PART_VISION, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_ATTN_NORM] = {"attn_norm.weight", DI_PART_LAYER_NORMS, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_FFN_NORM] = {"ffn_norm.weight", DI_PART_LAYER_NORMS, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_WQ_A] = {"attn.wq_a", DI_PART_ATTENTION, DI_ENCODING_F8, Q_RANK, HIDDEN, ALWAYS},
    [DI_TENSOR_Q_NORM] = {"attn.q_norm.weight", DI_PART_ATTENTION, DI_ENCODING_BF16, Q_RANK, NONE, ALWAYS},
    [DI_TENSOR_WQ_B] = {"attn.wq_b", DI_PART_ATTENTION, DI_ENCODING_F8, Q_ROWS, Q_RANK, ALWAYS},
    [DI_TENSOR_WKV] = {"attn.wkv", DI_PART_ATTENTION, DI_ENCODING_F8, HEAD_DIM, HIDDEN, ALWAYS},
    [DI_TENSOR_KV_NORM] = {"attn.kv_norm.weight", DI_PART_ATTENTION, DI_ENCODING_BF16, HEAD_DIM, NONE, ALWAYS},
    [DI_TENSOR_WO_A] = {"attn.wo_a", DI_PART_ATTENTION, DI_ENCODING_F8, O_ROWS, O_COLS, ALWAYS},
    [DI_TENSOR_WO_B] = {"attn.wo_b", DI_PART_ATTENTION, DI_ENCODING_F8, HIDDEN, O_ROWS, ALWAYS},
    [DI_TENSOR_ATTN_SINK] = {"attn.attn_sink", DI_PART_ATTENTION, DI_ENCODING_F32, HEADS, NONE, ALWAYS},
    [DI_TENSOR_COMPRESSOR_WKV] = {"attn.compressor.wkv.weight", DI_PART_COMPRESSOR, DI_ENCODING_BF16, HEAD_DIM, HIDDEN, KV_SOURCE},
    [DI_TENSOR_COMPRESSOR_WGATE] = {"attn.compressor.wgate.weight", DI_PART_COMPRESSOR, DI_ENCODING_BF16, HEAD_DIM, HIDDEN, RATIO_2},
    [DI_TENSOR_COMPRESSOR_NORM] = {"attn.compressor.norm.weight", DI_PART_COMPRESSOR, DI_ENCODING_BF16, HEAD_DIM, NONE, KV_SOURCE},
    [DI_TENSOR_INDEXER_WK] = {"attn.indexer.wk.weight", DI_PART_INDEXER_KEY, DI_ENCODING_BF16, INDEX_DIM, HEAD_DIM, KV_SOURCE},
    [DI_TENSOR_INDEXER_K_NORM] = {"attn.indexer.k_norm.weight", DI_PART_INDEXER_KEY, DI_ENCODING_BF16, INDEX_DIM, NONE, KV_SOURCE},
    [DI_TENSOR_INDEXER_WQ_B] = {"attn.indexer.wq_b", DI_PART_INDEXER_QUERY, DI_ENCODING_F8, INDEX_ROWS, Q_RANK, INDEX_SOURCE},
    [DI_TENSOR_INDEXER_WEIGHTS] = {"attn.indexer.weights_proj.weight", DI_PART_INDEXER_QUERY, DI_ENCODING_BF16, INDEX_HEADS, HIDDEN,
                                   INDEX_SOURCE},
    [DI_TENSOR_HC_ATTN_FN] = {"hc_attn_fn", DI_PART_MHC, DI_ENCODING_F32, MIX, MIX_COLS, ALWAYS},
    [DI_TENSOR_HC_ATTN_BASE] = {"hc_attn_base", DI_PART_MHC, DI_ENCODING_F32, MIX, NONE, ALWAYS},
    [DI_TENSOR_HC_ATTN_SCALE] = {"hc_attn_scale", DI_PART_MHC, DI_ENCODING_F32, THREE, NONE, ALWAYS},
    [DI_TENSOR_HC_FFN_FN] = {"hc_ffn_fn", DI_PART_MHC, DI_ENCODING_F32, MIX, MIX_COLS, ALWAYS},
    [DI_TENSOR_HC_FFN_BASE] = {"hc_ffn_base", DI_PART_MHC, DI_ENCODING_F32, MIX, NONE, ALWAYS},
    [DI_TENSOR_HC_FFN_SCALE] = {"hc_ffn_scale", DI_PART_MHC, DI_ENCODING_F32, THREE, NONE, ALWAYS},
    [DI_TENSOR_GATE] = {"ffn.gate.weight", DI_PART_ROUTER, DI_ENCODING_BF16, EXPERTS, HIDDEN, ALWAYS},
    [DI_TENSOR_GATE_BIAS] = {"ffn.gate.bias", DI_PART_ROUTER, DI_ENCODING_F32, EXPERTS, NONE, ALWAYS},
    [DI_TENSOR_GATE_BIAS_VL] = {"ffn.gate.bias_vl", DI_PART_ROUTER, DI_ENCODING_F32, EXPERTS, NONE, ALWAYS},
    [DI_TENSOR_SHARED_W1] = {"ffn.shared_experts.w1", DI_PART_SHARED_EXPERT, DI_ENCODING_F8, EXPERT, HIDDEN, ALWAYS},
    [DI_TENSOR_SHARED_W2] = {"ffn.shared_experts.w2", DI_PART_SHARED_EXPERT, DI_ENCODING_F8, HIDDEN, EXPERT, ALWAYS},
    [DI_TENSOR_SHARED_W3] = {"ffn.shared_experts.w3", DI_PART_SHARED_EXPERT, DI_ENCODING_F8, EXPERT, HIDDEN, ALWAYS},
    [DI_TENSOR_DRAFT_MAIN_PROJ] = {"main_proj", DI_PART_DRAFT, DI_ENCODING_F8, HIDDEN, TAPS, FIRST_STAGE},
    [DI_TENSOR_DRAFT_MAIN_NORM] = {"main_norm.weight", DI_PART_DRAFT, DI_ENCODING_BF16, HIDDEN, NONE, FIRST_STAGE},
    [DI_TENSOR_DRAFT_NORM] = {"norm.weight", DI_PART_DRAFT, DI_ENCODING_BF16, HIDDEN, NONE, LAST_STAGE},
    [DI_TENSOR_DRAFT_MARKOV_EMBED] = {"markov_head.embed.weight", DI_PART_DRAFT, DI_ENCODING_BF16, VOCAB, RANK, LAST_STAGE},
    [DI_TENSOR_DRAFT_MARKOV_HEAD] = {"markov_head.head.weight", DI_PART_DRAFT, DI_ENCODING_BF16, VOCAB, RANK, LAST_STAGE},
    [DI_TENSOR_DRAFT_CONFIDENCE] = {"confidence_head.proj.weight", DI_PART_DRAFT, DI_ENCODING_BF16, ONE, CONFIDENCE, LAST_STAGE},
    [DI_TENSOR_EXPERT_W1] = {"w1", DI_PART_ROUTED_EXPERTS, DI_ENCODING_F4, EXPERT, HIDDEN, ALWAYS},
    [DI_TENSOR_EXPERT_W2] = {"w2", DI_PART_ROUTED_EXPERTS, DI_ENCODING_F4, HIDDEN, EXPERT, ALWAYS},
    [DI_TENSOR_EXPERT_W3] = {"w3", DI_PART_ROUTED_EXPERTS, DI_ENCODING_F4, EXPERT, HIDDEN, ALWAYS},
    [DI_TENSOR_HEAD] = {"head.weight", DI_PART_HEAD, DI_ENCODING_BF16, VOCAB, HIDDEN, ALWAYS},
    [DI_TENSOR_NORM] = {"norm.weight", DI_PART_NORM, DI_ENCODING_BF16, HIDDEN, NONE, ALWAYS},
    [DI_TENSOR_ENGRAM_TABLE] = {"engram.embed", DI_PART_ENGRAM_TABLE, DI_ENCODING_F8_ROW, TABLE_ROWS, TABLE_COLS, ALWAYS},
    [DI_TENSOR_ENGRAM_WKV] = {"engram.wkv", DI_PART_ENGRAM_PROJ, DI_ENCODING_F8, ENGRAM_ROWS, ENGRAM_COLS, ALWAYS},
    [DI_TENSOR_ENGRAM_Q] = {"engram.q_weight", DI_PART_ENGRAM_PROJ, DI_ENCODING_BF16, STREAMS, HIDDEN, ALWAYS},
    [DI_TENSOR_ENGRAM_K] = {"engram.k_weight", DI_PART_ENGRAM_PROJ, DI_ENCODING_BF16, STREAMS, HIDDEN, ALWAYS},
};

struct emitter {
    const struct di_config *c;
    di_inventory_fn fn;
    void *ctx;
    int64_t dim[DIM_COUNT];
    bool on[WHEN_COUNT]; /* of the present layer */
    const char *prefix;  /* of its names */
    bool draft;
    int layer, expert, shard;
};

/* The longest: "layers.255.ffn.experts.4095.w1.weight". */
#define MAX_NAME 128

static di_status emit_one(const struct emitter *e, enum di_tensor_id id)
{
    static const enum di_dtype types[] = {
        [DI_ENCODING_BF16] = DI_DT_BF16,      [DI_ENCODING_F32] = DI_DT_F32, [DI_ENCODING_F8] = DI_DT_F8_E4M3,
        [DI_ENCODING_F8_ROW] = DI_DT_F8_E4M3, [DI_ENCODING_F4] = DI_DT_I8,
    };
    const struct entry *t = &entries[id];
    bool plain = t->encoding == DI_ENCODING_BF16 || t->encoding == DI_ENCODING_F32;
    char names[2][MAX_NAME];
    struct di_inventory_item item = {
        .id = id,
        .part = e->draft ? DI_PART_DRAFT : t->part,
        .encoding = t->encoding,
        .layer = e->layer,
        .expert = e->expert,
        .n = e->dim[t->n],
        .k = e->dim[t->k], /* NONE: 0 */
        .shard = e->shard,
        .n_stored = plain ? 1 : 2,
    };
    int64_t n = item.n, k = item.k;
    item.stored[0] = (struct di_inventory_tensor){
        .name = names[0], .dtype = types[t->encoding], .ndim = k ? 2 : 1, .shape = {n, t->encoding == DI_ENCODING_F4 ? k / 2 : k}};
    item.stored[1] = (struct di_inventory_tensor){
        .name = names[1], .dtype = DI_DT_F8_E8M0, .ndim = 2, .shape = {t->encoding == DI_ENCODING_F8 ? n / 32 : n, k / 32}};
    snprintf(names[0], MAX_NAME, "%s%s%s", e->prefix, t->name, plain ? "" : ".weight");
    snprintf(names[1], MAX_NAME, "%s%s.scale", e->prefix, t->name);
    return e->fn(e->ctx, &item);
}

static di_status emit_all(struct emitter *e, enum scope scope, const char *prefix)
{
    e->prefix = prefix;
    for (enum di_tensor_id id = scopes[scope].first; id <= scopes[scope].last; id++) {
        di_status status = e->on[entries[id].when] ? emit_one(e, id) : DI_OK;
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* Layer l counts on through the draft stages. */
static di_status emit_layer(struct emitter *e, int l)
{
    const struct di_config *c = e->c;
    char prefix[40], expert[80];
    int stage = l - c->num_hidden_layers;
    e->layer = l;
    e->draft = stage >= 0;
    e->on[KV_SOURCE] = !e->draft && c->layer_is_kv_source[l];
    e->on[RATIO_2] = e->on[KV_SOURCE] && c->compress_ratios[l] == 2;
    e->on[INDEX_SOURCE] = !e->draft && c->layer_is_index_source[l];
    e->on[FIRST_STAGE] = stage == 0;
    e->on[LAST_STAGE] = e->draft && stage == c->num_nextn_predict_layers - 1;
    e->dim[EXPERTS] = e->draft ? c->dspark_n_routed_experts : c->n_routed_experts;
    snprintf(prefix, sizeof prefix, e->draft ? "mtp.%d." : "layers.%d.", e->draft ? stage : l);
    di_status status = emit_all(e, LAYER, prefix);
    for (e->expert = 0; status == DI_OK && e->expert < e->dim[EXPERTS]; e->expert++) {
        snprintf(expert, sizeof expert, "%sffn.experts.%d.", prefix, e->expert);
        status = emit_all(e, EXPERT_OF_LAYER, expert);
    }
    e->layer = e->expert = -1;
    e->draft = false;
    return status;
}

static di_status emit_vision(struct emitter *e)
{
    di_status status = emit_all(e, VISION, "");
    for (e->layer = 0; status == DI_OK && e->layer < e->c->vision.num_hidden_layers; e->layer++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "vision.blocks.%d.", e->layer);
        status = emit_all(e, BLOCK, prefix);
    }
    e->layer = -1;
    return status;
}

static void resolve_dims(struct emitter *e)
{
    const struct di_config *c = e->c;
    const int64_t d = c->hidden_size, s = c->hc_mult, q = (int64_t)c->num_attention_heads * c->head_dim, vit = c->vision.hidden_size;
    const int64_t dims[DIM_COUNT] = {
        [ONE] = 1,
        [THREE] = 3,
        [VOCAB] = c->vocab_size,
        [HIDDEN] = d,
        [EXPERT] = c->moe_intermediate_size,
        [Q_RANK] = c->q_lora_rank,
        [HEAD_DIM] = c->head_dim,
        [HEADS] = c->num_attention_heads,
        [Q_ROWS] = q,
        [O_ROWS] = (int64_t)c->o_groups * c->o_lora_rank,
        [O_COLS] = q / c->o_groups,
        [MIX] = s * (s + 2),
        [MIX_COLS] = s * d,
        [INDEX_DIM] = c->index_head_dim,
        [INDEX_HEADS] = c->index_n_heads,
        [INDEX_ROWS] = (int64_t)c->index_n_heads * c->index_head_dim,
        [STREAMS] = s,
        [TABLE_COLS] = c->engram_head_dim,
        [ENGRAM_ROWS] = (s + 1) * d,
        [ENGRAM_COLS] = (int64_t)(c->engram_max_ngram_size - 1) * c->engram_n_heads * c->engram_head_dim,
        [TAPS] = c->n_dspark_targets * d,
        [RANK] = c->dspark_markov_rank,
        [CONFIDENCE] = d + c->dspark_markov_rank,
        [VIT] = vit,
        [VIT3] = 3 * vit,
        [VIT_GATE_UP] = 2 * (int64_t)c->vision.intermediate_size,
        [VIT_INNER] = c->vision.intermediate_size,
        [PATCH] = (int64_t)3 * c->vision.patch_size * c->vision.patch_size,
        [UNSHUFFLED] = vit * c->vision.downsample_ratio * c->vision.downsample_ratio,
    };
    memcpy(e->dim, dims, sizeof dims);
}

/* Shards of the official layout: vision, embedding, one per layer, head, one per draft stage, one per engram table. */
di_status di_inventory_each(const struct di_config *c, di_inventory_fn fn, void *ctx)
{
    struct emitter e = {.c = c, .fn = fn, .ctx = ctx, .on = {[ALWAYS] = true}, .layer = -1, .expert = -1, .shard = 1};
    di_status status = DI_OK;
    resolve_dims(&e);
    if (c->has_vision)
        TRY(emit_vision(&e));
    e.shard = 2;
    TRY(emit_all(&e, EMBEDDING, ""));
    if (c->has_vision)
        TRY(emit_all(&e, DELIMITERS, ""));
    for (int l = 0; l < c->num_hidden_layers; l++) {
        e.shard++;
        TRY(emit_layer(&e, l));
    }
    e.shard++;
    TRY(emit_all(&e, TOP, ""));
    for (int i = 0; i < c->num_nextn_predict_layers; i++) {
        e.shard++;
        TRY(emit_layer(&e, c->num_hidden_layers + i));
    }
    for (int t = 0; t < c->n_engram; t++) {
        char prefix[40];
        e.shard++;
        e.dim[TABLE_ROWS] = c->engram_num_embeddings[t];
        e.layer = c->engram_layer_ids[t];
        snprintf(prefix, sizeof prefix, "layers.%d.", e.layer);
        TRY(emit_all(&e, ENGRAM, prefix));
    }
out:
    return status;
}

uint64_t di_inventory_bytes(const struct di_inventory_item *item)
{
    uint64_t bytes = 0;
    for (int i = 0; i < item->n_stored; i++) {
        const struct di_inventory_tensor *t = &item->stored[i];
        bytes += (uint64_t)t->shape[0] * (uint64_t)(t->ndim == 2 ? t->shape[1] : 1) * di_dtype_bytes(t->dtype);
    }
    return bytes;
}

struct adder {
    struct di_part_sums *sums;
    bool draft, vision;
};

static di_status add_item(void *ctx, const struct di_inventory_item *item)
{
    struct adder *a = ctx;
    if ((item->part == DI_PART_DRAFT && !a->draft) || (item->part == DI_PART_VISION && !a->vision))
        return DI_OK;
    struct di_part_sum *to[] = {&a->sums->part[item->part], &a->sums->all};
    for (int i = 0; i < 2; i++) {
        to[i]->tensors += (uint64_t)item->n_stored;
        to[i]->parameters += (uint64_t)item->n * (uint64_t)(item->k ? item->k : 1);
        to[i]->bytes += di_inventory_bytes(item);
    }
    return DI_OK;
}

void di_part_sums(const struct di_config *c, bool draft, bool vision, struct di_part_sums *out)
{
    struct adder a = {out, draft, vision};
    *out = (struct di_part_sums){0};
    (void)di_inventory_each(c, add_item, &a); /* add_item cannot fail */
}

const char *di_part_name(enum di_part part)
{
    static const char *const names[DI_PART_COUNT] = {
        [DI_PART_EMBED] = "embedding",
        [DI_PART_HEAD] = "head",
        [DI_PART_NORM] = "final norm",
        [DI_PART_ATTENTION] = "attention",
        [DI_PART_COMPRESSOR] = "compressors",
        [DI_PART_INDEXER_KEY] = "indexer keys",
        [DI_PART_INDEXER_QUERY] = "indexer queries",
        [DI_PART_ROUTER] = "router",
        [DI_PART_SHARED_EXPERT] = "shared experts",
        [DI_PART_ROUTED_EXPERTS] = "routed experts",
        [DI_PART_MHC] = "mHC",
        [DI_PART_LAYER_NORMS] = "layer norms",
        [DI_PART_ENGRAM_PROJ] = "engram projections",
        [DI_PART_ENGRAM_TABLE] = "engram tables",
        [DI_PART_DRAFT] = "draft",
        [DI_PART_VISION] = "vision",
    };
    return (unsigned)part < DI_PART_COUNT ? names[part] : "unknown";
}
