/* A JSON Schema as the machine wants it: one record for each subschema, references resolved, what is no assertion left out. Private. */
#ifndef DI_GRAMMAR_JSON_SCHEMA_H
#define DI_GRAMMAR_JSON_SCHEMA_H

#include "base/json.h"
#include "grammar/rx.h"

enum { T_NULL = 1, T_FALSE = 2, T_TRUE = 4, T_NUMBER = 8, T_STRING = 16, T_ARRAY = 32, T_OBJECT = 64, T_ALL = 127 };
enum { N_TYPES = 7 };
enum { NO_SCHEMA = UINT32_MAX, SCHEMA_ANY = 0, SCHEMA_NONE = 1 };

struct span { /* `count` numbers from `first` on in schemas.words */
    uint32_t first, count;
};

struct property {
    struct di_str name;
    uint32_t schema;
};

struct pattern_property {
    rx_id pattern;
    uint32_t schema;
};

struct dependency { /* if `name` is there: all of `names`, and `schema` (NO_SCHEMA: none) */
    struct di_str name;
    struct di_str *names;
    uint32_t n_names, schema;
};

/* A decimal: 0.d1d2d3... times 10^(exponent + 1), that is the first digit counts 10^exponent. Zero has no digits. */
struct decimal {
    bool negative;
    const char *digits; /* without zeros at either end; 0..9, no text */
    uint32_t n;
    int32_t exponent;
};

struct number_rule {
    bool integer, integer_text; /* a whole number; written as one (draft 4) */
    bool has_low, has_high, open_low, open_high, has_set;
    struct decimal low, high;
    struct decimal step; /* multipleOf; n == 0: none */
    struct decimal *set; /* one of these (has_set) */
    uint32_t n_set;
};

struct schema {
    const struct di_json *v; /* NULL: made here */
    uint32_t up, index, scope, resource;
    const char *label; /* place: up's place / label / key or index */
    struct di_str key;
    uint8_t types, draft;
    bool unique, has_text, items_cover_contains;
    rx_id text; /* strings: what they match (has_text), and how long they are */
    uint32_t min_length, max_length;
    struct number_rule *number; /* or NULL */
    struct span prefix;
    uint32_t items, contains, other_items; /* NO_SCHEMA: none. other_items: unevaluatedItems */
    uint32_t min_items, max_items, min_contains, max_contains;
    struct property *properties;
    struct pattern_property *patterns;
    struct dependency *dependencies;
    struct di_str *required;
    uint32_t n_properties, n_patterns, n_dependencies, n_required;
    uint32_t additional, names, other_properties;
    uint32_t min_properties, max_properties;
    struct span all_of, any_of, one_of;
    uint32_t not_, if_, then_, else_;
};

struct schemas {
    struct schema *v;
    uint32_t *words;
    size_t n, cap, n_words, cap_words, limit;
    struct di_arena *arena;
    struct rx_pool *rx;
    bool strict;
    /* private to reading */
    struct schema_index *index;
    di_error *err;
};

/* Read a schema, or one more; `root` (and the text below it) must live as long as the schemas. Number *top is the whole. */
di_status schemas_read(struct schemas *s, const struct di_json *root, uint32_t *top, di_error *err);
void schemas_fini(struct schemas *s);

/* Order of zero-padded digits: -1, 0, 1; the sign and exponent do not count. */
int decimal_compare_digits(const struct decimal *a, const struct decimal *b);
/* By value. */
int decimal_compare(const struct decimal *a, const struct decimal *b);
/* From a literal of JSON. False if it has too many digits or too large an exponent to be handled (4,000; 900). */
bool decimal_read(struct di_arena *arena, struct di_str literal, struct decimal *out);

/* An expression for a format of strings; RX_NONE if the format is no assertion here. */
rx_id format_expression(struct rx_pool *p, struct di_str name);

#endif
