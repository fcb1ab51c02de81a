#include "server/auth.h"

#include "base/clock.h"
#include "base/file.h"

#include <math.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_FILE ((size_t)4 << 20)

/* Keys are single blocks, because requests hold on to theirs beyond a reload. */
struct di_keys {
    struct di_auth_key **items;
    size_t count, room;
};

static void tenant_put(struct di_tenant *t)
{
    if (t && --t->holders == 0)
        di_free(t);
}

void di_key_hold(struct di_auth_key *key)
{
    if (key)
        key->holders++;
}

void di_key_drop(struct di_auth_key *key)
{
    if (!key || --key->holders > 0)
        return;
    di_key_drop(key->before);
    tenant_put(key->tenant);
    di_free(key);
}

void di_keys_destroy(struct di_keys *k)
{
    if (!k)
        return;
    for (size_t i = 0; i < k->count; i++)
        di_key_drop(k->items[i]);
    di_free(k->items);
    di_free(k);
}

static struct di_auth_key *find_hash(const struct di_keys *k, const unsigned char hash[32])
{
    struct di_auth_key *found = NULL;
    for (size_t i = 0; k && i < k->count; i++) /* all of them: the time tells nothing */
        if (CRYPTO_memcmp(k->items[i]->hash, hash, 32) == 0)
            found = k->items[i];
    return found;
}

struct di_auth_key *di_keys_find(struct di_keys *k, struct di_str presented)
{
    unsigned char hash[32];
    if (presented.n == 0)
        return NULL;
    SHA256((const unsigned char *)presented.p, presented.n, hash);
    return find_hash(k, hash);
}

/* ---------------------------------------------------------------- the file */

static struct di_str next_word(struct di_str *line)
{
    size_t a = 0, b;
    while (a < line->n && (line->p[a] == ' ' || line->p[a] == '\t' || line->p[a] == '\r'))
        a++;
    for (b = a; b < line->n && line->p[b] != ' ' && line->p[b] != '\t' && line->p[b] != '\r';)
        b++;
    struct di_str word = {line->p + a, b - a};
    *line = (struct di_str){line->p + b, line->n - b};
    return word;
}

static bool parse_hash(struct di_str s, unsigned char out[32])
{
    if (di_str_starts(s, DI_STR("sha256:")))
        s = (struct di_str){s.p + 7, s.n - 7};
    if (s.n != 64)
        return false;
    for (size_t i = 0; i < 64; i++) {
        char c = s.p[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return false;
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return true;
}

static bool parse_limit(struct di_str word, const char *name, double max, double *out)
{
    char text[24], *end;
    if (!di_str_starts(word, di_str_c(name)) || word.n - strlen(name) >= sizeof text || word.n == strlen(name))
        return false;
    snprintf(text, sizeof text, "%.*s", (int)(word.n - strlen(name)), word.p + strlen(name));
    *out = strtod(text, &end);
    return *end == 0 && *out > 0 && *out <= max;
}

static struct di_tenant *find_tenant(const struct di_keys *k, const char *name)
{
    for (size_t i = 0; k && i < k->count; i++)
        if (strcmp(k->items[i]->tenant->name, name) == 0)
            return k->items[i]->tenant;
    return NULL;
}

/* The tenant of this name: what it has under way goes on counting beyond a reload. NULL: no memory. */
static struct di_tenant *tenant_of(const struct di_keys *k, const struct di_keys *before, const char *name)
{
    unsigned char hash[32];
    struct di_tenant *t = find_tenant(k, name);
    t = t ? t : find_tenant(before, name);
    if (!t && !(t = di_calloc(1, sizeof *t)))
        return NULL;
    if (t->holders++ > 0)
        return t;
    snprintf(t->name, sizeof t->name, "%s", name);
    SHA256((const unsigned char *)name, strlen(name), hash);
    memcpy(&t->id, hash, sizeof t->id);
    t->id = t->id ? t->id : 1;
    return t;
}

/* What is wrong with the line, or NULL. */
static const char *parse_key(struct di_str line, struct di_auth_key *key, char tenant[static DI_TENANT_NAME])
{
    struct di_str hash = next_word(&line), name = next_word(&line), word;
    double concurrency;
    if (!parse_hash(hash, key->hash))
        return "does not begin with a SHA-256 of 64 hexadecimal digits";
    if (name.n == 0 || name.n >= DI_TENANT_NAME)
        return "needs the name of a tenant, at most 63 bytes, behind the hash";
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] < 0x21 || name.p[i] == '"' || name.p[i] == '\\' || (unsigned char)name.p[i] >= 0x7f)
            return "has a tenant name with a character that is not allowed";
    memcpy(tenant, name.p, name.n);
    tenant[name.n] = 0;
    while ((word = next_word(&line)).n) {
        if (parse_limit(word, "concurrency=", 1e6, &concurrency))
            key->concurrency = (int)ceil(concurrency);
        else if (!parse_limit(word, "rate=", 1e9, &key->per_minute))
            return "has something behind the tenant that is neither rate=N (requests a minute) nor concurrency=N";
    }
    return NULL;
}

static double bucket_room(const struct di_auth_key *key)
{
    return fmax(1, key->per_minute / 6);
}

/* Takes the key. */
static bool add_key(struct di_keys *k, struct di_auth_key *key)
{
    if (k->count == k->room) {
        size_t room = k->room ? 2 * k->room : 16;
        void *items = di_realloc(k->items, room * sizeof *k->items);
        if (!items) {
            di_key_drop(key);
            return false;
        }
        k->items = items;
        k->room = room;
    }
    k->items[k->count++] = key;
    return true;
}

static di_status add_line(struct di_keys *k, const struct di_keys *before, struct di_str line, const char *where, di_error *err)
{
    char tenant[DI_TENANT_NAME];
    struct di_auth_key *key = di_calloc(1, sizeof *key);
    if (!key)
        return di_fail(err, DI_ERR_MEMORY, where, "out of memory");
    key->holders = 1;
    key->filled_ns = di_clock_ns();
    const char *wrong = parse_key(line, key, tenant);
    if (!wrong && find_hash(k, key->hash))
        wrong = "has a key that stands in the file already";
    if (!wrong)
        key->tenant = tenant_of(k, before, tenant);
    if (wrong || !key->tenant) {
        di_free(key);
        return di_fail(err, wrong ? DI_ERR_FORMAT : DI_ERR_MEMORY, where, "%s", wrong ? wrong : "out of memory");
    }
    key->tokens = bucket_room(key);
    struct di_auth_key *old = find_hash(before, key->hash);
    if (old && old->tenant == key->tenant) { /* it will take the place of the new one, see keep_accounts */
        key->before = old;
        old->holders++;
    }
    return add_key(k, key) ? DI_OK : di_fail(err, DI_ERR_MEMORY, where, "out of memory");
}

/* The file is good: keys that stand in both tables keep their accounts and get the new limits. */
static void keep_accounts(struct di_keys *k)
{
    for (size_t i = 0; i < k->count; i++) {
        struct di_auth_key *key = k->items[i], *old = key->before;
        if (!old)
            continue;
        old->per_minute = key->per_minute;
        old->concurrency = key->concurrency;
        old->tokens = fmin(old->tokens, bucket_room(old));
        key->before = NULL;
        di_key_drop(key);
        k->items[i] = old;
    }
}

static di_status parse_file(struct di_keys *k, const struct di_keys *before, struct di_str text, const char *path, di_error *err)
{
    di_status status = DI_OK;
    for (int number = 1; text.n && status == DI_OK; number++) {
        char where[160];
        size_t end = di_str_find(text, DI_STR("\n"), 0);
        struct di_str line = {text.p, end == SIZE_MAX ? text.n : end}, rest = line;
        size_t used = line.n + (end != SIZE_MAX);
        text = (struct di_str){text.p + used, text.n - used};
        struct di_str word = next_word(&rest);
        snprintf(where, sizeof where, "%s:%d", path, number);
        if (word.n && word.p[0] != '#')
            status = add_line(k, before, line, where, err);
    }
    return status;
}

di_status di_keys_load(const char *path, const struct di_keys *before, struct di_keys **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_buf text = {0};
    struct di_keys *k = di_calloc(1, sizeof *k);
    CHECK(k, err, DI_ERR_MEMORY, path, "out of memory");
    TRY(di_file_read(path, MAX_FILE, &text, err));
    TRY(parse_file(k, before, di_buf_str(&text), path, err));
    CHECK(k->count, err, DI_ERR_FORMAT, path, "has no key");
    keep_accounts(k);
out:
    di_buf_fini(&text);
    if (status != DI_OK) {
        di_keys_destroy(k);
        k = NULL;
    }
    *out = k;
    return status;
}

/* ---------------------------------------------------------------- limits */

int di_key_check(struct di_auth_key *key, int64_t now_ns, const char **why)
{
    if (key->concurrency && key->running >= key->concurrency) {
        *why = "this key has as many requests under way as it may";
        return 1;
    }
    if (key->per_minute > 0) {
        key->tokens = fmin(bucket_room(key), key->tokens + (double)(now_ns - key->filled_ns) * 1e-9 * key->per_minute / 60);
        key->filled_ns = now_ns;
        if (key->tokens < 1) {
            *why = "this key has made as many requests as it may in a minute";
            return (int)fmin(3600, ceil((1 - key->tokens) * 60 / key->per_minute));
        }
    }
    return 0;
}

int di_key_admit(struct di_auth_key *key, int64_t now_ns, const char **why)
{
    int wait = di_key_check(key, now_ns, why);
    if (wait)
        return wait;
    key->tokens -= key->per_minute > 0;
    key->running++;
    key->requests++;
    return 0;
}

void di_key_leave(struct di_auth_key *key)
{
    key->running--;
}
