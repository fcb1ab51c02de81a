/* Core attention (spec/model.md §5.5) with many heads: window rows and selected compressed rows of one query row, K = V.
 *
 * Per row at full size (64 heads, 512 channels, 640 keys): 84 MFLOP, 215 KB of packed keys, so arithmetic decides. Three stages:
 *   scores   lanes = heads: s[key][head] += k[key][c] * q[c][head] over ascending channels; tiles of 64 keys x 64 channels
 *   softmax  lanes = heads: maximum over all keys, then e^(s - max) and their sum in list order, the sink first
 *   output   lanes = channels: o[head][c] += p[key][head] * v[key][c] over the keys in list order
 * Keys are decoded a tile at a time, once for the scores and once for the output: 6 % of the arithmetic. No sum is ever
 * divided, so whether one thread does a row or all threads share it (keys, then heads, then channels) the bits are the same. */
#ifndef DI_BACKEND_CPU_VECTOR_ATTENTION_MANY_H
#define DI_BACKEND_CPU_VECTOR_ATTENTION_MANY_H

#include "backend/cpu/vector_keys.h"

#ifdef __AVX512F__
#define ATT_TALL 8 /* keys beside a single vector: as many accumulators as hide the latency of an fma */
#else
#define ATT_TALL 4
#endif

struct att_job {
    struct di_cpu *cpu;
    const struct di_op_attention *d;
};

static struct att_row take_row(const struct att_job *j, struct vec_arena *a)
{
    const struct di_config *c = j->cpu->be.params.config;
    return att_row_take(a, j->d->heads, j->d->d, c->sliding_window, c->index_topk);
}

/* The key list of a row: the window, oldest first, then its selected rows, ascending. */
static void list_keys(const struct di_op_attention *d, int row, struct att_row *r)
{
    r->count = 0;
    for (int32_t w = window_begin(d, row); w <= d->rows->pos[row]; w++)
        r->key[r->count++] = window_key(d, row, w);
    r->window = r->count;
    for (int i = 0; i < selected_count(d, row); i++)
        r->key[r->count++] = selected_key(d, row, i);
}

/* q[heads][d] -> [channel][lane], zeros beside and behind. Channel blocks [from, to). */
static void transpose_query(const struct di_op_attention *d, int row, const struct att_row *r, int from, int to)
{
    const float *q = (const float *)d->q + (int64_t)row * d->heads * d->d;
    int begin = from * ATT_CHAN, end = to * ATT_CHAN < d->d ? to * ATT_CHAN : d->d, heads = d->heads;
    if (heads < r->lanes || end < to * ATT_CHAN)
        memset(r->q + (int64_t)begin * r->lanes, 0, (size_t)((to - from) * ATT_CHAN) * (size_t)r->lanes * sizeof *q);
    for (int b = begin; b < end; b += ATT_CHAN) /* a block of 64 channels stays in L1 */
        for (int h = 0; h < heads; h++)
            for (int c = b; c < b + ATT_CHAN && c < end; c++)
                r->q[(int64_t)c * r->lanes + h] = q[(int64_t)h * d->d + c];
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

VEC_INLINE void score_block(const float *q, int lanes, const float *k, float *s, bool first, const int keys, const int vecs)
{
    vf acc[ATT_TALL][ATT_VECS];
    for (int j = 0; j < keys; j++)
        for (int v = 0; v < vecs; v++)
            acc[j][v] = first ? vf_zero() : vf_load(s + (int64_t)j * lanes + 16 * v);
    for (int c = 0; c < ATT_CHAN; c++) {
        vf qv[ATT_VECS];
        for (int v = 0; v < vecs; v++)
            qv[v] = vf_load(q + (int64_t)c * lanes + 16 * v);
        for (int j = 0; j < keys; j++) {
            vf kj = vf_set1(k[j * ATT_CHAN + c]);
            for (int v = 0; v < vecs; v++)
                acc[j][v] = vf_fma(kj, qv[v], acc[j][v]);
        }
    }
    for (int j = 0; j < keys; j++)
        for (int v = 0; v < vecs; v++)
            vf_store(s + (int64_t)j * lanes + 16 * v, acc[j][v]);
}

/* Scores of key tile t. */
static void score_tile(const struct att_job *job, const struct att_row *r, int t, const struct att_tile *tile)
{
    int from = t * ATT_KEYS, n = r->count - from < ATT_KEYS ? r->count - from : ATT_KEYS, padded = (int)vec_up(n, 4);
    int wide = r->lanes / (16 * ATT_VECS) * (16 * ATT_VECS);
    for (int b = 0; b < r->chans; b++) {
        const float *q = r->q + (int64_t)b * ATT_CHAN * r->lanes, *k = tile->k;
        float *s = r->s + (int64_t)from * r->lanes;
        decode_tile(r, job->d->d, b, from, n, tile->k);
        for (int j = 0; j < padded; j += 4)
            for (int l = 0; l < wide; l += 16 * ATT_VECS)
                score_block(q + l, r->lanes, k + j * ATT_CHAN, s + (int64_t)j * r->lanes + l, b == 0, 4, ATT_VECS);
        for (int l = wide; l < r->lanes; l += 16) {
            int j = 0;
            for (; j + ATT_TALL <= padded; j += ATT_TALL)
                score_block(q + l, r->lanes, k + j * ATT_CHAN, s + (int64_t)j * r->lanes + l, b == 0, ATT_TALL, 1);
            for (; j < padded; j += 4)
                score_block(q + l, r->lanes, k + j * ATT_CHAN, s + (int64_t)j * r->lanes + l, b == 0, 4, 1);
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

/* Output channels of block b, all heads. */
static void output_channels(const struct att_job *job, const struct att_row *r, int row, int b, const struct att_tile *tile)
{
    const struct di_op_attention *d = job->d;
    int heads = d->heads;
    for (int from = 0; from < r->count; from += ATT_KEYS) {
        int n = r->count - from < ATT_KEYS ? r->count - from : ATT_KEYS;
        decode_tile(r, d->d, b, from, n, tile->k);
        struct att_output out = {.v = tile->k, .ldp = r->lanes, .ldv = ATT_CHAN, .ldo = ATT_CHAN, .n = n, .first = from == 0};
        for (int h = 0; h < heads; h += 4) {
            out.p = r->s + (int64_t)from * r->lanes + h;
            out.o = tile->o + h * ATT_CHAN;
            for (int v = 0; v < ATT_CHAN; v += 16 * ATT_VECS)
                output_block(&out, v, ATT_VECS);
        }
    }
    int c = b * ATT_CHAN, width = d->d - c < ATT_CHAN ? d->d - c : ATT_CHAN;
    for (int h = 0; h < heads; h++) {
        float *o = (float *)d->o + ((int64_t)row * d->heads + h) * d->d + c;
        vf inv = vf_set1(r->inv[h]);
        for (int i = 0; i < width; i += 16)
            vf_store(o + i, vf_round_bf16(vf_mul(vf_load(tile->o + h * ATT_CHAN + i), inv)));
    }
}

/* Many rows: each thread works alone. */
static void many_heads_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct att_job job = {cpu, desc};
    struct vec_arena a = vec_thread(cpu, thread);
    struct att_tile tile = att_tile_take(&a, job.d->heads);
    struct att_row r = take_row(&job, &a);
    for (int i = (int)rows.begin; i < (int)rows.end; i++) {
        if (is_padding(job.d, i)) {
            clear_output(job.d, i);
            continue;
        }
        list_keys(job.d, i, &r);
        transpose_query(job.d, i, &r, 0, r.chans);
        for (int t = 0; t * ATT_KEYS < r.count; t++)
            score_tile(&job, &r, t, &tile);
        for (int l = 0; l < r.lanes; l += 16)
            softmax_lanes(&job, &r, l);
        for (int b = 0; b < r.chans; b++)
            output_channels(&job, &r, i, b, &tile);
    }
}

/* Few rows: all threads work on each, with a barrier between stages. Every thread keeps its own copy of the list's length. */
static void many_heads_together(void *ctx, int thread, int n_threads)
{
    const struct att_job *job = ctx;
    struct vec_arena shared = vec_shared(job->cpu), mine = vec_thread(job->cpu, thread);
    struct att_row r = take_row(job, &shared), copy;
    struct att_tile tile = att_tile_take(&mine, job->d->heads);
    copy = take_row(job, &mine); /* the key list is short: everybody writes one */
    r.key = copy.key;
    for (int i = 0; i < job->d->m; i++) {
        if (is_padding(job->d, i)) {
            if (thread == 0)
                clear_output(job->d, i);
            continue;
        }
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

#endif
