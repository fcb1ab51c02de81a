"""One memory plan, whoever shows it: `inspect --plan`, `generate`, `serve` and the server's status have the same lines for the same options.

    python tests/test_plan.py --binary build/deepinfer
"""
import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile

from program import NANO, ROOT, Count, Program
from serving import Server

# Options that `generate` and `serve` share, and what only `serve` has.
NANO_SETS = [
    [],
    ["--max-batch", 3, "--context", 100, "--prefill-chunk", 17],
    ["--max-batch", 1, "--numerics", "bf16-woa8", "--threads", 1, "--state-slots", 5],
    ["--cpu-isa", "ref", "--context", 512],
    ["--numerics", "f32", "--max-batch", 2, "--context", 65],
    ["--replay", "bounded", "--context", 4096, "--prefill-chunk", 1024],
    ["--draft", "static", "--draft-tokens", 2, "--max-batch", 40],
]
# More than any machine has, so that --strict-memory ends the run once the plan is printed; without it, the missing tokenizer.
FULL_SETS = [[], ["--max-batch", 1024, "--context", 1048576, "--strict-memory"], ["--max-batch", 1, "--context", 131072, "--prefill-chunk", 2048]]
REGIONS = ["matrices", "vectors", "embedding", "engram tables", "draft", "vision", "layer tables", "directory", "token map", "activations", "rows",
           "scratch", "cache blocks", "request states", "page table", "leases", "block accounts", "snapshots", "snapshot accounts", "prefix index",
           "logits", "launch tables", "worker slots", "slots"]
OF_REUSE = {"snapshots", "snapshot accounts", "prefix index"}


def plan_lines(text):
    """The lines of a plan, from its heading to its total."""
    lines = text.split("\n")
    begin = next((i for i, line in enumerate(lines) if line.startswith("memory plan:")), len(lines))
    end = next((i for i, line in enumerate(lines) if i > begin and line.startswith("  total ")), len(lines))
    return lines[begin:end + 1]


def region_names(lines):
    return [line[14:32].strip() for line in lines[2:-3]]


def inspect(program, model, *flags):
    r = program.run("inspect", "--model", model, "--plan", *flags)
    return plan_lines(r.out.decode()), r


def run_serve(program, model, *flags):
    """The server's messages, once it listens or has ended, and its status."""
    server = Server(program, *flags, model=model, ready=False)
    try:
        line = server.process.stdout.readline().decode()
        status = None
        if line.startswith("listening on "):
            connection = http.client.HTTPConnection(line.split("//")[1].strip(), timeout=60)
            connection.request("GET", "/api/status")
            status = json.loads(connection.getresponse().read())
            connection.close()
        else:
            server.wait()
        return server.messages(), status
    finally:
        server.stop()


def compare(program, model, flags):
    """Pairs (good, what to show)."""
    for reuse in ("--reuse", "--no-reuse"):
        want, r = inspect(program, model, reuse, *flags)
        exhausted = "--strict-memory" in flags
        yield r.status == (2 if exhausted else 0), r
        names = region_names(want)
        known = [n for n in REGIONS if reuse == "--reuse" or n not in OF_REUSE]
        if "ref" in flags or "f32" in flags:
            known[0] = "vectors"
            known[1] = "matrices in place"
        if "--draft" in flags:
            known.remove("draft")  # it is not left in the file
            known[2:2] = ["draft", "draft in place"]
            known.insert(known.index("slots"), "drafts")
        yield names == known, (flags, reuse, names)
        r = program.run("generate", "--model", model, "--prompt", "x", "--max-tokens", 1, reuse, *flags)
        yield plan_lines(r.err.decode()) == want, ("generate", flags, reuse, r)
        yield (r.status == 0) == (model == NANO), r
        messages, status = run_serve(program, model, reuse, *flags)
        yield plan_lines(messages) == want, ("serve", flags, reuse, messages)
        if model != NANO:
            continue
        shown = json.loads(program.run("inspect", "--model", model, "--plan", "--json", reuse, *flags).out)["plan"]
        memory = status["memory"]
        yield memory == shown, ("status", flags, reuse, memory)
        by_place = {p: sum(x["bytes"] for x in memory["regions"] if x["place"] in p) for p in (("device", "host"), ("mapped",))}
        yield memory["total"] == sum(by_place.values()) == shown["allocated_bytes"] + shown["mapped_bytes"], memory
        yield by_place[("mapped",)] == memory["weights_mapped"], memory
        yield all(x["bytes"] == x["count"] * x["unit_bytes"] for x in memory["regions"]), memory


def test_nano(program):
    for flags in NANO_SETS:
        yield from compare(program, NANO, flags)


def test_full_size(program):
    with tempfile.TemporaryDirectory() as temp:
        model = os.path.join(temp, "full")
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_sparse_checkpoint"), model], check=True, stdout=subprocess.DEVNULL)
        for flags in FULL_SETS:
            yield from compare(program, model, flags)


def test_cache_blocks(program):
    """An option that only the service has."""
    flags = ("--cache-blocks", 123, "--max-batch", 2, "--context", 640)
    want, _ = inspect(program, NANO, *flags)
    messages, _ = run_serve(program, NANO, *flags)
    yield plan_lines(messages) == want, (want, messages)
    yield any("cache blocks" in line and " 123 " in line for line in want), want


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    count, program = Count(), Program(parser.parse_args().binary)
    for test in (test_nano, test_full_size, test_cache_blocks):
        count.attempt(test, program)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
