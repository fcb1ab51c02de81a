/* Suite order: what --prefill-order changes. Requests with prompts of very different lengths come at random; the time to the first token in
 * both orders, over the same arrivals. Time is virtual: a step takes what it costs, and when nothing is left to do it is the time of the
 * next arrival. So a run needs no waiting. (a) With a model that computes nothing a step costs as many units as it has rows, and some. (b)
 * With a real one, it costs the processor time of the process; the two orders take turns at the model, so that what else the machine does
 * slows both. */
#define DI_ON_DEVICE /* its null model is the device */
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_null.h"
#include "cli/load.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#define LANES 16
#define SHORTEST 100 /* tokens of a prompt; logarithms are uniform between these */
#define LONGEST 8000
#define ANSWER 32 /* on average; 1 to 63 */
#define STEP_UNITS 16
#define CONTEXT (LONGEST + 2 * ANSWER)
#define VOCAB 1024

struct job {
    int64_t n_prompt, n_answer;
    double at, first; /* arrival, first token; first < 0: not yet */
    bool fresh;       /* its first token came in the step at hand */
};

struct jobs {
    struct job *v;
    int n;
    int32_t *prompt; /* [LONGEST], shared: nothing is reused */
};

/* What is measured, and on what. */
struct bench {
    struct di_loaded *l; /* NULL: the model that computes nothing */
    struct di_core_config config;
    struct jobs jobs[2]; /* the same for both orders */
    int n, rounds;
};

/* An engine in its own time. */
struct life {
    const struct bench *b;
    struct jobs *jobs;
    struct di_core *e;
    double scale; /* arrivals are stretched by it; 0: all are there at once */
    double now, worked;
    int sent;
    bool busy;
};

static double draw(uint64_t *seed) /* above 0, at most 1 */
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)((*seed >> 33) + 1) / (double)(UINT64_C(1) << 31);
}

/* Arrivals are the sums of exponential times of mean 1, to be stretched. */
static void make_jobs(struct jobs *j, uint64_t seed)
{
    double at = 0;
    for (int i = 0; i < j->n; i++) {
        at -= log(draw(&seed));
        j->v[i] = (struct job){.n_prompt = (int64_t)(SHORTEST * pow((double)LONGEST / SHORTEST, draw(&seed))),
                               .n_answer = 1 + (int64_t)((2 * ANSWER - 2) * draw(&seed)),
                               .at = at};
    }
}

static void equal_logits(void *ctx, const struct di_step *step, int first, int n, float *logits)
{
    (void)ctx, (void)step, (void)first;
    memset(logits, 0, (size_t)n * VOCAB * sizeof *logits);
}

static di_status open_core(const struct bench *b, enum di_prefill_order order, struct di_core **out, di_error *err)
{
    struct di_core_config config = b->config;
    config.prefill_order = order;
    struct di_stepper n = di_bench_null_stepper(VOCAB, CONTEXT, equal_logits);
    return b->l ? di_core_create(b->l->model, &config, out, err) : di_core_create_on(&n, &config, out, err);
}

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct job *j = ctx;
    (void)s;
    j->fresh = j->fresh || j->first < 0;
    return true;
}

static di_status submit_next(struct di_core *e, struct jobs *jobs, struct job *j, di_error *err)
{
    struct di_request r = {.prompt = jobs->prompt,
                           .n_prompt = j->n_prompt,
                           .max_tokens = j->n_answer,
                           .sampling = di_sampling_params_default(),
                           .ignore_end = true,
                           .on_token = on_token,
                           .ctx = j};
    r.sampling.temperature = 0;
    j->first = -1;
    return di_core_submit(e, &r, NULL, err);
}

static bool is_over(const struct life *f)
{
    return f->sent == f->jobs->n && !f->busy;
}

/* What has arrived by now, and one step. */
static di_status live_on(struct life *f, di_error *err)
{
    di_status status = DI_OK;
    struct jobs *j = f->jobs;
    if (!f->busy && j->v[f->sent].at * f->scale > f->now)
        f->now = j->v[f->sent].at * f->scale;
    for (; f->sent < j->n && j->v[f->sent].at * f->scale <= f->now; f->sent++)
        TRY(submit_next(f->e, j, &j->v[f->sent], err));
    struct di_core_stats before = di_core_stats(f->e);
    double start = di_bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    TRY(di_core_step(f->e, &f->busy, err));
    if (f->b->l)
        TRY(di_core_flush(f->e, err)); /* the model is another one's now */
    struct di_core_stats after = di_core_stats(f->e);
    uint64_t rows = after.prompt_rows + after.decode_rows - before.prompt_rows - before.decode_rows;
    double cost = f->b->l ? di_bench_clock(CLOCK_PROCESS_CPUTIME_ID) - start : rows ? (double)(rows + STEP_UNITS) : 0;
    f->now += cost;
    f->worked += cost;
    for (int i = 0; i < f->sent; i++)
        if (j->v[i].fresh) {
            j->v[i].fresh = false;
            j->v[i].first = f->now - j->v[i].at * f->scale;
        }
out:
    return status;
}

/* Time for a token of prompts and answers when the engine always has enough to do, from a part of the jobs. */
static di_status calibrate(struct bench *b, double *per_token, di_error *err)
{
    di_status status = DI_OK;
    struct jobs part = b->jobs[0];
    part.n = b->n < 40 ? b->n : b->l ? 40 : b->n;
    struct life f = {.b = b, .jobs = &part};
    int64_t tokens = 0;
    for (int i = 0; i < part.n; i++)
        tokens += part.v[i].n_prompt + part.v[i].n_answer;
    TRY(open_core(b, DI_PREFILL_ARRIVAL, &f.e, err));
    while (!is_over(&f))
        TRY(live_on(&f, err));
    *per_token = f.worked / (double)tokens;
out:
    di_core_destroy(f.e);
    return status;
}

/* Both orders, each in its own time; the one that is behind makes the next step. *worked: share of the time in which arrival had work. */
static di_status live_both(struct bench *b, double load, uint64_t seed, double *worked, di_error *err)
{
    di_status status = DI_OK;
    struct life f[2] = {{.b = b, .jobs = &b->jobs[0]}, {.b = b, .jobs = &b->jobs[1]}};
    double per_token, tokens = 0;
    for (int order = 0; order < 2; order++)
        make_jobs(&b->jobs[order], seed);
    TRY(calibrate(b, &per_token, err));
    for (int i = 0; i < b->n; i++)
        tokens += (double)(b->jobs[0].v[i].n_prompt + b->jobs[0].v[i].n_answer);
    for (int order = 0; order < 2; order++) {
        f[order].scale = per_token * tokens / load / b->jobs[0].v[b->n - 1].at;
        TRY(open_core(b, (enum di_prefill_order)order, &f[order].e, err));
    }
    while (!is_over(&f[0]) || !is_over(&f[1])) {
        int next = is_over(&f[0]) || (!is_over(&f[1]) && f[1].now < f[0].now);
        TRY(live_on(&f[next], err));
    }
    *worked = f[DI_PREFILL_ARRIVAL].worked / f[DI_PREFILL_ARRIVAL].now;
out:
    di_core_destroy(f[0].e);
    di_core_destroy(f[1].e);
    return status;
}

struct summary {
    double *first; /* [n] of all rounds */
    int n;
    double mean, p50, p99;
};

static void summarise_rounds(struct summary *s)
{
    double sum = 0;
    s->p50 = di_bench_median(s->first, s->n);
    for (int i = 0; i < s->n; i++)
        sum += s->first[i];
    s->mean = sum / s->n;
    s->p99 = s->first[s->n * 99 / 100];
}

/* Rounds at one load: a row of the table. The load is what the arrivals ask for, of what the engine does when it always has enough to do. */
static di_status compare_orders(struct bench *b, double load, di_error *err)
{
    di_status status = DI_OK;
    struct summary s[2] = {{0}};
    double worked = 0;
    for (int order = 0; order < 2; order++) {
        s[order].first = di_calloc((size_t)(b->n * b->rounds), sizeof *s[order].first);
        CHECK(s[order].first, err, DI_ERR_MEMORY, "bench", "out of memory");
    }
    for (int round = 0; round < b->rounds; round++) {
        double share;
        TRY(live_both(b, load, (uint64_t)round + 1, &share, err));
        worked += share / b->rounds;
        for (int order = 0; order < 2; order++)
            for (int i = 0; i < b->n; i++)
                s[order].first[s[order].n++] = b->jobs[order].v[i].first;
    }
    summarise_rounds(&s[0]);
    summarise_rounds(&s[1]);
    const struct summary *x = &s[DI_PREFILL_ARRIVAL], *y = &s[DI_PREFILL_SHORTEST];
    printf("| %.2f | %.2f | %.4g | %.4g | %.4g | %.4g | %.4g | %.4g | %.2f | %.2f | %.2f |\n", load, worked, x->mean, x->p50, x->p99,
           y->mean, y->p50, y->p99, y->mean / x->mean, y->p50 / x->p50, y->p99 / x->p99);
    fflush(stdout);
out:
    di_free(s[0].first);
    di_free(s[1].first);
    return status;
}

static void print_head(const char *what, const struct bench *b)
{
    printf("%s: %d rounds of %d requests, prompts of %d to %d tokens, answers of %d on average, %d places\n\n"
           "| load | time at work | arrival: mean | median | P99 | shortest: mean | median | P99 | ratio of means | of medians | of P99 |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|\n",
           what, b->rounds, b->n, SHORTEST, LONGEST, ANSWER, LANES);
    fflush(stdout);
}

static void set_number(struct bench *b, int n)
{
    b->n = b->jobs[0].n = b->jobs[1].n = n;
}

static di_status with_model(const struct di_bench_options *o, struct bench *b, di_error *err)
{
    di_status status = DI_OK;
    struct di_loaded l = {0};
    struct di_load_options load = {.model = o->model,
                                   .backend = "cpu",
                                   .isa = o->isa,
                                   .numerics = "bf16",
                                   .threads = o->threads ? o->threads : 1,
                                   .max_batch = LANES,
                                   .prefill_chunk = o->prefill_chunk,
                                   .context = CONTEXT,
                                   .quiet = true};
    TRY(di_load(&load, false, &l, err));
    b->l = &l;
    set_number(b, 400);
    print_head("seconds of processor time", b);
    TRY(compare_orders(b, 0.8, err));
out:
    b->l = NULL;
    di_unload(&l);
    return status;
}

di_status di_bench_order(const struct di_bench_options *o, di_error *err)
{
    enum { MOST = 2000 };
    static const double loads[] = {0.5, 0.7, 0.8, 0.9, 0.95};
    di_status status = DI_OK;
    int32_t *prompt = di_calloc(LONGEST, sizeof *prompt);
    struct job *v = di_calloc(2 * MOST, sizeof *v);
    struct bench b = {.config = {.max_batch = LANES, .prefill_chunk = (int)o->prefill_chunk, .no_reuse = true, .context = CONTEXT},
                      .rounds = (int)o->rounds,
                      .jobs = {{.v = v, .prompt = prompt}, {.v = v + MOST, .prompt = prompt}}};
    CHECK(v && prompt, err, DI_ERR_MEMORY, "bench", "out of memory");
    for (uint32_t i = 0; i < LONGEST; i++)
        prompt[i] = (int32_t)(200 + i * 2654435761u % 800);
    set_number(&b, MOST);
    if (!o->filter || strstr("virtual", o->filter)) {
        print_head("rows and 16 a step", &b);
        for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
            TRY(compare_orders(&b, loads[i], err));
        printf("\n");
    }
    if (o->model && (!o->filter || strstr("model", o->filter)))
        TRY(with_model(o, &b, err));
out:
    di_free(v);
    di_free(prompt);
    return status;
}
