#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds Cuboid's schedules against orders that other programs generated.

    compare_golden.py CUBOID FOLDER

FOLDER has torch/, torch_generated/, zero_bubble/ and dualpipe/ with files of actions (a line per rank), and
zero_bubble/makespan_report.json. Families whose orders are laws are compared action for action, idle cells aside;
those whose orders come from a search by makespan and by the peak of each rank, f = i = w = 1. Folders that are
not there are left out; the suite's own tests (test_schedule_orders, test_schedule_forms) need none of them.

Two differences are meant. PyTorch's breadth-first runs its backwards from the last microbatch to the first, and
here gradients add up in microbatch order: both lists are compared with the microbatches of backwards mirrored. And
files of zero_bubble/ and torch/zb1p_* write I as B, and B as BW."""

import json
import pathlib
import re
import subprocess
import sys

ACTION = re.compile(r"(\d+)([A-Z]+)(\d+)")
HEURISTIC = {"zb1p": "zb-h1", "zb2p": "zb-h2", "vhalf": "v-half", "vmin": "v-min", "zbv": "zb-v"}
# (folder, file name without its sizes): schedule
LAWS = {
    ("torch", "dualpipev"): "dualpipev",
    ("torch", "zb1p_2stagep_compute"): "zb-h1",
    ("torch_generated", "dualpipev"): "dualpipev",
    ("torch_generated", "interleaved1f1b"): "interleaved",
    ("torch_generated", "interleaved_zb1p"): "zb-h1",
    ("torch_generated", "loopedbfs"): "looped-bfs",
    ("torch_generated", "zbv"): "zb-v",
    ("zero_bubble", "1f1b"): "1f1b",
    ("zero_bubble", "interleaved1f1b"): "interleaved",
    ("dualpipe", "dualpipe"): "dualpipe",
    ("dualpipe", "dualpipev"): "dualpipev",
}


def run(cuboid, *words):
    return subprocess.run([cuboid, "schedule", *words], check=True, capture_output=True, text=True).stdout


def lists(text):
    """A list of (stage, kind, microbatch) per line; a pair counts as its two."""
    return [[(int(s), kind, int(k)) for s, kind, k in ACTION.findall(line.replace("OVERLAP_F_B", ""))]
            for line in text.splitlines()]


def sizes(stem, ranks):
    """p, m and v: of the name where it has them, else of the lists."""
    stages = 1 + max(s for line in ranks for s, _, _ in line)
    m = 1 + max(k for line in ranks for _, _, k in line)
    name = {key: int(number) for key, number in re.findall(r"_([pmv])(\d+)", stem)}
    p = name.get("p", len(ranks))
    return p, name.get("m", m), name.get("v", stages // p)


def translate(where, name, ranks, p, m):
    """The other program's lists in the notation of here."""
    if where == "zero_bubble" or name == "zb1p_2stagep_compute":
        kinds = {"BW": "B", "B": "I"}
        return [[(s, kinds.get(kind, kind), k) for s, kind, k in line] for line in ranks]
    if where != "dualpipe":
        return ranks
    # There the first number is not a stage but the phase: 0 for microbatches that came in at this half's end.
    out = []
    for rank, line in enumerate(ranks):
        ends = (rank, 2 * p - 1 - rank) if name == "dualpipev" else (rank, p - 1 - rank)
        upper = name == "dualpipe" and rank >= p // 2
        first = m // 2 if name == "dualpipe" else 0
        out.append([(ends[phase ^ upper], kind, k + (first if phase ^ upper else 0)) for phase, kind, k in line])
    return out


def mirrored(ranks, m):
    return [[(s, kind, k if kind == "F" else m - 1 - k) for s, kind, k in line] for line in ranks]


def compare_order(cuboid, where, path):
    name = re.sub(r"_(p?\d+|\d+rank|\d+mb|[pmv]\d+)(?=_|$)", "", path.stem)
    schedule = LAWS.get((where, name))
    if schedule is None:
        return None
    theirs = lists(path.read_text())
    p, m, v = sizes(path.stem, theirs)
    theirs = translate(where, name, theirs, p, m)
    if name in ("dualpipe", "dualpipev"):
        v = 2 if name == "dualpipev" else 1
    ours = lists(run(cuboid, schedule, "-p", str(p), "-m", str(m), "-v", str(v), "--csv"))
    if name == "loopedbfs":
        theirs = mirrored(theirs, m)
    for rank, (a, b) in enumerate(zip(ours, theirs)):
        for i, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return f"rank {rank}, action {i}: {x[0]}{x[1]}{x[2]}, there {y[0]}{y[1]}{y[2]}"
        if len(a) != len(b):
            return f"rank {rank}: {len(a)} actions, there {len(b)}"
    return "" if len(ours) == len(theirs) else f"{len(ours)} ranks, there {len(theirs)}"


def compare_report(cuboid, stem, theirs):
    name, p, m = re.fullmatch(r"(\w+?)_p(\d+)_m(\d+)(?:_v\d+)?", stem).groups()
    if name not in HEURISTIC:
        return None
    v = "1" if HEURISTIC[name] in ("zb-h1", "zb-h2") else "2"  # --cost is that of a whole rank
    ours = json.loads(run(cuboid, HEURISTIC[name], "-p", p, "-m", m, "--json", "--cost", f"f={v},i={v},w={v}"))
    if ours["makespan"] > theirs["makespan"]:
        return f"makespan {ours['makespan']}, there {theirs['makespan']}"
    for rank, (mine, peak) in enumerate(zip(ours["ranks"], theirs["peak_chunks"])):
        if mine["peak"] > peak:
            return f"peak {mine['peak']} on rank {rank}, there {peak}"
    return ""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cuboid, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    results = {}
    for where in sorted({where for where, _ in LAWS}):
        for path in sorted((folder / where).glob("*.csv")):
            results[f"{where}/{path.name}"] = compare_order(cuboid, where, path)
    report = folder / "zero_bubble" / "makespan_report.json"
    if report.exists():
        for stem, theirs in json.loads(report.read_text()).items():
            results[f"makespan_report.json {stem}"] = compare_report(cuboid, stem, theirs)
    compared = {what: result for what, result in results.items() if result is not None}
    for what, result in compared.items():
        if result:
            print(f"DIFFERS  {what}: {result}")
    bad = sum(1 for result in compared.values() if result)
    print(f"{len(compared)} compared, {bad} differ")
    sys.exit(1 if bad or not compared else 0)


if __name__ == "__main__":
    main()
