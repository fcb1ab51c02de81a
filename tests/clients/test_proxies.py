#!/usr/bin/env python3
"""The blocks of docs/operating.md for nginx, HAProxy and Caddy, run as they stand there but for ports and certificates: streams arrive token by
token, large bodies pass, a client that leaves is noticed. usage: test_proxies.py --binary FILE"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from program import ROOT
from serving import WAIT, Server, Stream, chat_body, chat_request, read_all, run_tests, status_of

NAME = "llm.example"
MIB = 1 << 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def block(kind):
    """The block for this proxy in docs/operating.md."""
    text = pathlib.Path(ROOT, "docs/operating.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S)
    assert len(found) == 1, f"{len(found)} blocks for {kind}"
    return found[0]


def replace(text, **changes):
    """Every part that is replaced stands there once."""
    for old, new in changes.values():
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    return text


def certificate(directory):
    """Paths of a certificate, its key, and both in one file."""
    crt, key, pem = (os.path.join(directory, NAME + end) for end in (".crt", ".key", ".pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=" + NAME,
                    "-keyout", key, "-out", crt], check=True, capture_output=True)
    pathlib.Path(pem).write_text(pathlib.Path(crt).read_text() + pathlib.Path(key).read_text())
    return crt, key, pem


def nginx(directory, port, backend):
    crt, key, _ = certificate(directory)
    text = replace(block("nginx"), listen=("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"), backend=("127.0.0.1:8000", backend),
                   crt=(f"/etc/ssl/{NAME}.crt", crt), key=(f"/etc/ssl/{NAME}.key", key))
    places = "".join(f"{name}_temp_path {directory}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;\n" if os.geteuid() == 0 else ""
    path = os.path.join(directory, "nginx.conf")
    pathlib.Path(path).write_text(f"{user}daemon off;\nworker_processes 1;\npid {directory}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{places}{text}}}\n")
    return ["-p", directory, "-e", "stderr", "-c", path], True


def haproxy(directory, port, backend):
    pem = certificate(directory)[2]
    path = os.path.join(directory, "haproxy.cfg")
    pathlib.Path(path).write_text(replace(block("haproxy"), listen=("bind :443", f"bind 127.0.0.1:{port}"), backend=("127.0.0.1:8000", backend),
                                          pem=(f"/etc/ssl/{NAME}.pem", pem)))
    return ["-db", "-f", path], True


def caddy(directory, port, backend):
    path = os.path.join(directory, "Caddyfile")
    # Without TLS: Caddy would ask an authority for a certificate.
    text = replace(block("caddy"), name=(NAME, f"http://{NAME}:{port}"), backend=("127.0.0.1:8000", backend))
    pathlib.Path(path).write_text(f"{{\nadmin off\n}}\n{text}")
    return ["run", "--adapter", "caddyfile", "--config", path], False


class Proxy:
    """A proxy before a server; requests as Server makes them, over it."""

    def __init__(self, program, make, server):
        directory = program.path()
        os.mkdir(directory)
        self.port = free_port()
        program_file = shutil.which(make.__name__, path=os.environ["PATH"] + ":/usr/sbin")
        if not program_file:
            raise RuntimeError(f"{make.__name__} is missing: run tools/install-deps --clients")
        arguments, self.tls = make(directory, self.port, "%s:%d" % server.address)
        self.log = open(os.path.join(directory, "log"), "w+b")
        self.process = subprocess.Popen([program_file, *arguments], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, "HOME": directory, "XDG_DATA_HOME": directory, "XDG_CONFIG_HOME": directory})

    def __enter__(self):
        end = time.monotonic() + WAIT
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.connect().close()
                return self
            except OSError:
                time.sleep(0.05)
        self.__exit__()
        self.log.seek(0)
        raise RuntimeError(self.log.read()[-500:])

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), WAIT)
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            s = context.wrap_socket(s, server_hostname=NAME)
        return s

    def begin(self, **fields):
        """A request under way."""
        s = self.connect()
        s.sendall(chat_request("Say hello.", {"Host": NAME}, **fields))
        return Stream(s)

    def ask(self, body, path="/v1/chat/completions"):
        head = f"POST {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with self.connect() as s:
            try:
                s.sendall(head.encode() + body)
                return read_all(s)
            except OSError as e:  # refused while it was being sent
                return f"[{e}]".encode()


def behind(program, make):
    with Server(program, "--allowed-host", NAME, "--keep-alive-comment", 1, "--max-batch", 2) as s, Proxy(program, make, s) as p:
        ready = s.until(lambda: status_of(p.ask(json.dumps(chat_body("hi", max_tokens=1)).encode())) == 200, 20)
        yield ready is not None, "the first answer"
        # A stream: what is written comes while more is being written, not in pieces of a buffer's size.
        c, times = p.begin(stream=True, max_tokens=60000, ignore_eos=True), []
        yield c.head() == 200 and c.headers["content-type"].startswith("text/event-stream"), c.headers
        for _ in zip(range(400), c.events()):
            times.append(time.monotonic())
        yield s.metrics()["deepinfer_running"] == 1, "400 tokens came while it runs"
        yield sum(b - a > 1e-4 for a, b in zip(times, times[1:])) > 20, times
        c.close()
        yield s.until(lambda: s.busy() == 0, 10) is not None, "leaving was not noticed"
        # Large bodies: what the server takes passes, what it does not is refused by one of the two.
        small = json.dumps(chat_body("hi", max_tokens=1)).encode()
        yield status_of(p.ask(small + b" " * (31 * MIB))) == 200, "31 MiB"
        got = p.ask(small + b" " * (33 * MIB))
        yield b" 413 " in got[:20] or got.endswith(b"]"), got[:200]
        # The server's errors come through as they are.
        got = p.ask(b"{}")
        yield status_of(got) == 400 and b'"error"' in got, got
        # A client that leaves frees the slot: in a stream, in one that waits, before an answer that is no stream.
        for fields in ({"stream": True}, {}):
            c = p.begin(max_tokens=60000, ignore_eos=True, **fields)
            yield s.until(lambda: s.metrics()["deepinfer_running"] == 1) is not None, "runs"
            if fields:
                next(c.events())
            c.close()
            yield s.until(lambda: s.busy() == 0, 10) is not None, (fields, "leaving was not noticed")
        held = [p.begin(stream=True, max_tokens=60000, ignore_eos=True) for _ in range(2)]
        yield s.until(lambda: s.metrics()["deepinfer_running"] == 2) is not None, "two run"
        c = p.begin(stream=True, max_tokens=1)
        yield s.until(lambda: s.metrics()["deepinfer_waiting"] == 1) is not None, "the third waits"
        c.close()
        yield s.until(lambda: s.metrics()["deepinfer_waiting"] == 0, 10) is not None, "leaving the queue was not noticed"
        for c in held:
            c.close()
        yield s.until(lambda: s.busy() == 0, 10) is not None, "leaving was not noticed"


def test_nginx(program):
    yield from behind(program, nginx)


def test_haproxy(program):
    yield from behind(program, haproxy)


def test_caddy(program):
    yield from behind(program, caddy)


if __name__ == "__main__":
    sys.exit(run_tests(__doc__, [test_nginx, test_haproxy, test_caddy]))
