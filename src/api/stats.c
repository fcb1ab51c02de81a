/* Public API: statistics. The driver publishes them at the end of each step (drive.c); readers copy under the lock. */
#include "api/engine.h"

_Static_assert(DI_DRAFT_PLACES == DI_MAX_DRAFTS, "places of a block");

void di_engine_stats_from(di_engine_stats *to, const struct di_core_stats *s)
{
    di_engine_stats known = *to;
    *to = (di_engine_stats){.steps = s->steps,
                            .prompt_rows = s->prompt_rows,
                            .decode_rows = s->decode_rows,
                            .wasted_rows = s->wasted_rows,
                            .submitted = known.submitted,
                            .refused = known.refused,
                            .finished = s->finished,
                            .cancelled = s->cancelled,
                            .failed = s->failed,
                            .preempted = s->preempted,
                            .host_ns = s->host_ns,
                            .compute_ns = s->compute_ns,
                            .gap_ns = s->gap_ns,
                            .running = s->running,
                            .waiting = s->waiting,
                            .free_blocks = s->free_blocks,
                            .blocks = s->blocks,
                            .lookups = s->lookups,
                            .lookup_tokens = s->lookup_tokens,
                            .cached_tokens = s->cached_tokens,
                            .miss_never_seen = s->miss[DI_MISS_REASON_NEVER_SEEN],
                            .miss_evicted = s->miss[DI_MISS_REASON_EVICTED],
                            .miss_diverged = s->miss[DI_MISS_REASON_DIVERGED],
                            .miss_bounded = s->miss[DI_MISS_REASON_BOUNDED],
                            .evicted_blocks = s->evicted,
                            .states_saved = s->states_saved,
                            .states_restored = s->states_restored,
                            .prompt_tokens = s->prompt_tokens,
                            .generated_tokens = s->generated_tokens,
                            .miss_other_tenant = s->miss_other_tenant,
                            .held_slots = s->held_slots,
                            .bounded_starts = s->bounded,
                            .skipped_rows = s->skipped_rows,
                            .failing = s->failing,
                            .draft_steps = s->drafts.steps,
                            .drafted_tokens = s->drafts.drafted,
                            .accepted_tokens = s->drafts.accepted};
    memcpy(to->drafted_at, s->drafts.drafted_at, sizeof to->drafted_at);
    memcpy(to->accepted_at, s->drafts.accepted_at, sizeof to->accepted_at);
}

di_status di_engine_get_stats(di_engine *e, di_engine_stats *out, size_t size, di_error *err)
{
    if (!e || !out)
        return di_fail(err, DI_ERR_INVALID, e ? "out" : "engine", "is NULL");
    pthread_mutex_lock(&e->lock);
    di_engine_stats s = e->stats;
    s.unread = e->n_unread;
    s.ended_stop = e->ended_by[DI_REASON_STOP];
    s.ended_length = e->ended_by[DI_REASON_LENGTH];
    s.ended_tool_calls = e->ended_by[DI_REASON_TOOL_CALLS];
    s.ended_cancelled = e->ended_by[DI_REASON_CANCELLED];
    s.ended_deadline = e->ended_by[DI_REASON_DEADLINE];
    s.ended_error = e->ended_by[DI_REASON_ERROR];
    pthread_mutex_unlock(&e->lock);
    if (e->memory) {
        struct di_turn_memory_stats turns = di_turn_memory_stats(e->memory);
        s.turns_replayed = turns.hits;
        s.turns_changed = turns.changed;
        s.turn_bytes = turns.bytes;
    }
    memset(out, 0, size);
    memcpy(out, &s, size < sizeof s ? size : sizeof s);
    return DI_OK;
}

di_status di_engine_get_histogram(di_engine *e, di_histogram_id which, di_histogram *out, size_t size, di_error *err)
{
    di_histogram h;
    if (!e || !out)
        return di_fail(err, DI_ERR_INVALID, e ? "out" : "engine", "is NULL");
    pthread_mutex_lock(&e->lock);
    bool known = di_metrics_get(&e->metrics, which, &h);
    pthread_mutex_unlock(&e->lock);
    if (!known)
        return di_fail(err, DI_ERR_NOT_FOUND, "which", "there is no histogram %d; ids are 0 to %d", (int)which, DI_HISTOGRAMS - 1);
    memset(out, 0, size);
    memcpy(out, &h, size < sizeof h ? size : sizeof h);
    return DI_OK;
}

const char *di_miss_reason_name(di_miss_reason reason)
{
    static const char *const names[] = {"none", "never_seen", "evicted", "diverged", "bounded"};
    size_t i = (size_t)reason;
    return i < sizeof names / sizeof *names ? names[i] : "";
}
