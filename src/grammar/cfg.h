/* Context-free grammars over bytes, recognised by Earley's algorithm on interned sets. Private to the room. */
#ifndef DI_GRAMMAR_CFG_H
#define DI_GRAMMAR_CFG_H

#include "grammar/impl.h"

/* ---- what front ends build ---- */

enum cfg_op { CFG_RX, CFG_SEQUENCE, CFG_EITHER, CFG_REPEAT, CFG_RULE, CFG_JSON };

struct cfg_part { /* an expression of a grammar; lives in the grammar's arena */
    enum cfg_op op;
    rx_id rx;                /* CFG_RX */
    struct cfg_part **parts; /* SEQUENCE, EITHER; REPEAT: one */
    uint32_t n;
    uint32_t min, max;            /* REPEAT */
    uint32_t rule;                /* RULE */
    const struct di_json *schema; /* JSON */
};

struct cfg_rule {
    struct di_str name;
    struct cfg_part *body; /* NULL: not defined */
    bool terminal;         /* Lark: nothing may be ignored inside */
    unsigned line;
    uint8_t regular; /* 0 unknown, 1 being looked at, 2 no, 3 yes: then `rx` */
    rx_id rx;
    uint32_t start; /* state of the automaton */
    bool nullable;
};

struct cfg_edge {
    uint32_t state, target; /* from, to */
    enum cfg_op op;         /* RX, RULE, JSON; SEQUENCE: nothing is read */
    uint32_t what;          /* expression, rule, start state of a document */
    bool tail;              /* RULE: behind the call the rule ends */
};

struct cfg {
    struct cfg_rule *rules;
    size_t n_rules, cap_rules;
    struct cfg_edge *edges; /* sorted by state when the automaton is complete */
    size_t n_edges, cap_edges;
    uint32_t *first;  /* edge by state; one more than states */
    uint32_t *end_of; /* rule that ends in a state, or NO_SCHEMA */
    size_t n_states, cap_states;
    uint32_t root;
    uint32_t *work; /* a set that is being made: 4 words an item */
    size_t n_work, cap_work;
    uint32_t *table; /* of the set's items, open addressing */
    size_t table_size;
};

struct cfg_part *cfg_part(struct di_grammar *g, enum cfg_op op, struct cfg_part *const *parts, size_t n);
struct cfg_part *cfg_rx(struct di_grammar *g, rx_id rx);
/* `part`, min to max times; NULL without memory. */
struct cfg_part *cfg_repeat(struct di_grammar *g, struct cfg_part *part, uint32_t min, uint32_t max);
/* A growing list of parts, freed by its owner. */
struct cfg_list {
    struct cfg_part **parts;
    size_t n, cap;
};
bool cfg_append(struct di_grammar *g, struct cfg_list *list, struct cfg_part *part);
/* The rule of a name, made if it is new; NO_SCHEMA without memory. */
uint32_t cfg_rule_named(struct di_grammar *g, struct di_str name, unsigned line);

/* Front ends: rules to g->cfg, and which one is the root. */
di_status ebnf_read(struct di_grammar *g, struct di_str text, di_error *err);
di_status lark_read(struct di_grammar *g, struct di_str text, di_error *err);
di_status structural_read(struct di_grammar *g, struct di_str text, di_error *err);

/* ---- the machine ---- */

di_status cfg_compile(struct di_grammar *g, di_error *err);
state_id cfg_step(struct di_grammar *g, state_id s, unsigned byte);
bool cfg_accepts(struct di_grammar *g, state_id s);
void cfg_destroy(struct di_grammar *g);

#endif
