/* The tensors that a config implies (spec/model.md §3, spec/vision.md §12): the one list of them, draft and vision included. A checkpoint is
 * checked against it, sums and plans are made over it, and the model binds by its ids (model/bind.c says where each lives). */
#ifndef DI_CHECKPOINT_INVENTORY_H
#define DI_CHECKPOINT_INVENTORY_H

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"

/* Groups of tensors that are counted together. */
enum di_part {
    DI_PART_EMBED,
    DI_PART_HEAD,
    DI_PART_NORM,
    DI_PART_ATTENTION,
    DI_PART_COMPRESSOR,
    DI_PART_INDEXER_KEY,
    DI_PART_INDEXER_QUERY,
    DI_PART_ROUTER,
    DI_PART_SHARED_EXPERT,
    DI_PART_ROUTED_EXPERTS,
    DI_PART_MHC,
    DI_PART_LAYER_NORMS,
    DI_PART_ENGRAM_PROJ,
    DI_PART_ENGRAM_TABLE,
    DI_PART_DRAFT,
    DI_PART_VISION,
    DI_PART_COUNT
};
const char *di_part_name(enum di_part part);

enum di_encoding {
    DI_ENCODING_BF16,
    DI_ENCODING_F32,
    DI_ENCODING_F8,     /* e4m3, a scale (e8m0) for each 32 x 32 */
    DI_ENCODING_F8_ROW, /* e4m3, a scale for each 32 columns of a row */
    DI_ENCODING_F4      /* two e2m1 in a byte, scales as F8_ROW */
};

/* What a tensor is, in the order of the checkpoint. A matrix and its scales are one. Layers and stages of the draft have the same. */
enum di_tensor_id {
    /* vision */
    DI_TENSOR_PATCH,
    DI_TENSOR_PATCH_BIAS,
    DI_TENSOR_TOWER_NORM,
    DI_TENSOR_ALIGNER_W1,
    DI_TENSOR_ALIGNER_W1_BIAS,
    DI_TENSOR_ALIGNER_W2,
    DI_TENSOR_ALIGNER_W2_BIAS,
    /* each block of the vision tower */
    DI_TENSOR_BLOCK_NORM1,
    DI_TENSOR_BLOCK_NORM2,
    DI_TENSOR_BLOCK_WQKV,
    DI_TENSOR_BLOCK_WQKV_BIAS,
    DI_TENSOR_BLOCK_WO,
    DI_TENSOR_BLOCK_WO_BIAS,
    DI_TENSOR_BLOCK_W1,
    DI_TENSOR_BLOCK_W2,
    /* the model */
    DI_TENSOR_EMBED,
    DI_TENSOR_IMAGE_START,
    DI_TENSOR_IMAGE_END,
    DI_TENSOR_IMAGE_NEWLINE,
    /* each layer, each stage */
    DI_TENSOR_ATTN_NORM,
    DI_TENSOR_FFN_NORM,
    DI_TENSOR_WQ_A,
    DI_TENSOR_Q_NORM,
    DI_TENSOR_WQ_B,
    DI_TENSOR_WKV,
    DI_TENSOR_KV_NORM,
    DI_TENSOR_WO_A,
    DI_TENSOR_WO_B,
    DI_TENSOR_ATTN_SINK,
    DI_TENSOR_COMPRESSOR_WKV, /* KV sources */
    DI_TENSOR_COMPRESSOR_WGATE,
    DI_TENSOR_COMPRESSOR_NORM,
    DI_TENSOR_INDEXER_WK,
    DI_TENSOR_INDEXER_K_NORM,
    DI_TENSOR_INDEXER_WQ_B, /* index sources */
    DI_TENSOR_INDEXER_WEIGHTS,
    DI_TENSOR_HC_ATTN_FN,
    DI_TENSOR_HC_ATTN_BASE,
    DI_TENSOR_HC_ATTN_SCALE,
    DI_TENSOR_HC_FFN_FN,
    DI_TENSOR_HC_FFN_BASE,
    DI_TENSOR_HC_FFN_SCALE,
    DI_TENSOR_GATE,
    DI_TENSOR_GATE_BIAS,
    DI_TENSOR_GATE_BIAS_VL,
    DI_TENSOR_SHARED_W1,
    DI_TENSOR_SHARED_W2,
    DI_TENSOR_SHARED_W3,
    /* the first stage, the last one */
    DI_TENSOR_DRAFT_MAIN_PROJ,
    DI_TENSOR_DRAFT_MAIN_NORM,
    DI_TENSOR_DRAFT_NORM,
    DI_TENSOR_DRAFT_MARKOV_EMBED,
    DI_TENSOR_DRAFT_MARKOV_HEAD,
    DI_TENSOR_DRAFT_CONFIDENCE,
    /* each routed expert */
    DI_TENSOR_EXPERT_W1,
    DI_TENSOR_EXPERT_W2,
    DI_TENSOR_EXPERT_W3,
    /* the model */
    DI_TENSOR_HEAD,
    DI_TENSOR_NORM,
    /* each engram layer */
    DI_TENSOR_ENGRAM_TABLE,
    DI_TENSOR_ENGRAM_WKV,
    DI_TENSOR_ENGRAM_Q,
    DI_TENSOR_ENGRAM_K,
    DI_TENSOR_COUNT
};

struct di_inventory_item {
    enum di_tensor_id id;
    enum di_part part; /* DI_PART_DRAFT for all of a stage */
    enum di_encoding encoding;
    int layer;    /* stages count on behind the backbone; of the vision tower: the block; -1: the model's */
    int expert;   /* a routed one's, else -1 */
    int64_t n, k; /* rows and columns; a vector has n values and k = 0 */
    int shard;    /* 1-based, of the official layout */
    int n_stored; /* 1, or 2 with scales */
    struct di_inventory_tensor {
        const char *name; /* valid during the call */
        enum di_dtype dtype;
        int ndim;
        int64_t shape[DI_MAX_DIMS];
    } stored[2];
};
/* Calls `fn` for every tensor, in checkpoint order. Stops at the first non-OK return and passes it on. */
typedef di_status (*di_inventory_fn)(void *ctx, const struct di_inventory_item *item);
di_status di_inventory_each(const struct di_config *c, di_inventory_fn fn, void *ctx);
/* In the file, scales included. Config limits keep it below 2^63. */
uint64_t di_inventory_bytes(const struct di_inventory_item *item);

struct di_part_sum {
    uint64_t tensors, parameters, bytes; /* tensors: as stored. parameters: weights without scales (spec §2) */
};
struct di_part_sums {
    struct di_part_sum part[DI_PART_COUNT], all;
};
/* Sums over the inventory. Without `draft` or `vision` that part is zero. */
void di_part_sums(const struct di_config *c, bool draft, bool vision, struct di_part_sums *out);

#endif
