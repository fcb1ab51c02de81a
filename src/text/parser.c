#include "text/parser.h"

#include "base/json.h"
#include "base/utf8.h"

/* States of §3.2 and §3.5. CONTENT and the three JSON states exclude each other. QUOTED: content from the markup of a refused call on. */
enum state { REASONING, CONTENT, QUOTED, JSON_BEFORE, JSON_INSIDE, JSON_AFTER, BLOCK, NAME, ARGS, KEY, TYPE, STRING, RAW, DONE };
#define IN(s) (1u << (s))

enum action {
    FOUND_STOP,
    THINK_END,   /* reasoning ends */
    BLOCK_BEGIN, /* of calls */
    STRAY,       /* dropped */
    SPELL,       /* shown whatever hide_control says */
    JSON_FENCE,
    JSON_BARE, /* the matched byte belongs to the JSON */
    JSON_END,
    CALL_NAME,
    BLOCK_END,
    CALL_BEGIN,
    CALL_END,
    KEY_BEGIN,
    KEY_END,
    STRING_BEGIN,
    RAW_BEGIN,
    VALUE_END
};

/* What is looked for in which state. Bytes ctrl_lo..ctrl_hi of a pattern come from a control id, the others from ordinary ids. `lf`: all
 * newlines directly before the match go with it. Of patterns that complete at the same byte the first of the table wins, and before all
 * of them a stop string. */
struct literal {
    const char *text;
    unsigned char ctrl_lo, ctrl_hi;
    bool lf, tools;
    unsigned states;
    enum action action;
};
#define DSML       \
    "\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C" /* 10 bytes */
#define SHOWN (IN(REASONING) | IN(CONTENT) | IN(QUOTED) | IN(JSON_INSIDE) | IN(NAME) | IN(KEY) | IN(STRING) | IN(RAW))
static const struct literal literals[] = {
    {"</think>", 0, 8, true, false, IN(REASONING), THINK_END},
    {"<" DSML, 1, 11, true, true, IN(REASONING) | IN(CONTENT) | IN(JSON_BEFORE) | IN(JSON_AFTER), BLOCK_BEGIN},
    {"</think>", 0, 8, false, false, IN(CONTENT) | IN(QUOTED) | IN(JSON_BEFORE), STRAY},
    {"```json\n", 0, 0, false, false, IN(JSON_BEFORE), JSON_FENCE},
    {"```\n", 0, 0, false, false, IN(JSON_BEFORE), JSON_FENCE},
    {"{", 0, 0, false, false, IN(JSON_BEFORE), JSON_BARE},
    {"[", 0, 0, false, false, IN(JSON_BEFORE), JSON_BARE},
    {"\n```", 0, 0, false, false, IN(JSON_INSIDE), JSON_END},
    {"invoke name=\"", 0, 0, false, false, IN(BLOCK), CALL_NAME},
    {"</" DSML " calls>", 2, 12, false, false, IN(BLOCK), BLOCK_END},
    {"</" DSML "tool_calls>", 2, 12, false, false, IN(BLOCK), BLOCK_END},
    {"\"", 0, 0, false, false, IN(NAME), CALL_BEGIN},
    {"parameter name=\"", 0, 0, false, false, IN(ARGS), KEY_BEGIN},
    {"</" DSML, 2, 12, false, false, IN(ARGS), CALL_END},
    {"\"", 0, 0, false, false, IN(KEY), KEY_END},
    {"true\">", 0, 0, false, false, IN(TYPE), STRING_BEGIN},
    {"false\">", 0, 0, false, false, IN(TYPE), RAW_BEGIN},
    {"</" DSML, 2, 12, false, false, IN(STRING) | IN(RAW), VALUE_END},
    /* Ids that are half a tag: the letters around them are text, so without the id the tag would be shown in part. */
    {DSML, 0, 10, false, false, SHOWN, SPELL},
    {"<dsml:", 0, 6, false, false, SHOWN, SPELL},
    {"</dsml:", 0, 7, false, false, SHOWN, SPELL},
};
#define N_LITERALS (sizeof literals / sizeof *literals)
#define STOP_STATES (IN(CONTENT) | IN(QUOTED) | IN(JSON_INSIDE))
#define DEFAULT_CALL_BYTES ((size_t)16 << 20)
#define QUOTE_BYTES ((size_t)64 << 10) /* a block whose first call's name is not known by then is not quoted, but dropped */

struct pattern {
    const char *bytes;
    size_t n, ctrl_lo, ctrl_hi;
    size_t at;      /* bytes matched so far */
    uint32_t *fail; /* KMP: longest proper border of each prefix */
    bool lf;
    unsigned states;
    enum action action;
};

struct di_parser {
    di_parse_emit *emit;
    void *arg;
    enum state state;
    bool trim; /* drop newlines: nothing else has come yet in this channel */
    bool json_mode, keep_newlines, spelling, hide_control, include_stop, recover, finished;
    bool failed; /* memory ran out once; final */
    unsigned notes;

    struct pattern patterns[DI_PARSE_MAX_STOP + N_LITERALS];
    size_t n_patterns, n_stop;
    struct pattern *active[DI_PARSE_MAX_STOP + N_LITERALS];
    size_t n_active;
    void *storage; /* copies of the stop strings and all failure tables */

    /* Held back: `lf_run` newlines, then held[begin..end). `held_ctrl` says which of those bytes came from a control id. */
    size_t lf_run, begin, end, held_cap;
    unsigned char *held, *held_ctrl;

    struct di_utf8_stream utf8;    /* of the channel that `run` belongs to */
    struct di_buf run;             /* released bytes, not yet decoded */
    struct di_buf text;            /* decoded (and escaped) text of the event being collected */
    struct di_buf decoded, quoted; /* scratch */
    enum di_parse_event_kind kind; /* of `text` */
    struct di_buf name, raw;
    /* A block may turn out to be text: newlines before it, then pairs of a byte and whether it is of a control id. */
    size_t quote_lf;
    struct di_buf quote;
    bool quoting;
    bool (*offered)(void *arg, struct di_str name);
    bool refuse, refused;
    uint32_t n_calls;
    bool any_key;
    size_t call_bytes, max_call_bytes;
    size_t stop_index;
};

/* ---- output ---- */

static void clear(struct di_parser *p, struct di_buf *b)
{
    p->failed = p->failed || b->failed;
    di_buf_clear(b);
}

static void emit_text(struct di_parser *p)
{
    if (p->text.n == 0)
        return;
    struct di_parse_event ev = {.kind = p->kind, .text = di_buf_str(&p->text), .stop_index = SIZE_MAX};
    if (p->kind == DI_EVENT_ARGUMENTS)
        ev.index = p->n_calls - 1;
    p->emit(p->arg, &ev);
    clear(p, &p->text);
}

static void open_text(struct di_parser *p, enum di_parse_event_kind kind)
{
    if (p->kind != kind)
        emit_text(p);
    p->kind = kind;
}

static void add_arguments(struct di_parser *p, const char *s)
{
    open_text(p, DI_EVENT_ARGUMENTS);
    di_buf_adds(&p->text, s);
}

/* Decode what was released in the present state; `end` closes the channel, so that half a character becomes U+FFFD. */
static void flush_run(struct di_parser *p, bool end)
{
    if (p->run.n == 0 && !(end && p->utf8.n))
        return;
    bool escape = p->state == KEY || p->state == STRING;
    open_text(p, p->state == REASONING ? DI_EVENT_REASONING : escape ? DI_EVENT_ARGUMENTS : DI_EVENT_CONTENT);
    struct di_buf *to = escape ? &p->decoded : &p->text;
    di_utf8_stream_push(&p->utf8, di_buf_str(&p->run), to);
    if (end)
        di_utf8_stream_end(&p->utf8, to);
    if (escape) {
        di_json_write_string(&p->quoted, di_buf_str(&p->decoded));
        if (p->quoted.n > 2)
            di_buf_add(&p->text, p->quoted.p + 1, p->quoted.n - 2);
        clear(p, &p->decoded);
        clear(p, &p->quoted);
    }
    clear(p, &p->run);
}

/* One byte that belongs to the present state for good. */
static void sink(struct di_parser *p, char byte, bool ctrl)
{
    if (ctrl && p->hide_control)
        return;
    if (IN(p->state) & (IN(NAME) | IN(KEY) | IN(STRING) | IN(RAW))) {
        if (p->call_bytes >= p->max_call_bytes) {
            p->notes |= DI_NOTE_CALL_TOO_LONG;
            return;
        }
        p->call_bytes++;
    }
    switch (p->state) {
    case REASONING:
    case CONTENT:
    case QUOTED:
    case JSON_INSIDE:
    case KEY:
    case STRING: di_buf_addc(&p->run, byte); break;
    case NAME: di_buf_addc(&p->name, byte); break;
    case RAW: di_buf_addc(&p->raw, byte); break;
    case DONE:
        if (byte != '\n')
            p->notes |= DI_NOTE_TEXT_AFTER_END;
        break;
    default: break;
    }
}

/* ---- holding back ---- */

static size_t held(const struct di_parser *p)
{
    return p->lf_run + (p->end - p->begin);
}

static void hold_byte(struct di_parser *p, char byte, bool ctrl)
{
    if (p->end == p->held_cap) {
        size_t n = p->end - p->begin;
        memmove(p->held, p->held + p->begin, n);
        memmove(p->held_ctrl, p->held_ctrl + p->begin, n);
        p->begin = 0;
        p->end = n;
    }
    p->held[p->end] = (unsigned char)byte;
    p->held_ctrl[p->end++] = ctrl;
}

/* The first n held bytes go to the present state. */
static void release_held(struct di_parser *p, size_t n)
{
    for (; n && p->lf_run; n--, p->lf_run--)
        sink(p, '\n', false);
    for (; n; n--, p->begin++)
        sink(p, (char)p->held[p->begin], p->held_ctrl[p->begin]);
}

static void drop_last(struct di_parser *p, size_t n)
{
    size_t kept = p->end - p->begin, k = n < kept ? n : kept;
    p->end -= k;
    p->lf_run -= n - k;
}

static bool is_lf(const struct di_parser *p, size_t i)
{
    return p->held[i] == '\n' && !p->held_ctrl[i];
}

/* Newlines directly before the last `at` held bytes. All of them are still held, because they were candidates as they came. */
static size_t lf_before(const struct di_parser *p, size_t at)
{
    size_t i = p->end - at, n = 0;
    while (i > p->begin && is_lf(p, i - 1)) {
        i--;
        n++;
    }
    return i == p->begin ? n + p->lf_run : n;
}

/* ---- states ---- */

static void enter_state(struct di_parser *p, enum state s)
{
    flush_run(p, true);
    p->state = s;
    p->n_active = 0;
    for (size_t i = 0; i < p->n_patterns; i++) {
        struct pattern *t = &p->patterns[i];
        t->at = 0;
        if (t->states & IN(s))
            p->active[p->n_active++] = t;
    }
}

static void step_byte(struct di_parser *p, char byte, bool ctrl);

static void note_for_quote(struct di_parser *p, const char *bytes, size_t n, bool ctrl)
{
    for (size_t i = 0; i < n; i++) {
        di_buf_addc(&p->quote, bytes[i]);
        di_buf_addc(&p->quote, (char)ctrl);
    }
    if (p->quote.n > 2 * QUOTE_BYTES) {
        p->quoting = false;
        clear(p, &p->quote);
    }
}

static void begin_block(struct di_parser *p, const struct pattern *t, size_t lf)
{
    p->quoting = p->offered && !p->refuse && !p->json_mode;
    p->quote_lf = lf;
    if (p->quoting) {
        note_for_quote(p, t->bytes, t->ctrl_lo, false);
        note_for_quote(p, t->bytes + t->ctrl_lo, t->n - t->ctrl_lo, true);
    }
    enter_state(p, BLOCK);
}

/* The tool was not offered. Nothing of the call leaves as a call: it is text if nothing was called before it, else it is dropped, because
 * text does not stand behind calls. */
static void refuse_call(struct di_parser *p)
{
    struct di_buf quote = p->quote;
    p->notes |= DI_NOTE_NOT_OFFERED;
    p->refused = p->n_calls == 0 && !p->quoting;
    p->quote = (struct di_buf){0};
    enter_state(p, p->quoting ? QUOTED : DONE);
    clear(p, &p->name);
    if (p->quoting) {
        p->quoting = false;
        for (size_t i = 0; i < p->quote_lf; i++)
            step_byte(p, '\n', false);
        for (size_t i = 0; i + 1 < quote.n; i += 2)
            step_byte(p, quote.p[i], quote.p[i + 1]);
    }
    clear(p, &quote);
    di_buf_fini(&quote);
}

static void begin_call(struct di_parser *p)
{
    if (p->offered && !p->offered(p->arg, di_buf_str(&p->name))) {
        refuse_call(p);
        return;
    }
    p->quoting = false;
    clear(p, &p->quote);
    emit_text(p);
    di_utf8_add_lossy(&p->decoded, di_buf_str(&p->name));
    struct di_parse_event ev = {.kind = DI_EVENT_CALL, .index = p->n_calls, .text = di_buf_str(&p->decoded), .stop_index = SIZE_MAX};
    p->n_calls++;
    p->any_key = false;
    p->emit(p->arg, &ev);
    clear(p, &p->decoded);
    clear(p, &p->name);
    enter_state(p, ARGS);
}

/* A raw value that is no JSON (or nested deeper than 512) is sent as a string, unless the end of the output cut it off (§3.3). */
static void end_raw(struct di_parser *p, bool cut)
{
    di_utf8_add_lossy(&p->decoded, di_buf_str(&p->raw));
    struct di_str value = di_buf_str(&p->decoded);
    open_text(p, DI_EVENT_ARGUMENTS);
    struct di_arena arena;
    struct di_json *tree;
    di_arena_init(&arena);
    struct di_json_limits limits = {.max_depth = 512};
    bool marked = di_str_starts(value, DI_STR("\xEF\xBB\xBF")); /* a value with a byte order mark is none inside the arguments */
    di_status valid = cut ? DI_OK : marked ? DI_ERR_FORMAT : di_json_parse(value, &limits, &arena, &tree, NULL);
    p->failed = p->failed || valid == DI_ERR_MEMORY;
    if (valid == DI_OK)
        di_buf_addv(&p->text, value);
    else
        di_json_write_string(&p->text, value);
    di_arena_fini(&arena);
    clear(p, &p->decoded);
    clear(p, &p->raw);
}

/* `lf`: newlines that went with the match. */
static void act(struct di_parser *p, const struct pattern *t, size_t lf)
{
    switch (t->action) {
    case FOUND_STOP:
        p->stop_index = (size_t)(t - p->patterns);
        enter_state(p, DONE);
        break;
    case THINK_END:
        enter_state(p, p->json_mode ? JSON_BEFORE : CONTENT);
        p->trim = !p->json_mode && !p->keep_newlines;
        break;
    case STRAY:
        p->trim = false;
        enter_state(p, p->state);
        break;
    case SPELL:
        p->trim = false;
        for (size_t i = 0; i < t->n; i++)
            sink(p, t->bytes[i], false);
        enter_state(p, p->state);
        break;
    case BLOCK_BEGIN: begin_block(p, t, lf); break;
    case JSON_FENCE: enter_state(p, JSON_INSIDE); break;
    case JSON_BARE:
        enter_state(p, JSON_INSIDE);
        sink(p, t->bytes[0], false);
        break;
    case JSON_END: enter_state(p, JSON_AFTER); break;
    case CALL_NAME:
        p->call_bytes = 0;
        enter_state(p, NAME);
        break;
    case CALL_BEGIN: begin_call(p); break;
    case CALL_END:
        add_arguments(p, p->any_key ? "}" : "{}");
        enter_state(p, BLOCK);
        break;
    case BLOCK_END:
        p->quoting = false;
        enter_state(p, DONE);
        break;
    case KEY_BEGIN:
        add_arguments(p, p->any_key ? ", \"" : "{\"");
        p->any_key = true;
        enter_state(p, KEY);
        break;
    case KEY_END:
        enter_state(p, TYPE);
        add_arguments(p, "\": ");
        break;
    case STRING_BEGIN:
        add_arguments(p, "\"");
        enter_state(p, STRING);
        break;
    case RAW_BEGIN: enter_state(p, RAW); break;
    case VALUE_END:
        if (p->state == RAW)
            end_raw(p, false);
        else
            flush_run(p, true), add_arguments(p, "\"");
        enter_state(p, ARGS);
        break;
    }
}

static bool matches_at(const struct di_parser *p, const struct pattern *t, size_t i, char byte, bool ctrl)
{
    return t->bytes[i] == byte && (p->spelling || ctrl == (i >= t->ctrl_lo && i < t->ctrl_hi));
}

static void step_byte(struct di_parser *p, char byte, bool ctrl)
{
    if (p->trim) {
        if (byte == '\n' && !ctrl)
            return;
        p->trim = ctrl && p->hide_control; /* a hidden id is as if it weren't there */
    }
    if (p->quoting)
        note_for_quote(p, &byte, 1, ctrl);
    hold_byte(p, byte, ctrl);
    size_t keep = 0;
    for (size_t k = 0; k < p->n_active; k++) {
        struct pattern *t = p->active[k];
        while (t->at && !matches_at(p, t, t->at, byte, ctrl))
            t->at = t->fail[t->at - 1];
        if (matches_at(p, t, t->at, byte, ctrl))
            t->at++;
        size_t need = t->at + (t->lf ? lf_before(p, t->at) : 0);
        if (t->at == t->n) {
            size_t before = held(p) - need;
            if (t->action == FOUND_STOP && p->include_stop)
                before = held(p);
            release_held(p, before);
            drop_last(p, held(p));
            act(p, t, need - t->n);
            return;
        }
        if (need > keep)
            keep = need;
    }
    release_held(p, held(p) - keep);
    for (; p->begin < p->end && is_lf(p, p->begin); p->begin++) /* a long run of newlines is a number, not memory */
        p->lf_run++;
}

/* ---- interface ---- */

static const char *const start_names[] = {"reasoning", "content", "tool_block", "reasoning_continued", "content_continued"};
static const char *const finish_names[] = {"stop", "length", "content_filter", "abort", "error", "tool_calls", "stop"};

bool di_parse_start_from_name(struct di_str name, di_answer_start *out)
{
    for (size_t i = 0; i < sizeof start_names / sizeof *start_names; i++)
        if (di_str_eqc(name, start_names[i])) {
            *out = (di_answer_start)i;
            return true;
        }
    return false;
}

const char *di_finish_name(enum di_finish f)
{
    return finish_names[f];
}

bool di_finish_from_name(struct di_str name, enum di_finish *out)
{
    for (size_t i = 0; i <= DI_FINISH_ERROR; i++)
        if (di_str_eqc(name, finish_names[i])) {
            *out = (enum di_finish)i;
            return true;
        }
    return false;
}

static void make_failure_table(const struct di_parser *p, struct pattern *t)
{
    t->fail[0] = 0;
    for (size_t i = 1, k = 0; i < t->n; i++) {
        bool ctrl = i >= t->ctrl_lo && i < t->ctrl_hi;
        while (k && !matches_at(p, t, k, t->bytes[i], ctrl))
            k = t->fail[k - 1];
        if (matches_at(p, t, k, t->bytes[i], ctrl))
            k++;
        t->fail[i] = (uint32_t)k;
    }
}

static void collect_patterns(struct di_parser *p, const struct di_parser_settings *s)
{
    for (size_t i = 0; i < s->n_stop; i++)
        p->patterns[i] = (struct pattern){.bytes = s->stop[i].p, .n = s->stop[i].n, .states = STOP_STATES, .action = FOUND_STOP};
    p->n_stop = p->n_patterns = s->n_stop;
    for (size_t i = 0; i < N_LITERALS; i++) {
        const struct literal *l = &literals[i];
        if (l->tools && !s->tools_declared)
            continue;
        p->patterns[p->n_patterns++] = (struct pattern){.bytes = l->text,
                                                        .n = strlen(l->text),
                                                        .ctrl_lo = l->ctrl_lo,
                                                        .ctrl_hi = l->ctrl_hi,
                                                        .lf = l->lf,
                                                        .states = l->states,
                                                        .action = l->action};
    }
}

/* One block: failure tables, then copies of the stop strings, then the two halves of the held bytes. */
static di_status lay_out(struct di_parser *p, di_error *err)
{
    size_t total = 0, longest = 0, stops = 0;
    for (size_t i = 0; i < p->n_patterns; i++) {
        size_t n = p->patterns[i].n;
        if (n > DI_PARSE_MAX_STOP_BYTES)
            return di_fail(err, DI_ERR_LIMIT, "stop", "a stop string has %zu bytes, more than the %d that one may have", n,
                           DI_PARSE_MAX_STOP_BYTES);
        total += n;
        stops += i < p->n_stop ? n : 0;
        longest = n > longest ? n : longest;
    }
    p->held_cap = longest * 2; /* room for `longest` and the next byte; twice, so that moving down is rare */
    size_t bytes = total * sizeof(uint32_t) + stops + p->held_cap * 2; /* far from SIZE_MAX */
    p->storage = di_malloc(bytes);
    if (!p->storage)
        return di_fail(err, DI_ERR_MEMORY, "", "out of memory for a parser of %zu bytes", bytes);
    uint32_t *fail = p->storage;
    unsigned char *copy = (unsigned char *)(fail + total);
    p->held = copy + stops;
    p->held_ctrl = p->held + p->held_cap;
    for (size_t i = 0; i < p->n_patterns; i++) {
        struct pattern *t = &p->patterns[i];
        t->fail = fail;
        fail += t->n;
        if (i < p->n_stop) {
            t->bytes = memcpy(copy, t->bytes, t->n);
            copy += t->n;
        }
        make_failure_table(p, t);
    }
    return DI_OK;
}

di_status di_parser_create(const struct di_parser_settings *s, di_parse_emit *emit, void *arg, struct di_parser **out, di_error *err)
{
    di_status status = DI_OK;
    struct di_parser *p = NULL;
    *out = NULL;
    CHECK(s->n_stop <= DI_PARSE_MAX_STOP, err, DI_ERR_INVALID, "stop", "%zu stop strings were given, the limit is %d", s->n_stop,
          DI_PARSE_MAX_STOP);
    for (size_t i = 0; i < s->n_stop; i++)
        CHECK(s->stop[i].n > 0, err, DI_ERR_INVALID, "stop", "a stop string is empty");
    p = di_calloc(1, sizeof *p);
    CHECK(p, err, DI_ERR_MEMORY, "", "out of memory for a parser");
    p->emit = emit;
    p->arg = arg;
    p->json_mode = s->json_mode;
    p->keep_newlines = s->keep_newlines;
    p->spelling = s->spelling;
    p->hide_control = s->hide_control;
    p->include_stop = s->include_stop;
    p->recover = s->recover_unclosed_reasoning;
    p->offered = s->offered;
    p->refuse = s->refuse_not_offered;
    p->max_call_bytes = s->max_call_bytes ? s->max_call_bytes : DEFAULT_CALL_BYTES;
    p->stop_index = SIZE_MAX;
    collect_patterns(p, s);
    TRY(lay_out(p, err));
    enum state content = s->json_mode ? JSON_BEFORE : CONTENT;
    const enum state first[] = {REASONING, content, BLOCK, REASONING, content};
    enter_state(p, first[s->start]);
    p->trim = s->start == DI_STARTS_REASONING || (s->start == DI_STARTS_CONTENT && !s->json_mode && !s->keep_newlines);
    *out = p;
    p = NULL;
out:
    di_parser_destroy(p);
    return status;
}

void di_parser_destroy(struct di_parser *p)
{
    if (!p)
        return;
    di_buf_fini(&p->run);
    di_buf_fini(&p->text);
    di_buf_fini(&p->decoded);
    di_buf_fini(&p->quoted);
    di_buf_fini(&p->name);
    di_buf_fini(&p->raw);
    di_buf_fini(&p->quote);
    di_free(p->storage);
    di_free(p);
}

static di_status memory_ok(const struct di_parser *p, di_error *err)
{
    bool failed = p->failed || p->run.failed || p->text.failed || p->name.failed || p->raw.failed || p->quote.failed;
    return failed ? di_fail(err, DI_ERR_MEMORY, "", "out of memory while parsing the output") : DI_OK;
}

di_status di_parser_feed(struct di_parser *p, struct di_str bytes, enum di_parse_bytes kind, di_error *err)
{
    if (p->finished)
        return di_fail(err, DI_ERR_INVALID, "", "output was fed to a parser that has finished");
    bool ctrl = kind == DI_PARSE_CONTROL && !p->spelling;
    for (size_t i = 0; i < bytes.n; i++)
        step_byte(p, bytes.p[i], ctrl);
    flush_run(p, false);
    emit_text(p);
    return memory_ok(p, err);
}

di_status di_parser_finish(struct di_parser *p, enum di_finish backend, di_error *err)
{
    if (p->finished)
        return di_fail(err, DI_ERR_INVALID, "", "a parser was finished twice");
    p->finished = true;
    release_held(p, held(p));
    flush_run(p, true);
    if (p->state == RAW)
        end_raw(p, true);
    emit_text(p);
    struct di_parse_event ev = {.kind = DI_EVENT_RECOVER, .stop_index = p->stop_index};
    if (p->recover && p->state == REASONING && backend == DI_FINISH_STOP)
        p->emit(p->arg, &ev);
    if (IN(p->state) & (IN(BLOCK) | IN(NAME) | IN(ARGS) | IN(KEY) | IN(TYPE) | IN(STRING) | IN(RAW)))
        p->notes |= DI_NOTE_END_INSIDE_CALL;
    ev.kind = DI_EVENT_DONE;
    ev.notes = p->notes;
    bool open = IN(p->state) & (IN(ARGS) | IN(KEY) | IN(TYPE) | IN(STRING) | IN(RAW)); /* a call that was announced and not closed */
    ev.finish = p->stop_index != SIZE_MAX                          ? DI_FINISH_STOP_STRING
                : backend == DI_FINISH_STOP && p->n_calls && !open ? DI_FINISH_TOOL_CALLS
                                                                   : backend;
    p->emit(p->arg, &ev);
    return memory_ok(p, err);
}

di_answer_phase di_parser_phase(const struct di_parser *p)
{
    switch (p->state) {
    case REASONING: return DI_PHASE_OF_REASONING;
    case CONTENT:
    case QUOTED:
    case JSON_BEFORE:
    case JSON_INSIDE:
    case JSON_AFTER:
    case DONE: return DI_PHASE_OF_CONTENT;
    default: return DI_PHASE_OF_TOOL_CALLS;
    }
}

bool di_parser_stopped(const struct di_parser *p)
{
    return p->stop_index != SIZE_MAX;
}

bool di_parser_refused(const struct di_parser *p)
{
    return p->refused;
}
