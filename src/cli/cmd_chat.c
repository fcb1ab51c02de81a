/* deepinfer chat: talk to the model in a terminal. Answers stream, reasoning is dimmed, Ctrl-C ends an answer but not the program. */
#include "cli/answer.h"
#include "cli/io.h"
#include "cli/load.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <unistd.h>

struct options {
    struct di_load_options load;
    const char *system, *effort;
    struct di_truncation_options truncation;
    int64_t max_tokens, seed;
    double temperature;
    bool thinking;
};

#define AT(field) offsetof(struct options, field)
static const struct di_option table[] = {
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_load_table},
    {.type = DI_OPT_PRESET, .name = "max-batch", .def = "1"},
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_reuse_table},
    {.name = "system",
     .type = DI_OPT_STRING,
     .offset = AT(system),
     .metavar = "TEXT",
     .help = "System message at the start of the conversation."},
    {.name = "thinking",
     .type = DI_OPT_BOOL,
     .offset = AT(thinking),
     .def = "true",
     .help = "Let the model think before it answers; /think changes it."},
    {.name = "effort",
     .type = DI_OPT_CHOICE,
     .offset = AT(effort),
     .def = "high",
     .choices = "low|high|max",
     .help = "How thoroughly it thinks."},
    {.name = "max-tokens",
     .type = DI_OPT_INT,
     .offset = AT(max_tokens),
     .min = 1,
     .max = 1 << 30,
     .metavar = "N",
     .help = "Longest answer, reasoning included."},
    {.name = "temperature", .type = DI_OPT_DOUBLE, .offset = AT(temperature), .max = 2, .metavar = "T", .help = "0 is greedy; default 1."},
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, truncation), .table = &di_truncation_table},
    {.name = "seed",
     .type = DI_OPT_INT,
     .offset = AT(seed),
     .def = "0",
     .max = (double)INT64_MAX,
     .metavar = "S",
     .help = "Same conversation and seed: same answers. Each turn adds one."},
};

/* Set by the handler of Ctrl-C, cleared before each prompt and answer. The only thing a signal handler may do safely. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

struct chat {
    const struct options *o;
    di_engine *engine;
    struct di_answer answer; /* being given */
    double first_ms, total_ms;
    struct di_buf history; /* messages of the request, separated by commas */
    struct di_buf line;
    bool thinking, colour, dim, was_reasoning;
    int64_t turn;
    char input[4096]; /* read from stdin, [at, have) not yet used */
    size_t at, have;
};

static const char help_text[] =
    "  /think on|off  think before answering\n  /reset         forget the conversation\n  /help          this list\n"
    "  /exit          leave (Ctrl-D too)\nCtrl-C ends an answer.\n";

/* ---------------------------------------------------------------- one answer */

static void set_dim(struct chat *c, bool dim)
{
    if (c->colour && c->dim != dim)
        fputs(dim ? "\033[2m" : "\033[0m", stdout);
    c->dim = dim;
}

/* Control characters of an answer must not reach the terminal: they could move the cursor or change its settings. U+0080 to U+009F are such
 * too; events carry whole characters, so both bytes of one are here. */
static void print_safe(struct di_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char ch = (unsigned char)s.p[i];
        if (ch == 0xC2 && i + 1 < s.n && (unsigned char)s.p[i + 1] < 0xA0)
            i++;
        else if ((ch >= 0x20 && ch != 0x7F) || ch == '\n' || ch == '\t')
            putchar(ch);
    }
}

static void show_text(struct chat *c, const di_output *out)
{
    bool reasoning = out->kind == DI_OUTPUT_REASONING;
    if (out->kind == DI_OUTPUT_TEXT && c->was_reasoning) {
        set_dim(c, false);
        fputs("\n\n", stdout);
    }
    c->was_reasoning = reasoning;
    set_dim(c, reasoning);
    if (out->kind == DI_OUTPUT_CALL)
        fputs("\ncalls ", stdout);
    print_safe((struct di_str){out->text, out->text_bytes});
    fflush(stdout);
}

static int on_output(void *user, const di_output *out)
{
    struct chat *c = user;
    if (out->kind == DI_OUTPUT_FINISHED) {
        c->first_ms = out->first_token_ms >= 0 ? out->first_token_ms : out->total_ms;
        c->total_ms = out->total_ms;
    } else if (out->kind != DI_OUTPUT_TOKEN) {
        show_text(c, out);
    }
    return di_answer_take(&c->answer, out);
}

static void add_message(struct di_buf *b, const char *role, struct di_str content, struct di_str reasoning)
{
    di_buf_addf(b, "%s{\"role\":\"%s\",\"content\":", b->n ? "," : "", role);
    di_json_write_string(b, content);
    if (reasoning.n) {
        di_buf_adds(b, ",\"reasoning_content\":");
        di_json_write_string(b, reasoning);
    }
    di_buf_addc(b, '}');
}

static void print_speed(const struct chat *c)
{
    const struct di_answer *a = &c->answer;
    double decode = (c->total_ms - c->first_ms) / 1000;
    fprintf(stderr, "[%lld prompt tokens in %.2f s, %lld tokens, %.1f tokens/s%s]\n", (long long)a->prompt_tokens, c->first_ms / 1000,
            (long long)a->completion_tokens, a->completion_tokens > 1 && decode > 0 ? (double)(a->completion_tokens - 1) / decode : 0.0,
            a->reason == DI_REASON_CANCELLED ? ", interrupted"
            : a->reason == DI_REASON_LENGTH  ? ", cut at the limit"
                                             : "");
}

static di_status stream_answer(struct chat *c, const di_submission *s, di_error *err)
{
    di_request_id id;
    int busy = 1;
    di_status status = DI_OK;
    c->answer.engine = c->engine;
    c->was_reasoning = false;
    TRY(di_engine_submit(c->engine, s, &id, err));
    interrupted = 0;
    while (busy) {
        if (interrupted)
            di_engine_cancel(c->engine, id);
        TRY(di_engine_step(c->engine, &busy, err));
    }
    set_dim(c, false);
    putchar('\n');
    fflush(stdout);
    if (c->answer.err.code != DI_OK)
        return *err = c->answer.err, c->answer.err.code;
    if (!c->o->load.quiet)
        print_speed(c);
out:
    return status;
}

/* Answer the last user message; the answer joins the history even if it was interrupted. */
static di_status answer(struct chat *c, di_error *err)
{
    struct di_buf text = {0};
    di_submission s;
    di_request_defaults d;
    di_status status = DI_OK;
    di_request_defaults_init(&d, sizeof d);
    d.temperature = c->o->temperature;
    d.top_p = c->o->truncation.top_p;
    d.min_p = c->o->truncation.min_p;
    d.top_k = c->o->truncation.top_k;
    d.seed = (int64_t)(((uint64_t)c->o->seed + (uint64_t)c->turn++) & INT64_MAX);
    d.max_tokens = c->o->max_tokens > 0 ? c->o->max_tokens : 0;
    di_buf_adds(&text, "{\"messages\":[");
    di_buf_addv(&text, di_buf_str(&c->history));
    di_buf_addf(&text, "],\"thinking\":{\"type\":\"%s\"},\"reasoning_effort\":\"%s\"}", c->thinking ? "enabled" : "disabled", c->o->effort);
    TRY(di_buf_ok(&text, err));
    di_submission_init(&s, sizeof s);
    s.json = text.p;
    s.json_bytes = text.n;
    s.defaults = &d;
    s.on_output = on_output;
    s.user = c;
    TRY(stream_answer(c, &s, err));
    add_message(&c->history, "assistant", di_buf_str(&c->answer.content), di_buf_str(&c->answer.reasoning));
    TRY(di_buf_ok(&c->history, err));
out:
    di_answer_fini(&c->answer);
    di_buf_fini(&text);
    return status;
}

/* ---------------------------------------------------------------- the conversation */

/* More of stdin into c->input. 1: something is there, 0: its end, -1: Ctrl-C. Signals come through only while it waits, so that none is
 * lost between looking at `interrupted` and waiting. */
static int refill_line(struct chat *c, const sigset_t *while_waiting)
{
    for (;;) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        bool ready = pselect(STDIN_FILENO + 1, &set, NULL, NULL, NULL, while_waiting) > 0;
        if (interrupted)
            return -1;
        if (!ready && errno == EINTR)
            continue;
        ssize_t n = read(STDIN_FILENO, c->input, sizeof c->input);
        if (n < 0 && errno == EINTR)
            continue;
        c->at = 0;
        c->have = n > 0 ? (size_t)n : 0;
        return n > 0;
    }
}

/* Append bytes to c->line up to the end of the line; results as of `refill`. */
static int collect_line(struct chat *c, const sigset_t *while_waiting)
{
    for (;;) {
        if (c->at == c->have) {
            int got = refill_line(c, while_waiting);
            if (got <= 0)
                return got < 0 ? got : c->line.n > 0;
        }
        const char *start = c->input + c->at, *stop = memchr(start, '\n', c->have - c->at);
        size_t n = stop ? (size_t)(stop - start) : c->have - c->at;
        di_buf_add(&c->line, start, n);
        c->at += n + (stop != NULL);
        if (stop)
            return 1;
    }
}

/* One line from stdin. False at its end. Ctrl-C forgets the line and asks again. */
static bool read_line(struct chat *c)
{
    sigset_t interrupt, before;
    int got;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    do {
        di_buf_clear(&c->line);
        interrupted = 0;
        if (isatty(STDIN_FILENO)) {
            fputs(c->colour ? "\033[1m> \033[0m" : "> ", stdout);
            fflush(stdout);
        }
        got = collect_line(c, &before);
        if (got < 0)
            putchar('\n');
    } while (got < 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return got > 0;
}

static void reset(struct chat *c)
{
    di_buf_clear(&c->history);
    c->turn = 0;
    if (c->o->system)
        add_message(&c->history, "system", di_str_c(c->o->system), (struct di_str){0});
}

/* A line that begins with a slash. False for /exit. */
static bool command(struct chat *c)
{
    const char *s = c->line.p;
    if (strcmp(s, "/exit") == 0 || strcmp(s, "/quit") == 0)
        return false;
    if (strcmp(s, "/reset") == 0)
        reset(c);
    else if (strcmp(s, "/think on") == 0 || strcmp(s, "/think off") == 0)
        c->thinking = strcmp(s + 7, "on") == 0;
    else
        fputs(help_text, stderr);
    return true;
}

static void converse(struct chat *c)
{
    reset(c);
    while (read_line(c)) {
        di_error err = {0};
        size_t before = c->history.n;
        if (c->line.n == 0 || c->line.p[0] == 0)
            continue;
        if (c->line.p[0] == '/') {
            if (!command(c))
                return;
            continue;
        }
        add_message(&c->history, "user", di_buf_str(&c->line), (struct di_str){0});
        if (answer(c, &err) != DI_OK) { /* the message that failed is forgotten, the conversation goes on */
            set_dim(c, false);
            di_cli_fail("chat", &err);
            if (c->history.p) {
                c->history.n = before;
                c->history.p[before] = 0;
            }
        }
    }
}

static int run_chat(const void *options)
{
    struct chat c = {.o = options};
    di_error err = {0};
    struct sigaction sa = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a line must end */
    c.thinking = c.o->thinking;
    c.colour = isatty(STDOUT_FILENO);
    di_status status = di_load_engine(&c.o->load, &c.engine, &err);
    if (status == DI_OK) {
        sigaction(SIGINT, &sa, NULL);
        if (isatty(STDIN_FILENO) && !c.o->load.quiet)
            fputs("Talk to the model; /help lists the commands.\n", stderr);
        converse(&c);
    }
    di_engine_close(c.engine);
    di_buf_fini(&c.history);
    di_buf_fini(&c.line);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("chat", &err);
}

const struct di_command di_cmd_chat = {
    .name = "chat",
    .summary = "talk to the model in a terminal",
    .usage = "--model DIR [options]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_chat,
};
