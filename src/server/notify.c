#include "server/server_impl.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void di_notify(const char *path, const char *state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof a.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    memcpy(a.sun_path, path, strlen(path));
    if (path[0] == '@') /* an abstract socket */
        a.sun_path[0] = 0;
    ssize_t n = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
    (void)n;
    close(fd);
}
