#include "text/client_tools.h"

#define STRING(key, what) "\"" key "\":{\"type\":\"string\",\"description\":\"" what "\"}"
#define INTEGER(key, what) "\"" key "\":{\"type\":\"integer\",\"description\":\"" what "\"}"
#define BOOLEAN(key, what) "\"" key "\":{\"type\":\"boolean\",\"description\":\"" what "\"}"
#define INTEGERS(key, what) "\"" key "\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"description\":\"" what "\"}"
#define OBJECT(properties, required) "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "]}"

#define COMMANDS(more) "\"command\":{\"type\":\"string\",\"enum\":[\"view\",\"create\",\"str_replace\",\"insert\"" more "]}"
/* What editing a file takes. */
#define PATH STRING("path", "The file; for view also a directory") ","
#define FILE_TEXT STRING("file_text", "create: the whole text of the file") ","
#define OLD_STR STRING("old_str", "str_replace: a text that stands in the file once") ","
#define NEW_STR STRING("new_str", "str_replace: what takes its place") ","
#define INSERT_LINE INTEGER("insert_line", "insert: the line behind which the text goes; 0 = the beginning") ","
#define EDITS PATH FILE_TEXT OLD_STR NEW_STR INSERT_LINE
#define INSERTED "," STRING("insert_text", "insert: the text")
#define RANGE INTEGERS("view_range", "view: first and last line; -1 = to the end")
#define EDITOR(commands, inserted) \
    "Shows, creates and edits text files.", OBJECT(COMMANDS(commands) "," EDITS RANGE inserted, "\"command\",\"path\"")

/* The first one that fits. Before text_editor_20250728 new_str was what is inserted, and before 20250429 there was a way back. */
static const struct di_client_tool tools[] = {
    {"bash_2", "Runs a command in a shell that stays open between calls, and returns what it prints.",
     OBJECT(STRING("command", "The command to run") "," BOOLEAN("restart", "true: start a new shell instead"), "")},
    {"text_editor_2024", EDITOR(",\"undo_edit\"", "")},
    {"text_editor_20250124", EDITOR(",\"undo_edit\"", "")},
    {"text_editor_20250429", EDITOR("", "")},
    {"text_editor_2", EDITOR("", INSERTED)},
    {"memory_2", "Keeps notes in files below /memories, which later conversations find again.",
     OBJECT(COMMANDS(",\"delete\",\"rename\"") "," EDITS RANGE INSERTED
                                               "," STRING("old_path", "rename: from") "," STRING("new_path", "rename: to"),
            "\"command\"")},
};

const struct di_client_tool *di_client_tool_find(struct di_str type)
{
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (di_str_starts(type, di_str_c(tools[i].type)))
            return &tools[i];
    return NULL;
}
