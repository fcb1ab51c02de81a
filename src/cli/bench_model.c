/* Whole steps of a model: decode and prefill with random ids. The floor of a step is the sum over its ops of what each must read at the
 * measured bandwidth or multiply at the measured rate, whichever takes longer; both are measured right before and after every measurement.
 * */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cache/kv_store.h"
#include "cli/bench.h"
#include "cli/bench_profile.h"
#include "api/text_model.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define MAX_BATCH 64
#define STEPS 16 /* decode steps before the position goes back; the window rings hold as many rows beyond the window */
#define PASS_SECONDS 0.1
#define PROBE_MOST ((size_t)640 << 20) /* more than any L3 cache */
#define PROBE_LEAST ((size_t)1 << 20)

static const struct test {
    int batch, context, prompt; /* decode `batch` requests behind `context` tokens, or prefill `prompt` tokens */
} tests[] = {{1, 100, 0},  {2, 100, 0},   {4, 100, 0}, {16, 100, 0}, {1, 2000, 0}, {2, 2000, 0},
             {4, 2000, 0}, {16, 2000, 0}, {0, 0, 128}, {0, 0, 512},  {0, 0, 2048}};

struct bench {
    const struct di_bench_options *o;
    struct di_model *model;
    struct di_kv_store *store;
    struct di_pool *pool;         /* of the machine's own measurements */
    struct di_bench_buffer probe; /* as large as the weights, so that it lies in the same cache or in memory */
    int slots, chunk, filled;     /* filled: tokens that slot 0 holds */
    int64_t context;
    int32_t *tokens[MAX_BATCH];
    float DI_DEVICE *logits;
    struct di_profile profile;
    struct di_buf json;
};

/* ---------------------------------------------------------------- steps */

static di_status prefill(struct bench *b, int n, di_error *err)
{
    static const int32_t none = 0;
    for (int at = 0; at < n; at += b->chunk) {
        int rows = n - at < b->chunk ? n - at : b->chunk;
        int32_t last = rows - 1;
        const int32_t *tokens = b->tokens[0];
        bool end = at + rows == n;
        struct di_step step = {.n_chunks = 1,
                               .chunks = &(struct di_chunk){0, 0, rows, at},
                               .tokens = &tokens,
                               .kv = di_kv_view(b->store),
                               .n_logits = end,
                               .logit_rows = end ? &last : &none,
                               .logits = b->logits};
        di_status status = di_model_step(b->model, &step, err);
        if (status != DI_OK)
            return status;
    }
    b->filled = n;
    return DI_OK;
}

static di_status decode_batch(struct bench *b, const struct test *t, di_error *err)
{
    struct di_chunk chunks[MAX_BATCH];
    int32_t rows[MAX_BATCH];
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < t->batch; k++) {
            chunks[k] = (struct di_chunk){k, k, 1, t->context + i};
            rows[k] = k;
        }
        struct di_step step = {.n_chunks = t->batch,
                               .chunks = chunks,
                               .tokens = (const int32_t *const *)b->tokens,
                               .kv = di_kv_view(b->store),
                               .n_logits = t->batch,
                               .logit_rows = rows,
                               .logits = b->logits};
        di_status status = di_model_step(b->model, &step, err);
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* All slots continue the context of slot 0. */
static void copy_slots(struct bench *b, int batch)
{
    struct di_kv kv = di_kv_view(b->store);
    struct di_backend *be = b->store->be;
    for (int s = 1; s < batch; s++) {
        struct di_copy_span state = {b->store->states + (size_t)s * kv.state_stride, kv.state, kv.state_stride};
        be->ops->copy(be, &(struct di_op_copy){1, &state});
        for (int p = 0; p < di_kv_blocks_for(b->filled); p++)
            di_kv_copy_block(b->store, b->store->lease[0].pages[p], b->store->lease[s].pages[p], DI_BLOCK_TOKENS);
    }
}

static di_status time_pass(struct bench *b, const struct test *t, int repeat, double *seconds, di_error *err)
{
    double start = di_bench_seconds(b->pool);
    for (int i = 0; i < repeat; i++) {
        di_status status = t->prompt ? prefill(b, t->prompt, err) : decode_batch(b, t, err);
        if (status != DI_OK)
            return status;
    }
    di_status status = di_backend_finish(b->model->be, err);
    if (status != DI_OK)
        return status;
    *seconds = (di_bench_seconds(b->pool) - start) / repeat;
    return DI_OK;
}

/* ---------------------------------------------------------------- what the machine can do */

struct machine {
    double bandwidth, peak;
};

static struct machine probe_machine(struct bench *b)
{
    int reads = (int)(((size_t)128 << 20) / b->probe.bytes) + 1;
    double seconds = 0;
    if (reads > 1)
        di_bench_read(b->pool, &b->probe);
    for (int i = 0; i < reads; i++)
        seconds += di_bench_read(b->pool, &b->probe);
    return (struct machine){(double)b->probe.bytes * reads / seconds, di_bench_peak(b->pool, b->model->be->ops->name)};
}

static double entry_floor(const struct di_profile_entry *e, struct machine m)
{
    double read = e->bytes / m.bandwidth, multiply = m.peak > 0 ? e->flops / m.peak : 0;
    return read > multiply ? read : multiply;
}

static double floor_of(const struct di_profile *p, struct machine m)
{
    double sum = 0;
    for (int i = 0; i < p->n; i++)
        sum += entry_floor(&p->entry[i], m);
    return sum;
}

/* ---------------------------------------------------------------- output */

struct result {
    char name[48];
    int tokens, steps;                                       /* of one pass: tokens done, model steps */
    double ms, floor_ms, percent, bytes, flops, profiled_ms; /* of one pass */
    struct machine machine;
};

static void print_profile(const struct bench *b, const struct result *r)
{
    const struct di_profile *p = &b->profile;
    double rest = r->profiled_ms;
    printf("\n  %-34s %8s %9s %6s %9s %6s %8s\n", r->name, "calls", "ms/step", "share", "floor ms", "%", "GB/s");
    for (int i = 0; i <= p->n; i++) {
        struct di_profile_entry e = {.name = "between the ops", .least = rest * 1e-3};
        if (i < p->n) {
            e = p->entry[i];
            rest -= e.least * 1e3;
        }
        double ms = e.least * 1e3, floor = entry_floor(&e, r->machine) * 1e3;
        printf("  %-34s %8lld %9.4f %5.1f%% %9.4f %6.1f %8.1f\n", e.name, (long long)e.calls / r->steps, ms / r->steps,
               ms / r->profiled_ms * 100, floor / r->steps, ms > 0 ? floor / ms * 100 : 0, ms > 0 ? e.bytes / ms * 1e-6 : 0);
    }
    printf("\n");
}

static void json_number(struct di_buf *j, const char *key, double v)
{
    di_buf_addf(j, ",\"%s\":", key);
    di_json_write_double(j, v);
}

static void add_json(struct bench *b, const struct result *r)
{
    struct di_buf *j = &b->json;
    di_buf_addf(j, "%s{\"name\":\"%s\",\"isa\":\"%s\",\"threads\":%d,\"tokens\":%d", j->n > 1 ? ",\n" : "", r->name, b->profile.inner->name,
                di_pool_threads(b->pool), r->tokens);
    json_number(j, "tokens_per_s", r->tokens / r->ms * 1e3);
    json_number(j, "ms_per_step", r->ms / r->steps);
    json_number(j, "floor_ms_per_step", r->floor_ms / r->steps);
    json_number(j, "percent_of_floor", r->percent);
    json_number(j, "bytes_per_step", r->bytes / r->steps);
    json_number(j, "flops_per_step", r->flops / r->steps);
    json_number(j, "bandwidth", r->machine.bandwidth);
    json_number(j, "peak_flops", r->machine.peak);
    di_buf_addf(j, ",\"ops\":[");
    for (int i = 0; i < b->profile.n; i++) {
        const struct di_profile_entry *e = &b->profile.entry[i];
        di_buf_addf(j, "%s{\"name\":\"%s\",\"calls\":%lld", i ? "," : "", e->name, (long long)e->calls / r->steps);
        json_number(j, "ms", e->least * 1e3 / r->steps);
        json_number(j, "floor_ms", entry_floor(e, r->machine) * 1e3 / r->steps);
        di_buf_addf(j, "}");
    }
    di_buf_addf(j, "]}");
}

static void report_times(struct bench *b, const struct result *r)
{
    const struct machine *m = &r->machine;
    printf("| %-26s | %9.1f | %9.3f | %9.3f | %5.1f | %8.1f | %7.1f | %7.1f | %8.1f | %8.1f |\n", r->name, r->tokens / r->ms * 1e3,
           r->ms / r->steps, r->floor_ms / r->steps, r->percent, r->bytes / r->steps * 1e-6, r->bytes / r->ms * 1e-6, m->bandwidth * 1e-9,
           r->flops / r->ms * 1e-6, m->peak * 1e-9);
    if (b->o->profile)
        print_profile(b, r);
    fflush(stdout);
    add_json(b, r);
}

/* ---------------------------------------------------------------- one row of the table */

static di_status profile(struct bench *b, const struct test *t, struct result *r, di_error *err)
{
    di_status status = DI_OK;
    double seconds = 0;
    di_profile_attach(&b->profile, b->model->be, di_pool_threads(b->pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
    for (int i = 0; i < b->o->rounds && status == DI_OK; i++) {
        status = time_pass(b, t, 1, &seconds, err);
        di_profile_lap(&b->profile);
        if (i == 0 || seconds * 1e3 < r->profiled_ms)
            r->profiled_ms = seconds * 1e3;
    }
    di_profile_detach(&b->profile, b->model->be);
    return status;
}

static di_status measure_test(struct bench *b, const struct test *t, struct result *r, di_error *err)
{
    double time[DI_BENCH_ROUNDS], share[DI_BENCH_ROUNDS], bandwidth[DI_BENCH_ROUNDS], peak[DI_BENCH_ROUNDS], seconds;
    int rounds = (int)b->o->rounds;
    di_status status = DI_OK;
    TRY(time_pass(b, t, 1, &seconds, err)); /* touch everything */
    TRY(profile(b, t, r, err));
    int repeat = 1 + (int)(PASS_SECONDS / seconds);
    struct machine before = probe_machine(b);
    for (int i = 0; i < rounds; i++) {
        TRY(time_pass(b, t, repeat, &time[i], err));
        struct machine after = probe_machine(b), mean = {(before.bandwidth + after.bandwidth) / 2, (before.peak + after.peak) / 2};
        share[i] = floor_of(&b->profile, mean) / time[i];
        bandwidth[i] = mean.bandwidth;
        peak[i] = mean.peak;
        before = after;
    }
    r->machine = (struct machine){di_bench_median(bandwidth, rounds), di_bench_median(peak, rounds)};
    r->ms = di_bench_median(time, rounds) * 1e3;
    r->percent = di_bench_median(share, rounds) * 100;
    r->floor_ms = r->ms * r->percent / 100;
    for (int i = 0; i < b->profile.n; i++) {
        r->bytes += b->profile.entry[i].bytes;
        r->flops += b->profile.entry[i].flops;
    }
out:
    return status;
}

static di_status run_test(struct bench *b, const struct test *t, di_error *err)
{
    di_status status = DI_OK;
    struct result r = {.tokens = t->prompt ? t->prompt : t->batch * STEPS};
    r.steps = t->prompt ? (t->prompt + b->chunk - 1) / b->chunk : STEPS;
    if (t->prompt)
        snprintf(r.name, sizeof r.name, "prefill %d", t->prompt);
    else
        snprintf(r.name, sizeof r.name, "decode %d behind %d", t->batch, t->context);
    if (b->o->filter && !strstr(r.name, b->o->filter))
        return DI_OK;
    if (!t->prompt && b->filled != t->context)
        TRY(prefill(b, t->context, err));
    if (!t->prompt)
        copy_slots(b, t->batch);
    TRY(measure_test(b, t, &r, err));
    report_times(b, &r);
out:
    return status;
}

/* ---------------------------------------------------------------- the suite */

/* Any valid map gives the same work; the real one only if the checkpoint has a tokenizer. */
static int32_t *make_token_map(const char *dir, const struct di_config *c)
{
    struct di_text_model text;
    int32_t *map = di_malloc((size_t)c->vocab_size * sizeof *map);
    bool real = c->n_engram && di_text_model_load(dir, c, &text, NULL) == DI_OK;
    for (int i = 0; map && i < c->vocab_size; i++)
        map[i] = real ? text.token_map[i] : c->n_engram ? i % c->engram_compressed_vocab_size : 0;
    if (real)
        di_text_model_fini(&text);
    return map;
}

static di_status make_tokens(struct bench *b, const struct di_config *c, di_error *err)
{
    uint32_t random = 1;
    for (int s = 0; s < b->slots; s++) {
        b->tokens[s] = di_malloc((size_t)b->context * sizeof(int32_t));
        if (!b->tokens[s])
            return di_fail(err, DI_ERR_MEMORY, "bench", "out of memory");
        for (int64_t i = 0; i < b->context; i++) {
            random = random * 1664525 + 1013904223;
            b->tokens[s][i] = (int32_t)((random >> 8) % (uint32_t)c->vocab_size);
            if (b->tokens[s][i] == c->image_token_id)
                b->tokens[s][i] = 0;
        }
        if (!di_kv_reserve(b->store, s, b->context))
            return di_fail(err, DI_ERR_INTERNAL, "bench", "too few blocks");
    }
    return DI_OK;
}

static di_status open_model(struct bench *b, di_error *err)
{
    di_status status = DI_OK;
    struct di_config *c = di_calloc(1, sizeof *c);
    int32_t *map = NULL;
    CHECK(c, err, DI_ERR_MEMORY, "bench", "out of memory");
    TRY(di_config_load(b->o->model, c, err));
    map = make_token_map(b->o->model, c);
    CHECK(map, err, DI_ERR_MEMORY, "bench", "out of memory");
    struct di_model_params p = {.max_rows = b->chunk > b->slots ? b->chunk : b->slots,
                                .max_context = b->context,
                                .threads = (int)b->o->threads,
                                .isa = b->o->isa,
                                .token_map = map};
    di_numerics_by_name("bf16", &p.numerics);
    TRY(di_model_open(b->o->model, &p, &b->model, err));
    TRY(di_kv_store_create(b->model->be, &b->model->be->layout, b->slots, b->slots * di_kv_blocks_for(b->context), b->context, &b->store,
                           err));
    TRY(make_tokens(b, c, err));
    di_kv_send_pages(b->store);
    b->logits = di_device_alloc(b->model->be, (size_t)b->slots * (size_t)c->vocab_size * sizeof(float));
    CHECK(b->logits, err, DI_ERR_MEMORY, "bench", "out of memory");
out:
    di_free(map);
    di_free(c);
    return status;
}

static void print_head(const struct bench *b)
{
    const struct di_model *m = b->model;
    printf("%s: %d layers, %.1f MB of packed weights; instruction set %s, %d threads, prompts in chunks of %d\n"
           "read bandwidth of %.0f MB\n\n",
           b->o->model, m->c->num_hidden_layers, (double)m->weight_bytes * 1e-6, m->be->ops->name, di_pool_threads(b->pool), b->chunk,
           (double)b->probe.bytes * 1e-6);
    printf("| %-26s | %9s | %9s | %9s | %5s | %8s | %7s | %7s | %8s | %8s |\n|---|---|---|---|---|---|---|---|---|---|\n", "step",
           "tokens/s", "ms/step", "floor ms", "%", "MB/step", "GB/s", "of", "GFLOP/s", "of");
}

static di_status run_tests(struct bench *b, di_error *err)
{
    di_status status = DI_OK;
    if (b->o->batch || b->o->context)
        return run_test(b, &(struct test){b->o->batch ? (int)b->o->batch : 1, b->o->context ? (int)b->o->context : 100, 0}, err);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        TRY(run_test(b, &tests[i], err));
out:
    return status;
}

di_status di_bench_model(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    struct bench *b = di_calloc(1, sizeof *b);
    CHECK(b, err, DI_ERR_MEMORY, "bench", "out of memory");
    CHECK(o->model, err, DI_ERR_INVALID, "model", "--suite model needs --model DIR");
    b->o = o;
    b->slots = o->batch > 16 ? (int)o->batch : 16;
    b->chunk = (int)o->prefill_chunk;
    b->context = (o->context > 2048 ? o->context : 2048) + STEPS;
    TRY(open_model(b, err));
    TRY(di_pool_create(o->threads ? (int)o->threads : di_cpu_count(), &b->pool, err));
    size_t bytes = b->model->weight_bytes < PROBE_LEAST  ? PROBE_LEAST
                   : b->model->weight_bytes > PROBE_MOST ? PROBE_MOST
                                                         : b->model->weight_bytes;
    b->probe = di_bench_alloc(bytes);
    CHECK(b->probe.p, err, DI_ERR_MEMORY, "bench", "out of memory");
    print_head(b);
    di_buf_addf(&b->json, "[");
    TRY(run_tests(b, err));
    di_buf_addf(&b->json, "]\n");
    TRY(di_buf_ok(&b->json, err));
    if (o->json)
        TRY(di_file_replace(o->json, di_buf_str(&b->json), err));
out:
    if (b) {
        for (int s = 0; s < b->slots; s++)
            di_free(b->tokens[s]);
        if (b->model)
            di_device_free(b->model->be, b->logits);
        di_buf_fini(&b->json);
        di_bench_free(&b->probe);
        di_pool_destroy(b->pool);
        di_kv_store_destroy(b->store);
        di_model_close(b->model);
    }
    di_free(b);
    return status;
}
