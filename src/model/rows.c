/* The integers of a step: which rows there are, what they read and close, where their logits go. All of them are written before the launch
 * into one staging block, which goes up in one copy. What depends on places alone comes first; ids, kinds and engram rows, which follow
 * from tokens, are the end of the block. */
#include "base/carve.h"
#include "model/pass.h"

struct arrays {
    struct set_arrays {
        struct di_chunk *chunks;
        int32_t *pos, *chunk, *floor, *kept, *logit_rows;
        uint8_t *kind;
    } all, tails; /* all.kept is not used */
    int32_t *closed_rows[2], *closed_pos[2];
    int32_t *ids;
    int64_t *engram_rows;
};

/* The arrays for m rows, with or without tails. */
static void carve_arrays(const struct di_config *c, int m, bool tails, struct di_carver *carver, struct arrays *a)
{
    size_t columns = c->n_engram ? (size_t)(c->engram_max_ngram_size - 1) * (size_t)c->engram_n_heads : 0;
    size_t behind = tails; /* values a row of the second set */
    const struct di_piece pieces[] = {
        {&a->all.chunks, 1, sizeof(struct di_chunk)},
        {&a->all.pos, 1, 4},
        {&a->all.chunk, 1, 4},
        {&a->all.floor, 1, 4},
        {&a->all.logit_rows, 1, 4},
        {&a->closed_rows[0], 1, 4},
        {&a->closed_pos[0], 1, 4},
        {&a->closed_rows[1], 1, 4},
        {&a->closed_pos[1], 1, 4},
        {&a->tails.chunks, behind, sizeof(struct di_chunk)},
        {&a->tails.pos, behind, 4},
        {&a->tails.chunk, behind, 4},
        {&a->tails.floor, behind, 4},
        {&a->tails.kept, behind, 4},
        {&a->tails.logit_rows, behind, 4},
        /* from tokens */
        {&a->ids, 1, 4},
        {&a->all.kind, 1, 1},
        {&a->tails.kind, behind, 1},
        {&a->engram_rows, (size_t)c->n_engram * columns, 8},
    };
    di_carve_rows(carver, (size_t)m, pieces, sizeof pieces / sizeof *pieces);
}

size_t di_step_rows_bytes(const struct di_config *c, int m)
{
    struct arrays ignored;
    struct di_carver count = {0};
    carve_arrays(c, m, true, &count, &ignored);
    return count.used;
}

/* ---------------------------------------------------------------- what is refused */

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

static di_status check_chunks(const struct di_model *m, const struct di_step *s, int *n_rows, di_error *err)
{
    *n_rows = 0;
    for (int k = 0; k < s->n_chunks; k++) {
        const struct di_chunk *c = &s->chunks[k];
        if (c->row0 != *n_rows || c->n < 1 || c->pos0 < 0 || c->n > m->params.max_rows - *n_rows || c->pos0 > m->params.max_context - c->n)
            return di_fail(err, DI_ERR_INVALID, "step",
                           "chunk %d (%d rows at position %d) does not fit a step of %d rows and a context of %lld", k, c->n, c->pos0,
                           m->params.max_rows, (long long)m->params.max_context);
        for (int i = 0; i < c->n && c->slot >= 0; i++) {
            int32_t id = s->tokens[k][c->pos0 + i];
            if (id < 0 || id >= m->c->vocab_size)
                return di_fail(err, DI_ERR_INVALID, "step", "token id %d at position %d is outside the vocabulary of %d", id, c->pos0 + i,
                               m->c->vocab_size);
        }
        *n_rows += c->n;
    }
    for (int i = 0; i < s->n_logits; i++)
        if (s->logit_rows[i] < 0 || s->logit_rows[i] >= *n_rows || s->n_logits > *n_rows)
            return di_fail(err, DI_ERR_INVALID, "step", "logits are wanted of row %d, number %d, of a step of %d rows", s->logit_rows[i], i,
                           *n_rows);
    return DI_OK;
}

/* ---------------------------------------------------------------- places */

static void close_group(struct di_closed_groups *g, const struct arrays *a, int ratio, int row, int32_t first)
{
    a->closed_rows[ratio - 1][g->n] = row;
    a->closed_pos[ratio - 1][g->n++] = first;
}

static void fill_places(const struct di_step *s, const struct arrays *a, struct di_step_rows *out)
{
    for (int k = 0, i = 0; k < s->n_chunks; k++) {
        struct di_replay replay = s->replay ? s->replay[k] : (struct di_replay){0};
        a->all.chunks[k] = s->chunks[k];
        for (int32_t p = s->chunks[k].pos0; p < s->chunks[k].pos0 + s->chunks[k].n; p++, i++) {
            a->all.pos[i] = p;
            a->all.chunk[i] = k;
            a->all.floor[i] = replay.floor;
            bool closes = s->chunks[k].slot >= 0 && p >= replay.write_from;
            if (closes)
                close_group(&out->closed[0], a, 1, i, p);
            if (closes && p % 2 == 1)
                close_group(&out->closed[1], a, 2, i, p - 1);
        }
    }
    for (int i = 0; i < s->n_logits; i++)
        a->all.logit_rows[i] = s->logit_rows[i];
}

/* ---------------------------------------------------------------- bounded replay */

/* The layer at which the rows before the tails are left behind, -1 = nobody has a tail. Can this network have one? */
static di_status find_tails(const struct di_model *m, const struct di_step *s, int *tail_layer, di_error *err)
{
    bool any = false;
    for (int k = 0; s->replay && k < s->n_chunks; k++) {
        if (s->replay[k].tail < 0)
            return di_fail(err, DI_ERR_INVALID, "step", "the tail of chunk %d begins at %d", k, s->replay[k].tail);
        any |= s->replay[k].tail > 0;
    }
    *tail_layer = any ? di_tail_layer(m->c) : -1;
    if (any && *tail_layer < 0)
        return di_fail(err, DI_ERR_UNSUPPORTED, "step", "bounded replay needs a decoder half: layers behind all KV sources and engrams");
    return DI_OK;
}

static di_status check_tails(const struct di_step *s, const struct arrays *a, di_error *err)
{
    for (int i = 0; i < s->n_logits; i++)
        if (a->all.pos[s->logit_rows[i]] < s->replay[a->all.chunk[s->logit_rows[i]]].tail)
            return di_fail(err, DI_ERR_INVALID, "step", "row %d lies before the tail of bounded replay and has no logits",
                           s->logit_rows[i]);
    return DI_OK;
}

/* Place of a row among the m kept ones, which ascend. */
static int32_t place_of(const int32_t *kept, int m, int32_t row)
{
    int from = 0;
    for (int to = m; to - from > 1;) {
        int middle = (from + to) / 2;
        *(kept[middle] <= row ? &from : &to) = middle;
    }
    return from;
}

/* Spec §8.2, as DeepInfer defines it: behind the norm and the compressor of the last KV source nothing but the tails of the prompts is
 * needed, and every window begins at its tail, this layer's own too. With `mask` the rows before the tail go on, for nothing: the test
 * oracle. They see themselves, and no row that counts sees them. */
static void fill_tails(const struct di_step *s, const struct arrays *a, struct di_step_rows *out)
{
    const struct set_arrays *all = &a->all, *tails = &a->tails;
    int n = 0, m = 0;
    for (int k = 0; k < s->n_chunks; k++) {
        const struct di_chunk *from = &s->chunks[k];
        const struct di_replay *r = &s->replay[k];
        int drop = r->mask || r->tail < from->pos0 ? 0 : r->tail - from->pos0;
        if (drop >= from->n)
            continue;
        tails->chunks[n] = (struct di_chunk){.slot = from->slot, .row0 = m, .n = from->n - drop, .pos0 = from->pos0 + drop};
        for (int row = from->row0 + drop; row < from->row0 + from->n; row++, m++) {
            int32_t tail = r->tail < all->pos[row] ? r->tail : all->pos[row];
            tails->kept[m] = row;
            tails->pos[m] = all->pos[row];
            tails->floor[m] = tail > all->floor[row] ? tail : all->floor[row];
            tails->chunk[m] = n;
        }
        n++;
    }
    for (int i = 0; i < s->n_logits; i++)
        tails->logit_rows[i] = place_of(tails->kept, m, s->logit_rows[i]);
    out->tails.rows.m = m;
    out->tails.rows.n_chunks = n;
}

/* ---------------------------------------------------------------- what follows from tokens */

/* Table rows of every engram column of row i (spec §5.9). An image token reads nothing, and blocks the look-back of those behind it. */
static void fill_engram_rows(const struct di_model *m, const struct arrays *a, int n_rows, int i, const int32_t *tokens, int32_t pos)
{
    const struct di_config *c = m->c;
    size_t columns = (size_t)m->engram.columns;
    int32_t window[DI_MAX_NGRAM], pad = m->token_map[c->engram_pad_token_id];
    bool text = a->all.kind[i] == DI_ROW_TEXT;
    for (int back = 0; back < c->engram_max_ngram_size && text; back++)
        window[back] = pos < back || tokens[pos - back] == c->image_token_id ? -1 : m->token_map[tokens[pos - back]];
    for (int e = 0; e < c->n_engram; e++) {
        int64_t *rows = a->engram_rows + ((size_t)e * (size_t)n_rows + (size_t)i) * columns;
        if (text)
            di_engram_rows(&m->engram, e, window, pad, rows);
        for (size_t k = 0; k < columns && !text; k++)
            rows[k] = -1;
    }
}

static void fill_from_tokens(const struct di_model *m, const struct di_step *s, const struct arrays *a, int n_rows, int n_raw_rings)
{
    for (int k = 0, i = 0; k < s->n_chunks; k++) {
        bool padding = s->chunks[k].slot < 0;
        for (int32_t p = s->chunks[k].pos0; p < s->chunks[k].pos0 + s->chunks[k].n; p++, i++) {
            a->ids[i] = padding ? -1 : s->tokens[k][p];
            a->all.kind[i] = padding ? DI_ROW_PADDING : a->ids[i] == m->c->image_token_id ? DI_ROW_IMAGE : DI_ROW_TEXT;
            if (m->c->n_engram)
                fill_engram_rows(m, a, n_rows, i, s->tokens[k], p);
        }
    }
    for (int i = 0; i < n_raw_rings; i++)
        a->tails.kind[i] = a->all.kind[a->tails.kept[i]];
}

/* ---------------------------------------------------------------- the block */

/* The same arrays where the device has them. */
static void place_rows(const struct arrays *a, bool replays, struct di_step_rows *out)
{
    struct di_row_set *all = &out->all, *tails = &out->tails;
    *all = (struct di_row_set){.rows = {.m = all->rows.m,
                                        .n_chunks = all->rows.n_chunks,
                                        .chunks = a->all.chunks,
                                        .pos = a->all.pos,
                                        .chunk = a->all.chunk,
                                        .window_floor = replays ? a->all.floor : NULL},
                               .logit_rows = a->all.logit_rows,
                               .kind = a->all.kind};
    *tails = (struct di_row_set){.rows = {.m = tails->rows.m,
                                          .n_chunks = tails->rows.n_chunks,
                                          .chunks = a->tails.chunks,
                                          .pos = a->tails.pos,
                                          .chunk = a->tails.chunk,
                                          .window_floor = a->tails.floor},
                                 .kept = tails->rows.m < all->rows.m ? a->tails.kept : NULL,
                                 .logit_rows = a->tails.logit_rows,
                                 .kind = a->tails.kind};
    for (int i = 0; i < 2; i++) {
        out->closed[i].rows = a->closed_rows[i];
        out->closed[i].pos = a->closed_pos[i];
    }
    out->ids = a->ids;
    out->engram_rows = a->engram_rows;
}

di_status di_step_rows_send(struct di_model *m, const struct di_step *s, void DI_DEVICE *block, struct di_step_rows *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_backend *be = m->be;
    struct arrays here, there;
    struct di_carver staging = {.base = m->row_staging, .size = di_step_rows_bytes(m->c, m->params.max_rows)};
    struct di_carver device = {.base = (uint8_t *)block, .unmarked = true}; /* addresses only: one copy goes over all of it */
    int n_rows;
    *out = (struct di_step_rows){.tail_layer = -1};
    TRY(check_chunks(m, s, &n_rows, err));
    TRY(find_tails(m, s, &out->tail_layer, err));
    TRY(be->ops->wait(be, m->row_fence, err));
    bool tails = out->tail_layer >= 0;
    out->all.rows = (struct di_rows){.m = n_rows, .n_chunks = s->n_chunks};
    carve_arrays(m->c, n_rows, tails, &staging, &here);
    carve_arrays(m->c, n_rows, tails, &device, &there);
    fill_places(s, &here, out);
    if (tails) {
        TRY(check_tails(s, &here, err));
        fill_tails(s, &here, out);
    }
    fill_from_tokens(m, s, &here, n_rows, out->tails.rows.m);
    di_carve_open(&staging);
    be->ops->copy(be, &(struct di_op_copy){1, &(struct di_copy_span){block, m->row_staging, staging.used}});
    m->row_fence = be->ops->fence(be);
    place_rows(&there, s->replay != NULL, out);
out:
    di_carve_open(&staging);
    return status;
}
