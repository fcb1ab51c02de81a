/* Suite cache: hash and match of a prompt of a million tokens; the prefix index on a request trace, and the whole of prefix reuse on it, with
 * snapshots of request state. */
#include "cli/bench.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cache/prefix.h"
#include "engine/reuse.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <time.h>

#define MILLION 1000000
#define TRACE_BLOCK 512 /* tokens that one id of the trace stands for */
#define TOKEN_BYTES 890 /* G per token at full size (spec/model.md §6) */
#define WINDOW 128
#define LAYERS 40
#define STATE_BYTES 2965680 /* of a snapshot: 43 rings of 129 rows of 528 B, 3 raw rings of 3 rows of 4 KiB */
#define MAX_TRACE_IDS (1 << 22)

/* Processor time of this thread: the machine may be busy with other work. */
static double seconds(void)
{
    return di_bench_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* An index without the memory of its blocks, and one lease. */
struct cache {
    struct di_block_pool pool;
    struct di_prefix *p;
    struct di_lease lease;
    int32_t *pages;
    struct di_key root;
};

static void cache_close(struct cache *c)
{
    if (c->p)
        di_lease_release(&c->pool, &c->lease);
    di_prefix_destroy(c->p);
    di_block_pool_fini(&c->pool);
    di_free(c->pages);
}

static di_status cache_open(struct cache *c, int blocks, int64_t max_tokens, di_error *err)
{
    static const uint8_t model[DI_KEY_BYTES];
    di_status status = DI_OK;
    int cap = (int)(max_tokens / DI_BLOCK_TOKENS) + 1;
    *c = (struct cache){0};
    TRY(di_block_pool_init(&c->pool, blocks, err));
    TRY(di_prefix_create(&(struct di_prefix_params){.pool = &c->pool, .max_tokens = max_tokens}, &c->p, err));
    c->pages = di_calloc((size_t)cap, sizeof *c->pages);
    CHECK(c->pages, err, DI_ERR_MEMORY, "bench", "out of memory");
    di_lease_init(&c->lease, c->pages, cap);
    CHECK(di_key_of_root(di_prefix_hasher(c->p), &(struct di_key_root){.model_digest = model, .numerics = "bench"}, &c->root), err,
          DI_ERR_INTERNAL, "bench", "SHA-256 failed");
out:
    return status;
}

/* Look up, hold, publish, give back; tokens found, or -1 if the pool is too small. */
static int64_t cache_request(struct cache *c, const struct di_key_text *prompt, const struct di_key_text *whole)
{
    struct di_match m = di_prefix_match(c->p, &c->root, prompt, false);
    if (!di_prefix_acquire(c->p, &c->lease, &c->root, prompt, &m, (int)((whole->n + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS)))
        return -1;
    di_lease_copied(&c->pool, &c->lease);
    di_prefix_publish(c->p, &c->lease, whole, whole->n, true);
    di_lease_release(&c->pool, &c->lease);
    return m.tokens;
}

/* ---------------------------------------------------------------- a million tokens */

/* One SHA-256 over as many bytes as the keys of a million tokens cover, padding included. */
static double plain_hash(const uint8_t *bytes, size_t n)
{
    unsigned char out[32];
    double t = seconds();
    EVP_Digest(bytes, n, out, NULL, EVP_sha256(), NULL);
    return seconds() - t;
}

static double chain_hash(struct cache *c, const struct di_key_text *t)
{
    struct di_key key = c->root;
    double start = seconds();
    for (int64_t pos = 0; pos + DI_BLOCK_TOKENS <= t->n; pos += DI_BLOCK_TOKENS)
        di_key_of_block(di_prefix_hasher(c->p), &key, t, pos, DI_BLOCK_TOKENS, &key);
    return seconds() - start;
}

static di_status million(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    struct cache c = {0};
    double ms[3][DI_BENCH_ROUNDS];
    const size_t covered = (MILLION / DI_BLOCK_TOKENS) * 320; /* five compressions of 64 bytes a block */
    int32_t *tokens = di_malloc(covered);
    CHECK(tokens, err, DI_ERR_MEMORY, "bench", "out of memory");
    TRY(cache_open(&c, MILLION / DI_BLOCK_TOKENS + 2, MILLION, err));
    for (int32_t i = 0; i < MILLION; i++)
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u % 129280);
    struct di_key_text t = {tokens, MILLION, NULL, 0};
    cache_request(&c, &t, &t);
    for (int i = 0; i < o->rounds; i++) {
        ms[0][i] = plain_hash((const uint8_t *)tokens, covered) * 1e3;
        ms[1][i] = chain_hash(&c, &t) * 1e3;
        double start = seconds();
        struct di_match m = di_prefix_match(c.p, &c.root, &t, false);
        ms[2][i] = (seconds() - start) * 1e3;
        CHECK(m.common == MILLION - 1, err, DI_ERR_INTERNAL, "bench", "the prompt was not found");
    }
    double floor = di_bench_median(ms[0], (int)o->rounds), chain = di_bench_median(ms[1], (int)o->rounds),
           match = di_bench_median(ms[2], (int)o->rounds);
    printf("| 1,000,000 tokens, one thread | floor ms | ms | %% |\n|---|---|---|---|\n");
    printf("| keys of all blocks | %.2f | %.2f | %.0f |\n| keys and match of the whole prompt | %.2f | %.2f | %.0f |\n\n", floor, chain,
           100 * floor / chain, floor, match, 100 * floor / match);
out:
    cache_close(&c);
    di_free(tokens);
    return status;
}

/* ---------------------------------------------------------------- a trace */

struct trace_request {
    int64_t input, output;
    size_t first_id;
};
struct trace {
    struct di_buf requests, ids; /* of struct trace_request, of int32_t */
    int64_t tokens, longest, longest_answer;
    double ideal;
};

static di_status trace_line(struct trace *t, struct di_str line, di_error *err)
{
    di_status status = DI_OK;
    struct di_arena arena;
    struct di_json *j;
    struct trace_request r = {.first_id = t->ids.n / sizeof(int32_t)};
    int64_t n_ids = 0;
    di_arena_init(&arena);
    TRY(di_json_parse(line, NULL, &arena, &j, err));
    const struct di_json *ids = di_json_get(j, "hash_ids");
    bool ok = di_json_int(di_json_get(j, "input_length"), &r.input) && di_json_int(di_json_get(j, "output_length"), &r.output) && ids;
    for (const struct di_json *x = ok ? ids->child : NULL; x; x = x->next, n_ids++) {
        int64_t v;
        ok = ok && di_json_int(x, &v) && v >= 0 && v < MAX_TRACE_IDS;
        int32_t id = ok ? (int32_t)v : 0;
        di_buf_add(&t->ids, (const char *)&id, sizeof id);
    }
    ok = ok && r.input > 0 && r.input <= INT32_MAX / 2 && r.output >= 0 && r.output <= 1 << 24 &&
         n_ids == (r.input + TRACE_BLOCK - 1) / TRACE_BLOCK;
    CHECK(ok, err, DI_ERR_FORMAT, "trace", "request %zu of the trace lacks input_length, output_length or its hash_ids",
          t->requests.n / sizeof r + 1);
    di_buf_add(&t->requests, (const char *)&r, sizeof r);
    t->tokens += r.input;
    t->longest = r.input > t->longest ? r.input : t->longest;
    t->longest_answer = r.output > t->longest_answer ? r.output : t->longest_answer;
out:
    di_arena_fini(&arena);
    return status;
}

static const struct trace_request *trace_at(const struct trace *t, size_t i)
{
    return (const struct trace_request *)(const void *)t->requests.p + i;
}

/* Share of the tokens that a cache without limit, of whole blocks of the trace, would find. */
static di_status trace_ideal(struct trace *t, di_error *err)
{
    di_status status = DI_OK;
    const int32_t *ids = (const int32_t *)(const void *)t->ids.p;
    int64_t found = 0;
    uint8_t *seen = di_calloc(MAX_TRACE_IDS, 1);
    CHECK(seen, err, DI_ERR_MEMORY, "bench", "out of memory");
    for (size_t i = 0; i < t->requests.n / sizeof(struct trace_request); i++) {
        const struct trace_request *r = trace_at(t, i);
        int64_t n = (r->input + TRACE_BLOCK - 1) / TRACE_BLOCK, k = 0;
        while (k < n && seen[ids[r->first_id + (size_t)k]])
            k++;
        found += k * TRACE_BLOCK < r->input ? k * TRACE_BLOCK : r->input;
        for (k = 0; k < n; k++)
            seen[ids[r->first_id + (size_t)k]] = 1;
    }
    t->ideal = (double)found / (double)t->tokens;
out:
    di_free(seen);
    return status;
}

static di_status trace_read(const char *path, struct trace *t, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf text = {0};
    TRY(di_file_read(path, (size_t)1 << 28, &text, err));
    for (size_t at = 0; at < text.n;) {
        const char *end = memchr(text.p + at, '\n', text.n - at);
        size_t n = end ? (size_t)(end - text.p) - at : text.n - at;
        if (n > 0)
            TRY(trace_line(t, (struct di_str){text.p + at, n}, err));
        at += n + 1;
    }
    TRY(di_buf_ok(&t->requests, err));
    TRY(di_buf_ok(&t->ids, err));
    CHECK(t->requests.n > 0, err, DI_ERR_FORMAT, path, "the trace is empty");
    TRY(trace_ideal(t, err));
out:
    di_buf_fini(&text);
    return status;
}

/* Every id stands for 512 tokens of its own; answers are tokens that never come again. */
static void spell(const struct trace *t, const struct trace_request *r, int32_t *tokens, int64_t answer, int32_t *unique)
{
    const int32_t *ids = (const int32_t *)(const void *)t->ids.p + r->first_id;
    for (int64_t i = 0; i < r->input; i++)
        tokens[i] = (int32_t)(((int64_t)ids[i / TRACE_BLOCK] * TRACE_BLOCK + i % TRACE_BLOCK) & INT32_MAX);
    for (int64_t i = 0; i < answer; i++)
        tokens[r->input + i] = --*unique;
}

struct trace_run {
    double rate, seconds;
    struct di_prefix_stats stats;
};

static di_status run_trace(const struct trace *t, int gib, bool answers, struct trace_run *out, di_error *err)
{
    di_status status = DI_OK;
    struct cache c = {0};
    int64_t found = 0, longest = t->longest + t->longest_answer;
    int32_t unique = 0, *tokens = di_malloc((size_t)longest * sizeof *tokens);
    CHECK(tokens, err, DI_ERR_MEMORY, "bench", "out of memory");
    TRY(cache_open(&c, (int)(((int64_t)gib << 30) / (TOKEN_BYTES * DI_BLOCK_TOKENS)), longest, err));
    double start = seconds();
    for (size_t i = 0; i < t->requests.n / sizeof(struct trace_request); i++) {
        const struct trace_request *r = trace_at(t, i);
        int64_t answer = answers ? r->output : 0;
        spell(t, r, tokens, answer, &unique);
        struct di_key_text prompt = {tokens, r->input, NULL, 0}, whole = {tokens, r->input + answer, NULL, 0};
        int64_t n = cache_request(&c, &prompt, &whole);
        found += n > 0 ? n : 0;
    }
    *out = (struct trace_run){(double)found / (double)t->tokens, seconds() - start, di_prefix_stats(c.p)};
out:
    cache_close(&c);
    di_free(tokens);
    return status;
}

/* ---------------------------------------------------------------- the trace, with snapshots */

struct net {
    double g, net; /* of all prompt tokens: those whose G was found; those that were not computed (again) */
};

/* One request from its lookup to its end, as the engine goes about it (core.c): the state is kept where others share the beginning, at the
 * end of the prompt, at the end of the answer. The trace knows texts by 512 tokens only: the next turn of a conversation shares the whole
 * ones of the prompt, so that its end is taken to be there. The row at which it starts. */
static int64_t reuse_request(struct di_reuse *r, struct di_kv_store *store, const int32_t *tokens, int64_t n, int64_t total)
{
    struct di_reuse_ask ask = {.tokens = tokens, .n = n, .total = total};
    struct di_reuse_start from;
    if (!di_reuse_begin(r, 0, &ask, &from))
        return 0;
    const int64_t saves[] = {from.save_at, n - n % TRACE_BLOCK, total};
    for (int i = 0; i < 3; i++)
        if (saves[i] > from.row) {
            di_reuse_computed(r, 0, tokens, saves[i]);
            di_reuse_save(r, 0, tokens, saves[i], saves[i], from.right_from);
        }
    di_kv_release(store, 0);
    return from.row;
}

static di_status run_trace_net(const struct trace *t, int64_t blocks, int states, struct net *out, di_error *err)
{
    /* Blocks and rings of a few bytes: nothing is computed. */
    const struct di_kv_layout layout = {.block_bytes = DI_BLOCK_TOKENS,
                                        .ring_bytes = DI_RING_ROWS,
                                        .raw_bytes = 64,
                                        .n_sources = 1,
                                        .ratio = {1},
                                        .raw_ring = {-1},
                                        .key_row_bytes = 1,
                                        .ring_layers = 1,
                                        .window_row_bytes = 1};
    di_status status = DI_OK;
    struct di_kv_store *store = NULL;
    struct di_reuse *r = NULL;
    int64_t longest = t->longest + t->longest_answer, saved = 0;
    struct di_reuse_params p = {.states = states, .window = WINDOW, .layers = LAYERS, .max_tokens = longest, .numerics = "bench"};
    int32_t unique = 0, *tokens = di_malloc((size_t)longest * sizeof *tokens);
    CHECK(tokens, err, DI_ERR_MEMORY, "bench", "out of memory");
    TRY(di_kv_store_create(di_backend_plain_memory(), &layout, 1, (int)blocks, longest, &store, err));
    TRY(di_reuse_create(store, &p, &r, err));
    for (size_t i = 0; i < t->requests.n / sizeof(struct trace_request); i++) {
        const struct trace_request *q = trace_at(t, i);
        spell(t, q, tokens, q->output, &unique);
        saved += reuse_request(r, store, tokens, q->input, q->input + q->output);
    }
    *out = (struct net){(double)di_reuse_stats(r).hit_tokens / (double)t->tokens, (double)saved / (double)t->tokens};
out:
    di_reuse_destroy(r);
    di_kv_store_destroy(store);
    di_free(tokens);
    return status;
}

/* Snapshots of 0 mean what --state-slots 0 means at full size. */
static di_status net_row(const struct trace *t, int gib, int states, di_error *err)
{
    di_status status = DI_OK;
    int64_t bytes = (int64_t)gib << 30, blocks = bytes / (TOKEN_BYTES * DI_BLOCK_TOKENS), quarter = bytes / 4 / STATE_BYTES;
    int n = states ? states : quarter < 64 ? 64 : (int)quarter;
    struct net net;
    TRY(run_trace_net(t, blocks, n, &net, err));
    printf("| %d | %d%s | %.2f | %.4f | %.4f | %.1f |\n", gib, n, states ? "" : " (default)", (double)n * STATE_BYTES / (1 << 30), net.g,
           net.net, 100 * net.net / t->ideal);
    fflush(stdout);
out:
    return status;
}

static di_status net_table(const struct trace *t, di_error *err)
{
    static const int numbers[] = {64, 256, 1024, 4096, 16384};
    di_status status = DI_OK;
    printf(
        "\nWith answers and exact reuse: net is what was not computed, without the rows that were computed again because no snapshot was "
        "there\n\n| GiB of G | snapshots | GiB of them | G rate | net rate | of ideal %% |\n|---|---|---|---|---|---|\n");
    for (int gib = 1; gib <= 64; gib *= 2)
        TRY(net_row(t, gib, 0, err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(net_row(t, 64, numbers[i], err));
out:
    return status;
}

static bool chosen(const struct di_bench_options *o, const char *part)
{
    return !o->filter || strstr(part, o->filter);
}

static di_status index_table(const struct trace *t, const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf json = {0};
    printf("| GiB | blocks | hit rate | of ideal %% | evicted | us a request | with answers | of ideal %% "
           "|\n|---|---|---|---|---|---|---|---|\n");
    for (int gib = 1; gib <= 64; gib *= 2) {
        struct trace_run prompts, all;
        TRY(run_trace(t, gib, false, &prompts, err));
        TRY(run_trace(t, gib, true, &all, err));
        printf("| %d | %lld | %.4f | %.1f | %llu | %.0f | %.4f | %.1f |\n", gib,
               (long long)(((int64_t)gib << 30) / (TOKEN_BYTES * DI_BLOCK_TOKENS)), prompts.rate, 100 * prompts.rate / t->ideal,
               (unsigned long long)prompts.stats.evicted, prompts.seconds * 1e6 / (double)prompts.stats.lookups, all.rate,
               100 * all.rate / t->ideal);
        fflush(stdout);
        di_buf_addf(&json, "%s{\"gib\": %d, \"prompts\": %.6f, \"answers\": %.6f, \"ideal\": %.6f}", gib > 1 ? ",\n " : "[", gib,
                    prompts.rate, all.rate, t->ideal);
    }
    di_buf_addf(&json, "]\n");
    TRY(di_buf_ok(&json, err));
    if (o->json)
        TRY(di_file_replace(o->json, di_buf_str(&json), err));
out:
    di_buf_fini(&json);
    return status;
}

static di_status traces(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    struct trace t = {0};
    TRY(trace_read(o->trace, &t, err));
    printf("%zu requests, %lld prompt tokens; without limit %.4f of them are found\n\n", t.requests.n / sizeof(struct trace_request),
           (long long)t.tokens, t.ideal);
    if (chosen(o, "index"))
        TRY(index_table(&t, o, err));
    if (chosen(o, "net"))
        TRY(net_table(&t, err));
out:
    di_buf_fini(&t.requests);
    di_buf_fini(&t.ids);
    return status;
}

di_status di_bench_cache(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    if (chosen(o, "keys"))
        TRY(million(o, err));
    if (o->trace)
        TRY(traces(o, err));
out:
    return status;
}
