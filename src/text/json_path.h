/* Where in a JSON document we are, for error messages: a chain of fields and indices on the stack, "messages[3].content[0].type". */
#ifndef DI_TEXT_JSON_PATH_H
#define DI_TEXT_JSON_PATH_H

#include "base/json.h"

struct di_path {
    const struct di_path *up; /* NULL at the root, which is not shown */
    struct di_str key;        /* member name; p == NULL: an array element */
    size_t index;
};
/* Paths that live until the end of the enclosing block. */
#define DI_FIELD(up, lit) (&(struct di_path){(up), DI_STR(lit), 0})
#define DI_MEMBER(up, name) (&(struct di_path){(up), (name), 0})
#define DI_ITEM(up, i) (&(struct di_path){(up), {0}, (i)})

/* Fill *err with DI_ERR_INVALID, the path as `where` and a sentence about it ("must be a string, not null"); returns the code. */
di_status di_path_fail(di_error *err, const struct di_path *at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Bytes of s to quote in a sentence, for "%.*s": whole characters, at most 60 bytes. */
int di_path_shown(struct di_str s);
/* Append the path. */
void di_path_write(struct di_buf *b, const struct di_path *at);

#endif
