#include "cli/load.h"

#include "base/machine.h"
#include "engine/score.h"

#include <stdio.h>
#include <unistd.h>

#define AT(field) offsetof(struct di_load_options, field)
static const struct di_option load_rows[] = {
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = AT(model),
     .metavar = "DIR",
     .help = "Model directory in the official checkpoint layout.",
     .required = true},
    {.name = "backend",
     .type = DI_OPT_CHOICE,
     .offset = AT(backend),
     .def = "cpu",
     .choices = "cpu|cuda",
     .help = "Where the network is computed."},
    {.name = "cpu-isa",
     .type = DI_OPT_STRING,
     .offset = AT(isa),
     .metavar = "NAME",
     .help = "Instruction set: ref, avx2, avx512, avx512bf16 or amx; default the best of this processor."},
    {.name = "numerics",
     .type = DI_OPT_CHOICE,
     .offset = AT(numerics),
     .def = "bf16",
     .choices = "bf16|bf16-woa8|f32r|f32|f32-noquant",
     .help = "Roundings and quantisers; the f32 modes exist in the reference only, for proof."},
    {.name = "threads",
     .type = DI_OPT_INT,
     .offset = AT(threads),
     .def = "0",
     .max = DI_POOL_MAX_THREADS,
     .metavar = "N",
     .help = "Threads; 0 is all processors that this process may use."},
    {.name = "max-batch",
     .type = DI_OPT_INT,
     .offset = AT(max_batch),
     .def = "16",
     .min = 1,
     .max = 1024,
     .metavar = "N",
     .help = "Requests that run at the same time."},
    {.name = "prefill-chunk",
     .type = DI_OPT_INT,
     .offset = AT(prefill_chunk),
     .def = "256",
     .min = 1,
     .max = 65536,
     .metavar = "N",
     .help = "Prompt rows of one step."},
    {.name = "context",
     .type = DI_OPT_INT,
     .offset = AT(context),
     .def = "0",
     .max = 1 << 30,
     .metavar = "N",
     .help = "Tokens of one request, prompt and answer; 0 is the model's limit, at most 65,536."},
    {.name = "strict-memory",
     .type = DI_OPT_BOOL,
     .offset = AT(strict_memory),
     .help = "Refuse to load what takes more memory than the machine and its control group have left; else only a warning."},
    {.name = "quiet", .type = DI_OPT_BOOL, .offset = AT(quiet), .help = "No memory plan and no progress on stderr."},
};
static const struct di_option reuse_rows[] = {
    {.name = "reuse",
     .type = DI_OPT_BOOL,
     .offset = AT(reuse),
     .def = "true",
     .help = "Reuse what earlier requests computed for the same beginning. The answers are the same bits; only cached_tokens shows it."},
    {.name = "state-slots",
     .type = DI_OPT_INT,
     .offset = AT(states),
     .def = "0",
     .max = DI_MAX_STATES,
     .metavar = "N",
     .help = "Snapshots of request state kept for --reuse; 0 is a quarter of the cache's bytes, at least 64."},
    {.name = "prefill-order",
     .type = DI_OPT_CHOICE,
     .offset = AT(prefill_order),
     .def = "shortest",
     .choices = "shortest|arrival",
     .help = "Which prompt is computed first: the one with the least left to compute (nobody waits for ever), or whoever came first."},
    {.name = "replay",
     .type = DI_OPT_CHOICE,
     .offset = AT(replay),
     .def = "exact",
     .choices = "exact|bounded|mask",
     .help =
         "bounded: half of the layers computes the last --replay-rows tokens of a prompt only; faster, approximate. mask: the same bits, "
         "all rows computed (for tests)."},
    {.name = "replay-rows",
     .type = DI_OPT_INT,
     .offset = AT(replay_rows),
     .def = "0",
     .max = 1 << 30,
     .metavar = "N",
     .help = "Tokens at the end of a prompt that --replay bounded computes in all layers; 0 is the window and twelve: 140 for 128."},
    {.name = "draft",
     .type = DI_OPT_CHOICE,
     .offset = AT(draft),
     .def = "off",
     .choices = "off|static",
     .help =
         "static: the model's draft guesses --draft-tokens tokens of every answer, which the next step verifies. The answers are the same "
         "bits."},
    {.name = "draft-tokens",
     .type = DI_OPT_INT,
     .offset = AT(draft_tokens),
     .def = "0",
     .max = DI_MAX_DRAFTS,
     .metavar = "N",
     .help = "Guessed tokens of an answer that a step verifies with --draft static; 0 is as many as the draft makes."},
};
#undef AT
#define AT(field) offsetof(struct di_truncation_options, field)
static const struct di_option truncation_rows[] = {
    {.name = "top-p",
     .type = DI_OPT_DOUBLE,
     .offset = AT(top_p),
     .min = 1e-9,
     .max = 1,
     .metavar = "P",
     .help = "Sample from the likeliest tokens that together have probability P."},
    {.name = "top-k",
     .type = DI_OPT_INT,
     .offset = AT(top_k),
     .def = "0",
     .min = -1,
     .max = 1 << 30,
     .metavar = "K",
     .help = "Sample from the K likeliest tokens; 0 or -1 is all."},
    {.name = "min-p",
     .type = DI_OPT_DOUBLE,
     .offset = AT(min_p),
     .def = "0",
     .max = 1,
     .metavar = "P",
     .help = "Drop tokens with less than P times the largest probability."},
};
#undef AT
const struct di_option_table di_load_table = {load_rows, sizeof load_rows / sizeof *load_rows};
const struct di_option_table di_reuse_table = {reuse_rows, sizeof reuse_rows / sizeof *reuse_rows};
const struct di_option_table di_truncation_table = {truncation_rows, sizeof truncation_rows / sizeof *truncation_rows};

/* Resident bytes of the process so far: program, libraries, tokenizer. 0 where /proc is missing. */
static uint64_t resident(void)
{
    unsigned long long size, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &pages) != 2)
        pages = 0;
    fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* ---------------------------------------------------------------- the plan */

void di_load_progress(void *watch, uint64_t done, uint64_t total)
{
    struct di_load_watch *w = watch;
    int percent = total ? (int)(done * 100 / total) : 100;
    if (!w->told) {
        uint64_t program = resident();
        fprintf(stderr, "memory (MiB): plan %.1f, program %.1f; total %.1f at most\n", mib(w->plan.total), mib(program),
                mib(w->plan.total + program));
    }
    if (isatty(STDERR_FILENO) && (!w->told || percent > w->percent))
        fprintf(stderr, "\rloading weights: %3d %%%s", percent, percent == 100 ? "\n" : "");
    w->percent = percent;
    w->told = true;
}

di_status di_load_check_memory(const struct di_load_options *o, const di_memory_plan *plan, di_error *err)
{
    uint64_t left = di_machine_memory(""), taken = di_plan_taken(plan);
    if (taken > left) {
        if (o->strict_memory)
            return di_fail(err, DI_ERR_LIMIT, "strict-memory",
                           "the plan takes %.1f MiB at start, and the machine or the control group has %.1f MiB left; smaller --max-batch, "
                           "--context, --cache-blocks or --state-slots take less",
                           mib(taken), mib(left));
        if (!o->quiet)
            fprintf(stderr, "warning: the plan takes %.1f MiB at start, and the machine or the control group has %.1f MiB left\n",
                    mib(taken), mib(left));
    } else if (plan->total > left && !o->quiet) {
        fprintf(stderr, "warning: weights of %.1f MiB are read in place where %.1f MiB are left: they will be read from the files again\n",
                mib(plan->weights_mapped), mib(left - taken));
    }
    return DI_OK;
}

di_status di_load_show_plan(const struct di_load_options *o, const di_memory_plan *plan, di_error *err)
{
    struct di_buf b = {0};
    di_status status = DI_OK;
    if (!o->quiet) {
        di_plan_write(&b, plan);
        TRY(di_buf_ok(&b, err));
        fputs(b.p, stderr);
    }
    TRY(di_load_check_memory(o, plan, err));
out:
    di_buf_fini(&b);
    return status;
}

/* ---------------------------------------------------------------- an engine */

di_status di_load_check_backend(const struct di_load_options *o, di_error *err)
{
    if (strcmp(o->backend, "cpu") != 0)
        return di_fail(err, DI_ERR_UNSUPPORTED, "backend", "the %s back end is not part of this version", o->backend);
    return DI_OK;
}

void di_load_config(const struct di_load_options *o, di_engine_config *c)
{
    c->model = o->model;
    c->isa = o->isa;
    c->numerics = o->numerics;
    c->threads = (int32_t)o->threads;
    c->max_batch = (int32_t)o->max_batch;
    c->prefill_chunk = (int32_t)o->prefill_chunk;
    c->context = o->context;
    c->no_reuse = !o->reuse;
    c->state_slots = (int32_t)o->states;
    c->replay = o->replay;
    c->replay_rows = (int32_t)o->replay_rows;
    c->prefill_order = o->prefill_order;
    c->draft = o->draft;
    c->draft_tokens = (int32_t)o->draft_tokens;
}

void di_load_note(const struct di_load_options *o)
{
    if (o->replay && strcmp(o->replay, "exact") != 0)
        fprintf(stderr, "note: with --replay %s the answers to long prompts are approximate\n", o->replay);
}

di_status di_load_engine(const struct di_load_options *o, di_engine **out, di_error *err)
{
    di_status status = DI_OK;
    di_engine_config c;
    struct di_load_watch watch = {0};
    *out = NULL;
    TRY(di_load_check_backend(o, err));
    di_engine_config_init(&c, sizeof c);
    di_load_config(o, &c);
    TRY(di_engine_plan(&c, &watch.plan, sizeof watch.plan, err));
    TRY(di_load_show_plan(o, &watch.plan, err));
    if (!o->quiet) {
        c.progress = di_load_progress;
        c.progress_context = &watch;
    }
    TRY(di_engine_open(&c, out, err));
    di_load_note(o);
out:
    return status;
}

/* ---------------------------------------------------------------- a model */

/* The map of a folder of golden vectors. */
static di_status read_token_map(const char *dir, const struct di_config *c, struct di_text_model *out, di_error *err)
{
    struct di_safetensors st = {0};
    struct di_buf path = {0};
    di_status status = DI_OK;
    di_buf_addf(&path, "%s/vectors.safetensors", dir);
    TRY(di_buf_ok(&path, err));
    TRY(di_safetensors_open(path.p, &st, err));
    const struct di_tensor *t = di_safetensors_find(&st, "engram_token_map");
    CHECK(t && t->dtype == DI_DT_I32 && t->bytes == (size_t)c->vocab_size * sizeof(int32_t), err, DI_ERR_FORMAT, path.p,
          "has no tensor engram_token_map with an int32 for each of %d ids", c->vocab_size);
    out->token_map = di_malloc(t->bytes);
    CHECK(out->token_map, err, DI_ERR_MEMORY, "", "out of memory for the token map");
    memcpy(out->token_map, t->data, t->bytes);
    TRY(di_safetensors_check(&st, err));
out:
    di_safetensors_close(&st);
    di_buf_fini(&path);
    return status;
}

static di_status load_text(const char *dir, bool needed, struct di_loaded *out, di_error *err)
{
    di_error first = {0}, second;
    if (!needed && out->config.n_engram == 0)
        return DI_OK;
    di_status status = di_text_model_load(dir, &out->config, &out->text, &first);
    if (status == DI_ERR_NOT_FOUND && !needed && read_token_map(dir, &out->config, &out->text, &second) == DI_OK)
        return DI_OK;
    *err = first;
    return status;
}

/* One request, without an engine around it. */
static di_status plan_model(const struct di_loaded *l, const struct di_model_params *params, di_memory_plan *plan, di_error *err)
{
    struct di_kv_layout layout;
    plan->max_batch = 1;
    di_kv_layout_init(&layout, &l->config, params->numerics);
    di_status status = di_model_plan(&l->config, params, plan, err);
    if (status != DI_OK)
        return status;
    di_kv_store_plan(&layout, 1, di_kv_blocks_for(l->context), l->context, plan);
    di_score_plan(&l->config, plan);
    return di_plan_check(plan, err);
}

di_status di_load(const struct di_load_options *o, bool with_text, struct di_loaded *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_load_watch watch = {0};
    *out = (struct di_loaded){0};
    TRY(di_load_check_backend(o, err));
    TRY(di_config_load(o->model, &out->config, err));
    CHECK(o->context <= out->config.max_position_embeddings, err, DI_ERR_INVALID, "context", "the model's limit is %lld tokens",
          (long long)out->config.max_position_embeddings);
    out->engine = (struct di_core_config){
        .max_batch = (int)o->max_batch, .prefill_chunk = (int)o->prefill_chunk, .context = o->context, .no_reuse = !o->reuse};
    out->context = di_core_context(&out->config, &out->engine);
    TRY(load_text(o->model, with_text, out, err));
    out->engine.banned = out->text.banned;
    struct di_model_params p = {.max_rows = di_core_max_rows(&out->engine),
                                .max_context = out->context,
                                .threads = (int)o->threads,
                                .isa = o->isa,
                                .token_map = out->text.token_map};
    di_numerics_by_name(o->numerics, &p.numerics); /* the option table knows the names */
    TRY(plan_model(out, &p, &watch.plan, err));
    TRY(di_load_show_plan(o, &watch.plan, err));
    if (!o->quiet) {
        p.progress = di_load_progress;
        p.progress_ctx = &watch;
    }
    TRY(di_model_open(o->model, &p, &out->model, err));
out:
    if (status != DI_OK)
        di_unload(out);
    return status;
}

void di_unload(struct di_loaded *l)
{
    di_model_close(l->model);
    di_text_model_fini(&l->text);
    *l = (struct di_loaded){0};
}
