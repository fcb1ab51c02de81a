#include "checkpoint/safetensors.h"

#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_HEADER 100000000u /* bytes; the limit of the format's own library */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DI_DT_COUNT] = {
    [DI_DT_BOOL] = {"BOOL", 1},       [DI_DT_U8] = {"U8", 1},   [DI_DT_I8] = {"I8", 1},   [DI_DT_F8_E4M3] = {"F8_E4M3", 1},
    [DI_DT_F8_E8M0] = {"F8_E8M0", 1}, [DI_DT_I16] = {"I16", 2}, [DI_DT_U16] = {"U16", 2}, [DI_DT_F16] = {"F16", 2},
    [DI_DT_BF16] = {"BF16", 2},       [DI_DT_I32] = {"I32", 4}, [DI_DT_U32] = {"U32", 4}, [DI_DT_F32] = {"F32", 4},
    [DI_DT_I64] = {"I64", 8},         [DI_DT_U64] = {"U64", 8}, [DI_DT_F64] = {"F64", 8},
};

size_t di_dtype_bytes(enum di_dtype t)
{
    return dtypes[t].bytes;
}

/* The string of the file format: "BF16", "F8_E4M3", ... */
static const char *dtype_name(enum di_dtype t)
{
    return dtypes[t].name;
}

void di_tensor_describe(struct di_buf *b, enum di_dtype dtype, int ndim, const int64_t *shape)
{
    di_buf_addf(b, "%s [", dtype_name(dtype));
    for (int i = 0; i < ndim; i++)
        di_buf_addf(b, "%s%lld", i ? ", " : "", (long long)shape[i]);
    di_buf_addc(b, ']');
}

/* State of reading one header. */
struct reader {
    const char *where;
    size_t data_bytes;
    di_error *err;
};

/* Names come from outside: at most 100 bytes of one go into a message. */
#define NAME(s) (int)((s).n > 100 ? 100 : (s).n), (s).p

static di_status read_dtype(struct reader *r, const struct di_json *v, struct di_tensor *t)
{
    if (!di_json_is(v, DI_JSON_STRING))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: dtype must be a string, not %s", NAME(t->name), di_json_type_name(v));
    for (int k = 0; k < DI_DT_COUNT; k++) {
        if (di_str_eqc(v->text, dtypes[k].name)) {
            t->dtype = (enum di_dtype)k;
            return DI_OK;
        }
    }
    return di_fail(r->err, DI_ERR_UNSUPPORTED, r->where, "tensor %.*s: dtype \"%.*s\" is unknown", NAME(t->name), NAME(v->text));
}

/* Fills ndim, shape and bytes. */
static di_status read_shape(struct reader *r, const struct di_json *v, struct di_tensor *t)
{
    if (!di_json_is(v, DI_JSON_ARRAY) || v->count > DI_MAX_DIMS)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: shape must be an array of at most %d numbers", NAME(t->name),
                       DI_MAX_DIMS);
    t->bytes = di_dtype_bytes(t->dtype);
    for (const struct di_json *m = v->child; m; m = m->next) {
        int64_t d;
        if (!di_json_int(m, &d) || d < 0)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: dimension %d of its shape is no natural number", NAME(t->name),
                           t->ndim);
        if (!di_mul(t->bytes, (size_t)d, &t->bytes) || t->bytes > PTRDIFF_MAX)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: its shape has more bytes than an address can count",
                           NAME(t->name));
        t->shape[t->ndim++] = d;
    }
    return DI_OK;
}

static di_status read_tensor(struct reader *r, struct di_safetensors *st, const struct di_json *m, struct di_tensor *t)
{
    int64_t begin, end;
    *t = (struct di_tensor){.name = m->key};
    if (m->key.n == 0 || memchr(m->key.p, 0, m->key.n))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the header has a tensor whose name is empty or contains a 0 byte");
    if (!di_json_is(m, DI_JSON_OBJECT))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: an object was expected, not %s", NAME(t->name), di_json_type_name(m));
    di_status status = read_dtype(r, di_json_get(m, "dtype"), t);
    if (status == DI_OK)
        status = read_shape(r, di_json_get(m, "shape"), t);
    if (status != DI_OK)
        return status;
    const struct di_json *offsets = di_json_get(m, "data_offsets");
    if (!di_json_is(offsets, DI_JSON_ARRAY) || offsets->count != 2 || !di_json_int(di_json_at(offsets, 0), &begin) ||
        !di_json_int(di_json_at(offsets, 1), &end) || begin < 0 || end < begin)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: data_offsets must be two ascending natural numbers", NAME(t->name));
    if ((size_t)end > r->data_bytes)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "the file is truncated: tensor %.*s ends at byte %lld of the data, which has %zu",
                       NAME(t->name), (long long)end, r->data_bytes);
    if ((size_t)(end - begin) != t->bytes)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s: its dtype and shape need %zu bytes, its data_offsets give %lld",
                       NAME(t->name), t->bytes, (long long)(end - begin));
    if ((st->data_start + (size_t)begin) % di_dtype_bytes(t->dtype))
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensor %.*s is misaligned: its %s data begin at byte %zu of the file",
                       NAME(t->name), dtype_name(t->dtype), st->data_start + (size_t)begin);
    t->data = st->map + st->data_start + (size_t)begin;
    t->name.p = di_arena_strndup(&st->arena, m->key.p, m->key.n);
    return t->name.p ? DI_OK : di_fail(r->err, DI_ERR_MEMORY, r->where, "out of memory while reading the header");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct di_tensor *)a)->name.p, ((const struct di_tensor *)b)->name.p);
}

static int by_place(const void *a, const void *b)
{
    const struct di_tensor *s = a, *t = b;
    if (s->data != t->data)
        return s->data < t->data ? -1 : 1;
    return s->bytes < t->bytes ? -1 : s->bytes > t->bytes;
}

/* The data area must be covered exactly: leaves the tensors sorted by place. */
static di_status check_layout(struct reader *r, struct di_safetensors *st)
{
    qsort(st->tensors, st->count, sizeof *st->tensors, by_place);
    const uint8_t *data = st->map + st->data_start, *end = data;
    for (size_t i = 0; i < st->count; i++) {
        const struct di_tensor *t = &st->tensors[i];
        if (t->data < end)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "tensors %.*s and %.*s overlap", NAME(t[-1].name), NAME(t->name));
        if (t->data > end)
            return di_fail(r->err, DI_ERR_FORMAT, r->where, "a hole of %zu bytes lies before tensor %.*s", (size_t)(t->data - end),
                           NAME(t->name));
        end = t->data + t->bytes;
    }
    if ((size_t)(end - data) != r->data_bytes)
        return di_fail(r->err, DI_ERR_FORMAT, r->where, "%zu bytes of data at the end belong to no tensor",
                       r->data_bytes - (size_t)(end - data));
    return DI_OK;
}

static di_status check_metadata(struct reader *r, const struct di_json *v)
{
    bool good = di_json_is(v, DI_JSON_OBJECT);
    for (const struct di_json *m = good ? v->child : NULL; m; m = m->next)
        good = good && di_json_is(m, DI_JSON_STRING);
    return good ? DI_OK : di_fail(r->err, DI_ERR_FORMAT, r->where, "__metadata__ must be an object of strings");
}

/* st->map, map_bytes and data_start are set; `header` is its own copy or the image. */
static di_status read_header(struct di_safetensors *st, struct di_str header, const char *where, di_error *err)
{
    struct reader r = {where, st->map_bytes - st->data_start, err};
    struct di_json_limits limits = {.max_depth = 8, .refuse_duplicates = true};
    struct di_arena scratch;
    struct di_json *root;
    di_status status = DI_OK;
    di_arena_init(&scratch);
    CHECK(header.n > 0 && header.p[0] == '{', err, DI_ERR_FORMAT, where, "the header does not begin with '{': this is no safetensors file");
    status = di_json_parse(header, &limits, &scratch, &root, err);
    if (status != DI_OK) {
        di_error inner = err ? *err : (di_error){0};
        TRY(di_fail(err, status, where, "header: %s%s%.60s", inner.message, inner.where[0] ? ", at " : "", inner.where));
    }
    CHECK(di_json_is(root, DI_JSON_OBJECT), err, DI_ERR_FORMAT, where, "the header is no JSON object");
    st->tensors = di_calloc(root->count, sizeof *st->tensors);
    CHECK(st->tensors, err, DI_ERR_MEMORY, where, "out of memory for %zu tensors", root->count);
    for (const struct di_json *m = root->child; m; m = m->next) {
        if (di_str_eqc(m->key, "__metadata__"))
            TRY(check_metadata(&r, m));
        else
            TRY(read_tensor(&r, st, m, &st->tensors[st->count++]));
    }
    TRY(check_layout(&r, st));
    qsort(st->tensors, st->count, sizeof *st->tensors, by_name);
out:
    di_arena_fini(&scratch);
    return status;
}

/* The first 8 bytes: little-endian length of the header. */
static di_status header_bytes(const uint8_t *first8, size_t file_bytes, const char *where, size_t *out, di_error *err)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | first8[i];
    if (n > file_bytes - 8)
        return di_fail(err, DI_ERR_FORMAT, where,
                       "the file is truncated or no safetensors file: it claims a header of %llu bytes and has %zu in all",
                       (unsigned long long)n, file_bytes);
    if (n > MAX_HEADER)
        return di_fail(err, DI_ERR_LIMIT, where, "the header has %llu bytes, more than the limit of %u", (unsigned long long)n, MAX_HEADER);
    *out = (size_t)n;
    return DI_OK;
}

di_status di_safetensors_parse(const void *image, size_t bytes, const char *where, struct di_safetensors *st, di_error *err)
{
    size_t n = 0;
    *st = (struct di_safetensors){.map = image, .map_bytes = bytes};
    di_status status = DI_OK;
    CHECK(bytes >= 8, err, DI_ERR_FORMAT, where, "the file is truncated: %zu bytes are too few for a safetensors file", bytes);
    TRY(header_bytes(image, bytes, where, &n, err));
    st->data_start = 8 + n;
    TRY(read_header(st, (struct di_str){(const char *)image + 8, n}, where, err));
out:
    if (status != DI_OK)
        di_safetensors_close(st);
    return status;
}

/* The header is read into memory of its own: somebody may write to the file while it is parsed. */
di_status di_safetensors_open(const char *path, struct di_safetensors *st, di_error *err)
{
    int fd = -1;
    size_t bytes = 0, n = 0;
    uint8_t first8[8];
    char *header = NULL;
    *st = (struct di_safetensors){0};
    di_status status = di_file_open(path, &fd, &bytes, err);
    if (status != DI_OK)
        return status;
    CHECK(bytes >= 8, err, DI_ERR_FORMAT, path, "the file is truncated: %zu bytes are too few for a safetensors file", bytes);
    TRY(di_file_pread(fd, path, first8, 8, 0, err));
    TRY(header_bytes(first8, bytes, path, &n, err));
    header = di_malloc(n);
    st->path = di_malloc(strlen(path) + 1);
    CHECK(header && st->path, err, DI_ERR_MEMORY, path, "out of memory for a header of %zu bytes", n);
    strcpy(st->path, path);
    TRY(di_file_pread(fd, path, header, n, 8, err));
    int mapped = fd;
    fd = -1;
    TRY(di_mapping_open(mapped, path, bytes, &st->mapping, err));
    st->map = di_mapping_data(st->mapping);
    st->map_bytes = bytes;
    st->data_start = 8 + n;
    TRY(read_header(st, (struct di_str){header, n}, path, err));
out:
    if (fd >= 0)
        close(fd);
    di_free(header);
    if (status != DI_OK)
        di_safetensors_close(st);
    return status;
}

void di_safetensors_close(struct di_safetensors *st)
{
    di_mapping_close(st->mapping);
    di_free(st->tensors);
    di_free(st->path);
    di_arena_fini(&st->arena);
    *st = (struct di_safetensors){0};
}

di_status di_safetensors_check(const struct di_safetensors *st, di_error *err)
{
    return st->mapping ? di_mapping_check(st->mapping, err) : DI_OK;
}

const struct di_tensor *di_safetensors_find(const struct di_safetensors *st, const char *name)
{
    struct di_tensor key = {.name = {name, 0}};
    return st->count ? bsearch(&key, st->tensors, st->count, sizeof key, by_name) : NULL;
}

/* Append one header entry and move *offset behind the tensor. */
static di_status write_entry(struct di_buf *b, const struct di_tensor *t, size_t offset, const char *path, di_error *err)
{
    size_t need = di_dtype_bytes(t->dtype);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || !di_mul(need, (size_t)t->shape[i], &need))
            need = SIZE_MAX;
    if (need != t->bytes)
        return di_fail(err, DI_ERR_INVALID, path, "tensor %.*s: %zu bytes given, %zu needed", NAME(t->name), t->bytes, need);
    di_buf_addc(b, b->n > 8 + 1 ? ',' : ' ');
    di_json_write_string(b, t->name);
    di_buf_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        di_buf_addf(b, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    di_buf_addf(b, "],\"data_offsets\":[%zu,%zu]}", offset, offset + t->bytes);
    return DI_OK;
}

static di_status write_file(int fd, const char *path, const struct di_tensor *tensors, size_t count, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf b;
    size_t offset = 0;
    di_buf_init(&b);
    di_buf_add(&b, "\0\0\0\0\0\0\0\0{", 9);
    for (size_t width = 8; width; width /= 2)
        for (size_t i = 0; i < count; i++)
            if (di_dtype_bytes(tensors[i].dtype) == width) {
                TRY(write_entry(&b, &tensors[i], offset, path, err));
                offset += tensors[i].bytes;
            }
    di_buf_addc(&b, '}');
    while (b.n % 8 && !b.failed)
        di_buf_addc(&b, ' ');
    TRY(di_buf_ok(&b, err));
    for (int i = 0; i < 8; i++)
        b.p[i] = (char)((b.n - 8) >> (8 * i));
    TRY(di_file_write(fd, path, b.p, b.n, err));
    for (size_t width = 8; width; width /= 2)
        for (size_t i = 0; i < count; i++)
            if (di_dtype_bytes(tensors[i].dtype) == width)
                TRY(di_file_write(fd, path, tensors[i].data, tensors[i].bytes, err));
    CHECK(fsync(fd) == 0 || errno == EINVAL, err, DI_ERR_IO, path, "writing failed: %s", strerror(errno)); /* EINVAL: a device or pipe */
out:
    di_buf_fini(&b);
    return status;
}

di_status di_safetensors_write(const char *path, const struct di_tensor *tensors, size_t count, di_error *err)
{
    struct di_buf temporary;
    bool in_place = !di_file_replaceable(path);
    di_buf_init(&temporary);
    di_buf_addf(&temporary, "%s.%ld.tmp", path, (long)getpid());
    di_status status = di_buf_ok(&temporary, err);
    if (status != DI_OK)
        return status;
    int fd = in_place ? open(path, O_WRONLY | O_TRUNC | O_CLOEXEC)
                      : open(temporary.p, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    CHECK(fd >= 0, err, DI_ERR_IO, path, "the file cannot be created: %s", strerror(errno));
    status = write_file(fd, path, tensors, count, err);
    if (close(fd) != 0 && status == DI_OK)
        status = di_fail(err, DI_ERR_IO, path, "writing failed: %s", strerror(errno));
    if (status == DI_OK && !in_place && rename(temporary.p, path) != 0)
        status = di_fail(err, DI_ERR_IO, path, "the finished file cannot be renamed: %s", strerror(errno));
    if (status != DI_OK && !in_place)
        unlink(temporary.p);
out:
    di_buf_fini(&temporary);
    return status;
}
