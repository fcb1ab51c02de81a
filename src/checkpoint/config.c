#include "checkpoint/config.h"

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/engram_hash.h"

#define MAX_CONFIG ((size_t)4 << 20) /* bytes of a config.json */

enum kind { INT, INT64, DOUBLE };
enum group { TEXT, ENGRAM, DRAFT, VISION, ROPE, TOP }; /* ENGRAM and DRAFT are needed only where the config has such layers */

struct field {
    const char *name;
    enum group group;
    enum kind kind;
    size_t offset;
    double min, max; /* all limits are exact in a double */
    int multiple;    /* 0: any */
};

/* The formatter takes the braces of these macros for blocks. */
/* clang-format off */
#define I(group, name, min, max) {#name, group, INT, offsetof(struct di_config, name), min, max, 0}
#define M32(name, max) {#name, TEXT, INT, offsetof(struct di_config, name), 32, max, 32}
#define L(group, name, min, max) {#name, group, INT64, offsetof(struct di_config, name), min, max, 0}
#define D(group, name, min, max) {#name, group, DOUBLE, offsetof(struct di_config, name), min, max, 0}
#define V(name, kind, min, max) {#name, VISION, kind, offsetof(struct di_config, vision.name), min, max, 0}
#define R(name, kind, min, max) {#name, ROPE, kind, offsetof(struct di_config, rope_##name), min, max, 0}
/* clang-format on */

/* The upper limits are far above any model; they keep every product of sizes below 2^63. */
static const struct field fields[] = {
    I(TOP, bos_token_id, 0, 1 << 24),
    I(TOP, eos_token_id, 0, 1 << 24),
    I(TOP, pad_token_id, 0, 1 << 24),
    I(TOP, image_token_id, 0, 1 << 24),
    I(TEXT, vocab_size, 1, 1 << 24),
    M32(hidden_size, 1 << 16),
    M32(moe_intermediate_size, 1 << 16),
    I(TEXT, num_hidden_layers, 1, DI_MAX_LAYERS),
    I(TEXT, num_attention_heads, 1, 1024),
    M32(head_dim, 4096),
    I(TEXT, qk_rope_head_dim, 2, 1024),
    M32(q_lora_rank, 1 << 16),
    M32(o_lora_rank, 1 << 16),
    I(TEXT, o_groups, 1, 1024),
    I(TEXT, n_routed_experts, 1, 4096),
    I(TEXT, n_shared_experts, 1, 1),
    I(TEXT, num_experts_per_tok, 1, DI_MAX_EXPERTS_PER_TOK),
    I(TEXT, sliding_window, 1, 128), /* the window rings are made for 128 (spec §6) */
    I(TEXT, index_n_heads, 1, 1024),
    M32(index_head_dim, 4096),
    I(TEXT, index_topk, 1, 1 << 20),
    I(TEXT, candidate_source_layer_id, -1, DI_MAX_LAYERS),
    I(TEXT, candidate_topk_blocks, 1, 1 << 20),
    I(TEXT, candidate_block_size, 1, 1 << 16),
    I(TEXT, hc_mult, 1, DI_MAX_STREAMS),
    I(TEXT, hc_sinkhorn_iters, 1, 1000),
    L(TEXT, max_position_embeddings, 1, 1 << 30),
    D(TEXT, swiglu_limit, 1e-30, 1e30),
    D(TEXT, rms_norm_eps, 0, 1),
    D(TEXT, rope_theta, 1, 1e30),
    D(TEXT, compress_rope_theta, 1, 1e30),
    D(TEXT, routed_scaling_factor, 1e-30, 1e30),
    D(TEXT, hc_eps, 0, 1),
    R(factor, DOUBLE, 1, 1e6),
    R(beta_fast, DOUBLE, 1e-6, 1e6),
    R(beta_slow, DOUBLE, 1e-6, 1e6),
    R(original_max_position_embeddings, INT64, 1, 1 << 30),
    I(ENGRAM, engram_max_ngram_size, 2, DI_MAX_NGRAM),
    I(ENGRAM, engram_n_heads, 1, DI_MAX_ENGRAM_HEADS),
    {"engram_head_dim", ENGRAM, INT, offsetof(struct di_config, engram_head_dim), 32, 4096, 32},
    I(ENGRAM, engram_pad_token_id, 0, 1 << 24),
    I(ENGRAM, engram_compressed_vocab_size, 1, 1 << 24),
    L(ENGRAM, engram_vocab_size, 2, 1 << 30),
    I(TEXT, num_nextn_predict_layers, 0, DI_MAX_LAYERS),
    I(DRAFT, dspark_block_size, 1, 64),
    I(DRAFT, dspark_noise_token_id, 0, 1 << 24),
    I(DRAFT, dspark_markov_rank, 1, 1 << 16),
    I(DRAFT, dspark_n_routed_experts, 1, 4096),
    I(DRAFT, dspark_num_experts_per_tok, 1, DI_MAX_EXPERTS_PER_TOK),
    V(num_hidden_layers, INT, 1, 1024),
    V(hidden_size, INT, 1, 1 << 16),
    V(num_attention_heads, INT, 1, 1024),
    V(intermediate_size, INT, 1, 1 << 16),
    V(patch_size, INT, 1, 256),
    V(downsample_ratio, INT, 1, 64),
    V(max_image_tokens, INT, 4, 1 << 20),
    V(min_pixels, INT64, 1, 1 << 30),
    V(rope_theta, DOUBLE, 1, 1e30),
};

/* Keys that have one supported value. The released file lacks those marked optional. */
static const struct fixed {
    const char *object, *name, *value; /* object: "" top level, else the key of an object there */
    bool optional;
} fixed_keys[] = {
    {"", "model_type", "\"deepseek_v41\"", false},
    {"", "tokenizer_compatibility", "\"release\"", true},
    {"quantization_config", "quant_method", "\"fp8\"", false},
    {"quantization_config", "activation_scheme", "\"dynamic\"", true},
    {"quantization_config", "weight_block_size", "[32,32]", false},
    {"quantization_config", "scale_fmt", "\"ue8m0\"", false},
    {"quantization_config", "expert_dtype", "\"fp4\"", false},
    {"text_config", "model_type", "\"deepseek_v41_text\"", true},
    {"text_config", "num_key_value_heads", "1", true},
    {"text_config", "hidden_act", "\"silu\"", true},
    {"text_config", "attention_bias", "false", true},
    {"text_config", "tie_word_embeddings", "false", true},
    {"text_config", "scoring_func", "\"sqrtsoftplus\"", true},
    {"text_config", "topk_method", "\"noaux_tc\"", true},
    {"text_config", "norm_topk_prob", "true", true},
    {"text_config", "hc_shifted", "true", true},
    {"text_config", "use_fp4_sparse_kv", "true", true},
    {"text_config", "dspark_target_attn_input", "true", true},
};

/* What all the readers below need. */
struct reader {
    const char *where;
    const struct di_json *root, *text;
    struct di_config *c;
    di_error *err;
};

static di_status read_field(struct reader *r, const struct field *f, const struct di_json *object)
{
    const struct di_json *v = di_json_get(object, f->name);
    double x = 0;
    int64_t n = 0;
    if (!v)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s is missing", f->name);
    const char *wanted = f->kind == DOUBLE ? "a finite number" : "an integer of at most 64 bits";
    if (v->type != DI_JSON_NUMBER)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s must be %s, not %s", f->name, wanted, di_json_type_name(v));
    if (f->kind == DOUBLE ? !di_json_double(v, &x) : !di_json_int(v, &n))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s is %.*s and must be %s", f->name,
                       (int)(v->text.n > 40 ? 40 : v->text.n), v->text.p, wanted);
    if (f->kind != DOUBLE)
        x = (double)n; /* rounding beyond 2^53 cannot bring a number back below a limit */
    if (!(x >= f->min && x <= f->max))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s is %.12g and must lie between %.12g and %.12g", f->name, x, f->min,
                       f->max);
    if (f->multiple && n % f->multiple)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s is %lld and must be a multiple of %d", f->name, (long long)n,
                       f->multiple);
    char *to = (char *)r->c + f->offset;
    if (f->kind == INT)
        memcpy(to, &(int){(int)n}, sizeof(int));
    else if (f->kind == INT64)
        memcpy(to, &n, sizeof n);
    else
        memcpy(to, &x, sizeof x);
    return DI_OK;
}

static di_status read_group(struct reader *r, enum group group, const struct di_json *object)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        di_status status = fields[i].group == group ? read_field(r, &fields[i], object) : DI_OK;
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* List of at most `max` integers in [low, high]. With `ascending`, each is larger than the one before. A missing list is an empty one. */
struct list {
    const char *name;
    int max;
    int64_t low, high;
    bool ascending;
};

static di_status read_list(struct reader *r, const struct list *l, int64_t *out, int *count)
{
    const struct di_json *v = di_json_get(r->text, l->name);
    *count = 0;
    if (v && !di_json_is(v, DI_JSON_ARRAY))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s must be an array, not %s", l->name, di_json_type_name(v));
    if (v && v->count > (size_t)l->max)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the list %s has %zu entries, more than the limit of %d", l->name, v->count,
                       l->max);
    for (const struct di_json *m = v ? v->child : NULL; m; m = m->next) {
        int64_t n;
        if (!di_json_int(m, &n) || n < l->low || n > l->high)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "entry %d of %s must be an integer between %lld and %lld", *count, l->name,
                           (long long)l->low, (long long)l->high);
        if (l->ascending && *count && n <= out[*count - 1])
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "the entries of %s must ascend", l->name);
        out[(*count)++] = n;
    }
    return DI_OK;
}

static di_status read_int_list(struct reader *r, const struct list *l, int *out, int *count)
{
    int64_t wide[DI_MAX_LAYERS];
    di_status status = read_list(r, l, wide, count);
    for (int i = 0; status == DI_OK && i < *count; i++)
        out[i] = (int)wide[i]; /* within [low, high] */
    return status;
}

static di_status read_lists(struct reader *r)
{
    struct di_config *c = r->c;
    const int last = c->num_hidden_layers - 1;
    int ratios, tables;
    di_status status = DI_OK;
    CHECK(c->num_hidden_layers + c->num_nextn_predict_layers <= DI_MAX_LAYERS, r->err, DI_ERR_LIMIT, r->where,
          "num_hidden_layers and num_nextn_predict_layers together pass %d", DI_MAX_LAYERS);
    TRY(read_int_list(r, &(struct list){"compress_ratios", DI_MAX_LAYERS, 0, 2, false}, c->compress_ratios, &ratios));
    CHECK(ratios == c->num_hidden_layers + c->num_nextn_predict_layers, r->err, DI_ERR_FORMAT, r->where,
          "compress_ratios has %d entries; num_hidden_layers and num_nextn_predict_layers ask for %d", ratios,
          c->num_hidden_layers + c->num_nextn_predict_layers);
    for (int l = c->num_hidden_layers; l < ratios; l++)
        CHECK(c->compress_ratios[l] == 0, r->err, DI_ERR_FORMAT, r->where, "compress_ratios of draft layer %d must be 0", l);
    TRY(read_int_list(r, &(struct list){"kv_source_layer_ids", DI_MAX_SOURCES, 0, last, true}, c->kv_source_layer_ids, &c->n_kv_sources));
    TRY(read_int_list(r, &(struct list){"index_source_layer_ids", DI_MAX_SOURCES, 0, last, true}, c->index_source_layer_ids,
                      &c->n_index_sources));
    TRY(read_int_list(r, &(struct list){"engram_layer_ids", DI_MAX_ENGRAM, 0, last, true}, c->engram_layer_ids, &c->n_engram));
    TRY(read_list(r, &(struct list){"engram_num_embeddings", DI_MAX_ENGRAM, 1, INT32_MAX, false}, c->engram_num_embeddings, &tables));
    CHECK(tables == c->n_engram, r->err, DI_ERR_FORMAT, r->where, "engram_num_embeddings has %d entries and engram_layer_ids %d", tables,
          c->n_engram);
    TRY(read_int_list(r, &(struct list){"dspark_target_layer_ids", DI_MAX_SOURCES, 0, last, true}, c->dspark_target_layer_ids,
                      &c->n_dspark_targets));
    CHECK(c->n_dspark_targets > 0 || c->num_nextn_predict_layers == 0, r->err, DI_ERR_FORMAT, r->where,
          "dspark_target_layer_ids is missing or empty, but there are draft layers");
out:
    return status;
}

/* The layer that serves layer l: the last source at or below it. */
static int source_of(const int *ids, int n, int l)
{
    int s = -1;
    while (s + 1 < n && ids[s + 1] <= l)
        s++;
    return s;
}

static di_status derive_sources(struct reader *r, const char *name, const int *ids, int n, int *source, int *is_source)
{
    struct di_config *c = r->c;
    for (int i = 0; i < n; i++) {
        if (c->compress_ratios[ids[i]] == 0)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "%s names layer %d, whose compress_ratios entry is 0", name, ids[i]);
        is_source[ids[i]] = 1;
    }
    for (int l = 0; l < DI_MAX_LAYERS; l++) {
        int ratio = l < c->num_hidden_layers ? c->compress_ratios[l] : 0;
        source[l] = ratio ? source_of(ids, n, l) : -1;
        if (ratio && (source[l] < 0 || c->compress_ratios[ids[source[l]]] != ratio))
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "layer %d has ratio %d, but %s has no source with that ratio at or below it", l,
                           ratio, name);
    }
    return DI_OK;
}

static di_status check_candidates(struct reader *r)
{
    struct di_config *c = r->c;
    int source = c->candidate_source_layer_id;
    di_status status = DI_OK;
    if (source < 0)
        return DI_OK;
    CHECK(source < c->num_hidden_layers && c->layer_is_index_source[source], r->err, DI_ERR_FORMAT, r->where,
          "candidate_source_layer_id is %d, which is not in index_source_layer_ids", source);
    for (int i = 0; i < c->n_index_sources; i++)
        CHECK(c->index_source_layer_ids[i] < source || c->compress_ratios[c->index_source_layer_ids[i]] == c->compress_ratios[source],
              r->err, DI_ERR_FORMAT, r->where, "index source %d uses the candidates of layer %d but has another compress ratio",
              c->index_source_layer_ids[i], source);
    CHECK((int64_t)(c->candidate_topk_blocks - 1) * c->candidate_block_size + 1 >= c->index_topk, r->err, DI_ERR_FORMAT, r->where,
          "the candidate pool is too small: (candidate_topk_blocks - 1) * candidate_block_size + 1 = %lld must reach index_topk = %d",
          (long long)(c->candidate_topk_blocks - 1) * c->candidate_block_size + 1, c->index_topk);
out:
    return status;
}

static di_status check_engram(struct reader *r)
{
    struct di_config *c = r->c;
    struct di_engram e;
    di_status status = DI_OK;
    memset(c->layer_engram, -1, sizeof c->layer_engram);
    if (c->n_engram == 0)
        return DI_OK;
    CHECK(c->engram_compressed_vocab_size <= c->vocab_size, r->err, DI_ERR_FORMAT, r->where,
          "engram_compressed_vocab_size %d is larger than vocab_size %d", c->engram_compressed_vocab_size, c->vocab_size);
    TRY(di_engram_init(c, &e, r->err));
    for (int t = 0; t < c->n_engram; t++) {
        c->layer_engram[c->engram_layer_ids[t]] = t;
        CHECK(e.table[t].rows == c->engram_num_embeddings[t], r->err, DI_ERR_FORMAT, r->where,
              "engram_num_embeddings of layer %d is %lld, but its bucket primes add up to %lld", c->engram_layer_ids[t],
              (long long)c->engram_num_embeddings[t], (long long)e.table[t].rows);
    }
out:
    di_error_at(r->err, r->where);
    return status;
}

static di_status check_sizes(struct reader *r)
{
    const struct di_config *c = r->c;
    const struct {
        const char *name;
        int id;
    } ids[] = {{"bos_token_id", c->bos_token_id},
               {"eos_token_id", c->eos_token_id},
               {"pad_token_id", c->pad_token_id},
               {"image_token_id", c->image_token_id},
               {"dspark_noise_token_id", c->dspark_noise_token_id},
               {"engram_pad_token_id", c->engram_pad_token_id}};
    di_status status = DI_OK;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        CHECK(ids[i].id < c->vocab_size, r->err, DI_ERR_FORMAT, r->where, "%s is %d, outside of the vocabulary of %d", ids[i].name,
              ids[i].id, c->vocab_size);
    CHECK(c->qk_rope_head_dim % 2 == 0 && c->qk_rope_head_dim <= c->head_dim && c->qk_rope_head_dim <= c->index_head_dim, r->err,
          DI_ERR_FORMAT, r->where, "qk_rope_head_dim %d must be even and at most head_dim %d and index_head_dim %d", c->qk_rope_head_dim,
          c->head_dim, c->index_head_dim);
    CHECK(c->num_attention_heads % c->o_groups == 0, r->err, DI_ERR_FORMAT, r->where,
          "num_attention_heads %d is no multiple of o_groups %d", c->num_attention_heads, c->o_groups);
    CHECK(c->num_experts_per_tok <= c->n_routed_experts, r->err, DI_ERR_FORMAT, r->where,
          "num_experts_per_tok %d exceeds n_routed_experts %d", c->num_experts_per_tok, c->n_routed_experts);
    CHECK(c->dspark_num_experts_per_tok <= c->dspark_n_routed_experts, r->err, DI_ERR_FORMAT, r->where,
          "dspark_num_experts_per_tok %d exceeds dspark_n_routed_experts %d", c->dspark_num_experts_per_tok, c->dspark_n_routed_experts);
    CHECK(!c->has_vision || c->vision.hidden_size % c->vision.num_attention_heads == 0, r->err, DI_ERR_FORMAT, r->where,
          "vision_config: hidden_size %d is no multiple of num_attention_heads %d", c->vision.hidden_size, c->vision.num_attention_heads);
out:
    return status;
}

static di_status check_fixed(struct reader *r)
{
    for (size_t i = 0; i < sizeof fixed_keys / sizeof *fixed_keys; i++) {
        const struct fixed *k = &fixed_keys[i];
        const struct di_json *v = di_json_get(k->object[0] ? di_json_get(r->root, k->object) : r->root, k->name);
        struct di_buf b;
        if (!v && k->optional)
            continue;
        if (!v)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field %s%s%s is missing", k->object, k->object[0] ? "." : "", k->name);
        di_buf_init(&b);
        di_json_write_compact(&b, v);
        di_status status = di_buf_ok(&b, r->err);
        if (status == DI_OK && !di_str_eqc(di_buf_str(&b), k->value))
            status = di_fail(r->err, DI_ERR_UNSUPPORTED, r->where, "the field %s%s%s is %.80s; only %s is supported", k->object,
                             k->object[0] ? "." : "", k->name, b.p, k->value);
        di_buf_fini(&b);
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

static di_status read_rope(struct reader *r)
{
    const struct di_json *rope = di_json_get(r->text, "rope_scaling");
    const struct di_json *type = di_json_get(rope, "rope_type");
    if (!di_json_is(rope, DI_JSON_OBJECT))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field rope_scaling must be an object, not %s", di_json_type_name(rope));
    if (!di_json_is(type, DI_JSON_STRING) || !di_str_eqc(type->text, "yarn"))
        return di_fail(r->err, DI_ERR_UNSUPPORTED, r->where, "rope_scaling.rope_type must be \"yarn\"");
    return read_group(r, ROPE, rope);
}

/* No vision_config, null, or 0 layers: a text-only checkpoint. */
static di_status read_vision(struct reader *r)
{
    const struct di_json *vision = di_json_get(r->root, "vision_config"), *ratio;
    int64_t layers;
    if (!vision || vision->type == DI_JSON_NULL || (di_json_int(di_json_get(vision, "num_hidden_layers"), &layers) && layers == 0))
        return DI_OK;
    if (vision->type != DI_JSON_OBJECT)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the field vision_config must be an object, not %s", di_json_type_name(vision));
    r->c->has_vision = true;
    di_status status = read_group(r, VISION, vision);
    ratio = di_json_get(vision, "max_wh_ratio");
    if (status == DI_OK && ratio && ratio->type != DI_JSON_NULL &&
        (!di_json_double(ratio, &r->c->vision.max_wh_ratio) || !(r->c->vision.max_wh_ratio >= 1)))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "vision_config.max_wh_ratio must be null or a number of at least 1");
    return status;
}

/* An optional list that must repeat kv_source_layer_ids. */
static di_status check_key_sources(struct reader *r)
{
    int ids[DI_MAX_LAYERS], n;
    if (!di_json_get(r->text, "index_k_source_layer_ids"))
        return DI_OK;
    di_status status = read_int_list(r, &(struct list){"index_k_source_layer_ids", DI_MAX_SOURCES, 0, DI_MAX_LAYERS, true}, ids, &n);
    if (status == DI_OK && (n != r->c->n_kv_sources || memcmp(ids, r->c->kv_source_layer_ids, (size_t)n * sizeof *ids) != 0))
        status = di_fail(r->err, DI_ERR_UNSUPPORTED, r->where,
                         "index_k_source_layer_ids differs from kv_source_layer_ids; that is not supported");
    return status;
}

static di_status read_all(struct reader *r)
{
    struct di_config *c = r->c;
    di_status status = DI_OK;
    CHECK(di_json_is(r->root, DI_JSON_OBJECT), r->err, DI_ERR_FORMAT, r->where, "the config is no JSON object");
    r->text = di_json_get(r->root, "text_config");
    TRY(check_fixed(r));
    CHECK(di_json_is(r->text, DI_JSON_OBJECT), r->err, DI_ERR_FORMAT, r->where, "the field text_config must be an object, not %s",
          di_json_type_name(r->text));
    TRY(read_group(r, TOP, r->root));
    TRY(read_group(r, TEXT, r->text));
    TRY(read_rope(r));
    TRY(read_lists(r));
    if (c->n_engram)
        TRY(read_group(r, ENGRAM, r->text));
    if (c->num_nextn_predict_layers)
        TRY(read_group(r, DRAFT, r->text));
    TRY(read_vision(r));
    TRY(check_sizes(r));
    TRY(derive_sources(r, "kv_source_layer_ids", c->kv_source_layer_ids, c->n_kv_sources, c->layer_kv_source, c->layer_is_kv_source));
    TRY(derive_sources(r, "index_source_layer_ids", c->index_source_layer_ids, c->n_index_sources, c->layer_index_source,
                       c->layer_is_index_source));
    TRY(check_key_sources(r));
    TRY(check_candidates(r));
    TRY(check_engram(r));
out:
    return status;
}

di_status di_config_parse(struct di_str json, const char *where, struct di_config *out, di_error *err)
{
    struct reader r = {.where = where, .c = out, .err = err};
    struct di_json_limits limits = {.max_depth = 32, .refuse_duplicates = true};
    struct di_arena arena;
    struct di_json *root;
    *out = (struct di_config){0};
    di_arena_init(&arena);
    di_status status = di_json_parse(json, &limits, &arena, &root, err);
    if (status != DI_OK) {
        di_error inner = err ? *err : (di_error){0};
        TRY(di_fail(err, status, where, "%s%s%.60s", inner.message, inner.where[0] ? ", at " : "", inner.where));
    }
    r.root = root;
    TRY(read_all(&r));
out:
    di_arena_fini(&arena);
    return status;
}

di_status di_config_load(const char *model_dir, struct di_config *out, di_error *err)
{
    struct di_buf path, text;
    di_buf_init(&path);
    di_buf_init(&text);
    di_buf_addf(&path, "%s/config.json", model_dir);
    di_status status = di_buf_ok(&path, err);
    if (status == DI_OK)
        status = di_file_read(path.p, MAX_CONFIG, &text, err);
    if (status == DI_OK)
        status = di_config_parse(di_buf_str(&text), path.p, out, err);
    di_buf_fini(&text);
    di_buf_fini(&path);
    return status;
}
