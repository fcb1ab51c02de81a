/* Structured outputs: what text may come next, for regular expressions, JSON Schema and context-free grammars. Includes base only.
 *
 * How it works. A grammar has *states*: immutable nodes of 64 bytes, equal ones stored once, numbered in order of creation, so a node refers
 * to smaller numbers only. One function takes a state and a byte and gives the next state or 0, "no text of the grammar begins like this".
 * A matcher is a list of states, one a token: to fork copies the list, to roll back shortens it, to forget cuts its beginning off. Three kinds of machines share the nodes:
 *
 *   regex, choice   a state is a regular expression; a byte takes its derivative (rx.h). Expressions are interned, so derivatives are the
 *                   states of a DFA that is built where it is entered. Counted repeats are not unrolled; & and ~ are part of the algebra.
 *   JSON Schema     a state is a stack of frames (value expected, object, key, array, string, number, word), each a node that refers to its
 *                   parent (json_machine.c). All subschemas that apply to a value are followed side by side, and what is left to be decided
 *                   is a formula over their assertions, a binary decision diagram (bdd.h) whose variables are replaced as they are decided.
 *                   So allOf, anyOf, oneOf, not, if and unevaluated* are exact and no expansion over branches or orders of keys exists. What
 *                   a value may be is again a formula, over the outcomes of the schemas that its parent asks about. Strings and numbers are
 *                   regular: their assertions run as one product automaton, where a state from which the formula cannot become true is dead.
 *   CFG             a state is a set of Earley items (cfg.c); items refer to the set where they began, so equal left contexts are one node,
 *                   and ambiguity costs items instead of stacks. Terminals are regular expressions or JSON schemas as sub-machines.
 *
 * Masks. The vocabulary is a trie, walked with the machine. The long part, text that a free string may hold, is never walked: if a state is
 * not changed by any character of a slice (all that a JSON string may hold unescaped), the slice's bitmap is copied and only *residues* are
 * tried: what tokens hold behind their longest beginning in the slice, a small trie of its own. A mask is kept with its state; states that a
 * walk made are dropped when it ends. Everything is lazy: compiling reads the text and resolves references, nothing more.
 *
 * Bounds. All growth is limited by di_grammar_limits; beyond a limit an error names it and the matcher stays closed: it never continues
 * unconstrained.
 *
 * Threads. A vocabulary is read-only and shared. A compiled grammar is shared: its lazily built parts are behind one lock that accept and mask
 * hold. A matcher belongs to one thread at a time. */
#ifndef DI_GRAMMAR_GRAMMAR_H
#define DI_GRAMMAR_GRAMMAR_H

#include "base/str.h"

/* ---- vocabulary ---- */

struct di_vocabulary;

/* A trie over n tokens. tokens[i] are the bytes of id i; an empty one (control tokens) is never allowed by a grammar. Bytes are copied.
 * Takes about 40 bytes a token beside its bytes. Shared by threads; outlives every matcher. */
di_status di_vocabulary_create(const struct di_str *tokens, size_t n, struct di_vocabulary **out, di_error *err);
void di_vocabulary_destroy(struct di_vocabulary *v);
size_t di_vocabulary_size(const struct di_vocabulary *v);
struct di_str di_vocabulary_token(const struct di_vocabulary *v, size_t id);
/* 32-bit words of a mask; bit i%32 of word i/32 is id i. */
static inline size_t di_mask_words(size_t tokens)
{
    return (tokens + 31) / 32;
}

/* ---- grammars ---- */

enum di_grammar_kind {
    DI_GRAMMAR_REGEX,     /* the whole text matches (ECMA-262; no lookaround, no backreferences) */
    DI_GRAMMAR_CHOICE,    /* the text is a JSON list of strings, one of which is the answer */
    DI_GRAMMAR_JSON,      /* the text is a JSON Schema, or true for any JSON value */
    DI_GRAMMAR_GBNF,      /* llama.cpp's dialect; start rule "root" */
    DI_GRAMMAR_EBNF,      /* xgrammar's dialect; start rule "root" */
    DI_GRAMMAR_LARK,      /* Lark with the extensions that llguidance reads; start rule "start" */
    DI_GRAMMAR_STRUCTURAL /* the text is a JSON structural tag: free text with constrained parts behind triggers */
};
/* "regex", "choice", "json", "gbnf", "ebnf", "lark", "structural"; false for another word. */
bool di_grammar_kind_named(struct di_str name, enum di_grammar_kind *out);

struct di_grammar_limits { /* 0 = the default */
    size_t text_bytes;     /* of the grammar (4 MiB) */
    size_t schema_nodes;   /* subschemas, or rules and their parts (400,000) */
    size_t regex_nodes;    /* expressions and derivatives (400,000) */
    size_t formula_nodes;  /* of decision diagrams (400,000) */
    size_t states;         /* kept at one time (1,000,000; 64 bytes each) */
    size_t cached_masks;   /* kept at one time (1,024; a bit per token each) */
    size_t depth;          /* of nested values (512) */
};

struct di_grammar_options {
    bool compact;  /* no white space between the tokens of JSON; else any amount of it */
    bool declared; /* properties in the order of the schema, others behind; else any order */
    bool strict;   /* the rules of hosted services: objects are closed, every property is required */
    struct di_grammar_limits limits;
};

struct di_grammar;

/* Compile. DI_ERR_INVALID: not a grammar of that kind; DI_ERR_UNSUPPORTED: something that cannot be enforced; DI_ERR_LIMIT. `where` is the
 * place: a JSON pointer into a schema, "line N" of a grammar, "byte N" of an expression. The text is copied. Any thread. */
di_status di_grammar_compile(enum di_grammar_kind kind, struct di_str text, const struct di_grammar_options *options,
                             struct di_grammar **out, di_error *err);
/* Counted references: compile gives one, every matcher holds one. */
struct di_grammar *di_grammar_ref(struct di_grammar *g);
void di_grammar_unref(struct di_grammar *g);
/* Bytes of heap that the grammar holds now, but for automata of strings and numbers. Any thread. */
size_t di_grammar_bytes(struct di_grammar *g);
/* No limit was met and memory sufficed so far: otherwise all its matchers are closed for good, and new ones as well. Any thread. */
bool di_grammar_is_well(struct di_grammar *g);

/* ---- matchers ---- */

struct di_matcher;

/* At the beginning of the text. `vocabulary` may be NULL if no masks and tokens are asked for; all matchers of a grammar must have the same. */
di_status di_matcher_create(struct di_grammar *g, const struct di_vocabulary *vocabulary, struct di_matcher **out, di_error *err);
di_status di_matcher_fork(const struct di_matcher *m, struct di_matcher **out, di_error *err);
void di_matcher_destroy(struct di_matcher *m);

/* Take a token or bytes; one step of the history each. DI_ERR_INVALID if the grammar does not allow them, and then nothing has changed;
 * `where` is "byte N" of what was given. */
di_status di_matcher_accept_token(struct di_matcher *m, int32_t id, di_error *err);
di_status di_matcher_accept_bytes(struct di_matcher *m, struct di_str bytes, di_error *err);
/* Forget the last k steps; false if there are fewer. */
bool di_matcher_rollback(struct di_matcher *m, size_t k);
size_t di_matcher_steps(const struct di_matcher *m);
/* Steps before the last `keep` ones can no longer be taken back and do not count as steps: their states need not be kept. */
void di_matcher_forget(struct di_matcher *m, size_t keep);
/* The text so far is complete: end ids are allowed exactly here. */
bool di_matcher_is_accepting(struct di_matcher *m);
/* Which tokens may come next. `out` has di_mask_words words. DI_OK with no bit set and not accepting: no continuation exists. */
di_status di_matcher_mask(struct di_matcher *m, uint32_t *out, di_error *err);
/* Bytes of the only continuation, as long as there is just one and the text is not complete before; at most `most`. */
di_status di_matcher_forced(struct di_matcher *m, size_t most, struct di_buf *out, di_error *err);
/* A short way to a complete text, in bytes: an upper bound of the shortest; 0 when complete; SIZE_MAX if none was found. */
size_t di_matcher_distance(struct di_matcher *m);

#endif
