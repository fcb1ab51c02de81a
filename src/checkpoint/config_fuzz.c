/* Any bytes as config.json: no crash, and an accepted config satisfies what the rest of the program relies on. */
#include "checkpoint/engram_hash.h"
#include "checkpoint/inventory.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define NEED(cond)   \
    do {             \
        if (!(cond)) \
            abort(); \
    } while (0)

static di_status check_item(void *ctx, const struct di_inventory_item *item)
{
    for (int i = 0; i < item->n_stored; i++) {
        const struct di_inventory_tensor *t = &item->stored[i];
        size_t bytes = di_dtype_bytes(t->dtype);
        for (int d = 0; d < t->ndim; d++) {
            NEED(t->shape[d] > 0);
            NEED(di_mul(bytes, (size_t)t->shape[d], &bytes) && bytes < INT64_MAX);
        }
        NEED(strlen(t->name) < 120);
    }
    return (*(int *)ctx += item->n_stored) > 100000 ? DI_ERR_LIMIT : DI_OK; /* a legal config may ask for a million tensors */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct di_config c;
    struct di_engram e;
    di_error err;
    int items = 0;
    err.message[0] = 0;
    if (di_config_parse((struct di_str){(const char *)data, n}, "fuzz", &c, &err) != DI_OK) {
        NEED(err.message[0]);
        return 0;
    }
    for (int l = 0; l < c.num_hidden_layers; l++) {
        NEED(c.compress_ratios[l] == 0 ? c.layer_kv_source[l] == -1 : c.layer_kv_source[l] < c.n_kv_sources && c.layer_kv_source[l] >= 0);
        NEED(c.compress_ratios[l] == 0 ? c.layer_index_source[l] == -1 : c.layer_index_source[l] < c.n_index_sources);
        NEED(c.layer_engram[l] < c.n_engram);
    }
    if (c.n_engram) {
        int32_t window[DI_MAX_NGRAM] = {c.engram_compressed_vocab_size - 1, -1};
        int64_t rows[DI_MAX_NGRAM * DI_MAX_ENGRAM_HEADS];
        NEED(di_engram_init(&c, &e, &err) == DI_OK);
        for (int t = 0; t < c.n_engram; t++) {
            di_engram_rows(&e, t, window, 0, rows);
            for (int k = 0; k < e.columns; k++)
                NEED(rows[k] >= 0 && rows[k] < c.engram_num_embeddings[t]);
        }
    }
    if (di_inventory_each(&c, check_item, &items) == DI_OK) {
        struct di_part_sums sums;
        di_part_sums(&c, true, true, &sums);
        NEED(sums.all.tensors == (uint64_t)items && sums.all.bytes < INT64_MAX);
    }
    return 0;
}
