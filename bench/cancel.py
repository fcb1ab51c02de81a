#!/usr/bin/env python3
"""How long until the engine is rid of a request whose client went away, and the time of one step beside it.

usage: bench/cancel.py [--binary build/deepinfer] [--rounds 20] [serve options...]

Prints a line for each phase: milliseconds from closing the socket until the server counts nobody as running, median and maximum, polled every ms.
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
from program import Program  # noqa: E402
from serving import Server  # noqa: E402

WORDS = "apple river stone cloud garden window".split()
PHASES = {"prefill": (20000, 0.4, 0.3), "decode": (20, 0.3, 0.3)}  # words of the prompt, seconds until it is closed, at least and random


def leave_once(server, words, least, more):
    text = " ".join(random.choice(WORDS) for _ in range(words))
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    connection = server.connect()
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    time.sleep(least + more * random.random())
    connection.close()
    start = time.monotonic()
    while server.get("/load").json()["running"]:
        time.sleep(0.001)
    return (time.monotonic() - start) * 1e3


def mean_step_ms(server, before):
    now = server.metrics()
    steps = now["deepinfer_step_time_seconds_count"] - before["deepinfer_step_time_seconds_count"]
    return 1e3 * (now["deepinfer_step_time_seconds_sum"] - before["deepinfer_step_time_seconds_sum"]) / max(steps, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--rounds", type=int, default=20)
    options, extra = parser.parse_known_args()
    with Server(Program(options.binary), *extra) as server:
        for name, phase in PHASES.items():
            before = server.metrics()
            ms = [leave_once(server, *phase) for _ in range(options.rounds)]
            print(f"{name}: gone after median {statistics.median(ms):.0f}, max {max(ms):.0f} ms; a step takes {mean_step_ms(server, before):.0f} ms")


if __name__ == "__main__":
    main()
