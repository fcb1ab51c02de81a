#!/usr/bin/env python3
"""Bounded replay against exact: how often answers agree, what it saves. One report in Markdown on stdout.

    bench/replay.py --binary build/deepinfer [--model models/nano] [--threads N]
"""
import argparse
import json
import os
import resource
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


def agreement(args, lines, options, other):
    exact, _ = generate(args, lines, *options)
    bounded, _ = generate(args, lines, *options, *other)
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
    assert "--replay" not in other or all(a["token_ids"] == b["token_ids"] for a, b in short), "a short prompt is not exact"
    return len(short), len(pairs), equal, common, tokens


def documents(length):
    """Prompts of running text: pages of the project, cut at different places."""
    text = ""
    for name in sorted(os.listdir(os.path.join(ROOT, "docs"))):
        if name.endswith(".md"):
            with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as f:
                text += f.read()
    return [{"prompt": text[at : at + length]} for at in range(0, len(text) - length, length // 2)]


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prefill(args, lines):
    """For each mode tokens, skipped rows, and the least processor seconds and wall seconds of a prefill; the modes take turns. Loading is measured
    with a prompt of one token and taken off."""
    best = {}
    for _ in range(args.repeats):
        for mode, line in (("load", {"prompt": "a"}), *((mode, lines) for mode in ("exact", "mask", "bounded"))):
            before = processor_seconds()
            answers, stats = generate(args, [line], "--max-tokens", "1", "--replay", "exact" if mode == "load" else mode)
            new = (answers[0]["usage"]["prompt_tokens"], stats["skipped_rows"], processor_seconds() - before, stats["compute_us"] / 1e6)
            old = best.get(mode, new)
            best[mode] = (*new[:2], min(new[2], old[2]), min(new[3], old[3]))
    load = best.pop("load")[2]
    return [(mode, tokens, skipped, cpu - load, wall) for mode, (tokens, skipped, cpu, wall) in best.items()]


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
    print("| prompts | compared with exact | at most 140 tokens | longer | of these equal answers | tokens before the first difference |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, prompts, options in (("eval.jsonl without images, greedy", lines, ()),
                                   ("running text of about 1,300 tokens, 32 tokens greedy", documents(4000), ("--max-tokens", "32", "--temperature", "0"))):
        for other in (("--replay", "bounded"), ("--numerics", "bf16-woa8")):
            short, longer, equal, common, tokens = agreement(args, prompts, options, other)
            print(f"| {name} | {' '.join(other)} | {short} | {longer} | {equal} ({100 * equal / longer:.0f} %) | "
                  f"{common} of {tokens} ({100 * common / tokens:.0f} %) |", flush=True)

    line = {"prompt": documents(9000)[0]["prompt"]}
    rows = prefill(args, line)
    print("\n| mode | prompt tokens | rows x layers | share | processor seconds | share | wall seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for mode, tokens, skipped, cpu, wall in rows:
        work = tokens * layers - skipped * (layers - boundary)
        print(f"| {mode} | {tokens} | {work} | {work / (tokens * layers):.3f} | {cpu:.3f} | {cpu / rows[0][3]:.3f} | {wall:.3f} |")


main()
