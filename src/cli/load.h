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
    const char *replay, *prefill_order, *draft;
    int64_t threads, max_batch, prefill_chunk, context, states, replay_rows, draft_tokens;
    bool reuse, quiet, strict_memory;
};

/* Their table, and further rows for commands whose requests may share prefixes. Commands set other defaults by DI_OPT_PRESET. */
extern const struct di_option_table di_load_table, di_reuse_table;

/* Which tokens of a distribution are left, for commands whose options are the defaults of requests. */
struct di_truncation_options {
    int64_t top_k;
    double top_p, min_p;
};
extern const struct di_option_table di_truncation_table;

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
