/* deepinfer inspect: what is in a checkpoint, and what running it will cost. Of a large one it reads headers and samples. */
#include "checkpoint/digest.h"
#include "cli/io.h"
#include "cli/load.h"

struct options {
    struct di_load_options load;
    int64_t cache_blocks;
    bool plan, json;
};

#define AT(field) offsetof(struct options, field)
static const struct di_option table[] = {
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_load_table},
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_reuse_table},
    {.name = "cache-blocks",
     .type = DI_OPT_INT,
     .offset = AT(cache_blocks),
     .def = "0",
     .max = INT32_MAX,
     .metavar = "N",
     .help = "Blocks of 64 tokens in the cache; 0 is enough for --max-batch requests of the full context."},
    {.name = "plan",
     .type = DI_OPT_BOOL,
     .offset = AT(plan),
     .help =
         "Print every memory region of a run with these options, which are those of serve; of generate with --no-reuse. Tensor data may "
         "be absent (sparse files)."},
    {.name = "json", .type = DI_OPT_BOOL, .offset = AT(json), .help = "Print one JSON object instead of tables."},
};

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
        di_buf_addf(b, "%s %d (%s rows)", i ? "," : "", c->engram_layer_ids[i], di_grouped((uint64_t)c->engram_num_embeddings[i], t));
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
    di_buf_addf(b, "  %-30s %9s %18s %18s", name, di_grouped(s->tensors, t[0]), di_grouped(s->parameters, t[1]),
                di_grouped(s->bytes, t[2]));
    di_add_human_bytes(b, s->bytes);
    di_buf_addc(b, '\n');
}

static void add_parts(struct di_buf *b, const struct di_checkpoint *ck, const struct di_part_sums *sums)
{
    struct di_part_sum text = {0}, tables = sums->part[DI_PART_ENGRAM_TABLE];
    char t[32];
    di_buf_addf(b, "\nCheckpoint: %s tensors in %zu file%s", di_grouped(ck->count, t), ck->n_shards, ck->n_shards == 1 ? "" : "s");
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

/* ---------------------------------------------------------------- the command */

/* The plan that an engine with these options has. */
static di_status make_plan(const struct options *opt, di_memory_plan *plan, di_error *err)
{
    di_engine_config c;
    di_engine_config_init(&c, sizeof c);
    di_load_config(&opt->load, &c);
    c.cache_blocks = (int32_t)opt->cache_blocks;
    return di_engine_plan(&c, plan, sizeof *plan, err);
}

static int run_inspect(const void *options)
{
    const struct options *opt = options;
    struct di_checkpoint ck = {0};
    struct di_part_sums sums;
    uint8_t digest[DI_DIGEST_BYTES];
    char hex[2 * DI_DIGEST_BYTES + 1];
    di_memory_plan plan;
    struct di_buf b = {0};
    di_error err = {0};
    di_status status = DI_OK;
    TRY(di_load_check_backend(&opt->load, &err));
    TRY(di_checkpoint_open(opt->load.model, &ck, &err));
    if (opt->plan)
        TRY(make_plan(opt, &plan, &err));
    TRY(di_checkpoint_digest(&ck, DI_DIGEST_WHOLE, digest, &err));
    di_digest_hex(digest, hex);
    di_part_sums(&ck.config, ck.has_draft, ck.has_vision, &sums);
    if (opt->json) {
        add_json(&b, &ck, &sums, hex);
        if (opt->plan) {
            di_buf_adds(&b, ",\"plan\":");
            di_plan_write_json(&b, &plan);
        }
        di_buf_adds(&b, "}\n");
    } else {
        add_config(&b, &ck);
        add_parts(&b, &ck, &sums);
        di_buf_addf(&b, "  digest %s\n", hex);
        if (opt->plan) {
            di_buf_addc(&b, '\n');
            di_plan_write(&b, &plan);
        }
    }
    TRY(di_buf_ok(&b, &err));
    TRY(di_write_text(stdout, di_buf_str(&b), &err));
    if (opt->plan && opt->load.strict_memory)
        TRY(di_load_check_memory(&opt->load, &plan, &err));
out:
    di_buf_fini(&b);
    di_checkpoint_close(&ck);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("inspect", &err);
}

const struct di_command di_cmd_inspect = {
    .name = "inspect",
    .summary = "what is in a checkpoint, and what running it will cost",
    .usage = "--model DIR [--plan] [--max-batch N] [--context N] [options] [--json]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_inspect,
};
