#include "api/text_model.h"

#include "text/token_map.h"

/* Control ids that an answer may contain: the end, the two tags, and the grounding marks. All others are banned, as are ids that the
 * tokenizer does not know (the logits may be wider). */
static di_status ban_ids(struct di_text_model *t, int vocab, di_error *err)
{
    static const enum di_control legal[] = {DI_CTL_EOS, DI_CTL_THINK_END, DI_CTL_DSML};
    t->banned = di_calloc(((size_t)vocab + 63) / 64, sizeof *t->banned);
    if (!t->banned)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for %d ids", vocab);
    for (int32_t id = 0; id < vocab; id++)
        if (!di_tokenizer_has(t->tokenizer, id) || di_tokenizer_is_added(t->tokenizer, id))
            t->banned[id / 64] |= (uint64_t)1 << id % 64;
    for (int c = 0; c < DI_CTL_COUNT; c++) {
        bool ok = c >= DI_CTL_REF && c <= DI_CTL_POLYGON_END;
        for (size_t i = 0; i < sizeof legal / sizeof *legal; i++)
            ok = ok || c == (int)legal[i];
        int32_t id = t->controls.id[c];
        if (ok && id >= 0 && id < vocab)
            t->banned[id / 64] &= ~((uint64_t)1 << id % 64);
    }
    return DI_OK;
}

di_status di_text_model_load(const char *dir, const struct di_config *c, struct di_text_model *out, di_error *err)
{
    di_status status = DI_OK;
    int32_t distinct;
    *out = (struct di_text_model){0};
    TRY(di_tokenizer_load(dir, &out->tokenizer, err));
    CHECK(di_tokenizer_size(out->tokenizer) <= c->vocab_size, err, DI_ERR_FORMAT, dir,
          "the tokenizer has %d ids, more than the model's vocabulary of %d", di_tokenizer_size(out->tokenizer), c->vocab_size);
    TRY(di_control_ids_find(out->tokenizer, c->image_token_id, &out->controls, err));
    CHECK(out->controls.id[DI_CTL_EOS] == c->eos_token_id, err, DI_ERR_FORMAT, dir,
          "the tokenizer's end id is %d, the config's eos_token_id %d", out->controls.id[DI_CTL_EOS], c->eos_token_id);
    if (c->n_engram) {
        out->token_map = di_calloc((size_t)c->vocab_size, sizeof *out->token_map);
        CHECK(out->token_map, err, DI_ERR_MEMORY, "", "out of memory for the token map");
        TRY(di_token_map_build(out->tokenizer, out->token_map, c->vocab_size, &distinct, err));
        CHECK(distinct == c->engram_compressed_vocab_size, err, DI_ERR_FORMAT, dir,
              "the tokenizer has %d different compressed ids, the config says %d: another tokenizer would change every engram hash",
              distinct, c->engram_compressed_vocab_size);
    }
    TRY(ban_ids(out, c->vocab_size, err));
out:
    if (status != DI_OK)
        di_text_model_fini(out);
    return status;
}

void di_text_model_fini(struct di_text_model *t)
{
    di_tokenizer_destroy(t->tokenizer);
    di_free(t->token_map);
    di_free(t->banned);
    *t = (struct di_text_model){0};
}
