/* From tokenizer.json to struct di_tokenizer. The file is untrusted: every id, length and name is checked, and whatever would need a rule
 * that is not here is refused rather than ignored. */
#include "text/tokenizer_impl.h"

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/pretokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_FILE ((size_t)64 << 20)
#define MAX_SPELLING 1024 /* of an added token: bounds the search at each position of a text */

struct loader {
    struct di_tokenizer *t;
    struct di_buf bytes; /* becomes t->bytes */
    struct di_buf tmp;
    di_error *err;
};

/* ---- settings ---- */

static bool is(const struct di_json *v, const char *word)
{
    return di_json_is(v, DI_JSON_STRING) && di_str_eqc(v->text, word);
}

/* absent, null, false or "" */
static bool off(const struct di_json *v)
{
    return !v || v->type == DI_JSON_NULL || (v->type == DI_JSON_BOOL && !v->boolean) || (v->type == DI_JSON_STRING && v->text.n == 0);
}

static bool is_false(const struct di_json *v)
{
    return di_json_is(v, DI_JSON_BOOL) && !v->boolean;
}

static di_status check_pre_tokenizer(const struct di_json *pre, di_error *err)
{
    const struct di_json *list = di_json_get(pre, "pretokenizers");
    bool ok = is(di_json_get(pre, "type"), "Sequence") && di_json_is(list, DI_JSON_ARRAY) && list->count == 4;
    for (size_t i = 0; ok && i < 3; i++) {
        const struct di_json *split = di_json_at(list, i);
        ok = is(di_json_get(split, "type"), "Split") && is(di_json_get(di_json_get(split, "pattern"), "Regex"), di_pretoken_regex[i]) &&
             is(di_json_get(split, "behavior"), "Isolated") && off(di_json_get(split, "invert"));
    }
    const struct di_json *last = ok ? di_json_at(list, 3) : NULL;
    ok = ok && is(di_json_get(last, "type"), "ByteLevel") && is_false(di_json_get(last, "add_prefix_space")) &&
         is_false(di_json_get(last, "use_regex"));
    if (ok)
        return DI_OK;
    return di_fail(err, DI_ERR_UNSUPPORTED, "pre_tokenizer", "only the DeepSeek pre-tokenizer (three splits, then bytes) is known");
}

static di_status check_settings(const struct di_json *root, di_error *err)
{
    static const char *const root_off[] = {"truncation", "padding"};
    static const char *const model_off[] = {"dropout",       "unk_token",    "continuing_subword_prefix", "end_of_word_suffix",
                                            "byte_fallback", "ignore_merges"};
    const struct di_json *model = di_json_get(root, "model"), *normalizer = di_json_get(root, "normalizer");
    const struct di_json *steps = di_json_get(normalizer, "normalizers"), *post = di_json_get(root, "post_processor");
    di_status status = DI_OK;
    CHECK(di_json_is(root, DI_JSON_OBJECT), err, DI_ERR_FORMAT, "", "an object was expected, not a %s", di_json_type_name(root));
    CHECK(di_json_is(model, DI_JSON_OBJECT), err, DI_ERR_FORMAT, "model", "an object was expected, not %s", di_json_type_name(model));
    CHECK(is(di_json_get(model, "type"), "BPE"), err, DI_ERR_UNSUPPORTED, "model.type", "only BPE is known");
    for (size_t i = 0; i < sizeof root_off / sizeof *root_off; i++)
        CHECK(off(di_json_get(root, root_off[i])), err, DI_ERR_UNSUPPORTED, root_off[i], "this setting must be off");
    for (size_t i = 0; i < sizeof model_off / sizeof *model_off; i++)
        CHECK(off(di_json_get(model, model_off[i])), err, DI_ERR_UNSUPPORTED, model_off[i], "this setting of the model must be off");
    bool nothing = is(di_json_get(normalizer, "type"), "Sequence") && di_json_is(steps, DI_JSON_ARRAY) && steps->count == 0;
    CHECK(off(normalizer) || nothing, err, DI_ERR_UNSUPPORTED, "normalizer", "no normalizer is known");
    CHECK(off(post) || is(di_json_get(post, "type"), "ByteLevel"), err, DI_ERR_UNSUPPORTED, "post_processor", "only ByteLevel is known");
    CHECK(is(di_json_get(di_json_get(root, "decoder"), "type"), "ByteLevel"), err, DI_ERR_UNSUPPORTED, "decoder",
          "only ByteLevel is known");
    TRY(check_pre_tokenizer(di_json_get(root, "pre_tokenizer"), err));
out:
    return status;
}

/* ---- byte alphabet (spec/encoding.md §1.3) ---- */

static bool stands_for_itself(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

static unsigned char_of_byte(unsigned byte)
{
    unsigned other = 0;
    if (stands_for_itself(byte))
        return byte;
    for (unsigned b = 0; b < byte; b++)
        other += !stands_for_itself(b);
    return 256 + other;
}

void di_tokenizer_add_byte_char(struct di_buf *out, unsigned char byte)
{
    char c[4];
    di_buf_add(out, c, di_utf8_encode(char_of_byte(byte), c));
}

/* The bytes that a string of the byte alphabet stands for; false if a character is not in it. `out` is cleared first. */
static bool to_bytes(struct di_str s, struct di_buf *out)
{
    /* the 68 bytes that U+0100 and on stand for are 0..32, 127..160, 173 */
    di_buf_clear(out);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += di_utf8_decode(s.p + i, s.n - i, &cp, NULL); /* the JSON reader let only well-formed text through */
        if (cp >= 256 && cp < 256 + 68) {
            cp -= 256;
            cp = cp <= 32 ? cp : cp < 67 ? cp - 33 + 127 : 173;
        } else if (cp > 255 || !stands_for_itself(cp)) {
            return false;
        }
        di_buf_addc(out, (char)cp);
    }
    return true;
}

/* ---- ids and their bytes ---- */

static di_status get_id(const struct di_json *v, const char *where, int32_t *id, di_error *err)
{
    int64_t x;
    *id = 0;
    if (!di_json_int(v, &x) || x < 0)
        return di_fail(err, DI_ERR_FORMAT, where, "an id must be a whole number from 0");
    if (x >= DI_BPE_MAX_IDS)
        return di_fail(err, DI_ERR_LIMIT, where, "the id %lld is beyond the limit of %u", (long long)x, DI_BPE_MAX_IDS - 1);
    *id = (int32_t)x;
    return DI_OK;
}

/* Largest id and room for all tokens. */
static di_status make_room(struct loader *l, const struct di_json *vocab, const struct di_json *added)
{
    struct di_tokenizer *t = l->t;
    di_status status = DI_OK;
    int32_t id, top = -1;
    size_t base = 0;
    for (const struct di_json *m = vocab->child; m; m = m->next, base++) {
        TRY(get_id(m, "model.vocab", &id, l->err));
        top = id > top ? id : top;
    }
    for (const struct di_json *a = added ? added->child : NULL; a; a = a->next) {
        TRY(get_id(di_json_get(a, "id"), "added_tokens", &id, l->err));
        top = id > top ? id : top;
    }
    unsigned log2 = 4;
    while (((size_t)1 << log2) < base * 2)
        log2++;
    t->size = top + 1;
    t->word_shift = 64 - log2;
    t->token = di_calloc((size_t)t->size, sizeof *t->token);
    t->flags = di_calloc((size_t)t->size, 1);
    t->words = di_malloc(sizeof *t->words << log2);
    CHECK(t->token && t->flags && t->words, l->err, DI_ERR_MEMORY, "", "out of memory for %d tokens", (int)t->size);
    for (size_t i = 0; i < (size_t)1 << log2; i++)
        t->words[i].id = -1;
out:
    return status;
}

static di_status set_token(struct loader *l, int32_t id, struct di_str bytes, unsigned flags, const char *where)
{
    struct di_tokenizer *t = l->t;
    if (t->flags[id])
        return di_fail(l->err, DI_ERR_FORMAT, where, "the id %d occurs twice", (int)id);
    t->flags[id] = (unsigned char)(DI_TOK_PRESENT | flags);
    /* all strings come from a file of at most MAX_FILE bytes, so 32 bits hold offset and length */
    t->token[id] = (struct di_token){(uint32_t)l->bytes.n, (uint32_t)bytes.n};
    di_buf_addv(&l->bytes, bytes);
    return di_buf_ok(&l->bytes, l->err);
}

static di_status read_vocab(struct loader *l, const struct di_json *vocab)
{
    di_status status = DI_OK;
    int32_t id;
    for (const struct di_json *m = vocab->child; m; m = m->next) {
        TRY(get_id(m, "model.vocab", &id, l->err));
        CHECK(m->key.n > 0, l->err, DI_ERR_FORMAT, "model.vocab", "the entry with id %d is empty", (int)id);
        /* an entry outside of the byte alphabet can't come out of a merge; it is there for an added token of that spelling */
        bool base = to_bytes(m->key, &l->tmp);
        TRY(di_buf_ok(&l->tmp, l->err));
        TRY(set_token(l, id, base ? di_buf_str(&l->tmp) : m->key, base ? DI_TOK_BASE : 0, "model.vocab"));
    }
out:
    return status;
}

static di_status index_words(struct loader *l)
{
    struct di_tokenizer *t = l->t;
    di_status status = DI_OK;
    for (int32_t id = 0; id < t->size; id++)
        CHECK(!(t->flags[id] & DI_TOK_BASE) || di_tokenizer_put_word(t, id), l->err, DI_ERR_LIMIT, "model.vocab",
              "the entries collide in the word table");
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        t->bpe.byte_id[b] = di_tokenizer_find_word(t, &c, 1, 1);
        CHECK(t->bpe.byte_id[b] >= 0, l->err, DI_ERR_UNSUPPORTED, "model.vocab", "the byte %d has no entry", b);
    }
out:
    return status;
}

/* ---- merges ---- */

static bool merge_sides(const struct di_json *m, struct di_str side[2])
{
    if (di_json_is(m, DI_JSON_STRING)) {
        size_t space = di_str_find(m->text, DI_STR(" "), 0);
        if (space == SIZE_MAX)
            return false;
        side[0] = (struct di_str){m->text.p, space};
        side[1] = (struct di_str){m->text.p + space + 1, m->text.n - space - 1};
        return true; /* a second space is not in the byte alphabet */
    }
    if (!di_json_is(m, DI_JSON_ARRAY) || m->count != 2 || m->child->type != DI_JSON_STRING || m->child->next->type != DI_JSON_STRING)
        return false;
    side[0] = m->child->text;
    side[1] = m->child->next->text;
    return true;
}

static di_status read_merges(struct loader *l, const struct di_json *merges)
{
    struct di_tokenizer *t = l->t;
    di_status status = DI_OK;
    char where[40] = "model.merges";
    size_t rank = 0;
    CHECK(di_json_is(merges, DI_JSON_ARRAY), l->err, DI_ERR_FORMAT, where, "a list was expected, not %s", di_json_type_name(merges));
    CHECK(merges->count <= DI_BPE_MAX_MERGES, l->err, DI_ERR_LIMIT, where, "%zu merges are too many", merges->count);
    TRY(di_bpe_init(&t->bpe, (uint32_t)merges->count, l->err));
    for (const struct di_json *m = merges->child; m; m = m->next, rank++) {
        struct di_str side[2] = {{0}, {0}};
        int32_t id[3] = {-1, -1, -1};
        bool ok = merge_sides(m, side);
        for (int k = 0; k < 2 && ok; k++) {
            ok = to_bytes(side[k], &l->tmp) && l->tmp.n > 0;
            TRY(di_buf_ok(&l->tmp, l->err));
            id[k] = ok ? di_tokenizer_find_word(t, l->tmp.p, l->tmp.n, l->tmp.n) : -1;
            ok = id[k] >= 0;
        }
        if (ok) {
            di_buf_clear(&l->tmp);
            di_buf_addv(&l->tmp, di_tokenizer_token_bytes(t, id[0]));
            di_buf_addv(&l->tmp, di_tokenizer_token_bytes(t, id[1]));
            TRY(di_buf_ok(&l->tmp, l->err));
            id[2] = di_tokenizer_find_word(t, l->tmp.p, l->tmp.n, l->tmp.n);
        }
        CHECK(id[2] >= 0, l->err, DI_ERR_FORMAT, where, "merge %zu does not name two entries of the vocabulary that make a third", rank);
        TRY(di_bpe_add(&t->bpe, id[0], id[1], id[2], l->err));
    }
    di_bpe_finish(&t->bpe);
out:
    if (status != DI_OK)
        di_error_at(l->err, where);
    return status;
}

/* Which entries may be taken as a whole: those that merging their bytes gives, so that the short cut never changes a result. */
static di_status mark_whole(struct loader *l)
{
    struct di_tokenizer *t = l->t;
    di_status status = DI_OK;
    struct di_ids ids = {0};
    for (int32_t id = 0; id < t->size; id++) {
        struct di_str s = di_tokenizer_token_bytes(t, id);
        if (!(t->flags[id] & DI_TOK_BASE))
            continue;
        ids.n = 0;
        TRY(di_bpe_encode(&t->bpe, s.p, s.n, &ids, l->err));
        if (ids.n == 1 && ids.v[0] == id)
            t->flags[id] |= DI_TOK_WHOLE;
    }
out:
    di_ids_fini(&ids);
    return status;
}

/* ---- added tokens ---- */

static di_status read_added_token(struct loader *l, const struct di_json *a, size_t index)
{
    static const char *const must_be_off[] = {"lstrip", "rstrip", "single_word"};
    struct di_tokenizer *t = l->t;
    di_status status = DI_OK;
    int32_t id;
    char where[40];
    snprintf(where, sizeof where, "added_tokens[%zu]", index);
    const struct di_json *content = di_json_get(a, "content");
    TRY(get_id(di_json_get(a, "id"), where, &id, l->err));
    CHECK(di_json_is(content, DI_JSON_STRING) && content->text.n > 0, l->err, DI_ERR_FORMAT, where, "a non-empty content was expected");
    CHECK(content->text.n <= MAX_SPELLING, l->err, DI_ERR_LIMIT, where, "a spelling of %zu bytes is too long", content->text.n);
    for (size_t i = 0; i < sizeof must_be_off / sizeof *must_be_off; i++)
        CHECK(off(di_json_get(a, must_be_off[i])), l->err, DI_ERR_UNSUPPORTED, where, "%s must be off", must_be_off[i]);
    /* text must never turn into a control id by merging (spec/encoding.md §2.10) */
    bool ordinary = to_bytes(content->text, &l->tmp) && di_tokenizer_find_word(t, l->tmp.p, l->tmp.n, l->tmp.n) >= 0;
    TRY(di_buf_ok(&l->tmp, l->err));
    CHECK(!ordinary && !(t->flags[id] & DI_TOK_BASE), l->err, DI_ERR_UNSUPPORTED, where,
          "an added token must not be an ordinary entry of the vocabulary too");
    if (t->flags[id] == DI_TOK_PRESENT)
        CHECK(di_str_eq(di_tokenizer_token_bytes(t, id), content->text), l->err, DI_ERR_FORMAT, where,
              "the id %d has another spelling in the vocabulary", (int)id);
    else
        TRY(set_token(l, id, content->text, 0, where));
    t->bytes = l->bytes.p;
    t->flags[id] |= DI_TOK_ADDED;
    t->n_added++;
out:
    return status;
}

struct spelling {
    struct di_str s;
    int32_t id;
};

static int by_spelling(const void *a, const void *b)
{
    const struct spelling *x = a, *y = b;
    int c = memcmp(x->s.p, y->s.p, x->s.n < y->s.n ? x->s.n : y->s.n);
    return c ? c : (x->s.n > y->s.n) - (x->s.n < y->s.n);
}

static di_status make_set(struct loader *l, const struct di_json *added, bool normalized)
{
    struct di_added_set *set = &l->t->added[normalized];
    di_status status = DI_OK;
    struct spelling *list = di_malloc(added->count * sizeof *list);
    set->ids = di_malloc(added->count * sizeof *set->ids);
    CHECK(list && set->ids, l->err, DI_ERR_MEMORY, "", "out of memory for %zu added tokens", added->count);
    for (const struct di_json *a = added->child; a; a = a->next) {
        const struct di_json *flag = di_json_get(a, "normalized");
        int32_t id;
        if (off(flag) == normalized)
            continue;
        TRY(get_id(di_json_get(a, "id"), "added_tokens", &id, l->err));
        list[set->n++] = (struct spelling){di_tokenizer_token_bytes(l->t, id), id};
    }
    qsort(list, set->n, sizeof *list, by_spelling);
    for (size_t i = 0; i < set->n; i++) {
        set->ids[i] = list[i].id;
        set->first[(unsigned char)list[i].s.p[0]] = true;
        CHECK(i == 0 || !di_str_eq(list[i].s, list[i - 1].s), l->err, DI_ERR_FORMAT, "added_tokens", "the ids %d and %d are spelled alike",
              (int)list[i - 1].id, (int)list[i].id);
    }
out:
    di_free(list);
    return status;
}

static di_status read_added(struct loader *l, const struct di_json *added)
{
    struct di_tokenizer *t = l->t;
    di_status status = DI_OK;
    size_t index = 0;
    for (const struct di_json *a = added ? added->child : NULL; a; a = a->next)
        TRY(read_added_token(l, a, index++));
    t->bytes = l->bytes.p;
    if (added) {
        TRY(make_set(l, added, false));
        TRY(make_set(l, added, true));
    }
    for (int32_t id = 0; id < t->size; id++) {
        if (!(t->flags[id] & DI_TOK_PRESENT) || t->flags[id] & DI_TOK_BASE)
            continue;
        /* one spelling, one id: also between the two sets, and between them and entries of the vocabulary */
        int32_t other = di_tokenizer_find_added(t, di_tokenizer_token_bytes(t, id));
        CHECK(other < 0 || other == id, l->err, DI_ERR_FORMAT, "added_tokens", "the ids %d and %d are spelled alike", (int)id, (int)other);
    }
out:
    return status;
}

/* ---- whole file ---- */

static di_status build(struct loader *l, const struct di_json *root)
{
    const struct di_json *model = di_json_get(root, "model"), *vocab = di_json_get(model, "vocab");
    const struct di_json *added = di_json_get(root, "added_tokens");
    di_status status = DI_OK;
    TRY(check_settings(root, l->err));
    CHECK(di_json_is(vocab, DI_JSON_OBJECT), l->err, DI_ERR_FORMAT, "model.vocab", "an object was expected, not %s",
          di_json_type_name(vocab));
    CHECK(!added || added->type == DI_JSON_ARRAY, l->err, DI_ERR_FORMAT, "added_tokens", "a list was expected, not %s",
          di_json_type_name(added));
    TRY(make_room(l, vocab, added));
    TRY(read_vocab(l, vocab));
    l->t->bytes = l->bytes.p;
    TRY(index_words(l));
    TRY(read_merges(l, di_json_get(model, "merges")));
    TRY(mark_whole(l));
    TRY(read_added(l, added));
out:
    l->t->bytes = l->bytes.p; /* owned by the tokenizer from here on, whatever happened */
    return status;
}

di_status di_tokenizer_from_json(struct di_str json, struct di_tokenizer **out, di_error *err)
{
    const struct di_json_limits limits = {.max_depth = 16, .refuse_duplicates = true};
    di_status status = DI_OK;
    struct di_arena arena;
    struct di_json *root;
    struct loader l = {.err = err};
    *out = NULL;
    di_arena_init(&arena);
    CHECK(json.n <= MAX_FILE, err, DI_ERR_LIMIT, "", "a tokenizer of %zu bytes is too large", json.n);
    TRY(di_json_parse(json, &limits, &arena, &root, err));
    l.t = di_calloc(1, sizeof *l.t);
    CHECK(l.t, err, DI_ERR_MEMORY, "", "out of memory for a tokenizer");
    TRY(build(&l, root));
    *out = l.t;
    l.t = NULL;
out:
    di_tokenizer_destroy(l.t);
    di_buf_fini(&l.tmp);
    di_arena_fini(&arena);
    return status;
}

di_status di_tokenizer_load(const char *path, struct di_tokenizer **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf name = {0}, text = {0};
    struct stat st;
    *out = NULL;
    di_buf_adds(&name, path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        di_buf_adds(&name, "/tokenizer.json");
    TRY(di_buf_ok(&name, err));
    TRY(di_file_read(name.p, MAX_FILE, &text, err));
    status = di_tokenizer_from_json(di_buf_str(&text), out, err);
    if (status != DI_OK) {
        di_error inner = err ? *err : (di_error){0};
        di_fail(err, status, name.p, "%s%s%.60s", inner.message, inner.where[0] ? ", at " : "", inner.where);
    }
out:
    if (status != DI_OK)
        di_error_at(err, name.p ? name.p : path);
    di_buf_fini(&name);
    di_buf_fini(&text);
    return status;
}
