#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that plan, sweep, table and profile fit write: names that lose data are refused before any work. The layer
that docs/planning.md follows has the times of a plan.

    test_planning_outputs.py CUBOID SOURCE_ROOT"""
import os
import re
import subprocess
import sys
import tempfile

CUBOID = os.path.abspath(sys.argv[1])
BASE = os.path.join(os.path.abspath(sys.argv[2]), "recipes", "base", "gpt3-1.3b.yaml")
A100 = ["cluster.profile=dgx-a100-80", "precision.params_dtype=bf16"]
DOCS = os.path.join(os.path.abspath(sys.argv[2]), "docs", "internals", "prediction.md")
FILES = {"my.yaml": open(BASE, encoding="utf-8").read(),
         "sweep.yaml": "base: my.yaml\naxes: {tp: [1, 2]}\n",
         "rows.csv": "model,step_time_s\nm,1\n",
         "profile.yaml": "base: dgx-a100-80\n"}
failures = []


def run(folder, *arguments):
    return subprocess.run([CUBOID, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def expect(what, truth, seen):
    if not truth:
        failures.append(what)
        print(f"{what}: {seen!r:.900}")


def test_refusals(folder):
    plan, sweep = ["plan", "my.yaml", *A100], ["sweep", "sweep.yaml", *A100]
    table, fit = ["table", "rows.csv"], ["profile", "fit", "rows.csv", "--base", "profile.yaml"]
    for arguments, word in (([*plan, "-o", "my.yaml"], "overwrite the recipe"),
                            ([*plan, "-o", "a", "--svg", "a"], "the same file"),
                            ([*plan, "-o", "-"], "standard output"),
                            ([*plan, "-o", "none/a"], "no such folder"),
                            ([*sweep, "-o", "sweep.yaml"], "overwrite the sweep"),
                            ([*sweep, "--html", "./sweep.yaml"], "overwrite the sweep"),
                            ([*sweep, "-o", "a", "--html", "a"], "the same file"),
                            ([*sweep, "--html", "/dev/full"], "not a file"),
                            ([*table, "--html", "rows.csv"], "overwrite the table"),
                            ([*table, "--html", "none/a"], "no such folder"),
                            ([*table, "--profile", "profile.yaml", "--html", "profile.yaml"], "cluster profile"),
                            ([*fit, "-o", "rows.csv"], "overwrite the table"),
                            ([*fit, "-o", "profile.yaml"], "overwrite the base profile"),
                            ([*fit, "-o", "/dev/full"], "not a file")):
        done = run(folder, *arguments)
        expect(arguments, done.returncode == 2 and word in done.stderr and not done.stdout, done)
    for name, text in FILES.items():
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            expect(f"{name} is as before", file.read() == text, name)
    expect("nothing is written", sorted(os.listdir(folder)) == sorted(FILES), os.listdir(folder))


def test_followed_layer(folder):
    done = run(folder, "plan", BASE, *A100, "tp=2", "pp=4", "dp=4", "--ops", "--no-advice")
    times = {}  # of ops, by shape
    for line in done.stdout.splitlines():
        words = re.split(r" {2,}", line)  # "", op, count, FLOPs, bytes, ms, share
        if len(words) == 7 and words[2].isdigit():
            shape = re.search(r"\d+( x \d+)+", words[1]).group()
            times.setdefault(shape, []).append(1e3 * float(words[5]) / int(words[2]))
    with open(DOCS, encoding="utf-8") as file:
        cells = [line.strip("| \n").split(" | ") for line in file if line.endswith(" us |\n")]
    ops = [(row[0], row[1].replace(" heads", "").split(",")[0], row[4].split()[0]) for row in cells
           if "`tp`" not in row[0]]
    expect("nine ops of the layer", len(ops) == 9, cells)
    for name, shape, us in ops:
        expect(f"time of {name}", any(abs(time - float(us)) < 0.1 for time in times.get(shape, [])),
               (us, times.get(shape)))


def test_no_fit(folder):
    """The recipe is also written if it does not fit."""
    done = run(folder, "plan", "my.yaml", *A100, "train.micro_batch_size=256", "-o", "large.yaml")
    expect("a recipe that does not fit", done.returncode == 1 and "large.yaml: " in done.stdout and
           os.path.exists(os.path.join(folder, "large.yaml")), done)


with tempfile.TemporaryDirectory() as temporary:
    for file_name, content in FILES.items():
        with open(os.path.join(temporary, file_name), "w", encoding="utf-8") as made:
            made.write(content)
    test_refusals(temporary)
    test_followed_layer(temporary)
    test_no_fit(temporary)
print("\n".join(map(str, failures)) if failures else "all as expected")
sys.exit(1 if failures else 0)
