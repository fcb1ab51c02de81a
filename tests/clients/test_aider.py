#!/usr/bin/env python3
"""aider against the nano model: the recipe of docs/clients.md, one message in a repository of its own."""
import os
import re
import subprocess
import sys

import clients


def aider(program, recorder, *args):
    text = clients.at(clients.recipe("aider"), recorder.url)
    flags = re.search(r"^aider (.*)", text, re.M).group(1).split()
    folder = program.path()
    os.mkdir(folder)
    subprocess.run(["git", "init", "-q", folder], check=True)
    with open(os.path.join(folder, "hello.py"), "w", encoding="utf-8") as f:
        f.write("print('hello')\n")
    command = [os.path.join(os.path.dirname(sys.executable), "aider"), *flags, "--yes-always", "--no-show-model-warnings", "--no-gitignore", "--no-auto-commits",
               "--no-show-release-notes", "--no-detect-urls", *args, "hello.py"]
    return clients.run_program(command, folder, **dict(re.findall(r"export (\w+)=(\S+)", text)))


def test_aider(program):
    with clients.served(program, "--context", 6144) as (_, recorder):
        status, out, err = aider(program, recorder, "--message", "Repeat: apple")
        yield status == 0, (out[-1500:], err[-1500:])
        yield recorder.seen and recorder.statuses() == [200] * len(recorder.seen), (recorder.statuses(), out[-1500:])
        asked = [b for b in recorder.bodies() if b]
        yield asked and asked[0]["model"] == "nano" and asked[0]["stream"], asked
        yield "Tokens:" in out, out[-1500:]


def test_aider_too_long(program):
    """It finds the numbers in the message and says what to do."""
    with clients.served(program, "--context", 1024) as (_, recorder):
        _, out, err = aider(program, recorder, "--message", "Repeat: apple")
        yield 400 in recorder.statuses(), (recorder.statuses(), out[-1500:])
        yield "token limit" in (out + err).lower() or "context" in (out + err).lower(), (out[-2500:], err[-500:])


if __name__ == "__main__":
    sys.exit(clients.run_tests(__doc__, clients.tests_in(globals())))
