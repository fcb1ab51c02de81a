/* Reference ops of the feed-forward part and of the n-gram memory. */
#include "backend/cpu/ref.h"

static float router_score(float l)
{
    float softplus = l > 20.0f ? l : log1pf(expf(l));
    return sqrtf(softplus);
}

void ref_router(struct di_backend *be, const struct di_op_router *d)
{
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    float *s = ref_router_carve(&shared, d->m, d->d, d->experts);
    ref_matmul(be, &(struct ref_matmul){.m = d->m, .w = d->w, .x = d->x, .ldx = (size_t)d->d, .y = s, .ldy = (size_t)d->experts});
    for (int i = 0; i < d->m; i++, s += d->experts) {
        enum di_row_kind kind = d->kind ? d->kind[i] : DI_ROW_TEXT;
        const float *bias = kind == DI_ROW_IMAGE ? d->bias_vl : d->bias;
        int32_t *ids = d->ids + (size_t)i * (size_t)d->k;
        float *weights = d->weights + (size_t)i * (size_t)d->k, sum = 0;
        for (int n = 0; n < d->k && kind == DI_ROW_PADDING; n++) {
            ids[n] = -1;
            weights[n] = 0;
        }
        if (kind == DI_ROW_PADDING)
            continue;
        for (int e = 0; e < d->experts; e++)
            s[e] = router_score(s[e]);
        for (int n = 0; n < d->k; n++) { /* insert the next best, keeping ids ascending */
            int best = -1;
            for (int e = 0; e < d->experts; e++) {
                bool taken = false;
                for (int t = 0; t < n; t++)
                    taken = taken || ids[t] == e;
                if (!taken && (best < 0 || s[e] + bias[e] > s[best] + bias[best]))
                    best = e;
            }
            int at = n;
            for (; at > 0 && ids[at - 1] > best; at--)
                ids[at] = ids[at - 1];
            ids[at] = best;
        }
        for (int n = 0; n < d->k; n++)
            sum += s[ids[n]];
        for (int n = 0; n < d->k; n++)
            weights[n] = s[ids[n]] / (sum + 1e-20f) * d->scale;
    }
}

/* One expert on m rows: x [m, d] -> y [m, d] (B). weight[i] or NULL for the shared expert. */
static void run_expert(struct di_backend *be, const struct di_op_moe *d, const struct di_expert *e, int m, const float *x,
                       const float *weight, const struct ref_moe_work *w, float *y)
{
    size_t f = (size_t)d->f, n = (size_t)m * f;
    float *g = w->g, *u = w->u;
    ref_matmul(be, &(struct ref_matmul){.m = m, .w = &e->w1, .x = x, .ldx = (size_t)d->d, .y = g, .ldy = f});
    ref_matmul(be, &(struct ref_matmul){.m = m, .w = &e->w3, .x = x, .ldx = (size_t)d->d, .y = u, .ldy = f});
    for (size_t i = 0; i < n; i++) {
        float gate = fminf(ref_b(be, g[i]), d->limit), up = ref_b(be, u[i]);
        up = fminf(fmaxf(up, -d->limit), d->limit);
        float h = gate * ref_sigmoid(gate) * up;
        g[i] = ref_b(be, weight ? weight[i / f] * h : h); /* the routing weight comes before the quantiser (spec §9.17) */
    }
    if (be->params.numerics.q_linear)
        di_q8_round(g, n, g);
    ref_matmul(be, &(struct ref_matmul){.m = m, .w = &e->w2, .x = g, .ldx = f, .y = y, .ldy = (size_t)d->d});
    for (size_t i = 0; i < (size_t)m * (size_t)d->d; i++)
        y[i] = ref_b(be, y[i]);
}

void ref_moe(struct di_backend *be, const struct di_op_moe *d)
{
    if (d->m == 0)
        return;
    /* Ids of a row ascend, so walking the experts upward adds every row's choices in their order. */
    size_t width = (size_t)d->d;
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    const struct ref_moe_work w = ref_moe_carve(&shared, d->m, d->d, d->f);
    float *y = d->y;
    int32_t last = 0;
    memset(y, 0, (size_t)d->m * width * sizeof *y);
    for (int i = 0; i < d->m * d->k; i++)
        last = d->ids[i] > last ? d->ids[i] : last;
    for (int32_t e = 0; e <= last; e++) {
        int count = 0;
        for (int i = 0; i < d->m * d->k; i++) {
            if (d->ids[i] != e)
                continue;
            w.row[count] = i / d->k;
            w.weight[count] = d->weights[i];
            memcpy(w.xs + (size_t)count++ * width, (const float *)d->x + (size_t)(i / d->k) * width, width * sizeof *w.xs);
        }
        if (count == 0)
            continue;
        run_expert(be, d, &d->experts[e], count, w.xs, w.weight, &w, w.ys);
        for (int i = 0; i < count; i++)
            for (size_t c = 0; c < width; c++)
                y[(size_t)w.row[i] * width + c] += w.ys[(size_t)i * width + c];
    }
    run_expert(be, d, d->shared, d->m, d->x, NULL, &w, w.ys);
    for (size_t i = 0; i < (size_t)d->m * width; i++)
        y[i] = ref_b(be, y[i] + w.ys[i]);
}

void ref_engram_gather(struct di_backend *be, const struct di_op_engram_gather *d)
{
    (void)be;
    float *e = d->e;
    for (int i = 0; i < d->m * d->cols; i++, e += d->hd) {
        int64_t r = d->idx[i];
        for (int c = 0; c < d->hd; c++)
            e[c] = r < 0 ? 0.0f
                         : di_e4m3_value[d->table[(size_t)r * (size_t)d->hd + (size_t)c]] *
                               di_e8m0_value(d->scale[((size_t)r * (size_t)d->hd + (size_t)c) / 32]);
    }
}

void ref_engram_gate(struct di_backend *be, const struct di_op_engram_gate *d)
{
    for (int i = 0; i < d->m; i++) {
        if (d->kind && d->kind[i] != DI_ROW_TEXT)
            continue;
        const float *kv = (const float *)d->kv + (size_t)i * (size_t)((d->streams + 1) * d->d), *value = kv + d->streams * d->d;
        for (int s = 0; s < d->streams; s++) {
            float *x = (float *)d->x + (size_t)(i * d->streams + s) * (size_t)d->d;
            const float *key = kv + s * d->d, *qk = d->qk + s * d->d;
            double dot = 0, xx = 0, kk = 0;
            for (int c = 0; c < d->d; c++) {
                dot += (double)(x[c] * qk[c]) * key[c];
                xx += (double)x[c] * x[c];
                kk += (double)key[c] * key[c];
            }
            float n = (float)d->d, score = (float)dot;
            score *= 1.0f / sqrtf((float)xx / n + d->eps);
            score *= 1.0f / sqrtf((float)kk / n + d->eps);
            score *= 1.0f / sqrtf(n);
            float gate = ref_sigmoid(copysignf(sqrtf(fmaxf(fabsf(score), 1e-6f)), score));
            for (int c = 0; c < d->d; c++)
                x[c] = ref_b(be, x[c] + gate * value[c]);
        }
    }
}
