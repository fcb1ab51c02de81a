/* deepinfer bench: measures, and prints every figure beside the floor that was measured in the same run. */
#include "backend/backend.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/io.h"

#include <string.h>

#define FIELD(name) offsetof(struct di_bench_options, name)
static const struct di_option table[] = {
    {"suite", DI_OPT_CHOICE, FIELD(suite), "kernels", 0, 0, "kernels|vector|sampler|model|cache|engine|order|vision", "NAME",
     "What to measure.", false},
    {"cpu-isa", DI_OPT_STRING, FIELD(isa), NULL, 0, 0, NULL, "NAME", "Instruction set: avx2, avx512, avx512bf16 or amx; default the best.",
     false},
    {"threads", DI_OPT_INT, FIELD(threads), "0", 0, DI_POOL_MAX_THREADS, NULL, "N", "Threads; 0 is all processors.", false},
    {"rounds", DI_OPT_INT, FIELD(rounds), "7", 1, DI_BENCH_ROUNDS, NULL, "N", "Measurements of each row; the median counts.", false},
    {"filter", DI_OPT_STRING, FIELD(filter), NULL, 0, 0, NULL, "TEXT",
     "Only rows whose name contains this text; of suite engine: overhead, queue, interface, throughput or sharing; of order: virtual or "
     "model.",
     false},
    {"model", DI_OPT_STRING, FIELD(model), NULL, 0, 0, NULL, "DIR", "Suites model, engine and order: the checkpoint.", false},
    {"batch", DI_OPT_INT, FIELD(batch), "0", 0, 64, NULL, "N", "Suite model: decode N requests only; 0 is the standard list of tests.",
     false},
    {"context", DI_OPT_INT, FIELD(context), "0", 0, 1 << 20, NULL, "N", "Suite model: decode behind N tokens only.", false},
    {"prefill-chunk", DI_OPT_INT, FIELD(prefill_chunk), "256", 1, 65536, NULL, "N",
     "Suites model, engine and order: prompt rows of one step.", false},
    {"profile", DI_OPT_BOOL, FIELD(profile), "false", 0, 0, NULL, NULL, "Suite model: print where the time of each step goes, op by op.",
     false},
    {"json", DI_OPT_STRING, FIELD(json), NULL, 0, 0, NULL, "FILE", "Suites model, cache and vision: also write all figures to this file.",
     false},
    {"trace", DI_OPT_STRING, FIELD(trace), NULL, 0, 0, NULL, "FILE",
     "Suite cache: requests to replay, one JSON object a line with input_length, output_length and hash_ids.", false},
    {"image", DI_OPT_LIST, FIELD(images), NULL, 0, 0, NULL, "FILE", "Suite vision: also decode this picture.", false},
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
