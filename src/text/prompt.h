/* A rendered prompt: text in which some stretches are control ids and everything else is plain (spec/encoding.md §2.1).
 *
 * Only the renderer puts control ids here; text of the client is added as text and can never become one (§2.10). Neighbouring plain text is
 * one stretch by construction, as the tokenizer needs it. */
#ifndef DI_TEXT_PROMPT_H
#define DI_TEXT_PROMPT_H

#include "text/tokenizer.h"

enum di_control {
    DI_CTL_BOS,
    DI_CTL_EOS,
    DI_CTL_SYSTEM,
    DI_CTL_USER,
    DI_CTL_ASSISTANT,
    DI_CTL_REMINDER,
    DI_CTL_THINK,
    DI_CTL_THINK_END,
    DI_CTL_DSML,
    DI_CTL_IMAGE,
    DI_CTL_ACTION, /* first of the tasks (§2.12) */
    DI_CTL_QUERY,
    DI_CTL_AUTHORITY,
    DI_CTL_DOMAIN,
    DI_CTL_TITLE,
    DI_CTL_READ_URL,
    DI_CTL_REF, /* first of the grounding marks (§2.10) */
    DI_CTL_REF_END,
    DI_CTL_BOX,
    DI_CTL_BOX_END,
    DI_CTL_POINT,
    DI_CTL_POINT_END,
    DI_CTL_POLYGON,
    DI_CTL_POLYGON_END,
    DI_CTL_COUNT
};
/* How a control is spelled in di_prompt.text. The image has two spellings in the wild (§1.2); this is the checkpoint's. */
struct di_str di_control_spelling(enum di_control c);

struct di_prompt_mark {
    size_t at; /* byte offset of the spelling in text */
    enum di_control control;
};

/* A finished turn of the assistant inside a prompt. */
struct di_prompt_turn {
    size_t first, last;  /* marks: its <｜Assistant｜> and its end */
    const void *message; /* the conversation's di_chat_message */
    bool reasons;        /* the policy shows earlier reasoning here, even if the client sent none */
};

/* Zero-initialise. A failed allocation is remembered and reported by di_prompt_ok. */
struct di_prompt {
    struct di_buf text;           /* everything, control ids spelled */
    struct di_prompt_mark *marks; /* ascending */
    size_t n_marks, cap_marks;
    struct di_prompt_turn *turns; /* in order */
    size_t n_turns, cap_turns;
};
void di_prompt_fini(struct di_prompt *p);
void di_prompt_control(struct di_prompt *p, enum di_control c);
void di_prompt_text(struct di_prompt *p, struct di_str s);
/* Text in which the eight grounding marks become control ids; nothing else does. */
void di_prompt_grounded(struct di_prompt *p, struct di_str s);
/* The turn from mark `first` up to the mark that was written last. */
void di_prompt_add_turn(struct di_prompt *p, size_t first, const void *message, bool reasons);
di_status di_prompt_ok(const struct di_prompt *p, di_error *err);

struct di_control_ids {
    int32_t id[DI_CTL_COUNT]; /* -1: the vocabulary has none */
};
/* Look the controls up by their spelling. `image_id` is the configuration's image_token_id, -1: look it up too. Tasks, grounding marks,
 * the reminder and the image may be missing; for another DI_ERR_UNSUPPORTED names it. */
di_status di_control_ids_find(const struct di_tokenizer *t, int32_t image_id, struct di_control_ids *out, di_error *err);

/* Other ids for a turn: append what stands behind its <｜Assistant｜>, end id included, and return true, or leave *ids alone. */
struct di_prompt_recall {
    bool (*find)(void *ctx, const struct di_prompt_turn *turn, struct di_ids *ids);
    void *ctx;
};

/* Append the ids of the prompt; `recall` may be NULL. A grounding mark without an id is plain text; a missing id of another control that
 * the prompt has is DI_ERR_UNSUPPORTED. Images count one id each. */
di_status di_prompt_encode(const struct di_prompt *p, const struct di_tokenizer *t, const struct di_control_ids *ids,
                           const struct di_prompt_recall *recall, struct di_ids *out, di_error *err);

#endif
