#!/usr/bin/env python3
"""The C examples beside the program: they run on the nano model, say what the program says, and refuse what is wrong with a sentence.

usage: test_examples.py [--binary build/deepinfer]
"""
import argparse
import os
import subprocess
import sys
import tempfile

from program import NANO, Count

REQUEST = '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}'


def run(folder, name, *args):
    p = subprocess.run([os.path.join(folder, name), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    return p.returncode, p.stdout, p.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    folder = os.path.dirname(os.path.abspath(parser.parse_args().binary))
    count = Count()
    raw = run(folder, "deepinfer", "generate", "--model", NANO, "--prompt", "The capital of France", "--raw", "--temperature", "0", "--max-tokens", "48",
              "--format", "text", "--quiet")
    got = run(folder, "example_complete", NANO, "The capital of France")
    count.group("complete", [(got[0] == 0 and got[1].split("\n[")[0] == raw[1].rstrip("\n") and got[1].endswith(", stop]\n"), (raw, got))])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(REQUEST)
        f.flush()
        got = run(folder, "example_chat", NANO, f.name)
        count.group("chat", [(got[0] == 0 and "[reasoning] The user says:" in got[1] and got[1].endswith("\n[answer] The capital of France is Paris.\n[stop]\n"),
                              got)])
        f.seek(0)
        f.write(REQUEST[:-1])
        f.truncate()
        f.flush()
        got = run(folder, "example_chat", NANO, f.name)
        count.group("chat, broken request", [(got[0] == 1 and got[2].startswith("format:"), got)])
    got = run(folder, "example_complete", os.path.join(NANO, "missing"), "x")
    count.group("no model", [(got[0] == 1 and got[2].startswith("not_found:"), got)])
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
