/* The kernels of the sets that add one vector of products at a time (avx2, avx512, avx512bf16). The including file defines
 *
 *   LANES, V, v_zero(), v_load(p), v_store(p, v), v_bcast(p), v_fma(a, b, c) = a*b + c, over fp32
 *   STEP           k that one product consumes: 1 (fp32) or 2 (a pair of bf16)
 *   v_acc(a, w, x) a + the products of weight vector w with the broadcast 32-bit element x
 *   MAX_ROWS       rows of the largest register tile (2 * MAX_ROWS accumulators), and GROUPS, the register tiles in falling order
 *   decode(type, codes, out)        one chunk of codes (linear.h) -> out[8 / STEP] (FP4), out[4 / STEP] (FP8), out[2 / STEP] (BF16), along
 * k
 *   scale_rows(p), scale_tile(b)    E8M0 bytes -> factors; includes what decode() left out
 *
 * Packed activations: rows in groups of GROUPS, a group is [k / STEP][rows] 32-bit elements.
 *
 * Cost of 32 outputs x 32 k with 16 lanes, in vector operations: 1024 / 16 / STEP products per row; a decoded vector costs 1.5 (FP4) or
 * 2.75 (FP8) more, once per tile. */
#ifndef DI_BACKEND_CPU_LINEAR_BLOCK_H
#define DI_BACKEND_CPU_LINEAR_BLOCK_H

#include "backend/cpu/linear_epilogue.h"

#define STRIPS (DI_UNIT / LANES)
#define DEPTH (32 / STEP) /* vectors of a strip in a block */
#define CHUNK (LANES * 4) /* bytes */
/* Far ahead into L2, whose queue to memory is longer than L1's, then into L1: one core then reads nearly as fast as a loop that only reads.
 * */
#define PREFETCH(p) (__builtin_prefetch((p) + 8192, 0, 2), __builtin_prefetch((p) + 1024))
#define STREAM_ROWS 4 /* up to here weights are decoded in registers, beyond into the panel */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL DI_UNROLL
#define FORGET(p) __asm__("" : "+r"(p)) /* what was loaded from p is loaded again, rather than kept on the stack */
#define KEEP(v) __asm__("" : "+v"(v))   /* stay in a register: compilers like to load such a value again for every use */

INLINE int chunk_vectors(enum di_wtype type)
{
    return (type == DI_W_FP4_ROW32 ? 8 : type == DI_W_FP8_TILE32 ? 4 : 2) / STEP;
}

INLINE V block_scale(const struct di_tile *t, enum di_wtype type, int block, int strip)
{
    static const float one = 1;
    const uint8_t *s = t->unit + di_unit_codes(type, t->k);
    if (type == DI_W_FP4_ROW32)
        return scale_rows(s + block * DI_UNIT + strip * LANES);
    return type == DI_W_FP8_TILE32 ? scale_tile(s[block]) : v_bcast(&one);
}

/* acc += sum * scale, for one strip of rows rows. */
INLINE void add_block(float *c, int rows, const V *sum, V scale)
{
    UNROLL
    for (int r = 0; r < rows; r++)
        v_store(c + r * DI_UNIT, v_fma(sum[r], scale, v_load(c + r * DI_UNIT)));
}

/* `wide` neighbouring blocks for few rows: the weights pass through registers. Strips and blocks take turns, so that their sums, each a
 * chain of dependent additions, overlap. */
INLINE void stream_blocks(const struct di_tile *t, const enum di_wtype type, const int rows, int block, const int wide)
{
    const int per_chunk = chunk_vectors(type), chunks = DEPTH / per_chunk, strip_bytes = chunks * CHUNK;
    const uint8_t *p = t->unit + (size_t)block * STRIPS * (size_t)strip_bytes;
    const float *x = (const float *)t->x + (size_t)block * DEPTH * (size_t)rows;
    V sum[2 * STRIPS][STREAM_ROWS];
    UNROLL
    for (int i = 0; i < wide * STRIPS * rows; i++)
        sum[i / rows][i % rows] = v_zero();
    UNROLL
    for (int i = 0; i < chunks; i++) {
        UNROLL
        for (int s = 0; s < wide * STRIPS; s++) {
            const uint8_t *codes = p + s * strip_bytes + i * CHUNK;
            const float *xs = x + (s / STRIPS * DEPTH + i * per_chunk) * rows;
            V w[8];
            FORGET(xs);
            if (CHUNK == 64 || i % 2 == 0)
                PREFETCH(codes);
            decode(type, codes, w);
            UNROLL
            for (int d = 0; d < per_chunk; d++)
                UNROLL
            for (int r = 0; r < rows; r++)
                sum[s][r] = v_acc(sum[s][r], w[d], v_bcast(xs + d * rows + r));
        }
    }
    UNROLL
    for (int s = 0; s < wide * STRIPS; s++)
        add_block(t->c + s % STRIPS * LANES, rows, sum[s], block_scale(t, type, block + s / STRIPS, s % STRIPS));
}

INLINE void stream(const struct di_tile *t, const enum di_wtype type, const int rows)
{
    const int wide = STRIPS == 2 && rows <= 2 ? 2 : 1;
    int b = 0;
    for (; b + wide <= t->k / 32; b += wide)
        stream_blocks(t, type, rows, b, wide);
    if (b < t->k / 32)
        stream_blocks(t, type, rows, b, 1);
}

/* Many rows: `blocks` blocks of the unit decoded to [block][k / STEP][STRIPS] vectors. */
INLINE void decode_panel(const struct di_tile *t, const enum di_wtype type, int first, int blocks)
{
    const int per_chunk = chunk_vectors(type), chunks = DEPTH / per_chunk;
    const uint8_t *p = t->unit + (size_t)first * STRIPS * (size_t)chunks * CHUNK;
    float *out = (float *)t->panel;
    for (int b = 0; b < blocks; b++, out += DEPTH * DI_UNIT)
        for (int s = 0; s < STRIPS; s++)
            for (int i = 0; i < chunks; i++, p += CHUNK) {
                V w[8];
                PREFETCH(p);
                decode(type, p, w);
                UNROLL
                for (int d = 0; d < per_chunk; d++)
                    v_store(out + (i * per_chunk + d) * DI_UNIT + s * LANES, w[d]);
            }
}

/* Register tile: rows x 2 strips over one decoded block; w, x and c point to its first strip. */
INLINE void multiply_block(const struct di_tile *t, const float *w, const float *x, float *c, int block, int strip, const int rows)
{
    V sum[2][MAX_ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        sum[0][r] = sum[1][r] = v_zero();
    for (int d = 0; d < DEPTH; d++, w += DI_UNIT, x += rows) {
        V w0 = v_load(w), w1 = v_load(w + LANES);
        KEEP(w0);
        KEEP(w1);
        UNROLL
        for (int r = 0; r < rows; r++) {
            V xr = v_bcast(x + r);
            KEEP(xr);
            sum[0][r] = v_acc(sum[0][r], w0, xr);
            sum[1][r] = v_acc(sum[1][r], w1, xr);
        }
    }
    add_block(c, rows, sum[0], block_scale(t, t->type, block, strip));
    add_block(c + LANES, rows, sum[1], block_scale(t, t->type, block, strip + 1));
}

#define DEFINE_MULTIPLY(n)                                                                                        \
    static void multiply_##n(const struct di_tile *t, int row, int first, int blocks)                             \
    {                                                                                                             \
        const float *w = (const float *)t->panel;                                                                 \
        const float *x = (const float *)t->x + (size_t)row * (size_t)(t->k / STEP) + (size_t)first * DEPTH * (n); \
        for (int b = 0; b < blocks; b++, w += DEPTH * DI_UNIT, x += DEPTH * (n))                                  \
            for (int s = 0; s < STRIPS; s += 2)                                                                   \
                multiply_block(t, w + s * LANES, x, t->c + row * DI_UNIT + s * LANES, first + b, s, (n));         \
    }
GROUPS(DEFINE_MULTIPLY)

struct multiply_entry {
    int rows;
    void (*fn)(const struct di_tile *t, int row, int first, int blocks);
};
#define MULTIPLY_ENTRY(n) {n, multiply_##n},
static const struct multiply_entry multiply_table[] = {GROUPS(MULTIPLY_ENTRY)};

/* Largest register tile for the rows that are left; two middle ones are faster than a large and a small one. */
static const struct multiply_entry *group_for(int rows)
{
    const struct multiply_entry *e = multiply_table;
    if (MAX_ROWS == 12 && (rows == 14 || rows == 16))
        rows = 8;
    while (e->rows > rows)
        e++;
    return e;
}

#define STREAM_CASE(type, rows) \
    case (type)*8 + (rows):     \
        stream(t, type, rows);  \
        break
#define STREAM_CASES(type) \
    STREAM_CASE(type, 1);  \
    STREAM_CASE(type, 2);  \
    STREAM_CASE(type, 3);  \
    STREAM_CASE(type, 4)

static void stream_tile(const struct di_tile *t)
{
    switch ((int)t->type * 8 + t->rows) {
        STREAM_CASES(DI_W_BF16);
        STREAM_CASES(DI_W_FP8_TILE32);
        STREAM_CASES(DI_W_FP4_ROW32);
    }
}

static void decode_blocks(const struct di_tile *t, int first, int blocks)
{
    switch (t->type) {
    case DI_W_BF16: decode_panel(t, DI_W_BF16, first, blocks); break;
    case DI_W_FP8_TILE32: decode_panel(t, DI_W_FP8_TILE32, first, blocks); break;
    case DI_W_FP4_ROW32: decode_panel(t, DI_W_FP4_ROW32, first, blocks); break;
    }
}

static void block_tile(const struct di_tile *t)
{
    const int per_panel = DI_PANEL_BYTES / (DEPTH * DI_UNIT * 4);
    memset(t->c, 0, (size_t)t->rows * DI_UNIT * sizeof *t->c);
    if (t->rows <= STREAM_ROWS) {
        stream_tile(t);
        return;
    }
    for (int first = 0, n; first < t->k / 32; first += n) {
        n = t->k / 32 - first < per_panel ? t->k / 32 - first : per_panel;
        decode_blocks(t, first, n);
        for (int row = 0; row < t->rows;) {
            const struct multiply_entry *e = group_for(t->rows - row);
            e->fn(t, row, first, n);
            row += e->rows;
        }
    }
}

/* Element d of a row as the kernels want it: the fp32 itself, or two bf16 (the values are exact in bf16, so the upper halves are it). */
static inline uint32_t element(const float *row, int d)
{
    if (STEP == 1)
        return di_f32_bits(row[d]);
    return di_f32_bits(row[2 * d]) >> 16 | (di_f32_bits(row[2 * d + 1]) & 0xFFFF0000);
}

INLINE __m128i upper_halves(__m128i a, __m128i b)
{
    return _mm_packus_epi32(_mm_srli_epi32(a, 16), _mm_srli_epi32(b, 16));
}
INLINE __m128i four_elements(const float *row, int d)
{
    const __m128i *p = (const __m128i *)(const void *)(row + STEP * d);
    __m128i v = _mm_loadu_si128(p);
    if (STEP == 1)
        return v;
    return upper_halves(v, _mm_loadu_si128(p + 1));
}

/* out[d][n] = four rows, d0 <= d < d0 + DEPTH: 4 x 4 elements at a time. */
static void pack_four(const float *const *rows, int d0, int n, uint32_t *out)
{
    for (int d = d0; d < d0 + DEPTH; d += 4) {
        __m128i v[4];
        for (int r = 0; r < 4; r++)
            v[r] = four_elements(rows[r], d);
        __m128i p = _mm_unpacklo_epi32(v[0], v[1]), q = _mm_unpacklo_epi32(v[2], v[3]);
        __m128i s = _mm_unpackhi_epi32(v[0], v[1]), t = _mm_unpackhi_epi32(v[2], v[3]);
        __m128i *at[4];
        for (int i = 0; i < 4; i++)
            at[i] = (__m128i *)(void *)(out + (size_t)(d + i) * (size_t)n);
        _mm_storeu_si128(at[0], _mm_unpacklo_epi64(p, q));
        _mm_storeu_si128(at[1], _mm_unpackhi_epi64(p, q));
        _mm_storeu_si128(at[2], _mm_unpacklo_epi64(s, t));
        _mm_storeu_si128(at[3], _mm_unpackhi_epi64(s, t));
    }
}

static void block_pack_x(const float *const *rows, int n_rows, int k, void *dst)
{
    uint32_t *out = dst;
    for (int row = 0; row < n_rows;) {
        int n = n_rows <= STREAM_ROWS ? n_rows : group_for(n_rows - row)->rows;
        for (int d0 = 0; d0 < k / STEP; d0 += DEPTH) { /* block by block, so that both sides stay in the cache */
            int r = 0;
            for (; r + 4 <= n; r += 4)
                pack_four(rows + row + r, d0, n, out + r);
            for (; r < n; r++)
                for (int d = d0; d < d0 + DEPTH; d++)
                    out[(size_t)d * (size_t)n + (size_t)r] = element(rows[row + r], d);
        }
        out += (size_t)n * (size_t)(k / STEP);
        row += n;
    }
}

#define DEFINE_KERNEL(name)                                         \
    const struct di_kernel name = {.lanes = LANES,                  \
                                   .tile_rows = DI_LEAST_TILE_ROWS, \
                                   .row_bytes = 4 / STEP,           \
                                   .pack_x = block_pack_x,          \
                                   .tile = block_tile,              \
                                   .store = epilogue_store,         \
                                   .swiglu = epilogue_swiglu,       \
                                   .add = epilogue_add}

#endif
