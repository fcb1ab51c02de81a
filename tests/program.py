"""What the whole-program tests share: counting, and running the program with its resource use measured."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NANO = os.path.join(ROOT, "models", "nano")
FIELDS = ("id", "messages", "tools", "tool_choice", "response_format", "thinking", "reasoning_effort", "temperature", "max_tokens")


class Count:
    """Results of groups of checks; `finish` prints the line that tests/run reads."""

    def __init__(self):
        self.passed = self.failed = 0
        self.start = time.monotonic()

    def check(self, name, ok, show=""):
        """One of many, which is not worth a line if it is good."""
        self.passed += bool(ok)
        self.failed += not ok
        if not ok:
            print(f"FAILED: {name}: {str(show)[:1500]}", flush=True)

    def group(self, name, results, as_one=False):
        """results: pairs (ok, what to show otherwise). as_one: counts as one test, however many pairs it has."""
        results = list(results)
        bad = [show for ok, show in results if not ok]
        self.passed += not bad if as_one else len(results) - len(bad)
        self.failed += bool(bad) if as_one else len(bad)
        seconds, self.start = time.monotonic() - self.start, time.monotonic()
        print(f"{'ok' if not bad else 'FAILED'}: {name}: {len(results) - len(bad)} of {len(results)} ({seconds:.1f} s)", flush=True)
        for show in bad[:5]:
            print("   ", str(show)[:1500], flush=True)

    def attempt(self, test, *args):
        """`test` yields pairs, as for `group`; one that breaks off has failed."""
        results = []
        try:
            for pair in test(*args):
                results.append(pair)
        except Exception as e:
            inside = e.__traceback__.tb_next
            results.append((False, f"{type(e).__name__}: {e} at line {inside.tb_lineno if inside else '?'}"))
        self.group(test.__name__, results)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0


def tests_in(names, text="", prefixes=("test_",)):
    """Of the globals of a file the tests whose name contains `text`, in their order."""
    return [f for name, f in list(names.items()) if name.startswith(prefixes) and text in name]


class Result:
    """status: exit status, or minus the signal. out, err: bytes. rss: peak resident bytes. cpu: seconds."""

    def __init__(self, status, out, err, rss, cpu):
        self.status, self.out, self.err, self.rss, self.cpu = status, out, err, rss, cpu

    def records(self):
        return parse_lines(self.out)

    def __repr__(self):
        return f"exit {self.status}, stdout {self.out[:600]!r}, stderr {self.err[-600:]!r}"


def parse_lines(data):
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def peak_rss(pid):
    """Peak resident bytes so far. Not ru_maxrss: that begins with the size of the process that forked, this interpreter."""
    try:
        found = re.search(rb"VmHWM:\s+(\d+) kB", read(f"/proc/{pid}/status"))
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def is_sanitized(binary):
    return re.search(b"__[at]san_init", read(binary)) is not None


class Program:
    """Runs `binary`. Every file it needs lies in a folder that lives as long as this object."""

    def __init__(self, binary):
        self.binary = os.path.abspath(binary)
        self.sanitized = is_sanitized(binary)
        self.folder = tempfile.TemporaryDirectory()
        self.count = 0

    def path(self, name=None):
        self.count += 1
        return os.path.join(self.folder.name, name or f"file{self.count}")

    def write(self, data, name=None):
        path = self.path(name)
        with open(path, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
        return path

    def start(self, args, **popen):
        return subprocess.Popen([self.binary, *map(str, args)], cwd=ROOT, **popen)

    def run(self, *args, stdin=None, stdout=None, timeout=300, kill_if=None, kill_delay=0, **popen):
        """Outputs go to files, so that nothing blocks and the peak memory of the child alone is measured."""
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        source = stdin if isinstance(stdin, int) else subprocess.DEVNULL
        if isinstance(stdin, (bytes, str)):
            source = tempfile.TemporaryFile()
            source.write(stdin.encode() if isinstance(stdin, str) else stdin)
            source.seek(0)
        p = self.start(args, stdin=source, stdout=out if stdout is None else stdout, stderr=err, **popen)
        end, rss = time.monotonic() + timeout, 0
        while True:
            rss = max(rss, peak_rss(p.pid))
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if pid:
                break
            if kill_if and kill_if():
                time.sleep(kill_delay)
                end = 0
            if time.monotonic() > end:
                os.kill(p.pid, signal.SIGKILL)
                _, status, usage = os.wait4(p.pid, 0)
                break
            time.sleep(0.003)
        p.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read())
            f.close()
        if re.search(rb"Sanitizer|runtime error", texts[1]):
            p.returncode = "sanitizer report"
        return Result(p.returncode, *texts, rss, usage.ru_utime + usage.ru_stime)

    def generate(self, requests, *flags, model=NANO, **kwargs):
        """requests: objects, or lines as text or bytes. Results on stdout."""
        lines = b"".join((json.dumps(r) if isinstance(r, dict) else r).encode() + b"\n" if not isinstance(r, bytes) else r + b"\n"
                         for r in requests)
        path = self.write(lines)
        result = self.run("generate", "--model", model, "--input", path, *flags, **kwargs)
        os.unlink(path)
        return result


def one_sentence(err):
    """The last line of stderr is a message of the program, and nothing crashed."""
    lines = err.decode("utf-8", "replace").strip().split("\n")
    return re.match("deepinfer[ :]", lines[-1]) and len(lines[-1]) < 600 and not re.search(r"Sanitizer|runtime error|core dumped", "\n".join(lines))


def eval_items(model=NANO):
    with open(os.path.join(model, "eval.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def request_of(item, **changes):
    return {**{k: item[k] for k in FIELDS if k in item}, **changes}
