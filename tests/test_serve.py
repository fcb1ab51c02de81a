#!/usr/bin/env python3
"""deepinfer serve as a service: HTTP, keys, limits, cancelling, draining. What the bodies say is tested elsewhere. usage: test_serve.py --binary FILE
(also run with sanitizers)

Tests named report_NN replay failures that people reported of servers of this kind."""
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

from program import NANO, ROOT
from serving import WAIT, Server, Stream, ask, bearer, chat_body, chat_request, in_thread, key_line, peek, post_request, read_all, run_tests, status_of

HELLO = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def statuses(data):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


# ---------------------------------------------------------------- routes and shapes


def test_routes(s):
    health, ping, version, load = s.get("/health"), s.get("/ping"), s.get("/version"), s.get("/load")
    yield health.status == 200 and health.body == b"", health
    yield ping.status == 200, ping
    yield "version" in version.json(), version
    yield load.json()["server_load"] == 0, load
    head = s.get("/health", method="HEAD")
    yield head.status == 200 and head.body == b"", head
    for path in ("/v1/chat/completions", "/chat/completions", "/beta/chat/completions"):
        r = s.post(path, chat_body("hi", max_tokens=2))
        yield r.status == 200 and r.json()["usage"]["completion_tokens"] == 2, r
    for path in ("/v1/models", "/models", "/beta/models", "/anthropic/v1/models"):
        r, one = s.get(path), s.get(path + "/nano")
        yield r.status == 200 and r.json()["data"] == [one.json()], (r, one)
    for path in ("/nothing", "/v1/embeddings", "/v1", "/v1/models/", "//health", "/health/"):
        r = s.get(path)
        yield r.status == 404 and r.error(), (path, r)
    r = s.get("/v1/chat/completions")
    yield r.status == 405 and "POST" in r.headers["allow"] and r.error(), r
    r = s.post("/health", {})
    yield r.status == 405 and "GET" in r.headers["allow"], r
    r = s.get("/v1/messages")
    yield r.status == 405 and r.json()["type"] == "error", r
    r = s.get("/v1/messages/batches")
    yield r.status == 404 and r.json()["error"]["type"] == "not_found_error" and r.json()["type"] == "error", r
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        r = s.post("/v1/chat/completions", chat_body("hi"), {"Content-Type": kind})
        yield r.status == 415 and r.error(), r
    r = s.post("/v1/chat/completions", chat_body("hi"), {"Content-Encoding": "gzip"})
    yield r.status == 415 and "Content-Encoding" in r.error(), r
    r = s.post("/v1/chat/completions", chat_body("hi", max_tokens=1), {"Content-Encoding": "identity"})
    yield r.status == 200, r
    r = s.post("/v1/chat/completions", chat_body("hi", max_tokens=1), {"Content-Type": "application/json; charset=utf-8"})
    yield r.status == 200, r
    r = s.get("/v1/chat/completions", method="OPTIONS")
    yield r.status == 204 and "access-control-allow-origin" not in r.headers, r


def test_ids(s):
    r = s.get("/health", {"X-Request-Id": "my-id_1.2"})
    yield r.headers["x-request-id"] == "my-id_1.2", r
    r = s.get("/health", {"X-Request-Id": "bad id\"<"})
    yield re.fullmatch(r"req_[0-9a-f]{24}", r.headers["x-request-id"]), r
    r = s.get("/health", {"X-Request-Id": "x" * 500})
    yield len(r.headers["x-request-id"]) < 80, r
    r = s.post("/v1/messages", "{", {"X-Request-Id": "abc"})
    yield r.status == 400 and r.json()["request_id"] == "abc" and r.headers["request-id"] == "abc", r
    yield r.error().startswith("byte "), r
    r = s.post("/v1/chat/completions", "{")
    yield r.error().startswith("byte ") and r.json()["error"]["param"] is None, r
    r = s.get("/v1/models/zz")
    yield r.status == 404 and r.json()["error"]["code"] == "model_not_found" and r.json()["error"]["param"] == "model", r
    for path in ("/v1/models/zz", "/v1/nothing"):  # Anthropic's client shows its own shape and id only
        r = s.get(path, {"anthropic-version": "2023-06-01"})
        yield r.status == 404 and r.json()["type"] == "error" and r.json()["request_id"] == r.headers["request-id"], r


def test_page(s):
    r = s.get("/")
    if r.status == 404:  # built without a page
        return
    yield r.status == 200 and r.headers["content-type"].startswith("text/html"), r
    yield re.search(r"default-src '(self|none)'", r.headers["content-security-policy"]), r
    again = s.get("/", {"If-None-Match": r.headers["etag"]})
    yield again.status == 304 and again.body == b"" and "content-length" not in again.headers, again
    yield s.get("/index.html").body == r.body, "index.html"
    yield s.get("/../CMakeLists.txt").status == 404, "outside"
    yield s.get("/%2e%2e/CMakeLists.txt").status == 404, "outside"


def test_metrics(s):
    before = s.metrics()
    s.chat(max_tokens=5, ignore_eos=True)
    s.chat(max_tokens=1, n=3)
    r = s.get("/metrics")
    yield r.headers["content-type"].startswith("text/plain; version=0.0.4"), r
    names = set()
    for line in r.body.decode().split("\n"):
        match = re.fullmatch(r"# TYPE (\S+) (gauge|counter|histogram)|# HELP (\S+) \S.*|([a-z]+[:_][a-zA-Z0-9_:]+)(\{[^}]*\})? (\S+)|", line)
        yield bool(match), line
        if match and match.group(1):
            yield match.group(1) not in names, f"twice: {line}"
            names.add(match.group(1))
        if match and match.group(4):
            float(match.group(6))
    yield not any(name + "_total" in names for name in names), "OpenMetrics drops _total from a family's name: two would be the same"
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc", "prompt_tokens_total",
                 "generation_tokens_total", "request_success_total", "num_preemptions_total", "prefix_cache_queries_total",
                 "prefix_cache_hits_total"):
        yield "vllm:" + name in names, name
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate", "num_used_tokens"):
        yield "sglang:" + name in names, name
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "request_prompt_tokens", "request_generation_tokens", "request_params_n", "iteration_tokens_total"):
        own = [line for line in r.body.decode().split("\n") if line.startswith(f"vllm:{name}_bucket")]
        values = [float(line.rsplit(" ", 1)[1]) for line in own]
        yield values == sorted(values) and values and 'le="+Inf"' in own[-1], own
        yield f"vllm:{name}_count{{model_name=\"nano\",engine=\"0\"}} {int(values[-1])}\n" in r.body.decode(), own
    with open(os.path.join(ROOT, "packaging", "grafana.json")) as f:
        asked = set(re.findall(r"deepinfer_\w+", f.read()))
    given = {re.split(r"[{ ]", line)[0] for line in r.body.decode().split("\n") if line[:1] != "#"}
    yield asked and asked <= given, f"the dashboard asks for {asked - given}"
    status = s.get("/api/status").json()
    yield status["model"] == "nano" and status["kv_blocks"] > 0 and status["memory"]["total"] > 1e6 and status["generation_tokens"] >= 5, status
    after = s.metrics()
    yield after["deepinfer_generation_tokens_total"] - before["deepinfer_generation_tokens_total"] == 5 + 3, after
    yield after["deepinfer_request_answers_count"] - before["deepinfer_request_answers_count"] == 2, after
    yield after["deepinfer_request_answers_sum"] - before["deepinfer_request_answers_sum"] == 4, after
    yield after['deepinfer_requests_finished_total{finished_reason="length"}'] > 0, after
    yield after['deepinfer_http_responses_total{class="2xx"}'] > before['deepinfer_http_responses_total{class="2xx"}'], after


# ---------------------------------------------------------------- HTTP


def test_framing(s):
    body = json.dumps(chat_body("hi", max_tokens=1)).encode()
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    refused = {
        "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
        "two hosts": (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        "two lengths": (post + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
        "length and coding": (post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        "negative length": (post + b"Content-Length: -5\r\n\r\n", 400),
        "length with plus": (post + b"Content-Length: +5\r\n\r\nhello", 400),
        "huge length": (post + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        "other coding": (post + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        "coding in 1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        "bare line feed": (b"GET /health HTTP/1.1\r\nHost: localhost\nA: b\r\n\r\n", 400),
        "folded": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n", 400),
        "blank before colon": (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        "zero byte": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n", 400),
        "blank in target": (b"GET /he alth HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        "no version": (b"GET /health\r\nHost: localhost\r\n\r\n", 400),
        "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60, 400),
        "no HTTP": (b"\r\n\r\n\r\n{}\r\n\r\n", 400),
        "expectation": (post + b"Expect: 200-maybe\r\nContent-Length: 5\r\n\r\nhello", 417),
        "chunk size": (post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        "chunk end": (post + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx", 400),
        "chunk overflow": (post + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n", 400),
        "long target": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        "long target, unfinished": (b"GET /" + b"a" * 40000, 414),
        "huge header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 40000 + b"\r\n\r\n", 431),
        "huge header, unfinished": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 200000, 431),
        "many headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    }
    for name, (data, expected) in refused.items():
        got = s.raw(data)
        yield status_of(got) == expected and b"[" not in got[-9:] and b'"error"' in got, (name, got[:300])
        yield b'"type":"invalid_request_error"' in got, (name, got[:400])
    for path in (b"/v1/messages", b"/anthropic/v1/messages?a=b"):
        for rest, expected in ((b"HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501), (b"HTTP/1.1\r\n\r\n", 400)):
            got = s.raw(b"POST " + path + b" " + rest)
            yield status_of(got) == expected and b'{"type":"error","error":{"type":"invalid_request_error"' in got, got
    accepted = {
        "chunked": post + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        "chunks of one byte, extension, trailer": post + b"transfer-encoding: Chunked\r\n\r\n"
        + b"".join(b"1;a=b\r\n%c\r\n" % c for c in body) + b"000\r\nX-T: y\r\n\r\n",
        "blanks": post + b"content-LENGTH:\t %d \t\r\n\r\n" % len(body) + body,
        "empty lines first": b"\r\n\r\n" + post + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "absolute form": post.replace(b"/v1", b"http://LOCALHOST:80/v1") + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "query": post.replace(b"completions ", b"completions?a=b ") + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    }
    for name, data in accepted.items():
        got = s.raw(data)
        yield status_of(got) == 200 and b'"finish_reason"' in got, (name, got[:300])


def test_slow_bytes(s):
    """A byte at a time is fine while the time limits hold."""
    with s.connect() as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for b in chat_request(max_tokens=1, headers={"Connection": "close"}):
            c.send(bytes([b]))
        yield status_of(read_all(c)) == 200, "byte by byte"


def test_keep_alive(s):
    c = http.client.HTTPConnection(*s.address, timeout=WAIT)
    before = s.metrics()["deepinfer_connections_accepted_total"]
    for _ in range(20):
        r = ask(c, "GET", "/health")
        yield r.status == 200, r
        r = ask(c, "POST", "/v1/chat/completions", {"Content-Type": "application/json"}, json.dumps(chat_body("hi", max_tokens=1)))
        yield r.status == 200, r
    c.close()
    yield s.metrics()["deepinfer_connections_accepted_total"] - before == 2, "connections"
    got = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Close\r\n\r\n")
    yield status_of(got) == 200 and b"Connection: close" in got, got


def test_http10(s):
    got = s.raw(b"GET /health HTTP/1.0\r\n\r\n")
    yield status_of(got) == 200 and b"chunked" not in got, got
    with s.connect() as c:
        for _ in range(3):
            c.sendall(b"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            got = c.recv(4096)
            yield status_of(got) == 200 and b"Connection: keep-alive" in got, got
    got = s.raw(chat_request(max_tokens=3, stream=True, version="1.0"))
    yield status_of(got) == 200 and b"chunked" not in got and got.endswith(b"data: [DONE]\n\n"), got
    got = s.raw(b"HEAD /version HTTP/1.0\r\n\r\n")
    yield got.endswith(b"\r\n\r\n") and b"Content-Length: " in got, got


def test_pipelining(s):
    got = s.raw(HELLO * 50 + b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    yield statuses(got) == [200] * 51 and got.endswith(b"}"), got[-300:]
    got = s.raw(chat_request(max_tokens=2) + chat_request(max_tokens=3, stream=True) + HELLO
                + chat_request(max_tokens=1, headers={"Connection": "close"}))
    yield statuses(got) == [200] * 4, got
    yield [got.find(b'"chat.completion"') < got.find(b"data: {"), got.find(b"[DONE]") < got.rfind(b'"chat.completion"')] == [True] * 2, got
    # More than the server wants to hold while it answers: it reads on later.
    got = s.raw(chat_request(max_tokens=20, ignore_eos=True) + HELLO * 6000 + b"GET /health HTTP/1.0\r\n\r\n")
    yield statuses(got) == [200] * 6002, (len(statuses(got)), got[-100:])


def test_expect_continue(s):
    data = chat_request(max_tokens=1, headers={"Expect": "100-continue", "Connection": "close"})
    at = data.index(b"\r\n\r\n") + 4
    with s.connect() as c:
        c.sendall(data[:at])
        yield c.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n", "continue"
        c.sendall(data[at:])
        yield status_of(read_all(c)) == 200, "after it"
    with s.connect() as c:  # refused before the body is sent
        c.sendall(data[:at].replace(b"/v1/chat", b"/v9/chat"))
        yield status_of(read_all(c)) == 404, "refused"


def test_bad_bodies(s):
    deep = b'{"messages":' + b"[" * 100000 + b"]" * 100000 + b"}"
    for name, body in {"deep": deep, "not UTF-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', "empty": b"", "cut": b'{"messages":',
                       "NaN": b'{"messages":[],"temperature":NaN}', "surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
                       "array": b"[]", "zeros": b"\0" * 1000, "object keys": b"{" + b'"a":1,' * 200000 + b'"b":2}'}.items():
        r = s.post("/v1/chat/completions", body)
        yield r.status == 400 and r.error(), (name, r)
        r = s.post("/v1/messages", body)
        yield r.status == 400 and r.json()["type"] == "error", (name, r)
    yield s.chat(max_tokens=1).status == 200, "afterwards"


def test_large_bodies(program):
    with Server(program, "--max-body", 1) as s:
        r = s.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n")
        yield status_of(r) == 413 and b"Connection: close" in r and b"X-Request-Id: req_" in r, r
        r = s.raw(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n" + b"x" * 3000000)
        yield status_of(r) == 413 and b"request_too_large" in r and b"\r\nRequest-Id: req_" in r, r
        r = s.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                  + b"10000\r\n%s\r\n" % (b"x" * 65536) * 40)
        yield status_of(r) == 413 and b"1048576 bytes that --max-body allows" in r, r
        yield s.metrics()["deepinfer_reading_bytes"] == 0, "accounts"
        held = []
        for _ in range(9):  # nine bodies of almost 1 MiB, of which eight fit
            c = s.connect()
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n"
                      + b" " * 1048000)
            held.append(c)
        s.until(lambda: s.metrics()["deepinfer_reading_bytes"] > 7.9e6)
        ninth = [c for c in held if b"503" in peek(c)]
        yield len(ninth) == 1, "one is refused"
        for c in held:
            c.close()
        yield s.until(lambda: s.metrics()["deepinfer_reading_bytes"] == 0) is not None, "given back"
    with Server(program, "--max-body", 1, "--max-batch", 1) as s:  # 32 MiB of requests under way: of their prompts, once they are read
        held = []

        def fill(body, most):
            request = post_request("/v1/chat/completions", body)
            last, answer = len(held) + most, b""
            while len(held) < last and not answer:  # one after the other: fewer may be read at once
                held.append(s.connect())
                held[-1].sendall(request)
                s.until(lambda: s.get("/load").json()["server_load"] == len(held) or s.metrics()['deepinfer_http_responses_total{class="5xx"}'] > 0)
                answer = peek(held[-1])
            return answer

        yield fill(chat_body("hi", max_tokens=60000, ignore_eos=True, padding={"a": "b" * 900000}), 40) == b"", "what no prompt has is not kept"
        answer = fill(chat_body("word " * 50000, max_tokens=10000, ignore_eos=True), 250)
        yield status_of(answer) == 503 and b"large requests" in answer and 140 < len(held) < 240, (len(held), answer)
        for c in held:
            c.close()
        yield s.until(lambda: s.busy() == 0) is not None and s.chat(max_tokens=1).status == 200, "afterwards"


def test_large_bodies_hold_up_nobody(program):
    """Tokenizing them takes seconds: small requests do not wait for that, and who left has none spent on him."""
    spaces = " " * (700000 if program.sanitized else 2000000)

    with Server(program) as s:

        def begin(request):
            held = [s.connect() for _ in range(12)]
            for c in held:
                c.sendall(request)
            time.sleep(0.1)
            s.until(lambda: s.metrics()["deepinfer_reading_bytes"] == 0)
            return held

        held = begin(post_request("/v1/chat/completions", chat_body(spaces)))
        start = time.monotonic()
        yield s.chat(max_tokens=1).status == 200 and s.get("/load").json()["server_load"] >= 9, "a small one is answered at once"
        yield s.until(lambda: s.busy() == 0) is not None, "all are answered"
        stayed = time.monotonic() - start
        yield b"maximum context length" in peek(held[0]), "by a refusal"
        for c in held + begin(post_request("/tokenize", {"prompt": spaces})):
            c.close()
        start = time.monotonic()
        reply = s.post("/tokenize", {"prompt": spaces})
        count = len(spaces) // 4  # and the id at the beginning
        yield b"%d tokens" % count in reply.body or reply.json().get("count") == count + 1, reply.body[:300]
        left = time.monotonic() - start
        yield left < stayed / 2, (left, stayed)


def test_large_prompts_of_one_request(program):
    """While they are rendered and tokenized the loop answers at once, and who left has no time spent on the prompts that are left."""
    text = " " * (20000 if program.sanitized else 600000)  # which tokenizes slowly, but is read fast
    request = post_request("/v1/completions", {"prompt": [text] * 8, "max_tokens": 1})
    with Server(program) as s:

        def send():
            c = s.connect()
            c.sendall(request)
            s.until(lambda: s.metrics()["deepinfer_reading_bytes"] == 0)
            return c, time.monotonic()

        c, start = send()
        rendered, answer = in_thread(s.chat, text)
        waited = []
        while not peek(c):
            begun = time.monotonic()
            yield s.get("/health").status == 200, "healthy"
            waited.append(time.monotonic() - begun)
            time.sleep(0.01)
        stayed = time.monotonic() - start
        rendered.join()
        c.close()
        fits = program.sanitized
        yield answer[0].status == 200 if fits else answer[0].status == 400 and "maximum context length" in answer[0].error(), answer
        waited.sort()
        print(f"   /health while {stayed:.1f} s of prompts are read: {len(waited)} times, median {waited[len(waited) // 2] * 1e3:.1f} ms, "
              f"at most {waited[-1] * 1e3:.1f} ms")
        yield len(waited) > 4 and waited[len(waited) * 8 // 10] < (0.5 if program.sanitized else 0.05), waited
        c, start = send()
        c.close()
        s.post("/tokenize", {"prompt": "x" * 600000})  # is read by the thread that reads the others
        left = time.monotonic() - start
        yield left < stayed / 2, (left, stayed)


def test_time_limits(program):
    with Server(program, "--head-timeout", 0.5, "--body-timeout", 0.5, "--idle-timeout", 1) as s:
        with s.connect() as c:  # slow loris: a byte now and then, for much longer than a head may take
            c.sendall(b"GET /health HTTP/1.1\r\n")
            got = b""
            for b in b"Host: localhost\r\nX: " + b"y" * 40:
                time.sleep(0.05)
                try:
                    c.send(bytes([b]))
                except OSError:
                    break
                got += peek(c)
                if got:
                    break
            yield status_of(got) == 408, got
        with s.connect() as c:
            c.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
            got = read_all(c)
            yield status_of(got) == 408 and b'"type":"error"' in got.replace(b" ", b""), got
        start = time.monotonic()
        with s.connect() as c:
            c.sendall(HELLO)
            got = read_all(c)
            yield status_of(got) == 200 and 0.7 < time.monotonic() - start < 30, (got, time.monotonic() - start)
        yield s.metrics()["deepinfer_client_timeouts_total"] == 2, "counted"


def test_connections(program):
    with Server(program, "--max-connections", 20) as s:
        held = [s.connect() for _ in range(20)]
        s.until(lambda: s.raw(HELLO).startswith(b"HTTP/1.1 503"), 5)
        got = s.raw(HELLO).removesuffix(b"[reset]")  # it does not wait for what we send
        yield status_of(got) == 503 and json.loads(got.split(b"\r\n\r\n")[1])["error"]["type"] == "service_unavailable", got
        held[0].sendall(HELLO)
        yield status_of(held[0].recv(1000)) == 200, "those inside are served"
        for c in held:
            c.close()
        yield s.until(lambda: s.raw(HELLO.replace(b"Host", b"Connection: close\r\nHost")).startswith(b"HTTP/1.1 200")) is not None, "room again"


def test_names_of_the_host(program):
    """A page that lets its own name point here is refused; names of this machine, named ones, and clients with keys are not."""
    def ask(s, host):
        return status_of(s.raw(b"GET /v1/models HTTP/1.1\r\nConnection: close\r\nHost: %s\r\n\r\n" % host))

    with Server(program, "--allowed-host", "llm.example") as s:
        for host in (b"localhost", b"LOCALHOST:80", b"127.0.0.1:8000", b"127.9.9.9", b"[::1]:8000", b"a.localhost", b"llm.example:443"):
            yield ask(s, host) == 200, host
        for host in (b"evil.example", b"127.evil.example", b"evil.example:8000", b"127.0.0.1.evil.example", b"xlocalhost", b"[::2]", b"10.0.0.1"):
            yield ask(s, host) == 403, host
        got = s.raw(b"POST /v1/messages HTTP/1.1\r\nConnection: close\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n")
        yield status_of(got) == 403 and b"permission_error" in got and b"--allowed-host" in got, got
        yield status_of(s.raw(b"GET /health HTTP/1.0\r\n\r\n")) == 200, "no name at all"
    with Server(program, "--allowed-host", "*") as s:
        yield ask(s, b"evil.example") == 200, "any"


def test_few_descriptors(program):
    few = (resource.RLIMIT_NOFILE, (64, 64))
    with Server(program, preexec_fn=lambda: resource.setrlimit(*few)) as s:
        held = [s.connect() for _ in range(32)]
        yield s.until(lambda: status_of(s.raw(HELLO)) == 503) is not None, "the 33rd is refused, not left waiting"
        for c in held:
            c.close()
        yield s.until(lambda: status_of(s.raw(HELLO.replace(b"1.1", b"1.0"))) == 200) is not None, "room again"
        yield "cannot accept" not in s.messages(), s.messages()


def test_queue_full(program):
    with Server(program, "--max-batch", 1, "--max-queue", 1) as s:
        a = s.stream(max_tokens=3000, ignore_eos=True)
        next(a.events())
        b = s.stream(max_tokens=3000, ignore_eos=True)
        yield s.until(lambda: s.get("/load").json()["server_load"] == 2) is not None, "two"
        r = s.chat(max_tokens=1)
        yield r.status == 429 and r.headers["retry-after"] == "1" and r.json()["error"]["type"] == "rate_limit_error", r
        yield s.get("/health").status == 200, "healthy all the same"
        a.close()
        b.close()
        yield s.until(lambda: s.get("/load").json()["server_load"] == 0) is not None, "empty"
        yield s.chat(max_tokens=1).status == 200, "again"


def report_36_first_request_of_odd_clients(s):
    """What clients send first, as they document or are seen to: upgrade offers, probes, preflights, empty bodies, keep-alive from 1.0."""
    body = json.dumps(chat_body("hi", max_tokens=1)).encode()
    tail = b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    first = {
        "Java: offer of HTTP/2": b"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: localhost\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        b"Upgrade: h2c\r\nUser-Agent: Java-http-client/17\r\n" + tail,
        "curl": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n" + tail,
        "agent": b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\nx-stainless-retry-count: 0\r\nx-stainless-lang: js\r\n"
        b"accept-encoding: gzip,deflate\r\nauthorization: Bearer sk-none\r\n" + tail,
        "browser": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x\r\nSec-Fetch-Mode: cors\r\nCookie: a=b; c=d\r\n" + tail,
        "models probe": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "body with GET": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        "HEAD of the root": b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "ab": b"GET /health HTTP/1.0\r\nHost: localhost\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n",
    }
    for name, data in first.items():
        got = s.raw(data, timeout=20)
        yield status_of(got) == 200 and b"[timeout]" not in got, (name, got[:300])


def test_resets(s):
    """Connections that are broken off at every point disturb nobody."""
    steady = s.stream(max_tokens=400, ignore_eos=True)
    data = chat_request(max_tokens=50, stream=True)
    for cut in range(0, len(data) + 1, 7):
        c = s.connect()
        c.sendall(data[:cut])
        Stream(c).close(reset=cut % 2 == 0)
    yield s.until(lambda: s.metrics()["deepinfer_requests_live"] <= 1) is not None, "all gone"
    yield list(steady.events())[-1] == "[DONE]" and steady.complete, "the other one"
    yield s.until(lambda: s.busy() == 0) is not None, "accounts"


# ---------------------------------------------------------------- keys


def test_keys(program):
    path = program.path("keys")
    with open(path, "w") as f:
        f.write("# keys\n\n" + key_line("alpha", "team-a") + key_line("beta", "team-b", "rate=1", prefix="")
                + key_line("gamma", "team-c", "concurrency=1") + key_line("delta", "team-a"))
    with Server(program, "--api-keys", path, "--access-log", "-", "--max-batch", 4) as s:
        ok = {"max_tokens": 1}
        for headers in ({}, bearer("alph"), bearer("alphaa"), bearer(""), {"Authorization": "alpha"}, {"x-api-key": "wrong"}):
            r = s.chat(headers=headers, **ok)
            yield r.status == 401 and r.json()["error"]["code"] == "invalid_api_key" and "www-authenticate" in r.headers, (headers, r)
        r = s.post("/v1/messages", chat_body("hi", max_tokens=1))
        yield r.status == 401 and r.json()["error"]["type"] == "authentication_error", r
        for headers in (bearer("alpha"), {"x-api-key": "alpha"}, {"authorization": "bearer alpha"}):
            yield s.chat(headers=headers, **ok).status == 200, headers
        yield [s.get(p).status for p in ("/health", "/ping", "/metrics", "/v1/models", "/load")] == [200, 200, 401, 401, 401], "open paths"
        yield s.get("/metrics", bearer("alpha")).status == 200, "metrics with a key"
        yield s.chat(headers=bearer("beta"), **ok).status == 200, "first"
        r = s.chat(headers=bearer("beta"), **ok)
        yield r.status == 429 and 1 <= int(r.headers["retry-after"]) <= 60, r
        yield s.chat(headers=bearer("alpha"), **ok).status == 200, "another key"
        c = s.stream(headers=bearer("gamma"), max_tokens=5000, ignore_eos=True)
        next(c.events())
        r = s.chat(headers=bearer("gamma"), **ok)
        yield r.status == 429 and "retry-after" in r.headers, r
        c.close()
        yield s.until(lambda: s.chat(headers=bearer("gamma"), **ok).status == 200) is not None, "place given back"
        # Tenants: the same prompt is reused within one, not between two.
        prompt = "The history of the harbour. " * 60
        used = [s.chat(prompt, bearer(k), max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                for k in ("alpha", "alpha", "delta", "gamma", "gamma")]
        yield used[0] == 0 and used[1] > 100 and used[2] == used[1] and used[3] == 0 and used[4] == used[1], used
        # Reload: alpha goes, epsilon comes, beta keeps its account; a broken file changes nothing.
        with open(path, "w") as f:
            f.write(key_line("beta", "team-b", "rate=1") + key_line("epsilon", "team-e"))
        s.signal(signal.SIGHUP)
        yield s.until(lambda: s.get("/load", bearer("epsilon")).status == 200) is not None, "reload"
        yield s.chat(headers=bearer("alpha"), **ok).status == 401, "gone"
        yield s.chat(headers=bearer("beta"), **ok).status == 429, "account kept"
        with open(path, "w") as f:
            f.write(key_line("zeta", "team-z") + "nonsense\n")
        s.signal(signal.SIGHUP)
        yield s.until(lambda: "the keys stay as they were" in s.messages()) is not None, "told"
        yield s.chat(headers=bearer("epsilon"), **ok).status == 200 and s.chat(headers=bearer("zeta"), **ok).status == 401, "stays"
        yield "tenant=team-a" in s.messages() and "alpha" not in s.messages(), "log names tenants, not keys"
    bad = {"short hash": "abc team\n", "no tenant": key_line("a", "").strip() + "\n", "bad limit": key_line("a", "t", "rate=x"),
           "twice": key_line("a", "t") + key_line("a", "u"), "empty": "# nothing\n", "zero": key_line("a", "t", "rate=0")}
    for name, text in bad.items():
        r = program.run("serve", "--model", NANO, "--port", 0, "--api-keys", program.write(text))
        yield r.status == 2 and b"keys" not in r.out and b"deepinfer serve" in r.err, (name, r)


def test_cors(program):
    with Server(program, "--cors-origin", "https://app.example") as s:
        r = s.get("/v1/chat/completions", {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}, "OPTIONS")
        yield r.status == 204 and r.headers["access-control-allow-origin"] == "https://app.example", r
        yield "POST" in r.headers["access-control-allow-methods"] and "Authorization" in r.headers["access-control-allow-headers"], r
        r = s.chat(max_tokens=1)
        yield r.headers["access-control-allow-origin"] == "https://app.example" and r.headers["vary"] == "Origin", r
    for wrong in ("app.example", "https://app.example/", "https://", "https://a b"):  # no browser sends these as an origin
        with Server(program, "--cors-origin", wrong, ready=False) as s:
            yield s.wait() == 2 and "cors-origin: must be * or scheme://host[:port]" in s.messages(), (wrong, s.messages())


# ---------------------------------------------------------------- cancelling


def report_61_disconnect_frees_the_slot(program):
    """Streaming or not, the place is free soon after the client left."""
    with Server(program, "--max-batch", 2) as s:
        for stream in (True, False):
            for reset in (True, False):
                c = s.connect()
                c.sendall(chat_request(stream=stream, max_tokens=60000, ignore_eos=True))
                yield s.until(lambda: s.metrics()["deepinfer_running"] == 1) is not None, "runs"
                Stream(c).close(reset)
                seconds = s.until(lambda: s.busy() == 0)
                yield seconds is not None and seconds < (5 if program.sanitized else 1), (stream, reset, seconds)
        m = s.metrics()
        yield m["deepinfer_client_disconnects_total"] == 4 and m["deepinfer_requests_cancelled_total"] == 4, m
        # In detail: from closing to the engine's account.
        times = []
        for _ in range(10):
            c = s.stream(max_tokens=60000, ignore_eos=True)
            next(c.events())
            c.close()
            times.append(s.until(lambda: s.get("/load").json()["server_load"] == 0))
        yield sorted(times)[5] < (0.5 if program.sanitized else 0.15), times


def report_62_disconnect_in_the_queue(program):
    with Server(program, "--max-batch", 1) as s:
        a = s.stream(max_tokens=1500, ignore_eos=True)
        events = a.events()
        next(events)
        next(events)
        before = s.metrics()
        b = s.connect()
        b.sendall(chat_request("Queued and gone. " * 50, max_tokens=100))
        yield s.until(lambda: s.metrics()["deepinfer_waiting"] == 1) is not None, "waits"
        b.close()
        yield s.until(lambda: s.metrics()["deepinfer_waiting"] == 0, 2) is not None, "gone from the queue"
        yield list(events)[-1] == "[DONE]", "the other one ends as it should"
        after = s.metrics()
        yield after["deepinfer_step_prompt_rows_total"] == before["deepinfer_step_prompt_rows_total"], "nothing of it was computed"
        yield after["deepinfer_requests_cancelled_total"] - before["deepinfer_requests_cancelled_total"] == 1, after


def test_disconnect_while_preparing(program):
    """The log's line is written while a preparing thread still has the request."""
    with Server(program, "--access-log", program.path()) as s:
        for i in range(60):
            c = s.connect()
            c.sendall(chat_request("word " * 200 * (i % 3), max_tokens=2, n=16))
            time.sleep(i % 10 * 0.0005)
            c.close()
        yield s.until(lambda: s.busy() == 0) is not None and s.chat(max_tokens=1).status == 200, "afterwards"


def report_64_retry_resumes_from_what_was_prefilled(program):
    isa = "avx2" if program.sanitized else "ref"  # slow enough to be cut
    with Server(program, "--prefill-chunk", 64, "--cpu-isa", isa) as s:
        text = " ".join(f"Line {i} of a long report." for i in range(150))
        c = s.connect()
        c.sendall(chat_request(text, max_tokens=1))
        yield s.until(lambda: s.metrics()["deepinfer_step_prompt_rows_total"] >= 200) is not None, "prefills"
        c.close()
        yield s.until(lambda: s.busy() == 0) is not None, "cancelled"
        done = s.metrics()["deepinfer_step_prompt_rows_total"]
        again = s.chat(text, max_tokens=20, temperature=0).json()
        usage = again["usage"]
        yield done < usage["prompt_tokens"], "it was cancelled while it prefilled"
        yield usage["prompt_tokens_details"]["cached_tokens"] == done, (done, usage)
        cold = s.chat(text, max_tokens=20, temperature=0, cache_salt="other").json()
        yield cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, cold["usage"]
        yield cold["choices"] == again["choices"], (cold, again)


def report_65_cancel_hits_nobody_else(program):
    with Server(program, "--max-batch", 1) as s:
        whole = s.chat("Tell me about rivers.", max_tokens=200, ignore_eos=True, seed=3)
        a = s.stream("Tell me about rivers.", max_tokens=200, ignore_eos=True, seed=3)
        events = a.events()
        next(events)
        b = s.stream("Another.", max_tokens=200)
        yield s.until(lambda: s.metrics()["deepinfer_waiting"] == 1) is not None, "B waits"
        b.close(reset=True)
        deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]" and isinstance(e, dict) and e["choices"]]
        text = "".join(d.get("content") or "" for d in deltas), "".join(d.get("reasoning_content") or "" for d in deltas)
        message = whole.json()["choices"][0]["message"]
        yield text == (message["content"] or "", message.get("reasoning_content") or ""), (text, message)


def test_slow_readers(program):
    """A client that does not read is dropped when its buffer is full; others are not slowed."""
    with Server(program, "--max-output", 64, "--max-batch", 8) as s:
        slow = [s.stream(max_tokens=8000, ignore_eos=True, receive=4096, logprobs=True, top_logprobs=5) for _ in range(2)]
        fast = s.stream(max_tokens=500, ignore_eos=True)
        yield list(fast.events())[-1] == "[DONE]", "the fast one"
        yield s.until(lambda: s.metrics()["deepinfer_client_slow_readers_total"] == 2) is not None, s.metrics()
        yield s.until(lambda: s.busy() == 0) is not None, "cancelled"
        for c in slow:
            list_all = b"".join(c.chunks())
            yield not c.complete and b"[DONE]" not in list_all, "it is told by a cut"
    with Server(program, "--max-output", 1000000, "--write-timeout", 0.5) as s:
        c = s.stream(max_tokens=8000, ignore_eos=True, receive=4096, logprobs=True, top_logprobs=5)
        yield s.until(lambda: s.metrics()["deepinfer_client_slow_readers_total"] == 1) is not None, "by time"
        c.close()


# ---------------------------------------------------------------- waiting


def report_29_long_prompt_first_byte_report_30_by_the_clock(program):
    """The first byte of a stream comes within seconds, however long the prompt computes, and then one now and then."""
    with Server(program, "--cpu-isa", "ref", "--keep-alive-comment", 0.3, "--prefill-chunk", 4096, "--blank-lines") as s:
        text = "A long prompt that takes its time. " * 100
        start = time.monotonic()
        c = s.stream(text, max_tokens=2)
        c.head()
        events = c.events()
        first = next(events)
        yield time.monotonic() - start < 5, time.monotonic() - start
        rest = list(events)
        yield rest[-1] == "[DONE]" and isinstance(first, (str, dict)), rest
        # By the clock, not by progress: the whole prompt is one chunk of work.
        comments = [e for e in rest if isinstance(e, str) and e.startswith(":")]
        seconds = time.monotonic() - start
        yield seconds < 1 or len(comments) >= 2, (seconds, comments)
        c = s.connect()
        c.sendall(chat_request(text + "More.", max_tokens=2))
        r = Stream(c)
        pieces = list(r.chunks())
        yield r.status == 200 and r.complete and json.loads(b"".join(pieces))["choices"], pieces
        yield pieces[0] == b"\n", "line feeds before a whole body"


def test_health_means_steps(program):
    """Work, but no step for too long: not healthy, until a step ends."""
    with Server(program, "--cpu-isa", "ref", "--prefill-chunk", 4096, "--stall-timeout", 0.2) as s:
        c = s.stream("A long prompt that takes its time. " * 100, max_tokens=2)
        yield s.until(lambda: s.get("/health").status == 503) is not None, "stalled"
        r = s.get("/health")
        yield r.status == 200 or "no steps" in r.error(), r
        yield list(c.events())[-1] == "[DONE]", "it ends all the same"
        yield s.until(lambda: s.get("/health").status == 200) is not None, "healthy again"


def report_34_error_in_the_middle(program):
    """A stream that cannot go on says so, ends, and closes."""
    with Server(program, "--timeout", 0.5) as s:
        c = s.stream(max_tokens=60000, ignore_eos=True)
        events = list(c.events())
        yield c.complete and events[-1] == "[DONE]" and isinstance(events[0], dict), events[-3:]
        r = s.chat(max_tokens=60000, ignore_eos=True)
        yield r.status != 200 or r.json()["choices"][0]["finish_reason"] in ("length", "stop"), r
    with Server(program, "--drain-timeout", 0.3) as s:
        c = s.stream(max_tokens=60000, ignore_eos=True)
        iterator = c.events()
        next(iterator)
        m = s.connect()
        m.sendall(post_request("/v1/messages", chat_body("hi", max_tokens=60000, stream=True, ignore_eos=True)))
        m.recv(1, socket.MSG_PEEK)  # it has begun
        whole = s.connect()
        whole.sendall(chat_request(max_tokens=60000, ignore_eos=True))
        s.until(lambda: s.get("/load").json()["server_load"] == 3)
        s.signal(signal.SIGTERM)
        events = list(iterator)
        yield events[-1] == "[DONE]" and "error" in events[-2] and c.complete, events[-3:]
        data = read_all(m)
        yield b"event: error" in data and data.endswith(b"0\r\n\r\n"), data[-300:]
        data = read_all(whole)
        yield status_of(data) == 503 and b'"error"' in data, data
        yield s.wait() == 0, "drained"


# ---------------------------------------------------------------- life of the process


def test_drain(program):
    for number in (signal.SIGTERM, signal.SIGINT):
        with Server(program) as s:
            idle = s.connect()
            idle.sendall(HELLO)
            idle.recv(1000)
            c = s.stream(max_tokens=600, ignore_eos=True)
            events = c.events()
            next(events)
            s.signal(number)
            idle_end = in_thread(read_all, idle)
            refused = s.until(lambda: not accepts(s), 5)
            rest = list(events)
            yield refused is not None, "no new connections"
            yield rest[-1] == "[DONE]" and c.complete, rest[-2:]
            yield s.wait() == 0, s.process.returncode
            idle_end[0].join(WAIT)
            yield idle_end[1] == [b""], idle_end[1]
    with Server(program, "--drain-timeout", 1000) as s:
        c = s.stream(max_tokens=60000, ignore_eos=True)
        next(c.events())
        s.signal(signal.SIGTERM)
        s.until(lambda: "draining" in s.messages())
        s.signal(signal.SIGTERM)
        yield s.wait() == 1, "a second signal ends it at once"
    with Server(program, "--drain-timeout", 1000) as s:
        s.signal(signal.SIGTERM)
        yield s.wait() == 0, "nothing to wait for"


def accepts(s):
    try:
        s.connect().close()
        return True
    except OSError:
        return False


def test_kill(program):
    """kill -9 under load: clients see a cut or a reset, the port serves again."""
    with Server(program) as s:
        c = s.stream(max_tokens=60000, ignore_eos=True)
        events = c.events()
        next(events)
        s.process.kill()
        try:
            rest = list(events)
            yield not c.complete and "[DONE]" not in rest, rest
        except (ConnectionResetError, ValueError):
            yield True, ""
        s.wait()
        port = s.address[1]
    with Server(program, "--port", port, port=False) as s:
        yield s.address[1] == port and s.chat(max_tokens=1).status == 200, "again"
        r = program.run("serve", "--model", NANO, "--port", port)
        yield r.status == 2 and b"cannot be listened on" in r.err, r


def test_before_loading(program):
    broken = program.path()
    os.mkdir(broken)
    shutil.copy(os.path.join(NANO, "config.json"), broken)  # a plan can be made, loading fails when the port answers already
    for model in (NANO + "x", broken):
        r = program.run("serve", "--model", model, "--port", 0)
        yield r.status == 2 and r.out == b"", r
    for flags in (("--tls-cert", "x"), ("--host", "no such host"), ("--port", -1), ("--log-format", "xml")):
        r = program.run("serve", "--model", NANO, "--port", 0, *flags)
        yield r.status == 2 and b"deepinfer serve" in r.err, r


def test_stop_while_loading(program):
    """Nothing was cut, so a service manager sees no failure."""
    for delay in (0, 0.02, 0.1):
        with Server(program, ready=False, env={"LC_ALL": "C"}) as s:
            yield s.until(lambda: "total" in s.messages()) is not None, "the plan is printed before loading"
            time.sleep(delay)
            s.signal(signal.SIGTERM)
            yield s.wait() == 0, (delay, s.messages())


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT)
        self.sock.connect(self.path)


def test_unix_socket(program):
    path = program.path("s.sock")
    with socket.socket(socket.AF_UNIX) as stale:  # of a process that is gone
        stale.bind(path)
    with Server(program, "--port", -1, "--unix-socket", path, port=False) as s:
        yield s.url == "unix:" + path, s.url
        yield ask(UnixConnection(path), "GET", "/health").status == 200, "health"
        r = ask(UnixConnection(path), "POST", "/v1/chat/completions", {"Content-Type": "application/json"},
                json.dumps(chat_body("hi", max_tokens=1)))
        yield r.status == 200, r
        r = program.run("serve", "--model", NANO, "--port", -1, "--unix-socket", path)
        yield r.status == 2 and b"another process" in r.err, r
    yield not os.path.exists(path), "removed at the end"
    plain = program.write("x")
    r = program.run("serve", "--model", NANO, "--port", -1, "--unix-socket", plain)
    yield r.status == 2 and os.path.exists(plain), r


def make_certificate(program, name):
    cert, key = program.path(name + ".crt"), program.path(name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_tls(program):
    first, second = make_certificate(program, "first"), make_certificate(program, "second")
    cert, key = program.path("cert"), program.path("key")
    with Server(program, "--tls-cert", program.path("none"), "--tls-key", first[1], ready=False) as s:
        yield s.wait() == 2 and "No such file or directory" in s.messages(), s.messages()
    with Server(program, "--tls-cert", first[1], "--tls-key", first[1], ready=False) as s:
        yield s.wait() == 2 and "no start line" in s.messages(), s.messages()

    def install(pair):
        for source, target in zip(pair, (cert, key)):
            with open(source, "rb") as f, open(target, "wb") as g:
                g.write(f.read())
    install(first)
    with Server(program, "--tls-cert", cert, "--tls-key", key, "--head-timeout", 1) as s:
        yield s.url.startswith("https://"), s.url

        def secure(pair):
            return http.client.HTTPSConnection(*s.address, timeout=WAIT, context=ssl.create_default_context(cafile=pair[0]))
        c = secure(first)
        yield ask(c, "GET", "/health").status == 200, "health"
        r = ask(c, "POST", "/v1/chat/completions", {"Content-Type": "application/json"}, json.dumps(chat_body("hi", max_tokens=3, stream=True)))
        yield r.status == 200 and r.body.endswith(b"data: [DONE]\n\n"), r
        large = json.dumps(chat_body("x", max_tokens=1, padding={"a": "b" * 300000}))
        yield ask(c, "POST", "/v1/chat/completions", {"Content-Type": "application/json"}, large).status == 200, "a body of many records"
        yield status_of(s.raw(HELLO)) != 200, "plain text is not answered"
        with s.connect() as idle:
            yield read_all(idle) == b"", "a handshake has its time limit"
        install(second)
        s.signal(signal.SIGHUP)
        s.until(lambda: "read the certificate again" in s.messages())
        yield ask(c, "GET", "/health").status == 200, "an open connection goes on"
        yield ask(secure(second), "GET", "/health").status == 200, "the new certificate"
        with open(cert, "w") as f:
            f.write("nonsense")
        s.signal(signal.SIGHUP)
        yield s.until(lambda: "the certificate stays as it was" in s.messages()) is not None, "told"
        yield ask(secure(second), "GET", "/health").status == 200, "the old one stays"
        old = ssl.create_default_context(cafile=second[0])
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        yield ask(http.client.HTTPSConnection(*s.address, context=old, timeout=WAIT), "GET", "/health").status == 200, "TLS 1.2"
        held = secure(second)
        held.connect()
        held.sock.sendall(chat_request(max_tokens=60000, stream=True, ignore_eos=True))
        held.sock.recv(1000)
        held.sock.close()
        yield s.until(lambda: "deepinfer_requests_live 0\n" in ask(secure(second), "GET", "/metrics").body.decode(), 5) is not None, "cancelled"


def test_service_manager(program):
    """Socket activation and readiness as systemd does them."""
    path = program.path("notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, socket.socket() as listening:
        notify.bind(path)
        notify.settimeout(WAIT)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        fd = os.dup(listening.fileno())
        early = socket.create_connection(listening.getsockname(), WAIT)
        early.sendall(HELLO)
        shell = ["sh", "-c", f'exec 3<&{fd}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh"]
        with Server(program, port=False, prefix=shell, pass_fds=[fd], env={"NOTIFY_SOCKET": path}) as s:
            yield s.address[1] == listening.getsockname()[1], s.url
            yield notify.recv(100) == b"READY=1", "ready"
            got = early.recv(1000)
            early.close()
            yield status_of(got) == 503 and b"being loaded" in got and b"Retry-After" in got, got
            yield s.get("/health").status == 200, "health"
            s.signal(signal.SIGTERM)
            yield notify.recv(100) == b"STOPPING=1", "stopping"
            yield s.wait() == 0, "ended"
        os.close(fd)


def test_logs(program):
    path = program.path("access")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Server(program, "--access-log", path, "--log-format", "json") as s:
        s.chat(headers={"traceparent": trace, "X-Request-Id": "one"}, max_tokens=2)
        s.get('/nothing"quoted', {"X-Request-Id": "two"})
        s.raw(b"nonsense\r\n\r\n")
        c = s.stream(max_tokens=60000, headers={"X-Request-Id": "left"})
        next(c.events())
        c.close()
        s.until(lambda: s.busy() == 0)
    with open(path) as f:
        lines = {r.get("request_id"): r for r in map(json.loads, f)}
    with Server(program, "--access-log", path) as s:
        s.get("/ping")
        s.until(lambda: b"/ping" in open(path, "rb").read())
        os.rename(path, path + ".1")
        s.signal(signal.SIGHUP)
        yield s.until(lambda: os.path.exists(path)) is not None, "opened anew"
        s.get("/version")
        yield s.until(lambda: b" GET /version 200 " in open(path, "rb").read()) is not None, "goes on there"
    yield lines["one"]["traceparent"] == trace and lines["one"]["status"] == 200 and lines["one"]["completion_tokens"] == 2, lines["one"]
    yield lines["two"]["status"] == 404 and lines["two"]["path"] == '/nothing"quoted', lines["two"]
    yield lines["left"]["status"] == 499, lines["left"]
    yield lines[None]["status"] == 400, lines[None]


SHARED = [test_routes, test_ids, test_page, test_metrics, test_framing, test_slow_bytes, test_keep_alive, test_http10, test_pipelining,
          test_expect_continue, test_bad_bodies, test_resets, report_36_first_request_of_odd_clients]
OWN = [test_names_of_the_host, test_large_bodies, test_large_bodies_hold_up_nobody,
       test_large_prompts_of_one_request, test_time_limits, test_connections, test_few_descriptors,
       test_queue_full, test_keys, test_cors,
       report_61_disconnect_frees_the_slot, report_62_disconnect_in_the_queue, test_disconnect_while_preparing,
       report_64_retry_resumes_from_what_was_prefilled, report_65_cancel_hits_nobody_else,
       test_slow_readers, report_29_long_prompt_first_byte_report_30_by_the_clock, test_health_means_steps, report_34_error_in_the_middle,
       test_drain, test_kill, test_before_loading, test_stop_while_loading,
       test_unix_socket, test_tls, test_service_manager, test_logs]


if __name__ == "__main__":
    sys.exit(run_tests(__doc__, OWN, SHARED))
