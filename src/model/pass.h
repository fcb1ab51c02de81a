/* One pass through the network, private to rows.c (the integers of a step), sites.c (the sub-layers), backbone.c (the layers, taps and head
 * that they make up) and draft.c (the draft, of the same sub-layers). Each file reads like the specification and uses nothing but the op table. */
#ifndef DI_MODEL_PASS_H
#define DI_MODEL_PASS_H

#include "model/model.h"

/* ---------------------------------------------------------------- integers of a step: rows.c */

/* Rows that go through layers together: all of a step, or what bounded replay leaves of them. */
struct di_row_set {
    struct di_rows rows;
    const int32_t DI_DEVICE *kept;       /* [m] the step's row that a row was, NULL = itself */
    const int32_t DI_DEVICE *logit_rows; /* [n_logits] of these rows */
    const uint8_t DI_DEVICE *kind;       /* [m] enum di_row_kind */
};

/* The groups of one ratio that a step closes and writes. */
struct di_closed_groups {
    int n;
    const int32_t DI_DEVICE *rows, *pos; /* [n] the row that closes it, and the position of its first token */
};

/* Everything that is known of a step before it runs. The arrays lie in one block on the device. */
struct di_step_rows {
    struct di_row_set all, tails;         /* tails: with a tail_layer */
    int tail_layer;                       /* where bounded replay leaves the rows before the tails behind; -1: none does in this step */
    struct di_closed_groups closed[2];    /* by ratio - 1 */
    const int32_t DI_DEVICE *ids;         /* [m] */
    const int64_t DI_DEVICE *engram_rows; /* [n_engram][m][columns] */
};

/* Check a step, write its integers into the model's staging block and send them to `block`, which has room for max_rows, in one copy. Waits
 * until those of the step before have left. Errors as of di_model_step. */
di_status di_step_rows_send(struct di_model *m, const struct di_step *step, void DI_DEVICE *block, struct di_step_rows *out, di_error *err);

/* ---------------------------------------------------------------- the pass */

struct di_pass_buffers {
    void DI_DEVICE *x, *n, *nq, *y; /* streams; normalised input; its Q8 values; output of a sub-layer */
    float DI_DEVICE *pre_attn, *pre_ffn, *post, *comb;
    void DI_DEVICE *qr, *q, *o, *a, *kv;
    uint8_t DI_DEVICE *window; /* packed window rows of the step, rows of layout.window_row_bytes */
    float DI_DEVICE *comp_kv, *comp_gate;
    void DI_DEVICE *latent, *key, *iq, *iw;
    int32_t DI_DEVICE *sel, *sel_n, *cand, *cand_n, *experts;
    float DI_DEVICE *expert_weights;
    void DI_DEVICE *e, *ekv; /* ekv also takes the streams of the kept rows, and what the draft reads of them */
    float DI_DEVICE *cos_main, *sin_main, *cos_comp, *sin_comp; /* of rows */
    struct {
        float DI_DEVICE *cos, *sin;
    } group[2];               /* of closed groups, by ratio - 1 */
    void DI_DEVICE *features; /* with drafts: the taps, by rows of the step */
    struct {
        void DI_DEVICE *h, *n, *e; /* what the heads read; embedded tokens */
        float DI_DEVICE *logits, *z;
        int32_t DI_DEVICE *ids;
    } draft; /* of DI_DRAFT_ROWS rows */
};

/* Rows of blocks whose heads are computed together. */
#define DI_DRAFT_ROWS 32

/* The buffers in the model's activations; the integers of a step come first, at *row_block. */
void di_pass_carve(struct di_model *m, struct di_pass_buffers *b, void DI_DEVICE **row_block);

struct di_pass {
    struct di_model *m;
    const struct di_config *c;
    struct di_backend *be;
    const struct di_ops *ops;
    const struct di_step *step;
    struct di_pass_buffers b;
    struct di_step_rows rows;
    const struct di_row_set *set; /* the rows that are computed now */
    float eps;
};

/* Let a trace look at [set rows, row_bytes]; counts: entries used of each row of a list, or NULL. */
void di_pass_trace(struct di_pass *x, const char *name, int layer, void DI_DEVICE *data, size_t row_bytes, const int32_t DI_DEVICE *counts);

/* ---------------------------------------------------------------- layers: backbone.c */

/* cos and sin of the rows that are computed now. */
void di_pass_row_angles(struct di_pass *x);
/* A layer behind the norm of its input: both sites. */
void di_pass_layer(struct di_pass *x, const struct di_layer *w);

/* ---------------------------------------------------------------- draft: draft.c */

/* The context rows of all stages (spec/dspark.md §2.3), from the taps of this step to the rings. */
void di_pass_draft_context(struct di_pass *x);

/* ---------------------------------------------------------------- sites: sites.c */

void di_site_linear(struct di_pass *x, int m, const struct di_weight *w, const void DI_DEVICE *in, void DI_DEVICE *out);
/* The input of a class R linear: quantised into `space`, or as it is. */
const void DI_DEVICE *di_site_linear_input(struct di_pass *x, int k, const void DI_DEVICE *in, void DI_DEVICE *space);
/* kv -> window: the window rows of this layer. */
void di_site_window(struct di_pass *x, const struct di_layer *w);

/* Hyper-connections (spec §5.2): the three mixing results of a site; n = norm of the streams collapsed with `pre`; streams += y. */
void di_site_hc_mix(struct di_pass *x, const float DI_DEVICE *fn, const float DI_DEVICE *base, const float DI_DEVICE *scale,
                    float DI_DEVICE *pre);
void di_site_hc_norm(struct di_pass *x, const float DI_DEVICE *pre, const uint8_t DI_DEVICE *w);
void di_site_hc_expand(struct di_pass *x);
void di_site_engram(struct di_pass *x, const struct di_layer *w);     /* spec §5.9, streams -> streams */
void di_site_compressor(struct di_pass *x, const struct di_layer *w); /* spec §5.6, n -> the pages: the groups that this step closes */
void di_site_attention(struct di_pass *x,
                       const struct di_layer *w); /* spec §5.3, n -> y; its indexer (§5.7) leaves the lists for the layers behind it */
void di_site_moe(struct di_pass *x, const struct di_layer *w); /* spec §5.8, n -> y */

#endif
