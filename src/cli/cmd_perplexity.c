/* deepinfer perplexity: how well the model predicts a text. */
#include "base/file.h"
#include "cli/io.h"
#include "cli/load.h"
#include "engine/score.h"

#include <math.h>

struct options {
    struct di_load_options load;
    const char *text;
};

static const struct di_option table[] = {
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_load_table},
    {.type = DI_OPT_PRESET, .name = "max-batch", .def = "1"},
    {.name = "text",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, text),
     .metavar = "FILE",
     .help =
         "UTF-8 text. It is cut into stretches of --context tokens, each behind a begin-of-sentence id; every token but that one counts.",
     .required = true},
};

struct sum {
    int32_t *ids; /* [context], those of the stretch */
    int64_t n, counted;
    size_t vocab;
    double nll;
};

static di_status add_rows(void *ctx, int64_t pos, int rows, const float *logits, di_error *err)
{
    struct sum *s = ctx;
    (void)err;
    for (int i = 0; i < rows && pos + i + 1 < s->n; i++) {
        const float *row = logits + (size_t)i * s->vocab;
        double top = row[0], total = 0;
        for (size_t v = 1; v < s->vocab; v++)
            top = row[v] > top ? row[v] : top;
        for (size_t v = 0; v < s->vocab; v++)
            total += exp(row[v] - top);
        s->nll += log(total) + top - (double)row[s->ids[pos + i + 1]];
        s->counted++;
    }
    return DI_OK;
}

/* n ids behind a begin id, from position 0 of a fresh slot. `score` has the sink; its ids are those of `sum`. */
static di_status score_stretch(struct di_loaded *l, struct di_kv_store *store, const int32_t *ids, int64_t n, struct di_score *score,
                               di_error *err)
{
    struct sum *sum = score->ctx;
    sum->ids[0] = l->text.controls.id[DI_CTL_BOS];
    memcpy(sum->ids + 1, ids, (size_t)n * sizeof *ids);
    sum->n = score->n = score->decode_from = n + 1;
    di_status status = di_score_run(l->model, store, score, err);
    di_kv_release(store, 0);
    return status;
}

static di_status score_text(const struct options *o, struct di_buf *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf text = {0};
    struct di_ids ids = {0};
    struct di_loaded l = {0};
    struct di_kv_store *store = NULL;
    struct sum sum = {0};
    struct di_load_options load = o->load;
    load.max_batch = 1;
    TRY(di_file_read(o->text, (size_t)1 << 30, &text, err));
    TRY(di_load(&load, true, &l, err));
    TRY(di_tokenizer_encode(l.text.tokenizer, di_buf_str(&text), DI_TOKENIZER_PLAIN, &ids, err));
    CHECK(ids.n > 0, err, DI_ERR_INVALID, o->text, "the text is empty; at least one token is needed");
    CHECK(l.context >= 2, err, DI_ERR_INVALID, "context", "at least 2 tokens of context are needed");
    int chunk = (int)(load.prefill_chunk < l.context ? load.prefill_chunk : l.context);
    sum.vocab = (size_t)l.config.vocab_size;
    sum.ids = di_calloc((size_t)l.context, sizeof *sum.ids);
    CHECK(sum.ids, err, DI_ERR_MEMORY, "", "out of memory for %lld ids", (long long)l.context);
    TRY(di_kv_store_create(l.model->be, &l.model->be->layout, 1, di_kv_blocks_for(l.context), l.context, &store, err));
    struct di_score score = {.ids = sum.ids, .chunk = chunk, .rows = add_rows, .ctx = &sum};
    for (size_t at = 0; at < ids.n; at += (size_t)l.context - 1) {
        int64_t n = (int64_t)(ids.n - at) < l.context - 1 ? (int64_t)(ids.n - at) : l.context - 1;
        TRY(score_stretch(&l, store, ids.v + at, n, &score, err));
    }
    di_buf_adds(out, "{\"nll\": ");
    di_json_write_double(out, sum.nll / (double)sum.counted);
    di_buf_adds(out, ", \"perplexity\": ");
    di_json_write_double(out, exp(sum.nll / (double)sum.counted));
    di_buf_addf(out, ", \"tokens\": %lld}", (long long)sum.counted);
    TRY(di_buf_ok(out, err));
    TRY(di_write_line(stdout, di_buf_str(out), err));
out:
    di_kv_store_destroy(store);
    di_unload(&l);
    di_ids_fini(&ids);
    di_buf_fini(&text);
    di_free(sum.ids);
    return status;
}

static int run_perplexity(const void *options)
{
    di_error err = {0};
    struct di_buf out = {0};
    di_status status = score_text(options, &out, &err);
    di_buf_fini(&out);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("perplexity", &err);
}

const struct di_command di_cmd_perplexity = {
    .name = "perplexity",
    .summary = "how well the model predicts a text: nll (mean, per token), perplexity, tokens",
    .usage = "--model DIR --text FILE [--context N] [options]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_perplexity,
};
