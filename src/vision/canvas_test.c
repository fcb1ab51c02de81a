/* Resampling, placement and patches. not run under TSan: no threads */
#include "vision/canvas.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <zlib.h>

static const struct di_resampler *const all[] = {&di_resample_ref, &di_resample_avx2, &di_resample_avx512};
#define N_FORMS (sizeof all / sizeof *all)

/* Rows of a picture through a canvas. `rgb` has 16 readable bytes behind it. */
static uint8_t *fit(const struct di_resampler *r, const uint8_t *rgb, int64_t w, int64_t h, const struct di_placement *at)
{
    struct di_canvas c;
    uint8_t *pixels = di_malloc((size_t)(at->width * at->height) * 3);
    assert_int_equal(di_canvas_open(&c, w, h, at, r, pixels, NULL), DI_OK);
    for (int64_t y = 0; y < h; y++)
        di_canvas_add_row(&c, rgb + y * w * 3);
    di_canvas_finish(&c);
    di_canvas_close(&c);
    return pixels;
}

/* The picture of the golden values (spec/vision.md §5). */
static uint8_t *make_pattern(int64_t w, int64_t h)
{
    uint8_t *rgb = di_malloc((size_t)(w * h) * 3 + 16), *p = rgb;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            *p++ = (uint8_t)(7 * x + 13 * y);
            *p++ = (uint8_t)(x * x + 3 * y);
            *p++ = (uint8_t)(5 * (x ^ y));
        }
    return rgb;
}

static void test_single_rows(void **state)
{
    (void)state;
    static const uint8_t in[8] = {0, 0, 0, 255, 255, 0, 0, 0};
    static const struct {
        int64_t n;
        uint8_t out[13];
    } cases[] = {
        {5, {0, 36, 255, 36, 0}},
        {13, {0, 0, 0, 0, 57, 236, 255, 236, 57, 0, 0, 0, 0}},
        {3, {10, 173, 10}},
        {8, {0, 0, 0, 255, 255, 0, 0, 0}},
    };
    for (size_t f = 0; f < N_FORMS; f++)
        for (size_t k = 0; di_resampler_runs(all[f]) && k < sizeof cases / sizeof *cases; k++)
            for (int turned = 0; turned < 2; turned++) { /* the same along the other axis */
                uint8_t rgb[8 * 3 + 16] = {0};
                for (int i = 0; i < 24; i++)
                    rgb[i] = in[i / 3];
                int64_t n = cases[k].n, w = turned ? 1 : 8, h = turned ? 8 : 1, ow = turned ? 1 : n, oh = turned ? n : 1;
                struct di_placement at = {.width = ow, .height = oh, .fit_width = ow, .fit_height = oh};
                uint8_t *got = fit(all[f], rgb, w, h, &at);
                for (int64_t i = 0; i < 3 * n; i++)
                    assert_int_equal(got[i], cases[k].out[i / 3]);
                di_free(got);
            }
}

static void test_golden_canvases(void **state)
{
    (void)state;
    static const struct {
        int64_t w, h, cw, ch;
        uint32_t crc;
        int64_t sum;
    } cases[] = {
        {3, 2, 672, 448, 0xbf8132fe, 6830542},           {64, 64, 546, 546, 0x48592113, 108327588},
        {448, 336, 630, 476, 0x854ae919, 114542725},     {640, 480, 644, 490, 0xde08a082, 120537564},
        {1280, 720, 1288, 728, 0xd9365424, 358433563},   {1920, 1080, 1708, 966, 0x4024c514, 630759398},
        {2000, 2000, 1302, 1302, 0x851a5f40, 648222538}, {500, 4000, 420, 3360, 0x962947e9, 539695826},
        {850, 1100, 854, 1106, 0x015ea5ed, 361124150},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint8_t *rgb = make_pattern(cases[k].w, cases[k].h);
        struct di_placement at = di_place(cases[k].w, cases[k].h, cases[k].cw, cases[k].ch, 0);
        size_t bytes = (size_t)(cases[k].cw * cases[k].ch) * 3;
        for (size_t f = 0; f < N_FORMS; f++) {
            if (!di_resampler_runs(all[f]))
                continue;
            uint8_t *got = fit(all[f], rgb, cases[k].w, cases[k].h, &at);
            int64_t sum = 0;
            for (size_t i = 0; i < bytes; i++)
                sum += got[i];
            if (crc32_z(0, got, bytes) != cases[k].crc)
                fail_msg("%s: %lld x %lld gives other bytes", all[f]->name, (long long)cases[k].w, (long long)cases[k].h);
            assert_int_equal(sum, cases[k].sum);
            di_free(got);
        }
        di_free(rgb);
    }
}

static uint32_t random_u32(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* The fast forms against the reference, over sizes that lie around register widths, and strips. Memory is exactly as large as promised. */
static void test_forms_are_equal(void **state)
{
    (void)state;
    uint64_t seed = 7;
#ifdef DI_TEST_QUICK
    int rounds = 60;
#else
    int rounds = 600;
#endif
    for (int round = 0; round < rounds; round++) {
        int64_t w = 1 + random_u32(&seed) % (round % 3 ? 90 : 7), h = 1 + random_u32(&seed) % (round % 5 ? 90 : 5);
        int64_t fw = 1 + random_u32(&seed) % (round % 4 ? 100 : 9), fh = 1 + random_u32(&seed) % (round % 7 ? 100 : 3);
        if (round % 11 == 0)
            w = 3000 + random_u32(&seed) % 9000, h = 1 + round % 3;
        if (round % 13 == 0)
            h = 3000 + random_u32(&seed) % 9000, w = 1 + round % 3;
        struct di_placement at = {.width = fw + 3, .height = fh + 2, .fit_width = fw, .fit_height = fh, .x = round % 4, .y = round % 3};
        uint8_t *rgb = di_malloc((size_t)(w * h) * 3 + 16);
        for (int64_t i = 0; i < w * h * 3; i++) /* extremes: sums overshoot and are clamped */
            rgb[i] = round % 2 ? (uint8_t)random_u32(&seed) : random_u32(&seed) % 2 ? 255 : 0;
        uint8_t *want = fit(&di_resample_ref, rgb, w, h, &at);
        for (size_t f = 1; f < N_FORMS; f++) {
            if (!di_resampler_runs(all[f]))
                continue;
            uint8_t *got = fit(all[f], rgb, w, h, &at);
            if (memcmp(got, want, (size_t)(at.width * at.height) * 3) != 0)
                fail_msg("%s differs: %lld x %lld to %lld x %lld", all[f]->name, (long long)w, (long long)h, (long long)fw, (long long)fh);
            di_free(got);
        }
        di_free(want);
        di_free(rgb);
    }
}

static void test_constant_stays_constant(void **state)
{
    (void)state;
    uint8_t rgb[31 * 17 * 3 + 16];
    struct di_placement at = {.width = 100, .height = 8, .fit_width = 100, .fit_height = 8, .x = 0, .y = 0};
    memset(rgb, 200, sizeof rgb);
    uint8_t *got = fit(NULL, rgb, 31, 17, &at);
    for (int i = 0; i < 100 * 8 * 3; i++)
        assert_int_equal(got[i], 200);
    di_free(got);
}

/* Worked examples of spec/vision.md §4.2. */
static void test_placement(void **state)
{
    (void)state;
    static const int64_t cases[][8] = {
        /* picture, canvas, fit, place */
        {1, 1, 546, 546, 546, 546, 0, 0},         {20, 16, 616, 490, 612, 490, 2, 0},       {448, 336, 630, 476, 630, 472, 0, 2},
        {640, 480, 644, 490, 644, 483, 0, 4},     {800, 600, 812, 602, 803, 602, 4, 0},     {1280, 720, 1288, 728, 1288, 724, 0, 2},
        {850, 1100, 854, 1106, 854, 1105, 0, 0},  {1920, 1080, 1708, 966, 1708, 961, 0, 2}, {1080, 1920, 966, 1708, 961, 1708, 2, 0},
        {3000, 1000, 2268, 756, 2268, 756, 0, 0}, {500, 4000, 420, 3360, 420, 3360, 0, 0},  {1000000, 1, 42882, 42, 42882, 1, 0, 20},
        {1, 60000, 42, 21462, 1, 21462, 20, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const int64_t *c = cases[k];
        struct di_placement p = di_place(c[0], c[1], c[2], c[3], 0);
        const int64_t got[6] = {p.width, p.height, p.fit_width, p.fit_height, p.x, p.y};
        assert_memory_equal(got, c + 2, sizeof got);
    }
    struct di_placement stretched = di_place(400, 10, 420, 42, 40);
    assert_int_equal(stretched.fit_width, 420);
    assert_int_equal(stretched.fit_height, 42);
}

static void test_patches(void **state)
{
    (void)state;
    uint16_t table[256], out[2 * 3 * 600];
    uint8_t pixels[28 * 42 * 3];
    di_patch_values(table);
    assert_int_equal(crc32_z(0, (const void *)table, sizeof table), 0x8770274a);
    assert_int_equal(table[DI_CANVAS_GREY], 0xbb81);
    for (int y = 0; y < 28; y++)
        for (int x = 0; x < 42; x++)
            for (int c = 0; c < 3; c++)
                pixels[(y * 42 + x) * 3 + c] = (uint8_t)(c * 83 + y * 9 + x * 5);
    memset(out, 0xee, sizeof out);
    di_canvas_patches(pixels, 42, 28, 14, table, out, 600);
    for (int t = 0; t < 6; t++) {
        for (int i = 0; i < 588; i++) {
            int c = i / 196, y = t / 3 * 14 + i % 196 / 14, x = t % 3 * 14 + i % 14;
            assert_int_equal(out[t * 600 + i], table[(uint8_t)(c * 83 + y * 9 + x * 5)]);
        }
        assert_int_equal(out[t * 600 + 588], 0xeeee);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_rows),     cmocka_unit_test(test_golden_canvases),
        cmocka_unit_test(test_forms_are_equal), cmocka_unit_test(test_constant_stays_constant),
        cmocka_unit_test(test_placement),       cmocka_unit_test(test_patches),
    };
    return cmocka_run_group_tests_name("canvas", tests, NULL, NULL);
}
