/* Output parser: what the model wrote becomes reasoning, content and tool calls, while it is being written (spec/encoding.md §3).
 *
 * Bytes go in, in stretches of any size; events come out. How the bytes are cut never changes the accumulated result: feeding them one
 * at a time, as the ids arrive, or all at once gives the same message. The parser holds back only what may still turn out to be markup
 * or a stop string: at most the longest of them, a count of newlines, and the value of a parameter with string="false" until its
 * closing tag.
 *
 * Markup that is a control id in the vocabulary (`</think>`, `｜DSML｜`) is recognised only in stretches marked DI_PARSE_CONTROL,
 * everything else only in the other stretches, so that a model that quotes its own markup as text can't call a tool by it. With
 * `spelling` set the flags are ignored and tags match by their characters, for text of which no ids are known.
 *
 * Text of events is always valid UTF-8 and ends between characters; ill-formed bytes become U+FFFD (§1.5).
 * One parser belongs to one thread at a time. No allocation per call once its buffers have grown to the sizes a text needs. */
#ifndef DI_TEXT_PARSER_H
#define DI_TEXT_PARSER_H

#include "base/str.h"

/* Where the prompt ended (§3.1): "reasoning", "content" (leading newlines of both are dropped), "tool_block", "reasoning_continued",
 * "content_continued". False if the name is none of them. */
bool di_parse_start_from_name(struct di_str name, di_answer_start *out);

/* Why a turn is over (§3.9). The first five can be given to di_parser_finish; the parser itself adds the other two. */
enum di_finish {
    DI_FINISH_STOP,
    DI_FINISH_LENGTH,
    DI_FINISH_FILTER,
    DI_FINISH_ABORT,
    DI_FINISH_ERROR,
    DI_FINISH_TOOL_CALLS,
    DI_FINISH_STOP_STRING
};
/* Names of the chat protocol: "stop", "length", "content_filter", "abort", "error", "tool_calls", "stop". */
const char *di_finish_name(enum di_finish f);
/* "stop", "length", "content_filter", "abort" or "error"; false for another word. */
bool di_finish_from_name(struct di_str name, enum di_finish *out);

struct di_parser_settings {
    di_answer_start start;
    bool tools_declared; /* without tools the markup of calls is text */
    bool json_mode;      /* pass only the JSON of the content (§3.5) */
    bool keep_newlines;  /* those at the beginning of the content belong to it: they are part of the form that was asked for */
    bool spelling;       /* match tags by their characters */
    bool hide_control; /* control ids that are no markup where they stand vanish, but for those that are half a tag (`｜DSML｜`); otherwise
                          their spelling is text */
    bool include_stop;               /* the matched stop string stays in the content */
    bool recover_unclosed_reasoning; /* §3.7: a turn that ended by itself inside the reasoning becomes content */
    const struct di_str *stop;       /* up to DI_PARSE_MAX_STOP, none empty; copied */
    size_t n_stop;
    /* May the tool of this name be called? Gets the `arg` of the events; NULL: any may. A call of another one is never announced. If nothing
     * was called before, its markup is content as it stands, and so is all that follows it; but with refuse_not_offered and in JSON mode it
     * is dropped, and di_parser_refused. Behind other calls it is dropped, and what follows it. */
    bool (*offered)(void *arg, struct di_str name);
    bool refuse_not_offered;
    size_t max_call_bytes; /* bytes of name, keys and values that one call may have; the rest is dropped. 0 means 16 MiB */
};
#define DI_PARSE_MAX_STOP 16
#define DI_PARSE_MAX_STOP_BYTES 1024

enum di_parse_event_kind {
    DI_EVENT_REASONING, /* text: a piece of the reasoning */
    DI_EVENT_CONTENT,   /* text: a piece of the content */
    DI_EVENT_CALL,      /* a call begins: index, text = name */
    DI_EVENT_ARGUMENTS, /* a piece of the argument text of call `index` */
    DI_EVENT_RECOVER,   /* the reasoning so far is the content; no text */
    DI_EVENT_DONE       /* last event: finish, stop_index, notes */
};

/* Things worth a log line; bits of `notes`. */
enum { DI_NOTE_TEXT_AFTER_END = 1, DI_NOTE_END_INSIDE_CALL = 2, DI_NOTE_CALL_TOO_LONG = 4, DI_NOTE_NOT_OFFERED = 8 };

struct di_parse_event {
    enum di_parse_event_kind kind;
    uint32_t index;     /* of the call, from 0 */
    struct di_str text; /* borrowed until the callback returns */
    enum di_finish finish;
    size_t stop_index; /* DONE with DI_FINISH_STOP_STRING: which stop string; else SIZE_MAX */
    unsigned notes;
};
typedef void di_parse_emit(void *arg, const struct di_parse_event *event);

struct di_parser;

/* DI_ERR_INVALID for an empty stop string or too many. The callback is called only from inside feed and finish. */
di_status di_parser_create(const struct di_parser_settings *settings, di_parse_emit *emit, void *arg, struct di_parser **out,
                           di_error *err);
void di_parser_destroy(struct di_parser *p); /* NULL is allowed */

enum di_parse_bytes {
    DI_PARSE_TEXT,    /* bytes of ordinary ids, also of control ids that are to be shown as text (grounding marks) */
    DI_PARSE_CONTROL, /* the spelling of one control id */
};
/* Take the next bytes. Events for everything that is certain are emitted before the call returns. DI_ERR_MEMORY is final. */
di_status di_parser_feed(struct di_parser *p, struct di_str bytes, enum di_parse_bytes kind, di_error *err);
/* The same for one sampled id: an added token is a control id, except for the eight grounding marks, which are text of the answer (§1.6).
 * EOS and other stop ids are not fed. DI_ERR_INVALID for an id that does not exist. */
struct di_tokenizer;
di_status di_parser_feed_id(struct di_parser *p, const struct di_tokenizer *t, int32_t id, di_error *err);
/* The model ended for the reason `backend`, EOS not fed. Releases what was held back and emits DI_EVENT_DONE, once. */
di_status di_parser_finish(struct di_parser *p, enum di_finish backend, di_error *err);

/* Where the parser stands, for counting reasoning tokens and for switching grammars; behind the end: in the content. */
di_answer_phase di_parser_phase(const struct di_parser *p);
/* A stop string was found: nothing that the model writes from here on matters. */
bool di_parser_stopped(const struct di_parser *p);
/* The answer consists of the call of a tool that was not offered. */
bool di_parser_refused(const struct di_parser *p);

#endif
