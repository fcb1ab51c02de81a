#!/usr/bin/env python3
"""What must never bring the program down: broken requests, broken files, broken checkpoints. Exit codes and where messages go.

usage: test_bad_input.py [--binary build/deepinfer]
The exit status is 0 if all is good, 1 if some lines failed, 2 for wrong usage or a model that cannot be used (docs/design.md); a signal is
never allowed, nor is a message on stdout or a result on stderr.
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys

import program
from program import NANO, Count, Program, one_sentence, read

GOOD = {"id": "good", "prompt": "Hello", "max_tokens": 2, "temperature": 0}
SMALL = ("--context", 512, "--max-batch", 4)


def generate_line(prog, *lines, **kwargs):
    return prog.generate([GOOD, *lines, {**GOOD, "id": "after"}], *SMALL, **kwargs)


def good_around(records, n):
    return (len(records) == n + 2 and records[0]["id"] == "good" and records[-1]["id"] == "after" and
            all("text" in records[k] and records[k]["token_ids"] == records[0]["token_ids"] for k in (0, -1)))


# ---- requests ----

SAMPLING = [
    *({"temperature": x} for x in (-1, -1e-9, 2.0001, 1e308, "1", None.__class__.__name__, [], True)),
    *({"top_p": x} for x in (0, -0.5, 1.0001, 1e300, "x")), *({"min_p": x} for x in (-0.1, 1.5, {})),
    *({"top_k": x} for x in (-2, 1.5, 1e30, "5", 2 ** 40)), *({"repetition_penalty": x} for x in (0, -1, 1e9, "1")),
    *({"presence_penalty": x} for x in (-2.1, 3)), *({"frequency_penalty": x} for x in (-2.1, 1e99)), *({"seed": x} for x in (-2 ** 63 - 1, 2 ** 63, 1.5, "a")),
    *({"max_tokens": x} for x in (0, -1, 1.5, 2 ** 31, 10 ** 30, "5", [1])), *({"min_tokens": x} for x in (-1, 0.5)),
    *({"n": x} for x in (0, -1, 1000)), *({"logprobs": x} for x in (-1, 21, "x")), {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1},
    *({"stop": x} for x in ("", [""], [1], 5, {}, ["a"] * 100000)), *({"stop_token_ids": x} for x in ([-1], [5120], ["a"], 5, [2 ** 40])),
    *({"logit_bias": x} for x in ({"-1": 1}, {"5120": 1}, {"a": 1}, {"5": 101}, {"5": "x"}, [], {"5": None}, {"99999999999999999999": 1})),
    *({"ignore_eos": x} for x in (1, "true")),
]
PROMPTS = [
    {"prompt": ""}, {"prompt": 5}, {"prompt": None}, {"prompt": ["a"]}, {"prompt": {}}, {"prompt": "a", "prompt_token_ids": [1]}, {"prompt": "word " * 2000},
    {"prompt_token_ids": []}, {"prompt_token_ids": "1,2"}, {"prompt_token_ids": [5120]}, {"prompt_token_ids": [-1]}, {"prompt_token_ids": [1.5]},
    {"prompt_token_ids": [2 ** 31]}, {"prompt_token_ids": [10 ** 25]}, {"prompt_token_ids": [[1]]}, {"prompt_token_ids": [None]},
    {"prompt_token_ids": [5] * 513, "max_tokens": 1}, {"prompt_token_ids": [5] * 512, "max_tokens": 1}, {"prompt_token_ids": [5] * 500, "max_tokens": 20},
]
MESSAGES = [
    {}, {"messages": []}, {"messages": 5}, {"messages": {}}, {"messages": [5]}, {"messages": [{}]}, {"messages": [{"role": "x", "content": "a"}]},
    {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": 5}]}, {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
    *({"messages": [{"role": "user", "content": "hi"}], "thinking": x} for x in (5, {"type": "x"}, [])),
    *({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": x} for x in (0, 101, "huge", -5)),
    *({"messages": [{"role": "user", "content": "json"}], "response_format": x}
      for x in (5, {}, {"type": "x"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 5}})),
    {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "user", "content": "hi"}], "tools": 5},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}, {"messages": [{"role": "user", "content": "word " * 3000}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]},
]
TEXTS = [  # not a request at all
    b"{", b"}", b"[]", b"5", b"null", b'"x"', b"nan", b'{"prompt": "a"', b'{"prompt": "a"} x', b'{"prompt": "a",}', b"{'prompt': 'a'}", b"\xff\xfe\x00\x01",
    b'{"prompt": "\xff"}', b'{"prompt": "\xc3"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}', b'{"prompt": "a\x00b"}', b'{"prompt": "a\tb"}',
    b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "a", "temperature": 1e999}', b"[" * 100000,
    b'{"a":' * 100000, b'{"prompt": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"\x00" * 1000, bytes(range(14, 256)), b"\xef\xbb\xbf{}", b"-", b"--5",
    b'{"prompt": "a", "max_tokens": 1, "max_tokens": -1}',
]
FINE = [  # odd, but a request
    b'{"prompt": "a", "max_tokens": 1, "temperature": -0.0}', b'{"prompt": "b", "prompt": "a", "max_tokens": 9, "max_tokens": 1}', b'{"prompt": "a", "max_tokens": 1}\r',
    b'  \t{"prompt": "a", "max_tokens": 1}  ', b'{"prompt": "a\\u0000b", "max_tokens": 1}', b'{"prompt": "a", "max_tokens": 1, "id": {"deep": [1, null, "x"]}}',
    b'{"prompt": "a", "max_tokens": 1, "id": 123456789012345678901234567890}', b'{"prompt": "a", "max_tokens": 1, "seed": 9223372036854775807}',
    b'{"prompt": "\\ud83d\\ude00", "max_tokens": 1, "temperature": 2, "top_k": 2147483647}', b'{"prompt": "a", "max_tokens": 1, "temperature": null, "stop": null}',
    json.dumps({"prompt_token_ids": [5] * 511, "max_tokens": 1}).encode(), b'{"prompt": "a", "max_tokens": 1, "no_such_field": 1}',
    b'{"prompt": "a", "max_tokens": 1, "thinking": {"type": "enabled"}}', b'{"prompt": "a", "max_tokens": 1, "thinking": true}',
]


def check_lines(count, prog):
    groups = {"sampling fields": [{**GOOD, "id": k, **x} for k, x in enumerate(SAMPLING)],
              "prompts": [{"id": k, "max_tokens": 2, **x} for k, x in enumerate(PROMPTS)],
              "messages": [{"id": k, **x} for k, x in enumerate(MESSAGES)], "lines that are no request": TEXTS}
    for name, lines in groups.items():
        r = generate_line(prog, *lines)
        records = r.records()
        results = [(r.status == 1, r), (good_around(records, len(lines)), "the lines around them")]
        for k, (line, out) in enumerate(zip(lines, records[1:-1])):
            error = out.get("error", {})
            results.append((error.get("line") == k + 2 and error.get("code") in ("invalid", "limit", "unsupported", "format") and
                            10 < len(error.get("message", "")) < 500 and out["id"] == (line["id"] if isinstance(line, dict) else None),
                            (str(line)[:200], out)))
        count.group(f"bad {name}", results)
    r = generate_line(prog, *FINE)
    records = r.records()
    count.group("odd but fine lines", [(r.status == 0 and good_around(records, len(FINE)), r)] + [("text" in o, (l[:100], o)) for l, o in zip(FINE, records[1:-1])] +
                [(records[6]["id"] == {"deep": [1, None, "x"]} and records[7]["id"] == 123456789012345678901234567890, "ids come back as sent"),
                 (r.err.count(b"no_such_field") == 1 and b"ignored" in r.err, r.err),
                 (r.err.count(b"\"thinking\" means nothing beside a raw prompt") == 1, r.err)])


def check_shapes(count, prog):
    line = json.dumps(GOOD).encode()
    want = prog.generate([GOOD], *SMALL).out
    cases = {"empty": (b"", 0, 0), "only newlines": (b"\n\n\r\n  \n", 0, 0), "no newline at the end": (line, 0, 1), "crlf": (line + b"\r\n" + line + b"\r\n", 0, 2),
             "empty lines between": (b"\n\n" + line + b"\n\n\n" + line, 0, 2), "bom": (b"\xef\xbb\xbf" + line, 0, 1), "utf-16": (line.decode().encode("utf-16"), 1, 1),
             "binary": (bytes(range(256)) * 40, 1, None)}
    results = []
    for name, (data, status, n) in cases.items():
        path = prog.write(data)
        r = prog.run("generate", "--model", NANO, "--input", path, *SMALL)
        results.append((r.status == status and (n is None or len(r.records()) == n) and (status or r.out == want * n), (name, r)))
        again = prog.run("generate", "--model", NANO, "--input", "-", *SMALL, stdin=data)
        results.append((again.status == status and again.out == r.out, (name, "stdin", again)))
    numbers = prog.generate([b"", b"x", b"", b"", b"y"], *SMALL).records()
    results.append(([e["error"]["line"] for e in numbers] == [2, 5], numbers))
    count.group("shapes of the input", results)


def check_huge_lines(count, prog):
    """100 MB each, written in pieces so that this process stays small."""
    if prog.sanitized:
        return
    pieces = {"text": (b'{"prompt": "', b"a b c d ", b'"}'), "no json": (b"", b"x" * 64, b""), "numbers": (b'{"prompt_token_ids": [', b"1,", b"1]}"),
              "lists": (b'{"prompt": "a", "max_tokens": 1, "x": [', b"[],", b"0]}"), "keys": (b'{"prompt": "a", "max_tokens": 1', b',"k":1', b"}"),
              "message": (b'{"messages": [{"role": "user", "content": "', b"\\u00e4", b'"}]}')}
    results = []
    for name, (head, body, tail) in pieces.items():
        path = prog.path()
        with open(path, "wb") as f:
            f.write(json.dumps(GOOD).encode() + b"\n")
            block = body * (2 ** 16 // len(body))
            for _ in range(3):
                f.write(head)
                for _ in range(100 * 2 ** 20 // len(block)):
                    f.write(block)
                f.write(tail + b"\n")
            f.write(json.dumps({**GOOD, "id": "after"}).encode() + b"\n")
        r = prog.run("generate", "--model", NANO, "--input", path, *SMALL)
        os.unlink(path)
        records = r.records()
        print(f"   100 MB of {name}: peak {r.rss / 2 ** 20:.0f} MiB, {r.cpu:.1f} s")
        results.append((r.status == 1 and good_around(records, 3) and all(10 < len(o["error"]["message"]) < 500 for o in records[1:-1]), (name, r)))
        results.append((r.rss < 1000 * 2 ** 20, (name, r.rss)))
    count.group("lines of 100 MB", results)


# ---- usage, files, descriptors ----

def check_usage(count, prog):
    model = ["generate", "--model", NANO]
    folder = prog.path()
    os.mkdir(folder)
    no = os.path.join(folder, "no", "such", "file")
    full = os.path.join(prog.folder.name, "full")
    os.symlink("/dev/full", full)  # never the device itself: a defect could replace it
    bad = [[], ["no-such-command"], ["generate"], model, [*model, "--prompt", "a", "--input", "x"], [*model, "--input", no], [*model, "--input", folder],
           [*model, "--prompt", "a", "--output", no], [*model, "--prompt", "a", "--output", folder], [*model, "--prompt", "a", "--output", full],
           [*model, "--prompt", b"a\xff"], [*model, "--prompt"], [*model, "--prompt", "a", "--no-such-option"], [*model, "--prompt", "a", "--resume"],
           [*model, "--input", "/dev/null", "--stop", "x"], [*model, "--prompt", "a", "--backend", "cuda"], [*model, "--prompt", "a", "--cpu-isa", "sse9"],
           [*model, "--prompt", "a", "--numerics", "f64"], ["generate", "--model", no, "--prompt", "a"], ["generate", "--model", "", "--prompt", "a"],
           ["generate", "--model", os.path.join(NANO, "config.json"), "--prompt", "a"], ["generate", "--model", folder, "--prompt", "a"]]
    for flag, values in {"--max-tokens": ["0", "-1", "x", "1e3", "99999999999999999999"], "--temperature": ["-1", "nan", "inf", "2.1", "", "1x"],
                         "--top-p": ["0", "-1", "nan", "1.1"], "--top-k": ["-2", "1.5"], "--min-p": ["-0.1", "nan", "2"], "--seed": ["x", "1.5", "-1"], "--threads": ["-1", "1025"],
                         "--max-batch": ["0", "-5", "1025"], "--prefill-chunk": ["0", "-1", "65537"], "--context": ["-1", "999999999", "65537", "4294967296"]}.items():
        bad += [[*model, "--prompt", "a", flag, v] for v in values]
    results = []
    for args in bad:
        r = subprocess.run([prog.binary, *args], stdin=subprocess.DEVNULL, capture_output=True, cwd=program.ROOT)
        results.append((r.returncode == 2 and r.stdout == b"" and b"deepinfer" in r.stderr and len(r.stderr) < 5000, (args, r)))
    count.group("wrong usage and files", results)  # a memory plan may stand before the sentence
    empty = prog.run(*model, "--prompt", "", "--raw")
    long = prog.run(*model, "--prompt", "word " * 4000, *SMALL)
    count.group("--prompt that fails", [(r.status == 1 and "error" in r.records()[0], r) for r in (empty, long)])


def check_descriptors(count, prog):
    source = prog.write((json.dumps(GOOD) + "\n") * 5)
    args = [prog.binary, "generate", "--model", NANO, "--input", source, "--context", "512", "--max-batch", "2"]
    shell = ["sh", "-c", 'exec "$0" "$@" >&-']
    full, results = open("/dev/full", "wb"), []
    for name, command, stdout in (("stdout closed", [*shell, *args], subprocess.DEVNULL), ("stdout full", args, full)):
        r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE)
        results.append((r.returncode == 2 and one_sentence(r.stderr), (name, r)))
    read_end, write_end = os.pipe()
    os.close(read_end)
    r = subprocess.run(args, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    results.append((r.returncode == 2 and one_sentence(r.stderr), ("broken pipe", r)))
    target = prog.path()
    for name, redirect in (("stderr closed", "2>&-"), ("stdin closed", "<&-"), ("all closed", "<&- >&- 2>&-")):
        r = subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirect}', *args, "--output", target])
        results.append((r.returncode == 0 and len(program.parse_lines(read(target))) == 5, (name, r, read(target)[:300])))
    r = prog.run("generate", "--model", NANO, "--input", "-", *SMALL, stdin=os.open("/", os.O_RDONLY))
    results.append((r.status == 2 and one_sentence(r.err), ("stdin is a directory", r)))
    count.group("descriptors", results)


# ---- checkpoints ----

class ModelCopy:
    """A directory of links to the nano model in which files can be replaced."""

    def __init__(self, prog):
        self.prog, self.path = prog, prog.path()
        os.mkdir(self.path)
        for name in os.listdir(NANO):
            if name not in ("eval.jsonl", "README.md"):
                os.symlink(os.path.join(NANO, name), os.path.join(self.path, name))

    def file(self, name):
        return os.path.join(self.path, name)

    def remove(self, name):
        path = self.file(name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def put(self, name, data):
        self.remove(name)
        with open(self.file(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else json.dumps(data).encode())

    def restore(self, name):
        self.remove(name)
        os.symlink(os.path.join(NANO, name), self.file(name))

    def verdict(self, name, status=2):
        r = self.prog.run("generate", "--model", self.path, "--prompt", "a", "--max-tokens", "1", *SMALL, timeout=60)
        bounded = self.prog.sanitized or r.rss < 500 * 2 ** 20
        return r.status == status and bounded and (status == 0 or (r.out == b"" and one_sentence(r.err))), (name, r.rss >> 20, r)


def check_shards(count, prog):
    model, results = ModelCopy(prog), []
    results.append(model.verdict("untouched", 0))
    shards = sorted(n for n in os.listdir(NANO) if n.endswith(".safetensors"))
    for name in shards:
        data = read(os.path.join(NANO, name))
        header = struct.unpack("<Q", data[:8])[0]
        for cut in (0, 1, 7, 8, 9, 8 + header // 2, 8 + header - 1, 8 + header, 8 + header + 1, len(data) // 2, len(data) - 1) if name == shards[0] else (5, 20, len(data) - 1):
            model.put(name, data[:cut])
            results.append(model.verdict(f"{name} cut at {cut} of {len(data)}"))
        model.put(name, data + b"\0")
        results.append(model.verdict(f"{name} with a byte more"))
        if name == shards[0]:
            for claim in (0, 1, header - 1, header + 1, len(data), 10 ** 8, 2 ** 31, 2 ** 32 + header, 2 ** 63 - 1, 2 ** 63, 2 ** 64 - 8, 2 ** 64 - 1):
                model.put(name, struct.pack("<Q", claim) + data[8:])
                results.append(model.verdict(f"header claims {claim}"))
            for text in (b"[]", b"{}", b"null", b"{" * 1000, b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"\xff" * 50):
                model.put(name, struct.pack("<Q", len(text)) + text + data[8 + header:])
                results.append(model.verdict(f"header {text[:40]}"))
        model.remove(name)
        results.append(model.verdict(f"{name} missing"))
        os.mkdir(model.file(name))
        results.append(model.verdict(f"{name} is a directory"))
        model.restore(name)
    count.group("checkpoint: shards", results)


def check_headers(count, prog):
    model, results = ModelCopy(prog), []
    name = sorted(n for n in os.listdir(NANO) if n.endswith(".safetensors"))[0]
    data = read(os.path.join(NANO, name))
    header = struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:8 + header])
    key = next(k for k in tensors if k != "__metadata__" and len(tensors[k]["shape"]) == 2)
    start, end = tensors[key]["data_offsets"]
    changes = {"another dtype": {"dtype": "F64"}, "unknown dtype": {"dtype": "Q7"}, "shape transposed": {"shape": tensors[key]["shape"] + [1]}, "negative shape": {"shape": [-1, 4]},
               "huge shape": {"shape": [2 ** 40, 2 ** 40]}, "product overflows": {"shape": [2 ** 63, 2]}, "offsets swapped": {"data_offsets": [end, start]},
               "offsets beyond": {"data_offsets": [start, end + 10 ** 12]}, "offsets huge": {"data_offsets": [2 ** 64 - 1, 2 ** 64]}, "overlap": {"data_offsets": [max(start - 8, 0) + 1, end + 1]},
               "no shape": {"shape": None}, "text offsets": {"data_offsets": "0"}}
    for what, change in changes.items():
        text = json.dumps({**tensors, key: {**tensors[key], **change}}).encode()
        model.put(name, struct.pack("<Q", len(text)) + text + data[8 + header:])
        results.append(model.verdict(what))
    for what, edited in (("tensor missing", {k: v for k, v in tensors.items() if k != key}), ("tensor extra", {**tensors, "extra.weight": {"dtype": "U8", "shape": [0], "data_offsets": [end, end]}})):
        text = json.dumps(edited).encode()
        model.put(name, struct.pack("<Q", len(text)) + text + data[8 + header:])
        results.append(model.verdict(what))
    model.restore(name)
    index = json.loads(read(os.path.join(NANO, "model.safetensors.index.json")))
    for what, edited in (("empty", b""), ("no json", b"{"), ("no map", {}), ("map is a list", {"weight_map": []}), ("path outside", {"weight_map": {k: "../" + v for k, v in index["weight_map"].items()}}),
                         ("absolute path", {"weight_map": {k: "/etc/passwd" for k in index["weight_map"]}}), ("no such shard", {"weight_map": {k: "x.safetensors" for k in index["weight_map"]}}),
                         ("empty map", {"weight_map": {}})):
        model.put("model.safetensors.index.json", edited)
        results.append(model.verdict(f"index: {what}"))
    count.group("checkpoint: headers and index", results)


def check_config(count, prog):
    model, results = ModelCopy(prog), []
    config = json.loads(read(os.path.join(NANO, "config.json")))
    text = config["text_config"]
    values = {"num_attention_heads": [0, -1, 3, 2 ** 31, 1.5, "4", None], "num_hidden_layers": [0, -1, 11, 10 ** 9], "hidden_size": [0, -256, 255, 2 ** 31, 2 ** 62], "vocab_size": [0, 5119, 5121, 2 ** 31, -1],
              "head_dim": [0, 127, 2 ** 30], "n_routed_experts": [0, 23, 10 ** 8], "num_experts_per_tok": [0, 25, -1], "q_lora_rank": [0, 2 ** 31 - 1], "o_groups": [0, 3], "sliding_window": [0, -5, 2 ** 40],
              "compress_ratios": [[], 5, [0] * 5, [7] * 13, [0, 0] + [3] * 11], "kv_source_layer_ids": [[], [99], [-1], [6, 4, 2], "x"], "index_source_layer_ids": [[0], [50]], "candidate_source_layer_id": [99],
              "index_topk": [0, -1], "candidate_block_size": [0], "hc_mult": [0, 100], "engram_layer_ids": [[99], [1, 1]], "engram_num_embeddings": [[0, 0], [5], [2 ** 62, 2]], "engram_vocab_size": [0, -1],
              "engram_compressed_vocab_size": [4366, 0], "max_position_embeddings": [0, -1], "rope_theta": [0, -1, "x"], "rms_norm_eps": [-1, "nan"], "eos_token_id": [-1, 5120]}
    for key, list_ in values.items():
        for value in list_:
            edited = {**config, "text_config": {**text, key: value}} if key in text else {**config, key: value}
            model.put("config.json", edited)
            results.append(model.verdict(f"{key} = {value}"))
    for what, data in (("empty", b""), ("cut", json.dumps(config).encode()[:700]), ("list", []), ("no text_config", {k: v for k, v in config.items() if k != "text_config"}), ("binary", os.urandom(500)),
                       ("another model", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]})):
        model.put("config.json", data)
        results.append(model.verdict(f"config {what}"))
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        model.remove(name)
        results.append(model.verdict(f"{name} missing"))
        os.mkdir(model.file(name))
        results.append(model.verdict(f"{name} is a directory"))
        model.restore(name)
    count.group("checkpoint: config and missing files", results)


def check_tokenizer(count, prog):
    model, results = ModelCopy(prog), []
    whole = read(os.path.join(NANO, "tokenizer.json"))
    tok = json.loads(whole)
    vocab, merges = tok["model"]["vocab"], tok["model"]["merges"]

    def edited(what, status=2, **fields):
        model.put("tokenizer.json", {**tok, "model": {**tok["model"], **fields}})
        results.append(model.verdict(what, status))

    pair = merges[0] if isinstance(merges[0], list) else merges[0].split(" ")
    joined = pair[0] + pair[1]
    edited("merges with a cycle", merges=[[joined, pair[0]], [pair[0], joined], *merges] if isinstance(merges[0], list) else [f"{joined} {pair[0]}", *merges])
    edited("merge of unknown pieces", merges=[*merges, ["\u0394\u0394", "zzz"] if isinstance(merges[0], list) else "\u0394\u0394 zzz"])
    edited("a merge twice", merges=[*merges, merges[0]])
    edited("merges is a number", merges=5)
    edited("merge of three", merges=[["a", "b", "c"], *merges])
    edited("a token less", vocab={k: v for k, v in list(vocab.items())[:-1]})
    edited("two tokens with one id", vocab={**vocab, joined: 0})
    edited("negative id", vocab={**vocab, joined: -1})
    edited("huge id", vocab={**vocab, joined: 2 ** 31})
    edited("more ids than the model", vocab={**vocab, "q\u0120q\u0120": 7000})
    edited("vocab is a list", vocab=[])
    edited("another kind", type="Unigram")
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - 2):
        model.put("tokenizer.json", whole[:cut])
        results.append(model.verdict(f"cut at {cut}"))
    for what, data in (("empty object", {}), ("binary", os.urandom(3000)), ("deep", b"[" * 10 ** 6), ("no special tokens", {**tok, "added_tokens": []})):
        model.put("tokenizer.json", data)
        results.append(model.verdict(what))
    count.group("checkpoint: tokenizer", results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    args = parser.parse_args()
    count, prog = Count(), Program(args.binary)
    for check in (check_lines, check_shapes, check_huge_lines, check_usage, check_descriptors, check_shards, check_headers, check_config, check_tokenizer):
        check(count, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
