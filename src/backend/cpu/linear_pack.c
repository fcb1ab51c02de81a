/* Packing of weights into units (layouts in linear.h). Runs once per weight. */
#include "backend/cpu/linear.h"

#include <string.h>

/* One lane's part of a chunk: `src` holds the row's codes of 8 (FP4), 4 (FP8) or 2 (BF16) k. */
typedef void (*put_fn)(const uint8_t *src, int lane, uint8_t *chunk);

static void put16_fp4(const uint8_t *src, int lane, uint8_t *chunk)
{
    uint8_t *d = chunk + 4 * lane;
    d[0] = (uint8_t)((src[0] & 15) | src[1] << 4); /* k 0, 2 */
    d[1] = (uint8_t)((src[2] & 15) | src[3] << 4); /* k 4, 6 */
    d[2] = (uint8_t)(src[0] >> 4 | (src[1] & 0xF0));
    d[3] = (uint8_t)(src[2] >> 4 | (src[3] & 0xF0));
}

static uint8_t plain_zero(uint8_t e4m3)
{
    return e4m3 == 0x80 ? 0 : e4m3; /* minus zero: the amx decoder knows one zero only */
}

static void put16_fp8(const uint8_t *src, int lane, uint8_t *chunk)
{
    uint8_t *d = chunk + 16 * (lane / 4) + 2 * (lane % 4);
    d[0] = plain_zero(src[0]);
    d[1] = plain_zero(src[1]);
    d[8] = plain_zero(src[2]);
    d[9] = plain_zero(src[3]);
}

static void put16_bf16(const uint8_t *src, int lane, uint8_t *chunk)
{
    memcpy(chunk + 4 * lane, src, 4);
}

static void put8_fp4(const uint8_t *src, int lane, uint8_t *chunk)
{
    for (int k = 0; k < 4; k++) {
        int shift = k % 2 * 4;
        chunk[16 * (lane / 4) + 4 * k + lane % 4] = (uint8_t)((src[k / 2] >> shift & 15) | (src[2 + k / 2] >> shift & 15) << 4);
    }
}

static void put8_fp8(const uint8_t *src, int lane, uint8_t *chunk)
{
    for (int k = 0; k < 4; k++)
        chunk[8 * k + lane] = plain_zero(src[k]);
}

static void put8_bf16(const uint8_t *src, int lane, uint8_t *chunk)
{
    memcpy(chunk + 2 * lane, src, 2);
    memcpy(chunk + 16 + 2 * lane, src + 2, 2);
}

static const struct {
    put_fn put16, put8;
    int bytes;  /* of src: one row's codes in a chunk */
    int chunks; /* of a strip in a block */
} formats[] = {
    [DI_W_BF16] = {put16_bf16, put8_bf16, 4, 16},
    [DI_W_FP8_TILE32] = {put16_fp8, put8_fp8, 4, 8},
    [DI_W_FP4_ROW32] = {put16_fp4, put8_fp4, 4, 4},
};

/* Scales of one row of factors (count apart by `stride` in dst), as they are or relative to the largest. */
static void put_scales(const struct di_kernel *kern, const uint8_t *src, int blocks, size_t stride, uint8_t *dst)
{
    int top = 0;
    for (int b = 0; b < blocks; b++)
        top = src[b] > top ? src[b] : top;
    for (int b = 0; b < blocks; b++) {
        int below = top - src[b] < DI_RELATIVE_MAX ? top - src[b] : DI_RELATIVE_MAX;
        dst[(size_t)b * stride] = (uint8_t)(kern->relative ? below : src[b]);
    }
    if (kern->relative)
        dst[(size_t)blocks * stride] = (uint8_t)top;
}

void di_unit_pack(const struct di_kernel *kern, const struct di_weight *w, int unit, uint8_t *dst)
{
    int per_group = w->n / w->groups, units = di_units_per_group(w);
    int row0 = unit / units * per_group + unit % units * DI_UNIT, end = (unit / units + 1) * per_group;
    int count = end - row0 < DI_UNIT ? end - row0 : DI_UNIT, blocks = w->k / 32;
    put_fn put = kern->lanes == 16 ? formats[w->type].put16 : formats[w->type].put8;
    int bytes = formats[w->type].bytes, chunks = formats[w->type].chunks, chunk_bytes = 4 * kern->lanes;
    size_t row_bytes = (size_t)bytes * (size_t)chunks * (size_t)blocks, strip_bytes = (size_t)(chunks * chunk_bytes);
    memset(dst, 0, di_unit_bytes(kern, w->type, w->k));
    for (int r = 0; r < count; r++) {
        const uint8_t *src = w->data + (size_t)(row0 + r) * row_bytes;
        uint8_t *strip = dst + (size_t)(r / kern->lanes) * strip_bytes;
        for (int b = 0; b < blocks; b++, strip += strip_bytes * (size_t)(DI_UNIT / kern->lanes))
            for (int c = 0; c < chunks; c++, src += bytes)
                put(src, r % kern->lanes, strip + c * chunk_bytes);
    }
    uint8_t *scales = dst + di_unit_codes(w->type, w->k);
    if (w->type == DI_W_FP8_TILE32)
        put_scales(kern, w->scale + (size_t)(row0 / 32) * (size_t)blocks, blocks, 1, scales);
    for (int r = 0; r < count && w->type == DI_W_FP4_ROW32; r++)
        put_scales(kern, w->scale + (size_t)(row0 + r) * (size_t)blocks, blocks, DI_UNIT, scales + r);
}
