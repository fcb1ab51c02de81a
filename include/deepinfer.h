/* deepinfer: exact inference for DeepSeek-V4.1-Flash.
 *
 * This is the only header that a user of the library includes: statuses, then the engine. Link with -ldeepinfer. What stands here is
 * stable: later versions append fields at the end of structs and add functions. docs/c-api.md shows it in use. */
#ifndef DEEPINFER_H
#define DEEPINFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DI_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define DI_API __attribute__((visibility("default")))
#else
#define DI_API
#endif

/* Result of every call that can fail. The text belongs to di_error; the code is what a program branches on. */
typedef enum di_status {
    DI_OK = 0,
    DI_ERR_INVALID,     /* the caller's argument, request or option is wrong */
    DI_ERR_FORMAT,      /* a file or message does not follow its format */
    DI_ERR_UNSUPPORTED, /* well-formed, but this build or model cannot do it */
    DI_ERR_NOT_FOUND,   /* a file, tensor or name does not exist */
    DI_ERR_LIMIT,       /* a configured or physical limit would be exceeded */
    DI_ERR_MEMORY,      /* an allocation failed */
    DI_ERR_IO,          /* the operating system refused */
    DI_ERR_CANCELLED,   /* somebody asked to stop */
    DI_ERR_INTERNAL     /* a defect of the program */
} di_status;

/* Details of a failure, owned by the caller; may be NULL wherever a parameter takes one.
 * `message` is one sentence that says what was wrong and what was expected; `where` names the file, field or position. */
typedef struct di_error {
    di_status code;
    char message[480];
    char where[160];
} di_error;

/* Stable lower-case name of a status: "ok", "invalid", "format", ... Never NULL. */
DI_API const char *di_status_name(di_status status);

/* Version of the library, DI_VERSION_STRING of the build. */
DI_API const char *di_version(void);

/* ================================================================ the engine
 *
 * An engine is one model in memory and the requests that share it. A request is submitted, its output records are polled or delivered to a
 * callback, the last of them says why it ended. Work is done by whoever drives: one thread calls di_engine_step until nothing is left, or
 * di_engine_start lets the engine keep a thread of its own for that.
 *
 * Threads. Step, flush, run and close: one thread at a time, the driver. Everything else: any thread, at any time between open and close.
 * No lock is held while the model computes or a callback runs. A call with a NULL handle is refused with DI_ERR_INVALID (or does nothing);
 * a handle must not be used after di_engine_close, nor in a child of fork.
 *
 * The same bits. A request's tokens depend on its prompt, its sampling and its seed, never on what runs beside it or how it was scheduled.
 *
 * Structs that the caller fills start with their size, which the _init function sets together with the defaults: call it first, then change
 * fields. A later library accepts the smaller struct of an earlier header; an earlier library accepts a larger one as long as the rest is
 * zero. */

typedef struct di_engine di_engine;
typedef int64_t di_request_id; /* 1, 2, ... in order of submission; 0 is none */

/* ---- opening ---- */

typedef struct di_engine_config {
    size_t size;
    const char *model;     /* directory in the official checkpoint layout. All strings are borrowed during the call */
    const char *isa;       /* NULL = the best of this processor; "ref", "avx2", "avx512", "avx512bf16", "amx" */
    const char *numerics;  /* NULL = "bf16"; "bf16-woa8", and with isa "ref" also "f32r", "f32", "f32-noquant" */
    int32_t threads;       /* for computing; 0 = all processors that this process may use (affinity, control group) */
    int32_t max_batch;     /* requests that run at the same time, 1..1024 (16) */
    int32_t prefill_chunk; /* prompt rows of one step, 1..65536 (256) */
    int32_t cache_blocks;  /* blocks of 64 tokens in the pool; 0 = enough for max_batch requests of the full context */
    /* Non-zero: every prompt is computed in full. Else what earlier requests of the tenant computed for the same beginning is reused; the
     * bits are the same (0). */
    int32_t no_reuse;
    int32_t state_slots; /* snapshots of request state kept for that; 0 = a quarter of the bytes of cache_blocks, at least 64 */
    int64_t context;     /* tokens of one request, prompt and answer; 0 = the model's limit, at most 65,536 */
    int64_t seed;        /* of JSON requests that have none, 0..2^63-1 (0) */
    /* Called on the opening thread while weights are read, with bytes done and in all; or NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
    int32_t max_unread; /* records of one request that wait for di_engine_poll; at more it ends with DI_ERR_LIMIT. 0 = 65,536 */
    /* Chat: names of turns (ids of calls, plain answers) that are remembered token by token and replayed when a client sends them back
     * unchanged, so that what was cached for them fits. A prompt then depends on what was answered before (0). */
    int64_t turn_memory;
    int64_t turn_memory_bytes; /* and bytes of them; 0 = 256 MiB */
    /* NULL = "exact"; "bounded": of long prompts the second half of the layers computes the last replay_rows tokens only, and what a cached
     * beginning lacks is computed again from near its end. Faster, and an approximation: what it leaves in the cache serves bounded requests
     * only, exact ones keep their bits. DI_ERR_UNSUPPORTED if the model has no such half. */
    const char *replay;
    /* At least the window and the draft block; 0 = 140 for a window of 128. A prompt of at most so many tokens is exact. */
    int32_t replay_rows;
    /* Which prompt goes first among those of one priority and one tenant. NULL = "shortest": the one with the fewest tokens left to compute,
     * less a tenth of those that could have been computed while it waited, so that nobody waits for ever; decided anew in every step.
     * "arrival": they start in order of arrival and then take turns. Answers do not depend on it. */
    const char *prefill_order;
    /* Tokens that the model's draft guesses and the next step verifies, several rows of an answer at a time. Answers are the same bits.
     * NULL = "off"; "static": draft_tokens of them for every answer in every step, except where penalties count what came before. Opening
     * fails with a sentence if the checkpoint has no draft, or a damaged one. */
    const char *draft;
    int32_t draft_tokens; /* 1 to the block of the draft (dspark_block_size); 0 = all of it */
} di_engine_config;
DI_API void di_engine_config_init(di_engine_config *config, size_t size);

/* What a region of memory is for: the fields of di_memory_plan. */
typedef enum di_memory_group {
    DI_GROUP_WEIGHTS = 0, /* weights_mapped if it is in place, else weights_packed */
    DI_GROUP_CACHE,
    DI_GROUP_ACTIVATIONS,
    DI_GROUP_SCRATCH
} di_memory_group;
typedef enum di_memory_place {
    DI_PLACE_DEVICE = 0, /* what kernels work on; ordinary memory if they run on the processor */
    DI_PLACE_HOST,       /* what the engine works on, and what is on its way to the device or from there */
    DI_PLACE_MAPPED,     /* pages of the model's files: read when they are touched, given back by the system under pressure */
    DI_PLACE_FILE        /* stays in the files, because nothing uses it: takes nothing */
} di_memory_place;
/* Stable lower-case names: "weights", "device". "" for what this version does not know. */
DI_API const char *di_memory_group_name(di_memory_group group);
DI_API const char *di_memory_place_name(di_memory_place place);

typedef struct di_memory_region {
    const char *name; /* "request states"; lives for ever */
    di_memory_group group;
    di_memory_place place;
    uint64_t count, unit_bytes, bytes; /* bytes = count * unit_bytes; of what stays in the files, those it has there */
    char note[96];                     /* how it is counted */
} di_memory_region;

/* What opening with this configuration will allocate or keep resident, in bytes; reads config.json only. What requests take beside it
 * while they live is in docs/operating.md. */
#define DI_MEMORY_REGIONS_MAX 48
typedef struct di_memory_plan {
    uint64_t weights_packed; /* copied into the layout of the kernels, and the tables that find them */
    uint64_t weights_mapped; /* read in place from the files */
    uint64_t cache;          /* all requests' cached state */
    uint64_t activations, scratch;
    uint64_t total;
    int64_t context; /* tokens of one request that this is for */
    /* The same, region by region, in the order of printing. */
    int32_t max_batch, max_rows; /* requests at once, rows of one step */
    char arithmetic[48];         /* numerics, device and instruction set: "bf16/cpu-avx512" */
    int32_t n_regions;
    di_memory_region regions[DI_MEMORY_REGIONS_MAX]; /* [n_regions] */
} di_memory_plan;
/* DI_ERR_INVALID, _NOT_FOUND, _FORMAT, _UNSUPPORTED as for di_engine_open. Any thread. `size` is sizeof(di_memory_plan). */
DI_API di_status di_engine_plan(const di_engine_config *config, di_memory_plan *out, size_t size, di_error *err);

/* Load the model. *out belongs to the caller until di_engine_close and is NULL on error: DI_ERR_INVALID (an option), _NOT_FOUND, _FORMAT,
 * _IO (the files), _UNSUPPORTED (this processor or build), _MEMORY, _LIMIT. Any thread; several engines may exist. */
DI_API di_status di_engine_open(const di_engine_config *config, di_engine **out, di_error *err);
/* Requests that are not over end as cancelled (their callbacks are called), unread output is freed. NULL does nothing. Not from a callback,
 * and not while another thread uses the engine. */
DI_API void di_engine_close(di_engine *engine);

typedef struct di_model_info {
    const char *name; /* last component of the model directory; lives as long as the engine */
    int64_t context;  /* tokens of one request: as configured, or what a smaller pool of cache blocks holds */
    int32_t vocab_size, bos_id, eos_id, pad_id;
    int32_t max_batch, cache_blocks;
    /* 64 hexadecimal digits over weights and configuration, for keys of what is computed with them; docs/c-api.md says how far they can be
     * trusted. Lives as long as the engine. */
    const char *digest;
} di_model_info;
DI_API di_status di_engine_info(const di_engine *engine, di_model_info *out, size_t size, di_error *err);

/* ---- text and ids ---- */

/* Ids of a text, nothing put in front. `control` non-zero: spellings of control tokens become their ids, else everything is plain text.
 * Writes up to `capacity` ids and sets *n to the number there are: more than capacity means that the rest was not written. DI_ERR_INVALID:
 * not UTF-8. Any thread. */
DI_API di_status di_engine_encode(const di_engine *engine, const char *text, size_t bytes, int control, int32_t *ids, size_t capacity,
                                  size_t *n, di_error *err);
/* Text of ids, ill-formed UTF-8 replaced by U+FFFD; `capacity` and *n count bytes, as above; no 0 byte is added. DI_ERR_INVALID: an id that
 * does not exist. Any thread. */
DI_API di_status di_engine_decode(const di_engine *engine, const int32_t *ids, size_t n_ids, char *text, size_t capacity, size_t *n,
                                  di_error *err);

/* The bytes of one token, which may end inside a character; `capacity` and *n as above. DI_ERR_INVALID: an id that does not exist. Any
 * thread. */
DI_API di_status di_engine_token_bytes(const di_engine *engine, int32_t id, char *bytes, size_t capacity, size_t *n, di_error *err);

/* ---- requests ---- */

typedef struct di_bias {
    int32_t id;
    float value; /* -100..100, added to the logit */
} di_bias;

typedef struct di_sampling_options {
    size_t size;
    double temperature;        /* 0..2, 0 is greedy (1) */
    double top_p;              /* (0, 1] (1) */
    double min_p;              /* [0, 1] (0 = off) */
    int64_t top_k;             /* (0 = off) */
    double repetition_penalty; /* > 0 (1 = off) */
    double presence_penalty;   /* -2..2 (0) */
    double frequency_penalty;  /* -2..2 (0) */
    int64_t seed;              /* any (0) */
    int64_t max_tokens;        /* of the answer (0 = by the model's rules, at most what the context leaves) */
    int64_t min_tokens;        /* no end id before so many tokens (0) */
    int32_t ignore_eos;        /* non-zero: end and stop ids do not end the answer */
    int32_t logprobs;          /* non-zero: report each token's log-probability, of the model's own distribution */
    int32_t top_logprobs;      /* and of so many alternatives, 0..20; needs logprobs */
    int32_t include_stop;      /* non-zero: a stop string that ended the answer stays in its text */
    int32_t show_control;      /* non-zero: control tokens are spelled out in the text */
    const char *const *stop;   /* [n_stop] up to 16 strings that end the answer, UTF-8 */
    size_t n_stop;
    const int32_t *stop_ids; /* [n_stop_ids] ids that end the answer besides the model's end id */
    size_t n_stop_ids;
    const di_bias *bias; /* [n_bias] at most 4,096, like stop_ids */
    size_t n_bias;
} di_sampling_options;
DI_API void di_sampling_options_init(di_sampling_options *options, size_t size);

typedef enum di_output_kind {
    DI_OUTPUT_TOKEN = 1,     /* one token of the answer: token, logprob, alternatives, index. End ids included */
    DI_OUTPUT_TEXT = 2,      /* text: the next piece of the answer */
    DI_OUTPUT_REASONING = 3, /* text: the next piece of the reasoning (chat requests) */
    DI_OUTPUT_CALL = 4,      /* a tool call begins: index, text = name */
    DI_OUTPUT_ARGUMENTS = 5, /* text: the next piece of call `index`'s arguments */
    DI_OUTPUT_RECOVERED = 6, /* what came as reasoning is the answer after all */
    DI_OUTPUT_FINISHED = 7,  /* last record of a request: reason, usage, error */
    DI_OUTPUT_STARTED =
        8 /* first record, if the submission asks for it: the request has a place; prompt_tokens, cached_tokens, start, thinking */
} di_output_kind;

/* Where the prompt of a request ends, which decides what its answer begins with. */
typedef enum di_answer_start {
    DI_STARTS_REASONING = 0,
    DI_STARTS_CONTENT,
    DI_STARTS_TOOL_CALLS,          /* the prompt has opened the block of calls */
    DI_STARTS_REASONING_CONTINUED, /* inside a reasoning that the request began */
    DI_STARTS_CONTENT_CONTINUED    /* inside such a content; raw prompts too */
} di_answer_start;
/* What a token belongs to. */
typedef enum di_answer_phase { DI_PHASE_OF_CONTENT = 0, DI_PHASE_OF_REASONING, DI_PHASE_OF_TOOL_CALLS } di_answer_phase;

typedef enum di_end_reason {
    DI_REASON_NONE = 0,
    DI_REASON_STOP,       /* the model's end id, a stop id (token tells), or a stop string (stop_index tells) */
    DI_REASON_LENGTH,     /* max_tokens */
    DI_REASON_TOOL_CALLS, /* it ended with tool calls (chat requests) */
    DI_REASON_CANCELLED,  /* di_engine_cancel, a callback that said so, or the engine was closed */
    DI_REASON_DEADLINE,
    DI_REASON_ERROR /* `error` says what */
} di_end_reason;
/* "stop", "length", "tool_calls", "abort", "deadline", "error"; "" for DI_REASON_NONE. */
DI_API const char *di_end_reason_name(di_end_reason reason);

/* Why the search for a prompt's cached beginning ended. */
typedef enum di_miss_reason {
    DI_MISS_REASON_NONE = 0,   /* all but the last token was found, or nothing was looked up (no_reuse) */
    DI_MISS_REASON_NEVER_SEEN, /* no request of this tenant came so far with this beginning, or too long ago to tell */
    DI_MISS_REASON_EVICTED,    /* it was here and made room for others */
    DI_MISS_REASON_DIVERGED,   /* others went on differently from that position on */
    DI_MISS_REASON_BOUNDED     /* it is there, but as an approximation that this request does not accept */
} di_miss_reason;
/* "none", "never_seen", "evicted", "diverged", "bounded". Never NULL. */
DI_API const char *di_miss_reason_name(di_miss_reason reason);

typedef struct di_alternative {
    int32_t id;
    float logprob;
} di_alternative;

/* A record of a request's output. Tokens come before the pieces of text that they complete; text is valid UTF-8 and ends between
 * characters. Allocated by the library together with all that it points to, so later versions may append fields. */
typedef struct di_output {
    di_request_id request;
    void *user; /* of the submission */
    di_output_kind kind;
    int32_t token; /* TOKEN; FINISHED: the last token, -1 if there was none */
    int64_t index; /* TOKEN: place in the answer from 0; CALL, ARGUMENTS: of the call from 0 */
    float logprob; /* TOKEN; NaN unless asked for */
    uint32_t n_alternatives;
    const di_alternative *alternatives; /* TOKEN: the likeliest tokens, falling */
    const char *text; /* [text_bytes], a 0 byte behind it; "" if the kind has none. FINISHED: the stop string if one ended it */
    size_t text_bytes;
    di_end_reason reason; /* FINISHED, like all that follows */
    int32_t stop_index;   /* which stop string, or -1 */
    int64_t prompt_tokens, completion_tokens, reasoning_tokens;
    int64_t cached_tokens;  /* of the prompt, not computed again */
    const di_error *error;  /* with DI_REASON_ERROR, else NULL */
    di_answer_start start;  /* STARTED */
    int32_t thinking;       /* STARTED: the answer may reason, or a reasoning stands before it in the prompt */
    di_answer_phase phase;  /* TOKEN */
    const char *call_id;    /* CALL: an unguessable name of this call, for the client to send back; else NULL */
    const char *call_space; /* CALL: the tool's namespace, "" without; `text` is "namespace::name" */
    int32_t call_custom;    /* CALL: the tool takes free text; its arguments are {"input": "..."} */
    /* FINISHED: milliseconds from submission until it was first given a place, until its first token, until its end; -1 = it never came so
     * far. */
    double queue_ms, first_token_ms, total_ms;
    /* FINISHED: why no more of the prompt was found in the cache, and from which token on (-1 with DI_MISS_REASON_NONE). What was found is
     * not always reusable: cached_tokens says how much was. */
    di_miss_reason miss;
    int64_t miss_position;
    int32_t unconstrained; /* FINISHED: non-zero: the request asks for a form of the answer that nothing enforces yet */
    /* FINISHED: rows of the prompt that bounded replay left out of the second half of the layers; non-zero: the answer is approximate for
     * that or because it goes on from something approximate. */
    int64_t skipped_rows;
    int32_t approximate;
    /* FINISHED: drafts that were verified for this answer; of them, tokens of it. Steps: completion_tokens less accepted_tokens. */
    int64_t drafted_tokens, accepted_tokens;
} di_output;

/* What a JSON request does not say. */
typedef struct di_request_defaults {
    size_t size;
    double temperature, top_p; /* NaN = by the model's rules (NaN) */
    double min_p;              /* (0) */
    int64_t top_k, seed;       /* (0) */
    int64_t max_tokens;        /* 0 = by the model's rules (0) */
    int32_t thinking;          /* chat requests: non-zero: think first (1) */
} di_request_defaults;
DI_API void di_request_defaults_init(di_request_defaults *defaults, size_t size);

/* What the caller says in place of a JSON request's own fields, which are then not looked at. */
typedef struct di_request_overrides {
    size_t size;
    /* Completion: non-zero: prompt, prompt_token_ids, suffix, echo, n and best_of are the caller's. The request is prepared without a prompt;
     * text or ids come with each submission. */
    int32_t prompts;
    int32_t logprobs;   /* non-zero: log-probabilities are reported, of no alternatives unless the request asks for some */
    int32_t no_stop;    /* completion: non-zero: no stop strings */
    int32_t ignore_eos; /* non-zero: end and stop ids do not end the answer */
    int64_t max_tokens; /* completion: of the answer; 0 = as the request says, negative: as is said with each prompt */
    const char *input;  /* [input_bytes] responses: a JSON list in place of input and previous_response_id; NULL = none */
    size_t input_bytes;
} di_request_overrides;
DI_API void di_request_overrides_init(di_request_overrides *overrides, size_t size);

/* The form that an answer is to have (docs/structured.md); nothing else can follow. */
typedef struct di_form_options {
    size_t size;
    /* "json_object", "json" (text: a JSON Schema), "regex", "choice" (text: a JSON list of strings), "ebnf", "gbnf", "lark" or "structural"
     * (text: a structural tag) */
    const char *kind;
    const char *text; /* [text_bytes] UTF-8; nothing for json_object */
    size_t text_bytes;
    int32_t compact;    /* JSON: non-zero: no white space between its tokens */
    int32_t declared;   /* JSON: non-zero: properties in the order of the schema */
    int32_t may_be_cut; /* non-zero: the answer is not brought to an end when few tokens are left */
    /* The form begins behind these ids, one after the other in the answer; before them everything may come, the end too. None: at once, in a
     * chat behind the reasoning. Once bound_id (-1 = none) has come before that, the rest of them follows at once. */
    const int32_t *trigger_ids; /* [n_trigger_ids] 256 at most */
    size_t n_trigger_ids;
    int32_t bound_id;
} di_form_options;
DI_API void di_form_options_init(di_form_options *options, size_t size);

/* A request that was read, checked, rendered and tokenized once, for several submissions. It never changes; any thread may use it. */
typedef struct di_prepared di_prepared;

typedef struct di_submission {
    size_t size;
    /* What: exactly one of text, ids, json and `prepared` below. Everything is copied; nothing needs to live after the call. */
    const char *text; /* [text_bytes] UTF-8 that the model continues: control spellings count, a begin-of-text id is put in front */
    size_t text_bytes;
    const int32_t *ids; /* [n_ids] the prompt's token ids as they are */
    size_t n_ids;
    const char *json; /* [json_bytes] a request of `protocol` as JSON text: messages, tools and sampling fields as that protocol has them */
    size_t json_bytes;
    const char *protocol;                /* "chat", "completion", "responses" or "messages"; NULL = "chat" */
    const di_sampling_options *sampling; /* NULL = defaults. With json: what the request does not say itself */
    const int32_t *forced;               /* [n_forced] the answer's tokens by index, -1 = sampled: for scoring and resuming */
    size_t n_forced;
    int32_t priority;    /* lower runs earlier and may take the place of a higher one, which waits as long as better ones keep coming (0) */
    uint64_t tenant;     /* admission is fair between tenants of one priority; they share no cached prefix (0) */
    int64_t deadline_ms; /* from now; a request that is not over by then ends with DI_REASON_DEADLINE; 0 = none */
    /* Called by the driving thread for every record, which is valid until it returns; returning 0 cancels the request. It may submit, fork,
     * cancel and poll, not step, run, stop or close. NULL: the records wait for di_engine_poll. */
    int (*on_output)(void *user, const di_output *output);
    void *user;           /* passed on, not looked at */
    int32_t report_start; /* non-zero: the first record says that the request was given a place (DI_OUTPUT_STARTED) */
    /* Several answers to one prompt: a submission for each, 0 <= sample < n_samples; those behind the first name it in `after`. Equal seeds
     * give different answers then. 0 = 1. A JSON request whose n is another number is refused. */
    int32_t sample, n_samples;
    /* An earlier request of this tenant with the same beginning, 0 = none: this one waits, overtaken by others, until that one has computed
     * what both have in common (or is over), and then finds it in the cache. No other effect; with no_reuse none at all. */
    di_request_id after;
    /* Positions, counted in tokens of the prompt, rising, 1 .. its length: what a later prompt needs to go on from there without computing
     * anything again is kept, as it is at the end of each prompt and answer. It shares the state_slots with those: used longest ago goes
     * first. */
    const int32_t *save_at; /* [n_save_at] */
    size_t n_save_at;
    int64_t fork_at;                     /* di_engine_fork alone: tokens of the parent that the branch begins with; 0 = all so far */
    const di_request_defaults *defaults; /* with json; NULL = those of di_request_defaults_init with the engine's seed */
    const char *replay; /* "exact" or "bounded"; NULL = the engine's, a branch's: its parent's. Bounded ones take no forced tokens */
    const di_request_overrides *overrides; /* with json, and max_tokens of it with the prompt of a prepared request; NULL = none */
    /* Instead of text, ids and json: what di_engine_prepare made of them, for the same tenant and n_samples. With text or ids: its fields
     * with this prompt, if it takes one. */
    di_prepared *prepared;
    /* With json of chat or completion: non-zero: a field that means nothing in such a request is DI_ERR_INVALID; else it is ignored. */
    int32_t strict;
    const di_form_options *form; /* of the answer; NULL = as the JSON request says, if it does. Not with prepared */
} di_submission;
DI_API void di_submission_init(di_submission *submission, size_t size);

/* Queue a request; *id (may be NULL) is set before its first record can appear. Refused at once, with the reason: DI_ERR_INVALID (the field
 * is in `where`), _LIMIT (it can never fit into the context or the cache), _UNSUPPORTED, _FORMAT (the JSON), _MEMORY, _CANCELLED (a
 * callback of di_engine_close asks). Any thread. */
DI_API di_status di_engine_submit(di_engine *engine, const di_submission *submission, di_request_id *id, di_error *err);
/* Read what the submission says with text, ids or json, its protocol, sampling, defaults, overrides, tenant and n_samples, so that several
 * answers, or the prompts of one request, need it done once. Errors as for di_engine_submit, but whether it fits into the context is looked
 * at there. *out (NULL on error) is freed with di_prepared_free. Any thread. */
DI_API di_status di_engine_prepare(di_engine *engine, const di_submission *submission, di_prepared **out, di_error *err);
/* Submissions that were made of it do not need it any more. NULL does nothing. Any thread, before di_engine_close. */
DI_API void di_prepared_free(di_prepared *prepared);
/* The ids of its prompt, *n of them, as long as it lives. */
DI_API const int32_t *di_prepared_prompt(const di_prepared *prepared, size_t *n);
/* Bytes of memory that it takes until it is freed and the last answer made of it is over; of one that has another's fields those of its
 * prompt alone. Any thread. */
DI_API size_t di_prepared_bytes(const di_prepared *prepared);
/* The ids of the prompt that a submission would run, without running it; `capacity` and *n as for di_engine_encode. Errors as for
 * di_engine_submit, but a prompt may be longer than the context. Any thread. */
DI_API di_status di_engine_prompt(const di_engine *engine, const di_submission *submission, int32_t *ids, size_t capacity, size_t *n,
                                  di_error *err);
/* A branch of a live request: it begins with the tokens that the parent has when the driver gets to it (or the first fork_at of them,
 * prompt and answer) and goes on by itself; the parent goes on too. What the parent has computed is shared: of tokens up to its present end
 * one at most is computed again, of a branch further back what no kept state covers (save_at; the ends of prompts are kept). A chat answer
 * goes on where it stands, inside its reasoning, text or call; records tell what is new, places of calls go on counting, and the parent's
 * tokens count as prompt. In the submission: no text, ids, json, after, save_at and defaults; the tenant is the parent's. `sampling` NULL:
 * the parent's, with what it has left of its max_tokens; then sample 0 continues as the parent does, bit for bit. Penalties and min_tokens
 * count what the branch itself says. Refused at once: DI_ERR_NOT_FOUND (no such request any more) and as di_engine_submit; what depends on
 * where the parent is then (it has ended, fork_at lies ahead of it or within the prompt of a chat request, a stop string of the branch
 * stands before it, the context is too short) is in the FINISHED record. Any thread. */
DI_API di_status di_engine_fork(di_engine *engine, di_request_id parent, const di_submission *submission, di_request_id *id, di_error *err);
/* Ask a request to end, in whatever state it is; its FINISHED record follows unless it ended by itself before. Returns 0 if there is no
 * such request (any more), else 1. Any thread. */
DI_API int di_engine_cancel(di_engine *engine, di_request_id id);

/* ---- driving ---- */

/* Launch step N and deliver the results of step N-1, which computed meanwhile. *busy (may be NULL) becomes 0 when nothing is running,
 * waiting or under way. An error here is the model's (DI_ERR_IO: one of its files changed since it was opened; it can only be opened again)
 * and has ended all requests; an error of one request is in its FINISHED record. DI_ERR_INVALID if another thread is driving or the call
 * comes from a callback. */
DI_API di_status di_engine_step(di_engine *engine, int *busy, di_error *err);
/* Wait for the step under way and deliver its results, launch nothing. */
DI_API di_status di_engine_flush(di_engine *engine, di_error *err);
/* Step until nothing is left. */
DI_API di_status di_engine_run(di_engine *engine, di_error *err);
/* Let a thread of the engine drive: it steps while there is work and sleeps otherwise. Until di_engine_stop step, flush and run are
 * refused. The thread outlives errors of a step: those are in the FINISHED records. DI_ERR_INVALID if it is running; DI_ERR_LIMIT if the
 * system grants no thread. */
DI_API di_status di_engine_start(di_engine *engine, di_error *err);
/* End that thread after its present step; requests stay where they are. Without one it does nothing. Not from a callback. */
DI_API void di_engine_stop(di_engine *engine);

/* The oldest unread record of all requests without a callback, or NULL if none comes within `timeout_ms` (0: do not wait, negative: wait
 * for ever; waiting makes sense while another thread drives, and ends early with NULL when the driver thread is stopped).
 * The caller returns it with di_output_free. Any thread. */
DI_API const di_output *di_engine_poll(di_engine *engine, int64_t timeout_ms);
/* NULL does nothing. Any thread, before di_engine_close. */
DI_API void di_output_free(di_engine *engine, const di_output *output);

/* ---- statistics ---- */

#define DI_DRAFT_PLACES 5
typedef struct di_engine_stats {
    uint64_t steps, prompt_rows, decode_rows;
    uint64_t wasted_rows; /* launched for a request that had ended */
    uint64_t submitted, refused, finished, cancelled, failed, preempted;
    uint64_t host_ns, compute_ns, gap_ns; /* of the driver without waiting; of the model; of an idle model between two steps under way */
    int32_t running, waiting;
    int32_t free_blocks, blocks; /* free: not held by a request, what it holds may still be reused */
    int64_t unread;              /* records that wait for di_engine_poll */
    /* Reuse: prompts looked up, their tokens, those not computed again; why lookups ended before the prompt did; blocks that made room,
     * snapshots. */
    uint64_t lookups, lookup_tokens, cached_tokens;
    uint64_t miss_never_seen, miss_evicted, miss_diverged, miss_bounded;
    uint64_t evicted_blocks, states_saved, states_restored;
    uint64_t prompt_tokens, generated_tokens; /* of prompts that are done, cached ones included; of answers */
    /* FINISHED records by reason. */
    uint64_t ended_stop, ended_length, ended_tool_calls, ended_cancelled, ended_deadline, ended_error;
    uint64_t miss_other_tenant; /* of miss_never_seen: another tenant has it. For the operator only: it tells what others ask */
    int32_t held_slots;         /* of `running`: requests that have ended, but are named by a step under way */
    uint64_t bounded_starts,
        skipped_rows; /* bounded replay: approximate starts of requests; prompt rows that half of the layers left out */
    /* Earlier turns in prompts (turn_memory): replayed token by token; known, but changed by the client, so rendered; tokens kept, in
     * bytes. */
    uint64_t turns_replayed, turns_changed, turn_bytes;
    /* Non-zero: the latest step failed as a whole. A model whose files changed while it is open fails in every step. */
    int32_t failing;
    /* Drafts: steps of answers (several in a step of the engine count one by one); drafts that were verified; of them, tokens of answers; both
     * by place in the block. Tokens a step: 1 + accepted_tokens / draft_steps. */
    uint64_t draft_steps, drafted_tokens, accepted_tokens;
    uint64_t drafted_at[DI_DRAFT_PLACES], accepted_at[DI_DRAFT_PLACES];
} di_engine_stats;
/* As of the end of the latest step. Any thread. `size` is sizeof(di_engine_stats). */
DI_API di_status di_engine_get_stats(di_engine *engine, di_engine_stats *out, size_t size, di_error *err);

/* Distributions since the engine was opened. Times are in seconds, from submission on; those of whole requests count the requests that
 * ended by themselves (stop, length, tool calls). Ids count up from 0 without a gap; later versions append. */
typedef enum di_histogram_id {
    DI_HISTOGRAM_QUEUE_TIME = 0,   /* until a request was first given a place */
    DI_HISTOGRAM_FIRST_TOKEN_TIME, /* until its first token */
    DI_HISTOGRAM_INTER_TOKEN_TIME, /* between two tokens of a request */
    DI_HISTOGRAM_TOTAL_TIME,       /* whole requests, like the next three: until the end */
    DI_HISTOGRAM_INFERENCE_TIME,   /* from its place to the end; waiting after a preemption is inside */
    DI_HISTOGRAM_PREFILL_TIME,     /* from its place to the first token */
    DI_HISTOGRAM_DECODE_TIME,      /* from the first token to the last */
    DI_HISTOGRAM_PROMPT_TOKENS,    /* whole requests, like the next three */
    DI_HISTOGRAM_GENERATION_TOKENS,
    DI_HISTOGRAM_CACHED_TOKENS,  /* of the prompt, not computed again */
    DI_HISTOGRAM_MAX_TOKENS,     /* asked, or what the rules made of it */
    DI_HISTOGRAM_DIVERGED_AT,    /* position of DI_MISS_REASON_DIVERGED */
    DI_HISTOGRAM_STEP_ROWS,      /* prompt and decode rows of a step */
    DI_HISTOGRAM_STEP_TIME,      /* computation of a step, sampling included */
    DI_HISTOGRAM_STEP_HOST_TIME, /* work of the driver for a step, callbacks included, waiting not */
    DI_HISTOGRAM_STEP_GAP_TIME   /* idle model between two steps that follow each other */
} di_histogram_id;

#define DI_HISTOGRAM_EDGES_MAX 47
typedef struct di_histogram {
    const char *name; /* as a metrics page calls it, the unit in it: "time_to_first_token_seconds". Lives for ever, like help */
    const char *help; /* one sentence */
    uint64_t count;
    double sum;
    int32_t n_edges;
    double edges[DI_HISTOGRAM_EDGES_MAX];         /* [n_edges] rising; the same in every call */
    uint64_t buckets[DI_HISTOGRAM_EDGES_MAX + 1]; /* [n_edges + 1] above the edge before and not above this one; the last: above all */
} di_histogram;
/* As of the end of the latest step. DI_ERR_NOT_FOUND: this library has no such histogram. Any thread. `size` is sizeof(di_histogram). */
DI_API di_status di_engine_get_histogram(di_engine *engine, di_histogram_id which, di_histogram *out, size_t size, di_error *err);
/* The value below which `share` (0..1) of the values lie, by straight lines within the buckets; 0 if it is empty, the last edge if it lies
 * above. */
DI_API double di_histogram_quantile(const di_histogram *histogram, double share);

#ifdef __cplusplus
}
#endif
#endif
