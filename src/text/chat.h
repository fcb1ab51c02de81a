/* Chat encoding: a request of one of the three HTTP dialects becomes a prompt and everything that the engine needs to answer it
 * (spec/encoding.md §2, §3.1, §4.2). All dialects are converted into one conversation; only that is rendered.
 *
 * A di_chat is built by one call and then only read. It borrows strings from the request, which must outlive it, as must the options. */
#ifndef DI_TEXT_CHAT_H
#define DI_TEXT_CHAT_H

#include "text/image_plan.h"
#include "text/parser.h"
#include "text/prompt.h"

#include "base/json.h"

/* COMPLETION: a raw prompt beside the fields of chat; only fields are read, no conversation and no prompt (spec/encoding.md §4.4). */
enum di_protocol { DI_PROTOCOL_CHAT, DI_PROTOCOL_RESPONSES, DI_PROTOCOL_MESSAGES, DI_PROTOCOL_COMPLETION };
/* "chat", "responses", "messages". */
bool di_protocol_from_name(struct di_str name, enum di_protocol *out);

enum di_reasoning_history {                    /* which earlier reasoning is shown (§2.5) */
                            DI_REASONING_AUTO, /* all of it if a tool block is shown, else none */
                            DI_REASONING_KEEP, /* all that the client sent */
                            DI_REASONING_DROP,
};

struct di_effort {
    const char *word; /* as in reasoning_effort */
    int percent;      /* the number in the prompt, 1..100 */
};

struct di_chat_options {
    bool thinking;                    /* when the request does not say */
    bool strict_history;              /* every call has exactly one result, right after it (§2.6) */
    bool hosted_sampling;             /* imitate the hosted service: temperature and top_p by mode (§4.2) */
    bool forced_tools_while_thinking; /* else DI_ERR_INVALID, as the hosted service does (§2.6) */
    bool result_media_as_text;        /* pictures and documents in tool results become a text that says so */
    bool messages_drop_web_search;    /* else the Messages dialect refuses web_search tools and blocks */
    bool refuse_stored;               /* previous_response_id and conversation of Responses are DI_ERR_INVALID: there is no store (§4.5) */
    enum di_reasoning_history reasoning_history; /* when the request does not say */
    const struct di_effort *efforts;             /* NULL: the official numbers */
    size_t n_efforts;
    const char *default_effort;
    int64_t max_tokens_limit; /* largest accepted max_tokens; Messages lowers a larger one */
    /* What the request does not say, NULL = nothing. Checked as the request's own fields are, in the names of the request; how long the
     * lists may be is the caller's to know. */
    const di_sampling_options *sampling;
};
extern const struct di_chat_options di_chat_options_default;

/* ---- conversation ---- */

struct di_chat_image {
    struct di_str url;              /* as sent; empty for Messages' base64 source */
    struct di_str media_type, data; /* of a data URL or base64 source: "image/png" and the base64 text; else empty */
    struct di_str detail;           /* "", "low", "high", "original" or "auto" */
    const char *path;               /* where in the request, for error messages */
};
/* Append the image's URL; of a base64 source, the data URL that says the same. */
void di_chat_image_write(struct di_buf *b, const struct di_chat_image *image);

struct di_chat_part {
    struct di_chat_part *next;
    const struct di_chat_image *image; /* NULL: text */
    struct di_str text;
};
struct di_chat_parts {
    struct di_chat_part *first, *last;
};
struct di_chat_call {
    struct di_chat_call *next;
    struct di_str id, name, arguments; /* arguments: the raw text */
    size_t index;
    bool answered;
};
struct di_chat_tool {
    struct di_chat_tool *next;
    struct di_str name;                             /* "namespace::name" inside a namespace */
    struct di_str description;                      /* may be empty */
    const struct di_json *parameters;               /* as shown; NULL: {} */
    struct di_str space, local;                     /* namespace ("" = none) and the name in it */
    bool has_description, strict, deferred, custom; /* custom: its call is free text in the parameter `input` */
    bool offered;                                   /* may be called and shown */
};
struct di_chat_update { /* a tool that a system message brings in */
    struct di_chat_update *next;
    const struct di_chat_tool *tool;
};

enum di_role { DI_ROLE_SYSTEM, DI_ROLE_USER, DI_ROLE_ASSISTANT, DI_ROLE_TOOL, DI_ROLE_REMINDER };

struct di_chat_message {
    struct di_chat_message *next;
    enum di_role role;
    struct di_chat_parts content, reasoning; /* shown joined by blank lines; reasoning by a line feed in Responses */
    bool has_reasoning;
    struct di_chat_call *calls, *last_call;
    size_t n_calls;
    struct di_str call_id; /* of a tool result */
    bool has_call_id, prefix;
    int task; /* enum di_control of the task, 0 = none */
    struct di_chat_update *updates, *last_update;
};

/* ---- what the engine needs ---- */

enum di_constraint_kind {
    DI_CONSTRAIN_NONE,
    DI_CONSTRAIN_JSON,          /* any JSON value */
    DI_CONSTRAIN_JSON_SCHEMA,   /* schema */
    DI_CONSTRAIN_REGEX,         /* text */
    DI_CONSTRAIN_GRAMMAR,       /* text: EBNF */
    DI_CONSTRAIN_CHOICE,        /* schema: an array of strings, one of which is the answer */
    DI_CONSTRAIN_STRUCTURAL,    /* schema: a structural tag */
    DI_CONSTRAIN_TOOLS,         /* text or calls of the offered tools */
    DI_CONSTRAIN_TOOLS_REQUIRED /* at least one call */
};
/* "none", "json", "json_schema", "regex", "grammar", "choice", "structural_tag", "tool_call", "tool_call_required". */
const char *di_constraint_name(enum di_constraint_kind k);

struct di_constraint {
    enum di_constraint_kind kind;
    const struct di_json *schema;
    struct di_str text;
    bool compact, declared; /* JSON: no white space between its tokens; properties in the order of the schema */
    bool not_in_time;       /* it may be cut off by the limit of tokens */
    const char *path;       /* of the field that asks for it, for error messages; NULL with NONE and the constraints of tools */
};

/* Fields as sent. Absent: NaN, INT64_MIN, -1 for booleans, empty for lists. Ranges are checked. */
struct di_sampling {
    double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int64_t top_k, seed, max_tokens, min_tokens, n, best_of, top_logprobs, prompt_logprobs, priority, thinking_token_budget,
        truncate_prompt_tokens;
    bool has_seed; /* every value of seed means something */
    int8_t logprobs, ignore_eos, include_stop_str_in_output, skip_special_tokens, spaces_between_special_tokens, stream, include_usage,
        continuous_usage_stats, include_reasoning, return_token_ids, return_tokens_as_token_ids, echo;
    const struct di_str *stop, *bad_words;
    size_t n_stop, n_bad_words;
    const int32_t *stop_token_ids, *allowed_token_ids;
    size_t n_stop_token_ids, n_allowed_token_ids;
    const di_bias *logit_bias;
    size_t n_logit_bias;
};

struct di_chat {
    struct di_arena arena; /* private: owns what does not borrow from the request */
    enum di_protocol protocol;
    struct di_str model, request_id, cache_salt; /* as sent, empty if absent */
    struct di_chat_message *messages;
    struct di_chat_tool *tools; /* all that were declared or loaded; see `offered` */
    bool thinking, single_call; /* single_call: at most one tool call */
    int effort;                 /* percent */
    enum di_reasoning_history reasoning_history;
    bool forced; /* the answer must call a tool; `opened`: and the prompt opens the block */
    bool opened;

    di_answer_start start; /* parser settings (§3.1) */
    bool tools_declared, json_mode;
    struct di_constraint constraint;    /* what to enforce: of the tools if any are shown, else of the format (§2.9) */
    struct di_constraint format;        /* what response_format and its relatives ask for */
    const struct di_json *format_shown; /* the JSON of the prompt's format part, NULL = none */
    struct di_sampling sampling;
    double temperature, top_p; /* after the rules */
    struct di_prompt prompt;
    const struct di_chat_image **images; /* in prompt order */
    size_t n_images;
    const char *document; /* where the first one is that is not replaced as asked; a few words stand in its place. NULL = none */
};

/* Convert and render. On error *out is empty. DI_ERR_INVALID names the field in `where`, and the sentence goes on from there;
 * DI_ERR_UNSUPPORTED: a field that asks for something that is not here; DI_ERR_MEMORY. `options` NULL: the defaults. Any thread. */
di_status di_chat_create(enum di_protocol protocol, const struct di_json *request, const struct di_chat_options *options,
                         struct di_chat **out, di_error *err);
/* The chat of a branch: settled `of` with other sampling. It borrows from both until it is settled. Errors as above. */
di_status di_chat_branch(const struct di_chat *of, const di_sampling_options *sampling, struct di_chat **out, di_error *err);
/* Does a member of this name mean anything in requests of this protocol, CHAT or COMPLETION? */
bool di_chat_has_field(enum di_protocol protocol, struct di_str name);
/* The prompt is encoded: keep only what an answer needs (tools by their names, stop strings, settings), free the rest: messages, prompt,
 * schemas, images, lists of ids. Nothing borrows from the request any more. On DI_ERR_MEMORY it is as before. */
di_status di_chat_settle(struct di_chat *chat, di_error *err);
void di_chat_destroy(struct di_chat *chat); /* NULL is allowed */

/* The limit for this answer (§4.2). `asked`: chat->sampling.max_tokens, or what the caller makes of it; `prompt_tokens` counts images expanded, `context` is the model's. DI_ERR_LIMIT if prompt and requested
 * tokens do not fit, in the words of di_fail_context. Messages lowers the limit to what the context leaves; if that is nothing, its
 * sentence is "prompt is too long: M tokens > N maximum". */
di_status di_chat_max_tokens(const struct di_chat *chat, int64_t asked, int64_t prompt_tokens, int64_t context, int64_t *out,
                             di_error *err);

#endif
