#include "grammar/vocabulary.h"
#include "base/utf8.h"

#include <stdlib.h>

static int by_bytes(const void *a, const void *b)
{
    const struct trie_entry *x = a, *y = b;
    size_t n = x->bytes.n < y->bytes.n ? x->bytes.n : y->bytes.n;
    int c = n ? memcmp(x->bytes.p, y->bytes.p, n) : 0;
    if (c == 0)
        c = (x->bytes.n > y->bytes.n) - (x->bytes.n < y->bytes.n);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

static int by_chars(const void *a, const void *b)
{
    const struct trie_entry *x = a, *y = b;
    return (x->chars < y->chars) - (x->chars > y->chars);
}

/* Takes the entries over. */
static bool build_trie(struct trie *t, struct trie_entry *entries, size_t n)
{
    size_t nodes = 1, most = 0;
    qsort(entries, n, sizeof *entries, by_bytes);
    for (size_t i = 0; i < n; i++) {
        nodes += entries[i].bytes.n;
        most = entries[i].bytes.n > most ? entries[i].bytes.n : most;
    }
    *t = (struct trie){.entries = entries, .n_entries = n, .depth = most};
    uint32_t *path = di_malloc((most + 2) * sizeof *path);
    t->nodes = di_malloc(nodes * sizeof *t->nodes);
    if (!path || !t->nodes) {
        di_free(path);
        return false;
    }
    size_t depth = 0;
    t->nodes[t->n_nodes++] = (struct trie_node){0};
    path[0] = 0;
    for (size_t i = 0; i < n; i++) {
        struct di_str s = entries[i].bytes;
        size_t same = 0;
        while (i && same < depth && same < s.n && entries[i - 1].bytes.p[same] == s.p[same])
            same++;
        for (; depth > same; depth--)
            t->nodes[path[depth]].end = (uint32_t)t->n_nodes;
        while (depth < s.n) {
            path[depth + 1] = (uint32_t)t->n_nodes;
            t->nodes[t->n_nodes++] =
                (struct trie_node){.first = (uint32_t)i, .depth = (uint16_t)(depth + 1), .byte = (unsigned char)s.p[depth]};
            depth++;
        }
        t->nodes[path[depth]].count++;
    }
    for (; depth > 0; depth--)
        t->nodes[path[depth]].end = (uint32_t)t->n_nodes;
    t->nodes[0].end = (uint32_t)t->n_nodes;
    di_free(path);
    struct trie_node *fit = di_realloc(t->nodes, t->n_nodes * sizeof *fit);
    t->nodes = fit ? fit : t->nodes;
    return true;
}

static void free_trie(struct trie *t)
{
    di_free(t->nodes);
    di_free(t->entries);
}

/* Bytes at the beginning of s that a string of JSON may hold as they are, in whole characters. */
static size_t content_prefix(struct di_str s, uint32_t *chars)
{
    size_t at = 0;
    *chars = 0;
    while (at < s.n) {
        uint32_t cp;
        size_t n = di_utf8_decode(s.p + at, s.n - at, &cp, NULL);
        if (!n || cp < 0x20 || cp == '"' || cp == '\\')
            break;
        at += n;
        ++*chars;
    }
    return at;
}

enum { NO_STRING = -1, HAS_PAIRS = -2 };

/* Follow a token through a string of JSON that may hold anything. Gives the place of the quotation mark that ends it, or s.n if none does. */
static int64_t string_end(struct di_str s)
{
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.p[i];
        uint32_t cp;
        if (c == '"')
            return (int64_t)i;
        if (c < 0x20)
            return NO_STRING;
        if (c == '\\') {
            size_t digits = 0;
            if (++i == s.n)
                break;
            if (s.p[i] != 'u') {
                if (!s.p[i] || !strchr("\"\\/bfnrt", s.p[i]))
                    return NO_STRING;
                i++;
                continue;
            }
            for (i++; i < s.n && digits < 4; i++, digits++) {
                int h = s.p[i];
                bool hex = (h >= '0' && h <= '9') || ((h | 32) >= 'a' && (h | 32) <= 'f');
                if (!hex)
                    return NO_STRING;
                if (digits == 0 && (h | 32) == 'd')
                    return HAS_PAIRS;
            }
            continue;
        }
        size_t n = di_utf8_decode(s.p + i, s.n - i, &cp, NULL);
        if (!n && di_utf8_tail(s) == s.n - i)
            break;
        if (!n)
            return NO_STRING;
        i += n;
    }
    return (int64_t)s.n;
}

static bool build_slice(struct di_vocabulary *v)
{
    struct slice *s = &v->content;
    struct trie_entry *closing = di_malloc((v->n + 1) * sizeof *closing), *others = di_malloc((v->n + 1) * sizeof *others);
    struct trie_entry *leaving = di_malloc((v->n + 1) * sizeof *leaving);
    size_t n_closing = 0, n_others = 0, n_leaving = 0;
    s->inside = di_calloc(v->words, sizeof *s->inside);
    s->pairs = di_malloc((v->n + 1) * sizeof *s->pairs);
    s->breaks = di_malloc((v->n + 1) * sizeof *s->breaks);
    s->whole = di_calloc(v->words, sizeof *s->whole);
    s->short_ones = di_calloc(v->words * SLICE_LEFT, sizeof *s->short_ones);
    s->by_chars = di_malloc((v->n + 1) * sizeof *s->by_chars);
    if (!closing || !others || !leaving || !s->inside || !s->pairs || !s->breaks || !s->whole || !s->short_ones || !s->by_chars) {
        di_free(closing);
        di_free(others);
        di_free(leaving);
        return false;
    }
    for (uint32_t id = 0; id < v->n; id++) {
        struct di_str t = v->tokens[id];
        uint32_t chars;
        size_t n = content_prefix(t, &chars);
        if (!t.n || t.n > UINT16_MAX)
            continue;
        struct trie_entry e = {.bytes = {t.p + n, t.n - n}, .id = id, .chars = chars};
        int64_t end = string_end(t);
        if (end == HAS_PAIRS)
            s->pairs[s->n_pairs++] = id;
        else if (end == (int64_t)t.n)
            mask_add(s->inside, id);
        else if (end >= 0)
            leaving[n_leaving++] = (struct trie_entry){.bytes = {t.p + end, t.n - (size_t)end}, .id = id};
        if (n == t.n) {
            mask_add(s->whole, id);
            if (has_break(t))
                s->breaks[s->n_breaks++] = id;
            s->by_chars[s->n_by_chars++] = e;
            s->most_chars = chars > s->most_chars ? chars : s->most_chars;
            for (uint32_t k = chars; k < SLICE_LEFT; k++)
                mask_add(s->short_ones + k * v->words, id);
        } else if (t.p[n] == '"') {
            closing[n_closing++] = e;
        } else {
            others[n_others++] = e;
        }
    }
    qsort(s->by_chars, s->n_by_chars, sizeof *s->by_chars, by_chars);
    bool built = build_trie(&s->closing, closing, n_closing);
    built = build_trie(&s->others, others, n_others) && built;
    return build_trie(&s->leaving, leaving, n_leaving) && built;
}

const struct byte_set trie_classes[N_ASCII_CLASSES] = {
    {{0x3FF000000000000u, 0x0u, 0, 0}},                 /* digits */
    {{0x0u, 0x7FFFFFE00000000u, 0, 0}},                 /* small letters */
    {{0x0u, 0x7FFFFFE07FFFFFEu, 0, 0}},                 /* letters */
    {{0x3FF000000000000u, 0x7FFFFFE07FFFFFEu, 0, 0}},   /* letters and digits */
    {{0x3FF200000000000u, 0x7FFFFFE87FFFFFEu, 0, 0}},   /* and _ - */
    {{0x7FFE82000000000u, 0x7FFFFFE87FFFFFFu, 0, 0}},   /* and . / : @ + % */
    {{0xFFFFFFFA00000000u, 0x7FFFFFFFEFFFFFFFu, 0, 0}}, /* all that is visible */
    {{0xFFFFFFFB00000000u, 0x7FFFFFFFEFFFFFFFu, 0, 0}}, /* and the space */
};

/* Classes that hold all of a token. */
static uint16_t classes_of(const struct di_vocabulary *v, uint32_t id)
{
    struct di_str s = v->tokens[id];
    bool text = v->content.inside[id / 32] >> id % 32 & 1;
    unsigned all = (unsigned)text << CLASS_TEXT | (unsigned)(text && !has_break(s)) << CLASS_LINE | ((1u << N_ASCII_CLASSES) - 1);
    for (size_t i = 0; i < s.n; i++)
        for (unsigned k = 0; k < N_ASCII_CLASSES; k++)
            if (!set_has(&trie_classes[k], (unsigned char)s.p[i]))
                all &= ~(1u << k);
    return (uint16_t)all;
}

/* Which classes hold all the tokens at and below a node. */
static bool build_classes(struct di_vocabulary *v)
{
    const struct trie *t = &v->plain;
    uint16_t *below = di_malloc((t->depth + 2) * sizeof *below); /* by depth: of the nodes seen since the last node above them */
    v->pure = di_malloc((t->n_nodes + 1) * sizeof *v->pure);
    v->of_class = di_calloc(v->words * N_CLASSES + 1, sizeof *v->of_class);
    if (!below || !v->pure || !v->of_class) {
        di_free(below);
        return false;
    }
    memset(below, 0xFF, (t->depth + 2) * sizeof *below);
    for (size_t i = t->n_nodes; i-- > 0;) {
        const struct trie_node *n = t->nodes + i;
        uint16_t all = below[n->depth + 1];
        below[n->depth + 1] = UINT16_MAX;
        for (uint32_t e = n->first; e < n->first + n->count; e++) {
            uint16_t one = classes_of(v, t->entries[e].id);
            all &= one;
            for (unsigned k = 0; k < N_CLASSES; k++)
                if (one >> k & 1)
                    mask_add(v->of_class + k * v->words, t->entries[e].id);
        }
        v->pure[i] = all;
        below[n->depth] &= all;
    }
    di_free(below);
    return true;
}

/* The tokens for which `has` says so. */
static bool build_part(struct di_vocabulary *v, struct trie *t, bool (*has)(struct di_str s))
{
    struct trie_entry *entries = di_malloc((v->n + 1) * sizeof *entries);
    size_t count = 0;
    if (!entries)
        return false;
    for (uint32_t id = 0; id < v->n; id++)
        if (v->tokens[id].n && v->tokens[id].n <= UINT16_MAX && has(v->tokens[id]))
            entries[count++] = (struct trie_entry){.bytes = v->tokens[id], .id = id};
    return build_trie(t, entries, count);
}

static bool is_marked(struct di_str s)
{
    return memchr(s.p, '"', s.n) || memchr(s.p, '\\', s.n);
}

static bool is_plain(struct di_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == '"' || s.p[i] == '\\')
            return false;
    return true;
}

static bool is_numeral(struct di_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!s.p[i] || !strchr("0123456789+-.eE", s.p[i]))
            return false;
    return true;
}

static bool leaves_number(struct di_str s)
{
    return is_numeral((struct di_str){s.p, 1}) && !is_numeral(s);
}

static bool build_structure(struct di_vocabulary *v)
{
    struct trie_entry *entries = di_malloc((v->n + 1) * sizeof *entries);
    size_t count = 0;
    v->spaces = di_calloc(v->words + 1, sizeof *v->spaces);
    if (!entries || !v->spaces) {
        di_free(entries);
        return false;
    }
    for (uint32_t id = 0; id < v->n; id++) {
        struct di_str s = v->tokens[id];
        size_t n = 0;
        while (n < s.n && s.p[n] && strchr(" \n\r\t", s.p[n]))
            n++;
        if (n && n == s.n)
            mask_add(v->spaces, id);
        else if (n < s.n && s.n <= UINT16_MAX && s.p[n] && strchr("\",:-0123456789[]{}fnt", s.p[n]) && (n || !is_numeral(s)))
            entries[count++] = (struct trie_entry){.bytes = {s.p + n, s.n - n}, .id = id};
    }
    return build_trie(&v->structure, entries, count);
}

di_status di_vocabulary_create(const struct di_str *tokens, size_t n, struct di_vocabulary **out, di_error *err)
{
    struct di_vocabulary *v = di_calloc(1, sizeof *v);
    size_t bytes = 0, count = 0;
    *out = NULL;
    if (!v)
        goto failed;
    for (size_t i = 0; i < n; i++)
        bytes += tokens[i].n;
    v->n = n;
    v->words = di_mask_words(n);
    v->bytes = di_malloc(bytes + 1);
    v->tokens = di_malloc((n + 1) * sizeof *v->tokens);
    struct trie_entry *entries = di_malloc((n + 1) * sizeof *entries);
    if (!v->bytes || !v->tokens || !entries) {
        di_free(entries);
        goto failed;
    }
    char *to = v->bytes;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i].n)
            memcpy(to, tokens[i].p, tokens[i].n);
        v->tokens[i] = (struct di_str){to, tokens[i].n};
        to += tokens[i].n;
        if (tokens[i].n && tokens[i].n <= UINT16_MAX)
            entries[count++] = (struct trie_entry){.bytes = v->tokens[i], .id = (uint32_t)i};
    }
    if (!build_trie(&v->all, entries, count) || !build_slice(v) || !build_part(v, &v->plain, is_plain) ||
        !build_part(v, &v->marked, is_marked) || !build_part(v, &v->numerals, is_numeral) ||
        !build_part(v, &v->after_number, leaves_number) || !build_structure(v) || !build_classes(v))
        goto failed;
    v->shared = di_calloc(1, sizeof *v->shared);
    if (!v->shared)
        goto failed;
    pthread_mutex_init(&v->shared->lock, NULL);
    for (uint32_t i = 1; i < v->all.n_nodes; i = v->all.nodes[i].end)
        v->first_node[v->all.nodes[i].byte] = i;
    *out = v;
    return DI_OK;
failed:
    di_vocabulary_destroy(v);
    return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a vocabulary");
}

void di_vocabulary_destroy(struct di_vocabulary *v)
{
    if (!v)
        return;
    free_trie(&v->all);
    free_trie(&v->plain);
    free_trie(&v->marked);
    free_trie(&v->numerals);
    free_trie(&v->after_number);
    free_trie(&v->structure);
    di_free(v->spaces);
    di_free(v->pure);
    di_free(v->of_class);
    if (v->shared) {
        for (size_t i = 0; i < SHARED_MASKS; i++)
            di_free(v->shared->slots[i].mask);
        pthread_mutex_destroy(&v->shared->lock);
        di_free(v->shared);
    }
    free_trie(&v->content.closing);
    free_trie(&v->content.others);
    free_trie(&v->content.leaving);
    di_free(v->content.inside);
    di_free(v->content.pairs);
    di_free(v->content.breaks);
    di_free(v->content.whole);
    di_free(v->content.short_ones);
    di_free(v->content.by_chars);
    di_free(v->tokens);
    di_free(v->bytes);
    di_free(v);
}

size_t di_vocabulary_size(const struct di_vocabulary *v)
{
    return v->n;
}

struct di_str di_vocabulary_token(const struct di_vocabulary *v, size_t id)
{
    return id < v->n ? v->tokens[id] : (struct di_str){0};
}
