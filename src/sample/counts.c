#include "sample/counts.h"

di_status di_token_counts_create(size_t vocab, struct di_token_counts **out, di_error *err)
{
    struct di_token_counts *c = di_calloc(1, sizeof *c);
    *out = NULL;
    if (c) {
        c->vocab = vocab;
        c->word = di_calloc(vocab, sizeof *c->word);
        c->touched = di_calloc(vocab, sizeof *c->touched);
    }
    if (!c || !c->word || !c->touched) {
        di_token_counts_destroy(c);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for the token counts of a request");
    }
    *out = c;
    return DI_OK;
}

void di_token_counts_destroy(struct di_token_counts *c)
{
    if (!c)
        return;
    di_free(c->word);
    di_free(c->touched);
    di_free(c);
}

void di_token_counts_reset(struct di_token_counts *c)
{
    for (size_t i = 0; i < c->n_touched; i++)
        c->word[c->touched[i]] = 0;
    c->n_touched = 0;
}

static uint32_t *word_of(struct di_token_counts *c, int32_t id)
{
    if (id < 0 || (size_t)id >= c->vocab)
        return NULL;
    uint32_t *w = &c->word[id];
    if (!(*w & DI_COUNT_LISTED)) {
        *w |= DI_COUNT_LISTED;
        c->touched[c->n_touched++] = id;
    }
    return w;
}

void di_token_counts_add_prompt(struct di_token_counts *c, int32_t id)
{
    uint32_t *w = word_of(c, id);
    if (w)
        *w |= DI_COUNT_IN_PROMPT;
}

void di_token_counts_add(struct di_token_counts *c, int32_t id)
{
    uint32_t *w = word_of(c, id);
    if (w && (*w & DI_COUNT_MASK) < DI_COUNT_MASK)
        ++*w;
}

void di_token_counts_remove(struct di_token_counts *c, int32_t id)
{
    uint32_t *w = word_of(c, id);
    if (w && *w & DI_COUNT_MASK)
        --*w;
}
