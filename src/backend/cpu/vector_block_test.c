/* Attention over the blocks of a draft, tested like the ops of vector_test.c. */
#include "testing/vector_fixture.h"

#define SLOTS 3
static const int blocks[SLOTS][2] = {{1, 5}, {-1, 2}, {160, 5}}; /* position, rows; -1: padding */

struct block_rows {
    struct di_rows rows;
    struct di_chunk chunks[SLOTS];
    int32_t pos[MAX_ROWS], chunk[MAX_ROWS];
};

/* Chunks [from, to), each in the slot of its number. */
static void make_rows(struct block_rows *t, int from, int to)
{
    *t = (struct block_rows){.rows = {.n_chunks = to - from, .chunks = t->chunks, .pos = t->pos, .chunk = t->chunk}};
    for (int c = from; c < to; c++) {
        bool padding = blocks[c][0] < 0;
        t->chunks[c - from] =
            (struct di_chunk){.slot = padding ? -1 : c, .row0 = t->rows.m, .n = blocks[c][1], .pos0 = padding ? 0 : blocks[c][0]};
        for (int i = 0; i < blocks[c][1]; i++, t->rows.m++) {
            t->pos[t->rows.m] = t->chunks[c - from].pos0 + i;
            t->chunk[t->rows.m] = c - from;
        }
    }
}

static void pack_rows(const struct di_kv_layout *l, size_t n, uint8_t *to)
{
    float *x = alloc(4 * (size_t)l->d);
    for (size_t i = 0; i < n; i++) {
        fill_bf16(x, (size_t)l->d, 2);
        di_q8_pack(x, (size_t)l->d, to + i * l->window_row_bytes);
    }
    di_free_aligned(x);
}

/* Every row sees all of its block, and the window before it. */
static void test_blocks(void **state)
{
    static const struct shape *const shapes[] = {&small, &nano, &odd, &full};
    (void)state;
    for (size_t s = 0; s < COUNT(shapes); s++) {
        open_backends(shapes[s]);
        struct block_rows all, one;
        const struct di_kv_layout *l = &backends[0]->layout;
        make_rows(&all, 0, SLOTS);
        make_rows(&one, 2, SLOTS);
        int d = l->d, heads = config.num_attention_heads, m = all.rows.m, first = all.chunks[2].row0;
        size_t row = (size_t)(heads * d), n = (size_t)m * row, bytes = l->window_row_bytes, stride = di_kv_state_bytes(l);
        float *q = alloc(4 * n), *o = alloc(4 * n), *y1 = alloc(4 * 5 * row), sink[64];
        uint8_t *rows = alloc((size_t)m * bytes), *states = alloc(SLOTS * stride);
        int32_t floor[MAX_ROWS];
        struct di_kv kv = {.layout = l, .state = states, .state_stride = stride};
        fill_bf16(q, n, 4);
        fill(sink, 64, 5);
        pack_rows(l, (size_t)m, rows);
        for (int i = 0; i < SLOTS; i++)
            pack_rows(l, (size_t)l->ring_layers * DI_RING_ROWS, states + (size_t)i * stride);
        for (int i = 0; i < m; i++)
            floor[i] = s % 2 ? 0 : 150; /* rows that bounded replay left out */
        all.rows.window_floor = floor;
        one.rows.window_floor = floor + first;
        struct di_op_attention op = {.m = m,
                                     .heads = heads,
                                     .d = d,
                                     .window = config.sliding_window,
                                     .layer = 1,
                                     .src = -1,
                                     .block = true,
                                     .scale = 1.0f / sqrtf((float)d),
                                     .rows = &all.rows,
                                     .kv = &kv,
                                     .window_new = rows,
                                     .q = q,
                                     .sink = sink};
        FOR_ALL(
            float, y, NOTHING, 4 * n,
            {
                op.o = y;
                be->ops->attention(be, &op);
            },
            near_bf16("block", ref, y, n, 1, 1e-5f));
        for (int b = 0; b < n_backends; b += n_backends - 1) {
            struct di_op_attention alone = op;
            op.o = o;
            alone.o = y1;
            alone.m = 5;
            alone.rows = &one.rows;
            alone.window_new = rows + (size_t)first * bytes;
            alone.q = q + (size_t)first * row;
            backends[b]->ops->attention(backends[b], &op);
            backends[b]->ops->attention(backends[b], &alone);
            same("a block alone", o + (size_t)first * row, y1, 4 * 5 * row);
            pack_rows(l, 1, rows + (size_t)(first + 4) * bytes); /* the first row sees the last one */
            backends[b]->ops->attention(backends[b], &alone);
            assert_memory_not_equal(o + (size_t)first * row, y1, 4 * row);
        }
        di_free_aligned(q);
        di_free_aligned(o);
        di_free_aligned(y1);
        di_free_aligned(rows);
        di_free_aligned(states);
        close_backends();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
