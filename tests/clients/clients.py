"""What the tests of third-party programs share: no way out of this machine, the recipes of docs/clients.md, a server with a recording in front.

Each test_NAME.py runs with the packages of NAME.txt (make clients-test). Importing this module, which comes before the packages, leaves all
network interfaces but the loopback one where the system grants a network namespace of one's own.
"""
import contextlib
import ctypes
import fcntl
import http.client
import http.server
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from program import tests_in
from serving import Server, run_tests

# Programs that would ask elsewhere for updates, or report there, are told not to.
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1",
         "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1",
         "AIDER_ANALYTICS_DISABLE": "true", "NO_PROXY": "127.0.0.1,localhost", "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


def stay_here():
    """Leave all network interfaces but the loopback one, if the system lets us."""
    new_user, new_net = 0x10000000, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(new_net if uid == 0 else new_user | new_net) != 0:
        return
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
                f.write(text)
    with socket.socket() as s:  # up
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 0x49))


os.environ.update(QUIET)
stay_here()


def recipe(heading, number=0):
    """A block of code below this heading of docs/clients.md."""
    with open(os.path.join(ROOT, "docs", "clients.md"), encoding="utf-8") as f:
        part = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", f.read(), re.M | re.S).group(1)
    blocks = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", part, re.M)
    return re.sub(r"^    ", "", blocks[number], flags=re.M)


class Recorder:
    """In front of a server: keeps every request and its answer. `change`(body) may give another body to ask with, and what to replace in the
    answer; it is asked for each request that generates."""

    def __init__(self, server, change=None):
        recorder = self
        self.seen, self.change = [], change

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = json.loads(body) if body else None
                replace = ()
                if recorder.change and self.command == "POST" and "count_tokens" not in self.path:
                    changed = recorder.change(asked)
                    if changed:
                        body, replace = json.dumps(changed[0]).encode(), changed[1:]
                c = http.client.HTTPConnection(*server.address, timeout=300)
                c.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding", "content-length")})
                r = c.getresponse()
                data = r.read()
                c.close()
                for old, new in zip(replace[::2], replace[1::2]):
                    data = data.replace(old, new)
                recorder.seen.append((self.command, self.path, asked, r.status, data))
                self.send_response(r.status)
                for k, v in r.getheaders():
                    if k.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(k, v)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_HEAD = do

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def statuses(self):
        return [status for _, _, _, status, _ in self.seen]

    def bodies(self):
        return [body for _, _, body, _, _ in self.seen]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def at(text, url):
    """A recipe with the address of this test's server."""
    assert "http://127.0.0.1:8000" in text, text
    return text.replace("http://127.0.0.1:8000", url)


def run_python(text, **names):
    """What the code prints, and its names."""
    out = io.StringIO()
    names = {"__name__": "__main__", **names}
    with contextlib.redirect_stdout(out):
        exec(compile(text, "docs/clients.md", "exec"), names)
    return out.getvalue(), names


def run_program(command, folder, timeout=240, **env):
    """(exit status, stdout, stderr) of a program whose home is `folder`."""
    p = subprocess.run(command, cwd=folder, env={**os.environ, "HOME": folder, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                       check=False)
    return p.returncode, p.stdout, p.stderr


@contextlib.contextmanager
def served(program, *flags, change=None):
    """The recipes say no seed and sample: the server's is fixed."""
    with Server(program, "--quiet", "--seed", 1, *flags) as server, Recorder(server, change) as recorder:
        yield server, recorder
