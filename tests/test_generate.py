#!/usr/bin/env python3
"""deepinfer generate on the nano model: scores, the same bytes however it runs, sampling fields, --resume, memory.

usage: test_generate.py [--binary build/deepinfer] [--seed 1]
Scores are compared with those in reference_scores.json beside the model; nothing here depends on what the model says.
"""
import argparse
import fcntl
import json
import math
import os
import pty
import random
import re
import resource
import select
import shutil
import subprocess
import sys

import program
from program import NANO, Count, Program, eval_items, read, request_of

SLACK = 2  # items, in all and per kind


# ---- scores ----

def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]


def is_right(check, answer):
    text, value, kind = answer["text"].strip(), check["value"], check["type"]
    try:
        calls = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])} for c in answer["tool_calls"]]
        if kind == "json":
            return json.loads(text) == value
    except ValueError:
        return False
    return {"number": lambda: numbers(text)[-1:] == [value],
            "text": lambda: text == value and not calls,
            "contains": lambda: value.lower() in text.lower(),
            "calls": lambda: calls == value,
            "no_call": lambda: not calls and value.lower() in text.lower()}[kind]()


def check_scores(count, prog):
    items = [i for i in eval_items() if i["kind"] != "image"]
    with open(os.path.join(NANO, "reference_scores.json"), encoding="utf-8") as f:
        reference = {k: v for k, v in json.load(f).items() if k != "image"}
    run = prog.generate([request_of(i) for i in items], "--temperature", 0)
    answers = run.records() if run.status == 0 else []
    count.group("eval: all lines answered, in order", [(run.status == 0, run), ([a["id"] for a in answers] == [i["id"] for i in items], "ids")])
    scores = {}
    for item, answer in zip(items, answers):
        score = scores.setdefault(item["kind"], [0, 0])
        score[0] += is_right(item["check"], answer)
        score[1] += 1
    total, want = sum(s[0] for s in scores.values()), sum(v[0] for v in reference.values())
    print(f"   {total} of {len(items)} right, the reference has {want}")
    count.group("eval: scores of kinds", [(k in scores and scores[k][1] == v[1] and scores[k][0] >= v[0] - SLACK, (k, scores.get(k), v))
                                          for k, v in reference.items()])
    count.group("eval: total", [(abs(total - want) <= SLACK, (total, want))])
    count.group("eval: length of prompts", [(a["usage"]["prompt_tokens"] == i["prompt_tokens"], i["id"]) for i, a in zip(items, answers)])
    image = next((i for i in eval_items() if i["kind"] == "image"), None)
    if image:
        run = prog.generate([request_of(image), {"prompt": "a", "max_tokens": 1}])
        first, second = run.records()
        count.group("eval: an image prompt is an error line", [(run.status == 1 and first["error"]["code"] == "unsupported" and
                                                               "image" in first["error"]["message"] and "text" in second, run)])
    return {i["id"]: a for i, a in zip(items, answers)}


# ---- the same bytes ----

def short_items(n):
    items = sorted((i for i in eval_items() if i["kind"] != "image"), key=lambda i: i["prompt_tokens"])
    return items[:n // 2] + items[len(items) // 2:len(items) // 2 + n - n // 2]


def mixed_requests(n=15):
    variants = [{"temperature": 0}, {"temperature": 1.2, "seed": 5, "top_k": 30}, {"temperature": 0.9, "seed": 6, "top_p": 0.8},
                {"temperature": 1, "seed": 7, "min_p": 0.05, "frequency_penalty": 0.6},
                {"temperature": 0.7, "seed": 8, "repetition_penalty": 1.3, "presence_penalty": -0.5, "logprobs": True, "top_logprobs": 3}]
    return [request_of(i, max_tokens=6 + k % 5 * 5, **variants[k % len(variants)]) for k, i in enumerate(short_items(n))]


def check_same_bytes(count, prog):
    requests = mixed_requests()
    first = prog.generate(requests, "--context", 2048, "--quiet")
    runs = [[], ["--threads", 1], ["--threads", 2], ["--max-batch", 1], ["--max-batch", 3], ["--prefill-chunk", 7],
            ["--prefill-chunk", 7, "--max-batch", 5, "--threads", 1], ["--prefill-chunk", 1000, "--max-batch", 64]]
    results = [(first.status == 0 and first.err == b"", first)]
    for flags in runs:
        again = prog.generate(requests, "--context", 2048, "--quiet", *flags)
        results.append((again.out == first.out and again.status == 0, (flags, again)))
    target = prog.path()
    to_file = prog.generate(requests, "--context", 2048, "--output", target)
    results.append((to_file.status == 0 and to_file.out == b"" and read(target) == first.out, "with --output"))
    shuffled = list(reversed(requests))
    back = prog.generate(shuffled, "--context", 2048)
    results.append((list(reversed(back.out.split(b"\n")[:-1])) == first.out.split(b"\n")[:-1], "in another order"))
    count.group("same bytes in every run, thread count, batch, chunk and order", results)


# ---- sampling fields ----

PROMPT = {"prompt": "Once upon a time there was a little", "max_tokens": 24}


def check_seeds(count, prog):
    base = [{**PROMPT, "temperature": 1.0, "seed": s} for s in (1, 1, 2, 3)] + [{**PROMPT, "temperature": 0}, {**PROMPT, "temperature": 2, "top_k": 1},
            {**PROMPT, "temperature": 1.5, "top_p": 1e-9}, {**PROMPT, "temperature": 1.5, "min_p": 1}, {**PROMPT, "temperature": 0, "seed": 77}]
    a = [r["token_ids"] for r in prog.generate(base).records()]
    count.group("seeds", [(a[0] == a[1], "same seed"), (a[0] != a[2] and a[2] != a[3], "other seed"), (a[4] == a[5], "top_k 1 is greedy"),
                          (a[4] == a[6], "tiny top_p is greedy"), (a[4] == a[7], "min_p 1 is greedy"), (a[4] == a[8], "greedy ignores the seed")])
    with_flags = prog.generate([PROMPT], "--temperature", 1, "--seed", 2).records()
    line = {**PROMPT, "temperature": 1, "seed": 1}
    over = prog.generate([line], "--temperature", 0, "--seed", 9, "--max-tokens", 3).records()
    count.group("flags are defaults of lines", [(with_flags[0]["token_ids"] == a[2], with_flags), (over[0]["token_ids"] == a[0], over)])
    one = prog.run("generate", "--model", NANO, "--raw", "--prompt", PROMPT["prompt"], "--max-tokens", 24, "--temperature", 0)
    text = prog.run("generate", "--model", NANO, "--raw", "--prompt", PROMPT["prompt"], "--max-tokens", 24, "--temperature", 0, "--format", "text")
    count.group("--prompt", [(one.records()[0]["token_ids"] == a[4], one), (text.out.decode() == one.records()[0]["text"] + "\n", text)])


def check_endings(count, prog):
    greedy = {**PROMPT, "temperature": 0}
    plain = prog.generate([{**greedy, "ignore_eos": True}]).records()[0]
    ids, text = plain["token_ids"], plain["text"]
    middle = len(text) // 2
    spanning = text[middle:middle + 9]  # longer than a token
    unseen = next((n for n, i in enumerate(ids) if n >= 4 and i not in ids[:n]), len(ids) - 1)
    cut = text.index(spanning)
    runs = [{**greedy, "stop": spanning}, {**greedy, "stop": ["\x01never", spanning], "include_stop_str_in_output": True},
            {**greedy, "stop_token_ids": [ids[unseen]]}, {**greedy, "max_tokens": 1},
            {**greedy, "stop_token_ids": [ids[unseen]], "min_tokens": unseen + 2}, {**greedy, "stop_token_ids": [ids[unseen]], "ignore_eos": True},
            {**greedy, "max_completion_tokens": 5, "max_tokens": 9}]
    got = prog.generate(runs).records()
    count.group("endings", [
        (len(ids) == 24 and plain["finish_reason"] == "length", plain),
        (got[0]["text"] == text[:cut] and got[0]["finish_reason"] == "stop" and got[0]["stop_reason"] == spanning, got[0]),
        (ids[:len(got[0]["token_ids"])] == got[0]["token_ids"] and len(got[0]["token_ids"]) < 24, got[0]),
        (got[1]["text"] == text[:cut] + spanning, got[1]),
        (got[2]["token_ids"] == ids[:unseen + 1] and got[2]["finish_reason"] == "stop", got[2]),
        (got[3]["token_ids"] == ids[:1] and got[3]["finish_reason"] == "length", got[3]),
        (ids[unseen] not in got[4]["token_ids"][:unseen + 2] and len(got[4]["token_ids"]) > unseen + 2, got[4]),
        (got[5]["token_ids"] == ids, got[5]), (got[6]["token_ids"] == ids[:5], got[6])])
    end = prog.generate([{**greedy, "logit_bias": {"1": 100}}, {**greedy, "logit_bias": {"1": 100}, "min_tokens": 7},
                         {**greedy, "logit_bias": {"1": 100}, "ignore_eos": True, "max_tokens": 4}]).records()
    count.group("the end id", [(end[0]["token_ids"] == [1] and end[0]["text"] == "" and end[0]["finish_reason"] == "stop", end[0]),
                               (len(end[1]["token_ids"]) == 8 and 1 not in end[1]["token_ids"][:7], end[1]),
                               (end[2]["token_ids"] == [1] * 4 and end[2]["text"] == "" and end[2]["finish_reason"] == "length", end[2])])
    first = ids[0]
    bias = prog.generate([{**greedy, "logit_bias": {str(first): -100}}, {**greedy, "logit_bias": {"300": 100}, "max_tokens": 3}]).records()
    penal = prog.generate([{**greedy, "logit_bias": {"300": 30}}, {**greedy, "logit_bias": {"300": 30}, "presence_penalty": 2, "frequency_penalty": 2},
                           {**greedy, "logit_bias": {"300": 30}, "repetition_penalty": 50.0}]).records()
    repeats = [r["token_ids"].count(300) for r in penal]
    count.group("logit_bias and penalties", [(first not in bias[0]["token_ids"], bias[0]), (bias[1]["token_ids"] == [300] * 3, bias[1]),
                                             (repeats[1] < repeats[0] and repeats[2] < repeats[0], repeats)])


def check_logprobs(count, prog):
    def entries(r):
        return [e for part in ("reasoning_content", "content") for e in r["logprobs"][part]]
    chat = request_of(short_items(1)[0], max_tokens=24)
    runs = prog.generate([{**PROMPT, "temperature": 0, "logprobs": True, "top_logprobs": 20}, {**PROMPT, "temperature": 1.5, "seed": 3, "logprobs": 5},
                          {**chat, "logprobs": True, "top_logprobs": 2}, {**PROMPT, "logprobs": True}, PROMPT]).records()
    greedy, drawn, talk, bare, without = runs
    results = [("logprobs" not in without, without), (all(e["top_logprobs"] == [] for e in entries(bare)), bare)]
    for r, n in ((greedy, 20), (drawn, 5), (talk, 2)):
        rows = entries(r)
        results.append((len(rows) == len(r["token_ids"]), (len(rows), len(r["token_ids"]))))
        for e in rows:
            top = [t["logprob"] for t in e["top_logprobs"]]
            same = [t["logprob"] for t in e["top_logprobs"] if t["bytes"] == e["bytes"] and t["token"] == e["token"]]
            results += [(len(top) == n and top == sorted(top, reverse=True), e), (e["logprob"] <= 1e-5 and sum(map(math.exp, top)) <= 1.0001, e),
                        (not same or e["logprob"] in same, e), (r is drawn or e["logprob"] == top[0] or r is talk, e)]
    text = b"".join(bytes(e["bytes"]) for e in entries(greedy)[:-1])
    results.append((greedy["text"].encode().startswith(text[:20]), (greedy["text"], text)))
    count.group("logprobs", results)


def check_formats(count, prog):
    ask = {"messages": [{"role": "user", "content": "Name a city in json."}], "thinking": {"type": "disabled"}, "max_tokens": 4, "temperature": 0}
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    rendered = [{"tools": [tool], "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
                {"tools": [tool], "tool_choice": "required"}]
    got = prog.generate([{**ask, **x} for x in rendered] + [ask, {**ask, "response_format": {"type": "text"}}])
    lines = got.records()
    count.group("formats", [("constrained" not in r and "text" in r, r) for r in lines])
    masks = [({"guided_grammar": "root ::= \"a\"", "tools": [tool]}, "grammar"), ({"n": 2}, "n"), ({"bad_words": ["x"]}, "bad_words"), ({"allowed_token_ids": [5]}, "allowed_token_ids")]
    refused = prog.generate([{**ask, **m} for m, _ in masks])
    count.group("what is not there yet is refused by name", [(refused.status == 1, refused)] +
                [(r.get("error", {}).get("code") == "unsupported" and word in r["error"]["message"], r) for r, (_, word) in zip(refused.records(), masks)])


# ---- --resume ----

def check_resume(count, prog, rng):
    requests = []
    for k, r in enumerate(mixed_requests(40)):
        requests += [{**r, "id": f"r{k}"}] + ([b"{broken"] if k % 11 == 3 else []) + ([b""] if k % 7 == 2 else [])
    source = prog.write(b"".join((json.dumps(r).encode() if isinstance(r, dict) else r) + b"\n" for r in requests))
    flags = ["generate", "--model", NANO, "--input", source, "--context", 1024, "--max-batch", 3, "--quiet"]
    whole, target = prog.path(), prog.path()
    full = prog.run(*flags, "--output", whole)
    want = read(whole)
    results, sizes = [(full.status == 1, full)], []
    goals = [0] + sorted(rng.sample(range(len(want) * 2 // 3), 5))  # bytes of output after which it is killed, and a moment later
    for goal in goals:
        moment = rng.uniform(0, 0.1)
        r = prog.run(*flags, "--output", target, "--resume", kill_if=lambda: os.path.exists(target) and os.path.getsize(target) >= goal, kill_delay=moment)
        have = read(target)
        sizes.append(len(have))
        results.append((r.status in (-9, 1) and want.startswith(have), f"killed at {goal}: the output is no prefix of the undisturbed one"))
    r = prog.run(*flags, "--output", target, "--resume")
    results += [(r.status == 1, r), (read(target) == want, "not the same bytes"), (sum(0 < s < len(want) for s in sizes) > 1, f"killed too late: {sizes}")]
    print(f"   killed at {sizes} of {len(want)} bytes")
    lines = want.splitlines(keepends=True)
    damaged = {"empty": b"", "complete": want, "cut in a line": b"".join(lines[:7]) + lines[7][:len(lines[7]) // 2], "one byte missing": want[:-1],
               "without newline": b"".join(lines[:5])[:-1], "garbage at the end": b"".join(lines[:9]) + b"\0\0\0\0\0\n"}
    for name, data in damaged.items():
        path = prog.write(data)
        r = prog.run(*flags, "--output", path, "--resume")
        results.append((r.status == 1 and read(path) == want, (name, r)))
    path = prog.path()
    for _ in range(2):
        r = prog.run("generate", "--model", NANO, "--prompt", "Hi", "--max-tokens", 3, "--output", path, "--resume")
    results.append((r.status == 0 and read(path).count(b"\n") == 1, ("--prompt is answered once", r)))
    r = prog.run(*flags, "--resume")
    results.append((r.status == 2 and b"--output" in r.err, r))
    r = prog.run("generate", "--model", NANO, "--input", source, "--output", source)
    results.append((r.status == 2 and read(source).count(b"\n") == len(requests), ("the input must not be overwritten", r)))
    path = prog.write(want + lines[-1])
    r = prog.run(*flags, "--output", path, "--resume")
    results.append((r.status == 2 and b"more lines" in r.err and read(path) == want + lines[-1], ("the output of another input", r)))
    for extra in ([], ["--resume"]):
        path = prog.write(want[:100])
        with open(path, "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            r = prog.run(*flags, "--output", path, *extra)
        results.append((r.status == 2 and b"another run" in r.err and read(path) == want[:100], ("two runs must not write one file", r)))
    count.group("--resume", results)


def check_resume_of_another_run(count, prog):
    """What was written by a run with other lines, options or another model is not gone on with, and stays as it is."""
    def line(**fields):
        return json.dumps({"prompt": "Once upon", "max_tokens": 3, **fields}).encode() + b"\n"
    first = [line(id="a"), line(), b"\n", b"{broken\n", line(id={"n": 9007199254740993, "x": [1e2]}), line(id="e", prompt="")]
    source, target = prog.write(b"".join(first) + line(id="last")), prog.path()
    flags = ["generate", "--model", NANO, "--context", 1024, "--quiet", "--output"]
    full = prog.run(*flags, target, "--input", source)
    want = read(target)
    part = b"".join(want.splitlines(keepends=True)[:-1]) + b'{"id": "la'
    results = [(full.status == 1 and want.count(b"\n") == 6, full)]

    def again(why, status, word, *more, model=NANO, source=source, kept=part):
        path = prog.write(kept)
        r = prog.run(*[model if f is NANO else f for f in flags], path, "--input", source, "--resume", *more)
        results.append((r.status == status and word in r.err and read(path) == (kept if status == 2 else want), (why, word, r)))

    again("the same", 1, b"", "--threads", 1, "--max-batch", 2, "--prefill-chunk", 5, "--reuse")
    for option in (("--temperature", 0), ("--seed", 1), ("--top-p", 0.5), ("--top-k", 5), ("--min-p", 0.1), ("--max-tokens", 5), ("--context", 512),
                   ("--numerics", "bf16-woa8"), ("--replay", "bounded"), ("--no-thinking",)):
        again(option, 2, b"line 1 of", *option)
        again(option, 2, b"other options", *option)

    def changed(place, new):
        lines = first[:place] + [new] + first[place + 1:]
        return prog.write(b"".join(lines) + line(id="last"))
    for place, new, sentence in ((0, line(id="b"), b'line 1 of {} has id "a", line 1 of the input id "b"'), (0, line(), b'has id "a", line 1 of the input no id'),
                                 (1, line(id=5), b"line 2 of {} has no id, line 2 of the input id 5"), (3, line(id=0), b"line 3 of {} has no id, line 4 of the input id 0"),
                                 (4, line(id={"n": 9007199254740992, "x": [100]}), b"line 4 of"), (4, b"", b'line 4 of {} has id {"n":9007199254740993,"x":[100.0]}'),
                                 (5, line(id="\u00e4" * 500), b'...; it is of another run'), (2, line(id="a"), b"line 3 of")):
        again((place, new), 2, sentence.split(b"{}")[0], source=changed(place, new))
        again((place, new), 2, sentence.split(b"{}")[-1], source=changed(place, new))
    again("spaces and order of an id", 1, b"", source=changed(4, b'{ "prompt":"Once upon", "max_tokens":3,"id": {"x":[ 100], "n":9007199254740993.0} }\n'))
    again("an input that ended", 2, b"more lines than the input", source=prog.write(b"".join(first[:3])))
    other = prog.path()
    shutil.copytree(NANO, other, ignore=shutil.ignore_patterns("eval.jsonl", "inference"))
    config = json.loads(read(os.path.join(other, "config.json")))
    with open(os.path.join(other, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=7)
    again("another model", 2, b"answered by another model", model=other)
    path = prog.path()
    prompt = ["generate", "--model", NANO, "--quiet", "--max-tokens", 3, "--output", path, "--resume", "--prompt"]
    runs = [prog.run(*prompt, "Hi"), prog.run(*prompt, "Ho"), prog.run(*prompt, "Hi", "--raw")]
    results.append(([r.status for r in runs] == [0, 2, 2] and b"other options" in runs[1].err and read(path).count(b"\n") == 1, runs))
    count.group("--resume of another run", results)


def check_file_size_limit(count, prog):
    """ulimit -f: a sentence, no signal; what was written whole can be gone on with."""
    source = prog.write(b"".join(json.dumps({"prompt": "Once upon", "max_tokens": 60, "seed": s}).encode() + b"\n" for s in range(12)))
    flags = ["generate", "--model", NANO, "--context", 512, "--quiet", "--input", source]
    free, path, results = prog.run(*flags), prog.path(), []
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))}
    r = prog.run(*flags, "--output", path, **limit)
    results.append((r.status == 2 and r.err.decode() == f"deepinfer generate: {path}: writing failed: File too large\n", r))
    results.append((0 < len(read(path)) <= 3000 and free.out.startswith(read(path)), (len(read(path)), len(free.out))))
    r = prog.run(*flags, "--output", path, "--resume")
    results.append((r.status == 0 and read(path) == free.out, r))
    for args in (flags, ["logits", "--model", NANO, "--ids", "0,5,6", "--output", prog.path("logits")]):
        with open(prog.path(), "wb") as out:
            r = prog.run(*args, stdout=out, **limit)
        results.append((r.status == 2 and b"File too large" in r.err and program.one_sentence(r.err), (args, r)))
    results.append((not [n for n in os.listdir(prog.folder.name) if n.startswith("logits")], os.listdir(prog.folder.name)))
    count.group("the limit of file sizes", results)


# ---- statistics ----

def on_terminal(prog, *args):
    """The run's standard error, which is a terminal."""
    ours, theirs = pty.openpty()
    child = prog.start(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        shown += piece
        if not piece:
            break
    child.wait(60)
    os.close(ours)
    return shown.replace(b"\r\n", b"\n")


def check_statistics(count, prog):
    requests = [{**PROMPT, "temperature": 0, "max_tokens": n} for n in (1, 4, 9)] + [{"prompt": ""}]
    r = prog.generate(requests, "--context", 1024, "--quiet", "--stats", "--reuse")
    lines = r.err.splitlines()
    s = json.loads(lines[-1])
    h, usage = s["histograms"], [x["usage"] for x in r.records() if "usage" in x]
    tokens = sum(u["completion_tokens"] for u in usage)
    results = [
        (len(lines) == 1 and s["finished"] == 3 and s["running"] == s["waiting"] == 0 and s["free_blocks"] == s["blocks"], s),
        (s["generated_tokens"] == tokens and s["prompt_tokens"] == sum(u["prompt_tokens"] for u in usage), s),
        (s["ended"]["length"] + s["ended"]["stop"] == 3 and sum(s["ended"].values()) == 3, s["ended"]),
        (sum(n for k, n in s["misses"].items() if k != "other_tenant") == s["lookups"] == 3, s["misses"]),
        (h["iteration_tokens_total"]["count"] == s["steps"], h),
        (h["inter_token_latency_seconds"]["count"] == tokens - 3, h),
        (h["request_generation_tokens"]["mean"] == float(f"{tokens / 3:.6g}"), h),
        (all(x["p50"] <= x["p90"] <= x["p99"] for x in h.values()), h),
    ]
    source = prog.write(json.dumps(requests[0]).encode() + b"\n")
    shown = on_terminal(prog, "generate", "--model", NANO, "--input", source, "--context", 1024, "--quiet", "--stats").splitlines()
    table = [line.split() for line in shown[1:]]
    results.append((json.loads(shown[0])["finished"] == 1, shown))
    results.append((any(row[:2] == [b"time_to_first_token_seconds", b"1"] and len(row) == 6 for row in table), shown))
    count.group("--stats", results)


def check_drafts(count, prog):
    """The same answers with drafts, in fewer steps; the accounts of requests add up to those of the engine."""
    requests = mixed_requests(10) + [{**PROMPT, "temperature": 0}, {**PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 60}]
    runs = {}
    results = []
    for flags in ([], ["--draft", "static"], ["--draft", "static", "--draft-tokens", 2, "--max-batch", 3, "--prefill-chunk", 9]):
        r = prog.generate(requests, "--context", 2048, "--quiet", "--stats", *flags)
        s, answers, usage = json.loads(r.err.splitlines()[-1]), r.records(), []
        for a in answers:
            usage.append((a["usage"].pop("drafted_tokens"), a["usage"].pop("accepted_tokens")))
        runs[len(runs)] = answers
        drafted, accepted = (sum(u[k] for u in usage) for k in (0, 1))
        most = 0 if not flags else 2 if "--draft-tokens" in flags else 5
        results += [
            (r.status == 0 and answers == runs[0], (flags, r)),
            ((s["drafted_tokens"], s["accepted_tokens"]) == (drafted, accepted), (usage, s)),
            (sum(s["drafted_at"]) == drafted and sum(s["accepted_at"]) == accepted and not any(s["drafted_at"][most:]), s),
            (s["generated_tokens"] == s["draft_steps"] + accepted + len(requests), s),
            (accepted > drafted / 10 if most else drafted == 0, usage),
            (all(a <= d for d, a in usage), usage),
        ]
    refused = prog.generate(requests[:1], "--draft", "static", "--draft-tokens", 6, "--quiet")
    results.append((refused.status == 2 and b"draft-tokens" in refused.err, refused))
    count.group("drafts", results)


# ---- memory ----

def planned(r):
    """What the plan and the program take together at most, in bytes."""
    found = re.search(rb"memory \(MiB\): plan .*total ([0-9.]+) at most", r.err)
    return float(found.group(1)) * 2 ** 20 if found else 0


def check_memory(count, prog):
    if prog.sanitized:
        return
    long = next(i for i in eval_items() if i["prompt_tokens"] > 1500)
    requests = [request_of(i, max_tokens=8) for i in short_items(6)] + [request_of(long, max_tokens=8)]
    results = []
    for flags in (["--context", 3000, "--max-batch", 40, "--prefill-chunk", 1024], ["--max-batch", 4, "--prefill-chunk", 16, "--threads", 1],
                  ["--reuse", "--context", 2048, "--max-batch", 2, "--state-slots", 8]):
        r = prog.generate(requests, *flags)
        total = planned(r)
        print(f"   {' '.join(map(str, flags)) or 'defaults'}: peak {r.rss / 2 ** 20:.1f} MiB of {total / 2 ** 20:.1f} planned")
        results.append((r.status == 0 and r.rss <= total * 1.05, (flags, r.rss / 2 ** 20, total / 2 ** 20)))
    # A cache that is filled: then the peak is most of the plan, too.
    fill = [{"prompt_token_ids": [17 + (i * j) % 900 for j in range(1, 701)], "max_tokens": 4, "temperature": 0} for i in range(1, 31)]
    for flags in (["--reuse", "--state-slots", 40], ["--no-reuse"]):
        r = prog.generate(fill, "--context", 768, "--max-batch", 8, *flags)
        total = planned(r)
        print(f"   filled, {' '.join(map(str, flags))}: peak {r.rss / 2 ** 20:.1f} MiB of {total / 2 ** 20:.1f} planned")
        results.append((r.status == 0 and total * 0.8 <= r.rss <= total * 1.05, (flags, r.rss / 2 ** 20, total / 2 ** 20)))
    count.group("peak memory within the plan", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    count, prog = Count(), Program(args.binary)
    check_scores(count, prog)
    check_same_bytes(count, prog)
    check_seeds(count, prog)
    check_endings(count, prog)
    check_logprobs(count, prog)
    check_formats(count, prog)
    check_resume(count, prog, random.Random(args.seed))
    check_resume_of_another_run(count, prog)
    check_file_size_limit(count, prog)
    check_statistics(count, prog)
    check_drafts(count, prog)
    check_memory(count, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
