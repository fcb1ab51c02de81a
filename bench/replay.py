#!/usr/bin/env python3
"""Bounded replay against exact: how often answers agree, what it saves. One report in Markdown on stdout.

    bench/replay.py --binary build/deepinfer [--model models/nano] [--threads N]
"""
import argparse
import json
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TAIL = 140


def generate(args, lines, *options):
    """Answers, counters, and processor seconds of computation."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "in.jsonl")
        with open(source, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        command = [args.binary, "generate", "--model", args.model, "--input", source, "--quiet", "--stats", "--threads", str(args.threads), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    stats = json.loads([line for line in done.stderr.splitlines() if line.startswith("{")][-1])
    return answers, stats


def agreement(args, lines, *options):
    exact, _ = generate(args, lines, *options)
    bounded, _ = generate(args, lines, *options, "--replay", "bounded")
    pairs = [(a, b) for a, b in zip(exact, bounded) if "usage" in a and a["usage"]["prompt_tokens"] > TAIL]
    equal = sum(a["token_ids"] == b["token_ids"] for a, b in pairs)
    common, tokens = 0, 0
    for a, b in pairs:
        tokens += len(a["token_ids"])
        for x, y in zip(a["token_ids"], b["token_ids"]):
            if x != y:
                break
            common += 1
    short = [(a, b) for a, b in zip(exact, bounded) if "usage" in a and a["usage"]["prompt_tokens"] <= TAIL]
    assert all(a["token_ids"] == b["token_ids"] for a, b in short), "a short prompt is not exact"
    return len(short), len(pairs), equal, common, tokens


def documents(length):
    """Prompts of running text: pages of the project, cut at different places."""
    text = ""
    for name in sorted(os.listdir(os.path.join(ROOT, "docs"))):
        if name.endswith(".md"):
            with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as f:
                text += f.read()
    return [{"prompt": text[at : at + length]} for at in range(0, len(text) - length, length // 2)]


def prefill(args, mode, line):
    """Seconds of one prefill, best of several."""
    best, answer, stats = None, None, None
    for _ in range(args.repeats):
        answers, counters = generate(args, [line], "--max-tokens", "1", "--replay", mode)
        if best is None or counters["compute_us"] < best:
            best, answer, stats = counters["compute_us"], answers[0], counters
    return best / 1e6, answer["usage"]["prompt_tokens"], stats["skipped_rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "models/nano"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)["text_config"]
    layers, boundary = config["num_hidden_layers"], config["kv_source_layer_ids"][-1]

    with open(os.path.join(args.model, "eval.jsonl"), encoding="utf-8") as f:
        lines = [line for line in map(json.loads, f) if line["kind"] != "image"]
    print("| prompts | at most 140 tokens: exact by definition | longer | of these equal answers | tokens before the first difference |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, prompts, options in (("eval.jsonl without images, greedy", lines, ()),
                                   ("running text of about 1,300 tokens, 32 tokens greedy", documents(4000), ("--max-tokens", "32", "--temperature", "0"))):
        short, longer, equal, common, tokens = agreement(args, prompts, *options)
        print(f"| {name} | {short} | {longer} | {equal} ({100 * equal / longer:.0f} %) | {common} of {tokens} ({100 * common / tokens:.0f} %) |")

    line = {"prompt": documents(9000)[0]["prompt"]}
    rows = [(mode, *prefill(args, mode, line)) for mode in ("exact", "mask", "bounded")]
    print("\n| mode | prompt tokens | rows x layers | share | prefill, seconds | share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for mode, seconds, tokens, skipped in rows:
        work = tokens * layers - skipped * (layers - boundary)
        print(f"| {mode} | {tokens} | {work} | {work / (tokens * layers):.3f} | {seconds:.3f} | {seconds / rows[0][1]:.3f} |")


main()
