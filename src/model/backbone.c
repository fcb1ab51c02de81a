/* The backbone (spec/model.md §5.1): embedding, the layers with the DSpark taps between them, and the head. Activations lie in one region
 * with the same layout for every step. */
#include "base/carve.h"
#include "model/pass.h"

/* ---------------------------------------------------------------- buffers */

/* The block for the integers of a step, then the buffers: where its address goes, values a row, bytes a value. */
static void carve_buffers(const struct di_backend *be, int max_rows, bool drafts, struct di_carver *carver, struct di_pass_buffers *b,
                          void DI_DEVICE **row_block)
{
    const struct di_config *c = be->params.config;
    size_t m = (size_t)max_rows, act = be->ops->act_bytes, d = (size_t)c->hidden_size, s = (size_t)c->hc_mult, hd = (size_t)c->head_dim;
    size_t half = (size_t)c->qk_rope_head_dim / 2, ngrams = c->n_engram ? (size_t)c->engram_max_ngram_size - 1 : 0;
    size_t taps = drafts ? (size_t)c->n_dspark_targets * d : 0, ekv = (s + 1) * d, rank = (size_t)c->dspark_markov_rank;
    const struct di_piece pieces[] = {
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
        {&b->window, be->layout.window_row_bytes, 1},
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
        {&b->e, ngrams * (size_t)c->engram_n_heads * (size_t)c->engram_head_dim, act},
        {&b->ekv, ekv > taps ? ekv : taps, act},
        {&b->cos_main, half, 4},
        {&b->sin_main, half, 4},
        {&b->cos_comp, half, 4},
        {&b->sin_comp, half, 4},
        {&b->group[0].cos, half, 4},
        {&b->group[0].sin, half, 4},
        {&b->group[1].cos, half, 4},
        {&b->group[1].sin, half, 4},
        {&b->features, taps, act},
    };
    const struct di_piece heads[] = {
        {&b->draft.h, d, act}, {&b->draft.n, d, act}, {&b->draft.e, rank, act}, {&b->draft.logits, (size_t)c->vocab_size, 4},
        {&b->draft.z, 1, 4},   {&b->draft.ids, 1, 4},
    };
    *row_block = di_carve(carver, di_step_rows_bytes(c, max_rows), 1);
    di_carve_rows(carver, m, pieces, sizeof pieces / sizeof *pieces);
    if (drafts)
        di_carve_rows(carver, DI_DRAFT_ROWS, heads, sizeof heads / sizeof *heads);
}

size_t di_forward_bytes(const struct di_backend *be, int max_rows, bool drafts)
{
    struct di_pass_buffers ignored;
    void DI_DEVICE *block;
    struct di_carver count = {0};
    carve_buffers(be, max_rows, drafts, &count, &ignored, &block);
    return count.used;
}

void di_pass_carve(struct di_model *m, struct di_pass_buffers *b, void DI_DEVICE **row_block)
{
    struct di_carver carver = {.base = (uint8_t *)m->activations, .unmarked = !m->be->ops->host_memory};
    carve_buffers(m->be, m->params.max_rows, m->params.drafts, &carver, b, row_block);
}

void di_pass_trace(struct di_pass *x, const char *name, int layer, void DI_DEVICE *data, size_t row_bytes, const int32_t DI_DEVICE *counts)
{
    const struct di_trace *t = x->step->trace;
    if (t)
        t->at(t->ctx, &(struct di_trace_point){
                          .name = name, .layer = layer, .rows = x->set->rows.m, .row_bytes = row_bytes, .data = data, .counts = counts});
}

/* ---------------------------------------------------------------- angles */

static void rope_angles(struct di_pass *x, int m, const int32_t DI_DEVICE *pos, const float DI_DEVICE *freq, float DI_DEVICE *cos,
                        float DI_DEVICE *sin)
{
    x->ops->rope_angles(
        x->be, &(struct di_op_rope_angles){.m = m, .half = x->c->qk_rope_head_dim / 2, .pos = pos, .freq = freq, .cos = cos, .sin = sin});
}

void di_pass_row_angles(struct di_pass *x)
{
    const struct di_pass_buffers *b = &x->b;
    const struct di_rows *rows = &x->set->rows;
    rope_angles(x, rows->m, rows->pos, x->m->rope_main, b->cos_main, b->sin_main);
    rope_angles(x, rows->m, rows->pos, x->m->rope_compress, b->cos_comp, b->sin_comp);
}

static void group_angles(struct di_pass *x)
{
    for (int i = 0; i < 2; i++)
        rope_angles(x, x->rows.closed[i].n, x->rows.closed[i].pos, x->m->rope_compress, x->b.group[i].cos, x->b.group[i].sin);
}

/* ---------------------------------------------------------------- bounded replay */

/* The kept rows of *values, which trades places with *spare. */
static void gather_kept(struct di_pass *x, int width, void DI_DEVICE **values, void DI_DEVICE **spare)
{
    x->ops->gather(x->be, &(struct di_op_gather){.n = x->set->rows.m, .width = width, .rows = x->set->kept, .x = *values, .y = *spare});
    void DI_DEVICE *kept = *spare;
    *spare = *values;
    *values = kept;
}

/* Spec §8.2: the rows before the tails of the prompts are left behind. What crosses: the streams and the normalised input; this site's
 * mixing is computed behind it. */
static void keep_tails(struct di_pass *x)
{
    x->set = &x->rows.tails;
    if (!x->set->kept || x->set->rows.m == 0)
        return;
    gather_kept(x, x->c->hc_mult * x->c->hidden_size, &x->b.x, &x->b.ekv);
    gather_kept(x, x->c->hidden_size, &x->b.n, &x->b.y);
    di_pass_row_angles(x);
}

/* ---------------------------------------------------------------- layers */

/* The DSpark taps (spec Appendix A) keep the row numbers of the step. */
static void keep_features(struct di_pass *x, int l)
{
    const struct di_config *c = x->c;
    int width = c->n_dspark_targets * c->hidden_size;
    for (int t = 0; x->b.features && t < c->n_dspark_targets; t++)
        if (c->dspark_target_layer_ids[t] == l)
            x->ops->hc_mean(x->be, &(struct di_op_hc_mean){
                                       .m = x->set->rows.m,
                                       .streams = c->hc_mult,
                                       .d = c->hidden_size,
                                       .x = x->b.x,
                                       .y = (char DI_DEVICE *)x->b.features + (size_t)(t * c->hidden_size) * x->ops->act_bytes,
                                       .ld = width,
                                       .to = x->set->kept,
                                   });
}

static size_t stream_bytes(const struct di_pass *x)
{
    return (size_t)(x->c->hc_mult * x->c->hidden_size) * x->ops->act_bytes;
}

/* Lagged hyper-connections: a site collapses with the `pre` of the site before it and hands its own to the next (spec §5.1). */
void di_pass_layer(struct di_pass *x, const struct di_layer *w)
{
    const struct di_pass_buffers *b = &x->b;
    int l = w->ring;
    di_site_hc_mix(x, w->hc_attn.fn, w->hc_attn.base, w->hc_attn.scale, b->pre_attn);
    di_site_attention(x, w);
    di_site_hc_expand(x);
    di_pass_trace(x, "streams_attn", l, b->x, stream_bytes(x), NULL);
    di_site_hc_mix(x, w->hc_ffn.fn, w->hc_ffn.base, w->hc_ffn.scale, b->pre_ffn);
    di_site_hc_norm(x, b->pre_attn, w->ffn_norm);
    di_site_moe(x, w);
    di_site_hc_expand(x);
    di_pass_trace(x, "streams", l, b->x, stream_bytes(x), NULL);
    di_pass_trace(x, "pre", l, b->pre_ffn, (size_t)x->c->hc_mult * sizeof(float), NULL);
}

static void run_layer(struct di_pass *x, int l)
{
    const struct di_layer *w = &x->m->layers[l];
    const struct di_pass_buffers *b = &x->b;
    di_pass_trace(x, "layer_in", l, b->x, stream_bytes(x), NULL);
    if (w->engram_table >= 0)
        di_site_engram(x, w);
    keep_features(x, l);
    di_site_hc_norm(x, b->pre_ffn, w->attn_norm);
    if (w->is_kv_source)
        di_site_compressor(x, w);
    if (l == x->rows.tail_layer)
        keep_tails(x);
    if (x->set->rows.m > 0)
        di_pass_layer(x, w);
}

/* What the head reads: the rows that want logits, in `y` until the next step. */
static void keep_logit_rows(struct di_pass *x)
{
    x->m->head_rows = x->b.y;
    di_site_hc_norm(x, x->b.pre_ffn, x->m->norm);
    x->ops->gather(x->be,
                   &(struct di_op_gather){
                       .n = x->step->n_logits, .width = x->c->hidden_size, .rows = x->set->logit_rows, .x = x->b.n, .y = x->m->head_rows});
}

void di_model_head(struct di_model *m, int first, int n, float DI_DEVICE *logits)
{
    const void DI_DEVICE *x = (const char DI_DEVICE *)m->head_rows + (size_t)first * (size_t)m->c->hidden_size * m->be->ops->act_bytes;
    m->be->ops->linear(m->be, &(struct di_op_linear){.m = n, .w = &m->head, .x = x, .y = logits, .out_f32 = true});
}

di_status di_model_launch(struct di_model *m, const struct di_step *step, di_error *err)
{
    struct di_pass x = {.m = m, .c = m->c, .be = m->be, .ops = m->be->ops, .step = step, .eps = (float)m->c->rms_norm_eps};
    void DI_DEVICE *row_block;
    di_pass_carve(m, &x.b, &row_block);
    if (step->features || !m->params.drafts)
        x.b.features = step->features;
    di_status status = di_step_rows_send(m, step, row_block, &x.rows, err);
    x.set = &x.rows.all;
    if (status != DI_OK || x.set->rows.m == 0)
        return status;
    di_pass_row_angles(&x);
    group_angles(&x);
    x.ops->embed(x.be, &(struct di_op_embed){.m = x.set->rows.m,
                                             .streams = m->c->hc_mult,
                                             .d = m->c->hidden_size,
                                             .ids = x.rows.ids,
                                             .table = m->embed,
                                             .x = x.b.x,
                                             .pre = x.b.pre_ffn});
    for (int l = 0; l < m->c->num_hidden_layers && x.set->rows.m > 0; l++)
        run_layer(&x, l);
    if (m->params.drafts && x.set->rows.m > 0)
        di_pass_draft_context(&x);
    if (step->n_logits > 0)
        keep_logit_rows(&x);
    return DI_OK;
}

di_status di_model_check(const struct di_model *m, di_error *err)
{
    return di_checkpoint_check(&m->ck, err); /* rows of tables that are read in place: those that were loaded? */
}

di_status di_model_finish(struct di_model *m, di_error *err)
{
    di_status status = di_backend_finish(m->be, err);
    return status == DI_OK ? di_model_check(m, err) : status;
}

di_status di_model_step(struct di_model *m, const struct di_step *step, di_error *err)
{
    di_status status = di_model_launch(m, step, err);
    if (status != DI_OK)
        return status;
    if (step->n_logits > 0)
        di_model_head(m, 0, step->n_logits, step->logits);
    return di_model_finish(m, err);
}
