"""A stream of a dialect, checked event by event against the SDK's own types and put together again."""
import json

import anthropic.types
import openai.types
import openai.types.chat
import openai.types.responses
from pydantic import TypeAdapter

ANTHROPIC_EVENT = TypeAdapter(anthropic.types.RawMessageStreamEvent)
RESPONSES_EVENT = TypeAdapter(openai.types.responses.ResponseStreamEvent)
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def events(body):
    """[(event name or None, data)] of an SSE body; the last data of chat and completions is "[DONE]"."""
    out, name = [], None
    for line in body.decode().split("\n"):
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            out.append((name, line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])))
            name = None
        elif line and not line.startswith(":"):
            raise ValueError(f"no line of an event stream: {line!r}")
    return out


def add_text(a, b):
    return b if a is None else a if b is None else a + b


def join_chat(items):
    """One body from chunks, and what was wrong with them."""
    problems, whole, choices = [], None, {}
    if items[-1][1] != "[DONE]":
        problems.append("no [DONE]")
    for _, chunk in items[:-1]:
        openai.types.chat.ChatCompletionChunk.model_validate(chunk)
        if whole is None:
            whole = {k: chunk[k] for k in ("id", "created", "model", "system_fingerprint")}
        if any(chunk[k] != v for k, v in whole.items()):
            problems.append("id, created or model changes")
        if chunk.get("usage"):
            usage = chunk["usage"]
        else:
            usage = None
        for c in chunk["choices"]:
            known = choices.setdefault(c["index"], {"message": {"role": None, "content": None}, "logprobs": None, "finish_reason": None})
            join_choice(known, c, problems)
        if not chunk["choices"] and not usage:
            problems.append("a chunk without choices and usage")
    return {**whole, "object": "chat.completion", "choices": [{"index": i, **choices[i]} for i in sorted(choices)], "usage": usage}, problems


def join_choice(known, c, problems):
    message, delta = known["message"], c["delta"]
    if known["finish_reason"] is not None:
        problems.append("something after finish_reason")
    if c["finish_reason"] == "":
        problems.append("finish_reason is empty")
    if message["role"] is None and delta.get("role") != "assistant":
        problems.append("the first delta has no role")
    message["role"] = message["role"] or delta.get("role")
    for key in ("content", "reasoning_content"):
        if key in delta:
            message[key] = add_text(message.get(key), delta[key])
    for call in delta.get("tool_calls", []):
        calls = message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            calls.append({k: call[k] for k in call if k != "index"})
        elif call["index"] == len(calls) - 1:
            kind = calls[-1]["type"]
            text = "arguments" if kind == "function" else "input"
            calls[-1][kind][text] += call[kind][text]
        else:
            problems.append("a delta of a call that is over")
    if c["logprobs"]:
        lists = known["logprobs"] or {}
        known["logprobs"] = {k: lists.get(k, []) + v for k, v in {**{k: [] for k in lists}, **c["logprobs"]}.items()}
    known["finish_reason"] = c["finish_reason"]
    if "stop_reason" in c:
        known["stop_reason"] = c["stop_reason"]


def join_completions(items):
    problems, whole, choices, usage = [], None, {}, None
    if items[-1][1] != "[DONE]":
        problems.append("no [DONE]")
    for _, chunk in items[:-1]:
        openai.types.Completion.model_validate(chunk) if chunk["choices"] and chunk["choices"][0]["finish_reason"] else None
        whole = whole or {k: chunk[k] for k in ("id", "object", "created", "model", "system_fingerprint")}
        usage = chunk.get("usage")
        for c in chunk["choices"]:
            known = choices.setdefault(c["index"], {"text": "", "logprobs": None, "finish_reason": None})
            known["text"] += c["text"]
            known["finish_reason"] = c["finish_reason"]
            if "stop_reason" in c:
                known["stop_reason"] = c["stop_reason"]
            if c["logprobs"]:
                lists = known["logprobs"] or {}
                known["logprobs"] = {k: lists.get(k, []) + v for k, v in c["logprobs"].items()}
    return {**whole, "choices": [{"index": i, **choices[i]} for i in sorted(choices)], "usage": usage}, problems


def join_messages(items):
    problems, message, block, cut = [], None, None, False
    kinds = [data["type"] for _, data in items]
    if kinds[0] != "message_start" or kinds[-2:] != ["message_delta", "message_stop"]:
        problems.append(f"order: {kinds[0]} ... {kinds[-2:]}")
    if "ping" in kinds and kinds.index("ping") != kinds.index("content_block_start") + 1 or kinds.count("ping") > 1:
        problems.append("ping is not behind the first block's start")
    for name, data in items:
        if name != data["type"]:
            problems.append(f"event {name} with data of {data['type']}")
        if data["type"] != "ping":
            ANTHROPIC_EVENT.validate_python(data)
        if data["type"] == "message_start":
            message = data["message"]
        elif data["type"] == "content_block_start":
            if data["index"] != len(message["content"]) or block:
                problems.append("a block starts out of order")
            block = {**data["content_block"]}
            if block["type"] == "tool_use":
                block["input"] = ""
            message["content"].append(block)
        elif data["type"] == "content_block_delta":
            if data["index"] != len(message["content"]) - 1 or not block:
                problems.append("a delta of a block that is not open")
            d = data["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "input"}[d["type"]]
            block[key] += d["partial_json" if key == "input" else key]
        elif data["type"] == "content_block_stop":
            if block["type"] == "text" and not block["text"]:
                problems.append("an empty text block")
            if block["type"] == "tool_use":
                block["input"], cut = parse_input(block["input"])
            block = None
        elif data["type"] == "message_delta":
            message.update(data["delta"])
            message["usage"] = data["usage"]
    if cut and message["stop_reason"] == "tool_use":
        problems.append("an input that is no JSON")
    return message, problems


def parse_input(text):
    """The input of a call, of one that was cut off what was closed of it; and whether it was cut off."""
    for end in range(len(text), 0, -1):
        closed = end == len(text) and not text[-1].isdigit() or text[end:end + 1] == ","
        for tail in [""] * (end == len(text)) + ["}"] * closed:
            try:
                return json.loads(text[:end] + tail), tail == "}"
            except ValueError:
                pass
    return {}, True


def join_responses(items):
    problems, texts, last, done = [], {}, None, []
    if [data["sequence_number"] for _, data in items] != list(range(len(items))):
        problems.append("sequence numbers do not rise by one")
    if [data["type"] for _, data in items[:2]] != ["response.created", "response.in_progress"]:
        problems.append("the first two events")
    for name, data in items:
        if name != data["type"]:
            problems.append(f"event {name} with data of {data['type']}")
        RESPONSES_EVENT.validate_python(data)
        if data["type"].endswith(".delta"):
            texts[data["item_id"]] = texts.get(data["item_id"], "") + data["delta"]
        if data["type"] == "response.output_item.done":
            item = data["item"]
            done.append(item)
            said = item.get("arguments", item.get("input")) if "call" in item["type"] else item["content"][0]["text"]
            if texts.get(item["id"], "") != said and item["type"] != "tool_search_call":
                problems.append(f"deltas {texts.get(item['id'])!r} are not the item {said!r}")
        last = data
    if last["type"] not in ("response.completed", "response.incomplete", "response.failed"):
        problems.append(f"the last event is {last['type']}")
    if last["type"] != "response.failed" and last["response"]["output"] != done:
        problems.append("the items of the response are not those of the stream")
    return last["response"], problems


JOIN = {"chat": join_chat, "completions": join_completions, "messages": join_messages, "responses": join_responses}
BODY = {"chat": openai.types.chat.ChatCompletion, "completions": openai.types.Completion, "messages": anthropic.types.Message,
        "responses": openai.types.responses.Response}


def plain(value):
    """Without what differs between two requests: ids, times, what was cached."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    skip = {"id", "created", "created_at", "call_id", "signature", "encrypted_content", "prompt_tokens_details", "prompt_cache_hit_tokens",
            "prompt_cache_miss_tokens", "input_tokens", "cache_read_input_tokens", "input_tokens_details"}
    return {k: plain(v) for k, v in value.items() if k not in skip}
