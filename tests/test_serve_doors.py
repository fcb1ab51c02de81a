#!/usr/bin/env python3
"""Who gets in and what is written down: forms of HTTP, hosts, credentials, sockets, logs. usage: test_serve_doors.py --binary FILE
(also run with sanitizers)"""
import json
import os
import re
import signal
import socket
import stat
import sys

from program import NANO
from serving import WAIT, Server, bearer, chat_body, key_line, read_all, run_tests, status_of

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


def test_localhost_is_both(program):
    def health(host, port):
        with socket.create_connection((host, port), WAIT) as c:
            c.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return status_of(read_all(c))

    def runs(host, port):
        r = program.run("serve", "--model", NANO, "--host", host, "--port", port)
        return r.status == 2 and b"Address already in use" in r.err and b"memory plan" not in r.err, r

    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        places = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    except OSError:  # IPv6 is off
        places = [(socket.AF_INET, "127.0.0.1")]
    with Server(program, "--host", "localhost") as s:
        port = s.address[1]
        for _, host in places:
            yield health(host, port) == 200, (host, s.url)
        yield runs("localhost", port)
        yield runs("127.0.0.1", port)
    for family, host in places:
        with socket.socket(family) as taken:
            taken.bind((host, 0))
            taken.listen()
            yield runs("localhost", taken.getsockname()[1])


def test_errors_before_the_plan(program):
    """What needs no model is told before anything is computed for it."""
    for flags in (("--api-keys", "/nowhere/keys"), ("--tls-cert", "/nowhere/a", "--tls-key", "/nowhere/b"), ("--tls-cert", "x"),
                  ("--access-log", "/nowhere/log"), ("--unix-socket", "/nowhere/s"), ("--unix-socket-mode", "668"), ("--unix-socket-mode", "1777")):
        r = program.run("serve", "--model", NANO, "--port", 0, *flags)
        yield r.status == 2 and b"memory plan" not in r.err, (flags, r)


def test_unix_socket_mode(program):
    path = program.path("s.sock")
    for flags, mode in (((), 0o600), (("--unix-socket-mode", "660"), 0o660), (("--unix-socket-mode", "0666"), 0o666)):
        with Server(program, "--port", -1, "--unix-socket", path, *flags, port=False):
            yield stat.S_IMODE(os.stat(path).st_mode) == mode, (flags, oct(os.stat(path).st_mode))


def test_names_are_asked_where_it_listens(program):
    """Not --host says whether only this machine can ask, but the sockets, which may come from elsewhere."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        fd = os.dup(listening.fileno())
        shell = ["sh", "-c", f'exec 3<&{fd}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh"]
        with Server(program, "--host", "0.0.0.0", port=False, prefix=shell, pass_fds=[fd]) as s:
            yield status_of(s.raw(HEAD % (b"/health", b"evil.example", b""))) == 403, "another name"
            yield status_of(s.raw(HEAD % (b"/health", b"localhost", b""))) == 200, "its own"
        os.close(fd)


OWN = [test_forms_with_two_readings, test_two_credentials, test_log_lines, test_localhost_is_both, test_errors_before_the_plan, test_unix_socket_mode,
       test_names_are_asked_where_it_listens]

if __name__ == "__main__":
    sys.exit(run_tests(__doc__, OWN))
