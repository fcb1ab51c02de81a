/* Forms of answers: compiling, and the last ones. */
#include "api/forms.h"

#include "api/tool_form.h"
#include "base/utf8.h"

#include <openssl/evp.h>
#include <pthread.h>

/* Grammars that are kept for later requests, the ones used last. A grammar grows with what it meets; the limits below bound it. */
#define KEPT 64
#define KEPT_STATES 250000 /* 16 MB */
#define KEPT_MASKS 256     /* 4 MB of a vocabulary of 129,280 */
#define KEPT_BYTES ((size_t)128 << 20)

struct kept {
    uint8_t digest[32];
    struct di_grammar *grammar; /* held; NULL: free */
    uint64_t used;
};

struct di_forms {
    const struct di_text_model *text;
    int vocab;
    pthread_mutex_t lock;
    struct di_vocabulary *vocabulary; /* NULL until the first form */
    int32_t byte_tokens[256];
    uint64_t *sets; /* [DI_TOKEN_SETS][set_words] */
    size_t set_words;
    struct kept kept[KEPT];
    uint64_t uses;
};

/* ---------------------------------------------------------------- the vocabulary */

static bool has_only(struct di_str s, size_t from, const char *bytes)
{
    for (size_t i = from; i < s.n; i++)
        if (!s.p[i] || !strchr(bytes, s.p[i]))
            return false;
    return s.n > 0;
}

static bool is_in_set(struct di_str s, enum di_token_set set)
{
    switch (set) {
    case DI_TOKENS_BLANK: return has_only(s, 0, " \t\r\n");
    case DI_TOKENS_FRACTION: return has_only(s, 1, "0123456789") && s.p[0] == '.';
    case DI_TOKENS_EXPONENT: return has_only(s, 1, "+-0123456789") && (s.p[0] == 'e' || s.p[0] == 'E');
    case DI_TOKEN_SETS: break;
    }
    return false;
}

static bool is_banned(const struct di_text_model *t, size_t id)
{
    return t->banned && t->banned[id / 64] >> id % 64 & 1;
}

/* Control ids and those that are never sampled have no bytes here: no grammar lets them pass. Holds the lock. */
static di_status build_vocabulary(struct di_forms *f, di_error *err)
{
    const struct di_tokenizer *t = f->text->tokenizer;
    int32_t mark = f->text->controls.id[DI_CTL_DSML];
    size_t size = (size_t)di_tokenizer_size(t), n = size < (size_t)f->vocab ? size : (size_t)f->vocab;
    di_status status = DI_OK;
    if (f->vocabulary)
        return DI_OK;
    struct di_str *tokens = di_calloc(n + 1, sizeof *tokens);
    if (!f->sets)
        f->sets = di_calloc(DI_TOKEN_SETS * f->set_words, sizeof *f->sets);
    CHECK(tokens && f->sets, err, DI_ERR_MEMORY, "", "out of memory for a vocabulary");
    for (size_t i = 0; i < n; i++) {
        if (di_tokenizer_is_added(t, (int32_t)i) || is_banned(f->text, i))
            continue;
        tokens[i] = di_tokenizer_token_bytes(t, (int32_t)i);
        if (di_str_eqc(tokens[i], DI_TOOL_FORM_MARK)) /* no text has this byte */
            tokens[i] = (struct di_str){0};
        for (size_t set = 0; set < DI_TOKEN_SETS; set++)
            f->sets[set * f->set_words + i / 64] |= (uint64_t)is_in_set(tokens[i], (enum di_token_set)set) << i % 64;
        if (tokens[i].n == 1)
            f->byte_tokens[(unsigned char)tokens[i].p[0]] = (int32_t)i;
    }
    if (mark >= 0 && (size_t)mark < n && !is_banned(f->text, (size_t)mark))
        tokens[mark] = DI_STR(DI_TOOL_FORM_MARK);
    TRY(di_vocabulary_create(tokens, n, &f->vocabulary, err));
out:
    di_free(tokens);
    return status;
}

const struct di_vocabulary *di_forms_vocabulary(const struct di_forms *f)
{
    return f->vocabulary;
}

const uint64_t *di_forms_tokens(const struct di_forms *f, enum di_token_set set)
{
    return f->sets + (size_t)set * f->set_words;
}

int32_t di_forms_byte_token(const struct di_forms *f, unsigned char byte)
{
    return f->byte_tokens[byte];
}

const struct di_text_model *di_forms_text(const struct di_forms *f)
{
    return f->text;
}

int di_forms_vocab(const struct di_forms *f)
{
    return f->vocab;
}

/* ---------------------------------------------------------------- the last ones */

static bool digest_of(const struct di_form_wish *w, uint8_t digest[32])
{
    const unsigned char head[] = {(unsigned char)w->kind, w->compact, w->declared};
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(ctx, head, sizeof head) == 1 &&
              EVP_DigestUpdate(ctx, w->text.p, w->text.n) == 1 && EVP_DigestFinal_ex(ctx, digest, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    return ok;
}

/* A grammar that is kept, held once more, or NULL. Holds the lock. */
static struct di_grammar *find_kept(struct di_forms *f, const uint8_t digest[32])
{
    for (struct kept *k = f->kept; k < f->kept + KEPT; k++)
        if (k->grammar && memcmp(k->digest, digest, sizeof k->digest) == 0) {
            k->used = ++f->uses;
            return di_grammar_ref(k->grammar);
        }
    return NULL;
}

/* A grammar that met a limit or ran out of memory is closed for good: it is compiled anew for the next request. Returns what was kept, to be
 * given back. Holds the lock. */
static struct di_grammar *drop_kept(struct di_forms *f, const struct di_grammar *g)
{
    for (struct kept *k = f->kept; k < f->kept + KEPT; k++)
        if (k->grammar == g) {
            struct di_grammar *old = k->grammar;
            *k = (struct kept){0};
            return old;
        }
    return NULL;
}

/* The place that was used longest ago, or a free one. */
static struct kept *oldest(struct di_forms *f, bool may_be_free)
{
    struct kept *place = NULL;
    for (struct kept *k = f->kept; k < f->kept + KEPT; k++)
        if ((k->grammar || may_be_free) && (!place || k->used < place->used))
            place = k;
    return place;
}

/* Keep a grammar instead of the one that was used longest ago, and no more than KEPT_BYTES with it: grammars may have grown since, and it
 * may itself be too large to stay. What loses its place is freed without the lock, which this takes. */
static void keep(struct di_forms *f, const uint8_t digest[32], struct di_grammar *g)
{
    struct di_grammar *lost[KEPT + 1];
    size_t n_lost = 0, bytes = 0;
    pthread_mutex_lock(&f->lock);
    struct kept *place = oldest(f, true);
    if (place->grammar)
        lost[n_lost++] = place->grammar;
    *place = (struct kept){.grammar = di_grammar_ref(g), .used = ++f->uses};
    memcpy(place->digest, digest, sizeof place->digest);
    for (struct kept *k = f->kept; k < f->kept + KEPT; k++)
        bytes += k->grammar ? di_grammar_bytes(k->grammar) : 0;
    for (struct kept *k; bytes > KEPT_BYTES && (k = oldest(f, false));) {
        size_t of_it = di_grammar_bytes(k->grammar);
        bytes -= of_it < bytes ? of_it : bytes;
        lost[n_lost++] = k->grammar;
        *k = (struct kept){0};
    }
    pthread_mutex_unlock(&f->lock);
    while (n_lost)
        di_grammar_unref(lost[--n_lost]);
}

/* ---------------------------------------------------------------- forms */

/* The grammar's place is one within the form; the caller knows where the form stands. */
static di_status tell_place(di_status status, const char *path, di_error *err)
{
    di_error inner;
    if (!err || !path)
        return status;
    inner = *err;
    return di_fail(err, status, path, "%s%s%s", inner.message, inner.where[0] ? ", at " : "", inner.where);
}

static di_status compile(const struct di_form_wish *w, struct di_grammar **out, di_error *err)
{
    const struct di_grammar_options options = {
        .compact = w->compact, .declared = w->declared, .limits = {.states = KEPT_STATES, .cached_masks = KEPT_MASKS}};
    di_status status = di_grammar_compile(w->kind, w->text, &options, out, err);
    return status == DI_OK ? DI_OK : tell_place(status, w->path, err);
}

di_status di_form_make(struct di_forms *f, const struct di_form_wish *wish, struct di_form *out, di_error *err)
{
    di_status status = DI_OK;
    uint8_t digest[32];
    struct di_grammar *g = NULL;
    *out = (struct di_form){0};
    CHECK(digest_of(wish, digest), err, DI_ERR_MEMORY, wish->path, "out of memory for a grammar");
    pthread_mutex_lock(&f->lock);
    status = build_vocabulary(f, err);
    g = status == DI_OK ? find_kept(f, digest) : NULL;
    pthread_mutex_unlock(&f->lock);
    if (g && !di_grammar_is_well(g)) {
        pthread_mutex_lock(&f->lock);
        struct di_grammar *old = drop_kept(f, g);
        pthread_mutex_unlock(&f->lock);
        di_grammar_unref(old);
        di_grammar_unref(g);
        g = NULL;
    }
    if (status == DI_OK && !g) {
        TRY(compile(wish, &g, err));
        keep(f, digest, g); /* perhaps a second time: whoever compiled the same meanwhile has its own */
    }
    *out = (struct di_form){.grammar = g, .json = wish->kind == DI_GRAMMAR_JSON, .in_time = wish->in_time};
out:
    return status;
}

di_status di_form_wish_of(const di_form_options *o, struct di_form_wish *out, di_error *err)
{
    di_status status = DI_OK;
    *out = (struct di_form_wish){
        .text = {o->text, o->text_bytes}, .compact = o->compact, .declared = o->declared, .in_time = !o->may_be_cut, .path = "form"};
    CHECK(o->kind, err, DI_ERR_INVALID, "form.kind", "is NULL");
    CHECK(o->text || !o->text_bytes, err, DI_ERR_INVALID, "form.text", "is NULL, but text_bytes is not 0");
    CHECK(di_utf8_valid(out->text, NULL), err, DI_ERR_INVALID, "form.text", "is not valid UTF-8");
    CHECK(o->trigger_ids || !o->n_trigger_ids, err, DI_ERR_INVALID, "form.trigger_ids", "is NULL, but n_trigger_ids is not 0");
    CHECK(o->n_trigger_ids <= 256, err, DI_ERR_INVALID, "form.trigger_ids", "has %zu ids; there may be 256", o->n_trigger_ids);
    CHECK(o->bound_id < 0 || o->n_trigger_ids, err, DI_ERR_INVALID, "form.bound_id", "needs trigger_ids");
    if (strcmp(o->kind, "json_object") == 0)
        out->text = DI_STR("{\"type\":\"object\"}");
    else
        CHECK(di_grammar_kind_named(di_str_c(o->kind), &out->kind), err, DI_ERR_INVALID, "form.kind",
              "\"%s\" is none of json_object, json, regex, choice, ebnf, gbnf, lark and structural", o->kind);
    out->kind = strcmp(o->kind, "json_object") == 0 ? DI_GRAMMAR_JSON : out->kind;
out:
    return status;
}

/* EBNF where rules are written with "::=", else Lark. */
static enum di_grammar_kind dialect_of(struct di_str text)
{
    return di_str_find(text, DI_STR("::="), 0) == SIZE_MAX ? DI_GRAMMAR_LARK : DI_GRAMMAR_EBNF;
}

static void write_wish(const struct di_constraint *c, struct di_form_wish *w, struct di_buf *text)
{
    if (c->kind == DI_CONSTRAIN_JSON)
        di_buf_adds(text, "{\"type\":\"object\"}");
    else if (c->schema)
        di_json_write_compact(text, c->schema);
    else
        di_buf_addv(text, c->text);
    static const enum di_grammar_kind kinds[] = {[DI_CONSTRAIN_JSON] = DI_GRAMMAR_JSON,
                                                 [DI_CONSTRAIN_JSON_SCHEMA] = DI_GRAMMAR_JSON,
                                                 [DI_CONSTRAIN_REGEX] = DI_GRAMMAR_REGEX,
                                                 [DI_CONSTRAIN_CHOICE] = DI_GRAMMAR_CHOICE,
                                                 [DI_CONSTRAIN_STRUCTURAL] = DI_GRAMMAR_STRUCTURAL};
    w->kind = c->kind == DI_CONSTRAIN_GRAMMAR ? dialect_of(c->text) : kinds[c->kind];
    w->text = di_buf_str(text);
}

/* ---------------------------------------------------------------- calls of tools */

/* An expression between slashes. */
static void add_expression(struct di_buf *b, struct di_str s)
{
    di_buf_addc(b, '/');
    for (size_t i = 0; i < s.n; i++) {
        bool escaped = s.p[i] == '\\' && i + 1 < s.n;
        if (escaped)
            di_buf_addc(b, s.p[i++]);
        else if (s.p[i] == '/')
            di_buf_addc(b, '\\');
        if (s.p[i] == '\n')
            di_buf_adds(b, escaped ? "n" : "\\n");
        else
            di_buf_addc(b, s.p[i]);
    }
    di_buf_addc(b, '/');
}

/* What may stand in place of calls, as a Lark expression. DI_ERR_UNSUPPORTED: a grammar cannot. */
static di_status add_content(const struct di_constraint *c, struct di_buf *b, di_error *err)
{
    if (c->kind == DI_CONSTRAIN_GRAMMAR || c->kind == DI_CONSTRAIN_STRUCTURAL)
        return di_fail(err, DI_ERR_UNSUPPORTED, c->path, "a constraint of kind \"%s\" beside tools is not supported by this version",
                       di_constraint_name(c->kind));
    if (c->kind == DI_CONSTRAIN_REGEX) {
        add_expression(b, c->text);
    } else if (c->kind == DI_CONSTRAIN_CHOICE) {
        for (const struct di_json *v = c->schema->child; v; v = v->next) {
            di_buf_adds(b, v == c->schema->child ? "(" : " | ");
            di_tool_form_add_string(b, v->text);
        }
        di_buf_addc(b, ')');
    } else if (c->kind != DI_CONSTRAIN_NONE) {
        bool object = c->kind == DI_CONSTRAIN_JSON_SCHEMA && di_json_is(c->schema, DI_JSON_OBJECT);
        di_buf_adds(b, "%json ");
        if (object)
            di_json_write_compact(b, c->schema);
        else
            di_buf_adds(b, c->kind == DI_CONSTRAIN_JSON                                 ? "{\"type\":\"object\"}"
                           : di_json_is(c->schema, DI_JSON_BOOL) && !c->schema->boolean ? "{\"not\":{}}"
                                                                                        : "{}");
    }
    return DI_OK;
}

static bool can_be_enforced(void *ctx, struct di_str schema)
{
    const struct di_form_wish *calls = ctx;
    struct di_form_wish wish = {.kind = DI_GRAMMAR_JSON, .text = schema, .compact = calls->compact, .declared = calls->declared};
    struct di_grammar *g = NULL;
    bool can = compile(&wish, &g, NULL) == DI_OK;
    di_grammar_unref(g);
    return can;
}

static bool some_strict(const struct di_chat *chat)
{
    for (const struct di_chat_tool *t = chat->tools; t; t = t->next)
        if (t->offered && t->strict)
            return true;
    return false;
}

/* Schemas of tools that are not strict are wishes: what of them cannot be enforced is left open. */
static di_status form_of_tools(struct di_forms *f, const struct di_chat *chat, struct di_form *out, di_error *err)
{
    const struct di_constraint *c = &chat->format;
    bool beside = !chat->forced && c->kind != DI_CONSTRAIN_NONE;
    enum di_tool_form_start start = chat->opened ? DI_TOOL_FORM_OPENED : chat->forced || beside ? DI_TOOL_FORM_BLOCK : DI_TOOL_FORM_MARKED;
    struct di_form_wish wish = {
        .kind = DI_GRAMMAR_LARK, .compact = c->compact, .declared = c->declared, .path = beside ? c->path : "tools"};
    struct di_buf content = {0}, text = {0};
    di_status status = DI_OK;
    if (beside)
        TRY(add_content(c, &content, err));
    for (int i = 0; i < 2; i++) { /* as they are; then without what cannot be enforced */
        di_buf_clear(&text);
        status = di_tool_form_write(chat, start, di_buf_str(&content), i ? can_be_enforced : NULL, &wish, &text, err);
        if (status != DI_OK)
            break;
        wish.text = di_buf_str(&text);
        status = di_form_make(f, &wish, out, err);
        if (status == DI_OK || status == DI_ERR_MEMORY)
            break;
    }
    if (status != DI_OK && status != DI_ERR_MEMORY && !chat->forced && !beside && !some_strict(chat))
        status = DI_OK; /* nothing was promised */
    out->calls = true;
    out->opens = start == DI_TOOL_FORM_MARKED;
out:
    di_buf_fini(&content);
    di_buf_fini(&text);
    return status;
}

di_status di_form_of_chat(struct di_forms *f, const struct di_chat *chat, struct di_form *out, di_error *err)
{
    const struct di_constraint *c = &chat->format;
    struct di_form_wish wish = {.compact = c->compact, .declared = c->declared, .in_time = !c->not_in_time, .path = c->path};
    struct di_buf text = {0};
    di_status status = DI_OK;
    *out = (struct di_form){0};
    if (chat->tools_declared)
        return form_of_tools(f, chat, out, err);
    if (c->kind == DI_CONSTRAIN_NONE)
        return DI_OK;
    write_wish(c, &wish, &text);
    TRY(di_buf_ok(&text, err));
    TRY(di_form_make(f, &wish, out, err));
out:
    di_buf_fini(&text);
    return status;
}

struct di_form di_form_hold(const struct di_form *of)
{
    struct di_form form = *of;
    if (form.grammar)
        di_grammar_ref(form.grammar);
    return form;
}

void di_form_fini(struct di_form *form)
{
    di_grammar_unref(form->grammar);
    *form = (struct di_form){0};
}

/* ---------------------------------------------------------------- life */

di_status di_forms_create(const struct di_text_model *text, int vocab, struct di_forms **out, di_error *err)
{
    struct di_forms *f = di_calloc(1, sizeof *f);
    *out = f;
    if (!f)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for the forms of answers");
    f->text = text;
    f->vocab = vocab;
    f->set_words = ((size_t)vocab + 63) / 64;
    for (int i = 0; i < 256; i++)
        f->byte_tokens[i] = -1;
    pthread_mutex_init(&f->lock, NULL);
    return DI_OK;
}

void di_forms_destroy(struct di_forms *f)
{
    if (!f)
        return;
    for (struct kept *k = f->kept; k < f->kept + KEPT; k++)
        di_grammar_unref(k->grammar);
    di_vocabulary_destroy(f->vocabulary);
    di_free(f->sets);
    pthread_mutex_destroy(&f->lock);
    di_free(f);
}
