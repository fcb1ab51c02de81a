#include "cli/stats.h"

static void add_key(struct di_buf *b, const char *key)
{
    di_buf_adds(b, b->n && b->p[b->n - 1] != '{' ? ", \"" : "\"");
    di_buf_adds(b, key);
    di_buf_adds(b, "\": ");
}

static void add_count(struct di_buf *b, const char *key, uint64_t value)
{
    add_key(b, key);
    di_buf_addf(b, "%llu", (unsigned long long)value);
}

static void add_counters(struct di_buf *b, const di_engine_stats *s)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"steps", s->steps},
                   {"prompt_rows", s->prompt_rows},
                   {"decode_rows", s->decode_rows},
                   {"wasted_rows", s->wasted_rows},
                   {"prompt_tokens", s->prompt_tokens},
                   {"generated_tokens", s->generated_tokens},
                   {"submitted", s->submitted},
                   {"refused", s->refused},
                   {"finished", s->finished},
                   {"cancelled", s->cancelled},
                   {"failed", s->failed},
                   {"preempted", s->preempted},
                   {"running", (uint64_t)s->running},
                   {"waiting", (uint64_t)s->waiting},
                   {"held_slots", (uint64_t)s->held_slots},
                   {"unread", (uint64_t)s->unread},
                   {"lookups", s->lookups},
                   {"lookup_tokens", s->lookup_tokens},
                   {"cached_tokens", s->cached_tokens},
                   {"blocks", (uint64_t)s->blocks},
                   {"free_blocks", (uint64_t)s->free_blocks},
                   {"evicted_blocks", s->evicted_blocks},
                   {"states_saved", s->states_saved},
                   {"states_restored", s->states_restored},
                   {"bounded_starts", s->bounded_starts},
                   {"skipped_rows", s->skipped_rows},
                   {"compute_us", s->compute_ns / 1000},
                   {"gap_us", s->gap_ns / 1000},
                   {"host_us", s->host_ns / 1000}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_count(b, numbers[i].key, numbers[i].value);
}

/* Of drafts: sums, and the same by place in the block. */
static void add_drafts(struct di_buf *b, const di_engine_stats *s)
{
    const struct {
        const char *key;
        const uint64_t *at;
    } places[] = {{"drafted_at", s->drafted_at}, {"accepted_at", s->accepted_at}};
    add_count(b, "draft_steps", s->draft_steps);
    add_count(b, "drafted_tokens", s->drafted_tokens);
    add_count(b, "accepted_tokens", s->accepted_tokens);
    for (int i = 0; i < 2; i++) {
        add_key(b, places[i].key);
        for (int k = 0; k < DI_DRAFT_PLACES; k++)
            di_buf_addf(b, "%s%llu", k ? ", " : "[", (unsigned long long)places[i].at[k]);
        di_buf_addc(b, ']');
    }
}

/* Lookups by how they ended. */
static void add_misses(struct di_buf *b, const di_engine_stats *s)
{
    const uint64_t missed[] = {s->miss_never_seen, s->miss_evicted, s->miss_diverged, s->miss_bounded};
    uint64_t whole = s->lookups; /* all that could be found was */
    add_key(b, "misses");
    di_buf_addc(b, '{');
    for (int i = 0; i < 4; i++)
        whole -= missed[i];
    add_count(b, di_miss_reason_name(DI_MISS_REASON_NONE), whole);
    for (int i = 0; i < 4; i++)
        add_count(b, di_miss_reason_name((di_miss_reason)(DI_MISS_REASON_NEVER_SEEN + i)), missed[i]);
    add_count(b, "other_tenant", s->miss_other_tenant);
    di_buf_addc(b, '}');
}

static void add_ends(struct di_buf *b, const di_engine_stats *s)
{
    const uint64_t ended[] = {s->ended_stop, s->ended_length, s->ended_tool_calls, s->ended_cancelled, s->ended_deadline, s->ended_error};
    add_key(b, "ended");
    di_buf_addc(b, '{');
    for (int i = 0; i < 6; i++)
        add_count(b, di_end_reason_name((di_end_reason)(DI_REASON_STOP + i)), ended[i]);
    di_buf_addc(b, '}');
}

struct summary {
    const char *key;
    double value;
};
#define SUMMARIES 4
static void summarise_histogram(const di_histogram *h, struct summary out[SUMMARIES])
{
    out[0] = (struct summary){"mean", h->count ? h->sum / (double)h->count : 0};
    out[1] = (struct summary){"p50", di_histogram_quantile(h, 0.5)};
    out[2] = (struct summary){"p90", di_histogram_quantile(h, 0.9)};
    out[3] = (struct summary){"p99", di_histogram_quantile(h, 0.99)};
}

void di_stats_write(struct di_buf *b, di_engine *engine)
{
    di_engine_stats s;
    di_histogram h;
    struct summary v[SUMMARIES];
    if (di_engine_get_stats(engine, &s, sizeof s, NULL) != DI_OK)
        return;
    di_buf_addc(b, '{');
    add_counters(b, &s);
    add_drafts(b, &s);
    add_ends(b, &s);
    add_misses(b, &s);
    add_key(b, "histograms");
    di_buf_addc(b, '{');
    for (int i = 0; di_engine_get_histogram(engine, (di_histogram_id)i, &h, sizeof h, NULL) == DI_OK; i++) {
        add_key(b, h.name);
        di_buf_addc(b, '{');
        add_count(b, "count", h.count);
        summarise_histogram(&h, v);
        for (int k = 0; k < SUMMARIES; k++) {
            add_key(b, v[k].key);
            di_buf_addf(b, "%.6g", v[k].value);
        }
        di_buf_addc(b, '}');
    }
    di_buf_adds(b, "}}");
}

/* Three digits and a unit: what a person compares. */
static void add_value(struct di_buf *b, double x, bool seconds)
{
    static const struct {
        double least, factor;
        const char *unit;
    } units[] = {{1, 1, "s"}, {1e-3, 1e3, "ms"}, {0, 1e6, "us"}};
    size_t i = 0;
    while (seconds && x < units[i].least)
        i++;
    double shown = seconds ? x * units[i].factor : x;
    int decimals = shown < 10 && (seconds || shown != (double)(int64_t)shown) ? 2 : shown < 100 && seconds ? 1 : 0;
    const char *unit = seconds ? units[i].unit : "";
    di_buf_addf(b, " %*.*f%s", 9 - (int)strlen(unit), decimals, shown, unit);
}

void di_stats_write_table(struct di_buf *b, di_engine *engine)
{
    di_engine_stats s;
    di_histogram h;
    struct summary v[SUMMARIES];
    if (di_engine_get_stats(engine, &s, sizeof s, NULL) != DI_OK)
        return;
    double lookup = s.lookup_tokens ? 100 * (double)s.cached_tokens / (double)s.lookup_tokens : 0;
    di_buf_addf(b, "requests: %llu finished, %llu cancelled, %llu failed, %llu preempted\n", (unsigned long long)s.finished,
                (unsigned long long)s.cancelled, (unsigned long long)s.failed, (unsigned long long)s.preempted);
    di_buf_addf(b, "tokens:   %llu in prompts (%llu reused, %.0f %% of those looked up), %llu in answers\n",
                (unsigned long long)s.prompt_tokens, (unsigned long long)s.cached_tokens, lookup, (unsigned long long)s.generated_tokens);
    di_buf_addf(b, "steps:    %llu; %llu prompt rows, %llu decode rows, %llu wasted\n", (unsigned long long)s.steps,
                (unsigned long long)s.prompt_rows, (unsigned long long)s.decode_rows, (unsigned long long)s.wasted_rows);
    if (s.drafted_tokens)
        di_buf_addf(b, "drafts:   %llu verified, %llu accepted (%.0f %%); %.2f tokens a step of an answer\n",
                    (unsigned long long)s.drafted_tokens, (unsigned long long)s.accepted_tokens,
                    100 * (double)s.accepted_tokens / (double)s.drafted_tokens, 1 + (double)s.accepted_tokens / (double)s.draft_steps);
    di_buf_addc(b, '\n');
    di_buf_addf(b, "%-32s %9s %9s %9s %9s %9s\n", "", "count", "mean", "p50", "p90", "p99");
    for (int i = 0; di_engine_get_histogram(engine, (di_histogram_id)i, &h, sizeof h, NULL) == DI_OK; i++) {
        if (!h.count)
            continue;
        bool seconds = strstr(h.name, "_seconds") != NULL;
        di_buf_addf(b, "%-32s %9llu", h.name, (unsigned long long)h.count);
        summarise_histogram(&h, v);
        for (int k = 0; k < SUMMARIES; k++)
            add_value(b, v[k].value, seconds);
        di_buf_addc(b, '\n');
    }
}
