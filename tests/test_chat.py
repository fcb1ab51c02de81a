#!/usr/bin/env python3
"""deepinfer chat in a pseudo-terminal: streaming, dimmed reasoning, history, commands, Ctrl-C, Ctrl-D, odd lines; and through pipes.

usage: test_chat.py [--binary build/deepinfer]
"""
import argparse
import os
import pty
import re
import select
import signal
import sys
import termios
import time

from program import NANO, Count, Program, one_sentence

PROMPT = b"\x1b[1m> \x1b[0m"
DIM, PLAIN = b"\x1b[2m", b"\x1b[0m"
STATS = re.compile(rb"\[(\d+) prompt tokens in [0-9.]+ s, (\d+) tokens, [0-9.]+ tokens/s(, interrupted|, cut at the limit)?\]")
CTRL_C, CTRL_D = b"\x03", b"\x04"
WAIT = 60


class Terminal:
    """The program with a terminal as stdin, stdout and stderr."""

    def __init__(self, prog, *flags):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(prog.binary, [prog.binary, "chat", "--model", NANO, "--context", "4096", "--temperature", "0", *flags])
        attributes = termios.tcgetattr(self.fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.fd, termios.TCSANOW, attributes)
        self.seen, self.status = b"", None

    def until(self, wanted, timeout=WAIT):
        """What comes up to and including `wanted` (bytes or a compiled pattern), without carriage returns; None if it never comes."""
        end = time.monotonic() + timeout
        while True:
            text = self.seen.replace(b"\r", b"")
            match = wanted.search(text) if hasattr(wanted, "search") else re.search(re.escape(wanted), text)
            if match:
                self.seen = text[match.end():]
                return text[:match.end()]
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                return None
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                return None
            self.seen += data

    def send(self, data):
        os.write(self.fd, data)

    def ask(self, line):
        """The answer up to the next prompt; b"" if it did not come."""
        self.send(line + b"\n")
        return self.until(PROMPT) or b""

    def end(self, timeout=WAIT):
        """Exit status, or minus the signal; it is killed if it does not end."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
        return "it did not end"


def tokens(answer):
    """(prompt tokens, answer tokens, ending) of the last answer in the text."""
    found = STATS.findall(answer)
    return (int(found[-1][0]), int(found[-1][1]), found[-1][2]) if found else (0, 0, b"none")


def body(answer):
    return answer[:STATS.search(answer).start()] if STATS.search(answer) else answer


def check_conversation(count, prog):
    t = Terminal(prog, "--max-tokens", "60")
    results = [(t.until(PROMPT) is not None, "no prompt appears")]
    thought = t.ask(b"What is 24 / 8?")
    results += [(thought.startswith(DIM) and PLAIN in body(thought), ("reasoning is dimmed and the answer is not", thought)),
                (tokens(thought)[1] > 0 and b"loading" not in thought, thought)]
    t.ask(b"/reset")
    t.ask(b"/think off")
    first = t.ask(b"My name is Rozu.")
    second = t.ask(b"What is my name?")
    results += [(DIM not in first and DIM not in second, (first, second)), (tokens(second)[0] > tokens(first)[0] + tokens(first)[1], ("history in the prompt", first, second))]
    t.ask(b"/reset")
    alone = t.ask(b"What is my name?")
    again = t.ask(b"What is my name?")
    results += [(tokens(alone)[0] < tokens(second)[0], ("/reset forgets", alone, second)), (tokens(again)[0] > tokens(alone)[0], (alone, again))]
    t.ask(b"/reset")
    results += [(body(t.ask(b"What is my name?")) == body(alone), "a conversation that starts again gives the same answer"),
                (b"/reset" in t.ask(b"/help") and b"/reset" in t.ask(b"/nonsense"), "/help"), (t.ask(b"") == PROMPT, "an empty line asks again")]
    t.ask(b"/think on")
    results.append((t.ask(b"What is 24 / 8?").startswith(DIM), "/think on"))
    t.send(CTRL_D)
    results.append((t.end() == 0, "Ctrl-D exits with 0"))
    t = Terminal(prog)
    t.until(PROMPT)
    t.send(b"/exit\n")
    results.append((t.end() == 0, "/exit"))
    count.group("conversation", results)


def check_interrupts(count, prog):
    t = Terminal(prog, "--no-thinking", "--quiet")
    t.until(PROMPT)
    t.send(CTRL_C)
    results = [(t.until(PROMPT) is not None, "Ctrl-C at the prompt asks again")]
    t.send(b"half a line" + CTRL_C)
    results.append((t.until(PROMPT) is not None, "Ctrl-C in a line asks again"))
    t.send(CTRL_D)
    results.append((t.end() == 0, "and the line is forgotten"))
    t = Terminal(prog, "--no-thinking", "--temperature", "2", "--seed", "11")
    t.until(PROMPT)
    endings = []
    for round_ in range(3):
        t.send(b"Tell me a long story about everything that you know, with all the details.\n")
        streamed = t.until(re.compile(rb"[^\s]{3}"))
        t.send(CTRL_C)
        rest = t.until(PROMPT, 20)
        endings.append(tokens(rest or b"")[2])
        results.append((streamed is not None and rest is not None and tokens(rest)[1] > 0, (round_, streamed, rest)))
    results.append((b", interrupted" in endings, endings))
    results.append((tokens(t.ask(b"And now?"))[1] > 0, "it answers after that"))
    t.send(CTRL_D)
    results.append((t.end() == 0, "and ends well"))
    count.group("interrupts", results)


def check_odd_lines(count, prog):
    t = Terminal(prog, "--max-tokens", "4", "--no-thinking")
    t.until(PROMPT)
    bad = t.ask(b"caf\xe9 \xff")
    good = t.ask(b"caf\xc3\xa9 \xf0\x9f\x98\x80 \x1b[31m \x01")
    long = t.ask(b"word " * 700)
    results = [(b"deepinfer chat: " in bad and b"UTF-8" in bad, bad), (tokens(good)[1] > 0, good), (tokens(long)[0] > 500, long[-300:])]
    t.send(CTRL_D)
    results.append((t.end() == 0, "exit status"))
    flags = ["chat", "--model", NANO, "--context", "600", "--max-tokens", "5", "--temperature", "0", "--no-thinking"]
    r = prog.run(*flags, stdin=b"Hello\r\n" + b"word " * 300000 + b"\n\0\nwhat\0ever\n\xff\xff\nHello")
    lines = r.err.count(b"tokens/s")
    results += [(r.status == 0 and lines >= 2 and b"maximum context length" in r.err and b"UTF-8" in r.err and b"\x1b" not in r.out, r)]
    full = prog.run(*flags, stdin=b"Hello\n", stdout=open("/dev/full", "wb"))
    results += [(full.status == 2 and one_sentence(full.err), full)]
    none = prog.run(*flags, stdin=b"")
    results += [(none.status == 0 and none.out == b"", none)]
    wrong = prog.run("chat", "--model", prog.folder.name, stdin=b"Hello\n")
    results += [(wrong.status == 2 and wrong.out == b"" and one_sentence(wrong.err), wrong)]
    edge = prog.run(*flags, "--seed", 2 ** 63 - 1, "--temperature", 1, stdin=b"Hello\nHello\nHello\n")
    results += [(edge.status == 0 and edge.err.count(b"tokens/s") == 3, edge)]
    count.group("odd lines and pipes", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    args = parser.parse_args()
    count, prog = Count(), Program(args.binary)
    for check in (check_conversation, check_interrupts, check_odd_lines):
        check(count, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
