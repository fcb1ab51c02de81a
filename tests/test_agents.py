#!/usr/bin/env python3
"""deepinfer serve as agents and their libraries use it: what they look for in errors, how they send a conversation back.

The programs themselves run in tests/clients (make clients-test); here are the protocols alone, without further packages.
"""
import argparse
import json
import re
import sys

import anthropic.types
import openai
import openai.types.responses
from pydantic import TypeAdapter

import dialects
from program import Count, Program
from serving import Server

CONTEXT = 2048
OFF = {"type": "disabled"}
LONG = "word " * 3000
ASK = {"chat": lambda text: {"messages": [{"role": "user", "content": text}]}, "completions": lambda text: {"prompt": text},
       "messages": lambda text: {"messages": [{"role": "user", "content": text}]}, "responses": lambda text: {"input": text}}
LIMIT = {"chat": "max_tokens", "completions": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}


def post(server, dialect, body):
    return server.post(dialects.PATHS[dialect], body)


# ---- the context is too short

# Who looks for what when a prompt is too long, to shorten the conversation or to say so.
PHRASES = [
    ("Claude Code: how many", "messages", re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.I)),
    ("Claude Code: the sentence", "messages", re.compile(r"^prompt is too long: \d+ tokens > \d+ maximum$")),
    ("LangChain, anthropic", "messages", re.compile(r"prompt is too long")),
    ("LiteLLM, messages", "messages", re.compile(r"prompt is too long")),
    ("LiteLLM", "chat", re.compile(r"this model's maximum context length is", re.I)),
    ("strands, dspy: OpenAI's sentence", "chat", re.compile(r"maximum context length is \d+ tokens\. However, you requested \d+ tokens "
                                                           r"\(\d+ in the messages, \d+ in the completion\)\.$")),
    ("LiteLLM, text", "completions", re.compile(r"this model's maximum context length is", re.I)),
    ("LiteLLM, responses", "responses", re.compile(r"this model's maximum context length is", re.I)),
]


def test_phrases(server):
    for who, dialect, phrase in PHRASES:
        r = post(server, dialect, ASK[dialect](LONG))
        found = phrase.search(r.error() or "")
        yield r.status == 400 and found, (who, r)
        if found and found.groups():
            prompt, most = map(int, found.groups())
            yield prompt == server.post("/v1/messages/count_tokens", ASK[dialect](LONG)).json()["input_tokens"] and most == CONTEXT, (who, found.groups())
    for dialect in ("chat", "completions", "responses"):
        e = post(server, dialect, ASK[dialect](LONG)).json()["error"]
        yield e["code"] == "context_length_exceeded" and e["type"] == "invalid_request_error", ("LangChain, Codex: the code", e)
        e = post(server, dialect, {**ASK[dialect]("Hi"), LIMIT[dialect]: CONTEXT}).json()["error"]
        n = [int(n) for n in re.findall(r"\d+", e["message"])]
        yield e["code"] == "context_length_exceeded" and n == [CONTEXT, n[2] + n[3], n[2], CONTEXT], ("prompt and answer", e)


def test_responses_fail_in_the_stream(server):
    r = post(server, "responses", {**ASK["responses"](LONG), "stream": True})
    joined, problems = dialects.join_responses([(n, d) for n, d in dialects.events(r.body) if n != "response.failed"] +
                                               [(n, {**d, "response": {**d["response"], "error": None}}) for n, d in dialects.events(r.body)
                                                if n == "response.failed"])
    failed = dialects.events(r.body)[-1][1]
    yield r.status == 200 and r.headers["content-type"] == "text/event-stream" and not problems, (r, problems)
    yield failed["type"] == "response.failed" and failed["response"]["status"] == "failed", failed
    yield failed["response"]["error"]["code"] == "context_length_exceeded" and "maximum context length" in failed["response"]["error"]["message"], failed
    yield post(server, "responses", {**ASK["responses"]("Hi"), "stream": True, "temperature": 9}).status == 400, "other errors have a status"
    for dialect in ("chat", "messages"):
        yield post(server, dialect, {**ASK[dialect](LONG), "stream": True}).status == 400, dialect


def test_messages_fill_the_context(server):
    """max_tokens of Messages is what the client would take at most: it is lowered to what the context leaves."""
    free = {**ASK["messages"]("Repeat: apple"), "max_tokens": 128000, "temperature": 0}
    for stream in (False, True):
        r = post(server, "messages", {**free, "stream": stream})
        m = dialects.join_messages(dialects.events(r.body))[0] if stream else r.json()
        yield r.status == 200 and m["stop_reason"] == "end_turn", m
        nearly = "word " * 1900
        prompt = server.post("/v1/messages/count_tokens", ASK["messages"](nearly)).json()["input_tokens"]
        full = {**ASK["messages"](nearly), "ignore_eos": True, "thinking": OFF, "temperature": 0, "stream": stream}
        prompt = server.post("/v1/messages/count_tokens", full).json()["input_tokens"]
        for most, reason, count in ((128000, "model_context_window_exceeded", CONTEXT - prompt), (CONTEXT - prompt, "max_tokens", CONTEXT - prompt),
                                    (3, "max_tokens", 3), (None, "model_context_window_exceeded", CONTEXT - prompt)):
            r = post(server, "messages", {**full, **({"max_tokens": most} if most else {})})
            m = dialects.join_messages(dialects.events(r.body))[0] if stream else r.json()
            anthropic.types.Message.model_validate(m)
            yield m["stop_reason"] == reason and m["usage"]["output_tokens"] == count, (most, stream, m["stop_reason"], m["usage"])


def test_thinking_is_counted(server):
    for thinking in ({}, {"thinking": OFF}):
        body = {**ASK["messages"]("Repeat: apple"), "max_tokens": 60, "temperature": 0, **thinking}
        usages = [post(server, "messages", body).json()["usage"], dialects.join_messages(dialects.events(post(server, "messages", {**body, "stream": True}).body))[0]["usage"]]
        counts = [u["output_tokens_details"]["thinking_tokens"] for u in usages]
        yield counts[0] == counts[1] and (0 < counts[0] < usages[0]["output_tokens"] if not thinking else counts[0] == 0), (thinking, usages)


# ---- Responses: what is stored

def test_stored_items(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)

    def make(items, **fields):
        return client.responses.create(model="nano", input=items, **{"temperature": 0, "max_output_tokens": 300, **fields})

    first = make("Repeat: apple")
    whole = [{"role": "user", "content": "Repeat: apple"}, *[o.model_dump(exclude_none=True) for o in first.output], {"role": "user", "content": "Again."}]
    by_name = [{"role": "user", "content": "Repeat: apple"}, *[{"type": "item_reference", "id": o.id} for o in first.output], {"role": "user", "content": "Again."}]
    a, b = make(whole, store=False), make(by_name)
    yield a.output_text == b.output_text and a.usage.input_tokens == b.usage.input_tokens > first.usage.input_tokens, (a, b)
    count = lambda **fields: client.responses.input_tokens.count(model="nano", **fields)
    for fields in ({"input": whole}, {"input": by_name}, {"input": "Again.", "previous_response_id": first.id}):
        n = count(**fields)
        yield n.input_tokens == a.usage.input_tokens and n.object == "response.input_tokens", (fields, n)
    yield count(input="Again.", instructions="Be brief.", tools=[{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]).input_tokens > \
        count(input="Again.").input_tokens, "instructions and tools count"
    third = make([{"type": "item_reference", "id": b.output[-1].id}, {"role": "user", "content": "x"}])
    yield third.usage.input_tokens > 0, "of a response whose own input had references"
    item = first.output[-1].id
    for items, name in (([{"type": "item_reference", "id": "msg_resp_gone_0"}], "msg_resp_gone_0"), ([{"type": "item_reference", "id": item}] * 2, item),
                        ([{"type": "item_reference", "id": item + "0"}], item + "0"), ([{"type": "item_reference"}], '""'), ([{"type": "item_reference", "id": "_"}], '"_"')):
        for ask in (make, lambda items: count(input=items)):
            try:
                ask(items)
                yield False, f"accepted: {items}"
            except openai.BadRequestError as e:
                yield name in e.message and e.param.startswith("input["), (items, e)
    for items, name in (([{"type": "computer_call", "call_id": "c"}], "computer_call"), ([{"type": "compaction", "encrypted_content": "x"}], "compaction")):
        try:
            make(items)
            yield False, f"accepted: {items}"
        except openai.BadRequestError as e:
            yield name in e.message and e.param == "input[0].type", (items, e)
    try:
        make("Hi", background=True)
        yield False, "background"
    except openai.BadRequestError as e:
        yield e.param == "background", e


def test_input_items(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    call = [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c1", "output": "4"}]
    sent = [{"role": "user", "content": "one"}, {"type": "message", "role": "assistant", "content": "two"}, *call, {"role": "user", "content": [{"type": "input_text", "text": "three"}]}]
    r = client.responses.create(model="nano", input=sent, temperature=0)
    ITEMS = TypeAdapter(openai.types.responses.ResponseItemList)
    raw = server.get(f"/v1/responses/{r.id}/input_items?order=asc").json()
    ITEMS.validate_python(raw)
    texts = [v["content"][0]["text"] if v["type"] == "message" else v.get("output", v.get("arguments")) for v in raw["data"]]
    yield texts == ["one", "two", "{}", "4", "three"] and not raw["has_more"] and raw["first_id"] == raw["data"][0]["id"] and raw["last_id"] == raw["data"][-1]["id"], raw
    yield [v.id for v in client.responses.input_items.list(r.id)] == [v["id"] for v in raw["data"]][::-1], "the latest first"
    yield [v.id for v in client.responses.input_items.list(r.id, limit=2, order="asc")] == [v["id"] for v in raw["data"]], "page by page"
    more = client.responses.create(model="nano", input="four", temperature=0, previous_response_id=r.id)
    n = len(list(client.responses.input_items.list(more.id)))
    yield n == len(sent) + len(r.output) + 1, (n, more)
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("order=up", "order"), ("after=gone", "after"), ("after=", "after"),
                         ("after=%zz", "after")):
        e = server.get(f"/v1/responses/{r.id}/input_items?{query}")
        yield e.status == 400 and e.json()["error"]["param"] == param, (query, e)
    for path in ("/v1/responses/resp_gone/input_items", "/v1/responses//input_items", "/v1/responses/input_items"):
        yield server.get(path).status == 404, path
    e = server.post(f"/v1/responses/{r.id}/input_items", {})
    yield e.status == 405 and e.headers["allow"] == "OPTIONS, GET, HEAD, DELETE", e


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--only", help="part of a test's name")
    args = parser.parse_args()
    program, count = Program(args.binary), Count()
    with Server(program, "--context", CONTEXT, "--max-batch", 4, "--quiet", "--response-store", 4) as server:
        for name, test in list(globals().items()):
            if name.startswith("test_") and (not args.only or args.only in name):
                try:
                    count.group(name, test(server))
                except Exception as e:  # a test that breaks off has failed
                    count.group(name, [(False, f"{type(e).__name__}: {e}")])
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
