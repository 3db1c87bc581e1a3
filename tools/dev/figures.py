#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/ that are not schedules: the mesh, matrices under tensor parallelism, ZeRO's shards, memory per
rank, which is what `cuboid train RECIPE cluster.device=dry` prints, the step times of published.md, and the losses of
convergence.md.

tools/dev/docs_run.py CUBOID --write makes them, and checks that they are current. Each file serves light and dark
pages, as draw_svg.c explains; colours are those of palette.py."""
import csv
import math
import os
import re

from palette import FIGURE, PARTS, ROOT

INK, DIM = "t", "s"  # classes of text
STYLE = """<style>
text{font-family:Helvetica,Arial,sans-serif;font-size:13px;text-anchor:middle}
.t{fill:#1d2733}.s{fill:#5b6b7a}.d{fill:#0b141d}.w{fill:#ffffff}.b{font-weight:bold}.h{font-size:16px;font-weight:bold}
.l{text-anchor:start}.r{text-anchor:end}.page{fill:#ffffff}.box{fill:#f1f4f7;stroke:#c3ccd5}
.node{fill:#ffffff;stroke:#33475b}
.empty{fill:none;stroke:#8b99a7;stroke-dasharray:3 3}.whole{fill:#d3d8de;stroke:#8b99a7}.line{stroke:#8b99a7;fill:none}
.grid{stroke:#8b99a7;stroke-opacity:.4}
@media(prefers-color-scheme:dark){.t{fill:#e6edf3}.s{fill:#9fb0c0}.page{fill:#0d1117}.box{fill:#161d26;stroke:#3a4653}
.node{fill:#0d1117;stroke:#9fb0c0}}
</style>"""


class Picture:
    """An SVG of this size."""

    def __init__(self, width, height, title):
        self.width, self.height = width, height
        self.out = [STYLE, f'<rect class="page" width="{width}" height="{height}" rx="6"/>']
        self.text(16, 28, title, "t h l")

    def add(self, element):
        self.out.append(element)

    def rect(self, x, y, width, height, style, radius=3):
        self.add(f'<rect {paint(style)} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>')

    def text(self, x, y, words, classes=INK):
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.add(f'<text class="{classes}" x="{x:g}" y="{y:g}">{words}</text>')

    def lines(self, x, y, words, classes=DIM):
        for i, line in enumerate(words):
            self.text(x, y + 17 * i, line, classes)

    def finish(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}">\n' + "\n".join(self.out) + "\n</svg>\n")


def paint(style):
    """A class of STYLE, or a colour."""
    return f'fill="{style}"' if style.startswith(("#", "url")) else f'class="{style}"'


def hatch(name, colour):
    """A pattern that tells this colour apart without hue."""
    return (f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<rect width="7" height="7" fill="{colour}"/><rect width="2" height="7" fill="#0b141d" opacity=".45"/>'
            '</pattern>')


# ---- the mesh ----

AXES = (
    ("tp", "tensor parallel", "each layer sharded", ("all-gather, reduce-scatter", "or all-reduce in every layer")),
    ("dp", "data parallel", "different samples", ("gradients are reduced", "once per step, in buckets")),
    ("pp", "pipeline parallel", "different layers", ("activations forward, gradients", "backward, every microbatch")),
)


def node_at(left, top, tp, dp, pp):
    """The centre of a rank's box in a panel."""
    return left + 34 + 60 * tp + 136 * pp, top + 62 + 76 * dp


def mesh_groups(picture, axis, left, top):
    """Draws the groups along one axis, under the ranks."""
    colour = FIGURE[axis]
    for a in range(2):
        for b in range(2):
            if axis == "tp":
                x, y = node_at(left, top, 0, a, b)
                picture.rect(x - 28, y - 24, 116, 48, colour, 12)
            elif axis == "dp":
                x, y = node_at(left, top, a, 0, b)
                picture.rect(x - 28, y - 24, 56, 124, colour, 12)
            else:
                (x, y), (end, _) = node_at(left, top, a, b, 0), node_at(left, top, a, b, 1)
                side = -1 if b == 0 else 1
                near, far = y + 15 * side, y + 46 * side
                picture.add(f'<path d="M{x:g} {near:g}C{x + 20:g} {far:g} {end - 20:g} {far:g} {end:g} {near:g}" '
                            f'fill="none" stroke="{colour}" stroke-width="5"/>')


def mesh_panel(picture, axis, left, top):
    name, title, label, traffic = axis
    for pp in range(2):
        x, _ = node_at(left, top, 0, 0, pp)
        picture.rect(x - 34, top + 8, 128, 184, "box", 8)
        picture.text(x + 30, top + 208, f"stage {pp}", DIM)
    mesh_groups(picture, name, left, top)
    for rank in range(8):
        x, y = node_at(left, top, rank % 2, rank // 2 % 2, rank // 4)
        picture.rect(x - 20, y - 16, 40, 32, "node", 6)
        picture.text(x, y + 5, str(rank), "t b")
    centre = left + 132
    picture.add(f'<rect fill="{FIGURE[name]}" x="{left}" y="{top - 46}" width="264" height="44" rx="6"/>')
    picture.text(centre, top - 28, f"{title} ({name})", "w b")
    picture.text(centre, top - 10, label, "w b")
    picture.lines(centre, top + 232, traffic)


def mesh():
    picture = Picture(860, 378, "8 ranks as a mesh: tp 2, dp 2, pp 2. Joined ranks are one group")
    for i, axis in enumerate(AXES):
        mesh_panel(picture, axis, 16 + 282 * i, 92)
    picture.text(430, 364, "rank = tp + 2 dp + 4 pp", DIM)
    return picture.finish()


# ---- tensor parallelism ----

SHARDS = ("#4ca9f3", "url(#one)")  # of tp rank 0 and 1
PARTIAL = "#d3d8de"


def matrix(picture, left, top, size, cut, names, dims):
    """A matrix: whole on both ranks, or cut into columns or rows, one for each of two ranks."""
    width, height = size
    for rank in range(2 if cut else 1):
        x = left + (width / 2 + 2) * rank if cut == "columns" else left
        y = top + (height / 2 + 2) * rank if cut == "rows" else top
        w = width / 2 - 2 if cut == "columns" else width
        h = height / 2 - 2 if cut == "rows" else height
        picture.rect(x, y, w, h, SHARDS[rank] if cut else "whole")
        if rank < len(names):
            picture.rect(x + w / 2 - 15, y + h / 2 - 11, 30, 22, "#ffffff", 4)
            picture.text(x + w / 2, y + h / 2 + 5, names[rank], "d b")
    picture.text(left + width / 2, top - 8, dims[0], DIM)
    picture.text(left - 6, top + height / 2 + 4, dims[1], "s r")


def column_parallel(picture, top):
    picture.text(16, top - 48, "Column-parallel: Y = X A, each rank has columns of A (output features)", "t b l")
    matrix(picture, 56, top, (110, 90), None, ("X",), ("K", "T"))
    picture.text(187, top + 52, "×", "t h")
    matrix(picture, 226, top - 10, (150, 110), "columns", ("A₀", "A₁"), ("N", "K"))
    picture.text(397, top + 52, "=", "t h")
    matrix(picture, 436, top, (150, 90), "columns", ("Y₀", "Y₁"), ("N", "T"))
    picture.lines(616, top + 12, ("q, k, v; gate and up", "forward: no communication",
                                  "(sequence parallel: all-gather X)", "backward: all-reduce of dX",
                                  "(sequence parallel: reduce-scatter)"), "s l")


def row_parallel(picture, top):
    picture.text(16, top - 48, "Row-parallel: Z = Y B, each rank has rows of B (input features)", "t b l")
    matrix(picture, 56, top, (150, 90), "columns", ("Y₀", "Y₁"), ("N", "T"))
    picture.text(223, top + 52, "×", "t h")
    matrix(picture, 262, top - 20, (110, 130), "rows", ("B₀", "B₁"), ("K", "N"))
    picture.text(391, top + 52, "=", "t h")
    for rank in range(2):
        x = 412 + 96 * rank
        picture.rect(x, top + 10, 70, 66, SHARDS[rank])
        picture.rect(x + 10, top + 32, 50, 22, "#ffffff", 4)
        picture.text(x + 35, top + 48, f"{'Y₀B₀' if rank == 0 else 'Y₁B₁'}", "d b")
    picture.text(495, top + 52, "+", "t h")
    picture.text(447 + 48, top + 98, "partial sums, one per rank", DIM)
    picture.lines(616, top + 12, ("attention output; down", "forward: all-reduce of Z",
                                  "(sequence parallel: reduce-scatter)", "backward: no communication",
                                  "(sequence parallel: all-gather dZ)"), "s l")


def tensor_parallel():
    picture = Picture(860, 420, "Linear layers on two tensor-parallel ranks")
    picture.add(f'<defs>{hatch("one", "#f9b300")}</defs>')
    for rank in range(2):
        picture.rect(500 + 110 * rank, 15, 16, 16, SHARDS[rank])
        picture.text(522 + 110 * rank, 28, f"tp rank {rank}", "t l")
    picture.rect(724, 15, 16, 16, "whole")
    picture.text(746, 28, "on both ranks", "t l")
    column_parallel(picture, 112)
    row_parallel(picture, 292)
    return picture.finish()


# ---- ZeRO ----

KINDS = (("weights", "4"), ("gradients", "4"), ("optimizer", "8"))
ZERO = (("stage 0", (), "16 P"), ("stage 1", ("optimizer",), "8 P + 8 P/d"),
        ("stage 2", ("optimizer", "gradients"), "4 P + 12 P/d"),
        ("stage 3", ("optimizer", "gradients", "weights"), "16 P/d"))


def zero():
    picture = Picture(860, 416, "ZeRO: what each of d = 4 data-parallel ranks keeps, in fp32, for P parameters")
    at = 16
    for name, size in KINDS:
        picture.rect(at, 44, 16, 16, PARTS[name])
        words = f"{name}, {size} P bytes" + (" (Adam's two moments)" if name == "optimizer" else "")
        picture.text(at + 24, 57, words, "t l")
        at += 190
    for rank in range(4):
        picture.text(171 + 140 * rank, 92, f"rank {rank}", "t b")
    picture.text(754, 92, "bytes per rank", "t b")
    for row, (stage, sharded, total) in enumerate(ZERO):
        top = 106 + 72 * row
        picture.text(16, top + 34, stage, "t b l")
        picture.text(754, top + 34, total)
        for rank in range(4):
            y = top
            for name, size in KINDS:
                height = 12 if size == "4" else 24
                left = 111 + 140 * rank
                picture.rect(left, y, 120, height, "empty", 0)
                share = (left + 30 * rank, 30) if name in sharded else (left, 120)
                picture.rect(share[0], y, share[1], height, PARTS[name], 0)
                y += height + 3
    picture.text(16, 402, "Stages 2 and 3 also hold, for a while, the gradients (3: and the weights) of the layers in "
                 "progress.", "s l")
    return picture.finish()


# ---- memory per rank ----

RECIPE = ("train", "recipes/base/gpt3-1.3b.yaml", "cluster.device=dry", "train.global_batch_size=32")
PIPELINE = ("tp=2", "pp=4", "dp=1")
UNITS = {"B": 1, "KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30}
COLUMNS = {"weights": "weights", "masters": "optimizer", "gradients": "gradients", "moments": "optimizer",
           "optimizer": "optimizer", "activations": "activations"}


def memory_table(printed):
    """[{part: GiB}] of each row of the table that a dry run prints first."""
    lines = printed.split("\n")
    first = next(i for i, line in enumerate(lines) if re.match(r"\s*rank\s+pp\s+(weights|masters)", line))
    names = re.split(r"\s{2,}", lines[first].strip())[2:]
    rows = []
    for line in lines[first + 1:]:
        sizes = re.findall(r"([\d.]+) (B|KiB|MiB|GiB)\b", line)
        if len(sizes) != len(names):
            break
        rows.append({})
        for name, (number, unit) in zip(names[:-1], sizes):
            part = COLUMNS.get(name, "other")
            rows[-1][part] = rows[-1].get(part, 0.0) + float(number) * UNITS[unit] / UNITS["GiB"]
    if not rows:
        raise ValueError(f"no table of memory in what a dry run prints:\n{printed}")
    return rows


def memory_groups(run):
    """[(title, [(label, {part: GiB})])], from dry runs."""
    def table(*more):
        return memory_table(run([*RECIPE, *more]))
    sharded = [(f"ZeRO {z}", table("tp=1", "pp=1", "dp=8", f"parallel.zero_stage={z}")[0]) for z in range(4)]
    stages = [(f"stage {i}", row) for i, row in enumerate(table(*PIPELINE))]
    recompute = [(name, table(*PIPELINE, f"memory.recompute_granularity={name}")[0]) for name in ("selective", "full")]
    return [("dp 8: parallel.zero_stage", sharded), ("tp 2, pp 4: 1F1B stages", stages),
            ("stage 0, recompute", recompute)]


def memory(run):
    picture = Picture(860, 420, "Memory per rank: gpt3-1.3b on 8 ranks, bf16, microbatches of 1 × 2048 tokens")
    base, height, groups = 352, 240, memory_groups(run)
    peak = max(sum(parts.values()) for _, bars in groups for _, parts in bars)
    at = 16
    for name in PARTS:
        picture.rect(at, 44, 16, 16, PARTS[name])
        picture.text(at + 24, 57, name + (" (masters, moments)" if name == "optimizer" else ""), "t l")
        at += 240 if name == "optimizer" else 136
    for gib in range(0, int(peak) + 1, 5):
        y = base - height * gib / peak
        picture.add(f'<path class="grid" d="M64 {y:.1f}H846"/>')
        picture.text(56, y + 4, f"{gib} GiB" if gib else "0", "s r")
    at = 78
    for title, bars in groups:
        start = at
        for label, parts in bars:
            y = base
            for name, colour in PARTS.items():
                size = height * parts.get(name, 0.0) / peak
                y -= size
                picture.rect(at, round(y, 2), 48, round(size, 2), colour, 0)
            picture.text(at + 24, y - 6, f"{sum(parts.values()):.1f}", "t b")
            picture.text(at + 24, base + 18, label)
            at += 72
        picture.text((start + at - 24) / 2, base + 44, title, "t b")
        at += 26
    return picture.finish()


# ---- published step times ----

AXIS = (0.015, 300.0)  # seconds, of both axes
PLOT = (92, 48, 500, 500)  # left, top, width, height
UNFITTED = ("megatron-ci", "other-programs")  # tables that no profile was fitted to
BARS = ((-math.inf, "more"), (-0.2, "-20"), (-0.1, "-10"), (-0.05, "-5"), (-0.02, "-2"), (0.02, "+2"), (0.05, "+5"),
        (0.1, "+10"), (0.2, "+20"), (math.inf, "more"))  # bounds of the error of a bar, and their labels in per cent


def published_steps():
    """[(fitted, published, predicted)] in seconds of the rows of docs/measurements/published.md that have both."""
    with open(os.path.join(ROOT, "docs", "measurements", "published.md"), encoding="utf-8") as file:
        sections = re.split(r"(?m)^## ", file.read())[1:]
    number = r"(\d[\d.e+]*)"
    return [(not section.startswith(UNFITTED), float(published), float(predicted)) for section in sections
            for published, predicted in
            re.findall(rf"(?m)^\| .* \| \d+ \| \S[^|]* \| {number} \| {number} \| [-+][\d.]+ %", section)]


def place(seconds, start, size):
    low, high = map(math.log, AXIS)
    return start + size * (math.log(seconds) - low) / (high - low)


def scatter(picture, steps):
    left, top, width, height = PLOT
    picture.rect(left, top, width, height, "box", 0)
    for tick in (0.1, 1.0, 10.0, 100.0):
        x, y = place(tick, left, width), place(tick, top + height, -height)
        picture.add(f'<path class="grid" d="M{x:.1f} {top}V{top + height}M{left} {y:.1f}H{left + width}"/>')
        picture.text(x, top + height + 18, f"{tick:g} s")
        picture.text(left - 8, y + 4, f"{tick:g} s", "t r")
    picture.add(f'<path class="line" d="M{left} {top + height}L{left + width} {top}"/>')
    picture.text(left + width / 2, top + height + 40, "published step time", "t b")
    middle = f"translate(24 {top + height / 2:g}) rotate(-90)"
    picture.add(f'<text class="t b" transform="{middle}">predicted step time</text>')
    for fitted, published, predicted in steps:
        x, y = place(published, left, width), place(predicted, top + height, -height)
        colour = FIGURE["dp" if fitted else "tp"]
        fill = colour if fitted else "none"
        picture.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" fill-opacity=".6" stroke="{colour}"/>')


def error_bars(picture, errors, left, top, title, colour):
    """How many of the rows have an error between two bounds."""
    counts = [sum(low <= e < high for e in errors) for (low, _), (high, _) in zip(BARS, BARS[1:])]
    base, step = top + 166, 30
    for i, count in enumerate(counts):
        size = 104 * count / max(counts)
        picture.rect(left + step * i + 2, base - size, step - 4, round(size, 1), colour, 0)
        picture.text(left + step * i + step / 2, base - size - 5, str(count))
    for i, (_, label) in enumerate(BARS[1:-1], 1):
        picture.text(left + step * i, base + 17, label, DIM)
    picture.text(left + step * (len(BARS) - 1) / 2, base + 36, "error of the prediction, %", DIM)
    picture.text(left, top + 14, title, "t b l")
    size = sorted(abs(e) for e in errors)
    middle = (size[(len(size) - 1) // 2] + size[len(size) // 2]) / 2
    picture.text(left, top + 32, f"{len(errors)} rows, median error {100 * middle:.1f} %", "s l")


def published():
    steps = published_steps()
    picture = Picture(940, 604, f"{len(steps)} published step times, and what cuboid plan predicts")
    scatter(picture, steps)
    groups = [("profile fitted to this cluster", True), ("no profile fitted to these rows", False)]
    for i, (title, fitted) in enumerate(groups):
        errors = [predicted / real - 1 for which, real, predicted in steps if which == fitted]
        error_bars(picture, errors, 636, 66 + 246 * i, title, FIGURE["dp" if fitted else "tp"])
    return picture.finish()


# ---- the losses of docs/measurements/convergence.md ----

LOSSES = os.path.join(ROOT, "docs", "figures", "convergence.csv")
PLOT_LEFT, PLOT_RIGHT = 76, 840
CURVES = {"PyTorch": ("#8b99a7", 7, ""), "PyTorch, 4 microbatches": ("#8b99a7", 2, ""),
          "Cuboid, 1 rank, bf16": ("#cc79a7", 2, ""), "Cuboid, 1 rank": ("#d55e00", 2, ""),
          "Cuboid, tp 2, pp 2, zb-v": ("#0072b2", 2, "7 5"), "Cuboid, dp 2, ZeRO 3": ("#009e73", 2, "2 4")}
# label: colour, width, dashes


def read_losses():
    """(steps, [(label, [loss])]); a shorter run has fewer losses."""
    with open(LOSSES, encoding="utf-8", newline="") as file:
        (_, *labels), *rows = csv.reader(file)
    columns = [[float(number) for number in column if number] for column in zip(*rows)]
    return columns[0], list(zip(labels, columns[1:]))


def curve(picture, points, style):
    colour, width, dashes = style
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    picture.add(f'<path fill="none" stroke="{colour}" stroke-width="{width}"{dashes} stroke-linejoin="round" '
                f'd="M{path}"/>')


def panel(picture, bottom, title, ticks, steps, rows, height=200):
    """rows: (label, [value]). ticks: {value: label}, from the lower edge to the upper one."""
    def at(step, value):
        low, high = min(ticks), max(ticks)
        return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * step / steps[-1], bottom - height * (value - low) / (high - low)
    picture.text(16, bottom - height - 16, title, "t b l")
    for value, label in ticks.items():
        y = at(0, value)[1]
        picture.add(f'<path class="grid" d="M{PLOT_LEFT} {y:.1f}H{PLOT_RIGHT}"/>')
        picture.text(PLOT_LEFT - 8, y + 4, label, "s r")
    for quarter in range(5):
        step = steps[-1] * quarter / 4
        picture.text(at(step, 0)[0], bottom + 20, f"{step:g}", DIM)
    for label, values in sorted(rows, key=lambda row: list(CURVES).index(row[0])):
        curve(picture, [at(step, max(value, min(ticks))) for step, value in zip(steps, values)], CURVES[label])


def convergence():
    steps, runs = read_losses()
    picture = Picture(860, 660, "GPT-2 124M from the same weights on the same samples, in PyTorch and in Cuboid")
    for i, (label, _) in enumerate(runs):
        x, y = 16 + 280 * (i % 3), 52 + 22 * (i // 3)
        curve(picture, ((x, y), (x + 34, y)), CURVES[label])
        picture.text(x + 42, y + 4, label, "t l")
    low, high = (f(loss for _, losses in runs for loss in losses) for f in (min, max))
    panel(picture, 334, "training loss", {k: str(k) for k in range(math.floor(low), math.ceil(high) + 1)}, steps, runs)
    apart = [(label, [math.log10(max(abs(loss - reference), 1e-30)) for loss, reference in zip(losses, runs[0][1])])
             for label, losses in runs[1:]]
    high = math.ceil(max(max(row) for _, row in apart))
    panel(picture, 612, f"difference from {runs[0][0]}", {k: f"1e{k}" for k in range(-7, high + 1)}, steps, apart)
    picture.text(458, 650, "step", DIM)
    return picture.finish()


def all_figures(run):
    """{path: content}; run(words) returns what cuboid prints."""
    figures = {"mesh": mesh(), "tensor-parallel": tensor_parallel(), "zero": zero(), "memory-per-rank": memory(run),
               "published": published(), "convergence": convergence()}
    return {f"docs/figures/{name}.svg": figure for name, figure in figures.items()}
