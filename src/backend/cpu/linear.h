/* Matrix kernels: what the driver (linear.c, linear_moe.c) and the instruction sets (linear_<isa>.c) agree on.
 *
 * A weight [n, k] is packed as units of 32 output rows (the last one padded with zeros; groups are padded one by one). A unit is its codes
 * in blocks of 32 k, then its scales, rounded up to 64 bytes; units follow each other, so a matrix is one stream. A block holds 32/lanes
 * strips of `lanes` rows; a strip is cut into chunks of one vector register:
 *
 *              16 lanes (64 B)                                              8 lanes (32 B)
 *   FP4   8 k  row = dword; nibble p<4: k = 2p, else k = 2(p-4)+1           byte [row >> 2][k & 3][row & 3]: low nibble k < 4, high k >= 4
 *   FP8   4 k  16-byte quarter = 4 rows: byte [k >> 1][row & 3][k & 1]      byte [k][row]
 *   BF16  2 k  row = dword, even k low                                      half [k][row]
 *
 * Scales (E8M0): FP4 [k/32][32 rows], FP8 [k/32]. With `relative` they are exponents below the largest of the row (FP8: of the unit), at
 * most DI_RELATIVE_MAX, and the E8M0 byte of the largest stands behind them: the scale can then be folded into a bf16 weight that is always
 * normal.
 *
 * Sums. Of every output there is one order: inside a block of 32 k along k, then the block times its scale is added to the sum of the
 * blocks before (amx: the hardware's order over all k). No other row, no row count and no thread takes part, so the bits are those of m =
 * 1. */
#ifndef DI_BACKEND_CPU_LINEAR_H
#define DI_BACKEND_CPU_LINEAR_H

#include "backend/cpu/cpu.h"

#if defined(__clang__)
#define DI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DI_UNROLL _Pragma("GCC unroll 16")
#endif

#define DI_UNIT 32            /* output rows of a packed unit */
#define DI_TILE_ROWS 256      /* most activation rows that share one decoding of a unit */
#define DI_LEAST_TILE_ROWS 96 /* the fewest of a kernel */
#define DI_PANEL_BYTES 16384  /* decoded weights that wait in the L1 cache */
#define DI_RELATIVE_MAX 117   /* e4m3's smallest value 2^-9 times 2^-117 is still a normal bf16 */

/* c[rows][DI_UNIT] = x times one unit, over all of k. */
struct di_tile {
    enum di_wtype type;
    int rows, k; /* 1..tile_rows; a multiple of 32 */
    const uint8_t *unit;
    const void *x;  /* by pack_x */
    uint8_t *panel; /* DI_PANEL_BYTES of scratch, 64-byte aligned */
    float *c;       /* 64-byte aligned */
};
/* y = c, columns 0..cols-1 of every row. */
struct di_tile_store {
    int rows, cols;
    const float *c;
    float *const *y; /* [rows] first output of the row */
    bool raw;        /* no B */
};
/* Expert activation of one unit (spec/model.md §5.8): h = B(weight * silu(min(B(g), limit)) * clamp(B(u))), then its Q8 value. */
struct di_tile_swiglu {
    int rows;
    float limit;
    bool q8;
    const float *g, *u;
    const float *weight; /* [rows] or NULL */
    float *const *h;     /* [rows] */
};
/* y += B(c); with `last` y = B(y + B(c)). */
struct di_tile_add {
    int rows, cols;
    const float *c;
    float *const *y;
    bool last;
};
struct di_kernel {
    int lanes;
    bool relative;
    int tile_rows;                       /* of a tile() call at most; at least DI_LEAST_TILE_ROWS */
    size_t row_bytes;                    /* packed activation bytes per row and k; rows may be rounded up to tile_rows */
    void (*enter)(void), (*leave)(void); /* around the calls of tile() on a thread, or NULL */
    void (*pack_x)(const float *const *rows, int n_rows, int k, void *dst);
    void (*tile)(const struct di_tile *t);
    void (*store)(const struct di_tile_store *s);
    void (*swiglu)(const struct di_tile_swiglu *s);
    void (*add)(const struct di_tile_add *s);
};
extern const struct di_kernel di_kernel_avx2, di_kernel_avx512, di_kernel_avx512bf16, di_kernel_amx;
const struct di_kernel *di_kernel_of(enum di_cpu_isa isa);

static inline size_t di_unit_codes(enum di_wtype type, int k)
{
    return (size_t)k * (type == DI_W_BF16 ? 64 : type == DI_W_FP8_TILE32 ? 32 : 16);
}
static inline size_t di_unit_bytes(const struct di_kernel *kern, enum di_wtype type, int k)
{
    size_t per_block = type == DI_W_FP4_ROW32 ? DI_UNIT : type == DI_W_FP8_TILE32 ? 1 : 0;
    size_t scales = per_block * (size_t)(k / 32 + kern->relative);
    return (di_unit_codes(type, k) + scales + 63) & ~(size_t)63;
}
static inline int di_units_per_group(const struct di_weight *w)
{
    return (w->n / w->groups + DI_UNIT - 1) / DI_UNIT;
}
/* Fill one unit from the checkpoint bytes: linear_pack.c. */
void di_unit_pack(const struct di_kernel *kern, const struct di_weight *w, int unit, uint8_t *dst);

/* Per-thread scratch of the ops, carved from di_cpu.per_thread. */
struct di_linear_scratch {
    float *c[2];    /* [DI_TILE_ROWS][DI_UNIT] */
    uint8_t *panel; /* [DI_PANEL_BYTES] */
    void *x;        /* packed activations */
};
struct di_linear_scratch di_linear_scratch_of(struct di_cpu *cpu, int thread, int k); /* for activations of up to k columns */

/* Run fn on all threads if `work` (multiply-adds, or bytes * 8) is worth waking them, else here as thread 0 of 1. */
void di_linear_run(struct di_cpu *cpu, int64_t work, di_pool_fn fn, void *ctx);

void di_linear_moe(struct di_backend *be, const struct di_op_moe *d);
void di_linear_moe_count(const struct di_backend_params *p, struct di_carver *c); /* what it carves from di_cpu.shared at most */

#endif
