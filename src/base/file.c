#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

di_status di_stream_read(int fd, const char *name, size_t max_bytes, struct di_buf *out, di_error *err)
{
    for (size_t total = 0;;) {
        /* One byte more than allowed is asked for, so that exactly max_bytes is told from more. */
        size_t want = max_bytes - total < 65536 ? max_bytes - total + 1 : 65536;
        if (!di_buf_reserve(out, want))
            return di_buf_ok(out, err);
        ssize_t got = read(fd, out->p + out->n, want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return di_fail(err, DI_ERR_IO, name, "reading failed: %s", strerror(errno));
        if (got == 0)
            return DI_OK;
        if ((size_t)got > max_bytes - total)
            return di_fail(err, DI_ERR_LIMIT, name, "longer than the limit of %zu bytes", max_bytes);
        out->n += (size_t)got;
        out->p[out->n] = 0;
        total += (size_t)got;
    }
}

/* A rename is durable only once its directory is on disk. Some file systems refuse to sync one; then nothing more can be done. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct di_buf dir = {0};
    if (slash)
        di_buf_add(&dir, path, (size_t)(slash - path) + 1);
    else
        di_buf_adds(&dir, ".");
    int fd = dir.failed ? -1 : open(dir.p, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    di_buf_fini(&dir);
}

bool di_file_replaceable(const char *path)
{
    struct stat st;
    return lstat(path, &st) != 0 || S_ISREG(st.st_mode);
}

static di_status write_in_place(const char *path, struct di_str content, di_error *err)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return di_fail(err, DI_ERR_IO, path, "it cannot be written: %s", strerror(errno));
    di_status status = di_file_write(fd, path, content.p, content.n, err);
    if (close(fd) != 0 && status == DI_OK)
        status = di_fail(err, DI_ERR_IO, path, "writing failed: %s", strerror(errno));
    return status;
}

di_status di_file_replace(const char *path, struct di_str content, di_error *err)
{
    if (!di_file_replaceable(path))
        return write_in_place(path, content, err);
    struct di_buf tmp = {0};
    int fd = -1;
    bool ours = false; /* a file named tmp exists and is this call's */
    di_status status = DI_OK;
    for (int k = 0; k < 100 && fd < 0; k++) {
        di_buf_clear(&tmp);
        di_buf_addf(&tmp, "%s.tmp%ld.%d", path, (long)getpid(), k);
        TRY(di_buf_ok(&tmp, err));
        fd = open(tmp.p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    CHECK(fd >= 0, err, DI_ERR_IO, path, "a file beside it cannot be created: %s", strerror(errno));
    ours = true;
    TRY(di_file_write(fd, path, content.p, content.n, err));
    CHECK(fsync(fd) == 0, err, DI_ERR_IO, path, "writing failed: %s", strerror(errno));
    int closed = close(fd);
    fd = -1;
    CHECK(closed == 0 && rename(tmp.p, path) == 0, err, DI_ERR_IO, path, "writing failed: %s", strerror(errno));
    ours = false;
    sync_directory(path);
out:
    if (fd >= 0)
        close(fd);
    if (ours)
        unlink(tmp.p);
    di_buf_fini(&tmp);
    return status;
}
