/* Messages for people: one line each, to a stream or to a function. Results never go here. */
#ifndef DI_BASE_LOG_H
#define DI_BASE_LOG_H

#include <stdio.h>

enum di_log_level { DI_LOG_ERROR, DI_LOG_WARN, DI_LOG_INFO, DI_LOG_DEBUG };

/* Owned by the caller and not changed while others may log through it; then any thread may. Zero-initialised: silent. */
struct di_log {
    enum di_log_level level;                                          /* messages above it are dropped */
    FILE *file;                                                       /* gets "level: text\n" in one write; or */
    void (*fn)(void *ctx, enum di_log_level level, const char *text); /* gets the text without newline, valid during the call */
    void *ctx;
};

/* Text beyond 1 KiB is cut. `log` may be NULL. */
void di_log(const struct di_log *log, enum di_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "error", "warning", "info", "debug" */
const char *di_log_level_name(enum di_log_level level);

#endif
