/* The message that the events of the output parser add up to (spec/encoding.md §3), and its JSON form. */
#ifndef DI_TEXT_MESSAGE_H
#define DI_TEXT_MESSAGE_H

#include "text/call_id.h"
#include "text/parser.h"

struct di_message_call {
    struct di_buf name, arguments;
    char id[DI_CALL_ID_BYTES]; /* "" until the owner of the message sets it */
};

/* Zero-initialise. Everything is owned by the struct. */
struct di_message {
    struct di_buf reasoning, content;
    struct di_message_call *calls;
    size_t n_calls, cap_calls;
    enum di_finish finish;
    size_t stop_index; /* SIZE_MAX unless a stop string matched */
    unsigned notes;
    bool done, failed; /* failed: memory ran out */
};

void di_message_fini(struct di_message *m);
/* A di_parse_emit callback; `arg` is the struct di_message. */
void di_message_add(void *arg, const struct di_parse_event *event);
/* DI_OK, or DI_ERR_MEMORY if something is missing. */
di_status di_message_ok(const struct di_message *m, di_error *err);
/* Append {"reasoning_content", "content", "tool_calls": [{"name", "arguments"}], "finish_reason"}. */
void di_message_write_json(struct di_buf *b, const struct di_message *m);
/* Append one event as an object: {"reasoning_content": …}, {"content": …}, {"tool_call": {"index", "name"}},
 * {"tool_call": {"index", "arguments"}}, {"recovered": true} or {"finish_reason": …}. */
void di_event_write_json(struct di_buf *b, const struct di_parse_event *event);

#endif
