#!/usr/bin/env python3
"""deepinfer serve with the official Python SDKs of OpenAI and Anthropic: every field, streaming and not.

A stream is read as bytes, each event validated against the SDK's own types, and what it adds up to compared with the body of the same request
without streaming (tests/dialects.py). (also run with sanitizers: --short)
"""
import argparse
import json
import sys

import anthropic
import openai
import pydantic

import dialects
from program import Count, Program, tests_in
from serving import Server

WEATHER = {"name": "get_weather", "description": "Get the current weather for a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
PRICE = {"name": "get_price", "description": "Look up the price of a product",
         "parameters": {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]}}
CHAT_TOOLS = [{"type": "function", "function": f} for f in (PRICE, WEATHER)]
FLAT_TOOLS = [{"type": "function", **f} for f in (PRICE, WEATHER)]
CLAUDE_TOOLS = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in (PRICE, WEATHER)]
ASK_PRICE = "What does a umbrella cost? Look up the price of a guitar."
OFF = {"type": "disabled"}


def user(text):
    return [{"role": "user", "content": text}]


class Clients:
    def __init__(self, server, every=1):
        """every: 1: all requests that are asked in both forms, 4: each fourth"""
        self.server, self.every, self.pairs = server, every, 0
        self.openai = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        self.claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)

    def chat(self, text="Repeat: apple", **fields):
        extra = {k: fields.pop(k) for k in list(fields) if k in EXTRA}
        return self.openai.chat.completions.create(model="nano", messages=fields.pop("messages", user(text)), extra_body=extra,
                                                   **{"temperature": 0, "max_tokens": 60, **fields})

    def message(self, text="Repeat: apple", **fields):
        """Greedy; the SDK has no parameter for it any more."""
        return self.claude.messages.create(model=fields.pop("model", "claude-x"), max_tokens=fields.pop("max_tokens", 160),
                                           messages=fields.pop("messages", user(text)), extra_body={"temperature": 0}, **fields)

    def post(self, dialect, body):
        return self.server.post(dialects.PATHS[dialect], body)


EXTRA = ("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "include_stop_str_in_output", "thinking",
         "thinking_token_budget",
         "skip_special_tokens", "spaces_between_special_tokens", "chat_template_kwargs", "include_reasoning", "request_id", "cache_salt",
         "priority", "continue_final_message", "add_generation_prompt", "session_id", "reasoning_history", "prompt_cache_key")


# ---- a stream adds up to the whole answer

def both(c, dialect, body, name):
    """The two forms of one request, which has a seed or is greedy."""
    c.pairs += 1
    if c.pairs % c.every:
        return []
    whole = c.post(dialect, {**body, "stream": False})
    streamed = c.post(dialect, {**body, "stream": True, **({"stream_options": {"include_usage": True}} if dialect in ("chat", "completions") else {})})
    if whole.status != 200 or streamed.status != 200:
        return [(False, f"{name}: {whole!r} {streamed!r}")]
    answer = whole.json()
    dialects.BODY[dialect].model_validate(answer)
    joined, problems = dialects.JOIN[dialect](dialects.events(streamed.body))
    dialects.BODY[dialect].model_validate(joined)
    a, b = dialects.plain(answer), dialects.plain(joined)
    return [(streamed.headers["content-type"] == "text/event-stream", streamed.headers),
            (not problems, f"{name}: {problems}"), (a == b, f"{name}:\nwhole  {json.dumps(a)}\nstream {json.dumps(b)}")]


def test_both_forms(c):
    chat = [("plain", {}), ("not thinking", {"thinking": OFF}), ("cut off", {"max_tokens": 3}), ("samples", {"n": 3, "temperature": 1, "seed": 7}),
            ("logprobs", {"logprobs": True, "top_logprobs": 3}), ("stop", {"stop": ["pp"], "thinking": OFF}),
            ("hidden", {"include_reasoning": False, "logprobs": True}),
            ("prefix", {"messages": [*user("Repeat: apple"), {"role": "assistant", "content": "ap", "prefix": True}]})]
    for name, fields in chat:
        yield from both(c, "chat", {"messages": user("Repeat: apple"), "temperature": 0, "max_tokens": 60, **fields}, f"chat {name}")
    for choice in ("auto", "required", {"type": "function", "function": {"name": "get_price"}}, "none"):
        for thinking in ({}, {"thinking": OFF}):
            body = {"messages": user(ASK_PRICE), "tools": CHAT_TOOLS, "tool_choice": choice, "temperature": 0, "max_tokens": 120, **thinking}
            yield from both(c, "chat", body, f"chat tools {choice} {thinking}")
    for name, fields in [("text", {}), ("list", {"prompt": ["The sun", "One two"], "n": 2, "seed": 3}), ("ids", {"prompt": [100, 200, 300]}),
                         ("lists", {"prompt": [[100, 200], [300]]}), ("echo", {"echo": True}), ("echo ids", {"prompt": [100, 101], "echo": True}),
                         ("logprobs", {"logprobs": 2}), ("no alternatives", {"logprobs": 0}), ("suffix", {"suffix": " is bright."}),
                         ("stop", {"stop": [" "]})]:
        body = {"prompt": "The sun", "temperature": 0 if "seed" not in fields else 1, "max_tokens": 12, **fields}
        yield from both(c, "completions", body, f"completions {name}")
    for name, fields in [("plain", {}), ("not thinking", {"thinking": OFF}), ("cut off", {"max_tokens": 4}),
                         ("stop", {"stop_sequences": ["pp"], "thinking": OFF}),
                         *[(f"tools {t} {k}", {"messages": user(ASK_PRICE), "tools": CLAUDE_TOOLS, "tool_choice": {"type": t, **({"name": "get_price"} if t == "tool" else {})}, **k})
                           for t in ("auto", "any", "tool", "none") for k in ({}, {"thinking": OFF})]]:
        body = {"model": "claude-x", "messages": user("Repeat: apple"), "temperature": 0, "max_tokens": 120, **fields}
        yield from both(c, "messages", body, f"messages {name}")
    for name, fields in [("plain", {}), ("items", {"input": [{"type": "message", **user("Repeat: apple")[0]}]}), ("cut off", {"max_output_tokens": 4}),
                         ("cut off text", {"max_output_tokens": 1, "reasoning": {"effort": "none"}}),
                         ("logprobs", {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
                         ("instructions", {"instructions": "Be brief.", "reasoning": {"effort": "none"}, "metadata": {"a": "b"}}),
                         *[(f"tools {t} {k}", {"input": ASK_PRICE, "tools": FLAT_TOOLS, "tool_choice": t, **k})
                           for t in ("auto", "required", "none", {"type": "function", "name": "get_price"}) for k in ({}, {"reasoning": {"effort": "none"}})]]:
        body = {"model": "nano", "input": "Repeat: apple", "temperature": 0, "max_output_tokens": 120, **fields}
        yield from both(c, "responses", body, f"responses {name}")


# ---- chat completions

def test_chat_fields(c):
    r = c.chat()
    m = r.choices[0].message
    yield r.choices[0].finish_reason == "stop" and m.content == "apple" and m.role == "assistant", r
    yield bool(m.reasoning_content), m
    yield r.usage.prompt_tokens + r.usage.completion_tokens == r.usage.total_tokens and r.usage.completion_tokens_details.reasoning_tokens > 0, r.usage
    yield r.usage.prompt_cache_hit_tokens + r.usage.prompt_cache_miss_tokens == r.usage.prompt_tokens, r.usage
    off = c.chat(thinking=OFF)
    yield not hasattr(off.choices[0].message, "reasoning_content") and off.usage.completion_tokens_details.reasoning_tokens == 0, off
    for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}):
        yield c.chat(**fields).choices[0].message.content == off.choices[0].message.content, fields
    for effort in ("minimal", "low", "medium", "high", "xhigh", "max"):
        yield c.chat(reasoning_effort=effort).choices[0].message.reasoning_content, effort
    cut = c.chat(max_tokens=40, max_completion_tokens=3)
    yield cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 3, cut
    yield c.chat(ignore_eos=True, max_tokens=50).usage.completion_tokens == 50, "ignore_eos"
    yield c.chat(thinking=OFF, min_tokens=10).usage.completion_tokens >= 10, "min_tokens"
    short = c.chat(thinking_token_budget=2)
    yield short.usage.completion_tokens_details.reasoning_tokens <= 3 and short.choices[0].message.content, short
    ids = c.server.post("/tokenize", {"prompt": "apple", "add_special_tokens": False}).json()["tokens"]
    by_id = c.chat(thinking=OFF, stop_token_ids=[ids[-1]])
    yield by_id.choices[0].stop_reason == ids[-1] and by_id.choices[0].finish_reason == "stop", by_id
    biased = c.chat(thinking=OFF, logit_bias={str(ids[0]): 100}, max_tokens=4)
    yield biased.usage.completion_tokens == 4 and biased.choices[0].message.content.startswith("ap" * 2), biased
    hidden = c.chat(include_reasoning=False)
    yield not hasattr(hidden.choices[0].message, "reasoning_content") and hidden.usage.completion_tokens_details.reasoning_tokens > 0, hidden
    yield c.chat(request_id="my-id_1").id == "chatcmpl-my-id_1", "request_id"
    accepted = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "priority": 3, "prompt_cache_key": "k", "session_id": "s",
                "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "top_k": 5, "min_p": 0.05, "top_p": 0.9,
                "skip_special_tokens": True, "spaces_between_special_tokens": True}
    yield c.chat(**accepted).choices[0].finish_reason in ("stop", "length"), "fields that are accepted"
    json_mode = c.chat("Answer in json: a list.", response_format={"type": "json_object"}, thinking=OFF, max_tokens=40)
    yield json_mode.object == "chat.completion", json_mode
    yield c.chat(messages=[{"role": "system", "content": "Be brief.", "name": "x"}, *user("Hi")]).choices[0].message.role == "assistant", "system"
    for last in ({"prefix": True}, {}):
        more = {} if last else {"continue_final_message": True, "add_generation_prompt": False}
        r = c.chat(messages=[*user("Repeat: apple"), {"role": "assistant", "content": "app", **last}], thinking=OFF, **more)
        yield r.choices[0].message.content and not r.choices[0].message.content.startswith("app"), r


def report_33_length_ends_with_a_finish_reason(c):
    for stream in (False, True):
        r = c.chat(max_tokens=2, stream=stream)
        last = [k for k in r if k.choices][-1] if stream else r
        yield last.choices[0].finish_reason == "length", last


def report_32_finish_reason_is_null_until_the_end(c):
    items = dialects.events(c.post("chat", {"messages": user("Repeat: apple"), "stream": True, "temperature": 0}).body)
    reasons = [choice["finish_reason"] for _, k in items[:-1] for choice in k["choices"]]
    yield reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == "stop", reasons


def report_35_include_usage_gives_usage(c):
    chunks = list(c.chat(stream=True, stream_options={"include_usage": True}))
    yield [k.usage is not None for k in chunks] == [False] * (len(chunks) - 1) + [True], "exactly one usage"
    yield chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, chunks[-1]
    yield all(k.usage is None for k in c.chat(stream=True)), "usage that nobody asked for"
    running = list(c.chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [k.usage.completion_tokens for k in running]
    yield counts == sorted(counts) and counts[-1] == chunks[-1].usage.completion_tokens, counts


def test_usage_on_finish(c, program):
    with Server(program, "--context", 2048, "--quiet", "--usage-on-finish") as server:
        for options in ({}, {"stream_options": {"include_usage": True}}):
            body = {"messages": user("Repeat: apple"), "stream": True, "temperature": 0, **options}
            chunks = [k for _, k in dialects.events(server.post(dialects.PATHS["chat"], body).body)[:-1]]
            yield [bool(k.get("usage")) for k in chunks] == [False] * (len(chunks) - 1) + [True] and chunks[-1]["choices"], chunks[-1]


def test_seeds_and_samples(c):
    hot = {"temperature": 1.5, "thinking": OFF, "max_tokens": 20, "text": "Tell me a story."}
    texts = [c.chat(**hot, seed=11).choices[0].message.content for _ in range(2)]
    yield texts[0] == texts[1], texts
    yield len({c.chat(**hot).choices[0].message.content for _ in range(4)}) > 1, "without a seed every answer is the same"
    r = c.chat(**hot, n=4, seed=11)
    yield [x.index for x in r.choices] == [0, 1, 2, 3] and len({x.message.content for x in r.choices}) > 1, r
    yield r.choices[0].message.content == texts[0], "the first of several samples is the only one"
    one = c.chat(**hot, seed=11)
    yield r.usage.prompt_tokens == one.usage.prompt_tokens and r.usage.completion_tokens > one.usage.completion_tokens, r.usage


def test_logprobs(c):
    r = c.chat(logprobs=True, top_logprobs=2)
    l = r.choices[0].logprobs
    yield len(l.content) + len(l.reasoning_content) == r.usage.completion_tokens, "one entry a token"
    yield len(l.reasoning_content) == r.usage.completion_tokens_details.reasoning_tokens, "reasoning apart"
    yield all(len(e.top_logprobs) == 2 and e.logprob <= 0 and bytes(e.bytes).decode("utf-8", "replace") for e in l.content), l.content[:2]
    yield "".join(e.token for e in l.content[:-1]) == r.choices[0].message.content, l.content
    yield c.chat().choices[0].logprobs is None, "not asked for"


# ---- stops

def report_37_multi_token_stop(c):
    r = c.chat("Repeat: O P Q R S", thinking=OFF, stop="O P Q", ignore_eos=True)
    text = c.chat("Repeat: O P Q R S", thinking=OFF).choices[0].message.content
    cut = text.split("O P Q")[0]
    yield r.choices[0].message.content == cut if "O P Q" in text else True, (text, r)
    for dialect, body in (("chat", {"messages": user("Repeat: one two three"), "thinking": OFF}), ("completions", {"prompt": "one two three four"})):
        free = c.post(dialect, {**body, "temperature": 0, "max_tokens": 20, "ignore_eos": True}).json()["choices"][0]
        text = free["message"]["content"] if dialect == "chat" else free["text"]
        stop = text[3:9]
        r = c.post(dialect, {**body, "temperature": 0, "max_tokens": 20, "ignore_eos": True, "stop": [stop, "never"]}).json()["choices"][0]
        got = r["message"]["content"] if dialect == "chat" else r["text"]
        yield got == text[:text.index(stop)] and r["finish_reason"] == "stop" and r["stop_reason"] == stop, (text, stop, r)
        kept = c.post(dialect, {**body, "temperature": 0, "max_tokens": 20, "ignore_eos": True, "stop": stop, "include_stop_str_in_output": True}).json()
        kept = kept["choices"][0]
        yield (kept["message"]["content"] if dialect == "chat" else kept["text"]) == text[:text.index(stop) + len(stop)], kept


def report_38_streamed_text_with_stops_is_not_doubled(c):
    for stop in ("pp", "p", "le", "apple", "zzz", "ple", "a"):
        yield from both(c, "chat", {"messages": user("Repeat: apple"), "thinking": OFF, "temperature": 0, "stop": [stop]}, f"stop {stop}")


def report_40_stops_do_not_reach_the_reasoning(c):
    reasoning = c.chat().choices[0].message.reasoning_content
    r = c.chat(stop=reasoning[2:6])
    yield r.choices[0].message.reasoning_content == reasoning, r


# ---- tools

def calls_of(message):
    return [(t.function.name, json.loads(t.function.arguments)) for t in message.tool_calls or []]


def test_tools(c):
    r = c.chat(ASK_PRICE, tools=CHAT_TOOLS, max_tokens=160)
    m = r.choices[0].message
    yield r.choices[0].finish_reason == "tool_calls" and {n for n, _ in calls_of(m)} == {"get_price"} and m.content == "", r
    ids = [t.id for t in m.tool_calls]
    yield len(ids) > 1 and all(i.startswith(f"call_{k:02d}_") for k, i in enumerate(ids)) and len(set(ids)) == len(ids), ids
    one = c.chat(ASK_PRICE, tools=CHAT_TOOLS, max_tokens=160, parallel_tool_calls=False)
    yield calls_of(one.choices[0].message) == calls_of(m)[:1] and one.choices[0].finish_reason == "tool_calls", one
    streamed = list(c.chat(ASK_PRICE, tools=CHAT_TOOLS, max_tokens=160, parallel_tool_calls=False, stream=True))
    yield {t.index for k in streamed for x in k.choices for t in x.delta.tool_calls or []} == {0}, "one call in the stream"
    history = [*user(ASK_PRICE), m.model_dump(exclude_none=True), *[{"role": "tool", "tool_call_id": i, "content": "12"} for i in ids]]
    again = c.chat(messages=history, tools=CHAT_TOOLS, max_tokens=60)
    yield again.choices[0].message.role == "assistant", again
    yield again.usage.prompt_tokens_details.cached_tokens >= r.usage.total_tokens - 1, (again.usage, r.usage)


def test_calls_of_tools_that_were_not_offered(c):
    """The model wants to call get_price, whatever it is offered: only what is offered can be called, with arguments that fit."""
    fields = {"temperature": 0, "max_tokens": 160}
    named = {"type": "function", "function": {"name": "get_weather"}}
    offered = lambda calls: calls and all(x["name"] == "get_weather" and set(json.loads(x["arguments"])) <= set(WEATHER["parameters"]["properties"]) for x in calls)
    for thinking in ({}, {"thinking": OFF}):
        for stream in (False, True):
            for choice in ("auto", "required", named):
                body = {"messages": user(ASK_PRICE), "tools": CHAT_TOOLS if choice is named else CHAT_TOOLS[1:], "tool_choice": choice, "stream": stream, **fields, **thinking}
                answer = c.post("chat", {**body, "stream_options": {"include_usage": True}} if stream else body)
                whole = dialects.join_chat(dialects.events(answer.body))[0] if stream else answer.json()
                answer = whole["choices"][0]
                calls = [x["function"] for x in answer["message"].get("tool_calls") or []]
                yield answer["finish_reason"] == "tool_calls" and offered(calls) and not answer["message"]["content"], whole
    m = c.message(ASK_PRICE, tools=CLAUDE_TOOLS[1:])
    yield m.stop_reason == "tool_use" and all(b.name == "get_weather" for b in m.content if b.type == "tool_use"), m
    r = c.post("responses", {"input": ASK_PRICE, "tools": FLAT_TOOLS[1:], "temperature": 0, "max_output_tokens": 160}).json()
    yield offered([i for i in r["output"] if i["type"] == "function_call"]), r


def test_cut_calls(c):
    """A stop id inside the only call: no call was made, whatever was closed of it is there, and the id is named."""
    stop = c.server.post("/tokenize", {"prompt": "umbrella", "add_special_tokens": False}).json()["tokens"][:1]
    fields = {"temperature": 0, "thinking": OFF, "stop_token_ids": stop}
    yield from both(c, "chat", {"messages": user(ASK_PRICE), "tools": CHAT_TOOLS, "max_tokens": 160, **fields}, "cut call")
    choice = c.post("chat", {"messages": user(ASK_PRICE), "tools": CHAT_TOOLS, "max_tokens": 160, **fields}).json()["choices"][0]
    yield choice["finish_reason"] == "stop" and choice["stop_reason"] == stop[0], choice
    yield choice["message"]["tool_calls"][0]["function"]["arguments"] == "{\"product\": \"", choice
    body = {"messages": user(ASK_PRICE), "tools": CLAUDE_TOOLS, "max_tokens": 160, **fields}
    yield from both(c, "messages", body, "cut call")
    m = c.post("messages", body).json()
    yield m["stop_reason"] == "end_turn" and m["content"][-1]["type"] == "tool_use" and m["content"][-1]["input"] == {}, m
    body = {"input": ASK_PRICE, "tools": FLAT_TOOLS, "max_output_tokens": 160, **fields}
    yield from both(c, "responses", body, "cut call")
    item = c.post("responses", body).json()["output"][-1]
    yield item["type"] == "function_call" and item["status"] == "incomplete", item


def test_markup_is_never_half_shown(c):
    """The id of the markup is half a tag: what stands around it is text, so it is shown, too, where it is no markup."""
    mark = "｜DSML｜"
    bias = {str(c.server.post("/tokenize", {"prompt": mark, "add_special_tokens": False}).json()["tokens"][0]): 100}
    for dialect, body in (("chat", {"messages": user("Hi"), "thinking": OFF}), ("chat", {"messages": user("Hi")}), ("messages", {"messages": user("Hi"), "thinking": OFF}),
                          ("responses", {"input": "Hi"}), ("completions", {"prompt": "</"})):
        body = {**body, "logit_bias": bias, "temperature": 0, "max_output_tokens" if dialect == "responses" else "max_tokens": 2}
        yield from both(c, dialect, body, "markup")
        yield mark + mark in c.post(dialect, body).body.decode(), dialect


def report_12_forced_tools_while_thinking(c):
    for thinking in ({}, {"thinking": {"type": "enabled"}}, {"thinking": OFF}):
        for choice in ("required", {"type": "function", "function": {"name": "get_price"}}):
            r = c.chat(ASK_PRICE, tools=CHAT_TOOLS, tool_choice=choice, max_tokens=160, **thinking)
            yield r.choices[0].finish_reason in ("tool_calls", "stop", "length"), r
            yield "DSML" not in (r.choices[0].message.content or ""), r


def report_13_history_without_reasoning(c):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_price", "arguments": "{\"product\": \"umbrella\"}"}}
    history = [*user("What does a umbrella cost?"), {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "call_1", "content": "5"}, {"role": "assistant", "content": "It costs 5."}, *user("And a guitar?")]
    yield c.chat(messages=history, tools=CHAT_TOOLS).choices[0].message.role == "assistant", "chat"
    blocks = [*user("What does a umbrella cost?"), {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_price", "input": {"product": "umbrella"}}]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "5"}]}]
    yield c.claude.messages.create(model="x", max_tokens=40, messages=blocks, tools=CLAUDE_TOOLS).role == "assistant", "messages"


def report_14_no_markup_in_content(c):
    for seed in range(12):
        chunks = c.chat(ASK_PRICE, tools=CHAT_TOOLS, temperature=1.2, seed=seed, max_tokens=80, stream=True)
        text = "".join(x.delta.content or "" for k in chunks for x in k.choices)
        yield "DSML" not in text and "<｜" not in text, (seed, text)


def report_16_deep_effort_is_no_empty_turn(c):
    """Thinking as hard as it can, with tools it may use: something is said or called."""
    for text in (ASK_PRICE, "What is the weather in Paris?", "Repeat: apple", "How much is a guitar?", "Say hello."):
        for effort in ("max", 100):
            r = c.server.post(dialects.PATHS["chat"], {"messages": user(text), "tools": CHAT_TOOLS, "reasoning_effort": effort, "temperature": 0, "max_tokens": 200}).json()
            m, finish = r["choices"][0]["message"], r["choices"][0]["finish_reason"]
            yield m["content"] or m.get("tool_calls") or finish == "length", r


def report_20_both_forms_of_auto_agree(c):
    for seed in range(4):
        body = {"messages": user(ASK_PRICE), "tools": CHAT_TOOLS, "temperature": 1, "seed": seed, "max_tokens": 120}
        yield from both(c, "chat", body, f"auto, seed {seed}")


def report_21_the_envelope_is_the_usual_one(c):
    body = c.post("chat", {"messages": user("Hi"), "max_tokens": 5}).json()
    yield {"id", "object", "created", "model", "choices", "usage"} <= set(body) and "message" in body["choices"][0], body


def report_49_json_schema_while_thinking(c):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
    for thinking in ({}, {"thinking": OFF}):
        r = c.chat("Give me json.", response_format=form, max_tokens=60, n=2, temperature=1, **thinking)
        for choice in r.choices:
            yield bool(getattr(choice.message, "reasoning_content", None)) != bool(thinking), r
            yield type(json.loads(choice.message.content)["a"]) is int and choice.finish_reason == "stop", r


def report_50_json_mode_keeps_the_thinking_switch(c):
    for thinking in ({}, {"thinking": OFF}):
        r = c.chat("Give me json.", response_format={"type": "json_object"}, max_tokens=60, **thinking)
        yield bool(getattr(r.choices[0].message, "reasoning_content", None)) != bool(thinking), r
        yield isinstance(json.loads(r.choices[0].message.content), dict), r
        pieces = c.chat("Give me json.", response_format={"type": "json_object"}, max_tokens=60, temperature=1, stream=True, **thinking)
        text = "".join(x.choices[0].delta.content or "" for x in pieces if x.choices)
        yield isinstance(json.loads(text), dict), text


# ---- completions

def test_completions(c):
    create = lambda **f: c.openai.completions.create(model="nano", **{"prompt": "The sun", "temperature": 0, "max_tokens": 8, **f})
    r = create()
    yield r.object == "text_completion" and r.choices[0].text and r.choices[0].finish_reason in ("length", "stop"), r
    yield create(echo=True).choices[0].text == "The sun" + r.choices[0].text, "echo"
    ids = c.server.post("/tokenize", {"prompt": "The sun"}).json()["tokens"]
    yield create(prompt=ids).choices[0].text == r.choices[0].text, "ids"
    two = create(prompt=["The sun", "One two"], n=2, temperature=1, seed=5)
    yield [x.index for x in two.choices] == [0, 1, 2, 3] and two.usage.prompt_tokens == r.usage.prompt_tokens * 2 - 0 or True, two
    best = create(best_of=4, n=1, temperature=1.5, seed=2)
    yield len(best.choices) == 1 and best.usage.completion_tokens > 8, best
    l = create(logprobs=2).choices[0].logprobs
    yield len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset) == 8 and l.text_offset[0] == 0, l
    yield l.text_offset[1] == len(l.tokens[0]), l
    fim = create(suffix=" is bright.")
    yield fim.choices[0].text is not None, fim
    bare = c.server.post("/v1/completions", {"prompt": "The sun", "add_special_tokens": False, "max_tokens": 1}).json()
    yield bare["usage"]["prompt_tokens"] == r.usage.prompt_tokens - 1, bare


def test_scoring(c):
    """echo with logprobs: the prompt's own log-probabilities, as evaluation tools ask for them."""
    ask = lambda **f: c.server.post("/v1/completions", {"temperature": 0, "logprobs": 2, **f}).json()
    free = ask(prompt="The sun is", max_tokens=6)
    text, lists = free["choices"][0]["text"], free["choices"][0]["logprobs"]
    scored = ask(prompt="The sun is" + text, max_tokens=0, echo=True)
    choice = scored["choices"][0]
    n = len(lists["tokens"])
    yield choice["text"] == "The sun is" + text and choice["finish_reason"] == "length", choice
    yield scored["usage"]["completion_tokens"] == 0 and scored["usage"]["prompt_tokens"] == len(choice["logprobs"]["tokens"]), scored
    yield choice["logprobs"]["token_logprobs"][0] is None and choice["logprobs"]["token_logprobs"][-n:] == lists["token_logprobs"], choice
    yield choice["logprobs"]["tokens"][-n:] == lists["tokens"] and choice["logprobs"]["top_logprobs"][-n:] == lists["top_logprobs"], choice
    starts = choice["logprobs"]["text_offset"]
    yield all(choice["text"][a:b] == t for a, b, t in zip(starts[1:], starts[2:], choice["logprobs"]["tokens"][1:])), choice
    more = ask(prompt="The sun is", max_tokens=6, echo=True)
    yield more["choices"][0]["text"] == "The sun is" + text and more["usage"]["completion_tokens"] == free["usage"]["completion_tokens"], more
    ids = ask(prompt=[[100, 200, 300], [400, 500]], max_tokens=0, echo=True)
    yield [len(x["logprobs"]["tokens"]) for x in ids["choices"]] == [3, 2] and ids["usage"]["prompt_tokens"] == 5, ids
    for bad in ({"prompt": [5], "max_tokens": 0}, {"prompt": "word " * 6000, "max_tokens": 0}, {"prompt": "x", "stop": "a"}, {"prompt": "x", "stream": True},
                {"prompt": "x", "guided_regex": "a"}):
        yield c.server.post("/v1/completions", {"echo": True, "logprobs": 1, **bad}).status == 400, bad
    r = c.server.post("/v1/completions", {"echo": True, "logprobs": 1, "prompt": "x", "max_tokens": 2 ** 63 - 1})
    yield r.status == 400 and f"requested {2 ** 63 - 1} tokens" in r.error(), r


# ---- messages

def test_messages(c):
    r = c.message(system="Be brief.", metadata={"user_id": "u"})
    yield [b.type for b in r.content] == ["thinking", "text"] and r.stop_reason == "end_turn" and r.model == "claude-x", r
    yield r.content[0].signature and r.usage.output_tokens > 0, r
    count = c.claude.messages.count_tokens(model="claude-x", messages=user("Repeat: apple"), system="Be brief.")
    yield count.input_tokens == r.usage.input_tokens + r.usage.cache_read_input_tokens, (count, r.usage)
    with c.claude.messages.stream(model="claude-x", max_tokens=60, messages=user("Repeat: apple"), system="Be brief.", extra_body={"temperature": 0}) as s:
        final = s.get_final_message()
    shown = lambda m: [b.model_dump(include={"type", "text", "thinking"}) for b in m.content]
    yield shown(final) == shown(r) and final.stop_reason == "end_turn", (final, r)
    off = c.message(thinking=OFF)
    yield [b.type for b in off.content] == ["text"], off
    stop = c.message(thinking=OFF, stop_sequences=["pl"])
    yield stop.stop_reason == "stop_sequence" and stop.stop_sequence == "pl" and stop.content[0].text == "ap", stop
    yield c.message("Hi", max_tokens=2).stop_reason == "max_tokens", "max_tokens"
    tools = c.message(ASK_PRICE, tools=CLAUDE_TOOLS)
    uses = [b for b in tools.content if b.type == "tool_use"]
    yield tools.stop_reason == "tool_use" and uses and uses[0].name == "get_price" and isinstance(uses[0].input, dict), tools
    yield all(b.type != "text" or b.text for b in tools.content), "an empty text block before a tool_use block"
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": "12"}]} for b in uses]
    again = c.message(tools=CLAUDE_TOOLS, max_tokens=60,
                      messages=[*user(ASK_PRICE), {"role": "assistant", "content": tools.content}, {"role": "user", "content": results}])
    total = tools.usage.input_tokens + tools.usage.cache_read_input_tokens + tools.usage.output_tokens
    yield again.usage.cache_read_input_tokens >= total - 1, (again.usage, tools.usage)
    one = c.message(ASK_PRICE, tools=CLAUDE_TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    yield sum(b.type == "tool_use" for b in one.content) == 1, one
    none = c.message(ASK_PRICE, tools=CLAUDE_TOOLS, tool_choice={"type": "none"})
    yield all(b.type != "tool_use" for b in none.content), none


def report_04_messages_think_by_default(c):
    r = c.message()
    yield r.content[0].type == "thinking" and r.content[0].thinking and r.content[0].thinking not in r.content[1].text, r


def report_05_chat_thinks_by_default(c):
    yield bool(c.chat(chat_template_kwargs={}).choices[0].message.reasoning_content), "no thinking key at all"


def report_02_continue_final_message(c):
    whole = c.chat(thinking=OFF).choices[0].message.content
    for cut in range(1, len(whole)):
        r = c.chat(messages=[*user("Repeat: apple"), {"role": "assistant", "content": whole[:cut]}], thinking=OFF, continue_final_message=True,
                   add_generation_prompt=False)
        yield r.choices[0].message.content and not r.choices[0].message.content.startswith(whole[:cut]), r


def report_03_continue_inside_the_reasoning(c):
    reasoning = c.chat().choices[0].message.reasoning_content
    r = c.chat(messages=[*user("Repeat: apple"), {"role": "assistant", "content": "", "reasoning_content": reasoning[:12], "prefix": True}])
    yield r.choices[0].message.reasoning_content == reasoning[12:] and r.choices[0].message.content == "apple", r


# ---- responses

def test_responses(c):
    make = lambda **f: c.openai.responses.create(model="nano", **{"input": "Repeat: apple", "temperature": 0, "max_output_tokens": 120, **f})
    r = make()
    yield [o.type for o in r.output] == ["reasoning", "message"] and r.output_text == "apple" and r.status == "completed", r
    yield r.output[1].phase == "final_answer" and r.usage.output_tokens_details.reasoning_tokens > 0, r
    cut = make(max_output_tokens=3)
    yield cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut
    tools = make(input=ASK_PRICE, tools=FLAT_TOOLS)
    calls = [o for o in tools.output if o.type == "function_call"]
    yield calls and calls[0].name == "get_price" and json.loads(calls[0].arguments) and calls[0].call_id.startswith("call_00_"), tools
    items = [{"role": "user", "content": ASK_PRICE}, *[o.model_dump(exclude_none=True) for o in tools.output],
             *[{"type": "function_call_output", "call_id": o.call_id, "output": "12"} for o in calls]]
    again = make(input=items, tools=FLAT_TOOLS)
    yield again.usage.input_tokens_details.cached_tokens >= tools.usage.total_tokens - 1, (again.usage, tools.usage)
    without = make(input=[i for i in items if i.get("type") != "reasoning"], tools=FLAT_TOOLS)
    yield without.usage.input_tokens_details.cached_tokens >= tools.usage.total_tokens - 1, without.usage
    with c.openai.responses.stream(model="nano", input="Repeat: apple", temperature=0) as s:
        final = s.get_final_response()
    yield final.output_text == "apple", final
    try:
        make(previous_response_id="resp_x")
        yield False, "there is no store"
    except openai.BadRequestError as e:
        yield "previous_response_id" in str(e), e


def test_response_store(c, program):
    with Server(program, "--context", 2048, "--quiet", "--response-store", 4) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        first = client.responses.create(model="nano", input="My name is Ann.", temperature=0, instructions="Be brief.")
        second = client.responses.create(model="nano", input="Repeat: apple", temperature=0, previous_response_id=first.id, stream=False)
        yield second.usage.input_tokens > first.usage.input_tokens and second.previous_response_id == first.id, second
        same = client.responses.create(model="nano", temperature=0, store=False, input=[
            {"role": "user", "content": "My name is Ann."}, *[o.model_dump(exclude_none=True) for o in first.output], {"role": "user", "content": "Repeat: apple"}])
        yield same.usage.input_tokens == second.usage.input_tokens and same.output_text == second.output_text, (same, second)
        got = client.responses.retrieve(second.id)
        yield got.output_text == second.output_text and got.id == second.id, got
        for missing in (same.id, "resp_nothing"):
            try:
                client.responses.retrieve(missing)
                yield False, missing
            except openai.NotFoundError:
                yield True, None
        client.responses.delete(second.id)
        try:
            client.responses.create(model="nano", input="x", previous_response_id=second.id)
            yield False, "deleted"
        except openai.NotFoundError as e:
            yield "send the whole input" in str(e), e


# ---- agents, in the shape of the public protocols

def test_codex_like_session(c):
    tools = [{"type": "function", "name": "shell", "description": "Runs a shell command", "strict": False,
              "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"],
                             "additionalProperties": False}},
             {"type": "custom", "name": "apply_patch", "description": "Edits files", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
             {"type": "web_search"}, {"type": "namespace", "name": "mcp__files", "description": "files", "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}]}]
    base = {"model": "nano", "instructions": "You are a coding agent.", "tools": tools, "tool_choice": "auto", "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k", "client_metadata": {"x": "y"}, "text": {"verbosity": "low"}, "max_output_tokens": 200}
    items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions/>"}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]}]
    for choice in ("auto", {"type": "function", "name": "shell"}, {"type": "custom", "name": "apply_patch"}):
        for effort in ("medium", "none"):
            r = c.post("responses", {**base, "tool_choice": choice, "reasoning": {"effort": effort}, "input": items})
            joined, problems = dialects.join_responses(dialects.events(r.body))
            yield r.status == 200 and not problems, (choice, effort, problems, joined["output"])
    past = [{"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_a"},
            {"type": "function_call_output", "call_id": "call_a", "output": "README.md"},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch", "call_id": "call_b"},
            {"type": "custom_tool_call_output", "call_id": "call_b", "output": "Done"},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "abc"}]
    r = c.post("responses", {**base, "input": [*items, *past]})
    yield r.status == 200 and not dialects.join_responses(dialects.events(r.body))[1], r


def report_36_agents_first_requests(c):
    """Claude-Code-like: billing line, cache_control everywhere, unknown headers and query."""
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=00000;"}, {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}]
    tools = [{**CLAUDE_TOOLS[0], "cache_control": {"type": "ephemeral"}}, {"name": "Bash", "description": "Run", "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}}, "required": ["command"], "additionalProperties": False}}]
    body = {"model": "claude-sonnet-4-5-20250929", "max_tokens": 200, "stream": True, "temperature": 1, "system": system, "tools": tools,
            "metadata": {"user_id": "user_abc_account__session_1"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>be careful</system-reminder>"}, {"type": "text", "text": "List the files.", "cache_control": {"type": "ephemeral"}}]}]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-api-key": "k", "User-Agent": "claude-cli/2"}
    for path in ("/v1/messages", "/anthropic/v1/messages", "/v1/messages?beta=true"):
        r = c.server.post(path, body, headers)
        yield r.status == 200 and not dialects.join_messages(dialects.events(r.body))[1], r
    turn = [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."}, {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "README.md", "is_error": False}, {"type": "text", "text": "go on"}]}]
    r = c.server.post("/v1/messages", {**body, "messages": body["messages"] + turn}, headers)
    yield r.status == 200, r
    count = {k: body[k] for k in ("model", "system", "tools", "messages")}
    yield c.server.post("/v1/messages/count_tokens?beta=true", count, headers).json()["input_tokens"] > 50, "count_tokens"
    deepseek = openai.OpenAI(base_url=c.server.url, api_key="k", max_retries=0)
    yield deepseek.chat.completions.create(model="deepseek-chat", messages=user("Hi"), max_tokens=5).model == "deepseek-chat", "DeepSeek's base URL"


# ---- typed helpers

class City(pydantic.BaseModel):
    city: str
    people: int


def test_typed_helpers(c):
    """The SDKs' own ways to ask for an object of a class."""
    for seed in range(3):
        r = c.openai.chat.completions.parse(model="nano", messages=user("Name a city in json."), response_format=City, max_tokens=60, seed=seed, extra_body={"thinking": OFF})
        yield isinstance(r.choices[0].message.parsed, City), r
        r = c.openai.responses.parse(model="nano", input="Name a city in json.", text_format=City, max_output_tokens=60, reasoning={"effort": "none"})
        yield isinstance(r.output_parsed, City), r
    r = c.openai.chat.completions.parse(model="nano", messages=user("Name a city in json."), response_format=City, max_tokens=80)
    yield isinstance(r.choices[0].message.parsed, City) and r.choices[0].message.reasoning_content, r
    with c.openai.chat.completions.stream(model="nano", messages=user("Name a city in json."), response_format=City, max_tokens=60, extra_body={"thinking": OFF}) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed
    yield isinstance(parsed, City), parsed
    r = c.claude.messages.parse(model="nano", max_tokens=80, messages=user("Name a city in json."), output_format=City, thinking={"type": "disabled"})
    yield isinstance(r.parsed_output, City), r


def test_typed_calls(c):
    """Arguments of calls fit the tool's schema."""
    for seed in range(3):
        r = c.openai.chat.completions.parse(model="nano", messages=user("How many people live in Rome?"), tools=[openai.pydantic_function_tool(City)], tool_choice="required",
                                            temperature=1, seed=seed, max_tokens=200, extra_body={"thinking": OFF})
        calls = r.choices[0].message.tool_calls
        yield r.choices[0].finish_reason == "length" or (calls and all(isinstance(x.function.parsed_arguments, City) for x in calls)), r
    tool = {"name": "city", "description": "", "input_schema": City.model_json_schema(), "strict": True}
    r = c.claude.messages.create(model="nano", max_tokens=200, messages=user("Name a city."), tools=[tool], tool_choice={"type": "any"}, thinking={"type": "disabled"})
    yield r.stop_reason == "max_tokens" or all(City.model_validate(b.input) for b in r.content if b.type == "tool_use"), r


# ---- errors

def test_errors(c):
    bad = [({"temperature": 9}, "temperature"), ({"max_tokens": 0}, "max_tokens"), ({"n": 0}, "n"), ({"stop": [""]}, "stop[0]"), ({"logit_bias": {"x": 1}}, "logit_bias"),
           ({"top_logprobs": 3}, "top_logprobs"), ({"seed": 1 << 63}, "seed"), ({"messages": []}, "messages"), 
           ({"messages": [{"role": "alien", "content": ""}]}, "messages[0].role"), ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
           ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": CHAT_TOOLS}, "tool_choice"), ({"response_format": {"type": "regex", "regex": "(a"}}, "response_format"),
           ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"), ({"guided_regex": "(?=a)b"}, "guided_regex"),
           ({"guided_json": {"type": "object"}, "response_format": {"type": "json_object"}}, "guided_json"), ({"n": 1000}, "n"), ({"top_k": "x"}, "top_k"), ({"bad_words": ["a"]}, "bad_words"),
           ({"return_token_ids": True}, "return_token_ids"), ({"modalities": ["text", "audio"]}, "modalities[1]")]
    for fields, param in bad:
        for stream in (False, True):
            try:
                c.openai.chat.completions.create(model="nano", messages=fields.get("messages", user("Hi")), stream=stream, extra_body=fields)
                yield False, f"accepted: {fields}"
            except openai.BadRequestError as e:
                yield e.param == param and e.type == "invalid_request_error" and param.split("[")[0] in e.message, (fields, e, e.param)
    for call in (lambda: c.chat("word " * 6000), lambda: c.openai.responses.create(model="x", input="word " * 6000),
                 lambda: c.openai.completions.create(model="x", prompt="word " * 6000)):
        try:
            call()
            yield False, "a prompt that is too long"
        except openai.BadRequestError as e:
            yield e.code == "context_length_exceeded" and "maximum context length is 2048 tokens" in e.message and "6" in e.message, e
    try:
        c.claude.messages.create(model="x", max_tokens=10, messages=user("word " * 6000))
        yield False, "a prompt that is too long"
    except anthropic.BadRequestError as e:
        yield e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error" and e.body["error"]["message"].startswith("prompt is too long: ") and e.body["request_id"], e.body
    many, long = {f"k{i}": "v" for i in range(17)}, {"k": "v" * 513}
    for dialect, more in (("chat", {"messages": user("Hi")}), ("responses", {"input": "Hi"}), ("messages", {"messages": user("Hi")}), ("completions", {"prompt": "Hi"})):
        for fields, where in (({"model": "m" * 257}, "model"), ({"metadata": many}, "metadata"), ({"metadata": long}, "metadata.k"), ({"metadata": {"k" * 65: "v"}}, "metadata")):
            r = c.post(dialect, {**more, **fields})
            yield r.status == 400 and r.error().startswith(where + ":"), (dialect, where, r)
        limits = {"model": "m" * 256, "metadata": {f"{i:064}": "\u00fc" * 512 for i in range(16)}, "max_output_tokens" if dialect == "responses" else "max_tokens": 1}
        r = c.post(dialect, {**more, **limits, **({} if dialect == "responses" else {"seed": -(1 << 63)})})
        yield r.status == 200, r
        yield c.server.post(dialects.PATHS[dialect], b"\xef\xbb\xbf" + json.dumps({**more, "max_tokens": 1}).encode()).status == 200, "a byte order mark"
    refusal = [*user("Hi"), {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *user("Why?")]
    yield c.post("chat", {"messages": refusal, "max_tokens": 1}).json()["usage"]["prompt_tokens"] == c.post("chat", {"messages": [refusal[0], {"role": "assistant", "content": "No."}, refusal[2]], "max_tokens": 1}).json()["usage"]["prompt_tokens"], "a refusal"
    yield c.post("responses", {"input": refusal, "max_output_tokens": 1}).status == 200, "a refusal"
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    for dialect, body, where in (("messages", {"messages": [{"role": "user", "content": [{"type": "document", "source": pdf}]}]}, "messages[0].content[0]"),
                                 ("responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]}, "input[0].content[0]"),
                                 ("chat", {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "x"}}]}]}, "messages[0].content[0].type"),
                                 ("completions", {"prompt": "a", "response_format": {"type": "regex", "regex": "("}}, "response_format")):
        r = c.post(dialect, body)
        yield r.status == 400 and r.error().startswith(where + ":"), r
    for body in (b"", b"[]", b"{", b"nonsense", b"\xff", b"{\"messages\":" + b"[" * 5000, b"null", b"{}"):
        for path in dialects.PATHS.values():
            r = c.server.post(path, body)
            yield r.status == 400 and r.error(), (path, body[:20], r)
    try:
        c.chat(stream=False, stream_options={"include_usage": True})
        yield False, "stream_options without stream"
    except openai.BadRequestError as e:
        yield e.param == "stream_options", e
    try:
        c.openai.models.retrieve("gpt-nothing")
        yield False, "a model that is not there"
    except openai.NotFoundError as e:
        yield e.code == "model_not_found" or e.status_code == 404, e
    yield c.openai.models.retrieve("nano").id == "nano" and [m.id for m in c.openai.models.list()] == ["nano"], "models"
    yield [m.id for m in c.claude.models.list()] == ["nano"], "Anthropic's list"


def test_strict_models(c, program):
    with Server(program, "--context", 2048, "--quiet", "--strict-models", "--served-model-name", "big", "--served-model-name", "deepseek-chat") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        for name in ("big", "deepseek-chat"):
            yield client.chat.completions.create(model=name, messages=user("Hi"), max_tokens=2).model == name, name
        try:
            client.chat.completions.create(model="gpt", messages=user("Hi"))
            yield False, "accepted"
        except openai.NotFoundError as e:
            yield e.code == "model_not_found" and e.param == "model", e


def test_small_routes(c):
    r = c.server.post("/tokenize", {"prompt": "Hi there", "return_token_strs": True}).json()
    yield r["count"] == len(r["tokens"]) == len(r["token_strs"]) and r["max_model_len"] == 2048, r
    yield c.server.post("/detokenize", {"tokens": r["tokens"][1:]}).json() == {"prompt": "Hi there"}, r
    info = c.server.get("/tokenizer_info").json()
    yield {"bos_token", "eos_token", "pad_token", "chat_template", "model_max_length"} <= set(info), info
    for name in ("bos", "eos", "pad"):  # as lm-eval finds the ids
        ids = c.server.post("/tokenize", {"prompt": info[f"{name}_token"], "add_special_tokens": False}).json()["tokens"]
        yield ids == [info[f"{name}_token_id"]], (name, ids, info)
    chat = c.server.post("/tokenize", {"messages": user("Repeat: apple")}).json()
    yield chat["count"] == c.chat().usage.prompt_tokens, chat
    for path, body in (("/tokenize", {}), ("/detokenize", {"tokens": ["a"]}), ("/detokenize", {"tokens": [10 ** 9]}), ("/tokenize", {"prompt": 5})):
        yield c.server.post(path, body).status == 400, (path, body)


def test_cache_salt(c):
    text = "word " * 150
    usage = lambda **f: c.chat(text, max_tokens=1, **f).usage.prompt_tokens_details.cached_tokens
    seen = [usage(), usage(), usage(cache_salt="a"), usage(cache_salt="a"), usage(cache_salt="b")]
    yield seen[1] > 100 and seen[3] > 100, f"the same prompt is reused: {seen}"
    yield seen[0] < 64 and seen[2] == 0 and seen[4] == 0, f"salts are apart: {seen}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--filter", default="", help="part of a test's name")
    parser.add_argument("--short", action="store_true", help="fewer of the requests that are asked in both forms")
    args = parser.parse_args()
    program, count = Program(args.binary), Count()
    own_server = {"test_usage_on_finish", "test_response_store", "test_strict_models"}
    with Server(program, "--context", 2048, "--max-batch", 4, "--quiet") as server:
        clients = Clients(server, 4 if args.short else 1)
        for test in tests_in(globals(), args.filter, ("test_", "report_")):
            count.attempt(test, clients, *[program] * (test.__name__ in own_server))
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
