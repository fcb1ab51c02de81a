#!/usr/bin/env python3
"""Files that change or fill up under the program: the model while it is in use, the output at a limit, on a full disk, at any kill.

usage: test_files.py [--binary build/deepinfer]
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

from program import NANO, Count, Program, one_sentence, read
from serving import Server

SMALL = ("--context", 512, "--max-batch", 1)
LINE = json.dumps({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "ignore_eos": True}).encode() + b"\n"


# ---- the model ----

class ModelCopy:
    """A copy of the nano model with one of its files changed in some way while it is open."""

    def __init__(self, prog):
        self.path = prog.path()
        shutil.copytree(NANO, self.path, ignore=shutil.ignore_patterns("eval.jsonl", "inference", "*.md"))
        self.shards = sorted(os.path.join(self.path, n) for n in os.listdir(self.path) if n.endswith(".safetensors"))

    def remove(self):
        shutil.rmtree(self.path)


def shorten(path):
    os.truncate(path, 4096)


def overwrite(path):
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        f.write(b"\x3c" * 65536)


def write_anew(path):
    data = read(path)
    with open(path, "wb") as f:
        f.write(data)


def replace(path):
    with open(path + ".new", "wb") as f:
        f.write(read(path)[::-1])
    os.rename(path + ".new", path)


HARMFUL = {"shortened": shorten, "overwritten": overwrite, "written anew": write_anew, "touched": os.utime, "emptied": lambda path: os.truncate(path, 0)}
HARMLESS = {"replaced": replace, "deleted": os.unlink}


def change_under_generate(prog, change):
    """Four lines are answered, every shard changes, four more follow. (status, lines that came before, after; stderr)"""
    model = ModelCopy(prog)
    p = prog.start(["generate", "--model", model.path, "--input", "-", "--quiet", *SMALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(LINE * 4)
    p.stdin.flush()
    first = p.stdout.readline()
    for shard in model.shards:
        change(shard)
    rest, err = p.communicate(LINE * 4, timeout=120)
    model.remove()
    return p.returncode, first, rest, err


def check_generate(count, prog):
    results = []
    for name, change in HARMFUL.items():
        status, first, rest, err = change_under_generate(prog, change)
        results.append((status == 2 and one_sentence(err) and b".safetensors" in err and b"in use" in err, (name, status, err)))
        results.append((first.startswith(b"{") and all(line == first.rstrip() for line in rest.splitlines()), (name, first, rest)))
    for name, change in HARMLESS.items():
        status, first, rest, err = change_under_generate(prog, change)
        results.append((status == 0 and err == b"" and rest == first * 7, (name, status, err, rest)))
    count.group("generate: the model changes while it is in use", results)


def check_serve(count, prog):
    results = []
    for name, change in {**HARMFUL, **HARMLESS}.items():
        model = ModelCopy(prog)
        with Server(prog, "--quiet", *SMALL, model=model.path) as s:
            def ask():
                return s.chat("Say hello.", temperature=0, max_tokens=4, seed=1)
            s.until(lambda: s.get("/health").status == 200)
            before = ask().json()["choices"]
            for shard in model.shards:
                change(shard)
            if name in HARMLESS:
                r = ask()
                results.append((r.status == 200 and r.json()["choices"] == before and s.get("/health").status == 200, (name, r)))
            else:
                for r in (ask(), ask()):
                    results.append((r.status == 500 and ".safetensors" in (r.error() or "") and "in use" in r.error() and model.path not in r.error(), (name, r)))
                results.append((s.until(lambda: s.get("/health").status == 503, 5) is not None, (name, s.get("/health"))))
                r = s.get("/health")
                results.append(("failed in the latest step" in r.error() and s.metrics()["deepinfer_up"] == 0, (name, r)))
                results.append((s.messages().count("error: a request failed: model-") == 2, (name, s.messages())))
        results.append((s.status == 0, (name, s.status)))
        model.remove()
    count.group("serve: the model changes while it is in use", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    count, prog = Count(), Program(parser.parse_args().binary)
    check_generate(count, prog)
    check_serve(count, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
