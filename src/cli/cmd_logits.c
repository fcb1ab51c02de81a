/* deepinfer logits: fp32 logits of given ids, for comparing implementations. */
#include "base/file.h"
#include "cli/io.h"
#include "cli/load.h"
#include "engine/score.h"

#include <errno.h>
#include <stdlib.h>

struct options {
    struct di_load_options load;
    const char *ids, *output, *positions;
    int64_t decode_from;
};

static const struct di_option table[] = {
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_load_table},
    {.type = DI_OPT_PRESET, .name = "max-batch", .def = "1"},
    {.name = "ids",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, ids),
     .metavar = "LIST|FILE",
     .help = "Token ids separated by commas or spaces (brackets allowed), or a file with such a list.",
     .required = true},
    {.name = "output",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct options, output),
     .metavar = "FILE",
     .help = "safetensors file with the tensor logits [rows, vocab].",
     .required = true},
    {.name = "positions",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct options, positions),
     .def = "all",
     .choices = "all|last",
     .help = "Rows to write."},
    {.name = "decode-from",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, decode_from),
     .max = 1 << 30,
     .metavar = "K",
     .help = "Feed the rows from position K on one at a time."},
};

/* "1, 2,3" or "[1,2,3]" into ids. */
static di_status parse_list(struct di_str s, struct di_ids *ids, di_error *err)
{
    char *copy = di_malloc(s.n + 1);
    di_status status = DI_OK;
    CHECK(copy, err, DI_ERR_MEMORY, "ids", "out of memory");
    CHECK(s.n == 0 || !memchr(s.p, 0, s.n), err, DI_ERR_INVALID, "ids", "the list has a zero byte in it");
    memcpy(copy, s.p, s.n);
    copy[s.n] = 0;
    int commas = 0; /* since the last id */
    for (char *p = copy; *p;) {
        if (strchr(", \t\r\n[]", *p)) {
            commas += *p++ == ',';
            continue;
        }
        CHECK(commas <= (ids->n > 0), err, DI_ERR_INVALID, "ids", "entry %zu is missing: there is a comma too many", ids->n);
        commas = 0;
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        CHECK(end != p && errno == 0 && id >= 0 && id <= INT32_MAX, err, DI_ERR_INVALID, "ids", "entry %zu is no token id: %.20s", ids->n,
              p);
        CHECK(di_ids_reserve(ids, 1), err, DI_ERR_MEMORY, "ids", "out of memory");
        ids->v[ids->n++] = (int32_t)id;
        p = end;
    }
    CHECK(ids->n > 0, err, DI_ERR_INVALID, "ids", "the list is empty; at least one id is needed");
    CHECK(commas == 0, err, DI_ERR_INVALID, "ids", "entry %zu is missing: there is a comma too many", ids->n);
out:
    di_free(copy);
    return status;
}

static di_status read_ids(const char *arg, struct di_ids *ids, di_error *err)
{
    struct di_buf text = {0};
    di_status status = DI_OK;
    if (strspn(arg, "0123456789, []") == strlen(arg))
        return parse_list(di_str_c(arg), ids, err);
    TRY(di_file_read(arg, (size_t)256 << 20, &text, err));
    TRY(parse_list(di_buf_str(&text), ids, err));
out:
    di_buf_fini(&text);
    return status;
}

struct sink {
    float *rows;
    size_t vocab;
    int64_t first; /* position of the first kept row */
};

static di_status keep(void *ctx, int64_t pos, int rows, const float *logits, di_error *err)
{
    struct sink *k = ctx;
    (void)err;
    memcpy(k->rows + (size_t)(pos - k->first) * k->vocab, logits, (size_t)rows * k->vocab * sizeof *logits);
    return DI_OK;
}

static di_status write_logits(const struct options *o, di_error *err)
{
    di_status status = DI_OK;
    struct di_ids ids = {0};
    struct di_loaded l = {0};
    struct di_kv_store *store = NULL;
    struct sink sink = {0};
    struct di_load_options load = o->load;
    TRY(read_ids(o->ids, &ids, err));
    if (load.context == 0)
        load.context = (int64_t)ids.n; /* a context that is too long for the model is refused by di_load */
    load.max_batch = 1;
    TRY(di_load(&load, false, &l, err));
    CHECK((int64_t)ids.n <= l.context, err, DI_ERR_LIMIT, "ids", "%zu ids are more than the context of %lld", ids.n, (long long)l.context);
    bool last = strcmp(o->positions, "last") == 0;
    size_t rows = last ? 1 : ids.n, chunk = (size_t)load.prefill_chunk;
    sink.vocab = (size_t)l.config.vocab_size;
    sink.first = last ? (int64_t)ids.n - 1 : 0;
    sink.rows = di_calloc(rows * sink.vocab, sizeof(float));
    CHECK(sink.rows, err, DI_ERR_MEMORY, "", "out of memory for %zu rows of %zu logits", rows, sink.vocab);
    TRY(di_kv_store_create(l.model->be, &l.model->be->layout, 1, di_kv_blocks_for(l.context), l.context, &store, err));
    struct di_score score = {.ids = ids.v,
                             .n = (int64_t)ids.n,
                             .chunk = (int)(chunk < ids.n ? chunk : ids.n),
                             .last_only = last,
                             .decode_from = o->decode_from == INT64_MIN ? (int64_t)ids.n : o->decode_from,
                             .rows = keep,
                             .ctx = &sink};
    TRY(di_score_run(l.model, store, &score, err));
    struct di_tensor t = {.name = DI_STR("logits"),
                          .dtype = DI_DT_F32,
                          .ndim = 2,
                          .shape = {(int64_t)rows, l.config.vocab_size},
                          .data = (const uint8_t *)sink.rows,
                          .bytes = rows * sink.vocab * sizeof(float)};
    TRY(di_safetensors_write(o->output, &t, 1, err));
out:
    di_kv_store_destroy(store);
    di_unload(&l);
    di_ids_fini(&ids);
    di_free(sink.rows);
    return status;
}

static int run_logits(const void *options)
{
    di_error err = {0};
    return write_logits(options, &err) == DI_OK ? DI_EXIT_OK : di_cli_fail("logits", &err);
}

const struct di_command di_cmd_logits = {
    .name = "logits",
    .summary = "logits of given token ids, as a safetensors file",
    .usage = "--model DIR --ids LIST|FILE --output FILE.safetensors [options]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_logits,
};
