/* deepinfer bench: measures, and prints every figure beside the floor that was measured in the same run. */
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/io.h"

#include <string.h>

#define FIELD(name) offsetof(struct di_bench_options, name)
static const struct di_option table[] = {
    {"suite", DI_OPT_CHOICE, FIELD(suite), "kernels", 0, 0, "kernels|vector", "NAME", "What to measure.", false},
    {"cpu-isa", DI_OPT_STRING, FIELD(isa), NULL, 0, 0, NULL, "NAME", "Instruction set: avx2, avx512, avx512bf16 or amx; default the best.", false},
    {"threads", DI_OPT_INT, FIELD(threads), "0", 0, DI_POOL_MAX_THREADS, NULL, "N", "Threads; 0 is all processors.", false},
    {"rounds", DI_OPT_INT, FIELD(rounds), "7", 1, 1000, NULL, "N", "Measurements of each row; the median counts.", false},
    {"filter", DI_OPT_STRING, FIELD(filter), NULL, 0, 0, NULL, "TEXT", "Only rows whose name contains this text.", false},
};

static int run(const void *options)
{
    const struct di_bench_options *o = options;
    di_error err = {0};
    di_status status = strcmp(o->suite, "vector") == 0 ? di_bench_vector(o, &err) : di_bench_kernels(o, &err);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("bench", &err);
}

const struct di_command di_cmd_bench = {
    .name = "bench",
    .summary = "measure speed: floor, measured, percent of floor",
    .usage = "[--suite kernels|vector] [--cpu-isa NAME] [--threads N] [--rounds N] [--filter TEXT]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct di_bench_options),
    .run = run,
};
