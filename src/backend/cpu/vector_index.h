/* Indexer scores and the two-level top-k (spec/model.md §5.7).
 *
 * Scores: keys and queries are Q4e, so twice their values are integers of at most 12; a block of 32 channels is an exact integer
 * product, scaled by two powers of two; the blocks of a head are added in fp32 in order, then max(0, .) times w, heads in order. 32 keys
 * at a time, lanes = keys. The product is u8 * s8: 12 is added to the keys, 12 * sum(q) taken off. Per key at full size (32 heads, 128
 * channels): 68 bytes, 4096 products, 64 of them an instruction.
 *
 * Selection: one pass, no array of scores. The order (score descending, index ascending) is total, so the best k are the same set
 * however the keys are divided: each part keeps its own best k, and the parts' lists are reduced once more. */
#ifndef DI_BACKEND_CPU_VECTOR_INDEX_H
#define DI_BACKEND_CPU_VECTOR_INDEX_H

#include "backend/cpu/vector_dense.h"

/* ---------------------------------------------------------------- top-k */

/* Integers in the order of the floats; -0 counts as 0. */
VEC_INLINE vi order_keys(vf v)
{
    vi u = vf_bits(vf_add(v, vf_zero()));
    return vi_xor(u, vi_and(vi_sra(u, 31), vi_set1(INT32_MAX)));
}
static int32_t order_key(float x)
{
    int32_t u = (int32_t)di_f32_bits(x + 0.0f);
    return u ^ (u >> 31 & INT32_MAX);
}

static int count_at_least(const struct topk *t, int32_t key) /* key > INT32_MIN: the padding behind n never counts */
{
    vi count = vi_set1(0), below = vi_set1(key - 1);
    for (int i = 0; i < t->n; i += 16)
        count = vi_add(count, vi_select(vi_gt(vi_load(t->key + i), below), vi_set1(1), vi_set1(0)));
    int32_t lane[16], sum = 0;
    vi_store(lane, count);
    for (int i = 0; i < 16; i++)
        sum += lane[i];
    return sum;
}

/* Keep the best k in their order. The k-th largest key is found by bisection: at most 32 counts of a few hundred vectors. */
static void topk_reduce(struct topk *t)
{
    if (t->n <= t->k)
        return;
    for (int i = t->n; i < t->n + 16; i++)
        t->key[i] = INT32_MIN;
    int64_t low = INT32_MIN, high = INT32_MAX; /* at least k keys are >= low, fewer than k are > high */
    int ties = 0;                              /* keys equal to low that are kept */
    bool exact = false;
    while (low < high && !exact) {
        int64_t middle = low + (high - low + 1) / 2;
        int n = count_at_least(t, (int32_t)middle);
        exact = n == t->k;
        if (n >= t->k)
            low = middle;
        else
            high = middle - 1;
    }
    if (exact)
        low--; /* all that are above it, and none of its own */
    else
        ties = t->k - (low == INT32_MAX ? 0 : count_at_least(t, (int32_t)low + 1));
    int n = 0;
    for (int i = 0; i < t->n; i++)
        if (t->key[i] > low || (t->key[i] == low && ties-- > 0)) {
            t->key[n] = t->key[i];
            t->id[n++] = t->id[i];
        }
    t->n = n;
    t->bound = (int32_t)low;
}

static void topk_push(struct topk *t, int32_t key, int32_t id)
{
    if (key <= t->bound)
        return;
    if (t->n == t->cap)
        topk_reduce(t);
    if (key > t->bound) {
        t->key[t->n] = key;
        t->id[t->n++] = id;
    }
}

static void topk_reset(struct topk *t)
{
    t->n = 0;
    t->bound = INT32_MIN;
}

/* ---------------------------------------------------------------- scores */

/* Which keys a row looks at: all visible groups, or those of its candidate blocks; numbered 0 .. count. */
static struct index_pool row_pool(const struct di_op_index_select *d, int row)
{
    int32_t visible = di_slot_of_row(d->rows, row) < 0 ? 0 : (d->rows->pos[row] + 1) / d->kv->layout->ratio[d->src];
    struct index_pool p = {NULL, d->cand_block_size, visible, visible};
    if (d->mode == DI_CAND_FILTER) {
        int32_t n = d->cand_n[row];
        p.block = d->cand + (int64_t)row * d->cand_blocks;
        int32_t last = n > 0 ? visible - p.block[n - 1] * p.size : 0; /* visible members of the last block */
        p.count = n > 0 ? (n - 1) * p.size + (last < p.size ? last : p.size) : 0;
    }
    return p;
}

/* Walks a pool in runs of neighbours without dividing for every key. */
struct pool_walk {
    const struct index_pool *pool;
    const int32_t *block; /* next one */
    int32_t id, end;      /* rest of the present run */
};
static struct pool_walk walk_from(const struct index_pool *pool, int64_t number)
{
    if (!pool->block)
        return (struct pool_walk){pool, NULL, (int32_t)number, INT32_MAX};
    const int32_t *block = pool->block + number / pool->size;
    int32_t first = number < pool->count ? *block * pool->size : 0;
    return (struct pool_walk){pool, block + 1, first + (int32_t)(number % pool->size), first + pool->size};
}
static int32_t walk_next(struct pool_walk *w)
{
    if (w->id == w->end) {
        w->id = *w->block++ * w->pool->size;
        w->end = w->id + w->pool->size;
    }
    return w->id++;
}

/* The query of a row as integers. Its values are Q4e values already, and Q4e of them gives the same values. */
static void load_query(const struct di_op_index_select *d, int row, int heads, struct index_row *r)
{
    int blocks = d->d / 32;
    const float *q = (const float *)d->q + (int64_t)row * d->heads * d->d;
    r->row = row;
    memset(r->q, 0, (size_t)(heads * d->d));
    for (int h = 0; h < heads; h++) {
        r->w[h] = h < d->heads ? ((const float *)d->w)[(int64_t)row * d->heads + h] : 0;
        for (int b = 0; b < blocks; b++) {
            int8_t *out = r->q + h * d->d + 32 * b;
            int32_t code[32], sum = 0;
            int e = 0;
            if (h < d->heads) {
                vf x = vf_load(q + h * d->d + 32 * b), y = vf_load(q + h * d->d + 32 * b + 16);
                e = Q4E_EXPONENT(x, y);
                vf inverse = vf_set1(2 * power_of_two(-e));
                vi_store(code, vf_to_i32(vf_mul(x, inverse)));
                vi_store(code + 16, vf_to_i32(vf_mul(y, inverse)));
                for (int c = 0; c < 32; c++) {
                    out[c / 8 * 8 + c % 2 * 4 + c % 8 / 2] = (int8_t)code[c];
                    sum += code[c];
                }
            }
            r->scale[h * blocks + b] = 0.25f * power_of_two(e);
            r->start[h * blocks + b] = -12 * sum;
        }
    }
}

/* Sixteen keys, one block of 32 channels: 16 bytes of each -> 8 vectors of 4 channels a key. */
static void decode_block(const uint8_t *const *key, int at, uint8_t *out)
{
    const __m128i twice = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    vi r[4], pair[4], word[4], low = vi_set1(0x0F0F0F0F);
    for (int i = 0; i < 4; i++)
        r[i] = vi_load_rows(key[i] + at, key[4 + i] + at, key[8 + i] + at, key[12 + i] + at);
    pair[0] = vi_zip_lo32(r[0], r[1]); /* 4 x 4 transposition within quarters: word i of keys 0..15 */
    pair[1] = vi_zip_hi32(r[0], r[1]);
    pair[2] = vi_zip_lo32(r[2], r[3]);
    pair[3] = vi_zip_hi32(r[2], r[3]);
    word[0] = vi_zip_lo64(pair[0], pair[2]);
    word[1] = vi_zip_hi64(pair[0], pair[2]);
    word[2] = vi_zip_lo64(pair[1], pair[3]);
    word[3] = vi_zip_hi64(pair[1], pair[3]);
    for (int i = 0; i < 4; i++) {
        vi_store(out + (2 * i) * TILE_KEYS * 4, vi_lookup(twice, vi_and(word[i], low)));
        vi_store(out + (2 * i + 1) * TILE_KEYS * 4, vi_lookup(twice, vi_and(vi_srl(word[i], 4), low)));
    }
}

static void decode_keys(const uint8_t *const key[TILE_KEYS], int d, struct index_work *w)
{
    int blocks = d / 32;
    for (int half = 0; half < TILE_KEYS; half += 16) {
        for (int b = 0; b < blocks; b++)
            decode_block(key + half, 16 * b, w->codes + (size_t)b * 8 * TILE_KEYS * 4 + 4 * half);
        for (int b = 0; b < blocks; b += 4) { /* up to four E8M0 bytes of each key -> fp32 */
            int n = blocks - b < 4 ? blocks - b : 4;
            uint32_t word[16] = {0};
            for (int k = 0; k < 16; k++)
                if (n == 4)
                    memcpy(&word[k], key[half + k] + d / 2 + b, 4);
                else
                    memcpy(&word[k], key[half + k] + d / 2 + b, (size_t)n);
            vi v = vi_load(word);
            for (int i = 0; i < n; i++, v = vi_srl(v, 8))
                vf_store(w->key_scale + (b + i) * TILE_KEYS + half, vi_as_f32(vi_sll(vi_and(v, vi_set1(255)), 23)));
        }
    }
}

#ifdef __AVX512F__
#define INDEX_HEADS 4 /* 8 integer sums, 8 scores, 2 keys, 4 queries: 22 registers */
#else
#define INDEX_HEADS 1 /* 4 + 4 + 4 + 2: 14 */
#endif

VEC_INLINE void score_heads(const struct index_work *w, const struct index_row *r, int h, int d, vf total[2])
{
    int blocks = d / 32;
    vf s[INDEX_HEADS][2];
    for (int i = 0; i < INDEX_HEADS; i++)
        s[i][0] = s[i][1] = vf_zero();
    for (int b = 0; b < blocks; b++) {
        vi sum[INDEX_HEADS][2];
        for (int i = 0; i < INDEX_HEADS; i++)
            sum[i][0] = sum[i][1] = vi_dot_begin(r->start[(h + i) * blocks + b]);
        for (int c = 8 * b; c < 8 * b + 8; c++) {
            vi k0 = vi_load(w->codes + c * TILE_KEYS * 4), k1 = vi_load(w->codes + c * TILE_KEYS * 4 + 64);
            for (int i = 0; i < INDEX_HEADS; i++) {
                int32_t four;
                memcpy(&four, r->q + (h + i) * d + 4 * c, 4);
                sum[i][0] = vi_dot_step(sum[i][0], k0, vi_set1(four));
                sum[i][1] = vi_dot_step(sum[i][1], k1, vi_set1(four));
            }
        }
        for (int t = 0; t < 2; t++) {
            vf scale = vf_load(w->key_scale + b * TILE_KEYS + 16 * t);
            for (int i = 0; i < INDEX_HEADS; i++) {
                vf product = vi_to_f32(vi_dot_end(sum[i][t], r->start[(h + i) * blocks + b]));
                s[i][t] = vf_fma(product, vf_mul(scale, vf_set1(r->scale[(h + i) * blocks + b])), s[i][t]);
            }
        }
    }
    for (int i = 0; i < INDEX_HEADS; i++)
        for (int t = 0; t < 2; t++)
            total[t] = vf_fma(vf_set1(r->w[h + i]), vf_max(s[i][t], vf_zero()), total[t]);
}

static void score_keys(const struct index_work *w, const struct index_row *r, int d, float score[TILE_KEYS])
{
    vf total[2] = {vf_zero(), vf_zero()};
    for (int h = 0; h < w->heads; h += INDEX_HEADS)
        score_heads(w, r, h, d, total);
    vf_store(score, total[0]);
    vf_store(score + 16, total[1]);
}

/* ---------------------------------------------------------------- rows of one thread */

/* Push the n scored keys of a tile. */
static void push_tile(struct topk *t, const int32_t *id, int n, const float *score)
{
    for (int half = 0; half < n; half += 16) {
        int32_t key[16];
        vi v = order_keys(vf_load(score + half));
        uint32_t better = vm_bits(vi_gt(v, vi_set1(t->bound))) & (n - half < 16 ? (1u << (n - half)) - 1 : 0xFFFF);
        vi_store(key, v);
        for (; better; better &= better - 1) {
            int k = __builtin_ctz(better);
            topk_push(t, key[k], id[half + k]);
        }
    }
}

/* Maxima of candidate blocks. A part begins at a block's first key; its keys are neighbours. */
static void push_blocks(struct index_row *r, int n, bool last, const float *score)
{
    for (int k = 0; k < n; k++) {
        r->top = score[k] > r->top ? score[k] : r->top;
        if (--r->left > 0 && !(last && k == n - 1))
            continue;
        bool newest = r->block == (r->pool.visible - 1) / r->pool.size;
        topk_push(&r->cand, order_key(newest ? INFINITY : r->top), r->block++);
        r->left = r->pool.size;
        r->top = -INFINITY;
    }
}

struct key_tile {
    int n;
    int32_t id[TILE_KEYS];
    const uint8_t *key[TILE_KEYS];
};
/* The next n keys of a walk; they are wanted a tile later. */
static void next_tile(const struct di_op_index_select *d, int slot, struct pool_walk *walk, int64_t n, struct key_tile *t)
{
    int32_t per_block = DI_BLOCK_TOKENS / d->kv->layout->ratio[d->src];
    t->n = n < TILE_KEYS ? (int)n : TILE_KEYS;
    for (int k = 0; k < t->n; k++) {
        t->id[k] = walk_next(walk);
        bool near = k > 0 && t->id[k] == t->id[k - 1] + 1 && (t->id[k] & (per_block - 1)) != 0; /* 64 or 32 rows in a block */
        t->key[k] = near ? t->key[k - 1] + d->kv->layout->key_row_bytes : di_kv_key_row(d->kv, slot, d->src, t->id[k]);
        _mm_prefetch((const char *)t->key[k], _MM_HINT_T0);
        _mm_prefetch((const char *)t->key[k] + 64, _MM_HINT_T0);
    }
    for (int k = t->n; k > 0 && k < TILE_KEYS; k++) /* a short tile repeats its last key */
        t->key[k] = t->key[k - 1];
}

/* Score numbers [begin, end) of the pools of the first n_rows rows: of one request, and without candidate blocks if more than one. */
static void score_pools(const struct di_op_index_select *d, struct index_work *w, int n_rows, di_range part)
{
    int slot = d->rows->chunks[d->rows->chunk[w->row[0].row]].slot;
    float score[TILE_KEYS];
    struct key_tile tiles[2];
    struct pool_walk walk = walk_from(&w->row[0].pool, part.begin);
    for (int i = 0; i < n_rows; i++) {
        struct index_row *r = &w->row[i];
        topk_reset(&r->sel);
        topk_reset(&r->cand);
        r->block = r->pool.size ? (int32_t)(part.begin / r->pool.size) : 0;
        r->left = r->pool.size;
        r->top = -INFINITY;
    }
    next_tile(d, slot, &walk, part.end - part.begin, &tiles[0]);
    for (int64_t at = part.begin, turn = 0; at < part.end; at += TILE_KEYS, turn ^= 1) {
        const struct key_tile *t = &tiles[turn];
        if (at + TILE_KEYS < part.end)
            next_tile(d, slot, &walk, part.end - at - TILE_KEYS, &tiles[turn ^ 1]);
        decode_keys(t->key, d->d, w);
        for (int i = 0; i < n_rows; i++) {
            struct index_row *r = &w->row[i];
            int64_t end = r->pool.count < part.end ? r->pool.count : part.end;
            int n = end - at < t->n ? (int)(end - at) : t->n; /* may be negative: this row sees fewer */
            score_keys(w, r, d->d, score);
            for (int k = 0; d->scores && k < n; k++)
                if (t->id[k] < d->scores_ld)
                    d->scores[r->row * d->scores_ld + t->id[k]] = score[k];
            push_tile(&r->sel, t->id, n, score);
            if (d->mode == DI_CAND_PRODUCE)
                push_blocks(r, n, at + n == end, score);
        }
    }
    for (int i = 0; i < n_rows; i++) {
        topk_reduce(&w->row[i].sel);
        topk_reduce(&w->row[i].cand);
    }
}

/* Everything that needs no scores: how many keys compete, and the lists where all are taken. False: nothing is left to do. */
static bool begin_row(const struct di_op_index_select *d, int row, struct index_pool *pool)
{
    *pool = row_pool(d, row);
    int32_t blocks = pool->size ? (pool->visible + pool->size - 1) / pool->size : 0;
    bool produce = d->mode == DI_CAND_PRODUCE, choose = pool->count > d->topk || (produce && blocks > d->cand_blocks);
    for (int64_t j = 0; d->scores && j < d->scores_ld; j++)
        d->scores[row * d->scores_ld + j] = -1e30f;
    if (!choose) {
        struct pool_walk walk = walk_from(pool, 0);
        for (int32_t i = 0; i < pool->count; i++)
            d->sel[(int64_t)row * d->topk + i] = walk_next(&walk);
        d->sel_n[row] = pool->count;
        for (int32_t b = 0; produce && b < blocks; b++)
            d->cand[(int64_t)row * d->cand_blocks + b] = b;
        if (produce)
            d->cand_n[row] = blocks;
    }
    return choose || d->scores;
}

static void finish_row(const struct di_op_index_select *d, int row, const struct topk *sel, const struct topk *cand)
{
    memcpy(d->sel + (int64_t)row * d->topk, sel->id, (size_t)sel->n * sizeof *sel->id);
    d->sel_n[row] = sel->n;
    if (d->mode == DI_CAND_PRODUCE) {
        memcpy(d->cand + (int64_t)row * d->cand_blocks, cand->id, (size_t)cand->n * sizeof *cand->id);
        d->cand_n[row] = cand->n;
    }
}

static void finish_group(const struct di_op_index_select *d, struct index_work *w, int *n)
{
    int64_t end = 0;
    for (int i = 0; i < *n; i++)
        end = w->row[i].pool.count > end ? w->row[i].pool.count : end;
    if (*n > 0)
        score_pools(d, w, *n, (di_range){0, end});
    for (int i = 0; i < *n; i++)
        finish_row(d, w->row[i].row, &w->row[i].sel, &w->row[i].cand);
    *n = 0;
}

/* Rows of one request share the decoded keys. */
static void index_select_rows(struct di_cpu *cpu, const void *desc, int thread, di_range rows)
{
    const struct di_op_index_select *d = desc;
    struct vec_arena a = vec_thread(cpu, thread);
    struct index_work w = index_take(&a, d->heads, d->d, d->topk, d->cand_blocks);
    int n = 0;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        if (n == INDEX_ROWS || d->mode == DI_CAND_FILTER || (n > 0 && d->rows->chunk[i] != d->rows->chunk[w.row[0].row]))
            finish_group(d, &w, &n);
        if (begin_row(d, (int)i, &w.row[n].pool))
            load_query(d, (int)i, w.heads, &w.row[n++]);
    }
    finish_group(d, &w, &n);
}

/* ---------------------------------------------------------------- one row by all threads */

struct index_job {
    struct di_cpu *cpu;
    const struct di_op_index_select *d;
    int row;
};

static void index_select_part(void *ctx, int thread, int n_threads)
{
    const struct index_job *j = ctx;
    const struct di_op_index_select *d = j->d;
    struct vec_arena mine = vec_thread(j->cpu, thread), shared = vec_shared(j->cpu);
    struct index_work w = index_take(&mine, d->heads, d->d, d->topk, d->cand_blocks);
    struct index_merge g = index_merge_take(&shared, d->topk, d->cand_blocks, j->cpu->threads);
    int64_t grain = d->mode == DI_CAND_PRODUCE ? (int64_t)TILE_KEYS * d->cand_block_size : TILE_KEYS;
    w.row[0].pool = row_pool(d, j->row);
    load_query(d, j->row, w.heads, &w.row[0]);
    score_pools(d, &w, 1, di_split(w.row[0].pool.count, grain, thread, n_threads));
    const struct topk *from[2] = {&w.row[0].sel, &w.row[0].cand}, *to[2] = {&g.sel, &g.cand};
    for (int l = 0; l < 2; l++) {
        memcpy(to[l]->key + (int64_t)thread * to[l]->k, from[l]->key, (size_t)from[l]->n * 4);
        memcpy(to[l]->id + (int64_t)thread * to[l]->k, from[l]->id, (size_t)from[l]->n * 4);
        g.n[l * j->cpu->threads + thread] = from[l]->n;
    }
}

/* Close the gaps between the parts' lists and reduce them to one. */
static void merge_parts(struct topk *t, const int *n, int parts)
{
    for (int p = 0; p < parts; p++) {
        memmove(t->key + t->n, t->key + (int64_t)p * t->k, (size_t)n[p] * 4);
        memmove(t->id + t->n, t->id + (int64_t)p * t->k, (size_t)n[p] * 4);
        t->n += n[p];
    }
    topk_reduce(t);
}

static void vec_index_select(struct di_backend *be, const struct di_op_index_select *d)
{
    struct di_cpu *cpu = di_cpu_of(be);
    struct index_job j = {cpu, d, 0};
    int64_t flop_of_key = 2 * (int64_t)d->heads * d->d / 4; /* an integer product costs a quarter */
    if (d->m > 0 && (d->m >= 2 * cpu->threads || cpu->threads == 1)) {
        int64_t keys = 0; /* rows may differ, and the last ones may be padding */
        for (int i = 0; i < d->m; i++)
            keys += row_pool(d, i).count;
        vec_rows(be, d->m, flop_of_key * keys / d->m, index_select_rows, d);
        return;
    }
    for (int i = 0; i < d->m; i++) {
        struct index_pool pool = row_pool(d, i);
        if (pool.count * flop_of_key < 10 * VEC_FORK_FLOP) {
            index_select_rows(cpu, d, 0, (di_range){i, i + 1});
        } else if (begin_row(d, i, &pool)) {
            j.row = i;
            di_pool_run(cpu->pool, index_select_part, &j);
            struct vec_arena shared = vec_shared(cpu);
            struct index_merge g = index_merge_take(&shared, d->topk, d->cand_blocks, cpu->threads);
            merge_parts(&g.sel, g.n, cpu->threads);
            merge_parts(&g.cand, g.n + cpu->threads, cpu->threads);
            finish_row(d, i, &g.sel, &g.cand);
        }
    }
}

#endif
