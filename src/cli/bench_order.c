/* Suite order: what --prefill-order changes. Requests with prompts of very different lengths come at random; the time to the first token in
 * both orders, over the same arrivals. Time is virtual: a step takes what it costs, and when nothing is left to do it is the time of the
 * next arrival. So a run needs no waiting, and other work on the machine counts for little. (a) With a model that computes nothing a step
 * costs as many units as it has rows, and some. (b) With a real one, it costs the processor time of the process. */
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* One life of an engine. `model` NULL: the one that computes nothing. */
struct life {
    struct di_loaded *l;
    struct di_core_config config;
    bool at_once; /* all arrive at the beginning */
};

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

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

static di_status compute_nothing(void *ctx, const struct di_step *step, di_error *err)
{
    (void)ctx, (void)err;
    memset(step->logits, 0, (size_t)step->n_logits * VOCAB * sizeof *step->logits);
    return DI_OK;
}

static di_status open_core(const struct life *life, struct di_core **out, di_error *err)
{
    struct di_core_null n = {
        .vocab = VOCAB, .context = CONTEXT, .compute = compute_nothing, .window = 128, .layers = 2, .numerics = "null"};
    n.layout = (struct di_kv_layout){.block_bytes = 64 * 8,
                                     .ring_bytes = DI_RING_ROWS * 8,
                                     .tail_bytes = 64,
                                     .n_sources = 1,
                                     .ratio = {1},
                                     .key_row_bytes = 8,
                                     .ring_layers = 1,
                                     .window_row_bytes = 8};
    return life->l ? di_core_create(life->l->model, &life->config, out, err) : di_core_create_null(&n, &life->config, out, err);
}

static bool on_token(void *ctx, const struct di_sample *s)
{
    struct job *j = ctx;
    (void)s;
    j->fresh = j->fresh || j->first < 0;
    return true;
}

static di_status submit(struct di_core *e, struct jobs *jobs, struct job *j, di_error *err)
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

/* Run all jobs; arrivals are stretched by `scale`. *span: until the last answer was done. */
static di_status live(const struct life *life, struct jobs *jobs, double scale, double *span, di_error *err)
{
    di_status status = DI_OK;
    struct di_core *e = NULL;
    double now = 0;
    int sent = 0;
    bool busy = false;
    TRY(open_core(life, &e, err));
    while (sent < jobs->n || busy) {
        if (!busy && sent < jobs->n && !life->at_once && jobs->v[sent].at * scale > now)
            now = jobs->v[sent].at * scale;
        for (; sent < jobs->n && (life->at_once || jobs->v[sent].at * scale <= now); sent++)
            TRY(submit(e, jobs, &jobs->v[sent], err));
        struct di_core_stats before = di_core_stats(e);
        double start = cpu_seconds();
        TRY(di_core_step(e, &busy, err));
        struct di_core_stats after = di_core_stats(e);
        uint64_t rows = after.prompt_rows + after.decode_rows - before.prompt_rows - before.decode_rows;
        now += life->l ? cpu_seconds() - start : rows ? (double)(rows + STEP_UNITS) : 0;
        for (int i = 0; i < sent; i++)
            if (jobs->v[i].fresh) {
                jobs->v[i].fresh = false;
                jobs->v[i].first = now - jobs->v[i].at * scale;
            }
    }
    *span = now;
out:
    di_core_destroy(e);
    return status;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    double *first; /* [n] of all rounds; sorted by summarise */
    int n;
    double mean, p50, p99;
};

static void summarise(struct summary *s)
{
    double sum = 0;
    qsort(s->first, (size_t)s->n, sizeof *s->first, compare_doubles);
    for (int i = 0; i < s->n; i++)
        sum += s->first[i];
    s->mean = sum / s->n;
    s->p50 = s->first[s->n / 2];
    s->p99 = s->first[s->n * 99 / 100];
}

/* `rounds` pairs of runs at one load: a row of the table. The load is what the arrivals ask for, of what the engine does when all are there
 * at once. */
static di_status compare(struct life *life, struct jobs *jobs, double load, int rounds, di_error *err)
{
    di_status status = DI_OK;
    struct summary s[2] = {{0}};
    double all, span;
    for (int order = 0; order < 2; order++) {
        s[order].first = di_calloc((size_t)(jobs->n * rounds), sizeof *s[order].first);
        CHECK(s[order].first, err, DI_ERR_MEMORY, "bench", "out of memory");
    }
    for (int round = 0; round < rounds; round++) {
        make_jobs(jobs, (uint64_t)round + 1);
        life->at_once = true;
        life->config.prefill_order = DI_PREFILL_ARRIVAL;
        TRY(live(life, jobs, 0, &all, err));
        life->at_once = false;
        for (int k = 0; k < 2; k++) {
            int order = (k + round) % 2;
            life->config.prefill_order = (enum di_prefill_order)order;
            TRY(live(life, jobs, all / load / jobs->v[jobs->n - 1].at, &span, err));
            for (int i = 0; i < jobs->n; i++)
                s[order].first[s[order].n++] = jobs->v[i].first;
        }
    }
    summarise(&s[0]);
    summarise(&s[1]);
    const struct summary *a = &s[DI_PREFILL_ARRIVAL], *b = &s[DI_PREFILL_SHORTEST];
    printf("| %.2f | %.4g | %.4g | %.4g | %.4g | %.4g | %.4g | %.2f | %.2f | %.2f |\n", load, a->mean, a->p50, a->p99, b->mean, b->p50,
           b->p99, b->mean / a->mean, b->p50 / a->p50, b->p99 / a->p99);
    fflush(stdout);
out:
    di_free(s[0].first);
    di_free(s[1].first);
    return status;
}

static void print_head(const char *what, int n, int rounds)
{
    printf("%s: %d rounds of %d requests, prompts of %d to %d tokens, answers of %d on average, %d places\n\n"
           "| load | arrival: mean | median | P99 | shortest: mean | median | P99 | ratio of means | of medians | of P99 |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n",
           what, rounds, n, SHORTEST, LONGEST, ANSWER, LANES);
}

static di_status with_model(const struct di_bench_options *o, struct life *life, struct jobs *jobs, di_error *err)
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
    life->l = &l;
    jobs->n = 200;
    print_head("seconds of processor time", jobs->n, (int)o->rounds);
    TRY(compare(life, jobs, 0.8, (int)o->rounds, err));
out:
    life->l = NULL;
    di_unload(&l);
    return status;
}

di_status di_bench_order(const struct di_bench_options *o, di_error *err)
{
    static const double loads[] = {0.5, 0.7, 0.8, 0.9, 0.95};
    di_status status = DI_OK;
    struct jobs jobs = {.n = 2000};
    struct life life = {.config = {.max_batch = LANES, .prefill_chunk = (int)o->prefill_chunk, .no_reuse = true, .context = CONTEXT}};
    jobs.v = di_calloc((size_t)jobs.n, sizeof *jobs.v);
    jobs.prompt = di_calloc(LONGEST, sizeof *jobs.prompt);
    CHECK(jobs.v && jobs.prompt, err, DI_ERR_MEMORY, "bench", "out of memory");
    for (uint32_t i = 0; i < LONGEST; i++)
        jobs.prompt[i] = (int32_t)(200 + i * 2654435761u % 800);
    print_head("rows and 16 a step", jobs.n, (int)o->rounds);
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        TRY(compare(&life, &jobs, loads[i], (int)o->rounds, err));
    printf("\n");
    if (o->model)
        TRY(with_model(o, &life, &jobs, err));
out:
    di_free(jobs.v);
    di_free(jobs.prompt);
    return status;
}
