/* Whole files in and out. */
#ifndef DI_BASE_FILE_H
#define DI_BASE_FILE_H

#include "base/str.h"

/* Append the content of a regular file to `out`. DI_ERR_NOT_FOUND if there is none, DI_ERR_LIMIT if it is longer than max_bytes. */
di_status di_file_read(const char *path, size_t max_bytes, struct di_buf *out, di_error *err);

/* Open a regular file for reading and give its size. The caller closes *fd. Never blocks on a pipe or device. */
di_status di_file_open(const char *path, int *fd, size_t *bytes, di_error *err);
/* Exactly n bytes at an offset, however often the system interrupts; a file that became shorter is DI_ERR_IO. */
di_status di_file_pread(int fd, const char *path, void *to, size_t n, size_t offset, di_error *err);
/* All n bytes. */
di_status di_file_write(int fd, const char *path, const void *from, size_t n, di_error *err);
/* Append what is left of a pipe or file until its end. More than max_bytes is DI_ERR_LIMIT. */
di_status di_stream_read(int fd, const char *name, size_t max_bytes, struct di_buf *out, di_error *err);
/* Create or replace `path` so that a crash leaves the old content or the new one: written beside it, synced, renamed. What is no plain file
 * is written itself, see below. */
di_status di_file_replace(const char *path, struct di_str content, di_error *err);
/* May a file be renamed to `path`? True if nothing or a plain file is there. A device, pipe or link must be written itself: renaming would
 * put a file in the place of /dev/null. */
bool di_file_replaceable(const char *path);

#endif
