/* Core attention (spec/model.md §5.5): window rows and selected compressed rows of one query row, K = V, all heads.
 *
 * Per row at full size (64 heads, 512 channels, 640 keys): 84 MFLOP, 215 KB of packed keys, so arithmetic decides. Three stages:
 *   scores   lanes = heads: s[key][head] += k[key][c] * q[c][head] over ascending channels; tiles of 64 keys x 64 channels
 *   softmax  lanes = heads: maximum over all keys, then e^(s - max) and their sum in list order, the sink first
 *   output   lanes = channels: o[head][c] += p[key][head] * v[key][c] over the keys in list order
 * Keys are decoded to fp32 (exact) a tile at a time, once for the scores and once for the output: 6 % of the arithmetic. No sum is ever
 * divided, so whether one thread does a row or all threads share it (keys, then heads, then channels) the bits are the same. */
#ifndef DI_BACKEND_CPU_VECTOR_ATTENTION_H
#define DI_BACKEND_CPU_VECTOR_ATTENTION_H

#include "backend/cpu/vector_dense.h"

#ifdef __AVX512F__
#define ATT_VECS 4 /* vectors beside each of 4 broadcast values: 16 accumulators */
#else
#define ATT_VECS 1 /* 8 registers */
#endif

struct att_job {
    struct di_cpu *cpu;
    const struct di_op_attention *d;
};

static int most_keys(const struct att_job *j)
{
    const struct di_config *c = j->cpu->be.params.config;
    return c->sliding_window + c->index_topk;
}

/* The key list of a row: window rows, oldest first, then the selected groups as listed (ascending). */
static void list_keys(const struct di_op_attention *d, int row, struct att_row *r)
{
    const struct di_chunk *c = &d->rows->chunks[d->rows->chunk[row]];
    int32_t p = d->rows->pos[row], from = p - d->window + 1, floor = d->rows->window_floor ? d->rows->window_floor[row] : 0;
    r->count = 0;
    for (int32_t w = from > floor ? from : floor; w <= p; w++)
        r->key[r->count++] = w >= c->pos0 ? d->window_new + (size_t)(c->row0 + (w - c->pos0)) * d->kv->layout->window_row_bytes
                                          : di_kv_window_row(d->kv, c->slot, d->layer, w);
    r->window = r->count;
    const int32_t *sel = d->src >= 0 ? d->sel + (int64_t)row * d->sel_ld : NULL;
    for (int32_t s = 0; sel && s < d->sel_n[row]; s++)
        r->key[r->count++] = di_kv_comp_row(d->kv, c->slot, d->src, sel[s]);
}

/* q[heads][d] -> [channel][lane], zeros beside and behind. Channel blocks [from, to). */
static void transpose_query(const struct di_op_attention *d, int row, const struct att_row *r, int from, int to)
{
    const float *q = (const float *)d->q + (int64_t)row * d->heads * d->d;
    int begin = from * ATT_CHAN, end = to * ATT_CHAN < d->d ? to * ATT_CHAN : d->d;
    if (d->heads < r->lanes || end < to * ATT_CHAN)
        memset(r->q + (int64_t)begin * r->lanes, 0, (size_t)((to - from) * ATT_CHAN) * (size_t)r->lanes * sizeof *q);
    for (int b = begin; b < end; b += ATT_CHAN) /* a block of 64 channels stays in L1 */
        for (int h = 0; h < d->heads; h++)
            for (int c = b; c < b + ATT_CHAN && c < end; c++)
                r->q[(int64_t)c * r->lanes + h] = q[(int64_t)h * d->d + c];
}

VEC_INLINE void decode_q8(const uint8_t *row, int d, int c, int n, float *out)
{
    for (int i = 0; i < n; i += 32) {
        vf s = vf_set1(di_f32_from_bits((uint32_t)row[d + (c + i) / 32] << 23));
        vf_store(out + i, vf_mul(vf_e4m3(row + c + i), s));
        vf_store(out + i + 16, vf_mul(vf_e4m3(row + c + i + 16), s));
    }
}
VEC_INLINE void decode_q4s(const uint8_t *row, int d, int c, int n, float *out)
{
    for (int i = 0; i < n; i += 16)
        vf_store(out + i, vf_mul(vf_e2m1(row + (c + i) / 2), vf_set1(di_e4m3_value[row[d / 2 + (c + i) / 16]])));
}

/* Keys [from, from + n) at channel block b, [n][ATT_CHAN]; channels behind d and keys up to a multiple of 4 are zero. */
static void decode_tile(const struct att_row *r, int d, int b, int from, int n, float *out)
{
    int c = b * ATT_CHAN, width = d - c < ATT_CHAN ? d - c : ATT_CHAN;
    for (int j = from; j < from + n; j++, out += ATT_CHAN) {
        if (j < r->window)
            decode_q8(r->key[j], d, c, width, out);
        else
            decode_q4s(r->key[j], d, c, width, out);
        if (width < ATT_CHAN)
            memset(out + width, 0, (size_t)(ATT_CHAN - width) * sizeof *out);
    }
    memset(out, 0, (vec_up(n, 4) - (size_t)n) * ATT_CHAN * sizeof *out);
}

VEC_INLINE void score_block(const float *q, int lanes, const float *k, float *s, bool first, const int vecs)
{
    vf acc[4][ATT_VECS];
    for (int j = 0; j < 4; j++)
        for (int v = 0; v < vecs; v++)
            acc[j][v] = first ? vf_zero() : vf_load(s + (int64_t)j * lanes + 16 * v);
    for (int c = 0; c < ATT_CHAN; c++) {
        vf qv[ATT_VECS];
        for (int v = 0; v < vecs; v++)
            qv[v] = vf_load(q + (int64_t)c * lanes + 16 * v);
        for (int j = 0; j < 4; j++) {
            vf kj = vf_set1(k[j * ATT_CHAN + c]);
            for (int v = 0; v < vecs; v++)
                acc[j][v] = vf_fma(kj, qv[v], acc[j][v]);
        }
    }
    for (int j = 0; j < 4; j++)
        for (int v = 0; v < vecs; v++)
            vf_store(s + (int64_t)j * lanes + 16 * v, acc[j][v]);
}

/* Scores of key tile t. */
static void score_tile(const struct att_job *job, const struct att_row *r, int t, const struct att_tile *tile)
{
    int from = t * ATT_KEYS, n = r->count - from < ATT_KEYS ? r->count - from : ATT_KEYS;
    for (int b = 0; b < r->chans; b++) {
        const float *q = r->q + (int64_t)b * ATT_CHAN * r->lanes;
        decode_tile(r, job->d->d, b, from, n, tile->k);
        for (int j = 0; j < n; j += 4) {
            float *s = r->s + (int64_t)(from + j) * r->lanes;
            int l = 0;
            for (; l + 16 * ATT_VECS <= r->lanes; l += 16 * ATT_VECS)
                score_block(q + l, r->lanes, tile->k + j * ATT_CHAN, s + l, b == 0, ATT_VECS);
            for (; l < r->lanes; l += 16)
                score_block(q + l, r->lanes, tile->k + j * ATT_CHAN, s + l, b == 0, 1);
        }
    }
}

/* Sixteen heads. */
static void softmax_lanes(const struct att_job *job, const struct att_row *r, int lane)
{
    float sink[16] = {0};
    for (int h = lane; h < lane + 16 && h < job->d->heads; h++)
        sink[h - lane] = job->d->sink[h];
    vf scale = vf_set1(job->d->scale), top = vf_set1(-1e30f);
    for (int j = 0; j < r->count; j++)
        top = vf_max(top, vf_mul(vf_load(r->s + (int64_t)j * r->lanes + lane), scale));
    vf sum = vf_exp(vf_sub(vf_load(sink), top));
    for (int j = 0; j < r->count; j++) {
        float *at = r->s + (int64_t)j * r->lanes + lane;
        vf e = vf_exp(vf_sub(vf_mul(vf_load(at), scale), top));
        sum = vf_add(sum, e);
        vf_store(at, e);
    }
    vf_store(r->inv + lane, vf_div(vf_set1(1), sum));
}

VEC_INLINE void output_block(const float *p, int lanes, const float *k, int n, float *o, bool first, const int vecs)
{
    vf acc[4][ATT_VECS];
    for (int h = 0; h < 4; h++)
        for (int v = 0; v < vecs; v++)
            acc[h][v] = first ? vf_zero() : vf_load(o + h * ATT_CHAN + 16 * v);
    for (int j = 0; j < n; j++) {
        vf kv[ATT_VECS];
        for (int v = 0; v < vecs; v++)
            kv[v] = vf_load(k + j * ATT_CHAN + 16 * v);
        for (int h = 0; h < 4; h++) {
            vf ph = vf_set1(p[(int64_t)j * lanes + h]);
            for (int v = 0; v < vecs; v++)
                acc[h][v] = vf_fma(ph, kv[v], acc[h][v]);
        }
    }
    for (int h = 0; h < 4; h++)
        for (int v = 0; v < vecs; v++)
            vf_store(o + h * ATT_CHAN + 16 * v, acc[h][v]);
}

/* Output channels of block b, all heads. */
static void output_channels(const struct att_job *job, const struct att_row *r, int row, int b, const struct att_tile *tile)
{
    const struct di_op_attention *d = job->d;
    for (int from = 0; from < r->count; from += ATT_KEYS) {
        int n = r->count - from < ATT_KEYS ? r->count - from : ATT_KEYS;
        decode_tile(r, d->d, b, from, n, tile->k);
        for (int h = 0; h < d->heads; h += 4)
            for (int v = 0; v < ATT_CHAN; v += 16 * ATT_VECS)
                output_block(r->s + (int64_t)from * r->lanes + h, r->lanes, tile->k + v, n, tile->o + h * ATT_CHAN + v, from == 0,
                             ATT_VECS);
    }
    int c = b * ATT_CHAN, width = d->d - c < ATT_CHAN ? d->d - c : ATT_CHAN;
    for (int h = 0; h < d->heads; h++) {
        float *o = (float *)d->o + ((int64_t)row * d->heads + h) * d->d + c;
        vf inv = vf_set1(r->inv[h]);
        for (int i = 0; i < width; i += 16)
            vf_store(o + i, vf_round_bf16(vf_mul(vf_load(tile->o + h * ATT_CHAN + i), inv)));
    }
}

/* Many rows: each thread works alone. */
static void attention_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct att_job job = {cpu, desc};
    struct vec_arena a = vec_thread(cpu, thread);
    struct att_tile tile = att_tile_take(&a, job.d->heads);
    struct att_row r = att_row_take(&a, job.d->heads, job.d->d, most_keys(&job));
    for (int64_t i = rows.begin; i < rows.end; i++) {
        list_keys(job.d, (int)i, &r);
        transpose_query(job.d, (int)i, &r, 0, r.chans);
        for (int t = 0; t * ATT_KEYS < r.count; t++)
            score_tile(&job, &r, t, &tile);
        for (int l = 0; l < r.lanes; l += 16)
            softmax_lanes(&job, &r, l);
        for (int b = 0; b < r.chans; b++)
            output_channels(&job, &r, (int)i, b, &tile);
    }
}

/* Few rows: all threads work on each, with a barrier between stages. Every thread keeps its own copy of the list's length. */
static void attention_together(void *ctx, int thread, int n_threads)
{
    const struct att_job *job = ctx;
    struct vec_arena shared = vec_shared(job->cpu), mine = vec_thread(job->cpu, thread);
    struct att_row r = att_row_take(&shared, job->d->heads, job->d->d, most_keys(job));
    struct att_tile tile = att_tile_take(&mine, job->d->heads);
    struct vec_arena own = mine; /* the key list is short: everybody writes one */
    r.key = att_row_take(&own, job->d->heads, job->d->d, most_keys(job)).key;
    for (int i = 0; i < job->d->m; i++) {
        list_keys(job->d, i, &r);
        di_range chans = di_split(r.chans, 1, thread, n_threads);
        transpose_query(job->d, i, &r, (int)chans.begin, (int)chans.end);
        vec_barrier(job->cpu, n_threads);
        di_range part = di_split((r.count + ATT_KEYS - 1) / ATT_KEYS, 1, thread, n_threads);
        for (int64_t t = part.begin; t < part.end; t++)
            score_tile(job, &r, (int)t, &tile);
        vec_barrier(job->cpu, n_threads);
        part = di_split(r.lanes, 16, thread, n_threads);
        for (int64_t l = part.begin; l < part.end; l += 16)
            softmax_lanes(job, &r, (int)l);
        vec_barrier(job->cpu, n_threads);
        for (int64_t b = chans.begin; b < chans.end; b++)
            output_channels(job, &r, i, (int)b, &tile);
        vec_barrier(job->cpu, n_threads); /* nobody may overwrite q and s before all have read them */
    }
}

static void vec_attention(struct di_backend *be, const struct di_op_attention *d)
{
    struct att_job job = {di_cpu_of(be), d};
    int threads = job.cpu->threads;
    /* FLOP of a row with a full list; a share per thread must be worth five synchronisations */
    int64_t flop = 4 * (int64_t)vec_up(d->heads, 16) * d->d * (d->window + (d->src >= 0 ? d->sel_ld : 0));
    if (d->m < 3 * threads && d->m % threads != 0 && flop / threads > 10 * VEC_FORK_FLOP)
        vec_run(job.cpu, true, attention_together, &job);
    else
        vec_rows(be, d->m, flop, attention_rows, d);
}

#endif
