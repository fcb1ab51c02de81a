#include "text/message.h"

#include "base/json.h"

void di_message_fini(struct di_message *m)
{
    di_buf_fini(&m->reasoning);
    di_buf_fini(&m->content);
    for (size_t i = 0; i < m->n_calls; i++) {
        di_buf_fini(&m->calls[i].name);
        di_buf_fini(&m->calls[i].arguments);
    }
    di_free(m->calls);
    *m = (struct di_message){0};
}

static void begin_call(struct di_message *m, struct di_str name)
{
    if (m->n_calls == m->cap_calls) {
        size_t cap = m->cap_calls ? m->cap_calls * 2 : 4;
        struct di_message_call *calls = di_realloc(m->calls, cap * sizeof *calls);
        if (!calls) {
            m->failed = true;
            return;
        }
        m->calls = calls;
        m->cap_calls = cap;
    }
    struct di_message_call *c = &m->calls[m->n_calls++];
    *c = (struct di_message_call){0};
    di_buf_addv(&c->name, name);
    m->failed = m->failed || c->name.failed;
}

void di_message_add(void *arg, const struct di_parse_event *event)
{
    struct di_message *m = arg;
    switch (event->kind) {
    case DI_EVENT_REASONING: di_buf_addv(&m->reasoning, event->text); break;
    case DI_EVENT_CONTENT: di_buf_addv(&m->content, event->text); break;
    case DI_EVENT_CALL: begin_call(m, event->text); break;
    case DI_EVENT_ARGUMENTS:
        if (event->index < m->n_calls) { /* not there only when begin_call failed */
            di_buf_addv(&m->calls[event->index].arguments, event->text);
            m->failed = m->failed || m->calls[event->index].arguments.failed;
        }
        break;
    case DI_EVENT_RECOVER:
        di_buf_addv(&m->content, di_buf_str(&m->reasoning));
        di_buf_clear(&m->reasoning);
        break;
    case DI_EVENT_DONE:
        m->finish = event->finish;
        m->stop_index = event->stop_index;
        m->notes = event->notes;
        m->done = true;
        break;
    }
    m->failed = m->failed || m->reasoning.failed || m->content.failed;
}

di_status di_message_ok(const struct di_message *m, di_error *err)
{
    return m->failed ? di_fail(err, DI_ERR_MEMORY, "", "out of memory while collecting the answer") : DI_OK;
}

static void member(struct di_buf *b, const char *before, struct di_str value)
{
    di_buf_adds(b, before);
    di_json_write_string(b, value);
}

void di_message_write_json(struct di_buf *b, const struct di_message *m)
{
    member(b, "{\"reasoning_content\": ", di_buf_str(&m->reasoning));
    member(b, ", \"content\": ", di_buf_str(&m->content));
    di_buf_adds(b, ", \"tool_calls\": [");
    for (size_t i = 0; i < m->n_calls; i++) {
        member(b, i ? ", {\"name\": " : "{\"name\": ", di_buf_str(&m->calls[i].name));
        member(b, ", \"arguments\": ", di_buf_str(&m->calls[i].arguments));
        di_buf_addc(b, '}');
    }
    di_buf_addf(b, "], \"finish_reason\": \"%s\"}", di_finish_name(m->finish));
}

void di_event_write_json(struct di_buf *b, const struct di_parse_event *event)
{
    switch (event->kind) {
    case DI_EVENT_REASONING: member(b, "{\"reasoning_content\": ", event->text); break;
    case DI_EVENT_CONTENT: member(b, "{\"content\": ", event->text); break;
    case DI_EVENT_CALL:
    case DI_EVENT_ARGUMENTS:
        di_buf_addf(b, "{\"tool_call\": {\"index\": %u", (unsigned)event->index);
        member(b, event->kind == DI_EVENT_CALL ? ", \"name\": " : ", \"arguments\": ", event->text);
        di_buf_addc(b, '}');
        break;
    case DI_EVENT_RECOVER: di_buf_adds(b, "{\"recovered\": true"); break;
    case DI_EVENT_DONE: di_buf_addf(b, "{\"finish_reason\": \"%s\"", di_finish_name(event->finish)); break;
    }
    di_buf_addc(b, '}');
}
