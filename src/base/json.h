/* Strict JSON: a tree that keeps what a general C library loses and this project needs: numbers as written (integers of any
 * length), U+0000 inside strings, key order. RFC 8259 only: no comments, no trailing commas, no NaN, no lone surrogates, valid UTF-8.
 * A byte order mark in front of a document is ignored. A repeated key keeps its first position and its last value (spec/encoding.md §2.8). */
#ifndef DI_BASE_JSON_H
#define DI_BASE_JSON_H

#include "base/str.h"

enum di_json_type { DI_JSON_NULL, DI_JSON_BOOL, DI_JSON_NUMBER, DI_JSON_STRING, DI_JSON_ARRAY, DI_JSON_OBJECT };

struct di_json {
    enum di_json_type type;
    bool boolean;
    struct di_str key;     /* decoded; set when this value is an object's member */
    struct di_str text;    /* STRING: decoded bytes. NUMBER: the literal as written */
    size_t count;          /* ARRAY, OBJECT: number of children */
    struct di_json *child; /* first child */
    struct di_json *next;  /* next sibling */
};

struct di_json_limits {
    size_t max_depth;       /* nesting of arrays and objects; 0 means 128 */
    size_t max_values;      /* of the whole document, each takes 64 bytes; 0 = any number */
    bool refuse_duplicates; /* a repeated key is an error instead */
};

/* The limits for a request: more values than a list of token ids that fills any context several times has, or one to 8 bytes. So reading
 * one takes 8 MiB and 8 times its length at most. */
static inline struct di_json_limits di_json_request_limits(size_t bytes)
{
    return (struct di_json_limits){.max_values = ((size_t)128 << 10) + bytes / 8};
}

/* Parse one whole document. The tree and its strings live in `arena`, except that strings without escapes and numbers borrow from
 * `text`, which must outlive the tree. On error the message names the byte offset. `limits` may be NULL. Linear time. */
di_status di_json_parse(struct di_str text, const struct di_json_limits *limits, struct di_arena *arena, struct di_json **out,
                        di_error *err);

/* Member of an object or NULL (also when v is NULL or no object). */
const struct di_json *di_json_get(const struct di_json *v, const char *key);
/* Element i of an array or NULL. Linear. */
const struct di_json *di_json_at(const struct di_json *v, size_t i);
static inline bool di_json_is(const struct di_json *v, enum di_json_type type)
{
    return v && v->type == type;
}
/* Exact value of an integer literal that fits ("1", "-7"; not "1.0"). False otherwise. */
bool di_json_int(const struct di_json *v, int64_t *out);
/* Value of any number; false if v is no number or the literal overflows a double. */
bool di_json_double(const struct di_json *v, double *out);
/* Equal as JSON values: object members in any order, numbers by exact value however they are written (1e2 = 100.0, -0 = 0; exponents of 17
 * and more digits must be the same text). Quadratic in the members of an object at worst. */
bool di_json_same(const struct di_json *a, const struct di_json *b);
/* "null", "boolean", "number", ... for messages; "nothing" for NULL. */
const char *di_json_type_name(const struct di_json *v);

/* Append Python's json.dumps(v, ensure_ascii=False) layout: ", " and ": " (spec/encoding.md §2.8); numbers as Python prints them. */
void di_json_write_spaced(struct di_buf *b, const struct di_json *v);
/* Append v without any space; numbers as written. */
void di_json_write_compact(struct di_buf *b, const struct di_json *v);
/* Append a quoted JSON string. Input must be valid UTF-8 (other bytes come out as they are). */
void di_json_write_string(struct di_buf *b, struct di_str s);
/* Append a finite double as Python's repr prints it; NaN and infinities as null. */
void di_json_write_double(struct di_buf *b, double x);

#endif
