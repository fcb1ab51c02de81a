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
    struct di_law *law = di_law_place(di_cpu_of(be)->shared, (size_t)be->params.config->vocab_size);
    for (int i = 0; i < d->m; i++)
        di_sample_task_run(law, &d->tasks[i], &d->results[i]);
}

const struct di_ops di_cpu_ref_ops = {
    .name = "ref",
    .act_bytes = sizeof(float),
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

/* In floats; each line follows the layout comment or the pointer arithmetic of the op it names. */
struct di_cpu_scratch di_cpu_ref_scratch(const struct di_backend_params *p)
{
    const struct di_config *c = p->config;
    size_t m = (size_t)p->max_rows, d = (size_t)c->hidden_size, f = (size_t)c->moe_intermediate_size, hd = (size_t)c->head_dim;
    size_t heads = (size_t)c->num_attention_heads, groups = (size_t)c->o_groups, most = (size_t)(c->sliding_window + di_cpu_more_keys(c));
    size_t engram =
        (size_t)(c->engram_max_ngram_size > 1 ? c->engram_max_ngram_size - 1 : 0) * (size_t)c->engram_n_heads * (size_t)c->engram_head_dim;
    size_t taps = (size_t)c->n_dspark_targets * d;
    size_t k = max2(max2(d, engram), max2(taps, max2(heads * hd / groups, groups * (size_t)c->o_lora_rank)));
    size_t n = ref_matmul_floats(max2(k, max2(f, (size_t)c->q_lora_rank)));                                                /* ref_matmul */
    n = max2(n, ref_matmul_floats(d) + m * (size_t)max2((size_t)c->n_routed_experts, (size_t)c->dspark_n_routed_experts)); /* ref_router */
    n = max2(n, ref_matmul_floats(max2(d, f)) + 2 * m * (d + f) + 2 * m); /* ref_moe: weights and rows of one expert: at most m */
    n = max2(n, 4 * (size_t)p->max_context + (size_t)c->index_head_dim);  /* ref_index_select */
    n = max2(n, most * hd + most);                                        /* ref_attention */
    return (struct di_cpu_scratch){max2(n * sizeof(float), di_law_bytes((size_t)c->vocab_size)), 0};
}
