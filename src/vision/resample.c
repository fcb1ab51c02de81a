#include "vision/resample.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- weights */

/* Bicubic with a = -0.5. The expressions are in the order of the reference, since their rounding decides. */
static double cubic(double x)
{
    x = fabs(x);
    if (x < 1.0)
        return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * -0.5;
    return 0.0;
}

struct filter {
    double scale, support, inverse;
};

static struct filter filter_of(int64_t in, int64_t out)
{
    double scale = (double)in / (double)out, spread = scale < 1.0 ? 1.0 : scale;
    return (struct filter){.scale = scale, .support = 2.0 * spread, .inverse = 1.0 / spread};
}

/* The source positions [lo, hi) that output position i is made of. */
static void find_span(const struct filter *f, int64_t in, int64_t i, int64_t *lo, int64_t *hi)
{
    double center = ((double)i + 0.5) * f->scale;
    int64_t a = (int64_t)(center - f->support + 0.5), b = (int64_t)(center + f->support + 0.5);
    *lo = a < 0 ? 0 : a;
    *hi = b > in ? in : b;
}

/* Weights of the n positions from lo on; `real` has room for them. */
static void weigh(const struct filter *f, int64_t i, int64_t lo, int64_t n, double *real, int32_t *out)
{
    double center = ((double)i + 0.5) * f->scale, sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        real[j] = cubic(((double)(j + lo) - center + 0.5) * f->inverse);
        sum += real[j];
    }
    for (int64_t j = 0; j < n; j++) {
        double k = sum != 0.0 ? real[j] / sum : real[j];
        double fixed = k * (double)(1 << DI_WEIGHT_BITS);
        out[j] = (int32_t)(k < 0 ? fixed - 0.5 : fixed + 0.5);
    }
}

/* Four weights into 16 bytes that hold them in the given form. |weight| < 2^23 - 2^15: the kernel's greatest value is 1, and the sum it is
 * divided by is never small. */
static void pack(enum di_tap_form form, int32_t w[4])
{
    int16_t pairs[8];
    int8_t digits[16] = {0};
    switch (form) {
    case DI_TAPS_PLAIN: break;
    case DI_TAPS_PAIRS:
        for (int t = 0; t < 4; t++) {
            pairs[t / 2 * 4 + t % 2] = (int16_t)(w[t] & 4095);
            pairs[t / 2 * 4 + 2 + t % 2] = (int16_t)(w[t] >> 12);
        }
        memcpy(w, pairs, 16);
        break;
    case DI_TAPS_DIGITS:
        for (int t = 0; t < 4; t++) {
            int32_t low = ((w[t] + 128) & 255) - 128, rest = (w[t] - low) >> 8, middle = ((rest + 128) & 255) - 128;
            digits[8 + t] = (int8_t)low;
            digits[4 + t] = (int8_t)middle;
            digits[t] = (int8_t)((rest - middle) >> 8);
        }
        memcpy(w, digits, 16);
        break;
    }
}

di_status di_axis_open(int64_t in, int64_t out, enum di_tap_form form, struct di_axis *axis, di_error *err)
{
    struct filter f = filter_of(in, out);
    int64_t most = 1, lo, hi;
    double *real = NULL;
    di_status status = DI_OK;
    for (int64_t i = 0; i < out; i++) {
        find_span(&f, in, i, &lo, &hi);
        most = hi - lo > most ? hi - lo : most;
    }
    *axis = (struct di_axis){.in = in, .out = out, .groups = (most + 3) / 4, .form = form};
    axis->first = di_calloc((size_t)out, sizeof *axis->first);
    axis->taps = di_calloc((size_t)out, (size_t)axis->groups * 16);
    real = di_calloc((size_t)most, sizeof *real);
    CHECK(axis->first && axis->taps && real, err, DI_ERR_MEMORY, "", "out of memory");
    for (int64_t i = 0; i < out; i++) {
        int32_t *taps = axis->taps + i * axis->groups * 4;
        find_span(&f, in, i, &lo, &hi);
        int64_t first = lo < in - 4 * axis->groups ? lo : in - 4 * axis->groups;
        axis->first[i] = (int32_t)(first < 0 ? 0 : first);
        weigh(&f, i, lo, hi - lo, real, taps + (lo - axis->first[i]));
        for (int64_t g = 0; g < axis->groups; g++)
            pack(form, taps + 4 * g);
    }
out:
    di_free(real);
    if (status != DI_OK)
        di_axis_close(axis);
    return status;
}

void di_axis_close(struct di_axis *axis)
{
    di_free(axis->first);
    di_free(axis->taps);
    *axis = (struct di_axis){0};
}

/* ---------------------------------------------------------------- the reference */

static uint8_t round_sum(int32_t sum)
{
    int32_t v = (sum + (1 << (DI_WEIGHT_BITS - 1))) >> DI_WEIGHT_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void across_ref(const struct di_axis *axis, const uint8_t *from, uint8_t *to)
{
    for (int64_t i = 0; i < axis->out; i++) {
        const int32_t *w = axis->taps + i * axis->groups * 4;
        const uint8_t *p = from + 3 * (int64_t)axis->first[i];
        int64_t left = axis->in - axis->first[i], n = 4 * axis->groups < left ? 4 * axis->groups : left;
        int32_t sum[3] = {0};
        for (int64_t j = 0; j < n; j++)
            for (int c = 0; c < 3; c++)
                sum[c] += w[j] * p[3 * j + c];
        for (int c = 0; c < 3; c++)
            to[3 * i + c] = round_sum(sum[c]);
    }
}

static void down_ref(const struct di_axis *axis, int64_t i, const uint8_t *from, int64_t stride, uint8_t *to, int64_t n)
{
    const int32_t *w = axis->taps + i * axis->groups * 4;
    int64_t first = axis->first[i], left = axis->in - first, rows = 4 * axis->groups < left ? 4 * axis->groups : left;
    for (int64_t x = 0; x < n; x++) {
        int32_t sum = 0;
        for (int64_t j = 0; j < rows; j++)
            sum += w[j] * from[(first + j) * stride + x];
        to[x] = round_sum(sum);
    }
}

const struct di_resampler di_resample_ref = {.name = "ref", .form = DI_TAPS_PLAIN, .across = across_ref, .down = down_ref};

/* ---------------------------------------------------------------- which one */

bool di_resampler_runs(const struct di_resampler *r)
{
#if defined(__x86_64__)
    if (r == &di_resample_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
               __builtin_cpu_supports("bmi2");
    if (r == &di_resample_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#endif
    return r == &di_resample_ref;
}

const struct di_resampler *di_resampler_best(void)
{
    static const struct di_resampler *const all[] = {&di_resample_avx512, &di_resample_avx2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (di_resampler_runs(all[i]))
            return all[i];
    return &di_resample_ref;
}
