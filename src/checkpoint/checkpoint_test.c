/* not run under TSan: no threads */
/* Inventory against the published totals (spec/model.md §2), and checkpoints that were damaged in one way each. */
#include "checkpoint/checkpoint.h"

#include "base/file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "tests/data/vectors/tiny_b"
#define SHARD2 "model-00002-of-00003.safetensors"

struct totals {
    size_t count;
    uint64_t bytes, part_bytes[DI_PART_COUNT];
    int shard;
};

static di_status add_up(void *ctx, const struct di_inventory_item *item)
{
    struct totals *t = ctx;
    t->count += (size_t)item->n_stored;
    t->bytes += di_inventory_bytes(item);
    t->part_bytes[item->part] += di_inventory_bytes(item);
    assert_true(item->shard == t->shard || item->shard == t->shard + 1);
    t->shard = item->shard;
    return DI_OK;
}

static void published_totals(void **state)
{
    (void)state;
    static const uint64_t bytes[DI_PART_COUNT] = {
        [DI_PART_EMBED] = 1323827200,
        [DI_PART_HEAD] = 1323827200,
        [DI_PART_NORM] = 10240,
        [DI_PART_ATTENTION] = 5069721600,
        [DI_PART_COMPRESSOR] = 36704256,
        [DI_PART_INDEXER_KEY] = 525312,
        [DI_PART_INDEXER_QUERY] = 44605440,
        [DI_PART_ROUTER] = 157409280,
        [DI_PART_SHARED_EXPERT] = 1416960000,
        [DI_PART_ROUTED_EXPERTS] = 288777830400,
        [DI_PART_MHC] = 157295040,
        [DI_PART_LAYER_NORMS] = 819200,
        [DI_PART_ENGRAM_PROJ] = 315043840,
        [DI_PART_ENGRAM_TABLE] = 202758032400,
        [DI_PART_DRAFT] = 7932874632,
        [DI_PART_VISION] = 970536960,
    };
    struct di_config c;
    struct totals t = {.shard = 1};
    assert_int_equal(di_config_load("tests/data/full_size", &c, NULL), DI_OK);
    assert_int_equal(di_inventory_each(&c, add_up, &t), DI_OK);
    assert_int_equal(t.count, 96085);
    assert_int_equal(t.bytes, 510286023000);
    assert_int_equal(t.shard, 48);
    for (int p = 0; p < DI_PART_COUNT; p++) {
        if (t.part_bytes[p] != bytes[p])
            fail_msg("%s: %llu", di_part_name((enum di_part)p), (unsigned long long)t.part_bytes[p]);
    }
}

static void published_parameters(void **state)
{
    (void)state;
    static const uint64_t want[DI_PART_COUNT] = {
        [DI_PART_EMBED] = 661913600,
        [DI_PART_HEAD] = 661913600,
        [DI_PART_NORM] = 5120,
        [DI_PART_ATTENTION] = 5064696320,
        [DI_PART_COMPRESSOR] = 18352128,
        [DI_PART_INDEXER_KEY] = 262656,
        [DI_PART_INDEXER_QUERY] = 43253760,
        [DI_PART_ROUTER] = 78673920,
        [DI_PART_SHARED_EXPERT] = 1415577600,
        [DI_PART_ROUTED_EXPERTS] = 543581798400,
        [DI_PART_MHC] = 39323760,
        [DI_PART_LAYER_NORMS] = 409600,
        [DI_PART_ENGRAM_PROJ] = 314654720,
        [DI_PART_ENGRAM_TABLE] = 196613849600,
        [DI_PART_DRAFT] = 14225362530,
        [DI_PART_VISION] = 485268480,
    };
    struct di_config c;
    struct di_part_sums s;
    assert_int_equal(di_config_load("tests/data/full_size", &c, NULL), DI_OK);
    di_part_sums(&c, true, true, &s);
    for (int i = 0; i < DI_PART_COUNT; i++)
        if (s.part[i].parameters != want[i])
            fail_msg("%s: %llu parameters", di_part_name((enum di_part)i), (unsigned long long)s.part[i].parameters);
    assert_int_equal(s.all.parameters, 763205315794);
    assert_int_equal(s.all.bytes, 510286023000);
    assert_int_equal(s.all.tensors, 96085);
    di_part_sums(&c, false, false, &s);
    assert_int_equal(s.all.tensors, 93418);
    assert_int_equal(s.all.bytes, 501382611408);
    assert_int_equal(s.all.parameters, 748494684784);
}

static di_status stop_at_3(void *ctx, const struct di_inventory_item *item)
{
    (void)item;
    return ++*(int *)ctx == 3 ? DI_ERR_CANCELLED : DI_OK;
}

static void inventory_stops(void **state)
{
    (void)state;
    struct di_config c;
    int n = 0;
    assert_int_equal(di_config_load(MODEL, &c, NULL), DI_OK);
    assert_int_equal(di_inventory_each(&c, stop_at_3, &n), DI_ERR_CANCELLED);
    assert_int_equal(n, 3);
}

static void models_open(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        size_t count;
    } models[] = {{"models/nano", 2136},
                  {"tests/data/vectors/tiny_a", 774},
                  {MODEL, 509},
                  {"tests/data/vectors/tiny_c", 685},
                  {"tests/data/vectors/tiny_d", 860}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct di_checkpoint ck;
        di_error err = {0};
        if (di_checkpoint_open(models[i].dir, &ck, &err) != DI_OK)
            fail_msg("%s: %s: %s", models[i].dir, err.where, err.message);
        assert_true(ck.has_draft && ck.has_vision);
        assert_int_equal(ck.count, models[i].count);
        assert_int_equal(ck.n_extra, 0);
        assert_int_equal(ck.n_shards, 3);
        const struct di_tensor *t = di_checkpoint_findf(&ck, "layers.%d.attn.wq_a.%s", 3, "weight");
        assert_true(t && t->dtype == DI_DT_F8_E4M3 && t->shape[1] == ck.config.hidden_size);
        assert_null(di_checkpoint_find(&ck, "layers.3.attn.wq_a"));
        uint8_t first = t->data[0];
        di_tensor_forget(t); /* advice only: the bytes stay readable */
        assert_int_equal(t->data[0], first);
        struct totals sum = {.shard = 1};
        di_inventory_each(&ck.config, add_up, &sum);
        assert_int_equal(sum.count, ck.count);
        di_checkpoint_close(&ck);
    }
}

/* ---------------------------------------------------------------- damaged copies */

static char dir[200];

static const char *in_dir(const char *file)
{
    static char path[2][400];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, file);
    return path[turn];
}

static void put(const char *file, struct di_str text)
{
    int fd = open(in_dir(file), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(di_file_write(fd, file, text.p, text.n, NULL), DI_OK);
    close(fd);
}

static const char *const files[] = {"config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors", SHARD2,
                                    "model-00003-of-00003.safetensors"};

static void copy_model(void)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct di_buf b = {0};
        char from[200];
        snprintf(from, sizeof from, MODEL "/%s", files[i]);
        assert_int_equal(di_file_read(from, 1 << 24, &b, NULL), DI_OK);
        put(files[i], di_buf_str(&b));
        di_buf_fini(&b);
    }
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/di_checkpoint_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(in_dir(files[i]));
    unlink(in_dir("model.safetensors"));
    return rmdir(dir);
}

static void edit_text(const char *file, const char *from, const char *to)
{
    struct di_buf b = {0}, out = {0};
    assert_int_equal(di_file_read(in_dir(file), 1 << 24, &b, NULL), DI_OK);
    size_t at = di_str_find(di_buf_str(&b), di_str_c(from), 0);
    if (at == SIZE_MAX)
        fail_msg("no %s in %s", from, file);
    di_buf_add(&out, b.p, at);
    di_buf_adds(&out, to);
    di_buf_add(&out, b.p + at + strlen(from), b.n - at - strlen(from));
    put(file, di_buf_str(&out));
    di_buf_fini(&b);
    di_buf_fini(&out);
}

/* What may be done to the tensors of shard 2 before it is written again. */
static struct di_tensor *pick(struct di_tensor *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name.p, name) == 0)
            return &list[i];
    fail_msg("no %s", name);
    return NULL;
}

typedef size_t (*edit_fn)(struct di_tensor *list, size_t n);

static void edit_file(const char *file, edit_fn edit)
{
    struct di_safetensors st;
    assert_int_equal(di_safetensors_open(in_dir(file), &st, NULL), DI_OK);
    struct di_tensor *list = di_calloc(st.count + 1, sizeof *list);
    memcpy(list, st.tensors, st.count * sizeof *list);
    size_t n = edit(list, st.count);
    assert_int_equal(di_safetensors_write(in_dir(file), list, n, NULL), DI_OK);
    di_free(list);
    di_safetensors_close(&st);
}
static void edit_shard(edit_fn edit)
{
    edit_file(SHARD2, edit);
}

static void expect(di_status want, const char *sentence)
{
    struct di_checkpoint ck;
    di_error err = {0};
    di_status status = di_checkpoint_open(dir, &ck, &err);
    if (status == DI_OK)
        fail_msg("accepted; wanted \"%s\"", sentence);
    if (status != want || !strstr(err.message, sentence))
        fail_msg("\"%s\" (%s) lacks \"%s\"", err.message, di_status_name(status), sentence);
    assert_true(strncmp(err.where, dir, strlen(dir)) == 0);
}

#define NORM "layers.3.attn.q_norm.weight"

static size_t drop(struct di_tensor *list, size_t n)
{
    *pick(list, n, NORM) = list[n - 1];
    return n - 1;
}
static size_t reshape(struct di_tensor *list, size_t n)
{
    struct di_tensor *t = pick(list, n, "layers.3.attn.wq_a.weight");
    int64_t rows = t->shape[0];
    t->shape[0] = t->shape[1];
    t->shape[1] = rows;
    return n;
}
static size_t retype(struct di_tensor *list, size_t n)
{
    pick(list, n, NORM)->dtype = DI_DT_F16;
    return n;
}
static size_t rename_one(struct di_tensor *list, size_t n)
{
    pick(list, n, NORM)->name = DI_STR("layers.3.attn.q_norm.weights");
    return n;
}
static size_t add_copy(struct di_tensor *list, size_t n)
{
    list[n] = *pick(list, n, NORM);
    list[n].name = DI_STR("embed.weight");
    return n + 1;
}
static size_t add_prefixed_copy(struct di_tensor *list, size_t n)
{
    list[n] = *pick(list, n, NORM);
    list[n].name = DI_STR("model." NORM);
    return n + 1;
}
static size_t add_extra(struct di_tensor *list, size_t n)
{
    list[n] = *pick(list, n, NORM);
    list[n].name = DI_STR("something.else");
    return n + 1;
}
static size_t add_vision(struct di_tensor *list, size_t n)
{
    list[n] = *pick(list, n, NORM);
    list[n].name = DI_STR("image_pad");
    return n + 1;
}

static void damaged_tensors(void **state)
{
    (void)state;
    const char *index = "model.safetensors.index.json";
    copy_model();
    edit_shard(drop);
    expect(DI_ERR_FORMAT, "the index names tensor " NORM " in " SHARD2 ", which does not contain it");
    edit_text(index, "\"" NORM "\": \"" SHARD2 "\",", "");
    expect(DI_ERR_NOT_FOUND, "tensor " NORM " (BF16 [64]) is missing");
    copy_model();
    edit_shard(reshape);
    expect(DI_ERR_FORMAT, "tensor layers.3.attn.wq_a.weight has the wrong shape: it is F8_E4M3 [96, 64], F8_E4M3 [64, 96] was expected");
    copy_model();
    edit_shard(retype);
    expect(DI_ERR_FORMAT, "tensor " NORM " has the wrong dtype: it is F16 [64], BF16 [64] was expected");
    copy_model();
    edit_shard(add_copy);
    expect(DI_ERR_FORMAT, "tensor embed.weight occurs twice, in ");
    copy_model();
    edit_shard(add_prefixed_copy);
    expect(DI_ERR_FORMAT, "tensor " NORM " occurs twice, in ");
    copy_model();
    edit_shard(add_extra);
    expect(DI_ERR_FORMAT, SHARD2 " contains tensor something.else, which the index does not name");
    copy_model();
    edit_shard(add_vision);
    edit_text(index, "\"weight_map\": {", "\"weight_map\": {\"image_pad\": \"" SHARD2 "\",");
    expect(DI_ERR_FORMAT, "tensor image_pad is no part of the vision tower");
    copy_model();
    edit_shard(rename_one);
    edit_text(index, NORM, "layers.3.attn.q_norm.weights");
    expect(DI_ERR_NOT_FOUND, "tensor " NORM " (BF16 [64]) is missing");
}

static void damaged_index(void **state)
{
    (void)state;
    const char *index = "model.safetensors.index.json", *entry = "\"" NORM "\": \"" SHARD2 "\"";
    static const struct {
        const char *to, *sentence;
        di_status status;
    } cases[] = {
        {"\"" NORM "\": \"../x.safetensors\"", "is said to be in \"../x.safetensors\", which is no plain file name", DI_ERR_FORMAT},
        {"\"" NORM "\": \"/etc/passwd\"", "no plain file name", DI_ERR_FORMAT},
        {"\"" NORM "\": \"..\"", "no plain file name", DI_ERR_FORMAT},
        {"\"" NORM "\": \"\"", "no plain file name", DI_ERR_FORMAT},
        {"\"" NORM "\": \"a\\u0000b\"", "no plain file name", DI_ERR_FORMAT},
        {"\"" NORM "\": 7", "the file name of tensor " NORM " must be a string, not number", DI_ERR_FORMAT},
        {"\"" NORM "\": \"model-00009-of-00003.safetensors\"",
         "the shard model-00009-of-00003.safetensors that the index names does not exist", DI_ERR_NOT_FOUND},
        {"\"" NORM "\": \"model-00001-of-00003.safetensors\"", "in model-00001-of-00003.safetensors, but it is in " SHARD2, DI_ERR_FORMAT},
        {"\"" NORM "\": \"" SHARD2 "\", \"" NORM "\": \"" SHARD2 "\"", "occurs twice in one object", DI_ERR_FORMAT},
        {"\"" NORM "\": \"" SHARD2 "\", \"model." NORM "\": \"" SHARD2 "\"", "the index names tensor " NORM " twice", DI_ERR_FORMAT},
        {"\"" NORM "\": \"" SHARD2 "\", \"\": \"" SHARD2 "\"", "name is empty", DI_ERR_FORMAT},
        {"\"" NORM "\": \"" SHARD2 "\", \"x.y\": \"" SHARD2 "\"", "the index names tensor x.y in " SHARD2 ", which does not contain it",
         DI_ERR_FORMAT},
        {"\"" NORM "\" \"" SHARD2 "\"", "not valid JSON", DI_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        copy_model();
        edit_text(index, entry, cases[i].to);
        expect(cases[i].status, cases[i].sentence);
    }
    copy_model();
    edit_text(index, "weight_map", "weights");
    expect(DI_ERR_FORMAT, "must have an object weight_map");
    copy_model();
    edit_text(index, "\"" NORM "\": \"" SHARD2 "\",", "");
    expect(DI_ERR_FORMAT, SHARD2 " contains tensor " NORM ", which the index does not name");
}

static void damaged_files(void **state)
{
    (void)state;
    copy_model();
    assert_int_equal(truncate(in_dir(SHARD2), 200000), 0);
    expect(DI_ERR_FORMAT, "the file is truncated: tensor ");
    assert_int_equal(truncate(in_dir(SHARD2), 100), 0);
    expect(DI_ERR_FORMAT, "it claims a header of ");
    assert_int_equal(truncate(in_dir(SHARD2), 0), 0);
    expect(DI_ERR_FORMAT, "0 bytes are too few");
    unlink(in_dir(SHARD2));
    expect(DI_ERR_NOT_FOUND, "the shard " SHARD2 " that the index names does not exist");
    assert_int_equal(mkdir(in_dir(SHARD2), 0755), 0);
    expect(DI_ERR_INVALID, "a regular file was expected");
    assert_int_equal(rmdir(in_dir(SHARD2)), 0);
    copy_model();
    edit_text(SHARD2, "\"data_offsets\":[0,", "\"data_offsets\":[8,");
    expect(DI_ERR_FORMAT, "its dtype and shape need");
    unlink(in_dir("model.safetensors.index.json"));
    expect(DI_ERR_NOT_FOUND, "neither model.safetensors.index.json nor model.safetensors is there");
    unlink(in_dir("config.json"));
    expect(DI_ERR_NOT_FOUND, "the file cannot be opened");
}

/* ---------------------------------------------------------------- other layouts that are right */

/* All tensors of the model for which keep() holds, in one file without an index. */
static void write_single(bool (*keep)(const char *name), const char *prefix)
{
    struct di_checkpoint ck;
    struct di_arena arena;
    assert_int_equal(di_checkpoint_open(MODEL, &ck, NULL), DI_OK);
    di_arena_init(&arena);
    struct di_tensor *list = di_calloc(ck.count, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; i < ck.count; i++) {
        if (!keep(ck.tensors[i]->name.p))
            continue;
        char name[200];
        snprintf(name, sizeof name, "%s%s", prefix, ck.tensors[i]->name.p);
        list[n] = *ck.tensors[i];
        list[n].name = di_str_c(di_arena_strndup(&arena, name, strlen(name)));
        n++;
    }
    assert_int_equal(di_safetensors_write(in_dir("model.safetensors"), list, n, NULL), DI_OK);
    di_free(list);
    di_arena_fini(&arena);
    di_checkpoint_close(&ck);
}

static bool keep_all(const char *name)
{
    (void)name;
    return true;
}
static bool keep_text(const char *name)
{
    return strncmp(name, "mtp.", 4) && strncmp(name, "vision.", 7) && strncmp(name, "aligner.", 8) && strncmp(name, "image_", 6);
}
static bool keep_some_draft(const char *name)
{
    return keep_text(name) || strncmp(name, "mtp.0.", 6) == 0;
}
static bool keep_some_vision(const char *name)
{
    return keep_text(name) || strcmp(name, "image_start") == 0;
}

static void single_file(void **state)
{
    (void)state;
    struct di_checkpoint ck;
    di_error err = {0};
    copy_model();
    unlink(in_dir("model.safetensors.index.json"));
    write_single(keep_all, "");
    assert_int_equal(di_checkpoint_open(dir, &ck, &err), DI_OK);
    size_t all = ck.count;
    assert_true(ck.has_draft && ck.has_vision);
    di_checkpoint_close(&ck);
    write_single(keep_all, "model.");
    assert_int_equal(di_checkpoint_open(dir, &ck, &err), DI_OK);
    assert_int_equal(ck.count, all);
    assert_non_null(di_checkpoint_find(&ck, NORM));
    di_checkpoint_close(&ck);
    write_single(keep_text, "");
    assert_int_equal(di_checkpoint_open(dir, &ck, &err), DI_OK);
    assert_true(!ck.has_draft && !ck.has_vision && ck.n_extra == 0);
    di_checkpoint_close(&ck);
    write_single(keep_some_vision, "");
    expect(DI_ERR_NOT_FOUND, "is missing: the vision tensors are there only in part");
}

/* ---------------------------------------------------------------- drafts that are not used */

#define MARKOV "mtp.2.markov_head.head.weight"

static size_t drop_scale(struct di_tensor *list, size_t n)
{
    *pick(list, n, "mtp.1.attn.wq_a.scale") = list[n - 1];
    return n - 1;
}
static size_t reshape_markov(struct di_tensor *list, size_t n)
{
    struct di_tensor *t = pick(list, n, MARKOV);
    int64_t rows = t->shape[0];
    t->shape[0] = t->shape[1];
    t->shape[1] = rows;
    return n;
}
static size_t retype_markov(struct di_tensor *list, size_t n)
{
    pick(list, n, MARKOV)->dtype = DI_DT_F16;
    return n;
}
static size_t add_gate(struct di_tensor *list, size_t n)
{
    list[n] = *pick(list, n, MARKOV);
    list[n].name = DI_STR("mtp.2.markov_head.gate.weight");
    return n + 1;
}

/* An answer needs no draft: the checkpoint is opened, and says what is wrong. */
static void expect_fault(di_status want, const char *sentence)
{
    struct di_checkpoint ck;
    di_error err = {0};
    if (di_checkpoint_open(dir, &ck, &err) != DI_OK)
        fail_msg("%s", err.message);
    if (ck.has_draft || ck.draft_fault.code != want || !strstr(ck.draft_fault.message, sentence))
        fail_msg("\"%s\" (%s) lacks \"%s\"", ck.draft_fault.message, di_status_name(ck.draft_fault.code), sentence);
    di_checkpoint_close(&ck);
}

static void damaged_drafts(void **state)
{
    static const struct {
        edit_fn edit;
        di_status status;
        const char *sentence;
    } cases[] = {
        {drop_scale, DI_ERR_NOT_FOUND, "tensor mtp.1.attn.wq_a.scale ("},
        {drop_scale, DI_ERR_NOT_FOUND, "is missing: the draft tensors are there only in part"},
        {reshape_markov, DI_ERR_FORMAT, "tensor " MARKOV " has the wrong shape"},
        {retype_markov, DI_ERR_FORMAT, "tensor " MARKOV " has the wrong dtype"},
        {add_gate, DI_ERR_FORMAT, "tensor mtp.2.markov_head.gate.weight is no part of the draft that config.json describes"},
    };
    (void)state;
    copy_model();
    unlink(in_dir("model.safetensors.index.json"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_single(keep_all, "");
        edit_file("model.safetensors", cases[i].edit);
        expect_fault(cases[i].status, cases[i].sentence);
    }
    write_single(keep_some_draft, "");
    expect_fault(DI_ERR_NOT_FOUND, "is missing: the draft tensors are there only in part");
    write_single(keep_text, "");
    expect_fault(DI_ERR_NOT_FOUND, "the checkpoint has no tensors of a draft (mtp.*)");
}

static void extras_are_counted(void **state)
{
    (void)state;
    struct di_checkpoint ck;
    di_error err = {0};
    copy_model();
    edit_shard(add_extra);
    edit_text("model.safetensors.index.json", "\"weight_map\": {", "\"weight_map\": {\"something.else\": \"" SHARD2 "\",");
    if (di_checkpoint_open(dir, &ck, &err) != DI_OK)
        fail_msg("%s", err.message);
    assert_int_equal(ck.n_extra, 1);
    di_checkpoint_close(&ck);
}

static void no_memory(void **state)
{
    (void)state;
    struct di_checkpoint ck;
    di_error err;
    di_status status = DI_ERR_MEMORY;
    for (uint64_t n = 0; status != DI_OK; n++) {
        di_mem_fail_after(n);
        status = di_checkpoint_open(MODEL, &ck, &err);
        di_mem_fail_after(UINT64_MAX);
        assert_true(status == DI_OK || status == DI_ERR_MEMORY);
    }
    di_checkpoint_close(&ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_totals), cmocka_unit_test(published_parameters),
        cmocka_unit_test(inventory_stops),  cmocka_unit_test(models_open),
        cmocka_unit_test(damaged_tensors),  cmocka_unit_test(damaged_index),
        cmocka_unit_test(damaged_files),    cmocka_unit_test(single_file),
        cmocka_unit_test(damaged_drafts),   cmocka_unit_test(extras_are_counted),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, make_dir, remove_dir);
}
