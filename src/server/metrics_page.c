/* GET /metrics: Prometheus text (spec/encoding.md §4.7). The engine's own names begin with deepinfer_; the others are what boards made for
 * vLLM and SGLang query. */
#include "base/json.h"
#include "server/server_impl.h"

#include <stdio.h>

#define GAUGE "gauge"
#define COUNTER "counter"

/* One metric of one value under up to three names. */
struct row {
    const char *own, *vllm, *sglang; /* without prefix, or NULL */
    const char *kind;
    double value;
    const char *help;
};

static void add_header(struct di_buf *b, const char *prefix, const char *name, const char *kind, const char *help)
{
    di_buf_addf(b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, kind);
}

static void add_value(struct di_buf *b, const char *prefix, const char *name, const char *label, double value)
{
    di_buf_addf(b, "%s%s%s %.17g\n", prefix, name, label, value);
}

static void add_row(struct di_buf *b, const struct row *r, const char *label)
{
    const char *names[] = {r->own, r->vllm, r->sglang}, *const prefixes[] = {"deepinfer_", "vllm:", "sglang:"};
    for (int i = 0; i < 3; i++) {
        if (!names[i])
            continue;
        add_header(b, prefixes[i], names[i], r->kind, r->help);
        add_value(b, prefixes[i], names[i], i == 0 ? "" : label, r->value);
    }
}

static void add_rows(struct di_buf *b, const struct row *rows, size_t n, const char *label)
{
    for (size_t i = 0; i < n; i++)
        add_row(b, &rows[i], label);
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static void add_engine(struct di_buf *b, const struct di_server *s, const char *label)
{
    const di_engine_stats *e = &s->stats;
    double used = e->blocks - e->free_blocks;
    const struct row rows[] = {
        {"running", "num_requests_running", "num_running_reqs", GAUGE, e->running, "Requests that share the steps."},
        {"waiting", "num_requests_waiting", "num_queue_reqs", GAUGE, e->waiting, "Requests that wait for a place."},
        {"cache_used_ratio", "kv_cache_usage_perc", "token_usage", GAUGE, share(used, e->blocks),
         "Part of the cache's blocks held by requests, 0 to 1."},
        {NULL, "gpu_cache_usage_perc", NULL, GAUGE, share(used, e->blocks), "The same under its older name."},
        {"generation_tokens_per_second", NULL, "gen_throughput", GAUGE, s->tokens_per_second, "Sampled tokens a second, lately."},
        {NULL, NULL, "num_used_tokens", GAUGE, used * 64, "Tokens that the blocks held by requests have room for."},
        {"cache_blocks", NULL, NULL, GAUGE, e->blocks, "Blocks of 64 tokens in the cache."},
        {"cache_free_blocks", NULL, NULL, GAUGE, e->free_blocks, "Of them, held by no request; what they hold may still be reused."},
        {"prompt_tokens_total", "prompt_tokens_total", "prompt_tokens_total", COUNTER, (double)e->prompt_tokens,
         "Tokens of prompts that are done, cached ones included."},
        {"generation_tokens_total", "generation_tokens_total", "generation_tokens_total", COUNTER, (double)e->generated_tokens,
         "Sampled tokens."},
        {"preemptions_total", "num_preemptions_total", NULL, COUNTER, (double)e->preempted, "Requests that gave their place back."},
        {"reuse_lookup_tokens_total", "prefix_cache_queries_total", NULL, COUNTER, (double)e->lookup_tokens,
         "Prompt tokens that were looked up in the cache."},
        {"reuse_cached_tokens_total", "prefix_cache_hits_total", NULL, COUNTER, (double)e->cached_tokens, "Of them, not computed again."},
        {"reuse_hit_ratio", NULL, "cache_hit_rate", GAUGE, share((double)e->cached_tokens, (double)e->lookup_tokens),
         "Their ratio since start."},
        {"steps_total", NULL, NULL, COUNTER, (double)e->steps, "Steps of the model."},
        {"step_prompt_rows_total", NULL, NULL, COUNTER, (double)e->prompt_rows, "Rows of prompts in steps."},
        {"step_decode_rows_total", NULL, NULL, COUNTER, (double)e->decode_rows, "Rows of answers in steps."},
        {"step_wasted_rows_total", NULL, NULL, COUNTER, (double)e->wasted_rows, "Rows computed for requests that had ended."},
        {"step_compute_seconds_total", NULL, NULL, COUNTER, (double)e->compute_ns * 1e-9, "Time in which the model computed."},
        {"step_host_seconds_total", NULL, NULL, COUNTER, (double)e->host_ns * 1e-9, "Time of scheduling and handling results."},
        {"step_gap_seconds_total", NULL, NULL, COUNTER, (double)e->gap_ns * 1e-9, "Time in which the model waited between steps."},
        {"requests_cancelled_total", NULL, NULL, COUNTER, (double)e->cancelled, "Requests of the engine that were cancelled."},
        {"requests_failed_total", NULL, NULL, COUNTER, (double)e->failed, "Requests of the engine that failed."},
        {"reuse_evicted_blocks_total", NULL, NULL, COUNTER, (double)e->evicted_blocks, "Cached blocks that made room."},
        {"turns_replayed_total", NULL, NULL, COUNTER, (double)e->turns_replayed,
         "Earlier turns of prompts that were replayed token by token."},
        {"turns_changed_total", NULL, NULL, COUNTER, (double)e->turns_changed, "Earlier turns that were known, but changed by the client."},
        {"turn_memory_bytes", NULL, NULL, GAUGE, (double)e->turn_bytes, "Memory of turns that can be replayed."},
    };
    add_rows(b, rows, sizeof rows / sizeof *rows, label);
}

/* Drafts, by the names of vLLM too; what a request drafted in a step is one draft there. */
static void add_drafts(struct di_buf *b, const struct di_server *s, const char *model, const char *label)
{
    const di_engine_stats *e = &s->stats;
    static const char *const prefixes[] = {"deepinfer_", "vllm:"}, *const names[] = {"draft_accepted_at_total",
                                                                                     "spec_decode_num_accepted_tokens_per_pos_total"};
    const struct row rows[] = {
        {"draft_steps_total", NULL, NULL, COUNTER, (double)e->draft_steps,
         "Steps of answers; each gives a token and those of accepted drafts."},
        {NULL, "spec_decode_num_drafts_total", NULL, COUNTER, (double)e->drafted_at[0], "Of them, with drafts."},
        {"draft_tokens_total", "spec_decode_num_draft_tokens_total", NULL, COUNTER, (double)e->drafted_tokens,
         "Drafts that were verified."},
        {"draft_accepted_tokens_total", "spec_decode_num_accepted_tokens_total", NULL, COUNTER, (double)e->accepted_tokens,
         "Of them, tokens of answers."},
    };
    add_rows(b, rows, sizeof rows / sizeof *rows, label);
    for (int k = 0; k < 2; k++) {
        add_header(b, prefixes[k], names[k], COUNTER, "The same by place in the block.");
        for (int i = 0; i < DI_DRAFT_PLACES; i++)
            di_buf_addf(b, "%s%s{%s%sposition=\"%d\"} %llu\n", prefixes[k], names[k], k ? model : "", k ? "," : "", i,
                        (unsigned long long)e->accepted_at[i]);
    }
}

static void add_misses(struct di_buf *b, const struct di_server *s)
{
    const di_engine_stats *e = &s->stats;
    add_header(b, "deepinfer_", "reuse_misses_total", COUNTER, "Why looking up a prompt ended before the prompt did.");
    add_value(b, "deepinfer_", "reuse_misses_total", "{reason=\"never_seen\"}", (double)e->miss_never_seen);
    add_value(b, "deepinfer_", "reuse_misses_total", "{reason=\"evicted\"}", (double)e->miss_evicted);
    add_value(b, "deepinfer_", "reuse_misses_total", "{reason=\"diverged\"}", (double)e->miss_diverged);
    add_value(b, "deepinfer_", "reuse_misses_total", "{reason=\"bounded\"}", (double)e->miss_bounded);
}

/* Requests of the engine by how they ended, under our name and vLLM's. */
static void add_ends(struct di_buf *b, const struct di_server *s, const char *model)
{
    const di_engine_stats *e = &s->stats;
    const struct {
        di_end_reason reason;
        uint64_t n;
    } ends[] = {
        {DI_REASON_STOP, e->ended_stop},           {DI_REASON_LENGTH, e->ended_length},     {DI_REASON_TOOL_CALLS, e->ended_tool_calls},
        {DI_REASON_CANCELLED, e->ended_cancelled}, {DI_REASON_DEADLINE, e->ended_deadline}, {DI_REASON_ERROR, e->ended_error}};
    static const char *const prefixes[] = {"deepinfer_", "vllm:"}, *const names[] = {"requests_finished_total", "request_success_total"};
    for (int k = 0; k < 2; k++) {
        add_header(b, prefixes[k], names[k], "counter", "Requests of the engine by how they ended.");
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            di_buf_addf(b, "%s%s{%s%sfinished_reason=\"%s\"} %llu\n", prefixes[k], names[k], k ? model : "", k ? "," : "",
                        di_end_reason_name(ends[i].reason), (unsigned long long)ends[i].n);
    }
}

/* Other names of the engine's distributions, spec/encoding.md §4.7. */
static const struct {
    di_histogram_id id;
    const char *name; /* with its prefix */
} twins[] = {
    {DI_HISTOGRAM_FIRST_TOKEN_TIME, "vllm:time_to_first_token_seconds"},
    {DI_HISTOGRAM_INTER_TOKEN_TIME, "vllm:inter_token_latency_seconds"},
    {DI_HISTOGRAM_INTER_TOKEN_TIME, "vllm:time_per_output_token_seconds"},
    {DI_HISTOGRAM_TOTAL_TIME, "vllm:e2e_request_latency_seconds"},
    {DI_HISTOGRAM_QUEUE_TIME, "vllm:request_queue_time_seconds"},
    {DI_HISTOGRAM_INFERENCE_TIME, "vllm:request_inference_time_seconds"},
    {DI_HISTOGRAM_PREFILL_TIME, "vllm:request_prefill_time_seconds"},
    {DI_HISTOGRAM_DECODE_TIME, "vllm:request_decode_time_seconds"},
    {DI_HISTOGRAM_PROMPT_TOKENS, "vllm:request_prompt_tokens"},
    {DI_HISTOGRAM_GENERATION_TOKENS, "vllm:request_generation_tokens"},
    {DI_HISTOGRAM_MAX_TOKENS, "vllm:request_params_max_tokens"},
    {DI_HISTOGRAM_STEP_ROWS, "vllm:iteration_tokens_total"},
    {DI_HISTOGRAM_FIRST_TOKEN_TIME, "sglang:time_to_first_token_seconds"},
    {DI_HISTOGRAM_INTER_TOKEN_TIME, "sglang:inter_token_latency_seconds"},
    {DI_HISTOGRAM_TOTAL_TIME, "sglang:e2e_request_latency_seconds"},
};

/* `labels`: inside of the braces, with a comma at its end, or empty. */
static void add_histogram(struct di_buf *b, const di_histogram *h, const char *prefix, const char *name, const char *labels)
{
    uint64_t below = 0;
    add_header(b, prefix, name, "histogram", h->help);
    for (int32_t i = 0; i <= h->n_edges; i++) {
        char edge[32] = "+Inf";
        below += h->buckets[i];
        if (i < h->n_edges)
            snprintf(edge, sizeof edge, "%.9g", h->edges[i]);
        di_buf_addf(b, "%s%s_bucket{%sle=\"%s\"} %llu\n", prefix, name, labels, edge, (unsigned long long)below);
    }
    int n = (int)strlen(labels) - (labels[0] != 0);
    di_buf_addf(b, "%s%s_sum%s%.*s%s %.17g\n", prefix, name, n ? "{" : "", n, labels, n ? "}" : "", h->sum);
    di_buf_addf(b, "%s%s_count%s%.*s%s %llu\n", prefix, name, n ? "{" : "", n, labels, n ? "}" : "", (unsigned long long)h->count);
}

/* n, or the prompts of a list times n: the engine sees each of these as a request of its own. */
static void add_answers(struct di_buf *b, const struct di_server *s, const char *labels)
{
    di_histogram h = {.help = "Answers that a request asked for.", .sum = (double)s->counters.n_answers, .n_edges = DI_N_ANSWER_EDGES};
    for (int i = 0; i <= DI_N_ANSWER_EDGES; i++) {
        h.buckets[i] = s->counters.answers[i];
        h.count += h.buckets[i];
        if (i < DI_N_ANSWER_EDGES)
            h.edges[i] = 1 << i;
    }
    add_histogram(b, &h, "deepinfer_", "request_answers", "");
    add_histogram(b, &h, "vllm:", "request_params_n", labels);
}

static void add_histograms(struct di_buf *b, const struct di_server *s, const char *model)
{
    di_histogram h;
    struct di_buf labels = {0};
    if (!atomic_load(&s->attached))
        return;
    di_buf_addf(&labels, "%s,", model);
    add_answers(b, s, labels.p ? labels.p : "");
    for (int i = 0; di_engine_get_histogram(s->engine, (di_histogram_id)i, &h, sizeof h, NULL) == DI_OK; i++)
        add_histogram(b, &h, "deepinfer_", h.name, "");
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        if (di_engine_get_histogram(s->engine, twins[i].id, &h, sizeof h, NULL) == DI_OK)
            add_histogram(b, &h, "", twins[i].name, labels.p ? labels.p : "");
    di_buf_fini(&labels);
}

static uint64_t dropped_lines(struct di_server *s)
{
    uint64_t n = s->messages ? di_log_sink_dropped(s->messages) : 0;
    return n + (s->access && s->access != s->messages ? di_log_sink_dropped(s->access) : 0);
}

static void add_server(struct di_buf *b, struct di_server *s, const char *label)
{
    const struct di_http_counters *h = di_http_counters(s->http);
    const struct row rows[] = {
        {"up", NULL, NULL, GAUGE, di_server_healthy(s), "1 while /health says 200."},
        {"requests_live", NULL, NULL, GAUGE, (double)di_server_answers(s), "Answers that are computed, or wait for it."},
        {"connections", NULL, NULL, GAUGE, (double)h->open, "Open connections."},
        {"connections_accepted_total", NULL, NULL, COUNTER, (double)h->accepted, "Connections accepted."},
        {"connections_refused_total", NULL, NULL, COUNTER, (double)h->refused, "Connections beyond --max-connections."},
        {"received_bytes_total", NULL, NULL, COUNTER, (double)h->bytes_in, "Bytes received."},
        {"sent_bytes_total", NULL, NULL, COUNTER, (double)h->bytes_out, "Bytes sent."},
        {"reading_bytes", NULL, NULL, GAUGE, (double)h->reading, "Bytes of bodies that are not complete."},
        {"client_disconnects_total", NULL, NULL, COUNTER, (double)s->counters.gone, "Clients that left before their answer's end."},
        {"client_timeouts_total", NULL, NULL, COUNTER, (double)h->timeouts, "Requests that did not come in time."},
        {"client_slow_readers_total", NULL, NULL, COUNTER, (double)h->slow_readers, "Clients that read too slowly and were dropped."},
        {"requests_limited_total", NULL, NULL, COUNTER, (double)s->counters.limited, "Requests refused with 429."},
        {"log_lines_dropped_total", NULL, NULL, COUNTER, (double)dropped_lines(s), "Lines of the log that could not be written in time."},
        {"keep_alives_total", NULL, NULL, COUNTER, (double)s->counters.comments, "Comments sent to clients that wait."},
    };
    add_rows(b, rows, sizeof rows / sizeof *rows, label);
    add_header(b, "deepinfer_", "http_responses_total", COUNTER, "Responses by class of their status; none: the client left first.");
    for (int i = 0; i < DI_N_STATUS_CLASSES; i++)
        if (i != 1)
            di_buf_addf(b, "deepinfer_http_responses_total{class=\"%s\"} %llu\n",
                        (const char *[]){"none", "", "2xx", "3xx", "4xx", "5xx"}[i], (unsigned long long)s->counters.by_class[i]);
}

void di_metrics_write(struct di_server *s, struct di_buf *out)
{
    struct di_buf model = {0}, label = {0};
    di_buf_adds(&model, "model_name=\"");
    for (const char *p = s->setup.n_names ? s->setup.names[0] : ""; *p; p++) {
        if (*p == '"' || *p == '\\')
            di_buf_addc(&model, '\\');
        di_buf_addc(&model, *p == '\n' ? ' ' : *p);
    }
    di_buf_adds(&model, "\",engine=\"0\"");
    di_buf_addf(&label, "{%s}", model.p ? model.p : "");
    const char *text = label.p ? label.p : "";
    add_server(out, s, text);
    add_engine(out, s, text);
    add_drafts(out, s, model.p ? model.p : "", text);
    add_misses(out, s);
    add_ends(out, s, model.p ? model.p : "");
    add_histograms(out, s, model.p ? model.p : "");
    add_header(out, "vllm:", "cache_config_info", GAUGE, "Shape of the cache.");
    di_buf_addf(out, "vllm:cache_config_info{%s,block_size=\"64\",num_gpu_blocks=\"%d\"} 1\n", model.p ? model.p : "", s->stats.blocks);
    di_buf_fini(&model);
    di_buf_fini(&label);
}

void di_status_write(struct di_server *s, struct di_buf *out)
{
    const di_engine_stats *e = &s->stats;
    di_buf_adds(out, "{\"model\": ");
    di_json_write_string(out, di_str_c(s->setup.n_names ? s->setup.names[0] : ""));
    di_buf_addf(out,
                ", \"version\": \"%s\", \"healthy\": %s, \"context\": %lld, \"uptime_s\": %lld, \"running\": %d, \"waiting\": %d, "
                "\"connections\": %zu, \"tokens_per_second\": %.1f, \"prompt_tokens\": %llu, \"generation_tokens\": %llu, ",
                di_version(), di_server_healthy(s) ? "true" : "false", (long long)s->context,
                (long long)((di_clock_ns() - s->began_ns) / 1000000000), e->running, e->waiting, di_http_counters(s->http)->open,
                s->tokens_per_second, (unsigned long long)e->prompt_tokens, (unsigned long long)e->generated_tokens);
    di_buf_addf(out,
                "\"kv_used_blocks\": %d, \"kv_blocks\": %d, \"cached_tokens\": %llu, \"lookup_tokens\": %llu, \"drafted\": %llu, "
                "\"accepted\": %llu, \"memory\": ",
                e->blocks - e->free_blocks, e->blocks, (unsigned long long)e->cached_tokens, (unsigned long long)e->lookup_tokens,
                (unsigned long long)e->drafted_tokens, (unsigned long long)e->accepted_tokens);
    di_buf_addv(out, atomic_load(&s->attached) ? di_buf_str(&s->plan) : DI_STR("{}"));
    di_buf_addc(out, '}');
}
