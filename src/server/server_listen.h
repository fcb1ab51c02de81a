/* The sockets that a server listens on. */
#ifndef DI_SERVER_SERVER_LISTEN_H
#define DI_SERVER_SERVER_LISTEN_H

#include "base/error.h"

#include <stdbool.h>

/* Bind a socket for each address that `host` has here, at most `max`, all with one port; the caller owns fds[*n], none on error. port 0 is
 * any free one. DI_ERR_INVALID (no such host), DI_ERR_IO. */
di_status di_bind_tcp(const char *host, int port, int *fds, size_t max, size_t *n, di_error *err);
/* The file gets `mode`. A socket file that nobody listens on is replaced; anything else that is there is DI_ERR_IO. The caller owns *out. */
di_status di_bind_unix(const char *path, unsigned mode, int *out, di_error *err);

/* Who can connect to a socket: processes that may write to its file, those of this machine, everybody. */
enum di_socket_reach { DI_SOCKET_UNIX, DI_SOCKET_LOOPBACK, DI_SOCKET_OPEN };
enum di_socket_reach di_socket_reach(int fd);
/* "http://127.0.0.1:8000", "https://...", "unix:/run/deepinfer.sock" */
void di_socket_url(int fd, bool tls, char *out, size_t n);

#endif
