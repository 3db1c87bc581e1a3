#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the profiles of clusters with published step times, and writes recipes/clusters/NAME.yaml.

    tools/dev/fit_clusters.py CUBOID [--fast] [NAME ...]      writes the profiles, and docs/fits/NAME.txt
    tools/dev/fit_clusters.py CUBOID DEVICE                   writes docs/fits/DEVICE.txt: a100 or h100

The fit begins with NAME-sheet: data sheet and estimates. With names: only these. --fast: without fits to a part of
the rows. A DEVICE has one set of parameters for all its clusters; papers and clusters are left out in turn
(cuboid profile validate)."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLES = {
    "selene": ["narayanan2021", "korthikanti2022"],
    "hagemann2023": ["hagemann2023"],
    "zero-bubble": ["zero-bubble"],
    "jean-zay": ["bloom"],
    "megascale": ["megascale"],
    "eos": ["megatron-h100"],
    "llama3-h100": ["llama3"],
}
DEVICES = {
    "a100": ["selene", "hagemann2023", "zero-bubble", "jean-zay", "megascale"],
    "h100": ["eos", "llama3-h100"],
}
MORE = {"a100": ["megatron-ci@dgx-a100-80"], "h100": ["megatron-ci@dgx-h100"]}  # rows that no profile is fitted to
PARAMETER = re.compile(r"^([a-z][a-z0-9_]+) +(\S+) +(\S+) +(\d+) %(  at a bound)?")


def fitted(cuboid, name):
    """The command, its output, and what the profile has of it."""
    command = ["profile", "fit", *TABLES[name], "--base", f"{name}-sheet"]
    command += ["--fast"] if "--fast" in sys.argv else []
    done = subprocess.run([cuboid, *command], stdout=subprocess.PIPE, text=True, check=True)
    found = [match for match in map(PARAMETER.match, done.stdout.splitlines()) if match]
    errors = re.search(r"^all +(\d+) +\S+ +\S+ +(\S+) +\S+ +- +- +(\S+)", done.stdout, re.M)
    return " ".join(["cuboid", *command]), done.stdout, found, errors


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def fit(cuboid, name):
    command, output, found, errors = fitted(cuboid, name)
    with open(os.path.join(ROOT, "recipes", "clusters", f"{name}-sheet.yaml"), encoding="utf-8") as file:
        description = re.search(r'^description: "(.*), not fitted"$', file.read(), re.M).group(1)
    changed = [match for match in found if match[2] != match[3]]
    bounds = ", ".join(match[1] for match in found if match[5])
    held_out = [f"  held_out_fraction: {float(errors[3]) / 100:.3g}"] if errors[3] != "-" else []
    lines = [f"# {name}, fitted to published step times: docs/fits/{name}.txt. Written by tools/dev/fit_clusters.py.",
             f"base: {name}-sheet", f"name: {name}", f'description: "{description}"', "", "model:",
             *(f"  {match[1]}: {match[3]}" for match in changed), "", "fit:",
             f"  error_fraction: {float(errors[2]) / 100:.3g}", *held_out,
             f"  rows: {errors[1]}", f"  at_bound: [{bounds}]"]
    write(os.path.join(ROOT, "recipes", "clusters", f"{name}.yaml"), "\n".join(lines) + "\n")
    write(os.path.join(ROOT, "docs", "fits", f"{name}.txt"), f"$ {command}\n{output}")
    print(f"{name}: {errors[1]} rows, median error {errors[2]} %", flush=True)


def validate(cuboid, device):
    command = ["profile", "validate", *(f"{table}@{name}-sheet" for name in DEVICES[device] for table in TABLES[name]),
               *MORE.get(device, [])]
    done = subprocess.run([cuboid, *command], stdout=subprocess.PIPE, text=True, check=True)
    write(os.path.join(ROOT, "docs", "fits", f"{device}.txt"), f"$ {' '.join(['cuboid', *command])}\n{done.stdout}")
    print(done.stdout[done.stdout.index("% error"):], flush=True)


def main():
    os.makedirs(os.path.join(ROOT, "docs", "fits"), exist_ok=True)
    for name in [word for word in sys.argv[2:] if word != "--fast"] or [*TABLES, *DEVICES]:
        (validate if name in DEVICES else fit)(os.path.abspath(sys.argv[1]), name)


main()
