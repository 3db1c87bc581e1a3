#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stragglers under mpirun: a rank whose ops take 20 % longer is named within 25 steps, with its node; no other is.

    test_stragglers.py CUBOID-FAULTY MPIRUN [--runs N] [--first N] [--ranks 4] [--undisturbed STEPS]

Without options: a short form. Run n is a function of n alone. Prints a line for each run; exit status 1 if one
failed."""
import argparse
import os
import random
import re
import subprocess
import sys
import tempfile

# An action takes about a millisecond: what disturbs it for so long also disturbs its neighbours.
RECIPE = """\
model: {num_layers: 4, hidden_size: 128, num_attention_heads: 4, seq_length: 128}
train: {micro_batch_size: 1}
optimizer: {lr: 1e-3}
data: {mock_data: true}
checkpoint: {save: none, load: none}
logging: {log_interval: 1000000}
"""
# Each rank has a peer: another of its pipeline coordinate.
LAYOUTS = {4: ["pp=1 tp=1 dp=4", "pp=2 tp=1 dp=2", "pp=1 tp=2 dp=2"],
           8: ["pp=1 tp=1 dp=8", "pp=2 tp=2 dp=2", "pp=4 tp=1 dp=2", "pp=2 tp=1 dp=4 pipeline.schedule=zb-h1",
               "pp=1 tp=2 dp=4 parallel.zero_stage=1"]}
PERCENT, WITHIN_STEPS = 20, 25
LINE = re.compile(r"straggler: step (\d+): rank (\d+) \(pp \d+ dp \d+ tp \d+, node (\S+)\) has computed (\d+) % longer")


def train(options, layout, steps, folder, fault=None):
    """(step, rank, node, percent) of each line, the exit status and the output."""
    environment = dict(os.environ, OMPI_MCA_orte_tmpdir_base=folder)
    if fault is not None:
        environment |= {"INJECT": "drag", "INJECT_RANK": str(fault[0]), "INJECT_STEP": str(fault[1]),
                        "INJECT_PERCENT": str(PERCENT)}
    words = [options.mpirun, "-n", str(options.ranks), "-x", "CUBOID_NODE=x", options.cuboid, "train", "a.yaml",
             f"logging.run_dir={folder}/run", f"train.train_iters={steps}",
             f"train.global_batch_size={2 * options.ranks}", *layout.split()]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                          check=False)
    found = [(int(step), int(rank), node, int(percent)) for step, rank, node, percent in LINE.findall(done.stdout)]
    return found, done.returncode, done.stdout


def slowed(options, number, folder):
    rng = random.Random(number)
    layout = LAYOUTS[options.ranks][number % len(LAYOUTS[options.ranks])]
    victim, step = rng.randrange(options.ranks), rng.randint(2, 8)
    found, status, output = train(options, layout, step + WITHIN_STEPS + 5, folder, (victim, step))
    good = status == 0 and [(rank, node) for _, rank, node, _ in found] == [(victim, "x")] and \
        found[0][0] < step + WITHIN_STEPS
    after = f"named after {found[0][0] - step + 1} steps, {found[0][3]} %" if found else "not named"
    print(f"run {number} {'ok' if good else 'FAILED'} slowed {layout}: rank {victim}, {after}", flush=True)
    if not good:
        print(output, flush=True)
    return good


def undisturbed(options, layout, steps, folder):
    found, status, output = train(options, layout, steps, folder)
    good = status == 0 and not found
    print(f"{'ok' if good else 'FAILED'} undisturbed {layout}: {steps} steps, {len(found)} named", flush=True)
    if not good:
        print(output, flush=True)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cuboid")
    parser.add_argument("mpirun")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--undisturbed", type=int, default=22)
    options = parser.parse_args()
    options.cuboid = os.path.abspath(options.cuboid)
    options.mpirun = os.path.abspath(options.mpirun) if os.sep in options.mpirun else options.mpirun
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("a.yaml", "w", encoding="ascii") as file:
            file.write(RECIPE)
        for number in range(options.first, options.first + options.runs):
            with tempfile.TemporaryDirectory(dir=folder) as own:
                failures += not slowed(options, number, own)
        if options.undisturbed > 0:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                layout = LAYOUTS[options.ranks][options.first % len(LAYOUTS[options.ranks])]
                failures += not undisturbed(options, layout, options.undisturbed, own)
        os.chdir("/")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
