#include "model/model.h"

#include <math.h>

#define PI 3.14159265358979323846

/* Both powers are rounded to fp32 before the next operation: the released model was trained on exactly these values (spec/model.md §5.4).
 * */
static float inverse_power(double base, int i, int dim)
{
    float b = (float)pow(base, (double)(float)((float)(2 * i) / (float)dim));
    return 1.0f / b;
}

void di_rope_freq_main(const struct di_config *c, float *freq)
{
    for (int i = 0; i < c->qk_rope_head_dim / 2; i++)
        freq[i] = inverse_power(c->rope_theta, i, c->qk_rope_head_dim);
}

/* Index of the pair that turns `turns` times over the original context. */
static double correction(const struct di_config *c, double turns)
{
    double dim = c->qk_rope_head_dim;
    return dim * log((double)c->rope_original_max_position_embeddings / (turns * 2 * PI)) / (2 * log(c->compress_rope_theta));
}

void di_rope_freq_compress(const struct di_config *c, float *freq)
{
    int dim = c->qk_rope_head_dim;
    double low = fmax(floor(correction(c, c->rope_beta_fast)), 0), high = fmin(ceil(correction(c, c->rope_beta_slow)), dim - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < dim / 2; i++) {
        float g = inverse_power(c->compress_rope_theta, i, dim), h = g / (float)c->rope_factor;
        float ramp = (float)(i - low) / (float)(high - low);
        float m = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        freq[i] = h * (1.0f - m) + g * m;
    }
}
