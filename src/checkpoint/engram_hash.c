#include "checkpoint/engram_hash.h"

/* C11 has no 128-bit integers; gcc and clang do. */
__extension__ typedef unsigned __int128 u128;

/* numpy's default_rng: SeedSequence, PCG64, bounded draws. The constants and steps are those of spec §5.9. */
struct pcg64 {
    u128 state, inc;
};

static uint64_t pcg64_next(struct pcg64 *g)
{
    const u128 mul = (u128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    g->state = g->state * mul + g->inc;
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned r = (unsigned)(g->state >> 122);
    return x >> r | x << (-r & 63);
}

static uint32_t seed_hash(uint32_t v, uint32_t *c, uint32_t step)
{
    v ^= *c;
    *c *= step;
    v *= *c;
    return v ^ v >> 16;
}

static void pcg64_seed(struct pcg64 *g, uint32_t seed)
{
    uint32_t pool[4], out[8], c = 0x43b0d7e5;
    for (int i = 0; i < 4; i++)
        pool[i] = seed_hash(i == 0 ? seed : 0, &c, 0x931e8875);
    for (int src = 0; src < 4; src++)
        for (int dst = 0; dst < 4; dst++)
            if (dst != src) {
                uint32_t r = 0xca01f9ddu * pool[dst] - 0x4973f715u * seed_hash(pool[src], &c, 0x931e8875);
                pool[dst] = r ^ r >> 16;
            }
    c = 0x8b51f9dd;
    for (int i = 0; i < 8; i++)
        out[i] = seed_hash(pool[i & 3], &c, 0x58f38ded);
    uint64_t w[4];
    for (int i = 0; i < 4; i++)
        w[i] = out[2 * i] | (uint64_t)out[2 * i + 1] << 32;
    g->inc = ((u128)w[2] << 64 | w[3]) << 1 | 1;
    g->state = 0;
    pcg64_next(g);
    g->state += (u128)w[0] << 64 | w[1];
    pcg64_next(g);
}

/* Uniform in [0, bound), Lemire's method; bound > 2^32. */
static uint64_t pcg64_below(struct pcg64 *g, uint64_t bound)
{
    u128 m = (u128)pcg64_next(g) * bound;
    if ((uint64_t)m < bound) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)m < threshold)
            m = (u128)pcg64_next(g) * bound;
    }
    return (uint64_t)(m >> 64);
}

static bool is_prime(uint64_t n)
{
    if (n < 4)
        return n >= 2;
    if (n % 2 == 0 || n % 3 == 0)
        return false;
    for (uint64_t d = 5; d * d <= n; d += 6)
        if (n % d == 0 || n % (d + 2) == 0)
            return false;
    return true;
}

/* The recipe restarts at engram_vocab_size - 1 for every layer and n and skips used primes: that is one ascending run of primes. */
di_status di_engram_init(const struct di_config *c, struct di_engram *e, di_error *err)
{
    *e = (struct di_engram){.n_tables = c->n_engram, .max_ngram = c->engram_max_ngram_size, .n_heads = c->engram_n_heads};
    e->columns = c->n_engram ? (e->max_ngram - 1) * e->n_heads : 0;
    uint64_t cur = (uint64_t)c->engram_vocab_size - 1;
    for (int t = 0; t < e->n_tables; t++) {
        struct di_engram_table *table = &e->table[t];
        for (int n = 0; n < e->max_ngram - 1; n++)
            for (int h = 0; h < e->n_heads; h++) {
                do
                    cur++;
                while (!is_prime(cur));
                if (cur > UINT32_MAX)
                    return di_fail(err, DI_ERR_LIMIT, "", "the bucket primes of the engram tables pass 32 bits");
                table->prime[n][h] = (uint32_t)cur;
                table->offset[n][h] = table->rows;
                table->rows += (int64_t)cur;
            }
        struct pcg64 g;
        uint64_t bound = (uint64_t)INT64_MAX / (uint64_t)c->engram_compressed_vocab_size / 2;
        pcg64_seed(&g, 10007u * (uint32_t)c->engram_layer_ids[t]);
        for (int i = 0; i < e->max_ngram; i++)
            table->multiplier[i] = 2 * pcg64_below(&g, bound) + 1;
    }
    return DI_OK;
}

void di_engram_hashes(const struct di_engram *e, int table, const int32_t *window, int32_t pad, uint64_t *out)
{
    uint64_t hash = 0;
    bool blocked = false;
    for (int i = 0; i < e->max_ngram; i++) {
        blocked = blocked || window[i] < 0;
        hash ^= (uint64_t)(blocked ? pad : window[i]) * e->table[table].multiplier[i];
        if (i > 0)
            out[i - 1] = hash;
    }
}

void di_engram_rows(const struct di_engram *e, int table, const int32_t *window, int32_t pad, int64_t *rows)
{
    const struct di_engram_table *t = &e->table[table];
    uint64_t hash[DI_MAX_NGRAM];
    di_engram_hashes(e, table, window, pad, hash);
    for (int n = 0; n < e->max_ngram - 1; n++)
        for (int h = 0; h < e->n_heads; h++)
            *rows++ = t->offset[n][h] + (int64_t)(hash[n] % t->prime[n][h]);
}
