#!/usr/bin/env python3
"""Failures that were reported of other engines and show in the text of conversations (docs/reports.md); the others are in src/engine/report*_test.c.

usage: test_reports.py [--binary build/deepinfer]        (libdeepinfer.so lies beside the program)
"""
import argparse
import itertools
import json
import os
import sys

from program import NANO, ROOT, Count, Program, eval_items, is_sanitized

sys.path.insert(0, os.path.join(ROOT, "python"))
import deepinfer  # noqa: E402
from deepinfer import LLM, SamplingParams  # noqa: E402

SIZES = {"max_model_len": 1536, "max_num_seqs": 8}
GREEDY = SamplingParams(temperature=0, max_tokens=48)
TOOLS = [{"type": "function", "function": {"name": "get_time", "description": "Time of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


class Engines:
    """`warm` reuses, `cold` computes every prompt on its own; `ids` are those of a rendered prompt."""

    def __init__(self, prog):
        self.prog = prog
        self.cold = LLM(NANO, enable_prefix_caching=False, **SIZES)

    def warm(self, **options):
        return LLM(NANO, **{**SIZES, **options})

    def ids(self, messages, **request):
        line = {"protocol": "chat", "request": {"model": "nano", "messages": messages, **request}}
        result = self.prog.run("render", "--model", NANO, "--jsonl", stdin=json.dumps(line) + "\n")
        return json.loads(result.out)["token_ids"]


def ask(llm, messages, params=GREEDY, **request):
    return llm.chat([dict(m) for m in messages], params, False, **request)[0]


def same(a, b):
    a, b = a.outputs[0], b.outputs[0]
    return a.token_ids == b.token_ids and a.text == b.text and a.reasoning == b.reasoning and a.finish_reason == b.finish_reason


def common(a, b):
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b))))


def fields_of(item):
    return {k: item[k] for k in ("thinking", "reasoning_effort", "tools") if k in item}


def contains(item, out):
    return item["check"]["value"].lower() in out.outputs[0].text.lower()


def user(text):
    return {"role": "user", "content": text}


def assistant_of(out, reasoning):
    c = out.outputs[0]
    message = {"role": "assistant", "content": c.text}
    if reasoning and c.reasoning:
        message["reasoning_content"] = c.reasoning
    if c.tool_calls:
        message["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {"name": t.name, "arguments": t.arguments}}
                                 for i, t in enumerate(c.tool_calls)]
    return message


def report_52_identities_do_not_cross(count, e):
    """Personas, told in the system prompt or by the user, 8 at a time: each answers as when it is alone, with its own name."""
    names = ["Goka", "Sofia", "Milan", "Tara", "Rozu", "Vovo", "Mori", "Kaza"]
    talks = [[{"role": "system", "content": f"You are {name}, a friendly assistant."}, user("What is your name?")] for name in names]
    talks += [[user(f"My name is {name}."), {"role": "assistant", "content": "Nice to meet you."}, user("What is my name?")] for name in names]
    alone = [ask(e.cold, t, thinking={"type": "disabled"}) for t in talks]
    llm = e.warm(cache_blocks=40)
    params = [GREEDY] * len(talks)
    for turn in range(3):
        together = llm.chat(talks, params, False, thinking={"type": "disabled"})
        count.group(f"report_52, turn {turn}", [(same(a, b), (t, a, b)) for a, b, t in zip(alone, together, talks)])
    others = [[n for n in names if n in a.outputs[0].text and n != names[i % 8]] for i, a in enumerate(together)]
    count.group("report_52, no other name", [(not found, (talks[i], found)) for i, found in enumerate(others)])
    told = [names[i % 8] in a.outputs[0].text for i, a in enumerate(together)]
    count.group("report_52, own name", [(sum(told) >= len(told) // 2, told)])


def report_76_facts_survive_a_hit(count, e):
    """The beginning of a conversation is cached by another question; the fact in it is recalled all the same."""
    llm, results = e.warm(), []
    for item in eval_items():
        if item["kind"] != "recall":
            continue
        ask(llm, item["messages"][:-1] + [user("What is a baby duck called?")], **fields_of(item))
        want, got = ask(e.cold, item["messages"], **fields_of(item)), ask(llm, item["messages"], **fields_of(item))
        shared = common(e.ids(item["messages"], **fields_of(item)), e.ids(item["messages"][:-1] + [user("What is a baby duck called?")], **fields_of(item)))
        again = ask(llm, item["messages"], **fields_of(item))
        results += [(same(want, got) and same(want, again), (item["id"], want, got, again)),
                    (again.usage.cached_tokens == again.usage.prompt_tokens - 1 and got.usage.cached_tokens <= shared, (item["id"], again.usage, got.usage)),
                    (contains(item, got) or not contains(item, want), (item["id"], got))]
    count.group("report_76", results + [(len(results) > 10, "too few")])


def report_77_reuse_grows_with_the_conversation(count, e):
    """A conversation that only grows: each turn finds at least the prompt of the turn before, and what is found grows."""
    llm, messages, before, results, rows = e.warm(), [], 0, [], 0
    for turn, word in enumerate(["cake", "blue", "Sofia", "pilot", "Milan", "eggs", "seven", "soap", "bread", "cloud"]):
        messages.append(user(f"My word number {turn} is {word}. Say it back."))
        want = ask(e.cold, messages, thinking={"type": "disabled"})
        got = ask(llm, messages, thinking={"type": "disabled"})
        computed, rows = llm.stats()["prompt_rows"] - rows, llm.stats()["prompt_rows"]
        cached = got.usage.cached_tokens
        results += [(same(want, got), (turn, want, got)), (cached >= before, (turn, cached, before)),
                    (computed == got.usage.prompt_tokens - cached, (turn, computed, got.usage))]
        before = got.usage.prompt_tokens
        messages.append(assistant_of(got, False))
    count.group("report_77", results)


def tool_session(e, llm, thinking, echo):
    """Results of turns of an agent: question, call, result, answer, next question. With every turn the reuse is as long as what both renderings
    have in common allows: up to the end of the last prompt if they part behind it, up to the end of the answer if they do not."""
    messages, results, before = [{"role": "system", "content": "Be brief."}], [], None
    request = {"tools": TOOLS, "thinking": thinking}
    for turn, city in enumerate(["Sobava", "Namero", "Kaza", "Milan"]):
        messages.append(user(f"What time is it in {city}?"))
        for _ in range(2):
            want, got = ask(e.cold, messages, **request), ask(llm, messages, **request)
            ids = e.ids(messages, **request)
            results.append((same(want, got), (turn, want, got)))
            results.append((got.usage.prompt_tokens == len(ids), (turn, len(ids), got.usage)))
            if before:
                prompt, text = before
                shared = common(text, ids)
                least = len(text) - 1 if shared >= len(text) - 1 else prompt if shared >= prompt else 0
                results.append((least <= got.usage.cached_tokens <= shared, (turn, least, shared, got.usage)))
                results.append((least > 0, (turn, "the prompt of the turn before is not the beginning of this one", shared, prompt)))
            before = len(ids), ids + got.outputs[0].token_ids
            messages.append(assistant_of(got, echo))
            if got.outputs[0].tool_calls:
                messages.append({"role": "tool", "content": f"1{turn}:00", "tool_call_id": "call_0"})
            else:
                break
    return results


def report_81_and_83_tool_sessions(count, e):
    """Two snapshots are enough for a loop of one agent, whether reasoning is echoed or not (81); what was sampled is found again where it is
    rendered to the same ids, and harmless where it is not (83)."""
    for thinking, echo in [("disabled", False), ("enabled", True), ("enabled", False)]:
        llm = e.warm(state_slots=2)
        count.group(f"report_81, report_83, thinking {thinking}, {'echoed' if echo else 'left out'}", tool_session(e, llm, {"type": thinking}, echo))
        calls = llm.stats()["cached_tokens"]
        count.group("report_78, reuse is counted", [(calls > 0, llm.stats())])


def report_84_thinking_is_cached_too(count, e):
    """With reasoning on, at every effort, a repeated prompt and a following turn hit. (Nothing outlives the process yet.)"""
    llm, results = e.warm(), []
    for effort in ("low", "high", "max"):
        request = {"thinking": {"type": "enabled"}, "reasoning_effort": effort}
        messages = [user(f"My lucky number is 35 and the word is {effort}. What is my lucky number?")]
        want, first, again = ask(e.cold, messages, **request), ask(llm, messages, **request), ask(llm, messages, **request)
        follow = [*messages, assistant_of(first, True), user("Say it again.")]
        got, cold = ask(llm, follow, **request), ask(e.cold, follow, **request)
        shared = common(e.ids(messages, **request) + first.outputs[0].token_ids, e.ids(follow, **request))
        results += [(same(want, first) and same(want, again), (effort, want, first, again)), (same(got, cold), (effort, got, cold)),
                    (again.usage.cached_tokens == again.usage.prompt_tokens - 1, (effort, again.usage)),
                    (got.usage.cached_tokens >= min(shared, first.usage.prompt_tokens), (effort, shared, got.usage))]
    count.group("report_84", results)


def report_A17_what_a_client_says_does_not_part_the_cache(count, e):
    """Names that a client may send share the cache of its tenant; the tenant is the server's to say (src/engine/report_test.c)."""
    llm, messages = e.warm(), [user("What is the capital of France? Answer briefly.")]
    first = ask(llm, messages)
    results = []
    for field in ({"user": "a"}, {"user": "b"}, {"prompt_cache_key": "y"}, {"safety_identifier": "z"}):
        got = ask(llm, messages, **field)
        results.append((same(first, got) and got.usage.cached_tokens == got.usage.prompt_tokens - 1, (field, got.usage)))
    count.group("report_A17", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    args = parser.parse_args()
    count = Count()
    if is_sanitized(args.binary):
        count.group("not with an instrumented library", [(True, "")])
        return count.finish()
    deepinfer.use_library(os.path.join(os.path.dirname(os.path.abspath(args.binary)), "libdeepinfer.so"))
    engines = Engines(Program(args.binary))
    for report in (report_52_identities_do_not_cross, report_76_facts_survive_a_hit, report_77_reuse_grows_with_the_conversation,
                   report_81_and_83_tool_sessions, report_84_thinking_is_cached_too, report_A17_what_a_client_says_does_not_part_the_cache):
        report(count, engines)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
