/* Input and output of the subcommands: lines in, JSON lines out, every failure noticed. One thread per object. */
#ifndef DI_CLI_IO_H
#define DI_CLI_IO_H

#include "base/json.h"

#include <stdio.h>

/* Exit statuses of the program (design: command-line contract). */
enum { DI_EXIT_OK = 0, DI_EXIT_SOME_FAILED = 1, DI_EXIT_FAILED = 2 };

#define DI_LINE_LIMIT ((size_t)256 << 20) /* longest input line, without its newline */

/* Print "deepinfer COMMAND: where: message" to stderr and return DI_EXIT_FAILED, so that a command can write
 * `return di_cli_fail("parse", &err)`. */
int di_cli_fail(const char *command, const di_error *err);

/* Append all of stdin to `out`. More than `limit` bytes is DI_ERR_LIMIT. */
di_status di_read_stdin(size_t limit, struct di_buf *out, di_error *err);

/* Lines of a file or of stdin. */
struct di_lines {
    int64_t number; /* of the line returned last, from 1 */
    /* private */
    int fd;
    const char *name;
    size_t limit;
    char *chunk;
    size_t at, have;
    bool end;
    struct di_buf line;
};
/* path "-" or NULL: stdin. `path` is borrowed until di_lines_close. limit 0 means DI_LINE_LIMIT. On failure nothing needs closing. */
di_status di_lines_open(struct di_lines *in, const char *path, size_t limit, di_error *err);
/* Next line without "\n" or "\r\n", valid until the next call; *more is false at the end of input. A last line without newline counts.
 * A line beyond the limit is DI_ERR_LIMIT; it is skipped, `number` counts it, and the next call gives the line behind it. DI_ERR_IO and
 * DI_ERR_MEMORY end the input. */
di_status di_lines_next(struct di_lines *in, struct di_str *line, bool *more, di_error *err);
void di_lines_close(struct di_lines *in);

/* Write s and a newline and flush, so that whoever reads a pipe sees the line at once. A full disk or closed pipe is DI_ERR_IO. */
di_status di_write_line(FILE *f, struct di_str s, di_error *err);
/* Write s as it is and flush. */
di_status di_write_text(FILE *f, struct di_str s, di_error *err);

/* A command with one JSON value per line of stdin and one result line for each. */
struct di_jsonl {
    /* Append the result of a record to *out. A failure becomes an error object with the record's id and the line's number, and the run goes
     * on. */
    di_status (*record)(void *ctx, const struct di_json *record);
    void *ctx;
    struct di_buf *out; /* emptied before each record */
    di_error *err;
};
/* Until the end of stdin. *failed is set if a line failed; the status is that of the input or output as a whole. */
di_status di_run_jsonl(const struct di_jsonl *j, bool *failed);

/* Append {"id":ID,"error":{"code":"...","message":"...","line":N}}. id NULL gives null; line 0 leaves "line" out. The message is
 * "where: message" of err, made valid UTF-8. */
void di_add_error_object(struct di_buf *b, const struct di_json *id, const di_error *err, int64_t line);

#endif
