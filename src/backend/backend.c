#include "backend/backend.h"

#include <stdio.h>

static const struct mode {
    const char *name;
    struct di_numerics num; /* bf16, q_cache, q_linear, q_wo_a */
} modes[] = {
    {"bf16", {true, true, true, false}},  {"bf16-woa8", {true, true, true, true}},       {"f32r", {false, true, true, false}},
    {"f32", {false, true, false, false}}, {"f32-noquant", {false, false, false, false}},
};
#define MODES (sizeof modes / sizeof *modes)

bool di_numerics_by_name(const char *name, struct di_numerics *out)
{
    for (size_t i = 0; i < MODES; i++)
        if (strcmp(modes[i].name, name) == 0) {
            *out = modes[i].num;
            return true;
        }
    return false;
}

_Static_assert(sizeof(struct di_numerics) == 4 * sizeof(bool), "another switch: di_bits_name must tell it");

void di_bits_name(struct di_numerics n, const char *device, const char *isa, char out[DI_BITS_NAME])
{
    char flags[5] = {n.bf16 ? 'b' : '-', n.q_cache ? 'c' : '-', n.q_linear ? 'l' : '-', n.q_wo_a ? 'o' : '-', 0};
    const char *mode = flags; /* a combination that has no name */
    for (size_t i = 0; i < MODES; i++)
        if (memcmp(&modes[i].num, &n, sizeof n) == 0)
            mode = modes[i].name;
    snprintf(out, DI_BITS_NAME, "%s/%s-%s", mode, device, isa);
}

void di_kv_layout_init(struct di_kv_layout *l, const struct di_config *c, struct di_numerics num)
{
    size_t d = (size_t)c->head_dim, di = (size_t)c->index_head_dim;
    *l = (struct di_kv_layout){
        .d = c->head_dim,
        .di = c->index_head_dim,
        .window_row_bytes = num.q_cache ? d + d / 32 : d * sizeof(float),
        .comp_row_bytes = num.q_cache ? d / 2 + d / 16 : d * sizeof(float),
        .key_row_bytes = num.q_cache ? di / 2 + di / 32 : di * sizeof(float),
        .ring_layers = c->num_hidden_layers + c->num_nextn_predict_layers,
        .n_sources = c->n_kv_sources,
    };
    for (int i = 0; i < l->n_sources; i++) {
        l->ratio[i] = c->compress_ratios[c->kv_source_layer_ids[i]];
        l->raw_ring[i] = l->ratio[i] == 2 ? l->n_raw_rings++ : -1;
        size_t rows = (size_t)(DI_BLOCK_TOKENS / l->ratio[i]);
        l->key_offset[i] = l->block_bytes;
        l->comp_offset[i] = l->block_bytes + rows * l->key_row_bytes;
        l->block_bytes += rows * (l->key_row_bytes + l->comp_row_bytes);
    }
    l->ring_bytes = (size_t)l->ring_layers * DI_RING_ROWS * l->window_row_bytes;
    l->raw_bytes = (size_t)l->n_raw_rings * DI_RAW_ROWS * 2 * d * sizeof(float);
}
