#!/usr/bin/env python3
"""The program as a whole: help, version, exit statuses, configuration files, broken pipes. usage: test_cli.py [--binary build/deepinfer]"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from program import NANO, Count

count = Count()
check = count.check


class Program:
    def __init__(self, binary):
        self.binary = binary

    def __call__(self, *args, **kwargs):
        return subprocess.run([self.binary, *args], capture_output="stdout" not in kwargs, timeout=60, **kwargs)

    def shell(self, line, **kwargs):
        return subprocess.run(["bash", "-c", line, "bash", self.binary], capture_output=True, timeout=60, **kwargs)


def refuses(name, result, *words):
    """Exit status 2, nothing on stdout, and on stderr sentences with these words."""
    text = result.stderr.decode()
    check(name, result.returncode == 2 and not result.stdout and all(w in text for w in words), result)


def help_and_version(run):
    version = run("--version")
    check("version", version.returncode == 0 and re.fullmatch(rb"deepinfer \d+\.\d+\.\d+\n", version.stdout) and not version.stderr, version)
    overview = run("--help")
    check("help", overview.returncode == 0 and not overview.stderr, overview)
    for word in ("help", "-h"):
        check(word, run(word).stdout == overview.stdout)
    commands = re.findall(r"^  (\S+)  ", overview.stdout.decode(), re.M)
    check("commands", {"inspect", "tokenize", "render", "parse"} <= set(commands), commands)
    for command in commands:
        page = run(command, "--help")
        lines = page.stdout.decode().splitlines()
        check(f"{command} --help", page.returncode == 0 and lines[0].startswith(f"Usage: deepinfer {command}"), page)
        check(f"{command} --help width", max(map(len, lines)) <= 100, max(lines, key=len))
        check(f"{command} --print-config round trip", round_trip(run, command))
    nothing = run()
    check("no command", nothing.returncode == 2 and nothing.stderr == overview.stdout and not nothing.stdout, nothing)


def round_trip(run, command):
    first = run(command, "--print-config")
    with tempfile.NamedTemporaryFile(suffix=".toml") as f:
        f.write(first.stdout)
        f.flush()
        second = run(command, "--print-config", "--config", f.name)
    return first.returncode == second.returncode == 0 and first.stdout == second.stdout and first.stdout.startswith(f"[{command}]\n".encode())


def usage_errors(run):
    refuses("unknown command", run("tokenise"), 'no command "tokenise"', "did you mean `deepinfer tokenize`?")
    refuses("far command", run("xyzzy"), 'no command "xyzzy"')
    refuses("flag first", run("--model", NANO), "a command must stand before the flag --model")
    refuses("unknown flag", run("tokenize", "--modle", NANO), "did you mean --model?", "deepinfer tokenize --help")
    refuses("missing flag", run("tokenize"), "--model DIR is required")
    refuses("stray word", run("tokenize", "--model", NANO, "text"), '"text" stands where a flag')
    refuses("missing model", run("tokenize", "--model", "/nonexistent", input=b"x"), "/nonexistent")


def config_files(run):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "c.toml")

        def config(text):
            pathlib.Path(path).write_text(text, encoding="utf-8")

        config(f'model = "{NANO}"\n\n[tokenize]\ndecode = true\n[inspect]\njson = true\n')
        result = run("tokenize", "--config", path, input=b"[0]")
        check("file sets options", result.returncode == 0 and result.stdout, result)
        result = run("tokenize", "--config", path, "--no-decode", input=b"hello")
        check("flag beats file", result.returncode == 0 and re.search(rb"\d", result.stdout), result)
        config("[tokenize]\n\ndecod = true\n")
        refuses("error in file", run("tokenize", "--config", path), f"{path}:3:", "did you mean decode?")
        config("[inspect]\nplam = true\n")
        refuses("error in another section", run("tokenize", "--config", path), f"{path}:2:", "did you mean plan?")
        refuses("no file", run("tokenize", "--config", path + "x"), path + "x")


def output_errors(run):
    for name, line in (("full disk", '"$1" --help > /dev/full'), ("closed stdout", '"$1" --help >&-'),
                       ("tokenize to a full disk", f'echo hello | "$1" tokenize --model "{NANO}" > /dev/full'),
                       ("tokenize to closed stdout", f'echo hello | "$1" tokenize --model "{NANO}" >&-')):
        refuses(name, run.shell(line), "writing failed")
    lines = '{"text": "hello"}\n' * 20000
    broken = run.shell(f'"$1" tokenize --jsonl --model "{NANO}" | head -n 1 > /dev/null; exit ${{PIPESTATUS[0]}}', input=lines.encode())
    refuses("broken pipe", broken, "Broken pipe")
    closed = run.shell(f'"$1" tokenize --model "{NANO}" <&-')
    refuses("closed stdin", closed, "standard input")


def memory(run):
    too_much = ("generate", "--model", NANO, "--prompt", "x", "--raw", "--max-tokens", "1", "--reuse", "--state-slots", "100000000")
    refuses("--strict-memory", run(*too_much, "--strict-memory"), "left", "--state-slots")
    fits = run(*too_much[:-2], "--strict-memory")
    check("--strict-memory with a plan that fits", fits.returncode == 0 and b"warning" not in fits.stderr, fits.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    run = Program(os.path.abspath(parser.parse_args().binary))
    help_and_version(run)
    usage_errors(run)
    config_files(run)
    output_errors(run)
    memory(run)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
