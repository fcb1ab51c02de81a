#!/usr/bin/env python3
"""deepinfer serve against clients that take what they can: memory, the queue, the threads that read, the log. usage: test_attack.py --binary FILE"""
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time

from serving import Server, Stream, bearer, chat_body, chat_request, key_line, peek, post_request, run_tests, status_of

SLOW = "".join(random.Random(1).choices("abcdefghijklmnop", k=1000000))  # one word of a million letters: half a second to tokenize


def send(s, request):
    c = s.connect()
    c.sendall(request)
    return c


# ---------------------------------------------------------------- memory


def mib(s, field="VmRSS"):
    with open(f"/proc/{s.process.pid}/status") as f:
        return int(re.search(field + r":\s+(\d+)", f.read()).group(1)) / 1024


def test_memory_of_requests(program):
    """What requests hold is their text and their tokens, what reading one takes is bounded, and all of it comes back."""
    if program.sanitized:
        return
    with Server(program, "--max-batch", 1, "--cpu-isa", "ref") as s:  # slow, so that the cache takes little meanwhile
        first = s.stream(max_tokens=60000, ignore_eos=True)  # the others wait for this one
        events = first.events()
        for _ in range(20):
            next(events)
        endless = {"max_tokens": 1000, "ignore_eos": True}
        begin = mib(s)

        def growth(bodies, answers, path="/v1/chat/completions"):
            with open(f"/proc/{s.process.pid}/clear_refs", "w") as f:
                f.write("5")  # the peak begins anew
            held = [send(s, post_request(path, b)) for b in bodies]
            refused = [c.recv(1000) for c in held] if not answers else []
            s.until(lambda: s.metrics()["deepinfer_waiting"] == answers)
            now, most = mib(s) - begin, mib(s, "VmHWM") - begin
            for c in held:
                c.close()
            s.until(lambda: s.get("/load").json()["server_load"] == 1)
            s.until(lambda: mib(s) - begin < 12, 5)
            return refused, now, most, mib(s) - begin

        zeros = json.dumps({**chat_body("hi", **endless), "more": []})[:-2].encode() + b",".join([b"0"] * 4190000) + b"]}"
        refused, now, most, after = growth([zeros] * 6, 0)
        yield all(status_of(r) == 400 and b"values" in r for r in refused), refused
        yield most < 220 and after < 12, f"6 x 8 MB of numbers: {now:.0f} MiB, at most {most:.0f}, afterwards {after:.0f}"
        objects = chat_body("hi", more=[{"a": "0123456789012"}] * 350000, **endless)
        _, now, most, after = growth([objects] * 6, 6)
        yield now < 75 and most < 280 and after < 12, f"6 x 8 MB of objects: {now:.0f} MiB, at most {most:.0f}, afterwards {after:.0f}"
        text = " ".join(f"word{i % 97}" for i in range(20000))
        _, now, most, after = growth([chat_body(text, n=128, **endless)], 128)
        yield now < 12 and after < 12, f"128 samples of 138 KB: {now:.0f} MiB, afterwards {after:.0f}"
        _, now, most, after = growth([chat_body(f"{i} " + text[:50000], **endless) for i in range(100)], 100)
        yield now < 60 and after < 12, f"100 x 50 KB: {now:.0f} MiB, afterwards {after:.0f}"
        many = {"prompt": ["a"] * 100, "user": "x" * 1000000, **endless}
        _, now, most, after = growth([many], 100, "/v1/completions")
        yield now < 12 and most < 30 and after < 12, f"100 prompts beside 1 MB: {now:.0f} MiB, at most {most:.0f}, afterwards {after:.0f}"
        r = s.chat(stop=["x" * 1025])
        yield r.status == 400 and "stop string" in r.error(), r
        first.close()


def test_memory_of_unfinished_heads(program):
    """A head that never ends holds its bytes; long ones share 16 MiB, and beyond that are refused while short ones are not."""
    with Server(program, "--head-timeout", 60) as s:
        s.chat(max_tokens=1)
        begin = mib(s)

        def hold(n, size):
            held = [send(s, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * size) for _ in range(n)]
            yield s.get("/health").status == 200, "others are served"
            grown = mib(s) - begin
            refused = len(select.select(held, [], [], 0.2)[0])
            yield refused == (n - 558 if size > 4000 else 0) and all(b"503" in c.recv(100) for c in select.select(held, [], [], 0)[0]), refused
            yield program.sanitized or grown < 24, grown
            for c in held:
                c.close()

        yield from hold(800, 3900)
        yield from hold(700, 30000)
        yield status_of(s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"y" * 30000 + b"\r\n\r\n")) == 200, "room again"


def test_answers_of_tokenize_are_bounded(program):
    """What fits into the context is answered, with strings; a hundred times as much is refused before it is written."""
    with Server(program) as s:
        text = "word " * 13000
        r = s.post("/tokenize", {"prompt": text, "return_token_strs": True})
        yield r.status == 200 and len(r.json()["token_strs"]) == r.json()["count"] > 13000, r
        begin = mib(s)
        most = 0
        for body in ({"prompt": SLOW * 3, "return_token_strs": True}, {"prompt": SLOW * 3}):
            r = s.post("/tokenize", body)
            yield r.status == 400 and "tokens: the answer would be longer than the 2097152 bytes" in r.error(), r
        r = s.post("/detokenize", {"tokens": [128] * 200000 + [20000] * 500000})
        yield r.status in (200, 400) and len(r.body) < 4200000, r
        most = mib(s, "VmHWM") - begin
        yield program.sanitized or most < 100, most


# ---------------------------------------------------------------- tenants


def test_the_tenant_holds_on_every_path(program):
    keys = program.write(key_line("alpha", "team-a") + key_line("beta", "team-b") + key_line("gamma", "team-c", "rate=12")
                         + key_line("delta", "team-d", "concurrency=1"))
    log = program.path("log")
    with Server(program, "--api-keys", keys, "--response-store", 1, "--access-log", log) as s:
        a, b = bearer("alpha"), bearer("beta")
        r = s.post("/v1/responses", {"input": "hi", "max_output_tokens": 2}, a)
        path = "/v1/responses/" + r.json()["id"]
        yield s.get(path, b).status == 404 and s.get(path, b, "DELETE").status == 404, "of another tenant"
        yield s.get(path, a).status == 200 and s.get(path, a).json()["id"] == r.json()["id"], "its owner reads it"
        yield s.get(path, a, "DELETE").json()["deleted"] is True and s.get(path, a).status == 404, "and deletes it"
        # A turn that is remembered counts as what was sampled, for its tenant and its salt alone.
        eos = s.post("/tokenize", {"prompt": "<｜end▁of▁sentence｜>", "add_special_tokens": False}, a).json()["tokens"]
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        fields = {"tools": tools, "cache_salt": "one"}
        first = {"role": "user", "content": "Tell me."}
        for seed in range(200):  # until a turn ends by itself, with reasoning and text
            r = s.post("/v1/chat/completions", {"messages": [first], **fields, "seed": seed, "max_tokens": 300,
                                                "logit_bias": {str(eos[0]): 4}, "thinking_token_budget": 8}, a).json()
            m = r["choices"][0]["message"]
            if r["choices"][0]["finish_reason"] == "stop" and m["content"] and m.get("reasoning_content") and not m.get("tool_calls"):
                break
        yield m["content"] and m["reasoning_content"], r
        turn = [first, {"role": "assistant", "content": m["content"]}, {"role": "user", "content": "Go on."}]
        counts = {}
        for name, key, salt in (("own", a, "one"), ("salt", a, "two"), ("none", a, None), ("other", b, "one")):
            counts[name] = s.post("/tokenize", {"messages": turn, "tools": tools, **({"cache_salt": salt} if salt else {})}, key).json()["count"]
        used = s.post("/v1/chat/completions", {"messages": turn, **fields, "max_tokens": 1}, a).json()["usage"]["prompt_tokens"]
        yield counts["own"] == used, (counts, used)
        yield counts["own"] > counts["salt"] == counts["none"] == counts["other"], ("hidden reasoning is its owner's", counts)
        # Limits of a key count every path.
        statuses = [s.post("/tokenize", {"prompt": "a"}, bearer("gamma")).status for _ in range(4)]
        yield statuses == [200, 200, 429, 429], statuses
        c = send(s, post_request("/v1/chat/completions", chat_body("hi", stream=True, max_tokens=5000, ignore_eos=True), bearer("delta")))
        c.recv(100)
        yield s.get("/v1/models", bearer("delta")).status == 429, "concurrency"
        c.close()
    with open(log) as f:
        lines = f.read().split("\n")
    yield all("tenant=team-" in line for line in lines if "POST" in line or "/v1/" in line), lines[:5]


def test_who_floods_the_queue(program):
    """Heads without a body hold no place, samples hold one each, and a full queue is no other tenant's fault."""
    keys = program.write(key_line("alpha", "team-a") + key_line("beta", "team-b"))
    with Server(program, "--api-keys", keys, "--max-batch", 1, "--max-queue", 20) as s:
        def load():
            return s.get("/load", bearer("alpha")).json()["server_load"]

        heads = [send(s, post_request("/v1/chat/completions", b"", {**bearer("alpha"), "Content-Length": 1000})) for _ in range(100)]
        yield s.chat(headers=bearer("alpha"), max_tokens=1).status == 200 and load() == 0, "heads"
        for c in heads:
            c.close()
        endless = {"max_tokens": 60000, "ignore_eos": True}
        held = [send(s, chat_request(headers=bearer("alpha"), n=16, **endless))]
        yield s.until(lambda: load() == 16) is not None, "each sample has a place"
        r = s.chat(headers=bearer("alpha"), n=16, **endless)
        yield r.status == 429 and r.headers["retry-after"] == "1" and load() == 16, r
        held += [send(s, chat_request(headers=bearer("alpha"), **endless)) for _ in range(5)]
        yield s.until(lambda: load() == 21) is not None, "full"
        yield s.chat(headers=bearer("alpha"), max_tokens=1).status == 429, "for the one who filled it"
        c = s.stream(headers=bearer("beta"), max_tokens=2)
        yield s.until(lambda: load() == 22) is not None, "not for another tenant"
        held.pop(0).close()
        yield list(c.events())[-1] == "[DONE]", "it is answered"
        for c in held:
            c.close()
        yield s.until(lambda: load() == 0) is not None, "all given back"
        m = s.metrics(bearer("alpha"))
        yield m["deepinfer_requests_limited_total"] == 2, m["deepinfer_requests_limited_total"]


def test_large_bodies_of_another_tenant(program):
    """Ten bodies that take long to read: another tenant's waits for one of them, and its stream says so by the clock."""
    keys = program.write(key_line("alpha", "team-a") + key_line("beta", "team-b"))
    large = chat_body("hi", max_tokens=1, padding={"a": "b" * 600000})
    with Server(program, "--api-keys", keys, "--keep-alive-comment", 0.1) as s:
        flood = post_request("/v1/chat/completions", chat_body(SLOW), bearer("alpha"))
        held = [send(s, flood) for _ in range(10)]
        s.until(lambda: s.get("/load", bearer("alpha")).json()["server_load"] >= 8)
        begin = time.monotonic()
        c = send(s, post_request("/v1/chat/completions", {**large, "stream": True}, bearer("beta")))
        stream = Stream(c)
        events = stream.events()
        first = next(events)
        waited = time.monotonic() - begin
        rest = list(events)
        ended = time.monotonic() - begin
        yield rest[-1] == "[DONE]" and stream.complete, rest[-3:]
        # A refusal after the first comment is an event of the stream.
        c = Stream(send(s, post_request("/v1/chat/completions", {**large, "stream": True, "temperature": "hot"}, bearer("beta"))))
        refused = list(c.events()) if c.head() == 200 else []
        yield c.status == 400 or (refused[-1] == "[DONE]" and "temperature" in refused[-2]["error"]["message"]), (c.status, refused[-2:])
        for h in held:
            h.recv(1000)
            h.close()
        yield s.until(lambda: s.get("/load", bearer("alpha")).json()["server_load"] == 0) is not None, "all are answered"
        whole = time.monotonic() - begin
        yield ended < whole / 2, f"{ended:.2f} s of {whole:.2f} s for all"
        yield waited < whole / 2 and (first == ": keep-alive" or ended < 0.3), (waited, whole, first)


def test_bytes_of_bodies_of_another_tenant(program):
    """One tenant's bodies fill what may be held of those that come slowly, then of requests that wait; another one's is taken all the same."""
    keys = program.write(key_line("alpha", "team-a") + key_line("beta", "team-b"))
    one = 1 << 20  # --max-body
    with Server(program, "--api-keys", keys, "--max-body", 1, "--max-batch", 1) as s:
        large = {"prompt": "a", "padding": "b" * 800000}
        head = post_request("/tokenize", b"", {**bearer("alpha"), "Content-Length": one})
        slow = [send(s, head + b" " * (one - 1000)) for _ in range(12)]
        yield s.until(lambda: s.metrics(bearer("beta"))["deepinfer_reading_bytes"] > 7.5 * one) is not None, "bodies that are not complete"
        refused = [status_of(peek(c)) for c in slow]
        yield refused.count(503) >= 4 and refused.count(b"") >= 7, refused
        r = s.post("/tokenize", large, bearer("beta"))
        yield r.status == 200, r
        for c in slow:
            c.close()
        flood = post_request("/v1/chat/completions", chat_body("word " * 40000, max_tokens=20000, ignore_eos=True), bearer("alpha"))
        waiting = []

        def full():
            waiting.append(send(s, flood))
            return status_of(peek(waiting[-1])) == 503
        yield s.until(full) is not None and len(waiting) > 32, len(waiting)
        r = s.post("/tokenize", large, bearer("beta"))
        yield r.status == 200, r
        for c in waiting:
            c.close()


def test_health_is_about_the_engine(program):
    """Clients that send slowly, or send much to read, do not make it sick."""
    with Server(program, "--stall-timeout", 0.3, "--body-timeout", 30) as s:
        slow = send(s, chat_request()[:-5])
        large = [send(s, post_request("/v1/chat/completions", chat_body(SLOW))) for _ in range(3)]
        end = time.monotonic() + 1.5
        answers = set()
        while time.monotonic() < end:
            answers.add(s.get("/health").status)
            time.sleep(0.05)
        yield answers == {200}, answers
        for c in [slow, *large]:
            c.close()


# ---------------------------------------------------------------- files


def test_a_log_that_nobody_reads(program):
    """A FIFO as access log and a full pipe as stderr: every request is answered at once, lines are dropped and counted."""
    fifo, errors = program.path("fifo"), program.path("errors")
    os.mkfifo(fifo)
    os.mkfifo(errors)
    held = os.open(errors, os.O_RDWR)  # open, but not read
    for log in (fifo, "-"):
        with Server(program, "--access-log", log, prefix=["sh", "-c", f'exec "$@" 2>{errors}', "sh"]) as s:
            slowest = 0
            with s.connect() as c:
                request = b"GET /health?" + b"x" * 4000 + b" HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + b"y" * 70 + b"\r\n\r\n"
                for _ in range(9000):
                    begin = time.monotonic()
                    c.sendall(request)
                    c.recv(4000)
                    slowest = max(slowest, time.monotonic() - begin)
            dropped = s.metrics()["deepinfer_log_lines_dropped_total"]
            yield dropped > 100 and slowest < 20, (dropped, slowest)
            s.signal(signal.SIGHUP)
            yield s.chat(max_tokens=1).status == 200, "after opening it anew"
        yield s.status == 0, s.status
    os.close(held)


def test_a_certificate_that_is_no_file(program):
    cert, key, fifo = program.path("cert"), program.path("key"), program.path("pipe")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=x",
                    "-keyout", key, "-out", cert], check=True, capture_output=True)
    os.mkfifo(fifo)
    with Server(program, "--tls-cert", fifo, "--tls-key", key, ready=False) as s:
        yield s.wait() == 2 and "a regular file was expected" in s.messages(), s.messages()
    with Server(program, "--tls-cert", cert, "--tls-key", key) as s:
        os.rename(fifo, cert)
        s.signal(signal.SIGHUP)
        yield s.until(lambda: "the certificate stays as it was" in s.messages(), 10) is not None, s.messages()


TESTS = [test_memory_of_unfinished_heads, test_a_log_that_nobody_reads, test_a_certificate_that_is_no_file, test_memory_of_requests, test_answers_of_tokenize_are_bounded, test_the_tenant_holds_on_every_path, test_who_floods_the_queue, test_large_bodies_of_another_tenant, test_bytes_of_bodies_of_another_tenant, test_health_is_about_the_engine]


if __name__ == "__main__":
    sys.exit(run_tests(__doc__, TESTS))
