/* not run under TSan: no threads */
/* Every tensor of the inventory has a home and a field, and what is loaded there is what the file has. */
#define DI_ON_DEVICE /* reads what the CPU packed */
#include "base/carve.h"
#include "model/bind.h"

#include "checkpoint/formats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *const models[] = {"models/nano", "tests/data/vectors/tiny_a", "tests/data/vectors/tiny_d"};
#define MODELS (sizeof models / sizeof *models)

static struct di_model *open_model(const char *dir, const char *isa, bool drafts)
{
    struct di_config c;
    struct di_model *m;
    di_error err = {0};
    assert_int_equal(di_config_load(dir, &c, NULL), DI_OK);
    int32_t *map = calloc((size_t)c.vocab_size, sizeof *map); /* the hashes do not matter here */
    struct di_model_params p = {.max_rows = 4, .max_context = 64, .threads = 1, .isa = isa, .drafts = drafts, .token_map = map};
    assert_true(di_numerics_by_name("bf16", &p.numerics));
    if (di_model_open(dir, &p, &m, &err) != DI_OK)
        fail_msg("%s: %s: %s", dir, err.where, err.message);
    free(map);
    return m;
}

struct counts {
    uint64_t items, draft, vision, bytes;
};

static di_status count_item(void *ctx, const struct di_inventory_item *item)
{
    struct counts *n = ctx;
    n->items++;
    n->draft += item->part == DI_PART_DRAFT;
    n->vision += item->part == DI_PART_VISION;
    n->bytes += di_inventory_bytes(item);
    return DI_OK;
}

/* Only vision, and the draft of a model without, stay in the file; tables are mapped, and with the reference, which reads the file's format, matrices are. */
static void every_tensor_has_a_home(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4 * MODELS; i++) {
        bool drafts = i / 2 % 2;
        struct di_model *m = open_model(models[i / 4], i % 2 ? "ref" : NULL, drafts);
        struct di_weight_sums p;
        struct counts n = {0};
        struct di_home_sum sum[DI_HOME_COUNT] = {0}, all = {0};
        di_inventory_each(m->c, count_item, &n);
        di_bind_sums(m->c, m->be, drafts, &p);
        for (int k = 0; k < DI_HOME_COUNT * DI_PART_COUNT; k++) {
            const struct di_home_sum *one = &p.home[k / DI_PART_COUNT][k % DI_PART_COUNT];
            struct di_home_sum *to[] = {&sum[k / DI_PART_COUNT], &all};
            for (int t = 0; t < 2; t++) {
                to[t]->tensors += one->tensors;
                to[t]->file_bytes += one->file_bytes;
                to[t]->bytes += one->bytes;
            }
        }
        assert_int_equal(all.tensors, n.items);
        assert_int_equal(all.file_bytes, n.bytes);
        assert_int_equal(sum[DI_HOME_FILE].tensors, n.vision + (drafts ? 0 : n.draft));
        assert_int_equal(sum[DI_HOME_FILE].bytes, 0);
        assert_int_equal(sum[DI_HOME_MAPPED].bytes, sum[DI_HOME_MAPPED].file_bytes);
        assert_int_equal(p.region_bytes, all.bytes - sum[DI_HOME_MAPPED].bytes);
        assert_int_equal(sum[DI_HOME_PRODUCT].tensors, m->c->n_engram);
        assert_int_equal(sum[DI_HOME_FACTOR].tensors, m->c->n_engram);
        if (i % 2)
            assert_int_equal(sum[DI_HOME_PACKED].tensors, 0);
        else
            assert_int_equal(sum[DI_HOME_MAPPED].tensors, 1 + m->c->n_engram + drafts); /* markov_head.embed */
        assert_int_equal(m->weight_bytes, p.region_bytes);
        di_model_close(m);
    }
}

/* "layers.%d.x" is "mtp.%d.x" of the stages, which count on behind the layers. */
static void name_tensor(const struct di_model *m, const char *fmt, int l, int expert, char name[96])
{
    char stage[96];
    bool is_stage = l >= m->c->num_hidden_layers;
    snprintf(stage, sizeof stage, "mtp%s", fmt + (is_stage ? strlen("layers") : 0));
    snprintf(name, 96, is_stage ? stage : fmt, is_stage ? l - m->c->num_hidden_layers : l, expert);
}

static void check_vector(const struct di_model *m, const void *at, const char *fmt, int l)
{
    char name[96];
    name_tensor(m, fmt, l, 0, name);
    const struct di_tensor *t = di_checkpoint_find(&m->ck, name);
    const char *from = m->weights;
    if (!t || (const char *)at < from || (const char *)at + t->bytes > from + m->weight_bytes || (uintptr_t)at % 64)
        fail_msg("%s is not in the region", name);
    if (memcmp(at, t->data, t->bytes) != 0)
        fail_msg("%s is not what the file has", name);
}

static void check_matrix(const struct di_model *m, const struct di_weight *w, int n, int k, const char *fmt, int l, int expert)
{
    char name[96], weight[112];
    name_tensor(m, fmt, l, expert, name);
    snprintf(weight, sizeof weight, "%s.weight", name);
    const struct di_tensor *t = di_checkpoint_find(&m->ck, weight);
    if (!t || w->data != t->data || w->n != n || w->k != k || !w->packed)
        fail_msg("%s is not bound", name);
    if ((w->type == DI_W_BF16) != (w->scale == NULL))
        fail_msg("%s: scales", name);
}

static void check_layer(const struct di_model *m, int l)
{
    const struct di_config *c = m->c;
    const struct di_layer *w = &m->layers[l];
    int d = c->hidden_size, hh = c->num_attention_heads * c->head_dim, a = c->o_groups * c->o_lora_rank, f = c->moe_intermediate_size;
    const struct {
        const char *name;
        const void *at;
    } vectors[] = {{"layers.%d.attn_norm.weight", w->attn_norm},   {"layers.%d.ffn_norm.weight", w->ffn_norm},
                   {"layers.%d.attn.q_norm.weight", w->q_norm},    {"layers.%d.attn.kv_norm.weight", w->kv_norm},
                   {"layers.%d.attn.attn_sink", w->attn_sink},     {"layers.%d.hc_attn_fn", w->hc_attn.fn},
                   {"layers.%d.hc_attn_base", w->hc_attn.base},    {"layers.%d.hc_attn_scale", w->hc_attn.scale},
                   {"layers.%d.hc_ffn_fn", w->hc_ffn.fn},          {"layers.%d.hc_ffn_base", w->hc_ffn.base},
                   {"layers.%d.hc_ffn_scale", w->hc_ffn.scale},    {"layers.%d.ffn.gate.bias", w->gate_bias},
                   {"layers.%d.ffn.gate.bias_vl", w->gate_bias_vl}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        check_vector(m, vectors[i].at, vectors[i].name, l);
    check_matrix(m, &w->wq_a, c->q_lora_rank, d, "layers.%d.attn.wq_a", l, 0);
    check_matrix(m, &w->wq_b, hh, c->q_lora_rank, "layers.%d.attn.wq_b", l, 0);
    check_matrix(m, &w->wkv, c->head_dim, d, "layers.%d.attn.wkv", l, 0);
    check_matrix(m, &w->wo_a, a, hh / c->o_groups, "layers.%d.attn.wo_a", l, 0);
    check_matrix(m, &w->wo_b, d, a, "layers.%d.attn.wo_b", l, 0);
    assert_int_equal(w->wo_a.groups, c->o_groups);
    assert_int_equal(w->wo_b.groups, 1);
    check_matrix(m, &w->gate, w->n_experts, d, "layers.%d.ffn.gate", l, 0);
    check_matrix(m, &w->shared.w1, f, d, "layers.%d.ffn.shared_experts.w1", l, 0);
    check_matrix(m, &w->shared.w2, d, f, "layers.%d.ffn.shared_experts.w2", l, 0);
    check_matrix(m, &w->shared.w3, f, d, "layers.%d.ffn.shared_experts.w3", l, 0);
    for (int e = 0; e < w->n_experts; e++) {
        check_matrix(m, &w->experts[e].w1, f, d, "layers.%d.ffn.experts.%d.w1", l, e);
        check_matrix(m, &w->experts[e].w2, d, f, "layers.%d.ffn.experts.%d.w2", l, e);
        check_matrix(m, &w->experts[e].w3, f, d, "layers.%d.ffn.experts.%d.w3", l, e);
    }
    assert_int_equal(w->compressor.wkv.n > 0, w->is_kv_source);
    if (w->is_kv_source) {
        check_matrix(m, &w->compressor.wkv, c->head_dim, d, "layers.%d.attn.compressor.wkv", l, 0);
        check_matrix(m, &w->indexer.wk, c->index_head_dim, c->head_dim, "layers.%d.attn.indexer.wk", l, 0);
        check_vector(m, w->compressor.norm, "layers.%d.attn.compressor.norm.weight", l);
        check_vector(m, w->indexer.k_norm, "layers.%d.attn.indexer.k_norm.weight", l);
    }
    assert_int_equal(w->compressor.wgate.n > 0, w->is_kv_source && w->ratio == 2);
    assert_int_equal(w->indexer.wq_b.n > 0, w->is_index_source);
    assert_int_equal(w->indexer.weights_proj.n > 0, w->is_index_source);
    assert_int_equal(w->engram.table != NULL, w->engram_table >= 0);
}

static void check_engram(const struct di_model *m, int l)
{
    const struct di_layer *w = &m->layers[l];
    const struct di_tensor *table = di_checkpoint_findf(&m->ck, "layers.%d.engram.embed.weight", l);
    const struct di_tensor *scale = di_checkpoint_findf(&m->ck, "layers.%d.engram.embed.scale", l);
    const struct di_tensor *q = di_checkpoint_findf(&m->ck, "layers.%d.engram.q_weight", l);
    const struct di_tensor *k = di_checkpoint_findf(&m->ck, "layers.%d.engram.k_weight", l);
    assert_ptr_equal(w->engram.table, table->data);
    assert_ptr_equal(w->engram.scale, scale->data);
    for (size_t i = 0; i < q->bytes / 2; i++) {
        uint16_t a, b;
        memcpy(&a, q->data + 2 * i, 2);
        memcpy(&b, k->data + 2 * i, 2);
        float product = di_bf16_to_f32(a) * di_bf16_to_f32(b);
        assert_memory_equal(&w->engram.qk[i], &product, sizeof product);
    }
}

static void check_heads(const struct di_model *m)
{
    const struct di_config *c = m->c;
    int first = c->num_hidden_layers, last = first + c->num_nextn_predict_layers - 1, d = c->hidden_size;
    check_matrix(m, &m->layers[first].draft.main_proj, d, c->n_dspark_targets * d, "layers.%d.main_proj", first, 0);
    check_vector(m, m->layers[first].draft.main_norm, "layers.%d.main_norm.weight", first);
    check_vector(m, m->layers[last].draft.norm, "layers.%d.norm.weight", last);
    check_vector(m, m->layers[last].draft.markov_head, "layers.%d.markov_head.head.weight", last);
    check_vector(m, m->layers[last].draft.proj, "layers.%d.confidence_head.proj.weight", last);
    assert_ptr_equal(m->layers[last].draft.markov_embed,
                     di_checkpoint_findf(&m->ck, "mtp.%d.markov_head.embed.weight", last - first)->data);
}

static void every_field_is_bound(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        struct di_model *m = open_model(models[i], NULL, true);
        for (int l = 0; l < m->c->num_hidden_layers + m->c->num_nextn_predict_layers; l++)
            check_layer(m, l);
        check_heads(m);
        for (int e = 0; e < m->c->n_engram; e++)
            check_engram(m, m->c->engram_layer_ids[e]);
        check_matrix(m, &m->head, m->c->vocab_size, m->c->hidden_size, "head", 0, 0);
        check_vector(m, m->norm, "norm.weight", 0);
        float frequencies[512];
        size_t n = (size_t)(m->c->qk_rope_head_dim / 2) * sizeof(float);
        di_rope_freq_main(m->c, frequencies);
        assert_memory_equal(m->rope_main, frequencies, n);
        di_rope_freq_compress(m->c, frequencies);
        assert_memory_equal(m->rope_compress, frequencies, n);
        assert_ptr_equal((const char *)m->rope_compress + di_carve_bytes(n), (const char *)m->weights + m->weight_bytes);
        assert_ptr_equal(m->embed, di_checkpoint_find(&m->ck, "embed.weight")->data);
        di_model_close(m);
    }
}

/* Every layer of nano, and the stages of its draft, which have other numbers. */
static void shapes(void **state)
{
    (void)state;
    struct di_config c;
    struct di_layer w;
    assert_int_equal(di_config_load("models/nano", &c, NULL), DI_OK);
    for (int l = 0; l < c.num_hidden_layers; l++) {
        di_layer_shape(&c, l, &w);
        assert_int_equal(w.ring, l);
        assert_int_equal(w.n_experts, c.n_routed_experts);
        assert_int_equal(w.k, c.num_experts_per_tok);
        assert_int_equal(w.ratio, c.compress_ratios[l]);
        assert_int_equal(w.kv_source < 0, w.ratio == 0);
        assert_int_equal(w.rope == DI_ROPE_COMPRESS, w.ratio != 0);
        assert_int_equal(w.candidates == DI_CAND_PRODUCE, l == c.candidate_source_layer_id);
    }
    assert_true(c.num_nextn_predict_layers > 0);
    for (int l = c.num_hidden_layers; l < c.num_hidden_layers + c.num_nextn_predict_layers; l++) {
        di_layer_shape(&c, l, &w);
        assert_int_equal(w.ring, l);
        assert_int_equal(w.n_experts, c.dspark_n_routed_experts);
        assert_int_equal(w.k, c.dspark_num_experts_per_tok);
        assert_true(w.ratio == 0 && w.kv_source == -1 && w.engram_table == -1 && w.rope == DI_ROPE_MAIN);
        assert_true(!w.is_kv_source && !w.is_index_source && w.candidates == DI_CAND_NONE && w.is_stage);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_tensor_has_a_home), cmocka_unit_test(every_field_is_bound),
                                       cmocka_unit_test(shapes)};
    return cmocka_run_group_tests_name("bind", tests, NULL, NULL);
}
