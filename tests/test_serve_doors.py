#!/usr/bin/env python3
"""Who gets in and what is written down: forms of HTTP, hosts, credentials, sockets, logs. usage: test_serve_doors.py --binary FILE"""
import json
import os
import re
import signal
import sys

from serving import Server, bearer, chat_body, key_line, run_tests, status_of

HEAD = b"GET %s HTTP/1.1\r\nConnection: close\r\nHost: %s\r\n%s\r\n"


def test_forms_with_two_readings(program):
    """What one program would take for one request and another one for another is refused, whoever stands in front."""
    with Server(program) as s:
        def ask(target=b"/v1/models", host=b"localhost", more=b""):
            return status_of(s.raw(HEAD % (target, host, more)))

        yield ask() == 200 and ask(b"http://localhost/v1/models") == 200 and ask(b"http://LOCALHOST:80/v1/models") == 200, "plain"
        for target in (b"http://localhost?/metrics", b"http://localhost#/metrics", b"/metrics#", b"http://evil.example/metrics",
                       b"http://localhost:8000/metrics", b"http://u@localhost/metrics", b"http:///metrics", b"localhost/metrics", b"*"):
            yield ask(target) == 400, target
        for host in (b"[::1].evil.example", b"[::1", b"[evil.example]", b"localhost:80:80", b"localhost:x", b"localhost:99999", b"a b", b"a,localhost",
                     b"localhost/evil", b"evil@localhost", b"localhost\\.evil.example", b"127.1", b"127.0.0.1.1", b"..", b"\xff"):
            yield ask(host=host) == 400, host
        for name in (b"Content-Type", b"Content-Encoding", b"Authorization", b"X-Api-Key", b"Origin", b"Anthropic-Version"):
            yield ask(more=name + b": identity\r\n") == 200 and ask(more=(name + b": identity\r\n") * 2) == 400, name
        yield ask(more=b"Authorization: Bearer a\r\nX-Api-Key: b\r\n") == 200, "nobody reads keys here"


def test_two_credentials(program):
    with Server(program, "--api-keys", program.write(key_line("alpha", "team-a") + key_line("beta", "team-b"))) as s:
        def ask(**headers):
            return s.get("/v1/models", {k.replace("_", "-"): v for k, v in headers.items()})

        yield ask(**bearer("alpha"), x_api_key="alpha").status == 200, "the same twice"
        yield ask(Authorization="Basic abc", x_api_key="alpha").status == 200, "one that is no key, as a proxy may ask for"
        for second in ("beta", "wrong", "alph", "alphaa"):
            r = ask(**bearer("alpha"), x_api_key=second)
            yield r.status == 400 and "different keys" in r.error(), (second, r)


def test_log_lines(program):
    """Each line is JSON whatever names are made of, and holds nothing that a client wrote but method, path and ids."""
    long = "模型" * 30  # 180 bytes: a cut anywhere but behind each third byte is inside a character
    keys = os.fsencode(program.path("keys")) + b"\xff\xfe"
    with open(keys, "w") as f:
        f.write(key_line("alpha", "team-a"))
    with Server(program, "--served-model-name", "a" + long, "--served-model-name", "b*", "--api-keys", os.fsdecode(keys), "--access-log", "-",
                "--log-format", "json") as s:
        def ask(id, model, path="/v1/chat/completions"):
            return s.post(path, chat_body("My hovercraft", model=model, max_tokens=1), {"X-Request-Id": id, **bearer("alpha")})

        for id, model in (("own", "a" + long), ("family", "b" + long), ("other", "秘密" * 40), ("none", "")):
            yield ask(id, model).status == 200, id
        yield ask("query", "x", "/v1/chat/completions?secret").status == 200, "query"
        yield ask("long", "x", "/" + "p" * 5000).status == 404, "long"
        os.unlink(keys)
        s.signal(signal.SIGHUP)
        yield s.until(lambda: "the keys stay" in s.messages()) is not None, "told"
        yield s.until(lambda: "pppp" in s.messages()) is not None, "logged"
        with open(s.err_path, "rb") as f:
            lines = [json.loads(line) for line in f.read().decode("utf-8").splitlines() if line.startswith("{")]  # the plan stays text
    seen = {r["request_id"]: r for r in lines if "request_id" in r}
    yield [seen[id].get("model") for id in ("own", "family", "other", "none")] == ["a" + long, "b*", None, "a" + long], seen
    yield [r for r in lines if r["event"] == "error" and "\ufffd\ufffd" in r["message"]] != [], lines
    yield seen["query"]["path"] == "/v1/chat/completions" and seen["long"]["path"] == "/" + "p" * 255, seen
    yield not re.search("hovercraft|秘|secret|alpha", json.dumps(lines, ensure_ascii=False)), lines


OWN = [test_log_lines, test_forms_with_two_readings, test_two_credentials]

if __name__ == "__main__":
    sys.exit(run_tests(__doc__, OWN))
