#!/usr/bin/env python3
"""Pictures: canvases against Pillow, decoders against the programs of their own libraries, one thread each, in turn on the same machine.

usage: vision.py [--binary build/deepinfer] [--runs 5] [--write]
Processor time. --write puts the tables into bench/results/vision.md. Needs pillow before 12.2 and numpy, and djpeg, dwebp and gif2rgb (Debian packages
libjpeg-turbo-progs, webp, giflib-tools); libpng has no such program, so PNG is compared with Pillow.
"""
import argparse
import io
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import PIL
from PIL import Image, features

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from test_image import canvas_of, plan  # noqa: E402

Image.MAX_IMAGE_PIXELS = None
SIZES = ((4032, 3024), (1920, 1080), (224, 224))


def photo(w, h):
    """Smooth structures of several sizes and some noise, as a camera gives them."""
    rng = np.random.default_rng(3)
    out = np.zeros((h, w, 3), np.float32)
    for side in (4, 16, 64, 256):
        noise = Image.fromarray(rng.integers(0, 256, (side * 3 // 4, side, 3), dtype=np.uint8)).resize((w, h), Image.BICUBIC)
        out += np.asarray(noise, np.float32) / 4
    return Image.fromarray(np.clip(out + rng.normal(0, 3, (h, w, 3)), 0, 255).astype(np.uint8))


def files(image, folder):
    """name -> (how it is saved, the library's own program or None)"""
    kinds = {
        "baseline.jpg": ({"quality": 88}, ["djpeg", "-pnm", "-outfile", "/dev/null"]),
        "fine.jpg": ({"quality": 92, "subsampling": 0}, ["djpeg", "-pnm", "-outfile", "/dev/null"]),
        "progressive.jpg": ({"quality": 88, "progressive": True}, ["djpeg", "-pnm", "-outfile", "/dev/null"]),
        "lossy.webp": ({"quality": 80, "method": 0}, ["dwebp", "-quiet", "-ppm", "-o", "/dev/null"]),
        "lossless.webp": ({"lossless": True, "quality": 0, "method": 0}, ["dwebp", "-quiet", "-ppm", "-o", "/dev/null"]),
        "rgb.png": ({"compress_level": 6}, None),
        "palette.gif": ({"interlace": 0}, ["gif2rgb", "-o", os.path.join(folder, "out.rgb")]),
    }
    for name, (how, program) in kinds.items():
        path = os.path.join(folder, name)
        (image.quantize(256) if name.endswith("gif") else image).save(path, **how)
        yield name, path, program


def child_time(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def own_time(call):
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def measure_ours(binary, folder, *args):
    out = os.path.join(folder, "figures.json")
    subprocess.run([binary, "bench", "--suite", "vision", "--rounds", "3", "--json", out, *args], stdout=subprocess.DEVNULL, check=True)
    with open(out, encoding="utf-8") as f:
        return json.load(f)


def compare_canvases(binary, folder, runs):
    """(size, form) -> best of ours; size -> best of Pillow's; the two take turns."""
    ours, pillow = {}, {}
    pictures = {size: photo(*size) for size in SIZES}
    for _ in range(runs):
        for row in measure_ours(binary, folder):
            key = row["width"], row["height"], row["name"]
            ours[key] = min(row["ms"], ours.get(key, 1e9))
        for size, image in pictures.items():
            cw, ch, _ = plan(*size)
            pillow[size] = min(own_time(lambda: canvas_of(image, cw, ch)), pillow.get(size, 1e9))
    return ours, pillow


def compare_decoders(binary, folder, runs):
    for name, path, program in files(photo(4032, 3024), folder):
        ours = theirs = 1e9
        with open(path, "rb") as f:
            data = f.read()
        for _ in range(runs):
            rows = measure_ours(binary, folder, "--filter", "nothing", "--image", path)
            ours = min(ours, rows[-1]["ms"])
            if program:
                theirs = min(theirs, child_time([*program, path]))
            else:
                theirs = min(theirs, own_time(lambda: Image.open(io.BytesIO(data)).convert("RGB")))
        yield name, len(data), ours, theirs, program[0] if program else "Pillow"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def commit():
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "deepinfer"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if tuple(int(x) for x in PIL.__version__.split(".")[:2]) >= (12, 2):
        sys.exit("Pillow before 12.2 is needed: later ones scale tall pictures in another order (docs/spec/vision.md §5).")
    with tempfile.TemporaryDirectory() as folder:
        ours, pillow = compare_canvases(args.binary, folder, args.runs)
        decoders = list(compare_decoders(args.binary, folder, args.runs))
    names = sorted({name for _, _, name in ours}, key=["ref", "avx2", "avx512"].index)
    lines = ["# Pictures: canvases and decoders", "",
             f"Command: `python bench/vision.py --runs {args.runs} --write`, commit {commit()}, {processor()}, one thread, processor time, best of {args.runs} runs (ours: of medians "
             f"of 3), the programs in turn. Pillow {PIL.__version__} with libjpeg-turbo {features.version('libjpeg_turbo')}. Other work on the machine makes "
             "absolute figures vary.", "",
             "## Canvas from decoded RGB", "", "Scaling, placement and grey, milliseconds. Ours is measured over noise; equality of bytes: `canvas_test.c`, `tests/test_image.py`.", "",
             f"| picture | canvas | {' | '.join(names)} | Pillow | Pillow : {names[-1]} |", "| --- | --- |" + " --- |" * (len(names) + 2)]
    for w, h in SIZES:
        cw, ch, _ = plan(w, h)
        times = [ours[w, h, name] for name in names]
        lines.append(f"| {w} x {h} | {cw} x {ch} | {' | '.join(f'{t:.2f}' for t in times)} | {pillow[w, h]:.2f} | {pillow[w, h] / times[-1]:.1f} |")
    lines += ["", "## Decoders", "", "A picture of 4032 x 3024, milliseconds; the other program writes its pixels to nowhere, as ours drops them. `gif2rgb` writes a file.", "",
              "| file | bytes | ours | other | ms | other : ours |", "| --- | --- | --- | --- | --- | --- |"]
    for name, size, mine, theirs, program in decoders:
        lines.append(f"| {name} | {size:,} | {mine:.1f} | {program} | {theirs:.1f} | {theirs / mine:.2f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        with open(os.path.join(ROOT, "bench", "results", "vision.md"), "w", encoding="utf-8") as f:
            f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
