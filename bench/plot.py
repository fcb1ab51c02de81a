#!/usr/bin/env python3
"""Bar chart of percent of floor from the JSON files of `deepinfer bench --suite model --json FILE`.

    bench/plot.py OUTPUT.svg LABEL=FILE.json ...
"""
import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams.update({"svg.hashsalt": "deepinfer", "font.size": 9})


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    series = []
    for arg in sys.argv[2:]:
        label, _, path = arg.partition("=")
        with open(path) as f:
            series.append((label, {r["name"]: r["percent_of_floor"] for r in json.load(f)}))
    names = list(dict.fromkeys(name for _, rows in series for name in rows))
    fig, ax = plt.subplots(figsize=(8, 0.28 * len(names) * len(series) + 1.2), layout="constrained")
    height = 0.8 / len(series)
    for i, (label, rows) in enumerate(series):
        y = [k + (i - (len(series) - 1) / 2) * height for k, n in enumerate(names) if n in rows]
        bars = ax.barh(y, [rows[n] for n in names if n in rows], height * 0.92, label=label)
        ax.bar_label(bars, fmt="%.0f", padding=2, fontsize=7)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.axvline(100, color="black", linewidth=0.8)
    ax.set_xlabel("percent of the floor measured in the same run")
    ax.legend(loc="lower right", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(sys.argv[1], metadata={"Date": None})


if __name__ == "__main__":
    main()
