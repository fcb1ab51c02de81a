/* Where lines of the log go: a file, a pipe, a terminal. A thread writes them, so that whoever reads them (or does not) can hold up nothing
 * else: lines wait in bounded memory, and beyond that are dropped and counted. Any thread. */
#ifndef DI_SERVER_LOG_SINK_H
#define DI_SERVER_LOG_SINK_H

#include "base/str.h"

struct di_log_sink;

/* Append to a file, which is made if it is not there. A FIFO needs no reader. DI_ERR_IO, _LIMIT (no thread). */
di_status di_log_sink_open(const char *path, struct di_log_sink **out, di_error *err);
/* Write to a descriptor that stays the caller's. */
di_status di_log_sink_open_fd(int fd, struct di_log_sink **out, di_error *err);
/* Open the file anew: lines from now on go there. On an error all stays as it was. */
di_status di_log_sink_reopen(struct di_log_sink *s, const char *path, di_error *err);
/* A line with its line feed: all of it or nothing. */
void di_log_sink_add(struct di_log_sink *s, struct di_str line);
uint64_t di_log_sink_dropped(struct di_log_sink *s);
/* Wait until all is written, or for so long. */
void di_log_sink_flush(struct di_log_sink *s, int ms);
/* Flush for at most half a second, then end; NULL is allowed. */
void di_log_sink_close(struct di_log_sink *s);

#endif
