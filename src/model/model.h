/* The network: weights of a checkpoint bound to a back end, and the forward pass (spec/model.md §5), written once against the op table. */
#ifndef DI_MODEL_MODEL_H
#define DI_MODEL_MODEL_H

#include "backend/backend.h"
#include "base/plan.h"
#include "checkpoint/digest.h"
#include "checkpoint/engram_hash.h"

enum di_rope { DI_ROPE_MAIN, DI_ROPE_COMPRESS };

/* One layer: in what it differs from others (di_layer_shape), then its weights (bind.c). */
struct di_layer {
    int ring;                      /* its window ring; stages of the draft count on behind the backbone */
    int n_experts, k;              /* routed experts, and how many of them a row has */
    int ratio;                     /* positions of a compressed row that it sees: 1 or 2; 0: its window is all it sees */
    int kv_source;                 /* of these rows, -1 at ratio 0 */
    bool is_kv_source;             /* it makes them, with index keys */
    bool is_index_source;          /* it selects among them, for itself and the layers behind it */
    enum di_candidates candidates; /* of an index source */
    enum di_rope rope;             /* of its queries and windows */
    int engram_table;              /* -1: none */
    bool is_stage; /* of the draft: the rows of a block see each other and leave nothing in the ring, which has the context's */

    const uint8_t DI_DEVICE *attn_norm, *ffn_norm, *q_norm, *kv_norm; /* bf16 vectors */
    struct di_weight wq_a, wq_b, wkv, wo_a, wo_b;
    const float DI_DEVICE *attn_sink;
    struct {
        const float DI_DEVICE *fn, *base, *scale;
    } hc_attn, hc_ffn;
    struct di_weight gate;
    const float DI_DEVICE *gate_bias, *gate_bias_vl;
    struct di_expert *experts, shared; /* [n_routed_experts] */
    struct {
        struct di_weight wkv, wgate; /* wgate at ratio 2 only */
        const uint8_t DI_DEVICE *norm;
    } compressor; /* KV sources */
    struct {
        struct di_weight wk; /* KV sources */
        const uint8_t DI_DEVICE *k_norm;
        struct di_weight wq_b, weights_proj; /* index sources */
    } indexer;
    struct {
        const uint8_t DI_DEVICE *table, *scale;
        struct di_weight wkv;
        const float DI_DEVICE *qk; /* q_weight * k_weight, [streams, hidden] */
    } engram;
    struct {
        struct di_weight main_proj;
        const uint8_t DI_DEVICE *main_norm;                                /* both: of the first stage */
        const uint8_t DI_DEVICE *norm, *markov_embed, *markov_head, *proj; /* of the last; bf16, proj: the confidence head */
    } draft;
};

struct di_model_params {
    int max_rows;        /* rows of one step, and of the blocks that are drafted together */
    int64_t max_context; /* tokens of one request, at most max_position_embeddings */
    int threads;         /* 0 = all processors */
    const char *isa;     /* NULL = best */
    struct di_numerics numerics;
    bool drafts; /* load the draft (draft.h): steps leave its context in the rings. Refused by name if the checkpoint has no such draft */
    /* Creates what it computes on; NULL: di_backend_cpu_create. */
    di_status (*backend)(const struct di_backend_params *p, struct di_backend **out, di_error *err);
    const int32_t *token_map; /* engram token map [vocab_size] (src/text/token_map.h); copied. May be NULL if the config has no engram */
    /* Called during loading with bytes done and in all; may be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
};

struct di_model {
    struct di_checkpoint ck;
    const struct di_config *c; /* &ck.config */
    uint8_t digest[DI_DIGEST_BYTES];
    struct di_model_params params;
    struct di_backend *be;
    struct di_layer *layers; /* with drafts the stages behind the backbone's */
    const uint8_t DI_DEVICE *embed, *norm;
    struct di_weight head;
    void DI_DEVICE *weights; /* one region of all that is packed, copied or derived (bind.h) */
    size_t weight_bytes;
    const float DI_DEVICE *rope_main, *rope_compress; /* frequencies [qk_rope_head_dim / 2] */
    struct di_engram engram;
    int32_t *token_map;
    void DI_DEVICE *activations; /* one region, carved by backbone.c */
    void DI_DEVICE *head_rows;   /* in it: what the head reads */
    void *row_staging;           /* the integers of the latest step, and when the device has them */
    uint64_t row_fence;
    struct di_arena arena;
};

/* Append what a model will allocate, read in place and leave in its files, known before anything is loaded. */
di_status di_model_plan(const struct di_config *c, const struct di_model_params *params, di_memory_plan *plan, di_error *err);

/* Open, check, pack. The model keeps the checkpoint mapped. One thread at a time may use it. */
di_status di_model_open(const char *dir, const struct di_model_params *params, struct di_model **out, di_error *err);
void di_model_close(struct di_model *m);

/* A place in the forward pass at which a test looks at (or replaces) values. Act arrays are fp32 on the CPU. */
struct di_trace_point {
    const char
        *name; /* "layer_in", "streams_attn", "streams", "pre", "experts", "expert_weights", "window", "selected", "candidates", "scores" */
    int layer, rows;
    size_t row_bytes;
    void DI_DEVICE *data;
    const int32_t DI_DEVICE *counts; /* of lists: entries used in each row */
};
struct di_trace {
    void (*at)(void *ctx, const struct di_trace_point *p);
    void *ctx;
    float DI_DEVICE *scores; /* [max_rows, scores_ld] space for index scores, or NULL */
    int64_t scores_ld;
};

/* Replay (spec/model.md §8), {0}: ordinary rows. Rows that were computed before run again to rebuild what a cache does not hold: window
 * keys below `floor` are absent; groups that end before `write_from` are in the cache already and are not written again. Rows before `tail`
 * stop at di_tail_layer once their compressed rows and index keys are stored; the windows of that layer and those behind it begin at the
 * tail. */
struct di_replay {
    int32_t floor, write_from, tail;
    bool mask; /* tests: rows before the tail are computed all the same, the rows behind it give the same bits */
};
/* The layer at which the decoder half begins: the last KV source, of ratio 1, without an engram behind it. -1: this network has no such
 * half. */
int di_tail_layer(const struct di_config *c);

/* One step: rows of any number of requests. Request state (rings, pages) is addressed by slot; pages must cover the new positions. */
struct di_step {
    int n_chunks;
    const struct di_chunk *chunks;  /* row0 ascending without gaps; slot -1: rows of padding, whose tokens are not read */
    const int32_t *const *tokens;   /* [n_chunks] the request's ids by absolute position; read at pos0-3 .. pos0+n-1 */
    const struct di_replay *replay; /* [n_chunks], or NULL: nothing is replayed */
    struct di_kv kv;
    int n_logits;
    const int32_t *logit_rows; /* [n_logits] rows that want logits; none before the tail of its chunk */
    float DI_DEVICE *logits;   /* [n_logits, vocab_size]; of di_model_step alone */
    float DI_DEVICE *features; /* NULL, or act [m, n_dspark_targets * hidden_size]: the DSpark taps; rows before a tail are left alone */
    const struct di_trace *trace;
};
/* Computes a step: it is done on return. DI_ERR_IO when a file of the checkpoint has changed since it was opened: what was computed may be
 * wrong, and so it stays. DI_ERR_INVALID for ids outside the vocabulary, too many rows, or logits of a dropped row, DI_ERR_UNSUPPORTED for a tail where there is no
 * decoder half: nothing was changed then. */
di_status di_model_step(struct di_model *m, const struct di_step *step, di_error *err);
/* The same in parts, for a pipeline. A launch enqueues everything up to the head; the step and what it names stay as they are until it is
 * done. Errors are those that change nothing. */
di_status di_model_launch(struct di_model *m, const struct di_step *step, di_error *err);
/* Enqueues the logits [n, vocab_size] of rows logit_rows[first .. first + n) of the latest launch. */
void di_model_head(struct di_model *m, int first, int n, float DI_DEVICE *logits);
/* When all of it is done: DI_ERR_IO as above. */
di_status di_model_check(const struct di_model *m, di_error *err);
/* Wait until all that was launched is done, then ask that. */
di_status di_model_finish(struct di_model *m, di_error *err);

/* What of a layer's shape the config says: all fields before the weights. Backbone, then the stages of the draft. */
void di_layer_shape(const struct di_config *c, int l, struct di_layer *out);

/* RoPE frequencies in the roundings of spec §5.4; half = qk_rope_head_dim / 2. */
void di_rope_freq_main(const struct di_config *c, float *freq);
void di_rope_freq_compress(const struct di_config *c, float *freq);

/* Bytes of the integers of a step of max_rows rows, and of its activations with a copy of those; with the draft's. */
size_t di_step_rows_bytes(const struct di_config *c, int max_rows);
size_t di_forward_bytes(const struct di_backend *be, int max_rows, bool drafts);

#endif
