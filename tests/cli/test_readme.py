#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md, then those of docs/tour.md, from a clean state (page.py).

A directory with the recipes and pages of the source tree simulates a fresh clone. Every number matches any number.
Differences from the pages:

  - tools/quickstart prepares its dataset from another, short text, as the script does, and trains nothing;
  - tools/test is not run: the build that runs this test takes its place;
  - 20 steps are 2, 40 are 4, evaluations and verify take 1 step, and generate 8 tokens;
  - without mpirun in this build, its lines are left out.

    test_readme.py CUBOID SOURCE-ROOT [MPIRUN]"""
import os
import sys
import tempfile

import page

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
MPIRUN = sys.argv[3] if len(sys.argv) > 3 else None
NOT_RUN = ["tools/test"]
QUICKSTART = "mkdir -p runs/data && cuboid data prepare text.txt -o runs/data/quickstart --split-lines 20"
SHORTER = [("train.train_iters=20", "train.train_iters=2 train.eval_iters=1"),
           ("train.train_iters=40", "train.train_iters=4 train.eval_iters=1"),
           ("head -n 20", "head -n 2"), ("--tokens 64", "--tokens 8"),
           ("cuboid verify ", "cuboid verify --steps 1 ")]
NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?(?: [KMG](?= ))?"


def shorter(command):
    """The command that replaces one of the pages."""
    for long, short in SHORTER:
        command = command.replace(long, short)
    return QUICKSTART if command == "tools/quickstart" else command


def main():
    tour = [(command, shown) for name in ("README.md", "docs/tour.md")
            for command, shown in page.commands(os.path.join(ROOT, name))
            if command not in NOT_RUN and (MPIRUN or "tour-mpi" not in command)]
    programs = {"cuboid": CUBOID, **({"mpirun": MPIRUN} if MPIRUN else {})}
    with tempfile.TemporaryDirectory() as folder:
        results = page.outcomes(folder, ROOT, programs, page.script(tour, shorter))
    return 1 if page.report(tour, results, NUMBER, 20, "the page") else 0


if __name__ == "__main__":
    sys.exit(main())
