/* deepinfer generate: JSONL in, JSONL out (design: command-line contract). Requests of many lines share the engine's steps; results leave
 * in the order of the input, so a killed run has written a prefix of its output and --resume goes on behind it. */
#include "base/clock.h"
#include "base/file.h"
#include "base/utf8.h"
#include "cli/answer.h"
#include "cli/io.h"
#include "cli/load.h"
#include "cli/resume.h"
#include "cli/stats.h"

#include <errno.h>
#include <math.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct options {
    struct di_load_options load;
    const char *prompt, *input, *output, *format;
    struct di_str_list stop, choice;
    const char *json_schema, *regex, *grammar;
    struct di_truncation_options truncation;
    int64_t max_tokens, seed;
    double temperature;
    bool raw, resume, thinking, stats;
};

#define AT(field) offsetof(struct options, field)
static const struct di_option table[] = {
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_load_table},
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_reuse_table},
    {.type = DI_OPT_PRESET, .name = "reuse", .def = "false"},
    {.name = "prompt",
     .type = DI_OPT_STRING,
     .offset = AT(prompt),
     .metavar = "TEXT",
     .help = "Answer this one prompt: a user message, or with --raw the start of a text."},
    {.name = "input",
     .type = DI_OPT_STRING,
     .offset = AT(input),
     .metavar = "FILE",
     .help = "One request per line, - for stdin: an object with messages (as for chat completions), prompt (raw text) or prompt_token_ids; "
             "optional id."},
    {.name = "output",
     .type = DI_OPT_STRING,
     .offset = AT(output),
     .metavar = "FILE",
     .help = "Where results go, one line per request; without it stdout."},
    {.name = "resume",
     .type = DI_OPT_BOOL,
     .offset = AT(resume),
     .help = "Keep the complete lines of --output and go on behind them; they must be of the same input, model and options."},
    {.name = "format",
     .type = DI_OPT_CHOICE,
     .offset = AT(format),
     .def = "auto",
     .choices = "auto|json|text",
     .help = "Of --prompt's answer: text, or a JSON line as for --input; auto is text on a terminal."},
    {.name = "max-tokens",
     .type = DI_OPT_INT,
     .offset = AT(max_tokens),
     .min = 1,
     .max = 1 << 30,
     .metavar = "N",
     .help = "Longest answer, reasoning included, where the request does not say."},
    {.name = "temperature",
     .type = DI_OPT_DOUBLE,
     .offset = AT(temperature),
     .max = 2,
     .metavar = "T",
     .help = "0 is greedy. This and the next four: where the request does not say."},
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, truncation), .table = &di_truncation_table},
    {.name = "seed",
     .type = DI_OPT_INT,
     .offset = AT(seed),
     .def = "0",
     .max = (double)INT64_MAX,
     .metavar = "S",
     .help = "Same prompt, parameters and seed: same tokens."},
    {.name = "stop",
     .type = DI_OPT_LIST,
     .offset = AT(stop),
     .metavar = "STR",
     .help = "End the answer before this text; may be given several times. For --prompt."},
    {.name = "json-schema",
     .type = DI_OPT_STRING,
     .offset = AT(json_schema),
     .metavar = "FILE",
     .help = "--prompt's answer is JSON of this schema. This and the next three: at most one of them (docs/structured.md)."},
    {.name = "regex", .type = DI_OPT_STRING, .offset = AT(regex), .metavar = "EXPR", .help = "--prompt's answer matches this expression."},
    {.name = "choice",
     .type = DI_OPT_LIST,
     .offset = AT(choice),
     .metavar = "TEXT",
     .help = "--prompt's answer is one of these; given several times."},
    {.name = "grammar",
     .type = DI_OPT_STRING,
     .offset = AT(grammar),
     .metavar = "FILE",
     .help = "--prompt's answer is a text of this grammar: EBNF or Lark."},
    {.name = "raw", .type = DI_OPT_BOOL, .offset = AT(raw), .help = "--prompt is raw text that the model continues."},
    {.name = "stats",
     .type = DI_OPT_BOOL,
     .offset = AT(stats),
     .help = "Print counters and latencies on stderr at the end: a JSON object, on a terminal also a table."},
    {.name = "thinking", .type = DI_OPT_BOOL, .offset = AT(thinking), .def = "true", .help = "Think first where the request does not say."},
};

/* One input line on its way. */
struct job {
    int64_t line;
    struct di_arena arena; /* of `id` and its text */
    const struct di_json *id;
    bool submitted; /* else `failure` is the output line */
    struct di_answer answer;
    struct di_buf failure;
    size_t bytes; /* share of run.bytes */
    bool used;
};

struct run {
    const struct options *o;
    di_engine *engine;
    di_request_defaults defaults;
    FILE *out;
    struct job *jobs; /* ring of `window` jobs in input order */
    size_t window, head, count, bytes;
    bool input_over;
    int64_t done, failed;
    struct di_fingerprint fingerprint;
    struct di_lines *in;     /* or NULL: --prompt */
    bool answered;           /* --prompt is, by an earlier run */
    struct di_buf form;      /* of --json-schema or --grammar: the file */
    uint64_t written_tokens; /* of answers that are written */
    int64_t started, shown;
    struct di_str_set warned;
};

/* ---------------------------------------------------------------- input */

/* So that a line of the largest size cannot ask for a hundred times its own memory: more values than any context has tokens, and lines are
 * not read ahead while so many bytes of them wait. */
#define MAX_VALUES ((size_t)4 << 20)
#define MAX_WAITING ((size_t)64 << 20)
static const struct di_json_limits limits = {.max_values = MAX_VALUES};

/* The line's id outlives the line. */
static di_status keep_id(struct job *j, const struct di_json *id, di_error *err)
{
    struct di_buf text = {0};
    struct di_json *copy;
    di_status status = DI_OK;
    if (!id)
        return DI_OK;
    di_json_write_compact(&text, id);
    TRY(di_buf_ok(&text, err));
    const char *kept = di_arena_strndup(&j->arena, text.p, text.n);
    CHECK(kept, err, DI_ERR_MEMORY, "", "out of memory for a request");
    TRY(di_json_parse((struct di_str){kept, text.n}, NULL, &j->arena, &copy, err));
    j->id = copy;
out:
    di_buf_fini(&text);
    return status;
}

/* What this program itself reads of a line. */
static di_status read_line(struct run *r, struct job *j, struct di_str text, bool *raw, di_error *err)
{
    struct di_json *request;
    struct di_arena arena;
    di_status status = DI_OK;
    di_arena_init(&arena);
    TRY(di_json_parse(text, &limits, &arena, &request, err));
    CHECK(di_json_is(request, DI_JSON_OBJECT), err, DI_ERR_INVALID, "", "a line must be an object, not %s", di_json_type_name(request));
    TRY(keep_id(j, di_json_get(request, "id"), err));
    *raw = !di_json_get(request, "messages");
    if (!r->o->load.quiet)
        di_answer_warn(&r->warned, request, *raw, j->line);
    CHECK(!*raw || di_json_get(request, "prompt") || di_json_get(request, "prompt_token_ids"), err, DI_ERR_INVALID, "",
          "a request needs messages, prompt or prompt_token_ids");
out:
    di_arena_fini(&arena);
    return status;
}

static di_status start_job(struct run *r, struct job *j, struct di_str text, di_error *err)
{
    di_submission s;
    bool raw;
    di_status status = read_line(r, j, text, &raw, err);
    if (status != DI_OK)
        return status;
    j->answer.engine = r->engine;
    j->answer.keep = DI_ANSWER_IDS | DI_ANSWER_LOGPROBS | DI_ANSWER_REASONING_LOGPROBS;
    di_submission_init(&s, sizeof s);
    s.json = text.p;
    s.json_bytes = text.n;
    s.protocol = raw ? "completion" : "chat";
    s.defaults = &r->defaults;
    s.on_output = di_answer_take;
    s.user = &j->answer;
    status = di_engine_submit(r->engine, &s, NULL, err);
    j->submitted = status == DI_OK;
    return status;
}

static struct job *job_at(struct run *r, size_t i)
{
    return &r->jobs[(r->head + i) % r->window];
}

/* `broken`: the line could not even be read. */
static void push_job(struct run *r, int64_t line, struct di_str text, const di_error *broken)
{
    struct job *j = job_at(r, r->count++);
    di_error err = {0};
    *j = (struct job){.line = line, .used = true};
    di_arena_init(&j->arena);
    if (broken)
        err = *broken;
    if (broken || start_job(r, j, text, &err) != DI_OK)
        di_add_error_object(&j->failure, j->id, &err, line);
    j->bytes = j->submitted ? text.n : j->failure.n;
    r->bytes += j->bytes;
}

/* Read lines until the window is full or the input over. A line that is too long is a failed job; a failing file ends the run. */
static di_status fill_window(struct run *r, di_error *err)
{
    while (!r->input_over && r->count < r->window && r->bytes < MAX_WAITING) {
        struct di_str line;
        bool more;
        di_error line_err = {0};
        di_status status = di_lines_next(r->in, &line, &more, &line_err);
        if (status != DI_OK && status != DI_ERR_LIMIT) {
            *err = line_err;
            return status;
        }
        if (status == DI_OK && !more) {
            r->input_over = true;
        } else if (status != DI_OK || !di_line_blank(line)) {
            push_job(r, r->in->number, status == DI_OK ? line : (struct di_str){0}, status == DI_OK ? NULL : &line_err);
        }
    }
    return DI_OK;
}

/* ---------------------------------------------------------------- output */

static void end_job(struct job *j)
{
    di_answer_fini(&j->answer);
    di_buf_fini(&j->failure);
    di_arena_fini(&j->arena);
    *j = (struct job){0};
}

static di_status write_job(struct run *r, struct job *j, di_error *err)
{
    struct di_buf b = {0};
    di_status status = DI_OK;
    bool failed = !j->submitted || j->answer.err.code != DI_OK;
    if (!j->submitted)
        di_buf_addv(&b, di_buf_str(&j->failure));
    else if (failed)
        di_add_error_object(&b, j->id, &j->answer.err, j->line);
    else
        di_answer_write(&b, j->id, &j->answer, r->fingerprint.text);
    r->written_tokens += j->answer.n_ids;
    r->failed += failed;
    r->done++;
    b.failed = b.failed || j->failure.failed;
    TRY(di_buf_ok(&b, err));
    TRY(di_write_line(r->out, di_buf_str(&b), err));
out:
    if (status != DI_OK && r->o->output)
        di_error_at(err, r->o->output);
    di_buf_fini(&b);
    return status;
}

static di_status write_finished(struct run *r, di_error *err)
{
    while (r->count > 0) {
        struct job *j = job_at(r, 0);
        if (j->submitted && !j->answer.finished)
            return DI_OK;
        di_status status = write_job(r, j, err);
        r->bytes -= j->bytes;
        end_job(j);
        r->head = (r->head + 1) % r->window;
        r->count--;
        if (status != DI_OK)
            return status;
    }
    return DI_OK;
}

/* Tokens sampled so far: of written answers and of those at work. */
static uint64_t live_tokens(const struct run *r)
{
    di_engine_stats s;
    if (di_engine_get_stats(r->engine, &s, sizeof s, NULL) != DI_OK)
        return r->written_tokens;
    uint64_t sampled = s.decode_rows + s.finished;
    return sampled > r->written_tokens ? sampled : r->written_tokens;
}

static void show_progress(struct run *r, bool last)
{
    int64_t now = di_clock_ns();
    if (r->o->load.quiet || !isatty(STDERR_FILENO) || (!last && now - r->shown < 200000000))
        return;
    r->shown = now;
    double seconds = (double)(now - r->started) * 1e-9;
    fprintf(stderr, "\r%lld done, %lld failed, %zu in work, %.1f tokens/s%s", (long long)r->done, (long long)r->failed, r->count,
            (double)live_tokens(r) / (seconds > 0 ? seconds : 1), last ? "\n" : "   ");
}

static void add_form(const struct run *r, struct di_buf *b)
{
    const struct options *o = r->o;
    if (o->json_schema || o->grammar || o->regex) {
        di_buf_adds(b, o->json_schema ? ",\"guided_json\":" : o->grammar ? ",\"guided_grammar\":" : ",\"guided_regex\":");
        di_json_write_string(b, o->regex ? di_str_c(o->regex) : di_buf_str(&r->form));
    }
    for (size_t i = 0; i < o->choice.count; i++) {
        di_buf_adds(b, i ? "," : ",\"guided_choice\":[");
        di_json_write_string(b, di_str_c(o->choice.items[i]));
    }
    di_buf_adds(b, o->choice.count ? "]" : "");
}

/* --prompt as the line that --input would have. */
static void prompt_line(const struct run *r, struct di_buf *b)
{
    const struct options *o = r->o;
    struct di_str text = di_str_c(o->prompt);
    di_buf_adds(b, o->raw ? "{\"prompt\":" : "{\"messages\":[{\"role\":\"user\",\"content\":");
    di_json_write_string(b, text);
    di_buf_adds(b, o->raw ? "" : "}]");
    for (size_t i = 0; i < o->stop.count; i++) {
        di_buf_adds(b, i ? "," : ",\"stop\":[");
        di_json_write_string(b, di_str_c(o->stop.items[i]));
    }
    di_buf_adds(b, o->stop.count ? "]" : "");
    add_form(r, b);
    di_buf_addc(b, '}');
}

/* What of the options can change an answer. --reuse, threads, batches and chunks cannot. */
static di_status make_fingerprint(struct run *r, di_error *err)
{
    const struct options *o = r->o;
    struct di_buf b = {0};
    di_model_info info;
    di_status status = DI_OK;
    TRY(di_engine_info(r->engine, &info, sizeof info, err));
    di_buf_addf(&b, "%s %s %s %lld %lld", o->load.isa ? o->load.isa : "", o->load.numerics, o->load.replay, (long long)o->load.replay_rows,
                (long long)info.context);
    di_buf_addf(&b, " %.17g %.17g %.17g %lld %lld %lld %d", r->defaults.temperature, r->defaults.top_p, r->defaults.min_p,
                (long long)r->defaults.top_k, (long long)r->defaults.seed, (long long)r->defaults.max_tokens, (int)r->defaults.thinking);
    if (o->prompt)
        prompt_line(r, &b);
    TRY(di_buf_ok(&b, err));
    di_fingerprint_make(&r->fingerprint, info.digest, di_buf_str(&b));
out:
    di_buf_fini(&b);
    return status;
}

static di_status go_on(struct run *r, di_error *err)
{
    struct di_resume old = {.output = r->o->output, .run = r->fingerprint, .in = r->in, .limits = &limits};
    di_status status = di_resume(&old, err);
    r->failed += old.failed;
    r->answered = !r->in && old.kept > 0;
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static di_status open_output(struct run *r, di_error *err)
{
    r->out = stdout;
    if (r->o->output && r->o->input && same_file(r->o->input, r->o->output))
        return di_fail(err, DI_ERR_INVALID, "output", "%s is the input, which would be overwritten", r->o->output);
    if (!r->o->output)
        return r->o->resume ? di_fail(err, DI_ERR_INVALID, "resume", "--resume needs --output") : DI_OK;
    struct stat st;
    r->out = fopen(r->o->output, "a");
    if (!r->out || fstat(fileno(r->out), &st) != 0)
        return di_fail(err, DI_ERR_IO, r->o->output, "cannot be written: %s", strerror(errno));
    /* Two runs that write one file would mix their lines. A file system without locks is no reason to stop. */
    if (S_ISREG(st.st_mode) && flock(fileno(r->out), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return di_fail(err, DI_ERR_IO, r->o->output, "is being written by another run");
    if (r->o->resume)
        return go_on(r, err);
    return !S_ISREG(st.st_mode) || ftruncate(fileno(r->out), 0) == 0
               ? DI_OK
               : di_fail(err, DI_ERR_IO, r->o->output, "cannot be emptied: %s", strerror(errno));
}

/* ---------------------------------------------------------------- runs */

static di_status run_jobs(struct run *r, di_error *err)
{
    di_status status = DI_OK;
    r->started = di_clock_ns();
    for (;;) {
        if (r->in)
            TRY(fill_window(r, err));
        TRY(write_finished(r, err));
        if (r->count == 0 && (!r->in || r->input_over))
            break;
        if (r->count > 0)
            TRY(di_engine_step(r->engine, NULL, err));
        show_progress(r, false);
    }
    show_progress(r, true);
out:
    return status;
}

static di_status run_prompt(struct run *r, di_error *err)
{
    const struct options *o = r->o;
    struct di_buf line = {0}, shown = {0};
    di_status status = DI_OK;
    bool text = strcmp(o->format, "text") == 0 || (strcmp(o->format, "auto") == 0 && !o->output && isatty(STDOUT_FILENO));
    if (r->answered)
        return DI_OK;
    prompt_line(r, &line);
    TRY(di_buf_ok(&line, err));
    push_job(r, 0, di_buf_str(&line), NULL);
    struct job *j = job_at(r, 0);
    if (!text) {
        TRY(run_jobs(r, err));
        goto out;
    }
    TRY(di_engine_run(r->engine, err));
    if (j->answer.err.code != DI_OK) {
        r->failed++;
        di_cli_fail("generate", &j->answer.err);
        goto out;
    }
    di_answer_write_text(&shown, &j->answer);
    TRY(di_buf_ok(&shown, err));
    TRY(di_write_text(r->out, di_buf_str(&shown), err));
out:
    di_buf_fini(&line);
    di_buf_fini(&shown);
    return status;
}

#define MAX_FORM ((size_t)16 << 20)

static di_status read_form(struct run *r, di_error *err)
{
    const struct options *o = r->o;
    const char *file = o->json_schema ? o->json_schema : o->grammar;
    int forms = (o->json_schema != NULL) + (o->grammar != NULL) + (o->regex != NULL) + (o->choice.count > 0);
    di_status status = DI_OK;
    CHECK(forms <= 1, err, DI_ERR_INVALID, "", "give at most one of --json-schema, --regex, --choice and --grammar");
    CHECK(!forms || o->prompt, err, DI_ERR_INVALID, "",
          "--json-schema, --regex, --choice and --grammar are for --prompt; a line of --input has its own fields");
    if (file)
        TRY(di_file_read(file, MAX_FORM, &r->form, err));
    CHECK(di_utf8_valid(file ? di_buf_str(&r->form) : di_str_c(o->regex), NULL), err, DI_ERR_INVALID, file ? file : "regex",
          "is not valid UTF-8");
    for (size_t i = 0; i < o->choice.count; i++)
        CHECK(di_utf8_valid(di_str_c(o->choice.items[i]), NULL), err, DI_ERR_INVALID, "choice", "is not valid UTF-8");
out:
    return status;
}

static di_status run_all(struct run *r, di_error *err)
{
    const struct options *o = r->o;
    di_status status = DI_OK;
    struct di_lines in;
    CHECK((o->prompt != NULL) != (o->input != NULL), err, DI_ERR_INVALID, "", "give either --prompt TEXT or --input FILE");
    CHECK(o->stop.count == 0 || o->prompt, err, DI_ERR_INVALID, "stop", "--stop is for --prompt; a line of --input has its own field stop");
    CHECK(!o->prompt || di_utf8_valid(di_str_c(o->prompt), NULL), err, DI_ERR_INVALID, "prompt", "is not valid UTF-8");
    TRY(read_form(r, err));
    if (o->input) {
        TRY(di_lines_open(&in, o->input, 0, err));
        r->in = &in;
    }
    TRY(di_load_engine(&o->load, &r->engine, err));
    TRY(make_fingerprint(r, err));
    TRY(open_output(r, err)); /* after the model: a mistyped one must not cost the old results */
    r->window = (size_t)o->load.max_batch * 4;
    r->jobs = di_calloc(r->window, sizeof *r->jobs);
    CHECK(r->jobs, err, DI_ERR_MEMORY, "", "out of memory for %zu requests", r->window);
    TRY(o->prompt ? run_prompt(r, err) : run_jobs(r, err));
out:
    if (r->in)
        di_lines_close(r->in);
    r->in = NULL;
    return status;
}

static void print_stats(di_engine *engine)
{
    struct di_buf b = {0};
    di_engine_flush(engine, NULL); /* so that the accounts are those of an idle engine */
    di_stats_write(&b, engine);
    di_buf_addc(&b, '\n');
    if (isatty(STDERR_FILENO))
        di_stats_write_table(&b, engine);
    if (b.p && !b.failed)
        fputs(b.p, stderr);
    di_buf_fini(&b);
}

static int run_generate(const void *options)
{
    struct run r = {.o = options};
    const struct options *o = options;
    di_error err = {0};
    di_request_defaults_init(&r.defaults, sizeof r.defaults);
    r.defaults.thinking = o->thinking;
    r.defaults.temperature = o->temperature;
    r.defaults.top_p = o->truncation.top_p;
    r.defaults.min_p = o->truncation.min_p;
    r.defaults.top_k = o->truncation.top_k;
    r.defaults.seed = o->seed;
    r.defaults.max_tokens = o->max_tokens > 0 ? o->max_tokens : 0;
    di_status status = run_all(&r, &err);
    if (o->stats && r.engine)
        print_stats(r.engine);
    di_engine_close(r.engine);
    for (size_t i = 0; r.jobs && i < r.window; i++)
        if (r.jobs[i].used)
            end_job(&r.jobs[i]);
    di_free(r.jobs);
    di_str_set_fini(&r.warned);
    di_buf_fini(&r.form);
    if (r.out && r.out != stdout && fclose(r.out) != 0 && status == DI_OK)
        status = di_fail(&err, DI_ERR_IO, o->output, "cannot be written: %s", strerror(errno));
    if (status != DI_OK)
        return di_cli_fail("generate", &err);
    return r.failed ? DI_EXIT_SOME_FAILED : DI_EXIT_OK;
}

const struct di_command di_cmd_generate = {
    .name = "generate",
    .summary = "answer prompts offline: JSONL in, JSONL out, or one --prompt",
    .usage = "--model DIR (--prompt TEXT | --input FILE.jsonl) [--output FILE.jsonl] [options]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_generate,
};
