/* Opening a model for the commands that run it: the options they share, the memory plan, progress. Those that generate open an engine of
 * the public API; those that look at logits load the model itself. */
#ifndef DI_CLI_LOAD_H
#define DI_CLI_LOAD_H

#include "base/threads.h"
#include "cli/commands.h"
#include "engine/core.h"
#include "api/text_model.h"

struct di_load_options {
    const char *model, *backend, *isa, *numerics;
    const char *replay, *prefill_order;
    int64_t threads, max_batch, prefill_chunk, context, states, replay_rows;
    bool reuse, quiet, strict_memory;
};

/* Rows of an option table whose struct has a member `load`; TYPE is that struct. */
#define DI_LOAD_ROWS(TYPE, BATCH)                                                                                                           \
    {"model", DI_OPT_STRING, offsetof(TYPE, load.model), NULL, 0, 0, NULL, "DIR", "Model directory in the official checkpoint layout.",     \
     true},                                                                                                                                 \
        {"backend", DI_OPT_CHOICE, offsetof(TYPE, load.backend), "cpu", 0, 0, "cpu|cuda", NULL, "Where the network is computed.", false},   \
        {"cpu-isa",                                                                                                                         \
         DI_OPT_STRING,                                                                                                                     \
         offsetof(TYPE, load.isa),                                                                                                          \
         NULL,                                                                                                                              \
         0,                                                                                                                                 \
         0,                                                                                                                                 \
         NULL,                                                                                                                              \
         "NAME",                                                                                                                            \
         "Instruction set: ref, avx2, avx512, avx512bf16 or amx; default the best of this processor.",                                      \
         false},                                                                                                                            \
        {"numerics",                                                                                                                        \
         DI_OPT_CHOICE,                                                                                                                     \
         offsetof(TYPE, load.numerics),                                                                                                     \
         "bf16",                                                                                                                            \
         0,                                                                                                                                 \
         0,                                                                                                                                 \
         "bf16|bf16-woa8|f32r|f32|f32-noquant",                                                                                             \
         NULL,                                                                                                                              \
         "Roundings and quantisers; the f32 modes exist in the reference only, for proof.",                                                 \
         false},                                                                                                                            \
        {"threads", DI_OPT_INT, offsetof(TYPE, load.threads),                                                                               \
         "0",       0,          DI_POOL_MAX_THREADS,                                                                                        \
         NULL,      "N",        "Threads; 0 is all processors that this process may use.",                                                  \
         false},                                                                                                                            \
        {"max-batch", DI_OPT_INT, offsetof(TYPE, load.max_batch), BATCH, 1, 1024, NULL, "N", "Requests that run at the same time.", false}, \
        {"prefill-chunk", DI_OPT_INT, offsetof(TYPE, load.prefill_chunk), "256", 1, 65536, NULL, "N", "Prompt rows of one step.", false},   \
        {"context", DI_OPT_INT, offsetof(TYPE, load.context),                                                                               \
         "0",       0,          1 << 30,                                                                                                    \
         NULL,      "N",        "Tokens of one request, prompt and answer; 0 is the model's limit, at most 65,536.",                        \
         false},                                                                                                                            \
        {"strict-memory",                                                                                                                   \
         DI_OPT_BOOL,                                                                                                                       \
         offsetof(TYPE, load.strict_memory),                                                                                                \
         "false",                                                                                                                           \
         0,                                                                                                                                 \
         0,                                                                                                                                 \
         NULL,                                                                                                                              \
         NULL,                                                                                                                              \
         "Refuse to load what takes more memory than the machine and its control group have left; else only a warning.",                    \
         false},                                                                                                                            \
    {                                                                                                                                       \
        "quiet", DI_OPT_BOOL, offsetof(TYPE, load.quiet), "false", 0, 0, NULL, NULL, "No memory plan and no progress on stderr.", false     \
    }

/* Further rows of commands whose requests may share prefixes. */
#define DI_REUSE_ROWS(TYPE, REUSE)                                                                                                         \
    {"reuse",                                                                                                                              \
     DI_OPT_BOOL,                                                                                                                          \
     offsetof(TYPE, load.reuse),                                                                                                           \
     REUSE,                                                                                                                                \
     0,                                                                                                                                    \
     0,                                                                                                                                    \
     NULL,                                                                                                                                 \
     NULL,                                                                                                                                 \
     "Reuse what earlier requests computed for the same beginning. The answers are the same bits; only cached_tokens shows it.",           \
     false},                                                                                                                               \
        {"state-slots", DI_OPT_INT, offsetof(TYPE, load.states),                                                                           \
         "0",           0,          DI_MAX_STATES,                                                                                         \
         NULL,          "N",        "Snapshots of request state kept for --reuse; 0 is a quarter of the cache's bytes, at least 64.",      \
         false},                                                                                                                           \
        {"prefill-order",                                                                                                                  \
         DI_OPT_CHOICE,                                                                                                                    \
         offsetof(TYPE, load.prefill_order),                                                                                               \
         "shortest",                                                                                                                       \
         0,                                                                                                                                \
         0,                                                                                                                                \
         "shortest|arrival",                                                                                                               \
         NULL,                                                                                                                             \
         "Which prompt is computed first: the one with the least left to compute (nobody waits for ever), or whoever came first.",         \
         false},                                                                                                                           \
        {"replay",                                                                                                                         \
         DI_OPT_CHOICE,                                                                                                                    \
         offsetof(TYPE, load.replay),                                                                                                      \
         "exact",                                                                                                                          \
         0,                                                                                                                                \
         0,                                                                                                                                \
         "exact|bounded|mask",                                                                                                             \
         NULL,                                                                                                                             \
         "bounded: half of the layers computes the last --replay-rows tokens of a prompt only; faster, approximate. mask: the same bits, " \
         "all rows computed (for tests).",                                                                                                 \
         false},                                                                                                                           \
    {                                                                                                                                      \
        "replay-rows", DI_OPT_INT, offsetof(TYPE, load.replay_rows), "0", 0, 1 << 30, NULL, "N",                                           \
            "Tokens at the end of a prompt that --replay bounded computes in all layers; 0 is the window and twelve: 140 for 128.", false  \
    }

/* What these options mean for an engine; `config` is initialised. Strings are borrowed. */
void di_load_config(const struct di_load_options *o, di_engine_config *config);
/* DI_ERR_UNSUPPORTED for a back end that this build does not have. */
di_status di_load_check_backend(const struct di_load_options *o, di_error *err);
/* Compare a plan with what is left of the machine's memory: a warning, with --strict-memory DI_ERR_LIMIT. Weights that are read in place may
 * be dropped and read again, so they are not asked for. */
di_status di_load_check_memory(const struct di_load_options *o, const di_memory_plan *plan, di_error *err);
/* Print a plan on stderr, then check it. */
di_status di_load_show_plan(const struct di_load_options *o, const di_memory_plan *plan, di_error *err);
/* For the progress of loading: on a terminal it is shown; first of all what the program takes beside the plan. Begin with .plan set, the
 * rest zero. */
struct di_load_watch {
    di_memory_plan plan;
    bool told;
    int percent;
};
void di_load_progress(void *watch, uint64_t done, uint64_t total);
/* Said where answers are approximate. */
void di_load_note(const struct di_load_options *o);
/* An engine with these options; the memory plan and progress go to stderr. *out is closed with di_engine_close. */
di_status di_load_engine(const struct di_load_options *o, di_engine **out, di_error *err);

struct di_loaded {
    struct di_config config;
    struct di_text_model text;
    struct di_model *model;
    struct di_core_config engine;
    int64_t context;
};

/* Read config and tokenizer, print the memory plan, load the weights with progress. Without `with_text` a model directory may lack
 * tokenizer.json, as those of golden vectors do: the engram token map is then the tensor engram_token_map of vectors.safetensors there. */
di_status di_load(const struct di_load_options *o, bool with_text, struct di_loaded *out, di_error *err);
void di_unload(struct di_loaded *l);

#endif
