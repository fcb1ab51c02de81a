#!/usr/bin/env python3
"""Schemas with valid and invalid instances through `deepinfer grammar match`, and the times of masks; other libraries beside it if installed.

usage: maskbench.py --data maskbench.jsonl.gz [--binary build/deepinfer] [--tokenizer tokenizer.json] [--every N] [--others llguidance,xgrammar]
A schema passes if it compiles, every valid instance is accepted and every invalid one rejected (a validation error is a valid instance that is
rejected, an invalidation error an invalid one that is accepted). With --tokenizer masks are computed before each token of the valid instances.
llguidance, xgrammar and their tokenizers are looked for in the Python that runs this; they are no requirement of the project. Times are
processor time: of its thread for deepinfer, of the process for the libraries.
"""
import argparse
import gzip
import json
import subprocess
import sys
import time


def percentiles(ns):
    ns = sorted(ns)
    at = lambda p: ns[min(len(ns) - 1, int(len(ns) * p))] / 1000
    return (f"n {len(ns)} mean {sum(ns) / len(ns) / 1000:.1f} p50 {at(.5):.1f} p90 {at(.9):.1f} p99 {at(.99):.1f} "
            f"p99.9 {at(.999):.1f} max {ns[-1] / 1000:.0f} us") if ns else "none"


def report(name, rows, verdicts, first, masks):
    """verdicts: per schema None (refused), an error text, or the list of accepted flags."""
    count = {"pass": 0, "refused": 0, "validation": 0, "invalidation": 0}
    reasons = {}
    for row, verdict in zip(rows, verdicts):
        if not isinstance(verdict, list):
            count["refused"] += 1
            reasons[verdict] = reasons.get(verdict, 0) + 1
            continue
        tests = list(zip(row["tests"], verdict))
        if any(t["valid"] and not ok for t, ok in tests):
            count["validation"] += 1
        elif any(ok and not t["valid"] for t, ok in tests):
            count["invalidation"] += 1
        else:
            count["pass"] += 1
    print(f"{name}: {count['pass']} of {len(rows)} pass ({100 * count['pass'] / len(rows):.2f} %), {count['refused']} refused, "
          f"{count['validation']} validation errors, {count['invalidation']} invalidation errors")
    print(f"  first mask: {percentiles(first)}")
    print(f"  mask:       {percentiles(masks)}")
    for reason, n in sorted(reasons.items(), key=lambda item: -item[1])[:8]:
        print(f"  {n:5} {reason[:110]}")


def text_of(test):
    return json.dumps(test["data"], indent=None, ensure_ascii=False)


def run_deepinfer(args, rows):
    command = [args.binary, "grammar", "match", "--jsonl"] + (["--time", "--model", args.tokenizer] if args.tokenizer else [])
    lines = "".join(json.dumps({"id": i, "kind": "json", "grammar": json.dumps(row["schema"]), "texts": [text_of(t) for t in row["tests"]]}) + "\n"
                    for i, row in enumerate(rows))
    out = subprocess.run(command, input=lines, capture_output=True, text=True, check=False).stdout.splitlines()
    verdicts, first, masks = [], [], []
    for line in out:
        answer = json.loads(line)
        verdicts.append(answer["accepted"] if "accepted" in answer else answer["error"]["message"])
        masks += answer.get("mask_ns", [])
        first += [answer["first_mask_ns"]] if "first_mask_ns" in answer else []
    report("deepinfer", rows, verdicts, first, masks)


def run_llguidance(args, rows):
    import llguidance
    import llguidance.hf
    import llguidance.numpy
    import transformers
    tokenizer = llguidance.hf.from_tokenizer(transformers.PreTrainedTokenizerFast(tokenizer_file=args.tokenizer))
    bitmask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
    verdicts, first, masks = [], [], []
    for row in rows:
        start = time.process_time_ns()
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(row["schema"])), log_level=0)
        if matcher.is_error():
            verdicts.append(matcher.get_error().split("\n")[0])
            continue
        compiled, flags = time.process_time_ns() - start, []
        for test in row["tests"]:
            m, ok = matcher.deep_copy(), True
            for k, token in enumerate(tokenizer.tokenize_str(text_of(test))):
                start = time.process_time_ns()
                llguidance.numpy.fill_next_token_bitmask(m, bitmask, 0)
                took = time.process_time_ns() - start
                ok = bool(bitmask[0, token // 32] >> (token % 32) & 1) and m.consume_token(token)
                if test["valid"]:
                    masks.append(took)
                    if k == 0 and not any(t["valid"] for t in row["tests"][:len(flags)]):
                        first.append(took + compiled)
                if not ok:
                    break
            flags.append(ok and m.is_accepting())
        verdicts.append(flags)
    report("llguidance", rows, verdicts, first, masks)


def run_xgrammar(args, rows):
    import numpy
    import transformers
    import xgrammar
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=args.tokenizer)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bitmask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
    words = bitmask.numpy().view(numpy.uint32)
    verdicts, first, masks = [], [], []
    for row in rows:
        start = time.process_time_ns()
        try:
            compiled_grammar = compiler.compile_json_schema(json.dumps(row["schema"]), any_whitespace=True, strict_mode=False)
        except Exception as failure:  # whatever it raises is a refusal
            verdicts.append(str(failure).split("\n")[0])
            continue
        compiled, flags = time.process_time_ns() - start, []
        for test in row["tests"]:
            m, ok = xgrammar.GrammarMatcher(compiled_grammar), True
            for k, token in enumerate(tokenizer.encode(text_of(test), add_special_tokens=False)):
                start = time.process_time_ns()
                m.fill_next_token_bitmask(bitmask, 0)
                took = time.process_time_ns() - start
                ok = bool(words[0, token // 32] >> (token % 32) & 1) and m.accept_token(token)
                if test["valid"]:
                    masks.append(took)
                    if k == 0 and not any(t["valid"] for t in row["tests"][:len(flags)]):
                        first.append(took + compiled)
                if not ok:
                    break
            flags.append(ok and m.accept_token(info.stop_token_ids[0]))
        verdicts.append(flags)
    report("xgrammar", rows, verdicts, first, masks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--tokenizer")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--others", default="")
    args = parser.parse_args()
    with gzip.open(args.data, "rt", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f][::args.every]
    run_deepinfer(args, rows)
    for name in filter(None, args.others.split(",")):
        {"llguidance": run_llguidance, "xgrammar": run_xgrammar}[name](args, rows)
    return 0


sys.exit(main())
