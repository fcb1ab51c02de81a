/* The subcommands, one per src/cli/cmd_NAME.c. Adding one: a line here and a line in the table of main.c. */
#ifndef DI_CLI_COMMANDS_H
#define DI_CLI_COMMANDS_H

#include "base/options.h"

/* Weak: a command whose file is not in the build is left out of the table. */
#define DI_COMMAND(name) extern const struct di_command name __attribute__((weak))

DI_COMMAND(di_cmd_generate);
DI_COMMAND(di_cmd_chat);
DI_COMMAND(di_cmd_inspect);
DI_COMMAND(di_cmd_tokenize);
DI_COMMAND(di_cmd_render);
DI_COMMAND(di_cmd_parse);
DI_COMMAND(di_cmd_logits);
DI_COMMAND(di_cmd_perplexity);
DI_COMMAND(di_cmd_bench);

#endif
