/* The sockets that a server listens on. */
#ifndef DI_SERVER_SERVER_LISTEN_H
#define DI_SERVER_SERVER_LISTEN_H

#include "base/error.h"

#include <stdbool.h>

/* Bind a socket; the caller owns *out. port 0 is any free one. DI_ERR_INVALID (no such host), DI_ERR_IO. */
di_status di_bind_tcp(const char *host, int port, int *out, di_error *err);
/* A socket file that nobody listens on is replaced; anything else that is there is DI_ERR_IO. */
di_status di_bind_unix(const char *path, int *out, di_error *err);
bool di_socket_is_unix(int fd);
/* "http://127.0.0.1:8000", "https://...", "unix:/run/deepinfer.sock" */
void di_socket_url(int fd, bool tls, char *out, size_t n);

#endif
