#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/compare_bits reports an executable as equal to itself, and a wrapper that trains slightly differently as not.

    test_compare_bits.py CUBOID SOURCE_ROOT"""
import os
import subprocess
import sys
import tempfile

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
COMPARE = [sys.executable, os.path.join(ROOT, "tools", "compare_bits"), CUBOID]
WRAPPER = """#!/bin/sh
case $1 in
train) exec {cuboid} "$@" {change} ;;
*) exec {cuboid} "$@" ;;
esac
"""
failures = []


def expect(what, status, *arguments):
    run = subprocess.run([*COMPARE, *arguments], capture_output=True, text=True, check=False)
    if run.returncode != status:
        failures.append(f"{what}: status {run.returncode}, not {status}\n{run.stdout}{run.stderr}")
    return run.stdout


with tempfile.TemporaryDirectory() as folder:
    other = os.path.join(folder, "cuboid")

    def wrapper(change):
        with open(other, "w", encoding="ascii") as out:
            out.write(WRAPPER.format(cuboid=CUBOID, change=change))
        os.chmod(other, 0o755)
        return other

    expect("equal", 0, CUBOID, "gpt zero 1", "llama resumed")
    output = expect("other samples", 1, wrapper("seed=2"), "gpt dp 2")
    if "step 1" not in output:
        failures.append(f"other samples: the first step is not named in {output!r}")
    output = expect("other weights", 1, wrapper("optimizer.lr_warmup_iters=2 optimizer.weight_decay=0.02"), "gpt dp 2")
    if "DIFFERENT" not in output:
        failures.append(f"other weights: {output!r}")
    expect("no such case", 2, CUBOID, "no such case")
    expect("a failing run", 1, wrapper("tp=77"), "gpt dp 2")
expect("no executable", 2, os.path.join(ROOT, "README.md"))

print("\n".join(failures) or "ok")
sys.exit(bool(failures))
