/* Reader of configuration files, a subset of TOML 1.0: `# comment`, `[section]`, `key = value`; a value is true, false, a number, a
 * "basic string" with escapes, a 'literal string', or an array of these, which may span lines. Keys and section names are bare
 * (letters, digits, '-', '_'). No dates, inline tables, dotted keys or multi-line strings. */
#ifndef DI_BASE_TOML_H
#define DI_BASE_TOML_H

#include "base/str.h"

struct di_toml_value {
    const char *text; /* 0-terminated; the decoded string, or the word as written */
    bool quoted;
};

struct di_toml_item {
    const char *section; /* "" above the first section */
    const char *key;
    const struct di_toml_value *values; /* one, or the elements of an array */
    size_t count;
    bool is_array;
    const char *where; /* "NAME:LINE" of the key */
};
typedef di_status (*di_toml_fn)(void *ctx, const struct di_toml_item *item, di_error *err);

/* Call fn for each `key = value` in order; its first failure ends the reading and is passed on, with `where` added if it has none.
 * All strings live in `arena`. Text that is not valid UTF-8 or breaks the syntax is DI_ERR_FORMAT with `where` = "name:line". */
di_status di_toml_each(struct di_str text, const char *name, struct di_arena *arena, di_toml_fn fn, void *ctx, di_error *err);

#endif
