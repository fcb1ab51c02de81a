/* Experts (spec/model.md §5.8) in two parallel stages over all experts of a step: h = the activation of w1 and w3, then y += w2 h. The
 * shared expert runs as one more expert that has every row. Ids of a row ascend, so walking the experts upward adds the choices in choice
 * order. */
#include "backend/cpu/linear.h"

#include <string.h>

#define MOE_ROWS 2048 /* rows of a step that are grouped together; bounds the scratch */

/* A run of up to tile_rows choices of one expert. */
struct part {
    const struct di_expert *e;
    int first, rows; /* in choice[] */
};
struct moe_job {
    struct di_cpu *cpu;
    const struct di_kernel *kern;
    const struct di_op_moe *d;
    int parts;
    struct part *part;
    int32_t *choice; /* choices (row * k + i) that somebody has, sorted by expert, then m * k + row for the shared expert */
    float *h;        /* [choices, f] */
    int64_t *up;     /* [parts + 1] prefix sums of the cost of one unit of f */
};

static int choices_of(const struct di_op_moe *d, int m)
{
    return m * (d->k + 1);
}

static int64_t max_parts(int64_t experts, int64_t choices)
{
    return (experts < choices ? experts : choices) + choices / DI_LEAST_TILE_ROWS + 1;
}

/* Returns where the sorted choices of each expert begin, [experts + 1]. */
static int32_t *carve_moe(struct di_carver *c, struct moe_job *j, int experts, int choices, int f)
{
    size_t parts = (size_t)max_parts(experts + 1, choices);
    int32_t *start = di_carve(c, (size_t)experts + 1, sizeof *start);
    j->choice = di_carve(c, (size_t)choices, sizeof *j->choice);
    j->part = di_carve(c, parts, sizeof *j->part);
    j->up = di_carve(c, parts + 1, sizeof *j->up);
    j->h = di_carve(c, (size_t)choices * (size_t)f, sizeof *j->h);
    return start;
}

void di_linear_moe_count(const struct di_backend_params *p, struct di_carver *carver)
{
    const struct di_config *c = p->config;
    int m = p->max_rows < MOE_ROWS ? p->max_rows : MOE_ROWS, k = c->num_experts_per_tok, experts = c->n_routed_experts;
    k = k < c->dspark_num_experts_per_tok ? c->dspark_num_experts_per_tok : k;
    experts = experts < c->dspark_n_routed_experts ? c->dspark_n_routed_experts : experts;
    carve_moe(carver, &(struct moe_job){0}, experts, m * (k + 1), c->moe_intermediate_size);
}

/* Stable counting sort of the choices by expert; cuts every expert's run into parts. */
static void group_choices(struct moe_job *j)
{
    const struct di_op_moe *d = j->d;
    int n = d->m * d->k, experts = 0;
    struct di_carver shared = di_cpu_shared(j->cpu);
    for (int i = 0; i < n; i++)
        experts = d->ids[i] >= experts ? d->ids[i] + 1 : experts;
    int32_t *start = carve_moe(&shared, j, experts, choices_of(d, d->m), d->f);
    memset(start, 0, ((size_t)experts + 1) * sizeof *start);
    for (int i = 0; i < n; i++)
        if (d->ids[i] >= 0)
            start[d->ids[i] + 1]++;
    for (int e = 0; e < experts; e++)
        start[e + 1] += start[e];
    int taken = start[experts];
    for (int i = 0; i < n; i++)
        if (d->ids[i] >= 0)
            j->choice[start[d->ids[i]]++] = i; /* start[e] ends as the end of e */
    for (int i = 0; i < d->m; i++)
        j->choice[taken + i] = n + i;
    j->parts = 0;
    for (int e = 0, first = 0; e <= experts; e++) {
        int end = e < experts ? start[e] : taken + d->m;
        for (int rows; first < end; first += rows) {
            rows = end - first < j->kern->tile_rows ? end - first : j->kern->tile_rows;
            j->part[j->parts++] = (struct part){e < experts ? &d->experts[e] : d->shared, first, rows};
        }
    }
}

/* A unit costs its weights' way from memory or its multiply-adds, whichever is more: 32 rows are about even (FP4). */
static int64_t unit_cost(const struct di_weight *w, int rows)
{
    int64_t bytes = (int64_t)di_unit_codes(w->type, w->k), sums = (int64_t)rows * w->k;
    return bytes > sums ? bytes : sums;
}

static int row_of(const struct di_op_moe *d, int32_t choice)
{
    return choice < d->m * d->k ? choice / d->k : choice - d->m * d->k;
}

static void up_units(const struct moe_job *j, const struct di_linear_scratch *s, const struct part *p, int first, int last)
{
    const struct di_op_moe *d = j->d;
    const float *x[DI_TILE_ROWS];
    float weight[DI_TILE_ROWS], *h[DI_TILE_ROWS];
    bool shared = p->e == d->shared;
    for (int r = 0; r < p->rows; r++) {
        int32_t choice = j->choice[p->first + r];
        x[r] = (const float *)d->x + (size_t)row_of(d, choice) * (size_t)d->d;
        h[r] = j->h + (size_t)(p->first + r) * (size_t)d->f + (size_t)first * DI_UNIT;
        weight[r] = shared ? 1.0f : d->weights[choice];
    }
    j->kern->pack_x(x, p->rows, d->d, s->x);
    const struct di_weight *w[2] = {&p->e->w1, &p->e->w3};
    for (int u = first; u < last; u++) {
        for (int i = 0; i < 2; i++) {
            size_t bytes = di_unit_bytes(j->kern, w[i]->type, d->d);
            j->kern->tile(&(struct di_tile){.type = w[i]->type,
                                            .rows = p->rows,
                                            .k = d->d,
                                            .x = s->x,
                                            .panel = s->panel,
                                            .c = s->c[i],
                                            .unit = (const uint8_t *)w[i]->packed + (size_t)u * bytes});
        }
        j->kern->swiglu(&(struct di_tile_swiglu){.rows = p->rows,
                                                 .limit = d->limit,
                                                 .q8 = j->cpu->be.params.numerics.q_linear,
                                                 .g = s->c[0],
                                                 .u = s->c[1],
                                                 .weight = shared ? NULL : weight,
                                                 .h = h});
        for (int r = 0; r < p->rows; r++)
            h[r] += DI_UNIT;
    }
}

static void down_units(const struct moe_job *j, const struct di_linear_scratch *s, const struct part *p, int first, int last)
{
    const struct di_op_moe *d = j->d;
    const float *h[DI_TILE_ROWS];
    float *y[DI_TILE_ROWS];
    size_t bytes = di_unit_bytes(j->kern, p->e->w2.type, d->f);
    for (int r = 0; r < p->rows; r++) {
        h[r] = j->h + (size_t)(p->first + r) * (size_t)d->f;
        y[r] = (float *)d->y + (size_t)row_of(d, j->choice[p->first + r]) * (size_t)d->d + (size_t)first * DI_UNIT;
    }
    j->kern->pack_x(h, p->rows, d->f, s->x);
    struct di_tile t = {.type = p->e->w2.type, .rows = p->rows, .k = d->f, .x = s->x, .panel = s->panel, .c = s->c[0]};
    t.unit = (const uint8_t *)p->e->w2.packed + (size_t)first * bytes;
    for (int u = first; u < last; u++, t.unit += bytes) {
        int cols = d->d - u * DI_UNIT < DI_UNIT ? d->d - u * DI_UNIT : DI_UNIT;
        j->kern->tile(&t);
        j->kern->add(&(struct di_tile_add){.rows = p->rows, .cols = cols, .c = t.c, .y = y, .last = p->e == d->shared});
        for (int r = 0; r < p->rows; r++)
            y[r] += cols;
    }
}

/* Stage 1: the list of (part, unit of f), cut by cost. */
static void up_part(const struct moe_job *j, int thread, int n_threads)
{
    struct di_linear_scratch s = di_linear_scratch_of(j->cpu, thread, j->d->d);
    int units = j->d->f / DI_UNIT;
    for (int i = 0; i < j->parts; i++) {
        /* The share of this thread in cost, as units of this part. Cuts of neighbours are the same number, so nothing is lost or doubled.
         * */
        int64_t each = j->up[i + 1] - j->up[i], cut[2];
        for (int c = 0; c < 2; c++) {
            int64_t share = j->up[j->parts] * units / n_threads * (thread + c) - j->up[i] * units;
            cut[c] = thread + c == n_threads ? units : share <= 0 ? 0 : (share + each / 2) / each;
            cut[c] = cut[c] < units ? cut[c] : units;
        }
        if (cut[0] < cut[1])
            up_units(j, &s, &j->part[i], (int)cut[0], (int)cut[1]);
    }
}

/* Stage 2: each thread owns some columns of y for all experts, so that the order of the sums is its own. */
static void down_part(const struct moe_job *j, int thread, int n_threads)
{
    const struct di_op_moe *d = j->d;
    struct di_linear_scratch s = di_linear_scratch_of(j->cpu, thread, d->f);
    di_range r = di_split(d->d, DI_UNIT, thread, n_threads);
    if (r.begin >= r.end)
        return;
    for (int i = 0; i < d->m; i++)
        memset((float *)d->y + (size_t)i * (size_t)d->d + r.begin, 0, (size_t)(r.end - r.begin) * sizeof(float));
    for (int i = 0; i < j->parts; i++)
        down_units(j, &s, &j->part[i], (int)(r.begin / DI_UNIT), (int)((r.end + DI_UNIT - 1) / DI_UNIT));
}

static void moe_part(void *ctx, int thread, int n_threads)
{
    const struct moe_job *j = ctx;
    if (j->kern->enter)
        j->kern->enter();
    up_part(j, thread, n_threads);
    if (n_threads > 1)
        di_pool_barrier(j->cpu->pool);
    down_part(j, thread, n_threads);
    if (j->kern->leave)
        j->kern->leave();
}

void di_linear_moe(struct di_backend *be, const struct di_op_moe *d)
{
    struct di_cpu *cpu = di_cpu_of(be);
    for (int row = 0; row < d->m; row += MOE_ROWS) {
        struct di_op_moe some = *d;
        some.m = d->m - row < MOE_ROWS ? d->m - row : MOE_ROWS;
        some.x = (const float *)d->x + (size_t)row * (size_t)d->d;
        some.y = (float *)d->y + (size_t)row * (size_t)d->d;
        some.ids = d->ids + (size_t)row * (size_t)d->k;
        some.weights = d->weights + (size_t)row * (size_t)d->k;
        struct moe_job j = {.cpu = cpu, .kern = di_kernel_of(cpu->isa), .d = &some};
        group_choices(&j);
        j.up[0] = 0;
        for (int i = 0; i < j.parts; i++)
            j.up[i + 1] = j.up[i] + unit_cost(&j.part[i].e->w1, j.part[i].rows);
        di_linear_run(cpu, (int64_t)choices_of(&some, some.m) * d->d * d->f * 3, moe_part, &j);
    }
}
