#include "cli/answer.h"

#include "text/chat.h"

#include <stdio.h>

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
static void add_calls(struct di_buf *b, const struct di_answer *a)
{
    add_key(b, "tool_calls");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < a->n_calls; i++) {
        di_buf_addf(b, "%s{\"id\": \"call_%02zu\", \"type\": \"function\", \"function\": {", i ? ", " : "", i);
        add_text(b, "name", &a->calls[i].name);
        add_text(b, "arguments", &a->calls[i].arguments);
        di_buf_adds(b, "}}");
    }
    di_buf_addc(b, ']');
}

static void add_usage(struct di_buf *b, const struct di_answer *a)
{
    const struct {
        const char *key;
        int64_t value;
    } usage[] = {{"prompt_tokens", a->prompt_tokens},  {"cached_tokens", a->cached_tokens},   {"completion_tokens", (int64_t)a->n_ids},
                 {"reasoning_tokens", a->n_reasoning}, {"drafted_tokens", a->drafted_tokens}, {"accepted_tokens", a->accepted_tokens},
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
    add_text(b, "text", &a->content);
    add_text(b, "reasoning", &a->reasoning);
    add_calls(b, a);
    add_key(b, "token_ids");
    di_buf_addc(b, '[');
    for (size_t i = 0; i < a->n_ids; i++)
        di_buf_addf(b, "%s%d", i ? ", " : "", a->ids[i]);
    di_buf_addc(b, ']');
    add_key(b, "finish_reason");
    di_json_write_string(b, di_str_c(di_end_reason_name(a->reason)));
    if (a->stop_index >= 0)
        add_text(b, "stop_reason", &a->stop);
    if (a->content_tokens.n || a->reasoning_tokens.n) {
        add_key(b, "logprobs");
        di_buf_adds(b, "{\"content\": [");
        di_buf_addv(b, di_buf_str(&a->content_tokens.entries));
        di_buf_adds(b, "], \"reasoning_content\": [");
        di_buf_addv(b, di_buf_str(&a->reasoning_tokens.entries));
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
}

void di_answer_write_text(struct di_buf *b, const struct di_answer *a)
{
    if (a->reasoning.n) {
        di_buf_adds(b, "<think>");
        di_buf_addv(b, di_buf_str(&a->reasoning));
        di_buf_adds(b, "</think>\n");
    }
    di_buf_addv(b, di_buf_str(&a->content));
    for (size_t i = 0; i < a->n_calls; i++) {
        di_buf_adds(b, b->n ? "\n" : "");
        di_buf_addv(b, di_buf_str(&a->calls[i].name));
        di_buf_addc(b, '(');
        di_buf_addv(b, di_buf_str(&a->calls[i].arguments));
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
