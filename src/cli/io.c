#include "cli/io.h"

#include "base/file.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define CHUNK ((size_t)1 << 16)

int di_cli_fail(const char *command, const di_error *err)
{
    fprintf(stderr, "deepinfer %s: %s%s%s\n", command, err->where, err->where[0] ? ": " : "", err->message);
    return DI_EXIT_FAILED;
}

di_status di_read_stdin(size_t limit, struct di_buf *out, di_error *err)
{
    return di_stream_read(STDIN_FILENO, "standard input", limit, out, err);
}

di_status di_lines_open(struct di_lines *in, const char *path, size_t limit, di_error *err)
{
    bool is_stdin = !path || strcmp(path, "-") == 0;
    *in = (struct di_lines){.fd = STDIN_FILENO, .name = is_stdin ? "standard input" : path, .limit = limit ? limit : DI_LINE_LIMIT};
    in->chunk = di_malloc(CHUNK);
    if (!in->chunk)
        return di_fail(err, DI_ERR_MEMORY, in->name, "out of memory while reading lines");
    if (is_stdin)
        return DI_OK;
    in->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd >= 0)
        return DI_OK;
    di_status status = di_fail(err, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, path, "the file cannot be opened: %s", strerror(errno));
    di_free(in->chunk);
    *in = (struct di_lines){.fd = STDIN_FILENO};
    return status;
}

/* Refill the chunk; have = 0 at the end of input. */
static di_status refill(struct di_lines *in, di_error *err)
{
    ssize_t got;
    do
        got = read(in->fd, in->chunk, CHUNK);
    while (got < 0 && errno == EINTR);
    in->at = 0;
    in->have = got > 0 ? (size_t)got : 0;
    if (got <= 0)
        in->end = true;
    return got < 0 ? di_fail(err, DI_ERR_IO, in->name, "reading failed: %s", strerror(errno)) : DI_OK;
}

di_status di_lines_next(struct di_lines *in, struct di_str *line, bool *more, di_error *err)
{
    size_t length = 0; /* of the whole line, also of what is not kept */
    bool found = false;
    di_status status;
    di_buf_clear(&in->line);
    *more = false;
    while (!found) {
        if (in->at == in->have && !in->end) {
            status = refill(in, err);
            if (status != DI_OK)
                return status;
        }
        if (in->end) {
            if (length == 0)
                return DI_OK;
            break;
        }
        const char *start = in->chunk + in->at, *stop = memchr(start, '\n', in->have - in->at);
        size_t n = stop ? (size_t)(stop - start) : in->have - in->at;
        found = stop != NULL;
        in->at += n + found;
        length += n;
        if (length <= in->limit + 1) /* one more for a '\r' that does not count */
            di_buf_add(&in->line, start, n);
    }
    in->number++;
    status = di_buf_ok(&in->line, err);
    if (status != DI_OK) {
        in->end = true;
        return status;
    }
    *more = true;
    if (length <= in->limit + 1 && length > 0 && in->line.p[length - 1] == '\r')
        length--;
    if (length > in->limit)
        return di_fail(err, DI_ERR_LIMIT, "", "line %lld is longer than the limit of %zu bytes", (long long)in->number, in->limit);
    in->line.n = length;
    *line = (struct di_str){in->line.p ? in->line.p : "", length};
    return DI_OK;
}

void di_lines_close(struct di_lines *in)
{
    if (in->fd != STDIN_FILENO)
        close(in->fd);
    di_free(in->chunk);
    di_buf_fini(&in->line);
    *in = (struct di_lines){.fd = STDIN_FILENO, .end = true};
}

static di_status write_out(FILE *f, struct di_str s, const char *tail, di_error *err)
{
    const char *name = f == stdout ? "standard output" : "";
    errno = 0;
    if ((s.n && fwrite(s.p, 1, s.n, f) != s.n) || fputs(tail, f) < 0 || fflush(f) != 0)
        return di_fail(err, DI_ERR_IO, name, "writing failed: %s", errno ? strerror(errno) : "an earlier write failed");
    return DI_OK;
}

di_status di_write_line(FILE *f, struct di_str s, di_error *err)
{
    return write_out(f, s, "\n", err);
}

di_status di_write_text(FILE *f, struct di_str s, di_error *err)
{
    return write_out(f, s, "", err);
}

void di_add_error_object(struct di_buf *b, const struct di_json *id, const di_error *err, int64_t line)
{
    struct di_buf message = {0};
    if (err->where[0]) {
        di_utf8_add_lossy(&message, di_str_c(err->where));
        di_buf_adds(&message, ": ");
    }
    di_utf8_add_lossy(&message, di_str_c(err->message));
    di_buf_adds(b, "{\"id\":");
    if (id)
        di_json_write_compact(b, id);
    else
        di_buf_adds(b, "null");
    di_buf_addf(b, ",\"error\":{\"code\":\"%s\",\"message\":", di_status_name(err->code));
    di_json_write_string(b, di_buf_str(&message));
    if (line > 0)
        di_buf_addf(b, ",\"line\":%lld", (long long)line);
    di_buf_adds(b, "}}");
    b->failed = b->failed || message.failed;
    di_buf_fini(&message);
}

static di_status run_line(const struct di_jsonl *j, struct di_str line, int64_t number, bool *failed)
{
    struct di_arena arena;
    struct di_json *record = NULL;
    di_arena_init(&arena);
    di_buf_clear(j->out);
    di_status status = di_json_parse(line, NULL, &arena, &record, j->err);
    if (status == DI_OK)
        status = j->record(j->ctx, record);
    if (status != DI_OK) {
        *failed = true;
        di_buf_clear(j->out);
        di_add_error_object(j->out, di_json_get(record, "id"), j->err, number);
    }
    di_arena_fini(&arena);
    status = di_buf_ok(j->out, j->err);
    return status == DI_OK ? di_write_line(stdout, di_buf_str(j->out), j->err) : status;
}

di_status di_run_jsonl(const struct di_jsonl *j, bool *failed)
{
    struct di_lines in;
    struct di_str line;
    bool more;
    di_status status = di_lines_open(&in, NULL, 0, j->err);
    if (status != DI_OK)
        return status;
    for (;;) {
        di_status got = di_lines_next(&in, &line, &more, j->err);
        if (got == DI_OK && !more)
            break;
        if (got == DI_ERR_LIMIT) { /* the line was skipped */
            *failed = true;
            di_buf_clear(j->out);
            di_add_error_object(j->out, NULL, j->err, in.number);
            TRY(di_write_line(stdout, di_buf_str(j->out), j->err));
            continue;
        }
        TRY(got);
        TRY(run_line(j, line, in.number, failed));
    }
out:
    di_lines_close(&in);
    return status;
}
