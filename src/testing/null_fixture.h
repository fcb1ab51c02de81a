/* What tests on the null model share: an engine, requests, running them. Every failure is a failed assertion of cmocka, whose headers come
 * first. */
#ifndef DI_TESTING_NULL_FIXTURE_H
#define DI_TESTING_NULL_FIXTURE_H

#include "testing/null_model.h"

#define MOST_STEPS 20000 /* no scenario takes so many */

struct fixture {
    struct di_null_model model;
    struct di_core *core;
};

#define FIXTURE_VOCAB 60
#define FIXTURE_WINDOW 20

static inline void fixture_open(struct fixture *f, int64_t context, const struct di_core_config *config)
{
    assert_int_equal(di_null_model_init(&f->model, FIXTURE_VOCAB, FIXTURE_WINDOW, context, NULL), DI_OK);
    assert_int_equal(di_null_core(&f->model, config, &f->core, NULL), DI_OK);
}

/* Everything came back, then the end. */
static inline void fixture_close(struct fixture *f)
{
    assert_int_equal(di_core_flush(f->core, NULL), DI_OK);
    const char *left = di_null_left(f->core, &f->model);
    if (left)
        fail_msg("%s", left);
    di_core_destroy(f->core);
    di_null_model_fini(&f->model);
}

/* Tokens of a text that only `seed` knows, from 8 on. */
static inline void fill(int32_t *to, int n, uint32_t seed)
{
    seed = seed * 2654435761u + 12345;
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        to[i] = (int32_t)(8 + (seed >> 16) % (FIXTURE_VOCAB - 8));
    }
}

/* A request over `room`, whose first n_prompt tokens are filled unless seed is 0. It ends by length only. */
static inline struct di_watch watch(int32_t *room, int n_prompt, int max_tokens, uint32_t seed)
{
    if (seed)
        fill(room, n_prompt, seed);
    return (struct di_watch){.tokens = room, .n_prompt = n_prompt, .max_tokens = max_tokens, .ignore_end = true};
}

static inline void send(struct fixture *f, struct di_watch *w)
{
    di_error err = {0};
    if (di_watch_submit(w, f->core, &err) != DI_OK)
        fail_msg("%s", err.message);
}

static inline bool step(struct fixture *f)
{
    bool busy;
    assert_int_equal(di_core_step(f->core, &busy, NULL), DI_OK);
    return busy;
}

/* To the end; the number of steps. */
static inline int run(struct fixture *f)
{
    int steps = 1;
    while (step(f) && steps < MOST_STEPS)
        steps++;
    assert_true(steps < MOST_STEPS);
    return steps;
}

static inline void right(const struct di_watch *w)
{
    const char *wrong = di_watch_wrong(w);
    if (wrong)
        fail_msg("prompt of %d tokens, %d reused, %d sampled: %s", w->n_prompt, (int)w->cached, w->n_got, wrong);
}

/* Send, run, check. */
static inline void ask(struct fixture *f, struct di_watch *w)
{
    send(f, w);
    run(f);
    right(w);
}

#endif
