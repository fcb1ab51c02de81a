/* The sockets that a server listens on. */
#include "server/server_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
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

static void set_port(struct addrinfo *a, int port)
{
    if (a->ai_family == AF_INET)
        ((struct sockaddr_in *)a->ai_addr)->sin_port = htons((uint16_t)port);
    else if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons((uint16_t)port);
}

static int port_of(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

static bool stands_before(const struct addrinfo *list, const struct addrinfo *a)
{
    for (; list != a; list = list->ai_next)
        if (list->ai_addrlen == a->ai_addrlen && memcmp(list->ai_addr, a->ai_addr, a->ai_addrlen) == 0)
            return true;
    return false;
}

static void close_all(int *fds, size_t *n)
{
    while (*n)
        close(fds[--*n]);
}

/* All addresses of a name with one port; those that this machine has not (IPv6 may be off) are left out. 0 or errno. */
static int bind_addresses(struct addrinfo *list, int port, int *fds, size_t max, size_t *n)
{
    int e = EADDRNOTAVAIL;
    *n = 0;
    for (struct addrinfo *a = list; a && *n < max; a = a->ai_next) {
        set_port(a, port);
        if (stands_before(list, a))
            continue;
        int fd = bind_address(a);
        if (fd >= 0) {
            fds[(*n)++] = fd;
            port = port_of(fd);
        } else if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
            e = errno;
            close_all(fds, n);
            return e;
        }
    }
    return *n ? 0 : e;
}

di_status di_bind_tcp(const char *host, int port, int *fds, size_t max, size_t *n, di_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    int e, tries = 0;
    *n = 0;
    bool local = strcasecmp(host, "localhost") == 0; /* both families, whatever the system's tables say (RFC 6761 §6.3) */
    hints.ai_flags &= local ? ~AI_PASSIVE : ~0;
    int r = getaddrinfo(local ? NULL : host, "0", &hints, &list);
    if (r != 0)
        return di_fail(err, DI_ERR_INVALID, "host", "%s: %s", host, gai_strerror(r));
    do { /* a port that is free for the first address may be taken for the second */
        e = bind_addresses(list, port, fds, max, n);
    } while (e == EADDRINUSE && port == 0 && ++tries < 20);
    freeaddrinfo(list);
    return e == 0 ? DI_OK : di_fail(err, DI_ERR_IO, "port", "%s:%d cannot be listened on: %s", host, port, strerror(e));
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

di_status di_bind_unix(const char *path, unsigned mode, int *out, di_error *err)
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
    if (chmod(path, mode) != 0) { /* nobody can connect yet: it does not listen */
        status = di_fail(err, DI_ERR_IO, path, "cannot get its mode: %s", strerror(errno));
        unlink(path);
        goto out;
    }
    *out = fd;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    return status;
}

enum di_socket_reach di_socket_reach(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    const struct sockaddr_in *v4 = (const void *)&a;
    const struct sockaddr_in6 *v6 = (const void *)&a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return DI_SOCKET_OPEN;
    if (a.ss_family == AF_UNIX)
        return DI_SOCKET_UNIX;
    bool here = (a.ss_family == AF_INET && ntohl(v4->sin_addr.s_addr) >> 24 == 127) ||
                (a.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr));
    return here ? DI_SOCKET_LOOPBACK : DI_SOCKET_OPEN;
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
