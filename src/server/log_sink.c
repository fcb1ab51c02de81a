#define _GNU_SOURCE /* memrchr */
#include "server/log_sink.h"

#include "base/clock.h"
#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM ((size_t)1 << 20) /* bytes of lines that wait */
#define PIECE ((size_t)4096)   /* a pipe that can be written takes so many at once (PIPE_BUF) */
#define POLL_MS 50
#define CLOSE_MS 500

struct di_log_sink {
    pthread_mutex_t lock;
    pthread_cond_t filled, written;
    pthread_t thread;
    struct di_buf lines, writing; /* the writer's: `writing` */
    bool busy, stop;              /* busy: `writing` is not through */
    int fd, next_fd;              /* next_fd: takes the place of fd, -1 = none */
    bool owns_fd;
    uint64_t dropped;
};

static size_t count_lines(struct di_str s)
{
    size_t n = 0;
    for (const char *p = s.p, *end = s.p + s.n; p < end && (p = memchr(p, '\n', (size_t)(end - p))); p++)
        n++;
    return n;
}

static bool is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* Whole lines as far as they fit into a piece. */
static size_t piece_of(struct di_str s)
{
    if (s.n <= PIECE)
        return s.n;
    const char *end = memrchr(s.p, '\n', PIECE);
    return end ? (size_t)(end - s.p) + 1 : PIECE;
}

/* Returns the bytes that went, 0 = nothing now, -1 = they cannot go. Only here the thread can be cancelled: another process may have filled
 * the pipe since poll. */
static ssize_t write_piece(int fd, struct di_str s, bool file)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (!file && poll(&p, 1, POLL_MS) <= 0)
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    ssize_t n = write(fd, s.p, file ? s.n : piece_of(s));
    int e = errno;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    return n >= 0 ? n : e == EAGAIN || e == EINTR ? 0 : -1;
}

/* The writer, holding the lock. */
static void take_next_fd(struct di_log_sink *s)
{
    if (s->next_fd < 0)
        return;
    if (s->owns_fd)
        close(s->fd);
    s->fd = s->next_fd;
    s->next_fd = -1;
    s->owns_fd = true;
}

static void write_all(struct di_log_sink *s)
{
    struct di_str left = di_buf_str(&s->writing);
    bool stop = false;
    while (left.n && !stop) {
        ssize_t n = write_piece(s->fd, left, is_file(s->fd));
        pthread_mutex_lock(&s->lock);
        if (n < 0) { /* nobody can read it: a full disk, a pipe without a reader */
            n = (ssize_t)piece_of(left);
            s->dropped += count_lines((struct di_str){left.p, (size_t)n});
        }
        take_next_fd(s);
        stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        left.p += n;
        left.n -= (size_t)n;
        stop = stop && n == 0;
    }
}

static void *write_lines(void *arg)
{
    struct di_log_sink *s = arg;
    prctl(PR_SET_NAME, "log");
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->lines.n && !s->stop)
            pthread_cond_wait(&s->filled, &s->lock);
        if (!s->lines.n)
            break;
        struct di_buf t = s->writing;
        s->writing = s->lines;
        s->lines = t;
        s->busy = true;
        take_next_fd(s);
        pthread_mutex_unlock(&s->lock);
        write_all(s);
        pthread_mutex_lock(&s->lock);
        di_buf_clear(&s->writing);
        s->busy = false;
        pthread_cond_broadcast(&s->written);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static di_status sink_create(int fd, bool owns, struct di_log_sink **out, di_error *err)
{
    pthread_condattr_t monotonic;
    struct di_log_sink *s = di_calloc(1, sizeof *s);
    *out = s;
    if (!s) {
        if (owns)
            close(fd);
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory");
    }
    s->fd = fd;
    s->next_fd = -1;
    s->owns_fd = owns;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->filled, NULL);
    pthread_cond_init(&s->written, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (di_thread_create(&s->thread, write_lines, s) == 0)
        return DI_OK;
    if (owns)
        close(fd);
    di_free(s);
    *out = NULL;
    return di_fail(err, DI_ERR_LIMIT, "", "the system grants no thread");
}

static di_status open_path(const char *path, int *fd, di_error *err)
{
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (*fd < 0 && errno == ENXIO) /* a FIFO that nobody reads yet */
        *fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    return *fd >= 0 ? DI_OK : di_fail(err, DI_ERR_IO, path, "cannot be written: %s", strerror(errno));
}

di_status di_log_sink_open(const char *path, struct di_log_sink **out, di_error *err)
{
    int fd;
    *out = NULL;
    di_status status = open_path(path, &fd, err);
    return status == DI_OK ? sink_create(fd, true, out, err) : status;
}

di_status di_log_sink_open_fd(int fd, struct di_log_sink **out, di_error *err)
{
    return sink_create(fd, false, out, err);
}

di_status di_log_sink_reopen(struct di_log_sink *s, const char *path, di_error *err)
{
    int fd;
    di_status status = open_path(path, &fd, err);
    if (status != DI_OK)
        return status;
    pthread_mutex_lock(&s->lock);
    if (s->next_fd >= 0)
        close(s->next_fd);
    s->next_fd = fd;
    pthread_mutex_unlock(&s->lock);
    return DI_OK;
}

void di_log_sink_add(struct di_log_sink *s, struct di_str line)
{
    pthread_mutex_lock(&s->lock);
    size_t before = s->lines.n;
    if (before + line.n <= ROOM)
        di_buf_addv(&s->lines, line);
    s->dropped += s->lines.n == before;
    s->lines.failed = false; /* a later one may fit */
    if (before == 0)
        pthread_cond_signal(&s->filled);
    pthread_mutex_unlock(&s->lock);
}

uint64_t di_log_sink_dropped(struct di_log_sink *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->dropped;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void di_log_sink_flush(struct di_log_sink *s, int ms)
{
    int64_t until = di_clock_ns() + (int64_t)ms * 1000000;
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
    pthread_mutex_lock(&s->lock);
    while (s->lines.n || s->busy)
        if (pthread_cond_timedwait(&s->written, &s->lock, &t) != 0)
            break;
    pthread_mutex_unlock(&s->lock);
}

void di_log_sink_close(struct di_log_sink *s)
{
    if (!s)
        return;
    di_log_sink_flush(s, CLOSE_MS);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    di_buf_clear(&s->lines);
    pthread_cond_signal(&s->filled);
    bool stuck = s->busy;
    pthread_mutex_unlock(&s->lock);
    if (stuck)
        pthread_cancel(s->thread);
    pthread_join(s->thread, NULL);
    if (s->next_fd >= 0)
        close(s->next_fd);
    if (s->owns_fd)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->filled);
    pthread_cond_destroy(&s->written);
    di_buf_fini(&s->lines);
    di_buf_fini(&s->writing);
    di_free(s);
}
