#!/usr/bin/env python3
"""Write packaging/grafana.json. usage: tools/make_dashboard.py > packaging/grafana.json

A panel is a title, a unit and its queries; places on the board follow from the order."""
import json

RATE = "[$__rate_interval]"


def quantiles(name):
    return [(f"histogram_quantile({q}, sum by (le) (rate(deepinfer_{name}_bucket{{instance=~\"$instance\"}}{RATE})))", f"p{round(q * 100)}")
            for q in (0.5, 0.9, 0.99)]


def rate(name, legend, by=""):
    return f"sum{by} (rate(deepinfer_{name}{{instance=~\"$instance\"}}{RATE}))", legend


def value(name, legend):
    return f"sum (deepinfer_{name}{{instance=~\"$instance\"}})", legend


ROWS = {
    "Service": [
        ("Healthy", "short", [("min (deepinfer_up{instance=~\"$instance\"})", "up")]),
        ("Requests", "short", [value("running", "running"), value("waiting", "waiting")]),
        ("Tokens a second", "short", [rate("generation_tokens_total", "written"), rate("prompt_tokens_total", "read"),
                                      rate("reuse_cached_tokens_total", "of them cached")]),
        ("Responses a second", "reqps", [rate("http_responses_total", "{{class}}", " by (class)")]),
    ],
    "Latency": [
        ("Time to first token", "s", quantiles("time_to_first_token_seconds")),
        ("Between tokens", "s", quantiles("inter_token_latency_seconds")),
        ("Time in the queue", "s", quantiles("request_queue_time_seconds")),
        ("Whole requests", "s", quantiles("e2e_request_latency_seconds")),
    ],
    "Cache": [
        ("Blocks in use", "percentunit", [("avg (deepinfer_cache_used_ratio{instance=~\"$instance\"})", "held by requests")]),
        ("Hit rate", "percentunit", [(f"sum (rate(deepinfer_reuse_cached_tokens_total{{instance=~\"$instance\"}}{RATE})) / "
                                      f"sum (rate(deepinfer_reuse_lookup_tokens_total{{instance=~\"$instance\"}}{RATE}))", "of prompt tokens")]),
        ("Why lookups ended", "short", [rate("reuse_misses_total", "{{reason}}", " by (reason)")]),
        ("Evicted blocks a second", "short", [rate("reuse_evicted_blocks_total", "evicted"), rate("preemptions_total", "preemptions")]),
    ],
    "Engine and clients": [
        ("Time of the model", "percentunit", [rate("step_compute_seconds_total", "computing"), rate("step_gap_seconds_total", "waiting for the host"),
                                              rate("step_host_seconds_total", "host work")]),
        ("Rows a second", "short", [rate("step_prompt_rows_total", "of prompts"), rate("step_decode_rows_total", "of answers"),
                                    rate("step_wasted_rows_total", "wasted")]),
        ("Connections", "short", [value("connections", "open")]),
        ("Clients", "short", [rate("client_disconnects_total", "left early"), rate("client_slow_readers_total", "read too slowly"),
                              rate("client_timeouts_total", "sent too slowly"), rate("requests_limited_total", "refused with 429")]),
    ],
}


def panel(number, title, unit, queries, x, y):
    targets = [{"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend} for i, (expr, legend) in enumerate(queries)]
    defaults = {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}}
    return {"id": number, "type": "timeseries", "title": title, "datasource": {"type": "prometheus", "uid": "${datasource}"}, "targets": targets,
            "gridPos": {"x": x, "y": y, "w": 6, "h": 7}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}}


def main():
    panels, number = [], 1
    for row, (name, items) in enumerate(ROWS.items()):
        panels.append({"id": number, "type": "row", "title": name, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": 8 * row, "w": 24, "h": 1}})
        number += 1
        for column, item in enumerate(items):
            panels.append(panel(number, *item, 6 * column, 8 * row + 1))
            number += 1
    variables = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                 {"name": "instance", "type": "query", "label": "Instance", "datasource": {"type": "prometheus", "uid": "${datasource}"},
                  "query": {"query": "label_values(deepinfer_up, instance)", "refId": "instance"}, "includeAll": True, "multi": True,
                  "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2}]
    print(json.dumps({"title": "deepinfer", "uid": "deepinfer", "schemaVersion": 39, "version": 1, "refresh": "10s", "editable": True,
                      "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "panels": panels}, indent=1))


if __name__ == "__main__":
    main()
