/* Regular expressions over bytes as an algebra: interned nodes, derivatives as the states of a lazy DFA. Private to the room. */
#ifndef DI_GRAMMAR_RX_H
#define DI_GRAMMAR_RX_H

#include "base/str.h"

typedef uint32_t rx_id;
enum { RX_NONE = 0, RX_EMPTY = 1, RX_BYTE_ANY = 2 }; /* nothing; the empty text; one byte */
#define RX_MANY UINT32_MAX

struct byte_set {
    uint64_t w[4];
};
static inline bool set_has(const struct byte_set *s, unsigned b)
{
    return s->w[b >> 6] >> (b & 63) & 1;
}
static inline void set_add(struct byte_set *s, unsigned b)
{
    s->w[b >> 6] |= (uint64_t)1 << (b & 63);
}

enum rx_op { OP_NONE, OP_EMPTY, OP_BYTES, OP_CAT, OP_OR, OP_AND, OP_NOT, OP_REP };

struct rx_node {
    uint8_t op, nullable, boolean, live, loops; /* boolean: AND or NOT inside; live: 0 unknown, 1 something matches, 2 nothing */
    uint16_t classes;        /* of characters of which any number may come (mask.c); 0 unknown, else with the highest bit */
    uint32_t a, b, min, max; /* BYTES: a = index of the set; lists: a = first in `lists`, b = count */
    uint32_t chain;
    uint32_t min_chars, max_chars; /* bounds of the length in characters; RX_MANY = none. Bytes 0x80..0xBF count nothing */
    uint64_t digest[2];            /* of what it is, the same in every pool of the process */
    uint32_t *next;                /* derivatives by byte, RX_UNKNOWN where not computed; NULL until first used */
};
#define RX_UNKNOWN UINT32_MAX

struct rx_pool {
    struct rx_node *nodes;
    struct byte_set *sets;
    uint32_t *lists, *heads;
    size_t n, cap, n_sets, cap_sets, n_lists, cap_lists, mask, limit, tables;
    rx_id any_char, any_text; /* one character, all texts of well-formed UTF-8 */
    size_t work;              /* derivatives of parts that were taken */
    size_t ranges;            /* of classes that were read */
    unsigned depth;
    bool out_of_memory, over_limit;
};

/* Searches for dead ends are given up when a grammar has spent so much on them: then what is not known to be dead counts as live. */
#define RX_SEARCH_WORK 1000000
static inline bool rx_may_search(const struct rx_pool *p)
{
    return p->work < RX_SEARCH_WORK;
}

bool rx_init(struct rx_pool *p, size_t limit);
void rx_fini(struct rx_pool *p);
size_t rx_bytes_used(const struct rx_pool *p);
/* Once memory or the limit is used up, every call gives RX_NONE and this is true: whoever compiled or stepped must report it. */
static inline bool rx_failed(const struct rx_pool *p)
{
    return p->out_of_memory || p->over_limit;
}

rx_id rx_set(struct rx_pool *p, const struct byte_set *s);
rx_id rx_byte(struct rx_pool *p, unsigned b);
rx_id rx_cat(struct rx_pool *p, rx_id a, rx_id b);
rx_id rx_or(struct rx_pool *p, rx_id a, rx_id b);
rx_id rx_and(struct rx_pool *p, rx_id a, rx_id b);
rx_id rx_any_of(struct rx_pool *p, rx_id *list, size_t n); /* sorts the list */
rx_id rx_not(struct rx_pool *p, rx_id a);                  /* of all texts of characters */
rx_id rx_rep(struct rx_pool *p, rx_id a, uint32_t min, uint32_t max);
rx_id rx_literal(struct rx_pool *p, struct di_str s);
/* Alternatives of a sorted list without repetitions, sharing beginnings. */
rx_id rx_words(struct rx_pool *p, const struct di_str *sorted, size_t n);
/* One character of these ranges (pairs first, last; any order, may overlap), as UTF-8. */
rx_id rx_ranges(struct rx_pool *p, const uint32_t *pairs, size_t n_pairs);

/* The DFA: a state is an id. RX_NONE is dead. */
rx_id rx_derive(struct rx_pool *p, rx_id a, unsigned byte);
static inline rx_id rx_step(struct rx_pool *p, rx_id a, unsigned byte)
{
    const uint32_t *next = p->nodes[a].next;
    return next && next[byte] != RX_UNKNOWN ? next[byte] : rx_derive(p, a, byte);
}
static inline bool rx_accepts(const struct rx_pool *p, rx_id a)
{
    return p->nodes[a].nullable;
}
/* Something matches. Exact without & and ~; with them a search of 4,096 states within RX_SEARCH_WORK, and "yes" beyond. */
bool rx_live(struct rx_pool *p, rx_id a);

/* ---- reading ---- */

enum rx_syntax {
    RX_SEARCH = 1,  /* finds itself anywhere in a text, as `pattern` of JSON Schema; else the whole text */
    RX_DOT_ALL = 2, /* . is any character */
    RX_IGNORE_CASE = 4
};
/* ECMA-262 syntax with Unicode classes by general category. On failure `where` is "byte N". */
di_status rx_parse(struct rx_pool *p, struct di_str text, unsigned syntax, rx_id *out, di_error *err);

#endif
