/* Bounded replay as requests choose it (spec/model.md §8): an approximation that saves most of the work of long prompts, off by default.
 *
 *  - Decoder half: layers behind the last KV source (di_tail_layer) compute the last K rows of the *prompt* only, and see nothing before
 * them.
 *    K >= window + rollback: wherever a later step takes drafts back to, its windows lie inside. A prompt of at most K tokens is exact.
 *  - Encoder half: after a hit without a snapshot the window before the hit is computed again instead of all rows that reach into it
 *    (cache/hit_plan.h).
 *
 * What it touches. G comes from the encoder half and the last KV source's own input: truncating the decoder half changes none of it, not
 * even behind the prompt, so such blocks are exact and serve everybody. Only the rings of the decoder half differ: snapshots of such a
 * request are marked. After bounded replay of the encoder half, after a marked snapshot (its rings do not say which half was touched) and
 * behind marked blocks everything that a request enters is marked. Exact requests see nothing that is marked (cache/prefix.h).
 *
 * Not promised: that a bounded request gives the same bits after another history of the cache, or after a preemption. In a cold engine it
 * does, in any chunks and any company. */
#ifndef DI_ENGINE_REPLAY_H
#define DI_ENGINE_REPLAY_H

#include "checkpoint/config.h"

enum di_replay_mode {
    DI_REPLAY_DEFAULT, /* of a request: the engine's; of an engine: exact */
    DI_REPLAY_EXACT,
    DI_REPLAY_BOUNDED,
    DI_REPLAY_MASK /* bounded, but the rows that it saves are computed all the same: the same bits, for tests */
};
/* "exact", "bounded", "mask". False for another name. */
bool di_replay_by_name(const char *name, enum di_replay_mode *out);

struct di_replay_rules {
    enum di_replay_mode mode; /* of requests that do not say */
    int64_t rows;             /* K; 0 = window + 2 * rollback: 140 for a window of 128 and drafts of 5 */
    int window, rollback;     /* sliding_window; rows that a step may take back, 0: this network has no decoder half */
};
/* Rules for a model. DI_ERR_INVALID: K is below window + rollback; DI_ERR_UNSUPPORTED: another mode than exact for a model without decoder
 * half. */
di_status di_replay_rules_init(struct di_replay_rules *r, const struct di_config *c, enum di_replay_mode mode, int64_t rows, di_error *err);
int di_replay_rollback(const struct di_config *c);
di_status di_replay_rules_check(const struct di_replay_rules *r, di_error *err);
/* May a request with this mode run? DI_ERR_UNSUPPORTED also for forced tokens with bounded replay: scores would be approximate. */
di_status di_replay_mode_check(const struct di_replay_rules *r, enum di_replay_mode request, bool forced, di_error *err);
enum di_replay_mode di_replay_mode_of(const struct di_replay_rules *r, enum di_replay_mode request);
/* First row that the decoder half computes for a prompt of n tokens; 0: all rows, the request is exact. */
int64_t di_replay_tail(const struct di_replay_rules *r, enum di_replay_mode request, int64_t n_prompt);

#endif
