#include "cache/hit_plan.h"

int64_t di_replay_rows(int window, int layers)
{
    return window + (int64_t)(layers - 1) * (window - 1);
}

struct di_hit_plan di_hit_plan(const struct di_hit *h)
{
    int64_t bounded = h->hit - h->window < h->tail ? h->hit - h->window : h->tail;
    const struct {
        enum di_resume how;
        int64_t start; /* <= 0: not possible, or saves nothing */
    } ways[] = {
        {DI_RESUME_STATE, h->resume},
        {DI_RESUME_REPLAY, h->hit - di_replay_rows(h->window, h->layers)},
        {DI_RESUME_BOUNDED, bounded},
    };
    struct di_hit_plan p = {.how = DI_RESUME_COLD};
    for (int i = 0; i < 3; i++)
        if (ways[i].start > p.start) {
            p.how = ways[i].how;
            p.start = ways[i].start;
        }
    p.write_from = h->hit > p.start ? h->hit : p.start;
    p.window_floor = p.how == DI_RESUME_REPLAY || p.how == DI_RESUME_BOUNDED ? p.start : 0;
    p.replayed = h->hit > p.start ? h->hit - p.start : 0;
    p.tail = p.start <= h->tail ? h->tail : 0;
    return p;
}
