/* The subcommands, one per src/cli/cmd_NAME.c. Adding one: a line here and a line in the table of main.c. */
#ifndef DI_CLI_COMMANDS_H
#define DI_CLI_COMMANDS_H

#include "base/options.h"

extern const struct di_command di_cmd_generate;
extern const struct di_command di_cmd_chat;
extern const struct di_command di_cmd_serve;
extern const struct di_command di_cmd_inspect;
extern const struct di_command di_cmd_tokenize;
extern const struct di_command di_cmd_render;
extern const struct di_command di_cmd_parse;
extern const struct di_command di_cmd_grammar;
extern const struct di_command di_cmd_logits;
extern const struct di_command di_cmd_perplexity;
extern const struct di_command di_cmd_image;
extern const struct di_command di_cmd_image_worker;
extern const struct di_command di_cmd_bench;

#endif
