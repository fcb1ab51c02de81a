/* The helper's side. */
#define _GNU_SOURCE /* memory files, prlimit names */
#include "vision/helper.h"

#include "vision/helper_protocol.h"

#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTRUMENTED 1 /* needs terabytes of addresses and more system calls */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INSTRUMENTED 1
#endif
#endif
#ifndef INSTRUMENTED
#define INSTRUMENTED 0
#endif

static void limit(int resource, rlim_t most)
{
    struct rlimit r = {most, most};
    (void)setrlimit((__rlimit_resource_t)resource, &r); /* a smaller hard limit stays */
}

/* Bytes of address space in use; 0 if the system does not say. */
static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%lu", &pages) != 1)
        pages = 0;
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* False: its memory is not bounded. */
static bool limit_resources(size_t address_bytes)
{
    size_t used = address_space();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NPROC, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NOFILE, 16);
    if (!INSTRUMENTED && used)
        limit(RLIMIT_AS, used + address_bytes);
    return used > 0;
}

/* Memory without execution, the one socket, and an end. Anything else ends the process: it can signal nobody, and not keep a signal from
 * itself. */
static bool filter_calls(void)
{
    static const int plain[] = {
        SCMP_SYS(read),   SCMP_SYS(write),      SCMP_SYS(recvmsg),   SCMP_SYS(sendmsg),       SCMP_SYS(sendto),          SCMP_SYS(close),
        SCMP_SYS(munmap), SCMP_SYS(mremap),     SCMP_SYS(brk),       SCMP_SYS(madvise),       SCMP_SYS(futex),           SCMP_SYS(exit),
        SCMP_SYS(fstat),  SCMP_SYS(exit_group), SCMP_SYS(getrandom), SCMP_SYS(clock_gettime), SCMP_SYS(restart_syscall),
    };
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (!filter)
        return false;
    bool ok = true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        ok = ok && seccomp_rule_add(filter, SCMP_ACT_ALLOW, plain[i], 0) == 0;
    ok = ok && seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)) == 0;
    ok = ok && seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)) == 0;
    ok = ok && seccomp_load(filter) == 0; /* sets no_new_privs, too */
    seccomp_release(filter);
    return ok;
}

/* An order and the descriptors of picture and canvas. 1, 0 at the end, -1 if it is none. */
static int receive(struct di_helper_order *order, int fds[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {order, sizeof *order};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t got;
    do
        got = recvmsg(DI_HELPER_FD, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (got <= 0)
        return got == 0 ? 0 : -1;
    if ((size_t)got != sizeof *order || !c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(2 * sizeof(int)))
        return -1;
    memcpy(fds, CMSG_DATA(c), 2 * sizeof(int));
    return 1;
}

static void serve_order(const struct di_helper_order *order, const int fds[2], struct di_helper_reply *reply)
{
    size_t n = order->picture_bytes, m = order->canvas_bytes;
    *reply = (struct di_helper_reply){0};
    void *picture = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fds[0], 0);
    void *canvas = mmap(NULL, m, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    if (picture == MAP_FAILED || canvas == MAP_FAILED)
        reply->status = di_fail(&reply->error, DI_ERR_MEMORY, "", "out of memory");
    else
        reply->status = di_render((struct di_str){picture, n}, &order->render, canvas, &reply->pixel_crc, &reply->error);
    if (picture != MAP_FAILED)
        munmap(picture, n);
    if (canvas != MAP_FAILED)
        munmap(canvas, m);
    close(fds[0]);
    close(fds[1]);
}

static bool say(const void *bytes, size_t n)
{
    return send(DI_HELPER_FD, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

int di_helper_serve(size_t address_bytes)
{
    struct di_helper_greeting greeting = {0};
    struct di_helper_order order;
    struct di_helper_reply reply;
    struct di_buf recipe = {0};
    int fds[2], got;
    if (!INSTRUMENTED)
        prctl(PR_SET_DUMPABLE, 0); /* nobody of its user attaches to it */
    di_recipe_add_name(&recipe, &(struct di_picture_rules){0});
    if (recipe.failed)
        return 1;
    snprintf(greeting.recipe, sizeof greeting.recipe, "%s", recipe.p);
    di_buf_fini(&recipe);
    bool bounded = limit_resources(address_bytes);
    greeting.confined = bounded && !INSTRUMENTED && filter_calls();
    if (!say(&greeting, sizeof greeting))
        return 1;
    while ((got = receive(&order, fds)) > 0) {
        serve_order(&order, fds, &reply);
        if (!say(&reply, sizeof reply))
            return 1;
    }
    return got == 0 ? 0 : 1;
}
