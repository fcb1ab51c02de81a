/* The tensors that a config implies (spec/model.md §3, spec/vision.md §12), as one table. */
#include "checkpoint/checkpoint.h"

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

/* F8: one scale per 32 x 32. F8_ROW: one per row and 32 columns. F4: two codes in a byte, scales as F8_ROW. */
enum encoding { BF16, F32, F8, F8_ROW, F4 };

/* Where a tensor occurs. */
enum when { ALWAYS, KV_SOURCE, RATIO_2, INDEX_SOURCE, FIRST_STAGE, LAST_STAGE };

struct entry {
    const char *name; /* without the prefix; a matrix with a scale is NAME.weight and NAME.scale */
    enum di_part part;
    enum encoding encoding;
    enum dim n, k;
    enum when when;
};

static const struct entry vision_top[] = {
    {"vision.patch_embed.proj.weight", DI_PART_VISION, BF16, VIT, PATCH, ALWAYS},
    {"vision.patch_embed.proj.bias", DI_PART_VISION, BF16, VIT, NONE, ALWAYS},
    {"vision.norm.weight", DI_PART_VISION, BF16, VIT, NONE, ALWAYS},
    {"aligner.w1.weight", DI_PART_VISION, BF16, HIDDEN, UNSHUFFLED, ALWAYS},
    {"aligner.w1.bias", DI_PART_VISION, BF16, HIDDEN, NONE, ALWAYS},
    {"aligner.w2.weight", DI_PART_VISION, BF16, HIDDEN, HIDDEN, ALWAYS},
    {"aligner.w2.bias", DI_PART_VISION, BF16, HIDDEN, NONE, ALWAYS},
};
static const struct entry vision_block[] = {
    {"norm1.weight", DI_PART_VISION, BF16, VIT, NONE, ALWAYS},         {"norm2.weight", DI_PART_VISION, BF16, VIT, NONE, ALWAYS},
    {"attn.wqkv.weight", DI_PART_VISION, BF16, VIT3, VIT, ALWAYS},     {"attn.wqkv.bias", DI_PART_VISION, BF16, VIT3, NONE, ALWAYS},
    {"attn.wo.weight", DI_PART_VISION, BF16, VIT, VIT, ALWAYS},        {"attn.wo.bias", DI_PART_VISION, BF16, VIT, NONE, ALWAYS},
    {"mlp.w1.weight", DI_PART_VISION, BF16, VIT_GATE_UP, VIT, ALWAYS}, {"mlp.w2.weight", DI_PART_VISION, BF16, VIT, VIT_INNER, ALWAYS},
};
static const struct entry delimiters[] = {
    {"image_start", DI_PART_VISION, BF16, HIDDEN, NONE, ALWAYS},
    {"image_end", DI_PART_VISION, BF16, HIDDEN, NONE, ALWAYS},
    {"image_newline", DI_PART_VISION, BF16, HIDDEN, NONE, ALWAYS},
};
static const struct entry embedding[] = {{"embed.weight", DI_PART_EMBED, BF16, VOCAB, HIDDEN, ALWAYS}};
static const struct entry top[] = {
    {"head.weight", DI_PART_HEAD, BF16, VOCAB, HIDDEN, ALWAYS},
    {"norm.weight", DI_PART_NORM, BF16, HIDDEN, NONE, ALWAYS},
};
static const struct entry layer[] = {
    {"attn_norm.weight", DI_PART_LAYER_NORMS, BF16, HIDDEN, NONE, ALWAYS},
    {"ffn_norm.weight", DI_PART_LAYER_NORMS, BF16, HIDDEN, NONE, ALWAYS},
    {"attn.wq_a", DI_PART_ATTENTION, F8, Q_RANK, HIDDEN, ALWAYS},
    {"attn.q_norm.weight", DI_PART_ATTENTION, BF16, Q_RANK, NONE, ALWAYS},
    {"attn.wq_b", DI_PART_ATTENTION, F8, Q_ROWS, Q_RANK, ALWAYS},
    {"attn.wkv", DI_PART_ATTENTION, F8, HEAD_DIM, HIDDEN, ALWAYS},
    {"attn.kv_norm.weight", DI_PART_ATTENTION, BF16, HEAD_DIM, NONE, ALWAYS},
    {"attn.wo_a", DI_PART_ATTENTION, F8, O_ROWS, O_COLS, ALWAYS},
    {"attn.wo_b", DI_PART_ATTENTION, F8, HIDDEN, O_ROWS, ALWAYS},
    {"attn.attn_sink", DI_PART_ATTENTION, F32, HEADS, NONE, ALWAYS},
    {"attn.compressor.wkv.weight", DI_PART_COMPRESSOR, BF16, HEAD_DIM, HIDDEN, KV_SOURCE},
    {"attn.compressor.wgate.weight", DI_PART_COMPRESSOR, BF16, HEAD_DIM, HIDDEN, RATIO_2},
    {"attn.compressor.norm.weight", DI_PART_COMPRESSOR, BF16, HEAD_DIM, NONE, KV_SOURCE},
    {"attn.indexer.wk.weight", DI_PART_INDEXER_KEY, BF16, INDEX_DIM, HEAD_DIM, KV_SOURCE},
    {"attn.indexer.k_norm.weight", DI_PART_INDEXER_KEY, BF16, INDEX_DIM, NONE, KV_SOURCE},
    {"attn.indexer.wq_b", DI_PART_INDEXER_QUERY, F8, INDEX_ROWS, Q_RANK, INDEX_SOURCE},
    {"attn.indexer.weights_proj.weight", DI_PART_INDEXER_QUERY, BF16, INDEX_HEADS, HIDDEN, INDEX_SOURCE},
    {"hc_attn_fn", DI_PART_MHC, F32, MIX, MIX_COLS, ALWAYS},
    {"hc_attn_base", DI_PART_MHC, F32, MIX, NONE, ALWAYS},
    {"hc_attn_scale", DI_PART_MHC, F32, THREE, NONE, ALWAYS},
    {"hc_ffn_fn", DI_PART_MHC, F32, MIX, MIX_COLS, ALWAYS},
    {"hc_ffn_base", DI_PART_MHC, F32, MIX, NONE, ALWAYS},
    {"hc_ffn_scale", DI_PART_MHC, F32, THREE, NONE, ALWAYS},
    {"ffn.gate.weight", DI_PART_ROUTER, BF16, EXPERTS, HIDDEN, ALWAYS},
    {"ffn.gate.bias", DI_PART_ROUTER, F32, EXPERTS, NONE, ALWAYS},
    {"ffn.gate.bias_vl", DI_PART_ROUTER, F32, EXPERTS, NONE, ALWAYS},
    {"ffn.shared_experts.w1", DI_PART_SHARED_EXPERT, F8, EXPERT, HIDDEN, ALWAYS},
    {"ffn.shared_experts.w2", DI_PART_SHARED_EXPERT, F8, HIDDEN, EXPERT, ALWAYS},
    {"ffn.shared_experts.w3", DI_PART_SHARED_EXPERT, F8, EXPERT, HIDDEN, ALWAYS},
    {"main_proj", DI_PART_DRAFT, F8, HIDDEN, TAPS, FIRST_STAGE},
    {"main_norm.weight", DI_PART_DRAFT, BF16, HIDDEN, NONE, FIRST_STAGE},
    {"norm.weight", DI_PART_DRAFT, BF16, HIDDEN, NONE, LAST_STAGE},
    {"markov_head.embed.weight", DI_PART_DRAFT, BF16, VOCAB, RANK, LAST_STAGE},
    {"markov_head.head.weight", DI_PART_DRAFT, BF16, VOCAB, RANK, LAST_STAGE},
    {"confidence_head.proj.weight", DI_PART_DRAFT, BF16, ONE, CONFIDENCE, LAST_STAGE},
};
static const struct entry expert[] = {
    {"w1", DI_PART_ROUTED_EXPERTS, F4, EXPERT, HIDDEN, ALWAYS},
    {"w2", DI_PART_ROUTED_EXPERTS, F4, HIDDEN, EXPERT, ALWAYS},
    {"w3", DI_PART_ROUTED_EXPERTS, F4, EXPERT, HIDDEN, ALWAYS},
};
static const struct entry engram[] = {
    {"engram.embed", DI_PART_ENGRAM_TABLE, F8_ROW, TABLE_ROWS, TABLE_COLS, ALWAYS},
    {"engram.wkv", DI_PART_ENGRAM_PROJ, F8, ENGRAM_ROWS, ENGRAM_COLS, ALWAYS},
    {"engram.q_weight", DI_PART_ENGRAM_PROJ, BF16, STREAMS, HIDDEN, ALWAYS},
    {"engram.k_weight", DI_PART_ENGRAM_PROJ, BF16, STREAMS, HIDDEN, ALWAYS},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

struct emitter {
    const struct di_config *c;
    di_inventory_fn fn;
    void *ctx;
    int64_t dim[DIM_COUNT];
    bool on[LAST_STAGE + 1]; /* which `when` hold in the present layer */
    bool draft;
    int shard;
};

static di_status emit_one(struct emitter *e, const struct entry *t, const char *prefix, const char *suffix, enum di_dtype dtype, int64_t n,
                          int64_t k)
{
    char name[128]; /* the longest: "layers.255.ffn.experts.4095.w1.weight" */
    snprintf(name, sizeof name, "%s%s%s", prefix, t->name, suffix);
    struct di_inventory_item item = {name, e->draft ? DI_PART_DRAFT : t->part, dtype, t->k == NONE ? 1 : 2, {n, k}, e->shard};
    return e->fn(e->ctx, &item);
}

static di_status emit_entry(struct emitter *e, const struct entry *t, const char *prefix)
{
    int64_t n = e->dim[t->n], k = t->k == NONE ? 0 : e->dim[t->k];
    if (t->encoding == BF16 || t->encoding == F32)
        return emit_one(e, t, prefix, "", t->encoding == F32 ? DI_DT_F32 : DI_DT_BF16, n, k);
    bool packed = t->encoding == F4;
    di_status status = emit_one(e, t, prefix, ".weight", packed ? DI_DT_I8 : DI_DT_F8_E4M3, n, packed ? k / 2 : k);
    if (status != DI_OK)
        return status;
    return emit_one(e, t, prefix, ".scale", DI_DT_F8_E8M0, t->encoding == F8 ? n / 32 : n, k / 32);
}

static di_status emit_all(struct emitter *e, const struct entry *list, size_t count, const char *prefix)
{
    for (size_t i = 0; i < count; i++) {
        di_status status = e->on[list[i].when] ? emit_entry(e, &list[i], prefix) : DI_OK;
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* Layer l counts on through the draft stages. */
static di_status emit_layer(struct emitter *e, int l)
{
    const struct di_config *c = e->c;
    char prefix[80];
    int stage = l - c->num_hidden_layers;
    e->draft = stage >= 0;
    e->on[KV_SOURCE] = !e->draft && c->layer_is_kv_source[l];
    e->on[RATIO_2] = e->on[KV_SOURCE] && c->compress_ratios[l] == 2;
    e->on[INDEX_SOURCE] = !e->draft && c->layer_is_index_source[l];
    e->on[FIRST_STAGE] = stage == 0;
    e->on[LAST_STAGE] = e->draft && stage == c->num_nextn_predict_layers - 1;
    e->dim[EXPERTS] = e->draft ? c->dspark_n_routed_experts : c->n_routed_experts;
    snprintf(prefix, sizeof prefix, e->draft ? "mtp.%d." : "layers.%d.", e->draft ? stage : l);
    di_status status = emit_all(e, layer, COUNT(layer), prefix);
    for (int x = 0; status == DI_OK && x < e->dim[EXPERTS]; x++) {
        snprintf(prefix, sizeof prefix, e->draft ? "mtp.%d.ffn.experts.%d." : "layers.%d.ffn.experts.%d.", e->draft ? stage : l, x);
        status = emit_all(e, expert, COUNT(expert), prefix);
    }
    e->draft = false;
    return status;
}

static di_status emit_vision(struct emitter *e)
{
    di_status status = emit_all(e, vision_top, COUNT(vision_top), "");
    for (int i = 0; status == DI_OK && i < e->c->vision.num_hidden_layers; i++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "vision.blocks.%d.", i);
        status = emit_all(e, vision_block, COUNT(vision_block), prefix);
    }
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
    struct emitter e = {.c = c, .fn = fn, .ctx = ctx, .on = {[ALWAYS] = true}, .shard = 1};
    di_status status = DI_OK;
    resolve_dims(&e);
    if (c->has_vision)
        TRY(emit_vision(&e));
    e.shard = 2;
    TRY(emit_all(&e, embedding, COUNT(embedding), ""));
    if (c->has_vision)
        TRY(emit_all(&e, delimiters, COUNT(delimiters), ""));
    for (int l = 0; l < c->num_hidden_layers; l++) {
        e.shard++;
        TRY(emit_layer(&e, l));
    }
    e.shard++;
    TRY(emit_all(&e, top, COUNT(top), ""));
    for (int i = 0; i < c->num_nextn_predict_layers; i++) {
        e.shard++;
        TRY(emit_layer(&e, c->num_hidden_layers + i));
    }
    for (int t = 0; t < c->n_engram; t++) {
        char prefix[40];
        e.shard++;
        e.dim[TABLE_ROWS] = c->engram_num_embeddings[t];
        snprintf(prefix, sizeof prefix, "layers.%d.", c->engram_layer_ids[t]);
        TRY(emit_all(&e, engram, COUNT(engram), prefix));
    }
out:
    return status;
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
