/* Options of a subcommand: one table defines name, type, range, default and help text of each. Values come from flags, then from a
 * TOML-like file (--config FILE, base/toml.h: `name = value` lines, [subcommand] sections), then from the default. */
#ifndef DI_BASE_OPTIONS_H
#define DI_BASE_OPTIONS_H

#include "base/str.h"

enum di_option_type {
    DI_OPT_BOOL,   /* bool: --name, --no-name, --name=true|false */
    DI_OPT_INT,    /* int64_t within [min, max] */
    DI_OPT_DOUBLE, /* double within [min, max]; NaN is refused */
    DI_OPT_STRING, /* const char *, NULL if absent and no default */
    DI_OPT_CHOICE, /* const char *, one of the words in `choices`, separated by '|' */
    DI_OPT_LIST,   /* struct di_str_list: may be given several times, in order */
    /* Rows that are no options */
    DI_OPT_TABLE, /* those of `table`, whose struct lies at `offset` */
    DI_OPT_PRESET /* another default, `def`, of the option `name` in a table that comes before */
};

struct di_str_list {
    const char **items;
    size_t count;
};

struct di_option {
    const char *name; /* without dashes, words joined by '-' */
    enum di_option_type type;
    size_t offset;       /* of the field in the options struct */
    const char *def;     /* default as text, NULL = absent (NaN for double, INT64_MIN for int, false, empty list); LIST: one item */
    double min, max;     /* numbers; both 0 = any */
    const char *choices; /* CHOICE */
    const char *metavar; /* shown in help: "DIR", "N", ... */
    const char *help;    /* one or two sentences */
    bool required;
    const struct di_option_table *table; /* TABLE */
};

/* Options that several commands have, or all that one has. */
struct di_option_table {
    const struct di_option *rows;
    size_t n;
};

struct di_command {
    const char *name, *summary, *usage; /* usage: the line after "deepinfer NAME" */
    const char *word; /* an option whose value may stand first, without its flag ("deepinfer grammar check"); NULL: none */
    const struct di_option *options;
    size_t n_options, options_size; /* options_size: bytes of the options struct */
    /* Runs the subcommand with parsed options; returns the process exit status. stdout carries results only, stderr messages only. */
    int (*run)(const void *options);
};

/* Where values come from. `commands` are all commands of the program: names in a file that belong to another command are then checked
 * too and skipped; without it (n_commands 0) a file may hold only what `cmd` knows. */
struct di_args {
    int argc; /* without program and subcommand names */
    char **argv;
    const struct di_command *const *commands;
    size_t n_commands;
};

/* Fill `out` (options_size bytes) from args. Strings borrow from argv or live in `arena`. A flag beats the file, a [subcommand] section
 * of the file beats the lines above the first section. A repeated flag: the last one counts, but a LIST collects; flags of a LIST
 * replace the file's list. Unknown flags, stray words, missing values, values out of range and missing required options are
 * DI_ERR_INVALID with a sentence that names the flag and, for an unknown one, the nearest known name; errors of a file have `where` =
 * "FILE:LINE". `--help` (-h) and `--print-config` set *special to 'h' or 'p' (else 0); then nothing needs to be present. */
di_status di_options_parse(const struct di_command *cmd, const struct di_args *args, struct di_arena *arena, void *out, char *special,
                           di_error *err);
/* Append the help text, at most 100 columns wide. */
void di_options_help(struct di_buf *b, const struct di_command *cmd);
/* Append the effective values in the file format that --config reads. */
void di_options_print(struct di_buf *b, const struct di_command *cmd, const void *values);
/* The candidate nearest to a mistyped word, or NULL when none is near. */
const char *di_nearest(const char *word, const char *const *candidates, size_t n);

#endif
