/* Inside of the chat encoding: what the converters of the three dialects share. */
#ifndef DI_TEXT_CHAT_BUILD_H
#define DI_TEXT_CHAT_BUILD_H

#include "text/chat.h"
#include "text/json_path.h"

/* Strings to values; for ids and names, so that hostile requests cost linear time. */
struct di_strmap {
    struct di_strmap_slot *slots;
    size_t cap, n;
    uint32_t generation;
};
void di_strmap_fini(struct di_strmap *m);
void di_strmap_clear(struct di_strmap *m);
void *di_strmap_get(const struct di_strmap *m, struct di_str key);
/* False when memory is exhausted or keys collide far beyond chance. Replaces. */
bool di_strmap_put(struct di_strmap *m, struct di_str key, void *value);

struct di_build {
    struct di_chat *chat;
    const struct di_chat_options *opt;
    const struct di_json *request;
    struct di_chat_message *last; /* of chat->messages */
    struct di_chat_tool *last_tool;
    struct di_strmap tools, calls;        /* name -> tool; call id -> call */
    size_t open_calls;                    /* calls of the last assistant message that have no result yet */
    struct di_str only_tool;              /* named tool choice, p == NULL: none */
    bool choice_none, forced, open_block; /* open_block: a forced call opens the block in the prompt */
    bool in_result;                       /* a tool's result is being read */
    di_error *err;
};

/* ---- reading JSON; absent and null are the same ---- */
di_status di_build_alloc(struct di_build *b, size_t bytes, void **out); /* zeroed, in the chat's arena */
const struct di_json *di_build_get(const struct di_json *v, const char *key);
/* Member of the given type. Missing: DI_ERR_INVALID if required, else *out = NULL. `at` is the path of v. */
di_status di_build_member(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, enum di_json_type type,
                          bool required, const struct di_json **out);
/* A string member; empty and p == NULL if absent. */
di_status di_build_string(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, bool required,
                          struct di_str *out);
/* A boolean member: 0, 1, or -1 if absent. */
di_status di_build_bool(struct di_build *b, const struct di_json *v, const struct di_path *at, const char *key, int8_t *out);
/* Index of a word in the list; otherwise DI_ERR_INVALID that lists them. */
di_status di_build_word(struct di_build *b, struct di_str word, const struct di_path *at, const char *const *words, size_t n, size_t *out);
/* Is v a literal such as 1e400? To the model, which knows doubles and integers of any length, that is no JSON number (§2.8). */
bool di_number_overflows(const struct di_json *v);
/* The path as text, in the chat's arena. */
di_status di_build_path(struct di_build *b, const struct di_path *at, const char **out);
/* v must be an object. */
di_status di_build_object(struct di_build *b, const struct di_json *v, const struct di_path *at);

/* ---- conversation ---- */
di_status di_build_detached(struct di_build *b, enum di_role role, struct di_chat_message **out); /* not in the conversation yet */
void di_build_append(struct di_build *b, struct di_chat_message *m);
di_status di_build_message(struct di_build *b, enum di_role role, struct di_chat_message **out); /* both */
di_status di_build_text(struct di_build *b, struct di_chat_parts *parts, struct di_str text);
/* The JSON text of v without spaces, in the arena. */
di_status di_build_compact(struct di_build *b, const struct di_json *v, struct di_str *out);
/* An image by URL (data URLs included unless `web_only`), checked for form. */
di_status di_build_image_url(struct di_build *b, struct di_chat_parts *parts, struct di_str url, struct di_str detail, bool web_only,
                             const struct di_path *at);
/* An image by base64 text. */
di_status di_build_image_data(struct di_build *b, struct di_chat_parts *parts, struct di_str media_type, struct di_str data,
                              const struct di_path *at);
/* A document: its place is remembered, `words` stand for it. */
di_status di_build_document(struct di_build *b, struct di_chat_parts *parts, struct di_str words, const struct di_path *at);
bool di_parts_empty(const struct di_chat_parts *parts); /* no text and no image */

struct di_build_call {
    struct di_str id, name, arguments;
    bool custom; /* arguments are free text: shown as the parameter `input` */
};
/* Append a call to an assistant message; a repeated id is an error under strict history. */
di_status di_build_call(struct di_build *b, struct di_chat_message *m, struct di_build_call call, const struct di_path *at);
/* Check a result against the open calls and mark its call; under strict history unknown and repeated ids are errors. */
di_status di_build_result(struct di_build *b, struct di_str id, const struct di_path *at);
/* Under strict history: error if a call has no result although another message comes at `at` (NULL: the end). */
di_status di_build_all_answered(struct di_build *b, const struct di_path *at);
/* List a tool in a system message. */
di_status di_build_update(struct di_build *b, struct di_chat_message *m, const struct di_chat_tool *tool);

/* ---- tools ---- */
struct di_build_tool {
    struct di_str space, space_description, name, description;
    const struct di_json *parameters; /* NULL: none */
    bool has_description, strict, deferred, custom;
    const struct di_path *at;   /* of the object with the name */
    const char *parameters_key; /* "parameters" or "input_schema" */
};
/* The form of a tool's name, which is the member `name` of the object at `at`. */
di_status di_build_name(struct di_build *b, struct di_str name, const struct di_path *at);
/* Check, normalise and append; the name must be new. */
di_status di_build_tool(struct di_build *b, const struct di_build_tool *t, struct di_chat_tool **out);
/* A function object {name, description, parameters, strict}; the other fields come from `given`, which may be NULL. */
di_status di_build_function(struct di_build *b, const struct di_json *v, const struct di_path *at, const struct di_build_tool *given,
                            struct di_chat_tool **out);
/* tool_choice names this tool; it must exist when the request is complete. */
void di_build_choose(struct di_build *b, struct di_str name);

/* ---- fields that the dialects share ---- */
di_status di_build_thinking(struct di_build *b, const struct di_json *effort, const struct di_path *effort_at);
/* A response format object; `flat`: the schema lies beside the type, as in Responses and Messages. What can be said in JSON is shown to the
 * model. */
di_status di_build_format(struct di_build *b, const struct di_json *v, const struct di_path *at, bool flat);
di_status di_build_sampling(struct di_build *b);
/* Of that, what the options say, and that the rest is absent. */
di_status di_build_sampling_options(struct di_build *b, const di_sampling_options *o);
/* Temperature and top_p after the rules (§4.2). */
void di_build_sampling_rules(struct di_build *b);

/* ---- dialects ---- */
di_status di_build_chat_request(struct di_build *b);
di_status di_build_responses_request(struct di_build *b);
di_status di_build_messages_request(struct di_build *b);

/* ---- rendering ---- */
di_status di_build_render(struct di_build *b);

#endif
