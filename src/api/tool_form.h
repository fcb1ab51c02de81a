/* The block of calls as a form: a Lark grammar over the tools that may be called (spec/encoding.md §2.3, §3.2). In it the control id ｜DSML｜ is
 * the byte 0xFF, which no text has. */
#ifndef DI_API_TOOL_FORM_H
#define DI_API_TOOL_FORM_H

#include "text/chat.h"

#define DI_TOOL_FORM_MARK "\xFF"

/* Where the grammar begins. */
enum di_tool_form_start {
    DI_TOOL_FORM_BLOCK,  /* in front of the block: line feeds, its opening tag */
    DI_TOOL_FORM_MARKED, /* behind the first mark */
    DI_TOOL_FORM_OPENED  /* behind the opening tag */
};
/* Says of a schema whether it can be enforced; `text` is JSON. */
typedef bool di_tool_form_try(void *ctx, struct di_str text);

/* Append the grammar: names of the offered tools, their parameters in the order of the schema, required ones always, values of their schemas.
 * `content`, a Lark expression, is an alternative to the block; empty: none. A parameter of a tool that is not strict whose schema `try`
 * does not like may be any value; `try` NULL: all are taken as they are. DI_ERR_UNSUPPORTED: a tool is strict and has what a call cannot
 * say. */
di_status di_tool_form_write(const struct di_chat *chat, enum di_tool_form_start start, struct di_str content, di_tool_form_try *try,
                             void *ctx, struct di_buf *out, di_error *err);
/* Append a Lark string. */
void di_tool_form_add_string(struct di_buf *b, struct di_str s);

#endif
