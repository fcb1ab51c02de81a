/* Fast ops that write cached state (spec/model.md §5.6, §6): window rows, pooled latents, index keys, compressed rows, and the
 * indexer's query. Packed bytes equal those of checkpoint/formats.h. Copies into rings (window_commit, raw_commit) are memcpy in the
 * reference already. */
#ifndef DI_BACKEND_CPU_VECTOR_CACHE_H
#define DI_BACKEND_CPU_VECTOR_CACHE_H

#include "backend/cpu/vector_dense.h"

/* ---------------------------------------------------------------- packed rows: all codes, then all scales */

static void pack_q8(const float *x, int n, uint8_t *row)
{
    for (int i = 0; i < n; i += 32) {
        vf v[2] = {vf_load(x + i), vf_load(x + i + 16)};
        int e = Q8_EXPONENT(v[0], v[1]);
        vf inverse = vf_set1(power_of_two(-e));
        for (int k = 0; k < 2; k++) {
            vf y = vf_mul(v[k], inverse);
            vi_store_u8(row + i + 16 * k, vi_or(mini_code(y, FORMAT_E4M3), vi_srl(vf_sign(y), 24)));
        }
        row[n + i / 32] = (uint8_t)(e + 127);
    }
}

/* Sixteen E2M1 codes, the even element in the low nibble. */
VEC_INLINE void store_e2m1(uint8_t *p, vf y)
{
    uint8_t code[16];
    uint64_t part[2];
    vi_store_u8(code, vi_or(mini_code(y, FORMAT_E2M1), vi_srl(vf_sign(y), 28)));
    memcpy(part, code, 16);
    uint64_t nibbles = _pext_u64(part[0], 0x0F0F0F0F0F0F0F0F) | _pext_u64(part[1], 0x0F0F0F0F0F0F0F0F) << 32;
    memcpy(p, &nibbles, 8);
}

static void pack_q4e(const float *x, int n, uint8_t *row)
{
    for (int i = 0; i < n; i += 32) {
        vf a = vf_load(x + i), b = vf_load(x + i + 16);
        int e = Q4E_EXPONENT(a, b);
        vf inverse = vf_set1(power_of_two(-e));
        store_e2m1(row + i / 2, vf_mul(a, inverse));
        store_e2m1(row + i / 2 + 8, vf_mul(b, inverse));
        row[n / 2 + i / 32] = (uint8_t)(e + 127);
    }
}

/* The quotient is divided, not multiplied by the reciprocal: ties differ (spec §4.1). */
static void pack_q4s(const float *x, int n, uint8_t *row)
{
    for (int i = 0; i < n; i += 16) {
        vf v = vf_load(x + i);
        float amax = vf_largest(vf_abs(v));
        uint8_t scale = di_e4m3_encode((amax > 6 * 0x1p-9f ? amax : 6 * 0x1p-9f) / 6.0f);
        store_e2m1(row + i / 2, vf_div(v, vf_set1(di_e4m3_value[scale])));
        row[n / 2 + i / 16] = scale;
    }
}

static float *row_scratch(struct di_cpu *cpu, int thread, int n)
{
    struct vec_arena a = vec_thread(cpu, thread);
    return vec_take(&a, (size_t)n, sizeof(float));
}

/* ---------------------------------------------------------------- ops */

static void window_store_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct di_op_window_store *d = desc;
    float *c = row_scratch(cpu, thread, d->d);
    for (int64_t i = rows.begin; i < rows.end; i++) {
        row_rmsnorm((const float *)d->kv + i * d->d, d->d, d->eps, d->w, c);
        row_rope(c, 1, d->d, d->half, d->cos + i * d->half, d->sin + i * d->half, false);
        pack_q8(c, d->d, d->rows + (size_t)i * cpu->be.layout.window_row_bytes);
    }
}
static void vec_window_store(struct di_backend *be, const struct di_op_window_store *d)
{
    vec_rows(be, d->m, 32 * (int64_t)d->d, window_store_rows, d);
}

/* Softmax-weighted sum of the two members of a group, per channel, B (spec §5.6). */
static void pool_pair(const float *kv0, const float *gate0, const float *kv1, const float *gate1, int d, float *out)
{
    for (int c = 0; c < d; c += 16) {
        vf g0 = vf_load(gate0 + c), g1 = vf_load(gate1 + c), top = vf_max(g0, g1);
        vf e0 = vf_exp(vf_sub(g0, top)), e1 = vf_exp(vf_sub(g1, top)), sum = vf_add(e0, e1);
        vf pooled = vf_add(vf_mul(vf_div(e0, sum), vf_load(kv0 + c)), vf_mul(vf_div(e1, sum), vf_load(kv1 + c)));
        vf_store(out + c, vf_round_bf16(pooled));
    }
}

static void compress_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_compress *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        int32_t row = d->closed[i];
        float *y = (float *)d->latent + i * d->d;
        const float *pooled = y;
        if (row < 0) {
            memset(y, 0, (size_t)d->d * sizeof *y);
            continue;
        }
        if (d->kv->layout->ratio[d->src] == 1) {
            pooled = (const float *)d->kv_act + (int64_t)row * d->d;
        } else {
            const struct di_chunk *c = &d->rows->chunks[d->rows->chunk[row]];
            int64_t at = (int64_t)row * d->d;
            const float *kv0 = d->kv_f32 + (at - d->d), *gate0 = d->gate + (at - d->d);
            if (row == c->row0) { /* the first member came in an earlier step */
                kv0 = di_kv_raw_row(d->kv, c->slot, d->kv->layout->raw_ring[d->src], d->rows->pos[row] - 1);
                gate0 = kv0 + d->d;
            }
            pool_pair(kv0, gate0, d->kv_f32 + at, d->gate + at, d->d, y);
        }
        row_rmsnorm(pooled, d->d, d->eps, d->w, y);
    }
}
static void vec_compress(struct di_backend *be, const struct di_op_compress *d)
{
    vec_rows(be, d->n_closed, 32 * (int64_t)d->d, compress_rows, d);
}

/* Slot and group that row `row` closes. */
static int closed_group(const struct di_rows *rows, const struct di_kv *kv, int src, int32_t row, int32_t *group)
{
    *group = rows->pos[row] / kv->layout->ratio[src];
    return di_slot_of_row(rows, row);
}

static void key_store_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct di_op_key_store *d = desc;
    float *k = row_scratch(cpu, thread, d->d);
    for (int64_t i = rows.begin; i < rows.end; i++) {
        int32_t group;
        if (d->closed[i] < 0)
            continue;
        int slot = closed_group(d->rows, d->kv, d->src, d->closed[i], &group);
        row_rmsnorm((const float *)d->k + i * d->d, d->d, d->eps, d->w, k);
        row_rope(k, 1, d->d, d->half, d->cos + i * d->half, d->sin + i * d->half, false);
        pack_q4e(k, d->d, di_kv_key_row(d->kv, slot, d->src, group));
    }
}
static void vec_key_store(struct di_backend *be, const struct di_op_key_store *d)
{
    vec_rows(be, d->n_closed, 32 * (int64_t)d->d, key_store_rows, d);
}

static void comp_store_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct di_op_comp_store *d = desc;
    float *c = row_scratch(cpu, thread, d->d);
    for (int64_t i = rows.begin; i < rows.end; i++) {
        int32_t group;
        if (d->closed[i] < 0)
            continue;
        int slot = closed_group(d->rows, d->kv, d->src, d->closed[i], &group);
        memcpy(c, (const float *)d->latent + i * d->d, (size_t)d->d * sizeof *c);
        row_rope(c, 1, d->d, d->half, d->cos + i * d->half, d->sin + i * d->half, false);
        pack_q4s(c, d->d, di_kv_comp_row(d->kv, slot, d->src, group));
    }
}
static void vec_comp_store(struct di_backend *be, const struct di_op_comp_store *d)
{
    vec_rows(be, d->n_closed, 32 * (int64_t)d->d, comp_store_rows, d);
}

static void index_query_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_index_query *d = desc;
    int n = d->heads * d->d;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        float *q = (float *)d->q + i * n;
        row_rope(q, d->heads, d->d, d->half, d->cos + i * d->half, d->sin + i * d->half, false);
        for (int c = 0; c < n; c += 32) {
            vf a = vf_load(q + c), b = vf_load(q + c + 16);
            block_values(a, b, Q4E_EXPONENT(a, b), FORMAT_E2M1, q + c);
        }
    }
}
static void vec_index_query(struct di_backend *be, const struct di_op_index_query *d)
{
    vec_rows(be, d->m, 32 * (int64_t)d->heads * d->d, index_query_rows, d);
}

#endif
