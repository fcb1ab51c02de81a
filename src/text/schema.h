/* JSON Schema as a request carries it: is it one, and the form in which a strict tool is shown (spec/encoding.md §2.3). */
#ifndef DI_TEXT_SCHEMA_H
#define DI_TEXT_SCHEMA_H

#include "text/json_path.h"

/* Every keyword has a value of its type, at every level. Says nothing about whether references resolve or patterns compile. */
di_status di_schema_check(const struct di_json *schema, const struct di_path *at, di_error *err);

/* The normalised form: known keywords in a fixed order, every property required, nothing additional. The result lives in `arena` and
 * shares parts of the input. DI_ERR_INVALID names the node that strict tools may not have. `schema` NULL: an object without properties. */
di_status di_schema_strict(const struct di_json *schema, struct di_arena *arena, const struct di_path *at, struct di_json **out,
                           di_error *err);

#endif
