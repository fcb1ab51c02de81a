/* Inside of the fast non-matrix ops: one implementation (vector_*.inc, written against vec.h), compiled once for each instruction set by
 * vector_avx2.c and vector_avx512.c. Here: what those two export, the layout of their scratch, and the split of work over threads.
 *
 * Every result is a function of its row alone: sums run in a fixed order (lane l takes elements l, l+16, ..; lanes are added by a fixed
 * tree), and threads divide outputs, never a sum. Dimensions are multiples of 32. */
#ifndef DI_BACKEND_CPU_VECTOR_H
#define DI_BACKEND_CPU_VECTOR_H

#include "backend/cpu/cpu.h"

void di_cpu_vector_ops_avx2(struct di_ops *ops);
void di_cpu_vector_ops_avx512(struct di_ops *ops);

/* ---------------------------------------------------------------- scratch */

static inline size_t vec_up(int64_t n, size_t unit)
{
    return ((size_t)n + unit - 1) / unit * unit;
}

/* hc_mix: rows in groups of MIX_ROWS; their partial sums are 16 lanes each and stay in L2. */
#define MIX_ROWS 64
#define MIX_SUMS 25 /* 24 projections and the sum of squares; 4 streams */
static inline float *mix_partial(struct di_carver *per_thread)
{
    return di_carve(per_thread, MIX_ROWS * MIX_SUMS * 16, sizeof(float));
}
static inline float *mix_sums(struct di_carver *shared, int m)
{
    return di_carve(shared, (size_t)m * MIX_SUMS, sizeof(float));
}

/* A streaming top-k (spec §5.7): pushes in ascending order of id, reduced to the best k when full. */
struct topk {
    int k, n, cap;
    int32_t *key, *id; /* key: score as an order-preserving integer */
    int32_t bound;     /* only keys above it can still be among the best */
};
static inline struct topk topk_take(struct di_carver *a, int k, int64_t cap)
{
    return (struct topk){
        .k = k, .cap = (int)cap, .key = di_carve(a, (size_t)cap + 32, 4), .id = di_carve(a, (size_t)cap + 32, 4), .bound = INT32_MIN};
}

/* sample, of one thread: a row's processed logits; the list of those that a threshold lies among, and their weights. Padded by one vector. */
struct sample_work {
    float *x, *list;
    uint64_t *weight;
};
static inline struct sample_work sample_take(struct di_carver *a, size_t vocab)
{
    size_t n = vocab + 64;
    return (struct sample_work){di_carve(a, n, sizeof(float)), di_carve(a, n, sizeof(float)), di_carve(a, n, sizeof(uint64_t))};
}

/* index_select: up to INDEX_ROWS queries as small integers with their lists, and one tile of keys that they share. */
#define TILE_KEYS 32
#define INDEX_ROWS 4
struct index_pool {
    const int32_t *block; /* candidate blocks, or NULL */
    int32_t size;         /* of a block */
    int32_t visible, count;
};
struct index_row {
    int8_t *q;        /* [heads][d]: twice the E2M1 values, each 8 channels as 4 even, 4 odd */
    float *scale, *w; /* [heads][d / 32]: a quarter of the scale; [heads] */
    int32_t *start;   /* [heads][d / 32]: takes the keys' offset of 12 back */
    struct topk sel, cand;
    int row;
    struct index_pool pool; /* the keys it looks at */
    int32_t block, left;    /* candidate block that is being scored, how many of its keys are to come, and its maximum so far */
    float top;
};
struct index_work {
    int heads;        /* padded to a multiple of 4 with weight 0 */
    uint8_t *codes;   /* [d / 4][TILE_KEYS][4]: twice the E2M1 values plus 12 */
    float *key_scale; /* [d / 32][TILE_KEYS] */
    struct index_row row[INDEX_ROWS];
};
static inline struct index_work index_take(struct di_carver *a, int heads, int d, int topk, int cand_blocks)
{
    size_t h = vec_up(heads, 4), blocks = (size_t)d / 32;
    struct index_work w = {.heads = (int)h};
    w.codes = di_carve(a, (size_t)d * TILE_KEYS, 1);
    w.key_scale = di_carve(a, blocks * TILE_KEYS, sizeof(float));
    for (int i = 0; i < INDEX_ROWS; i++) {
        struct index_row *r = &w.row[i];
        r->q = di_carve(a, h * (size_t)d, 1);
        r->scale = di_carve(a, h * blocks, sizeof(float));
        r->w = di_carve(a, h, sizeof(float));
        r->start = di_carve(a, h * blocks, sizeof(int32_t));
        r->sel = topk_take(a, topk, 2 * (int64_t)topk + TILE_KEYS);
        r->cand = topk_take(a, cand_blocks, 2 * (int64_t)cand_blocks + TILE_KEYS);
    }
    return w;
}
/* One row by all threads: the best of each thread's part, to be merged. */
struct index_merge {
    struct topk sel, cand; /* room for `threads` lists of k */
    int *n;                /* [2][threads] */
};
static inline struct index_merge index_merge_take(struct di_carver *a, int topk, int cand_blocks, int threads)
{
    struct index_merge g = {.sel = topk_take(a, topk, (int64_t)topk * threads),
                            .cand = topk_take(a, cand_blocks, (int64_t)cand_blocks * threads)};
    g.n = di_carve(a, 2 * (size_t)threads, sizeof(int));
    return g;
}

/* attention with many heads: what belongs to one query row (in shared if all threads work on it), and what belongs to a thread. */
#define ATT_KEYS 64 /* keys of a tile */
#define ATT_CHAN 64 /* channels of a tile: 16 KB of decoded fp32, in L1 */
struct att_row {
    int lanes, chans;  /* heads padded to 16, channel blocks */
    int count, window; /* keys, and how many of them are window rows (first) */
    const uint8_t **key;
    float *q;   /* [chans][ATT_CHAN][lanes] transposed query */
    float *s;   /* [count, padded to 4][lanes] scores, then e^(s - max) */
    float *inv; /* [lanes] 1 / denominator */
};
static inline struct att_row att_row_take(struct di_carver *a, int heads, int d, int window, int topk)
{
    struct att_row r = {.lanes = (int)vec_up(heads, 16), .chans = (int)(vec_up(d, ATT_CHAN) / ATT_CHAN)};
    int most_keys = window + topk;
    r.key = di_carve(a, (size_t)most_keys, sizeof *r.key);
    r.q = di_carve(a, (size_t)r.chans * ATT_CHAN * (size_t)r.lanes, sizeof(float));
    r.s = di_carve(a, vec_up(most_keys, 4) * (size_t)r.lanes, sizeof(float));
    r.inv = di_carve(a, (size_t)r.lanes, sizeof(float));
    return r;
}
struct att_tile {
    float *k; /* [ATT_KEYS][ATT_CHAN] */
    float *o; /* [lanes][ATT_CHAN] */
};
static inline struct att_tile att_tile_take(struct di_carver *a, int heads)
{
    struct att_tile t = {.k = di_carve(a, ATT_KEYS * ATT_CHAN, sizeof(float))};
    t.o = di_carve(a, vec_up(heads, 16) * ATT_CHAN, sizeof(float));
    return t;
}

/* attention with few heads: keys of up to FEW_ROWS rows in fp32, and what belongs to 4 heads of one row. Lists may be read and written up
 * to the next multiple of 4 keys. */
#define FEW_HEADS 8
#define FEW_ROWS 8
#define FEW_TILE 32 /* keys of the output's tiles */
struct att_few {
    const uint8_t **key;      /* packed selected rows */
    float *window, *selected; /* [keys][d] */
    float *q, *o;             /* [4][d] */
    float *s;                 /* [keys][4] scores, then e^(s - max) */
};
static inline struct att_few att_few_take(struct di_carver *a, int d, int window, int topk)
{
    struct att_few w = {.key = di_carve(a, (size_t)topk, sizeof *w.key)};
    w.window = di_carve(a, (size_t)(window + FEW_ROWS - 1 + 3) * (size_t)d, sizeof(float));
    w.selected = di_carve(a, (size_t)(topk + 3) * (size_t)d, sizeof(float));
    w.q = di_carve(a, 4 * (size_t)d, sizeof(float));
    w.o = di_carve(a, 4 * (size_t)d, sizeof(float));
    w.s = di_carve(a, 4 * (size_t)(window + topk + 3), sizeof(float));
    return w;
}

/* ---------------------------------------------------------------- threads */

/* A fork and join costs 1 to 3 us: ops that move fewer bytes (from L2, some 30 GB/s) or do less arithmetic stay on the calling thread. */
#define VEC_FORK_BYTES 200000
#define VEC_FORK_FLOP 300000

/* fn(ctx, thread, n_threads) on all threads, or as the only one. */
static inline void vec_run(struct di_cpu *cpu, bool fork, di_pool_fn fn, void *ctx)
{
    if (fork && cpu->threads > 1)
        di_pool_run(cpu->pool, fn, ctx);
    else
        fn(ctx, 0, 1);
}
static inline void vec_barrier(struct di_cpu *cpu, int n_threads)
{
    if (n_threads > 1)
        di_pool_barrier(cpu->pool);
}

/* fn(cpu, desc, thread, rows) over contiguous parts of n rows that move `bytes` each. */
typedef void vec_rows_fn(struct di_cpu *cpu, const void *desc, int thread, di_range rows);
struct vec_rows {
    struct di_cpu *cpu;
    const void *desc;
    vec_rows_fn *fn;
    int64_t n;
};
static inline void vec_rows_part(void *ctx, int thread, int n_threads)
{
    const struct vec_rows *r = ctx;
    di_range part = di_split(r->n, 1, thread, n_threads);
    if (part.begin < part.end)
        r->fn(r->cpu, r->desc, thread, part);
}
static inline void vec_rows(struct di_backend *be, int64_t n, int64_t bytes, vec_rows_fn *fn, const void *desc)
{
    struct vec_rows r = {di_cpu_of(be), desc, fn, n};
    vec_run(r.cpu, n > 1 && n * bytes > VEC_FORK_BYTES, vec_rows_part, &r);
}

#endif
