/* Reference ops over dense rows: embedding, norms, hyper-connections, linear layers, RoPE. */
#include "backend/cpu/ref.h"

void ref_embed(struct di_backend *be, const struct di_op_embed *d)
{
    (void)be;
    float *x = d->x;
    for (int i = 0; i < d->m * d->streams; i++)
        d->pre[i] = i % d->streams == 0;
    for (int i = 0; i < d->m; i++)
        for (int s = 0; s < d->streams; s++, x += d->d)
            for (int c = 0; c < d->d; c++)
                x[c] = d->ids[i] < 0 ? 0.0f : ref_bf16_at(d->table, (size_t)d->ids[i] * (size_t)d->d + (size_t)c);
}

static float rsqrt_mean(const float *x, size_t n, float eps)
{
    double ss = 0;
    for (size_t c = 0; c < n; c++)
        ss += (double)x[c] * x[c];
    return 1.0f / sqrtf((float)(ss / (double)n) + eps);
}

void ref_rmsnorm_row(const struct di_backend *be, const float *x, int n, float eps, const uint8_t *w, float *y)
{
    float r = rsqrt_mean(x, (size_t)n, eps);
    for (int c = 0; c < n; c++)
        y[c] = ref_b(be, x[c] * r * ref_bf16_at(w, (size_t)c));
}

void ref_rmsnorm(struct di_backend *be, const struct di_op_rmsnorm *d)
{
    const float *x = d->x;
    float *y = d->y;
    for (int i = 0; i < d->m; i++)
        ref_rmsnorm_row(be, x + (size_t)i * (size_t)d->d, d->d, d->eps, d->w, y + (size_t)i * (size_t)d->d);
}

/* Steps 6-8 of spec §5.2 on z [S, S], row = source stream. */
static void sinkhorn(float *z, int s, int iters, float eps)
{
    for (int j = 0; j < s; j++) {
        float top = z[j * s], sum = 0;
        for (int k = 1; k < s; k++)
            top = fmaxf(top, z[j * s + k]);
        for (int k = 0; k < s; k++)
            sum += z[j * s + k] = expf(z[j * s + k] - top);
        for (int k = 0; k < s; k++)
            z[j * s + k] = z[j * s + k] / sum + eps;
    }
    for (int it = 0; it < iters; it++) {
        for (int j = 0; j < s && it > 0; j++) {
            float sum = 0;
            for (int k = 0; k < s; k++)
                sum += z[j * s + k];
            for (int k = 0; k < s; k++)
                z[j * s + k] /= sum + eps;
        }
        for (int k = 0; k < s; k++) {
            float sum = 0;
            for (int j = 0; j < s; j++)
                sum += z[j * s + k];
            for (int j = 0; j < s; j++)
                z[j * s + k] /= sum + eps;
        }
    }
}

void ref_hc_mix(struct di_backend *be, const struct di_op_hc_mix *d)
{
    (void)be;
    int s = d->streams, n = (2 + s) * s;
    size_t width = (size_t)s * (size_t)d->d;
    for (int i = 0; i < d->m; i++) {
        const float *x = (const float *)d->x + (size_t)i * width;
        float r = rsqrt_mean(x, width, d->norm_eps), mix[(2 + DI_MAX_STREAMS) * DI_MAX_STREAMS];
        for (int o = 0; o < n; o++) {
            double sum = 0;
            for (size_t c = 0; c < width; c++)
                sum += (double)d->fn[(size_t)o * width + c] * x[c];
            mix[o] = r * (float)sum;
        }
        float *pre = d->pre + (size_t)i * (size_t)s, *post = d->post + (size_t)i * (size_t)s;
        float *comb = d->comb + (size_t)i * (size_t)(s * s);
        for (int k = 0; k < s; k++) {
            pre[k] = ref_sigmoid(mix[k] * d->scale[0] + d->base[k]) + d->eps;
            post[k] = 2.0f * ref_sigmoid(mix[s + k] * d->scale[1] + d->base[s + k]);
        }
        for (int k = 0; k < s * s; k++)
            comb[k] = mix[2 * s + k] * d->scale[2] + d->base[2 * s + k];
        sinkhorn(comb, s, d->iters, d->eps);
    }
}

void ref_hc_norm(struct di_backend *be, const struct di_op_hc_norm *d)
{
    for (int i = 0; i < d->m; i++) {
        const float *x = (const float *)d->x + (size_t)i * (size_t)(d->streams * d->d), *pre = d->pre + (size_t)i * (size_t)d->streams;
        float *y = (float *)d->y + (size_t)i * (size_t)d->d;
        for (int c = 0; c < d->d; c++) {
            float sum = 0;
            for (int s = 0; s < d->streams; s++)
                sum += pre[s] * x[s * d->d + c];
            y[c] = ref_b(be, sum);
        }
        if (d->u)
            memcpy((float *)d->u + (size_t)i * (size_t)d->d, y, (size_t)d->d * sizeof *y);
        ref_rmsnorm_row(be, y, d->d, d->eps, d->w, y);
    }
}

void ref_hc_expand(struct di_backend *be, const struct di_op_hc_expand *d)
{
    int s = d->streams;
    for (int i = 0; i < d->m; i++) {
        float *x = (float *)d->x + (size_t)i * (size_t)(s * d->d), in[DI_MAX_STREAMS];
        const float *post = d->post + (size_t)i * (size_t)s, *comb = d->comb + (size_t)i * (size_t)(s * s);
        const float *o = (const float *)d->o + (size_t)i * (size_t)d->d;
        for (int c = 0; c < d->d; c++) {
            for (int j = 0; j < s; j++)
                in[j] = x[j * d->d + c];
            for (int k = 0; k < s; k++) {
                float sum = post[k] * o[c];
                for (int j = 0; j < s; j++)
                    sum += comb[j * s + k] * in[j];
                x[k * d->d + c] = ref_b(be, sum);
            }
        }
    }
}

void ref_hc_mean(struct di_backend *be, const struct di_op_hc_mean *d)
{
    for (int i = 0; i < d->m; i++) {
        const float *x = (const float *)d->x + (size_t)i * (size_t)(d->streams * d->d);
        int to = d->to ? d->to[i] : i;
        if (to < 0)
            continue;
        float *y = (float *)d->y + (int64_t)to * d->ld;
        for (int c = 0; c < d->d; c++) {
            float sum = 0;
            for (int s = 0; s < d->streams; s++)
                sum += x[s * d->d + c];
            y[c] = ref_b(be, sum / (float)d->streams);
        }
    }
}

void ref_quant8(struct di_backend *be, const struct di_op_quant8 *d)
{
    (void)be;
    di_q8_round(d->x, (size_t)d->m * (size_t)d->k, d->y);
}

void ref_gather(struct di_backend *be, const struct di_op_gather *d)
{
    size_t bytes = (size_t)d->width * be->ops->act_bytes;
    for (int i = 0; i < d->n; i++) {
        char *y = (char *)d->y + (size_t)i * bytes;
        if (d->rows[i] < 0)
            memset(y, 0, bytes);
        else
            memcpy(y, (const char *)d->x + (size_t)d->rows[i] * bytes, bytes);
    }
}

void ref_scale(struct di_backend *be, const struct di_op_scale *d)
{
    float *x = d->x;
    for (int64_t i = 0; i < d->n; i++)
        x[i] = ref_b(be, x[i] * d->factor);
}

void ref_weight_row(const struct di_weight *w, int n, float *out)
{
    size_t k = (size_t)w->k, row = (size_t)n * k;
    switch (w->type) {
    case DI_W_BF16:
        for (size_t c = 0; c < k; c++)
            out[c] = ref_bf16_at(w->data, row + c);
        break;
    case DI_W_FP8_TILE32:
        for (size_t c = 0; c < k; c++)
            out[c] = di_e4m3_value[w->data[row + c]] * di_e8m0_value(w->scale[(size_t)(n / 32) * (k / 32) + c / 32]);
        break;
    case DI_W_FP4_ROW32:
        for (size_t c = 0; c < k; c++) {
            uint8_t byte = w->data[row / 2 + c / 2];
            out[c] = di_e2m1_value[c % 2 ? byte >> 4 : byte & 15] * di_e8m0_value(w->scale[row / 32 + c / 32]);
        }
        break;
    }
}

void ref_matmul(struct di_backend *be, const struct ref_matmul *a)
{
    size_t k = (size_t)a->w->k;
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    struct ref_matmul_work w = ref_matmul_carve(&shared, a->w->k);
    float *row = w.row, *xt = w.xt;
    int per_group = a->w->n / a->w->groups;
    for (int i0 = 0; i0 < a->m; i0 += REF_COLUMNS) {
        int count = a->m - i0 < REF_COLUMNS ? a->m - i0 : REF_COLUMNS;
        for (int g = 0; g < a->w->groups; g++) {
            for (size_t c = 0; c < k; c++)
                for (int i = 0; i < count; i++)
                    xt[c * (size_t)count + (size_t)i] = a->x[(size_t)(i0 + i) * a->ldx + (size_t)g * k + c];
            for (int n = g * per_group; n < (g + 1) * per_group; n++) {
                double acc[REF_COLUMNS] = {0};
                ref_weight_row(a->w, n, row);
                for (size_t c = 0; c < k; c++)
                    for (int i = 0; i < count; i++)
                        acc[i] += (double)row[c] * xt[c * (size_t)count + (size_t)i];
                for (int i = 0; i < count; i++)
                    a->y[(size_t)(i0 + i) * a->ldy + (size_t)n] = (float)acc[i];
            }
        }
    }
}

void ref_linear(struct di_backend *be, const struct di_op_linear *d)
{
    size_t n = (size_t)d->w->n;
    ref_matmul(be,
               &(struct ref_matmul){.m = d->m, .w = d->w, .x = d->x, .ldx = (size_t)d->w->k * (size_t)d->w->groups, .y = d->y, .ldy = n});
    if (d->out_f32)
        return;
    float *y = d->y;
    for (size_t i = 0; i < (size_t)d->m * n; i++)
        y[i] = ref_b(be, y[i]);
}

void ref_rope_angles(struct di_backend *be, const struct di_op_rope_angles *d)
{
    (void)be;
    for (int i = 0; i < d->m; i++)
        for (int h = 0; h < d->half; h++) {
            float angle = (float)d->pos[i] * d->freq[h]; /* the rounding of this product is part of the model (spec §5.4) */
            d->cos[(size_t)i * (size_t)d->half + (size_t)h] = (float)cos((double)angle);
            d->sin[(size_t)i * (size_t)d->half + (size_t)h] = (float)sin((double)angle);
        }
}

void ref_rope_row(const struct di_backend *be, float *x, int d, int half, const float *cos, const float *sin, bool inverse)
{
    float *p = x + d - 2 * half;
    for (int h = 0; h < half; h++) {
        float a = p[2 * h], b = p[2 * h + 1], c = cos[h], s = inverse ? -sin[h] : sin[h];
        p[2 * h] = ref_b(be, a * c - b * s);
        p[2 * h + 1] = ref_b(be, a * s + b * c);
    }
}

void ref_rope(struct di_backend *be, const struct di_op_rope *d)
{
    float *x = d->x;
    for (int i = 0; i < d->m; i++)
        for (int h = 0; h < d->heads; h++, x += d->d)
            ref_rope_row(be, x, d->d, d->half, d->cos + (size_t)i * (size_t)d->half, d->sin + (size_t)i * (size_t)d->half, d->inverse);
}

void ref_markov(struct di_backend *be, const struct di_op_markov *d)
{
    (void)be;
    size_t rank = (size_t)d->rank;
    for (int i = 0; i < d->m; i++) {
        float *e = (float *)d->e + (size_t)i * rank, *logits = d->logits + (size_t)i * (size_t)d->vocab;
        bool none = d->ids[i] < 0 || d->ids[i] >= d->vocab;
        for (size_t c = 0; c < rank; c++)
            e[c] = none ? 0.0f : ref_bf16_at(d->embed, (size_t)d->ids[i] * rank + c);
        for (size_t v = 0; v < (size_t)d->vocab; v++) {
            double sum = 0;
            for (size_t c = 0; c < rank; c++)
                sum += (double)ref_bf16_at(d->head, v * rank + c) * e[c];
            logits[v] += (float)sum;
        }
    }
}

void ref_confidence(struct di_backend *be, const struct di_op_confidence *d)
{
    (void)be;
    for (int i = 0; i < d->m; i++) {
        const float *h = (const float *)d->h + (size_t)i * (size_t)d->d, *e = (const float *)d->e + (size_t)i * (size_t)d->rank;
        double sum = 0;
        for (int c = 0; c < d->d; c++)
            sum += (double)ref_bf16_at(d->w, (size_t)c) * h[c];
        for (int c = 0; c < d->rank; c++)
            sum += (double)ref_bf16_at(d->w, (size_t)(d->d + c)) * e[c];
        d->z[i] = (float)sum;
    }
}
