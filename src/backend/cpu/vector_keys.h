/* Keys of the core attention (spec/model.md §5.5): the list of a row, and packed rows decoded to fp32 (exact). */
#ifndef DI_BACKEND_CPU_VECTOR_KEYS_H
#define DI_BACKEND_CPU_VECTOR_KEYS_H

#include "backend/cpu/vector_dense.h"

/* First window position that `row` sees. */
static int32_t window_begin(const struct di_op_attention *d, int row)
{
    int32_t floor = d->rows->window_floor ? d->rows->window_floor[row] : 0, first = d->rows->pos[row] - d->window + 1;
    return first > floor ? first : floor;
}

/* Packed window row at position w, as the rows of `row`'s chunk see it: new ones come from this step, older ones from the ring. */
static const uint8_t *window_key(const struct di_op_attention *d, int row, int32_t w)
{
    const struct di_chunk *c = &d->rows->chunks[d->rows->chunk[row]];
    return w >= c->pos0 ? d->window_new + (size_t)(c->row0 + (w - c->pos0)) * d->kv->layout->window_row_bytes
                        : di_kv_window_row(d->kv, c->slot, d->layer, w);
}

/* The i-th selected key of `row`, and how many there are. */
static const uint8_t *selected_key(const struct di_op_attention *d, int row, int i)
{
    return di_kv_comp_row(d->kv, di_slot_of_row(d->rows, row), d->src, d->sel[(int64_t)row * d->sel_ld + i]);
}
static int selected_count(const struct di_op_attention *d, int row)
{
    return d->src >= 0 ? d->sel_n[row] : 0;
}

/* Nobody's row: its result is zeros. */
static bool is_padding(const struct di_op_attention *d, int row)
{
    return di_slot_of_row(d->rows, row) < 0;
}
static void clear_output(const struct di_op_attention *d, int row)
{
    size_t n = (size_t)d->heads * (size_t)d->d;
    memset((float *)d->o + (size_t)row * n, 0, n * sizeof(float));
}

/* Channels [c, c + n) of a window row or of a compressed row; c and n are multiples of 32. */
VEC_INLINE void decode_q8(const uint8_t *row, int d, int c, int n, float *out)
{
    const uint8_t *code = row + c, *scale = row + d + (unsigned)c / 32;
    for (const uint8_t *end = code + n; code < end; code += 32, out += 32) {
        vi exponent = vi_set1(*scale++);
        vf v[2], factor = vi_as_f32(vi_sll(exponent, 23));
        vf_e4m3_two(code, v);
        vf_store(out, vf_mul(v[0], factor));
        vf_store(out + 16, vf_mul(v[1], factor));
    }
}
VEC_INLINE void decode_q4s(const uint8_t *row, int d, int c, int n, float *out)
{
    const uint8_t *code = row + (unsigned)c / 2, *scale = row + (unsigned)d / 2 + (unsigned)c / 16;
    for (const uint8_t *end = code + n / 2; code < end; code += 8, out += 16)
        vf_store(out, vf_mul(vf_e2m1(code), vf_set1(di_e4m3_value[*scale++])));
}

#ifdef __AVX512F__
#define ATT_VECS 4 /* vectors beside each of 4 broadcast values: 16 accumulators */
#else
#define ATT_VECS 1 /* 8 registers */
#endif

/* o[4 heads][ldo] += p[key][ldp] * v[key][ldv] over n keys in order; `vecs` vectors of channels. */
struct att_output {
    const float *p, *v;
    float *o;
    int ldp, ldv, ldo, n;
    bool first; /* o starts at 0 */
};
VEC_INLINE void output_block(const struct att_output *t, int at, const int vecs)
{
    const float *p = t->p, *v = t->v + at;
    float *o = t->o + at;
    vf acc[4][ATT_VECS];
    for (int h = 0; h < 4; h++)
        for (int i = 0; i < vecs; i++)
            acc[h][i] = t->first ? vf_zero() : vf_load(o + h * t->ldo + 16 * i);
    for (int j = 0; j < t->n; j++, p += t->ldp, v += t->ldv) {
        vf value[ATT_VECS];
        for (int i = 0; i < vecs; i++)
            value[i] = vf_load(v + 16 * i);
        for (int h = 0; h < 4; h++) {
            vf weight = vf_set1(p[h]);
            for (int i = 0; i < vecs; i++)
                acc[h][i] = vf_fma(weight, value[i], acc[h][i]);
        }
    }
    for (int h = 0; h < 4; h++)
        for (int i = 0; i < vecs; i++)
            vf_store(o + h * t->ldo + 16 * i, acc[h][i]);
}

#endif
