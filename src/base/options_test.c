/* not run under TSan: no threads */
#include "base/options.h"

#include "base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct values {
    const char *model, *backend, *note;
    int64_t max_tokens, seed;
    double temperature, min_p;
    bool raw, colour;
    struct di_str_list stop;
};

static const struct di_option options[] = {
    {.name = "model",
     .type = DI_OPT_STRING,
     .offset = offsetof(struct values, model),
     .metavar = "DIR",
     .help = "Checkpoint directory.",
     .required = true},
    {.name = "max-tokens",
     .type = DI_OPT_INT,
     .offset = offsetof(struct values, max_tokens),
     .def = "256",
     .min = 1,
     .max = 1e6,
     .help = "Stop after this many tokens. This help text is long on purpose, so that it must be wrapped more than once."},
    {.name = "seed", .type = DI_OPT_INT, .offset = offsetof(struct values, seed), .max = 1e18, .help = "Seed."},
    {.name = "temperature",
     .type = DI_OPT_DOUBLE,
     .offset = offsetof(struct values, temperature),
     .def = "1.0",
     .max = 2,
     .metavar = "T",
     .help = "Temperature."},
    {.name = "min-p", .type = DI_OPT_DOUBLE, .offset = offsetof(struct values, min_p), .metavar = "P", .help = "Any number."},
    {.name = "backend",
     .type = DI_OPT_CHOICE,
     .offset = offsetof(struct values, backend),
     .def = "cpu",
     .choices = "cpu|cuda",
     .help = "Back end."},
    {.name = "note", .type = DI_OPT_STRING, .offset = offsetof(struct values, note), .help = "Any text."},
    {.name = "raw", .type = DI_OPT_BOOL, .offset = offsetof(struct values, raw), .help = "No template."},
    {.name = "colour", .type = DI_OPT_BOOL, .offset = offsetof(struct values, colour), .def = "true", .help = "Colours."},
    {.name = "stop", .type = DI_OPT_LIST, .offset = offsetof(struct values, stop), .metavar = "STR", .help = "Stop string."},
};
static const struct di_option other_options[] = {
    {.name = "model", .type = DI_OPT_STRING, .metavar = "DIR", .help = "Checkpoint directory.", .required = true},
    {.name = "plan", .type = DI_OPT_BOOL, .offset = 8, .help = "Plan."},
};
static const struct di_command command = {.name = "generate",
                                          .summary = "Make text.",
                                          .usage = "--model DIR [options]",
                                          .options = options,
                                          .n_options = sizeof options / sizeof *options,
                                          .options_size = sizeof(struct values)};
static const struct di_command other = {
    .name = "inspect", .summary = "Look.", .options = other_options, .n_options = 2, .options_size = 16};
static const struct di_command *const all[] = {&command, &other};

struct fixture {
    struct di_arena arena;
    struct values v;
    di_error err;
    char special;
};

/* Arguments separated by '|'. */
static di_status parse(struct fixture *f, const char *line)
{
    static char text[4096], *argv[64];
    struct di_args args = {.argv = argv, .commands = all, .n_commands = 2};
    snprintf(text, sizeof text, "%s", line);
    for (char *p = text; p && *line;) {
        argv[args.argc++] = p;
        p = strchr(p, '|');
        if (p)
            *p++ = 0;
    }
    memset(&f->err, 0, sizeof f->err);
    return di_options_parse(&command, &args, &f->arena, &f->v, &f->special, &f->err);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    *state = f;
    return f ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    di_arena_fini(&f->arena);
    free(f);
    return 0;
}

static void test_defaults_and_flags(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(parse(f, "--model|m"), DI_OK);
    assert_string_equal(f->v.model, "m");
    assert_int_equal(f->v.max_tokens, 256);
    assert_true(f->v.seed == INT64_MIN);
    assert_true(f->v.temperature == 1.0 && isnan(f->v.min_p));
    assert_string_equal(f->v.backend, "cpu");
    assert_null(f->v.note);
    assert_false(f->v.raw);
    assert_true(f->v.colour);
    assert_int_equal(f->v.stop.count, 0);
    assert_int_equal(f->special, 0);

    assert_int_equal(parse(f, "--model=a=b|--max-tokens|7|--max-tokens=9|--seed=1000000000000000000|--temperature=0.5|--min-p|-1e-3|"
                              "--backend=cuda|--raw|--no-colour|--note=|--stop|--x|--stop=--raw|--stop|y"),
                     DI_OK);
    assert_string_equal(f->v.model, "a=b");
    assert_int_equal(f->v.max_tokens, 9);
    assert_int_equal(f->v.seed, 1000000000000000000);
    assert_true(f->v.temperature == 0.5 && f->v.min_p == -1e-3);
    assert_string_equal(f->v.backend, "cuda");
    assert_true(f->v.raw);
    assert_false(f->v.colour);
    assert_string_equal(f->v.note, "");
    assert_int_equal(f->v.stop.count, 3);
    assert_string_equal(f->v.stop.items[0], "--x");
    assert_string_equal(f->v.stop.items[1], "--raw");
    assert_string_equal(f->v.stop.items[2], "y");
    assert_int_equal(parse(f, "--model=m|--raw|--no-raw|--colour=false|--raw=true"), DI_OK);
    assert_true(f->v.raw);
    assert_false(f->v.colour);
}

static void test_refused_flags(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "--model DIR is required"},
        {"--model", "--model needs a value"},
        {"--model|--raw", "--model needs a value, but the flag --raw follows"},
        {"--model=m|extra", "\"extra\" stands where a flag"},
        {"--model=m|-x", "\"-x\" stands where a flag"},
        {"--model=m|--", "\"--\" stands where a flag"},
        {"--modle=m", "did you mean --model?"},
        {"--model=m|--max-token=3", "did you mean --max-tokens?"},
        {"--model=m|--max_tokens=3", "did you mean --max-tokens?"},
        {"--model=m|--tempreature=3", "did you mean --temperature?"},
        {"--model=m|--xyzzy", "there is no flag --xyzzy of `generate`"},
        {"--model=m|--no-model", "there is no flag --no-model"},
        {"--model=m|--no-raw=true", "--no-raw takes no value"},
        {"--model=m|--raw=yes", "--raw must be true or false, not \"yes\""},
        {"--model=m|--max-tokens=0", "--max-tokens must be a whole number between 1 and 1000000, not \"0\""},
        {"--model=m|--max-tokens=1.5", "--max-tokens must be a whole number"},
        {"--model=m|--max-tokens= 1", "--max-tokens must be a whole number"},
        {"--model=m|--max-tokens=", "--max-tokens must be a whole number"},
        {"--model=m|--seed=99999999999999999999", "--seed must be a whole number of at least 0 and at most 9223372036854775807"},
        {"--model=m|--seed=-1", "--seed must be a whole number of at least 0"},
        {"--model=m|--temperature=nan", "--temperature must be a number between 0 and 2, not \"nan\""},
        {"--model=m|--temperature=2.1", "--temperature must be a number between 0 and 2"},
        {"--model=m|--min-p=inf", "--min-p must be a number, not \"inf\""},
        {"--model=m|--min-p=1e999", "--min-p must be a number"},
        {"--model=m|--min-p=0x10", "--min-p must be a number"},
        {"--model=m|--min-p=1e", "--min-p must be a number"},
        {"--model=m|--backend=cp", "--backend must be one of cpu|cuda, not \"cp\""},
        {"--model=m|--backend=", "--backend must be one of"},
        {"--model=m|--backend=cpu|--config=does-not-exist.toml", "cannot be opened"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_status status = parse(f, cases[i].line);
        if (status == DI_OK || !strstr(f->err.message, cases[i].says))
            fail_msg("\"%s\": status %d, message \"%s\", expected \"%s\"", cases[i].line, (int)status, f->err.message, cases[i].says);
    }
}

static void test_special(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(parse(f, "--raw|--help|--nonsense"), DI_OK);
    assert_int_equal(f->special, 'h');
    assert_int_equal(parse(f, "-h"), DI_OK);
    assert_int_equal(f->special, 'h');
    assert_int_equal(parse(f, "--print-config|--max-tokens=3"), DI_OK);
    assert_int_equal(f->special, 'p');
    assert_int_equal(f->v.max_tokens, 3);
    assert_int_equal(parse(f, "--print-config|--max-tokens=0"), DI_ERR_INVALID);
}

/* Parse with --config of this content and further flags. */
static di_status with_file(struct fixture *f, const char *content, const char *flags)
{
    char path[] = "/tmp/deepinfer-options-XXXXXX", line[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(di_file_write(fd, path, content, strlen(content), NULL), DI_OK);
    close(fd);
    snprintf(line, sizeof line, "--config=%s%s%s", path, *flags ? "|" : "", flags);
    di_status status = parse(f, line);
    unlink(path);
    return status;
}

static void test_file(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(with_file(f,
                               "\xEF\xBB\xBF# all commands\r\nmodel = \"a\\\"\\u00e9\\n\" # text\nmax-tokens = 5\nplan = true\n"
                               "stop = ['top']\n\n[inspect]\nplan=false\n [ generate ]\nraw = true\ncolour=false\n"
                               "temperature = 1e-1\nstop = [ \"a\", # one\n  'b\\n',\n]\nbackend = 'cuda'",
                               ""),
                     DI_OK);
    assert_string_equal(f->v.model, "a\"\xC3\xA9\n");
    assert_int_equal(f->v.max_tokens, 5);
    assert_true(f->v.raw && !f->v.colour && f->v.temperature == 0.1);
    assert_int_equal(f->v.stop.count, 2);
    assert_string_equal(f->v.stop.items[0], "a");
    assert_string_equal(f->v.stop.items[1], "b\\n");
    assert_string_equal(f->v.backend, "cuda");

    assert_int_equal(with_file(f, "model='x'\nmax-tokens=5\nstop='s'\n[generate]\nmax-tokens=6\n", "--max-tokens=7|--stop=t"), DI_OK);
    assert_int_equal(f->v.max_tokens, 7);
    assert_int_equal(f->v.stop.count, 1);
    assert_string_equal(f->v.stop.items[0], "t");
    assert_int_equal(with_file(f, "model='x'\nmax-tokens=5\nstop=['s']\n[generate]\nmax-tokens=6\nstop=[]\n", ""), DI_OK);
    assert_int_equal(f->v.max_tokens, 6);
    assert_int_equal(f->v.stop.count, 0);
}

static void test_refused_files(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *content;
        int line;
        const char *says;
    } cases[] = {
        {"model='m'\nmax-token = 3", 2, "did you mean max-tokens?"},
        {"model='m'\n[generat]\nraw=true", 3, "did you mean [generate]?"},
        {"[inspect]\nplam = true", 2, "there is no option plam of `inspect`; did you mean plan?"},
        {"[inspect]\nplan = 'x'", 2, "plan needs a value without quotes"},
        {"[generate]\nplan = true", 2, "there is no option plan of `generate`"},
        {"model = m", 1, "model needs a \"quoted\" value"},
        {"max-tokens = '3'", 1, "max-tokens needs a value without quotes"},
        {"\n\nmax-tokens = 0", 3, "max-tokens must be a whole number between 1 and 1000000, not \"0\""},
        {"temperature = nan", 1, "temperature must be a number"},
        {"max-tokens = [3]", 1, "max-tokens takes one value, not an array"},
        {"raw = true\nraw = true", 2, "raw is given twice"},
        {"model = 'm\n", 1, "closing quote"},
        {"model = \"m\\\"\n", 1, "closing quote"},
        {"model = \"\\q\"", 1, "unknown escape"},
        {"model = \"\\ud800\"", 1, "names no character"},
        {"model = \"\\u0000\"", 1, "names no character"},
        {"model = \"\\u12\"", 1, "hexadecimal"},
        {"model = \"\"\"x\"\"\"", 1, "multi-line"},
        {"model = 'm' x", 1, "something follows"},
        {"model 'm'", 1, "'=' was expected"},
        {"a.b = 1", 1, "'=' was expected"},
        {"= 1", 1, "was expected"},
        {"model =\n", 1, "a value was expected"},
        {"[generate", 1, "']' was expected"},
        {"[]", 1, "section name"},
        {"[[generate]]", 1, "section name"},
        {"[generate] x", 1, "something follows"},
        {"stop = ['a' 'b']", 1, "',' or ']'"},
        {"stop = ['a',\n", 2, "ends inside an array"},
        {"#\n\xFF", 2, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char tail[16];
        snprintf(tail, sizeof tail, ":%d", cases[i].line);
        di_status status = with_file(f, cases[i].content, "");
        size_t n = strlen(f->err.where), m = strlen(tail);
        if (status == DI_OK || !strstr(f->err.message, cases[i].says) || n < m || strcmp(f->err.where + n - m, tail) != 0 ||
            !strstr(f->err.where, "deepinfer-options-"))
            fail_msg("\"%s\": status %d, where %s, message \"%s\", expected line %d and \"%s\"", cases[i].content, (int)status,
                     f->err.where, f->err.message, cases[i].line, cases[i].says);
    }
}

static void test_print_round_trip(void **state)
{
    struct fixture *f = *state;
    struct di_buf first = {0}, second = {0};
    assert_int_equal(parse(f, "--print-config|--model=a\"\\\t\x01\xC3\xA9|--temperature=0.1|--min-p=1e-300|--seed=0|--stop=x,\"|--stop=|"
                              "--no-colour|--raw"),
                     DI_OK);
    di_options_print(&first, &command, &f->v);
    assert_int_equal(with_file(f, first.p, ""), DI_OK);
    di_options_print(&second, &command, &f->v);
    assert_string_equal(first.p, second.p);
    assert_non_null(strstr(first.p, "[generate]\n"));
    assert_non_null(strstr(first.p, "\ntemperature = 0.1\n"));
    assert_non_null(strstr(first.p, "\n# note =\n"));
    assert_string_equal(f->v.model, "a\"\\\t\x01\xC3\xA9");
    assert_int_equal(f->v.stop.count, 2);
    di_buf_fini(&first);
    di_buf_fini(&second);
}

static void test_help_layout(void **state)
{
    (void)state;
    struct di_buf b = {0};
    di_options_help(&b, &command);
    assert_int_equal(strncmp(b.p, "Usage: deepinfer generate --model DIR [options]\n\nMake text.\n", 60), 0);
    int wrapped = 0;
    for (const char *p = b.p; *p; p += strcspn(p, "\n") + 1) {
        assert_true(strcspn(p, "\n") <= 100);
        assert_true(strcspn(p, "\n") == 0 || p[strcspn(p, "\n") - 1] != ' ');
        wrapped += strspn(p, " ") == 28;
    }
    assert_true(wrapped >= 1);
    assert_non_null(strstr(b.p, "  --model DIR               Checkpoint directory. Required.\n"));
    assert_non_null(strstr(b.p, "  --temperature T           Temperature. A number between 0 and 2. Default: 1.0.\n"));
    assert_non_null(strstr(b.p, "  --backend cpu|cuda        Back end. Default: cpu.\n"));
    assert_non_null(strstr(b.p, "  --[no-]colour             Colours. Default: true.\n"));
    assert_non_null(strstr(b.p, "  --stop STR                Stop string. May be given several times.\n"));
    assert_non_null(strstr(b.p, "  --config FILE "));
    assert_non_null(strstr(b.p, "  --print-config "));
    assert_non_null(strstr(b.p, "  --help "));
    di_buf_fini(&b);
}

/* A table that lies within another command's struct, and another default for one of its rows. */
static void test_included_table(void **state)
{
    struct outer {
        int64_t first;
        struct values inner;
    } v;
    static const struct di_option_table table = {options, sizeof options / sizeof *options};
    static const struct di_option rows[] = {
        {.name = "first", .type = DI_OPT_INT, .def = "7"},
        {.type = DI_OPT_TABLE, .offset = offsetof(struct outer, inner), .table = &table},
        {.type = DI_OPT_PRESET, .name = "max-tokens", .def = "31"},
        {.type = DI_OPT_PRESET, .name = "raw", .def = "true"},
    };
    const struct di_command outer = {
        .name = "outer", .summary = "Both.", .options = rows, .n_options = sizeof rows / sizeof *rows, .options_size = sizeof v};
    struct fixture *f = *state;
    char *argv[] = {"--model", "m", "--temperature=0.5", "--stop", "a", "--stop", "b"};
    struct di_args args = {.argc = 7, .argv = argv};
    assert_int_equal(di_options_parse(&outer, &args, &f->arena, &v, &f->special, &f->err), DI_OK);
    assert_int_equal(v.first, 7);
    assert_string_equal(v.inner.model, "m");
    assert_true(v.inner.temperature == 0.5);
    assert_int_equal(v.inner.max_tokens, 31);
    assert_true(v.inner.raw && v.inner.colour);
    assert_int_equal(v.inner.stop.count, 2);
    struct di_buf b = {0};
    di_options_print(&b, &outer, &v);
    assert_non_null(strstr(b.p, "first = 7\nmodel = \"m\"\nmax-tokens = 31\n"));
    b.n = 0;
    di_options_help(&b, &outer);
    assert_non_null(strstr(b.p, "Default: 31."));
    assert_null(strstr(b.p, "Default: 256."));
    di_buf_fini(&b);
    assert_int_equal(options[1].offset, offsetof(struct values, max_tokens)); /* the table itself stays */
    assert_string_equal(options[1].def, "256");
}

static void test_nearest(void **state)
{
    (void)state;
    static const char *const names[] = {"generate", "chat", "render", "parse"};
    assert_string_equal(di_nearest("genrate", names, 4), "generate");
    assert_string_equal(di_nearest("caht", names, 4), "chat");
    assert_string_equal(di_nearest("rendr", names, 4), "render");
    static const char *const swapped[] = {"ba"};
    assert_string_equal(di_nearest("ab", swapped, 1), "ba");
    assert_null(di_nearest("serve", names, 4));
    assert_null(di_nearest("x", names, 4));
    assert_null(di_nearest("", names, 4));
}

#define WITH_FIXTURE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FIXTURE(test_defaults_and_flags),
        WITH_FIXTURE(test_refused_flags),
        WITH_FIXTURE(test_special),
        WITH_FIXTURE(test_file),
        WITH_FIXTURE(test_refused_files),
        WITH_FIXTURE(test_print_round_trip),
        cmocka_unit_test(test_help_layout),
        WITH_FIXTURE(test_included_table),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
