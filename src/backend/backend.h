/* The op table: everything a processor must do for the network. src/model writes the forward pass once against it; the portable reference
 * (cpu/ref_*.c) implements every op in the plainest way and is the oracle of the fast ones.
 *
 * Conventions
 *  - Every op takes the back end and one descriptor. Arrays are row-major; [m, k] means m rows of k values, stride k unless `ld` says more.
 *  - "act" arrays hold activations in the back end's own type: ops->act_bytes per value (CPU: fp32 that carries bf16 values when
 *    numerics.bf16 is set). Arrays typed float are fp32 on every back end.
 *  - "B" marks a rounding to bf16 (spec/model.md §4.3). It is done only when numerics.bf16 is set; otherwise the fp32 value is kept.
 *  - Counts may be 0: then nothing happens. A list of rows or ids may hold -1, which stands for nothing: zeros are read from there, and what
 *    belongs there is not stored.
 *  - A step may be padded with rows that are nobody's: chunks of slot -1, ids -1, kind DI_ROW_PADDING. They close no groups and choose no
 *    experts; no cached state is read or written for them, their lists are empty, and what they leave in activations means nothing.
 *  - A row's result depends on that row (and its request's cache) only: never on m, the other rows, or the number of threads.
 *  - Ops run in the order of their calls, but the calls may return before. The descriptor, and host structs that it names, are read during the
 *    call; what lies in device and staging memory is read and written in that order. fence and wait tell the end.
 *  - Ops cannot fail: the model checked the arguments, scratch was allocated at creation. A device fault is latched and returned by wait.
 *  - Outputs must not alias inputs unless the descriptor allows it. */
#ifndef DI_BACKEND_BACKEND_H
#define DI_BACKEND_BACKEND_H

#include "checkpoint/config.h"
#include "sample/sampler.h"

/* Which roundings and quantisers are applied (spec/model.md §4.2). Modes of `--numerics`. */
struct di_numerics {
    bool bf16;     /* every B of spec §4.3 */
    bool q_cache;  /* class M: window Q8, compressed Q4s, index keys and queries Q4e; caches are packed */
    bool q_linear; /* class R: Q8 on the input of every FP8/FP4 linear */
    bool q_wo_a;   /* Q8 also on wo_a's input */
};
/* "bf16" (default), "bf16-woa8", "f32r", "f32", "f32-noquant". False for an unknown name. */
bool di_numerics_by_name(const char *name, struct di_numerics *out);

/* Everything of an arithmetic that changes bits, for the keys of cached content (cache/block_key.h): numerics mode, device, instruction set,
 * like "bf16/cpu-avx512". Two that may differ in a bit have different names. */
#define DI_BITS_NAME 48
void di_bits_name(struct di_numerics n, const char *device, const char *isa, char out[DI_BITS_NAME]);

/* ---------------------------------------------------------------- memory */

/* What lies behind a pointer to DI_DEVICE memory is the device's: ops and copies read and write it. The host computes with the address and
 * never looks. clang warns of a host that does (`make lint`); the code of a back end, and of tests and benchmarks that know theirs to be the
 * CPU's, says so by defining DI_ON_DEVICE before it includes this. */
#if defined(__clang__) && !defined(DI_ON_DEVICE)
#define DI_DEVICE __attribute__((noderef))
#else
#define DI_DEVICE
#endif

enum di_memory {
    DI_MEMORY_DEVICE,  /* what ops work on; behind DI_DEVICE */
    DI_MEMORY_WEIGHTS, /* the same for what every step streams: in huge pages where there are any */
    DI_MEMORY_STAGING  /* the host's, where copies from and to the device begin and end */
};

/* One part of a copy: both ends in device memory, or one of them in staging memory. They must not overlap. */
struct di_copy_span {
    void DI_DEVICE *to;
    const void DI_DEVICE *from;
    size_t bytes;
};
/* Copies in launch order. The spans are read during the call, what they name when their turn comes: staging memory that is read must stay
 * as it is, and what is written is there, once a fence behind the copy is reached. */
struct di_op_copy {
    int n;
    const struct di_copy_span *spans;
};

/* ---------------------------------------------------------------- weights */

enum di_wtype {
    DI_W_BF16,       /* [n, k] bf16 */
    DI_W_FP8_TILE32, /* [n, k] e4m3, scale e8m0 [n/32, k/32] */
    DI_W_FP4_ROW32   /* [n, k/2] two e2m1 a byte (even k low), scale e8m0 [n, k/32] */
};

/* One matrix. With groups > 1 output rows [g*n/groups, (g+1)*n/groups) read input columns [g*k, (g+1)*k): wo_a. */
struct di_weight {
    enum di_wtype type;
    int n, k, groups;
    const uint8_t *data, *scale; /* checkpoint bytes (mapped file); not needed any more once packed */
    void DI_DEVICE *packed;      /* the back end's own layout, or NULL if it reads `data` */
};
struct di_expert {
    struct di_weight w1, w3, w2; /* gate, up [f, d]; down [d, f] */
};

/* ---------------------------------------------------------------- rows and cached state */

/* Rows of one request in one step, consecutive in the row list and in position. */
struct di_chunk {
    int slot, row0, n; /* slot -1: padding */
    int32_t pos0;      /* absolute position of the first row; contexts are below 2^31 */
};
struct di_rows {
    int m, n_chunks;
    const struct di_chunk DI_DEVICE *chunks;
    const int32_t DI_DEVICE *pos;          /* [m] */
    const int32_t DI_DEVICE *chunk;        /* [m] index into chunks */
    const int32_t DI_DEVICE *window_floor; /* [m] first visible window position of bounded replay (spec §8), NULL = 0 everywhere */
};

/* What a row's token is, as far as weights depend on it; follows from its id. */
enum di_row_kind { DI_ROW_TEXT, DI_ROW_IMAGE, DI_ROW_PADDING };

/* Shape of the cached state. G: blocks of 64 tokens, each with the compressed rows and the index-key rows of every KV source. S: per slot,
 * a ring of window rows for each layer and a ring of raw kv/gate rows for each ratio-2 source; place in a ring = position mod rows. */
#define DI_BLOCK_TOKENS 64
#define DI_RING_ROWS 144 /* 128 + 2*5 + 1 rounded up (spec/dspark.md §4.2); only its last `sliding_window` rows are ever read */
#define DI_RAW_ROWS 16   /* a pending row and what a step of drafts and the wasted one behind it write (spec/dspark.md §4.4) */
#define DI_MAX_DRAFTS 5  /* of a request in one step, which the sizes of both follow from */
struct di_kv_layout {
    int d, di;                                              /* head_dim, index_head_dim */
    size_t window_row_bytes, comp_row_bytes, key_row_bytes; /* packed (528, 288, 68 at full size) or fp32 without q_cache */
    int ring_layers;
    int n_sources, ratio[DI_MAX_SOURCES], raw_ring[DI_MAX_SOURCES]; /* raw_ring: index of a ratio-2 source among them, else -1 */
    size_t comp_offset[DI_MAX_SOURCES], key_offset[DI_MAX_SOURCES], block_bytes;
    size_t ring_bytes, raw_bytes; /* of one slot */
    int n_raw_rings;
};
/* State of slot i at state + i * state_stride: the rings, then, at di_kv_raw_offset, the raw rings [n_raw_rings][DI_RAW_ROWS][2][d] of fp32: kv,
 * then gate. */
struct di_kv {
    const struct di_kv_layout *layout;
    uint8_t DI_DEVICE *blocks; /* pool: block b at blocks + b * block_bytes */
    uint8_t DI_DEVICE *state;
    size_t state_stride;            /* di_kv_state_bytes */
    const int32_t DI_DEVICE *pages; /* [slots][pages_per_slot]: position / 64 -> block */
    int pages_per_slot;
};
void di_kv_layout_init(struct di_kv_layout *l, const struct di_config *c, struct di_numerics num);

static inline size_t di_kv_raw_offset(const struct di_kv_layout *l)
{
    return (l->ring_bytes + 63) & ~(size_t)63;
}
static inline size_t di_kv_state_bytes(const struct di_kv_layout *l)
{
    return (di_kv_raw_offset(l) + l->raw_bytes + 63) & ~(size_t)63;
}
static inline uint8_t DI_DEVICE *di_kv_window_row(const struct di_kv *kv, int slot, int layer, int32_t pos)
{
    const struct di_kv_layout *l = kv->layout;
    return kv->state + (size_t)slot * kv->state_stride + ((size_t)layer * DI_RING_ROWS + (size_t)pos % DI_RING_ROWS) * l->window_row_bytes;
}
static inline float DI_DEVICE *di_kv_raw_row(const struct di_kv *kv, int slot, int ring, int32_t pos)
{
    uint8_t DI_DEVICE *rings = kv->state + (size_t)slot * kv->state_stride + di_kv_raw_offset(kv->layout);
    return (float DI_DEVICE *)(void DI_DEVICE *)rings +
           ((size_t)ring * DI_RAW_ROWS + (size_t)pos % DI_RAW_ROWS) * 2 * (size_t)kv->layout->d;
}
#ifdef DI_ON_DEVICE /* these read the page table */
/* Block that holds group j of a source, and the group's row number in it. */
static inline uint8_t *di_kv_block(const struct di_kv *kv, int slot, int src, int32_t j, size_t *row)
{
    int per_block = DI_BLOCK_TOKENS / kv->layout->ratio[src];
    *row = (size_t)(j % per_block);
    int32_t page = kv->pages[(size_t)slot * (size_t)kv->pages_per_slot + (size_t)(j / per_block)];
    return kv->blocks + (size_t)page * kv->layout->block_bytes;
}
static inline uint8_t *di_kv_comp_row(const struct di_kv *kv, int slot, int src, int32_t j)
{
    size_t row;
    uint8_t *b = di_kv_block(kv, slot, src, j, &row);
    return b + kv->layout->comp_offset[src] + row * kv->layout->comp_row_bytes;
}
static inline uint8_t *di_kv_key_row(const struct di_kv *kv, int slot, int src, int32_t j)
{
    size_t row;
    uint8_t *b = di_kv_block(kv, slot, src, j, &row);
    return b + kv->layout->key_offset[src] + row * kv->layout->key_row_bytes;
}
#endif

/* ---------------------------------------------------------------- descriptors */

/* Start of a step (spec §5.1): x[i, s, :] = table[ids[i], :] for every stream s; pre[i] = one-hot on stream 0. */
struct di_op_embed {
    int m, streams, d;
    const int32_t DI_DEVICE *ids;   /* -1: zeros */
    const uint8_t DI_DEVICE *table; /* bf16 [vocab, d] */
    void DI_DEVICE *x;              /* act [m, streams, d] */
    float DI_DEVICE *pre;           /* [m, streams] */
};
/* y = B(x * rsqrt(mean(x^2) + eps) * w), w bf16. y may be x. */
struct di_op_rmsnorm {
    int m, d;
    float eps;
    const void DI_DEVICE *x; /* act [m, d] */
    const uint8_t DI_DEVICE *w;
    void DI_DEVICE *y;
};
/* HCMIX (spec §5.2): the three mixing results of a site from the streams. */
struct di_op_hc_mix {
    int m, streams, d, iters;
    float eps, norm_eps;
    const void DI_DEVICE *x;                  /* act [m, streams, d] */
    const float DI_DEVICE *fn, *base, *scale; /* [(2+S)*S, S*d], [(2+S)*S], [3] */
    float DI_DEVICE *pre, *post, *comb;       /* [m, S], [m, S], [m, S, S] (row = source) */
};
/* u = B(sum_s pre[s] x[s]); y = B(rmsnorm(u) * w). */
struct di_op_hc_norm {
    int m, streams, d;
    float eps;
    const void DI_DEVICE *x;
    const float DI_DEVICE *pre;
    const uint8_t DI_DEVICE *w;
    void DI_DEVICE *y; /* act [m, d] */
    void DI_DEVICE *u; /* act [m, d], or NULL: nobody needs it */
};
/* x[k] = B(post[k]*o + sum_j comb[j,k] x[j]), in place. */
struct di_op_hc_expand {
    int m, streams, d;
    void DI_DEVICE *x;
    const float DI_DEVICE *post, *comb;
    const void DI_DEVICE *o; /* act [m, d] */
};
/* y[to[i]] = B(mean_s x[i, s]) : a DSpark tap (spec Appendix A); y has row stride ld. */
struct di_op_hc_mean {
    int m, streams, d;
    const void DI_DEVICE *x;
    void DI_DEVICE *y;
    int ld;
    const int32_t DI_DEVICE *to; /* [m], -1: nowhere; NULL: row i goes to row i */
};
/* y = Q8 values of x, blocks of 32 along k (class R); y may be x. */
struct di_op_quant8 {
    int m, k;
    const void DI_DEVICE *x;
    void DI_DEVICE *y;
};
/* y[i, n] = sum_k x[i, k] w[n, k] in fp32. Input [m, groups*k]. out_f32: y is float, unrounded; else act, B. */
struct di_op_linear {
    int m;
    const struct di_weight *w;
    const void DI_DEVICE *x;
    void DI_DEVICE *y;
    bool out_f32;
};
/* cos/sin of fl32(fl32(pos) * freq[i]) (spec §5.4). */
struct di_op_rope_angles {
    int m, half;
    const int32_t DI_DEVICE *pos;
    const float DI_DEVICE *freq; /* [half] */
    float DI_DEVICE *cos, *sin;  /* [m, half] */
};
/* Rotate the last 2*half channels of each head, interleaved pairs, B; inverse = conjugate. In place. cos/sin [m, half]. */
struct di_op_rope {
    int m, heads, d, half;
    bool inverse;
    void DI_DEVICE *x; /* act [m, heads, d] */
    const float DI_DEVICE *cos, *sin;
};
/* Window KV of this step's rows: rmsnorm * w (B), RoPE (B), Q8 -> packed rows (spec §5.3.4). */
struct di_op_window_store {
    int m, d, half;
    float eps;
    const void DI_DEVICE *kv; /* act [m, d] = wkv output */
    const uint8_t DI_DEVICE *w;
    const float DI_DEVICE *cos, *sin;
    uint8_t DI_DEVICE *rows; /* [m][window_row_bytes] */
};
/* After attention of a layer: copy the last min(n, DI_RING_ROWS) packed rows of every chunk into the rings (spec §7.2). */
struct di_op_window_commit {
    const struct di_rows *rows;
    const struct di_kv *kv;
    int layer;
    const uint8_t DI_DEVICE *window_new;
};
/* Pooled latents of the groups that this step closes (spec §5.6): latent = B(rmsnorm(B(pool)) * w). ratio 1: pool = kv (act). ratio 2:
 * softmax over the gates of the two members per channel; the even member comes from this step or from the raw ring. */
struct di_op_compress {
    int n_closed;
    const int32_t DI_DEVICE *closed; /* [n_closed] rows whose token closes a group; -1: none, the latent is zeros */
    const struct di_rows *rows;
    const struct di_kv *kv;
    int src, d;
    float eps;
    const void DI_DEVICE *kv_act;         /* ratio 1: act [m, d] */
    const float DI_DEVICE *kv_f32, *gate; /* ratio 2: fp32 [m, d] */
    const uint8_t DI_DEVICE *w;
    void DI_DEVICE *latent; /* act [n_closed, d] */
};
/* Keep the last DI_RAW_ROWS raw kv/gate rows of every chunk (ratio-2 sources). */
struct di_op_raw_commit {
    const struct di_rows *rows;
    const struct di_kv *kv;
    int src, d;
    const float DI_DEVICE *kv_f32, *gate;
};
/* Index keys of closed groups: rmsnorm * w (B), RoPE at the group's first position (B), Q4e -> key rows. */
struct di_op_key_store {
    int n_closed, d, half;
    const int32_t DI_DEVICE *closed;
    const struct di_rows *rows;
    const struct di_kv *kv;
    int src;
    float eps;
    const void DI_DEVICE *k; /* act [n_closed, d] = wk * latent */
    const uint8_t DI_DEVICE *w;
    const float DI_DEVICE *cos, *sin; /* [n_closed, half] */
};
/* Compressed KV of closed groups: RoPE (B), Q4s -> compressed rows. Reads latent, does not change it. */
struct di_op_comp_store {
    int n_closed, d, half;
    const int32_t DI_DEVICE *closed;
    const struct di_rows *rows;
    const struct di_kv *kv;
    int src;
    const void DI_DEVICE *latent;
    const float DI_DEVICE *cos, *sin;
};
/* y[i] = x[rows[i]], width values each; -1: zeros. */
struct di_op_gather {
    int n, width;
    const int32_t DI_DEVICE *rows;
    const void DI_DEVICE *x;
    void DI_DEVICE *y;
};
/* x = B(x * factor), n values, in place. */
struct di_op_scale {
    int64_t n;
    float factor;
    void DI_DEVICE *x; /* act [n] */
};
/* Indexer query: RoPE (B) on the last 2*half of each head, then Q4e values; in place. */
struct di_op_index_query {
    int m, heads, d, half;
    void DI_DEVICE *q; /* act [m, heads, d] */
    const float DI_DEVICE *cos, *sin;
};
enum di_candidates { DI_CAND_NONE, DI_CAND_PRODUCE, DI_CAND_FILTER };
/* Scores and two-level top-k (spec §5.7 steps 3-8). Row at p sees groups j < (p+1)/ratio. Lists ascend; equal scores: lower index first. */
struct di_op_index_select {
    int m, heads, d, topk, src;
    const struct di_rows *rows;
    const struct di_kv *kv;
    const void DI_DEVICE *q, *w;    /* act [m, heads, d], act [m, heads] (scaled by 1/sqrt(d*heads), B) */
    int32_t DI_DEVICE *sel, *sel_n; /* [m, topk], [m] */
    enum di_candidates mode;
    int cand_blocks, cand_block_size;
    int32_t DI_DEVICE *cand, *cand_n; /* [m, cand_blocks] ascending, [m] */
    float DI_DEVICE *scores;          /* tests only, or NULL: [m, scores_ld], -1e30 where not allowed */
    int64_t scores_ld;
};
/* Core attention with sink over window and selected compressed rows (spec §5.5), B. K = V. */
struct di_op_attention {
    int m, heads, d, window, layer, src; /* src -1: window only */
    bool block; /* every row sees the `window` positions before its chunk and all rows of it, at most DI_MAX_DRAFTS (spec/dspark.md §2.4) */
    float scale;
    const struct di_rows *rows;
    const struct di_kv *kv;
    const uint8_t DI_DEVICE *window_new;  /* packed rows of this step */
    const int32_t DI_DEVICE *sel, *sel_n; /* [m, sel_ld], [m] */
    int sel_ld;
    const void DI_DEVICE *q;     /* act [m, heads, d] */
    const float DI_DEVICE *sink; /* [heads] */
    void DI_DEVICE *o;           /* act [m, heads, d] */
};
/* Router (spec §5.8), fp32: k experts with the largest sqrt(softplus(l)) + bias, ties to the lower id; ids ascend;
 * weights = score / (sum + 1e-20) * scale. */
struct di_op_router {
    int m, d, experts, k;
    float scale;
    const void DI_DEVICE *x;               /* act [m, d] */
    const struct di_weight *w;             /* bf16 [experts, d] */
    const float DI_DEVICE *bias, *bias_vl; /* [experts]; bias_vl for rows of images */
    const uint8_t DI_DEVICE *kind;         /* [m] enum di_row_kind, NULL: all text. Padding: ids -1, weights 0 */
    int32_t DI_DEVICE *ids;                /* [m, k] */
    float DI_DEVICE *weights;              /* [m, k] */
};
/* Experts (spec §5.8). x is quantised already if q_linear. Sum over the choices of a row in their order in fp32, shared last, one B. The ids of a row
 * ascend; -1: no expert. */
struct di_op_moe {
    int m, d, f, k, n_experts;
    float limit;
    const void DI_DEVICE *x;
    const int32_t DI_DEVICE *ids;
    const float DI_DEVICE *weights;
    const struct di_expert *experts, *shared; /* [n_experts] */
    void DI_DEVICE *y;                        /* act [m, d] */
};
/* e[i, c*hd ..] = dequantised table row idx[i, c] (e4m3, e8m0 per 32). idx is 64-bit because byte offsets pass 2^32. */
struct di_op_engram_gather {
    int m, cols, hd;
    const int64_t DI_DEVICE *idx; /* [m, cols], -1 = zeros */
    const uint8_t DI_DEVICE *table, *scale;
    void DI_DEVICE *e; /* act [m, cols*hd] */
};
/* Gate and add (spec §5.9 steps 3-5), in place on x. kv = act [m, (S+1)*d]: S keys, then the value. qk = qw*kw fp32 [S, d]. */
struct di_op_engram_gate {
    int m, streams, d;
    float eps;
    void DI_DEVICE *x;
    const void DI_DEVICE *kv;
    const float DI_DEVICE *qk;
    const uint8_t DI_DEVICE *kind; /* [m] enum di_row_kind, NULL: all text. The gate of all else is 0 */
};

/* The Markov head of the draft (spec/dspark.md §2.5): e = embed[ids], logits += head . e, in fp32. */
struct di_op_markov {
    int m, vocab, rank;
    const int32_t DI_DEVICE *ids;          /* [m] the token before; outside of the vocabulary: zeros */
    const uint8_t DI_DEVICE *embed, *head; /* bf16 [vocab, rank] */
    void DI_DEVICE *e;                     /* act [m, rank] */
    float DI_DEVICE *logits;               /* [m, vocab] */
};
/* z = w . (h, e), in fp32: the confidence head, before its sigmoid. */
struct di_op_confidence {
    int m, d, rank;
    const void DI_DEVICE *h, *e; /* act [m, d], act [m, rank] */
    const uint8_t DI_DEVICE *w;  /* bf16 [d + rank] */
    float DI_DEVICE *z;          /* [m] */
};

/* Tokens of m rows (sample/sampler.h). The tasks' logits are rows of fp32 [vocab_size] in device memory; parameters, counts and masks that they
 * name are the host's and stay as they are until a fence behind the op. Results lie in staging memory. */
struct di_op_sample {
    int m;
    const struct di_sample_task *tasks;
    struct di_sample_result *results;
};

/* ---------------------------------------------------------------- the table */

struct di_backend;
struct di_ops {
    const char *name;
    size_t act_bytes;
    bool host_memory; /* addresses of device memory are the host's, too */
    /* Bytes of the packed form (0: the back end reads the checkpoint bytes), and packing into dst (64-byte aligned), which sets w->packed.
     * */
    size_t (*weight_bytes)(const struct di_backend *be, const struct di_weight *w);
    void (*weight_pack)(struct di_backend *be, struct di_weight *w, void DI_DEVICE *dst);
    /* 64-byte aligned memory of undefined content, of at least one byte; NULL when there is no more. Release waits for all that was called,
     * which may name the memory. These, copy, fence and wait may be called while another thread calls ops; what such a copy names is then
     * named by none of them. */
    void *(*alloc)(struct di_backend *be, enum di_memory kind, size_t bytes);
    void (*release)(struct di_backend *be, enum di_memory kind, void DI_DEVICE *p); /* NULL is allowed */
    void (*copy)(struct di_backend *be, const struct di_op_copy *d);
    /* A mark behind all that was called so far, and waiting until it is reached: what was written to staging memory before it is there.
     * Fails, from then on always, if the device has. */
    uint64_t (*fence)(struct di_backend *be);
    di_status (*wait)(struct di_backend *be, uint64_t fence, di_error *err);
    void (*embed)(struct di_backend *be, const struct di_op_embed *d);
    void (*rmsnorm)(struct di_backend *be, const struct di_op_rmsnorm *d);
    void (*hc_mix)(struct di_backend *be, const struct di_op_hc_mix *d);
    void (*hc_norm)(struct di_backend *be, const struct di_op_hc_norm *d);
    void (*hc_expand)(struct di_backend *be, const struct di_op_hc_expand *d);
    void (*hc_mean)(struct di_backend *be, const struct di_op_hc_mean *d);
    void (*quant8)(struct di_backend *be, const struct di_op_quant8 *d);
    void (*linear)(struct di_backend *be, const struct di_op_linear *d);
    void (*rope_angles)(struct di_backend *be, const struct di_op_rope_angles *d);
    void (*rope)(struct di_backend *be, const struct di_op_rope *d);
    void (*window_store)(struct di_backend *be, const struct di_op_window_store *d);
    void (*window_commit)(struct di_backend *be, const struct di_op_window_commit *d);
    void (*compress)(struct di_backend *be, const struct di_op_compress *d);
    void (*raw_commit)(struct di_backend *be, const struct di_op_raw_commit *d);
    void (*key_store)(struct di_backend *be, const struct di_op_key_store *d);
    void (*comp_store)(struct di_backend *be, const struct di_op_comp_store *d);
    void (*gather)(struct di_backend *be, const struct di_op_gather *d);
    void (*scale)(struct di_backend *be, const struct di_op_scale *d);
    void (*index_query)(struct di_backend *be, const struct di_op_index_query *d);
    void (*index_select)(struct di_backend *be, const struct di_op_index_select *d);
    void (*attention)(struct di_backend *be, const struct di_op_attention *d);
    void (*router)(struct di_backend *be, const struct di_op_router *d);
    void (*moe)(struct di_backend *be, const struct di_op_moe *d);
    void (*engram_gather)(struct di_backend *be, const struct di_op_engram_gather *d);
    void (*engram_gate)(struct di_backend *be, const struct di_op_engram_gate *d);
    void (*markov)(struct di_backend *be, const struct di_op_markov *d);
    void (*confidence)(struct di_backend *be, const struct di_op_confidence *d);
    void (*sample)(struct di_backend *be, const struct di_op_sample *d);
    void (*destroy)(struct di_backend *be);
};

/* Largest shapes that ops will be asked for; scratch is sized from them at creation. */
struct di_backend_params {
    const struct di_config *config;
    struct di_numerics numerics;
    int max_rows;        /* m of one step */
    int64_t max_context; /* tokens of one request */
    int threads;         /* 0 = di_cpu_count(), at most 256 */
    const char *isa;     /* NULL = best available; "ref", "avx2", "avx512", "avx512bf16", "amx" */
};

struct di_backend {
    const struct di_ops *ops;
    struct di_backend_params params;
    struct di_kv_layout layout;
    size_t scratch_bytes; /* allocated by the back end itself, for the memory plan */
    char bits[DI_BITS_NAME];
    void *impl;
};

static inline void DI_DEVICE *di_device_alloc(struct di_backend *be, size_t bytes)
{
    return be->ops->alloc(be, DI_MEMORY_DEVICE, bytes);
}
static inline void di_device_free(struct di_backend *be, void DI_DEVICE *p)
{
    be->ops->release(be, DI_MEMORY_DEVICE, p);
}
static inline void *di_staging_alloc(struct di_backend *be, size_t bytes)
{
    return be->ops->alloc(be, DI_MEMORY_STAGING, bytes);
}
static inline void di_staging_free(struct di_backend *be, void *p)
{
    be->ops->release(be, DI_MEMORY_STAGING, p);
}
/* Everything that was called so far is done. */
static inline di_status di_backend_finish(struct di_backend *be, di_error *err)
{
    return be->ops->wait(be, be->ops->fence(be), err);
}

/* The memory of the CPU back end alone, for stores without a network: name and memory ops are set, nothing else is. All kinds are ordinary
 * memory, copies are made at once. Never destroyed; any thread. */
struct di_backend *di_backend_plain_memory(void);

/* CPU back end. The f32 numerics exist in "ref" only: they select it when isa is NULL, and another isa is DI_ERR_UNSUPPORTED. A forced isa
 * that the processor cannot execute is DI_ERR_UNSUPPORTED too. Destroy with be->ops->destroy. Used by one thread at a time. */
di_status di_backend_cpu_create(const struct di_backend_params *params, struct di_backend **out, di_error *err);
/* Best instruction set of this processor, and a list of all usable ones ("ref avx2 avx512"). */
const char *di_cpu_isa_best(void);
const char *di_cpu_isa_list(void);

#endif
