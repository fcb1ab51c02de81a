#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

di_status di_file_open(const char *path, int *fd, size_t *bytes, di_error *err)
{
    struct stat sb;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return di_fail(err, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, path, "the file cannot be opened: %s", strerror(errno));
    di_status status = DI_OK;
    if (fstat(*fd, &sb) != 0)
        status = di_fail(err, DI_ERR_IO, path, "the size of the file cannot be read: %s", strerror(errno));
    else if (!S_ISREG(sb.st_mode))
        status = di_fail(err, DI_ERR_INVALID, path, "a regular file was expected");
    if (status != DI_OK) {
        close(*fd);
        *fd = -1;
        return status;
    }
    *bytes = (size_t)sb.st_size;
    return DI_OK;
}

di_status di_file_pread(int fd, const char *path, void *to, size_t n, size_t offset, di_error *err)
{
    for (char *p = to; n > 0;) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return di_fail(err, DI_ERR_IO, path, "reading failed at byte %zu: %s", offset, strerror(errno));
        if (got == 0)
            return di_fail(err, DI_ERR_IO, path, "the file ends at byte %zu, %zu bytes too early", offset, n);
        p += got;
        n -= (size_t)got;
        offset += (size_t)got;
    }
    return DI_OK;
}

di_status di_file_write(int fd, const char *path, const void *from, size_t n, di_error *err)
{
    for (const char *p = from; n > 0;) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return di_fail(err, DI_ERR_IO, path, "writing failed: %s", strerror(errno));
        p += put;
        n -= (size_t)put;
    }
    return DI_OK;
}

di_status di_file_read(const char *path, size_t max_bytes, struct di_buf *out, di_error *err)
{
    int fd = -1;
    size_t bytes = 0;
    di_status status = di_file_open(path, &fd, &bytes, err);
    if (status != DI_OK)
        return status;
    CHECK(bytes <= max_bytes, err, DI_ERR_LIMIT, path, "the file has %zu bytes, more than the limit of %zu", bytes, max_bytes);
    CHECK(di_buf_reserve(out, bytes), err, DI_ERR_MEMORY, path, "out of memory while reading %zu bytes", bytes);
    TRY(di_file_pread(fd, path, out->p + out->n, bytes, 0, err));
    out->n += bytes;
    out->p[out->n] = 0;
out:
    close(fd);
    return status;
}
