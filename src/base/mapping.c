#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE, syscall */
#include "base/mapping.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct di_mapping {
    uint8_t *data;
    size_t bytes;
    int fd;
    struct timespec written;
    _Atomic bool lost, changed; /* a page could not be read; the file is not what it was */
    struct di_mapping *_Atomic next;
    char name[]; /* last component of the path: clients of a service see it, and its directories are none of their business */
};

/* All that are open. Changed under `lock`; the handler walks it at any time without one and is counted in `walking` meanwhile. */
static struct di_mapping *_Atomic all;
static _Atomic int walking;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; /* what was there; valid once our handler may run */
static bool installed;

/* ---------------------------------------------------------------- the handler */

/* All of it becomes zeros: one lost page makes the rest worthless, and pages one by one could need more areas than the system grants. A bare
 * system call, in which no library does anything: others read meanwhile, and what they see does not count any more. */
static bool replace_page(struct di_mapping *m)
{
    atomic_store(&m->lost, true);
    return syscall(SYS_mmap, m->data, m->bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != -1;
}

static bool was_shortened(const struct di_mapping *m)
{
    struct stat sb;
    return !atomic_load(&m->lost) && fstat(m->fd, &sb) == 0 && (size_t)sb.st_size < m->bytes;
}

/* The mapping that lost the page at this address; without one, every mapping whose file was shortened. */
static bool replace_lost(const uint8_t *at)
{
    bool done = false;
    atomic_fetch_add(&walking, 1);
    for (struct di_mapping *m = atomic_load(&all); m; m = atomic_load(&m->next))
        if (at ? at >= m->data && at < m->data + m->bytes : was_shortened(m))
            done = replace_page(m) || done;
    atomic_fetch_sub(&walking, 1);
    return done;
}

/* A handler above this one that passes a fault on by raising the signal anew loses its address. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    bool sent = info->si_code <= 0, raised = sent && info->si_pid == getpid();
    bool ours = sent ? raised && replace_lost(NULL) : replace_lost(info->si_addr);
    errno = saved;
    if (ours)
        return;
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else if (!sent || before.sa_handler == SIG_DFL) { /* a fault comes again as soon as this returns */
        signal(number, SIG_DFL);
        if (sent)
            raise(number);
    }
}

static bool is_ours(const struct sigaction *a)
{
    return (a->sa_flags & SA_SIGINFO) && a->sa_sigaction == on_bus_error;
}

/* Whoever put a handler over ours is expected to pass faults on to it, as ours does. */
static void install_handler(void)
{
    struct sigaction now, own = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&own.sa_mask);
    sigaction(SIGBUS, NULL, &now);
    bool none = !(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
    if (is_ours(&now) || (installed && !none))
        return;
    before = now;
    installed = sigaction(SIGBUS, &own, NULL) == 0;
}

static void remove_handler(void)
{
    struct sigaction now;
    sigaction(SIGBUS, NULL, &now);
    if (installed && is_ours(&now))
        installed = sigaction(SIGBUS, &before, NULL) != 0;
}

/* ---------------------------------------------------------------- mappings */

di_status di_mapping_open(int fd, const char *path, size_t bytes, struct di_mapping **out, di_error *err)
{
    struct stat sb;
    di_status status = DI_OK;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name) + 1;
    struct di_mapping *m = di_calloc(1, sizeof *m + n);
    *out = NULL;
    CHECK(m, err, DI_ERR_MEMORY, path, "out of memory while mapping the file");
    memcpy(m->name, name, n);
    CHECK(fstat(fd, &sb) == 0 && (size_t)sb.st_size == bytes, err, DI_ERR_IO, path, "the file changed while it was opened");
    m->fd = fd;
    m->bytes = bytes;
    m->written = sb.st_mtim;
    void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED, err, DI_ERR_IO, path, "the file cannot be mapped: %s", strerror(errno));
    m->data = data;
    pthread_mutex_lock(&lock);
    atomic_store(&m->next, atomic_load(&all));
    if (!atomic_load(&all))
        install_handler();
    atomic_store(&all, m);
    pthread_mutex_unlock(&lock);
    *out = m;
    return DI_OK;
out:
    di_free(m);
    close(fd);
    return status;
}

void di_mapping_close(struct di_mapping *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&lock);
    struct di_mapping *_Atomic *link = &all;
    while (atomic_load(link) != m)
        link = &atomic_load(link)->next;
    atomic_store(link, atomic_load(&m->next));
    while (atomic_load(&walking) > 0) /* a handler that looks for the place of another fault, for a moment */
        sched_yield();
    if (!atomic_load(&all))
        remove_handler();
    pthread_mutex_unlock(&lock);
    munmap(m->data, m->bytes);
    close(m->fd);
    di_free(m);
}

const uint8_t *di_mapping_data(const struct di_mapping *m)
{
    return m->data;
}

int di_mapping_fd(const struct di_mapping *m)
{
    return m->fd;
}

di_status di_mapping_check(struct di_mapping *m, di_error *err)
{
    struct stat sb;
    if (fstat(m->fd, &sb) != 0)
        return di_fail(err, DI_ERR_IO, m->name, "the file, which is in use, cannot be looked at any more: %s", strerror(errno));
    bool same_size = (size_t)sb.st_size == m->bytes;
    if (!same_size || sb.st_mtim.tv_sec != m->written.tv_sec || sb.st_mtim.tv_nsec != m->written.tv_nsec)
        atomic_store(&m->changed, true);
    if (!same_size)
        return di_fail(err, DI_ERR_IO, m->name,
                       "the file had %zu bytes when it was opened and has %zu now; it must not change while it is in use: open it again",
                       m->bytes, (size_t)sb.st_size);
    if (atomic_load(&m->changed))
        return di_fail(err, DI_ERR_IO, m->name, "the file was written to while it was in use: open it again");
    if (atomic_load(&m->lost))
        return di_fail(err, DI_ERR_IO, m->name, "a part of the file, which is in use, cannot be read any more");
    return DI_OK;
}
