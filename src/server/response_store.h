/* Responses kept for previous_response_id, GET and DELETE (spec/encoding.md §4.5): in memory, bounded, the least recently used go first. A
 * response belongs to a tenant; to others it does not exist. All calls from any thread. */
#ifndef DI_SERVER_RESPONSE_STORE_H
#define DI_SERVER_RESPONSE_STORE_H

#include "base/str.h"

struct di_response_store;

/* At most so many responses and bytes of their text. */
di_status di_response_store_create(size_t max_responses, size_t max_bytes, struct di_response_store **out, di_error *err);
void di_response_store_destroy(struct di_response_store *s); /* NULL is allowed */

/* Copy. `items`: input and output of the conversation so far, as JSON values separated by commas; `body`: the response object. One that is
 * too big alone, and one without memory, is not kept. */
void di_response_store_put(struct di_response_store *s, uint64_t tenant, struct di_str id, struct di_str items, struct di_str body);
/* Append what was put; either may be NULL. False if there is no such response. */
bool di_response_store_get(struct di_response_store *s, uint64_t tenant, struct di_str id, struct di_buf *items, struct di_buf *body);
bool di_response_store_delete(struct di_response_store *s, uint64_t tenant, struct di_str id);

#endif
