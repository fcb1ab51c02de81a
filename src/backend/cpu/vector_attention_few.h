/* Core attention (spec/model.md §5.5) with few heads, which would not fill the lanes of a vector: the lanes are channels instead.
 *
 *   keys     decoded once for scores and output; window keys once for up to FEW_ROWS consecutive rows of a chunk, whose windows overlap
 *   scores   s[key][head] = sum over channels: lane l takes the channels l, l + 16, .., then the lanes are added by vf_sum's tree
 *   softmax  lanes = 4 keys x 4 heads: maximum, e^(s - max) and four sums: key j of the list belongs to sum j mod 4, the sink to sum 0
 *   output   o[head][c] += p[key][head] * v[key][c] over the keys in list order
 *
 * Per row of 4 heads, 128 channels, 192 keys: 197 thousand multiply-adds (12288 vectors, two a cycle), 22 KB of packed keys (1536 vectors
 * to decode, 3 to 5 instructions each). What a row gets depends on its own list only. */
#ifndef DI_BACKEND_CPU_VECTOR_ATTENTION_FEW_H
#define DI_BACKEND_CPU_VECTOR_ATTENTION_FEW_H

#include "backend/cpu/vector_keys.h"

/* Packed rows come from the level 3 cache or from memory when many requests take turns: they are asked for early. */
static void prefetch_row(const uint8_t *row, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)row + i, _MM_HINT_T0);
    _mm_prefetch((const char *)row + bytes - 1, _MM_HINT_T0);
}

/* Window keys first .. first + n; `ahead` keys before its turn each is on its way. */
static void decode_window(const struct di_op_attention *d, int row, int32_t first, int n, float *out)
{
    const int ahead = 12, bytes = (int)d->kv->layout->window_row_bytes;
    for (int j = -ahead; j < n; j++) {
        if (j + ahead < n)
            prefetch_row(window_key(d, row, first + j + ahead), bytes);
        if (j >= 0)
            decode_q8(window_key(d, row, first + j), d->d, 0, d->d, out + (int64_t)j * d->d);
    }
}
static void find_selected(const struct di_op_attention *d, int row, const uint8_t **key)
{
    for (int j = 0; j < selected_count(d, row); j++)
        prefetch_row(key[j] = selected_key(d, row, j), (int)d->kv->layout->comp_row_bytes);
}
static void decode_selected(const struct di_op_attention *d, const uint8_t *const *key, int n, float *out)
{
    for (int j = 0; j < n; j++)
        decode_q4s(key[j], d->d, 0, d->d, out + (int64_t)j * d->d);
}

#ifdef __AVX512F__
#define FEW_KEYS 4 /* beside 4 heads: 16 accumulators */

/* Quarter i: the i-th vector, lane l with l + 8, then + 4: vf_sum's first two steps. */
VEC_INLINE vf quarter_sums(vf a, vf b, vf c, vf d)
{
    vf p = vf_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    vf q = vf_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    return vf_add(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xDD));
}
/* s[key][head] = vf_sum(acc[head][key]) */
VEC_INLINE void store_sums(float *s, vf acc[4][FEW_KEYS])
{
    vf t[4];
    for (int h = 0; h < 4; h++)
        t[h] = quarter_sums(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
    vf p = vf_add(_mm512_shuffle_ps(t[0], t[1], 0x44), _mm512_shuffle_ps(t[0], t[1], 0xEE));
    vf q = vf_add(_mm512_shuffle_ps(t[2], t[3], 0x44), _mm512_shuffle_ps(t[2], t[3], 0xEE));
    vf_store(s, vf_add(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xDD)));
}
#else
#define FEW_KEYS 1 /* beside 4 heads: 8 registers */

VEC_INLINE void store_sums(float *s, vf acc[4][FEW_KEYS])
{
    __m128 t[4];
    for (int h = 0; h < 4; h++) {
        __m256 half = _mm256_add_ps(acc[h][0].lo, acc[h][0].hi);
        t[h] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    }
    __m128 p = _mm_add_ps(_mm_shuffle_ps(t[0], t[1], 0x44), _mm_shuffle_ps(t[0], t[1], 0xEE));
    __m128 q = _mm_add_ps(_mm_shuffle_ps(t[2], t[3], 0x44), _mm_shuffle_ps(t[2], t[3], 0xEE));
    _mm_storeu_ps(s, _mm_add_ps(_mm_shuffle_ps(p, q, 0x88), _mm_shuffle_ps(p, q, 0xDD)));
}
#endif

/* Scores of n keys and four heads; the last step may write, and read keys, up to a multiple of FEW_KEYS. */
static void score_keys_few(const float *q, const float *k, int d, int n, float *s)
{
    for (int j = 0; j < n; j += FEW_KEYS, k += FEW_KEYS * d, s += 4 * FEW_KEYS) {
        vf acc[4][FEW_KEYS];
        for (int h = 0; h < 4; h++)
            for (int i = 0; i < FEW_KEYS; i++)
                acc[h][i] = vf_zero();
        for (int c = 0; c < d; c += 16) {
            vf key[FEW_KEYS];
            for (int i = 0; i < FEW_KEYS; i++)
                key[i] = vf_load(k + i * d + c);
            for (int h = 0; h < 4; h++) {
                vf query = vf_load(q + h * d + c);
                for (int i = 0; i < FEW_KEYS; i++)
                    acc[h][i] = vf_fma(query, key[i], acc[h][i]);
            }
        }
        store_sums(s, acc);
    }
}

/* s[count][4 heads] becomes e^(s - max); inv[4] = 1 / denominator. */
static void softmax_few(float *s, int count, float scale, const float sink[16], float inv[16])
{
    vf factor = vf_set1(scale), top = vf_set1(-1e30f);
    for (int j = count; j % 4; j++) /* no candidates for the maximum, and of weight 0 */
        for (int h = 0; h < 4; h++)
            s[4 * j + h] = -3e38f;
    for (int j = 0; j < count; j += 4)
        top = vf_max(top, vf_mul(vf_load(s + 4 * j), factor));
    top = vf_max(vf_max(vf_row(top, 0), vf_row(top, 1)), vf_max(vf_row(top, 2), vf_row(top, 3)));
    vf sum = vf_exp(vf_sub(vf_load(sink), top)); /* 0 for the lanes without a sink */
    for (int j = 0; j < count; j += 4) {
        vf e = vf_exp(vf_sub(vf_mul(vf_load(s + 4 * j), factor), top));
        sum = vf_add(sum, e);
        vf_store(s + 4 * j, e);
    }
    sum = vf_add(vf_add(vf_row(sum, 0), vf_row(sum, 1)), vf_add(vf_row(sum, 2), vf_row(sum, 3)));
    vf_store(inv, vf_div(vf_set1(1), sum));
}

/* All channels of four heads over n keys, FEW_TILE keys at a time, so that they wait in L1 for the second half of the channels. */
static void output_few(const float *p, const float *v, int d, int n, float *o, bool first)
{
    for (int from = 0; from < n; from += FEW_TILE) {
        int keys = n - from < FEW_TILE ? n - from : FEW_TILE, c = 0;
        struct att_output t = {
            .p = p + 4 * from, .v = v + (int64_t)from * d, .ldp = 4, .ldv = d, .ldo = d, .n = keys, .first = first && from == 0};
        t.o = o;
        for (; c + 16 * ATT_VECS <= d; c += 16 * ATT_VECS)
            output_block(&t, c, ATT_VECS);
        for (; c < d; c += 16)
            output_block(&t, c, 1);
    }
}

/* Heads [head, head + 4) of one row over its window keys and its selected keys. */
struct few_keys {
    const float *window, *selected;
    int n_window, n_selected;
};
static void attend_few(const struct di_op_attention *d, int row, int head, const struct few_keys *k, const struct att_few *w)
{
    int heads = d->heads - head < 4 ? d->heads - head : 4;
    size_t n = (size_t)heads * (size_t)d->d, at = ((size_t)row * (size_t)d->heads + (size_t)head) * (size_t)d->d;
    float sink[16], inv[16];
    const float *q = (const float *)d->q + at;
    if (heads < 4) {
        memset(w->q, 0, 4 * (size_t)d->d * sizeof *q);
        q = memcpy(w->q, q, n * sizeof *q);
    }
    for (int h = 0; h < 16; h++)
        sink[h] = h < heads ? d->sink[head + h] : -INFINITY;
    score_keys_few(q, k->window, d->d, k->n_window, w->s);
    score_keys_few(q, k->selected, d->d, k->n_selected, w->s + 4 * k->n_window);
    softmax_few(w->s, k->n_window + k->n_selected, d->scale, sink, inv);
    output_few(w->s, k->window, d->d, k->n_window, w->o, true);
    output_few(w->s + 4 * k->n_window, k->selected, d->d, k->n_selected, w->o, k->n_window == 0);
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < d->d; c += 16) {
            float *o = (float *)d->o + at + h * d->d + c;
            vf_store(o, vf_round_bf16(vf_mul(vf_load(w->o + h * d->d + c), vf_set1(inv[h]))));
        }
}

static void few_heads_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct di_op_attention *d = desc;
    const struct di_config *c = cpu->be.params.config;
    struct vec_arena a = vec_thread(cpu, thread);
    struct att_few w = att_few_take(&a, d->d, c->sliding_window, c->index_topk);
    for (int i = (int)rows.begin, n; i < (int)rows.end; i += n) {
        int32_t first = window_begin(d, i);
        for (n = 1; n < FEW_ROWS && i + n < (int)rows.end && d->rows->chunk[i + n] == d->rows->chunk[i]; n++)
            first = window_begin(d, i + n) < first ? window_begin(d, i + n) : first;
        if (is_padding(d, i)) {
            for (int r = i; r < i + n; r++)
                clear_output(d, r);
            continue;
        }
        find_selected(d, i, w.key);
        decode_window(d, i, first, d->rows->pos[i + n - 1] - first + 1, w.window);
        for (int r = i; r < i + n; r++) {
            int32_t begin = window_begin(d, r);
            struct few_keys k = {w.window + (int64_t)(begin - first) * d->d, w.selected, d->rows->pos[r] - begin + 1, selected_count(d, r)};
            decode_selected(d, w.key, k.n_selected, w.selected);
            if (r + 1 < i + n)
                find_selected(d, r + 1, w.key);
            for (int h = 0; h < d->heads; h += 4)
                attend_few(d, r, h, &k, &w);
        }
    }
}

#endif
