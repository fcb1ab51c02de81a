#!/usr/bin/env python3
"""deepinfer logits and perplexity: golden vectors in every mode, equal bits however the rows are fed, the instruction sets, broken arguments.

usage: test_logits.py [--binary build/deepinfer]
tests/data/vectors/README.md has the tolerances.
"""
import argparse
import json
import math
import os
import sys

import numpy as np
from safetensors.numpy import load_file

from program import NANO, ROOT, Count, Program, one_sentence

VECTORS = os.path.join(ROOT, "tests", "data", "vectors")
CASES = ["tiny_a", "tiny_b", "tiny_c", "tiny_d", "nano_text"]
MODES = {"f32-noquant": "f32_nocache_quant", "f32": "f32", "f32r": "f32r", "bf16": "bf16", "bf16-woa8": "bf16_wo_a_q8"}


def model_of(case):
    return NANO if case == "nano_text" else os.path.join(VECTORS, case)


class Golden:
    def __init__(self, prog, case):
        self.name, self.model = case, model_of(case)
        self.fields = load_file(os.path.join(VECTORS, case, "vectors.safetensors"))
        self.ids = self.fields["ids"].tolist()
        self.file = prog.write(json.dumps(self.ids))

    def logits(self, prog, *flags, ids=None):
        """[rows, vocab], or the failed run."""
        out = prog.path()
        r = prog.run("logits", "--model", self.model, "--ids", ids or self.file, "--output", out, "--quiet", *flags)
        if r.status or r.out or r.err:
            return r
        logits = load_file(out)["logits"]
        os.unlink(out)
        return logits


def demand(mode, case):
    """(largest d, median d, margin, share of equal argmax)"""
    nano, bf16 = case == "nano_text", mode.startswith("bf16")
    if mode == "f32_nocache_quant":
        return 1e-4, 1e-4, 0.0, 1.0
    if mode == "f32":
        return math.inf, 0.06 if nano else 1e-2 if case == "tiny_a" else 1e-3, 0.1, 0.0
    if nano and bf16:
        return math.inf, 1.0, 0.5, 0.97 if mode == "bf16_wo_a_q8" else 0.98
    return math.inf, 0.35, 1.0, 0.82 if case == "tiny_d" and bf16 else 0.87


def judge(golden, mode, logits):
    if not isinstance(logits, np.ndarray):
        return False, (golden.name, mode, logits)
    f = golden.fields
    worst, median, margin, share = demand(mode, golden.name)
    d = np.abs(logits[f["rows"]] - f[f"{mode}.logits"]).max(axis=1)
    equal = logits.argmax(axis=1) == f[f"{mode}.argmax"]
    seen = (d.max(), np.median(d), f[f"{mode}.margin"][~equal].max(initial=0), equal.mean())
    good = logits.shape[0] == len(golden.ids) and seen[0] <= worst and seen[1] <= median and seen[2] <= margin and seen[3] >= share
    return good, (golden.name, mode, "largest, median, lead of a wrong row, equal:", seen)


def same_bits(a, b):
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.tobytes() == b.tobytes()


def check_vectors(count, prog, goldens):
    for name, mode in MODES.items():
        count.group(f"golden vectors, {name}", [judge(g, mode, g.logits(prog, "--numerics", name)) for g in goldens])


def check_isas(count, prog, goldens):
    g, usable, results = goldens[3], [], []
    cpu = open("/proc/cpuinfo", encoding="utf-8").read().split()
    for isa in ("ref", "avx2", "avx512", "avx512bf16", "amx", "sse9", ""):
        r = g.logits(prog, "--cpu-isa", isa)
        if isinstance(r, np.ndarray) and isa:
            usable.append(isa)
            results += [judge(g, "bf16", r), judge(goldens[4], "bf16", goldens[4].logits(prog, "--cpu-isa", isa))]
        else:
            results.append((not isinstance(r, np.ndarray) and r.status == 2 and one_sentence(r.err), (isa, r)))
    results.append(("ref" in usable and ("avx2" in usable) == ("avx2" in cpu), usable))
    for mode in ("f32", "f32r", "f32-noquant"):
        r = g.logits(prog, "--numerics", mode, "--cpu-isa", usable[-1])
        if usable[-1] != "ref":
            results.append((not isinstance(r, np.ndarray) and r.status == 2 and one_sentence(r.err), (mode, r)))
    count.group(f"instruction sets ({', '.join(usable)})", results)


def check_bits(count, prog, goldens):
    feeds = [["--prefill-chunk", n] for n in (1, 7, 64, 129)] + [["--decode-from", 1], ["--decode-from", 200, "--prefill-chunk", 50], ["--threads", 1], ["--threads", 3]]
    results = []
    for g in goldens:
        whole = g.logits(prog, "--prefill-chunk", len(g.ids))
        some = feeds if g.name in ("tiny_a", "nano_text") else feeds[1::3]
        results += [(same_bits(g.logits(prog, *flags), whole), (g.name, flags)) for flags in some]
        last = g.logits(prog, "--positions", "last")
        results.append((same_bits(last, whole[-1:]), (g.name, "--positions last")))
    g = goldens[1]
    for mode in MODES:
        whole = g.logits(prog, "--numerics", mode)
        results.append((same_bits(g.logits(prog, "--numerics", mode, "--prefill-chunk", 7), whole), (mode, "chunks of 7")))
        results.append((same_bits(g.logits(prog, "--numerics", mode, "--decode-from", 400), whole), (mode, "decode from 400")))
    for spelled in (",".join(map(str, g.ids[:9])), "[" + ", ".join(map(str, g.ids[:9])) + "]", " ".join(map(str, g.ids[:9])), prog.write(" ".join(map(str, g.ids[:9])) + "\r\n")):
        results.append((same_bits(g.logits(prog, ids=spelled), g.logits(prog)[:9]), spelled))
    count.group("the same bits in chunks, one at a time, on any number of threads", results)


def check_perplexity(count, prog):
    with open(os.path.join(NANO, "eval.jsonl"), encoding="utf-8") as f:
        text = "\n".join(m["content"] for line in f for m in json.loads(line)["messages"] if isinstance(m["content"], str))[:1500]
    path = prog.write(text)
    ids = json.loads(prog.run("tokenize", "--model", NANO, stdin=text).out)
    g = Golden(prog, "nano_text")

    def nll(part):
        logits = g.logits(prog, ids=prog.write(json.dumps([0, *part]))).astype(np.float64)[:-1]
        top = logits.max(axis=1, keepdims=True)
        return (np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0] - logits[np.arange(len(part)), part]).sum()

    def run(*flags):
        r = prog.run("perplexity", "--model", NANO, "--text", path, *flags)
        return r.out, json.loads(r.out) if r.status == 0 else {"nll": math.nan, "tokens": 0, "perplexity": math.nan, "failed": r}

    out, whole = run()
    cut, cut_want = run("--context", 101)[1], sum(nll(ids[i:i + 100]) for i in range(0, len(ids), 100)) / len(ids)
    want = nll(ids) / len(ids)
    results = [(whole["tokens"] == len(ids) and abs(whole["nll"] - want) < 1e-9 * want, (whole, want, len(ids))),
               (abs(whole["perplexity"] - math.exp(want)) < 1e-6 * math.exp(want), whole), (abs(cut["nll"] - cut_want) < 1e-9 * cut_want and cut["tokens"] == len(ids), (cut, cut_want))]
    results += [(run(*flags)[0] == out, flags) for flags in (["--prefill-chunk", 1], ["--prefill-chunk", 7], ["--threads", 1], ["--prefill-chunk", 1000])]
    two = run("--context", 2)[1]
    results.append((two["tokens"] == len(ids) and two["nll"] > whole["nll"], two))
    for bad in (["--text", prog.write(b"")], ["--text", prog.write(b"caf\xe9")], ["--text", os.path.join(prog.folder.name, "missing")], ["--text", prog.folder.name],
                ["--text", path, "--context", 1], []):
        r = prog.run("perplexity", "--model", NANO, *bad)
        results.append((r.status == 2 and r.out == b"" and b"deepinfer" in r.err, (bad, r)))
    full = prog.run("perplexity", "--model", NANO, "--text", path, stdout=open("/dev/full", "wb"))
    results.append((full.status == 2 and one_sentence(full.err), full))
    count.group("perplexity", results)


def check_bad(count, prog):
    g, out, results = Golden(prog, "tiny_b"), prog.path(), []
    vocab = g.fields["bf16.logits"].shape[1]
    bad_ids = ["", ",", "[]", "1,,2", ",1", "1,2,", "1,,", "-1", "1,-2", str(vocab), f"1,{vocab}", "99999999999", "1.5", "1,x", "no/such/file", prog.folder.name, prog.write(b"1 2 x"), prog.write(os.urandom(400)),
               prog.write(b""), prog.write(b"1\x002"), prog.write("1 " * 300000)]
    for ids in bad_ids:
        r = prog.run("logits", "--model", g.model, "--ids", ids, "--output", out)
        results.append((r.status == 2 and r.out == b"" and one_sentence(r.err) and not os.path.exists(out), (ids[:40], r)))
    full = prog.path()
    os.symlink("/dev/full", full)  # never the device itself: a defect could replace it
    for flags in (["--decode-from", -1], ["--prefill-chunk", 0], ["--positions", "some"], ["--context", 2, "--ids", "1,2,3"], ["--context", 10 ** 8], ["--output", full],
                  ["--output", "/no/such/folder/x"], ["--output", prog.folder.name], ["--numerics", "f16"], ["--model", "/no/such/model"]):
        r = prog.run("logits", "--model", g.model, "--ids", "1,2", "--output", out, *flags)
        results.append((r.status == 2 and r.out == b"" and b"deepinfer" in r.err and not os.path.exists(out), (flags, r)))
    results.append((os.path.islink(full), "a link was replaced by a file"))
    few = g.logits(prog, "--prefill-chunk", 65536, "--max-batch", 1024, ids="5")
    results += [(isinstance(few, np.ndarray) and few.shape == (1, vocab), few), (same_bits(g.logits(prog, "--decode-from", 0, ids="5,6"), g.logits(prog, "--decode-from", 99, ids="5,6")), "--decode-from")]
    count.group("broken arguments", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    args = parser.parse_args()
    count, prog = Count(), Program(args.binary)
    goldens = [Golden(prog, case) for case in CASES]
    check_vectors(count, prog, goldens)
    check_isas(count, prog, goldens)
    check_bits(count, prog, goldens)
    check_perplexity(count, prog)
    check_bad(count, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
