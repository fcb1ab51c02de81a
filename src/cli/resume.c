#include "cli/resume.h"

#include "base/utf8.h"

#include <errno.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART 16 /* digits of each half of a fingerprint */

void di_fingerprint_make(struct di_fingerprint *f, const char *digest, struct di_str options)
{
    uint8_t hash[EVP_MAX_MD_SIZE] = {0};
    EVP_Digest(options.p, options.n, hash, NULL, EVP_sha256(), NULL);
    int n = snprintf(f->text, sizeof f->text, "%.*s-", PART, digest);
    for (int i = 0; i < PART / 2; i++)
        n += snprintf(f->text + n, sizeof f->text - (size_t)n, "%02x", hash[i]);
}

bool di_line_blank(struct di_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!strchr(" \t\r", s.p[i]) || s.p[i] == 0)
            return false;
    return true;
}

/* The next line of the input that has an answer, as JSON; *v is NULL if it is none. */
static di_status next_request(const struct di_resume *r, struct di_arena *arena, struct di_json **v, di_error *err)
{
    struct di_str line = {0};
    bool more = true;
    di_status status;
    *v = NULL;
    do
        status = di_lines_next(r->in, &line, &more, err);
    while (status == DI_OK && more && di_line_blank(line));
    if (status == DI_ERR_LIMIT) /* too long to be read; its answer is an error without an id */
        return DI_OK;
    if (status != DI_OK)
        return status;
    if (!more)
        return di_fail(err, DI_ERR_INVALID, "resume", "%s has more lines than the input; it is of another run", r->output);
    if (di_json_parse(line, r->limits, arena, v, NULL) != DI_OK || !di_json_is(*v, DI_JSON_OBJECT))
        *v = NULL;
    return DI_OK;
}

static const struct di_json *id_of(const struct di_json *line)
{
    const struct di_json *id = di_json_get(line, "id");
    return di_json_is(id, DI_JSON_NULL) ? NULL : id;
}

/* Cut to what fits into a sentence. */
static void describe_id(struct di_buf *b, const struct di_json *id)
{
    di_buf_clear(b);
    if (!id) {
        di_buf_adds(b, "no id");
        return;
    }
    di_buf_adds(b, "id ");
    di_json_write_compact(b, id);
    if (b->n > 80 && b->p) {
        b->n = di_utf8_cut(di_buf_str(b), 80);
        di_buf_adds(b, "...");
    }
}

/* The answer `v` stands in line `number` of the output. */
static di_status compare_ids(const struct di_resume *r, const struct di_json *v, int64_t number, di_error *err)
{
    struct di_arena arena;
    struct di_json *request;
    struct di_buf a = {0}, b = {0};
    di_status status = DI_OK;
    di_arena_init(&arena);
    TRY(next_request(r, &arena, &request, err));
    const struct di_json *theirs = id_of(v), *ours = id_of(request);
    if (theirs && ours ? di_json_same(theirs, ours) : !theirs && !ours)
        goto out;
    describe_id(&a, theirs);
    describe_id(&b, ours);
    TRY(di_buf_ok(&a, err));
    TRY(di_buf_ok(&b, err));
    status = di_fail(err, DI_ERR_INVALID, "resume", "line %lld of %s has %s, line %lld of the input %s; it is of another run",
                     (long long)number, r->output, a.p, (long long)r->in->number, b.p);
out:
    di_buf_fini(&a);
    di_buf_fini(&b);
    di_arena_fini(&arena);
    return status;
}

/* Errors, and answers of programs that wrote none, have no fingerprint. */
static di_status compare_fingerprints(const struct di_resume *r, const struct di_json *v, int64_t number, di_error *err)
{
    const struct di_json *f = di_json_get(v, "fingerprint");
    if (!di_json_is(f, DI_JSON_STRING) || di_str_eqc(f->text, r->run.text))
        return DI_OK;
    bool model = f->text.n == strlen(r->run.text) && memcmp(f->text.p, r->run.text, PART) != 0;
    return di_fail(err, DI_ERR_INVALID, "resume",
                   model ? "line %lld of %s was answered by another model; it is of another run"
                         : "line %lld of %s was answered with other options (of sampling, --thinking, --context, --numerics, --cpu-isa, "
                           "--replay or --prompt); it is of another run",
                   (long long)number, r->output);
}

static di_status compare_lines(struct di_resume *r, struct di_lines *old, off_t bytes, off_t *keep, di_error *err)
{
    struct di_str line;
    bool more, whole = true;
    di_status status = DI_OK;
    while (whole && status == DI_OK) {
        struct di_arena arena;
        struct di_json *v;
        TRY(di_lines_next(old, &line, &more, err));
        if (!more)
            break;
        di_arena_init(&arena);
        whole = *keep + (off_t)line.n + 1 <= bytes && di_json_parse(line, NULL, &arena, &v, NULL) == DI_OK && di_json_is(v, DI_JSON_OBJECT);
        if (whole) {
            *keep += (off_t)line.n + 1;
            r->kept++;
            r->failed += di_json_get(v, "error") != NULL;
            status = compare_fingerprints(r, v, r->kept, err);
            if (status == DI_OK && r->in)
                status = compare_ids(r, v, r->kept, err);
        }
        di_arena_fini(&arena);
    }
out:
    return status;
}

di_status di_resume(struct di_resume *r, di_error *err)
{
    struct di_lines old;
    off_t keep = 0;
    struct stat st;
    di_status status = DI_OK;
    r->kept = r->failed = 0;
    if (stat(r->output, &st) != 0)
        return di_fail(err, DI_ERR_IO, r->output, "cannot be read: %s", strerror(errno));
    TRY(di_lines_open(&old, r->output, 0, err));
    status = compare_lines(r, &old, st.st_size, &keep, err);
    di_lines_close(&old);
    if (status == DI_OK && !r->in && r->kept > 1)
        status = di_fail(err, DI_ERR_INVALID, "resume", "%s has more lines than one prompt has answers; it is of another run", r->output);
    if (status == DI_OK && truncate(r->output, keep) != 0)
        status = di_fail(err, DI_ERR_IO, r->output, "cannot be cut behind its last complete line: %s", strerror(errno));
out:
    return status;
}
