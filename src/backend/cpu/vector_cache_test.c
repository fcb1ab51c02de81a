/* The fast ops on cached rows (stores, attention, index selection), tested like those of vector_test.c. */
#include "testing/vector_fixture.h"

/* ---------------------------------------------------------------- cached state */

/* Small integers: their squares add up exactly in any order, so two norms of them are equal to the last bit. */
static void fill_integers(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(rnd() % 33) - 16);
}

#define SLOTS 3
struct world {
    struct di_kv kv;
    int32_t *page_store;
    size_t blocks_bytes, state_bytes;
};

static void fill_bytes(uint8_t *p, size_t n, unsigned least, unsigned range)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(least + rnd() % range);
}

/* Rings of both kinds, and the compressed rows and keys of `context` tokens of every slot, in shuffled blocks: any codes, scales of moderate size;
 * keys of about 2^key_exponent. */
static void world_create(struct world *w, const struct di_kv_layout *l, int context, int key_exponent)
{
    int per_slot = (context + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS, n = per_slot * SLOTS;
    size_t d = (size_t)l->d, di = (size_t)l->di;
    w->page_store = alloc(4 * (size_t)n);
    for (int i = 0; i < n; i++)
        w->page_store[i] = (int32_t)((int64_t)i * 7919 % n); /* a permutation: 7919 is a prime that does not divide n */
    assert_true(n % 7919 != 0);
    w->blocks_bytes = (size_t)n * l->block_bytes;
    w->state_bytes = SLOTS * di_kv_state_bytes(l);
    w->kv = (struct di_kv){.layout = l,
                           .blocks = alloc(w->blocks_bytes),
                           .state = alloc(w->state_bytes),
                           .state_stride = di_kv_state_bytes(l),
                           .pages = w->page_store,
                           .pages_per_slot = per_slot};
    float x[512];
    for (int s = 0; s < SLOTS; s++) {
        fill(di_kv_raw_row(&w->kv, s, 0, 0), l->raw_bytes / 4, 2);
        for (int layer = 0; layer < l->ring_layers; layer++)
            for (int p = 0; p < DI_RING_ROWS; p++) {
                fill_bf16(x, d, 2);
                di_q8_pack(x, d, di_kv_window_row(&w->kv, s, layer, p));
            }
        for (int src = 0; src < l->n_sources; src++)
            for (int j = 0; j < per_slot * DI_BLOCK_TOKENS / l->ratio[src]; j++) {
                uint8_t *comp = di_kv_comp_row(&w->kv, s, src, j), *key = di_kv_key_row(&w->kv, s, src, j);
                fill_bytes(comp, d / 2, 0, 256);
                fill_bytes(comp + d / 2, d / 16, 1, 0x38); /* E4M3 up to 1, subnormals too */
                fill_bytes(key, di / 2, 0, 256);
                fill_bytes(key + di / 2, di / 32, (unsigned)(124 + key_exponent), 4);
            }
    }
}
static void world_destroy(struct world *w)
{
    di_free_aligned(w->kv.state);
    di_free_aligned(w->kv.blocks);
    di_free_aligned(w->page_store);
}

struct step {
    struct di_chunk chunks[SLOTS];
    int32_t pos[MAX_ROWS], chunk[MAX_ROWS], closed[MAX_ROWS];
    struct di_rows rows;
    int n_closed;
};
/* One chunk for each slot: pos0 and n; pos0 -1: n rows of padding. Rows that close a group at the given ratio are listed, and nothing now
 * and then. */
static void step_make(struct step *t, const int (*chunk)[2], int n_chunks, int ratio)
{
    *t = (struct step){.rows = {.n_chunks = n_chunks, .chunks = t->chunks, .pos = t->pos, .chunk = t->chunk}};
    for (int c = 0; c < n_chunks; c++) {
        bool padding = chunk[c][0] < 0;
        t->chunks[c] = (struct di_chunk){padding ? -1 : c, t->rows.m, chunk[c][1], padding ? 0 : chunk[c][0]};
        for (int i = 0; i < chunk[c][1]; i++) {
            int row = t->rows.m++;
            t->pos[row] = t->chunks[c].pos0 + i;
            t->chunk[row] = c;
            if (padding || (t->pos[row] + 1) % ratio == 0)
                t->closed[t->n_closed++] = padding ? -1 : row;
        }
    }
    assert_true(t->rows.m <= MAX_ROWS);
}
/* Row `row` of a step as a step of its own. */
static void step_single(struct step *one, const struct step *t, int row)
{
    int slot = t->chunks[t->chunk[row]].slot;
    const int chunk[SLOTS][2] = {{0, 0}};
    step_make(one, chunk, 1, 1);
    one->rows.m = 1;
    one->chunks[0] = (struct di_chunk){slot, 0, 1, t->pos[row]};
    one->pos[0] = t->pos[row];
    one->chunk[0] = 0;
}

static const int steps[][SLOTS][2] = {{{0, 1}, {1, 1}, {2, 3}},          {{0, 20}, {127, 3}, {128, 2}}, {{7, 30}, {144, 5}, {300, 31}},
                                      {{1001, 2}, {143, 1}, {2047, 40}}, {{-1, 1}, {130, 5}, {-1, 9}},  {{600, 3}, {-1, 2}, {1500, 11}}};

static void test_stores(void **state)
{
    (void)state;
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (size_t t = STRIDE - 1; t < COUNT(steps); t += STRIDE)
            for (int src = 0; src < 2; src++) {
                open_backends(shapes[s]);
                struct world w;
                struct step step;
                const struct di_kv_layout *l = &backends[0]->layout;
                int d = l->d, di = l->di, half = d / 4 > 32 ? 32 : d / 8 * 2, m;
                world_create(&w, l, 2176, 0);
                step_make(&step, steps[t], SLOTS, l->ratio[src]);
                m = step.rows.m;
                size_t n = (size_t)(m * d), a = (size_t)(m * half);
                float *x = alloc(4 * n), *gate = alloc(4 * n), *cosine = alloc(4 * a), *sine = alloc(4 * a);
                uint8_t *wt = bf16_weights((size_t)d, 1);
                fill(cosine, a, 1);
                fill(sine, a, 1);
                fill_integers(x, n);
                size_t row_bytes = (size_t)m * l->window_row_bytes;
                FOR_ALL(uint8_t, y, NOTHING, row_bytes,
                        be->ops->window_store(
                            be,
                            &(struct di_op_window_store){
                                .m = m, .d = d, .half = half, .eps = 1e-20f, .kv = x, .w = wt, .cos = cosine, .sin = sine, .rows = y}),
                        same("window_store", ref, y, row_bytes));
                FOR_ALL(
                    uint8_t, y, w.kv.blocks, w.blocks_bytes,
                    {
                        struct di_kv kv = w.kv;
                        kv.blocks = y;
                        be->ops->key_store(be, &(struct di_op_key_store){.n_closed = step.n_closed,
                                                                         .d = di,
                                                                         .half = half < di / 2 ? half : di / 2,
                                                                         .closed = step.closed,
                                                                         .rows = &step.rows,
                                                                         .kv = &kv,
                                                                         .src = src,
                                                                         .eps = 1e-20f,
                                                                         .k = x,
                                                                         .w = wt,
                                                                         .cos = cosine,
                                                                         .sin = sine});
                        be->ops->comp_store(be, &(struct di_op_comp_store){.n_closed = step.n_closed,
                                                                           .d = d,
                                                                           .half = half,
                                                                           .closed = step.closed,
                                                                           .rows = &step.rows,
                                                                           .kv = &kv,
                                                                           .src = src,
                                                                           .latent = x,
                                                                           .cos = cosine,
                                                                           .sin = sine});
                    },
                    same("key_store and comp_store", ref, y, w.blocks_bytes));
                fill(x, n, 3);
                fill(gate, n, t % 2 ? 3 : 90);
                FOR_ALL(float, y, NOTHING, 4 * n,
                        be->ops->compress(be, &(struct di_op_compress){.n_closed = step.n_closed,
                                                                       .closed = step.closed,
                                                                       .rows = &step.rows,
                                                                       .kv = &w.kv,
                                                                       .src = src,
                                                                       .d = d,
                                                                       .eps = 1e-20f,
                                                                       .kv_act = x,
                                                                       .kv_f32 = x,
                                                                       .gate = gate,
                                                                       .w = wt,
                                                                       .latent = y}),
                        near_bf16("compress", ref, y, (size_t)(step.n_closed * d), 2, 0));
                di_free_aligned(x);
                di_free_aligned(gate);
                di_free_aligned(cosine);
                di_free_aligned(sine);
                di_free_aligned(wt);
                world_destroy(&w);
                close_backends();
            }
}

/* Ascending random subset of [0, n) with at most k members. */
static int32_t subset(int32_t n, int32_t k, int32_t *out)
{
    int32_t count = 0;
    for (int32_t j = 0; j < n && count < k; j++)
        if ((int32_t)(rnd() % (uint32_t)n) < k)
            out[count++] = j;
    return count;
}

static void attend_rows_alone(const struct di_op_attention *whole, const struct step *step, const struct world *w, const float *o);

static void test_attention(void **state)
{
    (void)state;
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (size_t t = STRIDE - 1; t < COUNT(steps); t += STRIDE)
            for (int src = -1; src < 2; src++) {
                open_backends(shapes[s]);
                struct world w;
                struct step step;
                const struct di_kv_layout *l = &backends[0]->layout;
                int d = l->d, heads = config.num_attention_heads, topk = config.index_topk, m;
                world_create(&w, l, 2176, 0);
                step_make(&step, steps[t], SLOTS, 1);
                m = s == 3 ? 3 + (int)t : step.rows.m; /* at full size a few rows tell enough */
                size_t n = (size_t)(m * heads * d);
                float *q = alloc(4 * n), *x = alloc(4 * (size_t)d), sink[64];
                uint8_t *rows = alloc((size_t)step.rows.m * l->window_row_bytes);
                int32_t sel[MAX_ROWS * 512], sel_n[MAX_ROWS], floor[MAX_ROWS];
                fill_bf16(q, n, t == 2 ? 40 : 4); /* 40: a few keys take all the weight */
                fill(sink, 64, 5);
                for (int i = 0; i < step.rows.m; i++) {
                    fill_bf16(x, (size_t)d, 2);
                    di_q8_pack(x, (size_t)d, rows + (size_t)i * l->window_row_bytes);
                    int32_t visible = (step.pos[i] + 1) / (src < 0 ? 1 : l->ratio[src]); /* of padding: a list that nobody may read */
                    sel_n[i] = visible <= topk ? visible : 0;
                    for (int32_t j = 0; j < sel_n[i]; j++)
                        sel[i * topk + j] = j;
                    if (visible > topk)
                        sel_n[i] = i % 5 ? subset(visible, topk, sel + i * topk) : 0;
                    int32_t back = (int32_t)(rnd() % 40); /* keys that bounded replay leaves */
                    floor[i] = step.pos[i] > back ? step.pos[i] - back : 0;
                }
                step.rows.window_floor = s != 3 && t == 1 ? floor : NULL;
                step.rows.m = m;
                struct di_op_attention op = {.m = m,
                                             .heads = heads,
                                             .d = d,
                                             .window = config.sliding_window,
                                             .layer = 1,
                                             .src = src,
                                             .scale = 1.0f / sqrtf((float)d),
                                             .rows = &step.rows,
                                             .kv = &w.kv,
                                             .window_new = rows,
                                             .sel = sel,
                                             .sel_n = sel_n,
                                             .sel_ld = topk,
                                             .q = q,
                                             .sink = sink,
                                             .o = NULL};
                FOR_ALL(
                    float, y, NOTHING, 4 * n,
                    {
                        op.o = y;
                        be->ops->attention(be, &op);
                    },
                    {
                        near_bf16("attention", ref, y, n, 1, 1e-5f);
                        attend_rows_alone(&op, &step, &w, y);
                    });
                di_free_aligned(q);
                di_free_aligned(x);
                di_free_aligned(rows);
                world_destroy(&w);
                close_backends();
            }
}

/* Row by row, each written to the ring before the next: the same bits as in one chunk. The rings are put back afterwards. */
static void attend_rows_alone(const struct di_op_attention *whole, const struct step *step, const struct world *w, const float *o)
{
    struct di_backend *be = backends[n_backends - 1];
    const struct di_kv_layout *l = w->kv.layout;
    size_t n = (size_t)(whole->heads * whole->d);
    uint8_t *keep = alloc(w->state_bytes);
    float *y = alloc(4 * n);
    memcpy(keep, w->kv.state, w->state_bytes);
    for (int i = 0; i < whole->m; i++) {
        struct step one;
        struct di_op_attention op = *whole;
        step_single(&one, step, i);
        one.rows.window_floor = whole->rows->window_floor ? whole->rows->window_floor + i : NULL;
        op.m = 1;
        op.rows = &one.rows;
        op.window_new += (size_t)i * l->window_row_bytes;
        op.sel += i * op.sel_ld;
        op.sel_n += i;
        op.q = (const float *)op.q + (size_t)i * n;
        op.o = y;
        be->ops->attention(be, &op);
        same("a row alone", o + (size_t)i * n, y, 4 * n);
        be->ops->window_commit(be, &(struct di_op_window_commit){&one.rows, &w->kv, op.layer, op.window_new});
    }
    memcpy(w->kv.state, keep, w->state_bytes);
    di_free_aligned(keep);
    di_free_aligned(y);
}

/* ---------------------------------------------------------------- selection */

/* The plainest top-k: repeatedly the first of the largest. score < -1e29 is not allowed. */
static int32_t plain_topk(const float *score, int32_t n, int32_t k, int32_t *out)
{
    bool *taken = alloc((size_t)n + 1);
    memset(taken, 0, (size_t)n + 1);
    int32_t count = 0;
    for (; count < k; count++) {
        int32_t best = -1;
        for (int32_t j = 0; j < n; j++)
            if (!taken[j] && score[j] > -1e29f && (best < 0 || score[j] > score[best]))
                best = j;
        if (best < 0)
            break;
        taken[best] = true;
    }
    count = 0;
    for (int32_t j = 0; j < n; j++)
        if (taken[j])
            out[count++] = j;
    di_free_aligned(taken);
    return count;
}

static void same_list(const char *what, const int32_t *want, int32_t n, const int32_t *got, int32_t got_n)
{
    if (n != got_n)
        fail_msg("%s: %d entries instead of %d", what, got_n, n);
    same(what, want, got, 4 * (size_t)n);
}

struct lists {
    int32_t sel[MAX_ROWS * 512], sel_n[MAX_ROWS], cand[MAX_ROWS * 64], cand_n[MAX_ROWS];
};

/* The lists that follow from the op's own scores. */
static void check_lists(const struct di_op_index_select *op, const struct lists *l)
{
    int32_t want[512];
    for (int i = 0; i < op->m; i++) {
        int32_t n = di_slot_of_row(op->rows, i) < 0 ? 0 : (op->rows->pos[i] + 1) / op->kv->layout->ratio[op->src];
        int32_t size = op->cand_block_size, blocks = (n + size - 1) / size;
        const float *score = op->scores + i * op->scores_ld;
        same_list("selection", want, plain_topk(score, n, op->topk, want), l->sel + i * op->topk, l->sel_n[i]);
        if (op->mode != DI_CAND_PRODUCE)
            continue;
        float *top = alloc(4 * (size_t)blocks);
        for (int32_t b = 0; b < blocks; b++) {
            top[b] = -1e30f;
            for (int32_t j = b * size; j < n && j < (b + 1) * size; j++)
                top[b] = fmaxf(top[b], score[j]);
        }
        if (blocks)
            top[blocks - 1] = INFINITY;
        same_list("candidates", want, plain_topk(top, blocks, op->cand_blocks, want), l->cand + i * op->cand_blocks, l->cand_n[i]);
        di_free_aligned(top);
    }
}

/* Without scores and row by row, on the back end with the most threads: the same lists. */
static void select_again(const struct di_op_index_select *op, const struct step *step, const struct lists *want)
{
    struct di_backend *be = backends[n_backends - 1];
    struct lists *l = alloc(sizeof *l);
    *l = *want;
    struct di_op_index_select o = *op;
    o.scores = NULL, o.sel = l->sel, o.sel_n = l->sel_n, o.cand = l->cand, o.cand_n = l->cand_n;
    memset(l->sel_n, 0x5A, sizeof l->sel_n);
    be->ops->index_select(be, &o);
    for (int i = 0; i < op->m; i++)
        same_list("without scores", want->sel + i * op->topk, want->sel_n[i], l->sel + i * op->topk, l->sel_n[i]);
    for (int i = 0; i < op->m; i++) {
        struct step one;
        struct di_op_index_select r = *op;
        step_single(&one, step, i);
        r.m = 1, r.rows = &one.rows, r.scores = NULL, r.sel = l->sel, r.sel_n = l->sel_n;
        r.cand = l->cand + i * op->cand_blocks, r.cand_n = l->cand_n + i;
        r.q = (const float *)op->q + (size_t)i * (size_t)(op->heads * op->d), r.w = (const float *)op->w + i * op->heads;
        be->ops->index_select(be, &r);
        same_list("a row alone", want->sel + i * op->topk, want->sel_n[i], l->sel, *l->sel_n);
        if (op->mode == DI_CAND_PRODUCE)
            same_list("its candidates", want->cand + i * op->cand_blocks, want->cand_n[i], r.cand, *r.cand_n);
    }
    di_free_aligned(l);
}

static void select_case(const struct shape *s, size_t t, int src, enum di_candidates mode, bool ties)
{
    struct world w;
    struct step step;
    const struct di_kv_layout *l = &backends[0]->layout;
    int d = l->di, heads = s->index_heads, half = d / 4, ld = 2200;
    world_create(&w, l, 2176, ties ? 0 : 2);
    if (ties) /* most keys are zero, all of their scores equal */
        for (int slot = 0; slot < SLOTS; slot++)
            for (int j = 0; j < 2176 / l->ratio[src]; j++)
                if (rnd() % 4)
                    memset(di_kv_key_row(&w.kv, slot, src, j), 0, (size_t)d / 2);
    step_make(&step, steps[t], SLOTS, l->ratio[src]);
    int m = step.rows.m;
    size_t n = (size_t)(m * heads * d), bytes = 4 * (size_t)m * (size_t)ld;
    float *q = alloc(4 * n), *wt = alloc(4 * (size_t)(m * heads)), *angle = alloc(4 * (size_t)(m * half));
    fill_bf16(q, n, 2);
    fill(angle, (size_t)(m * half), 1);
    backends[0]->ops->index_query(
        backends[0], &(struct di_op_index_query){.m = m, .heads = heads, .d = d, .half = half, .q = q, .cos = angle, .sin = angle});
    fill_bf16(wt, (size_t)(m * heads), 1);
    for (int i = 0; ties && i < m * heads; i++)
        wt[i] = i / heads % 2 ? -fabsf(wt[i]) : wt[i]; /* all negative: the zeros win */
    struct lists *lists = alloc(sizeof *lists);
    for (int i = 0; i < m && mode == DI_CAND_FILTER; i++) {
        int32_t visible = di_slot_of_row(&step.rows, i) < 0 ? 0 : (step.pos[i] + 1) / l->ratio[src];
        int32_t blocks = (visible + s->cand_size - 1) / s->cand_size;
        lists->cand_n[i] = blocks ? subset(blocks, i % 3 ? s->cand_blocks : 3, lists->cand + i * s->cand_blocks) : 0;
    }
    struct di_op_index_select op = {.m = m,
                                    .heads = heads,
                                    .d = d,
                                    .topk = s->topk,
                                    .src = src,
                                    .rows = &step.rows,
                                    .kv = &w.kv,
                                    .q = q,
                                    .w = wt,
                                    .sel = lists->sel,
                                    .sel_n = lists->sel_n,
                                    .mode = mode,
                                    .cand_blocks = s->cand_blocks,
                                    .cand_block_size = s->cand_size,
                                    .cand = lists->cand,
                                    .cand_n = lists->cand_n,
                                    .scores = NULL,
                                    .scores_ld = ld};
    FOR_ALL(
        float, y, NOTHING, bytes,
        {
            op.scores = y;
            be->ops->index_select(be, &op);
        },
        {
            near_f32("index scores", ref, y, (size_t)m * (size_t)ld, 1e-4f, 1e-5f * (float)heads);
            check_lists(&op, lists);
            select_again(&op, &step, lists);
        });
    di_free_aligned(q);
    di_free_aligned(wt);
    di_free_aligned(angle);
    di_free_aligned(lists);
    world_destroy(&w);
}

static void test_index_select(void **state)
{
    (void)state;
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    for (size_t s = 0; s < COUNT(shapes); s += STRIDE) { /* instrumented, most of the time goes here */
        open_backends(shapes[s]);
        for (size_t t = STRIDE - 1; t < COUNT(steps); t += STRIDE)
            for (int i = (int)(t / STRIDE) % STRIDE * 2; i < 12; i += 2 * STRIDE - 1)
                select_case(shapes[s], t, i & 1, (enum di_candidates)(i / 2 % 3), i >= 6);
        close_backends();
    }
}

/* A long context through the part of every thread: scores rise and fall, so that lists fill and shrink many times. */
static void test_long_select(void **state)
{
    (void)state;
    struct shape s = full;
    s.context = 40960;
    open_backends(&s);
    struct world w;
    const struct di_kv_layout *l = &backends[0]->layout;
    int d = s.index_dim, heads = s.index_heads, n = 40000, src = 1;
    world_create(&w, l, 40960, 0);
    float x[128], *q = alloc(4 * (size_t)(heads * d)), *wt = alloc(4 * (size_t)heads), *first = NULL;
    for (int j = 0; j < n; j++) { /* rising, then falling, in steps that are shared by neighbours */
        for (int c = 0; c < d; c++)
            x[c] = (float)(j < n / 2 ? j / 3 : (n - j) / 3) * 0x1p-14f * (c == 5 ? 1.0f : 0.25f);
        di_q4e_pack(x, (size_t)d, di_kv_key_row(&w.kv, 0, src, j));
    }
    for (int i = 0; i < heads * d; i++)
        q[i] = 1;
    for (int h = 0; h < heads; h++)
        wt[h] = 0.5f;
    struct step step;
    const int chunk[1][2] = {{n - 1, 1}};
    step_make(&step, chunk, 1, 1);
    for (int b = 1; b < n_backends; b++) {
        struct lists *lists = alloc(sizeof *lists);
        float *scores = alloc(4 * (size_t)n);
        struct di_op_index_select op = {.m = 1,
                                        .heads = heads,
                                        .d = d,
                                        .topk = s.topk,
                                        .src = src,
                                        .rows = &step.rows,
                                        .kv = &w.kv,
                                        .q = q,
                                        .w = wt,
                                        .sel = lists->sel,
                                        .sel_n = lists->sel_n,
                                        .mode = DI_CAND_PRODUCE,
                                        .cand_blocks = s.cand_blocks,
                                        .cand_block_size = s.cand_size,
                                        .cand = lists->cand,
                                        .cand_n = lists->cand_n,
                                        .scores = scores,
                                        .scores_ld = n};
        backends[b]->ops->index_select(backends[b], &op);
        check_lists(&op, lists);
        if (!first)
            first = scores;
        else
            same("long scores", first, scores, 4 * (size_t)n);
        if (first != scores)
            di_free_aligned(scores);
        di_free_aligned(lists);
    }
    di_free_aligned(first);
    di_free_aligned(q);
    di_free_aligned(wt);
    world_destroy(&w);
    close_backends();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stores),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_index_select),
        cmocka_unit_test(test_long_select),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
