/* The pool's side. */
#define _GNU_SOURCE /* memory files, prlimit, closefrom of posix_spawn */
#include "vision/helper.h"

#include "base/clock.h"
#include "base/file.h"
#include "vision/helper_protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_HELPERS 256
#define GREETING_MS 10000 /* for a program to start on a busy machine */

const struct di_helper_params di_helper_params_default = {
    .helpers = 2,
    .cpu_seconds = 5,
    .wall_ms = 10000,
    .address_bytes = (size_t)128 << 20,
};

/* Fields change under the pool's lock; whoever has a helper busy may read them without. */
struct helper {
    pid_t pid; /* 0: not started */
    int fd;
    bool busy;
};

struct di_helpers {
    struct di_helper_params params;
    char *program;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t freed;
    struct di_helper_counts counts;
    bool warned;
    struct helper helper[MAX_HELPERS];
};

/* ---------------------------------------------------------------- memory files */

/* A memory file of n bytes that can neither grow nor shrink, so that whoever maps it never meets its end. `content` may be NULL. */
static int make_file(const char *name, const void *content, size_t n, unsigned seals)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    bool ok = ftruncate(fd, (off_t)n) == 0 && (!content || di_file_write(fd, name, content, n, NULL) == DI_OK);
    if (ok && fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    close(fd);
    return -1;
}

/* ---------------------------------------------------------------- one helper */

/* Wait for a datagram of exactly n bytes: 1; 0: the other end is gone or speaks another language; -1: too late. */
static int hear(int fd, void *to, size_t n, int64_t ms)
{
    int64_t end = di_clock_ns() + ms * 1000000;
    for (;;) {
        int64_t left = (end - di_clock_ns() + 999999) / 1000000;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, left > 0 ? (int)left : 0);
        if (ready == 0)
            return -1;
        if (ready > 0) {
            ssize_t got = recv(fd, to, n, MSG_DONTWAIT | MSG_TRUNC);
            if (got < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            return got == (ssize_t)n;
        }
        if (errno != EINTR)
            return 0;
    }
}

static void set_helper(struct di_helpers *pool, struct helper *h, pid_t pid, int fd)
{
    pthread_mutex_lock(&pool->lock);
    h->pid = pid;
    h->fd = fd;
    pool->counts.started += pid != 0;
    pthread_mutex_unlock(&pool->lock);
}

/* End a helper that is of no more use; its exit status as of waitpid. Also ends what was stopped. */
static int end_helper(struct di_helpers *pool, struct helper *h)
{
    int how = 0;
    close(h->fd);
    kill(h->pid, SIGKILL);
    while (waitpid(h->pid, &how, 0) < 0 && errno == EINTR)
        ;
    set_helper(pool, h, 0, -1);
    return how;
}

/* How a helper ended whose socket is closed already; it may still be on its way out, so it is not killed at once. */
static int await_end(struct di_helpers *pool, struct helper *h)
{
    int how = 0;
    pid_t got = 0;
    for (int i = 0; i < 200 && got == 0; i++) {
        got = waitpid(h->pid, &how, WNOHANG);
        if (got == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (got == 0)
        return end_helper(pool, h);
    close(h->fd);
    set_helper(pool, h, 0, -1);
    return how;
}

/* The program with an empty environment, /dev/null as input, output and for errors, and its end of the socket: it has nothing else of ours.
 * Instrumented programs keep the way for their reports. */
static int spawn(const struct di_helpers *pool, int fd, size_t address_bytes, pid_t *pid)
{
    char bytes[32], command[] = "image-worker", flag[] = "--address-bytes";
    char *argv[] = {pool->program, command, flag, bytes, NULL}, *envp[] = {NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    snprintf(bytes, sizeof bytes, "%zu", address_bytes);
    if (posix_spawn_file_actions_init(&files) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0); /* a key that interrupts the terminal's program is none of its business */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    int error = posix_spawn_file_actions_adddup2(&files, fd, DI_HELPER_FD);
    error = error ? error : posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    error = error ? error : posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
#ifndef DI_CHECKED
    error = error ? error : posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
#endif
    error = error ? error : posix_spawn_file_actions_addclosefrom_np(&files, DI_HELPER_FD + 1);
    error = error ? error : posix_spawn(pid, pool->program, &files, &attr, argv, envp);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

/* Read the greeting of a helper that was just started. */
static di_status check_greeting(struct di_helpers *pool, struct helper *h, di_error *err)
{
    struct di_helper_greeting greeting;
    struct di_buf recipe = {0};
    di_status status = DI_OK;
    di_recipe_add_name(&recipe, &(struct di_picture_rules){0});
    TRY(di_buf_ok(&recipe, err));
    CHECK(hear(h->fd, &greeting, sizeof greeting, GREETING_MS) == 1, err, DI_ERR_IO, pool->program,
          "the helper process for pictures does not start");
    greeting.recipe[sizeof greeting.recipe - 1] = 0;
    CHECK(strcmp(greeting.recipe, recipe.p) == 0, err, DI_ERR_IO, pool->program,
          "the helper process for pictures is of another version: \"%s\" instead of \"%s\"", greeting.recipe, recipe.p);
    pthread_mutex_lock(&pool->lock);
    bool warn = !greeting.confined && !pool->warned;
    pool->warned |= warn;
    pthread_mutex_unlock(&pool->lock);
    if (warn)
        di_log(pool->params.log, DI_LOG_WARN,
               "this system has no filter of system calls (seccomp): pictures are decoded by a process with bounded memory and time, but "
               "not shut in");
out:
    di_buf_fini(&recipe);
    return status;
}

static di_status start_helper(struct di_helpers *pool, struct helper *h, size_t address_bytes, di_error *err)
{
    pid_t pid = 0;
    int ends[2], error;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return di_fail(err, DI_ERR_IO, "", "no socket for a helper process: %s", strerror(errno));
    if (ends[1] == DI_HELPER_FD) { /* dup2 onto itself would leave the flag that closes it */
        int other = fcntl(ends[1], F_DUPFD_CLOEXEC, DI_HELPER_FD + 1);
        close(ends[1]);
        ends[1] = other;
    }
    error = ends[1] < 0 ? EMFILE : spawn(pool, ends[1], address_bytes, &pid);
    if (ends[1] >= 0)
        close(ends[1]);
    if (error) {
        close(ends[0]);
        return di_fail(err, DI_ERR_IO, pool->program, "the helper process for pictures cannot be started: %s", strerror(error));
    }
    set_helper(pool, h, pid, ends[0]);
    di_status status = check_greeting(pool, h, err);
    if (status != DI_OK)
        end_helper(pool, h);
    return status;
}

/* From now on it has so many seconds; the system ends it when they are over. */
static void limit_cpu(const struct helper *h, int64_t seconds)
{
    clockid_t clock;
    struct timespec used = {0};
    struct rlimit r;
    if (clock_getcpuclockid(h->pid, &clock) != 0 || clock_gettime(clock, &used) != 0 || prlimit(h->pid, RLIMIT_CPU, NULL, &r) != 0)
        return;
    rlim_t end = (rlim_t)(used.tv_sec + seconds + (used.tv_nsec > 0));
    r.rlim_cur = end < r.rlim_max ? end : r.rlim_max; /* an inherited hard limit stays, nobody but root may raise it */
    (void)prlimit(h->pid, RLIMIT_CPU, &r, NULL);
}

static bool send_order(const struct helper *h, const struct di_helper_order *order, const int fds[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct di_helper_order copy = *order;
    struct iovec part = {&copy, sizeof copy};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(c), fds, 2 * sizeof(int));
    return sendmsg(h->fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof copy;
}

/* ---------------------------------------------------------------- the pool */

di_status di_helpers_open(const struct di_helper_params *params, struct di_helpers **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_helpers *h = NULL;
    *out = NULL;
    CHECK(params->helpers >= 1 && params->helpers <= MAX_HELPERS && params->cpu_seconds >= 1 && params->wall_ms >= 1, err, DI_ERR_INVALID,
          "", "1 to %d helper processes for pictures, and at least 1 s for each picture", MAX_HELPERS);
    h = di_calloc(1, sizeof *h);
    CHECK(h, err, DI_ERR_MEMORY, "", "out of memory");
    h->params = *params;
    if (params->program) {
        size_t n = strlen(params->program) + 1;
        h->program = di_malloc(n);
        if (h->program)
            memcpy(h->program, params->program, n);
        else
            di_free(h);
        CHECK(h->program, err, DI_ERR_MEMORY, "", "out of memory");
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->freed, NULL);
    *out = h;
out:
    return status;
}

void di_helpers_close(struct di_helpers *h)
{
    if (!h)
        return;
    for (int i = 0; i < h->params.helpers; i++)
        if (h->helper[i].pid)
            end_helper(h, &h->helper[i]);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->freed);
    di_free(h->program);
    di_free(h);
}

/* A helper that has nothing to do, one that runs rather than one that must be started. */
static struct helper *take_helper(struct di_helpers *pool)
{
    struct helper *found = NULL;
    pthread_mutex_lock(&pool->lock);
    while (!found) {
        for (int i = 0; i < pool->params.helpers; i++) {
            struct helper *h = &pool->helper[i];
            if (!h->busy && (!found || (h->pid && !found->pid)))
                found = h;
        }
        if (!found)
            pthread_cond_wait(&pool->freed, &pool->lock);
    }
    found->busy = true;
    pthread_mutex_unlock(&pool->lock);
    return found;
}

static void give_helper(struct di_helpers *pool, struct helper *h, bool lost)
{
    pthread_mutex_lock(&pool->lock);
    h->busy = false;
    pool->counts.pictures += !lost;
    pool->counts.lost += lost;
    pthread_cond_signal(&pool->freed);
    pthread_mutex_unlock(&pool->lock);
}

static di_status say_how_it_ended(int how, const struct di_helper_params *params, di_error *err)
{
    if (WIFSIGNALED(how) && WTERMSIG(how) == SIGXCPU)
        return di_fail(err, DI_ERR_LIMIT, "", "decoding the picture took more than %lld s of processor time",
                       (long long)params->cpu_seconds);
    if (WIFSIGNALED(how))
        return di_fail(err, DI_ERR_INVALID, "", "the process that decoded the picture was ended by signal %d (%s)", WTERMSIG(how),
                       strsignal(WTERMSIG(how)));
    return di_fail(err, DI_ERR_INVALID, "", "the process that decoded the picture ended with status %d", WEXITSTATUS(how));
}

/* Hand the order to a helper; to a new one if this one has died in the meantime, or does not live to see it. */
static di_status place_order(struct di_helpers *pool, struct helper *h, const struct di_helper_order *order, const int fds[2],
                             di_error *err)
{
    size_t address_bytes = order->render.limits.decode_bytes + pool->params.address_bytes;
    di_status status = DI_OK;
    for (int attempt = 0; attempt < 3; attempt++) {
        status = h->pid ? DI_OK : start_helper(pool, h, address_bytes, err);
        if (status != DI_OK)
            continue;
        limit_cpu(h, pool->params.cpu_seconds);
        if (send_order(h, order, fds))
            return DI_OK;
        end_helper(pool, h);
        status = di_fail(err, DI_ERR_IO, pool->program, "the helper process for pictures takes no orders");
    }
    return status;
}

static di_status run_order(struct di_helpers *pool, struct helper *h, const struct di_helper_order *order, const int fds[2],
                           uint8_t *canvas, uint32_t *pixel_crc, bool *lost, di_error *err)
{
    struct di_helper_reply reply;
    di_status status = DI_OK;
    *lost = true;
    TRY(place_order(pool, h, order, fds, err));
    int heard = hear(h->fd, &reply, sizeof reply, pool->params.wall_ms);
    *lost = heard != 1;
    if (heard < 0) {
        end_helper(pool, h);
        return di_fail(err, DI_ERR_LIMIT, "", "decoding the picture took more than %lld ms", (long long)pool->params.wall_ms);
    }
    if (heard == 0)
        return say_how_it_ended(await_end(pool, h), &pool->params, err);
    reply.error.message[sizeof reply.error.message - 1] = 0; /* its word may be a lie, but never more than a sentence */
    if (reply.status > DI_ERR_INTERNAL)
        reply.status = DI_ERR_INVALID;
    CHECK(reply.status == DI_OK, err, reply.status, "", "%s", reply.error.message);
    TRY(di_file_pread(fds[1], "canvas", canvas, order->canvas_bytes, 0, err));
    if (pixel_crc)
        *pixel_crc = reply.pixel_crc;
out:
    return status;
}

/* By a helper: picture and canvas go through memory files. */
static di_status render_apart(struct di_helpers *pool, struct helper *h, struct di_str bytes, const struct di_render_order *order,
                              uint8_t *canvas, uint32_t *pixel_crc, bool *lost, di_error *err)
{
    struct di_helper_order o = {
        .picture_bytes = bytes.n,
        .canvas_bytes = (uint64_t)(order->canvas_width * order->canvas_height * 3),
        .render = *order,
    };
    di_status status = DI_OK;
    int fds[2] = {make_file("picture", bytes.p, bytes.n, F_SEAL_WRITE), make_file("canvas", NULL, o.canvas_bytes, 0)};
    CHECK(fds[0] >= 0 && fds[1] >= 0, err, DI_ERR_IO, "", "no memory file for a picture: %s", strerror(errno));
    status = run_order(pool, h, &o, fds, canvas, pixel_crc, lost, err);
out:
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return status;
}

di_status di_helpers_render(struct di_helpers *pool, struct di_str bytes, const struct di_render_order *order, uint8_t *canvas,
                            uint32_t *pixel_crc, di_error *err)
{
    struct di_picture picture;
    bool lost = false;
    di_status status = di_picture_read(bytes, &order->rules, &order->limits, &picture, err); /* what is refused takes nobody's place */
    if (status != DI_OK)
        return status;
    struct helper *h = take_helper(pool);
    if (pool->program)
        status = render_apart(pool, h, bytes, order, canvas, pixel_crc, &lost, err);
    else
        status = di_render(bytes, order, canvas, pixel_crc, err);
    give_helper(pool, h, lost);
    return status;
}

void di_helpers_counts(struct di_helpers *h, struct di_helper_counts *out)
{
    pthread_mutex_lock(&h->lock);
    *out = h->counts;
    out->running = 0;
    for (int i = 0; i < h->params.helpers; i++)
        out->running += h->helper[i].pid != 0;
    pthread_mutex_unlock(&h->lock);
}

int di_helpers_pids(struct di_helpers *h, int64_t *pids, int capacity)
{
    int n = 0;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->params.helpers; i++)
        if (h->helper[i].pid) {
            if (n < capacity)
                pids[n] = h->helper[i].pid;
            n++;
        }
    pthread_mutex_unlock(&h->lock);
    return n;
}
