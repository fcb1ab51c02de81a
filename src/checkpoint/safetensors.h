/* safetensors files: hostile until checked. A file is memory-mapped; only its header is read at open, tensor bytes when touched. */
#ifndef DI_CHECKPOINT_SAFETENSORS_H
#define DI_CHECKPOINT_SAFETENSORS_H

#include "base/mapping.h"
#include "base/str.h"

enum di_dtype {
    DI_DT_BOOL,
    DI_DT_U8,
    DI_DT_I8,
    DI_DT_F8_E4M3,
    DI_DT_F8_E8M0,
    DI_DT_I16,
    DI_DT_U16,
    DI_DT_F16,
    DI_DT_BF16,
    DI_DT_I32,
    DI_DT_U32,
    DI_DT_F32,
    DI_DT_I64,
    DI_DT_U64,
    DI_DT_F64,
    DI_DT_COUNT
};
size_t di_dtype_bytes(enum di_dtype t);

#define DI_MAX_DIMS 6

struct di_tensor {
    struct di_str name; /* a 0 byte follows */
    enum di_dtype dtype;
    int ndim; /* 0: a scalar */
    int64_t shape[DI_MAX_DIMS];
    const uint8_t *data; /* in the mapping, aligned to the element size */
    size_t bytes;
};

/* Append "BF16 [5120, 256]". */
void di_tensor_describe(struct di_buf *b, enum di_dtype dtype, int ndim, const int64_t *shape);

struct di_safetensors {
    char *path;
    const uint8_t *map;
    size_t map_bytes, data_start;
    struct di_tensor *tensors; /* sorted by name */
    size_t count;
    struct di_arena arena;
    struct di_mapping *mapping; /* of the file; NULL for an image in memory */
};

/* Checks everything of the format: header length against the file, JSON, dtypes, shapes (overflow), offsets inside the data, sizes equal to
 * shape x dtype, alignment, no overlap, no hole, no duplicate name. Each failure has its own sentence and names file and tensor. A file
 * that changes afterwards is told by di_safetensors_check. On failure nothing needs closing. */
di_status di_safetensors_open(const char *path, struct di_safetensors *st, di_error *err);
/* The same for a file image in memory, which is borrowed and must be 8-byte aligned. */
di_status di_safetensors_parse(const void *image, size_t bytes, const char *where, struct di_safetensors *st, di_error *err);
void di_safetensors_close(struct di_safetensors *st);
/* Was all that was read of it so far what it held when it was opened (di_mapping_check)? */
di_status di_safetensors_check(const struct di_safetensors *st, di_error *err);
/* By binary search; NULL if absent. */
const struct di_tensor *di_safetensors_find(const struct di_safetensors *st, const char *name);

/* Write a file with the given tensors (name, dtype, shape, bytes and data of each; any order of names). The data of wide elements comes
 * first, so that all is aligned. Written to a temporary name beside `path` and renamed, so that a reader never sees half a file;
 * what is no plain file (a device, a pipe, a link) is written itself. */
di_status di_safetensors_write(const char *path, const struct di_tensor *tensors, size_t count, di_error *err);

#endif
