/* Suite engine: what the engine costs beside the model. (a) With a model that costs nothing: processor time of scheduling and
 * post-processing per step. (b) With a real one: throughput of 16 requests beside that of one, and how long the model waits between two
 * steps. (c) Prompts that share a beginning: rows computed beside those that nobody has computed before. Figures are medians; (b) compares
 * pairs of neighbouring runs. */
#define DI_ON_DEVICE /* its null model is the device */
#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_null.h"
#include "cli/load.h"
#include "api/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 256

static bool chosen(const struct di_bench_options *o, const char *part)
{
    return !o->filter || strstr(part, o->filter);
}

/* ---------------------------------------------------------------- (a) a model that costs nothing */

#define NULL_VOCAB 8
#define NULL_STEPS 200

static void rising_logits(void *ctx, const struct di_step *step, int first, int n, float *logits)
{
    (void)ctx, (void)step, (void)first;
    for (int i = 0; i < n * NULL_VOCAB; i++)
        logits[i] = (float)(i % NULL_VOCAB);
}

static bool count_token(void *ctx, const struct di_sample *token)
{
    int64_t *n = ctx;
    (*n)++;
    return token->id >= 0;
}

/* Submit `batch` requests that do not end before `tokens` are generated. */
static di_status submit_all(struct di_core *e, int batch, const int32_t *prompts, int n_prompt, int64_t tokens, int64_t *counted,
                            di_error *err)
{
    for (int i = 0; i < batch; i++) {
        struct di_request r = {.prompt = prompts + (size_t)i * (size_t)n_prompt,
                               .n_prompt = n_prompt,
                               .max_tokens = tokens,
                               .sampling = di_sampling_params_default(),
                               .ignore_end = true,
                               .on_token = count_token};
        r.ctx = counted;
        r.sampling.temperature = 0;
        di_status status = di_core_submit(e, &r, NULL, err);
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

static di_status step_n(struct di_core *e, int n, di_error *err)
{
    bool busy;
    for (int i = 0; i < n; i++) {
        di_status status = di_core_step(e, &busy, err);
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

static di_status overhead(const struct di_bench_options *o, int batch, double limit, di_error *err)
{
    di_status status = DI_OK;
    struct di_core *e = NULL;
    int rounds = (int)o->rounds;
    double thread[DI_BENCH_ROUNDS], all[DI_BENCH_ROUNDS], wall[DI_BENCH_ROUNDS];
    int64_t context = (int64_t)(rounds + 2) * NULL_STEPS, counted = 0;
    static const int32_t prompts[MOST * 3];
    struct di_stepper n = di_bench_null_stepper(NULL_VOCAB, context, rising_logits);
    TRY(di_core_create_on(&n, &(struct di_core_config){.max_batch = batch, .prefill_chunk = 256, .states = 2 * batch}, &e, err));
    TRY(submit_all(e, batch, prompts, 3, context - 3, &counted, err));
    TRY(step_n(e, NULL_STEPS, err));
    for (int i = 0; i < rounds; i++) {
        struct di_core_stats before = di_core_stats(e);
        double t = di_bench_clock(CLOCK_THREAD_CPUTIME_ID), p = di_bench_clock(CLOCK_PROCESS_CPUTIME_ID);
        TRY(step_n(e, NULL_STEPS, err));
        thread[i] = (di_bench_clock(CLOCK_THREAD_CPUTIME_ID) - t) * 1e6 / NULL_STEPS;
        all[i] = (di_bench_clock(CLOCK_PROCESS_CPUTIME_ID) - p) * 1e6 / NULL_STEPS;
        wall[i] = (double)(di_core_stats(e).host_ns - before.host_ns) * 1e-3 / NULL_STEPS;
    }
    double us = di_bench_median(thread, rounds);
    printf("| %3d | %5.0f | %6.1f | %5.0f | %6.1f | %6.1f |\n", batch, limit, us, 100 * us / limit, di_bench_median(wall, rounds),
           di_bench_median(all, rounds));
out:
    di_core_destroy(e);
    return status;
}

static di_status overheads(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    printf("A model that costs nothing: us a step, %d steps a round\n\n"
           "| requests | limit | engine's thread | %% of limit | by the clock | both threads |\n|---|---|---|---|---|---|\n",
           NULL_STEPS);
    TRY(overhead(o, 16, 15, err));
    TRY(overhead(o, 256, 100, err));
    printf("\n");
out:
    return status;
}

/* ---------------------------------------------------------------- many that wait */

#define QUEUE_STEPS 200
#define QUEUE_ANSWER 4

static di_status submit_waiting(struct di_core *e, int i, int64_t tokens, int priority, int64_t *id, di_error *err)
{
    static const int32_t prompt[64];
    static int64_t counted;
    struct di_request r = {.prompt = prompt,
                           .n_prompt = 1 + i % 64,
                           .max_tokens = tokens,
                           .priority = priority,
                           .tenant = (uint64_t)(i % 100),
                           .deadline_ns = INT64_MAX - i,
                           .sampling = di_sampling_params_default(),
                           .ignore_end = true,
                           .on_token = count_token,
                           .ctx = &counted};
    r.sampling.temperature = 0;
    return di_core_submit(e, &r, id, err);
}

/* 16 run and `waiting` wait; the time of a step in which the queue stands still, and of one in which 4 requests end, 4 start, 4 come and one is
 * cancelled. */
static di_status queue(const struct di_bench_options *o, int waiting, di_error *err)
{
    di_status status = DI_OK;
    struct di_core *e = NULL;
    int rounds = (int)o->rounds, running = 16;
    double still[DI_BENCH_ROUNDS], moving[DI_BENCH_ROUNDS];
    int64_t id = 0, context = (int64_t)(rounds + 2) * QUEUE_STEPS + 64;
    struct di_stepper n = di_bench_null_stepper(NULL_VOCAB, context, rising_logits);
    TRY(di_core_create_on(&n, &(struct di_core_config){.max_batch = running, .prefill_chunk = 256, .no_reuse = true}, &e, err));
    for (int i = 0; i < running; i++)
        TRY(submit_waiting(e, i, context - 64, -1, &id, err));
    for (int i = 0; i < waiting; i++)
        TRY(submit_waiting(e, i, QUEUE_ANSWER, i % 3, &id, err));
    TRY(step_n(e, 4, err));
    for (int i = 0; i < rounds; i++) {
        double t = di_bench_clock(CLOCK_THREAD_CPUTIME_ID);
        TRY(step_n(e, QUEUE_STEPS, err));
        still[i] = (di_bench_clock(CLOCK_THREAD_CPUTIME_ID) - t) * 1e6 / QUEUE_STEPS;
    }
    for (int64_t i = 1; i <= running; i++)
        di_core_cancel(e, i);
    TRY(step_n(e, 20, err));
    for (int i = 0; i < rounds; i++) {
        double t = di_bench_clock(CLOCK_THREAD_CPUTIME_ID);
        for (int k = 0; k < QUEUE_STEPS; k++) {
            for (int j = 0; j < running / QUEUE_ANSWER; j++)
                TRY(submit_waiting(e, i + k + j, QUEUE_ANSWER, j % 3, &id, err));
            di_core_cancel(e, id);
            TRY(step_n(e, 1, err));
        }
        moving[i] = (di_bench_clock(CLOCK_THREAD_CPUTIME_ID) - t) * 1e6 / QUEUE_STEPS;
    }
    printf("| %6d | 30 | %.1f | %.1f |\n", waiting, di_bench_median(still, rounds), di_bench_median(moving, rounds));
    fflush(stdout);
out:
    di_core_destroy(e);
    return status;
}

static di_status queues(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    printf("16 requests run and others wait: processor time of the engine's thread, us a step\n\n"
           "| waiting | limit | nothing changes | 4 end, start and come, one is cancelled |\n|---|---|---|---|\n");
    for (int waiting = 100; waiting <= 100000; waiting *= 10)
        TRY(queue(o, waiting, err));
    printf("\n");
out:
    return status;
}

/* ---------------------------------------------------------------- the same through the public interface */

static void no_logits(void *ctx, const struct di_step *step, int first, int n, float *logits)
{
    (void)ctx, (void)step, (void)first, (void)n, (void)logits;
}

/* An engine with the model's tokenizer and a model that costs nothing. */
static di_status open_null(const struct di_bench_options *o, int batch, int64_t context, di_engine **out, di_error *err)
{
    di_status status = DI_OK;
    di_engine_config config;
    di_engine_config_init(&config, sizeof config);
    config.model = o->model;
    config.isa = o->isa;
    config.max_batch = batch;
    config.context = context;
    config.prefill_chunk = 64;
    TRY(di_engine_open(&config, out, err));
    struct di_stepper n = di_bench_null_stepper((*out)->config.vocab_size, context, no_logits);
    di_core_destroy((*out)->core);
    (*out)->core = NULL;
    TRY(di_core_create_on(&n, &(*out)->core_config, &(*out)->core, err));
out:
    return status;
}

static di_status drive(di_engine *e, int steps, int64_t *tokens, di_error *err)
{
    di_status status = DI_OK;
    for (int i = 0; i < steps; i++) {
        TRY(di_engine_step(e, NULL, err));
        for (const di_output *out; (out = di_engine_poll(e, 0)); di_output_free(e, out))
            *tokens += out->kind == DI_OUTPUT_TOKEN;
    }
out:
    return status;
}

static int take_record(void *user, const di_output *out)
{
    *(int64_t *)user += out->kind == DI_OUTPUT_TOKEN;
    return 1;
}

/* Answers that say a sentence again and again: tokens are forced, so that nothing is sampled. */
static di_status submit_forced(di_engine *e, int batch, int64_t tokens, int64_t *counted, di_error *err)
{
    static const char text[] = "Once upon a time there was a small engine; it liked to count, and to be counted upon. ";
    di_status status = DI_OK;
    di_submission s;
    di_sampling_options sampling;
    size_t n;
    int32_t *forced = di_malloc((size_t)tokens * sizeof *forced);
    CHECK(forced, err, DI_ERR_MEMORY, "bench", "out of memory");
    TRY(di_engine_encode(e, text, sizeof text - 1, 0, forced, (size_t)tokens, &n, err));
    for (size_t i = n; i < (size_t)tokens; i++)
        forced[i] = forced[i - n];
    di_sampling_options_init(&sampling, sizeof sampling);
    sampling.max_tokens = tokens;
    di_submission_init(&s, sizeof s);
    s.text = "Tell";
    s.text_bytes = 4;
    s.sampling = &sampling;
    s.forced = forced;
    s.n_forced = (size_t)tokens;
    s.on_output = counted ? take_record : NULL;
    s.user = counted;
    for (int i = 0; i < batch; i++)
        TRY(di_engine_submit(e, &s, NULL, err));
out:
    di_free(forced);
    return status;
}

static di_status driven(const struct di_bench_options *o, int batch, double limit, bool callback, di_error *err)
{
    di_status status = DI_OK;
    di_engine *e = NULL;
    int rounds = o->rounds < 30 ? (int)o->rounds : 30;
    double us[30];
    int64_t tokens = 0, length = (int64_t)(rounds + 1) * NULL_STEPS + 100;
    TRY(open_null(o, batch, length + 16, &e, err));
    TRY(submit_forced(e, batch, length, callback ? &tokens : NULL, err));
    while (tokens < 8 * batch)
        TRY(drive(e, 1, &tokens, err));
    for (int i = 0; i < rounds; i++) {
        double t = di_bench_clock(CLOCK_THREAD_CPUTIME_ID);
        TRY(drive(e, NULL_STEPS, &tokens, err));
        us[i] = (di_bench_clock(CLOCK_THREAD_CPUTIME_ID) - t) * 1e6 / NULL_STEPS;
    }
    double median = di_bench_median(us, rounds);
    printf("| %d | %s | %.0f | %.1f | %.0f |\n", batch, callback ? "a callback" : "polling", limit, median, 100 * median / limit);
out:
    di_engine_close(e);
    return status;
}

static di_status driven_both(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    printf("The same through the public interface, with text and records: processor time of the driver, us a step\n\n"
           "| requests | records go to | limit | us | %% of limit |\n|---|---|---|---|---|\n");
    for (int callback = 1; callback >= 0; callback--) {
        TRY(driven(o, 16, 15, callback, err));
        TRY(driven(o, 256, 100, callback, err));
    }
    printf("\n");
out:
    return status;
}

/* ---------------------------------------------------------------- (b) throughput and gap */

#define LANES 16
#define PROMPT 32
#define WARM 8
#define STEPS 96

struct bench {
    const struct di_bench_options *o;
    struct di_loaded l;
    int32_t *prompts;
};

static void fill_prompt(int32_t *ids, int64_t n, uint32_t seed, const struct di_config *c)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)c->vocab_size);
        if (ids[i] == c->image_token_id)
            ids[i] = 0;
    }
}

struct pace {
    double tokens_per_s, gap; /* gap: share of the time of a step */
};

/* `batch` requests decode STEPS steps. */
static di_status measure_pace(struct bench *b, int batch, struct pace *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_core *e = NULL;
    struct di_core_config config = b->l.engine;
    int64_t counted = 0;
    config.no_reuse = true;
    config.states = 0;
    TRY(di_core_create(b->l.model, &config, &e, err));
    TRY(submit_all(e, batch, b->prompts, PROMPT, WARM + STEPS + 16, &counted, err));
    while (counted < (int64_t)batch * WARM)
        TRY(step_n(e, 1, err));
    struct di_core_stats before = di_core_stats(e);
    int64_t start = di_clock_ns(), had = counted;
    TRY(step_n(e, STEPS, err));
    double seconds = (double)(di_clock_ns() - start) * 1e-9;
    struct di_core_stats after = di_core_stats(e);
    double gap = (double)(after.gap_ns - before.gap_ns), compute = (double)(after.compute_ns - before.compute_ns);
    *out = (struct pace){.tokens_per_s = (double)(counted - had) / seconds, .gap = gap / (gap + compute)};
out:
    di_core_destroy(e);
    return status;
}

static di_status throughput(struct bench *b, di_error *err)
{
    di_status status = DI_OK;
    int rounds = (int)b->o->rounds;
    double rate[2][DI_BENCH_ROUNDS], gap[2][DI_BENCH_ROUNDS], ratio[DI_BENCH_ROUNDS];
    struct pace p[2];
    TRY(measure_pace(b, LANES, &p[1], err));
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 2; k++) {
            TRY(measure_pace(b, k ? LANES : 1, &p[k], err));
            rate[k][i] = p[k].tokens_per_s;
            gap[k][i] = p[k].gap * 100;
        }
        ratio[i] = rate[1][i] / rate[0][i];
    }
    printf("%s: decoding behind %d tokens, %d steps a run\n\n| requests | tokens/s | best run | gap between two steps, %% of the step |\n"
           "|---|---|---|---|\n",
           b->o->model, PROMPT, STEPS);
    for (int k = 0; k < 2; k++) {
        double median = di_bench_median(rate[k], rounds);
        printf("| %d | %.0f | %.0f | %.2f |\n", k ? LANES : 1, median, rate[k][rounds - 1], di_bench_median(gap[k], rounds));
    }
    printf("\n| tokens/s of %d to that of 1 | of the best runs | wanted |\n|---|---|---|\n| %.2f | %.2f | 4 |\n\n", LANES,
           di_bench_median(ratio, rounds), rate[1][rounds - 1] / rate[0][rounds - 1]);
out:
    return status;
}

/* ---------------------------------------------------------------- (c) shared prefixes */

#define SHARERS 32
#define SHARED_PROMPT 512

struct shared {
    uint64_t rows, cached;
    double seconds;
};

static di_status prefill_shared(struct bench *b, int common, bool reuse, struct shared *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_core *e = NULL;
    struct di_core_config config = b->l.engine;
    int64_t counted = 0;
    bool busy = true;
    config.no_reuse = !reuse;
    config.states = reuse ? 64 : 0;
    for (int i = 0; i < SHARERS; i++) {
        int32_t *p = b->prompts + (size_t)i * SHARED_PROMPT;
        fill_prompt(p, common, 1, &b->l.config);
        fill_prompt(p + common, SHARED_PROMPT - common, (uint32_t)i + 2, &b->l.config);
    }
    TRY(di_core_create(b->l.model, &config, &e, err));
    TRY(submit_all(e, SHARERS, b->prompts, SHARED_PROMPT, 1, &counted, err));
    double start = di_bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    while (busy)
        TRY(di_core_step(e, &busy, err));
    *out = (struct shared){.rows = di_core_stats(e).prompt_rows,
                           .cached = di_core_stats(e).cached_tokens,
                           .seconds = di_bench_clock(CLOCK_PROCESS_CPUTIME_ID) - start};
out:
    di_core_destroy(e);
    return status;
}

static di_status sharing(struct bench *b, di_error *err)
{
    static const int percents[] = {0, 50, 75, 90};
    di_status status = DI_OK;
    printf("%d prompts of %d tokens that begin with the same share\n\n"
           "| shared | floor rows | rows | %% of all rows above the floor | processor time, %% of that without reuse "
           "|\n|---|---|---|---|---|\n",
           SHARERS, SHARED_PROMPT);
    for (size_t k = 0; k < sizeof percents / sizeof *percents; k++) {
        int common = SHARED_PROMPT * percents[k] / 100, rounds = b->o->rounds < 3 ? (int)b->o->rounds : 3;
        double share[3];
        struct shared with, without;
        for (int i = 0; i < rounds; i++) {
            TRY(prefill_shared(b, common, true, &with, err));
            TRY(prefill_shared(b, common, false, &without, err));
            share[i] = 100 * with.seconds / without.seconds;
        }
        uint64_t floor = without.rows - (SHARERS - 1) * (uint64_t)common;
        printf("| %d %% | %llu | %llu | %.1f | %.0f |\n", percents[k], (unsigned long long)floor, (unsigned long long)with.rows,
               100 * ((double)with.rows - (double)floor) / (double)without.rows, di_bench_median(share, rounds));
        fflush(stdout);
    }
out:
    return status;
}

/* ---------------------------------------------------------------- the suite */

static di_status with_model(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    struct bench b = {.o = o};
    struct di_load_options load = {.model = o->model,
                                   .backend = "cpu",
                                   .isa = o->isa,
                                   .numerics = "bf16",
                                   .threads = o->threads,
                                   .max_batch = LANES,
                                   .prefill_chunk = o->prefill_chunk,
                                   .context = 1024,
                                   .quiet = true};
    TRY(di_load(&load, false, &b.l, err));
    b.prompts = di_malloc(sizeof *b.prompts * SHARERS * SHARED_PROMPT);
    CHECK(b.prompts, err, DI_ERR_MEMORY, "bench", "out of memory");
    fill_prompt(b.prompts, SHARERS * SHARED_PROMPT, 1, &b.l.config);
    if (chosen(o, "throughput"))
        TRY(throughput(&b, err));
    if (chosen(o, "sharing"))
        TRY(sharing(&b, err));
out:
    di_free(b.prompts);
    di_unload(&b.l);
    return status;
}

static void print_machine(void)
{
    double load = 0;
    FILE *f = fopen("/proc/loadavg", "r");
    bool known = f && fscanf(f, "%lf", &load) == 1;
    if (f)
        fclose(f);
    if (known)
        printf("%d processors, load %.1f\n\n", di_cpu_count(), load);
}

di_status di_bench_engine(const struct di_bench_options *o, di_error *err)
{
    di_status status = DI_OK;
    print_machine();
    if (chosen(o, "overhead"))
        TRY(overheads(o, err));
    if (chosen(o, "queue"))
        TRY(queues(o, err));
    if (o->model && chosen(o, "interface"))
        TRY(driven_both(o, err));
    if (o->model && (chosen(o, "throughput") || chosen(o, "sharing")))
        TRY(with_model(o, err));
out:
    return status;
}
