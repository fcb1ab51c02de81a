/* Binding a checkpoint: finds every tensor, lets the back end repack the matrices, derives tables. */
#include "model/model.h"

#include "checkpoint/formats.h"

#include <stdio.h>

/* One matrix: its place, its name, its kind. The list of a layer is made twice: for the plan (sizes) and for loading. */
struct binding {
    struct di_weight *w;
    char name[64]; /* behind "layers.N." */
    enum di_wtype type;
    int n, k, groups;
};

typedef di_status (*binding_fn)(void *ctx, int layer, const struct binding *b);

#define BIND(field, text, kind, rows, cols, groups_)                  \
    do {                                                              \
        struct binding b_ = {field, text, kind, rows, cols, groups_}; \
        TRY(fn(ctx, l, &b_));                                         \
    } while (0)

static di_status each_expert(const struct di_config *c, int l, struct di_layer *w, binding_fn fn, void *ctx)
{
    static const char *const names[] = {"w1", "w3", "w2"};
    int d = c->hidden_size, f = c->moe_intermediate_size;
    di_status status = DI_OK;
    for (int e = -1; e < c->n_routed_experts; e++) {
        struct di_expert *x = e < 0 ? &w->shared : &w->experts[e];
        struct di_weight *const fields[] = {&x->w1, &x->w3, &x->w2};
        for (int i = 0; i < 3; i++) {
            struct binding b = {fields[i], "", e < 0 ? DI_W_FP8_TILE32 : DI_W_FP4_ROW32, i < 2 ? f : d, i < 2 ? d : f, 1};
            if (e < 0)
                snprintf(b.name, sizeof b.name, "ffn.shared_experts.%s", names[i]);
            else
                snprintf(b.name, sizeof b.name, "ffn.experts.%d.%s", e, names[i]);
            TRY(fn(ctx, l, &b));
        }
    }
out:
    return status;
}

/* Every matrix of a layer in the order of use. `w` may be a scratch layer when only sizes matter. */
static di_status each_matrix(const struct di_config *c, int l, struct di_layer *w, binding_fn fn, void *ctx)
{
    int d = c->hidden_size, hd = c->head_dim, hh = c->num_attention_heads * hd, a = c->o_groups * c->o_lora_rank;
    di_status status = DI_OK;
    if (c->layer_engram[l] >= 0)
        BIND(&w->engram.wkv, "engram.wkv", DI_W_FP8_TILE32, (c->hc_mult + 1) * d,
             (c->engram_max_ngram_size - 1) * c->engram_n_heads * c->engram_head_dim, 1);
    BIND(&w->wq_a, "attn.wq_a", DI_W_FP8_TILE32, c->q_lora_rank, d, 1);
    BIND(&w->wkv, "attn.wkv", DI_W_FP8_TILE32, hd, d, 1);
    BIND(&w->wq_b, "attn.wq_b", DI_W_FP8_TILE32, hh, c->q_lora_rank, 1);
    if (c->layer_is_kv_source[l]) {
        BIND(&w->compressor.wkv, "attn.compressor.wkv", DI_W_BF16, hd, d, 1);
        if (c->compress_ratios[l] == 2)
            BIND(&w->compressor.wgate, "attn.compressor.wgate", DI_W_BF16, hd, d, 1);
        BIND(&w->indexer.wk, "attn.indexer.wk", DI_W_BF16, c->index_head_dim, hd, 1);
    }
    if (c->layer_is_index_source[l]) {
        BIND(&w->indexer.wq_b, "attn.indexer.wq_b", DI_W_FP8_TILE32, c->index_n_heads * c->index_head_dim, c->q_lora_rank, 1);
        BIND(&w->indexer.weights_proj, "attn.indexer.weights_proj", DI_W_BF16, c->index_n_heads, d, 1);
    }
    BIND(&w->wo_a, "attn.wo_a", DI_W_FP8_TILE32, a, hh / c->o_groups, c->o_groups);
    BIND(&w->wo_b, "attn.wo_b", DI_W_FP8_TILE32, d, a, 1);
    BIND(&w->gate, "ffn.gate", DI_W_BF16, c->n_routed_experts, d, 1);
    TRY(each_expert(c, l, w, fn, ctx));
out:
    return status;
}

static di_status each_model_matrix(const struct di_config *c, struct di_layer *layers, struct di_weight *head, binding_fn fn, void *ctx)
{
    di_status status = DI_OK;
    for (int l = 0; l < c->num_hidden_layers; l++)
        TRY(each_matrix(c, l, &layers[l], fn, ctx));
    struct binding b = {head, "head", DI_W_BF16, c->vocab_size, c->hidden_size, 1};
    TRY(fn(ctx, -1, &b));
out:
    return status;
}

/* ---------------------------------------------------------------- plan */

struct planner {
    const struct di_backend *be;
    struct di_model_plan *plan;
};

static uint64_t checkpoint_bytes(const struct binding *b)
{
    uint64_t cells = (uint64_t)b->n * (uint64_t)b->k;
    return b->type == DI_W_BF16 ? cells * 2 : b->type == DI_W_FP8_TILE32 ? cells + cells / 1024 : cells / 2 + cells / 32;
}

static size_t packed_bytes(const struct di_backend *be, const struct binding *b)
{
    struct di_weight w = {.type = b->type, .n = b->n, .k = b->k, .groups = b->groups};
    return (be->ops->weight_bytes(be, &w) + 63) & ~(size_t)63;
}

static di_status plan_matrix(void *ctx, int layer, const struct binding *b)
{
    struct planner *p = ctx;
    (void)layer;
    size_t packed = packed_bytes(p->be, b);
    p->plan->packed_bytes += packed;
    if (packed == 0)
        p->plan->mapped_bytes += checkpoint_bytes(b);
    return DI_OK;
}

static struct di_backend_params backend_params(const struct di_config *c, const struct di_model_params *p)
{
    return (struct di_backend_params){c, p->numerics, p->max_rows, p->max_context, p->threads, p->isa};
}

static di_status plan_with(const struct di_config *c, const struct di_model_params *params, struct di_backend *be,
                           struct di_model_plan *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_weight head;
    struct di_layer *layers = di_calloc((size_t)c->num_hidden_layers, sizeof *layers);
    struct di_expert *experts = di_calloc((size_t)c->n_routed_experts, sizeof *experts);
    CHECK(layers && experts, err, DI_ERR_MEMORY, "", "out of memory for the memory plan");
    for (int l = 0; l < c->num_hidden_layers; l++)
        layers[l].experts = experts;
    *out = (struct di_model_plan){.scratch_bytes = be->scratch_bytes};
    out->activation_bytes = di_forward_bytes(be, params->max_rows) + di_step_rows_bytes(c, params->max_rows);
    TRY(each_model_matrix(c, layers, &head, plan_matrix, &(struct planner){be, out}));
    /* Read in place: embedding rows, norms, hyper-connection matrices, and the engram tables, of which long runs touch every page. */
    uint64_t s = (uint64_t)c->hc_mult, d = (uint64_t)c->hidden_size;
    out->mapped_bytes += (uint64_t)c->vocab_size * d * 2 + (uint64_t)c->num_hidden_layers * 2 * ((2 + s) * s * s * d * 4 + d * 2);
    for (int i = 0; i < c->n_engram; i++)
        out->mapped_bytes += (uint64_t)c->engram_num_embeddings[i] * ((uint64_t)c->engram_head_dim + (uint64_t)c->engram_head_dim / 32);
out:
    di_free(layers);
    di_free(experts);
    return status;
}

di_status di_model_plan(const struct di_config *c, const struct di_model_params *params, struct di_model_plan *out, di_error *err)
{
    struct di_backend_params bp = backend_params(c, params);
    struct di_backend *be;
    di_status status = di_backend_cpu_create(&bp, &be, err);
    if (status != DI_OK)
        return status;
    status = plan_with(c, params, be, out, err);
    be->ops->destroy(be);
    return status;
}

/* ---------------------------------------------------------------- loading */

#define SWEEPS 64 /* that loading stops to forget the file: what stays resident of it is a small share of the weights */

struct loader {
    struct di_model *m;
    size_t at; /* in the packed region */
    uint64_t done, total;
    di_error *err;
};

static di_status load_matrix(void *ctx, int layer, const struct binding *b)
{
    struct loader *ld = ctx;
    struct di_model *m = ld->m;
    char prefix[96];
    if (layer < 0)
        snprintf(prefix, sizeof prefix, "%s", b->name);
    else
        snprintf(prefix, sizeof prefix, "layers.%d.%s", layer, b->name);
    const struct di_tensor *w = di_checkpoint_findf(&m->ck, "%s.weight", prefix);
    const struct di_tensor *s = b->type == DI_W_BF16 ? NULL : di_checkpoint_findf(&m->ck, "%s.scale", prefix);
    if (!w || (b->type != DI_W_BF16 && !s))
        return di_fail(ld->err, DI_ERR_NOT_FOUND, prefix, "the checkpoint has no such matrix");
    *b->w = (struct di_weight){b->type, b->n, b->k, b->groups, w->data, s ? s->data : NULL, NULL};
    size_t bytes = packed_bytes(m->be, b);
    if (bytes) {
        m->be->ops->weight_pack(m->be, b->w, (uint8_t DI_DEVICE *)m->packed + ld->at);
        ld->at += bytes;
        di_tensor_forget(w);
        if (s)
            di_tensor_forget(s);
    }
    uint64_t part = ld->total / SWEEPS + 1, before = ld->done / part;
    ld->done += checkpoint_bytes(b);
    if (ld->done / part != before)
        di_checkpoint_forget(&m->ck);
    if (m->params.progress)
        m->params.progress(m->params.progress_ctx, ld->done, ld->total);
    return DI_OK;
}

/* A vector used in place. The checkpoint was checked at open, so a missing name is a defect; alignment is not promised by the format, so
 * fp32 tensors at odd offsets are copied. So are small ones: touching one in the file makes 64 KiB of its neighbours resident. */
#define SMALL_VECTOR ((size_t)256 << 10)
static di_status vector(struct di_model *m, di_error *err, const void **out, const char *fmt, int l)
{
    char name[96];
    snprintf(name, sizeof name, fmt, l);
    const struct di_tensor *t = di_checkpoint_find(&m->ck, name);
    if (!t)
        return di_fail(err, DI_ERR_NOT_FOUND, name, "the checkpoint has no such tensor");
    *out = t->data;
    if (t->bytes > SMALL_VECTOR && (t->dtype != DI_DT_F32 || (uintptr_t)t->data % sizeof(float) == 0))
        return DI_OK;
    void *copy = di_arena_alloc(&m->arena, t->bytes);
    if (!copy)
        return di_fail(err, DI_ERR_MEMORY, name, "out of memory for %zu bytes", t->bytes);
    memcpy(copy, t->data, t->bytes);
    *out = copy;
    return DI_OK;
}

#define VECTOR(field, name) TRY(vector(m, err, (const void **)&(field), "layers.%d." name, l))

static di_status load_engram(struct di_model *m, int l, di_error *err)
{
    struct di_layer *w = &m->layers[l];
    di_status status = DI_OK;
    const uint8_t *q, *k;
    size_t n = (size_t)(m->c->hc_mult * m->c->hidden_size);
    VECTOR(w->engram.table, "engram.embed.weight");
    VECTOR(w->engram.scale, "engram.embed.scale");
    VECTOR(q, "engram.q_weight");
    VECTOR(k, "engram.k_weight");
    float *qk = di_arena_alloc(&m->arena, n * sizeof *qk);
    CHECK(qk, err, DI_ERR_MEMORY, "", "out of memory for the engram weights of layer %d", l);
    for (size_t i = 0; i < n; i++) {
        uint16_t a, b;
        memcpy(&a, q + 2 * i, 2);
        memcpy(&b, k + 2 * i, 2);
        qk[i] = di_bf16_to_f32(a) * di_bf16_to_f32(b);
    }
    w->engram.qk = qk;
out:
    return status;
}

static di_status load_vectors(struct di_model *m, int l, di_error *err)
{
    struct di_layer *w = &m->layers[l];
    di_status status = DI_OK;
    VECTOR(w->attn_norm, "attn_norm.weight");
    VECTOR(w->ffn_norm, "ffn_norm.weight");
    VECTOR(w->q_norm, "attn.q_norm.weight");
    VECTOR(w->kv_norm, "attn.kv_norm.weight");
    VECTOR(w->attn_sink, "attn.attn_sink");
    VECTOR(w->hc_attn.fn, "hc_attn_fn");
    VECTOR(w->hc_attn.base, "hc_attn_base");
    VECTOR(w->hc_attn.scale, "hc_attn_scale");
    VECTOR(w->hc_ffn.fn, "hc_ffn_fn");
    VECTOR(w->hc_ffn.base, "hc_ffn_base");
    VECTOR(w->hc_ffn.scale, "hc_ffn_scale");
    VECTOR(w->gate_bias, "ffn.gate.bias");
    VECTOR(w->gate_bias_vl, "ffn.gate.bias_vl");
    if (m->c->layer_is_kv_source[l]) {
        VECTOR(w->compressor.norm, "attn.compressor.norm.weight");
        VECTOR(w->indexer.k_norm, "attn.indexer.k_norm.weight");
    }
    if (m->c->layer_engram[l] >= 0)
        TRY(load_engram(m, l, err));
out:
    return status;
}

static di_status load_weights(struct di_model *m, di_error *err)
{
    const struct di_config *c = m->c;
    di_status status = DI_OK;
    struct di_model_plan plan;
    m->layers = di_arena_alloc(&m->arena, (size_t)c->num_hidden_layers * sizeof *m->layers);
    CHECK(m->layers, err, DI_ERR_MEMORY, "", "out of memory for the layer table");
    for (int l = 0; l < c->num_hidden_layers; l++) {
        di_layer_shape(c, l, &m->layers[l]);
        m->layers[l].experts = di_arena_alloc(&m->arena, (size_t)c->n_routed_experts * sizeof(struct di_expert));
        CHECK(m->layers[l].experts, err, DI_ERR_MEMORY, "", "out of memory for the expert table");
        TRY(load_vectors(m, l, err));
    }
    TRY(vector(m, err, (const void **)&m->embed, "embed.weight", 0));
    TRY(vector(m, err, (const void **)&m->norm, "norm.weight", 0));
    TRY(plan_with(c, &m->params, m->be, &plan, err));
    m->packed_bytes = plan.packed_bytes;
    m->packed = m->be->ops->alloc(m->be, DI_MEMORY_WEIGHTS, m->packed_bytes);
    CHECK(m->packed, err, DI_ERR_MEMORY, "", "out of memory for %zu bytes of repacked weights", m->packed_bytes);
    TRY(each_model_matrix(c, m->layers, &m->head, load_matrix, &(struct loader){m, 0, 0, plan.packed_bytes, err}));
out:
    return status;
}

static di_status load_engram_tables(struct di_model *m, const int32_t *map, di_error *err)
{
    const struct di_config *c = m->c;
    di_status status = DI_OK;
    if (c->n_engram == 0)
        return DI_OK;
    CHECK(map, err, DI_ERR_INVALID, "token_map", "this model has engram layers and needs the compressed token map of its tokenizer");
    m->token_map = di_arena_alloc(&m->arena, (size_t)c->vocab_size * sizeof *map);
    CHECK(m->token_map, err, DI_ERR_MEMORY, "", "out of memory for the token map");
    for (int i = 0; i < c->vocab_size; i++) {
        CHECK(map[i] >= 0 && map[i] < c->engram_compressed_vocab_size, err, DI_ERR_FORMAT, "token_map",
              "token %d maps to %d, outside the compressed vocabulary of %d", i, map[i], c->engram_compressed_vocab_size);
        m->token_map[i] = map[i];
    }
    TRY(di_engram_init(c, &m->engram, err));
out:
    return status;
}

di_status di_model_open(const char *dir, const struct di_model_params *params, struct di_model **out, di_error *err)
{
    di_status status = DI_OK;
    *out = NULL;
    struct di_model *m = di_calloc(1, sizeof *m);
    CHECK(m, err, DI_ERR_MEMORY, "", "out of memory for the model");
    m->params = *params;
    di_arena_init(&m->arena);
    TRY(di_checkpoint_open(dir, &m->ck, err));
    m->c = &m->ck.config;
    CHECK(m->c->qk_rope_head_dim / 2 <= DI_MAX_ROPE, err, DI_ERR_LIMIT, "qk_rope_head_dim", "%d rotated channels are more than %d",
          m->c->qk_rope_head_dim, 2 * DI_MAX_ROPE);
    CHECK(params->max_rows > 0 && params->max_context > 0 && params->max_context <= m->c->max_position_embeddings, err, DI_ERR_INVALID,
          "context", "the context must be between 1 and the model's %lld tokens", (long long)m->c->max_position_embeddings);
    struct di_backend_params bp = backend_params(m->c, params);
    TRY(di_backend_cpu_create(&bp, &m->be, err));
    TRY(di_checkpoint_digest(&m->ck, DI_DIGEST_WHOLE, m->digest, err));
    di_rope_freq_main(m->c, m->rope_main);
    di_rope_freq_compress(m->c, m->rope_compress);
    TRY(load_engram_tables(m, params->token_map, err));
    TRY(load_weights(m, err));
    m->activation_bytes = di_forward_bytes(m->be, params->max_rows);
    m->activations = di_device_alloc(m->be, m->activation_bytes);
    m->row_staging = di_staging_alloc(m->be, di_step_rows_bytes(m->c, params->max_rows));
    CHECK(m->activations && m->row_staging, err, DI_ERR_MEMORY, "", "out of memory for %zu bytes of activations", m->activation_bytes);
    TRY(di_checkpoint_check(&m->ck, err)); /* all of it was read while it was the same */
    *out = m;
    m = NULL;
out:
    di_model_close(m);
    return status;
}

void di_model_close(struct di_model *m)
{
    if (!m)
        return;
    if (m->be) {
        m->be->ops->release(m->be, DI_MEMORY_WEIGHTS, m->packed);
        di_device_free(m->be, m->activations);
        di_staging_free(m->be, m->row_staging);
        m->be->ops->destroy(m->be);
    }
    di_checkpoint_close(&m->ck);
    di_arena_fini(&m->arena);
    di_free(m);
}
