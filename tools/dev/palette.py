#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The colours of the figures, and a check that colour-blind readers can tell them apart.

    tools/dev/palette.py    checks schedules/draw/ and the colours of figures.py; exit status 1 if any fails

The hues are those of Okabe and Ito, lighter where dark text is drawn on them. Each pair of kinds (F, B, I, W, idle), in
every shade that a chunk can have, differs by at least MINIMUM in CIEDE2000 (Sharma, Wu and Dalal 2005) for normal
vision, deuteranopia and protanopia (Machado, Oliveira and Fernandes 2009, severity 1). Greyscale has no room for that
many shades: there the bars of draw_svg.c tell kinds apart, so a bar must be much darker than its cell."""
import itertools
import math
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MINIMUM = 10.0       # CIEDE2000, between any two kinds
MINIMUM_BAR = 25.0   # difference of lightness between a bar and its cell
MINIMUM_TEXT = 4.5   # contrast ratio of WCAG 2, between a number and its cell
SHADES = 5           # of a kind, from the first chunk's to the last's

# Colours of figures.py: the axes of the mesh, with white text, and what a rank keeps in memory, with dark text.
FIGURE = {"tp": "#b84f00", "dp": "#0072b2", "pp": "#007a59"}
PARTS = {"weights": "#4ca9f3", "gradients": "#f9b300", "optimizer": "#009773", "activations": "#f1a87b",
         "other": "#d3d8de"}

VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
}


def linear(colour):
    """Linear RGB of (red, green, blue) in 0..255."""
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]


def seen(colour, vision):
    """Linear RGB as perceived with this vision."""
    rgb = linear(colour)
    return [min(max(sum(m * c for m, c in zip(row, rgb)), 0.0), 1.0) for row in VISIONS[vision]]


def lab(rgb):
    """CIELAB (D65) of linear RGB."""
    matrix = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
    white = (0.95047, 1.0, 1.08883)
    ratios = [sum(m * c for m, c in zip(row, rgb)) / w for row, w in zip(matrix, white)]
    x, y, z = (t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """The difference of two colours in CIELAB."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean7 = ((math.hypot(a1, b1) + math.hypot(a2, b2)) / 2) ** 7
    stretch = 1.5 - 0.5 * math.sqrt(mean7 / (mean7 + 25 ** 7))
    a1, a2 = a1 * stretch, a2 * stretch
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, a)) % 360 if a or b else 0.0 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    if h2 - h1 == 180:
        turn = 180.0
    hue = h1 + h2 if not c1 * c2 else (h1 + turn / 2) % 360
    dl, dc, dh = l2 - l1, c2 - c1, 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = (1 - 0.17 * math.cos(math.radians(hue - 30)) + 0.24 * math.cos(math.radians(2 * hue))
         + 0.32 * math.cos(math.radians(3 * hue + 6)) - 0.20 * math.cos(math.radians(4 * hue - 63)))
    sl = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    rt = (-2 * math.sqrt(chroma ** 7 / (chroma ** 7 + 25 ** 7))
          * math.sin(math.radians(60 * math.exp(-((hue - 275) / 25) ** 2))))
    return math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * (dc / sc) * (dh / sh))


def difference(one, other, vision):
    return ciede2000(lab(seen(one, vision)), lab(seen(other, vision)))


def srgb(text):
    """(red, green, blue) of "#rrggbb"."""
    return tuple(int(text[i:i + 2], 16) for i in (1, 3, 5))


def xterm(number):
    """Of a colour of xterm's 6 by 6 by 6 cube."""
    levels = (0, 95, 135, 175, 215, 255)
    return tuple(levels[(number - 16) // scale % 6] for scale in (36, 6, 1))


def contrast(one, other):
    """WCAG 2's contrast ratio."""
    light, dark = sorted((sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(v))) for v in (one, other)),
                         reverse=True)
    return (light + 0.05) / (dark + 0.05)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def svg_tables():
    """From draw_svg.c: the shades of each kind, its bar, the number's colour, and (light, dark) idle."""
    source = read("schedules/draw/draw_svg.c")
    triple = r"\{(\d+), (\d+), (\d+)\}"
    rows = re.findall(r"\[(\w+)\] = \{" + triple + ", " + triple + "(?:, " + triple + ")?", source)
    kinds, bars = {}, {}
    for name, *numbers in rows:
        values = [int(n) for n in numbers if n]
        first, last = values[:3], values[3:6]
        kinds[name] = [tuple(round(a + (b - a) * i / (SHADES - 1)) for a, b in zip(first, last)) for i in range(SHADES)]
        bars[name] = tuple(values[6:9])
    idle = re.findall(r"\.idle\{fill:(#\w{6})\}", source)
    number = re.search(r"\.n\{fill:(#\w{6})", source)
    if len(kinds) != 4 or len(idle) != 2 or number is None or sum(map(bool, bars.values())) != 3:
        sys.exit(f"draw_svg.c: {len(kinds)} kinds, {len(idle)} idle colours, {bars}: its table is no longer found")
    return kinds, bars, srgb(number.group(1)), [srgb(c) for c in idle]


def lane_colours():
    """From draw_lanes_svg.c: the colours of messages, copies and ops that belong to no microbatch."""
    found = re.findall(r'\{"(\w+)", "[^"]*", \{(\d+), (\d+), (\d+)\}\}', read("schedules/draw/draw_lanes_svg.c"))
    colours = {name: [tuple(int(c) for c in rgb)] for name, *rgb in found if any(int(c) for c in rgb)}
    if len(colours) != 4:
        sys.exit(f"draw_lanes_svg.c: {len(colours)} colours instead of 4: its table is no longer found")
    return colours


def text_table():
    """From draw_text.c: the four backgrounds of each kind."""
    rows = re.findall(r"\[(\w+)\] = \{\.background = \{\{(\d+), (\d+)\}, \{(\d+), (\d+)\}\}",
                      read("schedules/draw/draw_text.c"))
    if len(rows) != 4:
        sys.exit(f"draw_text.c: {len(rows)} kinds: its table is no longer found")
    return {name: [xterm(int(n)) for n in numbers] for name, *numbers in rows}


def closest(groups, minimum, say):
    """Reports each pair of groups with closer colours; returns the smallest difference for each vision."""
    least = {}
    for vision in VISIONS:
        labs = {name: [lab(seen(c, vision)) for c in colours] for name, colours in groups.items()}
        for one, other in itertools.combinations(labs, 2):
            nearest = min(ciede2000(a, b) for a in labs[one] for b in labs[other])
            least[vision] = min(nearest, least.get(vision, math.inf))
            if nearest < minimum:
                say(f"{one} and {other}: CIEDE2000 {nearest:.1f} with {vision}, and {minimum} is the least")
    return least


def lightness(colour):
    return lab(linear(colour))[0]


def check_cells(kinds, bars, number, say):
    for name, shades in kinds.items():
        for shade in shades:
            if contrast(shade, number) < MINIMUM_TEXT:
                say(f"{name}: contrast {contrast(shade, number):.1f} of a number on {shade}, minimum {MINIMUM_TEXT}")
            if bars[name] and lightness(shade) - lightness(bars[name]) < MINIMUM_BAR:
                say(f"{name}: its bar is too light on {shade}")


def check_method():
    """The formula gives the differences of Sharma's test data, and a known bad pair is rejected."""
    data = (((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425), ((50, 2.5, 0), (73, 25, -18), 27.1492),
            ((50, 2.5, 0), (50, 0, -2.5), 4.3065), ((50, 2.5, 0), (50, 3.2592, 0.3350), 1.0000),
            ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
            ((90.8027, -2.0831, 1.4410), (91.1528, -1.6435, 0.0447), 1.4441))
    for one, other, expected in data:
        if abs(ciede2000(one, other) - expected) > 1e-4:
            sys.exit(f"CIEDE2000 of {one} and {other} is {ciede2000(one, other):.4f} instead of {expected}")
    found = []
    closest({"pale B": [(250, 212, 196)], "pale W": [(200, 234, 206)]}, MINIMUM, found.append)
    if len(found) != 2:
        sys.exit(f"a pale red and a pale green are refused for {len(found)} visions instead of 2: {found}")


def main():
    check_method()
    problems = []
    kinds, bars, number, idle = svg_tables()
    tables = {"draw_svg.c, light page": {**kinds, "idle": idle[:1]},
              "draw_svg.c, dark page": {**kinds, "idle": idle[1:]},
              "draw_lanes_svg.c": {**{name: shades[:1] for name, shades in kinds.items()}, **lane_colours(),
                                   "idle": idle[:1]},
              "draw_text.c": text_table(), "axes of the mesh": {name: [srgb(c)] for name, c in FIGURE.items()},
              "parts of memory": {name: [srgb(c)] for name, c in PARTS.items()}}
    for title, groups in tables.items():
        least = closest(groups, MINIMUM, lambda problem, title=title: problems.append(f"{title}: {problem}"))
        print(f"{title}: " + ", ".join(f"{vision} {value:.1f}" for vision, value in least.items()))
    check_cells(kinds, bars, number, problems.append)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
