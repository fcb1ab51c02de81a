#!/usr/bin/env python3
"""The Python package: the same tokens as the program, streaming, threads, scripts written for DeepInfer, errors, and the wheel in a fresh venv.

usage: test_python.py [--binary build/deepinfer]        (libdeepinfer.so lies beside the program)
"""
import argparse
import asyncio
import ctypes
import dataclasses
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import warnings

from program import NANO, ROOT, Count, Program, is_sanitized

sys.path.insert(0, os.path.join(ROOT, "python"))
import deepinfer  # noqa: E402
from deepinfer import LLM, AsyncLLM, EngineArgs, InvalidError, LimitError, LLMEngine, NotFoundError, SamplingParams, UnsupportedError  # noqa: E402

PROMPTS = ["The capital of France", "The capital of Japan", "Once upon a time", "2 + 3 =", "Ein\u0301 \u4f60\u597d \U0001f600 x"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
SIZES = {"max_model_len": 1024, "max_num_seqs": 4}
quiet = {"use_tqdm": False}


def refused(kind, what, call):
    """(ok, shown): `call` raises `kind` with a sentence that contains `what`."""
    try:
        result = call()
    except kind as err:
        return what in str(err) and len(str(err)) > len(what), f"{type(err).__name__}: {err}"
    except Exception as err:  # any other kind is the finding
        return False, f"{type(err).__name__}: {err} instead of {kind.__name__} {what}"
    return False, f"no {kind.__name__} {what}: {result}"


def same_as_program(count, prog, llm):
    for title, fields, params in [
        ("greedy", {"temperature": 0}, SamplingParams(temperature=0, max_tokens=20)),
        ("seeded", {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 11}, SamplingParams(temperature=1.5, top_p=0.9, top_k=40, seed=11, max_tokens=20)),
        ("penalties", {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25, "ignore_eos": True},
         SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, ignore_eos=True, max_tokens=20)),
        ("stop, bias", {"temperature": 0, "stop": ["is P", "li"], "logit_bias": {"306": 3.5}, "min_tokens": 2},
         SamplingParams(temperature=0, stop=["is P", "li"], logit_bias={306: 3.5}, min_tokens=2, max_tokens=20)),
    ]:
        lines = prog.generate([{"prompt": p, "max_tokens": 20, **fields} for p in PROMPTS], "--context", "1024", "--quiet").records()
        outs = llm.generate(PROMPTS, params, **quiet)
        count.group(f"as the program, {title}", [
            (o.outputs[0].token_ids == r["token_ids"] and o.outputs[0].text == r["text"] == o and o.outputs[0].finish_reason == r["finish_reason"]
             and o.outputs[0].stop_reason == r.get("stop_reason") and o.usage.prompt_tokens == r["usage"]["prompt_tokens"],
             (r, o, o.outputs[0])) for r, o in zip(lines, outs)])
        by_ids = llm.generate(prompt_token_ids=[o.prompt_token_ids for o in outs], sampling_params=params, **quiet)
        count.group(f"by ids, {title}", [(a.outputs[0].token_ids == b.outputs[0].token_ids, (a, b)) for a, b in zip(outs, by_ids)])


def chat_as_program(count, prog, llm):
    requests = [{"messages": QUESTION}, {"messages": WEATHER, "tools": TOOLS}, {"messages": QUESTION, "thinking": {"type": "disabled"}}]
    lines = prog.generate([{**r, "temperature": 0, "max_tokens": 200} for r in requests], "--context", "1024", "--quiet").records()
    params = SamplingParams(temperature=0, max_tokens=200)
    outs = [llm.chat(r.pop("messages"), params, False, **r)[0] for r in requests]
    count.group("chat as the program", [
        (o.outputs[0].token_ids == r["token_ids"] and o.outputs[0].text == r["text"] and o.outputs[0].reasoning == r["reasoning"]
         and [(c.name, c.arguments) for c in o.outputs[0].tool_calls] == [(c["function"]["name"], c["function"]["arguments"]) for c in r["tool_calls"]]
         and o.outputs[0].finish_reason == r["finish_reason"], (r, o.outputs[0])) for r, o in zip(lines, outs)])
    both = llm.chat([QUESTION, QUESTION], params, **quiet)
    count.group("chat of several", [(o == outs[0], (o, outs[0])) for o in both])
    whole = str(outs[2])
    stop = whole[4:7]
    cut, = llm.chat(QUESTION, SamplingParams(temperature=2, max_tokens=200, stop="?!?"), False, thinking=False, temperature=0, stop=[stop], min_p=None)
    count.group("fields of a request before those of the parameters", [
        (cut == whole[:whole.index(stop)] and cut.outputs[0].stop_reason == stop and len(stop) == 3, (cut, whole, cut.outputs[0]))])


def outputs(count, llm):
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
    out = llm.generate(PROMPTS[0], params, **quiet)[0]
    c = out.outputs[0]
    best = [max(entry, key=lambda i: entry[i].logprob) for entry in c.logprobs]
    records = LLM.__new__(LLM)
    records.engine, records.decode_sequence = llm.engine, False
    per_token = records.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=6, top_logprobs=3, ignore_eos=True), **quiet)[0]
    golden = [c.token_ids[0], -1, 1000]
    forced = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=6, golden_token_ids=golden, logprobs=1, ignore_eos=True), **quiet)[0]
    loose = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)
    many = llm.generate([PROMPTS[2]] * 3, loose, **quiet)
    count.group("outputs", [
        (len(c.logprobs) == 6 and all(len(e) in (3, 4) for e in c.logprobs) and best == c.token_ids, c),
        (abs(c.cumulative_logprob - sum(e[i].logprob for e, i in zip(c.logprobs, c.token_ids))) < 1e-6, c),
        ([r.token_id for r in per_token] == c.token_ids and [r.num_output_tokens for r in per_token] == [1, 2, 3, 4, 5, 6], per_token),
        (all(math.isclose(r.token_logprobs, e[r.token_id].logprob) and len(r.top_token_ids) == 3 for r, e in zip(per_token, c.logprobs)), per_token),
        (per_token[-1].finished and per_token[-1].finish_reason == "length" and not per_token[0].finished and per_token[0].prompt_len == 6, per_token),
        (forced.outputs[0].token_ids[:3] == c.token_ids[:2] + [1000] and len(forced.outputs[0].token_ids) == 6, forced.outputs),
        (len({tuple(o.outputs[0].token_ids) for o in many}) > 1, "requests without a seed each have their own"),
        (out.prompt == PROMPTS[0] and out.prompt_token_ids[0] == llm.get_tokenizer().bos_token_id and out.finished, out.prompt_token_ids),
        (llm.generate([], params, **quiet) == [], "no prompts"),
        (llm.generate(prompt_token_ids=[[7] * 200], sampling_params=params, **quiet)[0].num_cached_tokens == 0, "seen for the first time"),
        (llm.generate(prompt_token_ids=[[7] * 200], sampling_params=params, **quiet)[0].num_cached_tokens >= 128, "seen before"),
        (llm.generate(PROMPTS[0], SamplingParams(max_tokens=0), **quiet)[0].usage.completion_tokens == 1, "0 counts as 1"),
        (llm.stats()["running"] == 0 and llm.stats()["free_blocks"] == llm.stats()["blocks"], llm.stats()),
    ])
    first, again = (llm.generate(prompt_token_ids=[[9] * 100 + tail], sampling_params=params, **quiet)[0].metrics for tail in ([8] * 50, [6] * 50))
    s, h = llm.stats(), llm.histograms()
    count.group("what the engine counted", [
        (first.miss == "never_seen" and first.miss_position == 0 and again.miss == "diverged" and again.miss_position == 100, (first, again)),
        (0 <= again.queue_ms <= again.first_token_ms <= again.total_ms < 1e5, again),
        (s["generated_tokens"] == h["request_generation_tokens"].sum and s["prompt_tokens"] == h["request_prompt_tokens"].sum, (s, h)),
        (s["finished"] == s["ended_stop"] + s["ended_length"] + s["ended_tool_calls"] == h["e2e_request_latency_seconds"].count, (s, h)),
        (h["iteration_tokens_total"].count == s["steps"] == h["step_time_seconds"].count, (s, h)),
        (h["iteration_tokens_total"].sum == s["prompt_rows"] + s["decode_rows"], (s, h)),
        (h["inter_token_latency_seconds"].count == s["generated_tokens"] - h["time_to_first_token_seconds"].count, (s, h)),
        (all(sum(x.buckets) == x.count and len(x.buckets) == len(x.edges) + 1 and x.edges == sorted(x.edges) for x in h.values()), h),
        (all(x.quantile(0.5) <= x.quantile(0.99) and x.help for x in h.values()), h),
    ])


def tokenizer(count, llm):
    t = llm.get_tokenizer()
    count.group("tokenizer", [(t.decode(t.encode(p)[1:]) == p and t.encode(p)[0] == t.bos_token_id, p) for p in PROMPTS]
                + [(t.decode([t.eos_token_id, *t.encode("x")], skip_special_tokens=True) == "x", "skip"), (t("x")["input_ids"] == t.encode("x"), "call"),
                   (t.decode(t.encode("a\0b", add_special_tokens=False)) == "a\0b", "a zero byte")])


def bad_arguments(count, llm):
    def gen(prompt="x", **fields):
        return lambda: llm.generate(prompt, SamplingParams(**fields), **quiet)
    ok = llm.generate("x", SamplingParams(temperature=0), **quiet)
    count.group("refusals of requests", [
        refused(InvalidError, "temperature", gen(temperature=-1)), refused(InvalidError, "temperature", gen(temperature=math.nan)),
        refused(InvalidError, "temperature", gen(temperature="hot")), refused(InvalidError, "top_p", gen(top_p=0)),
        refused(InvalidError, "top_k", gen(top_k=1.5)), refused(InvalidError, "top_logprobs", gen(top_logprobs=21)),
        refused(InvalidError, "top_logprobs", gen(top_logprobs=1 << 40)), refused(InvalidError, "max_tokens", gen(max_tokens=-3)),
        refused(InvalidError, "seed", gen(seed=-(1 << 63) - 1)), refused(InvalidError, "seq_seed", gen(seq_seed=1 << 64)),
        refused(InvalidError, "seq_seed", gen(seed=1, seq_seed=2)), refused(InvalidError, "golden_token_ids", gen(golden_token_ids=["a"])),
        refused(InvalidError, "forced", gen(golden_token_ids=[1 << 20])), refused(InvalidError, "so_args", gen(so_args={"schema_type": "json"})),
        refused(UnsupportedError, "prompt_logprobs", gen(prompt_logprobs=1)), refused(UnsupportedError, "best_of", gen(best_of=2)),
        refused(InvalidError, "n", gen(n=0)), refused(InvalidError, "n", gen(n=129)), refused(UnsupportedError, "n", lambda: llm.chat(QUESTION, n=2, **quiet)),
        refused(LimitError, "maximum context length", gen(max_tokens=5000)), refused(InvalidError, "prompt", gen("")),
        refused(InvalidError, "prompt", gen("\ud800")), refused(InvalidError, "stop", gen(stop=[""])),
        refused(InvalidError, "logit_bias", gen(logit_bias={"x": 1})), refused(InvalidError, "logit_bias", gen(logit_bias={-4: 1})),
        refused(InvalidError, "position 2", lambda: llm.generate(prompt_token_ids=[[5, 6, 1 << 22]], **quiet)),
        refused(InvalidError, "prompt 1", lambda: llm.generate(prompt_token_ids=[[5, 6], [-7]], **quiet)),
        refused(InvalidError, "prompts", lambda: llm.generate(**quiet)), refused(InvalidError, "sampling_params", lambda: llm.generate(["a", "b"], [SamplingParams()])),
        refused(UnsupportedError, "multi_modal_data", lambda: llm.generate("x", multi_modal_data=[1])),
        refused(InvalidError, "messages", lambda: llm.chat([{"role": "nobody", "content": "x"}], **quiet)),
        refused(TypeError, "unexpected", lambda: SamplingParams(beam_width=3)),
        (llm.generate("x", SamplingParams(temperature=0), **quiet) == ok, "and the engine goes on"),
        (llm.stats()["running"] == llm.stats()["waiting"] == 0, llm.stats()),
    ])
    closed = LLM(NANO, **SIZES)
    closed.close()
    closed.close()
    count.group("refusals of models and engine arguments", [
        refused(NotFoundError, "missing", lambda: LLM(os.path.join(NANO, "missing"))), refused(InvalidError, "context", lambda: LLM(NANO, max_model_len=1 << 29)),
        refused(InvalidError, "max_batch", lambda: LLM(NANO, max_num_seqs=0)), refused(InvalidError, "gpu_memory_utilization", lambda: LLM(NANO, gpu_memory_utilization=1.5)),
        refused(InvalidError, "tensor_parallel_size", lambda: LLM(NANO, tensor_parallel_size=0)), refused(UnsupportedError, "load_format", lambda: LLM(NANO, load_format="dummy")),
        refused(UnsupportedError, "engine_type", lambda: LLM(NANO, engine_type="PROMPT")), refused(InvalidError, "engine_type", lambda: LLM(NANO, engine_type="OTHER")),
        refused(UnsupportedError, "tokenizer", lambda: LLM(NANO, tokenizer="gpt2")), refused(TypeError, "warp_drive", lambda: LLM(NANO, warp_drive=1)),
        refused(InvalidError, "seed", lambda: LLM(NANO, seed=-1)), refused(InvalidError, "closed", lambda: closed.generate("x")),
    ])


def warned_once(count):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            LLM(NANO, gpu_memory_utilization=0.8, tensor_parallel_size=2, **SIZES).close()
    texts = [str(w.message) for w in seen]
    count.group("ignored arguments warn once", [(len(texts) == 2 and "gpu_memory_utilization" in texts[0] and "tensor_parallel_size" in texts[1], texts)])


def threads(count, llm):
    params = [SamplingParams(temperature=1.2, seed=s, max_tokens=16, ignore_eos=True) for s in range(len(PROMPTS))]
    alone = [llm.generate(p, s, **quiet)[0] for p, s in zip(PROMPTS, params)]
    results = {}

    def work(name):
        results[name] = [llm.generate(PROMPTS, params, **quiet) for _ in range(3)]
    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    count.group("threads", [(batch == alone, (batch, alone)) for name in range(4) for batch in results.get(name, [None])])


def several_answers(count, llm):
    """n answers over one prefill: those of the program's samples, each as if asked alone; the prompt is computed once."""
    warm = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, seed=5)
    prompt = [11] * 90 + [7, 9]
    rows = llm.stats()["prompt_rows"]
    many, = llm.generate(prompt_token_ids=[prompt], sampling_params=dataclasses.replace(warm, n=4), **quiet)
    rows = llm.stats()["prompt_rows"] - rows
    one, = llm.generate(prompt_token_ids=[prompt], sampling_params=warm, **quiet)
    chat, = llm.chat(QUESTION, SamplingParams(max_tokens=5, n=2), **quiet)
    count.group("several answers", [
        (len(many.outputs) == 4 and [c.index for c in many.outputs] == [0, 1, 2, 3], many.outputs),
        (many.outputs[0].token_ids == one.outputs[0].token_ids and str(many) == many.outputs[0].text, (many.outputs, one.outputs)),
        (len({tuple(c.token_ids) for c in many.outputs}) == 4, many.outputs), (rows == len(prompt) + 3, rows),
        (many.usage.prompt_tokens == len(prompt) and many.usage.completion_tokens == 48, many.usage),
        (len(chat.outputs) == 2 and all(len(c.token_ids) == 5 for c in chat.outputs), chat.outputs)])


def many_prompts(count, llm):
    """Each step of a long list asks how many are done, not each of them whether it is."""
    reads = 0

    def read(self):
        nonlocal reads
        reads += 1
        return self.__dict__["is_finished"]

    Collector = deepinfer._engine.Collector
    Collector.finished = property(read, lambda self, value: self.__dict__.__setitem__("is_finished", value))
    try:
        answers = llm.generate([[0, 300 + i] for i in range(300)], SamplingParams(max_tokens=1), **quiet)
    finally:
        del Collector.finished
    count.group("many prompts", [(len(answers) == 300 and 300 <= reads <= 600, str(reads))])


def branches(count):
    """A branch without sampling of its own says what its parent says; one with its own says what it would say to the same ids."""
    with LLMEngine(NANO, **SIZES) as engine:
        ids = engine.get_tokenizer().encode(PROMPTS[0])
        got = {}
        params = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True, seed=3)
        cold = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        engine.add_request("u", "parent", params, ids, chunk_checkpoints=[4, 2, 4])
        forked = None
        while engine.has_unfinished_requests():
            for r in engine.step():
                got.setdefault(r.request_id, []).append(r)
            if forked is None and len(got.get("parent", ())) >= 9:
                forked = [r.token_id for r in got["parent"]]
                results = [refused(InvalidError, "nobody", lambda: engine.fork_request("nobody", "x")),
                           refused(InvalidError, "parent", lambda: engine.fork_request("parent", "parent")),
                           (engine.fork_request("parent", "same") == "same", "name")]
                engine.fork_request("parent", "own", cold)
                engine.fork_request("parent", "early", cold, at=len(ids))
        engine.add_request("u", "alone", cold, ids + forked)
        engine.add_request("u", "first", cold, ids)
        while engine.has_unfinished_requests():
            for r in engine.step():
                got.setdefault(r.request_id, []).append(r)
    tokens = {name: [r.token_id for r in records] for name, records in got.items()}
    results += [(tokens["same"] == tokens["parent"][len(forked):], tokens), (tokens["own"] == tokens["alone"], tokens),
                (tokens["early"] == tokens["first"], tokens), (got["same"][0].prompt_len == len(ids) + len(forked), got["same"][0]),
                (got["early"][0].prompt_len == len(ids), got["early"][0])]
    count.group("branches", results)


def engine_records(count):
    with LLMEngine(NANO, **SIZES) as engine:
        t = engine.get_tokenizer()
        ids = t.encode(PROMPTS[0])
        array = (ctypes.c_int32 * len(ids))(*ids)
        for name in ("a", "b", "c"):
            engine.add_request("user", name, SamplingParams(temperature=0, max_tokens=30, ignore_eos=name != "a", top_logprobs=2), array)
        got = {"a": [], "b": [], "c": []}
        results = [refused(InvalidError, "request_id", lambda: engine.add_request("u", "a", SamplingParams(), ids)),
                   refused(InvalidError, "position 1", lambda: engine.add_request("u", "d", SamplingParams(), [3, 1 << 21])),
                   refused(UnsupportedError, "enqueue", lambda: engine.add_request("u", "d", SamplingParams(), ids, enqueue=False)),
                   (engine.get_num_unfinished_requests() == 3 and engine.has_unfinished_requests(), "three wait")]
        aborted = None
        while engine.has_unfinished_requests():
            for r in engine.step():
                got[r.request_id].append(r)
            if aborted is None and len(got["b"]) >= 5:
                aborted = engine.abort_request(["b", "nobody"])
                seen = len(got["b"])
        results += [(aborted == (1, seen) and len(got["b"]) == seen, (aborted, seen, len(got["b"]))),
                    (got["a"][-1].finish_reason == "stop" and got["a"][-1].token_id == t.eos_token_id and len(got["a"]) < 30, got["a"]),
                    (got["c"][-1].finish_reason == "length" and [r.num_output_tokens for r in got["c"]] == list(range(1, 31)), got["c"]),
                    (all(not r.finished and r.finish_reason is None for r in got["c"][:-1]), got["c"]),
                    ([r.token_id for r in got["b"]] == [r.token_id for r in got["c"]][:seen], (got["b"], got["c"])),
                    (got["a"][0].nextn_logprobs == 1.0 and got["a"][0].sum_smaller_probs == -1.0 and len(got["a"][0].top_logprobs) == 2, got["a"][0])]
        engine.flush_inflight_reqs()
        s = engine.stats()
        results.append((s["running"] == s["waiting"] == 0 and s["free_blocks"] == s["blocks"], s))
    count.group("engine step by step", results)


async def stream(llm, prompt, params, pieces):
    async for delta in llm.generate(prompt, params):
        pieces.append(delta)
    return pieces[-1].output


async def streaming(count, whole):
    params = SamplingParams(temperature=0, max_tokens=20)
    async with AsyncLLM(NANO, **SIZES) as llm:
        pieces = [[] for _ in PROMPTS]
        outs = await asyncio.gather(*[stream(llm, p, params, got) for p, got in zip(PROMPTS, pieces)])
        results = [("".join(d.text for d in got) == out == w and sum((d.token_ids for d in got), []) == w.outputs[0].token_ids == out.outputs[0].token_ids
                    and [d.finished for d in got] == [False] * (len(got) - 1) + [True] and got[-1].finish_reason == w.outputs[0].finish_reason,
                    (got, w)) for got, out, w in zip(pieces, outs, whole)]
        results.append((max(len(got) for got in pieces) > 3, "it came in pieces"))
        endless = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
        iterator = llm.generate("Once", endless)
        async for delta in iterator:
            if delta.text:
                break
        await iterator.aclose()
        task = asyncio.ensure_future(stream(llm, "Once", endless, []))
        await asyncio.sleep(0.02)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        end = time.monotonic() + 20
        while llm.stats()["running"] and time.monotonic() < end:
            await asyncio.sleep(0.005)
        s = llm.stats()
        results.append((s["running"] == 0 and s["cancelled"] == 2 and s["free_blocks"] == s["blocks"], s))
        text = reasoning = ""
        async for delta in llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=200)):
            text, reasoning = text + delta.text, reasoning + delta.reasoning
        results.append((text == "The capital of France is Paris." and "capital" in reasoning, (text, reasoning)))
        try:
            await stream(llm, "x", SamplingParams(top_p=7), [])
            results.append((False, "top_p 7 was taken"))
        except InvalidError as err:
            results.append(("top_p" in str(err), str(err)))
    count.group("streaming", results)


def closing_in_the_middle(count):
    """Records unread, requests running, a reader's thread at work."""
    async def leave():
        llm = AsyncLLM(NANO, **SIZES)
        iterator = llm.generate("Once", SamplingParams(max_tokens=900, ignore_eos=True))
        await iterator.__anext__()
        llm.close()
        await iterator.aclose()
    asyncio.run(leave())
    engine = LLMEngine.from_engine_args(EngineArgs(NANO, max_model_len=512, max_num_seqs=2))
    for i in range(5):
        engine.add_request(0, i, SamplingParams(max_tokens=40), [5, 6, 7])
    engine.step()
    engine.close()
    count.group("closing in the middle", [(True, "")])


def python(interpreter, args, env, folder):
    return subprocess.run([interpreter, *args], cwd=folder, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, check=False)


def check_scripts(run):
    offline, loop = run("offline.py"), run("engine_loop.py")
    return [(offline.returncode == 0 and "-> ' is Paris.'" in offline.stdout and "by ids: the same" in offline.stdout, offline.stdout),
            (loop.returncode == 0 and "0 stop 6 ' is Paris.'" in loop.stdout and "left: 0" in loop.stdout and "aborted (requests, tokens): (1, 0)" in loop.stdout,
             loop.stdout)]


def wheel(count, library):
    """Built, installed into a fresh environment without any index, used from there: the DeepInfer-style scripts run on it."""
    with tempfile.TemporaryDirectory() as folder:
        built = python(sys.executable, [os.path.join(ROOT, "python", "backend.py"), library, folder], {}, folder)
        wheels = list(pathlib.Path(folder).glob("deepinfer-*-py3-none-linux_*.whl"))
        results = [(built.returncode == 0 and len(wheels) == 1, built.stdout)]
        venv = os.path.join(folder, "venv")
        made = python(sys.executable, ["-m", "venv", venv], {}, folder)
        inside = os.path.join(venv, "bin", "python")
        installed = python(inside, ["-m", "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check", *map(str, wheels)], {}, folder)
        results.append((made.returncode == installed.returncode == 0, made.stdout + installed.stdout))
        where = python(inside, ["-c", "import deepinfer, os; print(deepinfer.use_library()._name, os.path.exists(deepinfer.__path__[0] + '/py.typed'))"], {},
                       folder)
        results.append((venv in where.stdout and "True" in where.stdout, where.stdout))
        results += check_scripts(lambda name: python(inside, [os.path.join(ROOT, "python", "examples", name), NANO], {}, folder))
        count.group("wheel in a fresh environment, scripts written for DeepInfer", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    binary = os.path.abspath(parser.parse_args().binary)
    library = os.path.join(os.path.dirname(binary), "libdeepinfer.so")
    count = Count()
    if is_sanitized(binary):
        count.group("an instrumented library cannot be loaded into Python", [(True, "")])
        return count.finish()
    deepinfer.use_library(library)
    prog = Program(binary)
    with LLM(NANO, **SIZES) as llm:
        same_as_program(count, prog, llm)
        chat_as_program(count, prog, llm)
        outputs(count, llm)
        several_answers(count, llm)
        tokenizer(count, llm)
        bad_arguments(count, llm)
        threads(count, llm)
        many_prompts(count, llm)
        whole = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=20), **quiet)
    asyncio.run(streaming(count, whole))
    engine_records(count)
    branches(count)
    closing_in_the_middle(count)
    warned_once(count)
    wheel(count, library)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
