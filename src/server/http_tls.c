/* TLS over non-blocking sockets (OpenSSL). */
#include "server/http_impl.h"

#include <errno.h>
#include <openssl/err.h>
#include <sys/stat.h>

static di_status tls_error(const char *where, const char *what, di_error *err)
{
    char text[200] = "unknown reason";
    unsigned long code = ERR_peek_error(); /* the first of several is the cause */
    if (code)
        ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return di_fail(err, DI_ERR_INVALID, where, "%s: %s", what, text);
}

static int only_http11(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in, unsigned in_n, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen;
    (void)ssl, (void)arg;
    if (SSL_select_next_proto(&chosen, out_n, ours, sizeof ours - 1, in, in_n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Reading anything else could take for ever, and the service stands still meanwhile. */
static di_status check_file(const char *path, di_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return di_fail(err, DI_ERR_INVALID, path, "a regular file was expected");
    return DI_OK;
}

di_status di_http_use_tls(struct di_http *h, const char *cert, const char *key, di_error *err)
{
    di_status status = DI_OK;
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    CHECK(ctx, err, DI_ERR_MEMORY, "tls", "out of memory");
    TRY(check_file(cert, err));
    TRY(check_file(key, err));
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx,
                        SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    /* Idle connections keep no buffers; a write may be repeated from another address, since output buffers move. */
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_select_cb(ctx, only_http11, NULL);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        TRY(tls_error(cert, "is no usable certificate chain (PEM)", err));
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        TRY(tls_error(key, "is no usable private key (PEM)", err));
    if (SSL_CTX_check_private_key(ctx) != 1)
        TRY(tls_error(key, "does not belong to the certificate", err));
    SSL_CTX_free(h->tls);
    h->tls = ctx;
    ctx = NULL;
out:
    SSL_CTX_free(ctx);
    return status;
}

SSL *di_http_tls_open(struct di_http *h, int fd)
{
    SSL *ssl = h->tls ? SSL_new(h->tls) : NULL;
    if (!ssl)
        return NULL;
    if (SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_accept_state(ssl);
    return ssl;
}

static int outcome(struct di_http_conn *c, int r)
{
    int e = SSL_get_error(c->ssl, r);
    ERR_clear_error();
    if (e == SSL_ERROR_WANT_READ)
        return -1;
    if (e == SSL_ERROR_WANT_WRITE) {
        c->wants_write = true;
        return -1;
    }
    return e == SSL_ERROR_ZERO_RETURN ? 0 : -2;
}

int di_http_tls_handshake(struct di_http_conn *c)
{
    int r = SSL_do_handshake(c->ssl);
    if (r == 1)
        return 1;
    r = outcome(c, r);
    return r == 0 ? -2 : r;
}

ssize_t di_http_tls_read(struct di_http_conn *c, void *to, size_t n)
{
    size_t got;
    int r = SSL_read_ex(c->ssl, to, n, &got);
    return r == 1 ? (ssize_t)got : outcome(c, r);
}

ssize_t di_http_tls_write(struct di_http_conn *c, const void *from, size_t n)
{
    size_t put;
    int r = SSL_write_ex(c->ssl, from, n, &put);
    if (r == 1)
        return (ssize_t)put;
    r = outcome(c, r);
    return r == 0 ? -2 : r;
}
