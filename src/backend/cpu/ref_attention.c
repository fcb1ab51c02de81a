/* Reference ops that read cached state: indexer, two-level top-k, core attention. */
#include "backend/cpu/ref.h"

#include <stdlib.h>

#define MASKED (-INFINITY)

typedef void unpack_fn(const uint8_t *row, size_t n, float *x);
static void unpack_row(const struct di_backend *be, unpack_fn *unpack, const uint8_t *row, int n, float *x)
{
    if (be->params.numerics.q_cache)
        unpack(row, (size_t)n, x);
    else
        memcpy(x, row, (size_t)n * sizeof *x);
}

static float dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int c = 0; c < n; c++)
        sum += (double)a[c] * b[c];
    return (float)sum;
}

void ref_index_query(struct di_backend *be, const struct di_op_index_query *d)
{
    float *q = d->q;
    for (int i = 0; i < d->m; i++)
        for (int h = 0; h < d->heads; h++, q += d->d) {
            size_t at = (size_t)i * (size_t)d->half;
            ref_rope_row(be, q, d->d, d->half, d->cos + at, d->sin + at, false);
            if (be->params.numerics.q_cache)
                di_q4e_round(q, (size_t)d->d, q);
        }
}

static int by_score(const void *a, const void *b)
{
    const struct ref_ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1; /* equal scores: the lower index first (spec §5.7.7) */
}

static int by_index(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The k best of score[0..n), masked ones never, in ascending order of index. Returns how many. */
static int32_t top_k(const float *score, int32_t n, int32_t k, struct ref_ranked *work, int32_t *out)
{
    int32_t count = 0;
    for (int32_t j = 0; j < n; j++)
        if (score[j] != MASKED)
            work[count++] = (struct ref_ranked){score[j], j};
    qsort(work, (size_t)count, sizeof *work, by_score);
    if (count > k)
        count = k;
    for (int32_t j = 0; j < count; j++)
        out[j] = work[j].index;
    qsort(out, (size_t)count, sizeof *out, by_index);
    return count;
}

static void score_groups(struct di_backend *be, const struct di_op_index_select *d, int row, int32_t n, float *score, float *key)
{
    int slot = di_slot_of_row(d->rows, row);
    const float *q = (const float *)d->q + (size_t)row * (size_t)(d->heads * d->d);
    const float *w = (const float *)d->w + (size_t)row * (size_t)d->heads;
    for (int32_t j = 0; j < n; j++) {
        unpack_row(be, di_q4e_unpack, di_kv_key_row(d->kv, slot, d->src, j), d->d, key);
        float sum = 0;
        for (int h = 0; h < d->heads; h++)
            sum += w[h] * fmaxf(0.0f, dot(q + h * d->d, key, d->d));
        score[j] = sum;
    }
}

/* Candidate blocks of a row (spec §5.7.5): best block maxima, the newest block always. */
static void produce_candidates(const struct di_op_index_select *d, int row, int32_t n, const float *score, struct ref_ranked *work,
                               float *block)
{
    int32_t size = d->cand_block_size, blocks = (n + size - 1) / size;
    for (int32_t b = 0; b < blocks; b++) {
        block[b] = MASKED;
        for (int32_t j = b * size; j < n && j < (b + 1) * size; j++)
            block[b] = fmaxf(block[b], score[j]);
    }
    if (n > 0)
        block[(n - 1) / size] = INFINITY;
    d->cand_n[row] = top_k(block, blocks, d->cand_blocks, work, d->cand + (size_t)row * (size_t)d->cand_blocks);
}

static void mask_others(const struct di_op_index_select *d, int row, int32_t n, float *score)
{
    const int32_t *cand = d->cand + (size_t)row * (size_t)d->cand_blocks;
    int32_t next = 0, count = d->cand_n[row];
    for (int32_t j = 0; j < n; j++) {
        while (next < count && (cand[next] + 1) * d->cand_block_size <= j)
            next++;
        if (next == count || j < cand[next] * d->cand_block_size)
            score[j] = MASKED;
    }
}

void ref_index_select(struct di_backend *be, const struct di_op_index_select *d)
{
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    struct ref_index_work w = ref_index_carve(&shared, be->params.max_context, d->d);
    for (int i = 0; i < d->m; i++) {
        int32_t n = di_slot_of_row(d->rows, i) < 0 ? 0 : (d->rows->pos[i] + 1) / d->kv->layout->ratio[d->src];
        score_groups(be, d, i, n, w.score, w.key);
        if (d->mode == DI_CAND_PRODUCE)
            produce_candidates(d, i, n, w.score, w.ranked, w.block);
        if (d->mode == DI_CAND_FILTER)
            mask_others(d, i, n, w.score);
        for (int64_t j = 0; d->scores && j < d->scores_ld; j++)
            d->scores[i * d->scores_ld + j] = j < n && w.score[j] != MASKED ? w.score[j] : -1e30f;
        d->sel_n[i] = top_k(w.score, n, d->topk, w.ranked, d->sel + (size_t)i * (size_t)d->topk);
    }
}

/* All keys of a row as fp32 [count][d]: the window, oldest first, then the selected groups. */
static int gather_keys(struct di_backend *be, const struct di_op_attention *d, int row, float *keys)
{
    const struct di_chunk *c = &d->rows->chunks[d->rows->chunk[row]];
    int32_t floor = d->rows->window_floor ? d->rows->window_floor[row] : 0;
    int32_t from = (d->block ? c->pos0 : d->rows->pos[row] + 1) - d->window, end = d->block ? c->pos0 + c->n : d->rows->pos[row] + 1;
    int count = 0;
    for (int32_t w = from > floor ? from : floor; w < end; w++, count++) {
        const uint8_t *bytes = w >= c->pos0 ? d->window_new + (size_t)(c->row0 + w - c->pos0) * d->kv->layout->window_row_bytes
                                            : di_kv_window_row(d->kv, c->slot, d->layer, w);
        unpack_row(be, di_q8_unpack, bytes, d->d, keys + (size_t)count * (size_t)d->d);
    }
    for (int32_t s = 0; d->src >= 0 && s < d->sel_n[row]; s++, count++) {
        int32_t j = d->sel[(size_t)row * (size_t)d->sel_ld + (size_t)s];
        unpack_row(be, di_q4s_unpack, di_kv_comp_row(d->kv, c->slot, d->src, j), d->d, keys + (size_t)count * (size_t)d->d);
    }
    return count;
}

void ref_attention(struct di_backend *be, const struct di_op_attention *d)
{
    int most = d->window + di_cpu_more_keys(be->params.config);
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    struct ref_attention_work w = ref_attention_carve(&shared, most, d->d);
    float *keys = w.keys, *p = w.p;
    for (int i = 0; i < d->m; i++) {
        if (di_slot_of_row(d->rows, i) < 0) {
            size_t n = (size_t)d->heads * (size_t)d->d;
            memset((float *)d->o + (size_t)i * n, 0, n * sizeof(float));
            continue;
        }
        int count = gather_keys(be, d, i, keys);
        for (int h = 0; h < d->heads; h++) {
            size_t at = ((size_t)i * (size_t)d->heads + (size_t)h) * (size_t)d->d;
            const float *q = (const float *)d->q + at;
            float *o = (float *)d->o + at, top = -1e30f;
            for (int j = 0; j < count; j++) {
                p[j] = dot(q, keys + (size_t)j * (size_t)d->d, d->d) * d->scale;
                top = fmaxf(top, p[j]);
            }
            double den = expf(d->sink[h] - top);
            for (int j = 0; j < count; j++)
                den += p[j] = expf(p[j] - top);
            for (int c = 0; c < d->d; c++) {
                double sum = 0;
                for (int j = 0; j < count; j++)
                    sum += (double)p[j] * keys[(size_t)j * (size_t)d->d + (size_t)c];
                o[c] = ref_b(be, (float)(sum / den));
            }
        }
    }
}
