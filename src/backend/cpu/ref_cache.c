/* Reference ops that write cached state: window rows, compressor, index keys, compressed KV. */
#include "backend/cpu/ref.h"

/* With the cache quantisers off, cache rows are plain fp32. */
typedef void pack_fn(const float *x, size_t n, uint8_t *row);
static void pack_row(const struct di_backend *be, pack_fn *pack, const float *x, int n, uint8_t *row)
{
    if (be->params.numerics.q_cache)
        pack(x, (size_t)n, row);
    else
        memcpy(row, x, (size_t)n * sizeof *x);
}

void ref_window_store(struct di_backend *be, const struct di_op_window_store *d)
{
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    float *c = ref_row_carve(&shared, d->d);
    for (int i = 0; i < d->m; i++) {
        size_t at = (size_t)i * (size_t)d->half;
        ref_rmsnorm_row(be, (const float *)d->kv + (size_t)i * (size_t)d->d, d->d, d->eps, d->w, c);
        ref_rope_row(be, c, d->d, d->half, d->cos + at, d->sin + at, false);
        pack_row(be, di_q8_pack, c, d->d, d->rows + (size_t)i * be->layout.window_row_bytes);
    }
}

void ref_window_commit(struct di_backend *be, const struct di_op_window_commit *d)
{
    (void)be;
    size_t bytes = d->kv->layout->window_row_bytes;
    for (int k = 0; k < d->rows->n_chunks; k++) {
        const struct di_chunk *c = &d->rows->chunks[k];
        for (int i = c->n > DI_RING_ROWS ? c->n - DI_RING_ROWS : 0; i < c->n && c->slot >= 0; i++)
            memcpy(di_kv_window_row(d->kv, c->slot, d->layer, c->pos0 + i), d->window_new + (size_t)(c->row0 + i) * bytes, bytes);
    }
}

/* Softmax-weighted sum of the two members of a group, per channel (spec §5.6). */
static void pool_pair(const float *kv0, const float *gate0, const float *kv1, const float *gate1, int d, float *out)
{
    for (int c = 0; c < d; c++) {
        float top = fmaxf(gate0[c], gate1[c]), e0 = expf(gate0[c] - top), e1 = expf(gate1[c] - top), sum = e0 + e1;
        out[c] = e0 / sum * kv0[c] + e1 / sum * kv1[c];
    }
}

void ref_compress(struct di_backend *be, const struct di_op_compress *d)
{
    size_t width = (size_t)d->d;
    for (int i = 0; i < d->n_closed; i++) {
        size_t row = (size_t)d->closed[i];
        float *y = (float *)d->latent + (size_t)i * width;
        if (d->closed[i] < 0) {
            memset(y, 0, width * sizeof *y);
            continue;
        }
        if (d->kv->layout->ratio[d->src] == 1) {
            memcpy(y, (const float *)d->kv_act + row * width, width * sizeof *y);
        } else {
            const struct di_chunk *c = &d->rows->chunks[d->rows->chunk[row]];
            const float *kv0 = d->kv_f32 + (row - 1) * width, *gate0 = d->gate + (row - 1) * width;
            if ((int)row == c->row0) { /* the first member came in an earlier step */
                kv0 = di_kv_raw_row(d->kv, c->slot, d->kv->layout->raw_ring[d->src], d->rows->pos[row] - 1);
                gate0 = kv0 + width;
            }
            pool_pair(kv0, gate0, d->kv_f32 + row * width, d->gate + row * width, d->d, y);
            for (size_t k = 0; k < width; k++)
                y[k] = ref_b(be, y[k]);
        }
        ref_rmsnorm_row(be, y, d->d, d->eps, d->w, y);
    }
}

void ref_raw_commit(struct di_backend *be, const struct di_op_raw_commit *d)
{
    (void)be;
    size_t width = (size_t)d->d;
    for (int k = 0; k < d->rows->n_chunks; k++) {
        const struct di_chunk *c = &d->rows->chunks[k];
        for (int i = c->n > DI_RAW_ROWS ? c->n - DI_RAW_ROWS : 0; i < c->n && c->slot >= 0; i++) {
            float *to = di_kv_raw_row(d->kv, c->slot, d->kv->layout->raw_ring[d->src], c->pos0 + i);
            size_t row = (size_t)(c->row0 + i);
            memcpy(to, d->kv_f32 + row * width, width * sizeof *to);
            memcpy(to + width, d->gate + row * width, width * sizeof *to);
        }
    }
}

static void locate(const struct di_rows *rows, const struct di_kv *kv, int src, int32_t row, int *slot, int32_t *group)
{
    *slot = di_slot_of_row(rows, row);
    *group = rows->pos[row] / kv->layout->ratio[src];
}

void ref_key_store(struct di_backend *be, const struct di_op_key_store *d)
{
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    float *k = ref_row_carve(&shared, d->d);
    for (int i = 0; i < d->n_closed; i++) {
        int slot;
        int32_t group;
        size_t at = (size_t)i * (size_t)d->half;
        if (d->closed[i] < 0)
            continue;
        locate(d->rows, d->kv, d->src, d->closed[i], &slot, &group);
        ref_rmsnorm_row(be, (const float *)d->k + (size_t)i * (size_t)d->d, d->d, d->eps, d->w, k);
        ref_rope_row(be, k, d->d, d->half, d->cos + at, d->sin + at, false);
        pack_row(be, di_q4e_pack, k, d->d, di_kv_key_row(d->kv, slot, d->src, group));
    }
}

void ref_comp_store(struct di_backend *be, const struct di_op_comp_store *d)
{
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    float *c = ref_row_carve(&shared, d->d);
    for (int i = 0; i < d->n_closed; i++) {
        int slot;
        int32_t group;
        size_t at = (size_t)i * (size_t)d->half;
        if (d->closed[i] < 0)
            continue;
        locate(d->rows, d->kv, d->src, d->closed[i], &slot, &group);
        memcpy(c, (const float *)d->latent + (size_t)i * (size_t)d->d, (size_t)d->d * sizeof *c);
        ref_rope_row(be, c, d->d, d->half, d->cos + at, d->sin + at, false);
        pack_row(be, di_q4s_pack, c, d->d, di_kv_comp_row(d->kv, slot, d->src, group));
    }
}
