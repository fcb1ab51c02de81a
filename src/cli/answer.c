#include "cli/answer.h"

#include <stdio.h>

static void add_key(struct di_buf *b, const char *key)
{
    di_buf_adds(b, b->n && b->p[b->n - 1] != '{' ? ", \"" : "\"");
    di_buf_adds(b, key);
    di_buf_adds(b, "\": ");
}

static void add_text(struct di_buf *b, const char *key, const struct di_buf *text)
{
    add_key(b, key);
    di_json_write_string(b, di_buf_str(text));
}

/* Ids of calls are plain numbers here: an offline result must be the same bytes every time. */
static void add_calls(struct di_buf *b, const struct di_message *m)
{
    add_key(b, "tool_calls");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < m->n_calls; i++) {
        di_buf_addf(b, "%s{\"id\": \"call_%02zu\", \"type\": \"function\", \"function\": {", i ? ", " : "", i);
        add_text(b, "name", &m->calls[i].name);
        add_text(b, "arguments", &m->calls[i].arguments);
        di_buf_adds(b, "}}");
    }
    di_buf_addc(b, ']');
}

static void add_usage(struct di_buf *b, const struct di_completion *c)
{
    const struct {
        const char *key;
        int64_t value;
    } usage[] = {{"prompt_tokens", (int64_t)c->prompt.n},
                 {"cached_tokens", c->cached_tokens},
                 {"completion_tokens", (int64_t)c->ids.n},
                 {"reasoning_tokens", c->reasoning_tokens},
                 {"drafted_tokens", 0},
                 {"accepted_tokens", 0}};
    add_key(b, "usage");
    di_buf_addc(b, '{');
    for (size_t i = 0; i < sizeof usage / sizeof *usage; i++) {
        add_key(b, usage[i].key);
        di_buf_addf(b, "%lld", (long long)usage[i].value);
    }
    di_buf_addc(b, '}');
}

void di_answer_write(struct di_buf *b, const struct di_json *id, const struct di_completion *c)
{
    di_buf_addc(b, '{');
    add_key(b, "id");
    if (id)
        di_json_write_compact(b, id);
    else
        di_buf_adds(b, "null");
    add_text(b, "text", &c->message.content);
    add_text(b, "reasoning", &c->message.reasoning);
    add_calls(b, &c->message);
    add_key(b, "token_ids");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < c->ids.n; i++)
        di_buf_addf(b, "%s%d", i ? ", " : "", c->ids.v[i]);
    di_buf_addc(b, ']');
    add_key(b, "finish_reason");
    di_json_write_string(b, di_str_c(di_finish_name(c->message.finish)));
    if (c->message.stop_index != SIZE_MAX && c->message.finish == DI_FINISH_STOP_STRING) {
        add_key(b, "stop_reason");
        di_json_write_string(b, c->chat->sampling.stop[c->message.stop_index]);
    }
    if (c->sampling.logprobs) {
        add_key(b, "logprobs");
        di_buf_adds(b, "{\"content\": [");
        di_buf_addv(b, di_buf_str(&c->logprobs[0]));
        di_buf_adds(b, "], \"reasoning_content\": [");
        di_buf_addv(b, di_buf_str(&c->logprobs[1]));
        di_buf_adds(b, "]}");
    }
    if (di_completion_unconstrained(c)) {
        add_key(b, "constrained");
        di_buf_adds(b, "false");
    }
    add_usage(b, c);
    di_buf_addc(b, '}');
}

void di_answer_write_text(struct di_buf *b, const struct di_completion *c)
{
    const struct di_message *m = &c->message;
    if (m->reasoning.n) {
        di_buf_adds(b, "<think>");
        di_buf_addv(b, di_buf_str(&m->reasoning));
        di_buf_adds(b, "</think>\n");
    }
    di_buf_addv(b, di_buf_str(&m->content));
    for (size_t i = 0; i < m->n_calls; i++) {
        di_buf_adds(b, b->n ? "\n" : "");
        di_buf_addv(b, di_buf_str(&m->calls[i].name));
        di_buf_addc(b, '(');
        di_buf_addv(b, di_buf_str(&m->calls[i].arguments));
        di_buf_addc(b, ')');
    }
    di_buf_addc(b, '\n');
}

void di_answer_count(struct di_answer_totals *t, const struct di_completion *c)
{
    if (!c)
        return;
    t->prompt_tokens += c->prompt.n;
    t->completion_tokens += c->ids.n;
}

uint64_t di_answer_live_tokens(const struct di_answer_totals *t, const struct di_core *e)
{
    struct di_core_stats s = di_core_stats(e);
    uint64_t sampled = s.decode_rows + s.finished;
    return sampled > t->completion_tokens ? sampled : t->completion_tokens;
}

void di_answer_write_stats(struct di_buf *b, const struct di_core_stats *s)
{
    static const char *const misses[DI_MISS_REASONS] = {"none", "never_seen", "evicted", "diverged", "bounded"};
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"steps", s->steps},
                   {"prompt_rows", s->prompt_rows},
                   {"decode_rows", s->decode_rows},
                   {"wasted_rows", s->wasted_rows},
                   {"finished", s->finished},
                   {"cancelled", s->cancelled},
                   {"failed", s->failed},
                   {"preempted", s->preempted},
                   {"lookups", s->lookups},
                   {"lookup_tokens", s->lookup_tokens},
                   {"cached_tokens", s->cached_tokens},
                   {"blocks", (uint64_t)s->blocks},
                   {"free_blocks", (uint64_t)s->free_blocks},
                   {"evicted_blocks", s->evicted},
                   {"states_saved", s->states_saved},
                   {"states_restored", s->states_restored},
                   {"compute_us", s->compute_ns / 1000},
                   {"gap_us", s->gap_ns / 1000},
                   {"host_us", s->host_ns / 1000}};
    di_buf_addc(b, '{');
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        add_key(b, numbers[i].key);
        di_buf_addf(b, "%llu", (unsigned long long)numbers[i].value);
    }
    add_key(b, "misses");
    di_buf_addc(b, '{');
    for (int i = 0; i < DI_MISS_REASONS; i++) {
        add_key(b, misses[i]);
        di_buf_addf(b, "%llu", (unsigned long long)s->miss[i]);
    }
    di_buf_adds(b, "}}");
}

void di_str_set_fini(struct di_str_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        di_free(s->names[i]);
    di_free(s->names);
    *s = (struct di_str_set){0};
}

static bool set_add(struct di_str_set *s, struct di_str name)
{
    for (size_t i = 0; i < s->n; i++)
        if (di_str_eqc(name, s->names[i]))
            return false;
    char **grown = di_realloc(s->names, (s->n + 1) * sizeof *grown);
    if (!grown)
        return false;
    s->names = grown;
    char *copy = di_malloc(name.n + 1);
    if (!copy)
        return false;
    memcpy(copy, name.p, name.n);
    copy[name.n] = 0;
    s->names[s->n++] = copy;
    return true;
}

/* Fields that requests may have: those that the chat encoding reads, and those that clients send and everybody may ignore
 * (spec/encoding.md §4.2). */
static const char *const known[] = {
    "id",
    "messages",
    "prompt",
    "prompt_token_ids",
    "model",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "thinking",
    "reasoning_effort",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "best_of",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "stream",
    "stream_options",
    "include_reasoning",
    "thinking_token_budget",
    "truncate_prompt_tokens",
    "priority",
    "echo",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "user",
    "metadata",
    "store",
    "service_tier",
    "request_id",
    "cache_salt",
    "prompt_cache_key",
    "session_id",
    "reasoning_history",
};

void di_answer_warn_unknown(struct di_str_set *warned, const struct di_json *request, int64_t line, bool quiet)
{
    for (const struct di_json *m = request->child; m && !quiet && warned->n < 20; m = m->next) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++)
            found = di_str_eqc(m->key, known[i]);
        if (!found && set_add(warned, m->key))
            fprintf(stderr, "deepinfer generate: line %lld: the unknown field \"%.*s\" is ignored\n", (long long)line,
                    (int)(m->key.n > 60 ? 60 : m->key.n), m->key.p);
    }
}
