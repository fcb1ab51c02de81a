#!/usr/bin/env python3
"""deepinfer serve as agents and their libraries use it: what they look for in errors, how they send a conversation back.

The programs themselves run in tests/clients (make clients-test); here are the protocols alone, without further packages.
"""
import json
import random
import re
import sys

import anthropic.types
import anthropic.types.beta
import openai
import openai.types.responses
from pydantic import TypeAdapter

import dialects
from program import tests_in
from serving import Server, run_tests

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


def test_small_pool(server):
    """A pool that is smaller than the context is what an answer can fill."""
    with Server(server.program, "--context", CONTEXT, "--cache-blocks", 10, "--quiet") as small:
        yield small.get("/v1/models").json()["data"][0]["max_model_len"] == 640, "max_model_len"
        for dialect in ASK:
            r = post(small, dialect, {**ASK[dialect]("Repeat: apple"), **({"max_tokens": 128000} if dialect == "messages" else {})})
            yield r.status == 200, (dialect, r)
        r = post(small, "messages", ASK["messages"]("word " * 700))
        yield re.search(r"^prompt is too long: \d+ tokens > 640 maximum$", r.error()), r


def test_thinking_is_counted(server):
    for thinking in ({}, {"thinking": OFF}):
        body = {**ASK["messages"]("Repeat: apple"), "max_tokens": 60, "temperature": 0, **thinking}
        usages = [post(server, "messages", body).json()["usage"], dialects.join_messages(dialects.events(post(server, "messages", {**body, "stream": True}).body))[0]["usage"]]
        counts = [u["output_tokens_details"]["thinking_tokens"] for u in usages]
        yield counts[0] == counts[1] and (0 < counts[0] < usages[0]["output_tokens"] if not thinking else counts[0] == 0), (thinking, usages)


# ---- every answer is accepted as history

PRICE = {"name": "get_price", "description": "Look up the price of a product",
         "parameters": {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]}}
BUY = {"name": "note", "description": "Writes a note, free text"}
TOOLS = {"chat": [{"type": "function", "function": PRICE}, {"type": "custom", "custom": BUY}],
         "messages": [{"name": PRICE["name"], "description": PRICE["description"], "input_schema": PRICE["parameters"]}],
         "responses": [{"type": "function", **PRICE}, {"type": "custom", **BUY},
                       {"type": "namespace", "name": "shop", "description": "The shop", "tools": [{"type": "function", "name": "buy", "parameters": PRICE["parameters"]}]},
                       {"type": "tool_search", "execution": "client", "parameters": {"type": "object", "properties": {}}}]}
ASKS = ("Repeat: apple", "What does a umbrella cost? Look up the price of a guitar.", "Tell me a story.")


def requests_for(rng, dialect):
    """A request whose answer ends anywhere: after no token at all, inside a reasoning, a text, a call."""
    body = {**ASK[dialect](rng.choice(ASKS)), "temperature": rng.choice([0, 0, 1, 1.7]), "seed": rng.randrange(1000), LIMIT[dialect]: rng.choice([1, 2, 3, rng.randrange(4, 90), 200])}
    if rng.random() < 0.75:
        body["tools"] = TOOLS[dialect]
        choices = {"chat": ["auto", "required", "none"], "responses": ["auto", "required", "none"], "messages": [{"type": t} for t in ("auto", "any", "none")]}
        body["tool_choice"] = rng.choice(choices[dialect])
    if rng.random() < 0.5:
        body.update({"reasoning": {"effort": "none"}} if dialect == "responses" else {"thinking": OFF})
    if rng.random() < 0.25:
        body["stop_token_ids"] = [rng.randrange(4096) for _ in range(rng.choice([1, 300]))]
    if dialect != "responses" and rng.random() < 0.25:
        body["stop_sequences" if dialect == "messages" else "stop"] = rng.sample([" ", "a", "e", "."], 2)
    if rng.random() < 0.15:  # whatever the model would say
        body["logit_bias"] = {str(rng.randrange(4096)): 100 for _ in range(3)}
    return body


def turn_of(dialect, answer):
    """What a client appends: the answer as it came, the results of its calls, and the next message."""
    if dialect == "chat":
        m = answer["choices"][0]["message"]
        calls = [c["id"] for c in m.get("tool_calls", [])]
        return [m, *[{"role": "tool", "tool_call_id": c, "content": f"result of {c}"} for c in calls], {"role": "user", "content": "Go on."}]
    if dialect == "messages":
        calls = [b["id"] for b in answer["content"] if b["type"] == "tool_use"]
        return [{"role": "assistant", "content": answer["content"]},
                {"role": "user", "content": [*[{"type": "tool_result", "tool_use_id": c, "content": f"result of {c}"} for c in calls], {"type": "text", "text": "Go on."}]}]
    results = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output", "tool_search_call": "tool_search_output"}
    return [*answer["output"],
            *[{"type": results[i["type"]], "call_id": i["call_id"], **({"tools": []} if "search" in i["type"] else {"output": f"result of {i['call_id']}"})}
              for i in answer["output"] if i["type"] in results], {"role": "user", "content": "Go on."}]


def said(dialect, answer):
    """(reasoning, text, [(tool, strings of the arguments that are complete)]) of an answer."""
    if dialect == "chat":
        m = answer["choices"][0]["message"]
        calls = [(c["type"], c[c["type"]]) for c in m.get("tool_calls", [])]
        return m.get("reasoning_content") or "", m["content"] or "", [(f["name"], f["input"] if t == "custom" else f["arguments"]) for t, f in calls]
    if dialect == "messages":
        blocks = answer["content"]
        return ("".join(b.get("thinking", "") for b in blocks), "".join(b.get("text", "") for b in blocks),
                [(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"])
    items = answer["output"]
    return ("".join(i["content"][0]["text"] for i in items if i["type"] == "reasoning"), "".join(i["content"][0]["text"] for i in items if i["type"] == "message"),
            [(i.get("name", "tool_search"), i.get("input") or i.get("arguments") or "") for i in items if "call" in i["type"]])


def arguments_of(text):
    """The strings that a prompt shows of these arguments."""
    try:
        v = json.loads(text) if isinstance(text, str) else text
        return [x for x in v.values() if isinstance(x, str)] if isinstance(v, dict) else [text]
    except ValueError:
        return [text]


def test_answers_are_history(server):
    rng = random.Random(7)
    kinds, jobs = {}, []
    for n in range(240):
        dialect = ("chat", "messages", "responses")[n % 3]
        body = requests_for(rng, dialect)
        r = post(server, dialect, {**body, "stream": n % 2 == 1, **({"stream_options": {"include_usage": True}} if n % 2 and dialect == "chat" else {})})
        if b"nothing may follow here" in r.body and "tools" in body and body["tool_choice"] not in ("auto", {"type": "auto"}):
            continue  # a call was demanded, and ids that stop or are wanted above all leave none
        if r.status != 200:
            yield False, (dialect, body, r)
            continue
        answer = dialects.JOIN[dialect](dialects.events(r.body))[0] if n % 2 else r.json()
        reasoning, text, calls = said(dialect, answer)
        shape = (dialect, "r" * bool(reasoning) + "t" * bool(text) + "c" * bool(calls))
        kinds[shape] = kinds.get(shape, 0) + 1
        key = "input" if dialect == "responses" else "messages"
        begin = [{"role": "user", "content": body[key]}] if isinstance(body[key], str) else body[key]
        again = {k: v for k, v in body.items() if k not in ("stop_token_ids", "logit_bias")}
        again = {**again, key: begin + turn_of(dialect, answer), LIMIT[dialect]: 1, "stream": False}
        r = post(server, dialect, again)
        yield r.status == 200, (dialect, again[key], r)
        jobs.append((dialect, again, text, calls))
    out = server.program.run("render", "--jsonl", stdin="".join(json.dumps({"protocol": d, "request": q}) + "\n" for d, q, _, _ in jobs)).out
    for (dialect, again, text, calls), line in zip(jobs, out.split(b"\n")):
        prompt = json.loads(line).get("prompt", line.decode())
        turn = prompt.split("<｜Assistant｜>")
        if dialect == "responses" and len(again["input"]) == 2:  # no item, no turn
            yield len(turn) == 2, (again, prompt)
            continue
        yield len(turn) == 3 and turn[1].count("<｜User｜>") == 1, (dialect, "one turn of the assistant, then the user", prompt)
        shown = turn[1].split("</think>", 1)[-1]
        yield shown.startswith(text), (dialect, text, shown)
        yield all(f'invoke name="{name}"' in shown or f'::{name}"' in shown for name, _ in calls), (dialect, calls, shown)
        yield all(value in shown for _, a in calls for value in arguments_of(a)), (dialect, calls, shown)
        yield shown.count("<tool_result>") == len(calls), (dialect, calls, shown)
    for dialect in ("chat", "messages", "responses"):
        for shape in ("", "r", "t", "c"):
            yield any(d == dialect and (shape in s if shape else not s) for d, s in kinds), ("an answer of this kind was among them", dialect, shape, kinds)


def test_small_histories(server):
    """What clients make of an empty answer."""
    for dialect, turn in [("chat", {"role": "assistant", "content": None, "reasoning_content": "I think."}), ("chat", {"role": "assistant", "content": None}),
                          ("chat", {"role": "assistant", "content": ""}), ("chat", {"role": "assistant", "content": []}), ("messages", {"role": "assistant", "content": []}),
                          ("messages", {"role": "assistant", "content": ""}),
                          ("messages", {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]})]:
        r = post(server, dialect, {"messages": [*ASK[dialect]("Hi")["messages"], turn, *ASK[dialect]("Hi")["messages"]], "max_tokens": 1})
        yield r.status == 200, (dialect, turn, r)
    r = post(server, "chat", {"messages": [*ASK["chat"]("Hi")["messages"], {"role": "assistant"}]})
    yield r.status == 400, r


# ---- Messages: what goes on, tools that the client brings, pictures

def test_messages_continue(server):
    ask = ASK["messages"]("Repeat: apple")["messages"]
    count = lambda messages, **fields: server.post("/v1/messages/count_tokens", {"messages": messages, **fields}).json()["input_tokens"]
    for thinking in ({}, {"thinking": OFF}):
        for last in ("app", [{"type": "text", "text": "app"}]):
            messages = [*ask, {"role": "assistant", "content": last}]
            yield count(messages, **thinking) <= count(ask, **thinking) + 3, "a text that goes on takes no turn of its own"
            for tools in ({}, {"tools": TOOLS["messages"]}):
                body = {"messages": messages, "max_tokens": 60, "temperature": 0, **thinking, **tools}
                r = post(server, "messages", body).json()
                joined = dialects.join_messages(dialects.events(post(server, "messages", {**body, "stream": True}).body))[0]
                yield [b["type"] for b in r["content"]] in (["text"], []) and dialects.plain(joined) == dialects.plain(r), (r, joined)
        r = post(server, "messages", {"messages": [*ask, {"role": "assistant", "content": []}], "max_tokens": 80, "temperature": 0, **thinking}).json()
        plain = post(server, "messages", {"messages": ask, "max_tokens": 80, "temperature": 0, **thinking}).json()
        yield dialects.plain(r["content"]) == dialects.plain(plain["content"]), (r, plain)
    again = [*ask, {"role": "assistant", "content": [{"type": "thinking", "thinking": "The user", "signature": "s"}]}]
    r = post(server, "messages", {"messages": again, "max_tokens": 80, "temperature": 0}).json()
    yield r["content"][0]["type"] == "thinking" and not r["content"][0]["thinking"].startswith("The user"), r
    said = [*ask, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get_price", "input": {}}]}]
    yield post(server, "messages", {"messages": said, "tools": TOOLS["messages"]}).status == 400, "a call is answered by its result"


def test_tools_of_the_client(server):
    """Tools without a schema, which the client runs; the SDK's own types say what a call may hold."""
    base = {**ASK["messages"]("Hi"), "max_tokens": 1}
    for type, name in (("bash_20241022", "bash"), ("bash_20250124", "bash"), ("text_editor_20241022", "str_replace_editor"), ("text_editor_20250124", "str_replace_editor"),
                       ("text_editor_20250429", "str_replace_based_edit_tool"), ("text_editor_20250728", "str_replace_based_edit_tool"), ("memory_20250818", "memory")):
        q = {**base, "tools": [{"type": type, "name": name, **({"max_characters": 100} if "editor" in type else {})}]}
        r = post(server, "messages", q)
        yield r.status == 200, (type, r)
        prompt = json.loads(server.program.run("render", "--jsonl", stdin=json.dumps({"protocol": "messages", "request": q}) + "\n").out)["prompt"]
        shown = json.loads(next(line for line in prompt.split("\n") if line.startswith('{"name"')))
        yield shown["name"] == name and shown["description"] and shown["parameters"]["type"] == "object", shown
        keys = set(shown["parameters"]["properties"])
        if name == "memory":
            kinds = [v for k, v in vars(anthropic.types.beta).items() if k.startswith("BetaMemoryTool20250818") and k.endswith("Command") and hasattr(v, "model_fields")]
            yield len(kinds) == 6 and set().union(*(set(k.model_fields) for k in kinds)) == keys, (kinds, keys)
            yield sorted(k.model_fields["command"].annotation.__args__[0] for k in kinds) == sorted(shown["parameters"]["properties"]["command"]["enum"]), kinds
        elif "editor" in type:
            commands = shown["parameters"]["properties"]["command"]["enum"]
            yield ("undo_edit" in commands) == (name == "str_replace_editor") and ("insert_text" in keys) == (type == "text_editor_20250728"), shown
    for type in ("web_search_20250305", "code_execution_20250522", "computer_20250124", "bash", "memory_"):
        r = post(server, "messages", {**base, "tools": [{"type": type, "name": "x"}]})
        yield r.status == 400 and "tools[0].type" in r.error() and type in r.error(), r


def test_pictures_in_results(server):
    """A tool's picture must not end a session for ever; others are refused by their place."""
    data = "iVBORw0KGgo="
    image, url = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, "data:image/png;base64," + data
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    for blocks in ([image], [image, {"type": "text", "text": "x"}], [document]):
        messages = [*ASK["messages"]("Hi")["messages"], {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get_price", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": blocks}]}]
        r = post(server, "messages", {"messages": messages, "max_tokens": 1, "tools": TOOLS["messages"]})
        yield r.status == 200, r
    calls = [{"type": "function_call", "call_id": "a", "name": "get_price", "arguments": "{}"}, {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": url}]}]
    r = post(server, "responses", {"input": calls, "max_output_tokens": 1})
    yield r.status == 200, r
    chat = [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_price", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    r = post(server, "chat", {"messages": chat, "max_tokens": 1})
    yield r.status == 200, r
    shown = server.post("/tokenize", {"messages": chat}).json()["tokens"]
    text = server.post("/detokenize", {"tokens": shown}).json()["prompt"]
    yield "<tool_result>[A picture stood here. Pictures are not supported.]</tool_result>" in text, text
    r = post(server, "messages", {"messages": [{"role": "user", "content": [image]}], "max_tokens": 1})
    yield r.status == 400 and "messages[0].content[0]" in r.error(), r


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


if __name__ == "__main__":
    sys.exit(run_tests(__doc__, [], tests_in(globals()), ["--context", CONTEXT, "--max-batch", 4, "--quiet", "--response-store", 4]))
