/* The sockets that a server listens on. */
#include "server/server_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int bind_address(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr)) {
        int zero = 0; /* :: means both families */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    }
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

di_status di_bind_tcp(const char *host, int port, int *out, di_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    char service[16];
    *out = -1;
    snprintf(service, sizeof service, "%d", port);
    int r = getaddrinfo(host, service, &hints, &list);
    if (r != 0)
        return di_fail(err, DI_ERR_INVALID, "host", "%s: %s", host, gai_strerror(r));
    for (struct addrinfo *a = list; a && *out < 0; a = a->ai_next)
        *out = bind_address(a);
    int e = errno;
    freeaddrinfo(list);
    return *out >= 0 ? DI_OK : di_fail(err, DI_ERR_IO, "port", "%s:%d cannot be listened on: %s", host, port, strerror(e));
}

/* Is somebody listening there? */
static bool in_use(const struct sockaddr_un *a)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool used = fd >= 0 && (connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 || errno == EAGAIN);
    if (fd >= 0)
        close(fd);
    return used;
}

di_status di_bind_unix(const char *path, int *out, di_error *err)
{
    di_status status = DI_OK;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    int fd = -1;
    CHECK(strlen(path) < sizeof a.sun_path, err, DI_ERR_INVALID, path, "is longer than the path of a socket may be");
    memcpy(a.sun_path, path, strlen(path));
    bool there = lstat(path, &st) == 0;
    CHECK(!there || S_ISSOCK(st.st_mode), err, DI_ERR_IO, path, "is there and is no socket");
    CHECK(!there || !in_use(&a), err, DI_ERR_IO, path, "another process listens on it");
    if (there)
        unlink(path); /* of a process that was killed */
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0, err, DI_ERR_IO, path, "cannot be listened on: %s", strerror(errno));
    *out = fd;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    return status;
}

bool di_socket_is_unix(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &n) == 0 && a.ss_family == AF_UNIX;
}

void di_socket_url(int fd, bool tls, char *out, size_t n)
{
    struct sockaddr_storage a = {0};
    socklen_t bytes = sizeof a;
    char host[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *v4 = (const void *)&a;
    const struct sockaddr_in6 *v6 = (const void *)&a;
    const char *scheme = tls ? "https" : "http";
    if (getsockname(fd, (struct sockaddr *)&a, &bytes) != 0)
        snprintf(out, n, "unknown");
    else if (a.ss_family == AF_INET && inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host))
        snprintf(out, n, "%s://%s:%u", scheme, host, ntohs(v4->sin_port));
    else if (a.ss_family == AF_INET6 && inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host))
        snprintf(out, n, "%s://[%s]:%u", scheme, host, ntohs(v6->sin6_port));
    else
        snprintf(out, n, "unix:%s", ((const struct sockaddr_un *)&a)->sun_path);
}
