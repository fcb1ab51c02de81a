/* Options of a subcommand: one table defines name, type, range, default and help text of each. Values come from flags, then from a
 * TOML-like file (--config FILE: `name = value` lines, `#` comments, quoted strings, [subcommand] sections), then from the default. */
#ifndef DI_BASE_OPTIONS_H
#define DI_BASE_OPTIONS_H

#include "base/str.h"

enum di_option_type {
    DI_OPT_BOOL,   /* bool: --name, --no-name, --name=true|false */
    DI_OPT_INT,    /* int64_t within [min, max] */
    DI_OPT_DOUBLE, /* double within [min, max]; NaN is refused */
    DI_OPT_STRING, /* const char *, NULL if absent and no default */
    DI_OPT_CHOICE, /* const char *, one of the words in `choices`, separated by '|' */
    DI_OPT_LIST    /* struct di_str_list: may be given several times, in order */
};

struct di_str_list {
    const char **items;
    size_t count;
};

struct di_option {
    const char *name; /* without dashes, words joined by '-' */
    enum di_option_type type;
    size_t offset;       /* of the field in the options struct */
    const char *def;     /* default as text, NULL = absent (numbers: NaN for double, INT64_MIN for int) */
    double min, max;     /* numbers; both 0 = any */
    const char *choices; /* CHOICE */
    const char *metavar; /* shown in help: "DIR", "N", ... */
    const char *help;    /* one or two sentences */
    bool required;
};

struct di_command {
    const char *name, *summary, *usage; /* usage: the line after "deepinfer NAME" */
    const struct di_option *options;
    size_t n_options, options_size; /* options_size: bytes of the options struct */
    /* Runs the subcommand with parsed options; returns the process exit status. stdout carries results only, stderr messages only. */
    int (*run)(const void *options);
};

/* Fill `out` (options_size bytes) from argv[0..argc) (without program and subcommand names). Strings borrow from argv or live in
 * `arena`. Unknown flags, stray words, missing values, values out of range and missing required options are DI_ERR_INVALID with a
 * sentence that names the flag and, for an unknown one, the nearest known name. `--help` and `--print-config` set *special to 'h' or 'p' and
 * check nothing else that is required. */
di_status di_options_parse(const struct di_command *cmd, int argc, char **argv, struct di_arena *arena, void *out, char *special,
                           di_error *err);
/* Append the help text, at most 100 columns wide. */
void di_options_help(struct di_buf *b, const struct di_command *cmd);
/* Append the effective values in the file format that --config reads. */
void di_options_print(struct di_buf *b, const struct di_command *cmd, const void *values);

#endif
