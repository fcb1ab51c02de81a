"""deepinfer inspect: the published totals on a sparse checkpoint of the full size, within its limits of time and memory; small models; refusals.

    python tests/test_inspect.py --binary build/deepinfer
"""
import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from program import ROOT, Count

MAX_SECONDS, MAX_RSS_KB = 2.0, 300 * 1024

# spec/model.md §2.1: part -> parameters, bytes
PARTS = {
    "embedding": (661913600, 1323827200),
    "head": (661913600, 1323827200),
    "final norm": (5120, 10240),
    "attention": (5064696320, 5069721600),
    "compressors": (18352128, 36704256),
    "indexer keys": (262656, 525312),
    "indexer queries": (43253760, 44605440),
    "router": (78673920, 157409280),
    "shared experts": (1415577600, 1416960000),
    "routed experts": (543581798400, 288777830400),
    "mHC": (39323760, 157295040),
    "layer norms": (409600, 819200),
    "engram projections": (314654720, 315043840),
    "engram tables": (196613849600, 202758032400),
    "draft": (14225362530, 7932874632),
    "vision": (485268480, 970536960),
}
TOTAL_TENSORS, TOTAL_BYTES, TOTAL_PARAMETERS = 96085, 510286023000, 763205315794


class Suite(Count):
    def __init__(self, binary):
        super().__init__()
        self.binary = os.path.abspath(binary)

    def equal(self, what, got, want):
        self.check(what, got == want, f"got {got!r}, want {want!r}")

    def run(self, *args):
        """Status, stdout, stderr, processor seconds, peak resident KB of one run."""
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        process = subprocess.Popen([self.binary, "inspect", *args], stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read().decode())
            f.close()
        return process.returncode, texts[0], texts[1], seconds, usage.ru_maxrss

    def refused(self, what, sentence, *args):
        status, out, err, _, _ = self.run(*args)
        self.check(what, status == 2 and out == "" and sentence in err and err.startswith("deepinfer inspect: "), f"{status} {out!r} {err!r}")


def full_size(s, temp):
    directory = os.path.join(temp, "full")
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_sparse_checkpoint"), directory], check=True, stdout=subprocess.DEVNULL)
    status, out, err, seconds, rss = s.run("--model", directory, "--plan", "--json", "--context", "131072", "--max-batch", "16", "--no-reuse")
    s.equal("full size: exit status", (status, err), (0, ""))
    s.check("full size: time", seconds < MAX_SECONDS, f"{seconds:.2f} s")
    s.check("full size: memory", rss < MAX_RSS_KB, f"{rss} KB")
    result = json.loads(out)
    s.equal("full size: tensors", result["tensors"], TOTAL_TENSORS)
    s.equal("full size: bytes", result["bytes"], TOTAL_BYTES)
    s.equal("full size: parameters", result["parameters"], TOTAL_PARAMETERS)
    s.equal("full size: shards", (result["shards"], result["extra_tensors"]), (48, 0))
    s.equal("full size: parts", {k: (v["parameters"], v["bytes"]) for k, v in result["parts"].items()}, PARTS)
    plan = result["plan"]
    regions = {r["name"]: r for r in plan["regions"]}
    s.check("full size: matrices", 290e9 < regions["matrices"]["bytes"] < 310e9, regions["matrices"])
    s.equal("full size: cache", (regions["cache blocks"]["unit_bytes"], regions["cache blocks"]["bytes"]), (56960, 890 * 131072 * 16))
    s.equal("full size: states", regions["request states"]["bytes"], 16 * (43 * 144 * 528 + 3 * 16 * 2 * 512 * 4))
    s.equal("full size: engram tables stay in the file", regions["engram tables"]["place"], "mapped")
    s.equal("full size: engram tables", regions["engram tables"]["bytes"], PARTS["engram tables"][1])
    for part in ("draft", "vision"):
        s.equal(f"full size: {part} is left alone", (regions[part]["place"], regions[part]["bytes"]), ("file", PARTS[part][1]))
    status, out, err, seconds, rss = s.run("--model", directory, "--plan")
    s.check("full size, text: limits", status == 0 and err == "" and seconds < MAX_SECONDS and rss < MAX_RSS_KB, f"{status} {err} {seconds} {rss}")
    for number in (f"{TOTAL_TENSORS:,}", f"{TOTAL_BYTES:,}", f"{TOTAL_PARAMETERS:,}", "298,624,579,008", "501,382,611,408", "56,960 ",
                   *(f"{b:,}" for _, b in PARTS.values())):
        s.check(f"full size, text: {number}", number in out)
    print(f"full size: {seconds:.2f} s, {rss / 1024:.0f} MB")
    os.truncate(os.path.join(directory, "model-00017-of-00048.safetensors"), 1 << 30)
    s.refused("full size, cut", "the file is truncated: tensor ", "--model", directory)


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def digest(directory):
    """SHA-256 as src/checkpoint/digest.c says, of a checkpoint of which every byte counts."""
    h = hashlib.sha256(b"deepinfer checkpoint 1\0")

    def add(name):
        path = os.path.join(directory, name)
        data = None
        if os.path.exists(path):
            with open(path, "rb") as f:
                data = f.read()
        h.update(struct.pack("<Q", (1 << 64) - 1 if data is None else len(data)) + (data or b""))
    for name in ("config.json", "tokenizer.json"):
        add(name)
    h.update(struct.pack("<Q", 0))
    for name in sorted(f for f in os.listdir(directory) if f.startswith("model-")):
        add(name)
    return h.hexdigest()


def small_models(s, _):
    models = [os.path.join("models", "nano")] + [os.path.join("tests", "data", "vectors", "tiny_" + x) for x in "abcd"]
    for model in models:
        directory = os.path.join(ROOT, model)
        tensors = {}
        for file in os.listdir(directory):
            if file.startswith("model-"):
                tensors.update(header(os.path.join(directory, file)))
        tensors.pop("__metadata__", None)
        status, out, err, _, _ = s.run("--model", directory, "--json", "--plan", "--context", "100", "--max-batch", "3")
        s.equal(f"{model}: exit status", (status, err), (0, ""))
        result = json.loads(out)
        s.equal(f"{model}: digest", result["digest"], digest(directory))
        s.equal(f"{model}: tensors", result["tensors"], len(tensors))
        s.equal(f"{model}: bytes", result["bytes"], sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors.values()))
        s.equal(f"{model}: sum of the parts", sum(p["bytes"] for p in result["parts"].values()), result["bytes"])
        regions = result["plan"]["regions"]
        for name, places in (("mapped", ("mapped",)), ("allocated", ("device", "host"))):
            s.equal(f"{model}: {name}", result["plan"][name + "_bytes"], sum(r["bytes"] for r in regions if r["place"] in places))
        left = sum(r["bytes"] for r in regions if r["place"] == "file")
        s.equal(f"{model}: left in the files", left, sum(result["parts"][part]["bytes"] for part in ("draft", "vision")))
        status, out, err, _, _ = s.run("--model", directory, "--plan")
        s.check(f"{model}: text", status == 0 and err == "" and f"{result['bytes']:,}" in out and result["digest"] in out)
    print(f"small models: {len(models)}")


def refusals(s, temp):
    nano = os.path.join(ROOT, "models", "nano")
    s.refused("no directory", "cannot be opened", "--model", os.path.join(temp, "nothing"))
    s.refused("no --model", "--model")
    s.refused("context too long", "the model's limit is 65536 tokens, context asks for 65537", "--model", nano, "--plan", "--context", "65537")
    s.refused("negative context", "--context", "--model", nano, "--plan", "--context", "-1")
    status, out, err, _, _ = s.run("--model", nano, "--plan", "--max-batch", "1024", "--cache-blocks", "2147483647", "--strict-memory")
    s.check("more than there is", status == 2 and "total" in out and "the plan takes" in err, f"{status} {err}")
    copy = os.path.join(temp, "nano")
    shutil.copytree(nano, copy)
    shard = os.path.join(copy, "model-00002-of-00003.safetensors")
    with open(shard, "rb") as f:
        whole = f.read()
    size = struct.unpack("<Q", whole[:8])[0]
    cuts = list(range(0, 9)) + [100, size, 8 + size, 8 + size + 1, len(whole) // 2, len(whole) - 1]
    for cut in cuts:
        with open(shard, "wb") as f:
            f.write(whole[:cut])
        s.refused(f"cut at {cut}", "truncated", "--model", copy)
    with open(shard, "wb") as f:
        f.write(struct.pack("<Q", 1 << 63) + whole[8:])
    s.refused("header of 2^63 bytes", "it claims a header of 9223372036854775808 bytes", "--model", copy)
    with open(shard, "wb") as f:
        f.write(whole)
    config = os.path.join(copy, "config.json")
    with open(config) as f:
        text = f.read()
    with open(config, "w") as f:
        f.write(text.replace('"num_attention_heads": 4', '"num_attention_heads": 0'))
    s.refused("zero heads", "num_attention_heads is 0", "--model", copy)
    with open(config, "w") as f:
        f.write(text)
    index = os.path.join(copy, "model.safetensors.index.json")
    with open(index) as f:
        names = f.read()
    with open(index, "w") as f:
        f.write(names.replace('"model-00002-of-00003.safetensors"', '"../nano/model-00002-of-00003.safetensors"', 1))
    s.refused("path in the index", "no plain file name", "--model", copy)
    print(f"refusals: {len(cuts) + 8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "deepinfer"))
    s = Suite(parser.parse_args().binary)
    with tempfile.TemporaryDirectory() as temp:
        for group in (full_size, small_models, refusals):
            group(s, temp)
    return s.finish()


if __name__ == "__main__":
    sys.exit(main())
