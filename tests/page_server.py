"""A stand-in for `deepinfer serve` with scripted answers, for the page's test: what the last message says decides what is answered.

usage, to look at the page: page_server.py [PORT]
"""
import http.server
import json
import os
import sys
import threading
import time

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src", "server", "page")
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
       "frame-ancestors 'none'")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".svg": "image/svg+xml"}

MARKDOWN = """# Sorting

A *stable* sort keeps **equal** elements in order; `sorted` does. See [the docs](https://example.org/sort) or https://example.org/a.

1. Compare keys
2. Merge runs
   - short runs: insertion
   - long runs: galloping

```python
def merge(a, b):
    # two sorted lists
    return sorted(a + b)  # <b>not bold</b>
```

| sort | worst case | stable |
| --- | --- | --- |
| merge | n log n | yes |
| heap | n log n | no |

> Premature optimisation is the root of all evil.

Done: snake_case_name and 2 * 3 * 4 stay as they are.
"""
XSS = """<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>
[click](javascript:window.pwned=3) [data](data:text/html,<script>window.pwned=4</script>) ![i](https://evil.example/x.png)

```"><img src=x onerror=window.pwned=5>
</code></pre><script>window.pwned=6</script>
```

| <svg onload=window.pwned=7> | b |
| --- | --- |
| <iframe srcdoc="<script>parent.pwned=8</script>"> | c |
"""
REASONING = "The user asks about sorting.\n\n- define *stable*\n- give an example\n\nThen a table."


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def pieces(text, size=7):
    return [text[i:i + size] for i in range(0, len(text), size)]


def finish(reason, completion):
    return [{"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}]},
            {"choices": [], "usage": {"prompt_tokens": 1200, "completion_tokens": completion, "total_tokens": 1200 + completion,
                                      "prompt_tokens_details": {"cached_tokens": 1088},
                                      "completion_tokens_details": {"reasoning_tokens": 24}}}]


def tool_chunks(calls):
    for i, (name, arguments) in enumerate(calls):
        yield delta(tool_calls=[{"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": ""}}])
        for piece in pieces(arguments, 5):
            yield delta(tool_calls=[{"index": i, "function": {"arguments": piece}}])


def script(request):
    """Chunks of the answer and the pause between them in seconds."""
    last = request["messages"][-1]
    words = last["content"].split()
    first = words[0] if last["role"] == "user" and words else "tool-result"
    if first == "xss":
        calls = tool_chunks([('<img src=x onerror="window.pwned=9">', '{"a": "</pre><script>window.pwned=10</script>"}')])
        return [delta(reasoning_content=XSS), *[delta(content=p) for p in pieces(XSS, 5)], *calls, *finish("tool_calls", 90)], 0
    if first == "tool":
        calls = [("get_weather", '{"city":"Zürich","days":3,"station":12345678901234567890,"units":{"temperature":"celsius","wind":[]}}')]
        return [delta(reasoning_content="The weather has to be looked up."), *tool_chunks(calls), *finish("tool_calls", 41)], 0.002
    if first == "tool-result":
        return [delta(content=f"The tool said: {last['content']}"), *finish("stop", 12)], 0
    if first == "count":
        return [*[delta(content=f"{i}\n") for i in range(int(words[1]))], *finish("stop", int(words[1]))], 0
    if first == "paragraph":
        return [*[delta(content=f"word{i} ") for i in range(int(words[1]))], *finish("stop", int(words[1]))], 0
    if first == "slow":
        return [delta(content=f"{i} ") for i in range(3000)], 0.02
    if first == "echo":
        return [delta(content=last["content"][5:]), *finish("length", 3)], 0
    if first == "break":
        return [delta(content="It begins"), None], 0
    if first == "break-in-call":
        return [delta(content="I look it up."), *list(tool_chunks([("get_weather", '{"city": "Zürich"}')]))[:3], None], 0
    if first == "lines":
        return [*[delta(content=f"{i}\n") for i in range(int(words[1]))], *finish("stop", int(words[1]))], 0.005
    if first == "fail":
        return [delta(content="It begins"), {"error": {"message": "the engine failed in step 7", "type": "internal_error"}}], 0
    reasoning, content = [delta(reasoning_content=p) for p in pieces(REASONING)], [delta(content=p) for p in pieces(MARKDOWN)]
    return [*reasoning, *content, *finish("stop", 257)], 0.002


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self):
        server = self.server
        if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
            self.reply(401, {"error": {"message": "the API key is missing or wrong", "type": "authentication_error"}})
            return False
        return True

    def do_GET(self):
        server = self.server
        name = "index.html" if self.path == "/" else self.path[1:]
        path = os.path.join(PAGE, name)
        server.paths.append(self.path)
        if "/" not in name and os.path.isfile(path):
            with open(path, "rb") as f:
                self.reply(200, f.read(), TYPES[os.path.splitext(name)[1]], Content_Security_Policy=CSP, X_Content_Type_Options="nosniff")
        elif name == "v1/models" and server.loading:
            self.reply(503, {"error": {"message": "the model is being loaded", "type": "service_unavailable"}}, Retry_After=2)
        elif name == "v1/models" and self.allowed():
            self.reply(200, {"object": "list", "data": [{"id": "nano", "object": "model", "max_model_len": 65536}]})
        elif name == "api/status" and self.allowed():
            self.reply(200, server.status())
        elif name not in ("v1/models", "api/status"):
            self.reply(404, {"error": {"message": f"There is no {self.path}", "type": "not_found_error"}})

    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        server.requests.append(request)
        first = (request["messages"][-1]["content"].split() or [""])[0]
        if first == "busy" and server.busy > 0:
            server.busy -= 1
            self.reply(429, {"error": {"message": "too many requests are waiting", "type": "rate_limit_error"}}, Retry_After=2)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        server.running += 1
        try:
            self.stream(*script(request))
        except OSError:
            server.disconnects += 1
            self.close_connection = True
        finally:
            server.running -= 1

    def stream(self, chunks, pause):
        def send(text):
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        send(": keep-alive\n\n")
        for chunk in [delta(role="assistant", content=""), *chunks]:
            if chunk is None:
                self.close_connection = True
                self.wfile.write(b"0\r\n\r\n")
                return
            send("data: " + json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "nano", **chunk}) + "\n\n")
            self.server.generated += 1
            if pause:
                time.sleep(pause)
        send("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.loading = False
        self.key, self.busy, self.running, self.generated, self.disconnects = "", 1, 0, 0, 0
        self.requests, self.paths, self.start = [], [], time.monotonic()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def status(self):
        gib = 1 << 30
        return {"model": "nano", "context": 65536, "uptime_s": round(time.monotonic() - self.start) + 93784,
                "running": self.running, "waiting": 0,
                "prompt_tokens": 1_204_311, "generation_tokens": 86_120 + self.generated, "kv_used_blocks": 212, "kv_blocks": 1024,
                "cached_tokens": 903_233, "lookup_tokens": 1_204_311, "drafted": 51_200, "accepted": 38_912,
                "memory": {"weights_packed": 151 * gib, "weights_mapped": 9 * gib, "cache": 12 * gib, "activations": 3 * gib // 4,
                           "scratch": gib // 3, "total": 173 * gib,
                           "regions": [{"name": "cache blocks", "place": "device", "bytes": 11 * gib}, {"name": "draft", "place": "file", "bytes": gib}]}}


if __name__ == "__main__":
    looked_at = Server(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(looked_at.url, flush=True)
    threading.Event().wait()
