#!/usr/bin/env python3
"""From the lab's JSON to bench/results/h200-kernels.json, the table in h200-kernels.md and a plot.

    bench/cuda/report.py RESULTS        RESULTS has kernels.json, as bench/cuda/on_device writes it
"""
import json
import pathlib
import shutil
import subprocess
import sys

OUT = pathlib.Path(__file__).resolve().parents[1] / "results"
BEGIN, END = "<!-- table: bench/cuda/report.py -->\n", "<!-- end of table -->\n"


def table(data):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=OUT).stdout.strip()
    yield f"{data['device']}, {data['multiprocessors']} multiprocessors, commit {commit}. Measured in the same run: copy {data['copy_gb_s']:.0f} GB/s"
    yield f"(read + written), reading alone {data['read_gb_s']:.0f} GB/s, bf16 product 8192^3 through cuBLASLt {data['bf16_tflops']:.0f} TFLOP/s."
    yield f"Checks that failed: {data['failures']}."
    yield ""
    yield "| kernel | shape | floor µs | measured µs | again | % of floor | GB/s | TFLOP/s | error | note |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for r in data["results"]:
        gb, tf = r["bytes"] / r["us"] * 1e-3, r["operations"] / r["us"] * 1e-6
        error = f"{r['error']:.0e}" if r["error"] >= 0 else ""
        yield (f"| {r['kernel']} | {r['shape']} | {r['floor_us']:.2f} | {r['us']:.2f} | {r['us_again']:.2f} | {r['percent_of_floor']:.0f} "
               f"| {gb:.0f} | {tf:.1f} | {error} | {r['note']} |")


def plot(data, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.hashsalt": "deepinfer", "svg.fonttype": "none", "font.size": 8})
    rows = data["results"]
    fig, ax = plt.subplots(figsize=(8, 0.17 * len(rows) + 1), layout="constrained")
    colours = {k: f"C{i}" for i, k in enumerate(dict.fromkeys(r["kernel"] for r in rows))}
    bars = ax.barh(range(len(rows)), [r["percent_of_floor"] for r in rows], 0.8, color=[colours[r["kernel"]] for r in rows])
    ax.bar_label(bars, fmt="%.0f", padding=2, fontsize=6)
    ax.set_yticks(range(len(rows)), [f"{r['kernel']} {r['shape']}" for r in rows], fontsize=6)
    ax.invert_yaxis()
    ax.set_ylim(len(rows), -1)
    ax.axvline(100, color="black", linewidth=0.8)
    ax.set_xlabel("percent of the floor measured in the same run")
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, metadata={"Date": None})


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1], "kernels.json")
    data = json.loads(source.read_text())
    shutil.copyfile(source, OUT / "h200-kernels.json")
    page = OUT / "h200-kernels.md"
    text = page.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(text[:begin] + "\n".join(table(data)) + "\n" + text[end:])
    plot(data, OUT / "h200-kernels.svg")


if __name__ == "__main__":
    main()
