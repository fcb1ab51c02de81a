/* AMX: tdpbf16ps, 16 rows x 16 outputs x 32 k at a time, at every row count, because it sums in another order than vdpbf16ps. Weights are
 * decoded to bf16 with their scale relative to the row's largest (linear.h), whose factor is applied to the finished sum: a sum over all k
 * can then stay in a tile register. Rows are padded to 16 with zeros; an instruction takes the same time for 1 as for 16.
 *
 * Packed activations: [rows / 16][k / 32] tiles of 16 rows x 32 bf16. A decoded block is 2 tiles of 16 k pairs x 16 outputs. */
#include "backend/cpu/linear_epilogue.inc"
#include "backend/cpu/linear_table.h"

#include <immintrin.h>

#define TILE_BYTES 1024
#define PANEL_BLOCKS 8 /* 16 KB of the L1 cache */
#define AHEAD 8192     /* bytes between use and prefetch */
#define C_STRIDE (DI_UNIT * 4)

static void configure_tiles(void)
{
    static const _Alignas(64)
        uint8_t config[64] = {1,  [16] = 64, 0,  64, 0,         64, 0,  64, 0,  64, 0,  64, 0,
                              64, 0,         64, 0,  [48] = 16, 16, 16, 16, 16, 16, 16, 16}; /* 8 tiles of 16 x 64 bytes */
    _tile_loadconfig(config);
}

static void release_tiles(void)
{
    _tile_release();
}

static inline __m512i load_pairs(const float *x)
{
    __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 16); /* the values are exact in bf16: keep the upper halves */
    __m256i lo = _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)), hi = _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

static void pack_x(const float *const *rows, int n_rows, int k, void *dst)
{
    uint8_t *out = dst;
    for (int row = 0; row < n_rows; row += 16)
        for (int b = 0; b < k / 32; b++)
            for (int r = row; r < row + 16; r++, out += 64)
                _mm512_store_si512(out, r < n_rows ? load_pairs(rows[r] + 32 * b) : _mm512_setzero_si512());
}

/* 16 vectors of pairs from one strip of a block. The saturating subtraction takes the scale's exponent off and leaves zeros alone; the
 * codes are never minus zero. */
static inline __attribute__((always_inline)) void decode_strip(const enum di_wtype type, const uint8_t *p, __m512i below, uint8_t *out)
{
    if (type == DI_W_FP4_ROW32) {
        const __m512i table = _mm512_load_si512(di_e2m1_bf16);
        for (int i = 0; i < 4; i++, p += 64, out += 256)
            for (int o = 0; o < 2; o++) {
                __m512i v = _mm512_loadu_si512(p + o), u = _mm512_srli_epi32(v, 4);
                _mm512_store_si512(out + 128 * o, _mm512_subs_epu16(_mm512_permutexvar_epi16(v, table), below));
                _mm512_store_si512(out + 128 * o + 64, _mm512_subs_epu16(_mm512_permutexvar_epi16(u, table), below));
            }
    } else if (type == DI_W_FP8_TILE32) {
        for (int i = 0; i < 8; i++, p += 64, out += 128) {
            __m512i pairs[2];
            di_e4m3_to_bf16_pairs(_mm512_load_si512(p), pairs);
            _mm512_store_si512(out, _mm512_subs_epu16(pairs[0], below));
            _mm512_store_si512(out + 64, _mm512_subs_epu16(pairs[1], below));
        }
    }
}

static inline __m512i exponents_below(const struct di_tile *t, const enum di_wtype type, int block, int strip)
{
    const uint8_t *s = t->unit + di_unit_codes(type, t->k);
    if (type != DI_W_FP4_ROW32)
        return _mm512_set1_epi16((short)(s[block] << 7));
    __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(s + block * DI_UNIT + strip * 16)));
    return _mm512_or_si512(_mm512_slli_epi32(v, 7), _mm512_slli_epi32(v, 23));
}

/* Block of the unit as two tiles: decoded to `tiles`, or (BF16) in place. */
static inline __attribute__((always_inline)) const uint8_t *block_tiles(const struct di_tile *t, const enum di_wtype type, int block,
                                                                        uint8_t *tiles)
{
    const size_t block_bytes = type == DI_W_BF16 ? 2 * TILE_BYTES : type == DI_W_FP8_TILE32 ? 1024 : 512;
    const uint8_t *p = t->unit + (size_t)block * block_bytes;
    for (size_t i = 0; i < block_bytes; i += 64)
        __builtin_prefetch(p + AHEAD + i, 0, 2);
    if (type == DI_W_BF16)
        return p;
    decode_strip(type, p, exponents_below(t, type, block, 0), tiles);
    decode_strip(type, p + block_bytes / 2, exponents_below(t, type, block, 1), tiles + TILE_BYTES);
    return tiles;
}

/* Up to 32 rows: the sums stay in tile registers, and a block is multiplied while the next ones are decoded. */
static inline __attribute__((always_inline)) void stream(const struct di_tile *t, const enum di_wtype type, const bool two)
{
    const uint8_t *a = t->x, *a2 = a + (size_t)(t->k / 32) * TILE_BYTES;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int b = 0; b < t->k / 32; b++, a += TILE_BYTES, a2 += TILE_BYTES) {
        const uint8_t *w = block_tiles(t, type, b, t->panel + b % PANEL_BLOCKS * (2 * TILE_BYTES));
        _tile_loadd(4, a, 64);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + TILE_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, a2, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, t->c, C_STRIDE);
    _tile_stored(1, t->c + 16, C_STRIDE);
    if (two) {
        _tile_stored(2, t->c + 16 * DI_UNIT, C_STRIDE);
        _tile_stored(3, t->c + 16 * DI_UNIT + 16, C_STRIDE);
    }
}

static inline __attribute__((always_inline)) void stream_rows(const struct di_tile *t, const enum di_wtype type)
{
    if (t->rows > 16)
        stream(t, type, true);
    else
        stream(t, type, false);
}

static void stream_tile(const struct di_tile *t)
{
    switch (t->type) {
    case DI_W_BF16: stream_rows(t, DI_W_BF16); break;
    case DI_W_FP8_TILE32: stream_rows(t, DI_W_FP8_TILE32); break;
    case DI_W_FP4_ROW32: stream_rows(t, DI_W_FP4_ROW32); break;
    }
}

static inline __attribute__((always_inline)) const uint8_t *panel(const struct di_tile *t, const enum di_wtype type, int first, int blocks)
{
    const uint8_t *w = block_tiles(t, type, first, t->panel);
    for (int b = 1; b < blocks; b++)
        block_tiles(t, type, first + b, t->panel + b * (2 * TILE_BYTES));
    return w;
}

static const uint8_t *panel_of(const struct di_tile *t, int first, int blocks)
{
    switch (t->type) {
    case DI_W_BF16: return panel(t, DI_W_BF16, first, blocks);
    case DI_W_FP8_TILE32: return panel(t, DI_W_FP8_TILE32, first, blocks);
    case DI_W_FP4_ROW32: return panel(t, DI_W_FP4_ROW32, first, blocks);
    }
    return NULL;
}

/* c[32][32] += a x w over some blocks: four accumulators hide the latency of the instruction. */
static void multiply_2(const uint8_t *a, size_t a_next, const uint8_t *w, int blocks, float *c)
{
    _tile_loadd(0, c, C_STRIDE);
    _tile_loadd(1, c + 16, C_STRIDE);
    _tile_loadd(2, c + 16 * DI_UNIT, C_STRIDE);
    _tile_loadd(3, c + 16 * DI_UNIT + 16, C_STRIDE);
    for (int b = 0; b < blocks; b++, a += TILE_BYTES, w += 2 * TILE_BYTES) {
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + TILE_BYTES, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + a_next, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + 16, C_STRIDE);
    _tile_stored(2, c + 16 * DI_UNIT, C_STRIDE);
    _tile_stored(3, c + 16 * DI_UNIT + 16, C_STRIDE);
}

static void multiply_1(const uint8_t *a, const uint8_t *w, int blocks, float *c)
{
    _tile_loadd(0, c, C_STRIDE);
    _tile_loadd(1, c + 16, C_STRIDE);
    for (int b = 0; b < blocks; b++, a += TILE_BYTES, w += 2 * TILE_BYTES) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + TILE_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + 16, C_STRIDE);
}

static inline __m512 factor(const uint8_t *p, bool all)
{
    __m512i v = all ? _mm512_set1_epi32(*p) : _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(v, 23), _mm512_set1_epi32(0x400000))); /* 0 is the subnormal 2^-127 */
}

static void panel_tile(const struct di_tile *t)
{
    int padded = (t->rows + 15) & ~15, all = t->k / 32;
    size_t a_tile = (size_t)all * TILE_BYTES; /* 16 rows of x */
    memset(t->c, 0, (size_t)padded * C_STRIDE);
    for (int first = 0, n; first < all; first += n) {
        n = all - first < PANEL_BLOCKS ? all - first : PANEL_BLOCKS;
        const uint8_t *w = panel_of(t, first, n), *a = (const uint8_t *)t->x + (size_t)first * TILE_BYTES;
        float *c = t->c;
        int left = padded;
        for (; left >= 32; left -= 32, a += 2 * a_tile, c += 32 * DI_UNIT)
            multiply_2(a, a_tile, w, n, c);
        if (left)
            multiply_1(a, w, n, c);
    }
}

static void run_tile(const struct di_tile *t)
{
    if (t->rows <= 32)
        stream_tile(t);
    else
        panel_tile(t);
    if (t->type == DI_W_BF16)
        return;
    bool fp8 = t->type == DI_W_FP8_TILE32;
    const uint8_t *top = t->unit + di_unit_codes(t->type, t->k) + (size_t)(t->k / 32) * (fp8 ? 1 : DI_UNIT);
    __m512 f0 = factor(top, fp8), f1 = factor(fp8 ? top : top + 16, fp8);
    for (int r = 0; r < t->rows; r++) {
        float *c = t->c + r * DI_UNIT;
        _mm512_store_ps(c, _mm512_mul_ps(_mm512_load_ps(c), f0));
        _mm512_store_ps(c + 16, _mm512_mul_ps(_mm512_load_ps(c + 16), f1));
    }
}

const struct di_kernel di_kernel_amx = {.lanes = 16,
                                        .relative = true,
                                        .tile_rows = 256,
                                        .row_bytes = 2,
                                        .enter = configure_tiles,
                                        .leave = release_tiles,
                                        .pack_x = pack_x,
                                        .tile = run_tile,
                                        .store = epilogue_store,
                                        .swiglu = epilogue_swiglu,
                                        .add = epilogue_add};
