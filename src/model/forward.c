/* The forward pass (spec/model.md §5.1), the only description of the network. Each site reads like the specification: mix, collapse, the
 * sub-layer, expand. Buffers live in one region that is laid out once for max_rows. */
#include "model/model.h"

#include <math.h>

/* ---------------------------------------------------------------- buffers */

struct buffers {
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

static size_t carve(uint8_t *base, size_t *at, size_t bytes, void **out)
{
    *out = base ? base + *at : NULL;
    *at += (bytes + 63) & ~(size_t)63;
    return *at;
}

/* Lay out the buffers behind `base` (NULL: only count). One line an array: name, values a row, bytes a value. */
static size_t lay_out(const struct di_config *c, size_t act, int max_rows, uint8_t *base, struct buffers *b)
{
    size_t m = (size_t)max_rows, at = 0, d = (size_t)c->hidden_size, s = (size_t)c->hc_mult, hd = (size_t)c->head_dim;
    size_t half = (size_t)c->qk_rope_head_dim / 2, ngrams = c->n_engram ? (size_t)c->engram_max_ngram_size - 1 : 0;
    size_t cols = ngrams * (size_t)c->engram_n_heads;
    const struct {
        void *field; /* address of a pointer */
        size_t values, bytes;
    } arrays[] = {
        {&b->ids, 1, 4},
        {&b->pos, 1, 4},
        {&b->chunk, 1, 4},
        {&b->floor, 1, 4},
        {&b->closed2, 1, 4},
        {&b->closed1, 1, 4},
        {&b->pos1, 1, 4},
        {&b->pos2, 1, 4},
        {&b->tail_chunks, 1, sizeof(struct di_chunk)},
        {&b->kept, 1, 4},
        {&b->place, 1, 4},
        {&b->logit_rows, 1, 4},
        {&b->image, 1, 1},
        {&b->x, s * d, act},
        {&b->n, d, act},
        {&b->nq, d, act},
        {&b->y, d, act},
        {&b->pre_attn, s, 4},
        {&b->pre_ffn, s, 4},
        {&b->post, s, 4},
        {&b->comb, s * s, 4},
        {&b->qr, (size_t)c->q_lora_rank, act},
        {&b->q, (size_t)c->num_attention_heads * hd, act},
        {&b->o, (size_t)c->num_attention_heads * hd, act},
        {&b->a, (size_t)(c->o_groups * c->o_lora_rank), act},
        {&b->kv, hd, act},
        {&b->window, 1, hd * 4 + 64},
        {&b->comp_kv, hd, 4},
        {&b->comp_gate, hd, 4},
        {&b->latent, hd, act},
        {&b->key, (size_t)c->index_head_dim, act},
        {&b->iq, (size_t)(c->index_n_heads * c->index_head_dim), act},
        {&b->iw, (size_t)c->index_n_heads, act},
        {&b->sel, (size_t)c->index_topk, 4},
        {&b->sel_n, 1, 4},
        {&b->cand, (size_t)c->candidate_topk_blocks, 4},
        {&b->cand_n, 1, 4},
        {&b->experts, (size_t)c->num_experts_per_tok, 4},
        {&b->expert_weights, (size_t)c->num_experts_per_tok, 4},
        {&b->engram_rows, (size_t)c->n_engram * cols, 8},
        {&b->e, cols * (size_t)c->engram_head_dim, act},
        {&b->ekv, (s + 1) * d, act},
        {&b->cos_main, half, 4},
        {&b->sin_main, half, 4},
        {&b->cos_comp, half, 4},
        {&b->sin_comp, half, 4},
        {&b->cos_one, half, 4},
        {&b->sin_one, half, 4},
        {&b->cos_pair, half, 4},
        {&b->sin_pair, half, 4},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *p;
        carve(base, &at, m * arrays[i].values * arrays[i].bytes, &p);
        memcpy(arrays[i].field, &p, sizeof p);
    }
    return at;
}

size_t di_forward_bytes(const struct di_config *c, size_t act_bytes, int max_rows)
{
    struct buffers ignored;
    return lay_out(c, act_bytes, max_rows, NULL, &ignored);
}

/* ---------------------------------------------------------------- one step */

struct ctx {
    struct di_model *m;
    const struct di_config *c;
    struct di_backend *be;
    const struct di_ops *ops;
    const struct di_step *step;
    struct buffers b;
    struct di_rows rows;
    int n_closed1, n_closed2; /* groups that this step closes and writes at ratio 1 and 2 */
    int tail_layer;           /* where bounded replay leaves the rows before the tails behind; -1: none does in this step */
    const int32_t *kept;      /* behind that layer: the step's row that a row was, NULL = itself */
    const int32_t *logit_rows;
    float eps;
};

static void trace(struct ctx *x, const char *name, int layer, void *data, size_t row_bytes, const int32_t *counts)
{
    const struct di_trace *t = x->step->trace;
    if (t)
        t->at(t->ctx, &(struct di_trace_point){name, layer, x->rows.m, row_bytes, data, counts});
}

static void linear(struct ctx *x, int m, const struct di_weight *w, const void *in, void *out)
{
    x->ops->linear(x->be, &(struct di_op_linear){m, w, in, out, false});
}

static void quant8(struct ctx *x, int k, const void *in, void *out)
{
    x->ops->quant8(x->be, &(struct di_op_quant8){x->rows.m, k, in, out});
}

/* The input of a class R linear: quantised into `space`, or as it is. */
static const void *linear_input(struct ctx *x, int k, const void *in, void *space)
{
    if (!x->be->params.numerics.q_linear)
        return in;
    quant8(x, k, in, space);
    return space;
}

static void hc_mix(struct ctx *x, const float *fn, const float *base, const float *scale, float *pre)
{
    const struct di_config *c = x->c;
    x->ops->hc_mix(x->be, &(struct di_op_hc_mix){x->rows.m, c->hc_mult, c->hidden_size, c->hc_sinkhorn_iters, (float)c->hc_eps, x->eps,
                                                 x->b.x, fn, base, scale, pre, x->b.post, x->b.comb});
}

static void hc_norm(struct ctx *x, const float *pre, const uint8_t *w)
{
    x->ops->hc_norm(x->be, &(struct di_op_hc_norm){x->rows.m, x->c->hc_mult, x->c->hidden_size, x->eps, x->b.x, pre, w, x->b.n});
}

static void hc_expand(struct ctx *x)
{
    x->ops->hc_expand(x->be, &(struct di_op_hc_expand){x->rows.m, x->c->hc_mult, x->c->hidden_size, x->b.x, x->b.post, x->b.comb, x->b.y});
}

static void engram(struct ctx *x, const struct di_layer *w)
{
    const struct di_config *c = x->c;
    int cols = (c->engram_max_ngram_size - 1) * c->engram_n_heads, width = cols * c->engram_head_dim;
    const int64_t *idx = x->b.engram_rows + (size_t)w->engram_table * (size_t)x->rows.m * (size_t)cols;
    x->ops->engram_gather(
        x->be, &(struct di_op_engram_gather){x->rows.m, cols, c->engram_head_dim, idx, w->engram.table, w->engram.scale, x->b.e});
    linear(x, x->rows.m, &w->engram.wkv, linear_input(x, width, x->b.e, x->b.e), x->b.ekv);
    x->ops->engram_gate(
        x->be, &(struct di_op_engram_gate){x->rows.m, c->hc_mult, c->hidden_size, x->eps, x->b.x, x->b.ekv, w->engram.qk, x->b.image});
}

/* ---------------------------------------------------------------- bounded replay */

int di_tail_layer(const struct di_config *c)
{
    int l = c->n_kv_sources ? c->kv_source_layer_ids[c->n_kv_sources - 1] : -1;
    if (l < 0 || c->compress_ratios[l] != 1)
        return -1;
    for (int e = 0; e < c->n_engram; e++)
        if (c->engram_layer_ids[e] > l)
            return -1;
    return l;
}

static void row_angles(struct ctx *x)
{
    int half = x->c->qk_rope_head_dim / 2, m = x->rows.m;
    struct buffers *b = &x->b;
    x->ops->rope_angles(x->be, &(struct di_op_rope_angles){m, half, b->pos, x->m->rope_main, b->cos_main, b->sin_main});
    x->ops->rope_angles(x->be, &(struct di_op_rope_angles){m, half, b->pos, x->m->rope_compress, b->cos_comp, b->sin_comp});
}

/* The kept rows of *values, which trades places with *spare. */
static void gather_kept(struct ctx *x, int m, int width, void **values, void **spare)
{
    x->ops->gather(x->be, &(struct di_op_gather){m, width, x->b.kept, *values, *spare});
    void *kept = *spare;
    *spare = *values;
    *values = kept;
}

/* Spec §8.2, as DeepInfer defines it: behind the norm and the compressor of the last KV source nothing but the tails of the prompts is
 * needed, and every window begins at its tail, this layer's own too. What crosses: the streams, the normalised input, and what is known of
 * a row from its place; this site's mixing is computed behind it. With `mask` the rows before the tail go on, for nothing: the test oracle.
 * They see themselves, and no row that counts sees them. False if no row is left. */
static bool keep_tails(struct ctx *x)
{
    const struct di_config *c = x->c;
    struct buffers *b = &x->b;
    int n = 0, m = 0;
    for (int k = 0; k < x->rows.n_chunks; k++) {
        const struct di_chunk *from = &x->rows.chunks[k];
        const struct di_replay *r = &x->step->replay[k];
        int drop = r->mask || r->tail < from->pos0 ? 0 : r->tail - from->pos0;
        if (drop >= from->n)
            continue;
        b->tail_chunks[n] = (struct di_chunk){from->slot, m, from->n - drop, from->pos0 + drop};
        for (int row = from->row0 + drop; row < from->row0 + from->n; row++, m++) {
            int32_t tail = r->tail < b->pos[row] ? r->tail : b->pos[row];
            b->kept[m] = row;
            b->place[row] = m;
            b->pos[m] = b->pos[row];
            b->floor[m] = tail > b->floor[row] ? tail : b->floor[row];
            b->image[m] = b->image[row];
            b->chunk[m] = n;
        }
        n++;
    }
    bool dropped = m < x->rows.m;
    x->rows = (struct di_rows){m, n, b->tail_chunks, b->pos, b->chunk, b->floor};
    if (!dropped || m == 0)
        return m > 0;
    x->kept = b->kept;
    gather_kept(x, m, c->hc_mult * c->hidden_size, &b->x, &b->ekv);
    gather_kept(x, m, c->hidden_size, &b->n, &b->y);
    row_angles(x);
    for (int i = 0; i < x->step->n_logits; i++)
        b->logit_rows[i] = b->place[x->step->logit_rows[i]];
    x->logit_rows = b->logit_rows;
    return true;
}

/* ---------------------------------------------------------------- the sites */

/* Spec §5.6: the groups that this step closes, into the pages. Index keys come from the latent before its RoPE. */
static void compressor(struct ctx *x, const struct di_layer *w)
{
    const struct di_config *c = x->c;
    struct buffers *b = &x->b;
    int src = w->kv_source, ratio = w->ratio, half = c->qk_rope_head_dim / 2;
    int n = ratio == 2 ? x->n_closed2 : x->n_closed1;
    const int32_t *closed = ratio == 2 ? b->closed2 : b->closed1;
    const float *cos = ratio == 2 ? b->cos_pair : b->cos_one, *sin = ratio == 2 ? b->sin_pair : b->sin_one;
    const struct di_kv *kv = &x->step->kv;
    if (ratio == 2) {
        x->ops->linear(x->be, &(struct di_op_linear){x->rows.m, &w->compressor.wkv, b->n, b->comp_kv, true});
        x->ops->linear(x->be, &(struct di_op_linear){x->rows.m, &w->compressor.wgate, b->n, b->comp_gate, true});
    } else {
        linear(x, x->rows.m, &w->compressor.wkv, b->n, b->kv);
    }
    if (n > 0) {
        x->ops->compress(x->be, &(struct di_op_compress){n, closed, &x->rows, kv, src, c->head_dim, x->eps, b->kv, b->comp_kv, b->comp_gate,
                                                         w->compressor.norm, b->latent});
        linear(x, n, &w->indexer.wk, b->latent, b->key);
        x->ops->key_store(x->be, &(struct di_op_key_store){n, c->index_head_dim, half, closed, &x->rows, kv, src, x->eps, b->key,
                                                           w->indexer.k_norm, cos, sin});
        x->ops->comp_store(x->be, &(struct di_op_comp_store){n, c->head_dim, half, closed, &x->rows, kv, src, b->latent, cos, sin});
    }
    if (ratio == 2)
        x->ops->tail_commit(x->be, &(struct di_op_tail_commit){&x->rows, kv, src, c->head_dim, b->comp_kv, b->comp_gate});
}

/* Spec §5.7: the list of selected groups that this layer and those after it use. qr is quantised already. */
static void indexer(struct ctx *x, int l, const void *qr)
{
    const struct di_config *c = x->c;
    const struct di_layer *w = &x->m->layers[l];
    struct buffers *b = &x->b;
    int hi = c->index_n_heads, di = c->index_head_dim;
    const struct di_trace *t = x->step->trace;
    linear(x, x->rows.m, &w->indexer.wq_b, qr, b->iq);
    x->ops->index_query(x->be, &(struct di_op_index_query){x->rows.m, hi, di, c->qk_rope_head_dim / 2, b->iq, b->cos_comp, b->sin_comp});
    linear(x, x->rows.m, &w->indexer.weights_proj, b->n, b->iw);
    float factor = (float)(1.0 / sqrt((double)di) / sqrt((double)hi));
    x->ops->scale(x->be, &(struct di_op_scale){(int64_t)x->rows.m * hi, factor, b->iw});
    x->ops->index_select(x->be,
                         &(struct di_op_index_select){x->rows.m, hi, di, c->index_topk, w->kv_source, &x->rows, &x->step->kv, b->iq, b->iw,
                                                      b->sel, b->sel_n, w->candidates, c->candidate_topk_blocks, c->candidate_block_size,
                                                      b->cand, b->cand_n, t ? t->scores : NULL, t ? t->scores_ld : 0});
    trace(x, "selected", l, b->sel, (size_t)c->index_topk * 4, b->sel_n);
    if (w->candidates == DI_CAND_PRODUCE)
        trace(x, "candidates", l, b->cand, (size_t)c->candidate_topk_blocks * 4, b->cand_n);
    if (t && t->scores)
        trace(x, "scores", l, t->scores, (size_t)t->scores_ld * 4, NULL);
}

/* Spec §5.3: n -> y. */
static void attention(struct ctx *x, int l)
{
    const struct di_config *c = x->c;
    const struct di_layer *w = &x->m->layers[l];
    struct buffers *b = &x->b;
    int m = x->rows.m, heads = c->num_attention_heads, d = c->head_dim, half = c->qk_rope_head_dim / 2;
    bool compress = w->rope == DI_ROPE_COMPRESS;
    const float *cos = compress ? b->cos_comp : b->cos_main, *sin = compress ? b->sin_comp : b->sin_main;
    const void *nq = linear_input(x, c->hidden_size, b->n, b->nq);
    linear(x, m, &w->wq_a, nq, b->qr);
    linear(x, m, &w->wkv, nq, b->kv);
    x->ops->window_store(x->be, &(struct di_op_window_store){m, d, half, x->eps, b->kv, w->kv_norm, cos, sin, b->window});
    trace(x, "window", l, b->window, x->be->layout.window_row_bytes, NULL);
    x->ops->rmsnorm(x->be, &(struct di_op_rmsnorm){m, c->q_lora_rank, x->eps, b->qr, w->q_norm, b->qr});
    const void *qr = linear_input(x, c->q_lora_rank, b->qr, b->qr);
    linear(x, m, &w->wq_b, qr, b->q);
    x->ops->rope(x->be, &(struct di_op_rope){m, heads, d, half, false, b->q, cos, sin});
    if (w->is_index_source)
        indexer(x, l, qr);
    x->ops->attention(x->be, &(struct di_op_attention){m, heads, d, c->sliding_window, w->ring, w->kv_source,
                                                       (float)(1.0 / sqrt((double)d)), &x->rows, &x->step->kv, b->window, b->sel, b->sel_n,
                                                       c->index_topk, b->q, w->attn_sink, b->o});
    x->ops->window_commit(x->be, &(struct di_op_window_commit){&x->rows, &x->step->kv, w->ring, b->window});
    x->ops->rope(x->be, &(struct di_op_rope){m, heads, d, half, true, b->o, cos, sin});
    if (x->be->params.numerics.q_wo_a)
        quant8(x, heads * d, b->o, b->o);
    linear(x, m, &w->wo_a, b->o, b->a);
    linear(x, m, &w->wo_b, linear_input(x, c->o_groups * c->o_lora_rank, b->a, b->a), b->y);
}

/* Spec §5.8: n -> y. */
static void moe(struct ctx *x, int l)
{
    const struct di_config *c = x->c;
    const struct di_layer *w = &x->m->layers[l];
    struct buffers *b = &x->b;
    int m = x->rows.m, k = w->k;
    x->ops->router(x->be, &(struct di_op_router){m, c->hidden_size, w->n_experts, k, (float)c->routed_scaling_factor, b->n, &w->gate,
                                                 w->gate_bias, w->gate_bias_vl, b->image, b->experts, b->expert_weights});
    trace(x, "experts", l, b->experts, (size_t)k * 4, NULL);
    trace(x, "expert_weights", l, b->expert_weights, (size_t)k * 4, NULL);
    x->ops->moe(x->be, &(struct di_op_moe){m, c->hidden_size, c->moe_intermediate_size, k, (float)c->swiglu_limit,
                                           linear_input(x, c->hidden_size, b->n, b->nq), b->experts, b->expert_weights, w->experts,
                                           &w->shared, b->y});
}

/* The DSpark taps (spec Appendix A) keep the row numbers of the step. */
static void features(struct ctx *x, int l)
{
    const struct di_config *c = x->c;
    int width = c->n_dspark_targets * c->hidden_size;
    size_t act = x->ops->act_bytes, streams = (size_t)(c->hc_mult * c->hidden_size) * act;
    for (int t = 0; x->step->features && t < c->n_dspark_targets; t++)
        for (int k = 0; c->dspark_target_layer_ids[t] == l && k < x->rows.n_chunks; k++) {
            const struct di_chunk *chunk = &x->rows.chunks[k];
            int32_t row = x->kept ? x->kept[chunk->row0] : chunk->row0;
            size_t at = ((size_t)row * (size_t)width + (size_t)(t * c->hidden_size)) * act;
            x->ops->hc_mean(x->be, &(struct di_op_hc_mean){chunk->n, c->hc_mult, c->hidden_size,
                                                           (const char *)x->b.x + (size_t)chunk->row0 * streams,
                                                           (char *)x->step->features + at, width});
        }
}

/* Lagged hyper-connections: a site collapses with the `pre` of the site before it and hands its own to the next (spec §5.1). */
static void layer(struct ctx *x, int l)
{
    const struct di_layer *w = &x->m->layers[l];
    struct buffers *b = &x->b;
    size_t streams = (size_t)(x->c->hc_mult * x->c->hidden_size) * x->ops->act_bytes;
    trace(x, "layer_in", l, b->x, streams, NULL);
    if (w->engram_table >= 0)
        engram(x, w);
    features(x, l);
    hc_norm(x, b->pre_ffn, w->attn_norm);
    if (w->is_kv_source)
        compressor(x, w);
    if (l == x->tail_layer && !keep_tails(x))
        return;
    hc_mix(x, w->hc_attn.fn, w->hc_attn.base, w->hc_attn.scale, b->pre_attn);
    attention(x, l);
    hc_expand(x);
    trace(x, "streams_attn", l, b->x, streams, NULL);
    hc_mix(x, w->hc_ffn.fn, w->hc_ffn.base, w->hc_ffn.scale, b->pre_ffn);
    hc_norm(x, b->pre_attn, w->ffn_norm);
    moe(x, l);
    hc_expand(x);
    trace(x, "streams", l, b->x, streams, NULL);
    trace(x, "pre", l, b->pre_ffn, (size_t)x->c->hc_mult * sizeof(float), NULL);
}

static void head(struct ctx *x)
{
    if (x->step->n_logits == 0)
        return;
    hc_norm(x, x->b.pre_ffn, x->m->norm);
    x->ops->gather(x->be, &(struct di_op_gather){x->step->n_logits, x->c->hidden_size, x->logit_rows, x->b.n, x->b.y});
    x->ops->linear(x->be, &(struct di_op_linear){x->step->n_logits, &x->m->head, x->b.y, x->step->logits, true});
}

/* ---------------------------------------------------------------- rows */

/* Table rows of every engram column of a row (spec §5.9). An image token reads nothing, and blocks the look-back of those behind it. */
static void engram_rows(struct ctx *x, int i, const int32_t *tokens, int32_t pos)
{
    const struct di_config *c = x->c;
    int32_t window[DI_MAX_NGRAM], pad = x->m->token_map[c->engram_pad_token_id];
    for (int back = 0; back < c->engram_max_ngram_size; back++)
        window[back] = pos < back || tokens[pos - back] == c->image_token_id ? -1 : x->m->token_map[tokens[pos - back]];
    size_t cols = (size_t)x->m->engram.columns;
    for (int e = 0; e < c->n_engram; e++) {
        int64_t *rows = x->b.engram_rows + ((size_t)e * (size_t)x->rows.m + (size_t)i) * cols;
        di_engram_rows(&x->m->engram, e, window, pad, rows);
        for (size_t k = 0; x->b.image[i] && k < cols; k++)
            rows[k] = -1;
    }
}

/* Does a chunk of the step have a tail, can this network have one, and is every row whose logits are wanted inside? */
static di_status find_tails(struct ctx *x, di_error *err)
{
    const struct di_step *s = x->step;
    for (int k = 0; s->replay && k < s->n_chunks; k++)
        if (s->replay[k].tail > 0)
            x->tail_layer = di_tail_layer(x->c);
        else if (s->replay[k].tail < 0)
            return di_fail(err, DI_ERR_INVALID, "step", "the tail of chunk %d begins at %d", k, s->replay[k].tail);
    for (int k = 0; s->replay && k < s->n_chunks; k++) {
        const struct di_chunk *c = &s->chunks[k];
        if (s->replay[k].tail > 0 && x->tail_layer < 0)
            return di_fail(err, DI_ERR_UNSUPPORTED, "step",
                           "bounded replay needs a decoder half: layers behind all KV sources and engrams");
        for (int i = 0; i < s->n_logits; i++)
            if (s->logit_rows[i] >= c->row0 && s->logit_rows[i] < c->row0 + c->n &&
                c->pos0 + (s->logit_rows[i] - c->row0) < s->replay[k].tail)
                return di_fail(err, DI_ERR_INVALID, "step", "row %d lies before the tail of bounded replay and has no logits",
                               s->logit_rows[i]);
    }
    return DI_OK;
}

static di_status lay_out_rows(struct ctx *x, di_error *err)
{
    const struct di_step *s = x->step;
    struct buffers *b = &x->b;
    int m = 0;
    for (int k = 0; k < s->n_chunks; k++) {
        const struct di_chunk *c = &s->chunks[k];
        if (c->row0 != m || c->n < 1 || c->pos0 < 0 || c->n > x->m->params.max_rows - m || c->pos0 > x->m->params.max_context - c->n)
            return di_fail(err, DI_ERR_INVALID, "step",
                           "chunk %d (%d rows at position %d) does not fit a step of %d rows and a context of %lld", k, c->n, c->pos0,
                           x->m->params.max_rows, (long long)x->m->params.max_context);
        for (int i = 0; i < c->n; i++) {
            int32_t id = s->tokens[k][c->pos0 + i];
            if (id < 0 || id >= x->c->vocab_size)
                return di_fail(err, DI_ERR_INVALID, "step", "token id %d at position %d is outside the vocabulary of %d", id, c->pos0 + i,
                               x->c->vocab_size);
        }
        m += c->n;
    }
    x->rows = (struct di_rows){m, s->n_chunks, s->chunks, b->pos, b->chunk, NULL};
    di_status status = find_tails(x, err);
    if (status != DI_OK)
        return status;
    for (int k = 0, i = 0; k < s->n_chunks; k++) {
        struct di_replay replay = s->replay ? s->replay[k] : (struct di_replay){0};
        for (int32_t p = s->chunks[k].pos0; p < s->chunks[k].pos0 + s->chunks[k].n; p++, i++) {
            b->ids[i] = s->tokens[k][p];
            b->pos[i] = p;
            b->chunk[i] = k;
            b->floor[i] = replay.floor;
            b->image[i] = b->ids[i] == x->c->image_token_id;
            if (p >= replay.write_from) {
                b->pos1[x->n_closed1] = p;
                b->closed1[x->n_closed1++] = i;
            }
            if (p % 2 == 1 && p >= replay.write_from) {
                b->pos2[x->n_closed2] = p - 1;
                b->closed2[x->n_closed2++] = i;
            }
            if (x->c->n_engram)
                engram_rows(x, i, s->tokens[k], p);
        }
    }
    if (s->replay)
        x->rows.window_floor = b->floor;
    return DI_OK;
}

static void group_angles(struct ctx *x)
{
    int half = x->c->qk_rope_head_dim / 2;
    struct buffers *b = &x->b;
    x->ops->rope_angles(x->be, &(struct di_op_rope_angles){x->n_closed1, half, b->pos1, x->m->rope_compress, b->cos_one, b->sin_one});
    x->ops->rope_angles(x->be, &(struct di_op_rope_angles){x->n_closed2, half, b->pos2, x->m->rope_compress, b->cos_pair, b->sin_pair});
}

di_status di_model_step(struct di_model *m, const struct di_step *step, di_error *err)
{
    struct ctx x = {.m = m, .c = m->c, .be = m->be, .ops = m->be->ops, .step = step, .eps = (float)m->c->rms_norm_eps};
    x.tail_layer = -1;
    x.logit_rows = step->logit_rows;
    lay_out(m->c, x.ops->act_bytes, m->params.max_rows, m->activations, &x.b);
    di_status status = lay_out_rows(&x, err);
    if (status != DI_OK || x.rows.m == 0)
        return status;
    row_angles(&x);
    group_angles(&x);
    x.ops->embed(x.be, &(struct di_op_embed){x.rows.m, m->c->hc_mult, m->c->hidden_size, x.b.ids, m->embed, x.b.x, x.b.pre_ffn});
    for (int l = 0; l < m->c->num_hidden_layers && x.rows.m > 0; l++)
        layer(&x, l);
    head(&x);
    return di_checkpoint_check(&m->ck, err); /* rows of tables that are read in place: those that were loaded? */
}
