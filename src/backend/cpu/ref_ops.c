/* The reference table and its scratch. */
#include "backend/cpu/ref.h"

static size_t ref_weight_bytes(const struct di_backend *be, const struct di_weight *w)
{
    (void)be;
    (void)w;
    return 0;
}

static void ref_weight_pack(struct di_backend *be, struct di_weight *w, void *dst)
{
    (void)be;
    (void)w;
    (void)dst;
}

static void ref_sample(struct di_backend *be, const struct di_op_sample *d)
{
    struct di_carver shared = di_cpu_shared(di_cpu_of(be));
    struct di_law *law = di_law_carve(&shared, (size_t)be->params.config->vocab_size);
    for (int i = 0; i < d->m; i++)
        di_sample_task_run(law, &d->tasks[i], &d->results[i]);
}

const struct di_ops di_cpu_ref_ops = {
    .name = "ref",
    .act_bytes = sizeof(float),
    .host_memory = true,
    .alloc = di_cpu_alloc,
    .release = di_cpu_release,
    .copy = di_cpu_copy,
    .fence = di_cpu_fence,
    .wait = di_cpu_wait,
    .weight_bytes = ref_weight_bytes,
    .weight_pack = ref_weight_pack,
    .embed = ref_embed,
    .rmsnorm = ref_rmsnorm,
    .hc_mix = ref_hc_mix,
    .hc_norm = ref_hc_norm,
    .hc_expand = ref_hc_expand,
    .hc_mean = ref_hc_mean,
    .quant8 = ref_quant8,
    .linear = ref_linear,
    .rope_angles = ref_rope_angles,
    .rope = ref_rope,
    .window_store = ref_window_store,
    .window_commit = ref_window_commit,
    .compress = ref_compress,
    .raw_commit = ref_raw_commit,
    .key_store = ref_key_store,
    .comp_store = ref_comp_store,
    .gather = ref_gather,
    .scale = ref_scale,
    .index_query = ref_index_query,
    .index_select = ref_index_select,
    .attention = ref_attention,
    .router = ref_router,
    .moe = ref_moe,
    .engram_gather = ref_engram_gather,
    .engram_gate = ref_engram_gate,
    .markov = ref_markov,
    .confidence = ref_confidence,
    .sample = ref_sample,
};

void di_cpu_ref_scratch(const struct di_backend_params *p, struct di_cpu_scratch *s)
{
    const struct di_config *c = p->config;
    int experts = c->n_routed_experts > c->dspark_n_routed_experts ? c->n_routed_experts : c->dspark_n_routed_experts;
    struct di_carver matmul = {0}, router = {0}, moe = {0}, index = {0}, attention = {0}, row = {0}, law = {0};
    ref_matmul_carve(&matmul, di_cpu_longest_k(c));
    ref_router_carve(&router, p->max_rows, c->hidden_size, experts);
    ref_moe_carve(&moe, p->max_rows, c->hidden_size, c->moe_intermediate_size);
    ref_index_carve(&index, p->max_context, c->index_head_dim);
    ref_attention_carve(&attention, c->sliding_window + di_cpu_more_keys(c), c->head_dim);
    ref_row_carve(&row, c->head_dim > c->index_head_dim ? c->head_dim : c->index_head_dim);
    di_law_carve(&law, (size_t)c->vocab_size);
    const struct di_carver *all[] = {&matmul, &router, &moe, &index, &attention, &row, &law};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        di_cpu_need(&s->shared, all[i]);
}
