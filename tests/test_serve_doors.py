#!/usr/bin/env python3
"""Who gets in and what is written down: forms of HTTP, hosts, credentials, sockets, logs. usage: test_serve_doors.py --binary FILE"""
import sys

from serving import Server, bearer, key_line, run_tests, status_of

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


OWN = [test_forms_with_two_readings, test_two_credentials]

if __name__ == "__main__":
    sys.exit(run_tests(__doc__, OWN))
