#!/usr/bin/env python3
"""Write src/text/unicode_classes.c from the range lists in tests/data/text/unicode_classes.json.

usage: make_unicode_classes.py [RANGES.json [OUTPUT.c]]
"""
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BITS = {"L": 1, "M": 2, "N": 4, "P": 8, "S": 16, "space": 32}
NEWLINE, CJK = 64, 128
BLOCK = 128


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests/data/text/unicode_classes.json")
    output = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "src/text/unicode_classes.c")
    with open(source, encoding="utf-8") as f:
        ranges = json.load(f)
    cls = bytearray(0x110000)
    for name, bit in BITS.items():
        for first, last in ranges[name]:
            for cp in range(first, last + 1):
                cls[cp] |= bit
    for cp in (10, 13):
        cls[cp] |= NEWLINE
    for first, last in ((0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF)):
        for cp in range(first, last + 1):
            cls[cp] |= CJK
    blocks, index = {}, []
    for start in range(0, 0x110000, BLOCK):
        block = bytes(cls[start:start + BLOCK])
        index.append(blocks.setdefault(block, len(blocks)))
    assert len(blocks) <= 256 and index[0] == 0
    out = ["/* Written by tools/make_unicode_classes.py; do not edit. Unicode 16.0, spec/encoding.md §1.4. */",
           '#include "text/unicode_classes.h"', "", "/* clang-format off */",
           f"const unsigned char di_unicode_index[{len(index)}] = {{"]
    out += rows(index)
    out += ["};", "", f"const unsigned char di_unicode_block[{len(blocks)}][{BLOCK}] = {{"]
    for block in blocks:
        lines = rows(block)
        out += ["{" + lines[0]] + lines[1:-1] + ([lines[-1] + "},"] if len(lines) > 1 else [])
    out += ["};", ""]
    with open(output, "w", encoding="utf-8") as f:
        f.write("\n".join(out))


def rows(values, columns=138):
    lines = [""]
    for v in values:
        if len(lines[-1]) + len(str(v)) + 1 > columns:
            lines.append("")
        lines[-1] += f"{v},"
    return lines


main()
