#include "text/token_map.h"

#include "base/utf8.h"
#include "text/unicode_classes.h"

#include <utf8proc.h>

#define MAX_PROBES 1000

/* Steps (a) to (d) of the normaliser: NFKC then NFD is NFKD; no marks; lower case. The one character whose lower case is longer than
 * itself, U+0130, was decomposed before, so the simple mapping is the full one. *chars is reused and grown. */
static di_status fold(struct di_str text, int32_t **chars, size_t *cap, size_t *n, di_error *err)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE;
    size_t kept = 0;
    for (;;) {
        utf8proc_ssize_t need =
            utf8proc_decompose((const utf8proc_uint8_t *)text.p, (utf8proc_ssize_t)text.n, *chars, (utf8proc_ssize_t)*cap, options);
        if (need < 0)
            return di_fail(err, DI_ERR_INTERNAL, "", "a token cannot be normalised: %s", utf8proc_errmsg(need));
        *n = (size_t)need;
        if (*n <= *cap)
            break;
        int32_t *more = di_realloc(*chars, *n * sizeof **chars);
        if (!more)
            return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a token of %zu bytes", text.n);
        *chars = more;
        *cap = *n;
    }
    for (size_t i = 0; i < *n; i++)
        if (!(di_unicode_class((uint32_t)(*chars)[i]) & DI_UC_MARK))
            (*chars)[kept++] = utf8proc_tolower((*chars)[i]);
    *n = kept;
    return DI_OK;
}

static bool plain_space(int32_t c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Steps (e) to (h): runs of plain white space become one space, all white space at the ends goes, but a lone space stays. */
static void add_trimmed(struct di_buf *out, int32_t *c, size_t n)
{
    size_t kept = 0, from = 0;
    bool in_run = false;
    for (size_t i = 0; i < n; i++) {
        bool space = plain_space(c[i]);
        if (!space || !in_run)
            c[kept++] = space ? ' ' : c[i];
        in_run = space;
    }
    if (kept != 1 || c[0] != ' ') {
        while (kept > from && di_unicode_class((uint32_t)c[kept - 1]) & DI_UC_SPACE)
            kept--;
        while (from < kept && di_unicode_class((uint32_t)c[from]) & DI_UC_SPACE)
            from++;
    }
    for (size_t i = from; i < kept; i++) {
        char utf8[4];
        di_buf_add(out, utf8, di_utf8_encode(c[i] == 0xE000 ? ' ' : (uint32_t)c[i], utf8));
    }
}

static di_status add_key(const struct di_tokenizer *t, int32_t id, struct di_buf *text, struct di_buf *out, di_error *err)
{
    di_status status = DI_OK;
    int32_t *chars = NULL;
    size_t cap = 0, n = 0, before = out->n;
    struct di_str bytes = di_tokenizer_token_bytes(t, id);
    CHECK(di_tokenizer_has(t, id), err, DI_ERR_INVALID, "", "the tokenizer has no token %d", (int)id);
    di_buf_clear(text);
    di_utf8_add_lossy(text, bytes);
    TRY(di_buf_ok(text, err));
    if (di_str_find(di_buf_str(text), DI_STR("\xEF\xBF\xBD"), 0) != SIZE_MAX) {
        /* the entry as it is written in tokenizer.json */
        if (di_tokenizer_is_added(t, id))
            di_buf_addv(out, bytes);
        for (size_t i = 0; i < bytes.n && !di_tokenizer_is_added(t, id); i++)
            di_tokenizer_add_byte_char(out, (unsigned char)bytes.p[i]);
    } else {
        TRY(fold(di_buf_str(text), &chars, &cap, &n, err));
        add_trimmed(out, chars, n);
        if (out->n == before)
            di_buf_addv(out, di_buf_str(text));
    }
    TRY(di_buf_ok(out, err));
out:
    di_free(chars);
    return status;
}

di_status di_token_map_key(const struct di_tokenizer *t, int32_t id, struct di_buf *out, di_error *err)
{
    struct di_buf text = {0};
    di_status status = add_key(t, id, &text, out, err);
    di_buf_fini(&text);
    return status;
}

static size_t hash(struct di_str s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 29);
}

struct key {
    struct di_str s;
    int32_t value;
};

di_status di_token_map_build(const struct di_tokenizer *t, int32_t *map, int32_t n, int32_t *distinct, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf text = {0}, keys = {0};
    struct key *table = NULL;
    size_t *end = NULL, slots = 16;
    *distinct = 0;
    CHECK(n >= 0 && n <= di_tokenizer_size(t), err, DI_ERR_INVALID, "", "the map has %d ids, the tokenizer %d", (int)n,
          (int)di_tokenizer_size(t));
    while (slots < (size_t)n * 2)
        slots *= 2;
    table = di_calloc(slots, sizeof *table);
    end = di_malloc((size_t)n * sizeof *end);
    CHECK(table && end, err, DI_ERR_MEMORY, "", "out of memory for a map of %d ids", (int)n);
    for (int32_t id = 0; id < n; id++) {
        TRY(add_key(t, id, &text, &keys, err));
        end[id] = keys.n;
    }
    for (int32_t id = 0; id < n; id++) { /* now `keys` doesn't move any more */
        size_t start = id ? end[id - 1] : 0, probes = 0;
        struct di_str s = {keys.p + start, end[id] - start};
        size_t h = hash(s) & (slots - 1);
        while (table[h].s.p && !di_str_eq(table[h].s, s)) {
            h = (h + 1) & (slots - 1);
            CHECK(++probes < MAX_PROBES, err, DI_ERR_LIMIT, "", "the keys of the token map collide");
        }
        if (!table[h].s.p)
            table[h] = (struct key){s, (*distinct)++};
        map[id] = table[h].value;
    }
out:
    di_free(end);
    di_free(table);
    di_buf_fini(&text);
    di_buf_fini(&keys);
    return status;
}
