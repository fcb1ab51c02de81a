/* deepinfer inspect: what is in a checkpoint, and what running it will cost. Of a large one it reads headers and samples. */
#include "backend/backend.h"
#include "checkpoint/digest.h"
#include "checkpoint/plan.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "model/model.h"

/* The plan is made of the same rows as the cache. */
_Static_assert(DI_PLAN_BLOCK_TOKENS == DI_BLOCK_TOKENS && DI_PLAN_RING_ROWS == DI_RING_ROWS && DI_PLAN_TAIL_ROWS == DI_TAIL_ROWS,
               "checkpoint/plan.h and backend/backend.h disagree");

struct options {
    const char *model;
    bool plan, json;
    int64_t context, batch, prefill_chunk, threads;
};

static const struct di_option table[] = {
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, model),
     .metavar = "DIR",
     .required = true,
     .help = "Directory with config.json and the safetensors files. Tensor data may be absent (sparse files): little more than headers is "
             "read of a large checkpoint."},
    {.name = "plan", .type = DI_OPT_BOOL, .offset = offsetof(struct options, plan), .help = "Print every memory region of a run."},
    {.name = "context",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, context),
     .min = 1,
     .max = 1 << 30,
     .metavar = "N",
     .help = "Tokens of each request in the plan; without it the longest context of the model."},
    {.name = "batch",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, batch),
     .def = "1",
     .min = 1,
     .max = 1000000,
     .metavar = "N",
     .help = "Requests at once in the plan."},
    {.name = "prefill-chunk",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, prefill_chunk),
     .def = "256",
     .min = 1,
     .max = 65536,
     .metavar = "N",
     .help = "Most rows of one step in the plan; a batch needs at least one row for each request."},
    {.name = "threads",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, threads),
     .def = "0",
     .max = 4096,
     .metavar = "N",
     .help = "Threads in the plan; 0 means all processors."},
    {.name = "json", .type = DI_OPT_BOOL, .offset = offsetof(struct options, json), .help = "Print one JSON object instead of tables."},
};

/* ---------------------------------------------------------------- numbers */

/* 1,234,567 into s. */
static const char *grouped(uint64_t x, char s[32])
{
    char *p = s + 31;
    *p = 0;
    for (int digits = 0; x || digits == 0; digits++, x /= 10) {
        if (digits && digits % 3 == 0)
            *--p = ',';
        *--p = (char)('0' + x % 10);
    }
    return p;
}

/* "  276.74 GiB": the largest unit that gives at least 1. */
static void add_human(struct di_buf *b, uint64_t bytes)
{
    static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double x = (double)bytes;
    int unit = 0;
    for (; x >= 1024 && unit < 5; unit++)
        x /= 1024;
    di_buf_addf(b, "%10.*f %s", unit ? 2 : 0, x, units[unit]);
}

/* ---------------------------------------------------------------- tables */

static void add_config(struct di_buf *b, const struct di_checkpoint *ck)
{
    const struct di_config *c = &ck->config;
    char t[32];
    di_buf_addf(b, "Model\n  %d layers of hidden size %d, %d residual streams, vocabulary %d, context %lld\n", c->num_hidden_layers,
                c->hidden_size, c->hc_mult, c->vocab_size, (long long)c->max_position_embeddings);
    di_buf_addf(b, "  attention: %d heads of %d (%d rotated), window %d, query rank %d, %d output groups of rank %d\n",
                c->num_attention_heads, c->head_dim, c->qk_rope_head_dim, c->sliding_window, c->q_lora_rank, c->o_groups, c->o_lora_rank);
    di_buf_adds(b, "  compressed KV:");
    for (int i = 0; i < c->n_kv_sources; i++)
        di_buf_addf(b, "%s layer %d (1 row per %d token%s)", i ? "," : "", c->kv_source_layer_ids[i],
                    c->compress_ratios[c->kv_source_layer_ids[i]], c->compress_ratios[c->kv_source_layer_ids[i]] == 1 ? "" : "s");
    di_buf_adds(b, c->n_kv_sources ? "\n  indexer: layers" : " none\n");
    for (int i = 0; i < c->n_index_sources; i++)
        di_buf_addf(b, " %d", c->index_source_layer_ids[i]);
    if (c->n_kv_sources)
        di_buf_addf(b, "; %d heads of %d, top %d", c->index_n_heads, c->index_head_dim, c->index_topk);
    if (c->n_kv_sources && c->candidate_source_layer_id >= 0)
        di_buf_addf(b, ", candidates of layer %d: %d blocks of %d", c->candidate_source_layer_id, c->candidate_topk_blocks,
                    c->candidate_block_size);
    if (c->n_kv_sources)
        di_buf_addc(b, '\n');
    di_buf_addf(b, "  experts: %d + %d shared, %d active, width %d\n", c->n_routed_experts, c->n_shared_experts, c->num_experts_per_tok,
                c->moe_intermediate_size);
    if (c->n_engram)
        di_buf_adds(b, "  engram: layers");
    for (int i = 0; i < c->n_engram; i++)
        di_buf_addf(b, "%s %d (%s rows)", i ? "," : "", c->engram_layer_ids[i], grouped((uint64_t)c->engram_num_embeddings[i], t));
    if (c->n_engram)
        di_buf_addf(b, "; 2- to %d-grams, %d heads of %d\n", c->engram_max_ngram_size, c->engram_n_heads, c->engram_head_dim);
    if (ck->has_draft)
        di_buf_addf(b, "  draft: %d stages, block of %d, %d experts, %d active\n", c->num_nextn_predict_layers, c->dspark_block_size,
                    c->dspark_n_routed_experts, c->dspark_num_experts_per_tok);
    if (ck->has_vision)
        di_buf_addf(b, "  vision: %d layers of %d, patches of %d, at most %d positions per image\n", c->vision.num_hidden_layers,
                    c->vision.hidden_size, c->vision.patch_size, c->vision.max_image_tokens);
}

static void add_part(struct di_buf *b, const char *name, const struct di_part_sum *s)
{
    char t[3][32];
    di_buf_addf(b, "  %-30s %9s %18s %18s", name, grouped(s->tensors, t[0]), grouped(s->parameters, t[1]), grouped(s->bytes, t[2]));
    add_human(b, s->bytes);
    di_buf_addc(b, '\n');
}

static void add_parts(struct di_buf *b, const struct di_checkpoint *ck, const struct di_part_sums *sums)
{
    struct di_part_sum text = {0}, tables = sums->part[DI_PART_ENGRAM_TABLE];
    char t[32];
    di_buf_addf(b, "\nCheckpoint: %s tensors in %zu file%s", grouped(ck->count, t), ck->n_shards, ck->n_shards == 1 ? "" : "s");
    if (ck->n_extra)
        di_buf_addf(b, ", %zu of them unknown and ignored", ck->n_extra);
    di_buf_addf(b, "\n  %-30s %9s %18s %18s\n", "part", "tensors", "parameters", "bytes");
    for (int i = 0; i < DI_PART_COUNT; i++) {
        const struct di_part_sum *s = &sums->part[i];
        if (s->tensors)
            add_part(b, di_part_name((enum di_part)i), s);
        if (i == DI_PART_DRAFT || i == DI_PART_VISION)
            continue;
        text.tensors += s->tensors;
        text.parameters += s->parameters;
        text.bytes += s->bytes;
    }
    struct di_part_sum bare = {text.tensors - tables.tensors, text.parameters - tables.parameters, text.bytes - tables.bytes};
    add_part(b, "text without engram tables", &bare);
    add_part(b, "text", &text);
    add_part(b, "everything", &sums->all);
}

static const char *place_name(enum di_plan_place place)
{
    static const char *const names[] = {
        [DI_PLACE_MAPPED] = "mapped", [DI_PLACE_ALLOCATED] = "allocated", [DI_PLACE_UNUSED] = "not used", [DI_PLACE_COPIED] = "copied"};
    return names[place];
}

static const char *kind_name(enum di_plan_kind kind)
{
    static const char *const names[] = {"weights", "cache", "state", "scratch"};
    return names[kind];
}

static void add_region(struct di_buf *b, const struct di_plan_region *r)
{
    char t[3][32];
    di_buf_addf(b, "  %-8s %-20s %-9s", kind_name(r->kind), r->name, place_name(r->place));
    if (r->bytes == DI_PLAN_UNKNOWN) {
        di_buf_addf(b, " %10s %16s %18s %14s", "", "", "not known yet", "");
    } else {
        di_buf_addf(b, " %10s %16s %18s", grouped(r->count, t[0]), grouped(r->unit_bytes, t[1]), grouped(r->bytes, t[2]));
        add_human(b, r->bytes);
    }
    di_buf_addf(b, "  %s\n", r->note);
}

static void add_plan(struct di_buf *b, const struct di_plan *p, const struct di_plan_params *params)
{
    char t[3][32];
    di_buf_addf(b, "\nMemory for a context of %lld and a batch of %lld\n", (long long)params->context, (long long)params->batch);
    di_buf_addf(b, "  %-8s %-20s %-9s %10s %16s %18s\n", "kind", "region", "place", "count", "bytes each", "bytes");
    for (int i = 0; i < p->n; i++)
        add_region(b, &p->region[i]);
    di_buf_addf(b, "\n  a block of %d tokens: %s B (%.4g B a token); state of a request: %s B\n", DI_PLAN_BLOCK_TOKENS,
                grouped(p->block_bytes, t[0]), (double)p->block_bytes / DI_PLAN_BLOCK_TOKENS, grouped(p->bytes_per_sequence, t[1]));
    di_buf_addf(b, "  mapped:    %18s", grouped(p->mapped, t[0]));
    add_human(b, p->mapped);
    di_buf_addf(b, "  read in place from the files; resident as touched\n  allocated: %18s", grouped(p->allocated, t[0]));
    add_human(b, p->allocated);
    di_buf_adds(b, p->unknown ? "  and the regions not known yet\n" : "  taken at start\n");
}

/* ---------------------------------------------------------------- JSON */

static void add_json_config(struct di_buf *b, const struct di_checkpoint *ck)
{
    const struct di_config *c = &ck->config;
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {
        {"num_hidden_layers", c->num_hidden_layers},
        {"hidden_size", c->hidden_size},
        {"vocab_size", c->vocab_size},
        {"max_position_embeddings", c->max_position_embeddings},
        {"num_attention_heads", c->num_attention_heads},
        {"head_dim", c->head_dim},
        {"sliding_window", c->sliding_window},
        {"n_routed_experts", c->n_routed_experts},
        {"num_experts_per_tok", c->num_experts_per_tok},
        {"moe_intermediate_size", c->moe_intermediate_size},
        {"index_topk", c->index_topk},
        {"hc_mult", c->hc_mult},
        {"num_nextn_predict_layers", c->num_nextn_predict_layers},
    };
    di_buf_adds(b, "\"config\":{");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        di_buf_addf(b, "%s\"%s\":%lld", i ? "," : "", fields[i].name, (long long)fields[i].value);
    di_buf_addf(b, "},\"draft\":%s,\"vision\":%s", ck->has_draft ? "true" : "false", ck->has_vision ? "true" : "false");
}

static void add_json_sum(struct di_buf *b, const struct di_part_sum *s)
{
    di_buf_addf(b, "\"tensors\":%llu,\"parameters\":%llu,\"bytes\":%llu", (unsigned long long)s->tensors, (unsigned long long)s->parameters,
                (unsigned long long)s->bytes);
}

static void add_json(struct di_buf *b, const struct di_checkpoint *ck, const struct di_part_sums *sums, const char *digest)
{
    di_buf_adds(b, "{\"model\":");
    di_json_write_string(b, di_str_c(ck->dir));
    di_buf_addf(b, ",\"digest\":\"%s\"", digest);
    di_buf_addf(b, ",\"shards\":%zu,\"extra_tensors\":%zu,", ck->n_shards, ck->n_extra);
    add_json_sum(b, &sums->all);
    di_buf_addc(b, ',');
    add_json_config(b, ck);
    di_buf_adds(b, ",\"parts\":{");
    for (int i = 0, n = 0; i < DI_PART_COUNT; i++) {
        if (sums->part[i].tensors == 0)
            continue;
        di_buf_addf(b, "%s\"%s\":{", n++ ? "," : "", di_part_name((enum di_part)i));
        add_json_sum(b, &sums->part[i]);
        di_buf_addc(b, '}');
    }
    di_buf_addc(b, '}');
}

static void add_json_plan(struct di_buf *b, const struct di_plan *p, const struct di_plan_params *params)
{
    di_buf_addf(b,
                ",\"plan\":{\"context\":%lld,\"batch\":%lld,\"block_tokens\":%d,\"block_bytes\":%llu,\"bytes_per_sequence\":%llu,"
                "\"mapped_bytes\":%llu,\"allocated_bytes\":%llu,\"unknown_regions\":%d,\"regions\":[",
                (long long)params->context, (long long)params->batch, DI_PLAN_BLOCK_TOKENS, (unsigned long long)p->block_bytes,
                (unsigned long long)p->bytes_per_sequence, (unsigned long long)p->mapped, (unsigned long long)p->allocated, p->unknown);
    for (int i = 0; i < p->n; i++) {
        const struct di_plan_region *r = &p->region[i];
        di_buf_addf(b, "%s{\"kind\":\"%s\",\"name\":\"%s\",\"place\":\"%s\",", i ? "," : "", kind_name(r->kind), r->name,
                    place_name(r->place));
        if (r->bytes == DI_PLAN_UNKNOWN)
            di_buf_adds(b, "\"bytes\":null,");
        else
            di_buf_addf(b, "\"count\":%llu,\"unit_bytes\":%llu,\"bytes\":%llu,", (unsigned long long)r->count,
                        (unsigned long long)r->unit_bytes, (unsigned long long)r->bytes);
        di_buf_addf(b, "\"note\":\"%s\"}", r->note);
    }
    di_buf_adds(b, "]}");
}

/* ---------------------------------------------------------------- the command */

/* The figures that only the model and its back end know, for this processor. */
static di_status ask_model(const struct options *opt, const struct di_config *c, struct di_plan_params *params, di_error *err)
{
    struct di_model_plan told;
    struct di_model_params model = {
        .max_rows = (int)(opt->batch > opt->prefill_chunk ? opt->batch : opt->prefill_chunk),
        .max_context = params->context,
        .threads = (int)opt->threads,
    };
    if (!di_numerics_by_name("bf16", &model.numerics))
        return di_fail(err, DI_ERR_INTERNAL, "", "the default numerics are unknown");
    di_status status = di_model_plan(c, &model, &told, err);
    if (status == DI_OK) {
        params->packed_bytes = told.packed_bytes;
        params->activation_bytes = told.activation_bytes;
        params->scratch_bytes = told.scratch_bytes;
    }
    return status;
}

static int run(const void *options)
{
    const struct options *opt = options;
    struct di_checkpoint ck = {0};
    struct di_part_sums sums;
    uint8_t digest[DI_DIGEST_BYTES];
    char hex[2 * DI_DIGEST_BYTES + 1];
    struct di_plan plan;
    struct di_buf b = {0};
    di_error err = {0};
    di_status status = DI_OK;
    TRY(di_checkpoint_open(opt->model, &ck, &err));
    TRY(di_checkpoint_digest(&ck, DI_DIGEST_WHOLE, digest, &err));
    di_digest_hex(digest, hex);
    di_part_sums(&ck.config, ck.has_draft, ck.has_vision, &sums);
    struct di_plan_params params = {
        .context = opt->context == INT64_MIN ? ck.config.max_position_embeddings : opt->context,
        .batch = opt->batch,
        .draft = ck.has_draft,
        .vision = ck.has_vision, /* neither is loaded by any command so far */
        .packed_bytes = DI_PLAN_UNKNOWN,
        .activation_bytes = DI_PLAN_UNKNOWN,
        .scratch_bytes = DI_PLAN_UNKNOWN,
    };
    if (opt->plan) {
        TRY(di_plan_make(&ck.config, &params, &plan, &err)); /* checks context and batch */
        TRY(ask_model(opt, &ck.config, &params, &err));
        TRY(di_plan_make(&ck.config, &params, &plan, &err));
    }
    if (opt->json) {
        add_json(&b, &ck, &sums, hex);
        if (opt->plan)
            add_json_plan(&b, &plan, &params);
        di_buf_adds(&b, "}\n");
    } else {
        add_config(&b, &ck);
        add_parts(&b, &ck, &sums);
        di_buf_addf(&b, "  digest %s\n", hex);
        if (opt->plan)
            add_plan(&b, &plan, &params);
    }
    TRY(di_buf_ok(&b, &err));
    TRY(di_write_text(stdout, di_buf_str(&b), &err));
out:
    di_buf_fini(&b);
    di_checkpoint_close(&ck);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("inspect", &err);
}

const struct di_command di_cmd_inspect = {
    .name = "inspect",
    .summary = "what is in a checkpoint, and what running it will cost",
    .usage = "--model DIR [--plan] [--context N] [--batch N] [--json]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run,
};
