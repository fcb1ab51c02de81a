/* Filling di_error, and the macros for early exit. Every function that can fail returns di_status and has one `out:` label. */
#ifndef DI_BASE_ERROR_H
#define DI_BASE_ERROR_H

#include "deepinfer.h"

/* Store code, place and a printf-style sentence in *err (which may be NULL) and return `code`, so that a caller can write
 * `return di_fail(err, DI_ERR_FORMAT, path, "...")`. `where` may be NULL or "". Text that does not fit is cut at a UTF-8 boundary. */
di_status di_fail(di_error *err, di_status code, const char *where, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* DI_ERR_LIMIT in the words that clients look for when they shorten a conversation: "This model's maximum context length is N tokens.
 * However, you requested M tokens (P in the messages, A in the completion)." */
di_status di_fail_context(di_error *err, const char *where, int64_t context, int64_t prompt, int64_t answer);

/* Replace the place of an error that a deeper function filled without knowing it. Keeps a place that is already there. */
void di_error_at(di_error *err, const char *where);

/* Leave through `out:` with the status of a failing call. Needs a local `di_status status` and the label. */
#define TRY(call)            \
    do {                     \
        status = (call);     \
        if (status != DI_OK) \
            goto out;        \
    } while (0)

/* Leave through `out:` with an error of our own unless `cond` holds. Arguments as for di_fail. */
#define CHECK(cond, err, code, where, ...)                         \
    do {                                                           \
        if (!(cond)) {                                             \
            status = di_fail((err), (code), (where), __VA_ARGS__); \
            goto out;                                              \
        }                                                          \
    } while (0)

#endif
