#!/usr/bin/env python3
"""Plots attention results: TFLOP/s over length (prefill) and GB/s over context (decode).

  python3 bench/attention/plot.py bench/results/2026-11-30-h200-attention.json --out attention.svg

Reads what `fathom bench attention --json`, peers.py --json and bench/results hold; several files are
put together. The suffix of --out chooses the format (svg, png, pdf). Needs matplotlib.
"""
import argparse
import json
import pathlib
import re
import sys

SCHEMAS = {"fathom.bench.attention/1", "fathom.bench.attention-results/1", "fathom.bench.peers/1"}
PREFILL = re.compile(r"(?P<series>\S+h d\S+ (?:causal|full)) (?P<batch>\d+) x (?P<length>\d+)$")
DECODE = re.compile(r"(?P<series>gqa \S+h d\d+|mla \d+h) (?P<batch>\d+) x (?P<length>\d+)k$")


def load(paths):
    """[(is prefill, series, who, length, batch, value)], and the GPU's name."""
    points, gpu = [], ""
    for path in paths:
        document = json.loads(pathlib.Path(path).read_text())
        if document.get("schema") not in SCHEMAS:
            sys.exit(f"{path}: schema {document.get('schema')}: expected one of {sorted(SCHEMAS)}")
        gpu = document.get("gpu") or document.get("device") or gpu
        for key in ("decode", "peers_decode", "prefill", "peers_prefill", "rows"):
            for row in document.get(key, []):
                if row.get("variant", "balanced") != "balanced":
                    continue
                who = row.get("peer", "Fathom")
                for pattern, prefill, value in ((PREFILL, True, "tflops"),
                                                (DECODE, False, "gb_per_s")):
                    match = pattern.match(row["shape"])
                    if match and row.get(value):
                        points.append((prefill, match["series"], who, int(match["length"]),
                                       int(match["batch"]), row[value]))
    return points, gpu


def series_of(points, prefill):
    """{series: {who: [(length, value)]}}; decode shows batch 1, the rest of the shapes all."""
    table = {}
    for is_prefill, series, who, length, batch, value in points:
        if is_prefill == prefill and (prefill or batch == 1):
            table.setdefault(series, {}).setdefault(who, []).append((length, value))
    return {name: lines for name, lines in table.items()
            if any(len(line) > 1 for line in lines.values())}


def draw(points, gpu, out):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [(True, name, lines) for name, lines in series_of(points, True).items()]
    panels += [(False, name, lines) for name, lines in series_of(points, False).items()]
    if not panels:
        sys.exit("no series of two or more lengths in these files")
    # A peer has the same colour in every panel.
    everyone = sorted({point[2] for point in points}, key=lambda who: (who != "Fathom", who))
    colour = {who: f"C{i}" for i, who in enumerate(everyone)}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    for axis, (prefill, name, lines) in zip(axes.flat, panels):
        for who, line in sorted(lines.items(), key=lambda item: item[0] != "Fathom"):
            line.sort()
            axis.plot([x for x, _ in line], [y for _, y in line], marker="o", label=who,
                      color=colour[who],
                      linewidth=2.2 if who == "Fathom" else 1.2)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_title(("prefill " if prefill else "decode, batch 1, ") + name, fontsize=9)
        axis.set_xlabel("length (tokens)" if prefill else "context (thousands of tokens)")
        axis.set_ylabel("TFLOP/s" if prefill else "GB/s of keys and values")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(f"Attention on {gpu}")
    figure.tight_layout()
    figure.savefig(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    points, gpu = load(args.results)
    draw(points, gpu, args.out)


if __name__ == "__main__":
    main()
