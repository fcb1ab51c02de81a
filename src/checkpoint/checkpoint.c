#define _DEFAULT_SOURCE /* madvise */
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_INDEX ((size_t)256 << 20) /* bytes of the index file */
#define MAX_SHARDS 4096

/* A tensor of a shard, or an entry of the index. */
struct place {
    const char *name; /* bare */
    uint32_t shard;
    const struct di_tensor *tensor; /* NULL in the index */
};

struct loader {
    struct di_checkpoint *ck;
    struct di_arena arena; /* index text and tree, file names */
    const char **files;    /* of the shards */
    size_t n_files;
    char *index_path;
    bool indexed;
    struct place *index, *found; /* sorted by name */
    size_t n_index, n_found;
    bool *wanted; /* [n_found]: the inventory asks for it */
    di_error *err;
};

static const char *bare_name(const char *name)
{
    return strncmp(name, "model.", 6) == 0 ? name + 6 : name;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

static char *join_path(struct di_arena *arena, const char *dir, const char *file)
{
    size_t n = strlen(dir) + strlen(file) + 2;
    char *p = di_arena_alloc(arena, n);
    if (p)
        snprintf(p, n, "%s/%s", dir, file);
    return p;
}

static di_status no_memory(struct loader *ld)
{
    return di_fail(ld->err, DI_ERR_MEMORY, ld->ck->dir, "out of memory while opening the checkpoint");
}

/* Number of the shard with this file name; a new one if it has not been seen. Neighbouring entries mostly share one. */
static di_status shard_number(struct loader *ld, const struct di_json *m, uint32_t *last)
{
    const struct di_str file = m->text;
    const int key = (int)(m->key.n > 100 ? 100 : m->key.n);
    if (!di_json_is(m, DI_JSON_STRING))
        return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "the file name of tensor %.*s must be a string, not %s", key, m->key.p,
                       di_json_type_name(m));
    if (file.n == 0 || file.n > 255 || file.p[0] == '.' || memchr(file.p, '/', file.n) || memchr(file.p, '\\', file.n) ||
        memchr(file.p, 0, file.n))
        return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "tensor %.*s is said to be in \"%.*s\", which is no plain file name", key,
                       m->key.p, (int)(file.n > 100 ? 100 : file.n), file.p);
    if (ld->n_files && di_str_eqc(file, ld->files[*last]))
        return DI_OK;
    for (*last = 0; *last < ld->n_files; ++*last)
        if (di_str_eqc(file, ld->files[*last]))
            return DI_OK;
    if (ld->n_files == MAX_SHARDS)
        return di_fail(ld->err, DI_ERR_LIMIT, ld->index_path, "the index names more than %d shard files", MAX_SHARDS);
    ld->files[ld->n_files] = di_arena_strndup(&ld->arena, file.p, file.n);
    return ld->files[ld->n_files++] ? DI_OK : no_memory(ld);
}

static di_status read_weight_map(struct loader *ld, const struct di_json *map)
{
    uint32_t shard = 0;
    ld->index = di_calloc(map->count, sizeof *ld->index);
    if (!ld->index)
        return no_memory(ld);
    for (const struct di_json *m = map->child; m; m = m->next) {
        di_status status = shard_number(ld, m, &shard);
        if (status != DI_OK)
            return status;
        if (m->key.n == 0 || memchr(m->key.p, 0, m->key.n))
            return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "the index has a tensor whose name is empty or contains a 0 byte");
        char *name = di_arena_strndup(&ld->arena, m->key.p, m->key.n);
        if (!name)
            return no_memory(ld);
        ld->index[ld->n_index++] = (struct place){bare_name(name), shard, NULL};
    }
    qsort(ld->index, ld->n_index, sizeof *ld->index, by_name);
    for (size_t i = 1; i < ld->n_index; i++)
        if (strcmp(ld->index[i].name, ld->index[i - 1].name) == 0)
            return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "the index names tensor %.100s twice", ld->index[i].name);
    return DI_OK;
}

/* File names and index entries, from the index or for a single file. */
static di_status read_index(struct loader *ld)
{
    struct di_buf text = {0};
    struct di_arena scratch;
    struct di_json_limits limits = {.max_depth = 8, .refuse_duplicates = true};
    struct di_json *root;
    di_arena_init(&scratch);
    ld->index_path = join_path(&ld->arena, ld->ck->dir, "model.safetensors.index.json");
    ld->files = di_calloc(MAX_SHARDS, sizeof *ld->files);
    di_status status = ld->index_path && ld->files ? DI_OK : no_memory(ld);
    if (status == DI_OK)
        status = di_file_read(ld->index_path, MAX_INDEX, &text, ld->err);
    if (status == DI_ERR_NOT_FOUND) {
        ld->files[ld->n_files++] = "model.safetensors";
        status = DI_OK;
        goto out;
    }
    TRY(status);
    ld->indexed = true;
    status = di_json_parse(di_buf_str(&text), &limits, &scratch, &root, ld->err);
    if (status != DI_OK) {
        di_error inner = ld->err ? *ld->err : (di_error){0};
        TRY(di_fail(ld->err, status, ld->index_path, "%s%s%.60s", inner.message, inner.where[0] ? ", at " : "", inner.where));
    }
    const struct di_json *map = di_json_get(root, "weight_map");
    CHECK(di_json_is(map, DI_JSON_OBJECT) && map->count > 0, ld->err, DI_ERR_FORMAT, ld->index_path,
          "the index must have an object weight_map that names tensors");
    TRY(read_weight_map(ld, map));
out:
    di_arena_fini(&scratch);
    di_buf_fini(&text);
    return status;
}

static di_status open_shards(struct loader *ld)
{
    struct di_checkpoint *ck = ld->ck;
    di_status status = DI_OK;
    ck->shards = di_calloc(ld->n_files, sizeof *ck->shards);
    if (!ck->shards)
        return no_memory(ld);
    for (size_t i = 0; i < ld->n_files; i++) {
        char *path = join_path(&ld->arena, ck->dir, ld->files[i]);
        if (!path)
            return no_memory(ld);
        status = di_safetensors_open(path, &ck->shards[i], ld->err);
        if (status == DI_ERR_NOT_FOUND)
            return ld->indexed ? di_fail(ld->err, status, ld->index_path, "the shard %s that the index names does not exist", ld->files[i])
                               : di_fail(ld->err, status, ck->dir, "neither model.safetensors.index.json nor model.safetensors is there");
        if (status != DI_OK)
            return status;
        ck->n_shards++;
        ld->n_found += ck->shards[i].count;
    }
    return DI_OK;
}

/* All tensors of all shards under their bare names, sorted; a name that occurs twice is refused. */
static di_status collect_tensors(struct loader *ld)
{
    struct di_checkpoint *ck = ld->ck;
    ld->found = di_calloc(ld->n_found, sizeof *ld->found);
    ld->wanted = di_calloc(ld->n_found, sizeof *ld->wanted);
    ck->tensors = di_calloc(ld->n_found, sizeof *ck->tensors);
    if (!ld->found || !ld->wanted || !ck->tensors)
        return no_memory(ld);
    size_t n = 0;
    for (size_t s = 0; s < ck->n_shards; s++)
        for (size_t i = 0; i < ck->shards[s].count; i++) {
            struct di_str *name = &ck->shards[s].tensors[i].name;
            size_t prefix = (size_t)(bare_name(name->p) - name->p);
            name->p += prefix;
            name->n -= prefix;
            ld->found[n++] = (struct place){name->p, (uint32_t)s, &ck->shards[s].tensors[i]};
        }
    qsort(ld->found, n, sizeof *ld->found, by_name);
    for (size_t i = 0; i < n; i++) {
        const struct place *p = &ld->found[i];
        if (i > 0 && strcmp(p->name, p[-1].name) == 0)
            return di_fail(ld->err, DI_ERR_FORMAT, ck->dir, "tensor %.100s occurs twice, in %s and in %s", p->name, ld->files[p[-1].shard],
                           ld->files[p->shard]);
        ck->tensors[i] = p->tensor;
    }
    ck->count = n;
    return DI_OK;
}

static di_status compare_with_index(struct loader *ld)
{
    for (size_t i = 0, k = 0; ld->indexed && (i < ld->n_index || k < ld->n_found);) {
        const struct place *a = &ld->index[i], *b = &ld->found[k];
        int order = i == ld->n_index ? 1 : k == ld->n_found ? -1 : strcmp(a->name, b->name);
        if (order < 0)
            return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "the index names tensor %.100s in %s, which does not contain it",
                           a->name, ld->files[a->shard]);
        if (order > 0)
            return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "%s contains tensor %.100s, which the index does not name",
                           ld->files[b->shard], b->name);
        if (a->shard != b->shard)
            return di_fail(ld->err, DI_ERR_FORMAT, ld->index_path, "the index names tensor %.100s in %s, but it is in %s", a->name,
                           ld->files[a->shard], ld->files[b->shard]);
        i++;
        k++;
    }
    return DI_OK;
}

static bool in_draft(const char *name)
{
    return strncmp(name, "mtp.", 4) == 0;
}

static bool in_vision(const char *name)
{
    return strncmp(name, "vision.", 7) == 0 || strncmp(name, "aligner.", 8) == 0 || strncmp(name, "image_", 6) == 0;
}

static di_status check_tensor(struct loader *ld, const struct di_inventory_item *item, const struct di_inventory_tensor *t)
{
    struct di_checkpoint *ck = ld->ck;
    di_error *err = item->part == DI_PART_DRAFT ? &ck->draft_fault : ld->err;
    struct di_buf want = {0}, have = {0};
    di_status status = DI_OK;
    const struct place key = {t->name, 0, NULL}, *p = ld->n_found ? bsearch(&key, ld->found, ld->n_found, sizeof key, by_name) : NULL;
    const struct di_tensor *is = p ? p->tensor : NULL;
    if (is) {
        ld->wanted[p - ld->found] = true;
        if (is->dtype == t->dtype && is->ndim == t->ndim && memcmp(is->shape, t->shape, sizeof is->shape) == 0)
            return DI_OK;
    }
    di_tensor_describe(&want, t->dtype, t->ndim, t->shape);
    TRY(di_buf_ok(&want, err));
    CHECK(is || (item->part != DI_PART_DRAFT && item->part != DI_PART_VISION), err, DI_ERR_NOT_FOUND, ck->dir,
          "tensor %s (%s) is missing: the %s tensors are there only in part", t->name, want.p, di_part_name(item->part));
    CHECK(is, err, DI_ERR_NOT_FOUND, ck->dir, "tensor %s (%s) is missing", t->name, want.p);
    di_tensor_describe(&have, is->dtype, is->ndim, is->shape);
    TRY(di_buf_ok(&have, err));
    CHECK(is->dtype == t->dtype, err, DI_ERR_FORMAT, ck->shards[p->shard].path, "tensor %s has the wrong dtype: it is %s, %s was expected",
          t->name, have.p, want.p);
    CHECK(false, err, DI_ERR_FORMAT, ck->shards[p->shard].path, "tensor %s has the wrong shape: it is %s, %s was expected", t->name, have.p,
          want.p);
out:
    di_buf_fini(&want);
    di_buf_fini(&have);
    return status;
}

static di_status check_item(void *ctx, const struct di_inventory_item *item)
{
    struct loader *ld = ctx;
    di_status status = DI_OK;
    bool draft = item->part == DI_PART_DRAFT;
    if ((draft && !ld->ck->has_draft) || (item->part == DI_PART_VISION && !ld->ck->has_vision))
        return DI_OK;
    for (int i = 0; i < item->n_stored && status == DI_OK; i++)
        status = check_tensor(ld, item, &item->stored[i]);
    if (draft && status != DI_OK)
        ld->ck->has_draft = false; /* what is wrong is noted */
    return draft ? DI_OK : status;
}

static di_status check_inventory(struct loader *ld)
{
    struct di_checkpoint *ck = ld->ck;
    for (size_t i = 0; i < ld->n_found; i++) {
        ck->has_draft = ck->has_draft || (ck->config.num_nextn_predict_layers > 0 && in_draft(ld->found[i].name));
        ck->has_vision = ck->has_vision || (ck->config.has_vision && in_vision(ld->found[i].name));
    }
    if (ck->config.num_nextn_predict_layers > 0 && !ck->has_draft)
        (void)di_fail(&ck->draft_fault, DI_ERR_NOT_FOUND, ck->dir, "the checkpoint has no tensors of a draft (mtp.*)");
    di_status status = di_inventory_each(&ck->config, check_item, ld);
    for (size_t i = 0; status == DI_OK && i < ld->n_found; i++) {
        ck->n_extra += !ld->wanted[i];
        if (!ld->wanted[i] && ck->has_draft && in_draft(ld->found[i].name)) {
            (void)di_fail(&ck->draft_fault, DI_ERR_FORMAT, ck->dir, "tensor %.100s is no part of the draft that config.json describes",
                          ld->found[i].name);
            ck->has_draft = false;
        }
        if (!ld->wanted[i] && ck->has_vision && in_vision(ld->found[i].name))
            status = di_fail(ld->err, DI_ERR_FORMAT, ck->dir, "tensor %.100s is no part of the vision tower that config.json describes",
                             ld->found[i].name);
    }
    return status;
}

di_status di_checkpoint_open(const char *dir, struct di_checkpoint *ck, di_error *err)
{
    struct loader ld = {.ck = ck, .err = err};
    *ck = (struct di_checkpoint){0};
    di_status status = DI_OK;
    di_arena_init(&ld.arena);
    ck->dir = di_malloc(strlen(dir) + 1);
    CHECK(ck->dir, err, DI_ERR_MEMORY, dir, "out of memory while opening the checkpoint");
    strcpy(ck->dir, dir);
    TRY(di_config_load(dir, &ck->config, err));
    TRY(read_index(&ld));
    TRY(open_shards(&ld));
    TRY(collect_tensors(&ld));
    TRY(compare_with_index(&ld));
    TRY(check_inventory(&ld));
out:
    di_arena_fini(&ld.arena);
    di_free(ld.files);
    di_free(ld.index);
    di_free(ld.found);
    di_free(ld.wanted);
    if (status != DI_OK)
        di_checkpoint_close(ck);
    return status;
}

static di_status add_tensor(void *ctx, const struct di_inventory_item *item)
{
    uint64_t *bytes = ctx;
    for (int i = 0; i < item->n_stored; i++)
        *bytes += sizeof(struct di_tensor) + sizeof(struct di_tensor *) + ((strlen(item->stored[i].name) + 16) & ~(size_t)15);
    return DI_OK;
}

void di_checkpoint_plan(const struct di_config *c, di_memory_plan *plan)
{
    uint64_t bytes = 0;
    (void)di_inventory_each(c, add_tensor, &bytes); /* add_tensor cannot fail */
    const di_memory_region r = {.group = DI_GROUP_WEIGHTS, .place = DI_PLACE_HOST, .name = "directory", .count = 1, .unit_bytes = bytes};
    di_plan_add(plan, &r, "names and places of tensors in the files");
}

void di_checkpoint_close(struct di_checkpoint *ck)
{
    for (size_t i = 0; i < ck->n_shards; i++)
        di_safetensors_close(&ck->shards[i]);
    di_free(ck->shards);
    di_free(ck->tensors);
    di_free(ck->dir);
    *ck = (struct di_checkpoint){0};
}

di_status di_checkpoint_check(const struct di_checkpoint *ck, di_error *err)
{
    di_status status = DI_OK;
    for (size_t i = 0; i < ck->n_shards && status == DI_OK; i++)
        status = di_safetensors_check(&ck->shards[i], err);
    return status;
}

static int compare_key(const void *name, const void *tensor)
{
    return strcmp(name, (*(const struct di_tensor *const *)tensor)->name.p);
}

const struct di_tensor *di_checkpoint_find(const struct di_checkpoint *ck, const char *name)
{
    const struct di_tensor **hit = ck->count ? bsearch(name, ck->tensors, ck->count, sizeof *ck->tensors, compare_key) : NULL;
    return hit ? *hit : NULL;
}

const struct di_tensor *di_checkpoint_findf(const struct di_checkpoint *ck, const char *fmt, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return di_checkpoint_find(ck, name);
}

/* Only whole pages inside the tensor: its neighbours may still be in use. */
void di_tensor_forget(const struct di_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)t->data + page - 1) & ~(page - 1),
              to = ((uintptr_t)t->data + t->bytes) & ~(page - 1);
    if (from < to)
        (void)madvise((void *)from, to - from, MADV_DONTNEED); /* advice: failing loses nothing */
}

void di_checkpoint_forget(const struct di_checkpoint *ck)
{
    for (size_t i = 0; i < ck->n_shards; i++)
        (void)madvise((void *)(uintptr_t)ck->shards[i].map, ck->shards[i].map_bytes, MADV_DONTNEED);
}
