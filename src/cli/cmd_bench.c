/* deepinfer bench: measures, and prints every figure beside the floor that was measured in the same run. */
#include "backend/backend.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/io.h"

#include <string.h>

#define FIELD(name) offsetof(struct di_bench_options, name)
static const struct di_option table[] = {
    {.name = "suite",
     .type = DI_OPT_CHOICE,
     .offset = FIELD(suite),
     .def = "kernels",
     .choices = "kernels|vector|sampler|model|cache|engine|order|vision",
     .metavar = "NAME",
     .help = "What to measure."},
    {.name = "cpu-isa",
     .type = DI_OPT_STRING,
     .offset = FIELD(isa),
     .metavar = "NAME",
     .help = "Instruction set: avx2, avx512, avx512bf16 or amx; default the best."},
    {.name = "threads",
     .type = DI_OPT_INT,
     .offset = FIELD(threads),
     .def = "0",
     .max = DI_POOL_MAX_THREADS,
     .metavar = "N",
     .help = "Threads; 0 is all processors."},
    {.name = "rounds",
     .type = DI_OPT_INT,
     .offset = FIELD(rounds),
     .def = "7",
     .min = 1,
     .max = DI_BENCH_ROUNDS,
     .metavar = "N",
     .help = "Measurements of each row; the median counts."},
    {.name = "filter",
     .type = DI_OPT_STRING,
     .offset = FIELD(filter),
     .metavar = "TEXT",
     .help = "Only rows whose name contains this text; of suite engine: overhead, queue, interface, throughput or sharing; of order: "
             "virtual or "
             "model."},
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = FIELD(model),
     .metavar = "DIR",
     .help = "Suites model, engine and order: the checkpoint."},
    {.name = "batch",
     .type = DI_OPT_INT,
     .offset = FIELD(batch),
     .def = "0",
     .max = 64,
     .metavar = "N",
     .help = "Suite model: decode N requests only; 0 is the standard list of tests."},
    {.name = "context",
     .type = DI_OPT_INT,
     .offset = FIELD(context),
     .def = "0",
     .max = 1 << 20,
     .metavar = "N",
     .help = "Suite model: decode behind N tokens only."},
    {.name = "prefill-chunk",
     .type = DI_OPT_INT,
     .offset = FIELD(prefill_chunk),
     .def = "256",
     .min = 1,
     .max = 65536,
     .metavar = "N",
     .help = "Suites model, engine and order: prompt rows of one step."},
    {.name = "profile",
     .type = DI_OPT_BOOL,
     .offset = FIELD(profile),
     .help = "Suite model: print where the time of each step goes, op by op."},
    {.name = "json",
     .type = DI_OPT_STRING,
     .offset = FIELD(json),
     .metavar = "FILE",
     .help = "Suites model, cache and vision: also write all figures to this file."},
    {.name = "trace",
     .type = DI_OPT_STRING,
     .offset = FIELD(trace),
     .metavar = "FILE",
     .help = "Suite cache: requests to replay, one JSON object a line with input_length, output_length and hash_ids."},
    {.name = "image", .type = DI_OPT_LIST, .offset = FIELD(images), .metavar = "FILE", .help = "Suite vision: also decode this picture."},
};

static const struct suite {
    const char *name;
    di_status (*run)(const struct di_bench_options *o, di_error *err);
} suites[] = {{"kernels", di_bench_kernels}, {"vector", di_bench_vector}, {"sampler", di_bench_sampler}, {"model", di_bench_model},
              {"cache", di_bench_cache},     {"engine", di_bench_engine}, {"order", di_bench_order},     {"vision", di_bench_vision}};

static int run_bench(const void *options)
{
    const struct di_bench_options *o = options;
    di_error err = {0};
    di_status status = DI_ERR_INTERNAL; /* the option table knows the names */
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (strcmp(o->suite, suites[i].name) == 0)
            status = suites[i].run(o, &err);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("bench", &err);
}

const struct di_command di_cmd_bench = {
    .name = "bench",
    .summary = "measure speed: floor, measured, percent of floor",
    .usage = "[--suite kernels|vector|sampler|model|cache|engine|order|vision] [--model DIR] [--cpu-isa NAME] [--threads N] [--rounds N] "
             "[--filter TEXT]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct di_bench_options),
    .run = run_bench,
};
