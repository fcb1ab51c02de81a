#include "text/tokenizer_impl.h"

#include "base/utf8.h"
#include "text/pretokenizer.h"

#include <stdio.h>

#define MAX_PROBES 1000

void di_tokenizer_destroy(struct di_tokenizer *t)
{
    if (!t)
        return;
    di_bpe_fini(&t->bpe);
    di_free(t->added[0].ids);
    di_free(t->added[1].ids);
    di_free(t->words);
    di_free(t->bytes);
    di_free(t->flags);
    di_free(t->token);
    di_free(t);
}

int32_t di_tokenizer_size(const struct di_tokenizer *t)
{
    return t->size;
}

int32_t di_tokenizer_n_added(const struct di_tokenizer *t)
{
    return t->n_added;
}

bool di_tokenizer_has(const struct di_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->flags[id] & DI_TOK_PRESENT;
}

bool di_tokenizer_is_added(const struct di_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->flags[id] & DI_TOK_ADDED;
}

struct di_str di_tokenizer_token_bytes(const struct di_tokenizer *t, int32_t id)
{
    if (!di_tokenizer_has(t, id))
        return (struct di_str){0};
    return (struct di_str){t->bytes + t->token[id].offset, t->token[id].length};
}

/* ---- base entries by their bytes ---- */

static inline uint64_t load8(const char *s, size_t n, size_t room)
{
    uint64_t w = 0;
    if (room >= 8 && n > 0) {
        memcpy(&w, s, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        w = __builtin_bswap64(w);
#endif
        return n >= 8 ? w : w & (UINT64_MAX >> (64 - 8 * n));
    }
    for (size_t i = 0; i < n && i < 8; i++)
        w |= (uint64_t)(unsigned char)s[i] << (8 * i);
    return w;
}

static inline uint64_t word_key(const char *s, size_t n, size_t room)
{
    uint64_t key = load8(s, n, room);
    for (size_t i = 8; i < n; i += 8) {
        key = (key ^ key >> 29) * 0xD6E8FEB86659FD93u;
        key ^= load8(s + i, n - i, room - i);
    }
    return key;
}

static inline size_t word_slot(const struct di_tokenizer *t, uint64_t key, size_t n)
{
    key = (key ^ key >> 32) + n;
    return (size_t)(key * 0x9E3779B97F4A7C15u >> t->word_shift);
}

int32_t di_tokenizer_find_word(const struct di_tokenizer *t, const char *s, size_t n, size_t room)
{
    if (n > t->longest)
        return -1;
    uint64_t key = word_key(s, n, room);
    size_t mask = ((size_t)1 << (64 - t->word_shift)) - 1;
    for (size_t h = word_slot(t, key, n);; h = (h + 1) & mask) {
        const struct di_word *w = &t->words[h];
        if (w->id < 0)
            return -1;
        if (w->key == key && w->length == n && (n <= 8 || memcmp(t->bytes + t->token[w->id].offset, s, n) == 0))
            return w->id;
    }
}

bool di_tokenizer_put_word(struct di_tokenizer *t, int32_t id)
{
    struct di_str s = di_tokenizer_token_bytes(t, id);
    uint64_t key = word_key(s.p, s.n, s.n);
    size_t mask = ((size_t)1 << (64 - t->word_shift)) - 1, h = word_slot(t, key, s.n);
    for (unsigned probes = 0; t->words[h].id >= 0; h = (h + 1) & mask)
        if (++probes > MAX_PROBES)
            return false;
    t->words[h] = (struct di_word){key, id, (uint32_t)s.n};
    if (s.n > t->longest)
        t->longest = s.n;
    return true;
}

/* ---- added tokens ---- */

/* Longest spelling of the set that s starts with, or -1. Narrows the sorted list byte by byte. */
static int32_t match_added(const struct di_tokenizer *t, const struct di_added_set *set, struct di_str s)
{
    size_t lo = 0, hi = set->n;
    int32_t best = -1;
    for (size_t k = 0; lo < hi && k < s.n; k++) {
        unsigned char c = (unsigned char)s.p[k];
        size_t end[2] = {lo, lo}; /* first spelling with byte k >= c, and > c */
        for (int upper = 0; upper < 2; upper++) {
            size_t a = end[0], b = hi;
            while (a < b) {
                size_t mid = a + (b - a) / 2;
                unsigned char m = (unsigned char)di_tokenizer_token_bytes(t, set->ids[mid]).p[k];
                if (upper ? m <= c : m < c)
                    a = mid + 1;
                else
                    b = mid;
            }
            end[upper] = a;
        }
        lo = end[0];
        hi = end[1];
        if (lo < hi && t->token[set->ids[lo]].length == k + 1)
            best = set->ids[lo++]; /* the others are longer, so byte k+1 exists */
    }
    return best;
}

int32_t di_tokenizer_find_added(const struct di_tokenizer *t, struct di_str spelling)
{
    for (int pass = 0; pass < 2; pass++) {
        int32_t id = match_added(t, &t->added[pass], spelling);
        if (id >= 0 && t->token[id].length == spelling.n)
            return id;
    }
    return -1;
}

/* ---- encoding ---- */

/* Merged pieces of this call, for texts long enough to repeat words: direct-mapped, one cache line each. */
struct memo {
    char piece[28];
    unsigned char length, n_ids; /* length 0 = empty */
    int32_t ids[8];
};

struct encoder {
    const struct di_tokenizer *t;
    struct memo *memo; /* NULL: none */
    unsigned memo_shift;
    struct di_ids *out;
    di_error *err;
};

#define MEMO_FROM ((size_t)1 << 14) /* bytes of text */
#define MEMO_MAX_LOG2 14

/* Without memory there is no memo, which costs time only. */
static void make_memo(struct encoder *e, size_t n)
{
    unsigned log2 = 9;
    if (n < MEMO_FROM)
        return;
    while (log2 < MEMO_MAX_LOG2 && ((size_t)1 << log2) * 32 < n)
        log2++;
    e->memo = di_calloc((size_t)1 << log2, sizeof *e->memo);
    e->memo_shift = 64 - log2;
}

static di_status encode_merging(struct encoder *e, struct di_str piece, size_t room)
{
    struct memo *m = NULL;
    if (e->memo && piece.n <= sizeof m->piece) {
        uint64_t key = word_key(piece.p, piece.n, room);
        m = &e->memo[((key ^ key >> 32) + piece.n) * 0x9E3779B97F4A7C15u >> e->memo_shift];
        if (m->length == piece.n && memcmp(m->piece, piece.p, piece.n) == 0) {
            if (!di_ids_reserve(e->out, sizeof m->ids / sizeof *m->ids))
                return di_fail(e->err, DI_ERR_MEMORY, "", "out of memory for token ids");
            memcpy(e->out->v + e->out->n, m->ids, sizeof m->ids);
            e->out->n += m->n_ids;
            return DI_OK;
        }
    }
    size_t before = e->out->n;
    di_status status = di_bpe_encode(&e->t->bpe, piece.p, piece.n, e->out, e->err);
    size_t n_ids = e->out->n - before;
    if (m && status == DI_OK && n_ids <= sizeof m->ids / sizeof *m->ids) {
        memcpy(m->piece, piece.p, piece.n);
        memcpy(m->ids, e->out->v + before, n_ids * sizeof *m->ids);
        m->length = (unsigned char)piece.n;
        m->n_ids = (unsigned char)n_ids;
    }
    return status;
}

static di_status encode_plain(struct encoder *e, struct di_str s)
{
    const struct di_tokenizer *t = e->t;
    for (size_t i = 0, n; i < s.n; i += n) {
        n = di_pretoken_length(s.p + i, s.n - i);
        int32_t id = di_tokenizer_find_word(t, s.p + i, n, s.n - i);
        if (id < 0 || !(t->flags[id] & DI_TOK_WHOLE)) {
            di_status status = encode_merging(e, (struct di_str){s.p + i, n}, s.n - i);
            if (status != DI_OK)
                return status;
            continue;
        }
        if (e->out->n == e->out->cap && !di_ids_reserve(e->out, 1))
            return di_fail(e->err, DI_ERR_MEMORY, "", "out of memory for token ids");
        e->out->v[e->out->n++] = id;
    }
    return DI_OK;
}

/* Leftmost-longest matches of one set become ids; the text between them goes to the next pass. */
static di_status encode_added(struct encoder *e, struct di_str s, int pass)
{
    const struct di_tokenizer *t = e->t;
    if (pass == 2)
        return encode_plain(e, s);
    const struct di_added_set *set = &t->added[pass];
    di_status status = DI_OK;
    size_t from = 0;
    for (size_t i = 0; i < s.n && set->n;) {
        int32_t id = -1;
        if (set->first[(unsigned char)s.p[i]])
            id = match_added(t, set, (struct di_str){s.p + i, s.n - i});
        if (id < 0) {
            i++;
            continue;
        }
        TRY(encode_added(e, (struct di_str){s.p + from, i - from}, pass + 1));
        CHECK(di_ids_reserve(e->out, 1), e->err, DI_ERR_MEMORY, "", "out of memory for token ids");
        e->out->v[e->out->n++] = id;
        from = i += t->token[id].length;
    }
    TRY(encode_added(e, (struct di_str){s.p + from, s.n - from}, pass + 1));
out:
    return status;
}

di_status di_tokenizer_encode(const struct di_tokenizer *t, struct di_str text, unsigned flags, struct di_ids *out, di_error *err)
{
    size_t at, before = out->n;
    if (!di_utf8_valid(text, &at)) {
        char where[40];
        snprintf(where, sizeof where, "byte %zu", at);
        return di_fail(err, DI_ERR_INVALID, where, "the text is not valid UTF-8");
    }
    if (text.n == 0)
        return DI_OK;
    struct encoder e = {.t = t, .out = out, .err = err};
    make_memo(&e, text.n);
    di_status status = encode_added(&e, text, flags & DI_TOKENIZER_ADDED ? 0 : 2);
    di_free(e.memo);
    if (status != DI_OK)
        out->n = before;
    return status;
}

/* ---- decoding ---- */

di_status di_tokenizer_decode(const struct di_tokenizer *t, const int32_t *ids, size_t n, struct di_buf *out, di_error *err)
{
    di_status status = DI_OK;
    struct di_utf8_stream stream = {0};
    size_t before = out->n;
    for (size_t i = 0; i < n; i++) {
        CHECK(di_tokenizer_has(t, ids[i]), err, DI_ERR_INVALID, "", "the tokenizer has no token %d (of %d)", (int)ids[i], (int)t->size);
        di_utf8_stream_push(&stream, di_tokenizer_token_bytes(t, ids[i]), out);
    }
    di_utf8_stream_end(&stream, out);
    TRY(di_buf_ok(out, err));
out:
    if (status != DI_OK && out->n > before)
        out->n = before;
    return status;
}
