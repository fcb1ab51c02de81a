/* Tools of Messages that have a type instead of a schema, because Anthropic's models know them. The client runs them, so here they are
 * ordinary tools of which the server brings description and schema. */
#ifndef DI_TEXT_CLIENT_TOOLS_H
#define DI_TEXT_CLIENT_TOOLS_H

#include "base/str.h"

struct di_client_tool {
    const char *type; /* how it begins: "bash_2"; a date follows */
    const char *description;
    const char *schema; /* JSON text */
};
/* The tool of a type such as "bash_20250124", or NULL. */
const struct di_client_tool *di_client_tool_find(struct di_str type);

#endif
