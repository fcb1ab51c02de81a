/* Forms of answers: what a request asks its answer to look like, compiled, and what masks of all answers share. A form is compiled where the
 * request is read, so never on the engine's thread, and a request whose form cannot be enforced is refused there. */
#ifndef DI_API_FORMS_H
#define DI_API_FORMS_H

#include "api/text_model.h"
#include "grammar/grammar.h"
#include "text/chat.h"

/* The vocabulary as grammars see it, and the grammars that were compiled last. Outlives every form. */
struct di_forms;
di_status di_forms_create(const struct di_text_model *text, int vocab, struct di_forms **out, di_error *err);
void di_forms_destroy(struct di_forms *f); /* NULL is allowed */

struct di_form {
    struct di_grammar *grammar; /* held; NULL: any answer will do */
    bool json;                  /* white space counts for nothing but within strings */
    bool in_time;               /* the answer is brought to its end before its tokens are used up */
    bool calls;                 /* it has calls of tools: the control id ｜DSML｜ is part of it */
    bool opens;                 /* it begins behind the first ｜DSML｜ that stands behind a bracket; before that the answer is free */
};

/* What is asked. Strings are borrowed. */
struct di_form_wish {
    enum di_grammar_kind kind;
    struct di_str text;
    bool compact, declared; /* di_grammar_options */
    bool in_time;
    const char *path; /* the place of errors */
};
/* What a caller says in place of a request's fields, checked; `out` borrows from it. DI_ERR_INVALID. */
di_status di_form_wish_of(const di_form_options *options, struct di_form_wish *out, di_error *err);

/* One of the last forms, unless it met a limit meanwhile, or compiled. Equal wishes of all tenants share a grammar. Errors as of di_grammar_compile, with the place within
 * the form in the sentence; DI_ERR_MEMORY. Any thread. */
di_status di_form_make(struct di_forms *f, const struct di_form_wish *wish, struct di_form *out, di_error *err);
/* The form that a request asks for; none: all zero. */
di_status di_form_of_chat(struct di_forms *f, const struct di_chat *chat, struct di_form *out, di_error *err);
/* A form that `of` has; it is held once more. */
struct di_form di_form_hold(const struct di_form *of);
void di_form_fini(struct di_form *form);

/* Built with the first form, as the two below. */
const struct di_vocabulary *di_forms_vocabulary(const struct di_forms *f);
/* The token that is this byte, -1: there is none. */
int32_t di_forms_byte_token(const struct di_forms *f, unsigned char byte);
/* Bit sets, 64 bits a word: the tokens that are white space of JSON and nothing else; those that are a fraction or an exponent of a number,
 * or begin one. */
enum di_token_set { DI_TOKENS_BLANK, DI_TOKENS_FRACTION, DI_TOKENS_EXPONENT, DI_TOKEN_SETS };
const uint64_t *di_forms_tokens(const struct di_forms *f, enum di_token_set set);
const struct di_text_model *di_forms_text(const struct di_forms *f);
int di_forms_vocab(const struct di_forms *f); /* of the model: its rows of logits have so many */

#endif
