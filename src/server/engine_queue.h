/* From the engine's thread to the event loop: copies of output records, in order, in one growing buffer that the loop swaps against an
 * empty one. The engine's thread holds the lock for one copy, the loop for one swap; an eventfd wakes the loop when the buffer was empty.
 * */
#ifndef DI_SERVER_ENGINE_QUEUE_H
#define DI_SERVER_ENGINE_QUEUE_H

#include "base/str.h"

struct di_engine_queue;

/* A record, or with output = NULL a message without content. Valid until the function returns. */
typedef void (*di_engine_queue_fn)(void *ctx, void *to, const di_output *output);

di_status di_engine_queue_create(struct di_engine_queue **out, di_error *err);
void di_engine_queue_destroy(struct di_engine_queue *q);
/* Readable while something waits. */
int di_engine_queue_fd(const struct di_engine_queue *q);

/* Append a copy of *output and of all that it points to (NULL: only the message) for `to`. False: no memory, or `limit` bytes wait
 * already. FINISHED records ignore the limit. Any thread. */
bool di_engine_queue_push(struct di_engine_queue *q, void *to, const di_output *output, size_t limit);
/* Call fn for all that waits. One thread. */
void di_engine_queue_drain(struct di_engine_queue *q, di_engine_queue_fn fn, void *ctx);

/* The same copies in a buffer of the caller's, for records that come before they can be used. */
bool di_records_add(struct di_buf *b, void *to, const di_output *output);
void di_records_each(const struct di_buf *b, di_engine_queue_fn fn, void *ctx);

#endif
