/* The draft (spec/dspark.md §2): context rows from the taps, the stages over a block of each request, the heads. Layers of the same sites as
 * the backbone's; what is its own is the order of things, and two heads. */
#include "model/draft.h"
#include "base/carve.h"
#include "model/pass.h"

di_status di_draft_check(const struct di_checkpoint *ck, di_error *err)
{
    const struct di_config *c = &ck->config;
    di_status status = DI_OK;
    CHECK(c->num_nextn_predict_layers > 0, err, DI_ERR_UNSUPPORTED, ck->dir,
          "config.json describes no draft (num_nextn_predict_layers is 0)");
    if (ck->draft_fault.code != DI_OK)
        return di_fail(err, ck->draft_fault.code, ck->draft_fault.where, "%s", ck->draft_fault.message);
    CHECK(c->dspark_block_size <= DI_MAX_DRAFTS, err, DI_ERR_UNSUPPORTED, ck->dir,
          "dspark_block_size is %d, drafts of more than %d tokens are not supported", c->dspark_block_size, DI_MAX_DRAFTS);
    CHECK(c->n_dspark_targets <= c->hc_mult, err, DI_ERR_UNSUPPORTED, ck->dir, "%d target layers of the draft are more than hc_mult, %d",
          c->n_dspark_targets, c->hc_mult); /* their features are gathered where the streams lie */
    CHECK(c->dspark_markov_rank % 16 == 0, err, DI_ERR_UNSUPPORTED, ck->dir, "dspark_markov_rank is %d, which is no multiple of 16",
          c->dspark_markov_rank);
    for (int s = c->num_hidden_layers; s < c->num_hidden_layers + c->num_nextn_predict_layers; s++)
        CHECK(c->compress_ratios[s] == 0, err, DI_ERR_UNSUPPORTED, ck->dir,
              "compress_ratios of stage %d of the draft is %d, only 0 is supported", s - c->num_hidden_layers, c->compress_ratios[s]);
out:
    return status;
}

static const struct di_layer *stage_of(const struct di_model *m, int s)
{
    return &m->layers[m->c->num_hidden_layers + s];
}

static const struct di_layer *last_stage(const struct di_model *m)
{
    return stage_of(m, m->c->num_nextn_predict_layers - 1);
}

/* ---------------------------------------------------------------- context */

/* One projection for all stages, then the window row of each (spec/dspark.md §2.3). Rows of guesses that will not stay are written over. */
void di_pass_draft_context(struct di_pass *x)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    const struct di_layer *first = stage_of(x->m, 0);
    int m = x->set->rows.m, width = c->n_dspark_targets * c->hidden_size;
    const void DI_DEVICE *taps = b->features;
    if (x->set->kept) {
        x->ops->gather(x->be, &(struct di_op_gather){.n = m, .width = width, .rows = x->set->kept, .x = taps, .y = b->ekv});
        taps = b->ekv;
    }
    di_site_linear(x, m, &first->draft.main_proj, di_site_linear_input(x, width, taps, b->ekv), b->n);
    x->ops->rmsnorm(x->be,
                    &(struct di_op_rmsnorm){.m = m, .d = c->hidden_size, .eps = x->eps, .x = b->n, .w = first->draft.main_norm, .y = b->n});
    const void DI_DEVICE *context = di_site_linear_input(x, c->hidden_size, b->n, b->nq);
    for (int s = 0; s < c->num_nextn_predict_layers; s++) {
        const struct di_layer *w = stage_of(x->m, s);
        di_site_linear(x, m, &w->wkv, context, b->kv);
        di_site_window(x, w);
        x->ops->window_commit(x->be, &(struct di_op_window_commit){&x->set->rows, &x->step->kv, w->ring, b->window});
    }
}

/* ---------------------------------------------------------------- integers of blocks */

/* Blocks of a tile, whose heads are computed together. */
static int tile_blocks(const struct di_config *c)
{
    return DI_DRAFT_ROWS / c->dspark_block_size;
}

struct arrays {
    struct di_chunk *chunks;            /* [n] */
    int32_t *anchors;                   /* [n] */
    int32_t *pos, *chunk, *floor, *ids; /* [n][block] */
    int32_t *by_draft;                  /* tile by tile [block][blocks of the tile]: rows */
};

static void carve_arrays(const struct di_config *c, int n, struct di_carver *carver, struct arrays *a)
{
    const size_t width = (size_t)c->dspark_block_size;
    const struct di_piece pieces[] = {
        {&a->chunks, 1, sizeof(struct di_chunk)},
        {&a->anchors, 1, 4},
        {&a->pos, width, 4},
        {&a->chunk, width, 4},
        {&a->floor, width, 4},
        {&a->ids, width, 4},
        {&a->by_draft, width, 4},
    };
    di_carve_rows(carver, (size_t)n, pieces, sizeof pieces / sizeof *pieces);
}

static di_status check_blocks(const struct di_model *m, const struct di_draft *d, di_error *err)
{
    int most = m->params.max_rows / m->c->dspark_block_size;
    if (!m->params.drafts || d->n > most)
        return di_fail(err, DI_ERR_INVALID, "draft", "%d blocks do not fit %d rows of a model that was opened %s drafts", d->n,
                       m->params.max_rows, m->params.drafts ? "with" : "without");
    for (int i = 0; i < d->n; i++) {
        const struct di_draft_block *b = &d->blocks[i];
        if (b->slot < 0 || b->at < 0 || b->token < 0 || b->token >= m->c->vocab_size)
            return di_fail(err, DI_ERR_INVALID, "draft", "block %d has slot %d, position %d, token %d", i, b->slot, b->at, b->token);
    }
    return DI_OK;
}

/* Anchor and noise (spec/dspark.md §2.4). */
static void fill_blocks(const struct di_config *c, const struct di_draft *d, const struct arrays *a)
{
    int width = c->dspark_block_size, tile = tile_blocks(c);
    for (int i = 0; i < d->n; i++) {
        const struct di_draft_block *b = &d->blocks[i];
        int first = i - i % tile, blocks = d->n - first < tile ? d->n - first : tile;
        a->chunks[i] = (struct di_chunk){.slot = b->slot, .row0 = i * width, .n = width, .pos0 = b->at};
        a->anchors[i] = b->token;
        for (int k = 0; k < width; k++) {
            int row = i * width + k;
            a->pos[row] = b->at + k;
            a->chunk[row] = i;
            a->floor[row] = b->floor;
            a->ids[row] = k ? c->dspark_noise_token_id : b->token;
            a->by_draft[first * width + k * blocks + i - first] = row;
        }
    }
}

/* They go where those of a step go, which has ended with all that reads them. */
static di_status send_blocks(struct di_model *m, const struct di_draft *d, void DI_DEVICE *block, struct arrays *there, di_error *err)
{
    struct di_backend *be = m->be;
    struct arrays here;
    di_status status = be->ops->wait(be, m->row_fence, err);
    if (status != DI_OK)
        return status;
    struct di_carver staging = {.base = m->row_staging, .size = di_step_rows_bytes(m->c, m->params.max_rows)};
    struct di_carver device = {.base = (uint8_t *)block, .unmarked = true}; /* addresses only: one copy goes over all of it */
    carve_arrays(m->c, d->n, &staging, &here);
    carve_arrays(m->c, d->n, &device, there);
    fill_blocks(m->c, d, &here);
    di_carve_open(&staging);
    be->ops->copy(be, &(struct di_op_copy){1, &(struct di_copy_span){block, m->row_staging, staging.used}});
    m->row_fence = be->ops->fence(be);
    return DI_OK;
}

/* ---------------------------------------------------------------- heads */

/* What the heads read: collapsed streams as they are (y), and normalised (n). */
static void collapse(struct di_pass *x)
{
    x->ops->hc_norm(x->be, &(struct di_op_hc_norm){.m = x->set->rows.m,
                                                   .streams = x->c->hc_mult,
                                                   .d = x->c->hidden_size,
                                                   .eps = x->eps,
                                                   .x = x->b.x,
                                                   .pre = x->b.pre_ffn,
                                                   .w = last_stage(x->m)->draft.norm,
                                                   .y = x->b.n,
                                                   .u = x->b.y});
}

struct tile {
    const struct di_draft *d;
    int first, n; /* blocks */
};

/* Draft k of each block: its logits, its token, which stays on the device for the next one. */
static void draft_tokens(struct di_pass *x, const struct tile *t, int k, const int32_t DI_DEVICE *before)
{
    const struct di_layer *w = last_stage(x->m);
    const struct di_draft *d = t->d;
    size_t vocab = (size_t)x->c->vocab_size, at = (size_t)(k * d->n + t->first), row = (size_t)(k * t->n);
    float DI_DEVICE *logits = x->b.draft.logits + row * vocab;
    struct di_sample_task tasks[DI_DRAFT_ROWS];
    struct di_copy_span spans[DI_DRAFT_ROWS];
    void DI_DEVICE *e = (char DI_DEVICE *)x->b.draft.e + row * (size_t)x->c->dspark_markov_rank * x->ops->act_bytes;
    x->ops->markov(x->be, &(struct di_op_markov){.m = t->n,
                                                 .vocab = x->c->vocab_size,
                                                 .rank = x->c->dspark_markov_rank,
                                                 .ids = before,
                                                 .embed = w->draft.markov_embed,
                                                 .head = w->draft.markov_head,
                                                 .e = e,
                                                 .logits = logits});
    for (int i = 0; i < t->n; i++) {
        tasks[i] = d->tasks[at + (size_t)i];
        tasks[i].row.logits = (const float *)logits + (size_t)i * vocab; /* read by the sampler, on the device */
        spans[i] = (struct di_copy_span){x->b.draft.ids + row + i, &d->results[at + (size_t)i].sample.id, sizeof(int32_t)};
    }
    x->ops->sample(x->be, &(struct di_op_sample){.m = t->n, .tasks = tasks, .results = d->results + at});
    x->ops->copy(x->be, &(struct di_op_copy){t->n, spans});
    if (d->logits)
        x->ops->copy(x->be,
                     &(struct di_op_copy){1, &(struct di_copy_span){d->logits + at * vocab, logits, (size_t)t->n * vocab * sizeof(float)}});
}

static void compute_confidence(struct di_pass *x, const struct tile *t)
{
    const struct di_config *c = x->c;
    const struct di_pass_buffers *b = &x->b;
    int width = c->dspark_block_size;
    struct di_copy_span spans[DI_MAX_DRAFTS];
    x->ops->confidence(x->be, &(struct di_op_confidence){.m = t->n * width,
                                                         .d = c->hidden_size,
                                                         .rank = c->dspark_markov_rank,
                                                         .h = b->draft.h,
                                                         .e = b->draft.e,
                                                         .w = last_stage(x->m)->draft.proj,
                                                         .z = b->draft.z});
    for (int k = 0; k < width; k++)
        spans[k] = (struct di_copy_span){t->d->confidence + k * t->d->n + t->first, b->draft.z + k * t->n, (size_t)t->n * sizeof(float)};
    x->ops->copy(x->be, &(struct di_op_copy){width, spans});
}

static void compute_heads(struct di_pass *x, const struct tile *t, const struct arrays *there)
{
    const struct di_config *c = x->c;
    int width = c->dspark_block_size, rows = t->n * width, d = c->hidden_size;
    const struct di_pass_buffers *b = &x->b;
    const int32_t DI_DEVICE *by_draft = there->by_draft + t->first * width, *before = there->anchors + t->first;
    x->ops->gather(x->be, &(struct di_op_gather){.n = rows, .width = d, .rows = by_draft, .x = b->y, .y = b->draft.h});
    x->ops->gather(x->be, &(struct di_op_gather){.n = rows, .width = d, .rows = by_draft, .x = b->n, .y = b->draft.n});
    x->ops->linear(x->be, &(struct di_op_linear){.m = rows, .w = &x->m->head, .x = b->draft.n, .y = b->draft.logits, .out_f32 = true});
    for (int k = 0; k < width; k++) {
        draft_tokens(x, t, k, before);
        before = b->draft.ids + k * t->n;
    }
    if (t->d->confidence)
        compute_confidence(x, t);
}

/* ---------------------------------------------------------------- blocks */

di_status di_draft_launch(struct di_model *m, const struct di_draft *d, di_error *err)
{
    const struct di_config *c = m->c;
    const struct di_step step = {.kv = d->kv, .trace = d->trace};
    struct di_pass x = {.m = m, .c = c, .be = m->be, .ops = m->be->ops, .step = &step, .eps = (float)c->rms_norm_eps};
    struct arrays there;
    void DI_DEVICE *row_block;
    di_status status = check_blocks(m, d, err);
    if (status != DI_OK || d->n == 0)
        return status;
    di_pass_carve(m, &x.b, &row_block);
    status = send_blocks(m, d, row_block, &there, err);
    if (status != DI_OK)
        return status;
    const struct di_row_set set = {.rows = {.m = d->n * c->dspark_block_size,
                                            .n_chunks = d->n,
                                            .chunks = there.chunks,
                                            .pos = there.pos,
                                            .chunk = there.chunk,
                                            .window_floor = there.floor}};
    x.set = &set;
    di_pass_row_angles(&x);
    x.ops->embed(x.be, &(struct di_op_embed){.m = set.rows.m,
                                             .streams = c->hc_mult,
                                             .d = c->hidden_size,
                                             .ids = there.ids,
                                             .table = m->embed,
                                             .x = x.b.x,
                                             .pre = x.b.pre_ffn});
    for (int s = 0; s < c->num_nextn_predict_layers; s++) {
        di_site_hc_norm(&x, x.b.pre_ffn, stage_of(m, s)->attn_norm);
        di_pass_layer(&x, stage_of(m, s));
    }
    collapse(&x);
    struct tile t = {.d = d};
    for (; t.first < d->n; t.first += t.n) {
        t.n = d->n - t.first < tile_blocks(c) ? d->n - t.first : tile_blocks(c);
        compute_heads(&x, &t, &there);
    }
    return DI_OK;
}
