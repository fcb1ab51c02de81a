#!/usr/bin/env python3
"""Pictures: decoded samples, canvas and patches equal to Pillow's, byte for byte, over random files of every mode; and files that mean harm.

usage: test_image.py [--binary build/deepinfer] [--count 350] [--seed 1] [--big]
also run with sanitizers: --short (not run under TSan: no threads; those of the helpers are helper_test's)
Needs cjpeg of libjpeg-turbo, and pillow before 12.2: from there on it goes through tall pictures in another order (spec/vision.md §5).
--count 5000 --big is the long form: sizes up to 6,000 pixels a side and strips up to 40,000 : 1. `deepinfer image` prints CRC-32s of what it
made; they are compared with those of Pillow's result.

Known differences, none of them in a picture that is whole: Pillow opens a PNG whose last chunk of data lacks its checksum, and refuses an
animation that is cut short behind its first frame, and a WebP file without the byte that fills its last chunk up to an even length.
"""
import argparse
import io
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy as np
from PIL import Image, ImageFile, ImageOps

import program
from program import ROOT, Count

Image.MAX_IMAGE_PIXELS = None
ImageFile.MAXBLOCK = 1 << 26  # whole files: libjpeg cannot pause within arithmetic coding
SEEDS = os.path.join(ROOT, "tests", "data", "images")


# ---- the reference: spec/vision.md §4 in few lines, the rest by Pillow ----

def plan(w, h, budget=1024, area=544 * 544):
    def tokens(cw, ch):
        return -(-(ch // 14) // 3) * (-(-(cw // 14) // 3) + 1) + 2
    if w * h < area:
        q = math.pow(area / (w * h), 0.5)
        w, h = int(w * q), int(h * q)
    cw, ch = -(-w // 14) * 14, -(-h // 14) * 14
    if tokens(cw, ch) > budget:
        rho = h / w
        fw = math.sqrt((budget - 2) / rho + 0.25) - 0.5
        fh = fw * rho
        if fw < 1:
            cw, ch = 42, (budget - 2) // 2 * 42
        elif fh < 1:
            cw, ch = (budget - 3) * 42, 42
        else:
            beta = min(math.floor(fw) * 42 / w, math.floor(fh) * 42 / h)
            cw, ch = math.floor(w * beta / 14) * 14, math.floor(h * beta / 14) * 14
    return cw, ch, tokens(cw, ch)


def canvas_of(image, cw, ch):
    """What the reference's pad helper makes; where it would fail, because a side rounds to 0, one pixel."""
    w, h = image.size
    if min(h / w * cw, w / h * ch) > 0.5:
        return ImageOps.pad(image, (cw, ch), Image.BICUBIC, color=(127, 127, 127))
    fit = (cw, 1) if w > h else (1, ch)
    out = Image.new("RGB", (cw, ch), (127, 127, 127))
    out.paste(image.resize(fit, Image.BICUBIC), (round((cw - fit[0]) * 0.5), round((ch - fit[1]) * 0.5)))
    return out


VALUES = np.array([np.float32(v) / np.float32(255) for v in range(256)], np.float32)
VALUES = ((VALUES - np.float32(0.5)) / np.float32(0.5)).view(np.uint32)
VALUES = ((VALUES + 0x7FFF + (VALUES >> 16 & 1)) >> 16).astype("<u2")


def patches_of(canvas):
    a = VALUES[np.asarray(canvas)]
    h, w, _ = a.shape
    return a.reshape(h // 14, 14, w // 14, 14, 3).transpose(0, 2, 4, 1, 3).tobytes()


def crc(data):
    return f"{zlib.crc32(data):08x}"


def expect(data, turned=False):
    image = Image.open(io.BytesIO(data))
    image.load()
    if turned:
        image = ImageOps.exif_transpose(image)
    image = image.convert("RGB")
    cw, ch, tokens = plan(*image.size)
    canvas = canvas_of(image, cw, ch)
    return {"width": image.width, "height": image.height, "canvas": [cw, ch], "tokens": tokens, "pixels_crc32": crc(image.tobytes()),
            "canvas_crc32": crc(canvas.tobytes()), "patches_crc32": crc(patches_of(canvas))}


# ---- the program ----

class Images:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def write(self, k, data):
        path = os.path.join(self.folder, str(k))
        with open(path, "wb") as f:
            f.write(data)
        return path

    def look(self, files, *flags):
        """Records for the contents of files, in order."""
        args = [a for k, data in enumerate(files) for a in ("--image", self.write(k, data))]
        run = subprocess.run([self.binary, "image", "--json", "--pixels", *flags, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=1200)
        if run.returncode not in (0, 1):
            raise RuntimeError(f"exit status {run.returncode}: {run.stderr.decode()[-500:]}")
        records = [json.loads(line) for line in run.stdout.splitlines()]
        if len(records) != len(files):
            raise RuntimeError(f"{len(records)} records for {len(files)} files")
        return records


def compare(images, named, *flags, turned=False):
    """named: pairs of name and content."""
    named = list(named)
    for (name, data), got in zip(named, images.look([data for _, data in named], *flags)):
        if len(data) > 32 << 20:
            yield got.get("error", {}).get("code") == "limit", f"{name}: {got}"
            continue
        want = expect(data, turned)
        wrong = {k: (got.get(k), v) for k, v in want.items() if got.get(k) != v}
        yield not wrong, f"{name}: {wrong} {got.get('error', '')}"


# ---- files ----

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_file(samples, depth, colour, interlaced=False, before=b"", level=1):
    """samples [height, width, channels] of integers; every filter is 0 or, at random, another."""
    def pack(rows):
        out = []
        for n, row in enumerate(rows):
            if depth == 16:
                line = row.astype(">u2").tobytes()
            elif depth == 8:
                line = row.astype(np.uint8).tobytes()
            else:
                bits = (row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1) & 1).astype(np.uint8).reshape(-1)
                line = np.packbits(bits).tobytes()
            out.append(b"\0" + line if n % 3 else b"\1" + sub_filter(line, max(1, depth * samples.shape[2] // 8)))
        return b"".join(out)

    h, w, _ = samples.shape
    if interlaced:
        passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        parts = (samples[y::dy, x::dx] for x, y, dx, dy in passes)
        raw = b"".join(pack(p) for p in parts if p.size)
    else:
        raw = pack(samples)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, int(interlaced))) + before +
            chunk(b"IDAT", zlib.compress(raw, level)) + chunk(b"IEND", b""))


def sub_filter(line, step):
    a = np.frombuffer(line, np.uint8)
    out = a.copy()
    out[step:] -= a[:-step]
    return out.tobytes()


def saved(image, **how):
    b = io.BytesIO()
    image.save(b, **how)
    return b.getvalue()


def random_size(rng, big):
    if big and (kind := rng.random()) < 0.12:
        if kind < 0.01:
            return int(rng.integers(500, 6001)), int(rng.integers(500, 6001))
        if kind < 0.05:
            return int(rng.integers(1, 2001)), int(rng.integers(1, 2001))
        long, short = int(rng.integers(1000, 40001)), int(rng.integers(1, 4))
        return (long, short) if rng.integers(2) else (short, long)
    kind = rng.integers(0, 16)
    most = 12 if kind < 3 else 60 if kind < 8 else 300
    return int(rng.integers(1, most)), int(rng.integers(1, most))


def random_pixels(rng, w, h):
    """RGB: noise, hard edges or smooth, because decoders and resamplers fail on different ones."""
    kind = rng.integers(3)
    if kind == 0 and w * h < 4_000_000:
        return rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
    y, x = np.mgrid[0:h, 0:w].astype(np.int32)
    a, b, c = (int(v) for v in rng.integers(1, 40, 3))
    if kind == 1:
        return np.stack([(x // a % 2) * 255, (y // b % 2) * 255, ((x + y) // c % 2) * 255], -1).astype(np.uint8)
    return np.stack([a * x + b * y, (x * x + c * y) // 7, c * (x ^ y)], -1).astype(np.uint8)


def random_png(rng, rgb):
    h, w, _ = rgb.shape
    interlaced = bool(rng.integers(3) == 0) and w * h < 1_000_000
    colour = int(rng.choice([0, 0, 2, 3, 3, 4, 6]))
    depth = int(rng.choice({0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16]}[colour]))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    full = np.dstack([rgb, rgb[:, :, :1] ^ 0x5A])[:, :, :channels].astype(np.uint32)
    if depth == 16:
        full = full * 257 ^ (full * 31 & 0xFF) if colour or rng.integers(2) else full * int(rng.integers(1, 4))
    samples = full >> (8 - depth) if depth < 8 else full
    before = b""
    if colour == 3:
        n = int(rng.integers(1, (1 << depth) + 1))
        before = chunk(b"PLTE", rng.integers(0, 256, 3 * n, dtype=np.uint8).tobytes())
        if rng.integers(2):
            samples = np.minimum(samples, n - 1)  # else some point beyond the palette
        if rng.integers(2):
            before += chunk(b"tRNS", rng.integers(0, 256, int(rng.integers(1, n + 1)), dtype=np.uint8).tobytes())
    elif colour in (0, 2) and rng.integers(4) == 0:
        before = chunk(b"tRNS", b"\0\1" * channels)
    if rng.integers(4) == 0:
        before = chunk(b"gAMA", struct.pack(">I", 20000)) + before
    return f"png colour {colour} depth {depth}{' interlaced' * interlaced}", png_file(samples, depth, colour, interlaced, before)


SAMPLINGS = ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4", "3x1", "1x3", "2x2,1x2,2x1", "2x1,1x1,2x1", "1x2,1x2,1x1", "1x1,2x1,1x2", "4x1,2x1,1x1", "3x1,1x1,3x1")


def odd_jpeg(rng, rgb):
    """What Pillow does not write: any sampling factors, arithmetic coding, other restart intervals."""
    how = ["-quality", str(rng.integers(10, 100)), "-sample", str(rng.choice(SAMPLINGS))]
    how += ["-progressive"] * int(rng.integers(2)) + ["-arithmetic"] * int(rng.integers(4) == 0) + ["-restart", "2"] * int(rng.integers(3) == 0)
    h, w, _ = rgb.shape
    made = subprocess.run(["cjpeg", *how], input=b"P6 %d %d 255\n" % (w, h) + rgb.tobytes(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    return f"cjpeg {' '.join(how)}", made


def random_jpeg(rng, rgb):
    if rng.integers(4) == 0:
        return odd_jpeg(rng, rgb)
    mode = str(rng.choice(["RGB", "RGB", "L", "CMYK"]))
    how = {"quality": int(rng.integers(1, 101)), "progressive": bool(rng.integers(2)), "optimize": bool(rng.integers(2))}
    if mode != "L":
        how["subsampling"] = int(rng.integers(0, 3))
    if rng.integers(4) == 0:
        how["restart_marker_blocks"] = int(rng.integers(1, 5))
    if rng.integers(3) == 0:
        exif = Image.Exif()
        exif[0x0112] = int(rng.integers(1, 9))
        how["exif"] = exif
    if mode == "RGB" and rng.integers(6) == 0:
        how["keep_rgb"] = True
        how.pop("subsampling")
    data = saved(Image.fromarray(rgb).convert(mode), format="JPEG", **how)
    if mode == "CMYK" and rng.integers(2):  # Adobe's marker can say that it is YCCK instead
        at = data.find(b"Adobe")
        if at > 0:
            data = data[:at + 11] + b"\2" + data[at + 12:]
    return f"jpeg {mode} { {k: v for k, v in how.items() if k != 'exif'} }", data


def random_gif(rng, rgb):
    image = Image.fromarray(rgb).quantize(int(rng.integers(2, 257)), method=Image.FASTOCTREE)
    how = {"interlace": int(rng.integers(2))}
    if rng.integers(3) == 0:
        how["transparency"] = int(rng.integers(0, 4))
    if rng.integers(4) == 0:
        how.update(save_all=True, append_images=[image.rotate(180)], duration=40)
    if rng.integers(5) == 0:
        image = Image.fromarray(rgb).convert("L")
    data = bytearray(saved(image, format="GIF", **how))
    moved = rng.integers(3) == 0 and "save_all" not in how
    if moved:  # a screen of another size than the frame, and the frame somewhere on it
        at = 13 + (3 * (2 << (data[10] & 7)) if data[10] & 0x80 else 0)
        while data[at] == 0x21:
            at += 2
            while data[at]:
                at += data[at] + 1
            at += 1
        w, h = image.size
        data[at + 1:at + 5] = struct.pack("<HH", int(rng.integers(0, 20)), int(rng.integers(0, 20)))
        data[6:10] = struct.pack("<HH", max(1, w + int(rng.integers(-15, 30))), max(1, h + int(rng.integers(-15, 30))))
    return f"gif {image.mode} {list(how)}{' moved' * bool(moved)}", bytes(data)


def random_webp(rng, rgb):
    how = {"lossless": bool(rng.integers(2)), "quality": int(rng.integers(0, 101)), "method": int(rng.integers(0, 3))}
    if rng.integers(2):
        rgb = np.dstack([rgb, rgb[:, :, 1] ^ 0x33])
        how["exact"] = bool(rng.integers(2))
    if rng.integers(5) == 0 and rgb.shape[0] * rgb.shape[1] < 50_000:
        how.update(save_all=True, append_images=[Image.fromarray(rgb).rotate(180)], duration=40)
    return f"webp {rgb.shape[2]} channels {[k for k, v in how.items() if v]}", saved(Image.fromarray(rgb), format="WEBP", **how)


def random_file(rng, big):
    w, h = random_size(rng, big)
    kind = rng.integers(8)
    if kind >= 6 and max(w, h) <= 16383 and w * h < 2_000_000:
        return random_webp(rng, random_pixels(rng, w, h))
    if kind == 5 and w * h < 4_000_000:
        return random_gif(rng, random_pixels(rng, w, h))
    return (random_jpeg if kind >= 3 else random_png)(rng, random_pixels(rng, w, h))


def test_random_files(images, args):
    rng = np.random.default_rng(args.seed)
    left = args.count
    while left > 0:
        part = [random_file(rng, args.big) for _ in range(min(left, 50))]
        left -= len(part)
        yield from compare(images, part)


def test_exif_is_applied_on_request(images, args):
    rng = np.random.default_rng(args.seed + 1)
    files = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for how in ({"format": "JPEG"}, {"format": "JPEG", "progressive": True}, {"format": "PNG"}, {"format": "WEBP"}, {"format": "WEBP", "lossless": True}):
            files.append((f"{how} {orientation}", saved(Image.fromarray(random_pixels(rng, 37, 21)), exif=exif, **how)))
    yield from compare(images, files, "--image-exif", turned=True)
    yield from compare(images, files)


def test_grey16(images, args):
    rng = np.random.default_rng(args.seed + 2)
    wide = rng.integers(0, 65536, (19, 23, 1))
    data = png_file(wide, 16, 0)
    high = images.look([data], "--image-grey16", "high")[0]
    yield high["pixels_crc32"] == crc(np.repeat((wide >> 8).astype(np.uint8), 3, 2).tobytes()), high
    reference = images.look([data])[0]
    yield reference["pixels_crc32"] == crc(np.repeat(np.minimum(wide, 255).astype(np.uint8), 3, 2).tobytes()), reference


def test_in_this_process(images, args):
    """Without helpers the bytes are the same."""
    rng = np.random.default_rng(args.seed + 3)
    yield from compare(images, [random_file(rng, False) for _ in range(20)], "--image-workers", "0")


def test_canvas_file(images, args):
    data = read_seed("rgb.png")
    path = os.path.join(images.folder, "canvas.ppm")
    record = images.look([data], "--canvas", path)[0]
    with Image.open(path) as image:
        yield list(image.size) == record["canvas"] and crc(image.tobytes()) == record["canvas_crc32"], record
    seen = subprocess.run([images.binary, "image", "--image", images.write(0, data)], stdout=subprocess.PIPE, text=True, check=True).stdout
    yield "PNG, 17 x 13, RGB, 8 bits" in seen and "tokens" in seen, seen


# ---- files that mean harm ----

def read_seed(name):
    with open(os.path.join(SEEDS, name), "rb") as f:
        return f.read()


def test_cut_anywhere(images, args):
    """Each file at each length: an error, or the whole picture; what Pillow calls truncated is never accepted."""
    for name in sorted(os.listdir(SEEDS)):
        data = read_seed(name)
        whole = images.look([data])[0]["pixels_crc32"]
        got = images.look([data[:n] for n in range(1, len(data))])
        yield all("error" in g or g["pixels_crc32"] == whole for g in got), f"{name}: a part was accepted"
        yield all(g["error"]["code"] == "invalid" if "error" in g else True for g in got), f"{name}: another error"
        for n in range(1, len(data)):
            cut_behind = name.startswith("animated") or (name.endswith(".webp") and n == len(data) - 1)
            if "error" not in got[n - 1] and not cut_behind:
                yield crc(Image.open(io.BytesIO(data[:n])).convert("RGB").tobytes()) == whole, f"{name}: accepted at {n} bytes"


def many_scans(data, times):
    """A progressive JPEG whose last scan is repeated."""
    at = data.rfind(b"\xff\xda")
    return data[:at] + data[at:-2] * times + b"\xff\xd9"


def animated(frames):
    image = Image.fromarray(np.zeros((300, 300), np.uint8))
    one = saved(image, format="GIF")
    body = one[one.find(b"\x2c"):-1]
    return one[:-1] + body * frames + b";"


def hostile(rng, side):
    """Name, file, what its refusal must say; None: it must be decoded. side: of the picture with the most pixels."""
    small, jpeg = read_seed("rgb.png"), read_seed("rgb.jpg")

    def claim(w, h):
        head = b"IHDR" + struct.pack(">II", w, h) + small[24:29]
        return small[:12] + head + struct.pack(">I", zlib.crc32(head)) + small[33:]

    sof = jpeg.find(b"\xff\xc0")
    text = chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(100_000_000), 9))
    profile = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(100_000_000), 9))
    flat = png_file(np.zeros((side, side, 1), np.uint8), 1, 0, level=9)
    yield "65535 x 65535 PNG", claim(65535, 65535), "65535"
    yield "PNG of 50 M pixels without them", claim(50000, 1000), "cannot be decoded"
    yield "no width", claim(0, 10), "0 x 10"
    yield "65535 x 65535 JPEG", jpeg[:sof + 5] + b"\xff" * 4 + jpeg[sof + 9:], "65535"
    yield "65535 x 65535 GIF", read_seed("plain.gif")[:6] + b"\xff" * 4 + read_seed("plain.gif")[10:], "65535"
    yield "16384 x 16384 WebP", read_seed("lossless.webp")[:21] + b"\xff\xff\xff\x0f" + read_seed("lossless.webp")[25:], "16384"
    yield "100,000 : 1", claim(100000, 1), "at most 65535"
    yield "JPEG of many scans", many_scans(read_seed("progressive.jpg"), 5000), "scans"
    yield "JPEG whose sampling factors are 0", jpeg[:sof + 11] + b"\0" + jpeg[sof + 12:], "frame header"
    yield "PNG with a text of 100 MB", small[:33] + text + small[33:], None
    yield "PNG with a profile of 100 MB", small[:33] + profile + small[33:], None
    yield "PNG with 100,000 texts", small[:33] + chunk(b"tEXt", b"x\0y") * 100_000 + small[33:], None
    yield f"PNG that unpacks to {side} x {side} pixels", flat, None
    yield "PNG with more data than pixels", small[:33] + chunk(b"IDAT", zlib.compress(bytes(100_000_000), 9)) + small[-12:], None
    yield "GIF of 3,000 frames", animated(3000), None
    yield "GIF without a picture", b"GIF89a\1\0\1\0\0\0\0;", "no picture"
    yield "text that claims to be a picture", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "JPEG, PNG, GIF or WebP"
    yield "33 MiB of nothing", b"\xff\xd8\xff" + bytes(33 << 20), "limit"
    yield "noise behind every magic", b"RIFF\xff\xff\xff\xffWEBPVP8X" + rng.bytes(100), "WebP"


def test_hostile_files(images, args):
    """Each by itself: a sentence, little memory and time in all processes, and a good picture right behind it."""
    good = read_seed("rgb.png")
    side = 2000 if program.is_sanitized(images.binary) else 7000
    for name, data, words in hostile(np.random.default_rng(args.seed), side):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        got, after = images.look([data, good])
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        said = got.get("error", {}).get("message", "")
        yield (words in said if words else "canvas_crc32" in got), f"{name}: {said or 'was decoded'}"
        yield "canvas_crc32" in after, f"{name}: the next picture {after}"
        yield cpu < 6 or program.is_sanitized(images.binary), f"{name}: {cpu:.1f} s"
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield peak < 300 or program.is_sanitized(images.binary), f"one process took {peak:.0f} MiB"


def test_wrong_use(images, args):
    for words, flags in (("--image FILE is missing", []), ("cannot be", ["--image", "/nowhere/x.png"]), ("--image-grey16", ["--image-grey16", "x"])):
        run = subprocess.run([images.binary, "image", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        yield run.returncode in (1, 2) and words in run.stderr and not run.stdout, f"{flags}: {run.returncode} {run.stderr}"
    run = subprocess.run([images.binary, "image-worker"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    yield run.returncode == 2 and "started by other" in run.stderr, run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "deepinfer"))
    parser.add_argument("--count", type=int, default=350)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    if args.short:
        args.count = 60
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        images = Images(args.binary, folder)
        # Hostile files first: what this process took until a child was started counts as the child's peak.
        for test in (test_hostile_files, test_random_files, test_exif_is_applied_on_request, test_grey16, test_in_this_process, test_canvas_file,
                     test_cut_anywhere, test_wrong_use):
            count.attempt(test, images, args)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
