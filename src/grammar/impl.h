/* What the files of the room share: states, the lazily built parts of a grammar, the machines. Private to the room. */
#ifndef DI_GRAMMAR_IMPL_H
#define DI_GRAMMAR_IMPL_H

#include "grammar/bdd.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "grammar/rx.h"

#include <pthread.h>

/* ---- states ---- */

typedef uint32_t state_id; /* 0: no text of the grammar begins like this */

enum node_kind {
    NODE_NONE,
    NODE_RX,     /* a regex or choice: f[0] = expression */
    NODE_DONE,   /* behind a whole JSON document */
    NODE_VALUE,  /* a value is expected: f[0] = site */
    NODE_WORD,   /* inside null, true, false: f[0] = which, f[1] = bytes so far, f[2] = typed site */
    NODE_STRING, /* inside a string value */
    NODE_KEY,    /* inside a key */
    NODE_NUMBER, /* inside a number: f[0] = typed site, f[1] = state */
    NODE_OBJECT,
    NODE_ARRAY,
    NODE_TEXT,      /* no state: captured bytes, the last one and parent = those before; f[0] = byte, f[1] = length */
    NODE_BITS,      /* no state: 352 bits of a set, parent = those behind */
    NODE_ITEMS,     /* three items of an Earley set, 4 words each, parent = those behind; phase = how many, flags = complete (cfg.c) */
    NODE_ITEM_JSON, /* the same with one item, inside a document: its third word is a state */
    NODE_LIST,      /* no state: f[0] = a NODE_TEXT, parent = the rest */
};

/* 64 bytes; equal ones exist once. Node numbers in parent and in the fields that `node_links` names are smaller than the node's own. */
struct node {
    uint8_t kind, phase;
    uint16_t flags;
    uint32_t parent;
    uint32_t f[13];
    uint32_t chain;
};

/* Fields of STRING and KEY */
enum { F_SITE, F_RX, F_COUNT, F_ESCAPE, F_CODE, F_LOW, F_HIGH, F_DEPTH, F_CAPTURE, F_NAME, F_START, F_ITEM };
/* Fields of OBJECT and ARRAY; F_SITE, F_CAPTURE, F_START and F_ITEM as above */
enum { F_FORMULA = 1, F_TRACKS, F_SEEN, F_FREE, F_NUMBER, F_LAST, F_EDGE };

/* ---- the JSON machine ---- */

enum atom_kind {
    ATOM_TEXT,       /* string: what it matches and its length */
    ATOM_NUMBER,     /* number: its rule */
    ATOM_ITEMS,      /* array: every item matches its schema; false as soon as one does not */
    ATOM_ITEM_COUNT, /* array */
    ATOM_CONTAINS,   /* array */
    ATOM_UNIQUE,     /* array */
    ATOM_REST_ITEMS, /* array: unevaluatedItems */
    ATOM_MEMBERS,    /* object: every member matches its schemas */
    ATOM_NAMES,      /* object: propertyNames */
    ATOM_COUNT,      /* object */
    ATOM_REQUIRED,   /* object; true as soon as all are there */
    ATOM_NEEDS,      /* object: dependentRequired */
    ATOM_PRESENT,    /* object: a name is there (dependentSchemas) */
    ATOM_REST,       /* object: unevaluatedProperties */
};

struct atom {
    uint8_t kind;
    uint32_t schema, index; /* index: of the dependency, NEEDS; of the name, PRESENT (a name number); of the first evaluator (REST*) */
    uint32_t count;         /* evaluators */
    struct di_str name;     /* PRESENT */
};

/* A schema that evaluates properties or items if `condition` holds. */
struct evaluator {
    uint32_t schema, track;
};

struct site {            /* what is asked about a value */
    uint32_t hard, soft; /* vectors: schemas that must hold; schemas whose outcome is asked for */
    bdd_id demand;       /* over the soft ones: the outcomes that the parent can live with */
    uint32_t chain;
    uint32_t typed[N_TYPES]; /* 0: not built; else number of the typed site */
    uint8_t satisfiable;     /* 0 unknown, 1 yes, 2 no */
    uint32_t round;          /* in which it was looked at last (json_satisfiable) */
    uint32_t distance;       /* bytes of a short value; 0 unknown */
};

struct name { /* of a member that some schema knows */
    struct di_str text;
    uint32_t order;   /* of declaration */
    uint64_t matches; /* which of the patterns */
};

struct typed_site {
    uint32_t site;
    uint8_t type; /* index of the bit */
    bool possible;
    struct atom *atoms;
    uint32_t n_atoms;
    bdd_id formula;  /* what is left when everything that must hold anyway (hard) is taken out */
    uint32_t tracks; /* vector of diagrams: of the soft schemas' outcomes, then of evaluators' conditions */
    uint32_t n_soft;
    bool *hard; /* by atom */
    /* strings */
    rx_id text;
    uint32_t min, max;       /* characters; members of an object; items of an array */
    struct product *product; /* strings: of the soft atoms behind `text`; objects: of `patterns` */
    uint32_t *component;     /* strings: atom of each component but the first */
    /* numbers */
    struct numbers *numbers;
    /* objects */
    struct name *names; /* sorted */
    uint32_t *by_order; /* numbers in `names` */
    uint32_t n_names;
    rx_id *patterns; /* of patternProperties and propertyNames, each once */
    uint32_t n_patterns;
    uint64_t hard_names; /* patterns that every key must match */
    uint8_t *required;   /* by name */
    uint32_t n_required;
    uint32_t capture;  /* arrays: uniqueItems must hold */
    uint32_t n_prefix; /* arrays: items from here on are alike */
    struct evaluator *evaluators;
    uint32_t n_evaluators;
};

/* A tuple of expressions that run side by side, with states of their own. */
struct product {
    uint32_t n; /* components */
    rx_id *states;
    uint8_t *live; /* 0 unknown, 1, 2 */
    uint32_t *heads, *chain;
    uint32_t **next; /* by state and byte, UINT32_MAX where not computed; NULL until first used */
    size_t count, cap, cap_live, cap_chain, cap_next, mask;
    bdd_id formula; /* that `live` is about, with `tracks` */
    uint32_t tracks;
    uint8_t *loops;    /* 1 + enum loops; 0 unknown */
    uint16_t *classes; /* as those of expressions */
    size_t cap_loops, cap_classes;
};

/* Which characters leave a state as it is. */
enum loops {
    LOOPS_NOT,
    LOOPS_LINE,    /* all that a string of JSON may hold unescaped but U+2028 and U+2029 */
    LOOPS_CONTENT, /* all that a string of JSON may hold unescaped */
    LOOPS_ANY      /* all */
};

struct edge {                                               /* from an object and a key, or an array and a position, to its value */
    uint32_t typed, formula, tracks, class_low, class_high; /* key */
    uint32_t chain;
    uint32_t site;                        /* NO_SCHEMA: impossible */
    uint32_t formula_after, tracks_after; /* with what the key alone decides; `pending` needs the value */
    uint32_t pending;                     /* vector, 3 words each: atom, reference, diagram (json_members.c) */
};

struct number_state;

struct numbers {
    struct number_rule **rules;
    bool *rule_hard;
    uint32_t n_rules;
    uint32_t *rule_atom;    /* number of the atom */
    struct decimal *points; /* every bound and value, without sign, by digits, each once */
    uint32_t n_points;
    const struct decimal **steps; /* of multipleOf, each once */
    uint8_t *rule_step;           /* by rule: number of its step */
    uint32_t n_steps;
    int32_t highest, lowest;       /* exponents */
    int32_t most_exponent;         /* larger ones are alike */
    bool free, whole, digits_only; /* no bounds and no steps; some rule asks for a whole number; no point and no exponent */
    struct number_state *states;
    size_t n, cap;
    uint32_t *heads;
    size_t mask;
};

/* ---- a grammar ---- */

struct cfg;

struct di_grammar {
    int refs;
    pthread_mutex_t lock;
    enum di_grammar_kind kind;
    struct di_grammar_options options;
    struct di_arena arena;
    struct di_buf text;
    struct rx_pool rx;
    struct bdd_pool bdd;
    struct schemas schemas;
    struct cfg *cfg; /* or NULL */
    state_id start;

    struct node *nodes;
    uint32_t *heads;
    size_t n_nodes, cap_nodes, mask;

    struct site *sites;
    size_t n_sites, cap_sites;
    struct typed_site **typed;
    size_t n_typed, cap_typed;
    struct edge *edges;
    size_t n_edges, cap_edges, edge_mask;
    uint32_t *edge_heads;
    uint32_t *site_heads;
    size_t site_mask;
    uint32_t *words, *word_heads; /* vectors */
    size_t n_words, cap_words, word_mask;
    bdd_id *definitions; /* by schema, while a typed site is built */
    uint32_t *defined;   /* stamp */
    size_t cap_definitions, cap_defined;
    uint32_t stamp;
    unsigned depth;               /* of a definition */
    unsigned building, measuring; /* values inside each other whose satisfiability, distance is asked */
    unsigned assuming;            /* answers that rest on a guess so far */
    uint32_t round, found;        /* of json_satisfiable; sites that the round found to be satisfiable */
    bool too_deep;                /* MAX_REQUIRED was met: such values are left out */

    bool outcome[4096]; /* of the value that ended last */
    struct {            /* what was answered last about free names of an object */
        uint32_t parent, item;
        bool viable;
    } free;
    struct { /* and whether an item is the same as an earlier one: a mask asks for each token that ends the item */
        state_id list, text;
        uint32_t start;
        bool yes;
    } repeated;
    bool strip;       /* a mask is computed: nothing is captured */
    bool verify;      /* the last step depends on what was not captured */
    const char *over; /* the limit that was exceeded */
    bool out_of_memory;

    struct mask_cache *cache;
    struct di_matcher *matchers; /* all that live */
    const struct di_vocabulary *vocabulary;
};

/* state.c */
bool gr_grow(struct di_grammar *g, void **items, size_t *cap, size_t need, size_t each);
state_id gr_node(struct di_grammar *g, const struct node *n);
/* The state behind a byte. */
state_id gr_step(struct di_grammar *g, state_id s, unsigned byte);
bool gr_accepts(struct di_grammar *g, state_id s);
/* DI_OK, or what went wrong for good in the lazily built parts. */
di_status gr_health(const struct di_grammar *g, di_error *err);
/* Interned vectors of numbers: 0 is the empty one. */
uint32_t gr_vector(struct di_grammar *g, const uint32_t *v, size_t n);
static inline const uint32_t *gr_items(const struct di_grammar *g, uint32_t vector)
{
    return g->words + vector;
}
static inline uint32_t gr_count(const struct di_grammar *g, uint32_t vector)
{
    return vector ? g->words[vector - 1] : 0;
}
/* Drop nodes from `mark` on. */
void gr_drop(struct di_grammar *g, size_t mark);
/* Put a node into the table. */
void gr_link(struct di_grammar *g, uint32_t i);
size_t gr_distance(struct di_grammar *g, state_id s);

/* json_site.c */
uint32_t json_site(struct di_grammar *g, uint32_t *hard, size_t n_hard, uint32_t *soft, size_t n_soft, bdd_id demand);
struct typed_site *json_typed(struct di_grammar *g, uint32_t site, unsigned type, uint32_t *number);
bool json_satisfiable(struct di_grammar *g, uint32_t site);
uint32_t json_distance(struct di_grammar *g, uint32_t site);

/* json_members.c */
const struct edge *json_edge(struct di_grammar *g, uint32_t typed, bdd_id formula, uint32_t tracks, uint64_t class, bool named);
/* What the value's outcome (g->outcome) makes of what is pending. */
void json_after_value(struct di_grammar *g, struct typed_site *t, const struct edge *e, bdd_id *formula, uint32_t *tracks,
                      uint32_t *counts);
/* Replace a variable in formula and tracks. */
void json_replace(struct di_grammar *g, bdd_id *formula, uint32_t *tracks, uint32_t var, bdd_id f);
bool json_text_live(struct di_grammar *g, struct typed_site *t, uint32_t product_state);
bool json_text_accept(struct di_grammar *g, struct typed_site *t, uint32_t product_state);

/* product.c */
struct product *product_create(struct di_grammar *g, const rx_id *start, uint32_t n); /* its start is state 0 */
void product_destroy(struct product *p);
uint32_t product_derive(struct di_grammar *g, struct product *p, uint32_t state, unsigned byte);
static inline uint32_t product_step(struct di_grammar *g, struct product *p, uint32_t state, unsigned byte)
{
    const uint32_t *next = state < p->cap_next ? p->next[state] : NULL;
    return next && next[byte] != UINT32_MAX ? next[byte] : product_derive(g, p, state, byte);
}
/* Components that accept, as bits or as booleans. */
uint64_t product_matches(const struct di_grammar *g, const struct product *p, uint32_t state);
enum loops product_loops(struct di_grammar *g, struct product *p, uint32_t state);
/* The same for anything with steps between numbers. */
enum loops find_loops(uint32_t state, uint32_t (*step)(void *ctx, uint32_t state, unsigned byte), void *ctx);
/* An accepted state can be reached; what was found is kept for one `formula` with its `tracks` at a time. */
bool product_live(struct di_grammar *g, struct product *p, uint32_t state, bdd_id formula, uint32_t tracks,
                  bool (*accept)(struct di_grammar *g, struct product *p, uint32_t state, void *ctx), void *ctx);

/* json_number.c */
struct numbers *numbers_create(struct di_grammar *g, struct typed_site *t);
void numbers_destroy(struct numbers *n);
/* 0: dead; 1 is the state before the first byte */
uint32_t numbers_step(struct di_grammar *g, struct typed_site *t, uint32_t state, unsigned byte);
bool numbers_accept(struct di_grammar *g, struct typed_site *t, uint32_t state);
/* What the room's masks remember of a state: a list of the caller's, NULL at first; freed with the numbers. */
uint32_t **numbers_memo(struct typed_site *t, uint32_t state);
void numbers_assign(struct typed_site *t, uint32_t state, bool *atoms);

/* json_escape.c: behind a backslash. False: no character can come of it. any: every character may come, nothing is looked at. */
bool json_escape_begin(struct di_grammar *g, struct node *n, bool any);
bool json_escape_byte(struct di_grammar *g, struct node *n, unsigned byte);

/* json_machine.c */
/* A byte of a string's or key's text, without escapes. False: dead. */
bool json_text_byte(struct di_grammar *g, struct node *n, unsigned byte);
state_id json_start(struct di_grammar *g, uint32_t schema);
state_id json_step(struct di_grammar *g, state_id s, unsigned byte);
bool json_accepts(struct di_grammar *g, state_id s);
/* Can a name that no schema knows, with the patterns in state `item`, come in an object that is inside a key? */
bool json_free_viable(struct di_grammar *g, state_id object, uint32_t item);
/* Mark the names that an object still needs (an array of t->n_names): all that are required, and those of the shortest list that makes its
 * formula true, if one list does. */
void json_needed(struct di_grammar *g, const struct node *object, uint8_t *needed);
/* Bytes to the end of the value behind a key, less those that its object counts for the names it still needs: may be negative. */
int64_t json_key_distance(struct di_grammar *g, const struct node *key);

#endif
