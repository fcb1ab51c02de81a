#include "base/carve.h"
#include "model/bind.h"

#include "checkpoint/formats.h"

/* ---------------------------------------------------------------- shape */

void di_layer_shape(const struct di_config *c, int l, struct di_layer *out)
{
    bool draft = l >= c->num_hidden_layers, index_source = !draft && c->layer_is_index_source[l];
    int first = c->candidate_source_layer_id;
    *out = (struct di_layer){
        .ring = l,
        .n_experts = draft ? c->dspark_n_routed_experts : c->n_routed_experts,
        .k = draft ? c->dspark_num_experts_per_tok : c->num_experts_per_tok,
        .ratio = c->compress_ratios[l],
        .kv_source = c->layer_kv_source[l],
        .is_kv_source = !draft && c->layer_is_kv_source[l],
        .is_index_source = index_source,
        .candidates = !index_source || first < 0 || l < first ? DI_CAND_NONE
                      : l == first                            ? DI_CAND_PRODUCE
                                                              : DI_CAND_FILTER,
        .rope = c->compress_ratios[l] ? DI_ROPE_COMPRESS : DI_ROPE_MAIN,
        .engram_table = draft ? -1 : c->layer_engram[l],
        .is_stage = draft,
    };
}

/* ---------------------------------------------------------------- the table */

/* The field: of struct di_layer, of struct di_expert for tensors of routed experts, of struct di_model for those of no layer. A matrix is a
 * struct di_weight, everything else a pointer. */
#define LAYER(field) offsetof(struct di_layer, field)
#define EXPERT(field) offsetof(struct di_expert, field)
#define MODEL(field) offsetof(struct di_model, field)

static const struct binding {
    enum di_home home;
    size_t field, scale; /* scale: of a mapped table with scales, 0 = has none */
    bool grouped;        /* a matrix whose rows are in o_groups groups, each with columns of its own */
} bindings[DI_TENSOR_COUNT] = {
    [DI_TENSOR_EMBED] = {.home = DI_HOME_MAPPED, .field = MODEL(embed)},
    [DI_TENSOR_HEAD] = {.home = DI_HOME_PACKED, .field = MODEL(head)},
    [DI_TENSOR_NORM] = {.home = DI_HOME_COPIED, .field = MODEL(norm)},
    [DI_TENSOR_ATTN_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(attn_norm)},
    [DI_TENSOR_FFN_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(ffn_norm)},
    [DI_TENSOR_WQ_A] = {.home = DI_HOME_PACKED, .field = LAYER(wq_a)},
    [DI_TENSOR_Q_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(q_norm)},
    [DI_TENSOR_WQ_B] = {.home = DI_HOME_PACKED, .field = LAYER(wq_b)},
    [DI_TENSOR_WKV] = {.home = DI_HOME_PACKED, .field = LAYER(wkv)},
    [DI_TENSOR_KV_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(kv_norm)},
    [DI_TENSOR_WO_A] = {.home = DI_HOME_PACKED, .field = LAYER(wo_a), .grouped = true},
    [DI_TENSOR_WO_B] = {.home = DI_HOME_PACKED, .field = LAYER(wo_b)},
    [DI_TENSOR_ATTN_SINK] = {.home = DI_HOME_COPIED, .field = LAYER(attn_sink)},
    [DI_TENSOR_COMPRESSOR_WKV] = {.home = DI_HOME_PACKED, .field = LAYER(compressor.wkv)},
    [DI_TENSOR_COMPRESSOR_WGATE] = {.home = DI_HOME_PACKED, .field = LAYER(compressor.wgate)},
    [DI_TENSOR_COMPRESSOR_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(compressor.norm)},
    [DI_TENSOR_INDEXER_WK] = {.home = DI_HOME_PACKED, .field = LAYER(indexer.wk)},
    [DI_TENSOR_INDEXER_K_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(indexer.k_norm)},
    [DI_TENSOR_INDEXER_WQ_B] = {.home = DI_HOME_PACKED, .field = LAYER(indexer.wq_b)},
    [DI_TENSOR_INDEXER_WEIGHTS] = {.home = DI_HOME_PACKED, .field = LAYER(indexer.weights_proj)},
    [DI_TENSOR_HC_ATTN_FN] = {.home = DI_HOME_COPIED, .field = LAYER(hc_attn.fn)},
    [DI_TENSOR_HC_ATTN_BASE] = {.home = DI_HOME_COPIED, .field = LAYER(hc_attn.base)},
    [DI_TENSOR_HC_ATTN_SCALE] = {.home = DI_HOME_COPIED, .field = LAYER(hc_attn.scale)},
    [DI_TENSOR_HC_FFN_FN] = {.home = DI_HOME_COPIED, .field = LAYER(hc_ffn.fn)},
    [DI_TENSOR_HC_FFN_BASE] = {.home = DI_HOME_COPIED, .field = LAYER(hc_ffn.base)},
    [DI_TENSOR_HC_FFN_SCALE] = {.home = DI_HOME_COPIED, .field = LAYER(hc_ffn.scale)},
    [DI_TENSOR_GATE] = {.home = DI_HOME_PACKED, .field = LAYER(gate)},
    [DI_TENSOR_GATE_BIAS] = {.home = DI_HOME_COPIED, .field = LAYER(gate_bias)},
    [DI_TENSOR_GATE_BIAS_VL] = {.home = DI_HOME_COPIED, .field = LAYER(gate_bias_vl)},
    [DI_TENSOR_SHARED_W1] = {.home = DI_HOME_PACKED, .field = LAYER(shared.w1)},
    [DI_TENSOR_SHARED_W2] = {.home = DI_HOME_PACKED, .field = LAYER(shared.w2)},
    [DI_TENSOR_SHARED_W3] = {.home = DI_HOME_PACKED, .field = LAYER(shared.w3)},
    [DI_TENSOR_EXPERT_W1] = {.home = DI_HOME_PACKED, .field = EXPERT(w1)},
    [DI_TENSOR_EXPERT_W2] = {.home = DI_HOME_PACKED, .field = EXPERT(w2)},
    [DI_TENSOR_EXPERT_W3] = {.home = DI_HOME_PACKED, .field = EXPERT(w3)},
    [DI_TENSOR_ENGRAM_TABLE] = {.home = DI_HOME_MAPPED, .field = LAYER(engram.table), .scale = LAYER(engram.scale)},
    [DI_TENSOR_ENGRAM_WKV] = {.home = DI_HOME_PACKED, .field = LAYER(engram.wkv)},
    [DI_TENSOR_ENGRAM_Q] = {.home = DI_HOME_PRODUCT, .field = LAYER(engram.qk)},
    [DI_TENSOR_ENGRAM_K] = {.home = DI_HOME_FACTOR, .field = LAYER(engram.qk)},
    [DI_TENSOR_DRAFT_MAIN_PROJ] = {.home = DI_HOME_PACKED, .field = LAYER(draft.main_proj)},
    [DI_TENSOR_DRAFT_MAIN_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(draft.main_norm)},
    [DI_TENSOR_DRAFT_NORM] = {.home = DI_HOME_COPIED, .field = LAYER(draft.norm)},
    [DI_TENSOR_DRAFT_MARKOV_EMBED] = {.home = DI_HOME_MAPPED, .field = LAYER(draft.markov_embed)},
    [DI_TENSOR_DRAFT_MARKOV_HEAD] = {.home = DI_HOME_COPIED, .field = LAYER(draft.markov_head)},
    [DI_TENSOR_DRAFT_CONFIDENCE] = {.home = DI_HOME_COPIED, .field = LAYER(draft.proj)},
    /* The rest stays in the file: vision. */
};

/* Where a tensor lives, and what it takes there. */
struct place {
    enum di_home home;
    size_t size;    /* of a piece of the region */
    uint64_t bytes; /* that it takes there, or in place */
    bool in_region;
    struct di_weight matrix; /* of a packed one, or one that could be */
};

static struct di_weight matrix_of(const struct di_config *c, const struct di_inventory_item *item)
{
    static const enum di_wtype types[] = {
        [DI_ENCODING_BF16] = DI_W_BF16, [DI_ENCODING_F8] = DI_W_FP8_TILE32, [DI_ENCODING_F4] = DI_W_FP4_ROW32};
    return (struct di_weight){
        .type = types[item->encoding], .n = (int)item->n, .k = (int)item->k, .groups = bindings[item->id].grouped ? c->o_groups : 1};
}

static struct place place_of(const struct di_config *c, const struct di_backend *be, bool drafts, const struct di_inventory_item *item)
{
    bool unused = item->part == DI_PART_DRAFT && !drafts;
    struct place p = {.home = unused ? DI_HOME_FILE : bindings[item->id].home, .bytes = di_inventory_bytes(item)};
    if (p.home == DI_HOME_PACKED) {
        p.matrix = matrix_of(c, item);
        size_t packed = be->ops->weight_bytes(be, &p.matrix);
        if (packed == 0)
            p.home = DI_HOME_MAPPED;
        else
            p.bytes = packed;
    }
    if (p.home == DI_HOME_PRODUCT)
        p.bytes = (uint64_t)(item->n * item->k) * sizeof(float);
    p.in_region = p.home == DI_HOME_PACKED || p.home == DI_HOME_COPIED || p.home == DI_HOME_PRODUCT;
    p.size = p.bytes;
    if (p.in_region)
        p.bytes = di_carve_bytes(p.size);
    else if (p.home != DI_HOME_MAPPED)
        p.bytes = 0;
    return p;
}

static uint64_t rope_bytes(const struct di_config *c)
{
    return di_carve_bytes((size_t)(c->qk_rope_head_dim / 2) * sizeof(float));
}

struct adder {
    const struct di_config *c;
    const struct di_backend *be;
    bool drafts;
    struct di_weight_sums *out;
};

static di_status add_item(void *ctx, const struct di_inventory_item *item)
{
    struct adder *p = ctx;
    struct place place = place_of(p->c, p->be, p->drafts, item);
    struct di_home_sum *sum = &p->out->home[place.home][item->part];
    sum->tensors++;
    sum->file_bytes += di_inventory_bytes(item);
    sum->bytes += place.bytes;
    p->out->region_bytes += place.in_region ? place.bytes : 0;
    if (place.in_region && place.home != DI_HOME_PACKED && place.bytes > p->out->staging_bytes)
        p->out->staging_bytes = place.bytes;
    return DI_OK;
}

void di_bind_sums(const struct di_config *c, const struct di_backend *be, bool drafts, struct di_weight_sums *out)
{
    *out = (struct di_weight_sums){.region_bytes = 2 * rope_bytes(c), .staging_bytes = rope_bytes(c)};
    out->home[DI_HOME_COPIED][DI_PART_ATTENTION].bytes = 2 * rope_bytes(c);
    (void)di_inventory_each(c, add_item, &(struct adder){c, be, drafts, out}); /* add_item cannot fail */
}

/* ---------------------------------------------------------------- plan */

#define HOME(home) (1u << DI_HOME_##home)
#define PART(part) (1u << DI_PART_##part)

static struct di_home_sum sum_up(const struct di_weight_sums *s, unsigned homes, unsigned parts)
{
    struct di_home_sum sum = {0};
    for (int home = 0; home < DI_HOME_COUNT; home++)
        for (int part = 0; part < DI_PART_COUNT; part++)
            if (homes >> home & 1 && parts >> part & 1) {
                sum.tensors += s->home[home][part].tensors;
                sum.file_bytes += s->home[home][part].file_bytes;
                sum.bytes += s->home[home][part].bytes;
            }
    return sum;
}

static int count_layers(const struct di_config *c, bool drafts)
{
    return c->num_hidden_layers + (drafts ? c->num_nextn_predict_layers : 0);
}

static void plan_layers(const struct di_config *c, bool drafts, di_memory_plan *plan)
{
    uint64_t bytes = 0;
    for (int l = 0; l < count_layers(c, drafts); l++) {
        struct di_layer layer;
        di_layer_shape(c, l, &layer);
        bytes += sizeof layer + (uint64_t)layer.n_experts * sizeof(struct di_expert);
    }
    di_memory_region r = {.group = DI_GROUP_WEIGHTS, .place = DI_PLACE_HOST, .name = "layer tables", .count = 1, .unit_bytes = bytes};
    di_plan_add(plan, &r, "where each tensor is");
}

void di_bind_plan(const struct di_config *c, const struct di_backend *be, bool drafts, di_memory_plan *plan)
{
    static const struct {
        const char *name;
        di_memory_place place;
        unsigned homes, parts;
    } regions[] = {
        {"matrices", DI_PLACE_DEVICE, HOME(PACKED), ~PART(DRAFT)},
        {"vectors", DI_PLACE_DEVICE, HOME(COPIED) | HOME(PRODUCT) | HOME(FACTOR), ~PART(DRAFT)},
        {"matrices in place", DI_PLACE_MAPPED, HOME(MAPPED), ~(PART(EMBED) | PART(ENGRAM_TABLE) | PART(DRAFT))},
        {"draft", DI_PLACE_DEVICE, HOME(PACKED) | HOME(COPIED), PART(DRAFT)},
        {"draft in place", DI_PLACE_MAPPED, HOME(MAPPED), PART(DRAFT)},
        {"embedding", DI_PLACE_MAPPED, HOME(MAPPED), PART(EMBED)},
        {"engram tables", DI_PLACE_MAPPED, HOME(MAPPED), PART(ENGRAM_TABLE)},
        {"draft", DI_PLACE_FILE, HOME(FILE), PART(DRAFT)},
        {"vision", DI_PLACE_FILE, HOME(FILE), PART(VISION)},
    };
    struct di_weight_sums sums;
    di_bind_sums(c, be, drafts, &sums);
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) {
        struct di_home_sum sum = sum_up(&sums, regions[i].homes, regions[i].parts);
        bool in_file = regions[i].place == DI_PLACE_FILE;
        const di_memory_region r = {.group = DI_GROUP_WEIGHTS,
                                    .name = regions[i].name,
                                    .place = regions[i].place,
                                    .count = 1,
                                    .unit_bytes = in_file ? sum.file_bytes : sum.bytes};
        di_plan_add(plan, &r, "%llu tensor%s%s", (unsigned long long)sum.tensors, sum.tensors == 1 ? "" : "s", in_file ? ", not used" : "");
    }
    plan_layers(c, drafts, plan);
}

/* ---------------------------------------------------------------- loading */

#define SWEEPS 64 /* that loading stops to forget the file: what stays resident of it is a small share of the weights */

struct loader {
    struct di_model *m;
    struct di_carver region;
    uint64_t done, total; /* bytes in the file, of what does not stay there */
    void *staging;
    di_error *err;
};

/* One tensor on its way. */
struct source {
    const struct di_tensor *data, *scale; /* scale: or NULL */
    char *field;                          /* that it is bound to */
    void DI_DEVICE *to;                   /* its place in the region */
};

static void set_pointer(void *field, const void DI_DEVICE *p)
{
    memcpy(field, &p, sizeof p);
}

/* The first bytes of the staging memory, which is free again behind it. */
static di_status send_staged(struct loader *ld, void DI_DEVICE *to, size_t bytes)
{
    struct di_backend *be = ld->m->be;
    struct di_copy_span span = {to, ld->staging, bytes};
    be->ops->copy(be, &(struct di_op_copy){1, &span});
    return di_backend_finish(be, ld->err);
}

static di_status copy_vector(struct loader *ld, const struct source *s)
{
    memcpy(ld->staging, s->data->data, s->data->bytes);
    set_pointer(s->field, s->to);
    return send_staged(ld, s->to, s->data->bytes);
}

/* The product stays in the staging memory until its factor comes, which is the next tensor. */
static di_status multiply_staged(struct loader *ld, const struct source *s, bool first)
{
    float *product = ld->staging;
    size_t n = s->data->bytes / sizeof(uint16_t);
    void DI_DEVICE *to = s->to;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, s->data->data + sizeof bits * i, sizeof bits);
        product[i] = first ? di_bf16_to_f32(bits) : product[i] * di_bf16_to_f32(bits);
    }
    if (first) {
        set_pointer(s->field, to);
        return DI_OK;
    }
    memcpy(&to, s->field, sizeof to);
    return send_staged(ld, to, n * sizeof *product);
}

static void bind_matrix(struct loader *ld, const struct source *s, struct di_weight w)
{
    w.data = s->data->data;
    w.scale = s->scale ? s->scale->data : NULL;
    if (s->to)
        ld->m->be->ops->weight_pack(ld->m->be, &w, s->to);
    memcpy(s->field, &w, sizeof w);
}

static void bind_table(const struct source *s, const struct binding *b)
{
    set_pointer(s->field, s->data->data);
    if (s->scale)
        set_pointer(s->field - b->field + b->scale, s->scale->data);
}

static di_status bind_tensor(struct loader *ld, const struct di_inventory_item *item, const struct place *p, const struct source *s)
{
    if (p->matrix.n > 0)
        bind_matrix(ld, s, p->matrix);
    else if (p->home == DI_HOME_MAPPED)
        bind_table(s, &bindings[item->id]);
    else
        return p->home == DI_HOME_COPIED ? copy_vector(ld, s) : multiply_staged(ld, s, p->home == DI_HOME_PRODUCT);
    return DI_OK;
}

static char *owner_of(struct di_model *m, const struct di_inventory_item *item)
{
    if (item->layer < 0)
        return (char *)m;
    return item->expert < 0 ? (char *)&m->layers[item->layer] : (char *)&m->layers[item->layer].experts[item->expert];
}

static void count_loaded(struct loader *ld, uint64_t bytes)
{
    struct di_model *m = ld->m;
    uint64_t part = ld->total / SWEEPS + 1, before = ld->done / part;
    ld->done += bytes;
    if (ld->done / part != before || ld->done == ld->total)
        di_checkpoint_forget(&m->ck);
    if (m->params.progress)
        m->params.progress(m->params.progress_ctx, ld->done, ld->total);
}

static di_status load_item(void *ctx, const struct di_inventory_item *item)
{
    struct loader *ld = ctx;
    struct di_model *m = ld->m;
    struct place p = place_of(m->c, m->be, m->params.drafts, item);
    const struct di_tensor *stored[2] = {0};
    if (p.home == DI_HOME_FILE)
        return DI_OK;
    for (int i = 0; i < item->n_stored; i++) {
        stored[i] = di_checkpoint_find(&m->ck, item->stored[i].name);
        if (!stored[i]) /* opening checked it */
            return di_fail(ld->err, DI_ERR_INTERNAL, item->stored[i].name, "the checkpoint has no such tensor");
    }
    struct source s = {.data = stored[0],
                       .scale = stored[1],
                       .field = owner_of(m, item) + bindings[item->id].field,
                       .to = p.in_region ? di_carve(&ld->region, p.size, 1) : NULL};
    di_status status = bind_tensor(ld, item, &p, &s);
    if (status != DI_OK || p.home == DI_HOME_MAPPED)
        return status;
    for (int i = 0; i < item->n_stored; i++)
        di_tensor_forget(stored[i]);
    count_loaded(ld, di_inventory_bytes(item));
    return DI_OK;
}

static di_status load_rope(struct loader *ld)
{
    struct di_model *m = ld->m;
    const struct {
        void (*make)(const struct di_config *c, float *freq);
        const float DI_DEVICE **field;
    } kinds[] = {{di_rope_freq_main, &m->rope_main}, {di_rope_freq_compress, &m->rope_compress}};
    di_status status = DI_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && status == DI_OK; i++) {
        size_t bytes = (size_t)(m->c->qk_rope_head_dim / 2) * sizeof(float);
        void DI_DEVICE *to = di_carve(&ld->region, bytes, 1);
        kinds[i].make(m->c, ld->staging);
        *kinds[i].field = to;
        status = send_staged(ld, to, bytes);
    }
    return status;
}

static di_status make_layers(struct di_model *m, di_error *err)
{
    const struct di_config *c = m->c;
    int n = count_layers(c, m->params.drafts);
    di_status status = DI_OK;
    m->layers = di_arena_alloc(&m->arena, (size_t)n * sizeof *m->layers);
    CHECK(m->layers, err, DI_ERR_MEMORY, "", "out of memory for the layer table");
    for (int l = 0; l < n; l++) {
        struct di_layer *layer = &m->layers[l];
        di_layer_shape(c, l, layer);
        layer->experts = di_arena_alloc(&m->arena, (size_t)layer->n_experts * sizeof *layer->experts);
        CHECK(layer->experts, err, DI_ERR_MEMORY, "", "out of memory for the expert table");
    }
out:
    return status;
}

di_status di_bind_load(struct di_model *m, const struct di_weight_sums *sums, di_error *err)
{
    di_status status = DI_OK;
    struct loader ld = {.m = m, .err = err, .staging = di_staging_alloc(m->be, sums->staging_bytes)};
    ld.region = (struct di_carver){.base = (uint8_t *)m->weights, .size = m->weight_bytes, .unmarked = !m->be->ops->host_memory};
    CHECK(ld.staging, err, DI_ERR_MEMORY, "", "out of memory for a tensor of %llu bytes", (unsigned long long)sums->staging_bytes);
    ld.total = sum_up(sums, ~(HOME(FILE) | HOME(MAPPED)), ~0u).file_bytes;
    TRY(make_layers(m, err));
    TRY(di_inventory_each(m->c, load_item, &ld));
    TRY(load_rope(&ld));
out:
    di_staging_free(m->be, ld.staging);
    return status;
}
