#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots the validation losses of several runs into one SVG, and prints the last ones as a Markdown table.

    tools/dev/plot_losses.py LABEL=RUN_DIR ... -o docs/precision/precision.svg     also writes the losses, as .csv
    tools/dev/plot_losses.py docs/precision/precision.csv -o docs/precision/precision.svg    plots them again

The upper panel has the losses, the lower one their distance from the first run's, in per cent, step by step. Only
evaluated steps are plotted: lines of metrics.jsonl with a valid_loss. Lines differ in colour (Okabe and Ito's), marker
and dashes, so they can be told apart without hue; a media query inside the SVG serves dark pages.

Needs matplotlib (pip install matplotlib), the only script here that does."""
import argparse
import csv
import json
import os
import sys

INK, DIM = "#1d2733", "#8b99a7"
LINES = (("-", "o", INK), ("-", "s", "#0072b2"), ("-", "^", "#d55e00"), ("-", "D", "#009e73"), ("-", "v", "#56b4e9"),
         ("-", "P", "#cc79a7"), ("--", "X", "#e69f00"), ("--", "o", DIM), ("--", "s", "#56b4e9"))
DARK = ("@media(prefers-color-scheme:dark){"
        '[style*="#ffffff"]{fill:#0d1117!important}'
        f'text[style],[style*="fill: {INK}"]{{fill:#e6edf3!important}}'
        f'[style*="stroke: {INK}"]{{stroke:#e6edf3!important}}'
        "}")


def read_run(folder):
    """{step: valid_loss} of a run's folder."""
    path = os.path.join(folder, "metrics.jsonl")
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    found = {line["step"]: line["valid_loss"] for line in lines if line.get("valid_loss") is not None}
    if not found:
        sys.exit(f"{path}: no step has a valid_loss; set train.eval_interval")
    return found


def read_csv(path):
    """[(label, {step: loss})]; the first column is the step."""
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return [(label, {int(row[0]): float(row[i]) for row in rows if row[i]})
            for i, label in enumerate(header) if i > 0]


def write_csv(path, runs):
    steps = sorted({step for _, losses in runs for step in losses})
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", *(label for label, _ in runs)])
        for step in steps:
            table.writerow([step, *(f"{losses[step]:.4f}" if step in losses else "" for _, losses in runs)])


def draw(runs, path):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_losses.py needs matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot
    # Keep text as text, and the output deterministic.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "cuboid", "font.family": "sans-serif",
                                "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"], "font.size": 10})
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        matplotlib.rcParams[key] = INK
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6.2), layout="constrained")
    reference = runs[0][1]
    from_step = max(reference) / 4  # the beginning, where losses fall fast, would set the scale
    for (label, losses), (dash, marker, colour) in zip(runs, LINES):
        steps = [step for step in sorted(losses) if step >= from_step and step in reference]
        style = {"linestyle": dash, "marker": marker, "color": colour, "linewidth": 1.6, "markersize": 5}
        above.plot(steps, [losses[s] for s in steps], label=label, **style)
        below.plot(steps, [100 * (losses[s] / reference[s] - 1) for s in steps], **style)
    above.set_ylabel("validation loss, nats per token")
    below.set_ylabel(f"relative to {runs[0][0]}, %")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(color=DIM, alpha=0.35, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, format="svg", facecolor="#ffffff", metadata={"Date": None, "Creator": None})
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        lines = (line.rstrip() for line in text.replace("<defs>", f"<style>{DARK}</style>\n <defs>", 1).split("\n"))
        file.write("\n".join(lines))


def read_arguments(parser, words):
    """The runs named on the command line."""
    if len(words) == 1 and words[0].endswith(".csv"):
        return read_csv(words[0])
    runs = []
    for word in words:
        label, equals, folder = word.partition("=")
        if not equals or not label or any(c in label for c in '<>&"'):
            parser.error(f"{word}: neither LABEL=RUN_DIR nor one FILE.csv")
        runs.append((label, read_run(folder)))
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN_DIR")
    parser.add_argument("-o", required=True, metavar="FILE.svg")
    arguments = parser.parse_args()
    runs = read_arguments(parser, arguments.runs)
    if len(runs) > len(LINES):
        parser.error(f"{len(runs)} runs, and {len(LINES)} distinguishable line styles; use two figures")
    draw(runs, arguments.o)
    if not arguments.runs[0].endswith(".csv"):
        write_csv(os.path.splitext(arguments.o)[0] + ".csv", runs)
    reference = runs[0][1][max(runs[0][1])]
    print("| numbers | validation loss | above the first |\n|---|---|---|")
    for label, losses in runs:
        last = losses[max(losses)]
        print(f"| {label} | {last:.4f} | {100 * (last / reference - 1):+.2f} % |")


main()
