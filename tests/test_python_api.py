#!/usr/bin/env python3
"""The Python package as code that others build on: wrong arguments, copies, forked processes, types, help.

usage: test_python_api.py [--binary build/deepinfer]        (libdeepinfer.so lies beside the program)
"""
import argparse
import copy
import inspect
import json
import math
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

from program import NANO, ROOT, Count, is_sanitized, read

PACKAGE = os.path.join(ROOT, "python")
sys.path.insert(0, PACKAGE)
import deepinfer  # noqa: E402
from deepinfer import args  # noqa: E402
from deepinfer import LLM, AsyncLLM, DeepInferError, EngineArgs, LLMEngine, SamplingParams, Tokenizer  # noqa: E402

SIZES = {"max_model_len": 512, "max_num_seqs": 4}
QUESTION = [{"role": "user", "content": "hi"}]
quiet = {"use_tqdm": False}


# ---- wrong arguments ----

PARAMS = {
    "temperature": ["1", None, [], 1 << 2000, True, -1, math.nan], "top_p": ["x", None, 0], "top_k": ["5", None, True, 1 << 80, 1.5], "min_p": [{}, 2],
    "max_tokens": ["5", 1.5, True, 1 << 80, [1], -1], "min_tokens": ["x", -1, 1.5, None], "stop": [5, [5], b"x", {"a": 1}, [b"x"], "", "\ud800", "a\0b", ["a"] * 20],
    "stop_token_ids": [5, ["x"], "12", [1.5], [1 << 40], [-1], {1}], "seed": ["x", 1.5, 1 << 64, True, -1], "seq_seed": ["x", 1.5, -1, 1 << 64], "presence_penalty": ["x", None, 9],
    "frequency_penalty": [[], -3], "repetition_penalty": ["x", 0], "logit_bias": [[], 5, {"x": 1}, {5: "x"}, {1 << 40: 1}, {5: None}, {True: 1}],
    "logprobs": ["x", -1, 1.5, 21], "top_logprobs": ["x", -1, 1.5, None, 21], "ignore_eos": ["x", 5, None, []], "first_n_token_no_eos": ["x", -1, None],
    "golden_token_ids": [5, "x", [1.5], [1 << 40]], "so_args": [5], "include_stop_str_in_output": ["x"], "skip_special_tokens": ["x"], "n": ["x", 1.5, True, 0, None, 129],
    "best_of": ["x", 2], "bad_words": ["x", [1]], "prompt_logprobs": [1],
}
ENGINE = {
    "threads": ["x", 1.5, 1 << 40, -1, True], "isa": [5, "foo", "a\0b"], "numerics": ["x", 5], "max_num_seqs": [1.5, "4", 1 << 40, 0], "prefill_chunk": [1 << 40, []],
    "cache_blocks": [-1, 1 << 33], "max_model_len": ["1000", -1, 1 << 70], "state_slots": [-1, 1 << 40], "replay": ["x", 5], "replay_rows": [-1, "x"], "draft": ["x", 5, "scheduled"], "draft_tokens": [-1, 6, "x"],
    "seed": ["x", 1.5, None, 1 << 64, -1], "enable_prefix_caching": ["x", 5], "decode_sequence": ["x", 5, None], "gpu_memory_utilization": ["x"],
}
NAMES = {"max_num_seqs": "max_batch", "max_model_len": "context", "isa": "isa|cpu-isa"}


def one_error(what, names, call):
    """A DeepInferError that names the argument, in one traceback."""
    try:
        call()
    except DeepInferError as err:
        alone = err.__cause__ is None and (err.__context__ is None or err.__suppress_context__)
        return alone and re.match(names, err.where) and 5 < len(err.message) < 300 and err.code in ("invalid", "unsupported", "limit", "not_found"), (what, repr(err))
    except BaseException as err:
        return False, (what, f"{type(err).__name__}: {err}")
    return False, (what, "was taken")


def wrong_arguments(count, llm):
    def generate(*args, **kwargs):
        return lambda: llm.generate(*args, **quiet, **kwargs)

    def chat(*args, **kwargs):
        return lambda: llm.chat(*args, **quiet, **kwargs)
    results = [one_error((name, v), NAMES.get(name, name), lambda name=name, v=v: llm.generate("x", SamplingParams(**{name: v}), **quiet))
               for name, values in PARAMS.items() for v in values]
    count.group("wrong sampling parameters", results)
    later = SamplingParams()
    later.stop = 5
    count.group("wrong prompts and the like", [one_error(names, names, call) for names, call in [
        ("prompts", generate(5)), ("prompts", generate([5, "x"])), (r"prompts\[0\]", generate([None])), ("prompts", generate(b"abc")), ("prompts", generate({})),
        ("prompts", generate({"x": 1})), ("prompt", generate([[]])), (r"prompts\[1\]", generate(["a", 1.5])), (r"prompts\[0\]", generate([[1.5]])), ("prompts", generate(object())),
        ("prompts", generate(True)), ("prompts", generate({"a", "b"})), ("prompt", generate("\ud800")), ("prompts", generate()), ("prompt_token_ids", generate(prompt_token_ids=5)),
        ("prompt_token_ids", generate(prompt_token_ids="x")), (r"prompt_token_ids\[0\]", generate(prompt_token_ids=["x"])),
        (r"prompt_token_ids\[0\]", generate(prompt_token_ids=[["x"]])), ("sampling_params", generate("x", "x")), ("sampling_params", generate("x", 5)),
        ("sampling_params", generate("x", {"temperature": 0})), (r"sampling_params\[0\]", generate("x", [5])), ("sampling_params", generate("x", [])), ("stop", generate("x", later)),
        ("priority", generate("x", priority=[])), ("priority", generate("x", priority=[1, 2])), ("priority", generate("x", priority=5)),
        ("priority", generate("x", priority=["x"])), ("priority", generate("x", priority=[1 << 40])), ("multi_modal_data", generate("x", multi_modal_data=[1])),
        ("messages", chat(5)), ("messages", chat([])), (r"messages\[0\]", chat([5])), ("messages", chat("x")), ("messages", chat(None)), ("messages", chat(QUESTION[0])),
        (r"messages\[1\]\[0\]", chat([QUESTION, ["x"]])), ("messages", chat([{"role": "user", "content": {1, 2}}])), ("messages", chat([{"role": "user", "content": "\ud800"}])),
        ("temperature", chat(QUESTION, temperature=math.nan)), ("tools", chat(QUESTION, tools=[object()])), ("temprature", chat(QUESTION, temprature=0)), ("prompt", chat(QUESTION, prompt="x")), ("sampling_params", chat(QUESTION, 5))]])
    t = llm.get_tokenizer()
    count.group("wrong texts and ids", [one_error(names, names, call) for names, call in [
        ("text", lambda: t.encode(5)), ("text", lambda: t.encode("\ud800")), ("text", lambda: t.encode(b"x")), ("ids", lambda: t.decode("x")), ("ids", lambda: t.decode([1 << 40])),
        ("", lambda: t.decode(-1)), ("ids", lambda: t.decode(None)), ("ids", lambda: t.decode([1.5]))]])
    results = [one_error((name, v), NAMES.get(name, name), lambda name=name, v=v: LLM(NANO, **{**SIZES, name: v})) for name, values in ENGINE.items() for v in values]
    results += [one_error(("model", v), "model|.*config.json", lambda v=v: LLM(v)) for v in (5, None, "", NANO + "\0x", "/\ud800", NANO.encode(), "/nowhere")]
    count.group("wrong engine arguments", results)
    with LLMEngine(pathlib.Path(NANO), **SIZES) as engine:
        def add(name="a", params=SamplingParams(), ids=(5, 6), **more):
            return lambda: engine.add_request("u", name, params, ids, **more)
        add("here")()
        results = [one_error(names, names, call) for names, call in [
            ("request_id", add([])), ("request_id", add("here")), ("sampling_params", add(params=5)), ("n", add(params=SamplingParams(n=2))), ("prompt_token_ids", add(ids="x")),
            ("prompt_token_ids", add(ids=5)), ("prompt_token_ids", add(ids=["x"])), ("chunk_checkpoints", add(chunk_checkpoints="x")), ("chunk_checkpoints", add(chunk_checkpoints=[1.5])),
            ("branch_id", lambda: engine.fork_request("here", "here")), ("branch_id", lambda: engine.fork_request("here", {})), ("request_id", lambda: engine.fork_request("x", "y")),
            ("sampling_params", lambda: engine.fork_request("here", "y", 5)), ("at", lambda: engine.fork_request("here", "y", at="x")), ("at", lambda: engine.fork_request("here", "y", at=-1))]]
        while engine.has_unfinished_requests():
            engine.step()
    count.group("wrong arguments of an engine step by step", results)


class Whole:
    """A number of another library."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def unusual_arguments(count, llm):
    greedy = SamplingParams(temperature=0, max_tokens=Whole(4), top_k=Whole(-1), seed=Whole(3), ignore_eos=1, n=Whole(1))
    ids = llm.get_tokenizer().encode("Once")
    want = llm.generate("Once", greedy, **quiet)
    count.group("unusual arguments", [(got == want, (what, got, want)) for what, got in [
        ("a tuple", llm.generate(("Once",), greedy, **quiet)), ("an iterator", llm.generate(iter(["Once"]), iter([greedy]), **quiet)), ("a mapping", llm.generate({"prompt": "Once"}, greedy, **quiet)),
        ("ids", llm.generate(ids, greedy, **quiet)), ("foreign ids", llm.generate([Whole(i) for i in ids], greedy, **quiet)), ("ids in a mapping", llm.generate({"prompt_token_ids": tuple(ids)}, greedy, **quiet)),
        ("lists of ids", llm.generate(prompt_token_ids=[range(ids[0], ids[0] + 1), ids][1:], sampling_params=[greedy], priority=[Whole(2)], **quiet))]])


# ---- copies ----

def copies(count, llm):
    plain, = llm.generate("The capital of France", SamplingParams(temperature=0, max_tokens=6, logprobs=2, n=2), **quiet)
    chat, = llm.chat(QUESTION, SamplingParams(max_tokens=5), **quiet)
    results = []
    for made in (pickle.dumps, copy.copy, copy.deepcopy):
        for out in (plain, chat):
            other = pickle.loads(made(out)) if made is pickle.dumps else made(out)
            results.append((type(other) is type(out) and str(other) == str(out) and vars(other) == vars(out), (made.__name__, other, vars(other))))
            results.append((made is copy.copy or other.outputs[0] is not out.outputs[0], made.__name__))
    results += [(pickle.loads(pickle.dumps(plain, protocol)).outputs == plain.outputs, protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    errors = []
    for call in (lambda: llm.generate("x", SamplingParams(top_p=7), **quiet), lambda: LLM("/nowhere"), lambda: llm.generate("x", SamplingParams(max_tokens=5000), **quiet),
                 lambda: llm.generate(["x", ""], **quiet), lambda: SamplingParams(so_args={"a": 1})):
        try:
            call()
        except DeepInferError as err:
            errors.append(err)
    errors.append(deepinfer.OutOfMemoryError("memory", "no more", "here"))
    for err in errors:
        for other in (pickle.loads(pickle.dumps(err)), copy.copy(err), copy.deepcopy(err)):
            results.append((type(other) is type(err) and str(other) == str(err) and (other.code, other.where, other.message) == (err.code, err.where, err.message), (err, other)))
    results.append((len(errors) == 6, errors))
    params = SamplingParams(stop=["a"], logit_bias={3: 1.5})
    results += [(pickle.loads(pickle.dumps(x)) == copy.deepcopy(x) == x, x) for x in (params, llm.histograms(), EngineArgs(NANO), deepinfer.Delta("a", output=plain),
                                                                                      deepinfer.TokenRecord("a", 1, 2, 3, 0.5))]
    for thing in (llm, llm.get_tokenizer()):
        for made in (pickle.dumps, copy.deepcopy):
            try:
                made(thing)
                results.append((False, f"{made.__name__} of {thing}"))
            except TypeError as err:
                results.append(("open one in each process" in str(err), err))
    count.group("copies", results)


# ---- forks ----

FORKS = """
import asyncio, multiprocessing, os, signal, sys, threading, time
import deepinfer
from deepinfer import args  # noqa: E402
from deepinfer import LLM, AsyncLLM, InvalidError, LLMEngine, SamplingParams
deepinfer.use_library(sys.argv[1])
sizes = {"max_model_len": 512, "max_num_seqs": 4}
greedy = SamplingParams(temperature=0, max_tokens=5)
quiet = {"use_tqdm": False}

def refused(call):
    try:
        call()
    except InvalidError as err:
        return "before this process was forked" in str(err)
    return False

async def collect(llm):
    return [d async for d in llm.generate("x", greedy)]

async def first(llm):
    async for d in llm.generate("Once", SamplingParams(max_tokens=400, ignore_eos=True)):
        return d

def status_of(child):
    pid = os.fork()
    if pid == 0:  # the child ends as a program does: exceptions, finalizers, exit handlers
        signal.alarm(20)
        sys.exit(0 if child() else 5)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def use_all(llm, engine, streaming):
    good = refused(lambda: llm.generate("x", greedy, **quiet)) and refused(lambda: llm.chat([{"role": "user", "content": "x"}], greedy, **quiet))
    good = good and refused(lambda: engine.step()) and refused(lambda: engine.flush_inflight_reqs()) and refused(lambda: engine.add_request(0, "b", greedy, [5]))
    good = good and refused(lambda: asyncio.run(collect(streaming))) and refused(llm.stats) and refused(lambda: llm.get_tokenizer().encode("x"))
    engine.abort_request("a")
    llm.close(), engine.close(), streaming.close(), llm.close()
    with LLM(sys.argv[2], **sizes) as own:
        return good and own.generate("Once", greedy, **quiet) == want

def task(prompt):
    return refused(lambda: llm.generate(prompt, greedy, **quiet))

llm, engine, streaming = LLM(sys.argv[2], **sizes), LLMEngine(sys.argv[2], **sizes), AsyncLLM(sys.argv[2], **sizes)
want = llm.generate("Once", greedy, **quiet)
print("idle", status_of(lambda: use_all(llm, engine, streaming)))
print("nothing done", status_of(lambda: True))
engine.add_request(0, "a", SamplingParams(max_tokens=50, ignore_eos=True), [5, 6])
engine.step()
endless = SamplingParams(max_tokens=400, ignore_eos=True)
workers = [threading.Thread(target=lambda: [llm.generate(["a", "b"], endless, **quiet) for _ in range(4)]) for _ in range(2)]
for w in workers:
    w.start()
stop = threading.Event()
def keep_streaming():
    while not stop.is_set():
        asyncio.run(first(streaming))
streamer = threading.Thread(target=keep_streaming)
streamer.start()
for i in range(6):
    time.sleep(0.01 * i)
    print("at work", status_of(lambda: use_all(llm, engine, streaming)))
    print("nothing done, at work", status_of(lambda: True))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print("pool", 0 if pool.map(task, ["a", "b", "c"]) == [True] * 3 else 1)
stop.set()
for w in [*workers, streamer]:
    w.join()
print("parent", 0 if llm.generate("Once", greedy, **quiet) == want else 1)
while engine.has_unfinished_requests():
    engine.step()
print("parent's engine", 0)
llm.close(), engine.close(), streaming.close()
"""


def forks(count, library):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(FORKS)
        script.flush()
        run = subprocess.run([sys.executable, "-u", script.name, library, NANO], env={**os.environ, "PYTHONPATH": PACKAGE}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=200, check=False)
    lines = [line for line in run.stdout.splitlines() if re.fullmatch(r"[a-z', ]+ -?\d+", line)]
    count.group("forked processes", [(line.endswith(" 0"), (line, run.stdout[-1500:])) for line in lines] + [(len(lines) == 17 and run.returncode == 0, run.stdout[-1500:])])


# ---- a model that changes ----

CHANGED = """
import os, sys
import deepinfer
from deepinfer import DeepInferError, LLM
deepinfer.use_library(sys.argv[1])
llm = LLM(sys.argv[2], max_model_len=512)
if sys.argv[3:]:
    import faulthandler
    faulthandler.enable(open(os.devnull, "w"))
for name in os.listdir(sys.argv[2]):
    if name.endswith(".safetensors"):
        os.truncate(os.path.join(sys.argv[2], name), 100)
for _ in range(2):
    try:
        llm.generate("x", use_tqdm=False)
    except DeepInferError as err:
        print(err.code, "has 100 now" in str(err))
print(llm.stats()["failing"])
llm.close()
"""


def changed_model(count, library):
    results = []
    for options, more in (([], []), (["-X", "faulthandler"], []), ([], ["faulthandler, later"])):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "nano")
            shutil.copytree(NANO, model, ignore=shutil.ignore_patterns("eval.jsonl"))
            run = subprocess.run([sys.executable, *options, "-c", CHANGED, library, model, *more], env={**os.environ, "PYTHONPATH": PACKAGE}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        results.append((run.returncode == 0 and run.stdout == "io True\nio True\n1\n", (options, more, run.returncode, run.stdout)))
    count.group("a model that changes while it is open", results)


# ---- types ----

TYPED = """
import deepinfer
from deepinfer import LLM, RequestOutput, SamplingParams, TokenRecord


def strings(llm: LLM) -> list[RequestOutput]:
    a: list[RequestOutput] = llm.generate("x")
    b: list[RequestOutput] = llm.generate(["x", "y"], [SamplingParams()] * 2)
    c: list[RequestOutput] = llm.generate(prompt_token_ids=[[1, 2]])
    d: list[RequestOutput] = llm.chat([{"role": "user", "content": "x"}], tools=[])
    text: str = a[0]
    number: int = llm.generate("x")  # type: ignore
    wrong = llm.generate(5)  # type: ignore
    print(number, wrong, text.upper(), c[0].outputs[0].token_ids, deepinfer.__version__)
    return a + b + d


def records() -> list[list[TokenRecord]]:
    with LLM("model", decode_sequence=False, max_num_seqs=3) as one:
        first: TokenRecord = one.generate("x")[0][0]
    print(first.token_id)
    return LLM("model", decode_sequence=False).generate("x")


strings(LLM("model"))
strings(LLM("model", decode_sequence=True, seed=4))
"""


def examples():
    """(name, text) of what documentation shows: the blocks of docs/python.md and the scripts."""
    text = read(os.path.join(ROOT, "docs", "python.md")).decode()
    blocks = [textwrap.dedent(b) for b in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M)]
    for i, block in enumerate(b for b in blocks if "from deepinfer import" in b):
        yield f"python_md_{i}.py", block
    for path in sorted(pathlib.Path(PACKAGE, "examples").glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")


def types(count):
    with tempfile.TemporaryDirectory() as folder:
        files = dict(examples())
        for name, text in {**files, "typed.py": TYPED}.items():
            pathlib.Path(folder, name).write_text(text, encoding="utf-8")
        config = {"include": ["."], "typeCheckingMode": "strict", "extraPaths": [PACKAGE], "reportUnnecessaryTypeIgnoreComment": "error"}
        pathlib.Path(folder, "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
        env = {**os.environ, "MYPYPATH": PACKAGE, "PYTHONPATH": PACKAGE, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "NO_COLOR": "1"}
        results = [(len(files) == 5, sorted(files))]
        for tool in (["mypy", "--strict", "--cache-dir", os.devnull, os.path.join(PACKAGE, "deepinfer"), *sorted(files), "typed.py"], ["pyright", "-p", folder], ["pyright", "--verifytypes", "deepinfer", "--ignoreexternal"]):
            run = subprocess.run([sys.executable, "-m", *tool], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
            results.append((run.returncode == 0, (tool[0], run.stdout)))
    count.group("types of the examples, strictly", results)


def run_examples(count, library):
    results = []
    for name, text in examples():
        if name.startswith("python_md"):
            run = subprocess.run([sys.executable, "-c", f"import deepinfer; deepinfer.use_library({library!r})\n{text}"], cwd=ROOT, env={**os.environ, "PYTHONPATH": PACKAGE},
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
            results.append((run.returncode == 0 and run.stdout.strip(), (name, run.stdout)))
    count.group("examples of docs/python.md run", results)


# ---- help ----

def explained(count):
    """Every parameter stands in the help of its function or class, every argument of an engine in that of LLM."""
    results = [(re.search(rf" {name}(?: \(\w+\))?:|\({name}\):", LLM.__doc__), name) for name in (*args.OURS, *args.MAPPED)]
    for cls in (LLM, AsyncLLM, LLMEngine, SamplingParams, EngineArgs, Tokenizer):
        results.append((cls.__doc__ and "Args" not in cls.__doc__, cls))
        for name, function in inspect.getmembers(cls, inspect.isroutine):
            if name.startswith("_") and name != "__init__" or not getattr(function, "__module__", "").startswith("deepinfer"):
                continue
            doc = f"{cls.__doc__}\n{function.__doc__ or ''}" if name == "__init__" else function.__doc__ or ""
            results.append((len(doc) > 10, f"{cls.__name__}.{name} says nothing"))
            for parameter in inspect.signature(function).parameters:
                if cls is not EngineArgs and not (cls is Tokenizer and name == "__init__"):
                    results.append((parameter == "self" or re.search(rf"\b{parameter}\b", doc), f"{cls.__name__}.{name}: {parameter}"))
    count.group("help explains every parameter", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    binary = os.path.abspath(parser.parse_args().binary)
    library = os.path.join(os.path.dirname(binary), "libdeepinfer.so")
    count = Count()
    explained(count)
    types(count)
    if is_sanitized(binary):
        count.group("an instrumented library cannot be loaded into Python", [(True, "")])
        return count.finish()
    deepinfer.use_library(library)
    with LLM(NANO, **SIZES) as llm:
        wrong_arguments(count, llm)
        unusual_arguments(count, llm)
        copies(count, llm)
        count.group("and the engine goes on", [(llm.stats()["running"] == llm.stats()["waiting"] == 0, llm.stats())])
    run_examples(count, library)
    changed_model(count, library)
    forks(count, library)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
