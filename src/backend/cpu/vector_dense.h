/* Fast ops on dense rows: embedding, norms, hyper-connections, Q8, RoPE, engram. Included by vector_avx2.c and vector_avx512.c.
 * Products and sums that the reference rounds one by one are rounded one by one here too (no fma), so those ops agree bit for bit. */
#ifndef DI_BACKEND_CPU_VECTOR_DENSE_H
#define DI_BACKEND_CPU_VECTOR_DENSE_H

#include "backend/cpu/vector.h"
#include "backend/cpu/vmath.h"
#include "checkpoint/formats.h"

#include <math.h>

/* ---------------------------------------------------------------- rows */

static float row_sum_of_squares(const float *x, int n)
{
    vf s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int c = 0;
    for (; c + 64 <= n; c += 64)
        for (int i = 0; i < 4; i++) {
            vf v = vf_load(x + c + 16 * i);
            s[i] = vf_fma(v, v, s[i]);
        }
    for (; c < n; c += 16) {
        vf v = vf_load(x + c);
        s[0] = vf_fma(v, v, s[0]);
    }
    return vf_sum(vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3])));
}

/* y = B(x * r * w) with r = rsqrt(sum / n + eps) */
static void row_scale(const float *x, int n, float sum, float eps, const uint8_t *w, float *y)
{
    vf r = vf_set1(1.0f / sqrtf(sum / (float)n + eps));
    for (int c = 0; c < n; c += 16)
        vf_store(y + c, vf_round_bf16(vf_mul(vf_mul(vf_load(x + c), r), vf_bf16(w + 2 * c))));
}

static void row_rmsnorm(const float *x, int n, float eps, const uint8_t *w, float *y)
{
    row_scale(x, n, row_sum_of_squares(x, n), eps, w, y);
}

/* Rotate `heads` vectors of d channels; angles are expanded once for all heads. */
static void row_rope(float *x, int heads, int d, int half, const float *cos, const float *sin, bool inverse)
{
    /* (a, b) -> (a cos - b sin, b cos + a sin): the sign sits in the sine's even lanes, or in the odd ones for the inverse. */
    const int64_t even = inverse ? (int64_t)0x8000000000000000 : 0x80000000;
    int64_t minus[8] = {even, even, even, even, even, even, even, even};
    vi flip = vi_load(minus);
    for (int i = 0; i < half; i += 8) {
        vf c = vf_load_pairs(cos + i), s = vi_as_f32(vi_xor(vf_bits(vf_load_pairs(sin + i)), flip));
        float *p = x + d - 2 * half + 2 * i;
        for (int h = 0; h < heads; h++, p += d) {
            vf v = vf_load(p);
            vf_store(p, vf_round_bf16(vf_add(vf_mul(v, c), vf_mul(vf_swap_pairs(v), s))));
        }
    }
}

static void embed_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_embed *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        bool none = d->ids[i] < 0;
        const uint8_t *from = d->table + 2 * (size_t)(none ? 0 : d->ids[i]) * (size_t)d->d;
        float *x = (float *)d->x + i * d->streams * d->d;
        for (int c = 0; c < d->d; c += 16) {
            vf v = none ? vf_zero() : vf_bf16(from + 2 * c);
            for (int s = 0; s < d->streams; s++)
                vf_store(x + (int64_t)s * d->d + c, v);
        }
        for (int s = 0; s < d->streams; s++)
            d->pre[i * d->streams + s] = s == 0;
    }
}
static void vec_embed(struct di_backend *be, const struct di_op_embed *d)
{
    vec_rows(be, d->m, (int64_t)d->d * (4 * d->streams + 2), embed_rows, d);
}

static void rmsnorm_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_rmsnorm *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++)
        row_rmsnorm((const float *)d->x + i * d->d, d->d, d->eps, d->w, (float *)d->y + i * d->d);
}
static void vec_rmsnorm(struct di_backend *be, const struct di_op_rmsnorm *d)
{
    vec_rows(be, d->m, 8 * (int64_t)d->d, rmsnorm_rows, d);
}

static void rope_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_rope *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++)
        row_rope((float *)d->x + i * d->heads * d->d, d->heads, d->d, d->half, d->cos + i * d->half, d->sin + i * d->half, d->inverse);
}
static void vec_rope(struct di_backend *be, const struct di_op_rope *d)
{
    vec_rows(be, d->m, 16 * (int64_t)d->heads * d->half, rope_rows, d);
}

static void scale_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_scale *d = desc;
    float *x = d->x;
    int64_t i = 16 * rows.begin;
    for (; i + 16 <= d->n && i < 16 * rows.end; i += 16)
        vf_store(x + i, vf_round_bf16(vf_mul(vf_load(x + i), vf_set1(d->factor))));
    for (; i < d->n && i < 16 * rows.end; i++)
        x[i] = di_round_bf16(x[i] * d->factor);
}
static void vec_scale(struct di_backend *be, const struct di_op_scale *d)
{
    vec_rows(be, (d->n + 15) / 16, 64, scale_rows, d);
}

/* ---------------------------------------------------------------- hyper-connections (spec/model.md §5.2) */

static void hc_norm_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_hc_norm *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const float *x = (const float *)d->x + i * d->streams * d->d, *pre = d->pre + i * d->streams;
        float *y = (float *)d->y + i * d->d;
        for (int c = 0; c < d->d; c += 16) {
            vf u = vf_zero();
            for (int s = 0; s < d->streams; s++)
                u = vf_add(u, vf_mul(vf_set1(pre[s]), vf_load(x + (int64_t)s * d->d + c)));
            vf_store(y + c, vf_round_bf16(u));
        }
        row_rmsnorm(y, d->d, d->eps, d->w, y);
    }
}
static void vec_hc_norm(struct di_backend *be, const struct di_op_hc_norm *d)
{
    vec_rows(be, d->m, 4 * (int64_t)d->d * (d->streams + 1), hc_norm_rows, d);
}

VEC_INLINE void hc_expand_row(float *x, const float *post, const float *comb, const float *o, int d, const int streams)
{
    for (int c = 0; c < d; c += 16) {
        vf in[DI_MAX_STREAMS], out = vf_load(o + c);
        for (int j = 0; j < streams; j++)
            in[j] = vf_load(x + (int64_t)j * d + c);
        for (int k = 0; k < streams; k++) {
            vf sum = vf_mul(vf_set1(post[k]), out);
            for (int j = 0; j < streams; j++)
                sum = vf_add(sum, vf_mul(vf_set1(comb[j * streams + k]), in[j]));
            vf_store(x + (int64_t)k * d + c, vf_round_bf16(sum));
        }
    }
}
static void hc_expand_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_hc_expand *d = desc;
    int s = d->streams;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        float *x = (float *)d->x + i * s * d->d;
        const float *post = d->post + i * s, *comb = d->comb + i * s * s, *o = (const float *)d->o + i * d->d;
        if (s == 4)
            hc_expand_row(x, post, comb, o, d->d, 4);
        else
            hc_expand_row(x, post, comb, o, d->d, s);
    }
}
static void vec_hc_expand(struct di_backend *be, const struct di_op_hc_expand *d)
{
    vec_rows(be, d->m, 4 * (int64_t)d->d * (2 * d->streams + 1), hc_expand_rows, d);
}

static void hc_mean_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_hc_mean *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const float *x = (const float *)d->x + i * d->streams * d->d;
        int64_t to = d->to ? d->to[i] : i;
        if (to < 0)
            continue;
        float *y = (float *)d->y + to * d->ld;
        for (int c = 0; c < d->d; c += 16) {
            vf sum = vf_zero();
            for (int s = 0; s < d->streams; s++)
                sum = vf_add(sum, vf_load(x + (int64_t)s * d->d + c));
            vf_store(y + c, vf_round_bf16(vf_div(sum, vf_set1((float)d->streams))));
        }
    }
}
static void vec_hc_mean(struct di_backend *be, const struct di_op_hc_mean *d)
{
    vec_rows(be, d->m, 4 * (int64_t)d->d * (d->streams + 1), hc_mean_rows, d);
}

/* HCMIX for 4 streams: [m, 4d] x [24, 4d]^T in fp32, 2 * 96 d FLOP a row against 96 d * 4 bytes of weights (2 MB at full size).
 * One row reads the weights once from memory. More rows go through blocks of MIX_K columns: 8 rows (32 KB) and 3 weight rows (12 KB)
 * at a time from L1, all weight rows of the block (96 KB) from L2. Each (row, output) keeps one 16-lane sum over ascending columns,
 * whatever the blocks. */
#define MIX_K 1024
#define MIX_OUT 3

VEC_INLINE void mix_block(const float *x, size_t ld, const float *fn, int n, float *sums, const int rows)
{
    vf acc[8][MIX_OUT];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < MIX_OUT; o++)
            acc[r][o] = vf_load(sums + 16 * (r * MIX_SUMS + o));
    const float *next = fn + (n <= MIX_K ? MIX_OUT * ld : 512); /* the next weight rows, or further on in these */
    for (int c = 0; c < n; c += 16) {
        vf w[MIX_OUT];
        for (int o = 0; o < MIX_OUT; o++) {
            w[o] = vf_load(fn + (size_t)o * ld + c);
            _mm_prefetch((const char *)(next + (size_t)o * ld + c), _MM_HINT_T0);
        }
        for (int r = 0; r < rows; r++) {
            vf v = vf_load(x + (size_t)r * ld + c);
            for (int o = 0; o < MIX_OUT; o++)
                acc[r][o] = vf_fma(v, w[o], acc[r][o]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < MIX_OUT; o++)
            vf_store(sums + 16 * (r * MIX_SUMS + o), acc[r][o]);
}

#ifdef __AVX512F__
#define MIX_TALL 8 /* 24 accumulators of 32 registers */
#else
#define MIX_TALL 2 /* 12 of 16 */
#endif

static void mix_rows(const float *x, size_t ld, const float *fn, int n, float *sums, int rows)
{
    for (int r = 0, step; r < rows; r += step) {
        const float *xr = x + (size_t)r * ld;
        float *sr = sums + 16 * r * MIX_SUMS;
        step = rows - r >= MIX_TALL ? MIX_TALL : rows - r >= 4 && MIX_TALL > 4 ? 4 : rows - r >= 2 ? 2 : 1;
        if (step == MIX_TALL)
            mix_block(xr, ld, fn, n, sr, MIX_TALL);
        else if (step == 4)
            mix_block(xr, ld, fn, n, sr, 4);
        else if (step == 2)
            mix_block(xr, ld, fn, n, sr, 2);
        else
            mix_block(xr, ld, fn, n, sr, 1);
    }
}

static void mix_squares(const float *x, size_t ld, int n, float *sums, int rows)
{
    for (int r = 0; r < rows; r++) {
        float *at = sums + 16 * (r * MIX_SUMS + 24);
        vf s = vf_load(at);
        for (int c = 0; c < n; c += 16) {
            vf v = vf_load(x + (size_t)r * ld + c);
            s = vf_fma(v, v, s);
        }
        vf_store(at, s);
    }
}

struct mix_job {
    struct di_cpu *cpu;
    const struct di_op_hc_mix *d;
    float *sums;      /* [m][MIX_SUMS] */
    int group, parts; /* rows of a unit; ways in which the 24 outputs are divided */
};

/* Outputs o0..o1 of `rows` rows; the part that has output 0 adds the sum of squares. */
static void mix_unit(const struct mix_job *j, int thread, int row0, int rows, int o0, int o1)
{
    struct vec_arena a = vec_thread(j->cpu, thread);
    float *part = mix_partial(&a);
    int width = j->d->streams * j->d->d;
    size_t ld = (size_t)width;
    const float *x = (const float *)j->d->x + (size_t)row0 * ld;
    memset(part, 0, sizeof(float) * 16 * MIX_SUMS * (size_t)rows);
    int step = rows == 1 ? width : MIX_K; /* one row: read each weight row from end to end */
    for (int c = 0; c < width; c += step) {
        int n = width - c < step ? width - c : step;
        for (int r = 0; r < rows; r += 8) {
            int tall = rows - r < 8 ? rows - r : 8;
            const float *xr = x + (size_t)r * ld + c;
            float *sr = part + 16 * r * MIX_SUMS;
            for (int o = o0; o < o1; o += MIX_OUT)
                mix_rows(xr, ld, j->d->fn + (size_t)o * ld + c, n, sr + 16 * o, tall);
            if (o0 == 0)
                mix_squares(xr, ld, n, sr, tall);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int o = o0; o < MIX_SUMS; o++)
            if (o < o1 || (o0 == 0 && o == 24))
                j->sums[(row0 + r) * MIX_SUMS + o] = vf_sum(vf_load(part + 16 * (r * MIX_SUMS + o)));
}

/* Steps 6 to 8 of spec §5.2 on 4 x 4 matrices, one in a register, row = source; sums in index order. Each is one chain of divisions, so
 * MIX_CHAINS rows take turns. */
#define MIX_CHAINS 4
VEC_INLINE void mix_sinkhorn(vf *z, const int n, int iters, float epsilon)
{
    vf eps = vf_set1(epsilon);
#define OVER_COLUMNS(f, v) f(f(f(vf_column(v, 0), vf_column(v, 1)), vf_column(v, 2)), vf_column(v, 3))
#define OVER_ROWS(f, v) f(f(f(vf_row(v, 0), vf_row(v, 1)), vf_row(v, 2)), vf_row(v, 3))
    for (int k = 0; k < n; k++) {
        z[k] = vf_exp(vf_sub(z[k], OVER_COLUMNS(vf_max, z[k])));
        z[k] = vf_add(vf_div(z[k], OVER_COLUMNS(vf_add, z[k])), eps);
    }
    for (int i = 0; i < iters; i++) {
        for (int k = 0; i > 0 && k < n; k++)
            z[k] = vf_div(z[k], vf_add(OVER_COLUMNS(vf_add, z[k]), eps));
        for (int k = 0; k < n; k++)
            z[k] = vf_div(z[k], vf_add(OVER_ROWS(vf_add, z[k]), eps));
    }
}

/* Rows [row, row + n), n <= MIX_CHAINS. */
static void mix_finish(const struct di_op_hc_mix *d, const float *sums, int64_t row, int n)
{
    vf comb[MIX_CHAINS];
    for (int k = 0; k < MIX_CHAINS; k++)
        comb[k] = vf_zero();
    for (int k = 0; k < n; k++, sums += MIX_SUMS) {
        float z[32] = {0}, gate[16], r = 1.0f / sqrtf(sums[24] / (float)(4 * d->d) + d->norm_eps);
        for (int o = 0; o < 24; o++)
            z[o] = r * sums[o] * d->scale[o < 4 ? 0 : o < 8 ? 1 : 2] + d->base[o];
        vf_store(gate, vf_sigmoid(vf_load(z)));
        for (int s = 0; s < 4; s++) {
            d->pre[4 * (row + k) + s] = gate[s] + d->eps;
            d->post[4 * (row + k) + s] = 2.0f * gate[4 + s];
        }
        comb[k] = vf_load(z + 8);
    }
    if (n == 1)
        mix_sinkhorn(comb, 1, d->iters, d->eps);
    else
        mix_sinkhorn(comb, MIX_CHAINS, d->iters, d->eps);
    for (int k = 0; k < n; k++)
        vf_store(d->comb + 16 * (row + k), comb[k]);
}

static void mix_run(void *ctx, int thread, int n_threads)
{
    const struct mix_job *j = ctx;
    int m = j->d->m, groups = (m + j->group - 1) / j->group;
    di_range mine = di_split((int64_t)groups * j->parts, 1, thread, n_threads);
    for (int64_t u = mine.begin; u < mine.end; u++) {
        int row0 = (int)(u / j->parts) * j->group, rows = m - row0 < j->group ? m - row0 : j->group;
        di_range out = di_split(24, MIX_OUT, (int)(u % j->parts), j->parts);
        mix_unit(j, thread, row0, rows, (int)out.begin, (int)out.end);
    }
    vec_barrier(j->cpu, n_threads);
    di_range rows = di_split(m, 1, thread, n_threads);
    for (int64_t i = rows.begin; i < rows.end; i += MIX_CHAINS)
        mix_finish(j->d, j->sums + i * MIX_SUMS, i, rows.end - i < MIX_CHAINS ? (int)(rows.end - i) : MIX_CHAINS);
}

static void vec_hc_mix(struct di_backend *be, const struct di_op_hc_mix *d)
{
    struct di_cpu *cpu = di_cpu_of(be);
    if (d->m == 0)
        return;
    if (d->streams != 4) { /* only 4 exists; other widths stay possible */
        di_cpu_ref_ops.hc_mix(be, d);
        return;
    }
    struct vec_arena a = vec_shared(cpu);
    struct mix_job j = {.cpu = cpu, .d = d, .sums = mix_sums(&a, d->m), .parts = 1};
    int64_t flop = (int64_t)d->m * 2 * 24 * 4 * d->d;
    bool fork = flop > VEC_FORK_FLOP;
    int threads = fork ? cpu->threads : 1;
    int64_t group = (int64_t)vec_up((d->m + threads - 1) / threads, 8); /* rows of a thread */
    if (d->m < 4 * threads) {                                           /* few rows: divide the outputs instead */
        group = d->m;
        j.parts = threads < 24 / MIX_OUT ? threads : 24 / MIX_OUT;
    }
    j.group = group > MIX_ROWS ? MIX_ROWS : (int)group;
    vec_run(cpu, fork, mix_run, &j);
}

/* ---------------------------------------------------------------- Q8 values */

/* A format with few bits: nearest value, ties to even. Magnitudes of at least `normal` keep 23 - cut mantissa bits; below, the step is
 * constant and equals the last bit of `magic`. */
struct mini_format {
    int cut;
    float normal, magic, most;
    int bias; /* code of a normal value = bits >> cut, minus this */
};
static const struct mini_format FORMAT_E4M3 = {20, 0x1p-6f, 0x1p14f, 448, (127 - 7) << 3};
static const struct mini_format FORMAT_E2M1 = {22, 1, 0x1p22f, 6, (127 - 1) << 1};

VEC_INLINE vf mini_clamp(vf v, const struct mini_format f)
{
    return vf_min(vf_max(v, vf_set1(-f.most)), vf_set1(f.most));
}
/* bits of |v| with half a unit added, so that cutting rounds to even */
VEC_INLINE vi mini_rounded(vf a, const struct mini_format f)
{
#define MINI_BITS(cut_) vi_add(vf_bits(a), vi_add(vi_and(vi_srl(vf_bits(a), cut_), vi_set1(1)), vi_set1((1 << (cut_ - 1)) - 1)))
    return f.cut == 20 ? MINI_BITS(20) : MINI_BITS(22);
}
VEC_INLINE vf mini_value(vf v, const struct mini_format f)
{
    v = mini_clamp(v, f);
    vf a = vf_abs(v), magic = vf_set1(f.magic);
    vf normal = vi_as_f32(vi_and(mini_rounded(a, f), vi_set1((int32_t)(0xFFFFFFFFu << f.cut))));
    vf tiny = vf_sub(vf_add(a, magic), magic);
    return vi_as_f32(vi_or(vf_bits(vf_select(vf_gt(vf_set1(f.normal), a), tiny, normal)), vf_sign(v)));
}
/* Code without the sign bit. */
VEC_INLINE vi mini_code(vf v, const struct mini_format f)
{
    vf a = vf_abs(mini_clamp(v, f)), magic = vf_set1(f.magic);
    vi r = mini_rounded(a, f), normal = vi_sub(f.cut == 20 ? vi_srl(r, 20) : vi_srl(r, 22), vi_set1(f.bias));
    vi tiny = vi_sub(vf_bits(vf_add(a, magic)), vf_bits(magic));
    return vi_select(vf_gt(vf_set1(f.normal), a), tiny, normal);
}

/* Exponent of the power-of-two scale of a block of 32 (spec §4.1). */
VEC_INLINE int block_exponent(vf a, vf b, float least, float inverse_most)
{
    float amax = vf_largest(vf_max(vf_abs(a), vf_abs(b)));
    return di_p2c((amax > least ? amax : least) * inverse_most);
}
VEC_INLINE float power_of_two(int e)
{
    return di_f32_from_bits((uint32_t)(e + 127) << 23);
}
#define Q8_EXPONENT(a, b) block_exponent(a, b, 1e-4f, 1.0f / 448.0f)
#define Q4E_EXPONENT(a, b) block_exponent(a, b, 6 * 0x1p-126f, 1.0f / 6.0f)

VEC_INLINE void block_values(vf a, vf b, int e, const struct mini_format f, float *y)
{
    vf inverse = vf_set1(power_of_two(-e)), s = vf_set1(power_of_two(e));
    vf_store(y, vf_mul(mini_value(vf_mul(a, inverse), f), s));
    vf_store(y + 16, vf_mul(mini_value(vf_mul(b, inverse), f), s));
}

static void quant8_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_quant8 *d = desc;
    const float *x = d->x;
    float *y = d->y;
    for (int64_t i = 32 * rows.begin; i < 32 * rows.end; i += 32) {
        vf a = vf_load(x + i), b = vf_load(x + i + 16);
        block_values(a, b, Q8_EXPONENT(a, b), FORMAT_E4M3, y + i);
    }
}
static void vec_quant8(struct di_backend *be, const struct di_op_quant8 *d)
{
    vec_rows(be, (int64_t)d->m * d->k / 32, 4 * 256, quant8_rows, d); /* as slow as 1 KB of copying */
}

/* ---------------------------------------------------------------- engram (spec §5.9) */

/* Rows lie anywhere in a table of 100 GB: ask for all rows of a token before reading the first. */
static void engram_gather_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_engram_gather *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const int64_t *idx = d->idx + i * d->cols;
        float *e = (float *)d->e + i * d->cols * d->hd;
        for (int c = 0; c < d->cols; c++)
            for (int b = 0; idx[c] >= 0 && b < d->hd; b += 64) {
                _mm_prefetch((const char *)d->table + idx[c] * d->hd + b, _MM_HINT_T0);
                _mm_prefetch((const char *)d->scale + (idx[c] * d->hd + b) / 32, _MM_HINT_T0);
            }
        for (int c = 0; c < d->cols; c++, e += d->hd)
            for (int b = 0; b < d->hd; b += 32) {
                int64_t at = idx[c] * d->hd + b;
                vf s = vf_set1(idx[c] < 0 ? 0 : di_e8m0_value(d->scale[at / 32]));
                for (int k = 0; k < 32; k += 16)
                    vf_store(e + b + k, idx[c] < 0 ? vf_zero() : vf_mul(vf_e4m3(d->table + at + k), s));
            }
    }
}
static void vec_engram_gather(struct di_backend *be, const struct di_op_engram_gather *d)
{
    vec_rows(be, d->m, 16 * (int64_t)d->cols * d->hd, engram_gather_rows, d);
}

static float engram_gate_of(const float *x, const float *key, const float *qk, int d, float eps)
{
    vf dot = vf_zero(), xx = vf_zero(), kk = vf_zero();
    for (int c = 0; c < d; c += 16) {
        vf a = vf_load(x + c), k = vf_load(key + c);
        dot = vf_fma(vf_mul(a, vf_load(qk + c)), k, dot);
        xx = vf_fma(a, a, xx);
        kk = vf_fma(k, k, kk);
    }
    float n = (float)d, score = vf_sum(dot);
    score *= 1.0f / sqrtf(vf_sum(xx) / n + eps);
    score *= 1.0f / sqrtf(vf_sum(kk) / n + eps);
    score *= 1.0f / sqrtf(n);
    float size = fabsf(score) > 1e-6f ? fabsf(score) : 1e-6f;
    return _mm_cvtss_f32(_mm256_castps256_ps128(vf_low8(vf_sigmoid(vf_set1(copysignf(sqrtf(size), score))))));
}
static void engram_gate_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    (void)cpu, (void)thread;
    const struct di_op_engram_gate *d = desc;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        if (d->kind && d->kind[i] != DI_ROW_TEXT)
            continue;
        const float *kv = (const float *)d->kv + i * (d->streams + 1) * d->d, *value = kv + d->streams * d->d;
        for (int s = 0; s < d->streams; s++) {
            float *x = (float *)d->x + (i * d->streams + s) * d->d;
            vf gate = vf_set1(engram_gate_of(x, kv + s * d->d, d->qk + s * d->d, d->d, d->eps));
            for (int c = 0; c < d->d; c += 16)
                vf_store(x + c, vf_round_bf16(vf_add(vf_load(x + c), vf_mul(gate, vf_load(value + c)))));
        }
    }
}
static void vec_engram_gate(struct di_backend *be, const struct di_op_engram_gate *d)
{
    vec_rows(be, d->m, 4 * (int64_t)d->d * (4 * d->streams + 1), engram_gate_rows, d);
}

#endif
