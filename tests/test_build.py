#!/usr/bin/env python3
"""The two commands: configuring with and without cmocka, and what tests/run counts as failed. usage: test_build.py --binary FILE"""
import argparse
import contextlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from importlib.machinery import SourceFileLoader

from program import ROOT, Count, tests_in

loader = SourceFileLoader("run", os.path.join(ROOT, "tests", "run"))
runner = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
loader.exec_module(runner)


def targets(build):
    done = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True)
    return {line.split(":")[0] for line in done.stdout.split("\n")}


def make(folder, target):
    """Only the configuring of `make TARGET`: (exit status, messages, targets of the build directory)"""
    build = os.path.join(folder, "b")
    shown = subprocess.run(["make", "-n", target, f"BUILD={build}"], cwd=ROOT, capture_output=True, text=True).stdout
    command = next(line for line in shown.split("\n") if line.startswith("cmake ") and f"-B {build} " in line)
    env = {**os.environ, "PKG_CONFIG": os.path.join(folder, "pkg-config")}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
    return done.returncode, " ".join(done.stderr.split()), targets(build)


def test_configuring():
    """`make test` in a tree where `make` or `make run` was before, which do without cmocka."""
    with tempfile.TemporaryDirectory() as folder:
        installed, script = pathlib.Path(folder, "installed"), pathlib.Path(folder, "pkg-config")
        script.write_text(f'#!/bin/sh\ncase "$*" in *cmocka*) [ -f {installed} ] || exit 1 ;; esac\nexec pkg-config "$@"\n')
        script.chmod(0o755)
        status, err, made = make(folder, "build")
        yield status == 0 and "deepinfer" in made and "json_test" not in made, (status, err)
        status, err, _ = make(folder, "test-builds")
        yield status != 0 and "cmocka was not found. Install the apt package libcmocka-dev, or run tools/install-deps --test" in err, (status, err)
        installed.touch()
        status, err, made = make(folder, "test-builds")
        yield status == 0 and "json_test" in made, (status, err)
        status, err, made = make(folder, "build")
        yield status == 0 and "json_test" in made, (status, err, "the build directory has lost its tests")


def job(command, source="", needed=(), counts=runner.program_counts):
    with tempfile.NamedTemporaryFile("w", suffix="_test.c") as f:
        f.write(source)
        f.flush()
        j = runner.Job("name", pathlib.Path(f.name), command, list(needed), counts)
    with contextlib.redirect_stdout(io.StringIO()):
        j.run()
    return j


def shell(script, **fields):
    return job(["sh", "-c", script], **fields)


def test_counting():
    def outcome(j):
        return j.passed, j.failed, j.skipped
    ok, cmocka = "echo 3 passed, 0 failed", {"counts": runner.cmocka_counts}
    yield outcome(shell(ok)) == (3, 0, False), "passed"
    yield outcome(shell("echo 3 passed, 2 failed; exit 1")) == (3, 2, False), "some failed"
    yield outcome(shell(ok + "; exit 3")) == (3, 1, False), "an exit status is a failure"
    yield outcome(shell("true")) == (0, 1, False), "nothing ran"
    yield outcome(shell(ok, needed=["/nonexistent/json_test"])) == (0, 1, False), "missing"
    yield outcome(job(["/etc/passwd"])) == (0, 1, False), "not a program"
    yield outcome(shell("exit 77")) == (0, 1, False), "skipped without a mark"
    yield outcome(shell("exit 77", source=f"/* {runner.MAY_SKIP}there is no such thing here */")) == (0, 0, True), "skipped"
    head, one = "echo '[==========] Running 2 test(s).'", "; echo '[       OK ] a'"
    yield outcome(shell(head + one + one, **cmocka)) == (2, 0, False), "both passed"
    yield outcome(shell(head + one, **cmocka)) == (1, 1, False), "ended early with status 0"
    yield outcome(shell(head + one + "; echo '[  SKIPPED ] b'", **cmocka)) == (1, 1, False), "skipped inside"
    yield outcome(shell("echo '[==========] Running 0 test(s).'", **cmocka)) == (0, 1, False), "no tests"


def test_reports_of_sanitizers():
    """A report of any process of a test is a failure, even if nobody looks at what that process wrote."""
    j = shell('path=${TSAN_OPTIONS#*log_path=}; echo data race >"${path%%:*}.1"; echo 1 passed, 0 failed')
    yield (j.passed, j.failed) == (1, 1) and "data race" in j.output, j.output


def test_limits():
    """Computing is bounded by processor time, hanging by the clock; what a test leaves behind is ended."""
    processor, clock = runner.PROCESSOR_LIMIT, runner.CLOCK_LIMIT
    try:
        runner.PROCESSOR_LIMIT = 1
        j = shell("while :; do :; done")
        yield j.failed == 1 and 0.5 < j.processor < 5 and "ended after 1 s of processor time" in j.output, (j.processor, j.output)
        j = shell("sleep 2; echo 1 passed, 0 failed")
        yield j.failed == 0 and j.passed == 1, ("waiting is not computing", j.output)
        runner.CLOCK_LIMIT = 0.5
        j = shell("sleep 100")
        yield j.failed == 1 and j.clock < 50 and "ended after 0.5 s" in j.output, (j.clock, j.output)
    finally:
        runner.PROCESSOR_LIMIT, runner.CLOCK_LIMIT = processor, clock
    with tempfile.NamedTemporaryFile("r") as f:
        shell(f"sleep 100 & echo $! >{f.name}; echo 1 passed, 0 failed")
        pid, end = int(f.read()), time.monotonic() + 20
        while pathlib.Path(f"/proc/{pid}/cmdline").exists() and pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < end:
            time.sleep(0.05)
        yield time.monotonic() < end, f"process {pid} is still there"


def test_which_builds():
    """Every unit test runs in every build, but those that say that they have no threads not under TSan; the service runs under sanitizers, too."""
    units = [j.name for j in runner.unit_jobs(["b", "b-asan", "b-tsan"])]
    tests = [p.stem for p in pathlib.Path(ROOT, "src").rglob("*_test.c")]
    yield all(f"{b}/{t}" in units for b in ("b", "b-asan") for t in tests), "a unit test is left out"
    threads = ("api_branch_test", "turns_test", "replay_test", "report_bits_test", "vector_test", "core_test")
    yield all(f"b-tsan/{t}" in units for t in threads), "TSan leaves out tests that use threads"
    yield "b-tsan/rope_test" not in units, "a mark was not seen"
    programs = [j.name for j in runner.program_jobs("python3", "b/deepinfer", "tests", ["b", "b-asan", "b-tsan"])]
    yield all(f"tests/{t} on {b}" in programs for t in ("test_serve.py", "test_serve_doors.py", "test_sdk.py") for b in ("b-asan", "b-tsan")), programs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary")
    parser.parse_args()
    count = Count()
    for test in tests_in(globals()):
        count.attempt(test)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
