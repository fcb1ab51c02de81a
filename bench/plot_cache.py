#!/usr/bin/env python3
"""Hit rate of the prefix cache against its capacity, from the JSON file of `deepinfer bench --suite cache --trace TRACE --json FILE`.

    bench/plot_cache.py OUTPUT.svg FILE.json
"""
import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams.update({"svg.hashsalt": "deepinfer", "font.size": 9})


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2]) as f:
        rows = json.load(f)
    gib = [r["gib"] for r in rows]
    fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
    ax.plot(gib, [r["prompts"] for r in rows], marker="o", label="prompts are cached")
    ax.plot(gib, [r["answers"] for r in rows], marker="s", label="prompts and answers are cached")
    ax.axhline(rows[0]["ideal"], color="black", linewidth=0.8, linestyle="--", label="no limit, whole blocks of the trace")
    ax.set_xscale("log", base=2)
    ax.set_xticks(gib, gib)
    ax.set_ylim(0, 0.4)
    ax.set_xlabel("capacity of G in GiB (890 bytes a token)")
    ax.set_ylabel("share of prompt tokens found")
    ax.legend(loc="lower right", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(sys.argv[1], metadata={"Date": None})


main()
