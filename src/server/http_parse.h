/* HTTP/1.x requests: heads and chunked bodies, strictly (RFC 9112). What two servers could read in different ways is refused: bare line
 * feeds, folded lines, a second length, a length beside a transfer coding, a broken Host or one that is not the target's, a header twice
 * that has one value. Pure: no sockets, no allocation. */
#ifndef DI_SERVER_HTTP_PARSE_H
#define DI_SERVER_HTTP_PARSE_H

#include "base/str.h"

#define DI_HTTP_MAX_HEADERS 100
#define DI_HTTP_MAX_TARGET ((size_t)8192)

struct di_http_header {
    struct di_str name, value; /* the name as sent; the value without blanks around it */
};

struct di_http_head {
    struct di_str method, target; /* the target as sent */
    struct di_str path, query;    /* of the target, still %-encoded; query without "?" */
    struct di_str host;           /* of Host, without its port; "[::1]" keeps its brackets. Empty if there is none */
    int minor;                    /* HTTP/1.minor: 0 or 1 */
    bool keep_alive;              /* by version and Connection */
    bool chunked, has_length;
    uint64_t length; /* of the body, 0 without one */
    bool expects_continue;
    struct di_http_header headers[DI_HTTP_MAX_HEADERS];
    size_t n_headers;
};

/* Read the head at the start of `in`. Returns its bytes with the empty line, 0 if it is not complete, or minus an HTTP status; *why is then
 * a static sentence. *seen (0 at first) is where the search for the end goes on, so that a head that comes byte by byte is read in linear
 * time. What *out points to lies in `in` or is static. `limit`: longest head, else 431. */
int64_t di_http_parse_head(struct di_str in, size_t limit, size_t *seen, struct di_http_head *out, const char **why);

/* The value of the first header of this name (any case), or an empty string with p = NULL. */
struct di_str di_http_header(const struct di_http_head *h, const char *name);
/* Equal but for the case of ASCII letters. */
bool di_http_same_word(struct di_str a, const char *b);
/* Decode %XX of a path into `out` (may be shorter than `in`, never longer). False: a broken escape, or a byte 0. */
bool di_http_unescape(struct di_str in, struct di_buf *out);

/* A chunked body under way; zero-initialise. */
struct di_http_chunked {
    int state;      /* private */
    uint64_t left;  /* of the chunk */
    size_t line;    /* bytes of the present line */
    size_t trailer; /* bytes of the trailer section */
    bool done;
};
/* Take what there is. *data is the next piece of the body (maybe empty), within `in`. Returns the bytes taken, or minus an HTTP status.
 * Call again while it takes something and is not done. */
int64_t di_http_chunked_next(struct di_http_chunked *c, struct di_str in, struct di_str *data, const char **why);

#endif
