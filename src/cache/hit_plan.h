/* Where a request with a prefix hit starts to compute. Pure arithmetic.
 *
 * The hit offers G of positions [0, hit), and perhaps a snapshot of S from which rows >= resume can be computed. Without a snapshot the
 * window rings must be rebuilt. Exact replay computes the last R rows before the hit again, with the cached G and with windows that
 * begin at the first of them; R = window + (layers - 1) * (window - 1) (spec/model.md §8.1: 5,081 for 40 layers). Each layer is right
 * from window - 1 positions later on than the one below, so that the window before the hit is right in every ring. Bounded replay
 * computes only the last `window` rows and is an approximation; its decoder half begins at the tail, which must be computed whole
 * (spec/model.md §8.3). */
#ifndef DI_CACHE_HIT_PLAN_H
#define DI_CACHE_HIT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum di_resume {
    DI_RESUME_COLD,   /* all rows. G of the hit is still shared and not written again */
    DI_RESUME_STATE,  /* restore the snapshot, go on behind it: exact */
    DI_RESUME_REPLAY, /* exact */
    DI_RESUME_BOUNDED /* approximate: what the request publishes is marked */
};

struct di_hit {
    int64_t n;      /* known tokens, >= 1; at least the last row is computed */
    int64_t hit;    /* positions whose G is cached: whole groups, < n (di_match.tokens) */
    int64_t resume; /* first row after the usable snapshot, 0 = none (di_match.resume) */
    int window, layers;
    int64_t tail; /* first row that the decoder half of a bounded request computes (spec/model.md §8.2), 0 = it is exact */
};

struct di_hit_plan {
    enum di_resume how;
    int64_t start;        /* first row to compute; = tokens saved, what a client sees as cached */
    int64_t write_from;   /* rows below it close groups that are cached already: their G rows must not be written */
    int64_t window_floor; /* di_rows.window_floor of all rows: below it the rings hold nothing of this request */
    int64_t replayed;     /* rows below `hit` that are computed once more */
    int64_t tail;         /* of the request, if its rows are computed; else 0: the decoder half goes on from the snapshot or is exact */
};

/* The exact plan with the fewest rows; among equals the snapshot, then cold. Bounded replay only where it is accepted and saves rows. */
struct di_hit_plan di_hit_plan(const struct di_hit *h);
/* R of exact replay. */
int64_t di_replay_rows(int window, int layers);

#endif
