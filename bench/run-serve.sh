#!/bin/sh
# The cost of HTTP: bench/run-serve.sh [build directory] [prefix of the commands, for example "chrt -f 1"]
# The server runs in front of an engine that computes nothing (bench/serve_null.c); the client is bench/serve_load.c on the same machine.
set -eu
build=${1:-build}
prefix=${2:-}
ninja -C "$build" serve_null serve_load >/dev/null
echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"

out=$(mktemp)
start() { # RATE GROUPS
    : >"$out"
    $prefix "$build/serve_null" 0 "$1" "$2" >"$out" &
    pid=$!
    while ! grep -q listening "$out"; do sleep 0.1; done
    port=$(sed 's/.*://' "$out")
}
stop() {
    kill $pid
    wait $pid || true
}
resident() { sed -n 's/^VmRSS:[^0-9]*//p' /proc/$pid/status; }
http_ns() { for t in /proc/$pid/task/*; do [ "$(cat "$t/comm")" != http ] || cut -d' ' -f1 "$t/schedstat"; done; }

for groups in 1 20; do
    echo
    echo "1000 streams, 50 tokens a second each, in $groups turn(s) a period"
    start 50 $groups
    before=$(http_ns)
    $prefix "$build/serve_load" "$port" streams 1000 500
    echo "us of the http thread per token: $(awk "BEGIN {print ($(http_ns) - $before) / 1000 / 500000}"), resident $(resident)"
    stop
done

echo
echo "10,000 idle connections"
start 50 1
echo "resident before: $(resident)"
(sleep 8) | "$build/serve_load" "$port" idle 10000 &
sleep 6
echo "resident with them: $(resident)"
wait $! || true
stop

echo
echo "100,000 requests, streamed and not, half of them broken off at a random moment"
start 500 1
for _ in 1 2 3 4 5; do
    "$build/serve_load" "$port" churn 20000 10
    echo "resident: $(resident)"
done
sleep 1
python3 - "$port" <<'END'
import sys, urllib.request
for line in urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode().split("\n"):
    if line.startswith(("deepinfer_requests_live ", "deepinfer_connections ", "deepinfer_reading_bytes ", "deepinfer_running ")):
        print(line)
END
stop
rm -f "$out"
