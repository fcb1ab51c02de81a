#include "cli/commands.h"
#include "cli/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

/* clang-format off */
static const struct di_command *const table[] = {
    &di_cmd_generate,
    &di_cmd_chat,
    &di_cmd_serve,
    &di_cmd_inspect,
    &di_cmd_tokenize,
    &di_cmd_render,
    &di_cmd_parse,
    &di_cmd_grammar,
    &di_cmd_logits,
    &di_cmd_perplexity,
    &di_cmd_image,
    &di_cmd_bench,
    &di_cmd_image_worker,
};
/* clang-format on */
#define N_COMMANDS (sizeof table / sizeof *table)

/* A closed descriptor 0, 1 or 2 would be given to the next file that is opened, and results would go there. What is opened here
 * instead fails on use: stdin can only be written, stdout and stderr can only be read. */
static void guard_descriptors(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(DI_EXIT_FAILED);
}

static void add_help(struct di_buf *b)
{
    di_buf_adds(b, "Usage: deepinfer COMMAND [options]\n\nRuns DeepSeek-V4.1-Flash from its released checkpoint.\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        di_buf_addf(b, "  %-12s  %s\n", table[i]->name, table[i]->summary);
    di_buf_adds(b, "\n`deepinfer COMMAND --help` lists the options of a command. `deepinfer --version` prints the version.\n"
                   "Exit status: 0 all good, 1 some input lines failed, 2 wrong usage or the model cannot be used.\n");
}

/* Write text made by the program itself to stdout. */
static int show_text(const char *command, struct di_buf *b)
{
    di_error err = {0};
    bool ok = di_buf_ok(b, &err) == DI_OK && di_write_text(stdout, di_buf_str(b), &err) == DI_OK;
    di_buf_fini(b);
    return ok ? DI_EXIT_OK : di_cli_fail(command, &err);
}

static int show_help(void)
{
    struct di_buf b = {0};
    add_help(&b);
    return show_text("--help", &b);
}

static const struct di_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    return NULL;
}

static int unknown_command(const char *word)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = table[i]->name;
    const char *near = di_nearest(word, names, N_COMMANDS);
    fprintf(stderr, word[0] == '-' ? "deepinfer: a command must stand before the flag %.60s" : "deepinfer: there is no command \"%.60s\"",
            word);
    if (near)
        fprintf(stderr, "; did you mean `deepinfer %s`?", near);
    fputs("\nSee `deepinfer --help`.\n", stderr);
    return DI_EXIT_FAILED;
}

static int run_parsed(const struct di_command *cmd, const void *values, char special)
{
    struct di_buf b = {0};
    if (special == 'h')
        di_options_help(&b, cmd);
    else if (special == 'p')
        di_options_print(&b, cmd, values);
    else
        return cmd->run(values);
    return show_text(cmd->name, &b);
}

static int run_command(const struct di_command *cmd, int argc, char **argv)
{
    struct di_args args = {.argc = argc, .argv = argv, .commands = table, .n_commands = N_COMMANDS};
    struct di_arena arena;
    di_error err = {0};
    char special;
    int exit_status;
    di_arena_init(&arena);
    void *values = di_calloc(1, cmd->options_size);
    if (!values) {
        di_fail(&err, DI_ERR_MEMORY, "", "out of memory");
        exit_status = di_cli_fail(cmd->name, &err);
    } else if (di_options_parse(cmd, &args, &arena, values, &special, &err) != DI_OK) {
        exit_status = di_cli_fail(cmd->name, &err);
        fprintf(stderr, "See `deepinfer %s --help`.\n", cmd->name);
    } else {
        exit_status = run_parsed(cmd, values, special);
    }
    di_free(values);
    di_arena_fini(&arena);
    return exit_status;
}

/* What a command left in stdio's buffer may still fail to reach a full disk or a closed pipe. Only the first failure is told. */
static int close_output(int exit_status)
{
    errno = 0;
    bool failed = ferror(stdout) != 0;
    if ((fflush(stdout) != 0 || failed) && exit_status != DI_EXIT_FAILED) {
        fprintf(stderr, "deepinfer: standard output: cannot write: %s\n", errno ? strerror(errno) : "an earlier write failed");
        return DI_EXIT_FAILED;
    }
    return exit_status;
}

int main(int argc, char **argv)
{
    guard_descriptors();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe becomes an error of write */
    signal(SIGXFSZ, SIG_IGN); /* and so does the limit of file sizes (ulimit -f) */
    const char *word = argc > 1 ? argv[1] : "";
    const struct di_command *cmd = find_command(word);
    if (cmd)
        return close_output(run_command(cmd, argc - 2, argv + 2));
    if (argc < 2) {
        struct di_buf b = {0};
        add_help(&b);
        fputs(b.failed ? "" : b.p, stderr);
        di_buf_fini(&b);
        return DI_EXIT_FAILED;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0)
        return show_help();
    if (strcmp(word, "--version") == 0) {
        struct di_buf b = {0};
        di_buf_addf(&b, "deepinfer %s\n", di_version());
        return show_text("--version", &b);
    }
    return unknown_command(word);
}
