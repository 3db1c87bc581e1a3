#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the pictures of `cuboid schedule` against its printed times: every picture is XML with each action as one
rectangle at its rank and time, every trace is JSON with each action as one slice and each message as one arrow
from the slice that produces its value to the one that consumes it, and the comparison has the results of each
schedule alone.

    check_files.py CUBOID"""
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"
MICROSECONDS = 1000.0
COMPUTES = ("F", "B", "I", "W")
# Name and options: one chunk and many, a V, two directions, more microbatches than a number's digits.
CASES = [
    "1f1b -p 4 -m 8",
    "gpipe -p 1 -m 3",
    "interleaved -p 3 -m 7 -v 2 --cost f=1,i=1.5,w=0.5,comm=0.25",
    "zb-h1 -p 4 -m 6 --cost w=0",
    "zb-v -p 4 -m 12 --cost comm=0.1",
    "dualpipe -p 4 -m 10",
    "looped-bfs -p 2 -m 120 -v 4 --cost f=0.001,comm=3",
]


class Failed(Exception):
    pass


def expect(condition, *what):
    if not condition:
        raise Failed(" ".join(str(w) for w in what))


def run(cuboid, line, *more):
    done = subprocess.run([cuboid, "schedule", *line.split(), *more], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, line, *more, "ended with", done.returncode, done.stderr)
    return done.stdout


def near(a, b, slack):
    return abs(a - b) <= slack


def actions_of(result):
    """(rank, position, action) of every action that the JSON lists."""
    for rank in result["ranks"]:
        for position, action in enumerate(rank["actions"]):
            yield rank["rank"], position, action


def check_svg(path, result, critical):
    root = xml.etree.ElementTree.parse(path).getroot()
    expect(root.tag == SVG + "svg", "the root is", root.tag)
    rects = [r for r in root.iter(SVG + "rect")]
    cells = {r.find(SVG + "title").text: r for r in rects if r.find(SVG + "title") is not None}
    computing = [(rank, a) for rank, _, a in actions_of(result) if a["kind"] in COMPUTES]
    named = {name.split(":")[0]: r for name, r in cells.items()}
    expect(len(named) == len(computing) == len(cells), len(named), "cells for", len(computing), "actions")
    idle = [r for r in rects if r.get("class") == "idle" and r.get("rx") is None]
    expect(len(idle) == result["p"], len(idle), "bubbles for", result["p"], "ranks")
    rows = [float(r.get("y")) for r in idle]
    spans = [(r["first_start"], r["last_end"]) for r in result["ranks"]]
    widest = max(range(result["p"]), key=lambda r: spans[r][1] - spans[r][0])
    scale = float(idle[widest].get("width")) / (spans[widest][1] - spans[widest][0])
    origin = float(idle[0].get("x")) - spans[0][0] * scale
    for rank, a in computing:
        cell = named[a["action"]]
        x, y, width = (float(cell.get(k)) for k in ("x", "y", "width"))
        expect(near(x, origin + a["start"] * scale, 0.05), a, "is drawn at", x)
        full = (a["end"] - a["start"]) * scale
        expect(full - 1.02 <= width <= full + 0.01, a, "is drawn", width, "wide, for", full)
        expect(0 <= y - rows[rank] < 25, a, "is not in the row of rank", rank)
        expect(cell.get("class") == f"{a['kind']}{a['chunk']}", a, "has the colour", cell.get("class"))
    outlined = sum(r.get("class") == "path" for r in rects) - critical
    expected = sum(a["critical"] for _, a in computing) if critical else 0
    expect(outlined == expected, outlined, "outlines for", expected, "critical actions")
    width = float(root.get("width"))
    texts = "".join(t.text for t in root.iter(SVG + "text"))
    expect(f"step time {result['makespan']:.6g}" in texts, "the title has no step time:", texts[:200])
    expect(all(float(r.get("x")) + float(r.get("width")) <= width for r in rects), "a rectangle is out of bounds")


def check_threads(slices, names):
    """Slices of one thread do not overlap, except for overlapped pairs."""
    for thread in {s["tid"] for s in slices}:
        expect(thread in names, "thread", thread, "has no name")
        mine = sorted((s["ts"], s["ts"] + s["dur"]) for s in slices if s["tid"] == thread)
        for (a, b), (c, d) in zip(mine, mine[1:]):
            expect(c >= b - 1e-6 or (a, b) == (c, d), "two slices of thread", thread, "cross:", (a, b), (c, d))


def check_trace(path, result):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    listed = list(actions_of(result))
    found = {(s["pid"] - 1, s["args"]["position"]): s for s in slices}
    expect(len(found) == len(slices) == len(listed), len(slices), "slices for", len(listed), "actions")
    for rank, position, a in listed:
        s = found[rank, position]
        expect(near(s["ts"], a["start"] * MICROSECONDS, 1e-3 + 1e-9 * s["ts"]), a, "begins at", s["ts"])
        expect(near(s["dur"], (a["end"] - a["start"]) * MICROSECONDS, 2e-3 + 1e-9 * s["ts"]), a, "lasts", s["dur"])
        expect(s["name"] == f"{a['kind']} {a['microbatch']}" and s["args"]["stage"] == a["stage"], a, "is", s)
        wanted = "compute" if a["kind"] in COMPUTES else "messages"
        expect(names[s["tid"]] == wanted, a, "is on the thread", names[s["tid"]])
    check_threads(slices, names)
    heads = {e["id"]: e for e in events if e["ph"] == "s"}
    tails = {e["id"]: e for e in events if e["ph"] == "f"}
    receives = [(rank, a) for rank, _, a in listed if a["kind"].startswith("RECV")]
    expect(heads.keys() == tails.keys() and len(heads) == len(receives), len(heads), "arrows for", len(receives))
    arrows = []
    for key, head in heads.items():
        ends = []
        for end in (head, tails[key]):
            at = [s for s in slices if s["tid"] == end["tid"] and s["ts"] <= end["ts"] < s["ts"] + s["dur"]]
            expect(len(at) >= 1, "an arrow starts or ends at no slice:", end)
            ends.append(at)
        made, used = ends[0], ends[1]
        arrows.append([(m["args"]["stage"], u["args"]["stage"], u["args"]["microbatch"], u["pid"] - 1)
                       for m in made for u in used if m["args"]["microbatch"] == u["args"]["microbatch"]])
    for rank, a in receives:
        before = a["stage"] - 1 if a["kind"] == "RECV_F" else a["stage"] + 1
        expect(any((before, a["stage"], a["microbatch"], rank) in one for one in arrows), "no arrow for", a)


def check_printed(cuboid, case, result, svg, trace):
    """Standard output has only the requested format, also if files are written too."""
    traced = json.loads(run(cuboid, case, "--json", "--trace", trace))
    expect(traced == result, "--json with --trace prints another result")
    for option, path, other in (("--trace", trace, "--svg"), ("--svg", svg, "--trace")):
        printed = run(cuboid, case, option, "-", other, svg if other == "--svg" else trace)
        if option == "--svg":
            run(cuboid, case, option, path)
        with open(path, encoding="utf-8") as file:
            expect(printed == file.read(), option, "- differs from the file")


def check_name(cuboid, folder):
    """A schedule file's name is a picture's title, and may contain any bytes."""
    name, svg = os.path.join(folder, "\033[1m<&]]>\1\u009b\uffff \u00e9.csv"), os.path.join(folder, "a.svg")
    for path in (name, os.fsencode(name) + b"\xff.csv"):
        with open(path, "w", encoding="ascii") as file:
            file.write("0F0,0B0\n")
        done = subprocess.run([cuboid, "schedule", path, "--svg", svg], capture_output=True, check=False)
        expect(done.returncode == 0, "a name of any bytes:", done)
        root = xml.etree.ElementTree.parse(svg).getroot()
        title = next(root.iter(SVG + "text")).text
        shown = "/\\x1b[1m<&]]>\\x01\\xc2\\x9b\\xef\\xbf\\xbf \u00e9.csv"
        expect(title.startswith(folder + shown), "the title is", title)
        os.unlink(path)
    os.unlink(svg)


def check_comparison(cuboid, line):
    result = json.loads(run(cuboid, "compare " + line, "--json"))
    listed = re.findall(r"^(\S+)", run(cuboid, "--list"), re.M)
    expect(sorted(s["schedule"] for s in result["schedules"]) == sorted(listed), "not all schedules are compared")
    compared = [s for s in result["schedules"] if "refused" not in s]
    expect([s["makespan"] for s in compared] == sorted(s["makespan"] for s in compared), "the shortest is not first")
    once = [s for s in compared if s["weight_copies"] == 1]
    expect(min(s["makespan"] for s in once) == next(s["makespan"] for s in once if s["schedule"] == "auto"),
           "auto is not the shortest of those that hold weights once")
    expect([s["schedule"] for s in compared if s["weight_copies"] == 2] ==
           [s["schedule"] for s in compared if s["schedule"] == "dualpipe"], "only dualpipe has two weight copies")
    size = re.match(r"-p \d+ -m \d+", line).group()
    for s in compared:
        cost = ",".join(f"{k}={result['cost'][k]!r}" for k in ("f", "i", "w", "comm"))
        alone = json.loads(run(cuboid, f"{s['schedule']} {size} -v {s['v']} --json --cost {cost}"))
        expect(alone["cost"] == result["cost"], "costs are", alone["cost"], "and compared", result["cost"])
        sends = [sum(a["kind"].startswith("SEND") for a in r["actions"]) for r in alone["ranks"]]
        mine = (alone["makespan"], alone["bubble_fraction"], max(r["peak"] for r in alone["ranks"]), max(sends))
        theirs = (s["makespan"], s["bubble_fraction"], s["peak_chunks"], s["messages"])
        expect(mine == theirs, s["schedule"], "alone is", mine, "and compared", theirs)
    table = run(cuboid, "compare " + line)
    for s in result["schedules"]:
        expect(s["schedule"] in table, s["schedule"], "is not in the table")
        twice = s.get("weight_copies") == 2
        expect((s["schedule"] + "*" in table) == twice, s["schedule"], "is marked wrongly")
    expect("* holds all weights twice; not" in table or all(s["weight_copies"] == 1 for s in compared), table)


def main():
    cuboid = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        svg, trace = os.path.join(folder, "a.svg"), os.path.join(folder, "a.json")
        check_name(cuboid, folder)
        for case in CASES:
            result = json.loads(run(cuboid, case, "--json"))
            try:
                for more in ([], ["--critical"]):
                    output = run(cuboid, case, "--svg", svg, "--trace", trace, *more)
                    check_svg(svg, result, len(more))
                expect(re.fullmatch(r"(\S+: \d+ bytes\n){2}", output), "it printed", output)
                check_trace(trace, result)
                check_printed(cuboid, case, result, svg, trace)
                expect(sorted(os.listdir(folder)) == ["a.json", "a.svg"], "files remain:", os.listdir(folder))
            except Failed as failed:
                sys.exit(f"cuboid schedule {case}: {failed}")
    for line in ("-p 4 -m 8", "-p 3 -m 5 -v 4 --cost f=1,i=2,w=0.5,comm=0.125", "-p 2 -m 3 -v 4 --cost comm=1.5"):
        try:
            check_comparison(cuboid, line)
        except Failed as failed:
            sys.exit(f"cuboid schedule compare {line}: {failed}")
    if "\n\nauto is limited to 1.5 whole" not in run(cuboid, "compare -p 3 -m 2 --memory-limit 1.5"):
        sys.exit("cuboid schedule compare: the table does not mention the limit of auto")
    print(f"{len(CASES)} schedules, 3 comparisons")


main()
