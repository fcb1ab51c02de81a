"""What the tests of `deepinfer serve` share: a running server, requests over plain sockets, streams read as they come."""
import argparse
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

from program import NANO, ROOT, Count, Program

WAIT = 240  # seconds that anything may take before the test gives up


class Server:
    """A server on a free port of the loopback interface, ended when the object is left."""

    def __init__(self, program, *flags, model=NANO, port=True, env=None, ready=True, prefix=(), **popen):
        self.program = program
        self.err_path = program.path()
        self.err = open(self.err_path, "wb")
        args = [*prefix, program.binary, "serve", "--model", model, *(["--port", "0"] if port else []), *map(str, flags)]
        self.process = subprocess.Popen(args, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err,
                                        env={**os.environ, **(env or {})}, **popen)
        self.url, self.address = None, None
        if ready:
            self.url = self.read_url()
            match = re.fullmatch(r"https?://(.*):(\d+)", self.url)
            if match:
                self.address = (match.group(1).strip("[]"), int(match.group(2)))

    def read_url(self):
        line = self.process.stdout.readline().decode()
        match = re.fullmatch(r"listening on (\S+)\n", line)
        if not match:
            self.process.wait(WAIT)
            raise RuntimeError(f"no server: {line!r}, {self.messages()!r}")
        return match.group(1)

    def messages(self):
        self.err.flush()
        with open(self.err_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=WAIT):
        return self.process.wait(timeout)

    def stop(self):
        """Exit status after SIGTERM, -9 if it had to be killed; "sanitizer report" if there was one."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(WAIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        if re.search(r"Sanitizer|runtime error", self.messages()):
            return "sanitizer report"
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.status = self.stop()
        messages = self.messages()
        self.err.close()
        if self.status == "sanitizer report":
            raise RuntimeError(messages)

    # ---- requests

    def connect(self, timeout=WAIT, receive=None):
        s = socket.socket()
        if receive:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        s.settimeout(timeout)
        s.connect(self.address)
        return s

    def raw(self, data, timeout=WAIT):
        """Send bytes, read until the server closes."""
        with self.connect(timeout) as s:
            s.sendall(data)
            return read_all(s)

    def get(self, path, headers=None, method="GET", body=None):
        c = http.client.HTTPConnection(*self.address, timeout=WAIT)
        try:
            return ask(c, method, path, headers, body)
        finally:
            c.close()

    def post(self, path, body, headers=None):
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        return self.get(path, {"Content-Type": "application/json", **(headers or {})}, "POST", data)

    def chat(self, text="Say hello.", headers=None, **fields):
        return self.post("/v1/chat/completions", chat_body(text, **fields), headers)

    def stream(self, text="Say hello.", headers=None, receive=None, **fields):
        s = self.connect(receive=receive)
        s.sendall(chat_request(text, headers, stream=True, **fields))
        return Stream(s)

    def metrics(self, headers=None):
        """{name or name{labels}: value}"""
        text = self.get("/metrics", headers).body.decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.split("\n") if line and line[0] != "#"}

    def busy(self):
        m = self.metrics()
        return m["deepinfer_running"] + m["deepinfer_waiting"] + m["deepinfer_requests_live"]

    def until(self, condition, timeout=WAIT):
        """Seconds until condition() holds, or None."""
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            if condition():
                return time.monotonic() - start
            time.sleep(0.01)
        return None


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """Message of an error in OpenAI's or Anthropic's shape, or None."""
        try:
            e = self.json()
            if e.get("type") == "error":
                return e["error"]["message"] if set(e["error"]) == {"type", "message"} else None
            return e["error"]["message"] if {"message", "type", "param", "code"} <= set(e["error"]) else None
        except (ValueError, KeyError, AttributeError, TypeError):
            return None

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:300]!r}"


def ask(connection, method, path, headers=None, body=None):
    connection.request(method, path, body, headers or {})
    r = connection.getresponse()
    return Response(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())


def read_all(s):
    data = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return data
            data += piece
    except ConnectionResetError:
        return data + b"[reset]"
    except (socket.timeout, ssl.SSLError):
        return data + b"[timeout]"


def chat_body(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


def post_request(path, body, headers=None, version="1.1"):
    """The bytes of a request. body: an object, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(data), **(headers or {})}
    head = f"POST {path} HTTP/{version}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
    return head.encode() + data


def chat_request(text="Say hello.", headers=None, version="1.1", **fields):
    return post_request("/v1/chat/completions", chat_body(text, **fields), headers, version)


def peek(c):
    c.settimeout(0.05)
    try:
        return c.recv(1000)
    except socket.timeout:
        return b""


class Stream:
    """A response that is read as it comes, chunked or until the end."""

    def __init__(self, s):
        self.socket, self.file = s, s.makefile("rb")
        self.status = None

    def head(self):
        line = self.file.readline()
        self.status = int(line.split()[1]) if line else 0
        self.headers = {}
        for line in iter(self.file.readline, b"\r\n"):
            if not line:
                break
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        return self.status

    def chunks(self):
        """Pieces of the body. `complete` tells whether it ended properly."""
        if self.status is None:
            self.head()
        self.complete = False
        while True:
            line = self.file.readline()
            if not line:
                return
            size = int(line, 16)
            data = self.file.read(size + 2)
            if size == 0:
                self.complete = True
                return
            yield data[:-2]

    def events(self):
        """Comments as strings ": ...", data as objects, [DONE] as the string "[DONE]"."""
        rest = b""
        for chunk in self.chunks():
            rest += chunk
            while b"\n\n" in rest:
                event, rest = rest.split(b"\n\n", 1)
                text = event.decode()
                if text.startswith(":"):
                    yield text
                else:
                    data = "".join(line[6:] for line in text.split("\n") if line.startswith("data: "))
                    yield data if data == "[DONE]" else json.loads(data)

    def close(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.file.close()
        self.socket.close()


def in_thread(fn, *args):
    """(thread, results): fn's result or exception is appended to results."""
    results = []

    def run():
        try:
            results.append(fn(*args))
        except Exception as e:  # shown by the test that looks at it
            results.append(e)
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t, results


def status_of(data):
    return int(data[9:12]) if data[:7] == b"HTTP/1." else data[:100]


def key_line(key, tenant, *limits, prefix="sha256:"):
    return " ".join([prefix + hashlib.sha256(key.encode()).hexdigest(), tenant, *limits]) + "\n"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def run_tests(doc, own, shared=(), flags=()):
    """The main function of a file of tests. A test yields pairs: what must hold, and what to show if it does not. `shared` tests get one
    server with these flags together, the others the program. Exit status."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--filter", default="", help="part of a test's name")
    args = parser.parse_args()
    program, count = Program(args.binary), Count()
    together = [t for t in shared if args.filter in t.__name__]
    if together:
        with Server(program, *flags) as s:
            for test in together:
                count.attempt(test, s)
        count.group("exit status", [(s.status == 0, s.status)])
    for test in own:
        if args.filter in test.__name__:
            count.attempt(test, program)
    return count.finish()
