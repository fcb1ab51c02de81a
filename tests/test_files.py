#!/usr/bin/env python3
"""Files that change or fill up under the program: the model while it is in use, the output at a limit, on a full disk, at any kill.

usage: test_files.py [--binary build/deepinfer]
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time

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


def check_streams(count, prog):
    """A stream under way ends with the error, whatever step it is in, and nobody hangs."""
    results, rng = [], random.Random(3)
    for round_ in range(4):
        model = ModelCopy(prog)
        with Server(prog, "--quiet", "--context", 1024, "--max-batch", 3, model=model.path) as s:
            s.until(lambda: s.get("/health").status == 200)
            streams = [s.stream(f"Tell me {i}.", max_tokens=900, temperature=1, seed=i, ignore_eos=True) for i in range(5)]
            time.sleep(rng.uniform(0.05, 0.3))
            for shard in model.shards:
                os.truncate(shard, rng.randrange(1, os.path.getsize(shard)))
            for stream in streams:
                if stream.head() == 200:
                    last = list(stream.events())[-1]
                    results.append(("in use" in str(last) or last == "[DONE]", (round_, last)))
                else:
                    body = stream.file.read()
                    results.append((stream.status == 500 and b"in use" in body, (round_, stream.status, body)))
                stream.close()
            results.append((s.until(lambda: s.busy() == 0 and s.get("/health").status == 503, 10) is not None, (round_, s.busy())))
        results.append((s.status == 0, s.status))
        model.remove()
    count.group("serve: streams while the model changes", results)


# ---- a full disk ----

def check_full_disk(count, prog):
    """On a small file system of its own, where this system allows one."""
    script = """set -e
mount -t tmpfs -o size=64k none "$1"
head -c 57344 /dev/zero >"$1/filler"
set +e
"$2" generate --model "$3" --input "$4" --output "$1/out" --context 512 --quiet; echo "status $?"
cp "$1/out" "$5"
"$2" logits --model "$3" --ids 0,5,6 --output "$1/logits" --quiet; echo "status $?"
ls "$1"
rm "$1/filler"
"$2" generate --model "$3" --input "$4" --output "$1/out" --context 512 --quiet --resume; echo "status $?"
cp "$1/out" "$6"
"""
    lines = b"".join(json.dumps({"id": i, "prompt": "Once upon a time", "max_tokens": 40, "seed": i, "ignore_eos": True}).encode() + b"\n" for i in range(24))
    source, cut, whole, folder = prog.write(lines), prog.path(), prog.path(), prog.path()
    os.mkdir(folder)
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    allowed = shutil.which("unshare") and subprocess.run([*own, "mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], stderr=subprocess.DEVNULL, check=False).returncode == 0
    if not allowed:
        print("   no file system of its own for the full disk: left out")
        return
    run = subprocess.run([*own, "bash", "-c", script, "bash", folder, prog.binary, NANO, source, cut, whole], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         timeout=200, check=False)
    want = prog.run("generate", "--model", NANO, "--input", source, "--context", 512, "--quiet").out
    count.group("a full disk", [
        (run.stdout == "status 2\nstatus 2\nfiller\nout\nstatus 0\n", run),
        ([line.split(": ", 1)[1] for line in run.stderr.splitlines()] == [f"{folder}/{name}: writing failed: No space left on device" for name in ("out", "logits")], run.stderr),
        (0 < len(read(cut)) < len(want) and want.startswith(read(cut)), (len(read(cut)), len(want))), (read(whole) == want, "not the same after --resume")])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    count, prog = Count(), Program(parser.parse_args().binary)
    check_generate(count, prog)
    check_serve(count, prog)
    check_streams(count, prog)
    check_full_disk(count, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
