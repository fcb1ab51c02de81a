/* Public API: what happens to a request becomes records. Submissions: submit.c. */
#include "api/engine.h"

#include "base/clock.h"

#include <math.h>

/* ---------------------------------------------------------------- records */

#define SPARE_RECORDS 1024
#define SPARE_TEXT 4096

void di_record_destroy(struct di_record *r)
{
    if (!r)
        return;
    di_buf_fini(&r->text);
    di_free(r->error);
    di_free(r);
}

/* The driver takes all spare records at once: a lock for each would cost as much as the record. */
static struct di_record *take_spare(di_engine *e)
{
    if (!e->own_spare) {
        pthread_mutex_lock(&e->lock);
        e->own_spare = e->spare;
        e->spare = NULL;
        e->n_spare = 0;
        pthread_mutex_unlock(&e->lock);
    }
    struct di_record *rec = e->own_spare;
    if (rec)
        e->own_spare = rec->next;
    return rec;
}

/* A record to fill: the scratch one of callbacks, or one for the outbox. NULL when memory ran out or too many are unread; the request then
 * ends as an error. */
static struct di_record *record_begin(struct di_api_request *r)
{
    di_engine *e = r->engine;
    struct di_record *rec = &e->scratch;
    if (r->lost || r->unread)
        return NULL;
    if (!r->on_output) {
        r->unread = r->n_made - r->n_read >= e->max_unread;
        rec = r->unread ? NULL : take_spare(e);
        if (!rec && !r->unread)
            rec = di_calloc(1, sizeof *rec);
    }
    if (!rec) {
        r->lost = !r->unread;
        di_engine_cancel(e, r->id);
    }
    return rec;
}

static void record_prepare(struct di_record *rec, const struct di_api_request *r, di_output_kind kind)
{
    di_buf_clear(&rec->text);
    rec->next = NULL;
    rec->self = rec;
    rec->out = (di_output){.request = r->id, .user = r->user, .kind = kind, .token = -1, .logprob = NAN, .text = "", .stop_index = -1};
}

static void record_deliver(struct di_api_request *r, struct di_record *rec)
{
    di_engine *e = r->engine;
    if (rec->text.n) {
        rec->out.text = rec->text.p;
        rec->out.text_bytes = rec->text.n;
    }
    if (r->on_output) {
        bool last = rec->out.kind == DI_OUTPUT_FINISHED;
        if ((!r->muted || last) && !r->on_output(r->user, &rec->out) && !last) {
            r->muted = true;
            di_engine_cancel(e, r->id);
        }
        return;
    }
    *e->fresh_end = rec; /* for the outbox at the end of the step */
    e->fresh_end = &rec->next;
    e->n_fresh++;
    r->n_made++;
}

void di_output_free(di_engine *e, const di_output *output)
{
    if (!e || !output)
        return;
    struct di_record *rec = ((const struct di_record *)(const void *)output)->self;
    di_free(rec->error);
    rec->error = NULL;
    pthread_mutex_lock(&e->lock);
    bool keep = e->n_spare < SPARE_RECORDS && rec->text.cap <= SPARE_TEXT;
    if (keep) {
        rec->next = e->spare;
        e->spare = rec;
        e->n_spare++;
    }
    pthread_mutex_unlock(&e->lock);
    if (!keep)
        di_record_destroy(rec);
}

const char *di_end_reason_name(di_end_reason reason)
{
    static const char *const names[] = {"", "stop", "length", "tool_calls", "abort", "deadline", "error"};
    size_t i = (size_t)reason;
    return i < sizeof names / sizeof *names ? names[i] : "";
}

/* ---------------------------------------------------------------- what the completion says (driver) */

static void record_start(void *arg)
{
    struct di_api_request *r = arg;
    struct di_record *rec = record_begin(r);
    if (!rec)
        return;
    record_prepare(rec, r, DI_OUTPUT_STARTED);
    rec->out.prompt_tokens = (int64_t)r->answer.prompt.n;
    rec->out.cached_tokens = r->answer.cached_tokens;
    rec->out.start = r->answer.chat->start;
    rec->out.thinking = r->answer.chat->thinking;
    record_deliver(r, rec);
}

static void record_token(void *arg, const struct di_sample *s)
{
    struct di_api_request *r = arg;
    struct di_record *rec = record_begin(r);
    if (!rec)
        return;
    record_prepare(rec, r, DI_OUTPUT_TOKEN);
    rec->out.token = s->id;
    rec->out.index = (int64_t)r->answer.ids.n;
    rec->out.logprob = s->logprob;
    rec->out.phase = di_parser_phase(r->answer.parser);
    rec->out.n_alternatives = (uint32_t)s->n_top;
    rec->out.alternatives = rec->alternatives;
    for (size_t i = 0; i < s->n_top; i++)
        rec->alternatives[i] = (di_alternative){s->top[i].id, s->top[i].logprob};
    record_deliver(r, rec);
}

/* What only the request's list of tools knows; the strings are put behind the name in the record's memory. */
static void describe_call(const struct di_completion *c, struct di_str name, struct di_record *rec)
{
    const struct di_chat_tool *t = c->chat->tools;
    while (t && !di_str_eq(t->name, name))
        t = t->next;
    size_t n = rec->text.n, id = n + 1;
    di_buf_addc(&rec->text, 0);
    di_buf_adds(&rec->text, c->message.n_calls ? c->message.calls[c->message.n_calls - 1].id : "");
    di_buf_addc(&rec->text, 0);
    size_t space = rec->text.n;
    di_buf_addv(&rec->text, t ? t->space : (struct di_str){0});
    if (rec->text.failed)
        return;
    rec->out.call_id = rec->text.p + id;
    rec->out.call_space = rec->text.p + space;
    rec->out.call_custom = t && t->custom;
    rec->text.n = n;
}

static void record_event(void *arg, const struct di_parse_event *event)
{
    static const di_output_kind kinds[] = {[DI_EVENT_REASONING] = DI_OUTPUT_REASONING,
                                           [DI_EVENT_CONTENT] = DI_OUTPUT_TEXT,
                                           [DI_EVENT_CALL] = DI_OUTPUT_CALL,
                                           [DI_EVENT_ARGUMENTS] = DI_OUTPUT_ARGUMENTS,
                                           [DI_EVENT_RECOVER] = DI_OUTPUT_RECOVERED};
    struct di_api_request *r = arg;
    if (event->kind == DI_EVENT_DONE)
        return;
    struct di_record *rec = record_begin(r);
    if (!rec)
        return;
    record_prepare(rec, r, kinds[event->kind]);
    rec->out.index = event->kind == DI_EVENT_CALL || event->kind == DI_EVENT_ARGUMENTS ? (int64_t)event->index : 0;
    di_buf_addv(&rec->text, event->text);
    if (event->kind == DI_EVENT_CALL)
        describe_call(&r->answer, event->text, rec);
    r->lost = r->lost || rec->text.failed;
    record_deliver(r, rec);
}

static di_end_reason reason_of(const struct di_completion *c, di_end_reason end)
{
    return end == DI_REASON_STOP && c->message.finish == DI_FINISH_TOOL_CALLS ? DI_REASON_TOOL_CALLS : end;
}

/* No cancel finds the request any more; it counts as ended. */
static void forget_request(struct di_api_request *r, di_end_reason reason)
{
    di_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    e->ended_by[reason]++;
    struct di_api_request **link = &e->table[r->id % e->n_buckets];
    while (*link != r)
        link = &(*link)->next_bucket;
    *link = r->next_bucket;
    e->n_known--;
    if (r->cancel) {
        link = &e->cancels;
        while (*link && *link != r)
            link = &(*link)->next_cancel;
        if (*link)
            *link = r->next_cancel;
    }
    pthread_mutex_unlock(&e->lock);
}

static double ms_of(int64_t ns)
{
    return ns < 0 ? -1 : (double)ns / 1e6;
}

static void record_facts(di_output *out, const struct di_completion *c)
{
    const struct di_request_facts *f = &c->facts;
    out->queue_ms = ms_of(f->queue_ns);
    out->first_token_ms = ms_of(f->first_token_ns);
    out->total_ms = ms_of(f->total_ns >= 0 ? f->total_ns : di_clock_ns() - c->schedule.arrived_ns); /* the core did not know it */
    out->miss = f->miss;
    out->miss_position = f->miss_at;
    out->skipped_rows = f->skipped;
    out->approximate = f->bounded;
    out->drafted_tokens = (int64_t)f->drafts.drafted;
    out->accepted_tokens = (int64_t)f->drafts.accepted;
}

void di_api_request_end(struct di_api_request *r, di_end_reason end, const di_error *err)
{
    static const di_error memory = {DI_ERR_MEMORY, "memory for the request's output ran out", ""};
    static const di_error unread = {DI_ERR_LIMIT, "its output is not read: as many records wait as max_unread allows", "max_unread"};
    const struct di_completion *c = &r->answer;
    struct di_record *rec = r->last;
    r->last = NULL;
    if (r->lost || r->unread) {
        end = DI_REASON_ERROR;
        err = r->lost ? &memory : &unread;
    }
    record_prepare(rec, r, DI_OUTPUT_FINISHED);
    rec->out.reason = reason_of(c, end);
    if (end == DI_REASON_ERROR) {
        *rec->error = *err;
        rec->out.error = rec->error;
    }
    if (c->message.finish == DI_FINISH_STOP_STRING && c->message.stop_index != SIZE_MAX) {
        rec->out.stop_index = (int32_t)c->message.stop_index; /* at most DI_PARSE_MAX_STOP */
        di_buf_addv(&rec->text, c->chat->sampling.stop[c->message.stop_index]);
    }
    rec->out.unconstrained = di_completion_unconstrained(c);
    rec->out.token = c->ids.n ? c->ids.v[c->ids.n - 1] : -1;
    rec->out.prompt_tokens = (int64_t)c->prompt.n;
    rec->out.completion_tokens = (int64_t)c->ids.n;
    rec->out.reasoning_tokens = c->reasoning_tokens;
    rec->out.cached_tokens = c->cached_tokens;
    record_facts(&rec->out, c);
    forget_request(r, rec->out.reason);
    record_deliver(r, rec);
    if (r->on_output)
        di_record_destroy(rec);
    r->next = r->engine->ended;
    r->engine->ended = r;
}

static void end_answered(void *arg)
{
    struct di_api_request *r = arg;
    di_api_request_end(r, r->answer.end, &r->answer.err);
}

void di_api_request_destroy(struct di_api_request *r)
{
    if (!r)
        return;
    di_completion_fini(&r->answer);
    di_record_destroy(r->last);
    di_free(r->forced);
    di_free(r->save_at);
    di_free(r);
}

void di_api_request_listen(struct di_api_request *r, bool start)
{
    struct di_completion *c = &r->answer;
    c->emit = record_event;
    c->on_begin = start ? record_start : NULL;
    c->on_sample = record_token;
    c->on_done = end_answered;
    c->emit_arg = r;
}
