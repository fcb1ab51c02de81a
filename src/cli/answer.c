#include "cli/answer.h"

#include "base/utf8.h"
#include "text/chat.h"

#include <math.h>
#include <stdio.h>

/* ---------------------------------------------------------------- gathering */

/* Text of a token; bytes that are no whole characters are shown as \xNN (spec/encoding.md §1.5). */
static void add_token_text(struct di_buf *b, struct di_str bytes)
{
    if (di_utf8_valid(bytes, NULL)) {
        di_json_write_string(b, bytes);
        return;
    }
    struct di_buf shown = {0};
    for (size_t i = 0; i < bytes.n; i++)
        di_buf_addf(&shown, "\\x%02x", (unsigned char)bytes.p[i]);
    di_json_write_string(b, di_buf_str(&shown));
    di_buf_fini(&shown);
}

static void add_logprob(struct di_buf *b, const di_engine *engine, int32_t id, float logprob)
{
    char bytes[1024]; /* of one token; a longer one is shown cut */
    size_t n = 0;
    di_engine_token_bytes(engine, id, bytes, sizeof bytes, &n, NULL);
    n = n < sizeof bytes ? n : sizeof bytes;
    di_buf_adds(b, "{\"token\":");
    add_token_text(b, (struct di_str){bytes, n});
    di_buf_adds(b, ",\"logprob\":");
    di_json_write_double(b, (double)logprob);
    di_buf_adds(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        di_buf_addf(b, "%s%d", i ? "," : "", (unsigned char)bytes[i]);
    di_buf_addc(b, ']');
}

static void keep_logprobs(struct di_answer *a, const di_output *out)
{
    struct di_buf *b = &a->logprobs[out->phase == DI_PHASE_OF_REASONING];
    a->has_logprobs = true;
    if (b->n)
        di_buf_addc(b, ',');
    add_logprob(b, a->engine, out->token, out->logprob);
    di_buf_adds(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < out->n_alternatives; i++) {
        if (i)
            di_buf_addc(b, ',');
        add_logprob(b, a->engine, out->alternatives[i].id, out->alternatives[i].logprob);
        di_buf_addc(b, '}');
    }
    di_buf_adds(b, "]}");
}

static void take_token(struct di_answer *a, const di_output *out)
{
    if (!di_ids_reserve(&a->ids, 1)) {
        a->message.failed = true;
        return;
    }
    a->ids.v[a->ids.n++] = out->token;
    if (!isnan(out->logprob))
        keep_logprobs(a, out);
}

static void take_end(struct di_answer *a, const di_output *out)
{
    a->done = true;
    a->reason = out->reason;
    a->prompt_tokens = out->prompt_tokens;
    a->cached_tokens = out->cached_tokens;
    a->reasoning_tokens = out->reasoning_tokens;
    a->unconstrained = out->unconstrained;
    a->approximate = out->approximate;
    a->skipped_rows = out->skipped_rows;
    a->has_stop = out->stop_index >= 0;
    di_buf_add(&a->stop, out->text, out->text_bytes);
    if (out->error)
        a->err = *out->error;
    else if (di_message_ok(&a->message, &a->err) == DI_OK && a->stop.failed)
        di_buf_ok(&a->stop, &a->err);
}

int di_answer_take(void *user, const di_output *out)
{
    static const enum di_parse_event_kind kinds[] = {[DI_OUTPUT_TEXT] = DI_EVENT_CONTENT,
                                                     [DI_OUTPUT_REASONING] = DI_EVENT_REASONING,
                                                     [DI_OUTPUT_CALL] = DI_EVENT_CALL,
                                                     [DI_OUTPUT_ARGUMENTS] = DI_EVENT_ARGUMENTS,
                                                     [DI_OUTPUT_RECOVERED] = DI_EVENT_RECOVER};
    struct di_answer *a = user;
    if (out->kind == DI_OUTPUT_TOKEN)
        take_token(a, out);
    else if (out->kind == DI_OUTPUT_FINISHED)
        take_end(a, out);
    else if (out->kind < sizeof kinds / sizeof *kinds)
        di_message_add(&a->message, &(struct di_parse_event){
                                        .kind = kinds[out->kind], .index = (uint32_t)out->index, .text = {out->text, out->text_bytes}});
    return !a->message.failed;
}

void di_answer_fini(struct di_answer *a)
{
    di_message_fini(&a->message);
    di_ids_fini(&a->ids);
    di_buf_fini(&a->logprobs[0]);
    di_buf_fini(&a->logprobs[1]);
    di_buf_fini(&a->stop);
    *a = (struct di_answer){0};
}

/* ---------------------------------------------------------------- writing */

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

static void add_usage(struct di_buf *b, const struct di_answer *a)
{
    const struct {
        const char *key;
        int64_t value;
    } usage[] = {{"prompt_tokens", a->prompt_tokens},
                 {"cached_tokens", a->cached_tokens},
                 {"completion_tokens", (int64_t)a->ids.n},
                 {"reasoning_tokens", a->reasoning_tokens},
                 {"drafted_tokens", 0},
                 {"accepted_tokens", 0},
                 {"skipped_rows", a->skipped_rows}};
    size_t n = sizeof usage / sizeof *usage - (a->skipped_rows == 0); /* bounded replay alone has them */
    add_key(b, "usage");
    di_buf_addc(b, '{');
    for (size_t i = 0; i < n; i++) {
        add_key(b, usage[i].key);
        di_buf_addf(b, "%lld", (long long)usage[i].value);
    }
    di_buf_addc(b, '}');
}

void di_answer_write(struct di_buf *b, const struct di_json *id, const struct di_answer *a, const char *fingerprint)
{
    di_buf_addc(b, '{');
    add_key(b, "id");
    if (id)
        di_json_write_compact(b, id);
    else
        di_buf_adds(b, "null");
    add_text(b, "text", &a->message.content);
    add_text(b, "reasoning", &a->message.reasoning);
    add_calls(b, &a->message);
    add_key(b, "token_ids");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < a->ids.n; i++)
        di_buf_addf(b, "%s%d", i ? ", " : "", a->ids.v[i]);
    di_buf_addc(b, ']');
    add_key(b, "finish_reason");
    di_json_write_string(b, di_str_c(di_end_reason_name(a->reason)));
    if (a->has_stop)
        add_text(b, "stop_reason", &a->stop);
    if (a->has_logprobs) {
        add_key(b, "logprobs");
        di_buf_adds(b, "{\"content\": [");
        di_buf_addv(b, di_buf_str(&a->logprobs[0]));
        di_buf_adds(b, "], \"reasoning_content\": [");
        di_buf_addv(b, di_buf_str(&a->logprobs[1]));
        di_buf_adds(b, "]}");
    }
    if (a->approximate) {
        add_key(b, "approximate");
        di_buf_adds(b, "true");
    }
    if (a->unconstrained) {
        add_key(b, "constrained");
        di_buf_adds(b, "false");
    }
    add_usage(b, a);
    add_key(b, "fingerprint");
    di_json_write_string(b, di_str_c(fingerprint));
    di_buf_addc(b, '}');
    b->failed = b->failed || a->logprobs[0].failed || a->logprobs[1].failed;
}

void di_answer_write_text(struct di_buf *b, const struct di_answer *a)
{
    const struct di_message *m = &a->message;
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

void di_answer_warn(struct di_str_set *warned, const struct di_json *request, bool raw, int64_t line)
{
    enum di_protocol protocol = raw ? DI_PROTOCOL_COMPLETION : DI_PROTOCOL_CHAT, other = raw ? DI_PROTOCOL_CHAT : DI_PROTOCOL_COMPLETION;
    for (const struct di_json *m = request->child; m && warned->n < 20; m = m->next) {
        if (di_str_eqc(m->key, "id") || di_chat_has_field(protocol, m->key) || !set_add(warned, m->key))
            continue;
        int n = (int)(m->key.n > 60 ? 60 : m->key.n);
        if (di_chat_has_field(other, m->key))
            fprintf(stderr, "deepinfer generate: line %lld: the field \"%.*s\" means nothing beside %s and is ignored\n", (long long)line,
                    n, m->key.p, raw ? "a raw prompt" : "messages");
        else
            fprintf(stderr, "deepinfer generate: line %lld: the unknown field \"%.*s\" is ignored\n", (long long)line, n, m->key.p);
    }
}
