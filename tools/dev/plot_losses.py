#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the validation losses of several runs into one SVG, and prints the last ones as a Markdown table.

    tools/dev/plot_losses.py LABEL=RUN_DIR ... -o docs/precision.svg

Above, the losses; below, how far each lies from the first run's, in per cent, step by step. Only evaluated steps are
drawn: lines of metrics.jsonl with a valid_loss. Needs nothing but Python."""
import argparse
import json
import os
import sys

WIDTH, PANEL, GAP, LEFT, RIGHT, TOP, BOTTOM = 760, 250, 46, 62, 150, 24, 44
COLOURS = ("#444444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")


def read_run(folder):
    """[(step, valid_loss)] of a run's folder."""
    path = os.path.join(folder, "metrics.jsonl")
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    found = [(line["step"], line["valid_loss"]) for line in lines if line.get("valid_loss") is not None]
    if not found:
        sys.exit(f"{path}: no step has a valid_loss; train.eval_interval says how often there is one")
    return found


def ticks(low, high):
    """Round numbers between low and high, four to ten of them."""
    step = 1e-6
    while (high - low) / step > 8:
        for factor in (2, 2.5, 2):
            step *= factor
            if (high - low) / step <= 8:
                break
    first = int(low / step) + (low > 0 and low % step > 0)
    return [first * step + i * step for i in range(int((high - first * step) / step) + 1)]


class Panel:
    """One pair of axes; points outside are drawn at its edge."""

    def __init__(self, top, steps, low, high, title):
        self.top, self.steps, self.low, self.high = top, steps, low, high
        self.out = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title}</text>']
        for value in ticks(low, high):
            y = self.y(value)
            self.out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
            self.out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
        for value in ticks(0, steps):
            self.out.append(f'<text x="{self.x(value):.1f}" y="{top + PANEL + 16}" '
                            f'text-anchor="middle">{value:.0f}</text>')
        self.out.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" '
                        'fill="none" stroke="#888888"/>')

    def x(self, step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, value):
        inside = min(max(value, self.low), self.high)
        return self.top + PANEL * (self.high - inside) / (self.high - self.low)

    def line(self, points, colour):
        path = " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in points)
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')


def draw(runs):
    """The picture of [(label, [(step, loss)])]."""
    steps = max(points[-1][0] for _, points in runs)
    first = dict(runs[0][1])
    apart = [(label, [(s, 100 * (v / first[s] - 1)) for s, v in points if s in first]) for label, points in runs]
    losses = [v for _, points in runs for s, v in points if s >= steps / 4]
    late = [v for _, points in apart for s, v in points if s >= steps / 4]
    room = 0.05 * (max(losses) - min(losses))
    high, low = max(late + [0.5]), min(late + [-0.5])
    above = Panel(TOP, steps, min(losses) - room, max(losses) + room, "validation loss, nats per token")
    below = Panel(TOP + PANEL + GAP, steps, low - 0.3, high + 0.3, f"the same, per cent above {runs[0][0]}")
    legend = []
    for i, ((label, points), (_, away)) in enumerate(zip(runs, apart)):
        colour = COLOURS[i % len(COLOURS)]
        above.line(points, colour)
        below.line(away, colour)
        y = TOP + 14 + 19 * i
        legend.append(f'<line x1="{WIDTH - RIGHT + 10}" y1="{y - 4}" x2="{WIDTH - RIGHT + 30}" y2="{y - 4}" '
                      f'stroke="{colour}" stroke-width="2.5"/><text x="{WIDTH - RIGHT + 36}" y="{y}">{label}</text>')
    height = TOP + 2 * PANEL + GAP + BOTTOM
    step = f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">step</text>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                      'font-family="sans-serif" font-size="12">',
                      f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *above.out, *below.out, *legend, step,
                      "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN_DIR")
    parser.add_argument("-o", required=True, metavar="FILE.svg")
    arguments = parser.parse_args()
    runs = []
    for run in arguments.runs:
        label, equals, folder = run.partition("=")
        if not equals or not label or any(c in label for c in '<>&"'):
            parser.error(f"{run}: not LABEL=RUN_DIR")
        runs.append((label, read_run(folder)))
    with open(arguments.o, "w", encoding="utf-8") as file:
        file.write(draw(runs))
    reference = runs[0][1][-1][1]
    print("| numbers | validation loss | above the first |\n|---|---|---|")
    for label, points in runs:
        print(f"| {label} | {points[-1][1]:.4f} | {100 * (points[-1][1] / reference - 1):+.2f} % |")


main()
