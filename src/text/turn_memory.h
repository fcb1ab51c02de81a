/* What the model wrote, token by token, so that a conversation that comes back is recalled exactly (spec/encoding.md §3.8).
 *
 * A client returns a turn as JSON: key order, spacing, separators and the way bytes were cut into tokens are lost, and the reasoning
 * often too. Rendered again, it is another prompt than the one that is cached. So each turn that ended by itself is remembered: one with
 * calls under the unguessable ids of its calls, a plain one under a hash of all that stood before it and its content. When a request
 * shows a turn that is the same (ids, names, arguments as JSON values, content, and the reasoning if it is there at all), the remembered
 * ids take the place of the rendered ones. What the client changed is rendered as always.
 *
 * Turns belong to a tenant; to another they do not exist. Bounded in ids and bytes; what was used longest ago goes first. All calls from
 * any thread. */
#ifndef DI_TEXT_TURN_MEMORY_H
#define DI_TEXT_TURN_MEMORY_H

#include "text/chat.h"
#include "text/message.h"

struct di_turn_memory;

/* At most so many names (ids of calls, plain turns) and bytes. */
di_status di_turn_memory_create(size_t max_names, size_t max_bytes, struct di_turn_memory **out, di_error *err);
void di_turn_memory_destroy(struct di_turn_memory *m); /* NULL is allowed */

/* A hash of ids that can be continued; of one prompt, by one thread. */
struct di_turn_prefix {
    void *ctx;   /* private */
    size_t done; /* ids that it covers */
};
void di_turn_prefix_fini(struct di_turn_prefix *p);
/* The hash of ids[0, n); n must not be smaller than before. False when memory ran out. */
bool di_turn_prefix_hash(struct di_turn_prefix *p, const int32_t *ids, size_t n, uint8_t out[32]);

struct di_turn {
    uint64_t tenant;
    const uint8_t *prefix; /* [32] hash of the prompt up to the assistant's mark */
    const int32_t
        *ids; /* [n_ids] all that stands behind the mark: what the prompt still says there, then what was sampled, end id included */
    size_t n_ids;
    bool thinking;                    /* the ids begin with a reasoning */
    const struct di_message *message; /* what the client got */
};
/* Remember. Without memory it does nothing. */
void di_turn_memory_put(struct di_turn_memory *m, const struct di_turn *turn);
/* Append the ids of the turn that a client shows as `shown` to *out. `thinking`: the prompt shows reasoning of earlier turns, see
 * di_prompt_turn. False: it is not (any more) known, or was changed. */
bool di_turn_memory_find(struct di_turn_memory *m, uint64_t tenant, const uint8_t prefix[32], const struct di_chat_message *shown,
                         enum di_protocol protocol, bool thinking, struct di_ids *out);

struct di_turn_memory_stats {
    size_t names, turns, bytes;
    uint64_t hits, changed, unknown; /* lookups: recalled; known, but not the same; the rest */
};
struct di_turn_memory_stats di_turn_memory_stats(struct di_turn_memory *m);

/* Equal as JSON values (di_json_same). Texts that are no JSON are equal if their bytes are. */
bool di_json_text_same(struct di_str a, struct di_str b);

#endif
