/* The sites of a layer, each written as the specification has it. */
#include "model/pass.h"

#include <math.h>

static int rows_of(const struct di_pass *x)
{
    return x->set->rows.m;
}

void di_site_linear(struct di_pass *x, int m, const struct di_weight *w, const void DI_DEVICE *in, void DI_DEVICE *out)
{
    x->ops->linear(x->be, &(struct di_op_linear){.m = m, .w = w, .x = in, .y = out});
}

static void linear_f32(struct di_pass *x, const struct di_weight *w, const void DI_DEVICE *in, float DI_DEVICE *out)
{
    x->ops->linear(x->be, &(struct di_op_linear){.m = rows_of(x), .w = w, .x = in, .y = out, .out_f32 = true});
}

static void quant8(struct di_pass *x, int k, const void DI_DEVICE *in, void DI_DEVICE *out)
{
    x->ops->quant8(x->be, &(struct di_op_quant8){rows_of(x), k, in, out});
}

const void DI_DEVICE *di_site_linear_input(struct di_pass *x, int k, const void DI_DEVICE *in, void DI_DEVICE *space)
{
    if (!x->be->params.numerics.q_linear)
        return in;
    quant8(x, k, in, space);
    return space;
}

/* ---------------------------------------------------------------- hyper-connections */

void di_site_hc_mix(struct di_pass *x, const float DI_DEVICE *fn, const float DI_DEVICE *base, const float DI_DEVICE *scale,
                    float DI_DEVICE *pre)
{
    x->ops->hc_mix(x->be, &(struct di_op_hc_mix){.m = rows_of(x),
                                                 .streams = x->c->hc_mult,
                                                 .d = x->c->hidden_size,
                                                 .iters = x->c->hc_sinkhorn_iters,
                                                 .eps = (float)x->c->hc_eps,
                                                 .norm_eps = x->eps,
                                                 .x = x->b.x,
                                                 .fn = fn,
                                                 .base = base,
                                                 .scale = scale,
                                                 .pre = pre,
                                                 .post = x->b.post,
                                                 .comb = x->b.comb});
}

void di_site_hc_norm(struct di_pass *x, const float DI_DEVICE *pre, const uint8_t DI_DEVICE *w)
{
    x->ops->hc_norm(x->be, &(struct di_op_hc_norm){.m = rows_of(x),
                                                   .streams = x->c->hc_mult,
                                                   .d = x->c->hidden_size,
                                                   .eps = x->eps,
                                                   .x = x->b.x,
                                                   .pre = pre,
                                                   .w = w,
                                                   .y = x->b.n});
}

void di_site_hc_expand(struct di_pass *x)
{
    x->ops->hc_expand(x->be, &(struct di_op_hc_expand){.m = rows_of(x),
                                                       .streams = x->c->hc_mult,
                                                       .d = x->c->hidden_size,
                                                       .x = x->b.x,
                                                       .post = x->b.post,
                                                       .comb = x->b.comb,
                                                       .o = x->b.y});
}

/* ---------------------------------------------------------------- engram */

void di_site_engram(struct di_pass *x, const struct di_layer *w)
{
    const struct di_config *c = x->c;
    int m = rows_of(x), columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    x->ops->engram_gather(x->be, &(struct di_op_engram_gather){
                                     .m = m,
                                     .cols = columns,
                                     .hd = c->engram_head_dim,
                                     .idx = x->rows.engram_rows + (size_t)w->engram_table * (size_t)x->rows.all.rows.m * (size_t)columns,
                                     .table = w->engram.table,
                                     .scale = w->engram.scale,
                                     .e = x->b.e});
    di_site_linear(x, m, &w->engram.wkv, di_site_linear_input(x, columns * c->engram_head_dim, x->b.e, x->b.e), x->b.ekv);
    x->ops->engram_gate(x->be, &(struct di_op_engram_gate){.m = m,
                                                           .streams = c->hc_mult,
                                                           .d = c->hidden_size,
                                                           .eps = x->eps,
                                                           .x = x->b.x,
                                                           .kv = x->b.ekv,
                                                           .qk = w->engram.qk,
                                                           .kind = x->set->kind});
}

/* ---------------------------------------------------------------- attention */

/* Pooled latents of the groups, then index keys from the latent before its RoPE, then the compressed rows. */
static void store_groups(struct di_pass *x, const struct di_layer *w, const struct di_closed_groups *g)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    const struct di_rows *rows = &x->set->rows;
    int src = w->kv_source, half = c->qk_rope_head_dim / 2;
    const float DI_DEVICE *cos = b->group[w->ratio - 1].cos, *sin = b->group[w->ratio - 1].sin;
    x->ops->compress(x->be, &(struct di_op_compress){.n_closed = g->n,
                                                     .closed = g->rows,
                                                     .rows = rows,
                                                     .kv = &x->step->kv,
                                                     .src = src,
                                                     .d = c->head_dim,
                                                     .eps = x->eps,
                                                     .kv_act = b->kv,
                                                     .kv_f32 = b->comp_kv,
                                                     .gate = b->comp_gate,
                                                     .w = w->compressor.norm,
                                                     .latent = b->latent});
    di_site_linear(x, g->n, &w->indexer.wk, b->latent, b->key);
    x->ops->key_store(x->be, &(struct di_op_key_store){.n_closed = g->n,
                                                       .d = c->index_head_dim,
                                                       .half = half,
                                                       .closed = g->rows,
                                                       .rows = rows,
                                                       .kv = &x->step->kv,
                                                       .src = src,
                                                       .eps = x->eps,
                                                       .k = b->key,
                                                       .w = w->indexer.k_norm,
                                                       .cos = cos,
                                                       .sin = sin});
    x->ops->comp_store(x->be, &(struct di_op_comp_store){.n_closed = g->n,
                                                         .d = c->head_dim,
                                                         .half = half,
                                                         .closed = g->rows,
                                                         .rows = rows,
                                                         .kv = &x->step->kv,
                                                         .src = src,
                                                         .latent = b->latent,
                                                         .cos = cos,
                                                         .sin = sin});
}

void di_site_compressor(struct di_pass *x, const struct di_layer *w)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    const struct di_closed_groups *g = &x->rows.closed[w->ratio - 1];
    if (w->ratio == 2) {
        linear_f32(x, &w->compressor.wkv, b->n, b->comp_kv);
        linear_f32(x, &w->compressor.wgate, b->n, b->comp_gate);
    } else {
        di_site_linear(x, rows_of(x), &w->compressor.wkv, b->n, b->kv);
    }
    if (g->n > 0)
        store_groups(x, w, g);
    if (w->ratio == 2)
        x->ops->raw_commit(x->be, &(struct di_op_raw_commit){.rows = &x->set->rows,
                                                             .kv = &x->step->kv,
                                                             .src = w->kv_source,
                                                             .d = c->head_dim,
                                                             .kv_f32 = b->comp_kv,
                                                             .gate = b->comp_gate});
}

/* Spec §5.7: the list of selected groups that this layer and those after it use. qr is quantised already. */
static void indexer(struct di_pass *x, const struct di_layer *w, const void DI_DEVICE *qr)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    const struct di_trace *t = x->step->trace;
    int m = rows_of(x), heads = c->index_n_heads, d = c->index_head_dim;
    di_site_linear(x, m, &w->indexer.wq_b, qr, b->iq);
    x->ops->index_query(
        x->be, &(struct di_op_index_query){
                   .m = m, .heads = heads, .d = d, .half = c->qk_rope_head_dim / 2, .q = b->iq, .cos = b->cos_comp, .sin = b->sin_comp});
    di_site_linear(x, m, &w->indexer.weights_proj, b->n, b->iw);
    float factor = (float)(1.0 / sqrt((double)d) / sqrt((double)heads));
    x->ops->scale(x->be, &(struct di_op_scale){(int64_t)m * heads, factor, b->iw});
    x->ops->index_select(x->be, &(struct di_op_index_select){.m = m,
                                                             .heads = heads,
                                                             .d = d,
                                                             .topk = c->index_topk,
                                                             .src = w->kv_source,
                                                             .rows = &x->set->rows,
                                                             .kv = &x->step->kv,
                                                             .q = b->iq,
                                                             .w = b->iw,
                                                             .sel = b->sel,
                                                             .sel_n = b->sel_n,
                                                             .mode = w->candidates,
                                                             .cand_blocks = c->candidate_topk_blocks,
                                                             .cand_block_size = c->candidate_block_size,
                                                             .cand = b->cand,
                                                             .cand_n = b->cand_n,
                                                             .scores = t ? t->scores : NULL,
                                                             .scores_ld = t ? t->scores_ld : 0});
    di_pass_trace(x, "selected", w->ring, b->sel, (size_t)c->index_topk * sizeof *b->sel, b->sel_n);
    if (w->candidates == DI_CAND_PRODUCE)
        di_pass_trace(x, "candidates", w->ring, b->cand, (size_t)c->candidate_topk_blocks * sizeof *b->cand, b->cand_n);
    if (t && t->scores)
        di_pass_trace(x, "scores", w->ring, t->scores, (size_t)t->scores_ld * sizeof *t->scores, NULL);
}

struct angles {
    const float DI_DEVICE *cos, *sin;
};
static struct angles angles_of(const struct di_pass *x, const struct di_layer *w)
{
    const struct di_pass_buffers *b = &x->b;
    return w->rope == DI_ROPE_COMPRESS ? (struct angles){b->cos_comp, b->sin_comp} : (struct angles){b->cos_main, b->sin_main};
}

/* Rotate the heads in place. */
static void rope(struct di_pass *x, bool inverse, void DI_DEVICE *heads, struct angles r)
{
    const struct di_config *c = x->c;
    x->ops->rope(x->be, &(struct di_op_rope){.m = rows_of(x),
                                             .heads = c->num_attention_heads,
                                             .d = c->head_dim,
                                             .half = c->qk_rope_head_dim / 2,
                                             .inverse = inverse,
                                             .x = heads,
                                             .cos = r.cos,
                                             .sin = r.sin});
}

void di_site_window(struct di_pass *x, const struct di_layer *w)
{
    struct angles r = angles_of(x, w);
    x->ops->window_store(x->be, &(struct di_op_window_store){.m = rows_of(x),
                                                             .d = x->c->head_dim,
                                                             .half = x->c->qk_rope_head_dim / 2,
                                                             .eps = x->eps,
                                                             .kv = x->b.kv,
                                                             .w = w->kv_norm,
                                                             .cos = r.cos,
                                                             .sin = r.sin,
                                                             .rows = x->b.window});
}

void di_site_attention(struct di_pass *x, const struct di_layer *w)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    int m = rows_of(x), heads = c->num_attention_heads, d = c->head_dim;
    struct angles r = angles_of(x, w);
    const void DI_DEVICE *nq = di_site_linear_input(x, c->hidden_size, b->n, b->nq);
    di_site_linear(x, m, &w->wq_a, nq, b->qr);
    di_site_linear(x, m, &w->wkv, nq, b->kv);
    di_site_window(x, w);
    di_pass_trace(x, "window", w->ring, b->window, x->be->layout.window_row_bytes, NULL);
    x->ops->rmsnorm(x->be, &(struct di_op_rmsnorm){.m = m, .d = c->q_lora_rank, .eps = x->eps, .x = b->qr, .w = w->q_norm, .y = b->qr});
    const void DI_DEVICE *qr = di_site_linear_input(x, c->q_lora_rank, b->qr, b->qr);
    di_site_linear(x, m, &w->wq_b, qr, b->q);
    rope(x, false, b->q, r);
    if (w->is_index_source)
        indexer(x, w, qr);
    x->ops->attention(x->be, &(struct di_op_attention){.m = m,
                                                       .heads = heads,
                                                       .d = d,
                                                       .window = c->sliding_window,
                                                       .layer = w->ring,
                                                       .src = w->kv_source,
                                                       .block = w->is_stage,
                                                       .scale = (float)(1.0 / sqrt((double)d)),
                                                       .rows = &x->set->rows,
                                                       .kv = &x->step->kv,
                                                       .window_new = b->window,
                                                       .sel = b->sel,
                                                       .sel_n = b->sel_n,
                                                       .sel_ld = c->index_topk,
                                                       .q = b->q,
                                                       .sink = w->attn_sink,
                                                       .o = b->o});
    if (!w->is_stage)
        x->ops->window_commit(x->be, &(struct di_op_window_commit){&x->set->rows, &x->step->kv, w->ring, b->window});
    rope(x, true, b->o, r);
    if (x->be->params.numerics.q_wo_a)
        quant8(x, heads * d, b->o, b->o);
    di_site_linear(x, m, &w->wo_a, b->o, b->a);
    di_site_linear(x, m, &w->wo_b, di_site_linear_input(x, c->o_groups * c->o_lora_rank, b->a, b->a), b->y);
}

/* ---------------------------------------------------------------- experts */

void di_site_moe(struct di_pass *x, const struct di_layer *w)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    int m = rows_of(x), k = w->k;
    x->ops->router(x->be, &(struct di_op_router){.m = m,
                                                 .d = c->hidden_size,
                                                 .experts = w->n_experts,
                                                 .k = k,
                                                 .scale = (float)c->routed_scaling_factor,
                                                 .x = b->n,
                                                 .w = &w->gate,
                                                 .bias = w->gate_bias,
                                                 .bias_vl = w->gate_bias_vl,
                                                 .kind = x->set->kind,
                                                 .ids = b->experts,
                                                 .weights = b->expert_weights});
    di_pass_trace(x, "experts", w->ring, b->experts, (size_t)k * sizeof *b->experts, NULL);
    di_pass_trace(x, "expert_weights", w->ring, b->expert_weights, (size_t)k * sizeof *b->expert_weights, NULL);
    x->ops->moe(x->be, &(struct di_op_moe){.m = m,
                                           .d = c->hidden_size,
                                           .f = c->moe_intermediate_size,
                                           .k = k,
                                           .n_experts = w->n_experts,
                                           .limit = (float)c->swiglu_limit,
                                           .x = di_site_linear_input(x, c->hidden_size, b->n, b->nq),
                                           .ids = b->experts,
                                           .weights = b->expert_weights,
                                           .experts = w->experts,
                                           .shared = &w->shared,
                                           .y = b->y});
}
