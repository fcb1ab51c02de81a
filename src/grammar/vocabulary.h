/* Tries over the bytes of tokens. Private to the room. */
#ifndef DI_GRAMMAR_VOCABULARY_H
#define DI_GRAMMAR_VOCABULARY_H

#include "grammar/grammar.h"
#include "grammar/rx.h"

#include <pthread.h>

/* Nodes in depth-first order, so that a walk is a loop: on to the next node if the byte is allowed, else to `end`. */
struct trie_node {         /* 16 bytes */
    uint32_t end;          /* the first node that is not below this one */
    uint32_t first, count; /* tokens that end here: entries of the trie */
    uint16_t depth;        /* bytes from the root; deeper tokens than 65,535 bytes are left out */
    uint8_t byte;
};

struct trie_entry {
    struct di_str bytes; /* while building */
    uint32_t id;
    uint32_t chars; /* of a slice: characters in front of the residue */
};

struct trie {
    struct trie_node *nodes;
    struct trie_entry *entries;
    size_t n_nodes, n_entries, depth;
};

#define SLICE_LEFT 16

/* Tokens by what they begin with in a class of characters: what may stand unescaped in a string of JSON. */
struct slice {
    uint32_t *whole;             /* mask of the tokens that are made of such characters only */
    uint32_t *short_ones;        /* SLICE_LEFT masks: at most k characters */
    struct trie_entry *by_chars; /* tokens of `whole`, the longest first */
    size_t n_by_chars;
    uint32_t most_chars;
    struct trie closing, others; /* residues that begin with a quotation mark; all others */
    uint32_t *inside;            /* tokens that stay within a string that may hold anything: `whole`, escapes, parts of characters */
    struct trie leaving;         /* what follows in the tokens that end such a string, with the quotation mark */
    uint32_t *breaks;            /* tokens of `whole` with a line or paragraph separator: expressions' "." is neither */
    size_t n_breaks;
    uint32_t *pairs; /* tokens with an escaped half of a surrogate pair: tried one by one */
    size_t n_pairs;
};

/* Masks that depend on an expression alone: which tokens without quotation marks and backslashes may come inside a string. Shared by all grammars
 * of the vocabulary, found by the expression's digest; what comes later takes the place of what is there. */
#define SHARED_MASKS 1024 /* of a bit per token each, made as they are needed */
struct shared_masks {
    pthread_mutex_t lock;
    struct {
        uint64_t digest[2];
        uint32_t *mask;
        uint32_t most_chars; /* that the shortest text has which begins with any of its tokens */
    } slots[SHARED_MASKS];
};

/* Classes of characters that expressions often repeat, the larger ones behind the smaller; the last two are all texts of well-formed characters
 * (the last of which may be unfinished), without and with U+2028 and U+2029. */
enum { N_ASCII_CLASSES = 8, CLASS_LINE = N_ASCII_CLASSES, CLASS_TEXT, N_CLASSES };
extern const struct byte_set trie_classes[N_ASCII_CLASSES];

struct di_vocabulary {
    size_t n, words;
    char *bytes;
    struct di_str *tokens;
    struct trie all;
    uint32_t first_node[256]; /* of `all`: below the root, by byte; 0: none */
    struct trie plain;        /* tokens without quotation marks, backslashes and control characters */
    uint16_t *pure;           /* by node of `plain`: bits of the classes that hold all its tokens, from their beginning */
    uint32_t *of_class;       /* by class: mask of its tokens */
    struct trie marked;       /* tokens with a quotation mark or a backslash */
    struct trie numerals;     /* tokens that are made of digits, signs, points and the letter e */
    struct trie after_number; /* tokens that begin so and go on otherwise */
    struct trie structure; /* what all other tokens hold behind the white space they begin with, if a value or a structure can go on so */
    uint32_t *spaces;      /* mask of the tokens that are white space */
    struct slice content;
    struct shared_masks *shared;
};

/* U+2028 or U+2029 is in the text. */
static inline bool has_break(struct di_str s)
{
    for (size_t i = 0; i + 2 < s.n; i++)
        if ((s.p[i] & 0xFF) == 0xE2 && (s.p[i + 1] & 0xFF) == 0x80 && ((s.p[i + 2] & 0xFE) == 0xA8))
            return true;
    return false;
}

static inline void mask_add(uint32_t *mask, uint32_t id)
{
    mask[id / 32] |= 1u << (id % 32);
}

#endif
