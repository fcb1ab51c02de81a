#include "client/answer.h"

#include "base/json.h"
#include "base/utf8.h"

#include <math.h>

/* ---------------------------------------------------------------- records */

static bool add_call(struct di_answer *a, const di_output *o)
{
    if (a->n_calls == a->cap_calls) {
        size_t cap = a->cap_calls ? 2 * a->cap_calls : 4;
        struct di_answer_call *calls = di_realloc(a->calls, cap * sizeof *calls);
        if (!calls)
            return false;
        a->calls = calls;
        a->cap_calls = cap;
    }
    struct di_answer_call *c = &a->calls[a->n_calls++];
    memset(c, 0, sizeof *c);
    struct di_str name = {o->text, o->text_bytes}, space = di_str_c(o->call_space);
    if (space.n && di_str_starts(name, space) && di_str_find(name, DI_STR("::"), space.n) == space.n) { /* "namespace::name" */
        name.p += space.n + 2;
        name.n -= space.n + 2;
    }
    c->custom = o->call_custom != 0;
    di_buf_addv(&c->space, space);
    di_buf_addv(&c->name, name);
    di_buf_adds(&c->id, o->call_id ? o->call_id : "");
    return !c->space.failed && !c->name.failed && !c->id.failed;
}

static bool keep_id(struct di_answer *a, int32_t id)
{
    if (a->n_ids == a->cap_ids) {
        size_t cap = a->cap_ids ? 2 * a->cap_ids : 64;
        int32_t *ids = di_realloc(a->ids, cap * sizeof *ids);
        if (!ids)
            return false;
        a->ids = ids;
        a->cap_ids = cap;
    }
    a->ids[a->n_ids++] = id;
    return true;
}

static bool add_token(struct di_answer *a, const di_output *o)
{
    bool reasoning = o->phase == DI_PHASE_OF_REASONING;
    struct di_logprob_list *l = reasoning ? &a->reasoning_tokens : &a->content_tokens;
    a->completion_tokens++;
    a->n_reasoning += reasoning;
    if (a->keep & DI_ANSWER_IDS && !keep_id(a, o->token))
        return false;
    if (isnan(o->logprob)) /* not asked for */
        return true;
    a->logprob_sum += (double)o->logprob;
    if (a->keep & (reasoning ? DI_ANSWER_REASONING_LOGPROBS : DI_ANSWER_LOGPROBS)) {
        if (l->n++)
            di_buf_addc(&l->entries, ',');
        di_write_logprob(&l->entries, a->engine, o);
    }
    return !l->entries.failed;
}

static bool add_finish(struct di_answer *a, const di_output *o)
{
    a->finished = true;
    a->reason = o->reason;
    a->stop_index = o->stop_index;
    di_buf_add(&a->stop, o->text, o->text_bytes);
    a->last_token = o->token;
    a->prompt_tokens = o->prompt_tokens;
    a->cached_tokens = o->cached_tokens;
    a->completion_tokens = o->completion_tokens;
    a->n_reasoning = o->reasoning_tokens;
    a->unconstrained = o->unconstrained != 0;
    a->approximate = o->approximate != 0;
    a->skipped_rows = o->skipped_rows;
    a->drafted_tokens = o->drafted_tokens;
    a->accepted_tokens = o->accepted_tokens;
    if (o->error)
        a->err = *o->error;
    return !a->stop.failed;
}

static bool add_text(struct di_buf *b, const di_output *o)
{
    di_buf_add(b, o->text, o->text_bytes);
    return !b->failed;
}

bool di_answer_add(struct di_answer *a, const di_output *o)
{
    switch (o->kind) {
    case DI_OUTPUT_STARTED:
        a->start = o->start;
        a->thinking = o->thinking != 0;
        a->prompt_tokens = o->prompt_tokens;
        a->cached_tokens = o->cached_tokens;
        return true;
    case DI_OUTPUT_TOKEN: return add_token(a, o);
    case DI_OUTPUT_TEXT: return add_text(&a->content, o);
    case DI_OUTPUT_REASONING: return add_text(&a->reasoning, o);
    case DI_OUTPUT_RECOVERED: /* what was reasoning is the content */
        di_buf_addv(&a->content, di_buf_str(&a->reasoning));
        di_buf_clear(&a->reasoning);
        return !a->content.failed;
    case DI_OUTPUT_CALL: return add_call(a, o);
    case DI_OUTPUT_ARGUMENTS: return !a->n_calls || add_text(&a->calls[a->n_calls - 1].arguments, o);
    case DI_OUTPUT_FINISHED: return add_finish(a, o);
    }
    return true;
}

int di_answer_take(void *user, const di_output *o)
{
    struct di_answer *a = user;
    bool whole = di_answer_add(a, o);
    if (!whole && a->err.code == DI_OK)
        di_fail(&a->err, DI_ERR_MEMORY, "", "out of memory while collecting the answer");
    return whole;
}

void di_answer_fini(struct di_answer *a)
{
    di_buf_fini(&a->reasoning);
    di_buf_fini(&a->content);
    di_buf_fini(&a->stop);
    di_buf_fini(&a->content_tokens.entries);
    di_buf_fini(&a->reasoning_tokens.entries);
    for (size_t i = 0; i < a->n_calls; i++) {
        di_buf_fini(&a->calls[i].name);
        di_buf_fini(&a->calls[i].arguments);
        di_buf_fini(&a->calls[i].id);
        di_buf_fini(&a->calls[i].space);
    }
    di_free(a->calls);
    di_free(a->ids);
    *a = (struct di_answer){0};
}

/* ---------------------------------------------------------------- tokens as JSON */

void di_write_token(struct di_buf *b, const di_engine *engine, int32_t id, struct di_str *bytes, char room[static 256])
{
    size_t n = 0;
    if (!engine || di_engine_token_bytes(engine, id, room, 256, &n, NULL) != DI_OK)
        n = 0;
    *bytes = (struct di_str){room, n < 256 ? n : 256}; /* no vocabulary has longer ones */
    if (di_utf8_valid(*bytes, NULL)) {
        di_json_write_string(b, *bytes);
        return;
    }
    di_buf_addc(b, '"');
    for (size_t i = 0; i < bytes->n; i++)
        di_buf_addf(b, "\\\\x%02x", (unsigned char)bytes->p[i]);
    di_buf_addc(b, '"');
}

/* What has no chance at all: JSON has no infinity, and clients know this number. */
#define IMPOSSIBLE (-9999.0)

void di_write_chance(struct di_buf *b, float logprob)
{
    di_json_write_double(b, isfinite(logprob) ? (double)logprob : IMPOSSIBLE);
}

static void write_token_and_bytes(struct di_buf *b, const di_engine *engine, int32_t id, float logprob)
{
    char room[256];
    struct di_str bytes;
    di_buf_adds(b, "{\"token\":");
    di_write_token(b, engine, id, &bytes, room);
    di_buf_adds(b, ",\"logprob\":");
    di_write_chance(b, logprob);
    di_buf_adds(b, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.n; i++)
        di_buf_addf(b, "%s%d", i ? "," : "", (unsigned char)bytes.p[i]);
    di_buf_addc(b, ']');
}

void di_write_logprob(struct di_buf *b, const di_engine *engine, const di_output *o)
{
    write_token_and_bytes(b, engine, o->token, o->logprob);
    di_buf_adds(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < o->n_alternatives; i++) {
        if (i)
            di_buf_addc(b, ',');
        write_token_and_bytes(b, engine, o->alternatives[i].id, o->alternatives[i].logprob);
        di_buf_addc(b, '}');
    }
    di_buf_adds(b, "]}");
}
