#include "base/log.h"

#include <stdarg.h>

const char *di_log_level_name(enum di_log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    return (unsigned)level < sizeof names / sizeof *names ? names[level] : "unknown";
}

void di_log(const struct di_log *log, enum di_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!log || level > log->level || (!log->fn && !log->file))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (log->fn)
        log->fn(log->ctx, level, text);
    else
        fprintf(log->file, "%s: %s\n", di_log_level_name(level), text);
}
