/* Activation buffers of a step, private to src/model. */
#ifndef DI_MODEL_FORWARD_H
#define DI_MODEL_FORWARD_H

#include "model/model.h"

struct di_buffers {
    int32_t *ids, *pos, *chunk, *floor, *closed2, *closed1, *pos1, *pos2; /* closed: rows whose group is written; pos: its first position */
    struct di_chunk *tail_chunks; /* bounded replay: chunks, first rows and logit rows once the rows before the tails are dropped */
    int32_t *kept, *place, *logit_rows;
    uint8_t *image;
    void *x, *n, *nq, *y; /* streams; normalised input; its Q8 values; output of a sub-layer */
    float *pre_attn, *pre_ffn, *post, *comb;
    void *qr, *q, *o, *a, *kv;
    uint8_t *window; /* packed window rows of the step, rows of layout.window_row_bytes */
    float *comp_kv, *comp_gate;
    void *latent, *key, *iq, *iw;
    int32_t *sel, *sel_n, *cand, *cand_n, *experts;
    float *expert_weights;
    int64_t *engram_rows; /* [n_engram][m][columns] */
    void *e, *ekv;        /* ekv also takes the streams of the kept rows */
    float *cos_main, *sin_main, *cos_comp, *sin_comp, *cos_one, *sin_one, *cos_pair, *sin_pair;
};
size_t di_forward_layout(const struct di_config *c, size_t act, int max_rows, uint8_t *base, struct di_buffers *b);

#endif
